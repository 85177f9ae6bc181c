-- name: EnsureReplicationConfig :one
-- EnsureReplicationConfig makes the log fit a replica. Result is initialized,
-- unchanged, reset or reset_required; Detail says why in the last case.
select
    r.result::text as result,
    coalesce(r.detail, '')::text as detail
from ensure_replication_config(
    replica_version => @replica_version::text,
    publications => @publications::text[],
    watermark => @watermark::text,
    auto_reset => @auto_reset::boolean,
    cookies => @cookies::jsonb,
    slot_watermark => sqlc.narg('slot_watermark')::text,
    terminate_app => sqlc.narg('terminate_app')::text,
    grace => @grace::interval,
    retry_every => @retry_every::interval,
    max_wait => @max_wait::interval) as r;

-- name: MarkResetRequired :exec
-- MarkResetRequired notes that the log of a history can not be continued.
select mark_reset_required(replica_version => @replica_version::text);

-- name: ReinitializeChangeLog :one
-- ReinitializeChangeLog makes the log fit a replica at the watermark. The result is
-- maintained (nothing was changed) or reinitialized (it begins there, and is owned).
select reinitialize_change_log(
    watermark => @watermark::text,
    owner => @owner::text,
    owner_address => sqlc.narg('owner_address')::text,
    cookies => @cookies::jsonb,
    terminate_app => sqlc.narg('terminate_app')::text,
    grace => @grace::interval,
    retry_every => @retry_every::interval,
    max_wait => @max_wait::interval,
    replica_version => @replica_version::text)::text as result;

-- name: AcquirePurgeLock :one
-- AcquirePurgeLock keeps the log from being purged until the transaction ends. The
-- status is locked, empty or behind-slot; the other texts are empty but in the first.
select
    r.status::text as status,
    coalesce(r.replica_version, '')::text as replica_version,
    coalesce(r.minimum, '')::text as minimum
from acquire_purge_lock(slot_watermark => sqlc.narg('slot_watermark')::text) as r;

-- name: PurgeChangeLog :one
-- PurgeChangeLog deletes one step of what lies before a watermark. It is to be called
-- again, in another transaction, until done.
select
    r.deleted::int8 as deleted,
    r.done::boolean as done
from purge_change_log(
    before => @before::text,
    owner => @owner::text,
    max_rows => @max_rows::integer,
    replica_version => @replica_version::text) as r;

-- name: MarkLog :one
-- MarkLog notes when the head is where it is, and how much was stored since the last
-- mark. False: somebody else owns the log.
select mark_log(
    owner => @owner::text,
    replica_version => @replica_version::text,
    num_bytes => @num_bytes::int8)::boolean as marked;

-- name: RetainedWatermark :one
-- RetainedWatermark says what may be purged by age and by size (nil: no such limit);
-- empty: nothing.
select coalesce(retained_watermark(
    max_age => sqlc.narg('max_age')::interval,
    max_bytes => sqlc.narg('max_bytes')::int8), '')::text as watermark;

-- name: ReportFloor :one
-- ReportFloor records up to where the log may be purged, and what holds it there. False:
-- somebody else owns the log.
select report_floor(
    owner => @owner::text,
    replica_version => @replica_version::text,
    floor_watermark => sqlc.narg('floor_watermark')::text,
    floor_holder => @floor_holder::text)::boolean as reported;

-- name: BackupWatermark :one
-- BackupWatermark is what the last backup holds; empty when there is none of this history.
select
    coalesce(s.backup_watermark, '')::text as watermark,
    s.backup_at
from status as s;

-- name: AssumeOwnership :one
-- AssumeOwnership takes the log over at once if its owner is still the expected
-- one (nil: nobody). PreviousOwner is who had it before, or has it still.
select
    r.assumed::boolean as assumed,
    coalesce(r.previous_owner, '')::text as previous_owner
from assume_ownership(
    owner => @owner::text,
    owner_address => sqlc.narg('owner_address')::text,
    replica_version => @replica_version::text,
    expected => sqlc.narg('expected')::text,
    force => @force::boolean,
    slot => sqlc.narg('slot')::text) as r;

-- name: AnnounceTakeover :exec
-- AnnounceTakeover says, and says again, that the caller is about to take the log over
-- at its head.
select announce_takeover(
    owner => @owner::text,
    replica_version => @replica_version::text);

-- name: AssumeOwnershipAtHead :one
-- AssumeOwnershipAtHead takes the log over if it ends at or before the watermark. False:
-- the owner has stored more.
select assume_ownership_at_head(
    owner => @owner::text,
    owner_address => sqlc.narg('owner_address')::text,
    replica_version => @replica_version::text,
    watermark => @watermark::text,
    expected_head => @expected_head::text)::boolean as assumed;

-- name: StoreChanges :one
-- StoreChanges stores whole transactions and moves the head. An empty precommit
-- is null; what is stored already is left out.
select
    r.stored::int8 as stored,
    r.head::text as head
from store_changes(
    owner => @owner::text,
    replica_version => @replica_version::text,
    expected_head => @expected_head::text,
    watermarks => @watermarks::text[],
    positions => @positions::int8[],
    changes => @changes::json[],
    precommits => @precommits::text[],
    last_watermark => @last_watermark::text) as r;

-- name: StoreOpen :one
-- StoreOpen begins to store one transaction by COPY and returns the head.
select store_open(
    owner => @owner::text,
    replica_version => @replica_version::text,
    expected_head => @expected_head::text,
    watermark => @watermark::text)::text as head;

-- name: StoreClose :one
-- StoreClose ends what StoreOpen began and returns the head.
select store_close(
    owner => @owner::text,
    replica_version => @replica_version::text,
    last_watermark => @last_watermark::text)::text as head;

-- name: BeginTransaction :one
-- BeginTransaction begins to store one transaction in pieces. The decision is
-- store, or skip when it is in the log already.
select begin_transaction(
    owner => @owner::text,
    replica_version => @replica_version::text,
    expected_head => @expected_head::text,
    watermark => @watermark::text)::text as decision;

-- name: AppendChanges :one
-- AppendChanges stores a piece of the transaction and returns its number of rows.
select append_changes(
    owner => @owner::text,
    replica_version => @replica_version::text,
    watermark => @watermark::text,
    positions => @positions::int8[],
    changes => @changes::json[],
    precommits => @precommits::text[])::int8 as stored;

-- name: CommitTransaction :one
-- CommitTransaction ends what BeginTransaction began and returns the head.
select commit_transaction(
    owner => @owner::text,
    replica_version => @replica_version::text,
    last_watermark => @last_watermark::text)::text as head;

-- name: CatchupBounds :one
-- CatchupBounds says which positions the log covers. No row: not initialised.
-- Owner is empty when nobody owns the log.
select
    r.minimum::text as minimum,
    r.head::text as head,
    r.replica_version::text as replica_version,
    coalesce(r.owner, '')::text as owner
from catchup_bounds() as r;

-- name: ReportProgress :one
-- ReportProgress records how far everything is stored. False: another process
-- owns the log.
select report_progress(
    owner => @owner::text,
    replica_version => @replica_version::text,
    streamed_watermark => @streamed_watermark::text)::boolean as is_owner;
