-- Ends the walsender that uses the slot $1, if its application is one of $2.
select
    a.pid,
    a.application_name,
    pg_catalog.pg_terminate_backend(a.pid) as ended
from pg_catalog.pg_replication_slots as s
join pg_catalog.pg_stat_activity as a on a.pid = s.active_pid
where s.slot_name = $1
  and a.application_name = any ($2::text[])
