package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const snapshotTable = "00001-public-item.copy"

// writeSnapshot makes a folder by hand, and returns what must be printed of it.
func writeSnapshot(t *testing.T, version, watermark string, rows int) (folder, want string) {
	t.Helper()
	folder = t.TempDir()
	var text, lines strings.Builder
	fmt.Fprintf(&lines, `["begin",{"tag":"begin","json":"s"},{"commitWatermark":"%s"}]`+"\n", watermark)
	for i := range rows {
		fmt.Fprintf(&text, "%d\tNaN\n", i)
		fmt.Fprintf(&lines, `["data",{"tag":"insert","relation":{"schema":"public","name":"item","rowKey":{"columns":["id"],"type":"default"}},"new":{"id":%d,"f":null}}]`+"\n", i)
	}
	fmt.Fprintf(&lines, `["commit",{"tag":"commit","commitTimeMs":1709210096789},{"watermark":"%s"}]`+"\n", watermark)
	sum := sha256.Sum256([]byte(text.String()))
	manifest := func(digest string) string {
		return fmt.Sprintf(`{"digest": "%s", "format": 1, "replica_version": "%s", "watermark": "%s", "created_at": "2024-02-29T12:34:56.789Z",
"publications": ["p"], "compression": "none", "tables": [{"schema": "public", "name": "item", "replica_identity": "default",
"columns": [{"name": "id", "type_oid": 23, "type": "integer", "key": true}, {"name": "f", "type_oid": 701, "type": "double precision"}],
"file": "%s", "rows": %d, "raw_bytes": %d, "bytes": %[6]d, "sha256": "%[7]x"}]}`,
			digest, version, watermark, snapshotTable, rows, text.Len(), sum)
	}
	digest := sha256.Sum256([]byte(manifest(strings.Repeat("0", 64))))
	require.NoError(t, os.WriteFile(filepath.Join(folder, snapshotTable), []byte(text.String()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "manifest.json"), []byte(manifest(hex.EncodeToString(digest[:]))), 0o600))
	return folder, lines.String()
}

func TestTailOfASnapshot(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	s.add("121", 1) // the snapshot has it
	folder, rows := writeSnapshot(t, replicaVersion, "122", 3)
	after := s.add("123", 2)
	file := filepath.Join(t.TempDir(), "state")
	tail := func() *program {
		return command(t, nil, "tail", "--url", s.url, "--snapshot", folder, "--state", file).start()
	}
	p := tail()
	require.Equal(t, rows+after, p.stdout.waitLines(t, 5+4))
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait(), p.stderr.String())
	require.Equal(t, state{ReplicaVersion: replicaVersion, Watermark: "123"}, readState(t, file))

	// They are not printed again.
	more := s.add("124", 1)
	p = tail()
	require.Equal(t, more, p.stdout.waitLines(t, 3))
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
	require.Equal(t, more, p.stdout.String())
	require.Equal(t, []string{"122", "123"}, s.asked())

	// Not even if nothing came behind them.
	require.NoError(t, os.WriteFile(file, []byte(`{"replica_version":"120","watermark":"122"}`), 0o600))
	p = tail()
	require.Equal(t, after+more, p.stdout.waitLines(t, 4+3))
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
}

// The state is that of the snapshot's commit, though there is no server.
func TestTailOfASnapshotWithoutAServer(t *testing.T) {
	t.Parallel()
	folder, rows := writeSnapshot(t, "120", "122", 3)
	file := filepath.Join(t.TempDir(), "state")
	code, stdout, _ := invoke(t, nil, "tail", "--url", "ws://127.0.0.1:1", "--snapshot", folder, "--state", file, "--for", "1s", "--non-finite-strings")
	require.Equal(t, 0, code)
	require.Equal(t, strings.ReplaceAll(rows, `"f":null`, `"f":"NaN"`), stdout)
	require.Equal(t, state{ReplicaVersion: "120", Watermark: "122"}, readState(t, file))
}

