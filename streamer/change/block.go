package change

import (
	"math"
	"unsafe"
)

// MaxMessage is the largest message that can be stored: a Postgres value ends at 1 GiB,
// and the message that carries it to the server must stay below that too.
const MaxMessage = 1_000_000_000

// maxTransactions bounds the transactions of one block, so that an index fits its field.
const maxTransactions = math.MaxUint16

// Entry is one message of a block. It starts where the one before it ends.
type Entry struct {
	End  uint32
	Tx   uint16
	Kind Kind
	Tag  Tag
}

// Tx is a transaction, or the part of one, that a block holds.
type Tx struct {
	Watermark string
	// Attempt is the sequence number of the transaction's begin message. The same
	// transaction sent again, after its stream broke, is another attempt [R5].
	Attempt int64
	// Pos is the position in the transaction of the block's first message of it.
	Pos int64
	// First is the index in the block of that message.
	First int32
}

// Block is a sequence of encoded messages with one appender. What a Run of it covers
// never changes, so readers need no lock.
type Block struct {
	// Seq is the sequence number of the block's first message.
	Seq int64

	buf     []byte
	entries []Entry
	txs     []Tx
}

// NewBlock returns an empty block whose first message will have the sequence number
// seq, with room for size bytes and entries messages before it has to grow.
func NewBlock(seq int64, size, entries int) *Block {
	return &Block{
		Seq:     seq,
		buf:     make([]byte, 0, size),
		entries: make([]Entry, 0, entries),
	}
}

// Reset empties the block for reuse. No Run of it may be in use.
func (b *Block) Reset(seq int64) {
	b.Seq, b.buf, b.entries, b.txs = seq, b.buf[:0], b.entries[:0], b.txs[:0]
}

// Spare returns the free space behind the messages, to append one message to.
func (b *Block) Spare() []byte {
	return b.buf[len(b.buf):]
}

// Room is the number of bytes that fit without moving.
func (b *Block) Room() int {
	return cap(b.buf) - len(b.buf)
}

// Full says whether the block can take no further message.
func (b *Block) Full() bool {
	return len(b.entries) == cap(b.entries) || len(b.txs) == maxTransactions
}

// Len is the number of messages.
func (b *Block) Len() int { return len(b.entries) }

// Size is the memory that the block holds, index included, in bytes.
func (b *Block) Size() int64 {
	return int64(cap(b.buf)) + int64(cap(b.entries))*int64(unsafe.Sizeof(Entry{})) +
		int64(cap(b.txs))*int64(unsafe.Sizeof(Tx{})+16)
}

// Add appends a message of transaction tx. If message was appended to Spare and has not
// moved it is taken in place, otherwise it is copied. tx.Pos is that of this message;
// First is set here.
func (b *Block) Add(message []byte, kind Kind, tag Tag, tx Tx) {
	start := len(b.buf)
	if len(message) > 0 && cap(b.buf)-start >= len(message) &&
		unsafe.SliceData(message) == unsafe.SliceData(b.buf[start:start+1]) {
		b.buf = b.buf[:start+len(message)]
	} else {
		b.buf = append(b.buf, message...)
	}
	if n := len(b.txs); n == 0 || b.txs[n-1].Attempt != tx.Attempt {
		tx.First = int32(len(b.entries)) //nolint:gosec // bounded by the capacity of entries
		b.txs = append(b.txs, tx)
	}
	b.entries = append(b.entries, Entry{
		End:  uint32(len(b.buf)),     //nolint:gosec // a block is far below 4 GiB
		Tx:   uint16(len(b.txs) - 1), //nolint:gosec // bounded by maxTransactions
		Kind: kind,
		Tag:  tag,
	})
}

// Run returns the messages of the block from index from up to, not including, to.
func (b *Block) Run(from, to int) Run {
	return Run{Seq: b.Seq + int64(from), buf: b.buf, entries: b.entries[:to:to], txs: b.txs, from: from}
}
