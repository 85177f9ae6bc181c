package server

import (
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is how often it is asked at most whether files have changed.
const lookEvery = time.Second

// files is what was read from some files. They are looked at when it is needed, and read
// again when they have changed; what they held before stays as long as the new is no good.
type files[T any] struct {
	names []string
	read  func() (T, error)
	log   *slog.Logger

	value atomic.Pointer[T]

	looking sync.Mutex // whoever does not get it takes what is there
	next    time.Time
	seen    []os.FileInfo // nil for a file that cannot be looked at
}

// open reads the files for the first time.
func (f *files[T]) open() error {
	f.seen, f.next = f.look(), time.Now().Add(lookEvery)
	value, err := f.read()
	if err != nil {
		return err
	}
	f.value.Store(&value)
	return nil
}

// get returns what the files hold.
func (f *files[T]) get() T {
	if f.looking.TryLock() {
		defer f.looking.Unlock()
		if now := time.Now(); !now.Before(f.next) {
			f.next = now.Add(lookEvery)
			f.refresh()
		}
	}
	return *f.value.Load()
}

// refresh reads the files if they have changed. It looks before it reads: what changes in
// between is seen the next time.
func (f *files[T]) refresh() {
	found := f.look()
	if alike(f.seen, found) {
		return
	}
	f.seen = found
	value, err := f.read()
	if err != nil {
		f.log.Warn("changed files could not be used, went on with what they held before", "err", err)
		return
	}
	f.value.Store(&value)
	f.log.Info("read changed files", "cause", strings.Join(f.names, ", "))
}

func (f *files[T]) look() []os.FileInfo {
	found := make([]os.FileInfo, len(f.names))
	for i, name := range f.names {
		if info, err := os.Stat(name); err == nil { // reading will say what is wrong
			found[i] = info
		}
	}
	return found
}

// alike says whether two looks at the same names saw the same files, unchanged.
func alike(a, b []os.FileInfo) bool {
	for i := range a {
		if a[i] == nil || b[i] == nil {
			if a[i] != b[i] {
				return false
			}
			continue
		}
		if !os.SameFile(a[i], b[i]) || a[i].Size() != b[i].Size() || !a[i].ModTime().Equal(b[i].ModTime()) {
			return false
		}
	}
	return true
}
