package tail

import (
	"slices"
	"sort"

	"millrace/streamer/change"
	"millrace/streamer/watermark"
)

// Read returns messages from seq on, of one block, to a reader that is inside attempt or
// change.Outside. next is the number of the run's first message, or, if the attempt is
// void, the one that the reader goes on with, between transactions. A reader that is dry
// waits with Notify; one that has fallen out asks Seek if it is between transactions, and
// Outcome if it is inside one.
func (t *Tail) Read(seq, attempt int64) (run change.Run, next int64, found change.Found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if attempt != change.Outside {
		if to, void := t.void(attempt); void {
			return change.Run{}, to, change.Void
		}
	} else {
		seq = t.skipVoid(seq)
	}
	switch run, ok := t.read(seq); {
	case ok:
		return run, seq, change.Ready
	case seq < t.first():
		return change.Run{}, seq, change.Fallen
	default:
		return change.Run{}, seq, change.Dry
	}
}

// skipVoid returns the first number from seq on that is not void.
func (t *Tail) skipVoid(seq int64) int64 {
	for {
		to, void := t.void(seq)
		if !void {
			return seq
		}
		seq = to
	}
}

// read returns what one block holds from seq on, up to the next void span.
func (t *Tail) read(seq int64) (change.Run, bool) {
	if seq < t.first() || seq >= t.end {
		return change.Run{}, false
	}
	k := len(t.blocks) - 1
	if seq < t.blocks[k].run.Seq {
		k = sort.Search(len(t.blocks), func(i int) bool { return t.blocks[i].run.Seq > seq }) - 1
	}
	run := t.blocks[k].run
	if seq >= run.Next() { // the number that a void span took for itself is skipped by now
		return change.Run{}, false
	}
	to := run.Next()
	if i := sort.Search(len(t.voids), func(i int) bool { return t.voids[i].from > seq }); i < len(t.voids) {
		to = min(to, t.voids[i].from)
	}
	return run.Cut(int(seq-run.Seq), int(to-run.Seq)), true
}

// Seek returns the number with which a reader between transactions at p goes on, or
// false if p is before the floor, or the tail is shut: then it reads the log.
func (t *Tail) Seek(p watermark.Position) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shut || p.Compare(t.floor) < 0 {
		return 0, false
	}
	// Whatever counts and lies before a message of watermark w is below w, also if that
	// message is void: so all that counts before a block that begins at or below p is.
	k := sort.Search(len(t.blocks), func(i int) bool {
		run := t.blocks[i].run
		return run.Len() == 0 || run.Tx(0).Watermark > p.Watermark
	})
	for _, h := range t.blocks[max(0, k-1):] {
		for i := 0; i < h.run.Len(); {
			tx := h.run.Tx(i)
			if _, void := t.void(tx.Attempt); !void && tx.Watermark > p.Watermark {
				return h.run.Seq + int64(i), true
			}
			i = h.run.TxEnd(i)
		}
	}
	return t.end, true
}

// Floor is the position from which on a reader is served from the tail.
func (t *Tail) Floor() watermark.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.floor
}

// Outcome says what became of an attempt that a reader has fallen out of: void, stored,
// or, with neither, not known yet. next is the number to go on with if it is void.
//
// An attempt of a transaction that Break cut off before is void for such a reader, too,
// once it is stored. Its database transaction was taken for dead, but the server may have
// committed it after all; then the log holds the attempt that was cut off, perhaps in
// another decoding, and the reader must begin with it anew.
func (t *Tail) Outcome(attempt int64) (next int64, void, stored bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if to, void := t.void(attempt); void {
		return to, true, false
	}
	if attempt >= t.stored {
		return 0, false, false
	}
	if _, doubtful := slices.BinarySearch(t.doubts, attempt); doubtful {
		return attempt, true, false
	}
	return 0, false, true
}

// Notify has ch, of capacity 1, signalled when there may be something at seq for a
// reader inside attempt. It returns false, and does nothing, if there is already.
func (t *Tail) Notify(seq, attempt int64, ch chan<- struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if attempt != change.Outside {
		if _, void := t.void(attempt); void {
			return false
		}
	} else {
		seq = t.skipVoid(seq)
	}
	if seq < t.end {
		return false
	}
	t.dry = append(t.dry, ch)
	return true
}

// NotifyStored has ch signalled when the store has moved or a transaction was cut off.
// The caller looks once more after this call and before it waits.
func (t *Tail) NotifyStored(ch chan<- struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fallen = append(t.fallen, ch)
}

// Forget takes ch off the lists of those to be signalled.
func (t *Tail) Forget(ch chan<- struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	same := func(c chan<- struct{}) bool { return c == ch }
	t.dry = slices.DeleteFunc(t.dry, same)
	t.fallen = slices.DeleteFunc(t.fallen, same)
}

// Stats is a snapshot for metrics and the status page.
type Stats struct {
	Bytes    int64 // held, index included
	Blocks   int
	Messages int64 // held
	Unstored int64 // messages that the store has not passed
}

// Stats returns how much is held.
func (t *Tail) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{
		Bytes:    t.bytes,
		Blocks:   len(t.blocks),
		Messages: t.end - t.first(),
		Unstored: t.end - t.stored,
	}
}
