-- Tables of the publications $1 on which updates and deletes will be refused, because
-- nothing in them tells one row from another.
select distinct
    n.nspname::text,
    c.relname::text
from pg_catalog.pg_publication_tables as t
join pg_catalog.pg_publication as p on p.pubname = t.pubname
join pg_catalog.pg_namespace as n on n.nspname = t.schemaname
join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = t.tablename
where p.pubname::text = any ($1::text[])
  and (p.pubupdate or p.pubdelete)
  and case c.relreplident
          when 'd' then not exists (select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisprimary)
          when 'i' then not exists (select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisreplident)
          else c.relreplident = 'n'
      end
order by 1, 2
