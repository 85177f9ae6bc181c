package tail_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"millrace/streamer/change"
	"millrace/streamer/tail"
	"millrace/streamer/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTail(t require.TestingT, budget int64) *tail.Tail {
	l, err := tail.New(tail.Config{Start: "10", MaxBytes: budget})
	require.NoError(t, err)
	return l
}

// transaction appends a whole transaction of the given rows and publishes it.
func transaction(l *tail.Tail, w string, rows ...string) {
	part(l, w, rows...)
	l.Commit([]byte("commit " + w))
	l.Publish()
}

// part appends a transaction without its commit and publishes it.
func part(l *tail.Tail, w string, rows ...string) {
	l.Begin([]byte("begin "+w), w)
	for _, row := range rows {
		l.Data([]byte(row), change.Insert)
	}
	l.Publish()
}

// reader is a reader of the tail that has no log to go to.
type reader struct {
	seq, attempt int64
}

// texts reads all there is; "void" stands for a transaction that was cut off.
func (r *reader) texts(l *tail.Tail) (list []string, found change.Found) {
	for {
		run, next, found := l.Read(r.seq, r.attempt)
		switch found {
		case change.Void:
			list = append(list, "void")
			r.seq, r.attempt = next, change.Outside
			continue
		case change.Ready:
		default:
			return list, found
		}
		for i := range run.Len() {
			list = append(list, string(run.Message(i)))
		}
		r.seq, r.attempt = run.Next(), run.Tx(run.Len()-1).Attempt
		if run.Entry(run.Len()-1).Kind == change.Commit {
			r.attempt = change.Outside
		}
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	_, err := tail.New(tail.Config{})
	require.Error(t, err)
	_, err = tail.New(tail.Config{Start: "10", MaxBytes: -1})
	require.Error(t, err)
	l, err := tail.New(tail.Config{Start: "10"})
	require.NoError(t, err)
	require.Equal(t, "10", l.Last())
	require.Equal(t, watermark.After("10"), l.Floor())
}

func TestPublishMakesVisible(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<20)
	r := reader{attempt: change.Outside}
	require.False(t, l.Publish())
	l.Begin([]byte("begin 11"), "11")
	require.Equal(t, 1, l.Pending())
	list, found := r.texts(l)
	require.Empty(t, list)
	require.Equal(t, change.Dry, found)
	require.True(t, l.Publish())
	require.Zero(t, l.Pending())
	list, _ = r.texts(l)
	require.Equal(t, []string{"begin 11"}, list)
	require.Equal(t, "10", l.Last())
	l.Commit([]byte("commit 11"))
	require.Equal(t, "11", l.Last())
}

func TestAbortedAttempts(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<20)
	inside, outside := reader{attempt: change.Outside}, reader{attempt: change.Outside}
	l.Abort() // nothing is open
	transaction(l, "11", "a")
	part(l, "12", "b")
	list, _ := inside.texts(l)
	require.Equal(t, []string{"begin 11", "a", "commit 11", "begin 12", "b"}, list)
	l.Abort()
	l.Abort() // a second one finds nothing
	require.Equal(t, "11", l.Last())
	transaction(l, "12", "c")
	list, _ = inside.texts(l)
	require.Equal(t, []string{"void", "begin 12", "c", "commit 12"}, list, "who was inside is told")
	list, _ = outside.texts(l)
	require.Equal(t, []string{"begin 11", "a", "commit 11", "begin 12", "c", "commit 12"}, list, "who was not skips it whole")
}

func TestReaderAtTheEndOfAnAbortedAttemptIsTold(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<20)
	part(l, "11")
	r := reader{attempt: change.Outside}
	_, found := r.texts(l) // it has all there is and stands behind it
	require.Equal(t, change.Dry, found)
	l.Abort()
	list, _ := r.texts(l)
	require.Equal(t, []string{"void"}, list)
}

func TestSeek(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<20)
	at := func(w string) int64 {
		seq, ok := l.Seek(watermark.After(w))
		require.True(t, ok, w)
		return seq
	}
	require.Zero(t, at("10"))
	transaction(l, "11", "a") // 0 1 2
	part(l, "12", "b")        // 3 4, 5 for the void span
	l.Abort()                 //
	transaction(l, "11.01")   // 6 7: below the one cut off
	part(l, "13", "c")        // 8 9
	_, ok := l.Seek(watermark.After("0z"))
	require.False(t, ok, "before the start")
	require.EqualValues(t, 0, at("10"))
	require.EqualValues(t, 6, at("11"))
	require.EqualValues(t, 8, at("11.01"))
	require.EqualValues(t, 8, at("12"), "a position that the log never had")
	require.EqualValues(t, 10, at("13"), "ahead: the open transaction is skipped")
	require.EqualValues(t, 10, at("zz"))
}

