-- Writes the message $2 with the prefix $1, at the commit of this statement.
select pg_catalog.pg_logical_emit_message(true, $1::text, $2::text)
