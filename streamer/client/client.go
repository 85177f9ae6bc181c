// Package client is a subscriber: it follows a change stream over a websocket, acks
// what it was given, and comes back by itself behind the last transaction it has taken
// whole.
//
// Promises, as long as the server keeps its own: the handler sees every transaction
// behind the start position exactly once, whole and in commit order. A transaction that
// was cut off by a lost connection ends in a rollback, as change.Rollback, and may come
// again from its beginning.
//
// Left to the caller: keeping the position, which Persist is told. What was handled but
// not yet persisted when the process dies comes again.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"
	"time"

	"millrace/streamer/watermark"
	"millrace/streamer/wire"
)

// ErrPermanent is wrapped by errors of Discover that trying again cannot mend. They end
// Run.
var ErrPermanent = errors.New("trying again does not help")

// Start positions for Config.Watermark that the server is asked for.
const (
	Head  = "head"  // behind everything the server has stored
	First = "first" // before everything the server has stored
)

const (
	newestVersion = 6
	oldestVersion = 4

	defaultFirstDelay = 25 * time.Millisecond
	defaultLastDelay  = 10 * time.Second
	defaultLiveness   = 33 * time.Second
	defaultTimeout    = 10 * time.Second
	defaultMode       = "serving"
	maxMessageBytes   = 1 << 30

	// mostUnauthorized is how often a token is tried until it is believed to be wrong.
	mostUnauthorized = 2
)

// Config says what to follow, from where, and what to do with it. URL or Discover,
// Watermark or Snapshot, and Handler are required.
type Config struct {
	// URL is the server, ws://host:port or wss://host:port. A path is dropped.
	URL string
	// Discover finds the server anew before every connection: host:port or a URL. It is
	// used if URL is empty.
	Discover func(ctx context.Context) (address string, err error)

	// Token returns what the server wants to see of those who may ask; it is asked for before
	// every connection. See TokenFile. No token if nil.
	Token func() (string, error)
	// TLS returns how to speak TLS with a server whose address begins with wss; it is asked
	// for before every connection. See TrustFile. As the system has it if nil.
	TLS func() (*tls.Config, error)

	Version int    // protocol version 4 to 6; 6 if zero
	ID      string // names this subscriber in logs of the server; task id and process if empty
	TaskID  string // host name if empty
	Mode    string // "serving" if empty

	// ReplicaVersion is the history that Watermark belongs to. If it is empty the server
	// is asked for it (GET /status), once.
	ReplicaVersion string
	// Watermark is the commit behind which the stream starts, or Head or First, which
	// the server is asked for (GET /status), once.
	Watermark string

	// Snapshot is a folder that streamer snapshot has written, to start from; then
	// ReplicaVersion and Watermark must be empty. Handler is given its rows before the
	// first connection, as one transaction that commits at the snapshot's watermark.
	// Nothing of a folder that is damaged is given.
	Snapshot string
	// NonFiniteStrings writes NaN and infinity in Snapshot as strings, as a server does
	// that was told to.
	NonFiniteStrings bool

	// Resolved is told the start position, once, before anything is handled: what Persist
	// would be told of the commit before the first. An error ends Run. It may be nil, and
	// is not called for a Snapshot: before its rows are handled there is no position.
	Resolved func(ctx context.Context, p Position) error
	// Handler is called for every message, in order, from the goroutine of Run. An error
	// ends Run.
	Handler func(ctx context.Context, m Message) error
	// Persist is called when a commit was handled and before it is acked: a server may
	// forget what was acked. An error ends Run. It may be nil.
	Persist func(ctx context.Context, p Position) error
	// PersistTogether lets commits that arrived together share one call of Persist, with
	// the position of the last of them. None of them is acked before.
	PersistTogether bool
	// Idle is called when nothing more has arrived, before acks are sent: the place to
	// flush a buffer. An error ends Run. It may be nil.
	Idle func() error

	// Restore makes a copy of the data from a backup and returns where that stands. It is
	// called if there is no Watermark and no Snapshot, and when the server says that only
	// another copy helps (errors 1 and 2): so Run starts over instead of ending. While it
	// works the log is not purged past what it needs. An error ends Run. It may be nil.
	Restore func(ctx context.Context, r Restore) (Position, error)

	BackoffMin time.Duration // first delay before the next connection; 25 ms if zero
	BackoffMax time.Duration // largest delay; 10 s if zero
	Liveness   time.Duration // silence after which a connection is given up; 33 s if zero
	Timeout    time.Duration // limit on a handshake, a status request, a write; 10 s if zero
	// MaxMessageBytes is the largest payload of a frame taken, at most 1 GiB; what every
	// subscriber takes, wire.MaxFrame, if zero.
	MaxMessageBytes int64
	Logger          *slog.Logger // discards if nil
}

