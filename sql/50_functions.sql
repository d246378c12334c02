-- What users call. Security invoker throughout: nobody can do here what he could not do to the tables himself.
--
-- Every function here pins search_path (80_search_path.sql sets it), so that names mean PostgreSQL's own functions. Some
-- must know the caller's path: such a public function is a wrapper whose body is parsed when it is created, and which
-- passes the caller's schema or path to a pinned function of schema tensile.

-- Training -----------------------------------------------------------------------------------------------------

create function tensile.training_request(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false
) returns jsonb
  language sql stable
as $$
  select jsonb_build_object(
    'model', model, 'relation', relation::oid::bigint, 'target', target, 'task', task,
    'architecture', architecture, 'hyperparams', hyperparams, 'features', features, 'exclude', exclude,
    'preprocess', preprocess, 'split', split, 'metric', metric, 'early_stop', early_stop, 'init_from', init_from,
    'priority', priority, 'memory_limit', memory_limit, 'max_runtime_s', extract(epoch from max_runtime),
    'deploy', deploy, 'depends_on', depends_on, 'not_before', not_before, 'idempotency_key', idempotency_key,
    'snapshot', snapshot)
$$;
comment on function tensile.training_request is 'the arguments of a training as the bridge reads them';

create function public.tensile_train(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false
) returns bigint
  language plpgsql volatile parallel unsafe
as $$
begin
  return (tensile.call('train', tensile.training_request(
      model, relation, target, task, architecture, hyperparams, features, exclude, preprocess, split, metric,
      early_stop, init_from, priority, memory_limit, max_runtime, deploy, depends_on, not_before, idempotency_key,
      snapshot)) ->> 'job')::bigint;
end
$$;
comment on function public.tensile_train is
  'enqueues a training of the model on the table and returns the job; it exists once the transaction has committed';

create function tensile.follow_job(job bigint, told text) returns text
  language plpgsql volatile parallel unsafe
as $$
declare
  held record;
  step text;
begin
  select j.state, j.phase, j.error_sqlstate, j.error_message, j.error_detail, j.error_hint
    into held from tensile.jobs as j where j.job_id = job;
  if not found or held.state = 'succeeded' then
    return null;
  elsif held.state = 'failed' then
    perform tensile.raise_error(held.error_sqlstate, held.error_message, held.error_detail, held.error_hint);
  elsif held.state = 'cancelled' then
    raise exception 'job % was cancelled', job using errcode = 'query_canceled', detail = coalesce(held.error_message, '');
  end if;
  step := coalesce(held.phase::text, held.state::text);
  if told is distinct from step then
    raise notice 'job %: %', job, step;
  end if;
  return step;
end
$$;
comment on function tensile.follow_job(bigint, text) is
  'what a job does now, with a notice where that is not what was told before; null once it has succeeded; its error '
  'where it failed';

create procedure public.tensile_train_and_wait(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false, inout job bigint default null
)
  language plpgsql
as $$
declare  -- no SET clause: a procedure that has one may not commit. So every name is qualified, and no operator is used.
  told pg_catalog.text;
begin
  job := public.tensile_train(
      model, relation, target, task, architecture, hyperparams, features, exclude, preprocess, split, metric,
      early_stop, init_from, priority, memory_limit, max_runtime, deploy, depends_on, not_before, idempotency_key,
      snapshot);
  loop
    commit;  -- the job exists from here on, and between polls no snapshot holds back the queue
    told := tensile.follow_job(job, told);
    exit when told is null;
    perform pg_catalog.pg_sleep(0.1::pg_catalog.float8);
  end loop;
end
$$;
comment on procedure public.tensile_train_and_wait is
  'enqueues a training, commits, and returns when it has ended; a failure is raised; a cancelled call leaves the job';

create function public.tensile_explain(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false
) returns table (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
  iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
  swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text)
  language plpgsql volatile parallel unsafe
as $$
begin
  return query
  select said.policy, said.peak_bytes, said.floor_bytes, said.bound_bytes, said.saved, said.iteration_ms,
         said.overhead, said.stall_ms, said.swaps, said.swapped_bytes, said.recomputed, said.planning_ms, said.starts_now,
         said.note
    from jsonb_to_recordset(tensile.call('explain', tensile.training_request(
      model, relation, target, task, architecture, hyperparams, features, exclude, preprocess, split, metric,
      early_stop, init_from, priority, memory_limit, max_runtime, deploy, depends_on, not_before, idempotency_key,
      snapshot)) -> 'rows')
      as said (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
        iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
        swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text);
