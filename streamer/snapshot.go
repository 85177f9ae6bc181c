package streamer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"millrace/sql"
	"millrace/streamer/changelog"
	"millrace/streamer/snapshot"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

const defaultJobs = 4

// SnapshotConfig says what to copy, and where to. UpstreamDB and Folder are required.
type SnapshotConfig struct {
	UpstreamDB string // connection string of the database whose tables are published
	ChangeDB   string // that of the database that holds the log; UpstreamDB if empty
	Schema     string // of the log; cdc if empty

	Folder      string // to write to: one that is not there, or is empty
	Jobs        int    // tables copied at once, at most; 4 if zero
	Compression string // zstd, gzip or none; zstd if empty
	NoReport    bool   // do not report the copy to the log as a backup

	// LockTimeout is how long one transaction that is open upstream is waited for; 29s if
	// zero.
	LockTimeout time.Duration

	// Progress is told now and then how far it is, by one goroutine, while tables are
	// copied. The end of each table is then logged at level debug only. Nil: nobody is told.
	Progress func(SnapshotProgress)

	Logger *slog.Logger // discards if nil
}

// SnapshotProgress is how far a snapshot is.
type SnapshotProgress struct {
	Tables, TablesDone int
	Rows, Bytes        int64   // copied so far, before compression
	Share              float64 // of all the work, from 0 to 1, as far as it can be estimated
}

