package streamer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"millrace/streamer/change"
	"millrace/streamer/subscriber"
	"millrace/streamer/tail"
	"millrace/streamer/watermark"
)

// A world is everything between upstream and the subscribers, in one goroutine: the real
// tail and the real subscriptions, a log and a store that are models, and a schedule that
// decides who moves and what breaks. Watermarks are even numbers; backfills and
// transactions that never commit lie between them.
type world struct {
	*schedule
	check    Checker
	upstream []upstreamTx
	number   uint64

	log    *modelLog
	tail   *tail.Tail
	store  *modelStore
	budget int64
	small  int
	calm   int // disasters are as much rarer

	source   sourceModel
	subs     []*subscriberModel
	replicas []replica

	counts map[string]int
}

// schedule is a list of choices. At its end every choice is 0.
type schedule struct {
	choices []uint32
	at      int
}

func (s *schedule) over() bool { return s.at >= len(s.choices) }

// pick returns a choice below n.
func (s *schedule) pick(n int) int {
	if s.over() {
		return 0
	}
	s.at++
	return int(s.choices[s.at-1]) % n //nolint:gosec // small
}

// upstreamTx is a transaction of upstream: the sizes of its rows. A ghost never commits:
// it is sent in part and cut off.
type upstreamTx struct {
	watermark string
	rows      []int
	ghost     bool
}

// decodings is in how many ways a transaction may be decoded.
const decodings = 3

// decode returns the rows of a transaction. The decodings differ in every byte and one
// of them in the number of rows, too.
func (tx upstreamTx) decode(d int) []string {
	sizes := tx.rows
	if d == 2 {
		sizes = append([]int{3}, sizes...)
	}
	rows := make([]string, len(sizes))
	for i, n := range sizes {
		rows[i] = fmt.Sprintf(`{"tag":"insert","w":"%s","d":%d,"i":%d,"x":"%s"}`, tx.watermark, d, i, strings.Repeat("x", n))
	}
	return rows
}

// sourceModel is where the source stands.
type sourceModel struct {
	next int        // index in upstream
	tx   upstreamTx // the one it is sending
	rows []string
	sent int // rows of it
	open bool
}

// replica is what a subscriber keeps: it outlives connections.
type replica struct{ whole, version string }

type subscriberModel struct {
	replica
	name    string
	watch   *Watched
	s       *subscriber.Subscription
	id      uint64 // last received
	acked   uint64
	log     *modelLog
	commits []commitFrame // not acked yet
	done    string        // last commit acked
}

type commitFrame struct {
	id        uint64
	watermark string
}

func newWorld(choices []uint32) *world {
	w := &world{schedule: &schedule{choices: choices}, number: 36, counts: map[string]int{}}
	w.budget = []int64{1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10}[w.pick(5)]
	w.small = []int{4, 12, 40, 1000}[w.pick(4)]
	w.calm = []int{1, 8, 30}[w.pick(3)]
	start := watermark.Encode(w.number)
	w.log = newModelLog("00", start)
	w.start()
	w.replicas = append(w.replicas, replica{start, "00"})
	return w
}

// start begins a process at the head of the log.
func (w *world) start() {
	for len(w.subs) > 0 {
		w.leave(w.subs[0])
	}
	w.log.settle() // ownership is taken under the state row's lock
	w.tail, _ = tail.New(tail.Config{Start: w.log.head, MaxBytes: w.budget})
	w.store = newModelStore(w.tail, w.log, w.small)
	w.source = sourceModel{}
	w.rewind()
}

// rewind starts the stream behind the last whole transaction of the tail.
func (w *world) rewind() {
	w.source.open = false
	last := w.tail.Last()
	for w.source.next = 0; w.source.next < len(w.upstream) && w.upstream[w.source.next].watermark <= last; w.source.next++ {
	}
}

