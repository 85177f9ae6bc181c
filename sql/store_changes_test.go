package sql_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

func TestStoreChanges(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	p := batch("01", "02", "02.01")
	p.Changes[1] = []byte(`{"tag":"insert", "new":{"b":"\u0000","a":1.10e2,"big":12345678901234567890}}`)
	p.Positions[5] = 1 << 40
	want := append(seed("01"),
		row{"02", 0, `{"tag":"begin"}`, ""},
		row{"02", 1, string(p.Changes[1]), ""},
		row{"02", 2, `{"tag":"commit"}`, "02"},
		row{"02.01", 0, `{"tag":"begin"}`, ""},
		row{"02.01", 1, `{"tag":"insert"}`, ""},
		row{"02.01", 1 << 40, `{"tag":"commit"}`, "02.01"},
	)

	require.Equal(t, db.StoreChangesRow{Stored: 6, Head: "02.01"}, store(t, conn, p))
	require.Equal(t, want, logRows(t, conn))
	require.Equal(t, db.CatchupBoundsRow{Minimum: "01", Head: "02.01", ReplicaVersion: version, Owner: owner}, bounds(t, conn))

	require.Equal(t, db.StoreChangesRow{Stored: 0, Head: "02.01"}, store(t, conn, p), "a replay")
	require.Equal(t, db.StoreChangesRow{Stored: 0, Head: "02.01"}, store(t, conn, batch("01", "01.01")), "wholly below the head")
	require.Equal(t, want, logRows(t, conn))

	overlap := batch("02", "02", "02.01", "02.0z", "02.110", "03")
	require.Equal(t, db.StoreChangesRow{Stored: 9, Head: "03"}, store(t, conn, overlap), "a replay with new ones behind it")
	require.Len(t, logRows(t, conn), len(want)+9)

	require.Equal(t, db.StoreChangesRow{Stored: 0, Head: "04"},
		store(t, conn, db.StoreChangesParams{
			Owner: owner, ReplicaVersion: version, ExpectedHead: "03", LastWatermark: "04",
		}), "no rows, and the head moves")
}

func TestStoreChangesRefuses(t *testing.T) {
	t.Parallel()

	conn := pgtest.New(t).Conn(t)
	_, err := queries.StoreChanges(t.Context(), conn, batch("01", "02"))
	requireCode(t, sql.CodeNotInitialised, err)

	ensure(t, conn, version, version)
	_, err = queries.StoreChanges(t.Context(), conn, batch("01", "02"))
	requireCode(t, sql.CodeNotOwner, err) // nobody's
	assume(t, conn, owner, nil)

	tests := []struct {
		name     string
		change   func(*db.StoreChangesParams)
		wantCode string
	}{
		{"wrong owner", func(p *db.StoreChangesParams) { p.Owner = other }, sql.CodeNotOwner},
		{"wrong replica version", func(p *db.StoreChangesParams) { p.ReplicaVersion = "00" }, sql.CodeNotOwner},
		{"gap", func(p *db.StoreChangesParams) { p.ExpectedHead = "01.01" }, sql.CodeGap},
	}
	for _, tt := range tests { // one connection: one after the other
		p := batch("01", "02")
		tt.change(&p)
		_, err = queries.StoreChanges(t.Context(), conn, p)
		pgErr := pgError(t, tt.wantCode, err)
		require.NotEmpty(t, pgErr.Detail, tt.name)
		require.Contains(t, pgErr.Message, pgtest.Schema)
	}
	require.Equal(t, seed("01"), logRows(t, conn))
	require.Equal(t, "01", bounds(t, conn).Head)
}

func TestStoreChangesOfManyRows(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	const rows = 2_000
	p := db.StoreChangesParams{Owner: owner, ReplicaVersion: version, ExpectedHead: "01", LastWatermark: "02"}
	for i := range rows {
		p.Watermarks = append(p.Watermarks, "02")
		p.Positions = append(p.Positions, int64(i))
		p.Changes = append(p.Changes, []byte(`{"tag":"insert","n":"`+strings.Repeat("x", i%500)+`"}`))
		p.Precommits = append(p.Precommits, "")
	}
	require.Equal(t, db.StoreChangesRow{Stored: rows, Head: "02"}, store(t, conn, p))
	require.EqualValues(t, rows, one[int64](t, conn, `select count(*) from "changeLog" where watermark = '02' and precommit is null`))
}

