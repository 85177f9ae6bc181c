package streamer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer"
	"millrace/streamer/client"
	"millrace/streamer/source/postgres/pgtext"
)

// A copybook is a subscriber's copy of the tables. It bears nothing that cannot be: a row
// that is there already, or one that is changed and is not there.
type copybook struct {
	mu     sync.Mutex
	tables map[string]map[string]tuple // by table and key
	at     string                      // the last commit
}

// tuple is a row: JSON by column.
type tuple = map[string]json.RawMessage

// entry is the part of a change that a copybook needs.
type entry struct {
	Tag      string
	Relation struct {
		Name   string
		RowKey struct{ Columns []string }
	}
	Relations []struct{ Name string }
	Key, New  tuple
}

func (c *copybook) take(m client.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.Kind {
	case client.Commit:
		c.at = m.Watermark
		return nil
	case client.Rollback:
		return fmt.Errorf("nothing was cut off, but %s", m.Bytes)
	case client.Data:
	default:
		return nil
	}
	var parts []json.RawMessage
	var e entry
	if err := json.Unmarshal(m.Bytes, &parts); err != nil {
		return err
	}
	if err := json.Unmarshal(parts[1], &e); err != nil {
		return err
	}
	for _, relation := range e.Relations {
		clear(c.tables[relation.Name])
	}
	if e.Tag == "truncate" {
		return nil
	}
	table := c.tables[e.Relation.Name]
	if table == nil {
		table = map[string]tuple{}
		c.tables[e.Relation.Name] = table
	}
	before := e.New
	if e.Key != nil {
		before = e.Key
	}
	key := keyText(e.Relation.RowKey.Columns, before)
	old, there := table[key]
	if there == (e.Tag == "insert") {
		return fmt.Errorf("%s of %s %s in transaction %s: there is such a row: %t", e.Tag, e.Relation.Name, key, m.Watermark, there)
	}
	delete(table, key)
	if e.Tag == "delete" {
		return nil
	}
	for column, value := range old {
		if _, given := e.New[column]; !given { // a large value that was left alone
			e.New[column] = value
		}
	}
	table[keyText(e.Relation.RowKey.Columns, e.New)] = e.New
	return nil
}

func keyText(columns []string, r tuple) string {
	var b strings.Builder
	for _, column := range columns {
		b.Write(r[column])
		b.WriteByte(' ')
	}
	return b.String()
}

// upstreamRows reads a table and encodes its values as the stream does.
func upstreamRows(t *testing.T, conn *pgx.Conn, table string, keys []string) map[string]tuple {
	t.Helper()
	do(t, conn, `set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'; set bytea_output = 'hex'; set extra_float_digits = 3;
		set timezone = 'UTC'; set lc_monetary = 'C'`)
	rows, err := conn.Query(t.Context(), `select * from public.`+table, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	var list []tuple
	for rows.Next() {
		r := tuple{}
		for i, field := range rows.FieldDescriptions() {
			r[field.Name] = slices.Clone(rows.RawValues()[i])
		}
		list = append(list, r)
	}
	require.NoError(t, rows.Err())
	// A result calls a domain by its base type.
	rows, err = conn.Query(t.Context(), `
		select attname::text, atttypid from pg_attribute
		where attrelid = ('public.' || $1)::regclass and attnum > 0 and not attisdropped`, table)
	require.NoError(t, err)
	types := map[string]pgtext.Type{}
	var column string
	var oid uint32
	oids := map[string]uint32{}
	_, err = pgx.ForEachRow(rows, []any{&column, &oid}, func() error {
		oids[column] = oid
		return nil
	})
	require.NoError(t, err)
	for column, oid := range oids {
		types[column] = typeOf(t, conn, oid)
	}
	result := map[string]tuple{}
	for _, r := range list {
		for column, text := range r {
			if text == nil {
				r[column] = json.RawMessage("null")
				continue
			}
			r[column], _ = pgtext.Options{}.Append(nil, types[column], text)
		}
		result[keyText(keys, r)] = r
	}
	require.Equal(t, len(list), len(result)) //nolint:testifylint // no list of large rows
	return result
}

func typeOf(t *testing.T, conn *pgx.Conn, oid uint32) pgtext.Type {
	t.Helper()
	if known, ok := pgtext.Builtin(oid); ok {
		return known
	}
	row := pgtext.CatalogType{OID: oid}
	var kind, category string
	var elem uint32
	require.NoError(t, conn.QueryRow(t.Context(), `select typname, typtype::text, typcategory::text, typlen, typelem from pg_type where oid = $1`, oid).
		Scan(&row.Name, &kind, &category, &row.Len, &elem))
	row.Type, row.Category = kind[0], category[0]
	if elem != 0 {
		row.Elem = &pgtext.CatalogType{OID: elem, Type: 'b', Category: 'U', Delim: ','}
	}
	return pgtext.FromCatalog(row)
}

// A mill is what never stops to write while snapshots are made.
type mill struct {
	url     string
	columns string // of wide, but for its key
	stop    context.CancelFunc
	wait    sync.WaitGroup

	mu      sync.Mutex
	commits int
	err     error
}

func startMill(t *testing.T, conn *pgx.Conn, url string, hands int) *mill {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	m := &mill{url: url, stop: cancel}
	m.columns = tell[string](t, conn, `
		select string_agg(quote_ident(attname), ', ') from pg_attribute
		where attrelid = 'public.wide'::regclass and attnum > 1 and not attisdropped`)
	for i := range hands {
		m.wait.Go(func() {
			h := &hand{mill: m, rand: rand.New(rand.NewPCG(uint64(i), 7)), next: (i + 1) * 1_000_000, first: i == 0} //nolint:gosec // a test
			if err := h.write(ctx); err != nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.err = err
			}
		})
	}
	t.Cleanup(func() { _ = m.end() })
	return m
}

