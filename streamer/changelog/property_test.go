package changelog_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/changelog"
)

// schedule is a source, a store and accidents. What it appends for a watermark is always
// the same, as it is when upstream sends a transaction again.
type schedule struct {
	*fixture
	story  []string
	mayEnd bool // somebody else may take the log
}

// over says that the store has ended.
func (s *schedule) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// rewound reacts to a Break as a source does: all from there on is sent again, later.
func (s *schedule) rewound() bool {
	state, _ := s.tail.state()
	if state.broken < 0 {
		return false
	}
	s.story = append(s.story, "restart")
	s.tail.abort()
	return true
}

// number is the number of the next transaction.
func (s *schedule) number() int {
	if s.tail.begun == 0 {
		return 1
	}
	for n := 1; ; n++ {
		if w(n) > s.tail.last() {
			return n
		}
	}
}

// rowsOf and sizeOf say what transaction n is.
func rowsOf(n int) int { return 2 + n*7%45 }
func sizeOf(n int) int { return n * 997 % 8000 }

// send appends the next transaction, or a part of it, in blocks of a few rows.
func (s *schedule) send(part int) {
	n := s.number()
	s.story = append(s.story, "send "+strconv.Itoa(n))
	rows := rowsOf(n)
	s.tail.begin(w(n))
	for i := range rows - 2 {
		if i >= part {
			s.tail.publish()
			s.tail.abort()
			s.story = append(s.story, "cut off")
			return
		}
		s.tail.data(sizeOf(n))
		if i%10 == 9 {
			s.tail.publish()
			if s.rewound() {
				return
			}
		}
	}
	s.tail.commit()
}

// settle waits until everything is stored.
func (s *schedule) settle() {
	s.t.Helper()
	s.story = append(s.story, "settle")
	s.await("everything stored", func() (bool, <-chan struct{}) {
		_, changed := s.tail.state() // first, so that what happens from here on is seen
		if s.rewound() && s.tail.begun == 0 {
			s.send(1000)
		}
		state, _ := s.tail.state()
		return s.mayEnd && s.over() || state.stored == s.tail.next && state.broken < 0, changed
	})
	if s.tail.begun > 0 && !s.mayEnd {
		s.awaitStored(s.tail.last()) // the tail is told first
	}
}

func TestStoreUnderAnySchedule(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, f *fixture) {
		restarts := 0
		rapid.Check(t, func(rt *rapid.T) {
			f.exec(`delete from "changeLog" where watermark > $1`, version)
			f.exec(`update "replicationState" set "lastWatermark" = $1`, version)
			f.exec(`delete from progress`)
			f.tail = newMemory()
			f.cfg.Tail, f.storedW = f.tail, ""
			f.cfg.BatchRows, f.cfg.BatchBytes = 30, 40_000
			f.proxy.cutAfter(-1)
			if rapid.Bool().Draw(rt, "drops") {
				f.tail.setDrops()
			}
			s := &schedule{fixture: f}
			f.run()
			defer func() {
				if t.Failed() {
					t.Log(s.story)
				}
			}()
			const accidents = 8
			for range rapid.IntRange(1, 30).Draw(rt, "steps") {
				s.rewound()
				switch step := rapid.IntRange(0, 9+accidents).Draw(rt, "step"); step {
				case 0:
					s.send(rapid.IntRange(0, 40).Draw(rt, "part"))
				case 1:
					s.story = append(s.story, "cut")
					f.proxy.cut()
				case 2:
					bytes := rapid.IntRange(0, 150_000).Draw(rt, "bytes")
					s.story = append(s.story, "cut after "+strconv.Itoa(bytes))
					f.proxy.cutAfter(bytes)
				case 3:
					f.tail.setFull(rapid.Bool().Draw(rt, "full"))
				case 4:
					f.tail.shown(w(s.number()) + ".05")
				case 5:
					s.story = append(s.story, "terminate")
					f.exec(`select pg_terminate_backend(pid) from pg_stat_activity
						where datname = current_database() and application_name = 'zero-change-streamer'`)
				case 6, 7:
					s.settle() // so that accidents meet a store that is at work
				default:
					s.send(rowsOf(s.number()))
				}
			}
			f.tail.setFull(false)
			s.send(1000)
			s.settle()
			f.requireLog()
			restarts += strings.Count(strings.Join(s.story, "\n"), "restart")
			f.halt()
			require.GreaterOrEqual(t, f.storedW, f.head())
			require.Equal(t, "t", f.text(`select coalesce(bool_and(c.n = c.top + 1 and c.commits = 1 and c.least = 0), true)::text::char
				from (select count(*) as n, max(pos) as top, min(pos) as least, count(precommit) as commits
					from "changeLog" where watermark > $1 group by watermark) as c`, version))
		})
		t.Log("restarts of the stream:", restarts)
	})
}

