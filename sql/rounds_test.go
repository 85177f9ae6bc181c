package sql_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db"
	"millrace/db/pgtest"
	"millrace/sql"
)

const (
	// roundsEnv asks for a longer hunt: so many rounds instead of the few that CI makes.
	roundsEnv = "MILLRACE_ROUNDS"
	// seedEnv repeats a run, as far as one can that has many sessions.
	seedEnv = "MILLRACE_SEED"

	fewRounds = 12

	// What every connection of a streamer is called, and what a reset may end.
	roundsApp = "zero-change-streamer"

	adminShutdown    = "57P01" // the session was ended
	deadlockDetected = "40P01"
	lost             = "connection lost" // the session was ended, and that was read from its socket only
)

// roundsPage is the page statement of package changelog.
const roundsPage = `
(select null::text, null::int8, null::text, null::text,
    coalesce((select min(m.watermark) from "changeLog" as m
        where m.watermark >= coalesce(p.purged_watermark, '')), s."lastWatermark"),
    s."lastWatermark", c."replicaVersion"
from "replicationState" as s
cross join "replicationConfig" as c
left join progress as p on p.lock = 1 and p.replica_version = c."replicaVersion"
where s.lock = 1 and c.lock = 1)
union all
(select l.watermark, l.pos, l.change::text, l.precommit, null, null, null
from "changeLog" as l
where (l.watermark, l.pos) > ($1, $2::int8)
order by l.watermark, l.pos
limit $3::int8)`

// mayFail are the errors that a session may meet. None is in it by the way: a reset ends who is in its
// way, and whoever is fenced off is told so. Nobody deadlocks but who locks in the wrong order.
var mayFail = map[string][]string{
	"reinitialiser": {
		sql.CodeNotOwner,      // the other one has reset the log
		sql.CodeReplicaTooOld, // or has let it begin further on
	},
	"storer":                    {sql.CodeNotOwner, adminShutdown, lost},
	"storer in pieces":          {sql.CodeNotOwner, sql.CodeAlreadyStored, adminShutdown, lost},
	"reader of pages":           {adminShutdown, lost},
	"reader of an old snapshot": {adminShutdown, lost},
	"reader with a cursor":      {adminShutdown, lost},
	"reader in the wrong order": {adminShutdown, lost, deadlockDetected},
	"purger":                    {sql.CodeNotOwner, lockNotAvailable, adminShutdown, lost},
	"holder of the purge lock":  {adminShutdown, lost},
	"taker":                     {sql.CodeNotOwner, adminShutdown, lost},
	"newcomer": {
		sql.CodeNotOwner,     // another history, or it is condemned
		sql.CodeCondemned,    // and is told so
		sql.CodeYoungerOwner, // another newcomer was quicker
		adminShutdown, lost,
	},
	"condemner":                  {sql.CodeNotOwner, adminShutdown, lost},
	"reporter of progress":       {sql.CodeNotOwner, adminShutdown, lost},
	"reporter of backups":        {sql.CodeNotOwner, sql.CodeBackupBackwards},
	"restorer":                   {sql.CodeNotOwner, adminShutdown, lost},
	"person who looks at status": {},
}

// takeovers keeps who has taken the log from whom, in which state, and at which head: a session may end before it hears the
// outcome. The rows that the same transaction has stored are past that head.
const takeovers = `
create table public.takeover (
	id       int8 generated always as identity primary key,
	owner    text not null,
	previous text not null,
	state    text,
	head     text not null
);
create function public.keep_takeover() returns trigger language plpgsql as $$
begin
	insert into public.takeover (owner, previous, state, head)
	select
		new.owner,
		coalesce(old.owner, 'reset to ' || (select c."replicaVersion" from cdc."replicationConfig" as c)),
		(select r.state from cdc.streamer as r where r.owner = new.owner),
		(select max(l.watermark) from cdc."changeLog" as l where l.xmin <> pg_current_xact_id()::xid);
	return null;
end
$$;
create trigger keep_takeover after update of owner on "replicationState"
	for each row when (old.owner is distinct from new.owner) execute function public.keep_takeover()`

// roundWorld is what the sessions of a run share.
type roundWorld struct {
	database *pgtest.DB
	cancel   context.CancelCauseFunc

	mu sync.Mutex
	// Where every owner had the log from: another owner, a reset ("reset to 05"), or nobody ("") if it began
	// the log itself, which is noted before it is tried.
	from map[string]string
	// The head at which an owner took the log, or the watermark at which it or a reset let the log begin.
	at       map[string]string
	names    int
	versions map[string]bool
	seen     db.CatchupBoundsRow // by anybody, last
	counts   map[string]int      // of what happened
	times    []time.Duration
}

// round is the time in which all sessions are at work.
type round struct {
	over chan struct{} // closed when the reinitialisers are done
}

// roundSession is one client, on one connection at a time.
type roundSession struct {
	*roundWorld
	kind string
	rand *rand.Rand
	conn *pgx.Conn
	work func(*roundSession, context.Context, round) error

	page     pagePosition
	newcomer *newcomer
	version  string // of the history seen last, and its head
	head     string
}

