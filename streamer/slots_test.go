package streamer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/client"
)

// Slots belong to the whole server: two logs of one name must not take each other's.
func TestTwoDatabasesOfOneServerWithTheSameNames(t *testing.T) {
	t.Parallel()
	firstDB, firstConn := shop(t)
	secondDB, secondConn := shop(t)
	first, second := rigConfig(firstDB), rigConfig(secondDB)
	second.AppID = first.AppID
	serving(t, first)
	r := serving(t, second)

	slot := tell[string](t, secondConn, `select slot from cdc.status`)
	require.NotEqual(t, tell[string](t, firstConn, `select slot from cdc.status`), slot)
	require.Equal(t, 1, tell[int](t, firstConn, slotsOf))
	require.Equal(t, 1, tell[int](t, secondConn, slotsOf))
	require.Equal(t, 1, tell[int](t, secondConn, `select count(*)::int from cdc.streamer where slot is not null`),
		"no row of the second names a slot of the first")

	version := replicaVersionOf(t, secondConn)
	c := items()
	f := follow(t, c, "of the second", found(t, secondDB.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	put(t, c, secondConn, 1)
	arrive(t, c, f)
	r.stop(t)
	put(t, c, secondConn, 2)
	serving(t, second)
	arrive(t, c, f)
	require.Equal(t, slot, tell[string](t, secondConn, `select slot from cdc.status`))
	require.Equal(t, 1, tell[int](t, firstConn, slotsOf), "the first keeps its slot")
}
