package postgres_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// giveCertificate gives a server a certificate of its own and makes it use TLS.
func giveCertificate(t *testing.T, server *pgtest.Server) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)

	data := filepath.Join(server.Dir(), "data")
	info, err := os.Stat(data)
	require.NoError(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	for name, block := range map[string]*pem.Block{
		"server.crt": {Type: "CERTIFICATE", Bytes: certificate},
		"server.key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		file := filepath.Join(data, name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
		require.NoError(t, os.Chown(file, int(owner.Uid), int(owner.Gid)))
	}
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), `alter system set ssl = on`)
	require.NoError(t, err)
	require.NoError(t, server.Restart(t.Context()))
}

// A read deadline that passes in the middle of a TLS record must lose nothing either.
func TestLargeMessageThatTricklesInOverTLS(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	server, err := pgtest.Start(t.Context(), pgtest.Options{TCP: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	giveCertificate(t, server)
	url := strings.Replace(server.TCPURL("postgres"), "sslmode=disable", "sslmode=require", 1)
	u := prepare(t, url, "millrace_test_0_1", "wal_sender_timeout=4000")
	proxy := newProxy(t, u.url)
	proxy.rate.Store(size / 10) // ten seconds, longer than the server waits for us
	cfg := u.config()
	cfg.Upstream = proxy.upstream(t, u.url)
	cfg.StatusEvery = 10 * time.Millisecond
	var starts atomic.Int32
	cfg.Check = func(context.Context, string) error { starts.Add(1); return nil }
	sink := u.sink()
	source := run(t, cfg, sink)
	u.exec(`insert into t values (2, (select string_agg(md5(i::text), '') from generate_series(1, $1::int / 32) as i))`, size)
	txs := sink.waitTxs(1)
	var want string
	require.NoError(t, u.conn.QueryRow(t.Context(), `select v from t`).Scan(&want))
	require.Contains(t, txs[0].messages[1], `"v":"`+want+`"`)
	require.EqualValues(t, 1, starts.Load(), "it was connected all the time")
	require.Equal(t, "t", u.query(`
		select s.ssl::text from pg_stat_ssl as s join pg_replication_slots as r on r.active_pid = s.pid where r.slot_name = $1`, u.slot)[:1])
	source.stop()
}