func TestRandomRounds(t *testing.T) {
	t.Parallel()

	seed, num := rand.Uint64(), fewRounds //nolint:gosec // a schedule is no secret
	if text := os.Getenv(seedEnv); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, seedEnv)
		seed = n
	}
	if text := os.Getenv(roundsEnv); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, roundsEnv)
		num = n
	}
	t.Logf("%s=%d", seedEnv, seed)

	database, conn := initialised(t)
	for _, setting := range []string{`deadlock_timeout = '50ms'`, `jit = off`} { // compiling takes longer than all else
		exec(t, conn, `alter database `+database.Name+` set `+setting)
	}
	exec(t, conn, takeovers)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	w := &roundWorld{
		database: database, cancel: cancel,
		from: map[string]string{}, at: map[string]string{"reset to " + version: version},
		versions: map[string]bool{version: true}, counts: map[string]int{}, seen: bounds(t, conn),
	}

	numSessions := uint64(0)
	sessions := func(n int, kind string, work func(*roundSession, context.Context, round) error) (all []*roundSession) {
		for range n {
			numSessions++
			random := rand.New(rand.NewPCG(seed, numSessions)) //nolint:gosec // a schedule is no secret
			all = append(all, &roundSession{roundWorld: w, kind: kind, rand: random, work: work})
		}
		return all
	}
	reinitialisers := sessions(2, "reinitialiser", (*roundSession).reinitialise)
	others := slices.Concat(
		sessions(2, "storer", (*roundSession).storeBatch),
		sessions(2, "storer in pieces", (*roundSession).storePieces),
		sessions(2, "reader of pages", (*roundSession).readPage),
		sessions(1, "reader of an old snapshot", (*roundSession).readOldSnapshot),
		sessions(2, "reader with a cursor", (*roundSession).readCursor),
		sessions(1, "reader in the wrong order", (*roundSession).readCursor),
		sessions(1, "purger", (*roundSession).purgeLog),
		sessions(1, "holder of the purge lock", (*roundSession).holdPurgeLock),
		sessions(1, "taker", (*roundSession).takeOver),
		sessions(2, "newcomer", (*roundSession).join),
		sessions(1, "condemner", (*roundSession).condemn),
		sessions(1, "reporter of progress", (*roundSession).reportProgress),
		sessions(1, "reporter of backups", (*roundSession).reportBackup),
		sessions(2, "restorer", (*roundSession).restore),
		sessions(1, "person who looks at status", (*roundSession).lookAtStatus),
	)
	defer func() {
		for _, s := range slices.Concat(reinitialisers, others) {
			s.disconnect()
		}
	}()

	for n := range num {
		r := round{over: make(chan struct{})}
		var working, first sync.WaitGroup
		for _, s := range others {
			working.Go(func() { s.loop(ctx, r) })
		}
		for _, s := range reinitialisers {
			first.Go(func() { s.once(ctx, r) })
		}
		first.Wait()
		close(r.over)
		working.Wait()
		require.NoError(t, context.Cause(ctx), "round %d, %s=%d", n, seedEnv, seed)
		require.NoError(t, w.check(ctx, conn), "after round %d, %s=%d", n, seedEnv, seed)
	}

	require.NotEmpty(t, w.times)
	slices.Sort(w.times)
	t.Logf("%d rounds; resets took %v (median), %v at most", num, w.times[len(w.times)/2], w.times[len(w.times)-1])
	for _, what := range slices.Sorted(maps.Keys(w.counts)) {
		t.Logf("%7d %s", w.counts[what], what)
	}
	// Else nothing was tested.
	require.Positive(t, w.counts["page"])
	require.Positive(t, w.counts["stored"]+w.counts["stored by copy"]+w.counts["stored in pieces"])
}

