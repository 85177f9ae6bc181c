package streamer

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{name: "nothing", want: "UpstreamDB is required"},
		{name: "negative shard", cfg: Config{UpstreamDB: "x", Shard: -1}, want: "shard -1"},
		{name: "app id of capitals", cfg: Config{UpstreamDB: "x", AppID: "Shop"}, want: `app id "Shop": The App ID may only`},
		{name: "app id for slots of 64 characters", cfg: Config{UpstreamDB: "x", AppID: strings.Repeat("a", 42)}, want: "too long by 1 characters"},
		{name: "schema of the server", cfg: Config{UpstreamDB: "x", Schema: "pg_mine"}, want: `schema "pg_mine"`},
		{name: "schema with a quote", cfg: Config{UpstreamDB: "x", Schema: `a"b`}, want: "the name must have 1 to 63"},
		{name: "negative budget", cfg: Config{UpstreamDB: "x", TailMaxBytes: -1}, want: "limits"},
		{name: "negative delay", cfg: Config{UpstreamDB: "x", StartupDelay: -time.Second}, want: "times"},
		{name: "protocol of the future", cfg: Config{UpstreamDB: "x", MinProtocol: 7}, want: "protocol version 7"},
		{name: "certificate without key", cfg: Config{UpstreamDB: "x", TLSCert: "a"}, want: "TLSCert and TLSKey go together"},
		{name: "key without certificate", cfg: Config{UpstreamDB: "x", TLSKey: "a"}, want: "TLSCert and TLSKey go together"},
		{name: "base of two segments", cfg: Config{UpstreamDB: "x", PathBase: "a/b"}, want: `path base: "a/b"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, tt.cfg.setDefaults(), tt.want)
		})
	}

	cfg := Config{UpstreamDB: "postgres://u:secret@h/db"}
	require.NoError(t, cfg.setDefaults())
	require.Equal(t, cfg.UpstreamDB, cfg.ChangeDB)
	require.Equal(t, "cdc", cfg.Schema)
	require.NotEmpty(t, cfg.TaskID)
}

func TestChangeDBKeepsPasswordsToItself(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"postgres://user:secret@host:port/db",
		"host=h port=x password=secret",
		"host=h port=x password='secret word'",
	} {
		cfg := Config{UpstreamDB: text}
		require.NoError(t, cfg.setDefaults())
		_, err := cfg.changeDB()
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "secret")
	}

	cfg := Config{UpstreamDB: "host=h dbname=d", Schema: "zero_0/cdc"}
	require.NoError(t, cfg.setDefaults())
	conn, err := cfg.changeDB()
	require.NoError(t, err)
	require.Equal(t, `"zero_0/cdc"`, conn.RuntimeParams["search_path"])
	require.Equal(t, "zero-change-streamer", conn.RuntimeParams["application_name"])
}