// step does one thing that the schedule chooses.
func (w *world) step() error {
	switch k := w.pick(64); {
	case k < 10:
		w.commit()
	case k < 24:
		w.send(1 + w.pick(12))
	case k < 26:
		w.count("publish")
		w.tail.Publish()
	case k < 28:
		w.breakStream()
	case k < 29:
		if !w.source.open {
			w.tail.Shown(w.tail.Last())
		}
	case k < 36:
		w.storeStep(1+w.pick(30), fine)
	case k < 38:
		w.storeStep(1+w.pick(30), diedBefore)
	case k < 39:
		w.storeStep(1+w.pick(30), []outcome{diedAfter, diedDuring}[w.pick(2)])
	case k < 43:
		w.join()
	case k < 45:
		if len(w.subs) > 0 {
			w.count("disconnect")
			w.leave(w.subs[w.pick(len(w.subs))])
		}
	case k < 58:
		if len(w.subs) > 0 {
			return w.pump(w.subs[w.pick(len(w.subs))], 1+w.pick(12))
		}
	case k < 61:
		if len(w.subs) > 0 {
			return w.ack(w.subs[w.pick(len(w.subs))], 1+w.pick(40))
		}
	case k < 62:
		w.count("purge")
		if n := len(w.log.txs); n > 0 && w.pick(w.calm) < 3 {
			w.log.purge(w.log.txs[w.pick(n)].watermark)
		}
	default:
		if w.pick(w.calm) == 0 {
			w.disaster()
		}
	}
	return w.check.Err()
}

// disaster is what ends a process, or the log under it.
func (w *world) disaster() {
	switch k := w.pick(8); {
	case k < 2:
		w.count("restart")
		w.start()
	case k < 3 && len(w.upstream) > 0:
		// The log is reset at a replica made now. The process does not know yet.
		w.count("reset")
		now := w.upstream[len(w.upstream)-1].watermark
		version := watermark.WithMinor(now, uint64(w.log.history+1)) //nolint:gosec // small
		w.log.seed(version, now)
		w.replicas = append(w.replicas, replica{now, version})
	case k < 6:
		// Re-initialised from a replica that is further than the log.
		r := w.replicas[w.pick(len(w.replicas))]
		for _, m := range w.subs {
			if m.replica.version == w.log.version && m.replica.whole > r.whole {
				r = m.replica
			}
		}
		if r.version == w.log.version && r.whole > w.log.head {
			w.count("re-initialise")
			w.log.seed(r.version, r.whole)
		}
	}
}

func (w *world) count(what string) { w.counts[what]++ }

// commit lets upstream commit something. One in twelve is a transaction that is cut off
// and never comes again, such as a backfill that is given up.
func (w *world) commit() {
	if len(w.upstream) > w.source.next+20 {
		return
	}
	w.number += 2
	tx := upstreamTx{watermark: watermark.Encode(w.number)}
	rows, size := w.pick(4), 40
	switch w.pick(12) {
	case 0, 1:
		rows = 10 + w.pick(60)
	case 2:
		size = int(w.budget) * (1 + w.pick(3)) / 2
	case 3:
		tx.ghost = true
		tx.watermark = watermark.Encode(w.number + 1) // above the one that commits next, too
		w.number -= 2 * uint64(w.pick(2))             //nolint:gosec // 0 or 2
		rows = w.pick(30)
	case 4:
		if w.number -= 2; len(w.upstream) > 0 && !w.upstream[len(w.upstream)-1].ghost {
			tx.watermark = watermark.WithMinor(watermark.Encode(w.number), 1)
			if w.upstream[len(w.upstream)-1].watermark >= tx.watermark {
				return
			}
		} else {
			return
		}
	}
	for range rows {
		tx.rows = append(tx.rows, w.pick(size))
	}
	if n := len(w.upstream); n > 0 && w.upstream[n-1].ghost && tx.ghost {
		return
	}
	w.upstream = append(w.upstream, tx)
	if tx.ghost {
		w.count("ghost")
		return
	}
	w.count("commit")
	w.check.Committed(tx.watermark, tx.decode(0)...)
	for d := 1; d < decodings; d++ {
		w.check.Also(tx.decode(d)...)
	}
}

