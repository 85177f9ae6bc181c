package server_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"millrace/streamer/metrics"
	"millrace/streamer/server"
)

const (
	oneToken     = "0123456789abcdef+/=="
	anotherToken = "fedcba9876543210-._~"
)

// guarded runs a server that wants tokens.
func guarded(t testing.TB, text string, configure func(*server.Config)) (r *running, file string, log *logText) {
	t.Helper()

	file = filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	log = &logText{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	tokens, err := server.NewTokens(file, logger)
	require.NoError(t, err)
	r = serve(t, func(cfg *server.Config) {
		cfg.Tokens, cfg.Logger = tokens, logger
		cfg.RefusalDelay = time.Millisecond
		if configure != nil {
			configure(cfg)
		}
	})
	return r, file, log
}

// ask sends a request, as a websocket if it says so, and returns what the answer begins with.
func (r *running) ask(t testing.TB, target string, header http.Header, asWebsocket bool) (status int, answer http.Header, text string) {
	t.Helper()

	if asWebsocket {
		ws, response, err := websocket.DefaultDialer.Dial("ws://"+r.address+target, header)
		require.NotNil(t, response, err)
		defer response.Body.Close()
		if err == nil {
			require.NoError(t, ws.Close())
			return response.StatusCode, response.Header, ""
		}
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, response.Header, string(body)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.address+target, nil)
	require.NoError(t, err)
	request.Header = header.Clone()
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Header, string(body)
}

func bearer(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}}
}

func TestWhoHasAToken(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	r, _, log := guarded(t, "# readers\n"+oneToken+"  \r\n\n\t \n"+anotherToken, func(cfg *server.Config) {
		cfg.MetricsHandler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
		cfg.Metrics = metrics.New(registry)
	})
	const stream = changesPath + goodQuery
	const unknown, missing = "not known here", "the token is missing: send the header Authorization: Bearer TOKEN"
	tests := []struct {
		name, target string
		header       http.Header
		websocket    bool
		want         int
		text         string
	}{
		{name: "header", target: stream, header: bearer(oneToken), websocket: true, want: 101},
		{name: "the other token", target: stream, header: bearer(anotherToken), websocket: true, want: 101},
		{name: "scheme in small letters", target: stream, header: http.Header{"Authorization": {"bearer  " + oneToken}}, websocket: true, want: 101},
		{name: "parameter", target: stream + "&token=0123456789abcdef%2B%2F%3D%3D", websocket: true, want: 101},
		{name: "parameter beside another header", target: stream + "&token=" + anotherToken, header: http.Header{"Authorization": {"Basic eDp5"}}, websocket: true, want: 101},
		{name: "header beside another parameter", target: stream + "&token=old", header: bearer(oneToken), websocket: true, want: 101},
		{name: "none", target: stream, websocket: true, want: 401, text: missing},
		{name: "another scheme", target: stream, header: http.Header{"Authorization": {"Basic " + oneToken}}, websocket: true, want: 401, text: missing},
		{name: "no scheme", target: stream, header: http.Header{"Authorization": {oneToken}}, websocket: true, want: 401, text: missing},
		{name: "empty", target: stream + "&token=", header: bearer(""), websocket: true, want: 401, text: missing},
		{name: "unknown", target: stream, header: bearer("guess"), websocket: true, want: 401, text: unknown},
		{name: "unknown parameter", target: stream + "&token=guess", websocket: true, want: 401, text: unknown},
		{name: "a part", target: stream, header: bearer(oneToken[:19]), websocket: true, want: 401, text: unknown},
		{name: "more", target: stream, header: bearer(oneToken + "="), websocket: true, want: 401, text: unknown},
		{name: "both lines", target: stream, header: bearer(oneToken + "\t" + anotherToken), websocket: true, want: 401, text: unknown},
		{name: "a comment", target: stream, header: bearer("# readers"), websocket: true, want: 401, text: unknown},
		{name: "a path that there is not", target: "/x", websocket: true, want: 401, text: missing},
		{name: "a websocket on a path of health", target: "/keepalive", websocket: true, want: 401, text: missing},
		{name: "metrics without", target: "/metrics", want: 401, text: missing},
		{name: "metrics with", target: "/metrics", header: bearer(oneToken), want: 200, text: "millrace_server_refusals_total"},
		{name: "metrics with a parameter", target: "/metrics?token=" + anotherToken, want: 200, text: "millrace_server_"},
		{name: "status without", target: "/status", want: 401, text: missing},
		{name: "an unknown path without", target: "/x", want: 401, text: missing},
		{name: "an unknown path with", target: "/x?token=" + anotherToken, header: bearer(oneToken), want: 404, text: "no such path: /x"},
		{name: "health", target: "/?foo=bar", want: 200, text: "OK"},
		{name: "readiness", target: "/keepalive", want: 200, text: "OK"},
	}
	refused := 0
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, header, text := r.ask(t, tt.target, tt.header, tt.websocket)
			require.Equal(t, tt.want, status, text)
			require.Contains(t, text, tt.text)
			require.NotContains(t, text, oneToken)
			require.NotContains(t, text, anotherToken)
			if status == http.StatusUnauthorized {
				refused++
				require.Equal(t, "Bearer", header.Get("WWW-Authenticate"))
			}
		})
	}
	_, _, text := r.ask(t, "/metrics", bearer(oneToken), false)
	require.Contains(t, text, fmt.Sprintf(`millrace_server_refusals_total{reason="unauthorized"} %d`, refused))
	ws := r.dial(t, "/x?a=b&token="+anotherToken)
	expectClose(t, ws, websocket.CloseProtocolError, "Error: Invalid URL: /x?a=b&token=xxxxx")
	require.NoError(t, r.stop())
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), "one is enough for a while:\n%s", log)
	require.NotContains(t, log.String(), oneToken[:16])
	require.NotContains(t, log.String(), anotherToken[:16])
	require.NotContains(t, log.String(), "guess")
}

