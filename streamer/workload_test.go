package streamer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const workloadTables = `
create table public.red (id bigint primary key, v int not null, p text not null);
create table public.green (like public.red including all);
create table public.blue (like public.red including all)`

var workloadNames = []string{"red", "green", "blue"}

const (
	largeNth = 400 // one of so many transactions is large
	// raceCost is by how much less is written under the race detector, which makes what
	// reads and compares it all so much slower.
	raceCost = 5
)

// A workload never stops to write. What each transaction did is noted before it is
// committed, so that it does not matter whether the answer ever arrives.
type workload struct {
	url  string
	size workloadSize
	stop context.CancelFunc
	wait sync.WaitGroup

	mu      sync.Mutex
	rows    map[uint32][]string // by transaction id
	commits int                 // answered
}

// slowness is by how much a load is slowed down.
func slowness() int {
	if raced {
		return raceCost
	}
	return 1
}

// workloadSize is how large it gets now and then.
type workloadSize struct {
	rows  int // of a transaction
	value int // characters
}

func startWorkload(t *testing.T, url string, writers int, pause time.Duration) *workload {
	t.Helper()
	return startSized(t, url, writers, pause, workloadSize{rows: 20_000 / slowness(), value: 1_100_000})
}

func startSized(t *testing.T, url string, writers int, pause time.Duration, size workloadSize) *workload {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w := &workload{url: url, size: size, stop: cancel, rows: map[uint32][]string{}}
	for i := range writers {
		w.wait.Go(func() {
			x := &scribe{w: w, rand: rand.New(rand.NewPCG(uint64(i), 1)), next: int64(i+1) * 1_000_000_000} //nolint:gosec // a test
			for ctx.Err() == nil {
				x.write(ctx, pause) // an error is a server that has gone; it comes back
				breathe(20 * time.Millisecond)
			}
		})
	}
	t.Cleanup(w.end)
	return w
}

// end lets every writer finish.
func (w *workload) end() {
	w.stop()
	w.wait.Wait()
}

func (w *workload) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commits
}

// grows waits until so many more transactions were committed.
func (w *workload) grows(t *testing.T, by int) {
	t.Helper()
	from := w.count()
	require.Eventually(t, func() bool { return w.count() >= from+by }, endurance, glimpse, "upstream takes no commits")
}

// A scribe is one connection that writes.
type scribe struct {
	w    *workload
	rand *rand.Rand
	next int64              // id of the next row
	live map[string][]int64 // small rows that may be changed, by table
	rows []string           // of the open transaction
	n    int
}

func (x *scribe) write(ctx context.Context, pause time.Duration) {
	conn, err := pgx.Connect(ctx, x.w.url)
	if err != nil {
		return
	}
	defer func() {
		ctx, cancel := waitContext()
		defer cancel()
		_ = conn.Close(ctx) // whatever state it is in
	}()
	x.live = map[string][]int64{} // after an error it is not known which rows there are
	for ctx.Err() == nil {
		// A commit that has begun is waited for.
		if err := x.transaction(context.WithoutCancel(ctx), conn); err != nil {
			return
		}
		breathe(pause)
	}
}

func (x *scribe) transaction(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, endurance)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	id, err := ask[int64](ctx, conn, `select pg_current_xact_id()::text::bigint`)
	if err != nil {
		return err
	}
	x.n++
	x.rows = x.rows[:0]
	before := map[string][]int64{}
	for table, ids := range x.live {
		before[table] = append([]int64(nil), ids...)
	}
	rollback := false
	switch kind := x.rand.IntN(100); {
	case x.n%largeNth == 40:
		err = x.insert(ctx, conn, x.w.size.rows, 30)
	case kind < 6:
		rollback = true
		err = x.small(ctx, conn)
	case kind < 12: // a part of it is taken back
		err = x.small(ctx, conn)
		if err == nil {
			err = x.takenBack(ctx, conn)
		}
		if err == nil {
			err = x.small(ctx, conn)
		}
	case kind < 15:
		err = x.insert(ctx, conn, 1, x.w.size.value/11+x.rand.IntN(x.w.size.value*10/11))
	case kind < 19:
		err = x.insert(ctx, conn, 50+x.rand.IntN(250), 100)
	default:
		for range 1 + x.rand.IntN(4) {
			if err == nil {
				err = x.small(ctx, conn)
			}
		}
	}
	if err != nil {
		return err
	}
	if rollback {
		x.live = before
		return tx.Rollback(ctx)
	}
	x.w.mu.Lock()
	x.w.rows[uint32(id)] = append([]string(nil), x.rows...) //nolint:gosec // a young server
	x.w.mu.Unlock()
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	x.w.mu.Lock()
	x.w.commits++
	x.w.mu.Unlock()
	return nil
}

