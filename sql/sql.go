// Package sql holds the migrations of the change database and applies them.
//
// The files are plain tern migrations, so that the tern command does the same
// with them. What they create is described in docs/sql-api.md; the errors that
// it raises are the Code constants of this package.
package sql

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"
)

// FS holds the migrations, NNN_verb_object.sql, in its root.
//
//go:embed *.sql
var FS embed.FS

// ErrNewerSchema says that the schema was migrated by a newer program, which
// may have changed what this one relies on.
var ErrNewerSchema = errors.New("schema is newer than this program")

const (
	insufficientPrivilege = "42501"
	// unlockTimeout bounds the one statement that runs after ctx may have ended.
	unlockTimeout = 5 * time.Second
)

// schemaName is what a schema may be called: the name is put into the files as
// it is, between quotes.
var schemaName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,63}$`)

// CheckSchema says whether a schema may be called so.
func CheckSchema(name string) error {
	if !schemaName.MatchString(name) || strings.HasPrefix(name, "pg_") {
		return errors.New("the name must have 1 to 63 of A-Z a-z 0-9 _ . / - and must not begin with pg_")
	}
	return nil
}

// Migrate brings schema up to date, and creates it if it is missing. It may be
// called by many processes at once; doing it again changes nothing.
//
// conn must be a direct connection and not one of a transaction pooler, since
// the lock that it waits for belongs to the session. The search path of conn is
// reset to what it was when conn was made.
//
// Errors name the schema. ErrNewerSchema: the database is ahead of this program.
func Migrate(ctx context.Context, conn *pgx.Conn, schema string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("migrate schema %q: %w", schema, err)
		}
	}()
	if err := CheckSchema(schema); err != nil {
		return err
	}

	unlock, err := lock(ctx, conn, schema)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()

	if err := createSchema(ctx, conn, schema); err != nil {
		return err
	}
	files, err := migrate.FindMigrations(FS)
	if err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	version, known := 0, len(files)
	if version, err = currentVersion(ctx, conn, schema); err != nil {
		return advise(ctx, fmt.Errorf("read the version: %w", err), conn, schema)
	}
	switch {
	case version > known:
		return fmt.Errorf("%w: the database is at version %d, this program knows %d; run a program at least as new as the one that migrated it",
			ErrNewerSchema, version, known)
	case version == known:
		return nil // also for a role that may only look: tern would make its table, if it is not there, and asks for the right first
	}

	migrator, err := migrate.NewMigrator(ctx, conn, versionTable(schema))
	if err != nil {
		return advise(ctx, fmt.Errorf("create the version table: %w", err), conn, schema)
	}
	migrator.Data = map[string]any{"schema": schema} // before LoadMigrations, which evaluates the templates
	if err := migrator.LoadMigrations(FS); err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	if err := migrator.Migrate(ctx); err != nil {
		return advise(ctx, fmt.Errorf("from version %d to %d: %w", version, known, err), conn, schema)
	}
	return nil
}

func versionTable(schema string) string { return pgx.Identifier{schema, "schema_version"}.Sanitize() }

// currentVersion is the number of migrations applied; 0 if there is no version table.
func currentVersion(ctx context.Context, conn *pgx.Conn, schema string) (version int, err error) {
	var exists bool
	if err := conn.QueryRow(ctx, `select pg_catalog.to_regclass($1) is not null`, versionTable(schema)).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = conn.QueryRow(ctx, `select version from `+versionTable(schema)).Scan(&version)
	return version, err
}

// lock makes this session the only one that migrates schema. Creating a schema
// and a version table "if not exists" is no protection: two sessions that do it
// at once collide.
func lock(ctx context.Context, conn *pgx.Conn, schema string) (unlock func() error, err error) {
	const key = `hashtextextended('millrace migrate ' || $1, 0)`
	if _, err := conn.Exec(ctx, `select pg_catalog.pg_advisory_lock(pg_catalog.`+key+`)`, schema); err != nil {
		return nil, fmt.Errorf("wait for other migrations: %w", err)
	}
	return func() error {
		if conn.IsClosed() {
			return nil // the session is over, and the lock with it
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
		defer cancel()
		if _, err := conn.Exec(ctx, `select pg_catalog.pg_advisory_unlock(pg_catalog.`+key+`)`, schema); err != nil {
			return fmt.Errorf("let other migrations go on: %w", err)
		}
		return nil
	}, nil
}

// createSchema looks first, because "create schema if not exists" demands the
// right to create schemas even when there is nothing to create.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	var exists bool
	err := conn.QueryRow(ctx,
		`select exists (select from pg_catalog.pg_namespace as n where n.nspname = $1)`, schema).Scan(&exists)
	if err != nil {
		return fmt.Errorf("look for it: %w", err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, `create schema `+pgx.Identifier{schema}.Sanitize()); err != nil {
		return advise(ctx, fmt.Errorf("create it: %w", err), conn, schema)
	}
	return nil
}

// advise adds what to do to an error about missing privileges.
func advise(ctx context.Context, err error, conn *pgx.Conn, schema string) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != insufficientPrivilege {
		return err
	}
	user, database := conn.Config().User, conn.Config().Database
	var owner string
	if conn.QueryRow(ctx, `
		select pg_catalog.pg_get_userbyid(n.nspowner)
		from pg_catalog.pg_namespace as n
		where n.nspname = $1 and not pg_catalog.pg_has_role(n.nspowner, 'usage')`, schema).Scan(&owner) == nil {
		return fmt.Errorf("%w; the schema belongs to role %q: migrate as it (streamer migrate with options=-c%%20role%%3D… in the connection string, or set role)",
			err, owner)
	}
	return fmt.Errorf("%w; let role %q create schemas (grant create on database %q to %q), or make the schema for it (create schema %s authorization %q)",
		err, user, database, user, pgx.Identifier{schema}.Sanitize(), user)
}
