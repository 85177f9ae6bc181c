package server_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/metrics"
	"millrace/streamer/server"
	"millrace/streamer/subscriber"
	"millrace/streamer/watermark"
	"millrace/streamer/wire"
)

func TestRequestErrorsAreToldAfterTheUpgrade(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, target, want string
		code               int // 1002 if zero
	}{
		{name: "unknown path", target: "/x/y?z=1", want: "Error: Invalid URL: /x/y?z=1"},
		{name: "root", target: "/", want: "Error: Invalid URL: /"},
		{name: "unknown worker", target: "/poke/v6/changes", want: "Error: Invalid URL: /poke/v6/changes"},
		{name: "long URL", target: "/" + strings.Repeat("x", 200), want: "Error: Invalid URL: /" + strings.Repeat("x", 99) + "..."},
		{name: "sync", target: "/api/sync/v1/connect", want: "Error: Received a sync request with no sync workers."},
		{name: "mutate", target: "/mutate/v1/push", want: "Error: Received a mutate request with no mutator."},
		{name: "version of a sync", target: "/sync/vx/connect?a=b", want: "Error: Invalid version: /sync/vx/connect?a=b"},
		{
			name: "another action", target: "/replication/v6/chang%65s", code: websocket.CloseInternalServerErr,
			want: `invalid action "chang%65s" received in handoff`,
		},
		{name: "version without a number", target: "/api/replication/vx/changes", want: "Error: invalid path: /api/replication/vx/changes"},
		{
			name: "too new", target: "/replication/v7/changes?" + goodQuery,
			want: "Error: Cannot service client at protocol v7. Supported protocols: [v4 ... v6]",
		},
		{name: "missing id", target: changesPath + "taskID=t", want: "Error: invalid querystring - missing id"},
		{name: "missing task", target: changesPath + "id=a", want: "Error: invalid querystring - missing taskID"},
		{name: "snapshot without task", target: "/replication/v6/snapshot", want: "Error: Missing taskID in snapshot request"},
		{name: "snapshot", target: "/replication/v6/snapshot?taskID=t", want: "Error: backups are not configured"},
	}
	r := serve(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			expectClose(t, r.dial(t, tt.target), cmp.Or(tt.code, websocket.CloseProtocolError), tt.want)
		})
	}
}

// A path may have any one segment before it, or the one that was given.
func TestBases(t *testing.T) {
	t.Parallel()

	const status = `{"id":1,"msg":["status",{"tag":"status"}]}`
	got := make(chan wire.Request, 2)
	open := serve(t, func(cfg *server.Config) {
		subscribe := cfg.Subscribe
		cfg.Subscribe = func(ctx context.Context, r wire.Request) (*subscriber.Subscription, func(), error) {
			got <- r
			return subscribe(ctx, r)
		}
	})
	const everything = goodQuery + "&mode=backup&initial=true&maxMessageBytes=1000&logsChangeStream=true&token=x"
	expect(t, open.dial(t, "/anything"+changesPath+everything), status)
	expect(t, open.dial(t, changesPath+everything), status)
	require.Equal(t, wire.Request{
		Version: 6, Action: wire.Changes, ID: "a", TaskID: "t", Mode: wire.Backup, ReplicaVersion: replicaVersion,
		Watermark: replicaVersion, Initial: true, MaxMessageBytes: 1000,
	}, <-got)
	require.Equal(t, wire.Request{
		Version: 6, Action: wire.Changes, ID: "a", TaskID: "t", Mode: wire.Backup, ReplicaVersion: replicaVersion,
		Watermark: replicaVersion, Initial: true, MaxMessageBytes: 1000,
	}, <-got, "with and without")
	code, _, _ := open.get(t, "/anything/replication/v6/changes")
	require.Equal(t, http.StatusUpgradeRequired, code)

	shop := serve(t, func(cfg *server.Config) { cfg.Base = "shop" })
	expect(t, shop.dial(t, "/shop"+changesPath+goodQuery), status)
	expect(t, shop.dial(t, changesPath+goodQuery), status)
	expectClose(t, shop.dial(t, "/other/replication/v6/changes?id=a"), websocket.CloseProtocolError,
		"Error: Invalid URL: /other/replication/v6/changes?id=a")
	code, _, _ = shop.get(t, "/other/replication/v6/changes")
	require.Equal(t, http.StatusNotFound, code)
}

