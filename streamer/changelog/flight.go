package changelog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"millrace/db"
)

// depth is how many batches are under way at most: with the second one the server need
// not wait for us between two. A third gains nothing.
const depth = 2

// Names of the statements that are bound by hand.
const (
	storeStatement  = "millrace_store_changes"
	appendStatement = "millrace_append_changes"
)

// SQLSTATEs of PostgreSQL itself.
const (
	codeLockNotAvailable      = "55P03"
	codeUndefinedTable        = "42P01"
	codeUndefinedFunction     = "42883"
	codeInvalidSchemaName     = "3F000"
	codeInsufficientPrivilege = "42501"
)

// flight is a batch that was sent and not answered.
type flight struct {
	rows, bytes, txs int
	last             string
	next             int64
	sent             time.Time
}

// prepare prepares the statements that are bound by hand.
func (s *Store) prepare() error {
	types := []uint32{oidText, oidText, oidText, oidTextArray, oidInt8Array, oidJSONArray, oidTextArray, oidText}
	return s.link.call(func(ctx context.Context) error {
		for _, statement := range []struct {
			name, text string
			types      []uint32
		}{
			{storeStatement, db.StoreChanges, types},
			{appendStatement, db.AppendChanges, []uint32{oidText, oidText, oidText, oidInt8Array, oidJSONArray, oidTextArray}},
		} {
			prepared, err := s.link.conn.PgConn().Prepare(ctx, statement.name, statement.text, nil)
			if err != nil {
				return fmt.Errorf("prepare to store changes: %w", err)
			}
			if !slices.Equal(prepared.ParamOIDs, statement.types) {
				return fmt.Errorf("prepare to store changes: %s takes the types %d, not %d",
					statement.name, prepared.ParamOIDs, statement.types)
			}
		}
		return nil
	})
}

// OIDs of the array types.
const (
	oidJSONArray = 199
	oidTextArray = 1009
	oidInt8Array = 1016
)

// next is the number of the first message that was not sent.
func (s *Store) next() int64 {
	if n := len(s.flights); n > 0 {
		return s.flights[n-1].next
	}
	return s.stored
}

// expected is the head that the next batch comes behind.
func (s *Store) expected() string {
	if n := len(s.flights); n > 0 {
		return s.flights[n-1].last
	}
	return s.head
}

// send sends s.batch. It names the head that the batch comes behind, so that nothing is
// stored behind a gap if the one before is refused.
func (s *Store) send() error {
	l, b := s.link, &s.batch
	at := l.bindHead(storeStatement, 8)
	l.out = appendText(l.out, s.cfg.Owner)
	l.out = appendText(l.out, s.cfg.ReplicaVersion)
	l.out = appendText(l.out, s.expected())
	l.watermarks(b)
	l.positions(b)
	l.changes(b)
	l.precommits(b)
	l.out = appendText(l.out, b.last)
	l.bindEnd(at)
	l.execute(0)
	l.sync()
	s.flights = append(s.flights, flight{
		rows: b.rows, bytes: b.bytes, txs: b.txs, last: b.last, next: b.next, sent: time.Now(),
	})
	if err := l.flush(); err != nil {
		return fmt.Errorf("store %d transactions up to %s: %w", b.txs, b.last, err)
	}
	return nil
}

// land takes the answer to the oldest batch under way.
func (s *Store) land() error {
	f := s.flights[0]
	refused, err := s.link.answer()
	if err != nil {
		return fmt.Errorf("store %d transactions up to %s: %w", f.txs, f.last, err)
	}
	if refused == nil {
		s.flights = slices.Delete(s.flights, 0, 1)
		s.advance(f.next, f.last)
		s.count(f)
		return nil
	}
	// Those behind it expect a head that was not reached.
	for _, behind := range s.flights[1:] {
		second, err := s.link.answer()
		if err != nil {
			return fmt.Errorf("store %d transactions up to %s: %w", behind.txs, behind.last, err)
		}
		if second == nil {
			return fmt.Errorf("store up to %s: done, although %s was refused: %w", behind.last, f.last, refused)
		}
	}
	s.flights = s.flights[:0]
	if m := s.cfg.Metrics; m != nil {
		m.ChangelogRetries.Inc()
	}
	return s.refused(refused, f.sent, fmt.Sprintf("store %d transactions up to %s", f.txs, f.last))
}

// refused says what a refusal means: nil for one that only says to try again.
func (s *Store) refused(refused *pgconn.PgError, since time.Time, what string) error {
	switch refused.Code {
	case codeLockNotAvailable:
		// Somebody else stores, or resets, and will be done some time [R17].
		s.timeouts = 0
		if m := s.cfg.Metrics; m != nil {
			m.ChangelogWaitSeconds.Add(time.Since(since).Seconds())
		}
		s.log.Debug("waited for a lock", "duration", time.Since(since), "err", refused)
		return nil
	default:
		return named(what, refused)
	}
}

// count adds a batch to what is told of the store.
func (s *Store) count(f flight) {
	s.bytes.Add(int64(f.bytes))
	m := s.cfg.Metrics
	if m == nil {
		return
	}
	m.ChangelogBatches.Inc()
	m.ChangelogTransactions.Add(float64(f.txs))
	m.ChangelogMessages.Add(float64(f.rows))
	m.ChangelogBytes.Add(float64(f.bytes))
	m.ChangelogBatchSeconds.Observe(time.Since(f.sent).Seconds())
}
