select pg_catalog.clock_timestamp()
