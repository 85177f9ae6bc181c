// Package tail holds the end of the change log in memory: one appender, many readers.
//
// The tail is a sequence of messages, numbered from 0 and held in blocks. The appender,
// the goroutine of the change source, adds messages and publishes them; it never waits
// for a reader. Readers address the tail by sequence number and keep nothing in it. The
// store is the first reader: nothing is dropped before the store has passed it. What is
// stored stays until the budget is needed for something newer.
//
// A transaction that was cut off is a void span of sequence numbers: readers that had
// begun to send it say rollback, the others skip it whole [R5] [R6]. Void spans are
// remembered for as long as the tail lives, two numbers for each broken stream.
//
// Watermarks only grow, void spans aside [R4]; the caller of Begin sees to that by
// starting every stream behind Last.
package tail

import (
	"context"
	"errors"
	"slices"
	"sync"

	"millrace/streamer/change"
	"millrace/streamer/watermark"
)

const (
	defaultMaxBytes = 64 << 20
	// blockBytes is what a flush to a subscriber carries, too: blocks of this size keep
	// both the number of blocks and the waste at their ends small.
	blockBytes = 64 << 10
	// minBlockBytes lets a tiny budget still hold several blocks.
	minBlockBytes = 1 << 10
	// bytesPerEntry is about the smallest mean size of a message: it decides how many
	// index entries a block gets.
	bytesPerEntry = 96
	none          = -1
)

// Config is what a Tail needs. Start is required.
type Config struct {
	// Start is the watermark of the transaction that the tail begins behind: the head of
	// the log.
	Start string

	// MaxBytes is the budget for all blocks, capacity and index included; 64 MiB if
	// zero. One block and one message of any size fit always.
	MaxBytes int64

	// Shut keeps readers out until Open: only the store reads. It is for a stream whose
	// log is somebody else's still [R16].
	Shut bool
}

// Tail is the end of the log in memory. The methods of source.Sink belong to one
// goroutine, those for the store to another; the rest may be called from anywhere.
type Tail struct {
	maxBytes  int64
	blockSize int

	// Of the appender alone.
	cur     *change.Block
	tx      change.Tx // the open transaction; Pos is that of its next message
	open    bool
	pending int
	next    int64 // sequence number of the next message
	last    string
	torn    string // the transaction that Break cut off last

	mu     sync.Mutex
	blocks []held
	bytes  int64
	end    int64 // everything below is published
	stored int64 // everything below is durable or void
	passed int64 // everything below is at least sent in an open database transaction
	shut   bool  // no reader is served, whatever the floor
	floor  watermark.Position
	whole  string // the last transaction dropped whole, or Start
	voids  []span
	broken int64   // the attempt from which the stream must come again, or none
	doubts []int64 // attempts of torn transactions: see Outcome
	mark   mark
	room   chan struct{} // the appender waits on it; nil if it does not

	storeWake chan struct{}
	sweep     chan struct{}
	dry       []chan<- struct{} // readers that wait for new messages
	fallen    []chan<- struct{} // readers that wait for the store
}

// held is a block with its published part.
type held struct {
	block *change.Block
	run   change.Run
	size  int64
}

// span is a range of sequence numbers.
type span struct{ from, to int64 }

// mark says that everything up to watermark was shown before message seq.
type mark struct {
	watermark string
	seq       int64
}

// New checks cfg and returns an empty Tail.
func New(cfg Config) (*Tail, error) {
	if cfg.Start == "" {
		return nil, errors.New("tail: Start is required")
	}
	if cfg.MaxBytes < 0 {
		return nil, errors.New("tail: MaxBytes must not be negative")
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	return &Tail{
		maxBytes:  cfg.MaxBytes,
		blockSize: int(min(blockBytes, max(minBlockBytes, cfg.MaxBytes/8))),
		last:      cfg.Start,
		whole:     cfg.Start,
		floor:     watermark.After(cfg.Start),
		shut:      cfg.Shut,
		broken:    none,
		storeWake: make(chan struct{}, 1),
		sweep:     make(chan struct{}, 1),
	}, nil
}

// Open lets readers in behind the transaction w, which is durable, as is all before it.
// Those that wait in the log are woken.
func (t *Tail) Open(w string) {
	t.mu.Lock()
	t.shut = false
	t.raise(watermark.After(w))
	t.whole = max(t.whole, w)
	t.mu.Unlock()
	signal(t.sweep)
}

// Run wakes readers until ctx ends. It is a goroutine of its own, so that the appender
// pays for one wake-up and not for one per reader.
func (t *Tail) Run(ctx context.Context) error {
	var dry, fallen []chan<- struct{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.sweep:
		}
		t.mu.Lock()
		dry, t.dry = t.dry, dry[:0]
		fallen, t.fallen = t.fallen, fallen[:0]
		t.mu.Unlock()
		for _, list := range [2][]chan<- struct{}{dry, fallen} {
			for _, ch := range list {
				signal(ch)
			}
			clear(list) // a reader that is gone must not be kept
		}
	}
}

