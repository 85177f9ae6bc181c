package backup

import "sync"

// Acker works out what upstream may forget: what is stored, and backed up if that counts.
// It may be used from any goroutine.
type Acker struct {
	confirm func(watermark string) // must not block
	backups bool

	mu     sync.Mutex
	head   string // the last transaction stored
	shown  string // everything up to it is stored, as was written down
	backup string // everything up to it is backed up
	sent   string
}

// NewAcker returns an Acker that begins at the head of the log. With backups nothing is
// confirmed that is not backed up. confirm is told watermarks that only grow.
func NewAcker(head string, backups bool, confirm func(watermark string)) *Acker {
	return &Acker{confirm: confirm, backups: backups, head: head}
}

// Stored says that everything up to a transaction is durable.
func (a *Acker) Stored(watermark string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.head = max(a.head, watermark)
	a.send()
}

// Shown says that the stream has shown everything up to a watermark, that all of it is
// stored, and that this is written down [R12].
func (a *Acker) Shown(watermark string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.shown = max(a.shown, watermark)
	a.send()
}

// BackedUp says that everything up to a watermark is in a backup.
func (a *Acker) BackedUp(watermark string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.backup = max(a.backup, watermark)
	a.send()
}

// send confirms what may be. Where nothing was published behind a backup, it holds
// everything that the stream has shown since.
func (a *Acker) send() {
	may := max(a.head, a.shown)
	if a.backups && a.backup < a.head {
		may = a.backup
	}
	if may > a.sent {
		a.sent = may
		a.confirm(may)
	}
}
