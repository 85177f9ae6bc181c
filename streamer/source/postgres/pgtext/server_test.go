package pgtext_test

import (
	"math/big"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/source/postgres/pgtext"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// session returns a connection that prints values as the stream has them.
func session(t *testing.T, zone string) *pgx.Conn {
	t.Helper()
	conn := pgtest.Empty(t).Conn(t)
	for name, value := range map[string]string{
		"DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "bytea_output": "hex",
		"extra_float_digits": "1", "TimeZone": zone,
	} {
		_, err := conn.Exec(t.Context(), `select set_config($1, $2, false)`, name, value)
		require.NoError(t, err)
	}
	return conn
}

// describe reads pg_type, as a change source must.
func describe(t *testing.T, conn *pgx.Conn, oid uint32) pgtext.CatalogType {
	t.Helper()
	var row pgtext.CatalogType
	var typ, category, delim string
	var elem uint32
	require.NoError(t, conn.QueryRow(t.Context(),
		`select oid, typname::text, typtype::text, typcategory::text, typlen, typdelim::text, typbasetype, typelem
		from pg_catalog.pg_type where oid = $1`, oid).
		Scan(&row.OID, &row.Name, &typ, &category, &row.Len, &delim, &row.Base, &elem))
	row.Type, row.Category, row.Delim = typ[0], category[0], delim[0]
	if elem != 0 {
		e := describe(t, conn, elem)
		row.Elem = &e
	}
	return row
}

// encode runs a query of one value with the types of the server, and returns its JSON.
func encode(t *testing.T, conn *pgx.Conn, query string) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), query, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.True(t, rows.Next(), query)
	oid := rows.FieldDescriptions()[0].DataTypeOID
	text := append([]byte(nil), rows.RawValues()[0]...)
	rows.Close()
	require.NoError(t, rows.Err())

	typ, ok := pgtext.Builtin(oid)
	if !ok {
		typ = pgtext.FromCatalog(describe(t, conn, oid))
	}
	out, ok := pgtext.Options{}.Append(nil, typ, text)
	require.True(t, ok, "%s printed %q", query, text)
	return string(out)
}