func TestStoreByCopy(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	// All of it is one simple query, and so one implicit transaction.
	const statement = `select store_open('a/1', '01', '%s', '%s');
		copy "changeLog" (watermark, pos, change, precommit) from stdin;
		select store_close('a/1', '01', '%[2]s')`
	lines := func(w string) *strings.Reader {
		return strings.NewReader(w + "\t0\t{\"tag\":\"begin\"}\t\\N\n" + w + "\t1\t{\"tag\":\"commit\"}\t" + w + "\n")
	}
	_, err := conn.PgConn().CopyFrom(t.Context(), lines("02"), fmt.Sprintf(statement, "01", "02"))
	require.NoError(t, err)
	want := append(seed("01"), row{"02", 0, `{"tag":"begin"}`, ""}, row{"02", 1, `{"tag":"commit"}`, "02"})
	require.Equal(t, want, logRows(t, conn))
	require.Equal(t, "02", bounds(t, conn).Head)

	_, err = conn.PgConn().CopyFrom(t.Context(), lines("02"), fmt.Sprintf(statement, "01", "02"))
	requireCode(t, sql.CodeAlreadyStored, err)
	_, err = conn.PgConn().CopyFrom(t.Context(), lines("04"), fmt.Sprintf(statement, "03", "04"))
	requireCode(t, sql.CodeGap, err)
	_, err = conn.PgConn().CopyFrom(t.Context(), strings.NewReader("no row\n"), fmt.Sprintf(statement, "02", "03"))
	require.ErrorContains(t, err, "22") // the text of the copy is not valid: nothing of it stays
	require.Equal(t, want, logRows(t, conn))

	_, err = queries.StoreOpen(t.Context(), conn, db.StoreOpenParams{
		Owner: other, ReplicaVersion: version, ExpectedHead: "02", Watermark: "03",
	})
	requireCode(t, sql.CodeNotOwner, err)
	_, err = queries.StoreClose(t.Context(), conn, db.StoreCloseParams{Owner: owner, ReplicaVersion: "00", LastWatermark: "03"})
	requireCode(t, sql.CodeNotOwner, err)
	head, err := queries.StoreClose(t.Context(), conn, db.StoreCloseParams{Owner: owner, ReplicaVersion: version, LastWatermark: "01"})
	require.NoError(t, err)
	require.Equal(t, "02", head, "the head never falls")
	head, err = queries.StoreOpen(t.Context(), conn, db.StoreOpenParams{
		Owner: owner, ReplicaVersion: version, ExpectedHead: "01", Watermark: "03",
	})
	require.NoError(t, err)
	require.Equal(t, "02", head)
}

func TestStoreInPieces(t *testing.T) {
	t.Parallel()

	_, conn := owned(t)
	begins := func(tx db.DBTX, expected, watermark string) (string, error) {
		return queries.BeginTransaction(t.Context(), tx, db.BeginTransactionParams{
			Owner: owner, ReplicaVersion: version, ExpectedHead: expected, Watermark: watermark,
		})
	}
	appends := func(tx db.DBTX, watermark string, first int64) (int64, error) {
		return queries.AppendChanges(t.Context(), tx, db.AppendChangesParams{
			Owner: owner, ReplicaVersion: version, Watermark: watermark,
			Positions:  []int64{first, first + 1},
			Changes:    [][]byte{[]byte(`{"tag":"insert"}`), []byte(`{"tag":"insert"}`)},
			Precommits: []string{"", watermark},
		})
	}

	tx := begin(t, conn)
	decision, err := begins(tx, "01", "02")
	require.NoError(t, err)
	require.Equal(t, "store", decision)
	for _, first := range []int64{0, 1 << 33} {
		n, err := appends(tx, "02", first)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
	}
	head, err := queries.CommitTransaction(t.Context(), tx, db.CommitTransactionParams{
		Owner: owner, ReplicaVersion: version, LastWatermark: "02",
	})
	require.NoError(t, err)
	require.Equal(t, "02", head)
	commit(t, tx)
	const change = `{"tag":"insert"}`
	want := append(seed("01"), row{"02", 0, change, ""}, row{"02", 1, change, "02"},
		row{"02", 1 << 33, change, ""}, row{"02", 1<<33 + 1, change, "02"})
	require.Equal(t, want, logRows(t, conn))

	decision, err = begins(conn, "01", "02")
	require.NoError(t, err)
	require.Equal(t, "skip", decision, "a replay")
	_, err = appends(conn, "02", 0)
	requireCode(t, sql.CodeAlreadyStored, err)
	_, err = begins(conn, "03", "04")
	requireCode(t, sql.CodeGap, err)

	assume(t, conn, other, new(owner))
	_, err = begins(conn, "02", "03")
	requireCode(t, sql.CodeNotOwner, err)
	_, err = appends(conn, "03", 0)
	requireCode(t, sql.CodeNotOwner, err)
	_, err = queries.CommitTransaction(t.Context(), conn, db.CommitTransactionParams{
		Owner: owner, ReplicaVersion: version, LastWatermark: "03",
	})
	requireCode(t, sql.CodeNotOwner, err)
	require.Equal(t, want, logRows(t, conn))
}

