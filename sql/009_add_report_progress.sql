-- How far the owner's stream has shown everything, beyond the head.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function report_progress(
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

revoke all on function report_progress(text, text, text) from public;

comment on function report_progress(text, text, text) is
$$Records that the log holds every published commit up to streamed_watermark. Also how an idle owner notices that it lost.
Returns: true: the caller owns the log, and the record is at streamed_watermark or past it; false: another one owns it, or it was reset.
Errors: none.
Locks: the row of "replicationState", then the row of progress, until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function report_progress(text, text, text);
