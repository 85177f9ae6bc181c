-- The publications $1 and what they publish.
select
    p.pubname::text,
    p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate as publishes_all
from pg_catalog.pg_publication as p
where p.pubname::text = any ($1::text[])
order by p.pubname
