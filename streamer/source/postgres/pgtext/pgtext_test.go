package pgtext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/source/postgres/pgtext"
)

// scalar is one value of a type that is not an array.
type scalar struct {
	name string
	oid  uint32
	text string
	want string // JSON; null with bad means that the text is refused
	bad  bool
}

const (
	boolOID        = 16
	byteaOID       = 17
	int8OID        = 20
	int2vectorOID  = 22
	int4OID        = 23
	textOID        = 25
	oidOID         = 26
	jsonOID        = 114
	xmlOID         = 142
	pointOID       = 600
	float4OID      = 700
	float8OID      = 701
	moneyOID       = 790
	bpcharOID      = 1042
	dateOID        = 1082
	timeOID        = 1083
	timestampOID   = 1114
	timestamptzOID = 1184
	intervalOID    = 1186
	timetzOID      = 1266
	numericOID     = 1700
	uuidOID        = 2950
	jsonbOID       = 3802
	int4rangeOID   = 3904
)

var scalars = []scalar{
	{"true", boolOID, "t", "true", false},
	{"false", boolOID, "f", "false", false},
	{"neither true nor false", boolOID, "true", "null", true},

	{"int4", int4OID, "-2147483648", "-2147483648", false},
	{"oid beyond int4", oidOID, "4294967295", "4294967295", false},
	{"zero", int4OID, "0", "0", false},
	{"int8 beyond 2^53", int8OID, "9007199254740993", "9007199254740993", false},
	{"largest int8", int8OID, "9223372036854775807", "9223372036854775807", false},
	{"smallest int8", int8OID, "-9223372036854775808", "-9223372036854775808", false},
	{"above int8", int8OID, "9223372036854775808", "null", true},
	{"below int8", int8OID, "-9223372036854775809", "null", true},
	{"integer with leading zero", int4OID, "007", "null", true},
	{"negative zero integer", int4OID, "-0", "null", true},
	{"integer with letters", int4OID, "12a", "null", true},
	{"no integer", int4OID, "", "null", true},
	{"only a sign", int4OID, "-", "null", true},

	{"numeric", numericOID, "1.50", "1.5", false},
	{"numeric zero with scale", numericOID, "0.0000", "0", false},
	{"numeric with scale and no fraction", numericOID, "1200.00", "1200", false},
	{"small numeric", numericOID, "-0.000001", "-0.000001", false},
	{"very small numeric", numericOID, "0.00000000000000000012", "0.00000000000000000012", false},
	{"long fraction", numericOID, "0.1234567890123456789012345678901234567890", "0.123456789012345678901234567890123456789", false},
	{"numeric just below 2^53", numericOID, "9007199254740991", "9007199254740991", false},
	{"numeric below 2^53 by a fraction", numericOID, "9007199254740991.99999999999", "9007199254740991.99999999999", false},
	{"numeric at 2^53", numericOID, "9007199254740992", "9.007199254740992e15", false},
	{"numeric past 2^53 keeps its digits", numericOID, "9007199254740993", "9.007199254740993e15", false},
	{"negative numeric at 2^53", numericOID, "-9007199254740992.000", "-9.007199254740992e15", false},
	{"fractional numeric past 2^53", numericOID, "9007199254740992.5", "9.0071992547409925e15", false},
	{"numeric of sixteen digits below 2^53", numericOID, "1000000000000000", "1000000000000000", false},
	{"numeric of 23 digits", numericOID, "12345678901234567890.123", "1.2345678901234567890123e19", false},
	{
		"numeric(38,10)", numericOID, "1234567890123456789012345678.0123456789",
		"1.2345678901234567890123456780123456789e27", false,
	},
	{"power of ten", numericOID, "1000000000000000000000000000000", "1e30", false},
	{"largest double as numeric", numericOID, "17976931348623157" + zeros(292), "1.7976931348623157e308", false},
	{"numeric past doubles", numericOID, "18" + zeros(307), "null", true},
	{"numeric far past doubles", numericOID, "-1" + zeros(400), "null", true},
	{"numeric NaN", numericOID, "NaN", "null", false},
	{"numeric infinity", numericOID, "-Infinity", "null", false},
	{"no numeric", numericOID, "1.2.3", "null", true},
	{"empty numeric", numericOID, "", "null", true},
	{"only a point", numericOID, ".", "null", true},
	{"exponent without digits", numericOID, "1e", "null", true},

	{"float", float8OID, "0.1", "0.1", false},
	{"float with all digits", float8OID, "123456789.12345679", "123456789.12345679", false},
	{"float4", float4OID, "3.4028235e+38", "3.4028235e38", false},
	{"float4 printed with exponent", float4OID, "1.6777216e+07", "16777216", false},
	{"float printed with exponent and fraction", float8OID, "1.5e+02", "150", false},
	{"float of fifteen zeros", float8OID, "1e+15", "1000000000000000", false},
	{"float at 2^53", float8OID, "9.007199254740992e+15", "9.007199254740992e15", false},
	{"large float", float8OID, "1e+21", "1e21", false},
	{"small float", float8OID, "1e-07", "1e-7", false},
	{"float of five zeros", float8OID, "1.25e-05", "0.0000125", false},
	{"smallest float", float8OID, "5e-324", "5e-324", false},
	{"largest float", float8OID, "-1.7976931348623157e+308", "-1.7976931348623157e308", false},
	{"negative zero", float8OID, "-0", "0", false},
	{"negative zero with exponent", float8OID, "-0e+00", "0", false},
	{"float NaN", float8OID, "NaN", "null", false},
	{"float infinity", float4OID, "Infinity", "null", false},

	{"text", textOID, `quote " back\slash / <&>`, `"quote \" back\\slash / <&>"`, false},
	{"control characters", textOID, "\x01\x02\x1f\x7f\t\n\r\b\f", `"\u0001\u0002\u001f` + "\x7f" + `\t\n\r\b\f"`, false},
	{"beyond ASCII", textOID, "é中😀\u2028", `"é中😀` + "\u2028" + `"`, false},
	{"empty text", textOID, "", `""`, false},
	{"bpchar", bpcharOID, "ab   ", `"ab   "`, false},
	{"uuid", uuidOID, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", `"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"`, false},
	{"xml", xmlOID, "<a>&amp;</a>", `"<a>&amp;</a>"`, false},
	{"money", moneyOID, "$12.34", `"$12.34"`, false},
	{"interval", intervalOID, "1 year 2 mons 3 days 04:05:06.789", `"1 year 2 mons 3 days 04:05:06.789"`, false},
	{"range", int4rangeOID, "[1,5)", `"[1,5)"`, false},
	{"point", pointOID, "(1.5,-2)", `"(1.5,-2)"`, false},
	{"int2vector", int2vectorOID, "1 2 3", `"1 2 3"`, false},

	{"json untouched", jsonOID, `{"a":1,"a":2,  "b" : 1.0e400}`, `"{\"a\":1,\"a\":2,  \"b\" : 1.0e400}"`, false},
	{"json with an escaped NUL", jsonOID, `{"s":"a\u0000b"}`, `"{\"s\":\"a\\u0000b\"}"`, false},
	{"json null", jsonbOID, "null", `"null"`, false},
	{"json number", jsonbOID, "12345678901234567890", `"12345678901234567890"`, false},
	{"json over lines", jsonOID, "[\n 1\n]", `"[\n 1\n]"`, false},

	{"bytea", byteaOID, `\xdeadbeef00ff`, `{"type":"Buffer","data":[222,173,190,239,0,255]}`, false},
	{"bytea of small bytes", byteaOID, `\x090a0B63647F`, `{"type":"Buffer","data":[9,10,11,99,100,127]}`, false},
	{"empty bytea", byteaOID, `\x`, `{"type":"Buffer","data":[]}`, false},
	{"bytea with half a byte", byteaOID, `\xabc`, "null", true},
	{"bytea not in hex", byteaOID, `abcd`, "null", true},
	{"bytea with other letters", byteaOID, `\xzz`, "null", true},

	{"date", dateOID, "2003-04-12", "1050105600000", false},
	{"leap day", dateOID, "2024-02-29", "1709164800000", false},
	{"epoch", dateOID, "1970-01-01", "0", false},
	{"first year", dateOID, "0001-01-01", "-62135596800000", false},
	{"year below 100", dateOID, "0099-01-01", "-59042995200000", false},
	{"date BC", dateOID, "0044-03-15 BC", "-63517824000000", false},
	{"leap day BC", dateOID, "0001-02-29 BC", "-62162121600000", false},
	{"date beyond year 9999", dateOID, "10000-01-02", "253402387200000", false},
	{"last date", dateOID, "5874897-12-31", "185331706992000000", false},
	{"first date", dateOID, "4714-11-24 BC", "-210866803200000", false},
	{"date infinity", dateOID, "infinity", "null", false},
	{"no leap day", dateOID, "2023-02-29", "null", true},
	{"month 13", dateOID, "2023-13-01", "null", true},
	{"year 0", dateOID, "0000-01-01", "null", true},
	{"date in another style", dateOID, "04/12/2003", "null", true},

	{"time cuts microseconds", timeOID, "04:05:06.123456", "14706123", false},
	{"end of day", timeOID, "24:00:00", "86400000", false},
	{"midnight", timeOID, "00:00:00", "0", false},
	{"past the end of day", timeOID, "24:00:01", "null", true},
	{"time with seven digits", timeOID, "00:00:00.1234567", "null", true},
	{"time with point alone", timeOID, "00:00:00.", "null", true},

	{"timetz west", timetzOID, "04:05:06.789-08", "43506789", false},
	{"timetz wraps to the next day", timetzOID, "23:00:00-02", "3600000", false},
	{"timetz wraps to the day before", timetzOID, "04:05:06+05:30", "81306000", false},
	{"timetz with seconds in the offset", timetzOID, "04:05:06+05:30:15", "81291000", false},
	{"timetz ends the day west", timetzOID, "24:00:00-05", "18000000", false},
	{"timetz ends the day east", timetzOID, "24:00:00+02", "79200000", false},
	{"timetz ends the day in UTC", timetzOID, "24:00:00+00", "86400000", false},
	{"timetz midnight in UTC", timetzOID, "22:00:00-02", "0", false},
	{"timetz rounds down before midnight", timetzOID, "00:00:00.0005+01", "82800000", false},
	{"timetz far west", timetzOID, "12:00:00-15:59", "14340000", false},
	{"timetz without offset", timetzOID, "04:05:06", "null", true},

	{"timestamp", timestampOID, "2019-01-12 00:30:35.381101", "1547253035381.101", false},
	{"timestamp of whole milliseconds", timestampOID, "2024-02-29 12:34:56.124", "1709210096124", false},
	{"timestamp with short fraction", timestampOID, "2024-02-29 12:34:56.1234", "1709210096123.4", false},
	{"timestamp with ten microseconds", timestampOID, "2024-02-29 12:34:56.12346", "1709210096123.46", false},
	{"timestamptz", timestamptzOID, "2024-02-29 07:04:56.123456+00", "1709190296123.456", false},
	{"timestamptz with offset", timestamptzOID, "2024-02-29 12:34:56.123456+05:30", "1709190296123.456", false},
	{"timestamptz with seconds in the offset", timestamptzOID, "1880-01-01 00:19:32+00:19:32", "-2840140800000", false},
	{"timestamp half a second before 1970", timestampOID, "1969-12-31 23:59:59.5", "-500", false},
	{"timestamp a microsecond before 1970", timestampOID, "1969-12-31 23:59:59.999999", "-0.001", false},
	{"timestamp 1.5 milliseconds before 1970", timestampOID, "1969-12-31 23:59:59.9985", "-1.5", false},
	{"timestamp a microsecond after 1970", timestampOID, "1970-01-01 00:00:00.000001", "0.001", false},
	{"timestamp BC", timestampOID, "0044-03-15 01:02:03 BC", "-63517820277000", false},
	{"timestamptz BC", timestamptzOID, "0044-03-15 01:02:03+00 BC", "-63517820277000", false},
	{"timestamp of the first years", timestampOID, "0099-01-01 00:00:00", "-59042995200000", false},
	{"timestamp beyond year 9999", timestampOID, "10000-01-02 03:04:05", "253402398245000", false},
	{"last timestamp", timestampOID, "294276-12-31 23:59:59.999999", "9224318015999999.999", false},
	{"first timestamp", timestampOID, "4714-11-24 00:00:00 BC", "-210866803200000", false},
	{"timestamp infinity", timestampOID, "infinity", "null", false},
	{"timestamptz minus infinity", timestamptzOID, "-infinity", "null", false},
	{"timestamp without clock", timestampOID, "2024-02-29", "null", true},
	{"timestamp in another style", timestampOID, "Thu Feb 29 12:34:56 2024", "null", true},
	{"timestamp with a name for a zone", timestamptzOID, "2024-02-29 12:34:56 CET", "null", true},
}

func TestAppendScalar(t *testing.T) {
	t.Parallel()

	for _, tt := range scalars {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			typ, ok := pgtext.Builtin(tt.oid)
			require.True(t, ok)
			got, ok := pgtext.Options{}.Append([]byte("before:"), typ, []byte(tt.text))
			require.Equal(t, "before:"+tt.want, string(got))
			require.Equal(t, !tt.bad, ok)
		})
	}
}

