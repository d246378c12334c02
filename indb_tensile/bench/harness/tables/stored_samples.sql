-- Statements of stored_samples.py.

-- create_table --
create table {table} ({columns}, primary key ({key}))

-- copy_table --
copy {} from stdin

-- analyze_table --
analyze {}

-- grant_table --
grant select on {} to public
