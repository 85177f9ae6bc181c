-- The tables that the publications $1 show, by the names that the stream gives them. A
-- partition below a root that is shown, too, is a part of that: the stream names the root.
with entry as (
    select
        c.oid,
        n.nspname,
        c.relname,
        c.relkind,
        c.relreplident,
        coalesce(t.attnames::text[], '{}') as columns,
        t.rowfilter
    from pg_catalog.pg_publication_tables as t
    join pg_catalog.pg_namespace as n on n.nspname = t.schemaname
    join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = t.tablename
    where t.pubname::text = any ($1::text[])
), shown as (
    select
        e.oid,
        e.nspname,
        e.relname,
        e.relkind,
        e.relreplident,
        min(e.columns) as columns,
        max(e.columns) as other_columns,
        -- One publication without a filter shows every row.
        case when bool_and(e.rowfilter is not null) then array_agg(distinct e.rowfilter) end as filters
    from entry as e
    where not exists (
        select
        from pg_catalog.pg_partition_ancestors(e.oid) as a
        join entry as root on root.oid = a.relid
        where a.relid <> e.oid
    )
    group by e.oid, e.nspname, e.relname, e.relkind, e.relreplident
)
select
    s.oid,
    s.nspname::text,
    s.relname::text,
    s.relkind = 'p' as is_root,
    s.relreplident::text,
    s.columns,
    s.other_columns,
    coalesce(s.filters, '{}'),
    size.rows,
    size.bytes
from shown as s
cross join lateral (
    -- Estimates: the functions that look at the files would wait for whoever holds a table.
    select
        coalesce(sum(e.rows), 0)::int8 as rows,
        coalesce(sum(greatest(e.pages * pg_catalog.current_setting('block_size')::int8, 100 * e.rows)), 0)::int8 as bytes
    from (
        select
            greatest(c.reltuples, pg_catalog.pg_stat_get_live_tuples(c.oid), 0)::int8 as rows,
            c.relpages::int8 + coalesce(toast.relpages, 0) as pages
        from pg_catalog.pg_class as c
        left join pg_catalog.pg_class as toast on toast.oid = c.reltoastrelid
        where c.relkind = 'r'
            and (c.oid = s.oid
                or s.relkind = 'p'
                    and c.relispartition
                    and s.oid in (select a.relid from pg_catalog.pg_partition_ancestors(c.oid) as a))
    ) as e
) as size
order by s.nspname, s.relname
