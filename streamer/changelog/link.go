package changelog

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	closeTimeout = time.Second
	// readBuffer is for pages: fewer calls than with the 8 KiB that the server sends in.
	readBuffer = 64 << 10
	// glance is how long a look for an unasked message may take: with a deadline in the
	// past nothing would be read at all.
	glance = time.Millisecond
	// slowest is how many bytes of one message a server under load stores in a second.
	slowest = 2 << 20
)

// link is a connection on which messages are written and read by hand, so that many can
// be under way and none costs an allocation. While answers are due conn must not be used
// for anything else.
type link struct {
	conn     *pgx.Conn
	net      net.Conn
	front    *pgproto3.Frontend
	timeout  time.Duration   // longest time without progress
	extra    time.Duration   // what a large message adds to that: see allow
	work     context.Context // ends every wait
	patience time.Duration   // longest wait for the next bytes; 0: the caller sees to that
	out      []byte          // messages to be written
}

// patientReader gives every read from the network its deadline. Most messages are in the
// buffer behind it and cost none.
type patientReader struct {
	reader io.Reader
	link   *link
}

func (p patientReader) Read(b []byte) (int, error) {
	l := p.link
	if l.patience > 0 {
		if err := l.net.SetReadDeadline(time.Now().Add(l.patience)); err != nil {
			return 0, err
		}
		// The order matters: if work ends after this, expire comes after the deadline.
		if err := l.work.Err(); err != nil {
			return 0, err
		}
	}
	return p.reader.Read(b)
}

// dial connects within timeout.
func dial(ctx context.Context, config *pgx.ConnConfig, timeout time.Duration) (*link, error) {
	dialCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l := &link{timeout: timeout, work: ctx}
	config = config.Copy()
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(patientReader{reader: r, link: l}, readBuffer), w)
	}
	conn, err := pgx.ConnectConfig(dialCtx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the change database: %w", err)
	}
	l.conn, l.net, l.front = conn, conn.PgConn().Conn(), conn.PgConn().Frontend()
	return l, nil
}

// use has every wait end with ctx, until the function returned is called.
func (l *link) use(ctx context.Context) (release func() bool) {
	l.work = ctx
	return context.AfterFunc(ctx, l.expire)
}

// expire ends the wait that is under way.
func (l *link) expire() {
	_ = l.net.SetDeadline(time.Unix(1, 0)) // a connection that is closed waits for nothing
}

// call runs one of pgx's own calls: no answer may be due.
func (l *link) call(f func(ctx context.Context) error) error {
	if err := l.net.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("clear the deadline: %w", err)
	}
	ctx, cancel := context.WithTimeout(l.work, l.timeout+l.extra)
	defer cancel()
	return f(ctx)
}

// cancel has the server give up what it was asked and has not answered: it does not
// notice by itself, while it waits for a lock, that nobody is there any more.
func (l *link) cancel() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.work), closeTimeout)
	defer cancel()
	_ = l.conn.PgConn().CancelRequest(ctx) // nothing more can be done
}

// close ends the connection, in order if that is quick.
func (l *link) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.work), closeTimeout)
	defer cancel()
	_ = l.conn.Close(ctx) // nothing hangs on how it ends
}

// flush writes out. Without progress for the timeout it gives up.
func (l *link) flush() error {
	const piece = 256 << 10 // what counts as progress
	for rest := l.out; len(rest) > 0; {
		n := min(len(rest), piece)
		if err := l.net.SetWriteDeadline(time.Now().Add(l.timeout + l.extra)); err != nil {
			return fmt.Errorf("set a deadline: %w", err)
		}
		if err := l.work.Err(); err != nil { // in this order, as in patientReader
			return err
		}
		if _, err := l.net.Write(rest[:n]); err != nil {
			return fmt.Errorf("write to the change database: %w", err)
		}
		rest = rest[n:]
	}
	l.out = l.out[:0]
	return nil
}

// allow lets the server take its time for a message: it reads nothing more, and says
// nothing, while it checks and compresses one.
func (l *link) allow(size int) {
	l.extra = max(l.extra, time.Duration(size/slowest)*time.Second)
}

// receive returns the next message that answers something.
func (l *link) receive() (pgproto3.BackendMessage, error) {
	return l.within(l.timeout + l.extra)
}

// within is receive with a limit on the wait for the next bytes.
func (l *link) within(patience time.Duration) (pgproto3.BackendMessage, error) {
	l.patience = patience
	defer func() { l.patience = 0 }()
	for {
		msg, err := l.front.Receive()
		if err != nil {
			return nil, fmt.Errorf("read from the change database: %w", err)
		}
		switch msg := msg.(type) {
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus, *pgproto3.NotificationResponse:
			continue
		case *pgproto3.ErrorResponse:
			if refused := pgconn.ErrorResponseToPgError(msg); fatal(refused) {
				return nil, refused
			}
		}
		return msg, nil
	}
}

// glance looks for a message that nobody has asked for: an error in the middle of a COPY.
func (l *link) glance() (*pgconn.PgError, error) {
	msg, err := l.within(glance)
	switch {
	case timedOut(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if msg, ok := msg.(*pgproto3.ErrorResponse); ok {
		return pgconn.ErrorResponseToPgError(msg), nil
	}
	return nil, fmt.Errorf("read from the change database: unexpected %T", msg)
}

// answer reads up to where the server is ready again. refused is what it said instead of
// doing what was asked.
func (l *link) answer() (refused *pgconn.PgError, err error) {
	for {
		msg, err := l.receive()
		if err != nil {
			return nil, err
		}
		switch msg := msg.(type) {
		case *pgproto3.ErrorResponse:
			if refused == nil {
				refused = pgconn.ErrorResponseToPgError(msg)
			}
		case *pgproto3.ReadyForQuery:
			return refused, nil
		}
	}
}

// fatal says that the server ends the session with an error.
func fatal(err *pgconn.PgError) bool {
	return err.SeverityUnlocalized == "FATAL" || err.SeverityUnlocalized == "PANIC"
}

// timedOut says that an error is only that nothing came in time.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || pgconn.Timeout(err)
}

// asRefusal returns the server's error that err is or wraps.
func asRefusal(err error) (refused *pgconn.PgError, ok bool) {
	ok = errors.As(err, &refused)
	return refused, ok
}

// refusal returns the server's code, or nothing for an error that is not of the server.
func refusal(err error) string {
	if refused, ok := asRefusal(err); ok {
		return refused.Code
	}
	return ""
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

// begin starts a message in out; end, given what begin returned, ends it.
func (l *link) begin(kind byte) int {
	l.out = append(l.out, kind, 0, 0, 0, 0)
	return len(l.out) - 4
}

func (l *link) end(at int) {
	binary.BigEndian.PutUint32(l.out[at:], uint32(len(l.out)-at)) //nolint:gosec // messages end at 1 GiB
}

// execute asks for at most rows of the portal; 0 is all.
func (l *link) execute(rows uint32) {
	l.out = append(l.out, 'E', 0, 0, 0, 9, 0)
	l.out = binary.BigEndian.AppendUint32(l.out, rows)
}

func (l *link) sync() { l.out = append(l.out, 'S', 0, 0, 0, 4) }
