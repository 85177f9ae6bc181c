package postgres_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/change"
	"millrace/streamer/metrics"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

// counter is a sink that keeps nothing. It ends its context after a number of commits.
type counter struct {
	buf      []byte
	last     string
	open     string
	dirty    int
	rows     int
	commits  int
	publicly int
	want     int
	done     context.CancelFunc
}

func (c *counter) Spare(n int) []byte {
	if cap(c.buf) < n {
		c.buf = make([]byte, 0, n)
	}
	return c.buf[:0]
}
func (c *counter) Begin(_ []byte, w string)    { c.open = w; c.dirty++ }
func (c *counter) Data(_ []byte, _ change.Tag) { c.rows++; c.dirty++ }

func (c *counter) Commit([]byte) {
	c.last = c.open
	c.dirty++
	if c.commits++; c.commits == c.want {
		c.done()
	}
}
func (c *counter) Abort()       {}
func (c *counter) Shown(string) {}

func (c *counter) Publish() bool {
	some := c.dirty > 0
	if some {
		c.publicly++
	}
	c.dirty = 0
	return some
}
func (c *counter) Pending() int          { return c.dirty }
func (c *counter) Room() <-chan struct{} { return nil }
func (c *counter) Restart() bool         { return false }
func (c *counter) Last() string          { return c.last }

func BenchmarkStream(b *testing.B) {
	for name, c := range map[string]struct {
		statement string
		commits   int
		rows      int
	}{
		"small transactions": {`do $$ begin for i in 1..20000 loop insert into t values (i, repeat('x', 150)); commit; end loop; end $$`, 20000, 20000},
		"large transaction":  {`insert into t select i, repeat('x', 150) from generate_series(1, 200000) as i`, 1, 200000},
	} {
		b.Run(name, func(b *testing.B) {
			db := pgtest.Empty(b)
			conn, err := pgx.Connect(b.Context(), db.URL)
			require.NoError(b, err)
			defer conn.Close(context.Background())
			_, err = conn.Exec(b.Context(), `create table t (id int primary key, v text); create publication p for table t`)
			require.NoError(b, err)
			up, err := postgres.NewUpstream(db.URL)
			require.NoError(b, err)
			slot := "millrace_" + db.Name
			lsn, err := up.CreateSlot(b.Context(), slot, 0)
			require.NoError(b, err)
			_, err = conn.Exec(b.Context(), c.statement)
			require.NoError(b, err)
			source, err := postgres.New(postgres.Config{
				Upstream: up, Slot: slot, Publications: []string{"p"},
				Check: func(context.Context, string) error { return nil }, Metrics: metrics.New(prometheus.NewRegistry()),
			})
			require.NoError(b, err)
			end := ""
			require.NoError(b, conn.QueryRow(b.Context(), `select pg_current_wal_insert_lsn()::text`).Scan(&end))
			publishes, limit := 0, time.Duration(0)
			for b.Loop() { // nothing is confirmed, so that everything comes again
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				sink := &counter{last: watermark.FromLSN(postgres.ReplicaVersion(lsn)), want: c.commits, done: cancel}
				require.NoError(b, source.Run(ctx, sink))
				cancel()
				require.Equal(b, c.rows, sink.rows)
				publishes += sink.publicly

				b.StopTimer()
				limit += recvlogical(b, db, conn, slot, end)
				b.StartTimer()
			}
			b.ReportMetric(float64(c.rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(limit.Seconds()/b.Elapsed().Seconds(), "of-pg_recvlogical")
			b.ReportMetric(float64(publishes)/float64(b.N), "publishes/op")
		})
	}
}

// recvlogical is how long Postgres's own tool takes to receive the same, from a copy of
// the slot.
func recvlogical(b *testing.B, db *pgtest.DB, conn *pgx.Conn, slot, end string) time.Duration {
	b.Helper()
	copied := slot + "_copy"
	_, err := conn.Exec(b.Context(), `select pg_copy_logical_replication_slot($1::text, $2::text)`, slot, copied)
	require.NoError(b, err)
	began := time.Now()
	out, err := exec.CommandContext(b.Context(), filepath.Join(db.Server.BinDir(), "pg_recvlogical"), "-d", db.URL, "-S", copied,
		"--start", "--endpos", end, "-f", "/dev/null", "-o", "proto_version=1", "-o", "publication_names=p").CombinedOutput()
	took := time.Since(began)
	require.NoError(b, err, string(out))
	_, err = conn.Exec(b.Context(), `select pg_drop_replication_slot($1)`, copied)
	require.NoError(b, err)
	return took
}
