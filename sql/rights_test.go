package sql_test

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// estate is a log of a plain owner, in a database of its own, with the roles that an operator makes.
type estate struct {
	database *pgtest.DB
	admin    *pgx.Conn // a superuser
	owner    *pgx.Conn // acts as the owner, which can not log in
	schema   string

	names map[string]string // of the roles, by what they are for
}

// newEstate migrates as the owner.
func newEstate(t *testing.T, schema string) *estate {
	t.Helper()
	e := &estate{database: pgtest.Empty(t), schema: schema, names: map[string]string{}}
	e.admin = e.database.Conn(t)
	e.role(t, "owner", "nologin")
	exec(t, e.admin, `grant create on database `+e.database.Name+` to `+quoted(e.names["owner"]))
	e.owner = e.connect(t, "postgres", func(c *pgx.ConnConfig) { c.RuntimeParams["role"] = e.names["owner"] })
	require.Equal(t, e.names["owner"], one[string](t, e.owner, `select current_user::text`))
	require.NoError(t, sql.Migrate(t.Context(), e.owner, schema))
	require.Equal(t, e.names["owner"], one[string](t, e.owner, `select current_user::text`))
	return e
}

// role makes a role. Roles belong to the server, so its name has the database's in it.
func (e *estate) role(t *testing.T, purpose, options string) string {
	t.Helper()
	name := purpose + "_" + e.database.Name
	makeRole(t, e.admin, name, options)
	e.names[purpose] = name
	return name
}

// makeRole makes a role for as long as the test goes on.
func makeRole(t *testing.T, admin *pgx.Conn, name, options string) {
	t.Helper()
	exec(t, admin, `create role `+quoted(name)+` `+options)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, statement := range []string{`drop owned by ` + quoted(name) + ` cascade`, `drop role ` + quoted(name)} {
			_, err := admin.Exec(ctx, statement)
			require.NoError(t, err)
		}
	})
}

func quoted(names ...string) string { return pgx.Identifier(names).Sanitize() }

// connect logs a role in.
func (e *estate) connect(t *testing.T, role string, changes ...func(*pgx.ConnConfig)) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(e.database.URL)
	require.NoError(t, err)
	config.User = role
	config.RuntimeParams["search_path"] = quoted(e.schema)
	for _, change := range changes {
		change(config)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn
}

func grantAccess(ctx context.Context, conn db.DBTX, role, access string) error {
	_, err := conn.Exec(ctx, `select grant_access(role => $1, access => $2)`, role, access)
	return err
}

// granted is a role with some access, logged in.
func (e *estate) granted(t *testing.T, purpose, access string) *pgx.Conn {
	t.Helper()
	name := e.role(t, purpose, "login")
	require.NoError(t, grantAccess(t.Context(), e.owner, name, access))
	return e.connect(t, name)
}

// rights has every function, relation and sequence of the schema, and who may use it: execute a function, select from
// a relation, have usage of the schema. Nobody but the owner may do anything else. What is not in it fails the test.
var rights = map[string]string{
	"schema": "streamer reader backup",

	"table changeLog":         "streamer reader",
	"table replicationState":  "streamer reader",
	"table replicationConfig": "streamer reader",
	"table tableMetadata":     "streamer reader",
	"table backfilling":       "streamer reader",
	"table streamer":          "streamer reader",
	"table progress":          "streamer reader",
	"table reservation":       "streamer reader",
	"table retention_mark":    "streamer reader",
	"table schema_version":    "streamer reader", // so that serve sees that there is nothing to migrate
	"table status":            "streamer reader",

	"sequence streamer_id_seq":    "",
	"sequence reservation_id_seq": "",

	"ensure_replication_config": "streamer",
	"reinitialize_change_log":   "streamer",
	"lock_holders":              "streamer reader",
	"terminate_lock_holders":    "",
	"mark_reset_required":       "streamer",
	"clear_reset_required":      "",
	"forget_backup":             "",
	"register_streamer":         "streamer",
	"assume_ownership":          "streamer",
	"announce_takeover":         "streamer",
	"assume_ownership_at_head":  "streamer",
	"change_streamer_address":   "streamer reader",
	"report_progress":           "streamer",
	"condemn_streamer":          "streamer",
	"retire_streamer":           "streamer",
	"dead_streamers":            "streamer reader",
	"store_changes":             "streamer",
	"store_open":                "streamer",
	"store_close":               "streamer",
	"begin_transaction":         "streamer",
	"append_changes":            "streamer",
	"commit_transaction":        "streamer",
	"report_backup":             "streamer backup",
	"purge_change_log":          "streamer",
	"acquire_purge_lock":        "streamer",
	"open_reservation":          "streamer",
	"confirm_reservation":       "streamer",
	"close_reservation":         "streamer",
	"stream_start":              "streamer reader",
	"catchup_bounds":            "streamer reader",
	"mark_log":                  "streamer",
	"report_floor":              "streamer",
	"retained_watermark":        "streamer reader",
	"encode_watermark":          "streamer reader",
	"decode_watermark":          "streamer reader",
	"grant_access":              "",

	"_lock_state":             "",
	"_check_transaction":      "",
	"_limit_lock_wait":        "",
	"_lock_configuration":     "",
	"_terminate_lock_holders": "",
	"_try_lock_tables":        "",
	"_make_way":               "",
	"_check_incarnation":      "",
	"_check_newcomer":         "",
	"_take_over":              "",
	"_functions_of":           "",
	"_settle_streamers":       "",
	"_check_younger":          "",
	"_check_watermark":        "",
	"_check_cookies":          "",
	"_begin_change_log":       "",
	"_set_cookies":            "",
	"_keeps_log":              "",
	"_compare_configuration":  "",
}

