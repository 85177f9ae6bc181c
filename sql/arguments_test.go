package sql_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/sql"
)

// What a person mistypes is refused where it would stay: in a record that never goes down, in a log that begins anew, and
// where it would throw things away.
func TestNonsenseIsRefused(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	store(t, conn, batch("01", "02", "03"))
	require.True(t, report(t, conn, owner, version, "03"))
	before := logRows(t, conn)
	for _, statement := range []string{
		`select purge_change_log('oops', 'a/1')`,
		`select purge_change_log('Z', 'a/1')`,
		`select purge_change_log('', 'a/1')`,
		`select purge_change_log('03 ', 'a/1')`,
		`select report_progress('a/1', '01', 'zz')`,
		`select report_progress('a/1', '01', '')`,
		`select report_progress('a/1', '01', null)`,
		`select acquire_purge_lock('nonsense')`,
		`select acquire_purge_lock('4')`,
		`select report_backup('d100000000000000', '01')`,
		`select reinitialize_change_log('d100000000000000', 'a/1')`,
		`select reinitialize_change_log('05', '')`,
		`select assume_ownership('', null, '01', 'a/1', force => true)`,
		`select ensure_replication_config('', '{p}', '')`,
		`select ensure_replication_config('01', '{}', '01')`,
		`select ensure_replication_config('01', '{p,null}', '01')`,
		`select ensure_replication_config('01', null, '01')`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.Error(t, err, statement)
		requireCode(t, sql.CodeInvalidArgument, err)
	}
	require.Equal(t, before, logRows(t, conn))
	require.Equal(t, owner, bounds(t, conn).Owner)
	require.Equal(t, "03", start(t, conn)[0].StreamedWatermark)

	// A number is a bound like any other.
	require.True(t, one[bool](t, database.Conn(t), `select done from purge_change_log('0', 'a/1')`))
	require.Equal(t, before, logRows(t, conn))
}

// Whoever owns the log but names another history is told that, and not that he owns it himself.
func TestWrongHistoryIsToldFromWrongOwner(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	p := batch("01", "02")
	p.ReplicaVersion = "00"
	_, err := queries.StoreChanges(t.Context(), conn, p)
	require.Contains(t, pgError(t, sql.CodeNotOwner, err).Message, "belongs to another history")
	p = batch("01", "02")
	p.Owner = other
	_, err = queries.StoreChanges(t.Context(), conn, p)
	require.Contains(t, pgError(t, sql.CodeNotOwner, err).Message, "is owned by 'a/1', not by 'b/2'")
}

func TestForgetBackup(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	require.True(t, one[bool](t, conn, `select forget_backup() is null`))
	require.True(t, report(t, conn, owner, version, "03"))
	backUp(t, conn, "0z")
	require.Equal(t, "0z", one[string](t, conn, `select forget_backup()`))
	require.True(t, one[bool](t, conn, `select forget_backup() is null`), "again")
	require.True(t, one[bool](t, conn, `select backup_watermark is null and backup_at is null from status`))
	require.Equal(t, "03", start(t, conn)[0].StreamedWatermark)
	backUp(t, conn, "02")
	require.Equal(t, "02", one[string](t, conn, `select backup_watermark from status`))
}
