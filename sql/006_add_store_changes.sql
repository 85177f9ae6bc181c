-- Storing a batch of whole transactions in one call.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function store_changes(
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

revoke all on function store_changes(text, text, text, text[], int8[], json[], text[], text) from public;

comment on function store_changes(text, text, text, text[], int8[], json[], text[], text) is
$$Stores whole transactions, given as one array for each column of the log, and moves the head to last_watermark. An empty precommit is null.
Returns: stored: number of rows; transactions at or below the head are left out, so a replay gives 0. head: the head now; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function store_changes(text, text, text, text[], int8[], json[], text[], text);
