// Package changelog is the change log in PostgreSQL: the store that writes it, pages of
// it for subscribers that catch up, and who owns it.
//
// Promised: the log holds whole transactions in stream order, each once, whatever breaks
// in between [R8]; nothing is reported as stored before it is durable; whoever has lost
// the log writes nothing more [R9]. Left to the caller: taking ownership before a Store
// runs, and a Tail that begins behind the head of the log.
package changelog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/streamer/change"
	"millrace/streamer/metrics"
)

// ErrOwnershipLost says that another process owns the log, or that the log belongs to
// another history now. The error that wraps it says who.
var ErrOwnershipLost = errors.New("ownership of the change log lost")

// ErrYounger is an ErrOwnershipLost: whoever owns the log has registered later than we.
var ErrYounger = fmt.Errorf("%w to a younger incarnation", ErrOwnershipLost)

// ErrWedged says that the change database gave no answer several times in a row while
// the tail was full: this process can do nothing more.
var ErrWedged = errors.New("the change log is wedged")

// ErrFellBack says that the log has lost what was durable in it: it was restored from a
// backup, or a standby that lagged behind was promoted.
var ErrFellBack = errors.New("the change log fell back")

const (
	defaultBatchRows        = 2000
	defaultBatchBytes       = 4 << 20
	defaultStatementTimeout = 20 * time.Second
	defaultProgressEvery    = time.Second
	defaultOwnerCheckEvery  = 5 * time.Second
	defaultDrainTimeout     = 5 * time.Second

	// maxBatchBytes keeps every parameter far from the 1 GB that a value may have.
	maxBatchBytes = 256 << 20
	// maxLockTimeout is how long one try waits for the state row. It is less than the
	// statement timeout, so that a lock of somebody else is never taken for a database
	// that does not answer [R17].
	maxLockTimeout = 5 * time.Second
	// maxTimeouts is how many times in a row the database may stay silent.
	maxTimeouts = 3

	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// Tail is what a Store reads. A sequence number names a message.
type Tail interface {
	// First is the number that the store begins at.
	First() int64
	// StoreRead returns published messages from next on. next is greater than seq when
	// an aborted range was skipped: what was handed out of it is void. Without ok there
	// is nothing behind next yet.
	StoreRead(seq int64) (run change.Run, next int64, ok bool)
	// StoreWake has a value when something may have changed. Its capacity is 1.
	StoreWake() <-chan struct{}
	// Full says that the source waits for room.
	Full() bool
	// Passed says that the messages below seq are in an open database transaction: they
	// may be dropped. A lower number takes that back for what is still kept.
	Passed(seq int64)
	// Stored says that everything below seq is durable or void.
	Stored(seq int64)
	// Kept says whether a message is still in memory.
	Kept(seq int64) bool
	// Break cuts off the attempt that begins at a message, and all behind it [R7].
	Break(attempt int64)
	// Mark is the newest watermark that the source has shown everything up to. It counts
	// once everything below seq is stored.
	Mark() (watermark string, seq int64, ok bool)
}

// Config is what a Store needs. Conn, Owner, ReplicaVersion, Head, Tail and Stored are
// required.
type Config struct {
	// Conn says how to reach the change database. The search path and the application
	// name are in it.
	Conn *pgx.ConnConfig

	Owner          string // who this process is in the log: task id and incarnation
	ReplicaVersion string // the history that it streams
	Head           string // the watermark that the tail begins behind

	// Assumed makes the Store a newcomer, which takes the log over where its stream has
	// come to the head: until then it leaves out what the owner stores. It is told the
	// head at which the log became ours, once, when that is durable. The incarnation has
	// announced it. Nil: the log is ours.
	Assumed func(head string)
	Address string // of a newcomer: where subscribers reach it

	Tail Tail

	// Stored is told that everything up to a transaction is durable. It must not block.
	Stored func(watermark string)
	// Shown is told that everything up to a watermark past the head is, and that this is
	// written down. It must not block. Nil: Stored is told.
	Shown func(watermark string)

	BatchRows        int           // most rows in one batch; 0: 2000
	BatchBytes       int           // most bytes in one batch, up to 256 MiB; 0: 4 MiB
	StatementTimeout time.Duration // longest time without an answer or progress; 0: 20 s
	ProgressEvery    time.Duration // least time between two reports of progress; 0: 1 s
	OwnerCheckEvery  time.Duration // least time between two looks at the owner when idle; 0: 5 s
	DrainTimeout     time.Duration // most time spent on storing after the stop; 0: 5 s

	Metrics *metrics.Metrics // nil: none
	Logger  *slog.Logger     // nil: slog.Default()
}

// Store writes what the tail holds to the log: many transactions in one batch, or one
// that is too large for that while it arrives. One goroutine is enough: Run.
type Store struct {
	cfg  Config
	conn *pgx.ConnConfig // with our settings
	log  *slog.Logger

	stored   int64  // everything below is durable or void
	head     string // watermark of the last transaction stored
	reported string // greatest mark recorded

	lastReport time.Time
	lastOwned  time.Time // when the database last confirmed that we own the log
	timeouts   int       // times in a row that the database did not answer

	bytes atomic.Int64 // of messages stored

	newcomer bool   // somebody else owns the log
	known    string // the head of his log, as far as is known

	// large is the transaction whose database transaction was open when the last
	// session ended.
	large *large

	// Of one session.
	link     *link
	flights  []flight // batches sent and not answered
	batch    batch    // the one being made
	noInsert bool     // the role may not insert into the log
}

// NewStore checks cfg and returns a Store.
func NewStore(cfg Config) (*Store, error) {
	switch {
	case cfg.Conn == nil:
		return nil, errors.New("store: Conn is required")
	case cfg.Owner == "":
		return nil, errors.New("store: Owner is required")
	case cfg.ReplicaVersion == "":
		return nil, errors.New("store: ReplicaVersion is required")
	case cfg.Head == "":
		return nil, errors.New("store: Head is required")
	case cfg.Tail == nil:
		return nil, errors.New("store: Tail is required")
	case cfg.Stored == nil:
		return nil, errors.New("store: Stored is required")
	case cfg.BatchRows < 0, cfg.BatchBytes < 0, cfg.BatchBytes > maxBatchBytes:
		return nil, fmt.Errorf("store: BatchRows must not be negative, and BatchBytes from 0 to %d", maxBatchBytes)
	case cfg.StatementTimeout < 0, cfg.ProgressEvery < 0, cfg.OwnerCheckEvery < 0, cfg.DrainTimeout < 0:
		return nil, errors.New("store: durations must not be negative")
	}
	orDefault(&cfg.BatchRows, defaultBatchRows)
	orDefault(&cfg.BatchBytes, defaultBatchBytes)
	orDefault(&cfg.StatementTimeout, defaultStatementTimeout)
	orDefault(&cfg.ProgressEvery, defaultProgressEvery)
	orDefault(&cfg.OwnerCheckEvery, defaultOwnerCheckEvery)
	orDefault(&cfg.DrainTimeout, defaultDrainTimeout)
	orDefault(&cfg.Logger, slog.Default())
	if cfg.Shown == nil {
		cfg.Shown = cfg.Stored
	}

	conn := cfg.Conn.Copy()
	lockTimeout := min(maxLockTimeout, cfg.StatementTimeout/2)
	conn.RuntimeParams["lock_timeout"] = milliseconds(lockTimeout)
	// One COPY may take as long as its transaction needs to arrive.
	conn.RuntimeParams["statement_timeout"] = "0"
	// A process that is stopped in the middle must not keep the state row for ever.
	conn.RuntimeParams["idle_in_transaction_session_timeout"] = milliseconds(time.Minute)

	return &Store{
		cfg:      cfg,
		conn:     conn,
		log:      cfg.Logger.With("component", "changelog"),
		stored:   cfg.Tail.First(),
		head:     cfg.Head,
		newcomer: cfg.Assumed != nil,
		known:    cfg.Head,
	}, nil
}

func orDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

// Bytes is how many bytes of messages this Store has stored. It may be called from any
// goroutine.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Run stores until ctx ends, and then what is whole in the tail, for DrainTimeout at
// most; it returns nil then, even if that was not enough. A newcomer offers the log nothing
// more then. It connects again by itself. An error, ErrOwnershipLost, ErrFellBack or
// ErrWedged, means that this process must end.
func (s *Store) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(s.cfg.DrainTimeout, cancel) })()

	for attempt := 1; ; attempt++ {
		before := s.stored
		err := s.session(ctx, work)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrOwnershipLost), errors.Is(err, ErrFellBack):
			return err
		case logGone(err):
			return fmt.Errorf("%w: the log is gone: %w", ErrOwnershipLost, err)
		case work.Err() != nil:
			s.log.WarnContext(ctx, "stopped before everything was stored", "err", err)
			return nil
		}
		if s.stored > before {
			attempt = 1
		}
		if m := s.cfg.Metrics; m != nil && (len(s.flights) > 0 || s.large != nil) {
			m.ChangelogRetries.Inc()
		}
		if err := s.countTimeouts(err); err != nil {
			return err
		}
		s.log.WarnContext(ctx, "storing was interrupted", "err", err, "attempt", attempt)
		pause(work, backoff(attempt))
	}
}

