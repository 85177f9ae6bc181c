package changelog_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/sql"
)

const (
	newcomer        = "new/2"
	newcomerAddress = "new:1"
)

// rival is a fixture whose store is a newcomer's; the log is owner's still.
type rival struct {
	*fixture
	witness *pgx.Conn // of the store's goroutine: what the store tells is true when it does
	assumed []string
}

func rivalOf(f *fixture) *rival {
	f.t.Helper()
	r := &rival{fixture: f, witness: f.db.Conn(f.t)}
	r.register()
	f.cfg.Owner, f.cfg.Address = newcomer, newcomerAddress
	f.cfg.Assumed, f.cfg.Stored = r.onAssumed, r.onStored
	return r
}

func newRival(t testing.TB) *rival {
	t.Helper()
	return rivalOf(newFixture(t))
}

// register registers both incarnations, gives the log to the older one, and announces the
// other.
func (r *rival) register() {
	r.t.Helper()
	r.exec(`select register_streamer($1, $2, 'old:1')`, `it's\me`, owner)
	r.exec(`select assume_ownership($1, 'old:1', $2, $1)`, owner, version)
	r.exec(`select register_streamer('new', $1, $2)`, newcomer, newcomerAddress)
	r.exec(`select announce_takeover($1, $2)`, newcomer, version)
}

// rivalEachWay runs a test with COPY and with append_changes.
func rivalEachWay(t *testing.T, test func(t *testing.T, r *rival)) {
	t.Helper()
	eachWay(t, func(t *testing.T, f *fixture) { test(t, rivalOf(f)) })
}

func (r *rival) onAssumed(head string) {
	var who, at string
	err := r.witness.QueryRow(context.WithoutCancel(r.t.Context()),
		`select owner, "lastWatermark" from "replicationState"`).Scan(&who, &at)
	if err != nil || who != newcomer || at < head {
		r.t.Errorf("assumed at %s, but the owner is %q at %s: %v", head, who, at, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.assumed = append(r.assumed, head)
	close(r.changed)
	r.changed = make(chan struct{})
}

// onStored checks that the log has what is reported, whoever has stored it: a record of
// progress counts only for its owner.
func (r *rival) onStored(w string) {
	var durable string
	err := r.witness.QueryRow(context.WithoutCancel(r.t.Context()),
		`select greatest(s."lastWatermark", case when s.owner = $1 then p.streamed_watermark end)
		from "replicationState" as s left join progress as p on true`, newcomer).Scan(&durable)
	if err != nil || w > durable {
		r.t.Errorf("%s was reported as stored, but the log ends at %s: %v", w, durable, err)
	}
	r.fixture.onStored(w)
}

// awaitAssumed waits until the store has said that the log is its own, at a head.
func (r *rival) awaitAssumed(head string) {
	r.t.Helper()
	r.await("the take-over", func() (bool, <-chan struct{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.assumed) > 0, r.changed
	})
	r.requireTaken(head)
}

// requireTaken checks that the newcomer has taken the log, once, at a head.
func (r *rival) requireTaken(head string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(r.t, []string{head}, r.assumed)
	require.Equal(r.t, newcomer+" "+newcomerAddress, r.text(`select owner || ' ' || "ownerAddress" from "replicationState"`))
	require.Equal(r.t, "owner", r.text(`select state from streamer where owner = $1`, newcomer))
	require.Equal(r.t, "gone", r.text(`select state from streamer where owner = $1`, owner))
}

// requirePending checks that the log is owner's still.
func (r *rival) requirePending() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(r.t, r.assumed)
	require.Equal(r.t, owner, r.text(`select owner from "replicationState"`))
	require.Equal(r.t, "pending", r.text(`select state from streamer where owner = $1`, newcomer))
}

// requireOneCommit checks that a transaction and the change of owner became visible
// together.
func (r *rival) requireOneCommit(w string) {
	r.t.Helper()
	require.Equal(r.t, "1", r.text(`select count(distinct x)::text from (
		select xmin::text as x from "changeLog" where watermark = $1
		union all select xmin::text from "replicationState"
		union all select xmin::text from streamer) as t`, w))
}

// ownerStores stores transactions as the owner does, each as the newcomer's tail has it.
func (r *rival) ownerStores(conn db.DBTX, rows, size int, numbers ...int) error {
	r.t.Helper()
	m := newMemory()
	for _, n := range numbers {
		m.transaction(w(n), rows, size)
	}
	params := db.StoreChangesParams{Owner: owner, ReplicaVersion: version, ExpectedHead: version, LastWatermark: m.last()}
	for _, row := range m.want {
		params.Watermarks = append(params.Watermarks, row.Watermark)
		params.Positions = append(params.Positions, row.Pos)
		params.Changes = append(params.Changes, []byte(row.Change))
		params.Precommits = append(params.Precommits, row.Precommit)
	}
	_, err := db.New().StoreChanges(r.t.Context(), conn, params)
	return err
}

// ownerBegins stores the same in a transaction that stays open, until commit.
func (r *rival) ownerBegins(rows, size int, numbers ...int) (commit func()) {
	r.t.Helper()
	tx, err := r.db.Conn(r.t).Begin(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, r.ownerStores(tx, rows, size, numbers...))
	return func() { require.NoError(r.t, tx.Commit(r.t.Context())) }
}

// takeAsYounger lets an incarnation that registered later have the log.
func (r *rival) takeAsYounger() {
	r.t.Helper()
	r.exec(`select register_streamer('young', 'young/3', 'young:1')`)
	r.exec(`select assume_ownership('young/3', 'young:1', $1, $2)`, version, owner)
}

func TestNewcomerLeavesOutWhatTheLogHas(t *testing.T) {
	t.Parallel()
	rivalEachWay(t, func(t *testing.T, r *rival) {
		r.cfg.BatchRows = 100
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1, 2))
		require.NoError(t, r.ownerStores(r.conn, 500, 10, 3))
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.awaitStored(w(1))
		r.tail.transaction(w(2), 3, 10)
		r.tail.transaction(w(3), 500, 10) // one that would be stored on its own
		r.awaitStored(w(3))
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 4, 5, 6)) // the store does not know yet
		r.tail.transaction(w(4), 3, 10)
		r.tail.transaction(w(5), 3, 10)
		r.awaitStored(w(5))
		r.requirePending()
		require.Equal(t, w(6), r.head())
		r.halt()
		r.requirePending()
		require.Equal(t, w(5), r.storedW, "what its own stream has not shown may not be confirmed")
	})
}