end
$$;
comment on function public.tensile_explain is
  'what this training would need and take under each policy, as tensile plan prints it: saved is of the liveness peak, '
  'overhead a ratio to its time; and whether it would start now; nothing is enqueued or allocated';

-- Waiting and stopping -----------------------------------------------------------------------------------------

create function public.tensile_wait(job bigint, timeout interval default '1 minute') returns tensile.job_state
  language plpgsql volatile parallel unsafe
as $$
declare
  deadline constant timestamptz := coalesce(clock_timestamp() + timeout, 'infinity');
  nap double precision := 0.01;
  held record;
begin
  loop
    select j.state, j.enqueued_xact into held from tensile.jobs as j where j.job_id = job;
    if not found then
      perform tensile.raise_no_job(job);
    end if;
    exit when held.state in ('succeeded', 'failed', 'cancelled') or clock_timestamp() >= deadline;
    if held.enqueued_xact = pg_current_xact_id_if_assigned() then
      raise exception 'job % cannot start before this transaction commits: waiting for it here would never end', job
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Commit first, then wait; or use: call tensile_train_and_wait(...).';
    elsif current_setting('transaction_isolation') <> 'read committed' then
      raise exception 'a transaction of isolation level % never sees job % end',
                      current_setting('transaction_isolation'), job
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Wait in a transaction of isolation level read committed.';
    end if;
    if isfinite(deadline) then
      nap := least(nap, greatest(0, extract(epoch from deadline - clock_timestamp())));
    end if;
    perform pg_sleep(nap);
    nap := least(nap * 1.5, 0.2);
  end loop;
  return held.state;
end
$$;
comment on function public.tensile_wait(bigint, interval) is
  'the job''s state once it has ended, or when the time is over (null: never); for short waits, as it holds a snapshot';

create function public.tensile_cancel(job bigint) returns boolean
  language plpgsql volatile parallel unsafe
as $$
declare
  held tensile.job_state;
begin
  update tensile.jobs as j set cancel_requested = true
   where j.job_id = job and j.state in ('queued', 'starting', 'running');
  if found then
    return true;
  end if;
  select j.state into held from tensile.jobs as j where j.job_id = job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif held in ('queued', 'starting', 'running') then
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege', hint = 'Its owner, or a member of tensile_admin, can cancel it.';
  end if;
  return false;
end
$$;
comment on function public.tensile_cancel(bigint) is
  'asks to stop a job: a queued one is cancelled at once, a running one within a heartbeat; false if it had ended';

create function tensile.raise_no_job(job bigint) returns void
  language plpgsql stable
as $$
begin
  raise exception 'there is no job %', job
    using errcode = 'undefined_object', hint = 'See your jobs: select * from tensile.stat_jobs;';
end
$$;
comment on function tensile.raise_no_job(bigint) is 'raises that the caller has no such job';

-- Predictions --------------------------------------------------------------------------------------------------
-- One input of type anycompatible each: that resolves rows, sub-selects, arrays, jsonb, literals and null. Stable,
-- since a version does not change, and parallel unsafe, since a worker process could not run the bridge's queries.

create function tensile.prediction(
  model text, input anycompatible, version integer, kind text
) returns jsonb
  language plpgsql stable parallel unsafe
as $$
begin
  return tensile.call('predict', jsonb_build_object(
    'model', model, 'version', version, 'kind', kind, 'rows', jsonb_build_array(to_jsonb(input)),
    'unnamed', pg_typeof(input) = 'record'::regtype)) #> '{values,0}';
end
$$;
comment on function tensile.prediction(text, anycompatible, integer, text) is
  'one prediction, of kind value, label, proba or vector';

create function public.tensile_predict(model text, input anycompatible, version integer default null)
  returns double precision
  language plpgsql stable parallel unsafe
