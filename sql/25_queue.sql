-- The queue: claims, interruptions, cancellations, and the notification and event of each change.

-- Claims ------------------------------------------------------------------------------------------------------

create function tensile.may_train(owner oid) returns boolean
  language sql stable parallel safe
  return pg_catalog.pg_has_role(owner, 'tensile_user'::name, 'usage');
comment on function tensile.may_train(oid) is
  'true if the role has the privileges of tensile_user now; a dropped role does not';

create function tensile.why_not_trained(owner oid, stored_name name) returns text
  language sql stable parallel safe
  return coalesce((select 'role "' || r.rolname || '" may no longer train: it is not a member of tensile_user'
                     from pg_catalog.pg_roles as r where r.oid = owner),
                  'role "' || stored_name || '", which enqueued the job, no longer exists');
comment on function tensile.why_not_trained(oid, name) is
  'returns the error message of a job whose owner may no longer train';

create function tensile.way_to_train(owner oid) returns text
  language sql stable parallel safe
  return case when exists (select from pg_catalog.pg_roles as r where r.oid operator(pg_catalog.=) owner)
              then 'As an administrator: grant tensile_user to the role. Then train again.'
              else 'Train again as a role that exists, which may read the table.' end;
comment on function tensile.way_to_train(oid) is 'returns the hint of a job whose owner may no longer train';

-- The work left on a device is the time until its present jobs are done: jobs side by side share the device, so k of
-- them that would each take e more seconds are done after about the mean of e. Jobs whose end is not foretold yet count
-- as an average job does. With one job for each claim, giving it to the device with the least work left is Graham's list
-- scheduling, whose makespan is less than twice the best. Devices count as equally fast.
create function tensile.work_left() returns table (worker_id bigint, work_s double precision, accepts boolean)
  language sql stable rows 5
  set search_path = pg_catalog, pg_temp
as $$
  with active as (
    select j.worker_id, j.phase::text as phase, j.state,
           case when j.state = 'running' and p.eta is not null
                then greatest(extract(epoch from p.eta - now()), 0)::double precision end as left_s
      from tensile.jobs as j left join tensile.job_progress as p on p.job_id = j.job_id
     where j.worker_id is not null and not j.pause_requested
    union all
    select r.worker_id, j.phase::text, j.state,
           case when r.state = 'training' and p.eta is not null
                then greatest(extract(epoch from p.eta - now()), 0)::double precision end
      from tensile.job_ranks as r
     cross join lateral (select o.job_id, o.phase, o.state from tensile.jobs as o where o.job_id = r.job_id limit 1) as j
      left join tensile.job_progress as p on p.job_id = r.job_id
     where r.rank > 0 and r.worker_id is not null and r.state <> 'finished'
  ), average as (
    select coalesce(avg(a.left_s), 60) as left_s from active as a  -- at first a minute, as good as any other guess
  ), loads as (
    select a.worker_id, count(*) as jobs, count(*) filter (where a.state = 'running') as running,
           count(*) filter (where a.state = 'starting' and a.phase is distinct from 'waiting for memory') as entering,
           sum(coalesce(a.left_s, v.left_s)) as left_s
      from active as a cross join average as v group by a.worker_id
  )
  select w.worker_id, coalesce(l.left_s / greatest(l.running, 1), 0),
         w.holdup is null and coalesce(l.jobs, 0) < w.slots and coalesce(l.entering, 0) < w.entering
           and w.version = tensile.catalog_version() and tensile.is_alive(w)
    from tensile.workers as w left join loads as l on l.worker_id = w.worker_id
   where w.stopped_at is null
$$;
comment on function tensile.work_left() is
  'returns for each worker the seconds until its present jobs are done, about, and whether it would claim another job now';

create function tensile.better_worker(worker bigint, needs_bytes bigint default null) returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  with loads as (select l.worker_id, l.work_s, l.accepts from tensile.work_left() as l)
  select other.worker_id
    from loads as mine join loads as other
      on other.worker_id <> mine.worker_id and other.accepts and tensile.holds_back(other.worker_id) is null
     and other.work_s + greatest(1, mine.work_s / 10) <= mine.work_s  -- a margin, as forecasts are not exact
   where mine.worker_id = better_worker.worker
     and (better_worker.needs_bytes is null
          or better_worker.needs_bytes <= (select d.budget_bytes from tensile.devices as d
                                            where d.worker_id = other.worker_id))
   order by other.work_s, other.worker_id limit 1
