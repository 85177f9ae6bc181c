package sql_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// streamerApp is what every session of a streamer calls itself.
const streamerApp = "zero-change-streamer"

const cookies = `{
	"tableMetadata": [{"schema": "s", "table": "new", "metadata": {"key": [1, null]}}],
	"backfilling": [
		{"schema": "s", "table": "new", "column": "c", "backfill": {"id": 7}},
		{"schema": "s", "table": "other", "column": "d", "backfill": []}
	]}`

// reinitializeParams are of b/2, which finds a log of version behind its replica. It
// does not wait long for readers.
func reinitializeParams(watermark string) db.ReinitializeChangeLogParams {
	return db.ReinitializeChangeLogParams{
		Watermark:      watermark,
		Owner:          other,
		OwnerAddress:   new("b:4848"),
		Cookies:        json.RawMessage(cookies),
		TerminateApp:   new(streamerApp),
		Grace:          10 * time.Millisecond,
		RetryEvery:     10 * time.Millisecond,
		MaxWait:        time.Minute,
		ReplicaVersion: version,
	}
}

func reinitialize(t *testing.T, conn db.DBTX, params db.ReinitializeChangeLogParams) string {
	t.Helper()
	result, err := queries.ReinitializeChangeLog(t.Context(), conn, params)
	require.NoError(t, err)
	return result
}

// furnished is a log of owner from 01 to 06, with something in every table. Others have
// registered before and after.
func furnished(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	database, conn := initialised(t)
	register(t, conn, "z/0", new("m_"))
	register(t, conn, owner, new("m_"))
	register(t, conn, other, new("m_"))
	assume(t, conn, owner, nil)
	store(t, conn, batch("01", "02", "03", "04", "05", "06"))
	require.True(t, report(t, conn, owner, version, "06"))
	require.NoError(t, queries.ReportBackup(t.Context(), conn, db.ReportBackupParams{
		Watermark: "05", ReplicaVersion: version, At: time.Now(),
	}))
	exec(t, conn, `insert into "tableMetadata" values ('s', 't', '{}')`)
	exec(t, conn, `insert into "backfilling" values ('s', 't', 'c', '{}')`)
	hasty(t, database, conn)
	return database, conn
}

// hasty makes a reset by conn, and by later sessions, give up a lock after 0.1 s at the
// least: that is how much longer than deadlock_timeout it always waits.
func hasty(t *testing.T, database *pgtest.DB, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `alter database `+database.Name+` set deadlock_timeout = '10 ms'`)
	exec(t, conn, `set deadlock_timeout = '10 ms'`)
}

// contents is all that the tables hold, by table, and when each row was written.
func contents(t *testing.T, conn *pgx.Conn) map[string]string {
	t.Helper()
	held := map[string]string{}
	for _, table := range objects(t, conn, `
		select c.oid::regclass::text from pg_class c where c.relnamespace = 'cdc'::regnamespace and c.relkind = 'r'`) {
		held[table] = one[string](t, conn, `
			select coalesce(string_agg(concat_ws(' ', r.ctid, r.xmin, r), e'\n' order by r.ctid), '') from `+table+` as r`)
	}
	require.Contains(t, held, `"changeLog"`)
	return held
}

// reading is a session of an application that has read from tables in a transaction that
// it leaves open.
func reading(t *testing.T, database *pgtest.DB, application string, tables ...string) *pgx.Conn {
	t.Helper()
	conn := database.Conn(t)
	exec(t, conn, `select set_config('application_name', $1, false)`, application)
	read(t, conn, tables...)
	return conn
}

func read(t *testing.T, conn *pgx.Conn, tables ...string) {
	t.Helper()
	exec(t, conn, `begin`)
	for _, table := range tables {
		exec(t, conn, fmt.Sprintf(`select from %q`, table))
	}
}

// notification is the next one on channel cdc.
func notification(t *testing.T, listener *pgx.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := listener.WaitForNotification(ctx)
	require.NoError(t, err)
	require.Equal(t, "cdc", n.Channel)
	return n.Payload
}

