-- Searches: a search is a job that no worker claims. Its trials are ordinary jobs of the same owner and model, which
-- train with different values. The steward, a process beside a controller (worker/search_steward.py), adds trials,
-- decides how far each one trains, and ends the search. All its decisions follow from the rows of tensile.trials and
-- tensile.trial_results, so any controller can continue a search at any time.
--
-- A trial that has reached the rung up to which it may train goes back into the queue with awaits_jobs, so that no
-- worker claims it, and its checkpoint is kept. Thus a trial that does not train takes no memory of the device and no
-- place of a controller.

-- A search and its trials ------------------------------------------------------------------------------------------

create function tensile.hold_search() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
begin
  new.search_id := new.job_id;
  new.awaits_jobs := true;
  return new;
end
$$;
comment on function tensile.hold_search() is 'trigger: keeps workers from claiming a search';

create trigger jobs_hold_search before insert on tensile.jobs
  for each row when (new.state = 'queued' and new.spec ? 'search')
  execute function tensile.hold_search();

-- The lock on the trial's row makes this trigger and tensile.allow_rung() take turns, so that no trial waits for a rung
-- that it may pass.
create function tensile.hold_trial() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  allowed integer;
begin
  select t.allowed_rung into allowed from tensile.trials as t where t.job_id = new.job_id for update;
  if exists (select from tensile.trial_results as r
              where r.job_id = new.job_id and r.rung >= allowed and not r.complete) then
    new.awaits_jobs := true;
    new.not_before := null;
    new.waits_for := null;
  end if;
  return new;
end
$$;
comment on function tensile.hold_trial() is
  'trigger: keeps workers from claiming a trial that has reached the rung up to which it may train';

create trigger jobs_hold_trial before update of state on tensile.jobs
  for each row when (new.state = 'queued' and old.state in ('starting', 'running')
                     and new.search_id is not null and new.search_id <> new.job_id)
  execute function tensile.hold_trial();

-- What the owner does to a search, its trials do too, whether a controller is alive or not.
create function tensile.follow_search() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if new.state in ('succeeded', 'failed', 'cancelled') then
    update tensile.jobs as j set cancel_requested = true
     where j.search_id = new.job_id and j.job_id <> new.job_id and not j.cancel_requested
       and j.state in ('queued', 'starting', 'running');
  else
    update tensile.jobs as j set pause_requested = new.pause_requested, priority = new.priority
     where j.search_id = new.job_id and j.job_id <> new.job_id and j.state in ('queued', 'starting', 'running')
       and (j.pause_requested, j.priority) <> (new.pause_requested, new.priority);
  end if;
  return null;
end
$$;
comment on function tensile.follow_search() is
  'trigger: cancels, pauses and resumes the trials of a search with it, and gives them its priority';

create trigger jobs_follow_search after update of state, pause_requested, priority, cancel_requested on tensile.jobs
  for each row when (new.search_id = new.job_id
                     and (old.state <> new.state or old.pause_requested <> new.pause_requested
                          or old.priority <> new.priority))
  execute function tensile.follow_search();

create function tensile.notify_search() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_notify('tensile', 'search ' || new.search_id);
  return null;
end
$$;
comment on function tensile.notify_search() is 'trigger: wakes the steward of searches';

create trigger jobs_search_enqueued after insert on tensile.jobs
  for each row when (new.search_id = new.job_id) execute function tensile.notify_search();
create trigger jobs_trial_changed after update of state, pause_requested on tensile.jobs
  for each row when (new.search_id is not null
                     and (old.state <> new.state or old.pause_requested <> new.pause_requested))
  execute function tensile.notify_search();

-- What the steward does --------------------------------------------------------------------------------------------
--
-- The owner of a search can lock its rows, and must not delay the searches of others. So these functions skip the rows
-- of searches, trials and models that another session has locked, and then return null or false. Triggers may still
-- wait for a row, for which the steward has a short lock_timeout; it looks at such a search again later.

create function tensile.active_searches()
  returns table (search_id bigint, spec jsonb, running_s double precision)
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select j.job_id, j.spec, coalesce(extract(epoch from now() - j.started_at), 0)::double precision
    from tensile.jobs as j
   where j.awaits_jobs and j.state = 'queued' and j.search_id = j.job_id and not j.pause_requested
     and j.installation = (select tensile.installation())
     and (j.not_before is null or j.not_before <= now())
     and not exists (select from tensile.awaited_jobs as a where a.job_id = j.job_id)
   order by j.job_id
