package streamer_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/streamer"
	"millrace/streamer/client"
)

// TestTakeOver lets one streamer after the other take the log from one that lives.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"idle": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, conn := shop(t)
			cfg := rigConfig(db)
			cfg.SlotWait = time.Millisecond
			owner := serving(t, cfg)
			version := replicaVersionOf(t, conn)
			c := items()
			f := follow(t, c, "patient", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
			put(t, c, conn, 1)
			arrive(t, c, f)
			for i := range 3 {
				owner = replaced(t, c, conn, owner, cfg, busy, 1000*(i+1))
				require.Equal(t, "owner", tell[string](t, conn, `select owner_state from cdc.status`))
				put(t, c, conn, 10+i)
				arrive(t, c, f)
			}
			becomes(t, endurance, 1, conn, slotsOf)
			require.Equal(t, version, replicaVersionOf(t, conn))
			require.True(t, covered(t, conn))
		})
	}
}

// replaced lets another streamer take the log from its owner, which ends cleanly and says
// who it was. Meanwhile, if busy, rows are put from an id on.
func replaced(t *testing.T, c *Checker, conn *pgx.Conn, owner *rig, cfg streamer.Config, busy bool, id int) *rig {
	t.Helper()
	next := launch(t, cfg)
	for ; busy && !ended(owner); id++ {
		put(t, c, conn, id)
		breathe(time.Millisecond)
	}
	require.NoError(t, owner.end(t, noticed), "a clean end")
	next.serves(t)
	require.Contains(t, owner.log.String(), tell[string](t, conn, `select owner from cdc.status`), "it says who")
	return next
}

func ended(r *rig) bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}
