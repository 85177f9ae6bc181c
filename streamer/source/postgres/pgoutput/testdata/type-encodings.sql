CREATE SCHEMA c06;
CREATE TYPE c06.mood AS ENUM ('so so', 'a,b', 'q"uote');
CREATE DOMAIN c06.pos AS int CHECK (VALUE > 0);
CREATE TYPE c06.pair AS (a int, b text);
CREATE TABLE c06.t (
  id int PRIMARY KEY, b8 bigint, n numeric(38,10), by bytea, c5 char(5), e text, z text, bo bool,
  jn jsonb, js jsonb, ja jsonb[], ia int[], ta text[], m c06.mood, ma c06.mood[], p c06.pos, pa c06.pair,
  u uuid, inet inet, r int4range, mr int4multirange, mo money, x xml, bi bit(3), vb varbit, ts tsvector, pt point);
CREATE TABLE c06."таблица" (id int PRIMARY KEY, "колонка" text);
CREATE PUBLICATION p FOR TABLE c06.t, c06."таблица";

-- follow
INSERT INTO c06.t VALUES (1, 9007199254740993, 1234567890123456789012345678.0123456789, '\xdeadbeef00ff', 'ab', '', NULL, true,
  'null', '{"k":[1,2.50,"x",null,9007199254740993]}', ARRAY['{"a":1}'::jsonb,'null'::jsonb], '{{1,2},{3,NULL}}', ARRAY['a,b','"',NULL,'NULL',''], 'a,b', ARRAY['so so','q"uote']::c06.mood[], 5, ROW(1,'x,"y')::c06.pair,
  '00000000-0000-0000-0000-000000000001', '10.0.0.1/8', '[1,5)', '{[1,3),[7,9)}', '12.34', '<a>&amp;</a>', B'101', B'10', 'a:1 b:2', '(1.5,-2)');
INSERT INTO c06.t (id, b8, by, c5) VALUES (2, -9223372036854775808, '', '');
INSERT INTO c06.t (id, ia, e) VALUES (3, '[0:1]={7,8}', E'line\nfeed\ttab\u2028sep\u00e9\U0001F600');
INSERT INTO c06."таблица" VALUES (1, 'значение');
