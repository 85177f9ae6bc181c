package sql_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

func TestAfterReinitialize(t *testing.T) {
	t.Parallel()

	database, conn := furnished(t)
	listener := database.Conn(t)
	exec(t, listener, `listen cdc`)
	require.Equal(t, "maintained", reinitialize(t, conn, reinitializeParams("06")))
	exec(t, conn, `select pg_notify('cdc', 'silent so far')`)
	require.Equal(t, "reinitialized", reinitialize(t, conn, reinitializeParams("0a")))
	// A subscriber at 0a can be caught up; one at 06 or at the replica version is too old.
	require.Equal(t, db.CatchupBoundsRow{Minimum: "0a", Head: "0a", ReplicaVersion: version, Owner: other}, bounds(t, conn))

	require.Equal(t, "silent so far", notification(t, listener))
	require.Equal(t, pgtest.Schema, notification(t, listener))

	for _, head := range []string{"06", "0a"} {
		_, err := queries.StoreChanges(t.Context(), conn, batch(head, "0b"))
		requireCode(t, sql.CodeNotOwner, err)
	}
	require.False(t, report(t, conn, owner, version, "0b"))
	_, err := queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{
		Owner: owner, ReplicaVersion: version, Expected: new(other),
	})
	requireCode(t, sql.CodeCondemned, err)
	require.Equal(t, seed("0a"), logRows(t, conn))

	mine := batch("0a", "0b")
	mine.Owner = other
	require.Equal(t, db.StoreChangesRow{Stored: 3, Head: "0b"}, store(t, conn, mine))
	require.True(t, report(t, conn, other, version, "0b"))
	require.Equal(t, "0a", bounds(t, conn).Minimum)
}

// A log that is kept is taken over at its head, and nothing is stored twice.
func TestTakingOverAKeptLog(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	require.Equal(t, "maintained", reinitialize(t, conn, reinitializeParams("05")))
	require.True(t, assume(t, conn, other, new(owner)).Assumed)
	again := batch("06", "05", "06", "07")
	again.Owner = other
	require.Equal(t, db.StoreChangesRow{Stored: 3, Head: "07"}, store(t, conn, again))
	require.Equal(t, "01", bounds(t, conn).Minimum)
}
