package changelog

import (
	"context"
	"fmt"
	"time"

	"millrace/db"
)

// lookEvery is how often a newcomer that has nothing to do looks at the log.
const lookEvery = time.Second

// stepNewcomer is a step while somebody else owns the log. Whatever he has stored is left
// out. What may be past his head is offered to the log, which decides under the lock of
// the state row whether it is stored, and the log with it is ours: one batch at a time,
// since nobody knows before where the head will be.
func (s *Store) stepNewcomer(ctx context.Context) (done bool, err error) {
	if ctx.Err() != nil {
		return true, nil // what is not ours is not drained
	}
	if mark := s.markAtHead(); mark != "" {
		return false, s.assumeAtHead(mark)
	}
	switch s.gather() {
	case nothing:
		return false, s.waitNewcomer(ctx)
	case tooLarge:
		if done, err := s.storeLarge(ctx); done || err != nil {
			return done, err
		}
		return false, s.look()
	}
	if s.batch.last <= s.known {
		s.advance(s.batch.next, s.batch.last)
		return false, nil
	}
	if err := s.send(); err != nil {
		return false, err
	}
	if err := s.land(); err != nil {
		return false, err
	}
	return false, s.look()
}

// markAtHead returns a watermark up to which the stream has shown everything, and the log
// may hold it all; or nothing.
func (s *Store) markAtHead() string {
	mark, seq, ok := s.cfg.Tail.Mark()
	if !ok || seq > s.stored || mark < s.known {
		return ""
	}
	return mark
}

// assumeAtHead takes the log over although nothing is to be stored: on an idle upstream
// there may be nothing for long.
func (s *Store) assumeAtHead(mark string) error {
	since := time.Now()
	err := s.link.call(func(ctx context.Context) error {
		_, err := db.New().AssumeOwnershipAtHead(ctx, s.link.conn, db.AssumeOwnershipAtHeadParams{
			Owner:          s.cfg.Owner,
			OwnerAddress:   orNull(s.cfg.Address),
			ReplicaVersion: s.cfg.ReplicaVersion,
			Watermark:      mark,
			ExpectedHead:   s.head,
		})
		return err
	})
	if refused, ok := alive(err); ok {
		return s.refused(refused, since, "take the log over at "+mark)
	}
	if err != nil {
		return fmt.Errorf("take the log over at %s: %w", mark, err)
	}
	return s.look()
}

// look reads how far the log is, and whose. It must be of the same history, and hold what
// we know to be durable.
func (s *Store) look() error {
	bounds, err := s.bounds()
	if err != nil {
		return err
	}
	ours := bounds.Owner == s.cfg.Owner
	if bounds.ReplicaVersion != s.cfg.ReplicaVersion || !ours && !s.newcomer {
		return s.lost(bounds)
	}
	if bounds.Head < s.head {
		return fmt.Errorf("%w: its head is %s, and was %s", ErrFellBack, bounds.Head, s.head)
	}
	s.known = bounds.Head
	if ours {
		s.lastOwned = time.Now()
	}
	if ours && s.newcomer {
		s.newcomer = false
		s.cfg.Assumed(bounds.Head)
	}
	return nil
}

// waitNewcomer waits for more from the tail, and looks at the log now and then.
func (s *Store) waitNewcomer(ctx context.Context) error {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case <-s.cfg.Tail.StoreWake():
	case <-ctx.Done():
	case <-timer.C:
		return s.look()
	}
	return nil
}
