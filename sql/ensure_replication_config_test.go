package sql_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

func TestEnsureReplicationConfig(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name         string
		fresh        bool   // begins without configuration; else at version 01, owned, one transaction stored, progress known
		setup        string // SQL run before the call
		version      string
		publications []string
		watermark    string
		autoReset    bool

		wantResult  string
		wantDetail  string
		wantHead    string
		wantLog     []row
		wantWarning bool
	}{
		{
			name: "nothing configured", fresh: true,
			version: "01", publications: []string{"p"}, watermark: "01",
			wantResult: "initialized", wantHead: "01", wantLog: seed("01"),
		},
		{
			name: "nothing configured and a replica past its version", fresh: true,
			version: "01", publications: []string{"p"}, watermark: "05.01",
			wantResult: "initialized", wantHead: "05.01", wantLog: seed("05.01"),
		},
		{
			name: "nothing configured and a state row left by a migration", fresh: true,
			setup: `insert into "replicationState" ("lastWatermark", owner, "ownerAddress") values ('09', 'x', 'y');
				insert into "changeLog" values ('09', 0, '{}', null)`,
			version: "01", publications: []string{"p"}, watermark: "01",
			wantResult: "initialized", wantHead: "01", wantLog: seed("01"),
		},
		{
			name:    "same configuration, publications in other order and doubled",
			version: "01", publications: []string{"q", "p", "q"}, watermark: "02",
			wantResult: "unchanged",
		},
		{
			name:    "same configuration, reset mark is false",
			setup:   `update "replicationConfig" set "resetRequired" = false`,
			version: "01", publications: []string{"p", "q"}, watermark: "02", autoReset: true,
			wantResult: "unchanged",
		},
		{
			name:    "reset required and allowed",
			setup:   `select mark_reset_required()`,
			version: "01", publications: []string{"p", "q"}, watermark: "02", autoReset: true,
			wantResult: "reset_required", wantDetail: "reset required by replication stream",
		},
		{
			name:    "reset required but not allowed",
			setup:   `select mark_reset_required()`,
			version: "01", publications: []string{"p", "q"}, watermark: "02",
			wantResult: "unchanged", wantWarning: true,
		},
		{
			name:    "other version and a replica that has moved on",
			version: "03", publications: []string{"p", "q"}, watermark: "04", autoReset: true,
			wantResult: "reset_required",
			wantDetail: "Cannot reset change db@01 to service replica@03 from watermark 04",
		},
		{
			name:    "other version, reset allowed",
			version: "03", publications: []string{"p", "q"}, watermark: "03", autoReset: true,
			wantResult: "reset", wantHead: "03", wantLog: seed("03"),
		},
		{
			name:    "other and smaller version, reset allowed",
			setup:   `select mark_reset_required()`,
			version: "00", publications: []string{"p", "q"}, watermark: "00", autoReset: true,
			wantResult: "reset", wantHead: "00", wantLog: seed("00"),
		},
		{
			name:    "other publications, reset allowed",
			version: "01", publications: []string{"p"}, watermark: "01", autoReset: true,
			wantResult: "reset", wantHead: "01", wantLog: seed("01"),
		},
		{
			name:    "other version and publications, reset not allowed",
			version: "03", publications: []string{"r"}, watermark: "03",
			wantResult: "reset_required",
			wantDetail: "the replica version of the log is 01, not 03; the publications of the log are {p,q}, not {r}; " +
				"a reset drops the log, and every subscriber has to start from a new replica: it needs auto_reset",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			var warnings []string
			conn := noticed(t, pgtest.New(t), func(n *pgconn.Notice) { warnings = append(warnings, n.Severity+" "+n.Code) })
			if !tt.fresh {
				ensure(t, conn, version, version)
				assume(t, conn, owner, nil)
				store(t, conn, batch("01", "02"))
				_, err := queries.ReportProgress(t.Context(), conn, db.ReportProgressParams{
					Owner: owner, ReplicaVersion: version, StreamedWatermark: "07",
				})
				require.NoError(t, err)
				exec(t, conn, `insert into "tableMetadata" values ('s', 't', '{}')`)
				exec(t, conn, `insert into "backfilling" values ('s', 't', 'c', '{}')`)
			}
			if tt.setup != "" {
				exec(t, conn, tt.setup)
			}
			before := logRows(t, conn)
			startBefore := start(t, conn)

			params := ensureParams(tt.version, tt.watermark)
			params.Publications, params.AutoReset = tt.publications, tt.autoReset
			got, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
			require.NoError(t, err)
			require.Equal(t, tt.wantResult, got.Result)
			require.Equal(t, tt.wantDetail, got.Detail)
			if tt.wantWarning {
				require.Equal(t, []string{"WARNING " + sql.CodeResetDue}, warnings)
			} else {
				require.Empty(t, warnings)
			}

			if tt.wantLog == nil {
				require.Equal(t, before, logRows(t, conn))
				require.Equal(t, startBefore, start(t, conn))
				return
			}
			require.Equal(t, tt.wantLog, logRows(t, conn))
			after := start(t, conn)
			require.Len(t, after, 1)
			require.Equal(t, tt.version, after[0].ReplicaVersion)
			require.Equal(t, tt.publications, after[0].Publications)
			require.Equal(t, tt.wantHead, after[0].Head)
			require.Equal(t, tt.wantHead, after[0].Minimum)
			require.Empty(t, after[0].Owner)
			require.Empty(t, after[0].OwnerAddress)
			require.Empty(t, after[0].StreamedWatermark)
			require.False(t, after[0].ResetRequired)
			requireJSON(t, `{"tableMetadata":[],"backfilling":[]}`, after[0].Cookies)
			require.Zero(t, one[int64](t, conn, `select count(*) from progress`))

			again, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
			require.NoError(t, err)
			require.Equal(t, "unchanged", again.Result)
			require.Equal(t, tt.wantLog, logRows(t, conn))
		})
	}
}

