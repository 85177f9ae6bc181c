package changelog_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/streamer/changelog"
)

func (f *fixture) ledger() *changelog.Ledger {
	f.t.Helper()
	ledger, err := changelog.NewLedger(f.cfg.Conn)
	require.NoError(f.t, err)
	f.t.Cleanup(ledger.Close)
	return ledger
}

func (f *fixture) purgeLock() *changelog.PurgeLock {
	f.t.Helper()
	lock, err := f.ledger().NewPurgeLock(f.t.Context())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { lock.Release(f.t.Context()) })
	return lock
}

func (f *fixture) acquire(lock *changelog.PurgeLock, slotWatermark string) changelog.PurgeStatus {
	f.t.Helper()
	status, err := lock.Acquire(f.t.Context(), slotWatermark)
	require.NoError(f.t, err)
	return status
}

// fillTo puts transactions 1 to n into the log.
func (f *fixture) fillTo(n int) {
	f.t.Helper()
	m := newMemory()
	for i := 1; i <= n; i++ {
		m.transaction(w(i), 3, 10)
	}
	f.fill(m.want)
}

// purge purges what lies before a watermark, and returns the code of the refusal.
func (f *fixture) purge(before string) (code string) {
	f.t.Helper()
	_, err := f.conn.Exec(f.t.Context(), `select purge_change_log($1, $2)`, before, owner)
	if err == nil {
		return ""
	}
	var refused *pgconn.PgError
	require.ErrorAs(f.t, err, &refused)
	return refused.Code
}

func TestPurgeLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fillTo(5)
	lock := f.purgeLock()
	require.Equal(t, changelog.PurgeLocked, f.acquire(lock, ""))
	require.NoError(t, lock.Ping(t.Context()))
	require.Equal(t, "55P03", f.purge(w(3)))
	other := f.purgeLock()
	require.Equal(t, changelog.PurgeLocked, f.acquire(other, w(5)), "many may hold it")

	f.tail.transaction(w(6), 3, 10)
	f.cfg.Head = w(5)
	f.run()
	f.awaitStored(w(6)) // it is in nobody else's way
	f.halt()

	lock.Release(t.Context())
	require.Equal(t, "55P03", f.purge(w(3)))
	other.Release(t.Context())
	require.Eventually(t, func() bool { return f.purge(w(3)) == "" }, patience, time.Millisecond)
	require.Equal(t, w(3), f.text(`select min(watermark) from "changeLog"`))
	other.Release(t.Context())
	require.Error(t, other.Ping(t.Context()))

	require.Equal(t, changelog.PurgeLocked, f.acquire(f.purgeLock(), ""), "what is left of the log")
	require.Equal(t, "55P03", f.purge(w(4)))
}

func TestPurgeLockBehindSlot(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fillTo(3)
	lock := f.purgeLock()
	for range 2 {
		require.Equal(t, changelog.BehindSlot, f.acquire(lock, w(4)))
		require.Error(t, lock.Ping(t.Context()), "it holds nothing")
		require.Empty(t, f.purge(w(2)))
	}
	f.exec(`select report_progress($1, $2, $3)`, owner, version, w(3)+".05")
	require.Equal(t, changelog.BehindSlot, f.acquire(lock, w(4)))
	f.exec(`select report_progress($1, $2, $3)`, owner, version, w(4))
	require.Equal(t, changelog.PurgeLocked, f.acquire(lock, w(4)), "the log is complete up to there")
	require.NoError(t, lock.Ping(t.Context()))
	require.Equal(t, "55P03", f.purge(w(3)))
}

func TestPurgeLockEmpty(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lock := f.purgeLock()
	f.exec(`delete from "changeLog"`)
	require.Equal(t, changelog.PurgeEmpty, f.acquire(lock, ""))
	f.exec(`truncate "replicationState", "replicationConfig", "changeLog"`)
	require.Equal(t, changelog.PurgeEmpty, f.acquire(lock, w(1)))
	require.Error(t, lock.Ping(t.Context()))
	f.exec(`select ensure_replication_config($1, '{p}', $1)`, version) // no lock of ours is left
}

func TestPurgeLockIsLost(t *testing.T) {
	t.Parallel()
	t.Run("with its session", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.fillTo(3)
		lock := f.purgeLock()
		require.Error(t, lock.Ping(t.Context()), "nothing is locked yet")
		require.Equal(t, changelog.PurgeLocked, f.acquire(lock, ""))
		require.NoError(t, lock.Ping(t.Context()))
		f.terminateStore() // the only session of that name
		require.Error(t, lock.Ping(t.Context()))
		require.Empty(t, f.purge(w(2)))
		_, err := lock.Acquire(t.Context(), "")
		require.Error(t, err)
		lock.Release(t.Context())
	})
	t.Run("by an attempt that was refused", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.fillTo(3)
		lock := f.purgeLock()
		_, err := lock.Acquire(t.Context(), "no watermark")
		require.ErrorContains(t, err, "ZC010")
		require.Error(t, lock.Ping(t.Context()))
		require.Empty(t, f.purge(w(2)))
	})
}
