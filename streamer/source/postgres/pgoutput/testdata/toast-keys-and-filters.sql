create table byname (name text primary key, n int, big text);
alter table byname alter column name set storage external, alter column big set storage external;
create table filtered (id int primary key, n int, big text);
alter table filtered alter column big set storage external;
create publication p for table byname, filtered where (id > 10);

-- follow
insert into byname values (repeat('x', 2500), 1, repeat('y', 9000));
update byname set n = 2;                             -- the key is large and left alone
update byname set name = 'short';                    -- the key changes
delete from byname;
insert into filtered values (1, 1, repeat('y', 9000));
update filtered set id = 11;                         -- moves in: an insert, its large value was left alone
update filtered set n = 2;
update filtered set id = 2;                          -- moves out: a delete
