package streamer_test

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// killsEnv is how often each of the faults happens, for a long run instead of a short one.
const killsEnv = "MILLRACE_KILLS"

// TestRealProgram lets the real program meet everything that can happen to it, each thing
// again and again, between a workload that never stops and subscribers of all sorts.
func TestRealProgram(t *testing.T) {
	t.Parallel()
	program := builtCommand(t)
	for name, test := range map[string]func(t *testing.T, program string){
		"is killed":                       isKilled,
		"has a stand-in":                  hasStandIn,
		"loses its database":              losesDatabase,
		"loses its log's server":          losesLogServer,
		"has a bad network":               badNetwork,
		"is stopped and goes on":          isStopped,
		"loses its sessions":              losesSessions,
		"waits for a lock":                waitsForLock,
		"is told to end while it is busy": isToldToEnd,
		"is told to end twice":            isToldTwice,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, program)
		})
	}
}

func isKilled(t *testing.T, program string) {
	ch := newChaos(t, program, pgtest.New(t).URL)
	kills := many(t, 10)
	for i := range kills {
		before := ch.keeper.child()
		if i%3 > 0 { // else it may be killed while it starts
			at := ch.fast.position()
			require.Eventually(t, func() bool { return ch.fast.position() != at }, endurance, glimpse, "it does not serve")
		}
		ch.while(t, 200*time.Millisecond, 1200*time.Millisecond)
		before.signal(syscall.SIGKILL)
		require.Eventually(t, func() bool { return ch.keeper.child() != before }, endurance, glimpse)
	}
	ch.finish(t)
	require.GreaterOrEqual(t, ch.keeper.codes[-1], kills)
}

// hasStandIn has two of them, one of which waits for the slot of the other: whichever is
// killed, the stream goes on.
func hasStandIn(t *testing.T, program string) {
	db := pgtest.New(t)
	conn := db.Conn(t)
	ch := newChaos(t, program, db.URL, "--slot-wait", "10m")
	other := keep(t, program, append(ch.args, "--task-id", "other")...)
	tasks := map[string]bool{}
	for i := range many(t, 5) {
		ch.while(t, 300*time.Millisecond, time.Second)
		owner := tell[string](t, conn, `select split_part(owner, '/', 1) from cdc.status`)
		tasks[owner] = true
		k := ch.keeper
		if (owner == "other") == (i%4 > 0) { // now and then it is the one that waits
			k = other
		}
		before := k.child()
		before.signal(syscall.SIGKILL)
		require.Eventually(t, func() bool { return k.child() != before }, endurance, glimpse)
		ch.load.grows(t, 10)
	}
	require.Len(t, tasks, 2, "each of them has owned the log")
	if tell[string](t, conn, `select split_part(owner, '/', 1) from cdc.status`) == "other" {
		ch.keeper, other = other, ch.keeper
	}
	require.Eventually(t, func() bool { return strings.Contains(other.child().log.String(), "waiting until the slot is free") },
		endurance, glimpse, "before that, a signal just ends it")
	require.Equal(t, 0, other.end(syscall.SIGTERM), "the one that waits ends cleanly")
	ch.finish(t)
}

