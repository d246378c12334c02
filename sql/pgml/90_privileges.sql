-- Privileges. Functions are security invoker and call tensile_require_role first, so everybody may execute them. Those
-- for batches are not: PostgreSQL parses the body of an SQL function with the caller's privileges before it runs the
-- first statement.

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_proc as p
     where p.pronamespace = 'pgml'::regnamespace and p.proname in ('predict_batch', 'batch')
  loop
    execute format('revoke execute on routine %s from public', routine);
    execute format('grant execute on routine %s to tensile_user', routine);
  end loop;
end
$$;

grant select on pgml.projects, pgml.models, pgml.deployments, pgml.overview, pgml.trained_models, pgml.deployed_models
  to tensile_user, tensile_monitor;
