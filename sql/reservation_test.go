package sql_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

func openReservation(t *testing.T, conn db.DBTX, name, task string) (db.OpenReservationRow, error) {
	t.Helper()
	return queries.OpenReservation(t.Context(), conn, db.OpenReservationParams{
		Owner: name, ReplicaVersion: version, TaskID: task,
	})
}

func opened(t *testing.T, conn db.DBTX, name, task string) db.OpenReservationRow {
	t.Helper()
	got, err := openReservation(t, conn, name, task)
	require.NoError(t, err)
	return got
}

func confirmed(t *testing.T, conn db.DBTX, id int64, watermark string) bool {
	t.Helper()
	got, err := queries.ConfirmReservation(t.Context(), conn, db.ConfirmReservationParams{ID: id, Watermark: watermark})
	require.NoError(t, err)
	return got
}

func closed(t *testing.T, conn db.DBTX, id int64) bool {
	t.Helper()
	got, err := queries.CloseReservation(t.Context(), conn, id)
	require.NoError(t, err)
	return got
}

// reserved is what status says of reservations.
type reserved struct {
	Num       int64
	Watermark string
}

func statusReserved(t *testing.T, conn db.DBTX) reserved {
	t.Helper()
	got, err := queries.Status(t.Context(), conn)
	require.NoError(t, err)
	require.Equal(t, got.NumReservations > 0, got.ReservedAt != nil)
	return reserved{got.NumReservations, got.ReservedWatermark}
}

func TestReservation(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	require.Equal(t, reserved{}, statusReserved(t, conn))

	// No backup is known, so there is nothing to hold.
	early := opened(t, conn, owner, "early")
	require.Empty(t, early.Watermark)
	require.Equal(t, reserved{Num: 1}, statusReserved(t, conn))

	backUp(t, conn, "05")
	late := opened(t, conn, owner, "late")
	require.Equal(t, "05", late.Watermark)
	require.Greater(t, late.ID, early.ID)
	require.Equal(t, reserved{2, "05"}, statusReserved(t, conn))
	require.Equal(t, "early", one[string](t, conn, `
		select r.task_id from status as s join reservation as r on r.opened_at = s.reserved_at`), "the oldest one")

	// The backup that is known when it is opened is held, whatever comes later.
	backUp(t, conn, "07")
	require.Equal(t, reserved{2, "05"}, statusReserved(t, conn))
	require.True(t, confirmed(t, conn, early.ID, "07"))
	require.Equal(t, reserved{2, "05"}, statusReserved(t, conn))
	require.True(t, confirmed(t, conn, late.ID, "07"))
	require.Equal(t, reserved{2, "07"}, statusReserved(t, conn))

	for _, still := range []bool{true, false} {
		require.Equal(t, still, closed(t, conn, late.ID))
		require.Equal(t, reserved{1, "07"}, statusReserved(t, conn))
	}
	require.True(t, closed(t, conn, early.ID))
	require.Equal(t, reserved{}, statusReserved(t, conn))
}

func TestConfirmReservation(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	backUp(t, conn, "05")
	tests := []struct {
		name      string
		first     string // confirmed before; empty: not yet
		watermark string
		want      bool
		wantHeld  string
	}{
		{name: "what it holds", watermark: "05", want: true, wantHeld: "05"},
		{name: "more than it holds is a later backup", watermark: "06.01", want: true, wantHeld: "06.01"},
		{name: "with more digits", watermark: "110", want: true, wantHeld: "110"},
		{name: "less than it holds may be purged", watermark: "04", want: false, wantHeld: "05"},
		{name: "less than it holds, by its minor", watermark: "04.0z", want: false, wantHeld: "05"},
		{name: "again", first: "06", watermark: "06", want: true, wantHeld: "06"},
		{name: "again with more: the subscriber was told the first one", first: "06", watermark: "07", want: true, wantHeld: "06"},
		{name: "again with less", first: "06", watermark: "05", want: true, wantHeld: "06"},
	}
	for _, tt := range tests { // one connection: one after the other
		got := opened(t, conn, owner, "task")
		if tt.first != "" {
			require.True(t, confirmed(t, conn, got.ID, tt.first), tt.name)
		}
		require.Equal(t, tt.want, confirmed(t, conn, got.ID, tt.watermark), tt.name)
		require.Equal(t, reserved{1, tt.wantHeld}, statusReserved(t, conn), tt.name)
		require.Equal(t, tt.want, one[bool](t, conn, `select confirmed_at is not null from reservation`), tt.name)
	}
	require.False(t, confirmed(t, conn, 1<<40, "05"), "no such reservation")
	require.Nil(t, one[*bool](t, conn, `select confirm_reservation(1 << 40, '05') or null`))
}

