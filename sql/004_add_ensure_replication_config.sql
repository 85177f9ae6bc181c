-- The configuration check: does the log belong to the history that the caller has a replica of?
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

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

create function mark_reset_required() returns void
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
#variable_conflict error
begin
    update "replicationConfig" as c
    set "resetRequired" = true;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;
end
$$;

revoke all on function mark_reset_required() from public;

comment on function mark_reset_required() is
$$Notes that the log can not be continued: the next start with auto_reset begins anew.
Returns: nothing; doing it again changes nothing.
Errors: ZC006 not initialised.
Locks: the row of "replicationConfig", until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function mark_reset_required();
drop function ensure_replication_config(text, text[], text, boolean, interval);
drop function _seed_change_log(text, text[], text);
