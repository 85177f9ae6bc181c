package sql_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

// contested is a log from 01 to 02, of owner, and other is about to take it over.
func contested(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	database, conn := initialised(t)
	register(t, conn, owner, new("m_"))
	register(t, conn, other, new("m_"))
	require.True(t, assume(t, conn, owner, nil).Assumed)
	store(t, conn, batch("01", "02"))
	require.NoError(t, announce(t.Context(), conn, other))
	require.Equal(t, contestedState, hands(t, conn))
	return database, conn
}

// What hands makes of a contested log, and of one that other has taken.
const (
	contestedState = "02 a/1 a/1:4848; a/1 owner a/1:4848 m_1; b/2 pending b/2:4848 m_2"
	takenState     = "03 b/2 b/2:4848; a/1 gone a/1:4848 m_1; b/2 owner b/2:4848 m_2"
)

// hands is in whose hands the log is: head, owner and address, then the rows of streamer.
func hands(t *testing.T, conn db.DBTX) string {
	t.Helper()
	return one[string](t, conn, `
		select concat_ws(' ', s."lastWatermark", s.owner, s."ownerAddress") || (
			select coalesce(string_agg(concat_ws(' ', '; ' || r.owner, r.state, r.owner_address, r.slot), '' order by r.id), '')
			from streamer as r)
		from "replicationState" as s`)
}

func announce(ctx context.Context, conn db.DBTX, name string) error {
	return queries.AnnounceTakeover(ctx, conn, db.AnnounceTakeoverParams{Owner: name, ReplicaVersion: version})
}

// atHead takes the log over without storing anything.
func atHead(ctx context.Context, conn db.DBTX, name, watermark string) (bool, error) {
	return queries.AssumeOwnershipAtHead(ctx, conn, db.AssumeOwnershipAtHeadParams{
		Owner: name, OwnerAddress: new(name + ":1"), ReplicaVersion: version, Watermark: watermark,
	})
}

func condemned(t *testing.T, conn db.DBTX, id int64) {
	t.Helper()
	_, err := queries.CondemnStreamer(t.Context(), conn, db.CondemnStreamerParams{ID: id, Owner: owner, ReplicaVersion: version})
	require.NoError(t, err)
}

func retired(t *testing.T, conn db.DBTX, id int64) {
	t.Helper()
	require.NoError(t, queries.RetireStreamer(t.Context(), conn, db.RetireStreamerParams{ID: id}))
}

// storage is one transaction of three rows, and who stores it.
type storage struct{ owner, replicaVersion, expectedHead, watermark string }

// errSkip says that the log has a transaction already.
var errSkip = errors.New("skip")

// way is one in which a transaction gets into the log. It leaves it to the caller to commit.
type way struct {
	name  string
	store func(context.Context, pgx.Tx, storage) error
}

