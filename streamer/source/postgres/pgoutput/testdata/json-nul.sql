CREATE SCHEMA c03;
CREATE TABLE c03.t (id int PRIMARY KEY, j json, ja json[]);
CREATE PUBLICATION p FOR TABLE c03.t;

-- follow
INSERT INTO c03.t VALUES (1, '{"s":"a\u0000b"}');
INSERT INTO c03.t VALUES (2, '{"s":"literal \\u0000 backslash"}');
INSERT INTO c03.t VALUES (3, '{"a":1,"a":2,  "b" : 1.0e400}');   -- duplicate keys, spaces, a number outside float8
INSERT INTO c03.t VALUES (4, '"\ud83d\ude00 \ud800"');           -- a pair, then a lone surrogate (json accepts the text)
INSERT INTO c03.t VALUES (5, NULL, ARRAY['{"s":"a\u0000b"}'::json, 'null'::json]);  -- an array of json is parsed, so the escape is bare in the change
