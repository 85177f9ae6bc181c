package sql_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// lockNotAvailable is the server's own code, which a purge gives when it may not purge now.
const lockNotAvailable = "55P03"

// waitsNotForEver lets a test fail that would hang if somebody waited who must not.
const waitsNotForEver = `set statement_timeout = '5s'`

// purging is a purge by the owner in steps of the default size.
func purging(before string) db.PurgeChangeLogParams {
	return db.PurgeChangeLogParams{Before: before, Owner: owner, MaxRows: 10_000, ReplicaVersion: version}
}

func purge(t *testing.T, conn db.DBTX, p db.PurgeChangeLogParams) db.PurgeChangeLogRow {
	t.Helper()
	row, err := queries.PurgeChangeLog(t.Context(), conn, p)
	require.NoError(t, err)
	return row
}

func locksPurge(t *testing.T, tx pgx.Tx, slotWatermark *string) db.AcquirePurgeLockRow {
	t.Helper()
	row, err := queries.AcquirePurgeLock(t.Context(), tx, slotWatermark)
	require.NoError(t, err)
	return row
}

// locked is the answer when minimum is the oldest watermark of the log.
func locked(minimum string) db.AcquirePurgeLockRow {
	return db.AcquirePurgeLockRow{Status: "locked", ReplicaVersion: version, Minimum: minimum}
}

// transactions are the watermarks in the log, each once.
func transactions(t *testing.T, conn db.DBTX) []string {
	t.Helper()
	return one[[]string](t, conn, `
		select coalesce(array_agg(distinct watermark order by watermark), '{}') from "changeLog"`)
}

// storeSized stores transactions of so many rows each, at 02, 03 and so on.
func storeSized(t *testing.T, conn db.DBTX, sizes ...int) {
	t.Helper()
	for i, size := range sizes {
		p := batch(lexi(i+1), lexi(i+2))
		p.Watermarks, p.Positions, p.Changes, p.Precommits = nil, nil, nil, nil
		for pos := range size {
			p.Watermarks = append(p.Watermarks, p.LastWatermark)
			p.Positions = append(p.Positions, int64(pos))
			p.Changes = append(p.Changes, []byte(`{}`))
			p.Precommits = append(p.Precommits, "")
		}
		require.EqualValues(t, size, store(t, conn, p).Stored)
	}
}

// lexi is a number as a watermark.
func lexi(n int) string {
	digits := strconv.FormatInt(int64(n), 36)
	return strconv.FormatInt(int64(len(digits)-1), 36) + digits
}

func purgedWatermark(t *testing.T, conn db.DBTX) string {
	t.Helper()
	return one[string](t, conn, `
		select coalesce(max(p.purged_watermark), '') from progress p
		join "replicationConfig" c on c."replicaVersion" = p.replica_version`)
}

func TestPurgeChangeLog(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	store(t, conn, batch("01", "03", "06"))
	steps := []struct {
		name        string
		before      string
		wantDeleted int64
		want        []string
	}{
		{"between two transactions", "02", 2, []string{"03", "06"}},
		{"at the oldest one", "03", 0, []string{"03", "06"}},
		{"before the log", "00", 0, []string{"03", "06"}},
		{"not in the log", "04", 3, []string{"06"}},
		{"at the newest one, which stays", "06", 0, []string{"06"}},
		{"past the log", "99", 0, []string{"06"}},
		{"the same again", "99", 0, []string{"06"}},
	}
	for _, tt := range steps {
		require.Equal(t, db.PurgeChangeLogRow{Deleted: tt.wantDeleted, Done: true}, purge(t, conn, purging(tt.before)), tt.name)
		require.Equal(t, tt.want, transactions(t, conn), tt.name)
		require.Equal(t, "06", bounds(t, conn).Head, tt.name)
	}
	require.Equal(t, "06", bounds(t, conn).Minimum)

	store(t, conn, batch("06", "06.01", "07"))
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 6, Done: true}, purge(t, conn, purging("99")))
	require.Equal(t, []string{"07"}, transactions(t, conn), "minors are transactions of their own")

	exec(t, conn, `delete from "changeLog"`)
	require.Equal(t, db.PurgeChangeLogRow{Done: true}, purge(t, conn, purging("99")), "an empty log")
}

