-- The functions for users. All are security invoker, so a user can do nothing with them beyond the privileges on the
-- tables.
--
-- All functions pin search_path (80_search_path.sql sets it), so that names mean PostgreSQL's own functions. Some
-- functions need the caller's path. Such a public function is a wrapper whose body is parsed when it is created, and
-- which passes the caller's schema or path to a pinned function of schema tensile.

-- Training -----------------------------------------------------------------------------------------------------

-- The parameters of a training stand once, in the declaration of tensile_train. The installer writes them in place of
-- the words between at signs (indb_tensile/catalog/train_signature.py).

create function tensile.training_request(
  @TRAIN_PARAMETERS@
) returns jsonb
  language sql stable
  return pg_catalog.jsonb_build_object(
    @TRAIN_FIELDS@,
    'search_path', pg_catalog.current_setting('search_path'));
comment on function tensile.training_request is
  'returns the arguments of a training in the form that the bridge reads, with the search_path for reading the '
  'relation';

create function tensile.train(request jsonb) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('train', request) ->> 'job')::bigint;
comment on function tensile.train(jsonb) is 'enqueues the training that training_request describes';

-- tensile_train and tensile_explain pass the caller's search_path on, because a view may call functions that need it.
-- So they have no SET clause. Their bodies do not depend on the caller's search_path, because PostgreSQL resolved their
-- names when they were created. An error has a line of CONTEXT for each function that PostgreSQL cannot inline; it
-- inlines tensile_train completely.

create function public.tensile_train(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false, transform jsonb default null,
  forecast jsonb default null, devices integer default 1
) returns bigint
  language sql volatile parallel unsafe
  return tensile.train(tensile.training_request(
      @TRAIN_ARGUMENTS@));
comment on function public.tensile_train is
  'enqueues a training of the model on the relation and returns the job''s number; the job can start once the '
  'transaction has committed. The rows of a view, of a foreign or temporary table, or behind policies are first copied '
  'into a snapshot table';

create function public.tensile_train_query(
  @TRAIN_QUERY_PARAMETERS@
) returns bigint
  language sql volatile parallel unsafe
  return tensile.train(tensile.training_request(
      @TRAIN_QUERY_ARGUMENTS@)
    operator(pg_catalog.||) pg_catalog.jsonb_build_object('query', query));
comment on function public.tensile_train_query is
  'enqueues a training of the model on the rows of a query and returns the job''s number; the caller''s session runs the '
  'query now and copies its rows into a snapshot table, and the job can start once the transaction has committed';

create function tensile.follow_job(job bigint, last_step text) returns text
  language plpgsql volatile parallel unsafe
as $$
declare
  followed record;
  step text;
begin
  select j.state, j.phase, j.error_sqlstate, j.error_message, j.error_detail, j.error_hint, v.number, v.not_deployed,
         j.devices, tensile.asked_devices(j) as asked
    into followed
    from tensile.jobs as j left join tensile.model_versions as v on v.version_id = j.version_id and (v.job_id = j.job_id or j.search_id = j.job_id)
   where j.job_id = job;
  if not found or followed.state = 'succeeded' then
    if followed.not_deployed is not null then
      raise notice 'job %: version % is not deployed: %', job, followed.number, followed.not_deployed
        using hint = 'With deploy => ''always'' a training deploys its version without a comparison.';
    end if;
    return null;
  elsif followed.state = 'failed' then
    step := tensile.raise_error(
      followed.error_sqlstate, followed.error_message, followed.error_detail, followed.error_hint);
  elsif followed.state = 'cancelled' then
    raise exception 'job % was cancelled', job
      using errcode = 'query_canceled', detail = coalesce(followed.error_message, '');
  end if;
  step := coalesce(followed.phase::text, followed.state::text);
  if followed.devices < followed.asked then
    step := format('%s, with %s of %s devices', step, followed.devices, followed.asked);
  end if;
  if last_step is distinct from step then
    raise notice 'job %: %', job, step;
  end if;
  return step;
end
$$;
comment on function tensile.follow_job(bigint, text) is
  'returns the current phase or state of a job, with a notice if it differs from the one given; returns null once the '
  'job has succeeded, and raises the job''s error if it failed';