// signal wakes whoever waits on a channel of capacity 1.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Last is the watermark of the last whole transaction: a stream starts behind it.
func (t *Tail) Last() string { return t.last }

// Pending is the number of messages that Publish would make visible.
func (t *Tail) Pending() int { return t.pending }

// Spare returns an empty slice with space for about n bytes, for one message.
func (t *Tail) Spare(n int) []byte {
	if t.cur == nil || t.cur.Full() || (t.cur.Len() > 0 && t.cur.Room() < n) {
		t.grow(n)
	}
	return t.cur.Spare()
}

// Begin opens a transaction.
func (t *Tail) Begin(message []byte, w string) {
	t.tx = change.Tx{Watermark: w, Attempt: t.next}
	t.open = true
	if w == t.torn {
		t.mu.Lock()
		t.doubts = append(t.doubts, t.next)
		t.mu.Unlock()
	}
	t.add(message, change.Begin, change.Other)
}

// Data adds a message to the open transaction.
func (t *Tail) Data(message []byte, tag change.Tag) {
	t.add(message, change.Data, tag)
}

// Commit ends the open transaction.
func (t *Tail) Commit(message []byte) {
	t.add(message, change.Commit, change.Other)
	t.open = false
	t.last = t.tx.Watermark
}

func (t *Tail) add(message []byte, kind change.Kind, tag change.Tag) {
	if t.cur == nil || t.cur.Full() || t.cur.Room() < len(message) {
		t.grow(len(message)) // it outgrew what was asked for; the copy is made by Add
	}
	if !t.open {
		panic("tail: message outside a transaction")
	}
	t.cur.Add(message, kind, tag, t.tx)
	t.tx.Pos++
	t.next++
	t.pending++
}

// grow closes the current block and begins one with room for n bytes.
func (t *Tail) grow(n int) {
	t.Publish()
	block := change.NewBlock(t.next, max(n, t.blockSize), max(8, t.blockSize/bytesPerEntry))
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := len(t.blocks) - 1; k >= 0 {
		t.resize(&t.blocks[k])
		if t.blocks[k].run.Len() == 0 {
			t.bytes -= t.blocks[k].size
			t.blocks = t.blocks[:k]
		}
	}
	t.cur = block
	t.blocks = append(t.blocks, held{block: block, run: block.Run(0, 0), size: block.Size()})
	t.bytes += block.Size()
	t.trim()
}

// resize accounts for an index that has grown since the block was made.
func (t *Tail) resize(h *held) {
	size := h.block.Size()
	t.bytes += size - h.size
	h.size = size
}

// Publish makes what was added visible to readers.
func (t *Tail) Publish() bool {
	if t.pending == 0 {
		return false
	}
	t.pending = 0
	t.mu.Lock()
	t.blocks[len(t.blocks)-1].run = t.cur.Run(0, t.cur.Len())
	t.end = t.next
	waiting := len(t.dry) > 0
	t.mu.Unlock()
	signal(t.storeWake) // the store first
	if waiting {
		signal(t.sweep)
	}
	return true
}

// Shown says that every published commit at or below w has been added.
func (t *Tail) Shown(w string) {
	t.mu.Lock()
	if w > t.mark.watermark {
		t.mark = mark{watermark: w, seq: t.next}
	}
	t.mu.Unlock()
	signal(t.storeWake)
}

// Room returns nil while the appender may go on, else a channel that is closed when the
// store has made room. What was added is published, so that the store can.
func (t *Tail) Room() <-chan struct{} {
	t.mu.Lock()
	over := t.bytes > t.maxBytes
	t.mu.Unlock()
	if !over {
		return nil
	}
	t.Publish()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.full() {
		return nil
	}
	if t.room == nil {
		t.room = make(chan struct{})
		signal(t.storeWake) // it may have to store half a transaction
	}
	return t.room
}

// full says whether what cannot be dropped uses up the budget. When the store has passed
// everything there is room, whatever the size, so one message always fits [R26].
func (t *Tail) full() bool {
	return t.bytes > t.maxBytes && max(t.stored, t.passed) < t.end && t.broken == none
}

