package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

var errEscape = errors.New("an escape sequence that COPY does not write")

// escapes are the characters that COPY writes as a backslash and a letter, by letter.
var escapes = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v', '\\': '\\'}

// appendInsert appends the message that the server would send for a row, given the row's
// line in the text format of COPY, without its end.
func appendInsert(dst []byte, relation uint32, columns int, line []byte) ([]byte, error) {
	dst = append(dst, 'I')
	dst = binary.BigEndian.AppendUint32(dst, relation)
	dst = append(dst, 'N')
	dst = binary.BigEndian.AppendUint16(dst, uint16(columns)) //nolint:gosec // checked with the manifest
	if columns == 0 {
		if len(line) > 0 {
			return dst, fmt.Errorf("a row has values, its table no columns")
		}
		return dst, nil
	}
	for i := range columns {
		field, rest, more := bytes.Cut(line, []byte{'\t'})
		if more != (i < columns-1) {
			return dst, fmt.Errorf("a row has not the %d columns of its table", columns)
		}
		line = rest
		var err error
		if dst, err = appendValue(dst, field); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// appendValue appends one value of a row.
func appendValue(dst, field []byte) ([]byte, error) {
	if len(field) == 2 && field[0] == '\\' && field[1] == 'N' {
		return append(dst, 'n'), nil
	}
	dst = append(dst, 't', 0, 0, 0, 0)
	start := len(dst)
	for {
		i := bytes.IndexByte(field, '\\')
		if i < 0 {
			dst = append(dst, field...)
			break
		}
		if i+1 == len(field) || escapes[field[i+1]] == 0 {
			return dst, errEscape
		}
		dst = append(dst, field[:i]...)
		dst = append(dst, escapes[field[i+1]])
		field = field[i+2:]
	}
	binary.BigEndian.PutUint32(dst[start-4:], uint32(len(dst)-start)) //nolint:gosec // a value of PostgreSQL is below 1 GiB
	return dst, nil
}
