package db_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// schema.sql is what the migrations come to, for people who read a change of them.
// It is made anew, beside what sqlc makes, by:
//
//go:generate go test -count=1 -run ^TestSchema$ . -args -rewrite
var rewrite = flag.Bool("rewrite", false, "write schema.sql instead of comparing it")

func TestMain(m *testing.M) { pgtest.Main(m) }

// Other versions write the same schema in other words, so schema.sql is by
// version 15 alone.
const dumpVersion = "150"

func TestSchema(t *testing.T) {
	t.Parallel()

	database := pgtest.New(t)
	var version string
	require.NoError(t, database.Conn(t).QueryRow(t.Context(), `show server_version_num`).Scan(&version))
	if !strings.HasPrefix(version, dumpVersion) {
		require.False(t, *rewrite, "schema.sql is written by PostgreSQL 15 only")
		return // nothing to compare with: its pg_dump, if it has one, has other words
	}

	got := dump(t.Context(), t, database)
	require.Contains(t, got, `CREATE FUNCTION cdc.store_changes(`)
	if *rewrite {
		require.NoError(t, os.WriteFile("schema.sql", []byte(got), 0o644))
	}
	want, err := os.ReadFile("schema.sql")
	require.NoError(t, err)
	require.Equal(t, string(want), got, "make generate writes it anew")
}

// dump leaves out what differs from run to run: versions, and the two lines with
// a random word.
func dump(ctx context.Context, t *testing.T, database *pgtest.DB) string {
	t.Helper()
	command := exec.CommandContext(ctx, filepath.Join(database.Server.BinDir(), "pg_dump"),
		"--schema-only", "--no-owner", "--schema="+pgtest.Schema, "--dbname="+database.URL)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	require.NoError(t, command.Run(), errs.String())

	var kept []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, `\restrict `) || strings.HasPrefix(line, `\unrestrict `) ||
			strings.HasPrefix(line, "-- Dumped ") {
			continue
		}
		kept = append(kept, line)
	}
	return strings.TrimSpace(strings.Join(kept, "")) + "\n"
}
