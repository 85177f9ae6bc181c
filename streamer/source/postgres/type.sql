-- The type $1 and, for an array, its element.
select
    t.typname::text,
    t.typtype::text,
    t.typcategory::text,
    t.typlen,
    t.typdelim::text,
    t.typbasetype,
    e.oid as elem_oid,
    e.typname::text as elem_name,
    e.typtype::text as elem_type,
    e.typcategory::text as elem_category,
    e.typlen as elem_len,
    e.typdelim::text as elem_delim,
    e.typbasetype as elem_base
from pg_catalog.pg_type as t
left join pg_catalog.pg_type as e on e.oid = t.typelem and t.typelem <> 0
where t.oid = $1