// send gives the sink up to n messages while there is room.
func (w *world) send(n int) (moved bool) {
	s := &w.source
	for ; n > 0; n-- {
		if w.tail.Restart() {
			w.count("restarted stream")
			w.tail.Abort()
			w.rewind()
			return true
		}
		if w.tail.Room() != nil {
			w.count("no room")
			return moved
		}
		if !s.open {
			if s.next == len(w.upstream) {
				break
			}
			s.tx = w.upstream[s.next]
			if s.tx.watermark <= w.tail.Last() { // a ghost of before
				s.next++
				continue
			}
			s.rows, s.sent, s.open = s.tx.decode(w.pick(decodings)), 0, true
			w.tail.Begin(w.message(change.Begin, `{"tag":"begin"}`), s.tx.watermark)
		} else if s.sent < len(s.rows) {
			row := s.rows[s.sent]
			s.sent++
			w.tail.Data(w.message(change.Data, row), change.Insert)
		} else if s.tx.ghost {
			w.tail.Abort()
			s.next++
			s.open = false
		} else {
			w.tail.Commit(w.message(change.Commit, `{"tag":"commit"}`))
			s.next++
			s.open = false
			if w.pick(3) > 0 {
				w.tail.Publish()
			}
		}
		moved = true
	}
	if !w.source.open || w.pick(4) == 0 {
		w.tail.Publish()
	}
	return moved
}

// message encodes one in the tail's own space, which it may have guessed too small.
func (w *world) message(kind change.Kind, text string) []byte {
	guess := len(text) + change.Envelope(kind, w.source.tx.watermark)
	if w.pick(4) == 0 {
		guess /= 4
	}
	return change.Append(w.tail.Spare(guess), kind, []byte(text), w.source.tx.watermark)
}

// breakStream ends the stream, mostly inside a transaction.
func (w *world) breakStream() {
	if !w.source.open && w.pick(3) > 0 {
		return
	}
	w.count("break")
	w.tail.Abort()
	w.rewind()
}

func (w *world) storeStep(messages int, end outcome) {
	w.count("store")
	if end != fine {
		w.count("store fails")
	}
	if err := w.store.step(messages, end); errors.Is(err, errDeposed) {
		w.count("deposed")
		w.start()
	}
}

// join connects a subscriber, new or known, unless the log does not cover it.
func (w *world) join() {
	if len(w.subs) == 5 {
		return
	}
	i := w.pick(len(w.replicas))
	r := w.replicas[i]
	if len(w.replicas) > 1 { // it is connected or forgotten, unless it is copied
		if w.pick(3) > 0 {
			w.replicas = append(w.replicas[:i], w.replicas[i+1:]...)
		}
	}
	w.connect(r)
}

func (w *world) connect(r replica) {
	if r.version != w.log.version || r.whole < w.log.minimum {
		w.count("refused")
		w.replicas = slices.DeleteFunc(w.replicas, func(q replica) bool { return q == r })
		if len(w.replicas) == 0 {
			w.replicas = append(w.replicas, replica{w.log.head, w.log.version}) // a new one
		}
		return
	}
	w.count("join")
	log := w.log
	rows, bytes := 1+w.pick(40), []int{1, 200, 1 << 20}[w.pick(3)]
	s, err := subscriber.New(subscriber.Config{
		Watermark: r.whole, ReplicaVersion: r.version, Tail: w.tail,
		Pages: func(_ context.Context, after watermark.Position, b *change.Block) (subscriber.Page, error) {
			w.count("page")
			return log.page(after, rows, bytes, b), nil
		},
		WindowBytes:  []int64{1, 1 << 10, 1 << 20}[w.pick(3)],
		WindowFrames: []int{1, 3, 1 << 16}[w.pick(3)],
	})
	if err != nil {
		w.check.fail("%v", err)
		return
	}
	name := fmt.Sprintf("subscriber %d", w.counts["join"])
	w.subs = append(w.subs, &subscriberModel{
		replica: r, name: name, watch: w.check.Subscriber(name, r.whole), s: s, done: r.whole, log: w.log,
	})
}

// leave ends a connection. The replica has what it received, or only what it acked.
func (w *world) leave(m *subscriberModel) {
	m.s.Close()
	m.watch.End()
	for i := range w.subs {
		if w.subs[i] == m {
			w.subs = append(w.subs[:i], w.subs[i+1:]...)
			break
		}
	}
	if w.pick(2) == 0 {
		m.whole = m.s.Acked()
	}
	w.replicas = append(w.replicas, m.replica)
}

var stopped = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// pump lets a subscription hand out up to n times. Waiting is tried with a context that
// has ended: it reads a page, or returns at once.
func (w *world) pump(m *subscriberModel, n int) error {
	for ; n > 0; n-- {
		frames, ok, err := m.s.Next()
		if err == nil && !ok {
			w.count("wait")
			err = m.s.Wait(stopped)
			if errors.Is(err, context.Canceled) {
				return nil
			}
		}
		if err != nil {
			return w.ended(m, err)
		}
		if !ok {
			continue
		}
		if err := w.receive(m, frames); err != nil {
			return err
		}
	}
	return nil
}

