package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/change"
	"millrace/streamer/client"
)

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	good := client.Config{URL: "ws://h:1", Watermark: "01", Handler: func(context.Context, client.Message) error { return nil }}
	tests := []struct {
		name   string
		change func(*client.Config)
		want   string
	}{
		{"no handler", func(c *client.Config) { c.Handler = nil }, "Handler is required"},
		{"no server", func(c *client.Config) { c.URL = "" }, "URL or Discover"},
		{"no start", func(c *client.Config) { c.Watermark = "" }, "Watermark, Snapshot or Restore is required"},
		{"two starts", func(c *client.Config) { c.Snapshot = "d" }, "has a Watermark and a ReplicaVersion of its own"},
		{"wrong scheme", func(c *client.Config) { c.URL = "ftp://h:1" }, "want ws://"},
		{"no host", func(c *client.Config) { c.URL = "ws://" }, "want ws://"},
		{"old protocol", func(c *client.Config) { c.Version = 3 }, "protocol version 3"},
		{"huge messages", func(c *client.Config) { c.MaxMessageBytes = 1<<30 + 1 }, "MaxMessageBytes"},
		{"future protocol", func(c *client.Config) { c.Version = 7 }, "protocol version 7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			tt.change(&cfg)
			_, err := client.New(cfg)
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, err := client.New(good)
	require.NoError(t, err)
}

func TestTransactionsAreHandledAndAckedInOrder(t *testing.T) {
	t.Parallel()
	want := slices.Concat(tx("101", 3), tx("102", 0), tx("102.01", 1))
	acked := make(chan struct{})
	s := serve(t, func(_ int, p *peer) {
		p.accept()
		p.send(want...)
		p.readAcks()
		close(acked)
		_, _ = p.waitEnd()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &recorder{}
	var persisted []string
	cfg := config(s, r.handle)
	cfg.Persist = func(_ context.Context, p client.Position) error {
		persisted = append(persisted, p.ReplicaVersion+" "+p.Watermark)
		return nil
	}
	c, err := client.New(cfg)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-acked
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, want, r.all())
	require.Equal(t, []string{"100 101", "100 102", "100 102.01"}, persisted)

	require.Len(t, s.queries(), 1)
	require.Equal(t, "/replication/v6/changes", s.requests[0].Path)
	require.Equal(t, "taskID=task&id=task%2Fsub-1&mode=serving&watermark=100&replicaVersion=100&initial=true",
		s.requests[0].RawQuery)
}

func TestLostConnectionInsideATransaction(t *testing.T) {
	t.Parallel()
	first, second := tx("101", 1), tx("102", 2)
	s := serve(t, func(n int, p *peer) {
		p.accept()
		if n == 1 {
			p.send(first...)
			p.send(second[:2]...)
			p.readAcks()
			return
		}
		p.send(second...)
		_, _ = p.waitEnd()
	})
	got := runUntil(t, config(s, nil), len(first)+2+1+len(second))
	require.Equal(t, slices.Concat(first, second[:2], []string{change.Rollback}, second), got)

	queries := s.queries()
	require.Len(t, queries, 2)
	require.Equal(t, "101", queries[1].Get("watermark"))
	require.Equal(t, "true", queries[0].Get("initial"))
	require.False(t, queries[1].Has("initial"))
}

func TestServerRollsBack(t *testing.T) {
	t.Parallel()
	begun := tx("101", 1)[:2]
	s := serve(t, func(_ int, p *peer) {
		p.accept()
		p.send(begun...)
		p.send(change.Rollback)
		p.send(tx("101", 1)...)
		_, _ = p.waitEnd()
	})
	got := runUntil(t, config(s, nil), 6)
	require.Equal(t, slices.Concat(begun, []string{change.Rollback}, tx("101", 1)), got)
}

func TestMessagesThatArrivedBeforeTheCloseAreHandled(t *testing.T) {
	t.Parallel()
	const many = 300
	s := serve(t, func(n int, p *peer) {
		p.accept()
		if n > 1 {
			_, _ = p.waitEnd()
			return
		}
		for i := range many {
			p.send(tx(fmt.Sprintf("2%03d", i), 1)...)
		}
		_ = p.ws.WriteControl(websocket.CloseMessage, nil, time.Now().Add(patience))
		_, _ = p.waitEnd()
	})
	require.Len(t, runUntil(t, config(s, nil), 3*many), 3*many)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		send     func(p *peer)
		wantType int
		want     string
	}{
		{"wrong replica version", sendError(1, "current replica version is 200 (requested 100)"), 1, "current replica version is 200"},
		{"watermark too old", sendError(2, "earliest supported watermark is 120 (requested 100)"), 2, "start from a newer copy"},
		{"too far behind", sendError(3, "lagging for over 30000ms"), 3, "too slow"},
		{"unknown type", sendError(0, "?"), 0, "error 0"},
		{"after a transaction", func(p *peer) {
			p.accept()
			p.send(tx("101", 1)...)
			sendErrorOn(p, 3, "lagging")
		}, 3, "watermark 101"},
		{"old protocol", func(p *peer) {
			p.upgrade()
			text := websocket.FormatCloseMessage(1002, "Error: Cannot service client at protocol v6. Supported protocols: [v1 ... v5]")
			_ = p.ws.WriteControl(websocket.CloseMessage, text, time.Now().Add(patience))
			_, _ = p.waitEnd()
		}, 0, "[v1 ... v5]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(_ int, p *peer) { tt.send(p) })
			err := run(t, t.Context(), config(s, func(context.Context, client.Message) error { return nil }))
			var refused *client.Refused
			require.ErrorAs(t, err, &refused)
			require.Equal(t, tt.wantType, refused.Type)
			require.ErrorContains(t, err, tt.want)
			require.Len(t, s.queries(), 1)
		})
	}
}

