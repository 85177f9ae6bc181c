-- name: ReportBackup :exec
-- ReportBackup records that a backup holds everything up to the watermark.
select report_backup(
    watermark => @watermark::text,
    replica_version => @replica_version::text,
    at => @at::timestamptz);

-- name: OpenReservation :one
-- OpenReservation notes that a subscriber begins to restore a replica. Watermark is
-- what is held back from the purge, empty when no backup is known.
select
    r.id::int8 as id,
    coalesce(r.watermark, '')::text as watermark
from open_reservation(
    owner => @owner::text,
    replica_version => @replica_version::text,
    task_id => @task_id::text) as r;

-- name: ConfirmReservation :one
-- ConfirmReservation notes what the subscriber was told to restore. False: the
-- reservation was closed or replaced, or holds more than that.
select confirm_reservation(
    id => @id::int8,
    watermark => @watermark::text)::boolean as confirmed;

-- name: CloseReservation :one
-- CloseReservation ends a reservation. False: it was closed or replaced before.
select close_reservation(id => @id::int8)::boolean as closed;
