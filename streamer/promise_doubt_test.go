package streamer_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/change"
	"millrace/streamer/changelog"
	"millrace/streamer/subscriber"
	"millrace/streamer/tail"
	"millrace/streamer/watermark"
)

// TestLargeTransactionWhoseCommitIsSlow: the connection of a large transaction is lost
// while the server commits it, and its beginning was dropped. The head does not have it
// yet, so it looks as if it had died. What then comes again from upstream may be decoded
// otherwise, and nobody may get a mixture of it and of what the server committed [R5].
func TestLargeTransactionWhoseCommitIsSlow(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	conn := database.Conn(t)
	exec := func(query string, args ...any) {
		t.Helper()
		_, err := conn.Exec(t.Context(), query, args...)
		require.NoError(t, err, query)
	}
	exec(`select ensure_replication_config('10', '{p}', '10')`)
	exec(`select assume_ownership('me', null, '10', null)`)
	// Whoever moves the head waits for lock 1 in COMMIT.
	exec(`create function public.slow() returns trigger language plpgsql as
		'begin perform pg_advisory_xact_lock_shared(1); return null; end'`)
	exec(`create constraint trigger slow after update on "replicationState" deferrable initially deferred
		for each row execute function public.slow()`)

	cfg, err := pgx.ParseConfig(database.URL)
	require.NoError(t, err)
	cfg.RuntimeParams["search_path"] = pgtest.Schema
	cfg.RuntimeParams["application_name"] = storeApplication
	var mu sync.Mutex
	var conns []net.Conn
	dial := cfg.DialFunc
	storeCfg := cfg.Copy()
	storeCfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err == nil {
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
		return c, err
	}

	l, err := tail.New(tail.Config{Start: "10", MaxBytes: 1 << 10})
	require.NoError(t, err)
	stored := make(chan string, 100)
	store, err := changelog.NewStore(changelog.Config{
		Conn: storeCfg, Owner: "me", ReplicaVersion: "10", Head: "10", Tail: l, BatchRows: 3,
		Stored: func(w string) { stored <- w }, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	all.Go(func() { _ = l.Run(ctx) })
	all.Go(func() { _ = store.Run(ctx) })
	defer all.Wait()
	defer cancel()

	pages, err := changelog.NewPages(changelog.PagesConfig{Conn: cfg, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer pages.Close()
	subscribe := func() *sub {
		s, err := subscriber.New(subscriber.Config{
			Watermark: "10", ReplicaVersion: "10", Tail: l,
			Pages: func(_ context.Context, after watermark.Position, b *change.Block) (subscriber.Page, error) {
				page, err := pages.Read(t.Context(), after, b)
				return subscriber.Page(page), err
			},
		})
		require.NoError(t, err)
		return &sub{t, s}
	}
	give := func(rows ...string) (broken bool) {
		for _, row := range rows {
			for room := l.Room(); room != nil; room = l.Room() {
				select {
				case <-room:
				case <-time.After(serverPatience):
					require.FailNow(t, "no room")
				}
			}
			if l.Restart() {
				return true
			}
			l.Data(change.Append(nil, change.Data, []byte(`"`+longRow(row)+`"`), "11"), change.Insert)
		}
		l.Publish()
		return false
	}
	begin := func() { l.Begin(change.Append(nil, change.Begin, []byte(`{"tag":"begin"}`), "11"), "11") }
	commit := func() {
		l.Commit(change.Append(nil, change.Commit, []byte(`{"tag":"commit"}`), "11"))
		l.Publish()
	}
	waiting := func(condition string) {
		t.Helper()
		deadline := time.Now().Add(serverPatience)
		for done := false; !done; {
			require.True(t, time.Now().Before(deadline), condition)
			require.NoError(t, conn.QueryRow(t.Context(), `select `+condition+` from pg_sleep(0.01)`).Scan(&done))
		}
	}

	exec(`select pg_advisory_lock(1)`)
	begin()
	require.False(t, give("a", "b", "c", "d", "e", "f"))
	for room := l.Room(); room != nil; room = l.Room() {
		<-room
	}
	require.False(t, l.Kept(0))
	commit()
	const blocked = `(select count(*) from pg_stat_activity where datname = current_database()
		and application_name = '` + storeApplication + `' and wait_event_type = 'Lock')`
	waiting(blocked + ` = 1`)
	mu.Lock()
	for _, c := range conns {
		_ = c.Close() // the server does not notice while it commits
	}
	mu.Unlock()

	// The store connects again and decides: at once, or when it knows how it ended.
	for deadline := time.Now().Add(serverPatience); !l.Restart(); {
		require.True(t, time.Now().Before(deadline), "the store does not come back")
		var waits bool
		require.NoError(t, conn.QueryRow(t.Context(), `select `+blocked+` > 1 from pg_sleep(0.01)`).Scan(&waits))
		if waits {
			break
		}
	}
	again := l.Restart()
	exec(`select pg_advisory_unlock(1)`)
	waiting(`(select "lastWatermark" = '11' from "replicationState")`)
	one := subscribe()
	var got string
	if again {
		l.Abort()
		begin()
		give("A")
		got, err = one.takeUntil(2)
		require.NoError(t, err)
		require.Equal(t, "begin 11 A", strings.NewReplacer(".", "", `"`, "").Replace(got))
		give("B", "C", "D", "E", "F")
		commit()
	}
	for w := ""; w < "11"; {
		select {
		case w = <-stored:
		case <-time.After(serverPatience):
			require.FailNow(t, "it is never stored")
		}
	}
	rest := one.take()
	got = strings.NewReplacer(".", "", `"`, "").Replace(strings.TrimSpace(got + " " + rest))
	require.Contains(t, []string{
		"begin 11 a b c d e f commit 11",
		"begin 11 A B C D E F commit 11",
		"begin 11 A rollback begin 11 a b c d e f commit 11",
	}, got)
}
