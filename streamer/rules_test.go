package streamer_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
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

// The tests here are the runs that the protocol's rules name, each of which breaks a
// promise without its rule. Every test is named after the rule. Where the rule is about
// the log's SQL they run on a real server, else the log is a model of it.

// story is a process, its log and what happens to them, one step after the other.
type story struct {
	t     testing.TB
	tail  *tail.Tail
	log   *modelLog
	store *modelStore
	w     string
}

// longRow is a row of about the size of a block of the smallest tail.
func longRow(name string) string { return name + strings.Repeat(".", 900) }

func newStory(t testing.TB, budget int64) *story {
	l, err := tail.New(tail.Config{Start: "10", MaxBytes: budget})
	require.NoError(t, err)
	log := newModelLog("00", "10")
	return &story{t: t, tail: l, log: log, store: newModelStore(l, log, 2)}
}

// begin appends the beginning of a transaction.
func (s *story) begin(w string, rows ...string) {
	s.w = w
	s.tail.Begin(change.Append(nil, change.Begin, []byte(`begin`), w), w)
	s.rows(rows...)
}

func (s *story) rows(rows ...string) {
	for _, row := range rows {
		s.tail.Data(change.Append(nil, change.Data, []byte(longRow(row)), s.w), change.Insert)
	}
	s.tail.Publish()
}

func (s *story) commit() {
	s.tail.Commit(change.Append(nil, change.Commit, []byte(`commit`), s.w))
	s.tail.Publish()
}

func (s *story) transaction(w string, rows ...string) {
	s.begin(w, rows...)
	s.commit()
}

// stores lets the store do all it can.
func (s *story) stores() {
	for range 10 {
		require.NoError(s.t, s.store.step(1000, fine))
	}
}

// sub is a subscriber of a story.
type sub struct {
	t testing.TB
	s *subscriber.Subscription
}

func (s *story) subscribe(at string) *sub {
	got, err := subscriber.New(subscriber.Config{
		Watermark: at, ReplicaVersion: "00", Tail: s.tail, Pages: s.log.pages(2, 1<<20),
	})
	require.NoError(s.t, err)
	return &sub{s.t, got}
}

// take returns all there is, in short: "begin 11 a b commit 11".
func (s *sub) take() string {
	text, err := s.takeUntil(1 << 30)
	require.NoError(s.t, err)
	return text
}

func (s *sub) takeUntil(messages int) (string, error) {
	var list []string
	idle := 0
	for len(list) < messages && idle < 5 {
		frames, ok, err := s.s.Next()
		if err == nil && !ok {
			if err = s.s.Wait(stopped); errors.Is(err, context.Canceled) {
				err = nil
				idle = 5
			}
			idle++
		}
		if err != nil {
			return strings.Join(list, " "), err
		}
		if !ok {
			continue
		}
		idle = 0
		if frames.Literal != nil {
			if text := short(frames.Literal); text != "status" {
				list = append(list, text)
			}
			continue
		}
		for i := range frames.Run.Len() {
			list = append(list, short(frames.Run.Message(i)))
		}
	}
	return strings.Join(list, " "), nil
}

func short(message []byte) string {
	text := string(message)
	kind := strings.SplitN(text[2:], `"`, 2)[0]
	switch kind {
	case "begin", "commit":
		return kind + " " + text[strings.LastIndex(text, `:"`)+2:len(text)-3]
	case "data":
		return strings.TrimRight(strings.TrimSuffix(strings.TrimPrefix(text, `["data",`), "]"), ".")
	}
	return kind
}

func (s *story) logged() string {
	var list []string
	for _, tx := range s.log.txs {
		for _, c := range tx.changes[1 : len(tx.changes)-1] {
			list = append(list, strings.TrimRight(c, "."))
		}
		list = append(list, tx.watermark)
	}
	return strings.Join(list, " ")
}

// T is stored and its begin dropped, its rows are still in memory, S stands before T.
func TestR1FloorIsAPair(t *testing.T) {
	t.Parallel()
	s := newStory(t, 1<<10)
	s.transaction("11", "a", "b", "c", "d")
	s.stores()
	require.False(t, s.tail.Kept(0), "the begin is dropped")
	require.True(t, s.tail.Kept(5), "the end is not")
	require.Equal(t, "begin 11 a b c d commit 11", s.subscribe("10").take())
	require.Empty(t, s.subscribe("11").take())
}

