package changelog_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/streamer/changelog"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestNewStore(t *testing.T) {
	t.Parallel()
	valid := changelog.Config{
		Conn: &pgx.ConnConfig{}, Owner: "a/1", ReplicaVersion: "00", Head: "00",
		Tail: newMemory(), Stored: func(string) {},
	}
	for name, spoil := range map[string]func(*changelog.Config){
		"Conn is required":           func(c *changelog.Config) { c.Conn = nil },
		"Owner is required":          func(c *changelog.Config) { c.Owner = "" },
		"ReplicaVersion is required": func(c *changelog.Config) { c.ReplicaVersion = "" },
		"Head is required":           func(c *changelog.Config) { c.Head = "" },
		"Tail is required":           func(c *changelog.Config) { c.Tail = nil },
		"Stored is required":         func(c *changelog.Config) { c.Stored = nil },
		"BatchBytes from 0":          func(c *changelog.Config) { c.BatchBytes = 1 << 30 },
		"durations must not":         func(c *changelog.Config) { c.ProgressEvery = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := valid
			spoil(&cfg)
			_, err := changelog.NewStore(cfg)
			require.ErrorContains(t, err, name)
		})
	}
}

func TestStoreTransactions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.tail.transaction(w(1), 2, 0)
	f.tail.transaction(w(2), 5, 10)
	f.run()
	f.awaitStored(w(2))
	f.tail.transaction(w(2)+".01", 3, 10) // a backfill
	f.tail.transaction(w(4), 1999, 100)
	f.awaitStored(w(4))
	f.requireLog()
	f.halt()
}

// lockState takes the state row's lock until the function returned is called.
func (f *fixture) lockState() (release func()) {
	f.t.Helper()
	tx, err := f.db.Conn(f.t).Begin(f.t.Context())
	require.NoError(f.t, err)
	_, err = tx.Exec(f.t.Context(), `select from "replicationState" for update`)
	require.NoError(f.t, err)
	return func() { require.NoError(f.t, tx.Rollback(f.t.Context())) }
}

// awaitWaiting waits until the store's connection waits for a lock.
func (f *fixture) awaitWaiting() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		return f.text(`select count(*)::text from pg_stat_activity where datname = current_database()
			and application_name = 'zero-change-streamer' and wait_event_type = 'Lock'`) == "1"
	}, patience, 5*time.Millisecond)
}

func TestStoreManyInOneTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release := f.lockState()
	f.tail.transaction(w(1), 3, 10)
	f.run()
	f.awaitWaiting() // two batches are under way at most: the rest is one
	const num = 400
	for n := 2; n <= num; n++ {
		f.tail.transaction(w(n), 3, 10)
	}
	release()
	f.awaitStored(w(num))
	f.requireLog()
	batches := f.text(`select count(distinct xmin::text)::text from "changeLog" where watermark > $1`, version)
	require.Contains(t, []string{"2", "3"}, batches, "database transactions")
	f.halt()
}

func TestStoreWithinLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cfg.BatchRows = 10
	f.cfg.BatchBytes = 5000
	for n := 1; n <= 30; n++ {
		f.tail.transaction(w(n), 2+n%5, n%3*300)
	}
	f.run()
	f.awaitStored(w(30))
	f.requireLog()
	require.Equal(t, "t", f.text(`select bool_and(n <= 10 and size < 5000)::text::char from (
		select count(*) as n, sum(length(change::text)) as size from "changeLog" where watermark > $1 group by xmin::text) as b`, version))
	f.halt()
}

func TestStoreAfterCut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(f *fixture){
		"in the middle of a batch": func(f *fixture) {
			cut := f.proxy.cutAfter(20_000)
			f.tail.transaction(w(2), 400, 100)
			<-cut
		},
		"behind its commit": func(f *fixture) {
			f.proxy.block(toClient)
			f.tail.transaction(w(2), 400, 100)
			require.Eventually(f.t, func() bool { return f.head() == w(2) }, patience, 5*time.Millisecond)
			f.proxy.release(toClient)
			f.proxy.cut()
		},
		"by the server": func(f *fixture) {
			release := f.lockState()
			f.tail.transaction(w(2), 400, 100)
			f.awaitWaiting()
			f.terminateStore()
			release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.run()
			f.tail.transaction(w(1), 3, 10)
			f.awaitStored(w(1))
			cut(f)
			f.tail.transaction(w(3), 3, 10)
			f.awaitStored(w(3))
			f.requireLog()
			f.halt()
		})
	}
}

func TestStoreBehindRefusedBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create sequence tries`)
	f.exec(`create function refuse_once() returns trigger language plpgsql as $$
		begin
			if nextval('cdc.tries') = 1 then
				raise 'not this one' using errcode = 'XX001';
			end if;
			return null;
		end $$`)
	f.exec(`create trigger refuse_once after insert on "changeLog" execute function refuse_once()`)
	f.cfg.BatchRows = 3
	for n := 1; n <= 10; n++ {
		f.tail.transaction(w(n), 3, 10)
	}
	f.run()
	f.awaitStored(w(10))
	f.requireLog()
	require.Contains(t, f.lines.String(), "XX001")
	// Had the second batch been stored behind the gap, the log would differ. It came
	// again, with the first: 10 batches, one refused before any row of the second.
	require.Equal(t, "11", f.text(`select last_value::text from tries`))
	f.halt()
}

func TestStoreWaitsForStateRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cfg.StatementTimeout = 2 * time.Second // half of that for a lock
	f.tail.setFull(true)
	release := f.lockState()
	f.tail.transaction(w(1), 3, 10)
	f.tail.transaction(w(2), 3000, 10)
	f.run()
	f.awaitLine("waited for a lock", 7) // wedged would be after six
	release()
	f.awaitStored(w(1))
	f.awaitStored(w(2))

	release = f.lockState()
	f.tail.transaction(w(3), 3000, 10)
	f.awaitLine("waited for a lock", 7+7)
	release()
	f.awaitStored(w(3))
	require.NotContains(t, f.lines.String(), "interrupted")
	f.requireLog()
	f.halt()
}

func TestStoreSilentServer(t *testing.T) {
	t.Parallel()
	t.Run("full tail", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.StatementTimeout = 200 * time.Millisecond
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		f.tail.setFull(true)
		f.proxy.block(toClient)
		f.tail.transaction(w(2), 3, 10)
		require.ErrorIs(t, f.end(), changelog.ErrWedged)
		require.ErrorContains(t, f.err, "no answer within 200ms, 3 times in a row")
	})
	t.Run("room left", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.StatementTimeout = 200 * time.Millisecond
		f.run()
		f.proxy.block(toClient)
		f.tail.transaction(w(1), 3, 10)
		f.awaitLine("interrupted", 5)
		f.proxy.release(toClient)
		f.proxy.cut()
		f.awaitStored(w(1))
		f.requireLog()
		f.halt()
	})
	t.Run("in the middle of a large transaction", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.StatementTimeout = time.Second
		f.run()
		f.tail.begin(w(1))
		f.tail.setFull(true)
		f.tail.publish()
		f.awaitTail("passed", func(s state) bool { return s.passed == 1 })
		f.proxy.block(toServer)
		for range 300 {
			f.tail.data(100_000)
		}
		f.tail.publish()
		require.ErrorIs(t, f.end(), changelog.ErrWedged)
		f.proxy.release(toServer)
		f.proxy.cut()
		f.requireLog() // nothing
	})
}

func TestStoreLosesOwnership(t *testing.T) {
	t.Parallel()
	take := func(f *fixture) {
		f.exec(`select assume_ownership('other/2', 'there', $1, $2)`, version, owner)
	}
	requireLost := func(f *fixture) {
		f.t.Helper()
		require.ErrorIs(f.t, f.end(), changelog.ErrOwnershipLost)
		require.ErrorContains(f.t, f.err, "other/2")
	}
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.OwnerCheckEvery = 50 * time.Millisecond
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		take(f)
		requireLost(f)
		f.requireLog()
	})
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		take(f)
		f.tail.transaction(w(2), 3, 10)
		requireLost(f)
		require.Equal(t, w(1), f.head())
	})
	t.Run("with a mark", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.OwnerCheckEvery = time.Hour
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		take(f)
		f.tail.shown(w(2))
		requireLost(f)
		require.Equal(t, "0", f.text(`select count(*)::text from progress`))
	})
	t.Run("before a large transaction", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		take(f)
		f.tail.transaction(w(2), 3000, 10)
		requireLost(f)
		require.Equal(t, w(1), f.head())
	})
	t.Run("when a large transaction breaks", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.run()
		f.tail.begin(w(1))
		f.tail.data(10)
		f.tail.setFull(true)
		f.tail.publish()
		f.awaitTail("passed", func(s state) bool { return s.passed == 2 })
		other := f.db.Conn(t)
		taken := make(chan error, 1)
		go func() {
			_, err := other.Exec(t.Context(), `select assume_ownership('other/2', 'there', $1, $2)`, version, owner)
			taken <- err
		}()
		require.Eventually(t, func() bool { // it waits for the row that the COPY holds
			return f.text(`select count(*)::text from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'`,
				int32(other.PgConn().PID())) == "1"
		}, patience, 5*time.Millisecond)
		f.terminateStore()
		require.NoError(t, <-taken)
		requireLost(f)
		require.Empty(t, f.rows())
	})
	t.Run("to a new history", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.OwnerCheckEvery = 50 * time.Millisecond
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		f.exec(`select ensure_replication_config($1, '{p}', $1, auto_reset => true)`, w(5))
		require.ErrorIs(t, f.end(), changelog.ErrOwnershipLost)
		require.ErrorContains(t, f.err, "owned by nobody at replica version "+w(5))
	})
	t.Run("same owner, new history", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.OwnerCheckEvery = time.Hour
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		f.exec(`update "replicationConfig" set "replicaVersion" = '05'`)
		f.tail.transaction(w(2), 3, 10)
		require.ErrorIs(t, f.end(), changelog.ErrOwnershipLost)
		require.Equal(t, w(1), f.head())
	})
	t.Run("the log is gone", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		f.exec(`truncate "replicationState", "changeLog"`)
		f.tail.transaction(w(2), 3, 10)
		require.ErrorIs(t, f.end(), changelog.ErrOwnershipLost)
	})
}

func TestStoreLogFellBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run()
	f.tail.transaction(w(1), 3, 10)
	f.tail.transaction(w(2), 3, 10)
	f.awaitStored(w(2))
	f.exec(`update "replicationState" set "lastWatermark" = $1`, w(1))
	f.tail.transaction(w(3), 3, 10)
	require.ErrorIs(t, f.end(), changelog.ErrFellBack)
	require.ErrorContains(t, f.err, "its head is "+w(1)+", and was "+w(2))
	require.Equal(t, w(1), f.head())
}

func TestStoreReportsProgress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cfg.ProgressEvery = time.Millisecond
	recorded := func() string {
		return f.text(`select coalesce(max(streamed_watermark), '') from progress`)
	}
	release := f.lockState()
	f.tail.transaction(w(1), 3, 10)
	f.tail.shown(w(5))
	f.run()
	f.awaitWaiting()
	require.Empty(t, recorded(), "before what it covers is stored")
	release()
	f.awaitStored(w(5))
	require.Equal(t, w(5), recorded())

	f.tail.shown(w(6))
	f.awaitStored(w(6))
	require.Equal(t, w(6), recorded())

	f.tail.shown(w(7) + ".01")
	f.tail.begin(w(8))
	f.tail.publish()
	f.awaitStored(w(7) + ".01")
	f.tail.commit()
	f.tail.shown(w(8))
	f.awaitStored(w(8))
	require.Equal(t, w(7)+".01", recorded(), "a commit speaks for itself")

	f.tail.shown(w(9))
	f.stop()
	require.NoError(t, f.end())
	require.Equal(t, w(9), recorded(), "the last mark is recorded before the end")
	f.requireLog()
}

func TestStoreDrains(t *testing.T) {
	t.Parallel()
	t.Run("what is whole", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.BatchRows = 10
		release := f.lockState()
		f.tail.transaction(w(1), 3, 10)
		f.run()
		f.awaitWaiting()
		for n := 2; n <= 20; n++ {
			f.tail.transaction(w(n), 3+n, 10)
		}
		f.tail.begin(w(21))
		f.tail.publish()
		f.stop()
		release()
		require.NoError(t, f.end())
		f.requireLog()
		require.Equal(t, w(20), f.storedW)
	})
	t.Run("a transaction that goes on", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.BatchRows = 10
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.tail.begin(w(2))
		for range 50 {
			f.tail.data(10)
		}
		f.tail.publish()
		f.awaitTail("passed", func(s state) bool { return s.passed == 54 })
		f.halt()
		f.requireLog()
	})
	t.Run("a server that does not answer", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.DrainTimeout = 100 * time.Millisecond
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		f.proxy.block(toServer)
		f.tail.transaction(w(2), 3, 10)
		started := time.Now()
		f.halt()
		require.Less(t, time.Since(started), 5*time.Second)
		f.requireLogBelow(w(2))
	})
	t.Run("before it could connect", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.cfg.DrainTimeout = 100 * time.Millisecond
		f.proxy.block(toServer)
		f.run()
		f.halt()
		require.Empty(t, f.rows())
	})
}

// requireLogBelow is requireLog for a log that ends before a watermark.
func (f *fixture) requireLogBelow(end string) {
	f.t.Helper()
	for i, r := range f.tail.want {
		if r.Watermark >= end {
			f.tail.want, f.tail.begun = f.tail.want[:i], i
			break
		}
	}
	f.requireLog()
}

func TestStoreFromBelowHead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run()
	f.tail.transaction(w(1), 3, 10)
	f.tail.transaction(w(2), 3000, 10)
	f.tail.transaction(w(3), 3, 10)
	f.awaitStored(w(3))
	f.halt()

	// The same once more, then something new.
	again := newMemory()
	again.transaction(w(1), 3, 10)
	again.transaction(w(2), 3000, 10)
	again.transaction(w(3), 3, 10)
	again.transaction(w(4), 3, 10)
	f.tail, f.cfg.Tail = again, again
	f.storedW = ""
	f.run()
	f.awaitStored(w(4))
	f.requireLog()
	f.halt()
}

func TestStoreRunEndsWithContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	store, err := changelog.NewStore(f.cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.tail.transaction(w(1), 3, 10)
	require.NoError(t, store.Run(ctx))
	f.requireLog() // it was there before the stop
}
