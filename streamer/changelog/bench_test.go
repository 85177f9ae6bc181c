package changelog_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
	"millrace/streamer/change"
	"millrace/streamer/changelog"
	"millrace/streamer/watermark"
)

// durable is a log on a server that waits for the disk.
func durable(b *testing.B) (*pgx.Conn, *pgx.ConnConfig) {
	b.Helper()
	server, err := pgtest.Start(b.Context(), pgtest.Options{Durable: true})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, server.Stop()) })
	config, err := pgx.ParseConfig(server.URL("postgres"))
	require.NoError(b, err)
	conn, err := pgx.ConnectConfig(b.Context(), config.Copy())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close(context.WithoutCancel(b.Context()))) })
	require.NoError(b, sql.Migrate(b.Context(), conn, pgtest.Schema))
	config.RuntimeParams["search_path"] = pgtest.Schema
	config.RuntimeParams["application_name"] = "zero-change-streamer"
	for _, statement := range []string{
		`set search_path = cdc`,
		`select ensure_replication_config('00', '{p}', '00')`,
		`select assume_ownership('me/1', null, '00', null)`,
	} {
		_, err := conn.Exec(b.Context(), statement)
		require.NoError(b, err)
	}
	return conn, config
}

// store stores everything in the tail and returns.
func store(b *testing.B, config *pgx.ConnConfig, tail *memory, head string, batchRows int) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	last := tail.last()
	s, err := changelog.NewStore(changelog.Config{
		Conn: config, Owner: "me/1", ReplicaVersion: "00", Head: head, Tail: tail, BatchRows: batchRows,
		Stored: func(w string) {
			if w >= last {
				cancel()
			}
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(b, err)
	require.NoError(b, s.Run(ctx))
}

// BenchmarkStoreSmall stores transactions of three rows, so many in a batch.
func BenchmarkStoreSmall(b *testing.B) {
	conn, config := durable(b)
	head, n := "00", 0
	for _, txs := range []int{1, 10, 100, 667} {
		b.Run(fmt.Sprintf("batch=%d", txs), func(b *testing.B) {
			b.ReportAllocs()
			tail := newMemory()
			for range b.N {
				n++
				tail.transaction(w(n), 3, 160)
			}
			_, err := conn.Exec(b.Context(), `checkpoint`)
			require.NoError(b, err)
			b.ResetTimer()
			store(b, config, tail, head, txs*3)
			b.StopTimer()
			head = w(n)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
		})
	}
}

// BenchmarkStoreBig stores one transaction of b.N rows.
func BenchmarkStoreBig(b *testing.B) {
	conn, config := durable(b)
	role := `create role pieces login; grant usage on schema cdc to pieces;
		grant execute on all functions in schema cdc to pieces; grant select on all tables in schema cdc to pieces`
	_, err := conn.Exec(b.Context(), role)
	require.NoError(b, err)
	head, n := "00", 0
	for _, user := range []string{"postgres", "pieces"} {
		b.Run("as="+user, func(b *testing.B) {
			b.ReportAllocs()
			config := config.Copy()
			config.User = user
			tail := newMemory()
			n++
			tail.begin(w(n))
			for i := range b.N {
				tail.data(160)
				if i%256 == 255 {
					tail.publish()
				}
			}
			tail.commit()
			_, err := conn.Exec(b.Context(), `checkpoint`)
			require.NoError(b, err)
			b.ResetTimer()
			store(b, config, tail, head, 0)
			b.StopTimer()
			head = w(n)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkPages reads the whole log in pages, and beside it the way that has no page:
// one COPY of all of it.
func BenchmarkPages(b *testing.B) {
	conn, config := durable(b)
	const rows = 200_000
	_, err := conn.Exec(b.Context(), `insert into "changeLog" select '1' || lpad((n / 4)::text, 9, '0'), n % 4,
		case n % 4 when 0 then '{"tag":"begin"}' when 3 then '{"tag":"commit"}'
			else '{"tag":"insert","new":{"id":' || n || ',"t":"' || repeat('x', 160) || '"}}' end::json,
		case n % 4 when 3 then '1' || lpad((n / 4)::text, 9, '0') end from generate_series(4, $1 + 3) as n`, rows)
	require.NoError(b, err)
	_, err = conn.Exec(b.Context(), `vacuum analyze "changeLog"`)
	require.NoError(b, err)
	b.Run("pages", func(b *testing.B) {
		b.ReportAllocs()
		pages, err := changelog.NewPages(changelog.PagesConfig{Conn: config})
		require.NoError(b, err)
		defer pages.Close()
		block := change.NewBlock(0, 1<<20, 5000)
		b.ResetTimer()
		for range b.N {
			num := 0
			for after := watermark.After("00"); ; {
				page, err := pages.Read(b.Context(), after, block)
				require.NoError(b, err)
				if page.Run.Len() == 0 {
					break
				}
				num += page.Run.Len()
				after = page.Run.After(page.Run.Len() - 1)
			}
			require.Equal(b, rows, num)
		}
		b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
	})
	b.Run("copy", func(b *testing.B) {
		for range b.N {
			tag, err := conn.PgConn().CopyTo(b.Context(), io.Discard,
				`copy (select watermark, pos, change from "changeLog" where watermark > '00' order by watermark, pos) to stdout`)
			require.NoError(b, err)
			require.EqualValues(b, rows, tag.RowsAffected())
		}
		b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
	})
}
