package streamer_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/snapshot"
)

// A disk that is full in the middle of a table: the program sees a small file system of
// its own, which goes with it.
func TestSnapshotOnAFullDisk(t *testing.T) {
	t.Parallel()
	program := builtCommand(t)
	db, conn := shop(t)
	serving(t, rigConfig(db))
	do(t, conn, `insert into public.item select i, md5(i::text) from generate_series(1, 100000) as i`)
	folder := t.TempDir()
	kept := filepath.Join(t.TempDir(), "kept")

	// What is left is copied out before the file system goes.
	const script = `mount -t tmpfs -o size=1m tmpfs "$1" && "$0" snapshot --upstream-db "$3" --out "$1" --compress none
		code=$?; cp -a "$1" "$2"; exit $code`
	c := exec.CommandContext(t.Context(), "sh", "-c", script, program, folder, kept, db.URL)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/"}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	}
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	require.Equal(t, 1, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), "no space left on device")
	require.NotContains(t, string(out), "snapshot written")
	files, err := os.ReadDir(kept)
	require.NoError(t, err)
	require.Empty(t, files, "the disk is not left full")
	_, err = snapshot.Open(kept)
	require.ErrorIs(t, err, snapshot.ErrDamaged)
}
