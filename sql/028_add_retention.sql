-- What may be purged where no backup says so: what is older, or more, than is to be kept. The log has no times of its own, so
-- the owner marks now and then where its head is.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create table retention_mark (
    watermark       text collate "C" primary key,
    replica_version text not null,
    marked_at       timestamptz not null default now(),
    num_bytes       int8 not null
);

comment on table retention_mark is 'Where the head of the log was, and when. Marks of another history are void.';
comment on column retention_mark.watermark is 'The head.';
comment on column retention_mark.replica_version is 'The history it belongs to.';
comment on column retention_mark.marked_at is 'When the log ended there.';
comment on column retention_mark.num_bytes is 'Bytes of changes that were ever stored up to there, about.';

create function mark_log(
    owner           text,
    replica_version text,
    num_bytes       int8
) returns boolean
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
#variable_conflict error
declare
    v_head   text collate "C";
    v_purged text collate "C";
    v_bytes  int8;
begin
    if mark_log.num_bytes is null or mark_log.num_bytes < 0 then
        raise exception 'number of bytes is not valid'
            using errcode = 'ZC010',
                detail = format('num_bytes: %s.', quote_nullable(mark_log.num_bytes)),
                hint = 'Pass what was stored since the last mark, or 0.';
    end if;

    -- Without the lock of the state row, which a large transaction may hold: a head that was read is one.
    select s."lastWatermark", p.purged_watermark
    into v_head, v_purged
    from "replicationState" as s
    cross join "replicationConfig" as c
    left join progress as p on p.replica_version = c."replicaVersion"
    where s.owner = mark_log.owner
        and c."replicaVersion" = mark_log.replica_version;

    if not found then
        return false;
    end if;

    select m.num_bytes
    into v_bytes
    from retention_mark as m
    where m.replica_version = mark_log.replica_version
    order by m.watermark desc
    limit 1;

    insert into retention_mark as m (watermark, replica_version, num_bytes)
    values (v_head, mark_log.replica_version, coalesce(v_bytes, 0) + mark_log.num_bytes)
    on conflict (watermark) do update
    set replica_version = excluded.replica_version,
        marked_at = case when m.replica_version = excluded.replica_version then m.marked_at else excluded.marked_at end,
        num_bytes = excluded.num_bytes;

    -- What was purged needs no mark, but for the newest of them.
    delete from retention_mark as m
    where m.replica_version <> mark_log.replica_version
        or m.watermark < v_purged;

    return true;
end
$$;

revoke all on function mark_log(text, text, int8) from public;

comment on function mark_log(text, text, int8) is
$$Notes when the head of the log was where it is, and that num_bytes of changes were stored since the mark before.
Returns: true; false: another one owns the log, or it was reset.
Errors: ZC010 arguments not valid.
Locks: rows of retention_mark, until the caller's transaction ends.$$;

create function retained_watermark(
    max_age   interval default null,
    max_bytes int8     default null
) returns text
language sql
volatile
security invoker
begin atomic
    select greatest(
        (
            -- The log ended there that long ago: what lies before it is older.
            select max(m.watermark)
            from retention_mark as m
            join "replicationConfig" as c on c."replicaVersion" = m.replica_version
            where m.marked_at <= now() - retained_watermark.max_age
        ),
        (
            -- Of what lies before the first mark nobody knows how much it is.
            select nullif(min(m.watermark) filter (where m.num_bytes >= t.num_bytes - retained_watermark.max_bytes), min(m.watermark))
            from retention_mark as m
            join "replicationConfig" as c on c."replicaVersion" = m.replica_version
            cross join (
                select max(n.num_bytes) as num_bytes
                from retention_mark as n
                join "replicationConfig" as d on d."replicaVersion" = n.replica_version
            ) as t
        ));
end;

revoke all on function retained_watermark(interval, int8) from public;

comment on function retained_watermark(interval, int8) is
$$Says what purge_change_log may delete by age and size: what is older than max_age, and what is more than the newest max_bytes (null: no such limit).
Returns: the watermark to purge before; null: nothing.
Errors: none.
Locks: none.$$;

alter table progress
    add column floor_watermark text collate "C",
    add column floor_holder    text,
    add column floor_at        timestamptz;

comment on column progress.floor_watermark is 'The log may be purged up to here, as the owner has worked it out.';
comment on column progress.floor_holder is 'What keeps it from going on: backup, retention, a subscriber.';
comment on column progress.floor_at is 'When that was worked out.';

