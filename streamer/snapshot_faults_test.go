package streamer_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer"
	"millrace/streamer/snapshot"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
)

// A slow snapshot copies a table so slowly that there is time for anything.
type slowSnapshot struct {
	t    *testing.T
	cfg  streamer.SnapshotConfig
	line *line
	done chan error
	stop context.CancelFunc
}

// beginSlowly begins one, and returns when rows are being copied.
func beginSlowly(t *testing.T, db *pgtest.DB, conn *pgx.Conn) *slowSnapshot {
	t.Helper()
	do(t, conn, `insert into public.item select i, repeat(md5(i::text), 10) from generate_series(1, 20000) as i`)
	s := &slowSnapshot{t: t, cfg: snapshotConfig(t, db, db), done: make(chan error, 1)}
	s.line, s.cfg.UpstreamDB = lineTo(t, db.URL)
	s.cfg.ChangeDB = db.URL
	begun := make(chan struct{})
	s.cfg.Logger = slog.New(onMessage{s.cfg.Logger.Handler(), "snapshot begun", func() {
		s.line.rate.Store(100_000)
		close(begun)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	t.Cleanup(cancel)
	go func() { s.done <- streamer.Snapshot(ctx, s.cfg) }()
	select {
	case <-begun:
	case err := <-s.done:
		require.FailNow(t, "the snapshot ended before it began", "%v", err)
	}
	require.Eventually(t, func() bool {
		files, _ := filepath.Glob(filepath.Join(s.cfg.Folder, "*.tmp"))
		return len(files) > 0
	}, endurance, glimpse)
	return s
}

// hurry lets it finish, and returns what it says.
func (s *slowSnapshot) hurry() error {
	s.line.rate.Store(0)
	return <-s.done
}

// leftNothing says that the folder, which was not there before, is not there now.
func (s *slowSnapshot) leftNothing() {
	s.t.Helper()
	_, err := os.Stat(s.cfg.Folder)
	require.ErrorIs(s.t, err, os.ErrNotExist)
}

// onMessage is a handler of logs that does something at a message.
type onMessage struct {
	slog.Handler
	message string
	do      func()
}

func (h onMessage) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.do()
	}
	return h.Handler.Handle(ctx, r)
}

func (h onMessage) WithAttrs(attrs []slog.Attr) slog.Handler {
	return onMessage{h.Handler.WithAttrs(attrs), h.message, h.do}
}

func TestSnapshotOfALogThatIsPurgedMeanwhile(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	serving(t, rigConfig(db))
	s := beginSlowly(t, db, conn)
	// Behind the copy: what is in it may still be on its way into the log.
	behind := tell[string](t, conn, `select cdc.encode_watermark(pg_current_wal_insert_lsn())`)
	do(t, conn, `insert into public.item values (-1)`)
	becomes(t, endurance, true, conn, `select head >= $1 collate "C" from cdc.status`, behind)
	do(t, conn, `select p.* from cdc.status as s cross join cdc.purge_change_log(before => s.head, owner => s.owner, max_rows => 100000) as p`)
	require.ErrorContains(t, s.hurry(), "the log was purged past the copy while the tables were copied: it begins at watermark ")
	s.leftNothing()
	require.Nil(t, tell[*string](t, conn, `select backup_watermark from cdc.status`))
}

func TestSnapshotOfALogThatIsResetMeanwhile(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	r := serving(t, rigConfig(db))
	s := beginSlowly(t, db, conn)
	r.stop(t)
	do(t, conn, `update cdc."replicationConfig" set "resetRequired" = true`)
	cfg := rigConfig(db)
	cfg.AutoReset = true
	serving(t, cfg)
	require.ErrorContains(t, s.hurry(), "the log was reset while the tables were copied")
	s.leftNothing()
}

func TestSnapshotThatLosesItsConnection(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	serving(t, rigConfig(db))
	s := beginSlowly(t, db, conn)
	s.line.cut()
	require.ErrorContains(t, s.hurry(), `copy table "public"."item"`)
	s.leftNothing()
}

func TestSnapshotThatIsStopped(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	serving(t, rigConfig(db))
	s := beginSlowly(t, db, conn)
	s.stop()
	require.ErrorIs(t, <-s.done, context.Canceled)
	s.leftNothing()
}

// Nobody who writes waits for a snapshot, and nobody who reads the stream.
func TestSnapshotStopsNobody(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	serving(t, rigConfig(db))
	s := beginSlowly(t, db, conn)
	head := tell[string](t, conn, `select head from cdc.status`)
	do(t, conn, `begin; insert into public.item values (-1); update public.item set note = 'x' where id = 5; delete from public.item where id = 6; commit`)
	becomes(t, endurance, true, conn, `select head > $1 collate "C" from cdc.status`, head)
	require.Empty(t, s.done)
	require.NoError(t, s.hurry())
	reader, err := snapshot.Open(s.cfg.Folder)
	require.NoError(t, err)
	require.Equal(t, int64(20000), reader.Manifest().Tables[0].Rows)
	require.Equal(t, reader.Manifest().Watermark, tell[string](t, conn, `select backup_watermark from cdc.status`))
	require.LessOrEqual(t, reader.Manifest().Watermark, tell[string](t, conn, `select head from cdc.status`))
}

// refusal makes a snapshot that must be refused with a state, and returns detail and hint.
func refusal(t *testing.T, cfg streamer.SnapshotConfig, state string) (detail, hint string) {
	t.Helper()
	err := streamer.Snapshot(t.Context(), cfg)
	var refused *source.StateError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, state, refused.State, "%v", err)
	return refused.Detail, refused.Hint
}

