package changelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/db"
)

// PurgeStatus is what became of an attempt to lock the log against purges.
type PurgeStatus string

// The values of acquire_purge_lock.
const (
	PurgeLocked PurgeStatus = "locked"
	PurgeEmpty  PurgeStatus = "empty"       // there is nothing to lock
	BehindSlot  PurgeStatus = "behind-slot" // the log may lack what the slot does not send any more
)

// inTransaction is what the server says of a session whose transaction is open and has
// not failed.
const inTransaction = 'T'

// PurgeLock keeps the log from being purged, over a connection of its own whose
// transaction stays open. It belongs to one goroutine.
type PurgeLock struct {
	conn *pgx.Conn
}

// NewPurgeLock connects; nothing is locked yet.
func (l *Ledger) NewPurgeLock(ctx context.Context) (*PurgeLock, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	config := l.pool.Config().ConnConfig.Copy()
	// A process that is frozen must not keep the log from being purged for ever.
	config.RuntimeParams["idle_in_transaction_session_timeout"] = milliseconds(time.Minute)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to lock the log against purges: %w", err)
	}
	return &PurgeLock{conn: conn}, nil
}

// Acquire locks the log against purges if it covers a slot whose confirmed position less
// one is slotWatermark [R3].
func (p *PurgeLock) Acquire(ctx context.Context, slotWatermark string) (PurgeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if _, err := p.conn.Exec(ctx, "begin isolation level read committed"); err != nil {
		return "", fmt.Errorf("lock the log against purges: %w", err)
	}
	row, err := db.New().AcquirePurgeLock(ctx, p.conn, orNull(slotWatermark))
	if err != nil {
		return "", fmt.Errorf("lock the log against purges: %w", err)
	}
	status := PurgeStatus(row.Status)
	if status == PurgeLocked {
		return status, nil
	}
	if _, err := p.conn.Exec(ctx, "rollback"); err != nil {
		return "", fmt.Errorf("lock the log against purges: %w", err)
	}
	return status, nil
}

// Ping keeps the session from being ended for its idleness. An error says that the lock
// is lost, or was never had: the session may live without it.
func (p *PurgeLock) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if err := p.conn.Ping(ctx); err != nil {
		return fmt.Errorf("keep the lock against purges: %w", err)
	}
	if p.conn.PgConn().TxStatus() != inTransaction {
		return errors.New("keep the lock against purges: it is not held")
	}
	return nil
}

// Release ends the transaction and the connection. Doing it again does nothing.
func (p *PurgeLock) Release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = p.conn.Close(ctx) // the server undoes the transaction, however it ends
}
