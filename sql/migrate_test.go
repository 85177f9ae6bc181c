package sql_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// described lists all that a schema consists of, by the catalogue: the programs of
// some servers come without pg_dump.
const described = `
	with s as (select $1::regnamespace as oid)
	select format('function %s %s %s', pg_get_functiondef(p.oid), p.proacl, obj_description(p.oid, 'pg_proc'))
	from pg_proc p, s where p.pronamespace = s.oid
	union all
	select format('relation %s %s %s %s %s', c.relname, c.relkind, c.relacl, c.reloptions, obj_description(c.oid, 'pg_class'))
	from pg_class c, s where c.relnamespace = s.oid
	union all
	select format('column %s.%s %s %s %s %s %s %s %s', c.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod),
		a.attcollation::regcollation, a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
	from pg_class c
	join pg_attribute a on a.attrelid = c.oid
	left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum, s
	where c.relnamespace = s.oid and a.attnum > 0 and not a.attisdropped
	union all
	select format('constraint %s %s %s', k.conrelid::regclass, k.conname, pg_get_constraintdef(k.oid))
	from pg_constraint k, s where k.connamespace = s.oid
	union all
	select format('index %s', pg_get_indexdef(i.indexrelid))
	from pg_index i join pg_class c on c.oid = i.indexrelid, s where c.relnamespace = s.oid
	union all
	select format('view %s %s', c.relname, pg_get_viewdef(c.oid))
	from pg_class c, s where c.relnamespace = s.oid and c.relkind = 'v'
	order by 1`

func dump(t *testing.T, database *pgtest.DB, schema string) string {
	t.Helper()
	rows, err := database.Conn(t).Query(t.Context(), described, pgx.Identifier{schema}.Sanitize())
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, lines)
	description := strings.Join(lines, "\n")

	program := filepath.Join(database.Server.BinDir(), "pg_dump")
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		return description
	}
	command := osexec.CommandContext(t.Context(), program,
		"--schema-only", "--schema="+pgx.Identifier{schema}.Sanitize(), "--dbname="+database.URL)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	require.NoError(t, command.Run(), errs.String())
	return description + regexp.MustCompile(`(?m)^\\(un)?restrict .*\n`).ReplaceAllString(out.String(), "")
}

// inSchema is a connection with the schema in its search path.
func inSchema(t *testing.T, database *pgtest.DB, schema string) *pgx.Conn {
	t.Helper()
	conn := database.Conn(t)
	exec(t, conn, `select set_config('search_path', $1, false)`, pgx.Identifier{schema}.Sanitize())
	return conn
}

func TestMigrationsGoUpAndDownAndUp(t *testing.T) {
	t.Parallel()

	database := pgtest.Empty(t)
	conn := database.Conn(t)
	require.NoError(t, sql.Migrate(t.Context(), conn, "cdc"))
	up := dump(t, database, "cdc")

	migrator, err := migrate.NewMigrator(t.Context(), conn, `"cdc".schema_version`)
	require.NoError(t, err)
	migrator.Data = map[string]any{"schema": "cdc"}
	require.NoError(t, migrator.LoadMigrations(sql.FS))
	steps := []string{up}
	for version := len(migrator.Migrations) - 1; version >= 0; version-- {
		require.NoError(t, migrator.MigrateTo(t.Context(), int32(version)))
		steps = append(steps, dump(t, database, "cdc"))
	}
	require.Equal(t, []string{"schema_version"}, objects(t, conn, `
		select c.relname::text from pg_class c where c.relnamespace = 'cdc'::regnamespace and c.relkind in ('r', 'v', 'S')
		union all
		select p.proname::text from pg_proc p where p.pronamespace = 'cdc'::regnamespace`))

	for version := range migrator.Migrations {
		require.Equal(t, steps[len(steps)-1-version], dump(t, database, "cdc"), "version %d", version)
		require.NoError(t, migrator.MigrateTo(t.Context(), int32(version+1)))
	}
	require.Equal(t, up, dump(t, database, "cdc"))
}

func TestMigrateAgain(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	before := dump(t, database, "cdc")
	require.NoError(t, sql.Migrate(t.Context(), conn, "cdc"))
	require.Equal(t, before, dump(t, database, "cdc"))
	require.Equal(t, owner, bounds(t, conn).Owner)
	require.Zero(t, one[int64](t, conn, `select count(*) from pg_locks where locktype = 'advisory'
		and database = (select oid from pg_database where datname = current_database())`))
}

