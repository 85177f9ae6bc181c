package streamer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/streamer/client"
	"millrace/streamer/watermark"
)

// A scene is a workload that never stops and subscribers of all sorts, under the eyes of
// the one Checker. Which programs stream between them is the test's own business.
type scene struct {
	url    string // of the upstream, without any detour
	logURL string // of the change database
	check  *Checker
	oracle *oracle
	load   *workload
	args   []string // of the program
	find   func(context.Context) (string, error)

	version   string
	followers []*follower
	fast      *follower
	quit      context.CancelFunc
	wait      sync.WaitGroup

	mu      sync.Mutex
	faults  []string // what nobody may ever see
	samples int      // times the slot was compared with the log
	joins   int      // subscriptions of those who join
	returns int      // and of the one who comes back
}

// chaos is a scene with one real program, which is started again whenever it ends. A test
// makes faults, and calls finish.
type chaos struct {
	*scene
	keeper *keeper
}

// newChaos starts everything on a migrated database, which is upstream and log. args are
// further ones of the program.
func newChaos(t *testing.T, program, url string, args ...string) *chaos {
	t.Helper()
	return newChaosApart(t, program, url, url, args...)
}

// newChaosApart keeps the log in another database.
func newChaosApart(t *testing.T, program, url, logURL string, args ...string) *chaos {
	t.Helper()
	ch := &chaos{scene: newScene(t, url, logURL, args...)}
	ch.load = startWorkload(t, url, 2, time.Duration(5*slowness())*time.Millisecond)
	ch.load.grows(t, 20)
	ch.keeper = keep(t, program, ch.args...)
	ch.opens(t)
	return ch
}

// newScene makes the tables, and begins to listen to what is committed.
func newScene(t *testing.T, url, logURL string, args ...string) *scene {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	do(t, conn, workloadTables)
	do(t, conn, `create publication everything for table public.red, public.green, public.blue`)
	name := tell[string](t, conn, `select current_database()::text`)
	ch := &scene{
		url:    url,
		logURL: logURL,
		check:  &Checker{Row: workloadRow},
		oracle: newOracle(t, conn, "everything"),
		find:   found(t, logURL, "cdc"),
	}
	ch.args = append([]string{
		"serve", "--app-id", name, "--schema", "cdc", "--task-id", "task", "--publication", "everything",
		"--listen", "127.0.0.1:0", "--log-level", "debug", "--upstream-db", url, "--change-db", logURL,
	}, args...)
	return ch
}

// opens waits until somebody owns the log, and lets the subscribers in.
func (ch *scene) opens(t *testing.T) {
	t.Helper()
	ctx := ch.begins(t)
	start := client.Position{ReplicaVersion: ch.version, Watermark: ch.version}
	ch.fast = follow(t, ch.check, "fast", ch.find, start, nil)
	slow := follow(t, ch.check, "slow", ch.find, start, func(m client.Message) {
		if m.Kind == client.Commit {
			breathe(2 * time.Millisecond)
		}
	})
	back := follow(t, ch.check, "coming back", ch.find, start, nil)
	ch.followers = []*follower{ch.fast, slow, back}
	ch.wait.Go(func() { ch.comeBack(ctx, back) })
}

// begins waits until somebody owns the log, looks at it from then on, and subscribes now
// and then. It returns what ends with the workload.
func (ch *scene) begins(t *testing.T) context.Context {
	t.Helper()
	log, err := pgx.Connect(t.Context(), ch.logURL)
	require.NoError(t, err)
	defer log.Close(context.WithoutCancel(t.Context()))
	becomes(t, endurance, true, log, `select exists (select from cdc.status where owner is not null)`)
	ch.version = historyOf(t, log)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ch.quit = cancel
	t.Cleanup(func() {
		cancel()
		ch.wait.Wait()
	})
	ch.wait.Go(func() { ch.join(ctx) })
	ch.wait.Go(func() { ch.sample(ctx) })
	return ctx
}

func historyOf(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return tell[string](t, conn, `select replica_version from cdc.status`)
}

func (ch *scene) fault(format string, args ...any) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.faults = append(ch.faults, fmt.Sprintf(format, args...))
}

// comeBack stops a subscriber wherever it is and starts it again, all the time.
func (ch *scene) comeBack(ctx context.Context, f *follower) {
	for pause(ctx, time.Duration(20+rand.IntN(300))*time.Millisecond) {
		f.stop()
		if err := f.failure(); err != nil {
			ch.fault("%s: %v", f.name, err)
			return
		}
		if err := f.start(ctx); err != nil {
			ch.fault("%s: %v", f.name, err)
			return
		}
		ch.mu.Lock()
		ch.returns++
		ch.mu.Unlock()
	}
}

// join subscribes at the head of the log for a moment, again and again.
func (ch *scene) join(ctx context.Context) {
	for pause(ctx, time.Duration(20+rand.IntN(200))*time.Millisecond) {
		var watch *Watched
		c, err := client.New(client.Config{
			Discover: ch.find, TaskID: "joins", Watermark: client.Head, BackoffMax: 200 * time.Millisecond,
			Resolved: func(_ context.Context, p client.Position) error {
				ch.mu.Lock()
				defer ch.mu.Unlock()
				ch.joins++
				watch = ch.check.Subscriber(fmt.Sprintf("join %d", ch.joins), p.Watermark)
				return nil
			},
			Handler: func(_ context.Context, m client.Message) error { return watch.Message(m.Bytes) },
		})
		if err != nil {
			ch.fault("join: %v", err)
			return
		}
		short, cancel := context.WithTimeout(ctx, time.Duration(50+rand.IntN(1500))*time.Millisecond)
		err = c.Run(short)
		cancel()
		if err != nil {
			ch.fault("join: %v", err)
			return
		}
		if watch != nil {
			watch.End()
		}
	}
}