create function report_floor(
    owner           text,
    replica_version text,
    floor_watermark text,
    floor_holder    text
) returns boolean
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
#variable_conflict error
begin
    perform
    from "replicationState" as s
    cross join "replicationConfig" as c
    where s.owner = report_floor.owner
        and c."replicaVersion" = report_floor.replica_version;

    if not found then
        return false;
    end if;

    delete from progress as p
    where p.replica_version <> report_floor.replica_version;

    insert into progress as p (replica_version, floor_watermark, floor_holder, floor_at)
    values (report_floor.replica_version, report_floor.floor_watermark, report_floor.floor_holder, now())
    on conflict (lock) do update
    set floor_watermark = excluded.floor_watermark,
        floor_holder = excluded.floor_holder,
        floor_at = excluded.floor_at;

    return true;
end
$$;

revoke all on function report_floor(text, text, text, text) from public;

comment on function report_floor(text, text, text, text) is
$$Records up to where the log may be purged, and what keeps that from going on: for people.
Returns: true; false: another one owns the log, or it was reset.
Errors: none.
Locks: the row of progress, until the caller's transaction ends.$$;

create or replace view status with (security_invoker = true) as
select
    n.nspname::text as "schema",
    s.owner,
    s."ownerAddress" as owner_address,
    r.slot,
    c."replicaVersion" as replica_version,
    c.publications,
    coalesce(c."resetRequired", false) as reset_required,
    s."lastWatermark" as head,
    coalesce(
        (
            select min(m.watermark)
            from "changeLog" as m
            where m.watermark >= coalesce(p.purged_watermark, '')
        ),
        s."lastWatermark") as minimum,
    p.streamed_watermark,
    p.streamed_at,
    p.backup_watermark,
    p.backup_at,
    greatest(l.reltuples, 0)::int8 as num_rows,
    pg_total_relation_size(l.oid) as num_bytes,
    (select count(*) from streamer as q where q.state <> 'gone') as num_streamers,
    (select count(*) from "backfilling" as b) as num_backfilling,
    r.state as owner_state,
    (select count(*) from reservation as v where v.owner = s.owner) as num_reservations,
    (select min(v.watermark) from reservation as v where v.owner = s.owner) as reserved_watermark,
    o.opened_at as reserved_at,
    p.floor_watermark,
    p.floor_holder,
    p.floor_at
from pg_catalog.pg_class as l
join pg_catalog.pg_namespace as n on n.oid = l.relnamespace
left join "replicationState" as s on s.lock = 1
left join "replicationConfig" as c on c.lock = 1
left join progress as p on p.lock = 1 and p.replica_version = c."replicaVersion"
left join streamer as r on r.owner = s.owner
left join reservation as o on o.id = (
    select v.id
    from reservation as v
    where v.owner = s.owner
    order by v.opened_at
    limit 1
)
where l.oid = '"changeLog"'::regclass;

comment on column status.floor_watermark is 'The log may be purged up to here; null while nothing was worked out.';
comment on column status.floor_holder is 'What keeps it from going on: backup, retention, a subscriber.';
comment on column status.floor_at is 'When that was worked out.';

create or replace function _functions_of(access text) returns text[]
language sql
immutable
security invoker
begin atomic
    -- What only reads has the rights of its caller, hence the tables; what writes has those of the owner.
    select array_agg(f.name)
    from (
        select unnest(array[
            'stream_start', 'catchup_bounds', 'change_streamer_address', 'dead_streamers', 'lock_holders',
            'encode_watermark', 'decode_watermark', 'retained_watermark'])
        where _functions_of.access in ('streamer', 'reader')
        union all
        select unnest(array[
            'ensure_replication_config', 'mark_reset_required', 'register_streamer', 'condemn_streamer',
            'retire_streamer', 'assume_ownership', 'announce_takeover', 'assume_ownership_at_head',
            'store_changes', 'store_open', 'store_close',
            'begin_transaction', 'append_changes', 'commit_transaction', 'report_progress',
            'reinitialize_change_log', 'acquire_purge_lock', 'purge_change_log',
            'open_reservation', 'confirm_reservation', 'close_reservation', 'mark_log', 'report_floor'])
        where _functions_of.access = 'streamer'
        union all
        select unnest(array['report_backup'])
        where _functions_of.access in ('streamer', 'backup')
    ) as f (name);
