package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"millrace/streamer/source"
)

const (
	// defaultLockTimeout is how long the creation of a slot waits for one transaction
	// that is open.
	defaultLockTimeout = 29 * time.Second

	// lockTimeoutsInAll bounds the creation as a whole: the server counts its lock
	// timeout anew for every transaction that it waits for.
	lockTimeoutsInAll = 2

	pollInterval = 50 * time.Millisecond
)

// Plugin is the output plugin of our slots.
const Plugin = "pgoutput"

// ErrSlotInUse says that somebody else is reading from a slot.
var ErrSlotInUse = errors.New("the slot is in use")

// ErrSlotExists says that a name is taken, by this database or by another one.
var ErrSlotExists = errors.New("the slot exists already")

// SlotState is what the server says about a slot.
type SlotState struct {
	Exists bool
	Active bool
	// ActivePID and ActiveApplication name the walsender that uses the slot, if any.
	ActivePID         int32
	ActiveApplication string
	// Confirmed is confirmed_flush_lsn: the stream starts there or later.
	Confirmed pglogrepl.LSN
	// Restart is restart_lsn: WAL from there on is kept. 0 if the slot is lost.
	Restart   pglogrepl.LSN
	WALStatus string // reserved, extended, unreserved or lost
	Plugin    string
	Database  string
	Here      bool // it belongs to the database that was asked
	Lost      bool // WAL that the slot needed is gone; it cannot be used again
}

// ReplicaVersion returns the LSN that a copy made together with a new slot stands at,
// given the slot's consistent point: everything committed below that is in the copy, and
// the stream behind ReplicaVersion brings all the rest. A commit may begin at the very
// consistent point, so that a stream that starts one behind it would lose it.
func ReplicaVersion(consistent pglogrepl.LSN) pglogrepl.LSN {
	return consistent - 1
}

// Slot reads the state of a slot.
func (u *Upstream) Slot(ctx context.Context, name string) (SlotState, error) {
	var state SlotState
	err := u.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		state, err = readSlot(ctx, conn, name)
		return err
	})
	return state, err
}

func readSlot(ctx context.Context, conn *pgx.Conn, name string) (SlotState, error) {
	state := SlotState{Exists: true}
	var confirmed, restart string
	err := conn.QueryRow(ctx, slotSQL, name).Scan(&state.Plugin, &state.Database, &state.Here, &state.Active,
		&state.ActivePID, &state.ActiveApplication, &confirmed, &restart, &state.WALStatus)
	if errors.Is(err, pgx.ErrNoRows) {
		return SlotState{}, nil
	}
	if err != nil {
		return SlotState{}, fmt.Errorf("read slot %q: %w", name, err)
	}
	if state.Confirmed, err = pglogrepl.ParseLSN(confirmed); err != nil {
		return SlotState{}, fmt.Errorf("read slot %q: %w", name, err)
	}
	if state.Restart, err = pglogrepl.ParseLSN(restart); err != nil {
		return SlotState{}, fmt.Errorf("read slot %q: %w", name, err)
	}
	state.Lost = state.Restart == 0 || state.WALStatus == "lost"
	return state, nil
}

// CreateSlot makes a persistent logical slot and returns its consistent point: see
// ReplicaVersion. It waits until every transaction has ended that was open when it began;
// for one of them at most lockTimeout (29 s if zero), and then the error names those that
// are still open. Whatever error there is, no slot is left behind.
//
// Make the publications first: the stream of a slot knows them as they were.
func (u *Upstream) CreateSlot(ctx context.Context, name string, lockTimeout time.Duration) (pglogrepl.LSN, error) {
	if err := CheckSlot(name); err != nil {
		return 0, err
	}
	made, err := u.makeSlot(ctx, name, createSlotSQL, lockTimeout)
	if err != nil {
		return 0, err
	}
	made.close(ctx)
	return made.consistent, nil
}

// madeSlot is a slot and the connection that made it. The snapshot of a slot that exports
// one, and the slot itself if it is a temporary one, are there as long as the connection.
type madeSlot struct {
	conn       *pgconn.PgConn
	consistent pglogrepl.LSN
	snapshot   string // name; empty if none is exported
}

