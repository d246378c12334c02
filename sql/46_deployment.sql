-- Versions of models: which one is deployed, the history of deployments, and the listing of versions.

-- The history ----------------------------------------------------------------------------------------------------

-- Not security definer, so that current_user is the role that changes the version. A user may update `deployed`, and
-- no user may update `deployed_by`.
create function tensile.note_deployer() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'UPDATE' or new.deployed and new.deployed_by is null then  -- a restored copy inserts the old deployer
    new.deployed_by := current_user;
  end if;
  if not new.deployed then
    new.deployed_why := null;
  end if;
  return new;
end
$$;
comment on function tensile.note_deployer() is
  'trigger: writes into a version which role deployed it or withdrew it last';

create trigger model_versions_note_deployer before insert or update of deployed on tensile.model_versions
  for each row execute function tensile.note_deployer();

-- A deployment first withdraws the version that is deployed, because only one version may be, and then deploys the other
-- one in the same transaction. Both together are one row of the history.
create function tensile.record_deployment() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  trained_by constant bigint := case tg_op when 'INSERT' then new.job_id end;
  most constant integer := 1000;  -- changes of a model that are kept
begin
  if not exists (select from tensile.models as m
                  where m.model_id = new.model_id and m.installation = tensile.installation()) then
    return null;  -- the rows of a restored copy, which has the history too
  end if;
  if not new.deployed then
    insert into tensile.deployments (model_id, from_version, deployed_by)
    values (new.model_id, new.number, new.deployed_by);
    return null;
  end if;
  update tensile.deployments as d
     set to_version = new.number, deployed_by = new.deployed_by, reason = new.deployed_why, job_id = trained_by
   where d.deployment_id = (select max(l.deployment_id) from tensile.deployments as l where l.model_id = new.model_id)
     and d.to_version is null and d.deployed_at = now();
  if not found then
    insert into tensile.deployments (model_id, to_version, deployed_by, reason, job_id)
    values (new.model_id, new.number, new.deployed_by, new.deployed_why, trained_by);
  end if;
  delete from tensile.deployments as d
   where d.model_id = new.model_id
     and d.deployment_id <= (select o.deployment_id from tensile.deployments as o where o.model_id = new.model_id
                              order by o.deployment_id desc offset most limit 1);
  return null;
end
$$;
comment on function tensile.record_deployment() is 'trigger: adds the deployment of a version to the history';

create trigger model_versions_record_deployed after insert on tensile.model_versions
  for each row when (new.deployed) execute function tensile.record_deployment();
create trigger model_versions_record_change after update of deployed on tensile.model_versions
  for each row when (old.deployed <> new.deployed) execute function tensile.record_deployment();

create view tensile.deployment_history with (security_invoker) as
select m.name as model, coalesce(r.rolname, m.owner_name) as owner, d.deployed_at, d.deployed_by, d.from_version,
       d.to_version, d.job_id, d.reason
  from tensile.deployments as d
  join tensile.models as m on m.model_id = d.model_id
  left join pg_catalog.pg_roles as r on r.oid = m.owner_oid and m.installation = (select tensile.installation())
 where m.dropped_at is null
 order by d.deployment_id desc;
comment on view tensile.deployment_history is
  'which version predicted from when on, the last change first: deployments by trainings, by tensile_deploy and by '
  'tensile_rollback; only a model''s owner and tensile_monitor see them';
comment on column tensile.deployment_history.model is 'name of the model now';
comment on column tensile.deployment_history.owner is 'owner of the model';
comment on column tensile.deployment_history.deployed_at is 'time of the change';
comment on column tensile.deployment_history.deployed_by is
  'role that made the change: for a training, the role of the controller; null for a deployment by release 0.1';
comment on column tensile.deployment_history.from_version is 'version that predicted before; null if none did';
comment on column tensile.deployment_history.to_version is 'version that predicts from then on; null if none does';
comment on column tensile.deployment_history.job_id is 'job that published and deployed the version; null for a call';
comment on column tensile.deployment_history.reason is 'why the version was deployed, in words';

-- Privileges: nobody may write history except by the trigger.
alter table tensile.deployments enable row level security;
create policy deployments_of_owner on tensile.deployments for select to tensile_user
  using (exists (select from tensile.models as m
                  where m.model_id = deployments.model_id and m.owner_oid = (select tensile.current_role_oid())
                    and m.installation = (select tensile.installation())));
