package sql_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// patience is how a call treats who is in its way.
type patience struct {
	app                    *string // whose sessions it ends
	grace, retryEvery, max time.Duration
}

// hurried does not wait long for readers.
func hurried() patience {
	return patience{app: new(streamerApp), grace: 10 * time.Millisecond, retryEvery: 10 * time.Millisecond, max: time.Minute}
}

// powerless ends nobody, and gives up soon.
func powerless() patience {
	return patience{grace: 10 * time.Millisecond, retryEvery: 10 * time.Millisecond, max: 50 * time.Millisecond}
}

// exclusive are the two calls that need the tables of a furnished log for themselves.
var exclusive = []struct {
	name  string
	call  func(context.Context, db.DBTX, patience) (string, error)
	want  string
	begin string   // where the log begins then
	spare []string // tables that it only reads or writes
}{
	{
		name: "reinitialize", want: "reinitialized", begin: "0a", spare: []string{"replicationConfig", "progress", "streamer"},
		call: func(ctx context.Context, conn db.DBTX, p patience) (string, error) {
			params := reinitializeParams("0a")
			params.TerminateApp, params.Grace, params.RetryEvery, params.MaxWait = p.app, p.grace, p.retryEvery, p.max
			return queries.ReinitializeChangeLog(ctx, conn, params)
		},
	},
	{
		name: "reset", want: "reset", begin: "03", spare: []string{"progress", "streamer"},
		call: func(ctx context.Context, conn db.DBTX, p patience) (string, error) {
			params := made()
			params.TerminateApp, params.Grace, params.RetryEvery, params.MaxWait = p.app, p.grace, p.retryEvery, p.max
			got, err := queries.EnsureReplicationConfig(ctx, conn, params)
			return got.Result, err
		},
	},
}

// listening is a connection, and what it was told so far. A session that takes its time
// to end is told again, and counts once.
func listening(t *testing.T, database *pgtest.DB) (*pgx.Conn, *[]string) {
	t.Helper()
	var told []string
	conn := noticed(t, database, func(n *pgconn.Notice) {
		notice := fmt.Sprintf("%s %s: %s", n.Severity, n.Code, n.Detail)
		if !slices.Contains(told, notice) {
			told = append(told, notice)
		}
	})
	return conn, &told
}

// terminations are the notices about sessions that were ended.
func terminations(conns ...*pgx.Conn) (notices []string) {
	for _, conn := range conns {
		notices = append(notices, fmt.Sprintf("NOTICE %s: pid %d", sql.CodeTerminated, conn.PgConn().PID()))
	}
	return notices
}

// await waits until a query says true.
func await(t *testing.T, watcher *pgx.Conn, query string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !one[bool](t, watcher, query, args...) {
		require.True(t, time.Now().Before(deadline), "it does not become so: %s", query)
		exec(t, watcher, `select pg_sleep(0.002), pg_stat_clear_snapshot()`) // the watcher may be in a transaction
	}
}

// awaitEnd waits until the server has ended sessions.
func awaitEnd(t *testing.T, watcher *pgx.Conn, conns ...*pgx.Conn) {
	t.Helper()
	for _, conn := range conns {
		await(t, watcher, `select not exists (select from pg_stat_activity where pid = $1)`, conn.PgConn().PID())
	}
}

func TestReadersMakeWay(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, watcher := furnished(t)
			conn, told := listening(t, database)
			storer := reading(t, database, streamerApp, "replicationState")
			exec(t, storer, `select from "replicationState" for update`)
			busy := reading(t, database, streamerApp, "tableMetadata")
			asleep := make(chan error, 1)
			go func() {
				_, err := busy.Exec(t.Context(), `select pg_sleep(60)`)
				asleep <- err
			}()
			inTheWay := []*pgx.Conn{
				reading(t, database, streamerApp, "changeLog"),
				reading(t, database, streamerApp, "replicationState", "changeLog", "backfilling"),
				reading(t, database, streamerApp, "backfilling"),
				storer, busy,
			}
			harmless := []*pgx.Conn{
				reading(t, database, streamerApp),
				reading(t, database, streamerApp, tt.spare...),
				reading(t, database, "psql"),
			}

			got, err := tt.call(t.Context(), conn, hurried())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			require.ElementsMatch(t, terminations(inTheWay...), *told)
			require.ErrorContains(t, <-asleep, "SQLSTATE 57P01")
			awaitEnd(t, watcher, inTheWay...)
			for _, session := range harmless {
				requireAlive(t, session)
			}
			require.Equal(t, seed(tt.begin), logRows(t, watcher))
		})
	}
}

