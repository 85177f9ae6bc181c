-- Who holds back the purge, and whether the owner still runs, in the row for people. The joins name the key of the tables
-- of one row: else the planner, which has no statistics of them, takes them for large and compiles for seconds.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

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

comment on column status.owner_state is 'What the owner''s registration says of it: owner, or gone when it has stopped.';
comment on column status.num_reservations is 'Subscribers that are restoring a replica.';
comment on column status.reserved_watermark is 'They hold back the purge of everything at or past this.';
comment on column status.reserved_at is 'When the oldest of their reservations was opened.';

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

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
    coalesce((select min(m.watermark) from "changeLog" as m), s."lastWatermark") as minimum,
    p.streamed_watermark,
    p.streamed_at,
    p.backup_watermark,
    p.backup_at,
    greatest(l.reltuples, 0)::int8 as num_rows,
    pg_total_relation_size(l.oid) as num_bytes,
    (select count(*) from streamer as q where q.state <> 'gone') as num_streamers,
    (select count(*) from "backfilling" as b) as num_backfilling
from pg_catalog.pg_class as l
join pg_catalog.pg_namespace as n on n.oid = l.relnamespace
left join "replicationState" as s on true
left join "replicationConfig" as c on true
left join progress as p on p.replica_version = c."replicaVersion"
left join streamer as r on r.owner = s.owner
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