// objectsOf has the name of every object as in rights, its oid and class, and its owner.
const objectsOf = `
	select 'schema' as name, n.oid, 'schema' as class, n.nspowner as owner
	from pg_catalog.pg_namespace as n
	where n.nspname = $1
	union all
	select case c.relkind when 'S' then 'sequence ' else 'table ' end || c.relname, c.oid,
		case c.relkind when 'S' then 'sequence' else 'table' end, c.relowner
	from pg_catalog.pg_class as c
	join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
	where n.nspname = $1 and c.relkind not in ('i', 'I', 'c', 't')
	union all
	select p.proname, p.oid, 'function', p.proowner
	from pg_catalog.pg_proc as p
	join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
	where n.nspname = $1`

// privilegesOf is what a role may do with these objects: all that there is to be had.
const privilegesOf = `
	with o as (` + objectsOf + `)
	select o.name || ': ' || k.privilege
	from o
	join (values
		('schema', 'usage'), ('schema', 'create'), ('function', 'execute'),
		('table', 'select'), ('table', 'insert'), ('table', 'update'), ('table', 'delete'), ('table', 'truncate'),
		('table', 'references'), ('table', 'trigger'),
		('sequence', 'usage'), ('sequence', 'select'), ('sequence', 'update')) as k (class, privilege) on k.class = o.class
	where case
		when o.class = 'schema' then has_schema_privilege($2, o.oid, k.privilege)
		when o.class = 'function' then has_function_privilege($2, o.oid, k.privilege)
		when o.class = 'sequence' then has_sequence_privilege($2, o.oid, k.privilege)
		when k.privilege in ('select', 'insert', 'update', 'references') then has_any_column_privilege($2, o.oid, k.privilege)
		else has_table_privilege($2, o.oid, k.privilege)
	end
	order by 1`

func (e *estate) privileges(t *testing.T, role string) []string {
	t.Helper()
	rows, err := e.admin.Query(t.Context(), privilegesOf, e.schema, role)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return got
}

// rights are those in the schema of the estate.
func (e *estate) rights() map[string]string {
	all := maps.Clone(rights)
	if strings.HasSuffix(e.schema, "/cdc") {
		all["table versionHistory"] = "streamer reader"
	}
	return all
}

// privilegesWith are those that rights gives to an access.
func (e *estate) privilegesWith(access string) []string {
	want := []string{}
	for name, who := range e.rights() {
		if slices.Contains(strings.Fields(who), access) {
			class, _, _ := strings.Cut(name, " ")
			right, found := map[string]string{"schema": "usage", "table": "select"}[class]
			if !found {
				right = "execute"
			}
			want = append(want, name+": "+right)
		}
	}
	slices.Sort(want)
	return want
}

// acls is every access control list, to see whether something changed.
func (e *estate) acls(t *testing.T) string {
	t.Helper()
	return one[string](t, e.admin, `
		select string_agg(format('%s %s', o.name, coalesce(n.nspacl, c.relacl, p.proacl)), E'\n' order by o.name)
		from (`+objectsOf+`) as o
		left join pg_catalog.pg_namespace as n on o.class = 'schema' and n.oid = o.oid
		left join pg_catalog.pg_class as c on o.class in ('table', 'sequence') and c.oid = o.oid
		left join pg_catalog.pg_proc as p on o.class = 'function' and p.oid = o.oid`, e.schema)
}

func TestWhoMayDoWhat(t *testing.T) {
	t.Parallel()

	for _, schema := range []string{"cdc", "zero_0/cdc"} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()

			e := newEstate(t, schema)
			rows, err := e.admin.Query(t.Context(), `select o.name from (`+objectsOf+`) as o`, e.schema)
			require.NoError(t, err)
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			require.ElementsMatch(t, slices.Collect(maps.Keys(e.rights())), names, "a row for each")
			require.Zero(t, one[int64](t, e.admin, `
				select count(*)
				from (`+objectsOf+`) as o
				where pg_get_userbyid(o.owner) <> $2`, e.schema, e.names["owner"]), "the owner owns all of it")
			require.False(t, one[bool](t, e.admin, `select rolsuper from pg_roles where rolname = $1`, e.names["owner"]))

			e.role(t, "stranger", "login")
			for _, access := range []string{"streamer", "reader", "backup", "none"} {
				require.NoError(t, grantAccess(t.Context(), e.owner, e.role(t, access, "login"), access))
			}
			for _, access := range []string{"streamer", "reader", "backup", "none", "stranger"} {
				require.Equal(t, e.privilegesWith(access), e.privileges(t, e.names[access]), access)
			}
			require.Empty(t, e.privileges(t, "public"))
		})
	}
}

