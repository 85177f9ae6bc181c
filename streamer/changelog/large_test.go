package changelog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// withoutInsert has the store connect as a role that may call the functions and read, but
// not insert into the log.
func (f *fixture) withoutInsert() {
	f.t.Helper()
	role := "streamer_" + f.db.Name
	f.exec(`create role ` + role + ` login`)
	f.exec(`grant usage on schema cdc to ` + role)
	f.exec(`grant execute on all functions in schema cdc to ` + role)
	f.exec(`grant select on all tables in schema cdc to ` + role)
	f.cfg.Conn.User = role
}

// eachWay runs a test with COPY and with append_changes.
func eachWay(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	t.Run("by copy", func(t *testing.T) {
		t.Parallel()
		test(t, newFixture(t))
	})
	t.Run("in pieces", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.withoutInsert()
		test(t, f)
	})
}

func TestStoreLarge(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, f *fixture) {
		f.cfg.BatchRows, f.cfg.BatchBytes = 100, 200_000
		f.tail.transaction(w(1), 3, 10)
		f.tail.transaction(w(2), 101, 10) // rows
		f.tail.transaction(w(3), 3, 10)
		f.tail.transaction(w(4), 3, 300_000) // bytes, one message over several frames
		f.tail.transaction(w(5), 5000, 300)
		f.tail.transaction(w(6), 40, 65_536-60)
		f.tail.transaction(w(7), 3, 10)
		f.run()
		f.awaitStored(w(7))
		f.requireLog()
		require.Equal(t, "1", f.text(`select count(distinct xmin::text)::text from "changeLog" where watermark = $1`, w(5)))
		f.halt()
	})
}

func TestStoreLargeMessage(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, f *fixture) {
		f.tail.transaction(w(1), 3, 60<<20)
		f.run()
		f.awaitStored(w(1))
		f.requireLog()
		f.halt()
	})
}

func TestStoreLargeWhileItArrives(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, f *fixture) {
		f.tail.setDrops()
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		f.tail.begin(w(2))
		f.tail.data(10)
		f.tail.publish()
		f.tail.setFull(true) // far below a batch, but nothing else will come
		f.awaitTail("passed", func(s state) bool { return s.passed == 5 })
		require.Equal(t, "0", f.text(`select count(*)::text from "changeLog" where watermark = $1`, w(2)))
		for range 100 {
			f.tail.data(10_000)
			f.tail.publish()
		}
		f.awaitTail("passed", func(s state) bool { return s.passed == 105 })
		require.False(t, f.tail.Kept(3), "the beginning is dropped")
		f.tail.setFull(false)
		f.tail.commit()
		f.tail.transaction(w(3), 3, 10)
		f.awaitStored(w(3))
		f.requireLog()
		f.halt()
	})
}

func TestStoreLargeCutOff(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, f *fixture) {
		f.cfg.BatchRows = 10
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.awaitStored(w(1))
		pid := f.storePID()
		f.tail.begin(w(2))
		for range 50 {
			f.tail.data(10_000)
		}
		f.tail.publish()
		f.awaitTail("passed", func(s state) bool { return s.passed == 54 })
		f.tail.abort()
		f.tail.transaction(w(2), 4, 20) // the same again, decoded otherwise
		f.awaitStored(w(2))
		f.requireLog()
		require.Equal(t, pid, f.storePID(), "one connection")

		// Cut off before the store has seen any of it, and in the middle of a batch.
		release := f.lockState()
		f.tail.transaction(w(3), 3, 10)
		f.awaitWaiting()
		f.tail.transaction(w(4), 3, 10)
		f.tail.begin(w(5))
		f.tail.data(10)
		f.tail.abort()
		f.tail.begin(w(6))
		f.tail.abort()
		f.tail.transaction(w(6), 3, 10)
		release()
		f.awaitStored(w(6))
		f.requireLog()
		f.halt()
	})
}

func TestStoreLargeConnectionDies(t *testing.T) {
	t.Parallel()
	begin := func(f *fixture) {
		f.cfg.BatchRows = 10
		f.run()
		f.tail.transaction(w(1), 3, 10)
		f.tail.begin(w(2))
		for range 50 {
			f.tail.data(10_000)
		}
		f.tail.publish()
		f.awaitTail("passed", func(s state) bool { return s.passed == 54 })
	}
	t.Run("kept", func(t *testing.T) {
		t.Parallel()
		eachWay(t, func(t *testing.T, f *fixture) {
			begin(f)
			f.terminateStore()
			f.tail.data(10)
			f.tail.commit()
			f.tail.transaction(w(3), 3, 10)
			f.awaitStored(w(3))
			f.requireLog()
			f.halt()
		})
	})
	t.Run("dropped", func(t *testing.T) {
		t.Parallel()
		eachWay(t, func(t *testing.T, f *fixture) {
			f.tail.setDrops()
			begin(f)
			f.terminateStore()
			f.tail.data(10)
			f.tail.publish()
			f.awaitTail("broken", func(s state) bool { return s.broken == 3 })
			f.tail.abort()
			f.tail.transaction(w(2), 30, 10)
			f.tail.transaction(w(3), 3, 10)
			f.awaitStored(w(3))
			f.requireLog()
			f.halt()
		})
	})
	t.Run("dropped, but committed", func(t *testing.T) {
		t.Parallel()
		eachWay(t, func(t *testing.T, f *fixture) {
			f.tail.setDrops()
			begin(f)
			f.proxy.block(toClient)
			f.tail.commit()
			if f.cfg.Conn.User != "postgres" { // a conversation: it needs the answers up to its commit
				f.awaitIdleInTransaction()
				f.proxy.release(toClient)
			}
			require.Eventually(t, func() bool { return f.head() == w(2) }, patience, time.Millisecond)
			f.proxy.release(toClient)
			f.proxy.cut()
			f.tail.transaction(w(3), 3, 10)
			f.awaitStored(w(3))
			s, _ := f.tail.state()
			require.EqualValues(t, -1, s.broken)
			f.requireLog()
			f.halt()
		})
	})
	t.Run("refused in the middle", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.exec(`create sequence tries`)
		f.exec(`create function refuse_once() returns trigger language plpgsql as $$
			begin
				if new.pos = 20 and nextval('cdc.tries') = 1 then
					raise 'not this one' using errcode = 'XX001';
				end if;
				return new;
			end $$`)
		f.exec(`create trigger refuse_once before insert on "changeLog" for each row execute function refuse_once()`)
		f.tail.transaction(w(1), 3000, 5000)
		f.run()
		f.awaitStored(w(1))
		require.Contains(t, f.lines.String(), "XX001")
		f.requireLog()
		f.halt()
	})
}

// awaitIdleInTransaction waits until the store's session waits for us inside a
// transaction.
func (f *fixture) awaitIdleInTransaction() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		return f.text(`select count(*)::text from pg_stat_activity where datname = current_database()
			and application_name = 'zero-change-streamer' and state = 'idle in transaction'`) == "1"
	}, patience, time.Millisecond)
}
