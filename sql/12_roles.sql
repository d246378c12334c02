-- The roles, and the schema of snapshot tables, which belongs to one of them. An upgrade runs this as well.

-- Roles belong to the cluster, not to the database: another database may have made them already.
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
    -- No password: who may log in as the worker is what pg_hba.conf and pg_ident.conf, or a password set later, say.
    create role tensile_worker login;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_reader') then
    -- Trainers read users' tables as this role: no membership, no right in schema tensile, no password.
    create role tensile_reader login;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_data') then
    -- Owns snapshot tables and the functions that make them, see 55_snapshots.sql, and nothing else.
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
  'snapshot tables of jobs: indb-tensile creates and drops them; a job''s owner may only insert, and only until the seal';
