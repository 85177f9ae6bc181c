package postgres

import (
	"syscall"
	"time"
)

// sleep lets the socket fill. The thread sleeps, not the goroutine: an idle runtime rounds
// short timers up, and that was measured to cost more than the thread.
func sleep(d time.Duration) {
	left := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&left, nil) // cut short by a signal: no harm
}