func (m *mill) end() error {
	m.stop()
	m.wait.Wait()
	return m.err
}

// grinds waits until so many more transactions were committed.
func (m *mill) grinds(t *testing.T, by int) {
	t.Helper()
	count := func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.commits
	}
	from := count()
	require.Eventually(t, func() bool { return count() >= from+by }, endurance, glimpse, "nothing is written")
}

// hand is one connection that writes.
type hand struct {
	mill  *mill
	rand  *rand.Rand
	next  int
	first bool // it alone truncates
	live  map[string][]int
}

func (h *hand) write(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, h.mill.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	h.live = map[string][]int{}
	for ctx.Err() == nil {
		if err := h.transaction(context.WithoutCancel(ctx), conn); err != nil {
			return err
		}
		breathe(time.Millisecond)
	}
	return nil
}

func (h *hand) transaction(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, endurance)
	defer cancel()
	before := map[string][]int{}
	for table, ids := range h.live {
		before[table] = slices.Clone(ids)
	}
	statements := []string{"begin"}
	for range 1 + h.rand.IntN(4) {
		statements = append(statements, h.statement())
	}
	if h.rand.IntN(10) == 0 {
		h.live = before
		statements = append(statements, "rollback")
	} else {
		statements = append(statements, "commit")
	}
	if _, err := conn.Exec(ctx, strings.Join(statements, "; ")); err != nil {
		return fmt.Errorf("%w: %s", err, statements)
	}
	h.mill.mu.Lock()
	defer h.mill.mu.Unlock()
	h.mill.commits++
	return nil
}

func (h *hand) statement() string {
	tables := []string{"wide", "doc", "whole", "parted"}
	if h.first {
		tables = append(tables, "brief")
	}
	table := tables[h.rand.IntN(len(tables))]
	if table == "brief" && h.rand.IntN(20) == 0 {
		h.live[table] = nil
		return `truncate brief`
	}
	ids := h.live[table]
	if len(ids) < 5 || h.rand.IntN(3) == 0 {
		h.next++
		h.live[table] = append(ids, h.next)
		return h.insert(table, h.next)
	}
	n := h.rand.IntN(len(ids))
	id := ids[n]
	switch h.rand.IntN(5) {
	case 0:
		h.live[table] = slices.Delete(ids, n, n+1)
		return fmt.Sprintf(`delete from %s where id = %d`, table, id)
	case 1: // another key, with large values that are left alone
		h.next++
		ids[n] = h.next
		return fmt.Sprintf(`update %s set id = %d where id = %d`, table, h.next, id)
	case 2:
		if table == "doc" || table == "whole" {
			return fmt.Sprintf(`update %s set big = %s where id = %d`, table, h.big(), id)
		}
	}
	if table == "wide" {
		return fmt.Sprintf(`update wide set (%[1]s) = (select %[1]s from sample order by random() limit 1) where id = %[2]d`, h.mill.columns, id)
	}
	return fmt.Sprintf(`update %s set note = md5(random()::text) where id = %d`, table, id)
}

func (h *hand) insert(table string, id int) string {
	switch table {
	case "wide":
		return fmt.Sprintf(`insert into wide (id, %[1]s) select %[2]d, %[1]s from sample order by random() limit 1`, h.mill.columns, id)
	case "doc", "whole":
		return fmt.Sprintf(`insert into %s values (%d, %s, 'new')`, table, id, h.big())
	}
	return fmt.Sprintf(`insert into %s values (%d, 'new')`, table, id)
}

