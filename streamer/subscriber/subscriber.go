// Package subscriber is one subscription: a position in the stream, where to read what
// comes next, and the window of frames that have no ack yet.
//
// A subscription has no queue. Whatever it has not sent it reads again, from the tail if
// that reaches back to its position, else in pages from the log. So catching up, being
// live, being slow and coming back are the same code. One goroutine, the pump, calls Next
// and Wait; another one, which reads the connection, calls Ack.
//
// Promised: every committed transaction behind the position is handed out exactly once,
// whole and in order, or an error ends the subscription. Inside a transaction it belongs
// to one attempt: it goes on in the log only if this process stored that attempt [R5].
package subscriber

import (
	"context"
	"errors"
	"fmt"
	"time"

	"millrace/streamer/change"
	"millrace/streamer/watermark"
	"millrace/streamer/wire"
)

// ErrStale says that the log no longer continues where this subscription stands: it was
// reset, re-initialised or purged [R22]. The connection is closed plainly, and the next
// attempt gets a true answer.
var ErrStale = errors.New("the log no longer continues at the subscriber's position")

const (
	defaultWindowBytes  = 16 << 20
	defaultWindowFrames = 65536
	// storedPoll bounds the wait for the store, should a notification be missed.
	storedPoll = time.Second
	// frameOverhead is more than what a frame adds to its message.
	frameOverhead = 64
	// The first protocol versions that know a kind of message.
	firstMetadataVersion = 5
	firstRowKeyVersion   = 5
	firstBackfillVersion = 6
)

// Tail is what a subscription needs of the end of the log in memory.
type Tail interface {
	// Seek returns where a reader between transactions at p goes on; false: in the log.
	Seek(p watermark.Position) (seq int64, ok bool)
	// Read returns messages from seq on to a reader inside attempt, or change.Outside.
	Read(seq, attempt int64) (run change.Run, next int64, found change.Found)
	// Outcome says what became of an attempt; next is where to go on if it is void.
	Outcome(attempt int64) (next int64, void, stored bool)
	// Notify has ch signalled when there may be something at seq; false: there is.
	Notify(seq, attempt int64, ch chan<- struct{}) bool
	// NotifyStored has ch signalled when the store has moved.
	NotifyStored(ch chan<- struct{})
	// Forget takes ch off all lists.
	Forget(ch chan<- struct{})
}

// Page is a piece of the log and the bounds of the log, all of one snapshot.
type Page struct {
	Run            change.Run
	Minimum        string
	Head           string
	ReplicaVersion string
}

// Config is what a Subscription needs. Watermark, ReplicaVersion, Tail and Pages are
// required.
type Config struct {
	Watermark      string // the subscriber has everything up to this commit
	ReplicaVersion string // that of the log; pages of another one end the subscription
	Version        int    // protocol version; the newest if zero

	Tail Tail
	// Pages reads what follows a position in the log into block. It may wait.
	Pages func(ctx context.Context, after watermark.Position, block *change.Block) (Page, error)

	WindowBytes  int64 // un-acked bytes at which sending waits; 16 MiB if zero
	WindowFrames int   // un-acked frames at which sending waits; 65,536 if zero
	MaxFrame     int   // largest frame the subscriber takes, in bytes; wire.MaxFrame if zero
}

// Frames is what Next hands out: a run, one frame a message, or one literal message.
// Its bytes may be used until the next call of Next or Wait.
type Frames struct {
	Run     change.Run
	Literal []byte
	FirstID uint64
}

// Subscription is one subscriber's place in the stream.
type Subscription struct {
	cfg Config

	// Of the pump alone.
	at       watermark.Position // behind what was handed out last
	whole    string             // the last commit handed out, or the watermark asked for
	started  bool               // the status was handed out
	inTail   bool
	seq      int64
	attempt  int64
	page     change.Run
	block    *change.Block
	waiting  wait
	notified bool // wake is on a list of the tail
	wake     chan struct{}

	window window
	// suspect is the size of messages from which on they may be too large to send. Old
	// protocol versions get more than the message: its relations are written out.
	suspect int
}

// wait is what Next has to wait for.
type wait uint8

const (
	waitTail wait = iota
	waitStored
	waitPage
	waitAcks
)

// New checks cfg and returns a Subscription that has handed out nothing yet.
func New(cfg Config) (*Subscription, error) {
	if cfg.Watermark == "" || cfg.ReplicaVersion == "" || cfg.Tail == nil || cfg.Pages == nil {
		return nil, errors.New("subscriber: Watermark, ReplicaVersion, Tail and Pages are required")
	}
	if cfg.Version == 0 {
		cfg.Version = wire.MaxVersion
	}
	if cfg.WindowBytes == 0 {
		cfg.WindowBytes = defaultWindowBytes
	}
	if cfg.WindowFrames == 0 {
		cfg.WindowFrames = defaultWindowFrames
	}
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = wire.MaxFrame
	}
	s := &Subscription{
		cfg:     cfg,
		at:      watermark.After(cfg.Watermark),
		whole:   cfg.Watermark,
		attempt: change.Outside,
		wake:    make(chan struct{}, 1),
	}
	s.suspect = cfg.MaxFrame - frameOverhead
	if cfg.Version < firstRowKeyVersion {
		s.suspect = cfg.MaxFrame / 2
	}
	s.window.init(cfg.WindowBytes, cfg.WindowFrames, cfg.Watermark)
	s.seq, s.inTail = cfg.Tail.Seek(s.at)
	return s, nil
}

