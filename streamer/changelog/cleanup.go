package changelog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"millrace/db"
	"millrace/sql"
)

// purgeRows is about how many rows one step of a purge deletes.
const purgeRows = 10_000

// Purge deletes one step of what lies before a watermark. busy: somebody keeps the log from
// being purged now. An error that wraps ErrOwnershipLost says that it is somebody else's.
func (l *Ledger) Purge(ctx context.Context, owner, replicaVersion, before string) (deleted int64, done, busy bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.queries.PurgeChangeLog(ctx, l.pool, db.PurgeChangeLogParams{
		Before: before, Owner: owner, MaxRows: purgeRows, ReplicaVersion: replicaVersion,
	})
	if refusal(err) == codeLockNotAvailable {
		return 0, false, true, nil
	}
	if err != nil {
		return 0, false, false, named("purge the log", err)
	}
	return row.Deleted, row.Done, false, nil
}

// Mark notes that the log ends where it does now, and that bytes were stored since the last
// mark. An error that wraps ErrOwnershipLost says that it is somebody else's.
func (l *Ledger) Mark(ctx context.Context, owner, replicaVersion string, bytes int64) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	marked, err := l.queries.MarkLog(ctx, l.pool, db.MarkLogParams{Owner: owner, ReplicaVersion: replicaVersion, NumBytes: bytes})
	switch {
	case err != nil:
		return named("mark the end of the log", err)
	case !marked:
		return fmt.Errorf("mark the end of the log: %w", ErrOwnershipLost)
	}
	return nil
}

// Retained is the watermark up to which the log is older than age, or larger than bytes; 0
// is no limit. Empty: nothing is.
func (l *Ledger) Retained(ctx context.Context, age time.Duration, bytes int64) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	var limits db.RetainedWatermarkParams
	if age > 0 {
		limits.MaxAge = pgtype.Interval{Microseconds: age.Microseconds(), Valid: true}
	}
	if bytes > 0 {
		limits.MaxBytes = &bytes
	}
	watermark, err := l.queries.RetainedWatermark(ctx, l.pool, limits)
	if err != nil {
		return "", fmt.Errorf("ask what is to be kept: %w", err)
	}
	return watermark, nil
}

// ReportFloor tells people up to where the log may be purged, and what holds it there.
func (l *Ledger) ReportFloor(ctx context.Context, owner, replicaVersion, floor, holder string) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	reported, err := l.queries.ReportFloor(ctx, l.pool, db.ReportFloorParams{
		Owner: owner, ReplicaVersion: replicaVersion, FloorWatermark: orNull(floor), FloorHolder: holder,
	})
	switch {
	case err != nil:
		return named("report the floor", err)
	case !reported:
		return fmt.Errorf("report the floor: %w", ErrOwnershipLost)
	}
	return nil
}

// Backup is the watermark up to which a backup of the log's history holds everything; empty
// if there is none.
func (l *Ledger) Backup(ctx context.Context) (watermark string, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.queries.BackupWatermark(ctx, l.pool)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("ask for the backup: %w", err)
	}
	if row.BackupAt != nil {
		at = *row.BackupAt
	}
	return row.Watermark, at, nil
}

// ReportBackup records that a backup of the history holds everything up to a watermark. One
// that is behind what somebody else has reported changes nothing.
func (l *Ledger) ReportBackup(ctx context.Context, watermark, replicaVersion string, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	err := l.queries.ReportBackup(ctx, l.pool, db.ReportBackupParams{Watermark: watermark, ReplicaVersion: replicaVersion, At: at})
	if err != nil && refusal(err) != sql.CodeBackupBackwards {
		return named("report a backup", err)
	}
	return nil
}

// OpenReservation notes that a subscriber begins to restore a replica. An error that wraps
// ErrOwnershipLost says that the log is somebody else's.
func (l *Ledger) OpenReservation(ctx context.Context, owner, replicaVersion, taskID string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	row, err := l.queries.OpenReservation(ctx, l.pool, db.OpenReservationParams{
		Owner: owner, ReplicaVersion: replicaVersion, TaskID: taskID,
	})
	if err != nil {
		return 0, named("open a reservation", err)
	}
	return row.ID, nil
}

// ConfirmReservation notes what the subscriber is told to restore. false: the reservation
// was replaced, or is void.
func (l *Ledger) ConfirmReservation(ctx context.Context, id int64, watermark string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	confirmed, err := l.queries.ConfirmReservation(ctx, l.pool, db.ConfirmReservationParams{ID: id, Watermark: watermark})
	if err != nil {
		return false, fmt.Errorf("confirm a reservation: %w", err)
	}
	return confirmed, nil
}

// CloseReservation ends a reservation. One that is gone is no error.
func (l *Ledger) CloseReservation(ctx context.Context, id int64) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if _, err := l.queries.CloseReservation(ctx, l.pool, id); err != nil {
		return fmt.Errorf("close a reservation: %w", err)
	}
	return nil
}
