-- A log that is behind its replica is begun again at the replica's position, without a new history.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function _check_watermark(watermark text) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
begin
    -- The first digit says how many follow, less one, so that byte order is the order of the numbers.
    if _check_watermark.watermark ~ '^[0-9a-z]+([.][0-9a-z]+)?$'
        and (
            select bool_and(
                strpos('0123456789abcdefghijklmnopqrstuvwxyz', left(n.part, 1)) = length(n.part) - 1
                and (length(n.part) = 2 or substr(n.part, 2, 1) <> '0'))
            from unnest(string_to_array(_check_watermark.watermark, '.')) as n (part)
        )
    then
        return;
    end if;

    raise exception '% is not a watermark', quote_nullable(_check_watermark.watermark)
        using errcode = 'ZC010',
            detail = 'A watermark is a number in base 36 behind a digit that is the number of its digits less one, '
                'and perhaps a second one of these behind a dot, for example 718sh0nk8 or 718sh0nk8.01.',
            hint = 'Take it from the replica, from the status view, or from a message of the log.';
end
$$;

revoke all on function _check_watermark(text) from public;

comment on function _check_watermark(text) is
$$Refuses a text that is no watermark: stored in the log it would sort wrongly for ever.
Returns: nothing.
Errors: ZC010 not a watermark.
Locks: none.$$;

create function _check_cookies(cookies jsonb) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    v_bad text;
begin
    v_bad := case
        when jsonb_typeof(_check_cookies.cookies) is distinct from 'object' then 'They are not an object.'
        when jsonb_typeof(_check_cookies.cookies -> 'tableMetadata') not in ('array', 'null') then 'tableMetadata is not an array.'
        when jsonb_typeof(_check_cookies.cookies -> 'backfilling') not in ('array', 'null') then 'backfilling is not an array.'
    end;

    -- A misspelt name would lose what stands under it.
    if v_bad is null then
        select format('%s is not known.', quote_literal(k.name))
        into v_bad
        from jsonb_object_keys(_check_cookies.cookies) as k (name)
        where k.name not in ('tableMetadata', 'backfilling')
        limit 1;
    end if;

    if v_bad is null then
        select format('%s has no %s.', r.record, r.lacks)
        into v_bad
        from (
            select m.record, f.name as lacks
            from jsonb_array_elements(nullif(_check_cookies.cookies -> 'tableMetadata', 'null')) as m (record)
            cross join unnest(array['schema', 'table', 'metadata']) as f (name)
            where m.record ->> f.name is null
            union all
            select b.record, f.name
            from jsonb_array_elements(nullif(_check_cookies.cookies -> 'backfilling', 'null')) as b (record)
            cross join unnest(array['schema', 'table', 'column', 'backfill']) as f (name)
            where b.record ->> f.name is null
        ) as r
        limit 1;
    end if;

    if v_bad is not null then
        raise exception 'cookies are not valid'
            using errcode = 'ZC010',
                detail = v_bad,
                hint = 'They are {"tableMetadata": [{"schema", "table", "metadata"}, …], '
                    '"backfilling": [{"schema", "table", "column", "backfill"}, …]}, as stream_start() returns them.';
    end if;
end
$$;

revoke all on function _check_cookies(jsonb) from public;

comment on function _check_cookies(jsonb) is
$$Refuses cookies that could not be stored whole.
Returns: nothing.
Errors: ZC010 not an object of the two arrays, or a row that lacks something.
Locks: none.$$;

create function _begin_change_log(
    watermark     text,
    owner         text,
    owner_address text
) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
begin
    -- A row that nobody has configured, left by a migration of Zero, is overwritten.
    insert into "replicationState" as s ("lastWatermark", owner, "ownerAddress")
    values (_begin_change_log.watermark, _begin_change_log.owner, _begin_change_log.owner_address)
    on conflict (lock) do update
    set "lastWatermark" = excluded."lastWatermark",
        owner = excluded.owner,
        "ownerAddress" = excluded."ownerAddress";

    -- Rows of an unknown history can be served to nobody. After a truncation there are none.
    delete from "changeLog";

    -- The seed makes its watermark the minimum, so that a replica at it can be caught up from there.
    insert into "changeLog" (watermark, pos, change, precommit)
    values
        (_begin_change_log.watermark, 0, '{"tag":"begin"}', null),
        (_begin_change_log.watermark, 1, '{"tag":"commit"}', null);
end
$$;

revoke all on function _begin_change_log(text, text, text) from public;

