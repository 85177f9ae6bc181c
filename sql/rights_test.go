package sql_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
)

// A role that may only read the tables and call the functions can do all that a
// streamer does, and cannot write a table past the functions.
func TestStreamerNeedsNoRightToWriteTables(t *testing.T) {
	t.Parallel()

	database := pgtest.New(t)
	admin := database.Conn(t)
	role := "plain_" + database.Name // roles belong to the server
	exec(t, admin, `create role `+role+` login`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, statement := range []string{`drop owned by ` + role, `drop role ` + role} {
			_, err := admin.Exec(ctx, statement)
			require.NoError(t, err)
		}
	})
	exec(t, admin, `grant usage on schema cdc to `+role)
	exec(t, admin, `grant select on all tables in schema cdc to `+role)
	for _, function := range objects(t, admin, `
		select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'cdc'::regnamespace and p.proname !~ '^_'`) {
		exec(t, admin, `grant execute on function `+function+` to `+role)
	}
	config := admin.Config()
	config.User = role
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })

	ctx := t.Context()
	require.Equal(t, "initialized", ensure(t, conn, "00", "00").Result)
	got, err := reset(ctx, conn, version)
	require.NoError(t, err)
	require.Equal(t, "reset", got.Result)
	register(t, conn, owner, new("m_"))
	dead := register(t, conn, other, new("m_"))
	require.True(t, assume(t, conn, owner, nil).Assumed)
	require.EqualValues(t, 3, store(t, conn, batch("01", "02")).Stored)
	decision, err := queries.BeginTransaction(ctx, conn, db.BeginTransactionParams{
		Owner: owner, ReplicaVersion: version, ExpectedHead: "02", Watermark: "03",
	})
	require.NoError(t, err)
	require.Equal(t, "store", decision)
	_, err = queries.AppendChanges(ctx, conn, db.AppendChangesParams{
		Owner: owner, ReplicaVersion: version, Watermark: "03",
		Positions: []int64{0}, Changes: [][]byte{[]byte(`{}`)}, Precommits: []string{""},
	})
	require.NoError(t, err)
	head, err := queries.CommitTransaction(ctx, conn, db.CommitTransactionParams{
		Owner: owner, ReplicaVersion: version, LastWatermark: "03",
	})
	require.NoError(t, err)
	require.Equal(t, "03", head)
	require.True(t, report(t, conn, owner, version, "03"))
	_, err = queries.CondemnStreamer(ctx, conn, db.CondemnStreamerParams{ID: dead.ID, Owner: owner, ReplicaVersion: version})
	require.NoError(t, err)
	require.NoError(t, queries.RetireStreamer(ctx, conn, db.RetireStreamerParams{ID: dead.ID, SlotDropped: true}))
	require.NoError(t, queries.MarkResetRequired(ctx, conn))
	require.True(t, start(t, conn)[0].ResetRequired)
	require.Equal(t, "03", bounds(t, conn).Head)
	_, err = queries.Status(ctx, conn)
	require.NoError(t, err)
	exec(t, conn, `select from lock_holders()`)

	for _, statement := range []string{
		`insert into "changeLog" values ('09', 0, '{}', null)`,
		`update "replicationState" set owner = 'me'`,
		`delete from streamer`,
		`truncate progress`,
		`select _begin_change_log('01', 'me', null)`,
		`select _lock_state('a/1', '01', null)`,
	} {
		_, err := conn.Exec(ctx, statement)
		require.ErrorContains(t, err, "permission denied", statement)
	}
}
