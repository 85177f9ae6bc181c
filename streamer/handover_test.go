package streamer_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/client"
)

const (
	// handOversEnv is how often the log is handed over, for a long run instead of a short
	// one.
	handOversEnv = "MILLRACE_HANDOVERS"
	// handOverRate is how many transactions are written in a second meanwhile.
	handOverRate = 1000
)

// TestHandOver hands the log from one process to the next, again and again, while upstream
// never stops to commit. Each of them goes by itself when the next one has the log. What
// subscribers notice is told, no test fails on it.
func TestHandOver(t *testing.T) {
	t.Parallel()
	program := builtCommand(t)
	t.Run("each has its slot", func(t *testing.T) {
		t.Parallel()
		handsOver(t, program, times(t, handOversEnv, 30))
	})
	t.Run("all share one slot", func(t *testing.T) {
		t.Parallel()
		handsOver(t, program, times(t, handOversEnv, 5), "--slot", "shared_by_all")
	})
}

func handsOver(t *testing.T, program string, handOvers int, args ...string) {
	r := newRelay(t, program, false, pgtest.Options{})
	sc := newScene(t, r.url, r.logURL)
	r.args = append(r.args, append([]string{"--publication", "everything", "--log-level", "info"}, args...)...)
	sc.load = startPaced(t, r.url, 2, handOverRate)
	sc.load.grows(t, 20)
	owner := r.runs(t)
	sc.begins(t)
	subs := newWatchers(t, r, sc)

	began, written := time.Now(), sc.load.count()
	var gaps, changes, ends []time.Duration
	for range handOvers {
		subs.take() // what was before
		raw := sc.subscribes(t, tell[string](t, r.log, `select head from cdc.status`))
		plain := make(chan error, 1)
		go func() { plain <- closesPlainly(raw) }()
		taken := r.hears(t)

		before := time.Now()
		next := r.runs(t)
		r.passes(t, owner, next)
		gone := time.Now()
		changes = append(changes, gone.Sub(before))
		ends = append(ends, gone.Sub(<-taken))
		require.NoError(t, <-plain)
		require.NoError(t, raw.Close())
		subs.hear(t, gone)
		gaps = append(gaps, subs.take()...)
		sc.while(t, 0, 100*time.Millisecond)
		owner = next
	}
	rate := float64(sc.load.count()-written) / time.Since(began).Seconds()
	t.Logf("%d hand-overs at %.0f transactions/s", handOvers, rate)
	t.Logf("longest silence around a hand-over, of each subscriber: %s", spread(gaps))
	t.Logf("from the start of the new one to the end of the old one: %s", spread(changes))
	t.Logf("from the take-over to the end of the old one: %s", spread(ends))

	sc.settle(t)
	subs.finish(t, sc, tell[string](t, r.log, `select head from cdc.status`))
	require.NoError(t, sc.check.Done(""))
	r.tidies(t, owner)
	require.Equal(t, owner.task, tell[string](t, r.log, `select split_part(owner, '/', 1) from cdc.status`))
	owner.signal(syscall.SIGTERM)
	require.Equal(t, 0, owner.code(t, endurance), "%s", owner.says())
	require.Equal(t, 2, tell[int](t, r.conn, slotsOf), "the one in use and the oracle's")
}

// subscribes asks the owner for the change stream, which is granted once it is at work.
func (ch *scene) subscribes(t *testing.T, watermark string) (raw *websocket.Conn) {
	t.Helper()
	require.Eventually(t, func() bool {
		address, err := ch.find(t.Context())
		if err == nil {
			raw, _, err = upgrade(t.Context(), address, wants(ch.version, watermark))
		}
		return err == nil && raw != nil
	}, endurance, glimpse, "nobody serves")
	t.Cleanup(func() { _ = raw.Close() })
	return raw
}

// hears tells when the log is taken by somebody else.
func (r *relay) hears(t *testing.T) <-chan time.Time {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.logURL)
	require.NoError(t, err)
	do(t, conn, `listen cdc`)
	owner := tell[string](t, conn, `select owner from cdc.status`)
	heard, ended := make(chan time.Time, 1), make(chan struct{})
	ctx, cancel := waitContext()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		defer cancel()
		defer conn.Close(context.WithoutCancel(ctx))
		for {
			_, err := conn.WaitForNotification(ctx)
			now := time.Now()
			if err != nil {
				heard <- now // how the hand-over ends says what is wrong
				return
			}
			if other, err := ask[string](ctx, conn, `select owner from cdc.status`); err != nil || other != owner {
				heard <- now
				return
			}
		}
	}()
	return heard
}

// watchers are subscribers of several kinds, whose silences are measured. All of them ask
// the change database for the owner whenever they connect.
type watchers struct {
	silences []*silence
	logs     []*logText
	tail     *child
	state    string // the file of the tail
	whole    *Watched
}

func newWatchers(t *testing.T, r *relay, sc *scene) *watchers {
	t.Helper()
	s := &watchers{state: filepath.Join(t.TempDir(), "state")}
	start := client.Position{ReplicaVersion: sc.version, Watermark: sc.version}
	for name, tune := range map[string]func(*client.Config){
		"the newest": func(*client.Config) {},
		"an old one": func(cfg *client.Config) { cfg.Version = 4 },
		"a backup":   func(cfg *client.Config) { cfg.Mode = "backup" },
	} {
		quiet, log := &silence{}, &logText{}
		s.silences, s.logs = append(s.silences, quiet), append(s.logs, log)
		sc.followers = append(sc.followers, followAs(t, sc.check, name, sc.find, start, func(m client.Message) {
			if m.Kind == client.Commit {
				quiet.committed()
			}
		}, func(cfg *client.Config) {
			tune(cfg)
			cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
		}))
	}
	quiet := &silence{}
	s.silences = append(s.silences, quiet)
	s.whole = sc.check.Subscriber("the command", sc.version)
	s.tail = printing(t, r.program, &lines{each: func(line []byte) {
		if bytes.HasPrefix(line, []byte(`["commit",`)) {
			quiet.committed()
		}
		_ = s.whole.Message(line) // the checker keeps what it says
	}}, "tail", "--change-db", r.logURL, "--schema", "cdc", "--from", sc.version, "--replica-version", sc.version, "--state", s.state)
	return s
}

// hear waits until everybody has received a commit since then.
func (s *watchers) hear(t *testing.T, then time.Time) {
	t.Helper()
	for i, quiet := range s.silences {
		require.Eventually(t, func() bool { return quiet.since(then) }, endurance, glimpse, "subscriber %d hears nothing more", i)
	}
}

// take returns the longest silence of each since the last call.
func (s *watchers) take() []time.Duration {
	list := make([]time.Duration, len(s.silences))
	for i, quiet := range s.silences {
		list[i] = quiet.take()
	}
	return list
}

// finish ends the command, which must have everything up to a commit, and has a look at
// what the others had to say: they mend what a server does wrong, and nobody would see it.
func (s *watchers) finish(t *testing.T, sc *scene, last string) {
	t.Helper()
	require.Eventually(t, func() bool { return s.whole.Whole() == last || sc.check.Err() != nil }, endurance, glimpse, "%s", s.tail.log)
	s.tail.signal(syscall.SIGTERM)
	require.Equal(t, 0, s.tail.code(t, endurance), "%s", s.tail.log)
	content, err := os.ReadFile(s.state)
	require.NoError(t, err)
	require.Contains(t, string(content), `"`+last+`"`)
	for _, log := range append(s.logs, s.tail.log) {
		require.NotContains(t, log.String(), "broke the protocol")
	}
}
