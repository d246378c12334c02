-- Runs before the steps of an upgrade, and removes the objects that would hinder the steps and that the new source
-- creates again: policies, triggers and grants. Functions and views stay, because views of users may depend on them;
-- the new source replaces them in place.

set local search_path = pg_catalog, pg_temp;
set local deadlock_timeout = '10s';  -- longer than in other sessions, so that a deadlock cancels their statement

do $$
declare
  object record;
  roles text;
begin
  -- A controller may still run. The locks make other sessions wait before the upgrade has changed anything.
  for object in
    select c.oid::regclass as name from pg_catalog.pg_class as c
     where c.relnamespace = 'tensile'::regnamespace and c.relkind = 'r' order by c.oid
  loop
    execute pg_catalog.format('lock table %s in access exclusive mode', object.name);
  end loop;

  -- Functions of schema public are replaced in place and keep their owner, so they must not belong to another role.
  for object in
    select p.oid::regprocedure as name, r.rolname as owner, p.prokind
      from pg_catalog.pg_proc as p
      join pg_catalog.pg_roles as r on r.oid = p.proowner
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
       and p.proowner <> (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'tensile')
     order by p.oid
  loop
    raise exception 'function % belongs to role "%", not to the owner of schema tensile', object.name, object.owner
      using errcode = 'duplicate_function',
            hint = pg_catalog.format('If it is not needed: drop routine %s; then upgrade again.', object.name);
  end loop;

  for object in
    select p.polname as name, p.polrelid::regclass as place
      from pg_catalog.pg_policy as p
      join pg_catalog.pg_class as c on c.oid = p.polrelid
     where c.relnamespace = 'tensile'::regnamespace
  loop
    execute pg_catalog.format('drop policy %I on %s', object.name, object.place);
  end loop;

  for object in
    select t.tgname as name, t.tgrelid::regclass as place
      from pg_catalog.pg_trigger as t
      join pg_catalog.pg_class as c on c.oid = t.tgrelid
      join pg_catalog.pg_proc as p on p.oid = t.tgfoid
     where c.relnamespace = 'tensile'::regnamespace and p.pronamespace = 'tensile'::regnamespace and not t.tgisinternal
  loop
    execute pg_catalog.format('drop trigger %I on %s', object.name, object.place);
  end loop;

  select pg_catalog.string_agg(pg_catalog.quote_ident(r.rolname), ', ') into roles
    from pg_catalog.pg_roles as r
   where r.rolname in ('tensile_user', 'tensile_monitor', 'tensile_admin', 'tensile_worker', 'tensile_reader',
                       'tensile_data');
  execute 'revoke all on all tables in schema tensile from ' || roles;
  execute 'revoke all on all sequences in schema tensile from ' || roles;
  for object in
    select p.oid::regprocedure as name
      from pg_catalog.pg_proc as p
     where p.pronamespace = 'tensile'::regnamespace
        or p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
  loop
    execute pg_catalog.format('revoke all on routine %s from %s', object.name, roles);
    execute pg_catalog.format('grant execute on routine %s to public', object.name);  -- as after its creation
  end loop;
end
$$;
