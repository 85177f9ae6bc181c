package streamer_test

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/client"
	"millrace/streamer/watermark"
)

// waitsInLine starts a process that is pending and stays so: nothing reaches it from the
// upstream until the line flows again. It returns where subscribers find it.
func (r *relay) waitsInLine(t *testing.T) (w *runner, address string, l *line) {
	t.Helper()
	l, through := lineTo(t, r.url)
	r.upstream = by(t, through)
	w, slot, letGo := r.runsUpTo(t)
	r.upstream = nil
	r.covers(t, slot)
	l.stall() // nothing is on its way to it any more
	letGo()
	becomes(t, endurance, "pending", r.log, rowState, w.task)
	require.Eventually(t, func() bool { return strings.Contains(w.log.String(), "serving subscribers") }, endurance, glimpse)
	return w, tell[string](t, r.log, `select owner_address from cdc.streamer where task_id = $1`, w.task), l
}

// writesByHand stores a transaction of item 3 that upstream knows nothing of.
func (r *relay) writesByHand(t *testing.T, c *Checker) {
	t.Helper()
	at := watermark.Encode(uint64(tell[int64](t, r.conn, `select pg_current_wal_insert_lsn() - '0/0'`))) //nolint:gosec // an LSN
	require.Equal(t, 3, tell[int](t, r.log, byHandSQL, at), "its rows")
	c.Committed(at, "3")
}

// byHandSQL stores a transaction at $1 in the name of the owner: what the last one had for
// item 2 it has for item 3.
const byHandSQL = `
select c.stored::int
from cdc.status as s
cross join lateral (
	select
		array_agg($1::text) as watermarks,
		array_agg(l.pos order by l.pos) as positions,
		array_agg(replace(l.change::text, '"new":{"id":2', '"new":{"id":3')::json order by l.pos) as changes,
		array_agg(l.precommit order by l.pos) as precommits
	from cdc."changeLog" as l
	where l.watermark = s.head) as copied
cross join cdc.store_changes(s.owner, s.replica_version, s.head,
	copied.watermarks, copied.positions, copied.changes, copied.precommits, $1) as c`

// idle starts a relay with a table of items, into which only the test writes.
func idle(t *testing.T, program string) (*relay, *Checker, *runner) {
	t.Helper()
	r := newRelay(t, program, true, pgtest.Options{})
	do(t, r.conn, `create table public.item (id int primary key, note text)`)
	do(t, r.conn, `create publication items for table public.item`)
	r.args = append(r.args, "--publication", "items")
	owner := r.runs(t)
	r.owns(t, owner)
	return r, items(), owner
}