func TestValuesOfAServer(t *testing.T) {
	t.Parallel()

	conn := session(t, "UTC")
	_, err := conn.Exec(t.Context(), `
		create type mood as enum ('sad', 'so so', 'a,b', 'q"uote');
		create domain posint as int check (value > 0);
		create domain many as int[];
		create type pair as (a int, b text)`)
	require.NoError(t, err)

	for _, tt := range []struct{ value, want string }{
		{`int2 '32767'`, `32767`},
		{`oid '4294967295'`, `4294967295`},
		{`int8 '-9223372036854775808'`, `-9223372036854775808`},
		{`numeric '1.50'`, `1.5`},
		{`numeric '1e30'`, `1e30`},
		{`numeric '12345678901234567890.123'`, `1.2345678901234567890123e19`},
		{`1234567890123456789012345678.0123456789::numeric(38,10)`, `1.2345678901234567890123456780123456789e27`},
		{`numeric 'Infinity'`, `null`},
		{`numeric 'NaN'`, `null`},
		{`float4 '1.1'`, `1.1`},
		{`float4 '16777217'`, `16777216`},
		{`float8 '1e21'`, `1e21`},
		{`float8 '1e-7'`, `1e-7`},
		{`float8 '-0'`, `0`},
		{`float8 '5e-324'`, `5e-324`},
		{`float4 '1e-45'`, `1e-45`},
		{`money '12.34'`, `"$12.34"`},
		{`true`, `true`},
		{`char(5) 'ab'`, `"ab   "`},
		{`json '{"a":1,"a":2,  "b" : 1.0e400}'`, `"{\"a\":1,\"a\":2,  \"b\" : 1.0e400}"`},
		{`jsonb '{"a":1,"b":[1,2]}'`, `"{\"a\": 1, \"b\": [1, 2]}"`},
		{`date '10000-01-02'`, `253402387200000`},
		{`date '0001-01-01'`, `-62135596800000`},
		{`date '0044-03-15 BC'`, `-63517824000000`},
		{`date 'infinity'`, `null`},
		{`time '04:05:06.123456'`, `14706123`},
		{`time '24:00:00'`, `86400000`},
		{`timetz '04:05:06.789-08'`, `43506789`},
		{`timetz '23:00:00-02'`, `3600000`},
		{`timetz '04:05:06+05:30'`, `81306000`},
		{`timetz '04:05:06+05:30:15'`, `81291000`},
		{`timetz '24:00:00-05'`, `18000000`},
		{`timetz '24:00:00+00'`, `86400000`},
		{`timestamp '2019-01-12 00:30:35.381101'`, `1547253035381.101`},
		{`timestamp '1969-12-31 23:59:59.5'`, `-500`},
		{`timestamp '1969-12-31 23:59:59.999999'`, `-0.001`},
		{`timestamp '0044-03-15 01:02:03 BC'`, `-63517820277000`},
		{`timestamptz '2003-04-12 04:05:06 America/New_York'`, `1050134706000`},
		{`timestamptz '10000-01-02 03:04:05Z'`, `253402398245000`},
		{`timestamptz '-infinity'`, `null`},
		{`interval '1 year 2 mons 3 days 04:05:06.789'`, `"1 year 2 mons 3 days 04:05:06.789"`},
		{`bytea '\xdeadbeef00ff'`, `{"type":"Buffer","data":[222,173,190,239,0,255]}`},
		{`bytea ''`, `{"type":"Buffer","data":[]}`},
		{`uuid 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'`, `"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"`},
		{`mood 'a,b'`, `"a,b"`},
		{`row(1, 'a b')::pair`, `"(1,\"a b\")"`},
		{`int4range '[1,10)'`, `"[1,10)"`},
		{`int4multirange '{[1,3),[5,7)}'`, `"{[1,3),[5,7)}"`},
		{`point '(1.5,2)'`, `"(1.5,2)"`},
		{`box '(1,1),(0,0)'`, `"(1,1),(0,0)"`},
		{`circle '<(0,0),1>'`, `"<(0,0),1>"`},
		{`line '{1,2,3}'`, `"{1,2,3}"`},
		{`inet '192.168.0.1/24'`, `"192.168.0.1/24"`},
		{`inet '::1'`, `"::1"`},
		{`cidr '10.0.0.0/8'`, `"10.0.0.0/8"`},
		{`B'101'`, `"101"`},
		{`tsvector 'a b'`, `"'a' 'b'"`},
		{`xml '<a>&amp;</a>'`, `"<a>&amp;</a>"`},
		{`pg_lsn '0/16B3748'`, `"0/16B3748"`},
		{`'pg_class'::regclass`, `"pg_class"`},
		{`xid8 '12345678901'`, `"12345678901"`},
		{`jsonpath '$.a'`, `"$.\"a\""`},
		{`int2vector '1 2 3'`, `"1 2 3"`},

		{`'{{1,2},{3,NULL}}'::int[]`, `[[1,2],[3,null]]`},
		{`'[0:1]={7,8}'::int[]`, `[7,8]`},
		{`'{}'::int[]`, `[]`},
		{`array['a', null, 'NULL', '', 'q"uo,te', '{b}', 'back\slash', 'é😀', ' ', 'null']`, `["a",null,"NULL","","q\"uo,te","{b}","back\\slash","é😀"," ","null"]`},
		{`'{1.10,2,NaN}'::numeric[]`, `[1.1,2,null]`},
		{`'{t,f,NULL}'::bool[]`, `[true,false,null]`},
		{`array[timestamptz '1999-12-31 23:59:59.999999Z', null]`, `[946684799999.999,null]`},
		{`array[date '0044-03-15 BC', 'infinity']`, `[-63517824000000,null]`},
		{`array['{"a":1}'::jsonb, '"s"', '[1,null]', '1.50', null, 'null']`, `[{"a":1},"s",[1,null],1.50,null,null]`},
		{`array['{"s":"a\u0000b", "s" : "\\"}'::json]`, `[{"s":"a\u0000b","s":"\\"}]`},
		{`array[bytea '\xdead', null, '']`, `[{"type":"Buffer","data":[222,173]},null,{"type":"Buffer","data":[]}]`},
		{`array['sad', null, 'a,b', 'q"uote', 'so so']::mood[]`, `["sad",null,"a,b","q\"uote","so so"]`},
		{`array[row(1, 'a'), row(null, null)]::pair[]`, `["(1,a)","(,)"]`},
		{`'{(1,1),(0,0);(2,2),(1,1)}'::box[]`, `["(1,1),(0,0)","(2,2),(1,1)"]`},
		{`'{"[1,5)"}'::int4range[]`, `["[1,5)"]`},
		{`array[7]::posint[]`, `["7"]`},
		{`array[int2vector '1 2']`, `["1 2"]`},
	} {
		require.Equal(t, tt.want, encode(t, conn, `select `+tt.value), tt.value)
	}
}

