package streamer_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/snapshot"
)

// copies is how many tables are being copied.
const copies = `select count(*)::int from pg_stat_activity where datname = current_database() and query like 'copy %' and state = 'active'`

// killed kills the program, and waits until the server has noticed.
func killed(t *testing.T, c *child, conn *pgx.Conn) {
	t.Helper()
	c.signal(syscall.SIGKILL)
	require.Equal(t, -1, c.code(t, endurance))
	becomes(t, endurance, 0, conn, copies)
}

// copying starts the program, and returns when it is in the middle of a table.
func copying(t *testing.T, program string, db *pgtest.DB, conn *pgx.Conn, folder string) (*child, *line) {
	t.Helper()
	slow, through := lineTo(t, db.URL)
	slow.rate.Store(300_000)
	c := spawned(t, program, "snapshot", "--upstream-db", through, "--change-db", db.URL,
		"--out", folder, "--compress", "none", "--jobs", "1")
	becomes(t, endurance, 1, conn, copies)
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(folder, "*.tmp"))
		require.NoError(t, err)
		for _, name := range files {
			if info, err := os.Stat(name); err == nil && info.Size() > 0 {
				return true
			}
		}
		return false
	}, endurance, glimpse, "the log: %s", c.log)
	return c, slow
}

// TestSnapshotIsInterrupted ends the program in the middle of the copy, in every way.
func TestSnapshotIsInterrupted(t *testing.T) {
	t.Parallel()
	program := builtCommand(t)
	db, conn := shop(t)
	do(t, conn, `create table public.more (like public.item including all)`)
	do(t, conn, `insert into public.item select i, repeat(md5(i::text), 10) from generate_series(1, 20000) as i`)
	do(t, conn, `insert into public.more select i, repeat(md5(i::text), 10) from generate_series(1, 20000) as i`)
	serving(t, rigConfig(db))

	folder := filepath.Join(t.TempDir(), "copy")
	t.Run("killed", func(t *testing.T) {
		c, _ := copying(t, program, db, conn, folder)
		killed(t, c, conn)
		_, err := snapshot.Open(folder)
		require.ErrorIs(t, err, snapshot.ErrDamaged)
		require.FileExists(t, filepath.Join(folder, "in-progress"))
	})
	t.Run("stopped, on what that has left", func(t *testing.T) {
		c, _ := copying(t, program, db, conn, folder)
		second := spawned(t, program, "snapshot", "--upstream-db", db.URL, "--out", folder)
		require.Equal(t, 1, second.code(t, endurance))
		require.Contains(t, second.log.String(), "is being written by another one (process ")
		c.signal(syscall.SIGINT)
		require.Equal(t, 1, c.code(t, endurance))
		require.Contains(t, c.log.String(), "interrupted: there is no snapshot in "+folder)
		files, err := filepath.Glob(filepath.Join(folder, "*"))
		require.NoError(t, err)
		require.Empty(t, files)
		becomes(t, endurance, 0, conn, copies)
	})
	t.Run("killed, and then done", func(t *testing.T) {
		c, _ := copying(t, program, db, conn, folder)
		killed(t, c, conn)
		c, slow := copying(t, program, db, conn, folder)
		slow.rate.Store(0)
		require.Zero(t, c.code(t, endurance), "%s", c.log)
		reader, err := snapshot.Open(folder)
		require.NoError(t, err)
		require.NoError(t, reader.Verify(t.Context()))
		require.NoFileExists(t, filepath.Join(folder, "in-progress"))
		files, err := filepath.Glob(filepath.Join(folder, "*"))
		require.NoError(t, err)
		require.Len(t, files, 3)
	})
	t.Run("refused where there is one", func(t *testing.T) {
		c := spawned(t, program, "snapshot", "--upstream-db", db.URL, "--out", folder)
		require.Equal(t, 1, c.code(t, endurance))
		require.Contains(t, c.log.String(), "has a snapshot already")
	})
	becomes(t, endurance, 1, conn, slotsOf) // the streamer's
}
