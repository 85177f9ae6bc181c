package streamer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"millrace/streamer/changelog"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

const (
	slotLockTimeout = 29 * time.Second
	cleanUpTimeout  = 10 * time.Second
	// claimAttempts bounds how often a start looks again because somebody was faster.
	claimAttempts = 5
	// holderWait is how long a walsender that was told to end may take.
	holderWait = 5 * time.Second
	// slotAttempts bounds how many names are tried that other databases use.
	slotAttempts = 100

	stateSlotUnfit         = "slot-unfit"
	stateHole              = "hole"
	stateAhead             = "log-ahead"
	stateSlotUnknown       = "slot-unknown"
	statePublicationsOther = "publications-differ"
	stateResetRequired     = "reset-required"
)

// resettable are the states of a log that a new history is the way out of. An upstream that
// does not answer, or does not let us in, is none: it may be back the next moment.
var resettable = []string{
	stateResetRequired, statePublicationsOther, stateSlotUnknown, stateHole, stateAhead, postgres.StateSlotMissing, postgres.StateSlotLost,
}

var (
	// errFaster says that another process changed the log while this one was starting.
	errFaster = errors.New("another process was faster")
	// errOwnerLives says that the owner of the log is at work.
	errOwnerLives = errors.New("the owner of the log is at work")
	// errOwnerGone says that it is not any more.
	errOwnerGone = errors.New("the owner of the log has gone")
)

// claim is a log and the slot that continues it.
type claim struct {
	id             int64
	owner          string // who we are
	slot           string
	slotMade       bool   // by us
	made           string // the watermark that it starts behind
	kept           bool   // the log may go on from it
	head           string
	replicaVersion string
	publications   []string

	// purge is held by a newcomer while somebody else owns the log, else nil.
	purge *changelog.PurgeLock
	from  string // who that is
}

// claimer takes the log over at start: an empty one is initialised, one whose owner has
// stopped is continued from the owner's slot [R14], one whose owner lives is followed with
// a slot of our own, one that cannot be continued is refused, or reset if that is allowed.
type claimer struct {
	cfg      Config
	log      *slog.Logger
	upstream *postgres.Upstream
	ledger   *changelog.Ledger
	pages    *changelog.Pages
	address  string

	me   claim           // registered once, so that of two newcomers one is the younger [R18]
	left map[string]bool // slots that others made, and that were told of
}

func (c *claimer) claim(ctx context.Context) (claim, error) {
	for attempt := 1; ; attempt++ {
		got, err := c.try(ctx)
		switch {
		case err == nil:
			return got, nil
		case errors.Is(err, errOwnerGone):
			attempt = 0
		case !errors.Is(err, errFaster) || attempt == claimAttempts:
			c.giveUp(ctx)
			return claim{}, err
		}
		c.log.InfoContext(ctx, "looked at the log again", "cause", err)
	}
}

func (c *claimer) try(ctx context.Context) (claim, error) {
	publications, err := c.publications(ctx)
	if err != nil {
		return claim{}, err
	}
	start, found, err := c.ledger.Start(ctx)
	if err != nil {
		return claim{}, c.cfg.explainLog(err)
	}
	if !found {
		return c.begin(ctx, publications, nil)
	}
	// Not among the reasons for a reset: whoever may not ask must not begin anew either.
	detail, err := c.ledger.Fits(ctx, start.ReplicaVersion, publications)
	if err != nil {
		return claim{}, c.cfg.explainLog(err)
	}
	slot, err := c.continuable(ctx, start, detail)
	var state *source.StateError
	switch {
	case err == nil:
		return c.resume(ctx, start, slot)
	case errors.Is(err, errOwnerLives):
		return c.follow(ctx, start)
	case errors.As(err, &state) && state.State == stateHole && c.cfg.ReplicaWatermark != "":
		return c.beginAgain(ctx, start, slot, state)
	case errors.As(err, &state) && c.cfg.AutoReset && slices.Contains(resettable, state.State):
		c.log.WarnContext(ctx, "reset the change log", "cause", err)
		return c.begin(ctx, publications, &start)
	}
	return claim{}, err
}

func (c *claimer) publications(ctx context.Context) ([]string, error) {
	if len(c.cfg.Publications) > 0 {
		return c.cfg.Publications, nil
	}
	name, err := c.upstream.EnsurePublication(ctx, c.cfg.AppID, c.cfg.Shard)
	return []string{name}, err
}

