package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
)

// ownServer starts a server for one test, to be maltreated.
func ownServer(t *testing.T, settings ...string) *pgtest.Server {
	t.Helper()
	server, err := pgtest.Start(t.Context(), pgtest.Options{Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	return server
}

// endWalsender ends the walsender of u's slot.
func (u *upstream) endWalsender() {
	u.t.Helper()
	require.Equal(u.t, "1", u.query(`
		select count(pg_terminate_backend(active_pid))::text
		from pg_replication_slots where slot_name = $1 and active`, u.slot))
}

func TestWalsenderEndedInsideATransaction(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	stuck := &slow{recorder: sink, at: 500, reached: make(chan struct{}), goOn: make(chan struct{})}
	source := run(t, u.config(), stuck)
	u.exec(`insert into t values (0, 'before')`)
	u.exec(`insert into t select i, repeat('x', 2000) from generate_series(1, 20000) as i`)
	<-stuck.reached
	u.endWalsender()
	close(stuck.goOn)
	txs := sink.waitTxs(2)
	source.stop()
	require.Len(t, txs[1].messages, 20002)
	require.Equal(t, 1, sink.aborts)
}

// slow is a sink that stops for a while in the middle of a transaction.
type slow struct {
	*recorder
	at            int
	reached, goOn chan struct{}
}

func (s *slow) Room() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil || len(s.open.messages) < s.at {
		return nil
	}
	select {
	case <-s.goOn:
		return nil
	default:
	}
	select {
	case <-s.reached:
	default:
		close(s.reached)
	}
	return s.goOn
}

func TestServerKilledInsideATransaction(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	u := prepare(t, server.URL("postgres"), "millrace_test_0_1", "")
	const second = "millrace_test_0_2"
	_, err := u.up.CreateSlot(t.Context(), second, 0)
	require.NoError(t, err)
	u.exec(`checkpoint`)
	u.exec(`set synchronous_commit = on`) // or the crash would lose what was sent
	sink := u.sink()
	stuck := &slow{recorder: sink, at: 500, reached: make(chan struct{}), goOn: make(chan struct{})}
	source := run(t, u.config(), stuck)
	u.exec(`insert into t values (0, 'before')`)
	u.exec(`insert into t select i, repeat('x', 2000) from generate_series(1, 20000) as i`)
	<-stuck.reached
	require.NoError(t, server.Kill())
	close(stuck.goOn)
	// Another source starts while the server is away.
	cfg := u.config()
	cfg.Slot = second
	late := u.sink()
	lateSource := run(t, cfg, late)
	require.NoError(t, server.Restart(t.Context()))
	insertAfter(t, server)
	txs := sink.waitTxs(3)
	source.stop()
	require.Equal(t, txs, late.waitTxs(3))
	lateSource.stop()
	require.Len(t, txs[1].messages, 20002)
	require.Contains(t, txs[2].messages[1], "after")
	require.Equal(t, 1, sink.aborts)
}

// insertAfter inserts a row, over a connection of its own.
func insertAfter(t *testing.T, server *pgtest.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), `insert into t values (-1, 'after')`)
	require.NoError(t, err)
}

// A server that shuts down waits until everything is confirmed, or its receiver is gone.
func TestServerShutsDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ confirms, room bool }{
		"everything is confirmed": {confirms: true, room: true},
		"nothing is confirmed":    {room: true},
		"there is no room":        {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := ownServer(t)
			u := prepare(t, server.URL("postgres"), "millrace_test_0_1", "")
			sink := u.sink()
			room := make(chan struct{})
			if !c.room {
				sink.do(func() { sink.room = room })
			}
			shown := &confirming{recorder: sink}
			source := run(t, u.config(), shown)
			if c.confirms {
				shown.confirm.Store(source)
			}
			u.exec(`insert into t values (0, 'before')`)
			if c.room {
				sink.waitTxs(1)
			} else {
				u.exec(`insert into t select i, repeat('x', 2000) from generate_series(1, 20000) as i`)
			}
			began := time.Now()
			require.NoError(t, server.Restart(t.Context()))
			require.Less(t, time.Since(began), 18*time.Second, "the server was not kept from ending")
			insertAfter(t, server)
			if c.room {
				require.Contains(t, sink.waitTxs(2)[1].messages[1], "after")
			} else {
				sink.do(func() { sink.room = nil; close(room) })
				require.Contains(t, sink.waitTxs(3)[2].messages[1], "after")
			}
			source.stop()
			require.Zero(t, sink.aborts)
		})
	}
}

// confirming is a sink that confirms what is shown to it.
type confirming struct {
	*recorder
	confirm atomic.Pointer[running]
}

