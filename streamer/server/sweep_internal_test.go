package server

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"millrace/streamer/metrics"
	"millrace/streamer/subscriber"
	"millrace/streamer/wire"
)

// lagging is a subscription that has waited for an ack for so long.
type lagging struct {
	subscription
	idle time.Duration
}

func (l lagging) Idle(time.Time) time.Duration { return l.idle }

func TestSweep(t *testing.T) {
	t.Parallel()

	const pingEvery, grace = 30 * time.Second, 30 * time.Second
	now := time.Unix(1_000_000, 0)
	tests := []struct {
		name     string
		silent   bool          // nothing came since the last ping
		pingDue  bool          //
		idle     time.Duration // without any ack
		moved    time.Duration // since a piece of a large message went out; 0 is never
		giveUp   time.Duration
		want     error
		wantPing bool
	}{
		{name: "nothing to do"},
		{name: "ping", pingDue: true, wantPing: true},
		{name: "silent, and no ping is due", silent: true},
		{name: "silent", silent: true, pingDue: true, want: errSilent},
		{name: "silent behind a large message that moves", silent: true, pingDue: true, moved: 29 * time.Second, wantPing: true},
		{name: "silent behind a large message that stands", silent: true, pingDue: true, moved: 30 * time.Second, want: errSilent},
		{name: "late", idle: 29 * time.Second},
		{name: "too late", idle: 30 * time.Second, want: errLags},
		{name: "too late behind a large message that moves", idle: 40 * time.Second, moved: 29 * time.Second},
		{name: "too late behind a large message that stands", idle: 40 * time.Second, moved: 30 * time.Second, want: errLags},
		{name: "late, with a longer limit", idle: 59 * time.Second, giveUp: time.Minute},
		{
			name: "given up", idle: 61 * time.Second, giveUp: time.Minute,
			want: wire.StreamTooFarBehind(time.Minute, 61*time.Second),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			c := testConn(t, Config{PingEvery: pingEvery, SubscriberGrace: grace, GiveUp: tt.giveUp})
			c.controls.close() // looked at, not sent
			c.sub = lagging{idle: tt.idle}
			c.alive.Store(!tt.silent)
			c.nextPing = now.Add(time.Second)
			if tt.pingDue {
				c.nextPing = now
			}
			if tt.moved != 0 {
				c.out.progress.Store(now.Add(-tt.moved).UnixNano())
			}
			c.sweep(now)

			require.Equal(t, tt.wantPing, c.controls.ping)
			if tt.want == nil {
				require.NoError(t, c.ctx.Err())
				return
			}
			got := context.Cause(c.ctx)
			if message, ok := tt.want.(*wire.ErrorMessage); ok { //nolint:errorlint // the table's own value
				require.Equal(t, message, got)
			} else {
				require.ErrorIs(t, got, tt.want)
			}
		})
	}
}

func TestPiecesOfALargeMessageAreProgress(t *testing.T) {
	t.Parallel()

	c := testConn(t, Config{})
	require.NoError(t, c.out.frame(1, make([]byte, largeMessage-1)))
	require.NoError(t, c.out.flush())
	require.Zero(t, c.out.progress.Load())
	require.NoError(t, c.out.frame(2, make([]byte, largeMessage)))
	require.NotZero(t, c.out.progress.Load())
}

// testConn is a connection of a server that does not run, to a peer that reads everything.
func testConn(t *testing.T, cfg Config) *conn {
	t.Helper()

	ours, peer := net.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, peer)
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		<-read
	})
	listener, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	cfg.Listener, cfg.Metrics = listener, metrics.New(prometheus.NewRegistry())
	cfg.Subscribe = func(context.Context, wire.Request) (*subscriber.Subscription, func(), error) {
		return nil, nil, ErrUnavailable
	}
	s, err := New(cfg)
	require.NoError(t, err)
	c := s.newConn()
	c.out.net, c.out.timeout, c.out.metrics = ours, s.cfg.WriteTimeout, s.cfg.Metrics
	return c
}
