package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gorilla/websocket"

	"millrace/streamer/change"
)

// maxSpare is the largest buffer kept for the next message: one large message must not
// hold its memory for good.
const maxSpare = 1 << 20

// session is the life of one connection.
type session struct {
	client *Client
	conn   *connection
	pos    Position // behind the last transaction handled; persisted up to here or earlier

	frame    []byte
	lenient  bool // this server's frames are not in the exact form: parse them all
	lastID   uint64
	accepted bool

	open      bool   // inside a transaction
	watermark []byte // of the open transaction
	text      string // the same, for the handler

	unpersisted bool
}

// run takes messages until the connection or the caller ends it.
func (s *session) run(ctx context.Context) error {
	err := s.receive(ctx)
	// The caller hears about the end of the transaction even if it was told to stop, so
	// that what it wrote is whole.
	ctx = context.WithoutCancel(ctx)
	if callerError(err) == nil {
		if end := s.finish(ctx); end != nil {
			return end
		}
	}
	return err
}

func (s *session) receive(ctx context.Context) error {
	for {
		if err := s.read(); err != nil {
			return s.explain(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.take(ctx); err != nil {
			return err
		}
		if err := s.conn.settleIfLarge(); err != nil {
			return err
		}
	}
}

// read reads one frame into s.frame.
func (s *session) read() error {
	if cap(s.frame) > maxSpare {
		s.frame = nil
	}
	s.frame = s.frame[:0]
	_, r, err := s.conn.ws.NextReader()
	if err != nil {
		return err
	}
	for {
		s.frame = slices.Grow(s.frame, 512)
		n, err := r.Read(s.frame[len(s.frame):cap(s.frame)])
		s.frame = s.frame[:len(s.frame)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take handles the frame that was read and notes its ack.
func (s *session) take(ctx context.Context) error {
	id, msg, err := s.cut()
	if err != nil {
		return &violation{err}
	}
	if id != s.lastID+1 {
		return violated("frame %d follows frame %d", id, s.lastID)
	}
	s.lastID = id

	m := Message{Bytes: msg, Watermark: s.text}
	kind, watermark, err := classify(msg)
	if err != nil {
		p, err := parseMessage(msg)
		if err != nil {
			return &violation{err}
		}
		if p.kind == refusal {
			return &Refused{Type: p.errType, Message: p.errText, Position: s.pos}
		}
		kind, watermark = p.kind, p.watermark
	}
	m.Kind = kind
	if err := s.step(&m, watermark); err != nil {
		return err
	}
	if err := s.client.cfg.Handler(ctx, m); err != nil {
		return &callbackError{err}
	}
	if m.Kind == Commit {
		if err := s.committed(ctx); err != nil {
			return err
		}
	}
	s.conn.ack(id)
	return nil
}

func (s *session) cut() (id uint64, msg []byte, err error) {
	if s.lastID == 0 {
		// A server that adds keys or blanks does so from the first frame on. Cutting
		// such frames by their ends would cut wrongly, so look once, closely.
		id, msg, err = parseFrame(s.frame)
		if err == nil {
			exactID, exact, cutErr := cutFrame(s.frame)
			s.lenient = cutErr != nil || exactID != id || !bytes.Equal(exact, msg)
		}
		return id, msg, err
	}
	if !s.lenient {
		if id, msg, err = cutFrame(s.frame); err == nil {
			return id, msg, nil
		}
		s.lenient = true
	}
	return parseFrame(s.frame)
}

// step checks that the message may come here, and moves the state of the transaction.
func (s *session) step(m *Message, watermark []byte) error {
	switch m.Kind {
	case Status:
		m.Watermark = ""
		if !s.accepted {
			s.accepted = true
			s.client.retry.reset()
		}
	case Begin:
		if s.open {
			return violated("begin of %s inside the transaction %s", watermark, s.watermark)
		}
		if string(watermark) <= s.pos.Watermark {
			return violated("transaction %s came again or out of order: %s was handled", watermark, s.pos.Watermark)
		}
		s.open = true
		s.watermark = append(s.watermark[:0], watermark...)
		s.text = string(watermark)
		m.Watermark = s.text
	case Data, Rollback:
		if !s.open {
			return violated("message outside a transaction: %s", excerpt(m.Bytes))
		}
		if m.Kind == Rollback {
			s.open, s.text = false, ""
		}
	case Commit:
		if !s.open {
			return violated("commit of %s outside a transaction", watermark)
		}
		if !bytes.Equal(watermark, s.watermark) {
			return violated("commit of %s in the transaction %s", watermark, s.watermark)
		}
	}
	return nil
}

func (s *session) committed(ctx context.Context) error {
	s.pos.Watermark = s.text
	s.open, s.text = false, ""
	s.client.pos, s.client.moved = s.pos, true
	s.client.violations.reset()
	s.unpersisted = true
	if s.client.cfg.PersistTogether {
		return nil // settle does it, before the acks leave
	}
	return s.persist(ctx)
}

func (s *session) persist(ctx context.Context) error {
	if !s.unpersisted {
		return nil
	}
	s.unpersisted = false
	if s.client.cfg.Persist == nil {
		return nil
	}
	if err := s.client.cfg.Persist(ctx, s.pos); err != nil {
		return &callbackError{fmt.Errorf("persist watermark %s: %w", s.pos.Watermark, err)}
	}
	return nil
}

// settle makes true what the acks that leave next will say.
func (s *session) settle(ctx context.Context) error {
	if err := s.persist(ctx); err != nil {
		return err
	}
	if idle := s.client.cfg.Idle; idle != nil {
		if err := idle(); err != nil {
			return &callbackError{err}
		}
	}
	return nil
}

// finish ends an open transaction for the caller and settles what was handled.
func (s *session) finish(ctx context.Context) error {
	if s.open {
		s.open = false
		m := Message{Bytes: []byte(change.Rollback), Kind: Rollback, Watermark: s.text}
		if err := s.client.cfg.Handler(ctx, m); err != nil {
			return &callbackError{err}
		}
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	_ = s.conn.sendAcks() // a server that does not hear them sends again what follows the position
	return nil
}

// explain turns the end of a connection into what it means.
func (s *session) explain(err error) error {
	var closed *websocket.CloseError
	switch {
	case s.conn.settleErr != nil:
		return s.conn.settleErr
	case errors.As(err, &closed):
		if closed.Code == websocket.CloseProtocolError && s.lastID == 0 && isHopeless(closed.Text) {
			return &Refused{Message: closed.Text, Position: s.pos}
		}
		if closed.Text != "" {
			return fmt.Errorf("the server closed the connection: %d %s", closed.Code, closed.Text)
		}
		return fmt.Errorf("the server closed the connection: %d", closed.Code)
	case errors.Is(err, websocket.ErrReadLimit):
		return violated("a message is larger than %d bytes", s.client.cfg.MaxMessageBytes)
	}
	return fmt.Errorf("read: %w", err)
}
