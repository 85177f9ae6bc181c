package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"millrace/streamer/subscriber"
	"millrace/streamer/wire"
)

var (
	errGone   = errors.New("the peer is gone")
	errSilent = errors.New("the peer answers no pings")
	errLags   = errors.New("the subscriber acks nothing")
)

// peerClosed says that the peer has sent a close frame.
type peerClosed struct{ code int }

func (e *peerClosed) Error() string { return fmt.Sprintf("the peer closed with %d", e.code) }

// subscription is what a connection needs of a *subscriber.Subscription.
type subscription interface {
	Next() (frames subscriber.Frames, ok bool, err error) // pump; never waits
	Wait(ctx context.Context) error                       // pump
	Ack(id uint64) error                                  // reader
	Idle(now time.Time) time.Duration                     // sweeper
	Version() int
}

// conn is one connection. The pump owns it; the reader and the sweeper tell it to end by
// cancelling its context with a cause.
//
//	pump:    send ── cause ──► last words, delay, close frame ── reader ended ──► free
//	reader:  acks ── violation ──► only drains ── close frame, end or deadline ──► ended
type conn struct {
	server  *Server
	request wire.Request
	key     string // whose closes are delayed together
	log     *slog.Logger
	sub     subscription // nil: there is only an end to be told
	release func()

	ctx    context.Context
	cancel context.CancelCauseFunc

	ws     *websocket.Conn
	out    out
	lastID uint64 // of the pump: the last frame appended
	old    []byte // of the pump: a message in the form of an older version

	readerEnded chan struct{}
	alive       atomic.Bool   // something came since the last ping
	acks        atomic.Uint64 // received
	lastWord    atomic.Uint64 // the frame whose ack ends the connection
	lastAcked   chan struct{} // closed when it came

	controls controls

	// Of the sweeper alone.
	nextPing time.Time
	counted  uint64 // acks in the metrics
}

func (s *Server) newConn() *conn {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &conn{server: s, log: s.log, ctx: ctx, cancel: cancel}
}

// open makes the connection ready for its pump and reader.
func (c *conn) open(ws *websocket.Conn, raw net.Conn) {
	cfg := &c.server.cfg
	c.ws = ws
	c.out.net, c.out.timeout, c.out.metrics = raw, cfg.WriteTimeout, cfg.Metrics
	c.readerEnded, c.lastAcked = make(chan struct{}), make(chan struct{})
	c.alive.Store(true)
	c.nextPing = time.Now().Add(cfg.PingEvery)
	ws.SetReadLimit(wire.MaxAck)
	ws.SetPingHandler(func(data string) error {
		c.alive.Store(true)
		c.pong([]byte(data))
		return nil
	})
	ws.SetPongHandler(func(string) error {
		c.alive.Store(true)
		return nil
	})
	ws.SetCloseHandler(func(int, string) error { return nil }) // the pump answers
	if c.sub != nil {
		cfg.Metrics.ServerSubscribers.WithLabelValues(c.request.Mode).Inc()
		c.log.Debug("subscriber connected", "watermark", c.request.Watermark)
	}
}

// free gives back what the connection holds. Everything of it has ended.
func (c *conn) free() {
	c.cancel(errGone)
	if c.release != nil {
		c.release()
	}
	c.server.unreserve()
}

// stop has the pump end the connection for this cause, the first one counts. A write
// that is under way is cut short.
func (c *conn) stop(cause error) {
	c.cancel(cause)
	c.out.hurry(c.server.cfg.CloseTimeout)
}

// terminate ends the connection without a close frame.
func (c *conn) terminate(cause error) {
	c.cancel(cause)
	raw := c.out.net
	if secure, ok := raw.(interface{ NetConn() net.Conn }); ok {
		raw = secure.NetConn() // TLS would say good-bye first, and may wait for that
	}
	_ = raw.Close() // closed is what it shall be
}

