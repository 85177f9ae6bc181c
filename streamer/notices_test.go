package streamer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
)

// inTheWay is a session with a streamer's name that has read the log of a database in a
// transaction, which it leaves open.
func inTheWay(t *testing.T, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	conn := db.Conn(t)
	do(t, conn, `set application_name = 'zero-change-streamer'; begin; select from cdc."changeLog"`)
	return conn
}

// warnings are the lines of a log about sessions that were in the way of a reset.
func warnings(r *rig) (lines []string) {
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, "(ZC1") {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestReaderInTheWayOfAReset(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	serving(t, cfg).stop(t)
	version := replicaVersionOf(t, conn)
	do(t, conn, `select cdc.mark_reset_required()`)
	reader := inTheWay(t, db)

	// Whoever may not reset the log is not stopped by its readers, and ends none.
	r := serving(t, cfg)
	require.Equal(t, version, replicaVersionOf(t, conn))
	require.Empty(t, warnings(r))
	r.stop(t)
	do(t, reader, `select from cdc."replicationState"`)

	cfg.AutoReset = true
	r = serving(t, cfg)
	require.Greater(t, replicaVersionOf(t, conn), version)
	lines := warnings(r)
	require.NotEmpty(t, lines)
	require.Contains(t, lines[0], sql.CodeTerminated)
	require.Contains(t, lines[0], fmt.Sprintf("pid %d", reader.PgConn().PID()))
	require.Contains(t, lines[0], "schema=cdc")
	_, err := reader.Exec(t.Context(), `commit`)
	require.Error(t, err)
	r.stop(t)
}

// A session that the owner of the functions may not end is named, so that a person can.
func TestReaderThatMayNotBeEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	conn := db.Conn(t)
	do(t, conn, `create table public.item (id int primary key, note text)`)
	role := "keeper_" + db.Name // roles belong to the server
	do(t, conn, `create role `+role)
	t.Cleanup(func() { discard(t, conn, role) })
	do(t, conn, `grant create on database `+db.Name+` to `+role)
	config := conn.Config()
	config.RuntimeParams["role"] = role
	keeper, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, sql.Migrate(t.Context(), keeper, "cdc"))
	require.NoError(t, keeper.Close(t.Context()))

	cfg := rigConfig(db)
	serving(t, cfg).stop(t)
	version := replicaVersionOf(t, conn)
	do(t, conn, `select cdc.mark_reset_required()`)
	reader := inTheWay(t, db)

	cfg.AutoReset = true
	r := launch(t, cfg)
	require.Eventually(t, func() bool { return len(warnings(r)) > 0 }, endurance, glimpse, "it says who is in the way")
	line := warnings(r)[0]
	require.Contains(t, line, sql.CodeMayNotTerminate)
	require.Contains(t, line, fmt.Sprintf("pid %d", reader.PgConn().PID()))
	require.Equal(t, version, replicaVersionOf(t, conn))
	do(t, reader, `commit`)
	r.serves(t)
	require.Greater(t, replicaVersionOf(t, conn), version)
	r.stop(t)
}

// discard drops a role and what it owns.
func discard(t *testing.T, conn *pgx.Conn, role string) {
	t.Helper()
	for _, statement := range []string{`drop owned by ` + role + ` cascade`, `drop role ` + role} {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), statement)
		require.NoError(t, err)
	}
}