end;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create or replace function _functions_of(access text) returns text[]
language sql
immutable
security invoker
begin atomic
    -- What only reads has the rights of its caller, hence the tables; what writes has those of the owner.
    select array_agg(f.name)
    from (
        select unnest(array[
            'stream_start', 'catchup_bounds', 'change_streamer_address', 'dead_streamers', 'lock_holders',
            'encode_watermark', 'decode_watermark'])
        where _functions_of.access in ('streamer', 'reader')
        union all
        select unnest(array[
            'ensure_replication_config', 'mark_reset_required', 'register_streamer', 'condemn_streamer',
            'retire_streamer', 'assume_ownership', 'announce_takeover', 'assume_ownership_at_head',
            'store_changes', 'store_open', 'store_close',
            'begin_transaction', 'append_changes', 'commit_transaction', 'report_progress',
            'reinitialize_change_log', 'acquire_purge_lock', 'purge_change_log',
            'open_reservation', 'confirm_reservation', 'close_reservation'])
        where _functions_of.access = 'streamer'
        union all
        select unnest(array['report_backup'])
        where _functions_of.access in ('streamer', 'backup')
    ) as f (name);
end;

drop view status;

create view status with (security_invoker = true) as
select
    n.nspname::text as "schema",
    s.owner,
    s."ownerAddress" as owner_address,
    r.slot,
    c."replicaVersion" as replica_version,
    c.publications,
    coalesce(c."resetRequired", false) as reset_required,
    s."lastWatermark" as head,
    coalesce(
        (
            select min(m.watermark)
            from "changeLog" as m
            where m.watermark >= coalesce(p.purged_watermark, '')
        ),
        s."lastWatermark") as minimum,
    p.streamed_watermark,
    p.streamed_at,
    p.backup_watermark,
    p.backup_at,
    greatest(l.reltuples, 0)::int8 as num_rows,
    pg_total_relation_size(l.oid) as num_bytes,
    (select count(*) from streamer as q where q.state <> 'gone') as num_streamers,
    (select count(*) from "backfilling" as b) as num_backfilling,
    r.state as owner_state,
    (select count(*) from reservation as v where v.owner = s.owner) as num_reservations,
    (select min(v.watermark) from reservation as v where v.owner = s.owner) as reserved_watermark,
    o.opened_at as reserved_at
from pg_catalog.pg_class as l
join pg_catalog.pg_namespace as n on n.oid = l.relnamespace
left join "replicationState" as s on s.lock = 1
left join "replicationConfig" as c on c.lock = 1
left join progress as p on p.lock = 1 and p.replica_version = c."replicaVersion"
left join streamer as r on r.owner = s.owner
left join reservation as o on o.id = (
    select v.id
    from reservation as v
    where v.owner = s.owner
    order by v.opened_at
    limit 1
)
where l.oid = '"changeLog"'::regclass;

comment on view status is 'One row for people: who owns the log, what it holds, and how far stream and backup have come.';
comment on column status."schema" is 'Schema of the log.';
comment on column status.owner is 'Task id and incarnation of the owner; null when nobody owns the log.';
comment on column status.owner_address is 'Where subscribers reach the owner.';
comment on column status.slot is 'Replication slot of the owner, if it has registered one.';
comment on column status.replica_version is 'History the log belongs to; null when it is not initialised.';
comment on column status.publications is 'The publications streamed.';
comment on column status.reset_required is 'True when the log can not be continued.';
comment on column status.head is 'The greatest commit watermark stored.';
comment on column status.minimum is 'The smallest position that a subscriber can be caught up from.';
comment on column status.streamed_watermark is 'Every published commit up to here is in the log.';
comment on column status.streamed_at is 'When streamed_watermark was set.';
comment on column status.backup_watermark is 'A backup of a replica holds everything up to here.';
comment on column status.backup_at is 'When backup_watermark was set.';
comment on column status.num_rows is 'Rows in the log as the planner estimates them; 0 until the table was analysed.';
comment on column status.num_bytes is 'Size of the log on disk with its index.';
comment on column status.num_streamers is 'Registered incarnations that are not gone.';
comment on column status.num_backfilling is 'Columns whose backfill has not completed.';
comment on column status.owner_state is 'What the owner''s registration says of it: owner, or gone when it has stopped.';
comment on column status.num_reservations is 'Subscribers that are restoring a replica.';
comment on column status.reserved_watermark is 'They hold back the purge of everything at or past this.';
comment on column status.reserved_at is 'When the oldest of their reservations was opened.';

drop function report_floor(text, text, text, text);
drop function retained_watermark(interval, int8);
drop function mark_log(text, text, int8);
drop table retention_mark;

alter table progress
    drop column floor_watermark,
    drop column floor_holder,
    drop column floor_at;
