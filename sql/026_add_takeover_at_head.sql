-- A newcomer takes the log over where its own stream has come to the head, while the owner still stores: the first transaction
-- past the head is stored together with the change of owner, so it follows the last one of the owner before.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function announce_takeover(
    owner           text,
    replica_version text
) returns void
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
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

revoke all on function announce_takeover(text, text) from public;

comment on function announce_takeover(text, text) is
$$Says that an incarnation is about to take the log over at its head: its state is pending from then on. To be called again every few seconds, alone in its transaction: a row that is pending and was not renewed for a minute counts as dead.
Returns: nothing; for the owner nothing changes.
Errors: ZC001 another replica version, ZC006 not initialised, ZC009 this incarnation was deposed or condemned, ZC011 it is not registered, ZC016 a younger incarnation owns the log.
Locks: the row of streamer, until the caller's transaction ends.$$;

create function _check_newcomer(
    owner          text,
    previous_owner text
) returns boolean
language plpgsql
volatile
security invoker
set search_path from current
as $$
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

revoke all on function _check_newcomer(text, text) from public;

comment on function _check_newcomer(text, text) is
$$Says whether an incarnation may take the log over at its head: it has announced that, and was not condemned or retired since.
Returns: whether it may.
Errors: ZC016 a younger incarnation owns the log.
Locks: none; to be called under the lock of the state row.$$;

create function _take_over(owner text) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
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

revoke all on function _take_over(text) from public;

comment on function _take_over(text) is
$$Makes a newcomer the owner of the log, with the address that it has registered.
Returns: nothing.
Errors: ZC001 it was retired meanwhile.
Locks: rows of streamer, until the caller's transaction ends; to be called under the lock of the state row. Notifies channel cdc.$$;

drop function _lock_state(text, text, text);