// The defaults: who has the name of a streamer is left alone for 5 s, and then ended.
func TestReaderIsGivenTime(t *testing.T) {
	t.Parallel()

	for name, call := range map[string]string{
		"reinitialize": `select reinitialize_change_log(watermark => '0a', owner => 'b/2')`,
		"reset":        `select result from ensure_replication_config('03', '{p,q}', '03', auto_reset => true)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			database, _ := furnished(t)
			conn, told := listening(t, database)
			reader := reading(t, database, streamerApp, "changeLog")
			at := time.Now()
			exec(t, conn, call)
			require.GreaterOrEqual(t, time.Since(at), 5*time.Second)
			require.Equal(t, terminations(reader), *told)
		})
	}
}

func TestForeignHolderIsOnlyNamed(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, watcher := furnished(t)
			before := contents(t, watcher)
			conn, told := listening(t, database)
			foreign := reading(t, database, "pg dump 'x'", "changeLog")
			exec(t, foreign, `select from "backfilling" for update`)
			reader := reading(t, database, streamerApp, "tableMetadata")

			p := hurried()
			p.max = time.Second
			at := time.Now()
			_, err := tt.call(t.Context(), conn, p)
			require.GreaterOrEqual(t, time.Since(at), p.max)
			require.Less(t, time.Since(at), 30*p.max)
			pgErr := pgError(t, sql.CodeTablesLocked, err)
			who := fmt.Sprintf(`pid %d (application 'pg dump ''x''', user postgres, idle in transaction)`, foreign.PgConn().PID())
			require.Equal(t, who+` holds RowShareLock on backfilling; `+who+` holds AccessShareLock on "changeLog"`, pgErr.Detail)
			require.Contains(t, pgErr.Hint, `Only sessions of application 'zero-change-streamer' are terminated.`)
			require.Contains(t, pgErr.Hint, "max_wait")
			// What is ended stays ended.
			require.Equal(t, terminations(reader), *told)
			awaitEnd(t, watcher, reader)
			require.Equal(t, before, contents(t, watcher))

			// When it is done the call gets through, which waits for as long as it may.
			result := blocked(t, watcher, conn, func() (string, error) { return tt.call(t.Context(), conn, hurried()) })
			requireAlive(t, foreign)
			got := <-result
			require.NoError(t, got.err)
			require.Equal(t, tt.want, got.value)
		})
	}
}

func TestNobodyNeedBeEnded(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, _ := furnished(t)
			conn, told := listening(t, database)
			reader := reading(t, database, streamerApp, "changeLog")
			_, err := tt.call(t.Context(), conn, powerless())
			pgErr := pgError(t, sql.CodeTablesLocked, err)
			require.Contains(t, pgErr.Detail, `application 'zero-change-streamer'`)
			require.Contains(t, pgErr.Hint, "terminate_app is null")
			require.Empty(t, *told)
			requireAlive(t, reader)
			got, err := tt.call(t.Context(), conn, powerless())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// The server shows a transaction the sessions of its first look, so who came later would
// have no name and be passed over.
func TestReaderThatCameAfterTheFirstLook(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, _ := furnished(t)
			conn, told := listening(t, database)
			tx := begin(t, conn)
			exec(t, tx, `select from pg_stat_activity`)
			reader := reading(t, database, streamerApp, "changeLog")
			require.Nil(t, one[*string](t, tx, `select max(application_name) from lock_holders() where pid = $1`, reader.PgConn().PID()),
				"the look is frozen")

			exec(t, tx, `savepoint before`)
			_, err := tt.call(t.Context(), tx, powerless())
			require.Contains(t, pgError(t, sql.CodeTablesLocked, err).Detail, `application 'zero-change-streamer'`)
			exec(t, tx, `rollback to before`)

			p := hurried()
			p.max = 5 * time.Second
			_, err = tt.call(t.Context(), tx, p)
			require.NoError(t, err)
			require.Equal(t, terminations(reader), *told)
			commit(t, tx)
		})
	}
}

// Who comes back at once must find the reset in front of it, every time.
func TestReadersThatComeBackAtOnce(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			const num = 10
			database, watcher := furnished(t)
			conn, told := listening(t, database)
			config := watcher.Config()
			config.RuntimeParams["application_name"] = streamerApp
			ctx, cancel := context.WithCancel(t.Context())
			var readers []func() error
			for range num {
				readers = append(readers, func() error {
					for ctx.Err() == nil {
						reader, err := pgx.ConnectConfig(ctx, config)
						if err != nil {
							continue
						}
						// Ended with its session, or by the end of the test.
						_, _ = reader.Exec(ctx, `begin; select from "replicationState"; select from "changeLog"`)
						_, _ = reader.WaitForNotification(ctx)
						if err := reader.Close(context.WithoutCancel(ctx)); err != nil {
							return err
						}
					}
					return nil
				})
			}
			ended := make(chan error, 1)
			go func() { ended <- together(readers...) }()
			defer func() {
				cancel()
				require.NoError(t, <-ended)
			}()
			await(t, watcher, `select count(*) = $1 from lock_holders() where relation = 'changeLog'`, num)

			p := hurried()
			p.max = 20 * time.Second
			got, err := tt.call(t.Context(), conn, p)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			require.GreaterOrEqual(t, len(*told), num)
			require.Equal(t, seed(tt.begin), logRows(t, watcher))
		})
	}
}

func TestReaderThatCameAfterTheFirstRound(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, watcher := furnished(t)
			conn, told := listening(t, database)
			// The call waits for the foreign one at the first table; so the second is open to readers.
			foreign := reading(t, database, "psql", "replicationState")
			first := reading(t, database, streamerApp, "changeLog")
			result := blocked(t, watcher, conn, func() (string, error) { return tt.call(t.Context(), conn, hurried()) })
			awaitEnd(t, watcher, first)
			second := reading(t, database, streamerApp, "changeLog")
			awaitEnd(t, watcher, second)
			requireAlive(t, foreign)

			got := <-result
			require.NoError(t, got.err)
			require.Equal(t, tt.want, got.value)
			require.Equal(t, terminations(first, second), *told)
		})
	}
}

// Who takes the locks in the wrong order waits for the reset, which waits for it.
func TestReaderOfTheWrongOrder(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		for _, application := range []string{streamerApp, "psql"} {
			t.Run(tt.name+" and "+application, func(t *testing.T) {
				t.Parallel()

				database, watcher := furnished(t)
				conn := database.Conn(t)
				reader := reading(t, database, application, "changeLog")
				exec(t, reader, `set deadlock_timeout = '1min'`) // the reset finds it out
				result := blocked(t, watcher, conn, func() (string, error) { return tt.call(t.Context(), conn, hurried()) })
				_, err := reader.Exec(t.Context(), `select from "replicationState"`)
				if application == streamerApp {
					require.NotContains(t, fmt.Sprint(err), "SQLSTATE 40P01") // it may get its answer before it is ended
					awaitEnd(t, watcher, reader)
				} else {
					require.NoError(t, err)
					requireAlive(t, reader)
				}

				got := <-result
				require.NoError(t, got.err)
				require.Equal(t, tt.want, got.value)
			})
		}
	}
}

// A backend that can not get rid of its rows looks at nothing else, and its helpers hold
// the same locks.
func TestReaderThatHasStoppedReading(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, watcher := furnished(t)
			exec(t, watcher, `insert into "changeLog" select '05', n, '{}', null from generate_series(10, 1000) as n`)
			conn, told := listening(t, database)
			reader := reading(t, database, streamerApp)
			pid := reader.PgConn().PID()
			exec(t, reader, `
				set max_parallel_workers_per_gather = 2;
				set min_parallel_table_scan_size = 0;
				set parallel_setup_cost = 0;
				set parallel_tuple_cost = 0`)
			rows, err := reader.Query(t.Context(), `select repeat(watermark, 50000) from "changeLog"`)
			require.NoError(t, err)
			t.Cleanup(rows.Close)
			await(t, watcher, `
				select exists (select from pg_stat_activity where pid = $1 and wait_event = 'ClientWrite')
					and exists (select from pg_stat_activity where leader_pid = $1)`, pid)
			require.Equal(t, []string{fmt.Sprint(pid)},
				objects(t, watcher, `select distinct pid::text from lock_holders() where relation = 'changeLog'`))

			got, err := tt.call(t.Context(), conn, hurried())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			require.Equal(t, terminations(reader), *told)
		})
	}
}

// A caller has the name of those that it ends, like all of its kind.
func TestCallersDoNotEndEachOther(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, watcher := furnished(t)
			foreign := reading(t, database, "psql", "backfilling")
			reader := reading(t, database, streamerApp, "changeLog")
			var all []string
			var results []<-chan outcome[string]
			var tolds []*[]string
			for range 3 {
				conn, told := listening(t, database)
				exec(t, conn, `select set_config('application_name', $1, false)`, streamerApp)
				tolds = append(tolds, told)
				result := blocked(t, watcher, conn, func() (string, error) { return tt.call(t.Context(), conn, hurried()) })
				results = append(results, result)
			}
			awaitEnd(t, watcher, reader)
			requireAlive(t, foreign)

			got := map[string]int{}
			for i, result := range results {
				r := <-result
				require.NoError(t, r.err)
				got[r.value]++
				all = append(all, *tolds[i]...)
			}
			kept := strings.NewReplacer("reinitialized", "maintained", "reset", "unchanged").Replace(tt.want)
			require.Equal(t, map[string]int{tt.want: 1, kept: 2}, got)
			require.Equal(t, terminations(reader), all)
		})
	}
}

// Nor does a caller end itself, when it holds locks already.
func TestCallerThatHoldsLocksItself(t *testing.T) {
	t.Parallel()

	for _, tt := range exclusive {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			database, _ := furnished(t)
			conn, told := listening(t, database)
			exec(t, conn, `select set_config('application_name', $1, false)`, streamerApp)
			reader := reading(t, database, streamerApp, "changeLog")
			read(t, conn, "replicationState", "changeLog")
			require.Equal(t, reader.PgConn().PID(), one[uint32](t, conn, `select distinct pid from lock_holders()`))
			got, err := tt.call(t.Context(), conn, hurried())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			require.Equal(t, terminations(reader), *told)
			requireAlive(t, conn)
		})
	}
}
