create type mood as enum ('sad','ok','happy');
create type pair as (a int, b text);
create domain posint as int check (value > 0);
create table wide (
  id int primary key, si smallint, i int, bi bigint, n numeric, n2 numeric(12,4), r real, d double precision,
  b bool, t text, vc varchar(20), c char(5), u uuid, j json, jb jsonb, dt date, tm time, tmtz timetz,
  ts timestamp, tstz timestamptz, iv interval, by bytea, ip inet, cd cidr, mac macaddr, m mood, dom posint,
  ia int[], ta text[], ba bigint[], na numeric[], fa float8[], tsa timestamptz[], ma mood[], jba jsonb[], bya bytea[],
  bl bool[], nest int[][], p pair, pa pair[], bt bit(3), vb varbit, mo money, ox oid, ir int4range, x xml, ts3 timestamptz(3));
create publication p for all tables with (publish_via_partition_root);

-- follow
insert into wide(id) values (1);
insert into wide(id, si, i, bi) values (2, -32768, -2147483648, -9223372036854775808), (3, 32767, 2147483647, 9223372036854775807), (4, 0, 0, 9007199254740993);
insert into wide(id, n, n2) values (10, 0, 0), (11, 1.10, 1.1), (12, 12345678901234567890.123456789, 12345678.9012), (13, -0.000001, -1), (14, 1e30, 0.5), (15, 9007199254740993, 99999999.9999);
insert into wide(id, r, d) values (20, 1.5, 0.1), (21, 3.4028235e38, 1.7976931348623157e308), (22, 1e-45, 5e-324), (23, -0.0, -0.0), (24, 0.1, 123456789.123456789), (25, 16777217, 1e21);
insert into wide(id, b, t, vc, c) values (30, true, 'plain', 'vc', 'ab'), (31, false, '', '', ''), (32, null, E'quote " back\\slash \t tab \n nl / \u00e9\u4e2d\U0001F600 \x7f \u2028', 'é', 'é'), (33, true, E'ctl \x01\x02\x1f''', 'x', '12345'), (34, true, '{"json":"like"}', '<&>', 'a');
insert into wide(id, u, j, jb) values (40, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"b":1, "a" : [1,2.50,null,true,"x\u00e9\ud83d\ude00"], "b":2}', '{"b":1,"a":[1,2.50,null,true,"x\u00e9"],"b":2}'), (41, null, 'null', 'null'), (42, null, '"str"', '"str"'), (43, null, '12345678901234567890', '12345678901234567890'), (44, null, '1.0', '1.0'), (45, null, ' [ ] ', '{}'), (46, null, '{"nul":"\u0000 escaped"}', '{"n":9007199254740993, "f":1e400}'), (47, null, 'true', 'false');
insert into wide(id, dt, tm, tmtz) values (50, '2024-02-29', '23:59:59.123456', '23:59:59.123456+05:30'), (51, '1970-01-01', '00:00', '00:00+00'), (52, '0001-01-01', '24:00', '12:00-15:59'), (53, '9999-12-31', '12:34:56.7', '01:00:00.5-08');
insert into wide(id, ts, tstz, ts3) values (60, '2024-02-29 12:34:56.123456', '2024-02-29 12:34:56.123456+05:30', '2024-02-29 12:34:56.1239Z'), (61, '1970-01-01', '1970-01-01Z', '1970-01-01Z'), (62, '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999Z', null), (63, '0001-01-01', '0001-01-01Z', null), (64, '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999999Z', null);
insert into wide(id, iv) values (70, '1 year 2 mons 3 days 04:05:06.789'), (71, '-1 day'), (72, '00:00'), (73, '100 hours');
insert into wide(id, by) values (80, '\xdeadbeef00ff'), (81, ''), (82, E'abc\\000def');
insert into wide(id, ip, cd, mac, m, dom) values (90, '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', 'happy', 5), (91, '::1', '2001:db8::/32', null, 'sad', 1), (92, '192.168.0.1', null, null, null, null);
insert into wide(id, ia, ta, ba, na, fa) values (100, '{1,NULL,-3}', array['a',null,'NULL','','q"uo,te','{b}','back\slash','é😀'], '{9007199254740993,1}', '{1.10,2}', '{0.1,NaN,Infinity}'), (101, '{}', '{}', '{}', '{}', '{}'), (102, '[2:3]={7,8}', array['x y'], null, null, null);
insert into wide(id, nest, tsa, ma, jba, bya, bl) values (110, '{{1,2},{3,NULL}}', array['2024-01-01 00:00:00.5Z'::timestamptz, '1999-12-31 23:59:59.999999Z'], '{sad,NULL,happy}', array['{"a":1}'::jsonb, '"s"', '[1,null]', '1.50'], array['\xdead'::bytea], '{t,f,NULL}');
insert into wide(id, p, pa) values (120, row(1,'x,"y" (z)'), array[row(1,'a')::pair, row(null,null)::pair]);
insert into wide(id, bt, vb, mo, ox, ir, x) values (130, B'101', B'1', '12.34', 4294967295, '[1,5)', '<a/>');
update wide set t = 'changed', bi = 9223372036854775806, jb = '{"k":[1,2]}', tstz = null where id in (2, 40, 60);
delete from wide where id < 20;
