package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"millrace/streamer/metrics"
	"millrace/streamer/wire"
)

const (
	// flushAt is how many bytes go out in one write; bufferSize leaves room for the
	// message that reaches it.
	flushAt       = 64 << 10
	bufferSize    = 80 << 10
	frameOverhead = 64 // more than what a frame adds to its message
	// largeMessage is sent from where it lies, in pieces that each have a deadline.
	largeMessage = 64 << 10
	pieceSize    = 256 << 10
)

const (
	opClose = 0x88
	opPing  = 0x89
	opPong  = 0x8a
	maxPong = 125
)

// errCutOff says that nothing more can be written: the close frame is out, or a frame is
// only there in part.
var errCutOff = errors.New("the connection takes no more frames")

var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, bufferSize)
	return &b
}}

// out is the sending half of a connection. The pump appends frames and flushes them;
// what is written under the lock is always whole frames.
type out struct {
	net     net.Conn
	timeout time.Duration // of one write
	metrics *metrics.Metrics

	buffer *[]byte // from the pool; nil while there is nothing to send
	frames int     // in the buffer

	hurryBy  atomic.Int64 // deadline of everything that is still written; 0 is none
	progress atomic.Int64 // when a piece of a large message went out; both in Unix nanoseconds

	mu     sync.Mutex
	cutOff bool
}

// frame appends the frame of a message, and sends what has come together if it is enough.
func (o *out) frame(id uint64, message []byte) error {
	if o.buffer == nil {
		o.buffer = buffers.Get().(*[]byte) //nolint:forcetypeassert // see New
	}
	if len(message) >= largeMessage {
		return o.large(id, message)
	}
	if len(*o.buffer)+len(message)+frameOverhead > bufferSize { // the buffer never grows
		if err := o.flush(); err != nil {
			return err
		}
	}
	o.frames++
	*o.buffer = wire.AppendFrame(*o.buffer, id, message)
	if len(*o.buffer) >= flushAt {
		return o.flush()
	}
	return nil
}

// flush sends what was appended.
func (o *out) flush() error {
	if o.buffer == nil || len(*o.buffer) == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flushLocked()
}

func (o *out) flushLocked() error {
	err := o.write(*o.buffer)
	o.metrics.ServerFrames.Add(float64(o.frames))
	o.frames = 0
	*o.buffer = (*o.buffer)[:0]
	return err
}

// park gives the buffer back. Everything has been flushed.
func (o *out) park() {
	if o.buffer != nil {
		*o.buffer = (*o.buffer)[:0]
		buffers.Put(o.buffer)
		o.buffer = nil
	}
}

// large sends a message without copying it.
func (o *out) large(id uint64, message []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	*o.buffer = wire.AppendFrameStart(*o.buffer, id, len(message))
	o.frames++
	if err := o.flushLocked(); err != nil {
		return err
	}
	for len(message) > 0 {
		piece := message[:min(len(message), pieceSize)]
		message = message[len(piece):]
		parts := net.Buffers{piece}
		if len(message) == 0 {
			parts = append(parts, []byte(wire.FrameEnd))
		}
		if err := o.writeParts(parts); err != nil {
			return err
		}
		o.progress.Store(time.Now().UnixNano())
	}
	return nil
}

func (o *out) write(b []byte) error {
	if o.cutOff {
		return errCutOff
	}
	start := o.setDeadline()
	_, err := o.net.Write(b)
	return o.written(start, len(b), err)
}

func (o *out) writeParts(parts net.Buffers) error {
	if o.cutOff {
		return errCutOff
	}
	start := o.setDeadline()
	n, err := parts.WriteTo(o.net)
	return o.written(start, int(n), err)
}

func (o *out) written(start time.Time, n int, err error) error {
	o.metrics.ServerBytes.Add(float64(n))
	o.metrics.ServerFlushSeconds.Observe(time.Since(start).Seconds())
	if err != nil {
		o.cutOff = true
		return fmt.Errorf("send frames: %w", err)
	}
	return nil
}

func (o *out) setDeadline() time.Time {
	now := time.Now()
	by := now.Add(o.timeout)
	if hurry := o.hurryBy.Load(); hurry != 0 {
		by = time.Unix(0, hurry)
	}
	_ = o.net.SetWriteDeadline(by) // it errs on a closed connection, as the write will
	if hurry := o.hurryBy.Load(); hurry != 0 {
		_ = o.net.SetWriteDeadline(time.Unix(0, hurry))
	}
	return now
}

// hurry gives all writes together this much time from now on. It does not wait for a
// write that is under way, but cuts it short.
func (o *out) hurry(within time.Duration) {
	by := time.Now().Add(within)
	o.hurryBy.Store(by.UnixNano())
	_ = o.net.SetWriteDeadline(by)
}

// control sends a frame of at most 125 bytes of data, between two others.
func (o *out) control(op byte, data []byte) error {
	frame := make([]byte, 0, 2+maxPong)
	frame = append(append(frame, op, byte(len(data))), data...)
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.write(frame)
	if op == opClose {
		o.cutOff = true
	}
	return err
}

// close sends a close frame, with the code and reason unless it is plain.
func (o *out) close(code int, reason string) error {
	var data []byte
	if code != wire.ClosePlain {
		data = binary.BigEndian.AppendUint16(data, uint16(code)) //nolint:gosec // a close code
		data = append(data, wire.TruncateReason(reason)...)
	}
	return o.control(opClose, data)
}