func TestReservationIsReplaced(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	backUp(t, conn, "05")
	first, stranger := opened(t, conn, owner, "task"), opened(t, conn, owner, "other task")
	require.True(t, confirmed(t, conn, first.ID, "05"))
	backUp(t, conn, "06")
	second := opened(t, conn, owner, "task")
	require.Greater(t, second.ID, stranger.ID)
	require.Equal(t, "06", second.Watermark)
	require.Equal(t, reserved{2, "05"}, statusReserved(t, conn), "that of another task stays")
	require.True(t, closed(t, conn, stranger.ID))

	// Who had the first one comes late.
	require.False(t, confirmed(t, conn, first.ID, "06"))
	require.False(t, closed(t, conn, first.ID))
	require.False(t, one[bool](t, conn, `select confirmed_at is not null from reservation`))
	require.Equal(t, reserved{1, "06"}, statusReserved(t, conn))
	require.True(t, closed(t, conn, second.ID))
}

func TestOpenReservationRefuses(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	_, err := openReservation(t, conn, owner, "task")
	requireCode(t, sql.CodeNotInitialised, err)
	ensure(t, conn, version, version)
	_, err = openReservation(t, conn, owner, "task")
	requireCode(t, sql.CodeNotOwner, err)
	assume(t, conn, owner, nil)
	kept := opened(t, conn, owner, "task")

	_, err = openReservation(t, conn, other, "task")
	requireCode(t, sql.CodeNotOwner, err)
	_, err = queries.OpenReservation(t.Context(), conn, db.OpenReservationParams{Owner: owner, ReplicaVersion: "00", TaskID: "task"})
	requireCode(t, sql.CodeNotOwner, err)
	for call, code := range map[string]string{
		`open_reservation('a/1', '01', null)`:  sql.CodeInvalidArgument,
		`open_reservation(null, '01', 'task')`: sql.CodeInvalidArgument,
		`open_reservation('a/1', '01', '')`:    sql.CodeInvalidArgument,
		`open_reservation('a/1', '01', (select string_agg(md5(n::text), '') from generate_series(1, 100) as n))`: sql.CodeInvalidArgument,
		`open_reservation('a/1', null, 'task')`: sql.CodeNotOwner,
		`open_reservation(null, null, null)`:    sql.CodeInvalidArgument,
		`confirm_reservation(1, null)`:          sql.CodeInvalidArgument,
		`confirm_reservation(1, '')`:            sql.CodeInvalidArgument,
		`confirm_reservation(1, '5')`:           sql.CodeInvalidArgument,
		`confirm_reservation(null, null)`:       sql.CodeInvalidArgument,
	} {
		_, err := conn.Exec(t.Context(), `select `+call)
		requireCode(t, code, err)
	}
	require.False(t, one[bool](t, conn, `select confirm_reservation(null, '05')`))
	require.False(t, one[bool](t, conn, `select close_reservation(null)`))
	require.Equal(t, reserved{Num: 1}, statusReserved(t, conn))
	require.True(t, closed(t, conn, kept.ID))
}

