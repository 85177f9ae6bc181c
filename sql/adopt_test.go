package sql_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// Of the log in testdata/peer.
const (
	peerSchema  = "zero_0/cdc"
	peerVersion = "4l0kt4"
	peerHead    = "4l1oz0" // of one more transaction
	peerOwner   = "rec"
	peerAddress = "127.0.0.1:4911"
)

var (
	peerTables       = []string{"backfilling", "changeLog", "replicationConfig", "replicationState", "tableMetadata", "versionHistory"}
	peerPublications = []string{"_zero_metadata_0", "_zero_public_0"}
)

// peerDatabase makes a database that sorts as Estonian does, z before t, and not by bytes, with the tables that Zero makes.
// The connection has them in its path.
func peerDatabase(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	base := pgtest.Empty(t)
	admin := base.Conn(t)
	database := &pgtest.DB{Server: base.Server, Name: base.Name + "_peer", URL: base.Server.URL(base.Name + "_peer")}
	exec(t, admin, `create database `+database.Name+` template template0 locale_provider icu icu_locale 'et'`)
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `drop database `+database.Name+` with (force)`)
		require.NoError(t, err)
	})

	conn := inSchema(t, database, peerSchema)
	require.True(t, one[bool](t, conn, `select 'z' < 't'`), "the default is not byte order")
	tables, err := os.ReadFile("testdata/peer/schema.sql")
	require.NoError(t, err)
	_, err = conn.PgConn().Exec(t.Context(), string(tables)).ReadAll()
	require.NoError(t, err)
	return database, conn
}

// peerRow is a line of rows.jsonl.
type peerRow struct {
	Table string          `json:"table"`
	Row   json.RawMessage `json:"row"`
}

// peerLog is a row of its change log.
type peerLog struct {
	Watermark string          `json:"watermark"`
	Pos       int64           `json:"pos"`
	Change    json.RawMessage `json:"change"`
	Precommit *string         `json:"precommit"`
}

// peerRows reads what Zero has stored. changes has the rows of the log once more, and behind them a transaction at a
// watermark that Estonian sorts before others.
func peerRows(t *testing.T) (rows []peerRow, changes []peerLog) {
	t.Helper()
	content, err := os.ReadFile("testdata/peer/rows.jsonl")
	require.NoError(t, err)
	for line := range strings.Lines(string(content)) {
		var r peerRow
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		rows = append(rows, r)
		if r.Table == "changeLog" {
			var l peerLog
			require.NoError(t, json.Unmarshal(r.Row, &l))
			changes = append(changes, l)
		}
	}
	require.NotEmpty(t, changes)
	changes = append(changes,
		peerLog{Watermark: peerHead, Pos: 0, Change: json.RawMessage(`{"tag":"begin","json":"s"}`)},
		peerLog{Watermark: peerHead, Pos: 1, Change: json.RawMessage(`{"tag":"commit"}`), Precommit: new(peerHead)})
	return rows, changes
}

// peer is a change database that Zero has written.
func peer(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	database, conn := peerDatabase(t)
	rows, changes := peerRows(t)
	for _, l := range changes {
		exec(t, conn, `insert into "changeLog" values ($1, $2, $3, $4)`, l.Watermark, l.Pos, l.Change, l.Precommit)
	}
	for _, r := range rows {
		if table := quoted(r.Table); r.Table != "changeLog" {
			exec(t, conn, `insert into `+table+` select r.* from json_populate_record(null::`+table+`, $1) as r`, r.Row)
		}
	}
	exec(t, conn, `update "replicationState" set "lastWatermark" = $1`, peerHead)
	return database, conn
}

// peerContents is all that Zero's tables hold, and where and since when each row stands.
func peerContents(t *testing.T, conn *pgx.Conn) map[string]string {
	t.Helper()
	held := map[string]string{}
	for _, table := range peerTables {
		held[table] = one[string](t, conn, `
			select coalesce(string_agg(concat_ws(' ', r.ctid, r.xmin, r), e'\n' order by r.ctid), '') from `+quoted(table)+` as r`)
	}
	return held
}

