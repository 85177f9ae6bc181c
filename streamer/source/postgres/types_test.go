package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

func TestTypesMadeWhileStreaming(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'a')`)
	sink.waitTxs(1)
	u.exec(`
		create type mood as enum ('fine', 'so "so"');
		create domain posint as int check (value > 0);
		create type pair as (a int, b text);
		create table typed (id int primary key, m mood, ms mood[], d posint, ds posint[], p pair, ps pair[], n numeric[])`)
	u.exec(`insert into typed values (1, 'fine', '{fine,"so \"so\"",NULL}', 7, '{1,2}', '(1,x)', array[row(1, 'x,y')::pair], '{{1.50,2},{3,4}}')`)
	txs := sink.waitTxs(2)
	source.stop()
	require.Contains(t, txs[1].messages[1], `"new":{"id":1,"m":"fine","ms":["fine","so \"so\"",null],"d":"7","ds":["1","2"],`+
		`"p":"(1,x)","ps":["(1,\"x,y\")"],"n":[[1.5,2],[3,4]]}`)
}

func TestTypesDroppedBeforeTheyAreDecoded(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	u.exec(`create type mood as enum ('fine'); create table typed (id int primary key, m mood, ms mood[])`)
	u.exec(`insert into typed values (1, 'fine', '{fine}')`)
	u.exec(`drop table typed; drop type mood`)
	sink := u.sink()
	source := run(t, u.config(), sink)
	txs := sink.waitTxs(1)
	source.stop()
	require.Contains(t, txs[0].messages[1], `"new":{"id":1,"m":"fine","ms":"{fine}"}`)
}

func TestTablesChangedWhileStreaming(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'a')`)
	u.exec(`begin; insert into t values (2, 'b'); alter table t add column w int default 5; insert into t values (3, 'c'); commit`)
	u.exec(`alter table t rename column v to text; alter table t drop column w`)
	u.exec(`insert into t values (4, 'd')`)
	u.exec(`create table made (k bigint primary key); insert into made values (9007199254740993)`)
	u.exec(`alter table t rename to renamed; insert into renamed values (5, 'e')`)
	txs := sink.waitTxs(5)
	source.stop()
	require.Contains(t, txs[1].messages[1], `"new":{"id":2,"v":"b"}`)
	require.Contains(t, txs[1].messages[2], `"new":{"id":3,"v":"c","w":5}`)
	require.Contains(t, txs[2].messages[1], `"new":{"id":4,"text":"d"}`)
	require.Contains(t, txs[3].messages[1], `"name":"made"`)
	require.Contains(t, txs[3].messages[1], `"new":{"k":9007199254740993}`)
	require.Contains(t, txs[4].messages[1], `"name":"renamed"`)
}

func TestPartitionsAreShownAsTheirRoot(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "",
		`create table parted (id int primary key, v text) partition by range (id)`,
		`create table parted_low partition of parted for values from (0) to (100)`,
		`create table parted_high partition of parted for values from (100) to (200)`)
	name, err := u.up.EnsurePublication(t.Context(), "app", 0)
	require.NoError(t, err)
	require.NoError(t, u.up.DropSlot(t.Context(), u.slot))
	u.consistent, err = u.up.CreateSlot(t.Context(), u.slot, 0)
	require.NoError(t, err)
	cfg := u.config()
	cfg.Publications = []string{name}
	sink := u.sink()
	source := run(t, cfg, sink)
	u.exec(`insert into parted values (1, 'a'), (150, 'b')`)
	u.exec(`update parted set id = 151 where id = 1`)
	txs := sink.waitTxs(2)
	source.stop()
	for _, message := range append(txs[0].messages[1:3], txs[1].messages[1:3]...) {
		require.Contains(t, message, `"name":"parted",`)
	}
	require.Contains(t, txs[1].messages[1], `"tag":"delete"`)
	require.Contains(t, txs[1].messages[2], `"tag":"insert"`)
}

func TestSettingsOfTheRoleDoNotChangeTheStream(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "", `create table stamped (id int primary key, at timestamptz, f float8, b bytea, i interval)`)
	for _, setting := range []string{
		`datestyle = 'SQL, DMY'`, `timezone = 'Asia/Tokyo'`, `extra_float_digits = 0`, `bytea_output = 'escape'`,
		`intervalstyle = 'iso_8601'`,
	} {
		u.exec(`alter database ` + u.query(`select current_database()::text`) + ` set ` + setting)
	}
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into stamped values (1, '2020-01-02 03:04:05+00', 0.1::float8 + 0.2::float8, '\xff00', '1 day 2 hours')`)
	txs := sink.waitTxs(1)
	source.stop()
	require.Contains(t, txs[0].messages[1], `"new":{"id":1,"at":1577934245000,"f":0.30000000000000004,`+
		`"b":{"type":"Buffer","data":[255,0]},"i":"1 day 02:00:00"}`)
}

func TestDatabaseWithoutEncoding(t *testing.T) {
	t.Parallel()
	shared := pgtest.Empty(t)
	admin, err := pgx.Connect(t.Context(), shared.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	name := shared.Name + "_ascii"
	_, err = admin.Exec(t.Context(), `create database `+name+` encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.Exec(context.Background(), `drop database `+name+` with (force)`)
		require.NoError(t, err)
	})
	u := prepare(t, shared.Server.URL(name), "millrace_"+name, "")
	sink := u.sink()
	source := run(t, u.config(), sink)
	u.exec(`insert into t values (1, 'gr' || chr(252) || 'n')`)
	u.exec(`insert into t values (2, 'grün')`)
	txs := sink.waitTxs(2)
	source.stop()
	require.Contains(t, txs[0].messages[1], `"v":"gr`+"\uFFFD"+`n"`)
	require.Contains(t, txs[1].messages[1], `"v":"grün"`)
}
