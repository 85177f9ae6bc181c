package wire

import (
	"encoding/binary"
	"strconv"
)

const (
	frameOpen   = `{"id":`
	frameMiddle = `,"msg":`
	frameClose  = `}`

	// finalText is the first byte of an unmasked text frame that is a whole message.
	finalText = 0x81
	// Lengths up to shortLength stand in the header's second byte. Larger ones follow in
	// two bytes behind the mark length16, or in eight behind length64.
	shortLength = 125
	length16    = 126
	length64    = 127
)

// PayloadSize is the number of bytes that the frame of a message of n bytes carries.
func PayloadSize(id uint64, n int) int {
	return len(frameOpen) + digits(id) + len(frameMiddle) + n + len(frameClose)
}

func digits(n uint64) int {
	count := 1
	for n >= 10 {
		n /= 10
		count++
	}
	return count
}

// AppendFrame appends a whole websocket frame with the message to dst. Subscribers take
// the message out by prefix and suffix, so the form is exactly {"id":N,"msg":…}.
func AppendFrame(dst []byte, id uint64, message []byte) []byte {
	dst = AppendFrameStart(dst, id, len(message))
	return append(append(dst, message...), frameClose...)
}

// AppendFrameStart appends what stands before the n bytes of the message in its frame;
// behind them FrameEnd is missing. So a large message need not be copied.
func AppendFrameStart(dst []byte, id uint64, n int) []byte {
	dst = appendHeader(dst, PayloadSize(id, n))
	dst = append(dst, frameOpen...)
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, frameMiddle...)
}

// FrameEnd is what stands behind the message in its frame.
const FrameEnd = frameClose

func appendHeader(dst []byte, size int) []byte {
	switch {
	case size <= shortLength:
		return append(dst, finalText, byte(size))
	case size <= 0xffff:
		return append(dst, finalText, length16, byte(size>>8), byte(size))
	default:
		return binary.BigEndian.AppendUint64(append(dst, finalText, length64), uint64(size)) //nolint:gosec // a length
	}
}
