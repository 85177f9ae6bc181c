package changelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/db"
)

// resume reads where the log stands after a connection was made. What lies between what
// we know to be durable and its head was sent before, and is left out when it is sent
// again.
func (s *Store) resume() error {
	if err := s.look(); err != nil {
		return err
	}
	s.resumeLarge(s.known)
	return nil
}

func (s *Store) bounds() (bounds db.CatchupBoundsRow, err error) {
	err = s.link.call(func(ctx context.Context) error {
		bounds, err = db.New().CatchupBounds(ctx, s.link.conn)
		return err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return bounds, fmt.Errorf("%w: the log is not initialised any more", ErrOwnershipLost)
	case err != nil:
		return bounds, fmt.Errorf("read the bounds of the log: %w", err)
	}
	return bounds, nil
}

// lost says who has the log.
func (s *Store) lost(bounds db.CatchupBoundsRow) error {
	owner := bounds.Owner
	if owner == "" {
		owner = "nobody"
	}
	return fmt.Errorf("%w: it is owned by %s at replica version %s, not by %s at %s",
		ErrOwnershipLost, owner, bounds.ReplicaVersion, s.cfg.Owner, s.cfg.ReplicaVersion)
}

// pendingMark returns the mark to be recorded, or nothing: one that is not stored up to
// yet, or at or below the head, says nothing new.
func (s *Store) pendingMark() string {
	mark, seq, ok := s.cfg.Tail.Mark()
	if !ok || seq > s.stored || mark <= s.reported || mark <= s.head {
		return ""
	}
	return mark
}

// reportDue says that the log must be told, or asked, something now.
func (s *Store) reportDue(stopping bool) bool {
	now := time.Now()
	if now.Sub(s.lastOwned) >= s.cfg.OwnerCheckEvery && !stopping {
		return true
	}
	return (stopping && len(s.flights) == 0 || now.Sub(s.lastReport) >= s.cfg.ProgressEvery) && s.pendingMark() != ""
}

// report records the newest mark [R10], or the last one again, which shows whether we
// still own the log. Only what is recorded may be confirmed upstream [R12].
func (s *Store) report() error {
	mark := s.pendingMark()
	value := max(mark, s.reported, s.head)
	since := time.Now()
	s.lastReport = since
	var owned bool
	err := s.link.call(func(ctx context.Context) (err error) {
		owned, err = db.New().ReportProgress(ctx, s.link.conn, db.ReportProgressParams{
			Owner:             s.cfg.Owner,
			ReplicaVersion:    s.cfg.ReplicaVersion,
			StreamedWatermark: value,
		})
		return err
	})
	if refused, ok := alive(err); ok {
		s.lastOwned = since // asked; the answer has to wait
		return s.refused(refused, since, "report progress at "+value)
	}
	if err != nil {
		return fmt.Errorf("report progress at %s: %w", value, err)
	}
	if !owned {
		bounds, err := s.bounds()
		if err != nil {
			return err
		}
		return s.lost(bounds)
	}
	s.lastOwned = time.Now()
	s.timeouts = 0
	if mark != "" {
		s.reported = mark
		s.cfg.Shown(mark)
	}
	return nil
}

// wait waits until the tail has something, or until it is time to report or to look.
func (s *Store) wait(ctx context.Context) {
	due := s.lastOwned.Add(s.cfg.OwnerCheckEvery)
	if s.pendingMark() != "" {
		if report := s.lastReport.Add(s.cfg.ProgressEvery); report.Before(due) {
			due = report
		}
	}
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-s.cfg.Tail.StoreWake():
	case <-ctx.Done():
	case <-timer.C:
	}
}