func sendError(kind int, message string) func(*peer) {
	return func(p *peer) {
		p.upgrade()
		sendErrorOn(p, kind, message)
	}
}

// sendErrorOn sends an error message and expects the client to go without acking it.
func sendErrorOn(p *peer, kind int, message string) {
	p.send(fmt.Sprintf(`["error",{"type":%d,"message":%q}]`, kind, message))
	frames, err := p.waitEnd()
	if slices.Contains(frames, fmt.Sprintf(`{"ack":%d}`, p.sent)) {
		p.fail("the error message was acked")
	}
	if !websocket.IsCloseError(err, websocket.CloseNoStatusReceived) {
		p.fail("want a close without code, got %v", err)
	}
}

func TestServerNotReady(t *testing.T) {
	t.Parallel()
	const refusals = 4
	want := tx("101", 1)
	s := serve(t, func(n int, p *peer) {
		if n <= refusals {
			http.Error(p.w, "not ready", http.StatusServiceUnavailable)
			return
		}
		p.accept()
		p.send(want...)
		_, _ = p.waitEnd()
	})
	require.Equal(t, want, runUntil(t, config(s, nil), len(want)))
	require.Len(t, s.queries(), refusals+1)
}

func TestFramesThatMeanTheSame(t *testing.T) {
	t.Parallel()
	want := tx("101", 1)
	tests := []struct {
		name   string
		frame  string // with the id and the message
		binary bool
	}{
		{name: "exact", frame: `{"id":%[1]d,"msg":%[2]s}`},
		{name: "blanks", frame: ` { "id" : %[1]d , "msg" : %[2]s } `},
		{name: "message before id", frame: `{"msg":%[2]s,"id":%[1]d}`},
		{name: "unknown key behind", frame: `{"id":%[1]d,"msg":%[2]s,"later":[{"x":1}]}`},
		{name: "unknown key between", frame: `{"id":%[1]d,"later":[{}],"msg":%[2]s}`},
		{name: "binary", frame: `{"id":%[1]d,"msg":%[2]s}`, binary: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(_ int, p *peer) {
				p.upgrade()
				kind := websocket.TextMessage
				if tt.binary {
					kind = websocket.BinaryMessage
				}
				for i, m := range append([]string{accepted}, want...) {
					if err := p.ws.WriteMessage(kind, fmt.Appendf(nil, tt.frame, i+1, m)); err != nil {
						p.fail("send: %v", err)
					}
				}
				_, _ = p.waitEnd()
			})
			require.Equal(t, want, runUntil(t, config(s, nil), len(want)))
		})
	}
}

