package streamer_test

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A line is a TCP connection's way, which can be cut, stalled, and slow.
type line struct {
	listener net.Listener
	network  string
	target   string
	rate     atomic.Int64 // bytes a second from the target; 0: as fast as it goes

	mu      sync.Mutex
	stalled chan struct{} // closed when bytes flow again; nil while they do
	conns   map[net.Conn]bool
	wait    sync.WaitGroup
}

// newLine leads to a socket or an address.
func newLine(t *testing.T, network, target string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &line{listener: listener, network: network, target: target, conns: map[net.Conn]bool{}}
	l.wait.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		l.flow()
		l.cut()
		l.wait.Wait()
	})
	return l
}

// lineTo leads to a database; through is its connection string.
func lineTo(t *testing.T, database string) (l *line, through string) {
	t.Helper()
	config, err := pgx.ParseConfig(database)
	require.NoError(t, err)
	l = newLine(t, "unix", config.Host+"/.s.PGSQL."+strconv.Itoa(int(config.Port)))
	u := url.URL{Scheme: "postgres", User: url.User(config.User), Host: l.address(), Path: config.Database, RawQuery: "sslmode=disable"}
	return l, u.String()
}

func (l *line) address() string { return l.listener.Addr().String() }

func (l *line) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial(l.network, l.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		l.mu.Lock()
		l.conns[near], l.conns[far] = true, true
		l.mu.Unlock()
		l.wait.Go(func() { l.carry(far, near, false) })
		l.wait.Go(func() { l.carry(near, far, true) })
	}
}

func (l *line) carry(to, from net.Conn, limited bool) {
	defer func() {
		_, _ = to.Close(), from.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, to)
		delete(l.conns, from)
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		stalled := l.stalled
		l.mu.Unlock()
		if stalled != nil {
			<-stalled
		}
		if rate := l.rate.Load(); limited && rate > 0 {
			breathe(time.Duration(n) * time.Second / time.Duration(rate))
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// cut ends every connection.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// stall stops all bytes; connections stay open, and nobody is told.
func (l *line) stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stalled == nil {
		l.stalled = make(chan struct{})
	}
}

// flow lets bytes flow again.
func (l *line) flow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stalled != nil {
		close(l.stalled)
		l.stalled = nil
	}
}

// portForLater returns an address that was free a moment ago.
func portForLater(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return fmt.Sprint(listener.Addr())
}