$$;
comment on function tensile.active_searches() is
  'returns the searches that are neither paused nor wait for other jobs, with the seconds since their first trial';

create function tensile.add_trial(
  search bigint, number integer, picks jsonb, parameters jsonb, rungs double precision[], spec jsonb
) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  varied constant text[] := array['architecture', 'hyperparams', 'preprocess', 'early_stop', 'memory_limit_bytes',
                                  'deploy'];
  parent tensile.jobs;
  added bigint;
begin
  select j.* into parent from tensile.jobs as j
   where j.job_id = search and j.search_id = search and j.state = 'queued' and not j.pause_requested
     for no key update skip locked;
  if not found then
    return null;
  end if;
  select t.job_id into added from tensile.trials as t where t.search_id = search and t.number = add_trial.number;
  if found then
    return added;
  elsif not tensile.may_train(parent.owner_oid) then
    raise exception '%', tensile.why_not_trained(parent.owner_oid, parent.owner_name)
      using errcode = 'insufficient_privilege';
  elsif add_trial.spec - varied is distinct from parent.spec - 'search' - varied
        or add_trial.spec ->> 'deploy' is distinct from 'never' then
    raise exception 'trial % differs from search % in more than the arguments that vary', add_trial.number, search
      using errcode = 'invalid_parameter_value';
  end if;
  -- The trigger that reserves the model's name would wait for a lock on the model.
  perform from tensile.models as m
    where m.name = parent.model_name and m.dropped_at is null for key share skip locked;
  if not found then
    return null;
  end if;
  insert into tensile.jobs (model_name, owner_oid, owner_name, relation_oid, relation_schema, relation_name, spec,
                            priority, installation, search_id)
  values (parent.model_name, parent.owner_oid, parent.owner_name, parent.relation_oid, parent.relation_schema,
          parent.relation_name, add_trial.spec,
          -- An administrator may have raised the priority of the search above what its owner may give.
          least(parent.priority, (select q.highest_priority from tensile.quota_of(parent.owner_oid) as q)),
          parent.installation, search)
  returning job_id into added;
  insert into tensile.trials (search_id, number, job_id, picks, parameters, rungs)
  values (search, add_trial.number, added, add_trial.picks, add_trial.parameters, add_trial.rungs);
  update tensile.jobs as j set started_at = coalesce(j.started_at, now()), waits_for = null where j.job_id = search;
  return added;
end
$$;
comment on function tensile.add_trial(bigint, integer, jsonb, jsonb, double precision[], jsonb) is
  'enqueues a trial of a search for the search''s owner and returns its job; safe to repeat; null if the search has ended, '
  'is paused, or is locked';

create function tensile.allow_rung(search bigint, number integer, rung integer) returns boolean
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  trial bigint;
begin
  select t.job_id into trial from tensile.trials as t where t.search_id = search and t.number = allow_rung.number;
  perform from tensile.jobs as j where j.job_id = trial for no key update skip locked;
  if not found then
    return false;
  end if;
  update tensile.trials as t set allowed_rung = rung where t.job_id = trial and t.allowed_rung < rung;
  update tensile.jobs as j set awaits_jobs = false
   where j.job_id = trial and j.awaits_jobs and j.state = 'queued'
     and not exists (select from tensile.trial_results as r
                      where r.job_id = trial and r.rung >= allow_rung.rung and not r.complete);
  return true;
end
$$;
comment on function tensile.allow_rung(bigint, integer, integer) is
  'lets a trial train up to this rung; safe to repeat; false if its job is locked';

create function tensile.hold_trials(search bigint, numbers integer[]) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  held bigint;
begin
  update tensile.trials as t
     set held_rung = (select max(r.rung) from tensile.trial_results as r where r.job_id = t.job_id)
   where t.search_id = search and t.number = any (numbers);
  get diagnostics held = row_count;
  return held;
end
$$;
comment on function tensile.hold_trials(bigint, integer[]) is
  'tells trials that have just reached a rung to wait there, so that their trainers end at once; returns how many';

create function tensile.prune_jobs(search bigint, jobs bigint[], reason text) returns bigint
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
begin
  update tensile.trials as t set pruned = true where t.search_id = search and t.job_id = any (jobs);
  update tensile.jobs as j
     set state = 'cancelled', awaits_jobs = false, waits_for = null, finished_at = now(), error_message = reason
   where j.job_id = any (jobs);
  return cardinality(jobs);