// ended judges the end of a subscription: it must have had a reason.
func (w *world) ended(m *subscriberModel, err error) error {
	w.count("stale")
	whole := m.watch.Whole()
	w.leave(m)
	if !errors.Is(err, subscriber.ErrStale) || (m.log.version == m.version && m.log.minimum <= whole) {
		return fmt.Errorf("%s ended at %s without a reason (log %s from %s to %s): %w",
			m.name, whole, m.log.version, m.log.minimum, m.log.head, err)
	}
	return nil
}

func (w *world) receive(m *subscriberModel, frames subscriber.Frames) error {
	if frames.FirstID != m.id+1 {
		return fmt.Errorf("%s: frame %d after %d", m.name, frames.FirstID, m.id)
	}
	if frames.Literal != nil {
		m.id++
		return m.watch.Message(frames.Literal)
	}
	if frames.Run.Len() == 0 {
		return fmt.Errorf("%s: an empty run", m.name)
	}
	w.counts["messages"] += frames.Run.Len()
	for i := range frames.Run.Len() {
		m.id++
		if err := m.watch.Message(frames.Run.Message(i)); err != nil {
			return err
		}
		if frames.Run.Entry(i).Kind == change.Commit {
			m.whole = frames.Run.Tx(i).Watermark
			m.commits = append(m.commits, commitFrame{m.id, m.whole})
		}
	}
	return nil
}

// ack acks up to n frames and checks what the subscription makes of it.
func (w *world) ack(m *subscriberModel, n int) error {
	for ; n > 0 && m.acked < m.id; n-- {
		m.acked++
		if err := m.s.Ack(m.acked); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if len(m.commits) > 0 && m.commits[0].id == m.acked {
			m.done, m.commits = m.commits[0].watermark, m.commits[1:]
		}
		if got := m.s.Acked(); got > m.done || (m.acked == m.id && got != m.done) {
			return fmt.Errorf("%s: acked is %s after the commit at %s was acked", m.name, got, m.done)
		}
	}
	return nil
}

// finish lets everybody go on undisturbed: all must arrive, in a bounded number of rounds.
func (w *world) finish() error {
	if w.store.history != w.log.history {
		w.start()
	}
	for len(w.subs) < 3 && len(w.replicas) > 0 {
		r := w.replicas[len(w.replicas)-1]
		w.replicas = w.replicas[:len(w.replicas)-1]
		w.connect(r)
	}
	for range 3000 {
		for w.send(50) {
			w.storeStep(1000, fine)
		}
		w.tail.Publish()
		w.storeStep(1000, fine)
		for _, m := range append([]*subscriberModel(nil), w.subs...) {
			if err := w.pump(m, 20); err != nil {
				return err
			}
			if err := w.ack(m, 1<<30); err != nil {
				return err
			}
		}
		if w.quiet() {
			return w.check.Done("")
		}
	}
	if err := w.check.Done(""); err != nil {
		return fmt.Errorf("it never comes to rest: %w", err)
	}
	return fmt.Errorf("it never comes to rest: log at %s, tail at %s, upstream %d of %d, source open %v",
		w.log.head, w.tail.Last(), w.source.next, len(w.upstream), w.source.open)
}

// quiet says that everything upstream committed is stored and with everybody.
func (w *world) quiet() bool {
	last := ""
	for _, tx := range w.upstream {
		if !tx.ghost {
			last = tx.watermark
		}
	}
	if w.source.open || w.source.next < len(w.upstream) || w.log.head < last {
		return false
	}
	for _, m := range w.subs {
		if m.watch.Whole() < last {
			return false
		}
	}
	return true
}

// run is one run of a schedule: what it counted, and the violation if there was one.
func runWorld(choices []uint32) (w *world, err error) {
	w = newWorld(choices)
	for !w.over() {
		w.counts["steps"]++
		if err := w.step(); err != nil {
			return w, err
		}
	}
	return w, w.finish()
}

func randomChoices(r *rand.Rand, n int) []uint32 {
	c := make([]uint32, n)
	for i := range c {
		c[i] = r.Uint32() >> 8
	}
	return c
}
