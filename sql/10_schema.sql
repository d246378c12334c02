-- The schema, the closed sets of words, the roles, and who this database is.
-- Everything is named with its schema, so that no search_path changes what is meant. The path is set all the same:
-- a superuser runs this script, and `create extension` would let it find functions that others wrote in schema public.

set local search_path = pg_catalog, pg_temp;

do $$
begin
  if exists (select from pg_catalog.pg_namespace where nspname = 'tensile') then
    raise exception 'schema "tensile" already exists in database "%"', pg_catalog.current_database()
      using errcode = 'duplicate_schema',
            detail = 'The catalog is installed here already, by "create extension" or by "tensile init".',
            hint = 'Ask it for its version: select tensile.catalog_version(). '
                   'To install it anew, drop the extension, or the schema, first.';
  end if;
end
$$;

create schema tensile;
comment on schema tensile is 'indb-tensile: jobs, models, plans and latencies; users call public.tensile_…()';

create function tensile.catalog_version() returns text
  language sql immutable parallel safe
  return '@VERSION@';
comment on function tensile.catalog_version() is
  'version of this catalog; a controller of another version refuses to work on it';

create function tensile.catalog_digest() returns text
  language sql immutable parallel safe
  return '@DIGEST@';
comment on function tensile.catalog_digest() is
  'digest of the source that made this catalog; between two releases the version alone does not tell';

-- Derived on every call and stored nowhere: a copy of the database, by dump, template or upgrade, is another
-- installation without anybody having to tell it so. Only a copy of the whole data directory is taken for the
-- same one, which is what a promoted standby needs.
create function tensile.installation() returns uuid
  language sql stable parallel safe
  return (select pg_catalog.md5(c.system_identifier::text || '/' || d.oid::text)::uuid
            from pg_catalog.pg_control_system() as c, pg_catalog.pg_database as d
           where d.datname = pg_catalog.current_database());
comment on function tensile.installation() is
  'who this database is: from the cluster''s system identifier and the database''s oid';

create function tensile.current_role_oid() returns oid
  language sql stable parallel safe
  return pg_catalog.quote_ident(current_user)::regrole::oid;
comment on function tensile.current_role_oid() is 'oid of current_user: the owner of what is written now';

create type tensile.job_state as enum ('queued', 'starting', 'running', 'succeeded', 'failed', 'cancelled');
comment on type tensile.job_state is
  'queued: waits for a worker; starting: claimed, reads and plans; running: trains; '
  'succeeded: its version is published; failed: see its error; cancelled: stopped because its owner asked';

create type tensile.job_phase as enum (
  'reading', 'capturing', 'calibrating', 'waiting for memory', 'training', 'validating', 'publishing');
comment on type tensile.job_phase is
  'reading: the table becomes tensors; capturing: one step becomes a graph; calibrating: unknown operators are '
  'measured; waiting for memory: to be measured in, or to train in; training; validating; publishing: the version is stored';

create type tensile.task as enum ('classification', 'regression');
comment on type tensile.task is 'classification: a label out of a set; regression: a number';

create type tensile.checkpoint_store as enum ('local', 'catalog');
comment on type tensile.checkpoint_store is
  'local: a file on the host that trained the job; catalog: rows of checkpoint_chunks, which every host can read';

create type tensile.copy_way as enum ('out', 'in');
comment on type tensile.copy_way is 'out: from the device to its host; in: from the host to the device';

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
