-- Every function of ours means PostgreSQL's own functions and operators, whatever search_path its caller has, and so does
-- what it calls. Left out are functions whose bodies were parsed when they were created, procedures, which could not
-- commit and therefore qualify every name, and functions that pin the path themselves.

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_proc as p
     where (p.pronamespace = 'tensile'::regnamespace
            or p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%')
       and p.prokind = 'f' and p.prosqlbody is null
       and not coalesce(p.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}'
  loop
    execute format('alter routine %s set search_path = pg_catalog, pg_temp', routine);
  end loop;
end
$$;
