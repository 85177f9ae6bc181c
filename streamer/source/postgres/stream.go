package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"millrace/streamer/source"
	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/watermark"
)

// stream is what comes over one connection.
type stream struct {
	source  *Source
	conn    *walsender
	sink    source.Sink
	decoder *pgoutput.Decoder
	pace    pace
	fill    filler

	progressed bool          // something was given to the sink
	seen       pglogrepl.LSN // everything up to it has been given, and the sink was not told
	end        pglogrepl.LSN // the server's position

	sent   pglogrepl.LSN // the last position confirmed here
	sentAt time.Time     // when the server last heard from us
	owed   bool          // the server waits for an answer
	urge   urge
	heard  time.Time // when something was last known to arrive
	bytes  int64     // received, when that was last looked at

	// For the metrics: counted here, added up at each tick.
	committedAt           int64 // time of the last commit, as the server wrote it
	messages, commits     int64
	countedBytes, counted int64
}

// run receives until something ends the stream. It returns the reason, never nil.
func (s *stream) run(ctx context.Context) error {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.conn.wake(time.Unix(1, 0)) // an error says that there is nobody to wake
		close(woken)
	})
	defer func() {
		if !stop() {
			<-woken // or it could cut the farewell short
		}
	}()
	defer s.count()

	s.heard = time.Now()
	if err := s.tick(ctx); err != nil {
		return err
	}
	var stopped error
	s.conn.beforeRead(func() bool {
		stopped = s.rest(ctx)
		return stopped == nil
	})
	defer s.conn.beforeRead(nil)
	for {
		msg, err := s.conn.receive()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if stopped != nil {
			return stopped
		}
		switch msg := msg.(type) {
		case nil:
			err = s.tick(ctx)
		case *pgproto3.CopyData:
			err = s.data(msg.Data)
		case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
			return errEnded
		}
		if err != nil {
			return err
		}
	}
}

// rest is called before each read from the socket, in the middle of a message too:
// whatever is complete is made visible, and nothing more is taken while the sink has no
// room.
func (s *stream) rest(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.sink.Restart() {
		return errRestart
	}
	large := s.decoder.InTransaction() && s.decoder.Rows() > largeRows
	if large || !s.decoder.InTransaction() {
		s.show()
		if s.sink.Publish() {
			s.published(large)
		}
		if s.fill.nap(s.conn.bytes()) {
			s.conn.nap(nap)
		}
	}
	s.fill.read = s.conn.bytes()
	if s.sink.Room() != nil {
		return s.waitRoom(ctx)
	}
	return nil
}

func (s *stream) published(large bool) {
	now := time.Now()
	s.fill.published(now, s.decoder.Commits(), large, !s.fill.filling && s.conn.socket.waiting())
	if s.committedAt != 0 {
		s.source.cfg.Metrics.SourceCommitLag.Observe(
			float64(now.UnixMicro()-postgresEpoch-s.committedAt) / 1e6)
		s.committedAt = 0
	}
}

// show tells the sink how far everything has been given to it. Between transactions only.
func (s *stream) show() {
	if s.seen == 0 || s.decoder.InTransaction() {
		return
	}
	w := watermark.FromLSN(s.seen)
	s.seen = 0
	if w > s.sink.Last() && w > s.source.shown {
		s.source.shown = w
		s.sink.Shown(w)
		s.progressed = true
	}
}

