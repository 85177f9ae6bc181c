package streamer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"millrace/streamer/changelog"
	"millrace/streamer/snapshot"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

const (
	// fitWait is how long a log may take to record what its slot was confirmed up to.
	fitWait = 5 * time.Second
	fitPoll = 100 * time.Millisecond

	// stateLogForeign says that a log has nothing to do with an upstream.
	stateLogForeign = "log-foreign"
)

// errNoFit says that slot and log do not go together, as far as can be seen at the moment.
var errNoFit = errors.New("the slot is past the log")

// covers says whether the log still goes on from the snapshot [R23].
func (s *snapshotter) covers(ctx context.Context, m *snapshot.Manifest) error {
	now, err := s.start(ctx)
	switch {
	case err != nil:
		return err
	case now.ReplicaVersion != m.ReplicaVersion:
		return fmt.Errorf("the log was reset while the tables were copied: it is at replica version %s now, and was at %s; begin again",
			now.ReplicaVersion, m.ReplicaVersion)
	case now.Minimum > m.Watermark:
		return fmt.Errorf("the log was purged past the copy while the tables were copied: it begins at watermark %s now, the copy stands at %s; "+
			"begin again, and let the log keep more: --retention of streamer serve", now.Minimum, m.Watermark)
	}
	return nil
}

// start reads the state of the log.
func (s *snapshotter) start(ctx context.Context) (changelog.Start, error) {
	start, found, err := s.ledger.Start(ctx)
	if err != nil {
		log := Config{ChangeDB: s.cfg.ChangeDB, UpstreamDB: s.cfg.UpstreamDB, Schema: s.cfg.Schema}
		return start, log.explainLog(err)
	}
	if !found {
		return start, &source.StateError{
			State:  stateLogMissing,
			Detail: fmt.Sprintf("schema %q of the change database has a log that was never begun", s.cfg.Schema),
			Hint:   "run streamer serve, which begins it, or name the schema of the log",
		}
	}
	return start, nil
}

// fits reads the state of the log and looks whether it is that of the upstream: the slot
// that continues it is there, and goes on where the log ends.
func (s *snapshotter) fits(ctx context.Context) (changelog.Start, error) {
	limit := time.Now().Add(fitWait)
	for {
		start, err := s.fit(ctx)
		if !errors.Is(err, errNoFit) || time.Now().After(limit) {
			return start, err
		}
		if !wait(ctx, fitPoll) { // somebody takes the log over, or has only begun to stream
			return start, ctx.Err()
		}
	}
}

func (s *snapshotter) fit(ctx context.Context) (changelog.Start, error) {
	start, err := s.start(ctx)
	if err != nil {
		return start, err
	}
	if start.Slot == "" {
		s.log.WarnContext(ctx, "no slot of the log is known, so nobody can tell whether it is the upstream's", "owner", start.Owner)
		return start, s.reached(ctx, start)
	}
	slot, err := s.upstream.Slot(ctx, start.Slot)
	if err != nil {
		return start, s.explainUpstream(err)
	}
	// Read after the slot, or one that is covered would look like a hole.
	now, err := s.start(ctx)
	switch {
	case err != nil:
		return now, err
	case now.Slot != start.Slot:
		return now, fmt.Errorf("%w: the log went from slot %s to %s", errNoFit, start.Slot, now.Slot)
	case !slot.Exists || !slot.Here:
		return now, &source.StateError{
			State:  stateLogForeign,
			Detail: fmt.Sprintf("%s has no replication slot %s, which continues the log", s.upstream, now.Slot),
			Hint:   "name the upstream that the log is made from; if it is this one, the log cannot go on: see slot-missing",
		}
	case slot.Lost:
		return now, &source.StateError{
			State:  postgres.StateSlotLost,
			Detail: fmt.Sprintf("the server has removed WAL that slot %s needs, so the log cannot go on", now.Slot),
			Hint:   "reset the log with streamer serve --auto-reset first",
		}
	}
	if err := s.reached(ctx, now); err != nil {
		return now, err
	}
	if last := watermark.FromLSN(postgres.ReplicaVersion(slot.Confirmed)); last > max(now.Head, now.Streamed) {
		return now, &source.StateError{
			State: stateLogForeign,
			Detail: fmt.Sprintf("slot %s of %s goes on behind %s, but the log ends at %s",
				now.Slot, s.upstream, last, max(now.Head, now.Streamed)),
			Hint: "name the upstream that the log is made from; if it is this one, see hole",
			Err:  errNoFit,
		}
	}
	return now, nil
}

// reached says whether the upstream has come as far as the log: one that has not is
// another one, or has lost commits.
func (s *snapshotter) reached(ctx context.Context, start changelog.Start) error {
	end, err := s.upstream.WALEnd(ctx)
	if err != nil {
		return s.explainUpstream(err)
	}
	if written := watermark.FromLSN(end); max(start.Head, start.Streamed) > written {
		return &source.StateError{
			State: stateAhead,
			Detail: fmt.Sprintf("the log ends at %s, but %s has written no further than %s",
				max(start.Head, start.Streamed), s.upstream, written),
			Hint: "look whether it is the upstream of the log, or has lost commits in a failover",
		}
	}
	return nil
}

func (s *snapshotter) explainUpstream(err error) error {
	var connecting *pgconn.ConnectError
	if !errors.As(err, &connecting) {
		return err
	}
	return ExplainDatabase(err, "upstream", s.cfg.Schema)
}

// report tells the log that it need not keep what lies before the copy.
func (s *snapshotter) report(ctx context.Context, m *snapshot.Manifest) error {
	err := s.ledger.ReportBackup(ctx, m.Watermark, m.ReplicaVersion, time.Now())
	if err == nil {
		return s.newest(ctx, m)
	}
	const insufficientPrivilege, undefinedFunction = "42501", "42883"
	schema := pgx.Identifier{s.cfg.Schema}.Sanitize()
	call := fmt.Sprintf("select %s.report_backup(watermark => '%s', replica_version => '%s')", schema, m.Watermark, m.ReplicaVersion)
	complete := fmt.Sprintf("the snapshot in %s is complete, but was not reported as a backup", s.cfg.Folder)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == insufficientPrivilege {
		return &source.StateError{
			State: postgres.StatePermissionMissing, Err: refused,
			Detail: fmt.Sprintf("%s: user %q of the change database may not", complete, s.role),
			Hint: fmt.Sprintf("as the owner of the log run: grant execute on function %s.report_backup(text, text, timestamptz) to %s; "+
				"then report it: %s; or use --no-report", schema, pgx.Identifier{s.role}.Sanitize(), call),
		}
	}
	return fmt.Errorf("%s: %w; report it: %s", complete, err, call)
}

// newest looks whether another backup is further on: a report that is behind it changes
// nothing, and the log may be purged past this one at any time.
func (s *snapshotter) newest(ctx context.Context, m *snapshot.Manifest) error {
	reported, _, err := s.ledger.Backup(ctx)
	if err != nil {
		return fmt.Errorf("the snapshot in %s is complete, but: %w", s.cfg.Folder, err)
	}
	if reported > m.Watermark {
		s.log.WarnContext(ctx, "a newer backup was reported: the log may be purged past this snapshot", "watermark", reported)
	}
	return nil
}