// Version is the subscriber's protocol version.
func (s *Subscription) Version() int { return s.cfg.Version }

// Acked is the watermark up to which the subscriber has said to have everything.
func (s *Subscription) Acked() string { return s.window.position() }

// Ack takes the ack of frame id. An error is a violation of the protocol: acks come one
// for each frame, in order.
func (s *Subscription) Ack(id uint64) error { return s.window.ack(id) }

// Idle is how long frames have been waiting without any ack, as seen by calls about once
// a second; 0 if none are waiting. It belongs to one goroutine.
func (s *Subscription) Idle(now time.Time) time.Duration { return s.window.idle(now) }

// Close takes the subscription off the tail's lists. The pump has ended.
func (s *Subscription) Close() { s.cfg.Tail.Forget(s.wake) }

// Next returns what to send next. It never waits: if ok is false the pump flushes what it
// has and calls Wait. A *wire.Close says how to close the connection; with any other
// error it is closed plainly.
func (s *Subscription) Next() (frames Frames, ok bool, err error) {
	if !s.started {
		s.started = true
		if wire.HasStatus(s.cfg.Version) {
			return s.literal([]byte(wire.StatusMessage)), true, nil
		}
	}
	for {
		run, found := s.read()
		if !found {
			return Frames{}, false, nil
		}
		if run.Len() == 0 { // the attempt it was inside of is void
			s.at, s.attempt = watermark.After(s.whole), change.Outside
			return s.literal([]byte(change.Rollback)), true, nil
		}
		if s.skip(run) {
			continue
		}
		n, err := s.fit(run)
		if err != nil {
			return Frames{}, false, err
		}
		if n == 0 {
			s.waiting, s.window.need = waitAcks, int64(len(run.Message(0)))
			return Frames{}, false, nil
		}
		if n < 0 { // a message that this protocol version does not know
			s.moved(run, 1)
			continue
		}
		run = run.Cut(0, n)
		frames := Frames{Run: run, FirstID: s.window.sent + 1}
		s.moved(run, n)
		s.window.send(n, run.Bytes(), s.whole)
		return frames, true, nil
	}
}

func (s *Subscription) literal(message []byte) Frames {
	frames := Frames{Literal: message, FirstID: s.window.sent + 1}
	s.window.send(1, len(message), s.whole)
	return frames
}

// read returns messages from where the subscription stands, from the tail or from the
// page it holds. An empty run means: say rollback. false: s.waiting says for what to wait.
func (s *Subscription) read() (run change.Run, ok bool) {
	for {
		if s.page.Len() > 0 {
			return s.page, true
		}
		if !s.inTail {
			// A transaction begun in the log is read to its end there: its numbering is
			// the log's, and the tail may hold another attempt of it.
			if s.at.Between() {
				s.seq, s.inTail = s.cfg.Tail.Seek(s.at)
			}
			if !s.inTail {
				s.waiting = waitPage
				return change.Run{}, false
			}
			s.block = nil
		}
		s.waiting = waitTail
		run, next, found := s.cfg.Tail.Read(s.seq, s.attempt)
		switch found {
		case change.Ready:
			s.seq = next
			return run, true
		case change.Void:
			s.seq = next
			return change.Run{}, true
		case change.Dry:
			s.seq = next
			return change.Run{}, false
		}
		if s.attempt == change.Outside {
			s.inTail = false
			continue
		}
		next, void, stored := s.cfg.Tail.Outcome(s.attempt)
		switch {
		case void:
			s.seq = next
			return change.Run{}, true
		case stored:
			s.inTail, s.attempt = false, change.Outside
		default:
			s.waiting = waitStored
			return change.Run{}, false
		}
	}
}

// skip steps over a transaction that the subscriber has. That happens with one that is
// sent again behind a void span, or that the log and the tail both hold.
func (s *Subscription) skip(run change.Run) bool {
	if !s.at.Between() || run.Tx(0).Watermark > s.at.Watermark {
		return false
	}
	s.step(run.TxEnd(0))
	return true
}

// step moves the reading place, and not the position, over n messages.
func (s *Subscription) step(n int) {
	if s.page.Len() > 0 {
		s.page = s.page.Cut(n, s.page.Len())
	} else {
		s.seq += int64(n)
	}
}

