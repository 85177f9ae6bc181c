package streamer_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
	"millrace/streamer"
	"millrace/streamer/client"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

// shop makes a database with a table that is published.
func shop(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	conn := db.Conn(t)
	do(t, conn, `create table public.item (id int primary key, note text)`)
	return db, conn
}

// replicaVersionOf is the history that the log belongs to.
func replicaVersionOf(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return tell[string](t, conn, `select "replicaVersion" from cdc."replicationConfig"`)
}

// items is a Checker that compares the ids and notes of table item.
func items() *Checker {
	return &Checker{Row: func(change []byte) (string, bool) {
		found := itemPattern.FindSubmatch(change)
		if found == nil {
			return "", false
		}
		return string(found[1]), true
	}}
}

var itemPattern = regexp.MustCompile(`"new":\{"id":(\d+)`)

// put commits a transaction and tells the Checker.
func put(t *testing.T, c *Checker, conn *pgx.Conn, ids ...int) {
	t.Helper()
	rows := make([]string, len(ids))
	for i, id := range ids {
		rows[i] = fmt.Sprint(id)
	}
	do(t, conn, `insert into public.item select unnest($1::int[])`, ids)
	c.Committed("", rows...)
}

// arrive waits until a subscriber has what was committed so far.
func arrive(t *testing.T, c *Checker, followers ...*follower) {
	t.Helper()
	c.mu.Lock()
	want := len(c.committed)
	c.mu.Unlock()
	for _, f := range followers {
		require.Eventually(t, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return f.watch.due >= want || c.err != nil
		}, endurance, glimpse, "%s does not get everything", f.name)
	}
	require.NoError(t, c.Done(""))
}

func TestFirstStart(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	r := serving(t, rigConfig(db))

	require.True(t, tell[bool](t, conn, `
		select exists (select from pg_publication where pubname = '_' || current_database() || '_public_0')`), "the publication")
	require.Equal(t, 1, tell[int](t, conn, slotsOf))
	require.Equal(t, 1, tell[int](t, conn, `select count(*)::int from cdc.streamer`))
	row := tell[string](t, conn, `
		select concat_ws(' ', r.state, r.owner = s.owner, s."ownerAddress" = $1, r.slot = q.slot_name,
			r.slot = 'millrace_' || current_database() || '_0_' || r.id)
		from cdc.streamer as r
		cross join cdc."replicationState" as s
		cross join pg_replication_slots as q
		where q.database = current_database()`, r.address)
	require.Equal(t, "owner t t t t", row)
	require.True(t, tell[bool](t, conn, `
		select c.xmin = s.xmin and c.xmin = r.xmin
		from cdc."replicationConfig" as c
		cross join cdc."replicationState" as s
		cross join cdc.streamer as r`), "the log and its owner are of one transaction")

	// Nothing was confirmed yet that is not recorded, so the slot is where it began.
	var confirmed int64
	var streamed *string
	require.NoError(t, conn.QueryRow(t.Context(), `
		select confirmed_flush_lsn - '0/0', (select streamed_watermark from cdc.progress)
		from pg_replication_slots
		where database = current_database()`).Scan(&confirmed, &streamed))
	at := watermark.Encode(uint64(confirmed - 1)) //nolint:gosec // an LSN
	if streamed == nil {
		require.Equal(t, at, replicaVersionOf(t, conn), "the slot's consistent point less one")
	} else {
		require.LessOrEqual(t, at, *streamed)
	}
	require.Equal(t, replicaVersionOf(t, conn), tell[string](t, conn, `select head from cdc.status`))

	c := items()
	f := follow(t, c, "first", fixed(r.address), client.Position{ReplicaVersion: replicaVersionOf(t, conn), Watermark: replicaVersionOf(t, conn)}, nil)
	put(t, c, conn, 1, 2)
	arrive(t, c, f)
}

