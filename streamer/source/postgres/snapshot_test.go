package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

// opening is an OpenSnapshot that is under way.
type opening struct {
	done     chan struct{}
	snapshot *postgres.Snapshot
	err      error
}

func openSnapshot(ctx context.Context, up *postgres.Upstream, cfg postgres.SnapshotConfig) *opening {
	cfg.Publications = []string{pubName}
	o := &opening{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.snapshot, o.err = up.OpenSnapshot(ctx, cfg)
	}()
	return o
}

// opened opens a snapshot, which must succeed, until the test ends.
func (u *upstream) opened(cfg postgres.SnapshotConfig) *postgres.Snapshot {
	u.t.Helper()
	o := openSnapshot(u.t.Context(), u.up, cfg)
	<-o.done
	require.NoError(u.t, o.err)
	u.t.Cleanup(func() { o.snapshot.Close(context.Background()) })
	return o.snapshot
}

// contents are the rows of every table, by name, as COPY writes them.
func contents(t *testing.T, s *postgres.Snapshot) map[string]string {
	t.Helper()
	all := map[string]string{}
	for session, share := range s.Shares() {
		for _, i := range share {
			var b bytes.Buffer
			rows, err := s.Copy(t.Context(), session, i, &b)
			require.NoError(t, err)
			require.Equal(t, int64(strings.Count(b.String(), "\n")), rows)
			all[s.Tables[i].Schema+"."+s.Tables[i].Name] = b.String()
		}
	}
	return all
}

func TestSnapshotStandsWhereItSays(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `create table other (id int primary key)`, `insert into t values (1, 'before')`)
	s := u.opened(postgres.SnapshotConfig{Jobs: 4})
	require.Len(t, s.Shares(), 2, "no more sessions than tables")
	require.Equal(t, "0", u.query(`select count(*)::text from pg_replication_slots where slot_name like 'millrace_snapshot%' and database = current_database()`))
	u.exec(`insert into t values (2, 'behind'); delete from t where id = 1`)
	require.Equal(t, map[string]string{"public.t": "1\tbefore\n", "public.other": ""}, contents(t, s))

	// The stream behind it has the rest and nothing else.
	sink := newRecorder(t, s.Version)
	source := run(t, u.config(), sink)
	txs := sink.waitTxs(1)
	source.stop()
	require.Contains(t, txs[0].messages[1], `"new":{"id":2,"v":"behind"}`)
	require.Greater(t, txs[0].watermark, watermark.FromLSN(s.Version))
}

func TestSnapshotWaitsForTransactions(t *testing.T) {
	t.Parallel()
	// On a shared server everybody's slots would wait.
	u := prepare(t, ownServer(t).URL("postgres"), "millrace_test_0_1", "")
	blocker, xid := open(t, u.url, 1)
	o := openSnapshot(t.Context(), u.up, postgres.SnapshotConfig{LockTimeout: 500 * time.Millisecond})
	u.waitsFor(xid)
	<-o.done
	require.ErrorContains(t, o.err, fmt.Sprintf("pid %d, application forgotten_job, user postgres", blocker.PgConn().PID()))
	eventually(t, "no slot is left", func() bool {
		return u.query(`select count(*)::text from pg_replication_slots where slot_name like 'millrace_snapshot%' and database = current_database()`) == "0"
	})

	ctx, cancel := context.WithCancel(t.Context())
	o = openSnapshot(ctx, u.up, postgres.SnapshotConfig{})
	u.waitsFor(xid)
	cancel()
	<-o.done
	require.ErrorIs(t, o.err, context.Canceled)
	require.Equal(t, "0", u.query(`select count(*)::text from pg_replication_slots where slot_name like 'millrace_snapshot%' and database = current_database()`))
	commit(t, blocker)
}