// A look from before a truncation must not pass for an empty log that is caught up: there is no state in it either.
func TestSnapshotFromBeforeAResetShowsNoState(t *testing.T) {
	t.Parallel()

	for name, again := range map[string]string{
		"initialised again": `select reinitialize_change_log('09', 'b/2')`,
		"reset":             `select ensure_replication_config('09', '{p}', '09', auto_reset => true)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			database, conn := owned(t)
			store(t, conn, batch("01", "02"))
			tx, err := database.Conn(t).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			require.NoError(t, err)
			exec(t, tx, `select from pg_class`)
			exec(t, conn, again)

			rows, err := tx.Query(t.Context(), roundsPage, "02", 2, 10)
			require.NoError(t, err)
			rows.Close()
			require.NoError(t, rows.Err())
			require.Zero(t, rows.CommandTag().RowsAffected())
			_, err = queries.CatchupBounds(t.Context(), tx)
			require.ErrorIs(t, err, pgx.ErrNoRows)
			_, err = queries.StreamStart(t.Context(), tx)
			require.ErrorIs(t, err, pgx.ErrNoRows)
			commit(t, tx)
		})
	}
}

// loop works until the round is over.
func (s *roundSession) loop(ctx context.Context, r round) {
	for ctx.Err() == nil {
		s.once(ctx, r)
		select {
		case <-r.over:
			return
		default:
		}
	}
}

// once works once. Whatever goes wrong in a way that is not expected ends the run.
func (s *roundSession) once(ctx context.Context, r round) {
	if err := s.connect(ctx); err != nil {
		s.fail(fmt.Errorf("connect: %w", err))
		return
	}
	err := s.work(s, ctx, r)
	if err == nil || ctx.Err() != nil {
		return
	}
	code := lost
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		code = pgErr.Code
	} else if !s.conn.IsClosed() {
		code = err.Error()
	}
	if !slices.Contains(mayFail[s.kind], code) {
		s.fail(err)
		return
	}
	s.count(s.kind + ": " + code)
	if !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I' {
		if _, err := s.conn.Exec(ctx, `rollback`); err != nil {
			s.count(s.kind + ": " + lost) // it was ended meanwhile
			s.disconnect()
		}
	}
}

func (s *roundSession) fail(err error) { s.cancel(fmt.Errorf("%s: %w", s.kind, err)) }

func (s *roundSession) connect(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	config, err := pgx.ParseConfig(s.database.URL)
	if err != nil {
		return err
	}
	config.RuntimeParams["search_path"] = pgtest.Schema
	config.RuntimeParams["application_name"] = roundsApp
	if !slices.Contains(mayFail[s.kind], adminShutdown) && s.kind != "reinitialiser" {
		config.RuntimeParams["application_name"] = "somebody else" // whom nothing may end
	}
	s.conn, err = pgx.ConnectConfig(ctx, config)
	return err
}

func (s *roundSession) disconnect() {
	if s.conn != nil {
		_ = s.conn.Close(context.Background())
	}
}

func (w *roundWorld) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// note says where an owner has the log from and at which head, should it get it.
func (w *roundWorld) note(owner, from, at string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from[owner], w.at[owner] = from, at
}

func (w *roundWorld) newOwner(task string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names++
	return fmt.Sprintf("%s/%d", task, w.names)
}

// newVersion is a version that no history has had, near a number.
func (w *roundWorld) newVersion(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.versions[lexi(n)] {
		n++
	}
	w.versions[lexi(n)] = true
	w.at["reset to "+lexi(n)] = lexi(n)
	return lexi(n)
}

func (s *roundSession) random(below time.Duration) time.Duration {
	return time.Duration(s.rand.Int64N(int64(below)))
}

// pause is a time in which the session does nothing, or what is left of the round.
func (s *roundSession) pause(r round, atMost time.Duration) {
	timer := time.NewTimer(s.random(atMost))
	defer timer.Stop()
	select {
	case <-r.over:
	case <-timer.C:
	}
}

// look reads the bounds, which are there at any time, and sees that the head has not fallen.
func (s *roundSession) look(ctx context.Context) (db.CatchupBoundsRow, error) {
	at, err := queries.CatchupBounds(ctx, s.conn)
	if err != nil {
		return at, fmt.Errorf("look at the bounds: %w", err)
	}
	return at, s.saw(at.ReplicaVersion, at.Minimum, at.Head)
}

func (s *roundSession) saw(version, minimum, head string) error {
	if minimum > head {
		return fmt.Errorf("the log begins at %s and ends at %s", minimum, head)
	}
	if version == s.version && head < s.head {
		return fmt.Errorf("the head fell from %s to %s", s.head, head)
	}
	s.version, s.head = version, head
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.ReplicaVersion, s.seen.Head = version, head
	return nil
}

// lexiNumber is a watermark as a number.
func lexiNumber(watermark string) int {
	n, err := strconv.ParseInt(watermark[1:], 36, 64)
	if err != nil {
		panic(err)
	}
	return int(n)
}

func cookiesOf(table string) string {
	return fmt.Sprintf(`{"tableMetadata": [{"schema": "s", "table": %q, "metadata": {}}]}`, table)
}

// reinitialise lets the log begin further on, or resets it to another history.
func (s *roundSession) reinitialise(ctx context.Context, r round) error {
	s.pause(r, 250*time.Millisecond)
	// What others saw will do: a look of its own could be in the way of the other one, and so be its end.
	s.mu.Lock()
	at := s.seen
	s.mu.Unlock()
	// Seldom nobody is ended: then readers are waited for, long enough that they have a chance to go.
	app, patience := new(roundsApp), s.random(100*time.Millisecond)
	if s.rand.IntN(10) == 0 {
		app, patience = nil, 3*time.Second
	}

	if s.rand.IntN(4) == 0 {
		n := 1 + s.rand.IntN(100)
		if s.rand.IntN(2) == 0 {
			n += lexiNumber(at.Head)
		}
		replica := s.newVersion(n)
		begun := time.Now()
		result := ""
		err := s.conn.QueryRow(ctx, `
			select result from ensure_replication_config($1, '{p}', $1, auto_reset => true, cookies => $2,
				terminate_app => $3, grace => $4, retry_every => $4)`,
			replica, cookiesOf("reset to "+replica), app, patience).Scan(&result)
		if err == nil && result != "reset" {
			err = fmt.Errorf("the reset was %s", result)
		}
		return s.done(err, "reset", begun)
	}

	owner, to := s.newOwner("r"), lexiNumber(at.Head)+s.rand.IntN(30)
	if s.rand.IntN(5) > 1 {
		to += 20_000 + s.rand.IntN(20_000) // past what is stored meanwhile
	}
	s.note(owner, "", lexi(to))
	begun := time.Now()
	result, err := queries.ReinitializeChangeLog(ctx, s.conn, db.ReinitializeChangeLogParams{
		Watermark: lexi(to), Owner: owner, Cookies: []byte(cookiesOf(owner)), TerminateApp: app,
		Grace: patience, RetryEvery: patience, MaxWait: time.Minute, ReplicaVersion: at.ReplicaVersion,
	})
	return s.done(err, result, begun)
}

func (s *roundSession) done(err error, result string, begun time.Time) error {
	if err != nil {
		return err
	}
	s.count(result)
	if result != "maintained" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.times = append(s.times, time.Since(begun))
	}
	return nil
}

// changesBy is a transaction whose messages tell who wrote them.
func changesBy(owner string, rows int) (positions []int64, changes [][]byte) {
	for pos := range rows {
		tag := "insert"
		switch pos {
		case 0:
			tag = "begin"
		case rows - 1:
			tag = "commit"
		}
		positions = append(positions, int64(pos))
		changes = append(changes, fmt.Appendf(nil, `{"tag":%q,"by":%q}`, tag, owner))
	}
	return positions, changes
}

// storeBatch stores as whoever owns the log, though it may lose it at any time.
func (s *roundSession) storeBatch(ctx context.Context, r round) error {
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	if at.Owner == "" {
		s.pause(r, 10*time.Millisecond)
		return nil
	}
	s.pause(r, 5*time.Millisecond)
	stored, err := s.storeTransactions(ctx, at, at.Head, 1+s.rand.IntN(3))
	if stored {
		s.count("stored")
	}
	return err
}

// storeTransactions stores so many that follow a position, and says whether there was one past the head.
func (s *roundSession) storeTransactions(ctx context.Context, at db.CatchupBoundsRow, expectedHead string, num int) (bool, error) {
	p := db.StoreChangesParams{Owner: at.Owner, ReplicaVersion: at.ReplicaVersion, ExpectedHead: expectedHead}
	for i := range num {
		positions, changes := changesBy(at.Owner, 2+s.rand.IntN(5))
		p.LastWatermark = lexi(lexiNumber(at.Head) + 1 + i)
		for pos := range positions {
			p.Watermarks = append(p.Watermarks, p.LastWatermark)
			p.Precommits = append(p.Precommits, "")
			if pos == len(positions)-1 {
				p.Precommits[len(p.Precommits)-1] = p.LastWatermark
			}
		}
		p.Positions, p.Changes = append(p.Positions, positions...), append(p.Changes, changes...)
	}
	row, err := queries.StoreChanges(ctx, s.conn, p)
	return row.Stored > 0, err
}

// storePieces stores one transaction in pieces, or by COPY.
func (s *roundSession) storePieces(ctx context.Context, r round) error {
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	if at.Owner == "" {
		s.pause(r, 10*time.Millisecond)
		return nil
	}
	if s.rand.IntN(2) == 0 {
		stored, err := s.storeByCopy(ctx, at, at.Head)
		if stored {
			s.count("stored by copy")
		}
		return err
	}
	decision, err := s.storeInPieces(ctx, r, at, at.Head)
	if decision == "store" {
		s.count("stored in pieces")
	}
	return err
}

// storeByCopy stores the transaction that follows a position.
func (s *roundSession) storeByCopy(ctx context.Context, at db.CatchupBoundsRow, expectedHead string) (bool, error) {
	w := lexi(lexiNumber(at.Head) + 1)
	positions, changes := changesBy(at.Owner, 2+s.rand.IntN(20))
	var lines strings.Builder
	for i, pos := range positions {
		precommit := `\N`
		if i == len(positions)-1 {
			precommit = w
		}
		fmt.Fprintf(&lines, "%s\t%d\t%s\t%s\n", w, pos, changes[i], precommit)
	}
	_, err := s.conn.PgConn().CopyFrom(ctx, strings.NewReader(lines.String()), fmt.Sprintf(`
		select store_open('%[1]s', '%[2]s', '%[3]s', '%[4]s');
		copy "changeLog" (watermark, pos, change, precommit) from stdin;
		select store_close('%[1]s', '%[2]s', '%[4]s')`, at.Owner, at.ReplicaVersion, expectedHead, w))
	return err == nil, err
}

// storeInPieces stores the transaction that follows a position. The decision is empty if it was rolled back.
func (s *roundSession) storeInPieces(ctx context.Context, r round, at db.CatchupBoundsRow, expectedHead string) (decision string, err error) {
	w := lexi(lexiNumber(at.Head) + 1)
	positions, changes := changesBy(at.Owner, 2+s.rand.IntN(20))
	precommits := make([]string, len(positions))
	precommits[len(positions)-1] = w
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return "", err
	}
	decision, err = queries.BeginTransaction(ctx, tx, db.BeginTransactionParams{
		Owner: at.Owner, ReplicaVersion: at.ReplicaVersion, ExpectedHead: expectedHead, Watermark: w,
	})
	if err != nil {
		return "", err
	}
	if decision == "skip" {
		return decision, tx.Rollback(ctx)
	}
	for piece := range slices.Chunk(positions, 8) {
		first, end := piece[0], piece[len(piece)-1]+1
		if _, err := queries.AppendChanges(ctx, tx, db.AppendChangesParams{
			Owner: at.Owner, ReplicaVersion: at.ReplicaVersion, Watermark: w,
			Positions: piece, Changes: changes[first:end], Precommits: precommits[first:end],
		}); err != nil {
			return "", err
		}
		s.pause(r, 20*time.Millisecond)
	}
	if _, err := queries.CommitTransaction(ctx, tx, db.CommitTransactionParams{
		Owner: at.Owner, ReplicaVersion: at.ReplicaVersion, LastWatermark: w,
	}); err != nil {
		return "", err
	}
	if s.rand.IntN(10) == 0 {
		return "", tx.Rollback(ctx)
	}
	return decision, tx.Commit(ctx)
}

// pagePosition is how far a reader of pages has come.
type pagePosition struct {
	version   string
	watermark string
	pos       int64
}

type pageOfRows struct {
	found                  bool // the state of the log
	minimum, head, version string
	rows                   []row
}

// readRows reads a page, and sees that it could be one.
func readRows(ctx context.Context, conn db.DBTX, after pagePosition, limit int) (p pageOfRows, err error) {
	rows, err := conn.Query(ctx, roundsPage, after.watermark, after.pos, limit)
	if err != nil {
		return p, err
	}
	var watermark, change, precommit, minimum, head, version *string
	var pos *int64
	_, err = pgx.ForEachRow(rows, []any{&watermark, &pos, &change, &precommit, &minimum, &head, &version}, func() error {
		if change == nil {
			if p.found {
				return errors.New("a page has two states")
			}
			p.found, p.minimum, p.head, p.version = true, *minimum, *head, *version
			return nil
		}
		row := row{Watermark: *watermark, Pos: *pos, Change: *change}
		if precommit != nil {
			row.Precommit = *precommit
		}
		p.rows = append(p.rows, row)
		return nil
	})
	if err != nil {
		return p, err
	}

	last := row{Watermark: after.watermark, Pos: after.pos}
	for _, row := range p.rows {
		if !p.found {
			return p, errors.New("a page has rows and no state")
		}
		if row.Watermark < p.minimum || row.Watermark > p.head {
			return p, fmt.Errorf("a page has %v, but the log has %s to %s", row, p.minimum, p.head)
		}
		if next := row.Watermark == last.Watermark && row.Pos == last.Pos+1; !next && (row.Pos != 0 || row.Watermark <= last.Watermark) {
			return p, fmt.Errorf("a page has %v after %v", row, last)
		}
		last = row
	}
	if p.found && len(p.rows) == 0 && after.watermark < p.head {
		return p, fmt.Errorf("nothing after %v, but the head is %s", after, p.head)
	}
	return p, nil
}

// readPage goes on where it was, as a subscription does.
func (s *roundSession) readPage(ctx context.Context, r round) error {
	if s.rand.IntN(8) == 0 {
		if _, err := queries.StreamStart(ctx, s.conn); err != nil {
			return fmt.Errorf("read where a stream starts: %w", err)
		}
		if _, err := queries.ChangeStreamerAddress(ctx, s.conn); err != nil {
			return err
		}
	}
	if s.page.version == "" || s.rand.IntN(50) == 0 {
		at, err := s.look(ctx)
		if err != nil {
			return err
		}
		s.page = pagePosition{at.ReplicaVersion, at.Minimum, 1 << 40}
	}
	s.count("page")
	p, err := readRows(ctx, s.conn, s.page, 20)
	if err != nil {
		return err
	}
	if !p.found {
		return errors.New("a page has no state")
	}
	if err := s.saw(p.version, p.minimum, p.head); err != nil {
		return err
	}
	switch {
	case p.version != s.page.version || s.page.watermark < p.minimum:
		// The subscription ends: it restores a replica, or is too old.
		s.page.version = ""
		s.count("page of no use")
	case len(p.rows) > 0:
		last := p.rows[len(p.rows)-1]
		s.page.watermark, s.page.pos = last.Watermark, last.Pos
	default:
		s.count("caught up")
		s.pause(r, 20*time.Millisecond)
	}
	return nil
}

// readOldSnapshot reads with a snapshot that is older than its first look at the log.
func (s *roundSession) readOldSnapshot(ctx context.Context, r round) error {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `select from pg_class limit 1`); err != nil {
		return err
	}
	s.pause(r, 400*time.Millisecond)
	start := pagePosition{watermark: "0"}
	p, err := readRows(ctx, tx, start, 1)
	switch {
	case err != nil:
		return err
	case !p.found:
		// readRows has seen that there are no rows either.
		s.count("snapshot from before a reset")
	case len(p.rows) == 0 || p.rows[0].Watermark != p.minimum:
		return fmt.Errorf("the log begins at %s, the first row is %v", p.minimum, p.rows)
	default:
		s.pause(r, 100*time.Millisecond)
		again, err := readRows(ctx, tx, start, 1)
		if err != nil {
			return err
		}
		if again.minimum != p.minimum || again.head != p.head || again.version != p.version {
			return fmt.Errorf("a snapshot showed %v, then %v", p, again)
		}
	}
	return tx.Commit(ctx)
}

// readCursor holds a cursor for a while and sits idle in its transaction.
func (s *roundSession) readCursor(ctx context.Context, r round) error {
	s.pause(r, 50*time.Millisecond)
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	const state = `select "lastWatermark" from "replicationState"`
	statements := []string{
		`declare c cursor for select * from "changeLog" order by watermark, pos`, `fetch 50 from c`, `fetch 500 from c`,
	}
	if s.kind == "reader in the wrong order" {
		statements = append(statements, state)
	} else if s.rand.IntN(2) == 0 {
		statements = append([]string{state}, statements...)
	}
	for _, statement := range statements {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
		s.pause(r, 450*time.Millisecond)
	}
	return tx.Commit(ctx)
}

// purgeLog purges as whoever owns the log.
func (s *roundSession) purgeLog(ctx context.Context, r round) error {
	s.pause(r, 30*time.Millisecond)
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	// Some of the log stays now and then: whoever is a little behind goes on reading.
	before := lexi(max(1, lexiNumber(at.Head)-s.rand.IntN(8)))
	if s.rand.IntN(5) == 0 {
		before = "99"
	}
	version := new(at.ReplicaVersion)
	if s.rand.IntN(2) == 0 {
		version = nil
	}
	for range 10 {
		var deleted int64
		var done bool
		err = s.conn.QueryRow(ctx, `
			select deleted, done from purge_change_log($1, nullif($2, ''), max_rows => $3, replica_version => $4)`,
			before, at.Owner, 1+s.rand.IntN(200), version).Scan(&deleted, &done)
		if err != nil {
			return err
		}
		if deleted > 0 {
			s.count("purged")
		}
		if done {
			break
		}
	}
	return nil
}

// holdPurgeLock holds the purge lock as a newcomer does: so long, nothing of the log is lost.
func (s *roundSession) holdPurgeLock(ctx context.Context, r round) error {
	s.pause(r, time.Second)
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	var slot *string
	switch s.rand.IntN(3) {
	case 0:
		slot = new(at.Head)
	case 1:
		slot = new(lexi(lexiNumber(at.Head) + s.rand.IntN(3)))
	}
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	lock, err := queries.AcquirePurgeLock(ctx, tx, slot)
	if err != nil {
		return err
	}
	switch lock.Status {
	case "behind-slot":
		if slot == nil {
			return errors.New("behind a slot that was not given")
		}
		s.count("purge lock behind a slot")
		return tx.Rollback(ctx)
	case "empty":
		return errors.New("the log is empty")
	}
	for range 3 {
		now, err := queries.CatchupBounds(ctx, tx)
		if err != nil {
			return err
		}
		if now.Minimum != lock.Minimum || now.ReplicaVersion != lock.ReplicaVersion {
			return fmt.Errorf("locked %v, and the log is %v", lock, now)
		}
		s.pause(r, 60*time.Millisecond)
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	s.count("purge lock held")
	return nil
}

// takeOver takes the log from the owner that it sees.
func (s *roundSession) takeOver(ctx context.Context, r round) error {
	s.pause(r, 200*time.Millisecond)
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	expected := new(at.Owner)
	if at.Owner == "" {
		expected = nil
	}
	row, err := queries.AssumeOwnership(ctx, s.conn, db.AssumeOwnershipParams{
		Owner: s.newOwner("t"), ReplicaVersion: at.ReplicaVersion, Expected: expected,
	})
	if err == nil && row.Assumed {
		s.count("taken over")
	}
	return err
}

// newcomer is an incarnation that is about to take the log over.
type newcomer struct {
	owner     string
	version   string // of the history that it has joined, and its head then
	head      string
	next      int // what its own stream brings next
	announced bool
}

// join goes on with a newcomer, from its registration to its take-over. Its own stream has begun at the head of then or a
// little before, and what it brings is left out as long as others are quicker.
func (s *roundSession) join(ctx context.Context, r round) error {
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	near := max(1, lexiNumber(at.Head)-s.rand.IntN(3))
	if s.newcomer == nil {
		n := newcomer{owner: s.newOwner("n"), version: at.ReplicaVersion, head: at.Head, next: near}
		if _, err := queries.RegisterStreamer(ctx, s.conn, db.RegisterStreamerParams{
			TaskID: "n", Owner: n.owner, OwnerAddress: new(n.owner), SlotPrefix: new("n_"),
		}); err != nil {
			return err
		}
		s.newcomer = &n
	}
	if at.ReplicaVersion == s.newcomer.version {
		s.newcomer.next = max(s.newcomer.next, near) // what it does not bring is in the log
	}
	took, err := s.bring(ctx, r, s.newcomer)
	_, refused := errors.AsType[*pgconn.PgError](err)
	if took {
		s.count("newcomer took over")
	}
	if took || refused && !s.conn.IsClosed() {
		s.newcomer = nil // else it is not known what has become of it, so it goes on
		s.pause(r, 100*time.Millisecond)
	}
	return err
}

// bring says now and then that the newcomer lives, stores what its stream brings next, and answers whether that was past
// the head.
func (s *roundSession) bring(ctx context.Context, r round, n *newcomer) (took bool, err error) {
	if !n.announced || s.rand.IntN(10) == 0 {
		if err := queries.AnnounceTakeover(ctx, s.conn, db.AnnounceTakeoverParams{
			Owner: n.owner, ReplicaVersion: n.version,
		}); err != nil {
			return false, err
		}
		n.announced = true
	}
	from := db.CatchupBoundsRow{Owner: n.owner, ReplicaVersion: n.version, Head: lexi(n.next - 1)}
	num := 1
	switch s.rand.IntN(4) {
	case 0:
		num += s.rand.IntN(3)
		took, err = s.storeTransactions(ctx, from, n.head, num)
	case 1:
		took, err = s.storeByCopy(ctx, from, n.head)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == sql.CodeAlreadyStored {
			err = nil
		}
	case 2:
		var decision string
		decision, err = s.storeInPieces(ctx, r, from, n.head)
		took = decision == "store"
		if decision == "" {
			num = 0 // it comes again
		}
	default:
		num = 0
		took, err = queries.AssumeOwnershipAtHead(ctx, s.conn, db.AssumeOwnershipAtHeadParams{
			Owner: n.owner, OwnerAddress: new(n.owner), ReplicaVersion: n.version, Watermark: from.Head,
		})
	}
	if err == nil {
		n.next += num
	}
	return took, err
}

// condemn bars a newcomer, as whoever owns the log.
func (s *roundSession) condemn(ctx context.Context, r round) error {
	s.pause(r, 500*time.Millisecond)
	if s.rand.IntN(4) > 0 {
		return nil
	}
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	if _, err := queries.DeadStreamers(ctx, s.conn, at.Owner); err != nil {
		return err
	}
	var id int64
	// Most likely it lives: those before have come to an end.
	err = s.conn.QueryRow(ctx, `
		select id from streamer where state in ('starting', 'pending') order by id desc offset $1 limit 1`, s.rand.IntN(2)).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := queries.CondemnStreamer(ctx, s.conn, db.CondemnStreamerParams{
		ID: id, Owner: at.Owner, ReplicaVersion: at.ReplicaVersion,
	}); err != nil {
		return err
	}
	s.count("newcomer condemned")
	return nil
}

func (s *roundSession) reportProgress(ctx context.Context, r round) error {
	s.pause(r, 50*time.Millisecond)
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	_, err = queries.ReportProgress(ctx, s.conn, db.ReportProgressParams{
		Owner: at.Owner, ReplicaVersion: at.ReplicaVersion, StreamedWatermark: at.Head,
	})
	return err
}

func (s *roundSession) reportBackup(ctx context.Context, r round) error {
	s.pause(r, 50*time.Millisecond)
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	return queries.ReportBackup(ctx, s.conn, db.ReportBackupParams{
		Watermark: lexi(max(lexiNumber(at.ReplicaVersion), lexiNumber(at.Head)-s.rand.IntN(10))), ReplicaVersion: at.ReplicaVersion,
		At: time.Now(),
	})
}

// restore reserves what it restores. What it was told to restore stays, as long as the log goes on and has its owner.
func (s *roundSession) restore(ctx context.Context, r round) error {
	s.pause(r, 200*time.Millisecond)
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	opened, err := queries.OpenReservation(ctx, s.conn, db.OpenReservationParams{
		Owner: at.Owner, ReplicaVersion: at.ReplicaVersion, TaskID: fmt.Sprintf("%p", s),
	})
	if err != nil {
		return err
	}
	s.pause(r, 50*time.Millisecond)
	w := max(opened.Watermark, at.Minimum)
	confirmed, err := queries.ConfirmReservation(ctx, s.conn, db.ConfirmReservationParams{ID: opened.ID, Watermark: w})
	if err != nil {
		return err
	}
	if confirmed {
		s.count("reservation confirmed")
	}
	s.pause(r, 100*time.Millisecond)
	_, err = queries.CloseReservation(ctx, s.conn, opened.ID)
	return err
}

func (s *roundSession) lookAtStatus(ctx context.Context, r round) error {
	s.pause(r, 50*time.Millisecond)
	rows, err := s.conn.Query(ctx, `select head, minimum, replica_version from status cross join (select from lock_holders()) as h`)
	if err != nil {
		return err
	}
	var head, minimum, version string
	_, err = pgx.ForEachRow(rows, []any{&head, &minimum, &version}, func() error { return nil })
	return err
}

// learn reads who has taken the log from whom.
func (w *roundWorld) learn(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
		with t as (delete from public.takeover returning *)
		select t.owner, t.previous, coalesce(t.state, ''), t.head, coalesce(r.id, 0), coalesce(p.id, 0)
		from t
		left join streamer as r on r.owner = t.owner
		left join streamer as p on p.owner = t.previous
		order by t.id`)
	if err != nil {
		return err
	}
	var owner, previous, state, head string
	var id, previousID int64
	_, err = pgx.ForEachRow(rows, []any{&owner, &previous, &state, &head, &id, &previousID}, func() error {
		if id != 0 && (id <= previousID || state != "pending") {
			return fmt.Errorf("%s, no. %d and %s, took the log from %s, no. %d", owner, id, state, previous, previousID)
		}
		w.note(owner, previous, head)
		return nil
	})
	return err
}

