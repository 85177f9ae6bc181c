package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"millrace/streamer/watermark"
)

const (
	gaugeEvery   = time.Minute
	gaugeTimeout = 10 * time.Second
	gaugeName    = "litestream_replica_progress"
	gaugeLabel   = "watermark"
	// maxMetrics bounds what is read of an endpoint.
	maxMetrics = 16 << 20
	// staleAfter is how long a backup may stand still while the log goes on before that is
	// an error.
	staleAfter = 15 * time.Minute
	// clockSlack is by how much the backup's clock may be ahead of ours.
	clockSlack = time.Minute
)

// Report is how far a backup is.
type Report struct {
	Watermark string
	At        time.Time // when it was complete
}

// GaugeConfig is what a Gauge needs. URL, Report and Head are required.
type GaugeConfig struct {
	URL string // of metrics in Prometheus' text format
	// Report is told of every backup that is further than the one before.
	Report func(ctx context.Context, r Report) error
	// Head is the end of the log.
	Head func(ctx context.Context) (string, error)

	Every  time.Duration // a minute if zero
	Client *http.Client  // one with a limit of 10 s if nil
	Logger *slog.Logger  // discards if nil
}

// Gauge reads from an endpoint how far the backup is. What the endpoint says is taken for
// what it is: a claim. It is never a reason to end the process, only to purge nothing.
type Gauge struct {
	cfg      GaugeConfig
	log      *slog.Logger
	last     string // reported
	progress time.Time
	stale    bool // that was told
}

// NewGauge checks cfg.
func NewGauge(cfg GaugeConfig) (*Gauge, error) {
	if cfg.URL == "" || cfg.Report == nil || cfg.Head == nil {
		return nil, errors.New("backup gauge: URL, Report and Head are required")
	}
	if cfg.Every == 0 {
		cfg.Every = gaugeEvery
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{Timeout: gaugeTimeout}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Gauge{cfg: cfg, log: cfg.Logger.With("component", "backup"), progress: time.Now()}, nil
}

// Run asks the endpoint now and then until ctx ends. What goes wrong is logged, once while
// it stays the same, and tried again.
func (g *Gauge) Run(ctx context.Context) error {
	ticker := time.NewTicker(g.cfg.Every)
	defer ticker.Stop()
	complained := ""
	for {
		err := g.poll(ctx)
		switch {
		case err == nil:
			complained = ""
		case ctx.Err() == nil && err.Error() != complained:
			complained = err.Error()
			g.log.WarnContext(ctx, "could not learn how far the backup is", "err", err)
		}
		g.watch(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// poll reports the newest backup that the endpoint tells of, if it is a newer one.
func (g *Gauge) poll(ctx context.Context) error {
	newest, err := g.read(ctx)
	if err != nil {
		return fmt.Errorf("ask %s: %w", g.cfg.URL, err)
	}
	if newest.Watermark <= g.last {
		return nil // the same, or backwards: what was reported stays
	}
	if err := g.cfg.Report(ctx, newest); err != nil {
		return fmt.Errorf("report the backup at %s: %w", newest.Watermark, err)
	}
	g.last, g.progress = newest.Watermark, time.Now()
	if g.stale {
		g.stale = false
		g.log.InfoContext(ctx, "the backup goes on", "watermark", g.last)
	}
	return nil
}

// watch says when the backup has stood still for long although the log went on.
func (g *Gauge) watch(ctx context.Context) {
	if g.stale || time.Since(g.progress) < staleAfter {
		return
	}
	head, err := g.cfg.Head(ctx)
	if err != nil || head <= g.last {
		return
	}
	g.stale = true
	g.log.ErrorContext(ctx, "the backup stands still; nothing is purged or forgotten upstream past it", "watermark", g.last,
		"duration", time.Since(g.progress))
}

// read returns the greatest watermark that the endpoint claims, with its time.
func (g *Gauge) read(ctx context.Context) (newest Report, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.cfg.URL, http.NoBody)
	if err != nil {
		return newest, err
	}
	response, err := g.cfg.Client.Do(request)
	if err != nil {
		return newest, err
	}
	defer func() { _ = response.Body.Close() }() // it was read, or is of no use
	if response.StatusCode != http.StatusOK {
		return newest, fmt.Errorf("the answer is %s", response.Status)
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind == "text/html" {
		return newest, errors.New("the answer is HTML, not metrics")
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, maxMetrics))
	if err != nil {
		return newest, fmt.Errorf("the answer is not in Prometheus' text format: %w", err)
	}
	family := families[gaugeName]
	if family == nil {
		return newest, fmt.Errorf("there is no gauge %s", gaugeName)
	}
	for _, metric := range family.GetMetric() {
		claim := ""
		for _, label := range metric.GetLabel() {
			if label.GetName() == gaugeLabel {
				claim = label.GetValue()
			}
		}
		seconds := metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
		switch {
		case claim == "":
			continue
		case watermark.Check(claim) != nil:
			return newest, fmt.Errorf("the gauge claims %q, which is no watermark", claim)
		case math.IsNaN(seconds) || math.IsInf(seconds, 0) || seconds <= 0:
			return newest, fmt.Errorf("the gauge says that %s was backed up at %v, which is no time", claim, seconds)
		}
		at := time.Unix(0, int64(seconds*float64(time.Second)))
		if at.After(time.Now().Add(clockSlack)) {
			return newest, fmt.Errorf("the gauge says that %s was backed up at %s, which is to come", claim, at.UTC().Format(time.RFC3339))
		}
		if claim > newest.Watermark {
			newest = Report{Watermark: claim, At: at}
		}
	}
	return newest, nil
}
