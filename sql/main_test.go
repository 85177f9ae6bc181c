package sql_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	version = "01" // replica version of most tests
	owner   = "a/1"
	other   = "b/2"
)

var queries = db.New()

// initialised is a log at version that nobody owns.
func initialised(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	database := pgtest.New(t)
	conn := database.Conn(t)
	require.Equal(t, "initialized", ensure(t, conn, version, version).Result)
	return database, conn
}

// owned is a log at version that owner owns.
func owned(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	database, conn := initialised(t)
	require.True(t, assume(t, conn, owner, nil).Assumed)
	return database, conn
}

func ensureParams(replicaVersion, watermark string) db.EnsureReplicationConfigParams {
	return db.EnsureReplicationConfigParams{
		ReplicaVersion: replicaVersion,
		Publications:   []string{"p", "q"},
		Watermark:      watermark,
		Cookies:        json.RawMessage(`{}`),
		Grace:          5 * time.Second,
		RetryEvery:     2 * time.Second,
		MaxWait:        time.Minute,
	}
}

func ensure(t *testing.T, conn db.DBTX, replicaVersion, watermark string) db.EnsureReplicationConfigRow {
	t.Helper()
	row, err := queries.EnsureReplicationConfig(t.Context(), conn, ensureParams(replicaVersion, watermark))
	require.NoError(t, err)
	return row
}

func reset(ctx context.Context, conn db.DBTX, replicaVersion string) (db.EnsureReplicationConfigRow, error) {
	params := ensureParams(replicaVersion, replicaVersion)
	params.AutoReset = true
	return queries.EnsureReplicationConfig(ctx, conn, params)
}

func assume(t *testing.T, conn db.DBTX, name string, expected *string) db.AssumeOwnershipRow {
	t.Helper()
	row, err := queries.AssumeOwnership(t.Context(), conn, db.AssumeOwnershipParams{
		Owner:          name,
		OwnerAddress:   new(name + ":4848"),
		ReplicaVersion: version,
		Expected:       expected,
	})
	require.NoError(t, err)
	return row
}

// batch is transactions of three rows each, as the owner stores them.
func batch(expectedHead string, watermarks ...string) db.StoreChangesParams {
	p := db.StoreChangesParams{Owner: owner, ReplicaVersion: version, ExpectedHead: expectedHead}
	for _, w := range watermarks {
		p.Watermarks = append(p.Watermarks, w, w, w)
		p.Positions = append(p.Positions, 0, 1, 2)
		p.Changes = append(p.Changes, []byte(`{"tag":"begin"}`), []byte(`{"tag":"insert"}`), []byte(`{"tag":"commit"}`))
		p.Precommits = append(p.Precommits, "", "", w)
		p.LastWatermark = w
	}
	return p
}

func store(t *testing.T, conn db.DBTX, p db.StoreChangesParams) db.StoreChangesRow {
	t.Helper()
	row, err := queries.StoreChanges(t.Context(), conn, p)
	require.NoError(t, err)
	return row
}

func bounds(t *testing.T, conn db.DBTX) db.CatchupBoundsRow {
	t.Helper()
	row, err := queries.CatchupBounds(t.Context(), conn)
	require.NoError(t, err)
	return row
}

// row is a row of the log; precommit null is "".
type row struct {
	Watermark string
	Pos       int64
	Change    string
	Precommit string
}

func logRows(t *testing.T, conn *pgx.Conn) []row {
	t.Helper()
	rows, err := conn.Query(t.Context(),
		`select watermark, pos, change::text, coalesce(precommit, '') from "changeLog" order by watermark, pos`)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	return got
}

func seed(watermark string) []row {
	return []row{{watermark, 0, `{"tag":"begin"}`, ""}, {watermark, 1, `{"tag":"commit"}`, ""}}
}

func requireCode(t *testing.T, code string, err error) {
	t.Helper()
	require.Equal(t, code, pgError(t, code, err).Code)
}

// pgError is the error of the server, which has the code and says what to do.
func pgError(t *testing.T, code string, err error) *pgconn.PgError {
	t.Helper()
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, code, pgErr.Code, "%s (%s)", pgErr.Message, pgErr.Where)
	require.NotEmpty(t, pgErr.Hint)
	return pgErr
}

func exec(t *testing.T, conn db.DBTX, statement string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), statement, args...)
	require.NoError(t, err)
}

func one[T any](t *testing.T, conn db.DBTX, query string, args ...any) T {
	t.Helper()
	var value T
	require.NoError(t, conn.QueryRow(t.Context(), query, args...).Scan(&value))
	return value
}

// outcome is what a call in another session comes to.
type outcome[T any] struct {
	value T
	err   error
}

// together runs calls at once, and answers what each came to.
func together(calls ...func() error) error {
	results := make(chan error, len(calls))
	for _, call := range calls {
		go func() { results <- call() }()
	}
	var err error
	for range calls {
		err = errors.Join(err, <-results)
	}
	return err
}

// blocked runs call on conn in the background and returns once it waits for a
// lock of another session. The outcome comes from the channel.
func blocked[T any](t *testing.T, watcher, conn *pgx.Conn, call func() (T, error)) <-chan outcome[T] {
	t.Helper()
	pid := conn.PgConn().PID()
	result := make(chan outcome[T], 1)
	go func() {
		value, err := call()
		result <- outcome[T]{value, err}
	}()
	for !one[bool](t, watcher, `select cardinality(pg_blocking_pids($1)) > 0 from pg_sleep(0.002)`, pid) {
		select {
		case o := <-result:
			require.Fail(t, "the call did not wait", "%v %v", o.value, o.err)
		default:
		}
	}
	return result
}

func begin(t *testing.T, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	require.NoError(t, tx.Commit(t.Context()))
}

func requireJSON(t *testing.T, want string, got json.RawMessage) {
	t.Helper()
	require.JSONEq(t, want, string(got))
}
