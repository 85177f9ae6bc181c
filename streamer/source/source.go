// Package source says what a change source is: whatever turns an upstream's changes
// into one ordered stream of messages.
package source

import (
	"context"
	"errors"

	"millrace/streamer/change"
)

// ErrNotOwner says that another process owns the change log, so that this one may not
// stream any more. It is a clean end, not a failure.
var ErrNotOwner = errors.New("another process owns the change log")

// Sink takes the stream of one source, in order, from one goroutine.
//
// A transaction is Begin, Data …, Commit; commit watermarks only grow. What was added is
// visible to readers after the next Publish.
type Sink interface {
	// Spare returns an empty slice with space for about n bytes, to append one message
	// to. The result goes to Begin, Data or Commit; if it has moved it is copied.
	Spare(n int) []byte
	Begin(message []byte, watermark string)
	Data(message []byte, tag change.Tag)
	Commit(message []byte)

	// Abort cuts off the open transaction, if there is one. The stream goes on behind
	// Last.
	Abort()

	// Shown says that every published commit at or below watermark has been given to
	// the sink [R2]. It is called between transactions only.
	Shown(watermark string)

	// Publish makes what was added visible. It returns false if there was nothing.
	Publish() bool

	// Pending is the number of messages added since the last Publish.
	Pending() int

	// Room returns nil while there is room for more, else a channel that is closed when
	// it is worth asking again. Until then the source must not take more from upstream.
	Room() <-chan struct{}

	// Restart says that the sink cannot go on with this stream [R7]: the source ends it,
	// calls Abort and starts again behind Last.
	Restart() bool

	// Last is the watermark of the last whole transaction: the stream starts behind it.
	// What comes at or below it is left out by the source.
	Last() string
}

// Source produces one stream.
type Source interface {
	// Run streams into sink until ctx ends, and then returns nil. It reconnects by
	// itself. An error means that this process must end: a *StateError names a state
	// that trying again cannot mend, ErrNotOwner a lost ownership. If ctx ends with the
	// cause ErrNotOwner nothing is confirmed upstream any more.
	Run(ctx context.Context, sink Sink) error

	// Confirm says that everything up to watermark is durable, so that upstream may
	// forget it [R12]. It may be called from any goroutine; lower values do nothing.
	Confirm(watermark string)
}

// StateError is a state in which the stream cannot go on, and that ends only when
// somebody does something about it.
type StateError struct {
	State  string // a short name, such as slot-lost
	Detail string // what is the case
	Hint   string // what to do
	Err    error  // what it was seen by; may be nil
}

// Error returns the state, the detail and the hint in one line.
func (e *StateError) Error() string {
	text := e.State + ": " + e.Detail
	if e.Err != nil {
		text += " (" + e.Err.Error() + ")"
	}
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Unwrap returns the underlying error.
func (e *StateError) Unwrap() error { return e.Err }
