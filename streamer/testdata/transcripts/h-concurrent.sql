-- Two sessions write at the same time; \session says which one goes on.
\session a
begin;
\session b
begin;
\session a
insert into cc values (1, 'a1');
\session b
insert into cc values (2, 'b1');
\session a
insert into cc values (3, 'a2');
\session b
insert into cc values (4, 'b2');
commit;
\session a
insert into cc values (5, 'a3');
commit;
begin;
insert into cc values (6, 'prepared');
prepare transaction 'gid1';
\session b
insert into cc values (7, 'while prepared');
commit prepared 'gid1';
\session a
begin;
insert into cc values (8, 'never');
prepare transaction 'gid2';
\session b
rollback prepared 'gid2';