$$;
comment on function tensile.better_worker(bigint, bigint) is
  'returns the worker that would be done with one more job earlier than this worker, by a margin, among those whose '
  'device could hold a job of this need; null if there is none';

-- A job that is handed over costs the other device some seconds, to read the table and to capture the step.
create function tensile.idle_budget(worker bigint) returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select max(d.budget_bytes)
    from tensile.work_left() as mine
    join tensile.work_left() as other on other.worker_id <> mine.worker_id and other.accepts
     and tensile.holds_back(other.worker_id) is null
    join tensile.devices as d on d.worker_id = other.worker_id
   where mine.worker_id = idle_budget.worker and mine.work_s > 10
     and not exists (select from tensile.jobs as j where j.worker_id = other.worker_id)
$$;
comment on function tensile.idle_budget(bigint) is
  'returns the largest budget of another worker that would claim a job and has none, if this worker has work for more '
  'than ten seconds; null if there is none';

-- A controller that restarts is a new worker. A job that only its device can hold must not fail meanwhile.
create function tensile.largest_budget() returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select max(d.budget_bytes) from tensile.workers as w join tensile.devices as d on d.worker_id = w.worker_id
   where w.version = tensile.catalog_version()
     and w.heartbeat_at > now() - greatest(make_interval(secs => w.lease_s), interval '2 minutes')
$$;
comment on function tensile.largest_budget() is
  'returns the largest budget of a device whose controller has sent a heartbeat in the last two minutes';

-- The enable_... settings make the planner find the next job by walking an index in its order, and not by sorting the
-- whole queue. The statistics of a queue are always out of date, so the planner must not decide by them.
--
-- Owners that have as many jobs as their quota allows are passed over, and so are the owners in `passed_over`. The owners
-- with queued jobs come from one index lookup for each owner, in fair order (tensile.queue_heads()), so the cost depends
-- neither on the number of queued jobs nor on the number of jobs that are passed over.
--
-- A job whose owner may no longer train is never handed out: all queued jobs of that role fail, in portions of 1000.
--
-- A job that was too large for one device is left to the controllers that could hold it. When the last of them has gone,
-- another one claims it, and it fails there, with the reason.
--
-- A rank of a job that other devices train, too, comes first. A job for several devices is claimed only if as many of them
-- would claim a job now, and if no other such job waits for its devices (24_ranks.sql). In the turn of such a job, its
-- workers claim no other job. Ranks, and a job in its turn, are not passed over for the owner's jobs that wait for memory.
--
-- With `defers` the worker leaves the job to a better worker (tensile.better_worker()), and gets the queued row as it is,
-- unless it has waited long enough for another worker to claim the job `waited_for`.
create function tensile.claim_job(
  worker bigint, passed_over oid[] default '{}', defers boolean default false, waited_for bigint default null
) returns setof tensile.jobs
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_incremental_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
  set jit = off  -- else the cost of a sort would make PostgreSQL compile the statement, which takes 0.6 s
as $$
declare
  skipped_owners oid[] := claim_job.passed_over || tensile.owners_at_limit(0);
  next_owner oid;
  next_job bigint;
  needs bigint;
  devices integer;
  claimed tensile.jobs;
  turn bigint;
  accepting bigint := 0;  -- the most devices on which a job can start now, unless it can start on one only
  own_budget constant bigint := coalesce((select d.budget_bytes from tensile.devices as d
                                           where d.worker_id = claim_job.worker), 0);
  most constant bigint := coalesce(tensile.largest_budget(), 0);
