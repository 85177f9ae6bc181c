package changelog_test

import (
	"fmt"
	"sync"

	"millrace/streamer/change"
	"millrace/streamer/changelog"
	"millrace/streamer/watermark"
)

var _ changelog.Tail = (*memory)(nil)

// memory is a tail without a budget: when it is full, and whether what was passed is
// dropped, is for the test to say. Every publish makes a block of its own.
type memory struct {
	mu      sync.Mutex
	runs    []change.Run
	voids   [][2]int64
	broken  int64
	passed  int64
	stored  int64
	full    bool
	drops   bool // what was passed is dropped at once
	mark    string
	markSeq int64
	asked   string // the newest mark that the store has been told
	wake    chan struct{}
	changed chan struct{} // closed and made anew whenever something has changed

	// Of the appender.
	block *change.Block
	next  int64
	tx    change.Tx
	open  bool
	want  []row // what the log must hold in the end
	begun int   // rows of want that are of whole transactions
	txs   []started
}

// started is a transaction: its attempt, and where its rows begin in want.
type started struct {
	attempt int64
	row     int
}

// row is a row of the log.
type row struct {
	Watermark string
	Pos       int64
	Change    string
	Precommit string // empty: null
}

func newMemory() *memory {
	return &memory{broken: -1, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// touch tells the store and whoever watches; the lock is held.
func (m *memory) touch() {
	m.tell()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// tell tells whoever watches; the lock is held.
func (m *memory) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) add(kind change.Kind, stored string, tag change.Tag) {
	if m.block == nil {
		m.block = change.NewBlock(m.next, len(stored)+128, 16)
	}
	m.block.Add(change.Append(m.block.Spare(), kind, []byte(stored), m.tx.Watermark), kind, tag, m.tx)
	r := row{Watermark: m.tx.Watermark, Pos: m.tx.Pos, Change: stored}
	if kind == change.Commit {
		r.Precommit = m.tx.Watermark
	}
	m.want = append(m.want, r)
	m.tx.Pos++
	m.next++
}

func (m *memory) begin(w string) {
	m.tx = change.Tx{Watermark: w, Attempt: m.next}
	m.open = true
	m.txs = append(m.txs, started{attempt: m.next, row: len(m.want)})
	m.add(change.Begin, `{"tag":"begin"}`, change.Other)
}

// data adds a row whose text has about size bytes, and is the same whenever the same
// transaction is sent again.
func (m *memory) data(size int) {
	filler := make([]byte, size)
	for i := range filler {
		filler[i] = 'a' + byte((int(m.tx.Pos)+i)%26)
	}
	m.add(change.Data, fmt.Sprintf(`{"tag":"insert","new":{"n":%d,"nul":"\u0000","w":"%s","t":"%s"}}`,
		m.tx.Pos, m.tx.Watermark, filler), change.Insert)
}

func (m *memory) commit() {
	m.add(change.Commit, `{"tag":"commit"}`, change.Other)
	m.open = false
	m.begun = len(m.want)
	m.publish()
}

// transaction adds a whole one of rows messages.
func (m *memory) transaction(w string, rows, size int) {
	m.begin(w)
	for range rows - 2 {
		m.data(size)
	}
	m.commit()
}

func (m *memory) publish() {
	if m.block == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs = append(m.runs, m.block.Run(0, m.block.Len()))
	m.block = nil
	m.touch()
}

// abort cuts off the open transaction, or all behind what Break named.
func (m *memory) abort() {
	m.publish()
	m.mu.Lock()
	defer m.mu.Unlock()
	from := m.next
	if m.open {
		from = m.tx.Attempt
	}
	if m.broken >= 0 {
		from = min(from, m.broken)
		m.broken = -1
	}
	if from < m.next {
		m.voids = append(m.voids, [2]int64{from, m.next + 1})
		m.next++
	}
	m.open = false
	for len(m.txs) > 0 && m.txs[len(m.txs)-1].attempt >= from {
		m.want = m.want[:m.txs[len(m.txs)-1].row]
		m.txs = m.txs[:len(m.txs)-1]
	}
	m.begun = len(m.want)
	if m.markSeq > from {
		m.mark = ""
	}
	m.touch()
}

func (m *memory) shown(w string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark, m.markSeq = w, m.next
	m.touch()
}

func (m *memory) setFull(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = full
	m.touch()
}

func (m *memory) setDrops() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drops = true
}

// last is the watermark of the last whole transaction.
func (m *memory) last() string {
	if m.begun == 0 {
		return version
	}
	return m.want[m.begun-1].Watermark
}

// state is what a test waits for.
type state struct {
	passed, stored, broken int64
	asked                  string
}

func (m *memory) state() (state, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return state{passed: m.passed, stored: m.stored, broken: m.broken, asked: m.asked}, m.changed
}

func (m *memory) First() int64 { return 0 }

func (m *memory) StoreWake() <-chan struct{} { return m.wake }

func (m *memory) StoreRead(seq int64) (change.Run, int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken >= 0 {
		return change.Run{}, seq, false
	}
	end := int64(-1)
	for _, void := range m.voids {
		if seq >= void[0] && seq < void[1] {
			seq = void[1]
		}
	}
	for _, void := range m.voids {
		if void[0] > seq && (end < 0 || void[0] < end) {
			end = void[0]
		}
	}
	for _, run := range m.runs {
		if seq >= run.Seq && seq < run.Next() {
			to := run.Next()
			if end >= 0 {
				to = min(to, end)
			}
			return run.Cut(int(seq-run.Seq), int(to-run.Seq)), seq, true
		}
	}
	return change.Run{}, seq, false
}

func (m *memory) Full() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.full
}

func (m *memory) Passed(seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passed = seq
	if m.drops {
		m.drop(seq)
	}
	m.touch()
}

// drop forgets whole blocks below seq.
func (m *memory) drop(seq int64) {
	for len(m.runs) > 0 && m.runs[0].Next() <= seq {
		m.runs = m.runs[1:]
	}
}

func (m *memory) Stored(seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stored = seq
	m.drop(seq)
	m.touch()
}

func (m *memory) Kept(seq int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.runs) > 0 && seq >= m.runs[0].Seq
}

func (m *memory) Break(attempt int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = attempt
	m.touch()
}

func (m *memory) Mark() (string, int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked != m.mark {
		m.asked = m.mark
		m.tell()
	}
	return m.mark, m.markSeq, m.mark != ""
}

// mark number n of a test, past 2^31 and with the length of a real one.
func w(n int) string { return watermark.Encode(uint64(1)<<40 + uint64(n)) } //nolint:gosec // small
