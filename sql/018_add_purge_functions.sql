-- What the log may forget, in steps that nobody waits for, and how a newcomer keeps it from forgetting.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

set local lock_timeout = '10s';

alter table progress add column purged_watermark text collate "C";

comment on column progress.purged_watermark is
    'The log holds nothing before this: where the next purge begins, so that it need not walk over what others deleted.';

-- As before, but a row of another history is void with all its columns.
create or replace function report_progress(
    owner              text,
    replica_version    text,
    streamed_watermark text
) returns boolean
language plpgsql
volatile
-- Definer: a streamer has no right to write the tables itself.
security definer
set search_path from current
as $$
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

comment on function report_progress(text, text, text) is
$$Records that the log holds every published commit up to streamed_watermark. Also how an idle owner notices that it lost.
Returns: true: the caller owns the log, and the record is at streamed_watermark or past it; false: another one owns it, or it was reset.
Errors: ZC010 not a watermark.
Locks: the row of "replicationState", then the row of progress, until the caller's transaction ends.$$;

create function acquire_purge_lock(
    slot_watermark      text default null,
    out status          text,
    out replica_version text,
    out minimum         text
)
language plpgsql
volatile
-- Definer: a streamer has no right to lock rows of the log itself.
security definer
set search_path from current
as $$
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

revoke all on function acquire_purge_lock(text) from public;

comment on function acquire_purge_lock(text) is
$$Keeps the log from being purged until the caller's transaction ends: for a newcomer that is about to make or check its replica. Several may hold it at once; so long, no reset gets through either.
Returns: status: locked (a replica of replica_version at or past minimum can be caught up), empty (there is nothing to lock), or behind-slot (the log may lack what a slot whose confirmed position less one is slot_watermark does not send any more; nothing is locked).
Errors: ZC004 standby, ZC005 not read committed, ZC010 not a watermark.
Locks: the oldest row of "changeLog" in share mode, until the caller's transaction ends; it is to be the first lock of that transaction. It waits for a purge step that is under way.$$;

create function purge_change_log(
    before          text,
    owner           text,
    max_rows        integer default 10000,
    replica_version text    default null,
    out deleted     int8,
    out done        boolean
)
language plpgsql
volatile
-- Definer: a streamer has no right to delete from the log itself.
security definer
set search_path from current
as $$
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
$$;

revoke all on function purge_change_log(text, text, integer, text) from public;

comment on function purge_change_log(text, text, integer, text) is
$$Deletes transactions before a watermark, the oldest ones first: one step of whole transactions with about max_rows rows. The newest transaction stays, and what a reservation holds. Call it, each time in a transaction of its own, until done.
Returns: deleted: number of rows; done: whether nothing more is to be deleted.
Errors: ZC001 the caller is not the owner (null: nobody is) or at another replica version (null: any will do), ZC004 standby, ZC005 not read committed, ZC006 not initialised, ZC010 arguments not valid, 55P03 somebody holds the purge lock.
Locks: the oldest row of "changeLog" at once or not at all, the rows it deletes, then the row of "replicationState" in share mode and the row of progress, until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

set local lock_timeout = '10s';

drop function purge_change_log(text, text, integer, text);
drop function acquire_purge_lock(text);

create or replace function report_progress(
    owner              text,
    replica_version    text,
    streamed_watermark text
) returns boolean
language plpgsql
volatile
-- Definer: a streamer has no right to write the tables itself.
security definer
set search_path from current
as $$
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

comment on function report_progress(text, text, text) is
$$Records that the log holds every published commit up to streamed_watermark. Also how an idle owner notices that it lost.
Returns: true: the caller owns the log, and the record is at streamed_watermark or past it; false: another one owns it, or it was reset.
Errors: none.
Locks: the row of "replicationState", then the row of progress, until the caller's transaction ends.$$;

alter table progress drop column purged_watermark;
