CREATE SCHEMA c12;
CREATE TABLE c12.t (id int PRIMARY KEY, code text NOT NULL, n int);
CREATE UNIQUE INDEX t_code ON c12.t (code);
CREATE TABLE c12.nokey (a int, b int);
CREATE PUBLICATION p FOR TABLE c12.t, c12.nokey;

-- follow
INSERT INTO c12.t VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0), (4, 'd', 0);
DELETE FROM c12.t WHERE id = 1;                       -- DEFAULT: key {id}
ALTER TABLE c12.t REPLICA IDENTITY FULL;
DELETE FROM c12.t WHERE id = 2;                       -- FULL: key is the whole row
ALTER TABLE c12.t REPLICA IDENTITY USING INDEX t_code;
UPDATE c12.t SET code = 'cc' WHERE id = 3;            -- INDEX: key {code}, sent because it changed
DELETE FROM c12.t WHERE id = 3;                       -- INDEX: key {code}
BEGIN;
DELETE FROM c12.t WHERE id = 4;                       -- still INDEX in this transaction
ALTER TABLE c12.t REPLICA IDENTITY DEFAULT;
INSERT INTO c12.t VALUES (5, 'e', 0);
DELETE FROM c12.t WHERE id = 5;                       -- DEFAULT again, same transaction
COMMIT;
ALTER TABLE c12.t REPLICA IDENTITY NOTHING;
INSERT INTO c12.t VALUES (6, 'f', 0);                 -- allowed
DELETE FROM c12.t WHERE id = 6;                       -- refused 55000
INSERT INTO c12.nokey VALUES (1, 1);
UPDATE c12.nokey SET b = 2;                           -- refused 55000 no identity at all
ALTER TABLE c12.nokey REPLICA IDENTITY FULL;
INSERT INTO c12.nokey VALUES (1, 1);                  -- two identical rows now
DELETE FROM c12.nokey WHERE ctid = (SELECT min(ctid) FROM c12.nokey);
