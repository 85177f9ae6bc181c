-- A purge leaves dead rows at the front of the log. A fifth of a large log, the default, is too many to wait for: the
-- space is not used again, and whoever looks for the oldest row walks over them.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

set local lock_timeout = '10s';

alter table "changeLog" set (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

set local lock_timeout = '10s';

alter table "changeLog" reset (
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_insert_scale_factor,
    autovacuum_analyze_scale_factor
);