comment on function _begin_change_log(text, text, text) is
$$Begins the log at a watermark: it holds nothing but a seed transaction.
Returns: nothing.
Errors: none.
Locks: the state row; to be called under the advisory lock of _lock_configuration.$$;

create function _set_cookies(cookies jsonb) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
begin
    delete from "tableMetadata";

    insert into "tableMetadata" ("schema", "table", metadata)
    select c."schema", c."table", c.metadata
    from jsonb_to_recordset(nullif(_set_cookies.cookies -> 'tableMetadata', 'null'))
        as c ("schema" text, "table" text, metadata jsonb);

    delete from "backfilling";

    insert into "backfilling" ("schema", "table", "column", backfill)
    select c."schema", c."table", c."column", c.backfill
    from jsonb_to_recordset(nullif(_set_cookies.cookies -> 'backfilling', 'null'))
        as c ("schema" text, "table" text, "column" text, backfill jsonb);
end
$$;

revoke all on function _set_cookies(jsonb) from public;

comment on function _set_cookies(jsonb) is
$$Puts cookies in place of those that are there.
Returns: nothing.
Errors: 23505 a row comes twice.
Locks: the rows of "tableMetadata" and "backfilling"; to be called under the advisory lock of _lock_configuration.$$;

create function _keeps_log(
    watermark       text,
    owner           text,
    replica_version text
) returns boolean
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    v_replica_version text collate "C";
    v_owner           text;
    v_head            text collate "C";
    v_minimum         text collate "C";
    v_maximum         text collate "C";
    v_streamed        text collate "C";
begin
    select
        c."replicaVersion",
        s.owner,
        s."lastWatermark",
        (select min(l.watermark) from "changeLog" as l where l.watermark >= coalesce(p.purged_watermark, '')),
        (select max(l.watermark) from "changeLog" as l),
        p.streamed_watermark
    into v_replica_version, v_owner, v_head, v_minimum, v_maximum, v_streamed
    from "replicationState" as s
    right join "replicationConfig" as c on s.lock = c.lock
    left join progress as p
        on p.lock = 1
        and p.replica_version = c."replicaVersion"
    where c.lock = 1;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_replica_version <> _keeps_log.replica_version then
        raise exception 'change log % belongs to another history', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_literal(v_replica_version), quote_literal(_keeps_log.replica_version)),
                hint = 'The log was reset: start again with a replica of the new history.';
    end if;

    if _keeps_log.watermark < v_replica_version then
        raise exception 'watermark % is before the replica version of change log %',
                quote_literal(_keeps_log.watermark), quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = format('Replica version: %s.', v_replica_version),
                hint = 'A replica is never behind its own version, so it belongs to another history: see ensure_replication_config.';
    end if;

    perform _check_incarnation(_keeps_log.owner);

    -- Behind the replica, or the log was off for a time and ends elsewhere than its head.
    if v_head is null
        or _keeps_log.watermark > greatest(v_head, v_streamed)
        or v_maximum <> v_head
    then
        return false;
    end if;

    if _keeps_log.watermark < coalesce(v_minimum, v_head) then
        raise exception 'change log % begins at %, past watermark %',
                quote_ident(current_schema()), quote_literal(coalesce(v_minimum, v_head)), quote_literal(_keeps_log.watermark)
            using errcode = 'ZC014',
                detail = format('Minimum: %s. Head: %s.', coalesce(v_minimum, v_head), v_head),
                hint = 'What lies between is gone, so this replica can not be caught up: take a newer backup, or make a new replica.';
    end if;

    return true;
end
$$;

revoke all on function _keeps_log(text, text, text) from public;

comment on function _keeps_log(text, text, text) is
$$Says whether the log serves a replica at the watermark as it is.
Returns: true, or false when the log ends before the watermark, has no state, or does not end at its head.
Errors: ZC001 another replica version (null: any will do), ZC006 not initialised, ZC009 the owner was deposed or condemned, ZC010 the watermark is before the replica version, ZC014 the log begins past the watermark.
Locks: none but those of reading.$$;

