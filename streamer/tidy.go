package streamer

import (
	"context"
	"errors"
	"strings"
	"time"

	"millrace/streamer/changelog"
	"millrace/streamer/source/postgres"
)

const (
	// tidyEvery is how often the owner looks for slots of dead incarnations, and
	// tidyGrace how long after it became one its predecessor may still use his.
	tidyEvery = 15 * time.Second
	tidyGrace = 2 * time.Second
)

// tidy looks for slots of dead incarnations now and then, once the log is ours. What it
// cannot do now it will try again.
func (s *service) tidy(ctx context.Context, c *claimer, live *stream) error {
	if !live.isOurs(ctx) {
		return nil
	}
	for end, pause := false, tidyGrace; ; end, pause = true, tidyEvery {
		err := s.backedUp(ctx, max(live.head, live.made))
		if err == nil {
			err = c.tidy(ctx, live.claim, end)
		}
		if err != nil && !errors.Is(err, errNotBackedUp) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "could not drop the slots of dead streamers", "err", err)
		}
		if !wait(ctx, pause) {
			return nil
		}
	}
}

// tidy drops the slots of incarnations that are gone. Only the owner does that, in two
// steps: first the row is condemned, which bars it from taking the log [R19]. With end a
// walsender of ours that still uses such a slot is ended.
func (c *claimer) tidy(ctx context.Context, me claim, end bool) error {
	dead, err := c.ledger.Dead(ctx, me.owner)
	if err != nil {
		return err
	}
	for _, d := range dead {
		if !strings.HasPrefix(d.Slot, slotBrand) {
			if err := c.leave(ctx, me, d); err != nil {
				return err
			}
			continue
		}
		slot, err := c.ledger.Condemn(ctx, d.ID, me.owner, me.replicaVersion)
		if err != nil {
			return err
		}
		err = c.upstream.DropSlot(ctx, slot)
		if errors.Is(err, postgres.ErrSlotInUse) && end {
			err = c.endAndDrop(ctx, slot)
		}
		if errors.Is(err, postgres.ErrSlotInUse) {
			if end {
				c.log.WarnContext(ctx, "left the slot of a dead streamer", "slot", slot, "err", err)
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := c.ledger.Retire(ctx, d.ID, true); err != nil {
			return err
		}
		c.log.InfoContext(ctx, "dropped the slot of a dead streamer", "slot", slot)
	}
	return nil
}

// leave says, once, that a shared slot is used no more. It is not ours to drop. One that
// was dropped is forgotten.
func (c *claimer) leave(ctx context.Context, me claim, d changelog.Incarnation) error {
	slot, err := c.upstream.Slot(ctx, d.Slot)
	if err != nil {
		return err
	}
	if _, err := c.ledger.Condemn(ctx, d.ID, me.owner, me.replicaVersion); err != nil { // also shows that the log is ours
		return err
	}
	if !slot.Exists {
		return c.ledger.Retire(ctx, d.ID, true)
	}
	if c.left[d.Slot] {
		return nil
	}
	if c.left == nil {
		c.left = map[string]bool{}
	}
	c.left[d.Slot] = true
	c.log.WarnContext(ctx, "left a shared slot that the log does not go on from; it keeps WAL: drop it if nobody needs it", "slot", d.Slot)
	return nil
}

func (c *claimer) endAndDrop(ctx context.Context, slot string) error {
	ended, err := c.upstream.EndHolder(ctx, slot)
	if err != nil {
		return err
	}
	if ended {
		c.log.WarnContext(ctx, "ended the walsender of a dead streamer", "slot", slot)
		if err := c.upstream.WaitFree(ctx, slot, holderWait); err != nil {
			return err
		}
	}
	return c.upstream.DropSlot(ctx, slot)
}
