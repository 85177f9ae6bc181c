-- Of two newcomers the younger one wins, once: otherwise each takes the log from the other, for as long as both are
-- started again.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function _check_younger(
    owner          text,
    previous_owner text
) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
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

revoke all on function _check_younger(text, text) from public;

comment on function _check_younger(text, text) is
$$Refuses an incarnation that finds the log with one that registered later. Who is not registered, a person or Zero, is not compared.
Returns: nothing.
Errors: ZC016 a younger incarnation owns the log.
Locks: none; to be called under the lock of the state row, or of its table.$$;

create function _check_incarnation(owner text) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
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

revoke all on function _check_incarnation(text) from public;

comment on function _check_incarnation(text) is
$$Refuses an incarnation whose slot may be dropped at any time.
Returns: nothing.
Errors: ZC009 it was deposed or condemned.
Locks: none; to be called under the lock of the state row, or of its table.$$;

create function _settle_streamers(
    owner         text,
    owner_address text,
    slot          text default null
) returns void
language plpgsql
volatile
security invoker
set search_path from current
as $$
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

revoke all on function _settle_streamers(text, text, text) from public;

comment on function _settle_streamers(text, text, text) is
$$Writes down in streamer who owns the log now (null: nobody), from which slot, and that the one before is gone.
Returns: nothing.
Errors: ZC011 a slot is given but the owner is not registered.
Locks: rows of streamer; to be called under the lock of the state row, or of its table.$$;

create or replace function assume_ownership(
    owner              text,
    owner_address      text,
    replica_version    text,
    expected           text,
    force              boolean default false,
    slot               text    default null,
    out assumed        boolean,
    out previous_owner text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write the tables itself.
security definer
set search_path from current
as $$
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

comment on function assume_ownership(text, text, text, text, boolean, text) is
$$Takes the log over at once, if its owner is still the one that was seen, and not registered later than the caller. force is for people.
Returns: assumed: whether the caller owns the log now; previous_owner: who had it before, or has it still (null: nobody).
Errors: ZC001 another replica version, ZC006 not initialised, ZC009 this incarnation was deposed or condemned, ZC010 no owner given, ZC011 a slot is given but the owner is not registered, ZC016 a younger incarnation owns the log (not with force).
Locks: the row of "replicationState", then rows of streamer, until the caller's transaction ends. Notifies channel cdc.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create or replace function assume_ownership(
    owner              text,
    owner_address      text,
    replica_version    text,
    expected           text,
    force              boolean default false,
    slot               text    default null,
    out assumed        boolean,
    out previous_owner text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write the tables itself.
security definer
set search_path from current
as $$
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

comment on function assume_ownership(text, text, text, text, boolean, text) is
$$Takes the log over at once, if its owner is still the one that was seen. force is for people.
Returns: assumed: whether the caller owns the log now; previous_owner: who had it before, or has it still (null: nobody).
Errors: ZC001 another replica version, ZC006 not initialised, ZC009 this incarnation was deposed or condemned, ZC010 no owner given, ZC011 a slot is given but the owner is not registered.
Locks: the row of "replicationState", then rows of streamer, until the caller's transaction ends. Notifies channel cdc.$$;

drop function _settle_streamers(text, text, text);
drop function _check_incarnation(text);
drop function _check_younger(text, text);
