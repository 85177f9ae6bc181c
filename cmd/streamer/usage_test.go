package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var commands = []string{"serve", "migrate", "tail", "snapshot", "status", "demo"}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	folder := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	empty, token := write("empty", "# nobody\n\n"), write("token", secret+secret+secret+"\n")
	spoiled, none := write("spoiled", "my "+secret+"\n"), filepath.Join(folder, "none")
	tests := []struct {
		name        string
		environment []string
		args        []string
		want        string
	}{
		{"no command", nil, nil, "expected one of"},
		{"unknown command", nil, []string{"dance"}, "dance"},
		{"unknown flag", nil, []string{"demo", "--fast"}, "--fast"},
		{"log level", nil, []string{"demo", "--log-level", "loud"}, `"loud" is none of debug, info, warn and error`},
		{"duration", nil, []string{"demo", "--for", "soon"}, "soon"},
		{"negative duration", nil, []string{"demo", "--for=-1s"}, "negative"},
		{"listen address", nil, []string{"demo", "--listen", "4848"}, "--listen"},
		{"no upstream", nil, []string{"serve"}, "--upstream-db"},
		{"negative limit as a word of its own", nil, []string{"serve", "--upstream-db", "host=h", "--tail-max-bytes", "-1"}, "--tail-max-bytes: must not be negative"},
		{"negative time as a word of its own", nil, []string{"serve", "--upstream-db", "host=h", "--slot-wait", "-5s"}, "--slot-wait: must not be negative"},
		{"negative shard as a word of its own", nil, []string{"migrate", "--change-db", "host=h", "--shard", "-1"}, "--shard: -1 is negative"},
		{"negative limit of messages", nil, []string{"tail", "--url", "ws://h:1", "--max-message-bytes", "-1"}, "--max-message-bytes: -1 is not from 1024"},
		{"tiny limit of messages", nil, []string{"tail", "--url", "ws://h:1", "--max-message-bytes", "1023"}, "--max-message-bytes: 1023 is not from 1024 to 1073741824"},
		{"listen without a colon", nil, []string{"serve", "--upstream-db", "host=h", "--listen", "xyz"}, `--listen: "xyz" is no address; want HOST:PORT`},
		{"listen on no port", nil, []string{"serve", "--upstream-db", "host=h", "--listen", "h:"}, `--listen: "h:" is no address`},
		{"listen on a port that cannot be", nil, []string{"serve", "--upstream-db", "host=h", "--listen", ":99999"}, `--listen: "99999" is no port; want a number from 0 to 65535`},
		{"listen on a word", nil, []string{"demo", "--listen", ":door"}, `--listen: "door" is no port`},
		{"advertise a port alone", nil, []string{"serve", "--upstream-db", "host=h", "--advertise", ":4848"}, "--advertise: nobody can connect"},
		{"advertise any port", nil, []string{"serve", "--upstream-db", "host=h", "--advertise", "h:0"}, "--advertise: nobody can connect"},
		{"URL with a path", nil, []string{"tail", "--url", "ws://h:1/foo"}, `--url: "/foo" is not wanted behind the port`},
		{"URL with a query", nil, []string{"tail", "--url", "h:1?a=b"}, `--url: "?a=b" is not wanted`},
		{"URL with a token", nil, []string{"tail", "--url", "ws://h:1/?token=" + secret}, "--url: a token is not wanted there"},
		{"advertise another scheme", nil, []string{"serve", "--upstream-db", "host=h", "--advertise", "http://h:1"}, "begins with neither ws:// nor wss://"},
		{"advertise a scheme alone", nil, []string{"serve", "--upstream-db", "host=h", "--advertise", "wss://h"}, "--advertise: "},
		{"certificate without key", nil, []string{"serve", "--upstream-db", "host=h", "--tls-cert", token}, "--tls-cert: needs --tls-key"},
		{"key without certificate", []string{"STREAMER_TLS_KEY=" + token}, []string{"serve", "--upstream-db", "host=h"}, "--tls-key: needs --tls-cert"},
		{"certificate that is none", nil, []string{"serve", "--upstream-db", "host=h", "--tls-cert", token, "--tls-key", token}, "--tls-cert, --tls-key: read the certificate in " + token},
		{"no file of tokens", nil, []string{"serve", "--upstream-db", "host=h", "--auth-token-file", none}, "--auth-token-file: read the tokens: open " + none},
		{"file of tokens without any", nil, []string{"serve", "--upstream-db", "host=h", "--auth-token-file", empty}, "--auth-token-file: read the tokens in " + empty + ": there is none"},
		{"token with a blank", nil, []string{"serve", "--upstream-db", "host=h", "--auth-token-file", spoiled}, "line 1 has a blank"},
		{"empty name of the file of tokens", []string{"STREAMER_AUTH_TOKEN_FILE="}, []string{"serve", "--upstream-db", "host=h"}, "--auth-token-file: "},
		{"base of two segments", nil, []string{"serve", "--upstream-db", "host=h", "--path-base", "a/b"}, `--path-base: "a/b" has more than one segment`},
		{"no file with a token to show", nil, []string{"tail", "--url", "wss://h:1", "--auth-token-file", none}, "--auth-token-file: read the token: open " + none},
		{"file without a token to show", nil, []string{"tail", "--url", "wss://h:1", "--auth-token-file", empty}, "--auth-token-file: read the token in " + empty + ": there is none"},
		{"nobody to trust", nil, []string{"tail", "--url", "wss://h:1", "--tls-ca", token}, "--tls-ca: read whom to trust in " + token},
		{"trust without TLS", nil, []string{"tail", "--url", "h:1", "--tls-ca", token}, "--tls-ca: the address of --url does not begin with wss://"},
		{"negative limit", nil, []string{"serve", "--upstream-db", "host=h", "--tail-max-bytes=-1"}, "--tail-max-bytes"},
		{"no such protocol", nil, []string{"serve", "--upstream-db", "host=h", "--min-protocol=7"}, "--min-protocol"},
		{"negative shard", nil, []string{"serve", "--upstream-db", "host=h", "--shard=-1"}, "--shard"},
		{"empty upstream", nil, []string{"serve", "--upstream-db", ""}, "--upstream-db: is empty"},
		{"blank upstream", nil, []string{"serve", "--upstream-db", " "}, "--upstream-db: is empty"},
		{"empty variable of the upstream", []string{"STREAMER_UPSTREAM_DB="}, []string{"serve"}, "--upstream-db: is empty"},
		{"empty change database", nil, []string{"migrate", "--change-db="}, "--change-db: is empty"},
		{"empty variable of the change database", []string{"STREAMER_CHANGE_DB="}, []string{"status"}, "--change-db: is empty"},
		{"app id with capitals", nil, []string{"serve", "--upstream-db", "host=h", "--app-id", "Shop"}, "--app-id: "},
		{"app id for slots of 64 characters", nil, []string{"serve", "--upstream-db", "host=h", "--app-id", strings.Repeat("a", 42)}, "--app-id: "},
		{"schema of the server", nil, []string{"migrate", "--change-db", "host=h", "--schema", "pg_mine"}, `--schema: schema "pg_mine"`},
		{"schema with a quote", nil, []string{"tail", "--change-db", "host=h", "--schema", `a"b`}, "--schema: "},
		{"no change database", nil, []string{"migrate"}, "--change-db"},
		{"status without database", nil, []string{"status"}, "--change-db"},
		{"tail of nothing", nil, []string{"tail"}, "--url or --change-db"},
		{"tail of a wrong URL", nil, []string{"tail", "--url", "ftp://h:1"}, "want ws://"},
		{"tail from an LSN", nil, []string{"tail", "--url", "ws://h:1", "--from", "0/16B3748"}, "neither head nor first"},
		{"tail of a snapshot from elsewhere", nil, []string{"tail", "--url", "ws://h:1", "--snapshot", "d", "--from", "first"}, "--from: is not wanted with --snapshot"},
		{"tail of a snapshot of a version", nil, []string{"tail", "--url", "ws://h:1", "--snapshot", "d", "--replica-version", "01"}, "--replica-version: is not wanted with --snapshot"},
		{"snapshot to nowhere", nil, []string{"snapshot", "--upstream-db", "host=h"}, "--out"},
		{"snapshot of nothing", nil, []string{"snapshot", "--out", "d"}, "--upstream-db"},
		{"snapshot without jobs", nil, []string{"snapshot", "--upstream-db", "host=h", "--out", "d", "--jobs", "0"}, "--jobs: 0 is not at least 1"},
		{"snapshot with negative jobs", nil, []string{"snapshot", "--upstream-db", "host=h", "--out", "d", "--jobs", "-1"}, "--jobs: -1 is not at least 1"},
		{"snapshot packed otherwise", nil, []string{"snapshot", "--upstream-db", "host=h", "--out", "d", "--compress", "lz4"}, "--compress must be one of"},
		{"snapshot with an empty change database", []string{"STREAMER_CHANGE_DB= "}, []string{"snapshot", "--upstream-db", "host=h", "--out", "d"}, "--change-db: is empty"},
		{"variable", []string{"STREAMER_FOR=soon"}, []string{"demo"}, "soon"},
		{"URL with a wrong port", nil, []string{"status", "--change-db", "postgres://u:" + secret + "@h:port/d"}, "--change-db"},
		{"password with a slash", nil, []string{"status", "--change-db", "postgres://u:" + secret + "/x@h/d"}, "--change-db"},
		{"wrong keyword form", nil, []string{"status", "--change-db", "host=h password='" + secret}, "--change-db"},
		{"password in a variable", []string{"STREAMER_CHANGE_DB=postgres://u:" + secret + "@h:port/d"}, []string{"migrate"}, "--change-db"},
		{"password of the upstream", nil, []string{"serve", "--upstream-db", "postgres://u:" + secret + "@h:port/d"}, "--upstream-db"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := invoke(t, tt.environment, tt.args...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, tt.want)
			require.NotContains(t, stderr, secret)
		})
	}
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"debug", "info", "WARN", "error"} {
		code, _, stderr := invoke(t, nil, "tail", "--log-level", level, "--for", "1ms", "--url", "ws://127.0.0.1:1/", "--replica-version", "01", "--from", "01")
		require.Equal(t, 0, code, stderr)
	}
}