func TestGrantAccessReplacesWhatWasGranted(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	name := e.role(t, "role", "login")
	other := e.role(t, "other", "login")
	require.NoError(t, grantAccess(t.Context(), e.owner, other, "streamer"))

	// From each access to each, and from all that can be granted by hand.
	for _, before := range []string{"all", "streamer", "reader", "backup", "none"} {
		for _, access := range []string{"streamer", "reader", "backup", "none"} {
			if before == "all" {
				for _, statement := range []string{
					`grant all on schema cdc to `, `grant all on all tables in schema cdc to `,
					`grant all on all functions in schema cdc to `,
					`grant select (owner), update (owner) on streamer to `, `grant all on all sequences in schema cdc to `,
				} {
					exec(t, e.owner, statement+name+` with grant option`)
				}
			} else {
				require.NoError(t, grantAccess(t.Context(), e.owner, name, before))
			}
			require.NoError(t, grantAccess(t.Context(), e.owner, name, access))
			require.Equal(t, e.privilegesWith(access), e.privileges(t, name), "%s after %s", access, before)
			lists := e.acls(t)
			require.NotContains(t, lists, "*", "nothing may be passed on")
			require.NoError(t, grantAccess(t.Context(), e.owner, name, access))
			require.Equal(t, lists, e.acls(t), "%s again", access)
		}
	}
	require.Equal(t, e.privilegesWith("streamer"), e.privileges(t, other), "another role keeps what it has")
}

// What a migration adds is nobody's until grant_access is called again.
func TestGrantAccessAfterAMigration(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	conn := e.granted(t, "streamer", "streamer")
	exec(t, e.owner, `create table later ()`)
	_, err := conn.Exec(t.Context(), `table later`)
	require.Equal(t, "42501", pgCode(t, err))
	require.NoError(t, grantAccess(t.Context(), e.owner, e.names["streamer"], "streamer"))
	exec(t, conn, `table later`)
}

// pgCode is the code of an error of the server, which need not be ours.
func pgCode(t *testing.T, err error) string {
	t.Helper()
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	return pgErr.Code
}

// streams does all that a streamer does in a log that is not initialised. It ends as the owner of a log
// that begins at 07.
func streams(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	ctx := t.Context()
	require.Equal(t, "initialized", ensure(t, conn, "00", "00").Result)
	got, err := reset(ctx, conn, version)
	require.NoError(t, err)
	require.Equal(t, "reset", got.Result)
	register(t, conn, "z/0", nil)
	require.True(t, assume(t, conn, "z/0", nil).Assumed)
	register(t, conn, owner, new("m_"))
	require.NoError(t, announce(ctx, conn, owner))
	assumed, err := queries.AssumeOwnershipAtHead(ctx, conn, db.AssumeOwnershipAtHeadParams{
		Owner: owner, OwnerAddress: new(owner + ":4848"), ReplicaVersion: version, Watermark: version,
	})
	require.NoError(t, err)
	require.True(t, assumed)
	dead := register(t, conn, other, new("m_"))
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
	_, err = queries.StoreOpen(ctx, conn, db.StoreOpenParams{
		Owner: owner, ReplicaVersion: version, ExpectedHead: "03", Watermark: "04",
	})
	require.NoError(t, err)
	head, err = queries.StoreClose(ctx, conn, db.StoreCloseParams{Owner: owner, ReplicaVersion: version, LastWatermark: "04"})
	require.NoError(t, err)
	require.Equal(t, "04", head)
	store(t, conn, batch("04", "05"))

	require.True(t, report(t, conn, owner, version, "05"))
	backUp(t, conn, "03")
	held := opened(t, conn, owner, "task")
	require.Equal(t, "03", held.Watermark)
	require.True(t, confirmed(t, conn, held.ID, "03"))
	lock, err := queries.AcquirePurgeLock(ctx, conn, nil)
	require.NoError(t, err)
	require.Equal(t, db.AcquirePurgeLockRow{Status: "locked", ReplicaVersion: version, Minimum: "01"}, lock)
	require.Equal(t, db.PurgeChangeLogRow{Deleted: 5, Done: true}, purgeStep(t, conn, "05", version))
	require.True(t, closed(t, conn, held.ID))

	deadOnes, err := queries.DeadStreamers(ctx, conn, owner)
	require.NoError(t, err)
	require.Empty(t, deadOnes)
	_, err = queries.CondemnStreamer(ctx, conn, db.CondemnStreamerParams{ID: dead.ID, Owner: owner, ReplicaVersion: version})
	require.NoError(t, err)
	require.NoError(t, queries.RetireStreamer(ctx, conn, db.RetireStreamerParams{ID: dead.ID, SlotDropped: true}))
	require.NoError(t, queries.MarkResetRequired(ctx, conn, version))
	require.True(t, start(t, conn)[0].ResetRequired)
	require.Equal(t, db.CatchupBoundsRow{Minimum: "03", Head: "05", ReplicaVersion: version, Owner: owner}, bounds(t, conn))
	address, err := queries.ChangeStreamerAddress(ctx, conn)
	require.NoError(t, err)
	require.Equal(t, owner+":4848", address)
	status, err := queries.Status(ctx, conn)
	require.NoError(t, err)
	require.Equal(t, "05", status.Head)
	require.Equal(t, "03", status.BackupWatermark)
	exec(t, conn, `select from lock_holders()`)
	result, err := queries.ReinitializeChangeLog(ctx, conn, db.ReinitializeChangeLogParams{
		Watermark: "07", Owner: owner, OwnerAddress: new("new:4848"), Cookies: []byte(`{"tableMetadata": [], "backfilling": []}`),
		Grace: time.Second, RetryEvery: time.Second, MaxWait: time.Minute, ReplicaVersion: version,
	})
	require.NoError(t, err)
	require.Equal(t, "reinitialized", result)
}

