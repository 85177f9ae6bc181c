package change

import "millrace/streamer/watermark"

// Run is a run of consecutive messages: a view of a block, of immutable bytes. It keeps
// its block alive and costs no copy. Messages are counted from 0.
type Run struct {
	// Seq is the sequence number of the run's first message.
	Seq int64

	buf     []byte
	entries []Entry
	txs     []Tx
	from    int
}

// Len is the number of messages.
func (r Run) Len() int { return len(r.entries) - r.from }

// Next is the sequence number of the message behind the run.
func (r Run) Next() int64 { return r.Seq + int64(r.Len()) }

// Cut returns the messages from index from up to, not including, to.
func (r Run) Cut(from, to int) Run {
	r.Seq += int64(from)
	r.entries = r.entries[:r.from+to]
	r.from += from
	return r
}

// Entry returns the index entry of message i.
func (r Run) Entry(i int) Entry { return r.entries[r.from+i] }

// Message returns the canonical JSON of message i.
func (r Run) Message(i int) []byte {
	i += r.from
	var start uint32
	if i > 0 {
		start = r.entries[i-1].End
	}
	end := r.entries[i].End
	return r.buf[start:end:end]
}

// Tx returns the transaction that message i belongs to. Its Pos and First are those of
// the transaction's first message in the underlying block: see Pos.
func (r Run) Tx(i int) *Tx { return &r.txs[r.entries[r.from+i].Tx] }

// TxEnd is the index behind the last message of the run that belongs to the transaction
// of message i.
func (r Run) TxEnd(i int) int {
	tx := int(r.entries[r.from+i].Tx)
	if tx+1 < len(r.txs) {
		return min(int(r.txs[tx+1].First)-r.from, r.Len())
	}
	return r.Len()
}

// Pos is the position of message i in its transaction.
func (r Run) Pos(i int) int64 {
	tx := r.Tx(i)
	return tx.Pos + int64(r.from+i) - int64(tx.First)
}

// Stored returns the part of message i that the change log holds.
func (r Run) Stored(i int) []byte {
	return Stored(r.Entry(i).Kind, r.Message(i), r.Tx(i).Watermark)
}

// After returns the position of a reader that has taken message i.
func (r Run) After(i int) watermark.Position {
	if r.Entry(i).Kind == Commit {
		return watermark.After(r.Tx(i).Watermark)
	}
	return watermark.Position{Watermark: r.Tx(i).Watermark, Pos: r.Pos(i)}
}

// Bytes is the number of bytes of all messages.
func (r Run) Bytes() int {
	if r.Len() == 0 {
		return 0
	}
	var start uint32
	if r.from > 0 {
		start = r.entries[r.from-1].End
	}
	return int(r.entries[len(r.entries)-1].End - start)
}