// showsWhatIsStored lets the owner store, and somebody write to the log in its name, while
// a newcomer is pending: its subscribers get all that, and in this order, although its own
// stream shows the one part later and the other never [R16]. It refuses only what the log
// does not cover [R20], and the log keeps that until the newcomer owns it [R24].
func showsWhatIsStored(t *testing.T, program string) {
	r, c, owner := idle(t, program)
	version := historyOf(t, r.log)
	put(t, c, r.conn, 1)
	becomes(t, endurance, 2, r.log, `select count(distinct watermark)::int from cdc."changeLog"`)

	w, address, l := r.waitsInLine(t)
	var log logText
	f := followAs(t, c, "of the newcomer", fixed(address), client.Position{ReplicaVersion: version, Watermark: version}, nil,
		func(cfg *client.Config) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	arrive(t, c, f)
	put(t, c, r.conn, 2)
	arrive(t, c, f)
	r.writesByHand(t, c)
	arrive(t, c, f)
	put(t, c, r.conn, 4)
	arrive(t, c, f)
	require.Equal(t, "pending", tell[string](t, r.log, rowState, w.task))

	for request, want := range map[[2]string]string{
		{"aaaa", version}: `{"type":1,"message":"current replica version is ` + version + ` (requested aaaa)"}`,
		{version, "100"}:  `{"type":2,"message":"earliest supported watermark is ` + version + ` (requested 100)"}`,
	} {
		raw := subscribed(t, address, request[0], request[1])
		require.Equal(t, `{"id":1,"msg":["error",`+want+`]}`, says(t, raw))
		require.NoError(t, raw.Close())
	}
	response, err := http.Get("http://" + address + "/status") //nolint:noctx // a test
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Contains(t, string(body), owner.task+"/", "it says who owns the log")
	const purge = `select (cdc.purge_change_log(head, owner)).deleted > 0 from cdc.status`
	_, err = ask[bool](t.Context(), r.log, purge)
	require.ErrorContains(t, err, "55P03")

	l.flow()
	put(t, c, r.conn, 5)
	r.passes(t, owner, w)
	put(t, c, r.conn, 6)
	arrive(t, c, f)
	require.NotContains(t, log.String(), "connection ended", "it was served all the time")
	rereads(t, c, r.log, version)
	require.NoError(t, c.Done(""))
	require.True(t, tell[bool](t, r.log, purge))
	r.tidies(t, w)
}

// takesWithLarge has a newcomer take the log with a transaction that is stored for long
// while it arrives. It is cut off and stored again; the owner waits for the state row
// meanwhile, and is not told before it is certain whose the log is [R17].
func takesWithLarge(t *testing.T, program string) {
	r, c, owner := idle(t, program)
	version := historyOf(t, r.log)
	put(t, c, r.conn, 1)
	w, address, l := r.waitsInLine(t)
	f := follow(t, c, "of the newcomer", fixed(address), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	put(t, c, r.conn, 2)
	arrive(t, c, f)
	r.halts(t, owner) // or it would store what follows at once
	const rows, first = 5_000, 1_000
	ids := make([]string, rows)
	for i := range ids {
		ids[i] = strconv.Itoa(first + i)
	}
	do(t, r.conn, `begin`)
	do(t, r.conn, `insert into public.item select $1::int + i, repeat('x', 200) from generate_series(0, $2::int - 1) as i`, first, rows)
	r.writesByHand(t, c) // or the newcomer would be at the head before it sees the commit
	arrive(t, c, f)
	do(t, r.conn, `select pg_logical_emit_message(false, 'test', 'the commit is behind this')`)
	do(t, r.conn, `commit`)
	c.Committed("", ids...)
	l.rate.Store(300_000)
	l.flow()

	const copying = `
		select coalesce(min(pid), 0) from pg_stat_activity
		where usename = $1 and query like 'select store_open%copy%' and state <> 'idle' and pid <> $2`
	var cut int
	require.Eventually(t, func() bool { cut = tell[int](t, r.log, copying, w.role, 0); return cut != 0 }, endurance, glimpse)
	do(t, r.log, `select pg_terminate_backend($1)`, cut)
	require.Eventually(t, func() bool { return tell[int](t, r.log, copying, w.role, cut) != 0 }, endurance, glimpse)
	l.stall()
	owner.signal(syscall.SIGCONT)
	becomes(t, endurance, true, r.log, isAtLock, owner.role)
	require.Equal(t, owner.task, tell[string](t, r.log, `select split_part(owner, '/', 1) from cdc.status`))
	require.Equal(t, "pending", tell[string](t, r.log, rowState, w.task))
	l.rate.Store(0)
	l.flow()
	r.passes(t, owner, w)
	put(t, c, r.conn, 4)
	arrive(t, c, f)
	rereads(t, c, r.log, version)
	require.NoError(t, c.Done(""))
}

// isResetUnderNewcomer begins another history while a newcomer is pending. Whoever comes
// with a replica of that one is not told that it is wrong [R20], and both go [R9].
func isResetUnderNewcomer(t *testing.T, program string) {
	r, c, owner := idle(t, program)
	put(t, c, r.conn, 1)
	w, address, l := r.waitsInLine(t)
	require.True(t, tell[bool](t, r.log, `
		select result = 'reset' from cdc.ensure_replication_config('zzzz', '{elsewhere}', 'zzzz',
			auto_reset => true, grace => '100 ms')`))
	for ended := false; !ended; breathe(glimpse) {
		raw, status, err := upgrade(t.Context(), address, wants("zzzz", "zzzz"))
		switch {
		case raw != nil:
			require.NoError(t, closesPlainly(raw))
			require.NoError(t, raw.Close())
		case err == nil:
			require.Equal(t, http.StatusServiceUnavailable, status)
		}
		select {
		case <-w.ended:
			ended = true
		default:
		}
	}
	l.flow()
	require.Equal(t, 0, w.code(t, endurance), "%s", w.says())
	require.Equal(t, 0, owner.code(t, endurance), "%s", owner.says())
	require.False(t, tell[bool](t, r.log, `select owner is not null from cdc.status`))
}
