package streamer_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/watermark"
)

// TestFaultsOfHandOvers lets everybody who has a part in a hand-over die, freeze or meet a
// stranger at every step of it.
func TestFaultsOfHandOvers(t *testing.T) {
	t.Parallel()
	program := builtCommand(t)
	for name, test := range map[string]func(t *testing.T, program string){
		"the newcomer dies":                 newcomerDies,
		"the owner dies":                    ownerDies,
		"the owner is frozen":               ownerIsFrozen,
		"the owner cannot reach the log":    ownerIsCutOff,
		"newcomers meet each other":         newcomersMeet,
		"the owner takes it for dead":       isTakenForDead,
		"walsenders are ended":              walsendersAreEnded,
		"the server restarts":               serverRestarts,
		"a stranger uses the shared slot":   strangerUsesSlot,
		"the state row is locked for long":  stateRowIsLocked,
		"the newcomer shows what is stored": showsWhatIsStored,
		"a large transaction takes the log": takesWithLarge,
		"the log is reset under a newcomer": isResetUnderNewcomer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, program)
		})
	}
}

// small is a workload of which some transactions do not fit into a batch, but few messages
// are large: what is compared here is who stores what.
var small = workloadSize{rows: 2_100, value: 20_000}

// race starts a relay with a workload and subscribers, and its first owner. apart: the log
// is on another server, so that transactions on it hold up no slot.
func race(t *testing.T, program string, apart bool, options pgtest.Options, args ...string) (*relay, *scene, *runner) {
	t.Helper()
	r := newRelay(t, program, apart, options)
	sc := newScene(t, r.url, r.logURL)
	r.args = append(append(r.args, "--publication", "everything"), args...)
	sc.load = startSized(t, r.url, 2, time.Duration(5*slowness())*time.Millisecond, small)
	sc.load.grows(t, 20)
	owner := r.runs(t)
	sc.opens(t)
	return r, sc, owner
}

// finish settles everything, and ends the owner, which has dropped all slots but its own.
func (r *relay) finish(t *testing.T, sc *scene, owner *runner, dead ...string) {
	t.Helper()
	sc.settle(t)
	r.tidies(t, owner, dead...)
	require.Equal(t, owner.task, tell[string](t, r.log, `select split_part(owner, '/', 1) from cdc.status`))
	owner.signal(syscall.SIGTERM)
	require.Equal(t, 0, owner.code(t, endurance), "%s", owner.says())
	for _, w := range r.runners {
		select {
		case <-w.ended:
		default:
			require.Fail(t, "a process is left", "%s", w.task)
		}
	}
}

// buries lets another one take over, which drops the slots of the dead.
func (r *relay) buries(t *testing.T, owner *runner, dead ...string) *runner {
	t.Helper()
	r.longAgo(t)
	next := r.succeeds(t, owner)
	r.tidies(t, next, dead...)
	return next
}

// runsUpTo starts a process that comes no further than to the slot it has made: it cannot
// say that it is pending until it is let go. The log is on a server of its own.
func (r *relay) runsUpTo(t *testing.T) (w *runner, slot string, letGo func()) {
	t.Helper()
	return r.runsUpToAfter(t, func() {})
}

// runsUpToAfter has something happen before the slot is made.
func (r *relay) runsUpToAfter(t *testing.T, before func()) (w *runner, slot string, letGo func()) {
	t.Helper()
	made := holds(t, r.url, `select pg_current_xact_id()`) // the slot waits for it
	w = r.runs(t)
	becomes(t, endurance, true, r.conn, isAtLock, w.role)
	slot = tell[string](t, r.log, rowSlot, w.task)
	require.NotEmpty(t, slot, "it is registered before there is a slot")
	letGo = holds(t, r.logURL, `select from cdc.streamer where slot = $1 for update`, slot)
	before()
	made()
	becomes(t, endurance, true, r.log, isAtLock, w.role)
	require.True(t, tell[bool](t, r.conn, isMade, slot))
	return w, slot, letGo
}