// sample compares the slot with the log: it is never confirmed past what the log is known
// to hold, and does not go back while the server lives.
func (ch *scene) sample(ctx context.Context) {
	for pause(ctx, 50*time.Millisecond) {
		conn, err := pgx.Connect(ctx, ch.url)
		if err != nil {
			continue
		}
		log, err := pgx.Connect(ctx, ch.logURL)
		if err != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
			continue
		}
		last := map[string]int64{} // a server that crashed may have forgotten the last steps of a slot
		for pause(ctx, 20*time.Millisecond) {
			slot, err := ask[string](ctx, log, `select slot from cdc.status`)
			if err != nil {
				break
			}
			// First the slot, then the log, which only grows.
			confirmed, err := ask[int64](ctx, conn, `
				select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = $1`, slot)
			if err != nil {
				break
			}
			known, err := ask[string](ctx, log, `select greatest(head, streamed_watermark) from cdc.status`)
			if err != nil {
				break
			}
			if at := watermark.Encode(uint64(confirmed - 1)); at > known { //nolint:gosec // an LSN
				ch.fault("the slot is confirmed up to %s, the log complete up to %s", at, known)
			}
			if confirmed < last[slot] {
				ch.fault("slot %s went back from %d to %d", slot, last[slot], confirmed)
			}
			last[slot] = confirmed
			ch.mu.Lock()
			ch.samples++
			ch.mu.Unlock()
		}
		_ = conn.Close(context.WithoutCancel(ctx))
		_ = log.Close(context.WithoutCancel(ctx))
	}
}

// pause waits. It returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// while lets time pass between two faults.
func (ch *scene) while(t *testing.T, least, most time.Duration) {
	t.Helper()
	breathe(least + rand.N(most-least+1))
	require.NoError(t, ch.check.Err())
	ch.mu.Lock()
	defer ch.mu.Unlock()
	require.Empty(t, ch.faults)
}

// settle ends the workload and holds everybody to what the oracle says.
func (ch *scene) settle(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { // on a slow machine that may take longer than the faults
		ch.mu.Lock()
		defer ch.mu.Unlock()
		return ch.joins > 0 && ch.samples > 0 || len(ch.faults) > 0
	}, endurance, glimpse)
	ch.load.end()
	ch.quit()
	ch.wait.Wait()
	conn, err := pgx.Connect(t.Context(), ch.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	log, err := pgx.Connect(t.Context(), ch.logURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = log.Close(context.WithoutCancel(t.Context())) })

	do(t, conn, `set synchronous_commit = on`)
	do(t, conn, `select pg_logical_emit_message(true, 'test', 'what was committed lazily is durable now')`)

	var done [][]string
	last := ""
	for _, h := range ch.oracle.committed(t, conn) {
		rows, known := ch.load.rows[h.xid]
		require.True(t, known, "transaction %d is not of the workload", h.xid)
		done = append(done, rows)
		ch.check.Committed(h.watermark, rows...)
		last = h.watermark
	}
	require.GreaterOrEqual(t, len(done), ch.load.count(), "upstream lost what it had answered")
	require.Equal(t, tables(t, conn), applied(done), "the test's own books")
	for _, f := range ch.followers {
		f.reaches(t, last, 2*endurance)
	}
	becomes(t, endurance, last, log, `select head from cdc.status`)
	becomes(t, endurance, true, conn, `
		select confirmed_flush_lsn - '0/0' > $1::bigint from pg_replication_slots
		where slot_name = $2`, lsnOf(t, last), tell[string](t, log, `select slot from cdc.status`))
	rereads(t, ch.check, log, ch.version)
	require.NoError(t, ch.check.Done(""))

	ch.mu.Lock()
	require.Empty(t, ch.faults)
	t.Logf("%d transactions, %d of them seen whole by subscribers in all, %d messages, %d rollbacks, %d joins, %d returns, %d samples",
		len(done), ch.check.transactions, ch.check.messages, ch.check.rollbacks, ch.joins, ch.returns, ch.samples)
	ch.mu.Unlock()
	require.Equal(t, ch.version, historyOf(t, log))
}

// finish settles everything and ends the program.
func (ch *chaos) finish(t *testing.T) {
	t.Helper()
	ch.settle(t)
	conn, err := pgx.Connect(t.Context(), ch.url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	log, err := pgx.Connect(t.Context(), ch.logURL)
	require.NoError(t, err)
	defer log.Close(context.WithoutCancel(t.Context()))

	t.Logf("exit codes %v", ch.keeper.codes)
	require.Equal(t, 0, ch.keeper.end(syscall.SIGTERM), "a clean end")
	require.Equal(t, 2, tell[int](t, conn, slotsOf), "its own slot and the oracle's")
	require.Equal(t, 1, tell[int](t, log, `select count(*)::int from cdc.streamer where slot is not null`))
	for _, c := range []*pgx.Conn{conn, log} {
		becomes(t, endurance, 0, c, `
			select count(*)::int from pg_stat_activity
			where datname = current_database() and application_name in ('millrace-source', 'zero-change-streamer')`)
	}
}

func lsnOf(t *testing.T, w string) int64 {
	t.Helper()
	lsn, err := watermark.LSN(w)
	require.NoError(t, err)
	return int64(lsn) //nolint:gosec // an LSN
}
