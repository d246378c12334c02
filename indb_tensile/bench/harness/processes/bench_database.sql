-- Statements of bench_database.py.

-- create_database --
create database {}

-- drop_database --
drop database {} with (force)