// A newcomer that is behind comes nearer while the owner stores something that takes long.
func TestNewcomerLeavesOutWithoutTheLock(t *testing.T) {
	t.Parallel()
	rivalEachWay(t, func(t *testing.T, r *rival) {
		r.cfg.BatchRows = 100
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
		require.NoError(t, r.ownerStores(r.conn, 500, 10, 2, 3))
		release := r.lockState()
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.awaitStored(w(1))
		r.tail.transaction(w(2), 500, 10)
		r.tail.begin(w(3)) // it is left out while it arrives
		r.tail.publish()
		r.tail.setFull(true)
		r.awaitTail("passed", func(s state) bool { return s.passed == 504 })
		for range 498 {
			r.tail.data(10)
		}
		r.tail.commit()
		r.awaitStored(w(3))
		require.NotContains(t, r.lines.String(), "waited")
		release()
		r.requirePending()
		r.halt()
	})
}

func TestNewcomerTakesOverWithTheFirstPastTheHead(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.awaitStored(w(1))
		r.requirePending()
		r.tail.transaction(w(2), 3, 10)
		r.awaitAssumed(w(2))
		r.requireOneCommit(w(2))
		r.requireOwnerIsFenced()
		for n := 3; n < 10; n++ {
			r.tail.transaction(w(n), 3, 10)
			r.awaitStored(w(n))
		}
		r.halt()
		r.requireTaken(w(2))
		r.requireLog()
	})
	t.Run("in a batch with what the log has", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1, 2))
		r.tail.transaction(w(1), 3, 10)
		r.tail.transaction(w(2), 3, 10)
		r.tail.transaction(w(3), 3, 10)
		r.tail.transaction(w(4), 3, 10)
		r.run()
		r.awaitAssumed(w(4))
		r.requireOneCommit(w(3))
		r.requireOneCommit(w(4))
		require.NotEqual(t, r.text(`select min(xmin::text) from "changeLog" where watermark = $1`, w(2)),
			r.text(`select min(xmin::text) from "changeLog" where watermark = $1`, w(3)), "not stored again")
		r.halt()
		r.requireLog()
	})
	t.Run("large", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(t *testing.T, r *rival) {
			r.cfg.BatchRows = 100
			require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
			r.tail.transaction(w(1), 3, 10)
			r.tail.transaction(w(2), 1000, 100)
			r.tail.transaction(w(3), 3, 10)
			r.run()
			r.awaitAssumed(w(2))
			r.awaitStored(w(3))
			r.requireOwnerIsFenced()
			r.halt()
			r.requireTaken(w(2))
			r.requireLog()
		})
	})
	t.Run("large, while it arrives", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(t *testing.T, r *rival) {
			r.tail.setDrops()
			r.run()
			r.tail.begin(w(1))
			r.tail.data(10)
			r.tail.publish()
			r.tail.setFull(true)
			r.awaitTail("passed", func(s state) bool { return s.passed == 2 })
			for range 100 {
				r.tail.data(10_000)
				r.tail.publish()
			}
			r.awaitTail("passed", func(s state) bool { return s.passed == 102 })
			r.requirePending()
			r.tail.setFull(false)
			r.tail.commit()
			r.awaitAssumed(w(1))
			r.requireOneCommit(w(1))
			r.halt()
			r.requireLog()
		})
	})
	t.Run("large, cut off", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(t *testing.T, r *rival) {
			r.cfg.BatchRows = 10
			r.run()
			r.tail.begin(w(1))
			for range 50 {
				r.tail.data(100)
			}
			r.tail.publish()
			r.awaitTail("passed", func(s state) bool { return s.passed == 51 })
			r.tail.abort()
			r.awaitRecheck()
			r.requirePending()
			r.tail.transaction(w(1), 4, 10)
			r.awaitAssumed(w(1))
			r.halt()
			r.requireLog()
		})
	})
}

