package sql_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/sql"
)

func TestYoungerOwner(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	first, second := register(t, conn, owner, nil), register(t, conn, other, nil)
	require.True(t, assume(t, conn, other, nil).Assumed)
	before := contents(t, conn)
	params := db.AssumeOwnershipParams{Owner: owner, ReplicaVersion: version, Expected: new(other)}
	for range 2 {
		_, err := queries.AssumeOwnership(t.Context(), conn, params)
		pgErr := pgError(t, sql.CodeYoungerOwner, err)
		require.Equal(t, fmt.Sprintf("Registrations: %d of b/2, %d of a/1.", second.ID, first.ID), pgErr.Detail)
		require.Equal(t, before, contents(t, conn))
	}

	// Who expects somebody else is told so, as ever.
	params.Expected = nil
	got, err := queries.AssumeOwnership(t.Context(), conn, params)
	require.NoError(t, err)
	require.Equal(t, db.AssumeOwnershipRow{PreviousOwner: other}, got)

	// Who is not registered is not compared, on either side.
	require.True(t, assume(t, conn, "me", new(other)).Assumed)
	require.True(t, assume(t, conn, owner, new("me")).Assumed)

	// The younger one takes the log from the older one, and who owns it may say so again.
	require.Equal(t, int64(3), register(t, conn, "c/3", nil).ID)
	for range 2 {
		require.True(t, assume(t, conn, "c/3", new(owner)).Assumed)
	}
}

func TestForcePassesAYoungerOwner(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	register(t, conn, owner, nil)
	register(t, conn, other, nil)
	require.True(t, assume(t, conn, other, nil).Assumed)
	params := db.AssumeOwnershipParams{Owner: owner, ReplicaVersion: version, Force: true}
	for _, previous := range []string{other, owner} {
		got, err := queries.AssumeOwnership(t.Context(), conn, params)
		require.NoError(t, err)
		require.Equal(t, db.AssumeOwnershipRow{Assumed: true, PreviousOwner: previous}, got)
	}
	require.Equal(t, "gone", one[string](t, conn, `select state from streamer where owner = $1`, other))
}
