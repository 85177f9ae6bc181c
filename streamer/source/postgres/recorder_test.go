package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/change"
	"millrace/streamer/metrics"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

const (
	waitLimit = 60 * time.Second
	pubName   = "p"
)

// transaction is one that the recorder was given whole.
type transaction struct {
	watermark string
	messages  []string
	size      int // bytes of all messages
}

// recorder is a sink that remembers everything. It checks the order of the calls.
type recorder struct {
	t *testing.T

	mu        sync.Mutex
	changed   chan struct{} // closed at each change
	last      string
	open      *transaction
	txs       []transaction
	shown     []string
	aborts    int // of open transactions
	dirty     int // messages not yet published
	published int // transactions visible
	room      chan struct{}
	restart   bool
	broken    string // what was wrong with the calls
}

func newRecorder(t *testing.T, last pglogrepl.LSN) *recorder {
	return &recorder{t: t, changed: make(chan struct{}), last: watermark.FromLSN(last)}
}

// do runs f under the lock and tells those who wait.
func (r *recorder) do(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) wrong(format string, args ...any) {
	if r.broken == "" {
		r.broken = fmt.Sprintf(format, args...)
	}
}

func (r *recorder) Spare(n int) []byte { return make([]byte, 0, n) }

func (r *recorder) Begin(message []byte, w string) {
	r.do(func() {
		if r.open != nil || w <= r.last {
			r.wrong("begin of %s behind %s, open: %v", w, r.last, r.open != nil)
		}
		r.open = &transaction{watermark: w, messages: []string{string(message)}, size: len(message)}
		r.dirty++
	})
}

func (r *recorder) Data(message []byte, _ change.Tag) {
	r.do(func() {
		if r.open == nil {
			r.wrong("data outside a transaction")
			return
		}
		r.open.messages = append(r.open.messages, string(message))
		r.open.size += len(message)
		r.dirty++
	})
}

func (r *recorder) Commit(message []byte) {
	r.do(func() {
		if r.open == nil {
			r.wrong("commit outside a transaction")
			return
		}
		r.open.messages = append(r.open.messages, string(message))
		r.open.size += len(message)
		r.last = r.open.watermark
		r.txs = append(r.txs, *r.open)
		r.open = nil
		r.dirty++
	})
}

func (r *recorder) Abort() {
	r.do(func() {
		if r.open != nil {
			r.aborts++
		}
		r.open, r.restart = nil, false
	})
}

func (r *recorder) Shown(w string) {
	r.do(func() {
		if r.open != nil || w <= r.last || (len(r.shown) > 0 && w <= r.shown[len(r.shown)-1]) {
			r.wrong("shown %s, last %s, open: %v, before: %v", w, r.last, r.open != nil, r.shown)
		}
		r.shown = append(r.shown, w)
	})
}

func (r *recorder) Publish() (some bool) {
	r.do(func() {
		some = r.dirty > 0
		r.dirty, r.published = 0, len(r.txs)
	})
	return some
}

func (r *recorder) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dirty
}

func (r *recorder) Room() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.room == nil {
		return nil
	}
	return r.room
}

func (r *recorder) Restart() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restart
}

func (r *recorder) Last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// wait waits until cond, which is called under the lock, holds.
func (r *recorder) wait(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(waitLimit)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		done, changed, broken := cond(), r.changed, r.broken
		state := fmt.Sprintf("%d transactions, last %s, aborts %d, shown %v", len(r.txs), r.last, r.aborts, r.shown)
		r.mu.Unlock()
		require.Empty(r.t, broken)
		if done {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			require.FailNow(r.t, "waited in vain for "+what, state)
		}
	}
}

