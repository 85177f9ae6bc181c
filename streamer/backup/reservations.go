package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Reasons for the end of a reservation that are not the subscriber's own.
const (
	ReasonSubscribed = "the subscriber has subscribed"
	ReasonReplaced   = "a newer reservation of the same task replaces this one"
	ReasonTooOld     = "the reservation is older than --reservation-max-age"
)

// checkEvery is how often reservations are looked at that wait, or may be too old.
const checkEvery = time.Second

// Status is what the holder of a reservation is told to restore.
type Status struct {
	ReplicaVersion string
	Watermark      string // restore a backup that is at least here
}

// ReservationsConfig is what Reservations need. All but MaxAge and Logger are required.
type ReservationsConfig struct {
	// Open notes a reservation in the log: nothing at or past the backup known now is
	// purged from then on. Confirm notes what its holder is told, false: it is void. Close
	// ends it.
	Open    func(ctx context.Context, taskID string) (id int64, err error)
	Confirm func(ctx context.Context, id int64, watermark string) (bool, error)
	Close   func(ctx context.Context, id int64) error
	// Restorable is what a subscriber can restore now, and be caught up from. false:
	// there is nothing.
	Restorable func(ctx context.Context) (Status, bool, error)

	MaxAge time.Duration // without limit if zero
	Logger *slog.Logger  // discards if nil
}

// Reservations are those of subscribers that restore a replica. It may be used from any
// goroutine.
type Reservations struct {
	cfg ReservationsConfig
	log *slog.Logger

	mu    sync.Mutex
	tasks map[string]*Reservation
}

// Reservation holds back the purge while its holder restores a replica.
type Reservation struct {
	of     *Reservations
	taskID string
	id     int64
	opened time.Time

	confirmed chan Status   // has the status once it is known
	ended     chan struct{} // closed
	once      sync.Once
	reason    string // set before ended is closed
	told      bool   // of the loop: a status was sent
}

// NewReservations checks cfg.
func NewReservations(cfg ReservationsConfig) (*Reservations, error) {
	if cfg.Open == nil || cfg.Confirm == nil || cfg.Close == nil || cfg.Restorable == nil {
		return nil, errors.New("reservations: Open, Confirm, Close and Restorable are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reservations{cfg: cfg, log: cfg.Logger.With("component", "reservations"), tasks: map[string]*Reservation{}}, nil
}

// Open opens a reservation; an older one of the same task ends.
func (r *Reservations) Open(ctx context.Context, taskID string) (*Reservation, error) {
	id, err := r.cfg.Open(ctx, taskID)
	if err != nil {
		return nil, fmt.Errorf("open a reservation for task %q: %w", taskID, err)
	}
	now := &Reservation{
		of: r, taskID: taskID, id: id, opened: time.Now(),
		confirmed: make(chan Status, 1), ended: make(chan struct{}),
	}
	r.mu.Lock()
	old := r.tasks[taskID]
	r.tasks[taskID] = now
	r.mu.Unlock()
	if old != nil {
		old.end(ReasonReplaced)
	}
	r.log.InfoContext(ctx, "a subscriber begins to restore", "task_id", taskID)
	return now, nil
}

// Confirmed has the status as soon as there is one, once.
func (r *Reservation) Confirmed() <-chan Status { return r.confirmed }

// Ended is closed when the reservation has ended.
func (r *Reservation) Ended() <-chan struct{} { return r.ended }

// Reason is why it has, after that.
func (r *Reservation) Reason() string { return r.reason }

// Release ends the reservation: its connection has ended.
func (r *Reservation) Release(ctx context.Context) { r.finish(ctx, "its connection has ended") }

// Subscribed ends the reservation of a task that has subscribed.
func (r *Reservations) Subscribed(ctx context.Context, taskID string) {
	r.mu.Lock()
	reservation := r.tasks[taskID]
	r.mu.Unlock()
	if reservation != nil {
		reservation.finish(ctx, ReasonSubscribed)
	}
}

func (r *Reservation) end(reason string) {
	r.once.Do(func() {
		r.reason = reason
		close(r.ended)
	})
}

// finish ends the reservation and takes it out of the log. One that was replaced there
// has another number, which is left alone.
func (r *Reservation) finish(ctx context.Context, reason string) {
	r.of.mu.Lock()
	current := r.of.tasks[r.taskID] == r
	if current {
		delete(r.of.tasks, r.taskID)
	}
	r.of.mu.Unlock()
	r.end(reason)
	if !current {
		return
	}
	if err := r.of.cfg.Close(context.WithoutCancel(ctx), r.id); err != nil {
		r.of.log.WarnContext(ctx, "could not close a reservation", "task_id", r.taskID, "err", err) // it is void with the owner
	}
	r.of.log.InfoContext(ctx, "a reservation has ended", "task_id", r.taskID, "duration", time.Since(r.opened), "cause", r.reason)
}

// Run confirms reservations as soon as there is something to restore, and ends those that
// are too old, until ctx ends.
func (r *Reservations) Run(ctx context.Context) error {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	complained := ""
	for {
		if err := r.check(ctx); err == nil {
			complained = ""
		} else if err.Error() != complained && ctx.Err() == nil {
			complained = err.Error()
			r.log.ErrorContext(ctx, "subscribers that want to restore have to wait", "err", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Reservations) check(ctx context.Context) error {
	r.mu.Lock()
	var waiting, old []*Reservation
	for _, reservation := range r.tasks {
		switch {
		case r.cfg.MaxAge > 0 && time.Since(reservation.opened) > r.cfg.MaxAge:
			old = append(old, reservation)
		case !reservation.told:
			waiting = append(waiting, reservation)
		}
	}
	r.mu.Unlock()
	for _, reservation := range old {
		reservation.finish(ctx, ReasonTooOld)
	}
	if len(waiting) == 0 {
		return nil
	}
	status, found, err := r.cfg.Restorable(ctx)
	if err != nil || !found {
		return err
	}
	for _, reservation := range waiting {
		confirmed, err := r.cfg.Confirm(ctx, reservation.id, status.Watermark)
		if err != nil {
			return err
		}
		if !confirmed {
			reservation.finish(ctx, ReasonReplaced)
			continue
		}
		reservation.told = true
		reservation.confirmed <- status
	}
	return nil
}
