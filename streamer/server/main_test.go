package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"millrace/streamer/change"
	"millrace/streamer/metrics"
	"millrace/streamer/server"
	"millrace/streamer/subscriber"
	"millrace/streamer/watermark"
	"millrace/streamer/wire"
)

const (
	replicaVersion = "4l2ggw"
	goodQuery      = "id=a&taskID=t&replicaVersion=4l2ggw&watermark=4l2ggw"
	changesPath    = "/replication/v6/changes?"
	// patience is how long a test waits for what must happen.
	patience = 20 * time.Second
)

func TestMain(m *testing.M) {
	if address := os.Getenv(fanClientVariable); address != "" {
		fanClient(address)
		return
	}
	goleak.VerifyTestMain(m)
}

// memoryTail is the whole stream in memory: a block for each publication.
type memoryTail struct {
	mu      sync.Mutex
	runs    []change.Run
	end     int64
	waiters map[chan<- struct{}]struct{}
}

func newTail() *memoryTail {
	return &memoryTail{waiters: map[chan<- struct{}]struct{}{}}
}

// publish adds one transaction with these data messages.
func (t *memoryTail) publish(watermark string, data ...string) {
	b := change.NewBlock(t.end, 1024, len(data)+2)
	addTransaction(b, watermark, data...)
	t.publishBlock(b)
}

func addTransaction(b *change.Block, watermark string, data ...string) {
	tx := change.Tx{Watermark: watermark, Attempt: b.Seq + int64(b.Len())}
	add := func(kind change.Kind, stored string) {
		tag := change.ParseTag([]byte(stored))
		b.Add(change.Append(b.Spare(), kind, []byte(stored), watermark), kind, tag, tx)
		tx.Pos++
	}
	add(change.Begin, `{"tag":"begin","json":"s"}`)
	for _, d := range data {
		add(change.Data, d)
	}
	add(change.Commit, `{"tag":"commit"}`)
}

func (t *memoryTail) publishBlock(b *change.Block) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs = append(t.runs, b.Run(0, b.Len()))
	t.end += int64(b.Len())
	for ch := range t.waiters {
		select {
		case ch <- struct{}{}:
		default:
		}
		delete(t.waiters, ch)
	}
}

func (t *memoryTail) Seek(p watermark.Position) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := sort.Search(len(t.runs), func(i int) bool {
		run := t.runs[i]
		return run.Tx(run.Len()-1).Watermark > p.Watermark
	})
	if i == len(t.runs) {
		return t.end, true
	}
	return t.runs[i].Seq, true
}

func (t *memoryTail) Read(seq, _ int64) (change.Run, int64, change.Found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq == t.end {
		return change.Run{}, seq, change.Dry
	}
	i := sort.Search(len(t.runs), func(i int) bool { return t.runs[i].Next() > seq })
	return t.runs[i].Cut(int(seq-t.runs[i].Seq), t.runs[i].Len()), seq, change.Ready
}

func (t *memoryTail) Outcome(int64) (next int64, void, stored bool) { return 0, false, true }

func (t *memoryTail) Notify(seq, _ int64, ch chan<- struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq < t.end {
		return false
	}
	t.waiters[ch] = struct{}{}
	return true
}

func (t *memoryTail) NotifyStored(ch chan<- struct{}) { t.Notify(t.end, 0, ch) }

func (t *memoryTail) Forget(ch chan<- struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiters, ch)
}

func (t *memoryTail) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiters)
}

