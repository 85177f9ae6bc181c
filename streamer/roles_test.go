package streamer_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/client"
)

// TestRoles runs the program with the roles of docs/sql-api.md, none of which is a superuser.
func TestRoles(t *testing.T) {
	t.Parallel()
	program := builtCommand(t)
	tests := []struct {
		name     string
		upstream string // the role that replicates
		insert   bool   // the streamer may write the log itself
		flags    []string
	}{
		{name: "one role for upstream and log", upstream: "streamer"},
		{name: "a role for each, and nothing is migrated", upstream: "upstream", flags: []string{"--no-migrate"}},
		{name: "a streamer that may insert", upstream: "upstream", insert: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t)
			admin := db.Conn(t)
			role := func(purpose, options string) (name, address string) {
				name = purpose + "_" + db.Name // roles belong to the server
				do(t, admin, `create role `+name+` `+options)
				t.Cleanup(func() { discard(t, admin, name) })
				return name, strings.Replace(db.URL, "postgres@", name+"@", 1)
			}
			owner, _ := role("owner", "nologin")
			_, deployerURL := role("deployer", "login noinherit in role "+owner)
			streamer, streamerURL := role("streamer", "login")
			reader, readerURL := role("reader", "login")
			_, upstreamURL := role("upstream", "login replication")
			if tt.upstream == "streamer" {
				upstreamURL = streamerURL
				do(t, admin, `alter role `+streamer+` replication`)
			}
			do(t, admin, `create table public.item (id int primary key, note text)`)
			do(t, admin, `create publication items for table public.item`)
			do(t, admin, `grant create on database `+db.Name+` to `+owner)
			do(t, admin, `alter role `+streamer+` set track_functions = 'pl'`)

			out, err := exec.CommandContext(t.Context(), program, "migrate", "--change-db",
				deployerURL+"&options=-c%20role%3D"+owner).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, owner, tell[string](t, admin, `
				select c.relowner::regrole::text from pg_class as c where c.oid = 'cdc."changeLog"'::regclass`))
			do(t, admin, `select cdc.grant_access(role => $1, access => 'streamer')`, streamer)
			do(t, admin, `select cdc.grant_access(role => $1, access => 'reader')`, reader)
			if tt.insert {
				do(t, admin, `grant insert on cdc."changeLog" to `+streamer)
			}

			serve := func(flags ...string) *child {
				t.Helper()
				return spawned(t, program, append(append([]string{
					"serve", "--app-id", db.Name, "--schema", "cdc", "--task-id", "task", "--publication", "items",
					"--listen", "127.0.0.1:0", "--upstream-db", upstreamURL, "--change-db", streamerURL,
				}, tt.flags...), flags...)...)
			}
			stopped := func(c *child) {
				t.Helper()
				c.signal(syscall.SIGTERM)
				require.Zero(t, c.code(t, endurance), "%s", c.log)
			}
			serves := func(c *child) {
				t.Helper()
				require.Eventually(t, func() bool {
					select {
					case <-c.ended:
						require.FailNow(t, "the program ended", "%s", c.log)
					default:
					}
					return strings.Contains(c.log.String(), "serving subscribers")
				}, endurance, glimpse, "%s", c.log)
			}

			c := serve()
			serves(c)
			version := replicaVersionOf(t, admin)
			check := items()
			f := follow(t, check, "a subscriber", found(t, readerURL, "cdc"),
				client.Position{ReplicaVersion: version, Watermark: version}, nil)
			put(t, check, admin, 1, 2)
			arrive(t, check, f)
			large := make([]int, 20_000)
			for i := range large {
				large[i] = 100 + i
			}
			put(t, check, admin, large...)
			arrive(t, check, f)
			// One that may not COPY tries it once.
			const calls = `select coalesce(sum(calls), 0) > 0 from pg_stat_user_functions where schemaname = 'cdc' and funcname = $1`
			becomes(t, endurance, true, admin, calls, "store_open")
			becomes(t, endurance, !tt.insert, admin, calls, "append_changes")

			stopped(c)
			put(t, check, admin, 3)
			c = serve()
			serves(c)
			put(t, check, admin, 4)
			arrive(t, check, f)
			require.Equal(t, version, replicaVersionOf(t, admin), "it went on")
			rereads(t, check, admin, version)

			// A slot that is gone needs a reset, and a session of the streamer is in its way.
			stopped(c)
			do(t, admin, `select pg_drop_replication_slot(slot) from cdc.status`)
			inTheWay := sessionOf(t, streamerURL, "zero-change-streamer")
			do(t, inTheWay, `begin`)
			do(t, inTheWay, `select from cdc."changeLog" limit 1`)
			c = serve("--auto-reset")
			serves(c)
			require.Contains(t, c.log.String(), "a session was in the way of a reset")
			require.NotContains(t, c.log.String(), "ZC102")
			becomes(t, endurance, 0, admin, `select count(*)::int from pg_stat_activity where pid = $1`, inTheWay.PgConn().PID())
			now := replicaVersionOf(t, admin)
			require.Greater(t, now, version)
			fresh := items()
			g := follow(t, fresh, "a new one", found(t, readerURL, "cdc"), client.Position{ReplicaVersion: now, Watermark: now}, nil)
			put(t, fresh, admin, 5)
			arrive(t, fresh, g)

			out, err = exec.CommandContext(t.Context(), program, "status", "--json", "--schema", "cdc", "--change-db", readerURL).Output()
			require.NoError(t, err)
			var status struct {
				ReplicaVersion string `json:"replica_version"`
				OwnerState     string `json:"owner_state"`
			}
			require.NoError(t, json.Unmarshal(out, &status))
			require.Equal(t, now, status.ReplicaVersion)
			require.Equal(t, "owner", status.OwnerState)
			stopped(c)

			// Without the rights it says what is missing.
			for _, access := range []string{"reader", "backup"} {
				do(t, admin, `select cdc.grant_access(role => $1, access => $2)`, streamer, access)
				c = serve("--no-migrate", "--auto-reset")
				require.Equal(t, 1, c.code(t, endurance))
				require.Contains(t, c.log.String(), "permission-missing")
				require.Contains(t, c.log.String(), "grant_access")
			}
		})
	}
}

// sessionOf is a session of an application, which another one may end.
func sessionOf(t *testing.T, address, application string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	require.NoError(t, err)
	config.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}