// Closes that a dispatcher says are held back, too: the same task comes again at once.
func TestRefusalsOfPathsAreHeldBack(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.CloseDelay, cfg.CloseDelayMax = 30*time.Millisecond, 60*time.Millisecond })
	for i, target := range []string{"/x?taskID=t", "/sync/v1/connect?taskID=t", "/replication/v6/x?taskID=t"} {
		start := time.Now()
		ws := r.dial(t, target)
		_, _, err := ws.ReadMessage()
		require.True(t, websocket.IsCloseError(err, websocket.CloseProtocolError, websocket.CloseInternalServerErr), "%v", err)
		require.GreaterOrEqual(t, time.Since(start), time.Duration(min(30*(i+1), 60))*time.Millisecond)
	}
}

func TestOlderVersionsAreServedIfConfigured(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.MinVersion = 1 })
	r.tail.publish("4l3000")
	ws := r.dial(t, "/replication/v1/changes?id=a&replicaVersion=4l2ggw&watermark=4l2ggw")
	expect(t, ws, `{"id":1,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)
}

func TestErrorsOfThePositionAreTheOnlyMessage(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, query, want string
		acks              bool
	}{
		{
			name: "wrong replica version", query: "id=a&taskID=t&watermark=4l2ggw&replicaVersion=1abc", acks: true,
			want: `{"id":1,"msg":["error",{"type":1,"message":"current replica version is 4l2ggw (requested 1abc)"}]}`,
		},
		{
			name: "too old", query: "id=a&taskID=t&watermark=00&replicaVersion=4l2ggw", acks: true,
			want: `{"id":1,"msg":["error",{"type":2,"message":"earliest supported watermark is 4l2ggw (requested 00)"}]}`,
		},
		{
			name: "no ack of it", query: "id=a&taskID=t&watermark=00&replicaVersion=4l2ggw",
			want: `{"id":1,"msg":["error",{"type":2,"message":"earliest supported watermark is 4l2ggw (requested 00)"}]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			r := serve(t, func(cfg *server.Config) {
				cfg.ErrorAckTimeout = time.Hour // not waited for when the ack comes
				if !tt.acks {
					cfg.ErrorAckTimeout = 50 * time.Millisecond
				}
			})
			ws := r.dial(t, changesPath+tt.query)
			expect(t, ws, tt.want)
			if tt.acks {
				ack(t, ws, 1)
			}
			expectClose(t, ws, websocket.CloseNoStatusReceived, "")
			require.InDelta(t, 1, r.metric(t, "millrace_server_refusals_total"), 0)
			require.InDelta(t, 0, r.metric(t, "millrace_server_subscribers"), 0)
		})
	}
}

func TestAheadOfEverythingIsServed(t *testing.T) {
	t.Parallel()

	r := serve(t, nil)
	ws := r.dial(t, changesPath+"id=a&taskID=t&replicaVersion=4l2ggw&watermark=zzzzzzzz")
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
}

func TestWhoCannotBeServedIsToldBeforeTheUpgrade(t *testing.T) {
	t.Parallel()

	answer := func(err error) func(*server.Config) {
		return func(cfg *server.Config) {
			cfg.Subscribe = func(context.Context, wire.Request) (*subscriber.Subscription, func(), error) { return nil, nil, err }
		}
	}
	tests := []struct {
		name      string
		configure func(*server.Config)
		want      string
	}{
		{
			name: "not ready", want: "not ready",
			configure: func(cfg *server.Config) { cfg.Ready = func() error { return server.ErrUnavailable } },
		},
		{
			name: "not the owner", want: "not ready: another process owns the log",
			configure: answer(fmt.Errorf("%w: another process owns the log", server.ErrUnavailable)),
		},
		{name: "an error of ours", want: "read bounds: no connection", configure: answer(errors.New("read bounds: no connection"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			r := serve(t, tt.configure)
			require.Equal(t, tt.want, r.refusal(t, changesPath+goodQuery))
			require.InDelta(t, 1, r.metric(t, "millrace_server_refusals_total"), 0)
		})
	}
}

func TestPlacesAreLimitedAndComeBack(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.MaxSubscribers = 2 })
	first := r.dial(t, changesPath+goodQuery)
	r.dial(t, changesPath+goodQuery)
	require.Equal(t, "too many subscribers", r.refusal(t, changesPath+goodQuery))

	require.NoError(t, first.Close())
	require.Eventually(t, func() bool { return r.metric(t, "millrace_server_subscribers") == 1 }, patience, time.Millisecond)
	require.Eventually(t, func() bool { // the place is given back a moment later
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			return false
		}
		defer c.Close()
		return handshake(c, bufio.NewReader(c)) == nil
	}, patience, time.Millisecond)
}