func TestPurgeTakesWholeTransactions(t *testing.T) {
	t.Parallel()

	// The seed at 01 has two rows.
	tests := []struct {
		name   string
		sizes  []int
		before string
		max    int32
		want   []int64 // rows that each step deletes, until it is done
	}{
		{name: "all in one step", sizes: []int{3, 4, 5}, before: "99", max: 9, want: []int64{9}},
		{name: "one row too many", sizes: []int{3, 4, 5}, before: "99", max: 8, want: []int64{5, 4}},
		{name: "one transaction each", sizes: []int{3, 4, 5}, before: "99", max: 1, want: []int64{2, 3, 4}},
		{name: "none fits beside the next", sizes: []int{3, 4, 5, 1}, before: "99", max: 4, want: []int64{2, 3, 4, 5}},
		{name: "a large one goes alone", sizes: []int{50, 3, 1}, before: "99", max: 10, want: []int64{2, 50, 3}},
		{name: "a large one is the last that goes", sizes: []int{3, 50, 1}, before: "99", max: 10, want: []int64{5, 50}},
		{name: "a large one is the newest", sizes: []int{3, 50}, before: "99", max: 10, want: []int64{5}},
		{name: "a large one, before a watermark between two", sizes: []int{50, 1}, before: "02.01", max: 10, want: []int64{2, 50}},
		{name: "the watermark ends a step", sizes: []int{3, 4, 5, 6}, before: "04", max: 100, want: []int64{9}},
		{name: "nothing is to go", sizes: []int{3}, before: "01", max: 1, want: []int64{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			_, conn := owned(t)
			storeSized(t, conn, tt.sizes...)
			p := purging(tt.before)
			p.MaxRows = tt.max
			var got []int64
			for done := false; !done; {
				row := purge(t, conn, p)
				got, done = append(got, row.Deleted), row.Done
				require.LessOrEqual(t, len(got), len(tt.want))
			}
			require.Equal(t, tt.want, got)
			torn := `select count(*) from (select from "changeLog" group by watermark having min(pos) > 0) as t`
			require.Zero(t, one[int64](t, conn, torn))
		})
	}
}

func TestPurgeRefuses(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	_, err := queries.PurgeChangeLog(t.Context(), conn, purging("99"))
	requireCode(t, sql.CodeNotInitialised, err)
	ensure(t, conn, version, version)
	_, err = queries.PurgeChangeLog(t.Context(), conn, purging("99"))
	requireCode(t, sql.CodeNotOwner, err) // nobody's
	assume(t, conn, owner, nil)
	store(t, conn, batch("01", "02", "03"))
	before := logRows(t, conn)

	tests := []struct {
		name      string
		arguments string
		wantCode  string
	}{
		{"foreign owner", `'03', 'b/2'`, sql.CodeNotOwner},
		{"nobody, but somebody owns the log", `'03', null`, sql.CodeNotOwner},
		{"other replica version", `'03', 'a/1', replica_version => '00'`, sql.CodeNotOwner},
		{"foreign owner, nothing to be deleted", `'00', 'b/2'`, sql.CodeNotOwner},
		{"no watermark", `null, 'a/1'`, sql.CodeInvalidArgument},
		{"no rows", `'03', 'a/1', 0`, sql.CodeInvalidArgument},
		{"negative rows", `'03', 'a/1', -1`, sql.CodeInvalidArgument},
		{"rows are null", `'03', 'a/1', null`, sql.CodeInvalidArgument},
	}
	for _, tt := range tests { // one connection: one after the other
		_, err := conn.Exec(t.Context(), `select purge_change_log(`+tt.arguments+`)`)
		pgErr := pgError(t, tt.wantCode, err)
		require.NotEmpty(t, pgErr.Detail, tt.name)
		require.Contains(t, pgErr.Message, pgtest.Schema, tt.name)
		require.Equal(t, before, logRows(t, conn), tt.name)
	}
	require.Empty(t, purgedWatermark(t, conn))

	// Any version will do when none is given.
	exec(t, conn, `select purge_change_log('03', 'a/1')`)
	require.Equal(t, []string{"03"}, transactions(t, conn))
}

func TestPurgeOfALogThatNobodyOwns(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	exec(t, conn, `insert into "changeLog" values ('02', 0, '{}', '02')`)
	exec(t, conn, `update "replicationState" set "lastWatermark" = '02'`)
	exec(t, conn, `insert into reservation (owner, task_id, watermark) values ('a/1', 'somebody', '01')`)
	require.EqualValues(t, 2, one[int64](t, conn, `select deleted from purge_change_log('99', null)`))
	require.Equal(t, []string{"02"}, transactions(t, conn))
}

func TestPurgeStopsAtReservations(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name         string
		reservations string // rows of owner, task, watermark
		want         []string
	}{
		{"none", ``, []string{"05"}},
		{"the owner's", `('a/1', 't', '03')`, []string{"03", "04", "05"}},
		{"not in the log", `('a/1', 't', '03.01')`, []string{"04", "05"}},
		{"the smallest counts", `('a/1', 't', '04'), ('a/1', 'u', '02'), ('a/1', 'v', '03')`, []string{"02", "03", "04", "05"}},
		{"before the log", `('a/1', 't', '00')`, []string{"01", "02", "03", "04", "05"}},
		{"past the watermark", `('a/1', 't', '07')`, []string{"05"}},
		{"another incarnation's", `('b/2', 't', '02')`, []string{"05"}},
		{"another incarnation's beside the owner's", `('b/2', 't', '02'), ('a/1', 'u', '04')`, []string{"04", "05"}},
		{"holds nothing", `('a/1', 't', null)`, []string{"05"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			_, conn := owned(t)
			store(t, conn, batch("01", "02", "03", "04", "05"))
			if tt.reservations != "" {
				exec(t, conn, `insert into reservation (owner, task_id, watermark) values `+tt.reservations)
			}
			p := purging("99")
			p.MaxRows = 1 // each step looks anew
			for done := false; !done; {
				done = purge(t, conn, p).Done
			}
			require.Equal(t, tt.want, transactions(t, conn))
		})
	}
}

