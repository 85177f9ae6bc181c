package streamer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
	"millrace/streamer"
	"millrace/streamer/client"
)

// sharing is a configuration with a shared slot.
func sharing(db *pgtest.DB) streamer.Config {
	cfg := rigConfig(db)
	cfg.Slot = "shared_" + db.Name
	return cfg
}

// TestSharedSlot hands one slot on from streamer to streamer: at work, and idle.
func TestSharedSlot(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := sharing(db)
	owner := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	c := items()
	f := follow(t, c, "patient", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	put(t, c, conn, 1)
	arrive(t, c, f)
	for i, busy := range []bool{true, false, true} {
		owner = replaced(t, c, conn, owner, cfg, busy, 1000*(i+1))
		put(t, c, conn, 10+i)
		arrive(t, c, f)
	}
	require.Equal(t, cfg.Slot, tell[string](t, conn, `select slot from cdc.status`))
	require.Equal(t, 1, tell[int](t, conn, slotsOf))
	require.Equal(t, 1, tell[int](t, conn, `select count(*)::int from cdc.streamer where slot is not null`))

	// Whoever does not share it makes one of his own, and leaves it alone.
	next := serving(t, rigConfig(db))
	require.NoError(t, owner.end(t, noticed))
	put(t, c, conn, 20)
	arrive(t, c, f)
	require.Eventually(t, func() bool { return strings.Contains(next.log.String(), "left a shared slot") }, endurance, glimpse)
	require.Equal(t, 2, tell[int](t, conn, slotsOf))

	// Back again: the log still covers it, so long as nobody else has read from it.
	do(t, conn, `select pg_replication_slot_advance($1, pg_current_wal_flush_lsn())`, cfg.Slot)
	becomes(t, endurance, true, conn, `
		select cdc.encode_watermark(confirmed_flush_lsn) <= greatest(s.head, s.streamed_watermark)
		from pg_replication_slots cross join cdc.status as s where slot_name = $1`, cfg.Slot)
	serving(t, cfg)
	require.NoError(t, next.end(t, noticed))
	put(t, c, conn, 30)
	arrive(t, c, f)
	becomes(t, endurance, 1, conn, slotsOf)
}

// TestSharedSlotIsMadeBeforehand begins a history with a slot that an operator has made.
func TestSharedSlotIsMadeBeforehand(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := sharing(db)
	do(t, conn, `create publication given for table public.item`)
	cfg.Publications = []string{"given"}
	do(t, conn, `select pg_create_logical_replication_slot($1, 'pgoutput')`, cfg.Slot)
	c := items()
	put(t, c, conn, 1)
	serving(t, cfg)
	version := replicaVersionOf(t, conn)
	f := follow(t, c, "from the slot on", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	put(t, c, conn, 2)
	arrive(t, c, f)
	require.Equal(t, 1, tell[int](t, conn, slotsOf))
}

// TestSharedSlotOfAStranger is used by somebody who is none of ours: he is never ended.
func TestSharedSlotOfAStranger(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := sharing(db)
	first := serving(t, cfg)
	owner := tell[string](t, conn, `select owner from cdc.status`)
	first.stop(t)
	stranger := reading(t, db, cfg.Slot, "a stranger", "_"+db.Name+"_public_0")

	state := stateOf(t, launch(t, cfg).end(t, endurance), "slot-in-use")
	require.Contains(t, state.Detail, "a stranger")
	require.Contains(t, state.Detail, cfg.Slot)
	require.NotEmpty(t, state.Hint)
	require.Equal(t, owner, tell[string](t, conn, `select owner from cdc.status`), "nothing is taken")
	require.True(t, tell[bool](t, conn, `select active from pg_replication_slots where slot_name = $1`, cfg.Slot))

	require.NoError(t, stranger.Close(t.Context()))
	serving(t, cfg)
}

// reading reads from a slot under the name of an application.
func reading(t *testing.T, db *pgtest.DB, slot, application, publications string) *pgconn.PgConn {
	t.Helper()
	conn, err := tryReading(t, db.URL, slot, application, publications)
	require.NoError(t, err)
	return conn
}

// tryReading does that if nobody else uses the slot.
func tryReading(t *testing.T, url, slot, application, publications string) (*pgconn.PgConn, error) {
	t.Helper()
	config, err := pgconn.ParseConfig(url)
	require.NoError(t, err)
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = application
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	conn.Frontend().SendQuery(&pgproto3.Query{String: fmt.Sprintf(
		`START_REPLICATION SLOT %s LOGICAL 0/0 (proto_version '1', publication_names '%s')`, slot, publications)})
	require.NoError(t, conn.Frontend().Flush())
	for {
		message, err := conn.ReceiveMessage(t.Context())
		if err != nil {
			return nil, err
		}
		switch message := message.(type) {
		case *pgproto3.CopyBothResponse:
			return conn, nil
		case *pgproto3.ErrorResponse:
			return nil, pgconn.ErrorResponseToPgError(message)
		}
	}
}

func TestSharedSlotThatCannotGoOn(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := sharing(db)
	r := serving(t, cfg)
	becomes(t, endurance, true, conn, `select streamed_watermark is not null from cdc.status`)
	r.stop(t)

	other := cfg
	other.Slot, other.AutoReset = "missing", true
	require.Contains(t, stateOf(t, launch(t, other).end(t, endurance), "slot-unfit").Hint, cfg.Slot)

	other.Slot = "past_" + db.Name
	do(t, conn, `insert into public.item values (1)`)
	do(t, conn, `select pg_create_logical_replication_slot($1, 'pgoutput')`, other.Slot)
	require.Contains(t, stateOf(t, launch(t, other).end(t, endurance), "slot-unfit").Hint, cfg.Slot)
	do(t, conn, `select pg_drop_replication_slot($1)`, other.Slot)
	for name, plugin := range map[string]string{"plugin_" + db.Name: "'test_decoding'", "millrace_" + db.Name: "'pgoutput'"} {
		do(t, conn, `select pg_create_logical_replication_slot($1, `+plugin+`)`, name)
		other.Slot = name
		require.Contains(t, stateOf(t, launch(t, other).end(t, endurance), "slot-foreign").Detail, name)
		do(t, conn, `select pg_drop_replication_slot($1)`, name)
	}
	physical := "physical_" + db.Name
	do(t, conn, `select pg_create_physical_replication_slot($1)`, physical)
	other.Slot = physical
	require.Contains(t, stateOf(t, launch(t, other).end(t, endurance), "slot-foreign").Detail, physical)
	do(t, conn, `select pg_drop_replication_slot($1)`, physical)

	// Whoever may reset begins a new history with it.
	version := replicaVersionOf(t, conn)
	cfg.AutoReset, cfg.Publications = true, []string{"other"}
	do(t, conn, `create publication other for table public.item`)
	serving(t, cfg)
	require.NotEqual(t, version, replicaVersionOf(t, conn))
	require.Equal(t, 1, tell[int](t, conn, slotsOf))
}

// TestSharedSlotOfAnotherLog is used by a living streamer, whose log it is.
func TestSharedSlotOfAnotherLog(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := sharing(db)
	serving(t, cfg)
	becomes(t, endurance, true, conn, `select active from pg_replication_slots where slot_name = $1`, cfg.Slot)
	pid := tell[int32](t, conn, `select active_pid from pg_replication_slots where slot_name = $1`, cfg.Slot)
	other := cfg
	other.Schema = "other"
	do(t, conn, `create schema other`)
	require.NoError(t, sql.Migrate(t.Context(), conn, other.Schema))
	do(t, conn, `reset search_path`)
	require.Contains(t, stateOf(t, launch(t, other).end(t, endurance), "slot-in-use").Detail, cfg.Slot)
	require.Equal(t, pid, tell[int32](t, conn, `select active_pid from pg_replication_slots where slot_name = $1`, cfg.Slot))
	require.True(t, tell[bool](t, conn, `select not exists (select from other."replicationState")`), "nothing was begun")
}
