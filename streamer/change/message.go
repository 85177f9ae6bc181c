// Package change holds what all rooms share: the kinds and tags of messages, their
// canonical JSON, and blocks of encoded messages.
//
// A message is encoded once, by whoever brings it into the stream, and its bytes never
// change afterwards. The canonical text has no blanks and one of the forms
//
//	["begin",C,{"commitWatermark":"W"}]
//	["data",C]
//	["commit",C,{"watermark":"W"}]
//	["rollback",{"tag":"rollback"}]
//
// where C is the change, the part that the change log stores, and W the watermark under
// which the whole transaction is stored. [Stored] and [Append] are exact inverses.
package change

// Kind says what a message does to the transaction it belongs to.
type Kind uint8

// The kinds of messages that are stored. A rollback is never stored and never in a
// block: a block's reader makes it up when its transaction was aborted.
const (
	Begin Kind = iota
	Data
	Commit
)

// Rollback is the message that ends a transaction which was cut off.
const Rollback = `["rollback",{"tag":"rollback"}]`

const (
	beginOpen   = `["begin",`
	beginMiddle = `,{"commitWatermark":"`
	dataOpen    = `["data",`
	commitOpen  = `["commit",`
	commitMid   = `,{"watermark":"`
	metaClose   = `"}]`
)

// Append appends the message of a change to dst. Its last argument is the watermark of
// the transaction and must need no escaping in JSON, as every watermark does.
func Append(dst []byte, kind Kind, change []byte, watermark string) []byte {
	switch kind {
	case Begin:
		dst = append(append(append(dst, beginOpen...), change...), beginMiddle...)
	case Commit:
		dst = append(append(append(dst, commitOpen...), change...), commitMid...)
	default:
		dst = append(append(dst, dataOpen...), change...)
		return append(dst, ']')
	}
	return append(append(dst, watermark...), metaClose...)
}

// Envelope is the number of bytes that Append adds to a change.
func Envelope(kind Kind, watermark string) int {
	switch kind {
	case Begin:
		return len(beginOpen) + len(beginMiddle) + len(watermark) + len(metaClose)
	case Commit:
		return len(commitOpen) + len(commitMid) + len(watermark) + len(metaClose)
	default:
		return len(dataOpen) + 1
	}
}

// Stored returns the part of a message that the change log holds: a slice of it.
func Stored(kind Kind, message []byte, watermark string) []byte {
	switch kind {
	case Begin:
		return message[len(beginOpen) : len(message)-len(beginMiddle)-len(watermark)-len(metaClose)]
	case Commit:
		return message[len(commitOpen) : len(message)-len(commitMid)-len(watermark)-len(metaClose)]
	default:
		return message[len(dataOpen) : len(message)-1]
	}
}