// A number that begins with a minus is a value, a flag behind a flag is not.
func TestJoinNegative(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want []string }{
		{[]string{"serve", "--shard", "-1", "--app-id", "a"}, []string{"serve", "--shard=-1", "--app-id", "a"}},
		{[]string{"--for", "-.5s"}, []string{"--for=-.5s"}},
		{[]string{"--for", "--help"}, []string{"--for", "--help"}},
		{[]string{"--for=1s", "-2"}, []string{"--for=1s", "-2"}},
		{[]string{"-1"}, []string{"-1"}},
		{[]string{"--for", "-h"}, []string{"--for", "-h"}},
	} {
		require.Equal(t, tt.want, joinNegative(tt.args))
	}
}

func TestHelpNamesWhereATailMayStart(t *testing.T) {
	t.Parallel()
	_, stdout, _ := invoke(t, nil, "tail", "--help")
	text := strings.Join(strings.Fields(stdout), " ")
	require.Contains(t, text, "or first: everything the log holds; or head: only what comes from now on")
}

func TestFlagWinsOverVariable(t *testing.T) {
	t.Parallel()
	code, _, stderr := invoke(t, []string{"STREAMER_FOR=1h", "STREAMER_URL=ftp://wrong"},
		"tail", "--for", "1ms", "--url", "ws://127.0.0.1:1", "--replica-version", "01", "--from", "01")
	require.Equal(t, 0, code, stderr)
}