// waitTxs waits until n transactions are visible and returns them.
func (r *recorder) waitTxs(n int) []transaction {
	r.t.Helper()
	r.wait(fmt.Sprintf("%d transactions", n), func() bool { return r.published >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(r.t, r.txs, n)
	return r.txs[:n:n]
}

// all is everything that was given whole, one message a line.
func (r *recorder) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, tx := range r.txs {
		b.WriteString(strings.Join(tx.messages, "\n") + "\n")
	}
	return b.String()
}

// upstream is a database with a table, a publication and a slot.
type upstream struct {
	t          *testing.T
	url        string
	slot       string // slots belong to the whole server
	conn       *pgx.Conn
	up         *postgres.Upstream
	consistent pglogrepl.LSN
}

// newUpstream makes a database, runs statements in it, publishes all tables and makes the
// slot. settings are added to the connection string.
func newUpstream(t *testing.T, settings string, statements ...string) *upstream {
	t.Helper()
	db := pgtest.Empty(t)
	return prepare(t, db.URL, "millrace_"+db.Name, settings, statements...)
}

func prepare(t *testing.T, url, slot, settings string, statements ...string) *upstream {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	u := &upstream{t: t, url: with(url, settings), slot: slot, conn: conn}
	u.exec(`create table t (id int primary key, v text)`)
	for _, statement := range statements {
		u.exec(statement)
	}
	u.exec(`create publication p for all tables`)
	u.up, err = postgres.NewUpstream(u.url)
	require.NoError(t, err)
	u.consistent, err = u.up.CreateSlot(t.Context(), u.slot, 0)
	require.NoError(t, err)
	return u
}

// with adds parameters to a URL.
func with(url, parameters string) string {
	switch {
	case parameters == "":
		return url
	case strings.Contains(url, "?"):
		return url + "&" + parameters
	default:
		return url + "?" + parameters
	}
}

func (u *upstream) exec(statement string, args ...any) {
	u.t.Helper()
	_, err := u.conn.Exec(u.t.Context(), statement, args...)
	require.NoError(u.t, err, statement)
}

func (u *upstream) query(statement string, args ...any) (text string) {
	u.t.Helper()
	require.NoError(u.t, u.conn.QueryRow(u.t.Context(), statement, args...).Scan(&text), statement)
	return text
}

func (u *upstream) lsn(statement string, args ...any) pglogrepl.LSN {
	u.t.Helper()
	lsn, err := pglogrepl.ParseLSN(u.query(statement, args...))
	require.NoError(u.t, err)
	return lsn
}

func (u *upstream) confirmed() pglogrepl.LSN {
	u.t.Helper()
	state, err := u.up.Slot(u.t.Context(), u.slot)
	require.NoError(u.t, err)
	return state.Confirmed
}

// sink returns a recorder that starts where the slot does.
func (u *upstream) sink() *recorder {
	return newRecorder(u.t, postgres.ReplicaVersion(u.consistent))
}

// config is what a source of u needs.
func (u *upstream) config() postgres.Config {
	return postgres.Config{
		Upstream:     u.up,
		Slot:         u.slot,
		Publications: []string{pubName},
		Check:        func(context.Context, string) error { return nil },
		StatusEvery:  100 * time.Millisecond,
		BackoffMax:   200 * time.Millisecond,
		Metrics:      metrics.New(prometheus.NewRegistry()),
		Logger:       testLogger(u.t),
	}
}

// testLogger logs to the test's output.
func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// running is a source that runs.
type running struct {
	*postgres.Source
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

// run starts a source, which is stopped when the test ends.
func run(t *testing.T, cfg postgres.Config, sink source.Sink) *running {
	t.Helper()
	s, err := postgres.New(cfg)
	require.NoError(t, err)
	if r, ok := sink.(*recorder); ok {
		r.do(func() { r.shown = nil }) // a new source knows nothing of what was shown before
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Source: s, t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = s.Run(ctx, sink)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// stop stops the source, which must not have ended before.
func (r *running) stop() {
	r.t.Helper()
	select {
	case <-r.done:
		require.FailNow(r.t, "the source ended by itself", "%v", r.err)
	default:
	}
	r.cancel()
	<-r.done
	require.NoError(r.t, r.err)
}

// ended waits until the source has ended by itself and returns why.
func (r *running) ended() error {
	r.t.Helper()
	select {
	case <-r.done:
		require.Error(r.t, r.err)
		return r.err
	case <-time.After(waitLimit):
		require.FailNow(r.t, "the source did not end")
		return nil
	}
}

// state waits until the source has ended with a StateError and returns it.
func (r *running) state() *source.StateError {
	r.t.Helper()
	var state *source.StateError
	require.ErrorAs(r.t, r.ended(), &state)
	return state
}

// eventually polls what nothing can be waited for.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, waitLimit, 20*time.Millisecond, what)
}

// holdSlot streams from u's slot under another application's name. What it returns waits
// until that has ended.
func holdSlot(t *testing.T, u *upstream, application string) func() {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), with(u.url, "replication=database&application_name="+application))
	require.NoError(t, err)
	require.NoError(t, pglogrepl.StartReplication(t.Context(), conn, u.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'p'"},
	}))
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return func() {
		t.Helper()
		for {
			msg, err := conn.ReceiveMessage(t.Context())
			if err != nil {
				return
			}
			require.NotNil(t, msg)
		}
	}
}
