package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/streamer/source"
)

const minVersion = 150000

// PreflightConfig says what is wanted of an upstream.
type PreflightConfig struct {
	App string // part of the names of slot and publication

	// Publications are to exist; none: EnsurePublication will make the one that is used.
	Publications []string

	// Recorded says that Publications are those that a log was made with: whatever they
	// are called, and whoever made them. App is not looked at then.
	Recorded bool

	// NewSlot says that a slot will have to be made, so that one must be free.
	NewSlot bool
}

// Info is what Preflight learned about an upstream.
type Info struct {
	SystemID         string
	Timeline         int32
	Version          int // as server_version_num
	Database         string
	Role             string
	Encoding         string
	WALSenderTimeout time.Duration

	// Warnings are for the log: nothing that stands in the way, but somebody will be
	// surprised by it.
	Warnings []string
}

// PreflightError has everything that stands in the way, so that it can be mended at once.
type PreflightError struct {
	Upstream string
	Findings []*source.StateError
}

// Error lists the findings, one a line.
func (e *PreflightError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s cannot be streamed from:", e.Upstream)
	for _, f := range e.Findings {
		b.WriteString("\n- " + f.Error())
	}
	return b.String()
}

// Unwrap returns the findings.
func (e *PreflightError) Unwrap() []error {
	errs := make([]error, len(e.Findings))
	for i, f := range e.Findings {
		errs[i] = f
	}
	return errs
}

// Preflight looks whether changes can be streamed from here. An error that is a
// *PreflightError has all that is missing; any other one says that it could not look.
func (u *Upstream) Preflight(ctx context.Context, cfg PreflightConfig) (Info, error) {
	p := &preflight{cfg: cfg, upstream: u}
	p.names()
	if err := u.with(ctx, p.server); err != nil {
		return Info{}, fmt.Errorf("look at the upstream: %w", err)
	}
	if err := p.replication(ctx); err != nil {
		return Info{}, fmt.Errorf("look at the upstream: %w", err)
	}
	if len(p.findings) > 0 {
		return p.info, &PreflightError{Upstream: u.String(), Findings: p.findings}
	}
	return p.info, nil
}

type preflight struct {
	cfg      PreflightConfig
	upstream *Upstream
	info     Info
	findings []*source.StateError
	denied   bool // the role may not replicate: known without trying
}

func (p *preflight) find(state, detail, hint string) {
	p.findings = append(p.findings, &source.StateError{State: state, Detail: detail, Hint: hint})
}

func (p *preflight) names() {
	if p.cfg.Recorded {
		return
	}
	if err := CheckApp(p.cfg.App); err != nil {
		p.find("app-id", err.Error(), fmt.Sprintf("%q does not; choose another one", p.cfg.App))
	}
	for _, name := range p.cfg.Publications {
		err := CheckPublication(name)
		if err == nil && !p.own(name) {
			err = CheckGivenPublication(name)
		}
		if err != nil {
			p.find("publication-name", err.Error(), "")
		}
	}
}

// own says whether name is one of those we make for this application.
func (p *preflight) own(name string) bool {
	return strings.HasPrefix(name, "_"+p.cfg.App+"_")
}

func (p *preflight) server(ctx context.Context, conn *pgx.Conn) error {
	var version, walLevel string
	var standby, mayReplicate bool
	var maxSenders, senders, maxSlots, slots int32
	err := conn.QueryRow(ctx, serverSQL).Scan(&p.info.Version, &version, &walLevel, &standby, &p.info.Role,
		&p.info.Database, &p.info.Encoding, &mayReplicate, &maxSenders, &senders, &maxSlots, &slots)
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	if p.info.Version < minVersion {
		p.find("server-version", fmt.Sprintf("Must be running Postgres 15 or higher (currently: %q)", version), "upgrade the server")
		return nil // it does not know what is asked below
	}
	if walLevel != "logical" {
		p.find("wal-level", fmt.Sprintf(`Postgres must be configured with "wal_level = logical" (currently: %q)`, walLevel),
			"as a superuser run: alter system set wal_level = logical; and restart the server "+
				"(managed services have a parameter of their own, such as rds.logical_replication)")
	}
	if standby {
		p.find("standby", fmt.Sprintf("%s is a standby", p.upstream.address()), "connect to the primary")
	}
	if !mayReplicate {
		p.denied = true
		p.find(StatePermissionMissing, fmt.Sprintf("role %q may not replicate", p.info.Role),
			fmt.Sprintf("as a superuser run: alter role %s with replication (on RDS: grant rds_replication to %s)",
				quoteIdentifier(p.info.Role), quoteIdentifier(p.info.Role)))
	}
	if senders >= maxSenders {
		p.find("no-walsender-free", fmt.Sprintf("%d of %d walsenders are in use", senders, maxSenders),
			"end some (select * from pg_stat_replication) or raise max_wal_senders and restart the server")
	}
	if p.cfg.NewSlot && slots >= maxSlots {
		p.find(StateNoSlotFree, fmt.Sprintf("%d of %d replication slots are taken", slots, maxSlots),
			"drop those nobody uses (select slot_name, active from pg_replication_slots) or raise max_replication_slots and restart the server")
	}
	if p.info.Encoding != "UTF8" {
		p.info.Warnings = append(p.info.Warnings, fmt.Sprintf(
			"database %q is encoded in %s: text that is not UTF-8, or has no form in it, cannot be sent as it is", p.info.Database, p.info.Encoding))
	}
	return p.publications(ctx, conn)
}

