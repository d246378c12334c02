-- The roles, and the schema of snapshot tables, which belongs to one of the roles. An upgrade also runs this file.

-- Roles belong to the cluster, not to the database, so an installation in another database may have created them.
do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_user') then
    create role tensile_user nologin;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_monitor') then
    create role tensile_monitor nologin;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_admin') then
    create role tensile_admin nologin;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_worker') then
    -- Without a password: pg_hba.conf and pg_ident.conf, or a password set later, decide who may log in as the worker.
    create role tensile_worker login;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_reader') then
    -- Trainers read users' tables as this role. It has no memberships, no privileges in schema tensile and no password.
    create role tensile_reader login;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_data') then
    -- Owns only the snapshot tables and the functions that create them: see 55_snapshots.sql.
    create role tensile_data nologin;
  end if;
  grant tensile_monitor to pg_monitor;
  grant tensile_user, tensile_monitor to tensile_admin;
end
$$;

do $$
begin
  if exists (select from pg_catalog.pg_namespace as n
              where n.nspname = 'tensile_data' and n.nspowner <> 'tensile_data'::pg_catalog.regrole) then
    raise exception 'schema "tensile_data" belongs to another role than tensile_data'
      using errcode = 'duplicate_schema', hint = 'Rename or drop that schema, then install the catalog again.';
  end if;
end
$$;

create schema if not exists tensile_data authorization tensile_data;
comment on schema tensile_data is
  'snapshot tables of jobs, which indb-tensile creates and drops; a job''s owner may only insert rows, and only until '
  'the snapshot is sealed';