create procedure tensile.follow_to_end(job bigint, caller text)
  language plpgsql
as $$
declare  -- no SET clause, with which a procedure may not commit. So all names are qualified, and no operator is used.
  step pg_catalog.text;
  committed pg_catalog.bool;
begin
  call tensile.try_commit(committed);  -- the job exists from here on
  if not committed then
    raise exception '%_and_wait commits, which is not possible in a transaction block or in a function', caller
      using errcode := 'invalid_transaction_termination',
            hint := pg_catalog.format(
              'Call it outside of both; or use %s(...), commit, and then tensile_wait(job).', caller);
  end if;
  loop
    step := tensile.follow_job(job, step);
    exit when step is null;
    commit;  -- so that between polls no snapshot keeps VACUUM from removing dead rows of the queue
    perform pg_catalog.pg_sleep(0.1::pg_catalog.float8);
  end loop;
end
$$;
comment on procedure tensile.follow_to_end(bigint, text) is
  'commits, and returns when the job has ended; raises the error of a failed job. caller is the function that enqueued '
  'the job, for the error message';

create procedure public.tensile_train_and_wait(
  @TRAIN_PARAMETERS@, inout job bigint default null
)
  language plpgsql
as $$
begin
  job := public.tensile_train(
      @TRAIN_ARGUMENTS@);
  call tensile.follow_to_end(job, 'tensile_train'::pg_catalog.text);
end
$$;
comment on procedure public.tensile_train_and_wait is
  'enqueues a training, commits, and returns when the job has ended; raises the error of a failed job. The job '
  'continues if the call is cancelled';

create procedure public.tensile_train_query_and_wait(
  @TRAIN_QUERY_PARAMETERS@, inout job bigint default null
)
  language plpgsql
as $$
begin
  job := public.tensile_train_query(
      @TRAIN_QUERY_NAMES@);
  call tensile.follow_to_end(job, 'tensile_train_query'::pg_catalog.text);
end
$$;
comment on procedure public.tensile_train_query_and_wait is
  'enqueues a training on the rows of a query, commits, and returns when the job has ended; raises the error of a failed '
  'job. The job continues if the call is cancelled';

create function public.tensile_explain(
  @TRAIN_PARAMETERS@
) returns table (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
  iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
  swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text)
  language sql volatile parallel unsafe
begin atomic
  select f.policy, f.peak_bytes, f.floor_bytes, f.bound_bytes, f.saved, f.iteration_ms,
         f.overhead, f.stall_ms, f.swaps, f.swapped_bytes, f.recomputed, f.planning_ms, f.starts_now,
         f.note
    from pg_catalog.jsonb_to_recordset(tensile.call('explain', tensile.training_request(
      @TRAIN_ARGUMENTS@)) operator(pg_catalog.->) 'rows')
      as f (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
        iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
        swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text);
end;
comment on function public.tensile_explain is
  'predicts the memory and time of this training under each policy, and whether it would start now. saved is relative '
  'to the peak of the policy liveness, and overhead to its time. Nothing is enqueued or allocated';

create function public.tensile_explain_query(
  @TRAIN_QUERY_PARAMETERS@
) returns table (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
  iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
  swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text)
  language sql volatile parallel unsafe
begin atomic
  select f.policy, f.peak_bytes, f.floor_bytes, f.bound_bytes, f.saved, f.iteration_ms,
         f.overhead, f.stall_ms, f.swaps, f.swapped_bytes, f.recomputed, f.planning_ms, f.starts_now,
         f.note
    from pg_catalog.jsonb_to_recordset(tensile.call('explain', tensile.training_request(
      @TRAIN_QUERY_ARGUMENTS@)
      operator(pg_catalog.||) pg_catalog.jsonb_build_object('query', query)) operator(pg_catalog.->) 'rows')
      as f (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
        iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
        swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text);
end;
comment on function public.tensile_explain_query is
  'predicts the memory and time of a training on the rows of a query, as tensile_explain does. The query runs once, for '
  'statistics of its columns';

-- Waiting and stopping -----------------------------------------------------------------------------------------

