package streamer_test

import (
	"context"
	"errors"
	"sort"

	"millrace/streamer/change"
	"millrace/streamer/subscriber"
	"millrace/streamer/tail"
	"millrace/streamer/watermark"
)

// modelLog is the change log as the store and the pages see it, in memory: what SQL
// promises and nothing more.
type modelLog struct {
	history       int // grows when another process takes the log over or resets it
	version       string
	head, minimum string
	txs           []modelTx // in order
	copied        int       // how many transactions were stored as they arrived
	late          []modelTx // a commit that is under way though its client is gone
}

// modelTx is a transaction of the log: what it stores of each message.
type modelTx struct {
	watermark string
	changes   []string
}

func newModelLog(version, head string) *modelLog {
	return &modelLog{version: version, head: head, minimum: head}
}

// seed empties the log and begins it anew at w, as a reset or a re-initialisation does.
func (l *modelLog) seed(version, w string) {
	l.settle()
	l.history++
	l.version, l.head, l.minimum, l.txs = version, w, w, nil
}

// settle ends the commit that is under way: whoever needs the state row waits for it.
func (l *modelLog) settle() {
	late := l.late
	l.late = nil
	l.store(late...)
}

// store is R8: what the log has is left out, and the head never falls.
func (l *modelLog) store(txs ...modelTx) {
	for _, tx := range txs {
		if tx.watermark > l.head {
			l.txs = append(l.txs, tx)
			l.head = tx.watermark
		}
	}
}

// purge deletes what is before w. The head's transaction stays.
func (l *modelLog) purge(w string) {
	n := sort.Search(len(l.txs), func(i int) bool { return l.txs[i].watermark >= w || l.txs[i].watermark == l.head })
	if n > 0 || l.minimum < w { // the seed row counts as a row
		l.txs = l.txs[n:]
		l.minimum = l.head
		if len(l.txs) > 0 {
			l.minimum = l.txs[0].watermark
		}
	}
}

// page is R22: rows and bounds of one snapshot, at most so many rows and bytes.
func (l *modelLog) page(after watermark.Position, rows, bytes int, b *change.Block) subscriber.Page {
	b.Reset(0)
	attempt := int64(-2)
	first := sort.Search(len(l.txs), func(i int) bool { return l.txs[i].watermark >= after.Watermark })
fill:
	for _, tx := range l.txs[first:] {
		attempt--
		for pos, c := range tx.changes {
			if (watermark.Position{Watermark: tx.watermark, Pos: int64(pos)}).Compare(after) <= 0 || after == watermark.After(tx.watermark) {
				continue
			}
			if rows == 0 || bytes < 0 {
				break fill
			}
			kind, tag := change.Data, change.Other
			switch pos {
			case 0:
				kind = change.Begin
			case len(tx.changes) - 1:
				kind = change.Commit
			default:
				tag = change.ParseTag([]byte(c))
			}
			m := change.Append(nil, kind, []byte(c), tx.watermark)
			b.Add(m, kind, tag, change.Tx{Watermark: tx.watermark, Attempt: attempt, Pos: int64(pos)})
			rows--
			bytes -= len(c)
		}
	}
	return subscriber.Page{Run: b.Run(0, b.Len()), Minimum: l.minimum, Head: l.head, ReplicaVersion: l.version}
}

var errDeposed = errors.New("another process owns the log")

// outcome is what happens to a database transaction.
type outcome int

const (
	fine       outcome = iota
	diedBefore         // the connection is lost before COMMIT
	diedAfter          // the connection is lost after COMMIT: the client does not know
	diedDuring         // the connection is lost in COMMIT, which ends after the client has looked
)

// modelStore is the store as a step function: each call does what the real one does in
// one go, and fails where it is told to.
type modelStore struct {
	t       *tail.Tail
	log     *modelLog
	history int
	small   int // messages from which on a transaction is stored as it arrives

	seq  int64 // everything below is durable or void
	open *modelCopy
	fate outcome // of the COMMIT of open
}

// modelCopy is a database transaction that takes one transaction as it arrives.
type modelCopy struct {
	tx        modelTx
	begin, at int64
	attempt   int64
	whole     bool // the commit is in it
}

