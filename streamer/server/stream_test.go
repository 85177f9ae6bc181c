package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"millrace/streamer/server"
	"millrace/streamer/subscriber"
	"millrace/streamer/wire"
)

func TestSubscriberGetsStatusThenEveryMessageOnce(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	r.tail.publish("4l3000", insert)
	ws := r.dial(t, changesPath+goodQuery)
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	expect(t, ws, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
	expect(t, ws, `{"id":3,"msg":["data",`+insert+`]}`)
	expect(t, ws, `{"id":4,"msg":["commit",{"tag":"commit"},{"watermark":"4l3000"}]}`)

	r.tail.publish("4l3001") // no ack was needed; with acks it is the same
	for id := range uint64(4) {
		ack(t, ws, id+1)
	}
	expect(t, ws, `{"id":5,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3001"}]}`)
	expect(t, ws, `{"id":6,"msg":["commit",{"tag":"commit"},{"watermark":"4l3001"}]}`)

	again := r.dial(t, "/replication/v6/changes?id=a&taskID=t&replicaVersion=4l2ggw&watermark=4l3000")
	expect(t, again, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	expect(t, again, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3001"}]}`)
	require.InDelta(t, 2, r.metric(t, "millrace_server_subscribers"), 0)
}

func TestOldVersionsGetTheOldFormOfARelation(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	r.tail.publish("4l3000", insert)
	ws := r.dial(t, "/replication/v4/changes?"+goodQuery)
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	expect(t, ws, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
	expect(t, ws, `{"id":3,"msg":["data",{"tag":"insert","relation":{"schema":"public","name":"t",`+
		`"rowKey":{"columns":["id"],"type":"default"},"keyColumns":["id"],"replicaIdentity":"default"},"new":{"id":1}}]}`)
}

func TestLargeMessagesArriveWhole(t *testing.T) {
	t.Parallel()

	plain := serve(t, nil)
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	secure := serve(t, func(cfg *server.Config) {
		cfg.Listener = tls.NewListener(cfg.Listener, &tls.Config{Certificates: certificate.TLS.Certificates}) //nolint:gosec // a test's
	})
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test's
	ws, response, err := dialer.Dial("wss://"+secure.address+changesPath+goodQuery, nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	defer ws.Close()

	for name, side := range map[string]struct {
		r  *running
		ws *websocket.Conn
	}{
		"tcp": {plain, plain.dial(t, changesPath+goodQuery)},
		"tls": {secure, ws},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := []int{10, 60_000, 65_500, 65_536, 70_000, 1 << 20, 3<<20 + 7, 100}
			for i, size := range sizes {
				side.r.tail.publish(fmt.Sprintf("4l300%d", i), big(size))
			}
			expect(t, side.ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
			for i, size := range sizes {
				_, _, err := side.ws.ReadMessage()
				require.NoError(t, err)
				expect(t, side.ws, fmt.Sprintf(`{"id":%d,"msg":["data",%s]}`, 3*i+3, big(size)))
				_, _, err = side.ws.ReadMessage()
				require.NoError(t, err)
			}
		})
	}
}

func TestViolationsCloseOneConnectionOnly(t *testing.T) {
	t.Parallel()

	masked := func(op byte, payload string) []byte {
		frame := []byte{op, 0x80 | 126, byte(len(payload) >> 8), byte(len(payload)), 0, 0, 0, 0}
		return append(frame, payload...)
	}
	tests := []struct {
		name  string
		bytes []byte
		want  string
	}{
		{name: "ack of what was not sent", bytes: masked(0x81, `{"ack":2}`), want: "ack 2 while 1 was due"},
		{name: "ack zero", bytes: masked(0x81, `{"ack":0}`), want: "ack 0 while 1 was due"},
		{
			name: "the same ack twice", bytes: append(masked(0x81, `{"ack":1}`), masked(0x81, `{"ack":1}`)...),
			want: "ack 1 while 2 was due",
		},
		{name: "not JSON", bytes: masked(0x81, `hello`), want: "not an ack"},
		{name: "another object", bytes: masked(0x81, `{"nack":1}`), want: "the key ack is missing"},
		{name: "binary frame", bytes: masked(0x82, `{"ack":1}`), want: "acks are text frames"},
		{name: "oversized ack", bytes: masked(0x81, `{"ack":1,"x":"`+strings.Repeat("x", 4096)+`"}`), want: "more than 4096 bytes"},
		{name: "unmasked frame", bytes: append([]byte{0x81, 9}, `{"ack":1}`...), want: "bad MASK"},
		{name: "not a websocket frame", bytes: []byte("GET / HTTP/1.1\r\n\r\n"), want: "Error: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			r := serve(t, nil)
			other := r.dial(t, changesPath+goodQuery)
			expect(t, other, `{"id":1,"msg":["status",{"tag":"status"}]}`)

			c, in := r.rawDial(t)
			status := make([]byte, 2+42)
			_, err := io.ReadFull(in, status)
			require.NoError(t, err)
			_, err = c.Write(tt.bytes)
			require.NoError(t, err)
			head := make([]byte, 4)
			_, err = io.ReadFull(in, head)
			require.NoError(t, err)
			require.Equal(t, byte(0x88), head[0])
			reason := make([]byte, head[1]-2)
			_, err = io.ReadFull(in, reason)
			require.NoError(t, err)
			require.Equal(t, uint16(1002), binary.BigEndian.Uint16(head[2:]), "%s", reason)
			require.Contains(t, string(reason), tt.want)
			require.LessOrEqual(t, len(reason), 123)

			ack(t, other, 1)
			r.tail.publish("4l3000")
			expect(t, other, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
		})
	}
}

func TestAcksWithBlanksAndOtherKeysAreTaken(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	ws := r.dial(t, changesPath+goodQuery)
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	long := `{ "more": "` + strings.Repeat("x", 2000) + `", "ack": 1 }`
	require.NoError(t, ws.WriteMessage(websocket.TextMessage, []byte(long)))
	r.tail.publish("4l3000")
	expect(t, ws, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
	ack(t, ws, 2) // in order only if the first was taken
	expect(t, ws, `{"id":3,"msg":["commit",{"tag":"commit"},{"watermark":"4l3000"}]}`)
	require.NoError(t, r.stop())
	require.InDelta(t, 2, r.metric(t, "millrace_server_acks_total"), 0)
}

func TestSlowReaderHoldsUpNobodyAndIsEnded(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.WriteTimeout = 3 * time.Second })
	_, slow := r.rawDial(t) // reads nothing from here on
	fast := r.dial(t, changesPath+goodQuery)
	const transactions, size = 200, 100_000 // 20 MB: more than the kernel's buffers and the window
	for i := range transactions {
		r.tail.publish(fmt.Sprintf("4l3%03d", i), big(size))
	}
	for id := uint64(1); id <= 1+3*transactions; id++ {
		_, _, err := fast.ReadMessage()
		require.NoError(t, err)
		ack(t, fast, id)
	}
	require.Eventually(t, func() bool { return r.metric(t, "millrace_server_subscribers") == 1 }, patience, time.Millisecond)
	// What the kernel had taken can still be read; then the connection ends, inside a frame.
	n, _ := io.Copy(io.Discard, slow)
	require.Less(t, n, int64(transactions*size))
}

func TestSubscriberWithoutAcksIsClosedPlainlyAfterGrace(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.SubscriberGrace = 100 * time.Millisecond })
	ws := r.dial(t, changesPath+goodQuery)
	expectClose(t, ws, websocket.CloseNoStatusReceived, "")
}

func TestIdleSubscriberThatAckedEverythingIsKept(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.SubscriberGrace = 50 * time.Millisecond })
	ws := r.dial(t, changesPath+goodQuery)
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	ack(t, ws, 1)
	other := r.dial(t, changesPath+goodQuery)
	expectClose(t, other, websocket.CloseNoStatusReceived, "") // a grace period has passed
	r.tail.publish("4l3000")
	expect(t, ws, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
}