create function public.tensile_wait(job bigint, timeout interval default '1 minute') returns tensile.job_state
  language plpgsql volatile parallel unsafe
as $$
declare
  deadline constant timestamptz := case when timeout < interval '1000 years'
                                          then clock_timestamp() + greatest(timeout, interval '0')
                                        else 'infinity' end;  -- also for null
  pause_s double precision := 0.01;
  awaited record;
begin
  perform public.tensile_require_role('tensile_user');
  loop
    select j.state, j.enqueued_xact into awaited from tensile.jobs as j where j.job_id = job;
    if not found then
      perform tensile.raise_no_job(job);
    end if;
    exit when awaited.state in ('succeeded', 'failed', 'cancelled') or clock_timestamp() >= deadline;
    if awaited.enqueued_xact = pg_current_xact_id_if_assigned() then
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
      pause_s := least(pause_s, greatest(0, extract(epoch from deadline - clock_timestamp())));
    end if;
    perform pg_sleep(pause_s);
    pause_s := least(pause_s * 1.5, 0.2);
  end loop;
  return awaited.state;
end
$$;
comment on function public.tensile_wait(bigint, interval) is
  'waits until the job has ended or the timeout is over (null: no timeout), and returns the job''s state. For short '
  'waits, because it holds a snapshot of the database';

create function public.tensile_cancel(job bigint) returns boolean
  language plpgsql volatile parallel unsafe
as $$
declare
  current_state text;  -- a role that may not use schema tensile could not declare a tensile.job_state
begin
  perform public.tensile_require_role('tensile_user');
  update tensile.jobs as j set cancel_requested = true
   where j.job_id = job and j.state in ('queued', 'starting', 'running');
  if found then
    return true;
  end if;
  select j.state into current_state from tensile.jobs as j where j.job_id = job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif current_state in ('queued', 'starting', 'running') then
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege', hint = 'Its owner, or a member of tensile_admin, can cancel it.';
  end if;
  return false;
end
$$;
comment on function public.tensile_cancel(bigint) is
  'cancels a job: a queued job at once, an active job within a heartbeat; returns false if the job had ended already';

create function public.tensile_pause(job bigint) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
  update tensile.jobs as j set pause_requested = true
   where j.job_id = job and j.state in ('queued', 'starting', 'running')
     and not j.pause_requested and not j.cancel_requested;
  if not found then
    perform tensile.raise_no_change(job, 'pause');
  end if;
end
$$;
comment on function public.tensile_pause(bigint) is
  'pauses a job until tensile_resume: no controller starts a queued job, and a job that trains gives up its device '
  'memory at the end of its iteration and waits in host memory, or in its checkpoint where host memory is full. The '
  'result of the training does not change. A job that is about to publish its version may end first';

create function public.tensile_resume(job bigint) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
  update tensile.jobs as j set pause_requested = false
   where j.job_id = job and j.state in ('queued', 'starting', 'running')
     and j.pause_requested and not j.cancel_requested;
  if not found then
    perform tensile.raise_no_change(job, 'resume');
  end if;
end
$$;
comment on function public.tensile_resume(bigint) is
  'resumes a job that tensile_pause has paused: it continues where it was as soon as it has device memory again';

create function tensile.raise_no_change(job bigint, verb text) returns void
  language plpgsql stable
as $$
declare
  found_job record;
begin
  select j.state, j.finished_at, j.pause_requested, j.cancel_requested into found_job
    from tensile.jobs as j where j.job_id = job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif found_job.finished_at is not null then
    raise exception 'job % has ended: %', job, found_job.state
      using errcode = 'object_not_in_prerequisite_state',
            detail = format('It ended at %s. Only queued and active jobs can be changed.', found_job.finished_at),
            hint = 'Train again: select tensile_train(...);';
  elsif found_job.cancel_requested then
    raise exception 'job % is being cancelled', job
      using errcode = 'object_not_in_prerequisite_state',
            detail = 'Its cancellation was requested before, and cannot be withdrawn.',
            hint = 'Train again: select tensile_train(...);';
  elsif verb = 'pause' and found_job.pause_requested then
    raise exception 'job % is paused already', job
      using errcode = 'object_not_in_prerequisite_state',
            detail = format('The job is %s, and stays paused until it is resumed.', found_job.state),
            hint = format('To let it continue: select tensile_resume(%s);', job);
  elsif verb = 'resume' and not found_job.pause_requested then
    raise exception 'job % is not paused', job
      using errcode = 'object_not_in_prerequisite_state', detail = format('The job is %s.', found_job.state),
            hint = 'To see what it waits for: select * from tensile.stat_queue;';
  else
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege',
            detail = format('Role "%s" may see the job, and may not %s it.', current_user, verb),
            hint = format('Its owner, or a member of tensile_admin, can %s it.', verb);
  end if;