func newModelStore(t *tail.Tail, log *modelLog, small int) *modelStore {
	return &modelStore{t: t, log: log, history: log.history, small: small, seq: t.First()}
}

// step does the next thing. messages bounds what it does of it.
func (s *modelStore) step(messages int, end outcome) error {
	if s.history != s.log.history {
		return errDeposed
	}
	s.log.settle()
	if s.open != nil {
		s.copy(messages, end)
		return nil
	}
	s.batch(messages, end)
	return nil
}

// batch stores whole transactions in one go.
func (s *modelStore) batch(messages int, end outcome) {
	var txs []modelTx
	var tx *modelTx
	var begin, attempt int64
	at, done := s.seq, s.seq
	n := 0
gather:
	for {
		run, next, ok := s.t.StoreRead(at)
		if next > at { // void: what was read of it is forgotten
			if tx == nil {
				done = next
			}
			at, tx = next, nil
			if len(txs) == 0 {
				done = next
			}
		}
		if !ok {
			break
		}
		for i := range run.Len() {
			if run.Entry(i).Kind == change.Begin {
				tx, begin, attempt = &modelTx{watermark: run.Tx(i).Watermark}, at, run.Tx(i).Attempt
			}
			tx.changes = append(tx.changes, string(run.Stored(i)))
			at++
			n++
			if run.Entry(i).Kind == change.Commit {
				txs, tx, done = append(txs, *tx), nil, at
				if n >= messages {
					break gather
				}
			}
		}
	}
	switch {
	case len(txs) > 0:
		switch end {
		case fine, diedAfter:
			s.log.store(txs...)
		case diedDuring:
			s.log.late = txs
		}
		if end != fine { // the next call reads the head and sends the rest again
			return
		}
		s.seq = done
		s.t.Stored(done)
	case done > s.seq:
		s.seq = done
		s.t.Stored(done)
	}
	if len(txs) == 0 && tx != nil && (s.t.Full() || len(tx.changes) > s.small) {
		s.log.copied++
		s.open = &modelCopy{tx: modelTx{watermark: tx.watermark}, begin: begin, at: begin, attempt: attempt}
	}
}

// copy goes on with the open database transaction.
func (s *modelStore) copy(messages int, end outcome) {
	o := s.open
	for ; !o.whole; messages-- {
		if messages == 0 {
			if s.fate = max(s.fate, end); end == diedBefore {
				s.died()
			}
			return
		}
		run, next, ok := s.t.StoreRead(o.at)
		if next > o.at { // cut off: rolled back
			s.seq, s.open, s.fate = next, nil, fine
			s.t.Stored(next)
			return
		}
		if !ok {
			if s.fate = max(s.fate, end); end == diedBefore {
				s.died()
			}
			return
		}
		o.tx.changes = append(o.tx.changes, string(run.Stored(0)))
		o.whole = run.Entry(0).Kind == change.Commit
		o.at++
		s.t.Passed(o.at)
	}
	end = max(end, s.fate)
	s.fate = fine
	switch end {
	case fine, diedAfter:
		s.log.store(o.tx)
	case diedDuring:
		s.log.late = []modelTx{o.tx}
	}
	if end != fine {
		s.died()
		return
	}
	s.seq, s.open = o.at, nil
	s.t.Stored(o.at)
}

// died is R7: the connection of the open database transaction is lost.
func (s *modelStore) died() {
	o := s.open
	s.open, s.fate = nil, fine
	switch {
	case o.whole && s.log.head >= o.tx.watermark:
		s.seq = o.at
		s.t.Stored(o.at)
	case s.t.Kept(o.begin):
		s.seq = o.begin
		s.t.Passed(o.begin)
	default:
		s.seq = o.begin
		s.t.Break(o.attempt)
	}
}

// pages is what a subscription reads the log with.
func (l *modelLog) pages(rows, bytes int) func(context.Context, watermark.Position, *change.Block) (subscriber.Page, error) {
	return func(_ context.Context, after watermark.Position, b *change.Block) (subscriber.Page, error) {
		return l.page(after, rows, bytes, b), nil
	}
}
