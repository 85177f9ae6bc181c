package changelog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"millrace/db"
	"millrace/sql"
)

const (
	// ledgerConns is small: what goes through a Ledger is rare and short.
	ledgerConns = 3
	// ledgerTimeout bounds every call, the wait for the state row included. A storing
	// transaction of another streamer may hold that for long, so it is generous.
	ledgerTimeout = 60 * time.Second

	// Of a reset: how long readers of ours that are in its way are left alone, how often
	// those that came since are ended, and when it gives up.
	resetGrace      = 5 * time.Second
	resetRetryEvery = 2 * time.Second
	resetMaxWait    = 30 * time.Second

	resultReset         = "reset"
	resultInitialized   = "initialized"
	resultResetRequired = "reset_required"
	resultReinitialized = "reinitialized"
)

// Ledger is what decides about the log as a whole: who owns it, where it begins and
// ends, which incarnations there are. All of it is decided in SQL; these are the calls.
type Ledger struct {
	pool    *pgxpool.Pool
	queries *db.Queries
	app     string // whose sessions may be ended when they are in the way of a reset
}

// NewLedger returns a Ledger that connects when it is first asked. conn has the log's
// schema as its search path, and the application name of every streamer: sessions of that
// name are ended when they are in the way of a reset, which its OnNotice is told.
func NewLedger(conn *pgx.ConnConfig) (*Ledger, error) {
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	config.ConnConfig = conn.Copy()
	config.MaxConns = ledgerConns
	config.MinConns = 0
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return &Ledger{pool: pool, queries: db.New(), app: conn.RuntimeParams["application_name"]}, nil
}

// Close ends the connections.
func (l *Ledger) Close() { l.pool.Close() }

// Start is all that a stream starts from, of one snapshot.
type Start struct {
	Head           string
	Minimum        string
	ReplicaVersion string
	Streamed       string // the log is complete up to here, too; empty if not known
	Owner          string // empty: nobody
	OwnerAddress   string
	Slot           string // the one that continues the log; empty if none is known
	Publications   []string
	ResetRequired  bool
}

// Start reads what a stream starts from. false: the log is not initialised.
func (l *Ledger) Start(ctx context.Context) (Start, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.queries.StreamStart(ctx, l.pool)
	if errors.Is(err, pgx.ErrNoRows) {
		return Start{}, false, nil
	}
	if err != nil {
		return Start{}, false, fmt.Errorf("read the state of the log: %w", err)
	}
	return Start{
		Head:           row.Head,
		Minimum:        row.Minimum,
		ReplicaVersion: row.ReplicaVersion,
		Streamed:       row.StreamedWatermark,
		Owner:          row.Owner,
		OwnerAddress:   row.OwnerAddress,
		Slot:           row.Slot,
		Publications:   row.Publications,
		ResetRequired:  row.ResetRequired,
	}, true, nil
}

// Bounds says which positions the log covers, and who owns it.
type Bounds struct {
	Minimum, Head, ReplicaVersion, Owner string
}

// Bounds reads the bounds of the log. false: the log is not initialised.
func (l *Ledger) Bounds(ctx context.Context) (Bounds, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.queries.CatchupBounds(ctx, l.pool)
	if errors.Is(err, pgx.ErrNoRows) {
		return Bounds{}, false, nil
	}
	if err != nil {
		return Bounds{}, false, fmt.Errorf("read the bounds of the log: %w", err)
	}
	return Bounds(row), true, nil
}

// Assume says who takes the log over, and from whom.
type Assume struct {
	Owner, Address, ReplicaVersion string
	Expected                       string // the owner that was seen; empty: nobody
	Slot                           string // the slot that goes to the new owner
}

// Assume takes ownership if the owner is still the expected one. An error that wraps
// ErrOwnershipLost says that the log belongs to another history now.
func (l *Ledger) Assume(ctx context.Context, a Assume) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	return l.assume(ctx, l.pool, a)
}

func (l *Ledger) assume(ctx context.Context, conn db.DBTX, a Assume) (bool, error) {
	row, err := l.queries.AssumeOwnership(ctx, conn, db.AssumeOwnershipParams{
		Owner:          a.Owner,
		OwnerAddress:   orNull(a.Address),
		ReplicaVersion: a.ReplicaVersion,
		Expected:       orNull(a.Expected),
		Slot:           orNull(a.Slot),
	})
	if err != nil {
		return false, named("take ownership of the log", err)
	}
	return row.Assumed, nil
}

