package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// startOnly makes this binary a program that starts a server, says where, and waits.
const startOnly = "PGTEST_START_ONLY"

func TestMain(m *testing.M) {
	if os.Getenv(startOnly) == "" {
		pgtest.Main(m)
	}
	server, err := pgtest.Start(context.Background(), pgtest.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, server.Pid(), server.Dir())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends, or ends this process
}

func TestNew(t *testing.T) {
	t.Parallel()

	a, b := pgtest.New(t), pgtest.New(t)
	_, err := a.Conn(t).Exec(t.Context(), `insert into streamer (owner, task_id) values ('a/1', 'a')`)
	require.NoError(t, err)

	const count = `select count(*) from streamer`
	var inA, inB int64
	require.NoError(t, a.Conn(t).QueryRow(t.Context(), count).Scan(&inA))
	require.NoError(t, b.Conn(t).QueryRow(t.Context(), count).Scan(&inB))
	require.EqualValues(t, 1, inA)
	require.EqualValues(t, 0, inB)

	var extra, level string
	require.NoError(t, a.Conn(t).QueryRow(t.Context(),
		`select current_setting('plpgsql.extra_errors'), current_setting('wal_level')`).Scan(&extra, &level))
	require.Equal(t, "all", extra)
	require.Equal(t, "logical", level)
}

func TestEmpty(t *testing.T) {
	t.Parallel()

	var schemas int64
	require.NoError(t, pgtest.Empty(t).Conn(t).QueryRow(t.Context(),
		`select count(*) from pg_namespace where nspname = $1`, pgtest.Schema).Scan(&schemas))
	require.EqualValues(t, 0, schemas)
}

func TestServerKeepsDataOverCrashAndRestart(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := pgtest.Start(ctx, pgtest.Options{TCP: true, Password: "right", Durable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })

	run := func(url, statement string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, statement)
		return errors.Join(err, conn.Close(ctx))
	}
	require.NoError(t, run(server.TCPURL("postgres"), `create table kept as select 1`))
	require.NoError(t, run(server.URL("postgres"), `table kept`))

	require.NoError(t, server.Kill())
	require.Error(t, run(server.URL("postgres"), `table kept`))
	require.NoError(t, server.Kill(), "a second time")
	require.NoError(t, server.Restart(ctx))
	require.NoError(t, run(server.TCPURL("postgres"), `insert into kept values (2)`))
	require.NoError(t, server.Restart(ctx))
	require.NoError(t, run(server.TCPURL("postgres"), `delete from kept`))
	require.Contains(t, server.Log(), "database system was not properly shut down")

	config, err := pgx.ParseConfig(server.TCPURL("postgres"))
	require.NoError(t, err)
	config.Password = "wrong"
	_, err = pgx.ConnectConfig(ctx, config)
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, "28P01", pgErr.Code)
}

func TestStartSaysWhatTheServerSaid(t *testing.T) {
	t.Parallel()

	_, err := pgtest.Start(t.Context(), pgtest.Options{Settings: []string{"no_such_setting=1"}})
	require.ErrorContains(t, err, "no_such_setting")
}

func TestStartWithoutBinaries(t *testing.T) {
	t.Setenv("PGBIN", t.TempDir())

	_, err := pgtest.Start(t.Context(), pgtest.Options{})
	require.ErrorIs(t, err, pgtest.ErrNoBinaries)
	require.ErrorContains(t, err, "PGBIN")
}

func TestServerEndsWithAKilledParent(t *testing.T) {
	t.Parallel()

	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), startOnly+"=1")
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	var pid int
	var dir string
	_, err = fmt.Fscan(stdout, &pid, &dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, syscall.Kill(pid, 0), "the server runs")

	require.NoError(t, command.Process.Kill())
	require.Error(t, command.Wait())
	// An orphan has ended when its lock file is gone: it removes that last.
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid"))
		return errors.Is(err, fs.ErrNotExist)
	}, time.Minute, 10*time.Millisecond)
}

// recorder is a test whose failures are looked at.
type recorder struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) end() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}

func TestSlotInUseFailsTheTest(t *testing.T) {
	t.Parallel()

	r := &recorder{TB: t}
	database := pgtest.New(r)
	const slot = "in_use" // slots belong to the server: no other test has this one
	_, err := database.Conn(r).Exec(t.Context(), `select pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	require.NoError(t, err)
	config, err := pgconn.ParseConfig(database.URL)
	require.NoError(t, err)
	config.RuntimeParams["replication"] = "database"
	stream, err := pgconn.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	stream.Frontend().SendQuery(&pgproto3.Query{
		String: "START_REPLICATION SLOT " + slot + " LOGICAL 0/0 (proto_version '1', publication_names 'none')",
	})
	require.NoError(t, stream.Frontend().Flush())
	message, err := stream.ReceiveMessage(t.Context())
	require.NoError(t, err)
	require.IsType(t, &pgproto3.CopyBothResponse{}, message)

	r.end()
	require.Len(t, r.errors, 1)
	require.Contains(t, r.errors[0], "replication slot")

	require.NoError(t, stream.Close(t.Context()))
	admin, err := pgx.Connect(t.Context(), database.Server.URL("postgres"))
	require.NoError(t, err)
	defer admin.Close(t.Context())
	require.Eventually(t, func() bool { // the server notices the end of the stream by itself
		_, err := admin.Exec(t.Context(), `drop database `+database.Name+` with (force)`)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
}