func TestTwoShardsInOneDatabase(t *testing.T) {
	t.Parallel()

	database := pgtest.Empty(t)
	conns := map[string]*pgx.Conn{}
	for i, schema := range []string{"cdc", "zero_0/cdc", "Shard-2"} {
		conn := inSchema(t, database, schema)
		require.NoError(t, sql.Migrate(t.Context(), conn, schema))
		exec(t, conn, `select set_config('search_path', $1, false)`, pgx.Identifier{schema}.Sanitize())
		conns[schema] = conn
		version := string(rune('1' + i))
		require.Equal(t, "initialized", ensure(t, conn, "0"+version, "0"+version).Result)
		got, err := reset(t.Context(), conn, "11"+version) // the functions that lock and truncate, too
		require.NoError(t, err)
		require.Equal(t, "reset", got.Result)
		_, err = queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{Owner: owner, ReplicaVersion: "11" + version})
		require.NoError(t, err)
		p := batch("11"+version, "12"+version)
		p.ReplicaVersion = "11" + version
		require.EqualValues(t, 3, store(t, conn, p).Stored)
	}
	for schema, head := range map[string]string{"cdc": "121", "zero_0/cdc": "122", "Shard-2": "123"} {
		require.Equal(t, head, bounds(t, conns[schema]).Head)
		require.Len(t, logRows(t, conns[schema]), 5)
		status, err := queries.Status(t.Context(), conns[schema])
		require.NoError(t, err)
		require.Equal(t, schema, status.Schema)
	}

	// A session that has another shard in its path is not led astray.
	exec(t, conns["cdc"], `select "zero_0/cdc".mark_reset_required()`)
	require.False(t, start(t, conns["cdc"])[0].ResetRequired)
	require.True(t, start(t, conns["zero_0/cdc"])[0].ResetRequired)
	require.Equal(t, "122", one[string](t, conns["cdc"], `select head from "zero_0/cdc".catchup_bounds()`))
	require.Equal(t, "zero_0/cdc", one[string](t, conns["cdc"], `select "schema" from "zero_0/cdc".status`))
}

func TestManyMigrateAtOnce(t *testing.T) {
	t.Parallel()

	database := pgtest.Empty(t)
	calls := make([]func() error, 20)
	for i := range calls {
		conn := database.Conn(t)
		calls[i] = func() error { return sql.Migrate(t.Context(), conn, "zero_0/cdc") }
	}
	require.NoError(t, together(calls...))
	require.Equal(t, "initialized", ensure(t, inSchema(t, database, "zero_0/cdc"), version, version).Result)
}

func TestMigrateByTern(t *testing.T) {
	t.Parallel()

	for _, schema := range []string{"cdc", "zero_0/cdc"} {
		byTern, byMigrate := pgtest.Empty(t), pgtest.Empty(t)
		require.NoError(t, sql.Migrate(t.Context(), byMigrate.Conn(t), schema))

		exec(t, byTern.Conn(t), `create schema `+pgx.Identifier{schema}.Sanitize())
		command := osexec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/go.mod", "tern", "migrate", "-c", "tern.conf", "-m", "sql")
		command.Dir = ".."
		command.Env = append(os.Environ(), "CDC_DB="+byTern.URL, "CDC_SCHEMA="+schema)
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))

		require.Equal(t, dump(t, byMigrate, schema), dump(t, byTern, schema))
		require.NoError(t, sql.Migrate(t.Context(), byTern.Conn(t), schema), "and nothing is left to do")
	}
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()

	database := pgtest.New(t)
	conn := database.Conn(t)
	for _, schema := range []string{"", "pg_cdc", `a"b`, "a'b", "a b", "ä", strings.Repeat("a", 64)} {
		require.ErrorContains(t, sql.Migrate(t.Context(), conn, schema), "the name must")
	}

	exec(t, conn, `update schema_version set version = 4711`)
	err := sql.Migrate(t.Context(), conn, "cdc")
	require.ErrorIs(t, err, sql.ErrNewerSchema)
	require.ErrorContains(t, err, `schema "cdc"`)
	require.ErrorContains(t, err, "version 4711")
	require.Zero(t, one[int64](t, conn, `select count(*) from pg_locks where locktype = 'advisory'
		and database = (select oid from pg_database where datname = current_database())`))
}