// ways are all there are.
var ways = []way{
	{"batch", func(ctx context.Context, tx pgx.Tx, s storage) error {
		p := batch(s.expectedHead, s.watermark)
		p.Owner, p.ReplicaVersion = s.owner, s.replicaVersion
		row, err := queries.StoreChanges(ctx, tx, p)
		if err == nil && row.Stored == 0 {
			return errSkip
		}
		return err
	}},
	{"copy", func(ctx context.Context, tx pgx.Tx, s storage) error {
		_, err := queries.StoreOpen(ctx, tx, db.StoreOpenParams{
			Owner: s.owner, ReplicaVersion: s.replicaVersion, ExpectedHead: s.expectedHead, Watermark: s.watermark,
		})
		if err != nil {
			if strings.Contains(err.Error(), sql.CodeAlreadyStored) {
				return errSkip
			}
			return err
		}
		p := batch(s.expectedHead, s.watermark)
		rows := make([][]any, len(p.Watermarks))
		for i := range rows {
			rows[i] = []any{s.watermark, p.Positions[i], p.Changes[i], nil}
			if p.Precommits[i] != "" {
				rows[i][3] = p.Precommits[i]
			}
		}
		columns := []string{"watermark", "pos", "change", "precommit"}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"changeLog"}, columns, pgx.CopyFromRows(rows)); err != nil {
			return err
		}
		_, err = queries.StoreClose(ctx, tx, db.StoreCloseParams{
			Owner: s.owner, ReplicaVersion: s.replicaVersion, LastWatermark: s.watermark,
		})
		return err
	}},
	{"pieces", func(ctx context.Context, tx pgx.Tx, s storage) error {
		decision, err := queries.BeginTransaction(ctx, tx, db.BeginTransactionParams{
			Owner: s.owner, ReplicaVersion: s.replicaVersion, ExpectedHead: s.expectedHead, Watermark: s.watermark,
		})
		if err != nil {
			return err
		}
		if decision == "skip" {
			return errSkip
		}
		p := batch(s.expectedHead, s.watermark)
		for i := range p.Positions {
			if _, err := queries.AppendChanges(ctx, tx, db.AppendChangesParams{
				Owner: s.owner, ReplicaVersion: s.replicaVersion, Watermark: s.watermark,
				Positions: p.Positions[i : i+1], Changes: p.Changes[i : i+1], Precommits: p.Precommits[i : i+1],
			}); err != nil {
				return err
			}
		}
		_, err = queries.CommitTransaction(ctx, tx, db.CommitTransactionParams{
			Owner: s.owner, ReplicaVersion: s.replicaVersion, LastWatermark: s.watermark,
		})
		return err
	}},
}

// newcomers are the ways of a newcomer, and taking the log at its head, which stores nothing.
var newcomers = append([]way{
	{"at head", func(ctx context.Context, tx pgx.Tx, s storage) error {
		assumed, err := queries.AssumeOwnershipAtHead(ctx, tx, db.AssumeOwnershipAtHeadParams{
			Owner: s.owner, OwnerAddress: new(s.owner + ":4848"), ReplicaVersion: s.replicaVersion, Watermark: s.watermark,
		})
		if err == nil && !assumed {
			return errSkip
		}
		return err
	}},
}, ways...)

// alone stores in a transaction of its own.
func (w way) alone(ctx context.Context, conn *pgx.Conn, s storage) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return w.store(ctx, tx, s) })
}

func storedRows(watermarks ...string) (rows []row) {
	for _, w := range watermarks {
		rows = append(rows, row{w, 0, `{"tag":"begin"}`, ""}, row{w, 1, `{"tag":"insert"}`, ""}, row{w, 2, `{"tag":"commit"}`, w})
	}
	return rows
}

// The first transaction past the head and the change of owner are one.
func TestNewcomerTakesTheLogOverWithWhatItStores(t *testing.T) {
	t.Parallel()

	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()

			database, conn := contested(t)
			newcomer, listener := database.Conn(t), database.Conn(t)
			require.True(t, report(t, conn, owner, version, "02"))
			exec(t, listener, `listen cdc`)
			ctx, next := t.Context(), storage{other, version, "02", "03"}

			// What is rolled back leaves everything as it was.
			tx := begin(t, newcomer)
			require.NoError(t, way.store(ctx, tx, next))
			require.Equal(t, takenState, hands(t, tx))
			require.Equal(t, contestedState, hands(t, conn), "others see nothing before it is committed")
			require.NoError(t, tx.Rollback(ctx))
			require.Equal(t, contestedState, hands(t, conn))
			require.ErrorIs(t, way.alone(ctx, newcomer, storage{other, version, "01", "02"}), errSkip, "it is pending still")
			require.Equal(t, contestedState, hands(t, conn))

			require.NoError(t, way.alone(ctx, newcomer, next))
			require.Equal(t, takenState, hands(t, conn))
			want := append(seed("01"), storedRows("02", "03")...)
			require.Equal(t, want, logRows(t, conn))
			exec(t, conn, `select pg_notify('cdc', 'no more')`)
			require.Equal(t, pgtest.Schema, notification(t, listener))
			require.Equal(t, "no more", notification(t, listener), "the owner changed once")

			// The owner before finds out at its next call, whichever it is, and none changes anything.
			for _, way := range ways {
				requireCode(t, sql.CodeNotOwner, way.alone(ctx, conn, storage{owner, version, "02", "03"}))
			}
			require.False(t, report(t, conn, owner, version, "03"))
			_, err := atHead(ctx, conn, owner, "03")
			requireCode(t, sql.CodeNotOwner, err)
			requireCode(t, sql.CodeYoungerOwner, announce(ctx, conn, owner))
			require.Equal(t, takenState, hands(t, conn))
			require.Equal(t, want, logRows(t, conn))

			// The outcome may be unknown: both come again, and nothing changes hands twice.
			require.ErrorIs(t, way.alone(ctx, newcomer, next), errSkip)
			assumed, err := atHead(ctx, newcomer, other, "02")
			require.NoError(t, err)
			require.True(t, assumed)
			require.NoError(t, announce(ctx, newcomer, other))
			require.Equal(t, takenState, hands(t, conn))
			exec(t, conn, `select pg_notify('cdc', 'no more')`)
			require.Equal(t, "no more", notification(t, listener))

			require.True(t, report(t, newcomer, other, version, "03"))
			require.NoError(t, way.alone(ctx, newcomer, storage{other, version, "03", "04"}))
			require.Equal(t, []string{"01", "02", "03", "04"}, transactions(t, conn))
		})
	}
}

