-- Statements of grid.py.

-- allow_login --
alter role {} login

-- grant_use --
grant tensile_user to current_user

-- set_socket_directory --
insert into tensile.settings (name, value) values ('socket_directory', to_jsonb(%(directory)s::text))
