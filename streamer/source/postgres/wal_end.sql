select pg_catalog.pg_current_wal_lsn()::pg_catalog.text