// Position is a place between transactions of one history.
type Position struct {
	ReplicaVersion string
	Watermark      string // of the last commit; the place is behind it
}

// Check says whether p can be a position: both are watermarks.
func (p Position) Check() error {
	if err := watermark.Check(p.ReplicaVersion); err != nil {
		return fmt.Errorf("replica version: %w", err)
	}
	return watermark.Check(p.Watermark)
}

// Client follows one change stream.
type Client struct {
	cfg Config
	log *slog.Logger

	pos   Position // behind the last transaction handled whole
	moved bool     // a commit was handled since the process started

	unauthorized int // answers since the last connection that said so

	reserved *reservation // of what was restored, until it is subscribed

	retry      backoff // reset when a subscription is accepted
	violations backoff // reset when a transaction arrived whole
}

// New checks cfg and returns a Client that has done nothing yet.
func New(cfg Config) (*Client, error) {
	if cfg.Handler == nil {
		return nil, errors.New("client: Handler is required")
	}
	if cfg.URL == "" && cfg.Discover == nil {
		return nil, errors.New("client: URL or Discover is required")
	}
	if cfg.URL != "" {
		if _, err := serverURL(cfg.URL); err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
	}
	switch {
	case cfg.Snapshot == "" && cfg.Watermark == "" && cfg.Restore == nil:
		return nil, errors.New("client: Watermark, Snapshot or Restore is required")
	case cfg.Snapshot != "" && (cfg.Watermark != "" || cfg.ReplicaVersion != ""):
		return nil, errors.New("client: a Snapshot has a Watermark and a ReplicaVersion of its own")
	}
	if cfg.Version == 0 {
		cfg.Version = newestVersion
	}
	if cfg.Version < oldestVersion || cfg.Version > newestVersion {
		return nil, fmt.Errorf("client: protocol version %d is not one of %d to %d", cfg.Version, oldestVersion, newestVersion)
	}
	if cfg.TaskID == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("client: no TaskID, and the host has no name: %w", err)
		}
		cfg.TaskID = host
	}
	if cfg.ID == "" {
		cfg.ID = cfg.TaskID + "/client-" + strconv.Itoa(os.Getpid())
	}
	if cfg.Mode == "" {
		cfg.Mode = defaultMode
	}
	cfg.BackoffMin = orDefault(cfg.BackoffMin, defaultFirstDelay)
	cfg.BackoffMax = max(orDefault(cfg.BackoffMax, defaultLastDelay), cfg.BackoffMin)
	cfg.Liveness = orDefault(cfg.Liveness, defaultLiveness)
	cfg.Timeout = orDefault(cfg.Timeout, defaultTimeout)
	if cfg.MaxMessageBytes <= 0 {
		cfg.MaxMessageBytes = wire.MaxFrame
	}
	if cfg.MaxMessageBytes > maxMessageBytes {
		return nil, fmt.Errorf("client: MaxMessageBytes %d is more than %d", cfg.MaxMessageBytes, maxMessageBytes)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{
		cfg:        cfg,
		log:        cfg.Logger.With("component", "client"),
		retry:      backoff{min: cfg.BackoffMin, max: cfg.BackoffMax},
		violations: backoff{min: cfg.BackoffMin, max: cfg.BackoffMax},
	}, nil
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d <= 0 {
		return fallback
	}
	return d
}