// requireOwnerIsFenced checks that the owner before stores nothing more.
func (r *rival) requireOwnerIsFenced() {
	r.t.Helper()
	err := r.ownerStores(r.conn, 3, 10, 900)
	var refused *pgconn.PgError
	require.ErrorAs(r.t, err, &refused)
	require.Equal(r.t, sql.CodeNotOwner, refused.Code)
}

func TestNewcomerWhenTheOwnerIsFaster(t *testing.T) {
	t.Parallel()
	t.Run("with what was offered", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		commit := r.ownerBegins(3, 10, 1)
		r.tail.transaction(w(1), 3, 10)
		r.run()
		r.awaitWaiting()
		commit()
		r.awaitStored(w(1))
		r.requirePending()
		r.tail.transaction(w(2), 3, 10)
		r.awaitAssumed(w(2))
		r.halt()
		r.requireLog()
	})
	t.Run("with some of it", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		commit := r.ownerBegins(3, 10, 1, 2)
		r.tail.transaction(w(1), 3, 10)
		r.tail.transaction(w(2), 3, 10)
		r.tail.transaction(w(3), 3, 10)
		r.run()
		r.awaitWaiting()
		commit()
		r.awaitAssumed(w(3))
		r.halt()
		r.requireLog()
	})
	t.Run("with more than that", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		commit := r.ownerBegins(3, 10, 1, 2, 3)
		r.tail.transaction(w(1), 3, 10)
		r.run()
		r.awaitWaiting()
		commit()
		r.awaitStored(w(1))
		r.requirePending()
		r.tail.transaction(w(2), 3, 10)
		r.tail.transaction(w(3), 3, 10)
		r.tail.transaction(w(4), 3, 10)
		r.awaitAssumed(w(4))
		r.halt()
		r.requireLog()
	})
	t.Run("with a large one", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(t *testing.T, r *rival) {
			r.cfg.BatchRows = 100
			commit := r.ownerBegins(500, 10, 1)
			r.tail.transaction(w(1), 500, 10)
			r.run()
			r.awaitWaiting()
			commit()
			r.awaitStored(w(1))
			r.requirePending()
			r.tail.transaction(w(2), 500, 10)
			r.awaitAssumed(w(2))
			r.halt()
			r.requireLog()
		})
	})
	t.Run("with what is past the mark", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		commit := r.ownerBegins(3, 10, 2)
		r.tail.shown(w(1))
		r.run()
		r.awaitWaiting()
		commit()
		r.awaitRecheck()
		r.requirePending()
		r.tail.transaction(w(2), 3, 10)
		r.awaitStored(w(2))
		r.requirePending()
		r.tail.shown(w(2))
		r.awaitAssumed(w(2))
		r.halt()
		r.requireLog()
	})
}

// awaitRecheck waits until the store has seen a mark that says nothing: whatever it did
// about the one before is done.
func (r *rival) awaitRecheck() {
	r.t.Helper()
	r.tail.shown(version[:1])
	r.awaitTail("asked", func(s state) bool { return s.asked == version[:1] })
}

func TestNewcomerTakesOverAtAMark(t *testing.T) {
	t.Parallel()
	t.Run("at the head", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.tail.shown(w(1))
		r.awaitAssumed(w(1))
		r.requireOwnerIsFenced()
		r.tail.transaction(w(2), 3, 10)
		r.awaitStored(w(2))
		r.halt()
		r.requireTaken(w(1))
		r.requireLog()
	})
	t.Run("past the head", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		r.cfg.ProgressEvery = time.Millisecond
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.tail.shown(w(5))
		r.awaitAssumed(w(1))
		r.awaitStored(w(5))
		require.Equal(t, w(5), r.text(`select streamed_watermark from progress`), "recorded before it is confirmed")
		r.halt()
		r.requireTaken(w(1))
		r.requireLog()
	})
	t.Run("before the stream had anything", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		r.tail.shown(w(1))
		r.run()
		r.awaitAssumed(version)
		r.halt()
		r.requireLog()
	})
	t.Run("not below the head", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1, 3))
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.tail.shown(w(2))
		r.awaitTail("asked", func(s state) bool { return s.asked == w(2) && s.stored == 3 })
		r.awaitRecheck()
		r.requirePending()
		r.tail.transaction(w(3), 3, 10)
		r.awaitStored(w(3))
		r.requirePending()
		r.halt()
		require.Equal(t, "0", r.text(`select count(*)::text from progress`), "it is not for a newcomer to record any")
	})
	t.Run("not before what lies below it is in the log", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		r.run()
		r.tail.begin(w(1))
		r.tail.data(10)
		r.tail.publish()
		r.tail.shown(w(0))
		r.awaitTail("asked", func(s state) bool { return s.asked == w(0) })
		r.tail.commit()
		r.awaitAssumed(w(1))
		r.halt()
		r.requireLog()
	})
}
