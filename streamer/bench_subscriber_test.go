package streamer_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer/wire"
)

// A listener is a subscriber that does the least that the protocol allows: it finds the
// frames and acks each of them, in one write for as many as one read has brought.
type listener struct {
	conn net.Conn
	in   *bufio.Reader
	acks []byte
	id   uint64 // of the last frame
}

// listen subscribes, as soon as somebody at the address accepts that.
func (l *lab) listen(address, watermark string) *listener {
	l.t.Helper()
	r := wire.Request{
		Version: wire.MaxVersion, Action: wire.Changes, ID: "bench", TaskID: "bench", Mode: wire.Serving,
		ReplicaVersion: l.replicaVersion, Watermark: watermark, Initial: true,
	}
	for end := time.Now().Add(labPatience); ; letPass(time.Millisecond) {
		s, err := dialListener(address, r)
		if err == nil {
			l.t.Cleanup(s.close)
			return s
		}
		require.True(l.t, time.Now().Before(end), "%v", err)
	}
}

func dialListener(address string, r wire.Request) (_ *listener, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(labPatience)); err != nil {
		return nil, err
	}
	_, err = io.WriteString(conn, "GET "+r.Path()+"?"+r.Query()+
		" HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	if err != nil {
		return nil, err
	}
	s := &listener{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	response, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("the streamer answers %s", response.Status)
	}
	return s, nil
}

func (s *listener) close() { _ = s.conn.Close() }

// span is the time from the first of some frames to the last.
type span struct{ first, last time.Time }

func (s span) length() time.Duration { return s.last.Sub(s.first) }

// take takes n frames and returns the last one. each, if there is one, gets all of them;
// they are valid until it returns.
func (s *listener) take(n int, each func(frame []byte)) (taken span, last []byte, err error) {
	for i := range n {
		head, err := s.peek(2)
		if err != nil {
			return taken, nil, err
		}
		size, header := int(head[1]), 2
		if size == 126 {
			if head, err = s.peek(4); err != nil {
				return taken, nil, err
			}
			size, header = int(binary.BigEndian.Uint16(head[2:])), 4
		}
		if head[0] != 0x81 {
			return taken, nil, fmt.Errorf("frame %d begins with the byte %#x", s.id+1, head[0])
		}
		if each != nil || i == n-1 {
			frame, err := s.peek(header + size)
			if err != nil {
				return taken, nil, err
			}
			if frame = frame[header:]; each != nil {
				each(frame)
			}
			if i == n-1 {
				last = bytes.Clone(frame)
			}
		}
		if _, err := s.in.Discard(header + size); err != nil {
			return taken, nil, err
		}
		if i == 0 {
			taken.first = time.Now()
		}
		s.id++
		start := len(s.acks)
		s.acks = append(s.acks, 0x81, 0, 0, 0, 0, 0) // masked with zeros
		s.acks = wire.AppendAck(s.acks, s.id)
		s.acks[start+1] = 0x80 | byte(len(s.acks)-start-6)
	}
	taken.last = time.Now()
	return taken, last, s.flush()
}

// peek returns the next bytes; before it waits for more it sends what it has.
func (s *listener) peek(n int) ([]byte, error) {
	if s.in.Buffered() < n {
		if err := s.flush(); err != nil {
			return nil, err
		}
	}
	return s.in.Peek(n)
}

func (s *listener) flush() error {
	if len(s.acks) == 0 {
		return nil
	}
	_, err := s.conn.Write(s.acks)
	s.acks = s.acks[:0]
	return err
}

// status takes the first frame.
func (s *listener) status(t testing.TB) {
	t.Helper()
	_, frame, err := s.take(1, nil)
	require.NoError(t, err)
	require.Contains(t, string(frame), `"msg":["status",`)
}

// commitOf returns the watermark of a frame that holds a commit.
func commitOf(t testing.TB, frame []byte) string {
	t.Helper()
	require.Contains(t, string(frame), `"msg":["commit",`)
	_, rest, ok := bytes.Cut(frame, []byte(`{"watermark":"`))
	require.True(t, ok, "%s", frame)
	watermark, _, ok := bytes.Cut(rest, []byte(`"`))
	require.True(t, ok, "%s", frame)
	return string(watermark)
}

// rowOf returns the id of the row that a frame holds.
func rowOf(frame []byte) (id int, ok bool) {
	_, rest, ok := bytes.Cut(frame, []byte(`"new":{"id":`))
	if !ok {
		return 0, false
	}
	for _, c := range rest {
		if c < '0' || c > '9' {
			break
		}
		id = id*10 + int(c-'0')
	}
	return id, true
}