end
$$;
comment on function tensile.prune_jobs(bigint, bigint[], text) is
  'ends these trials of a search, whose jobs the caller has locked, for this reason, and returns how many';

create function tensile.prune_unstarted(search bigint, reason text) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return tensile.prune_jobs(search, array(
    select j.job_id from tensile.jobs as j
     where j.search_id = search and j.job_id <> search and j.state = 'queued' and j.started_at is null
       for no key update skip locked), reason);
end
$$;
comment on function tensile.prune_unstarted(bigint, text) is
  'ends the trials of a search that no worker has claimed yet, for this reason, and returns how many';

create function tensile.prune_trials(search bigint, numbers integer[], reason text) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return tensile.prune_jobs(search, array(
    select j.job_id from tensile.jobs as j
     where j.awaits_jobs and j.state = 'queued' and j.search_id = search
       and j.job_id in (select t.job_id from tensile.trials as t
                         where t.search_id = search and t.number = any (numbers))
       for no key update skip locked), reason);
end
$$;
comment on function tensile.prune_trials(bigint, integer[], text) is
  'ends trials that wait at a rung, for this reason, and returns how many';

create function tensile.end_search(
  search bigint, version bigint, incumbent bigint, obstacle text, reason text
) returns boolean
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  parent tensile.jobs;
  chosen record;
  predicting bigint;  -- the version that is deployed
begin
  select j.* into parent from tensile.jobs as j
   where j.job_id = search and j.search_id = search and j.state = 'queued' for no key update skip locked;
  if not found then
    return false;
  end if;
  select v.model_id, t.job_id, t.started_at, t.spec into chosen
    from tensile.model_versions as v
    join tensile.jobs as t on t.job_id = v.job_id and t.search_id = search
    join tensile.models as m on m.model_id = v.model_id and m.owner_oid = parent.owner_oid
   where v.version_id = end_search.version
     for no key update of m skip locked;
  if not found then
    return false;
  end if;
  select v.version_id into predicting from tensile.model_versions as v where v.model_id = chosen.model_id and v.deployed;
  if obstacle is null and predicting is distinct from incumbent then
    return false;
  end if;
  perform from tensile.model_versions as v
    where v.version_id in (end_search.version, predicting) for no key update nowait;
  if predicting is distinct from end_search.version then  -- its owner may have deployed it already
    if obstacle is null then
      update tensile.model_versions as v set deployed = false where v.model_id = chosen.model_id and v.deployed;
    end if;
    update tensile.model_versions as v
       set deployed = obstacle is null, not_deployed = obstacle,
           deployed_why = case when obstacle is null then reason end
     where v.version_id = end_search.version;
  end if;
  update tensile.models as m
     set last_spec = chosen.spec || jsonb_build_object('deploy', parent.spec -> 'deploy'), last_job_id = chosen.job_id,
         last_started_at = chosen.started_at
   where m.model_id = chosen.model_id
     and (m.last_started_at is null or (m.last_started_at, m.last_job_id) < (chosen.started_at, chosen.job_id));
  update tensile.jobs as j
     set state = 'succeeded', awaits_jobs = false, waits_for = null, finished_at = now(),
         version_id = end_search.version, error_sqlstate = null, error_message = null, error_detail = null,
         error_hint = null
   where j.job_id = search;
  return true;
end
$$;
comment on function tensile.end_search(bigint, bigint, bigint, text, text) is
  'ends a search with the version of its best trial, and deploys that unless there is an obstacle; incumbent is the '
  'version that it was compared with. False if the search has ended or is locked, or if another version is deployed now';

create function tensile.fail_search(search bigint, sqlstate text, message text, detail text, hint text) returns boolean
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  update tensile.jobs as j
     set state = 'failed', awaits_jobs = false, waits_for = null, finished_at = now(), error_sqlstate = sqlstate,
         error_message = message, error_detail = detail, error_hint = hint
   where j.job_id in (select k.job_id from tensile.jobs as k
                       where k.job_id = search and k.search_id = search and k.state = 'queued'
                         for no key update skip locked);
  return found;
end
$$;
comment on function tensile.fail_search(bigint, text, text, text, text) is
  'ends a search with an error; false if it has ended or is locked';

-- For users --------------------------------------------------------------------------------------------------------

create function tensile.search(request jsonb) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('search', request) ->> 'job')::bigint;
comment on function tensile.search(jsonb) is 'enqueues the search that search_request describes';

