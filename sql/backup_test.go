package sql_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

func reportBackup(t *testing.T, conn db.DBTX, replicaVersion, watermark string, at time.Time) error {
	t.Helper()
	return queries.ReportBackup(t.Context(), conn, db.ReportBackupParams{Watermark: watermark, ReplicaVersion: replicaVersion, At: at})
}

// backUp reports a backup that is complete now.
func backUp(t *testing.T, conn db.DBTX, watermark string) {
	t.Helper()
	require.NoError(t, reportBackup(t, conn, version, watermark, time.Now()))
}

// known is what status says beyond the head.
type known struct {
	Streamed, Backup string
}

func statusKnown(t *testing.T, conn db.DBTX) known {
	t.Helper()
	got, err := queries.Status(t.Context(), conn)
	require.NoError(t, err)
	require.Equal(t, got.StreamedWatermark != "", got.StreamedAt != nil)
	require.Equal(t, got.BackupWatermark != "", got.BackupAt != nil)
	return known{got.StreamedWatermark, got.BackupWatermark}
}

func TestReportBackup(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t) // whoever makes backups need not wait for an owner
	require.Equal(t, known{}, statusKnown(t, conn))
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name       string
		watermark  string
		at         time.Time
		wantCode   string
		wantBackup string
		wantAt     time.Time
	}{
		{"first", "02", noon, "", "02", noon},
		{"again", "02", noon, "", "02", noon},
		{"again, later", "02", noon.Add(time.Minute), "", "02", noon.Add(time.Minute)},
		{"again, earlier", "02", noon.Add(-time.Hour), "", "02", noon.Add(time.Minute)},
		{"further", "02.01", noon.Add(time.Hour), "", "02.01", noon.Add(time.Hour)},
		{"further by a clock that is slow", "0z", noon, "", "0z", noon.Add(time.Hour)},
		{"with more digits", "110", noon.Add(2 * time.Hour), "", "110", noon.Add(2 * time.Hour)},
		{"backwards", "0z", noon.Add(3 * time.Hour), sql.CodeBackupBackwards, "110", noon.Add(2 * time.Hour)},
		{"backwards by a minor", "10z.0z", noon.Add(3 * time.Hour), sql.CodeInvalidArgument, "110", noon.Add(2 * time.Hour)},
		{"the same, after it was refused", "110", noon, "", "110", noon.Add(2 * time.Hour)},
	}
	for _, tt := range tests { // one log: one after the other
		err := reportBackup(t, conn, version, tt.watermark, tt.at)
		if tt.wantCode != "" {
			requireCode(t, tt.wantCode, err)
		} else {
			require.NoError(t, err, tt.name)
		}
		got, err := queries.Status(t.Context(), conn)
		require.NoError(t, err)
		require.Equal(t, tt.wantBackup, got.BackupWatermark, tt.name)
		require.WithinDuration(t, tt.wantAt, *got.BackupAt, 0, tt.name)
	}
	require.EqualValues(t, 1, one[int64](t, conn, `select count(*) from progress`))

	exec(t, conn, `select report_backup('111', '01')`)
	require.True(t, one[bool](t, conn, `select backup_at > now() - interval '1 minute' from status`), "by default now")
}

func TestReportBackupNamesTheLastOne(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	backUp(t, conn, "05")
	pgErr := pgError(t, sql.CodeBackupBackwards, reportBackup(t, conn, version, "04", time.Now()))
	require.Contains(t, pgErr.Message, "'04'")
	require.Contains(t, pgErr.Detail, "05")
}

func TestReportBackupRefuses(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	requireCode(t, sql.CodeNotInitialised, reportBackup(t, conn, version, "02", time.Now()))
	ensure(t, conn, version, version)

	pgErr := pgError(t, sql.CodeNotOwner, reportBackup(t, conn, "00", "02", time.Now()))
	require.Contains(t, pgErr.Detail, "'01'")
	require.Contains(t, pgErr.Detail, "'00'")
	for call, code := range map[string]string{
		`report_backup('02', null)`:                sql.CodeNotOwner,
		`report_backup(null, '01')`:                sql.CodeInvalidArgument,
		`report_backup('02', '01', null)`:          sql.CodeInvalidArgument,
		`report_backup(null, null, null)`:          sql.CodeInvalidArgument,
		`report_backup('', '01')`:                  sql.CodeInvalidArgument,
		`report_backup('2', '01')`:                 sql.CodeInvalidArgument,
		`report_backup('0A', '01')`:                sql.CodeInvalidArgument,
		`report_backup('102', '01')`:               sql.CodeInvalidArgument,
		`report_backup('02.', '01')`:               sql.CodeInvalidArgument,
		`report_backup('02.01.01', '01')`:          sql.CodeInvalidArgument,
		`report_backup(E'02\n', '01')`:             sql.CodeInvalidArgument,
		`report_backup('02''; --', '01')`:          sql.CodeInvalidArgument,
		`report_backup(repeat('0', 100000), '01')`: sql.CodeInvalidArgument,
	} {
		_, err := conn.Exec(t.Context(), `select `+call)
		requireCode(t, code, err)
	}
	require.Zero(t, one[int64](t, conn, `select count(*) from progress`))
}