// start is stream_start with all its rows.
func start(t *testing.T, conn *pgx.Conn) []db.StreamStartRow {
	t.Helper()
	rows, err := conn.Query(t.Context(), db.StreamStart)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[db.StreamStartRow])
	require.NoError(t, err)
	return got
}

// noticed is a connection whose notices go to f.
func noticed(t *testing.T, database *pgtest.DB, f func(*pgconn.Notice)) *pgx.Conn {
	t.Helper()
	config := database.Conn(t).Config()
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { f(n) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn
}

func TestEnsureReplicationConfigRefuses(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	before := logRows(t, conn)

	_, err := queries.EnsureReplicationConfig(t.Context(), conn, ensureParams("05", "04"))
	requireCode(t, sql.CodeInvalidArgument, err)
	_, err = conn.Exec(t.Context(), `select ensure_replication_config('01', null, '01')`)
	requireCode(t, sql.CodeInvalidArgument, err)

	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = queries.EnsureReplicationConfig(t.Context(), tx, ensureParams(version, version))
	requireCode(t, sql.CodeIsolation, err)
	require.NoError(t, tx.Rollback(t.Context()))

	require.Equal(t, before, logRows(t, conn))
}

func TestResetNamesWhoHoldsTheTables(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	before := logRows(t, conn)
	exec(t, conn, `set lock_timeout = '17s'`)
	params := ensureParams("02", "02")
	params.AutoReset, params.MaxWait = true, 50*time.Millisecond

	reader := database.Conn(t)
	exec(t, reader, `set application_name = 'a slow reader'`)
	tx := begin(t, reader)
	exec(t, tx, `select from "changeLog"`)
	_, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
	pgErr := pgError(t, sql.CodeTablesLocked, err)
	require.Regexp(t, `pid \d+ \(application 'a slow reader', user postgres, idle in transaction\) holds AccessShareLock on "changeLog"`, pgErr.Detail)
	require.Contains(t, pgErr.Hint, "max_wait")

	require.Equal(t, "a slow reader",
		one[string](t, conn, `select application_name from lock_holders() where relation = 'changeLog'`))
	exec(t, tx, `prepare transaction 'gid 1'`)
	_, err = queries.EnsureReplicationConfig(t.Context(), conn, params)
	require.Contains(t, pgError(t, sql.CodeTablesLocked, err).Detail,
		`prepared transaction 'gid 1' of user postgres holds AccessShareLock on "changeLog"`)
	exec(t, conn, `rollback prepared 'gid 1'`)

	require.Equal(t, before, logRows(t, conn))
	require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
	require.Zero(t, one[int64](t, conn, `select count(*) from lock_holders()`))
	got, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
	require.NoError(t, err)
	require.Equal(t, "reset", got.Result)
	require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
}

func TestTwoFirstInitialisations(t *testing.T) {
	t.Parallel()

	database := pgtest.New(t)
	first, second, watcher := database.Conn(t), database.Conn(t), database.Conn(t)

	tx := begin(t, first)
	require.Equal(t, "initialized", ensure(t, tx, version, version).Result)
	result := blocked(t, watcher, second, func() (db.EnsureReplicationConfigRow, error) {
		return queries.EnsureReplicationConfig(t.Context(), second, ensureParams(version, version))
	})
	commit(t, tx)

	got := <-result
	require.NoError(t, got.err)
	require.Equal(t, "unchanged", got.value.Result)
	require.Equal(t, seed(version), logRows(t, first))
}

func TestTwoResets(t *testing.T) {
	t.Parallel()

	database, first := owned(t)
	second, third, watcher := database.Conn(t), database.Conn(t), database.Conn(t)

	tx := begin(t, first)
	got, err := reset(t.Context(), tx, "02")
	require.NoError(t, err)
	require.Equal(t, "reset", got.Result)

	impatient := ensureParams("02", "02")
	impatient.MaxWait = time.Millisecond
	_, err = queries.EnsureReplicationConfig(t.Context(), third, impatient)
	requireCode(t, sql.CodeResetRunning, err)

	result := blocked(t, watcher, second, func() (db.EnsureReplicationConfigRow, error) {
		return reset(t.Context(), second, "03")
	})
	commit(t, tx)

	after := <-result
	require.NoError(t, after.err)
	require.Equal(t, "reset", after.value.Result)
	require.Equal(t, seed("03"), logRows(t, first))
}

func TestMarkResetRequired(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	requireCode(t, sql.CodeNotInitialised, queries.MarkResetRequired(t.Context(), conn, version))

	ensure(t, conn, version, version)
	for range 2 {
		require.NoError(t, queries.MarkResetRequired(t.Context(), conn, version))
		require.True(t, start(t, conn)[0].ResetRequired)
	}

	exec(t, conn, `select clear_reset_required()`)
	requireCode(t, sql.CodeNotOwner, queries.MarkResetRequired(t.Context(), conn, "00"))
	require.False(t, start(t, conn)[0].ResetRequired, "of another history")
	exec(t, conn, `select mark_reset_required()`)
	require.True(t, start(t, conn)[0].ResetRequired, "whichever it is")
}