// peerShape describes Zero's tables, column by column and key by key, but for collations.
const peerShape = `
	select format('%s.%s %s %s %s %s', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
		case when a.attnotnull then 'not null' else 'null' end, pg_get_expr(d.adbin, d.adrelid))
	from pg_class as c
	join pg_attribute as a on a.attrelid = c.oid
	left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
	where c.relnamespace = '"zero_0/cdc"'::regnamespace and c.relname = any ($1) and c.relkind = 'r'
		and a.attnum > 0 and not a.attisdropped
	union all
	select format('%s %s', c.relname, pg_get_constraintdef(k.oid))
	from pg_class as c
	join pg_constraint as k on k.conrelid = c.oid
	where c.relnamespace = '"zero_0/cdc"'::regnamespace and c.relname = any ($1) and k.contype <> 'n'
	order by 1`

func shapeOf(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), peerShape, peerTables)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, lines, "changeLog PRIMARY KEY (watermark, pos)")
	return lines
}

// collations are those of the columns that hold watermarks in Zero's tables.
const collations = `
	select format('%s.%s %s', c.relname, a.attname, a.attcollation::regcollation)
	from pg_class as c
	join pg_attribute as a on a.attrelid = c.oid
	where c.relnamespace = '"zero_0/cdc"'::regnamespace and c.relkind = 'r'
		and (c.relname, a.attname) in (('changeLog', 'watermark'), ('changeLog', 'precommit'), ('replicationState', 'lastWatermark'))
	order by 1`

