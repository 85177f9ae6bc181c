package pgoutput

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
)

var errShort = errors.New("the message is too short")

// reader takes a message apart. After the first error, which it keeps, it returns zeros.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.fail(errShort)
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint8() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) lsn() pglogrepl.LSN { return pglogrepl.LSN(r.uint64()) }

// text returns what stands before the next zero byte.
func (r *reader) text() []byte {
	i := bytes.IndexByte(r.rest, 0)
	if i < 0 {
		r.fail(errShort)
		return nil
	}
	s := r.rest[:i]
	r.rest = r.rest[i+1:]
	return s
}

// value is one value of a row.
type value struct {
	kind byte
	text []byte
}

// value takes one value of a tuple. It is where the time goes, so it looks at the bytes
// itself.
func (r *reader) value() (v value) {
	b := r.rest
	if len(b) == 0 {
		r.fail(errShort)
		return v
	}
	v.kind = b[0]
	switch v.kind {
	case isText:
		if len(b) < 5 || len(b)-5 < int(binary.BigEndian.Uint32(b[1:])) {
			r.fail(errShort)
			return v
		}
		end := 5 + int(binary.BigEndian.Uint32(b[1:]))
		v.text = b[5:end]
		r.rest = b[end:]
	case isNull, isUnchanged:
		r.rest = b[1:]
	default:
		r.fail(fmt.Errorf("%q is no kind of value", v.kind))
	}
	return v
}

// expect takes a byte that can only be want.
func (r *reader) expect(want byte) {
	if got := r.uint8(); got != want && r.err == nil {
		r.fail(fmt.Errorf("%q stands where %q must", got, want))
	}
}

// end returns the error met on the way, and one if the message goes on.
func (r *reader) end() error {
	if len(r.rest) > 0 {
		r.fail(fmt.Errorf("%d bytes too many", len(r.rest)))
	}
	return r.err
}

// fail keeps the first error and makes every further read one.
func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}