// losesDatabase crashes and restarts the one server of upstream and log, which keeps its
// promises to the disk.
func losesDatabase(t *testing.T, program string) {
	server, err := pgtest.Start(t.Context(), pgtest.Options{Durable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	url := server.URL("postgres")
	migrated(t, url)
	ch := newChaos(t, program, url)
	for i := range many(t, 3) {
		ch.while(t, 500*time.Millisecond, 1500*time.Millisecond)
		if i%2 == 0 {
			require.NoError(t, server.Kill())
		}
		require.NoError(t, server.Restart(t.Context()))
		ch.load.grows(t, 10)
	}
	ch.finish(t)
}

// losesLogServer crashes and restarts the server of the log alone. The upstream does not
// notice, and nobody is disconnected who reads what has been streamed.
func losesLogServer(t *testing.T, program string) {
	server, err := pgtest.Start(t.Context(), pgtest.Options{Durable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	url := server.URL("postgres")
	migrated(t, url)
	ch := newChaosApart(t, program, pgtest.New(t).URL, url)
	for i := range many(t, 2) {
		ch.while(t, 300*time.Millisecond, time.Second)
		if i%2 == 0 {
			require.NoError(t, server.Kill())
			ch.load.grows(t, 50)
		}
		require.NoError(t, server.Restart(t.Context()))
		ch.load.grows(t, 10)
	}
	ch.finish(t)
	require.Equal(t, map[int]int{0: 1}, ch.keeper.codes, "it went on each time")
}

func badNetwork(t *testing.T, program string) {
	db := pgtest.New(t)
	up, upstream := lineTo(t, db.URL)
	log, changeDB := lineTo(t, db.URL)
	listen := portForLater(t)
	clients := newLine(t, "tcp", listen)
	ch := newChaos(t, program, db.URL, "--upstream-db", upstream+"&wal_sender_timeout=2000", "--change-db", changeDB,
		"--listen", listen, "--advertise", clients.address())
	lines := []*line{up, log, clients}
	for i := range many(t, 10) {
		ch.while(t, 100*time.Millisecond, 600*time.Millisecond)
		l := lines[i%len(lines)]
		switch i / len(lines) % 4 {
		case 0:
			l.cut()
		case 1: // longer than the server waits for a walsender's client
			l.stall()
			ch.while(t, 2*time.Second, 3*time.Second)
			l.flow()
		case 2:
			l.rate.Store(200_000)
			ch.while(t, time.Second, 2*time.Second)
			l.rate.Store(0)
		case 3:
			for _, l := range lines {
				l.cut()
			}
		}
	}
	ch.finish(t)
}

// isStopped stops the process for longer than the server waits for it.
func isStopped(t *testing.T, program string) {
	db := pgtest.New(t)
	ch := newChaos(t, program, db.URL, "--upstream-db", db.URL+"&wal_sender_timeout=2000")
	for range many(t, 2) {
		ch.while(t, 300*time.Millisecond, time.Second)
		now := ch.keeper.child()
		now.signal(syscall.SIGSTOP)
		ch.while(t, 3*time.Second, 4*time.Second)
		now.signal(syscall.SIGCONT)
	}
	ch.finish(t)
	require.Equal(t, map[int]int{0: 1}, ch.keeper.codes, "it went on each time")
}

func losesSessions(t *testing.T, program string) {
	db := pgtest.New(t)
	conn := db.Conn(t)
	ch := newChaos(t, program, db.URL)
	ended := 0
	for range many(t, 15) {
		ch.while(t, 20*time.Millisecond, 300*time.Millisecond)
		ended += tell[int](t, conn, `
			select count(pg_terminate_backend(pid))::int
			from pg_stat_activity
			where datname = current_database()
				and application_name in ('millrace-source', 'zero-change-streamer')
				and random() < 0.7`)
	}
	ch.finish(t)
	require.Positive(t, ended)
	require.Equal(t, map[int]int{0: 1}, ch.keeper.codes, "it went on each time")
}

// waitsForLock holds the state row for longer than one try to store waits for it [R17].
// Subscribers do not wait for the store.
func waitsForLock(t *testing.T, program string) {
	db := pgtest.New(t)
	conn := db.Conn(t)
	ch := newChaos(t, program, db.URL, "--tail-max-bytes", "1073741824") // or the source would wait for room
	for range many(t, 1) {
		ch.while(t, 300*time.Millisecond, time.Second)
		require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			head, err := ask[string](t.Context(), conn, `select "lastWatermark" from cdc."replicationState" for update`)
			if err != nil {
				return err
			}
			for range 4 {
				at := ch.fast.position().Watermark
				ch.while(t, 3*time.Second, 3*time.Second)
				require.Eventually(t, func() bool { return ch.fast.position().Watermark > at }, endurance, glimpse, "subscribers go on")
			}
			require.Greater(t, ch.fast.position().Watermark, head)
			return nil
		}))
	}
	ch.finish(t)
	require.Equal(t, map[int]int{0: 1}, ch.keeper.codes, "it went on each time")
}

// isToldToEnd ends the process in order, again and again, in the middle of its work.
func isToldToEnd(t *testing.T, program string) {
	ch := newChaos(t, program, pgtest.New(t).URL, "--drain-timeout", "5s")
	ends := many(t, 2)
	for range ends {
		ch.while(t, 500*time.Millisecond, time.Second)
		address, err := ch.find(t.Context())
		require.NoError(t, err)
		raw, status, err := upgrade(t.Context(), address, wants(ch.version, ch.version))
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, status)
		now := ch.keeper.child()
		now.signal(syscall.SIGTERM)
		require.NoError(t, closesPlainly(raw))
		require.NoError(t, raw.Close())
		require.Equal(t, 0, now.code(t, 10*time.Second), "%s", now.log)
		require.Eventually(t, func() bool { return ch.keeper.child() != now }, endurance, glimpse)
		require.Eventually(t, func() bool {
			next, err := ch.find(t.Context())
			return err == nil && next != address
		}, endurance, glimpse)
	}
	ch.finish(t)
	require.Equal(t, map[int]int{0: ends + 1}, ch.keeper.codes)
}

// isToldTwice keeps the process from storing, so that its end takes time, and hurries it.
func isToldTwice(t *testing.T, program string) {
	db, conn := shop(t)
	c := spawned(t, program, "serve", "--app-id", db.Name, "--schema", "cdc", "--listen", "127.0.0.1:0",
		"--upstream-db", db.URL, "--drain-timeout", "10m")
	becomes(t, endurance, true, conn, `select exists (select from cdc.status where owner is not null)`)
	holder := db.Conn(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), holder, func(pgx.Tx) error {
		do(t, holder, `select from cdc."replicationState" for update`)
		do(t, conn, `insert into public.item select generate_series(1, 100)`)
		becomes(t, endurance, true, conn, `
			select exists (select from pg_stat_activity where datname = current_database()
				and application_name = 'zero-change-streamer' and wait_event_type = 'Lock')`)
		c.signal(syscall.SIGTERM)
		select {
		case <-c.ended:
			require.FailNow(t, "it did not try to store what it had", "%s", c.log)
		case <-time.After(time.Second):
		}
		c.signal(syscall.SIGTERM)
		require.Equal(t, -1, c.code(t, 10*time.Second), "the signal ended it")
		return nil
	}))
}
