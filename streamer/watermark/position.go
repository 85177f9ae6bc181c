package watermark

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// End is the Pos of a position behind the last message of its transaction.
const End = math.MaxInt64

// Position is a place in the stream [R1]: behind message Pos of the transaction that
// commits at Watermark, or, with Pos End, behind the whole transaction.
type Position struct {
	Watermark string
	Pos       int64
}

// After returns the position between transactions that follows the commit at w.
func After(w string) Position {
	return Position{Watermark: w, Pos: End}
}

// Compare returns -1, 0 or +1 as p is before, at or behind q.
func (p Position) Compare(q Position) int {
	if c := strings.Compare(p.Watermark, q.Watermark); c != 0 {
		return c
	}
	return cmp.Compare(p.Pos, q.Pos)
}

// Between says whether p lies between transactions.
func (p Position) Between() bool {
	return p.Pos == End
}

// String writes p for logs and tests.
func (p Position) String() string {
	if p.Between() {
		return p.Watermark
	}
	return fmt.Sprintf("%s#%d", p.Watermark, p.Pos)
}
