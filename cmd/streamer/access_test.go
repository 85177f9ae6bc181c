package main

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// certificateFiles writes a certificate for 127.0.0.1, which is its own authority.
func certificateFiles(t *testing.T) (certificate, key string) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	pair := server.TLS.Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	certificate, key = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	for name, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		key:         {Type: "PRIVATE KEY", Bytes: secret},
	} {
		require.NoError(t, os.WriteFile(name, pem.EncodeToMemory(block), 0o600))
	}
	return certificate, key
}

// With TLS and a token, from the address in the log to the last byte.
func TestServeAndTailWithTLSAndTokens(t *testing.T) {
	t.Parallel()
	const first, second = "first-0123456789abcdef", "second-0123456789abcdef"
	database := pgtest.Empty(t)
	conn := database.Conn(t)
	exec := func(query string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), query)
		require.NoError(t, err)
	}
	exec(`create table public.item (id int primary key)`)
	certificate, key := certificateFiles(t)
	tokens := filepath.Join(t.TempDir(), "tokens")
	mine := filepath.Join(t.TempDir(), "mine")
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write(tokens, "# readers\n"+first+"\n")
	write(mine, first+"\n")
	server := command(t, nil, "serve", "--upstream-db", database.URL, "--listen", "127.0.0.1:0", "--task-id", "test",
		"--tls-cert", certificate, "--tls-key", key, "--auth-token-file", tokens,
		"--path-base", "shop", "--health-split", "--log-level", "debug").start()
	address := addressOf(t, server)
	code, stdout, stderr := invoke(t, nil, "status", "--change-db", database.URL)
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^address +wss://`+address+`$`, stdout)

	found := []string{"tail", "--change-db", database.URL, "--from", "first", "--tls-ca", certificate}
	reader := command(t, nil, append(found, "--auth-token-file", mine)...).start()
	exec(`insert into public.item select generate_series(1, 3)`)
	want := reader.stdout.waitLines(t, 5)

	// Who has no token, or another one, is told what to do.
	code, stdout, stderr = invoke(t, nil, found...)
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, address)
	require.Contains(t, stderr, "the token is missing")
	require.Contains(t, stderr, "give --auth-token-file FILE")
	other := filepath.Join(t.TempDir(), "other")
	write(other, second)
	code, _, stderr = invoke(t, []string{"STREAMER_AUTH_TOKEN_FILE=" + other, "STREAMER_TLS_CA=" + certificate},
		"tail", "--url", "wss://"+address)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, address)
	require.Contains(t, stderr, "put a token that is in the file of the server into "+other)
	require.NotContains(t, stderr, second)
	// Without the authority nobody is trusted; without TLS the server says what it is.
	_, _, stderr = invoke(t, nil, "tail", "--url", "wss://"+address, "--auth-token-file", mine, "--for", "1s")
	require.Contains(t, stderr, "certificate signed by unknown authority")
	_, _, stderr = invoke(t, nil, "tail", "--url", "ws://"+address, "--auth-token-file", mine, "--for", "1s",
		"--from", "120", "--replica-version", "120")
	require.Contains(t, stderr, "HTTP request to an HTTPS server")

	// The token is replaced, and nobody is started anew.
	write(tokens, second)
	write(mine, second)
	again := command(t, nil, append(found, "--auth-token-file", mine)...).start()
	require.Equal(t, want, again.stdout.waitLines(t, 5))
	exec(`insert into public.item values (4)`)
	require.Equal(t, reader.stdout.waitLines(t, 8), again.stdout.waitLines(t, 8))

	for _, p := range []*program{reader, again, server} {
		p.signal(syscall.SIGINT)
		require.Equal(t, 0, p.wait(), p.stderr.String())
		require.NotContains(t, p.stderr.String(), first)
		require.NotContains(t, p.stderr.String(), second)
	}
	require.NotContains(t, server.stderr.String(), "door open")
	require.Contains(t, server.stderr.String(), "read changed files")
}
