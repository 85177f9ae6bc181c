// Package watermark holds the positions of a change stream: the lexi encoding of
// numbers, Postgres LSNs and state versions as watermarks, and places between and
// inside transactions.
//
// A watermark is a string whose byte order is the order of the stream; it is compared
// with <, in SQL under collate "C". Nobody but the Postgres source looks inside one.
package watermark

import (
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/jackc/pglogrepl"
)

// ErrInvalid is wrapped by every error about a text that is not a watermark.
var ErrInvalid = errors.New("not a watermark")

const (
	base      = 36
	maxDigits = 36
	digits    = "0123456789abcdefghijklmnopqrstuvwxyz"
)

// Encode returns the lexi version of n: its digits in base 36 behind one digit that
// is their number minus one. Byte order of lexi versions is the order of the numbers.
func Encode(n uint64) string {
	return string(Append(make([]byte, 0, 14), n))
}

// Append appends the lexi version of n to dst.
func Append(dst []byte, n uint64) []byte {
	var text [13]byte
	i := len(text)
	for {
		i--
		text[i] = digits[n%base]
		n /= base
		if n == 0 {
			break
		}
	}
	dst = append(dst, digits[len(text)-i-1])
	return append(dst, text[i:]...)
}

// EncodeBig is Encode for numbers beyond 64 bits. Negative numbers and those of more
// than 36 digits are errors.
func EncodeBig(n *big.Int) (string, error) {
	text := n.Text(base)
	if n.Sign() < 0 || len(text) > maxDigits {
		return "", fmt.Errorf("encode %s: %w: outside 0 to 36^36-1", n, ErrInvalid)
	}
	return digits[len(text)-1:len(text)] + text, nil
}

// Decode returns the number that a lexi version stands for. It accepts only what
// Encode and EncodeBig produce: anything else would sort wrongly.
func Decode(s string) (*big.Int, error) {
	if err := checkLexi(s); err != nil {
		return nil, fmt.Errorf("decode %q: %w", s, err)
	}
	n, ok := new(big.Int).SetString(s[1:], base)
	if !ok {
		return nil, fmt.Errorf("decode %q: %w", s, ErrInvalid)
	}
	return n, nil
}

func checkLexi(s string) error {
	if len(s) < 2 {
		return fmt.Errorf("%w: shorter than two characters", ErrInvalid)
	}
	for i := range len(s) {
		if strings.IndexByte(digits, s[i]) < 0 {
			return fmt.Errorf("%w: %q is not a lower-case base-36 digit", ErrInvalid, s[i])
		}
	}
	if want := strings.IndexByte(digits, s[0]) + 1; len(s)-1 != want {
		return fmt.Errorf("%w: the first digit announces %d digits, there are %d", ErrInvalid, want, len(s)-1)
	}
	if s[1] == '0' && len(s) > 2 {
		return fmt.Errorf("%w: leading zero", ErrInvalid)
	}
	return nil
}

// Check says whether s is a state version: a lexi version, or two of them joined by
// a dot.
func Check(s string) error {
	major, minor, dotted := strings.Cut(s, ".")
	if err := checkLexi(major); err != nil {
		return fmt.Errorf("watermark %q: %w", s, err)
	}
	if dotted {
		if err := checkLexi(minor); err != nil {
			return fmt.Errorf("watermark %q: minor part: %w", s, err)
		}
	}
	return nil
}

// FromLSN returns the watermark of an LSN.
func FromLSN(lsn pglogrepl.LSN) string {
	return Encode(uint64(lsn))
}

// WithMinor returns the state version that stands at n behind major.
func WithMinor(major string, n uint64) string {
	return major + "." + Encode(n)
}

// LSN returns the LSN of the major part of a watermark of a Postgres source.
func LSN(s string) (pglogrepl.LSN, error) {
	if err := Check(s); err != nil {
		return 0, err
	}
	major, _, _ := strings.Cut(s, ".")
	n, err := Decode(major)
	if err != nil {
		return 0, err
	}
	if !n.IsUint64() {
		return 0, fmt.Errorf("watermark %q: %w: beyond the largest LSN", s, ErrInvalid)
	}
	return pglogrepl.LSN(n.Uint64()), nil
}
