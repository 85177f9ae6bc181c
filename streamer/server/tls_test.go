package server_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	integer "math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"millrace/streamer/server"
)

// pair is a certificate in files, and what its peers trust.
type pair struct {
	certificate, key string // names of files
	roots            *x509.CertPool
}

// newPair makes a certificate of its own for 127.0.0.1.
func newPair(t testing.TB, serial int64) pair {
	t.Helper()

	folder := t.TempDir()
	p := pair{certificate: filepath.Join(folder, "tls.crt"), key: filepath.Join(folder, "tls.key")}
	certificate, key := newCertificate(t, serial)
	require.NoError(t, os.WriteFile(p.certificate, certificate, 0o600))
	require.NoError(t, os.WriteFile(p.key, key, 0o600))
	p.roots = x509.NewCertPool()
	require.True(t, p.roots.AppendCertsFromPEM(certificate))
	return p
}

func newCertificate(t testing.TB, serial int64) (certificate, key []byte) {
	t.Helper()

	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: integer.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, // it stands for its own authority
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(secret)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// secure runs a server with TLS.
func secure(t testing.TB, p pair, log *logText) *running {
	t.Helper()

	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	certificate, err := server.NewCertificate(p.certificate, p.key, logger)
	require.NoError(t, err)
	return serve(t, func(cfg *server.Config) { cfg.Certificate, cfg.Logger = certificate, logger })
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

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serial returns the number of the certificate that a server shows.
func (r *running) serial(t testing.TB) int64 {
	t.Helper()

	c, err := tls.Dial("tcp", r.address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test's
	require.NoError(t, err)
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestTLSServesEverything(t *testing.T) {
	t.Parallel()

	p := newPair(t, 1)
	r := secure(t, p, &logText{})
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS12}}
	ws, response, err := dialer.Dial("wss://"+r.address+changesPath+goodQuery, nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.NoError(t, ws.SetReadDeadline(time.Now().Add(patience)))
	expect(t, ws, `{"id":1,"msg":["status",{"tag":"status"}]}`)
	ack(t, ws, 1)
	r.tail.publish("4l3000", insert)
	expect(t, ws, `{"id":2,"msg":["begin",{"tag":"begin","json":"s"},{"commitWatermark":"4l3000"}]}`)

	// A client that would take HTTP/2 gets what websockets are made of.
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("https://" + r.address + "/keepalive") //nolint:noctx // a test's
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, "OK", string(body))
	require.Equal(t, 1, answer.ProtoMajor)

	// A stop says good-bye.
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	expectClose(t, ws, websocket.CloseNoStatusReceived, "")
	require.NoError(t, ws.Close())
	require.NoError(t, <-stopped)
}

func TestTLSIsNotOlderThan12(t *testing.T) {
	t.Parallel()

	p := newPair(t, 1)
	log := &logText{}
	r := secure(t, p, log)
	old := &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11} //nolint:gosec // it is refused
	_, err := tls.Dial("tcp", r.address, old)
	require.ErrorContains(t, err, "protocol version")
	c, err := tls.Dial("tcp", r.address, &tls.Config{RootCAs: p.roots, MaxVersion: tls.VersionTLS12}) //nolint:gosec // the oldest that is taken
	require.NoError(t, err)
	require.NoError(t, c.Close())

	// Who speaks no TLS is told so.
	response, err := http.Get("http://" + r.address + "/") //nolint:noctx // a test's
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.Contains(t, string(body), "HTTP request to an HTTPS server")
	require.NoError(t, r.stop())
	require.NotContains(t, log.String(), "level=WARN", "anybody could fill the log")
	http.DefaultClient.CloseIdleConnections()
}

// A peer that goes away without a word, or never reads, holds nobody up with TLS either.
func TestTLSPeersThatAreGone(t *testing.T) {
	t.Parallel()

	p := newPair(t, 1)
	r := secure(t, p, &logText{})
	c, err := tls.Dial("tcp", r.address, &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET "+changesPath+goodQuery+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return r.metric(t, "millrace_server_subscribers") == 1 }, patience, time.Millisecond)
	for range 64 { // far more than the sockets hold
		r.tail.publish("4l3000", big(1<<20))
	}
	require.NoError(t, c.NetConn().Close()) // without TLS's good-bye
	require.Eventually(t, func() bool { return r.metric(t, "millrace_server_subscribers") == 0 }, patience, time.Millisecond)
}

func TestTheCertificateFollowsItsFiles(t *testing.T) {
	t.Parallel()

	p := newPair(t, 1)
	log := &logText{}
	r := secure(t, p, log)
	require.EqualValues(t, 1, r.serial(t))
	warnings := func() int { return strings.Count(log.String(), "changed files could not be used") }
	replace := func(name string, content []byte) {
		t.Helper()
		require.NoError(t, os.WriteFile(name+".new", content, 0o600))
		require.NoError(t, os.Rename(name+".new", name))
	}

	becomes := func(number int64, numWarnings int) {
		t.Helper()
		before := r.serial(t)
		require.Eventually(t, func() bool {
			shown := r.serial(t)
			require.Contains(t, []int64{before, number}, shown)
			return shown == number && warnings() == numWarnings
		}, patience, 50*time.Millisecond)
	}

	certificate, key := newCertificate(t, 2)
	replace(p.certificate, certificate)
	becomes(1, 1) // the key is that of another one
	replace(p.key, key)
	becomes(2, 1)
	replace(p.certificate, []byte("nonsense"))
	becomes(2, 2)
	require.NoError(t, os.Remove(p.key))
	becomes(2, 3)
	replace(p.certificate, certificate)
	becomes(2, 4)
	certificate, key = newCertificate(t, 3)
	replace(p.key, key)
	becomes(2, 5)
	replace(p.certificate, certificate)
	becomes(3, 5)
	require.Equal(t, 2, strings.Count(log.String(), "read changed files"))
}

func TestACertificateThatIsNone(t *testing.T) {
	t.Parallel()

	one, other := newPair(t, 1), newPair(t, 2)
	for name, tt := range map[string]struct{ certificate, key, want string }{
		"no certificate":       {one.certificate + ".not", one.key, "no such file"},
		"no key":               {one.certificate, one.key + ".not", "no such file"},
		"a folder":             {t.TempDir(), one.key, "is a directory"},
		"the key of another":   {one.certificate, other.key, "does not match"},
		"a key for both":       {one.key, one.key, "PEM"},
		"no PEM":               {os.DevNull, one.key, "PEM"},
		"both change position": {one.key, one.certificate, "switched"},
	} {
		_, err := server.NewCertificate(tt.certificate, tt.key, slog.New(slog.DiscardHandler))
		require.ErrorContains(t, err, tt.want, name)
		require.ErrorContains(t, err, "read the certificate in "+tt.certificate+" and its key in "+tt.key, name)
	}
}