// pump sends until the connection ends, then ends it in order. With end the subscription
// was refused, and only that is told.
func (c *conn) pump(end error) {
	if end == nil {
		end = c.send()
	}
	how := c.finish(end)
	<-c.readerEnded
	c.server.remove(c)
	c.account()
	c.controls.close()
	c.out.park()
	metrics := c.server.cfg.Metrics
	metrics.ServerCloses.WithLabelValues(how).Inc()
	if c.sub != nil {
		metrics.ServerSubscribers.WithLabelValues(c.request.Mode).Dec()
	}
	c.report(end)
	c.free()
}

// send sends what the subscription hands out, and returns why it ended.
func (c *conn) send() error {
	for {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		frames, ok, err := c.sub.Next()
		if err != nil {
			return err
		}
		if ok {
			if err := c.frames(frames); err != nil {
				return c.why(err)
			}
			continue
		}
		// Dry, or the window is full: what is there must be with the subscriber first.
		if err := c.out.flush(); err != nil {
			return c.why(err)
		}
		c.out.park()
		if err := c.sub.Wait(c.ctx); err != nil {
			return c.why(err)
		}
	}
}

// frames appends what Next returned.
func (c *conn) frames(frames subscriber.Frames) error {
	c.lastID = frames.FirstID
	if frames.Literal != nil {
		return c.out.frame(frames.FirstID, frames.Literal)
	}
	version, run := c.sub.Version(), frames.Run
	n := run.Len()
	c.lastID += uint64(n) - 1 //nolint:gosec // at least one message
	if version < wire.RowKeySince {
		return c.oldFrames(frames, version)
	}
	for i := range n {
		if err := c.out.frame(frames.FirstID+uint64(i), run.Message(i)); err != nil { //nolint:gosec // an index
			return err
		}
	}
	return nil
}

func (c *conn) oldFrames(frames subscriber.Frames, version int) error {
	for i := range frames.Run.Len() {
		id := frames.FirstID + uint64(i) //nolint:gosec // an index
		c.lastID = id
		c.old = wire.AppendForVersion(c.old[:0], frames.Run.Message(i), frames.Run.Entry(i).Tag, version)
		if size := int64(wire.PayloadSize(id, len(c.old))); size > c.request.MaxMessageBytes {
			return wire.TooBig("an older version's form", size, c.request.MaxMessageBytes)
		}
		if err := c.out.frame(id, c.old); err != nil {
			return err
		}
	}
	if cap(c.old) > bufferSize {
		c.old = nil
	}
	return nil
}