// A subscriber that begins to restore while the log is purged finds what it was promised.
func TestPurgeGoesOnWhenReservationsEnd(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	ctx := t.Context()
	store(t, conn, batch("01", "02", "03", "04"))
	exec(t, conn, `select report_backup('02', '01')`)
	opened, err := queries.OpenReservation(ctx, conn, db.OpenReservationParams{
		Owner: owner, ReplicaVersion: version, TaskID: "t",
	})
	require.NoError(t, err)
	exec(t, conn, `select report_backup('04', '01')`)

	require.EqualValues(t, 2, purge(t, conn, purging("04")).Deleted)
	require.Equal(t, []string{"02", "03", "04"}, transactions(t, conn), "held, although not confirmed")

	confirmed, err := queries.ConfirmReservation(ctx, conn, db.ConfirmReservationParams{ID: opened.ID, Watermark: "03"})
	require.NoError(t, err)
	require.True(t, confirmed)
	require.EqualValues(t, 3, purge(t, conn, purging("04")).Deleted)
	require.Equal(t, []string{"03", "04"}, transactions(t, conn))

	closed, err := queries.CloseReservation(ctx, conn, opened.ID)
	require.NoError(t, err)
	require.True(t, closed)
	require.EqualValues(t, 3, purge(t, conn, purging("04")).Deleted)
	require.Equal(t, []string{"04"}, transactions(t, conn))
}

func TestPurgeRemembersWhereItEnded(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	ctx := t.Context()
	store(t, conn, batch("01", "02", "03", "04", "05", "06"))
	p := purging("06")
	p.MaxRows = 3
	purge(t, conn, p)
	require.Equal(t, "02", purgedWatermark(t, conn))
	p.Before = "04.01"
	for done := false; !done; {
		done = purge(t, conn, p).Done
	}
	require.Equal(t, "04.01", purgedWatermark(t, conn), "nothing of the log lies before, although the watermark is not in it")
	purge(t, conn, purging("02"))
	require.Equal(t, "04.01", purgedWatermark(t, conn), "it never goes back")

	// What others report does not touch it, and it does not touch that.
	exec(t, conn, `select report_backup('05', '01')`)
	_, err := queries.ReportProgress(ctx, conn, db.ReportProgressParams{
		Owner: owner, ReplicaVersion: version, StreamedWatermark: "07",
	})
	require.NoError(t, err)
	require.Equal(t, "04.01", purgedWatermark(t, conn))
	require.EqualValues(t, 3, purge(t, conn, purging("06")).Deleted)
	require.Equal(t, "06 07 05", one[string](t, conn,
		`select concat_ws(' ', purged_watermark, streamed_watermark, backup_watermark) from progress`))

	// The next step does not look before it: that is what it is remembered for.
	exec(t, conn, `insert into "changeLog" values ('00', 0, '{}', '00')`)
	store(t, conn, batch("06", "08"))
	require.EqualValues(t, 3, purge(t, conn, purging("99")).Deleted)
	require.Equal(t, []string{"00", "08"}, transactions(t, conn))
}

func TestPurgeWithARecordOfAnotherHistory(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	store(t, conn, batch("01", "02", "03"))
	exec(t, conn, `insert into progress (replica_version, purged_watermark, backup_watermark) values ('00', '02', '07')`)
	require.EqualValues(t, 5, purge(t, conn, purging("99")).Deleted)
	require.Equal(t, []string{"03"}, transactions(t, conn))
	record := one[string](t, conn, `select concat_ws(' ', replica_version, purged_watermark, backup_watermark) from progress`)
	require.Contains(t, []string{"00 02 07", "01 03"}, record, "one or the other, nothing in between")
}

