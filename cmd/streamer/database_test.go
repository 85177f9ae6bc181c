package main

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	code, stdout, stderr := invoke(t, nil, "migrate", "--change-db", database.URL)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, `schema "cdc" of database "`+database.Name+`" was created at version `)

	code, stdout, stderr = invoke(t, []string{"STREAMER_CHANGE_DB=" + database.URL}, "migrate")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "is up to date at version ")

	for schema, args := range map[string][]string{
		"shop_2/cdc": {"--app-id", "shop", "--shard", "2"},
		"my_log":     {"--app-id", "shop", "--schema", "my_log"},
	} {
		code, stdout, stderr = invoke(t, nil, append([]string{"migrate", "--change-db", database.URL}, args...)...)
		require.Equal(t, 0, code, stderr)
		require.Contains(t, stdout, `schema "`+schema+`"`)
		code, _, stderr = invoke(t, nil, append([]string{"status", "--change-db", database.URL}, args...)...)
		require.Equal(t, 0, code, stderr)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	code, stdout, stderr := invoke(t, nil, "status", "--change-db", database.URL)
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^owner +nobody$`, stdout)
	require.Contains(t, stdout, "not initialised")

	_, err := database.Conn(t).Exec(t.Context(), `select ensure_replication_config('100', array['p', 'q'], '101')`)
	require.NoError(t, err)
	code, stdout, stderr = invoke(t, nil, "status", "--change-db", database.URL)
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^replica version +100$`, stdout)
	require.Regexp(t, `(?m)^publications +p, q$`, stdout)
	require.Regexp(t, `(?m)^head +101$`, stdout)

	code, stdout, stderr = invoke(t, nil, "status", "--change-db", database.URL, "--json")
	require.Equal(t, 0, code, stderr)
	var row map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &row))
	require.Equal(t, "101", row["head"])
	require.Equal(t, "100", row["replica_version"])
	require.Equal(t, false, row["reset_required"])
}

func TestWrongDatabases(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-w0rd"
	server, err := pgtest.Start(t.Context(), pgtest.Options{TCP: true, Password: "right"})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop()) }()
	good := server.TCPURL("postgres")
	wrong := strings.Replace(good, ":right@", ":"+secret+"@", 1)
	missing := strings.Replace(good, "/postgres?", "/nowhere?", 1)
	refused := "postgres://postgres:" + secret + "@127.0.0.1:1/postgres?sslmode=disable"

	tests := []struct {
		name, url, want string
	}{
		{"wrong password", wrong, `access-denied: .* refused user "postgres" .*password authentication failed.*; check user and password`},
		{"wrong role", strings.Replace(good, "postgres:right@", "nobody:"+secret+"@", 1), `access-denied: .* refused user "nobody" .*; check user and password`},
		{"no such database", missing, `database-missing: .* has no database "nowhere" .*; check the database`},
		{"nobody listens", refused, `database-unreachable: no connection to .*connection refused.*; check host, port and sslmode`},
		{"no such host", "postgres://postgres:" + secret + "@nobody.invalid/postgres", `database-unreachable: no connection to .*nobody.invalid.*; check host, port and sslmode`},
	}
	uses := map[string][]string{
		"migrate":                 {"migrate", "--change-db"},
		"status":                  {"status", "--change-db"},
		"serve":                   {"serve", "--listen", "127.0.0.1:0", "--upstream-db"},
		"serve without migration": {"serve", "--no-migrate", "--listen", "127.0.0.1:0", "--upstream-db"},
		"serve into another one":  {"serve", "--listen", "127.0.0.1:0", "--upstream-db", good, "--change-db"},
		"serve from another one":  {"serve", "--no-migrate", "--listen", "127.0.0.1:0", "--change-db", good, "--upstream-db"},
		"tail":                    {"tail", "--for", "500ms", "--change-db"},
	}
	t.Run("group", func(t *testing.T) {
		for name, args := range uses {
			for _, tt := range tests {
				t.Run(name+" "+tt.name, func(t *testing.T) {
					t.Parallel()
					code, stdout, stderr := invoke(t, nil, append(args[:len(args):len(args)], tt.url)...)
					if name == "tail" && strings.Contains(tt.want, "unreachable") {
						require.Equal(t, 0, code, stderr) // it waits for the database until its time is over
					} else {
						require.Equal(t, exitFailure, code, stderr)
					}
					require.Empty(t, stdout)
					text := strings.ReplaceAll(stderr, `\"`, `"`)
					require.Regexp(t, tt.want, text)
					switch name {
					case "serve":
						require.Contains(t, text, "change database (the upstream)")
					case "serve without migration", "serve from another one":
						require.Contains(t, text, "upstream")
						require.NotContains(t, text, "change database")
					default:
						require.Contains(t, text, "change database")
					}
					require.NotContains(t, stderr, secret)
				})
			}
			if name == "status" || name == "tail" {
				t.Run(name+" no such schema", func(t *testing.T) {
					t.Parallel()
					code, _, stderr := invoke(t, nil, append(args[:len(args):len(args)], good)...)
					require.Equal(t, exitFailure, code)
					require.Contains(t, stderr, "log-missing")
					require.Contains(t, stderr, "run streamer migrate")
				})
			}
		}
		t.Run("serve no schema", func(t *testing.T) {
			t.Parallel()
			code, _, stderr := invoke(t, nil, "serve", "--no-migrate", "--listen", "127.0.0.1:0", "--upstream-db", good)
			require.Equal(t, exitFailure, code)
			require.Contains(t, stderr, "log-missing")
			require.Contains(t, stderr, "run streamer migrate")
			require.NotContains(t, stderr, "right@")
		})
	})
}