// A time that is far off would never be replaced, and some are none that a program can read.
func TestReportBackupRefusesImpossibleTimes(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	for _, at := range []string{`'infinity'`, `'-infinity'`, `'20000-01-01'`, `'0044-03-15 BC'`, `now() + interval '2 days'`} {
		_, err := conn.Exec(t.Context(), `select report_backup('02', '01', `+at+`)`)
		requireCode(t, sql.CodeInvalidArgument, err)
	}
	require.Equal(t, known{}, statusKnown(t, conn))
	exec(t, conn, `select report_backup('02', '01', now() + interval '1 hour')`) // clocks differ
	require.Equal(t, known{Backup: "02"}, statusKnown(t, conn))
}

func TestBackupBesideProgress(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	require.True(t, report(t, conn, owner, version, "04"))
	backUp(t, conn, "03")
	require.Equal(t, known{"04", "03"}, statusKnown(t, conn))
	require.True(t, report(t, conn, owner, version, "05"))
	require.Equal(t, known{"05", "03"}, statusKnown(t, conn))
	backUp(t, conn, "06")
	require.Equal(t, known{"05", "06"}, statusKnown(t, conn), "a backup may be ahead of the log")

	require.True(t, assume(t, conn, other, new(owner)).Assumed)
	require.Equal(t, known{"05", "06"}, statusKnown(t, conn), "it belongs to the history, not to the owner")
}

func TestBackupIsVoidAfterAReset(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	require.True(t, report(t, conn, owner, version, "0x"))
	backUp(t, conn, "0y")
	_, err := reset(t.Context(), conn, "02")
	require.NoError(t, err)
	require.Equal(t, known{}, statusKnown(t, conn))

	requireCode(t, sql.CodeNotOwner, reportBackup(t, conn, version, "0z", time.Now()))
	require.NoError(t, reportBackup(t, conn, "02", "03", time.Now()), "a smaller one than that of the old history")
	require.Equal(t, known{Backup: "03"}, statusKnown(t, conn))
}

// A reset for other publications may keep the version; a backup of the old ones lacks what the new ones have.
func TestBackupIsVoidAfterAResetToTheSameVersion(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	require.True(t, report(t, conn, owner, version, "0x"))
	backUp(t, conn, "0y")
	params := ensureParams(version, version)
	params.Publications, params.AutoReset = []string{"r"}, true
	got, err := queries.EnsureReplicationConfig(t.Context(), conn, params)
	require.NoError(t, err)
	require.Equal(t, "reset", got.Result)
	require.Equal(t, known{}, statusKnown(t, conn))
	backUp(t, conn, "02")
}

func TestBackupIsKeptByReinitialisation(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	require.True(t, report(t, conn, owner, version, "02"))
	backUp(t, conn, "03")
	require.Equal(t, "reinitialized", one[string](t, conn, `select reinitialize_change_log('05', $1)`, owner))
	require.Equal(t, known{Backup: "03"}, statusKnown(t, conn))
	requireCode(t, sql.CodeBackupBackwards, reportBackup(t, conn, version, "02", time.Now()))
	backUp(t, conn, "04")
	require.Equal(t, known{Backup: "04"}, statusKnown(t, conn))
}

// A row of another history says nothing: neither report may keep a part of it.
func TestProgressOfAnotherHistoryIsReplaced(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	stale := func() {
		t.Helper()
		exec(t, conn, `delete from progress`)
		exec(t, conn, `insert into progress (replica_version, streamed_watermark, streamed_at, backup_watermark, backup_at, purged_watermark)
			values ('00', '0y', now(), '0z', now(), '0x')`)
		require.Equal(t, known{}, statusKnown(t, conn))
	}
	stale()
	require.True(t, report(t, conn, owner, version, "02"))
	require.Equal(t, known{Streamed: "02"}, statusKnown(t, conn))
	backUp(t, conn, "03")

	stale()
	backUp(t, conn, "03")
	require.Equal(t, known{Backup: "03"}, statusKnown(t, conn))
	require.True(t, report(t, conn, owner, version, "02"))
	require.Equal(t, known{"02", "03"}, statusKnown(t, conn))
	require.True(t, one[bool](t, conn, `select purged_watermark is null from progress`))
}