// The streamer's role does all that a streamer does, and can not write a table past the functions.
func TestStreamerNeedsNoRightToWriteTables(t *testing.T) {
	t.Parallel()

	for _, schema := range []string{"cdc", "zero_0/cdc"} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()

			e := newEstate(t, schema)
			conn := e.granted(t, "streamer", "streamer")
			streams(t, conn)
			require.Equal(t, seed("07"), logRows(t, conn))

			for _, statement := range []string{
				`insert into "changeLog" values ('09', 0, '{}', null)`,
				`copy "changeLog" from stdin`,
				`update "replicationState" set owner = 'me'`,
				`select from "replicationState" for update`,
				`delete from "replicationConfig"`,
				`delete from streamer`,
				`truncate progress`,
				`insert into reservation (owner, task_id) values ('a/1', 'task')`,
				`update schema_version set version = 0`,
				`do $$ begin lock table "changeLog" in share mode; end $$`,
				`create table mine ()`,
				`alter table "changeLog" add column mine int`,
				`drop function catchup_bounds()`,
				`select _begin_change_log('01', 'me', null)`,
				`select _lock_state('a/1', '01', null)`,
				`select terminate_lock_holders('zero-change-streamer')`,
				`select forget_backup()`,
				`select clear_reset_required()`,
				`select grant_access(current_user::text, 'streamer')`,
			} {
				_, err := conn.Exec(t.Context(), statement)
				require.Equal(t, "42501", pgCode(t, err), statement)
			}
			require.Equal(t, seed("07"), logRows(t, conn))
		})
	}
}

// serve migrates at its start: where nothing is to be done, that is no matter of rights.
func TestMigrateAsStreamer(t *testing.T) {
	t.Parallel()

	for _, schema := range []string{"cdc", "zero_0/cdc"} {
		e := newEstate(t, schema)
		for _, access := range []string{"streamer", "reader"} {
			conn := e.granted(t, access, access)
			require.NoError(t, sql.Migrate(t.Context(), conn, schema))
			exec(t, e.owner, `update `+quoted(schema, "schema_version")+` set version = version - 1`)
			err := sql.Migrate(t.Context(), conn, schema)
			require.Equal(t, "42501", pgCode(t, err))
			require.ErrorContains(t, err, `belongs to role "`+e.names["owner"]+`"`)
			require.NotContains(t, err.Error(), "let role")
			exec(t, e.owner, `update `+quoted(schema, "schema_version")+` set version = version + 1`)
		}
		err := sql.Migrate(t.Context(), e.granted(t, "backup", "backup"), schema)
		require.Equal(t, "42501", pgCode(t, err))
		require.ErrorContains(t, err, `belongs to role "`+e.names["owner"]+`"`)
	}
}

func TestReaderLooksOnly(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	ensure(t, e.owner, version, version)
	assume(t, e.owner, owner, nil)
	conn := e.granted(t, "reader", "reader")
	address, err := queries.ChangeStreamerAddress(t.Context(), conn)
	require.NoError(t, err)
	require.Equal(t, owner+":4848", address)
	require.Equal(t, owner, bounds(t, conn).Owner)
	require.Len(t, start(t, conn), 1)
	status, err := queries.Status(t.Context(), conn)
	require.NoError(t, err)
	require.Equal(t, owner, status.Owner)
	require.Equal(t, seed(version), logRows(t, conn))

	_, err = reset(t.Context(), conn, "02")
	require.Equal(t, "42501", pgCode(t, err))
	_, err = queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{Owner: other, ReplicaVersion: version, Force: true})
	require.Equal(t, "42501", pgCode(t, err))
	require.Equal(t, "42501", pgCode(t, reportBackup(t, conn, version, "02", time.Now())))
}

