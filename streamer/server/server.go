// Package server carries subscriptions over websockets, and answers the HTTP requests of
// health checks, monitoring and people.
//
// Each connection has two goroutines: the pump sends what its subscription hands out,
// and nothing else writes but pings and pongs; the reader takes acks. A connection that
// is slow or dead costs the others nothing: it has no queue, its buffer goes back to a
// pool when it is dry, its writes have a deadline, and one sweeper looks at all of them
// once a second.
//
// Promised: whoever cannot be served is told so before the upgrade [R29]; a request that
// was upgraded ends with a close frame unless the peer is gone; Run leaves no goroutine
// and no connection behind. Which subscriptions are valid is for Subscribe to say.
package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"millrace/streamer/metrics"
	"millrace/streamer/subscriber"
	"millrace/streamer/wire"
)

// ErrUnavailable is wrapped by what Ready and Subscribe return while nobody can be
// served. The request is answered with 503 before the upgrade.
var ErrUnavailable = errors.New("not ready")

var (
	errStopping = errors.New("the server stops")
	errTooMany  = errors.New("too many subscribers")
)

const (
	defaultPingEvery       = 30 * time.Second
	defaultWriteTimeout    = 30 * time.Second
	defaultErrorAckTimeout = 5 * time.Second
	defaultCloseTimeout    = 5 * time.Second
	defaultCloseDelay      = time.Second
	defaultCloseDelayMax   = 10 * time.Second
	defaultSweepEvery      = time.Second
	defaultDrainTimeout    = 10 * time.Second
	defaultRefusalDelay    = time.Second
	urgentDrain            = 500 * time.Millisecond

	// subscribeTimeout bounds the answer to a request; Subscribe may wait for the stream
	// to start.
	subscribeTimeout  = 30 * time.Second
	statusTimeout     = 10 * time.Second
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
)

// Config is what a Server needs. Listener, Subscribe and Metrics are required.
type Config struct {
	Listener net.Listener // Run closes it
	Metrics  *metrics.Metrics

	// Subscribe answers a request for changes. The function it returns is called when the
	// connection has ended. Its error says how to refuse: a *wire.ErrorMessage and a
	// *wire.Close are told after the upgrade, anything else is a 503 before it. ctx ends
	// with the connection, or when the answer takes too long.
	Subscribe func(ctx context.Context, r wire.Request) (*subscriber.Subscription, func(), error)

	// Reserve answers a request for a reservation; its errors are those of Subscribe. Nil:
	// there are no backups.
	Reserve func(ctx context.Context, r wire.Request) (Restore, error)

	Ready          func() error                                       // nil when requests can be served; always if nil
	Status         func(ctx context.Context) (json.RawMessage, error) // answer of /status, which is 404 if nil
	MetricsHandler http.Handler                                       // answers /metrics, which is 404 if nil

	// Certificate makes the server speak TLS; without one it is plain.
	Certificate *Certificate
	// Tokens are those of which every request but health checks must have one; none if nil.
	Tokens *Tokens
	// Base is the segment that may stand before the path of a subscription; any if empty.
	Base string
	// HealthSplit lets / answer from the start on, whether requests can be served or not.
	HealthSplit bool

	MinVersion      int           // oldest protocol version served; wire.MinVersion if zero
	MaxSubscribers  int           // connections at a time; no limit if zero
	PingEvery       time.Duration // 30s if zero; a peer silent for one to two of them is dead
	SubscriberGrace time.Duration // un-acked frames without any ack until a plain close; never if zero
	// GiveUp, if not zero, takes the place of SubscriberGrace: after it error 3 is sent,
	// which makes a subscriber delete its replica [R26].
	GiveUp          time.Duration
	WriteTimeout    time.Duration // one write of at most 256 KiB; SubscriberGrace or else 30s if zero
	ErrorAckTimeout time.Duration // wait for the ack of an error message; 5s if zero
	CloseTimeout    time.Duration // wait for the peer's answer to a close; 5s if zero
	CloseDelay      time.Duration // first delay of a close that would be met again; 1s if zero
	CloseDelayMax   time.Duration // the delay doubles up to this; 10s if zero
	SweepEvery      time.Duration // how often the connections are looked at; 1s if zero
	DrainTimeout    time.Duration // how long a stop takes at most; 10s if zero
	RefusalDelay    time.Duration // how long a request without a token waits for its refusal; 1s if zero

	// Urgent says of the cause of ctx's end that a stop must be quick: half a second, for
	// those who answer nothing. Never if nil.
	Urgent func(cause error) bool

	Logger *slog.Logger // discards if nil
}

// Server serves one listener.
type Server struct {
	cfg      Config
	log      *slog.Logger
	rules    wire.Rules
	stopping chan struct{}
	delays   delays
	refusing chan struct{}  // requests without a token that wait for their refusal
	running  sync.WaitGroup // reserved places and all that connections started

	complaint atomic.Int64 // when a refusal was a warning, in Unix nanoseconds

	mu       sync.Mutex
	stopped  bool
	reserved int
	conns    map[*conn]struct{}
}

// Listen opens a TCP listener on addr, such as ":4848". Without a host it takes
// connections of all interfaces, IPv6 and IPv4.
func Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: another process has this port; stop it or choose another port: %w", addr, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l, nil
}

