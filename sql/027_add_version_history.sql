-- Before anything else Zero looks for a table of versions, and where it finds none it makes the tables of the log, which
-- fails on those that are there. So schemas with names as Zero gives them get that table; one that Zero has made keeps its own.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

do $do$
begin
    if current_schema() not like '%/cdc' or to_regclass('"versionHistory"') is not null then
        return;
    end if;

    create table "versionHistory" (
        "dataVersion"    integer not null,
        "schemaVersion"  integer not null,
        "minSafeVersion" integer not null,
        lock             character(1) not null default 'v' primary key check (lock = 'v')
    );

    comment on table "versionHistory" is
        'One row, for Zero, which so finds a log that it need not make; nobody else reads it.';
    comment on column "versionHistory"."dataVersion" is 'Version of Zero''s schema that the rows of the log are in.';
    comment on column "versionHistory"."schemaVersion" is 'Version of Zero''s schema that the tables of the log are in.';
    comment on column "versionHistory"."minSafeVersion" is 'The oldest version of Zero''s schema that can use the log.';
    comment on column "versionHistory".lock is 'Always v, so that there is one row only.';

    -- The tables and their rows are those of Zero's version 6.
    insert into "versionHistory" ("dataVersion", "schemaVersion", "minSafeVersion") values (6, 6, 1);
end
$do$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

do $do$
begin
    -- The table of a schema that Zero has made is Zero's: its key has a name of Zero's choice.
    if exists (
        select
        from pg_catalog.pg_constraint as k
        where k.conrelid = to_regclass('"versionHistory"')
            and k.conname = 'versionHistory_pkey'
    ) then
        drop table "versionHistory";
    end if;
end
$do$;
