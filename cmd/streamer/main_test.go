package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

const (
	patience = time.Minute // how long a test waits for what must come
	// asStreamer makes this test binary the streamer command: the very code, built once.
	asStreamer = "STREAMER_TEST_RUN"
)

func TestMain(m *testing.M) {
	if os.Getenv(asStreamer) != "" {
		if err := os.Unsetenv(asStreamer); err != nil {
			panic(err)
		}
		os.Exit(run(os.Args[1:]))
	}
	pgtest.Main(m)
}

// program is the streamer command, running or ended.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *lockedBuffer
	stderr *lockedBuffer
}

// command prepares streamer with arguments; environment has NAME=value.
func command(t *testing.T, environment []string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	p := &program{t: t, cmd: exec.CommandContext(ctx, self, args...), stdout: newLockedBuffer(), stderr: newLockedBuffer()}
	p.cmd.Env = append([]string{asStreamer + "=1", "PATH=" + os.Getenv("PATH"), "HOME=/", "TMPDIR=" + os.TempDir()}, environment...)
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	return p
}

func (p *program) start() *program {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Start())
	p.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// wait returns the exit code; -1 if a signal ended it.
func (p *program) wait() int {
	p.t.Helper()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("wait for %v: %v", p.cmd.Args, err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// invoke runs streamer to its end.
func invoke(t *testing.T, environment []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := command(t, environment, args...).start()
	code = p.wait()
	return code, p.stdout.String(), p.stderr.String()
}

// lockedBuffer collects output, and says when there is more.
type lockedBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more *sync.Cond
}

func newLockedBuffer() *lockedBuffer {
	b := &lockedBuffer{}
	b.more = sync.NewCond(&b.mu)
	return b
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.more.Broadcast()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// waitFor blocks until the output satisfies good.
func (b *lockedBuffer) waitFor(t *testing.T, what string, good func(string) bool) string {
	t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		late = true
		b.more.Broadcast()
	})
	defer timer.Stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for !good(b.buf.String()) {
		if late {
			t.Fatalf("waited %s for %s; the output is\n%s", patience, what, b.buf.String())
		}
		b.more.Wait()
	}
	return b.buf.String()
}

func (b *lockedBuffer) waitLines(t *testing.T, n int) string {
	t.Helper()
	return b.waitFor(t, fmt.Sprintf("%d lines", n), func(s string) bool { return strings.Count(s, "\n") >= n })
}

// stream is a websocket server that has a log of transactions. /status knows its ends.
type stream struct {
	url string

	mu       sync.Mutex
	requests []string // watermarks asked for
	cutAfter int      // the connection is cut before so many messages more, once; 0: never
	added    chan struct{}
	log      []transaction
	release  chan struct{}
}

type transaction struct {
	watermark string
	messages  []string
}

const replicaVersion = "120"

func newStream(t *testing.T, withStatus bool) *stream {
	t.Helper()
	s := &stream{added: make(chan struct{}), release: make(chan struct{})}
	var running sync.WaitGroup
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Done()
		switch {
		case strings.HasSuffix(r.URL.Path, "/changes"):
			s.serve(t, w, r)
		case withStatus && r.URL.Path == "/status":
			s.mu.Lock()
			defer s.mu.Unlock()
			head := replicaVersion
			if n := len(s.log); n > 0 {
				head = s.log[n-1].watermark
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"replica_version": replicaVersion, "minimum": replicaVersion, "head": head})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() {
		close(s.release)
		server.CloseClientConnections()
		server.Close()
		running.Wait()
	})
	s.url = "ws" + strings.TrimPrefix(server.URL, "http")
	return s
}

// add appends a transaction with rows inserts and returns its lines.
func (s *stream) add(watermark string, rows int) string {
	tx := transaction{watermark: watermark, messages: []string{`["begin",{"tag":"begin","json":"s"},{"commitWatermark":"` + watermark + `"}]`}}
	for i := range rows {
		tx.messages = append(tx.messages, fmt.Sprintf(`["data",{"tag":"insert","new":{"id":%d,"w":"%s","t":"a\nb\u0000"}}]`, i, watermark))
	}
	tx.messages = append(tx.messages, `["commit",{"tag":"commit"},{"watermark":"`+watermark+`"}]`)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, tx)
	close(s.added)
	s.added = make(chan struct{})
	return strings.Join(tx.messages, "\n") + "\n"
}

func (s *stream) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

func (s *stream) serve(t *testing.T, w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		t.Errorf("upgrade: %v", err)
		return
	}
	defer ws.Close()
	gone := make(chan struct{})
	var reading sync.WaitGroup
	defer reading.Wait()
	defer ws.Close()
	reading.Go(func() {
		defer close(gone)
		for {
			if _, _, err := ws.ReadMessage(); err != nil {
				return
			}
		}
	})
	id := 0
	send := func(message string) bool {
		id++
		return ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"id":%d,"msg":%s}`, id, message)) == nil
	}
	from := r.URL.Query().Get("watermark")
	s.mu.Lock()
	s.requests = append(s.requests, from)
	s.mu.Unlock()
	if got := r.URL.Query().Get("replicaVersion"); got != replicaVersion {
		send(fmt.Sprintf(`["error",{"type":1,"message":"current replica version is %s (requested %s)"}]`, replicaVersion, got))
		<-gone
		return
	}
	if !send(`["status",{"tag":"status"}]`) {
		return
	}
	for next := 0; ; {
		s.mu.Lock()
		added, log := s.added, s.log[next:]
		s.mu.Unlock()
		for _, tx := range log {
			next++
			if tx.watermark <= from {
				continue
			}
			for _, m := range tx.messages {
				if s.cut() || !send(m) {
					return
				}
			}
		}
		select {
		case <-added:
		case <-gone:
			return
		case <-s.release:
			return
		}
	}
}

// cutBefore cuts the connection before message n from now, once.
func (s *stream) cutBefore(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutAfter = n
}

// cut says whether the connection is to be cut before the next message.
func (s *stream) cut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cutAfter == 0 {
		return false
	}
	s.cutAfter--
	return s.cutAfter == 0
}

// messages parses output that must be nothing but messages, and returns their kinds.
func messages(t *testing.T, output string) (kinds []string) {
	t.Helper()
	scanner := bufio.NewScanner(strings.NewReader(output))
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var parts []json.RawMessage
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &parts), "line %q", scanner.Text())
		var kind string
		require.NoError(t, json.Unmarshal(parts[0], &kind))
		require.Contains(t, []string{"begin", "data", "commit", "rollback"}, kind)
		kinds = append(kinds, kind)
	}
	require.NoError(t, scanner.Err())
	require.True(t, output == "" || strings.HasSuffix(output, "\n"), "the last line is not whole")
	return kinds
}
