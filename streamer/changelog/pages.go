package changelog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/streamer/change"
	"millrace/streamer/metrics"
	"millrace/streamer/watermark"
)

// ErrNotInitialised says that the schema holds no log, or not any more.
var ErrNotInitialised = errors.New("the change log is not initialised")

const (
	defaultPageConnections = 4
	defaultPageBytes       = 1 << 20
	defaultPageRows        = 5000
	defaultPageTimeout     = 20 * time.Second
	// maxPageRows is how many transactions a block can tell apart.
	maxPageRows = 50_000
	// pageLockTimeout bounds the wait for a reset; the subscriber comes again.
	pageLockTimeout = 10 * time.Second
	idleTimeout     = time.Minute
)

// PagesConfig is what Pages needs. Conn is required.
type PagesConfig struct {
	// Conn says how to reach the change database. The search path and the application
	// name are in it.
	Conn *pgx.ConnConfig

	Connections int           // most pages read at once [R27]; 0: 4
	PageBytes   int           // most bytes in a page that has more than one message; 0: 1 MiB
	MaxRows     int           // most messages in a page, up to 50,000; 0: 5000
	Timeout     time.Duration // longest time without progress of a read; 0: 20 s

	Metrics *metrics.Metrics // nil: none
	Logger  *slog.Logger     // nil: slog.Default()
}

// Pages reads the log for subscribers that catch up. It may be used from any goroutine.
type Pages struct {
	cfg  PagesConfig
	conn *pgx.ConnConfig
	log  *slog.Logger

	tickets  chan struct{} // one for each connection in use
	attempts atomic.Int64  // numbers given to transactions of pages, all negative

	mu     sync.Mutex
	idle   []idlePage // the most recently used one last
	closed bool
}

type idlePage struct {
	reader *pageReader
	since  time.Time
}

// Page is a part of the log, and the log's state in the same snapshot.
type Page struct {
	// Run is what lies behind the position asked for, perhaps nothing. It may end inside
	// a transaction. Every transaction has an attempt of its own, a negative number.
	Run change.Run

	Minimum        string // least watermark in the log; the head if the log is empty
	Head           string
	ReplicaVersion string
}

// NewPages checks cfg and returns Pages without a connection.
func NewPages(cfg PagesConfig) (*Pages, error) {
	switch {
	case cfg.Conn == nil:
		return nil, errors.New("pages: Conn is required")
	case cfg.Connections < 0, cfg.PageBytes < 0, cfg.Timeout < 0:
		return nil, errors.New("pages: limits must not be negative")
	case cfg.MaxRows < 0, cfg.MaxRows > maxPageRows:
		return nil, fmt.Errorf("pages: MaxRows must be from 0 to %d", maxPageRows)
	}
	orDefault(&cfg.Connections, defaultPageConnections)
	orDefault(&cfg.PageBytes, defaultPageBytes)
	orDefault(&cfg.MaxRows, defaultPageRows)
	orDefault(&cfg.Timeout, defaultPageTimeout)
	orDefault(&cfg.Logger, slog.Default())

	conn := cfg.Conn.Copy()
	conn.RuntimeParams["lock_timeout"] = milliseconds(min(pageLockTimeout, cfg.Timeout/2))
	conn.RuntimeParams["statement_timeout"] = "0" // the limit is on progress, not on the whole
	// A page is a stretch of the primary key; a plan that sorts reads the whole log.
	conn.RuntimeParams["enable_sort"] = "off"
	conn.RuntimeParams["enable_seqscan"] = "off"
	conn.RuntimeParams["jit"] = "off"
	return &Pages{
		cfg:     cfg,
		conn:    conn,
		log:     cfg.Logger.With("component", "changelog"),
		tickets: make(chan struct{}, cfg.Connections),
	}, nil
}

// Close closes the idle connections, and those in use as soon as they are done. Nothing
// can be read after that.
func (p *Pages) Close() {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, i := range idle {
		i.reader.link.close()
	}
}

// Read reads what lies behind a position into b, whose content is lost. It waits for its
// turn. The error is ErrNotInitialised if there is no log.
func (p *Pages) Read(ctx context.Context, after watermark.Position, b *change.Block) (Page, error) {
	started := time.Now()
	select {
	case p.tickets <- struct{}{}:
		defer func() { <-p.tickets }()
	case <-ctx.Done():
		return Page{}, fmt.Errorf("read a page behind %s: %w", after, ctx.Err())
	}
	page, err := p.read(ctx, after, b)
	if err != nil {
		return Page{}, fmt.Errorf("read a page behind %s: %w", after, err)
	}
	if m := p.cfg.Metrics; m != nil {
		m.ChangelogPages.Inc()
		m.ChangelogPageRows.Add(float64(page.Run.Len()))
		m.ChangelogPageSeconds.Observe(time.Since(started).Seconds())
	}
	return page, nil
}

// read reads over an idle connection or a new one. An idle one may have died unnoticed:
// then a new one has a try.
func (p *Pages) read(ctx context.Context, after watermark.Position, b *change.Block) (Page, error) {
	reader, err := p.takeIdle()
	if err != nil {
		return Page{}, err
	}
	for {
		reused := reader != nil
		if !reused {
			link, err := dial(ctx, p.conn, p.cfg.Timeout)
			if err != nil {
				return Page{}, err
			}
			reader = &pageReader{link: link, cfg: &p.cfg, attempts: &p.attempts}
		}
		page, err := reader.read(ctx, after, b)
		if err == nil || errors.Is(err, ErrNotInitialised) {
			p.giveBack(reader)
			return page, err
		}
		reader.link.close()
		if errors.Is(err, errWasteful) {
			return page, nil
		}
		if _, alive := alive(err); !reused || alive || ctx.Err() != nil || timedOut(err) {
			return Page{}, err
		}
		p.log.DebugContext(ctx, "connection for pages was dead", "err", err)
		reader = nil
	}
}

func (p *Pages) takeIdle() (*pageReader, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("pages are closed")
	}
	n := len(p.idle)
	if n == 0 {
		return nil, nil
	}
	reader := p.idle[n-1].reader
	p.idle = p.idle[:n-1]
	return reader, nil
}

// giveBack keeps the connection for the next read, and closes what has not been used for
// long.
func (p *Pages) giveBack(reader *pageReader) {
	now := time.Now()
	var expired []*pageReader
	p.mu.Lock()
	if p.closed {
		expired = append(expired, reader)
	} else {
		p.idle = append(p.idle, idlePage{reader: reader, since: now})
		p.idle = slices.DeleteFunc(p.idle, func(i idlePage) bool {
			old := now.Sub(i.since) > idleTimeout
			if old {
				expired = append(expired, i.reader)
			}
			return old
		})
	}
	p.mu.Unlock()
	for _, reader := range expired {
		reader.link.close()
	}
}
