package streamer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"millrace/streamer/backup"
)

const (
	// markEvery is how exactly the age of the log is known at best, and marksAtAll how
	// exactly relative to what is kept.
	markEvery  = time.Minute
	marksAtAll = 100
	// markPoll is how often it is looked whether so much was stored that it is worth a mark.
	markPoll = time.Second
	// backupPoll is how soon a backup is known that somebody has reported.
	backupPoll = 500 * time.Millisecond
)

// cleanUp purges the log as far as backups, or the retention, and subscribers allow. A new
// owner purges nothing at first: subscribers of the one before are on their way [R24].
func (s *service) cleanUp(ctx context.Context, live *stream) error {
	if !live.isOurs(ctx) {
		return nil
	}
	cleanup, err := backup.NewCleanup(backup.CleanupConfig{
		Limits:  s.limits,
		Holders: s.holders,
		Purge: func(ctx context.Context, before string) (int64, bool, bool, error) {
			return s.ledger.Purge(ctx, live.owner, live.replicaVersion, before)
		},
		Report: func(ctx context.Context, floor, holder string) error {
			return s.ledger.ReportFloor(ctx, live.owner, live.replicaVersion, floor, holder)
		},
		Lost:   lostLog,
		Every:  s.cfg.CleanupEvery,
		Logger: s.cfg.Logger,
	})
	if err != nil {
		return err
	}
	return cleanup.Run(ctx)
}

// limits are what the log may be purged up to.
func (s *service) limits(ctx context.Context) (limits backup.Limits, err error) {
	if s.cfg.BackupURL != "" {
		limits.Why = "backup"
		limits.Soft, _, err = s.ledger.Backup(ctx)
		return limits, err
	}
	limits.Why = "retention"
	if s.cfg.Retention > 0 {
		if limits.Soft, err = s.ledger.Retained(ctx, s.cfg.Retention, 0); err != nil {
			return limits, err
		}
	}
	if s.cfg.RetentionBytes > 0 {
		limits.Hard, err = s.ledger.Retained(ctx, 0, s.cfg.RetentionBytes)
	}
	return limits, err
}

// mark marks the end of the log now and then, so that its age and size are known.
func (s *service) mark(ctx context.Context, live *stream, stored func() int64) error {
	if !live.isOurs(ctx) {
		return nil
	}
	every := markEvery
	if s.cfg.Retention > 0 {
		every = min(every, max(markPoll, s.cfg.Retention/marksAtAll))
	}
	marked, due := stored(), time.Now()
	for {
		bytes := stored() - marked
		if now := time.Now(); !now.Before(due) || s.cfg.RetentionBytes > 0 && bytes > s.cfg.RetentionBytes/marksAtAll {
			err := s.ledger.Mark(ctx, live.owner, live.replicaVersion, bytes)
			switch {
			case err == nil:
				marked += bytes
				due = now.Add(every)
			case lostLog(err):
				return err
			case ctx.Err() == nil:
				s.log.WarnContext(ctx, "could not mark the end of the log", "err", err)
			}
		}
		if !wait(ctx, markPoll) {
			return nil
		}
	}
}

// backups learns how far the backup is, whoever reports it, and lets upstream forget what
// is in it.
func (s *service) backups(ctx context.Context, live *stream) error {
	known := ""
	for {
		watermark, _, err := s.ledger.Backup(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			s.log.WarnContext(ctx, "could not ask for the backup", "err", err)
		case watermark > known:
			known = watermark
			live.acker.BackedUp(watermark)
		}
		if !wait(ctx, backupPoll) {
			return nil
		}
	}
}

// holder names a subscriber for people.
func holder(taskID, id string) string { return fmt.Sprintf("subscriber %s of task %s", id, taskID) }

// errNotBackedUp says that a backup has not come as far as it must.
var errNotBackedUp = errors.New("the backup has not come as far")

// backedUp says whether the backup, if there is to be one, has come as far as a watermark.
// Until it has the slots of those before us stay: what they keep is what a lost change
// database could be made again from [R19].
func (s *service) backedUp(ctx context.Context, watermark string) error {
	if s.cfg.BackupURL == "" {
		return nil
	}
	backup, _, err := s.ledger.Backup(ctx)
	if err == nil && backup < watermark {
		return errNotBackedUp
	}
	return err
}

// gauge reads how far the backup is from whoever makes it, and reports it like anybody.
func (s *service) gauge(ctx context.Context, live *stream) error {
	if s.cfg.BackupMetricsURL == "" || !live.isOurs(ctx) {
		return nil
	}
	gauge, err := backup.NewGauge(backup.GaugeConfig{
		URL: s.cfg.BackupMetricsURL,
		Report: func(ctx context.Context, r backup.Report) error {
			return s.ledger.ReportBackup(ctx, r.Watermark, live.replicaVersion, r.At)
		},
		Head: func(ctx context.Context) (string, error) {
			bounds, _, err := s.ledger.Bounds(ctx)
			return bounds.Head, err
		},
		Logger: s.cfg.Logger,
	})
	if err != nil {
		return err
	}
	return gauge.Run(ctx)
}

// newReservations are those of subscribers that restore the backup that is reported.
func (s *service) newReservations(live *stream) (*backup.Reservations, error) {
	return backup.NewReservations(backup.ReservationsConfig{
		Open: func(ctx context.Context, taskID string) (int64, error) {
			return s.ledger.OpenReservation(ctx, live.owner, live.replicaVersion, taskID)
		},
		Confirm: s.ledger.ConfirmReservation,
		Close:   s.ledger.CloseReservation,
		Restorable: func(ctx context.Context) (backup.Status, bool, error) {
			return s.restorable(ctx, live)
		},
		MaxAge: max(0, s.cfg.ReservationMaxAge),
		Logger: s.cfg.Logger,
	})
}

// restorable is the backup that a subscriber can restore now, and be caught up from.
func (s *service) restorable(ctx context.Context, live *stream) (status backup.Status, found bool, err error) {
	watermark, _, err := s.ledger.Backup(ctx)
	if err != nil || watermark == "" {
		return status, false, err
	}
	bounds, found, err := s.ledger.Bounds(ctx)
	switch {
	case err != nil:
		return status, false, err
	case !found || bounds.ReplicaVersion != live.replicaVersion:
		return status, false, nil
	case watermark < bounds.Minimum:
		return status, false, fmt.Errorf("the backup at %s is before the beginning of the log at %s: "+
			"make a newer one, since nobody who restores it can be caught up", watermark, bounds.Minimum)
	}
	return backup.Status{ReplicaVersion: live.replicaVersion, Watermark: watermark}, true, nil
}
