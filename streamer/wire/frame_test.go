package wire_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/wire"
)

func TestAppendFrame(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name       string
		id         uint64
		payload    int
		wantHeader []byte
	}{
		{name: "short", id: 1, payload: 40, wantHeader: []byte{0x81, 40}},
		{name: "longest short", id: 1, payload: 125, wantHeader: []byte{0x81, 125}},
		{name: "shortest in two bytes", id: 1, payload: 126, wantHeader: []byte{0x81, 126, 0, 126}},
		{name: "longest in two bytes", id: 12, payload: 65535, wantHeader: []byte{0x81, 126, 0xff, 0xff}},
		{name: "shortest in eight bytes", id: 99, payload: 65536, wantHeader: []byte{0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0}},
		{
			name: "largest id", id: math.MaxUint64, payload: 1 << 20,
			wantHeader: []byte{0x81, 127, 0, 0, 0, 0, 0, 0x10, 0, 0},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			around := fmt.Sprintf(`{"id":%d,"msg":`, tt.id)
			message := bytes.Repeat([]byte("x"), tt.payload-len(around)-1)
			require.Equal(t, tt.payload, wire.PayloadSize(tt.id, len(message)))

			want := append(append(append([]byte("before"), tt.wantHeader...), around...), append(message, '}')...)
			require.Equal(t, want, wire.AppendFrame([]byte("before"), tt.id, message))

			parts := wire.AppendFrameStart(nil, tt.id, len(message))
			parts = append(append(parts, message...), wire.FrameEnd...)
			require.Equal(t, want[len("before"):], parts)
		})
	}
}

func TestStatusFrame(t *testing.T) {
	t.Parallel()

	frame := wire.AppendFrame(nil, 1, []byte(wire.StatusMessage))
	require.Equal(t, "\x81\x2a"+`{"id":1,"msg":["status",{"tag":"status"}]}`, string(frame))
}

func FuzzAppendFrame(f *testing.F) {
	f.Add(uint64(1), 0)
	f.Add(uint64(10), 110)
	f.Add(uint64(99), 65536)
	f.Fuzz(func(t *testing.T, id uint64, size int) {
		message := make([]byte, min(max(size, 0), 1<<18))
		frame := wire.AppendFrame(nil, id, message)
		require.Equal(t, byte(0x81), frame[0])
		length, header := int(frame[1]), 2
		switch frame[1] {
		case 126:
			length, header = int(binary.BigEndian.Uint16(frame[2:])), 4
			require.GreaterOrEqual(t, length, 126)
		case 127:
			length, header = int(binary.BigEndian.Uint64(frame[2:])), 10 //nolint:gosec // made above
			require.GreaterOrEqual(t, length, 65536)
		}
		require.Len(t, frame[header:], length)
		require.Equal(t, length, wire.PayloadSize(id, len(message)))
	})
}

func TestParseAck(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		text string
		want uint64
		bad  bool
	}{
		{name: "first", text: `{"ack":1}`, want: 1},
		{name: "18 digits", text: `{"ack":123456789012345678}`, want: 123456789012345678},
		{name: "largest", text: `{"ack":18446744073709551615}`, want: math.MaxUint64},
		{name: "zero", text: `{"ack":0}`},
		{name: "blanks", text: " { \"ack\" :\t12\n} ", want: 12},
		{name: "other keys", text: `{"id":"x","ack":7,"more":{"ack":8}}`, want: 7},
		{name: "last of two", text: `{"ack":7,"ack":8}`, want: 8},
		{name: "beyond the largest", text: `{"ack":18446744073709551616}`, bad: true},
		{name: "leading zero", text: `{"ack":01}`, bad: true},
		{name: "negative", text: `{"ack":-1}`, bad: true},
		{name: "fraction", text: `{"ack":1.5}`, bad: true},
		{name: "exponent", text: `{"ack":1e3}`, bad: true},
		{name: "text", text: `{"ack":"1"}`, bad: true},
		{name: "null", text: `{"ack":null}`, bad: true},
		{name: "no number", text: `{"ack":}`, bad: true},
		{name: "another key", text: `{"Ack":1}`, bad: true},
		{name: "array", text: `[1]`, bad: true},
		{name: "bare null", text: `null`, bad: true},
		{name: "something behind it", text: `{"ack":1}{"ack":2}`, bad: true},
		{name: "not JSON", text: `hello`, bad: true},
		{name: "empty", text: ``, bad: true},
		{name: "not UTF-8", text: "{\"ack\":1,\"\xff\":2}", bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			got, err := wire.ParseAck([]byte(tt.text))
			if tt.bad {
				require.ErrorIs(t, err, wire.ErrInvalidAck)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func FuzzParseAck(f *testing.F) {
	for _, seed := range []string{`{"ack":1}`, `{"ack":01}`, ` {"ack": 12 }`, `{"ack":18446744073709551616}`, `{"a":[{}],"ack":3}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := wire.ParseAck(text)
		if err != nil {
			require.ErrorIs(t, err, wire.ErrInvalidAck)
			return
		}
		again, err := wire.ParseAck(wire.AppendAck(nil, n))
		require.NoError(t, err)
		require.Equal(t, n, again)
	})
}

func BenchmarkParseAck(b *testing.B) {
	text := []byte(`{"ack":1234567}`)
	for b.Loop() {
		if _, err := wire.ParseAck(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendFrame(b *testing.B) {
	message := bytes.Repeat([]byte("x"), 130)
	buf := make([]byte, 0, 1<<16)
	id := uint64(0)
	for b.Loop() {
		id++
		if len(buf) > 60_000 {
			buf = buf[:0]
		}
		buf = wire.AppendFrame(buf, id, message)
	}
}
