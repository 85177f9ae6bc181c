package change

// Found says what a reader of the tail found at its place.
type Found uint8

// What a reader can find.
const (
	// Ready: there are messages.
	Ready Found = iota
	// Dry: the reader has everything there is.
	Dry
	// Fallen: what comes next was dropped; the log has it, or will have it.
	Fallen
	// Void: the transaction that the reader is inside of was cut off.
	Void
)

// Outside is the attempt of a reader that is between transactions.
const Outside int64 = -1
