-- In milliseconds; 0 is never.
select s.setting
from pg_catalog.pg_settings as s
where s.name = 'wal_sender_timeout'
