package client_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/change"
	"millrace/streamer/client"
)

const (
	patience = 20 * time.Second // how long a test waits for what must come
	version  = "100"            // the replica version of the logs here
	accepted = `["status",{"tag":"status"}]`
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// testServer is a websocket server that plays one script per connection.
type testServer struct {
	t   testing.TB
	url string

	mu       sync.Mutex
	requests []url.URL
}

// serve starts a server. script is called for each connection with its number, from 1;
// when it returns the connection is cut.
func serve(t testing.TB, script func(n int, p *peer)) *testServer {
	t.Helper()
	s := &testServer{t: t}
	upgrader := websocket.Upgrader{ReadBufferSize: 4096, WriteBufferSize: 64 << 10}
	var running sync.WaitGroup
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Done()
		s.mu.Lock()
		s.requests = append(s.requests, *r.URL)
		n := len(s.requests)
		s.mu.Unlock()
		p := &peer{t: t, w: w, r: r}
		p.upgrade = func() {
			ws, err := upgrader.Upgrade(w, r, nil)
			if err != nil {
				p.fail("upgrade: %v", err)
			}
			p.ws = ws
		}
		defer func() {
			if p.ws != nil {
				_ = p.ws.Close()
			}
		}()
		script(n, p)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		running.Wait()
	})
	s.url = "ws" + strings.TrimPrefix(server.URL, "http")
	return s
}

// queries returns the parameters of every request so far.
func (s *testServer) queries() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []url.Values
	for _, u := range s.requests {
		out = append(out, u.Query())
	}
	return out
}

// peer is the server's end of one connection.
type peer struct {
	t       testing.TB
	w       http.ResponseWriter
	r       *http.Request
	ws      *websocket.Conn
	upgrade func()
	sent    int
	acked   int
}

// fail fails the test from the server's goroutine and ends the script.
func (p *peer) fail(format string, args ...any) {
	p.t.Errorf("server: "+format, args...)
	panic(http.ErrAbortHandler)
}

// accept upgrades the connection and sends the status message.
func (p *peer) accept() {
	p.upgrade()
	p.send(accepted)
}

// send sends messages with the next ids.
func (p *peer) send(messages ...string) {
	for _, m := range messages {
		p.sent++
		p.raw(fmt.Sprintf(`{"id":%d,"msg":%s}`, p.sent, m))
	}
}

// offer sends to a peer that may have left already, and says whether it has not.
func (p *peer) offer(messages ...string) bool {
	for _, m := range messages {
		p.sent++
		if p.ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"id":%d,"msg":%s}`, p.sent, m)) != nil {
			return false
		}
	}
	return true
}

func (p *peer) raw(frame string) {
	if err := p.ws.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
		p.fail("send: %v", err)
	}
}

// readAck reads one ack, which must be the next, as a text frame in the exact form.
func (p *peer) readAck() {
	p.acked++
	_ = p.ws.SetReadDeadline(time.Now().Add(patience))
	kind, text, err := p.ws.ReadMessage()
	if err != nil {
		p.fail("read ack %d: %v", p.acked, err)
	}
	if want := fmt.Sprintf(`{"ack":%d}`, p.acked); kind != websocket.TextMessage || string(text) != want {
		p.fail("got frame %d %q, want %q", kind, text, want)
	}
}

// readAcks reads acks until everything sent is acked.
func (p *peer) readAcks() {
	for p.acked < p.sent {
		p.readAck()
	}
}

// waitEnd reads until the client has gone, and returns what it read and how it went.
func (p *peer) waitEnd() (frames []string, err error) {
	_ = p.ws.SetReadDeadline(time.Now().Add(patience))
	for {
		_, text, err := p.ws.ReadMessage()
		if err != nil {
			return frames, err
		}
		frames = append(frames, string(text))
	}
}

// tx returns the messages of a transaction with rows inserts.
func tx(watermark string, rows int) []string {
	messages := []string{string(change.Append(nil, change.Begin, []byte(`{"tag":"begin","json":"s"}`), watermark))}
	for i := range rows {
		c := fmt.Sprintf(`{"tag":"insert","relation":{"schema":"public","name":"t","rowKey":{"columns":["id"]}},"new":{"id":%d,"w":"%s"}}`,
			i, watermark)
		messages = append(messages, string(change.Append(nil, change.Data, []byte(c), watermark)))
	}
	return append(messages, string(change.Append(nil, change.Commit, []byte(`{"tag":"commit"}`), watermark)))
}

// recorder is a handler that keeps what it was given, without statuses.
type recorder struct {
	mu       sync.Mutex
	messages []string
	stop     func() // called when want messages are there
	want     int
}

func (r *recorder) handle(_ context.Context, m client.Message) error {
	if m.Kind == client.Status {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, string(bytes.Clone(m.Bytes)))
	if r.stop != nil && len(r.messages) == r.want {
		r.stop()
	}
	return nil
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.messages...)
}

// config is one for quick tests against a server.
func config(s *testServer, handler func(context.Context, client.Message) error) client.Config {
	return client.Config{
		URL: s.url + "/a/path/that/is/dropped", TaskID: "task", ID: "task/sub-1",
		ReplicaVersion: version, Watermark: version,
		Handler:    handler,
		BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
	}
}

// run runs a client until it ends.
func run(t *testing.T, ctx context.Context, cfg client.Config) error { //nolint:revive // t first, as everywhere in tests
	t.Helper()
	c, err := client.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the test waited %s", patience))
	defer cancel()
	err = c.Run(ctx)
	if ctx.Err() == context.DeadlineExceeded {
		t.Fatalf("%v", context.Cause(ctx))
	}
	return err
}

// runUntil runs a client until it has handled want messages that are no status, and
// returns them.
func runUntil(t *testing.T, cfg client.Config, want int) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &recorder{stop: cancel, want: want}
	own := cfg.Handler
	cfg.Handler = func(ctx context.Context, m client.Message) error {
		if own != nil {
			if err := own(ctx, m); err != nil {
				return err
			}
		}
		return r.handle(ctx, m)
	}
	require.NoError(t, run(t, ctx, cfg))
	return r.all()
}