// runsUpToState starts a process that is pending and cannot take the log until it is let go.
func (r *relay) runsUpToState(t *testing.T) (w *runner, slot string, letGo func()) {
	t.Helper()
	w, slot, letGo = r.runsUpTo(t)
	r.covers(t, slot)
	state := holds(t, r.logURL, `select from cdc."replicationState" for update`)
	letGo()
	becomes(t, endurance, "pending", r.log, rowState, w.task)
	becomes(t, endurance, true, r.log, isAtLock, w.role)
	return w, slot, state
}

// covers waits until the log holds all that a slot does not send.
func (r *relay) covers(t *testing.T, slot string) {
	t.Helper()
	confirmed := tell[int64](t, r.conn, `
		select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = $1`, slot)
	becomes(t, endurance, true, r.log, `select greatest(head, streamed_watermark) >= $1 collate "C" from cdc.status`,
		watermark.Encode(uint64(confirmed-1))) //nolint:gosec // an LSN
}

// vanishes waits until a process that was killed has no session any more: what it had
// asked for is done by then, or never will be.
func (r *relay) vanishes(t *testing.T, w *runner) {
	t.Helper()
	for _, conn := range []string{r.url, r.logURL} {
		becomes(t, endurance, 0, connection(t, conn), `select count(*)::int from pg_stat_activity where usename = $1`, w.role)
	}
}

// newcomerDies kills newcomers at every step on their way.
func newcomerDies(t *testing.T, program string) {
	r, sc, owner := race(t, program, true, pgtest.Options{})

	// Before it is registered. Its session does that when it is dead.
	release := holds(t, r.logURL, `lock table cdc.streamer in exclusive mode`)
	w := r.runs(t)
	becomes(t, endurance, true, r.log, isAtLock, w.role)
	w.kills(t)
	release()
	r.vanishes(t, w)

	// While its slot is made.
	release = holds(t, r.url, `select pg_current_xact_id()`)
	w = r.runs(t)
	becomes(t, endurance, true, r.conn, isAtLock, w.role)
	w.kills(t)
	release()
	r.vanishes(t, w)
	sc.while(t, 0, 100*time.Millisecond)

	// When its slot is made.
	w, first, release := r.runsUpTo(t)
	w.kills(t)
	release()
	r.vanishes(t, w)
	require.True(t, tell[bool](t, r.conn, isMade, first))
	owner = r.buries(t, owner, first)

	// While it takes the log. Its session does that when it is dead, unless the owner is
	// faster.
	w, second, release := r.runsUpToState(t)
	w.kills(t)
	release()
	r.vanishes(t, w)
	if tell[string](t, r.log, `select split_part(owner, '/', 1) from cdc.status`) == w.task {
		t.Log("a dead one has taken the log")
		r.passes(t, owner, w)
		owner = r.runs(t)
		r.owns(t, owner)
		require.Equal(t, second, tell[string](t, r.log, rowSlot, owner.task), "it goes on with the slot of the dead one")
		owner = r.buries(t, owner)
	} else {
		owner = r.buries(t, owner, second)
	}

	// It is not dead, only its sessions are.
	w, _, release = r.runsUpToState(t)
	for range 3 {
		becomes(t, endurance, true, r.log, isAtLock, w.role)
		do(t, r.log, `select pg_terminate_backend(pid) from pg_stat_activity where usename = $1 and wait_event_type = 'Lock'`, w.role)
	}
	becomes(t, endurance, true, r.log, isAtLock, w.role)
	release()
	r.passes(t, owner, w)
	sc.while(t, 100*time.Millisecond, 300*time.Millisecond)
	r.finish(t, sc, w)
}