// A keepalive at p shows everything up to p - 1: the next commit may be at p.
func TestR2ShownEndsBeforeTheKeepalive(t *testing.T) {
	t.Parallel()
	s := newStory(t, 1<<20)
	const p = 37
	commit := watermark.Encode(p)
	backfill := watermark.WithMinor(watermark.Encode(p-1), 1)
	require.Less(t, backfill, commit)
	require.Less(t, commit, watermark.WithMinor(commit, 1), "numbered at p it would hide the commit")
	one := s.subscribe("10")
	s.tail.Shown(watermark.Encode(p - 1))
	s.transaction(backfill, "filled")
	require.Equal(t, "begin 110.01 filled commit 110.01", one.take())
	s.transaction(commit, "a")
	require.Equal(t, "begin 111 a commit 111", one.take())
	s.stores()
	require.Equal(t, "filled 110.01 a 111", s.logged())
}

// The store fails while T and U are in the tail, and then the stream breaks.
func TestR4WatermarksGrow(t *testing.T) {
	t.Parallel()
	s := newStory(t, 1<<20)
	one := s.subscribe("10")
	s.transaction("11", "t")
	for range 5 {
		require.NoError(t, s.store.step(1000, diedBefore))
	}
	s.transaction("12", "u")
	s.begin("13", "v")
	s.tail.Abort()
	require.Equal(t, "12", s.tail.Last(), "the stream starts behind the tail, not behind the log")
	require.Equal(t, "10", s.log.head)
	s.transaction("13", "again")
	require.Equal(t, "begin 11 t commit 11 begin 12 u commit 12 begin 13 again commit 13", one.take())
	s.stores()
	require.Equal(t, "t 11 u 12 again 13", s.logged())
	for at, want := range map[string]string{"11": "begin 12 u commit 12 begin 13 again commit 13", "12": "begin 13 again commit 13", "13": ""} {
		require.Equal(t, want, s.subscribe(at).take(), at)
	}
}

// S is inside T, T falls out of the tail, the stream breaks, T comes again otherwise.
func TestR5InsideOneAttempt(t *testing.T) {
	t.Parallel()
	fallen := func(t *testing.T) (*story, *sub) {
		s := newStory(t, 1<<10)
		one := s.subscribe("10")
		s.begin("11", "a")
		require.Equal(t, "begin 11 a", one.take())
		s.rows("b", "c", "d")
		s.tail.Room() // the store must store it as it arrives
		for range 8 {
			require.NoError(t, s.store.step(3, fine))
		}
		require.False(t, s.tail.Kept(2), "the next message is gone")
		return s, one
	}
	t.Run("not known yet", func(t *testing.T) {
		t.Parallel()
		_, one := fallen(t)
		require.Empty(t, one.take(), "it waits")
	})
	t.Run("stored", func(t *testing.T) {
		t.Parallel()
		s, one := fallen(t)
		s.rows("e")
		s.commit()
		s.stores()
		s.transaction("12", "next")
		require.Equal(t, "b c d e commit 11 begin 12 next commit 12", one.take(), "it goes on behind its position")
	})
	t.Run("cut off", func(t *testing.T) {
		t.Parallel()
		s, one := fallen(t)
		s.tail.Abort()
		s.begin("11", "A", "B", "C", "D", "E", "F")
		s.tail.Room()
		require.NoError(t, s.store.step(1, fine))
		s.commit()
		s.stores()
		require.Equal(t, "rollback begin 11 A B C D E F commit 11", one.take())
		require.Equal(t, "A B C D E F 11", s.logged())
	})
	t.Run("cut off twice", func(t *testing.T) {
		t.Parallel()
		s, one := fallen(t)
		s.tail.Abort()
		s.begin("11", "A", "B", "C")
		s.tail.Abort()
		require.Equal(t, "rollback", one.take())
		s.transaction("11", "x")
		require.Equal(t, "begin 11 x commit 11", one.take())
	})
}

// The begin of an aborted attempt was dropped; a reader between transactions meets its end.
func TestR6AbortedAttemptIsSkippedWhole(t *testing.T) {
	t.Parallel()
	s := newStory(t, 1<<10)
	s.transaction("11", "before")
	s.stores()
	one := s.subscribe("11") // stands at the begin
	s.begin("12", "a", "b", "c", "d")
	s.tail.Room()
	for range 3 {
		require.NoError(t, s.store.step(4, fine))
	}
	require.False(t, s.tail.Kept(3))
	require.True(t, s.tail.Kept(7))
	s.tail.Abort()
	require.Empty(t, one.take())
	require.Empty(t, s.subscribe("11").take())
	s.transaction("12", "again")
	require.Equal(t, "begin 12 again commit 12", one.take())
	require.Equal(t, "begin 12 again commit 12", s.subscribe("11").take())
	s.stores()
	require.Equal(t, "before 11 again 12", s.logged())
}