// requireAlive fails if the transaction of a session does not go on.
func requireAlive(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `commit`)
}

func TestReinitializeKeepsALogThatReachesTheReplica(t *testing.T) {
	t.Parallel()

	database, conn := furnished(t)
	reader := reading(t, database, streamerApp, "replicationState", "changeLog", "tableMetadata", "backfilling")
	tests := []struct {
		name, setup, watermark string
		change                 func(*db.ReinitializeChangeLogParams)
	}{
		{name: "head at the watermark", watermark: "06"},
		{name: "head past the watermark", watermark: "03"},
		{name: "no transaction ends at the watermark", watermark: "03.01"},
		{name: "watermark is the replica version", watermark: "01"},
		{name: "log begins at the watermark", watermark: "03", setup: `delete from "changeLog" where watermark < '03'`},
		{
			name: "everything published up to the watermark is in the log", watermark: "07",
			setup: `update progress set streamed_watermark = '07'`,
		},
		{
			name: "everything published past the watermark is in the log", watermark: "06.01",
			setup: `update progress set streamed_watermark = '07'`,
		},
		{name: "empty log that ends at the watermark", watermark: "06", setup: `delete from "changeLog"`},
		{
			name: "nobody owns the log", watermark: "06",
			setup: `update "replicationState" set owner = null, "ownerAddress" = null`,
		},
		{name: "reset required", watermark: "06", setup: `select mark_reset_required()`},
		{name: "caller is the owner", watermark: "06", change: func(p *db.ReinitializeChangeLogParams) { p.Owner = owner }},
		// Nothing is taken from the younger one.
		{
			name: "caller is older than the owner", watermark: "06",
			change: func(p *db.ReinitializeChangeLogParams) { p.Owner = "z/0" },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exec(t, conn, `begin`)
			defer exec(t, conn, `rollback`)
			exec(t, conn, tt.setup)
			before := contents(t, conn)
			params := reinitializeParams(tt.watermark)
			if tt.change != nil {
				tt.change(&params)
			}
			for range 2 {
				require.Equal(t, "maintained", reinitialize(t, conn, params))
				require.Equal(t, before, contents(t, conn))
			}
		})
	}
	requireAlive(t, reader)
}