// why prefers the reason that somebody gave for the end to the error of what it cut short.
func (c *conn) why(err error) error {
	if told(err) {
		return err
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// finish says why, if that is for the peer to know, and closes. It returns the label of
// how the connection ended.
func (c *conn) finish(end error) string {
	defer c.hangUp()
	var closed *peerClosed
	switch {
	case errors.Is(end, errGone), errors.Is(end, errSilent):
		return "none"
	case errors.As(end, &closed):
		code := closed.code
		if code == websocket.CloseNoStatusReceived {
			code = wire.ClosePlain
		}
		c.out.hurry(c.server.cfg.CloseTimeout)
		_ = c.out.close(code, "") // the peer has said that it leaves
		return "peer"
	}
	how, label := &wire.Close{Code: wire.ClosePlain}, "plain"
	var message *wire.ErrorMessage
	if errors.As(end, &message) {
		label = "error"
		c.lastWords(message)
	} else if errors.As(end, &how) && how.Code != wire.ClosePlain {
		label = fmt.Sprint(how.Code)
	}
	c.out.hurry(c.server.cfg.CloseTimeout)
	err := c.out.flush() // what came before the end
	if err == nil && how.Delay {
		c.delay()
	}
	if err == nil {
		c.out.hurry(c.server.cfg.CloseTimeout)
		err = c.out.close(how.Code, how.Reason)
	}
	if err != nil {
		return "none"
	}
	// Closing with acks unread would reset the connection, and the peer might never see
	// the close frame. So the reader goes on until the peer has answered.
	_ = c.out.net.SetReadDeadline(time.Now().Add(c.server.cfg.CloseTimeout))
	<-c.readerEnded
	return label
}

func (c *conn) hangUp() {
	_ = c.out.net.Close() // nothing is left to be sent
}

// lastWords sends an error message and waits for its ack, but not for long [H 14].
func (c *conn) lastWords(message *wire.ErrorMessage) {
	id := c.lastID + 1
	c.lastWord.Store(id)
	c.out.hurry(c.server.cfg.CloseTimeout)
	if c.out.frame(id, message.Append(nil)) != nil || c.out.flush() != nil {
		return
	}
	timer := time.NewTimer(c.server.cfg.ErrorAckTimeout)
	defer timer.Stop()
	select {
	case <-c.lastAcked:
	case <-timer.C:
	case <-c.readerEnded:
	case <-c.server.stopping:
	}
}

// delay holds the close back [R29].
func (c *conn) delay() {
	timer := time.NewTimer(c.server.delays.next(c.key, time.Now()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.readerEnded:
	case <-c.server.stopping:
	}
}

// report logs how a connection ended that did not end by itself.
func (c *conn) report(end error) {
	var closed *peerClosed
	var how *wire.Close
	var message *wire.ErrorMessage
	switch {
	case errors.Is(end, errGone), errors.Is(end, errStopping), errors.Is(end, errReleased), errors.As(end, &closed):
		c.log.Debug("subscriber disconnected", "cause", end)
	case errors.Is(end, errViolation):
		c.server.cfg.Metrics.ServerViolations.Inc()
		c.log.Warn("subscriber broke the protocol", "err", end)
	case errors.As(end, &how) && how.Code == wire.CloseTooBig:
		c.server.cfg.Metrics.ServerOversized.Inc()
		c.log.Error("subscriber cannot take the next message", "cause", end)
	case errors.As(end, &how), errors.As(end, &message):
		c.log.Info("subscriber was refused", "cause", end)
	default:
		c.log.Warn("subscriber was closed", "cause", end)
	}
}

// account adds the acks that came since the last time to the metrics. It is called by
// the sweeper, and by the pump when the sweeper no longer knows the connection.
func (c *conn) account() {
	c.controls.mu.Lock()
	defer c.controls.mu.Unlock()
	if acks := c.acks.Load(); acks != c.counted {
		c.server.cfg.Metrics.ServerAcks.Add(float64(acks - c.counted))
		c.counted = acks
	}
}

// controls are the pings and pongs that wait to be sent. They have a goroutine of their
// own, while there are any: the sweeper and the reader must not wait for a slow peer.
type controls struct {
	mu     sync.Mutex
	closed bool // the pump is about to end
	busy   bool
	ping   bool
	pong   []byte // the newest one only; nil: none
}

func (p *controls) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
}

func (c *conn) ping() {
	c.controls.mu.Lock()
	c.controls.ping = true
	c.sendControls()
}

func (c *conn) pong(data []byte) {
	c.controls.mu.Lock()
	c.controls.pong = append([]byte{}, data...)
	c.sendControls()
}

// sendControls is called with the lock, and gives it back.
func (c *conn) sendControls() {
	start := !c.controls.busy && !c.controls.closed
	c.controls.busy = true
	c.controls.mu.Unlock()
	if start {
		c.server.running.Go(c.writeControls) // the pump still counts as running
	}
}

func (c *conn) writeControls() {
	for {
		c.controls.mu.Lock()
		ping, pong := c.controls.ping, c.controls.pong
		c.controls.ping, c.controls.pong = false, nil
		c.controls.busy = ping || pong != nil
		c.controls.mu.Unlock()
		switch {
		case ping:
			_ = c.out.control(opPing, nil) // a connection that takes no more is ended by others
		case pong == nil:
			return
		}
		if pong != nil {
			_ = c.out.control(opPong, pong)
		}
	}
}