// A result column has the base type of a domain; only a relation's description names
// the domain itself.
func TestDomainOfAServer(t *testing.T) {
	t.Parallel()

	conn := session(t, "UTC")
	_, err := conn.Exec(t.Context(), `create domain posint as int; create domain many as int[]`)
	require.NoError(t, err)
	for domain, text := range map[string]string{"posint": "7", "many": "{1,2}"} {
		var oid uint32
		require.NoError(t, conn.QueryRow(t.Context(), `select $1::text::regtype::oid`, domain).Scan(&oid))
		out, ok := pgtext.Options{}.Append(nil, pgtext.FromCatalog(describe(t, conn, oid)), []byte(text))
		require.True(t, ok)
		require.Equal(t, `"`+text+`"`, string(out))
	}
}

func TestBuiltinAgreesWithTheCatalog(t *testing.T) {
	t.Parallel()

	conn := session(t, "UTC")
	rows, err := conn.Query(t.Context(),
		`select oid, typarray, typname::text from pg_catalog.pg_type
		where oid < 10000 and typtype in ('b', 'r', 'm') and typcategory <> 'A' and typcategory <> 'Z' or oid in (22, 30)`)
	require.NoError(t, err)
	type row struct {
		OID, Array uint32
		Name       string
	}
	types, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	require.Greater(t, len(types), 60)
	for _, r := range types {
		elem, ok := pgtext.Builtin(r.OID)
		require.True(t, ok, r.Name)
		require.NotEqual(t, pgtext.Array, elem.Kind, r.Name)
		array, ok := pgtext.Builtin(r.Array)
		require.True(t, ok, r.Name)
		require.Equal(t, pgtext.Array, array.Kind, r.Name)
		require.Equal(t, elem, *array.Elem, r.Name)
		require.Equal(t, describe(t, conn, r.Array).Delim, array.Delim, r.Name)
	}
}

// TestTimesOfAServer compares with the server's own arithmetic, in zones whose offsets
// have minutes and, long ago, seconds.
func TestTimesOfAServer(t *testing.T) {
	t.Parallel()

	for _, zone := range []string{"UTC", "Asia/Kathmandu", "Europe/Amsterdam", "America/St_Johns"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()

			conn := session(t, zone)
			rows, err := conn.Query(t.Context(), `
				with at (ts) as (
					select timestamp '4713-01-01 12:00:00 BC' + n * interval '3 years 17 days 05:07:11.123457'
					from generate_series(0, 3000) as n
					union all
					select timestamp '1969-12-30' + n * interval '00:13:07.000501' from generate_series(0, 300) as n
				)
				select ts, ts at time zone current_setting('TimeZone'), ts::date,
					(extract(epoch from ts) * 1000)::text,
					(extract(epoch from ts at time zone current_setting('TimeZone')) * 1000)::text,
					(extract(epoch from ts::date) * 1000)::text
				from at`, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			num := 0
			for rows.Next() {
				values := rows.RawValues()
				for i, field := range rows.FieldDescriptions()[:3] {
					typ, ok := pgtext.Builtin(field.DataTypeOID)
					require.True(t, ok)
					out, ok := pgtext.Options{}.Append(nil, typ, values[i])
					require.True(t, ok, string(values[i]))
					got, _ := new(big.Rat).SetString(string(out))
					want, _ := new(big.Rat).SetString(string(values[i+3]))
					require.Zero(t, want.Cmp(got), "%s became %s and not %s", values[i], out, values[i+3])
				}
				num++
			}
			require.NoError(t, rows.Err())
			require.Equal(t, 3302, num)
		})
	}
}
