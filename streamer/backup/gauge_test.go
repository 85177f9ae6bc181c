package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// endpoint answers as it is told.
type endpoint struct {
	mu     sync.Mutex
	answer func(w http.ResponseWriter)
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer(w)
}

// gaugeOf is a gauge on an endpoint, and what it reports.
func gaugeOf(t *testing.T) (*Gauge, *endpoint, *[]Report) {
	t.Helper()
	e := &endpoint{}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	reports := &[]Report{}
	g, err := NewGauge(GaugeConfig{
		URL: server.URL,
		Report: func(_ context.Context, r Report) error {
			*reports = append(*reports, r)
			return nil
		},
		Head:   func(context.Context) (string, error) { return "09", nil },
		Client: &http.Client{Timeout: 200 * time.Millisecond},
	})
	require.NoError(t, err)
	t.Cleanup(g.cfg.Client.CloseIdleConnections)
	return g, e, reports
}

func says(lines string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { _, _ = w.Write([]byte(lines)) }
}

func TestGauge(t *testing.T) {
	t.Parallel()
	g, e, reports := gaugeOf(t)
	e.answer = says(`# HELP litestream_replica_progress what was uploaded
# TYPE litestream_replica_progress gauge
litestream_replica_progress{name="file",watermark="01"} 1.7e+09
litestream_replica_progress{name="file",watermark="03"} 1.7000001e+09
litestream_replica_progress{name="file"} 1.8e+09
other{watermark="09"} 1
`)
	require.NoError(t, g.poll(t.Context()))
	require.Equal(t, []Report{{Watermark: "03", At: time.Unix(1_700_000_100, 0)}}, *reports)
	require.NoError(t, g.poll(t.Context()))
	e.answer = says("litestream_replica_progress{watermark=\"02\"} 1700000200\n") // without a type, and backwards
	require.NoError(t, g.poll(t.Context()))
	require.Len(t, *reports, 1)
	e.answer = says("litestream_replica_progress{watermark=\"04\"} 1700000300\n")
	require.NoError(t, g.poll(t.Context()))
	require.Equal(t, Report{Watermark: "04", At: time.Unix(1_700_000_300, 0)}, (*reports)[1])
}

// An endpoint that is not to be believed changes nothing, and what is wrong is said.
func TestGaugeThatLies(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer func(http.ResponseWriter)
		want   string
	}{
		"html": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("<html>litestream</html>"))
		}, "HTML"},
		"html under another name": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte("<html>\n<p class=\"x\">hello</p>\n"))
		}, "Prometheus' text format"},
		"an error":     {func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }, "500"},
		"nothing":      {says(""), "no gauge litestream_replica_progress"},
		"no watermark": {says("litestream_replica_progress{watermark=\"hello!\"} 1700000000\n"), `"hello!", which is no watermark`},
		"no time":      {says("litestream_replica_progress{watermark=\"01\"} NaN\n"), "no time"},
		"the future": {func(w http.ResponseWriter) {
			_, _ = fmt.Fprintf(w, "litestream_replica_progress{watermark=\"01\"} %d\n", time.Now().Add(time.Hour).Unix())
		}, "to come"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, e, reports := gaugeOf(t)
			e.answer = tt.answer
			require.ErrorContains(t, g.poll(t.Context()), tt.want)
			require.Empty(t, *reports)
		})
	}
}

func TestGaugeThatHangs(t *testing.T) {
	t.Parallel()
	g, e, reports := gaugeOf(t)
	released := make(chan struct{})
	e.answer = func(http.ResponseWriter) { <-released }
	err := g.poll(t.Context())
	close(released)
	require.ErrorContains(t, err, "Timeout")
	require.Empty(t, *reports)
}

func TestGaugeIsToldThatTheReportFailed(t *testing.T) {
	t.Parallel()
	g, e, _ := gaugeOf(t)
	e.answer = says("litestream_replica_progress{watermark=\"04\"} 1700000300\n")
	failure := errors.New("the database is away")
	g.cfg.Report = func(context.Context, Report) error { return failure }
	require.ErrorIs(t, g.poll(t.Context()), failure)
	told := 0
	g.cfg.Report = func(context.Context, Report) error { told++; return nil }
	require.NoError(t, g.poll(t.Context()))
	require.Equal(t, 1, told, "it is tried again")
}

func TestGaugeThatStandsStill(t *testing.T) {
	t.Parallel()
	g, e, _ := gaugeOf(t)
	var text bytes.Buffer
	g.log = slog.New(slog.NewTextHandler(&text, nil))
	e.answer = says("litestream_replica_progress{watermark=\"04\"} 1700000300\n")
	require.NoError(t, g.poll(t.Context()))
	g.watch(t.Context())
	require.Empty(t, text.String())

	g.progress = time.Now().Add(-staleAfter)
	g.cfg.Head = func(context.Context) (string, error) { return "04", nil }
	g.watch(t.Context())
	require.Empty(t, text.String(), "the log does not go on either")
	g.cfg.Head = func(context.Context) (string, error) { return "05", nil }
	g.watch(t.Context())
	require.Contains(t, text.String(), "the backup stands still")
	length := text.Len()
	g.watch(t.Context())
	require.Equal(t, length, text.Len(), "it is said once")

	e.answer = says("litestream_replica_progress{watermark=\"05\"} 1700000400\n")
	require.NoError(t, g.poll(t.Context()))
	require.Contains(t, text.String(), "the backup goes on")
}
