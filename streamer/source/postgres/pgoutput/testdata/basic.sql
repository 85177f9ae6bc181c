create table item (id int primary key, name text not null, qty int, note text);
insert into item values (1,'one',1,null),(2,'two',2,'b');
create publication p for all tables with (publish_via_partition_root);

-- follow
insert into item values (3,'three',3,null);
insert into item values (4,'four',4,'d'),(5,'five',5,'e');
update item set qty = 30 where id = 3;
update item set id = 33 where id = 3;              -- key change
update item set id = id + 100 where id in (4,5);   -- key change, two rows
update item set name = name where id = 33;         -- no real change
delete from item where id = 33;
delete from item;
begin; insert into item values (6,'six',6,''); update item set note='n' where id=6; delete from item where id=6; commit;
