package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/subscriber"
	"millrace/streamer/watermark"
	"millrace/streamer/wire"
)

// noTail is the tail of a process that owns nothing yet: everything is in the log.
type noTail struct{}

func (noTail) Seek(watermark.Position) (int64, bool) { return 0, false }

func (noTail) Read(seq, _ int64) (change.Run, int64, change.Found) {
	return change.Run{}, seq, change.Dry
}
func (noTail) Outcome(int64) (int64, bool, bool)         { return 0, false, false }
func (noTail) Notify(int64, int64, chan<- struct{}) bool { return true }
func (noTail) NotifyStored(chan<- struct{})              {}
func (noTail) Forget(chan<- struct{})                    {}

// logged is a message of the log.
type logged struct {
	w      string
	pos    int64
	kind   change.Kind
	change string
}

func transaction(w string, changes ...string) []logged {
	list := []logged{{w, 0, change.Begin, `{"tag":"begin"}`}}
	for _, c := range changes {
		list = append(list, logged{w, int64(len(list)), change.Data, c})
	}
	return append(list, logged{w, int64(len(list)), change.Commit, `{"tag":"commit"}`})
}

func (m logged) text() string { return string(change.Append(nil, m.kind, []byte(m.change), m.w)) }

// theLog is a log that does not grow by itself.
type theLog struct {
	messages         []logged
	minimum, version string
	perPage          int
	err              error
	reads            int
}

func (l *theLog) page(_ context.Context, after watermark.Position, b *change.Block) (subscriber.Page, error) {
	l.reads++
	b.Reset(0)
	attempt, last := int64(-1), ""
	for _, m := range l.messages {
		at := watermark.Position{Watermark: m.w, Pos: m.pos}
		if m.w != last {
			attempt--
			last = m.w
		}
		if at.Compare(after) <= 0 || b.Len() == l.perPage {
			continue
		}
		tag := change.Other
		if m.kind == change.Data {
			tag = change.ParseTag([]byte(m.change))
		}
		b.Add([]byte(m.text()), m.kind, tag, change.Tx{Watermark: m.w, Attempt: attempt, Pos: m.pos})
	}
	return subscriber.Page{Run: b.Run(0, b.Len()), Minimum: l.minimum, Head: last, ReplicaVersion: l.version}, l.err
}

func newLog(transactions ...[]logged) *theLog {
	l := &theLog{minimum: "10", version: "00", perPage: 1000}
	for _, tx := range transactions {
		l.messages = append(l.messages, tx...)
	}
	return l
}

func subscribe(t testing.TB, l *theLog, cfg subscriber.Config) *subscriber.Subscription {
	cfg.Watermark, cfg.ReplicaVersion, cfg.Tail, cfg.Pages = "10", "00", noTail{}, l.page
	s, err := subscriber.New(cfg)
	require.NoError(t, err)
	return s
}

// next returns what is handed out next, each message as "id text".
func next(t testing.TB, s *subscriber.Subscription) []string {
	for {
		frames, ok, err := s.Next()
		require.NoError(t, err)
		if ok {
			return texts(frames)
		}
		if err := s.Wait(ended); errors.Is(err, context.Canceled) {
			return nil
		}
	}
}

// all returns all that is handed out without an ack, and the error that ends it.
func all(s *subscriber.Subscription) (list []string, err error) {
	for {
		frames, ok, err := s.Next()
		if err == nil && !ok {
			err = s.Wait(ended)
		}
		if errors.Is(err, context.Canceled) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		if ok {
			list = append(list, texts(frames)...)
		}
	}
}

func texts(frames subscriber.Frames) (list []string) {
	if frames.Literal != nil {
		return []string{fmt.Sprint(frames.FirstID, " ", string(frames.Literal))}
	}
	for i := range frames.Run.Len() {
		list = append(list, fmt.Sprint(frames.FirstID+uint64(i), " ", string(frames.Run.Message(i)))) //nolint:gosec // small
	}
	return list
}

// ended is a context that lets Wait do what it can at once, and no more.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func numbered(first int, transactions ...[]logged) (list []string) {
	for _, tx := range transactions {
		for _, m := range tx {
			list = append(list, fmt.Sprint(first+len(list), " ", m.text()))
		}
	}
	return list
}

