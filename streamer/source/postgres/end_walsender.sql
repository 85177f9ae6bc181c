-- Ends our own backend $1, if it is still there.
select pg_catalog.pg_terminate_backend(a.pid)
from pg_catalog.pg_stat_activity as a
where a.pid = $1
  and a.application_name = $2