func TestStopAndStartAgain(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	c := items()
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	f := follow(t, c, "through all of it", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	slot := tell[string](t, conn, `select slot from cdc.status`)
	for i := range 3 {
		put(t, c, conn, 10*i+1)
		put(t, c, conn, 10*i+2, 10*i+3)
		if i%2 == 0 {
			arrive(t, c, f)
		}
		r.stop(t)
		confirmed := tell[int64](t, conn, `select (confirmed_flush_lsn - '0/0')::int8 - 1 from pg_replication_slots where slot_name = $1`, slot)
		require.GreaterOrEqual(t, watermark.Encode(uint64(confirmed)), //nolint:gosec // an LSN
			tell[string](t, conn, `select head from cdc.status`), "a clean stop confirms all that is stored")
		put(t, c, conn, 10*i+4)
		require.Equal(t, 0, tell[int](t, conn, `select num_streamers::int from cdc.status`), "a clean stop says so")
		r = serving(t, cfg)
		require.Equal(t, slot, tell[string](t, conn, `select slot from cdc.status`), "it has the slot of the one before")
		require.Equal(t, 1, tell[int](t, conn, `select count(*)::int from cdc.streamer where slot is not null`))
		require.Equal(t, i+2, tell[int](t, conn, `select count(*)::int from cdc.streamer`))
	}
	arrive(t, c, f)
	late := follow(t, c, "late", fixed(r.address), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	arrive(t, c, late)
	require.Equal(t, version, replicaVersionOf(t, conn))
	require.Equal(t, 1, tell[int](t, conn, slotsOf))
}

func TestStartWaitsForTheOwnersSlot(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	first := serving(t, cfg)
	slot := tell[string](t, conn, `select slot from cdc.status`)

	cfg.SlotWait, cfg.AutoReset = endurance, true
	third := launch(t, cfg)
	require.Eventually(t, func() bool {
		return tell[int](t, conn, `select count(*)::int from pg_stat_activity
			where datname = current_database() and application_name = 'millrace-source' and backend_type = 'client backend'`) > 0
	}, endurance, glimpse, "it waits for the slot")
	// The owner goes on meanwhile. That must not look like a hole, or the log would be lost.
	version := replicaVersionOf(t, conn)
	do(t, conn, `insert into public.item values (1)`)
	becomes(t, endurance, true, conn, `select head > replica_version from cdc.status`)
	becomes(t, endurance, true, conn, `
		select confirmed_flush_lsn > $1::text::pg_lsn
		from pg_replication_slots where database = current_database()`, tell[string](t, conn, `select pg_current_wal_lsn()::text`))
	first.stop(t)
	third.serves(t)
	require.Equal(t, version, replicaVersionOf(t, conn))
	require.Equal(t, slot, tell[string](t, conn, `select slot from cdc.status`))
}

// stateOf returns the named state that an error must be.
func stateOf(t *testing.T, err error, name string) *source.StateError {
	t.Helper()
	var state *source.StateError
	require.ErrorAs(t, err, &state)
	require.Equal(t, name, state.State, "%v", err)
	return state
}

func TestTwoFirstStartsAtOnce(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	cfg.SlotWait = 300 * time.Millisecond
	one, two := launch(t, cfg), launch(t, cfg)
	winner, loser := one, two
	select {
	case <-one.ended:
		winner, loser = two, one
	case <-two.ended:
	case <-time.After(endurance):
		require.FailNow(t, "both go on")
	}
	winner.serves(t)
	// The second one takes the log over, with the slot of the first or with its own.
	require.NoError(t, loser.end(t, endurance))
	require.Contains(t, loser.log.String(), "stopped: the log is ") // no longer ours, or not to be ours
	require.Contains(t, loser.log.String(), tell[string](t, conn, `select owner from cdc.status`))
	becomes(t, endurance, 1, conn, slotsOf)
	becomes(t, endurance, 1, conn, `select count(*)::int from cdc.streamer where slot is not null`)
}

// TestStartThatCannotGoOn breaks the log's continuation in every way. Without leave to
// reset nothing changes; with it a new history begins, and only replicas of it are served.
func TestStartThatCannotGoOn(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		sabotage []string
		state    string
	}{
		{"the slot was dropped", []string{
			`select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()`,
		}, "slot-missing"},
		{"the slot is past the log", []string{
			`insert into public.item values (2)`,
			`select pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn())
			from pg_replication_slots where database = current_database()`,
		}, "hole"},
		{"the log is past the upstream", []string{
			`select cdc.reinitialize_change_log(watermark => cdc.encode_watermark(pg_current_wal_lsn() + 4000000000), owner => null)`,
		}, "log-ahead"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db, conn := shop(t)
			do(t, conn, `set synchronous_commit = on`)
			cannotGoOn(t, rigConfig(db), conn, tt.state, func() {
				for _, statement := range tt.sabotage {
					do(t, conn, statement)
				}
			})
		})
	}
}

