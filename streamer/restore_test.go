package streamer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer"
	"millrace/streamer/client"
)

// backedUp is a streamer whose log begins at a backup, at the second of three commits.
func backedUp(t *testing.T) (db *pgtest.DB, conn *pgx.Conn, backup client.Position, cfg streamer.Config) {
	t.Helper()
	db, conn = shop(t)
	cfg = rigConfig(db)
	cfg.BackupURL, cfg.CleanupEvery = "file:///backup", 50*time.Millisecond
	r := serving(t, cfg)
	for id := range 3 {
		do(t, conn, `insert into public.item values ($1)`, id)
	}
	becomes(t, endurance, 4, conn, `select count(distinct watermark)::int from cdc."changeLog"`)
	backup.ReplicaVersion = replicaVersionOf(t, conn)
	backup.Watermark = tell[[]string](t, conn, `select array_agg(distinct watermark order by watermark) from cdc."changeLog"`)[2]
	do(t, conn, `select cdc.report_backup($1, $2)`, backup.Watermark, backup.ReplicaVersion)
	becomes(t, endurance, backup.Watermark, conn, minimumOf)
	r.stop(t)
	serving(t, cfg) // what was before is in no tail either
	return db, conn, backup, cfg
}

// restoring is a client that restores, and tells of the first commit it gets.
func restoring(t *testing.T, db *pgtest.DB, at client.Position, restore func(client.Restore) (client.Position, error)) (commits chan string, ended chan error) {
	t.Helper()
	commits, ended = make(chan string, 100), make(chan error, 1)
	over := make(chan struct{})
	c, err := client.New(client.Config{
		Discover: found(t, db.URL, "cdc"), TaskID: "restorer",
		ReplicaVersion: at.ReplicaVersion, Watermark: at.Watermark, BackoffMax: 100 * time.Millisecond,
		Restore: func(_ context.Context, r client.Restore) (client.Position, error) { return restore(r) },
		Handler: func(_ context.Context, m client.Message) error {
			if m.Kind == client.Commit {
				commits <- m.Watermark
			}
			return nil
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(over)
		ended <- c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	return commits, ended
}

// TestClientRestores starts from nothing, and from a position that the log no longer has.
func TestClientRestores(t *testing.T) {
	t.Parallel()
	db, conn, backup, _ := backedUp(t)
	for name, at := range map[string]client.Position{
		"from nothing":          {},
		"from a lost position":  {ReplicaVersion: backup.ReplicaVersion, Watermark: backup.ReplicaVersion},
		"from a lost history":   {ReplicaVersion: "00", Watermark: "00"},
		"with an older replica": {},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			commits, _ := restoring(t, db, at, func(r client.Restore) (client.Position, error) {
				if r != (client.Restore{BackupURL: "file:///backup", ReplicaVersion: backup.ReplicaVersion, MinWatermark: backup.Watermark}) {
					return client.Position{}, errors.New("it is told something else")
				}
				if tell[int](t, conn, `select num_reservations::int from cdc.status`) != 1 {
					return client.Position{}, errors.New("nothing is reserved")
				}
				if calls.Add(1) == 1 && name == "with an older replica" {
					return client.Position{ReplicaVersion: backup.ReplicaVersion, Watermark: backup.ReplicaVersion}, nil
				}
				return backup, nil
			})
			select {
			case got := <-commits:
				require.Equal(t, tell[string](t, conn, `select head from cdc.status`), got, "the third commit, and nothing before")
			case <-time.After(endurance):
				require.FailNow(t, "nothing arrives")
			}
			want := int32(1)
			if name == "with an older replica" {
				want = 2
			}
			require.Equal(t, want, calls.Load())
			becomes(t, endurance, 0, conn, `select num_reservations::int from cdc.status`)
		})
	}
}

func TestClientThatCannotRestore(t *testing.T) {
	t.Parallel()
	db, conn, backup, _ := backedUp(t)
	failure := errors.New("the disk is full")
	_, ended := restoring(t, db, client.Position{}, func(client.Restore) (client.Position, error) {
		return client.Position{}, failure
	})
	require.ErrorIs(t, <-ended, failure)
	becomes(t, endurance, 0, conn, `select num_reservations::int from cdc.status`)

	plain, _ := shop(t)
	serving(t, rigConfig(plain))
	_, ended = restoring(t, plain, client.Position{}, func(client.Restore) (client.Position, error) { return backup, nil })
	err := <-ended
	require.ErrorIs(t, err, client.ErrPermanent)
	require.ErrorContains(t, err, "--backup-url")
}
