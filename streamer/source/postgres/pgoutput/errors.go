package pgoutput

import (
	"errors"
	"fmt"
)

// ErrNoIdentity is wrapped by the error about an update or a delete of a table that has
// no replica identity: nobody could say which row it means. Postgres refuses such
// statements on published tables.
var ErrNoIdentity = errors.New("the table has no replica identity")

// TooLargeError says that a change is larger than a message may be.
type TooLargeError struct {
	Schema, Table string
	Size          int // bytes of JSON, at least
	Limit         int // bytes
}

// Error names the table, the size and the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a change of %q.%q takes %d bytes, more than the %d that a message may have",
		e.Schema, e.Table, e.Size, e.Limit)
}