// R1, R7: nothing whose attempt is still held may hide behind a break.
func TestSeekAfterABreakFindsWhatIsBeforeIt(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<20)
	transaction(l, "11")
	part(l, "12", "b")
	l.Break(2)
	l.Abort()
	transaction(l, "12", "c")
	seq, ok := l.Seek(watermark.After("10"))
	require.True(t, ok)
	require.Zero(t, seq)
}

func TestFloorFollowsWhatIsDropped(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<10)
	row := strings.Repeat("x", 900)
	transaction(l, "11", row)
	require.Equal(t, watermark.After("10"), l.Floor())
	part(l, "12", row, row, row)
	l.Passed(7)
	require.Equal(t, watermark.After("10"), l.Floor(), "a commit that is not durable is never dropped")
	l.Stored(3)
	require.Equal(t, watermark.Position{Watermark: "12", Pos: 2}, l.Floor())
	_, ok := l.Seek(watermark.After("11"))
	require.False(t, ok, "it would get rows without their begin")
	require.False(t, l.Kept(3))
	require.True(t, l.Kept(6))
	seq, ok := l.Seek(watermark.After("12"))
	require.True(t, ok, "ahead")
	require.EqualValues(t, 7, seq)

	l.Abort()
	require.Equal(t, watermark.After("11"), l.Floor(), "what is left of it is void")
	seq, ok = l.Seek(watermark.After("11"))
	require.True(t, ok)
	r := reader{seq: seq, attempt: change.Outside}
	transaction(l, "12", "again")
	list, _ := r.texts(l)
	require.Equal(t, []string{"begin 12", "again", "commit 12"}, list)
}

// shutTail is a tail that serves nobody yet.
func shutTail(t require.TestingT, budget int64) *tail.Tail {
	l, err := tail.New(tail.Config{Start: "10", MaxBytes: budget, Shut: true})
	require.NoError(t, err)
	return l
}

func requireShut(t *testing.T, l *tail.Tail) {
	t.Helper()
	for _, w := range []string{"0z", "10", "11", "12", "13", "zz"} {
		_, ok := l.Seek(watermark.After(w))
		require.False(t, ok, w)
	}
}

func TestShutTailIsReadByTheStoreAlone(t *testing.T) {
	t.Parallel()
	l := shutTail(t, 1<<20)
	requireShut(t, l)
	transaction(l, "11", "a") // 0 1 2
	transaction(l, "12", "b") // 3 4 5
	transaction(l, "13", "c") // 6 7 8
	requireShut(t, l)
	run, next, ok := l.StoreRead(0)
	require.True(t, ok)
	require.Zero(t, next)
	require.Equal(t, 9, run.Len())
	l.Stored(6)
	requireShut(t, l)
	require.Equal(t, watermark.After("10"), l.Floor())

	l.Open("12")
	require.Equal(t, watermark.After("12"), l.Floor(), "although more is held")
	require.True(t, l.Kept(0))
	_, ok = l.Seek(watermark.After("11"))
	require.False(t, ok, "the log may hold more before the head than the stream has shown")
	seq, ok := l.Seek(watermark.After("12"))
	require.True(t, ok)
	require.EqualValues(t, 6, seq)
	seq, ok = l.Seek(watermark.After("13"))
	require.True(t, ok)
	require.EqualValues(t, 9, seq)
}

func TestOpenWakesThoseWhoReadTheLog(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l := shutTail(t, 1<<20)
	var run sync.WaitGroup
	run.Go(func() { _ = l.Run(ctx) })
	defer run.Wait()
	defer cancel()

	a, b := make(chan struct{}, 1), make(chan struct{}, 1)
	l.NotifyStored(a)
	l.NotifyStored(b)
	l.Open("11")
	<-a
	<-b
	_, ok := l.Seek(watermark.After("11"))
	require.True(t, ok)
}

