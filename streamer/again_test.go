package streamer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/client"
)

// TestBeginAgainFromAReplica restores an older change database, so that the log lacks what
// the slot does not send any more. A replica has it.
func TestBeginAgainFromAReplica(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	c := items()
	f := follow(t, c, "before", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	put(t, c, conn, 1)
	arrive(t, c, f)
	older := tell[string](t, conn, `select head from cdc.status`)
	put(t, c, conn, 2)
	arrive(t, c, f)
	f.stop()
	r.stop(t)
	replica := tell[string](t, conn, `select greatest(head, streamed_watermark) from cdc.status`)
	do(t, conn, `delete from cdc."changeLog" where watermark > $1`, older)
	do(t, conn, `update cdc."replicationState" set "lastWatermark" = $1`, older)
	do(t, conn, `delete from cdc.progress`)

	require.Contains(t, stateOf(t, launch(t, cfg).end(t, endurance), "hole").Hint, "--replica-watermark")
	cfg.ReplicaWatermark = older
	require.Contains(t, stateOf(t, launch(t, cfg).end(t, endurance), "hole").Hint, "does not help")
	require.Equal(t, older, tell[string](t, conn, `select head from cdc.status`), "nothing was changed")

	cfg.ReplicaWatermark = replica
	r = serving(t, cfg)
	require.Equal(t, version, replicaVersionOf(t, conn), "it is the same history")
	c = items()
	f = follow(t, c, "the replica", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: replica}, nil)
	put(t, c, conn, 3)
	arrive(t, c, f)
	require.Equal(t, 1, tell[int](t, conn, slotsOf))
	require.True(t, covered(t, conn))
	raw := subscribed(t, r.address, version, older)
	require.Contains(t, says(t, raw), `["error",{"type":2,`)

	// The flag does no harm to a log that is whole.
	r.stop(t)
	head := tell[string](t, conn, `select head from cdc.status`)
	serving(t, cfg)
	require.Equal(t, head, tell[string](t, conn, `select head from cdc.status`))
	put(t, c, conn, 4)
	arrive(t, c, f)
}