end
$$;
comment on function tensile.raise_no_change(bigint, text) is
  'raises the error that says why the caller cannot pause, resume or otherwise change this job';

create function tensile.raise_no_job(job bigint) returns void
  language plpgsql stable
as $$
begin
  if job is null then
    raise exception 'job is null'
      using errcode = 'invalid_parameter_value',
            hint = 'Give the number of a job. See your jobs: select * from tensile.stat_jobs;';
  end if;
  raise exception 'there is no job %', job
    using errcode = 'undefined_object', hint = 'See your jobs: select * from tensile.stat_jobs;';
end
$$;
comment on function tensile.raise_no_job(bigint) is 'raises the error that the caller sees no job of this number, or that the number is null';

create function tensile.relation_title(oid oid, schema text, name text) returns text
  language sql immutable parallel safe
  return case when oid operator(pg_catalog.=) 0::pg_catalog.oid then name
              else pg_catalog.format('%I.%I', schema, name) end;
comment on function tensile.relation_title(oid, text, text) is
  'returns the quoted name of the relation of a job or version, or "query" if a query gave the rows';

-- Models -------------------------------------------------------------------------------------------------------

create function public.tensile_create_model(name text, architecture text default null, hyperparams jsonb default null)
  returns bigint
  language sql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s'  -- another session may have taken the name and not committed yet
  return (tensile.call('create_model', pg_catalog.jsonb_build_object(
    'model', name, 'architecture', architecture, 'hyperparams', hyperparams)) ->> 'model')::bigint;
comment on function public.tensile_create_model(text, text, jsonb) is
  'defines the network of a model before its first training: the name of an architecture or a JSON object';

create function public.tensile_drop_model(model text) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
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
  'drops a model with all its versions: no user sees it from then on, and a controller deletes its weights later';

create function tensile.raise_no_model(model text) returns void
  language plpgsql stable
as $$
begin
  raise exception 'there is no model "%"', model
    using errcode = 'undefined_object', hint = 'See your models: select * from tensile.model_list;';
end
$$;
comment on function tensile.raise_no_model(text) is 'raises the error that the caller sees no model of this name';

create function public.tensile_grant_model(model text, grantee name, privilege text default 'predict') returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  granted_model bigint;
  role_oid oid;
begin
  perform public.tensile_require_role('tensile_user');
  select m.model_id into granted_model from tensile.models as m
   where m.name = tensile_grant_model.model and m.dropped_at is null;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is named to grant model "%" to', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for all roles.';
  end if;
  if privilege is null or privilege not in ('predict', 'weights') then
    raise exception 'there is no privilege "%"', coalesce(left(privilege, 100), 'null')
      using errcode = 'invalid_parameter_value',
            detail = 'predict lets a role see the model and predict with it; weights also lets it start trainings from it.',
            hint = 'Name one of predict and weights.';
  end if;
  select r.oid into role_oid from pg_catalog.pg_roles as r where r.rolname = grantee;
  if not found and grantee <> 'public' then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for all roles.';
  end if;
  insert into tensile.model_privileges as p (model_id, grantee_oid, grantee_name, privilege)
  values (granted_model, coalesce(role_oid, 0), grantee, tensile_grant_model.privilege)
  on conflict on constraint model_privileges_pkey do update set revoked_at = null where p.revoked_at is not null;
end
$$;
comment on function public.tensile_grant_model(text, name, text) is
  'allows a role (public: all roles) to see a model and to predict with it; with the privilege weights also to start '
  'trainings from it, which copies its weights and its preprocessing to a model of that role';

