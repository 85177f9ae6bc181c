-- Those of the publications $1 that exist now.
select p.pubname::text
from pg_catalog.pg_publication as p
where p.pubname::text = any ($1::text[])
order by p.pubname
