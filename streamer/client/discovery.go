package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"millrace/db"
)

// ErrNoStreamer says that nobody owns the log at the moment.
var ErrNoStreamer = errors.New("no change-streamer is running")

const (
	discoveryName = "zero-change-streamer-discovery"
	closeTimeout  = 5 * time.Second
)

// Discovery returns a function for Config.Discover that asks the change database for
// the address of the log's owner, over a connection of its own each time. conn is
// copied. An error wraps ErrNoStreamer when nobody owns the log, and ErrPermanent when
// the database has no such log or lets nobody in.
func Discovery(conn *pgx.ConnConfig, schema string) func(ctx context.Context) (string, error) {
	conn = conn.Copy()
	return func(ctx context.Context) (address string, err error) {
		err = withConn(ctx, conn.Copy(), schema, func(c *pgx.Conn) error {
			address, err = db.New().ChangeStreamerAddress(ctx, c)
			return err
		})
		if err != nil {
			return "", err
		}
		if address == "" {
			return "", ErrNoStreamer
		}
		return address, nil
	}
}

// ReadStatus reads the status view of the log in schema of the change database. An
// error wraps ErrPermanent when the database has no such log or lets nobody in.
func ReadStatus(ctx context.Context, conn *pgx.ConnConfig, schema string) (row db.StatusRow, err error) {
	err = withConn(ctx, conn.Copy(), schema, func(c *pgx.Conn) error {
		row, err = db.New().Status(ctx, c)
		return err
	})
	return row, err
}

func withConn(ctx context.Context, conn *pgx.ConnConfig, schema string, ask func(*pgx.Conn) error) error {
	conn.RuntimeParams["application_name"] = discoveryName
	conn.RuntimeParams["search_path"] = pgx.Identifier{schema}.Sanitize() + ", pg_temp"
	c, err := pgx.ConnectConfig(ctx, conn)
	if err != nil {
		return explainDatabase(fmt.Errorf("connect to the change database: %w", err), schema)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = c.Close(ctx) // the answer is here, and the server sees the socket go in any case
	}()
	if err := ask(c); err != nil {
		return explainDatabase(fmt.Errorf("ask the change database: %w", err), schema)
	}
	return nil
}

// explainDatabase adds what to do to errors that trying again cannot mend.
func explainDatabase(err error, schema string) error {
	const (
		undefinedFunction = "42883"
		undefinedTable    = "42P01"
		undefinedDatabase = "3D000"
		forbidden         = "42501"
		authorization     = "28" // class
	)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch {
	case pgErr.Code == undefinedFunction || pgErr.Code == undefinedTable:
		return fmt.Errorf("%w: schema %q of the change database has no change log: run streamer migrate, or name another schema: %w",
			ErrPermanent, schema, err)
	case pgErr.Code == forbidden, pgErr.Code == undefinedDatabase, pgErr.Code[:2] == authorization:
		return fmt.Errorf("%w: %w", ErrPermanent, err)
	}
	return err
}