func TestSubscriberIsGivenUpWithErrorThree(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) {
		cfg.SubscriberGrace, cfg.GiveUp = 10*time.Millisecond, 100*time.Millisecond
	})
	ws := r.dial(t, changesPath+goodQuery)
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	_, text, err := ws.ReadMessage()
	require.NoError(t, err)
	require.Regexp(t, `^{"id":2,"msg":\["error",{"type":3,"message":"lagging for over 100ms \(\d+ms\)"}\]}$`, string(text))
	ack(t, ws, 1)
	ack(t, ws, 2)
	expectClose(t, ws, websocket.CloseNoStatusReceived, "")
}

func TestSilentPeerIsTerminatedAtTheSecondPing(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.PingEvery = 50 * time.Millisecond })
	_, in := r.rawDial(t)
	start := time.Now()
	rest, err := io.ReadAll(in)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(start), 45*time.Millisecond)
	require.True(t, bytes.HasSuffix(rest, []byte{'}', 0x89, 0}), "one ping behind the status, and no close frame: %q", rest)
}

func TestPeerThatAcksButAnswersNoPingsIsKept(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.PingEvery = 500 * time.Millisecond })
	ws := r.dial(t, changesPath+goodQuery)
	pings := 0
	ws.SetPingHandler(func(string) error {
		pings++
		r.tail.publish(fmt.Sprintf("4l300%d", pings)) // and the ack of it is what comes back
		return nil
	})
	for id := uint64(1); pings < 4; id++ {
		_, _, err := ws.ReadMessage()
		require.NoError(t, err)
		ack(t, ws, id)
	}
}

