package streamer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/sql"
	"millrace/streamer/client"
	"millrace/streamer/source/postgres"
)

// A slot cannot read over a publication that was dropped, whatever is created later. The
// process that finds that out marks the log, so that the next start knows the way out.
func TestPublicationDroppedWhileTheSlotLives(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	do(t, conn, `drop publication "_`+db.Name+`_public_0"`)
	do(t, conn, `insert into public.item values (1)`)
	require.Error(t, stateOf(t, r.end(t, endurance), postgres.StatePublicationMissing))
	require.True(t, tell[bool](t, conn, `select reset_required from cdc.status`))

	r = launch(t, cfg) // creates the publication, and meets the same again
	require.Error(t, stateOf(t, r.end(t, endurance), postgres.StatePublicationMissing))
	require.Equal(t, version, replicaVersionOf(t, conn))

	cfg.AutoReset = true
	r = serving(t, cfg)
	now := replicaVersionOf(t, conn)
	require.Greater(t, now, version)
	c := items()
	f := follow(t, c, "new", fixed(r.address), client.Position{ReplicaVersion: now, Watermark: now}, nil)
	put(t, c, conn, 2)
	arrive(t, c, f)
	becomes(t, endurance, 1, conn, slotsOf)
}

// Somebody drops the schema under a running streamer: it ends cleanly, and the next one
// begins anew, naming the slot that nobody knows any more.
func TestSchemaDroppedWhileServing(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	r := serving(t, cfg)
	slot := tell[string](t, conn, `select slot from cdc.status`)
	do(t, conn, `drop schema cdc cascade`)
	do(t, conn, `insert into public.item values (1)`)
	require.NoError(t, r.end(t, endurance))
	require.Contains(t, r.log.String(), "the log is gone")

	require.NoError(t, sql.Migrate(t.Context(), conn, "cdc"))
	do(t, conn, `set search_path = cdc, public`)
	r = serving(t, cfg)
	require.NotEqual(t, slot, tell[string](t, conn, `select slot from cdc.status`))
	require.Contains(t, r.log.String(), "keeps WAL")
	require.Contains(t, r.log.String(), slot)
	require.Equal(t, 2, tell[int](t, conn, slotsOf), "what no row names is not ours to drop")
	r.stop(t)
}
