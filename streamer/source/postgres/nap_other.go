//go:build !linux

package postgres

import "time"

// sleep lets the socket fill.
func sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}