func TestBackupToolReportsOnly(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	ensure(t, e.owner, version, version)
	conn := e.granted(t, "backup", "backup")
	backUp(t, conn, "02")
	requireCode(t, sql.CodeBackupBackwards, reportBackup(t, conn, version, "01", time.Now()))
	for _, query := range []string{
		`table status`, `table progress`, `table schema_version`, `select stream_start()`, `select change_streamer_address()`,
	} {
		_, err := conn.Exec(t.Context(), query)
		require.Equal(t, "42501", pgCode(t, err), query)
	}
}

func TestGrantAccessToStrangeNames(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "zero_0/cdc")
	for _, purpose := range []string{`a"b`, "Ünï-1", `x'; drop role y; --`, "UPPER", "select", "%I"} {
		conn := e.granted(t, purpose, "streamer")
		require.Equal(t, e.privilegesWith("streamer"), e.privileges(t, e.names[purpose]))
		exec(t, conn, `table status`)
		require.NoError(t, grantAccess(t.Context(), e.owner, e.names[purpose], "none"))
		require.Empty(t, e.privileges(t, e.names[purpose]))
	}
}

func TestGrantAccessRefuses(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	name := e.role(t, "role", "login")
	before := e.acls(t)
	tests := []struct {
		name         string
		role, access *string
		wantText     string
	}{
		{"unknown access", &name, new("admin"), "'admin'"},
		{"access in capitals", &name, new("Reader"), "'Reader'"},
		{"no access", &name, nil, "NULL"},
		{"unknown role", new("nobody"), new("reader"), "'nobody'"},
		{"unknown role, to take rights away", new("nobody"), new("none"), "'nobody'"},
		{"everybody", new("public"), new("reader"), "'public'"},
		{"no role", nil, new("reader"), "NULL"},
		{"the owner itself", new(e.names["owner"]), new("streamer"), e.names["owner"]},
		{"the owner itself, to take rights away", new(e.names["owner"]), new("none"), e.names["owner"]},
	}
	for _, tt := range tests { // one connection: one after the other
		_, err := e.owner.Exec(t.Context(), `select grant_access($1, $2)`, tt.role, tt.access)
		pgErr := pgError(t, sql.CodeInvalidArgument, err)
		require.Contains(t, pgErr.Message, tt.wantText, tt.name)
		require.NotEmpty(t, pgErr.Detail, tt.name)
	}
	require.Equal(t, before, e.acls(t))
}

func TestGrantAccessByOthers(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	target := e.role(t, "target", "login")
	streamer, reader := e.granted(t, "streamer", "streamer"), e.granted(t, "reader", "reader")
	stranger := e.connect(t, e.role(t, "stranger", "login createrole"))
	for _, conn := range []*pgx.Conn{streamer, reader, stranger} {
		_, err := conn.Exec(t.Context(), `select cdc.grant_access($1, 'reader')`, target)
		require.Equal(t, "42501", pgCode(t, err))
	}

	// Who may call everything, but owns nothing.
	exec(t, e.owner, `grant usage on schema cdc to `+e.names["stranger"])
	exec(t, e.owner, `grant execute on all functions in schema cdc to `+e.names["stranger"])
	exec(t, e.owner, `grant select on all tables in schema cdc to `+e.names["stranger"])
	before := e.acls(t)
	for _, access := range []string{"reader", "streamer", "none"} {
		require.Equal(t, "42501", pgCode(t, grantAccess(t.Context(), stranger, target, access)))
		require.Equal(t, "42501", pgCode(t, grantAccess(t.Context(), stranger, e.names["stranger"], access)))
	}
	require.Equal(t, before, e.acls(t))

	// A member of the owner is as good as the owner, and its grants are the owner's.
	member := e.connect(t, e.role(t, "member", "login"))
	exec(t, e.admin, `grant `+e.names["owner"]+` to `+e.names["member"])
	require.NoError(t, grantAccess(t.Context(), member, target, "reader"))
	require.Equal(t, e.privilegesWith("reader"), e.privileges(t, target))
	require.NoError(t, grantAccess(t.Context(), e.admin, target, "backup"))
	require.NoError(t, grantAccess(t.Context(), e.owner, target, "none"))
	require.Empty(t, e.privileges(t, target))
	require.Equal(t, before, e.acls(t))
}

