-- A reset ends the sessions that are in its way, as a re-initialisation does; and a log can begin at a replica that has
-- moved on, with its cookies.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function ensure_replication_config(text, text[], text, boolean, interval);
drop function _seed_change_log(text, text[], text);
drop function _lock_tables(interval);

create function _compare_configuration(
    replica_version text,
    publications    text[],
    watermark       text,
    slot_watermark  text,
    auto_reset      boolean,
    out result      text,
    out detail      text
)
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    v_version        text;
    v_publications   text[];
    v_reset_required boolean;
begin
    select c."replicaVersion", c.publications, coalesce(c."resetRequired", false)
    into v_version, v_publications, v_reset_required
    from "replicationConfig" as c;

    -- Publications are a set: order and doubles do not matter.
    if v_version = _compare_configuration.replica_version
        and v_publications <@ _compare_configuration.publications
        and v_publications @> _compare_configuration.publications
    then
        if v_reset_required and _compare_configuration.auto_reset then
            result := 'reset_required';
            detail := 'reset required by replication stream';
            return;
        end if;
        result := 'unchanged';
        if v_reset_required then
            raise warning 'change log % needs a reset, but auto_reset is off', quote_ident(current_schema())
                using errcode = 'ZC101',
                    hint = 'Make a new replica and call ensure_replication_config with auto_reset => true.';
        end if;
        return;
    end if;

    if v_version is not null and _compare_configuration.watermark <> _compare_configuration.replica_version then
        result := 'reset_required';
        detail := format('Cannot reset change db@%s to service replica@%s from watermark %s',
            v_version, _compare_configuration.replica_version, _compare_configuration.watermark);
        return;
    end if;

    if v_version is not null and not _compare_configuration.auto_reset then
        result := 'reset_required';
        detail := concat_ws('; ',
            case when v_version <> _compare_configuration.replica_version then
                format('the replica version of the log is %s, not %s',
                    v_version, _compare_configuration.replica_version)
            end,
            case when not (v_publications <@ _compare_configuration.publications
                and v_publications @> _compare_configuration.publications) then
                format('the publications of the log are %s, not %s',
                    v_publications, _compare_configuration.publications)
            end,
            'a reset drops the log, and every subscriber has to start from a new replica: it needs auto_reset');
        return;
    end if;

    -- What lies between replica and slot is sent by nobody: a log that began here would have a hole.
    if _compare_configuration.slot_watermark > _compare_configuration.watermark collate "C" then
        result := 'reset_required';
        detail := format('the slot is at %s, past the replica at %s: a new replica is needed',
            _compare_configuration.slot_watermark, _compare_configuration.watermark);
        return;
    end if;

    result := case when v_version is null then 'initialized' else 'reset' end;
end
$$;

revoke all on function _compare_configuration(text, text[], text, text, boolean) from public;

comment on function _compare_configuration(text, text[], text, text, boolean) is
$$Decides what ensure_replication_config is to do.
Returns: result as there, and detail when it is reset_required.
Errors: warning ZC101 a reset is required but not allowed.
Locks: none but that of reading.$$;

