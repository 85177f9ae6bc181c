--
-- PostgreSQL database dump
--



SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: cdc; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA cdc;


--
-- Name: SCHEMA cdc; Type: COMMENT; Schema: -; Owner: -
--

COMMENT ON SCHEMA cdc IS 'A change log with one owner: tables, and the functions that decide about them. Tables are not API.';


--
-- Name: _begin_change_log(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._begin_change_log(watermark text, owner text, owner_address text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _begin_change_log(watermark text, owner text, owner_address text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._begin_change_log(watermark text, owner text, owner_address text) IS 'Begins the log at a watermark: it holds nothing but a seed transaction.
Returns: nothing.
Errors: none.
Locks: the state row; to be called under the advisory lock of _lock_configuration.';


--
-- Name: _check_cookies(jsonb); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._check_cookies(cookies jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _check_cookies(cookies jsonb); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._check_cookies(cookies jsonb) IS 'Refuses cookies that could not be stored whole.
Returns: nothing.
Errors: ZC010 not an object of the two arrays, or a row that lacks something.
Locks: none.';


--
-- Name: _check_incarnation(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._check_incarnation(owner text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    if exists (
        select
        from streamer as r
        where r.owner = _check_incarnation.owner
            and r.state = 'gone'
    ) then
        raise exception 'streamer % may not take change log % over',
                quote_literal(_check_incarnation.owner), quote_ident(current_schema())
            using errcode = 'ZC009',
                detail = 'It was deposed or condemned, and its slot may be dropped at any time.',
                hint = 'Register a new incarnation.';
    end if;
end
$$;


--
-- Name: FUNCTION _check_incarnation(owner text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._check_incarnation(owner text) IS 'Refuses an incarnation whose slot may be dropped at any time.
Returns: nothing.
Errors: ZC009 it was deposed or condemned.
Locks: none; to be called under the lock of the state row, or of its table.';


--
-- Name: _check_newcomer(text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._check_newcomer(owner text, previous_owner text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_state text;
begin
    select r.state
    into v_state
    from streamer as r
    where r.owner = _check_newcomer.owner;

    if v_state is distinct from 'pending' then
        return false;
    end if;

    perform _check_younger(_check_newcomer.owner, _check_newcomer.previous_owner);
    return true;
end
$$;


--
-- Name: FUNCTION _check_newcomer(owner text, previous_owner text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._check_newcomer(owner text, previous_owner text) IS 'Says whether an incarnation may take the log over at its head: it has announced that, and was not condemned or retired since.
Returns: whether it may.
Errors: ZC016 a younger incarnation owns the log.
Locks: none; to be called under the lock of the state row.';


--
-- Name: _check_transaction(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._check_transaction() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _check_transaction(); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._check_transaction() IS 'Refuses a session that could not see what it waits for, or not write.
Returns: nothing.
Errors: ZC004 standby, ZC005 not read committed.
Locks: none.';


--
-- Name: _check_watermark(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._check_watermark(watermark text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $_$
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
$_$;


--
-- Name: FUNCTION _check_watermark(watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._check_watermark(watermark text) IS 'Refuses a text that is no watermark: stored in the log it would sort wrongly for ever.
Returns: nothing.
Errors: ZC010 not a watermark.
Locks: none.';


--
-- Name: _check_younger(text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._check_younger(owner text, previous_owner text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_id          int8;
    v_previous_id int8;
begin
    select r.id, p.id
    into v_id, v_previous_id
    from streamer as r
    cross join streamer as p
    where r.owner = _check_younger.owner
        and p.owner = _check_younger.previous_owner
        and p.id > r.id;

    if found then
        raise exception 'change log % is owned by a younger incarnation, %',
                quote_ident(current_schema()), quote_literal(_check_younger.previous_owner)
            using errcode = 'ZC016',
                detail = format('Registrations: %s of %s, %s of %s.',
                    v_previous_id, _check_younger.previous_owner, v_id, _check_younger.owner),
                hint = 'Stop: whoever registered later goes on. Started again, this process is the younger one.';
    end if;
end
$$;


--
-- Name: FUNCTION _check_younger(owner text, previous_owner text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._check_younger(owner text, previous_owner text) IS 'Refuses an incarnation that finds the log with one that registered later. Who is not registered, a person or Zero, is not compared.
Returns: nothing.
Errors: ZC016 a younger incarnation owns the log.
Locks: none; to be called under the lock of the state row, or of its table.';


--
-- Name: _compare_configuration(text, text[], text, text, boolean); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._compare_configuration(replica_version text, publications text[], watermark text, slot_watermark text, auto_reset boolean, OUT result text, OUT detail text) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _compare_configuration(replica_version text, publications text[], watermark text, slot_watermark text, auto_reset boolean, OUT result text, OUT detail text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._compare_configuration(replica_version text, publications text[], watermark text, slot_watermark text, auto_reset boolean, OUT result text, OUT detail text) IS 'Decides what ensure_replication_config is to do.
Returns: result as there, and detail when it is reset_required.
Errors: warning ZC101 a reset is required but not allowed.
Locks: none but that of reading.';


--
-- Name: _functions_of(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._functions_of(access text) RETURNS text[]
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
 SELECT array_agg(f.name) AS array_agg
    FROM ( SELECT unnest(ARRAY['stream_start'::text, 'catchup_bounds'::text, 'change_streamer_address'::text, 'dead_streamers'::text, 'lock_holders'::text, 'encode_watermark'::text, 'decode_watermark'::text, 'retained_watermark'::text]) AS unnest
           WHERE (_functions_of.access = ANY (ARRAY['streamer'::text, 'reader'::text]))
         UNION ALL
          SELECT unnest(ARRAY['ensure_replication_config'::text, 'mark_reset_required'::text, 'register_streamer'::text, 'condemn_streamer'::text, 'retire_streamer'::text, 'assume_ownership'::text, 'announce_takeover'::text, 'assume_ownership_at_head'::text, 'store_changes'::text, 'store_open'::text, 'store_close'::text, 'begin_transaction'::text, 'append_changes'::text, 'commit_transaction'::text, 'report_progress'::text, 'reinitialize_change_log'::text, 'acquire_purge_lock'::text, 'purge_change_log'::text, 'open_reservation'::text, 'confirm_reservation'::text, 'close_reservation'::text, 'mark_log'::text, 'report_floor'::text]) AS unnest
           WHERE (_functions_of.access = 'streamer'::text)
         UNION ALL
          SELECT unnest(ARRAY['report_backup'::text]) AS unnest
           WHERE (_functions_of.access = ANY (ARRAY['streamer'::text, 'backup'::text]))) f(name);
END;


--
-- Name: FUNCTION _functions_of(access text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._functions_of(access text) IS 'The one list of the functions that an access of grant_access consists of.
Returns: their names; null for an access without any.
Errors: none.
Locks: none.';


--
-- Name: _keeps_log(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._keeps_log(watermark text, owner text, replica_version text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _keeps_log(watermark text, owner text, replica_version text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._keeps_log(watermark text, owner text, replica_version text) IS 'Says whether the log serves a replica at the watermark as it is.
Returns: true, or false when the log ends before the watermark, has no state, or does not end at its head.
Errors: ZC001 another replica version (null: any will do), ZC006 not initialised, ZC009 the owner was deposed or condemned, ZC010 the watermark is before the replica version, ZC014 the log begins past the watermark.
Locks: none but those of reading.';


--
-- Name: _limit_lock_wait(interval); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._limit_lock_wait(wait interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    -- Never less: only when deadlock_timeout expires does the server cancel an autovacuum that is in the way.
    c_least constant interval := current_setting('deadlock_timeout')::interval + interval '100 ms';
begin
    perform set_config('lock_timeout',
        least(2147483647, ceil(extract(epoch from greatest(_limit_lock_wait.wait, c_least)) * 1000))::int8::text, true);
end
$$;


--
-- Name: FUNCTION _limit_lock_wait(wait interval); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._limit_lock_wait(wait interval) IS 'Bounds every wait for a lock that follows. To be called by functions with a lock_timeout of their own, so that the caller''s value comes back at their end.
Returns: nothing.
Errors: none.
Locks: none.';


--
-- Name: _lock_configuration(interval); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._lock_configuration(max_wait interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    SET lock_timeout TO '0'
    AS $$
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


--
-- Name: FUNCTION _lock_configuration(max_wait interval); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._lock_configuration(max_wait interval) IS 'Makes the caller the only one that initialises or resets the log of this schema.
Returns: nothing.
Errors: ZC003 another one did not end within max_wait, ZC004 standby, ZC005 not read committed.
Locks: a transaction-level advisory lock, keyed by the schema.';


--
-- Name: _lock_state(text, text, text, boolean); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._lock_state(owner text, replica_version text, expected_head text, newcomer boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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

    if v_replica_version is distinct from _lock_state.replica_version then
        raise exception 'change log % belongs to another history than its caller', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_nullable(v_replica_version), quote_nullable(_lock_state.replica_version)),
                hint = 'A process has to stop: the log was reset. A person finds the version in the status view.';
    end if;

    if v_owner is distinct from _lock_state.owner
        and not (_lock_state.newcomer and _check_newcomer(_lock_state.owner, v_owner))
    then
        raise exception 'change log % is owned by %, not by %',
                quote_ident(current_schema()), quote_nullable(v_owner), quote_nullable(_lock_state.owner)
            using errcode = 'ZC001',
                detail = format('Both are at replica version %s.', quote_nullable(v_replica_version)),
                hint = 'A process has to stop: another one has taken the log over. A person finds the owner in the status view.';
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


--
-- Name: FUNCTION _lock_state(owner text, replica_version text, expected_head text, newcomer boolean); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._lock_state(owner text, replica_version text, expected_head text, newcomer boolean) IS 'Locks the state row for a writer and checks that the writer may write. newcomer: an incarnation that has announced a take-over may, too.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head (null: any head will do), ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", until the caller''s transaction ends.';


--
-- Name: _make_way(text[], text, timestamp with time zone, interval, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._make_way(relations text[], terminate_app text, started_at timestamp with time zone, max_wait interval, cause text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _make_way(relations text[], terminate_app text, started_at timestamp with time zone, max_wait interval, cause text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._make_way(relations text[], terminate_app text, started_at timestamp with time zone, max_wait interval, cause text) IS 'What follows a failed attempt to lock tables: ends the sessions of terminate_app (null: nobody) that are in the way, all at once, so that the next attempt may win.
Returns: nothing; the caller tries again at once.
Errors: ZC002 max_wait is over since started_at: the detail names who holds the tables; notice ZC100, warning ZC102.
Locks: none.';


--
-- Name: _set_cookies(jsonb); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._set_cookies(cookies jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _set_cookies(cookies jsonb); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._set_cookies(cookies jsonb) IS 'Puts cookies in place of those that are there.
Returns: nothing.
Errors: 23505 a row comes twice.
Locks: the rows of "tableMetadata" and "backfilling"; to be called under the advisory lock of _lock_configuration.';


--
-- Name: _settle_streamers(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._settle_streamers(owner text, owner_address text, slot text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    -- Also whoever owned the log before a reset, which leaves no owner behind.
    update streamer as r
    set state = 'gone',
        changed_at = now()
    where r.state = 'owner'
        and r.owner is distinct from _settle_streamers.owner;

    if _settle_streamers.slot is not null then
        update streamer as r
        set slot = null,
            changed_at = now()
        where r.slot = _settle_streamers.slot
            and r.owner <> _settle_streamers.owner;
    end if;

    update streamer as r
    set state = 'owner',
        slot = coalesce(_settle_streamers.slot, r.slot),
        owner_address = _settle_streamers.owner_address,
        changed_at = now()
    where r.owner = _settle_streamers.owner;

    if not found and _settle_streamers.slot is not null then
        raise exception 'streamer % is not registered', quote_literal(_settle_streamers.owner)
            using errcode = 'ZC011',
                detail = format('The slot %s would be nobody''s.', _settle_streamers.slot),
                hint = 'Call register_streamer first.';
    end if;
end
$$;


--
-- Name: FUNCTION _settle_streamers(owner text, owner_address text, slot text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._settle_streamers(owner text, owner_address text, slot text) IS 'Writes down in streamer who owns the log now (null: nobody), from which slot, and that the one before is gone.
Returns: nothing.
Errors: ZC011 a slot is given but the owner is not registered.
Locks: rows of streamer; to be called under the lock of the state row, or of its table.';


--
-- Name: _take_over(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._take_over(owner text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_owner_address text;
begin
    -- Who retires an incarnation does not ask for the state row, so this may have changed since _check_newcomer.
    select r.owner_address
    into v_owner_address
    from streamer as r
    where r.owner = _take_over.owner
        and r.state = 'pending'
    for update;

    if not found then
        raise exception 'change log % may not be taken over by % any more',
                quote_ident(current_schema()), quote_literal(_take_over.owner)
            using errcode = 'ZC001',
                detail = 'It was retired meanwhile, and its slot may be dropped at any time.',
                hint = 'A process has to stop. Started again, it is a new incarnation.';
    end if;

    update "replicationState" as s
    set owner = _take_over.owner,
        "ownerAddress" = v_owner_address;

    perform _settle_streamers(_take_over.owner, v_owner_address);
    perform pg_notify('cdc', current_schema());
end
$$;


--
-- Name: FUNCTION _take_over(owner text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._take_over(owner text) IS 'Makes a newcomer the owner of the log, with the address that it has registered.
Returns: nothing.
Errors: ZC001 it was retired meanwhile.
Locks: rows of streamer, until the caller''s transaction ends; to be called under the lock of the state row. Notifies channel cdc.';


--
-- Name: _terminate_lock_holders(text[], text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._terminate_lock_holders(relations text[], app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean) RETURNS SETOF record
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _terminate_lock_holders(relations text[], app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._terminate_lock_holders(relations text[], app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean) IS 'Ends the sessions of one application that hold locks on some of the tables; never the caller''s own, never another application''s.
Returns: pid, application name, query (its first 200 characters), and whether it was told to end.
Errors: notice ZC100 for each session that was told to end, warning ZC102 for each that may not be.
Locks: none.';


--
-- Name: _try_lock_tables(text[], interval); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._try_lock_tables(relations text[], slice interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _try_lock_tables(relations text[], slice interval); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._try_lock_tables(relations text[], slice interval) IS 'Tries once to lock tables against everybody, progress and streamer against writers; the caller names them in the one lock order. To be called in a block whose handler goes on with _make_way, so that a failed attempt gives up what it had won.
Returns: nothing.
Errors: 55P03 some lock was not to be had within slice (or deadlock_timeout and a bit, for each table), 40P01 deadlock.
Locks: the tables in access exclusive mode, progress and streamer in share row exclusive mode, until the caller''s transaction ends.';


--
-- Name: acquire_purge_lock(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.acquire_purge_lock(slot_watermark text DEFAULT NULL::text, OUT status text, OUT replica_version text, OUT minimum text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_replica_version text;
    v_covered         text collate "C";
    v_purged          text collate "C";
begin
    if acquire_purge_lock.slot_watermark is not null then
        perform _check_watermark(acquire_purge_lock.slot_watermark);
    end if;

    -- A snapshot that stays would never see what a purge has left.
    perform _check_transaction();

    -- The weak lock of this look keeps a reset out until the transaction ends.
    select c."replicaVersion", greatest(s."lastWatermark", p.streamed_watermark), p.purged_watermark
    into v_replica_version, v_covered, v_purged
    from "replicationState" as s
    cross join "replicationConfig" as c
    left join progress as p on p.replica_version = c."replicaVersion";

    if not found then
        status := 'empty';
        return;
    end if;

    if acquire_purge_lock.slot_watermark > v_covered then
        status := 'behind-slot';
        return;
    end if;

    loop
        select l.watermark
        into minimum
        from "changeLog" as l
        where l.watermark >= coalesce(v_purged, '')
        order by l.watermark, l.pos
        limit 1
        for share;

        if found then
            status := 'locked';
            replica_version := v_replica_version;
            return;
        end if;

        -- This had to wait for a purge that has deleted all that its snapshot showed, but there may be more since.
        if not exists (select from "changeLog" as l) then
            status := 'empty';
            return;
        end if;
    end loop;
end
$$;


--
-- Name: FUNCTION acquire_purge_lock(slot_watermark text, OUT status text, OUT replica_version text, OUT minimum text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.acquire_purge_lock(slot_watermark text, OUT status text, OUT replica_version text, OUT minimum text) IS 'Keeps the log from being purged until the caller''s transaction ends: for a newcomer that is about to make or check its replica. Several may hold it at once; so long, no reset gets through either.
Returns: status: locked (a replica of replica_version at or past minimum can be caught up), empty (there is nothing to lock), or behind-slot (the log may lack what a slot whose confirmed position less one is slot_watermark does not send any more; nothing is locked).
Errors: ZC004 standby, ZC005 not read committed, ZC010 not a watermark.
Locks: the oldest row of "changeLog" in share mode, until the caller''s transaction ends; it is to be the first lock of that transaction. It waits for a purge step that is under way.';


--
-- Name: announce_takeover(text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.announce_takeover(owner text, replica_version text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_owner           text;
    v_replica_version text;
begin
    -- Without the lock of the state row: the owner may hold it for as long as a large transaction takes, and whoever
    -- takes the log over is asked again under it.
    select s.owner, c."replicaVersion"
    into v_owner, v_replica_version
    from "replicationState" as s
    cross join "replicationConfig" as c;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_replica_version is distinct from announce_takeover.replica_version then
        raise exception 'change log % belongs to another history than its caller', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_nullable(v_replica_version), quote_nullable(announce_takeover.replica_version)),
                hint = 'A process has to stop: the log was reset. A person finds the version in the status view.';
    end if;

    if v_owner = announce_takeover.owner then
        return;
    end if;

    perform _check_younger(announce_takeover.owner, v_owner);

    -- The owner marks rows as gone under a lock of the row, so that one of the two comes first.
    update streamer as r
    set state = 'pending',
        changed_at = now()
    where r.owner = announce_takeover.owner
        and r.state in ('starting', 'pending');

    if found then
        return;
    end if;

    perform _check_incarnation(announce_takeover.owner);

    if not exists (
        select
        from streamer as r
        where r.owner = announce_takeover.owner -- else it has taken the log over meanwhile
    ) then
        raise exception 'streamer % is not registered', quote_nullable(announce_takeover.owner)
            using errcode = 'ZC011',
                detail = 'Only a registered incarnation can take the log over at its head.',
                hint = 'Call register_streamer first.';
    end if;
end
$$;


--
-- Name: FUNCTION announce_takeover(owner text, replica_version text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.announce_takeover(owner text, replica_version text) IS 'Says that an incarnation is about to take the log over at its head: its state is pending from then on. To be called again every few seconds, alone in its transaction: a row that is pending and was not renewed for a minute counts as dead.
Returns: nothing; for the owner nothing changes.
Errors: ZC001 another replica version, ZC006 not initialised, ZC009 this incarnation was deposed or condemned, ZC011 it is not registered, ZC016 a younger incarnation owns the log.
Locks: the row of streamer, until the caller''s transaction ends.';


--
-- Name: append_changes(text, text, text, bigint[], json[], text[]); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.append_changes(owner text, replica_version text, watermark text, positions bigint[], changes json[], precommits text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_head   text collate "C";
    v_stored int8;
begin
    -- The lock is held since begin_transaction, so this costs one look; without that call it is the check.
    v_head := _lock_state(append_changes.owner, append_changes.replica_version, null, newcomer => true);

    if v_head >= append_changes.watermark then
        raise exception 'transaction % is already in change log %',
                quote_literal(append_changes.watermark), quote_ident(current_schema())
            using errcode = 'ZC008',
                detail = format('The head is %s.', v_head),
                hint = 'Call begin_transaction, and append only when it answers store.';
    end if;

    insert into "changeLog" (watermark, pos, change, precommit)
    select append_changes.watermark, u.pos, u.change, nullif(u.precommit, '')
    from unnest(append_changes.positions, append_changes.changes, append_changes.precommits)
        as u (pos, change, precommit);
    get diagnostics v_stored = row_count;
    return v_stored;
end
$$;


--
-- Name: FUNCTION append_changes(owner text, replica_version text, watermark text, positions bigint[], changes json[], precommits text[]); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.append_changes(owner text, replica_version text, watermark text, positions bigint[], changes json[], precommits text[]) IS 'Stores a piece of the transaction that begin_transaction began. An empty precommit is null.
Returns: the number of rows stored.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC008 the transaction is stored already, ZC016 a younger incarnation owns the log, 23505 a piece came twice.
Locks: the row of "replicationState", until the caller''s transaction ends.';


--
-- Name: assume_ownership(text, text, text, text, boolean, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean DEFAULT false, slot text DEFAULT NULL::text, OUT assumed boolean, OUT previous_owner text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_replica_version text;
begin
    if coalesce(assume_ownership.owner, '') = '' then
        raise exception 'owner of change log % is not given', quote_ident(current_schema())
            using errcode = 'ZC010',
                hint = 'Pass owner => ''<task id>/<incarnation>''.';
    end if;

    select s.owner, c."replicaVersion"
    into previous_owner, v_replica_version
    from "replicationState" as s
    cross join "replicationConfig" as c
    for update of s;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_replica_version is distinct from assume_ownership.replica_version then
        raise exception 'change log % belongs to another history', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_nullable(v_replica_version), quote_nullable(assume_ownership.replica_version)),
                hint = 'The log was reset: start again with a replica of the new history.';
    end if;

    perform _check_incarnation(assume_ownership.owner);

    assumed := assume_ownership.force
        or previous_owner is not distinct from assume_ownership.expected
        or previous_owner = assume_ownership.owner;
    if not assumed then
        return;
    end if;

    if not assume_ownership.force then
        perform _check_younger(assume_ownership.owner, previous_owner);
    end if;

    update "replicationState" as s
    set owner = assume_ownership.owner,
        "ownerAddress" = assume_ownership.owner_address;

    perform _settle_streamers(assume_ownership.owner, assume_ownership.owner_address, assume_ownership.slot);
    perform pg_notify('cdc', current_schema());
end
$$;


--
-- Name: FUNCTION assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text) IS 'Takes the log over at once, if its owner is still the one that was seen, and not registered later than the caller. force is for people.
Returns: assumed: whether the caller owns the log now; previous_owner: who had it before, or has it still (null: nobody).
Errors: ZC001 another replica version, ZC006 not initialised, ZC009 this incarnation was deposed or condemned, ZC010 no owner given, ZC011 a slot is given but the owner is not registered, ZC016 a younger incarnation owns the log (not with force).
Locks: the row of "replicationState", then rows of streamer, until the caller''s transaction ends. Notifies channel cdc.';


--
-- Name: assume_ownership_at_head(text, text, text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.assume_ownership_at_head(owner text, owner_address text, replica_version text, watermark text, expected_head text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_head  text collate "C";
    v_owner text;
begin
    perform _check_watermark(assume_ownership_at_head.watermark);

    v_head := _lock_state(assume_ownership_at_head.owner, assume_ownership_at_head.replica_version,
        assume_ownership_at_head.expected_head, newcomer => true);

    select s.owner
    into strict v_owner
    from "replicationState" as s;

    if v_owner = assume_ownership_at_head.owner then
        return true;
    end if;

    if v_head > assume_ownership_at_head.watermark then
        return false;
    end if;

    update streamer as r
    set owner_address = assume_ownership_at_head.owner_address
    where r.owner = assume_ownership_at_head.owner;

    perform _take_over(assume_ownership_at_head.owner);
    return true;
end
$$;


--
-- Name: FUNCTION assume_ownership_at_head(owner text, owner_address text, replica_version text, watermark text, expected_head text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.assume_ownership_at_head(owner text, owner_address text, replica_version text, watermark text, expected_head text) IS 'Takes the log over for a newcomer whose stream has shown everything up to watermark, if the log ends at or before that, and not before expected_head (null: any head will do). Otherwise an idle upstream would leave it pending for ever.
Returns: whether the caller owns the log now; false: the owner has stored more.
Errors: ZC001 neither the owner nor announced, or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC010 not a watermark, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", then rows of streamer, until the caller''s transaction ends. Notifies channel cdc when the owner changes.';


--
-- Name: begin_transaction(text, text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.begin_transaction(owner text, replica_version text, expected_head text, watermark text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_head text collate "C";
begin
    v_head := _lock_state(begin_transaction.owner, begin_transaction.replica_version, begin_transaction.expected_head,
        newcomer => true);

    if v_head >= begin_transaction.watermark then
        return 'skip';
    end if;
    return 'store';
end
$$;


--
-- Name: FUNCTION begin_transaction(owner text, replica_version text, expected_head text, watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.begin_transaction(owner text, replica_version text, expected_head text, watermark text) IS 'Begins to store one transaction in pieces, where the role may not COPY into the log.
Returns: store, or skip when the head is at or past the watermark.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", until the caller''s transaction ends.';


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: changeLog; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc."changeLog" (
    watermark text NOT NULL COLLATE pg_catalog."C",
    pos bigint NOT NULL,
    change json NOT NULL,
    precommit text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');


--
-- Name: TABLE "changeLog"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc."changeLog" IS 'The messages of every stored transaction, in commit order.';


--
-- Name: COLUMN "changeLog".watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."changeLog".watermark IS 'Commit watermark of the transaction; byte order is stream order.';


--
-- Name: COLUMN "changeLog".pos; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."changeLog".pos IS 'Position of the message in its transaction; begin is 0.';


--
-- Name: COLUMN "changeLog".change; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."changeLog".change IS 'The message, its text unchanged. No JSON operator may touch it: text with \u0000 would fail for ever.';


--
-- Name: COLUMN "changeLog".precommit; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."changeLog".precommit IS 'On the commit row of a stored transaction the watermark of its other rows; null elsewhere and on seed rows.';


--
-- Name: progress; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc.progress (
    replica_version text NOT NULL,
    streamed_watermark text COLLATE pg_catalog."C",
    streamed_at timestamp with time zone,
    backup_watermark text COLLATE pg_catalog."C",
    backup_at timestamp with time zone,
    lock integer DEFAULT 1 NOT NULL,
    purged_watermark text COLLATE pg_catalog."C",
    floor_watermark text COLLATE pg_catalog."C",
    floor_holder text,
    floor_at timestamp with time zone,
    CONSTRAINT progress_lock_check CHECK ((lock = 1))
);


--
-- Name: TABLE progress; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc.progress IS 'At most one row: what is known about the log beyond its head.';


--
-- Name: COLUMN progress.replica_version; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.replica_version IS 'The history the row belongs to; for any other one the row is void.';


--
-- Name: COLUMN progress.streamed_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.streamed_watermark IS 'Every published commit up to here is in the log, although the head may be smaller.';


--
-- Name: COLUMN progress.streamed_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.streamed_at IS 'When streamed_watermark was set.';


--
-- Name: COLUMN progress.backup_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.backup_watermark IS 'A backup of a replica holds everything up to here.';


--
-- Name: COLUMN progress.backup_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.backup_at IS 'When backup_watermark was set.';


--
-- Name: COLUMN progress.lock; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.lock IS 'Always 1, so that there is one row only.';


--
-- Name: COLUMN progress.purged_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.purged_watermark IS 'The log holds nothing before this: where the next purge begins, so that it need not walk over what others deleted.';


--
-- Name: COLUMN progress.floor_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.floor_watermark IS 'The log may be purged up to here, as the owner has worked it out.';


--
-- Name: COLUMN progress.floor_holder; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.floor_holder IS 'What keeps it from going on: backup, retention, a subscriber.';


--
-- Name: COLUMN progress.floor_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.progress.floor_at IS 'When that was worked out.';


--
-- Name: replicationConfig; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc."replicationConfig" (
    "replicaVersion" text NOT NULL,
    publications text[] NOT NULL,
    "resetRequired" boolean,
    lock integer DEFAULT 1 NOT NULL,
    CONSTRAINT "replicationConfig_lock_check" CHECK ((lock = 1))
);


--
-- Name: TABLE "replicationConfig"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc."replicationConfig" IS 'One row: which history the log belongs to.';


--
-- Name: COLUMN "replicationConfig"."replicaVersion"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationConfig"."replicaVersion" IS 'Watermark of the initial copy that this history began with.';


--
-- Name: COLUMN "replicationConfig".publications; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationConfig".publications IS 'The publications streamed, as a set.';


--
-- Name: COLUMN "replicationConfig"."resetRequired"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationConfig"."resetRequired" IS 'True when the log can not be continued; null means false.';


--
-- Name: COLUMN "replicationConfig".lock; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationConfig".lock IS 'Always 1, so that there is one row only.';


--
-- Name: replicationState; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc."replicationState" (
    "lastWatermark" text NOT NULL COLLATE pg_catalog."C",
    owner text,
    "ownerAddress" text,
    lock integer DEFAULT 1 NOT NULL,
    CONSTRAINT "replicationState_lock_check" CHECK ((lock = 1))
);


--
-- Name: TABLE "replicationState"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc."replicationState" IS 'One row: the head of the log and its owner. Whoever holds the lock of this row is the only writer.';


--
-- Name: COLUMN "replicationState"."lastWatermark"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationState"."lastWatermark" IS 'The head: the greatest commit watermark stored.';


--
-- Name: COLUMN "replicationState".owner; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationState".owner IS 'Task id and incarnation of the owner; null when nobody owns the log.';


--
-- Name: COLUMN "replicationState"."ownerAddress"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationState"."ownerAddress" IS 'Where subscribers reach the owner.';


--
-- Name: COLUMN "replicationState".lock; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."replicationState".lock IS 'Always 1, so that there is one row only.';


--
-- Name: catchup_bounds(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.catchup_bounds(OUT minimum text, OUT head text, OUT replica_version text, OUT owner text) RETURNS SETOF record
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT COALESCE(( SELECT min(l.watermark) AS min
            FROM cdc."changeLog" l
           WHERE (l.watermark >= COALESCE(p.purged_watermark, ''::text))), s."lastWatermark") AS "coalesce",
     s."lastWatermark",
     c."replicaVersion",
     s.owner
    FROM ((cdc."replicationState" s
      CROSS JOIN cdc."replicationConfig" c)
      LEFT JOIN cdc.progress p ON (((p.lock = 1) AND (p.replica_version = c."replicaVersion"))))
   WHERE ((s.lock = 1) AND (c.lock = 1));
END;


--
-- Name: FUNCTION catchup_bounds(OUT minimum text, OUT head text, OUT replica_version text, OUT owner text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.catchup_bounds(OUT minimum text, OUT head text, OUT replica_version text, OUT owner text) IS 'Says which positions the log covers: all at or past the minimum, whether a transaction ends there or not.
Returns: minimum (of an empty log: the head), head, replica version and owner, of one snapshot; no row when the log is not initialised.
Errors: none.
Locks: none.';


--
-- Name: change_streamer_address(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.change_streamer_address() RETURNS text
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT NULLIF(s."ownerAddress", ''::text) AS "nullif"
    FROM cdc."replicationState" s;
END;


--
-- Name: FUNCTION change_streamer_address(); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.change_streamer_address() IS 'Says where subscribers reach the owner of the log.
Returns: host:port, or a URL; null when nobody owns the log or it is not initialised.
Errors: none.
Locks: none.';


--
-- Name: clear_reset_required(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.clear_reset_required() RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_marked boolean;
begin
    select coalesce(c."resetRequired", false)
    into v_marked
    from "replicationConfig" as c
    for update;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_marked then
        update "replicationConfig" as c
        set "resetRequired" = null;
    end if;

    return v_marked;
end
$$;


--
-- Name: FUNCTION clear_reset_required(); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.clear_reset_required() IS 'Takes back what mark_reset_required noted. It is for people who know that the log can be continued all the same.
Returns: whether there was a mark.
Errors: ZC006 not initialised.
Locks: the row of "replicationConfig", until the caller''s transaction ends.';


--
-- Name: close_reservation(bigint); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.close_reservation(id bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    delete from reservation as r
    where r.id = close_reservation.id;

    return found;
end
$$;


--
-- Name: FUNCTION close_reservation(id bigint); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.close_reservation(id bigint) IS 'Ends a reservation: what it held may be purged.
Returns: whether there was one; false: it was closed or replaced before.
Errors: none.
Locks: the row of reservation, until the caller''s transaction ends.';


--
-- Name: store_close(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.store_close(owner text, replica_version text, last_watermark text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_owner text;
    v_head  text collate "C";
begin
    v_head := _lock_state(store_close.owner, store_close.replica_version, null, newcomer => true);

    if store_close.last_watermark > v_head then
        v_head := store_close.last_watermark;
        update "replicationState" as s
        set "lastWatermark" = v_head
        returning s.owner
        into v_owner;

        if v_owner is distinct from store_close.owner then
            perform _take_over(store_close.owner);
        end if;
    end if;

    return v_head;
end
$$;


--
-- Name: FUNCTION store_close(owner text, replica_version text, last_watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.store_close(owner text, replica_version text, last_watermark text) IS 'Ends what store_open began: moves the head to last_watermark. A newcomer that has called announce_takeover takes the log over with that.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", and when the owner changes rows of streamer, until the caller''s transaction ends. Notifies channel cdc when the owner changes.';


--
-- Name: commit_transaction(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.commit_transaction(owner text, replica_version text, last_watermark text) RETURNS text
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT cdc.store_close(owner => owner, replica_version => replica_version, last_watermark => last_watermark) AS store_close;
END;


--
-- Name: FUNCTION commit_transaction(owner text, replica_version text, last_watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.commit_transaction(owner text, replica_version text, last_watermark text) IS 'Ends what begin_transaction began: moves the head to last_watermark. A newcomer that has called announce_takeover takes the log over with that. The caller commits.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", and when the owner changes rows of streamer, until the caller''s transaction ends. Notifies channel cdc when the owner changes.';


--
-- Name: condemn_streamer(bigint, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.condemn_streamer(id bigint, owner text, replica_version text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_owner text;
    v_slot  text;
begin
    -- Under this lock nobody takes the log over; who is marked here never will.
    perform _lock_state(condemn_streamer.owner, condemn_streamer.replica_version, null);

    select r.owner, r.slot
    into v_owner, v_slot
    from streamer as r
    where r.id = condemn_streamer.id
    for update;

    if not found then
        raise exception 'streamer % is not registered', condemn_streamer.id
            using errcode = 'ZC011',
                hint = 'Look at the table streamer.';
    end if;

    if v_owner = condemn_streamer.owner then
        raise exception 'streamer % owns change log %', condemn_streamer.id, quote_ident(current_schema())
            using errcode = 'ZC013',
                detail = format('Owner: %s. Slot: %s.', v_owner, coalesce(v_slot, 'none')),
                hint = 'Only another incarnation can be condemned.';
    end if;

    update streamer as r
    set state = 'gone',
        changed_at = now()
    where r.id = condemn_streamer.id
        and r.state <> 'gone';

    return v_slot;
end
$$;


--
-- Name: FUNCTION condemn_streamer(id bigint, owner text, replica_version text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.condemn_streamer(id bigint, owner text, replica_version text) IS 'Bars an incarnation from taking the log over, so that the owner may drop its slot once this is committed.
Returns: the slot of that incarnation; null when it has none.
Errors: ZC001 the caller is not the owner or at another replica version, ZC006 not initialised, ZC011 no such id, ZC013 the id is the owner''s.
Locks: the row of "replicationState", then the row of streamer, until the caller''s transaction ends.';


--
-- Name: confirm_reservation(bigint, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.confirm_reservation(id bigint, watermark text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    perform _check_watermark(confirm_reservation.watermark);

    -- Not a void one: it holds nothing, so its subscriber must not begin. The state comes first in the lock order.
    update reservation as r
    set watermark = confirm_reservation.watermark,
        confirmed_at = now()
    from "replicationState" as s
    where r.id = confirm_reservation.id
        and r.owner = s.owner
        and r.confirmed_at is null
        and (r.watermark is null or r.watermark <= confirm_reservation.watermark);

    return exists (
        select
        from reservation as r
        join "replicationState" as s on s.owner = r.owner
        where r.id = confirm_reservation.id
            and r.confirmed_at is not null);
end
$$;


--
-- Name: FUNCTION confirm_reservation(id bigint, watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.confirm_reservation(id bigint, watermark text) IS 'Notes that the subscriber was told to restore at the watermark, which is held from then on. One that is confirmed stays as it is.
Returns: whether the reservation is confirmed; false: it was closed, replaced or void, or it holds more than the watermark.
Errors: ZC010 not a watermark.
Locks: the row of reservation, until the caller''s transaction ends.';


--
-- Name: streamer; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc.streamer (
    id bigint NOT NULL,
    owner text NOT NULL,
    task_id text NOT NULL,
    owner_address text,
    slot text,
    state text DEFAULT 'starting'::text NOT NULL,
    registered_at timestamp with time zone DEFAULT now() NOT NULL,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT streamer_owner_check CHECK ((starts_with(owner, (task_id || '/'::text)) AND (length(owner) > (length(task_id) + 1)))),
    CONSTRAINT streamer_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'pending'::text, 'owner'::text, 'gone'::text])))
);


--
-- Name: TABLE streamer; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc.streamer IS 'A row for every incarnation of a streamer, for people and for the hygiene of slots. It does not decide ownership.';


--
-- Name: COLUMN streamer.id; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.id IS 'Grows with every registration: the younger one has the greater id.';


--
-- Name: COLUMN streamer.owner; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.owner IS 'Task id, a slash, and a random incarnation: what stands in "replicationState".owner.';


--
-- Name: COLUMN streamer.task_id; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.task_id IS 'Name of the task; several incarnations may share it.';


--
-- Name: COLUMN streamer.owner_address; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.owner_address IS 'Where subscribers reach this incarnation once it is the owner.';


--
-- Name: COLUMN streamer.slot; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.slot IS 'Replication slot this row answers for; null when there is none, or it was dropped.';


--
-- Name: COLUMN streamer.state; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.state IS 'starting, pending (streams, but does not own yet), owner, or gone (stopped, deposed or condemned).';


--
-- Name: COLUMN streamer.registered_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.registered_at IS 'When the incarnation registered.';


--
-- Name: COLUMN streamer.changed_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.streamer.changed_at IS 'When the row changed last.';


--
-- Name: dead_streamers(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.dead_streamers(owner text, OUT id bigint, OUT slot text) RETURNS SETOF record
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT r.id,
     r.slot
    FROM cdc.streamer r
   WHERE ((r.slot IS NOT NULL) AND (r.owner <> dead_streamers.owner) AND ((r.state = 'gone'::text) OR ((r.state = 'pending'::text) AND (r.changed_at < (now() - '00:01:00'::interval))) OR ((r.state = 'starting'::text) AND (r.registered_at < (now() - '00:05:00'::interval)))))
   ORDER BY r.id;
END;


--
-- Name: FUNCTION dead_streamers(owner text, OUT id bigint, OUT slot text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.dead_streamers(owner text, OUT id bigint, OUT slot text) IS 'Lists the incarnations whose slots the owner should drop: those gone, those pending that have not called announce_takeover for a minute, and those that have been starting for five minutes.
Returns: id and slot, oldest first; never those of the given owner.
Errors: none.
Locks: none. Call condemn_streamer before dropping anything.';


--
-- Name: decode_watermark(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.decode_watermark(watermark text) RETURNS pg_lsn
    LANGUAGE plpgsql IMMUTABLE STRICT SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_digit text;
    v_value numeric := 0;
begin
    perform _check_watermark(decode_watermark.watermark);

    foreach v_digit in array string_to_array(substr(split_part(decode_watermark.watermark, '.', 1), 2), null) loop
        v_value := v_value * 36 + strpos('0123456789abcdefghijklmnopqrstuvwxyz', v_digit) - 1;
    end loop;

    if v_value > 18446744073709551615 then
        raise exception 'watermark % is no position of a WAL', quote_literal(decode_watermark.watermark)
            using errcode = 'ZC010',
                detail = 'It is larger than 64 bits.',
                hint = 'Take it from the status view, or from a message of the log.';
    end if;

    return '0/0'::pg_lsn + v_value;
end
$$;


--
-- Name: FUNCTION decode_watermark(watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.decode_watermark(watermark text) IS 'Reads a watermark as a position of the upstream''s WAL; what stands behind a dot is left out.
Returns: the position; null for null.
Errors: ZC010 not a watermark, or larger than any position.
Locks: none.';


--
-- Name: encode_watermark(pg_lsn); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.encode_watermark(lsn pg_lsn) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    c_digits constant text := '0123456789abcdefghijklmnopqrstuvwxyz';
    v_left   numeric := encode_watermark.lsn - '0/0'::pg_lsn;
    v_text   text := '';
begin
    loop
        v_text := substr(c_digits, mod(v_left, 36)::integer + 1, 1) || v_text;
        v_left := div(v_left, 36);
        exit when v_left = 0;
    end loop;

    -- The first digit says how many follow, less one, so that byte order is the order of the numbers.
    return substr(c_digits, length(v_text), 1) || v_text;
end
$$;


--
-- Name: FUNCTION encode_watermark(lsn pg_lsn); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.encode_watermark(lsn pg_lsn) IS 'Writes a position of the upstream''s WAL as a watermark. A slot is covered by the log if encode_watermark(confirmed_flush_lsn - 1) is not past head and streamed_watermark.
Returns: the watermark; null for null.
Errors: none.
Locks: none.';


--
-- Name: ensure_replication_config(text, text[], text, boolean, jsonb, text, text, interval, interval, interval); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean DEFAULT false, cookies jsonb DEFAULT '{}'::jsonb, slot_watermark text DEFAULT NULL::text, terminate_app text DEFAULT 'zero-change-streamer'::text, grace interval DEFAULT '00:00:05'::interval, retry_every interval DEFAULT '00:00:02'::interval, max_wait interval DEFAULT '00:01:00'::interval, OUT result text, OUT detail text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    SET lock_timeout TO '0'
    AS $$
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


--
-- Name: FUNCTION ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, cookies jsonb, slot_watermark text, terminate_app text, grace interval, retry_every interval, max_wait interval, OUT result text, OUT detail text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, cookies jsonb, slot_watermark text, terminate_app text, grace interval, retry_every interval, max_wait interval, OUT result text, OUT detail text) IS 'Compares the log with a replica and makes the log fit: initialises an empty one, resets a different one if auto_reset allows it. For a reset, sessions of terminate_app (null: nobody) that hold the tables are ended after grace, then again every retry_every; others never. Call it alone in its transaction.
Returns: result: initialized, unchanged, reset (the log was dropped and begins at the watermark), or reset_required (nothing was changed; detail says why).
Errors: ZC002 tables still locked after max_wait, ZC003 another reset or initialisation runs, ZC004 standby, ZC005 not read committed, ZC010 arguments not valid; notice ZC100 for each session ended, warning ZC102 for each that may not be, warning ZC101 a reset is required but not allowed.
Locks: an advisory lock of the schema; for an initialisation the state row; for a reset all tables in access exclusive mode, progress and streamer in share row exclusive mode; until the caller''s transaction ends. Notifies channel cdc when the log begins anew.';


--
-- Name: forget_backup(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.forget_backup() RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_backup text;
begin
    select p.backup_watermark
    into v_backup
    from progress as p
    for update;

    update progress as p
    set backup_watermark = null,
        backup_at = null;

    return v_backup;
end
$$;


--
-- Name: FUNCTION forget_backup(); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.forget_backup() IS 'Takes back what report_backup recorded, when that was wrong; it is for people. Until a backup is reported again there is none to purge up to.
Returns: the watermark that was recorded; null when there was none.
Errors: none.
Locks: the row of progress, until the caller''s transaction ends.';


--
-- Name: grant_access(text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.grant_access(role text, access text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_owner     name;
    v_others    text;
    v_functions text[];
    v_function  text;
    v_cause     text;
    v_hint      text;
begin
    if grant_access.access is null or grant_access.access not in ('streamer', 'reader', 'backup', 'none') then
        raise exception 'access % is not known', quote_nullable(grant_access.access)
            using errcode = 'ZC010',
                detail = format('Role: %s.', quote_nullable(grant_access.role)),
                hint = 'It is streamer (all that streamer serve needs), reader (looking and discovery), backup (report_backup) or none.';
    end if;

    if not exists (select from pg_catalog.pg_roles as r where r.rolname = grant_access.role) then
        raise exception 'role % does not exist', quote_nullable(grant_access.role)
            using errcode = 'ZC010',
                detail = format('Access: %s.', grant_access.access),
                hint = 'Make it first: create role … login.';
    end if;

    -- Of what belongs to others the grants below would change nothing, and say so in a warning at most.
    select string_agg(distinct quote_ident(pg_get_userbyid(o.owner)), ', ')
    into v_others
    from (
        select n.nspowner as owner
        from pg_catalog.pg_namespace as n
        where n.oid = quote_ident(current_schema())::regnamespace
        union
        select c.relowner
        from pg_catalog.pg_class as c
        where c.relnamespace = quote_ident(current_schema())::regnamespace
        union
        select p.proowner
        from pg_catalog.pg_proc as p
        where p.pronamespace = quote_ident(current_schema())::regnamespace
    ) as o
    where not pg_has_role(o.owner, 'usage');
    if v_others is not null then
        raise exception 'role % does not own all of change log %', quote_ident(current_user), quote_ident(current_schema())
            using errcode = '42501',
                detail = format('Owners: %s.', v_others),
                hint = 'Call grant_access as the role that owns the log, with set role, or as a superuser.';
    end if;

    -- Two sessions that change the rights of one object at once fail.
    perform pg_advisory_xact_lock(1667523448, quote_ident(current_schema())::regnamespace::oid::int8::bit(32)::integer);

    select pg_get_userbyid(c.relowner)
    into strict v_owner
    from pg_catalog.pg_class as c
    where c.oid = '"changeLog"'::regclass;

    if grant_access.role = v_owner then
        raise exception 'role % owns change log %', quote_ident(grant_access.role), quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = 'It may do everything, so there is nothing to grant or to take away.',
                hint = 'Let one role own the log and migrate it, and another one, with less rights, stream.';
    end if;

    -- Whatever it had before: what is granted here is all.
    execute format('revoke all on schema %I from %I', current_schema(), grant_access.role);
    execute format('revoke all on all tables in schema %I from %I', current_schema(), grant_access.role);
    execute format('revoke all on all sequences in schema %I from %I', current_schema(), grant_access.role);
    execute format('revoke all on all functions in schema %I from %I', current_schema(), grant_access.role);
    if grant_access.access = 'none' then
        return;
    end if;

    execute format('grant usage on schema %I to %I', current_schema(), grant_access.role);
    v_functions := _functions_of(grant_access.access);
    for v_function in
        select p.oid::regprocedure::text
        from pg_catalog.pg_proc as p
        where p.pronamespace = quote_ident(current_schema())::regnamespace
            and p.proname = any (v_functions)
    loop
        execute format('grant execute on function %s to %I', v_function, grant_access.role);
    end loop;
    if grant_access.access <> 'backup' then
        execute format('grant select on all tables in schema %I to %I', current_schema(), grant_access.role);
    end if;

    -- The functions that end sessions run as the owner, which may end those of roles that it is a member of.
    if grant_access.access = 'streamer' and not pg_has_role(v_owner, grant_access.role, 'usage') then
        if pg_has_role(grant_access.role, v_owner, 'member') then -- every superuser is
            v_cause := format('%I is a superuser or a member of %I: it may do everything, whatever is granted', grant_access.role, v_owner);
            v_hint := 'Stream as a role that is neither.';
        else
            begin
                execute format('grant %I to %I', grant_access.role, v_owner);
                if not pg_has_role(v_owner, grant_access.role, 'usage') then
                    v_cause := format('%I does not inherit the rights of roles that it is a member of', v_owner);
                    v_hint := format('Run: alter role %I inherit.', v_owner);
                end if;
            exception when insufficient_privilege or invalid_grant_operation then
                v_cause := format('%I could not be made a member of %I: %s', v_owner, grant_access.role, sqlerrm);
                v_hint := format('Let somebody who may do so run: grant %I to %I.', grant_access.role, v_owner);
            end;
        end if;
        if v_cause is not null then
            raise warning 'sessions of role % can not be ended when they are in the way of a reset', quote_ident(grant_access.role)
                using errcode = 'ZC103',
                    detail = v_cause || '.',
                    hint = v_hint;
        end if;
    end if;
end
$$;


--
-- Name: FUNCTION grant_access(role text, access text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.grant_access(role text, access text) IS 'Gives a role what it needs and nothing else; what it had in the schema before is taken away first. access is streamer (all that streamer serve needs), reader (looking and discovery), backup (report_backup alone) or none. To be called again after every migration, as the role that owns the log.
Returns: nothing; doing it again changes nothing.
Errors: ZC010 no such access or role, or the role owns the log, 42501 the caller does not own the log; warning ZC103 the owner could not be made a member of the role, so its sessions can not be ended.
Locks: an advisory lock of the schema, until the caller''s transaction ends.';


--
-- Name: backfilling; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc.backfilling (
    schema text NOT NULL,
    "table" text NOT NULL,
    "column" text NOT NULL,
    backfill jsonb NOT NULL
);


--
-- Name: TABLE backfilling; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc.backfilling IS 'A row for every column whose backfill has not completed at the head.';


--
-- Name: COLUMN backfilling.schema; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.backfilling.schema IS 'Schema of the upstream table.';


--
-- Name: COLUMN backfilling."table"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.backfilling."table" IS 'Name of the upstream table.';


--
-- Name: COLUMN backfilling."column"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.backfilling."column" IS 'Name of the upstream column.';


--
-- Name: COLUMN backfilling.backfill; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.backfilling.backfill IS 'The id that the change source gave to the backfill.';


--
-- Name: tableMetadata; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc."tableMetadata" (
    schema text NOT NULL,
    "table" text NOT NULL,
    metadata jsonb NOT NULL
);


--
-- Name: TABLE "tableMetadata"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc."tableMetadata" IS 'What the change source has said about each table, up to the head.';


--
-- Name: COLUMN "tableMetadata".schema; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."tableMetadata".schema IS 'Schema of the upstream table.';


--
-- Name: COLUMN "tableMetadata"."table"; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."tableMetadata"."table" IS 'Name of the upstream table.';


--
-- Name: COLUMN "tableMetadata".metadata; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc."tableMetadata".metadata IS 'The document of the change source; opaque to everybody else.';


--
-- Name: lock_holders(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT user_name text, OUT state text, OUT backend_type text, OUT gid text) RETURNS SETOF record
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT (c.relname)::text AS relname,
     l.mode,
     COALESCE(a.leader_pid, l.pid) AS "coalesce",
     a.application_name,
     (COALESCE(a.usename, p.owner))::text AS "coalesce",
     a.state,
     a.backend_type,
     p.gid
    FROM ((((pg_locks l
      JOIN pg_class c ON ((c.oid = l.relation)))
      LEFT JOIN pg_stat_activity a ON ((a.pid = l.pid)))
      LEFT JOIN pg_locks x ON (((l.pid IS NULL) AND (x.locktype = 'transactionid'::text) AND (x.virtualtransaction = l.virtualtransaction))))
      LEFT JOIN pg_prepared_xacts p ON ((p.transaction = x.transactionid)))
   WHERE ((l.locktype = 'relation'::text) AND l.granted AND (l.database = ( SELECT d.oid
            FROM pg_database d
           WHERE (d.datname = current_database()))) AND (l.relation = ANY (ARRAY[('cdc."replicationState"'::regclass)::oid, ('cdc."changeLog"'::regclass)::oid, ('cdc."replicationConfig"'::regclass)::oid, ('cdc."tableMetadata"'::regclass)::oid, ('cdc.backfilling'::regclass)::oid, ('cdc.progress'::regclass)::oid, ('cdc.streamer'::regclass)::oid])) AND (NOT ((l.relation = ANY (ARRAY[('cdc.progress'::regclass)::oid, ('cdc.streamer'::regclass)::oid])) AND (l.mode = ANY (ARRAY['AccessShareLock'::text, 'RowShareLock'::text])))) AND (l.pid IS DISTINCT FROM pg_backend_pid()))
   ORDER BY COALESCE(a.leader_pid, l.pid), ((c.relname)::text), l.mode;
END;


--
-- Name: FUNCTION lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT user_name text, OUT state text, OUT backend_type text, OUT gid text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT user_name text, OUT state text, OUT backend_type text, OUT gid text) IS 'Lists who holds locks on the tables of the log, other than the caller; of progress and streamer only those of writers.
Returns: relation, lock mode, pid (null: a prepared transaction, named by gid), application name, user, state and kind of the backend (both null when the caller may not see them); no row: nobody.
Errors: none.
Locks: none.';


--
-- Name: mark_log(text, text, bigint); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.mark_log(owner text, replica_version text, num_bytes bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION mark_log(owner text, replica_version text, num_bytes bigint); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.mark_log(owner text, replica_version text, num_bytes bigint) IS 'Notes when the head of the log was where it is, and that num_bytes of changes were stored since the mark before.
Returns: true; false: another one owns the log, or it was reset.
Errors: ZC010 arguments not valid.
Locks: rows of retention_mark, until the caller''s transaction ends.';


--
-- Name: mark_reset_required(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.mark_reset_required(replica_version text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_replica_version text;
begin
    select c."replicaVersion"
    into v_replica_version
    from "replicationConfig" as c
    for update;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_replica_version <> mark_reset_required.replica_version then
        raise exception 'change log % belongs to another history', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_literal(v_replica_version), quote_literal(mark_reset_required.replica_version)),
                hint = 'The log was reset already: there is nothing to mark.';
    end if;

    update "replicationConfig" as c
    set "resetRequired" = true;
end
$$;


--
-- Name: FUNCTION mark_reset_required(replica_version text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.mark_reset_required(replica_version text) IS 'Notes that the log can not be continued: the next start with auto_reset begins anew.
Returns: nothing; doing it again changes nothing.
Errors: ZC001 another replica version (null: any will do), ZC006 not initialised.
Locks: the row of "replicationConfig", until the caller''s transaction ends.';


--
-- Name: open_reservation(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.open_reservation(owner text, replica_version text, task_id text, OUT id bigint, OUT watermark text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    -- An index holds the task, so its length has a limit.
    if open_reservation.owner is null
        or coalesce(octet_length(open_reservation.task_id), 0) not between 1 and 2000
    then
        raise exception 'reservation of change log % is not valid', quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = format('Owner: %s. Task: %s.',
                    quote_nullable(open_reservation.owner), quote_nullable(left(open_reservation.task_id, 100))),
                hint = 'Both are needed, and the name of a task has 1 to 2000 bytes.';
    end if;

    -- Read without the lock of the state row, which a large transaction may hold for long: the rows of whoever loses the
    -- log count for nothing from then on.
    perform
    from "replicationState" as s
    cross join "replicationConfig" as c
    where s.owner = open_reservation.owner
        and c."replicaVersion" = open_reservation.replica_version;

    if not found then
        perform _lock_state(open_reservation.owner, open_reservation.replica_version, null); -- says what is wrong
    end if;

    delete from reservation as r
    where not exists (
        select
        from "replicationState" as s
        where s.owner = r.owner);

    -- Held from the first moment, confirmed or not: a purge between here and the confirmation must not pass it.
    insert into reservation as r (owner, task_id, watermark)
    select
        open_reservation.owner,
        open_reservation.task_id,
        (select p.backup_watermark from progress as p where p.replica_version = open_reservation.replica_version)
    on conflict on constraint reservation_task_id_key do update
    set id = default, -- so that whoever had the old one can not touch it
        owner = excluded.owner,
        watermark = excluded.watermark,
        opened_at = excluded.opened_at,
        confirmed_at = null
    returning r.id, r.watermark
    into open_reservation.id, open_reservation.watermark;

    -- Once more: if the log was lost meanwhile, the rows above may be those of the new owner.
    perform
    from "replicationState" as s
    cross join "replicationConfig" as c
    where s.owner = open_reservation.owner
        and c."replicaVersion" = open_reservation.replica_version;

    if not found then
        perform _lock_state(open_reservation.owner, open_reservation.replica_version, null); -- says what is wrong
    end if;
end
$$;


--
-- Name: FUNCTION open_reservation(owner text, replica_version text, task_id text, OUT id bigint, OUT watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.open_reservation(owner text, replica_version text, task_id text, OUT id bigint, OUT watermark text) IS 'Notes that a subscriber begins to restore a replica. It holds the backup watermark known now, and replaces another reservation of the same task.
Returns: id, and the watermark that is held (null: no backup is known).
Errors: ZC001 the caller is not the owner or at another replica version, ZC006 not initialised, ZC010 arguments not valid.
Locks: rows of reservation, until the caller''s transaction ends.';


--
-- Name: purge_change_log(text, text, integer, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.purge_change_log(before text, owner text, max_rows integer DEFAULT 10000, replica_version text DEFAULT NULL::text, OUT deleted bigint, OUT done boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $_$
#variable_conflict error
declare
    v_owner           text;
    v_replica_version text;
    v_reserved        text collate "C";
    v_purged          text collate "C";
    v_minimum         text collate "C";
    v_limit           text collate "C";
    v_end             text collate "C";
begin
    if purge_change_log.before is null or purge_change_log.max_rows is null or purge_change_log.max_rows < 1 then
        raise exception 'purge of change log % is not valid', quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = format('Before: %s. max_rows: %s.',
                    quote_nullable(purge_change_log.before), quote_nullable(purge_change_log.max_rows)),
                hint = 'Both are needed, and max_rows is 1 or more.';
    end if;

    -- Any bound will do, but a word that is none would purge everything but the newest transaction.
    if purge_change_log.before !~ '^[0-9]+$' then
        perform _check_watermark(purge_change_log.before);
    end if;

    -- A snapshot that stays would miss reservations that were opened since.
    perform _check_transaction();

    -- A plain look: it ends a deposed owner early, and it takes the weak lock on the state first, as a reset wants it.
    select s.owner, c."replicaVersion", p.purged_watermark
    into v_owner, v_replica_version, v_purged
    from "replicationState" as s
    cross join "replicationConfig" as c
    left join progress as p on p.replica_version = c."replicaVersion";

    if not found
        or v_owner is distinct from purge_change_log.owner
        or v_replica_version <> purge_change_log.replica_version
    then
        perform _lock_state(purge_change_log.owner,
            coalesce(purge_change_log.replica_version, v_replica_version), null); -- says what is wrong
    end if;

    begin
        select l.watermark
        into v_minimum
        from "changeLog" as l
        where l.watermark >= coalesce(v_purged, '')
        order by l.watermark, l.pos
        limit 1
        for update nowait;
    exception when lock_not_available then
        raise exception 'change log % may not be purged now', quote_ident(current_schema())
            using errcode = '55P03',
                detail = 'Somebody holds the purge lock, or another purge is under way.',
                hint = 'Try again later. lock_holders() shows who it may be: RowShareLock on "changeLog".';
    end;

    -- The newest transaction stays, since before may be ahead of the log; and so does what somebody restores.
    v_limit := least(
        purge_change_log.before,
        (select max(l.watermark) from "changeLog" as l),
        (select min(r.watermark) from reservation as r where r.owner = v_owner));

    -- Where max_rows end, or at least one transaction: none is torn.
    select l.watermark
    into v_end
    from "changeLog" as l
    where l.watermark >= v_minimum
        and l.watermark < v_limit
    order by l.watermark, l.pos
    offset purge_change_log.max_rows
    limit 1;
    if v_end = v_minimum then
        select min(l.watermark)
        into v_end
        from "changeLog" as l
        where l.watermark > v_minimum;
    end if;
    v_end := least(v_end, v_limit);

    delete from "changeLog" as l
    where l.watermark >= v_minimum
        and l.watermark < v_end;
    get diagnostics deleted = row_count;
    done := coalesce(v_end = v_limit, true);

    -- Only now, so that no storer ever waits for a deletion.
    perform
    from "replicationState" as s
    cross join "replicationConfig" as c
    where s.owner is not distinct from purge_change_log.owner
        and c."replicaVersion" = v_replica_version
    for share of s;

    if not found then
        perform _lock_state(purge_change_log.owner, v_replica_version, null); -- says what is wrong
    end if;

    if deleted > 0 then
        delete from progress as p
        where p.replica_version <> v_replica_version;

        insert into progress as p (replica_version, purged_watermark)
        values (v_replica_version, v_end)
        on conflict (lock) do update
        set purged_watermark = excluded.purged_watermark;
    end if;
end
$_$;


--
-- Name: FUNCTION purge_change_log(before text, owner text, max_rows integer, replica_version text, OUT deleted bigint, OUT done boolean); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.purge_change_log(before text, owner text, max_rows integer, replica_version text, OUT deleted bigint, OUT done boolean) IS 'Deletes transactions before a watermark, the oldest ones first: one step of whole transactions with about max_rows rows. The newest transaction stays, and what a reservation holds. Call it, each time in a transaction of its own, until done.
Returns: deleted: number of rows; done: whether nothing more is to be deleted.
Errors: ZC001 the caller is not the owner (null: nobody is) or at another replica version (null: any will do), ZC004 standby, ZC005 not read committed, ZC006 not initialised, ZC010 arguments not valid, 55P03 somebody holds the purge lock.
Locks: the oldest row of "changeLog" at once or not at all, the rows it deletes, then the row of "replicationState" in share mode and the row of progress, until the caller''s transaction ends.';


--
-- Name: register_streamer(text, text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.register_streamer(task_id text, owner text, owner_address text, slot_prefix text DEFAULT NULL::text, OUT id bigint, OUT slot text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $_$
#variable_conflict error
begin
    if register_streamer.task_id is null
        or register_streamer.owner is null
        or not starts_with(register_streamer.owner, register_streamer.task_id || '/')
        or length(register_streamer.owner) <= length(register_streamer.task_id) + 1
    then
        raise exception 'owner % is not an incarnation of task %',
                quote_nullable(register_streamer.owner), quote_nullable(register_streamer.task_id)
            using errcode = 'ZC010',
                detail = 'An owner is the task id, a slash, and a random incarnation.',
                hint = 'Pass for example task_id => ''a'', owner => ''a/7f3c''.';
    end if;

    insert into streamer as r (owner, task_id, owner_address)
    values (register_streamer.owner, register_streamer.task_id, register_streamer.owner_address)
    on conflict on constraint streamer_owner_key do nothing
    returning r.id into register_streamer.id;

    if not found then
        select r.id, r.slot
        into strict register_streamer.id, register_streamer.slot
        from streamer as r
        where r.owner = register_streamer.owner;
        return;
    end if;

    if register_streamer.slot_prefix is null then
        return;
    end if;

    register_streamer.slot := register_streamer.slot_prefix || register_streamer.id;
    if register_streamer.slot !~ '^[a-z0-9_]{1,63}$' then
        raise exception 'slot name % is not valid', quote_literal(register_streamer.slot)
            using errcode = 'ZC012',
                detail = format('It has %s characters; a slot name has 1 to 63 of a-z, 0-9 and _.',
                    length(register_streamer.slot)),
                hint = 'Choose a shorter application id, or one without other characters.';
    end if;

    update streamer as r
    set slot = register_streamer.slot
    where r.id = register_streamer.id;
end
$_$;


--
-- Name: FUNCTION register_streamer(task_id text, owner text, owner_address text, slot_prefix text, OUT id bigint, OUT slot text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.register_streamer(task_id text, owner text, owner_address text, slot_prefix text, OUT id bigint, OUT slot text) IS 'Registers an incarnation, before it makes a replication slot: a slot without a row would hold WAL for ever.
Returns: id, which grows, and the name for its slot: slot_prefix and the id (null without a prefix); again for the same owner: the same.
Errors: ZC010 owner is not <task id>/<incarnation>, ZC012 the slot name would not be valid.
Locks: the new row of streamer.';


--
-- Name: reinitialize_change_log(text, text, text, jsonb, text, interval, interval, interval, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.reinitialize_change_log(watermark text, owner text, owner_address text DEFAULT NULL::text, cookies jsonb DEFAULT '{}'::jsonb, terminate_app text DEFAULT 'zero-change-streamer'::text, grace interval DEFAULT '00:00:05'::interval, retry_every interval DEFAULT '00:00:02'::interval, max_wait interval DEFAULT '00:01:00'::interval, replica_version text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    SET lock_timeout TO '0'
    AS $$
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


--
-- Name: FUNCTION reinitialize_change_log(watermark text, owner text, owner_address text, cookies jsonb, terminate_app text, grace interval, retry_every interval, max_wait interval, replica_version text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.reinitialize_change_log(watermark text, owner text, owner_address text, cookies jsonb, terminate_app text, grace interval, retry_every interval, max_wait interval, replica_version text) IS 'Makes the log fit a replica at the watermark: keeps it if it reaches that far, else drops what it holds, begins it there and gives it to owner (null: nobody, so that the streamer that starts next takes it). Sessions of terminate_app (null: nobody) that hold the tables are ended after grace, then again every retry_every; others never. Call it alone in its transaction.
Returns: maintained (nothing was changed) or reinitialized.
Errors: ZC001 another replica version (null: any will do), ZC002 tables still locked after max_wait, ZC003 another reset runs, ZC004 standby, ZC005 not read committed, ZC006 not initialised, ZC009 the owner was deposed or condemned, ZC010 arguments not valid, ZC014 the log begins past the watermark, ZC016 a younger incarnation owns the log; notice ZC100 for each session ended, warning ZC102 for each that may not be.
Locks: an advisory lock of the schema, then "replicationState", "changeLog", "tableMetadata", "backfilling" in access exclusive mode, then progress and streamer in share row exclusive mode, until the caller''s transaction ends. Notifies channel cdc.';


--
-- Name: report_backup(text, text, timestamp with time zone); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.report_backup(watermark text, replica_version text, at timestamp with time zone DEFAULT now()) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_replica_version text;
    v_backup          text;
begin
    perform decode_watermark(report_backup.watermark); -- also refuses more than 64 bits, which would never be reached
    perform _check_watermark(report_backup.watermark);
    -- The time never goes back either, so one that is far ahead would stay; and programs can not read infinity.
    if report_backup.at is null
        or report_backup.at not between '2000-01-01 00:00+00' and clock_timestamp() + interval '1 day'
    then
        raise exception 'time of the backup is not valid'
            using errcode = 'ZC010',
                detail = format('Watermark: %s. at: %s.', report_backup.watermark, quote_nullable(report_backup.at)),
                hint = 'Leave at out, or pass the time at which the backup was complete.';
    end if;

    -- The weak lock of this look keeps a reset out until the transaction ends.
    select c."replicaVersion"
    into v_replica_version
    from "replicationConfig" as c;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if report_backup.replica_version is distinct from v_replica_version then
        raise exception 'change log % belongs to another history than the backup', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the backup at %s.',
                    quote_literal(v_replica_version), quote_nullable(report_backup.replica_version)),
                hint = 'Its watermarks say nothing about this log: make a backup of a replica of the new history.';
    end if;

    delete from progress as p
    where p.replica_version <> report_backup.replica_version;

    insert into progress as p (replica_version, backup_watermark, backup_at)
    values (report_backup.replica_version, report_backup.watermark, report_backup.at)
    on conflict (lock) do update
    set backup_watermark = excluded.backup_watermark,
        backup_at = greatest(p.backup_at, excluded.backup_at)
    where p.backup_watermark is null
        or p.backup_watermark <= excluded.backup_watermark;

    if not found then
        select p.backup_watermark
        into v_backup
        from progress as p;
        raise exception 'backup of change log % does not go back to %',
                quote_ident(current_schema()), quote_literal(report_backup.watermark)
            using errcode = 'ZC015',
                detail = format('It was reported at %s before.', v_backup),
                hint = 'What lies before that may be purged already. If that report was wrong, call forget_backup() and report '
                    'again.';
    end if;
end
$$;


--
-- Name: FUNCTION report_backup(watermark text, replica_version text, at timestamp with time zone); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.report_backup(watermark text, replica_version text, at timestamp with time zone) IS 'Records that a backup of a replica of this history holds everything up to the watermark, and was complete at that time. What lies before it may be purged from then on.
Returns: nothing; the same watermark again is no error.
Errors: ZC001 another replica version, ZC006 not initialised, ZC010 arguments not valid, ZC015 the watermark is before the one reported last.
Locks: the row of progress, until the caller''s transaction ends.';


--
-- Name: report_floor(text, text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.report_floor(owner text, replica_version text, floor_watermark text, floor_holder text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION report_floor(owner text, replica_version text, floor_watermark text, floor_holder text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.report_floor(owner text, replica_version text, floor_watermark text, floor_holder text) IS 'Records up to where the log may be purged, and what keeps that from going on: for people.
Returns: true; false: another one owns the log, or it was reset.
Errors: none.
Locks: the row of progress, until the caller''s transaction ends.';


--
-- Name: report_progress(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.report_progress(owner text, replica_version text, streamed_watermark text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    -- The record never goes down, so one that is none would stay.
    perform _check_watermark(report_progress.streamed_watermark);

    perform
    from "replicationState" as s
    cross join "replicationConfig" as c
    where s.owner = report_progress.owner
        and c."replicaVersion" = report_progress.replica_version
    for update of s;

    if not found then
        return false;
    end if;

    delete from progress as p
    where p.replica_version <> report_progress.replica_version;

    insert into progress as p (replica_version, streamed_watermark, streamed_at)
    values (report_progress.replica_version, report_progress.streamed_watermark, now())
    on conflict (lock) do update
    set streamed_watermark = excluded.streamed_watermark,
        streamed_at = excluded.streamed_at
    where p.streamed_watermark is null
        or p.streamed_watermark < excluded.streamed_watermark;

    return true;
end
$$;


--
-- Name: FUNCTION report_progress(owner text, replica_version text, streamed_watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.report_progress(owner text, replica_version text, streamed_watermark text) IS 'Records that the log holds every published commit up to streamed_watermark. Also how an idle owner notices that it lost.
Returns: true: the caller owns the log, and the record is at streamed_watermark or past it; false: another one owns it, or it was reset.
Errors: ZC010 not a watermark.
Locks: the row of "replicationState", then the row of progress, until the caller''s transaction ends.';


--
-- Name: retention_mark; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc.retention_mark (
    watermark text NOT NULL COLLATE pg_catalog."C",
    replica_version text NOT NULL,
    marked_at timestamp with time zone DEFAULT now() NOT NULL,
    num_bytes bigint NOT NULL
);


--
-- Name: TABLE retention_mark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc.retention_mark IS 'Where the head of the log was, and when. Marks of another history are void.';


--
-- Name: COLUMN retention_mark.watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.retention_mark.watermark IS 'The head.';


--
-- Name: COLUMN retention_mark.replica_version; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.retention_mark.replica_version IS 'The history it belongs to.';


--
-- Name: COLUMN retention_mark.marked_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.retention_mark.marked_at IS 'When the log ended there.';


--
-- Name: COLUMN retention_mark.num_bytes; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.retention_mark.num_bytes IS 'Bytes of changes that were ever stored up to there, about.';


--
-- Name: retained_watermark(interval, bigint); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.retained_watermark(max_age interval DEFAULT NULL::interval, max_bytes bigint DEFAULT NULL::bigint) RETURNS text
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT GREATEST(( SELECT max(m.watermark) AS max
            FROM (cdc.retention_mark m
              JOIN cdc."replicationConfig" c ON ((c."replicaVersion" = m.replica_version)))
           WHERE (m.marked_at <= (now() - retained_watermark.max_age))), ( SELECT NULLIF(min(m.watermark) FILTER (WHERE (m.num_bytes >= (t.num_bytes - retained_watermark.max_bytes))), min(m.watermark)) AS "nullif"
            FROM ((cdc.retention_mark m
              JOIN cdc."replicationConfig" c ON ((c."replicaVersion" = m.replica_version)))
              CROSS JOIN ( SELECT max(n.num_bytes) AS num_bytes
                    FROM (cdc.retention_mark n
                      JOIN cdc."replicationConfig" d ON ((d."replicaVersion" = n.replica_version)))) t))) AS "greatest";
END;


--
-- Name: FUNCTION retained_watermark(max_age interval, max_bytes bigint); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.retained_watermark(max_age interval, max_bytes bigint) IS 'Says what purge_change_log may delete by age and size: what is older than max_age, and what is more than the newest max_bytes (null: no such limit).
Returns: the watermark to purge before; null: nothing.
Errors: none.
Locks: none.';


--
-- Name: retire_streamer(bigint, boolean); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.retire_streamer(id bigint, slot_dropped boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    update streamer as r
    set state = 'gone',
        slot = case when not retire_streamer.slot_dropped then r.slot end,
        changed_at = now()
    where r.id = retire_streamer.id;

    if not found then
        raise exception 'streamer % is not registered', retire_streamer.id
            using errcode = 'ZC011',
                hint = 'Look at the table streamer.';
    end if;
end
$$;


--
-- Name: FUNCTION retire_streamer(id bigint, slot_dropped boolean); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.retire_streamer(id bigint, slot_dropped boolean) IS 'Notes that an incarnation has stopped, or (slot_dropped) that its slot does not exist any more.
Returns: nothing; doing it again changes nothing.
Errors: ZC011 no such id.
Locks: the row of streamer, until the caller''s transaction ends.';


--
-- Name: store_changes(text, text, text, text[], bigint[], json[], text[], text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.store_changes(owner text, replica_version text, expected_head text, watermarks text[], positions bigint[], changes json[], precommits text[], last_watermark text, OUT stored bigint, OUT head text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_owner           text;
    v_head            text collate "C";
    v_replica_version text;
begin
    -- Every batch comes through here, so the check is made without another call; _lock_state says what is wrong.
    select s.owner, s."lastWatermark", c."replicaVersion"
    into v_owner, v_head, v_replica_version
    from "replicationState" as s
    cross join "replicationConfig" as c
    for update of s;

    if not found
        or v_owner is distinct from store_changes.owner
        or v_replica_version is distinct from store_changes.replica_version
        or v_head < store_changes.expected_head
    then
        v_head := _lock_state(store_changes.owner, store_changes.replica_version, store_changes.expected_head,
            newcomer => true);
    end if;

    -- A batch whose outcome was unknown comes again: what is stored is left out, in whole transactions.
    insert into "changeLog" (watermark, pos, change, precommit)
    select u.watermark, u.pos, u.change, nullif(u.precommit, '')
    from unnest(store_changes.watermarks, store_changes.positions, store_changes.changes, store_changes.precommits)
        as u (watermark, pos, change, precommit)
    where u.watermark > v_head;
    get diagnostics stored = row_count;

    if store_changes.last_watermark > v_head then
        v_head := store_changes.last_watermark;
        update "replicationState" as s
        set "lastWatermark" = v_head;

        if v_owner is distinct from store_changes.owner then
            perform _take_over(store_changes.owner);
        end if;
    end if;

    head := v_head;
end
$$;


--
-- Name: FUNCTION store_changes(owner text, replica_version text, expected_head text, watermarks text[], positions bigint[], changes json[], precommits text[], last_watermark text, OUT stored bigint, OUT head text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.store_changes(owner text, replica_version text, expected_head text, watermarks text[], positions bigint[], changes json[], precommits text[], last_watermark text, OUT stored bigint, OUT head text) IS 'Stores whole transactions, given as one array for each column of the log, and moves the head to last_watermark. An empty precommit is null. A newcomer that has called announce_takeover takes the log over with the first transaction past the head.
Returns: stored: number of rows; transactions at or below the head are left out, so a replay gives 0. head: the head now; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", and when the owner changes rows of streamer, until the caller''s transaction ends. Notifies channel cdc when the owner changes.';


--
-- Name: store_open(text, text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.store_open(owner text, replica_version text, expected_head text, watermark text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_head text collate "C";
begin
    v_head := _lock_state(store_open.owner, store_open.replica_version, store_open.expected_head, newcomer => true);

    if v_head >= store_open.watermark then
        raise exception 'transaction % is already in change log %',
                quote_literal(store_open.watermark), quote_ident(current_schema())
            using errcode = 'ZC008',
                detail = format('The head is %s.', v_head),
                hint = 'Go on with the next transaction.';
    end if;

    return v_head;
end
$$;


--
-- Name: FUNCTION store_open(owner text, replica_version text, expected_head text, watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.store_open(owner text, replica_version text, expected_head text, watermark text) IS 'Begins to store one transaction by COPY into "changeLog"; store_close ends it, in the same database transaction.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC008 the transaction is stored already, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", until the caller''s transaction ends.';


--
-- Name: stream_start(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb) RETURNS SETOF record
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT s."lastWatermark",
     c."replicaVersion",
     COALESCE(( SELECT min(l.watermark) AS min
            FROM cdc."changeLog" l
           WHERE (l.watermark >= COALESCE(p.purged_watermark, ''::text))), s."lastWatermark") AS "coalesce",
     p.streamed_watermark,
     s.owner,
     s."ownerAddress",
         CASE
             WHEN (s.owner IS NOT NULL) THEN ( SELECT r.slot
                FROM cdc.streamer r
               WHERE (r.owner = s.owner))
             ELSE ( SELECT r.slot
                FROM cdc.streamer r
               WHERE (r.slot IS NOT NULL)
               ORDER BY r.id DESC
              LIMIT 1)
         END AS slot,
     c.publications,
     COALESCE(c."resetRequired", false) AS "coalesce",
     ( SELECT COALESCE(jsonb_agg(t.request ORDER BY (t.schema COLLATE "C"), (t."table" COLLATE "C")), '[]'::jsonb) AS "coalesce"
            FROM ( SELECT b.schema,
                     b."table",
                     jsonb_build_object('table', jsonb_build_object('schema', b.schema, 'name', b."table", 'metadata', m.metadata), 'columns', jsonb_object_agg(b."column", b.backfill)) AS request
                    FROM (cdc.backfilling b
                      LEFT JOIN cdc."tableMetadata" m ON (((m.schema = b.schema) AND (m."table" = b."table"))))
                   GROUP BY b.schema, b."table", m.metadata) t) AS "coalesce",
     jsonb_build_object('tableMetadata', ( SELECT COALESCE(jsonb_agg(jsonb_build_object('schema', m.schema, 'table', m."table", 'metadata', m.metadata) ORDER BY (m.schema COLLATE "C"), (m."table" COLLATE "C")), '[]'::jsonb) AS "coalesce"
            FROM cdc."tableMetadata" m), 'backfilling', ( SELECT COALESCE(jsonb_agg(jsonb_build_object('schema', b.schema, 'table', b."table", 'column', b."column", 'backfill', b.backfill) ORDER BY (b.schema COLLATE "C"), (b."table" COLLATE "C"), (b."column" COLLATE "C")), '[]'::jsonb) AS "coalesce"
            FROM cdc.backfilling b)) AS jsonb_build_object
    FROM ((cdc."replicationState" s
      CROSS JOIN cdc."replicationConfig" c)
      LEFT JOIN cdc.progress p ON (((p.lock = 1) AND (p.replica_version = c."replicaVersion"))))
   WHERE ((s.lock = 1) AND (c.lock = 1));
END;


--
-- Name: FUNCTION stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb) IS 'Reads from one snapshot all that a stream starts from.
Returns: one row: head, replica version, minimum (of an empty log: the head), streamed_watermark (null: not known for this history), owner, its address, its slot (nobody owns the log: the slot registered last), publications, whether a reset is required, backfill requests, and cookies; no row when the log is not initialised.
Errors: none.
Locks: none.';


--
-- Name: terminate_lock_holders(text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.terminate_lock_holders(app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean) RETURNS SETOF record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION terminate_lock_holders(app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.terminate_lock_holders(app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean) IS 'Ends the sessions of one application that hold locks on the tables of the log. It can not be undone by a rollback.
Returns: pid, application name, query (its first 200 characters), and whether it was told to end; no row: nobody is in the way.
Errors: ZC010 no application given; notice ZC100 for each session that was told to end, warning ZC102 for each that may not be.
Locks: none.';


--
-- Name: reservation; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc.reservation (
    id bigint NOT NULL,
    owner text NOT NULL,
    task_id text NOT NULL,
    watermark text COLLATE pg_catalog."C",
    opened_at timestamp with time zone DEFAULT now() NOT NULL,
    confirmed_at timestamp with time zone,
    CONSTRAINT reservation_confirmed_check CHECK (((confirmed_at IS NULL) OR (watermark IS NOT NULL)))
);


--
-- Name: TABLE reservation; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON TABLE cdc.reservation IS 'A row for every subscriber that is restoring a replica. Those of an incarnation that does not own the log are void.';


--
-- Name: COLUMN reservation.id; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.reservation.id IS 'Tells a reservation from the one that replaced it.';


--
-- Name: COLUMN reservation.owner; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.reservation.owner IS 'The incarnation that serves the subscriber, and closes the row when it is gone.';


--
-- Name: COLUMN reservation.task_id; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.reservation.task_id IS 'Task of the subscriber; a newer reservation of the same task replaces this one.';


--
-- Name: COLUMN reservation.watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.reservation.watermark IS 'Nothing at or past it is purged; null: no backup was known when it was opened, so there was nothing to hold.';


--
-- Name: COLUMN reservation.opened_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.reservation.opened_at IS 'When it was opened.';


--
-- Name: COLUMN reservation.confirmed_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.reservation.confirmed_at IS 'When the subscriber was told what to restore; null: not yet.';


--
-- Name: reservation_id_seq; Type: SEQUENCE; Schema: cdc; Owner: -
--

ALTER TABLE cdc.reservation ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME cdc.reservation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: schema_version; Type: TABLE; Schema: cdc; Owner: -
--

CREATE TABLE cdc.schema_version (
    version integer NOT NULL
);


--
-- Name: status; Type: VIEW; Schema: cdc; Owner: -
--

CREATE VIEW cdc.status WITH (security_invoker='true') AS
 SELECT (n.nspname)::text AS schema,
    s.owner,
    s."ownerAddress" AS owner_address,
    r.slot,
    c."replicaVersion" AS replica_version,
    c.publications,
    COALESCE(c."resetRequired", false) AS reset_required,
    s."lastWatermark" AS head,
    COALESCE(( SELECT min(m.watermark) AS min
           FROM cdc."changeLog" m
          WHERE (m.watermark >= COALESCE(p.purged_watermark, ''::text))), s."lastWatermark") AS minimum,
    p.streamed_watermark,
    p.streamed_at,
    p.backup_watermark,
    p.backup_at,
    (GREATEST(l.reltuples, (0)::real))::bigint AS num_rows,
    pg_total_relation_size((l.oid)::regclass) AS num_bytes,
    ( SELECT count(*) AS count
           FROM cdc.streamer q
          WHERE (q.state <> 'gone'::text)) AS num_streamers,
    ( SELECT count(*) AS count
           FROM cdc.backfilling b) AS num_backfilling,
    r.state AS owner_state,
    ( SELECT count(*) AS count
           FROM cdc.reservation v
          WHERE (v.owner = s.owner)) AS num_reservations,
    ( SELECT min(v.watermark) AS min
           FROM cdc.reservation v
          WHERE (v.owner = s.owner)) AS reserved_watermark,
    o.opened_at AS reserved_at,
    p.floor_watermark,
    p.floor_holder,
    p.floor_at
   FROM ((((((pg_class l
     JOIN pg_namespace n ON ((n.oid = l.relnamespace)))
     LEFT JOIN cdc."replicationState" s ON ((s.lock = 1)))
     LEFT JOIN cdc."replicationConfig" c ON ((c.lock = 1)))
     LEFT JOIN cdc.progress p ON (((p.lock = 1) AND (p.replica_version = c."replicaVersion"))))
     LEFT JOIN cdc.streamer r ON ((r.owner = s.owner)))
     LEFT JOIN cdc.reservation o ON ((o.id = ( SELECT v.id
           FROM cdc.reservation v
          WHERE (v.owner = s.owner)
          ORDER BY v.opened_at
         LIMIT 1))))
  WHERE (l.oid = ('cdc."changeLog"'::regclass)::oid);


--
-- Name: VIEW status; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON VIEW cdc.status IS 'One row for people: who owns the log, what it holds, and how far stream and backup have come.';


--
-- Name: COLUMN status.schema; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.schema IS 'Schema of the log.';


--
-- Name: COLUMN status.owner; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.owner IS 'Task id and incarnation of the owner; null when nobody owns the log.';


--
-- Name: COLUMN status.owner_address; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.owner_address IS 'Where subscribers reach the owner.';


--
-- Name: COLUMN status.slot; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.slot IS 'Replication slot of the owner, if it has registered one.';


--
-- Name: COLUMN status.replica_version; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.replica_version IS 'History the log belongs to; null when it is not initialised.';


--
-- Name: COLUMN status.publications; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.publications IS 'The publications streamed.';


--
-- Name: COLUMN status.reset_required; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.reset_required IS 'True when the log can not be continued.';


--
-- Name: COLUMN status.head; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.head IS 'The greatest commit watermark stored.';


--
-- Name: COLUMN status.minimum; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.minimum IS 'The smallest position that a subscriber can be caught up from.';


--
-- Name: COLUMN status.streamed_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.streamed_watermark IS 'Every published commit up to here is in the log.';


--
-- Name: COLUMN status.streamed_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.streamed_at IS 'When streamed_watermark was set.';


--
-- Name: COLUMN status.backup_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.backup_watermark IS 'A backup of a replica holds everything up to here.';


--
-- Name: COLUMN status.backup_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.backup_at IS 'When backup_watermark was set.';


--
-- Name: COLUMN status.num_rows; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.num_rows IS 'Rows in the log as the planner estimates them; 0 until the table was analysed.';


--
-- Name: COLUMN status.num_bytes; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.num_bytes IS 'Size of the log on disk with its index.';


--
-- Name: COLUMN status.num_streamers; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.num_streamers IS 'Registered incarnations that are not gone.';


--
-- Name: COLUMN status.num_backfilling; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.num_backfilling IS 'Columns whose backfill has not completed.';


--
-- Name: COLUMN status.owner_state; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.owner_state IS 'What the owner''s registration says of it: owner, or gone when it has stopped.';


--
-- Name: COLUMN status.num_reservations; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.num_reservations IS 'Subscribers that are restoring a replica.';


--
-- Name: COLUMN status.reserved_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.reserved_watermark IS 'They hold back the purge of everything at or past this.';


--
-- Name: COLUMN status.reserved_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.reserved_at IS 'When the oldest of their reservations was opened.';


--
-- Name: COLUMN status.floor_watermark; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.floor_watermark IS 'The log may be purged up to here; null while nothing was worked out.';


--
-- Name: COLUMN status.floor_holder; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.floor_holder IS 'What keeps it from going on: backup, retention, a subscriber.';


--
-- Name: COLUMN status.floor_at; Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON COLUMN cdc.status.floor_at IS 'When that was worked out.';


--
-- Name: streamer_id_seq; Type: SEQUENCE; Schema: cdc; Owner: -
--

ALTER TABLE cdc.streamer ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME cdc.streamer_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: backfilling backfilling_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.backfilling
    ADD CONSTRAINT backfilling_pkey PRIMARY KEY (schema, "table", "column");


--
-- Name: changeLog changeLog_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc."changeLog"
    ADD CONSTRAINT "changeLog_pkey" PRIMARY KEY (watermark, pos);


--
-- Name: progress progress_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (lock);


--
-- Name: replicationConfig replicationConfig_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc."replicationConfig"
    ADD CONSTRAINT "replicationConfig_pkey" PRIMARY KEY (lock);


--
-- Name: replicationState replicationState_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc."replicationState"
    ADD CONSTRAINT "replicationState_pkey" PRIMARY KEY (lock);


--
-- Name: reservation reservation_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.reservation
    ADD CONSTRAINT reservation_pkey PRIMARY KEY (id);


--
-- Name: reservation reservation_task_id_key; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.reservation
    ADD CONSTRAINT reservation_task_id_key UNIQUE (task_id);


--
-- Name: retention_mark retention_mark_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.retention_mark
    ADD CONSTRAINT retention_mark_pkey PRIMARY KEY (watermark);


--
-- Name: streamer streamer_owner_key; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.streamer
    ADD CONSTRAINT streamer_owner_key UNIQUE (owner);


--
-- Name: streamer streamer_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.streamer
    ADD CONSTRAINT streamer_pkey PRIMARY KEY (id);


--
-- Name: streamer streamer_slot_key; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc.streamer
    ADD CONSTRAINT streamer_slot_key UNIQUE (slot);


--
-- Name: tableMetadata tableMetadata_pkey; Type: CONSTRAINT; Schema: cdc; Owner: -
--

ALTER TABLE ONLY cdc."tableMetadata"
    ADD CONSTRAINT "tableMetadata_pkey" PRIMARY KEY (schema, "table");


--
-- Name: FUNCTION _begin_change_log(watermark text, owner text, owner_address text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._begin_change_log(watermark text, owner text, owner_address text) FROM PUBLIC;


--
-- Name: FUNCTION _check_cookies(cookies jsonb); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._check_cookies(cookies jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _check_incarnation(owner text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._check_incarnation(owner text) FROM PUBLIC;


--
-- Name: FUNCTION _check_newcomer(owner text, previous_owner text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._check_newcomer(owner text, previous_owner text) FROM PUBLIC;


--
-- Name: FUNCTION _check_transaction(); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._check_transaction() FROM PUBLIC;


--
-- Name: FUNCTION _check_watermark(watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._check_watermark(watermark text) FROM PUBLIC;


--
-- Name: FUNCTION _check_younger(owner text, previous_owner text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._check_younger(owner text, previous_owner text) FROM PUBLIC;


--
-- Name: FUNCTION _compare_configuration(replica_version text, publications text[], watermark text, slot_watermark text, auto_reset boolean, OUT result text, OUT detail text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._compare_configuration(replica_version text, publications text[], watermark text, slot_watermark text, auto_reset boolean, OUT result text, OUT detail text) FROM PUBLIC;


--
-- Name: FUNCTION _functions_of(access text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._functions_of(access text) FROM PUBLIC;


--
-- Name: FUNCTION _keeps_log(watermark text, owner text, replica_version text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._keeps_log(watermark text, owner text, replica_version text) FROM PUBLIC;


--
-- Name: FUNCTION _limit_lock_wait(wait interval); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._limit_lock_wait(wait interval) FROM PUBLIC;


--
-- Name: FUNCTION _lock_configuration(max_wait interval); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._lock_configuration(max_wait interval) FROM PUBLIC;


--
-- Name: FUNCTION _lock_state(owner text, replica_version text, expected_head text, newcomer boolean); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._lock_state(owner text, replica_version text, expected_head text, newcomer boolean) FROM PUBLIC;


--
-- Name: FUNCTION _make_way(relations text[], terminate_app text, started_at timestamp with time zone, max_wait interval, cause text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._make_way(relations text[], terminate_app text, started_at timestamp with time zone, max_wait interval, cause text) FROM PUBLIC;


--
-- Name: FUNCTION _set_cookies(cookies jsonb); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._set_cookies(cookies jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _settle_streamers(owner text, owner_address text, slot text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._settle_streamers(owner text, owner_address text, slot text) FROM PUBLIC;


--
-- Name: FUNCTION _take_over(owner text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._take_over(owner text) FROM PUBLIC;


--
-- Name: FUNCTION _terminate_lock_holders(relations text[], app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._terminate_lock_holders(relations text[], app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean) FROM PUBLIC;


--
-- Name: FUNCTION _try_lock_tables(relations text[], slice interval); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._try_lock_tables(relations text[], slice interval) FROM PUBLIC;


--
-- Name: FUNCTION acquire_purge_lock(slot_watermark text, OUT status text, OUT replica_version text, OUT minimum text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.acquire_purge_lock(slot_watermark text, OUT status text, OUT replica_version text, OUT minimum text) FROM PUBLIC;


--
-- Name: FUNCTION announce_takeover(owner text, replica_version text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.announce_takeover(owner text, replica_version text) FROM PUBLIC;


--
-- Name: FUNCTION append_changes(owner text, replica_version text, watermark text, positions bigint[], changes json[], precommits text[]); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.append_changes(owner text, replica_version text, watermark text, positions bigint[], changes json[], precommits text[]) FROM PUBLIC;


--
-- Name: FUNCTION assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text) FROM PUBLIC;


--
-- Name: FUNCTION assume_ownership_at_head(owner text, owner_address text, replica_version text, watermark text, expected_head text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.assume_ownership_at_head(owner text, owner_address text, replica_version text, watermark text, expected_head text) FROM PUBLIC;


--
-- Name: FUNCTION begin_transaction(owner text, replica_version text, expected_head text, watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.begin_transaction(owner text, replica_version text, expected_head text, watermark text) FROM PUBLIC;


--
-- Name: FUNCTION catchup_bounds(OUT minimum text, OUT head text, OUT replica_version text, OUT owner text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.catchup_bounds(OUT minimum text, OUT head text, OUT replica_version text, OUT owner text) FROM PUBLIC;


--
-- Name: FUNCTION change_streamer_address(); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.change_streamer_address() FROM PUBLIC;


--
-- Name: FUNCTION clear_reset_required(); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.clear_reset_required() FROM PUBLIC;


--
-- Name: FUNCTION close_reservation(id bigint); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.close_reservation(id bigint) FROM PUBLIC;


--
-- Name: FUNCTION store_close(owner text, replica_version text, last_watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.store_close(owner text, replica_version text, last_watermark text) FROM PUBLIC;


--
-- Name: FUNCTION commit_transaction(owner text, replica_version text, last_watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.commit_transaction(owner text, replica_version text, last_watermark text) FROM PUBLIC;


--
-- Name: FUNCTION condemn_streamer(id bigint, owner text, replica_version text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.condemn_streamer(id bigint, owner text, replica_version text) FROM PUBLIC;


--
-- Name: FUNCTION confirm_reservation(id bigint, watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.confirm_reservation(id bigint, watermark text) FROM PUBLIC;


--
-- Name: FUNCTION dead_streamers(owner text, OUT id bigint, OUT slot text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.dead_streamers(owner text, OUT id bigint, OUT slot text) FROM PUBLIC;


--
-- Name: FUNCTION decode_watermark(watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.decode_watermark(watermark text) FROM PUBLIC;


--
-- Name: FUNCTION encode_watermark(lsn pg_lsn); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.encode_watermark(lsn pg_lsn) FROM PUBLIC;


--
-- Name: FUNCTION ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, cookies jsonb, slot_watermark text, terminate_app text, grace interval, retry_every interval, max_wait interval, OUT result text, OUT detail text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, cookies jsonb, slot_watermark text, terminate_app text, grace interval, retry_every interval, max_wait interval, OUT result text, OUT detail text) FROM PUBLIC;


--
-- Name: FUNCTION forget_backup(); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.forget_backup() FROM PUBLIC;


--
-- Name: FUNCTION grant_access(role text, access text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.grant_access(role text, access text) FROM PUBLIC;


--
-- Name: FUNCTION lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT user_name text, OUT state text, OUT backend_type text, OUT gid text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT user_name text, OUT state text, OUT backend_type text, OUT gid text) FROM PUBLIC;


--
-- Name: FUNCTION mark_log(owner text, replica_version text, num_bytes bigint); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.mark_log(owner text, replica_version text, num_bytes bigint) FROM PUBLIC;


--
-- Name: FUNCTION mark_reset_required(replica_version text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.mark_reset_required(replica_version text) FROM PUBLIC;


--
-- Name: FUNCTION open_reservation(owner text, replica_version text, task_id text, OUT id bigint, OUT watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.open_reservation(owner text, replica_version text, task_id text, OUT id bigint, OUT watermark text) FROM PUBLIC;


--
-- Name: FUNCTION purge_change_log(before text, owner text, max_rows integer, replica_version text, OUT deleted bigint, OUT done boolean); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.purge_change_log(before text, owner text, max_rows integer, replica_version text, OUT deleted bigint, OUT done boolean) FROM PUBLIC;


--
-- Name: FUNCTION register_streamer(task_id text, owner text, owner_address text, slot_prefix text, OUT id bigint, OUT slot text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.register_streamer(task_id text, owner text, owner_address text, slot_prefix text, OUT id bigint, OUT slot text) FROM PUBLIC;


--
-- Name: FUNCTION reinitialize_change_log(watermark text, owner text, owner_address text, cookies jsonb, terminate_app text, grace interval, retry_every interval, max_wait interval, replica_version text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.reinitialize_change_log(watermark text, owner text, owner_address text, cookies jsonb, terminate_app text, grace interval, retry_every interval, max_wait interval, replica_version text) FROM PUBLIC;


--
-- Name: FUNCTION report_backup(watermark text, replica_version text, at timestamp with time zone); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.report_backup(watermark text, replica_version text, at timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION report_floor(owner text, replica_version text, floor_watermark text, floor_holder text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.report_floor(owner text, replica_version text, floor_watermark text, floor_holder text) FROM PUBLIC;


--
-- Name: FUNCTION report_progress(owner text, replica_version text, streamed_watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.report_progress(owner text, replica_version text, streamed_watermark text) FROM PUBLIC;


--
-- Name: FUNCTION retained_watermark(max_age interval, max_bytes bigint); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.retained_watermark(max_age interval, max_bytes bigint) FROM PUBLIC;


--
-- Name: FUNCTION retire_streamer(id bigint, slot_dropped boolean); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.retire_streamer(id bigint, slot_dropped boolean) FROM PUBLIC;


--
-- Name: FUNCTION store_changes(owner text, replica_version text, expected_head text, watermarks text[], positions bigint[], changes json[], precommits text[], last_watermark text, OUT stored bigint, OUT head text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.store_changes(owner text, replica_version text, expected_head text, watermarks text[], positions bigint[], changes json[], precommits text[], last_watermark text, OUT stored bigint, OUT head text) FROM PUBLIC;


--
-- Name: FUNCTION store_open(owner text, replica_version text, expected_head text, watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.store_open(owner text, replica_version text, expected_head text, watermark text) FROM PUBLIC;


--
-- Name: FUNCTION stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb) FROM PUBLIC;


--
-- Name: FUNCTION terminate_lock_holders(app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.terminate_lock_holders(app text, OUT pid integer, OUT application_name text, OUT query text, OUT terminated boolean) FROM PUBLIC;


--
-- PostgreSQL database dump complete
--