func TestAppendArray(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		oid  uint32
		text string
		want string
		bad  bool
	}{
		{"int4", 1007, "{1,2,3}", "[1,2,3]", false},
		{"empty", 1007, "{}", "[]", false},
		{"two dimensions", 1007, "{{1,2},{3,NULL}}", "[[1,2],[3,null]]", false},
		{"six dimensions", 1007, "{{{{{{1}}}}}}", "[[[[[[1]]]]]]", false},
		{"bounds", 1007, "[2:3]={7,8}", "[7,8]", false},
		{"bounds of two dimensions", 1007, "[-1:0][5:5]={{7},{8}}", "[[7],[8]]", false},
		{"exact int8", 1016, "{9007199254740993,1}", "[9007199254740993,1]", false},
		{
			"text with everything", 1009, `{a,"b c","d\"e","",NULL,"NULL","q\"uo,te","{b}","back\\slash",é😀}`,
			`["a","b c","d\"e","",null,"NULL","q\"uo,te","{b}","back\\slash","é😀"]`, false,
		},
		{"line ends in text", 1009, "{\"a\nb\",\"\t\"}", `["a\nb","\t"]`, false},
		{"numbers", 1231, "{1.10,2,NaN,12345678901234567890}", "[1.1,2,null,1.234567890123456789e19]", false},
		{"floats", 1022, "{0.1,NaN,Infinity}", "[0.1,null,null]", false},
		{"bool with NULL", 1000, "{t,f,NULL}", "[true,false,null]", false},
		{
			"timestamptz with NULL", 1185, `{"2024-01-01 00:00:00.5+00","1999-12-31 23:59:59.999999+00",NULL,infinity}`,
			"[1704067200500,946684799999.999,null,null]", false,
		},
		{"dates", 1182, `{2003-04-12,"0044-03-15 BC"}`, "[1050105600000,-63517824000000]", false},
		{"times", 1183, `{04:05:06.123456,24:00:00}`, "[14706123,86400000]", false},
		{
			"jsonb parsed", 3807, `{"{\"a\": 1, \"b\": [1, null]}","\"s\"","[1, null]",1.50,NULL,"null"}`,
			`[{"a":1,"b":[1,null]},"s",[1,null],1.50,null,null]`, false,
		},
		{
			"json keeps order, doubles and escapes", 199, `{"{\"b\" : 1, \"a\":12345678901234567890,` + "\n" + `\"b\":\"x \\u0000 \\\" y\"}"}`,
			`[{"b":1,"a":12345678901234567890,"b":"x \u0000 \" y"}]`, false,
		},
		{"json that is none", 199, `{"{\"a\"",2}`, "[null,2]", true},
		{
			"bytea", 1001, `{"\\xdead","\\x"}`,
			`[{"type":"Buffer","data":[222,173]},{"type":"Buffer","data":[]}]`, false,
		},
		{"boxes", 1020, "{(1,1),(0,0);(2,2),(1,1)}", `["(1,1),(0,0)","(2,2),(1,1)"]`, false},
		{"points", 1017, `{"(1,2)","(3,4)"}`, `["(1,2)","(3,4)"]`, false},
		{"int2vectors", 1006, `{"1 2","3"}`, `["1 2","3"]`, false},
		{"one bad element", 1007, "{1,x,3}", "[1,null,3]", true},
		{"no array", 1007, "1,2", "null", true},
		{"nothing", 1007, "", "null", true},
		{"open", 1007, "{1,2", "null", true},
		{"open and empty", 1007, "{", "null", true},
		{"open quote", 1009, `{"a`, "null", true},
		{"open quote behind a backslash", 1009, `{"a\`, "null", true},
		{"backslash before the last quote", 1009, `{"a\"`, "null", true},
		{"empty element", 1007, "{1,,2}", "null", true},
		{"comma at the end", 1007, "{1,}", "null", true},
		{"something behind", 1007, "{1}2", "null", true},
		{"something behind a quote", 1009, `{"a"b}`, "null", true},
		{"seven dimensions", 1007, "{{{{{{{1}}}}}}}", "null", true},
		{"bounds without array", 1007, "[1:2]", "null", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			typ, ok := pgtext.Builtin(tt.oid)
			require.True(t, ok)
			got, ok := pgtext.Options{}.Append([]byte("before:"), typ, []byte(tt.text))
			require.Equal(t, "before:"+tt.want, string(got))
			require.Equal(t, !tt.bad, ok)
		})
	}
}

