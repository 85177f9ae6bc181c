//go:build race

package streamer_test

// raced says that the race detector is on.
const raced = true
