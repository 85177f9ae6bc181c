package streamer_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/client"
	"millrace/streamer/watermark"
)

// noticed is how long an owner may take to notice that it is none any more: it looks every
// 5 s, and machines are slow.
const noticed = 25 * time.Second

// TestOwnershipIsTakenAway takes the log away from a streamer in SQL. It must go in peace.
func TestOwnershipIsTakenAway(t *testing.T) {
	t.Parallel()
	ways := map[string]string{
		"by force": `select assumed from cdc.assume_ownership('person/1', 'nowhere:1',
			(select "replicaVersion" from cdc."replicationConfig"), null, force => true)`,
		"by a reset": `select result = 'reset' from cdc.ensure_replication_config('zzzz', '{elsewhere}', 'zzzz', auto_reset => true)`,
	}
	for name, way := range ways {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, busy %t", name, busy), func(t *testing.T) {
				t.Parallel()
				db, conn := shop(t)
				r := serving(t, rigConfig(db))
				version := replicaVersionOf(t, conn)
				raw := subscribed(t, r.address, version, version)
				if busy {
					keepBusy(t, db)
					becomes(t, endurance, true, conn, `select head > $1 from cdc.status`, version)
				}
				require.True(t, tell[bool](t, conn, way))
				head := tell[string](t, conn, `select head from cdc.status`)

				require.NoError(t, closesPlainly(raw))
				require.NoError(t, r.end(t, noticed), "a clean end")
				require.Contains(t, r.log.String(), "the log is no longer ours")
				require.Equal(t, 1, tell[int](t, conn, slotsOf), "it drops no slot")
				require.Equal(t, head, tell[string](t, conn, `select head from cdc.status`), "it stores nothing more")
				require.NotContains(t, tell[string](t, conn, `select coalesce(owner, '') from cdc.status`), "task/")
			})
		}
	}
}

// keepBusy commits rows of table item until the test ends.
func keepBusy(t *testing.T, db *pgtest.DB) {
	t.Helper()
	conn := db.Conn(t)
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for id := 1_000_000; !stop.Load(); id++ {
			if _, err := conn.Exec(context.Background(), `insert into public.item values ($1)`, id); err != nil {
				return // what is missing is noticed
			}
			breathe(time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		stop.Store(true)
		<-ended
	})
}

// TestPersonHandsTheLogBack parks the log under a person's name, with the slot, and lets a
// streamer go on from there.
func TestPersonHandsTheLogBack(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	r := serving(t, rigConfig(db))
	version := replicaVersionOf(t, conn)
	c := items()
	f := follow(t, c, "patient", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	put(t, c, conn, 1)
	arrive(t, c, f)
	do(t, conn, `select cdc.register_streamer('person', 'person/1', 'nowhere:1')`)
	require.True(t, tell[bool](t, conn, `
		select o.assumed
		from cdc.status as s
		cross join cdc.assume_ownership('person/1', null, s.replica_version, s.owner, slot => s.slot) as o`))
	require.NoError(t, r.end(t, noticed))
	put(t, c, conn, 2)
	serving(t, rigConfig(db))
	put(t, c, conn, 3)
	arrive(t, c, f)
	require.Equal(t, 1, tell[int](t, conn, slotsOf))
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	refused := func(replicaVersion, watermark, want string) {
		t.Helper()
		raw := subscribed(t, r.address, replicaVersion, watermark)
		require.Equal(t, `{"id":1,"msg":["error",`+want+`]}`, says(t, raw))
		require.NoError(t, raw.WriteMessage(1, []byte(`{"ack":1}`)))
		require.NoError(t, raw.Close())
	}
	refused("aaaa", version, fmt.Sprintf(`{"type":1,"message":"current replica version is %s (requested aaaa)"}`, version))
	refused(version, "100", fmt.Sprintf(`{"type":2,"message":"earliest supported watermark is %s (requested 100)"}`, version))

	// Old rows are deleted. The positions before them are in no tail after a restart.
	for i := range 5 {
		do(t, conn, `insert into public.item values ($1)`, i)
	}
	becomes(t, endurance, 6, conn, `select count(distinct watermark)::int from cdc."changeLog"`)
	r.stop(t)
	marks := tell[[]string](t, conn, `select array_agg(distinct watermark order by watermark) from cdc."changeLog"`)
	do(t, conn, `delete from cdc."changeLog" where watermark < $1 collate "C"`, marks[3])
	r = serving(t, cfg)
	refused(version, marks[2], fmt.Sprintf(`{"type":2,"message":"earliest supported watermark is %s (requested %s)"}`, marks[3], marks[2]))
	granted := subscribed(t, r.address, version, marks[3])
	require.Contains(t, says(t, granted), `["status",`)
	require.Contains(t, says(t, granted), `{"commitWatermark":"`+marks[4]+`"}`)

	// Whoever is ahead of the log is served from there.
	head := tell[string](t, conn, `select head from cdc.status`)
	ahead := subscribed(t, r.address, version, watermark.WithMinor(head, 7))
	require.Contains(t, says(t, ahead), `["status",`)
	do(t, conn, `insert into public.item values (100)`)
	require.Contains(t, says(t, ahead), `["begin",`)
	require.Contains(t, says(t, ahead), `"new":{"id":100,`)

	// Whoever lost the log refuses nobody for good: it does not know any more.
	require.True(t, tell[bool](t, conn, `select assumed from cdc.assume_ownership('person/1', 'nowhere:1', $1, null, force => true)`, version))
	for _, request := range [][2]string{{"aaaa", version}, {version, marks[0]}} {
		_, status, err := upgrade(t.Context(), r.address, wants(request[0], request[1]))
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, status)
	}
	require.NoError(t, granted.Close())
	require.NoError(t, ahead.Close())
	require.NoError(t, r.end(t, noticed))
}

// TestIdlePublicationHoldsNoWAL writes WAL that has nothing to do with the publication. The
// slot must move on all the same, and never past what is recorded.
func TestIdlePublicationHoldsNoWAL(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	do(t, conn, `create publication quiet for table public.item`)
	do(t, conn, `create table public.noise (n int)`)
	cfg.Publications = []string{"quiet"}
	serving(t, cfg)
	head := tell[string](t, conn, `select head from cdc.status`)
	for range 5 {
		do(t, conn, `insert into public.noise select generate_series(1, 1000)`)
		target := tell[string](t, conn, `select pg_current_wal_insert_lsn()::text`)
		becomes(t, 30*time.Second, true, conn, `
			select confirmed_flush_lsn > $1::text::pg_lsn
			from pg_replication_slots where database = current_database()`, target)
	}
	require.Equal(t, head, tell[string](t, conn, `select head from cdc.status`), "nothing is stored for it")
	require.True(t, covered(t, conn))
}

// covered says whether the slot is confirmed at most up to what the log is known to hold.
func covered(t *testing.T, conn *pgx.Conn) bool {
	t.Helper()
	confirmed := tell[int64](t, conn, `
		select confirmed_flush_lsn - '0/0' from pg_replication_slots
		where database = current_database() and slot_name like 'millrace%'`)
	return tell[bool](t, conn, `select greatest(head, streamed_watermark) >= $1 collate "C" from cdc.status`,
		watermark.Encode(uint64(confirmed-1))) //nolint:gosec // an LSN
}
