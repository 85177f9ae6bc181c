package sql_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
)

func TestStreamStart(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	_, err := queries.StreamStart(t.Context(), conn)
	require.ErrorIs(t, err, pgx.ErrNoRows)

	ensure(t, conn, version, version)
	got := start(t, conn)[0]
	requireJSON(t, `[]`, got.BackfillRequests)
	requireJSON(t, `{"tableMetadata":[],"backfilling":[]}`, got.Cookies)
	got.BackfillRequests, got.Cookies = nil, nil
	require.Equal(t, db.StreamStartRow{
		Head: "01", ReplicaVersion: "01", Minimum: "01", Publications: []string{"p", "q"},
	}, got)

	slot := register(t, conn, owner, new("m_")).Slot
	assume(t, conn, owner, nil)
	register(t, conn, other, new("m_")) // a newer slot that is not the owner's
	store(t, conn, batch("01", "02"))
	exec(t, conn, `delete from "changeLog" where watermark = '01'`)
	exec(t, conn, `insert into "tableMetadata" values ('s', 'b', '{"k": 1}'), ('s', 'B', '{"k": 2}')`)
	exec(t, conn, `insert into "backfilling" values
		('s', 'b', 'y', '{"id": 1}'), ('s', 'b', 'X', '{"id": 2}'), ('s', 'a', 'z', '{"id": 3}')`)
	report(t, conn, owner, version, "04")

	got = start(t, conn)[0]
	require.JSONEq(t, `[
		{"table": {"schema": "s", "name": "a", "metadata": null}, "columns": {"z": {"id": 3}}},
		{"table": {"schema": "s", "name": "b", "metadata": {"k": 1}}, "columns": {"X": {"id": 2}, "y": {"id": 1}}}
	]`, string(got.BackfillRequests))
	require.JSONEq(t, `{
		"tableMetadata": [
			{"schema": "s", "table": "B", "metadata": {"k": 2}},
			{"schema": "s", "table": "b", "metadata": {"k": 1}}
		],
		"backfilling": [
			{"schema": "s", "table": "a", "column": "z", "backfill": {"id": 3}},
			{"schema": "s", "table": "b", "column": "X", "backfill": {"id": 2}},
			{"schema": "s", "table": "b", "column": "y", "backfill": {"id": 1}}
		]
	}`, string(got.Cookies))
	got.BackfillRequests, got.Cookies = nil, nil
	require.Equal(t, db.StreamStartRow{
		Head: "02", ReplicaVersion: "01", Minimum: "02", StreamedWatermark: "04",
		Owner: owner, OwnerAddress: owner + ":4848", Slot: slot, Publications: []string{"p", "q"},
	}, got)
}

func TestCatchupBounds(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	_, err := queries.CatchupBounds(t.Context(), conn)
	require.ErrorIs(t, err, pgx.ErrNoRows)

	ensure(t, conn, version, version)
	assume(t, conn, owner, nil)
	store(t, conn, batch("01", "02", "03"))
	require.Equal(t, db.CatchupBoundsRow{Minimum: "01", Head: "03", ReplicaVersion: "01", Owner: owner}, bounds(t, conn))
	exec(t, conn, `delete from "changeLog" where watermark < '03'`)
	require.Equal(t, "03", bounds(t, conn).Minimum)
	exec(t, conn, `delete from "changeLog"`)
	require.Equal(t, db.CatchupBoundsRow{Minimum: "03", Head: "03", ReplicaVersion: "01", Owner: owner}, bounds(t, conn))
}

