package tail_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/change"
	"millrace/streamer/tail"
	"millrace/streamer/watermark"
)

// model is the tail as a slice of everything that was ever appended.
type model struct {
	t      *rapid.T
	l      *tail.Tail
	budget int64

	all       []said // by sequence number; a void span's extra number is a message of kind none
	published int
	open      bool
	begin     int // of the open or the last attempt
	stored    int
	passed    int
	broken    int // -1: not
	shut      bool
	opened    string // what it was opened behind, or the start
	mark      string
	markSeq   int
	number    uint64
	largest   int
	rooms     []<-chan struct{}
}

type said struct {
	text    string
	kind    change.Kind
	w       string
	attempt int
	void    bool
	extra   bool
}

func (m *model) last() string {
	for i := len(m.all) - 1; i >= 0; i-- {
		if m.all[i].kind == change.Commit && !m.all[i].void {
			return m.all[i].w
		}
	}
	return "10"
}

func (m *model) append(text string, kind change.Kind) {
	var w string
	if kind == change.Begin {
		m.begin = len(m.all)
		m.number++
		w = watermark.Encode(m.number)
	} else {
		w = m.all[m.begin].w
	}
	m.largest = max(m.largest, len(text))
	m.all = append(m.all, said{text: text, kind: kind, w: w, attempt: m.begin})
	b := []byte(text)
	if rapid.Bool().Draw(m.t, "spare") {
		b = append(m.l.Spare(len(text)/rapid.IntRange(1, 3).Draw(m.t, "guess")), text...)
		// Spare may have closed a block, and so published what was in it.
		m.published = len(m.all) - 1 - m.l.Pending()
	}
	switch kind {
	case change.Begin:
		m.l.Begin(b, w)
		m.open = true
	case change.Data:
		m.l.Data(b, change.Update)
	case change.Commit:
		m.l.Commit(b)
		m.open = false
	}
	m.published = len(m.all) - m.l.Pending()
}

// extra is the number that every void span takes for itself.
func (m *model) void(from int) {
	m.all = append(m.all, said{extra: true, void: true, attempt: from})
	for i := from; i < len(m.all); i++ {
		m.all[i].void = true
	}
	m.published = len(m.all)
	m.open = false
}