create function tensile.search_request(
  training jsonb, trials integer, parallel integer, sampler text, prune text, search_seed bigint, max_duration interval
) returns jsonb
  language sql stable
  return training operator(pg_catalog.||) pg_catalog.jsonb_build_object('search', pg_catalog.jsonb_strip_nulls(
    pg_catalog.jsonb_build_object(
      'trials', trials, 'parallel', parallel, 'sampler', sampler, 'prune', prune, 'search_seed', search_seed,
      'max_duration_s', extract(epoch from max_duration))));
comment on function tensile.search_request(jsonb, integer, integer, text, text, bigint, interval) is
  'adds the options of a search to the request of a training';

create function public.tensile_search(
  @TRAIN_PARAMETERS@,
  trials integer default null, parallel integer default 4, sampler text default 'tpe', prune text default 'asha',
  search_seed bigint default 0, max_duration interval default null
) returns bigint
  language sql volatile parallel unsafe
  return tensile.search(tensile.search_request(tensile.training_request(
      @TRAIN_ARGUMENTS@), trials, parallel, sampler, prune, search_seed, max_duration));
comment on function public.tensile_search is
  'searches for the arguments with which a training is best, and returns the number of the search, which is a job: it '
  'trains trials with different values, several at once, and ends with the best one''s version of the model. Arguments '
  'vary where their JSON has {"choices": [...]} or {"range": [low, high], "log": true} in place of a value';

create function public.tensile_search_query(
  @TRAIN_QUERY_PARAMETERS@,
  trials integer default null, parallel integer default 4, sampler text default 'tpe', prune text default 'asha',
  search_seed bigint default 0, max_duration interval default null
) returns bigint
  language sql volatile parallel unsafe
  return tensile.search(tensile.search_request(tensile.training_request(
      @TRAIN_QUERY_ARGUMENTS@)
    operator(pg_catalog.||) pg_catalog.jsonb_build_object('query', query),
    trials, parallel, sampler, prune, search_seed, max_duration));
comment on function public.tensile_search_query is
  'searches for the arguments with which a training on the rows of a query is best, as tensile_search does; the query '
  'runs once, and all trials train on the same copy of its rows';

create procedure public.tensile_search_and_wait(
  @TRAIN_PARAMETERS@,
  trials integer default null, parallel integer default 4, sampler text default 'tpe', prune text default 'asha',
  search_seed bigint default 0, max_duration interval default null, inout job bigint default null
)
  language plpgsql
as $$
begin
  job := tensile.search(tensile.search_request(tensile.training_request(
      @TRAIN_ARGUMENTS@), trials, parallel, sampler, prune, search_seed, max_duration));
  call tensile.follow_to_end(job, 'tensile_search'::pg_catalog.text);
end
$$;
comment on procedure public.tensile_search_and_wait is
  'starts a search, commits, and returns when the search has ended; raises its error if it failed. The search continues '
  'if the call is cancelled';

create view tensile.stat_trials with (security_invoker) as
select t.search_id, t.number as trial, t.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner,
       case when t.pruned then 'pruned' when j.state = 'queued' and j.awaits_jobs then 'waiting'
            else j.state::text end as state,
       j.phase, t.parameters, coalesce(p.epoch, l.epoch) as epoch, coalesce(l.epochs, p.epochs) as epochs,
       l.rung + 1 as rung, cardinality(t.rungs) as rungs, l.metric_name, l.metric, l.valid_loss, v.number as version,
       v.metric as test_metric, j.started_at, j.finished_at,
       coalesce(j.finished_at, now()) - j.started_at as duration, j.error_message
  from tensile.trials as t
  join tensile.jobs as j on j.job_id = t.job_id
  left join lateral (select o.* from tensile.trial_results as o
                      where o.job_id = t.job_id order by o.rung desc limit 1) as l on true
  left join tensile.job_progress as p on p.job_id = t.job_id
  left join tensile.model_versions as v on v.version_id = j.version_id and v.job_id = j.job_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation());
comment on view tensile.stat_trials is 'trials of all searches, with their values and what they have reached';
comment on column tensile.stat_trials.search_id is 'search of the trial';
comment on column tensile.stat_trials.trial is 'number of the trial within its search, from 1';
comment on column tensile.stat_trials.job_id is 'job that trains the trial';
comment on column tensile.stat_trials.model is 'name of the model';
comment on column tensile.stat_trials.owner is 'role that started the search';
comment on column tensile.stat_trials.state is
  'state of the job; waiting: at a rung, until the search decides; pruned: ended there, because others were better';