// moved notes that the first n messages of run are dealt with.
func (s *Subscription) moved(run change.Run, n int) {
	inPage := s.page.Len() > 0
	s.step(n)
	s.at = run.After(n - 1)
	for i := n - 1; i >= 0; i-- {
		if run.Entry(i).Kind == change.Commit {
			s.whole = run.Tx(i).Watermark
			break
		}
	}
	switch {
	case s.at.Between():
		s.attempt = change.Outside
	case !inPage:
		s.attempt = run.Tx(n - 1).Attempt
	}
}

// fit returns how many messages of run, from its first one on, may go out now: 0 if the
// window is full, -1 if the first one is left out for this protocol version.
func (s *Subscription) fit(run change.Run) (int, error) {
	limit, bytes := s.window.room()
	n := 0
	for ; n < min(run.Len(), limit); n++ {
		entry := run.Entry(n)
		size := len(run.Message(n))
		if entry.Tag >= change.Backfill || size > s.suspect {
			if drop, err := s.refuse(run, n); err != nil || drop {
				if n > 0 {
					return n, nil
				}
				return -1, err
			}
		}
		bytes -= int64(size)
		if bytes < 0 && (n > 0 || !s.window.empty()) {
			break
		}
		// Behind a transaction that the subscriber has, skip looks again.
		if entry.Kind == change.Commit && n+1 < run.Len() && run.Tx(n+1).Watermark <= run.Tx(n).Watermark {
			return n + 1, nil
		}
	}
	return n, nil
}

// refuse says whether message i is left out, or cannot be sent at all.
func (s *Subscription) refuse(run change.Run, i int) (drop bool, err error) {
	tag, size := run.Entry(i).Tag, len(run.Message(i))
	if size > s.suspect && s.cfg.Version < firstRowKeyVersion {
		size = len(wire.AppendForVersion(nil, run.Message(i), tag, s.cfg.Version))
	}
	switch {
	case size > s.cfg.MaxFrame-frameOverhead:
		return false, wire.TooBig(subject(run.Stored(i)), int64(size), int64(s.cfg.MaxFrame))
	case tag == change.UpdateTableMetadata:
		return s.cfg.Version < firstMetadataVersion, nil
	case (tag == change.Backfill || tag == change.BackfillCompleted) && s.cfg.Version < firstBackfillVersion:
		return false, &wire.Close{Code: wire.CloseProtocol, Reason: "Error: backfill requires protocol v6", Delay: true}
	}
	return false, nil
}

// Wait returns when Next may have something: the tail or the store moved, acks arrived,
// or a page was read. It returns an error when the subscription has ended.
func (s *Subscription) Wait(ctx context.Context) error {
	switch s.waiting {
	case waitAcks:
		return s.window.wait(ctx)
	case waitPage:
		return s.readPage(ctx)
	case waitStored:
		return s.waitStored(ctx)
	}
	if !s.notified && !s.cfg.Tail.Notify(s.seq, s.attempt, s.wake) {
		return nil
	}
	s.notified = true
	select {
	case <-s.wake:
		s.notified = false
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitStored waits until the store has moved. The list it is on is that of the store:
// being on it twice does no harm.
func (s *Subscription) waitStored(ctx context.Context) error {
	s.waiting = waitTail
	if s.attempt != change.Outside {
		s.cfg.Tail.NotifyStored(s.wake)
		if _, void, stored := s.cfg.Tail.Outcome(s.attempt); void || stored {
			return nil
		}
	} else {
		s.cfg.Tail.NotifyStored(s.wake)
	}
	timer := time.NewTimer(storedPoll)
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
		s.cfg.Tail.Forget(s.wake) // or the list would grow with every round
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// readPage fetches what follows in the log. The page is good if it is of the same
// history and the last transaction handed out whole is still covered [R22].
func (s *Subscription) readPage(ctx context.Context) error {
	s.waiting = waitTail
	if s.block == nil {
		s.block = change.NewBlock(0, 0, 0)
	}
	page, err := s.cfg.Pages(ctx, s.at, s.block)
	if err != nil {
		return fmt.Errorf("read the log behind %s: %w", s.at, err)
	}
	switch {
	case page.ReplicaVersion != s.cfg.ReplicaVersion:
		return fmt.Errorf("%w: replica version is %s, was %s", ErrStale, page.ReplicaVersion, s.cfg.ReplicaVersion)
	case s.whole < page.Minimum:
		return fmt.Errorf("%w: minimum is %s, position is %s", ErrStale, page.Minimum, s.whole)
	case page.Run.Len() == 0 && !s.at.Between():
		return fmt.Errorf("%w: transaction ends early behind %s", ErrStale, s.at)
	case page.Run.Len() > 0 && !s.at.Between() && page.Run.Tx(0).Watermark != s.at.Watermark:
		return fmt.Errorf("%w: transaction ends early behind %s", ErrStale, s.at)
	}
	s.page = page.Run
	if s.page.Len() == 0 {
		// The tail begins behind a transaction that is being stored.
		s.waiting = waitStored
		return s.waitStored(ctx)
	}
	return nil
}