func TestFloorOfATailThatWasOpened(t *testing.T) {
	t.Parallel()
	row := strings.Repeat("x", 900)
	t.Run("older blocks are dropped", func(t *testing.T) {
		t.Parallel()
		l := shutTail(t, 1<<10)
		transaction(l, "11", row, row)
		transaction(l, "12", row, row)
		l.Open("12")
		l.Stored(4)
		require.False(t, l.Kept(0))
		require.Equal(t, watermark.After("12"), l.Floor())
		l.Stored(8)
		transaction(l, "13", row, row)
		l.Stored(12)
		part(l, "14", row)
		require.Positive(t, l.Floor().Compare(watermark.After("12")), "from there on as ever")
	})
	t.Run("more was dropped before", func(t *testing.T) {
		t.Parallel()
		l := shutTail(t, 1<<10)
		transaction(l, "11", row)
		l.Stored(3)
		part(l, "12", row, row, row)
		l.Passed(7)
		inside := watermark.Position{Watermark: "12", Pos: 2}
		require.Equal(t, inside, l.Floor())
		requireShut(t, l)
		l.Open("11")
		require.Equal(t, inside, l.Floor(), "it never falls")
		_, ok := l.Seek(watermark.After("11"))
		require.False(t, ok)
	})
	// The log ends behind a transaction that the stream never has.
	for name, cut := range map[string]func(l *tail.Tail){
		"abort": func(*tail.Tail) {},
		"break": func(l *tail.Tail) {
			l.Commit([]byte("commit 12"))
			l.Break(3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := shutTail(t, 1<<10)
			transaction(l, "11", row)
			l.Stored(3)
			l.Open("11.01")
			part(l, "12", row, row, row)
			l.Passed(7)
			require.Equal(t, watermark.Position{Watermark: "12", Pos: 2}, l.Floor())
			cut(l)
			l.Abort()
			require.Equal(t, watermark.After("11.01"), l.Floor(), "11 is what was dropped, and not the end of the log")
			_, ok := l.Seek(watermark.After("11"))
			require.False(t, ok)
			seq, ok := l.Seek(watermark.After("11.01"))
			require.True(t, ok)
			r := reader{seq: seq, attempt: change.Outside}
			transaction(l, "12", "again")
			list, _ := r.texts(l)
			require.Equal(t, []string{"begin 12", "again", "commit 12"}, list)
		})
	}
}

func TestOutcomeOfAnAttemptThatIsGone(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<10)
	row := strings.Repeat("x", 900)
	part(l, "11", row, row, row)
	r := reader{attempt: change.Outside}
	run, _, _ := l.Read(0, change.Outside)
	r.seq, r.attempt = 1, run.Tx(0).Attempt
	l.Passed(4)
	_, found := r.texts(l)
	require.Equal(t, change.Fallen, found)
	_, void, stored := l.Outcome(0)
	require.False(t, void || stored, "nobody knows yet")

	l.Commit([]byte("commit 11"))
	l.Publish()
	l.Stored(5)
	_, void, stored = l.Outcome(0)
	require.False(t, void)
	require.True(t, stored)

	part(l, "12", row, row, row) // from 5
	l.Passed(9)
	require.False(t, l.Kept(5))
	l.Break(5)
	require.True(t, l.Restart())
	_, void, _ = l.Outcome(5)
	require.False(t, void, "not before the source has agreed")
	l.Abort()
	require.False(t, l.Restart())
	next, void, _ := l.Outcome(5)
	require.True(t, void)
	require.EqualValues(t, 10, next)
	require.Equal(t, "11", l.Last())
}

// What Break cut off may be in the log all the same: its commit may have been under way.
func TestOutcomeOfAnAttemptThatComesAgainAfterABreak(t *testing.T) {
	t.Parallel()
	for name, kept := range map[string]bool{"kept": true, "dropped": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTail(t, 1<<10)
			row := strings.Repeat("x", 900)
			part(l, "11", row, row, row)
			if !kept {
				l.Passed(4)
			}
			require.Equal(t, kept, l.Kept(0))
			l.Commit([]byte("commit 11"))
			transaction(l, "12")
			l.Break(0)
			l.Abort()                           // the span ends with 7
			transaction(l, "11", row, row, row) // 8 to 12
			transaction(l, "12", row, row, row) // 13 to 17
			_, void, stored := l.Outcome(8)
			require.False(t, void || stored)
			l.Stored(18)
			require.False(t, l.Kept(8))
			next, void, _ := l.Outcome(8)
			require.True(t, void, "the log may hold the first attempt")
			_, _, found := l.Read(next, change.Outside)
			require.Equal(t, change.Fallen, found, "the reader looks into the log")
			_, void, stored = l.Outcome(13)
			require.True(t, stored, "what came behind it was never sent before")
			require.False(t, void)
		})
	}
}

