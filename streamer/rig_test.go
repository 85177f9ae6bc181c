package streamer_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer"
)

const (
	// endurance is how long these tests wait for what must come.
	endurance = time.Minute
	// glimpse is how often they look for it.
	glimpse = 10 * time.Millisecond
)

// A rig is a streamer in this process, running or ended.
type rig struct {
	log     *logText
	cancel  context.CancelFunc
	started chan string // the address, once it serves
	ended   chan struct{}
	err     error // of Run, when ended is closed

	address string
}

// rigConfig is a configuration for a database: slots belong to the whole server, so their
// names have the database's in them.
func rigConfig(db *pgtest.DB) streamer.Config {
	return streamer.Config{
		UpstreamDB:   db.URL,
		AppID:        db.Name,
		TaskID:       "task",
		Listen:       "127.0.0.1:0",
		SlotWait:     time.Second,
		DrainTimeout: 5 * time.Second,
	}
}

// launch starts a streamer and does not wait for anything.
func launch(t *testing.T, cfg streamer.Config) *rig {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &rig{log: &logText{}, cancel: cancel, started: make(chan string, 1), ended: make(chan struct{})}
	cfg.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(r.log, t.Output()), &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Started = func(address string) { r.started <- address }
	go func() {
		defer close(r.ended)
		r.err = streamer.Run(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.ended
	})
	return r
}

// serving starts a streamer and waits until it serves.
func serving(t *testing.T, cfg streamer.Config) *rig {
	t.Helper()
	r := launch(t, cfg)
	r.serves(t)
	return r
}

// serves waits until the streamer serves.
func (r *rig) serves(t *testing.T) {
	t.Helper()
	select {
	case r.address = <-r.started:
	case <-r.ended:
		require.FailNow(t, "the streamer ended before it served", "%v", r.err)
	case <-time.After(endurance):
		require.FailNow(t, "the streamer does not serve")
	}
}

// end waits until the streamer ends by itself, within limit, and returns what Run said.
func (r *rig) end(t *testing.T, limit time.Duration) error {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(limit):
		require.FailNow(t, "the streamer does not end", "waited %s", limit)
	}
	return r.err
}

// stop stops the streamer in order.
func (r *rig) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	require.NoError(t, r.end(t, endurance))
}

// logText collects what is logged.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns the log so far.
func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// tell returns the one value that a query has.
func tell[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	value, err := ask[T](t.Context(), conn, sql, args...)
	require.NoError(t, err, sql)
	return value
}

func ask[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (T, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
}

// do runs statements that must succeed.
func do(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, args...)
	require.NoError(t, err, sql)
}

// becomes waits until the one value of a query is what it must become.
func becomes[T comparable](t *testing.T, limit time.Duration, want T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	var got T
	var err error
	for end := time.Now().Add(limit); ; {
		if got, err = ask[T](t.Context(), conn, sql, args...); err == nil && got == want {
			return
		}
		if time.Now().After(end) {
			require.FailNow(t, "it does not become so", "after %s %s is %v (%v), not %v", limit, sql, got, err, want)
		}
		breathe(glimpse)
	}
}

// breathe lets time pass between two looks, or is part of a load.
func breathe(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // nothing is decided by it

// slotsOf is the number of slots of a database.
const slotsOf = `select count(*)::int from pg_replication_slots where database = current_database()`

// wants is what a subscriber says of itself.
func wants(replicaVersion, watermark string) url.Values {
	return url.Values{
		"id": {"test/raw"}, "taskID": {"test"}, "mode": {"serving"}, "initial": {"true"},
		"replicaVersion": {replicaVersion}, "watermark": {watermark},
	}
}

// upgrade asks for the change stream without any help. A refusal before the upgrade is
// told by its status; conn is nil then.
func upgrade(ctx context.Context, address string, parameters url.Values) (conn *websocket.Conn, status int, err error) {
	target := url.URL{Scheme: "ws", Host: address, Path: "/replication/v6/changes", RawQuery: parameters.Encode()}
	conn, response, err := websocket.DefaultDialer.DialContext(ctx, target.String(), nil)
	if response == nil {
		return nil, 0, err
	}
	_ = response.Body.Close()
	if err != nil {
		return nil, response.StatusCode, nil //nolint:nilerr // the status says it
	}
	return conn, response.StatusCode, nil
}

// subscribed asks for the change stream, which must be granted.
func subscribed(t *testing.T, address, replicaVersion, watermark string) *websocket.Conn {
	t.Helper()
	conn, status, err := upgrade(t.Context(), address, wants(replicaVersion, watermark))
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// says returns the next frame of a connection, unparsed.
func says(t *testing.T, conn *websocket.Conn) string {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(endurance)))
	_, text, err := conn.ReadMessage()
	require.NoError(t, err)
	return string(text)
}

// closesPlainly reads a connection to its end, which must come without an error message
// and without a code that says more than "come back".
func closesPlainly(conn *websocket.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(endurance)); err != nil {
		return err
	}
	for {
		_, text, err := conn.ReadMessage()
		switch {
		case websocket.IsCloseError(err, websocket.CloseNoStatusReceived, websocket.CloseNormalClosure, websocket.CloseGoingAway):
			return nil
		case err != nil:
			return fmt.Errorf("it did not end plainly: %w", err)
		case bytes.Contains(text, []byte(`["error",`)):
			return fmt.Errorf("it was told %s", text)
		}
	}
}