create function reinitialize_change_log(
    watermark       text,
    owner           text,
    owner_address   text     default null,
    cookies         jsonb    default '{}',
    terminate_app   text     default 'zero-change-streamer',
    grace           interval default '5 s',
    retry_every     interval default '2 s',
    max_wait        interval default '60 s',
    replica_version text     default null
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to truncate the tables itself.
security definer
set search_path from current
set lock_timeout = 0 -- so that the caller's value comes back at the end
as $$
#variable_conflict error
declare
    c_relations constant text[] := array['replicationState', 'changeLog', 'tableMetadata', 'backfilling', 'progress', 'streamer'];
    v_started_at timestamptz := clock_timestamp();
    v_slice      interval := reinitialize_change_log.grace;
    v_locked     boolean := false;
    v_cause      text;
begin
    -- More than 64 bits are refused, too: no upstream would ever come so far.
    perform decode_watermark(reinitialize_change_log.watermark);
    perform _check_watermark(reinitialize_change_log.watermark);
    perform _check_cookies(reinitialize_change_log.cookies);
    if reinitialize_change_log.owner = '' or reinitialize_change_log.max_wait is null then
        raise exception 'change log % can not be initialised again in this way', quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = format('Owner: %s. max_wait: %s.',
                    quote_nullable(reinitialize_change_log.owner), quote_nullable(reinitialize_change_log.max_wait)),
                hint = 'Pass owner => null to leave the log to whoever starts next, and an interval as max_wait, or leave it out.';
    end if;

    perform _lock_configuration(reinitialize_change_log.max_wait);

    loop
        -- The look waits, too, for whoever keeps readers out.
        perform _limit_lock_wait(least(v_slice, v_started_at + reinitialize_change_log.max_wait - clock_timestamp()));
        -- One block, so that a failed attempt gives up all that it has won, the weak locks of its look included.
        begin
            -- A look first: a log that is kept costs nobody anything.
            if _keeps_log(reinitialize_change_log.watermark, reinitialize_change_log.owner, reinitialize_change_log.replica_version) then
                return 'maintained';
            end if;
            -- Before anybody is ended, and again when nobody can take the log any more.
            perform _check_younger(reinitialize_change_log.owner, (select s.owner from "replicationState" as s));
            exit when v_locked;

            perform _try_lock_tables(c_relations,
                least(v_slice, v_started_at + reinitialize_change_log.max_wait - clock_timestamp()));
            -- Others went on storing meanwhile, so it is looked and decided again.
            v_locked := true;
            continue;
        exception when lock_not_available or deadlock_detected then
            get stacked diagnostics v_cause = message_text;
        end;

        perform _make_way(c_relations, reinitialize_change_log.terminate_app, v_started_at,
            reinitialize_change_log.max_wait, v_cause);
        v_slice := reinitialize_change_log.retry_every;
    end loop;

    -- Single rows may be locked still, of progress or of streamer.
    perform _limit_lock_wait(v_started_at + reinitialize_change_log.max_wait - clock_timestamp());
    truncate "replicationState", "changeLog", "tableMetadata", "backfilling";
    perform _begin_change_log(reinitialize_change_log.watermark, reinitialize_change_log.owner, reinitialize_change_log.owner_address);
    perform _set_cookies(reinitialize_change_log.cookies);

    -- What was known beyond the old head says nothing about the new one. The backup still holds what it holds.
    update progress as p
    set streamed_watermark = null,
        streamed_at = null,
        purged_watermark = null;

    perform _settle_streamers(reinitialize_change_log.owner, reinitialize_change_log.owner_address);
    perform pg_notify('cdc', current_schema());
    return 'reinitialized';
end
$$;

revoke all on function reinitialize_change_log(text, text, text, jsonb, text, interval, interval, interval, text) from public;

comment on function reinitialize_change_log(text, text, text, jsonb, text, interval, interval, interval, text) is
$$Makes the log fit a replica at the watermark: keeps it if it reaches that far, else drops what it holds, begins it there and gives it to owner (null: nobody, so that the streamer that starts next takes it). Sessions of terminate_app (null: nobody) that hold the tables are ended after grace, then again every retry_every; others never. Call it alone in its transaction.
Returns: maintained (nothing was changed) or reinitialized.
Errors: ZC001 another replica version (null: any will do), ZC002 tables still locked after max_wait, ZC003 another reset runs, ZC004 standby, ZC005 not read committed, ZC006 not initialised, ZC009 the owner was deposed or condemned, ZC010 arguments not valid, ZC014 the log begins past the watermark, ZC016 a younger incarnation owns the log; notice ZC100 for each session ended, warning ZC102 for each that may not be.
Locks: an advisory lock of the schema, then "replicationState", "changeLog", "tableMetadata", "backfilling" in access exclusive mode, then progress and streamer in share row exclusive mode, until the caller's transaction ends. Notifies channel cdc.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function reinitialize_change_log(text, text, text, jsonb, text, interval, interval, interval, text);
drop function _keeps_log(text, text, text);
drop function _set_cookies(jsonb);
drop function _begin_change_log(text, text, text);
drop function _check_cookies(jsonb);
drop function _check_watermark(text);
