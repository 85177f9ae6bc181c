package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"millrace/streamer/wire"
)

const (
	readBuffer  = 64 << 10 // one system call for a few hundred usual messages
	writeBuffer = 1 << 10  // only control frames go through it
	// ackBatch bounds what is handled before acks leave while more keeps coming.
	ackBatch = 16 << 10
	// goodbye bounds the courtesy of a close frame.
	goodbye = time.Second
)

// connection is a websocket that acks in batches: acks leave when everything that
// arrived has been handled, or when there are many.
type connection struct {
	ws      *websocket.Conn
	timeout time.Duration
	release func() bool // lets the connection outlive the context

	settle    func() error // called before acks leave
	settleErr error        // what it returned

	acks []byte // encoded frames not yet sent
}

// serverURL returns the websocket URL of an address, host:port or a URL, without path.
func serverURL(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		address = "ws://" + address
	}
	u, err := url.Parse(address)
	address, _, _ = strings.Cut(address, "?") // somebody may have put a token there
	if err != nil {
		var parts *url.Error
		if errors.As(err, &parts) {
			err = parts.Err // it has the whole address in front
		}
		return nil, fmt.Errorf("server address %q: %w", address, err)
	}
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	case "ws", "wss":
	default:
		return nil, fmt.Errorf("server address %q: want ws://HOST:PORT or wss://HOST:PORT", address)
	}
	if u.Hostname() == "" || u.User != nil {
		return nil, fmt.Errorf("server address %q: want ws://HOST:PORT or wss://HOST:PORT", (&url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host}).Redacted())
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// dial opens a subscription behind the position of c.
func (c *Client) dial(ctx context.Context, server *url.URL, access access) (*connection, error) {
	target := *server
	target.Path = "/replication/v" + strconv.Itoa(c.cfg.Version) + "/changes"
	// The order of Zero's subscribers; nothing depends on it.
	query := []string{
		"taskID", c.cfg.TaskID, "id", c.cfg.ID, "mode", c.cfg.Mode,
		"watermark", c.pos.Watermark, "replicaVersion", c.pos.ReplicaVersion,
	}
	if !c.moved {
		query = append(query, "initial", "true")
	}
	if c.cfg.MaxMessageBytes != wire.MaxFrame {
		query = append(query, "maxMessageBytes", strconv.FormatInt(c.cfg.MaxMessageBytes, 10))
	}
	var b strings.Builder
	for i := 0; i < len(query); i += 2 {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(query[i] + "=" + url.QueryEscape(query[i+1]))
	}
	target.RawQuery = b.String()

	conn := &connection{timeout: c.cfg.Timeout}
	var socket *watchedConn
	dialer := websocket.Dialer{
		HandshakeTimeout: c.cfg.Timeout,
		TLSClientConfig:  access.tls,
		ReadBufferSize:   readBuffer,
		WriteBufferSize:  writeBuffer,
		NetDialContext: func(dialCtx context.Context, network, address string) (net.Conn, error) {
			plain, err := (&net.Dialer{}).DialContext(dialCtx, network, address)
			if err != nil {
				return nil, err
			}
			socket = &watchedConn{Conn: plain, ctx: ctx, silence: c.cfg.Liveness}
			conn.release = context.AfterFunc(ctx, socket.interrupt)
			return socket, nil
		},
	}
	ws, response, err := dialer.DialContext(ctx, target.String(), access.header()) //nolint:bodyclose // the library has closed it
	if err != nil {
		if conn.release != nil {
			conn.release()
		}
		return nil, refusedUpgrade(err, response, server)
	}
	ws.SetReadLimit(c.cfg.MaxMessageBytes)
	conn.ws = ws
	socket.before = conn.beforeRead
	return conn, nil
}

// refusedUpgrade says what a server answered instead of an upgrade.
func refusedUpgrade(err error, response *http.Response, server *url.URL) error {
	if !errors.Is(err, websocket.ErrBadHandshake) || response == nil {
		return fmt.Errorf("connect to %s: %w", server.Host, err)
	}
	if response.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("connect to %s: %w", server.Host, unauthorized(response.Body))
	}
	return fmt.Errorf("connect to %s: the server answered %s %s", server.Host, response.Status, detail(response.Body))
}

// beforeRead runs when everything that has arrived was handled.
func (c *connection) beforeRead() error {
	if c.settleErr = c.settle(); c.settleErr != nil {
		return c.settleErr
	}
	return c.sendAcks()
}

func (c *connection) settleIfLarge() error {
	if len(c.acks) < ackBatch {
		return nil
	}
	return c.beforeRead()
}

// ack notes that frame id was handled. The ack leaves with the next sendAcks.
func (c *connection) ack(id uint64) {
	const header, mask = 2, 4
	start := len(c.acks)
	c.acks = append(c.acks, 0x81, 0x80, 0, 0, 0, 0)
	key := c.acks[start+header : start+header+mask]
	binary.LittleEndian.PutUint32(key, rand.Uint32())
	c.acks = append(c.acks, `{"ack":`...)
	c.acks = strconv.AppendUint(c.acks, id, 10)
	c.acks = append(c.acks, '}')
	payload := c.acks[start+header+mask:]
	key = c.acks[start+header : start+header+mask] // the append may have moved it
	for i := range payload {
		payload[i] ^= key[i%mask]
	}
	c.acks[start+1] |= byte(len(payload)) // at most 28, far below the short form's 125
}

// sendAcks writes the acks that were noted. All writes of a connection come from the
// goroutine that reads it, so they need no lock.
func (c *connection) sendAcks() error {
	if len(c.acks) == 0 {
		return nil
	}
	raw := c.ws.NetConn()
	if err := raw.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		return fmt.Errorf("send acks: %w", err)
	}
	_, err := raw.Write(c.acks)
	c.acks = c.acks[:0]
	if err != nil {
		return fmt.Errorf("send acks: %w", err)
	}
	return nil
}

// close says goodbye without a code, which the server sees as 1005, and hangs up.
func (c *connection) close() {
	c.release()
	_ = c.ws.WriteControl(websocket.CloseMessage, nil, time.Now().Add(goodbye)) // a courtesy
	_ = c.ws.Close()                                                            // nothing is left to lose
}

// watchedConn gives up after a silence or when its context ends, and knows when its
// reader has nothing left to do.
type watchedConn struct {
	net.Conn
	ctx     context.Context //nolint:containedctx // net.Conn has none to give
	silence time.Duration
	before  func() error // nil during the handshake, which has a limit of its own
}

// interrupt ends a Read that waits.
func (w *watchedConn) interrupt() { _ = w.SetReadDeadline(time.Unix(1, 0)) } // fails only on a closed socket

// Read waits for more at most as long as the silence that is allowed.
func (w *watchedConn) Read(b []byte) (int, error) {
	if w.before != nil {
		if err := w.before(); err != nil {
			return 0, err
		}
		if err := w.SetReadDeadline(time.Now().Add(w.silence)); err != nil {
			return 0, err
		}
	}
	// After the deadline was set: whichever of the two comes later sees the other.
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.Conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) && w.ctx.Err() == nil && w.before != nil {
		err = fmt.Errorf("nothing came for %s: %w", w.silence, err)
	}
	return n, err
}