// ownerDies kills the owner at every step of a newcomer.
func ownerDies(t *testing.T, program string) {
	r, sc, owner := race(t, program, true, pgtest.Options{})

	// The newcomer has a slot that nobody will ever make the log cover: it goes on with the
	// one that is free now [R15].
	free := tell[string](t, r.log, rowSlot, owner.task)
	w, slot, letGo := r.runsUpToAfter(t, func() {
		r.halts(t, owner)
		sc.load.grows(t, 10)
	})
	letGo()
	becomes(t, endurance, "pending", r.log, rowState, w.task)
	sc.while(t, 100*time.Millisecond, 200*time.Millisecond)
	require.Equal(t, "pending", tell[string](t, r.log, rowState, w.task))
	owner.kills(t)
	r.owns(t, w)
	becomes(t, endurance, false, r.conn, isMade, slot)
	require.Equal(t, free, tell[string](t, r.log, rowSlot, w.task))
	require.True(t, tell[bool](t, r.conn, isMade, free))
	sc.load.grows(t, 10)

	// The newcomer is about to take the log.
	owner = w
	w, _, letGo = r.runsUpToState(t)
	owner.kills(t)
	letGo()
	r.owns(t, w)
	sc.load.grows(t, 10)
	r.tidies(t, w)

	// The newcomer has just been started.
	owner = w
	w = r.runs(t)
	owner.kills(t)
	r.owns(t, w)
	sc.load.grows(t, 10)
	r.finish(t, sc, r.buries(t, w))
}

// ownerIsFrozen stops the owner, which finds the log taken when it goes on.
func ownerIsFrozen(t *testing.T, program string) {
	r, sc, owner := race(t, program, true, pgtest.Options{})
	r.upstream = func(url string) string { return url + "&wal_sender_timeout=2000" }
	owner = r.succeeds(t, owner) // with that timeout

	// For so long that its slot becomes free before the newcomer comes.
	free := tell[string](t, r.log, rowSlot, owner.task)
	r.halts(t, owner)
	becomes(t, endurance, false, r.conn, `select active from pg_replication_slots where slot_name = $1`, free)
	w := r.runs(t)
	r.owns(t, w)
	require.Equal(t, free, tell[string](t, r.log, rowSlot, w.task))
	sc.load.grows(t, 10)
	r.goesOn(t, owner, w)

	// While the newcomer waits for the log to cover its slot, until the other one is free.
	owner = w
	w, slot, letGo := r.runsUpToAfter(t, func() {
		r.halts(t, owner)
		sc.load.grows(t, 10)
	})
	letGo()
	r.owns(t, w)
	require.Equal(t, free, tell[string](t, r.log, rowSlot, w.task))
	becomes(t, endurance, false, r.conn, isMade, slot)
	sc.load.grows(t, 10)
	r.goesOn(t, owner, w)

	// When the newcomer needs nothing of it any more.
	owner = w
	w, slot, letGo = r.runsUpTo(t)
	r.covers(t, slot)
	r.halts(t, owner)
	letGo()
	r.owns(t, w)
	sc.load.grows(t, 10)
	r.goesOn(t, owner, w)
	r.finish(t, sc, w)
}

// ownerIsCutOff has what the owner asks the log arrive when the log is another one's.
func ownerIsCutOff(t *testing.T, program string) {
	r, sc, owner := race(t, program, true, pgtest.Options{})
	l, through := lineTo(t, r.logURL)
	r.change = by(t, through)
	owner = r.succeeds(t, owner)
	r.change = nil

	w, slot, letGo := r.runsUpTo(t)
	r.covers(t, slot)
	r.between(t, owner, l.stall, l.flow)
	letGo()
	r.owns(t, w)
	sc.load.grows(t, 20)
	select {
	case <-owner.ended:
		require.Fail(t, "it cannot know yet", "%s", owner.says())
	default:
	}
	l.flow()
	r.passes(t, owner, w)
	r.finish(t, sc, w)
}

// goesOn wakes up a process that was stopped, and waits until it has gone.
func (r *relay) goesOn(t *testing.T, old, owner *runner) {
	t.Helper()
	head := tell[string](t, r.log, `select head from cdc.status`)
	old.signal(syscall.SIGCONT)
	r.passes(t, old, owner)
	require.GreaterOrEqual(t, tell[string](t, r.log, `select head from cdc.status`), head)
	require.True(t, tell[bool](t, r.conn, isMade, tell[string](t, r.log, rowSlot, owner.task)), "it has not dropped a slot that it had once")
}