func (c *confirming) Shown(w string) {
	c.recorder.Shown(w)
	if source := c.confirm.Load(); source != nil {
		source.Confirm(w)
	}
}

func TestStoppedInsideATransaction(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	stuck := &slow{recorder: sink, at: 500, reached: make(chan struct{}), goOn: make(chan struct{})}
	source := run(t, u.config(), stuck)
	u.exec(`insert into t select i, repeat('x', 2000) from generate_series(1, 20000) as i`)
	<-stuck.reached
	source.stop()
	require.Equal(t, 1, sink.aborts)
	require.Empty(t, sink.txs)
	require.Zero(t, sink.Pending(), "the end was made visible")
	require.NoError(t, u.up.WaitFree(t.Context(), u.slot, 10*time.Second))
}

func TestPublicationDropped(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	u.exec(`drop publication p`)
	u.exec(`insert into t values (2, 'b')`)
	state := source.state()
	require.Equal(t, postgres.StatePublicationMissing, state.State)
	require.Contains(t, state.Error(), "publication p does not exist")
	require.Contains(t, state.Hint, "creating it again does not help")

	// And it does not.
	u.exec(`create publication p for all tables`)
	u.exec(`insert into t values (3, 'c')`)
	state = run(t, u.config(), sink).state()
	require.Equal(t, postgres.StatePublicationMissing, state.State)
	require.Contains(t, state.Detail, "although it does now")
	sink.waitTxs(1)
}

func TestSlotDroppedWhileStreaming(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	cfg := u.config()
	var asked atomic.Int32
	dropped := make(chan struct{})
	cfg.Owner = func(context.Context) error {
		asked.Add(1)
		<-dropped
		return nil
	}
	source := run(t, cfg, sink)
	u.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	u.endWalsender()
	require.NoError(t, u.up.WaitFree(t.Context(), u.slot, 10*time.Second))
	require.NoError(t, u.up.DropSlot(t.Context(), u.slot))
	close(dropped)
	state := source.state()
	require.Equal(t, postgres.StateSlotMissing, state.State)
	require.Contains(t, state.Error(), "replication slot "+u.slot+" is missing")
	require.EqualValues(t, 2, asked.Load(), "about the end, and about the slot")
}

func TestSlotInvalidatedWhileStreaming(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB")
	u := prepare(t, server.URL("postgres"), "millrace_test_0_1", "")
	sink := u.sink()
	room := make(chan struct{})
	sink.do(func() { sink.room = room })
	source := run(t, u.config(), sink)
	u.exec(`create table big as select repeat('x', 1000) from generate_series(1, 1000)`)
	eventually(t, "the slot is lost", func() bool {
		u.exec(`insert into t select 0, 'x' where false`)
		u.exec(`select pg_switch_wal()`)
		u.exec(`insert into big select * from big limit 1000`)
		u.exec(`checkpoint`)
		state, err := u.up.Slot(t.Context(), u.slot)
		return err == nil && state.Lost
	})
	sink.do(func() { sink.room = nil; close(room) })
	state := source.state()
	require.Equal(t, postgres.StateSlotLost, state.State)
	require.Contains(t, state.Error(), "has been invalidated for exceeding the max_slot_wal_keep_size")
}

func TestOwnerIsAskedAfterATakeover(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	cfg := u.config()
	cfg.Owner = func(context.Context) error { return fmt.Errorf("owner is x: %w", source.ErrNotOwner) }
	s := run(t, cfg, sink)
	u.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	u.endWalsender()
	require.ErrorIs(t, s.ended(), source.ErrNotOwner)
}

// A slot that is gone is only missing if the log is ours: whoever has it may have dropped
// the slot.
func TestOwnerIsAskedAboutAMissingSlot(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	cfg := u.config()
	cfg.Slot = "never_made"
	var asked atomic.Int32
	cfg.Owner = func(context.Context) error {
		if asked.Add(1) < 3 {
			return errors.New("the change database is away")
		}
		return source.ErrNotOwner
	}
	require.ErrorIs(t, run(t, cfg, u.sink()).ended(), source.ErrNotOwner)
	require.Equal(t, int32(3), asked.Load())
}

func TestYieldsToAPeerThatEndsTheStream(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	cfg := u.config()
	cfg.Peer = "another_consumer"
	taken := make(chan struct{})
	cfg.Owner = func(context.Context) error {
		<-taken
		return nil // the peer has not stored anything yet
	}
	s := run(t, cfg, sink)
	u.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	u.endWalsender()
	require.NoError(t, u.up.WaitFree(t.Context(), u.slot, 10*time.Second))
	gone := holdSlot(t, u, "another_consumer")
	close(taken)
	err := s.ended()
	require.ErrorIs(t, err, source.ErrNotOwner)
	require.ErrorContains(t, err, `application "another_consumer"`)
	_, err = u.up.EndHolder(t.Context(), u.slot, "another_consumer")
	require.NoError(t, err)
	gone()
	require.NoError(t, u.up.WaitFree(t.Context(), u.slot, 10*time.Second))
}

