package postgres

import "time"

const (
	nap        = time.Millisecond
	enoughRead = readBuffer             // a read that brought this much needs no nap
	shortCycle = 300 * time.Microsecond // between publishes, while there is a backlog
	longStreak = 4                      // short cycles in a row that make a backlog
	fewCommits = 3                      // a cycle that brings fewer is a poor one;
	poorCycles = 2                      // so many in a row end the backlog
	largeRows  = 64                     // a transaction of more is published before its end
)

// filler decides when to let the socket fill. A walsender sends every message by itself,
// so that a reader which keeps up pays a wake-up, and makes the server and all readers
// behind it pay one, for every message or two. While there is a backlog a nap of a
// millisecond lets hundreds arrive together; at ease there is never one.
//
// There is a backlog when publishes follow each other closely, or, on a machine that has
// too much to do for that, when more has arrived by the time of each.
type filler struct {
	filling bool
	streak  int       // publishes in a row that speak for a backlog
	poor    int       // cycles in a row that do not
	last    time.Time // of the last publish
	commits int64     // at the last publish
	read    int64     // bytes, at the last nap that was due
}

// published notes that something was published, inside a large transaction or not, and
// whether more was waiting in the socket.
func (f *filler) published(now time.Time, commits int64, large, waiting bool) {
	if waiting || now.Sub(f.last) < shortCycle {
		f.streak++
	} else {
		f.streak = 0
	}
	f.last = now
	if f.filling && !large && commits-f.commits < fewCommits {
		f.poor++
	} else {
		f.poor = 0
	}
	if f.poor >= poorCycles {
		f.filling, f.streak, f.poor = false, 0, 0
	}
	f.filling = f.filling || large || f.streak >= longStreak
	f.commits = commits
}

// nap says whether to let the socket fill, given the bytes read so far.
func (f *filler) nap(read int64) bool {
	return f.filling && read-f.read < enoughRead
}
