package streamer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"millrace/streamer/change"
	"millrace/streamer/changelog"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

// zeroWalsender is the application name of the walsender of Zero's replication manager.
const zeroWalsender = "zero-replicator"

// shareable says whether the shared slot continues the log. Whoever uses it now must be
// one that may be ended once the log is ours [R14]; he is given --slot-wait to leave it.
func (c *claimer) shareable(ctx context.Context, start changelog.Start) error {
	name := c.cfg.Slot
	if err := c.upstream.WaitFree(ctx, name, c.cfg.SlotWait); err != nil && !errors.Is(err, postgres.ErrSlotInUse) {
		return err
	}
	slot, err := c.upstream.Slot(ctx, name)
	if err != nil {
		return err
	}
	if err := c.ours(ctx, slot, start); err != nil {
		return err
	}
	now, err := c.unchanged(ctx, start, name)
	if err != nil {
		return err
	}
	if err := c.reached(ctx, now); err != nil {
		return err
	}
	err = covered(now, name, slot)
	var state *source.StateError
	switch {
	case !errors.As(err, &state):
		return err
	case start.Slot != "" && start.Slot != name:
		return c.otherSlot(ctx, start, state)
	case state.State != stateHole || !ofZero(now):
		return err // whoever of us wrote the log has confirmed nothing before it was there
	case !c.cfg.Adopt:
		state.Hint = "a log that Zero has written looks so although nothing is missing: " +
			"if it does, or if you know of a replica made from this slot, accept it with --adopt; otherwise " + state.Hint
		return state
	}
	return c.whole(ctx, now)
}

// otherSlot says that a slot does not continue a log that another one continues. That is
// no reason for a reset, unless the other one is of no use any more.
func (c *claimer) otherSlot(ctx context.Context, start changelog.Start, why *source.StateError) error {
	own, err := c.upstream.Slot(ctx, start.Slot)
	if err != nil {
		return err
	}
	if usable(start.Slot, own) != nil {
		return why
	}
	return &source.StateError{
		State:  stateSlotUnfit,
		Detail: why.Detail,
		Hint: fmt.Sprintf("the log goes on from slot %q, and nothing is lost: correct the name, or start without --slot; "+
			"to begin with another slot, make it while a process runs, and start a second one with it beside that", start.Slot),
	}
}

// ofZero says whether a log may be Zero's still: its owner is none of ours, which register,
// or has died before it wrote down anything of its own. Then a slot past the head may be
// taken for a quiet one: Zero confirms what it has been shown, and writes down nothing of it.
func ofZero(start changelog.Start) bool {
	return start.Owner != "" && (start.Slot == "" || start.Streamed == "")
}

// ours says whether the shared slot is of the right kind, and is used by nobody but those
// whom the next owner of the log may end.
func (c *claimer) ours(ctx context.Context, slot postgres.SlotState, start changelog.Start) error {
	name := c.cfg.Slot
	switch {
	case !slot.Exists:
		return nil
	case !slot.Here || slot.Plugin != postgres.Plugin:
		return &source.StateError{
			State:  postgres.StateSlotForeign,
			Detail: fmt.Sprintf("slot %q is for plugin %q and database %q", name, slot.Plugin, slot.Database),
			Hint:   fmt.Sprintf("name another slot, one for plugin %q and the upstream's database", postgres.Plugin),
		}
	case strings.HasPrefix(name, slotBrand) && name != start.Slot:
		return &source.StateError{
			State:  postgres.StateSlotForeign,
			Detail: fmt.Sprintf("slot %q has a name that processes give to slots of their own", name),
			Hint:   "it may be that of another log: name another slot",
		}
	case !slot.Active:
		return nil
	case !slices.Contains(c.endable(start), slot.ActiveApplication):
		return &source.StateError{
			State: postgres.StateSlotInUse,
			Detail: fmt.Sprintf("slot %q is in use by pid %d, application %q, not by the owner of the log",
				name, slot.ActivePID, slot.ActiveApplication),
			Hint: "stop that process first, or name another slot",
		}
	}
	return c.upstream.MayEndHolder(ctx, name)
}

// endable are the applications whose walsender may be ended to have the shared slot: ours,
// if it is the slot of this log, for another log may use it, too; and Zero's.
func (c *claimer) endable(start changelog.Start) (applications []string) {
	if start.Slot == c.cfg.Slot {
		applications = append(applications, postgres.ApplicationName)
	}
	if ofZero(start) {
		applications = append(applications, zeroWalsender)
	}
	return applications
}

