package sql_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/sql"
)

// Where a purge begins was remembered of another log: it would begin behind the purge lock and tear a hole.
func TestPurgeOfAReinitialisedLogRespectsThePurgeLock(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	store(t, conn, batch("01", "02", "03", "04", "05", "06", "07", "08"))
	purge := func() (db.PurgeChangeLogRow, error) {
		return queries.PurgeChangeLog(t.Context(), conn, db.PurgeChangeLogParams{
			Before: "06", Owner: owner, MaxRows: 1000, ReplicaVersion: version,
		})
	}
	_, err := purge()
	require.NoError(t, err)
	exec(t, conn, `update "replicationState" set "lastWatermark" = '0b'`) // the log was off for a time
	require.Equal(t, "reinitialized", one[string](t, conn, `select reinitialize_change_log(watermark => '03', owner => $1)`, owner))
	store(t, conn, batch("03", "04", "05", "06", "07"))

	tx := begin(t, database.Conn(t))
	lock, err := queries.AcquirePurgeLock(t.Context(), tx, nil)
	require.NoError(t, err)
	require.Equal(t, db.AcquirePurgeLockRow{Status: "locked", ReplicaVersion: version, Minimum: "03"}, lock)
	_, err = purge()
	requireCode(t, "55P03", err)
	commit(t, tx)
	got, err := purge()
	require.NoError(t, err)
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 2 + 2*3, Done: true}, got)
}

// The rows that are written at the end are waited for as the tables are, and whoever holds them is named.
func TestResetWaitsForProgressAndStreamersWithinItsLimit(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	exec(t, conn, `alter database `+database.Name+` set deadlock_timeout = '10ms'`)
	register(t, conn, owner, nil)
	exec(t, conn, `update streamer set state = 'owner'`)
	report(t, conn, owner, version, "01")
	calls := map[string]func(session db.DBTX) error{
		"reinitialize_change_log": func(session db.DBTX) error {
			_, err := queries.ReinitializeChangeLog(t.Context(), session, db.ReinitializeChangeLogParams{
				Watermark: "05", Owner: other, Cookies: json.RawMessage(`{}`), ReplicaVersion: version, MaxWait: 20 * time.Millisecond,
			})
			return err
		},
		"ensure_replication_config": func(session db.DBTX) error {
			params := ensureParams("05", "05")
			params.AutoReset, params.MaxWait = true, 20*time.Millisecond
			_, err := queries.EnsureReplicationConfig(t.Context(), session, params)
			return err
		},
	}
	for statement, relation := range map[string]string{
		`select retire_streamer(1)`:            "streamer",
		`select report_backup('01', '01')`:     "progress",
		`update streamer set slot = null`:      "streamer",
		`update progress set backup_at = null`: "progress",
	} {
		tx := begin(t, database.Conn(t))
		exec(t, tx, statement)
		for name, call := range calls {
			session := database.Conn(t)
			err := call(session)
			require.Contains(t, pgError(t, sql.CodeTablesLocked, err).Detail, "holds RowExclusiveLock on "+relation, "%s, %s", name, statement)
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}

	// Who only reads them is in nobody's way.
	tx := begin(t, database.Conn(t))
	exec(t, tx, `select from streamer, progress`)
	require.Zero(t, one[int64](t, conn, `select count(*) from lock_holders()`))
	require.NoError(t, calls["reinitialize_change_log"](conn))
	require.NoError(t, calls["ensure_replication_config"](conn))
}