create function public.tensile_revoke_model(model text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  revoked_model bigint;
begin
  perform public.tensile_require_role('tensile_user');
  select m.model_id into revoked_model from tensile.models as m
   where m.name = tensile_revoke_model.model and m.dropped_at is null;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is named to revoke model "%" from', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for all roles.';
  end if;
  update tensile.model_privileges as p set revoked_at = now()
   where p.model_id = revoked_model and p.revoked_at is null
     and (p.grantee_oid = (select r.oid from pg_roles as r where r.rolname = grantee)
          or p.grantee_oid = 0 and grantee = 'public'
          or p.grantee_name = grantee and not exists (select from pg_roles as r where r.oid = p.grantee_oid));
  -- A dropped role may still have a privilege to revoke, and to revoke from a role without a privilege is no error.
  if not found and grantee <> 'public' and not exists (
       select from pg_catalog.pg_roles as r where r.rolname = grantee) then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for all roles.';
  end if;
end
$$;
comment on function public.tensile_revoke_model(text, name) is 'revokes what tensile_grant_model has granted';

-- Service ------------------------------------------------------------------------------------------------------

create function public.tensile_load_dataset(name text, table_name text default null) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('load_dataset', pg_catalog.jsonb_build_object(
    'dataset', name, 'table', table_name, 'schema', pg_catalog.current_schema())) ->> 'rows')::bigint;
comment on function public.tensile_load_dataset(text, text) is
  'creates a table with a sample data set, which trainers may read, and returns the number of its rows; the table is '
  'in the current schema unless table_name names another schema';

create function public.tensile_version() returns text
  language plpgsql stable parallel safe
as $$
begin
  if not (pg_has_role('tensile_monitor', 'usage') or pg_has_role('tensile_worker', 'usage')) then
    perform public.tensile_require_role('tensile_user');
  end if;
  return tensile.catalog_version();
end
$$;
comment on function public.tensile_version() is 'returns the version of the catalog in this database';

create function public.tensile_set_setting(name text, value jsonb) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  setting_kind text;
begin
  perform public.tensile_require_role('tensile_admin');
  select k.kind into setting_kind from tensile.known_settings() as k where k.name = tensile_set_setting.name;
  if not found then
    raise exception 'there is no setting "%"', name
      using errcode = 'undefined_object',
            hint = 'Known settings: ' || (select string_agg(k.name, ', ' order by k.name)
                                            from tensile.known_settings() as k) || '.';
  end if;
  if value is null then
    perform tensile.reset_setting(name);
    return;
  end if;
  if not tensile.setting_fits(setting_kind, value) then
    raise exception 'setting "%" is %', name, left(value::text, 100)
      using errcode = 'invalid_parameter_value',
            hint = case split_part(setting_kind, ' ', 1)
              when 'directory' then
                format('Give an absolute path: select tensile_set_setting(%L, %L);', name, '"/run/tensile"')
              when 'interval' then
                format('Give an interval longer than zero, of at most 1000 years, or null to keep for ever: '
                       'select tensile_set_setting(%L, %L);', name, '"30 days"')
              when 'bytes' then
                format('Give a number of bytes from 1: select tensile_set_setting(%L, %L);', name, '8589934592')
              else
                format('Give a whole number from 1, or null to keep all: select tensile_set_setting(%L, %L);', name, '5')
            end;
  end if;
  insert into tensile.settings as s (name, value)
  values (tensile_set_setting.name, tensile_set_setting.value)
  on conflict on constraint settings_pkey
  do update set value = excluded.value, changed_at = now(), changed_by = current_user;
end
$$;
comment on function public.tensile_set_setting(text, jsonb) is
  'changes a setting of the database, such as socket_directory or retain_jobs; the value null (SQL) restores the '
  'default. tensile.setting_list shows all settings';

create function tensile.checks(schema name)
  returns table (item text, ok boolean, detail text, hint text)
  language plpgsql volatile parallel unsafe rows 10
as $$
declare
  alive bigint;
  answer jsonb;
