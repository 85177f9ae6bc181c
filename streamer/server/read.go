package server

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/gorilla/websocket"

	"millrace/streamer/wire"
)

// ackBuffer takes every ack of the usual form.
const ackBuffer = 64

// errViolation is what a peer did that it may not do. Its connection is closed, and no
// other one is touched [H 16].
var errViolation = errors.New("protocol violation")

// violation is closed with 1002. Whoever did it once will do it again, so not at once.
func violation(err error) error {
	return fmt.Errorf("%w: %w", errViolation,
		&wire.Close{Code: wire.CloseProtocol, Reason: "Error: " + err.Error(), Delay: true})
}

// read takes acks until the connection ends. After a violation it goes on reading, to
// nobody's use but the close frame's.
func (c *conn) read() {
	defer close(c.readerEnded)
	err := c.readAcks()
	if errors.Is(err, errViolation) {
		c.stop(err)
		err = c.drain()
	}
	if errors.Is(err, errGone) {
		c.terminate(err)
		return
	}
	c.stop(err)
}

func (c *conn) readAcks() error {
	var small [ackBuffer]byte
	for {
		kind, r, err := c.ws.NextReader()
		if err != nil {
			return readError(err)
		}
		if !c.alive.Load() {
			c.alive.Store(true)
		}
		if kind != websocket.TextMessage {
			return violation(errors.New("acks are text frames"))
		}
		text, err := readMessage(r, small[:])
		if err != nil {
			return readError(err)
		}
		id, err := wire.ParseAck(text)
		if err != nil {
			return violation(err)
		}
		c.acks.Add(1)
		if err := c.ack(id); err != nil {
			return violation(err)
		}
	}
}

// ack takes one ack. Once an error was sent only its own ack matters.
func (c *conn) ack(id uint64) error {
	last := c.lastWord.Load()
	switch {
	case last == 0 && c.sub != nil:
		return c.sub.Ack(id)
	case last == 0:
		return fmt.Errorf("ack %d of a refused subscription", id)
	case last == id:
		select {
		case <-c.lastAcked:
		default:
			close(c.lastAcked)
		}
	}
	return nil
}

// drain reads on for as long as the peer sends.
func (c *conn) drain() error {
	for {
		_, _, err := c.ws.NextReader()
		if err == nil {
			continue
		}
		if err = readError(err); errors.Is(err, errViolation) {
			// What follows is not frames any more.
			_, _ = io.Copy(io.Discard, c.out.net)
			return errGone
		}
		return err
	}
}

// readMessage reads a message into small, or into a larger buffer if it must. The
// connection's read limit bounds it.
func readMessage(r io.Reader, small []byte) ([]byte, error) {
	n := 0
	for n < len(small) {
		k, err := r.Read(small[n:])
		n += k
		if errors.Is(err, io.EOF) {
			return small[:n], nil
		}
		if err != nil {
			return nil, err
		}
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return append(small[:n:n], rest...), nil
}

// readError tells a peer that left from one that broke the protocol.
func readError(err error) error {
	var closed *websocket.CloseError
	var broken net.Error
	switch {
	case errors.As(err, &closed) && closed.Code != websocket.CloseAbnormalClosure:
		return &peerClosed{closed.Code}
	case errors.As(err, &closed), errors.As(err, &broken), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", errGone, err)
	case errors.Is(err, websocket.ErrReadLimit):
		return violation(fmt.Errorf("message of more than %d bytes", wire.MaxAck))
	default:
		return violation(err)
	}
}