// continuable returns the slot that continues the log, which must be free unless it is a
// shared one. It waits a while for that; the error wraps errOwnerLives if that is in vain.
// misfit says why the log is not that of the publications.
func (c *claimer) continuable(ctx context.Context, start changelog.Start, misfit string) (slot string, err error) {
	if start.ResetRequired {
		if c.cfg.AutoReset {
			return "", &source.StateError{State: stateResetRequired, Detail: "the log is marked as not to be continued"}
		}
		c.log.ErrorContext(ctx, "went on with a log that is marked as not to be continued, since auto-reset is off",
			"cause", stateResetRequired)
	}
	if misfit != "" {
		return "", &source.StateError{
			State:  statePublicationsOther,
			Detail: misfit,
			Hint:   "name the publications of the log, or allow a reset with --auto-reset",
		}
	}
	if c.cfg.Slot != "" {
		return c.cfg.Slot, c.shareable(ctx, start)
	}
	if start.Slot == "" {
		return "", &source.StateError{
			State:  stateSlotUnknown,
			Detail: fmt.Sprintf("no slot is known that continues the log of owner %q", start.Owner),
			Hint: "name it with --slot if it still exists, which is so when Zero owns the log; " +
				"or give it back in SQL: register_streamer, then assume_ownership with force and slot; otherwise " + resetHint,
		}
	}
	c.log.DebugContext(ctx, "waiting until the slot is free", "slot", start.Slot, "owner", start.Owner)
	inUse := c.upstream.WaitFree(ctx, start.Slot, c.cfg.SlotWait)
	if inUse != nil && !errors.Is(inUse, postgres.ErrSlotInUse) {
		return "", inUse
	}
	state, err := c.upstream.Slot(ctx, start.Slot)
	if err != nil {
		return "", err
	}
	// The owner has gone on while we waited: what the log holds is read after the slot, or
	// a slot that is covered would look like a hole.
	now, err := c.unchanged(ctx, start, start.Slot)
	if err != nil {
		return "", err
	}
	if err := c.reached(ctx, now); err != nil {
		return "", err
	}
	if inUse != nil {
		return "", fmt.Errorf("%w: %q at %q: %w", errOwnerLives, start.Owner, start.OwnerAddress, inUse)
	}
	return start.Slot, covered(now, start.Slot, state)
}

// reached says whether the upstream has come as far as the log. One that has not would
// stream commits that the log takes for what it has, and leaves out.
func (c *claimer) reached(ctx context.Context, start changelog.Start) error {
	end, err := c.upstream.WALEnd(ctx)
	if err != nil {
		return err
	}
	head, err := watermark.LSN(start.Head)
	if err != nil {
		return fmt.Errorf("read the head of the log: %w", err)
	}
	if head > end {
		return &source.StateError{
			State:  stateAhead,
			Detail: fmt.Sprintf("the log ends at %s (%s), but the upstream has written no further than %s", start.Head, head, end),
			Hint: "look whether the upstream is the right one, or has lost commits in a failover, or the log was begun by hand at a " +
				"wrong watermark; what is committed up to there would be lost to the log: allow a reset with --auto-reset",
		}
	}
	return nil
}

// unchanged reads the log's state again. It must still be the history, and the owner,
// that was seen before. The slot may be ours: of a log that nobody owns it is the one that
// was registered last.
func (c *claimer) unchanged(ctx context.Context, seen changelog.Start, ours string) (changelog.Start, error) {
	now, found, err := c.ledger.Start(ctx)
	switch {
	case err != nil:
		return now, err
	case !found || now.ReplicaVersion != seen.ReplicaVersion || now.Owner != seen.Owner ||
		now.Slot != seen.Slot && now.Slot != ours:
		return now, fmt.Errorf("%w: the log is owned by %q now, and continued from slot %q", errFaster, now.Owner, now.Slot)
	}
	return now, nil
}

const resetHint = "what was committed meanwhile is lost to the log; allow a reset with --auto-reset: " +
	"it drops the log, and every subscriber needs a new replica"

// covered says whether the log is complete up to the position from which the slot sends
// [R3]: confirmed - 1 must not be past what the log is known to hold.
func covered(start changelog.Start, name string, slot postgres.SlotState) error {
	if err := usable(name, slot); err != nil {
		return err
	}
	return coveredAt(start, name, watermark.FromLSN(slot.Confirmed-1))
}

// usable says whether a stream can start from a slot at all.
func usable(name string, slot postgres.SlotState) error {
	switch {
	case !slot.Exists:
		return &source.StateError{
			State:  postgres.StateSlotMissing,
			Detail: fmt.Sprintf("slot %q, which continues the log, does not exist", name),
			Hint:   resetHint,
		}
	case slot.Lost:
		return &source.StateError{
			State:  postgres.StateSlotLost,
			Detail: fmt.Sprintf("the server has removed WAL that slot %q needed", name),
			Hint:   resetHint + "; then raise max_slot_wal_keep_size",
		}
	}
	return nil
}

