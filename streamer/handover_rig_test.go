package streamer_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// A relay is a log that one process of the real program hands to the next. The servers
// are its own: whoever makes a slot waits for every transaction of the whole server, and
// these tests hold some open.
//
// Every process has a task and a role of its own, so that its row, its sessions and its
// walsender can be told from those of the others.
type relay struct {
	program     string
	server      *pgtest.Server // of the upstream
	url, logURL string
	conn, log   *pgx.Conn // of the upstream, and of the change database
	args        []string  // of every process
	runners     []*runner // oldest first
	// upstream and change say otherwise how a process connects to the upstream and to the
	// change database; nil: directly.
	upstream, change func(url string) string
}

// A runner is one process of a relay.
type runner struct {
	*child
	task string
	role string // whose sessions are its
}

// newRelay starts a server for the upstream, and another one for the log if that is to be
// apart. Nothing runs yet.
func newRelay(t *testing.T, program string, apart bool, options pgtest.Options) *relay {
	t.Helper()
	// Else commits are shown in lots, five times a second.
	options.Settings = append(options.Settings, "synchronous_commit=on")
	start := func() *pgtest.Server {
		server, err := pgtest.Start(t.Context(), options)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Stop()) })
		return server
	}
	server := start()
	r := &relay{program: program, server: server, url: server.URL("postgres")}
	r.logURL = r.url
	if apart {
		r.logURL = start().URL("postgres")
	}
	r.conn, r.log = connection(t, r.url), migrated(t, r.logURL)
	r.args = []string{"serve", "--app-id", "relay", "--schema", "cdc", "--listen", "127.0.0.1:0", "--slot-wait", "100ms", "--log-level", "debug"}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, w := range r.runners[max(0, len(r.runners)-5):] {
			text := w.says()
			t.Logf("the end of the log of %s:\n%s", w.task, text[max(0, len(text)-8_000):])
		}
	})
	return r
}

// says is the log of a process, but for those who come and go.
func (w *runner) says() string {
	var text strings.Builder
	for line := range strings.Lines(w.log.String()) {
		if !strings.Contains(line, `"component":"server"`) {
			text.WriteString(line)
		}
	}
	return text.String()
}

// connection opens a connection for as long as the test goes on.
func connection(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := waitContext()
		defer cancel()
		_ = conn.Close(ctx) // the server may have been restarted under it
	})
	return conn
}

// runs starts a process and waits for nothing.
func (r *relay) runs(t *testing.T, args ...string) *runner {
	t.Helper()
	name := fmt.Sprintf("runner_%d", len(r.runners)+1)
	do(t, r.conn, `create role `+name+` superuser login replication`)
	if r.logURL != r.url {
		do(t, r.log, `create role `+name+` superuser login replication`)
	}
	upstream, change := as(t, name, r.url), as(t, name, r.logURL)
	if r.upstream != nil {
		upstream = r.upstream(upstream)
	}
	if r.change != nil {
		change = r.change(change)
	}
	w := &runner{task: name, role: name}
	if i := slices.Index(args, "--task-id"); i >= 0 {
		w.task = args[i+1]
	}
	w.child = spawned(t, r.program, slices.Concat(r.args, []string{
		"--task-id", name, "--upstream-db", upstream, "--change-db", change,
	}, args)...)
	r.runners = append(r.runners, w)
	return w
}

// as is a connection string of another role.
func as(t *testing.T, role, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	u.User = url.User(role)
	return u.String()
}

// by leads a process over a line.
func by(t *testing.T, through string) func(direct string) string {
	return func(direct string) string {
		u, err := url.Parse(direct)
		require.NoError(t, err)
		return as(t, u.User.Username(), through)
	}
}

// owns waits until a process owns the log.
func (r *relay) owns(t *testing.T, w *runner) {
	t.Helper()
	becomes(t, endurance, w.task, r.log, `select split_part(owner, '/', 1) from cdc.status`)
}

// passes waits until old has gone in peace, because next has taken the log.
func (r *relay) passes(t *testing.T, old, next *runner) {
	t.Helper()
	require.Equal(t, 0, old.code(t, endurance), "%s", old.says())
	r.owns(t, next)
	owner := tell[string](t, r.log, `select owner from cdc.status`)
	require.Contains(t, old.log.String(), owner, "it says who has taken the log")
	becomes(t, endurance, "gone", r.log, rowState, old.task)
	require.Equal(t, "owner", tell[string](t, r.log, rowState, next.task))
}

// succeeds starts another process and waits until the log has passed to it.
func (r *relay) succeeds(t *testing.T, old *runner, args ...string) *runner {
	t.Helper()
	next := r.runs(t, args...)
	r.passes(t, old, next)
	return next
}

// rowState is the state of the youngest incarnation of a task.
const rowState = `select r.state from cdc.streamer as r where r.task_id = $1 order by r.id desc limit 1`

// rowSlot is the slot that its row names.
const rowSlot = `select coalesce(r.slot, '') from cdc.streamer as r where r.task_id = $1 order by r.id desc limit 1`

// ourSlots is the number of slots, but for the oracle's.
const ourSlots = `select count(*)::int from pg_replication_slots where slot_name not like 'oracle%'`

// isMade says whether a slot is there and was made whole.
const isMade = `select exists (select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn is not null)`

// isAtLock says whether a process waits for a lock.
const isAtLock = `select exists (select from pg_stat_activity where usename = $1 and wait_event_type = 'Lock')`

// holds takes locks, which it keeps until release.
func holds(t *testing.T, url, sql string, args ...any) (release func()) {
	t.Helper()
	conn := connection(t, url)
	do(t, conn, `begin`)
	do(t, conn, sql, args...)
	return func() {
		t.Helper()
		do(t, conn, `rollback`)
	}
}

