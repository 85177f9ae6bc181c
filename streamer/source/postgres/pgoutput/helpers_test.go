package pgoutput_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/source/postgres/pgtext"
)

// recorder is a sink that keeps what it is given, and checks that it is a stream.
type recorder struct {
	t        require.TestingT
	last     string
	open     string // watermark of the open transaction
	messages []string
	tags     []change.Tag
	asked    int // of the last Spare
	buf      []byte
}

func (r *recorder) Spare(n int) []byte {
	require.Positive(r.t, n)
	r.asked = n
	r.buf = make([]byte, 0, n)
	return r.buf
}

func (r *recorder) add(message []byte) { r.messages = append(r.messages, string(message)) }

func (r *recorder) Begin(message []byte, watermark string) {
	require.Empty(r.t, r.open)
	require.Greater(r.t, watermark, r.last)
	r.open = watermark
	r.add(message)
}

func (r *recorder) Data(message []byte, tag change.Tag) {
	require.NotEmpty(r.t, r.open)
	require.Equal(r.t, tag, change.ParseTag(change.Stored(change.Data, message, r.open)))
	r.tags = append(r.tags, tag)
	r.add(message)
}

func (r *recorder) Commit(message []byte) {
	require.NotEmpty(r.t, r.open)
	r.last, r.open = r.open, ""
	r.add(message)
}

func (r *recorder) Last() string { return r.last }

var errUnknownType = errors.New("no such type")

func noTypes(uint32) (pgtext.Type, error) { return pgtext.Type{}, errUnknownType }

func newDecoder(t require.TestingT, sink pgoutput.Sink, cfg pgoutput.Config) *pgoutput.Decoder {
	if cfg.Types == nil {
		cfg.Types = noTypes
	}
	d, err := pgoutput.New(cfg, sink)
	require.NoError(t, err)
	return d
}

// play gives messages to a decoder, none of which may be refused.
func play(t require.TestingT, d *pgoutput.Decoder, messages ...[]byte) {
	for _, m := range messages {
		require.NoError(t, d.Message(m), "%q", m)
	}
}

// Messages, built by hand as the protocol's documentation has them.

func be(n int, v uint64) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return b[8-n:]
}

func cat(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			b = append(b, p)
		case rune:
			b = append(b, byte(p))
		case string:
			b = append(append(b, p...), 0)
		case []byte:
			b = append(b, p...)
		default:
			panic("a part is a byte, a letter, bytes, or a text that ends with zero")
		}
	}
	return b
}

func begin(lsn uint64) []byte { return cat('B', be(8, lsn), be(8, 0), be(4, 700)) }

// commit is at 2001-09-09 01:46:40.123456 and ends at lsn + 48.
func commit(lsn uint64) []byte { return commitAt(lsn, 1_000_000_000_123_456-946_684_800_000_000) }

func commitAt(lsn uint64, micros int64) []byte {
	return cat('C', byte(0), be(8, lsn), be(8, lsn+48), be(8, uint64(micros)))
}

type columnDef struct {
	name string
	key  bool
	oid  uint32
}

func relation(oid uint32, schema, name string, identity rune, columns ...columnDef) []byte {
	b := cat('R', be(4, uint64(oid)), schema, name, identity, be(2, uint64(len(columns))))
	for _, c := range columns {
		flags := byte(0)
		if c.key {
			flags = 1
		}
		b = cat(b, flags, c.name, be(4, uint64(c.oid)), be(4, 0xffffffff))
	}
	return b
}

// unchanged stands for a large value that was left alone; nil is NULL.
const unchanged = "\x00unchanged"

func tuple(values ...any) []byte {
	b := be(2, uint64(len(values)))
	for _, v := range values {
		switch v {
		case nil:
			b = append(b, 'n')
		case unchanged:
			b = append(b, 'u')
		default:
			s, _ := v.(string)
			b = cat(b, 't', be(4, uint64(len(s))), []byte(s))
		}
	}
	return b
}

func insertOf(oid uint32, row []byte) []byte { return cat('I', be(4, uint64(oid)), 'N', row) }

func updateOf(oid uint32, row []byte) []byte { return cat('U', be(4, uint64(oid)), 'N', row) }

func updateFrom(oid uint32, kind rune, old, row []byte) []byte {
	return cat('U', be(4, uint64(oid)), kind, old, 'N', row)
}

func deleteOf(oid uint32, kind rune, old []byte) []byte {
	return cat('D', be(4, uint64(oid)), kind, old)
}

func truncateOf(options byte, oids ...uint32) []byte {
	b := cat('T', be(4, uint64(len(oids))), options)
	for _, oid := range oids {
		b = append(b, be(4, uint64(oid))...)
	}
	return b
}

func logical(flags byte, lsn uint64, prefix, content string) []byte {
	return cat('M', flags, be(8, lsn), prefix, be(4, uint64(len(content))), []byte(content))
}

const (
	int4OID  = 23
	int8OID  = 20
	textOID  = 25
	byteaOID = 17
)

// item is a table with the identity that is asked for.
func item(identity rune) []byte {
	all := identity == 'f'
	id := columnDef{"id", identity == 'd' || all, int4OID}
	code := columnDef{"code", identity == 'i' || all, textOID}
	big := columnDef{"big", all, textOID}
	return relation(1, "public", "item", identity, id, code, big)
}

// decodeOne returns the changes of a transaction at LSN 10.
func decodeOne(t *testing.T, messages ...[]byte) []string {
	t.Helper()
	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{})
	play(t, d, begin(10))
	play(t, d, messages...)
	play(t, d, commit(10))
	require.Equal(t, `["begin",{"tag":"begin","json":"s"},{"commitWatermark":"0a"}]`, sink.messages[0])
	last := len(sink.messages) - 1
	require.Equal(t, `["commit",{"tag":"commit","commitTimeMs":1000000000123},{"watermark":"0a"}]`, sink.messages[last])
	return sink.messages[1:last]
}