func TestSlotIsLost(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), pgtest.Options{Settings: []string{"synchronous_commit=on", "max_slot_wal_keep_size=1MB"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	conn := migrated(t, server.URL("postgres"))
	do(t, conn, `create table public.item (id int primary key, note text)`)
	cfg := streamer.Config{UpstreamDB: server.URL("postgres"), TaskID: "task", Listen: "127.0.0.1:0"}
	cannotGoOn(t, cfg, conn, "slot-lost", func() {
		for range 3 {
			do(t, conn, `create table filler as select repeat('x', 1000) from generate_series(1, 1000); drop table filler; select pg_switch_wal()`)
		}
		do(t, conn, `checkpoint`)
		require.Equal(t, "lost", tell[string](t, conn, `select wal_status from pg_replication_slots`))
	})
}

// migrated connects to a database and migrates it.
func migrated(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	require.NoError(t, sql.Migrate(t.Context(), conn, "cdc"))
	return conn
}

// cannotGoOn starts a streamer, stops it, and starts it again after a sabotage.
func cannotGoOn(t *testing.T, cfg streamer.Config, conn *pgx.Conn, state string, sabotage func()) {
	t.Helper()
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	do(t, conn, `insert into public.item values (1)`)
	becomes(t, endurance, true, conn, `select head > $1 from cdc.status`, version)
	r.stop(t)
	sabotage()

	const whole = `
		select concat(c, s, p, (select count(*) from cdc."changeLog"))
		from cdc."replicationConfig" as c
		cross join cdc."replicationState" as s
		cross join (select array_agg(streamed_watermark) from cdc.progress) as p`
	before := tell[string](t, conn, whole)
	slots := tell[int](t, conn, slotsOf)
	found := stateOf(t, launch(t, cfg).end(t, endurance), state)
	require.NotEmpty(t, found.Detail)
	require.Contains(t, found.Hint, "--auto-reset")
	require.Equal(t, before, tell[string](t, conn, whole), "nothing may change")
	require.Equal(t, slots, tell[int](t, conn, slotsOf))

	cfg.AutoReset = true
	r = serving(t, cfg)
	now := replicaVersionOf(t, conn)
	require.Greater(t, now, version)
	becomes(t, endurance, 1, conn, slotsOf) // the old one is dropped, if it was there

	old := subscribed(t, r.address, version, version)
	require.JSONEq(t, fmt.Sprintf(`{"id":1,"msg":["error",{"type":1,"message":"current replica version is %s (requested %s)"}]}`,
		now, version), says(t, old))
	require.NoError(t, old.Close())
	c := items()
	f := follow(t, c, "new", fixed(r.address), client.Position{ReplicaVersion: now, Watermark: now}, nil)
	put(t, c, conn, 100)
	arrive(t, c, f)
	r.stop(t)
}

func TestPublicationsDiffer(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	do(t, conn, `create publication one for table public.item`)
	do(t, conn, `create publication two for table public.item`)
	cfg := rigConfig(db)
	cfg.Publications = []string{"one"}
	serving(t, cfg).stop(t)
	version := replicaVersionOf(t, conn)

	cfg.Publications = []string{"two"}
	state := stateOf(t, launch(t, cfg).end(t, endurance), "publications-differ")
	require.Contains(t, state.Detail, "one")
	require.Contains(t, state.Detail, "two")
	require.Equal(t, version, replicaVersionOf(t, conn))
	require.Equal(t, 1, tell[int](t, conn, slotsOf))

	cfg.AutoReset = true
	serving(t, cfg)
	require.Greater(t, replicaVersionOf(t, conn), version)
	require.Equal(t, []string{"two"}, tell[[]string](t, conn, `select publications from cdc.status`))
	becomes(t, endurance, 1, conn, slotsOf)
}

func TestResetRequired(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	serving(t, cfg).stop(t)
	version := replicaVersionOf(t, conn)
	do(t, conn, `select cdc.mark_reset_required()`)

	r := serving(t, cfg)
	require.Contains(t, r.log.String(), "level=ERROR")
	require.Contains(t, r.log.String(), "auto-reset")
	require.Equal(t, version, replicaVersionOf(t, conn), "it goes on, and says so")
	r.stop(t)

	cfg.AutoReset = true
	serving(t, cfg)
	require.Greater(t, replicaVersionOf(t, conn), version)
	require.False(t, tell[bool](t, conn, `select reset_required from cdc.status`))
	becomes(t, endurance, 1, conn, slotsOf)
}

// TestStartsThatFail holds every error of a start to three things: what it is about, what
// is wrong, and what to do.
func TestStartsThatFail(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, cfg *streamer.Config, conn *pgx.Conn)
		want  []string
	}{
		{"no right to replicate", func(t *testing.T, cfg *streamer.Config, conn *pgx.Conn) {
			role := "clerk_" + cfg.AppID
			do(t, conn, `create role `+role+` login superuser`)
			do(t, conn, `alter role `+role+` nosuperuser noreplication`)
			t.Cleanup(func() {
				_, err := conn.Exec(context.WithoutCancel(t.Context()), `drop role `+role)
				require.NoError(t, err)
			})
			cfg.ChangeDB = cfg.UpstreamDB
			cfg.UpstreamDB = strings.Replace(cfg.UpstreamDB, "postgres@", role+"@", 1)
		}, []string{"permission-missing", "clerk_", "may not replicate", "alter role"}},
		{"an unknown publication", func(_ *testing.T, cfg *streamer.Config, _ *pgx.Conn) {
			cfg.Publications = []string{"nowhere"}
		}, []string{"publication-missing", "nowhere", "create"}},
		{"an unknown database", func(_ *testing.T, cfg *streamer.Config, _ *pgx.Conn) {
			cfg.ChangeDB = cfg.UpstreamDB
			cfg.UpstreamDB = strings.Replace(cfg.UpstreamDB, cfg.AppID, "nowhere", 1)
		}, []string{"database-missing", `"nowhere"`, "check the database"}},
		{"an unknown change database", func(_ *testing.T, cfg *streamer.Config, _ *pgx.Conn) {
			cfg.ChangeDB = strings.Replace(cfg.UpstreamDB, cfg.AppID, "nowhere", 1)
		}, []string{"change database", `"nowhere"`, "does not exist", "check"}},
		{"a change database out of reach", func(_ *testing.T, cfg *streamer.Config, _ *pgx.Conn) {
			cfg.ChangeDB = "postgres://postgres:secret@127.0.0.1:1/log"
		}, []string{"change database", "127.0.0.1", "refused", "check"}},
		{"a schema that is not migrated", func(_ *testing.T, cfg *streamer.Config, _ *pgx.Conn) {
			cfg.Schema = "elsewhere"
		}, []string{"elsewhere", "change database", "streamer migrate"}},
		{"a wrong app", func(_ *testing.T, cfg *streamer.Config, _ *pgx.Conn) {
			cfg.AppID = "No-App"
		}, []string{"App ID", "No-App", "choose another"}},
		{"a taken port", func(t *testing.T, cfg *streamer.Config, _ *pgx.Conn) {
			other := serving(t, *cfg)
			cfg.Listen = other.address
		}, []string{"listen on 127.0.0.1:", "another process has this port", "choose another port"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db, conn := shop(t)
			cfg := rigConfig(db)
			tt.spoil(t, &cfg, conn)
			before := tell[int](t, conn, slotsOf)
			err := launch(t, cfg).end(t, endurance)
			require.Error(t, err)
			for _, part := range tt.want {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), "secret")
			require.Equal(t, before, tell[int](t, conn, slotsOf), "no slot may be left")
		})
	}
}

