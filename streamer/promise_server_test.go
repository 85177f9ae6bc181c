package streamer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/change"
	"millrace/streamer/changelog"
	"millrace/streamer/subscriber"
	"millrace/streamer/tail"
	"millrace/streamer/watermark"
)

// serverPatience is for what must happen at all: nothing is measured.
const serverPatience = 60 * time.Second

const storeApplication = "zero-change-streamer"

// serverWorld is a world on a real server: the real tail, store, pages and subscriptions,
// each in its goroutines. The test is the source, and whoever kills connections.
type serverWorld struct {
	t     testing.TB
	r     *rand.Rand
	check Checker
	conn  *pgx.Conn
	cfg   *pgx.ConnConfig
	pages *changelog.Pages

	owner, version string
	upstream       []upstreamTx
	number         uint64
	source         sourceModel
	counts         map[string]int

	process *process

	mu       sync.Mutex
	replicas []replica // not connected
	active   int
	ends     []endOf
	wholes   chan struct{}
}

// process is one life of a streamer.
type process struct {
	tail   *tail.Tail
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
	stored chan error           // what the store ended with
	subs   []context.CancelFunc // of subscriptions, also those that have ended
}

// endOf is how a subscription ended.
type endOf struct {
	replica
	err     error
	stopped bool // it was told to
}

const maxSubscribers = 6