func (h *hand) big() string {
	return fmt.Sprintf(`(select string_agg(md5(random()::text), e'\t') from generate_series(1, %d))`, 100+h.rand.IntN(100))
}

// While three connections write without a pause, snapshots are made. Each of them with the
// stream behind it gives the tables as they are in the end.
func TestSnapshotsWhileEverybodyWrites(t *testing.T) {
	t.Parallel()
	recorded := func(name string) string {
		content, err := os.ReadFile(filepath.Join("testdata", "transcripts", name))
		require.NoError(t, err)
		return string(content)
	}
	db := pgtest.New(t)
	conn := db.Conn(t)
	do(t, conn, `set search_path = public`)
	do(t, conn, recorded("b-types.setup.sql"))
	for statement := range strings.SplitSeq(recorded("b-types.sql"), "\n") {
		if strings.HasPrefix(statement, "insert") {
			do(t, conn, statement)
		}
	}
	do(t, conn, `
		create schema hidden; create table hidden.sample as table wide;
		create table doc (id int primary key, big text, note text); alter table doc alter big set storage external;
		create table whole (id int not null, big text, note text); alter table whole alter big set storage external, replica identity full;
		create table parted (id int primary key, note text) partition by hash (id);
		create table parted_0 partition of parted for values with (modulus 2, remainder 0);
		create table parted_1 partition of parted for values with (modulus 2, remainder 1);
		create table brief (id int primary key, note text);
		create table mark (id int primary key)`)
	do(t, conn, `insert into doc select i, repeat(md5(i::text), 100), 'old' from generate_series(1, 1000) as i`)
	do(t, conn, `insert into parted select i, 'old' from generate_series(1, 5000) as i`)

	r := serving(t, rigConfig(db))
	m := startMill(t, conn, db.URL+"&search_path=public,hidden", 3)
	compressions := []string{"zstd", "gzip", "none"}
	var books []*copybook
	var ended []chan error
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for round := range many(t, 3) {
		m.grinds(t, 50)
		cfg := snapshotConfig(t, db, db)
		cfg.Compression, cfg.Jobs = compressions[round%len(compressions)], 1+round%len(compressions)
		require.NoError(t, streamer.Snapshot(t.Context(), cfg))
		book := &copybook{tables: map[string]map[string]tuple{}}
		c, err := client.New(client.Config{
			URL: "ws://" + r.address, Snapshot: cfg.Folder,
			Handler: func(_ context.Context, m client.Message) error { return book.take(m) },
			Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		require.NoError(t, err)
		end := make(chan error, 1)
		go func() { end <- c.Run(ctx) }()
		books, ended = append(books, book), append(ended, end)
	}
	m.grinds(t, 50)
	require.NoError(t, m.end())
	do(t, conn, `insert into mark values (1)`)

	keys := map[string][]string{
		"wide": {"id"}, "doc": {"id"}, "whole": {"id", "big", "note"}, "parted": {"id"}, "brief": {"id"}, "mark": {"id"},
	}
	want := map[string]map[string]tuple{}
	for table, key := range keys {
		want[table] = upstreamRows(t, conn, table, key)
	}
	for i, book := range books {
		for limit := time.Now().Add(endurance); ; breathe(glimpse) {
			book.mu.Lock()
			there := len(book.tables["mark"]) > 0
			book.mu.Unlock()
			if there {
				break
			}
			select {
			case err := <-ended[i]:
				require.FailNow(t, "a subscriber ended", "%v", err)
			default:
				require.True(t, time.Now().Before(limit), "subscriber %d does not arrive", i)
			}
		}
	}
	cancel()
	for i, book := range books {
		require.NoError(t, <-ended[i])
		for table := range keys {
			requireSameRows(t, table, want[table], book.tables[table])
		}
		require.Len(t, book.tables, len(keys))
	}
	t.Logf("%d transactions, %d rows", m.commits, len(want["wide"])+len(want["doc"])+len(want["whole"])+len(want["parted"]))
}

// requireSameRows names the first difference, not all of it.
func requireSameRows(t *testing.T, table string, want, got map[string]tuple) {
	t.Helper()
	for key, w := range want {
		g, ok := got[key]
		require.True(t, ok, "%s %s is missing", table, key)
		for column := range w {
			require.True(t, bytes.Equal(w[column], g[column]), "%s %s: column %s is %.100s instead of %.100s", table, key, column, g[column], w[column])
		}
		require.Equal(t, len(w), len(g), "%s %s", table, key) //nolint:testifylint // no large rows
	}
	require.Equal(t, len(want), len(got), "rows of %s", table) //nolint:testifylint // no large rows
}
