package changelog

import (
	"encoding/binary"

	"millrace/streamer/change"
)

// rowOverhead is about what a row costs beside its change: watermark, position, lengths.
const rowOverhead = 64

// OIDs of the types of the arrays' elements.
const (
	oidInt8 = 20
	oidText = 25
	oidJSON = 114
)

// batch is a sequence of whole transactions, or a piece of one.
type batch struct {
	runs  []change.Run
	rows  int
	bytes int
	txs   int
	last  string // watermark of the last transaction
	next  int64  // number of the message behind it
}

// gathered is what gather found.
type gathered uint8

const (
	nothing  gathered = iota
	whole             // a batch of whole transactions
	tooLarge          // a transaction that must be stored on its own, perhaps while it arrives
)

// gather fills s.batch from what is behind the batches under way.
func (s *Store) gather() gathered {
	b := &s.batch
	clear(b.runs) // a run keeps its block alive
	*b = batch{runs: b.runs[:0], next: s.next()}

	var (
		at          = b.next
		rows, bytes = 0, 0
		txs         = 0
		runs, cut   = 0, 0 // where the last whole transaction ends
	)
	finish := func(otherwise gathered) gathered {
		if runs == 0 {
			if len(s.flights) == 0 && b.next > s.stored {
				s.stored = b.next // void
				s.cfg.Tail.Stored(b.next)
			}
			return otherwise
		}
		b.runs[runs-1] = b.runs[runs-1].Cut(0, cut)
		clear(b.runs[runs:])
		b.runs = b.runs[:runs]
		b.txs = txs
		return whole
	}
	for {
		run, next, ok := s.cfg.Tail.StoreRead(at)
		if next > at {
			// What was read behind the last whole transaction is void.
			if runs > 0 {
				b.runs[runs-1] = b.runs[runs-1].Cut(0, cut)
			}
			b.runs = b.runs[:runs]
			rows, bytes = b.rows, b.bytes
			b.next = next
		}
		if !ok {
			break
		}
		b.runs = append(b.runs, run)
		for i := range run.Len() {
			rows++
			bytes += len(run.Message(i)) + rowOverhead
			if rows > s.cfg.BatchRows || bytes > s.cfg.BatchBytes {
				return finish(tooLarge)
			}
			if run.Entry(i).Kind == change.Commit {
				runs, cut = len(b.runs), i+1
				txs++
				b.rows, b.bytes = rows, bytes
				b.last, b.next = run.Tx(i).Watermark, run.Seq+int64(i)+1
			}
		}
		at = run.Next()
	}
	if rows > 0 && s.cfg.Tail.Full() {
		return finish(tooLarge)
	}
	return finish(nothing)
}

// appendText appends one text parameter.
func appendText(dst []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(text))), text...) //nolint:gosec // far below 4 GiB
}

func appendBytes(dst, value []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(value))), value...) //nolint:gosec // at most 1 GB
}

func appendInt8(dst []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 0, 0, 0, 8), uint64(n)) //nolint:gosec // as it is
}

func appendNull(dst []byte) []byte {
	return append(dst, 0xff, 0xff, 0xff, 0xff)
}

// bindHead begins a Bind of n binary parameters for a prepared statement.
func (l *link) bindHead(statement string, n uint16) int {
	at := l.begin('B')
	l.out = append(append(append(l.out, 0), statement...), 0)
	l.out = append(l.out, 0, 1, 0, 1)
	l.out = binary.BigEndian.AppendUint16(l.out, n)
	return at
}

// bindEnd ends a Bind that wants binary results.
func (l *link) bindEnd(at int) {
	l.out = append(l.out, 0, 1, 0, 1)
	l.end(at)
}

// array begins an array parameter of one dimension.
func (l *link) array(oid uint32, nulls byte, elements int) int {
	at := len(l.out)
	l.out = append(l.out, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, nulls)
	l.out = binary.BigEndian.AppendUint32(l.out, oid)
	l.out = binary.BigEndian.AppendUint32(l.out, uint32(elements)) //nolint:gosec // rows of a batch
	l.out = append(l.out, 0, 0, 0, 1)
	return at
}

func (l *link) arrayEnd(at int) {
	binary.BigEndian.PutUint32(l.out[at:], uint32(len(l.out)-at-4)) //nolint:gosec // a parameter ends at 1 GiB
}

// watermarks, positions, changes and precommits append one column of the batch each.

func (l *link) watermarks(b *batch) {
	at := l.array(oidText, 0, b.rows)
	for _, run := range b.runs {
		for i := range run.Len() {
			l.out = appendText(l.out, run.Tx(i).Watermark)
		}
	}
	l.arrayEnd(at)
}

func (l *link) positions(b *batch) {
	at := l.array(oidInt8, 0, b.rows)
	for _, run := range b.runs {
		for i := range run.Len() {
			l.out = appendInt8(l.out, run.Pos(i))
		}
	}
	l.arrayEnd(at)
}

func (l *link) changes(b *batch) {
	at := l.array(oidJSON, 0, b.rows)
	for _, run := range b.runs {
		for i := range run.Len() {
			l.out = appendBytes(l.out, run.Stored(i))
		}
	}
	l.arrayEnd(at)
}

func (l *link) precommits(b *batch) {
	at := l.array(oidText, 1, b.rows)
	for _, run := range b.runs {
		for i := range run.Len() {
			if run.Entry(i).Kind == change.Commit {
				l.out = appendText(l.out, run.Tx(i).Watermark)
			} else {
				l.out = appendNull(l.out)
			}
		}
	}
	l.arrayEnd(at)
}
