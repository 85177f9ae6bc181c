package server

import (
	"sync"
	"time"
)

const (
	// maxDelays bounds the tasks that are remembered. One that is forgotten begins with
	// the first delay again.
	maxDelays = 1024
	// delayMemory is how long after its last delayed close a task is remembered.
	delayMemory = time.Minute
)

// delays hold back closes that the next attempt would meet again: the peer's subscribers
// come back 25 ms after every completed upgrade [R29].
type delays struct {
	first, last time.Duration

	mu    sync.Mutex
	tasks map[string]delay
}

type delay struct {
	next time.Duration
	at   time.Time
}

// next returns the delay of a close of this task.
func (d *delays) next(task string, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks == nil {
		d.tasks = map[string]delay{}
	}
	known, ok := d.tasks[task]
	if !ok || now.Sub(known.at) > delayMemory {
		known.next = d.first
	}
	if !ok && len(d.tasks) >= maxDelays {
		d.forget(now)
	}
	d.tasks[task] = delay{next: min(2*known.next, max(d.first, d.last)), at: now}
	return known.next
}

// forget makes room: whoever is old goes, and if nobody is, anybody.
func (d *delays) forget(now time.Time) {
	for task, known := range d.tasks {
		if now.Sub(known.at) > delayMemory {
			delete(d.tasks, task)
		}
	}
	for task := range d.tasks {
		if len(d.tasks) < maxDelays {
			return
		}
		delete(d.tasks, task)
	}
}