// waitRoom waits until the sink has room. The server hears from us meanwhile; that it
// cannot be heard is our own doing.
func (s *stream) waitRoom(ctx context.Context) error {
	s.sink.Publish() // the sink makes room by giving away what is visible
	timer := time.NewTicker(s.pace.tick)
	defer timer.Stop()
	look := time.Now().Add(roomLook)
	for room := s.sink.Room(); room != nil; room = s.sink.Room() {
		select {
		case <-room:
		case <-timer.C:
			s.heard = time.Now()
			if err := s.update(s.heard, false); err != nil {
				return err
			}
			if s.heard.After(look) {
				look = s.heard.Add(roomLook)
				if err := s.source.lookUp(ctx); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		if s.sink.Restart() {
			return errRestart
		}
	}
	s.heard = time.Now()
	return nil
}

// data takes one message of the replication protocol.
func (s *stream) data(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("receive: an empty message")
	}
	switch b[0] {
	case 'w':
		if len(b) <= dataHeader {
			return fmt.Errorf("receive: %d bytes of XLogData", len(b))
		}
		return s.decode(b[dataHeader:])
	case 'k':
		k, err := parseKeepalive(b)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		s.end = max(s.end, k.end)
		if !s.decoder.InTransaction() && k.end > 0 {
			s.seen = max(s.seen, k.end-1)
		}
		if k.reply {
			return s.answer(time.Now())
		}
		return nil
	default:
		return fmt.Errorf("receive: a message of type %q", b[0])
	}
}

func (s *stream) decode(b []byte) error {
	if b[0] != 'C' {
		return s.decoder.Message(b)
	}
	rows := s.decoder.Rows()
	if err := s.decoder.Message(b); err != nil {
		return err
	}
	s.end = max(s.end, s.decoder.EndLSN())
	if empty := s.decoder.EmptyEnd(); empty != 0 {
		s.seen = max(s.seen, empty)
		return nil
	}
	s.progressed = true
	s.messages += int64(rows) + 2
	s.committedAt = int64(binary.BigEndian.Uint64(b[18:])) //nolint:gosec // the server's number is signed
	return nil
}

// tick is what is done now and then, traffic or not.
func (s *stream) tick(ctx context.Context) error {
	now := time.Now()
	if bytes := s.conn.bytes(); bytes != s.bytes {
		s.bytes, s.heard = bytes, now
	}
	if s.pace.silence > 0 && now.Sub(s.heard) > s.pace.silence {
		return fmt.Errorf("%w: %s", errSilent, s.pace.silence)
	}
	if err := s.update(now, false); err != nil {
		return err
	}
	s.count()
	s.source.session.rest(ctx, now)
	if err := s.conn.wake(now.Add(s.pace.tick)); err != nil {
		return fmt.Errorf("set a deadline: %w", err)
	}
	return ctx.Err() // the end of ctx may have been overwritten just now
}

// answer answers a keepalive that asks for it. One that comes right behind our last
// update waits for the next tick: a server that shuts down would ask again at once.
func (s *stream) answer(now time.Time) error {
	if now.Sub(s.sentAt) > s.pace.heartbeat {
		return s.update(now, true)
	}
	s.owed = true
	if s.urge.asked(now, 4*s.pace.tick+time.Second) {
		return errLeaving
	}
	return nil
}

// update sends a status update if there is something new to confirm, if the server has
// not heard from us for long, or at once.
func (s *stream) update(now time.Time, atOnce bool) error {
	confirmed := s.source.Confirmed()
	late := now.Sub(s.sentAt) >= s.pace.heartbeat
	if confirmed == s.sent && !late && !s.owed && !atOnce {
		return nil
	}
	// A server that is asked by nobody says nothing, and one that says nothing may be gone.
	if err := s.conn.status(confirmed, now, late, s.pace.write); err != nil {
		return err
	}
	s.sent, s.sentAt, s.owed = confirmed, now, false
	return nil
}

// bye tells the server what was confirmed last, if it is there.
func (s *stream) bye() {
	if !s.conn.conn.IsClosed() {
		_ = s.update(time.Now(), true) // it will be told by the next stream
	}
}

// count brings the metrics up to date.
func (s *stream) count() {
	m := s.source.cfg.Metrics
	bytes, commits := s.conn.bytes(), s.decoder.Commits()
	m.SourceReceivedBytes.Add(float64(bytes - s.countedBytes))
	m.SourceTransactions.Add(float64(commits - s.commits))
	m.SourceMessages.Add(float64(s.messages - s.counted))
	s.countedBytes, s.commits, s.counted = bytes, commits, s.messages
	if confirmed := s.source.Confirmed(); confirmed > 0 && s.end > confirmed {
		m.SourceConfirmedLagBytes.Set(float64(s.end - confirmed))
	} else {
		m.SourceConfirmedLagBytes.Set(0)
	}
}
