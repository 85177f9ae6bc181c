-- What the server, the database and the role can do.
select
    pg_catalog.current_setting('server_version_num')::int4 as version,
    pg_catalog.current_setting('server_version') as version_text,
    pg_catalog.current_setting('wal_level') as wal_level,
    pg_catalog.pg_is_in_recovery() as is_standby,
    r.rolname::text as role,
    pg_catalog.current_database()::text as database,
    pg_catalog.getdatabaseencoding()::text as encoding,
    r.rolsuper or r.rolreplication or exists (
        select
        from pg_catalog.pg_roles as g
        where g.rolname = 'rds_replication'
          and pg_catalog.pg_has_role(r.oid, g.oid, 'member')
    ) as may_replicate,
    pg_catalog.current_setting('max_wal_senders')::int4 as max_senders,
    (select pg_catalog.count(*) from pg_catalog.pg_stat_replication)::int4 as num_senders,
    pg_catalog.current_setting('max_replication_slots')::int4 as max_slots,
    (select pg_catalog.count(*) from pg_catalog.pg_replication_slots)::int4 as num_slots
from pg_catalog.pg_roles as r
where r.rolname = current_user