// Adopting changes no row, gives watermarks the order that they have in bytes, and leaves a log that goes on.
func TestAdopt(t *testing.T) {
	t.Parallel()

	database, conn := peer(t)
	before, shape := peerContents(t, conn), shapeOf(t, conn)
	require.NotEqual(t, peerHead, one[string](t, conn, `select max(watermark) from "changeLog"`), "it sorts otherwise")
	require.NoError(t, sql.Migrate(t.Context(), database.Conn(t), peerSchema))
	conn = inSchema(t, database, peerSchema) // a prepared statement does not outlive the change of its columns' collation
	require.Equal(t, before, peerContents(t, conn))
	require.Equal(t, shape, shapeOf(t, conn))
	require.Equal(t, []string{`changeLog.precommit "C"`, `changeLog.watermark "C"`, `replicationState.lastWatermark "C"`},
		objects(t, conn, collations))
	require.Equal(t, peerHead, one[string](t, conn, `select max(watermark) from "changeLog"`))
	require.NoError(t, sql.Migrate(t.Context(), database.Conn(t), peerSchema), "again")
	require.Equal(t, before, peerContents(t, conn))

	// It is the log that it was.
	fits := ensureParams(peerVersion, peerHead)
	for _, fits.Publications = range [][]string{peerPublications, {"_zero_public_0", "_zero_metadata_0"}} {
		got, err := queries.EnsureReplicationConfig(t.Context(), conn, fits)
		require.NoError(t, err)
		require.Equal(t, db.EnsureReplicationConfigRow{Result: "unchanged"}, got)
	}
	require.Equal(t, db.CatchupBoundsRow{Minimum: peerVersion, Head: peerHead, ReplicaVersion: peerVersion, Owner: peerOwner},
		bounds(t, conn))
	began := start(t, conn)[0]
	requireJSON(t, `{"tableMetadata": [{"schema": "public", "table": "item",
		"metadata": {"rowKey": {"id": {"attNum": 1}}, "schemaOID": 2200, "relationOID": 16519}}], "backfilling": []}`, began.Cookies)
	began.Cookies, began.BackfillRequests = nil, nil
	require.Equal(t, db.StreamStartRow{
		Head: peerHead, ReplicaVersion: peerVersion, Minimum: peerVersion,
		Owner: peerOwner, OwnerAddress: peerAddress, Publications: peerPublications,
	}, began, "Zero's slot is not known")
	require.Equal(t, peerAddress, addressOf(t, conn))
	require.Equal(t, before, peerContents(t, conn), "looking changes nothing")

	// Whoever saw Zero own it takes it over, and Zero's name is no key to it any more.
	register(t, conn, owner, nil)
	take := db.AssumeOwnershipParams{
		Owner: owner, OwnerAddress: new("10.0.0.1:4848"), ReplicaVersion: peerVersion,
		Expected: new("somebody"), Slot: new("zero_0_a"),
	}
	got, err := queries.AssumeOwnership(t.Context(), conn, take)
	require.NoError(t, err)
	require.Equal(t, db.AssumeOwnershipRow{PreviousOwner: peerOwner}, got)
	take.Expected = new(peerOwner)
	got, err = queries.AssumeOwnership(t.Context(), conn, take)
	require.NoError(t, err)
	require.Equal(t, db.AssumeOwnershipRow{Assumed: true, PreviousOwner: peerOwner}, got)
	require.Equal(t, "10.0.0.1:4848", addressOf(t, conn))
	late := after(peerHead, "4l2000")
	late.Owner = peerOwner
	_, err = queries.StoreChanges(t.Context(), conn, late)
	requireCode(t, sql.CodeNotOwner, err)

	// The log goes on in each of the three ways.
	require.Equal(t, db.StoreChangesRow{Stored: 6, Head: "4l200a"}, store(t, conn, after(peerHead, "4l2000", "4l200a")))
	require.Equal(t, db.StoreChangesRow{Head: "4l200a"}, store(t, conn, after(peerHead, "4l2000", "4l200a")), "again")
	copied := after("4l200a", "4l201a")
	copyTransaction(t, conn, copied)
	piecewise(t, conn, after("4l201a", "4l201a.01"))
	require.Equal(t, "4l201a.01", bounds(t, conn).Head)
	require.True(t, report(t, conn, owner, peerVersion, "4l2020"))

	// What was there before is there still, and is purged as ours is.
	require.True(t, strings.HasPrefix(peerContents(t, conn)["changeLog"], before["changeLog"]+"\n"))
	require.NoError(t, queries.ReportBackup(t.Context(), conn,
		db.ReportBackupParams{Watermark: "4l1oc8", ReplicaVersion: peerVersion, At: time.Now()}))
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 30, Done: true}, purge(t, conn, db.PurgeChangeLogParams{
		Before: "4l1oc8", Owner: owner, MaxRows: 10_000, ReplicaVersion: peerVersion,
	}))
	require.Equal(t, []string{"4l1oc8", "4l1oko", "4l1ots", "4l1oz0", "4l2000", "4l200a", "4l201a", "4l201a.01"}, transactions(t, conn))
	tx := begin(t, conn)
	require.Equal(t, db.AcquirePurgeLockRow{Status: "locked", ReplicaVersion: peerVersion, Minimum: "4l1oc8"},
		locksPurge(t, tx, new("4l2020")))
	commit(t, tx)

	status, err := queries.Status(t.Context(), conn)
	require.NoError(t, err)
	require.Equal(t, []string{peerSchema, owner, "10.0.0.1:4848", "zero_0_a", "4l201a.01", "4l1oc8", "4l2020", "4l1oc8"}, []string{
		status.Schema, status.Owner, status.OwnerAddress, status.Slot,
		status.Head, status.Minimum, status.StreamedWatermark, status.BackupWatermark,
	})

	// And it is begun again, at a position of the same history and with another one.
	maintained := reinitializeParams("4l2020")
	maintained.Owner, maintained.ReplicaVersion = owner, peerVersion
	require.Equal(t, "maintained", reinitialize(t, conn, maintained))
	maintained.Watermark = "4l2100"
	require.Equal(t, "reinitialized", reinitialize(t, conn, maintained))
	require.Equal(t, seed("4l2100"), logRows(t, conn))
	fresh, err := reset(t.Context(), conn, "4l3000")
	require.NoError(t, err)
	require.Equal(t, "reset", fresh.Result)
	require.Equal(t, seed("4l3000"), logRows(t, conn))
}