func TestBreakTakesBackWholeTransactions(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<10)
	row := strings.Repeat("x", 900)
	transaction(l, "11", "a")
	l.Stored(3)
	part(l, "12", row, row)
	l.Passed(6)
	l.Commit([]byte("commit 12"))
	transaction(l, "13", "b")
	part(l, "14", "c")
	r := reader{seq: 6, attempt: 3}
	list, _ := r.texts(l)
	require.Equal(t, []string{"commit 12", "begin 13", "b", "commit 13", "begin 14", "c"}, list)
	require.Equal(t, "13", l.Last())

	l.Break(3)
	_, _, ok := l.StoreRead(6)
	require.False(t, ok, "the store has nothing to do until the stream starts again")
	l.Abort()
	require.Equal(t, "11", l.Last(), "the stream starts again behind this")
	_, next, ok := l.StoreRead(6)
	require.False(t, ok)
	require.EqualValues(t, 13, next)
	list, _ = r.texts(l)
	require.Equal(t, []string{"void"}, list)
	transaction(l, "12", "again")
	run, next, ok := l.StoreRead(6)
	require.True(t, ok)
	require.EqualValues(t, 13, next)
	require.Equal(t, "begin 12", string(run.Message(0)))
	seq, ok := l.Seek(watermark.After("11"))
	require.True(t, ok)
	require.EqualValues(t, 13, seq)
	seq, ok = l.Seek(watermark.After("13"))
	require.True(t, ok)
	require.EqualValues(t, 16, seq)
}

func TestMark(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<10)
	_, _, ok := l.Mark()
	require.False(t, ok)
	transaction(l, "11")
	l.Shown("12")
	w, seq, ok := l.Mark()
	require.True(t, ok)
	require.Equal(t, "12", w)
	require.EqualValues(t, 2, seq)
	l.Shown("11.01")
	w, _, _ = l.Mark()
	require.Equal(t, "12", w, "never downwards")

	part(l, "13", strings.Repeat("x", 900), strings.Repeat("x", 900), strings.Repeat("x", 900))
	l.Stored(2)
	l.Passed(6)
	l.Commit([]byte("commit 13"))
	l.Shown("14")
	l.Break(2)
	l.Abort()
	w, _, ok = l.Mark()
	require.False(t, ok && w == "14", "13 was taken back: nothing at or behind it has been shown")
	l.Shown("12")
	w, seq, ok = l.Mark()
	require.True(t, ok)
	require.Equal(t, "12", w)
	require.EqualValues(t, 8, seq)
}

func TestRoom(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<10)
	require.Nil(t, l.Room())
	l.Begin([]byte("begin 11"), "11")
	l.Data([]byte(strings.Repeat("x", 5000)), change.Insert) // larger than the budget: it fits
	room := l.Room()
	require.NotNil(t, room)
	require.True(t, l.Full())
	require.Equal(t, room, l.Room(), "asking again does not lose the first channel")
	run, _, ok := l.StoreRead(0)
	require.True(t, ok, "all of it is published, or nobody could make room")
	require.Equal(t, "begin 11", string(run.Message(0)))
	l.Passed(2)
	require.True(t, closed(room))
	require.False(t, l.Full())
	require.Nil(t, l.Room())

	l.Data([]byte(strings.Repeat("y", 5000)), change.Insert)
	room = l.Room()
	require.NotNil(t, room)
	l.Passed(0) // stored again from its begin
	require.False(t, closed(room))
	l.Abort()
	require.True(t, closed(room), "who waits for room must see that the stream is over")
}

