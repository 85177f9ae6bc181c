package tail

import "millrace/streamer/change"

// First is the sequence number of the tail's first message ever.
func (t *Tail) First() int64 { return 0 }

// StoreWake returns the store's own channel, of capacity 1: something was published, a
// transaction was cut off, the mark moved, or the appender waits for room.
func (t *Tail) StoreWake() <-chan struct{} { return t.storeWake }

// StoreRead returns published messages from next on, of one block. next is greater than
// seq when a void span was skipped: what the store was given of it must be rolled back.
func (t *Tail) StoreRead(seq int64) (run change.Run, next int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken != none {
		return change.Run{}, seq, false
	}
	next = t.skipVoid(seq)
	run, ok = t.read(next)
	return run, next, ok
}

// Full says that the appender waits for room: an incomplete transaction must be stored
// as it arrives, or nobody would ever make any.
func (t *Tail) Full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.room != nil
}

// Passed says that the messages from Stored up to seq have been sent in a database
// transaction that is still open. They may be dropped when the budget needs it, but for
// the commit: if the database transaction fails, Break is the way out. To store them
// again from an earlier message, all of which are Kept, Passed is called with that one.
func (t *Tail) Passed(seq int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passed = seq
	t.trim()
}

// Stored says that everything below seq is durable or void.
func (t *Tail) Stored(seq int64) {
	t.mu.Lock()
	t.stored = max(t.stored, seq)
	t.passed = max(t.passed, seq)
	t.trim()
	waiting := len(t.fallen) > 0
	t.mu.Unlock()
	if waiting {
		signal(t.sweep)
	}
}

// Kept says whether message seq is still held.
func (t *Tail) Kept(seq int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return seq >= t.first()
}

// Break says that the attempt that begins at message attempt can be stored no more: its
// beginning was dropped, and its database transaction failed [R7]. The source starts
// again behind the last whole transaction before it; until it has called Abort, the
// store has nothing to read.
func (t *Tail) Break(attempt int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = attempt
	if t.room != nil {
		close(t.room)
		t.room = nil
	}
}

// Mark returns the newest watermark up to which the stream has shown everything, and the
// sequence number that must be stored before it may be recorded [R10].
func (t *Tail) Mark() (w string, seq int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mark.watermark, t.mark.seq, t.mark.watermark != ""
}
