package sql_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// literal is a text as SQL has it.
func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

func TestLockHolders(t *testing.T) {
	t.Parallel()

	database, conn := furnished(t)
	tables := []string{"replicationState", "changeLog", "replicationConfig", "tableMetadata", "backfilling"}
	read(t, conn, tables...) // the caller is not in its own way
	require.Empty(t, objects(t, conn, `select lock_holders()::text`))

	// What these hold is in nobody's way. Tables of another test may well have the same oids.
	neighbours, _ := initialised(t)
	reading(t, neighbours, "psql", tables...)
	reading(t, database, "psql")
	reading(t, database, "psql", "progress", "streamer", "reservation")
	elsewhere := reading(t, database, "psql")
	exec(t, elsewhere, `create schema elsewhere; create table elsewhere."changeLog" (); select from elsewhere."changeLog"`)
	waiting := database.Conn(t)
	exec(t, waiting, `begin`)
	result := blocked(t, conn, waiting, func() (struct{}, error) {
		_, err := waiting.Exec(t.Context(), `lock table "changeLog" in access exclusive mode`)
		return struct{}{}, err
	})
	require.Empty(t, objects(t, conn, `select lock_holders()::text`))
	exec(t, conn, `commit`)
	require.NoError(t, (<-result).err)

	pid := waiting.PgConn().PID()
	require.Equal(t, fmt.Sprintf("changeLog AccessExclusiveLock %d pgtest postgres idle in transaction client backend ", pid),
		one[string](t, conn, `
			select concat_ws(' ', relation, mode, pid, application_name, user_name, state, backend_type, coalesce(gid, ''))
			from lock_holders()`))
	exec(t, waiting, `rollback`)

	reader, gid := reading(t, database, "a reader", tables...), "gid of "+database.Name // of the whole server
	require.ElementsMatch(t, tables, objects(t, conn, `
		select relation from lock_holders() where mode = 'AccessShareLock' and application_name = 'a reader'`))
	exec(t, reader, `prepare transaction `+literal(gid))
	require.ElementsMatch(t, tables, objects(t, conn, `
		select relation from lock_holders()
		where pid is null and application_name is null and state is null and backend_type is null
			and user_name = 'postgres' and gid = `+literal(gid)))
	exec(t, conn, `rollback prepared `+literal(gid))
	require.Empty(t, objects(t, conn, `select lock_holders()::text`))
}

func TestTerminateLockHolders(t *testing.T) {
	t.Parallel()

	database, watcher := furnished(t)
	conn, told := listening(t, database)
	const call = `select concat_ws(' ', pid, application_name, terminated, query) from terminate_lock_holders(app => 'a reader')`
	require.Empty(t, objects(t, conn, call))
	_, err := conn.Exec(t.Context(), `select terminate_lock_holders(app => null)`)
	requireCode(t, sql.CodeInvalidArgument, err)

	gid := "gid of " + database.Name // of the whole server
	prepared := reading(t, database, "a reader", "changeLog")
	exec(t, prepared, `prepare transaction `+literal(gid))
	harmless := []*pgx.Conn{
		prepared,
		reading(t, database, "a reader"),
		reading(t, database, streamerApp, "changeLog"),
		reading(t, database, "A reader", "changeLog"),
	}
	require.Empty(t, objects(t, conn, call))

	var inTheWay []*pgx.Conn
	var want []string
	for _, statement := range []string{
		`select from "replicationState"`, `select from "changeLog"`, `select from "replicationConfig"`,
		`select from "tableMetadata"`, `select from "backfilling"`,
		`update progress set backup_at = null`, `update streamer set slot = null`,
	} {
		reader := reading(t, database, "a reader")
		query := statement + " -- " + strings.Repeat("a long story ", 20)
		exec(t, reader, query)
		inTheWay = append(inTheWay, reader)
		want = append(want, fmt.Sprintf("%d a reader t %s", reader.PgConn().PID(), query[:200]))
	}
	// Two locks, and one session.
	exec(t, inTheWay[1], `update "backfilling" set backfill = '[]'`)
	want[1] = fmt.Sprintf("%d a reader t update \"backfilling\" set backfill = '[]'", inTheWay[1].PgConn().PID())
	exec(t, conn, `begin`)
	exec(t, conn, `select from "changeLog"`)
	exec(t, conn, `set local application_name = 'a reader'`)
	require.ElementsMatch(t, want, objects(t, conn, call))
	exec(t, conn, `rollback`) // takes nothing back
	require.ElementsMatch(t, terminations(inTheWay...), *told)
	awaitEnd(t, watcher, inTheWay...)
	require.Empty(t, objects(t, conn, call))

	for _, session := range harmless {
		requireAlive(t, session)
	}
	exec(t, conn, `rollback prepared `+literal(gid))
}