// While the owner is ahead, its transactions are the log's.
func TestNewcomerLeavesOutWhatIsStored(t *testing.T) {
	t.Parallel()

	_, conn := contested(t)
	newcomers := func(expectedHead string, watermarks ...string) db.StoreChangesParams {
		p := batch(expectedHead, watermarks...)
		p.Owner = other
		for i := range p.Changes {
			p.Changes[i] = []byte(`{"by":"b/2"}`)
		}
		return p
	}

	require.Equal(t, db.StoreChangesRow{Stored: 0, Head: "02"}, store(t, conn, newcomers("01", "01.01", "02")))
	require.Equal(t, contestedState, hands(t, conn))
	store(t, conn, batch("02", "03", "04")) // the owner is first
	require.Equal(t, db.StoreChangesRow{Stored: 0, Head: "04"}, store(t, conn, newcomers("02", "03", "04")))
	require.Equal(t, "04 a/1 a/1:4848"+strings.TrimPrefix(contestedState, "02 a/1 a/1:4848"), hands(t, conn))
	for _, way := range ways {
		require.ErrorIs(t, way.alone(t.Context(), conn, storage{other, version, "02", "04"}), errSkip, way.name)
	}

	// Of a batch that goes past the head only that is stored, and it takes the log.
	require.Equal(t, db.StoreChangesRow{Stored: 6, Head: "06"}, store(t, conn, newcomers("02", "03", "04", "05", "06")))
	require.Equal(t, "06 b/2 b/2:4848"+strings.TrimPrefix(takenState, "03 b/2 b/2:4848"), hands(t, conn))
	require.Equal(t, append(seed("01"), storedRows("02", "03", "04")...), logRows(t, conn)[:11])
	require.Equal(t, []string{"05", "06"}, one[[]string](t, conn, `
		select array_agg(distinct watermark order by watermark) from "changeLog" where change ->> 'by' = 'b/2'`))
}

