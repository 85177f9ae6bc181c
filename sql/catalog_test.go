package sql_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
)

// objects answers names, for checks that should find none.
func objects(t *testing.T, conn *pgx.Conn, query string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), query)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

func TestCatalog(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	tests := []struct{ name, query string }{
		{"every function has a comment that says what it returns, raises and locks", `
			select p.oid::regprocedure::text from pg_proc p
			where p.pronamespace = 'cdc'::regnamespace
				and coalesce(obj_description(p.oid, 'pg_proc'), '') !~ '^.+\nReturns: .+\nErrors: .+\nLocks: .+$'`},
		{"every table and view has a comment", `
			select c.relname::text from pg_class c
			where c.relnamespace = 'cdc'::regnamespace and c.relkind in ('r', 'v', 'm', 'p') and c.relname <> 'schema_version'
				and obj_description(c.oid, 'pg_class') is null`},
		{"every column has a comment", `
			select c.relname || '.' || a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
			where c.relnamespace = 'cdc'::regnamespace and c.relkind in ('r', 'v', 'm', 'p') and c.relname <> 'schema_version'
				and a.attnum > 0 and not a.attisdropped and col_description(c.oid, a.attnum) is null`},
		{"the schema and every type of ours have a comment", `
			select 'schema' where obj_description('cdc'::regnamespace, 'pg_namespace') is null
			union all
			select t.typname::text from pg_type t
			where t.typnamespace = 'cdc'::regnamespace and t.typtype in ('e', 'd', 'r') and obj_description(t.oid, 'pg_type') is null`},
		{"public may execute nothing", `
			select p.oid::regprocedure::text from pg_proc p
			where p.pronamespace = 'cdc'::regnamespace
				and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))`},
		{"public may touch no table", `
			select c.relname::text from pg_class c, aclexplode(c.relacl) a
			where c.relnamespace = 'cdc'::regnamespace and a.grantee = 0`},
		{"every function pins its search path, or its body is bound", `
			select p.oid::regprocedure::text from pg_proc p
			where p.pronamespace = 'cdc'::regnamespace and p.prosqlbody is null
				and 'search_path="cdc", pg_temp' <> all (coalesce(p.proconfig, '{}'))`},
		{"no function that reads the log or the state is stable or immutable", `
			select p.oid::regprocedure::text from pg_proc p
			where p.pronamespace = 'cdc'::regnamespace and p.provolatile <> 'v'
				and p.proname not in ('encode_watermark', 'decode_watermark', '_functions_of')`},
		{"functions are named verb_object or _verb_object, and have named arguments", `
			select p.oid::regprocedure::text from pg_proc p
			where p.pronamespace = 'cdc'::regnamespace
				and (p.proname !~ '^_?[a-z]+(_[a-z]+)+$' or (p.pronargs > 0 and '' = any (p.proargnames)))`},
		{"no function is overloaded", `
			select p.proname::text from pg_proc p where p.pronamespace = 'cdc'::regnamespace group by 1 having count(*) > 1`},
		{"indexes and constraints have their kind at the end", `
			select c.relname::text from pg_class c
			where c.relnamespace = 'cdc'::regnamespace and c.relkind = 'i' and c.relname !~ '_(pkey|key|idx)$'
			union all
			select k.conname::text from pg_constraint k
			where k.connamespace = 'cdc'::regnamespace and k.contype = 'c' and k.conname !~ '_check$'`},
		{"watermarks sort by bytes", `
			select c.relname || '.' || a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
			where c.relnamespace = 'cdc'::regnamespace and c.relkind = 'r'
				and (a.attname ~* 'watermark$' or a.attname = 'precommit') and a.attcollation <> '"C"'::regcollation`},
		{"times have a zone and end in _at", `
			select c.relname || '.' || a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
			where c.relnamespace = 'cdc'::regnamespace and c.relkind in ('r', 'v') and a.attnum > 0
				and (a.attname ~ '_at$') <> (a.atttypid = 'timestamptz'::regtype)`},
	}
	// A name as Zero gives it has a table more.
	require.NoError(t, sql.Migrate(t.Context(), conn, "zero_0/cdc"))
	inZeros := strings.NewReplacer(`'cdc'::regnamespace`, `'"zero_0/cdc"'::regnamespace`, `"cdc", pg_temp`, `"zero_0/cdc", pg_temp`)
	for _, tt := range tests { // one connection: one after the other
		require.Empty(t, objects(t, conn, tt.query), tt.name)
		require.Empty(t, objects(t, conn, inZeros.Replace(tt.query)), "in zero_0/cdc: "+tt.name)
	}
	require.GreaterOrEqual(t, len(objects(t, conn, `
		select p.proname::text from pg_proc p where p.pronamespace = 'cdc'::regnamespace`)), 20, "the checks above see something")
}

// What the outside may call is described, and Go can call it.
func TestFunctionsAreDescribedAndQueried(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../docs/sql-api.md")
	require.NoError(t, err)
	var calls strings.Builder
	files, err := filepath.Glob("../queries/*.sql")
	require.NoError(t, err)
	for _, name := range files {
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		calls.Write(content)
	}

	conn := pgtest.New(t).Conn(t)
	for _, name := range objects(t, conn, `
		select p.proname::text from pg_proc p where p.pronamespace = 'cdc'::regnamespace and p.proname !~ '^_'`) {
		require.Regexp(t, "(?m)^### `"+regexp.QuoteMeta(name)+"`", string(page))
		switch name {
		case "lock_holders", "terminate_lock_holders", "clear_reset_required", "forget_backup", "grant_access", "encode_watermark", "decode_watermark":
			continue // for people
		}
		require.Contains(t, calls.String(), name+"(")
	}
}