// subscribe is a Subscribe over the tail that accepts one replica version.
func (t *memoryTail) subscribe(_ context.Context, r wire.Request) (*subscriber.Subscription, func(), error) {
	if r.ReplicaVersion != replicaVersion {
		return nil, nil, wire.WrongReplicaVersion(replicaVersion, r.ReplicaVersion)
	}
	if r.Watermark < replicaVersion {
		return nil, nil, wire.WatermarkTooOld(replicaVersion, r.Watermark)
	}
	sub, err := subscriber.New(subscriber.Config{
		Watermark:      r.Watermark,
		ReplicaVersion: replicaVersion,
		Version:        r.Version,
		Tail:           t,
		MaxFrame:       int(r.MaxMessageBytes),
		Pages: func(context.Context, watermark.Position, *change.Block) (subscriber.Page, error) {
			return subscriber.Page{}, errors.New("everything is in memory")
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return sub, sub.Close, nil
}

// running is a server under test.
type running struct {
	address  string
	tail     *memoryTail
	registry *prometheus.Registry
	// stop ends the server and returns what Run returned; it may be called again.
	stop func() error
}

// serve runs a server until the test ends. configure may change its configuration, whose
// times are short.
func serve(t testing.TB, configure func(*server.Config)) *running {
	t.Helper()

	listener, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	r := &running{address: listener.Addr().String(), tail: newTail(), registry: prometheus.NewRegistry()}
	cfg := server.Config{
		Listener:   listener,
		Subscribe:  r.tail.subscribe,
		Metrics:    metrics.New(r.registry),
		CloseDelay: time.Millisecond,
		SweepEvery: 5 * time.Millisecond,
	}
	if configure != nil {
		configure(&cfg)
	}
	s, err := server.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { require.NoError(t, r.stop()) })
	return r
}

// metric returns the sum of a metric's values.
func (r *running) metric(t testing.TB, name string) float64 {
	t.Helper()

	families, err := r.registry.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// dial subscribes with the websocket library.
func (r *running) dial(t testing.TB, target string) *websocket.Conn {
	t.Helper()

	ws, response, err := websocket.DefaultDialer.Dial("ws://"+r.address+target, nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	t.Cleanup(func() { _ = ws.Close() })
	require.NoError(t, ws.SetReadDeadline(time.Now().Add(patience)))
	return ws
}

// refusal returns the text of the 503 that must come in place of the upgrade.
func (r *running) refusal(t testing.TB, target string) string {
	t.Helper()

	ws, response, err := websocket.DefaultDialer.Dial("ws://"+r.address+target, nil)
	require.ErrorIs(t, err, websocket.ErrBadHandshake)
	require.Nil(t, ws)
	defer response.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.Equal(t, "1", response.Header.Get("Retry-After"))
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return strings.TrimSpace(string(body))
}

func (r *running) get(t testing.TB, path string) (code int, contentType, text string) {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.address+path, nil)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Header.Get("Content-Type"), string(body)
}

// rawDial subscribes over bare TCP, so that a test decides about every byte.
func (r *running) rawDial(t testing.TB) (net.Conn, *bufio.Reader) {
	t.Helper()

	c, err := net.Dial("tcp", r.address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	in := bufio.NewReader(c)
	require.NoError(t, handshake(c, in))
	return c, in
}

func handshake(c io.Writer, in *bufio.Reader) error {
	if _, err := io.WriteString(c, "GET "+changesPath+goodQuery+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("no upgrade: %s", response.Status)
	}
	return response.Body.Close()
}

// expect reads a frame and compares it.
func expect(t testing.TB, ws *websocket.Conn, want string) {
	t.Helper()

	kind, got, err := ws.ReadMessage()
	require.NoError(t, err)
	require.Equal(t, websocket.TextMessage, kind)
	require.Equal(t, want, string(got))
}

func ack(t testing.TB, ws *websocket.Conn, id uint64) {
	t.Helper()

	require.NoError(t, ws.WriteMessage(websocket.TextMessage, wire.AppendAck(nil, id)))
}

// expectClose reads until the close frame, which must come next but for data if skip is set.
func expectClose(t testing.TB, ws *websocket.Conn, code int, reason string) {
	t.Helper()

	_, got, err := ws.ReadMessage()
	for err == nil {
		_, got, err = ws.ReadMessage()
	}
	var closed *websocket.CloseError
	require.ErrorAs(t, err, &closed, "%s", got)
	require.Equal(t, code, closed.Code, closed.Text)
	require.Equal(t, reason, closed.Text)
}

const insert = `{"tag":"insert","relation":{"schema":"public","name":"t","rowKey":{"columns":["id"],"type":"default"}},"new":{"id":1}}`

func big(size int) string {
	return `{"tag":"insert","relation":{"schema":"public","name":"big","rowKey":{"columns":["id"]}},"new":{"v":"` +
		strings.Repeat("x", size) + `"}}`
}
