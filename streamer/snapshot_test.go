package streamer_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer"
	"millrace/streamer/change"
	"millrace/streamer/snapshot"
	"millrace/streamer/source/postgres/pgtext"
)

// snapshotConfig is how to copy what the rig of a database publishes.
func snapshotConfig(t *testing.T, db, log *pgtest.DB) streamer.SnapshotConfig {
	t.Helper()
	return streamer.SnapshotConfig{
		UpstreamDB: db.URL,
		ChangeDB:   log.URL,
		Folder:     filepath.Join(t.TempDir(), "copy"),
		Logger:     slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// copied makes a snapshot, which must succeed.
func copied(t *testing.T, db, log *pgtest.DB) *snapshot.Reader {
	t.Helper()
	cfg := snapshotConfig(t, db, log)
	require.NoError(t, streamer.Snapshot(t.Context(), cfg))
	reader, err := snapshot.Open(cfg.Folder)
	require.NoError(t, err)
	return reader
}

// rowsOf are the changes of a snapshot's rows.
func rowsOf(t *testing.T, reader *snapshot.Reader, options pgtext.Options) (rows []string) {
	t.Helper()
	w := reader.Manifest().Watermark
	require.NoError(t, reader.Verify(t.Context()))
	var kinds []change.Kind
	require.NoError(t, reader.Replay(t.Context(), snapshot.ReplayConfig{
		Options: options,
		Message: func(kind change.Kind, message []byte) error {
			if kind == change.Data {
				rows = append(rows, string(change.Stored(kind, message, w)))
			} else {
				kinds = append(kinds, kind)
			}
			return nil
		},
	}))
	require.Equal(t, []change.Kind{change.Begin, change.Commit}, kinds)
	return rows
}

// streamedTo waits until the log has everything up to a watermark.
func streamedTo(t *testing.T, conn *pgx.Conn, w string) {
	t.Helper()
	becomes(t, endurance, true, conn, `select coalesce(streamed_watermark >= $1 collate "C", false) from cdc.status`, w)
}

// A row that was inserted while the stream was on looks the same in a snapshot, and what
// the stream does not show is not there.
func TestSnapshotShowsWhatTheStreamShows(t *testing.T) {
	t.Parallel()
	recorded := func(name string) string {
		content, err := os.ReadFile(filepath.Join("testdata", "transcripts", name))
		require.NoError(t, err)
		return string(content)
	}
	var everyType []string
	for statement := range strings.SplitSeq(recorded("b-types.sql"), "\n") {
		if strings.HasPrefix(statement, "insert") {
			everyType = append(everyType, statement)
		}
	}
	tests := []struct {
		name         string
		setup        string
		publications []string // the default one if none are named
		inserts      []string
		want         int // rows
	}{
		{name: "every type", setup: recorded("b-types.setup.sql"), inserts: everyType, want: 54},
		{
			name: "settings of the database that change the text of values, or end sessions",
			setup: `create table t (id int primary key, d date, i interval, b bytea, f float8, m money);
				do $$ begin
					execute format('alter database %I set datestyle = ''German''', current_database());
					execute format('alter database %I set intervalstyle = ''iso_8601''', current_database());
					execute format('alter database %I set bytea_output = ''escape''', current_database());
					execute format('alter database %I set extra_float_digits = -5', current_database());
					execute format('alter database %I set timezone = ''Asia/Kathmandu''', current_database());
					execute format('alter database %I set idle_in_transaction_session_timeout = 1', current_database());
				end $$`,
			inserts: []string{`insert into t values (1, '2024-02-29', '1 day 02:03', '\x00ff41', 0.1::float8 + 0.2, 3)`},
			want:    1,
		},
		{
			name: "values that are stored elsewhere",
			setup: `create table t (id int primary key, a text, b text, c bytea);
				alter table t alter a set storage external, alter c set storage extended`,
			inserts: []string{`insert into t select i, repeat(md5(i::text), 400), repeat('x', 100000), decode(repeat(md5(i::text), 3000), 'hex')
				from generate_series(1, 5) as i`},
			want: 5,
		},
		{
			name: "names that need quotes",
			setup: `create schema "we ird"; create schema "../up";
				create table "we ird"."Odd""one" ("i d" int primary key, "new" text, "a,b" text, "ü\n%s" text, """" text);
				create table "../up"."con" (id int primary key); create table "../up"."CON" (id int primary key);
				create table "../up"."` + strings.Repeat("é", 31) + `" (id int primary key);
				create publication odd for tables in schema "we ird", "../up"`,
			publications: []string{"odd"},
			inserts: []string{
				`insert into "we ird"."Odd""one" values (1, 'a', 'b', 'c', 'd'), (2, null, '', '\N', '\.')`,
				`insert into "../up"."con" values (1)`, `insert into "../up"."CON" values (2)`,
				`insert into "../up"."` + strings.Repeat("é", 31) + `" values (3)`,
			},
			want: 5,
		},
		{
			name: "text that COPY escapes",
			setup: `create table t (v text); alter table t replica identity full;
				create table "one column" (v text primary key)`,
			inserts: []string{
				`insert into t values (e'\b\f\n\r\t\v\\'), (e'\\N'), (e'\\.'), (''), (null), (e'a\\tb'), (e'\\\\'), (e'\x01\x7f'), ('é😀')`,
				`insert into "one column" values (e'\\.'), (''), (e'\n'), (e'\\N')`,
			},
			want: 13,
		},
		{
			name: "tables without columns, and without rows",
			setup: `create table hollow (); create table empty (id int primary key); create table dropped (a int);
				alter table dropped drop column a`,
			inserts: []string{`insert into hollow default values`, `insert into hollow default values`, `insert into dropped default values`},
			want:    3,
		},
		{
			name: "what cannot be published",
			setup: `create unlogged table u (id int); create view v as select 1 as one; create materialized view m as select 1 as one;
				create table t (id int primary key); create publication everything for all tables`,
			publications: []string{"everything"},
			inserts:      []string{`insert into u values (1)`, `insert into t values (1)`},
			want:         1,
		},
		{
			name: "generated and dropped columns",
			setup: `create table t (gone int, id int primary key, twice int generated always as (id * 2) stored, v text);
				alter table t drop column gone; alter table t add column late int default 7`,
			inserts: []string{`insert into t (id, v) values (1, 'a'), (2, 'b')`},
			want:    2,
		},
		{
			name: "generated columns that are published", // since version 18
			setup: `create table t (id int primary key, twice int generated always as (id * 2) stored, v text);
				do $$ begin
					execute 'create publication generated for table t' || case
						when current_setting('server_version_num')::int >= 180000 then ' with (publish_generated_columns = stored)' else '' end;
				end $$`,
			publications: []string{"generated"},
			inserts:      []string{`insert into t (id, v) values (1, 'a'), (2, 'b')`},
			want:         2,
		},
		{
			name: "some columns",
			setup: `create table t (a text, id int primary key, hidden text, b text);
				create publication part for table t (b, id)`,
			publications: []string{"part"},
			inserts:      []string{`insert into t values ('a', 1, 'secret', 'b')`},
			want:         1,
		},
		{
			name: "filters of several publications",
			setup: `create table t (id int primary key, v text);
				create publication low for table t where (id < 3); create publication high for table t where (id > 5 and v is not null)`,
			publications: []string{"low", "high"},
			inserts:      []string{`insert into t select i, 'v' || i from generate_series(1, 8) as i`, `insert into t values (9)`},
			want:         5,
		},
		{
			name: "a filter, and a publication without one",
			setup: `create table t (id int primary key);
				create publication low for table t where (id < 3); create publication every for tables in schema public`,
			publications: []string{"low", "every"},
			inserts:      []string{`insert into t select generate_series(1, 4)`},
			want:         4,
		},
		{
			name: "partitions as their root",
			setup: `create table p (id int, v text, primary key (id)) partition by range (id);
				create table p1 partition of p for values from (0) to (10);
				create table p2 (v text, gone int, id int not null); alter table p2 drop column gone;
				alter table p attach partition p2 for values from (10) to (20);
				create table p3 partition of p for values from (20) to (40) partition by list (id);
				create table p4 partition of p3 default;
				create publication roots for table p with (publish_via_partition_root = true)`,
			publications: []string{"roots"},
			inserts:      []string{`insert into p select i, 'v' || i from generate_series(1, 30, 3) as i`},
			want:         10,
		},
		{
			name: "partitions as themselves",
			setup: `create table p (id int primary key, v text) partition by range (id);
				create table p1 partition of p for values from (0) to (10);
				create table p2 partition of p for values from (10) to (40);
				create publication leaves for table p with (publish_via_partition_root = false)`,
			publications: []string{"leaves"},
			inserts:      []string{`insert into p select i, 'v' || i from generate_series(1, 30, 3) as i`},
			want:         10,
		},
		{
			name: "partitions both ways",
			setup: `create table p (id int primary key, v text) partition by range (id);
				create table p1 partition of p for values from (0) to (10);
				create table p2 partition of p for values from (10) to (40);
				create publication roots for table p where (id <> 4) with (publish_via_partition_root = true);
				create publication leaves for table p1, p2`,
			publications: []string{"roots", "leaves"},
			inserts:      []string{`insert into p select i, 'v' || i from generate_series(1, 30, 3) as i`},
			want:         9,
		},
		{
			name: "a root in the middle",
			setup: `create table p (id int primary key) partition by range (id);
				create table q partition of p for values from (0) to (10) partition by range (id);
				create table q1 partition of q for values from (0) to (10);
				create table r partition of p for values from (10) to (40);
				create publication middle for table q with (publish_via_partition_root = true)`,
			publications: []string{"middle"},
			inserts:      []string{`insert into p select generate_series(1, 30, 3)`},
			want:         3,
		},
		{
			name: "tables that inherit",
			setup: `create table parent (id int primary key); create table child (more text) inherits (parent);
				alter table child add primary key (id); create publication elders for table only parent`,
			publications: []string{"elders"},
			inserts:      []string{`insert into parent values (1)`, `insert into child values (2, 'x')`},
			want:         1,
		},
		{
			name: "tables that inherit, all of them",
			setup: `create table parent (id int primary key); create table child (more text) inherits (parent);
				alter table child add primary key (id)`,
			inserts: []string{`insert into parent values (1)`, `insert into child values (2, 'x')`},
			want:    2,
		},
		{
			name: "replica identities",
			setup: `create table included (a int, b int, c text, primary key (b) include (a));
				create table swapped (a int, b int, c int, primary key (c, a));
				create table late (id int primary key deferrable);
				create table indexed (id int primary key, k int not null, l int not null, v text);
				create unique index indexed_k on indexed (l, k) include (v);
				alter table indexed replica identity using index indexed_k;
				create table whole (id int primary key, v text); alter table whole replica identity full;
				create table bare (id int primary key, v text); alter table bare replica identity nothing;
				create table keyless (v text);
				create table p (id int, r int, v text, primary key (r, id)) partition by range (id);
				create table p1 partition of p for values from (0) to (10);
				alter table p1 replica identity full`,
			inserts: []string{
				`insert into included values (1, 2, 'c')`, `insert into swapped values (1, 2, 3)`, `insert into late values (1)`,
				`insert into indexed values (1, 2, 3, 'v')`, `insert into whole values (1, 'v')`, `insert into bare values (1, 'v')`,
				`insert into keyless values ('v')`, `insert into p values (1, 2, 'v')`,
			},
			want: 8,
		},
		{name: "nothing is published", setup: `create publication nothing`, publications: []string{"nothing"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// The log is elsewhere, or a publication of all tables would have it.
			db, logDB := pgtest.Empty(t), pgtest.New(t)
			conn, log := db.Conn(t), logDB.Conn(t)
			do(t, conn, `set search_path = public`)
			do(t, conn, tt.setup)
			cfg := rigConfig(db)
			cfg.ChangeDB, cfg.Publications = logDB.URL, tt.publications
			r := serving(t, cfg)
			for _, statement := range tt.inserts {
				do(t, conn, statement)
			}
			reader := copied(t, db, logDB)
			streamedTo(t, log, reader.Manifest().Watermark)
			rows, err := log.Query(t.Context(), `select c.change::text from cdc."changeLog" as c where c.change::text like '{"tag":"insert"%'`)
			require.NoError(t, err)
			want, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			require.Equal(t, tt.want, len(want)) //nolint:testifylint // no list of large rows
			require.ElementsMatch(t, want, rowsOf(t, reader, pgtext.Options{}))
			r.stop(t)

			leftovers := tell[int](t, conn, `select count(*)::int from pg_replication_slots where slot_name like 'millrace_snapshot_%' and database = current_database()`)
			require.Zero(t, leftovers)
		})
	}
}