func TestCheckEndsTheSource(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	cfg := u.config()
	cfg.Check = func(context.Context, string) error { return source.ErrNotOwner }
	require.ErrorIs(t, run(t, cfg, u.sink()).ended(), source.ErrNotOwner)
	cfg.Check = func(context.Context, string) error { return &source.StateError{State: "hole"} }
	require.Equal(t, "hole", run(t, cfg, u.sink()).state().State)
}

func TestSlotInUse(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	first := run(t, u.config(), u.sink())
	eventually(t, "the slot is used", func() bool { s, err := u.up.Slot(t.Context(), u.slot); return err == nil && s.Active })

	t.Run("by somebody else", func(t *testing.T) {
		cfg := u.config()
		cfg.Owner = func(context.Context) error { return source.ErrNotOwner }
		require.ErrorIs(t, run(t, cfg, u.sink()).ended(), source.ErrNotOwner)
	})
	t.Run("owner unknown", func(t *testing.T) {
		cfg := u.config()
		cfg.HolderGrace = time.Millisecond
		var asked atomic.Int32
		cfg.Owner = func(context.Context) error { asked.Add(1); return errors.New("the change database is away") }
		second := run(t, cfg, u.sink())
		eventually(t, "asked again and again", func() bool { return asked.Load() > 4 })
		second.stop()
	})
	// All the while the first one streams; only the owner takes the slot from it.
	pid := u.query(`select active_pid::text from pg_replication_slots where slot_name = $1`, u.slot)
	require.NotEmpty(t, pid)
	t.Run("by the owner before us", func(t *testing.T) {
		cfg := u.config()
		cfg.HolderGrace = 50 * time.Millisecond
		cfg.Owner = func(context.Context) error { return nil }
		sink := u.sink()
		second := run(t, cfg, sink)
		eventually(t, "the walsender is ended", func() bool {
			var n int
			require.NoError(t, u.conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity where pid = $1::int`, pid).Scan(&n))
			return n == 0
		})
		first.stop()
		u.exec(`insert into t values (1, 'a')`)
		sink.waitTxs(1)
		second.stop()
	})
}

func TestUpstreamChanged(t *testing.T) {
	t.Parallel()
	a := newUpstream(t, "")
	name := a.query(`select current_database()::text`)
	server := ownServer(t)
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer admin.Close(context.Background())
	_, err = admin.Exec(t.Context(), `create database `+name)
	require.NoError(t, err)
	b := prepare(t, server.URL(name), a.slot, "")
	proxy := newProxy(t, a.url)
	cfg := a.config()
	cfg.Upstream = proxy.upstream(t, a.url)
	sink := a.sink()
	s := run(t, cfg, sink)
	a.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	proxy.redirect(t, b.url)
	state := s.state()
	require.Equal(t, postgres.StateUpstreamChanged, state.State)
	sink.waitTxs(1)
}

func TestRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), pgtest.Options{TCP: true, Password: "right"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	u := prepare(t, server.TCPURL("postgres"), "millrace_test_0_1", "")
	u.exec(`create role plain login password 'plain'`)
	port := server.Port()
	for name, c := range map[string]struct{ url, state, says string }{
		"wrong password": {
			fmt.Sprintf("postgres://postgres:wrong@127.0.0.1:%d/postgres", port),
			postgres.StateAccessDenied, fmt.Sprintf(`127.0.0.1:%d refused user "postgres" for database "postgres"`, port),
		},
		"no such database": {
			fmt.Sprintf("postgres://postgres:right@127.0.0.1:%d/nowhere", port),
			postgres.StateDatabaseMissing, `has no database "nowhere"`,
		},
		"role without replication": {
			fmt.Sprintf("postgres://plain:plain@127.0.0.1:%d/postgres", port),
			postgres.StatePermissionMissing, `alter role "plain" with replication`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up, err := postgres.NewUpstream(c.url)
			require.NoError(t, err)
			cfg := u.config()
			cfg.Upstream, cfg.Logger = up, testLogger(t)
			state := run(t, cfg, newRecorder(t, u.consistent)).state()
			require.Equal(t, c.state, state.State)
			require.Contains(t, state.Error(), c.says)
			require.NotContains(t, state.Error(), "wrong@")

			_, err = up.Preflight(t.Context(), postgres.PreflightConfig{App: "a"})
			require.ErrorAs(t, err, &state)
			require.Equal(t, c.state, state.State)
			require.Contains(t, state.Error()+err.Error(), c.says)
		})
	}
}
