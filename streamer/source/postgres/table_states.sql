-- What decides about the rows of a copy: the publications $1, and of each table $2 with its
-- partitions the name, the columns and the file. Read in the snapshot and again when the
-- tables are locked it tells what has changed between: a file that has been made anew
-- looks empty to an older snapshot.
with recursive part (root, oid) as (
    select t.oid, t.oid
    from unnest($2::oid[]) as t (oid)
    union
    select p.root, i.inhrelid
    from part as p
    join pg_catalog.pg_class as parent on parent.oid = p.oid and parent.relkind = 'p'
    join pg_catalog.pg_inherits as i on i.inhparent = p.oid
), fact (root, content) as (
    select 0::oid, pg_catalog.to_jsonb(p)::text
    from pg_catalog.pg_publication as p
    where p.pubname::text = any ($1::text[])
    union all
    select 0::oid, pg_catalog.to_jsonb(r)::text
    from pg_catalog.pg_publication_rel as r
    join pg_catalog.pg_publication as p on p.oid = r.prpubid
    where p.pubname::text = any ($1::text[])
    union all
    select 0::oid, pg_catalog.to_jsonb(r)::text
    from pg_catalog.pg_publication_namespace as r
    join pg_catalog.pg_publication as p on p.oid = r.pnpubid
    where p.pubname::text = any ($1::text[])
    union all
    select p.root, pg_catalog.concat_ws(' ', c.oid, c.relnamespace, c.relname, c.relkind, c.relreplident, c.relfilenode)
    from part as p
    join pg_catalog.pg_class as c on c.oid = p.oid
    union all
    select p.root, pg_catalog.concat_ws(' ', a.attrelid, a.attnum, a.attname, a.atttypid, a.attgenerated)
    from part as p
    join pg_catalog.pg_attribute as a on a.attrelid = p.oid and a.attnum > 0 and not a.attisdropped
)
select
    f.root,
    pg_catalog.hashtextextended(pg_catalog.string_agg(f.content, e'\n' order by f.content collate "C"), 0)
from fact as f
group by f.root