func TestNonFiniteValuesAsStrings(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		oid        uint32
		text, want string
	}{
		{numericOID, "NaN", `"NaN"`},
		{float8OID, "-Infinity", `"-Infinity"`},
		{dateOID, "infinity", `"infinity"`},
		{timestamptzOID, "-infinity", `"-infinity"`},
		{numericOID, "1" + zeros(309), `"1` + zeros(309) + `"`},
		{1022, "{1,NaN}", `[1,"NaN"]`},
	} {
		typ, ok := pgtext.Builtin(tt.oid)
		require.True(t, ok)
		got, ok := pgtext.Options{NonFiniteString: true}.Append(nil, typ, []byte(tt.text))
		require.True(t, ok, tt.text)
		require.Equal(t, tt.want, string(got))
	}
}

func TestInvalidUTF8(t *testing.T) {
	t.Parallel()

	text := pgtext.Type{}
	got, ok := pgtext.Options{ReplaceInvalidUTF8: true}.Append(nil, text, []byte("a\xff\xfeb\xe4"))
	require.True(t, ok)
	require.Equal(t, "\"a\uFFFDb\uFFFD\"", string(got))

	got, ok = pgtext.Options{}.Append(nil, text, []byte("a\xffb"))
	require.True(t, ok)
	require.Equal(t, "\"a\xffb\"", string(got), "bytes pass through unless told otherwise")

	array, _ := pgtext.Builtin(1009)
	got, ok = pgtext.Options{ReplaceInvalidUTF8: true}.Append(nil, array, []byte("{\"a\xff\\\"\",b}"))
	require.True(t, ok)
	require.Equal(t, "[\"a\uFFFD\\\"\",\"b\"]", string(got))
}