func TestPeersPingsAreAnswered(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	ws := r.dial(t, changesPath+goodQuery)
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	pong := ""
	ws.SetPongHandler(func(data string) error {
		pong = data
		r.tail.publish("4l3000")
		return nil
	})
	require.NoError(t, ws.WriteControl(websocket.PingMessage, []byte("hello"), time.Now().Add(time.Second)))
	expect(t, ws, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
	require.Equal(t, "hello", pong)
}

func TestPeersCloseIsAnswered(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	for _, code := range []int{websocket.CloseNoStatusReceived, websocket.CloseNormalClosure, 4001} {
		ws := r.dial(t, changesPath+goodQuery)
		expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
		require.NoError(t, ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(time.Second)))
		expectClose(t, ws, code, "")
	}
	require.Eventually(t, func() bool { return r.tail.waiting() == 0 }, patience, time.Millisecond, "released")
}

func TestMessageThatASubscriberCannotTakeClosesWith1009(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	r.tail.publish("4l3000", big(1000))
	ws := r.dial(t, changesPath+goodQuery+"&maxMessageBytes=1000")
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	expect(t, ws, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
	_, text, err := ws.ReadMessage()
	var closed *websocket.CloseError
	require.ErrorAs(t, err, &closed, "%s", text)
	require.Equal(t, websocket.CloseMessageTooBig, closed.Code)
	require.Contains(t, closed.Text, "public.big")
	require.Eventually(t, func() bool { return r.metric(t, "millrace_server_oversized_messages_total") == 1 }, patience, time.Millisecond)
}

func TestReasonsAreCut(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) {
		cfg.Subscribe = func(context.Context, wire.Request) (*subscriber.Subscription, func(), error) {
			return nil, nil, fmt.Errorf("wrapped: %w", &wire.Close{Code: wire.CloseInternal, Reason: strings.Repeat("€", 150)})
		}
	})
	expectClose(t, r.dial(t, changesPath+goodQuery), 1011, strings.Repeat("€", 40)+"...")
}

func TestStopWhileBusyClosesEverybodyPlainly(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	const subscribers = 20
	ended := make(chan error, subscribers)
	var started []*websocket.Conn
	for range subscribers {
		ws := r.dial(t, changesPath+goodQuery)
		expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
		started = append(started, ws)
	}
	for _, ws := range started {
		go func() {
			for id := uint64(2); ; id++ {
				_, _, err := ws.ReadMessage()
				if err != nil {
					ended <- err
					return
				}
				_ = ws.WriteMessage(websocket.TextMessage, wire.AppendAck(nil, id-1)) // the close may be on its way
			}
		}()
	}
	publishing := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(publishing)
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
				r.tail.publish(watermarkOf(n), insert)
				if n == 1000 {
					go func() { _ = r.stop() }() // looked at below
				}
			}
		}
	}()
	for range subscribers {
		err := <-ended
		require.True(t, websocket.IsCloseError(err, websocket.CloseNoStatusReceived), "%v", err)
	}
	close(stop)
	<-publishing
	require.NoError(t, r.stop())
	_, err := net.Dial("tcp", r.address)
	require.Error(t, err)
}

func TestStopEndsAPeerThatReadsNothing(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.DrainTimeout = 200 * time.Millisecond })
	r.rawDial(t)
	for i := range 200 {
		r.tail.publish(fmt.Sprintf("4l3%03d", i), big(100_000))
	}
	require.NoError(t, r.stop()) // its write is blocked, and it answers no close
}

func TestUrgentStopWaitsForNobody(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) {
		cfg.DrainTimeout, cfg.CloseTimeout, cfg.WriteTimeout = time.Hour, time.Hour, time.Hour
		cfg.Urgent = func(cause error) bool { return errors.Is(cause, context.Canceled) }
	})
	r.rawDial(t)
	for i := range 200 {
		r.tail.publish(fmt.Sprintf("4l3%03d", i), big(100_000))
	}
	require.NoError(t, r.stop())
}

func TestAThousandIdleSubscribers(t *testing.T) {
	t.Parallel()

	idleSubscribers(t, 1000)
}
