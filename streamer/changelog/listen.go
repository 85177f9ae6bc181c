package changelog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// takeoverChannel is notified of every change of owner, with the schema of the log.
const takeoverChannel = "cdc"

// Listen calls heard at once, and then whenever the owner of the log may have changed,
// until that returns an error, ctx ends, or the connection breaks. It is the fast way to
// learn of a take-over; nothing relies on it, since a pooler may swallow what it waits
// for.
func (l *Ledger) Listen(ctx context.Context, schema string, heard func(context.Context) error) error {
	conn, err := l.listen(ctx)
	if err != nil {
		return fmt.Errorf("listen for take-overs: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = conn.Close(closing) // there is nothing left to be heard
	}()
	for {
		if err := heard(ctx); err != nil {
			return err
		}
		for other := true; other; {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return fmt.Errorf("listen for take-overs: %w", err)
			}
			other = n.Payload != schema
		}
	}
}

func (l *Ledger) listen(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.pool.Config().ConnConfig.Copy())
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "listen "+takeoverChannel); err != nil {
		_ = conn.Close(ctx) // it is of no use
		return nil, err
	}
	return conn, nil
}
