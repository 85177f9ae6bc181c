package streamer_test

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"millrace/streamer"
	"millrace/streamer/client"
	"millrace/streamer/wire"
)

// doors makes a certificate with its key, and a file with a token.
func doors(t *testing.T) (certificate, key, tokens string) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	pair := server.TLS.Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	folder := t.TempDir()
	write := func(name string, text []byte) string {
		name = filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(name, text, 0o600))
		return name
	}
	return write("tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		write("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})),
		write("tokens", []byte("0123456789abcdef\n"))
}

// Whoever listens beyond this machine is told which door is open.
func TestOpenDoorsAreWarnedOf(t *testing.T) {
	t.Parallel()
	certificate, key, tokens := doors(t)
	const noTLS, noToken = "has no TLS", "no token: whoever reaches the port"
	tests := []struct {
		name   string
		change func(*streamer.Config)
		want   []string
	}{
		{name: "both are open", change: func(*streamer.Config) {}, want: []string{noTLS, noToken}},
		{
			name:   "no token",
			change: func(cfg *streamer.Config) { cfg.TLSCert, cfg.TLSKey = certificate, key },
			want:   []string{noToken},
		},
		{name: "no TLS", change: func(cfg *streamer.Config) { cfg.AuthTokenFile = tokens }, want: []string{noTLS}},
		{
			name:   "none is open",
			change: func(cfg *streamer.Config) { cfg.TLSCert, cfg.TLSKey, cfg.AuthTokenFile = certificate, key, tokens },
		},
		{name: "nobody else comes there", change: func(cfg *streamer.Config) { cfg.Listen = "127.0.0.1:0" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := streamer.Config{UpstreamDB: "host=127.0.0.1 port=1 user=x dbname=x sslmode=disable", TaskID: "task", Listen: ":0"}
			tt.change(&cfg)
			r := launch(t, cfg)
			require.Error(t, r.end(t, endurance), "there is no database")
			require.Equal(t, len(tt.want) > 0, strings.Contains(r.log.String(), "with a door open"), r.log)
			for _, text := range []string{noTLS, noToken} {
				wanted := false
				for _, w := range tt.want {
					wanted = wanted || w == text
				}
				require.Equal(t, wanted, strings.Contains(r.log.String(), text), r.log)
			}
		})
	}
}

func TestDoorsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	certificate, _, tokens := doors(t)
	for want, cfg := range map[string]streamer.Config{
		"read the certificate in ": {TLSCert: certificate, TLSKey: tokens},
		"read the tokens: ":        {AuthTokenFile: tokens + ".not"},
	} {
		cfg.UpstreamDB, cfg.TaskID, cfg.Listen = "host=127.0.0.1 port=1 user=x dbname=x sslmode=disable", "task", "127.0.0.1:0"
		require.ErrorContains(t, launch(t, cfg).end(t, endurance), want)
	}
}

// The mode of a subscriber is a word of its own about itself: it starts nothing, and it
// leaves no trace, whatever it acks and however it is refused.
func TestBackupModeChangesNothing(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	at := client.Position{ReplicaVersion: version, Watermark: version}
	c := items()
	f := follow(t, c, "first", fixed(r.address), at, nil)
	put(t, c, conn, 1, 2)
	put(t, c, conn, 3)
	arrive(t, c, f)
	f.stop()
	becomes(t, endurance, f.position().Watermark, conn, `select head from cdc.status`)

	// All of the log but how far the stream has come, which moves by itself.
	state := func() string {
		return tell[string](t, conn, `
			select string_agg(c.relname || ' ' || query_to_xml(format('select * from cdc.%I', c.relname), true, false, '')::text, e'\n' order by c.relname)
			from pg_class as c
			where c.relnamespace = 'cdc'::regnamespace and c.relkind = 'r' and c.relname <> 'progress'`)
	}
	slots := `select string_agg(slot_name, ' ' order by slot_name) from pg_replication_slots where database = current_database()`
	before, slotsBefore := state(), tell[string](t, conn, slots)
	require.Contains(t, before, r.address)

	backup := followAs(t, c, "backup", fixed(r.address), at, nil, func(cfg *client.Config) { cfg.Mode = "backup" })
	arrive(t, c, backup)
	backup.stop()
	backup = followAs(t, c, "backup that goes on", fixed(r.address), backup.position(), nil, func(cfg *client.Config) { cfg.Mode = "backup" })
	backup.stop()
	for _, query := range []string{
		"replicaVersion=0abc&watermark=" + version,                    // another history
		"replicaVersion=" + version + "&watermark=00",                 // before the log
		"replicaVersion=" + version + "&watermark=zzzzzzzz",           // behind it
		"replicaVersion=" + version + "&watermark=" + version + ".01", // in it, at no commit
	} {
		ws, response, err := websocket.DefaultDialer.DialContext(t.Context(),
			"ws://"+r.address+"/replication/v6/changes?id=b&taskID=b&mode=backup&initial=true&"+query, nil)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		says(t, ws)
		require.NoError(t, ws.WriteMessage(websocket.TextMessage, wire.AppendAck(nil, 1)))
		require.NoError(t, ws.Close())
	}
	require.Equal(t, before, state())
	require.Equal(t, slotsBefore, tell[string](t, conn, slots))

	// It counts where it must, and nowhere else.
	response, err := http.Get("http://" + r.address + "/metrics") //nolint:noctx // a test's
	require.NoError(t, err)
	defer response.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	found := false
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		found = found || strings.HasPrefix(lines.Text(), `millrace_server_subscribers{mode="backup"}`)
	}
	require.True(t, found)
	r.stop(t)
}