// newcomersMeet has several newcomers at once: the youngest one gets the log, the others
// go [R18].
func newcomersMeet(t *testing.T, program string) {
	r, sc, owner := race(t, program, true, pgtest.Options{})

	// Two of one name, one after the other.
	owner = r.succeeds(t, owner, "--task-id", "same")
	require.Equal(t, "owner", tell[string](t, r.log, rowState, "same"))
	same := r.runs(t, "--task-id", "same")
	require.Equal(t, 0, owner.code(t, endurance), "%s", owner.says())
	becomes(t, endurance, "gone owner", r.log, `select string_agg(state, ' ' order by id) from cdc.streamer where task_id = 'same'`)
	owner = r.runs(t)
	require.Equal(t, 0, same.code(t, endurance), "%s", same.says())
	r.owns(t, owner)

	// Two at once, and two at once for a slot that nobody uses.
	for _, dead := range []bool{false, true} {
		if dead {
			owner.kills(t)
		}
		owner = r.youngest(t, owner, r.runs(t), r.runs(t))
		sc.load.grows(t, 10)
	}

	// An older one that was frozen while it made its slot, or just after that.
	for _, made := range []bool{false, true} {
		var old *runner
		if made {
			w, _, letGo := r.runsUpTo(t)
			old = w
			old.freezes(t)
			letGo()
		} else {
			release := holds(t, r.url, `select pg_current_xact_id()`)
			old = r.runs(t)
			becomes(t, endurance, true, r.conn, isAtLock, old.role)
			old.freezes(t)
			release()
		}
		owner = r.succeeds(t, owner)
		old.signal(syscall.SIGCONT)
		require.Equal(t, 0, old.code(t, endurance), "%s", old.says())
		require.Contains(t, old.log.String(), tell[string](t, r.log, `select owner from cdc.status`))
		require.Equal(t, "gone", tell[string](t, r.log, rowState, old.task))
	}
	r.finish(t, sc, r.buries(t, owner))
}

// youngest waits until the youngest registration has the log and the others have gone.
func (r *relay) youngest(t *testing.T, runners ...*runner) *runner {
	t.Helper()
	var left *runner
	require.Eventually(t, func() bool {
		left = nil
		for _, w := range runners {
			select {
			case <-w.ended:
				continue
			default:
			}
			if left != nil {
				return false
			}
			left = w
		}
		return left != nil
	}, endurance, glimpse, "one of them must be left")
	r.owns(t, left)
	require.Equal(t, left.task, tell[string](t, r.log, `select task_id from cdc.streamer order by id desc limit 1`), "the youngest")
	for _, w := range runners {
		if w != left {
			require.Contains(t, []int{0, -1}, w.code(t, endurance), "%s", w.says()) // -1: the test did it
		}
	}
	return left
}

// isTakenForDead freezes a newcomer for so long that the owner drops its slot. It must not
// take the log then [R19].
func isTakenForDead(t *testing.T, program string) {
	r, sc, owner := race(t, program, true, pgtest.Options{})
	w, slot, letGo := r.runsUpTo(t)
	w.freezes(t)
	letGo()
	becomes(t, endurance, "pending", r.log, rowState, w.task) // what it had asked for
	r.longAgo(t)
	r.tidies(t, owner, slot)
	require.Equal(t, "gone", tell[string](t, r.log, rowState, w.task))
	w.signal(syscall.SIGCONT)
	require.Contains(t, []int{0, 1}, w.code(t, endurance), "%s", w.says())
	require.Equal(t, owner.task, tell[string](t, r.log, `select split_part(owner, '/', 1) from cdc.status`))
	sc.load.grows(t, 10)
	r.finish(t, sc, r.succeeds(t, owner))
}

// walsendersAreEnded ends everybody's stream again and again during hand-overs: whoever was
// ended asks the log whose it is, not the slot [R14].
func walsendersAreEnded(t *testing.T, program string) {
	r, sc, owner := race(t, program, false, pgtest.Options{})
	ended := 0
	for range 3 {
		w := r.runs(t)
		for range 30 {
			ended += tell[int](t, r.conn, `
				select count(pg_terminate_backend(pid))::int from pg_stat_replication
				where application_name = 'millrace-source' and state <> 'startup'`)
			breathe(30 * time.Millisecond)
		}
		r.passes(t, owner, w)
		owner = w
	}
	require.Positive(t, ended)
	r.finish(t, sc, owner)
}

