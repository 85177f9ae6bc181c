package streamer_test

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sizes say how much a measurement does.
type sizes struct {
	rounds       int // of what is read from a slot; the median counts
	transactions int // of one row each
	bigRows      int // of one transaction
	commits      time.Duration
	subscribers  int // of a fan-out
	live         int // transactions of a fan-out
	rate         int // transactions a second, where delays are measured
	delays       int // transactions whose delays are measured
	idle         int // subscribers that do nothing
}

var fullSizes = sizes{
	rounds: 3, transactions: 20_000, bigRows: 200_000, commits: 2 * time.Second,
	subscribers: 50, live: 10_000, rate: 100, delays: 1000, idle: 1000,
}

var smallSizes = sizes{
	rounds: 1, transactions: 200, bigRows: 3000, commits: 50 * time.Millisecond,
	subscribers: 5, live: 100, rate: 100, delays: 20, idle: 20,
}

// figure is one line of the table: what was reached beside what limits it, both measured
// in the same run.
type figure struct {
	work, limit string
	unit        string
	best, ours  float64
	goal        string
	cost        cost
}

// cost is what a streamer has used, and what the server has used for it.
type cost struct {
	own, server time.Duration // of processor time
	peak        int64         // resident bytes at most
}

// BenchmarkPipeline measures a whole streamer beside what PostgreSQL's own tools reach
// with the same work, and prints a table. Nothing fails because of a figure.
//
// MILLRACE_BENCH_ROUNDS is how often each load is measured (3), and
// MILLRACE_BENCH_PROFILES a folder for profiles of the streamer's processor time.
func BenchmarkPipeline(b *testing.B) {
	with := fullSizes
	if testing.Short() {
		with = smallSizes
	}
	if text := os.Getenv("MILLRACE_BENCH_ROUNDS"); text != "" {
		var err error
		with.rounds, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	for b.Loop() {
		figures := measure(b, with)
		writeTable(b, os.Stdout, figures)
		for i, f := range figures[:len(figures)-1] {
			b.ReportMetric(f.ours/max(f.best, 1), fmt.Sprintf("row-%d-ratio", i+1))
		}
	}
	b.ReportMetric(0, "ns/op")
}

// The benchmark runs, and everything that it sends arrives.
func TestPipelineBenchmark(t *testing.T) {
	t.Parallel()
	figures := measure(t, smallSizes)
	require.Len(t, figures, 9)
	for _, f := range figures {
		require.Positive(t, f.ours, f.work)
	}
	writeTable(t, t.Output(), figures)
}

// measure does all of it.
func measure(t testing.TB, with sizes) []figure {
	t.Helper()
	l := newLab(t)
	one := l.commits(with.commits)
	small := l.backlogs("small", with, with.transactions, 1)
	big := l.backlogs("big", with, 1, with.bigRows)
	txs, rows := float64(with.transactions), float64(with.bigRows)
	figures := []figure{
		{
			work: fmt.Sprintf("%d one-row transactions, received", with.transactions), unit: "tx/s",
			limit: "pg_recvlogical", best: per(txs, small.limit), ours: per(txs, small.received),
			goal: "≥ 0.75", cost: small.cost,
		},
		{
			work: "the same, stored durably", unit: "tx/s",
			limit: "one-row commits of one connection", best: one, ours: per(txs, small.stored),
			goal: "≥ 8", cost: small.cost,
		},
		{
			work: fmt.Sprintf("one transaction of %d rows, received", with.bigRows), unit: "rows/s",
			limit: "pg_recvlogical", best: per(rows, big.limit), ours: per(rows, big.arrived),
			goal: "≥ 0.75", cost: big.cost,
		},
		{
			work: "the same, stored durably", unit: "rows/s",
			limit: "pg_recvlogical", best: per(rows, big.limit), ours: per(rows, big.stored),
			goal: "≥ 0.6", cost: big.cost,
		},
		l.catchUp(with),
		l.fanOut(with),
		l.delay(with, 1),
		l.delay(with, with.subscribers),
		l.idle(with),
	}
	return figures
}

func per(n float64, d time.Duration) float64 { return n / d.Seconds() }

// backlog is what it took to work off what a slot held.
type backlog struct {
	limit    time.Duration // pg_recvlogical
	received time.Duration // from the first frame to the last
	arrived  time.Duration // from the start of the stream to the last frame
	stored   time.Duration // from the start of the stream to the head of the log
	cost     cost
}

// backlogs measures several times and returns the medians.
func (l *lab) backlogs(name string, with sizes, transactions, rows int) backlog {
	l.t.Helper()
	startup := l.startup()
	var limit, received, arrived, stored []time.Duration
	var all backlog
	for round := range with.rounds {
		b := l.backlog(name, transactions, rows, round%2 == 0)
		limit, received = append(limit, b.limit-startup), append(received, b.received)
		arrived, stored = append(arrived, b.arrived), append(stored, b.stored)
		all.cost = b.cost
		l.t.Logf("%s: limit %s, received %s, arrived %s, stored %s, processor time %s, the server's %s",
			name, b.limit-startup, b.received, b.arrived, b.stored, b.cost.own, b.cost.server)
	}
	all.limit, all.received, all.arrived, all.stored = median(limit), median(received), median(arrived), median(stored)
	return all
}

func (l *lab) backlog(name string, transactions, rows int, limitFirst bool) (b backlog) {
	l.t.Helper()
	l.refresh()
	from := l.head()
	l.slot("beside")
	end := l.load(transactions, rows)
	if limitFirst {
		b.limit = l.receive("beside", end)
		l.exec(l.up, `checkpoint`)
	}
	p := l.startProcess(name, true)
	reaches := l.watchHead()
	s := l.listen(p.address, from)
	s.status(l.t)
	taken, last, err := s.take(transactions*(rows+2), nil)
	require.NoError(l.t, err)
	s.close()
	stored := reaches(commitOf(l.t, last))
	began := p.begins(l.t)
	b.received, b.arrived, b.stored = taken.length(), taken.last.Sub(began), stored.Sub(began)
	b.cost = l.end(p)
	if !limitFirst {
		l.exec(l.up, `checkpoint`)
		b.limit = l.receive("beside", end)
	}
	return b
}

// end notes what a streamer has used and stops it.
func (l *lab) end(p *streamerProcess) (c cost) {
	l.t.Helper()
	c.own = processorTime(p.command.Process.Pid)
	c.peak = p.memory(l.t, "VmHWM")
	c.server = l.serverTime()
	p.stop(l.t)
	return c
}

// catchUp reads the log from its beginning by a streamer that has just started.
func (l *lab) catchUp(with sizes) figure {
	l.t.Helper()
	l.exec(l.log, `vacuum (freeze, analyze) "changeLog"`)
	l.exec(l.log, `checkpoint`)
	var limit, ours []time.Duration
	f := figure{
		unit: "messages/s", limit: "copy (select … order by …) to stdout", goal: "≥ 0.7",
	}
	messages := 0
	for range with.rounds {
		n, took := l.copyOut()
		messages, limit = n, append(limit, took)

		p := l.startProcess("catch-up", false)
		began := time.Now()
		s := l.listen(p.address, l.replicaVersion)
		s.status(l.t)
		taken, last, err := s.take(messages, nil)
		require.NoError(l.t, err)
		require.Equal(l.t, l.head(), commitOf(l.t, last))
		ours = append(ours, taken.last.Sub(began))
		s.close()
		f.cost = l.end(p)
	}
	f.work = fmt.Sprintf("catch-up of one subscriber, %d messages", messages)
	f.best, f.ours = per(float64(messages), median(limit)), per(float64(messages), median(ours))
	return f
}

// fanOut sends what one writer commits to many subscribers at once.
func (l *lab) fanOut(with sizes) figure {
	l.t.Helper()
	p := l.startProcess("fan-out", false)
	lastFrames := make([]time.Time, with.subscribers)
	check := l.subscribeAll(p.address, with.subscribers, 3*with.live, nil, lastFrames)
	began := time.Now()
	l.commitAll(with.live, 1)
	offered := time.Since(began)
	check()
	last := lastFrames[0]
	for _, at := range lastFrames {
		if at.After(last) {
			last = at
		}
	}
	frames := float64(3 * with.live * with.subscribers)
	return figure{
		work: fmt.Sprintf("live fan-out to %d subscribers", with.subscribers), unit: "messages/s",
		limit: "what one writer commits", best: per(frames, offered), ours: per(frames, last.Sub(began)),
		goal: "1", cost: l.end(p),
	}
}

// subscribeAll subscribes behind the head, and has each subscriber take so many frames.
// each is given the subscriber's number. The function returned waits for all of them.
func (l *lab) subscribeAll(address string, subscribers, frames int, each func(i int, frame []byte), last []time.Time) (check func()) {
	l.t.Helper()
	var all sync.WaitGroup
	errs := make([]error, subscribers)
	head := l.head()
	for i := range subscribers {
		s := l.listen(address, head)
		s.status(l.t)
		all.Go(func() {
			defer s.close()
			var one func([]byte)
			if each != nil {
				one = func(frame []byte) { each(i, frame) }
			}
			var taken span
			taken, _, errs[i] = s.take(frames, one)
			last[i] = taken.last
		})
	}
	return func() {
		l.t.Helper()
		all.Wait()
		for _, err := range errs {
			require.NoError(l.t, err)
		}
	}
}

// delay measures the time from a commit to its frame, at a fixed rate.
func (l *lab) delay(with sizes, subscribers int) figure {
	l.t.Helper()
	p := l.startProcess(fmt.Sprintf("delay-%d", subscribers), false)
	first := l.rows + 1
	arrived := make([][]time.Time, subscribers)
	row := make([]int, subscribers)
	for i := range arrived {
		arrived[i] = make([]time.Time, with.delays)
	}
	check := l.subscribeAll(p.address, subscribers, 3*with.delays, func(i int, frame []byte) {
		if id, ok := rowOf(frame); ok {
			row[i] = id - first
		} else if strings.Contains(string(frame[:min(len(frame), 40)]), `["commit",`) {
			arrived[i][row[i]] = time.Now()
		}
	}, make([]time.Time, subscribers))
	w := l.newWriter()
	defer w.close()
	sent, commits := make([]time.Time, with.delays), make([]time.Duration, with.delays)
	ticker := time.NewTicker(time.Second / time.Duration(with.rate))
	defer ticker.Stop()
	for k := range with.delays {
		var err error
		sent[k], commits[k], err = w.writeTimed(l.nextRow())
		require.NoError(l.t, err)
		<-ticker.C
	}
	check()
	var delays []time.Duration
	for i := range arrived {
		for k, at := range arrived[i] {
			delays = append(delays, at.Sub(sent[k]))
		}
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	p99, goal := percentile(delays, 99), "p50 ≤ 1, p99 ≤ 4"
	if subscribers > 1 {
		goal = "p50 ≤ 1.5, p99 ≤ 4"
	}
	return figure{
		work: fmt.Sprintf("commit to frame at %d tx/s, %d subscribers, p50 (p99: %.2f ms)", with.rate, subscribers, ms(p99)),
		unit: "ms", limit: fmt.Sprintf("the commit itself, p50 (p99: %.2f ms)", ms(percentile(commits, 99))),
		best: ms(percentile(commits, 50)), ours: ms(percentile(delays, 50)), goal: goal, cost: l.end(p),
	}
}

// idle measures what a subscriber costs that is only there.
func (l *lab) idle(with sizes) figure {
	l.t.Helper()
	p := l.startProcess("idle", false)
	head := l.head()
	before := p.settled(l.t)
	subscribers := make([]*listener, with.idle)
	for i := range subscribers {
		subscribers[i] = l.listen(p.address, head)
		subscribers[i].status(l.t)
	}
	after := p.settled(l.t)
	for _, s := range subscribers {
		s.close() // a streamer that stops waits for the answers of those that are there
	}
	return figure{
		work: fmt.Sprintf("memory of one of %d idle subscribers", with.idle), unit: "KiB",
		limit: "", ours: float64(max(1, after-before)) / float64(with.idle) / 1024, goal: "≤ 16", cost: l.end(p),
	}
}

// writeTable prints the figures as Markdown.
func writeTable(t testing.TB, out io.Writer, figures []figure) {
	t.Helper()
	var b strings.Builder
	b.WriteString("\n| work | limit | | ours | ratio | goal | CPU s: ours, server's | peak MB |\n|---|---|---|---|---|---|---|---|\n")
	for _, f := range figures {
		best, ratio := "", ""
		if f.best > 0 {
			best, ratio = amount(f.best), fmt.Sprintf("%.2f", f.ours/f.best)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s %s | %s | %s | %.2f, %.2f | %.0f |\n", f.work, f.limit, best,
			amount(f.ours), f.unit, ratio, f.goal, f.cost.own.Seconds(), f.cost.server.Seconds(), float64(f.cost.peak)/1e6)
	}
	_, err := io.WriteString(out, b.String())
	require.NoError(t, err)
}

// amount is a figure with about three digits.
func amount(x float64) string {
	if x < 100 {
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	digits := strconv.Itoa(int(x))
	if len(digits) > 3 {
		digits = digits[:3] + strings.Repeat("0", len(digits)-3)
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
