-- name: StreamStart :one
-- StreamStart reads from one snapshot all that a stream starts from. No row: not
-- initialised. Texts that are null in the database are empty here.
select
    r.head::text as head,
    r.replica_version::text as replica_version,
    r.minimum::text as minimum,
    coalesce(r.streamed_watermark, '')::text as streamed_watermark,
    coalesce(r.owner, '')::text as owner,
    coalesce(r.owner_address, '')::text as owner_address,
    coalesce(r.slot, '')::text as slot,
    r.publications::text[] as publications,
    r.reset_required::boolean as reset_required,
    r.backfill_requests::jsonb as backfill_requests,
    r.cookies::jsonb as cookies
from stream_start() as r;

-- name: RegisterStreamer :one
-- RegisterStreamer registers an incarnation. Slot is the name for its slot, empty
-- without a prefix.
select
    r.id::int8 as id,
    coalesce(r.slot, '')::text as slot
from register_streamer(
    task_id => @task_id::text,
    owner => @owner::text,
    owner_address => sqlc.narg('owner_address')::text,
    slot_prefix => sqlc.narg('slot_prefix')::text) as r;

-- name: CondemnStreamer :one
-- CondemnStreamer bars an incarnation from taking the log over and returns its
-- slot, empty when it has none.
select coalesce(condemn_streamer(
    id => @id::int8,
    owner => @owner::text,
    replica_version => @replica_version::text), '')::text as slot;

-- name: RetireStreamer :exec
-- RetireStreamer notes that an incarnation has stopped, or that its slot is gone.
select retire_streamer(
    id => @id::int8,
    slot_dropped => @slot_dropped::boolean);

-- name: DeadStreamers :many
-- DeadStreamers lists the incarnations whose slots the owner should drop.
select
    r.id::int8 as id,
    r.slot::text as slot
from dead_streamers(owner => @owner::text) as r;

-- name: Status :one
-- Status tells a person how the log is doing. Texts that are null in the database
-- are empty here.
select
    v."schema"::text as "schema",
    coalesce(v.owner, '')::text as owner,
    coalesce(v.owner_address, '')::text as owner_address,
    coalesce(v.slot, '')::text as slot,
    coalesce(v.replica_version, '')::text as replica_version,
    coalesce(v.publications, '{}')::text[] as publications,
    v.reset_required::boolean as reset_required,
    coalesce(v.head, '')::text as head,
    coalesce(v.minimum, '')::text as minimum,
    coalesce(v.streamed_watermark, '')::text as streamed_watermark,
    v.streamed_at,
    coalesce(v.backup_watermark, '')::text as backup_watermark,
    v.backup_at,
    v.num_rows::int8 as num_rows,
    v.num_bytes::int8 as num_bytes,
    v.num_streamers::int8 as num_streamers,
    v.num_backfilling::int8 as num_backfilling,
    coalesce(v.owner_state, '')::text as owner_state,
    v.num_reservations::int8 as num_reservations,
    coalesce(v.reserved_watermark, '')::text as reserved_watermark,
    v.reserved_at,
    coalesce(v.floor_watermark, '')::text as floor_watermark,
    coalesce(v.floor_holder, '')::text as floor_holder,
    v.floor_at
from status as v;