// A give-up that meets a subscription in the middle of something is still told.
func TestGivingUpWhileALogReadIsUnderWayIsTold(t *testing.T) {
	t.Parallel()

	reading := &readingTail{memoryTail: newTail()}
	r := serve(t, func(cfg *server.Config) {
		cfg.GiveUp = 50 * time.Millisecond
		cfg.Subscribe = reading.subscribe
	})
	ws := r.dial(t, changesPath+goodQuery)
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	_, text, err := ws.ReadMessage()
	require.NoError(t, err)
	require.Contains(t, string(text), `{"id":2,"msg":["error",{"type":3,`)
}

// readingTail has nothing in memory, and a log whose reads end with their context.
type readingTail struct{ *memoryTail }

func (t *readingTail) Seek(watermark.Position) (int64, bool) { return 0, false }

func (t *readingTail) subscribe(_ context.Context, r wire.Request) (*subscriber.Subscription, func(), error) {
	sub, err := subscriber.New(subscriber.Config{
		Watermark: r.Watermark, ReplicaVersion: replicaVersion, Tail: t,
		Pages: func(ctx context.Context, _ watermark.Position, _ *change.Block) (subscriber.Page, error) {
			<-ctx.Done()
			return subscriber.Page{}, fmt.Errorf("read page: %w", ctx.Err())
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return sub, sub.Close, nil
}

func TestClosesThatWouldBeMetAgainAreHeldBack(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.CloseDelay, cfg.CloseDelayMax = 30*time.Millisecond, 60*time.Millisecond })
	for _, want := range []time.Duration{30, 60, 60} {
		start := time.Now()
		expectClose(t, r.dial(t, "/replication/v6/snapshot?taskID=t"), 1002, "Error: backups are not configured")
		require.GreaterOrEqual(t, time.Since(start), want*time.Millisecond)
	}
}

func TestStopDoesNotWaitForADelay(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) { cfg.CloseDelay, cfg.CloseDelayMax = time.Hour, time.Hour })
	ws := r.dial(t, "/replication/v6/snapshot?taskID=t")
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	expectClose(t, ws, 1002, "Error: backups are not configured")
	require.NoError(t, <-stopped)
}

func TestStopCutsAWaitingSubscribeShort(t *testing.T) {
	t.Parallel()

	asked := make(chan struct{})
	r := serve(t, func(cfg *server.Config) {
		cfg.Subscribe = func(ctx context.Context, _ wire.Request) (*subscriber.Subscription, func(), error) {
			close(asked)
			<-ctx.Done()
			return nil, nil, fmt.Errorf("%w: %w", server.ErrUnavailable, ctx.Err())
		}
	})
	c, err := net.Dial("tcp", r.address)
	require.NoError(t, err)
	defer c.Close()
	answered := make(chan error, 1)
	go func() { answered <- handshake(c, bufio.NewReader(c)) }()
	<-asked
	require.NoError(t, r.stop())
	require.ErrorContains(t, <-answered, "no upgrade: 503")
}

func TestHTTP(t *testing.T) {
	t.Parallel()

	var ready atomic.Bool
	registry := prometheus.NewRegistry()
	r := serve(t, func(cfg *server.Config) {
		cfg.Metrics = metrics.New(registry)
		cfg.MetricsHandler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
		cfg.Ready = func() error {
			if ready.Load() {
				return nil
			}
			return server.ErrUnavailable
		}
		cfg.Status = func(context.Context) (json.RawMessage, error) {
			if ready.Load() {
				return json.RawMessage(`{"head":"4l2ggw"}`), nil
			}
			return nil, errors.New("no database")
		}
	})
	tests := []struct {
		name     string
		ready    bool
		path     string
		wantCode int
		want     string
	}{
		{name: "health before", path: "/", wantCode: 503, want: "not ready"},
		{name: "keepalive before", path: "/keepalive", wantCode: 503, want: "not ready"},
		{name: "status with an error", path: "/status", wantCode: 503, want: "no database"},
		{name: "health", ready: true, path: "/", wantCode: 200, want: "OK"},
		{name: "health with a query", ready: true, path: "/?foo=bar", wantCode: 200, want: "OK"},
		{name: "keepalive", ready: true, path: "/keepalive", wantCode: 200, want: "OK"},
		{name: "status", ready: true, path: "/status", wantCode: 200, want: `{"head":"4l2ggw"}` + "\n"},
		{name: "metrics", ready: true, path: "/metrics", wantCode: 200, want: "millrace_server_frames_total 0"},
		{name: "unknown path", ready: true, path: "/nothing", wantCode: 404, want: "/keepalive"},
		{name: "stream without upgrade", ready: true, path: "/replication/v6/changes", wantCode: 426, want: "websockets only"},
	}
	for _, tt := range tests { // in order: the server becomes ready between them
		t.Run(tt.name, func(t *testing.T) {
			ready.Store(tt.ready)
			code, contentType, body := r.get(t, tt.path)
			require.Equal(t, tt.wantCode, code)
			require.Contains(t, body, tt.want)
			if contentType == "application/json" {
				require.True(t, json.Valid([]byte(body)), body)
			}
		})
	}
	response, err := http.Post("http://"+r.address+"/", "text/plain", strings.NewReader("x")) //nolint:noctx // a test's
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
	http.DefaultClient.CloseIdleConnections()
}

