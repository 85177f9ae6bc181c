-- Tables of the publications $1 in which nothing tells one row from another: either updates
-- and deletes will be refused, or, with replica identity full, they name whole rows.
select distinct
    n.nspname::text,
    c.relname::text,
    c.relreplident = 'f' as is_full
from pg_catalog.pg_publication_tables as t
join pg_catalog.pg_publication as p on p.pubname = t.pubname
join pg_catalog.pg_namespace as n on n.nspname = t.schemaname
join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = t.tablename
where p.pubname::text = any ($1::text[])
    and (p.pubupdate or p.pubdelete)
    and case c.relreplident
        when 'd' then not exists (select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisprimary)
        when 'i' then not exists (select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisreplident)
        when 'f' then not exists (
            select
            from pg_catalog.pg_index as i
            where i.indrelid = c.oid
                and i.indisunique
                and i.indimmediate
                and i.indpred is null
                and i.indexprs is null
                and not exists (
                    select
                    from pg_catalog.pg_attribute as a
                    where a.attrelid = c.oid
                        and a.attnum = any (i.indkey[0:i.indnkeyatts - 1])
                        and not a.attnotnull))
        else c.relreplident = 'n'
    end
order by 1, 2