func TestReinitialize(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	tests := []struct {
		name, setup, watermark string
		change                 func(*db.ReinitializeChangeLogParams)
		wantCookies            string // if not those that are passed
	}{
		{name: "head behind the watermark", watermark: "0a"},
		{name: "head behind by a backfill", watermark: "06.01"},
		{name: "head behind by a digit", watermark: "110"},
		{
			name: "everything published to just before the watermark is in the log", watermark: "07.01",
			setup: `update progress set streamed_watermark = '07'`,
		},
		{
			name: "what was recorded is of another version", watermark: "07",
			setup: `update progress set replica_version = '00', streamed_watermark = '09'`,
		},
		{name: "no state", watermark: "03", setup: `delete from "replicationState"`},
		{name: "no state and no log", watermark: "01", setup: `delete from "replicationState"; delete from "changeLog"`},
		{name: "log ends before its head", watermark: "03", setup: `delete from "changeLog" where watermark = '06'`},
		{name: "log ends past its head", watermark: "06", setup: `insert into "changeLog" values ('07', 0, '{}', null)`},
		{
			name: "log begins past the watermark but does not end at its head", watermark: "02",
			setup: `delete from "changeLog" where watermark <> '05'`,
		},
		{
			name: "nobody owns the log", watermark: "0a",
			setup: `update "replicationState" set owner = null, "ownerAddress" = null`,
		},
		{name: "owner is not registered", watermark: "0a", setup: `update "replicationState" set owner = 'x/1'`},
		{name: "reset required", watermark: "0a", setup: `select mark_reset_required()`},
		{name: "caller is not registered", watermark: "0a", change: func(p *db.ReinitializeChangeLogParams) { p.Owner = "me" }},
		{name: "caller is the owner", watermark: "0a", change: func(p *db.ReinitializeChangeLogParams) { p.Owner = owner }},
		{name: "no address", watermark: "0a", change: func(p *db.ReinitializeChangeLogParams) { p.OwnerAddress = nil }},
		{
			name: "no cookies", watermark: "0a", wantCookies: `{"tableMetadata": [], "backfilling": []}`,
			change: func(p *db.ReinitializeChangeLogParams) { p.Cookies = json.RawMessage(`{}`) },
		},
		{
			name: "cookies are null", watermark: "0a", wantCookies: `{"tableMetadata": [], "backfilling": []}`,
			change: func(p *db.ReinitializeChangeLogParams) {
				p.Cookies = json.RawMessage(`{"tableMetadata": null, "backfilling": null}`)
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exec(t, conn, `begin`)
			defer exec(t, conn, `rollback`)
			exec(t, conn, tt.setup)
			before := contents(t, conn)
			registered := one[int64](t, conn, `select count(*) from streamer`)

			params := reinitializeParams(tt.watermark)
			if tt.change != nil {
				tt.change(&params)
			}
			require.Equal(t, "reinitialized", reinitialize(t, conn, params))

			require.Equal(t, seed(tt.watermark), logRows(t, conn))
			got := start(t, conn)[0]
			require.Equal(t, tt.watermark, got.Head)
			require.Equal(t, params.Owner, got.Owner)
			if params.OwnerAddress != nil {
				require.Equal(t, *params.OwnerAddress, got.OwnerAddress)
			} else {
				require.Nil(t, one[*string](t, conn, `select "ownerAddress" from "replicationState"`))
			}
			require.Empty(t, got.StreamedWatermark)
			want := cookies
			if tt.wantCookies != "" {
				want = tt.wantCookies
			}
			requireJSON(t, want, got.Cookies)
			require.Equal(t, before[`"replicationConfig"`], contents(t, conn)[`"replicationConfig"`])
			require.Equal(t, "05", one[string](t, conn, `select backup_watermark from progress`))
			require.True(t, one[bool](t, conn, `select backup_at is not null and streamed_at is null from progress`))

			// One owner at most has a registration, and nobody else's was touched.
			for name, state := range map[string]string{"z/0": "starting", owner: "gone", other: "starting", params.Owner: "owner"} {
				require.Equal(t, one[int64](t, conn, `select count(*) from streamer where owner = $1`, name),
					one[int64](t, conn, `select count(*) from streamer where owner = $1 and state = $2`, name, state), name)
			}
			require.Equal(t, registered, one[int64](t, conn, `select count(*) from streamer`))
			require.True(t, one[bool](t, conn, `
				select coalesce(bool_and(slot = 'm_' || id and owner_address is not distinct from $2), true)
				from streamer where owner = $1`, params.Owner, params.OwnerAddress))

			// Again: the log fits now.
			after := contents(t, conn)
			require.Equal(t, "maintained", reinitialize(t, conn, params))
			require.Equal(t, after, contents(t, conn))
		})
	}
}