func (m *madeSlot) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = m.conn.Close(ctx) // nothing is lost with it: the answer has been read
}

// makeSlot makes a slot by one of the commands. Whatever error there is, neither slot nor
// connection is left behind.
func (u *Upstream) makeSlot(ctx context.Context, name, sql string, lockTimeout time.Duration) (*madeSlot, error) {
	if lockTimeout <= 0 {
		lockTimeout = defaultLockTimeout
	}
	began, err := u.now(ctx)
	if err != nil {
		return nil, fmt.Errorf("create slot %q: %w", name, err)
	}
	limited, cancel := context.WithTimeout(ctx, lockTimeoutsInAll*lockTimeout+connectTimeout)
	defer cancel()
	config := u.replicationConfig()
	config.RuntimeParams["lock_timeout"] = fmt.Sprint(lockTimeout.Milliseconds())
	config.RuntimeParams["statement_timeout"] = "0"
	conn, err := pgconn.ConnectConfig(limited, config)
	if err != nil {
		return nil, fmt.Errorf("create slot %q: %w", name, u.explain(err))
	}
	made := &madeSlot{conn: conn}
	pid := conn.PID()
	if err = made.create(limited, name, sql); err == nil {
		return made, nil
	}
	made.close(ctx)
	return nil, u.slotNotCreated(context.WithoutCancel(ctx), name, pid, began, err)
}

func (m *madeSlot) create(ctx context.Context, name, sql string) error {
	if err := neverTimeOut(ctx, m.conn); err != nil {
		return err
	}
	result, err := pglogrepl.ParseCreateReplicationSlot(m.conn.Exec(ctx, fmt.Sprintf(command(sql), quoteIdentifier(name))))
	if err != nil {
		return err
	}
	m.snapshot = result.SnapshotName
	m.consistent, err = pglogrepl.ParseLSN(result.ConsistentPoint)
	return err
}

// slotNotCreated tidies up after err and completes it.
func (u *Upstream) slotNotCreated(ctx context.Context, name string, pid uint32, began time.Time, err error) error {
	switch code(err) {
	case codeDuplicateObject: // somebody else's slot: leave it alone
		return fmt.Errorf("create slot %q: %w: %w", name, ErrSlotExists, err)
	case codeInsufficientPriv:
		return fmt.Errorf("create slot %q: %w", name, u.explain(err))
	case codeConfigurationLimit:
		return &source.StateError{
			State: StateNoSlotFree, Detail: fmt.Sprintf("create slot %q: every slot of the server is taken", name), Err: err,
			Hint: "drop slots that nobody uses (select slot_name, active from pg_replication_slots), or raise max_replication_slots " +
				"and restart the server",
		}
	}
	waited := code(err) == codeLockNotAvailable || errors.Is(err, context.DeadlineExceeded)
	var blockers []string
	tidyErr := u.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if waited {
			if blockers, err = readBlockers(ctx, conn, began); err != nil {
				return err
			}
		}
		if _, err := conn.Exec(ctx, endWalsenderSQL, int32(pid), ApplicationName); err != nil { //nolint:gosec // a process id
			return fmt.Errorf("end the session that was to make it: %w", err)
		}
		return nil
	})
	if tidyErr == nil {
		tidyErr = u.dropLeftover(ctx, name)
	}
	if waited {
		who := strings.Join(blockers, "; ")
		if who == "" {
			who = "none is open any more"
		}
		err = fmt.Errorf("transactions that were open have not ended in time: %s; end them, or try again: %w", who, err)
	}
	if tidyErr != nil {
		err = fmt.Errorf("%w (and tidying up: %w)", err, tidyErr)
	}
	return fmt.Errorf("create slot %q: %w", name, err)
}

// dropLeftover waits until the session that was to make the slot has ended, and drops
// the slot if the session got that far.
func (u *Upstream) dropLeftover(ctx context.Context, name string) error {
	if err := u.WaitFree(ctx, name, closeTimeout); err != nil {
		return err
	}
	return u.DropSlot(ctx, name)
}