comment on column tensile.stat_trials.phase is 'current activity of an active trial';
comment on column tensile.stat_trials.parameters is 'values of the arguments that vary';
comment on column tensile.stat_trials.epoch is 'epochs trained';
comment on column tensile.stat_trials.epochs is 'largest number of epochs to train';
comment on column tensile.stat_trials.rung is 'last rung that the trial has reached, from 1; null before the first one';
comment on column tensile.stat_trials.rungs is 'number of rungs; a trial at the last one is trained to its end';
comment on column tensile.stat_trials.metric_name is 'metric that trials are compared by';
comment on column tensile.stat_trials.metric is
  'value of the metric on the validation rows at the last rung that the trial has reached';
comment on column tensile.stat_trials.valid_loss is 'loss on the validation rows there; decides between equal metrics';
comment on column tensile.stat_trials.version is 'version of the model that the trial has published';
comment on column tensile.stat_trials.test_metric is 'metric of that version on the test rows';
comment on column tensile.stat_trials.started_at is 'time of the first start of the job';
comment on column tensile.stat_trials.finished_at is 'time when the job ended';
comment on column tensile.stat_trials.duration is 'time from the first start to the end, or to now; includes waiting';
comment on column tensile.stat_trials.error_message is 'why the trial failed or was pruned';

create view tensile.stat_searches with (security_invoker) as
select j.job_id as search_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner,
       tensile.relation_title(j.relation_oid, j.relation_schema, j.relation_name) as relation,
       case when j.state = 'queued' and j.started_at is not null then 'running' else j.state end as state,
       (jsonb_path_query_first(j.spec, '$.search.trials ? (@ >= 1 && @ <= 1000)') #>> '{}')::numeric::integer as trials, c.begun, c.active, c.waiting, c.trained, c.pruned, c.failed,
       b.trial as best_trial, b.metric_name, b.metric as best_metric, c.epochs as epochs_trained,
       v.number as version, j.enqueued_at, j.started_at, j.finished_at,
       coalesce(j.finished_at, now()) - j.started_at as duration, j.pause_requested and j.finished_at is null as paused,
       j.error_message, nullif(j.waits_for, '') as waits_for
  from tensile.jobs as j
 cross join lateral (
    select count(*) as begun,
           count(*) filter (where t.state in ('starting', 'running') or t.state = 'queued') as active,
           count(*) filter (where t.state = 'waiting') as waiting,
           count(*) filter (where t.state = 'succeeded') as trained,
           count(*) filter (where t.state = 'pruned') as pruned,
           count(*) filter (where t.state in ('failed', 'cancelled')) as failed,
           coalesce(sum(t.epoch), 0)::bigint as epochs
      from tensile.stat_trials as t where t.search_id = j.job_id) as c
  left join lateral (
    select t.number as trial, o.metric_name, o.metric
      from tensile.trials as t
      join tensile.trial_results as o on o.job_id = t.job_id
      join tensile.jobs as k on k.job_id = t.job_id
     where t.search_id = j.job_id and o.metric not in ('nan', 'infinity', '-infinity')
       and (k.state not in ('failed', 'cancelled') or t.pruned) and (j.version_id is null or k.version_id = j.version_id)
     order by o.rung desc, case when o.higher_is_better then -o.metric else o.metric end, o.valid_loss, t.number
     limit 1) as b on true
  left join tensile.model_versions as v on v.version_id = j.version_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation())
 where j.search_id = j.job_id;
comment on view tensile.stat_searches is 'searches, with the state of their trials and the best one so far';
comment on column tensile.stat_searches.search_id is 'number of the search, which tensile_search returns; it is a job';
comment on column tensile.stat_searches.model is 'name of the model';
comment on column tensile.stat_searches.owner is 'role that started the search';
comment on column tensile.stat_searches.relation is 'table or query that the trials train on';
comment on column tensile.stat_searches.state is 'state of the search; running from its first trial on';
comment on column tensile.stat_searches.trials is 'most trials of the search';
comment on column tensile.stat_searches.begun is 'trials that have been begun';
comment on column tensile.stat_searches.active is 'trials that train, or are in the queue';
comment on column tensile.stat_searches.waiting is 'trials that wait at a rung';
comment on column tensile.stat_searches.trained is 'trials that were trained to their end and have published a version';
comment on column tensile.stat_searches.pruned is 'trials that were ended at a rung, because others were better';
comment on column tensile.stat_searches.failed is 'trials that failed or were cancelled';
comment on column tensile.stat_searches.best_trial is 'best trial among those that have reached the highest rung';
comment on column tensile.stat_searches.metric_name is 'metric that trials are compared by';
comment on column tensile.stat_searches.best_metric is 'metric of the best trial on the validation rows';
comment on column tensile.stat_searches.epochs_trained is 'epochs that all trials together have trained';
comment on column tensile.stat_searches.version is 'version of the model that the search has ended with';
comment on column tensile.stat_searches.enqueued_at is 'time of the request';
comment on column tensile.stat_searches.started_at is 'time of the first trial';
comment on column tensile.stat_searches.finished_at is 'time when the search ended';
comment on column tensile.stat_searches.duration is 'time from the first trial to the end, or to now';
comment on column tensile.stat_searches.paused is 'true if the search is paused: see tensile_pause';
comment on column tensile.stat_searches.error_message is 'why the search failed';
comment on column tensile.stat_searches.waits_for is
  'what keeps the search from beginning its next trial, such as a quota of its owner; null if nothing does';