func TestUnknownKeysInMessages(t *testing.T) {
	t.Parallel()
	want := []string{
		`["begin",{"tag":"begin","json":"s","x":{"commitWatermark":"999"}},{"commitWatermark":"101"}]`,
		`["data",{"tag":"something-new","x":"\u0000 \ud83d\ude00","n":9007199254740993}]`,
		`["commit",{"tag":"commit","watermark":"999"},{"watermark":"101","more":{"watermark":"998"}}]`,
	}
	s := serve(t, func(_ int, p *peer) {
		p.upgrade()
		p.send(`["status",{"tag":"status","lagReport":{"nextSendTimeMs":1},"x":1}]`)
		p.send(want...)
		_, _ = p.waitEnd()
	})
	require.Equal(t, want, runUntil(t, config(s, nil), len(want)))
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	large := `["data",{"tag":"insert","new":{"a":"` + strings.Repeat("x", 5<<20) + `"}}]`
	begin, commit := tx("101", 0)[0], tx("101", 0)[1]
	want := []string{begin, large, large, commit}
	s := serve(t, func(_ int, p *peer) {
		p.accept()
		p.send(want...)
		_, _ = p.waitEnd()
	})
	require.Equal(t, want, runUntil(t, config(s, nil), len(want)))

	// The same with a limit below it: never handled, and asked for again and again.
	s = serve(t, func(_ int, p *peer) {
		p.accept()
		p.send(begin)
		_ = p.ws.WriteMessage(websocket.TextMessage, []byte(large)) // the client may hang up before the end
		_, _ = p.waitEnd()
	})
	cfg := config(s, nil)
	cfg.MaxMessageBytes = int64(len(large)) - 1000
	require.Equal(t, []string{begin, change.Rollback, begin, change.Rollback}, runUntil(t, cfg, 4))
	require.Equal(t, strconv.FormatInt(cfg.MaxMessageBytes, 10), s.queries()[0].Get("maxMessageBytes"))
}

func TestServerBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	begin, row, commit := tx("101", 1)[0], tx("101", 1)[1], tx("101", 1)[2]
	tests := []struct {
		name string
		send func(p *peer)
	}{
		{"commit of another watermark", func(p *peer) { p.send(begin, tx("102", 0)[1]) }},
		{"begin inside a transaction", func(p *peer) { p.send(begin, tx("102", 0)[0]) }},
		{"row outside a transaction", func(p *peer) { p.send(row) }},
		{"commit outside a transaction", func(p *peer) { p.send(commit) }},
		{"rollback outside a transaction", func(p *peer) { p.send(change.Rollback) }},
		{"transaction again", func(p *peer) { p.send(tx(version, 0)...) }},
		{"transaction before the start", func(p *peer) { p.send(tx("05", 0)...) }},
		{"skipped id", func(p *peer) { p.sent++; p.send(begin) }},
		{"repeated id", func(p *peer) { p.sent--; p.send(begin) }},
		{"no id", func(p *peer) { p.raw(`{"msg":` + begin + `}`) }},
		{"id as text", func(p *peer) { p.raw(`{"id":"2","msg":` + begin + `}`) }},
		{"not JSON", func(p *peer) { p.raw(`{"id":2,"msg":["begin",{]}`) }},
		{"empty frame", func(p *peer) { p.raw(``) }},
		{"unknown type", func(p *peer) { p.send(`["what",{"tag":"what"}]`) }},
		{"begin without watermark", func(p *peer) { p.send(`["begin",{"tag":"begin"}]`) }},
		{"empty array", func(p *peer) { p.send(`[]`) }},
		{"error that is none", func(p *peer) { p.send(`["error",7]`) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := tx("101", 1)
			s := serve(t, func(n int, p *peer) {
				p.accept()
				if n == 1 {
					tt.send(p)
				} else {
					p.send(want...)
				}
				_, _ = p.waitEnd()
			})
			r := &recorder{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg := config(s, r.handle)
			cfg.Persist = func(context.Context, client.Position) error { cancel(); return nil }
			require.NoError(t, run(t, ctx, cfg))
			require.Equal(t, version, s.queries()[1].Get("watermark"))
			got := r.all()
			require.Equal(t, want, got[len(got)-len(want):])
			if rest := got[:len(got)-len(want)]; len(rest) > 0 {
				require.Equal(t, []string{begin, change.Rollback}, rest)
			}
		})
	}
}

func TestCallersErrorsEndRun(t *testing.T) {
	t.Parallel()
	errOwn := errors.New("own")
	tests := []struct {
		name   string
		change func(*client.Config)
	}{
		{"handler", func(c *client.Config) {
			c.Handler = func(_ context.Context, m client.Message) error {
				if m.Kind == client.Data {
					return errOwn
				}
				return nil
			}
		}},
		{"persist", func(c *client.Config) {
			c.Persist = func(context.Context, client.Position) error { return errOwn }
		}},
		{"persist together", func(c *client.Config) {
			c.PersistTogether = true
			c.Persist = func(context.Context, client.Position) error { return errOwn }
		}},
		{"idle", func(c *client.Config) { c.Idle = func() error { return errOwn } }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(_ int, p *peer) {
				p.accept()
				if !p.offer(tx("101", 1)...) {
					return // it was idle, and has ended, before that
				}
				frames, _ := p.waitEnd()
				if slices.Contains(frames, `{"ack":4}`) {
					p.fail("the commit was acked")
				}
			})
			cfg := config(s, func(context.Context, client.Message) error { return nil })
			tt.change(&cfg)
			require.ErrorIs(t, run(t, t.Context(), cfg), errOwn)
		})
	}
}