// whole says whether the log's last transaction is at its head, as it must be if somebody
// else has written it.
func (c *claimer) whole(ctx context.Context, start changelog.Start) error {
	block := change.NewBlock(0, 0, 0)
	last, err := c.pages.Read(ctx, watermark.Position{Watermark: start.Head, Pos: -1}, block)
	if err != nil {
		return err
	}
	first := ""
	if last.Run.Len() > 0 {
		first = last.Run.Tx(0).Watermark
	}
	behind, err := c.pages.Read(ctx, watermark.After(start.Head), block)
	if err != nil {
		return err
	}
	end := start.Head
	if n := behind.Run.Len(); n > 0 {
		end = behind.Run.Tx(n - 1).Watermark
	}
	// Whoever writes it may go on meanwhile: rows and head of one page are of one snapshot.
	if first == start.Head && end <= behind.Head {
		return nil
	}
	return &source.StateError{
		State:  stateHole,
		Detail: fmt.Sprintf("the state says that the log ends at %s, but that is not its last transaction", start.Head),
		Hint:   "it was not written to the end; " + resetHint,
	}
}

// share makes the shared slot ours, now that the log is: whoever uses it is ended. What it
// was confirmed past the head is written down if that was accepted.
func (c *claimer) share(ctx context.Context, me claim, start changelog.Start) error {
	if err := c.endHolder(ctx, me.slot, start); err != nil {
		return err
	}
	if !c.cfg.Adopt || !ofZero(start) {
		return nil
	}
	slot, err := c.upstream.Slot(ctx, me.slot)
	if err != nil {
		return err
	}
	now, err := c.unchanged(ctx, changelog.Start{ReplicaVersion: me.replicaVersion, Owner: me.owner, Slot: me.slot}, me.slot)
	if err != nil {
		return err
	}
	confirmed := watermark.FromLSN(slot.Confirmed - 1)
	if confirmed <= max(now.Head, now.Streamed) {
		return nil
	}
	owned, err := c.ledger.ReportProgress(ctx, me.owner, me.replicaVersion, confirmed)
	if err == nil && !owned {
		err = fmt.Errorf("%w: it has taken the log already", source.ErrNotOwner)
	}
	if err != nil {
		return err
	}
	c.log.WarnContext(ctx, "took it that the log is whole although its slot is further on", "slot", me.slot,
		"watermark", now.Head, "cause", "confirmed up to "+confirmed)
	return nil
}

// endHolder ends the walsender that uses the shared slot.
func (c *claimer) endHolder(ctx context.Context, slot string, start changelog.Start) error {
	ended, err := c.upstream.EndHolder(ctx, slot, c.endable(start)...)
	if err != nil {
		return err
	}
	if ended {
		c.log.InfoContext(ctx, "ended the walsender that used the slot", "slot", slot)
	}
	err = c.upstream.WaitFree(ctx, slot, holderWait)
	if errors.Is(err, postgres.ErrSlotInUse) {
		return nil // the stream tries again, and says who has it
	}
	return err
}

// firstShared returns the shared slot for a history that begins with it. One that
// is further than the history that is dropped is taken as it is: a replica that is made
// now can follow. One that is lost, or as old as that, is made again.
func (c *claimer) firstShared(ctx context.Context, dropped *changelog.Start) (claim, error) {
	me, err := c.registered(ctx)
	if err != nil {
		return claim{}, err
	}
	name := c.cfg.Slot
	slot, err := c.upstream.Slot(ctx, name)
	if err != nil {
		return claim{}, err
	}
	if err := c.ours(ctx, slot, seen(dropped)); err != nil {
		return claim{}, err
	}
	behind := watermark.FromLSN(slot.Confirmed - min(1, slot.Confirmed))
	if slot.Exists && !slot.Lost && (dropped == nil || behind > dropped.ReplicaVersion) {
		me.slot, me.replicaVersion, me.head = name, behind, behind
		return me, nil
	}
	if slot.Exists {
		if err := c.upstream.DropSlot(ctx, name); err != nil {
			return claim{}, err
		}
	}
	if err := c.create(ctx, name); err != nil {
		return claim{}, err
	}
	return c.me, nil
}

// seen is the log that is dropped, or none.
func seen(dropped *changelog.Start) changelog.Start {
	if dropped == nil {
		return changelog.Start{}
	}
	return *dropped
}
