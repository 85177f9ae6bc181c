package pgoutput

import (
	"errors"
	"fmt"

	"millrace/streamer/change"
)

// Kinds of a tuple's values.
const (
	isNull      = 'n'
	isUnchanged = 'u' // a large value that the update left alone and the server did not read
	isText      = 't'
)

// Kinds of tuples.
const (
	newRow = 'N'
	oldRow = 'O' // the whole row
	oldKey = 'K' // only the key columns have values
)

var errUnchanged = errors.New("its value was not sent")

func (d *Decoder) insert(r *reader) error {
	rel, err := d.changed(r)
	if rel == nil {
		return err
	}
	r.expect(newRow)
	message := d.space(len(rel.insert) + len(r.rest)*rel.growth + rel.slack)
	message = append(message, rel.insert...)
	if message, err = d.appendNew(message, rel, r, nil, true); err != nil {
		return rel.wrap(err)
	}
	return d.finish(rel, message, r, change.Insert)
}

func (d *Decoder) update(r *reader) error {
	rel, err := d.changed(r)
	if rel == nil {
		return err
	}
	if !rel.keyed {
		return rel.wrap(ErrNoIdentity)
	}
	kind := r.uint8()
	size := len(rel.update) + 2*(len(r.rest)*rel.growth+rel.slack)
	var old []value
	switch kind {
	case newRow:
		size = len(rel.update) + len(r.rest)*rel.growth + rel.slack
	case oldRow, oldKey:
		if old, err = d.oldValues(rel, r); err != nil {
			return rel.wrap(err)
		}
		r.expect(newRow)
	default:
		return rel.wrap(fmt.Errorf("%q is no kind of row", kind))
	}
	if r.err != nil {
		return rel.wrap(r.err)
	}
	message := append(d.space(size), rel.update...)
	if old == nil {
		message = append(message, "null"...)
	} else if message, err = d.appendOld(message, rel, old, kind == oldRow); err != nil {
		return rel.wrap(err)
	}
	message = append(message, `,"new":`...)
	if message, err = d.appendNew(message, rel, r, old, false); err != nil {
		return rel.wrap(err)
	}
	return d.finish(rel, message, r, change.Update)
}

func (d *Decoder) delete(r *reader) error {
	rel, err := d.changed(r)
	if rel == nil {
		return err
	}
	if !rel.keyed {
		return rel.wrap(ErrNoIdentity)
	}
	kind := r.uint8()
	if kind != oldRow && kind != oldKey {
		return rel.wrap(errors.New("neither the key nor the old row is given"))
	}
	size := len(rel.delete) + len(r.rest)*rel.growth + rel.slack
	old, err := d.oldValues(rel, r)
	if err != nil {
		return rel.wrap(err)
	}
	message := append(d.space(size), rel.delete...)
	if message, err = d.appendOld(message, rel, old, kind == oldRow); err != nil {
		return rel.wrap(err)
	}
	return d.finish(rel, message, r, change.Delete)
}

// truncate makes one message of all tables of the statement.
func (d *Decoder) truncate(r *reader) error {
	wanted, err := d.change()
	if !wanted {
		return err
	}
	count := int(r.uint32())
	r.uint8() // CASCADE and RESTART IDENTITY: every table it reaches is named anyway
	if r.err != nil || len(r.rest) != 4*count || count == 0 {
		return fmt.Errorf("%d tables are announced in %d bytes", count, len(r.rest))
	}
	size := frameSize
	tables := make([]*relation, count)
	for i := range tables {
		if tables[i], err = d.related(r.uint32()); err != nil {
			return err
		}
		size += len(tables[i].relation) + 1
	}
	message := append(d.space(size), `["data",{"tag":"truncate","relations":[`...)
	for i, rel := range tables {
		if i > 0 {
			message = append(message, ',')
		}
		message = append(message, rel.relation...)
	}
	message = append(message, "]}]"...)
	if err := d.checkSize(tables[0], message); err != nil {
		return err
	}
	d.give(message, change.Truncate)
	return nil
}

// changed takes the relation that a row message begins with. It returns neither relation
// nor error if the row is to be left out.
func (d *Decoder) changed(r *reader) (*relation, error) {
	wanted, err := d.change()
	if !wanted {
		return nil, err
	}
	oid := r.uint32()
	if r.err != nil {
		return nil, r.err
	}
	return d.related(oid)
}

