package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is cut by prefix and suffix is what the JSON library finds, wherever the frame
// has just the two keys.
func FuzzCutFrame(f *testing.F) {
	for _, frame := range []string{
		`{"id":1,"msg":["status",{"tag":"status"}]}`,
		`{"id":18446744073709551616,"msg":["data",{"tag":"insert","new":{"a":"]}"}}]}`,
		`{"id":2,"msg":["begin",{"tag":"begin"},{"commitWatermark":"01"}]}`,
		`{"id":3,"msg":["commit",{"tag":"commit"},{"watermark":"01.02"}]}`,
		`{"msg":["error",{"type":1}],"id":7}`, `{"id":01,"msg":[{}]}`, `{"id":`,
	} {
		f.Add([]byte(frame))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		id, msg, err := cutFrame(frame)
		if err == nil {
			wantID, want, parseErr := parseFrame(frame)
			if parseErr == nil && wantID == id && len(want) == len(msg) {
				require.Equal(t, want, msg)
			}
		} else {
			_, msg, _ = parseFrame(frame)
		}
		kind, watermark, err := classify(msg)
		if err != nil {
			_, _ = parseMessage(msg)
			return
		}
		if p, err := parseMessage(msg); err == nil {
			require.Equal(t, p.kind, kind)
			if kind != Data && string(p.watermark) != string(watermark) {
				require.NotContains(t, string(watermark), `"`)
			}
		}
	})
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := backoff{min: 25 * time.Millisecond, max: 10 * time.Second}
	for range 3 {
		step := 25 * time.Millisecond
		for range 12 {
			got := b.next()
			require.GreaterOrEqual(t, got, step/2)
			require.LessOrEqual(t, got, step)
			step = min(2*step, 10*time.Second)
		}
		require.Equal(t, 10*time.Second, step)
		b.reset()
	}
}

func BenchmarkFrame(b *testing.B) {
	frame := []byte(`{"id":123456,"msg":["data",{"tag":"insert","relation":{"schema":"public","name":"foo","rowKey":{"columns":["id"],"type":"default"}},"new":{"id":"a","n":9007199254740993}}]}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		_, msg, err := cutFrame(frame)
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := classify(msg); err != nil {
			b.Fatal(err)
		}
	}
}