func TestTailOfASnapshotThatIsRefused(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	folder, _ := writeSnapshot(t, replicaVersion, "122", 3)
	other, _ := writeSnapshot(t, "110", "122", 3)
	damaged, _ := writeSnapshot(t, replicaVersion, "122", 3)
	require.NoError(t, os.WriteFile(filepath.Join(damaged, snapshotTable), []byte("0\tNaN\n1\tNaN\n2\t1.5\n"), 0o600))
	half, _ := writeSnapshot(t, replicaVersion, "122", 3)
	require.NoError(t, os.Remove(filepath.Join(half, "manifest.json")))
	tests := []struct {
		name, folder, state, want string
		printed                   bool
	}{
		{name: "damaged", folder: damaged, want: "not a whole snapshot: " + snapshotTable + " has the digest"},
		{name: "half", folder: half, want: "there is no manifest.json"},
		{name: "none", folder: filepath.Join(half, "nowhere"), want: "there is no manifest.json"},
		{name: "none any more", folder: half, state: `{"replica_version":"120","watermark":"122"}`, want: "to go on from there, leave --snapshot out"},
		{name: "older state", folder: folder, state: `{"replica_version":"120","watermark":"121"}`, want: "it belongs to another copy"},
		{name: "state of another history", folder: folder, state: `{"replica_version":"110","watermark":"123"}`, want: "it belongs to another copy"},
		{name: "snapshot of another history", folder: other, want: "make a new snapshot, remove the state file", printed: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "state")
			if tt.state != "" {
				require.NoError(t, os.WriteFile(file, []byte(tt.state), 0o600))
			}
			code, stdout, stderr := invoke(t, nil, "tail", "--url", s.url, "--snapshot", tt.folder, "--state", file)
			require.Equal(t, exitFailure, code, stderr)
			require.Contains(t, stderr, tt.want)
			if tt.printed {
				require.Equal(t, 5, strings.Count(stdout, "\n"))
				return
			}
			require.Empty(t, stdout)
			kept, err := os.ReadFile(file)
			if tt.state == "" {
				require.ErrorIs(t, err, os.ErrNotExist)
			} else {
				require.Equal(t, tt.state, string(kept))
			}
		})
	}
}

// reading starts a tail of a large snapshot whose output is read by the test.
func reading(t *testing.T, file string) (p *program, output *bufio.Reader, hangUp func()) {
	t.Helper()
	folder, _ := writeSnapshot(t, "120", "122", 100_000)
	p = command(t, nil, "tail", "--url", "ws://127.0.0.1:1", "--snapshot", folder, "--state", file)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	p.cmd.Stdout = w
	p.start()
	require.NoError(t, w.Close())
	output = bufio.NewReader(r)
	line, err := output.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, `["begin",`)
	return p, output, func() { require.NoError(t, r.Close()) }
}

// What is cut off ends with a rollback, and comes again from its beginning.
func TestTailOfASnapshotThatIsStopped(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state")
	p, output, _ := reading(t, file)
	p.signal(syscall.SIGTERM)
	rest, err := io.ReadAll(output)
	require.NoError(t, err)
	require.Equal(t, 0, p.wait(), p.stderr.String())
	require.True(t, strings.HasSuffix(string(rest), "\n"+rollbackLine))
	require.NotContains(t, string(rest), `["commit",`)
	require.NoFileExists(t, file)
}

func TestTailOfASnapshotThatIsKilled(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state")
	p, _, _ := reading(t, file)
	p.signal(syscall.SIGKILL)
	require.Equal(t, -1, p.wait())
	require.NoFileExists(t, file)
}

func TestTailOfASnapshotWhenItsReaderGoes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state")
	p, _, hangUp := reading(t, file)
	hangUp()
	require.Equal(t, 0, p.wait(), p.stderr.String())
	require.Empty(t, p.stderr.String())
	require.NoFileExists(t, file)
}
