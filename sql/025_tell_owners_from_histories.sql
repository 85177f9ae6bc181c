-- Whoever names a wrong replica version was told that the log is owned by somebody else, even if that was he himself.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create or replace function _lock_state(
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

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create or replace function _lock_state(
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
