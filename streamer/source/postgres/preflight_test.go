package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/source/postgres"
)

func TestPreflight(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "wal_sender_timeout=7000")
	info, err := u.up.Preflight(t.Context(), postgres.PreflightConfig{App: "test", Publications: []string{pubName}, NewSlot: true})
	require.NoError(t, err)
	require.Equal(t, u.query(`select system_identifier::text from pg_control_system()`), info.SystemID)
	require.EqualValues(t, 1, info.Timeline)
	require.GreaterOrEqual(t, info.Version, 150000)
	require.Equal(t, "postgres", info.Role)
	require.Equal(t, "UTF8", info.Encoding)
	require.Equal(t, "7s", info.WALSenderTimeout.String())
	require.Empty(t, info.Warnings)
}

func TestPreflightWarnsOfTablesWithoutIdentity(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "",
		`create table keyless (i int)`,
		`create table nothing (i int primary key)`, `alter table nothing replica identity nothing`,
		`create table whole (i int)`, `alter table whole replica identity full`,
		`create table nullable (i int unique)`, `alter table nullable replica identity full`,
		`create table keyed (i int primary key, note text)`, `alter table keyed replica identity full`,
		`create table covered (i int not null, note text)`, `create unique index on covered (i) include (note)`,
		`alter table covered replica identity full`,
		`create table indexed (i int not null unique)`, `alter table indexed replica identity using index indexed_i_key`)
	info, err := u.up.Preflight(t.Context(), postgres.PreflightConfig{App: "test", Publications: []string{pubName}})
	require.NoError(t, err)
	require.Len(t, info.Warnings, 4)
	require.Contains(t, info.Warnings[0], "table public.keyless has no usable replica identity")
	require.Contains(t, info.Warnings[1], "table public.nothing has")
	require.Contains(t, info.Warnings[2], "table public.nullable has replica identity full and no unique index")
	require.Contains(t, info.Warnings[3], "table public.whole has replica identity full and no unique index")
}

func TestPreflightFindsWhatIsWrongWithPublications(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "",
		`create publication narrow for table t (id)`,
		`create publication wide for table t`,
		`create publication inserts for table t with (publish = 'insert')`)
	for name, c := range map[string]struct {
		app          string
		publications []string
		want         []string
	}{
		"missing": {"test", []string{"p", "absent"}, []string{
			"publication-missing: Unknown or invalid publications. Specified: [p,absent]. Found: [p]",
		}},
		"incomplete": {"test", []string{"inserts"}, []string{
			"publication-incomplete: PUBLICATION inserts must publish insert, update, delete, and truncate",
		}},
		"different columns": {"test", []string{"narrow", "wide"}, []string{
			"publication-columns: Table t is exported with different columns: [id] vs [id,v]",
		}},
		"several things at once": {"Test", []string{"inserts", "absent"}, []string{
			"app-id: The App ID may only consist of lower-case letters, numbers, and the underscore character",
			"PUBLICATION inserts must publish insert, update, delete, and truncate",
			"Specified: [inserts,absent]. Found: [inserts]",
		}},
		"reserved name": {"test", []string{"_other"}, []string{
			"Publication names starting with \"_\" are reserved for internal use.\nPlease use a different name for publication \"_other\".",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := u.up.Preflight(t.Context(), postgres.PreflightConfig{App: c.app, Publications: c.publications})
			var found *postgres.PreflightError
			require.ErrorAs(t, err, &found)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.ErrorContains(t, err, "cannot be streamed from:\n- ")
		})
	}
}

