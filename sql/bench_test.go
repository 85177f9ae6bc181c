package sql_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// purgeLoad says what of a log is purged, and under which conditions.
type purgeLoad struct {
	name     string
	part     float64 // of the rows
	snapshot bool    // an old snapshot is held, so that no deleted row can be removed
	forget   bool    // where the last step ended is forgotten before the next
}

var purgeLoads = []purgeLoad{
	{name: "half", part: 0.5},
	{name: "all", part: 1},
	{name: "half with an old snapshot", part: 0.5, snapshot: true},
	{name: "half without memory", part: 0.5, forget: true},
	{name: "half without memory with an old snapshot", part: 0.5, forget: true, snapshot: true},
}

// purgeSizes say how much a measurement does.
type purgeSizes struct {
	rows  int
	quiet time.Duration // in which nothing is purged, for comparison
}

// latencies are those of a storer.
type latencies struct{ p99, highest time.Duration }

type purgeFigures struct {
	rate         float64 // rows deleted a second
	steps        []time.Duration
	quiet, purge latencies // of a storer, without and with the purge
	looks        []string  // how long it took to find the beginning of the log
}

// BenchmarkPurge purges a log while a storer stores small transactions all the time. No step should hold it
// up for more than 50 ms. It also measures how long catchup_bounds, a page, and a look that begins where the
// last purge ended take: before, right after the purge, and after a vacuum (autovacuum is off).
//
// MILLRACE_BENCH_ROWS is the size of the log (2,000,000 rows of about 300 bytes).
func BenchmarkPurge(b *testing.B) {
	with := purgeSizes{rows: 2_000_000, quiet: 3 * time.Second}
	if testing.Short() {
		with = purgeSizes{rows: 20_000, quiet: 100 * time.Millisecond}
	}
	if text := os.Getenv("MILLRACE_BENCH_ROWS"); text != "" {
		var err error
		with.rows, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	l := newPurgeLab(b, pgtest.Options{
		Durable: true, Settings: []string{"autovacuum=off", "shared_buffers=256MB", "max_wal_size=4GB"},
	}, with)
	for _, load := range purgeLoads {
		b.Run(strings.ReplaceAll(load.name, " ", "-"), func(b *testing.B) {
			var f purgeFigures
			for b.Loop() {
				f = l.measure(b, load)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(f.rate, "rows/s")
			b.ReportMetric(float64(len(f.steps)), "steps")
			for name, duration := range map[string]time.Duration{
				"step-p50": f.steps[len(f.steps)/2], "step-max": f.steps[len(f.steps)-1],
				"store-p99": f.purge.p99, "store-max": f.purge.highest,
				"quiet-store-p99": f.quiet.p99, "quiet-store-max": f.quiet.highest,
			} {
				b.ReportMetric(float64(duration.Microseconds())/1000, name+"-ms")
			}
			for _, line := range f.looks {
				b.Log(line)
			}
		})
	}
}

// The benchmark runs, and deletes what it should.
func TestPurgeBenchmark(t *testing.T) {
	t.Parallel()
	l := newPurgeLab(t, pgtest.Options{}, purgeSizes{rows: 3000, quiet: 20 * time.Millisecond})
	for _, load := range []purgeLoad{purgeLoads[1], purgeLoads[4]} { // all that they differ in
		f := l.measure(t, load)
		require.Len(t, f.steps, 1)
		require.Positive(t, f.rate)
		require.Positive(t, f.quiet.highest)
	}
}

// purgeLab has a server, and a log on it to be copied for each measurement.
type purgeLab struct {
	server *pgtest.Server
	admin  *pgx.Conn
	with   purgeSizes
	copies int
}

const (
	benchTemplate = "purge_template"
	benchRowsEach = 10 // rows of a transaction
)

// benchWatermark is that of the n-th transaction, with as many digits for all of them.
func benchWatermark(n int) string { return "7" + strconv.Itoa(10_000_000+n) }

func newPurgeLab(t testing.TB, options pgtest.Options, with purgeSizes) *purgeLab {
	t.Helper()
	server, err := pgtest.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	l := &purgeLab{server: server, with: with}
	l.admin = l.connect(t, "postgres")
	l.exec(t, l.admin, `create database `+benchTemplate)
	conn := l.connect(t, benchTemplate)
	require.NoError(t, sql.Migrate(t.Context(), conn, pgtest.Schema))
	l.exec(t, conn, `select ensure_replication_config('01', '{p}', '01')`)
	l.exec(t, conn, `select assume_ownership('a/1', null, '01', null)`)
	// Never analysed, as a log may be that grew quickly.
	l.exec(t, conn, `
		insert into "changeLog" (watermark, pos, change, precommit)
		select '7' || (10000000 + n / $2), n % $2,
			('{"tag":"insert","relation":{"schema":"public","name":"t"},"new":{"id":' || n || ',"text":"' || repeat('x', 230) || '"}}')::json,
			case when n % $2 = $2 - 1 then '7' || (10000000 + n / $2) end
		from generate_series(0, $1 - 1) as n`, with.rows, benchRowsEach)
	l.exec(t, conn, `update "replicationState" set "lastWatermark" = (select max(watermark) from "changeLog")`)
	require.NoError(t, conn.Close(t.Context()))
	return l
}

func (l *purgeLab) connect(t testing.TB, database string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(l.server.URL(database))
	require.NoError(t, err)
	config.RuntimeParams["search_path"] = pgtest.Schema
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func (l *purgeLab) exec(t testing.TB, conn db.DBTX, statement string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), statement, args...)
	require.NoError(t, err)
}

// measure copies the log and purges the copy.
func (l *purgeLab) measure(t testing.TB, load purgeLoad) (f purgeFigures) {
	t.Helper()
	l.copies++
	name := "purge_" + strconv.Itoa(l.copies)
	l.exec(t, l.admin, `create database `+name+` template `+benchTemplate+` strategy file_copy`)
	defer l.exec(t, l.admin, `drop database `+name+` with (force)`)
	purger, looker, holder := l.connect(t, name), l.connect(t, name), l.connect(t, name)
	f.looks = append(f.looks, l.look(t, looker, "before"))
	if load.snapshot {
		l.exec(t, holder, `begin isolation level repeatable read`)
		l.exec(t, holder, `select from pg_class`)
	}
	l.exec(t, l.admin, `checkpoint`)

	s := storer{conn: l.connect(t, name), next: l.with.rows / benchRowsEach}
	f.quiet = s.during(t, func() {
		timer := time.NewTimer(l.with.quiet)
		defer timer.Stop()
		<-timer.C
	})

	before := benchWatermark(int(float64(l.with.rows/benchRowsEach) * load.part))
	var deleted int64
	var took time.Duration
	f.purge = s.during(t, func() {
		for done := false; !done; {
			if load.forget {
				l.exec(t, purger, `delete from progress`)
			}
			begun := time.Now()
			row, err := queries.PurgeChangeLog(t.Context(), purger, db.PurgeChangeLogParams{
				Before: before, Owner: "a/1", MaxRows: 10_000, ReplicaVersion: "01",
			})
			require.NoError(t, err)
			f.steps = append(f.steps, time.Since(begun))
			took += f.steps[len(f.steps)-1]
			deleted += row.Deleted
			done = row.Done
		}
	})
	slices.Sort(f.steps)
	f.rate = float64(deleted) / took.Seconds()

	// The seed went, too.
	require.InDelta(t, float64(l.with.rows)*load.part, deleted, benchRowsEach)
	f.looks = append(f.looks, l.look(t, looker, "after the purge"))
	if load.snapshot {
		l.exec(t, holder, `commit`)
		f.looks = append(f.looks, l.look(t, looker, "without the snapshot"))
	}
	l.exec(t, looker, `vacuum "changeLog"`)
	f.looks = append(f.looks, l.look(t, looker, "after a vacuum"))
	return f
}

// look finds the beginning of the log in several ways, and tells how long the first time and the next ones took.
func (l *purgeLab) look(t testing.TB, conn *pgx.Conn, when string) string {
	t.Helper()
	line := fmt.Sprintf("%-20s", when)
	for _, way := range []struct{ name, statement string }{
		// First, since whoever comes later finds the way cleared.
		{"from the last purge", `
			select min(l.watermark) from "changeLog" as l
			where l.watermark >= coalesce((select p.purged_watermark from progress as p), '')`},
		{"bounds", `select from catchup_bounds()`},
		{"page", strings.NewReplacer("$1", "'z'", "$2", "0", "$3", "100").Replace(roundsPage)},
	} {
		var all []time.Duration
		for range 4 {
			begun := time.Now()
			l.exec(t, conn, way.statement)
			all = append(all, time.Since(begun).Round(10*time.Microsecond))
		}
		line += fmt.Sprintf("; %s: %v, then %v", way.name, all[0], slices.Sorted(slices.Values(all[1:]))[1])
	}
	return line
}

// storer stores transactions of three rows, one after the other.
type storer struct {
	conn *pgx.Conn
	next int
}

// during stores as long as work takes.
func (s *storer) during(t testing.TB, work func()) latencies {
	t.Helper()
	over, result := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var all []time.Duration
		defer func() { result <- all }()
		change := fmt.Appendf(nil, `{"tag":"insert","text":%q}`, strings.Repeat("x", 270))
		for {
			select {
			case <-over:
				return
			default:
			}
			w := benchWatermark(s.next)
			s.next++
			begun := time.Now()
			row, err := queries.StoreChanges(t.Context(), s.conn, db.StoreChangesParams{
				Owner: "a/1", ReplicaVersion: "01", ExpectedHead: "01",
				Watermarks: []string{w, w, w}, Positions: []int64{0, 1, 2}, Changes: [][]byte{change, change, change},
				Precommits: []string{"", "", w}, LastWatermark: w,
			})
			if err != nil || row.Stored != 3 {
				t.Errorf("store %s: %d rows, %v", w, row.Stored, err)
				return
			}
			all = append(all, time.Since(begun))
		}
	}()
	work()
	close(over)
	all := <-result
	require.NotEmpty(t, all)
	slices.Sort(all)
	return latencies{p99: all[len(all)*99/100], highest: all[len(all)-1]}
}
