package changelog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"millrace/streamer/change"
	"millrace/streamer/watermark"
)

// pageQuery returns the state of the log in its first row, the one without a change, and
// then messages in order. It is one statement, hence one snapshot [R22], taken after the
// locks; change is not cast, so that it comes as it is. The beginning of the log is looked
// for where the last purge ended: before that lie dead rows. The places are for a collation.
const pageQuery = `
(select null::text, null::int8, null::json, null::text,
    coalesce((select min(m.watermark%[1]s) from "changeLog" as m
        where m.watermark%[1]s >= coalesce(p.purged_watermark, '')), s."lastWatermark"),
    s."lastWatermark", c."replicaVersion"
from "replicationState" as s
cross join "replicationConfig" as c
left join progress as p on p.lock = 1 and p.replica_version = c."replicaVersion"
where s.lock = 1 and c.lock = 1)
union all
(select l.watermark, l.pos, l.change, l.precommit, null, null, null
from "changeLog" as l
where (l.watermark%[1]s, l.pos) > ($1%[1]s, $2::int8)
order by l.watermark%[1]s, l.pos
limit $3::int8)`

// collationQuery says whether the log's watermarks are not sorted by their bytes: a log
// that another program has made has the collation of its database.
// Before version 15 there is no datlocprovider.
const collationQuery = `
select a.attcollation <> '"C"'::regcollation
    and not (a.attcollation = '"default"'::regcollation and d.datcollate in ('C', 'POSIX')
        and coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c')
from pg_catalog.pg_attribute as a
join pg_catalog.pg_database as d on d.datname = current_database()
where a.attrelid = '"changeLog"'::regclass and a.attname = 'watermark'`

const (
	pageStatement = "millrace_page"
	// Slices of a page: the first ones are small, since rows may be large; then what was
	// seen says how many rows fit.
	firstSlice  = 8
	sliceGrowth = 16
	// maxWaste is how many bytes that do not fit into the page any more are read, so
	// that the connection can be used again. Beyond that a new one is cheaper.
	maxWaste = 16 << 20
)

// errWasteful says that a page is complete, but its connection is of no use.
var errWasteful = errors.New("the rows behind the page are too large")

// Columns of pageQuery.
const (
	colWatermark = iota
	colPos
	colChange
	colPrecommit
	colMinimum
	colHead
	colReplicaVersion
	numCols
)

var commitPrefix = []byte(`{"tag":"commit"`)

// pageReader reads pages over one connection.
type pageReader struct {
	link     *link
	cfg      *PagesConfig
	attempts *atomic.Int64

	prepared bool
	meanRow  int // mean size of the rows of the last page; 0: not known

	// Of the page being read.
	block  *change.Block
	page   Page
	bytes  int
	found  bool // the state of the log was seen
	full   bool // no row goes into the page any more
	wasted int  // bytes read since
	tx     change.Tx
}

func (r *pageReader) read(ctx context.Context, after watermark.Position, b *change.Block) (Page, error) {
	defer r.link.use(ctx)()
	if !r.prepared {
		if err := r.prepare(); err != nil {
			return Page{}, err
		}
	}
	b.Reset(0)
	r.block, r.page, r.bytes, r.found, r.full, r.wasted, r.tx = b, Page{}, 0, false, false, 0, change.Tx{}

	l := r.link
	at := l.bindHead(pageStatement, 3)
	l.out = appendText(l.out, after.Watermark)
	l.out = appendInt8(l.out, after.Pos)
	l.out = appendInt8(l.out, int64(r.cfg.MaxRows))
	l.bindEnd(at)

	slice := firstSlice
	if r.meanRow > 0 {
		slice = min(firstSlice, max(1, r.cfg.PageBytes/r.meanRow))
	}
	for more := true; more; {
		l.execute(uint32(slice)) //nolint:gosec // bounded by the rows of a page
		l.out = append(l.out, 'H', 0, 0, 0, 4)
		if err := l.flush(); err != nil {
			return Page{}, err
		}
		var err error
		if more, err = r.slice(); err != nil {
			return r.done(err)
		}
		if r.full || r.bytes >= r.cfg.PageBytes-r.cfg.PageBytes/16 {
			break // not worth another round trip
		}
		slice = min(slice*sliceGrowth, r.cfg.MaxRows, 1+(r.cfg.PageBytes-r.bytes)/max(1, r.mean()))
	}
	l.sync() // ends the portal, and the snapshot with it
	if err := l.flush(); err != nil {
		return Page{}, err
	}
	refused, err := l.answer()
	if err == nil && refused != nil {
		err = refused
	}
	return r.done(err)
}

