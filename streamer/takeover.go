package streamer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"millrace/streamer/changelog"
	"millrace/streamer/source/postgres"
)

const (
	// coverPoll is how often a newcomer looks whether the log covers its slot.
	coverPoll = 100 * time.Millisecond
	// hurryEvery is how often it has upstream write something that hurries the owner.
	hurryEvery = time.Second
	// tellEvery is how often it tells that it still waits.
	tellEvery = 10 * time.Second
	// renewEvery is how often it says that it is alive, and keeps its lock.
	renewEvery = 5 * time.Second
	// firstPause and lastPause bound the pause before a process listens for take-overs again.
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// follow gets ready to take the log over from an owner that lives: it makes a slot,
// announces itself, and waits until the log covers the slot. From then on purges are
// locked out [R24], and whatever the slot sends is past the head or in the log.
func (c *claimer) follow(ctx context.Context, start changelog.Start) (claim, error) {
	me, err := c.makeSlot(ctx)
	if err != nil {
		return claim{}, err
	}
	me.replicaVersion, me.publications, me.from = start.ReplicaVersion, start.Publications, start.Owner
	c.log.InfoContext(ctx, "getting ready to take the log over", "owner", me.owner, "slot", me.slot,
		"cause", fmt.Sprintf("it is owned by %s at %s", start.Owner, start.OwnerAddress))
	if me.purge, err = c.ledger.NewPurgeLock(ctx); err != nil {
		return claim{}, err
	}
	now, err := c.waitCovered(ctx, me)
	if err != nil {
		me.purge.Release(ctx)
		return claim{}, err
	}
	me.head = now.Head
	return me, nil
}

// waitCovered waits until the log covers our slot, or the owner's slot becomes free: then
// nobody may ever make it do so [R15].
func (c *claimer) waitCovered(ctx context.Context, me claim) (changelog.Start, error) {
	var hurried time.Time
	told := time.Now()
	for {
		if err := c.ledger.Announce(ctx, me.owner, me.replicaVersion); err != nil {
			return changelog.Start{}, err
		}
		status, err := me.purge.Acquire(ctx, me.made)
		if err != nil {
			return changelog.Start{}, err
		}
		now, found, err := c.ledger.Start(ctx)
		switch {
		case err != nil:
			return changelog.Start{}, err
		case !found:
			return changelog.Start{}, fmt.Errorf("%w: the log was emptied", errFaster)
		case status == changelog.PurgeLocked:
			return now, nil
		}
		if time.Since(hurried) > hurryEvery {
			hurried = time.Now()
			c.log.DebugContext(ctx, "waiting until the log covers the slot", "slot", me.slot, "watermark", me.made)
			if err := c.upstream.EmitMessage(ctx, messagePrefix(c.cfg.AppID, c.cfg.Shard), me.owner); err != nil {
				c.log.DebugContext(ctx, "could not hurry the owner", "err", err) // it gets there by itself
			}
		}
		if now.Slot == "" {
			if !wait(ctx, coverPoll) {
				return changelog.Start{}, ctx.Err()
			}
			continue
		}
		err = c.upstream.WaitFree(ctx, now.Slot, coverPoll)
		switch {
		case err == nil:
			return changelog.Start{}, fmt.Errorf("%w: its slot %q is free", errOwnerGone, now.Slot)
		case !errors.Is(err, postgres.ErrSlotInUse):
			return changelog.Start{}, err
		case time.Since(told) > tellEvery:
			told = time.Now()
			c.log.WarnContext(ctx, "the owner of the log has not come as far as the new slot yet", "slot", me.slot,
				"owner", now.Owner, "watermark", max(now.Head, now.Streamed), "cause", "the slot begins behind "+me.made, "err", err)
		}
	}
}

// wait waits for d. It returns false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stay keeps a newcomer's place until the log is ours: its row is renewed, and the log is
// not purged.
func (s *service) stay(ctx context.Context, live *stream) error {
	lock := live.purge
	defer func() { lock.Release(ctx) }()
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-live.owned:
			return nil
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		err := s.ledger.Announce(ctx, live.owner, live.replicaVersion)
		if errors.Is(err, changelog.ErrOwnershipLost) {
			return err
		}
		if err == nil {
			err = lock.Ping(ctx)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		s.log.WarnContext(ctx, "lost the lock against purges", "err", err)
		lock.Release(ctx)
		again, err := s.ledger.NewPurgeLock(ctx)
		if err != nil {
			continue // with the old one, whose next ping fails
		}
		lock = again
		if _, err := lock.Acquire(ctx, ""); err != nil {
			s.log.WarnContext(ctx, "could not lock the log against purges", "err", err)
		}
	}
}

// watch ends with an error as soon as the log is somebody else's. The store finds that
// out, too, at its next call; this is faster when there is nothing to store [H 24].
func (s *service) watch(ctx context.Context, live *stream) error {
	pause := firstPause
	for {
		began := time.Now()
		err := s.ledger.Listen(ctx, s.cfg.Schema, func(ctx context.Context) error {
			_, err := s.allowed(ctx, live)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case lostLog(err):
			return err
		case time.Since(began) > lastPause:
			pause = firstPause
		}
		s.log.DebugContext(ctx, "listening again for take-overs", "err", err)
		if !wait(ctx, pause) {
			return nil
		}
		pause = min(2*pause, lastPause)
	}
}
