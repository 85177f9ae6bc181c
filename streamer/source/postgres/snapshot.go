package postgres

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"millrace/streamer/source"
	"millrace/streamer/source/postgres/pgtext"
)

const (
	// describeTimeout bounds each step before the rows are copied: reading the catalogs,
	// and locking the tables of one session.
	describeTimeout = 5 * time.Minute
	// tableLockTimeout is how long a table is waited for that somebody holds exclusively,
	// unless SnapshotConfig.LockTimeout is less.
	tableLockTimeout = 10 * time.Second
	// snapshotAttempts bounds how often it begins again because tables were changed.
	snapshotAttempts = 5

	// tableCost is what a table costs beside its bytes, in bytes.
	tableCost = 64 << 10
)

// errTablesChanged says that a table, or what is published, was changed between the
// snapshot and the moment at which the tables were locked.
var errTablesChanged = errors.New("the published tables were changed meanwhile")

// SnapshotConfig says what a snapshot is of. Publications are required.
type SnapshotConfig struct {
	Publications []string
	Jobs         int           // tables copied at once, at most; 1 if zero
	LockTimeout  time.Duration // how long one open transaction is waited for; 29 s if zero
	Logger       *slog.Logger  // discards if nil
}

// Table is a published table as the stream names it.
type Table struct {
	Schema, Name string
	// Identity is pg_class.relreplident.
	Identity byte
	Columns  []Column
	// Bytes and Rows are estimates of the whole table.
	Bytes, Rows int64

	oid       uint32
	isRoot    bool     // of partitions, which are a part of it
	generated bool     // a generated column is sent
	filters   []string // a row is shown if one of them is true; none: all rows
}

// Column is a column that the stream sends.
type Column struct {
	Name     string
	TypeOID  uint32
	TypeName string // as a person writes it
	Key      bool   // of the replica identity, as the stream has it
}

// Snapshot is the published tables at one moment, readable by several sessions at once.
// The tables are locked against changes of their definition, and against nothing else.
// Every method but Close is for one goroutine per session.
type Snapshot struct {
	// Version is where it stands: everything committed at or below it is in the snapshot,
	// and the stream behind it brings the rest; see ReplicaVersion.
	Version pglogrepl.LSN
	// At is the server's time when it was made.
	At time.Time
	// Raw says that text comes as it is stored, whatever its encoding may be.
	Raw bool
	// Tables are in order of schema and name.
	Tables []Table
	// Types are those of columns that are not built in.
	Types []pgtext.CatalogType

	upstream  *Upstream
	tableLock time.Duration // how long a table is waited for
	sessions  []*pgx.Conn
	shares    [][]int // tables of each session
}

// OpenSnapshot makes a snapshot of what the publications show. It makes a temporary slot,
// and so waits until every transaction has ended that was open when it began; see
// CreateSlot. The slot is gone when it returns. Tables that are changed while it looks at
// them make it begin again.
func (u *Upstream) OpenSnapshot(ctx context.Context, cfg SnapshotConfig) (*Snapshot, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.LockTimeout <= 0 {
		cfg.LockTimeout = defaultLockTimeout
	}
	for attempt := 1; ; attempt++ {
		s, err := u.openSnapshot(ctx, cfg)
		switch {
		case err == nil:
			return s, nil
		case !errors.Is(err, errTablesChanged):
			return nil, fmt.Errorf("make a snapshot: %w", err)
		case attempt == snapshotAttempts:
			return nil, fmt.Errorf("make a snapshot: %w, %d times: try again when they are left alone", err, attempt)
		}
		cfg.Logger.InfoContext(ctx, "snapshot begun again", "cause", err, "attempt", attempt)
	}
}