func TestReinitializeRefuses(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	exec(t, conn, `set lock_timeout = '17s'`)
	pass := func(cookies string) func(*db.ReinitializeChangeLogParams) {
		return func(p *db.ReinitializeChangeLogParams) { p.Cookies = json.RawMessage(cookies) }
	}
	tests := []struct {
		name, setup, watermark string
		change                 func(*db.ReinitializeChangeLogParams)
		wantCode, wantDetail   string
	}{
		{
			name: "log begins past the watermark", watermark: "03", setup: `delete from "changeLog" where watermark < '04'`,
			wantCode: sql.CodeReplicaTooOld, wantDetail: "Minimum: 04. Head: 06.",
		},
		{
			name: "empty log whose head is past the watermark", watermark: "05", setup: `delete from "changeLog"`,
			wantCode: sql.CodeReplicaTooOld, wantDetail: "Minimum: 06. Head: 06.",
		},
		{name: "not configured", watermark: "0a", setup: `delete from "replicationConfig"`, wantCode: sql.CodeNotInitialised},
		{
			name: "other replica version", watermark: "0a", wantCode: sql.CodeNotOwner, wantDetail: "'01', the caller at '00'",
			change: func(p *db.ReinitializeChangeLogParams) { p.ReplicaVersion = "00" },
		},
		{
			name: "watermark before the replica version", watermark: "00",
			wantCode: sql.CodeInvalidArgument, wantDetail: "Replica version: 01.",
		},
		{
			name: "deposed incarnation", watermark: "0a", setup: `update streamer set state = 'gone' where owner = 'b/2'`,
			wantCode: sql.CodeCondemned, wantDetail: "deposed or condemned",
		},
		{
			name: "deposed incarnation and a log that reaches the replica", watermark: "06",
			setup:    `update streamer set state = 'gone' where owner = 'b/2'`,
			wantCode: sql.CodeCondemned, wantDetail: "deposed or condemned",
		},
		{
			name: "younger owner", watermark: "0a", wantCode: sql.CodeYoungerOwner,
			change:     func(p *db.ReinitializeChangeLogParams) { p.Owner = "z/0" },
			wantDetail: "Registrations: 2 of a/1, 1 of z/0.",
		},
		{name: "nonsense for a watermark", watermark: "foo", wantCode: sql.CodeInvalidArgument},
		{name: "no watermark", watermark: "", wantCode: sql.CodeInvalidArgument},
		{name: "upper case", watermark: "ZZ", wantCode: sql.CodeInvalidArgument},
		{name: "too many digits", watermark: "0a1", wantCode: sql.CodeInvalidArgument},
		{name: "leading zeros", watermark: "0001", wantCode: sql.CodeInvalidArgument},
		{name: "too few digits", watermark: "11", wantCode: sql.CodeInvalidArgument},
		{name: "leading zero", watermark: "10a", wantCode: sql.CodeInvalidArgument},
		{name: "no minor part behind the dot", watermark: "0a.", wantCode: sql.CodeInvalidArgument},
		{name: "invalid minor part", watermark: "0a.1", wantCode: sql.CodeInvalidArgument},
		{name: "two minor parts", watermark: "0a.01.01", wantCode: sql.CodeInvalidArgument},
		{name: "line break", watermark: "0a\n", wantCode: sql.CodeInvalidArgument},
		{name: "attack", watermark: "1'; drop", wantCode: sql.CodeInvalidArgument},
		{
			name: "cookies are an array", watermark: "0a",
			change: pass(`[]`), wantCode: sql.CodeInvalidArgument, wantDetail: "not an object",
		},
		{
			name: "cookies are the JSON null", watermark: "0a",
			change: pass(`null`), wantCode: sql.CodeInvalidArgument, wantDetail: "not an object",
		},
		{
			name: "no cookies", watermark: "0a",
			change:   func(p *db.ReinitializeChangeLogParams) { p.Cookies = nil },
			wantCode: sql.CodeInvalidArgument, wantDetail: "not an object",
		},
		{
			name: "misspelt name", watermark: "0a",
			change: pass(`{"table_metadata": []}`), wantCode: sql.CodeInvalidArgument, wantDetail: "'table_metadata' is not known",
		},
		{
			name: "metadata is an object", watermark: "0a",
			change: pass(`{"tableMetadata": {}}`), wantCode: sql.CodeInvalidArgument, wantDetail: "tableMetadata is not an array",
		},
		{
			name: "backfills are a text", watermark: "0a",
			change: pass(`{"backfilling": "all"}`), wantCode: sql.CodeInvalidArgument, wantDetail: "backfilling is not an array",
		},
		{
			name: "metadata without a table", watermark: "0a",
			change:   pass(`{"tableMetadata": [{"schema": "s", "tabel": "t", "metadata": {}}]}`),
			wantCode: sql.CodeInvalidArgument, wantDetail: "has no table.",
		},
		{
			name: "metadata that is null", watermark: "0a",
			change:   pass(`{"tableMetadata": [{"schema": "s", "table": "t", "metadata": null}]}`),
			wantCode: sql.CodeInvalidArgument, wantDetail: "has no metadata.",
		},
		{
			name: "backfill without a column", watermark: "0a",
			change:   pass(`{"backfilling": [{"schema": "s", "table": "t", "backfill": {}}]}`),
			wantCode: sql.CodeInvalidArgument, wantDetail: "has no column.",
		},
		{
			name: "backfill that is no object", watermark: "0a", change: pass(`{"backfilling": ["s.t.c"]}`),
			wantCode: sql.CodeInvalidArgument, wantDetail: "has no schema.",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exec(t, conn, `begin`)
			defer exec(t, conn, `rollback`)
			exec(t, conn, tt.setup)
			before := contents(t, conn)
			params := reinitializeParams(tt.watermark)
			if tt.change != nil {
				tt.change(&params)
			}
			exec(t, conn, `savepoint before`)
			for range 2 {
				_, err := queries.ReinitializeChangeLog(t.Context(), conn, params)
				require.Contains(t, pgError(t, tt.wantCode, err).Detail, tt.wantDetail)
				exec(t, conn, `rollback to before`)
			}
			require.Equal(t, before, contents(t, conn))
			require.Equal(t, "17s", one[string](t, conn, `show lock_timeout`))
		})
	}
}