create function public.tensile_trial_info(search bigint)
  returns table (trial integer, state text, metric_name text, metric double precision, epoch integer, rung integer,
                 parameters jsonb, job bigint, version integer, test_metric double precision, duration interval,
                 error_message text)
  language plpgsql stable parallel safe rows 16
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if not has_schema_privilege('tensile', 'usage') then
    perform public.tensile_require_role('tensile_user');
  end if;
  if not exists (select from tensile.jobs as j where j.job_id = search and j.search_id = search) then
    if exists (select from tensile.jobs as j where j.job_id = search) then
      raise exception 'job % is not a search', search
        using errcode = 'undefined_object', hint = 'See your searches: select * from tensile.stat_searches;';
    end if;
    perform tensile.raise_no_job(search);
  end if;
  return query
  select t.trial, t.state, t.metric_name, t.metric, t.epoch, t.rung, t.parameters, t.job_id, t.version, t.test_metric,
         t.duration, t.error_message
    from tensile.stat_trials as t
    left join lateral (select o.higher_is_better from tensile.trial_results as o
                        where o.job_id = t.job_id order by o.rung desc limit 1) as o on true
   where t.search_id = search
   order by t.rung desc nulls last, case when o.higher_is_better then -t.metric else t.metric end nulls last,
            t.valid_loss, t.trial;
end
$$;
comment on function public.tensile_trial_info(bigint) is
  'returns the trials of a search with their values and metrics on the validation rows: those that went furthest first, '
  'and of these the best first';

-- Privileges -------------------------------------------------------------------------------------------------------

alter table tensile.trials enable row level security;
create policy trials_of_job on tensile.trials for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = trials.job_id));
create policy trials_monitored on tensile.trials for select to tensile_monitor using (true);
create policy trials_worked on tensile.trials for select to tensile_worker using (true);
alter table tensile.trial_results enable row level security;
create policy trial_results_of_job on tensile.trial_results for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = trial_results.job_id));
create policy trial_results_monitored on tensile.trial_results for select to tensile_monitor using (true);
create policy trial_results_worked on tensile.trial_results to tensile_worker using (true) with check (true);
grant select on tensile.trials, tensile.trial_results, tensile.stat_trials, tensile.stat_searches
  to tensile_user, tensile_monitor, tensile_worker;
grant insert on tensile.trial_results to tensile_worker;

revoke execute on function tensile.hold_search(), tensile.hold_trial(), tensile.prune_jobs(bigint, bigint[], text), tensile.follow_search(), tensile.notify_search(),
  tensile.active_searches(), tensile.add_trial(bigint, integer, jsonb, jsonb, double precision[], jsonb),
  tensile.allow_rung(bigint, integer, integer), tensile.hold_trials(bigint, integer[]),
  tensile.prune_unstarted(bigint, text), tensile.prune_trials(bigint, integer[], text), tensile.end_search(bigint, bigint, bigint, text, text),
  tensile.fail_search(bigint, text, text, text, text) from public;
grant execute on function tensile.active_searches(),
  tensile.add_trial(bigint, integer, jsonb, jsonb, double precision[], jsonb),
  tensile.allow_rung(bigint, integer, integer), tensile.hold_trials(bigint, integer[]),
  tensile.prune_unstarted(bigint, text), tensile.prune_trials(bigint, integer[], text), tensile.end_search(bigint, bigint, bigint, text, text),
  tensile.fail_search(bigint, text, text, text, text) to tensile_worker;