// A prepared transaction has no session that could be ended.
func TestPreparedTransactionIsNamed(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, watcher := furnished(t)
			conn, told := listening(t, database)
			gid := "it's " + database.Name // of the whole server
			exec(t, reading(t, database, streamerApp, "changeLog"), `prepare transaction `+literal(gid))
			p := hurried()
			p.max = 50 * time.Millisecond
			_, err := tt.call(t.Context(), conn, p)
			require.Equal(t, `prepared transaction `+literal(gid)+` of user postgres holds AccessShareLock on "changeLog"`,
				pgError(t, sql.CodeTablesLocked, err).Detail)
			require.Empty(t, *told)
			exec(t, watcher, `rollback prepared `+literal(gid))
			got, err := tt.call(t.Context(), conn, p)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestSecondCallerGivesUp(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, first := furnished(t)
			tx := begin(t, first)
			_, err := tt.call(t.Context(), tx, hurried())
			require.NoError(t, err)

			for _, second := range exclusive {
				conn := database.Conn(t)
				exec(t, conn, `set lock_timeout = '17s'`)
				p := hurried()
				p.max = 100 * time.Millisecond
				at := time.Now()
				_, err = second.call(t.Context(), conn, p)
				require.GreaterOrEqual(t, time.Since(at), p.max)
				require.Equal(t, "Waited 00:00:00.1.", pgError(t, sql.CodeResetRunning, err).Detail)
				require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
			}
			commit(t, tx)
			require.Equal(t, seed(tt.begin), logRows(t, first))
		})
	}
}

func TestExclusiveCallsNeedReadCommitted(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	before := contents(t, conn)
	for _, tt := range exclusive { // one connection: one after the other
		for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
			tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			_, err = tt.call(t.Context(), tx, hurried())
			require.Contains(t, pgError(t, sql.CodeIsolation, err).Detail, string(level))
			require.NoError(t, tx.Rollback(t.Context()))
		}
	}
	require.Equal(t, before, contents(t, conn))
}