begin
  -- A controller of another version could train the job and not publish it.
  if not exists (select from tensile.workers as w
                  where w.worker_id = claim_job.worker and w.stopped_at is null and w.version = tensile.catalog_version()) then
    return;
  end if;
  if exists (select from tensile.job_ranks as r where r.state = 'offered') then
    return query select r.* from tensile.accept_rank(claim_job.worker) as r;
    if found then
      return;
    end if;
  end if;
  if exists (select from tensile.gang_turns)
     or exists (select from tensile.jobs as q where q.state = 'queued' and q.devices > 1) then
    perform tensile.keep_turns();
    turn := tensile.holds_back(claim_job.worker);
    if tensile.incomplete_gang() is null then
      accepting := tensile.accepting_devices(claim_job.worker);
    end if;
  end if;
  if turn is not null then
    select q.owner_oid, q.job_id, q.needs_bytes, q.devices into next_owner, next_job, needs, devices
      from tensile.jobs as q
     where q.job_id = turn and q.state = 'queued' and not q.pause_requested and not q.awaits_jobs
       and (q.not_before is null or q.not_before <= now()) and q.owner_oid <> all (tensile.owners_at_limit(0))
       and tensile.may_train(q.owner_oid) and tensile.may_prepare(claim_job.worker, q.owner_oid)
       and tensile.turn_is_ready(q)
       for update skip locked;
    if next_job is null then
      return;
    end if;
  end if;
  for portion in 1..5 loop
    exit when turn is not null;
    next_job := null;
    for next_owner in select h.owner_oid from tensile.queue_heads(skipped_owners) as h loop
      select q.job_id, q.needs_bytes, q.devices into next_job, needs, devices from tensile.jobs as q
       where q.owner_oid >= next_owner and q.owner_oid <= next_owner  -- see tensile.queue_heads()
         and q.state = 'queued' and not q.pause_requested and not q.awaits_jobs
         and (q.not_before is null or q.not_before <= now())
         and (q.needs_bytes is null or q.needs_bytes <= own_budget or q.needs_bytes > most)
         and (q.devices = 1
              or q.devices <= accepting
                 and (q.needs_bytes is null
                      or q.devices <= tensile.accepting_devices(claim_job.worker, q.needs_bytes)))
         and q.installation = (select tensile.installation())
       order by q.owner_oid, q.priority desc, q.job_id
         for update skip locked limit 1;
      exit when next_job is not null;
    end loop;
    if next_job is null then
      return;
    end if;
    exit when tensile.may_train(next_owner);
    begin
      with unentitled as (
        select q.job_id from tensile.jobs as q
         where q.owner_oid = next_owner and q.state = 'queued' and q.installation = (select tensile.installation())
         order by q.job_id
           for update skip locked limit 1000
      )
      update tensile.jobs as j
         set state = 'failed', awaits_jobs = false, waits_for = null, not_before = null, finished_at = now(),
             error_sqlstate = '42501', error_message = tensile.why_not_trained(j.owner_oid, j.owner_name),
             error_detail = null,
             error_hint = tensile.way_to_train(j.owner_oid)
        from unentitled where j.job_id = unentitled.job_id;
    exception when lock_not_available then  -- skip this owner, so that the lock delays no other owner
      skipped_owners := skipped_owners || next_owner;
    end;
    next_job := null;
  end loop;
  if next_job is null then
    return;
  end if;
  -- Two workers could use the last place of one owner's quota, or begin two gangs, at the same time. The lock on the row
  -- of the oldest worker, which no user can lock, makes one of them count after the other. A later claim takes the job
  -- that is left now.
  if devices > 1 or next_owner = any (tensile.owners_at_limit(1, next_owner)) then
    perform from tensile.workers as w
      where w.worker_id = (select min(v.worker_id) from tensile.workers as v where v.stopped_at is null)
        for no key update;
    if next_owner = any (tensile.owners_at_limit(0)) or devices > 1 and tensile.incomplete_gang() is not null then
      return;
    end if;
  end if;
  if defers and devices = 1 and next_job is distinct from waited_for and tensile.better_worker(claim_job.worker, needs) is not null then
    return query select j.* from tensile.jobs as j where j.job_id = next_job;
    return;
  end if;
  update tensile.jobs as j
     set state = 'starting', phase = null, attempt = j.attempt + 1, worker_id = claim_job.worker,
         claim = nextval('tensile.claim_seq'),  -- every later write must carry it
         threads = coalesce(j.threads, (select w.threads from tensile.workers as w where w.worker_id = claim_job.worker)),
         progress_at = now(), waits_for = null, not_before = null, short_since = null, started_at = coalesce(j.started_at, now())
   where j.job_id = next_job  -- the row is locked, so the job is still queued
  returning j.* into claimed;
  if devices > 1 then
    perform tensile.offer_ranks(claimed);
  end if;
  return next claimed;
