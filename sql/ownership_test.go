package sql_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

func TestAssumeOwnership(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	address := func() string {
		t.Helper()
		a, err := queries.ChangeStreamerAddress(t.Context(), conn)
		require.NoError(t, err)
		return a
	}
	require.Empty(t, address())

	require.Equal(t, db.AssumeOwnershipRow{Assumed: true}, assume(t, conn, owner, nil))
	require.Equal(t, owner+":4848", address())
	require.Equal(t, db.AssumeOwnershipRow{Assumed: true, PreviousOwner: owner}, assume(t, conn, owner, nil), "again")

	require.Equal(t, db.AssumeOwnershipRow{PreviousOwner: owner}, assume(t, conn, other, nil), "nobody expected")
	require.Equal(t, db.AssumeOwnershipRow{PreviousOwner: owner}, assume(t, conn, other, new("c/3")), "somebody else expected")
	require.Equal(t, owner+":4848", address())

	require.Equal(t, db.AssumeOwnershipRow{Assumed: true, PreviousOwner: owner}, assume(t, conn, other, new(owner)))
	require.Equal(t, other+":4848", address())
	require.Equal(t, other, bounds(t, conn).Owner)

	forced, err := queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{
		Owner: "c/3", ReplicaVersion: version, Force: true,
	})
	require.NoError(t, err)
	require.Equal(t, db.AssumeOwnershipRow{Assumed: true, PreviousOwner: other}, forced)
	require.Empty(t, address())
}

func TestAssumeOwnershipRefuses(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	params := db.AssumeOwnershipParams{Owner: owner, ReplicaVersion: version, Force: true}
	_, err := queries.AssumeOwnership(t.Context(), conn, params)
	requireCode(t, sql.CodeNotInitialised, err)

	ensure(t, conn, version, version)
	stale := params
	stale.ReplicaVersion = "00"
	_, err = queries.AssumeOwnership(t.Context(), conn, stale)
	requireCode(t, sql.CodeNotOwner, err)

	_, err = conn.Exec(t.Context(), `select assume_ownership(null, null, '01', null)`)
	requireCode(t, sql.CodeInvalidArgument, err)

	slot := params
	slot.Slot = new("s")
	_, err = queries.AssumeOwnership(t.Context(), conn, slot)
	requireCode(t, sql.CodeNotRegistered, err)

	id := register(t, conn, owner, nil).ID
	require.NoError(t, queries.RetireStreamer(t.Context(), conn, db.RetireStreamerParams{ID: id}))
	_, err = queries.AssumeOwnership(t.Context(), conn, params)
	requireCode(t, sql.CodeCondemned, err)

	require.Empty(t, bounds(t, conn).Owner)
}

func TestAssumeOwnershipPassesTheSlotOn(t *testing.T) {
	t.Parallel()

	database, conn := initialised(t)
	listener := database.Conn(t)
	exec(t, listener, `listen cdc`)
	type streamerRow struct{ state, slot string }
	state := func(name string) (r streamerRow) {
		t.Helper()
		require.NoError(t, conn.QueryRow(t.Context(),
			`select state, coalesce(slot, '') from streamer where owner = $1`, name).Scan(&r.state, &r.slot))
		return r
	}

	first, second := register(t, conn, owner, new("m_")), register(t, conn, other, new("m_"))
	require.Equal(t, second.Slot, start(t, conn)[0].Slot, "nobody owns the log: the newest slot")
	require.True(t, assume(t, conn, owner, nil).Assumed)
	require.Equal(t, first.Slot, start(t, conn)[0].Slot)
	require.Equal(t, streamerRow{"owner", first.Slot}, state(owner))
	require.Equal(t, streamerRow{"starting", second.Slot}, state(other))

	for range 2 {
		got, err := queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{
			Owner: other, ReplicaVersion: version, Expected: new(owner), Slot: &first.Slot,
		})
		require.NoError(t, err)
		require.True(t, got.Assumed)
		require.Equal(t, streamerRow{"gone", ""}, state(owner))
		require.Equal(t, streamerRow{"owner", first.Slot}, state(other))
	}
	require.Equal(t, first.Slot, start(t, conn)[0].Slot)

	n, err := listener.WaitForNotification(t.Context())
	require.NoError(t, err)
	require.Equal(t, "cdc", n.Channel)
	require.Equal(t, pgtest.Schema, n.Payload)

	_, err = queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{
		Owner: owner, ReplicaVersion: version, Force: true,
	})
	requireCode(t, sql.CodeCondemned, err)
}

func TestAssumeOwnershipAfterReset(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	register(t, conn, owner, nil)
	assume(t, conn, owner, nil)
	_, err := reset(t.Context(), conn, "02")
	require.NoError(t, err)

	_, err = queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{Owner: other, ReplicaVersion: version})
	requireCode(t, sql.CodeNotOwner, err)
	got, err := queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{Owner: other, ReplicaVersion: "02"})
	require.NoError(t, err)
	require.Equal(t, db.AssumeOwnershipRow{Assumed: true}, got)
	require.Equal(t, "gone", one[string](t, conn, `select state from streamer where owner = $1`, owner),
		"the owner before the reset")
}

func TestTwoNewcomersTakeOneLog(t *testing.T) {
	t.Parallel()

	database, first := owned(t)
	second, watcher := database.Conn(t), database.Conn(t)

	tx := begin(t, first)
	require.True(t, assume(t, tx, other, new(owner)).Assumed)
	result := blocked(t, watcher, second, func() (db.AssumeOwnershipRow, error) {
		return queries.AssumeOwnership(t.Context(), second, db.AssumeOwnershipParams{
			Owner: "c/3", ReplicaVersion: version, Expected: new(owner),
		})
	})
	commit(t, tx)

	got := <-result
	require.NoError(t, got.err)
	require.Equal(t, db.AssumeOwnershipRow{PreviousOwner: other}, got.value)
}
