package pgoutput_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/source/postgres/pgtext"
)

const (
	byDefault = `"relation":{"schema":"public","name":"item","rowKey":{"columns":["id"],"type":"default"}}`
	byIndex   = `"relation":{"schema":"public","name":"item","rowKey":{"columns":["code"],"type":"index"}}`
	byRow     = `"relation":{"schema":"public","name":"item","rowKey":{"columns":["id","code","big"],"type":"full"}}`
	byNothing = `"relation":{"schema":"public","name":"item","rowKey":{"columns":[],"type":"nothing"}}`
)

func TestRows(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		name     string
		identity rune
		message  []byte
		want     string
	}{
		{"insert", 'd', insertOf(1, tuple("1", "a", nil)), `["data",{"tag":"insert",` + byDefault + `,"new":{"id":1,"code":"a","big":null}}]`},
		{"insert under index", 'i', insertOf(1, tuple("1", "a", nil)), `["data",{"tag":"insert",` + byIndex + `,"new":{"id":1,"code":"a","big":null}}]`},
		{"insert under full", 'f', insertOf(1, tuple("1", "a", nil)), `["data",{"tag":"insert",` + byRow + `,"new":{"id":1,"code":"a","big":null}}]`},
		{"insert under nothing", 'n', insertOf(1, tuple("1", "a", nil)), `["data",{"tag":"insert",` + byNothing + `,"new":{"id":1,"code":"a","big":null}}]`},

		{"update", 'd', updateOf(1, tuple("1", "b", nil)), `["data",{"tag":"update",` + byDefault + `,"key":null,"new":{"id":1,"code":"b","big":null}}]`},
		{"update of the key", 'd', updateFrom(1, 'K', tuple("1", nil, nil), tuple("2", "b", "x")), `["data",{"tag":"update",` + byDefault + `,"key":{"id":1},"new":{"id":2,"code":"b","big":"x"}}]`},
		{"update of the index key", 'i', updateFrom(1, 'K', tuple(nil, "a", nil), tuple("1", "b", "x")), `["data",{"tag":"update",` + byIndex + `,"key":{"code":"a"},"new":{"id":1,"code":"b","big":"x"}}]`},
		{"update under full", 'f', updateFrom(1, 'O', tuple("1", "a", nil), tuple("1", "b", "x")), `["data",{"tag":"update",` + byRow + `,"key":{"id":1,"code":"a","big":null},"new":{"id":1,"code":"b","big":"x"}}]`},

		{"update leaves a large value alone", 'd', updateOf(1, tuple("1", "b", unchanged)), `["data",{"tag":"update",` + byDefault + `,"key":null,"new":{"id":1,"code":"b"}}]`},
		{"update of the key leaves a large value alone", 'd', updateFrom(1, 'K', tuple("1", nil, nil), tuple("2", "b", unchanged)), `["data",{"tag":"update",` + byDefault + `,"key":{"id":1},"new":{"id":2,"code":"b"}}]`},
		{"update leaves a large key alone", 'i', updateFrom(1, 'K', tuple(nil, "a", nil), tuple("1", unchanged, unchanged)), `["data",{"tag":"update",` + byIndex + `,"key":{"code":"a"},"new":{"id":1,"code":"a"}}]`},
		{"update under full leaves a large value alone", 'f', updateFrom(1, 'O', tuple("1", "a", "big"), tuple("1", "b", unchanged)), `["data",{"tag":"update",` + byRow + `,"key":{"id":1,"code":"a","big":"big"},"new":{"id":1,"code":"b","big":"big"}}]`},
		{"update starts with a large value left alone", 'i', updateOf(1, tuple(unchanged, "b", nil)), `["data",{"tag":"update",` + byIndex + `,"key":null,"new":{"code":"b","big":null}}]`},

		{"delete", 'd', deleteOf(1, 'K', tuple("1", nil, nil)), `["data",{"tag":"delete",` + byDefault + `,"key":{"id":1}}]`},
		{"delete by index", 'i', deleteOf(1, 'K', tuple(nil, "a", nil)), `["data",{"tag":"delete",` + byIndex + `,"key":{"code":"a"}}]`},
		{"delete by row", 'f', deleteOf(1, 'O', tuple("1", "a", nil)), `["data",{"tag":"delete",` + byRow + `,"key":{"id":1,"code":"a","big":null}}]`},
		{"truncate", 'd', truncateOf(0, 1), `["data",{"tag":"truncate","relations":[{` + strings.TrimPrefix(byDefault, `"relation":{`) + `]}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, []string{tt.want}, decodeOne(t, item(tt.identity), tt.message))
		})
	}
}

func TestTruncateOfSeveralTables(t *testing.T) {
	t.Parallel()

	got := decodeOne(t,
		relation(7, "public", "parent", 'd', columnDef{"id", true, int4OID}),
		relation(8, "", "child", 'd'),
		truncateOf(3, 7, 8))
	require.Equal(t, []string{`["data",{"tag":"truncate","relations":[` +
		`{"schema":"public","name":"parent","rowKey":{"columns":["id"],"type":"default"}},` +
		`{"schema":"pg_catalog","name":"child","rowKey":{"columns":[],"type":"default"}}]}]`}, got)
}

func TestNamesAreEscaped(t *testing.T) {
	t.Parallel()

	got := decodeOne(t,
		relation(7, `a"b`, "ta\\bl\n", 'd', columnDef{`k"`, true, int4OID}, columnDef{"колонка", false, textOID}),
		insertOf(7, tuple("1", "значение")))
	require.Equal(t, []string{`["data",{"tag":"insert","relation":{"schema":"a\"b","name":"ta\\bl\n",` +
		`"rowKey":{"columns":["k\""],"type":"default"}},"new":{"k\"":1,"колонка":"значение"}}]`}, got)
}

func TestTableWithoutColumns(t *testing.T) {
	t.Parallel()

	got := decodeOne(t, relation(7, "public", "none", 'd'), insertOf(7, tuple()))
	require.Equal(t, []string{`["data",{"tag":"insert","relation":{"schema":"public","name":"none",` +
		`"rowKey":{"columns":[],"type":"default"}},"new":{}}]`}, got)
}

func TestRelationChangesInsideATransaction(t *testing.T) {
	t.Parallel()

	got := decodeOne(t,
		item('i'), deleteOf(1, 'K', tuple(nil, "d", nil)),
		item('d'), insertOf(1, tuple("5", "e", nil)), deleteOf(1, 'K', tuple("5", nil, nil)))
	require.Equal(t, []string{
		`["data",{"tag":"delete",` + byIndex + `,"key":{"code":"d"}}]`,
		`["data",{"tag":"insert",` + byDefault + `,"new":{"id":5,"code":"e","big":null}}]`,
		`["data",{"tag":"delete",` + byDefault + `,"key":{"id":5}}]`,
	}, got)
}

func TestTypesAreAskedForOnce(t *testing.T) {
	t.Parallel()

	var asked []uint32
	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{Types: func(oid uint32) (pgtext.Type, error) {
		asked = append(asked, oid)
		return pgtext.FromCatalog(pgtext.CatalogType{
			OID: oid, Type: 'b', Category: 'A', Len: -1, Elem: &pgtext.CatalogType{OID: oid - 1, Type: 'e', Delim: ','},
		}), nil
	}})
	table := relation(1, "public", "t", 'd', columnDef{"a", true, 20002}, columnDef{"b", false, 20002}, columnDef{"c", false, int4OID})
	play(t, d, begin(10), table, table, insertOf(1, tuple("{x,NULL}", "{}", "1")), commit(10))
	require.Equal(t, []uint32{20002}, asked)
	require.Contains(t, sink.messages[1], `"new":{"a":["x",null],"b":[],"c":1}`)

	d = newDecoder(t, sink, pgoutput.Config{})
	err := d.Message(table)
	require.ErrorIs(t, err, errUnknownType)
	require.ErrorContains(t, err, `decode relation: table "public"."t": column "a": look up type 20002`)
}

func TestEmptyTransactionIsDropped(t *testing.T) {
	t.Parallel()

	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{})
	require.False(t, d.InTransaction())
	require.Zero(t, d.EmptyEnd())

	play(t, d, begin(100), logical(1, 90, "prefix", "content"), item('d'))
	require.True(t, d.InTransaction())
	play(t, d, commit(100))
	require.False(t, d.InTransaction())
	require.Empty(t, sink.messages)
	require.EqualValues(t, 100, d.EmptyEnd())
	require.EqualValues(t, 100, d.CommitLSN())
	require.EqualValues(t, 148, d.EndLSN())
	require.Zero(t, d.Commits())

	play(t, d, begin(200), insertOf(1, tuple("1", "a", nil)), insertOf(1, tuple("2", "a", nil)))
	require.Equal(t, 2, d.Rows())
	play(t, d, commit(200))
	require.Zero(t, d.Rows())
	require.Len(t, sink.messages, 4)
	require.Zero(t, d.EmptyEnd(), "the commit itself says it")
	require.EqualValues(t, 200, d.CommitLSN())
	require.EqualValues(t, 1, d.Commits())
}

func TestKnownTransactionsAreDropped(t *testing.T) {
	t.Parallel()

	sink := &recorder{t: t, last: "0a.01"} // a backfill behind LSN 10
	d := newDecoder(t, sink, pgoutput.Config{})
	for _, lsn := range []uint64{9, 10} {
		// Its rows are not looked at: this table was never described.
		play(t, d, begin(lsn), insertOf(99, nil), truncateOf(0, 99), commit(lsn))
		require.Empty(t, sink.messages)
		require.EqualValues(t, lsn, d.EmptyEnd())
	}
	// Descriptions of tables count all the same.
	play(t, d, begin(10), item('d'), commit(10))
	play(t, d, begin(11), insertOf(1, tuple("1", "a", nil)), commit(11))
	require.Len(t, sink.messages, 3)
	require.Equal(t, "0b", sink.last)
}

func TestCommitTimeIsRoundedDown(t *testing.T) {
	t.Parallel()

	for micros, want := range map[int64]string{
		0:                          "946684800000",
		-946_684_800_000_000:       "0",
		-946_684_800_000_000 - 1:   "-1",
		-946_684_800_000_000 + 999: "0",
	} {
		sink := &recorder{t: t}
		d := newDecoder(t, sink, pgoutput.Config{})
		play(t, d, begin(10), item('d'), insertOf(1, tuple("1", "a", nil)), commitAt(10, micros))
		require.Equal(t, `["commit",{"tag":"commit","commitTimeMs":`+want+`},{"watermark":"0a"}]`, sink.messages[2])
	}
}

func TestLogicalMessages(t *testing.T) {
	t.Parallel()

	var got []pgoutput.LogicalMessage
	hookErr := errors.New("enough")
	d := newDecoder(t, &recorder{t: t}, pgoutput.Config{Message: func(m pgoutput.LogicalMessage) error {
		m.Content = append([]byte(nil), m.Content...)
		got = append(got, m)
		if m.Prefix == "stop" {
			return hookErr
		}
		return nil
	}})
	play(t, d, logical(0, 5, "a", "x"), begin(10), logical(1, 6, "b", ""), commit(10))
	require.Equal(t, []pgoutput.LogicalMessage{
		{LSN: 5, Prefix: "a", Content: []byte("x")},
		{LSN: 6, Prefix: "b", Transactional: true, Content: []byte(nil)},
	}, got)
	require.ErrorIs(t, d.Message(logical(0, 7, "stop", "")), hookErr)
}

func TestUndecodableValues(t *testing.T) {
	t.Parallel()

	var told []string
	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{Undecodable: func(schema, table, column string) {
		told = append(told, schema+"."+table+"."+column)
	}})
	play(t, d, begin(10), item('d'),
		insertOf(1, tuple("x", "a", nil)),
		insertOf(1, tuple("1", "a", unchanged)),
		updateOf(1, tuple("1", "a", unchanged)),
		commit(10))
	require.Equal(t, []string{"public.item.id", "public.item.big"}, told)
	require.Contains(t, sink.messages[1], `"new":{"id":null,"code":"a","big":null}`)
	require.Contains(t, sink.messages[2], `"new":{"id":1,"code":"a"}`)
}

func TestOptionsReachTheValues(t *testing.T) {
	t.Parallel()

	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{Options: pgtext.Options{NonFiniteString: true}})
	play(t, d, begin(10), relation(1, "public", "f", 'd', columnDef{"f", true, 701}), insertOf(1, tuple("NaN")), commit(10))
	require.Contains(t, sink.messages[1], `"new":{"f":"NaN"}`)
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()

	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{Options: pgtext.Options{ReplaceInvalidUTF8: true}})
	play(t, d, begin(10), relation(1, "public", "t\xff", 'd', columnDef{"\xfe", true, int4OID}), insertOf(1, tuple("1")), commit(10))
	require.Equal(t, "[\"data\",{\"tag\":\"insert\",\"relation\":{\"schema\":\"public\",\"name\":\"t\uFFFD\","+
		"\"rowKey\":{\"columns\":[\"\uFFFD\"],\"type\":\"default\"}},\"new\":{\"\uFFFD\":1}}]", sink.messages[1])
}

func TestTooLargeChange(t *testing.T) {
	t.Parallel()

	const limit = 1000
	for _, tt := range []struct {
		name     string
		identity rune
		message  []byte
	}{
		{"one value", 'd', insertOf(1, tuple("1", "a", strings.Repeat("x", limit)))},
		{"escapes", 'd', insertOf(1, tuple("1", "a", strings.Repeat("\x01", limit/5)))},
		{"several values", 'd', updateOf(1, tuple("1", strings.Repeat("x", limit/2), strings.Repeat("x", limit/2)))},
		{"old row", 'f', deleteOf(1, 'O', tuple("1", "a", strings.Repeat("x", limit)))},
		{"value of the old row", 'f', updateFrom(1, 'O', tuple("1", "a", strings.Repeat("x", limit/2)), tuple("1", "b", unchanged))},
		{"many tables", 'd', truncateOf(0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			sink := &recorder{t: t}
			d := newDecoder(t, sink, pgoutput.Config{MaxMessage: limit})
			play(t, d, begin(10), item(tt.identity), insertOf(1, tuple("1", "a", strings.Repeat("x", 700))))
			err := d.Message(tt.message)
			var large *pgoutput.TooLargeError
			require.ErrorAs(t, err, &large)
			require.Equal(t, "public", large.Schema)
			require.Equal(t, "item", large.Table)
			require.Greater(t, large.Size, limit)
			require.ErrorContains(t, err, `"public"."item"`)
			require.Len(t, sink.messages, 2)
		})
	}
}

func TestLargestChange(t *testing.T) {
	t.Parallel()

	want := decodeOne(t, item('d'), insertOf(1, tuple("1", "a", "xyz")))
	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{MaxMessage: len(want[0])})
	play(t, d, begin(10), item('d'), insertOf(1, tuple("1", "a", "xyz")), commit(10))
	require.Equal(t, want[0], sink.messages[1])
}

func TestBrokenProtocol(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		name     string
		identity rune
		messages [][]byte // the last one is refused
		want     string
	}{
		{"empty", 'd', [][]byte{{}}, "decode message: it is empty"},
		{"unknown type", 'd', [][]byte{{'Z'}}, "'Z' does not belong to protocol version 1"},
		{"stream start", 'd', [][]byte{cat('S', be(4, 7), byte(1))}, "'S' does not belong"},
		{"prepare", 'd', [][]byte{{'P'}}, "'P' does not belong"},
		{"begin in a transaction", 'd', [][]byte{begin(20), begin(30)}, "decode begin: the transaction that commits at 0/14 is still open"},
		{"commit outside", 'd', [][]byte{commit(20)}, "decode commit: no transaction is open"},
		{"commit elsewhere", 'd', [][]byte{begin(20), commit(21)}, "decode commit: it is at 0/15, but its transaction began with 0/14"},
		{"insert outside", 'd', [][]byte{insertOf(1, tuple("1", "a", nil))}, "decode insert: no transaction is open"},
		{"truncate outside", 'd', [][]byte{truncateOf(0, 1)}, "decode truncate: no transaction is open"},
		{"unknown table", 'd', [][]byte{begin(20), insertOf(2, tuple())}, "decode insert: relation 2 was not described"},
		{"truncate of an unknown table", 'd', [][]byte{begin(20), truncateOf(0, 1, 2)}, "relation 2 was not described"},
		{"truncate of nothing", 'd', [][]byte{begin(20), truncateOf(0)}, "0 tables"},
		{"truncate announces more tables", 'd', [][]byte{begin(20), cat('T', be(4, 1<<31), byte(0), be(4, 1))}, "2147483648 tables are announced in 4 bytes"},
		{"too few columns", 'd', [][]byte{begin(20), insertOf(1, tuple("1", "a"))}, `table "public"."item": the row has 2 columns, the table 3`},
		{"too many columns", 'd', [][]byte{begin(20), insertOf(1, tuple("1", "a", nil, nil))}, "the row has 4 columns, the table 3"},
		{"too few old columns", 'd', [][]byte{begin(20), deleteOf(1, 'K', tuple("1"))}, "the row has 1 columns, the table 3"},
		{"binary value", 'd', [][]byte{begin(20), insertOf(1, cat(be(2, 3), 'b', be(4, 0), 'n', 'n'))}, `column "id": 'b' is no kind of value`},
		{"no new row", 'd', [][]byte{begin(20), cat('I', be(4, 1), 'K', tuple("1", "a", nil))}, "'K' stands where 'N' must"},
		{"no new row in an update", 'd', [][]byte{begin(20), cat('U', be(4, 1), 'K', tuple("1", nil, nil), 'O', tuple("1", nil, nil))}, "'O' stands where 'N' must"},
		{"another kind of update", 'd', [][]byte{begin(20), cat('U', be(4, 1), 'X', tuple("1", nil, nil))}, "'X' is no kind of row"},
		{"delete without key", 'd', [][]byte{begin(20), deleteOf(1, 'N', tuple("1", "a", nil))}, `decode delete: table "public"."item": neither the key nor the old row is given`},
		{"key left alone and not given", 'i', [][]byte{begin(20), updateOf(1, tuple("1", unchanged, nil))}, `column "code": its value was not sent`},
		{"old key left alone", 'i', [][]byte{begin(20), deleteOf(1, 'K', tuple(nil, unchanged, nil))}, `column "code": its value was not sent`},
		{"bytes behind a row", 'd', [][]byte{begin(20), append(insertOf(1, tuple("1", "a", nil)), 0)}, "1 bytes too many"},
		{"bytes behind begin", 'd', [][]byte{append(begin(20), 0)}, "decode begin: 1 bytes too many"},
		{"unknown identity", 'd', [][]byte{relation(1, "a", "b", 'x')}, "'x' is no replica identity"},
		{"value longer than the message", 'd', [][]byte{begin(20), insertOf(1, cat(be(2, 3), 't', be(4, 1<<32-1), 'n', 'n'))}, "the message is too short"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			sink := &recorder{t: t}
			d := newDecoder(t, sink, pgoutput.Config{})
			last := len(tt.messages) - 1
			play(t, d, item(tt.identity))
			play(t, d, tt.messages[:last]...)
			require.ErrorContains(t, d.Message(tt.messages[last]), tt.want)
			require.LessOrEqual(t, len(sink.messages), 1, "no more than a begin was given")
		})
	}
}

func TestChangeWithoutIdentity(t *testing.T) {
	t.Parallel()

	for _, message := range [][]byte{
		updateOf(1, tuple("1", "a", nil)),
		deleteOf(1, 'K', tuple("1", nil, nil)),
	} {
		sink := &recorder{t: t}
		d := newDecoder(t, sink, pgoutput.Config{})
		play(t, d, begin(10), item('n'))
		err := d.Message(message)
		require.ErrorIs(t, err, pgoutput.ErrNoIdentity)
		require.ErrorContains(t, err, `table "public"."item"`)
		require.Empty(t, sink.messages)
	}
}

func TestShortMessages(t *testing.T) {
	t.Parallel()

	for _, message := range everyKind() {
		for n := range len(message) {
			sink := &recorder{t: t}
			d := newDecoder(t, sink, pgoutput.Config{})
			play(t, d, item('f'))
			if message[0] != 'B' {
				play(t, d, begin(10))
			}
			require.Error(t, d.Message(message[:n]), "%q", message[:n])
		}
	}
}

// everyKind returns a valid message of every kind, in an order that can be played.
func everyKind() [][]byte {
	return [][]byte{
		begin(10),
		cat('O', be(8, 1), "origin"),
		cat('Y', be(4, 20001), "public", "mood"),
		item('f'),
		insertOf(1, tuple("1", "a", nil)),
		updateOf(1, tuple("1", "a", nil)),
		updateFrom(1, 'O', tuple("1", "a", "x"), tuple("1", "b", unchanged)),
		deleteOf(1, 'O', tuple("1", "a", nil)),
		truncateOf(1, 1),
		logical(1, 5, "prefix", "content"),
		commit(10),
	}
}

func TestEnoughSpaceIsAskedFor(t *testing.T) {
	t.Parallel()

	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{})
	table := relation(2, "public", "blob", 'd', columnDef{"id", true, int8OID}, columnDef{"b", false, byteaOID})
	play(t, d, item('f'), table, begin(10))
	for _, message := range [][]byte{
		insertOf(1, tuple("1", "abc", strings.Repeat("x", 300))),
		insertOf(1, tuple(nil, nil, nil)),
		insertOf(2, tuple("1", `\x`+strings.Repeat("ff", 300))),
		updateFrom(1, 'O', tuple("1", "a", strings.Repeat("x", 300)), tuple("1", "b", unchanged)),
		deleteOf(1, 'O', tuple("1", "a", strings.Repeat("x", 300))),
		truncateOf(0, 1, 2, 1, 2),
	} {
		play(t, d, message)
		require.LessOrEqual(t, len(sink.messages[len(sink.messages)-1]), sink.asked, "%q", message)
	}
	require.Equal(t, []change.Tag{
		change.Insert, change.Insert, change.Insert, change.Update, change.Delete, change.Truncate,
	}, sink.tags)
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()

	sink := &recorder{t: t}
	_, err := pgoutput.New(pgoutput.Config{}, sink)
	require.ErrorContains(t, err, "Types is missing")
	_, err = pgoutput.New(pgoutput.Config{Types: noTypes}, nil)
	require.ErrorContains(t, err, "no sink")
	_, err = pgoutput.New(pgoutput.Config{Types: noTypes, MaxMessage: change.MaxMessage + 1}, sink)
	require.ErrorContains(t, err, "MaxMessage")
}
