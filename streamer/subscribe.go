package streamer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"millrace/streamer/change"
	"millrace/streamer/changelog"
	"millrace/streamer/server"
	"millrace/streamer/subscriber"
	"millrace/streamer/watermark"
	"millrace/streamer/wire"
)

// startWait is how long a subscription waits for the stream that it has started.
const startWait = 15 * time.Second

// subscribe answers a request for the change stream. Whoever cannot be served at all is
// told so before the upgrade; errors 1 and 2 are said only after the database has said
// that this process owns the log and where it begins [R20] [R29].
func (s *service) subscribe(ctx context.Context, r wire.Request) (*subscriber.Subscription, func(), error) {
	live, err := s.started(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	if live.reservations != nil { // once it has its answer, whatever that is
		defer live.reservations.Subscribed(ctx, r.TaskID)
	}
	// Before the bounds are read: what they promise is not purged [R24].
	hold := s.holders.Add(holder(r.TaskID, r.ID), r.Watermark)
	position := watermark.After(r.Watermark)
	_, inTail := live.tail.Seek(position)
	if !inTail || r.ReplicaVersion != live.replicaVersion {
		if err := s.refusal(ctx, live, r); err != nil {
			hold.Forget()
			return nil, nil, err
		}
	}
	sub, err := subscriber.New(subscriber.Config{
		Watermark:      r.Watermark,
		ReplicaVersion: live.replicaVersion,
		Version:        r.Version,
		Tail:           live.tail,
		Pages:          s.readPage,
		WindowBytes:    s.cfg.SubscriberWindowBytes,
		MaxFrame:       int(r.MaxMessageBytes),
	})
	if err != nil {
		hold.Forget()
		return nil, nil, err
	}
	hold.Follow(sub.Acked)
	return sub, func() {
		hold.Leave()
		sub.Close()
	}, nil
}

// started returns the stream. A serving subscription starts it if it waits for that.
func (s *service) started(ctx context.Context, r wire.Request) (*stream, error) {
	if live := s.stream.Load(); live != nil {
		return live, nil
	}
	if r.Mode == wire.Serving { // a reservation is, too
		s.want.Do(func() { close(s.wanted) })
	}
	timer := time.NewTimer(startWait)
	defer timer.Stop()
	select {
	case <-s.running:
		return s.stream.Load(), nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, fmt.Errorf("%w: the stream has not started yet", server.ErrUnavailable)
}

// reserve answers a request for a reservation.
func (s *service) reserve(ctx context.Context, r wire.Request) (server.Restore, error) {
	live, err := s.started(ctx, r)
	if err != nil {
		return server.Restore{}, err
	}
	reservation, err := live.reservations.Open(ctx, r.TaskID)
	if lostLog(err) {
		return server.Restore{}, fmt.Errorf("%w: this process does not own the log", server.ErrUnavailable)
	}
	if err != nil {
		s.log.WarnContext(ctx, "could not open a reservation", "err", err)
		return server.Restore{}, fmt.Errorf("%w: the change database does not answer", server.ErrUnavailable)
	}
	return server.Restore{Reservation: reservation, BackupURL: s.cfg.BackupURL}, nil
}

// refusal asks the database whether the log covers what a subscriber asks for. A newcomer
// may say so, too, as long as nobody has told it to go.
func (s *service) refusal(ctx context.Context, live *stream, r wire.Request) error {
	pending := live.pending()
	bounds, found, err := s.ledger.Bounds(ctx)
	if err == nil && found && pending && bounds.Owner != live.owner {
		err = s.ledger.Announce(ctx, live.owner, live.replicaVersion)
		bounds.Owner = live.owner
	}
	switch {
	case errors.Is(err, changelog.ErrOwnershipLost):
		return fmt.Errorf("%w: another process is to own the log", server.ErrUnavailable)
	case err != nil:
		s.log.WarnContext(ctx, "could not ask what the log covers", "err", err)
		return fmt.Errorf("%w: the change database does not answer", server.ErrUnavailable) // the rest is ours to know
	case !found || bounds.Owner != live.owner || bounds.ReplicaVersion != live.replicaVersion:
		return fmt.Errorf("%w: this process no longer owns the log", server.ErrUnavailable)
	case r.ReplicaVersion != live.replicaVersion:
		return wire.WrongReplicaVersion(live.replicaVersion, r.ReplicaVersion)
	case r.Watermark < bounds.Minimum:
		return wire.WatermarkTooOld(bounds.Minimum, r.Watermark)
	}
	return nil
}

func (s *service) readPage(ctx context.Context, after watermark.Position, block *change.Block) (subscriber.Page, error) {
	page, err := s.pages.Read(ctx, after, block)
	return subscriber.Page(page), err
}
