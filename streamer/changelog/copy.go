package changelog

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"millrace/sql"
	"millrace/streamer/change"
)

const (
	// frameBytes is the size of a CopyData message; rows are cut anywhere.
	frameBytes = 64 << 10
	// glanceBytes is after how many bytes the connection is looked at for an error: the
	// server reads on after one, and tells nothing but that.
	glanceBytes = 4 << 20

	copySignature = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)

// copier stores a transaction by one COPY between store_open and store_close. All three
// are one simple query, hence one implicit transaction that any error undoes.
type copier struct {
	store *Store
	link  *link
	tx    large

	frame  int // where the CopyData message being made has its length
	unseen int // bytes sent since the last look at the connection
}

func (c *copier) open(tx large, head string) (skip bool, refused *pgconn.PgError, err error) {
	cfg, l := &c.store.cfg, c.link
	c.tx = tx
	at := l.begin('Q')
	l.out = append(l.out, "select store_open(owner => "...)
	l.out = appendLiteral(l.out, cfg.Owner)
	l.out = append(l.out, ", replica_version => "...)
	l.out = appendLiteral(l.out, cfg.ReplicaVersion)
	l.out = append(l.out, ", expected_head => "...)
	l.out = appendLiteral(l.out, head)
	l.out = append(l.out, ", watermark => "...)
	l.out = appendLiteral(l.out, tx.watermark)
	l.out = append(l.out, `); copy "changeLog" (watermark, pos, change, precommit) from stdin (format binary); `...)
	l.out = append(l.out, "select store_close(owner => "...)
	l.out = appendLiteral(l.out, cfg.Owner)
	l.out = append(l.out, ", replica_version => "...)
	l.out = appendLiteral(l.out, cfg.ReplicaVersion)
	l.out = append(l.out, ", last_watermark => "...)
	l.out = appendLiteral(l.out, tx.watermark)
	l.out = append(l.out, ")\x00"...)
	l.end(at)
	if err := l.flush(); err != nil {
		return false, nil, err
	}

	// Nothing is sent before the state row is ours: what waits for it is kept.
	for {
		msg, err := l.receive()
		if err != nil {
			return false, nil, err
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyInResponse:
			c.begin()
			l.out = append(l.out, copySignature...)
			return false, nil, nil
		case *pgproto3.ErrorResponse:
			refused := pgconn.ErrorResponseToPgError(msg)
			if _, err := l.answer(); err != nil {
				return false, nil, err
			}
			if refused.Code == sql.CodeAlreadyStored {
				return true, nil, nil
			}
			return false, refused, nil
		case *pgproto3.ReadyForQuery:
			return false, nil, fmt.Errorf("copy into the log: the server did not ask for data")
		}
	}
}

func (c *copier) write(run change.Run) error {
	l := c.link
	for i := range run.Len() {
		message := run.Stored(i)
		l.allow(len(message))
		l.out = append(l.out, 0, 4)
		l.out = appendText(l.out, c.tx.watermark)
		l.out = appendInt8(l.out, run.Pos(i))
		l.out = binary.BigEndian.AppendUint32(l.out, uint32(len(message))) //nolint:gosec // at most 1 GB
		for len(message) > 0 {
			n := min(len(message), frameBytes)
			l.out = append(l.out, message[:n]...)
			message = message[n:]
			if err := c.cutFull(); err != nil {
				return err
			}
		}
		if run.Entry(i).Kind == change.Commit {
			l.out = appendText(l.out, c.tx.watermark)
		} else {
			l.out = appendNull(l.out)
		}
		if err := c.cutFull(); err != nil {
			return err
		}
	}
	return nil
}

// begin starts a CopyData message.
func (c *copier) begin() { c.frame = c.link.begin('d') }

// cutFull sends what there is if it is enough.
func (c *copier) cutFull() error {
	if len(c.link.out) < frameBytes {
		return nil
	}
	return c.cut()
}

// cut ends the message, sends it, and starts the next one.
func (c *copier) cut() error {
	l := c.link
	l.end(c.frame)
	c.unseen += len(l.out)
	if err := l.flush(); err != nil {
		return c.explain(err)
	}
	c.begin()
	if c.unseen < glanceBytes {
		return nil
	}
	return c.look()
}

// look finds out whether the server has given up.
func (c *copier) look() error {
	c.unseen = 0
	refused, err := c.link.glance()
	if err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	return nil
}

// explain returns what the server said before it closed the connection, if it did.
func (c *copier) explain(err error) error {
	if timedOut(err) {
		return err
	}
	if refused, said := c.link.glance(); refused != nil {
		return refused
	} else if refusal(said) != "" {
		return said
	}
	return err
}

func (c *copier) flush() error {
	if len(c.link.out) == c.frame+4 {
		return nil // an empty message
	}
	return c.cut()
}

// ping sends an empty message, which both ends of the connection take for a sign of life.
func (c *copier) ping() error {
	if err := c.cut(); err != nil {
		return err
	}
	return c.look()
}

func (c *copier) commit() error {
	l := c.link
	l.out = append(l.out, 0xff, 0xff)
	l.end(c.frame)
	l.out = append(l.out, 'c', 0, 0, 0, 4)
	if err := l.flush(); err != nil {
		return c.explain(err)
	}
	refused, err := l.answer()
	if err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	return nil
}

func (c *copier) rollback() error {
	l := c.link
	l.out = l.out[:0]
	at := l.begin('f')
	l.out = append(l.out, "the transaction was cut off\x00"...)
	l.end(at)
	if err := l.flush(); err != nil {
		return err
	}
	refused, err := l.answer()
	if err != nil {
		return err
	}
	if refused == nil {
		return fmt.Errorf("roll back a copy into the log: the server took it for complete")
	}
	return nil
}

// appendLiteral appends a string constant that means the same whatever
// standard_conforming_strings is.
func appendLiteral(dst []byte, text string) []byte {
	dst = append(dst, `E'`...)
	dst = append(dst, strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text)...)
	return append(dst, '\'')
}
