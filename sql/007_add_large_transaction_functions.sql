-- Storing a transaction that is too large for one batch, while it arrives: around one COPY, or in pieces.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function store_open(
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

revoke all on function store_open(text, text, text, text) from public;

comment on function store_open(text, text, text, text) is
$$Begins to store one transaction by COPY into "changeLog"; store_close ends it, in the same database transaction.
Returns: the head.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head, ZC008 the transaction is stored already.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create function store_close(
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

revoke all on function store_close(text, text, text) from public;

comment on function store_close(text, text, text) is
$$Ends what store_open began: moves the head to last_watermark.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create function begin_transaction(
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

revoke all on function begin_transaction(text, text, text, text) from public;

comment on function begin_transaction(text, text, text, text) is
$$Begins to store one transaction in pieces, where the role may not COPY into the log.
Returns: store, or skip when the head is at or past the watermark.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC007 the head is below expected_head.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create function append_changes(
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

revoke all on function append_changes(text, text, text, int8[], json[], text[]) from public;

comment on function append_changes(text, text, text, int8[], json[], text[]) is
$$Stores a piece of the transaction that begin_transaction began. An empty precommit is null.
Returns: the number of rows stored.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised, ZC008 the transaction is stored already, 23505 a piece came twice.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

create function commit_transaction(
    owner           text,
    replica_version text,
    last_watermark  text
) returns text
language sql
volatile
-- Invoker: store_close has the rights.
security invoker
begin atomic
    select store_close(
        owner => commit_transaction.owner,
        replica_version => commit_transaction.replica_version,
        last_watermark => commit_transaction.last_watermark);
end;

revoke all on function commit_transaction(text, text, text) from public;

comment on function commit_transaction(text, text, text) is
$$Ends what begin_transaction began: moves the head to last_watermark. The caller commits.
Returns: the head; it never falls.
Errors: ZC001 not the owner or another replica version, ZC006 not initialised.
Locks: the row of "replicationState", until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function commit_transaction(text, text, text);
drop function append_changes(text, text, text, int8[], json[], text[]);
drop function begin_transaction(text, text, text, text);
drop function store_close(text, text, text);
drop function store_open(text, text, text, text);