func TestPurgeAfterTheLogBeganAgain(t *testing.T) {
	t.Parallel()

	for name, again := range map[string]func(t *testing.T, conn *pgx.Conn) (head string){
		"initialised again further on": func(t *testing.T, conn *pgx.Conn) string {
			t.Helper()
			exec(t, conn, `select reinitialize_change_log('09', 'a/1')`)
			return "09"
		},
		"initialised again further back": func(t *testing.T, conn *pgx.Conn) string {
			t.Helper()
			// The log was off for a time, so that it ends elsewhere than its head.
			exec(t, conn, `update "replicationState" set "lastWatermark" = '09'`)
			require.Equal(t, "reinitialized", one[string](t, conn, `select reinitialize_change_log('02', 'a/1')`))
			return "02"
		},
		"reset to a greater version": func(t *testing.T, conn *pgx.Conn) string {
			t.Helper()
			_, err := reset(t.Context(), conn, "09")
			require.NoError(t, err)
			return "09"
		},
		"reset to a smaller version": func(t *testing.T, conn *pgx.Conn) string {
			t.Helper()
			_, err := reset(t.Context(), conn, "00")
			require.NoError(t, err)
			return "00"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, conn := owned(t)
			store(t, conn, batch("01", "02", "03"))
			purge(t, conn, purging("03"))
			require.Equal(t, []string{"03"}, transactions(t, conn))

			head := again(t, conn)
			at := bounds(t, conn)
			if at.Owner == "" {
				exec(t, conn, `select assume_ownership('a/1', null, $1, null)`, at.ReplicaVersion)
			}
			p := batch(head, head+".01", head+".02")
			p.ReplicaVersion = at.ReplicaVersion
			store(t, conn, p)
			q := purging("99")
			q.ReplicaVersion = at.ReplicaVersion
			require.Equal(t, db.PurgeChangeLogRow{Deleted: 5, Done: true}, purge(t, conn, q))
			require.Equal(t, []string{head + ".02"}, transactions(t, conn))
		})
	}
}

// Watermarks are compared byte by byte, whatever the order of the database: in this one 09 comes after 0a, since digits
// are read as numbers.
func TestPurgeInADatabaseOfAnotherOrder(t *testing.T) {
	t.Parallel()

	template := pgtest.New(t)
	admin, name := template.Conn(t), template.Name+"_numbers"
	exec(t, admin, `create database `+name+
		` template template0 locale_provider icu icu_locale 'en-u-kn-true'`)
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `drop database `+name+` with (force)`)
		require.NoError(t, err)
	})
	database := &pgtest.DB{Server: template.Server, Name: name, URL: template.Server.URL(name)}
	conn := database.Conn(t)
	require.True(t, one[bool](t, conn, `select '0a' < '09'`))
	require.NoError(t, sql.Migrate(t.Context(), conn, pgtest.Schema))
	ensure(t, conn, version, version)
	assume(t, conn, owner, nil)
	store(t, conn, batch("01", "09", "0a", "0b"))

	tx := begin(t, conn)
	require.Equal(t, "behind-slot", locksPurge(t, tx, new("0c")).Status)
	require.Equal(t, locked("01"), locksPurge(t, tx, new("09")))
	commit(t, tx)

	exec(t, conn, `select report_backup('09', '01')`)
	opened, err := queries.OpenReservation(t.Context(), conn, db.OpenReservationParams{
		Owner: owner, ReplicaVersion: version, TaskID: "t",
	})
	require.NoError(t, err)
	exec(t, conn, `select report_backup('0a', '01')`)
	_, err = conn.Exec(t.Context(), `select report_backup('09', '01')`)
	requireCode(t, sql.CodeBackupBackwards, err)
	p := purging("0a")
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 2, Done: true}, purge(t, conn, p))
	require.Equal(t, []string{"09", "0a", "0b"}, transactions(t, conn))
	_, err = queries.CloseReservation(t.Context(), conn, opened.ID)
	require.NoError(t, err)
	store(t, conn, batch("0b", "0c"))
	p.Before = "0b"
	p.MaxRows = 3
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 3}, purge(t, conn, p))
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 3, Done: true}, purge(t, conn, p))
	require.Equal(t, []string{"0b", "0c"}, transactions(t, conn))
}