func (cfg *SnapshotConfig) setDefaults() error {
	if cfg.UpstreamDB == "" || cfg.Folder == "" {
		return errors.New("snapshot: UpstreamDB and Folder are required")
	}
	orDefault(&cfg.ChangeDB, cfg.UpstreamDB)
	orDefault(&cfg.Schema, defaultSchema)
	orDefault(&cfg.Jobs, defaultJobs)
	orDefault(&cfg.Compression, string(snapshot.Zstd))
	orDefault(&cfg.LockTimeout, slotLockTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Jobs < 0 || cfg.LockTimeout < 0 {
		return errors.New("snapshot: Jobs and LockTimeout must not be negative")
	}
	if err := sql.CheckSchema(cfg.Schema); err != nil {
		return fmt.Errorf("snapshot: schema %q: %w", cfg.Schema, err)
	}
	return nil
}

// snapshotter makes one snapshot.
type snapshotter struct {
	cfg      SnapshotConfig
	log      *slog.Logger
	upstream *postgres.Upstream
	ledger   *changelog.Ledger
	role     string // that we are in the change database
	began    time.Time
}

// Snapshot copies the published tables as they are at one moment, a position that the log
// covers, into a folder, and reports that to the log as a backup. Neither the streamer nor
// anybody who writes is stopped. A folder is whole or empty when it returns; if the report
// is refused the folder is whole, and the error says so.
func Snapshot(ctx context.Context, cfg SnapshotConfig) error {
	if err := cfg.setDefaults(); err != nil {
		return err
	}
	s := &snapshotter{
		cfg: cfg, began: time.Now(),
		log: cfg.Logger.With("component", "snapshot", "schema", cfg.Schema),
	}
	var err error
	if s.upstream, err = postgres.NewUpstream(cfg.UpstreamDB); err != nil {
		return err
	}
	log := Config{ChangeDB: cfg.ChangeDB, UpstreamDB: cfg.UpstreamDB, Schema: cfg.Schema}
	changeDB, err := log.changeDB()
	if err != nil {
		return err
	}
	s.role = changeDB.User
	if s.ledger, err = changelog.NewLedger(changeDB); err != nil {
		return err
	}
	defer s.ledger.Close()
	return s.run(ctx)
}

func (s *snapshotter) run(ctx context.Context) error {
	folder, err := snapshot.Create(s.cfg.Folder, snapshot.Compression(s.cfg.Compression))
	if err != nil {
		return err
	}
	m, err := s.fill(ctx, folder)
	if err == nil {
		err = folder.Finish(*m)
	}
	if err != nil {
		return errors.Join(err, folder.Discard())
	}
	var rows, bytes int64
	for _, t := range m.Tables {
		rows, bytes = rows+t.Rows, bytes+t.Bytes
	}
	s.log.InfoContext(ctx, "snapshot written", "watermark", m.Watermark, "num_tables", len(m.Tables),
		"num_rows", rows, "num_bytes", bytes, "duration", since(s.began))
	if s.cfg.NoReport {
		return nil
	}
	return s.report(ctx, m)
}

// since is a duration as a person wants it.
func since(began time.Time) time.Duration { return time.Since(began).Round(time.Millisecond) }

// fill writes the files of all tables, and returns what belongs into the manifest.
func (s *snapshotter) fill(ctx context.Context, folder *snapshot.Folder) (*snapshot.Manifest, error) {
	start, err := s.fits(ctx)
	if err != nil {
		return nil, err
	}
	if start.ResetRequired {
		s.log.WarnContext(ctx, "the log is marked: it may not go on", "cause", stateResetRequired)
	}
	if _, err := s.upstream.Preflight(ctx, postgres.PreflightConfig{
		Publications: start.Publications, Recorded: true, NewSlot: true,
	}); err != nil {
		return nil, s.explainUpstream(err)
	}
	tables, err := s.upstream.OpenSnapshot(ctx, postgres.SnapshotConfig{
		Publications: start.Publications, Jobs: s.cfg.Jobs, LockTimeout: s.cfg.LockTimeout, Logger: s.log,
	})
	if err != nil {
		return nil, s.explainUpstream(err)
	}
	defer tables.Close(ctx)

	m := describe(tables, start)
	s.log.InfoContext(ctx, "snapshot begun", "watermark", m.Watermark, "num_tables", len(m.Tables))
	if err := s.covers(ctx, m); err != nil {
		return nil, err
	}
	if err := s.copy(ctx, tables, folder, m); err != nil {
		return nil, err
	}
	// Whatever was purged or reset meanwhile: the copy is of use only if the log goes on
	// from it.
	return m, s.covers(ctx, m)
}

// describe is the manifest of tables that are still to be copied.
func describe(tables *postgres.Snapshot, start changelog.Start) *snapshot.Manifest {
	m := &snapshot.Manifest{
		ReplicaVersion: start.ReplicaVersion,
		Watermark:      watermark.FromLSN(tables.Version),
		CreatedAt:      tables.At.UTC(),
		Publications:   start.Publications,
		Raw:            tables.Raw,
		Tables:         make([]snapshot.Table, len(tables.Tables)),
	}
	for _, row := range tables.Types {
		m.Types = append(m.Types, snapshot.FromCatalog(row))
	}
	for i, t := range tables.Tables {
		columns := make([]snapshot.Column, len(t.Columns))
		for j, c := range t.Columns {
			columns[j] = snapshot.Column{Name: c.Name, TypeOID: c.TypeOID, Type: c.TypeName, Key: c.Key}
		}
		m.Tables[i] = snapshot.Table{
			Schema: t.Schema, Name: t.Name, ReplicaIdentity: snapshot.IdentityName(t.Identity), Columns: columns,
		}
	}
	return m
}

// copy copies every table, several at once.
func (s *snapshotter) copy(ctx context.Context, tables *postgres.Snapshot, folder *snapshot.Folder, m *snapshot.Manifest) error {
	p := newProgress(tables)
	finish := p.watch(s.cfg.Progress)
	defer finish()
	group, ctx := errgroup.WithContext(ctx)
	for session, share := range tables.Shares() {
		group.Go(func() error {
			for _, i := range share {
				if err := s.table(ctx, tables, session, folder, i, &m.Tables[i], p); err != nil {
					return err
				}
			}
			tables.EndSession(ctx, session) // the locks with it
			return nil
		})
	}
	return group.Wait()
}

func (s *snapshotter) table(ctx context.Context, tables *postgres.Snapshot, session int, folder *snapshot.Folder, i int, t *snapshot.Table, p *progress) error {
	began := time.Now()
	file, err := folder.Table(i+1, t.Schema, t.Name)
	if err != nil {
		return err
	}
	p.files[i].Store(file)
	rows, err := tables.Copy(ctx, session, i, file)
	if err != nil {
		file.Abandon()
		return err
	}
	if err := file.Finish(t); err != nil {
		return err
	}
	if rows != t.Rows {
		return fmt.Errorf("copy table %q.%q: the server counts %d rows, there are %d", t.Schema, t.Name, rows, t.Rows)
	}
	p.done[i].Store(true)
	level := slog.LevelInfo
	if s.cfg.Progress != nil {
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, "table copied", "table", t.Schema+"."+t.Name,
		"num_rows", t.Rows, "num_bytes", t.Bytes, "duration", since(began))
	return nil
}