create policy deployments_monitored on tensile.deployments for select to tensile_monitor using (true);
create policy deployments_worked on tensile.deployments for select to tensile_worker using (true);
grant select on tensile.deployments, tensile.deployment_history to tensile_user, tensile_monitor, tensile_worker;
grant update (deployed_why) on tensile.model_versions to tensile_user;

-- Deploying ------------------------------------------------------------------------------------------------------

create function tensile.best_version(model bigint)
  returns table (number integer, metric_name text, metric double precision)
  language sql stable rows 1
  set search_path = pg_catalog, pg_temp
as $$
  with example as (
    select v.task, v.target, v.metric_name from tensile.model_versions as v
     where v.model_id = best_version.model order by v.deployed desc, v.number desc limit 1
  )
  select v.number, v.metric_name, v.metric
    from tensile.model_versions as v
    join example as e on e.task = v.task and e.target = v.target and e.metric_name = v.metric_name
   where v.model_id = best_version.model and v.metric not in ('nan', 'infinity', '-infinity')
   order by case when v.higher_is_better then -v.metric else v.metric end, v.number desc limit 1
$$;
comment on function tensile.best_version(bigint) is
  'returns the version with the best metric among those that have the task, target and metric of the deployed version, '
  'or of the newest version if none is deployed; of equal ones the newest';

create function tensile.previous_version(model bigint) returns integer
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select d.from_version
    from tensile.deployments as d
    join tensile.model_versions as v on v.model_id = d.model_id and v.number = d.from_version
   where d.model_id = previous_version.model and not v.deployed
   order by d.deployment_id desc limit 1
$$;
comment on function tensile.previous_version(bigint) is
  'returns the version that predicted before the deployed one, and still exists; null if there is none';

-- Locks the model as a publication does, so that two deployments take turns. Only its owner and administrators can.
create function tensile.lock_own_model(model text, verb text) returns bigint
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
declare
  locked bigint;
begin
  select m.model_id into locked from tensile.models as m
   where m.name = model and m.dropped_at is null for no key update;
  if found then
    return locked;
  elsif exists (select from tensile.models as m where m.name = model and m.dropped_at is null) then
    raise exception 'model "%" belongs to another role', model
      using errcode = 'insufficient_privilege',
            detail = format('Role "%s" may predict with the model, and may not change it.', current_user),
            hint = format('Its owner, or a member of tensile_admin, can %s it.', verb);
  end if;
  perform tensile.raise_no_model(model);
end
$$;
comment on function tensile.lock_own_model(text, text) is
  'locks a model that the caller may change and returns its number; raises an error for another model';

create function tensile.deploy(model text, version text, reason text) returns integer
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
declare
  changed constant bigint := tensile.lock_own_model(model, 'deploy a version of');
  chosen integer;
  metric_name text;
  metric double precision;
  why text := reason;
begin
  if length(reason) > 1000 then
    raise exception 'the reason has % characters', length(reason)
      using errcode = 'invalid_parameter_value', detail = 'A reason has at most 1000 characters.',
            hint = 'Give a shorter reason.';
  end if;
  case
    when version ~ '^[0-9]{1,9}$' then
      select v.number into chosen from tensile.model_versions as v
       where v.model_id = changed and v.number = version::integer;
    when version = 'best' then
      select b.number, b.metric_name, b.metric into chosen, metric_name, metric from tensile.best_version(changed) as b;
      why := coalesce(reason, format('best %s: %s', metric_name, metric));
    when version = 'previous' then
      chosen := tensile.previous_version(changed);
      why := coalesce(reason, 'deployed before');
    else
      raise exception 'version is %', coalesce('"' || left(version, 100) || '"', 'null')
        using errcode = case when version is null then 'null_value_not_allowed' else 'invalid_parameter_value' end,
              detail = 'A version is the number of a version, or one of the words best and previous.',
              hint = format('See the versions: select * from tensile_training_info(%L);', model);
  end case;
  -- The lock keeps the clean-up of old versions from deleting it meanwhile.
  perform from tensile.model_versions as v where v.model_id = changed and v.number = chosen for no key update;
  if not found then
    perform tensile.raise_no_version(changed, model, version);
  end if;
  if exists (select from tensile.model_versions as v
              where v.model_id = changed and v.number = chosen and v.deployed) then
    raise notice 'version % of model "%" is deployed already', chosen, model;
    return chosen;
  end if;
  update tensile.model_versions as v set deployed = false where v.model_id = changed and v.deployed;
  update tensile.model_versions as v set deployed = true, deployed_why = why
   where v.model_id = changed and v.number = chosen;
  return chosen;
