package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer/watermark"
)

func TestStreamTransactionsInOrder(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `insert into t values (1, 'before the slot')`)
	sink := u.sink()
	u.exec(`insert into t values (2, 'before the stream')`)
	source := run(t, u.config(), sink)
	u.exec(`begin; insert into t values (3, 'c'), (4, 'd'); update t set v = 'C' where id = 3; delete from t where id = 4; commit`)
	u.exec(`truncate t`)

	txs := sink.waitTxs(3)
	source.stop()
	relation := `"relation":{"schema":"public","name":"t","rowKey":{"columns":["id"],"type":"default"}}`
	require.Equal(t, []string{
		`["begin",{"tag":"begin","json":"s"},{"commitWatermark":"` + txs[1].watermark + `"}]`,
		`["data",{"tag":"insert",` + relation + `,"new":{"id":3,"v":"c"}}]`,
		`["data",{"tag":"insert",` + relation + `,"new":{"id":4,"v":"d"}}]`,
		`["data",{"tag":"update",` + relation + `,"key":null,"new":{"id":3,"v":"C"}}]`,
		`["data",{"tag":"delete",` + relation + `,"key":{"id":4}}]`,
	}, txs[1].messages[:5])
	require.Contains(t, txs[0].messages[1], "before the stream")
	require.Contains(t, txs[2].messages[1], `"tag":"truncate"`)
	require.NotContains(t, sink.all(), "before the slot")
	require.Less(t, txs[0].watermark, txs[1].watermark)
	require.Less(t, txs[1].watermark, txs[2].watermark)
}

func TestStreamResumesWithoutLossOrDoubles(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'a')`)
	u.exec(`insert into t values (2, 'b')`)
	txs := sink.waitTxs(2)
	// One is confirmed, two are in the sink: the second comes again and is left out.
	source.Confirm(txs[0].watermark)
	source.stop()
	u.exec(`insert into t values (3, 'c')`)

	source = run(t, u.config(), sink)
	sink.waitTxs(3)
	source.stop()

	// A sink that has less than what was confirmed by nobody gets the rest again.
	again := newRecorder(t, 0)
	again.last = txs[0].watermark
	source = run(t, u.config(), again)
	rest := again.waitTxs(2)
	source.stop()
	require.Equal(t, txs[1].watermark, rest[0].watermark)
	require.Equal(t, txs[1].messages, rest[0].messages)
}

func TestStreamStartsAtAMinorVersion(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'a')`)
	u.exec(`insert into t values (2, 'b')`)
	txs := sink.waitTxs(2)
	source.stop()

	again := newRecorder(t, 0)
	again.last = watermark.WithMinor(txs[0].watermark, 5)
	source = run(t, u.config(), again)
	rest := again.waitTxs(1)
	source.stop()
	require.Equal(t, txs[1].watermark, rest[0].watermark)
}

