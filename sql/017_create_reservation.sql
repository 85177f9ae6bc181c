-- Who is restoring a replica holds back the purge meanwhile.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create table reservation (
    id           int8 generated always as identity primary key,
    owner        text not null,
    task_id      text not null unique,
    watermark    text collate "C",
    opened_at    timestamptz not null default now(),
    confirmed_at timestamptz,
    constraint reservation_confirmed_check check (confirmed_at is null or watermark is not null)
);

comment on table reservation is
    'A row for every subscriber that is restoring a replica. Those of an incarnation that does not own the log are void.';
comment on column reservation.id is 'Tells a reservation from the one that replaced it.';
comment on column reservation.owner is 'The incarnation that serves the subscriber, and closes the row when it is gone.';
comment on column reservation.task_id is 'Task of the subscriber; a newer reservation of the same task replaces this one.';
comment on column reservation.watermark is
    'Nothing at or past it is purged; null: no backup was known when it was opened, so there was nothing to hold.';
comment on column reservation.opened_at is 'When it was opened.';
comment on column reservation.confirmed_at is 'When the subscriber was told what to restore; null: not yet.';

create function open_reservation(
    owner           text,
    replica_version text,
    task_id         text,
    out id          int8,
    out watermark   text
)
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
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

revoke all on function open_reservation(text, text, text) from public;

comment on function open_reservation(text, text, text) is
$$Notes that a subscriber begins to restore a replica. It holds the backup watermark known now, and replaces another reservation of the same task.
Returns: id, and the watermark that is held (null: no backup is known).
Errors: ZC001 the caller is not the owner or at another replica version, ZC006 not initialised, ZC010 arguments not valid.
Locks: rows of reservation, until the caller's transaction ends.$$;

create function confirm_reservation(
    id        int8,
    watermark text
) returns boolean
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
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

revoke all on function confirm_reservation(int8, text) from public;

comment on function confirm_reservation(int8, text) is
$$Notes that the subscriber was told to restore at the watermark, which is held from then on. One that is confirmed stays as it is.
Returns: whether the reservation is confirmed; false: it was closed, replaced or void, or it holds more than the watermark.
Errors: ZC010 not a watermark.
Locks: the row of reservation, until the caller's transaction ends.$$;

create function close_reservation(id int8) returns boolean
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
#variable_conflict error
begin
    delete from reservation as r
    where r.id = close_reservation.id;

    return found;
end
$$;

revoke all on function close_reservation(int8) from public;

comment on function close_reservation(int8) is
$$Ends a reservation: what it held may be purged.
Returns: whether there was one; false: it was closed or replaced before.
Errors: none.
Locks: the row of reservation, until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function close_reservation(int8);
drop function confirm_reservation(int8, text);
drop function open_reservation(text, text, text);
drop table reservation;