// kept is the number of the first message held, as the tail has it.
func (m *model) kept() int {
	low, high := 0, len(m.all)
	for low < high {
		if mid := (low + high) / 2; m.l.Kept(int64(mid)) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// floor is R1 by definition: behind the last message dropped that counts, but never before
// what the tail was opened behind.
func (m *model) floor() watermark.Position {
	least := watermark.After(m.opened)
	for i := m.kept() - 1; i >= 0; i-- {
		s := m.all[i]
		if s.void {
			continue
		}
		dropped := watermark.Position{Watermark: s.w, Pos: int64(i - s.attempt)}
		if s.kind == change.Commit {
			dropped = watermark.After(s.w)
		}
		if dropped.Compare(least) > 0 {
			return dropped
		}
		break
	}
	return least
}

// durable are the watermarks that a tail may be opened behind: those of stored commits, and
// of what the log has between them although the stream has not.
func (m *model) durable() []string {
	list := []string{"10", "10.01"}
	for _, s := range m.all[:m.stored] {
		if s.kind == change.Commit && !s.void {
			list = append(list, s.w, s.w+".01")
		}
	}
	return list
}

// check compares all that can be asked.
func (m *model) check() {
	t, l := m.t, m.l
	first := m.kept()
	if last := m.last(); l.Last() != last { // Break has found nothing older in the tail
		require.Greater(t, m.opened, last)
		require.Equal(t, m.opened, l.Last())
	}
	require.Equal(t, m.floor(), l.Floor())
	require.Equal(t, m.broken >= 0, l.Restart())
	require.Equal(t, len(m.all)-m.published, l.Pending())
	for i := range first { // nothing is dropped that the store has not passed, no commit that is not durable
		require.True(t, i < max(m.stored, m.passed) || m.all[i].extra)
		require.False(t, m.all[i].kind == change.Commit && !m.all[i].extra && !m.all[i].void && i >= m.stored)
	}
	w, seq, ok := l.Mark()
	require.Equal(t, m.mark != "", ok)
	if ok {
		require.Equal(t, m.mark, w)
		require.EqualValues(t, m.markSeq, seq)
	}
	m.checkRead(rapid.IntRange(0, len(m.all)).Draw(t, "seq"), first)
	m.checkSeek(watermark.After(watermark.Encode(uint64(rapid.IntRange(35, int(m.number)+1).Draw(t, "position"))))) //nolint:gosec // small
	m.checkStore()
	for _, s := range m.all {
		if s.kind == change.Begin && !s.extra && s.attempt < m.published {
			_, void, stored := l.Outcome(int64(s.attempt))
			require.Equal(t, s.void, void)
			require.Equal(t, !s.void && s.attempt < m.stored, stored)
		}
	}
}

func (m *model) checkRead(seq, first int) {
	t := m.t
	// Outside: from the first message that is not void.
	want := seq
	for want < m.published && m.all[want].void {
		want++
	}
	run, next, found := m.l.Read(int64(seq), change.Outside)
	switch {
	case want < first:
		require.Equal(t, change.Fallen, found)
	case want >= m.published:
		require.Equal(t, change.Dry, found)
	default:
		require.Equal(t, change.Ready, found)
		require.EqualValues(t, want, next)
		m.sameAs(run, want)
	}
	// Inside the attempt of that number, if that is a message.
	if seq >= m.published || m.all[seq].extra {
		return
	}
	run, next, found = m.l.Read(int64(seq), int64(m.all[seq].attempt))
	switch s := m.all[seq]; {
	case s.void:
		require.Equal(t, change.Void, found)
		require.True(t, next > int64(seq) && next <= int64(m.published))
		require.True(t, m.all[next-1].extra)
	case seq < first:
		require.Equal(t, change.Fallen, found)
	default:
		require.Equal(t, change.Ready, found)
		require.EqualValues(t, seq, next)
		m.sameAs(run, seq)
	}
}

func (m *model) sameAs(run change.Run, seq int) {
	require.Positive(m.t, run.Len())
	require.EqualValues(m.t, seq, run.Seq)
	for i := range run.Len() {
		s := m.all[seq+i]
		require.False(m.t, s.void)
		require.Equal(m.t, s.text, string(run.Message(i)))
		require.Equal(m.t, s.kind, run.Entry(i).Kind)
		require.Equal(m.t, s.w, run.Tx(i).Watermark)
		require.EqualValues(m.t, s.attempt, run.Tx(i).Attempt)
		require.EqualValues(m.t, seq+i-s.attempt, run.Pos(i))
	}
}

// checkSeek: what a reader gets from there on is everything behind its position and
// nothing else, but for a transaction of which it has the end already.
func (m *model) checkSeek(p watermark.Position) {
	seq, ok := m.l.Seek(p)
	require.Equal(m.t, !m.shut && p.Compare(m.floor()) >= 0, ok)
	if !ok {
		return
	}
	for i, s := range m.all[:m.published] {
		if !s.void && s.w > p.Watermark {
			require.LessOrEqual(m.t, seq, int64(i), "a message behind the position is passed over")
			require.Equal(m.t, change.Begin, s.kind)
			break
		}
	}
}

func (m *model) checkStore() {
	if m.broken >= 0 {
		_, next, ok := m.l.StoreRead(int64(m.stored))
		require.False(m.t, ok)
		require.EqualValues(m.t, m.stored, next)
		return
	}
	want := m.stored
	for want < m.published && m.all[want].void {
		want++
	}
	run, next, ok := m.l.StoreRead(int64(m.stored))
	require.EqualValues(m.t, want, next)
	require.Equal(m.t, want < m.published && m.l.Kept(int64(want)), ok)
	if ok {
		m.sameAs(run, want)
	}
}

func TestTailIsItsMessages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.SampledFrom([]int64{1, 1 << 10, 3 << 10, 8 << 10, 1 << 20}).Draw(t, "budget")
		shut := rapid.Bool().Draw(t, "shut")
		l, err := tail.New(tail.Config{Start: "10", MaxBytes: budget, Shut: shut})
		require.NoError(t, err)
		m := &model{t: t, l: l, budget: budget, broken: -1, shut: shut, opened: "10", number: 36}
		row := rapid.Custom(func(t *rapid.T) string {
			n := rapid.IntRange(0, 300).Draw(t, "row")
			if rapid.IntRange(0, 15).Draw(t, "huge") == 0 {
				n *= 30
			}
			return strings.Repeat("x", n)
		})
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				m.t = t
				for range rapid.IntRange(1, 12).Draw(t, "messages") {
					switch {
					case !m.open:
						m.append(fmt.Sprint("begin ", len(m.all)), change.Begin)
					case rapid.IntRange(0, 3).Draw(t, "end") == 0:
						m.append(fmt.Sprint("commit ", len(m.all)), change.Commit)
					default:
						m.append(fmt.Sprint(len(m.all), row.Draw(t, "data")), change.Data)
					}
				}
			},
			"publish": func(t *rapid.T) {
				require.Equal(t, m.published < len(m.all), m.l.Publish())
				m.published = len(m.all)
			},
			"abort": func(t *rapid.T) {
				m.l.Abort()
				m.published = len(m.all)
				from := m.begin
				if m.broken >= 0 {
					from = m.broken
				} else if !m.open {
					return
				}
				m.broken = -1
				if m.markSeq > from {
					m.mark, m.markSeq = "", 0
				}
				m.void(from)
				for _, ch := range m.rooms {
					require.True(t, closed(ch))
				}
				m.rooms = nil
			},
			"shown": func(t *rapid.T) {
				if m.open {
					t.Skip("inside")
				}
				m.l.Shown(m.last())
				if m.last() > m.mark {
					m.mark, m.markSeq = m.last(), len(m.all)
				}
			},
			"store": func(t *rapid.T) { // some whole transactions
				if m.broken >= 0 {
					t.Skip("broken")
				}
				to := m.stored
				for i := m.stored; i < m.published; i++ {
					if s := m.all[i]; s.extra || (s.kind == change.Commit && !s.void) {
						to = i + 1
						if rapid.Bool().Draw(t, "enough") {
							break
						}
					}
				}
				m.l.Stored(int64(to))
				m.stored, m.passed = to, max(m.passed, to)
			},
			"pass": func(t *rapid.T) { // some of the first transaction that is not stored
				if m.broken >= 0 || m.stored >= m.published || m.all[m.stored].void {
					t.Skip("nothing")
				}
				to := max(m.passed, m.stored)
				for to < m.published && m.all[to].attempt == m.all[m.stored].attempt && rapid.IntRange(0, 9).Draw(t, "on") > 0 {
					to++
				}
				m.l.Passed(int64(to))
				m.passed = to
			},
			"die": func(t *rapid.T) {
				if m.broken >= 0 || m.passed <= m.stored || m.all[m.stored].void {
					t.Skip("nothing sent")
				}
				if m.l.Kept(int64(m.stored)) {
					m.l.Passed(int64(m.stored))
					m.passed = m.stored
				} else {
					m.l.Break(int64(m.stored))
					m.broken = m.stored
				}
			},
			"room": func(t *rapid.T) {
				ch := m.l.Room()
				if m.l.Stats().Bytes > m.budget {
					m.published = len(m.all)
				}
				want := m.l.Stats().Bytes > m.budget && max(m.stored, m.passed) < m.published && m.broken < 0
				if m.published == len(m.all) {
					require.Equal(t, want, ch != nil)
				}
				require.Equal(t, ch != nil, m.l.Full())
				if ch != nil {
					require.False(t, closed(ch))
					m.rooms = append(m.rooms, ch)
				}
			},
			"open": func(t *rapid.T) {
				if !m.shut {
					t.Skip("not shut")
				}
				m.opened = rapid.SampledFrom(m.durable()).Draw(t, "opened")
				m.l.Open(m.opened)
				m.shut = false
			},
			"": func(t *rapid.T) {
				m.t = t
				m.check()
			},
		})
	})
}
