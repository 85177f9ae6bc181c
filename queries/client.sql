-- name: ChangeStreamerAddress :one
-- ChangeStreamerAddress says where subscribers reach the owner of the log; empty
-- when there is none.
select coalesce(change_streamer_address(), '')::text as address;