// Guessing takes its time, and knowing does not, however many guess.
func TestGuessingIsSlow(t *testing.T) {
	t.Parallel()

	const delay = 200 * time.Millisecond
	r, _, _ := guarded(t, oneToken, func(cfg *server.Config) { cfg.RefusalDelay = delay })
	start := time.Now()
	status, _, _ := r.ask(t, changesPath+goodQuery, nil, true)
	require.Equal(t, http.StatusUnauthorized, status)
	require.GreaterOrEqual(t, time.Since(start), delay)
}

func TestFewWaitForTheirRefusal(t *testing.T) {
	t.Parallel()

	const few = 64
	r, _, _ := guarded(t, oneToken, func(cfg *server.Config) { cfg.RefusalDelay = time.Hour })
	guess := func() net.Conn {
		c, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, "GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guess\r\n\r\n")
		require.NoError(t, err)
		return c
	}
	first := guess()
	for range few - 1 {
		guess()
	}
	const refusals = "millrace_server_refusals_total"
	require.Eventually(t, func() bool { return r.metric(t, refusals) == few }, patience, time.Millisecond)
	require.Eventually(t, func() bool { // the last one may not wait yet
		status, header, _ := r.ask(t, "/status", bearer("guess"), false)
		return status == http.StatusTooManyRequests && header.Get("Retry-After") == "1"
	}, patience, time.Millisecond)
	status, _, _ := r.ask(t, changesPath+goodQuery, bearer(oneToken), true)
	require.Equal(t, http.StatusSwitchingProtocols, status, "who has a token does not wait")
	code, _, _ := r.get(t, "/")
	require.Equal(t, http.StatusOK, code)

	// Who leaves makes room: his place is taken by the next one, who is not answered.
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool {
		c := guess()
		require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		_, err := c.Read(make([]byte, 1))
		return os.IsTimeout(err)
	}, patience, time.Millisecond)

	// A stop waits for none of them.
	start := time.Now()
	require.NoError(t, r.stop())
	require.Less(t, time.Since(start), patience)
}

func TestTokensFollowTheirFile(t *testing.T) {
	t.Parallel()

	r, file, log := guarded(t, oneToken+"\n", nil)
	known := func(token string) bool {
		status, _, _ := r.ask(t, changesPath+goodQuery, bearer(token), true)
		return status == http.StatusSwitchingProtocols
	}
	require.True(t, known(oneToken))
	require.False(t, known(anotherToken))

	// The same length, written in place.
	require.NoError(t, os.WriteFile(file, []byte(anotherToken+"\n"), 0o600))
	require.Eventually(t, func() bool { return known(anotherToken) }, patience, 50*time.Millisecond)
	require.False(t, known(oneToken))

	for i, text := range []string{"", "# nobody\n"} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Eventually(t, func() bool {
			require.True(t, known(anotherToken), "it keeps what it had")
			return strings.Count(log.String(), "changed files could not be used") == i+1
		}, patience, 50*time.Millisecond)
	}
	require.NoError(t, os.WriteFile(file, []byte(oneToken+"\n"+anotherToken+"\n"), 0o600))
	require.Eventually(t, func() bool { return known(oneToken) && known(anotherToken) }, patience, 50*time.Millisecond)
	require.NotContains(t, log.String(), oneToken)
	require.NotContains(t, log.String(), anotherToken)
}

func TestTokenFiles(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, text, want string // empty: it is good
		warned           bool
	}{
		{name: "one", text: oneToken},
		{name: "short", text: oneToken + "\nsecret", warned: true},
		{name: "empty", text: "", want: "there is none"},
		{name: "comments only", text: "# a\n\n   \n#b", want: "there is none"},
		{name: "a blank in it", text: oneToken + "\n\nmy secret token of words", want: "line 3 has a blank"},
		{name: "a blank before it", text: " " + oneToken, want: "line 1 has a blank"},
		{name: "a letter with an accent", text: "sésame-ouvre-toi-vite", want: "line 1 has a blank, or what is not ASCII"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			file := filepath.Join(t.TempDir(), "tokens")
			require.NoError(t, os.WriteFile(file, []byte(tt.text), 0o600))
			log := &logText{}
			_, err := server.NewTokens(file, slog.New(slog.NewTextHandler(log, nil)))
			require.Equal(t, tt.warned, strings.Contains(log.String(), "can be guessed"), log)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, file)
			for _, word := range []string{"words", "0123", "ouvre"} {
				require.NotContains(t, err.Error(), word)
			}
		})
	}
	_, err := server.NewTokens(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler))
	require.ErrorIs(t, err, os.ErrNotExist)
}