func newServerWorld(t testing.TB, seed uint64) *serverWorld {
	database := pgtest.New(t)
	cfg, err := pgx.ParseConfig(database.URL)
	require.NoError(t, err)
	cfg.RuntimeParams["search_path"] = pgtest.Schema
	cfg.RuntimeParams["application_name"] = storeApplication
	w := &serverWorld{
		t: t, r: rand.New(rand.NewPCG(seed, 1)), conn: database.Conn(t), cfg: cfg, number: 36, //nolint:gosec // a schedule is no secret
		counts: map[string]int{}, wholes: make(chan struct{}, 1),
	}
	w.pages, err = changelog.NewPages(changelog.PagesConfig{
		Conn: cfg, MaxRows: 1 + w.r.IntN(40), PageBytes: 1 + w.r.IntN(5000), Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(w.pages.Close)
	w.reset()
	w.start()
	t.Cleanup(func() { w.end() })
	return w
}

func (w *serverWorld) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.conn.Exec(w.t.Context(), query, args...)
	require.NoError(w.t, err, query)
}

func (w *serverWorld) bounds() (minimum, head, version string) {
	w.t.Helper()
	require.NoError(w.t, w.conn.QueryRow(context.WithoutCancel(w.t.Context()),
		`select minimum, head, replica_version from catchup_bounds()`).Scan(&minimum, &head, &version))
	return minimum, head, version
}

// reset begins the log anew at a replica made now. Whoever runs is not told.
func (w *serverWorld) reset() {
	w.number += 2
	w.version = watermark.Encode(w.number)
	w.owner = fmt.Sprint("owner/", w.number)
	w.exec(`select ensure_replication_config($1, '{p}', $1, auto_reset => true)`, w.version)
	w.exec(`select assume_ownership($1, null, $2, null)`, w.owner, w.version)
	w.mu.Lock()
	w.replicas = append(w.replicas, replica{w.version, w.version}, replica{w.version, w.version})
	w.mu.Unlock()
}

// start begins a process at the head of the log.
func (w *serverWorld) start() {
	// Under the state row's lock, so after whatever the one before has under way.
	w.number++ // watermarks are even: this only makes a name
	next := fmt.Sprint("owner/", w.number)
	w.number++
	w.exec(`select assume_ownership($1, null, $2, $3)`, next, w.version, w.owner)
	w.owner = next
	_, head, _ := w.bounds()
	p := &process{stored: make(chan error, 1)}
	var err error
	p.tail, err = tail.New(tail.Config{Start: head, MaxBytes: 1 << (10 + w.r.IntN(6))})
	require.NoError(w.t, err)
	store, err := changelog.NewStore(changelog.Config{
		Conn: w.cfg, Owner: w.owner, ReplicaVersion: w.version, Head: head, Tail: p.tail,
		Stored:    func(string) { w.moved() },
		BatchRows: 2 + w.r.IntN(60), BatchBytes: 200 + w.r.IntN(20_000), StatementTimeout: 20 * time.Second,
		DrainTimeout: time.Duration(1+w.r.IntN(200)) * time.Millisecond, ProgressEvery: 5 * time.Millisecond,
		OwnerCheckEvery: 50 * time.Millisecond,
		Logger:          slog.New(slog.DiscardHandler),
	})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	p.ctx, p.cancel = ctx, cancel
	p.wait.Go(func() { _ = p.tail.Run(ctx) })
	p.wait.Go(func() { p.stored <- store.Run(ctx) })
	w.process = p
	w.rewind()
}

// end ends a process and all its subscriptions.
func (w *serverWorld) end() {
	w.process.cancel()
	w.process.wait.Wait()
}

func (w *serverWorld) restart() {
	w.end()
	w.start()
}

func (w *serverWorld) rewind() {
	w.source.open = false
	last := w.process.tail.Last()
	for w.source.next = 0; w.source.next < len(w.upstream) && w.upstream[w.source.next].watermark <= last; w.source.next++ {
	}
}

// alive says that the store runs; if it has ended it must have lost the log.
func (w *serverWorld) alive() bool {
	select {
	case err := <-w.process.stored:
		require.ErrorIs(w.t, err, changelog.ErrOwnershipLost)
		w.counts["deposed"]++
		w.restart()
		return false
	default:
		return true
	}
}

func (w *serverWorld) commit() {
	w.number += 2
	tx := upstreamTx{watermark: watermark.Encode(w.number)}
	n, size := w.r.IntN(5), 60
	switch w.r.IntN(10) {
	case 0, 1:
		n = 20 + w.r.IntN(200)
	case 2:
		size = 40_000
	}
	for range n {
		tx.rows = append(tx.rows, w.r.IntN(size))
	}
	w.upstream = append(w.upstream, tx)
	w.check.Committed(tx.watermark, tx.decode(0)...)
	w.check.Also(tx.decode(1)...)
	w.check.Also(tx.decode(2)...)
}

// send gives the tail up to n messages, and waits for room as a source does.
func (w *serverWorld) send(n int) {
	s, l := &w.source, w.process.tail
	for ; n > 0; n-- {
		for room := l.Room(); room != nil; room = l.Room() {
			w.counts["no room"]++
			select {
			case <-room:
			case err := <-w.process.stored:
				w.process.stored <- err
				return
			case <-time.After(serverPatience):
				require.FailNow(w.t, "no room is made")
			}
		}
		if l.Restart() {
			w.counts["restarted stream"]++
			l.Abort()
			w.rewind()
		}
		message := func(kind change.Kind, text string) []byte {
			return change.Append(l.Spare(len(text)+40), kind, []byte(text), s.tx.watermark)
		}
		switch {
		case !s.open && s.next == len(w.upstream):
			l.Publish()
			return
		case !s.open:
			s.tx = w.upstream[s.next]
			s.rows, s.sent, s.open = s.tx.decode(w.r.IntN(decodings)), 0, true
			l.Begin(message(change.Begin, `{"tag":"begin"}`), s.tx.watermark)
		case s.sent < len(s.rows):
			s.sent++
			l.Data(message(change.Data, s.rows[s.sent-1]), change.Insert)
		default:
			l.Commit(message(change.Commit, `{"tag":"commit"}`))
			s.next++
			s.open = false
			l.Publish()
		}
	}
	l.Publish()
}

// join connects a replica in a goroutine of its own, for so many frames.
func (w *serverWorld) join(lifetime int) {
	w.mu.Lock()
	if len(w.replicas) == 0 || w.active == maxSubscribers {
		w.mu.Unlock()
		return
	}
	i := w.r.IntN(len(w.replicas))
	r := w.replicas[i]
	w.replicas = append(w.replicas[:i], w.replicas[i+1:]...)
	w.mu.Unlock()
	if minimum, _, version := w.bounds(); r.version != version || r.whole < minimum {
		w.counts["refused"]++
		w.mu.Lock()
		w.replicas = append(w.replicas, replica{minimum, version})
		w.mu.Unlock()
		return
	}
	w.mu.Lock()
	w.active++
	w.mu.Unlock()
	w.counts["join"]++
	p := w.process
	s, err := subscriber.New(subscriber.Config{
		Watermark: r.whole, ReplicaVersion: r.version, Tail: p.tail,
		Pages: func(ctx context.Context, after watermark.Position, b *change.Block) (subscriber.Page, error) {
			page, err := w.pages.Read(ctx, after, b)
			return subscriber.Page(page), err
		},
		WindowBytes: 1 << (4 + w.r.IntN(16)), WindowFrames: 1 + w.r.IntN(300),
	})
	require.NoError(w.t, err)
	watch := w.check.Subscriber(fmt.Sprint("subscriber ", w.counts["join"]), r.whole)
	ctx, cancel := context.WithCancel(p.ctx)
	p.subs = append(p.subs, cancel)
	p.wait.Go(func() {
		err := serve(ctx, s, watch, lifetime, w.moved)
		s.Close()
		watch.End()
		w.mu.Lock()
		defer w.mu.Unlock()
		r.whole = watch.Whole()
		w.replicas = append(w.replicas, r)
		w.active--
		w.ends = append(w.ends, endOf{r, err, ctx.Err() != nil})
		w.moved()
	})
}

// moved says that the store or a subscription got further, or ended.
func (w *serverWorld) moved() {
	select {
	case w.wholes <- struct{}{}:
	default:
	}
}

// serve is a connection: it hands what it gets to the checker, and acks it late. It ends
// with ctx, or after so many frames.
func serve(ctx context.Context, s *subscriber.Subscription, watch *Watched, lifetime int, moved func()) error {
	var sent, acked uint64
	for lifetime > 0 {
		frames, ok, err := s.Next()
		if err != nil {
			return err
		}
		if !ok {
			for acked < sent {
				acked++
				if err := s.Ack(acked); err != nil {
					return err
				}
			}
			moved()
			if err := s.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		if frames.FirstID != sent+1 {
			return fmt.Errorf("frame %d came after frame %d", frames.FirstID, sent)
		}
		if frames.Literal != nil {
			sent++
			if err := watch.Message(frames.Literal); err != nil {
				return err
			}
			continue
		}
		for i := range frames.Run.Len() {
			sent++
			lifetime--
			if err := watch.Message(frames.Run.Message(i)); err != nil {
				return err
			}
		}
		for acked < sent/2 {
			acked++
			if err := s.Ack(acked); err != nil {
				return err
			}
		}
	}
	return nil
}

// judge looks at how subscriptions have ended: only some ways are right.
func (w *serverWorld) judge() {
	w.t.Helper()
	w.mu.Lock()
	ends := w.ends
	w.ends = nil
	w.mu.Unlock()
	for _, e := range ends {
		var refused *pgconn.PgError
		switch {
		case e.err == nil, e.stopped:
		case errors.Is(e.err, subscriber.ErrStale):
			w.counts["stale"]++
			minimum, head, version := w.bounds()
			require.True(w.t, version != e.version || minimum > e.whole,
				"%v at %v although the log is %s from %s to %s", e.err, e.replica, version, minimum, head)
		case errors.As(e.err, &refused) && refused.Code == "57P01",
			errors.Is(e.err, syscall.EPIPE), errors.Is(e.err, syscall.ECONNRESET): // before its reason was read
			w.counts["page was killed"]++
		default:
			require.NoError(w.t, e.err)
		}
	}
	require.NoError(w.t, w.check.Err())
}

// kill ends connections of the streamer, some or all.
func (w *serverWorld) kill() {
	w.counts["kill"]++
	w.exec(`select pg_terminate_backend(pid) from pg_stat_activity
		where datname = current_database() and application_name = $1 and pid <> pg_backend_pid() and random() < $2`,
		storeApplication, []float64{0.5, 1}[w.r.IntN(2)])
}

func (w *serverWorld) step() {
	w.counts["steps"]++
	switch k := w.r.IntN(100); {
	case k < 30:
		if len(w.upstream) < w.source.next+30 {
			w.commit()
		}
	case k < 62:
		w.send(1 + w.r.IntN(60))
	case k < 70:
		if w.source.open {
			w.counts["break"]++
			w.process.tail.Abort()
			w.rewind()
		}
	case k < 84:
		w.join(1 << (3 + w.r.IntN(12)))
	case k < 90:
		if n := len(w.process.subs); n > 0 {
			w.counts["disconnect"]++
			w.process.subs[w.r.IntN(n)]()
		}
	case k < 95:
		w.kill()
	case k < 97:
		w.counts["purge"]++
		minimum, head, _ := w.bounds()
		before := minimum
		for _, tx := range w.upstream {
			if tx.watermark > minimum && tx.watermark <= head && w.r.IntN(4) > 0 {
				before = tx.watermark
			}
		}
		w.exec(`delete from "changeLog" where watermark < $1`, before)
	case k < 99:
		w.counts["restart"]++
		w.restart()
	default:
		w.counts["reset"]++
		w.process.tail.Abort() // a reset waits for a storing transaction, and that for us
		w.rewind()
		w.reset()
	}
	w.alive()
	w.judge()
}

// finish lets everybody arrive. One more subscriber reads all that the log has.
func (w *serverWorld) finish() {
	w.alive()
	w.mu.Lock()
	minimum, _, version := w.bounds()
	w.replicas = append(w.replicas, replica{minimum, version})
	w.mu.Unlock()
	w.commit()
	last := w.upstream[len(w.upstream)-1].watermark
	patience := time.After(serverPatience)
	for {
		if w.alive() {
			w.send(1 << 30)
		}
		for !w.idle() { // a refusal makes another replica
			w.join(1 << 30)
		}
		w.judge()
		_, head, _ := w.bounds()
		if head == last && w.idle() && w.check.Done(last) == nil {
			break
		}
		select {
		case <-w.wholes:
		case <-patience:
			require.FailNow(w.t, "it never comes to rest", "log at %s of %s: %v", head, last, w.check.Done(last))
		}
	}
	require.NoError(w.t, w.check.Done(last))
}

// idle says that every replica of this history is connected.
func (w *serverWorld) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.replicas) == 0 || w.active >= maxSubscribers
}

// TestPromiseHoldsOnAServer is the promise with the real log: the connections that are
// killed, the locks and the snapshots are PostgreSQL's.
func TestPromiseHoldsOnAServer(t *testing.T) {
	t.Parallel()
	total := map[string]int{}
	n := steps(t, 300)
	for seed := uint64(1); n > 0; seed++ {
		w := newServerWorld(t, seed)
		for range min(n, 300) {
			w.step()
		}
		n -= 300
		w.finish()
		w.end()
		w.judge()
		for k, c := range w.counts {
			total[k] += c
		}
		total["transactions received"] += w.check.transactions
		total["messages received"] += w.check.messages
		total["rollbacks received"] += w.check.rollbacks
	}
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[k], k)
	}
}
