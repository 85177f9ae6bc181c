package sql_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
)

func TestWatermarkFunctions(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	for lsn, watermark := range map[string]string{
		"0/0":               "00",
		"0/1":               "01",
		"0/23":              "0z",
		"0/24":              "110",
		"16/B374D848":       "718sh0nk8",
		"FFFFFFFF/FFFFFFFF": "c3w5e11264sgsf",
	} {
		require.Equal(t, watermark, one[string](t, conn, `select encode_watermark($1::text::pg_lsn)`, lsn))
		require.Equal(t, lsn, one[string](t, conn, `select decode_watermark($1)::text`, watermark))
		require.Equal(t, lsn, one[string](t, conn, `select decode_watermark($1)::text`, watermark+".01"), "without its minor part")
	}

	// Byte order of the watermarks is the order of the positions, and none is changed on its way.
	require.Empty(t, objects(t, conn, `
		with p as (
			select '0/0'::pg_lsn + trunc(random()::numeric * power(2::numeric, trunc(random() * 65)::integer)) % 18446744073709551616 as lsn
			from generate_series(1, 2000)
		)
		select a.lsn::text from (
			select p.lsn, lead(p.lsn) over w as next_lsn, encode_watermark(p.lsn) as mark,
				lead(encode_watermark(p.lsn)) over w as next_mark
			from p
			window w as (order by p.lsn)
		) as a
		where decode_watermark(a.mark) <> a.lsn or (a.next_lsn > a.lsn and a.next_mark <= a.mark collate "C")`))

	require.True(t, one[bool](t, conn, `select encode_watermark(null) is null and decode_watermark(null) is null`))
	for _, bad := range []string{"", "0", "foo", "0A", "1", "100", "01.", "01.1", ".01", "01.01.01", " 01", "01\n", "d100000000000000"} {
		_, err := conn.Exec(t.Context(), `select decode_watermark($1)`, bad)
		requireCode(t, sql.CodeInvalidArgument, err)
	}
}
