-- A person compares a slot's position with the log: what is an LSN upstream is a watermark here.
select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

create function encode_watermark(lsn pg_lsn) returns text
language plpgsql
immutable
strict
security invoker
set search_path from current
as $$
#variable_conflict error
declare
    c_digits constant text := '0123456789abcdefghijklmnopqrstuvwxyz';
    v_left   numeric := encode_watermark.lsn - '0/0'::pg_lsn;
    v_text   text := '';
begin
    loop
        v_text := substr(c_digits, mod(v_left, 36)::integer + 1, 1) || v_text;
        v_left := div(v_left, 36);
        exit when v_left = 0;
    end loop;

    -- The first digit says how many follow, less one, so that byte order is the order of the numbers.
    return substr(c_digits, length(v_text), 1) || v_text;
end
$$;

revoke all on function encode_watermark(pg_lsn) from public;

comment on function encode_watermark(pg_lsn) is
$$Writes a position of the upstream's WAL as a watermark. A slot is covered by the log if encode_watermark(confirmed_flush_lsn - 1) is not past head and streamed_watermark.
Returns: the watermark; null for null.
Errors: none.
Locks: none.$$;

create function decode_watermark(watermark text) returns pg_lsn
language plpgsql
immutable
strict
-- Definer: the caller has no right to call the functions of the functions.
security definer
set search_path from current
as $$
#variable_conflict error
declare
    v_digit text;
    v_value numeric := 0;
begin
    perform _check_watermark(decode_watermark.watermark);

    foreach v_digit in array string_to_array(substr(split_part(decode_watermark.watermark, '.', 1), 2), null) loop
        v_value := v_value * 36 + strpos('0123456789abcdefghijklmnopqrstuvwxyz', v_digit) - 1;
    end loop;

    if v_value > 18446744073709551615 then
        raise exception 'watermark % is no position of a WAL', quote_literal(decode_watermark.watermark)
            using errcode = 'ZC010',
                detail = 'It is larger than 64 bits.',
                hint = 'Take it from the status view, or from a message of the log.';
    end if;

    return '0/0'::pg_lsn + v_value;
end
$$;

revoke all on function decode_watermark(text) from public;

comment on function decode_watermark(text) is
$$Reads a watermark as a position of the upstream's WAL; what stands behind a dot is left out.
Returns: the position; null for null.
Errors: ZC010 not a watermark, or larger than any position.
Locks: none.$$;

---- create above / drop below ----

select set_config('search_path', '"{{ or .schema `cdc` }}", pg_temp', true);

drop function decode_watermark(text);
drop function encode_watermark(pg_lsn);