func coveredAt(start changelog.Start, slot, confirmed string) error {
	if known := max(start.Head, start.Streamed); confirmed > known {
		return &source.StateError{
			State: stateHole,
			Detail: fmt.Sprintf("slot %q has moved on to %s, but the log is complete only up to %s",
				slot, confirmed, known),
			Hint: "a replica that is at least as far as the slot has what is missing: name its position with --replica-watermark; otherwise " +
				resetHint,
		}
	}
	return nil
}

// resume takes ownership from the one that was seen, and then the slot [R14].
func (c *claimer) resume(ctx context.Context, start changelog.Start, slot string) (claim, error) {
	me, err := c.withoutSlot(ctx)
	if err != nil {
		return claim{}, err
	}
	me.slot, me.replicaVersion, me.publications = slot, start.ReplicaVersion, start.Publications
	assumed, err := c.ledger.Assume(ctx, changelog.Assume{
		Owner: me.owner, Address: c.address, ReplicaVersion: start.ReplicaVersion,
		Expected: start.Owner, Slot: slot,
	})
	if err == nil && !assumed {
		err = fmt.Errorf("%w: it owns the log now", errFaster)
	}
	if errors.Is(err, changelog.ErrOwnershipLost) && !errors.Is(err, changelog.ErrYounger) { // the log was reset meanwhile
		err = fmt.Errorf("%w: %w", errFaster, err)
	}
	if err != nil {
		return claim{}, err
	}
	c.me.kept = true
	if slot == c.cfg.Slot {
		if err := c.share(ctx, me, start); err != nil {
			return claim{}, err
		}
	}
	// The one before may have stored more after it was looked at.
	now, found, err := c.ledger.Start(ctx)
	if err != nil {
		return claim{}, err
	}
	if !found || now.Owner != me.owner {
		return claim{}, fmt.Errorf("%w: %q at %q has taken the log already", source.ErrNotOwner, now.Owner, now.OwnerAddress)
	}
	me.head = now.Head
	c.log.InfoContext(ctx, "took the log over", "owner", me.owner, "cause", "was owned by "+cmp.Or(start.Owner, "nobody"),
		"slot", me.slot, "watermark", me.head)
	return me, nil
}

// beginAgain begins the log again at the position of a replica that has what the log lacks,
// if the slot is not past that, too [R21].
func (c *claimer) beginAgain(ctx context.Context, start changelog.Start, slot string, hole *source.StateError) (claim, error) {
	state, err := c.upstream.Slot(ctx, slot)
	if err != nil {
		return claim{}, err
	}
	replica := c.cfg.ReplicaWatermark
	if confirmed := watermark.FromLSN(state.Confirmed - 1); !state.Exists || confirmed > replica {
		hole.Hint = fmt.Sprintf("the replica at %s does not help, since the slot has moved on to %s; %s", replica, confirmed, resetHint)
		return claim{}, hole
	}
	if err := c.reached(ctx, changelog.Start{Head: replica}); err != nil {
		return claim{}, err
	}
	me, err := c.withoutSlot(ctx)
	if err != nil {
		return claim{}, err
	}
	me.slot, me.replicaVersion, me.publications, me.head = slot, start.ReplicaVersion, start.Publications, replica
	c.me.kept = true // whatever the answer is
	begun, err := c.ledger.Reinitialize(ctx, changelog.Replica{
		Watermark: replica, ReplicaVersion: start.ReplicaVersion, Cookies: c.cfg.ReplicaCookies,
		Owner: me.owner, Address: c.address, Slot: slot,
	})
	if err == nil && !begun {
		err = fmt.Errorf("%w: it has brought the log on", errFaster)
	}
	if err != nil {
		return claim{}, err
	}
	if slot == c.cfg.Slot {
		if err := c.endHolder(ctx, slot, start); err != nil {
			return claim{}, err
		}
	}
	c.log.WarnContext(ctx, "began the log again at the replica's position", "owner", me.owner, "slot", slot, "watermark", replica,
		"cause", hole.Detail)
	return me, nil
}

// begin makes a slot and a history that starts with it: in an empty log, or in place of
// the one that was seen, if that may be dropped.
func (c *claimer) begin(ctx context.Context, publications []string, dropped *changelog.Start) (claim, error) {
	me, err := c.firstSlot(ctx, dropped)
	if err != nil {
		return claim{}, err
	}
	me.publications = publications
	if dropped != nil { // a slot takes its time: somebody else may have begun a history meanwhile
		if _, err := c.unchanged(ctx, *dropped, me.slot); err != nil {
			return claim{}, err
		}
	}
	detail, err := c.ledger.Begin(ctx, changelog.History{
		ReplicaVersion: me.replicaVersion, Publications: publications, Reset: dropped != nil,
		Owner: me.owner, Address: c.address, Slot: me.slot,
	})
	if err != nil {
		// It may have happened nevertheless.
		start, found, lookErr := c.ledger.Start(context.WithoutCancel(ctx))
		switch {
		case lookErr != nil:
			c.me.kept = true // if the log begins with it, the next start needs it
			return claim{}, err
		case !found || start.Owner != me.owner:
			return claim{}, err
		}
	}
	if detail != "" {
		return claim{}, fmt.Errorf("%w: %s", errFaster, detail)
	}
	c.me.kept = true
	if me.slot == c.cfg.Slot {
		if err := c.endHolder(ctx, me.slot, seen(dropped)); err != nil {
			return claim{}, err
		}
	}
	c.log.InfoContext(ctx, "began a history", "owner", me.owner, "slot", me.slot, "watermark", me.head)
	return me, nil
}