create function _lock_state(
    owner           text,
    replica_version text,
    expected_head   text,
    newcomer        boolean default false
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

revoke all on function _lock_state(text, text, text, boolean) from public;

comment on function _lock_state(text, text, text, boolean) is
$$Locks the state row for a writer and checks that the writer may write. newcomer: an incarnation that has announced a take-over may, too.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head (null: any head will do), ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create or replace function store_changes(
    owner           text,
    replica_version text,
    expected_head   text,
    watermarks      text[],
    positions       int8[],
    changes         json[],
    precommits      text[],
    last_watermark  text,
    out stored      int8,
    out head        text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write the log itself.
security definer
set search_path from current
as $$
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

comment on function store_changes(text, text, text, text[], int8[], json[], text[], text) is
$$Stores whole transactions, given as one array for each column of the log, and moves the head to last_watermark. An empty precommit is null. A newcomer that has called announce_takeover takes the log over with the first transaction past the head.
Returns: stored: number of rows; transactions at or below the head are left out, so a replay gives 0. head: the head now; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", and when the owner changes rows of streamer, until the caller's transaction ends. Notifies channel cdc when the owner changes.$$;

create or replace function store_open(
    owner           text,
    replica_version text,
    expected_head   text,
    watermark       text
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to lock the state row itself.
security definer
set search_path from current
as $$
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

comment on function store_open(text, text, text, text) is
$$Begins to store one transaction by COPY into "changeLog"; store_close ends it, in the same database transaction.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC008 the transaction is stored already, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create or replace function store_close(
    owner           text,
    replica_version text,
    last_watermark  text
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to write the state row itself.
security definer
set search_path from current
as $$
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

comment on function store_close(text, text, text) is
$$Ends what store_open began: moves the head to last_watermark. A newcomer that has called announce_takeover takes the log over with that.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", and when the owner changes rows of streamer, until the caller's transaction ends. Notifies channel cdc when the owner changes.$$;

create or replace function begin_transaction(
    owner           text,
    replica_version text,
    expected_head   text,
    watermark       text
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to lock the state row itself.
security definer
set search_path from current
as $$
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

comment on function begin_transaction(text, text, text, text) is
$$Begins to store one transaction in pieces, where the role may not COPY into the log.
Returns: store, or skip when the head is at or past the watermark.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create or replace function append_changes(
    owner           text,
    replica_version text,
    watermark       text,
    positions       int8[],
    changes         json[],
    precommits      text[]
) returns int8
language plpgsql
volatile
-- Definer: a streamer has no right to write the log itself.
security definer
set search_path from current
as $$
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

comment on function append_changes(text, text, text, int8[], json[], text[]) is
$$Stores a piece of the transaction that begin_transaction began. An empty precommit is null.
Returns: the number of rows stored.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC008 the transaction is stored already, ZC016 a younger incarnation owns the log, 23505 a piece came twice.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

comment on function commit_transaction(text, text, text) is
$$Ends what begin_transaction began: moves the head to last_watermark. A newcomer that has called announce_takeover takes the log over with that. The caller commits.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", and when the owner changes rows of streamer, until the caller's transaction ends. Notifies channel cdc when the owner changes.$$;

create function assume_ownership_at_head(
    owner           text,
    owner_address   text,
    replica_version text,
    watermark       text,
    expected_head   text default null
) returns boolean
language plpgsql
volatile
-- Definer: a streamer has no right to write the tables itself.
security definer
set search_path from current
as $$
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

revoke all on function assume_ownership_at_head(text, text, text, text, text) from public;

comment on function assume_ownership_at_head(text, text, text, text, text) is
$$Takes the log over for a newcomer whose stream has shown everything up to watermark, if the log ends at or before that, and not before expected_head (null: any head will do). Otherwise an idle upstream would leave it pending for ever.
Returns: whether the caller owns the log now; false: the owner has stored more.
Errors: ZC001 neither the owner nor announced, or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC010 not a watermark, ZC016 a younger incarnation owns the log.
Locks: the row of "replicationState", then rows of streamer, until the caller's transaction ends. Notifies channel cdc when the owner changes.$$;

create or replace function dead_streamers(
    owner    text,
    out id   int8,
    out slot text
) returns setof record
language sql
volatile
security invoker
begin atomic
    select r.id, r.slot
    from streamer as r
    where r.slot is not null
        and r.owner <> dead_streamers.owner
        and (r.state = 'gone'
            or (r.state = 'pending' and r.changed_at < now() - interval '1 minute')
            or (r.state = 'starting' and r.registered_at < now() - interval '5 minutes'))
    order by r.id;
end;

comment on function dead_streamers(text) is
$$Lists the incarnations whose slots the owner should drop: those gone, those pending that have not called announce_takeover for a minute, and those that have been starting for five minutes.
Returns: id and slot, oldest first; never those of the given owner.
Errors: none.
Locks: none. Call condemn_streamer before dropping anything.$$;

create function _functions_of(access text) returns text[]
language sql
immutable
security invoker
begin atomic
    -- What only reads has the rights of its caller, hence the tables; what writes has those of the owner.
    select array_agg(f.name)
    from (
        select unnest(array[
            'stream_start', 'catchup_bounds', 'change_streamer_address', 'dead_streamers', 'lock_holders',
            'encode_watermark', 'decode_watermark'])
        where _functions_of.access in ('streamer', 'reader')
        union all
        select unnest(array[
            'ensure_replication_config', 'mark_reset_required', 'register_streamer', 'condemn_streamer',
            'retire_streamer', 'assume_ownership', 'announce_takeover', 'assume_ownership_at_head',
            'store_changes', 'store_open', 'store_close',
            'begin_transaction', 'append_changes', 'commit_transaction', 'report_progress',
            'reinitialize_change_log', 'acquire_purge_lock', 'purge_change_log',
            'open_reservation', 'confirm_reservation', 'close_reservation'])
        where _functions_of.access = 'streamer'
        union all
        select unnest(array['report_backup'])
        where _functions_of.access in ('streamer', 'backup')
    ) as f (name);
end;

revoke all on function _functions_of(text) from public;

comment on function _functions_of(text) is
$$The one list of the functions that an access of grant_access consists of.
Returns: their names; null for an access without any.
Errors: none.
Locks: none.$$;

create or replace function grant_access(
    role   text,
    access text
) returns void
language plpgsql
volatile
-- Invoker: only who owns the objects may grant them.
security invoker
set search_path from current
as $$
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

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create or replace function grant_access(
    role   text,
    access text
) returns void
language plpgsql
volatile
-- Invoker: only who owns the objects may grant them.
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    -- What only reads has the rights of its caller, hence the tables; what writes has those of the owner.
    c_reader   constant text[] := array[
            'stream_start', 'catchup_bounds', 'change_streamer_address', 'dead_streamers', 'lock_holders',
            'encode_watermark', 'decode_watermark'];
    c_streamer constant text[] := array[
            'ensure_replication_config', 'mark_reset_required', 'register_streamer', 'condemn_streamer',
            'retire_streamer', 'assume_ownership', 'store_changes', 'store_open', 'store_close',
            'begin_transaction', 'append_changes', 'commit_transaction', 'report_progress',
            'reinitialize_change_log', 'acquire_purge_lock', 'purge_change_log', 'report_backup',
            'open_reservation', 'confirm_reservation', 'close_reservation'];
    c_backup   constant text[] := array['report_backup'];
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
    v_functions := case grant_access.access
        when 'streamer' then c_reader || c_streamer
        when 'reader' then c_reader
        else c_backup
    end;
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

drop function _functions_of(text);

create or replace function dead_streamers(
    owner    text,
    out id   int8,
    out slot text
) returns setof record
language sql
volatile
security invoker
begin atomic
    select r.id, r.slot
    from streamer as r
    where r.slot is not null
        and r.owner <> dead_streamers.owner
        and (r.state = 'gone' or (r.state = 'starting' and r.registered_at < now() - interval '1 hour'))
    order by r.id;
end;

comment on function dead_streamers(text) is
$$Lists the incarnations whose slots the owner should drop: those gone, and those that have been starting for an hour.
Returns: id and slot, oldest first; never those of the given owner.
Errors: none.
Locks: none. Call condemn_streamer before dropping anything.$$;

drop function assume_ownership_at_head(text, text, text, text, text);

create or replace function store_changes(
    owner           text,
    replica_version text,
    expected_head   text,
    watermarks      text[],
    positions       int8[],
    changes         json[],
    precommits      text[],
    last_watermark  text,
    out stored      int8,
    out head        text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write the log itself.
security definer
set search_path from current
as $$
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

comment on function store_changes(text, text, text, text[], int8[], json[], text[], text) is
$$Stores whole transactions, given as one array for each column of the log, and moves the head to last_watermark. An empty precommit is null.
Returns: stored: number of rows; transactions at or below the head are left out, so a replay gives 0. head: the head now; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create or replace function store_open(
    owner           text,
    replica_version text,
    expected_head   text,
    watermark       text
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to lock the state row itself.
security definer
set search_path from current
as $$
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

comment on function store_open(text, text, text, text) is
$$Begins to store one transaction by COPY into "changeLog"; store_close ends it, in the same database transaction.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC008 the transaction is stored already.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create or replace function store_close(
    owner           text,
    replica_version text,
    last_watermark  text
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to write the state row itself.
security definer
set search_path from current
as $$
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

comment on function store_close(text, text, text) is
$$Ends what store_open began: moves the head to last_watermark.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create or replace function begin_transaction(
    owner           text,
    replica_version text,
    expected_head   text,
    watermark       text
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to lock the state row itself.
security definer
set search_path from current
as $$
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

comment on function begin_transaction(text, text, text, text) is
$$Begins to store one transaction in pieces, where the role may not COPY into the log.
Returns: store, or skip when the head is at or past the watermark.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create or replace function append_changes(
    owner           text,
    replica_version text,
    watermark       text,
    positions       int8[],
    changes         json[],
    precommits      text[]
) returns int8
language plpgsql
volatile
-- Definer: a streamer has no right to write the log itself.
security definer
set search_path from current
as $$
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

comment on function append_changes(text, text, text, int8[], json[], text[]) is
$$Stores a piece of the transaction that begin_transaction began. An empty precommit is null.
Returns: the number of rows stored.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC008 the transaction is stored already, 23505 a piece came twice.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

comment on function commit_transaction(text, text, text) is
$$Ends what begin_transaction began: moves the head to last_watermark. The caller commits.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

drop function _lock_state(text, text, text, boolean);

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

    if v_replica_version is distinct from _lock_state.replica_version then
        raise exception 'change log % belongs to another history than its caller', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_nullable(v_replica_version), quote_nullable(_lock_state.replica_version)),
                hint = 'A process has to stop: the log was reset. A person finds the version in the status view.';
    end if;

    if v_owner is distinct from _lock_state.owner then
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

revoke all on function _lock_state(text, text, text) from public;

comment on function _lock_state(text, text, text) is
$$Locks the state row for a writer and checks that the writer may write.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head (null: any head will do).
Locks: the row of "replicationState", until the caller's transaction ends.$$;

drop function _take_over(text);
drop function _check_newcomer(text, text);
drop function announce_takeover(text, text);