const status = "1 " + wire.StatusMessage

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	l := newLog()
	whole := subscriber.Config{Watermark: "10", ReplicaVersion: "00", Tail: noTail{}, Pages: l.page}
	_, err := subscriber.New(whole)
	require.NoError(t, err)
	for _, spoil := range []func(*subscriber.Config){
		func(c *subscriber.Config) { c.Watermark = "" },
		func(c *subscriber.Config) { c.ReplicaVersion = "" },
		func(c *subscriber.Config) { c.Tail = nil },
		func(c *subscriber.Config) { c.Pages = nil },
	} {
		cfg := whole
		spoil(&cfg)
		_, err := subscriber.New(cfg)
		require.Error(t, err)
	}
}

func TestPagesOfAnySizeGiveTheSame(t *testing.T) {
	t.Parallel()
	a, b, c := transaction("11", `{"tag":"insert"}`, `{"tag":"delete"}`), transaction("12"), transaction("12.01", `1`, `2`, `3`, `4`)
	for perPage := 1; perPage <= 14; perPage++ {
		l := newLog(a, b, c)
		l.perPage = perPage
		got, err := all(subscribe(t, l, subscriber.Config{}))
		require.NoError(t, err)
		require.Equal(t, append([]string{status}, numbered(2, a, b, c)...), got, "%d messages a page", perPage)
		require.LessOrEqual(t, l.reads, 14/perPage+2)
	}
}

func TestPagesThatEndTheSubscription(t *testing.T) {
	t.Parallel()
	unreachable := errors.New("connection refused")
	tests := []struct {
		name  string
		then  func(*theLog) // what happens once 11 is read and 12 in part
		stale bool
		want  string
	}{
		{"reset", func(l *theLog) { l.version = "20" }, true, "replica version is 20"},
		{"reset to smaller watermarks", func(l *theLog) { l.version, l.minimum = "01", "00" }, true, "replica version is 01"},
		{"purged past it", func(l *theLog) { l.minimum = "12" }, true, "minimum is 12"},
		{"re-seeded inside it", func(l *theLog) { l.messages = transaction("12.01") }, true, "transaction ends early behind 12#1"},
		{"emptied", func(l *theLog) { l.messages = nil }, true, "transaction ends early behind 12#1"},
		{"unreachable", func(l *theLog) { l.err = unreachable }, false, "connection refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := transaction("11"), transaction("12", `1`, `2`)
			l := newLog(a, b)
			l.perPage = 2
			s := subscribe(t, l, subscriber.Config{})
			require.Equal(t, []string{status}, next(t, s))
			require.Len(t, next(t, s), 2)
			require.Len(t, next(t, s), 2)
			tt.then(l)
			got, err := all(s)
			require.Empty(t, got, "nothing of another history is sent")
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, tt.stale, errors.Is(err, subscriber.ErrStale))
			var code *wire.Close
			require.NotErrorAs(t, err, &code, "it is closed plainly")
		})
	}
}

// A purge up to the transaction that was sent whole last does no harm [R22] [R23].
func TestPagesThatAreStillGood(t *testing.T) {
	t.Parallel()
	b := transaction("12", `1`, `2`)
	l := newLog(transaction("11"), b)
	l.perPage = 2
	s := subscribe(t, l, subscriber.Config{})
	require.Len(t, next(t, s), 1)
	require.Len(t, next(t, s), 2)
	require.Len(t, next(t, s), 2)
	l.minimum, l.messages = "11", l.messages[1:]
	got, err := all(s)
	require.NoError(t, err)
	require.Equal(t, numbered(4, b)[2:], got)
}

