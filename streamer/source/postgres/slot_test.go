package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

// creation is a CreateSlot that is under way.
type creation struct {
	done chan struct{}
	lsn  pglogrepl.LSN
	err  error
}

func create(ctx context.Context, up *postgres.Upstream, name string, lockTimeout time.Duration) *creation {
	c := &creation{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.lsn, c.err = up.CreateSlot(ctx, name, lockTimeout)
	}()
	return c
}

// open opens a connection and begins a transaction on it that has written something.
func open(t *testing.T, url string, id int) (conn *pgx.Conn, xid string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), with(url, "application_name=forgotten_job"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), fmt.Sprintf(`begin; insert into t values (%d, 'x')`, id))
	require.NoError(t, err)
	require.NoError(t, conn.QueryRow(t.Context(), `select pg_current_xact_id()::text`).Scan(&xid))
	return conn, xid
}

func commit(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `commit`)
	require.NoError(t, err)
}

// waitsFor waits until a walsender waits for a transaction.
func (u *upstream) waitsFor(xid string) {
	u.t.Helper()
	eventually(u.t, "the slot's creation waits for "+xid, func() bool {
		return u.query(`
			select count(*)::text from pg_locks as l join pg_stat_activity as a using (pid)
			where a.backend_type = 'walsender' and not l.granted and l.transactionid::text = $1`, xid) == "1"
	})
}

func TestCreateSlot(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "max_replication_slots=2")
	u := prepare(t, server.URL("postgres"), "millrace_test_0_1", "")
	const name = "millrace_test_0_2"
	walsenders := func() bool {
		return u.query(`select count(*)::text from pg_stat_activity where backend_type = 'walsender'`) == "0"
	}
	absent := func() {
		t.Helper()
		state, err := u.up.Slot(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, postgres.SlotState{}, state)
		eventually(t, "no walsender is left", walsenders)
	}

	t.Run("blocked by a forgotten transaction", func(t *testing.T) {
		blocker, xid := open(t, u.url, 1)
		c := create(t.Context(), u.up, name, 500*time.Millisecond)
		u.waitsFor(xid)
		<-c.done
		require.ErrorContains(t, c.err, fmt.Sprintf("pid %d, application forgotten_job, user postgres", blocker.PgConn().PID()))
		require.ErrorContains(t, c.err, "idle in transaction, open since")
		absent()

		commit(t, blocker)
		lsn, err := u.up.CreateSlot(t.Context(), name, 0)
		require.NoError(t, err)
		state, err := u.up.Slot(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, lsn, state.Confirmed)
		require.Equal(t, "reserved", state.WALStatus)
		require.False(t, state.Active)
		require.False(t, state.Lost)
	})
	t.Run("exists already", func(t *testing.T) {
		_, err := u.up.CreateSlot(t.Context(), name, 0)
		require.ErrorContains(t, err, "the slot exists already")
		state, err := u.up.Slot(t.Context(), name)
		require.NoError(t, err)
		require.True(t, state.Exists, "it belongs to somebody else")
	})
	t.Run("every slot is taken", func(t *testing.T) {
		_, err := u.up.CreateSlot(t.Context(), "millrace_test_0_3", 0)
		require.ErrorContains(t, err, "every slot of the server is taken")
		_, err = u.up.Preflight(t.Context(), postgres.PreflightConfig{App: "test", NewSlot: true})
		require.ErrorContains(t, err, "no-slot-free: 2 of 2 replication slots are taken")
	})
	t.Run("dropped twice", func(t *testing.T) {
		require.NoError(t, u.up.DropSlot(t.Context(), name))
		require.NoError(t, u.up.DropSlot(t.Context(), name))
	})
	t.Run("given up by the caller", func(t *testing.T) {
		blocker, xid := open(t, u.url, 2)
		ctx, cancel := context.WithCancel(t.Context())
		c := create(ctx, u.up, name, 0)
		u.waitsFor(xid)
		cancel()
		<-c.done
		require.ErrorIs(t, c.err, context.Canceled)
		absent()
		commit(t, blocker)
	})
	t.Run("bad name", func(t *testing.T) {
		_, err := u.up.CreateSlot(t.Context(), `Robert"; --`, 0)
		require.ErrorContains(t, err, "a slot's name has 1 to 63 lower-case letters, digits and underscores")
	})
	t.Run("digits first", func(t *testing.T) {
		_, err := u.up.CreateSlot(t.Context(), "0_slot", 0)
		require.NoError(t, err)
		require.NoError(t, u.up.DropSlot(t.Context(), "0_slot"))
	})
}