func readBlockers(ctx context.Context, conn *pgx.Conn, began time.Time) ([]string, error) {
	rows, err := conn.Query(ctx, blockersSQL, began)
	if err != nil {
		return nil, fmt.Errorf("look for open transactions: %w", err)
	}
	blockers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var pid, application, user, database, since, state string
		if err := row.Scan(&pid, &application, &user, &database, &since, &state); err != nil {
			return "", err
		}
		return fmt.Sprintf("pid %s, application %s, user %s, database %s, %s, open since %s",
			pid, application, user, database, state, since), nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for open transactions: %w", err)
	}
	return blockers, nil
}

// now is the server's time.
func (u *Upstream) now(ctx context.Context) (now time.Time, err error) {
	err = u.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, nowSQL).Scan(&now)
	})
	return now, err
}

// WALEnd is how far the upstream's WAL is written: nothing behind it was ever committed.
func (u *Upstream) WALEnd(ctx context.Context) (end pglogrepl.LSN, err error) {
	err = u.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var text string
		if err := conn.QueryRow(ctx, walEndSQL).Scan(&text); err != nil {
			return fmt.Errorf("ask for the end of the WAL: %w", err)
		}
		end, err = pglogrepl.ParseLSN(text)
		return err
	})
	return end, err
}

// DropSlot drops a slot of this database. One that is not there is no error; for one that
// is in use the error wraps ErrSlotInUse.
func (u *Upstream) DropSlot(ctx context.Context, name string) error {
	return u.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, dropSlotSQL, name)
		switch code(err) {
		case codeUndefinedObject: // dropped by somebody else meanwhile
			return nil
		case codeObjectInUse:
			state, stateErr := readSlot(ctx, conn, name)
			if stateErr != nil {
				return stateErr
			}
			return fmt.Errorf("drop slot %q: %w by pid %d, application %q: %w",
				name, ErrSlotInUse, state.ActivePID, state.ActiveApplication, err)
		}
		if err != nil {
			return fmt.Errorf("drop slot %q: %w", name, err)
		}
		return nil
	})
}

// WaitFree waits until nobody uses a slot, or it is gone, at most limit. Then the error
// wraps ErrSlotInUse and names who uses it.
func (u *Upstream) WaitFree(ctx context.Context, name string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit+queryTimeout)
	defer cancel()

	conn, err := u.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for end := time.Now().Add(limit); ; {
		state, err := readSlot(ctx, conn, name)
		if err != nil || !state.Active {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("wait for slot %q: %w by pid %d, application %q",
				name, ErrSlotInUse, state.ActivePID, state.ActiveApplication)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for slot %q: %w", name, ctx.Err())
		}
	}
}

// MayEndHolder says whether our role may end the walsender that uses a slot. The error
// says what is missing.
func (u *Upstream) MayEndHolder(ctx context.Context, name string) error {
	return u.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var may bool
		var role, holder string
		err := conn.QueryRow(ctx, mayEndHolderSQL, name).Scan(&role, &holder, &may)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // it has gone
			return nil
		case err != nil:
			return fmt.Errorf("look who uses slot %q: %w", name, err)
		case may:
			return nil
		}
		return &source.StateError{
			State:  StatePermissionMissing,
			Detail: fmt.Sprintf("role %q may not end the walsender of role %q that uses slot %q", role, holder, name),
			Hint:   fmt.Sprintf("as a superuser run: grant %s to %s; or stop that process first", quoteIdentifier(holder), quoteIdentifier(role)),
		}
	})
}

// EndHolder ends the walsender that uses a slot if its application is ours or one of
// applications, and says whether there was such a one. Only the owner of the change log
// may call it [R14].
func (u *Upstream) EndHolder(ctx context.Context, name string, applications ...string) (bool, error) {
	ended := false
	err := u.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		ended, err = endHolder(ctx, conn, name, append(applications, ApplicationName))
		return err
	})
	return ended, err
}

func endHolder(ctx context.Context, conn *pgx.Conn, name string, applications []string) (bool, error) {
	var pid int32
	var application string
	var ended bool
	err := conn.QueryRow(ctx, endHolderSQL, name, applications).Scan(&pid, &application, &ended)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("end the walsender that uses slot %q: %w", name, err)
	}
	return ended, nil
}