func TestHelpNamesEveryDefaultAndVariable(t *testing.T) {
	t.Parallel()
	flag := regexp.MustCompile(`(?m)^ {2}(?:-\w, | {4})--([a-z-]+)(=\S+)?`)
	for _, name := range commands {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := invoke(t, nil, name, "--help")
			require.Equal(t, 0, code)
			require.Empty(t, stderr)
			found := flag.FindAllStringSubmatchIndex(stdout, -1)
			require.NotEmpty(t, found)
			usage, _, _ := strings.Cut(stdout, "\n") // has what is required
			for i, at := range found {
				end := len(stdout)
				if i+1 < len(found) {
					end = found[i+1][0]
				}
				word := stdout[at[2]:at[3]]
				if word == "help" || word == "version" {
					continue
				}
				text := strings.Join(strings.Fields(stdout[at[0]:end]), " ")
				require.Contains(t, text, "$STREAMER_"+strings.ToUpper(strings.ReplaceAll(word, "-", "_")))
				if at[4] >= 0 && !strings.Contains(usage, " --"+word+"=") {
					require.Contains(t, text, "Default: ", "flag %s", word)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	// A variable of that name is common in containers and means something else.
	code, stdout, _ := invoke(t, []string{"STREAMER_VERSION=1.2.3"}, "--version")
	require.Equal(t, 0, code)
	require.Contains(t, stdout, "streamer ")
	code, _, stderr := invoke(t, []string{"STREAMER_VERSION=1.2.3"}, "tail")
	require.Equal(t, exitUsage, code, stderr)
}
