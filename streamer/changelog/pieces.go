package changelog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"millrace/db"
	"millrace/streamer/change"
)

// piecer stores a transaction through append_changes, for a role that may not insert into
// the log: pieces of the size of a batch, in one database transaction.
type piecer struct {
	store *Store
	link  *link
	tx    large

	piece  batch
	flying int // pieces sent and not answered
}

func (p *piecer) open(tx large, head string) (skip bool, refused *pgconn.PgError, err error) {
	p.tx = tx
	cfg := &p.store.cfg
	var decision string
	err = p.link.call(func(ctx context.Context) error {
		if _, err := p.link.conn.Exec(ctx, "begin"); err != nil {
			return err
		}
		var err error
		decision, err = db.New().BeginTransaction(ctx, p.link.conn, db.BeginTransactionParams{
			Owner:          cfg.Owner,
			ReplicaVersion: cfg.ReplicaVersion,
			ExpectedHead:   head,
			Watermark:      tx.watermark,
		})
		return err
	})
	if refused, ok := alive(err); ok {
		return false, refused, p.exec("rollback")
	}
	if err != nil {
		return false, nil, err
	}
	if decision == "skip" {
		return true, nil, p.exec("rollback")
	}
	return false, nil, nil
}

// alive returns the refusal that err is, unless the session ended with it.
func alive(err error) (*pgconn.PgError, bool) {
	refused, ok := asRefusal(err)
	return refused, ok && !fatal(refused)
}

func (p *piecer) exec(statement string) error {
	return p.link.call(func(ctx context.Context) error {
		if _, err := p.link.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
		return nil
	})
}

func (p *piecer) write(run change.Run) error {
	cfg := &p.store.cfg
	from := 0
	for i := range run.Len() {
		size := len(run.Message(i)) + rowOverhead
		if p.piece.rows > 0 && (p.piece.rows == cfg.BatchRows || p.piece.bytes+size > cfg.BatchBytes) {
			p.add(run, from, i)
			if err := p.send(); err != nil {
				return err
			}
			from = i
		}
		p.link.allow(size)
		p.piece.rows++
		p.piece.bytes += size
	}
	p.add(run, from, run.Len())
	return nil
}

func (p *piecer) add(run change.Run, from, to int) {
	if from < to {
		p.piece.runs = append(p.piece.runs, run.Cut(from, to))
	}
}

// send sends the piece, and takes the answer to the one before the last.
func (p *piecer) send() error {
	l, b := p.link, &p.piece
	at := l.bindHead(appendStatement, 6)
	l.out = appendText(l.out, p.store.cfg.Owner)
	l.out = appendText(l.out, p.store.cfg.ReplicaVersion)
	l.out = appendText(l.out, p.tx.watermark)
	l.positions(b)
	l.changes(b)
	l.precommits(b)
	l.bindEnd(at)
	l.execute(0)
	l.sync()
	clear(b.runs)
	*b = batch{runs: b.runs[:0]}
	p.flying++
	if err := l.flush(); err != nil {
		return err
	}
	return p.settle(depth - 1)
}

// settle takes answers until at most some are due.
func (p *piecer) settle(due int) error {
	for p.flying > due {
		refused, err := p.link.answer()
		if err != nil {
			return err
		}
		p.flying--
		if refused != nil {
			return refused
		}
	}
	return nil
}

// flush sends what there is if the source waits for that; else the piece may grow.
func (p *piecer) flush() error {
	if p.piece.rows > 0 && p.store.cfg.Tail.Full() {
		return p.send()
	}
	return nil
}

// ping keeps the session from being ended for its idleness.
func (p *piecer) ping() error {
	if err := p.settle(0); err != nil {
		return err
	}
	return p.link.call(p.link.conn.Ping)
}

func (p *piecer) commit() error {
	if p.piece.rows > 0 {
		if err := p.send(); err != nil {
			return err
		}
	}
	if err := p.settle(0); err != nil {
		return err
	}
	return p.link.call(func(ctx context.Context) error {
		_, err := db.New().CommitTransaction(ctx, p.link.conn, db.CommitTransactionParams{
			Owner:          p.store.cfg.Owner,
			ReplicaVersion: p.store.cfg.ReplicaVersion,
			LastWatermark:  p.tx.watermark,
		})
		if err != nil {
			return err
		}
		_, err = p.link.conn.Exec(ctx, "commit")
		return err
	})
}

func (p *piecer) rollback() error {
	if err := p.settle(0); err != nil {
		return err
	}
	return p.exec("rollback")
}
