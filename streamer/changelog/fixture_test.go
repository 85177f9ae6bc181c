package changelog_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/changelog"
)

func TestMain(m *testing.M) {
	// A schedule of the property test takes a fifth of a second; -rapid.checks overrides this.
	if err := flag.Set("rapid.checks", "60"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

const (
	owner   = `it's\me/1`
	version = "00"
	// patience is how long a test waits for what must come.
	patience = 30 * time.Second
)

// fixture is a log that owner owns, its head at version, and a store beside it.
type fixture struct {
	t     testing.TB
	db    *pgtest.DB
	conn  *pgx.Conn // of the test
	tail  *memory
	proxy *proxy
	cfg   changelog.Config
	lines *lines

	mu      sync.Mutex
	storedW string
	changed chan struct{}

	ended chan struct{}
	err   error
	stop  context.CancelFunc
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return fixtureOn(t, pgtest.New(t))
}

func fixtureOn(t testing.TB, database *pgtest.DB) *fixture {
	t.Helper()
	f := beside(t, database)
	f.exec(`select ensure_replication_config($1, '{p}', $1)`, version)
	f.exec(`select assume_ownership($1, null, $2, null)`, owner, version)
	return f
}

// beside is a store on a log that is there already.
func beside(t testing.TB, database *pgtest.DB) *fixture {
	t.Helper()
	f := &fixture{
		t: t, db: database, conn: database.Conn(t), tail: newMemory(),
		changed: make(chan struct{}), lines: &lines{changed: make(chan struct{})},
	}
	config, err := pgx.ParseConfig(database.URL)
	require.NoError(t, err)
	f.proxy = newProxy(t, filepath.Join(config.Host, ".s.PGSQL."+portOf(config)))
	config, err = pgx.ParseConfig(database.URL)
	require.NoError(t, err)
	config.Host, config.Port = f.proxy.dir, proxyPort
	config.RuntimeParams["search_path"] = pgtest.Schema
	config.RuntimeParams["application_name"] = "zero-change-streamer"
	f.cfg = changelog.Config{
		Conn: config, Owner: owner, ReplicaVersion: version, Head: version,
		Tail: f.tail, Stored: f.onStored,
		Logger: slog.New(slog.NewTextHandler(f.lines, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	return f
}

func portOf(config *pgx.ConnConfig) string {
	return strings.TrimPrefix(net.JoinHostPort("", itoa(int(config.Port))), ":")
}

func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	_, err := f.conn.Exec(f.t.Context(), query, args...)
	require.NoError(f.t, err, query)
}

func (f *fixture) text(query string, args ...any) string {
	f.t.Helper()
	var value string
	require.NoError(f.t, f.conn.QueryRow(f.t.Context(), query, args...).Scan(&value), query)
	return value
}

func (f *fixture) head() string {
	f.t.Helper()
	return f.text(`select "lastWatermark" from "replicationState"`)
}

// rows are the rows of the log without its seed.
func (f *fixture) rows() []row {
	f.t.Helper()
	rows, err := f.conn.Query(f.t.Context(), `select watermark, pos, change::text, coalesce(precommit, '')
		from "changeLog" where watermark > $1 order by watermark, pos`, version)
	require.NoError(f.t, err)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(f.t, err)
	return got
}

func (f *fixture) onStored(w string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.storedW = w
	close(f.changed)
	f.changed = make(chan struct{})
}

// run runs a store until the test ends.
func (f *fixture) run() {
	f.t.Helper()
	store, err := changelog.NewStore(f.cfg)
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	f.stop, f.ended = cancel, make(chan struct{})
	go func() {
		defer close(f.ended)
		f.err = store.Run(ctx)
	}()
	ended := f.ended
	f.t.Cleanup(func() {
		cancel()
		<-ended
		if f.t.Failed() {
			f.t.Log(f.lines.String())
		}
	})
}

// end waits for the end of the run and returns its error.
func (f *fixture) end() error {
	f.t.Helper()
	select {
	case <-f.ended:
	case <-time.After(patience):
		require.FailNow(f.t, "the store did not end", f.lines.String())
	}
	return f.err
}

// halt tells the store to stop, and it must do so in order.
func (f *fixture) halt() {
	f.t.Helper()
	f.stop()
	require.NoError(f.t, f.end())
}

// await waits until a condition holds, which may change whenever the channel it comes
// with is closed.
func (f *fixture) await(what string, condition func() (bool, <-chan struct{})) {
	f.t.Helper()
	deadline := time.After(patience)
	for {
		ok, changed := condition()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-f.ended:
			if ok, _ := condition(); ok {
				return
			}
			require.FailNow(f.t, "the store ended before "+what, "%v\n%s", f.err, f.lines.String())
		case <-deadline:
			require.FailNow(f.t, "waited for "+what, f.lines.String())
		}
	}
}

// awaitStored waits until everything up to a watermark was reported as stored.
func (f *fixture) awaitStored(w string) {
	f.t.Helper()
	f.await("stored "+w, func() (bool, <-chan struct{}) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.storedW >= w, f.changed
	})
}

func (f *fixture) awaitTail(what string, condition func(state) bool) {
	f.t.Helper()
	f.await(what, func() (bool, <-chan struct{}) {
		s, changed := f.tail.state()
		return condition(s), changed
	})
}

// awaitLine waits until the store has logged a text a number of times.
func (f *fixture) awaitLine(text string, times int) {
	f.t.Helper()
	f.await("the line "+text, func() (bool, <-chan struct{}) {
		f.lines.mu.Lock()
		defer f.lines.mu.Unlock()
		return bytes.Count(f.lines.text, []byte(text)) >= times, f.lines.changed
	})
}

// storePID is the server process of the store's connection.
func (f *fixture) storePID() int {
	f.t.Helper()
	var pid int
	require.NoError(f.t, f.conn.QueryRow(f.t.Context(), `select pid from pg_stat_activity
		where datname = current_database() and application_name = 'zero-change-streamer'`).Scan(&pid))
	return pid
}

func (f *fixture) terminateStore() {
	f.t.Helper()
	f.exec(`select pg_terminate_backend($1, 10000)`, f.storePID())
}

// requireLog compares the log with what was given to the tail.
func (f *fixture) requireLog() {
	f.t.Helper()
	got, want := f.rows(), f.tail.want[:f.tail.begun]
	require.Len(f.t, got, len(want))
	for i := range want {
		if got[i] != want[i] { // require.Equal would print megabytes
			require.Equal(f.t, want[i].Watermark, got[i].Watermark, "row %d", i)
			require.Equal(f.t, want[i].Pos, got[i].Pos, "row %d", i)
			require.Equal(f.t, want[i].Precommit, got[i].Precommit, "row %d", i)
			require.FailNow(f.t, "a change differs", "row %d: %.200s instead of %.200s", i, got[i].Change, want[i].Change)
		}
	}
	head := version
	if len(want) > 0 {
		head = want[len(want)-1].Watermark
	}
	require.Equal(f.t, head, f.head())
}

// lines is what was logged.
type lines struct {
	mu      sync.Mutex
	text    []byte
	changed chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	close(l.changed)
	l.changed = make(chan struct{})
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

const proxyPort = 5432

// proxy stands between a store and its server. It can hold back what either says, and
// cut all connections.
type proxy struct {
	dir      string
	server   string
	listener net.Listener
	wait     sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	hold   [2]chan struct{} // closed when what comes may pass: toServer, toClient
	budget int              // bytes to the server until all is cut; negative: no limit
	cuts   chan struct{}    // closed when the budget was used up
}

const (
	toServer = iota
	toClient
)

func newProxy(t testing.TB, server string) *proxy {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL."+itoa(proxyPort)))
	require.NoError(t, err)
	free := make(chan struct{})
	close(free)
	p := &proxy{dir: dir, server: server, listener: listener, hold: [2]chan struct{}{free, free}, budget: -1, cuts: make(chan struct{})}
	p.wait.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.release(toServer)
		p.release(toClient)
		p.cut()
		p.wait.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.wait.Go(func() { p.pipe(server, client, toServer) })
		p.wait.Go(func() { p.pipe(client, server, toClient) })
	}
}

func (p *proxy) pipe(dst, src net.Conn, direction int) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		hold := p.hold[direction]
		if direction == toServer && p.budget >= 0 {
			if n >= p.budget {
				p.budget = -1
				close(p.cuts)
				p.mu.Unlock()
				return
			}
			p.budget -= n
		}
		p.mu.Unlock()
		<-hold
		if _, err := io.Copy(dst, bytes.NewReader(buf[:n])); err != nil {
			return
		}
	}
}

// cut ends every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

// block holds back everything in one direction, until release.
func (p *proxy) block(direction int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold[direction] = make(chan struct{})
}

func (p *proxy) release(direction int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.hold[direction]:
	default:
		close(p.hold[direction])
	}
}

// cutAfter ends the connection that has sent a number of bytes more to the server, and
// returns a channel that is closed then.
func (p *proxy) cutAfter(n int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget = n
	p.cuts = make(chan struct{})
	return p.cuts
}
