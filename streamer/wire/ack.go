package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// ErrInvalidAck is wrapped by every error about something that is not an ack.
var ErrInvalidAck = errors.New("not an ack")

// MaxAck is the most bytes a message from a subscriber may have.
const MaxAck = 4096

const (
	ackOpen = `{"ack":`
	// maxFastAck keeps the number of the fast path below 19 digits, so it cannot overflow.
	maxFastAck = len(ackOpen) + 18 + 1
)

// ParseAck returns the number of an ack, {"ack":N}. Blanks and other keys are allowed.
func ParseAck(text []byte) (uint64, error) {
	last := len(text) - 1
	if last <= len(ackOpen) || len(text) > maxFastAck || string(text[:len(ackOpen)]) != ackOpen ||
		text[last] != '}' || text[len(ackOpen)] == '0' {
		return parseAckSlowly(text)
	}
	var n uint64
	for _, c := range text[len(ackOpen):last] {
		if c < '0' || c > '9' {
			return parseAckSlowly(text)
		}
		n = n*10 + uint64(c-'0')
	}
	return n, nil
}

func parseAckSlowly(text []byte) (uint64, error) {
	if !utf8.Valid(text) {
		return 0, fmt.Errorf("parse ack: %w: invalid UTF-8", ErrInvalidAck)
	}
	var keys map[string]json.RawMessage // not a struct: its keys would match in any case
	if err := json.Unmarshal(text, &keys); err != nil {
		return 0, fmt.Errorf("parse ack: %w: %w", ErrInvalidAck, err)
	}
	number, ok := keys["ack"]
	if !ok {
		return 0, fmt.Errorf("parse ack: %w: the key ack is missing", ErrInvalidAck)
	}
	n, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse ack: %w: %w", ErrInvalidAck, err)
	}
	return n, nil
}

// AppendAck appends the ack of frame n to dst, as a subscriber sends it.
func AppendAck(dst []byte, n uint64) []byte {
	return append(strconv.AppendUint(append(dst, ackOpen...), n, 10), '}')
}