// Run follows the stream until ctx ends, and then returns nil. It returns a *Refused
// when the server says that it will never serve this position, an error wrapping
// ErrPermanent when the server cannot be found or asked or does not know the token, what is
// wrong with the Snapshot, and what Handler, Persist and Idle return. Everything else it
// mends by connecting again.
func (c *Client) Run(ctx context.Context) error {
	if c.cfg.Snapshot != "" && c.pos.Watermark == "" {
		if err := c.load(ctx); err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil
			}
			return err
		}
	}
	defer c.release()
	over := c.cfg.Snapshot == "" && c.cfg.Watermark == "" && c.pos.Watermark == ""
	for {
		if over {
			if err := c.restore(ctx); ctx.Err() != nil {
				return nil
			} else if err != nil {
				return err
			}
		}
		err := c.follow(ctx)
		if over = c.startsOver(err) && ctx.Err() == nil; over {
			delay := c.retry.next()
			c.log.WarnContext(ctx, "starting over from a backup", "err", err, "duration", delay)
			sleep(ctx, delay)
			continue
		}
		if ctx.Err() != nil {
			if own := callerError(err); own != nil && !errors.Is(own, ctx.Err()) {
				return own
			}
			return nil
		}
		if end := c.final(err); end != nil {
			return end
		}
		delay := c.delay(err)
		c.log.Log(ctx, severity(delay), "connection ended, trying again",
			"err", err, "watermark", c.pos.Watermark, "duration", delay)
		if !sleep(ctx, delay) {
			return nil
		}
	}
}

// follow finds the server, connects, and takes messages until something goes wrong. It
// never returns nil.
func (c *Client) follow(ctx context.Context) error {
	server, err := c.find(ctx)
	if err != nil {
		return err
	}
	access, err := c.access()
	if err != nil {
		return err
	}
	if err := c.resolveStart(ctx, server, access); err != nil {
		return err
	}
	conn, err := c.dial(ctx, server, access)
	if err != nil {
		return err
	}
	c.unauthorized = 0
	defer conn.close()
	c.release() // the subscription holds the log from here on
	c.log.DebugContext(ctx, "connected", "address", server.Host, "watermark", c.pos.Watermark)
	s := session{client: c, conn: conn, pos: c.pos}
	conn.settle = func() error { return s.settle(context.WithoutCancel(ctx)) }
	return s.run(ctx)
}

func (c *Client) find(ctx context.Context) (*url.URL, error) {
	address := c.cfg.URL
	if address == "" {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		var err error
		if address, err = c.cfg.Discover(ctx); err != nil {
			return nil, fmt.Errorf("find the change-streamer: %w", err)
		}
	}
	server, err := serverURL(address)
	if err != nil {
		return nil, fmt.Errorf("find the change-streamer: %w", err)
	}
	return server, nil
}

// delay chooses how long to wait. A subscription that was accepted starts the delays
// anew, so a server that accepts and then breaks the protocol has delays of its own.
func (c *Client) delay(err error) time.Duration {
	var v *violation
	if errors.As(err, &v) {
		return max(c.violations.next(), c.retry.next())
	}
	return c.retry.next()
}

// final returns the error that ends Run, or nil if connecting again may help.
func (c *Client) final(err error) error {
	if errors.Is(err, ErrUnauthorized) {
		// The token may have been replaced, here or there, while it was looked at.
		if c.unauthorized++; c.unauthorized < mostUnauthorized && c.cfg.Token != nil {
			return nil
		}
	}
	var refused *Refused
	if errors.As(err, &refused) || errors.Is(err, ErrPermanent) {
		return err
	}
	return callerError(err)
}

// callerError returns what a function of the caller returned, or nil.
func callerError(err error) error {
	var own *callbackError
	if errors.As(err, &own) {
		return own.err
	}
	return nil
}

func severity(delay time.Duration) slog.Level {
	const warnFrom, errorFrom = time.Second, 6500 * time.Millisecond
	switch {
	case delay < warnFrom:
		return slog.LevelInfo
	case delay < errorFrom:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}

// backoff doubles from min to max, and draws each delay from its upper half, so that
// many subscribers of one server do not come back as one.
type backoff struct {
	min, max, delay time.Duration
}

func (b *backoff) next() time.Duration {
	if b.delay == 0 {
		b.delay = b.min
	} else {
		b.delay = min(2*b.delay, b.max)
	}
	half := b.delay / 2
	return half + rand.N(b.delay-half+1)
}

func (b *backoff) reset() { b.delay = 0 }
