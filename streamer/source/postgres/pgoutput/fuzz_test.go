package pgoutput_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/source/postgres/pgtext"
)

// FuzzMessage plays a stream of messages, one behind the other with a length of two
// bytes each, to a decoder that knows a table. Whatever comes, what reaches the sink is
// valid JSON in a valid order, which the recorder checks.
func FuzzMessage(f *testing.F) {
	var stream []byte
	for _, message := range everyKind() {
		f.Add(frame(message))
		stream = append(stream, frame(message)...)
	}
	f.Add(stream)
	f.Add(append(frame(begin(10)), frame(insertOf(2, tuple("{1,NULL}", "1.5", "t", `\xff`, `{"{\"a\": 1}"}`)))...))
	wide := relation(2, "public", "wide", 'i', columnDef{"a", true, 1007}, columnDef{"n", false, 1700},
		columnDef{"b", false, 16}, columnDef{"y", false, byteaOID}, columnDef{"j", false, 3807})

	f.Fuzz(func(t *testing.T, stream []byte) {
		sink := &recorder{t: t}
		d := newDecoder(t, sink, pgoutput.Config{
			MaxMessage: 1 << 16,
			Options:    pgtext.Options{ReplaceInvalidUTF8: true},
			Types:      func(oid uint32) (pgtext.Type, error) { return pgtext.Type{OID: oid}, nil },
		})
		play(t, d, item('f'), wide)
		for len(stream) >= 2 {
			n := min(int(stream[0])<<8|int(stream[1]), len(stream)-2)
			if d.Message(stream[2:2+n]) != nil {
				break
			}
			stream = stream[2+n:]
		}
		commits := 0
		for _, message := range sink.messages {
			require.True(t, json.Valid([]byte(message)), message)
			require.True(t, utf8.ValidString(message), message)
			require.LessOrEqual(t, len(message), 1<<16)
			var kind []any
			require.NoError(t, json.Unmarshal([]byte(message), &kind))
			if kind[0] == "commit" {
				commits++
			}
		}
		require.EqualValues(t, commits, d.Commits())
	})
}

func frame(message []byte) []byte {
	return append([]byte{byte(len(message) >> 8), byte(len(message))}, message...)
}

// discard is a sink like the tail: its messages go into one block after the other.
type discard struct {
	block *change.Block
	bytes int64
}

func (s *discard) Spare(n int) []byte {
	if s.block.Room() < n || s.block.Full() {
		s.block.Reset(0)
	}
	return s.block.Spare()
}

func (s *discard) add(message []byte, kind change.Kind, tag change.Tag) {
	s.block.Add(message, kind, tag, change.Tx{})
	s.bytes += int64(len(message))
}

func (s *discard) Begin(message []byte, _ string)      { s.add(message, change.Begin, change.Other) }
func (s *discard) Data(message []byte, tag change.Tag) { s.add(message, change.Data, tag) }
func (s *discard) Commit(message []byte)               { s.add(message, change.Commit, change.Other) }
func (s *discard) Last() string                        { return "" }

// BenchmarkMessage decodes rows of about 350 bytes of JSON, in one large transaction and
// in transactions of one row.
func BenchmarkMessage(b *testing.B) {
	table := relation(1, "public", "account", 'd',
		columnDef{"id", true, int8OID}, columnDef{"owner", false, textOID}, columnDef{"balance", false, 1700},
		columnDef{"open", false, 16}, columnDef{"created_at", false, 1184}, columnDef{"note", false, textOID},
		columnDef{"data", false, 3802})
	row := insertOf(1, tuple("1234567", "somebody with a name", "12345.67", "t", "2024-02-29 12:34:56.123456+00",
		"a text of some length, as they stand in the tables of many an application", `{"a": 1, "b": [1, 2, 3]}`))

	for name, rows := range map[string]int{"one transaction": 0, "one row each": 1} {
		b.Run(name, func(b *testing.B) {
			sink := &discard{block: change.NewBlock(0, 64<<10, 1024)}
			d := newDecoder(b, sink, pgoutput.Config{})
			play(b, d, table, begin(10))
			open, end := begin(10), commit(10)
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Message(row); err != nil {
					b.Fatal(err)
				}
				if rows == 1 {
					if d.Message(end) != nil || d.Message(open) != nil {
						b.Fatal("a transaction was refused")
					}
				}
			}
			b.SetBytes(sink.bytes / int64(b.N))
		})
	}
}