func TestServersThatAreNotFit(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), pgtest.Options{TCP: true, Password: "right", Settings: []string{"wal_level=replica"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	cfg := streamer.Config{UpstreamDB: server.TCPURL("postgres"), TaskID: "task", Listen: "127.0.0.1:0"}
	err = launch(t, cfg).end(t, endurance)
	var unfit *postgres.PreflightError
	require.ErrorAs(t, err, &unfit)
	require.ErrorContains(t, err, "wal_level = logical")
	require.ErrorContains(t, err, "alter system set wal_level")

	cfg.UpstreamDB = strings.Replace(cfg.UpstreamDB, ":right@", ":wrong@", 1)
	err = launch(t, cfg).end(t, endurance)
	state := stateOf(t, err, "access-denied")
	require.Contains(t, state.Detail, `user "postgres"`)
	require.Contains(t, state.Hint, "check user and password")
	require.NotContains(t, err.Error(), "wrong@")
}

func TestWrongPasswordOfTheChangeDatabase(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), pgtest.Options{TCP: true, Password: "right"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	cfg := streamer.Config{UpstreamDB: server.TCPURL("postgres"), TaskID: "task", Listen: "127.0.0.1:0"}
	cfg.ChangeDB = strings.Replace(cfg.UpstreamDB, ":right@", ":wrong@", 1)
	err = launch(t, cfg).end(t, endurance)
	state := stateOf(t, err, "access-denied")
	require.Contains(t, state.Detail, "change database")
	require.Contains(t, state.Hint, "check user and password")
	require.NotContains(t, err.Error(), "wrong@")
}

func TestTwoShardsInOneDatabase(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	require.NoError(t, sql.Migrate(t.Context(), conn, "zero_0/cdc"))
	do(t, conn, `reset search_path`)
	first, second := rigConfig(db), rigConfig(db)
	second.AppID, second.Shard, second.Schema = db.Name+"_zero", 1, "zero_0/cdc"
	one, two := serving(t, first), serving(t, second)

	version := replicaVersionOf(t, conn)
	other := tell[string](t, conn, `select "replicaVersion" from "zero_0/cdc"."replicationConfig"`)
	require.NotEqual(t, version, other)
	require.Equal(t, 2, tell[int](t, conn, slotsOf))
	require.Equal(t, `zero_0/cdc`, tell[string](t, conn, `select "schema" from "zero_0/cdc".status`))
	c, d := items(), items()
	f := follow(t, c, "of the first", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	g := follow(t, d, "of the second", found(t, db.URL, "zero_0/cdc"), client.Position{ReplicaVersion: other, Watermark: other}, nil)
	for i := range 5 {
		put(t, c, conn, i)
		d.Committed("", fmt.Sprint(i))
	}
	arrive(t, c, f)
	arrive(t, d, g)
	one.stop(t)
	put(t, c, conn, 10)
	d.Committed("", "10")
	arrive(t, d, g)
	serving(t, first)
	arrive(t, c, f)
	two.stop(t)
}

func TestLogInAnotherDatabase(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T) (url string, conn *pgx.Conn){
		"of the same server": func(t *testing.T) (string, *pgx.Conn) {
			db := pgtest.New(t)
			return db.URL, db.Conn(t)
		},
		"of another server": func(t *testing.T) (string, *pgx.Conn) {
			server, err := pgtest.Start(t.Context(), pgtest.Options{Settings: []string{"wal_level=minimal", "max_wal_senders=0"}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, server.Stop()) })
			return server.URL("postgres"), migrated(t, server.URL("postgres"))
		},
	}
	for name, place := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, conn := shop(t)
			url, log := place(t)
			cfg := rigConfig(db)
			cfg.ChangeDB = url
			r := serving(t, cfg)
			version := replicaVersionOf(t, log)
			require.Equal(t, 0, tell[int](t, conn, `select count(*)::int from cdc."replicationConfig"`), "nothing is written upstream")
			c := items()
			f := follow(t, c, "far away", found(t, url, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
			put(t, c, conn, 1, 2)
			arrive(t, c, f)
			r.stop(t)
			put(t, c, conn, 3)
			r = serving(t, cfg)
			arrive(t, c, f)
			r.stop(t)
		})
	}
}

