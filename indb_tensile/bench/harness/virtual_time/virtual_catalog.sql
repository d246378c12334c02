-- Statements of virtual_catalog.py.

-- create_clock --
create schema virtual_time;
create function virtual_time.now() returns timestamptz language sql stable
  return pg_catalog.current_setting('virtual_time.now')::pg_catalog.timestamptz;
grant usage on schema virtual_time to public;
-- A function whose body is a string pins its search_path. With the path set here, now() in the body is
-- virtual_time.now(). A body in SQL's own form was bound to the real now(), so such a function is created again.
do $$
declare
  changed record;
  parsed text[] := array(
    select pg_catalog.pg_get_functiondef(p.oid) from pg_catalog.pg_proc as p
     where p.pronamespace = 'tensile'::regnamespace and p.prokind = 'f' and p.prosqlbody is not null
       and pg_catalog.pg_get_function_sqlbody(p.oid) like '%now()%');
  definition text;
begin
  for changed in select p.oid::regprocedure::text as signature from pg_catalog.pg_proc as p
                  where p.pronamespace = 'tensile'::regnamespace and p.prokind in ('f', 'p')
                    and 'search_path=pg_catalog, pg_temp' = any (p.proconfig)
  loop
    execute format('alter routine %s set search_path = virtual_time, pg_catalog, pg_temp', changed.signature);
  end loop;
  for changed in select d.adrelid::regclass::text as name, a.attname
                   from pg_catalog.pg_attrdef as d
                   join pg_catalog.pg_attribute as a on a.attrelid = d.adrelid and a.attnum = d.adnum
                   join pg_catalog.pg_class as c on c.oid = d.adrelid
                  where c.relnamespace = 'tensile'::regnamespace and pg_catalog.pg_get_expr(d.adbin, d.adrelid) = 'now()'
  loop
    execute format('alter table %s alter column %I set default virtual_time.now()', changed.name, changed.attname);
  end loop;
  perform pg_catalog.set_config('search_path', 'virtual_time, pg_catalog, pg_temp', true);
  foreach definition in array parsed
  loop
    execute definition;
  end loop;
end
$$

-- follow_clock --
set search_path = virtual_time, pg_catalog, pg_temp

-- set_clock --
select pg_catalog.set_config('virtual_time.now', %(now)s, false)

-- allow --
select public.tensile_set_quota('-', jobs_queued => 100000, jobs_running => 100000)

-- enqueue --
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
values ('bench', 1, 'public', 'bench', %(spec)s) returning job_id

-- left_over --
select (select count(*) from tensile.jobs where state in ('queued', 'starting', 'running')),
       (select count(*) from tensile.job_ranks), (select count(*) from tensile.rank_values)