// Announce says, and says again, that an incarnation is about to take the log over at its
// head. An error that wraps ErrOwnershipLost says that it may not any more.
func (l *Ledger) Announce(ctx context.Context, owner, replicaVersion string) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	err := l.queries.AnnounceTakeover(ctx, l.pool, db.AnnounceTakeoverParams{Owner: owner, ReplicaVersion: replicaVersion})
	if err != nil {
		return named("announce a take-over", err)
	}
	return nil
}

// Fits asks whether the log is the one of these publications. A detail says why it is
// not; nothing is changed either way.
func (l *Ledger) Fits(ctx context.Context, replicaVersion string, publications []string) (detail string, err error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.ensure(ctx, l.pool, replicaVersion, publications, false)
	if err != nil {
		return "", fmt.Errorf("compare the log's configuration: %w", err)
	}
	if row.Result == resultResetRequired {
		return row.Detail, nil
	}
	return "", nil
}

// History is a new beginning of the log.
type History struct {
	ReplicaVersion, Owner, Address, Slot string
	Publications                         []string
	Reset                                bool // whether a log that is there may be dropped
}

// Begin initialises an empty log, or resets one if that is allowed, and takes ownership,
// both in one transaction. A detail says why nothing was done: there is a log.
func (l *Ledger) Begin(ctx context.Context, h History) (detail string, err error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		row, err := l.ensure(ctx, tx, h.ReplicaVersion, h.Publications, h.Reset)
		if err != nil {
			return fmt.Errorf("configure the log: %w", err)
		}
		if row.Result != resultInitialized && row.Result != resultReset {
			// Two slots that are made at once may have the same consistent point. Then the
			// log is as it was asked for, but not by us.
			detail = cmp.Or(row.Detail, "another process has begun the same history")
			return nil
		}
		assumed, err := l.assume(ctx, tx, Assume{
			Owner: h.Owner, Address: h.Address, ReplicaVersion: h.ReplicaVersion, Slot: h.Slot,
		})
		if err == nil && !assumed {
			err = errors.New("take ownership of a new log: somebody has it")
		}
		return err
	})
	return detail, err
}

// Replica is where a log begins again: at the position of a replica that has what the log
// lacks.
type Replica struct {
	Watermark, ReplicaVersion string
	Cookies                   json.RawMessage // of the replica; none if nil

	Owner, Address, Slot string // who takes the log, and the slot that goes on from there
}

// Reinitialize begins the log again at a replica's position and takes ownership, both in
// one transaction. false: the log reaches that far, and nothing was changed.
func (l *Ledger) Reinitialize(ctx context.Context, r Replica) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if r.Cookies == nil {
		r.Cookies = json.RawMessage(`{}`)
	}
	begun := false
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		result, err := l.queries.ReinitializeChangeLog(ctx, tx, db.ReinitializeChangeLogParams{
			Watermark:      r.Watermark,
			Owner:          r.Owner,
			OwnerAddress:   orNull(r.Address),
			Cookies:        r.Cookies,
			TerminateApp:   orNull(l.app),
			Grace:          resetGrace,
			RetryEvery:     resetRetryEvery,
			MaxWait:        resetMaxWait,
			ReplicaVersion: r.ReplicaVersion,
		})
		if err != nil || result != resultReinitialized {
			return err
		}
		begun = true
		_, err = l.assume(ctx, tx, Assume{
			Owner: r.Owner, Address: r.Address, ReplicaVersion: r.ReplicaVersion, Expected: r.Owner, Slot: r.Slot,
		})
		return err
	})
	if err != nil {
		return false, named("begin the log again at "+r.Watermark, err)
	}
	return begun, nil
}

