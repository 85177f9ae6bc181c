-- Who holds tables of this database exclusively.
select
    a.pid,
    coalesce(nullif(a.application_name, ''), '(no application name)') as application,
    coalesce(a.usename::text, '') as usename,
    l.relation::regclass::text as relation
from pg_catalog.pg_locks as l
join pg_catalog.pg_database as d on d.oid = l.database and d.datname = pg_catalog.current_database()
join pg_catalog.pg_stat_activity as a on a.pid = l.pid
where l.locktype = 'relation'
    and l.mode = 'AccessExclusiveLock'
    and l.granted
order by a.pid, l.relation
limit 10
