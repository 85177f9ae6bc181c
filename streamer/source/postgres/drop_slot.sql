-- Drops the slot $1 of this database, if it is there.
select pg_catalog.pg_drop_replication_slot(s.slot_name)
from pg_catalog.pg_replication_slots as s
where s.slot_name = $1
    and s.database = current_database()