// A role that is let in, but may not make the schema, or not look at it.
func TestRolesWithoutRights(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), pgtest.Options{TCP: true, Password: "right"})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop()) }()
	good := server.TCPURL("postgres")
	conn, err := pgx.Connect(t.Context(), good)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `create role guest login password 'right'`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	guest := strings.Replace(good, "postgres:right@", "guest:right@", 1)

	want := `permission-missing: .*permission denied.*; let role "guest" create schemas`
	for _, args := range [][]string{
		{"migrate", "--change-db", guest},
		{"serve", "--listen", "127.0.0.1:0", "--upstream-db", guest},
	} {
		code, _, stderr := invoke(t, nil, args...)
		require.Equal(t, exitFailure, code)
		require.Regexp(t, want, strings.ReplaceAll(stderr, `\"`, `"`))
	}

	code, _, stderr := invoke(t, nil, "migrate", "--change-db", good)
	require.Equal(t, 0, code, stderr)
	code, _, stderr = invoke(t, nil, "migrate", "--change-db", guest)
	require.Equal(t, exitFailure, code)
	require.Regexp(t, `permission-missing: .*only the role that owns the schema may migrate`, stderr)
	for _, args := range [][]string{
		{"status", "--change-db", guest},
		{"tail", "--change-db", guest, "--from", "first"},
	} {
		code, _, stderr := invoke(t, nil, args...)
		require.Equal(t, exitFailure, code)
		require.Contains(t, strings.ReplaceAll(stderr, `\"`, `"`), `log-missing: schema "cdc" of the change database has no change log that this user may see`)
	}
}

// addressOf waits until a serving streamer has said where.
func addressOf(t *testing.T, p *program) string {
	t.Helper()
	const mark = `"msg":"serving subscribers","address":"`
	text := p.stderr.waitFor(t, "the address", func(text string) bool { return strings.Contains(text, mark) })
	_, rest, _ := strings.Cut(text, mark)
	address, _, _ := strings.Cut(rest, `"`)
	return address
}

func TestServeAndTail(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	conn := database.Conn(t)
	exec := func(query string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), query)
		require.NoError(t, err)
	}
	exec(`create table public.item (id int primary key, name text)`)

	serve := func() *program {
		return command(t, nil, "serve", "--upstream-db", database.URL, "--listen", "127.0.0.1:0", "--task-id", "test").start()
	}
	server := serve()
	address := addressOf(t, server)

	byURL := command(t, nil, "tail", "--url", "ws://"+address, "--from", "first").start()
	state := t.TempDir() + "/state"
	byDatabase := command(t, nil, "tail", "--change-db", database.URL, "--from", "first", "--state", state).start()
	exec(`insert into public.item select n, 'item ' || n from generate_series(1, 5) as n`)
	exec(`update public.item set name = 'five' where id = 5`)
	want := byURL.stdout.waitLines(t, 7+3)
	require.Equal(t, want, byDatabase.stdout.waitLines(t, 7+3))
	require.Equal(t, []string{"begin", "data", "data", "data", "data", "data", "commit", "begin", "data", "commit"}, messages(t, want))

	code, stdout, stderr := invoke(t, nil, "status", "--change-db", database.URL)
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^owner +test/`, stdout)
	require.Regexp(t, `(?m)^address +`+address+`$`, stdout)

	// A port that is taken is no secret.
	code, _, stderr = invoke(t, nil, "serve", "--upstream-db", database.URL, "--listen", address)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "address already in use")
	require.Contains(t, stderr, address)

	// The next process goes on, at another port; who asks the database finds it.
	server.signal(syscall.SIGTERM)
	require.Equal(t, 0, server.wait(), server.stderr.String())
	require.Empty(t, server.stdout.String())
	exec(`delete from public.item where id = 1`)
	server = serve()
	addressOf(t, server)
	more := byDatabase.stdout.waitLines(t, 7+3+3)
	require.Equal(t, []string{"begin", "data", "commit"}, messages(t, more)[10:])
	require.Equal(t, want, more[:len(want)])

	for _, p := range []*program{byURL, byDatabase, server} {
		p.signal(syscall.SIGINT)
		require.Equal(t, 0, p.wait(), p.stderr.String())
	}
	require.NotEmpty(t, readState(t, state).Watermark)
}

// One signal is enough where nothing answers.
func TestStopWhileTheDatabaseIsSilent(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	accepted := make(chan net.Conn, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	port := listener.Addr().(*net.TCPAddr).Port
	p := command(t, nil, "migrate", "--change-db", fmt.Sprintf("host=127.0.0.1 port=%d user=x dbname=x sslmode=disable", port)).start()
	conn := <-accepted
	defer conn.Close()
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitFailure, p.wait())
	require.NoError(t, listener.Close())
	<-done
}
