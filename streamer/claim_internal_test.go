package streamer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/changelog"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
)

// A start that may reset the log does so for what is wrong with the log, not for an upstream that does not let it in.
func TestUpstreamThatRefusesIsNoReasonForAReset(t *testing.T) {
	t.Parallel()

	db := pgtest.New(t)
	conn := db.Conn(t)
	for _, statement := range []string{
		`select ensure_replication_config('01', '{p}', '01')`,
		`select register_streamer('a', 'a/1', null, 'm_')`,
		`select assume_ownership('a/1', null, '01', null)`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	cfg := Config{
		UpstreamDB: strings.Replace(db.URL, db.Name, "nowhere", 1), ChangeDB: db.URL,
		Publications: []string{"p"}, AutoReset: true,
	}
	require.NoError(t, cfg.setDefaults())
	upstream, err := postgres.NewUpstream(cfg.UpstreamDB)
	require.NoError(t, err)
	changeDB, err := cfg.changeDB()
	require.NoError(t, err)
	ledger, err := changelog.NewLedger(changeDB)
	require.NoError(t, err)
	t.Cleanup(ledger.Close)

	c := &claimer{cfg: cfg, log: cfg.Logger, upstream: upstream, ledger: ledger}
	_, err = c.try(t.Context())
	var state *source.StateError
	require.ErrorAs(t, err, &state)
	require.Equal(t, postgres.StateDatabaseMissing, state.State)
	var streamers int
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*) from streamer`).Scan(&streamers))
	require.Equal(t, 1, streamers, "nothing was begun")
}