func TestPurgeLock(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name  string
		setup string // after 03 and 05.01 were stored, and everything before 03 purged
		slot  *string
		want  db.AcquirePurgeLockRow
	}{
		{name: "no slot", want: locked("03")},
		{name: "slot before the log", slot: new("01"), want: locked("03")},
		{name: "slot at the head", slot: new("05.01"), want: locked("03")},
		{name: "slot before a minor head", slot: new("05"), want: locked("03")},
		{name: "slot a minor past the head", slot: new("05.02"), want: db.AcquirePurgeLockRow{Status: "behind-slot"}},
		{name: "slot past the head", slot: new("06"), want: db.AcquirePurgeLockRow{Status: "behind-slot"}},
		{name: "slot has more digits", slot: new("110"), want: db.AcquirePurgeLockRow{Status: "behind-slot"}},
		{
			name: "slot at what was streamed", setup: `select report_progress('a/1', '01', '0a')`,
			slot: new("0a"), want: locked("03"),
		},
		{
			name: "slot past what was streamed", setup: `select report_progress('a/1', '01', '0a')`,
			slot: new("0a.01"), want: db.AcquirePurgeLockRow{Status: "behind-slot"},
		},
		{
			name: "less was streamed than is stored", setup: `select report_progress('a/1', '01', '04')`,
			slot: new("05.01"), want: locked("03"),
		},
		{
			name:  "what was streamed of another history",
			setup: `insert into progress (replica_version, streamed_watermark) values ('00', '0a') on conflict (lock) do update set replica_version = '00', streamed_watermark = '0a'`,
			slot:  new("06"), want: db.AcquirePurgeLockRow{Status: "behind-slot"},
		},
		{
			name: "empty log", setup: `delete from "changeLog"`,
			slot: new("05.01"), want: db.AcquirePurgeLockRow{Status: "empty"},
		},
		{
			name: "empty log, slot past the head", setup: `delete from "changeLog"`,
			slot: new("06"), want: db.AcquirePurgeLockRow{Status: "behind-slot"},
		},
		{
			name: "no state row", setup: `delete from "replicationState"`,
			slot: new("06"), want: db.AcquirePurgeLockRow{Status: "empty"},
		},
		{
			name: "no configuration", setup: `delete from "replicationConfig"`,
			want: db.AcquirePurgeLockRow{Status: "empty"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, conn := owned(t)
			exec(t, conn, waitsNotForEver)
			store(t, conn, batch("01", "02", "03", "05.01"))
			purge(t, conn, purging("03"))
			if tt.setup != "" {
				exec(t, conn, tt.setup)
			}
			tx := begin(t, database.Conn(t))
			require.Equal(t, tt.want, locksPurge(t, tx, tt.slot))

			// Held: the oldest row belongs to the locker. Else everything can be locked.
			_, err := conn.Exec(t.Context(), `select from "changeLog" order by watermark, pos limit 1 for update nowait`)
			if tt.want.Status != "locked" {
				require.NoError(t, err)
				commit(t, tx)
				return
			}
			require.ErrorContains(t, err, lockNotAvailable)
			before := logRows(t, conn)
			_, err = queries.PurgeChangeLog(t.Context(), conn, purging("99"))
			requireCode(t, lockNotAvailable, err)
			require.Equal(t, before, logRows(t, conn))
			deposed := purging("99")
			deposed.Owner = other
			_, err = queries.PurgeChangeLog(t.Context(), conn, deposed)
			requireCode(t, sql.CodeNotOwner, err) // that it may not purge at all matters more

			require.Equal(t, tt.want, locksPurge(t, tx, tt.slot), "again")
			commit(t, tx)
			require.EqualValues(t, 3, purge(t, conn, purging("99")).Deleted)
		})
	}
}

func TestPurgeLockBeforeInitialisation(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	require.Equal(t, db.AcquirePurgeLockRow{Status: "empty"}, locksPurge(t, begin(t, conn), new("01")))
}

func TestSeveralHoldThePurgeLock(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	exec(t, conn, waitsNotForEver)
	store(t, conn, batch("01", "02"))
	first, second := begin(t, database.Conn(t)), begin(t, database.Conn(t))
	exec(t, second, waitsNotForEver)
	require.Equal(t, locked("01"), locksPurge(t, first, nil))
	require.Equal(t, locked("01"), locksPurge(t, second, nil))

	commit(t, first)
	_, err := queries.PurgeChangeLog(t.Context(), conn, purging("02"))
	requireCode(t, lockNotAvailable, err)
	require.NoError(t, second.Rollback(t.Context()))
	require.EqualValues(t, 2, purge(t, conn, purging("02")).Deleted)
}

func TestPurgeLockNeedsToSeeWhatItWaitsFor(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		require.NoError(t, err)
		_, err = queries.AcquirePurgeLock(t.Context(), tx, nil)
		requireCode(t, sql.CodeIsolation, err)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// With the purge lock the newcomer can take the log over, and the owner stores meanwhile.
func TestPurgeLockIsInNobodysWay(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	newcomer := database.Conn(t)
	tx := begin(t, database.Conn(t))
	require.Equal(t, locked("01"), locksPurge(t, tx, nil))
	for _, session := range []*pgx.Conn{conn, newcomer} {
		exec(t, session, waitsNotForEver)
	}
	store(t, conn, batch("01", "02"))
	require.True(t, assume(t, newcomer, other, new(owner)).Assumed)
	commit(t, tx)
	require.Equal(t, []string{"01", "02"}, transactions(t, conn))
}

func TestPurgeLockWaitsForAPurge(t *testing.T) {
	t.Parallel()

	// Each purges in the background and commits after the locker waits for it.
	tests := []struct {
		name  string
		purge []string
		want  db.AcquirePurgeLockRow
	}{
		{
			"a step",
			[]string{`select purge_change_log('02', 'a/1')`},
			locked("02"),
		},
		{
			"all that it saw, and there is more since",
			[]string{
				`delete from "changeLog"`, `insert into "changeLog" values ('07', 0, '{}', '07')`,
			},
			locked("07"),
		},
		{
			"all, and nothing came since",
			[]string{`delete from "changeLog"`},
			db.AcquirePurgeLockRow{Status: "empty"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, conn := owned(t)
			store(t, conn, batch("01", "02", "03"))
			purger := begin(t, database.Conn(t))
			for _, statement := range tt.purge {
				exec(t, purger, statement)
			}
			locker := database.Conn(t)
			tx := begin(t, locker)
			result := blocked(t, conn, locker, func() (db.AcquirePurgeLockRow, error) {
				return queries.AcquirePurgeLock(t.Context(), tx, nil)
			})
			commit(t, purger)
			got := <-result
			require.NoError(t, got.err)
			require.Equal(t, tt.want, got.value)
			commit(t, tx)
		})
	}
}

func TestTwoPurgesAtOnce(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	exec(t, conn, waitsNotForEver)
	store(t, conn, batch("01", "02", "03"))
	tx := begin(t, database.Conn(t))
	p := purging("03")
	p.MaxRows = 2
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 2}, purge(t, tx, p))
	_, err := queries.PurgeChangeLog(t.Context(), conn, p)
	requireCode(t, lockNotAvailable, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, []string{"01", "02", "03"}, transactions(t, conn))
	require.Empty(t, purgedWatermark(t, conn))
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 2}, purge(t, conn, p))
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 3, Done: true}, purge(t, conn, p))
}

