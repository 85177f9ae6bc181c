package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// EnsurePublication makes the publication of all tables in schema public that belongs to
// a shard, unless it is there, and returns its name. It is committed when EnsurePublication
// returns, as it must be before the slot is made.
func (u *Upstream) EnsurePublication(ctx context.Context, app string, shard int) (string, error) {
	if err := CheckApp(app); err != nil {
		return "", err
	}
	name := DefaultPublication(app, shard)
	if err := CheckPublication(name); err != nil {
		return "", err
	}
	err := u.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		existing, err := existingPublications(ctx, conn, []string{name})
		if err != nil || len(existing) == 1 {
			return err
		}
		text := fmt.Sprintf(command(createPublicationSQL), quoteIdentifier(name))
		_, err = conn.Exec(ctx, text)
		switch code(err) {
		case codeDuplicateObject, codeUniqueViolation: // made by somebody else meanwhile
			return nil
		case codeInsufficientPriv:
			return fmt.Errorf("create publication %q: only a superuser may publish a whole schema; "+
				"have one run in database %q: %s; or name publications of your own: %w", name, u.config.Database, text, err)
		case codeInvalidSchemaName:
			return fmt.Errorf("create publication %q: database %q has no schema public; "+
				"create it, or name publications of your own: %w", name, u.config.Database, err)
		}
		if err != nil {
			return fmt.Errorf("create publication %q: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return name, nil
}

func existingPublications(ctx context.Context, conn *pgx.Conn, names []string) ([]string, error) {
	rows, err := conn.Query(ctx, existingPublicationsSQL, names)
	if err != nil {
		return nil, fmt.Errorf("look for publications: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for publications: %w", err)
	}
	return found, nil
}
