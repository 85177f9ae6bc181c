package server

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"millrace/streamer/wire"
)

const (
	// readBuffer holds some 56 acks.
	readBuffer = 1024
	// writeBuffer is for the library's handshake; we write frames ourselves.
	writeBuffer      = 1024
	handshakeTimeout = 10 * time.Second
)

var handshakes sync.Pool

var upgrader = websocket.Upgrader{
	HandshakeTimeout: handshakeTimeout,
	ReadBufferSize:   readBuffer,
	WriteBufferSize:  writeBuffer,
	WriteBufferPool:  &handshakes,
	CheckOrigin:      func(*http.Request) bool { return true }, // no cookies, nothing to forge
}

// upgrade answers a websocket request. What makes it pointless for the peer to come back
// soon is said with a 503 before the upgrade; everything else after it.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request) {
	if err := s.cfg.Ready(); err != nil {
		s.unavailable(w, r, "not-ready", err)
		return
	}
	if err := s.reserve(); err != nil {
		reason := "stopping"
		if errors.Is(err, errTooMany) {
			reason = "too-many"
		}
		s.unavailable(w, r, reason, err)
		return
	}
	c := s.newConn()
	c.key = remoteHost(r)
	end := s.subscribe(r, c)
	if end != nil && !told(end) {
		s.unavailable(w, r, "unavailable", end)
		c.free()
		return
	}
	muted := &mutedWriter{ResponseWriter: w}
	ws, err := upgrader.Upgrade(muted, r, nil)
	if err != nil { // the peer has got an answer
		s.refused("bad-upgrade")
		s.log.DebugContext(r.Context(), "upgrade was refused", "err", err)
		c.free()
		return
	}
	muted.conn.muted.Store(true)
	c.open(ws, muted.conn.Conn)
	s.add(c)
	// The handler returns and takes net/http's buffers with it; the place that was
	// reserved is the pump's from here on.
	go c.read()
	go c.pump(end)
}

// subscribe reads the request and asks for a subscription. It returns how to refuse.
func (s *Server) subscribe(r *http.Request, c *conn) error {
	request, err := s.rules.Parse(r.URL.EscapedPath(), r.URL.RawQuery)
	if err != nil {
		s.refused("bad-request")
		if task := r.URL.Query().Get("taskID"); task != "" {
			c.key = task // what else is wrong with the request is this task's affair
		}
		return err
	}
	c.request = request
	if request.TaskID != "" {
		c.key = request.TaskID
	}
	c.log = c.log.With("subscriber_id", request.ID, "task_id", request.TaskID)
	if request.Action == wire.Snapshot && s.cfg.Reserve == nil {
		s.refused("no-backup")
		return &wire.Close{Code: wire.CloseProtocol, Reason: wire.BackupsNotConfigured, Delay: true}
	}
	// Until the answer is there the connection is the request's.
	detach := context.AfterFunc(r.Context(), func() { c.cancel(context.Cause(r.Context())) })
	timer := time.AfterFunc(subscribeTimeout, func() { c.cancel(context.DeadlineExceeded) })
	sub, release, err := s.ask(c.ctx, request)
	inTime := timer.Stop()
	detached := detach()
	if err == nil && (!inTime || !detached) {
		release()
		return ErrUnavailable
	}
	var message *wire.ErrorMessage
	switch {
	case errors.As(err, &message):
		s.refused(reasonOf(message))
		return err
	case told(err):
		s.refused("closed")
		return err
	case err != nil:
		return err
	}
	c.sub, c.release = sub, release
	return nil
}

// ask asks for a subscription, or for a reservation.
func (s *Server) ask(ctx context.Context, request wire.Request) (subscription, func(), error) {
	if request.Action != wire.Snapshot {
		return s.cfg.Subscribe(ctx, request)
	}
	restore, err := s.cfg.Reserve(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	release := func() { restore.Release(ctx) }
	return &reserved{restore: restore, version: request.Version}, release, nil
}

// told says whether an error is told after the upgrade.
func told(err error) bool {
	var message *wire.ErrorMessage
	var end *wire.Close
	return errors.As(err, &message) || errors.As(err, &end)
}

func reasonOf(message *wire.ErrorMessage) string {
	switch message.Type {
	case wire.TypeWrongReplicaVersion:
		return "wrong-replica-version"
	case wire.TypeWatermarkTooOld:
		return "watermark-too-old"
	case wire.TypeStreamTooFarBehind:
		return "too-far-behind"
	}
	return "other"
}

func (s *Server) refused(reason string) {
	s.cfg.Metrics.ServerRefusals.WithLabelValues(reason).Inc()
}

// unavailable answers 503. That makes the compatible peer back off, which nothing that
// comes after an upgrade does.
func (s *Server) unavailable(w http.ResponseWriter, r *http.Request, reason string, err error) {
	s.refused(reason)
	s.log.DebugContext(r.Context(), "subscriber was refused", "cause", err)
	if !errors.Is(err, ErrUnavailable) && !errors.Is(err, errStopping) && !errors.Is(err, errTooMany) {
		s.log.WarnContext(r.Context(), "subscription could not be made", "err", err)
	}
	w.Header().Set("Retry-After", retryAfter)
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// mutedWriter gives the websocket library a connection on which it can do the handshake
// and read, but on which it can be muted: it would write closes of its own between the
// bytes of the pump's frames.
type mutedWriter struct {
	http.ResponseWriter
	conn *mutedConn
}

func (w *mutedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.conn = &mutedConn{Conn: conn}
	return w.conn, rw, nil
}

type mutedConn struct {
	net.Conn
	muted atomic.Bool
}

func (c *mutedConn) Write(p []byte) (int, error) {
	if c.muted.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *mutedConn) SetWriteDeadline(t time.Time) error {
	if c.muted.Load() {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}
