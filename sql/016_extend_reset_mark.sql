-- A mark belongs to the history that its maker has seen; and one that was made in error, for example by a connection to a
-- wrong upstream, is taken back by a person.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function mark_reset_required();

create function mark_reset_required(replica_version text default null) returns void
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
#variable_conflict error
declare
    v_replica_version text;
begin
    select c."replicaVersion"
    into v_replica_version
    from "replicationConfig" as c
    for update;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_replica_version <> mark_reset_required.replica_version then
        raise exception 'change log % belongs to another history', quote_ident(current_schema())
            using errcode = 'ZC001',
                detail = format('The log is at replica version %s, the caller at %s.',
                    quote_literal(v_replica_version), quote_literal(mark_reset_required.replica_version)),
                hint = 'The log was reset already: there is nothing to mark.';
    end if;

    update "replicationConfig" as c
    set "resetRequired" = true;
end
$$;

revoke all on function mark_reset_required(text) from public;

comment on function mark_reset_required(text) is
$$Notes that the log can not be continued: the next start with auto_reset begins anew.
Returns: nothing; doing it again changes nothing.
Errors: ZC001 another replica version (null: any will do), ZC006 not initialised.
Locks: the row of "replicationConfig", until the caller's transaction ends.$$;

create function clear_reset_required() returns boolean
language plpgsql
volatile
-- Definer, as mark_reset_required is: nobody writes the table itself.
security definer
set search_path from current
as $$
#variable_conflict error
declare
    v_marked boolean;
begin
    select coalesce(c."resetRequired", false)
    into v_marked
    from "replicationConfig" as c
    for update;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;

    if v_marked then
        update "replicationConfig" as c
        set "resetRequired" = null;
    end if;

    return v_marked;
end
$$;

revoke all on function clear_reset_required() from public;

comment on function clear_reset_required() is
$$Takes back what mark_reset_required noted. It is for people who know that the log can be continued all the same.
Returns: whether there was a mark.
Errors: ZC006 not initialised.
Locks: the row of "replicationConfig", until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function clear_reset_required();
drop function mark_reset_required(text);

create function mark_reset_required() returns void
language plpgsql
volatile
-- Definer: a streamer has no right to write the table itself.
security definer
set search_path from current
as $$
#variable_conflict error
begin
    update "replicationConfig" as c
    set "resetRequired" = true;

    if not found then
        raise exception 'change log % is not initialised', quote_ident(current_schema())
            using errcode = 'ZC006',
                hint = 'Call ensure_replication_config first.';
    end if;
end
$$;

revoke all on function mark_reset_required() from public;

comment on function mark_reset_required() is
$$Notes that the log can not be continued: the next start with auto_reset begins anew.
Returns: nothing; doing it again changes nothing.
Errors: ZC006 not initialised.
Locks: the row of "replicationConfig", until the caller's transaction ends.$$;
