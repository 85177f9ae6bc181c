package streamer_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
	"millrace/streamer"
	"millrace/streamer/client"
)

// Of the log that Zero has left in peerFolder.
const (
	peerFolder  = "../sql/testdata/peer/"
	peerSchema  = "zero_0/cdc"
	peerVersion = "4l0kt4"
	peerHead    = "4l1ots"
	// adminShutdown is what a walsender is told that is ended.
	adminShutdown = "57P01"
)

// A bequest is a database whose changes Zero has streamed so far: it has its tables, and the
// log, and the slot, which Zero has confirmed past the log's head.
type bequest struct {
	db   *pgtest.DB
	conn *pgx.Conn
	cfg  streamer.Config
	c    *Checker // knows what the log holds
	log  []row
}

func bequeathed(t *testing.T) *bequest {
	t.Helper()
	b := &bequest{db: pgtest.Empty(t), c: items()}
	b.conn = b.db.Conn(t)
	do(t, b.conn, `create table public.item (id int primary key, name text not null default 'n', qty int, note text)`)
	do(t, b.conn, `create publication _zero_public_0 for table public.item`)
	do(t, b.conn, `create publication _zero_metadata_0`)

	tables, err := os.ReadFile(peerFolder + "schema.sql")
	require.NoError(t, err)
	_, err = b.conn.PgConn().Exec(t.Context(), string(tables)).ReadAll()
	require.NoError(t, err)
	lines, err := loadLines[struct {
		Table string          `json:"table"`
		Row   json.RawMessage `json:"row"`
	}](peerFolder + "rows.jsonl")
	require.NoError(t, err)
	for _, line := range lines {
		table := pgx.Identifier{peerSchema, line.Table}.Sanitize()
		do(t, b.conn, `insert into `+table+` select r.* from json_populate_record(null::`+table+`, $1) as r`, line.Row)
	}
	b.log = b.stored(t)
	require.NoError(t, sql.Migrate(t.Context(), b.db.Conn(t), peerSchema))
	var ids []string
	for _, r := range b.log {
		if id, ok := b.c.Row(r.Change); ok {
			ids = append(ids, id)
		}
		if r.Precommit != nil {
			b.c.Committed(r.Watermark, ids...)
			ids = nil
		}
	}

	// The server has not written as much as the one that the log comes from.
	for !tell[bool](t, b.conn, `select pg_current_wal_lsn() > '0/21B68F0'`) {
		do(t, b.conn, `select pg_logical_emit_message(false, 'test', 'a segment has something in it')`)
		do(t, b.conn, `select pg_switch_wal()`)
	}
	b.cfg = rigConfig(b.db)
	b.cfg.AppID, b.cfg.Schema, b.cfg.Slot = "zero", peerSchema, "zero_0_"+b.db.Name
	b.cfg.Publications = []string{"_zero_public_0", "_zero_metadata_0"}
	do(t, b.conn, `select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot)
	return b
}

// stored is the log.
func (b *bequest) stored(t *testing.T) []row {
	t.Helper()
	rows, err := b.conn.Query(t.Context(), `
		select json_build_object('watermark', c.watermark, 'pos', c.pos, 'change', c.change, 'precommit', c.precommit)::text
		from "zero_0/cdc"."changeLog" as c
		order by c.watermark collate "C", c.pos`)
	require.NoError(t, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	stored := make([]row, len(texts))
	for i, text := range texts {
		require.NoError(t, json.Unmarshal([]byte(text), &stored[i]))
	}
	return stored
}

// zero uses the slot as Zero's replication manager does.
func (b *bequest) zero(t *testing.T) *pgconn.PgConn {
	t.Helper()
	t.Cleanup(func() { // its connection is closed by then
		ctx, cancel := waitContext()
		defer cancel()
		require.Eventually(t, func() bool {
			active, err := ask[bool](ctx, b.conn, `select active from pg_replication_slots where slot_name = $1`, b.cfg.Slot)
			return err == nil && !active
		}, endurance, glimpse)
	})
	return reading(t, b.db, b.cfg.Slot, "zero-replicator", "_zero_public_0,_zero_metadata_0")
}

// toldToEnd waits until a walsender has been ended.
func toldToEnd(t *testing.T, conn *pgconn.PgConn) {
	t.Helper()
	ctx, cancel := waitContext()
	defer cancel()
	for {
		_, err := conn.ReceiveMessage(ctx)
		if err == nil {
			continue
		}
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
		require.Equal(t, adminShutdown, pgErr.Code)
		return
	}
}

// TestAdopt takes the log of a living Zero over, and goes on with it.
func TestAdopt(t *testing.T) {
	t.Parallel()
	b := bequeathed(t)
	zero := b.zero(t)

	// Zero writes nothing down of what it has confirmed, so this could be a hole.
	state := stateOf(t, launch(t, b.cfg).end(t, endurance), "hole")
	require.Contains(t, state.Hint, "--adopt")
	require.Equal(t, "rec 127.0.0.1:4911 t", tell[string](t, b.conn, `
		select concat_ws(' ', s.owner, s."ownerAddress", r.active)
		from "zero_0/cdc"."replicationState" as s
		join pg_replication_slots as r on r.slot_name = $1`, b.cfg.Slot), "nothing is taken")

	b.cfg.Adopt = true
	r := serving(t, b.cfg)
	toldToEnd(t, zero)
	require.Contains(t, r.log.String(), "took it that the log is whole")
	require.Equal(t, b.log, b.stored(t), "it is the log that it was")
	require.Equal(t, []string{r.address, b.cfg.Slot, peerVersion, peerHead, "true", "true"}, tell[[]string](t, b.conn, `
		select array[owner_address, slot, replica_version, head, (owner like 'task/%')::text, (owner_address ~ '^[^/]+:[0-9]+$')::text]
		from "zero_0/cdc".status`))

	f := follow(t, b.c, "all of it", found(t, b.db.URL, peerSchema), client.Position{ReplicaVersion: peerVersion, Watermark: peerVersion}, nil)
	late := follow(t, b.c, "from Zero's head", found(t, b.db.URL, peerSchema), client.Position{ReplicaVersion: peerVersion, Watermark: peerHead}, nil)
	put(t, b.c, b.conn, 1001)
	put(t, b.c, b.conn, 1002, 1003)
	arrive(t, b.c, f, late)
	b.sameShape(t, 2)

	// From here on it is a log like any other: what is confirmed is written down.
	r.stop(t)
	b.cfg.Adopt = false
	put(t, b.c, b.conn, 1004)
	serving(t, b.cfg)
	put(t, b.c, b.conn, 1005)
	arrive(t, b.c, f, late)
	b.sameShape(t, 4)
}

// sameShape waits until so many transactions of inserts are stored behind Zero's, and
// compares each with the last of those that Zero has stored.
func (b *bequest) sameShape(t *testing.T, transactions int) {
	t.Helper()
	becomes(t, endurance, transactions, b.conn, `
		select count(*)::int from "zero_0/cdc"."changeLog" where watermark collate "C" > $1 and precommit is not null`, peerHead)
	log := b.stored(t)
	require.Equal(t, b.log, log[:len(b.log)], "what Zero has stored is as it was")
	_, err := framesOf(log[2:]) // behind the seed
	require.NoError(t, err)

	theirs := map[string][]string{}
	for _, r := range b.log[2:] {
		tag, members := membersOf(t, r.Change)
		theirs[tag] = members
	}
	for _, r := range log[len(b.log):] {
		tag, members := membersOf(t, r.Change)
		require.Subset(t, theirs[tag], members, "%s has what Zero's has, in part", tag)
		require.Equal(t, tag == "commit", r.Precommit != nil)
		if tag == "insert" {
			require.Subset(t, members, []string{"new.id", "new.name", "new.qty", "new.note", "relation.schema", "relation.name", "relation.rowKey"})
		}
	}
}

// membersOf is the tag of a change and the names of what it has, two levels deep. The text
// must be canonical: the tag first, and no blanks.
func membersOf(t *testing.T, change json.RawMessage) (tag string, members []string) {
	t.Helper()
	var c map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(change, &c))
	require.NoError(t, json.Unmarshal(c["tag"], &tag))
	require.Regexp(t, `^\{"tag":"`+tag+`"[,}]`, string(change))
	for name, value := range c {
		members = append(members, name)
		var inner map[string]json.RawMessage
		if json.Unmarshal(value, &inner) == nil {
			for member := range inner {
				members = append(members, name+"."+member)
			}
		}
	}
	return tag, members
}

// TestAdoptWhatTheLogCovers needs nobody's word: Zero has stored past what it has confirmed.
func TestAdoptWhatTheLogCovers(t *testing.T) {
	t.Parallel()
	b := bequeathed(t)
	do(t, b.conn, `set synchronous_commit = on`) // so that the end lies behind it
	put(t, b.c, b.conn, 1001)                    // Zero has stored it, and has not come to confirm it
	head := tell[string](t, b.conn, `select "zero_0/cdc".encode_watermark(pg_current_wal_lsn())`)
	do(t, b.conn, `
		with w as (select $1::text as w)
		insert into "zero_0/cdc"."changeLog" (watermark, pos, change, precommit)
		select w, 0, '{"tag":"begin","json":"s"}'::json, null from w
		union all
		select w, 1, '{"tag":"insert","relation":{"schema":"public","name":"item","rowKey":{"columns":["id"]}},"new":{"id":1001}}', null from w
		union all
		select w, 2, '{"tag":"commit"}', w from w`, head)
	do(t, b.conn, `update "zero_0/cdc"."replicationState" set "lastWatermark" = $1`, head)
	serving(t, b.cfg)
	f := follow(t, b.c, "all of it", found(t, b.db.URL, peerSchema), client.Position{ReplicaVersion: peerVersion, Watermark: peerVersion}, nil)
	put(t, b.c, b.conn, 1002)
	arrive(t, b.c, f)
}

// TestAdoptNoLogWithoutItsEnd refuses a log that was not written to its end, whatever the operator says.
func TestAdoptNoLogWithoutItsEnd(t *testing.T) {
	t.Parallel()
	b := bequeathed(t)
	b.cfg.Adopt = true
	for _, head := range []string{"4l1otz", "4l1oko"} { // past the last transaction, and before it
		do(t, b.conn, `update "zero_0/cdc"."replicationState" set "lastWatermark" = $1`, head)
		require.NotEmpty(t, stateOf(t, launch(t, b.cfg).end(t, endurance), "hole").Hint)
		require.Equal(t, "rec", tell[string](t, b.conn, `select owner from "zero_0/cdc"."replicationState"`))
	}
}

// TestZeroTakesTheLogBack is what a Zero does that is started again: it takes the log, and
// the slot, without asking. The streamer gives way, and does not take it from Zero in turn.
func TestZeroTakesTheLogBack(t *testing.T) {
	t.Parallel()
	b := bequeathed(t)
	b.cfg.Adopt = true
	r := serving(t, b.cfg)
	f := follow(t, b.c, "all of it", found(t, b.db.URL, peerSchema), client.Position{ReplicaVersion: peerVersion, Watermark: peerVersion}, nil)
	put(t, b.c, b.conn, 1001)
	arrive(t, b.c, f)
	f.stop()
	b.sameShape(t, 1)
	before := b.stored(t)

	do(t, b.conn, `update "zero_0/cdc"."replicationState" set owner = 'rec', "ownerAddress" = '127.0.0.1:4911'`)
	do(t, b.conn, `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1`, b.cfg.Slot)
	becomes(t, endurance, false, b.conn, `select active from pg_replication_slots where slot_name = $1`, b.cfg.Slot)
	zero := b.zero(t)
	require.NoError(t, r.end(t, noticed), "a clean end")
	require.Contains(t, r.log.String(), "rec")
	require.Equal(t, before, b.stored(t))
	require.True(t, tell[bool](t, b.conn, `select active from pg_replication_slots where slot_name = $1`, b.cfg.Slot))
	require.NoError(t, zero.Close(t.Context()))
}

// TestAdoptAfterACrash goes on where a streamer died that had the log from Zero, but not yet the slot.
func TestAdoptAfterACrash(t *testing.T) {
	t.Parallel()
	b := bequeathed(t)
	zero := b.zero(t)
	do(t, b.conn, `select "zero_0/cdc".register_streamer(task_id => 'task', owner => 'task/dead', owner_address => '127.0.0.1:1')`)
	do(t, b.conn, `select "zero_0/cdc".assume_ownership(owner => 'task/dead', owner_address => '127.0.0.1:1', replica_version => $1,
		expected => 'rec', slot => $2)`, peerVersion, b.cfg.Slot)

	b.cfg.Adopt = true
	serving(t, b.cfg)
	toldToEnd(t, zero)
	f := follow(t, b.c, "all of it", found(t, b.db.URL, peerSchema), client.Position{ReplicaVersion: peerVersion, Watermark: peerVersion}, nil)
	put(t, b.c, b.conn, 1001)
	arrive(t, b.c, f)
}