// A purge waits for who stores only after it has deleted, and then sees who owns the log.
func TestPurgeWhileTheOwnerStores(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	store(t, conn, batch("01", "02"))
	purger := database.Conn(t)
	purges := func() (db.PurgeChangeLogRow, error) {
		return queries.PurgeChangeLog(t.Context(), purger, purging("99"))
	}

	tx := begin(t, database.Conn(t))
	store(t, tx, batch("02", "03"))
	result := blocked(t, conn, purger, purges)
	store(t, tx, batch("03", "04"))
	commit(t, tx)
	got := <-result
	require.NoError(t, got.err)
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 2, Done: true}, got.value, "the newest when it looked stays")
	require.Equal(t, []string{"02", "03", "04"}, transactions(t, conn))

	before := logRows(t, conn)
	tx = begin(t, database.Conn(t))
	require.True(t, assume(t, tx, other, new(owner)).Assumed)
	result = blocked(t, conn, purger, purges)
	commit(t, tx)
	requireCode(t, sql.CodeNotOwner, (<-result).err)
	require.Equal(t, before, logRows(t, conn), "lost between the deletion and the look at the owner")
	require.Equal(t, "02", purgedWatermark(t, conn))
}

// However long a step deletes, who stores does not wait for it.
func TestStoringDoesNotWaitForADeletion(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	store(t, conn, batch("01", "02", "03"))
	inTheWay := begin(t, database.Conn(t)) // of the deletion: no oldest row, so no purge lock
	exec(t, inTheWay, `select from "changeLog" where watermark = '02' for share`)
	purger := database.Conn(t)
	result := blocked(t, conn, purger, func() (db.PurgeChangeLogRow, error) {
		return queries.PurgeChangeLog(t.Context(), purger, purging("03"))
	})
	exec(t, conn, waitsNotForEver)
	store(t, conn, batch("03", "04"))
	commit(t, inTheWay)
	require.NoError(t, (<-result).err)
	require.Equal(t, []string{"03", "04"}, transactions(t, conn))
}

// A reset that comes while a purge deletes waits for it, although the purge has yet to lock the state row.
func TestPurgeAndResetDoNotDeadlock(t *testing.T) {
	t.Parallel()

	for name, resets := range map[string]func(ctx context.Context, conn *pgx.Conn) (string, error){
		"reset": func(ctx context.Context, conn *pgx.Conn) (string, error) {
			row, err := reset(ctx, conn, "09")
			return row.Result, err
		},
		"reinitialized": func(ctx context.Context, conn *pgx.Conn) (result string, err error) {
			err = conn.QueryRow(ctx, `select reinitialize_change_log('09', 'b/2')`).Scan(&result)
			return result, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			database, conn := owned(t)
			store(t, conn, batch("01", "02", "03"))
			inTheWay := begin(t, database.Conn(t))
			exec(t, inTheWay, `select from "changeLog" where watermark = '02' for share`)
			// If there were a deadlock, the purge would be told of it: the reset would forgive one.
			purger, resetter := database.Conn(t), database.Conn(t)
			exec(t, purger, `set deadlock_timeout = '10ms'`)
			exec(t, resetter, `set deadlock_timeout = '10s'`)
			purged := blocked(t, conn, purger, func() (db.PurgeChangeLogRow, error) {
				return queries.PurgeChangeLog(t.Context(), purger, purging("03"))
			})
			result := blocked(t, conn, resetter, func() (string, error) { return resets(t.Context(), resetter) })
			commit(t, inTheWay)

			first := <-purged
			require.NoError(t, first.err)
			require.Equal(t, db.PurgeChangeLogRow{Deleted: 5, Done: true}, first.value)
			got := <-result
			require.NoError(t, got.err)
			require.Equal(t, name, got.value)
			require.Equal(t, seed("09"), logRows(t, conn))

			// And one that waited for the reset finds the log lost.
			_, err := queries.PurgeChangeLog(t.Context(), purger, purging("99"))
			requireCode(t, sql.CodeNotOwner, err)
		})
	}
}

