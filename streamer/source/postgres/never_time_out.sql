-- A session that holds a snapshot rests while others work. Not every version has every one of these.
select pg_catalog.set_config(s.name, '0', false)
from pg_catalog.pg_settings as s
where s.name in ('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout', 'statement_timeout')
