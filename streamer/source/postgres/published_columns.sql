-- The columns of every table in the publications $1.
select
    t.schemaname::text,
    t.tablename::text,
    t.attnames::text[]
from pg_catalog.pg_publication_tables as t
where t.pubname::text = any ($1::text[])
order by t.schemaname, t.tablename, t.pubname
