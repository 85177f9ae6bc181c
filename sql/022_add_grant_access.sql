-- The one list of what a role may do. Roles belong to the cluster, so the operator makes them.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function grant_access(
    role   text,
    access text
) returns void
language plpgsql
volatile
-- Invoker: only who owns the objects may grant them.
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    -- What only reads has the rights of its caller, hence the tables; what writes has those of the owner.
    c_reader   constant text[] := array[
            'stream_start', 'catchup_bounds', 'change_streamer_address', 'dead_streamers', 'lock_holders',
            'encode_watermark', 'decode_watermark'];
    c_streamer constant text[] := array[
            'ensure_replication_config', 'mark_reset_required', 'register_streamer', 'condemn_streamer',
            'retire_streamer', 'assume_ownership', 'store_changes', 'store_open', 'store_close',
            'begin_transaction', 'append_changes', 'commit_transaction', 'report_progress',
            'reinitialize_change_log', 'acquire_purge_lock', 'purge_change_log', 'report_backup',
            'open_reservation', 'confirm_reservation', 'close_reservation'];
    c_backup   constant text[] := array['report_backup'];
    v_owner     name;
    v_others    text;
    v_functions text[];
    v_function  text;
    v_cause     text;
    v_hint      text;
begin
    if grant_access.access is null or grant_access.access not in ('streamer', 'reader', 'backup', 'none') then
        raise exception 'access % is not known', quote_nullable(grant_access.access)
            using errcode = 'ZC010',
                detail = format('Role: %s.', quote_nullable(grant_access.role)),
                hint = 'It is streamer (all that streamer serve needs), reader (looking and discovery), backup (report_backup) or none.';
    end if;

    if not exists (select from pg_catalog.pg_roles as r where r.rolname = grant_access.role) then
        raise exception 'role % does not exist', quote_nullable(grant_access.role)
            using errcode = 'ZC010',
                detail = format('Access: %s.', grant_access.access),
                hint = 'Make it first: create role … login.';
    end if;

    -- Of what belongs to others the grants below would change nothing, and say so in a warning at most.
    select string_agg(distinct quote_ident(pg_get_userbyid(o.owner)), ', ')
    into v_others
    from (
        select n.nspowner as owner
        from pg_catalog.pg_namespace as n
        where n.oid = quote_ident(current_schema())::regnamespace
        union
        select c.relowner
        from pg_catalog.pg_class as c
        where c.relnamespace = quote_ident(current_schema())::regnamespace
        union
        select p.proowner
        from pg_catalog.pg_proc as p
        where p.pronamespace = quote_ident(current_schema())::regnamespace
    ) as o
    where not pg_has_role(o.owner, 'usage');
    if v_others is not null then
        raise exception 'role % does not own all of change log %', quote_ident(current_user), quote_ident(current_schema())
            using errcode = '42501',
                detail = format('Owners: %s.', v_others),
                hint = 'Call grant_access as the role that owns the log, with set role, or as a superuser.';
    end if;

    -- Two sessions that change the rights of one object at once fail.
    perform pg_advisory_xact_lock(1667523448, quote_ident(current_schema())::regnamespace::oid::int8::bit(32)::integer);

    select pg_get_userbyid(c.relowner)
    into strict v_owner
    from pg_catalog.pg_class as c
    where c.oid = '"changeLog"'::regclass;

    if grant_access.role = v_owner then
        raise exception 'role % owns change log %', quote_ident(grant_access.role), quote_ident(current_schema())
            using errcode = 'ZC010',
                detail = 'It may do everything, so there is nothing to grant or to take away.',
                hint = 'Let one role own the log and migrate it, and another one, with less rights, stream.';
    end if;

    -- Whatever it had before: what is granted here is all.
    execute format('revoke all on schema %I from %I', current_schema(), grant_access.role);
    execute format('revoke all on all tables in schema %I from %I', current_schema(), grant_access.role);
    execute format('revoke all on all sequences in schema %I from %I', current_schema(), grant_access.role);
    execute format('revoke all on all functions in schema %I from %I', current_schema(), grant_access.role);
    if grant_access.access = 'none' then
        return;
    end if;

    execute format('grant usage on schema %I to %I', current_schema(), grant_access.role);
    v_functions := case grant_access.access
        when 'streamer' then c_reader || c_streamer
        when 'reader' then c_reader
        else c_backup
    end;
    for v_function in
        select p.oid::regprocedure::text
        from pg_catalog.pg_proc as p
        where p.pronamespace = quote_ident(current_schema())::regnamespace
            and p.proname = any (v_functions)
    loop
        execute format('grant execute on function %s to %I', v_function, grant_access.role);
    end loop;
    if grant_access.access <> 'backup' then
        execute format('grant select on all tables in schema %I to %I', current_schema(), grant_access.role);
    end if;

    -- The functions that end sessions run as the owner, which may end those of roles that it is a member of.
    if grant_access.access = 'streamer' and not pg_has_role(v_owner, grant_access.role, 'usage') then
        if pg_has_role(grant_access.role, v_owner, 'member') then -- every superuser is
            v_cause := format('%I is a superuser or a member of %I: it may do everything, whatever is granted', grant_access.role, v_owner);
            v_hint := 'Stream as a role that is neither.';
        else
            begin
                execute format('grant %I to %I', grant_access.role, v_owner);
                if not pg_has_role(v_owner, grant_access.role, 'usage') then
                    v_cause := format('%I does not inherit the rights of roles that it is a member of', v_owner);
                    v_hint := format('Run: alter role %I inherit.', v_owner);
                end if;
            exception when insufficient_privilege or invalid_grant_operation then
                v_cause := format('%I could not be made a member of %I: %s', v_owner, grant_access.role, sqlerrm);
                v_hint := format('Let somebody who may do so run: grant %I to %I.', grant_access.role, v_owner);
            end;
        end if;
        if v_cause is not null then
            raise warning 'sessions of role % can not be ended when they are in the way of a reset', quote_ident(grant_access.role)
                using errcode = 'ZC103',
                    detail = v_cause || '.',
                    hint = v_hint;
        end if;
    end if;
end
$$;

revoke all on function grant_access(text, text) from public;

comment on function grant_access(text, text) is
$$Gives a role what it needs and nothing else; what it had in the schema before is taken away first. access is streamer (all that streamer serve needs), reader (looking and discovery), backup (report_backup alone) or none. To be called again after every migration, as the role that owns the log.
Returns: nothing; doing it again changes nothing.
Errors: ZC010 no such access or role, or the role owns the log, 42501 the caller does not own the log; warning ZC103 the owner could not be made a member of the role, so its sessions can not be ended.
Locks: an advisory lock of the schema, until the caller's transaction ends.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function grant_access(text, text);
