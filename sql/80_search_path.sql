-- Pins search_path for all functions of the catalog, so that names in them mean PostgreSQL's own functions and
-- operators, whatever search_path the caller has. Four kinds of routines are left out: functions whose bodies were
-- parsed when they were created; procedures, which could not commit with a SET clause and therefore qualify every name;
-- functions that pin search_path themselves; and tensile_predict_rows, whose body PostgreSQL writes in place of a call
-- only if there is no SET clause, and which qualifies every name too.

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_proc as p
     where (p.pronamespace = 'tensile'::regnamespace
            or p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%')
       and p.prokind = 'f' and p.prosqlbody is null and p.oid <> 'public.tensile_predict_rows'::regproc
       and not coalesce(p.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}'
  loop
    execute format('alter routine %s set search_path = pg_catalog, pg_temp', routine);
  end loop;
end
$$;