func (u *Upstream) openSnapshot(ctx context.Context, cfg SnapshotConfig) (_ *Snapshot, err error) {
	s := &Snapshot{upstream: u, tableLock: min(tableLockTimeout, cfg.LockTimeout)}
	defer func() {
		if err != nil {
			s.Close(ctx)
		}
	}()
	states, err := s.take(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.share()
	for i, tables := range s.shares {
		if err := s.lock(ctx, s.sessions[i], tables); err != nil {
			return nil, err
		}
	}
	var now map[uint32]int64
	err = u.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		now, err = s.states(ctx, conn, cfg.Publications)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, s.unchanged(states, now)
}

// take makes the snapshot, reads what it shows and gives it to all sessions.
func (s *Snapshot) take(ctx context.Context, cfg SnapshotConfig) (states map[uint32]int64, err error) {
	slot, err := s.upstream.makeSlot(ctx, snapshotSlot(), createSnapshotSlotSQL, cfg.LockTimeout)
	if err != nil {
		return nil, err
	}
	defer slot.close(ctx) // the sessions have the snapshot then, or there is an error
	s.Version = ReplicaVersion(slot.consistent)
	if err := s.join(ctx, slot.snapshot); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	if err := s.describe(limited, s.sessions[0], cfg.Publications); err != nil {
		return nil, err
	}
	if states, err = s.states(limited, s.sessions[0], cfg.Publications); err != nil {
		return nil, err
	}
	for len(s.sessions) < min(cfg.Jobs, len(s.Tables)) {
		if err := s.join(ctx, slot.snapshot); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// snapshotSlot is a name that nobody else has: several snapshots may be made at once.
func snapshotSlot() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return "millrace_snapshot_" + hex.EncodeToString(b[:])
}

// neverTimeOut lets a session rest for as long as it takes.
func neverTimeOut(ctx context.Context, conn *pgconn.PgConn) error {
	if _, err := conn.Exec(ctx, neverTimeOutSQL).ReadAll(); err != nil {
		return fmt.Errorf("turn timeouts off: %w", err)
	}
	return nil
}

// join opens a session that has the snapshot of a name.
func (s *Snapshot) join(ctx context.Context, snapshot string) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	config := s.upstream.config.Copy()
	config.RuntimeParams["lock_timeout"] = fmt.Sprint(s.tableLock.Milliseconds())
	// A policy must not leave rows out without a word: the stream knows no policies.
	config.RuntimeParams["row_security"] = "off"
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(r, readBuffer), w)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open a session for the snapshot: %w", s.upstream.explain(err))
	}
	s.sessions = append(s.sessions, conn)
	if err := neverTimeOut(ctx, conn.PgConn()); err != nil {
		return err
	}
	begin := fmt.Sprintf(beginSnapshotSQL, quoteLiteral(snapshot))
	if _, err := conn.PgConn().Exec(ctx, begin).ReadAll(); err != nil {
		return fmt.Errorf("take over the snapshot: %w", err)
	}
	if conn.PgConn().ParameterStatus("server_encoding") != "SQL_ASCII" {
		return nil
	}
	s.Raw = true
	if _, err := conn.PgConn().Exec(ctx, setRawSQL).ReadAll(); err != nil {
		return fmt.Errorf("set the encoding: %w", err)
	}
	return nil
}

// describe reads tables, columns and types.
func (s *Snapshot) describe(ctx context.Context, conn *pgx.Conn, publications []string) error {
	if err := conn.QueryRow(ctx, nowSQL).Scan(&s.At); err != nil {
		return fmt.Errorf("ask for the time: %w", err)
	}
	err := s.readTables(ctx, conn, publications)
	switch code(err) { // the server looks at the tables themselves
	case codeLockNotAvailable:
		err = s.held(ctx, err)
	case codeInternalError: // and does not bear that one is dropped meanwhile
		err = fmt.Errorf("%w: %w", errTablesChanged, err)
	}
	if err != nil {
		return fmt.Errorf("read the published tables: %w", err)
	}
	if err := s.readColumns(ctx, conn); err != nil {
		return fmt.Errorf("read the published columns: %w", err)
	}
	known := map[uint32]bool{}
	for _, t := range s.Tables {
		for _, c := range t.Columns {
			if _, builtin := pgtext.Builtin(c.TypeOID); builtin || known[c.TypeOID] {
				continue
			}
			known[c.TypeOID] = true
			row, err := readType(ctx, conn, c.TypeOID)
			if err != nil {
				return fmt.Errorf("look up type %d: %w", c.TypeOID, err)
			}
			s.Types = append(s.Types, row)
		}
	}
	return nil
}

