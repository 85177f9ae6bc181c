// Package pgoutput turns the messages of Postgres's pgoutput plugin, protocol version 1,
// into change messages.
//
// It promises that its sink sees only whole and non-empty transactions in the order of
// their commits: begin, then at least one change, then commit. A transaction without
// changes, and one that the sink has already (at or below its Last), never reaches it.
// Every message is encoded once, straight into the sink's memory. Input that breaks the
// protocol is an error, never a panic.
//
// A Decoder belongs to one connection, as the descriptions of tables do; it knows no
// socket, clock or database. After an error it must not be used again, and the caller
// tells the sink to abort.
package pgoutput

import (
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"

	"millrace/streamer/change"
	"millrace/streamer/source/postgres/pgtext"
)

// Sink takes the stream; see source.Sink, which is one, for what its methods mean.
type Sink interface {
	Spare(n int) []byte
	Begin(message []byte, watermark string)
	Data(message []byte, tag change.Tag)
	Commit(message []byte)
	Last() string
}

// Config says how to decode. Types is required.
type Config struct {
	// Options are how values are encoded.
	Options pgtext.Options
	// Types answers what a type is that is not built in. It is asked when a table with
	// such a column is first described, once for each type; its error ends the stream.
	Types func(oid uint32) (pgtext.Type, error)
	// Undecodable is told of every value that could not be sent: it was not the text of
	// its type and became null, or the server left it out of an insert. Nil: nobody is
	// told.
	Undecodable func(schema, table, column string)
	// Message is given every logical message, in stream order; content is valid only
	// during the call. A transactional one comes between Begin and Commit, also when
	// its transaction is left out. Its error ends the stream. Nil: they are ignored.
	Message func(m LogicalMessage) error
	// MaxMessage is the largest message, in bytes of JSON. Zero: change.MaxMessage.
	MaxMessage int
}

// LogicalMessage is what pg_logical_emit_message wrote.
type LogicalMessage struct {
	Transactional bool
	LSN           pglogrepl.LSN // the end of its record [R2]
	Prefix        string
	Content       []byte
}

// Decoder decodes the stream of one connection.
type Decoder struct {
	cfg  Config
	sink Sink

	relations    map[uint32]*relation
	lastOID      uint32
	lastRelation *relation // relations[lastOID], or nil
	types        map[uint32]pgtext.Type

	tx  transaction
	old []value // the old row of the update at hand

	commitLSN, endLSN pglogrepl.LSN
	empty             bool // the last transaction was not given to the sink
	commits           int64
}

// New returns a decoder for a new connection.
func New(cfg Config, sink Sink) (*Decoder, error) {
	switch {
	case sink == nil:
		return nil, errors.New("make a pgoutput decoder: no sink")
	case cfg.Types == nil:
		return nil, errors.New("make a pgoutput decoder: Config.Types is missing")
	case cfg.MaxMessage < 0 || cfg.MaxMessage > change.MaxMessage:
		return nil, fmt.Errorf("make a pgoutput decoder: Config.MaxMessage %d is outside 0 to %d",
			cfg.MaxMessage, change.MaxMessage)
	case cfg.MaxMessage == 0:
		cfg.MaxMessage = change.MaxMessage
	}
	return &Decoder{
		cfg:       cfg,
		sink:      sink,
		relations: make(map[uint32]*relation),
		types:     make(map[uint32]pgtext.Type),
	}, nil
}

// Message decodes one message of the plugin: the data of an XLogData message behind its
// header. It keeps nothing of b.
func (d *Decoder) Message(b []byte) error {
	if len(b) == 0 {
		return errors.New("decode message: it is empty")
	}
	r := reader{rest: b[1:]}
	var err error
	name := ""
	switch b[0] {
	case 'I':
		name, err = "insert", d.insert(&r)
	case 'U':
		name, err = "update", d.update(&r)
	case 'D':
		name, err = "delete", d.delete(&r)
	case 'B':
		name, err = "begin", d.begin(&r)
	case 'C':
		name, err = "commit", d.commit(&r)
	case 'R':
		name, err = "relation", d.relation(&r)
	case 'T':
		name, err = "truncate", d.truncate(&r)
	case 'M':
		name, err = "logical message", d.logicalMessage(&r)
	case 'Y':
		name, err = "type", ignoreType(&r)
	case 'O':
		name, err = "origin", ignoreOrigin(&r)
	default:
		return fmt.Errorf("decode message: type %q does not belong to protocol version 1", b[0])
	}
	if err != nil {
		return fmt.Errorf("decode %s: %w", name, err)
	}
	return nil
}

// InTransaction says whether a transaction has begun and not ended. It may be one that
// the sink does not see.
func (d *Decoder) InTransaction() bool { return d.tx.open }

// Rows is the number of changes of the open transaction that were given to the sink.
func (d *Decoder) Rows() int { return d.tx.rows }

// Commits is the number of transactions given to the sink, whole.
func (d *Decoder) Commits() int64 { return d.commits }

// CommitLSN is where the commit of the last ended transaction starts, given to the sink
// or not; 0 before the first.
func (d *Decoder) CommitLSN() pglogrepl.LSN { return d.commitLSN }

// EndLSN is the end of that commit.
func (d *Decoder) EndLSN() pglogrepl.LSN { return d.endLSN }

// EmptyEnd is the position up to which everything has been shown [R2], if the last
// ended transaction was not given to the sink, because it was empty or known: that of
// its commit. Otherwise it is 0: the sink's own commit says it.
func (d *Decoder) EmptyEnd() pglogrepl.LSN {
	if !d.empty {
		return 0
	}
	return d.commitLSN
}

func (d *Decoder) logicalMessage(r *reader) error {
	m := LogicalMessage{Transactional: r.uint8()&1 != 0, LSN: r.lsn()}
	prefix := r.text()
	m.Content = r.bytes(int(r.uint32()))
	if err := r.end(); err != nil || d.cfg.Message == nil {
		return err
	}
	m.Prefix = string(prefix)
	return d.cfg.Message(m)
}

// ignoreType takes the name of a type, which is not needed: types go by their OID.
func ignoreType(r *reader) error {
	r.uint32()
	r.text()
	r.text()
	return r.end()
}

// ignoreOrigin takes where a transaction came from, which makes no difference.
func ignoreOrigin(r *reader) error {
	r.lsn()
	r.text()
	return r.end()
}
