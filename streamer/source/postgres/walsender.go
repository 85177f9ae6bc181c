package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// readBuffer holds what one read brings: a walsender sends every message by itself,
	// so that without it there would be a system call for each.
	readBuffer = 256 << 10

	// farewell is how long the server may take to agree to the end of a stream.
	farewell = time.Second
)

// system is what tells one history of an upstream from another.
type system struct {
	id       string
	timeline int32
}

// walsender is a replication connection. It belongs to one goroutine, but for wake.
type walsender struct {
	conn   *pgconn.PgConn
	in     *countingReader
	socket socket
	out    []byte // one status update
	live   bool   // a stream has been started
	raw    bool   // text comes as it is stored, whatever its encoding may be
}

// countingReader counts what is read from the socket, and does something before.
type countingReader struct {
	r     io.Reader
	bytes int64

	// before is called before each read. If it returns false nothing is read, and
	// receive returns as if it had been woken.
	before func() bool
}

func (c *countingReader) Read(p []byte) (int, error) {
	if c.before != nil && !c.before() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.r.Read(p)
	c.bytes += int64(n)
	return n, err
}

// dial opens a replication connection.
func dial(ctx context.Context, u *Upstream) (*walsender, error) {
	w := &walsender{}
	config := u.replicationConfig()
	config.BuildFrontend = func(r io.Reader, out io.Writer) *pgproto3.Frontend {
		w.in = &countingReader{r: r}
		return pgproto3.NewFrontend(bufio.NewReaderSize(w.in, readBuffer), out)
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, u.explain(err)
	}
	w.conn, w.socket = conn, newSocket(conn.Conn())
	return w, nil
}

func (w *walsender) identify(ctx context.Context) (system, error) {
	result, err := pglogrepl.IdentifySystem(ctx, w.conn)
	if err != nil {
		return system{}, fmt.Errorf("identify the system: %w", err)
	}
	return system{id: result.SystemID, timeline: result.Timeline}, nil
}

// passRaw makes the server send text as it is, if the database is in SQL_ASCII: it knows
// no encoding to convert from, and would refuse to send what is not UTF-8.
func (w *walsender) passRaw(ctx context.Context) error {
	if w.conn.ParameterStatus("server_encoding") != "SQL_ASCII" {
		return nil
	}
	if _, err := w.conn.Exec(ctx, setRawSQL).ReadAll(); err != nil {
		return fmt.Errorf("set the encoding: %w", err)
	}
	w.raw = true
	return nil
}

// senderTimeout reads wal_sender_timeout as it is for this connection; 0 is never.
func (w *walsender) senderTimeout(ctx context.Context) (time.Duration, error) {
	results, err := w.conn.Exec(ctx, senderTimeoutSQL).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, errors.New("read wal_sender_timeout: there is no such setting")
	}
	ms, err := strconv.Atoi(string(results[0].Rows[0][0]))
	if err != nil {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// start begins streaming from a slot. It returns once the slot is ours.
func (w *walsender) start(ctx context.Context, slot string, from pglogrepl.LSN, publications []string) error {
	text := fmt.Sprintf(command(startReplicationSQL), quoteIdentifier(slot), from, publicationList(publications))
	w.conn.Frontend().SendQuery(&pgproto3.Query{String: text})
	if err := w.conn.Frontend().Flush(); err != nil {
		return fmt.Errorf("start replication: %w", err)
	}
	for {
		msg, err := w.conn.ReceiveMessage(ctx)
		if err != nil {
			return fmt.Errorf("start replication: %w", err)
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyBothResponse:
			w.live = true
			return nil
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("start replication: %w", pgconn.ErrorResponseToPgError(msg))
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		default:
			return fmt.Errorf("start replication: unexpected answer %T", msg)
		}
	}
}

// beforeRead sets what is done before each read from the socket. Whether one will be
// needed cannot be told from the buffers: what is left in them may be part of a message.
func (w *walsender) beforeRead(do func() bool) { w.in.before = do }

// bytes is the number of bytes received so far.
func (w *walsender) bytes() int64 { return w.in.bytes }

// nap lets the socket fill for a while.
func (w *walsender) nap(d time.Duration) {
	w.socket.until(readBuffer)
	timer := time.NewTimer(d)
	<-timer.C
	w.socket.until(1) // or the last bytes would never be heard of
}

// wake makes receive return at a time. It may be called from any goroutine.
func (w *walsender) wake(at time.Time) error {
	return w.conn.Conn().SetReadDeadline(at)
}

// receive returns the next message, which is valid until the next call, or nil when it
// was woken. A message that had begun to arrive is continued by the next call.
func (w *walsender) receive() (pgproto3.BackendMessage, error) {
	msg, err := w.conn.ReceiveMessage(context.Background()) // a context that can end costs 12 allocations
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, nil
		}
		return nil, err
	}
	if refused, ok := msg.(*pgproto3.ErrorResponse); ok {
		return nil, pgconn.ErrorResponseToPgError(refused)
	}
	return msg, nil
}

// status sends a status update: everything below confirmed may be forgotten; 0 leaves
// the slot where it is. With reply the server answers at once.
func (w *walsender) status(confirmed pglogrepl.LSN, now time.Time, reply bool, limit time.Duration) error {
	w.out = appendStatus(w.out[:0], confirmed, now, reply)
	if err := w.conn.Conn().SetWriteDeadline(now.Add(limit)); err != nil {
		return fmt.Errorf("send a status update: %w", err)
	}
	if err := w.conn.Frontend().SendUnbufferedEncodedCopyData(w.out); err != nil {
		return fmt.Errorf("send a status update: %w", err)
	}
	return nil
}

// close ends the stream, if there is one, closes the connection and waits until nothing
// of it is left. If the server is there and agrees in time, the slot is free then.
func (w *walsender) close() {
	if w.live && !w.conn.IsClosed() {
		w.end()
	}
	if !w.conn.IsClosed() {
		_ = w.conn.Conn().SetDeadline(time.Now().Add(farewell))
		w.conn.Frontend().Send(&pgproto3.Terminate{})
		_ = w.conn.Frontend().Flush() // a courtesy: the server sees the end of the connection anyway
		_ = w.conn.Conn().Close()
		return
	}
	// pgconn closes a broken connection in the background; this hurries it.
	_ = w.conn.Conn().Close()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-w.conn.CleanupDone():
	case <-timer.C:
	}
}

// end ends the stream in order, within farewell. What arrives meanwhile is dropped.
func (w *walsender) end() {
	if w.conn.Conn().SetDeadline(time.Now().Add(farewell)) != nil {
		return
	}
	w.conn.Frontend().Send(&pgproto3.CopyDone{})
	if w.conn.Frontend().Flush() != nil {
		return
	}
	for {
		msg, err := w.conn.ReceiveMessage(context.Background())
		if err != nil {
			return
		}
		if _, ok := msg.(*pgproto3.ReadyForQuery); ok {
			return
		}
	}
}
