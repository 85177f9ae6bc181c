-- Transactions that have written something and were open at $1: a slot's creation waits
-- for each of them. Without pg_read_all_stats the times of others are not visible.
select
    a.pid::text as pid,
    coalesce(nullif(a.application_name, ''), '(no application name)') as application,
    coalesce(a.usename::text, '') as usename,
    coalesce(a.datname::text, '') as datname,
    coalesce(a.xact_start::timestamptz(0)::text, 'unknown') as since,
    coalesce(a.state, 'unknown') as state
from pg_catalog.pg_stat_activity as a
where a.backend_xid is not null
  and a.pid <> pg_catalog.pg_backend_pid()
  and coalesce(a.xact_start <= $1, true)
union all
select
    'none',
    'prepared transaction ' || p.gid,
    p.owner::text,
    p.database::text,
    p.prepared::timestamptz(0)::text,
    'prepared'
from pg_catalog.pg_prepared_xacts as p
where p.prepared <= $1
order by 5