func addressOf(t *testing.T, conn db.DBTX) string {
	t.Helper()
	address, err := queries.ChangeStreamerAddress(t.Context(), conn)
	require.NoError(t, err)
	return address
}

// after is transactions of the adopted log.
func after(expectedHead string, watermarks ...string) db.StoreChangesParams {
	p := batch(expectedHead, watermarks...)
	p.ReplicaVersion = peerVersion
	return p
}

// copyTransaction stores one transaction by COPY.
func copyTransaction(t *testing.T, conn *pgx.Conn, p db.StoreChangesParams) {
	t.Helper()
	tx := begin(t, conn)
	head, err := queries.StoreOpen(t.Context(), tx, db.StoreOpenParams{
		Owner: p.Owner, ReplicaVersion: p.ReplicaVersion, ExpectedHead: p.ExpectedHead, Watermark: p.LastWatermark,
	})
	require.NoError(t, err)
	require.Equal(t, p.ExpectedHead, head)
	columns := []string{"watermark", "pos", "change", "precommit"}
	_, err = tx.CopyFrom(t.Context(), pgx.Identifier{"changeLog"}, columns, pgx.CopyFromSlice(len(p.Positions), func(i int) ([]any, error) {
		values := []any{p.Watermarks[i], p.Positions[i], p.Changes[i], nil}
		if p.Precommits[i] != "" {
			values[3] = p.Precommits[i]
		}
		return values, nil
	}))
	require.NoError(t, err)
	_, err = queries.StoreClose(t.Context(), tx, db.StoreCloseParams{
		Owner: p.Owner, ReplicaVersion: p.ReplicaVersion, LastWatermark: p.LastWatermark,
	})
	require.NoError(t, err)
	commit(t, tx)
}

// piecewise stores one transaction as a role does that may not COPY.
func piecewise(t *testing.T, conn *pgx.Conn, p db.StoreChangesParams) {
	t.Helper()
	tx := begin(t, conn)
	decision, err := queries.BeginTransaction(t.Context(), tx, db.BeginTransactionParams{
		Owner: p.Owner, ReplicaVersion: p.ReplicaVersion, ExpectedHead: p.ExpectedHead, Watermark: p.LastWatermark,
	})
	require.NoError(t, err)
	require.Equal(t, "store", decision)
	_, err = queries.AppendChanges(t.Context(), tx, db.AppendChangesParams{
		Owner: p.Owner, ReplicaVersion: p.ReplicaVersion, Watermark: p.LastWatermark,
		Positions: p.Positions, Changes: p.Changes, Precommits: p.Precommits,
	})
	require.NoError(t, err)
	_, err = queries.CommitTransaction(t.Context(), tx, db.CommitTransactionParams{
		Owner: p.Owner, ReplicaVersion: p.ReplicaVersion, LastWatermark: p.LastWatermark,
	})
	require.NoError(t, err)
	commit(t, tx)
}

// Tables that Zero has made and not used yet serve every call that a streamer makes.
func TestAdoptEmptyTables(t *testing.T) {
	t.Parallel()

	database, conn := peerDatabase(t)
	require.NoError(t, sql.Migrate(t.Context(), database.Conn(t), peerSchema))
	streams(t, conn)
}