// Whoever waits for a reset must see what it made, and not empty tables.
func TestReadersThatWaitForAReset(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	reader, watcher := database.Conn(t), database.Conn(t)
	store(t, conn, batch("01", "02"))

	tx := begin(t, conn)
	_, err := reset(t.Context(), tx, "05")
	require.NoError(t, err)
	waiting := blocked(t, watcher, reader, func() (db.CatchupBoundsRow, error) {
		return queries.CatchupBounds(t.Context(), reader)
	})
	commit(t, tx)
	got := <-waiting
	require.NoError(t, got.err)
	require.Equal(t, db.CatchupBoundsRow{Minimum: "05", Head: "05", ReplicaVersion: "05"}, got.value)

	tx = begin(t, conn)
	_, err = reset(t.Context(), tx, "06")
	require.NoError(t, err)
	starting := blocked(t, watcher, reader, func() (db.StreamStartRow, error) {
		return queries.StreamStart(t.Context(), reader)
	})
	commit(t, tx)
	began := <-starting
	require.NoError(t, began.err)
	require.Equal(t, "06", began.value.Head)
	require.Equal(t, "06", began.value.Minimum)
}

func report(t *testing.T, conn *pgx.Conn, name, replicaVersion, watermark string) bool {
	t.Helper()
	isOwner, err := queries.ReportProgress(t.Context(), conn, db.ReportProgressParams{
		Owner: name, ReplicaVersion: replicaVersion, StreamedWatermark: watermark,
	})
	require.NoError(t, err)
	return isOwner
}

func TestReportProgress(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	require.False(t, report(t, conn, owner, version, "02"), "not initialised")
	ensure(t, conn, version, version)
	require.False(t, report(t, conn, owner, version, "02"), "nobody owns the log")
	assume(t, conn, owner, nil)
	require.False(t, report(t, conn, other, version, "02"), "another owner")
	require.False(t, report(t, conn, owner, "00", "02"), "another replica version")
	require.Zero(t, one[int64](t, conn, `select count(*) from progress`))

	streamed := func() string { return start(t, conn)[0].StreamedWatermark }
	require.Empty(t, streamed())
	for _, watermark := range []string{"03", "03", "02.0z"} {
		require.True(t, report(t, conn, owner, version, watermark))
		require.Equal(t, "03", streamed(), "never downwards")
	}
	require.True(t, report(t, conn, owner, version, "03.01"))
	require.Equal(t, "03.01", streamed())

	exec(t, conn, `update progress set backup_watermark = '03', backup_at = now()`)
	require.True(t, report(t, conn, owner, version, "04"))
	require.Equal(t, "03", one[string](t, conn, `select backup_watermark from progress`))
	exec(t, conn, `update progress set replica_version = '00'`)
	require.Empty(t, streamed(), "void")
	require.True(t, report(t, conn, owner, version, "02"))
	require.Equal(t, "02", streamed())
	require.True(t, one[bool](t, conn, `select backup_watermark is null and backup_at is null from progress`))
}

func TestStatus(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	got, err := queries.Status(t.Context(), conn)
	require.NoError(t, err)
	require.Positive(t, got.NumBytes)
	got.NumBytes = 0
	require.Equal(t, db.StatusRow{Schema: pgtest.Schema, Publications: []string{}}, got, "not initialised")

	ensure(t, conn, version, version)
	slot := register(t, conn, owner, new("m_")).Slot
	assume(t, conn, owner, nil)
	register(t, conn, other, nil)
	store(t, conn, batch("01", "02"))
	report(t, conn, owner, version, "04")
	require.NoError(t, queries.MarkResetRequired(t.Context(), conn, version))
	exec(t, conn, `insert into "backfilling" values ('s', 't', 'c', '{}')`)
	exec(t, conn, `analyze "changeLog"`)

	got, err = queries.Status(t.Context(), conn)
	require.NoError(t, err)
	require.NotNil(t, got.StreamedAt)
	require.Positive(t, got.NumBytes)
	got.StreamedAt, got.NumBytes = nil, 0
	require.Equal(t, db.StatusRow{
		Schema: pgtest.Schema, Owner: owner, OwnerAddress: owner + ":4848", Slot: slot, ReplicaVersion: version,
		Publications: []string{"p", "q"}, ResetRequired: true, Head: "02", Minimum: "01", StreamedWatermark: "04",
		NumRows: 5, NumStreamers: 2, NumBackfilling: 1, OwnerState: "owner",
	}, got)
}
