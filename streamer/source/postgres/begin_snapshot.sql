begin transaction isolation level repeatable read read only;
set transaction snapshot %s
