-- Our own two tables beside those of the log: who has registered, and how far stream and backup have come.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create table streamer (
    id            int8 generated always as identity primary key,
    owner         text not null unique,
    task_id       text not null,
    owner_address text,
    slot          text unique,
    state         text not null default 'starting',
    registered_at timestamptz not null default now(),
    changed_at    timestamptz not null default now(),
    constraint streamer_owner_check check (starts_with(owner, task_id || '/') and length(owner) > length(task_id) + 1),
    constraint streamer_state_check check (state in ('starting', 'pending', 'owner', 'gone'))
);

comment on table streamer is
    'A row for every incarnation of a streamer, for people and for the hygiene of slots. It does not decide ownership.';
comment on column streamer.id is 'Grows with every registration: the younger one has the greater id.';
comment on column streamer.owner is 'Task id, a slash, and a random incarnation: what stands in "replicationState".owner.';
comment on column streamer.task_id is 'Name of the task; several incarnations may share it.';
comment on column streamer.owner_address is 'Where subscribers reach this incarnation once it is the owner.';
comment on column streamer.slot is 'Replication slot this row answers for; null when there is none, or it was dropped.';
comment on column streamer.state is
    'starting, pending (streams, but does not own yet), owner, or gone (stopped, deposed or condemned).';
comment on column streamer.registered_at is 'When the incarnation registered.';
comment on column streamer.changed_at is 'When the row changed last.';

create table progress (
    replica_version    text not null,
    streamed_watermark text collate "C",
    streamed_at        timestamptz,
    backup_watermark   text collate "C",
    backup_at          timestamptz,
    lock               integer not null default 1 primary key,
    constraint progress_lock_check check (lock = 1)
);

comment on table progress is 'At most one row: what is known about the log beyond its head.';
comment on column progress.replica_version is 'The history the row belongs to; for any other one the row is void.';
comment on column progress.streamed_watermark is
    'Every published commit up to here is in the log, although the head may be smaller.';
comment on column progress.streamed_at is 'When streamed_watermark was set.';
comment on column progress.backup_watermark is 'A backup of a replica holds everything up to here.';
comment on column progress.backup_at is 'When backup_watermark was set.';
comment on column progress.lock is 'Always 1, so that there is one row only.';

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop table progress, streamer;