// trim drops blocks that the store has passed while the budget is exceeded.
func (t *Tail) trim() {
	passed := max(t.stored, t.passed)
	n := 0
	for n < len(t.blocks)-1 && t.bytes > t.maxBytes &&
		t.blocks[n].run.Next() <= passed && !t.holdsCommit(t.blocks[n].run) {
		t.raiseFloor(t.blocks[n].run)
		t.bytes -= t.blocks[n].size
		n++
	}
	t.blocks = slices.Delete(t.blocks, 0, n)
	if t.room != nil && !t.full() {
		close(t.room)
		t.room = nil
	}
}

// holdsCommit says whether a run holds the commit of a transaction that is not durable
// yet. That is kept: what lies behind the last commit dropped must be in the log.
func (t *Tail) holdsCommit(run change.Run) bool {
	if run.Next() <= t.stored {
		return false
	}
	for i := int(max(0, t.stored-run.Seq)); i < run.Len(); i++ {
		if run.Entry(i).Kind == change.Commit {
			return true
		}
	}
	return false
}

// raiseFloor moves the floor behind a run that is dropped. Void messages do not count:
// a reader behind the transaction before them can still go on here.
func (t *Tail) raiseFloor(run change.Run) {
	found := false
	for i := run.Len() - 1; i >= 0; i-- {
		if _, void := t.void(run.Tx(i).Attempt); void {
			continue
		}
		if !found {
			t.raise(run.After(i))
			found = true
		}
		if run.Entry(i).Kind == change.Commit {
			t.whole = max(t.whole, run.Tx(i).Watermark)
			return
		}
	}
}

// raise moves the floor to p, if that is higher.
func (t *Tail) raise(p watermark.Position) {
	if p.Compare(t.floor) > 0 {
		t.floor = p
	}
}

// void returns the end of the void span that seq lies in.
func (t *Tail) void(seq int64) (int64, bool) {
	i, ok := slices.BinarySearchFunc(t.voids, seq, func(s span, seq int64) int {
		switch {
		case s.to <= seq:
			return -1
		case s.from > seq:
			return 1
		}
		return 0
	})
	if !ok {
		return 0, false
	}
	return t.voids[i].to, true
}

// Restart says that Break was called: the stream must start again.
func (t *Tail) Restart() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.broken != none
}

// Abort cuts off the open transaction, or everything from the attempt that Break named.
// The stream goes on behind Last.
func (t *Tail) Abort() {
	t.Publish()
	t.mu.Lock()
	defer t.mu.Unlock()
	from := int64(none)
	if t.open {
		from = t.tx.Attempt
	}
	if t.broken != none {
		from = t.broken
		t.torn = t.watermarkOf(from)
		t.last = t.lastBefore(from)
		t.broken = none
	}
	if from == none {
		return
	}
	for n := len(t.voids); n > 0 && t.voids[n-1].from >= from; n-- {
		t.voids = t.voids[:n-1]
	}
	// The span takes one number more than it has messages: a reader that has taken all
	// of them stands inside it too, and learns that its transaction is void.
	t.next++
	t.end = t.next
	t.voids = append(t.voids, span{from: from, to: t.next})
	t.open = false
	t.cur = nil // numbers are consecutive in a block
	if t.mark.seq > from {
		t.mark = mark{}
	}
	if from < t.first() {
		t.floor = watermark.After(t.whole) // it stood inside what is void now
	}
	t.trim()
	if t.room != nil {
		close(t.room)
		t.room = nil
	}
	signal(t.storeWake)
	signal(t.sweep)
}

// watermarkOf returns the watermark of an attempt that is held, at least in part, or the
// last one of which something was dropped.
func (t *Tail) watermarkOf(attempt int64) string {
	if run, ok := t.read(attempt); ok {
		return run.Tx(0).Watermark
	}
	return t.floor.Watermark
}

// lastBefore returns the last whole transaction before an attempt.
func (t *Tail) lastBefore(attempt int64) string {
	for k := len(t.blocks) - 1; k >= 0; k-- {
		run := t.blocks[k].run
		for i := run.Len() - 1; i >= 0; i-- {
			tx := run.Tx(i)
			if _, void := t.void(tx.Attempt); tx.Attempt < attempt && !void && run.Entry(i).Kind == change.Commit {
				return tx.Watermark
			}
		}
	}
	return t.whole
}

// first is the sequence number of the first message held.
func (t *Tail) first() int64 {
	if len(t.blocks) == 0 {
		return t.end
	}
	return t.blocks[0].run.Seq
}