// What is null by mistake must not pass for "any" or "for ever".
func TestReinitializeRefusesNull(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	before := contents(t, conn)
	for _, arguments := range []string{ // one connection: one after the other
		`watermark => null, owner => 'b/2'`,
		`watermark => '0a', owner => 'b/2', max_wait => null`,
		`watermark => '0a', owner => 'b/2', cookies => null`,
	} {
		_, err := conn.Exec(t.Context(), `select reinitialize_change_log(`+arguments+`)`)
		requireCode(t, sql.CodeInvalidArgument, err)
	}
	require.Equal(t, before, contents(t, conn))

	// The version is the one thing that need not be known, and the address.
	exec(t, conn, `select reinitialize_change_log(watermark => '0a', owner => 'b/2', replica_version => null)`)
	require.Equal(t, seed("0a"), logRows(t, conn))
}

// A person may leave the log to whoever starts next.
func TestReinitializeForNobody(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	const call = `select reinitialize_change_log(watermark => '0a', owner => null)`
	for _, want := range []string{"reinitialized", "maintained"} {
		require.Equal(t, want, one[string](t, conn, call))
		require.Equal(t, db.CatchupBoundsRow{Minimum: "0a", Head: "0a", ReplicaVersion: version}, bounds(t, conn))
	}
	require.Equal(t, []string{"a/1 gone", "b/2 starting", "z/0 starting"},
		objects(t, conn, `select concat_ws(' ', owner, state) from streamer order by owner`))
	require.Equal(t, one[string](t, conn, `select slot from streamer where owner = $1`, other), start(t, conn)[0].Slot)
	_, err := queries.StoreChanges(t.Context(), conn, batch("0a", "0b"))
	requireCode(t, sql.CodeNotOwner, err)
	require.True(t, assume(t, conn, other, nil).Assumed)
}

// A row of the cookies that comes twice is found out only after everything was dropped.
func TestReinitializeThatFailsLate(t *testing.T) {
	t.Parallel()

	_, conn := furnished(t)
	before := contents(t, conn)
	for _, twice := range []string{
		`{"tableMetadata": [
			{"schema": "s", "table": "t", "metadata": {}},
			{"schema": "s", "table": "t", "metadata": {"a": 1}}]}`,
		`{"backfilling": [
			{"schema": "s", "table": "t", "column": "c", "backfill": {}},
			{"schema": "s", "table": "t", "column": "c", "backfill": {}}]}`,
	} {
		params := reinitializeParams("0a")
		params.Cookies = json.RawMessage(twice)
		_, err := queries.ReinitializeChangeLog(t.Context(), conn, params)
		require.ErrorContains(t, err, "SQLSTATE 23505")
		require.Equal(t, before, contents(t, conn))
	}
	require.EqualValues(t, 3, store(t, conn, batch("06", "07")).Stored, "the owner goes on")
}
