package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/client"
)

func TestStartPositionOfTheServer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		from, replicaVersion     string
		wantWatermark, wantAsked string
	}{
		{client.Head, "", "140", "asked"},
		{client.First, "", "120", "asked"},
		{client.First, "090", "120", "asked"},
		{"130", "", "130", "asked"},
		{"130", "090", "130", ""},
	}
	for _, tt := range tests {
		t.Run(tt.from+" of "+tt.replicaVersion, func(t *testing.T) {
			t.Parallel()
			const notYet = 2
			var asked int
			s := serve(t, func(n int, p *peer) {
				if p.r.URL.Path == "/status" {
					asked++
					switch asked {
					case 1:
						http.Error(p.w, "not ready", http.StatusServiceUnavailable)
					case notYet:
						fmt.Fprint(p.w, `{"schema":"cdc","replica_version":null,"minimum":null,"head":null}`)
					default:
						// The head moves on; the start that was found first must not.
						fmt.Fprintf(p.w, `{"schema":"cdc","replica_version":"100","minimum":"120","head":"14%d"}`, asked-notYet-1)
					}
					return
				}
				p.accept()
				if from := p.r.URL.Query().Get("watermark"); n%2 == 1 && from != "150" {
					return
				}
				p.send(tx("150", 0)...)
				_, _ = p.waitEnd()
			})
			cfg := config(s, nil)
			cfg.Watermark, cfg.ReplicaVersion = tt.from, tt.replicaVersion
			var resolved []client.Position
			cfg.Resolved = func(_ context.Context, p client.Position) error {
				resolved = append(resolved, p)
				return nil
			}
			require.Len(t, runUntil(t, cfg, 2), 2)
			for _, u := range s.requests {
				if u.Path == "/status" {
					continue
				}
				require.Equal(t, tt.wantWatermark, u.Query().Get("watermark"))
				want := tt.replicaVersion
				if want == "" {
					want = "100"
				}
				require.Equal(t, want, u.Query().Get("replicaVersion"))
			}
			require.Equal(t, tt.wantAsked == "asked", asked > 0)
			require.Len(t, resolved, 1)
			require.Equal(t, tt.wantWatermark, resolved[0].Watermark)
		})
	}
}

func TestServerWithoutStatus(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ int, p *peer) { http.NotFound(p.w, p.r) })
	cfg := config(s, (&recorder{}).handle)
	cfg.Watermark = client.Head
	require.ErrorIs(t, run(t, t.Context(), cfg), client.ErrNoStatus)
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	want := tx("101", 1)
	s := serve(t, func(_ int, p *peer) {
		p.accept()
		p.send(want...)
		_, _ = p.waitEnd()
	})
	database := pgtest.New(t)
	conn := database.Conn(t)
	exec := func(query string, args ...any) {
		t.Helper()
		_, err := conn.Exec(t.Context(), query, args...)
		require.NoError(t, err)
	}
	parsed, err := pgx.ParseConfig(database.URL)
	require.NoError(t, err)
	discover := client.Discovery(parsed, pgtest.Schema)

	_, err = discover(t.Context())
	require.ErrorIs(t, err, client.ErrNoStreamer)

	exec(`select ensure_replication_config('100', array['p'], '100')`)
	_, err = discover(t.Context())
	require.ErrorIs(t, err, client.ErrNoStreamer)
	require.NotErrorIs(t, err, client.ErrPermanent)

	address, err := url.Parse(s.url)
	require.NoError(t, err)
	id := "task/1"
	exec(`select register_streamer('task', $1, $2)`, id, address.Host)
	exec(`select assume_ownership($1, $2, '100', null)`, id, address.Host)
	got, err := discover(t.Context())
	require.NoError(t, err)
	require.Equal(t, address.Host, got)

	cfg := config(s, nil)
	cfg.URL, cfg.Discover = "", discover
	require.Equal(t, want, runUntil(t, cfg, len(want)))

	status, err := client.ReadStatus(t.Context(), parsed, pgtest.Schema)
	require.NoError(t, err)
	require.Equal(t, id, status.Owner)
	require.Equal(t, "100", status.Head)
}

func TestDiscoveryWithoutALog(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	parsed, err := pgx.ParseConfig(database.URL)
	require.NoError(t, err)

	_, err = client.Discovery(parsed, "cdc")(t.Context())
	require.ErrorIs(t, err, client.ErrPermanent)
	require.ErrorContains(t, err, "streamer migrate")
	_, err = client.ReadStatus(t.Context(), parsed, "cdc")
	require.ErrorIs(t, err, client.ErrPermanent)
	require.ErrorContains(t, err, "streamer migrate")

	missing, err := pgx.ParseConfig(strings.Replace(database.URL, database.Name, "nowhere", 1))
	require.NoError(t, err)
	_, err = client.Discovery(missing, "cdc")(t.Context())
	require.ErrorIs(t, err, client.ErrPermanent)

	nobody := parsed.Copy()
	nobody.Host = "/nowhere"
	nobody.Fallbacks = nil
	nobody.ConnectTimeout = time.Second
	_, err = client.Discovery(nobody, "cdc")(t.Context())
	require.Error(t, err)
	require.NotErrorIs(t, err, client.ErrPermanent)
}

func TestParseStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": client.Head, "head": client.Head, "first": client.First, "4l1nao": "4l1nao", "4l1nao.01": "4l1nao.01"} {
		got, err := client.ParseStart(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"0/16B3748", "last", "4L1NAO", "4l1na", "\"", "4l1nao."} {
		_, err := client.ParseStart(text)
		require.ErrorContains(t, err, "neither head nor first")
	}
}

func TestPositionCheck(t *testing.T) {
	t.Parallel()
	require.NoError(t, client.Position{ReplicaVersion: "4l1nao", Watermark: "4l1nao.01"}.Check())
	require.ErrorContains(t, client.Position{Watermark: "4l1nao"}.Check(), "replica version: ")
	for _, text := range []string{"", client.Head, client.First, "0/16B3748", "4L1NAO"} {
		require.ErrorContains(t, client.Position{ReplicaVersion: "4l1nao", Watermark: text}.Check(), "not a watermark")
	}
}