func TestGrantAccessInALogOfASuperuser(t *testing.T) {
	t.Parallel()

	database := pgtest.New(t)
	admin := database.Conn(t)
	e := &estate{database: database, admin: admin, owner: admin, schema: "cdc", names: map[string]string{}}
	conn := e.granted(t, "streamer", "streamer")
	require.Equal(t, e.privilegesWith("streamer"), e.privileges(t, e.names["streamer"]))
	require.Zero(t, one[int64](t, admin, `select count(*) from pg_auth_members where roleid = $1::regrole`, e.names["streamer"]),
		"a superuser needs no membership")
	streams(t, conn)

	// The way out that docs/sql-api.md names: the log becomes that of a plain owner.
	name := e.role(t, "owner", "nologin")
	exec(t, admin, `do $$
		declare
			o record;
		begin
			execute 'alter schema cdc owner to `+name+`';
			for o in
				select c.oid::regclass as name from pg_class as c where c.relnamespace = 'cdc'::regnamespace and c.relkind in ('r', 'v')
			loop
				execute format('alter table %s owner to `+name+`', o.name);
			end loop;
			for o in select p.oid::regprocedure as name from pg_proc as p where p.pronamespace = 'cdc'::regnamespace loop
				execute format('alter function %s owner to `+name+`', o.name);
			end loop;
		end $$`)
	require.Equal(t, e.privilegesWith("streamer"), e.privileges(t, e.names["streamer"]))
	e.owner = e.connect(t, "postgres", func(c *pgx.ConnConfig) { c.RuntimeParams["role"] = name })
	exec(t, e.owner, `truncate "changeLog", "replicationState", "replicationConfig", streamer, progress`)
	require.NoError(t, grantAccess(t.Context(), e.owner, e.names["streamer"], "streamer"))
	streams(t, conn)
	require.NoError(t, grantAccess(t.Context(), e.owner, e.names["streamer"], "none"))
	require.Empty(t, e.privileges(t, e.names["streamer"]))
}

// A session of the streamer that is in the way of a reset is ended by the streamer, through the owner.
func TestOwnerEndsSessionsOfTheStreamer(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	ensure(t, e.owner, version, version)
	name := e.role(t, "streamer", "login")
	noticing, notices := e.noticing(t)
	require.NoError(t, grantAccess(t.Context(), noticing, name, "streamer"))
	warnings := notices()
	require.Len(t, warnings, 1)
	require.Equal(t, sql.CodeNotAMember, warnings[0].Code)
	require.Equal(t, "WARNING", warnings[0].Severity)
	require.Contains(t, warnings[0].Message, name)
	require.NotEmpty(t, warnings[0].Detail)
	require.Equal(t, e.privilegesWith("streamer"), e.privileges(t, name), "the rest is granted")

	const app = "zero-change-streamer"
	reader := e.connect(t, name, func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = app })
	reads := begin(t, reader)
	exec(t, reads, `select from "changeLog"`)
	var told []string
	conn := e.connect(t, name, func(c *pgx.ConnConfig) {
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { told = append(told, n.Code) }
	})
	params := db.ReinitializeChangeLogParams{
		Watermark: "05", Owner: owner, Cookies: []byte(`{}`), TerminateApp: new(app), ReplicaVersion: version,
	}
	_, err := queries.ReinitializeChangeLog(t.Context(), conn, params)
	requireCode(t, sql.CodeTablesLocked, err)
	params.MaxWait = 2 * time.Second
	_, err = queries.ReinitializeChangeLog(t.Context(), conn, params)
	requireCode(t, sql.CodeTablesLocked, err)
	require.Subset(t, []string{sql.CodeMayNotTerminate}, told)
	require.NotEmpty(t, told)
	exec(t, reads, `select from "changeLog"`)

	found := regexp.MustCompile(`run: (grant .+ to .+)\.$`).FindStringSubmatch(warnings[0].Hint)
	require.NotNil(t, found, warnings[0].Hint)
	exec(t, e.admin, found[1])
	require.NoError(t, grantAccess(t.Context(), noticing, name, "streamer"))
	require.Empty(t, notices(), "and it is content")
	told = nil
	params.MaxWait = time.Minute
	result, err := queries.ReinitializeChangeLog(t.Context(), conn, params)
	require.NoError(t, err)
	require.Equal(t, "reinitialized", result)
	require.Equal(t, []string{sql.CodeTerminated}, told)
	require.Eventually(t, func() bool {
		return one[bool](t, e.admin, `select not exists (select from pg_stat_activity where pid = $1)`, reader.PgConn().PID())
	}, time.Minute, time.Millisecond)
}

// noticing acts as the owner, too, and tells of notices since the last time.
func (e *estate) noticing(t *testing.T) (*pgx.Conn, func() []*pgconn.Notice) {
	t.Helper()
	var notices []*pgconn.Notice
	conn := e.connect(t, "postgres", func(c *pgx.ConnConfig) {
		c.RuntimeParams["role"] = e.names["owner"]
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n) }
	})
	return conn, func() []*pgconn.Notice {
		got := notices
		notices = nil
		return got
	}
}