end
$$;
comment on function tensile.claim_job(bigint, oid[], boolean, bigint) is
  'claims a job for a worker: an offered rank of a job for several devices, else that of the owner whose turn it is, among the owners whose quotas allow another job and '
  'that are not passed over, and of that owner''s queued jobs the oldest of the highest priority that is not paused; '
  'workers never wait for each other''s jobs. With defers, and if another worker would be done earlier, returns the '
  'queued job without claiming it, unless it is the job that the worker has waited for';

-- Interruptions -----------------------------------------------------------------------------------------------

-- The pause doubles with each fault or interruption, up to 5 min: 2 s, 4 s, ... So a job resumes quickly if that helps,
-- and rarely if it does not.
create function tensile.back_off(attempt integer) returns interval
  language sql immutable parallel safe
  return pg_catalog.make_interval(secs => least(300, 2 ^ least(attempt, 10)));
comment on function tensile.back_off(integer) is
  'pause of a job after its n-th fault or interruption since its last checkpoint';

-- Decides how a job continues after an interrupted attempt. `blame` is a value of indb_tensile.job.Blame.
create function tensile.after_interruption(
  job tensile.jobs, blame text, reason text, ended_at timestamptz, limit_s double precision,
  out state tensile.job_state, out counts boolean, out faults integer, out interruptions integer,
  out interrupted interval, out last_death_phase text, out not_before timestamptz, out message text, out hint text
)
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  died_in constant text := coalesce(job.phase::text, 'starting');
  pause interval;
  expired boolean;
begin
  counts := blame in ('job', 'memory') or blame = 'unclear' and job.last_death_phase is not distinct from died_in;
  faults := job.faults + counts::integer;
  interruptions := job.interruptions + (not counts)::integer;
  last_death_phase := case blame when 'unclear' then died_in when 'memory' then 'memory' else job.last_death_phase end;
  pause := tensile.back_off(faults + interruptions);
  interrupted := job.interrupted + greatest(ended_at - coalesce(job.progress_at, ended_at), interval '0') + pause;
  expired := not counts and limit_s > 0 and interrupted > make_interval(secs => limit_s);
  state := case when job.cancel_requested then 'cancelled'
                when faults >= job.max_attempts or expired then 'failed'
                when blame = 'memory' and job.last_death_phase = 'memory' then 'failed'  -- it would fail again
                else 'queued' end;
  not_before := case when state = 'queued' then now() + pause end;
  message := reason;
  if expired then
    message := format('job %s was interrupted %s times without a checkpoint in between, which cost it %s; the last time: %s',
                      job.job_id, interruptions, date_trunc('second', interrupted), reason);
    hint := 'Remove the cause of the interruptions and train again. '
            'The controller''s setting interrupted_s says how long a job may be interrupted.';
  end if;
end
$$;
comment on function tensile.after_interruption(tensile.jobs, text, text, timestamptz, double precision) is
  'decides how a job continues after an interrupted attempt: the next state, whether the interruption counts as the '
  'job''s own fault, and the pause';

-- Requests and changes ----------------------------------------------------------------------------------------

-- No worker has a queued job yet, so it can be cancelled without one.
create function tensile.cancel_queued_job() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
begin
  new.state := 'cancelled';
  new.finished_at := now();
  new.awaits_jobs := false;
  new.waits_for := null;
  return new;
end
$$;
comment on function tensile.cancel_queued_job() is 'trigger: cancels a queued job whose cancellation is requested';

create trigger jobs_cancel_queued before update of cancel_requested on tensile.jobs
  for each row when (new.cancel_requested and old.state = 'queued' and new.state = 'queued')
  execute function tensile.cancel_queued_job();

