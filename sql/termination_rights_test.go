package sql_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
)

// A cast is the roles of a log that is not a superuser's. Roles belong to the server, so
// their names have the database's in them.
type cast struct {
	database *pgtest.DB
	admin    *pgx.Conn // a superuser's
	owner    string    // owns the log
	streamer string    // may call what a streamer calls; the owner is no member of it
	stranger string    // may read, and nothing else; nor of this
}

// casting is a log that its owner has migrated, at version and with one transaction.
func casting(t *testing.T) cast {
	t.Helper()
	database := pgtest.Empty(t)
	admin := database.Conn(t)
	c := cast{database, admin, "owner_" + database.Name, "streamer_" + database.Name, "stranger_" + database.Name}
	makeRole(t, admin, c.owner, "nologin")
	makeRole(t, admin, c.streamer, "login")
	makeRole(t, admin, c.stranger, "login")
	exec(t, admin, `grant create on database `+database.Name+` to `+c.owner)
	hasty(t, database, admin)

	config := admin.Config()
	config.RuntimeParams["role"] = c.owner
	conn := connected(t, config)
	require.NoError(t, sql.Migrate(t.Context(), conn, pgtest.Schema))
	exec(t, conn, `grant usage on schema cdc to `+c.streamer+`, `+c.stranger)
	exec(t, conn, `grant select on all tables in schema cdc to `+c.streamer+`, `+c.stranger)
	for _, function := range objects(t, conn, `
		select p.oid::regprocedure::text from pg_proc p
		where p.pronamespace = 'cdc'::regnamespace and p.proname in (
			'reinitialize_change_log', 'ensure_replication_config', 'lock_holders', 'terminate_lock_holders')`) {
		exec(t, conn, `grant execute on function `+function+` to `+c.streamer)
	}
	require.Equal(t, "initialized", ensure(t, conn, version, version).Result)
	exec(t, conn, `update "replicationState" set owner = 'x/1'`)
	return c
}

func connected(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn
}

// as is a connection of a role under the streamers' name.
func (c cast) as(t *testing.T, role string) *pgx.Conn {
	t.Helper()
	config := c.admin.Config()
	config.User = role
	config.RuntimeParams["application_name"] = streamerApp
	return connected(t, config)
}

func TestSessionsThatMayNotBeEnded(t *testing.T) {
	t.Parallel()

	const superuser = "postgres"
	for _, tt := range exclusive {
		for name, pick := range map[string]func(cast) string{
			"a superuser's":                         func(cast) string { return superuser },
			"of a role that nobody is a member of":  func(c cast) string { return c.stranger },
			"of the role that calls, and no member": func(c cast) string { return c.streamer },
		} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				t.Parallel()

				c := casting(t)
				before := contents(t, c.admin)
				conn, told := listening(t, c.database)
				exec(t, conn, `set session authorization `+c.streamer)
				role := pick(c)
				reader := c.as(t, role)
				read(t, reader, "changeLog")
				pid := reader.PgConn().PID()

				p := hurried()
				p.max = 100 * time.Millisecond
				_, err := tt.call(t.Context(), conn, p)
				require.Contains(t, pgError(t, sql.CodeTablesLocked, err).Detail,
					fmt.Sprintf(`pid %d (application 'zero-change-streamer', user %s, `, pid, role))
				require.Empty(t, *told, "the call gave up at its first look")

				p.max = time.Second
				_, err = tt.call(t.Context(), conn, p)
				requireCode(t, sql.CodeTablesLocked, err)
				require.Len(t, *told, 1)
				require.Contains(t, (*told)[0], fmt.Sprintf("WARNING %s: pid %d: ", sql.CodeMayNotTerminate, pid))
				require.Equal(t, []string{fmt.Sprintf("%d f", pid)},
					objects(t, conn, `select concat_ws(' ', pid, terminated) from terminate_lock_holders('zero-change-streamer')`))
				require.Equal(t, before, contents(t, c.admin))

				if role == superuser {
					requireAlive(t, reader)
					return
				}
				// A member may end them. A superuser made it one, as grant_access says that it must be.
				exec(t, c.admin, `grant `+role+` to `+c.owner)
				got, err := tt.call(t.Context(), conn, hurried())
				require.NoError(t, err)
				require.Equal(t, tt.want, got)
				require.Equal(t, terminations(reader), (*told)[1:])
				awaitEnd(t, c.admin, reader)
			})
		}
	}
}

// One that may not be ended keeps nobody from ending the others.
func TestSomeSessionsMayNotBeEnded(t *testing.T) {
	t.Parallel()

	c := casting(t)
	exec(t, c.admin, `grant `+c.streamer+` to `+c.owner)
	conn, told := listening(t, c.database)
	exec(t, conn, `set session authorization `+c.streamer)
	first, stranger, last := c.as(t, c.streamer), c.as(t, c.stranger), c.as(t, c.streamer)
	for _, reader := range []*pgx.Conn{first, stranger, last} {
		read(t, reader, "changeLog")
	}
	require.ElementsMatch(t, []string{
		fmt.Sprintf("%d t select from \"changeLog\"", first.PgConn().PID()),
		// What it does is not for everybody to see.
		fmt.Sprintf("%d f <insufficient privilege>", stranger.PgConn().PID()),
		fmt.Sprintf("%d t select from \"changeLog\"", last.PgConn().PID()),
	}, objects(t, conn, `select concat_ws(' ', pid, terminated, query) from terminate_lock_holders('zero-change-streamer')`))
	require.Len(t, *told, 3)
	require.Subset(t, *told, terminations(first, last))
	awaitEnd(t, c.admin, first, last)
	requireAlive(t, stranger)
}

// Who may not see what a session does still sees that it is in the way.
func TestHoldersAreShownToEverybody(t *testing.T) {
	t.Parallel()

	c := casting(t)
	conn := c.as(t, c.streamer)
	reader := c.as(t, c.stranger)
	read(t, reader, "changeLog")
	require.Equal(t, fmt.Sprintf("changeLog AccessShareLock %d zero-change-streamer %s ? ?", reader.PgConn().PID(), c.stranger),
		one[string](t, conn, `
			select concat_ws(' ', relation, mode, pid, application_name, user_name, coalesce(state, '?'), coalesce(backend_type, '?'))
			from lock_holders()`))
	for _, tt := range exclusive {
		_, err := tt.call(t.Context(), conn, powerless())
		require.Contains(t, pgError(t, sql.CodeTablesLocked, err).Detail,
			"user "+c.stranger+", state not visible) holds AccessShareLock")
	}
	requireAlive(t, reader)
}
