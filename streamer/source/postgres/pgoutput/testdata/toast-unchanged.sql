CREATE SCHEMA c02;
CREATE TABLE c02.d (id int PRIMARY KEY, n int, big text);
CREATE TABLE c02.f (id int PRIMARY KEY, n int, big text);
ALTER TABLE c02.d ALTER COLUMN big SET STORAGE EXTERNAL;
ALTER TABLE c02.f ALTER COLUMN big SET STORAGE EXTERNAL;
ALTER TABLE c02.f REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR TABLE c02.d, c02.f;

-- follow
INSERT INTO c02.d VALUES (1, 0, repeat('x', 9000));
INSERT INTO c02.f VALUES (1, 0, repeat('y', 9000));
UPDATE c02.d SET n = 1 WHERE id = 1;            -- big is untouched
UPDATE c02.f SET n = 1 WHERE id = 1;            -- big is untouched, old image carries it
UPDATE c02.d SET id = 2 WHERE id = 1;           -- key change, big still untouched
UPDATE c02.d SET big = NULL WHERE id = 2;       -- a real NULL must stay distinguishable