// serverRestarts restarts the one server of upstream and log in the middle of hand-overs,
// or crashes it.
func serverRestarts(t *testing.T, program string) {
	r, sc, owner := race(t, program, false, pgtest.Options{Durable: true})
	for i := range 2 {
		w := r.runs(t)
		becomes(t, endurance, true, r.log, `select exists (select from cdc.streamer where task_id = $1)`, w.task)
		if i%2 == 0 {
			require.NoError(t, r.server.Kill())
		}
		require.NoError(t, r.server.Restart(t.Context()))
		r.conn, r.log = connection(t, r.url), connection(t, r.logURL)
		sc.load.grows(t, 10)
		// Whoever was starting may have given up. Somebody starts it again then.
		for {
			select {
			case <-owner.ended:
				r.passes(t, owner, w)
			case <-w.ended:
				require.Equal(t, 1, w.code(t, endurance), "%s", w.says())
				w = r.runs(t)
				continue
			case <-time.After(endurance):
				require.FailNow(t, "nobody goes")
			}
			break
		}
		owner = w
	}
	r.finish(t, sc, r.buries(t, owner))
}

// strangerUsesSlot has somebody else read the slot that all share. A newcomer must not end
// that, nor take the log without the slot; and an owner whose stream was ended for it ends,
// and says who it was [R14].
func strangerUsesSlot(t *testing.T, program string) {
	r, sc, owner := race(t, program, false, pgtest.Options{}, "--slot", "shared")
	owner = r.succeeds(t, owner)
	owner.signal(syscall.SIGTERM)
	require.Equal(t, 0, owner.code(t, endurance), "%s", owner.says())
	const whose = `select coalesce(owner, '') || ' ' || coalesce(slot, '') from cdc.status`
	before := tell[string](t, r.log, whose)
	stranger, err := tryReading(t, r.url, "shared", "a stranger", "everything")
	require.NoError(t, err)

	w := r.runs(t)
	require.Equal(t, 1, w.code(t, endurance), "%s", w.says())
	for _, part := range []string{"shared", "a stranger", fmt.Sprint(stranger.PID())} {
		require.Contains(t, w.log.String(), part)
	}
	require.Equal(t, before, tell[string](t, r.log, whose))
	require.True(t, tell[bool](t, r.conn, `select exists (select from pg_stat_replication where application_name = 'a stranger')`))
	require.NoError(t, stranger.Close(t.Context()))
	w = r.runs(t)
	r.owns(t, w)
	sc.load.grows(t, 10)

	require.Eventually(t, func() bool {
		do(t, r.conn, `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = 'shared'`)
		stranger, err = tryReading(t, r.url, "shared", "a stranger", "everything")
		return err == nil
	}, endurance, time.Millisecond, "it never gets the slot")
	require.Equal(t, 1, w.code(t, endurance), "%s", w.says())
	for _, part := range []string{"slot-in-use", "a stranger"} {
		require.Contains(t, w.log.String(), part)
	}
	require.NoError(t, stranger.Close(t.Context()))
	owner = r.runs(t)
	r.owns(t, owner)
	sc.load.grows(t, 10)
	owner = r.succeeds(t, owner)

	r.finish(t, sc, owner)
	require.Equal(t, "shared", tell[string](t, r.log, rowSlot, owner.task))
}

// stateRowIsLocked keeps newcomer and owner from the state row for longer than one try to
// store waits for it. Neither gives up [R17].
func stateRowIsLocked(t *testing.T, program string) {
	r, sc, owner := race(t, program, true, pgtest.Options{}, "--tail-max-bytes", "1073741824")
	w, _, release := r.runsUpToState(t)
	for range 4 {
		at := sc.fast.position().Watermark
		sc.while(t, 2500*time.Millisecond, 2500*time.Millisecond)
		require.Eventually(t, func() bool { return sc.fast.position().Watermark > at }, endurance, glimpse, "subscribers of the owner go on")
	}
	becomes(t, endurance, true, r.log, isAtLock, w.role)
	release()
	r.passes(t, owner, w)
	r.finish(t, sc, w)
}
