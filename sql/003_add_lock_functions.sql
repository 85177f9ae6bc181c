-- How every other function locks: the state row for writers, the tables for a reset. The order is fixed and
-- described in docs/sql-api.md.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function lock_holders(
    out relation         text,
    out mode             text,
    out pid              integer,
    out application_name text,
    out state            text,
    out gid              text
) returns setof record
language sql
volatile
security invoker
begin atomic
    select
        c.relname::text,
        l.mode,
        coalesce(a.leader_pid, l.pid),
        a.application_name,
        coalesce(a.state, a.backend_type),
        p.gid
    from pg_catalog.pg_locks as l
    join pg_catalog.pg_class as c on c.oid = l.relation
    left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
    -- A prepared transaction has no process; its virtual transaction leads to its name.
    left join pg_catalog.pg_locks as x
        on l.pid is null
        and x.locktype = 'transactionid'
        and x.virtualtransaction = l.virtualtransaction
    left join pg_catalog.pg_prepared_xacts as p on p.transaction = x.transactionid
    where l.locktype = 'relation'
        and l.granted
        and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
        and l.relation in (
            '"replicationState"'::regclass,
            '"changeLog"'::regclass,
            '"replicationConfig"'::regclass,
            '"tableMetadata"'::regclass,
            '"backfilling"'::regclass)
        and l.pid is distinct from pg_backend_pid()
    order by 3, 1, 2;
end;

revoke all on function lock_holders() from public;

comment on function lock_holders() is
$$Lists who holds locks on the tables of the log, other than the caller.
Returns: relation, lock mode, pid (null: a prepared transaction, named by gid), application name, state; no row: nobody.
Errors: none.
Locks: none.$$;

create function _lock_state(
    owner           text,
    replica_version text,
    expected_head   text
) returns text
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    v_owner           text;
    v_head            text collate "C";
    v_replica_version text;
begin
    -- The row lock is the fence: whoever holds it is the only writer until its transaction ends.
    select s.owner, s."lastWatermark", c."replicaVersion"
    into v_owner, v_head, v_replica_version
    from "replicationState" as s
    cross join "replicationConfig" as c
    for update of s;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_owner is distinct from _lock_state.owner or v_replica_version is distinct from _lock_state.replica_version then
        raise exception 'change log % is owned by %, not by %',
                quote_ident(current_schema()), quote_nullable(v_owner), quote_nullable(_lock_state.owner)
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_nullable(v_replica_version), quote_nullable(_lock_state.replica_version)),
                hint = 'Stop writing: another process has taken the log over, or it was reset.';
    end if;

    if v_head < _lock_state.expected_head then
        raise exception 'change log % ends at %, before the expected head %',
                quote_ident(current_schema()), quote_literal(v_head), quote_literal(_lock_state.expected_head)
            using errcode = 'ZC007',
                detail = format('Head: %s. Expected: %s.', v_head, _lock_state.expected_head),
                hint = 'Store what lies between first; stored as it is there would be a gap.';
    end if;

    return v_head;
end
$$;

revoke all on function _lock_state(text, text, text) from public;

comment on function _lock_state(text, text, text) is
$$Locks the state row for a writer and checks that the writer may write.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head (null: any head will do).
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create function _lock_configuration(max_wait interval) returns void
language plpgsql
volatile
security invoker
set search_path from current
set lock_timeout = 0 -- so that the caller's value comes back at the end
as $$
#variable_conflict error
begin
    if pg_is_in_recovery() then
        raise exception 'change log % is on a standby', quote_ident(current_schema())
            using errcode = 'ZC004',
                hint = 'Connect to the primary.';
    end if;

    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'change log % can be configured in read committed only', quote_ident(current_schema())
            using errcode = 'ZC005',
                detail = format('The transaction is %s.', current_setting('transaction_isolation')),
                hint = 'Call the function on its own, or in a transaction that begins with isolation level read committed.';
    end if;

    -- 0 would mean to wait for ever.
    perform set_config('lock_timeout',
        greatest(1, ceil(extract(epoch from _lock_configuration.max_wait) * 1000))::int8::text, true);

    -- Before any table lock, so that two resets, or two first initialisations, run one after the other.
    begin
        perform pg_advisory_xact_lock(1667523447, quote_ident(current_schema())::regnamespace::oid::int8::bit(32)::integer);
    exception when lock_not_available then
        raise exception 'change log % is being reset or initialised by another session', quote_ident(current_schema())
            using errcode = 'ZC003',
                detail = format('Waited %s.', _lock_configuration.max_wait),
                hint = 'Look at pg_locks where locktype = ''advisory'' and classid = 1667523447, or raise max_wait.';
    end;
end
$$;

revoke all on function _lock_configuration(interval) from public;

comment on function _lock_configuration(interval) is
$$Makes the caller the only one that initialises or resets the log of this schema.
Returns: nothing.
Errors: ZC003 another one did not end within max_wait, ZC004 standby, ZC005 not read committed.
Locks: a transaction-level advisory lock, keyed by the schema.$$;

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

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function _lock_tables(interval);
drop function _lock_configuration(interval);
drop function _lock_state(text, text, text);
drop function lock_holders();
