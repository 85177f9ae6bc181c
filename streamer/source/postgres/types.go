package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"millrace/streamer/source/postgres/pgtext"
)

// types finds out about the types that are not built in. It remembers them for one
// stream: an OID can be given to another type, but hardly while it is in use.
type types struct {
	session *session
	known   map[uint32]pgtext.Type
}

// lookup answers for one OID. A type that does not exist any more, because it was dropped
// after the change that is decoded now, is text.
func (t *types) lookup(ctx context.Context, oid uint32) (pgtext.Type, error) {
	if known, ok := pgtext.Builtin(oid); ok {
		return known, nil
	}
	if known, ok := t.known[oid]; ok {
		return known, nil
	}
	var row pgtext.CatalogType
	err := t.session.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		row, err = readType(ctx, conn, oid)
		return err
	})
	if err != nil {
		return pgtext.Type{}, fmt.Errorf("look up type %d: %w", oid, err)
	}
	found := pgtext.FromCatalog(row)
	t.known[oid] = found
	return found, nil
}

func readType(ctx context.Context, conn *pgx.Conn, oid uint32) (pgtext.CatalogType, error) {
	row := pgtext.CatalogType{OID: oid}
	var kind, category, delim string
	var elemOID, elemBase *uint32
	var elemName, elemKind, elemCategory, elemDelim *string
	var elemLen *int16
	err := conn.QueryRow(ctx, typeSQL, oid).Scan(&row.Name, &kind, &category, &row.Len, &delim, &row.Base,
		&elemOID, &elemName, &elemKind, &elemCategory, &elemLen, &elemDelim, &elemBase)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, nil
	}
	if err != nil {
		return row, err
	}
	row.Type, row.Category, row.Delim = first(kind), first(category), first(delim)
	if elemOID != nil {
		row.Elem = &pgtext.CatalogType{
			OID: *elemOID, Name: *elemName, Type: first(*elemKind), Category: first(*elemCategory),
			Len: *elemLen, Delim: first(*elemDelim), Base: *elemBase,
		}
	}
	return row, nil
}

func first(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}
