package client_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"millrace/streamer/client"
)

// doorman lets in who has the token, on a port with TLS.
type doorman struct {
	address string // host:port
	ca      string // file with whom to trust
	brief   bool   // it hangs up after the status

	mu    sync.Mutex
	token string
	given []string // Authorization headers, in order
}

func guard(t *testing.T, token string) *doorman {
	t.Helper()
	d := &doorman{token: token}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		header := r.Header.Get("Authorization")
		d.given = append(d.given, header)
		known := header == "Bearer "+d.token
		d.mu.Unlock()
		if !known {
			http.Error(w, "the token is not known here", http.StatusUnauthorized)
			return
		}
		if r.URL.Path == "/status" {
			fmt.Fprint(w, `{"replica_version":"100","minimum":"100","head":"100"}`)
			return
		}
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Errorf("upgrade: %v", err)
			return
		}
		defer ws.Close()
		p := &peer{t: t, ws: ws}
		p.send(accepted)
		if d.brief {
			return
		}
		p.send(tx("101", 2)...)
		p.readAcks()
		_, _ = p.waitEnd()
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	d.address = strings.TrimPrefix(server.URL, "https://")
	d.ca = filepath.Join(t.TempDir(), "ca.crt")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(d.ca, ca, 0o600))
	return d
}

func (d *doorman) wants(token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.token = token
}

func (d *doorman) saw() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.given...)
}

func (d *doorman) config() client.Config {
	return client.Config{
		URL: "wss://" + d.address, TaskID: "task", Watermark: client.Head,
		TLS: client.TrustFile(d.ca), Handler: func(context.Context, client.Message) error { return nil },
		BackoffMin: 1, BackoffMax: 1,
	}
}

func TestTokenAndTLS(t *testing.T) {
	t.Parallel()
	d := guard(t, "secret")
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("# mine\n\nsecret \nolder\n"), 0o600))
	cfg := d.config()
	cfg.Token = client.TokenFile(file)
	require.Equal(t, tx("101", 2), runUntil(t, cfg, 4))
	require.Equal(t, []string{"Bearer secret", "Bearer secret"}, d.saw(), "of the status and of the stream")
}

func TestDiscoveredAddressWithTLS(t *testing.T) {
	t.Parallel()
	d := guard(t, "secret")
	cfg := d.config()
	cfg.URL = ""
	cfg.Discover = func(context.Context) (string, error) { return "wss://" + d.address, nil }
	cfg.Token = func() (string, error) { return "secret", nil }
	require.Equal(t, tx("101", 2), runUntil(t, cfg, 4))
}

func TestTokenIsReadAgain(t *testing.T) {
	t.Parallel()
	d := guard(t, "old")
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	cfg := d.config()
	read := 0
	cfg.Token = func() (string, error) {
		if read++; read == 2 { // it is replaced on both sides, here a moment later
			require.NoError(t, os.WriteFile(file, []byte("new"), 0o600))
		}
		return client.TokenFile(file)()
	}
	d.wants("new")
	require.Equal(t, tx("101", 2), runUntil(t, cfg, 4))
	require.Equal(t, []string{"Bearer old", "Bearer new", "Bearer new"}, d.saw())
}

func TestWrongTokenEndsRun(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		token     func() (string, error)
		watermark string
		want      int // requests
	}{
		{name: "at the status", token: func() (string, error) { return "wrong", nil }, watermark: client.Head, want: 2},
		{name: "at the stream", token: func() (string, error) { return "wrong", nil }, watermark: "100", want: 2},
		{name: "none to read again", watermark: "100", want: 1},
		{name: "an empty one", token: func() (string, error) { return "", nil }, watermark: "100", want: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := guard(t, "secret")
			cfg := d.config()
			cfg.Token, cfg.Watermark, cfg.ReplicaVersion = tt.token, tt.watermark, "100"
			err := run(t, t.Context(), cfg)
			require.ErrorIs(t, err, client.ErrUnauthorized)
			require.ErrorIs(t, err, client.ErrPermanent)
			require.ErrorContains(t, err, d.address)
			require.ErrorContains(t, err, "lets nobody in without a token that it knows")
			require.ErrorContains(t, err, "the token is not known here")
			require.NotContains(t, err.Error(), "wrong")
			require.Len(t, d.saw(), tt.want)
		})
	}
}

// A token that was known once may be replaced at any time, and again.
func TestEveryReplacementGetsItsSecondTry(t *testing.T) {
	t.Parallel()
	d := guard(t, "0")
	d.brief = true
	cfg := d.config()
	cfg.Watermark, cfg.ReplicaVersion = "100", "100"
	const replacements = 3
	asked := 0
	cfg.Token = func() (string, error) { // each is asked for once too often
		asked++
		return fmt.Sprint((asked - 1) / 2), nil
	}
	seen := 0
	end := errors.New("seen enough")
	cfg.Handler = func(_ context.Context, m client.Message) error {
		if m.Kind != client.Status {
			return nil
		}
		if seen++; seen == replacements {
			return end
		}
		d.wants(fmt.Sprint(seen))
		return nil
	}
	require.ErrorIs(t, run(t, t.Context(), cfg), end)
	require.Len(t, d.saw(), 2*replacements-1)
}

func TestServerThatIsNotTrusted(t *testing.T) {
	t.Parallel()
	d := guard(t, "secret")
	cfg := d.config()
	cfg.TLS = nil
	attempts := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.Token = func() (string, error) {
		if attempts++; attempts == 3 {
			cancel()
		}
		return "secret", nil
	}
	require.NoError(t, run(t, ctx, cfg), "it may show another certificate soon")
	require.Empty(t, d.saw(), "nobody else sees the token")
}

func TestTokenFileRefuses(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "token")
	_, err := client.TokenFile(file)()
	require.ErrorIs(t, err, os.ErrNotExist)
	for text, want := range map[string]string{"": "there is none", "# only\n\n": "there is none", "\nmy secret\n": "a blank", "sésame": "not ASCII"} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := client.TokenFile(file)()
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, file)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestTrustFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca")
	_, err := client.TrustFile(file)()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, []byte("nonsense"), 0o600))
	_, err = client.TrustFile(file)()
	require.ErrorContains(t, err, "there is no certificate in it")
	d := guard(t, "secret")
	trusted, err := client.TrustFile(d.ca)()
	require.NoError(t, err)
	require.EqualValues(t, tls.VersionTLS12, trusted.MinVersion)
}

// A file that cannot be read for a moment is not the end.
func TestFilesThatCannotBeReadAreTriedAgain(t *testing.T) {
	t.Parallel()
	d := guard(t, "secret")
	cfg := d.config()
	token, trust := 0, 0
	cfg.Token = func() (string, error) {
		if token++; token == 1 {
			return "", errors.New("no file")
		}
		return "secret", nil
	}
	cfg.TLS = func() (*tls.Config, error) {
		if trust++; trust == 1 {
			return nil, errors.New("no file")
		}
		return client.TrustFile(d.ca)()
	}
	require.Equal(t, tx("101", 2), runUntil(t, cfg, 4))
}

func TestAddressesInErrorsHaveNoQuery(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"ftp://h:1?token=secret", "ws://?token=secret", "ws://h:port?token=secret", "ws://u:secret@h?token=secret"} {
		_, err := client.New(client.Config{URL: address, Watermark: "01", Handler: (&recorder{}).handle})
		require.ErrorContains(t, err, "server address")
		require.NotContains(t, err.Error(), "secret")
	}
}
