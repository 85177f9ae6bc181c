package sql_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

func register(t *testing.T, conn *pgx.Conn, name string, prefix *string) db.RegisterStreamerRow {
	t.Helper()
	task, _, _ := strings.Cut(name, "/")
	got, err := queries.RegisterStreamer(t.Context(), conn, db.RegisterStreamerParams{
		TaskID: task, Owner: name, OwnerAddress: new(name + ":4848"), SlotPrefix: prefix,
	})
	require.NoError(t, err)
	return got
}

func TestRegisterStreamer(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	exec(t, conn, `alter table streamer alter column id restart with 5000000000`)

	first := register(t, conn, owner, new("millrace_app_0_"))
	require.Equal(t, db.RegisterStreamerRow{ID: 5_000_000_000, Slot: "millrace_app_0_5000000000"}, first)
	second := register(t, conn, other, nil)
	require.Greater(t, second.ID, first.ID)
	require.Empty(t, second.Slot)

	require.Equal(t, first, register(t, conn, owner, new("millrace_app_0_")), "again")
	require.Equal(t, first, register(t, conn, owner, nil), "again without a prefix")
	require.EqualValues(t, 2, one[int64](t, conn, `select count(*) from streamer where state = 'starting'`))
}

func TestRegisterStreamerRefuses(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	tests := []struct {
		name, task, owner, prefix, wantCode string
	}{
		{name: "owner of another task", task: "a", owner: "b/1", prefix: "m_", wantCode: sql.CodeInvalidArgument},
		{name: "no incarnation", task: "a", owner: "a/", prefix: "m_", wantCode: sql.CodeInvalidArgument},
		{name: "upper case", task: "a", owner: "a/1", prefix: "M_", wantCode: sql.CodeInvalidSlotName},
		{name: "dash", task: "a", owner: "a/1", prefix: "my-app_", wantCode: sql.CodeInvalidSlotName},
		{name: "too long", task: "a", owner: "a/1", prefix: strings.Repeat("m", 63), wantCode: sql.CodeInvalidSlotName},
	}
	for _, tt := range tests { // one connection: one after the other
		_, err := queries.RegisterStreamer(t.Context(), conn, db.RegisterStreamerParams{
			TaskID: tt.task, Owner: tt.owner, SlotPrefix: &tt.prefix,
		})
		requireCode(t, tt.wantCode, err)
	}
	require.Zero(t, one[int64](t, conn, `select count(*) from streamer`))
}

func TestCondemnStreamer(t *testing.T) {
	t.Parallel()

	database, conn := initialised(t)
	mine, dead, slotless := register(t, conn, owner, new("m_")), register(t, conn, other, new("m_")), register(t, conn, "c/3", nil)
	condemn := func(id int64, by, replicaVersion string) (string, error) {
		return queries.CondemnStreamer(t.Context(), conn, db.CondemnStreamerParams{
			ID: id, Owner: by, ReplicaVersion: replicaVersion,
		})
	}

	_, err := condemn(dead.ID, owner, version)
	requireCode(t, sql.CodeNotOwner, err) // nobody owns the log
	assume(t, conn, owner, nil)
	_, err = condemn(dead.ID, owner, "00")
	requireCode(t, sql.CodeNotOwner, err)
	_, err = condemn(mine.ID, owner, version)
	requireCode(t, sql.CodeCondemnOwner, err)
	_, err = condemn(1<<40, owner, version)
	requireCode(t, sql.CodeNotRegistered, err)

	for range 2 {
		slot, err := condemn(dead.ID, owner, version)
		require.NoError(t, err)
		require.Equal(t, dead.Slot, slot)
	}
	slot, err := condemn(slotless.ID, owner, version)
	require.NoError(t, err)
	require.Empty(t, slot)

	_, err = queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{
		Owner: other, ReplicaVersion: version, Expected: new(owner),
	})
	requireCode(t, sql.CodeCondemned, err)

	// A newcomer that takes the log over at the same time is either seen, or barred.
	newcomer, watcher := database.Conn(t), database.Conn(t)
	late := register(t, conn, "d/4", new("m_"))
	tx := begin(t, conn)
	_, err = queries.CondemnStreamer(t.Context(), tx, db.CondemnStreamerParams{ID: late.ID, Owner: owner, ReplicaVersion: version})
	require.NoError(t, err)
	result := blocked(t, watcher, newcomer, func() (db.AssumeOwnershipRow, error) {
		return queries.AssumeOwnership(t.Context(), newcomer, db.AssumeOwnershipParams{
			Owner: "d/4", ReplicaVersion: version, Expected: new(owner),
		})
	})
	commit(t, tx)
	requireCode(t, sql.CodeCondemned, (<-result).err)
}

func TestDeadStreamers(t *testing.T) {
	t.Parallel()

	_, conn := initialised(t)
	dead := func() (ids []int64) {
		t.Helper()
		rows, err := queries.DeadStreamers(t.Context(), conn, owner)
		require.NoError(t, err)
		for _, r := range rows {
			require.NotEmpty(t, r.Slot)
			ids = append(ids, r.ID)
		}
		return ids
	}

	mine, gone, stuck := register(t, conn, owner, new("m_")), register(t, conn, other, new("m_")), register(t, conn, "c/3", new("m_"))
	register(t, conn, "d/4", new("m_")) // starting just now
	register(t, conn, "e/5", nil)       // has no slot
	assume(t, conn, owner, nil)
	require.Empty(t, dead())

	exec(t, conn, `update streamer set registered_at = now() - interval '61 minutes' where id in ($1, $2)`, stuck.ID, mine.ID)
	require.Equal(t, []int64{stuck.ID}, dead())
	for range 2 {
		require.NoError(t, queries.RetireStreamer(t.Context(), conn, db.RetireStreamerParams{ID: gone.ID}))
		require.Equal(t, []int64{gone.ID, stuck.ID}, dead())
	}
	for range 2 {
		require.NoError(t, queries.RetireStreamer(t.Context(), conn, db.RetireStreamerParams{ID: gone.ID, SlotDropped: true}))
		require.Equal(t, []int64{stuck.ID}, dead())
	}
	err := queries.RetireStreamer(t.Context(), conn, db.RetireStreamerParams{ID: 1 << 40})
	requireCode(t, sql.CodeNotRegistered, err)
}