func TestBreakOpensRoom(t *testing.T) {
	t.Parallel()
	l := newTail(t, 1<<10)
	part(l, "11", strings.Repeat("x", 900), strings.Repeat("x", 900), strings.Repeat("x", 900))
	l.Passed(4)
	l.Data([]byte(strings.Repeat("y", 900)), change.Insert)
	room := l.Room()
	require.NotNil(t, room)
	l.Break(0)
	require.True(t, closed(room), "the source waits, and nobody but it can end this")
	require.Nil(t, l.Room())
	require.True(t, l.Restart())
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestNotifyAndForget(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l := newTail(t, 1<<20)
	var run sync.WaitGroup
	run.Go(func() { _ = l.Run(ctx) })
	defer run.Wait()
	defer cancel()

	a, b := make(chan struct{}, 1), make(chan struct{}, 1)
	require.True(t, l.Notify(0, change.Outside, a))
	require.True(t, l.Notify(0, change.Outside, b))
	l.Forget(b)
	part(l, "11")
	<-a
	require.False(t, l.Notify(0, change.Outside, a), "there is something already")
	require.True(t, l.Notify(1, 0, a))
	l.Abort()
	<-a
	require.False(t, l.Notify(1, 0, a), "void: there is something to know")
	require.True(t, l.Notify(1, change.Outside, a), "for a reader outside there is nothing")
	l.NotifyStored(b)
	l.Stored(2)
	<-b
	l.NotifyStored(b)
	part(l, "12")
	<-a
	l.Abort()
	<-b
	require.False(t, closed(a) || closed(b))
}

// Many readers and the store wait while the appender publishes as fast as it can: nobody
// may sleep through the last message. It hangs if a wake-up is lost.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	const readers, transactions = 6, 3000
	ctx, cancel := context.WithCancel(t.Context())
	l := newTail(t, 64<<20) // nobody falls out
	var sweeper, all sync.WaitGroup
	sweeper.Go(func() { _ = l.Run(ctx) })
	last := watermark.Encode(40_000 + transactions)

	for range readers {
		all.Go(func() {
			wake := make(chan struct{}, 1)
			r := reader{attempt: change.Outside}
			for seen := 0; ; {
				list, found := r.texts(l)
				if seen += len(list); len(list) > 0 && list[len(list)-1] == "commit "+last {
					return
				}
				if found != change.Dry {
					panic("a reader fell out")
				}
				if l.Notify(r.seq, r.attempt, wake) {
					<-wake
				}
			}
		})
	}
	all.Go(func() { storeUntil(l, last) })
	all.Go(func() { // waits for the store, attempt by attempt
		wake := make(chan struct{}, 1)
		for attempt := int64(0); ; {
			l.NotifyStored(wake)
			next, void, stored := l.Outcome(attempt)
			switch {
			case void:
				attempt = next
			case stored:
				run, _, _ := l.Read(attempt, attempt)
				if run.Tx(0).Watermark == last {
					return
				}
				attempt += 3
			default:
				<-wake
			}
		}
	})
	for i := 1; i <= transactions; i++ {
		w := watermark.Encode(uint64(40_000 + i))
		if i%7 == 1 {
			part(l, w, "cut off")
			l.Abort()
		}
		part(l, w, "row")
		l.Commit([]byte("commit " + w))
		if i%3 > 0 || i == transactions {
			l.Publish()
		}
	}
	all.Wait()
	cancel()
	sweeper.Wait()
}

// storeUntil is a store that stores as it arrives what does not fit, and all else at once.
func storeUntil(l *tail.Tail, last string) {
	for seq := l.First(); ; {
		run, next, ok := l.StoreRead(seq)
		if next > seq {
			seq = next
			l.Stored(seq)
		}
		if !ok {
			<-l.StoreWake()
			continue
		}
		for i := range run.Len() {
			if run.Entry(i).Kind == change.Commit {
				l.Stored(run.Seq + int64(i) + 1)
				if run.Tx(i).Watermark == last {
					return
				}
			}
		}
		seq = run.Next()
		l.Passed(seq)
	}
}

// The appender waits for room after every message and the store makes it: with a budget
// of next to nothing both must come to the end, with memory bounded all the way.
func TestAppenderAndStoreMakeRoomForEachOther(t *testing.T) {
	t.Parallel()
	const transactions, largest = 400, 5000
	l := newTail(t, 1<<10)
	last := watermark.Encode(40_000 + transactions)
	var all sync.WaitGroup
	all.Go(func() { storeUntil(l, last) })
	room := func() {
		for ch := l.Room(); ch != nil; ch = l.Room() {
			<-ch
		}
		require.LessOrEqual(t, l.Stats().Bytes, int64(1<<10+4<<10+2*largest))
	}
	for i := 1; i <= transactions; i++ {
		w := watermark.Encode(uint64(40_000 + i))
		l.Begin([]byte("begin "+w), w)
		room()
		for k := range i % 20 {
			size := 50
			if k%9 == 3 {
				size = largest
			}
			l.Data(append(l.Spare(size), strings.Repeat("x", size)...), change.Insert)
			room()
		}
		if i%11 == 0 {
			l.Abort()
			if i < transactions {
				continue
			}
		}
		l.Commit([]byte("commit " + w))
		room()
	}
	l.Publish()
	all.Wait()
}
