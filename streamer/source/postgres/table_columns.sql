-- The columns of the tables $1, and which of them the stream marks as the key. Generated
-- ones are never sent before version 18, though the view may name them.
select
    a.attrelid,
    a.attname::text,
    a.atttypid,
    pg_catalog.format_type(a.atttypid, a.atttypmod),
    c.relreplident = 'f' or coalesce(a.attnum = any (i.indkey[0:i.indnkeyatts - 1]), false) as is_key,
    a.attgenerated <> '' as is_generated
from pg_catalog.pg_attribute as a
join pg_catalog.pg_class as c on c.oid = a.attrelid
left join pg_catalog.pg_index as i on i.indrelid = c.oid
    and i.indisvalid
    and i.indisunique
    and i.indimmediate
    and i.indpred is null
    and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end
where a.attrelid = any ($1::oid[])
    and a.attnum > 0
    and not a.attisdropped
    and (a.attgenerated = '' or pg_catalog.current_setting('server_version_num')::int4 >= 180000)
order by a.attrelid, a.attnum
