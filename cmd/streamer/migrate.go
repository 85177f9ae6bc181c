package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/sql"
	"millrace/streamer"
)

const closeTimeout = 5 * time.Second

// migrateCommand brings the schema of the log up to date.
type migrateCommand struct {
	ChangeDB string `name:"change-db" required:"" placeholder:"URL" help:"Connection string of the database that holds the change log. It must not lead through a transaction pooler."`
	shardFlags
}

// Validate is called by the flag library.
func (c *migrateCommand) Validate() error {
	if _, err := parseDatabase("--change-db", c.ChangeDB); err != nil {
		return err
	}
	return c.shardFlags.Validate()
}

// Run migrates, and says on standard output what it did.
func (c *migrateCommand) Run(ctx context.Context, _ *slog.Logger) error {
	done, err := migrateLog(ctx, c.ChangeDB, changeDatabase, c.schema())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, done)
	return err
}

// migrateLog brings schema up to date and returns a sentence about it. Errors call the
// database name.
func migrateLog(ctx context.Context, database, name, schema string) (done string, err error) {
	config, err := parseDatabase("--change-db", database)
	if err != nil {
		return "", err
	}
	config.RuntimeParams["application_name"] = "zero-change-streamer"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", streamer.ExplainDatabase(fmt.Errorf("connect to the %s: %w", name, err), name, schema)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, conn.Close(ctx))
	}()

	before, err := schemaVersion(ctx, conn, schema)
	if err != nil {
		return "", err
	}
	if err := sql.Migrate(ctx, conn, schema); err != nil {
		return "", explainMigration(err)
	}
	after, err := schemaVersion(ctx, conn, schema)
	if err != nil {
		return "", err
	}
	where := fmt.Sprintf("schema %q of database %q", schema, config.Database)
	switch before {
	case after:
		return fmt.Sprintf("%s is up to date at version %d", where, after), nil
	case 0:
		return fmt.Sprintf("%s was created at version %d", where, after), nil
	}
	return fmt.Sprintf("%s was migrated from version %d to %d", where, before, after), nil
}

// schemaVersion is the number of migrations applied; 0 if there is no such schema.
func schemaVersion(ctx context.Context, conn *pgx.Conn, schema string) (version int, err error) {
	table := pgx.Identifier{schema, "schema_version"}.Sanitize()
	var exists bool
	if err := conn.QueryRow(ctx, `select pg_catalog.to_regclass($1) is not null`, table).Scan(&exists); err != nil {
		return 0, adviseOwner(fmt.Errorf("look for %s: %w", table, err))
	}
	if !exists {
		return 0, nil
	}
	if err := conn.QueryRow(ctx, `select version from `+table).Scan(&version); err != nil {
		return 0, adviseOwner(fmt.Errorf("read %s: %w", table, err))
	}
	return version, nil
}