// An upstream that is idle shows where the log ends, and no transaction.
func TestNewcomerTakesTheLogOverAtItsHead(t *testing.T) {
	t.Parallel()

	for _, watermark := range []string{"03", "03.01", "0a"} {
		t.Run(watermark, func(t *testing.T) {
			t.Parallel()

			database, conn := contested(t)
			listener := database.Conn(t)
			exec(t, listener, `listen cdc`)
			ctx := t.Context()
			store(t, conn, batch("02", "03"))
			before := contents(t, conn)
			for _, below := range []string{"01", "02", "02.0z"} {
				assumed, err := atHead(ctx, conn, other, below)
				require.NoError(t, err)
				require.False(t, assumed)
			}
			require.Equal(t, before, contents(t, conn))

			assumed, err := atHead(ctx, conn, other, watermark)
			require.NoError(t, err)
			require.True(t, assumed)
			require.Equal(t, "03 b/2 b/2:1; a/1 gone a/1:4848 m_1; b/2 owner b/2:1 m_2", hands(t, conn), "with the address of now")
			require.Equal(t, append(seed("01"), storedRows("02", "03")...), logRows(t, conn))
			exec(t, conn, `select pg_notify('cdc', 'no more')`)
			require.Equal(t, pgtest.Schema, notification(t, listener))
			require.Equal(t, "no more", notification(t, listener), "refusals notify nobody")
			require.False(t, report(t, conn, owner, version, "03"))
			require.True(t, report(t, conn, other, version, watermark))
			_, err = queries.StoreChanges(ctx, conn, batch("03", "04"))
			requireCode(t, sql.CodeNotOwner, err)
		})
	}
}

// The owner may store between a message that was received and the take-over that it asks for.
func TestHeadMovesBeforeItIsTaken(t *testing.T) {
	t.Parallel()

	database, conn := contested(t)
	newcomer, watcher := database.Conn(t), database.Conn(t)
	tx := begin(t, conn)
	store(t, tx, batch("02", "04"))
	result := blocked(t, watcher, newcomer, func() (bool, error) { return atHead(t.Context(), newcomer, other, "03") })
	commit(t, tx)
	got := <-result
	require.NoError(t, got.err)
	require.False(t, got.value)
	require.Equal(t, "04 a/1 a/1:4848; a/1 owner a/1:4848 m_1; b/2 pending b/2:4848 m_2", hands(t, conn))
}