// reach stores everything up to transaction n.
func (s *schedule) reach(n int) {
	s.t.Helper()
	for {
		for s.rewound() || s.number() <= n {
			s.send(1000)
		}
		s.settle()
		if s.number() > n {
			return
		}
	}
}

// renew begins again with an empty tail.
func (s *schedule) renew(drops bool) {
	s.tail = newMemory()
	s.cfg.Tail, s.storedW, s.story = s.tail, "", nil
	s.cfg.BatchRows, s.cfg.BatchBytes = 30, 40_000
	s.proxy.cutAfter(-1)
	if drops {
		s.tail.setDrops()
	}
}

// sessions are those of the store.
const sessions = `from pg_stat_activity where datname = current_database() and application_name = $1`

func (s *schedule) application() string { return s.cfg.Conn.RuntimeParams["application_name"] }

// accident lets something happen to a store, or not.
func (s *schedule) accident(rt *rapid.T) {
	switch rapid.IntRange(0, 5).Draw(rt, "accident") {
	case 0:
		s.story = append(s.story, "cut")
		s.proxy.cut()
	case 1:
		bytes := rapid.IntRange(0, 50_000).Draw(rt, "bytes")
		s.story = append(s.story, "cut after "+strconv.Itoa(bytes))
		s.proxy.cutAfter(bytes)
	case 2:
		s.story = append(s.story, "terminate")
		s.exec(`select pg_terminate_backend(pid) `+sessions, s.application())
	case 3:
		s.tail.setFull(rapid.Bool().Draw(rt, "full"))
	case 4:
		s.story = append(s.story, "shown "+s.tail.last())
		s.tail.shown(s.tail.last() + rapid.SampledFrom([]string{"", ".05"}).Draw(rt, "mark"))
	case 5:
		s.send(rapid.IntRange(0, 40).Draw(rt, "part"))
	}
}

// TestTakeOverUnderAnySchedule lets an owner and a newcomer store the same stream, each at
// its own pace. Whenever the log changes hands, it has all, in order, and once.
func TestTakeOverUnderAnySchedule(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, f *fixture) {
		r := rivalOf(beside(t, f.db))
		r.cfg.Conn.User = f.cfg.Conn.User
		r.cfg.Conn.RuntimeParams["application_name"] = "newcomer"
		f.cfg.OwnerCheckEvery = 20 * time.Millisecond
		old, young := &schedule{fixture: f, mayEnd: true}, &schedule{fixture: r.fixture}
		early, late := 0, 0
		rapid.Check(t, func(rt *rapid.T) {
			for _, s := range []*schedule{old, young} {
				require.Eventually(t, func() bool { return f.text(`select count(*)::text `+sessions, s.application()) == "0" },
					patience, time.Millisecond, "what was sent may still be stored")
				s.renew(rapid.Bool().Draw(rt, "drops"))
			}
			f.exec(`delete from "changeLog" where watermark > $1`, version)
			f.exec(`update "replicationState" set "lastWatermark" = $1, owner = $2`, version, owner)
			f.exec(`delete from progress`)
			f.exec(`delete from streamer`)
			r.assumed = nil
			r.register()
			old.run()
			young.run()
			defer func() {
				if t.Failed() {
					t.Log(old.story)
					t.Log(young.story)
				}
			}()
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				s := old
				if rapid.IntRange(0, 9).Draw(rt, "who") < 4 {
					s = young
				}
				s.rewound()
				switch step := rapid.IntRange(0, 9).Draw(rt, "step"); {
				case s == old && old.over():
				case step < 3:
					s.accident(rt)
				case step < 5:
					s.settle()
				case s == young && young.number() > old.number() && step < 9: // mostly not ahead
				default:
					s.send(rowsOf(s.number()))
				}
			}
			r.mu.Lock()
			if len(r.assumed) > 0 {
				early++
			} else {
				late++
			}
			r.mu.Unlock()
			young.tail.setFull(false)
			old.tail.setFull(false)
			young.reach(old.number() - 1)
			if rapid.Bool().Draw(rt, "mark") {
				young.tail.shown(young.tail.last())
			} else {
				young.reach(young.number())
			}
			r.await("the take-over", func() (bool, <-chan struct{}) {
				r.mu.Lock()
				defer r.mu.Unlock()
				return len(r.assumed) > 0, r.changed
			})
			require.ErrorIs(t, old.end(), changelog.ErrOwnershipLost)
			young.reach(young.number())
			young.requireLog()
			young.halt()
			require.Len(t, r.assumed, 1)
			require.LessOrEqual(t, old.storedW, young.head()+".05")
			require.Equal(t, newcomer, young.text(`select owner from "replicationState"`))
			require.Equal(t, "t", young.text(`select coalesce(bool_and(c.n = c.top + 1 and c.commits = 1 and c.least = 0), true)::text::char
				from (select count(*) as n, max(pos) as top, min(pos) as least, count(precommit) as commits
					from "changeLog" where watermark > $1 group by watermark) as c`, version))
		})
		t.Log("taken over on the way:", early, "at the end:", late)
	})
}