func (x *scribe) takenBack(ctx context.Context, conn *pgx.Conn) error {
	rows, live := len(x.rows), maps.Clone(x.live)
	if _, err := conn.Exec(ctx, `savepoint s`); err != nil {
		return err
	}
	if err := x.insert(ctx, conn, 3, 10); err != nil {
		return err
	}
	x.rows, x.live = x.rows[:rows], live
	_, err := conn.Exec(ctx, `rollback to savepoint s`)
	return err
}

// insert adds rows whose text has size characters.
func (x *scribe) insert(ctx context.Context, conn *pgx.Conn, rows, size int) error {
	table := workloadNames[x.rand.IntN(len(workloadNames))]
	v := x.rand.IntN(1000)
	_, err := conn.Exec(ctx, `insert into public.`+table+` select $1::bigint + i, $2::int, repeat(chr(97 + i % 26), $3::int)
		from generate_series(0, $4::int - 1) as i`, x.next, v, size, rows)
	for i := range rows {
		x.rows = append(x.rows, rowText("insert", table, x.next+int64(i), v, strings.Repeat(string(rune('a'+i%26)), size)))
	}
	x.next += int64(rows)
	return err
}

// small inserts, changes or deletes one row.
func (x *scribe) small(ctx context.Context, conn *pgx.Conn) error {
	table := workloadNames[x.rand.IntN(len(workloadNames))]
	v, p := x.rand.IntN(1000), strings.Repeat("é", x.rand.IntN(30))
	ids := x.live[table]
	if len(ids) == 0 || x.rand.IntN(2) == 0 {
		id := x.next
		x.next++
		x.live[table] = append(ids[:len(ids):len(ids)], id)
		x.rows = append(x.rows, rowText("insert", table, id, v, p))
		_, err := conn.Exec(ctx, `insert into public.`+table+` values ($1, $2, $3)`, id, v, p)
		return err
	}
	i := x.rand.IntN(len(ids))
	id := ids[i]
	if x.rand.IntN(3) > 0 {
		x.rows = append(x.rows, rowText("update", table, id, v, p))
		_, err := conn.Exec(ctx, `update public.`+table+` set v = $2, p = $3 where id = $1`, id, v, p)
		return err
	}
	x.live[table] = append(ids[:i:i], ids[i+1:]...)
	x.rows = append(x.rows, rowText("delete", table, id, 0, ""))
	_, err := conn.Exec(ctx, `delete from public.`+table+` where id = $1`, id)
	return err
}

// rowText is what a Checker compares: long texts by their length and both ends.
func rowText(tag, table string, id int64, v int, p string) string {
	if len(p) > 64 {
		p = fmt.Sprintf("%s…%s/%d", p[:8], p[len(p)-8:], len(p))
	}
	return fmt.Sprintf("%s %s %d %d %s", tag, table, id, v, p)
}

// workloadRow takes a change of the workload's tables apart.
func workloadRow(change []byte) (string, bool) {
	var c struct {
		Tag      string
		Relation struct{ Name string }
		Key, New *struct {
			ID int64
			V  int
			P  string
		}
	}
	if err := json.Unmarshal(change, &c); err != nil {
		return "not JSON: " + err.Error(), true
	}
	switch c.Tag {
	case "insert", "update":
		if c.New == nil {
			return "nothing new in it", true
		}
		return rowText(c.Tag, c.Relation.Name, c.New.ID, c.New.V, c.New.P), true
	case "delete":
		if c.Key == nil {
			return "no key in it", true
		}
		return rowText(c.Tag, c.Relation.Name, c.Key.ID, 0, ""), true
	case "truncate":
		return "a truncation", true
	}
	return "", false
}

// applied is what the tables must hold after these transactions.
func applied(transactions [][]string) map[string]string {
	tables := map[string]string{}
	for _, rows := range transactions {
		for _, row := range rows {
			part := strings.SplitN(row, " ", 4)
			key := part[1] + " " + part[2]
			if part[0] == "delete" {
				delete(tables, key)
			} else {
				tables[key] = part[3]
			}
		}
	}
	return tables
}

// tables reads what the workload's tables hold, in the form of applied.
func tables(t *testing.T, conn *pgx.Conn) map[string]string {
	t.Helper()
	held := map[string]string{}
	for _, table := range workloadNames {
		rows, err := conn.Query(t.Context(), `select id, v, p from public.`+table)
		require.NoError(t, err)
		var id int64
		var v int
		var p string
		_, err = pgx.ForEachRow(rows, []any{&id, &v, &p}, func() error {
			part := strings.SplitN(rowText("", table, id, v, p), " ", 4)
			held[part[1]+" "+part[2]] = part[3]
			return nil
		})
		require.NoError(t, err)
	}
	return held
}