// Three transactions are staggered so that the last one's commit begins exactly where the
// slot is consistent. It is in no copy made with the slot, so the stream must bring it.
func TestNothingIsLostAtTheConsistentPoint(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	u := prepare(t, server.URL("postgres"), "millrace_test_0_1", "")
	exact := false
	for attempt := 0; attempt < 5 && !exact; attempt++ {
		name := fmt.Sprintf("millrace_test_1_%d", attempt)
		first, firstXID := open(t, u.url, 10*attempt+1)
		c := create(t.Context(), u.up, name, 0)
		u.waitsFor(firstXID)
		second, secondXID := open(t, u.url, 10*attempt+2)
		commit(t, first)
		u.waitsFor(secondXID)
		third, _ := open(t, u.url, 10*attempt+3)
		commit(t, second)
		<-c.done
		require.NoError(t, c.err)
		commit(t, third)

		cfg := u.config()
		cfg.Slot = name
		sink := newRecorder(t, postgres.ReplicaVersion(c.lsn))
		source := run(t, cfg, sink)
		txs := sink.waitTxs(1)
		source.stop()
		require.Contains(t, txs[0].messages[1], fmt.Sprintf(`"new":{"id":%d,`, 10*attempt+3))
		// Something of the server's own may have come between, but hardly every time.
		exact = txs[0].watermark == watermark.FromLSN(c.lsn)
	}
	require.True(t, exact, "no commit began at a consistent point")
}

func TestSlotHolders(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	ctx := t.Context()
	require.NoError(t, u.up.WaitFree(ctx, u.slot, 0))
	require.NoError(t, u.up.WaitFree(ctx, "millrace_no_such_slot", 0))
	ended, err := u.up.EndHolder(ctx, u.slot)
	require.NoError(t, err)
	require.False(t, ended)

	cfg := u.config()
	var asked atomic.Int32
	cfg.Owner = func(context.Context) error { asked.Add(1); return nil }
	source := run(t, cfg, u.sink())
	eventually(t, "the slot is used", func() bool { s, err := u.up.Slot(ctx, u.slot); return err == nil && s.Active })
	state, err := u.up.Slot(ctx, u.slot)
	require.NoError(t, err)
	require.Equal(t, "millrace-source", state.ActiveApplication)
	require.NotZero(t, state.ActivePID)

	require.ErrorIs(t, u.up.WaitFree(ctx, u.slot, time.Millisecond), postgres.ErrSlotInUse)
	err = u.up.DropSlot(ctx, u.slot)
	require.ErrorIs(t, err, postgres.ErrSlotInUse)
	require.ErrorContains(t, err, fmt.Sprintf(`by pid %d, application "millrace-source"`, state.ActivePID))

	ended, err = u.up.EndHolder(ctx, u.slot)
	require.NoError(t, err)
	require.True(t, ended)
	eventually(t, "the owner is asked", func() bool { return asked.Load() > 0 })
	source.stop()
	require.NoError(t, u.up.WaitFree(ctx, u.slot, 10*time.Second))
}

func TestEndHolderEndsNobodyElse(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	ctx := t.Context()
	foreign := holdSlot(t, u, "another_consumer")
	ended, err := u.up.EndHolder(ctx, u.slot)
	require.NoError(t, err)
	require.False(t, ended)
	state, err := u.up.Slot(ctx, u.slot)
	require.NoError(t, err)
	require.True(t, state.Active)

	ended, err = u.up.EndHolder(ctx, u.slot, "another_consumer")
	require.NoError(t, err)
	require.True(t, ended)
	foreign()
	require.NoError(t, u.up.WaitFree(ctx, u.slot, 10*time.Second))
}

func TestUpstreamOfOneDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	u := newUpstream(t, "")
	up, err := postgres.NewUpstream(db.URL)
	require.NoError(t, err)
	cfg := u.config()
	cfg.Upstream = up
	state := run(t, cfg, u.sink()).state()
	require.Equal(t, postgres.StateSlotForeign, state.State)
	require.Contains(t, state.Detail, db.Name)
}