begin
  perform public.tensile_require_role('tensile_user');
  return query select 'catalog', true, 'version ' || tensile.catalog_version(), null::text;

  if pg_is_in_recovery() then
    return query
    select 'server', false, 'this server is a standby: it can be read, and takes no trainings',
           'Connect to the primary server to train and for all other writes.';
  end if;

  return query
  select 'worker''s role', r.rolcanlogin,
         case when r.rolcanlogin then 'tensile_worker may log in' else 'tensile_worker may not log in' end,
         case when not r.rolcanlogin then 'As a superuser: alter role tensile_worker login;' end
    from pg_catalog.pg_roles as r where r.rolname = 'tensile_worker';

  return query
  select 'reader''s role', r.rolcanlogin,
         case when r.rolcanlogin then 'tensile_reader may log in' else 'tensile_reader may not log in' end,
         case when not r.rolcanlogin then 'As a superuser: alter role tensile_reader login;' end
    from pg_catalog.pg_roles as r where r.rolname = 'tensile_reader';

  return query
  select 'current schema', s.fine,
         coalesce('tensile_reader ' || case when s.fine then 'may' else 'may not' end || ' use schema ' || s.name,
                  'no schema is selected'),
         case when not s.fine then coalesce(format('grant usage on schema %I to tensile_reader;', s.name),
                                            'set search_path = public;') end
    from (select schema as name,
                 coalesce(has_schema_privilege('tensile_reader', schema, 'usage'), false) as fine) as s;

  select count(*) into alive from tensile.workers as w
   where tensile.is_alive(w);
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
comment on function tensile.checks(name) is 'implements tensile_check; the argument is the caller''s current schema';

create function public.tensile_check()
  returns table (item text, ok boolean, detail text, hint text)
  language sql volatile parallel unsafe rows 10
begin atomic
  select c.item, c.ok, c.detail, c.hint from tensile.checks(pg_catalog.current_schema()) as c;
end;
comment on function public.tensile_check() is
  'checks what trainings and predictions need: returns a row for each item, with a hint for each fault';

-- Privileges on the functions ----------------------------------------------------------------------------------

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_catalog.pg_proc as p
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
        or p.pronamespace = 'tensile'::regnamespace
           and p.proname in ('training_request', 'train', 'follow_job', 'prediction', 'prediction_part',
                             'predictions', 'batch', 'create_predict_view', 'create_predict_function',
                             'predict_column', 'prediction_function', 'row_form', 'row_bytes', 'row_json', 'key_text', 'check_row_size',
                             'row_fault',
                             'texts_of', 'evaluation', 'repeat_job', 'repeat_training', 'split_parts', 'checks',
                             'raise_no_job', 'raise_no_change',
                             'predict_into', 'view_parts', 'figure_rows', 'attributions',
                             'raise_no_model')
  loop
    execute format('revoke execute on routine %s from public', routine);
    execute format('grant execute on routine %s to tensile_user', routine);
  end loop;
end
$$;

-- Everybody may execute the functions below: each of them first calls tensile_require_role or tensile.call, which tell a
-- role which membership it lacks. The batch functions cannot do so. PL/pgSQL does not accept arrays
-- of anonymous records, and PostgreSQL parses the whole body of an SQL function, with the caller's right to use schema
-- tensile, before it runs the first statement.
do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_catalog.pg_proc as p
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
           and p.proname not in ('tensile_predict_batch', 'tensile_predict_batch_label', 'tensile_predict_batch_proba',
                                 'tensile_predict_batch_values')
        or p.pronamespace = 'tensile'::regnamespace
           and p.proname in ('training_request', 'train', 'create_predict_view', 'create_predict_function', 'evaluation',
                             'split_parts', 'checks', 'repeat_job', 'repeat_training', 'predict_into', 'figure_rows')
  loop
    execute format('grant execute on routine %s to public', routine);
  end loop;
end
$$;

-- A view that shows the key of predictions calls this function as whoever reads the view.
grant execute on function tensile.row_json(anyelement) to public;

revoke execute on function tensile.relation_title(oid, text, text) from public;
grant execute on function tensile.relation_title(oid, text, text) to tensile_user, tensile_monitor, tensile_worker;
