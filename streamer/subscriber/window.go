package subscriber

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// markFrames is how many frames share one entry of the window's accounts: enough to make
// an ack cost a comparison, few enough that the window moves on in small steps.
const markFrames = 256

// window counts frames that were sent and have no ack. The pump sends, another goroutine
// acks; what they share is two counters and a short queue of marks.
type window struct {
	maxBytes  int64
	maxFrames int

	// Of the pump alone.
	sent      uint64
	sentBytes int64
	need      int64 // bytes of the message that did not fit

	lastSent atomic.Uint64
	acked    atomic.Uint64 // frames
	ackedTo  atomic.Int64  // bytes, at marks
	nextMark atomic.Uint64 // frame at which the first mark is reached
	blocked  atomic.Bool   // the pump waits for acks
	moved    chan struct{}

	mu    sync.Mutex
	marks []windowMark // those from first on are not reached yet
	first int
	whole string // last commit acked

	// Of the goroutine that calls idle.
	seen  uint64
	since time.Time
}

// windowMark says what is known when frame id has been acked.
type windowMark struct {
	id    uint64
	bytes int64
	whole string
}

func (w *window) init(maxBytes int64, maxFrames int, whole string) {
	w.maxBytes, w.maxFrames, w.whole = maxBytes, maxFrames, whole
	w.nextMark.Store(math.MaxUint64)
	w.moved = make(chan struct{}, 1)
}

// empty says that nothing is un-acked.
func (w *window) empty() bool { return w.acked.Load() == w.sent }

// room returns how many frames and bytes may go out now.
func (w *window) room() (frames int, bytes int64) {
	frames = w.maxFrames - int(w.sent-w.acked.Load()) //nolint:gosec // at most maxFrames are out
	if w.empty() {
		return min(max(frames, 1), markFrames), w.maxBytes
	}
	return min(frames, markFrames), w.maxBytes - (w.sentBytes - w.ackedTo.Load())
}

// send notes that n frames are about to go out, the last commit in or before them whole.
func (w *window) send(n, bytes int, whole string) {
	w.sent += uint64(n) //nolint:gosec // positive
	w.sentBytes += int64(bytes)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first > len(w.marks)/2 { // moved once for as many marks as were reached
		w.marks = slices.Delete(w.marks, 0, w.first)
		w.first = 0
	}
	w.marks = append(w.marks, windowMark{id: w.sent, bytes: w.sentBytes, whole: whole})
	w.nextMark.Store(w.marks[w.first].id)
	w.lastSent.Store(w.sent)
}

// ack takes the ack of frame id.
func (w *window) ack(id uint64) error {
	if want := w.acked.Load() + 1; id != want || id > w.lastSent.Load() {
		return fmt.Errorf("ack %d while %d was due and %d was the last sent", id, want, w.lastSent.Load())
	}
	w.acked.Store(id)
	if id >= w.nextMark.Load() {
		w.reach(id)
	}
	return nil
}

func (w *window) reach(id uint64) {
	w.mu.Lock()
	for ; w.first < len(w.marks) && w.marks[w.first].id <= id; w.first++ {
		w.ackedTo.Store(w.marks[w.first].bytes)
		w.whole = w.marks[w.first].whole
	}
	if w.first < len(w.marks) {
		w.nextMark.Store(w.marks[w.first].id)
	} else {
		w.marks, w.first = w.marks[:0], 0
		w.nextMark.Store(math.MaxUint64)
	}
	w.mu.Unlock()
	if w.blocked.CompareAndSwap(true, false) {
		select {
		case w.moved <- struct{}{}:
		default:
		}
	}
}

// wait returns when acks have moved the window so far that the next message fits. One
// that is larger than the whole window waits until nothing is un-acked.
func (w *window) wait(ctx context.Context) error {
	w.blocked.Store(true)
	if frames, bytes := w.room(); w.empty() || (frames > 0 && bytes >= w.need && w.half()) {
		w.blocked.Store(false)
		return nil
	}
	select {
	case <-w.moved:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// half says that the window is at most half full: going on only then saves a wake-up for
// every mark.
func (w *window) half() bool {
	return w.sentBytes-w.ackedTo.Load() <= w.maxBytes/2 && int(w.sent-w.acked.Load()) <= w.maxFrames/2 //nolint:gosec // at most maxFrames
}

// position is the last commit acked.
func (w *window) position() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.whole
}

// idle returns how long frames have been waiting without any ack.
func (w *window) idle(now time.Time) time.Duration {
	acked := w.acked.Load()
	if acked != w.seen || acked == w.lastSent.Load() || w.since.IsZero() {
		w.seen, w.since = acked, now
		return 0
	}
	return now.Sub(w.since)
}