func TestFromCatalog(t *testing.T) {
	t.Parallel()

	enum := pgtext.CatalogType{OID: 20001, Name: "mood", Type: 'e', Category: 'E', Len: 4, Delim: ','}
	domain := pgtext.CatalogType{OID: 20003, Name: "pos", Type: 'd', Category: 'N', Len: 4, Delim: ',', Base: int4OID}
	other := pgtext.CatalogType{OID: 20005, Name: "cube", Type: 'b', Category: 'U', Len: -1, Delim: ';'}
	array := func(elem pgtext.CatalogType) pgtext.CatalogType {
		return pgtext.CatalogType{OID: elem.OID + 1, Name: "_" + elem.Name, Type: 'b', Category: 'A', Len: -1, Delim: elem.Delim, Elem: &elem}
	}
	domainOverArray := pgtext.CatalogType{OID: 20009, Name: "many", Type: 'd', Category: 'A', Len: -1, Delim: ',', Base: 1007}
	fixed := pgtext.CatalogType{OID: 20011, Name: "pair", Type: 'b', Category: 'G', Len: 16, Delim: ',', Elem: &enum}

	for _, tt := range []struct {
		name string
		row  pgtext.CatalogType
		text string
		want string
	}{
		{"enum", enum, "a,b", `"a,b"`},
		{"array of enum", array(enum), `{"a,b",NULL,happy}`, `["a,b",null,"happy"]`},
		{"domain is text", domain, "7", `"7"`},
		{"array of domain is strings", array(domain), "{7,8}", `["7","8"]`},
		{"array with another delimiter", array(other), "{(1);(2)}", `["(1)","(2)"]`},
		{"domain over an array is text", domainOverArray, "{1}", `"{1}"`},
		{"fixed length with elements is text", fixed, "(1,2)", `"(1,2)"`},
		{"built in", pgtext.CatalogType{OID: int4OID, Type: 'b', Category: 'N', Len: 4}, "7", "7"},
		{"array of composite", array(pgtext.CatalogType{OID: 20015, Type: 'c', Category: 'C', Len: -1}), `{"(1,a)","(,)"}`, `["(1,a)","(,)"]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			typ := pgtext.FromCatalog(tt.row)
			require.Equal(t, tt.row.OID, typ.OID)
			got, ok := pgtext.Options{}.Append(nil, typ, []byte(tt.text))
			require.True(t, ok)
			require.Equal(t, tt.want, string(got))
		})
	}
	_, ok := pgtext.Builtin(20001)
	require.False(t, ok)
}

func zeros(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = '0'
	}
	return string(b)
}