func (p *preflight) publications(ctx context.Context, conn *pgx.Conn) error {
	wanted := p.cfg.Publications
	if len(wanted) == 0 {
		return nil
	}
	rows, err := conn.Query(ctx, publicationsSQL, wanted)
	if err != nil {
		return fmt.Errorf("read the publications: %w", err)
	}
	var found []string
	var name string
	var all bool
	_, err = pgx.ForEachRow(rows, []any{&name, &all}, func() error {
		found = append(found, name)
		if !all {
			p.find("publication-incomplete", fmt.Sprintf("PUBLICATION %s must publish insert, update, delete, and truncate", name),
				fmt.Sprintf("run: alter publication %s set (publish = 'insert, update, delete, truncate')", quoteIdentifier(name)))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the publications: %w", err)
	}
	if slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(found, w) }) {
		p.find(StatePublicationMissing, fmt.Sprintf("Unknown or invalid publications. Specified: [%s]. Found: [%s]",
			strings.Join(wanted, ","), strings.Join(found, ",")), fmt.Sprintf("create them in database %q before the slot is made", p.info.Database))
	}
	if err := p.columns(ctx, conn); err != nil {
		return err
	}
	return p.identities(ctx, conn)
}

// columns looks for tables that several publications show differently.
func (p *preflight) columns(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, publishedColumnsSQL, p.cfg.Publications)
	if err != nil {
		return fmt.Errorf("read the published columns: %w", err)
	}
	var schema, table, last, lastColumns string
	var columns []string
	_, err = pgx.ForEachRow(rows, []any{&schema, &table, &columns}, func() error {
		slices.Sort(columns)
		text := strings.Join(columns, ",")
		full := schema + "." + table
		if full == last && text != lastColumns {
			p.find("publication-columns", fmt.Sprintf("Table %s is exported with different columns: [%s] vs [%s]", table, lastColumns, text),
				fmt.Sprintf("publish table %s with one list of columns everywhere", full))
		}
		last, lastColumns = full, text
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the published columns: %w", err)
	}
	return nil
}

func (p *preflight) identities(ctx context.Context, conn *pgx.Conn) error {
	warnings, err := tableWarnings(ctx, conn, p.cfg.Publications)
	p.info.Warnings = append(p.info.Warnings, warnings...)
	return err
}

// TableWarnings names the tables of publications that will surprise somebody: those that
// the server will not let be changed, and those that some subscribers cannot take.
func (u *Upstream) TableWarnings(ctx context.Context, publications []string) (warnings []string, err error) {
	err = u.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		warnings, err = tableWarnings(ctx, conn, publications)
		return err
	})
	return warnings, err
}

func tableWarnings(ctx context.Context, conn *pgx.Conn, publications []string) (warnings []string, err error) {
	rows, err := conn.Query(ctx, missingIdentitySQL, publications)
	if err != nil {
		return nil, fmt.Errorf("read the replica identities: %w", err)
	}
	var schema, table string
	var full bool
	_, err = pgx.ForEachRow(rows, []any{&schema, &table, &full}, func() error {
		warning := fmt.Sprintf("table %s.%s has no usable replica identity: Postgres refuses its updates and deletes while "+
			"it is published; give it a primary key, or use: alter table %s.%s replica identity using index …",
			schema, table, quoteIdentifier(schema), quoteIdentifier(table))
		if full {
			warning = fmt.Sprintf("table %s.%s has replica identity full and no unique index over not-null columns: "+
				"a subscriber that keeps its rows by key, as those of Zero do, stops for good at the first of them; "+
				"give it a primary key, or leave it out of the publication", schema, table)
		}
		warnings = append(warnings, warning)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the replica identities: %w", err)
	}
	return warnings, nil
}

// replication looks whether a replication connection comes through.
func (p *preflight) replication(ctx context.Context) error {
	if p.denied || p.info.Version < minVersion {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	walsender, err := dial(ctx, p.upstream)
	if err == nil {
		defer walsender.close()
		var system system
		if system, err = walsender.identify(ctx); err == nil {
			p.info.SystemID, p.info.Timeline = system.id, system.timeline
			p.info.WALSenderTimeout, err = walsender.senderTimeout(ctx)
		}
	}
	switch code(err) {
	case codeProtocolViolation, codeSyntaxError, codeFeatureNotSupported:
		p.find("pooler", fmt.Sprintf("%s answers ordinary connections but no replication (%v)", p.upstream.address(), err),
			"it looks like a connection pooler: use the address of the database server itself")
		return nil
	case codeTooManyConnections:
		if slices.ContainsFunc(p.findings, func(f *source.StateError) bool { return f.State == "no-walsender-free" }) {
			return nil
		}
		p.find("no-walsender-free", err.Error(), "end some (select * from pg_stat_replication) or raise max_wal_senders and restart the server")
		return nil
	}
	if refusal(err) {
		p.find(StatePermissionMissing, fmt.Sprintf("replication was refused (%v)", err),
			"allow the role to replicate, and check pg_hba.conf")
		return nil
	}
	if err != nil {
		return fmt.Errorf("open a replication connection: %w", err)
	}
	return nil
}