// purgeModel is what the log should hold, told in Go.
type purgeModel struct {
	conn *pgx.Conn

	version      string
	owner        string
	last         int            // the number of the newest watermark
	sizes        map[string]int // rows of each transaction
	backup       string
	reservations map[int64]*modelReservation // of the owner, by id
}

type modelReservation struct {
	task      string
	watermark string // "": it holds nothing
	confirmed bool
}

func (m *purgeModel) watermarks() []string { return slices.Sorted(maps.Keys(m.sizes)) }

// limit is the watermark that a purge does not pass.
func (m *purgeModel) limit(before string) string {
	limit := before
	if log := m.watermarks(); len(log) > 0 {
		limit = min(limit, log[len(log)-1])
	}
	for _, r := range m.reservations {
		if r.watermark != "" {
			limit = min(limit, r.watermark)
		}
	}
	return limit
}

// purge is one step: the first transaction goes in any case.
func (m *purgeModel) purge(before string, maxRows int) db.PurgeChangeLogRow {
	limit, row := m.limit(before), db.PurgeChangeLogRow{Done: true}
	for _, w := range m.watermarks() {
		switch size := m.sizes[w]; {
		case w >= limit:
			return row
		case row.Deleted > 0 && int(row.Deleted)+size > maxRows:
			row.Done = false
			return row
		default:
			row.Deleted += int64(size)
			delete(m.sizes, w)
		}
	}
	return row
}

func (m *purgeModel) begins(at string) {
	m.sizes = map[string]int{at: 2}
	m.reservations = map[int64]*modelReservation{}
}

// modelOwners tells owners apart, also those of other runs in the same database.
var modelOwners int

func (m *purgeModel) newOwner() string {
	modelOwners++
	return fmt.Sprintf("m/%d", modelOwners)
}

// anyWatermark is in the log, or near one that is.
func (m *purgeModel) anyWatermark(t *rapid.T) string {
	w := lexi(rapid.IntRange(max(1, m.last-15), m.last+2).Draw(t, "watermark"))
	if rapid.Bool().Draw(t, "minor") {
		w += ".01"
	}
	return w
}