func TestProtocolVersions(t *testing.T) {
	t.Parallel()
	metadata, fill, filled := `{"tag":"update-table-metadata"}`, `{"tag":"backfill"}`, `{"tag":"backfill-completed"}`
	insert := `{"tag":"insert"}`
	tests := []struct {
		name    string
		version int
		changes []string
		want    []string // changes that arrive
		closed  bool
	}{
		{"v6 gets everything", 6, []string{metadata, fill, filled, insert}, []string{metadata, fill, filled, insert}, false},
		{"v5 gets metadata", 5, []string{insert, metadata}, []string{insert, metadata}, false},
		{"v4 does without metadata", 4, []string{metadata, insert, metadata, metadata, insert}, []string{insert, insert}, false},
		{"v4 with nothing but metadata", 4, []string{metadata}, nil, false},
		{"v5 cannot be backfilled", 5, []string{insert, fill, insert}, []string{insert}, true},
		{"v4 cannot be backfilled", 4, []string{metadata, filled}, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := transaction("11", insert)
			s := subscribe(t, newLog(before, transaction("12", tt.changes...)), subscriber.Config{Version: tt.version})
			require.Equal(t, tt.version, s.Version())
			got, err := all(s)
			sent := transaction("12", tt.want...)
			if tt.closed {
				sent = sent[:len(sent)-1]
			}
			want := numbered(2, before, sent)
			if wire.HasStatus(tt.version) {
				want = append([]string{status}, want...)
			} else {
				want = numbered(1, before, sent)
			}
			require.Equal(t, want, got, "and the ids have no gap")
			if !tt.closed {
				require.NoError(t, err)
				return
			}
			var code *wire.Close
			require.ErrorAs(t, err, &code)
			require.Equal(t, wire.CloseProtocol, code.Code)
			require.True(t, code.Delay)
		})
	}
}

func TestMessageThatIsTooLarge(t *testing.T) {
	t.Parallel()
	before := transaction("11", `1`)
	large := `{"tag":"insert","relation":{"schema":"app","name":"blob","rowKey":{"columns":["id"]}},"new":"` + strings.Repeat("x", 1000) + `"}`
	message := len(`["data",`) + len(large) + 1
	got, err := all(subscribe(t, newLog(before, transaction("12", `1`, large)), subscriber.Config{MaxFrame: message}))
	require.Equal(t, append([]string{status}, numbered(2, before, transaction("12", `1`)[:2])...), got, "everything before it is sent")
	var code *wire.Close
	require.ErrorAs(t, err, &code)
	require.Equal(t, wire.CloseTooBig, code.Code)
	require.Contains(t, code.Reason, "insert of app.blob")
	require.True(t, code.Delay)

	_, err = all(subscribe(t, newLog(before, transaction("12", `1`, large)), subscriber.Config{MaxFrame: message + 64}))
	require.NoError(t, err, "it fits")
}

// Old versions get relations written out: what is sent is larger than what is stored.
func TestMessageThatIsTooLargeForAnOldVersionOnly(t *testing.T) {
	t.Parallel()
	change := `{"tag":"insert","relation":{"schema":"app","name":"t","rowKey":{"columns":["` + strings.Repeat("c", 60) +
		`"],"type":"default"}},"new":"` + strings.Repeat("x", 1000) + `"}`
	cfg := subscriber.Config{Version: 5, MaxFrame: len(`["data",]`) + len(change) + 64}
	_, err := all(subscribe(t, newLog(transaction("11", change)), cfg))
	require.NoError(t, err)
	cfg.Version = 4
	_, err = all(subscribe(t, newLog(transaction("11", change)), cfg))
	var code *wire.Close
	require.ErrorAs(t, err, &code)
	require.Equal(t, wire.CloseTooBig, code.Code)
}

func TestAcksComeInOrder(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]uint64{{0}, {2}, {1, 1}, {1, 3}, {1, 2, 3, 4, 5}, {1<<64 - 1}} {
		s := subscribe(t, newLog(transaction("11", `1`)), subscriber.Config{})
		_, err := all(s) // four frames
		require.NoError(t, err)
		for i, id := range ids {
			if err = s.Ack(id); i < len(ids)-1 {
				require.NoError(t, err)
			}
		}
		require.Error(t, err, "%v", ids)
	}
	s := subscribe(t, newLog(), subscriber.Config{})
	require.Error(t, s.Ack(1), "nothing was sent")
}

func TestAckedIsTheLastCommitAckedWhole(t *testing.T) {
	t.Parallel()
	s := subscribe(t, newLog(transaction("11"), transaction("12")), subscriber.Config{WindowFrames: 1})
	want := []string{"10", "10", "11", "11", "12"}
	for i := range want {
		require.Len(t, next(t, s), 1)
		require.Nil(t, next(t, s), "one frame is out")
		require.NoError(t, s.Ack(uint64(i+1))) //nolint:gosec // small
		require.Equal(t, want[i], s.Acked())
	}
	require.Nil(t, next(t, s))
}