func TestNewcomerIsRefused(t *testing.T) {
	t.Parallel()

	younger := func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		register(t, conn, "c/3", nil)
		require.NoError(t, announce(t.Context(), conn, "c/3"))
		assumed, err := atHead(t.Context(), conn, "c/3", "02")
		require.NoError(t, err)
		require.True(t, assumed)
	}
	tests := []struct {
		name         string
		prepare      func(*testing.T, *pgx.Conn)
		by           storage
		want         string
		wantAnnounce string // of the same incarnation; empty: it may
	}{
		{name: "not announced", by: storage{owner: "c/3"}, want: sql.CodeNotOwner, prepare: func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			register(t, conn, "c/3", nil)
		}},
		{name: "not registered", by: storage{owner: "d/4"}, want: sql.CodeNotOwner, wantAnnounce: sql.CodeNotRegistered},
		{name: "condemned", want: sql.CodeNotOwner, wantAnnounce: sql.CodeCondemned, prepare: func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			condemned(t, conn, 2)
		}},
		{name: "retired", want: sql.CodeNotOwner, wantAnnounce: sql.CodeCondemned, prepare: func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			retired(t, conn, 2)
		}},
		{name: "deposed", want: sql.CodeNotOwner, wantAnnounce: sql.CodeCondemned, prepare: func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			require.True(t, assume(t, conn, other, new(owner)).Assumed)
			require.True(t, assume(t, conn, "c/3", new(other)).Assumed)
		}},
		{name: "younger owner", want: sql.CodeYoungerOwner, wantAnnounce: sql.CodeYoungerOwner, prepare: younger},
		{name: "another replica version", by: storage{replicaVersion: "00"}, want: sql.CodeNotOwner},
		{name: "reset", want: sql.CodeNotOwner, wantAnnounce: sql.CodeNotOwner, prepare: func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			_, err := reset(t.Context(), conn, "02")
			require.NoError(t, err)
		}},
		{name: "not initialised", want: sql.CodeNotInitialised, wantAnnounce: sql.CodeNotInitialised, prepare: func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			exec(t, conn, `truncate "replicationState"`)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			_, conn := contested(t)
			if tt.prepare != nil {
				tt.prepare(t, conn)
			}
			s := storage{other, version, "02", "03"}
			if tt.by.owner != "" {
				s.owner = tt.by.owner
			}
			if tt.by.replicaVersion != "" {
				s.replicaVersion = tt.by.replicaVersion
			}
			before := contents(t, conn)
			for _, way := range newcomers {
				pgErr := pgError(t, tt.want, way.alone(t.Context(), conn, s))
				require.Contains(t, pgErr.Message, pgtest.Schema, way.name)
			}
			// Each of the calls in the middle asks by itself.
			_, err := queries.AppendChanges(t.Context(), conn, db.AppendChangesParams{
				Owner: s.owner, ReplicaVersion: s.replicaVersion, Watermark: s.watermark,
			})
			requireCode(t, tt.want, err)
			_, err = queries.StoreClose(t.Context(), conn, db.StoreCloseParams{
				Owner: s.owner, ReplicaVersion: s.replicaVersion, LastWatermark: s.watermark,
			})
			requireCode(t, tt.want, err)
			require.Equal(t, before, contents(t, conn))

			err = announce(t.Context(), conn, s.owner)
			if tt.wantAnnounce != "" {
				requireCode(t, tt.wantAnnounce, err)
				require.Equal(t, before, contents(t, conn))
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestNewcomerIsToldOfAGap(t *testing.T) {
	t.Parallel()

	_, conn := contested(t)
	for _, way := range ways {
		requireCode(t, sql.CodeGap, way.alone(t.Context(), conn, storage{other, version, "03", "04"}))
	}
	_, err := atHead(t.Context(), conn, other, "no watermark")
	requireCode(t, sql.CodeInvalidArgument, err)
	require.Equal(t, contestedState, hands(t, conn))
}

// Whom nobody registered, Zero for one, is not compared; nor is nobody.
func TestNewcomerTakesTheLogFromAnybody(t *testing.T) {
	t.Parallel()

	owners := map[string]func(*testing.T, *pgx.Conn){
		"zero": func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			exec(t, conn, `update "replicationState" set owner = 'zero-task', "ownerAddress" = 'zero:4848'`)
		},
		"nobody": func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			exec(t, conn, `select reinitialize_change_log(watermark => '02.01', owner => null)`)
		},
		"another incarnation of its task": func(t *testing.T, conn *pgx.Conn) {
			t.Helper()
			exec(t, conn, `update streamer set owner = 'b/1', task_id = 'b' where id = 1`)
			exec(t, conn, `update "replicationState" set owner = 'b/1'`)
		},
	}
	for name, owns := range owners {
		for _, way := range newcomers {
			t.Run(name+", "+way.name, func(t *testing.T) {
				t.Parallel()

				_, conn := contested(t)
				owns(t, conn)
				require.NoError(t, announce(t.Context(), conn, other))
				require.NoError(t, way.alone(t.Context(), conn, storage{other, version, "02", "03"}))
				require.Equal(t, other, bounds(t, conn).Owner)
				require.Equal(t, "gone owner", one[string](t, conn, `select string_agg(state, ' ' order by id) from streamer`))
			})
		}
	}
}

func TestAnnounceTakeover(t *testing.T) {
	t.Parallel()

	_, conn := contested(t)
	ctx := t.Context()
	changedAt := func(name string) string {
		t.Helper()
		return one[string](t, conn, `select changed_at::text from streamer where owner = $1`, name)
	}

	// It is renewed by being said again, and has no other effect.
	first := changedAt(other)
	require.NoError(t, announce(ctx, conn, other))
	require.Greater(t, changedAt(other), first)
	require.Equal(t, contestedState, hands(t, conn))

	// For the owner nothing changes, whether it has a row or not.
	before := contents(t, conn)
	require.NoError(t, announce(ctx, conn, owner))
	exec(t, conn, `update "replicationState" set owner = 'c/3'`)
	require.NoError(t, announce(ctx, conn, "c/3"))
	register(t, conn, "c/3", nil)
	require.NoError(t, announce(ctx, conn, "c/3"))
	require.Equal(t, "starting", one[string](t, conn, `select state from streamer where owner = 'c/3'`))
	exec(t, conn, `delete from streamer where owner = 'c/3'`)
	require.Equal(t, before["streamer"], contents(t, conn)["streamer"])
	for _, name := range []*string{nil, new("d/4")} {
		_, err := conn.Exec(ctx, `select announce_takeover(owner => $1, replica_version => '01')`, name)
		requireCode(t, sql.CodeNotRegistered, err)
	}
	_, err := conn.Exec(ctx, `select announce_takeover(owner => 'b/2', replica_version => null)`)
	requireCode(t, sql.CodeNotOwner, err)
}

