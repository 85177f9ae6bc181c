package sql_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/sql"
)

// An autovacuum that keeps the server from running out of transaction ids gives way to
// nobody, and it has no user.
func TestAutovacuumThatGivesNoWay(t *testing.T) {
	t.Parallel()

	_, connect := served(t, "autovacuum_naptime=1s", "deadlock_timeout=100ms")
	conn := connect()
	exec(t, conn, `alter table "changeLog" set (autovacuum_freeze_max_age = 100000)`)
	exec(t, conn, `
		do $$
		begin
			for i in 1..100100 loop
				perform pg_current_xact_id();
				commit;
			end loop;
		end
		$$`)
	slowlyVacuumed(t, conn)
	for _, tt := range exclusive {
		p := powerless()
		p.max = time.Second
		_, err := tt.call(t.Context(), conn, p)
		require.Regexp(t, `^pid \d+ \(application '', autovacuum worker\) holds ShareUpdateExclusiveLock on "changeLog"$`,
			pgError(t, sql.CodeTablesLocked, err).Detail)
	}
}

// Who has locked a table against readers as well is in the way of the first look.
func TestHolderThatKeepsReadersOut(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, watcher := furnished(t)
			conn, told := listening(t, database)
			exec(t, conn, `set lock_timeout = '17s'`)
			foreign := reading(t, database, "psql")
			exec(t, foreign, `lock table "replicationState", "replicationConfig" in access exclusive mode`)
			_, err := tt.call(t.Context(), conn, powerless())
			require.Contains(t, pgError(t, sql.CodeTablesLocked, err).Detail,
				"(application 'psql', user postgres, idle in transaction) holds AccessExclusiveLock")
			require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
			requireAlive(t, foreign)

			// As one of another program does that has truncated it.
			alike := reading(t, database, streamerApp)
			exec(t, alike, `truncate "replicationState"`)
			got, err := tt.call(t.Context(), conn, hurried())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			require.Equal(t, terminations(alike), *told)
			awaitEnd(t, watcher, alike)
			require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
		})
	}
}

// Nor are single rows waited for without end, while nobody can read the log.
func TestRowsThatAreLocked(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, conn := furnished(t)
			before := contents(t, conn)
			foreign := reading(t, database, "psql")
			exec(t, foreign, `select from progress for update`)
			_, err := tt.call(t.Context(), conn, powerless())
			require.ErrorContains(t, err, "SQLSTATE 55P03")
			require.Equal(t, before, contents(t, conn))
			requireAlive(t, foreign)
			got, err := tt.call(t.Context(), conn, powerless())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// Whose call will be refused ends nobody before.
func TestOlderOneEndsNobody(t *testing.T) {
	t.Parallel()

	database, _ := furnished(t)
	conn, told := listening(t, database)
	reader := reading(t, database, streamerApp, "changeLog")
	params := reinitializeParams("0a")
	params.Owner = "z/0"
	_, err := queries.ReinitializeChangeLog(t.Context(), conn, params)
	requireCode(t, sql.CodeYoungerOwner, err)
	require.Empty(t, *told)
	requireAlive(t, reader)
}

// A younger one may take the log while the older one waits for its tables.
func TestYoungerOneComesMeanwhile(t *testing.T) {
	t.Parallel()

	database, watcher := furnished(t)
	conn, newcomer := database.Conn(t), database.Conn(t)
	foreign := reading(t, database, "psql", "changeLog")
	result := blocked(t, watcher, conn, func() (string, error) {
		return queries.ReinitializeChangeLog(t.Context(), conn, reinitializeParams("0a"))
	})
	register(t, newcomer, "c/3", nil)
	require.True(t, assume(t, newcomer, "c/3", new(owner)).Assumed)
	requireAlive(t, foreign)
	requireCode(t, sql.CodeYoungerOwner, (<-result).err)
	require.Equal(t, "c/3", bounds(t, watcher).Owner)
}
