package streamer

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/source"
)

func TestExplainDatabase(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-w0rd"
	database := pgtest.Empty(t)
	conn := database.Conn(t)
	role := "r_" + database.Name
	exec := func(query string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), query)
		require.NoError(t, err)
	}
	exec(fmt.Sprintf(`create role %s login`, role))
	exec(fmt.Sprintf(`revoke connect on database %s from public`, database.Name))
	exec(`create schema closed`)
	exec(`create table closed.status (id int)`)
	t.Cleanup(func() {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), `drop role `+role)
		require.NoError(t, err)
	})

	connect := func(change func(*pgx.ConnConfig)) error {
		config, err := pgx.ParseConfig(database.URL)
		require.NoError(t, err)
		config.Fallbacks = nil
		config.Password = secret
		change(config)
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err == nil {
			_ = c.Close(t.Context())
		}
		return err
	}
	ask := func(query string) error {
		_, err := conn.Exec(t.Context(), query)
		return err
	}
	tests := []struct {
		name, state, detail, hint string
		err                       error
	}{
		{
			"nobody answers", stateUnreachable, "no connection to the log's home", "check host",
			connect(func(c *pgx.ConnConfig) {
				c.Host, c.Port = "127.0.0.1", 1
				c.Fallbacks = []*pgconn.FallbackConfig{{Host: "127.0.0.1", Port: 2}}
			}),
		},
		{
			"no such host", stateUnreachable, "no connection to the log's home", "check host",
			connect(func(c *pgx.ConnConfig) { c.Host = "no-such-host.invalid" }),
		},
		{
			"no such database", "database-missing", `no database "nowhere"`, "check the database",
			connect(func(c *pgx.ConnConfig) { c.Database = "nowhere" }),
		},
		{
			"no such role", "access-denied", `refused user "nobody_at_all"`, "pg_hba.conf",
			connect(func(c *pgx.ConnConfig) { c.User = "nobody_at_all" }),
		},
		{
			"role that may not connect", "permission-missing", fmt.Sprintf("user %q may not connect", role), "grant it connect",
			connect(func(c *pgx.ConnConfig) { c.User = role }),
		},
		{"no log", stateLogMissing, `schema "cdc" of the log's home has no change log`, "run streamer migrate", ask(`select * from status`)},
		{
			"no privilege", "permission-missing", `may not use schema "cdc"`, "grant_access",
			errors.Join(ask(`begin; set local role `+role+`; select * from closed.status`), ask(`rollback`)),
		},
	}
	for _, tt := range tests {
		require.Error(t, tt.err, tt.name)
		err := ExplainDatabase(fmt.Errorf("look: %w", tt.err), "log's home", "cdc")
		var state *source.StateError
		require.ErrorAs(t, err, &state, tt.name)
		require.Equal(t, tt.state, state.State, tt.name)
		require.Contains(t, state.Detail, tt.detail, tt.name)
		require.Contains(t, state.Hint, tt.hint, tt.name)
		require.NotContains(t, err.Error(), secret, tt.name)
		require.NotContains(t, err.Error(), "\n", tt.name)
		require.Equal(t, err, ExplainDatabase(err, "other", "other"), "explained twice: %s", tt.name)
	}

	for name, err := range map[string]error{
		"something else":  errors.New("something else"),
		"a busy database": &pgconn.PgError{Code: "57P03"},
		"a stop":          fmt.Errorf("connect: %w", context.Canceled),
	} {
		require.Equal(t, err, ExplainDatabase(err, "log's home", "cdc"), name)
	}
}