// TestPurgeIsAsTheModelSays lets storing, purging, reservations, takeovers and resets follow each other
// at random, and compares the log with what a model in Go holds.
func TestPurgeIsAsTheModelSays(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	ctx := t.Context()
	versions := 0
	rapid.Check(t, func(t *rapid.T) {
		m := &purgeModel{conn: conn}
		reset := func() {
			versions++
			m.last, m.owner, m.backup = versions*1000, m.newOwner(), ""
			m.version = lexi(m.last)
			params := ensureParams(m.version, m.version)
			params.AutoReset = true
			_, err := queries.EnsureReplicationConfig(ctx, conn, params)
			require.NoError(t, err)
			m.take(t, ctx, nil)
			m.begins(m.version)
		}
		reset()
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { m.check(t, ctx) },
			"store": func(t *rapid.T) {
				p := db.StoreChangesParams{Owner: m.owner, ReplicaVersion: m.version}
				for _, size := range rapid.SliceOfN(rapid.IntRange(1, 6), 1, 5).Draw(t, "sizes") {
					m.last += rapid.IntRange(1, 2).Draw(t, "gap")
					p.LastWatermark = lexi(m.last)
					if rapid.Bool().Draw(t, "minor") {
						p.LastWatermark += ".01"
					}
					m.sizes[p.LastWatermark] = size
					for pos := range size {
						p.Watermarks = append(p.Watermarks, p.LastWatermark)
						p.Positions = append(p.Positions, int64(pos))
						p.Changes = append(p.Changes, []byte(`{}`))
						p.Precommits = append(p.Precommits, "")
					}
				}
				_, err := queries.StoreChanges(ctx, conn, p)
				require.NoError(t, err)
			},
			"purge": func(t *rapid.T) {
				before := rapid.OneOf(rapid.Just("99"), rapid.Custom(m.anyWatermark)).Draw(t, "before")
				rows := rapid.IntRange(1, 12).Draw(t, "rows")
				got, err := queries.PurgeChangeLog(ctx, conn, db.PurgeChangeLogParams{
					Before: before, Owner: m.owner, MaxRows: int32(rows), ReplicaVersion: m.version, //nolint:gosec // small
				})
				require.NoError(t, err)
				require.Equal(t, m.purge(before, rows), got, "before %s, %d rows", before, rows)
			},
			"purge all": func(t *rapid.T) {
				for done := false; !done; {
					got, err := queries.PurgeChangeLog(ctx, conn, db.PurgeChangeLogParams{
						Before: "99", Owner: m.owner, MaxRows: 4, ReplicaVersion: m.version,
					})
					require.NoError(t, err)
					require.Equal(t, m.purge("99", 4), got)
					done = got.Done
				}
			},
			"backup": func(t *rapid.T) {
				w := m.anyWatermark(t)
				err := queries.ReportBackup(ctx, conn, db.ReportBackupParams{
					Watermark: w, ReplicaVersion: m.version, At: time.Now(),
				})
				if w < m.backup {
					require.ErrorContains(t, err, sql.CodeBackupBackwards)
					return
				}
				require.NoError(t, err)
				m.backup = w
			},
			"open a reservation": func(t *rapid.T) {
				task := rapid.SampledFrom([]string{"t", "u", "v"}).Draw(t, "task")
				got, err := queries.OpenReservation(ctx, conn, db.OpenReservationParams{
					Owner: m.owner, ReplicaVersion: m.version, TaskID: task,
				})
				require.NoError(t, err)
				require.Equal(t, m.backup, got.Watermark)
				maps.DeleteFunc(m.reservations, func(_ int64, r *modelReservation) bool { return r.task == task })
				m.reservations[got.ID] = &modelReservation{task: task, watermark: got.Watermark}
			},
			"confirm a reservation": func(t *rapid.T) {
				id, w := m.anyReservation(t), m.anyWatermark(t)
				r := m.reservations[id]
				if r != nil && !r.confirmed && w >= r.watermark {
					r.watermark, r.confirmed = w, true
				}
				got, err := queries.ConfirmReservation(ctx, conn, db.ConfirmReservationParams{ID: id, Watermark: w})
				require.NoError(t, err)
				require.Equal(t, r != nil && r.confirmed, got)
			},
			"close a reservation": func(t *rapid.T) {
				id := m.anyReservation(t)
				got, err := queries.CloseReservation(ctx, conn, id)
				require.NoError(t, err)
				require.Equal(t, m.reservations[id] != nil, got)
				delete(m.reservations, id)
			},
			"take over": func(t *rapid.T) {
				before := m.owner
				m.owner = m.newOwner()
				m.take(t, ctx, &before)
				clear(m.reservations)
			},
			"initialise again": func(t *rapid.T) {
				rarely(t)
				m.last += rapid.IntRange(1, 5).Draw(t, "gap")
				m.owner = m.newOwner()
				at := lexi(m.last)
				_, err := conn.Exec(ctx, `select reinitialize_change_log($1, $2)`, at, m.owner)
				require.NoError(t, err)
				m.begins(at)
			},
			"reset": func(t *rapid.T) {
				rarely(t)
				reset()
			},
		})
	})
}

// rarely leaves out most of the steps that take long and forget much.
func rarely(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "rarely") > 0 {
		t.SkipNow()
	}
}

func (m *purgeModel) anyReservation(t *rapid.T) int64 {
	ids := append(slices.Sorted(maps.Keys(m.reservations)), -1)
	return rapid.SampledFrom(ids).Draw(t, "reservation")
}

func (m *purgeModel) take(t *rapid.T, ctx context.Context, expected *string) { //nolint:revive // t comes first
	row, err := queries.AssumeOwnership(ctx, m.conn, db.AssumeOwnershipParams{
		Owner: m.owner, ReplicaVersion: m.version, Expected: expected,
	})
	require.NoError(t, err)
	require.True(t, row.Assumed)
}

// check compares the log with the model, and with what is remembered of purges.
func (m *purgeModel) check(t *rapid.T, ctx context.Context) { //nolint:revive // t comes first
	var watermarks, want []string
	var torn int
	var start, minimum string
	err := m.conn.QueryRow(ctx, `
		select array_agg(format('%s: %s', l.watermark, l.num_rows) order by l.watermark), count(*) filter (where not l.whole),
			(select coalesce(max(p.purged_watermark), '') from progress p where p.replica_version = $1),
			(select b.minimum from catchup_bounds() as b)
		from (
			select watermark, count(*) as num_rows, min(pos) = 0 and max(pos) = count(*) - 1 as whole
			from "changeLog"
			group by watermark
		) as l`, m.version).Scan(&watermarks, &torn, &start, &minimum)
	require.NoError(t, err)
	for _, w := range m.watermarks() {
		want = append(want, fmt.Sprintf("%s: %d", w, m.sizes[w]))
	}
	require.Equal(t, want, watermarks)
	require.Zero(t, torn)
	require.Equal(t, m.watermarks()[0], minimum)
	require.LessOrEqual(t, start, minimum, "a purge would begin behind the oldest transaction")
}