func TestOwnershipIsTakenWhileTheOwnerStores(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	newcomer, watcher := database.Conn(t), database.Conn(t)

	tx := begin(t, conn)
	store(t, tx, batch("01", "02"))
	result := blocked(t, watcher, newcomer, func() (db.AssumeOwnershipRow, error) {
		return queries.AssumeOwnership(t.Context(), newcomer, db.AssumeOwnershipParams{
			Owner: other, ReplicaVersion: version, Expected: new(owner),
		})
	})
	commit(t, tx)
	got := <-result
	require.NoError(t, got.err)
	require.True(t, got.value.Assumed)

	_, err := queries.StoreChanges(t.Context(), conn, batch("02", "03"))
	requireCode(t, sql.CodeNotOwner, err)
	require.Equal(t, "02", bounds(t, conn).Head)
}

func TestResetWhileTheOwnerStores(t *testing.T) {
	t.Parallel()

	database, conn := owned(t)
	resetter, watcher := database.Conn(t), database.Conn(t)

	// The reset waits for the transaction that is being stored, and wipes it.
	tx := begin(t, conn)
	store(t, tx, batch("01", "02"))
	result := blocked(t, watcher, resetter, func() (db.EnsureReplicationConfigRow, error) {
		return reset(t.Context(), resetter, "05")
	})
	store(t, tx, batch("02", "03"))
	commit(t, tx)
	got := <-result
	require.NoError(t, got.err)
	require.Equal(t, "reset", got.value.Result)
	require.Equal(t, seed("05"), logRows(t, conn))

	// And a transaction that waits for the reset finds the log lost, neither empty nor as it was.
	resetting := begin(t, resetter)
	_, err := reset(t.Context(), resetting, "06")
	require.NoError(t, err)
	late := blocked(t, watcher, conn, func() (db.StoreChangesRow, error) {
		return queries.StoreChanges(t.Context(), conn, batch("01", "02"))
	})
	commit(t, resetting)
	requireCode(t, sql.CodeNotOwner, (<-late).err)
	require.Equal(t, seed("06"), logRows(t, conn))
}

func TestStoresAndResetsNeverDeadlock(t *testing.T) {
	t.Parallel()

	database, conn := initialised(t)
	exec(t, conn, `alter database `+database.Name+` set deadlock_timeout = '10ms'`)
	const rounds = 20
	var stored atomic.Int32
	var calls []func() error
	session := func(work func(ctx context.Context, conn *pgx.Conn, round int) error) {
		conn := database.Conn(t)
		calls = append(calls, func() error {
			for round := range rounds {
				if err := work(t.Context(), conn, round); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range 2 {
		session(func(ctx context.Context, conn *pgx.Conn, round int) error {
			got, err := reset(ctx, conn, fmt.Sprintf("31%d%02d", i, round))
			if err == nil && got.Result != "reset" {
				err = fmt.Errorf("reset was %s: %s", got.Result, got.Detail)
			}
			return err
		})
	}
	for i := range 2 {
		name := fmt.Sprintf("s/%d", i)
		session(func(ctx context.Context, conn *pgx.Conn, _ int) error {
			at, err := queries.CatchupBounds(ctx, conn)
			if err != nil {
				return err
			}
			if _, err := queries.AssumeOwnership(ctx, conn, db.AssumeOwnershipParams{
				Owner: name, ReplicaVersion: at.ReplicaVersion, Force: true,
			}); lostIsFine(err) != nil {
				return err
			}
			history, _, _ := strings.Cut(at.Head, ".")
			p := batch(at.Head, fmt.Sprintf("%s.3%d", history, 1000+stored.Add(1)))
			p.Owner, p.ReplicaVersion = name, at.ReplicaVersion
			if _, err = queries.StoreChanges(ctx, conn, p); lostIsFine(err) != nil {
				return err
			}
			_, err = queries.ReportProgress(ctx, conn, db.ReportProgressParams{
				Owner: name, ReplicaVersion: at.ReplicaVersion, StreamedWatermark: at.Head,
			})
			return err
		})
	}
	require.NoError(t, together(calls...))

	at := bounds(t, conn)
	require.Equal(t, at.Head, one[string](t, conn, `select max(watermark) from "changeLog"`))
}

// lostIsFine forgives only what the race is about: the log went to somebody else,
// or began anew at a smaller watermark than the one just read.
func lostIsFine(err error) error {
	for _, code := range []string{sql.CodeNotOwner, sql.CodeGap} {
		if err != nil && strings.Contains(err.Error(), "SQLSTATE "+code) {
			return nil
		}
	}
	return err
}