end
$$;
comment on function tensile.deploy(text, text, text) is
  'implements tensile_deploy; the version is a number or one of the words best and previous, as text';

create function tensile.raise_no_version(model_id bigint, model text, version text) returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  newest integer;
begin
  select max(v.number) into newest from tensile.model_versions as v where v.model_id = raise_no_version.model_id;
  raise exception '%', format(case version when 'best' then 'no version of model "%s" has a metric'
                                           when 'previous' then 'model "%s" has no version that was deployed before'
                                           else 'model "%s" has no version %s' end, model, version)
    using errcode = case when version in ('best', 'previous') then 'object_not_in_prerequisite_state'
                         else 'undefined_object' end,
          detail = coalesce('Its newest version is ' || newest || '.', 'No training of the model has succeeded yet.'),
          hint = case when newest is null then 'See your jobs: select * from tensile.stat_jobs;'
                      else format('See its versions: select * from tensile_training_info(%L);', model) end;
end
$$;
comment on function tensile.raise_no_version(bigint, text, text) is
  'raises the error that a model has no such version';

create function public.tensile_deploy(model text, version anycompatible, reason text default null) returns integer
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform public.tensile_require_role('tensile_user');
  return tensile.deploy(model, version::text, reason);
end
$$;
comment on function public.tensile_deploy(text, anycompatible, text) is
  'deploys a version of a model: its number, ''best'' for the best metric, or ''previous'' for the version that was '
  'deployed before. New statements predict with it at once. Returns its number; tensile.deployment_history lists all '
  'deployments';

create function public.tensile_rollback(model text, reason text default null) returns integer
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform public.tensile_require_role('tensile_user');
  return tensile.deploy(model, 'previous', reason);
end
$$;
comment on function public.tensile_rollback(text, text) is
  'deploys the version that was deployed before the present one, and returns its number; a second call returns to the '
  'present one';

create function public.tensile_rename_model(model text, new_name text) returns void
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s'  -- another session may have taken the name and not committed yet
as $$
declare
  changed bigint;
begin
  perform public.tensile_require_role('tensile_user');
  changed := tensile.lock_own_model(model, 'rename');
  if coalesce(length(new_name), 0) not between 1 and 200
     or new_name ~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]' then
    raise exception 'the model''s new name is %', coalesce(to_jsonb(left(new_name, 250))::text, 'null')
      using errcode = 'invalid_parameter_value',
            detail = 'A name has 1 to 200 characters: no control character, line separator or mark of text direction.',
            hint = 'Use letters, digits, spaces and punctuation.';
  end if;
  if new_name = model then
    return;
  end if;
  update tensile.models as m
     set name = new_name,
         last_spec = case when m.last_spec is null then null
                          else jsonb_set(m.last_spec, '{model}', to_jsonb(new_name)) end
   where m.model_id = changed;
exception when unique_violation then
  raise exception 'model "%" already exists', new_name
    using errcode = 'duplicate_object', detail = 'Model names are unique in the database, and trainings reserve them.',
          hint = 'Choose another name, or drop that model first.';
end
$$;
comment on function public.tensile_rename_model(text, text) is
  'renames a model, with its versions, grants and history. A model with a queued or active training is refused, because '
  'the training publishes to its name. Jobs that have ended keep the old name';

-- Versions -------------------------------------------------------------------------------------------------------

create function public.tensile_training_info(model text)
  returns table (version integer, deployed boolean, task tensile.task, target text, architecture jsonb,
    metric_name text, metric double precision, parameters bigint, weights_bytes bigint, relation text, job bigint,
    trained_at timestamptz, hyperparams jsonb, features text[], rows bigint, split jsonb, settings jsonb,
    baseline double precision, baseline_metrics jsonb)
  language plpgsql stable parallel unsafe rows 10