func (s *Snapshot) readTables(ctx context.Context, conn *pgx.Conn, publications []string) error {
	rows, err := conn.Query(ctx, publishedTablesSQL, publications)
	if err != nil {
		return err
	}
	s.Tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Table, err error) {
		var identity string
		var columns, others []string
		err = row.Scan(&t.oid, &t.Schema, &t.Name, &t.isRoot, &identity, &columns, &others, &t.filters, &t.Rows, &t.Bytes)
		if err != nil {
			return t, err
		}
		if !slices.Equal(columns, others) {
			return t, fmt.Errorf("table %s.%s is published with different columns: [%s] and [%s]",
				t.Schema, t.Name, strings.Join(columns, ","), strings.Join(others, ","))
		}
		t.Identity = first(identity)
		for _, name := range columns {
			t.Columns = append(t.Columns, Column{Name: name})
		}
		return t, nil
	})
	return err
}

// readColumns completes the columns.
func (s *Snapshot) readColumns(ctx context.Context, conn *pgx.Conn) error {
	tables := make(map[uint32]*Table, len(s.Tables))
	named := make(map[uint32]map[string]bool, len(s.Tables))
	for i := range s.Tables {
		t := &s.Tables[i]
		tables[t.oid] = t
		named[t.oid] = make(map[string]bool, len(t.Columns))
		for _, c := range t.Columns {
			named[t.oid][c.Name] = true
		}
		t.Columns = t.Columns[:0]
	}
	rows, err := conn.Query(ctx, tableColumnsSQL, s.oids())
	if err != nil {
		return err
	}
	var oid uint32
	var c Column
	var generated bool
	_, err = pgx.ForEachRow(rows, []any{&oid, &c.Name, &c.TypeOID, &c.TypeName, &c.Key, &generated}, func() error {
		if !named[oid][c.Name] {
			return nil
		}
		t := tables[oid]
		t.Columns = append(t.Columns, c)
		t.generated = t.generated || generated
		return nil
	})
	return err
}

func (s *Snapshot) oids() []uint32 {
	oids := make([]uint32, len(s.Tables))
	for i := range s.Tables {
		oids[i] = s.Tables[i].oid
	}
	return oids
}

// states reads what decides about the rows: a number for each table, and one for the
// publications, under 0.
func (s *Snapshot) states(ctx context.Context, conn *pgx.Conn, publications []string) (map[uint32]int64, error) {
	rows, err := conn.Query(ctx, tableStatesSQL, publications, s.oids())
	if err != nil {
		return nil, fmt.Errorf("read the state of the published tables: %w", err)
	}
	states := make(map[uint32]int64, len(s.Tables)+1)
	var oid uint32
	var state int64
	if _, err := pgx.ForEachRow(rows, []any{&oid, &state}, func() error {
		states[oid] = state
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the state of the published tables: %w", err)
	}
	return states, nil
}

func (s *Snapshot) unchanged(before, now map[uint32]int64) error {
	if before[0] != now[0] {
		return fmt.Errorf("%w: what the publications publish", errTablesChanged)
	}
	for i := range s.Tables {
		if t := &s.Tables[i]; before[t.oid] != now[t.oid] {
			return fmt.Errorf("%w: %s.%s", errTablesChanged, t.Schema, t.Name)
		}
	}
	return nil
}

// share gives each table to a session, the largest ones first, so that all of them have
// about as much to do.
func (s *Snapshot) share() {
	s.shares = make([][]int, len(s.sessions))
	load := make([]int64, len(s.sessions))
	order := make([]int, len(s.Tables))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.Tables[b].Bytes, s.Tables[a].Bytes) })
	for _, i := range order {
		least := 0
		for j := range load {
			if load[j] < load[least] {
				least = j
			}
		}
		s.shares[least] = append(s.shares[least], i)
		load[least] += s.Tables[i].Bytes + tableCost
	}
}