func TestPreflightOfAServerThatIsNotSetUp(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "wal_level=replica", "max_wal_senders=0", "max_replication_slots=0")
	up, err := postgres.NewUpstream(server.URL("postgres"))
	require.NoError(t, err)
	_, err = up.Preflight(t.Context(), postgres.PreflightConfig{App: "test", NewSlot: true})
	var found *postgres.PreflightError
	require.ErrorAs(t, err, &found)
	require.Len(t, found.Findings, 3, err)
	require.ErrorContains(t, err, `wal-level: Postgres must be configured with "wal_level = logical" (currently: "replica")`)
	require.ErrorContains(t, err, "alter system set wal_level = logical")
	require.ErrorContains(t, err, "no-walsender-free: 0 of 0 walsenders are in use")
	require.ErrorContains(t, err, "no-slot-free: 0 of 0 replication slots are taken")
}

func TestPreflightThroughAPooler(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	proxy := newProxy(t, u.url)
	proxy.pools.Store(true)
	_, err := proxy.upstream(t, u.url).Preflight(t.Context(), postgres.PreflightConfig{App: "test", Publications: []string{pubName}})
	require.ErrorContains(t, err, "pooler: 127.0.0.1")
	require.ErrorContains(t, err, "use the address of the database server itself")
}

func TestEnsurePublication(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `create schema other`)
	ctx := t.Context()
	name, err := u.up.EnsurePublication(ctx, "app", 3)
	require.NoError(t, err)
	require.Equal(t, "_app_public_3", name)
	again, err := u.up.EnsurePublication(ctx, "app", 3)
	require.NoError(t, err)
	require.Equal(t, name, again)
	require.Equal(t, "true public", u.query(`
		select p.pubviaroot::text || ' ' || string_agg(n.nspname, ',')
		from pg_publication as p
		join pg_publication_namespace as pn on pn.pnpubid = p.oid
		join pg_namespace as n on n.oid = pn.pnnspid
		where p.pubname = '_app_public_3' group by p.pubviaroot`))
	_, err = u.up.EnsurePublication(ctx, "App", 0)
	require.ErrorIs(t, err, postgres.ErrAppID)
	_, err = u.up.EnsurePublication(ctx, strings.Repeat("a", 60), 0)
	require.ErrorContains(t, err, "exceeds PostgreSQL's 63-character identifier limit")

	info, err := u.up.Preflight(ctx, postgres.PreflightConfig{App: "app", Publications: []string{name}})
	require.NoError(t, err, "our own name may begin with an underscore")
	require.Empty(t, info.Warnings)
}

func TestEnsurePublicationByManyAtOnce(t *testing.T) {
	t.Parallel()
	up, err := postgres.NewUpstream(pgtest.Empty(t).URL)
	require.NoError(t, err)
	errs := make([]error, 5)
	var wait sync.WaitGroup
	for i := range errs {
		wait.Go(func() { _, errs[i] = up.EnsurePublication(context.Background(), "app", 0) })
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestEnsurePublicationWithoutPermission(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	role := u.slot + "_plain"
	u.exec(`create role ` + role + ` login replication`)
	t.Cleanup(func() { _, _ = u.conn.Exec(context.Background(), `drop role `+role) })
	up, err := postgres.NewUpstream(with(u.url, "user="+role))
	require.NoError(t, err)
	_, err = up.EnsurePublication(t.Context(), "app", 0)
	require.ErrorContains(t, err, "only a superuser may publish a whole schema")
	require.ErrorContains(t, err, `create publication "_app_public_0" for tables in schema public with (publish_via_partition_root = true)`)
	_, err = up.Preflight(t.Context(), postgres.PreflightConfig{App: "app", Publications: []string{pubName}})
	require.NoError(t, err)
}

func TestCheckPublication(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "_a", "A1_", strings.Repeat("x", 63)} {
		require.NoError(t, postgres.CheckPublication(name))
	}
	for name, want := range map[string]string{
		"1a":                    `Invalid publication name "1a". Publication names must start with a letter or underscore and contain only letters, digits, and underscores.`,
		"a-b":                   `Invalid publication name "a-b".`,
		"":                      `Invalid publication name "".`,
		strings.Repeat("x", 64): "exceeds PostgreSQL's 63-character identifier limit",
	} {
		require.ErrorContains(t, postgres.CheckPublication(name), want)
	}
}
