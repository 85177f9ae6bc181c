package snapshot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"millrace/streamer/change"
	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/source/postgres/pgtext"
	"millrace/streamer/watermark"
)

const (
	beginChange  = `{"tag":"begin","json":"s"}`
	commitChange = `{"tag":"commit","commitTimeMs":%d}`

	epochMicros = 946_684_800_000_000 // 2000-01-01, where PostgreSQL counts from
)

// ReplayConfig says how rows become messages. Message is required.
type ReplayConfig struct {
	// Options are how values are encoded: as the stream's source was told.
	Options pgtext.Options
	// Message is given every message, which is valid only during the call. Its error ends
	// the replay.
	Message func(kind change.Kind, message []byte) error
	// Undecodable is told of every value that became null, since it was not the text of
	// its type. Nil: nobody is told.
	Undecodable func(schema, table, column string)
}

// Replay turns the folder into one transaction: begin, an insert for each row in the order
// of tables and rows, and commit, at the snapshot's watermark. The messages are those that
// the stream would have. A snapshot without rows is an empty transaction.
//
// Call Verify before: what is found to be damaged on the way ends the transaction in the
// middle.
func (r *Reader) Replay(ctx context.Context, cfg ReplayConfig) error {
	if err := r.replay(ctx, cfg); err != nil {
		return fmt.Errorf("read the snapshot in %s: %w", r.dir, err)
	}
	return nil
}

func (r *Reader) replay(ctx context.Context, cfg ReplayConfig) error {
	if cfg.Message == nil {
		return errors.New("ReplayConfig.Message is missing")
	}
	cfg.Options.ReplaceInvalidUTF8 = cfg.Options.ReplaceInvalidUTF8 || r.manifest.Raw
	lsn, err := watermark.LSN(r.manifest.Watermark)
	if err != nil {
		return err
	}
	out := &sink{give: cfg.Message, ctx: ctx}
	decoder, err := pgoutput.New(pgoutput.Config{
		Options: cfg.Options, Types: r.typeOf, Undecodable: cfg.Undecodable,
	}, out)
	if err != nil {
		return err
	}
	at := r.manifest.CreatedAt.UnixMicro() - epochMicros
	begin := []byte{'B'}
	begin = binary.BigEndian.AppendUint64(begin, uint64(lsn))
	begin = binary.BigEndian.AppendUint64(begin, uint64(at)) //nolint:gosec // signed, as the server writes it
	begin = binary.BigEndian.AppendUint32(begin, 0)
	if err := decoder.Message(begin); err != nil {
		return err
	}
	for i := range r.manifest.Tables {
		t := &r.manifest.Tables[i]
		if err := r.table(decoder, out, uint32(i+1), t); err != nil { //nolint:gosec // few tables
			return fmt.Errorf("table %q.%q: %w", t.Schema, t.Name, err)
		}
	}
	if !out.begun {
		return r.empty(cfg.Message)
	}
	commit := []byte{'C', 0}
	for range 2 {
		commit = binary.BigEndian.AppendUint64(commit, uint64(lsn))
	}
	commit = binary.BigEndian.AppendUint64(commit, uint64(at)) //nolint:gosec // signed, as the server writes it
	if err := decoder.Message(commit); err != nil {
		return err
	}
	return out.err
}

// empty gives a transaction without changes, which the decoder leaves out.
func (r *Reader) empty(give func(change.Kind, []byte) error) error {
	w := r.manifest.Watermark
	if err := give(change.Begin, change.Append(nil, change.Begin, []byte(beginChange), w)); err != nil {
		return err
	}
	text := fmt.Appendf(nil, commitChange, r.manifest.CreatedAt.UnixMilli())
	return give(change.Commit, change.Append(nil, change.Commit, text, w))
}

// typeOf answers for types that are not built in.
func (r *Reader) typeOf(oid uint32) (pgtext.Type, error) {
	for i := range r.manifest.Types {
		if t := &r.manifest.Types[i]; t.OID == oid {
			return pgtext.FromCatalog(t.catalog()), nil
		}
	}
	return pgtext.Type{}, fmt.Errorf("%w: it is not in the manifest", ErrDamaged)
}

// table gives the rows of a table to the decoder, under a number of its own.
func (r *Reader) table(decoder *pgoutput.Decoder, out *sink, number uint32, t *Table) error {
	message, err := t.relation(number)
	if err != nil {
		return err
	}
	if err := decoder.Message(message); err != nil {
		return err
	}
	return r.lines(t, func(line []byte) error {
		if message, err = appendInsert(message[:0], number, len(t.Columns), line); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, t.File, err)
		}
		if err := decoder.Message(message); err != nil {
			return err
		}
		return out.err
	})
}

// relation is the description of the table as the server sends it.
func (t *Table) relation(number uint32) ([]byte, error) {
	identity, ok := identityLetter(t.ReplicaIdentity)
	if !ok {
		return nil, fmt.Errorf("%w: %q is no replica identity", ErrDamaged, t.ReplicaIdentity)
	}
	b := binary.BigEndian.AppendUint32([]byte{'R'}, number)
	b = append(append(b, t.Schema...), 0)
	b = append(append(b, t.Name...), 0)
	b = append(b, identity)
	b = binary.BigEndian.AppendUint16(b, uint16(len(t.Columns))) //nolint:gosec // checked with the manifest
	for _, c := range t.Columns {
		flags := byte(0)
		if c.Key {
			flags = 1
		}
		b = append(b, flags)
		b = append(append(b, c.Name...), 0)
		b = binary.BigEndian.AppendUint32(b, c.TypeOID)
		b = binary.BigEndian.AppendUint32(b, 0) // the type modifier, which nobody looks at
	}
	return b, nil
}

// sink is where the decoder puts its messages: into one buffer, and away.
type sink struct {
	ctx   context.Context //nolint:containedctx // the decoder has none to give
	give  func(change.Kind, []byte) error
	buf   []byte
	begun bool
	err   error // the first one; nothing is given any more
}

func (s *sink) Spare(n int) []byte {
	if cap(s.buf) < n {
		s.buf = make([]byte, 0, n)
	}
	return s.buf[:0]
}

func (s *sink) Begin(message []byte, _ string) {
	s.begun = true
	s.pass(change.Begin, message)
}

func (s *sink) Data(message []byte, _ change.Tag) { s.pass(change.Data, message) }
func (s *sink) Commit(message []byte)             { s.pass(change.Commit, message) }
func (s *sink) Last() string                      { return "" }

func (s *sink) pass(kind change.Kind, message []byte) {
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	if s.err == nil {
		s.err = s.give(kind, message)
	}
}
