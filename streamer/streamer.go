// Package streamer wires the rooms together and owns every goroutine: one slot in, a
// durable log, websocket subscribers out.
//
//	source ──► tail ──► store ──► change log
//	             │                    │ pages
//	             └──► subscriber ◄────┘ ──► server
//
// Changes go one way. What comes back is only ever a position, through a function that
// the wiring handed in.
package streamer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"millrace/streamer/backup"
	"millrace/streamer/changelog"
	"millrace/streamer/metrics"
	"millrace/streamer/server"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/source/postgres/pgtext"
	"millrace/streamer/tail"
)

const (
	sampleEvery = time.Second
)

// errStopped ends what runs beside a stream that has ended without an error.
var errStopped = errors.New("the stream has ended")

// service is one running streamer.
type service struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics.Metrics
	upstream *postgres.Upstream
	ledger   *changelog.Ledger
	pages    *changelog.Pages
	listener net.Listener
	address  string // under which subscribers find us

	holders *backup.Holders

	ready   atomic.Bool
	wanted  chan struct{} // closed by the first serving subscription
	want    sync.Once
	running chan struct{} // closed when stream is set
	stream  atomic.Pointer[stream]
}

// stream is what subscribers are served from.
type stream struct {
	claim
	tail  *tail.Tail
	owned chan struct{} // closed when the log is ours
	acker *backup.Acker

	reservations *backup.Reservations // nil: there are no backups
}

// pending says that somebody else owns the log still.
func (l *stream) pending() bool {
	select {
	case <-l.owned:
		return false
	default:
		return true
	}
}

// isOurs waits until the log is ours. It returns false if ctx ended first.
func (l *stream) isOurs(ctx context.Context) bool {
	select {
	case <-l.owned:
		return true
	case <-ctx.Done():
		return false
	}
}

// Run streams and serves until ctx ends. It returns nil on a clean stop: when ctx ended,
// or when another process has taken the log over. A *source.StateError, or a
// *postgres.PreflightError full of them, says what a person must mend.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.setDefaults(); err != nil {
		return err
	}
	s := &service{
		cfg:     cfg,
		log:     cfg.Logger.With("component", "streamer", "schema", cfg.Schema),
		holders: backup.NewHolders(),
		wanted:  make(chan struct{}),
		running: make(chan struct{}),
	}
	return s.run(ctx)
}

func (s *service) run(ctx context.Context) (err error) {
	if s.upstream, err = postgres.NewUpstream(s.cfg.UpstreamDB); err != nil {
		return err
	}
	changeDB, err := s.cfg.changeDB()
	if err != nil {
		return err
	}
	changeDB.OnNotice = s.noticed
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = metrics.New(registry)
	if s.ledger, err = changelog.NewLedger(changeDB); err != nil {
		return err
	}
	defer s.ledger.Close()
	if s.pages, err = changelog.NewPages(changelog.PagesConfig{
		Conn: changeDB, Metrics: s.metrics, Logger: s.cfg.Logger,
	}); err != nil {
		return err
	}
	defer s.pages.Close()
	if s.listener, err = server.Listen(s.cfg.Listen); err != nil {
		return err
	}
	defer s.listener.Close() // the server has closed it, or never had it
	address := s.cfg.Advertise
	if address == "" {
		if address, err = advertised(s.listener.Addr()); err != nil {
			return err
		}
	}
	s.address = ownerAddress(address, s.cfg.TLSCert != "")
	certificate, tokens, err := s.doors(ctx)
	if err != nil {
		return err
	}
	config := server.Config{
		Listener:        s.listener,
		Certificate:     certificate,
		Tokens:          tokens,
		Base:            s.cfg.PathBase,
		HealthSplit:     s.cfg.HealthSplit,
		MinVersion:      s.cfg.MinProtocol,
		Subscribe:       s.subscribe,
		Ready:           s.isReady,
		Status:          s.ledger.StatusJSON,
		MetricsHandler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		Metrics:         s.metrics,
		SubscriberGrace: max(0, s.cfg.SubscriberGrace),
		GiveUp:          s.cfg.SubscriberGiveUp,
		MaxSubscribers:  s.cfg.MaxSubscribers,
		DrainTimeout:    s.cfg.DrainTimeout,
		Urgent:          lostLog, // subscribers are to be with the new owner
		Logger:          s.cfg.Logger,
	}
	if s.cfg.BackupURL != "" {
		config.Reserve = s.reserve
	}
	web, err := server.New(config)
	if err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return web.Run(ctx) })
	group.Go(func() error {
		if err := s.serve(ctx); err != nil {
			return err
		}
		return errStopped // and the server with it
	})
	err = group.Wait()
	switch {
	case errors.Is(err, errStopped):
		return nil
	case lostLog(err):
		if live := s.stream.Load(); live == nil || live.pending() {
			s.log.InfoContext(ctx, "stopped: the log is not to be ours", "cause", err)
		} else {
			s.log.InfoContext(ctx, "stopped: the log is no longer ours", "cause", err)
		}
		return nil
	}
	return err
}

