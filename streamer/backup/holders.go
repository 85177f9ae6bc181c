// Package backup decides what may be forgotten: by the log, which is purged up to a floor,
// and by upstream, which is told what is stored and backed up.
package backup

import (
	"sync"
	"time"
)

// Linger is how long a subscriber's position counts after its connection has ended: three
// times the longest pause before it comes back [R24].
const Linger = 30 * time.Second

// Holders are the positions of subscribers. It may be used from any goroutine.
type Holders struct {
	mu    sync.Mutex
	holds map[*Hold]struct{}
	now   func() time.Time
}

// Hold is the position of one subscriber, before which nothing is purged.
type Hold struct {
	holders *Holders
	name    string
	at      string        // where it began
	acked   func() string // how far it is; nil: not further
	until   time.Time     // of one that has left; else zero
}

// NewHolders returns Holders without any.
func NewHolders() *Holders {
	return &Holders{holds: map[*Hold]struct{}{}, now: time.Now}
}

// Add holds a watermark. It is called before the bounds of the log are read, so that what
// was promised then is still there when it is asked for.
func (h *Holders) Add(name, watermark string) *Hold {
	hold := &Hold{holders: h, name: name, at: watermark}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds[hold] = struct{}{}
	return hold
}

// Follow holds what acked returns from now on. acked must not block.
func (h *Hold) Follow(acked func() string) {
	h.holders.mu.Lock()
	defer h.holders.mu.Unlock()
	h.acked = acked
}

// Forget ends a hold at once: the subscriber was refused.
func (h *Hold) Forget() {
	h.holders.mu.Lock()
	defer h.holders.mu.Unlock()
	delete(h.holders.holds, h)
}

// Leave ends a hold after Linger: the subscriber may come back.
func (h *Hold) Leave() {
	h.holders.mu.Lock()
	defer h.holders.mu.Unlock()
	h.until = h.holders.now().Add(Linger)
	if h.acked != nil {
		h.at, h.acked = h.acked(), nil
	}
}

// Min returns the least position and whose it is. false: nobody holds anything.
func (h *Holders) Min() (watermark, name string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for hold := range h.holds {
		if !hold.until.IsZero() && now.After(hold.until) {
			delete(h.holds, hold)
			continue
		}
		at := hold.at
		if hold.acked != nil {
			at = hold.acked()
		}
		if !ok || at < watermark || at == watermark && hold.name < name {
			watermark, name, ok = at, hold.name, true
		}
	}
	return watermark, name, ok
}
