package changelog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"millrace/streamer/change"
)

// keepaliveEvery is how often an open database transaction that waits for its next
// message says something, so that nothing on the way takes it for dead.
const keepaliveEvery = 5 * time.Second

// large is a transaction that has a database transaction of its own.
type large struct {
	begin     int64 // number of its first message: its attempt
	watermark string
	next      int64 // number behind its commit, once that was sent; else 0
}

// writer stores one transaction in a database transaction of its own.
type writer interface {
	// open begins. skip: it is in the log already. refused: nothing was begun.
	open(tx large, head string) (skip bool, refused *pgconn.PgError, err error)
	// write takes messages; when it returns they may be forgotten.
	write(run change.Run) error
	// flush is called when there is nothing more to write yet.
	flush() error
	// ping is called when that lasts.
	ping() error
	// commit ends the transaction, whose last message was written. When it returns nil
	// that is durable.
	commit() error
	rollback() error
}

// storeLarge stores the transaction at s.stored on its own, while it arrives if it has
// to. It returns done when ctx has ended and the rest of the transaction is not there.
func (s *Store) storeLarge(ctx context.Context) (done bool, err error) {
	run, next, ok := s.cfg.Tail.StoreRead(s.stored)
	if !ok || next > s.stored {
		return false, nil // cut off meanwhile
	}
	tx := large{begin: run.Tx(0).Attempt, watermark: run.Tx(0).Watermark}
	what := "store the large transaction " + tx.watermark
	if tx.begin != s.stored {
		s.cfg.Tail.Break(tx.begin) // its beginning was dropped [R7]
		return false, nil
	}

	var w writer = &copier{store: s, link: s.link}
	if s.noInsert {
		w = &piecer{store: s, link: s.link}
	}
	s.link.extra = 0
	started := time.Now()
	var refused *pgconn.PgError
	skip := tx.watermark <= s.known
	if !skip {
		skip, refused, err = w.open(tx, s.head)
	}
	switch {
	case err != nil:
		return false, fmt.Errorf("%s: %w", what, err)
	case refused != nil && refused.Code == codeInsufficientPrivilege && !s.noInsert:
		s.noInsert = true
		return false, nil
	case refused != nil:
		return false, s.refused(refused, started, what)
	case skip:
		w = skipper{}
	default:
		s.large = &tx
	}

	done, err = s.feed(ctx, w, &tx, started)
	if err != nil {
		return false, named(what, err)
	}
	s.large = nil
	return done, nil
}

// feed gives a transaction to its writer as it arrives.
func (s *Store) feed(ctx context.Context, w writer, tx *large, started time.Time) (done bool, err error) {
	count := flight{txs: 1, sent: started}
	for seq := tx.begin; ; {
		run, next, ok := s.cfg.Tail.StoreRead(seq)
		if next > seq || ok && run.Tx(0).Attempt != tx.begin {
			// Cut off: the step that follows finds where the stream goes on.
			return false, w.rollback()
		}
		if ctx.Err() != nil && (!ok || s.newcomer) {
			return true, w.rollback() // what is not whole, or not ours, is not drained
		}
		if !ok {
			if err := s.waitInside(ctx, w); err != nil {
				return false, err
			}
			continue
		}
		end := run.TxEnd(0)
		run = run.Cut(0, end)
		if err := w.write(run); err != nil {
			return false, err
		}
		count.rows += run.Len()
		count.bytes += run.Bytes()
		seq = run.Next()
		if run.Entry(run.Len()-1).Kind != change.Commit {
			s.cfg.Tail.Passed(seq)
			continue
		}
		tx.next = seq
		if err := w.commit(); err != nil {
			return false, err
		}
		s.advance(seq, tx.watermark)
		s.count(count)
		return false, nil
	}
}

// waitInside waits for the next message of an open transaction.
func (s *Store) waitInside(ctx context.Context, w writer) error {
	if err := w.flush(); err != nil {
		return err
	}
	timer := time.NewTimer(keepaliveEvery)
	defer timer.Stop()
	select {
	case <-s.cfg.Tail.StoreWake():
	case <-ctx.Done():
	case <-timer.C:
		return w.ping()
	}
	return nil
}

// resumeLarge decides about the transaction whose database transaction died with the
// last session.
func (s *Store) resumeLarge(head string) {
	tx := s.large
	s.large = nil
	if tx == nil {
		return
	}
	if tx.next > 0 && head >= tx.watermark {
		s.advance(tx.next, tx.watermark) // it was committed, only the answer was lost
		return
	}
	s.cfg.Tail.Passed(tx.begin) // from now on nothing more of it is dropped
	if s.cfg.Tail.Kept(tx.begin) {
		return
	}
	s.log.Warn("large transaction must come again from upstream", "watermark", tx.watermark)
	s.cfg.Tail.Break(tx.begin)
}

// skipper lets a transaction pass that is in the log already.
type skipper struct{}

func (skipper) open(large, string) (bool, *pgconn.PgError, error) { return true, nil, nil }
func (skipper) write(change.Run) error                            { return nil }
func (skipper) flush() error                                      { return nil }
func (skipper) ping() error                                       { return nil }
func (skipper) commit() error                                     { return nil }
func (skipper) rollback() error                                   { return nil }
