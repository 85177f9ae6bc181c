package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"millrace/streamer/metrics"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/source/postgres/pgtext"
	"millrace/streamer/watermark"
)

const (
	defaultStatusEvery = 500 * time.Millisecond
	firstBackoff       = 25 * time.Millisecond
	lastBackoff        = 10 * time.Second
	defaultHolderGrace = 2 * time.Second
	defaultHookTimeout = 10 * time.Second
	defaultDrain       = 5 * time.Second

	// From these delays on a failure is a warning, and an error.
	warnDelay  = time.Second
	errorDelay = 6500 * time.Millisecond
)

// Config is what a Source needs. Upstream, Slot, Publications, Check and Metrics have no
// default.
type Config struct {
	Upstream     *Upstream
	Slot         string
	Publications []string

	// Check is asked after every start of a stream and before its first message is used
	// [R11]: may this process stream, and is there no hole between the log and
	// confirmed, the watermark one below the slot's confirmed position? ErrNotOwner and
	// a *source.StateError end the source; after any other error it tries again.
	Check func(ctx context.Context, confirmed string) error

	// Owner is asked after somebody ended the stream or holds the slot [R14]: is the
	// log still ours? Its errors mean what those of Check mean. Nil: it is, but then no
	// other walsender is ever ended.
	Owner func(ctx context.Context) error

	// Peer is the application that takes the slot from us when another system takes the
	// log over: if it has ended our stream, the source ends with ErrNotOwner. For anybody
	// else it ends with StateSlotInUse.
	Peer string

	// Drained is closed when Confirm will be called no more. A stop waits for it, for at
	// most DrainTimeout, so that the slot is told the last position. Nil: it does not wait.
	Drained      <-chan struct{}
	DrainTimeout time.Duration // 5 s if zero

	// Options are how values are encoded.
	Options pgtext.Options

	StatusEvery time.Duration // how soon what was confirmed goes upstream; 500 ms if zero
	Silence     time.Duration // hearing nothing for so long breaks the connection; twice wal_sender_timeout, at least 10 s, if zero
	HookTimeout time.Duration // limit of one call of Check or Owner; 10 s if zero
	HolderGrace time.Duration // a walsender of ours that holds the slot is ended after this; 2 s if zero
	BackoffMin  time.Duration // first delay before connecting again; 25 ms if zero
	BackoffMax  time.Duration // last delay; 10 s if zero

	Metrics *metrics.Metrics
	Logger  *slog.Logger // discards if nil
}

// Source is a source.Source.
type Source struct {
	cfg       Config
	log       *slog.Logger
	session   *session
	confirmed atomic.Uint64 // an LSN: everything below it may be forgotten upstream

	// Of Run's goroutine only.
	system    system
	shown     string    // the last watermark given to Shown
	streamed  bool      // a stream has been started before
	ended     bool      // the last stream was ended by somebody
	heldSince time.Time // the slot has been held by somebody else since then
	reported  map[string]bool
}

var _ source.Source = (*Source)(nil)

// New checks cfg and returns a Source that has done nothing yet.
func New(cfg Config) (*Source, error) {
	if cfg.Upstream == nil || len(cfg.Publications) == 0 || cfg.Check == nil || cfg.Metrics == nil {
		return nil, errors.New("postgres source: Upstream, Slot, Publications, Check and Metrics are required")
	}
	if err := CheckSlot(cfg.Slot); err != nil {
		return nil, fmt.Errorf("postgres source: %w", err)
	}
	for _, d := range []*time.Duration{
		&cfg.StatusEvery, &cfg.Silence, &cfg.HookTimeout, &cfg.HolderGrace, &cfg.DrainTimeout, &cfg.BackoffMin, &cfg.BackoffMax,
	} {
		if *d < 0 {
			return nil, errors.New("postgres source: a duration is negative")
		}
	}
	cfg.StatusEvery = orDefault(cfg.StatusEvery, defaultStatusEvery)
	cfg.HookTimeout = orDefault(cfg.HookTimeout, defaultHookTimeout)
	cfg.HolderGrace = orDefault(cfg.HolderGrace, defaultHolderGrace)
	cfg.DrainTimeout = orDefault(cfg.DrainTimeout, defaultDrain)
	cfg.BackoffMin = orDefault(cfg.BackoffMin, firstBackoff)
	cfg.BackoffMax = max(cfg.BackoffMin, orDefault(cfg.BackoffMax, lastBackoff))
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{
		cfg:      cfg,
		log:      cfg.Logger.With("component", "source", "slot", cfg.Slot),
		session:  &session{upstream: cfg.Upstream},
		reported: make(map[string]bool),
	}, nil
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// Confirm implements source.Source.
func (s *Source) Confirm(w string) {
	lsn, err := watermark.LSN(w)
	if err != nil {
		s.log.Error("a position to confirm was not one", "watermark", w, "err", err)
		return
	}
	for next := uint64(lsn) + 1; ; {
		old := s.confirmed.Load()
		if next <= old || s.confirmed.CompareAndSwap(old, next) {
			return
		}
	}
}

// Run implements source.Source. It must not be called twice at a time.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	defer s.session.close(ctx)

	delay := time.Duration(0)
	for attempt := 1; ; attempt++ {
		began := time.Now()
		progressed, err := s.stream(ctx, sink)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errRestart) {
			s.shown = "" // what was shown behind the attempt that is cut off counts no more
			s.log.InfoContext(ctx, "stream restarted", "watermark", sink.Last())
			continue
		}
		if final := s.verdict(ctx, err); final != nil {
			return final
		}
		if progressed || time.Since(began) > s.cfg.BackoffMax {
			delay, attempt = 0, 1
		}
		delay = min(max(2*delay, s.cfg.BackoffMin), s.cfg.BackoffMax)
		s.log.Log(ctx, level(delay), "stream broke", "err", err, "attempt", attempt, "duration", delay)
		if !wait(ctx, delay) {
			return nil
		}
	}
}