as $$
begin
  return (tensile.prediction(model, input, version, 'value') #>> '{}')::double precision;
end
$$;
comment on function public.tensile_predict(text, anycompatible, integer) is
  'the model''s prediction for a row: the value, or the label where labels are numbers or booleans (true is 1)';

create function public.tensile_predict_label(model text, input anycompatible, version integer default null)
  returns text
  language plpgsql stable parallel unsafe
as $$
begin
  return tensile.prediction(model, input, version, 'label') #>> '{}';
end
$$;
comment on function public.tensile_predict_label(text, anycompatible, integer) is
  'the label that the model predicts for a row, as text';

create function public.tensile_predict_proba(model text, input anycompatible, version integer default null)
  returns table (label text, probability double precision)
  language plpgsql stable parallel unsafe rows 10
as $$
begin
  return query
  select said.key, said.value::double precision
    from jsonb_each_text(nullif(tensile.prediction(model, input, version, 'proba'), 'null')) as said
   order by said.value::double precision desc, said.key;
end
$$;
comment on function public.tensile_predict_proba(text, anycompatible, integer) is
  'every label with its probability for a row, the likeliest first';

create function public.tensile_predict_vector(model text, input anycompatible, version integer default null)
  returns double precision[]
  language plpgsql stable parallel unsafe
as $$
declare
  outputs constant jsonb := nullif(tensile.prediction(model, input, version, 'vector'), 'null');
begin
  return case when outputs is not null
              then array(select said.value::double precision
                           from jsonb_array_elements_text(outputs) with ordinality as said (value, place)
                          order by said.place) end;
end
$$;
comment on function public.tensile_predict_vector(text, anycompatible, integer) is
  'the outputs of the model''s network for a row';

create function public.tensile_predict_batch(model text, inputs anycompatiblearray, version integer default null)
  returns double precision[]
  language plpgsql stable parallel unsafe
as $$
begin
  return array(
    select said.value::double precision
      from jsonb_array_elements_text(tensile.call('predict', jsonb_build_object(
        'model', model, 'version', version, 'kind', 'value',
        'rows', to_jsonb(inputs))) -> 'values') with ordinality as said (value, place)
     order by said.place);
end
$$;
comment on function public.tensile_predict_batch(text, anycompatiblearray, integer) is
  'the predictions for many rows at once, in their order: tensile_predict_batch(''m'', array_agg(t)) from t';

-- Judging ------------------------------------------------------------------------------------------------------

create function tensile.evaluation(model text, relation oid, version integer, callers_path text)
  returns table (metric text, value double precision)
  language plpgsql volatile parallel unsafe rows 5
as $$
#variable_conflict use_column
begin
  return query
  select said.key, said.value::double precision
    from jsonb_each_text(tensile.call('evaluate', jsonb_build_object(
      'model', model, 'version', version, 'relation', relation::bigint, 'search_path', callers_path)) -> 'metrics') as said
   order by said.key;
end
$$;
comment on function tensile.evaluation(text, oid, integer, text) is
  'tensile_evaluate; a relation that is a view is read under the caller''s search_path, as its functions may need that';

create function public.tensile_evaluate(model text, relation regclass default null, version integer default null)
  returns table (metric text, value double precision)
  language sql volatile parallel unsafe rows 5
begin atomic
  select e.metric, e.value
    from tensile.evaluation(model, relation::oid, version, pg_catalog.current_setting('search_path')) as e;
end;
comment on function public.tensile_evaluate(text, regclass, integer) is
  'how good the model is on the rows of a relation; without one, on the rows held out of its own training';

create function public.tensile_training_info(model text)
  returns table (version integer, deployed boolean, task tensile.task, target text, architecture jsonb,
    metric_name text, metric double precision, parameters bigint, weights_bytes bigint, relation text, job bigint,
    trained_at timestamptz)
  language plpgsql stable parallel unsafe rows 10
as $$
begin
  if not exists (select from tensile.models as m
                  where m.name = tensile_training_info.model and m.dropped_at is null) then
    perform tensile.raise_no_model(tensile_training_info.model);
  end if;
  return query
  select v.number, v.deployed, v.task, v.target, v.architecture, v.metric_name, v.metric, v.parameters,
         v.weights_bytes, quote_ident(v.relation_schema) || '.' || quote_ident(v.relation_name),
         v.job_id, v.created_at
    from tensile.models as m
    join tensile.model_versions as v on v.model_id = m.model_id
   where m.name = tensile_training_info.model and m.dropped_at is null
   order by v.number desc;
end
$$;
comment on function public.tensile_training_info(text) is 'the versions of a model, the newest first';

-- Models -------------------------------------------------------------------------------------------------------

create function public.tensile_create_model(name text, architecture text default null, hyperparams jsonb default null)
  returns bigint
  language plpgsql volatile parallel unsafe
as $$
begin
  return (tensile.call('create_model', jsonb_build_object(
    'model', name, 'architecture', architecture, 'hyperparams', hyperparams)) ->> 'model')::bigint;
end
$$;
comment on function public.tensile_create_model(text, text, jsonb) is
  'defines the network of a model before its first training: the name of an architecture or a JSON object';

create function public.tensile_drop_model(model text) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  update tensile.models as m set dropped_at = now()
   where m.name = tensile_drop_model.model and m.dropped_at is null;
  if not found then
    if exists (select from tensile.models as m where m.name = tensile_drop_model.model and m.dropped_at is null) then
      raise exception 'model "%" belongs to another role', model
        using errcode = 'insufficient_privilege', hint = 'Its owner, or a member of tensile_admin, can drop it.';
    end if;
    perform tensile.raise_no_model(model);
  end if;
end
$$;
comment on function public.tensile_drop_model(text) is
  'drops a model with all its versions: nobody sees it from then on, and a controller deletes its bytes later';

create function tensile.raise_no_model(model text) returns void
  language plpgsql stable
as $$
begin
  raise exception 'there is no model "%"', model
    using errcode = 'undefined_object', hint = 'See your models: select * from tensile.model_list;';
end
$$;
comment on function tensile.raise_no_model(text) is 'raises that the caller sees no such model';

create function public.tensile_grant_model(model text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  mine bigint;
  whom oid;
begin
  select m.model_id into mine from tensile.models as m
   where m.name = tensile_grant_model.model and m.dropped_at is null;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is given to grant model "%" to', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for everybody.';
  end if;
  select r.oid into whom from pg_catalog.pg_roles as r where r.rolname = grantee;
  if not found and grantee <> 'public' then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for everybody.';
  end if;
  insert into tensile.model_privileges as p (model_id, grantee_oid, grantee_name)
  values (mine, coalesce(whom, 0), grantee)
  on conflict on constraint model_privileges_pkey do update set revoked_at = null where p.revoked_at is not null;
end
$$;
comment on function public.tensile_grant_model(text, name) is
  'lets a role (public: everybody) see a model and predict with it';

create function public.tensile_revoke_model(model text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  mine bigint;
begin
  select m.model_id into mine from tensile.models as m
   where m.name = tensile_revoke_model.model and m.dropped_at is null;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is given to revoke model "%" from', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for everybody.';
  end if;
  update tensile.model_privileges as p set revoked_at = now()
   where p.model_id = mine and p.revoked_at is null
     and (p.grantee_oid = (select r.oid from pg_roles as r where r.rolname = grantee)
          or p.grantee_oid = 0 and grantee = 'public'
          or p.grantee_name = grantee and not exists (select from pg_roles as r where r.oid = p.grantee_oid));
  -- A role that was dropped since may still have a grant to take back, and one without a grant loses nothing.
  if not found and grantee <> 'public' and not exists (
       select from pg_catalog.pg_roles as r where r.rolname = grantee) then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for everybody.';
  end if;
end
$$;
comment on function public.tensile_revoke_model(text, name) is 'takes back what tensile_grant_model gave';

-- Service ------------------------------------------------------------------------------------------------------

create function tensile.sample_table(dataset text, table_name text, schema name) returns bigint
  language plpgsql volatile parallel unsafe
as $$
begin
  return (tensile.call('load_dataset', jsonb_build_object(
    'dataset', dataset, 'table', table_name, 'schema', schema)) ->> 'rows')::bigint;
end
$$;
comment on function tensile.sample_table(text, text, name) is
  'tensile_load_dataset, for the schema that is the caller''s current one';

create function public.tensile_load_dataset(name text, table_name text default null) returns bigint
  language sql volatile parallel unsafe
  return tensile.sample_table(name, table_name, pg_catalog.current_schema());
comment on function public.tensile_load_dataset(text, text) is
  'creates a table with a sample data set in the current schema, readable by the worker; returns its rows';

create function public.tensile_version() returns text
  language sql stable parallel safe
  return tensile.catalog_version();
comment on function public.tensile_version() is 'version of the extension in this database';

create function public.tensile_set_setting(name text, value jsonb) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  if name is distinct from 'socket_directory' then
    raise exception 'there is no setting "%"', name
      using errcode = 'undefined_object', hint = 'Known settings: socket_directory.';
  elsif jsonb_typeof(value) is distinct from 'string' or value #>> '{}' not like '/%' then
    raise exception 'setting "%" is %', name, coalesce(value::text, 'null')
      using errcode = 'invalid_parameter_value',
            hint = 'Give an absolute path: select tensile_set_setting(''socket_directory'', ''"/run/tensile"'');';
  end if;
  insert into tensile.settings as s (name, value)
  values (tensile_set_setting.name, tensile_set_setting.value)
  on conflict on constraint settings_pkey
  do update set value = excluded.value, changed_at = now(), changed_by = current_user;
end
$$;
comment on function public.tensile_set_setting(text, jsonb) is
  'sets what all sessions share: socket_directory, where services put their sockets';

create function tensile.checks(schema name)
  returns table (item text, ok boolean, detail text, hint text)
  language plpgsql volatile parallel unsafe rows 10
as $$
declare
  alive bigint;
  answer jsonb;
begin
  return query select 'catalog', true, 'version ' || tensile.catalog_version(), null::text;

  if pg_is_in_recovery() then
    return query
    select 'server', false, 'this server is a standby: it can be read, and takes no trainings',
           'Connect to the primary server to train, and for whatever else writes.';
  end if;

  return query
  select 'worker''s role', r.rolcanlogin,
         case when r.rolcanlogin then 'tensile_worker may log in' else 'tensile_worker may not log in' end,
         case when not r.rolcanlogin then 'As a superuser: alter role tensile_worker login;' end
    from pg_catalog.pg_roles as r where r.rolname = 'tensile_worker';

  return query
  select 'current schema', s.fine,
         coalesce('the worker ' || case when s.fine then 'may' else 'may not' end || ' use schema ' || s.name,
                  'no schema is selected'),
         case when not s.fine then coalesce(format('grant usage on schema %I to tensile_worker;', s.name),
                                            'set search_path = public;') end
    from (select schema as name,
                 coalesce(has_schema_privilege('tensile_worker', schema, 'usage'), false) as fine) as s;

  select count(*) into alive from tensile.workers as w
   where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s);
  return query
  select 'controllers', alive > 0, alive || ' alive',
         case when alive = 0 then 'Start one: tensile up, or tensile controller.' end;

  return query
  select 'socket directory', s.directory is not null, coalesce(s.directory, 'not set'),
         case when s.directory is null then
           'As a member of tensile_admin: select tensile_set_setting(''socket_directory'', ''"/run/tensile"'');' end
    from (select (select t.value #>> '{}' from tensile.settings as t where t.name = 'socket_directory') as directory)
      as s;

  answer := tensile.bridge('ping', '{}');
  return query
  select 'service', (answer -> 'ok')::boolean,
         case when (answer -> 'ok')::boolean then 'version ' || (answer #>> '{result,version}')
              else concat_ws(': ', answer #>> '{error,message}', nullif(answer #>> '{error,detail}', '')) end,
         nullif(answer #>> '{error,hint}', '');
end
$$;
comment on function tensile.checks(name) is 'tensile_check, for the schema that is the caller''s current one';

create function public.tensile_check()
  returns table (item text, ok boolean, detail text, hint text)
  language sql volatile parallel unsafe rows 10
begin atomic
  select c.item, c.ok, c.detail, c.hint from tensile.checks(pg_catalog.current_schema()) as c;
end;
comment on function public.tensile_check() is 'what must be there for trainings and predictions, and what mends it';

-- Who may call them --------------------------------------------------------------------------------------------

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_catalog.pg_proc as p
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
        or p.pronamespace = 'tensile'::regnamespace
           and p.proname in ('training_request', 'follow_job', 'prediction', 'evaluation', 'sample_table', 'checks',
                             'raise_no_job', 'raise_no_model')
  loop
    execute format('revoke execute on routine %s from public', routine);
    execute format('grant execute on routine %s to tensile_user', routine);
  end loop;
end
$$;

grant execute on function public.tensile_version() to tensile_monitor, tensile_worker;

revoke execute on function public.tensile_set_setting(text, jsonb) from tensile_user;
grant execute on function public.tensile_set_setting(text, jsonb) to tensile_admin;
