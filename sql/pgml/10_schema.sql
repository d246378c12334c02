-- Schema pgml: functions and views with the names and arguments of PostgresML 2, on top of tensile_... functions.
-- `tensile init --pgml` runs these files in one transaction, and `drop schema pgml cascade` removes what they make.
--
-- A second run replaces every function and view, so what users built on them stays. Replacing keeps an object's owner,
-- and who may create objects in the schema could add a function that calls of others find first. So the schema, and
-- everything in it, must belong to a superuser.

do $$
declare
  foreign_object text;
begin
  if not exists (select from pg_namespace where nspname = 'pgml') then
    create schema pgml;
  end if;
  if exists (select from pg_extension where extname = 'pgml') then
    raise exception 'schema "pgml" belongs to the extension pgml: PostgresML is installed in database "%"',
                    current_database()
      using errcode = 'duplicate_schema',
            detail = 'Its functions have the same names and arguments.',
            hint = 'Call the tensile_... functions beside it; or install the compatibility schema after: '
                   'drop extension pgml;';
  end if;
  select coalesce(
           (select 'schema pgml' from pg_namespace as n join pg_roles as r on r.oid = n.nspowner
             where n.nspname = 'pgml' and not r.rolsuper),
           (select 'function ' || p.oid::regprocedure from pg_proc as p join pg_roles as r on r.oid = p.proowner
             where p.pronamespace = 'pgml'::regnamespace and not r.rolsuper limit 1),
           (select 'relation ' || c.oid::regclass from pg_class as c join pg_roles as r on r.oid = c.relowner
             where c.relnamespace = 'pgml'::regnamespace and not r.rolsuper limit 1),
           (select 'schema pgml with the privilege CREATE for other roles' from pg_namespace as n,
                   lateral aclexplode(n.nspacl) as a
             where n.nspname = 'pgml' and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner limit 1))
    into foreign_object;
  if foreign_object is not null then
    raise exception 'schema "pgml" is not safe to install functions into: % is not a superuser''s alone', foreign_object
      using errcode = 'duplicate_schema',
            detail = 'Its owner could put other functions in place of ours, and every caller would run them.',
            hint = 'Rename or drop that schema, then run this again: alter schema pgml rename to old_pgml;';
  end if;
end
$$;

comment on schema pgml is
  'compatibility with PostgresML 2 by indb-tensile: see the page "From PostgresML" of its manual; to remove it: drop '
  'schema pgml cascade';
grant usage on schema pgml to public;  -- each function says which role its caller lacks

create or replace function pgml.refuse(subject text, detail text, hint text) returns text
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception '%', refuse.subject || ' is not supported'
    using errcode = 'feature_not_supported', detail = coalesce(refuse.detail, ''), hint = refuse.hint;
end
$$;
comment on function pgml.refuse(text, text, text) is
  'raises the error that something of PostgresML has no counterpart, with what to do instead';

create or replace function pgml.version() returns text
  language sql stable
  return 'indb-tensile ' || tensile.catalog_version();
comment on function pgml.version() is 'returns the version of indb-tensile, whose functions those of this schema call';
