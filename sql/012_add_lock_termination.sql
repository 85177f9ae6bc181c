-- How a reset gets at tables that others hold: it asks for all of them at once, and ends the sessions of one
-- application that are in the way. In one call and over one connection: docs/sql-api.md says why this way.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function _check_transaction() returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
begin
    if pg_is_in_recovery() then
        raise exception 'change log % is on a standby', quote_ident(current_schema())
            using errcode = 'ZC004',
                hint = 'Connect to the primary.';
    end if;

    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'change log % is to be locked in a transaction that is read committed', quote_ident(current_schema())
            using errcode = 'ZC005',
                detail = format('The transaction is %s.', current_setting('transaction_isolation')),
                hint = 'Call the function on its own, or in a transaction that begins with isolation level read committed.';
    end if;
end
$$;

revoke all on function _check_transaction() from public;

comment on function _check_transaction() is
$$Refuses a session that could not see what it waits for, or not write.
Returns: nothing.
Errors: ZC004 standby, ZC005 not read committed.
Locks: none.$$;

create or replace function _lock_configuration(max_wait interval) returns void
language plpgsql
volatile
security invoker
set search_path from current
set lock_timeout = 0 -- so that the caller's value comes back at the end
as $$
#variable_conflict error
begin
    perform _check_transaction();

    -- Whole milliseconds, and 0 would mean to wait for ever.
    perform set_config('lock_timeout',
        least(2147483647, greatest(1, ceil(extract(epoch from _lock_configuration.max_wait) * 1000)))::int8::text, true);

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

drop function lock_holders();

create function lock_holders(
    out relation         text,
    out mode             text,
    out pid              integer,
    out application_name text,
    out user_name        text,
    out state            text,
    out backend_type     text,
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
        coalesce(a.usename, p.owner)::text,
        a.state,
        a.backend_type,
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
            '"backfilling"'::regclass,
            'progress'::regclass,
            'streamer'::regclass)
        -- These two are locked against writers only, so who reads them is in nobody's way.
        and not (l.relation in ('progress'::regclass, 'streamer'::regclass) and l.mode in ('AccessShareLock', 'RowShareLock'))
        and l.pid is distinct from pg_backend_pid()
    order by 3, 1, 2;
end;

revoke all on function lock_holders() from public;

comment on function lock_holders() is
$$Lists who holds locks on the tables of the log, other than the caller; of progress and streamer only those of writers.
Returns: relation, lock mode, pid (null: a prepared transaction, named by gid), application name, user, state and kind of the backend (both null when the caller may not see them); no row: nobody.
Errors: none.
Locks: none.$$;

create function _terminate_lock_holders(
    relations            text[],
    app                  text,
    out pid              integer,
    out application_name text,
    out query            text,
    out terminated       boolean
) returns setof record
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    v_message text;
begin
    -- What is known of other sessions is frozen at its first use in a transaction; who came since would be missed.
    perform pg_stat_clear_snapshot();

    for pid, application_name, query in
        select distinct
            h.pid,
            h.application_name,
            left(a.query, 200)
        from lock_holders() as h
        join pg_catalog.pg_stat_activity as a on a.pid = h.pid
        where h.relation = any (_terminate_lock_holders.relations)
            and h.application_name = _terminate_lock_holders.app
    loop
        begin
            -- Without waiting for its end: while one waits, newcomers take the place.
            terminated := pg_terminate_backend(pid);
            if terminated then
                raise notice 'terminated a session of application % that held locks on change log %',
                        quote_literal(application_name), quote_ident(current_schema())
                    using errcode = 'ZC100',
                        detail = format('pid %s', pid),
                        hint = 'It may connect again.';
            end if;
        exception when insufficient_privilege then
            get stacked diagnostics v_message = message_text;
            terminated := false;
            raise warning 'a session of application % that holds locks on change log % may not be terminated by role %',
                    quote_literal(application_name), quote_ident(current_schema()), quote_ident(current_user)
                using errcode = 'ZC102',
                    detail = format('pid %s: %s', pid, v_message),
                    hint = 'End the session yourself, or wait for it. For the role of a streamer, grant_access gives the right to end its sessions.';
        end;
        return next;
    end loop;
end
$$;

revoke all on function _terminate_lock_holders(text[], text) from public;

comment on function _terminate_lock_holders(text[], text) is
$$Ends the sessions of one application that hold locks on some of the tables; never the caller's own, never another application's.
Returns: pid, application name, query (its first 200 characters), and whether it was told to end.
Errors: notice ZC100 for each session that was told to end, warning ZC102 for each that may not be.
Locks: none.$$;

create function terminate_lock_holders(
    app                  text,
    out pid              integer,
    out application_name text,
    out query            text,
    out terminated       boolean
) returns setof record
language plpgsql
volatile
-- Definer: the owner may end the sessions of roles that it is a member of, the caller need not be.
security definer
set search_path from current
as $$
#variable_conflict error
begin
    if terminate_lock_holders.app is null then
        raise exception 'application whose sessions are to end is not given'
            using errcode = 'ZC010',
                detail = format('Schema: %s.', current_schema()),
                hint = 'Pass app => ''zero-change-streamer'', or another name that lock_holders() shows.';
    end if;

    return query
    select t.pid, t.application_name, t.query, t.terminated
    from _terminate_lock_holders(
        array['replicationState', 'changeLog', 'replicationConfig', 'tableMetadata', 'backfilling', 'progress', 'streamer'],
        terminate_lock_holders.app) as t;
