package client_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/client"
	"millrace/streamer/wire"
)

// How many messages a subscriber takes, when the server only writes.
func BenchmarkReceive(b *testing.B) {
	const perTx = 10
	messages := append([]string{accepted}, tx("w", perTx-2)...)
	var frames []byte
	s := serve(b, func(_ int, p *peer) {
		p.accept()
		var reader sync.WaitGroup
		defer reader.Wait()
		reader.Go(func() { _, _ = p.waitEnd() })
		for i := 0; i < b.N; {
			frames = frames[:0]
			for range 50 {
				for j, m := range messages[1:] {
					switch j {
					case 0:
						m = `["begin",{"tag":"begin","json":"s"},{"commitWatermark":"` + watermarkOf(i) + `"}]`
					case perTx - 1:
						m = `["commit",{"tag":"commit"},{"watermark":"` + watermarkOf(i) + `"}]`
					}
					p.sent++
					frames = wire.AppendFrame(frames, uint64(p.sent), []byte(m)) //nolint:gosec // it grows from 0
				}
				i += perTx
			}
			if _, err := p.ws.NetConn().Write(frames); err != nil {
				return // the client has enough
			}
		}
	})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	n := 0
	cfg := config(s, func(context.Context, client.Message) error {
		n++
		if n >= b.N {
			cancel()
		}
		return nil
	})
	cfg.Watermark = "0"
	c, err := client.New(cfg)
	require.NoError(b, err)
	b.ResetTimer()
	require.NoError(b, c.Run(ctx))
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "messages/s")
}

func watermarkOf(i int) string { return strconv.Itoa(1_000_000_000 + i) }
