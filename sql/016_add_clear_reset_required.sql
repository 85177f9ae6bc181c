-- A mark that was made in error, for example by a connection to a wrong upstream, is taken back by a person.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

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