func TestStopInsideATransaction(t *testing.T) {
	t.Parallel()
	begun := tx("101", 3)[:3]
	s := serve(t, func(_ int, p *peer) {
		p.accept()
		p.send(begun...)
		if _, err := p.waitEnd(); !websocket.IsCloseError(err, websocket.CloseNoStatusReceived) {
			p.fail("want a close without code, got %v", err)
		}
	})
	require.Equal(t, append(slices.Clone(begun), change.Rollback), runUntil(t, config(s, nil), len(begun)))
}

func TestPersistedBeforeAcked(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprintf("together %t", together), func(t *testing.T) {
			t.Parallel()
			const many = 2000
			var persisted, calls atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := serve(t, func(_ int, p *peer) {
				p.accept()
				for i := range many {
					p.send(tx(fmt.Sprintf("2%04d", i+1), 0)...)
				}
				for p.acked < p.sent {
					p.readAck()
					if done := int64(p.acked-1) / 2; persisted.Load() < done {
						p.fail("ack %d came when %d transactions were persisted", p.acked, persisted.Load())
					}
				}
				cancel()
				_, _ = p.waitEnd()
			})
			cfg := config(s, func(context.Context, client.Message) error { return nil })
			cfg.PersistTogether = together
			cfg.Persist = func(_ context.Context, p client.Position) error {
				calls.Add(1)
				var n int64
				if _, err := fmt.Sscanf(p.Watermark, "2%d", &n); err != nil {
					return err
				}
				persisted.Store(n)
				return nil
			}
			require.NoError(t, run(t, ctx, cfg))
			require.Equal(t, int64(many), persisted.Load())
			if together {
				require.Less(t, calls.Load(), int64(many))
			} else {
				require.Equal(t, int64(many), calls.Load())
			}
		})
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	const liveness = 300 * time.Millisecond
	want := tx("101", 1)
	s := serve(t, func(n int, p *peer) {
		p.accept()
		if n > 1 {
			// Pings alone keep the connection for longer than the silence allowed.
			ping := time.NewTicker(liveness / 6)
			defer ping.Stop()
			for range 12 {
				<-ping.C
				if err := p.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(patience)); err != nil {
					p.fail("ping: %v", err)
				}
			}
			p.send(want...)
		}
		_, _ = p.waitEnd()
	})
	cfg := config(s, nil)
	cfg.Liveness = liveness
	require.Equal(t, want, runUntil(t, cfg, len(want)))
	require.Len(t, s.queries(), 2)
}

func TestStopWhileTheServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	release := make(chan struct{})
	s := serve(t, func(_ int, p *peer) {
		close(arrived)
		<-release
	})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := client.New(config(s, (&recorder{}).handle))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-arrived
	cancel()
	require.NoError(t, <-done)
}

// Whatever breaks and when: the whole transactions are those of the log, each once.
func TestWholeTransactionsOverBrokenConnections(t *testing.T) {
	t.Parallel()
	var log [][]string
	for i := range 60 {
		log = append(log, tx(fmt.Sprintf("2%03d", i), i%7))
	}
	rapid.Check(t, func(rt *rapid.T) {
		cuts := rapid.SliceOfN(rapid.IntRange(0, 80), 0, 12).Draw(rt, "frames until each cut")
		s := serve(t, func(n int, p *peer) {
			left := -1
			if n <= len(cuts) {
				left = cuts[n-1]
			}
			p.accept()
			from := p.r.URL.Query().Get("watermark")
			for i, messages := range log {
				if fmt.Sprintf("2%03d", i) <= from {
					continue
				}
				for _, m := range messages {
					if left == 0 {
						return
					}
					left--
					p.send(m)
				}
			}
			_, _ = p.waitEnd()
		})
		var whole, open []string
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cfg := config(s, func(_ context.Context, m client.Message) error {
			switch m.Kind {
			case client.Status:
				return nil
			case client.Rollback:
				open = nil
				return nil
			}
			open = append(open, string(m.Bytes))
			if m.Kind == client.Commit {
				whole, open = append(whole, open...), nil
				if m.Watermark == "2059" {
					cancel()
				}
			}
			return nil
		})
		require.NoError(rt, run(t, ctx, cfg))
		require.Equal(rt, slices.Concat(log...), whole)
	})
}