// A large log of Zero's is read by its key from the moment that it is adopted, without statistics.
func TestAdoptedLogIsReadByItsKey(t *testing.T) {
	t.Parallel()

	database, conn := peer(t)
	const numTransactions = 20_000
	watermark := func(i int) string {
		return "4m" + strings.Repeat("0", 4-len(strconv.FormatInt(int64(i), 36))) + strconv.FormatInt(int64(i), 36)
	}
	rows := make([][]any, 0, 2*numTransactions)
	for i := range numTransactions {
		w := watermark(i)
		rows = append(rows, []any{w, 0, []byte(`{"tag":"begin"}`), nil}, []any{w, 1, []byte(`{"tag":"commit"}`), w})
	}
	_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"changeLog"}, []string{"watermark", "pos", "change", "precommit"}, pgx.CopyFromRows(rows))
	require.NoError(t, err)
	exec(t, conn, `update "replicationState" set "lastWatermark" = $1`, watermark(numTransactions-1))
	exec(t, conn, `analyze "changeLog"`)
	require.NoError(t, sql.Migrate(t.Context(), database.Conn(t), peerSchema))

	conn = inSchema(t, database, peerSchema) // what a session has scanned is counted from its beginning
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		exec(t, conn, `select set_config('plan_cache_mode', $1, false)`, mode)
		rows, err := conn.Query(t.Context(), `explain (costs off) `+roundsPage, watermark(10_000), 1, 100)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		plan := strings.Join(lines, "\n")
		require.Contains(t, plan, `Index Scan using "changeLog_pkey" on "changeLog" l`, mode)
		require.Contains(t, plan, `Index Cond: (ROW(watermark, pos) > ROW(`, mode)
		require.Contains(t, plan, `Index Only Scan using "changeLog_pkey" on "changeLog" m`, mode)
		require.NotContains(t, plan, `Sort`, mode)
		require.NotContains(t, plan, `Seq Scan on "changeLog"`, mode)

		for _, call := range []string{
			`select from catchup_bounds()`, `select from stream_start()`, `select from acquire_purge_lock()`,
			`select from purge_change_log(before => '4m0001', owner => 'rec', max_rows => 10)`,
		} {
			tx := begin(t, conn)
			exec(t, tx, call)
			require.True(t, one[bool](t, tx, `
				select s.seq_scan = 0 and s.idx_scan > 0 and s.idx_tup_fetch < 1000
				from pg_stat_xact_user_tables as s
				where s.relid = '"changeLog"'::regclass`), "%s: %s", mode, call)
			require.NoError(t, tx.Rollback(t.Context()))
		}
	}
}

// Where Millrace began, Zero finds the tables that it would have made, column by column, and the same rows for the same
// changes.
func TestFreshSchemaIsLikeZeros(t *testing.T) {
	t.Parallel()

	_, theirs := peer(t)
	database := pgtest.Empty(t)
	require.NoError(t, sql.Migrate(t.Context(), database.Conn(t), peerSchema))
	ours := inSchema(t, database, peerSchema)
	require.Equal(t, shapeOf(t, theirs), shapeOf(t, ours))

	initial := ensureParams(peerVersion, peerVersion)
	initial.Publications = peerPublications
	initial.Cookies = one[json.RawMessage](t, theirs, `
		select jsonb_build_object('tableMetadata', jsonb_agg(m), 'backfilling', '[]'::jsonb) from "tableMetadata" as m`)
	got, err := queries.EnsureReplicationConfig(t.Context(), ours, initial)
	require.NoError(t, err)
	require.Equal(t, "initialized", got.Result)
	row, err := queries.AssumeOwnership(t.Context(), ours, db.AssumeOwnershipParams{
		Owner: owner, OwnerAddress: new(peerAddress), ReplicaVersion: peerVersion,
	})
	require.NoError(t, err)
	require.True(t, row.Assumed)
	p := db.StoreChangesParams{Owner: owner, ReplicaVersion: peerVersion, ExpectedHead: peerVersion, LastWatermark: peerHead}
	_, changes := peerRows(t)
	for _, l := range changes {
		if l.Watermark == peerVersion {
			continue // the seed
		}
		p.Watermarks = append(p.Watermarks, l.Watermark)
		p.Positions = append(p.Positions, l.Pos)
		p.Changes = append(p.Changes, l.Change)
		precommit := ""
		if l.Precommit != nil {
			precommit = *l.Precommit
		}
		p.Precommits = append(p.Precommits, precommit)
	}
	store(t, ours, p)
	exec(t, ours, `update "replicationState" set owner = $1`, peerOwner) // Zero's has no incarnation

	for _, table := range peerTables {
		content := `select coalesce(string_agg(r::text, e'\n' order by r::text collate "C"), '') from ` + quoted(table) + ` as r`
		require.Equal(t, one[string](t, theirs, content), one[string](t, ours, content), table)
	}
}