// A large transaction may hold the state row for minutes; a newcomer that could not say that it lives would be taken for dead.
func TestAnnounceDoesNotWaitForTheStateRow(t *testing.T) {
	t.Parallel()

	database, conn := contested(t)
	storing := database.Conn(t)
	exec(t, conn, waitsNotForEver)
	for _, statement := range []string{
		`select store_open(owner => 'a/1', replica_version => '01', expected_head => '02', watermark => '03')`,
		`select begin_transaction(owner => 'a/1', replica_version => '01', expected_head => '02', watermark => '03')`,
		`select store_open(owner => 'b/2', replica_version => '01', expected_head => '02', watermark => '03')`,
		`select append_changes(owner => 'b/2', replica_version => '01', watermark => '03', positions => '{0}',
			changes => array['{}']::json[], precommits => '{""}')`,
	} {
		tx := begin(t, storing)
		exec(t, tx, statement)
		require.NoError(t, announce(t.Context(), conn, other))
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// Whoever comes second finds out, and nobody is both gone and the owner.
func TestNewcomerMeetsItsEnd(t *testing.T) {
	t.Parallel()

	ends := map[string]func(*testing.T, db.DBTX){
		"condemned": func(t *testing.T, conn db.DBTX) {
			t.Helper()
			condemned(t, conn, 2)
		},
		"retired": func(t *testing.T, conn db.DBTX) {
			t.Helper()
			retired(t, conn, 2)
		},
	}
	for name, end := range ends {
		for _, way := range newcomers {
			t.Run(name+", "+way.name, func(t *testing.T) {
				t.Parallel()

				database, conn := contested(t)
				newcomer, watcher := database.Conn(t), database.Conn(t)
				tx := begin(t, conn)
				end(t, tx)
				result := blocked(t, watcher, newcomer, func() (struct{}, error) {
					return struct{}{}, way.alone(t.Context(), newcomer, storage{other, version, "02", "03"})
				})
				commit(t, tx)
				requireCode(t, sql.CodeNotOwner, (<-result).err)
				require.Equal(t, strings.Replace(contestedState, "pending", "gone", 1), hands(t, conn))
				require.Equal(t, append(seed("01"), storedRows("02")...), logRows(t, conn))
			})
		}
		t.Run(name+" while it says so", func(t *testing.T) {
			t.Parallel()

			database, conn := contested(t)
			newcomer, watcher := database.Conn(t), database.Conn(t)
			announcing := func() (struct{}, error) { return struct{}{}, announce(t.Context(), newcomer, other) }
			tx := begin(t, conn)
			end(t, tx)
			result := blocked(t, watcher, newcomer, announcing)
			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, (<-result).err)
			require.Equal(t, contestedState, hands(t, conn))

			tx = begin(t, conn)
			end(t, tx)
			result = blocked(t, watcher, newcomer, announcing)
			commit(t, tx)
			requireCode(t, sql.CodeCondemned, (<-result).err)
		})
	}
}

// A process says that it lives on one connection while it takes the log over on another.
func TestNewcomerAnnouncesWhileItTakesTheLogOver(t *testing.T) {
	t.Parallel()

	for _, way := range newcomers {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()

			database, conn := contested(t)
			announcer, watcher := database.Conn(t), database.Conn(t)
			tx := begin(t, conn)
			require.NoError(t, way.store(t.Context(), tx, storage{other, version, "02", "03"}))
			result := blocked(t, watcher, announcer, func() (struct{}, error) {
				return struct{}{}, announce(t.Context(), announcer, other)
			})
			commit(t, tx)
			require.NoError(t, (<-result).err)
			require.Contains(t, hands(t, conn), "; b/2 owner ")
		})
	}
}

