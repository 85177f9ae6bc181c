create table tr1 (id int primary key); create table tr2 (id int primary key); create table tr3 (id int primary key, p int references tr1(id));
insert into tr1 values (1),(2); insert into tr2 values (1); insert into tr3 values (1,1);
create publication p for all tables with (publish_via_partition_root);

-- follow
truncate tr2;
truncate tr1, tr3;
insert into tr1 values (1);
insert into tr3 values (1,1);
truncate tr1 cascade;
begin;
insert into tr2 values (5);
truncate tr2 restart identity;
insert into tr2 values (6);
commit;
