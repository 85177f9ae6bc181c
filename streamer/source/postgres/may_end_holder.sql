-- Whether our role may end the walsender that uses the slot $1, and whose that is.
select
    current_user::text as role,
    h.rolname::text as holder,
    r.rolsuper
        or (not h.rolsuper and (pg_has_role(h.oid, 'member') or pg_has_role('pg_signal_backend', 'member'))) as may
from pg_catalog.pg_replication_slots as s
join pg_catalog.pg_stat_activity as a on a.pid = s.active_pid
join pg_catalog.pg_roles as h on h.oid = a.usesysid
join pg_catalog.pg_roles as r on r.rolname = current_user
where s.slot_name = $1
