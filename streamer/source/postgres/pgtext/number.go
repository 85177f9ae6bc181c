package pgtext

import (
	"bytes"
	"strconv"
)

const (
	maxInt64 = "9223372036854775807"
	minInt64 = "9223372036854775808"

	// exactLimit is 2^53: readers take a token of digits alone for an integer, and
	// from here on keep it as one, which their integer column may not hold.
	exactLimit    = "9007199254740992"
	exactExponent = len(exactLimit) - 1

	// safeDigits is a number of digits that always stays below exactLimit.
	safeDigits = 15

	// maxExponent is the decimal exponent of the largest double.
	maxExponent = 308

	// minPlainExponent is the smallest decimal exponent that is written out in zeros
	// when the text has an exponent; as JavaScript does it.
	minPlainExponent = -6
)

// appendInt appends an integer as it stands.
func appendInt(dst, text []byte) ([]byte, bool) {
	digits := text
	limit := maxInt64
	if len(text) > 0 && text[0] == '-' {
		digits, limit = text[1:], minInt64
	}
	if len(digits) == 0 || len(digits) > len(limit) || digits[0] == '0' && len(text) > 1 {
		return dst, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return dst, false
		}
	}
	if len(digits) == len(limit) && string(digits) > limit {
		return dst, false
	}
	return append(dst, text...), true
}

// appendNumber appends a numeric or a float.
func (o Options) appendNumber(dst, text []byte) ([]byte, bool) {
	if n, zero := shortDecimal(text); n > 0 {
		if zero {
			return append(dst, '0'), true // never -0
		}
		return append(dst, text[:n]...), true
	}
	switch string(text) {
	case "NaN", "Infinity", "-Infinity":
		return o.appendNonFinite(dst, text), true
	}
	d, ok := parseDecimal(text)
	if !ok {
		return append(dst, null...), false
	}
	out, fits := d.append(dst)
	if !fits {
		return o.appendNonFinite(dst, text), o.NonFiniteString
	}
	return out, true
}

// shortDecimal looks at the usual case: no exponent and few digits before the point. It
// returns the length of the text without the zeros that end its fraction, and whether
// the value is zero. A length of 0 means that it is not the usual case.
func shortDecimal(text []byte) (n int, zero bool) {
	i := 0
	if len(text) > 0 && text[0] == '-' {
		i = 1
	}
	first := i
	zero = true
	for i < len(text) && isDigit(text[i]) {
		zero = zero && text[i] == '0'
		i++
	}
	if i == first || i-first > safeDigits || text[first] == '0' && i-first > 1 {
		return 0, false
	}
	if i == len(text) {
		return i, zero
	}
	if text[i] != '.' || i+1 == len(text) {
		return 0, false
	}
	n = i
	for i++; i < len(text); i++ {
		c := text[i]
		if !isDigit(c) {
			return 0, false
		}
		if c != '0' {
			n, zero = i+1, false
		}
	}
	return n, zero
}

// decimal is a decimal number d.ddd × 10^exponent. Its digits, from the first to the
// last that is not zero, are a part of the text and may have the point among them.
type decimal struct {
	negative bool
	digits   []byte
	exponent int
}

func parseDecimal(text []byte) (d decimal, ok bool) {
	if len(text) > 0 && text[0] == '-' {
		d.negative = true
		text = text[1:]
	}
	mantissa := text
	exponent := 0
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		if exponent, ok = parseExponent(text[i+1:]); !ok {
			return d, false
		}
	}
	seen, point, first, last := 0, -1, -1, -1
	for i, c := range mantissa {
		switch {
		case c == '.' && point < 0:
			point = seen
			continue
		case !isDigit(c):
			return d, false
		case c != '0':
			if first < 0 {
				first = i
				d.exponent = -seen
			}
			last = i
		}
		seen++
	}
	if seen == 0 {
		return d, false
	}
	if point < 0 {
		point = seen
	}
	if first >= 0 {
		d.digits = mantissa[first : last+1]
		d.exponent += point - 1 + exponent
	}
	return d, true
}

func parseExponent(text []byte) (int, bool) {
	digits := text
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		digits = text[1:]
	}
	if len(digits) == 0 || len(digits) > 8 {
		return 0, false
	}
	n := 0
	for _, c := range digits {
		if !isDigit(c) {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	if text[0] == '-' {
		n = -n
	}
	return n, true
}

// append appends the number with all its digits. It answers false, and dst as it was, if
// no double can hold it.
func (d decimal) append(dst []byte) ([]byte, bool) {
	if len(d.digits) == 0 {
		return append(dst, '0'), true
	}
	if d.exponent > maxExponent {
		return dst, false
	}
	start := len(dst)
	if d.negative {
		dst = append(dst, '-')
	}
	first := len(dst)
	dst = d.appendDigits(dst)
	if d.exponent < exactExponent || d.exponent == exactExponent && string(dst[first:]) < exactLimit {
		if d.exponent >= minPlainExponent {
			return placePoint(dst, first, d.exponent), true
		}
	}
	if len(dst)-first > 1 {
		dst = insert(dst, first+1, ".")
	}
	dst = append(dst, 'e')
	dst = strconv.AppendInt(dst, int64(d.exponent), 10)
	if d.exponent == maxExponent {
		if _, err := strconv.ParseFloat(string(dst[start:]), 64); err != nil {
			return dst[:start], false
		}
	}
	return dst, true
}

func (d decimal) appendDigits(dst []byte) []byte {
	if i := bytes.IndexByte(d.digits, '.'); i >= 0 {
		dst = append(dst, d.digits[:i]...)
		return append(dst, d.digits[i+1:]...)
	}
	return append(dst, d.digits...)
}

// placePoint makes the digits from first on, d.ddd × 10^exponent, a number without an
// exponent.
func placePoint(dst []byte, first, exponent int) []byte {
	const zeros = "0.000000000000000"
	digits := len(dst) - first
	switch {
	case exponent < 0:
		return insert(dst, first, zeros[:1-exponent])
	case digits > exponent+1:
		return insert(dst, first+exponent+1, ".")
	default:
		return append(dst, zeros[2:2+exponent+1-digits]...)
	}
}

// insert puts s into dst before index i.
func insert(dst []byte, i int, s string) []byte {
	dst = append(dst, s...)
	copy(dst[i+len(s):], dst[i:])
	copy(dst[i:], s)
	return dst
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
