-- The slot $1, with the application that uses it.
select
    coalesce(s.plugin::text, '') as plugin,
    coalesce(s.database::text, '') as database,
    s.database is not distinct from current_database() as here,
    s.active,
    coalesce(s.active_pid, 0) as active_pid,
    coalesce(a.application_name, '') as active_application,
    coalesce(s.confirmed_flush_lsn::text, '0/0') as confirmed_flush_lsn,
    coalesce(s.restart_lsn::text, '0/0') as restart_lsn,
    coalesce(s.wal_status, '') as wal_status
from pg_catalog.pg_replication_slots as s
left join pg_catalog.pg_stat_activity as a on a.pid = s.active_pid
where s.slot_name = $1
