-- Incarnations come and go, and each leaves a replication slot that somebody has to drop.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function register_streamer(
    task_id       text,
    owner         text,
    owner_address text,
    slot_prefix   text default null,
    out id        int8,
    out slot      text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
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
$$;

revoke all on function register_streamer(text, text, text, text) from public;

comment on function register_streamer(text, text, text, text) is
$$Registers an incarnation, before it makes a replication slot: a slot without a row would hold WAL for ever.
Returns: id, which grows, and the name for its slot: slot_prefix and the id (null without a prefix); again for the same owner: the same.
Errors: ZC010 owner is not <task id>/<incarnation>, ZC012 the slot name would not be valid.
Locks: the new row of streamer.$$;

create function condemn_streamer(
    id              int8,
    owner           text,
    replica_version text
) returns text
language plpgsql
volatile
-- Definer: a streamer has no right to write the tables itself.
security definer
set search_path from current
as $$
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

revoke all on function condemn_streamer(int8, text, text) from public;

comment on function condemn_streamer(int8, text, text) is
$$Bars an incarnation from taking the log over, so that the owner may drop its slot once this is committed.
Returns: the slot of that incarnation; null when it has none.
Errors: ZC001 the caller is not the owner or at another replica version, ZC006 not initialised, ZC011 no such id, ZC013 the id is the owner's.
Locks: the row of "replicationState", then the row of streamer, until the caller's transaction ends.$$;

create function retire_streamer(
    id           int8,
    slot_dropped boolean default false
) returns void
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
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

revoke all on function retire_streamer(int8, boolean) from public;

comment on function retire_streamer(int8, boolean) is
$$Notes that an incarnation has stopped, or (slot_dropped) that its slot does not exist any more.
Returns: nothing; doing it again changes nothing.
Errors: ZC011 no such id.
Locks: the row of streamer, until the caller's transaction ends.$$;

create function dead_streamers(
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

revoke all on function dead_streamers(text) from public;

comment on function dead_streamers(text) is
$$Lists the incarnations whose slots the owner should drop: those gone, and those that have been starting for an hour.
Returns: id and slot, oldest first; never those of the given owner.
Errors: none.
Locks: none. Call condemn_streamer before dropping anything.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function dead_streamers(text);
drop function retire_streamer(int8, boolean);
drop function condemn_streamer(int8, text, text);
drop function register_streamer(text, text, text, text);