// doors reads what a peer is shown and must show. It warns of what is missing where
// others can reach us.
func (s *service) doors(ctx context.Context) (certificate *server.Certificate, tokens *server.Tokens, err error) {
	missing := make([]string, 0, 2)
	if s.cfg.TLSCert == "" {
		missing = append(missing, "no TLS: whoever is on the way can read every change")
	} else if certificate, err = server.NewCertificate(s.cfg.TLSCert, s.cfg.TLSKey, s.cfg.Logger); err != nil {
		return nil, nil, err
	}
	if s.cfg.AuthTokenFile == "" {
		missing = append(missing, "no token: whoever reaches the port can ask for every change")
	} else if tokens, err = server.NewTokens(s.cfg.AuthTokenFile, s.cfg.Logger); err != nil {
		return nil, nil, err
	}
	if len(missing) > 0 && !local(s.listener.Addr()) {
		s.log.WarnContext(ctx, "listened beyond this machine with a door open", "cause",
			fmt.Sprintf("%s has %s", s.listener.Addr(), strings.Join(missing, "; and ")))
	}
	return certificate, tokens, nil
}

// lostLog says that an error only means that the log is, or is to be, somebody else's.
func lostLog(err error) bool {
	return errors.Is(err, changelog.ErrOwnershipLost) || errors.Is(err, source.ErrNotOwner)
}

func (s *service) isReady() error {
	if !s.ready.Load() {
		return server.ErrUnavailable
	}
	return nil
}

// serve takes the log over and streams until ctx ends or ownership is lost.
func (s *service) serve(ctx context.Context) error {
	info, err := s.upstream.Preflight(ctx, postgres.PreflightConfig{
		App: s.cfg.AppID, Publications: s.cfg.Publications,
	})
	if err != nil {
		return stopped(ctx, err)
	}
	s.warn(ctx, info.Warnings)
	if !s.delay(ctx) {
		return nil
	}
	c := &claimer{cfg: s.cfg, log: s.log, upstream: s.upstream, ledger: s.ledger, pages: s.pages, address: s.address}
	me, err := c.claim(ctx)
	if err != nil {
		return stopped(ctx, err)
	}
	err = s.flow(ctx, c, me)
	var state *source.StateError
	if live := s.stream.Load(); live != nil && live.pending() && errors.As(err, &state) {
		state.Hint = "the log and its owner are not concerned: start this process again"
	}
	s.markReset(ctx, me, err)
	c.retire(ctx, me, false)
	return err
}

// final are the states of a stream that ends only with a new history.
var final = []string{
	postgres.StateSlotMissing, postgres.StateSlotLost, postgres.StatePublicationMissing,
	postgres.StateUpstreamChanged, postgres.StateMessageTooLarge, stateHole,
}

// markReset notes in the log that the stream ended with a state of which only a reset is
// a way out, so that the next start that may do it does.
func (s *service) markReset(ctx context.Context, me claim, err error) {
	var state *source.StateError
	if !errors.As(err, &state) || !slices.Contains(final, state.State) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	start, found, lost := s.ledger.Start(ctx)
	if lost == nil && (!found || start.Owner != me.owner) {
		return // it is for the owner to say
	}
	if lost == nil {
		lost = s.ledger.MarkReset(ctx, me.replicaVersion)
	}
	if lost != nil {
		s.log.WarnContext(ctx, "could not mark the log for a reset", "err", lost)
	}
}

func (s *service) warn(ctx context.Context, warnings []string) {
	for _, warning := range warnings {
		s.log.WarnContext(ctx, "found a surprise upstream", "cause", warning)
	}
}

// lookAtTables warns of published tables that will surprise somebody.
func (s *service) lookAtTables(ctx context.Context, publications []string) {
	warnings, err := s.upstream.TableWarnings(ctx, publications)
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "could not look at the published tables", "err", err)
	}
	s.warn(ctx, warnings)
}

// stopped turns an error that only says that ctx has ended into nil.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// delay waits for the start-up delay, or for the first serving subscription, which shows
// that requests are routed here already. It returns false if ctx has ended.
func (s *service) delay(ctx context.Context) bool {
	if s.cfg.StartupDelay == 0 {
		return ctx.Err() == nil
	}
	s.ready.Store(true)
	s.log.InfoContext(ctx, "waiting before the log is taken over, or until a subscriber comes", "duration", s.cfg.StartupDelay)
	timer := time.NewTimer(s.cfg.StartupDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.wanted:
		return true
	case <-ctx.Done():
		return false
	}
}