end
$$;

revoke all on function terminate_lock_holders(text) from public;

comment on function terminate_lock_holders(text) is
$$Ends the sessions of one application that hold locks on the tables of the log. It can not be undone by a rollback.
Returns: pid, application name, query (its first 200 characters), and whether it was told to end; no row: nobody is in the way.
Errors: ZC010 no application given; notice ZC100 for each session that was told to end, warning ZC102 for each that may not be.
Locks: none.$$;

create function _limit_lock_wait(wait interval) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    -- Never less: only when deadlock_timeout expires does the server cancel an autovacuum that is in the way.
    c_least constant interval := current_setting('deadlock_timeout')::interval + interval '100 ms';
begin
    perform set_config('lock_timeout',
        least(2147483647, ceil(extract(epoch from greatest(_limit_lock_wait.wait, c_least)) * 1000))::int8::text, true);
end
$$;

revoke all on function _limit_lock_wait(interval) from public;

comment on function _limit_lock_wait(interval) is
$$Bounds every wait for a lock that follows. To be called by functions with a lock_timeout of their own, so that the caller's value comes back at their end.
Returns: nothing.
Errors: none.
Locks: none.$$;

create function _try_lock_tables(
    relations text[],
    slice     interval
) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    v_end      timestamptz := clock_timestamp() + _try_lock_tables.slice;
    v_relation text;
begin
    foreach v_relation in array _try_lock_tables.relations loop
        -- The limit counts for each lock anew.
        perform _limit_lock_wait(v_end - clock_timestamp());
        -- Of our own tables rows are written, so nobody else may write them; the others are truncated.
        execute format('lock table %I in %s mode', v_relation,
            case when v_relation in ('progress', 'streamer') then 'share row exclusive' else 'access exclusive' end);
    end loop;
end
$$;

revoke all on function _try_lock_tables(text[], interval) from public;

comment on function _try_lock_tables(text[], interval) is
$$Tries once to lock tables against everybody, progress and streamer against writers; the caller names them in the one lock order. To be called in a block whose handler goes on with _make_way, so that a failed attempt gives up what it had won.
Returns: nothing.
Errors: 55P03 some lock was not to be had within slice (or deadlock_timeout and a bit, for each table), 40P01 deadlock.
Locks: the tables in access exclusive mode, progress and streamer in share row exclusive mode, until the caller's transaction ends.$$;

create function _make_way(
    relations     text[],
    terminate_app text,
    started_at    timestamptz,
    max_wait      interval,
    cause         text
) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
#variable_conflict error
begin
    if clock_timestamp() >= _make_way.started_at + _make_way.max_wait then
        perform pg_stat_clear_snapshot();
        raise exception 'tables of change log % are still locked after %', quote_ident(current_schema()), _make_way.max_wait
            using errcode = 'ZC002',
                detail = coalesce(
                    (
                        select string_agg(
                            format('%s holds %s on %I',
                                case
                                    -- An autovacuum has no user, and what is looked at may end meanwhile.
                                    when h.pid is null then format('prepared transaction %L%s', h.gid, ' of user ' || quote_ident(h.user_name))
                                    else format('pid %s (application %L%s, %s)', h.pid, h.application_name, ', user ' || quote_ident(h.user_name),
                                        coalesce(nullif(h.backend_type, 'client backend'), h.state, 'state not visible'))
                                end, h.mode, h.relation),
                            '; ')
                        from lock_holders() as h
                        where h.relation = any (_make_way.relations)
                    ),
                    _make_way.cause),
                hint = concat_ws(' ',
                    case
                        when _make_way.terminate_app is null then 'terminate_app is null, so nobody is terminated.'
                        else format('Only sessions of application %L are terminated.', _make_way.terminate_app)
                    end,
                    'End the others with pg_terminate_backend, commit prepared or rollback prepared, or wait for them;',
                    'then try again, or raise max_wait.');
    end if;

    if _make_way.terminate_app is not null then
        perform
        from _terminate_lock_holders(_make_way.relations, _make_way.terminate_app) as t;
    end if;
end
$$;

revoke all on function _make_way(text[], text, timestamptz, interval, text) from public;

comment on function _make_way(text[], text, timestamptz, interval, text) is
$$What follows a failed attempt to lock tables: ends the sessions of terminate_app (null: nobody) that are in the way, all at once, so that the next attempt may win.
Returns: nothing; the caller tries again at once.
Errors: ZC002 max_wait is over since started_at: the detail names who holds the tables; notice ZC100, warning ZC102.
Locks: none.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function _make_way(text[], text, timestamptz, interval, text);
drop function _try_lock_tables(text[], interval);
drop function _limit_lock_wait(interval);
drop function terminate_lock_holders(text);
drop function _terminate_lock_holders(text[], text);
drop function lock_holders();

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

create or replace function _lock_configuration(max_wait interval) returns void
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

drop function _check_transaction();
