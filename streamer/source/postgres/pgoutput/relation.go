package pgoutput

import (
	"fmt"
	"strings"

	"millrace/streamer/source/postgres/pgtext"
)

// identities are the names of a table's replica identity, by its letter in the catalog.
var identities = map[byte]string{'d': "default", 'i': "index", 'f': "full", 'n': "nothing"}

// keyFlag marks a column that belongs to the replica identity.
const keyFlag = 1

// Bounds for the space that a row is given beside the bytes of its message.
const (
	rowSlack    = 32 // brackets, and what ends a message
	columnSlack = 8  // quotes, comma, false for f, null for nothing
)

// relation is a table as the server described it last, and what its messages begin with.
type relation struct {
	schema, name string
	keyed        bool // there is at least one key column
	columns      []column

	// relation is the JSON of the relation, and the others are whole messages up to
	// their first row.
	relation, insert, update, delete []byte

	// slack is what a row may take beyond the bytes of its values; growth is how many
	// times larger than their text values may be.
	slack, growth int
}

type column struct {
	name   string
	prefix []byte // ,"name":
	key    bool
	typ    pgtext.Type
}

// relation takes the description of a table. It replaces an earlier one at once, in the
// middle of a transaction too.
func (d *Decoder) relation(r *reader) error {
	oid := r.uint32()
	schema, name := d.name(r), d.name(r)
	letter := r.uint8()
	count := int(r.uint16())
	if r.err != nil {
		return r.err
	}
	if schema == "" {
		schema = "pg_catalog"
	}
	identity, ok := identities[letter]
	if !ok {
		return fmt.Errorf("table %q.%q: %q is no replica identity", schema, name, letter)
	}
	rel := &relation{schema: schema, name: name, slack: rowSlack, growth: 1}
	for range count {
		flags := r.uint8()
		col := column{name: d.name(r), key: flags&keyFlag != 0}
		typeOID := r.uint32()
		r.uint32() // the type modifier says nothing about the text
		if r.err != nil {
			return r.err
		}
		var err error
		if col.typ, err = d.typeOf(typeOID); err != nil {
			return fmt.Errorf("table %q.%q: column %q: %w", schema, name, col.name, err)
		}
		if col.typ.Kind == pgtext.Bytea || col.typ.Kind == pgtext.Array {
			rel.growth = 2 // two digits become up to four characters
		}
		col.prefix = append(pgtext.AppendString([]byte{','}, []byte(col.name)), ':')
		rel.keyed = rel.keyed || col.key
		rel.slack += len(col.prefix) + columnSlack
		rel.columns = append(rel.columns, col)
	}
	if err := r.end(); err != nil {
		return err
	}
	rel.prepare(identity)
	d.relations[oid] = rel
	d.lastRelation = nil
	return nil
}

// prepare makes the beginnings of the relation's messages.
func (rel *relation) prepare(identity string) {
	b := pgtext.AppendString([]byte(`{"schema":`), []byte(rel.schema))
	b = pgtext.AppendString(append(b, `,"name":`...), []byte(rel.name))
	b = append(b, `,"rowKey":{"columns":[`...)
	first := true
	for _, col := range rel.columns {
		if !col.key {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = pgtext.AppendString(b, []byte(col.name))
	}
	b = append(b, `],"type":"`+identity+`"}}`...)
	rel.relation = b
	rel.insert = []byte(`["data",{"tag":"insert","relation":` + string(b) + `,"new":`)
	rel.update = []byte(`["data",{"tag":"update","relation":` + string(b) + `,"key":`)
	rel.delete = []byte(`["data",{"tag":"delete","relation":` + string(b) + `,"key":`)
}

// name takes a name, which may have other bytes than UTF-8 where values may.
func (d *Decoder) name(r *reader) string {
	name := string(r.text())
	if d.cfg.Options.ReplaceInvalidUTF8 {
		name = strings.ToValidUTF8(name, "\uFFFD")
	}
	return name
}

// typeOf returns the type of a column. A type is asked for once in a connection.
func (d *Decoder) typeOf(oid uint32) (pgtext.Type, error) {
	if t, ok := pgtext.Builtin(oid); ok {
		return t, nil
	}
	if t, ok := d.types[oid]; ok {
		return t, nil
	}
	t, err := d.cfg.Types(oid)
	if err != nil {
		return t, fmt.Errorf("look up type %d: %w", oid, err)
	}
	d.types[oid] = t
	return t, nil
}

// related returns the relation that a row message names.
func (d *Decoder) related(oid uint32) (*relation, error) {
	if d.lastRelation != nil && d.lastOID == oid {
		return d.lastRelation, nil
	}
	rel, ok := d.relations[oid]
	if !ok {
		return nil, fmt.Errorf("relation %d was not described", oid)
	}
	d.lastOID, d.lastRelation = oid, rel
	return rel, nil
}