as $$
begin
  perform public.tensile_require_role('tensile_user');
  if not exists (select from tensile.models as m
                  where m.name = tensile_training_info.model and m.dropped_at is null) then
    perform tensile.raise_no_model(tensile_training_info.model);
  end if;
  return query
  select v.number, v.deployed, v.task, v.target, v.architecture, v.metric_name, v.metric, v.parameters,
         v.weights_bytes, case when v.relation_oid is not null
           then tensile.relation_title(v.relation_oid, v.relation_schema, v.relation_name) end,
         v.job_id, v.created_at, v.training -> 'hyperparams',
         case when v.training ? 'features' then array(select jsonb_array_elements_text(v.training -> 'features')) end,
         (v.training ->> 'rows')::bigint, v.training -> 'split', v.training - '{hyperparams,features,rows,split}'::text[],
         (f.figure -> 'metrics' ->> v.metric_name)::double precision, f.figure -> 'metrics'
    from tensile.models as m
    join tensile.model_versions as v on v.model_id = m.model_id
    left join tensile.version_figures as f on f.version_id = v.version_id and f.name = 'baseline'
   where m.name = tensile_training_info.model and m.dropped_at is null
   order by v.number desc;
end
$$;
comment on function public.tensile_training_info(text) is
  'returns the versions of a model, the newest first, with the data, the hyper-parameters and the settings of each '
  'training: features and rows that it learned from or was judged on, the split, and in settings the preprocessing, '
  'early stopping and epochs. baseline is the metric of gradient boosting on the same rows, and baseline_metrics all of '
  'its metrics; null until they are computed, some time after the publication';

create function public.tensile_training_history(model text, version integer default null)
  returns table (epoch integer, loss double precision, valid_loss double precision, metrics jsonb, published boolean)
  language plpgsql stable parallel unsafe rows 50
as $$
declare
  named record;
  found_version record;
begin
  perform public.tensile_require_role('tensile_user');
  select m.model_id, m.owner_oid = tensile.current_role_oid() and m.installation = tensile.installation() as own
    into named from tensile.models as m where m.name = tensile_training_history.model and m.dropped_at is null;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  select v.number, v.job_id, (v.training ->> 'best_epoch')::integer as best_epoch into found_version
    from tensile.model_versions as v
   where v.model_id = named.model_id
     and case when tensile_training_history.version is null then v.deployed
              else v.number = tensile_training_history.version end;
  if not found and version is null then
    raise exception 'model "%" has no deployed version', model
      using errcode = 'object_not_in_prerequisite_state',
            hint = format('Name one with version => N: see tensile_training_info(%L).', model);
  elsif not found then
    perform tensile.raise_no_version(named.model_id, model, version::text);
  end if;
  return query
  select m.epoch, max(m.value) filter (where m.name = 'loss'), max(m.value) filter (where m.name = 'valid_loss'),
         coalesce(jsonb_object_agg(m.name, m.value) filter (where m.name not in ('loss', 'valid_loss', 'learning_rate')), '{}'),
         m.epoch = found_version.best_epoch
    from tensile.metrics as m
   where m.job_id = found_version.job_id
   group by m.epoch
   order by m.epoch;
  if not found and not named.own then
    raise exception 'model "%" belongs to another role', model
      using errcode = 'insufficient_privilege',
            hint = 'Those who may see the training''s job may read its history: its owner, and members of tensile_monitor.';
  elsif not found then
    raise exception 'version % of model "%" has no history', found_version.number, model
      using errcode = 'object_not_in_prerequisite_state',
            detail = 'Its job was deleted, as the setting retain_jobs says, or recorded no epoch.',
            hint = format('See how it was trained: select * from tensile_training_info(%L);', model);
  end if;
end
$$;
comment on function public.tensile_training_history(text, integer) is
  'returns the epochs of a version''s training: the losses on the training and on the validation rows, the metrics on '
  'the validation rows, and true for the epoch whose weights the version has. Who sees the job may read them';

revoke execute on function tensile.note_deployer(), tensile.record_deployment(), tensile.best_version(bigint),
  tensile.previous_version(bigint), tensile.lock_own_model(text, text), tensile.deploy(text, text, text),
  tensile.raise_no_version(bigint, text, text) from public;
grant execute on function tensile.best_version(bigint), tensile.previous_version(bigint),
  tensile.lock_own_model(text, text), tensile.deploy(text, text, text), tensile.raise_no_version(bigint, text, text)
  to tensile_user;