func TestSlotsOfTheDead(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	create := func(name string) {
		do(t, conn, `select pg_create_logical_replication_slot($1, 'pgoutput')`, name)
	}
	// One that died long ago and has a row, one in our name without, and somebody else's.
	dead := tell[string](t, conn, `select slot from cdc.register_streamer('task', 'task/dead', 'nowhere:1', 'millrace_' || current_database() || '_0_')`)
	do(t, conn, `select cdc.retire_streamer(id, false) from cdc.streamer`)
	create(dead)
	create("millrace_" + db.Name + "_0_777")
	create("stranger_" + db.Name)

	serving(t, cfg)
	becomes(t, endurance, false, conn, `select exists (select from pg_replication_slots where slot_name = $1)`, dead)
	becomes(t, endurance, 1, conn, `select count(*)::int from cdc.streamer where slot is not null`)
	require.Equal(t, 3, tell[int](t, conn, slotsOf), "its own and the two that nothing is known of")
}

func TestStartupDelay(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	version := func() url.Values { // of a log that there is
		serving(t, cfg).stop(t)
		return wants(replicaVersionOf(t, conn), replicaVersionOf(t, conn))
	}()
	owner := tell[string](t, conn, `select owner from cdc.status`)
	cfg.StartupDelay = time.Hour
	cfg.Listen = portForLater(t)
	r := launch(t, cfg)
	require.Eventually(t, func() bool { return healthy(t, cfg.Listen) }, endurance, glimpse, "it answers health checks")

	version.Set("mode", "backup")
	hasty, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, status, err := upgrade(hasty, cfg.Listen, version)
	require.Error(t, err)
	require.Zero(t, status, "a backup is kept waiting")
	require.Equal(t, owner, tell[string](t, conn, `select owner from cdc.status`), "it has not started anything")
	require.True(t, healthy(t, cfg.Listen))

	for reason, path := range map[string]string{
		"Error: backups are not configured":         "/replication/v6/snapshot?taskID=x",
		"Error: Missing taskID in snapshot request": "/api/replication/v6/snapshot",
		"Error: invalid querystring - missing id":   "/replication/v6/changes?mode=serving",
		"Error: Invalid URL: /a/b":                  "/a/b",
		`invalid action "poke" received in handoff`: "/replication/v6/poke?mode=serving",
	} {
		ws, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+cfg.Listen+path, nil)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		_, _, err = ws.ReadMessage()
		require.ErrorContains(t, err, reason)
		require.NoError(t, ws.Close())
	}
	require.Equal(t, owner, tell[string](t, conn, `select owner from cdc.status`), "nor has a request that is refused")

	version.Set("mode", "serving")
	asked := time.Now()
	subscriber, status, err := upgrade(t.Context(), cfg.Listen, version)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	require.Contains(t, says(t, subscriber), `["status",`)
	require.Less(t, time.Since(asked), endurance)
	r.serves(t)
	require.NotEqual(t, owner, tell[string](t, conn, `select owner from cdc.status`))
	require.NoError(t, subscriber.Close())
	r.stop(t)
}

func TestStopDuringTheDelay(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	cfg.StartupDelay = time.Hour
	cfg.Listen = portForLater(t)
	r := launch(t, cfg)
	require.Eventually(t, func() bool { return healthy(t, cfg.Listen) }, endurance, glimpse)
	r.stop(t)
	require.Equal(t, 0, tell[int](t, conn, slotsOf))
}

// healthy asks for the health of a streamer, which may not listen yet.
func healthy(t *testing.T, address string) bool {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}
