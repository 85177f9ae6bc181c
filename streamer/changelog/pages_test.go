package changelog_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/change"
	"millrace/streamer/changelog"
	"millrace/streamer/watermark"
)

func (f *fixture) pages(cfg changelog.PagesConfig) *changelog.Pages {
	f.t.Helper()
	cfg.Conn = f.cfg.Conn
	pages, err := changelog.NewPages(cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(pages.Close)
	return pages
}

// fill puts rows into the log, past the store.
func (f *fixture) fill(rows []row) {
	f.t.Helper()
	_, err := f.conn.CopyFrom(f.t.Context(), pgx.Identifier{"changeLog"}, []string{"watermark", "pos", "change", "precommit"},
		pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
			var precommit *string
			if rows[i].Precommit != "" {
				precommit = &rows[i].Precommit
			}
			return []any{rows[i].Watermark, rows[i].Pos, rows[i].Change, precommit}, nil
		}))
	require.NoError(f.t, err)
	if len(rows) > 0 {
		f.exec(`update "replicationState" set "lastWatermark" = $1`, rows[len(rows)-1].Watermark)
	}
}

// readAll reads page after page and compares them with rows.
func readAll(t *testing.T, pages *changelog.Pages, after watermark.Position, rows []row, maxRows, maxBytes int) {
	t.Helper()
	block := change.NewBlock(0, 0, 0)
	attempts := map[int64]bool{}
	for {
		page, err := pages.Read(t.Context(), after, block)
		require.NoError(t, err)
		require.Equal(t, version, page.ReplicaVersion)
		if page.Run.Len() == 0 {
			require.Empty(t, rows)
			return
		}
		require.LessOrEqual(t, page.Run.Len(), maxRows)
		if page.Run.Len() > 1 {
			require.LessOrEqual(t, page.Run.Bytes(), maxBytes)
		}
		for i := range page.Run.Len() {
			want, run := rows[0], page.Run
			rows = rows[1:]
			require.Equal(t, want.Watermark, run.Tx(i).Watermark)
			require.Equal(t, want.Pos, run.Pos(i))
			require.Len(t, run.Stored(i), len(want.Change))
			require.True(t, bytes.Equal([]byte(want.Change), run.Stored(i)), "change") // Equal would print megabytes
			kind, text := change.Data, `["data",`
			switch {
			case want.Pos == 0:
				kind, text = change.Begin, `["begin",`
			case want.Precommit != "":
				kind, text = change.Commit, `["commit",`
			}
			require.Equal(t, kind, run.Entry(i).Kind)
			require.True(t, strings.HasPrefix(string(run.Message(i)), text))
			if kind == change.Data {
				require.Equal(t, change.Insert, run.Entry(i).Tag)
			}
			if i == 0 || run.Tx(i) != run.Tx(i-1) {
				require.Negative(t, run.Tx(i).Attempt)
				require.False(t, attempts[run.Tx(i).Attempt])
				attempts[run.Tx(i).Attempt] = true
			}
			after = run.After(i)
		}
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for n := 1; n <= 40; n++ {
		f.tail.transaction(w(n), rowsOf(n), sizeOf(n))
	}
	f.fill(f.tail.want)
	for _, limits := range []struct{ rows, bytes int }{{5000, 1 << 20}, {1, 1 << 20}, {7, 1 << 20}, {5000, 1}, {5000, 10_000}, {100, 50_000}} {
		t.Run(fmt.Sprint(limits), func(t *testing.T) {
			t.Parallel()
			pages := f.pages(changelog.PagesConfig{MaxRows: limits.rows, PageBytes: limits.bytes})
			readAll(t, pages, watermark.After(version), f.tail.want, limits.rows, limits.bytes)
		})
	}
	t.Run("from inside a transaction", func(t *testing.T) {
		t.Parallel()
		pages := f.pages(changelog.PagesConfig{})
		at := f.tail.want[100]
		readAll(t, pages, watermark.Position{Watermark: at.Watermark, Pos: at.Pos}, f.tail.want[101:], 5000, 1<<20)
	})
	t.Run("from between watermarks", func(t *testing.T) {
		t.Parallel()
		pages := f.pages(changelog.PagesConfig{})
		page, err := pages.Read(t.Context(), watermark.After(w(1)+".05"), change.NewBlock(0, 0, 0))
		require.NoError(t, err)
		require.Equal(t, w(2), page.Run.Tx(0).Watermark)
		require.Equal(t, version, page.Minimum)
		require.Equal(t, w(40), page.Head)
	})
	t.Run("from past the head", func(t *testing.T) {
		t.Parallel()
		pages := f.pages(changelog.PagesConfig{})
		page, err := pages.Read(t.Context(), watermark.After(w(99)), change.NewBlock(0, 0, 0))
		require.NoError(t, err)
		require.Zero(t, page.Run.Len())
		require.Equal(t, w(40), page.Head)
	})
}

func TestPagesOfSeed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pages := f.pages(changelog.PagesConfig{})
	// Rows that an initialisation has made; the commit has no precommit.
	page, err := pages.Read(t.Context(), watermark.Position{Watermark: version, Pos: -1}, change.NewBlock(0, 0, 0))
	require.NoError(t, err)
	require.Equal(t, 2, page.Run.Len())
	require.JSONEq(t, `["begin",{"tag":"begin"},{"commitWatermark":"00"}]`, string(page.Run.Message(0)))
	require.JSONEq(t, `["commit",{"tag":"commit"},{"watermark":"00"}]`, string(page.Run.Message(1)))
	require.Equal(t, change.Commit, page.Run.Entry(1).Kind)

	page, err = pages.Read(t.Context(), watermark.After(version), change.NewBlock(0, 0, 0))
	require.NoError(t, err)
	require.Zero(t, page.Run.Len(), "behind the seed")

	f.exec(`truncate "changeLog"`)
	page, err = pages.Read(t.Context(), watermark.After(version), change.NewBlock(0, 0, 0))
	require.NoError(t, err)
	require.Equal(t, version, page.Minimum, "an empty log has its head as minimum")

	f.exec(`truncate "replicationState"`)
	_, err = pages.Read(t.Context(), watermark.After(version), change.NewBlock(0, 0, 0))
	require.ErrorIs(t, err, changelog.ErrNotInitialised)
}

func TestPagesOfLargeRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into "changeLog" select $1, n, case n when 0 then '{"tag":"begin"}' when 301 then '{"tag":"commit"}'
		else '{"tag":"insert","new":"' || repeat('x', 1000000) || '"}' end::json, case n when 301 then $1 end
		from generate_series(0, 301) as n`, w(1))
	pages := f.pages(changelog.PagesConfig{})
	block := change.NewBlock(0, 0, 0)
	after, num, rows := watermark.After(version), 0, 0
	for {
		page, err := pages.Read(t.Context(), after, block)
		require.NoError(t, err)
		if page.Run.Len() == 0 {
			break
		}
		num, rows = num+1, rows+page.Run.Len()
		require.LessOrEqual(t, page.Run.Bytes(), 1<<20)
		require.LessOrEqual(t, block.Size(), int64(4<<20), "memory of the page")
		after = page.Run.After(page.Run.Len() - 1)
	}
	require.Equal(t, 302, rows)
	require.Equal(t, 300, num)
	require.Equal(t, watermark.After(w(1)), after)
}

func TestPagesOfSuddenlyLargeRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.tail.begin(w(1))
	for n := range 600 {
		f.tail.data(10)
		if n >= 300 && n < 350 {
			f.tail.data(1_000_000)
		}
	}
	f.tail.commit()
	f.fill(f.tail.want)
	readAll(t, f.pages(changelog.PagesConfig{}), watermark.After(version), f.tail.want, 5000, 1<<20)
}

func TestPagesOverReset(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.tail.transaction(w(1), 10, 10)
	f.fill(f.tail.want)
	pages := f.pages(changelog.PagesConfig{})
	readAll(t, pages, watermark.After(version), f.tail.want, 5000, 1<<20)

	// The statement waits for the reset, and then must see what that has left.
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select ensure_replication_config($1, '{p}', $1, auto_reset => true)`, w(5))
	require.NoError(t, err)
	type result struct {
		page changelog.Page
		err  error
	}
	read := make(chan result, 1)
	go func() {
		page, err := pages.Read(t.Context(), watermark.After(version), change.NewBlock(0, 0, 0))
		read <- result{page, err}
	}()
	f.awaitWaiting()
	require.NoError(t, tx.Commit(t.Context()))
	got := <-read
	require.NoError(t, got.err)
	require.Equal(t, w(5), got.page.ReplicaVersion)
	require.Equal(t, w(5), got.page.Head)
	require.Equal(t, w(5), got.page.Minimum)
	require.Equal(t, 2, got.page.Run.Len(), "the seed, and nothing of the old history")
}

