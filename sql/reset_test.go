package sql_test

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// fromBackup are of a replica of 01 that was restored at 05, for a log that is not there;
// made are of a new replica at 03, for a log of 01.
func fromBackup() db.EnsureReplicationConfigParams { return ensureParams(version, "05") }

func made() db.EnsureReplicationConfigParams {
	params := ensureParams("03", "03")
	params.AutoReset = true
	return params
}

func TestLogBeginsWithCookies(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name   string
		log    func(*testing.T) (*pgtest.DB, *pgx.Conn)
		params db.EnsureReplicationConfigParams
		want   string
	}{
		{name: "first", log: migrated, params: fromBackup(), want: "initialized"},
		{name: "reset", log: furnished, params: made(), want: "reset"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, conn := tt.log(t)
			listener := database.Conn(t)
			exec(t, listener, `listen cdc`)
			before := contents(t, conn)

			params := tt.params
			// A row that comes twice is found out only after everything was dropped.
			params.Cookies = json.RawMessage(`{"tableMetadata": [
				{"schema": "s", "table": "t", "metadata": {}}, {"schema": "s", "table": "t", "metadata": {"a": 1}}]}`)
			_, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
			require.ErrorContains(t, err, "SQLSTATE 23505")
			require.Equal(t, before, contents(t, conn))

			params.Cookies = json.RawMessage(cookies)
			got, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
			require.NoError(t, err)
			require.Equal(t, db.EnsureReplicationConfigRow{Result: tt.want}, got)
			require.Equal(t, seed(params.Watermark), logRows(t, conn))
			requireJSON(t, cookies, start(t, conn)[0].Cookies)
			require.Equal(t, pgtest.Schema, notification(t, listener))

			// Those of a log that is kept are the ones that were stored.
			after := contents(t, conn)
			params.Cookies = json.RawMessage(`{}`)
			got, err = queries.EnsureReplicationConfig(t.Context(), conn, params)
			require.NoError(t, err)
			require.Equal(t, db.EnsureReplicationConfigRow{Result: "unchanged"}, got)
			require.Equal(t, after, contents(t, conn))
		})
	}
}

func migrated(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	database := pgtest.New(t)
	return database, database.Conn(t)
}

// What lies between replica and slot comes from nowhere: a log that began at the replica
// would have a hole.
func TestLogDoesNotBeginBeforeTheSlot(t *testing.T) {
	t.Parallel()

	const (
		refused = "reset_required"
		first   = "the slot is at 05.01, past the replica at 05: a new replica is needed"
		again   = "the slot is at 04, past the replica at 03: a new replica is needed"
	)
	notAllowed, movedOn, same := made(), ensureParams("03", "05"), ensureParams(version, "06")
	notAllowed.AutoReset, movedOn.AutoReset, same.AutoReset = false, true, true
	tests := []struct {
		name       string
		log        func(*testing.T) (*pgtest.DB, *pgx.Conn)
		params     db.EnsureReplicationConfigParams
		slot       string
		want       string
		wantDetail string
	}{
		{name: "first, slot before the replica", log: migrated, params: fromBackup(), slot: "04", want: "initialized"},
		{name: "first, slot at the replica", log: migrated, params: fromBackup(), slot: "05", want: "initialized"},
		{name: "first, slot past the replica", log: migrated, params: fromBackup(), slot: "05.01", want: refused, wantDetail: first},
		{name: "reset, slot before the replica", log: furnished, params: made(), slot: "02", want: "reset"},
		{name: "reset, slot at the replica", log: furnished, params: made(), slot: "03", want: "reset"},
		{name: "reset, slot past the replica", log: furnished, params: made(), slot: "04", want: refused, wantDetail: again},
		{
			name: "reset that is not allowed, slot past the replica", log: furnished, params: notAllowed, slot: "04", want: refused,
			wantDetail: "the replica version of the log is 01, not 03; " +
				"a reset drops the log, and every subscriber has to start from a new replica: it needs auto_reset",
		},
		{
			name: "replica of another version that has moved on, slot past it", log: furnished, params: movedOn, slot: "06", want: refused,
			wantDetail: "Cannot reset change db@01 to service replica@03 from watermark 05",
		},
		{name: "log that is kept, slot past the replica", log: furnished, params: same, slot: "09", want: "unchanged"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			_, conn := tt.log(t)
			before := contents(t, conn)
			params := tt.params
			params.SlotWatermark = &tt.slot
			for i := range 2 {
				got, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
				require.NoError(t, err)
				if begun := tt.want == "initialized" || tt.want == "reset"; begun && i > 0 {
					require.Equal(t, "unchanged", got.Result)
					require.Equal(t, seed(params.Watermark), logRows(t, conn))
				} else {
					require.Equal(t, db.EnsureReplicationConfigRow{Result: tt.want, Detail: tt.wantDetail}, got)
					require.Equal(t, begun, before[`"changeLog"`] != contents(t, conn)[`"changeLog"`])
				}
			}
			if tt.wantDetail != "" || tt.want == "unchanged" {
				require.Equal(t, before, contents(t, conn))
			}
		})
	}
}

func TestResetRefusesWhatCanNotBeMeant(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	before := contents(t, conn)
	for _, arguments := range []string{ // one connection: one after the other
		`cookies => null`,
		`cookies => '[]'`,
		`cookies => '{"tablemetadata": []}'`,
		`cookies => '{"backfilling": [{"schema": "s", "table": "t", "column": "c"}]}'`,
		`max_wait => null`,
	} {
		_, err := conn.Exec(t.Context(), `
			select ensure_replication_config('03', '{p,q}', '03', auto_reset => true, `+arguments+`)`)
		requireCode(t, sql.CodeInvalidArgument, err)
	}
	_, err := conn.Exec(t.Context(), `select ensure_replication_config('03', '{p,q}', '03', auto_reset => null)`)
	requireCode(t, sql.CodeInvalidArgument, err)
	require.Equal(t, before, contents(t, conn))
}

func TestClearResetRequired(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	const clearMark = `select clear_reset_required()`
	_, err := conn.Exec(t.Context(), clearMark)
	requireCode(t, sql.CodeNotInitialised, err)

	ensure(t, conn, version, version)
	before := contents(t, conn)
	require.False(t, one[bool](t, conn, clearMark))
	require.Equal(t, before, contents(t, conn))

	require.NoError(t, queries.MarkResetRequired(t.Context(), conn, version))
	require.True(t, one[bool](t, conn, clearMark))
	require.False(t, one[bool](t, conn, clearMark))
	got, err := reset(t.Context(), conn, version)
	require.NoError(t, err)
	require.Equal(t, "unchanged", got.Result)
}

func TestClearResetRequiredWaitsForTheMark(t *testing.T) {
	t.Parallel()

	database, conn := initialised(t)
	second, watcher := database.Conn(t), database.Conn(t)
	tx := begin(t, conn)
	require.NoError(t, queries.MarkResetRequired(t.Context(), tx, version))
	result := blocked(t, watcher, second, func() (bool, error) {
		var marked bool
		err := second.QueryRow(t.Context(), `select clear_reset_required()`).Scan(&marked)
		return marked, err
	})
	commit(t, tx)
	got := <-result
	require.NoError(t, got.err)
	require.True(t, got.value)
	require.False(t, start(t, conn)[0].ResetRequired)
}