// served is a server of one test, with an initialised log.
func served(t *testing.T, settings ...string) (*pgtest.Server, func() *pgx.Conn) {
	t.Helper()
	server, err := pgtest.Start(t.Context(), pgtest.Options{Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	database := &pgtest.DB{Server: server, Name: "postgres", URL: server.URL("postgres")}
	connect := func() *pgx.Conn { return database.Conn(t) }
	conn := connect()
	require.NoError(t, sql.Migrate(t.Context(), conn, pgtest.Schema))
	require.Equal(t, "initialized", ensure(t, conn, version, version).Result)
	return server, connect
}

func TestResetsOnStandby(t *testing.T) {
	t.Parallel()

	server, connect := served(t)
	require.NoError(t, os.WriteFile(filepath.Join(server.Dir(), "data", "standby.signal"), nil, 0o644))
	require.NoError(t, server.Restart(t.Context()))
	conn := connect()
	_, err := queries.ReinitializeChangeLog(t.Context(), conn, reinitializeParams("0a"))
	requireCode(t, sql.CodeStandby, err)
	_, err = queries.EnsureReplicationConfig(t.Context(), conn, ensureParams(version, version))
	requireCode(t, sql.CodeStandby, err)
	require.Empty(t, objects(t, conn, `select lock_holders()::text`))
	require.Empty(t, objects(t, conn, `select terminate_lock_holders(app => 'psql')::text`))
}

// slowlyVacuumed fills the log, and has an autovacuum worker at it that sleeps for 0.4 s
// behind each of many pages.
func slowlyVacuumed(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `
		alter table "changeLog" set (
			autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0,
			autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)`)
	exec(t, conn, `
		insert into "changeLog"
		select '01', n, json_build_object('filler', repeat('x', 500)), null from generate_series(10, 5000) as n`)
	exec(t, conn, `delete from "changeLog" where pos % 2 = 1`)
	exec(t, conn, `select pg_stat_force_next_flush()`)
	await(t, conn, `
		select exists (select from lock_holders() where backend_type = 'autovacuum worker' and relation = 'changeLog')`)
}

// The server ends an autovacuum for who waits, but not before deadlock_timeout has
// passed: a call that gave up earlier each time would never get through.
func TestAutovacuumGivesWay(t *testing.T) {
	t.Parallel()

	server, connect := served(t, "autovacuum_naptime=1s", "deadlock_timeout=300ms")
	conn := connect()
	for i, tt := range exclusive {
		slowlyVacuumed(t, conn)
		p := powerless()
		p.max = 20 * time.Second
		got, err := tt.call(t.Context(), conn, p)
		require.NoError(t, err)
		require.Equal(t, tt.want, got)
		require.GreaterOrEqual(t, strings.Count(server.Log(), "canceling autovacuum task"), i+1)
	}
}

func TestWaitsOfAnyLength(t *testing.T) {
	t.Parallel()

	const ago, ahead = time.Duration(math.MinInt64), time.Duration(math.MaxInt64) // 292 years
	database, conn := furnished(t)
	exec(t, conn, `set lock_timeout = '17s'`)
	tests := []struct {
		name string
		patience
	}{
		{name: "nothing", patience: patience{grace: 0, retryEvery: 0, max: time.Minute}},
		{name: "less than nothing", patience: patience{grace: -time.Hour, retryEvery: -time.Hour, max: time.Minute}},
		{name: "as little as can be", patience: patience{grace: ago, retryEvery: ago, max: time.Minute}},
		{name: "less than a millisecond", patience: patience{grace: time.Microsecond, retryEvery: time.Microsecond, max: time.Minute}},
		{name: "centuries, but for grace", patience: patience{retryEvery: ahead, max: ahead}},
		{name: "months in all", patience: patience{max: 100 * 24 * time.Hour}}, // more milliseconds than lock_timeout takes
	}
	for _, tt := range tests { // one connection: one after the other
		for _, call := range exclusive {
			t.Run(call.name+", "+tt.name, func(t *testing.T) {
				exec(t, conn, `begin`)
				defer exec(t, conn, `rollback`)
				reader := reading(t, database, streamerApp, "changeLog")
				p := tt.patience
				p.app = new(streamerApp)
				got, err := call.call(t.Context(), conn, p)
				require.NoError(t, err)
				require.Equal(t, call.want, got)
				awaitEnd(t, conn, reader)
				require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
			})
		}
	}

	// The bound of all is a bound, whatever the others are.
	foreign := reading(t, database, "psql", "changeLog")
	for _, p := range []patience{
		{max: 0},
		{max: -time.Hour},
		{max: ago},
		{max: time.Microsecond},
		{grace: ahead, retryEvery: ahead, max: 50 * time.Millisecond},
	} {
		for _, call := range exclusive {
			_, err := call.call(t.Context(), conn, p)
			requireCode(t, sql.CodeTablesLocked, err)
			require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
		}
	}
	requireAlive(t, foreign)
}

// The caller's own bound of a lock is not that of the call, and is what it was when the
// call is over. That of its statement ends the call, too.
func TestCallersTimeoutsAreKept(t *testing.T) {
	t.Parallel()

	database, conn := furnished(t)
	before := contents(t, conn)
	exec(t, conn, `set lock_timeout = '1ms'`)
	for _, tt := range exclusive {
		reader := reading(t, database, streamerApp, "changeLog")
		exec(t, conn, `begin; set local lock_timeout = '2ms'; savepoint before`)
		_, err := tt.call(t.Context(), conn, hurried())
		require.NoError(t, err)
		awaitEnd(t, conn, reader)
		require.Equal(t, "2ms", one[string](t, conn, `show lock_timeout`))
		exec(t, conn, `rollback to before`)
		require.Equal(t, "2ms", one[string](t, conn, `show lock_timeout`))

		foreign := reading(t, database, "psql", "changeLog")
		_, err = tt.call(t.Context(), conn, powerless())
		requireCode(t, sql.CodeTablesLocked, err)
		exec(t, conn, `rollback to before`)
		require.Equal(t, "2ms", one[string](t, conn, `show lock_timeout`))
		exec(t, conn, `rollback`)
		require.Equal(t, "1ms", one[string](t, conn, `show lock_timeout`))

		exec(t, conn, `set statement_timeout = '200ms'`)
		_, err = tt.call(t.Context(), conn, hurried())
		require.ErrorContains(t, err, "SQLSTATE 57014")
		exec(t, conn, `set statement_timeout = 0`)
		require.Equal(t, "1ms", one[string](t, conn, `show lock_timeout`))
		requireAlive(t, foreign)
		require.Equal(t, before, contents(t, conn))
	}
}

// Another shard's name may differ only where _ stands, which is a place holder to like.
func TestShardsAreNotInEachOthersWay(t *testing.T) {
	t.Parallel()

	database := pgtest.Empty(t)
	shards := []string{"a_b/cdc", "axb/cdc"}
	conns := make([]*pgx.Conn, len(shards))
	for i, shard := range shards {
		require.NoError(t, sql.Migrate(t.Context(), inSchema(t, database, shard), shard))
		conns[i] = inSchema(t, database, shard)
		hasty(t, database, conns[i])
		require.Equal(t, "initialized", ensure(t, conns[i], version, version).Result)
	}
	for _, tt := range exclusive {
		for i, conn := range conns {
			mine, neighbours := inSchema(t, database, shards[i]), inSchema(t, database, shards[1-i])
			for _, reader := range []*pgx.Conn{mine, neighbours} {
				exec(t, reader, `select set_config('application_name', $1, false)`, streamerApp)
				read(t, reader, "replicationState", "changeLog", "replicationConfig", "tableMetadata", "backfilling")
			}
			require.Equal(t, mine.PgConn().PID(), one[uint32](t, conn, `select distinct pid from lock_holders()`))
			got, err := tt.call(t.Context(), conn, hurried())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			awaitEnd(t, conn, mine)
			requireAlive(t, neighbours)
		}
	}

	// Two of them may be at it at once.
	tx := begin(t, conns[0])
	_, err := reset(t.Context(), tx, "04")
	require.NoError(t, err)
	params := ensureParams("05", "05")
	params.AutoReset, params.MaxWait = true, 0
	got, err := queries.EnsureReplicationConfig(t.Context(), conns[1], params)
	require.NoError(t, err)
	require.Equal(t, "reset", got.Result)
	commit(t, tx)
	require.Equal(t, seed("04"), logRows(t, conns[0]))
	require.Equal(t, seed("05"), logRows(t, conns[1]))
}

// The owner goes on while a call waits: between two attempts it gets through, and the log
// may fit by then.
func TestLogThatCatchesUpMeanwhile(t *testing.T) {
	t.Parallel()

	database, watcher := furnished(t)
	conn, storer := database.Conn(t), database.Conn(t)
	foreign := reading(t, database, "psql", "backfilling")
	result := blocked(t, watcher, conn, func() (string, error) {
		return queries.ReinitializeChangeLog(t.Context(), conn, reinitializeParams("0a"))
	})
	require.EqualValues(t, 3, store(t, storer, batch("06", "0a")).Stored)
	got := <-result
	require.NoError(t, got.err)
	require.Equal(t, "maintained", got.value)
	require.Equal(t, db.CatchupBoundsRow{Minimum: "01", Head: "0a", ReplicaVersion: version, Owner: owner}, bounds(t, conn))
	requireAlive(t, foreign)
}

// The last transaction of the owner may be what the call waits for.
func TestLogThatCatchesUpAtLast(t *testing.T) {
	t.Parallel()

	database, watcher := furnished(t)
	conn, storer := database.Conn(t), database.Conn(t)
	tx := begin(t, storer)
	store(t, tx, batch("06", "0a"))
	params := reinitializeParams("0a")
	params.Grace = time.Minute
	result := blocked(t, watcher, conn, func() (string, error) {
		return queries.ReinitializeChangeLog(t.Context(), conn, params)
	})
	commit(t, tx)
	got := <-result
	require.NoError(t, got.err)
	require.Equal(t, "maintained", got.value)
	require.Equal(t, db.CatchupBoundsRow{Minimum: "01", Head: "0a", ReplicaVersion: version, Owner: owner}, bounds(t, conn))
}