// The database transaction of the store dies inside a large T.
func TestR7LargeTransactionDies(t *testing.T) {
	t.Parallel()
	t.Run("all of it is kept", func(t *testing.T) {
		t.Parallel()
		s := newStory(t, 1<<20)
		one := s.subscribe("10")
		s.begin("11", "a", "b", "c", "d")
		require.NoError(t, s.store.step(1000, fine)) // more than two: it is opened
		require.NoError(t, s.store.step(3, diedBefore))
		require.False(t, s.tail.Restart(), "it is stored again from its begin")
		s.commit()
		s.stores()
		require.Equal(t, "begin 11 a b c d commit 11", one.take())
		require.Equal(t, "a b c d 11", s.logged())
	})
	t.Run("a part was dropped", func(t *testing.T) {
		t.Parallel()
		s := newStory(t, 1<<10)
		one := s.subscribe("10")
		s.begin("11", "a", "b", "c", "d")
		require.Equal(t, "begin 11 a b c d", one.take())
		s.tail.Room()
		for range 3 {
			require.NoError(t, s.store.step(3, fine))
		}
		require.False(t, s.tail.Kept(0))
		require.NoError(t, s.store.step(1, diedBefore))
		require.True(t, s.tail.Restart(), "the stream must start again")
		s.stores()
		require.Empty(t, s.logged(), "without its first half it is not stored")
		s.commit()
		s.transaction("12", "e") // the source does not know yet
		s.tail.Abort()
		require.Equal(t, "10", s.tail.Last())
		s.transaction("11", "A")
		s.transaction("12", "e")
		s.stores()
		require.Equal(t, "rollback begin 11 A commit 11 begin 12 e commit 12", one.take())
		require.Equal(t, "A 11 e 12", s.logged())
	})
	t.Run("whoever has it whole gets it once", func(t *testing.T) {
		t.Parallel()
		s := newStory(t, 1<<10)
		one := s.subscribe("10")
		s.begin("11", "a", "b", "c", "d")
		require.Equal(t, "begin 11 a b c d", one.take())
		s.tail.Room()
		for range 3 {
			require.NoError(t, s.store.step(3, fine))
		}
		s.commit()
		require.Equal(t, "commit 11", one.take())
		require.NoError(t, s.store.step(1, diedBefore))
		s.tail.Abort()
		s.transaction("11", "A")
		s.transaction("12", "e")
		require.Equal(t, "begin 12 e commit 12", one.take())
	})
}

// serverStory is a log on a real server with a real store.
type serverStory struct {
	t      testing.TB
	conn   *pgx.Conn
	cfg    *pgx.ConnConfig
	tail   *tail.Tail
	stored chan string
	pages  *changelog.Pages
}