// lock locks the tables of one session as a query does that reads them: whoever wants to
// change one waits until the session ends. Each session locks those that it will read, and
// all at once: it would have to wait behind whoever waits for another session of ours.
func (s *Snapshot) lock(ctx context.Context, conn *pgx.Conn, tables []int) error {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	for _, i := range tables {
		t := &s.Tables[i]
		_, err := conn.PgConn().Exec(ctx, t.query()+" limit 0").ReadAll()
		switch code(err) {
		case codeUndefinedTable, codeUndefinedColumn:
			return fmt.Errorf("%w: %s.%s: %w", errTablesChanged, t.Schema, t.Name, err)
		case codeLockNotAvailable:
			return fmt.Errorf("lock table %s: %w", t.quoted(), s.held(ctx, err))
		case codeInsufficientPriv:
			return s.upstream.mayNotRead(t, err)
		}
		if err != nil {
			return fmt.Errorf("lock table %s: %w", t.quoted(), err)
		}
	}
	return nil
}

// held completes the error about a lock that was not to be had.
func (s *Snapshot) held(ctx context.Context, err error) error {
	var holders []string
	lookErr := s.upstream.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, tableHoldersSQL)
		if err != nil {
			return err
		}
		var pid int32
		var application, user, table string
		_, err = pgx.ForEachRow(rows, []any{&pid, &application, &user, &table}, func() error {
			holders = append(holders, fmt.Sprintf("%s by pid %d, application %s, user %s", table, pid, application, user))
			return nil
		})
		return err
	})
	if lookErr != nil || len(holders) == 0 {
		holders = []string{"nothing any more"}
	}
	return fmt.Errorf("somebody has held a table exclusively for %s; held are %s; try again: %w",
		s.tableLock, strings.Join(holders, "; "), err)
}

func (u *Upstream) mayNotRead(t *Table, err error) error {
	role := quoteIdentifier(u.config.User)
	return &source.StateError{
		State: StatePermissionMissing, Err: err,
		Detail: fmt.Sprintf("user %q may not read all of table %s in database %q", u.config.User, t.quoted(), u.config.Database),
		Hint: fmt.Sprintf("as its owner run: grant usage on schema %s to %s; grant select on %s to %s; where it has row security: alter role %s bypassrls",
			quoteIdentifier(t.Schema), role, t.quoted(), role, role),
	}
}

func (t *Table) quoted() string { return quoteIdentifier(t.Schema) + "." + quoteIdentifier(t.Name) }

func (t *Table) columnList() string {
	names := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		names[i] = quoteIdentifier(c.Name)
	}
	return strings.Join(names, ", ")
}

// query selects the rows that the stream shows. Who inherits from a table is shown as a
// table of its own, if at all, but a partition is not.
func (t *Table) query() string {
	text := "select " + t.columnList() + " from "
	if !t.isRoot {
		text += "only "
	}
	text += t.quoted()
	if len(t.filters) > 0 {
		text += " where (" + strings.Join(t.filters, ") or (") + ")"
	}
	return text
}

// copyStatement copies the table itself where that can be done: it is a little faster.
func (t *Table) copyStatement() string {
	if !t.isRoot && !t.generated && len(t.filters) == 0 && len(t.Columns) > 0 {
		return fmt.Sprintf("copy %s (%s) to stdout", t.quoted(), t.columnList())
	}
	return fmt.Sprintf("copy (%s) to stdout", t.query())
}

// Shares are the tables of each session, as indexes into Tables, in the order in which
// they should be copied.
func (s *Snapshot) Shares() [][]int { return s.shares }

// Copy writes the rows of a table in the text format of COPY, and returns their number.
// The table must be one of the session's share.
func (s *Snapshot) Copy(ctx context.Context, session, table int, w io.Writer) (rows int64, err error) {
	t := &s.Tables[table]
	tag, err := s.sessions[session].PgConn().CopyTo(ctx, w, t.copyStatement())
	if err != nil {
		return 0, fmt.Errorf("copy table %s: %w", t.quoted(), err)
	}
	return tag.RowsAffected(), nil
}

// EndSession ends a session that has copied its share.
func (s *Snapshot) EndSession(ctx context.Context, session int) {
	closeConn(ctx, s.sessions[session])
}

// Close ends every session, within closeTimeout.
func (s *Snapshot) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, conn := range s.sessions {
		_ = conn.Close(ctx) // every answer has been read
	}
}