// ensure compares the log with a fresh replica, for which there are no cookies yet.
func (l *Ledger) ensure(ctx context.Context, conn db.DBTX, replicaVersion string, publications []string, reset bool) (db.EnsureReplicationConfigRow, error) {
	return l.queries.EnsureReplicationConfig(ctx, conn, db.EnsureReplicationConfigParams{
		ReplicaVersion: replicaVersion,
		Publications:   publications,
		Watermark:      replicaVersion,
		AutoReset:      reset,
		Cookies:        json.RawMessage(`{}`),
		TerminateApp:   orNull(l.app),
		Grace:          resetGrace,
		RetryEvery:     resetRetryEvery,
		MaxWait:        resetMaxWait,
	})
}

// ReportProgress records that the log holds every published commit up to a watermark.
// false: it is somebody else's.
func (l *Ledger) ReportProgress(ctx context.Context, owner, replicaVersion, streamed string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	owned, err := l.queries.ReportProgress(ctx, l.pool, db.ReportProgressParams{
		Owner: owner, ReplicaVersion: replicaVersion, StreamedWatermark: streamed,
	})
	if err != nil {
		return false, fmt.Errorf("report progress at %s: %w", streamed, err)
	}
	return owned, nil
}

// MarkReset notes that the log of a history cannot be continued: the next start that may
// reset it will.
func (l *Ledger) MarkReset(ctx context.Context, replicaVersion string) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if err := l.queries.MarkResetRequired(ctx, l.pool, replicaVersion); err != nil {
		return fmt.Errorf("mark the log for a reset: %w", err)
	}
	return nil
}

// Register registers an incarnation and returns its number and, with a prefix, the name
// for its slot.
func (l *Ledger) Register(ctx context.Context, taskID, owner, address, slotPrefix string) (int64, string, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.queries.RegisterStreamer(ctx, l.pool, db.RegisterStreamerParams{
		TaskID: taskID, Owner: owner, OwnerAddress: orNull(address), SlotPrefix: orNull(slotPrefix),
	})
	if err != nil {
		return 0, "", fmt.Errorf("register %q: %w", owner, err)
	}
	return row.ID, row.Slot, nil
}

// Retire notes that an incarnation is gone and, if so, that its slot is.
func (l *Ledger) Retire(ctx context.Context, id int64, slotDropped bool) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if err := l.queries.RetireStreamer(ctx, l.pool, db.RetireStreamerParams{ID: id, SlotDropped: slotDropped}); err != nil {
		return fmt.Errorf("retire streamer %d: %w", id, err)
	}
	return nil
}

// Incarnation is a row of table streamer.
type Incarnation struct {
	ID   int64
	Slot string
}

// Dead lists the incarnations whose slots the owner should drop.
func (l *Ledger) Dead(ctx context.Context, owner string) ([]Incarnation, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	rows, err := l.queries.DeadStreamers(ctx, l.pool, owner)
	if err != nil {
		return nil, fmt.Errorf("list dead streamers: %w", err)
	}
	dead := make([]Incarnation, len(rows))
	for i, row := range rows {
		dead[i] = Incarnation(row)
	}
	return dead, nil
}

// Condemn bars an incarnation from taking the log over and returns the slot to drop.
func (l *Ledger) Condemn(ctx context.Context, id int64, owner, replicaVersion string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	slot, err := l.queries.CondemnStreamer(ctx, l.pool, db.CondemnStreamerParams{
		ID: id, Owner: owner, ReplicaVersion: replicaVersion,
	})
	if err != nil {
		return "", named(fmt.Sprintf("condemn streamer %d", id), err)
	}
	return slot, nil
}

// StatusJSON returns the status view as a JSON object.
func (l *Ledger) StatusJSON(ctx context.Context) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.queries.Status(ctx, l.pool)
	if err != nil {
		return nil, fmt.Errorf("read the status: %w", err)
	}
	return json.Marshal(row)
}

// named puts our own error in front of an errcode that a caller acts on: the log is, or
// is to be, somebody else's.
func named(attempt string, err error) error {
	switch refusal(err) {
	case sql.CodeYoungerOwner:
		return fmt.Errorf("%s: %w: %w", attempt, ErrYounger, err)
	case sql.CodeNotOwner, sql.CodeNotInitialised, sql.CodeCondemned:
		return fmt.Errorf("%s: %w: %w", attempt, ErrOwnershipLost, err)
	}
	return fmt.Errorf("%s: %w", attempt, err)
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
