-- The log's beginning is looked for where the last purge ended: before that lie deleted rows, which stay in the index until
-- a vacuum. And the joins name the key of the tables of one row: else the planner, which has no statistics of them, takes
-- them for large and compiles for longer than the statement runs.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create or replace function stream_start(
    out head               text,
    out replica_version    text,
    out minimum            text,
    out streamed_watermark text,
    out owner              text,
    out owner_address      text,
    out slot               text,
    out publications       text[],
    out reset_required     boolean,
    out backfill_requests  jsonb,
    out cookies            jsonb
) returns setof record
language sql
-- Volatile: a stable function would see an empty log after a truncation that it had to wait for.
volatile
security invoker
begin atomic
    select
        s."lastWatermark",
        c."replicaVersion",
        coalesce(
            (
                select min(l.watermark)
                from "changeLog" as l
                where l.watermark >= coalesce(p.purged_watermark, '')
            ),
            s."lastWatermark"),
        p.streamed_watermark,
        s.owner,
        s."ownerAddress",
        case
            when s.owner is not null then
                (select r.slot from streamer as r where r.owner = s.owner)
            else
                (select r.slot from streamer as r where r.slot is not null order by r.id desc limit 1)
        end,
        c.publications,
        coalesce(c."resetRequired", false),
        (
            select coalesce(jsonb_agg(t.request order by t."schema" collate "C", t."table" collate "C"), '[]')
            from (
                select
                    b."schema",
                    b."table",
                    jsonb_build_object(
                        'table', jsonb_build_object('schema', b."schema", 'name', b."table", 'metadata', m.metadata),
                        'columns', jsonb_object_agg(b."column", b.backfill)) as request
                from "backfilling" as b
                left join "tableMetadata" as m
                    on m."schema" = b."schema"
                    and m."table" = b."table"
                group by b."schema", b."table", m.metadata
            ) as t
        ),
        jsonb_build_object(
            'tableMetadata', (
                select coalesce(jsonb_agg(
                    jsonb_build_object('schema', m."schema", 'table', m."table", 'metadata', m.metadata)
                    order by m."schema" collate "C", m."table" collate "C"), '[]')
                from "tableMetadata" as m
            ),
            'backfilling', (
                select coalesce(jsonb_agg(
                    jsonb_build_object(
                        'schema', b."schema", 'table', b."table", 'column', b."column", 'backfill', b.backfill)
                    order by b."schema" collate "C", b."table" collate "C", b."column" collate "C"), '[]')
                from "backfilling" as b
            ))
    from "replicationState" as s
    cross join "replicationConfig" as c
    left join progress as p
        on p.lock = 1
        and p.replica_version = c."replicaVersion"
    where s.lock = 1
        and c.lock = 1;
end;

create or replace function catchup_bounds(
    out minimum         text,
    out head            text,
    out replica_version text,
    out owner           text
) returns setof record
language sql
-- Volatile: a stable function would see an empty log after a truncation that it had to wait for.
volatile
security invoker
begin atomic
    select
        coalesce(
            (
                select min(l.watermark)
                from "changeLog" as l
                where l.watermark >= coalesce(p.purged_watermark, '')
            ),
            s."lastWatermark"),
        s."lastWatermark",
        c."replicaVersion",
        s.owner
    from "replicationState" as s
    cross join "replicationConfig" as c
    left join progress as p
        on p.lock = 1
        and p.replica_version = c."replicaVersion"
    where s.lock = 1
        and c.lock = 1;
end;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create or replace function catchup_bounds(
    out minimum         text,
    out head            text,
    out replica_version text,
    out owner           text
) returns setof record
language sql
-- Volatile: a stable function would see an empty log after a truncation that it had to wait for.
volatile
security invoker
begin atomic
    select
        coalesce((select min(l.watermark) from "changeLog" as l), s."lastWatermark"),
        s."lastWatermark",
        c."replicaVersion",
        s.owner
    from "replicationState" as s
    cross join "replicationConfig" as c;
end;

create or replace function stream_start(
    out head               text,
    out replica_version    text,
    out minimum            text,
    out streamed_watermark text,
    out owner              text,
    out owner_address      text,
    out slot               text,
    out publications       text[],
    out reset_required     boolean,
    out backfill_requests  jsonb,
    out cookies            jsonb
) returns setof record
language sql
-- Volatile: a stable function would see an empty log after a truncation that it had to wait for.
volatile
security invoker
begin atomic
    select
        s."lastWatermark",
        c."replicaVersion",
        coalesce((select min(l.watermark) from "changeLog" as l), s."lastWatermark"),
        (select p.streamed_watermark from progress as p where p.replica_version = c."replicaVersion"),
        s.owner,
        s."ownerAddress",
        case
            when s.owner is not null then
                (select r.slot from streamer as r where r.owner = s.owner)
            else
                (select r.slot from streamer as r where r.slot is not null order by r.id desc limit 1)
        end,
        c.publications,
        coalesce(c."resetRequired", false),
        (
            select coalesce(jsonb_agg(t.request order by t."schema" collate "C", t."table" collate "C"), '[]')
            from (
                select
                    b."schema",
                    b."table",
                    jsonb_build_object(
                        'table', jsonb_build_object('schema', b."schema", 'name', b."table", 'metadata', m.metadata),
                        'columns', jsonb_object_agg(b."column", b.backfill)) as request
                from "backfilling" as b
                left join "tableMetadata" as m
                    on m."schema" = b."schema"
                    and m."table" = b."table"
                group by b."schema", b."table", m.metadata
            ) as t
        ),
        jsonb_build_object(
            'tableMetadata', (
                select coalesce(jsonb_agg(
                    jsonb_build_object('schema', m."schema", 'table', m."table", 'metadata', m.metadata)
                    order by m."schema" collate "C", m."table" collate "C"), '[]')
                from "tableMetadata" as m
            ),
            'backfilling', (
                select coalesce(jsonb_agg(
                    jsonb_build_object(
                        'schema', b."schema", 'table', b."table", 'column', b."column", 'backfill', b.backfill)
                    order by b."schema" collate "C", b."table" collate "C", b."column" collate "C"), '[]')
                from "backfilling" as b
            ))
    from "replicationState" as s
    cross join "replicationConfig" as c;
end;
