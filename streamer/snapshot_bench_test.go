package streamer_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer"
)

// BenchmarkSnapshot measures snapshots of one table beside what the server sends by
// itself, in the same run, and prints a table. Nothing fails because of a figure.
func BenchmarkSnapshot(b *testing.B) {
	rows := 1_000_000
	if testing.Short() {
		rows = 10_000
	}
	for b.Loop() {
		figures := measureSnapshots(b, rows, 3)
		writeTable(b, os.Stdout, figures)
		for _, f := range figures {
			b.ReportMetric(f.ours/f.best, f.goal+"-ratio")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// The benchmark runs, and every row is copied.
func TestSnapshotBenchmark(t *testing.T) {
	t.Parallel()
	figures := measureSnapshots(t, 2000, 1)
	require.Len(t, figures, 3)
	writeTable(t, t.Output(), figures)
}

// measureSnapshots copies a table in each way, and takes the medians.
func measureSnapshots(t testing.TB, rows, rounds int) (figures []figure) {
	t.Helper()
	l := newLab(t)
	l.load(1, rows)
	l.exec(l.up, `vacuum (freeze, analyze) bench`)
	l.exec(l.up, `checkpoint`)
	kinds := []string{"zstd", "gzip", "none"}
	var limit []time.Duration
	ours := map[string][]time.Duration{}
	for range rounds {
		for _, kind := range kinds {
			limit = append(limit, l.copyTable())
			ours[kind] = append(ours[kind], l.snapshot(kind))
		}
	}
	for _, kind := range kinds {
		figures = append(figures, figure{
			work: fmt.Sprintf("snapshot of %d rows, %s", rows, kind), unit: "rows/s",
			limit: "copy … to stdout", best: per(float64(rows), median(limit)), ours: per(float64(rows), median(ours[kind])),
			goal: kind,
		})
	}
	return figures
}

// copyTable is how long the server takes to send the table to nobody.
func (l *lab) copyTable() time.Duration {
	l.t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(l.t, err)
	defer null.Close()
	c := exec.CommandContext(l.t.Context(), "psql", "--no-psqlrc", "--quiet", "--command", "copy bench to stdout", l.server.URL("up"))
	c.Stdout, c.Stderr = null, os.Stderr
	began := time.Now()
	require.NoError(l.t, c.Run())
	return time.Since(began)
}

// snapshot is how long all of a snapshot takes, until the disk has it.
func (l *lab) snapshot(compression string) time.Duration {
	l.t.Helper()
	folder := filepath.Join(l.t.TempDir(), "copy")
	began := time.Now()
	require.NoError(l.t, streamer.Snapshot(l.t.Context(), streamer.SnapshotConfig{
		UpstreamDB: l.server.TCPURL("up"), ChangeDB: l.server.TCPURL("log"), Folder: folder, Compression: compression,
	}))
	took := time.Since(began)
	require.NoError(l.t, os.RemoveAll(folder))
	return took
}
