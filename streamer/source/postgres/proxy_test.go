package postgres_test

import (
	"bytes"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"millrace/streamer/source/postgres"
)

// proxy is a TCP proxy in front of a server that can be slow or dead.
type proxy struct {
	listener net.Listener
	target   atomic.Value // [2]string: network and address
	rate     atomic.Int64
	frozen   atomic.Bool
	dials    atomic.Int32
	pools    atomic.Bool // refuse replication as a pooler does

	mu    sync.Mutex
	conns []net.Conn
	wait  sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener}
	p.aim(t, to)
	p.wait.Add(1)
	go p.accept()
	t.Cleanup(func() {
		listener.Close()
		p.cut()
		p.wait.Wait()
	})
	return p
}

// upstream is the database at to, by way of the proxy.
func (p *proxy) upstream(t *testing.T, to string) *postgres.Upstream {
	t.Helper()
	config, err := pgx.ParseConfig(to)
	require.NoError(t, err)
	address := p.listener.Addr().(*net.TCPAddr)
	through := url.URL{
		Scheme: "postgres", User: url.User(config.User),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(address.Port)), Path: config.Database,
		RawQuery: "sslmode=disable",
	}
	if config.TLSConfig != nil {
		through.RawQuery = "sslmode=require"
	}
	if timeout := config.RuntimeParams["wal_sender_timeout"]; timeout != "" {
		through.RawQuery += "&wal_sender_timeout=" + timeout
	}
	up, err := postgres.NewUpstream(through.String())
	require.NoError(t, err)
	return up
}

func (p *proxy) accept() {
	defer p.wait.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.dials.Add(1)
		target := p.target.Load().([2]string)
		server, err := net.Dial(target[0], target[1])
		if err != nil {
			client.Close()
			continue
		}
		if p.pools.Load() && refuseReplication(client, server) {
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.wait.Add(2)
		go p.copy(server, client, false)
		go p.copy(client, server, true)
	}
}

// refuseReplication passes the first packet of a client on, unless it asks for a
// replication connection.
func refuseReplication(client, server net.Conn) bool {
	packet := make([]byte, 4096)
	n, err := client.Read(packet)
	if err == nil && !bytes.Contains(packet[:n], []byte("replication")) {
		_, _ = server.Write(packet[:n])
		return false
	}
	refusal, _ := (&pgproto3.ErrorResponse{
		Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: replication",
	}).Encode(nil)
	_, _ = client.Write(refusal)
	client.Close()
	server.Close()
	return true
}

func (p *proxy) copy(to, from net.Conn, limited bool) {
	defer p.wait.Done()
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	due := time.Now() // when what has passed would have passed a line of that rate
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if p.frozen.Load() {
			continue // lost on the way
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		if rate := p.rate.Load(); limited && rate > 0 {
			due = due.Add(time.Duration(n) * time.Second / time.Duration(rate))
			if early := time.Until(due); early > 0 {
				time.Sleep(early) //nolint:forbidigo // it is what a slow line does
			} else if early < -time.Second {
				due = time.Now() // nothing is saved up while there is nothing to carry
			}
		}
	}
}

func (p *proxy) aim(t *testing.T, to string) {
	t.Helper()
	config, err := pgx.ParseConfig(to)
	require.NoError(t, err)
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	p.target.Store([2]string{network, address})
}

// redirect sends new connections somewhere else and cuts the old ones.
func (p *proxy) redirect(t *testing.T, to string) {
	t.Helper()
	p.aim(t, to)
	p.cut()
}

// freeze loses everything from now on; connections stay open.
func (p *proxy) freeze() { p.frozen.Store(true) }

// thaw lets new connections through; the old ones are cut, for they have lost bytes.
func (p *proxy) thaw() {
	p.cut()
	p.frozen.Store(false)
}

// cut cuts all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns = nil
}
