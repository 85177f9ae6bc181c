package changelog_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// schedule is a source, a store and accidents. What it appends for a watermark is always
// the same, as it is when upstream sends a transaction again.
type schedule struct {
	*fixture
	story []string
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
		if s.rewound() && s.tail.begun == 0 {
			s.send(1000)
		}
		state, changed := s.tail.state()
		return state.stored == s.tail.next && state.broken < 0, changed
	})
	if s.tail.begun > 0 {
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