func TestMigrateWithoutTheRightToCreateSchemas(t *testing.T) {
	t.Parallel()

	database := pgtest.Empty(t)
	admin, conn := database.Conn(t), database.Conn(t)
	name := "plain_" + database.Name // roles belong to the server
	makeRole(t, admin, name, "")
	exec(t, conn, `set role `+name)

	err := sql.Migrate(t.Context(), conn, "zero_0/cdc")
	require.ErrorContains(t, err, `migrate schema "zero_0/cdc"`)
	require.ErrorContains(t, err, `grant create on database`)
	require.ErrorContains(t, err, `create schema "zero_0/cdc" authorization`)

	exec(t, admin, `create schema "zero_0/cdc" authorization `+name)
	exec(t, admin, `alter role `+name+` login`)
	config := database.Conn(t).Config()
	config.User = name
	plain, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, sql.Migrate(t.Context(), plain, "zero_0/cdc"))
	exec(t, plain, `set search_path = "zero_0/cdc"`)
	require.Equal(t, "initialized", ensure(t, plain, version, version).Result)
	require.NoError(t, plain.Close(t.Context()))
}

// Tables as Zero has made them are taken over with what they hold.
func TestMigrateAdoptsTablesOfThePeer(t *testing.T) {
	t.Parallel()

	database := pgtest.Empty(t)
	exec(t, database.Conn(t), `create schema "zero_0/cdc"`)
	conn := inSchema(t, database, "zero_0/cdc")
	exec(t, conn, `
		create table "changeLog" (watermark text, pos int8, change json not null, precommit text, primary key (watermark, pos));
		create table "replicationState" ("lastWatermark" text not null, owner text, "ownerAddress" text,
			lock integer primary key default 1 check (lock = 1));
		create table "replicationConfig" ("replicaVersion" text not null, publications text[] not null, "resetRequired" bool,
			lock integer primary key default 1 check (lock = 1));
		insert into "changeLog" values ('01', 0, '{"tag":"begin"}', null), ('01', 1, '{"tag":"commit"}', null);
		insert into "replicationState" values ('01', 'zero-task', '10.0.0.1:4849');
		insert into "replicationConfig" values ('01', '{p,q}', null)`)

	require.NoError(t, sql.Migrate(t.Context(), conn, "zero_0/cdc"))
	exec(t, conn, `set search_path = "zero_0/cdc"`)
	require.Equal(t, seed("01"), logRows(t, conn))
	require.Empty(t, objects(t, conn, `
		select a.attname::text from pg_attribute a
		where a.attrelid in ('"changeLog"'::regclass, '"replicationState"'::regclass)
			and a.attname in ('watermark', 'precommit', 'lastWatermark') and a.attcollation <> '"C"'::regcollation`))
	require.Equal(t, "unchanged", ensure(t, conn, "01", "01").Result)
	require.True(t, assume(t, conn, owner, new("zero-task")).Assumed)
	require.EqualValues(t, 3, store(t, conn, batch("01", "02")).Stored)
}

// sqlc reads the files as they are, so a template is allowed in the two places
// where it is inside quotes.
func TestMigrationFiles(t *testing.T) {
	t.Parallel()

	const path = "select set_config('search_path', '\"{{ or .schema `cdc` }}\", pg_temp', true);"
	const creation = "create schema \"{{ or .schema `cdc` }}\";"
	files, err := fs.Glob(sql.FS, "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		require.Regexp(t, `^\d{3}_[a-z]+(_[a-z]+)+\.sql$`, name)
		content, err := fs.ReadFile(sql.FS, name)
		require.NoError(t, err)
		up, down, found := strings.Cut(string(content), "---- create above / drop below ----")
		require.True(t, found, "%s has no down part", name)
		for _, half := range []string{up, down} {
			for line := range strings.Lines(half) {
				line = strings.TrimSpace(line)
				if line == "" || strings.HasPrefix(line, "--") {
					continue
				}
				require.Equal(t, path, line, "%s: the first statement", name)
				break
			}
			rest := strings.ReplaceAll(strings.Replace(half, path, "", 1), creation, "")
			require.NotContains(t, rest, "{{", "%s", name)
			require.NotContains(t, rest, "}}", "%s", name)
		}
	}
}