func TestGrantAccessMakesTheOwnerAMember(t *testing.T) {
	t.Parallel()

	isMember := func(t *testing.T, e *estate, name string) bool {
		t.Helper()
		return one[bool](t, e.admin, `
			select exists (
				select
				from pg_auth_members as m
				where m.roleid = $1::regrole and m.member = $2::regrole)`, quoted(name), quoted(e.names["owner"]))
	}
	warning := func(t *testing.T, notices func() []*pgconn.Notice) *pgconn.Notice {
		t.Helper()
		got := notices()
		require.Len(t, got, 1)
		require.Equal(t, sql.CodeNotAMember, got[0].Code)
		return got[0]
	}

	t.Run("when a superuser calls it", func(t *testing.T) {
		t.Parallel()

		e := newEstate(t, "cdc")
		conn, notices := e.noticing(t)
		exec(t, conn, `set role none`)
		name := e.role(t, `the "streamer"`, "login")
		for range 2 {
			require.NoError(t, grantAccess(t.Context(), conn, name, "streamer"))
			require.Empty(t, notices())
			require.True(t, isMember(t, e, name))
		}
		require.False(t, one[bool](t, e.admin, `select pg_has_role($1, $2, 'member')`, name, e.names["owner"]), "never the other way")
		reader := e.role(t, "reader", "login")
		require.NoError(t, grantAccess(t.Context(), conn, reader, "reader"))
		require.NoError(t, grantAccess(t.Context(), conn, reader, "backup"))
		require.False(t, isMember(t, e, reader), "nobody ends sessions of readers")
	})

	t.Run("not when the role is a member of the owner", func(t *testing.T) {
		t.Parallel()

		e := newEstate(t, "cdc")
		name := e.role(t, "member", "login")
		exec(t, e.admin, `grant `+e.names["owner"]+` to `+name)
		conn, notices := e.noticing(t)
		exec(t, conn, `set role none`)
		require.NoError(t, grantAccess(t.Context(), conn, name, "streamer"))
		got := warning(t, notices)
		require.NotContains(t, got.Hint, "run: grant", "nobody may do that")
		require.False(t, isMember(t, e, name))
	})

	// The owner must not become a member of a superuser: whoever acts as the owner could act as the superuser.
	t.Run("not when the role is a superuser", func(t *testing.T) {
		t.Parallel()

		e := newEstate(t, "cdc")
		name := e.role(t, "super", "login superuser")
		conn, notices := e.noticing(t)
		exec(t, conn, `set role none`)
		require.NoError(t, grantAccess(t.Context(), conn, name, "streamer"))
		require.NotContains(t, warning(t, notices).Hint, "run: grant")
		require.False(t, isMember(t, e, name))
	})

	t.Run("in vain when the owner does not inherit", func(t *testing.T) {
		t.Parallel()

		e := newEstate(t, "cdc")
		exec(t, e.admin, `alter role `+e.names["owner"]+` noinherit`)
		conn, notices := e.noticing(t)
		exec(t, conn, `set role none`)
		require.NoError(t, grantAccess(t.Context(), conn, e.role(t, "streamer", "login"), "streamer"))
		require.Contains(t, warning(t, notices).Hint, "inherit")
	})
}

// Two scripts that run after a migration.
func TestGrantAccessAtOnce(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	first, second := e.role(t, "first", "login"), e.role(t, "second", "login")
	another := e.connect(t, "postgres", func(c *pgx.ConnConfig) { c.RuntimeParams["role"] = e.names["owner"] })
	tx := begin(t, e.owner)
	require.NoError(t, grantAccess(t.Context(), tx, first, "streamer"))
	result := blocked(t, e.admin, another, func() (struct{}, error) {
		return struct{}{}, grantAccess(t.Context(), another, second, "reader")
	})
	commit(t, tx)
	require.NoError(t, (<-result).err)
	require.Equal(t, e.privilegesWith("streamer"), e.privileges(t, first))
	require.Equal(t, e.privilegesWith("reader"), e.privileges(t, second))
}