// TestPagesOfOtherCollation reads a log whose watermarks are sorted as a language sorts.
func TestPagesOfOtherCollation(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	conn := database.Conn(t)
	_, err := conn.Exec(t.Context(), `
		create schema cdc;
		create table cdc."changeLog" (watermark text collate "en-x-icu", pos int8, change json not null,
			precommit text collate "en-x-icu", primary key (watermark, pos));
		create table cdc."replicationState" ("lastWatermark" text collate "en-x-icu" not null, owner text, "ownerAddress" text,
			lock integer primary key default 1);
		create table cdc."replicationConfig" ("replicaVersion" text not null, publications text[] not null,
			"resetRequired" boolean, lock integer primary key default 1);
		create table cdc.progress (replica_version text not null, purged_watermark text collate "C", lock integer primary key default 1);
		insert into cdc.progress values ('00', '01', 1);
		insert into cdc."replicationState" values ('1z', null, null, 1);
		insert into cdc."replicationConfig" values ('00', '{}', null, 1);
		insert into cdc."changeLog" select m, n, '{"tag":"insert"}'
			from unnest('{01,01.01,110,1Z,1a,1z}'::text[]) as m, generate_series(1, 3) as n`)
	require.NoError(t, err)
	var order string // no real watermark has capitals, but with them the orders differ
	require.NoError(t, conn.QueryRow(t.Context(),
		`select string_agg(distinct watermark, ' ' order by watermark) from cdc."changeLog"`).Scan(&order))
	require.Equal(t, "01 01.01 110 1a 1z 1Z", order)
	config, err := pgx.ParseConfig(database.URL)
	require.NoError(t, err)
	config.RuntimeParams["search_path"] = "cdc"
	pages, err := changelog.NewPages(changelog.PagesConfig{Conn: config, MaxRows: 4})
	require.NoError(t, err)
	defer pages.Close()
	var got []string
	for after := (watermark.Position{}); ; {
		page, err := pages.Read(t.Context(), after, change.NewBlock(0, 0, 0))
		require.NoError(t, err)
		require.Equal(t, "01", page.Minimum)
		if page.Run.Len() == 0 {
			break
		}
		for i := range page.Run.Len() {
			after = watermark.Position{Watermark: page.Run.Tx(i).Watermark, Pos: page.Run.Pos(i)}
			got = append(got, after.String())
		}
	}
	require.Equal(t, strings.Fields(`01#1 01#2 01#3 01.01#1 01.01#2 01.01#3 110#1 110#2 110#3
		1Z#1 1Z#2 1Z#3 1a#1 1a#2 1a#3 1z#1 1z#2 1z#3`), got)
}

func TestPagesAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.tail.transaction(w(1), 10, 10)
	f.fill(f.tail.want)
	pages := f.pages(changelog.PagesConfig{Connections: 2})
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table "changeLog"`)
	require.NoError(t, err)
	errs := make(chan error, 10)
	for range cap(errs) {
		go func() {
			_, err := pages.Read(t.Context(), watermark.After(version), change.NewBlock(0, 0, 0))
			errs <- err
		}()
	}
	connections := func(waiting string) string {
		return f.text(`select count(*)::text from pg_stat_activity where datname = current_database()
			and application_name = 'zero-change-streamer'` + waiting)
	}
	require.Eventually(t, func() bool { return connections(` and wait_event_type = 'Lock'`) == "2" }, patience, 5*time.Millisecond)

	// Whoever waits for a turn, or for the server, stops when it is told to.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pages.Read(ctx, watermark.After(version), change.NewBlock(0, 0, 0))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.Equal(t, "2", connections(""))

	// Connections that have died while idle do not matter.
	f.exec(`select pg_terminate_backend(pid, 10000) from pg_stat_activity
		where datname = current_database() and application_name = 'zero-change-streamer'`)
	readAll(t, pages, watermark.After(version), f.tail.want, 5000, 1<<20)
	pages.Close()
	_, err = pages.Read(t.Context(), watermark.After(version), change.NewBlock(0, 0, 0))
	require.ErrorContains(t, err, "pages are closed")
}

func TestPagesStop(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pages := f.pages(changelog.PagesConfig{})
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table "changeLog"`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := pages.Read(ctx, watermark.After(version), change.NewBlock(0, 0, 0))
		done <- err
	}()
	f.awaitWaiting()
	cancel()
	require.Error(t, <-done)

	// A lock that lasts is an error, not a wait for ever.
	short := f.pages(changelog.PagesConfig{Timeout: 200 * time.Millisecond})
	_, err = short.Read(t.Context(), watermark.After(version), change.NewBlock(0, 0, 0))
	require.ErrorContains(t, err, "55P03")
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestNewPages(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]changelog.PagesConfig{
		"Conn is required":            {},
		"limits must not be negative": {Conn: &pgx.ConnConfig{}, PageBytes: -1},
		"MaxRows must be":             {Conn: &pgx.ConnConfig{}, MaxRows: 1 << 20},
	} {
		_, err := changelog.NewPages(cfg)
		require.ErrorContains(t, err, want)
	}
}