-- The checks of a specification that SQL can do at little cost. A worker checks the rest before it uses a
-- specification.
create function tensile.spec_fault(spec jsonb) returns text
  language plpgsql immutable parallel safe
  set search_path = pg_catalog, pg_temp
as $$
declare
  fault text;
begin
  if jsonb_typeof(spec) is distinct from 'object' then
    return 'it is not a JSON object';
  elsif octet_length(spec::text) > 262144 then
    return format('it has %s bytes, more than 262144', octet_length(spec::text));
  elsif spec @? '$.**{33}' then
    return 'it is nested deeper than 32 levels';
  elsif spec @? '$.** ? (@.type() == "number" && (@ > 9223372036854775807 || @ < -9223372036854775808))' then
    return 'it holds a number beyond 64 bits';
  end if;
  select format('"%s" is %s, not %s', k.name, coalesce(jsonb_typeof(spec -> k.name), 'missing'), k.types[1]) into fault
    from (values ('model', '{string}'::text[]), ('relation', '{object}'), ('target', '{string}'), ('task', '{string}'),
                 ('architecture', '{object}'), ('hyperparams', '{object,missing}'),
                 ('features', '{array,"null",missing}'), ('exclude', '{array,missing}'),
                 ('preprocess', '{object,missing}'), ('split', '{object,missing}'), ('metric', '{string,"null",missing}'),
                 ('early_stop', '{object,"null",missing}'), ('memory_limit_bytes', '{number,"null",missing}'),
                 ('max_runtime_s', '{number,"null",missing}'), ('deploy', '{string,missing}'),
                 ('query', '{string,"null",missing}'), ('init_from', '{object,"null",missing}'),
                 ('column_numbers', '{object,missing}'), ('part_tables', '{object,missing}'),
                 ('transform', '{object,"null",missing}'), ('predict', '{object,missing}'),
                 ('search', '{object,missing}'), ('targets', '{array,missing}'),
                 ('forecast', '{object,"null",missing}'), ('devices', '{number,missing}')) as k (name, types)
   where coalesce(jsonb_typeof(spec -> k.name), 'missing') <> all (k.types)
   limit 1;
  return case
    when fault is not null then fault
    when spec ->> 'task' not in ('classification', 'regression', 'multilabel', 'forecast', 'anomaly', 'pairs')
      then format('task is "%s", not classification, regression, multilabel, forecast, anomaly or pairs', spec ->> 'task')
    when spec ->> 'deploy' not in ('if_better', 'always', 'never')
      then format('deploy is "%s", not if_better, always or never', spec ->> 'deploy')
    when jsonb_typeof(spec #> '{architecture,type}') is distinct from 'string'
      then 'architecture has no "type"'
    when spec @? 'strict $.features[*] ? (@.type() != "string")'
         or spec @? 'strict $.exclude[*] ? (@.type() != "string")'
         or spec @? 'strict $.targets[*] ? (@.type() != "string")'
      then 'features, exclude and targets are not lists of column names'
    when spec @? '$.memory_limit_bytes ? (@ < 1 || @ != @.floor())'
      then format('memory_limit_bytes is %s, not a whole number above 0', spec -> 'memory_limit_bytes')
    when spec @? '$.devices ? (@ < 1 || @ > 64 || @ != @.floor())'
      then format('devices is %s, not a whole number from 1 to 64', spec -> 'devices')
    when spec ? 'search' and spec @? '$.devices ? (@ > 1)'
      then format('devices is %s, and each trial of a search trains on one device', spec -> 'devices')
    when spec ? 'search' and not coalesce(
           spec @? 'strict $.search ? (@.type() == "object" && @.space.type() == "object")'
           and spec @? 'strict $.search.trials ? (@.type() == "number" && @ >= 1 && @ <= 1000 && @ == @.floor())'
           and (spec #> '{search,max_duration_s}' is null or spec @? 'strict $.search.max_duration_s ? (@ == null)'
                or spec @? 'strict $.search.max_duration_s ? (@.type() == "number" && @ >= 1 && @ <= 2147483647)'),
           false)
      then 'search is not an object with the space, the number of trials and the time of a search'
    when spec @? '$.max_runtime_s ? (@ < 1 || @ > 2147483647 || @ != @.floor())'
      then format('max_runtime_s is %s, not a whole number from 1 to 2147483647', spec -> 'max_runtime_s')
  end;
end
$$;
comment on function tensile.spec_fault(jsonb) is
  'checks keys and types of a job''s specification; returns the fault, or null if there is none';

create function tensile.check_request() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
declare
  fault constant text := tensile.spec_fault(new.spec);
begin
  if fault is not null then
    raise exception 'the specification of the job is refused: %', fault
      using errcode = 'invalid_parameter_value', hint = 'Enqueue jobs with tensile_train, which writes it.';
  end if;
  if new.spec ? 'devices' and not new.spec ?| array['search', 'predict'] then
    new.devices := new.spec -> 'devices';
  end if;
  return new;
end
$$;
comment on function tensile.check_request() is 
  'trigger: refuses a job whose specification fails tensile.spec_fault(), and sets its number of devices';

create trigger jobs_are_requests before insert on tensile.jobs
  for each row when (new.state = 'queued')  -- a restored copy inserts jobs that have ended, which need no check
  execute function tensile.check_request();

-- One notification for each statement and kind, for any number of rows: "queued 7", or "queued" for several jobs.
create function tensile.notify_enqueued() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
declare
  jobs bigint;
  first_job bigint;
begin
  select count(*), min(job_id) into jobs, first_job from added where state = 'queued' and not awaits_jobs;
  if jobs > 0 then
    perform pg_notify('tensile', case jobs when 1 then 'queued ' || first_job else 'queued' end);
  end if;
  return null;
end
$$;
comment on function tensile.notify_enqueued() is 'trigger: notifies the controllers of new jobs';

create trigger jobs_enqueued after insert on tensile.jobs
  referencing new table as added
  for each statement execute function tensile.notify_enqueued();

-- Security definer: a user who cancels a job changes its state, but users may not write events themselves.
create function tensile.record_job_changes() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_bitmapscan = off  -- the statistics of a queue are out of date, and must not prevent index scans
  set enable_seqscan = off
as $$
declare
  change record;
  ended bigint[];
begin
  insert into tensile.job_events (job_id, kind, detail)
  select n.job_id, n.state::text,
         jsonb_strip_nulls(jsonb_build_object(
           'from', o.state, 'attempt', n.attempt, 'worker', coalesce(n.worker_id, o.worker_id),
           'error', case when n.state in ('failed', 'queued') then n.error_message end))
    from before_change as o join after_change as n using (job_id)
   where o.state <> n.state;

  insert into tensile.job_events (job_id, kind, detail)
  select n.job_id, 'priority', jsonb_build_object('from', o.priority, 'to', n.priority)
    from before_change as o join after_change as n using (job_id)
   where o.priority <> n.priority;

  insert into tensile.job_events (job_id, kind, detail)
  select n.job_id, case when n.pause_requested then 'pause_requested' else 'resume_requested' end,
         jsonb_build_object('state', n.state, 'attempt', n.attempt)
    from before_change as o join after_change as n using (job_id)
   where o.pause_requested <> n.pause_requested;

  insert into tensile.job_events (job_id, kind, detail)
  select n.job_id, 'awaited_jobs_succeeded', jsonb_build_object('depends_on', n.depends_on)
    from before_change as o join after_change as n using (job_id)
   where o.awaits_jobs and not n.awaits_jobs and n.state = 'queued' and n.search_id is null;

  -- The claims of an attempt's ranks end with it.
  delete from tensile.job_ranks as r using before_change as o, after_change as n
   where o.job_id = n.job_id and o.state <> n.state and n.state not in ('starting', 'running')
     and o.devices > 1 and r.job_id = n.job_id;

  with ended as (
    select n.job_id from after_change as n where n.state in ('succeeded', 'failed', 'cancelled')
  ), awaited as (
    delete from tensile.awaited_jobs as a using ended where a.job_id = ended.job_id
  ), chunks as (
    delete from tensile.checkpoint_chunks as k using ended where k.job_id = ended.job_id
  )
  delete from tensile.checkpoints as c using ended where c.job_id = ended.job_id;

  -- When the last training of a model without versions ends, the model's name is free again. If another session has
  -- locked the row, tensile.delete_dropped() frees the name later.
  if exists (select from after_change as n where n.state in ('failed', 'cancelled')) then
    begin
      delete from tensile.models as m using (
        select r.model_id
          from (select distinct n.model_name, n.owner_oid  -- many jobs may end at once, and the queue may be long
                  from before_change as o
                  join after_change as n using (job_id)
                 where o.state <> n.state and n.state in ('failed', 'cancelled')) as e
          join tensile.models as r on r.name = e.model_name and r.owner_oid = e.owner_oid
         where tensile.is_reservation(r)
           -- The owner may have locked a grant on the model, and the cascade would wait for that lock.
           and not exists (select from tensile.model_privileges as p where p.model_id = r.model_id)
           -- One index lookup for each name; with "not exists" the planner could read the whole queue instead.
           and (select j.job_id from tensile.jobs as j
                 where j.model_name = r.name and j.state in ('queued', 'starting', 'running') limit 1) is null
           for update of r skip locked) as free
       where m.model_id = free.model_id;
    exception when lock_not_available then  -- tensile.delete_dropped() frees the name later
      null;
    end;
  end if;

  -- settle_dependents fires this trigger again, for dependents beyond its portion. The depth bounds the work of one
  -- statement: tensile.settle_all_dependents() does the rest.
  ended := array(select n.job_id from before_change as o join after_change as n using (job_id)
                  where o.state <> n.state and n.finished_at is not null
                    and exists (select from tensile.awaited_jobs as a where a.awaited_id = n.job_id));
  if cardinality(ended) > 0 and pg_trigger_depth() <= 6 then
    begin
      perform tensile.settle_dependents(ended);
    exception when lock_not_available then  -- tensile.settle_all_dependents() does it later
      null;
    end;
  end if;

  for change in
    select c.kind, count(*) as jobs, min(c.job_id) as first_job
      from (select n.job_id, case when o.state = n.state and n.cancel_requested and not o.cancel_requested then 'cancel'
                                  when o.state = n.state and o.priority <> n.priority then 'priority'
                                  when o.state = n.state and n.state in ('starting', 'running') then 'pause'
                                  when n.state = 'queued' and not n.pause_requested and not n.awaits_jobs then 'queued'
                                  else 'changed' end as kind
              from before_change as o join after_change as n using (job_id)
             where o.state <> n.state or (n.cancel_requested and not o.cancel_requested)
                or o.pause_requested <> n.pause_requested or o.awaits_jobs and not n.awaits_jobs
                or o.priority <> n.priority and n.state in ('starting', 'running')) as c
     group by c.kind
  loop
    perform pg_notify('tensile', change.kind || case change.jobs when 1 then ' ' || change.first_job else '' end);
  end loop;
  return null;
end
$$;
comment on function tensile.record_job_changes() is
  'trigger: writes an event for each change of state and each pause, deletes the ranks of ended attempts and the '
  'checkpoints of ended jobs, frees the '
  'names of models without a version, settles the jobs that depend on ended ones, and notifies the controllers';

create trigger jobs_changed after update on tensile.jobs
  referencing old table as before_change new table as after_change
  for each statement execute function tensile.record_job_changes();

revoke execute on function tensile.may_train(oid), tensile.why_not_trained(oid, name), tensile.way_to_train(oid), tensile.claim_job(bigint, oid[], boolean, bigint),
  tensile.work_left(), tensile.better_worker(bigint, bigint), tensile.idle_budget(bigint), tensile.largest_budget(), tensile.back_off(integer), tensile.after_interruption(tensile.jobs, text, text, timestamptz, double precision),
  tensile.cancel_queued_job(), tensile.spec_fault(jsonb), tensile.check_request(), tensile.notify_enqueued(),
  tensile.record_job_changes() from public;
