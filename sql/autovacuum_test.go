package sql_test

import (
	"errors"
	"io/fs"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
)

// The settings of the log come on top of what an operator has set on a table of the peer's, and go with a dump.
func TestAutovacuumSettings(t *testing.T) {
	t.Parallel()

	ours := []string{
		"autovacuum_vacuum_scale_factor=0.02", "autovacuum_vacuum_insert_scale_factor=0.05", "autovacuum_analyze_scale_factor=0.05",
	}
	options := func(conn *pgx.Conn) []string {
		t.Helper()
		return objects(t, conn, `
			select c.relname || ' ' || unnest(c.reloptions)
			from pg_class as c
			where c.relnamespace = 'cdc'::regnamespace and c.relkind = 'r'`)
	}
	want := []string{}
	for _, option := range ours {
		want = append(want, "changeLog "+option)
	}
	require.ElementsMatch(t, want, options(pgtest.New(t).Conn(t)), "and on no other table")

	adopted := pgtest.Empty(t)
	conn := adopted.Conn(t)
	exec(t, conn, `
		create schema cdc;
		create table cdc."changeLog" (watermark text, pos int8, change json not null, precommit text, primary key (watermark, pos))
			with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.5, autovacuum_vacuum_cost_delay = 1);
		insert into cdc."changeLog" values ('01', 0, '{}', null)`)
	require.NoError(t, sql.Migrate(t.Context(), conn, "cdc"))
	want = append(want, "changeLog fillfactor=90", "changeLog autovacuum_vacuum_cost_delay=1")
	require.ElementsMatch(t, want, options(conn))

	program := filepath.Join(adopted.Server.BinDir(), "pg_dump")
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		return // the programs of some servers come without it
	}
	dumped, err := osexec.CommandContext(t.Context(), program, "--schema-only", "--schema=cdc", "--dbname="+adopted.URL).Output()
	require.NoError(t, err)
	restored := pgtest.Empty(t)
	exec(t, restored.Conn(t), regexp.MustCompile(`(?m)^\\(un)?restrict .*\n`).ReplaceAllString(string(dumped), ""))
	require.ElementsMatch(t, want, options(restored.Conn(t)))
	require.Equal(t, strings.Split(dump(t, adopted, "cdc"), "\n"), strings.Split(dump(t, restored, "cdc"), "\n"), "and so does all the rest")
}