// Names are data: they come from the requests of subscribers.
func TestReservationsOfStrangeTasks(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	tasks := []string{
		" ", `'; drop table reservation; --`, `"`, `\`, `$$`, `%s`, "Ünï\n\t\u2028", `{"a":[1]}`, "null", strings.Repeat("ä", 500),
	}
	ids := map[int64]bool{}
	for range 2 {
		clear(ids)
		for _, task := range tasks {
			ids[opened(t, conn, owner, task).ID] = true
		}
		require.Len(t, ids, len(tasks))
	}
	require.ElementsMatch(t, tasks, objects(t, conn, `select task_id from reservation`))
	for id := range ids {
		require.True(t, closed(t, conn, id))
	}
}

func TestReservationsAreVoidAfterATakeover(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	backUp(t, conn, "02")
	void := opened(t, conn, owner, "task")
	opened(t, conn, owner, "gone with its owner")
	require.True(t, assume(t, conn, other, new(owner)).Assumed)
	require.Equal(t, reserved{}, statusReserved(t, conn))
	backUp(t, conn, "05")

	_, err := openReservation(t, conn, owner, "task")
	requireCode(t, sql.CodeNotOwner, err)
	mine := opened(t, conn, other, "mine")
	require.Equal(t, "05", mine.Watermark)
	require.Equal(t, reserved{1, "05"}, statusReserved(t, conn))
	require.EqualValues(t, 1, one[int64](t, conn, `select count(*) from reservation`), "the void ones are cleared away")
	require.False(t, confirmed(t, conn, void.ID, "05"))
	require.False(t, closed(t, conn, void.ID))
}

// A subscriber that was served by a deposed owner must not be told that it is safe.
func TestConfirmVoidReservation(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	backUp(t, conn, "02")
	void := opened(t, conn, owner, "task")
	require.True(t, assume(t, conn, other, new(owner)).Assumed)
	require.False(t, confirmed(t, conn, void.ID, "02"))
}

func purgeStep(t *testing.T, conn db.DBTX, before, replicaVersion string) db.PurgeChangeLogRow {
	t.Helper()
	got, err := queries.PurgeChangeLog(t.Context(), conn, db.PurgeChangeLogParams{
		Before: before, Owner: owner, MaxRows: 1000, ReplicaVersion: replicaVersion,
	})
	require.NoError(t, err)
	return got
}

func TestReservationHoldsBackThePurge(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	store(t, conn, batch("01", "02", "03", "04", "05", "06"))
	minimum := func() string { return bounds(t, conn).Minimum }
	opened(t, conn, owner, "holds nothing")
	backUp(t, conn, "03")
	held := opened(t, conn, owner, "task")
	backUp(t, conn, "05")
	second := opened(t, conn, owner, "another task")

	require.True(t, purgeStep(t, conn, "05", version).Done)
	require.Equal(t, "03", minimum(), "from its opening on, confirmed or not")
	require.True(t, confirmed(t, conn, held.ID, "04"))
	require.True(t, purgeStep(t, conn, "05", version).Done)
	require.Equal(t, "04", minimum())
	require.True(t, closed(t, conn, held.ID))
	require.True(t, purgeStep(t, conn, "06", version).Done)
	require.Equal(t, "05", minimum(), "the other one")
	require.True(t, closed(t, conn, second.ID))
	require.True(t, purgeStep(t, conn, "06", version).Done)
	require.Equal(t, "06", minimum())
}

// A subscriber that comes back at once: which of the two wins does not matter, but one does.
func TestTwoReservationsOfOneTask(t *testing.T) {
	t.Parallel()

	database, first := owned(t)
	second, watcher := database.Conn(t), database.Conn(t)
	backUp(t, first, "02")

	tx := begin(t, first)
	replaced := opened(t, tx, owner, "task")
	result := blocked(t, watcher, second, func() (db.OpenReservationRow, error) { return openReservation(t, second, owner, "task") })
	commit(t, tx)
	got := <-result
	require.NoError(t, got.err)
	require.NotEqual(t, replaced.ID, got.value.ID)
	require.Equal(t, "02", got.value.Watermark)
	require.Equal(t, reserved{1, "02"}, statusReserved(t, first))
	require.False(t, closed(t, first, replaced.ID))
	require.True(t, closed(t, first, got.value.ID))
}

// Whoever loses the log while it opens a reservation must not touch those of the new owner.
func TestOpenReservationDuringATakeover(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		task string // that the new owner reserves for
	}{
		{name: "for the same task", task: "task"},
		{name: "for another task", task: "another task"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, deposed := owned(t)
			successor, watcher := database.Conn(t), database.Conn(t)

			// The lock stops the deposed owner where it has looked who owns the log.
			tx := begin(t, successor)
			exec(t, tx, `lock table reservation`)
			result := blocked(t, watcher, deposed, func() (db.OpenReservationRow, error) {
				return openReservation(t, deposed, owner, "task")
			})
			require.True(t, assume(t, tx, other, new(owner)).Assumed)
			mine := opened(t, tx, other, tt.task)
			commit(t, tx)

			requireCode(t, sql.CodeNotOwner, (<-result).err)
			require.Equal(t, reserved{Num: 1}, statusReserved(t, watcher))
			require.True(t, closed(t, watcher, mine.ID))
		})
	}
}

func TestOpenReservationWaitsForAReset(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	waiter, watcher := database.Conn(t), database.Conn(t)
	backUp(t, conn, "02")
	tx := begin(t, conn)
	_, err := reset(t.Context(), tx, "03")
	require.NoError(t, err)
	result := blocked(t, watcher, waiter, func() (db.OpenReservationRow, error) { return openReservation(t, waiter, owner, "task") })
	commit(t, tx)
	requireCode(t, sql.CodeNotOwner, (<-result).err)
	require.Zero(t, one[int64](t, conn, `select count(*) from reservation`))
}

// A large transaction holds the state row for long; nobody who wants to restore waits for it.
func TestOpenReservationWhileSomethingIsStored(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	tx := begin(t, database.Conn(t))
	store(t, tx, batch("01", "02"))
	exec(t, conn, `set lock_timeout = '1ms'`)
	got := opened(t, conn, owner, "task")
	require.True(t, confirmed(t, conn, got.ID, "02"))
	require.True(t, closed(t, conn, got.ID))
	commit(t, tx)
}
