-- How far a backup of a replica has come. Whoever makes backups says so; the streamer need not be the one.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function report_backup(
    watermark       text,
    replica_version text,
    at              timestamptz default now()
) returns void
language plpgsql
volatile
-- Definer: a backup tool has no right to write the table itself.
security definer
set search_path from current
as $$
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

revoke all on function report_backup(text, text, timestamptz) from public;

comment on function report_backup(text, text, timestamptz) is
$$Records that a backup of a replica of this history holds everything up to the watermark, and was complete at that time. What lies before it may be purged from then on.
Returns: nothing; the same watermark again is no error.
Errors: ZC001 another replica version, ZC006 not initialised, ZC010 arguments not valid, ZC015 the watermark is before the one reported last.
Locks: the row of progress, until the caller's transaction ends.$$;

create function forget_backup() returns text
language plpgsql
volatile
-- Definer, as report_backup is: nobody writes the table itself.
security definer
set search_path from current
as $$
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

revoke all on function forget_backup() from public;

comment on function forget_backup() is
$$Takes back what report_backup recorded, when that was wrong; it is for people. Until a backup is reported again there is none to purge up to.
Returns: the watermark that was recorded; null when there was none.
Errors: none.
Locks: the row of progress, until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function forget_backup();
drop function report_backup(text, text, timestamptz);