// As for a slot: a transaction whose commit begins exactly where the snapshot is consistent
// is not in it, so the stream behind it must bring it.
func TestNothingIsLostBehindASnapshot(t *testing.T) {
	t.Parallel()
	u := prepare(t, ownServer(t).URL("postgres"), "millrace_test_0_1", "")
	exact := false
	for attempt := 0; attempt < 5 && !exact; attempt++ {
		id := 10 * attempt
		first, firstXID := open(t, u.url, id+1)
		o := openSnapshot(t.Context(), u.up, postgres.SnapshotConfig{})
		u.waitsFor(firstXID)
		second, secondXID := open(t, u.url, id+2)
		commit(t, first)
		u.waitsFor(secondXID)
		third, _ := open(t, u.url, id+3)
		commit(t, second)
		<-o.done
		require.NoError(t, o.err)
		commit(t, third)
		rows := contents(t, o.snapshot)["public.t"]
		o.snapshot.Close(t.Context())
		require.Contains(t, rows, fmt.Sprintf("%d\tx\n", id+2))
		require.NotContains(t, rows, fmt.Sprintf("%d\tx\n", id+3))

		sink := newRecorder(t, o.snapshot.Version)
		source := run(t, u.config(), sink)
		txs := sink.waitTxs(1)
		source.stop()
		require.Contains(t, txs[0].messages[1], fmt.Sprintf(`"new":{"id":%d,`, id+3))
		// Something of the server's own may have come between, but hardly every time.
		exact = txs[0].watermark == watermark.FromLSN(o.snapshot.Version+1)
	}
	require.True(t, exact, "no commit began where a snapshot was consistent")
}

// between runs statements in a transaction that commits after a snapshot was made, and
// before its tables could be locked. The first of them locks table x exclusively. Without
// further ones it does not commit before the snapshot is given up.
func (u *upstream) between(cfg postgres.SnapshotConfig, statements ...string) *opening {
	u.t.Helper()
	// The snapshot is made when the second of two transactions has ended, and whoever began
	// behind the second is not waited for.
	first, firstID := open(u.t, u.url, 901)
	o := openSnapshot(u.t.Context(), u.up, cfg)
	u.waitsFor(firstID)
	second, secondID := open(u.t, u.url, 902)
	commit(u.t, first)
	u.waitsFor(secondID)
	late, err := pgx.Connect(u.t.Context(), u.url)
	require.NoError(u.t, err)
	defer late.Close(context.Background())
	_, err = late.Exec(u.t.Context(), `begin; `+statements[0])
	require.NoError(u.t, err)
	commit(u.t, second)
	eventually(u.t, "a session waits for the table", func() bool {
		return u.query(`
			select count(*)::text from pg_locks as l join pg_stat_activity as a using (pid)
			where a.application_name = 'millrace-source' and not l.granted and l.locktype = 'relation' and a.datname = current_database()`) == "1"
	})
	if len(statements) == 1 {
		<-o.done
		return o
	}
	for _, statement := range statements[1:] {
		_, err = late.Exec(u.t.Context(), statement)
		require.NoError(u.t, err)
	}
	commit(u.t, late)
	<-o.done
	return o
}

// An older snapshot would see an empty table where its file was made anew, and no rows of
// a table that was renamed. So it is begun again.
func TestSnapshotOfTablesThatAreChangedMeanwhile(t *testing.T) {
	t.Parallel()
	const old, none = "1\told\n", "-"
	tests := []struct {
		name       string
		statements []string
		want       string // of table x
	}{
		{"truncated", []string{`truncate x`, `insert into x values (2, 'new')`}, "2\tnew\n"},
		{"written anew", []string{`alter table x alter id type bigint`, `select`}, old},
		{"dropped", []string{`drop table x`, `select`}, none},
		{"renamed", []string{`alter table x rename to y`, `create table x (id int primary key, v text)`}, ""},
		{"another table made", []string{`lock table x in access exclusive mode`, `create table y (id int)`}, old},
		{"published otherwise", []string{`lock table x in access exclusive mode`, `alter publication p set (publish_via_partition_root = true)`}, old},
		{"a column dropped", []string{`alter table x drop column v`, `select`}, "1\n"},
	}
	server := ownServer(t) // on a shared one everybody's slots would wait
	database := func(t *testing.T, name string) *upstream {
		t.Helper()
		admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
		require.NoError(t, err)
		defer admin.Close(context.Background())
		_, err = admin.Exec(t.Context(), `create database `+name)
		require.NoError(t, err)
		return prepare(t, server.URL(name), "millrace_"+name, "", `create table x (id int primary key, v text)`, `insert into x values (1, 'old')`)
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := database(t, fmt.Sprint("changed_", i))
			o := u.between(postgres.SnapshotConfig{}, tt.statements...)
			require.NoError(t, o.err)
			t.Cleanup(func() { o.snapshot.Close(context.Background()) })
			got, ok := contents(t, o.snapshot)["public.x"]
			if !ok {
				got = none
			}
			require.Equal(t, tt.want, got)
		})
	}
	t.Run("held for too long", func(t *testing.T) {
		u := database(t, "held")
		o := u.between(postgres.SnapshotConfig{LockTimeout: 3 * time.Second}, `lock table x in access exclusive mode`)
		require.ErrorContains(t, o.err, `somebody has held a table exclusively for 3s; held are x by pid`)
	})
}