func newServerStory(t testing.TB) *serverStory {
	database := pgtest.New(t)
	cfg, err := pgx.ParseConfig(database.URL)
	require.NoError(t, err)
	cfg.RuntimeParams["search_path"] = pgtest.Schema
	cfg.RuntimeParams["application_name"] = storeApplication
	s := &serverStory{t: t, conn: database.Conn(t), cfg: cfg, stored: make(chan string, 1000)}
	s.exec(`select ensure_replication_config('10', '{p}', '10')`)
	s.exec(`select assume_ownership('me', null, '10', null)`)
	s.tail, err = tail.New(tail.Config{Start: "10"})
	require.NoError(t, err)
	store, err := changelog.NewStore(changelog.Config{
		Conn: cfg, Owner: "me", ReplicaVersion: "10", Head: "10", Tail: s.tail,
		Stored: func(w string) { s.stored <- w }, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	s.pages, err = changelog.NewPages(changelog.PagesConfig{Conn: cfg, MaxRows: 2, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(s.pages.Close)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = store.Run(ctx) // a story may take the log away from it
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return s
}

func (s *serverStory) exec(query string) {
	s.t.Helper()
	_, err := s.conn.Exec(s.t.Context(), query)
	require.NoError(s.t, err, query)
}

// transaction is stored when it returns.
func (s *serverStory) transaction(w string, rows ...string) {
	s.t.Helper()
	s.tail.Begin(change.Append(nil, change.Begin, []byte(`{"tag":"begin"}`), w), w)
	for _, row := range rows {
		s.tail.Data(change.Append(nil, change.Data, []byte(`"`+row+`"`), w), change.Insert)
	}
	s.tail.Commit(change.Append(nil, change.Commit, []byte(`{"tag":"commit"}`), w))
	s.tail.Publish()
	for {
		select {
		case got := <-s.stored:
			if got >= w {
				return
			}
		case <-time.After(serverPatience):
			require.FailNow(s.t, "it is not stored", w)
		}
	}
}

// subscribe subscribes to the log alone: the tail is that of a process that has just
// started.
func (s *serverStory) subscribe(at string) *sub {
	empty, err := tail.New(tail.Config{Start: "zzzz"})
	require.NoError(s.t, err)
	got, err := subscriber.New(subscriber.Config{
		Watermark: at, ReplicaVersion: "10", Tail: empty,
		Pages: func(_ context.Context, after watermark.Position, b *change.Block) (subscriber.Page, error) {
			page, err := s.pages.Read(s.t.Context(), after, b)
			return subscriber.Page(page), err
		},
	})
	require.NoError(s.t, err)
	return &sub{s.t, got}
}

// T U are sent again after their COMMIT, and a batch that lies wholly below the head.
func TestR8StoringIsIdempotent(t *testing.T) {
	t.Parallel()
	s := newServerStory(t)
	send := func(watermarks ...string) (head string) {
		var positions []int64
		var each, changes []string
		var precommits []*string
		for _, w := range watermarks {
			each = append(each, w, w)
			positions = append(positions, 0, 1)
			changes = append(changes, `{"tag":"begin"}`, `{"tag":"commit"}`)
			precommits = append(precommits, nil, &w)
		}
		var stored int64
		require.NoError(t, s.conn.QueryRow(t.Context(), `select stored, head from store_changes(owner => 'me', replica_version => '10',
			expected_head => '10', watermarks => $1, positions => $2, changes => $3::text[]::json[], precommits => $4, last_watermark => $5)`,
			each, positions, changes, precommits, watermarks[len(watermarks)-1]).Scan(&stored, &head))
		return head
	}
	require.Equal(t, "12", send("11", "12"))
	require.Equal(t, "12", send("11", "12"), "the answer to COMMIT was lost")
	require.Equal(t, "13", send("12", "13"))
	require.Equal(t, "13", send("11"), "the head never falls")
	require.Equal(t, "begin 11 commit 11 begin 12 commit 12 begin 13 commit 13", s.subscribe("10").take())
}

// S is inside T, and the log is re-seeded, reset, or goes on.
func TestR22PageIsOneSnapshot(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		then []string
		want string // what it still gets
		err  string
	}{
		{"it goes on", nil, "b c d commit 12 begin 13 commit 13", ""},
		{"purged before T", []string{`delete from "changeLog" where watermark < '11'`}, "b c d commit 12 begin 13 commit 13", ""},
		{"purged past the last transaction sent whole", []string{`delete from "changeLog" where watermark < '12'`}, "", "minimum is 12"},
		{"re-seeded at T", []string{
			`delete from "changeLog" where watermark < '12'`,
			`delete from "changeLog" where watermark > '12' or pos > 1`,
			`update "replicationState" set "lastWatermark" = '12'`,
		}, "", "minimum is 12"},
		{"reset", []string{
			`update "replicationState" set owner = null`,
			`select ensure_replication_config('14', '{p}', '14', auto_reset => true)`,
		}, "", "replica version is 14"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServerStory(t)
			s.transaction("11")
			s.transaction("12", "a", "b", "c", "d")
			s.transaction("13")
			one := s.subscribe("10")
			got, err := one.takeUntil(4)
			require.NoError(t, err)
			require.Equal(t, `begin 11 commit 11 begin 12 "a"`, got)
			for _, query := range tt.then {
				s.exec(query)
			}
			got, err = one.takeUntil(1 << 30)
			require.Equal(t, tt.want, strings.ReplaceAll(got, `"`, ""))
			if tt.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, subscriber.ErrStale)
			require.ErrorContains(t, err, tt.err)
		})
	}
}

// A position at or past the minimum is covered, whether a transaction ends there or not;
// one past the head is normal; the seed is never sent.
func TestR23CoveredWithoutABoundary(t *testing.T) {
	t.Parallel()
	s := newServerStory(t)
	const rest = "begin 13 commit 13"
	require.Empty(t, s.subscribe("10").take(), "an empty log, and no seed")
	s.transaction("11")
	s.transaction("13")
	for at, want := range map[string]string{
		"10":    "begin 11 commit 11 " + rest, // the seed
		"10.01": "begin 11 commit 11 " + rest, // forwarded once, never stored
		"11":    rest,
		"11.01": rest,
		"12":    rest,
		"13":    "",
		"13.01": "", // past the head
		"20":    "",
	} {
		require.Equal(t, want, s.subscribe(at).take(), at)
	}
	s.transaction("14")
	ahead := s.subscribe("13.01")
	require.Equal(t, "begin 14 commit 14", ahead.take())
	s.exec(`delete from "changeLog" where watermark < '13'`)
	require.Equal(t, "begin 14 commit 14", s.subscribe("13").take(), "the minimum itself is covered")
	_, err := s.subscribe("12.0z").takeUntil(1)
	require.ErrorIs(t, err, subscriber.ErrStale, "what is before it is not")
}