// trap makes a schema of the caller's with tables like ours, and with functions and operators that fail, like those that
// our functions use; all of them also in the temporary schema.
const trap = `
	set check_function_bodies = off;
	do $$
	declare
		v_name text;
		v_made int := 0;
		v_like record;
	begin
		foreach v_name in array array[
			'changeLog', 'replicationState', 'replicationConfig', 'tableMetadata', 'backfilling',
			'streamer', 'progress', 'reservation']
		loop
			execute format('create table evil.%I (like cdc.%I including defaults)', v_name, v_name);
			execute format('create temp table %I (like cdc.%I including defaults)', v_name, v_name);
			execute format('grant all on evil.%I, pg_temp.%I to public', v_name, v_name);
		end loop;
		insert into evil."replicationState" values ('0z', 'evil/1', 'evil:1', 1);
		insert into pg_temp."replicationState" values ('0z', 'temp/1', 'temp:1', 1);
		insert into evil."replicationConfig" values ('0y', '{evil}', false, 1);
		insert into pg_temp."replicationConfig" values ('0y', '{temp}', false, 1);

		for v_like in
			select p.proname, pg_get_function_identity_arguments(p.oid) as arguments, format_type(p.prorettype, null) as result
			from pg_proc as p
			where p.pronamespace in ('pg_catalog'::regnamespace, 'cdc'::regnamespace)
				and p.prokind = 'f'
				and not p.proretset
				and p.proargmodes is null
				and (p.proname ~ '^_[a-z]' or p.proname in (
					'quote_ident', 'quote_literal', 'quote_nullable', 'now', 'clock_timestamp', 'pg_notify', 'current_schema', 'current_setting',
					'set_config', 'starts_with', 'length', 'octet_length', 'left', 'strpos', 'substr', 'pg_backend_pid',
					'pg_terminate_backend', 'pg_is_in_recovery', 'pg_stat_clear_snapshot', 'pg_advisory_xact_lock', 'jsonb_typeof',
					'string_to_array'))
				and not exists (
					select
					from pg_type as t
					where t.oid = any (p.proargtypes || p.prorettype) and t.typtype = 'p' and t.typname <> 'void')
		loop
			execute format('create function evil.%I(%s) returns %s language plpgsql as %L',
				v_like.proname, v_like.arguments, v_like.result, format('begin raise exception ''led astray to %s''; end', v_like.proname));
			v_made := v_made + 1;
		end loop;
		if v_made < 40 then
			raise exception 'only % traps', v_made;
		end if;

		create function evil.astray(text, text) returns boolean language plpgsql
			as 'begin raise exception ''led astray to an operator''; end';
		foreach v_name in array array['=', '<>', '<', '<=', '>', '>=', '~', '!~'] loop
			execute format('create operator evil.%s (leftarg = text, rightarg = text, function = evil.astray)', v_name);
		end loop;
	end $$`

// What the caller puts in the way of names does not matter: neither functions that have the rights of the owner nor
// the others are led astray.
func TestFunctionsAreNotLedAstray(t *testing.T) {
	t.Parallel()

	e := newEstate(t, "cdc")
	conn := e.granted(t, "streamer", "streamer")
	exec(t, e.admin, `create schema evil authorization `+e.names["streamer"])
	exec(t, e.admin, `grant usage on schema evil to public`)
	exec(t, conn, trap)
	exec(t, conn, `set search_path = evil, pg_temp, cdc, pg_catalog`)
	for _, statement := range []string{
		`set quote_all_identifiers = on`, `set standard_conforming_strings = off`, `set array_nulls = off`,
		`set intervalstyle = sql_standard`,
	} {
		exec(t, conn, statement)
	}
	for _, expression := range []string{`starts_with('a', 'b')`, `'a'::text = 'b'::text`, `_check_watermark('a')`} {
		_, err := conn.Exec(t.Context(), `select `+expression)
		require.ErrorContains(t, err, "led astray", "the trap is set")
	}
	require.Equal(t, "evil:1", one[string](t, conn, `select "ownerAddress" from "replicationState"`), "the trap is set")

	streams(t, conn)
	require.Equal(t, seed("07"), logRows(t, e.owner))
	require.Equal(t, owner, bounds(t, e.owner).Owner)
	exec(t, conn, `set search_path = pg_catalog`)
	for _, schema := range []string{"evil", "pg_temp"} {
		require.Zero(t, one[int64](t, conn, `
			select (select count(*) from `+schema+`."changeLog") + (select count(*) from `+schema+`.streamer)
				+ (select count(*) from `+schema+`.progress) + (select count(*) from `+schema+`.reservation)`))
		require.Equal(t, "0z", one[string](t, conn, `select "lastWatermark" from `+schema+`."replicationState"`))
		require.Equal(t, "0y", one[string](t, conn, `select "replicaVersion" from `+schema+`."replicationConfig"`))
	}

	// A function that calls another one by name has found it when it was made.
	exec(t, conn, `set search_path = evil, pg_temp, cdc, pg_catalog`)
	exec(t, conn, `create function evil.store_close(text, text, text) returns text language sql as $$select 'astray'$$`)
	head, err := queries.CommitTransaction(t.Context(), conn, db.CommitTransactionParams{
		Owner: owner, ReplicaVersion: version, LastWatermark: "08",
	})
	require.NoError(t, err)
	require.Equal(t, "08", head)

	// So it is with what an owner calls.
	exec(t, e.owner, `set search_path = evil, cdc, pg_catalog`)
	exec(t, e.owner, `select cdc.grant_access('`+e.role(t, "reader", "login")+`', 'reader')`)
	exec(t, e.owner, `select cdc.clear_reset_required()`)
	exec(t, e.owner, `select cdc.terminate_lock_holders('nobody')`)
	require.Equal(t, e.privilegesWith("reader"), e.privileges(t, e.names["reader"]))
}