create function ensure_replication_config(
    replica_version text,
    publications    text[],
    watermark       text,
    auto_reset      boolean  default false,
    cookies         jsonb    default '{}',
    slot_watermark  text     default null,
    terminate_app   text     default 'zero-change-streamer',
    grace           interval default '5 s',
    retry_every     interval default '2 s',
    max_wait        interval default '60 s',
    out result      text,
    out detail      text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write or truncate the tables itself.
security definer
set search_path from current
set lock_timeout = 0 -- so that the caller's value comes back at the end
as $$
#variable_conflict error
declare
    c_relations constant text[] := array['replicationState', 'changeLog', 'replicationConfig', 'tableMetadata', 'backfilling', 'progress', 'streamer'];
    v_started_at timestamptz := clock_timestamp();
    v_slice      interval := ensure_replication_config.grace;
    v_locked     boolean := false;
    v_cause      text;
begin
    if coalesce(ensure_replication_config.replica_version, '') = ''
        or coalesce(cardinality(ensure_replication_config.publications), 0) = 0
        or array_position(ensure_replication_config.publications, null) is not null
        or ensure_replication_config.watermark is null
        or ensure_replication_config.auto_reset is null
        or ensure_replication_config.max_wait is null
        or ensure_replication_config.watermark < ensure_replication_config.replica_version collate "C"
    then
        raise exception 'configuration of change log % is not valid', quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = format('Replica version: %s. Publications: %s. Watermark: %s. auto_reset: %s. max_wait: %s.',
                    quote_nullable(ensure_replication_config.replica_version),
                    quote_nullable(ensure_replication_config.publications),
                    quote_nullable(ensure_replication_config.watermark),
                    quote_nullable(ensure_replication_config.auto_reset),
                    quote_nullable(ensure_replication_config.max_wait)),
                hint = 'All of them are needed, and a replica is never behind its own version.';
    end if;
    perform _check_cookies(ensure_replication_config.cookies);
    if ensure_replication_config.slot_watermark is not null then
        perform _check_watermark(ensure_replication_config.slot_watermark);
    end if;

    perform _lock_configuration(ensure_replication_config.max_wait);

    loop
        -- The look waits, too, for whoever keeps readers out.
        perform _limit_lock_wait(least(v_slice, v_started_at + ensure_replication_config.max_wait - clock_timestamp()));
        -- One block, so that a failed attempt gives up all that it has won, the weak locks of its look included.
        begin
            select d.result, d.detail
            into result, detail
            from _compare_configuration(
                ensure_replication_config.replica_version, ensure_replication_config.publications,
                ensure_replication_config.watermark, ensure_replication_config.slot_watermark,
                ensure_replication_config.auto_reset) as d;
            exit when result <> 'reset' or v_locked;

            perform _try_lock_tables(c_relations,
                least(v_slice, v_started_at + ensure_replication_config.max_wait - clock_timestamp()));
            -- What was read may be out of date by now, so it is read and decided again.
            v_locked := true;
            continue;
        exception when lock_not_available or deadlock_detected then
            get stacked diagnostics v_cause = message_text;
        end;

        perform _make_way(c_relations, ensure_replication_config.terminate_app, v_started_at,
            ensure_replication_config.max_wait, v_cause);
        v_slice := ensure_replication_config.retry_every;
    end loop;

    -- Single rows may be locked still, of progress, and of all tables of a log that nobody has configured.
    perform _limit_lock_wait(v_started_at + ensure_replication_config.max_wait - clock_timestamp());
    if result = 'reset' then
        truncate "replicationState", "changeLog", "replicationConfig", "tableMetadata", "backfilling";
    elsif result <> 'initialized' then
        return;
    end if;

    -- A replica that is past its version can not be followed from the version on: nobody has what lies between.
    perform _begin_change_log(ensure_replication_config.watermark, null, null);
    insert into "replicationConfig" ("replicaVersion", publications, "resetRequired")
    values (ensure_replication_config.replica_version, ensure_replication_config.publications, null);
    perform _set_cookies(ensure_replication_config.cookies);
    delete from progress;
    perform pg_notify('cdc', current_schema());
end
$$;

revoke all on function ensure_replication_config(text, text[], text, boolean, jsonb, text, text, interval, interval, interval) from public;

comment on function ensure_replication_config(text, text[], text, boolean, jsonb, text, text, interval, interval, interval) is
$$Compares the log with a replica and makes the log fit: initialises an empty one, resets a different one if auto_reset allows it. For a reset, sessions of terminate_app (null: nobody) that hold the tables are ended after grace, then again every retry_every; others never. Call it alone in its transaction.
Returns: result: initialized, unchanged, reset (the log was dropped and begins at the watermark), or reset_required (nothing was changed; detail says why).
Errors: ZC002 tables still locked after max_wait, ZC003 another reset or initialisation runs, ZC004 standby, ZC005 not read committed, ZC010 arguments not valid; notice ZC100 for each session ended, warning ZC102 for each that may not be, warning ZC101 a reset is required but not allowed.
Locks: an advisory lock of the schema; for an initialisation the state row; for a reset all tables in access exclusive mode, progress and streamer in share row exclusive mode; until the caller's transaction ends. Notifies channel cdc when the log begins anew.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function ensure_replication_config(text, text[], text, boolean, jsonb, text, text, interval, interval, interval);
drop function _compare_configuration(text, text[], text, text, boolean);

create function _lock_tables(max_wait interval) returns void
language plpgsql
volatile
security invoker
set search_path from current
set lock_timeout = 0 -- so that the caller's value comes back at the end
as $$
#variable_conflict error
declare
    v_deadline timestamptz := clock_timestamp() + _lock_tables.max_wait;
    v_table    text;
    v_message  text;
begin
    foreach v_table in array array['replicationState', 'changeLog', 'replicationConfig', 'tableMetadata', 'backfilling'] loop
        -- lock_timeout counts for each lock, max_wait for all of them; 0 would mean to wait for ever.
        perform set_config('lock_timeout',
            greatest(1, ceil(extract(epoch from v_deadline - clock_timestamp()) * 1000))::int8::text, true);
        execute format('lock table %I in access exclusive mode', v_table);
    end loop;
exception when lock_not_available or deadlock_detected then
    -- What was locked so far is released here; what others hold is still to be seen.
    get stacked diagnostics v_message = message_text;
    perform pg_stat_clear_snapshot();
    raise exception 'tables of change log % are still locked after %', quote_ident(current_schema()), _lock_tables.max_wait
        using errcode = 'ZC002',
            detail = coalesce(
                (
                    select string_agg(
                        format('%s holds %s on %I',
                            case
                                when h.pid is null then format('prepared transaction %L', h.gid)
                                else format('pid %s (application %L, %s)', h.pid, h.application_name, h.state)
                            end, h.mode, h.relation),
                        '; ')
                    from lock_holders() as h
                ),
                v_message),
            hint = 'End those sessions with pg_terminate_backend or wait for them, then try again; or raise max_wait.';
end
$$;

revoke all on function _lock_tables(interval) from public;

comment on function _lock_tables(interval) is
$$Locks the five tables of the log against everybody, in the one lock order. To be called before any other lock on them.
Returns: nothing.
Errors: ZC002 some lock was not to be had within max_wait.
Locks: "replicationState", "changeLog", "replicationConfig", "tableMetadata", "backfilling" in access exclusive mode, until the caller's transaction ends.$$;

create function _seed_change_log(
    replica_version text,
    publications    text[],
    watermark       text
) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
begin
    -- In the lock order. A row that nobody has configured, left by a migration of Zero, is overwritten.
    insert into "replicationState" as s ("lastWatermark", owner, "ownerAddress")
    values (_seed_change_log.watermark, null, null)
    on conflict (lock) do update
    set "lastWatermark" = excluded."lastWatermark",
        owner = null,
        "ownerAddress" = null;

    -- Rows of an unknown history can be served to nobody. After a truncation there are none.
    delete from "changeLog";

    -- The seed makes its watermark the minimum, so that a fresh replica can be caught up from there.
    insert into "changeLog" (watermark, pos, change, precommit)
    values
        (_seed_change_log.watermark, 0, '{"tag":"begin"}', null),
        (_seed_change_log.watermark, 1, '{"tag":"commit"}', null);

    insert into "replicationConfig" ("replicaVersion", publications, "resetRequired")
    values (_seed_change_log.replica_version, _seed_change_log.publications, null);

    delete from "tableMetadata";
    delete from "backfilling";
    delete from progress;
end
$$;

revoke all on function _seed_change_log(text, text[], text) from public;

comment on function _seed_change_log(text, text[], text) is
$$Begins a history: nobody owns the log, and it holds nothing but a seed transaction.
Returns: nothing.
Errors: 23505 a configuration exists.
Locks: the state row; to be called under the advisory lock of _lock_configuration.$$;

create function ensure_replication_config(
    replica_version text,
    publications    text[],
    watermark       text,
    auto_reset      boolean  default false,
    max_wait        interval default '60 s',
    out result      text,
    out detail      text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write or truncate the tables itself.
security definer
set search_path from current
as $$
#variable_conflict error
declare
    v_deadline       timestamptz := clock_timestamp() + ensure_replication_config.max_wait;
    v_locked         boolean := false;
    v_version        text;
    v_publications   text[];
    v_reset_required boolean;
begin
    if ensure_replication_config.replica_version is null
        or ensure_replication_config.publications is null
        or ensure_replication_config.watermark is null
        or ensure_replication_config.watermark < ensure_replication_config.replica_version collate "C"
    then
        raise exception 'configuration of change log % is not valid', quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = format('Replica version: %s. Publications: %s. Watermark: %s.',
                    quote_nullable(ensure_replication_config.replica_version),
                    quote_nullable(ensure_replication_config.publications),
                    quote_nullable(ensure_replication_config.watermark)),
                hint = 'All three are needed, and a replica is never behind its own version.';
    end if;

    perform _lock_configuration(ensure_replication_config.max_wait);

    loop
        select c."replicaVersion", c.publications, coalesce(c."resetRequired", false)
        into v_version, v_publications, v_reset_required
        from "replicationConfig" as c;

        if not found then
            -- A replica that is past its version can not be followed from the version on: nobody has what lies between.
            perform _seed_change_log(ensure_replication_config.replica_version,
                ensure_replication_config.publications, ensure_replication_config.watermark);
            result := 'initialized';
            return;
        end if;

        -- Publications are a set: order and doubles do not matter.
        if v_version = ensure_replication_config.replica_version
            and v_publications <@ ensure_replication_config.publications
            and v_publications @> ensure_replication_config.publications
        then
            if not v_reset_required then
                result := 'unchanged';
            elsif ensure_replication_config.auto_reset then
                result := 'reset_required';
                detail := 'reset required by replication stream';
            else
                result := 'unchanged';
                raise warning 'change log % needs a reset, but auto_reset is off', quote_ident(current_schema())
                    using errcode = 'ZC101',
                        hint = 'Make a new replica and call ensure_replication_config with auto_reset => true.';
            end if;
            return;
        end if;

        if ensure_replication_config.watermark <> ensure_replication_config.replica_version then
            result := 'reset_required';
            detail := format('Cannot reset change db@%s to service replica@%s from watermark %s',
                v_version, ensure_replication_config.replica_version, ensure_replication_config.watermark);
            return;
        end if;

        if not ensure_replication_config.auto_reset then
            result := 'reset_required';
            detail := concat_ws('; ',
                case when v_version <> ensure_replication_config.replica_version then
                    format('the replica version of the log is %s, not %s',
                        v_version, ensure_replication_config.replica_version)
                end,
                case when not (v_publications <@ ensure_replication_config.publications
                    and v_publications @> ensure_replication_config.publications) then
                    format('the publications of the log are %s, not %s',
                        v_publications, ensure_replication_config.publications)
                end,
                'a reset drops the log, and every subscriber has to start from a new replica: it needs auto_reset');
            return;
        end if;

        exit when v_locked;

        -- What was read may be out of date once the locks are won, so it is read and decided again.
        perform _lock_tables(v_deadline - clock_timestamp());
        v_locked := true;
    end loop;

    truncate "replicationState", "changeLog", "replicationConfig", "tableMetadata", "backfilling";
    perform _seed_change_log(ensure_replication_config.replica_version,
        ensure_replication_config.publications, ensure_replication_config.watermark);
    perform pg_notify('cdc', current_schema());
    result := 'reset';
end
$$;

revoke all on function ensure_replication_config(text, text[], text, boolean, interval) from public;

comment on function ensure_replication_config(text, text[], text, boolean, interval) is
$$Compares the log with a replica and makes the log fit: initialises an empty one, resets a different one if auto_reset allows it.
Returns: result: initialized, unchanged, reset (the log was dropped and begins at the watermark), or reset_required (nothing was changed; detail says why).
Errors: ZC002 tables still locked, ZC003 another reset or initialisation runs, ZC004 standby, ZC005 not read committed, ZC010 arguments not valid; warning ZC101 a reset is required but not allowed.
Locks: an advisory lock of the schema; for an initialisation the state row; for a reset all tables in access exclusive mode; until the caller's transaction ends.$$;