func TestSnapshotOfAnotherLog(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), pgtest.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	db, conn := shop(t)
	r := serving(t, rigConfig(db))
	do(t, conn, `insert into public.item values (1)`)
	r.stop(t)

	cfg := snapshotConfig(t, db, db)
	cfg.UpstreamDB = server.URL("postgres")
	detail, _ := refusal(t, cfg, "log-foreign")
	require.Contains(t, detail, "has no replication slot millrace_"+db.Name)

	// A slot of the same name stands somewhere else.
	slot := tell[string](t, conn, `select slot from cdc.status`)
	other, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer other.Close(context.Background())
	do(t, other, `select pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	if tell[bool](t, conn, `select cdc.encode_watermark($1::text::pg_lsn) < head from cdc.status`, tell[string](t, other, `select pg_current_wal_lsn()::text`)) {
		refusal(t, cfg, "log-ahead")
	}
	// Further than the log has come.
	for tell[bool](t, conn, `select cdc.encode_watermark($1::text::pg_lsn) <= greatest(head, streamed_watermark) from cdc.status`, tell[string](t, other, `select pg_current_wal_lsn()::text`)) {
		do(t, other, `select pg_logical_emit_message(false, '', repeat('x', 10000000))`)
	}
	do(t, other, `select pg_replication_slot_advance($1, pg_current_wal_lsn())`, slot)
	detail, _ = refusal(t, cfg, "log-foreign")
	require.Contains(t, detail, "but the log ends at")
	_, err = os.Stat(cfg.Folder)
	require.ErrorIs(t, err, os.ErrNotExist)

	nothing := pgtest.Empty(t)
	cfg = snapshotConfig(t, db, nothing)
	refusal(t, cfg, "log-missing")
	never := pgtest.New(t)
	cfg = snapshotConfig(t, db, never)
	detail, _ = refusal(t, cfg, "log-missing")
	require.Contains(t, detail, "was never begun")
	cfg = snapshotConfig(t, db, db)
	cfg.ChangeDB = "postgres://postgres@127.0.0.1:1/x?sslmode=disable"
	detail, _ = refusal(t, cfg, "database-unreachable")
	require.Contains(t, detail, "change database")
	cfg = snapshotConfig(t, db, db)
	cfg.UpstreamDB = "postgres://postgres@127.0.0.1:1/x?sslmode=disable"
	detail, _ = refusal(t, cfg, "database-unreachable")
	require.Contains(t, detail, "upstream")

	// Dropped by somebody: the log cannot go on.
	do(t, conn, `select pg_drop_replication_slot($1)`, slot)
	refusal(t, snapshotConfig(t, db, db), "log-foreign")
}

func TestSnapshotThatMayNotBeReported(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	serving(t, rigConfig(db))
	role := `reader_` + db.Name
	do(t, conn, `create role `+role+` login`)
	t.Cleanup(func() { discard(t, conn, role) })
	do(t, conn, `select cdc.grant_access(role => $1, access => 'reader')`, role)

	cfg := snapshotConfig(t, db, db)
	cfg.ChangeDB = strings.Replace(db.URL, "postgres@", role+"@", 1)
	detail, hint := refusal(t, cfg, postgres.StatePermissionMissing)
	reader, err := snapshot.Open(cfg.Folder)
	require.NoError(t, err, "the copy is whole all the same")
	require.NoError(t, reader.Verify(t.Context()))
	require.Contains(t, detail, "is complete")
	grant, rest, _ := strings.Cut(strings.TrimPrefix(hint, "as the owner of the log run: "), "; then report it: ")
	report, _, _ := strings.Cut(rest, "; ")
	do(t, conn, grant)
	do(t, conn, report)
	require.Equal(t, reader.Manifest().Watermark, tell[string](t, conn, `select backup_watermark from cdc.status`))

	// With that right the next one is reported.
	cfg.Folder = filepath.Join(t.TempDir(), "next")
	require.NoError(t, streamer.Snapshot(t.Context(), cfg))
	require.Greater(t, tell[string](t, conn, `select backup_watermark from cdc.status`), reader.Manifest().Watermark)

	// One that is not to be reported changes nothing.
	reported := tell[string](t, conn, `select backup_watermark from cdc.status`)
	cfg.Folder, cfg.NoReport = filepath.Join(t.TempDir(), "unreported"), true
	require.NoError(t, streamer.Snapshot(t.Context(), cfg))
	require.Equal(t, reported, tell[string](t, conn, `select backup_watermark from cdc.status`))

	// Where a newer one was reported the log may be purged past it.
	newer := "azzzzzzzzzzz"
	do(t, conn, `select cdc.report_backup(watermark => $2, replica_version => $1)`, replicaVersionOf(t, conn), newer)
	cfg.Folder, cfg.NoReport = filepath.Join(t.TempDir(), "older"), false
	var warnings []string
	cfg.Logger = slog.New(onMessage{cfg.Logger.Handler(), "a newer backup was reported: the log may be purged past this snapshot", func() {
		warnings = append(warnings, newer)
	}})
	require.NoError(t, streamer.Snapshot(t.Context(), cfg))
	require.Len(t, warnings, 1)
	require.Equal(t, newer, tell[string](t, conn, `select backup_watermark from cdc.status`))
}