// level is how serious a failure is that is followed by a delay.
func level(delay time.Duration) slog.Level {
	switch {
	case delay < warnDelay:
		return slog.LevelInfo
	case delay < errorDelay:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}

// wait waits for about d. It returns false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - rand.N(d/4+1)) //nolint:gosec // jitter
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stream connects and streams until something ends it. It says whether the stream got
// anywhere: then the next one need not wait long.
func (s *Source) stream(ctx context.Context, sink source.Sink) (progressed bool, err error) {
	conn, senderTimeout, err := s.open(ctx, sink.Last())
	if err != nil {
		return false, err
	}
	defer conn.close()

	s.streamed, s.ended, s.heldSince = true, false, time.Time{}
	s.cfg.Metrics.SourceConnections.Inc()
	if err := s.check(ctx, conn); err != nil {
		return false, err
	}
	st, err := s.newStream(ctx, conn, sink, newPace(senderTimeout, s.cfg.StatusEvery, s.cfg.Silence))
	if err != nil {
		return false, err
	}
	err = st.run(ctx)
	sink.Abort()
	sink.Publish()
	if errors.Is(context.Cause(ctx), source.ErrNotOwner) {
		return st.progressed, err // what we know to be stored is not ours to confirm any more
	}
	if ctx.Err() != nil {
		s.drain()
	}
	st.bye()
	return st.progressed, err
}

// drain waits until everything that was given to the sink is confirmed, or given up.
func (s *Source) drain() {
	if s.cfg.Drained == nil {
		return
	}
	timer := time.NewTimer(s.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-s.cfg.Drained:
	case <-timer.C:
	}
}

// open connects, looks whether the upstream is still the same, and starts streaming
// behind last.
func (s *Source) open(ctx context.Context, last string) (_ *walsender, senderTimeout time.Duration, err error) {
	from, err := watermark.LSN(last)
	if err != nil {
		return nil, 0, fmt.Errorf("start behind the last transaction: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	conn, err := dial(ctx, s.cfg.Upstream)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			conn.close()
		}
	}()
	if err := s.identify(ctx, conn); err != nil {
		return nil, 0, err
	}
	if senderTimeout, err = conn.senderTimeout(ctx); err != nil {
		return nil, 0, err
	}
	if err := conn.passRaw(ctx); err != nil {
		return nil, 0, err
	}
	if err := conn.start(ctx, s.cfg.Slot, from+1, s.cfg.Publications); err != nil {
		return nil, 0, err
	}
	return conn, senderTimeout, nil
}

// identify compares the upstream with the one of the connection before: positions mean
// something in one history only.
func (s *Source) identify(ctx context.Context, conn *walsender) error {
	now, err := conn.identify(ctx)
	if err != nil {
		return err
	}
	if s.system == (system{}) {
		s.system = now
	}
	if now != s.system {
		return &source.StateError{
			State: StateUpstreamChanged,
			Detail: fmt.Sprintf("%s was system %s, timeline %d, and is now system %s, timeline %d",
				s.cfg.Upstream.address(), s.system.id, s.system.timeline, now.id, now.timeline),
			Hint: "after a failover the log may hold transactions that the new server lost: make a new replica and a new slot",
		}
	}
	return nil
}

// check asks the Check hook, with the position that the slot has now that it is ours.
func (s *Source) check(ctx context.Context, conn *walsender) error {
	var state SlotState
	err := s.session.with(ctx, func(ctx context.Context, c *pgx.Conn) (err error) {
		state, err = readSlot(ctx, c, s.cfg.Slot)
		return err
	})
	if err != nil {
		return err
	}
	if state.Confirmed == 0 {
		return fmt.Errorf("check slot %q: it is gone although a stream from it had started", s.cfg.Slot)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.HookTimeout)
	defer cancel()
	if err := s.cfg.Check(ctx, watermark.FromLSN(state.Confirmed-1)); err != nil {
		return fmt.Errorf("check the stream at %s: %w", state.Confirmed, err)
	}
	s.log.DebugContext(ctx, "stream started", "lsn", state.Confirmed, "pid", conn.conn.PID())
	return nil
}

func (s *Source) newStream(ctx context.Context, conn *walsender, sink source.Sink, pace pace) (*stream, error) {
	types := &types{session: s.session, known: make(map[uint32]pgtext.Type)}
	options := s.cfg.Options
	options.ReplaceInvalidUTF8 = options.ReplaceInvalidUTF8 || conn.raw
	decoder, err := pgoutput.New(pgoutput.Config{
		Options:     options,
		Types:       func(oid uint32) (pgtext.Type, error) { return types.lookup(ctx, oid) },
		Undecodable: func(schema, table, column string) { s.undecodable(ctx, schema, table, column) },
	}, sink)
	if err != nil {
		return nil, err
	}
	return &stream{source: s, conn: conn, sink: sink, decoder: decoder, pace: pace}, nil
}

// undecodable counts a value that was not sent, and logs the first of each column.
func (s *Source) undecodable(ctx context.Context, schema, table, column string) {
	s.cfg.Metrics.Undecodable(schema, table)
	name := schema + "." + table + "." + column
	if s.reported[name] {
		return
	}
	s.reported[name] = true
	s.log.WarnContext(ctx, "value could not be decoded", "cause", name)
}

// Confirmed is the LSN below which upstream may forget everything, as far as Confirm has
// been told; 0 before that.
func (s *Source) Confirmed() pglogrepl.LSN {
	return pglogrepl.LSN(s.confirmed.Load())
}
