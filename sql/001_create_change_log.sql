-- The five tables that the log consists of. Names, columns and keys are those of Zero, so that either system
-- can take the log over; a schema that Zero has made keeps its tables and only gets byte order for watermarks.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

-- Whoever may use the schema but not create one is not stopped here: an operator can make it beforehand.
do $do$
begin
    if current_schema() is null then
        create schema "{{ or .schema `cdc` }}";
    end if;
    if exists (
        select
        from pg_catalog.pg_namespace as n
        where n.nspname = current_schema()
            and pg_has_role(n.nspowner, 'usage')
            and obj_description(n.oid, 'pg_namespace') is null
    ) then
        execute format('comment on schema %I is %L', current_schema(),
            'A change log with one owner: tables, and the functions that decide about them. Tables are not API.');
    end if;
end
$do$;

create table if not exists "changeLog" (
    watermark text collate "C" not null,
    pos       int8 not null,
    change    json not null,
    precommit text collate "C",
    primary key (watermark, pos)
);

comment on table "changeLog" is 'The messages of every stored transaction, in commit order.';
comment on column "changeLog".watermark is 'Commit watermark of the transaction; byte order is stream order.';
comment on column "changeLog".pos is 'Position of the message in its transaction; begin is 0.';
comment on column "changeLog".change is
    'The message, its text unchanged. No JSON operator may touch it: text with \u0000 would fail for ever.';
comment on column "changeLog".precommit is
    'On the commit row of a stored transaction the watermark of its other rows; null elsewhere and on seed rows.';

create table if not exists "replicationState" (
    "lastWatermark" text collate "C" not null,
    owner           text,
    "ownerAddress"  text,
    lock            integer not null default 1 primary key check (lock = 1)
);

comment on table "replicationState" is
    'One row: the head of the log and its owner. Whoever holds the lock of this row is the only writer.';
comment on column "replicationState"."lastWatermark" is 'The head: the greatest commit watermark stored.';
comment on column "replicationState".owner is 'Task id and incarnation of the owner; null when nobody owns the log.';
comment on column "replicationState"."ownerAddress" is 'Where subscribers reach the owner.';
comment on column "replicationState".lock is 'Always 1, so that there is one row only.';

create table if not exists "replicationConfig" (
    "replicaVersion" text not null,
    publications     text[] not null,
    "resetRequired"  boolean,
    lock             integer not null default 1 primary key check (lock = 1)
);

comment on table "replicationConfig" is 'One row: which history the log belongs to.';
comment on column "replicationConfig"."replicaVersion" is 'Watermark of the initial copy that this history began with.';
comment on column "replicationConfig".publications is 'The publications streamed, as a set.';
comment on column "replicationConfig"."resetRequired" is 'True when the log can not be continued; null means false.';
comment on column "replicationConfig".lock is 'Always 1, so that there is one row only.';

create table if not exists "tableMetadata" (
    "schema" text not null,
    "table"  text not null,
    metadata jsonb not null,
    primary key ("schema", "table")
);

comment on table "tableMetadata" is 'What the change source has said about each table, up to the head.';
comment on column "tableMetadata"."schema" is 'Schema of the upstream table.';
comment on column "tableMetadata"."table" is 'Name of the upstream table.';
comment on column "tableMetadata".metadata is 'The document of the change source; opaque to everybody else.';

create table if not exists "backfilling" (
    "schema" text not null,
    "table"  text not null,
    "column" text not null,
    backfill jsonb not null,
    primary key ("schema", "table", "column")
);

comment on table "backfilling" is 'A row for every column whose backfill has not completed at the head.';
comment on column "backfilling"."schema" is 'Schema of the upstream table.';
comment on column "backfilling"."table" is 'Name of the upstream table.';
comment on column "backfilling"."column" is 'Name of the upstream column.';
comment on column "backfilling".backfill is 'The id that the change source gave to the backfill.';

-- Tables made by Zero sort by the database's collation, which need not be byte order.
do $do$
declare
    v_column record;
begin
    for v_column in
        select a.attrelid::regclass as relation, a.attname as name
        from pg_catalog.pg_attribute as a
        where (a.attrelid, a.attname) in (
                ('"changeLog"'::regclass, 'watermark'),
                ('"changeLog"'::regclass, 'precommit'),
                ('"replicationState"'::regclass, 'lastWatermark'))
            and a.attcollation <> 'pg_catalog."C"'::regcollation
    loop
        execute format('alter table %s alter column %I type text collate "C"', v_column.relation, v_column.name);
    end loop;
end
$do$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop table "backfilling", "tableMetadata", "replicationConfig", "replicationState", "changeLog";
