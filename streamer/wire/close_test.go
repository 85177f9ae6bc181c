package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"millrace/streamer/wire"
)

func TestErrorMessages(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		err  *wire.ErrorMessage
		want string
	}{
		{
			name: "wrong replica version", err: wire.WrongReplicaVersion("4l0kko", "1abc"),
			want: `["error",{"type":1,"message":"current replica version is 4l0kko (requested 1abc)"}]`,
		},
		{
			name: "watermark too old", err: wire.WatermarkTooOld("4l0kko", "00"),
			want: `["error",{"type":2,"message":"earliest supported watermark is 4l0kko (requested 00)"}]`,
		},
		{
			name: "stream too far behind", err: wire.StreamTooFarBehind(30*time.Second, 30512*time.Millisecond),
			want: `["error",{"type":3,"message":"lagging for over 30000ms (30512ms)"}]`,
		},
		{
			name: "text that needs escaping", err: wire.WrongReplicaVersion("a", "<\"\\\n&>"),
			want: `["error",{"type":1,"message":"current replica version is a (requested <\"\\\n&>)"}]`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			got := tt.err.Append(nil)
			require.Equal(t, tt.want, string(got))
			require.True(t, json.Valid(got))
			require.Contains(t, tt.err.Error(), tt.err.Message)
		})
	}
}

func TestTooBig(t *testing.T) {
	t.Parallel()

	require.Equal(t, &wire.Close{
		Code: 1009, Delay: true,
		Reason: "Error: message of public.t has 104857601 bytes, more than 104857600; raise maxMessageBytes",
	}, wire.TooBig("public.t", 104857601, wire.MaxFrame))
}

func TestTruncateReason(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, text, want string
	}{
		{name: "empty"},
		{name: "short", text: "Error: x", want: "Error: x"},
		{name: "exactly 123 bytes", text: strings.Repeat("a", 123), want: strings.Repeat("a", 123)},
		{name: "124 bytes", text: strings.Repeat("a", 124), want: strings.Repeat("a", 120) + "..."},
		{name: "152 bytes", text: strings.Repeat("a", 152), want: strings.Repeat("a", 120) + "..."},
		{name: "150 characters of three bytes", text: strings.Repeat("€", 150), want: strings.Repeat("€", 40) + "..."},
		{name: "characters of four bytes", text: "a" + strings.Repeat("😀", 50), want: "a" + strings.Repeat("😀", 29) + "..."},
		{name: "not UTF-8", text: "a\xffb", want: "a\uFFFDb"},
		{name: "very long", text: strings.Repeat("a", 1<<20), want: strings.Repeat("a", 120) + "..."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			require.Equal(t, tt.want, wire.TruncateReason(tt.text))
		})
	}
}

func FuzzTruncateReason(f *testing.F) {
	f.Add("")
	f.Add(strings.Repeat("€", 42))
	f.Add(strings.Repeat("\xff", 200))
	f.Fuzz(func(t *testing.T, text string) {
		got := wire.TruncateReason(text)
		require.LessOrEqual(t, len(got), 123)
		require.True(t, utf8.ValidString(got))
		if len(text) <= 123 && utf8.ValidString(text) {
			require.Equal(t, text, got)
		}
		if len(text) > 123 {
			require.True(t, strings.HasSuffix(got, "...") || !utf8.ValidString(text))
		}
	})
}