// With the split, / says that the process lives and /keepalive that it is ready.
func TestHealthSplit(t *testing.T) {
	t.Parallel()

	var ready atomic.Bool
	r := serve(t, func(cfg *server.Config) {
		cfg.HealthSplit = true
		cfg.Ready = func() error {
			if ready.Load() {
				return nil
			}
			return server.ErrUnavailable
		}
	})
	for _, path := range []string{"/", "/?foo=bar"} {
		code, _, body := r.get(t, path)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "OK", body)
	}
	code, _, body := r.get(t, "/keepalive")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "not ready", body)
	require.Equal(t, "not ready", r.refusal(t, changesPath+goodQuery))

	ready.Store(true)
	for _, path := range []string{"/", "/keepalive", "/keepalive?foo=bar"} {
		code, _, body := r.get(t, path)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "OK", body)
	}
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	t.Parallel()

	first, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer first.Close()
	_, err = server.Listen(first.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "listen on "+first.Addr().String()+": another process has this port")
	_, err = server.Listen("nonsense")
	require.ErrorContains(t, err, "listen on nonsense: ")
}

// exhausted is a listener that has no file descriptors left, at first.
type exhausted struct {
	net.Listener
	left atomic.Int32
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestNoFileDescriptorsLeftIsNotTheEnd(t *testing.T) {
	t.Parallel()

	r := serve(t, func(cfg *server.Config) {
		l := &exhausted{Listener: cfg.Listener}
		l.left.Store(3)
		cfg.Listener = l
	})
	expect(t, r.dial(t, changesPath+goodQuery), `{"id":1,"msg":["status",{"tag":"status"}]}`)
}

func TestABrokenListenerEndsTheServer(t *testing.T) {
	t.Parallel()

	listener, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	s, err := server.New(server.Config{
		Listener: listener, Subscribe: newTail().subscribe, Metrics: metrics.New(prometheus.NewRegistry()),
	})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), "serve 127.0.0.1:")
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()

	listener, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	good := server.Config{
		Listener: listener, Subscribe: newTail().subscribe, Metrics: metrics.New(prometheus.NewRegistry()),
	}
	_, err = server.New(good)
	require.NoError(t, err)
	for want, spoil := range map[string]func(*server.Config){
		"are required":             func(cfg *server.Config) { cfg.Listener = nil },
		"Subscribe and":            func(cfg *server.Config) { cfg.Subscribe = nil },
		"Metrics are required":     func(cfg *server.Config) { cfg.Metrics = nil },
		"MinVersion 7 is outside":  func(cfg *server.Config) { cfg.MinVersion = 7 },
		"MinVersion -1 is outside": func(cfg *server.Config) { cfg.MinVersion = -1 },
		"MaxSubscribers -1":        func(cfg *server.Config) { cfg.MaxSubscribers = -1 },
		"PingEvery -1s":            func(cfg *server.Config) { cfg.PingEvery = -time.Second },
		"GiveUp -1s":               func(cfg *server.Config) { cfg.GiveUp = -time.Second },
		"RefusalDelay -1s":         func(cfg *server.Config) { cfg.RefusalDelay = -time.Second },
		"Base: \"a/b\"":            func(cfg *server.Config) { cfg.Base = "a/b" },
	} {
		cfg := good
		spoil(&cfg)
		_, err := server.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

// idleSubscribers connects subscribers, waits until the server has parked them all, and
// prints what one costs. The numbers hold the clients' goroutines and stacks as well, as
// far as there are any: a client here is only a socket.
func idleSubscribers(t *testing.T, count int) {
	r := serve(t, nil)
	before := memory()
	for range count {
		r.rawDial(t)
	}
	require.Eventually(t, func() bool { return r.tail.waiting() == count }, patience, 10*time.Millisecond)
	after := memory()
	t.Logf("%d idle subscribers, each: heap %d, stacks %d bytes, clients' buffers of 4 KiB included",
		count, (int64(after.HeapAlloc)-int64(before.HeapAlloc))/int64(count),
		(int64(after.StackInuse)-int64(before.StackInuse))/int64(count))
	r.tail.publish("4l3000")
	require.Eventually(t, func() bool {
		return r.metric(t, "millrace_server_frames_total") == float64(3*count)
	}, patience, 10*time.Millisecond)
}

func memory() runtime.MemStats {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m
}