// checkStreamers sees that the owner is the only one, and is barred from nothing.
func checkStreamers(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
		select s.owner, r.owner, r.state
		from "replicationState" as s
		join streamer as r on (r.owner = s.owner) <> (r.state = 'owner')`)
	if err != nil {
		return err
	}
	var owner, name, state string
	_, err = pgx.ForEachRow(rows, []any{&owner, &name, &state}, func() error {
		return fmt.Errorf("%s owns the log, and the state of %s is %s", owner, name, state)
	})
	return err
}

// check looks at the log when nobody is at work.
func (w *roundWorld) check(ctx context.Context, conn *pgx.Conn) error {
	if err := errors.Join(w.learn(ctx, conn), checkStreamers(ctx, conn)); err != nil {
		return err
	}
	var version, head, owner, purged, table string
	err := conn.QueryRow(ctx, `
		select c."replicaVersion", s."lastWatermark", coalesce(s.owner, ''), coalesce(p.purged_watermark, ''),
			coalesce((select m."table" from "tableMetadata" m), '')
		from "replicationState" s
		cross join "replicationConfig" c
		left join progress p on p.replica_version = c."replicaVersion"`).Scan(&version, &head, &owner, &purged, &table)
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `
		select watermark, pos, change ->> 'tag', coalesce(change ->> 'by', '') from "changeLog" order by watermark, pos`)
	if err != nil {
		return err
	}
	// Precommit is the writer here.
	log, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return err
	}

	// Those who may have written: who let the log begin, whoever had it from there, and so on to the owner.
	beginner := owner
	if owner == "" {
		beginner = "reset to " + version
	}
	writers := []string{beginner}
	for w.from[beginner] != "" {
		beginner = w.from[beginner]
		writers = append([]string{beginner}, writers...)
	}
	begin, known := w.at[beginner]
	switch {
	case !known:
		return fmt.Errorf("owner %q has the log from %q, who did not let it begin", owner, beginner)
	case table != beginner && table != "":
		return fmt.Errorf("%s let the log begin, the cookies are of %s", beginner, table)
	case len(log) == 0:
		return errors.New("the log is empty")
	case log[len(log)-1].Watermark != head:
		return fmt.Errorf("the head is %s, the log ends at %v", head, log[len(log)-1])
	case purged > log[0].Watermark:
		return fmt.Errorf("purged before %s, the log begins at %v", purged, log[0])
	}

	last := row{Change: "commit"}
	for i, row := range log {
		switch {
		case row.Watermark < begin:
			return fmt.Errorf("%v is older than the log, which began at %s", row, begin)
		case last.Change == "commit" && (row.Pos != 0 || row.Change != "begin" || i > 0 && row.Watermark != lexi(lexiNumber(last.Watermark)+1)),
			last.Change != "commit" && (row.Watermark != last.Watermark || row.Pos != last.Pos+1):
			return fmt.Errorf("%v comes after %v", row, last)
		}
		last = row
		if row.Precommit == "" {
			if row.Watermark != begin || i > 1 {
				return fmt.Errorf("seed %v is no. %d of a log that began at %s", row, i, begin)
			}
			continue
		}
		// Each wrote what is past the head at which it took the log, up to where the next one took it.
		i := slices.Index(writers, row.Precommit)
		if i < 0 || row.Watermark <= w.at[writers[i]] || i < len(writers)-1 && row.Watermark > w.at[writers[i+1]] {
			return fmt.Errorf("%v was not written by who had the log then: %q", row, writers)
		}
	}
	if last.Change != "commit" {
		return fmt.Errorf("the log ends with %v", last)
	}
	return nil
}