// tableOfVersions is Zero's table of versions in a schema, and null where there is none.
func tableOfVersions(t *testing.T, conn *pgx.Conn, schema string) *string {
	t.Helper()
	table := quoted(schema, "versionHistory")
	if !one[bool](t, conn, `select to_regclass($1) is not null`, table) {
		return nil
	}
	return new(one[string](t, conn, `select concat_ws(' ', v."dataVersion", v."schemaVersion", v."minSafeVersion", v.lock) from `+table+` as v`))
}

// migrateTo goes up or down to a version.
func migrateTo(t *testing.T, conn *pgx.Conn, schema string, version int32) {
	t.Helper()
	migrator, err := migrate.NewMigrator(t.Context(), conn, quoted(schema, "schema_version"))
	require.NoError(t, err)
	migrator.Data = map[string]any{"schema": schema}
	require.NoError(t, migrator.LoadMigrations(sql.FS))
	require.NoError(t, migrator.MigrateTo(t.Context(), version))
}

func TestVersionHistory(t *testing.T) {
	t.Parallel()

	// Only where Zero would look for it.
	conn := pgtest.Empty(t).Conn(t)
	for schema, want := range map[string]*string{
		"zero_0/cdc": new("6 6 1 v"), "shop_17/cdc": new("6 6 1 v"), "cdc": nil, "cdc_zero": nil, "zero_0_cdc": nil, "zero_0/cdc/b": nil,
	} {
		require.NoError(t, sql.Migrate(t.Context(), conn, schema))
		require.Equal(t, want, tableOfVersions(t, conn, schema), schema)
	}

	// Down and up again.
	up := objects(t, conn, strings.ReplaceAll(peerShape, `$1`, `'{versionHistory}'`))
	require.Len(t, up, 6)
	for range 2 {
		migrateTo(t, conn, peerSchema, 26)
		require.Nil(t, tableOfVersions(t, conn, peerSchema))
		migrateTo(t, conn, peerSchema, 27)
		require.Equal(t, "6 6 1 v", *tableOfVersions(t, conn, peerSchema))
		require.Equal(t, up, objects(t, conn, strings.ReplaceAll(peerShape, `$1`, `'{versionHistory}'`)))
	}
}

// What Zero has made stays Zero's, whatever it says.
func TestVersionHistoryOfZero(t *testing.T) {
	t.Parallel()

	database, conn := peer(t)
	exec(t, conn, `update "versionHistory" set "dataVersion" = 7, "schemaVersion" = 8, "minSafeVersion" = 5`)
	before := peerContents(t, conn)
	for _, version := range []int32{27, 26, 27} {
		migrateTo(t, database.Conn(t), peerSchema, version)
		conn = inSchema(t, database, peerSchema)
		require.Equal(t, "7 8 5 v", *tableOfVersions(t, conn, peerSchema))
		require.Equal(t, before, peerContents(t, conn), "version %d", version)
	}
	require.Empty(t, objects(t, conn, `
		select 'commented' where obj_description('"zero_0/cdc"."versionHistory"'::regclass, 'pg_class') is not null`))
	require.True(t, slices.Contains(objects(t, conn, `
		select k.conname::text from pg_constraint as k where k.conrelid = '"zero_0/cdc"."versionHistory"'::regclass`), "pk_schema_meta_lock"))
}