func TestWindow(t *testing.T) {
	t.Parallel()
	row := `"` + strings.Repeat("x", 998) + `"`
	rows := transaction("11", row, row, row, row, row, row)
	tests := []struct {
		name   string
		cfg    subscriber.Config
		bursts []int // frames handed out, each burst after all before were acked
	}{
		{"frames", subscriber.Config{WindowFrames: 3}, []int{3, 3, 3}},
		{"bytes", subscriber.Config{WindowBytes: 2500}, []int{4, 2, 3}},
		{"frames larger than the window", subscriber.Config{WindowBytes: 500}, []int{2, 1, 1, 1, 1, 1, 1, 1}},
		{"a window of nothing", subscriber.Config{WindowBytes: 1}, []int{1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"all", subscriber.Config{}, []int{9}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := subscribe(t, newLog(rows), tt.cfg)
			var bursts []int
			var id uint64
			for {
				got, err := all(s)
				require.NoError(t, err)
				if len(got) == 0 {
					break
				}
				bursts = append(bursts, len(got))
				for range got {
					id++
					require.NoError(t, s.Ack(id))
				}
			}
			require.Equal(t, tt.bursts, bursts)
		})
	}
}

// A message that does not fit while the window is half empty waits for acks; the pump
// must not go round meanwhile.
func TestWaitForAcksIsNoBusyLoop(t *testing.T) {
	t.Parallel()
	for name, large := range map[string]int{"fits when some are acked": 900, "fits when all are acked": 5000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := newLog(transaction("11", `"`+strings.Repeat("a", 200)+`"`, `"`+strings.Repeat("b", large)+`"`))
				s := subscribe(t, log, subscriber.Config{WindowBytes: 1000})
				got, err := all(s)
				require.NoError(t, err)
				require.Len(t, got, 3, "all but the large one and the commit")
				returned := make(chan error, 1)
				go func() { returned <- s.Wait(t.Context()) }()
				synctest.Wait()
				require.Empty(t, returned, "it waits")
				for id := uint64(1); id <= 3; id++ {
					require.NoError(t, s.Ack(id))
				}
				require.NoError(t, <-returned)
				require.NotEmpty(t, next(t, s))
			})
		})
	}
}

func TestIdle(t *testing.T) {
	t.Parallel()
	s := subscribe(t, newLog(transaction("11")), subscriber.Config{})
	now := time.Unix(1000, 0)
	at := func(seconds int) time.Duration { return s.Idle(now.Add(time.Duration(seconds) * time.Second)) }
	require.Zero(t, at(0))
	require.Zero(t, at(100), "nothing is out")
	_, err := all(s)
	require.NoError(t, err)
	require.Equal(t, time.Second, at(101))
	require.Equal(t, 29*time.Second, at(129))
	require.NoError(t, s.Ack(1))
	require.Zero(t, at(130), "an ack starts the clock anew")
	require.Equal(t, 5*time.Second, at(135))
	require.NoError(t, s.Ack(2))
	require.NoError(t, s.Ack(3))
	require.Zero(t, at(136))
	require.Zero(t, at(1000), "everything is acked")
}

// The pump and the ack goroutine at once: neither loses the other, in the smallest of
// windows. It hangs if a wake-up is lost.
func TestPumpAndAcksAtOnce(t *testing.T) {
	t.Parallel()
	var transactions [][]logged
	for i := range 500 {
		transactions = append(transactions, transaction(watermark.Encode(uint64(100+i)), `"`+strings.Repeat("x", i%70)+`"`)) //nolint:gosec // small
	}
	for _, cfg := range []subscriber.Config{{WindowFrames: 1}, {WindowFrames: 7}, {WindowBytes: 100}, {WindowBytes: 1}, {WindowBytes: 3000}} {
		l := newLog(transactions...)
		l.minimum = "10"
		l.perPage = 100
		s := subscribe(t, l, cfg)
		ids := make(chan uint64, 1<<16)
		acks := make(chan error, 1)
		go func() {
			var err error
			for id := range ids {
				if e := s.Ack(id); e != nil {
					err = e
				}
			}
			acks <- err
		}()
		for sent := 0; sent < 1501; {
			frames, ok, err := s.Next()
			require.NoError(t, err)
			if !ok {
				require.NoError(t, s.Wait(t.Context()))
				continue
			}
			for i := range max(1, frames.Run.Len()) {
				ids <- frames.FirstID + uint64(i) //nolint:gosec // small
				sent++
			}
		}
		close(ids)
		require.NoError(t, <-acks)
		require.Equal(t, watermark.Encode(599), s.Acked())
	}
}