// freezes stops a process until SIGCONT. The signal is taken by one thread, when that comes
// to run; until then the others go on.
func (w *runner) freezes(t *testing.T) {
	t.Helper()
	w.signal(syscall.SIGSTOP)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid))
		return err != nil || bytes.Contains(stat, []byte(") T ")) // there may be no such file here
	}, endurance, time.Millisecond, "it does not stop")
}

// halts stops a process for a while, when it is in the middle of no transaction on the log.
func (r *relay) halts(t *testing.T, w *runner) {
	t.Helper()
	r.between(t, w, func() { w.freezes(t) }, func() { w.signal(syscall.SIGCONT) })
}

// between stops a process in some way, when it is in the middle of no transaction on the
// log.
func (r *relay) between(t *testing.T, w *runner, stop, goOn func()) {
	t.Helper()
	require.Eventually(t, func() bool {
		stop()
		const busy = `
			select exists (
				select from pg_locks as l join pg_stat_activity as a using (pid)
				where a.usename = $1 and l.granted and l.mode = 'RowShareLock' and l.relation = 'cdc."replicationState"'::regclass)`
		if !tell[bool](t, r.log, busy, w.role) {
			return true
		}
		goOn()
		return false
	}, endurance, glimpse, "it is always in the middle of something")
}

// kills ends a process without a word.
func (w *runner) kills(t *testing.T) {
	t.Helper()
	w.signal(syscall.SIGKILL)
	require.Equal(t, -1, w.code(t, endurance))
}

// longAgo lets those who died on their way to the log be dead for long.
func (r *relay) longAgo(t *testing.T) {
	t.Helper()
	do(t, r.log, `
		update cdc.streamer
		set changed_at = now() - interval '1 hour', registered_at = now() - interval '1 hour'
		where state in ('starting', 'pending')`)
}

// tidies waits until the owner has dropped all slots but its own. The log of an owner must
// name those given: of this one, or of the one before, who may have been faster.
func (r *relay) tidies(t *testing.T, owner *runner, slots ...string) {
	t.Helper()
	becomes(t, endurance, 1, r.conn, ourSlots)
	becomes(t, endurance, 1, r.log, `select count(*)::int from cdc.streamer where slot is not null`)
	require.True(t, tell[bool](t, r.conn, isMade, tell[string](t, r.log, rowSlot, owner.task)))
	for _, slot := range slots {
		require.Eventually(t, func() bool { return slices.ContainsFunc(r.runners, func(w *runner) bool { return w.dropped(slot) }) },
			endurance, glimpse, "nobody says that the slot was dropped: %s", slot)
	}
}

// dropped says whether a process says that it has dropped a slot of a dead one.
func (w *runner) dropped(slot string) bool {
	for line := range strings.Lines(w.log.String()) {
		if strings.Contains(line, "dropped the slot of a dead streamer") && strings.Contains(line, `"`+slot+`"`) {
			return true
		}
	}
	return false
}

// silence measures the longest time between two commits that a subscriber receives.
type silence struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
}

func (s *silence) committed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.last.IsZero() {
		s.longest = max(s.longest, now.Sub(s.last))
	}
	s.last = now
}

// since says whether there was a commit since then.
func (s *silence) since(then time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.After(then)
}

// take returns the longest silence since the last call.
func (s *silence) take() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest := s.longest
	s.longest = 0
	return longest
}

// spread describes durations.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "none"
	}
	slices.Sort(list)
	at := func(part float64) time.Duration {
		return list[int(part*float64(len(list)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s (%d)", at(0.5), at(0.99), at(1), len(list))
}

// lines is a writer that hands over whole lines.
type lines struct {
	each func(line []byte)
	rest []byte
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		l.each(line)
		l.rest = append(l.rest[:0], rest...)
	}
}

// startPaced writes small transactions at an even rate, in all. A server that goes away
// ends it.
func startPaced(t *testing.T, url string, writers, rate int) *workload {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w := &workload{url: url, stop: cancel, rows: map[uint32][]string{}}
	for i := range writers {
		w.wait.Go(func() { w.pace(ctx, uint64(i), time.Second*time.Duration(writers)/time.Duration(rate)) }) //nolint:gosec // small
	}
	t.Cleanup(w.end)
	return w
}

func (w *workload) pace(ctx context.Context, writer uint64, every time.Duration) {
	conn, err := pgx.Connect(context.WithoutCancel(ctx), w.url)
	if err != nil {
		return
	}
	defer func() {
		ctx, cancel := waitContext()
		defer cancel()
		_ = conn.Close(ctx) // whatever state it is in
	}()
	random := rand.New(rand.NewPCG(writer, 2)) //nolint:gosec // a test
	due := time.Now()
	for id := int64(writer+1) * 1_000_000_000; ctx.Err() == nil; id++ { //nolint:gosec // small
		table, v := workloadNames[random.IntN(len(workloadNames))], random.IntN(1000)
		p := strings.Repeat(string(rune('a'+v%26)), 100)
		xid, err := ask[int64](context.WithoutCancel(ctx), conn,
			`insert into public.`+table+` values ($1, $2, $3) returning pg_current_xact_id()::text::bigint`, id, v, p)
		if err != nil {
			return // what is missing is noticed
		}
		w.mu.Lock()
		w.rows[uint32(xid)] = []string{rowText("insert", table, id, v, p)} //nolint:gosec // a young server
		w.commits++
		w.mu.Unlock()
		// Whoever was held up hurries, but not for long.
		due = due.Add(every)
		if late := time.Since(due); late > 100*time.Millisecond {
			due = time.Now()
		}
		breathe(time.Until(due))
	}
}