func TestReportsAtOnce(t *testing.T) {
	t.Parallel()

	rows := []struct{ name, setup string }{
		{"no row yet", `select`},
		{"a row", `insert into progress (replica_version) values ('01')`},
		{"a row of another history", `insert into progress (replica_version, streamed_watermark, backup_watermark) values ('00', '0z', '0z')`},
	}
	type call struct {
		name string
		make func(*testing.T, db.DBTX) error
	}
	backup := call{"backup", func(t *testing.T, conn db.DBTX) error { return reportBackup(t, conn, version, "03", time.Now()) }}
	progress := call{"progress", func(t *testing.T, conn db.DBTX) error {
		_, err := queries.ReportProgress(t.Context(), conn, db.ReportProgressParams{
			Owner: owner, ReplicaVersion: version, StreamedWatermark: "02",
		})
		return err
	}}
	for _, row := range rows {
		for _, order := range [][2]call{{backup, progress}, {progress, backup}} {
			t.Run(row.name+", "+order[0].name+" first", func(t *testing.T) {
				t.Parallel()

				database, first := owned(t)
				second, watcher := database.Conn(t), database.Conn(t)
				exec(t, first, row.setup)
				tx := begin(t, first)
				require.NoError(t, order[0].make(t, tx))
				result := blocked(t, watcher, second, func() (struct{}, error) { return struct{}{}, order[1].make(t, second) })
				commit(t, tx)
				require.NoError(t, (<-result).err)
				require.Equal(t, known{"02", "03"}, statusKnown(t, first))
			})
		}
	}
}

func TestTwoBackupsAtOnce(t *testing.T) {
	t.Parallel()

	database, first := owned(t)
	second, watcher := database.Conn(t), database.Conn(t)
	later := func() <-chan outcome[struct{}] {
		return blocked(t, watcher, second, func() (struct{}, error) {
			return struct{}{}, reportBackup(t, second, version, "03", time.Now())
		})
	}

	tx := begin(t, first)
	backUp(t, tx, "04")
	result := later()
	commit(t, tx)
	requireCode(t, sql.CodeBackupBackwards, (<-result).err)
	require.Equal(t, known{Backup: "04"}, statusKnown(t, first))

	tx = begin(t, first)
	backUp(t, tx, "05")
	result = later()
	require.NoError(t, tx.Rollback(t.Context()))
	requireCode(t, sql.CodeBackupBackwards, (<-result).err)
	require.Equal(t, known{Backup: "04"}, statusKnown(t, first))
}

func TestBackupDuringAReset(t *testing.T) {
	t.Parallel()

	t.Run("the reset first", func(t *testing.T) {
		t.Parallel()

		database, conn := owned(t)
		tool, watcher := database.Conn(t), database.Conn(t)
		backUp(t, conn, "03")
		tx := begin(t, conn)
		_, err := reset(t.Context(), tx, "02")
		require.NoError(t, err)
		result := blocked(t, watcher, tool, func() (struct{}, error) {
			return struct{}{}, reportBackup(t, tool, version, "0z", time.Now())
		})
		commit(t, tx)
		requireCode(t, sql.CodeNotOwner, (<-result).err)
		require.Equal(t, known{}, statusKnown(t, conn))
	})

	t.Run("the backup first", func(t *testing.T) {
		t.Parallel()

		database, conn := owned(t)
		tool, watcher := database.Conn(t), database.Conn(t)
		tx := begin(t, tool)
		backUp(t, tx, "0z")
		result := blocked(t, watcher, conn, func() (db.EnsureReplicationConfigRow, error) {
			return reset(t.Context(), conn, "02")
		})
		backUp(t, tx, "0z")
		commit(t, tx)
		got := <-result
		require.NoError(t, got.err)
		require.Equal(t, "reset", got.value.Result)
		require.Equal(t, known{}, statusKnown(t, conn))
	})

	// Each of the three waits for the one before it, and none for the one behind.
	t.Run("with progress between them", func(t *testing.T) {
		t.Parallel()

		database, conn := owned(t)
		tool, streaming, watcher := database.Conn(t), database.Conn(t), database.Conn(t)
		tx := begin(t, tool)
		backUp(t, tx, "03")
		progress := blocked(t, watcher, streaming, func() (bool, error) {
			return queries.ReportProgress(t.Context(), streaming, db.ReportProgressParams{
				Owner: owner, ReplicaVersion: version, StreamedWatermark: "02",
			})
		})
		after := blocked(t, watcher, conn, func() (db.EnsureReplicationConfigRow, error) {
			return reset(t.Context(), conn, "02")
		})
		commit(t, tx)
		reported := <-progress
		require.NoError(t, reported.err)
		require.True(t, reported.value)
		got := <-after
		require.NoError(t, got.err)
		require.Equal(t, "reset", got.value.Result)
		require.Equal(t, known{}, statusKnown(t, watcher))
	})
}

func TestBackupDuringReinitialisation(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	tool, watcher := database.Conn(t), database.Conn(t)
	require.True(t, report(t, conn, owner, version, "02"))
	tx := begin(t, conn)
	require.Equal(t, "reinitialized", one[string](t, tx, `select reinitialize_change_log('05', $1)`, owner))
	result := blocked(t, watcher, tool, func() (struct{}, error) {
		return struct{}{}, reportBackup(t, tool, version, "03", time.Now())
	})
	commit(t, tx)
	require.NoError(t, (<-result).err)
	require.Equal(t, known{Backup: "03"}, statusKnown(t, conn))
}