// done returns the page, with errWasteful too.
func (r *pageReader) done(err error) (Page, error) {
	switch {
	case err != nil && !errors.Is(err, errWasteful):
		return Page{}, err
	case !r.found:
		return Page{}, ErrNotInitialised
	}
	r.meanRow = r.mean()
	r.page.Run = r.block.Run(0, r.block.Len())
	return r.page, err
}

func (r *pageReader) mean() int {
	if r.block.Len() == 0 {
		return 0
	}
	return max(1, r.bytes/r.block.Len())
}

func (r *pageReader) prepare() error {
	return r.link.call(func(ctx context.Context) error {
		conn := r.link.conn
		var foreign bool
		err := conn.QueryRow(ctx, collationQuery).Scan(&foreign)
		if err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrNotInitialised
			}
			return fmt.Errorf("look at the log's collation: %w", err)
		}
		collation := ""
		if foreign {
			collation = ` collate "C"`
		}
		if _, err := conn.PgConn().Prepare(ctx, pageStatement, fmt.Sprintf(pageQuery, collation), nil); err != nil {
			return fmt.Errorf("prepare to read pages: %w", err)
		}
		r.prepared = true
		return nil
	})
}

// slice reads the answer to one execute. more: the portal has not come to its end.
func (r *pageReader) slice() (more bool, err error) {
	for {
		msg, err := r.link.receive()
		if err != nil {
			return false, err
		}
		switch msg := msg.(type) {
		case *pgproto3.DataRow:
			if err := r.row(msg.Values); err != nil {
				return false, err
			}
		case *pgproto3.PortalSuspended:
			return true, nil
		case *pgproto3.CommandComplete:
			return false, nil
		case *pgproto3.ErrorResponse:
			// The server waits for a sync; what it says then is not of interest.
			return false, pgconn.ErrorResponseToPgError(msg)
		}
	}
}

// row takes one row of the result. Its values are valid until the next message.
func (r *pageReader) row(values [][]byte) error {
	if len(values) != numCols {
		return fmt.Errorf("a row of a page has %d columns, not %d", len(values), numCols)
	}
	text := values[colChange]
	if text == nil {
		r.found = true
		r.page.Minimum = string(values[colMinimum])
		r.page.Head = string(values[colHead])
		r.page.ReplicaVersion = string(values[colReplicaVersion])
		return nil
	}
	if r.full {
		if r.wasted += len(text); r.wasted > maxWaste {
			return errWasteful
		}
		return nil
	}
	if len(values[colPos]) != 8 {
		return fmt.Errorf("pos of a row has %d bytes, not 8", len(values[colPos]))
	}
	pos := int64(binary.BigEndian.Uint64(values[colPos])) //nolint:gosec // int8 as it is sent
	if string(values[colWatermark]) != r.tx.Watermark {
		r.tx = change.Tx{Watermark: string(values[colWatermark]), Attempt: r.attempts.Add(-1)}
	}
	r.tx.Pos = pos

	kind := change.Data
	switch {
	case pos == 0:
		kind = change.Begin
	case values[colPrecommit] != nil, bytes.HasPrefix(text, commitPrefix): // seed rows have no precommit
		kind = change.Commit
	}
	tag := change.Other
	if kind == change.Data {
		tag = change.ParseTag(text)
	}
	size := len(text) + change.Envelope(kind, r.tx.Watermark)
	if r.block.Len() > 0 && r.bytes+size > r.cfg.PageBytes {
		r.full = true // read again as the first row of the next page
		return nil
	}
	if r.block.Len() == 0 && r.block.Room() < size {
		*r.block = *change.NewBlock(0, max(size, min(r.cfg.PageBytes, minBlock)), 0) // once, at the right size
	}
	r.block.Add(change.Append(r.block.Spare(), kind, text, r.tx.Watermark), kind, tag, r.tx)
	r.bytes += size
	r.full = r.bytes >= r.cfg.PageBytes
	return nil
}

// minBlock is what a block without memory begins with.
const minBlock = 64 << 10