func TestSnapshotHoldsItsTables(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `create table other (id int primary key)`, `insert into t values (1, 'a')`)
	s := u.opened(postgres.SnapshotConfig{Jobs: 1})
	u.exec(`insert into t values (2, 'b'); update t set v = 'c'; delete from t where id = 1`) // nobody who writes is stopped
	_, err := u.conn.Exec(t.Context(), `set lock_timeout = 50; truncate other`)
	require.ErrorContains(t, err, "lock timeout")
	require.Equal(t, map[string]string{"public.t": "1\ta\n", "public.other": ""}, contents(t, s))
	s.EndSession(t.Context(), 0)
	u.exec(`set lock_timeout = 0; truncate other`)
}

func TestSnapshotRights(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `create table guarded (id int primary key)`)
	role := "reader_" + strings.TrimPrefix(u.slot, "millrace_")
	u.exec(`create role ` + role + ` login replication`)
	defer u.exec(`drop owned by ` + role + `; drop role ` + role)
	up, err := postgres.NewUpstream(strings.Replace(u.url, "postgres@", role+"@", 1))
	require.NoError(t, err)
	refused := func() *source.StateError {
		t.Helper()
		o := openSnapshot(t.Context(), up, postgres.SnapshotConfig{})
		<-o.done
		var state *source.StateError
		require.ErrorAs(t, o.err, &state)
		require.Equal(t, postgres.StatePermissionMissing, state.State)
		return state
	}
	require.Contains(t, refused().Detail, `may not read all of table "public".`)
	u.exec(`grant select on t, guarded to ` + role)
	// A policy would leave rows out, and the stream does not know it.
	u.exec(`alter table guarded enable row level security; create policy none on guarded using (false)`)
	require.Contains(t, refused().Hint, "bypassrls")
	u.exec(`alter role ` + role + ` bypassrls`)
	o := openSnapshot(t.Context(), up, postgres.SnapshotConfig{})
	<-o.done
	require.NoError(t, o.err)
	o.snapshot.Close(t.Context())

	// Rights on the published columns are enough.
	u.exec(`revoke select on t from ` + role + `; grant select (id) on t to ` + role)
	require.Contains(t, refused().Detail, `"public"."t"`)
	u.exec(`drop publication p; create publication p for table t (id)`)
	o = openSnapshot(t.Context(), up, postgres.SnapshotConfig{})
	<-o.done
	require.NoError(t, o.err)
	require.Equal(t, map[string]string{"public.t": ""}, contents(t, o.snapshot))
	o.snapshot.Close(t.Context())
}

// A database without an encoding has text of every kind.
func TestSnapshotOfADatabaseWithoutEncoding(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer admin.Close(context.Background())
	_, err = admin.Exec(t.Context(), `create database raw encoding 'SQL_ASCII' locale 'C' template template0`)
	require.NoError(t, err)
	u := prepare(t, server.URL("raw"), "millrace_raw", "", `insert into t values (1, e'\xe9')`)
	s := u.opened(postgres.SnapshotConfig{})
	require.True(t, s.Raw)
	require.Equal(t, map[string]string{"public.t": "1\t\xe9\n"}, contents(t, s))
}

func TestSnapshotSharesAreEven(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	for i := range 7 {
		u.exec(fmt.Sprintf(`create table s%d (id int primary key, v text); insert into s%d select i, repeat('x', 100) from generate_series(1, %d) as i`,
			i, i, 1000*(i+1)))
	}
	u.exec(`vacuum analyze`)
	s := u.opened(postgres.SnapshotConfig{Jobs: 3})
	require.Len(t, s.Shares(), 3)
	seen := map[int]bool{}
	var loads []int64
	for session, share := range s.Shares() {
		load := int64(0)
		for n, i := range share {
			require.False(t, seen[i])
			seen[i] = true
			load += s.Tables[i].Bytes
			if n > 0 {
				require.LessOrEqual(t, s.Tables[i].Bytes, s.Tables[share[n-1]].Bytes, "large ones first")
			}
			_, err := s.Copy(t.Context(), session, i, io.Discard)
			require.NoError(t, err)
		}
		loads = append(loads, load)
	}
	require.Len(t, seen, 8)
	for i := range loads {
		require.InDelta(t, loads[0], loads[i], float64(loads[0])/3)
	}
}
