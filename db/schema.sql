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
-- Name: _lock_configuration(interval); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._lock_configuration(max_wait interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    SET lock_timeout TO '0'
    AS $$
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


--
-- Name: FUNCTION _lock_configuration(max_wait interval); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._lock_configuration(max_wait interval) IS 'Makes the caller the only one that initialises or resets the log of this schema.
Returns: nothing.
Errors: ZC003 another one did not end within max_wait, ZC004 standby, ZC005 not read committed.
Locks: a transaction-level advisory lock, keyed by the schema.';


--
-- Name: _lock_state(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._lock_state(owner text, replica_version text, expected_head text) RETURNS text
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


--
-- Name: FUNCTION _lock_state(owner text, replica_version text, expected_head text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._lock_state(owner text, replica_version text, expected_head text) IS 'Locks the state row for a writer and checks that the writer may write.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head (null: any head will do).
Locks: the row of "replicationState", until the caller''s transaction ends.';


--
-- Name: _lock_tables(interval); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._lock_tables(max_wait interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    SET lock_timeout TO '0'
    AS $$
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


--
-- Name: FUNCTION _lock_tables(max_wait interval); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._lock_tables(max_wait interval) IS 'Locks the five tables of the log against everybody, in the one lock order. To be called before any other lock on them.
Returns: nothing.
Errors: ZC002 some lock was not to be had within max_wait.
Locks: "replicationState", "changeLog", "replicationConfig", "tableMetadata", "backfilling" in access exclusive mode, until the caller''s transaction ends.';


--
-- Name: _seed_change_log(text, text[], text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc._seed_change_log(replica_version text, publications text[], watermark text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION _seed_change_log(replica_version text, publications text[], watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc._seed_change_log(replica_version text, publications text[], watermark text) IS 'Begins a history: nobody owns the log, and it holds nothing but a seed transaction.
Returns: nothing.
Errors: 23505 a configuration exists.
Locks: the state row; to be called under the advisory lock of _lock_configuration.';


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
    v_head := _lock_state(append_changes.owner, append_changes.replica_version, null);

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
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC008 the transaction is stored already, 23505 a piece came twice.
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
    if assume_ownership.owner is null then
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

    if exists (
        select
        from streamer as r
        where r.owner = assume_ownership.owner
            and r.state = 'gone'
    ) then
        raise exception 'streamer % may not take change log % over',
                quote_literal(assume_ownership.owner), quote_ident(current_schema())
            using errcode = 'ZC009',
                detail = 'It was deposed or condemned, and its slot may be dropped at any time.',
                hint = 'Register a new incarnation.';
    end if;

    assumed := assume_ownership.force
        or previous_owner is not distinct from assume_ownership.expected
        or previous_owner = assume_ownership.owner;
    if not assumed then
        return;
    end if;

    update "replicationState" as s
    set owner = assume_ownership.owner,
        "ownerAddress" = assume_ownership.owner_address;

    -- Also whoever owned the log before a reset, which leaves no owner behind.
    update streamer as r
    set state = 'gone',
        changed_at = now()
    where r.state = 'owner'
        and r.owner <> assume_ownership.owner;

    if assume_ownership.slot is not null then
        update streamer as r
        set slot = null,
            changed_at = now()
        where r.slot = assume_ownership.slot
            and r.owner <> assume_ownership.owner;
    end if;

    update streamer as r
    set state = 'owner',
        slot = coalesce(assume_ownership.slot, r.slot),
        owner_address = assume_ownership.owner_address,
        changed_at = now()
    where r.owner = assume_ownership.owner;

    if not found and assume_ownership.slot is not null then
        raise exception 'streamer % is not registered', quote_literal(assume_ownership.owner)
            using errcode = 'ZC011',
                detail = format('The slot %s would be nobody''s.', assume_ownership.slot),
                hint = 'Call register_streamer first.';
    end if;

    perform pg_notify('cdc', current_schema());
end
$$;


--
-- Name: FUNCTION assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text) IS 'Takes the log over at once, if its owner is still the one that was seen. force is for people.
Returns: assumed: whether the caller owns the log now; previous_owner: who had it before, or has it still (null: nobody).
Errors: ZC001 another replica version, ZC006 not initialised, ZC009 this incarnation was deposed or condemned, ZC010 no owner given, ZC011 a slot is given but the owner is not registered.
Locks: the row of "replicationState", then rows of streamer, until the caller''s transaction ends. Notifies channel cdc.';


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
    v_head := _lock_state(begin_transaction.owner, begin_transaction.replica_version, begin_transaction.expected_head);

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
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head.
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
);


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
            FROM cdc."changeLog" l), s."lastWatermark") AS "coalesce",
     s."lastWatermark",
     c."replicaVersion",
     s.owner
    FROM (cdc."replicationState" s
      CROSS JOIN cdc."replicationConfig" c);
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
-- Name: store_close(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.store_close(owner text, replica_version text, last_watermark text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
declare
    v_head text collate "C";
begin
    v_head := _lock_state(store_close.owner, store_close.replica_version, null);

    if store_close.last_watermark > v_head then
        v_head := store_close.last_watermark;
        update "replicationState" as s
        set "lastWatermark" = v_head;
    end if;

    return v_head;
end
$$;


--
-- Name: FUNCTION store_close(owner text, replica_version text, last_watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.store_close(owner text, replica_version text, last_watermark text) IS 'Ends what store_open began: moves the head to last_watermark.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised.
Locks: the row of "replicationState", until the caller''s transaction ends.';


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

COMMENT ON FUNCTION cdc.commit_transaction(owner text, replica_version text, last_watermark text) IS 'Ends what begin_transaction began: moves the head to last_watermark. The caller commits.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised.
Locks: the row of "replicationState", until the caller''s transaction ends.';


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
   WHERE ((r.slot IS NOT NULL) AND (r.owner <> dead_streamers.owner) AND ((r.state = 'gone'::text) OR ((r.state = 'starting'::text) AND (r.registered_at < (now() - '01:00:00'::interval)))))
   ORDER BY r.id;
END;


--
-- Name: FUNCTION dead_streamers(owner text, OUT id bigint, OUT slot text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.dead_streamers(owner text, OUT id bigint, OUT slot text) IS 'Lists the incarnations whose slots the owner should drop: those gone, and those that have been starting for an hour.
Returns: id and slot, oldest first; never those of the given owner.
Errors: none.
Locks: none. Call condemn_streamer before dropping anything.';


--
-- Name: ensure_replication_config(text, text[], text, boolean, interval); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean DEFAULT false, max_wait interval DEFAULT '00:01:00'::interval, OUT result text, OUT detail text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, max_wait interval, OUT result text, OUT detail text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, max_wait interval, OUT result text, OUT detail text) IS 'Compares the log with a replica and makes the log fit: initialises an empty one, resets a different one if auto_reset allows it.
Returns: result: initialized, unchanged, reset (the log was dropped and begins at the watermark), or reset_required (nothing was changed; detail says why).
Errors: ZC002 tables still locked, ZC003 another reset or initialisation runs, ZC004 standby, ZC005 not read committed, ZC010 arguments not valid; warning ZC101 a reset is required but not allowed.
Locks: an advisory lock of the schema; for an initialisation the state row; for a reset all tables in access exclusive mode; until the caller''s transaction ends.';


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

CREATE FUNCTION cdc.lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT state text, OUT gid text) RETURNS SETOF record
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT (c.relname)::text AS relname,
     l.mode,
     COALESCE(a.leader_pid, l.pid) AS "coalesce",
     a.application_name,
     COALESCE(a.state, a.backend_type) AS "coalesce",
     p.gid
    FROM ((((pg_locks l
      JOIN pg_class c ON ((c.oid = l.relation)))
      LEFT JOIN pg_stat_activity a ON ((a.pid = l.pid)))
      LEFT JOIN pg_locks x ON (((l.pid IS NULL) AND (x.locktype = 'transactionid'::text) AND (x.virtualtransaction = l.virtualtransaction))))
      LEFT JOIN pg_prepared_xacts p ON ((p.transaction = x.transactionid)))
   WHERE ((l.locktype = 'relation'::text) AND l.granted AND (l.database = ( SELECT d.oid
            FROM pg_database d
           WHERE (d.datname = current_database()))) AND (l.relation = ANY (ARRAY[('cdc."replicationState"'::regclass)::oid, ('cdc."changeLog"'::regclass)::oid, ('cdc."replicationConfig"'::regclass)::oid, ('cdc."tableMetadata"'::regclass)::oid, ('cdc.backfilling'::regclass)::oid])) AND (l.pid IS DISTINCT FROM pg_backend_pid()))
   ORDER BY COALESCE(a.leader_pid, l.pid), ((c.relname)::text), l.mode;
END;


--
-- Name: FUNCTION lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT state text, OUT gid text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT state text, OUT gid text) IS 'Lists who holds locks on the tables of the log, other than the caller.
Returns: relation, lock mode, pid (null: a prepared transaction, named by gid), application name, state; no row: nobody.
Errors: none.
Locks: none.';


--
-- Name: mark_reset_required(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.mark_reset_required() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION mark_reset_required(); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.mark_reset_required() IS 'Notes that the log can not be continued: the next start with auto_reset begins anew.
Returns: nothing; doing it again changes nothing.
Errors: ZC006 not initialised.
Locks: the row of "replicationConfig", until the caller''s transaction ends.';


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
-- Name: report_progress(text, text, text); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.report_progress(owner text, replica_version text, streamed_watermark text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'cdc', 'pg_temp'
    AS $$
#variable_conflict error
begin
    perform
    from "replicationState" as s
    cross join "replicationConfig" as c
    where s.owner = report_progress.owner
        and c."replicaVersion" = report_progress.replica_version
    for update of s;

    if not found then
        return false;
    end if;

    insert into progress as p (replica_version, streamed_watermark, streamed_at)
    values (report_progress.replica_version, report_progress.streamed_watermark, now())
    on conflict (lock) do update
    set replica_version = excluded.replica_version,
        streamed_watermark = excluded.streamed_watermark,
        streamed_at = excluded.streamed_at,
        -- A row of another history is void, and so is the backup it tells of.
        backup_watermark = case when p.replica_version = excluded.replica_version then p.backup_watermark end,
        backup_at = case when p.replica_version = excluded.replica_version then p.backup_at end
    where p.replica_version <> excluded.replica_version
        or p.streamed_watermark is null
        or p.streamed_watermark < excluded.streamed_watermark;

    return true;
end
$$;


--
-- Name: FUNCTION report_progress(owner text, replica_version text, streamed_watermark text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.report_progress(owner text, replica_version text, streamed_watermark text) IS 'Records that the log holds every published commit up to streamed_watermark. Also how an idle owner notices that it lost.
Returns: true: the caller owns the log, and the record is at streamed_watermark or past it; false: another one owns it, or it was reset.
Errors: none.
Locks: the row of "replicationState", then the row of progress, until the caller''s transaction ends.';


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
        v_head := _lock_state(store_changes.owner, store_changes.replica_version, store_changes.expected_head);
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
    end if;

    head := v_head;
end
$$;


--
-- Name: FUNCTION store_changes(owner text, replica_version text, expected_head text, watermarks text[], positions bigint[], changes json[], precommits text[], last_watermark text, OUT stored bigint, OUT head text); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.store_changes(owner text, replica_version text, expected_head text, watermarks text[], positions bigint[], changes json[], precommits text[], last_watermark text, OUT stored bigint, OUT head text) IS 'Stores whole transactions, given as one array for each column of the log, and moves the head to last_watermark. An empty precommit is null.
Returns: stored: number of rows; transactions at or below the head are left out, so a replay gives 0. head: the head now; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head.
Locks: the row of "replicationState", until the caller''s transaction ends.';


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
    v_head := _lock_state(store_open.owner, store_open.replica_version, store_open.expected_head);

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
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC008 the transaction is stored already.
Locks: the row of "replicationState", until the caller''s transaction ends.';


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
-- Name: stream_start(); Type: FUNCTION; Schema: cdc; Owner: -
--

CREATE FUNCTION cdc.stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb) RETURNS SETOF record
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT s."lastWatermark",
     c."replicaVersion",
     COALESCE(( SELECT min(l.watermark) AS min
            FROM cdc."changeLog" l), s."lastWatermark") AS "coalesce",
     ( SELECT p.streamed_watermark
            FROM cdc.progress p
           WHERE (p.replica_version = c."replicaVersion")) AS streamed_watermark,
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
    FROM (cdc."replicationState" s
      CROSS JOIN cdc."replicationConfig" c);
END;


--
-- Name: FUNCTION stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb); Type: COMMENT; Schema: cdc; Owner: -
--

COMMENT ON FUNCTION cdc.stream_start(OUT head text, OUT replica_version text, OUT minimum text, OUT streamed_watermark text, OUT owner text, OUT owner_address text, OUT slot text, OUT publications text[], OUT reset_required boolean, OUT backfill_requests jsonb, OUT cookies jsonb) IS 'Reads from one snapshot all that a stream starts from.
Returns: one row: head, replica version, minimum (of an empty log: the head), streamed_watermark (null: not known for this history), owner, its address, its slot (nobody owns the log: the slot registered last), publications, whether a reset is required, backfill requests, and cookies; no row when the log is not initialised.
Errors: none.
Locks: none.';


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
           FROM cdc."changeLog" m), s."lastWatermark") AS minimum,
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
           FROM cdc.backfilling b) AS num_backfilling
   FROM (((((pg_class l
     JOIN pg_namespace n ON ((n.oid = l.relnamespace)))
     LEFT JOIN cdc."replicationState" s ON (true))
     LEFT JOIN cdc."replicationConfig" c ON (true))
     LEFT JOIN cdc.progress p ON ((p.replica_version = c."replicaVersion")))
     LEFT JOIN cdc.streamer r ON ((r.owner = s.owner)))
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
-- Name: FUNCTION _lock_configuration(max_wait interval); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._lock_configuration(max_wait interval) FROM PUBLIC;


--
-- Name: FUNCTION _lock_state(owner text, replica_version text, expected_head text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._lock_state(owner text, replica_version text, expected_head text) FROM PUBLIC;


--
-- Name: FUNCTION _lock_tables(max_wait interval); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._lock_tables(max_wait interval) FROM PUBLIC;


--
-- Name: FUNCTION _seed_change_log(replica_version text, publications text[], watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc._seed_change_log(replica_version text, publications text[], watermark text) FROM PUBLIC;


--
-- Name: FUNCTION append_changes(owner text, replica_version text, watermark text, positions bigint[], changes json[], precommits text[]); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.append_changes(owner text, replica_version text, watermark text, positions bigint[], changes json[], precommits text[]) FROM PUBLIC;


--
-- Name: FUNCTION assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.assume_ownership(owner text, owner_address text, replica_version text, expected text, force boolean, slot text, OUT assumed boolean, OUT previous_owner text) FROM PUBLIC;


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
-- Name: FUNCTION dead_streamers(owner text, OUT id bigint, OUT slot text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.dead_streamers(owner text, OUT id bigint, OUT slot text) FROM PUBLIC;


--
-- Name: FUNCTION ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, max_wait interval, OUT result text, OUT detail text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.ensure_replication_config(replica_version text, publications text[], watermark text, auto_reset boolean, max_wait interval, OUT result text, OUT detail text) FROM PUBLIC;


--
-- Name: FUNCTION lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT state text, OUT gid text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.lock_holders(OUT relation text, OUT mode text, OUT pid integer, OUT application_name text, OUT state text, OUT gid text) FROM PUBLIC;


--
-- Name: FUNCTION mark_reset_required(); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.mark_reset_required() FROM PUBLIC;


--
-- Name: FUNCTION register_streamer(task_id text, owner text, owner_address text, slot_prefix text, OUT id bigint, OUT slot text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.register_streamer(task_id text, owner text, owner_address text, slot_prefix text, OUT id bigint, OUT slot text) FROM PUBLIC;


--
-- Name: FUNCTION report_progress(owner text, replica_version text, streamed_watermark text); Type: ACL; Schema: cdc; Owner: -
--

REVOKE ALL ON FUNCTION cdc.report_progress(owner text, replica_version text, streamed_watermark text) FROM PUBLIC;


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
-- PostgreSQL database dump complete
--
