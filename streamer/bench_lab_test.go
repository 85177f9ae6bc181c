package streamer_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/sql"
)

// A lab is a server that waits for the disk, with a database whose changes are streamed
// and another one for the log, and the slot of a streamer that does not run.
type lab struct {
	t        testing.TB
	server   *pgtest.Server
	profiles string // folder for profiles; none if empty

	// The streamer comes by TCP, as anybody does; what it is compared with by a Unix
	// socket, which is faster.
	up, log        *pgx.Conn
	replicaVersion string
	rows           int // ids given out
}

// labPatience is how long a measurement waits for what must come.
const labPatience = time.Minute

// letPass lets time pass between two looks at something.
func letPass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // nothing is decided by it

func textOf(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (value string, err error) {
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// benchText is what makes a row about 200 bytes long.
const benchText = `repeat(md5(i::text), 6)`

func newLab(t testing.TB) *lab {
	t.Helper()
	server, err := pgtest.Start(t.Context(), pgtest.Options{
		Durable:  true,
		TCP:      true,
		Settings: []string{"max_wal_size=8GB", "checkpoint_timeout=1h"}, // they come when we say so
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	l := &lab{
		t: t, server: server, profiles: os.Getenv("MILLRACE_BENCH_PROFILES"),
	}
	admin := l.connect(server.URL("postgres"))
	for _, statement := range []string{`create database up`, `create database log`} {
		_, err := admin.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	l.up, l.log = l.connect(server.URL("up")), l.connect(server.URL("log"))
	require.NoError(t, sql.Migrate(t.Context(), l.log, pgtest.Schema))
	l.exec(l.log, `set search_path = cdc`)
	l.exec(l.up, `create table bench (id int8 primary key, v text)`)
	p := l.startProcess("first", false)
	p.stop(t)
	l.replicaVersion = l.text(l.log, `select "replicaVersion" from "replicationConfig"`)
	return l
}

func (l *lab) connect(url string) *pgx.Conn {
	l.t.Helper()
	conn, err := pgx.Connect(l.t.Context(), url)
	require.NoError(l.t, err)
	l.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), labPatience)
		defer cancel()
		require.NoError(l.t, conn.Close(ctx))
	})
	return conn
}

func (l *lab) exec(conn *pgx.Conn, sql string) {
	l.t.Helper()
	_, err := conn.Exec(l.t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(l.t, err, sql)
}

func (l *lab) text(conn *pgx.Conn, sql string, args ...any) string {
	l.t.Helper()
	value, err := textOf(l.t.Context(), conn, sql, args...)
	require.NoError(l.t, err, sql)
	return value
}

func (l *lab) head() string {
	l.t.Helper()
	return l.text(l.log, `select "lastWatermark" from "replicationState"`)
}

// load commits transactions of so many rows each, and returns the position behind them.
// Their commits do not wait for the disk: they are read later.
func (l *lab) load(transactions, rows int) (end string) {
	l.t.Helper()
	l.exec(l.up, `set synchronous_commit = off`)
	l.commitAll(transactions, rows)
	l.exec(l.up, `set synchronous_commit = on`)
	end = l.text(l.up, `select pg_current_wal_insert_lsn()::text`)
	l.exec(l.up, `create table flush (); drop table flush`)
	l.exec(l.up, `checkpoint`)
	return end
}

// commitAll commits one transaction after another, in the server, without a way to it.
func (l *lab) commitAll(transactions, rows int) {
	l.t.Helper()
	_, err := l.up.Exec(l.t.Context(), `select set_config('bench.first', $1::int8::text, false),
		set_config('bench.transactions', $2::int8::text, false), set_config('bench.rows', $3::int8::text, false)`,
		l.rows+1, transactions, rows)
	require.NoError(l.t, err)
	l.exec(l.up, `do $$
declare
    f int8 := current_setting('bench.first')::int8;
    n int8 := current_setting('bench.rows')::int8;
begin
    for k in 1 .. current_setting('bench.transactions')::int8 loop
        insert into bench select i, `+benchText+` from generate_series(f + (k - 1) * n, f + k * n - 1) as i;
        commit;
    end loop;
end
$$`)
	l.rows += transactions * rows
}

// refresh has a streamer confirm everything, and the server forget what was before: else
// the next stream would begin with decoding the last load again. A server does that of
// its own accord, but later.
func (l *lab) refresh() {
	l.t.Helper()
	p := l.startProcess("refresh", false)
	now := l.text(l.up, `select pg_current_wal_lsn()::text`)
	for done := "false"; done != "true"; letPass(20 * time.Millisecond) {
		l.exec(l.up, `checkpoint`)
		done = l.text(l.up, `select bool_and(s.restart_lsn >= $1::text::pg_lsn)::text from pg_replication_slots as s`, now)
	}
	p.stop(l.t)
}

// slot makes a slot for pg_recvlogical.
func (l *lab) slot(name string) {
	l.t.Helper()
	_, err := l.up.Exec(l.t.Context(), `select pg_create_logical_replication_slot($1, 'pgoutput')`, name)
	require.NoError(l.t, err)
}

// limitByTCP says that pg_recvlogical comes to the server as the streamer does, and not
// by a Unix socket, which is its faster way.
func limitByTCP() bool { return os.Getenv("MILLRACE_BENCH_LIMIT") == "tcp" }

// receive returns how long pg_recvlogical takes to receive what a slot holds up to a
// position, and drops the slot. The slot's output is asked for as a streamer asks for it.
func (l *lab) receive(slot, end string) time.Duration {
	l.t.Helper()
	url := l.server.URL("up")
	if limitByTCP() {
		url = l.server.TCPURL("up")
	}
	started := time.Now()
	command := exec.CommandContext(l.t.Context(), filepath.Join(l.server.BinDir(), "pg_recvlogical"), //nolint:gosec // ours
		"-d", url, "-S", slot, "--start", "--endpos", end, "--no-loop", "-f", os.DevNull,
		"-o", "proto_version=1", "-o", "publication_names=_bench_public_0", "-o", "messages=true")
	out, err := command.CombinedOutput()
	took := time.Since(started)
	require.NoError(l.t, err, string(out))
	_, err = l.up.Exec(l.t.Context(), `select pg_drop_replication_slot($1)`, slot)
	require.NoError(l.t, err)
	return took
}

// startup is how long pg_recvlogical takes to receive nothing.
func (l *lab) startup() time.Duration {
	l.t.Helper()
	l.slot("nothing")
	return l.receive("nothing", l.text(l.up, `select pg_current_wal_lsn()::text`))
}

// commits returns how many one-row transactions one connection commits in a second.
func (l *lab) commits(during time.Duration) float64 {
	l.t.Helper()
	w := l.newWriter()
	defer w.close()
	began, n := time.Now(), 0
	for ; time.Since(began) < during; n++ {
		require.NoError(l.t, w.write(l.nextRow()))
	}
	return float64(n) / time.Since(began).Seconds()
}

func (l *lab) nextRow() int {
	l.rows++
	return l.rows
}

// copyOut returns how long the server takes to send the log by itself.
func (l *lab) copyOut() (messages int, took time.Duration) {
	l.t.Helper()
	began := time.Now()
	tag, err := l.log.PgConn().CopyTo(l.t.Context(), io.Discard, `copy (
		select watermark, pos, change, precommit from "changeLog" where watermark > `+quoted(l.replicaVersion)+`
		order by watermark, pos) to stdout`)
	require.NoError(l.t, err)
	return int(tag.RowsAffected()), time.Since(began)
}

func quoted(watermark string) string { return `'` + watermark + `'` } // of digits and letters

// writer commits one row after another on one connection.
type writer struct {
	l    *lab
	conn *pgx.Conn
}

func (l *lab) newWriter() *writer {
	l.t.Helper()
	conn, err := pgx.Connect(l.t.Context(), l.server.URL("up"))
	require.NoError(l.t, err)
	_, err = conn.Prepare(l.t.Context(), "row", `insert into bench select i, `+benchText+` from (select $1::int8) as r (i)`)
	require.NoError(l.t, err)
	return &writer{l: l, conn: conn}
}

func (w *writer) write(id int) error {
	_, err := w.conn.Exec(w.l.t.Context(), "row", id)
	return err
}

// writeTimed commits a row and returns when its commit was sent and how long that took.
func (w *writer) writeTimed(id int) (sent time.Time, took time.Duration, err error) {
	ctx := w.l.t.Context()
	if _, err := w.conn.Exec(ctx, "begin"); err != nil {
		return sent, 0, err
	}
	if err := w.write(id); err != nil {
		return sent, 0, err
	}
	sent = time.Now()
	_, err = w.conn.Exec(ctx, "commit")
	return sent, time.Since(sent), err
}

func (w *writer) close() {
	w.l.t.Helper()
	require.NoError(w.l.t, w.conn.Close(w.l.t.Context()))
}

// watchHead looks at the head of the log again and again. The function it returns waits
// until the head has reached a watermark, and returns when that was seen.
func (l *lab) watchHead() (reaches func(watermark string) time.Time) {
	l.t.Helper()
	conn := l.connect(l.server.URL("log"))
	type seen struct {
		head string
		at   time.Time
	}
	heads := make(chan seen, 1<<16)
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	go func() {
		defer close(heads)
		last := ""
		for ctx.Err() == nil {
			head, err := textOf(ctx, conn, `select "lastWatermark" from cdc."replicationState"`)
			if err != nil {
				ended <- err
				return
			}
			if head != last {
				heads <- seen{head, time.Now()}
				last = head
			}
			letPass(3 * time.Millisecond)
		}
		ended <- nil
	}()
	return func(watermark string) time.Time {
		l.t.Helper()
		defer cancel()
		for {
			select {
			case s, ok := <-heads:
				if !ok {
					require.NoError(l.t, <-ended)
				}
				if s.head >= watermark {
					return s.at
				}
			case <-time.After(labPatience):
				require.FailNow(l.t, "the log does not reach it", "%s; it is at %s", watermark, l.head())
			}
		}
	}
}

// median returns the median of some figures.
func median[T float64 | time.Duration](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// percentile returns the value that p of 100 do not exceed.
func percentile(values []time.Duration, p int) time.Duration {
	values = slices.Sorted(slices.Values(values))
	return values[min(len(values)-1, len(values)*p/100)]
}