// What only the owner does, a newcomer does not do before it is the owner.
func TestNewcomerDoesNoMoreThanStore(t *testing.T) {
	t.Parallel()

	_, conn := contested(t)
	register(t, conn, "c/3", new("m_"))
	backUp(t, conn, "02")
	before := contents(t, conn)
	ctx := t.Context()

	require.False(t, report(t, conn, other, version, "02"))
	p := purging("02")
	p.Owner = other
	_, err := queries.PurgeChangeLog(ctx, conn, p)
	requireCode(t, sql.CodeNotOwner, err)
	for _, id := range []int64{1, 3} {
		_, err = queries.CondemnStreamer(ctx, conn, db.CondemnStreamerParams{ID: id, Owner: other, ReplicaVersion: version})
		requireCode(t, sql.CodeNotOwner, err)
	}
	_, err = openReservation(t, conn, other, "task")
	requireCode(t, sql.CodeNotOwner, err)
	require.Equal(t, before, contents(t, conn))

	require.NoError(t, newcomers[0].alone(ctx, conn, storage{other, version, "02", "02"}))
	require.True(t, report(t, conn, other, version, "02"))
	require.Equal(t, "02", opened(t, conn, other, "task").Watermark)
	require.EqualValues(t, 2, purge(t, conn, p).Deleted)
	_, err = queries.CondemnStreamer(ctx, conn, db.CondemnStreamerParams{ID: 3, Owner: other, ReplicaVersion: version})
	require.NoError(t, err)
	require.Equal(t, []db.DeadStreamersRow{{ID: 1, Slot: "m_1"}, {ID: 3, Slot: "m_3"}}, dead(t, conn, other), "and the owner before left its slot")
}

func dead(t *testing.T, conn db.DBTX, name string) []db.DeadStreamersRow {
	t.Helper()
	rows, err := queries.DeadStreamers(t.Context(), conn, name)
	require.NoError(t, err)
	return rows
}

func TestWhoCountsAsDead(t *testing.T) {
	t.Parallel()

	tests := []struct {
		state, registered, changed string // how long ago
		dead                       bool
	}{
		{"starting", "4 minutes 50 seconds", "4 minutes 50 seconds", false},
		{"starting", "5 minutes 1 second", "5 minutes 1 second", true},
		{"starting", "5 minutes 1 second", "1 second", true},
		{"pending", "3 days", "50 seconds", false},
		{"pending", "3 days", "61 seconds", true},
		{"pending", "62 seconds", "61 seconds", true},
		{"gone", "1 second", "1 second", true},
		{"owner", "3 days", "3 days", false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s for %s", tt.state, tt.changed), func(t *testing.T) {
			t.Parallel()

			_, conn := contested(t)
			mine, theirs := "c/3", register(t, conn, "c/3", new("m_"))
			exec(t, conn, `update streamer set state = $1, registered_at = now() - $2::interval, changed_at = now() - $3::interval where id = $4`,
				tt.state, tt.registered, tt.changed, theirs.ID)
			var want []db.DeadStreamersRow
			if tt.dead {
				want = []db.DeadStreamersRow{{ID: theirs.ID, Slot: theirs.Slot}}
			}
			require.Equal(t, want, dead(t, conn, owner))
			require.Empty(t, dead(t, conn, mine), "never itself")

			// Saying that it lives helps unless it is condemned already.
			if tt.state == "pending" || tt.state == "starting" {
				require.NoError(t, announce(t.Context(), conn, mine))
				require.Empty(t, dead(t, conn, owner))
			}
			exec(t, conn, `update streamer set slot = null where id = $1`, theirs.ID)
			require.Empty(t, dead(t, conn, owner), "a row without a slot")
		})
	}
}