// logGone says that somebody has dropped the tables, the functions or the schema. The
// next start makes them again; this process has nothing left to go on with.
func logGone(err error) bool {
	switch refusal(err) {
	case codeUndefinedTable, codeUndefinedFunction, codeInvalidSchemaName:
		return true
	}
	return false
}

// countTimeouts returns ErrWedged when the database has been silent for too long and
// nothing can be read from upstream because of that.
func (s *Store) countTimeouts(err error) error {
	if !timedOut(err) || !s.cfg.Tail.Full() {
		s.timeouts = 0
		return nil
	}
	if s.timeouts++; s.timeouts < maxTimeouts {
		return nil
	}
	return fmt.Errorf("%w: no answer within %s, %d times in a row: %w",
		ErrWedged, s.cfg.StatementTimeout, s.timeouts, err)
}

// backoff is the pause after a number of tries that came to nothing.
func backoff(attempt int) time.Duration {
	full := min(maxBackoff, minBackoff<<min(attempt-1, 16))
	return full/2 + rand.N(full/2) //nolint:gosec // jitter
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// session stores over one connection. It returns nil when ctx has ended and everything
// whole is stored.
func (s *Store) session(ctx, work context.Context) error {
	link, err := dial(work, s.conn, s.cfg.StatementTimeout)
	if err != nil {
		return err
	}
	defer link.close()
	defer func() {
		if s.newcomer && work.Err() != nil {
			link.cancel() // nobody would use the log that it may be about to take
		}
	}()
	defer link.use(work)()
	s.link, s.flights, s.noInsert = link, s.flights[:0], false

	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.resume(); err != nil {
		return err
	}
	for {
		done, err := s.step(ctx)
		if done || err != nil {
			return err
		}
	}
}

// step sends what is there, or takes one answer, or waits for more.
func (s *Store) step(ctx context.Context) (done bool, err error) {
	stopping := ctx.Err() != nil
	if s.newcomer {
		if done, err := s.stepNewcomer(ctx); done || err != nil || s.newcomer {
			return done, err
		}
	}
	if s.reportDue(stopping) {
		if len(s.flights) > 0 {
			return false, s.land()
		}
		if err := s.report(); err != nil {
			return false, err
		}
	}
	for len(s.flights) < depth {
		found := s.gather()
		if found == tooLarge {
			if len(s.flights) > 0 {
				break
			}
			return s.storeLarge(ctx)
		}
		if found == nothing {
			break
		}
		if err := s.send(); err != nil {
			return false, err
		}
	}
	if len(s.flights) > 0 {
		return false, s.land()
	}
	if stopping {
		return true, nil
	}
	s.wait(ctx)
	return false, nil
}

// advance notes that everything below seq is durable, up to the transaction at head.
func (s *Store) advance(seq int64, head string) {
	s.stored = seq
	s.head = max(s.head, head)
	s.timeouts = 0
	s.lastOwned = time.Now()
	s.cfg.Tail.Stored(seq)
	s.cfg.Stored(s.head)
}