// finish gives a whole row message to the sink.
func (d *Decoder) finish(rel *relation, message []byte, r *reader, tag change.Tag) error {
	if err := r.end(); err != nil {
		return rel.wrap(err)
	}
	message = append(message, "}]"...)
	if err := d.checkSize(rel, message); err != nil {
		return err
	}
	d.give(message, tag)
	clear(d.old) // it points into the message at hand, which may be large
	d.old = d.old[:0]
	return nil
}

// appendNew appends the new row. A value that was left alone is taken from the old row
// if it belongs to the key (under full identity every column does), and else left out:
// a subscriber needs every key column. An insert has such values too, and then nobody has
// them: an update that moves a row into a row filter comes as one.
func (d *Decoder) appendNew(message []byte, rel *relation, r *reader, old []value, insert bool) ([]byte, error) {
	if err := rel.checkCount(r); err != nil {
		return nil, err
	}
	var err error
	start := len(message)
	for i := range rel.columns {
		col := &rel.columns[i]
		v := r.value()
		if r.err != nil {
			return nil, col.wrap(r.err)
		}
		if v.kind == isUnchanged {
			switch {
			case old != nil && col.key:
				v = old[i]
			case col.key:
				return nil, col.wrap(errUnchanged)
			default:
				if insert {
					d.undecodable(rel, col)
				}
				continue
			}
		}
		if message, err = d.appendValue(message, rel, col, v); err != nil {
			return nil, err
		}
	}
	return closeRow(message, start), nil
}

// oldValues takes the old row, or its key. What it returns is valid until the next call.
func (d *Decoder) oldValues(rel *relation, r *reader) ([]value, error) {
	if err := rel.checkCount(r); err != nil {
		return nil, err
	}
	d.old = d.old[:0]
	for i := range rel.columns {
		v := r.value()
		if r.err != nil {
			return nil, rel.columns[i].wrap(r.err)
		}
		d.old = append(d.old, v)
	}
	return d.old, nil
}

// appendOld appends the old row, or its key columns alone.
func (d *Decoder) appendOld(message []byte, rel *relation, old []value, whole bool) ([]byte, error) {
	var err error
	start := len(message)
	for i := range rel.columns {
		col := &rel.columns[i]
		if !whole && !col.key {
			continue
		}
		if old[i].kind == isUnchanged {
			return nil, col.wrap(errUnchanged)
		}
		if message, err = d.appendValue(message, rel, col, old[i]); err != nil {
			return nil, err
		}
	}
	return closeRow(message, start), nil
}

// closeRow ends the row that begins at start. The comma before its first member becomes
// the opening brace.
func closeRow(message []byte, start int) []byte {
	if len(message) == start {
		return append(message, "{}"...)
	}
	message[start] = '{'
	return append(message, '}')
}

// appendValue appends a comma and the member of one column.
func (d *Decoder) appendValue(message []byte, rel *relation, col *column, v value) ([]byte, error) {
	message = append(message, col.prefix...)
	if v.kind == isNull {
		return append(message, "null"...), nil
	}
	message, ok := d.cfg.Options.Append(message, col.typ, v.text)
	if !ok {
		d.undecodable(rel, col)
	}
	// Checked at every value, so that a few huge ones do not take several times the
	// memory first.
	return message, d.checkSize(rel, message)
}

func (d *Decoder) undecodable(rel *relation, col *column) {
	if d.cfg.Undecodable != nil {
		d.cfg.Undecodable(rel.schema, rel.name, col.name)
	}
}

func (d *Decoder) checkSize(rel *relation, message []byte) error {
	if len(message) <= d.cfg.MaxMessage {
		return nil
	}
	return &TooLargeError{Schema: rel.schema, Table: rel.name, Size: len(message), Limit: d.cfg.MaxMessage}
}

// checkCount takes the number of columns in a tuple, which must be the relation's.
func (rel *relation) checkCount(r *reader) error {
	count := int(r.uint16())
	if r.err == nil && count != len(rel.columns) {
		return fmt.Errorf("the row has %d columns, the table %d", count, len(rel.columns))
	}
	return r.err
}

func (rel *relation) wrap(err error) error {
	if err == nil {
		return nil
	}
	var large *TooLargeError
	if errors.As(err, &large) {
		return err // names the table itself
	}
	return fmt.Errorf("table %q.%q: %w", rel.schema, rel.name, err)
}

func (col *column) wrap(err error) error {
	return fmt.Errorf("column %q: %w", col.name, err)
}
