CREATE SCHEMA c01;
CREATE TABLE c01.parent (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
CREATE TABLE c01.child  (id int PRIMARY KEY, parent_id int NOT NULL REFERENCES c01.parent (id));
CREATE PUBLICATION p FOR TABLE c01.parent, c01.child;

-- follow
INSERT INTO c01.parent (note) VALUES ('one'), ('two');
INSERT INTO c01.child VALUES (10, 1);
TRUNCATE c01.parent RESTART IDENTITY CASCADE;   -- option byte 3: cascade + restart identity, two relations
INSERT INTO c01.parent (note) VALUES ('after');