// firstSlot returns the slot that a history begins with: the shared one, or a new one.
func (c *claimer) firstSlot(ctx context.Context, dropped *changelog.Start) (claim, error) {
	if c.cfg.Slot != "" {
		return c.firstShared(ctx, dropped)
	}
	return c.makeSlot(ctx)
}

// makeSlot makes a slot of our own. Slots belong to the whole server, so the name may be
// that of another database's log; then the next one is tried.
func (c *claimer) makeSlot(ctx context.Context) (claim, error) {
	for attempt := 1; ; attempt++ {
		me, err := c.registered(ctx) // before the slot, so that a row names it [R15]
		if err != nil || me.slotMade {
			return me, err
		}
		err = c.create(ctx, me.slot)
		if err == nil {
			return c.me, nil
		}
		if !errors.Is(err, postgres.ErrSlotExists) || attempt == slotAttempts {
			return claim{}, err
		}
		c.warnOfOrphan(ctx, me.slot)
		c.retire(ctx, me, true) // a slot of somebody else's must not be named by our row
		c.me = claim{}
	}
}

// create makes a slot, and notes that it is there.
func (c *claimer) create(ctx context.Context, name string) error {
	c.log.InfoContext(ctx, "making a slot, which waits for the transactions that are open", "slot", name)
	consistent, err := c.upstream.CreateSlot(ctx, name, slotLockTimeout)
	if err != nil {
		return err
	}
	c.me.slot, c.me.slotMade, c.me.made = name, true, watermark.FromLSN(postgres.ReplicaVersion(consistent))
	c.me.replicaVersion, c.me.head = c.me.made, c.me.made
	return nil
}

// warnOfOrphan says that a slot is kept which no row names, so that nobody of ours will
// ever drop it: the log that it belonged to was dropped.
func (c *claimer) warnOfOrphan(ctx context.Context, name string) {
	slot, err := c.upstream.Slot(ctx, name)
	if err == nil && slot.Here && !slot.Active {
		c.log.WarnContext(ctx, "found a slot that this log does not know; it keeps WAL: drop it if nobody needs it", "slot", name)
	}
}

// registered returns who we are. The row names the slot that we should make.
func (c *claimer) registered(ctx context.Context) (claim, error) {
	if c.me.owner != "" {
		return c.me, nil
	}
	var incarnation [6]byte
	_, _ = rand.Read(incarnation[:]) // never errs
	me := claim{owner: c.cfg.TaskID + "/" + hex.EncodeToString(incarnation[:])}
	var err error
	me.id, me.slot, err = c.ledger.Register(ctx, c.cfg.TaskID, me.owner, c.address, slotPrefix(c.cfg.AppID, c.cfg.Shard))
	if err != nil {
		return claim{}, c.cfg.explainLog(err)
	}
	c.me = me
	return me, nil
}

// withoutSlot returns who we are, without a slot that we have made: our row is to name
// another one.
func (c *claimer) withoutSlot(ctx context.Context) (claim, error) {
	me, err := c.registered(ctx)
	if err == nil && !c.dropMade(ctx) {
		err = fmt.Errorf("slot %q, which is not needed, could not be dropped", me.slot)
	}
	return me, err
}

// giveUp undoes what a start has made and will not use. What it cannot undo is left to
// the owner, which finds it by its row.
func (c *claimer) giveUp(ctx context.Context) {
	if c.me.owner == "" {
		return
	}
	c.retire(ctx, c.me, !c.me.kept && c.dropMade(ctx))
}

// dropMade drops the slot that we have made, and says whether there is none now that our
// row names.
func (c *claimer) dropMade(ctx context.Context) bool {
	if !c.me.slotMade {
		return true
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	if err := c.upstream.DropSlot(limited, c.me.slot); err != nil {
		c.log.WarnContext(ctx, "left a slot behind", "slot", c.me.slot, "err", err)
		return false
	}
	c.me.slotMade = false
	return true
}

// retire notes that an incarnation is gone, and whether it has no slot any more.
func (c *claimer) retire(ctx context.Context, me claim, noSlot bool) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	if err := c.ledger.Retire(limited, me.id, noSlot); err != nil {
		c.log.WarnContext(ctx, "left a row of streamer behind", "owner", me.owner, "err", err)
	}
}
