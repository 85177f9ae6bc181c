package sql_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// marked moves the head and marks it, as if that had been some seconds ago.
func marked(t *testing.T, conn *pgx.Conn, head string, bytes, secondsAgo int) {
	t.Helper()
	exec(t, conn, `update "replicationState" set "lastWatermark" = $1`, head)
	require.True(t, one[bool](t, conn, `select mark_log('a/1', '01', $1)`, bytes))
	exec(t, conn, `update retention_mark set marked_at = now() - $2 * interval '1 second' where watermark = $1`, head, secondsAgo)
}

func TestRetainedWatermark(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Conn(t)
	exec(t, conn, `select ensure_replication_config('01', '{p}', '01')`)
	exec(t, conn, `select assume_ownership('a/1', null, '01', null)`)
	byAge := func(want string, seconds int) {
		t.Helper()
		require.Equal(t, want, one[string](t, conn, `select coalesce(retained_watermark(max_age => $1 * interval '1 second'), '')`, seconds))
	}
	bySize := func(want string, bytes int) {
		t.Helper()
		require.Equal(t, want, one[string](t, conn, `select coalesce(retained_watermark(max_bytes => $1), '')`, bytes))
	}
	byAge("", 0)
	bySize("", 0)

	marked(t, conn, "01", 0, 400)
	marked(t, conn, "02", 100, 300)
	marked(t, conn, "04", 100, 200)
	marked(t, conn, "06", 1000, 100)
	byAge("", 500)
	byAge("01", 399)
	byAge("01", 301)
	byAge("02", 299)
	byAge("06", 100)
	bySize("06", 0)
	bySize("06", 999)
	bySize("04", 1000)
	bySize("02", 1100)
	bySize("", 1200)
	bySize("", 1_000_000)
	require.Empty(t, one[string](t, conn, `select coalesce(retained_watermark(), '')`), "no limit")
	require.Equal(t, "04", one[string](t, conn, `select retained_watermark('1 hour', 1000)`), "whichever takes more")

	// The head stays: its first mark stands, and its bytes are those of all.
	require.True(t, one[bool](t, conn, `select mark_log('a/1', '01', 0)`))
	byAge("06", 100)
	bySize("04", 1000)

	// What was purged needs no marks.
	exec(t, conn, `insert into progress (replica_version, purged_watermark) values ('01', '04')`)
	require.True(t, one[bool](t, conn, `select mark_log('a/1', '01', 0)`))
	require.Equal(t, []string{"04", "06"}, one[[]string](t, conn, `select array_agg(watermark order by watermark) from retention_mark`))

	// Of somebody else, or of another history, nothing is marked, and marks are void.
	require.False(t, one[bool](t, conn, `select mark_log('b/1', '01', 0)`))
	require.False(t, one[bool](t, conn, `select mark_log('a/1', '02', 0)`))
	exec(t, conn, `update "replicationConfig" set "replicaVersion" = '05'`)
	byAge("", 0)
	require.True(t, one[bool](t, conn, `select mark_log('a/1', '05', 7)`))
	require.Equal(t, int64(7), one[int64](t, conn, `select num_bytes from retention_mark`))

	for _, bytes := range []any{nil, -1} {
		_, err := conn.Exec(t.Context(), `select mark_log('a/1', '05', $1)`, bytes)
		require.ErrorContains(t, err, "ZC010")
	}
}

func TestReportFloor(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Conn(t)
	exec(t, conn, `select ensure_replication_config('01', '{p}', '01')`)
	exec(t, conn, `select assume_ownership('a/1', null, '01', null)`)
	exec(t, conn, `select report_backup('05', '01')`)
	require.True(t, one[bool](t, conn, `select report_floor('a/1', '01', '03', 'subscriber b')`))
	require.Equal(t, "03 subscriber b 05", one[string](t, conn,
		`select floor_watermark || ' ' || floor_holder || ' ' || backup_watermark from status where floor_at <= now()`))
	require.True(t, one[bool](t, conn, `select report_floor('a/1', '01', '05', 'backup')`))
	require.False(t, one[bool](t, conn, `select report_floor('b/1', '01', '04', 'nobody')`))
	require.False(t, one[bool](t, conn, `select report_floor('a/1', '02', '04', 'nobody')`))
	require.Equal(t, "05 backup", one[string](t, conn, `select floor_watermark || ' ' || floor_holder from status`))
}