// flow streams from the claimed slot to subscribers. A newcomer takes the log over on the
// way: until then the tail is shut, and subscribers read the log.
func (s *service) flow(ctx context.Context, c *claimer, me claim) error {
	pending := me.purge != nil
	end, err := tail.New(tail.Config{Start: me.head, MaxBytes: s.cfg.TailMaxBytes, Shut: pending})
	if err != nil {
		return err
	}
	live := &stream{claim: me, tail: end, owned: make(chan struct{})}
	drained := make(chan struct{}) // closed when the store has confirmed all that it will
	src, err := postgres.New(postgres.Config{
		Upstream:     s.upstream,
		Slot:         me.slot,
		Publications: me.publications,
		Check:        func(ctx context.Context, confirmed string) error { return s.check(ctx, live, confirmed) },
		Owner:        func(ctx context.Context) error { _, err := s.allowed(ctx, live); return err },
		Peer:         zeroWalsender,
		Drained:      drained,
		DrainTimeout: s.cfg.DrainTimeout / 2,
		Options:      pgtext.Options{NonFiniteString: s.cfg.NonFiniteStrings},
		Metrics:      s.metrics,
		Logger:       s.cfg.Logger,
	})
	if err != nil {
		return err
	}
	changeDB, err := s.cfg.changeDB()
	if err != nil {
		return err
	}
	live.acker = backup.NewAcker(me.head, s.cfg.BackupURL != "", src.Confirm)
	config := changelog.Config{
		Conn: changeDB, Owner: me.owner, Address: s.address, ReplicaVersion: me.replicaVersion, Head: me.head,
		Tail: end, Stored: live.acker.Stored, Shown: live.acker.Shown, DrainTimeout: s.cfg.DrainTimeout / 2,
		Metrics: s.metrics, Logger: s.cfg.Logger,
	}
	if pending {
		config.Assumed = func(head string) {
			end.Open(head)
			close(live.owned)
			s.log.InfoContext(ctx, "took the log over", "owner", me.owner, "cause", "was owned by "+me.from,
				"slot", me.slot, "watermark", head)
		}
	} else {
		close(live.owned)
	}
	store, err := changelog.NewStore(config)
	if err != nil {
		return err
	}
	if s.cfg.BackupURL != "" {
		if live.reservations, err = s.newReservations(live); err != nil {
			return err
		}
	}
	s.stream.Store(live)
	s.ready.Store(true)
	close(s.running)
	if s.cfg.Started != nil {
		s.cfg.Started(s.listener.Addr().String())
	}
	if pending {
		s.log.InfoContext(ctx, "streaming beside the owner", "slot", me.slot, "owner", me.owner, "watermark", me.head)
	} else {
		s.log.InfoContext(ctx, "streaming", "slot", me.slot, "owner", me.owner, "watermark", me.head)
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return end.Run(ctx) })
	group.Go(func() error { return src.Run(ctx, end) })
	group.Go(func() error {
		defer close(drained)
		err := store.Run(ctx)
		if errors.Is(err, changelog.ErrOwnershipLost) { // in the words that the source knows
			return fmt.Errorf("%w: %w", source.ErrNotOwner, err)
		}
		return err
	})
	group.Go(func() error { return s.watch(ctx, live) })
	if pending {
		group.Go(func() error { return s.stay(ctx, live) })
	}
	group.Go(func() error { return s.sample(ctx, end) })
	if len(s.cfg.Publications) == 0 { // the default one may be new: Preflight could not look
		group.Go(func() error {
			s.lookAtTables(ctx, me.publications)
			return nil
		})
	}
	group.Go(func() error { return s.tidy(ctx, c, live) })
	group.Go(func() error { return s.cleanUp(ctx, live) })
	group.Go(func() error { return s.mark(ctx, live, store.Bytes) })
	if s.cfg.BackupURL != "" {
		group.Go(func() error { return s.backups(ctx, live) })
		group.Go(func() error { return live.reservations.Run(ctx) })
		group.Go(func() error { return s.gauge(ctx, live) })
	}
	return group.Wait()
}

// check is asked before the first message of every connection [R11].
func (s *service) check(ctx context.Context, live *stream, confirmed string) error {
	start, err := s.allowed(ctx, live)
	if err != nil {
		return err
	}
	return coveredAt(start, live.slot, confirmed)
}

// allowed reads the log's state and answers source.ErrNotOwner if we may not stream: we do
// not own it, and are not about to take it over.
func (s *service) allowed(ctx context.Context, live *stream) (changelog.Start, error) {
	pending := live.pending() // before the state, which may be ours a moment later
	start, found, err := s.ledger.Start(ctx)
	switch {
	case err != nil:
		return start, err
	case !found:
		return start, fmt.Errorf("%w: the log was emptied", source.ErrNotOwner)
	case start.ReplicaVersion == live.replicaVersion && (start.Owner == live.owner || pending):
	default:
		return start, fmt.Errorf("%w: %q at %q, replica version %s",
			source.ErrNotOwner, start.Owner, start.OwnerAddress, start.ReplicaVersion)
	}
	if start.Owner != live.owner {
		err := s.ledger.Announce(ctx, live.owner, live.replicaVersion)
		if errors.Is(err, changelog.ErrOwnershipLost) {
			err = fmt.Errorf("%w: %w", source.ErrNotOwner, err)
		}
		return start, err
	}
	return start, nil
}

// sample sets the gauges that nobody else has a moment to set.
func (s *service) sample(ctx context.Context, end *tail.Tail) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			stats := end.Stats()
			s.metrics.TailBytes.Set(float64(stats.Bytes))
			s.metrics.TailBlocks.Set(float64(stats.Blocks))
		case <-ctx.Done():
			return nil
		}
	}
}

var _ source.Sink = (*tail.Tail)(nil)
