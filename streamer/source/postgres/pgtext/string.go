package pgtext

import (
	"encoding/binary"
	"encoding/json"
)

const hexDigits = "0123456789abcdef"

// Eight bytes at a time: a constant with the same byte eight times.
const (
	each        = 0x0101010101010101
	highBits    = 0x80 * each
	blanks      = ' ' * each
	quotes      = '"' * each
	backslashes = '\\' * each
)

// escapes holds for each byte what stands behind the backslash in a JSON string: 0 for
// bytes that stand for themselves, 'u' for those that need a code.
var escapes = func() (table [256]byte) {
	for c := range ' ' {
		table[c] = 'u'
	}
	table['"'], table['\\'] = '"', '\\'
	table['\b'], table['\f'], table['\n'], table['\r'], table['\t'] = 'b', 'f', 'n', 'r', 't'
	return table
}()

// AppendString appends s as a JSON string. Only what must be escaped is.
func AppendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	for {
		i := plain(s)
		dst = append(dst, s[:i]...)
		if i == len(s) {
			return append(dst, '"')
		}
		c := s[i]
		if e := escapes[c]; e != 'u' {
			dst = append(dst, '\\', e)
		} else {
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		s = s[i+1:]
	}
}

// plain returns the number of bytes at the start of s that need no escape.
func plain(s []byte) int {
	i := 0
	for ; i+8 <= len(s); i += 8 {
		if special(binary.LittleEndian.Uint64(s[i:])) {
			return i + scan(s[i:])
		}
	}
	// The last bytes are looked at together with some before them again.
	if i > 0 && i < len(s) && !special(binary.LittleEndian.Uint64(s[len(s)-8:])) {
		return len(s)
	}
	return i + scan(s[i:])
}

// special says whether one of eight bytes needs an escape: it is below the blank, a
// quote or a backslash. Each of the three terms sets the high bit of such a byte.
func special(w uint64) bool {
	quote, backslash := w^quotes, w^backslashes
	return ((w-blanks)&^w|(quote-each)&^quote|(backslash-each)&^backslash)&highBits != 0
}

// scan is plain, byte by byte.
func scan(s []byte) int {
	for i, c := range s {
		if escapes[c] != 0 {
			return i
		}
	}
	return len(s)
}

// appendEmbedded appends JSON text as the value it is, without the blanks between its
// tokens. Numbers, strings and the order of members stay as written.
func appendEmbedded(dst, text []byte) ([]byte, bool) {
	if !json.Valid(text) {
		return append(dst, null...), false
	}
	quoted := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			dst = append(dst, c)
			i++ // what is escaped ends no string
			c = text[i]
		case !quoted && (c == ' ' || c == '\n' || c == '\t' || c == '\r'):
			continue
		}
		dst = append(dst, c)
	}
	return dst, true
}

// appendBytea appends the peer's form of a byte string, that of a JavaScript Buffer.
func appendBytea(dst, text []byte) ([]byte, bool) {
	if len(text) < 2 || len(text)%2 != 0 || text[0] != '\\' || text[1] != 'x' {
		return dst, false
	}
	out := append(dst, `{"type":"Buffer","data":[`...)
	for i := 2; i < len(text); i += 2 {
		high, low := unhex(text[i]), unhex(text[i+1])
		if high > 15 || low > 15 {
			return dst, false
		}
		if i > 2 {
			out = append(out, ',')
		}
		c := high<<4 | low
		switch {
		case c >= 100:
			out = append(out, '0'+c/100, '0'+c/10%10, '0'+c%10)
		case c >= 10:
			out = append(out, '0'+c/10, '0'+c%10)
		default:
			out = append(out, '0'+c)
		}
	}
	return append(out, "]}"...), true
}

// unhex returns the value of a hexadecimal digit, or more than 15.
func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	default:
		return 0xff
	}
}