// New checks cfg and returns a Server that has accepted nothing yet.
func New(cfg Config) (*Server, error) {
	if cfg.Listener == nil || cfg.Subscribe == nil || cfg.Metrics == nil {
		return nil, errors.New("server: Listener, Subscribe and Metrics are required")
	}
	if cfg.MinVersion == 0 {
		cfg.MinVersion = wire.MinVersion
	}
	if cfg.MinVersion < wire.OldestVersion || cfg.MinVersion > wire.MaxVersion {
		return nil, fmt.Errorf("server: MinVersion %d is outside %d to %d",
			cfg.MinVersion, wire.OldestVersion, wire.MaxVersion)
	}
	if cfg.Base != "" {
		if err := wire.CheckBase(cfg.Base); err != nil {
			return nil, fmt.Errorf("server: Base: %w", err)
		}
	}
	if cfg.MaxSubscribers < 0 {
		return nil, fmt.Errorf("server: MaxSubscribers %d is negative", cfg.MaxSubscribers)
	}
	for _, d := range []struct {
		name    string
		value   *time.Duration
		ifZero  time.Duration
		allowed bool // zero stays zero
	}{
		{"PingEvery", &cfg.PingEvery, defaultPingEvery, false},
		{"SubscriberGrace", &cfg.SubscriberGrace, 0, true},
		{"GiveUp", &cfg.GiveUp, 0, true},
		{"WriteTimeout", &cfg.WriteTimeout, cfg.SubscriberGrace, true},
		{"WriteTimeout", &cfg.WriteTimeout, defaultWriteTimeout, false},
		{"ErrorAckTimeout", &cfg.ErrorAckTimeout, defaultErrorAckTimeout, false},
		{"CloseTimeout", &cfg.CloseTimeout, defaultCloseTimeout, false},
		{"CloseDelay", &cfg.CloseDelay, defaultCloseDelay, false},
		{"CloseDelayMax", &cfg.CloseDelayMax, defaultCloseDelayMax, false},
		{"SweepEvery", &cfg.SweepEvery, defaultSweepEvery, false},
		{"DrainTimeout", &cfg.DrainTimeout, defaultDrainTimeout, false},
		{"RefusalDelay", &cfg.RefusalDelay, defaultRefusalDelay, false},
	} {
		if *d.value == 0 {
			*d.value = d.ifZero
		}
		if *d.value < 0 || (*d.value == 0 && !d.allowed) {
			return nil, fmt.Errorf("server: %s %s is negative", d.name, *d.value)
		}
	}
	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Metrics.ServerSubscribersMax.Set(float64(cfg.MaxSubscribers))
	return &Server{
		cfg:      cfg,
		log:      cfg.Logger.With("component", "server"),
		rules:    wire.Rules{Oldest: cfg.MinVersion, Base: cfg.Base},
		stopping: make(chan struct{}),
		refusing: make(chan struct{}, maxRefusing),
		delays:   delays{first: cfg.CloseDelay, last: cfg.CloseDelayMax},
		conns:    map[*conn]struct{}{},
	}, nil
}

// Run serves until ctx ends, then closes all subscribers plainly and returns nil. It may
// be called once. An error means that the listener is broken.
func (s *Server) Run(ctx context.Context) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	web := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(&httpLog{s.log}, "", 0),
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	listener := s.cfg.Listener
	if s.cfg.Certificate != nil {
		listener = tls.NewListener(listener, s.cfg.Certificate.config())
	}
	var own sync.WaitGroup
	own.Go(func() { s.sweep(requests) })
	served := make(chan error, 1)
	own.Go(func() { served <- web.Serve(listener) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("serve %s: %w", s.cfg.Listener.Addr(), err)
	}
	limit := s.cfg.DrainTimeout
	if s.cfg.Urgent != nil && s.cfg.Urgent(context.Cause(ctx)) {
		limit = min(limit, urgentDrain)
	}
	s.stop(web, cancel, limit)
	own.Wait()
	return err
}

// stop ends everything, within limit. Requests that are being answered are cut short by
// cancel.
func (s *Server) stop(web *http.Server, cancel context.CancelFunc, limit time.Duration) {
	drain, done := context.WithTimeout(context.Background(), limit)
	defer done()
	s.mu.Lock()
	s.stopped = true
	close(s.stopping)
	for c := range s.conns {
		c.stop(errStopping)
	}
	s.mu.Unlock()
	cancel()
	if web.Shutdown(drain) != nil {
		_ = web.Close() // what did not end in time is cut off; there is nobody left to tell
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.running.Wait()
	}()
	select {
	case <-ended:
		return
	case <-drain.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		c.terminate(errStopping)
	}
	s.mu.Unlock()
	<-ended
}

// reserve takes a place for a connection; the caller gives it back by unreserve.
func (s *Server) reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopping
	}
	if s.cfg.MaxSubscribers > 0 && s.reserved >= s.cfg.MaxSubscribers {
		return errTooMany
	}
	s.reserved++
	s.running.Add(1)
	return nil
}

func (s *Server) unreserve() {
	s.mu.Lock()
	s.reserved--
	s.mu.Unlock()
	s.running.Done()
}

// add makes a connection known to the sweeper and to a stop.
func (s *Server) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	if s.stopped {
		c.stop(errStopping)
	}
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}
