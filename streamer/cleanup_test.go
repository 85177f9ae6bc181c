package streamer_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"millrace/streamer/client"
)

const minimumOf = `select minimum from cdc.status`

// TestRetention keeps two seconds of the log, or some of its bytes, and whatever a
// connected subscriber has not acked.
func TestRetention(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		age   time.Duration
		bytes int64
	}{
		"by age":  {age: 2 * time.Second},
		"by size": {age: -1, bytes: 20_000},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, conn := shop(t)
			cfg := rigConfig(db)
			cfg.Retention, cfg.RetentionBytes, cfg.CleanupEvery = tt.age, tt.bytes, 100*time.Millisecond
			serving(t, cfg)
			version := replicaVersionOf(t, conn)
			keepBusy(t, db)
			becomes(t, endurance, true, conn, `select minimum > replica_version from cdc.status`)
			becomes(t, endurance, "retention", conn, `select floor_holder from cdc.status`)
			first := tell[string](t, conn, minimumOf)
			becomes(t, endurance, true, conn, `select minimum > $1 from cdc.status`, first)
			require.True(t, tell[bool](t, conn, `select minimum < head and floor_watermark <= head from cdc.status`))
			require.Equal(t, version, replicaVersionOf(t, conn))
		})
	}
}

// TestSubscriberHoldsBackThePurge acks nothing for a while.
func TestSubscriberHoldsBackThePurge(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	cfg.Retention, cfg.CleanupEvery = time.Second, 100*time.Millisecond
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	raw := subscribed(t, r.address, version, version)
	keepBusy(t, db)
	becomes(t, endurance, "subscriber test/raw of task test", conn, `select floor_holder from cdc.status`)
	becomes(t, endurance, true, conn, `select exists (select from cdc.retention_mark where marked_at < now() - interval '2 seconds')`)
	require.Equal(t, version, tell[string](t, conn, minimumOf), "nothing is purged")

	reads := make(chan struct{})
	go func() { // it takes everything from now on
		defer close(reads)
		for id := 1; ; id++ {
			if _, _, err := raw.ReadMessage(); err != nil {
				return
			}
			if raw.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"ack":%d}`, id)) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = raw.Close()
		<-reads
	})
	becomes(t, endurance, true, conn, `select minimum > replica_version from cdc.status`)
}

// TestReservation restores a backup slowly, while the log is purged behind newer ones.
func TestReservation(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	cfg.BackupURL, cfg.CleanupEvery = "s3://bucket/replica", 100*time.Millisecond
	r := serving(t, cfg)
	version := replicaVersionOf(t, conn)
	c := items()
	put(t, c, conn, 1)
	put(t, c, conn, 2)
	becomes(t, endurance, 3, conn, `select count(distinct watermark)::int from cdc."changeLog"`)
	marks := tell[[]string](t, conn, `select array_agg(distinct watermark order by watermark) from cdc."changeLog"`)

	slow := reserved(t, r.address, "slow")
	held := tell[bool](t, conn, `select exists (select from cdc.reservation where watermark is null)`)
	require.True(t, held, "nothing is backed up yet")
	require.Equal(t, version, tell[string](t, conn, minimumOf))
	require.True(t, tell[bool](t, conn, `
		select confirmed_flush_lsn <= '0/0'::pg_lsn + $1::numeric
		from pg_replication_slots where database = current_database()`, lsnOf(t, marks[0])+1), "upstream keeps what is not backed up")

	do(t, conn, `select cdc.report_backup($1, $2)`, marks[1], version)
	require.Equal(t, `{"id":1,"msg":["status",{"tag":"status","backupURL":"s3://bucket/replica","replicaVersion":"`+version+
		`","minWatermark":"`+marks[1]+`"}]}`, says(t, slow))
	require.NoError(t, slow.WriteMessage(websocket.TextMessage, []byte(`{"ack":1}`)))
	becomes(t, endurance, marks[1], conn, minimumOf)
	becomes(t, endurance, true, conn, `
		select confirmed_flush_lsn = '0/0'::pg_lsn + $1::numeric
		from pg_replication_slots where database = current_database()`, lsnOf(t, marks[1])+1)

	do(t, conn, `select cdc.report_backup($1, $2)`, marks[2], version)
	becomes(t, endurance, marks[2], conn, `select floor_watermark from cdc.status`)
	require.Equal(t, marks[1], tell[string](t, conn, minimumOf), "it is still restoring")
	require.Equal(t, 1, tell[int](t, conn, `select num_reservations::int from cdc.status`))

	parameters := wants(version, marks[1])
	parameters.Set("taskID", "slow")
	granted, status, err := upgrade(t.Context(), r.address, parameters)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, status, "it is not too old")
	t.Cleanup(func() { _ = granted.Close() })
	require.NoError(t, closesPlainly(slow))
	require.Equal(t, 0, tell[int](t, conn, `select num_reservations::int from cdc.status`))
}

func TestReservationIsReplacedOrTooOld(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	cfg.BackupURL, cfg.ReservationMaxAge = "file:///backup", 2*time.Second
	r := serving(t, cfg)
	first := reserved(t, r.address, "task")
	second := reserved(t, r.address, "task")
	require.NoError(t, closesPlainly(first))
	require.Equal(t, 1, tell[int](t, conn, `select num_reservations::int from cdc.status`), "the newer one stands")
	require.NoError(t, closesPlainly(second))
	becomes(t, endurance, 0, conn, `select num_reservations::int from cdc.status`)
	third := reserved(t, r.address, "task")
	require.Equal(t, 1, tell[int](t, conn, `select num_reservations::int from cdc.status`))
	require.NoError(t, third.Close())
	becomes(t, endurance, 0, conn, `select num_reservations::int from cdc.status`)
}

// reserved asks for a reservation, which must be granted.
func reserved(t *testing.T, address, taskID string) *websocket.Conn {
	t.Helper()
	target := url.URL{Scheme: "ws", Host: address, Path: "/replication/v6/snapshot", RawQuery: url.Values{"taskID": {taskID}}.Encode()}
	conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), target.String(), nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestBackupAtRest: what was shown without anything published counts as backed up.
func TestBackupAtRest(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	cfg.BackupURL = "file:///backup"
	serving(t, cfg)
	version := replicaVersionOf(t, conn)
	c := items()
	f := follow(t, c, "patient", found(t, db.URL, "cdc"), client.Position{ReplicaVersion: version, Watermark: version}, nil)
	put(t, c, conn, 1)
	arrive(t, c, f)
	becomes(t, endurance, true, conn, `select streamed_watermark > head from cdc.status`)
	require.True(t, tell[bool](t, conn, `
		select cdc.encode_watermark(confirmed_flush_lsn) <= s.head
		from pg_replication_slots cross join cdc.status as s where database = current_database()`))
	do(t, conn, `select cdc.report_backup(head, replica_version) from cdc.status`)
	becomes(t, endurance, true, conn, `
		select cdc.encode_watermark(confirmed_flush_lsn) > s.head
		from pg_replication_slots cross join cdc.status as s where database = current_database()`)
}

// TestSlotsStayUntilTheBackupIsThere hands the log over: the old slot has what the backup
// lacks.
func TestSlotsStayUntilTheBackupIsThere(t *testing.T) {
	t.Parallel()
	db, conn := shop(t)
	cfg := rigConfig(db)
	cfg.BackupURL, cfg.SlotWait = "file:///backup", time.Millisecond
	first := serving(t, cfg)
	next := serving(t, cfg)
	require.NoError(t, first.end(t, noticed))
	becomes(t, endurance, "owner", conn, `select owner_state from cdc.status`)
	breathe(3 * time.Second) // it has looked by then, twice
	require.Equal(t, 2, tell[int](t, conn, slotsOf))
	do(t, conn, `select cdc.report_backup(greatest(head, streamed_watermark), replica_version) from cdc.status`)
	becomes(t, endurance, 1, conn, slotsOf)
	require.Eventually(t, func() bool { return strings.Contains(next.log.String(), "dropped the slot of a dead streamer") },
		endurance, glimpse)
}