func TestConfirmMovesTheSlotJustBehind(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'a')`)
	u.exec(`insert into t values (2, 'b')`)
	txs := sink.waitTxs(2)
	require.Equal(t, u.consistent, u.confirmed(), "nothing was confirmed")

	first, err := watermark.LSN(txs[0].watermark)
	require.NoError(t, err)
	source.Confirm(txs[0].watermark)
	eventually(t, "the slot moves", func() bool { return u.confirmed() == first+1 })
	source.Confirm(watermark.FromLSN(first - 8))
	source.Confirm("not a watermark")
	require.Equal(t, first+1, source.Confirmed(), "a confirmation never goes down")

	source.Confirm(watermark.WithMinor(txs[1].watermark, 3))
	second, err := watermark.LSN(txs[1].watermark)
	require.NoError(t, err)
	source.stop()
	require.Equal(t, second+1, u.confirmed(), "what was confirmed last is said before the end")
}

func TestQuietPublicationOnABusyServer(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `create unlogged table private (i int)`)
	sink := u.sink()
	source := run(t, u.config(), sink)
	// Messages of another application make WAL that has nothing for us.
	after := u.lsn(`select pg_logical_emit_message(false, 'other', repeat('x', 5000))::text`)
	sink.wait("a position shown behind the message", func() bool {
		return len(sink.shown) > 0 && sink.shown[len(sink.shown)-1] >= watermark.FromLSN(after-1)
	})
	require.Less(t, u.confirmed(), after, "shown is not confirmed")
	confirm := func() {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		source.Confirm(sink.shown[len(sink.shown)-1])
	}
	confirm()
	eventually(t, "the slot moves", func() bool { return u.confirmed() >= after })
	source.stop()
	require.Empty(t, sink.txs)
	require.LessOrEqual(t, u.confirmed(), u.lsn(`select pg_current_wal_insert_lsn()::text`))
}

func TestEmptyTransactionsAreShownOnly(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`select pg_logical_emit_message(true, 'other', 'transactional')`)
	at := u.lsn(`select pg_current_wal_insert_lsn()::text`)
	u.exec(`insert into t values (1, 'a')`)
	txs := sink.waitTxs(1)
	source.stop()
	require.GreaterOrEqual(t, txs[0].watermark, watermark.FromLSN(at))
}

func TestStreamOfALargeTransaction(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t select i, repeat('x', 100) from generate_series(1, 20000) as i`)
	txs := sink.waitTxs(1)
	require.Len(t, txs[0].messages, 20002)
	for i := range 300 {
		u.exec(fmt.Sprintf(`insert into t values (%d, 'small')`, 30000+i))
	}
	sink.waitTxs(301)
	source.stop()
}

func TestNoRoomKeepsTheConnection(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "wal_sender_timeout=5000")
	sink := u.sink()
	room := make(chan struct{})
	sink.do(func() { sink.room = room })
	source := run(t, u.config(), sink)
	eventually(t, "the slot is used", func() bool { s, err := u.up.Slot(t.Context(), u.slot); return err == nil && s.Active })
	pid := u.query(`select active_pid::text from pg_replication_slots where slot_name = $1`, u.slot)
	u.exec(`insert into t select i, repeat('x', 1000) from generate_series(1, 20000) as i`)

	// The connection must outlive the server's patience.
	full := time.NewTimer(12 * time.Second)
	<-full.C
	require.Empty(t, sink.txs, "nothing is read while there is no room")
	sink.do(func() { sink.room = nil; close(room) })
	sink.waitTxs(1)
	require.Equal(t, pid, u.query(`select active_pid::text from pg_replication_slots where slot_name = $1`, u.slot))
	source.stop()
	require.Zero(t, sink.aborts)
}

func TestNoRoomInsideATransactionPublishesIt(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	room := make(chan struct{})
	source := run(t, u.config(), &closing{recorder: sink, room: room})
	// Three rows that do not fit into one read, far below the limit for publishing.
	u.exec(`insert into t select i, repeat('x', 400000) from generate_series(1, 3) as i`)
	sink.wait("part of the transaction to be visible", func() bool { return sink.open != nil && sink.dirty == 0 })
	sink.do(func() { close(room) })
	sink.waitTxs(1)
	source.stop()
}

// closing is a sink that has no room from its first row on.
type closing struct {
	*recorder
	room chan struct{}
}

func (c *closing) Room() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.room:
		return nil
	default:
	}
	if c.open == nil {
		return nil
	}
	return c.room
}

func TestQuietStreamOutlivesEverySenderTimeout(t *testing.T) {
	t.Parallel()
	for _, timeout := range []string{"0", "1000", "5000"} {
		t.Run(timeout+" ms", func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, "wal_sender_timeout="+timeout)
			sink := u.sink()
			cfg := u.config()
			var starts atomic.Int32
			cfg.Check = func(context.Context, string) error { starts.Add(1); return nil }
			source := run(t, cfg, sink)
			quiet := time.NewTimer(6 * time.Second)
			<-quiet.C
			u.exec(`insert into t values (1, 'a')`)
			sink.waitTxs(1)
			source.stop()
			require.EqualValues(t, 1, starts.Load(), "it was connected all the time")
		})
	}
}

func TestSilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	// Heartbeats, a quarter of this, are more frequent than the silence that is allowed.
	u := newUpstream(t, "wal_sender_timeout=1000")
	proxy := newProxy(t, u.url)
	cfg := u.config()
	cfg.Upstream = proxy.upstream(t, u.url)
	cfg.Silence = 500 * time.Millisecond
	var starts atomic.Int32
	cfg.Check = func(context.Context, string) error { starts.Add(1); return nil }
	sink := u.sink()
	source := run(t, cfg, sink)
	eventually(t, "the stream starts", func() bool { return starts.Load() == 1 })
	proxy.freeze()
	eventually(t, "the dead connection is left", func() bool { return proxy.dials.Load() > 2 })
	proxy.thaw()
	u.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	source.stop()
}

func TestLargeMessageThatTricklesIn(t *testing.T) {
	t.Parallel()
	const size = 60 << 20
	u := newUpstream(t, "wal_sender_timeout=5000")
	proxy := newProxy(t, u.url)
	proxy.rate.Store(size / 10) // ten seconds, twice the server's patience
	cfg := u.config()
	cfg.Upstream = proxy.upstream(t, u.url)
	var starts atomic.Int32
	cfg.Check = func(context.Context, string) error { starts.Add(1); return nil }
	sink := u.sink()
	source := run(t, cfg, sink)
	began := time.Now()
	u.exec(`insert into t values (1, 'small')`)
	first := sink.waitTxs(1)
	u.exec(`insert into t values (2, repeat('x', $1::int))`, size)
	// What is confirmed while it trickles in goes upstream meanwhile.
	source.Confirm(first[0].watermark)
	lsn, err := watermark.LSN(first[0].watermark)
	require.NoError(t, err)
	eventually(t, "the slot moves", func() bool { return u.confirmed() == lsn+1 })
	require.Empty(t, sink.txs[1:])

	txs := sink.waitTxs(2)
	require.Greater(t, time.Since(began), 8*time.Second, "it did trickle")
	require.Greater(t, txs[1].size, size)
	require.Equal(t, size, strings.Count(txs[1].messages[1], "x")-strings.Count(first[0].messages[1], "x"))
	require.EqualValues(t, 1, starts.Load(), "it was connected all the time")
	source.stop()
	require.Zero(t, sink.aborts)
}

func TestSinkRestartsTheStream(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'a')`)
	u.exec(`insert into t values (2, 'b')`)
	txs := sink.waitTxs(2)
	// The sink drops its last transaction: it cannot store it.
	sink.do(func() {
		sink.txs, sink.last, sink.published, sink.shown = sink.txs[:1], txs[0].watermark, 1, nil
		sink.restart = true
	})
	again := sink.waitTxs(2)
	source.stop()
	require.Equal(t, txs[1].messages, again[1].messages)
}

func TestCheckComesBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	u.exec(`insert into t values (1, 'a')`)
	cfg := u.config()
	sink := u.sink()
	var asked []string
	cfg.Check = func(_ context.Context, confirmed string) error {
		asked = append(asked, confirmed)
		sink.mu.Lock()
		defer sink.mu.Unlock()
		require.Empty(t, sink.txs)
		if len(asked) < 3 {
			return errors.New("the change database is away")
		}
		return nil
	}
	source := run(t, cfg, sink)
	sink.waitTxs(1)
	source.stop()
	want := watermark.FromLSN(u.consistent - 1)
	require.Equal(t, []string{want, want, want}, asked)
}

func TestPublicationNamesAreQuoted(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `create publication "it's, ""odd""" for table t`)
	cfg := u.config()
	cfg.Publications = []string{`it's, "odd"`}
	sink := u.sink()
	source := run(t, cfg, sink)
	u.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	source.stop()
}
