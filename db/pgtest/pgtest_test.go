package pgtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

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
