-- The views for monitoring, in the style of PostgreSQL's own statistics views. All views are security invoker: each
-- shows the rows of its tables that the current role may see. Totals over all users' jobs come from security definer
-- functions that return only aggregates.

create function tensile.queue_positions(jobs bigint[]) returns table (job_id bigint, place bigint)
  language sql stable security definer rows 100
  set search_path = pg_catalog, pg_temp
as $$
  select q.job_id, q.place
    from (select j.job_id, row_number() over (order by s.spent, (s.idle and j.place = 1) desc,
                                                       s.usage_s + (j.place - 1) * s.next_s, j.job_id) as place
            from (select o.job_id, o.owner_oid,
                         row_number() over (partition by o.owner_oid order by o.priority desc, o.job_id) as place
                    from tensile.jobs as o where o.state = 'queued' and not o.pause_requested and not o.awaits_jobs) as j
            join tensile.owner_standings(array(select distinct o.owner_oid from tensile.jobs as o
                                                where o.state = 'queued')) as s on s.owner_oid = j.owner_oid) as q
   where q.job_id in (select unnest(queue_positions.jobs))  -- any (jobs) would compare each job with each
$$;
comment on function tensile.queue_positions(bigint[]) is
  'returns the place of each of these jobs among the queued jobs of all owners, from 1, if no job ended until then: the '
  'owners take turns by their use and weight, as tensile.queue_heads() hands out jobs one by one; '
  'paused jobs and jobs that wait for others have none';

create function tensile.active_jobs() returns table (worker_id bigint, jobs bigint, waiting bigint)
  language sql stable security definer rows 5
  set search_path = pg_catalog, pg_temp
as $$
  select a.worker_id, sum(a.jobs)::bigint, sum(a.waiting)::bigint
    from (select j.worker_id, count(*) as jobs, count(*) filter (where j.phase = 'waiting for memory') as waiting
            from tensile.jobs as j where j.state in ('starting', 'running') group by j.worker_id
           union all
          select r.worker_id, count(*), count(*) filter (where r.state = 'prepared') from tensile.job_ranks as r
           where r.rank > 0 and r.worker_id is not null and r.state <> 'finished' group by r.worker_id) as a
   group by a.worker_id
$$;
comment on function tensile.active_jobs() is
  'returns how many jobs of all owners, or ranks of jobs, each worker has, and how many of them wait for memory';

revoke execute on function tensile.queue_positions(bigint[]), tensile.active_jobs() from public;
grant execute on function tensile.queue_positions(bigint[]), tensile.active_jobs()
  to tensile_user, tensile_monitor, tensile_worker;

-- Jobs ---------------------------------------------------------------------------------------------------------

create view tensile.stat_progress_train with (security_invoker) as
select j.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner, j.state, j.phase, p.epoch, p.epochs, p.step, p.steps,
       round(case when p.epochs > 0 and p.epoch > 0
                  then least(100, 100.0 / p.epochs
                                  * (p.epoch - 1 + coalesce(p.step::numeric / nullif(p.steps, 0), 0)))
                  else 0 end, 1) as percent,
       p.loss, p.valid_loss, p.metric_name, p.metric, p.samples_per_s, p.eta,
       d.used_bytes, d.granted_bytes, v.budget_bytes as device_budget_bytes, j.worker_id, p.updated_at, p.eta_earliest,
       j.pause_requested as paused, w.host, w.device_name
  from tensile.jobs as j
  left join tensile.job_progress as p on p.job_id = j.job_id
  left join tensile.device_jobs as d on d.job_id = j.job_id and d.worker_id = j.worker_id
  left join tensile.devices as v on v.worker_id = j.worker_id
  left join tensile.workers as w on w.worker_id = j.worker_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation())
 where j.state in ('starting', 'running') and not j.spec ? 'predict';
comment on view tensile.stat_progress_train is 'active trainings and their progress';

create view tensile.stat_progress_predict with (security_invoker) as
select j.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner, j.state, j.phase,
       tensile.relation_title(j.relation_oid, j.relation_schema, j.relation_name) as relation,
       j.spec #>> '{predict,output}' as output, p.rows_predicted, p.rows_expected,
       round(case when p.rows_expected > 0 then least(100, 100.0 * p.rows_predicted / p.rows_expected) else 0 end, 1) as percent,
       p.samples_per_s as rows_per_s, p.eta, j.worker_id, p.updated_at
  from tensile.jobs as j
  left join tensile.job_progress as p on p.job_id = j.job_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation())
 where j.state in ('starting', 'running') and j.spec ? 'predict';
comment on view tensile.stat_progress_predict is 'active predictions of tensile_predict_into and their progress';

create view tensile.stat_jobs with (security_invoker) as
select j.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner,
       tensile.relation_title(j.relation_oid, j.relation_schema, j.relation_name) as relation,
       case when j.search_id = j.job_id and j.state = 'queued' and j.started_at is not null then 'running'
            else j.state end as state, j.phase, j.priority, j.attempt,
       j.enqueued_at, j.started_at, j.finished_at,
       coalesce(j.finished_at, now()) - j.started_at as duration,
       j.cancel_requested, v.number as version, v.metric_name, v.metric,
       j.error_sqlstate, j.error_message, j.error_detail, j.error_hint, j.faults, j.interruptions, v.not_deployed,
       j.threads, j.pause_requested and j.finished_at is null as paused, j.depends_on, j.retry_of,
       j.search_id, j.worker_id, w.host, w.device_name
  from tensile.jobs as j
  left join tensile.model_versions as v on v.version_id = j.version_id
  left join tensile.workers as w on w.worker_id = j.worker_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation());
comment on view tensile.stat_jobs is 'all jobs: queued, active and ended, with results and errors';

create function tensile.intake() returns table (alive bigint, places bigint, jobs bigint, holdup text)
  language sql stable rows 1
  set search_path = pg_catalog, pg_temp
as $$
  select count(*), sum(w.slots), sum(coalesce(a.jobs, 0)),
         case when bool_and(w.holdup is not null or coalesce(a.jobs, 0) >= w.slots)
              then string_agg(distinct w.holdup, '; or ') filter (where coalesce(a.jobs, 0) < w.slots) end
    from tensile.workers as w
    left join tensile.active_jobs() as a on a.worker_id = w.worker_id
   where tensile.is_alive(w)
$$;
comment on function tensile.intake() is
  'returns the number of live controllers, their places for jobs, their current jobs, and what they wait for before '
  'they claim another job; null if one of them claims jobs now';

create function tensile.owners_entering() returns table (owner_oid oid, jobs bigint, most integer)
  language sql stable rows 5
  set search_path = pg_catalog, pg_temp
as $$
  select e.owner_oid, sum(e.jobs)::bigint, max(w.entering)
    from (select j.owner_oid, j.worker_id, count(*) as jobs,
                 count(*) filter (where j.phase is distinct from 'waiting for memory') as prepared
            from tensile.jobs as j where j.state = 'starting' and j.worker_id is not null
           group by j.owner_oid, j.worker_id) as e
    join tensile.workers as w on w.worker_id = e.worker_id
   group by e.owner_oid
  having bool_and(e.prepared >= w.entering or e.jobs >= greatest(w.entering, w.slots / 2))
     and count(*) = (select v.alive from tensile.intake() as v)
$$;
comment on function tensile.owners_entering() is
  'returns the owners for whom all live controllers already prepare as many jobs as they may at once, or let as many '
  'prepared ones wait for the device, with the number of these jobs and the most that a controller prepares; only owners '
  'whose jobs the caller may see';

revoke execute on function tensile.intake(), tensile.owners_entering() from public;
grant execute on function tensile.intake(), tensile.owners_entering()
  to tensile_user, tensile_monitor, tensile_worker;

create view tensile.stat_queue with (security_invoker) as
select q.place as position, j.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner,
       j.priority, j.state, j.phase,
       case when j.installation <> (select tensile.installation())
              then 'nothing: it came with a copy of another database, and no controller of this database claims it'
            when j.pause_requested then format('its resumption: select tensile_resume(%s);', j.job_id)
            when j.awaits_jobs and j.search_id = j.job_id
              then coalesce(tensile.awaited_words(j.job_id), 'a controller to begin with its trials')
            when j.awaits_jobs then coalesce(tensile.awaited_words(j.job_id),
                                             format('search %s to decide whether it trains further', j.search_id))
            when j.phase::text = 'parked'
              then coalesce(nullif(j.waits_for, ''), 'its turn: its state is in host memory while other jobs train')
            when j.state = 'queued' and j.not_before > now()
              then concat_ws('; ', nullif(j.waits_for, ''), format('not before %s', j.not_before))
            when j.waits_for <> '' then j.waits_for
            when j.state <> 'queued' then 'memory'
            when intake.alive = 0 then 'a controller: none is alive'
            -- the function takes a millisecond, and thousands of jobs may wait
            when j.devices > 1 and tensile.gang_words(j.job_id, j.devices, j.needs_bytes) is not null
              then tensile.gang_words(j.job_id, j.devices, j.needs_bytes)
            when spent.day_s is not null
              then format('the next day, which begins at %s: its owner has used %s device-seconds today, and its quota is %s '
                          'a day', to_char(tensile.usage_day() + 1, 'YYYY-MM-DD "00:00 UTC"'),
                          round(spent.day_s::numeric, 1), spent.most_s)
            when full_owners.owner_oid is not null
              then format('one of its owner''s jobs to end: at most %s run at once', full_owners.jobs_running)
            when entering.jobs is not null
              then format('one of the %s jobs of its owner that are prepared, or wait for the device, to begin training: a '
                          'controller prepares at most %s jobs of one owner at once', entering.jobs, entering.most)
            else concat_ws('; ', case when q.place + ahead.jobs > 1
                                      then format('its turn: %s before it', q.place - 1 + ahead.jobs) end,
                           case when intake.jobs >= intake.places
                                then format('a place: all %s are taken by jobs', intake.places)
                                when intake.holdup is not null then intake.holdup
                                when q.place + ahead.jobs <= 1
                                then 'a controller to look at the queue: each does so at least every poll_s seconds'
                                end) end as waits_for,
       j.not_before, j.enqueued_at, now() - j.enqueued_at as waiting, j.pause_requested as paused, j.depends_on
  from tensile.jobs as j
  left join tensile.queue_positions(array(select o.job_id from tensile.jobs as o where o.state = 'queued')) as q
    on q.job_id = j.job_id
  left join tensile.owners_entering() as entering on entering.owner_oid = j.owner_oid
  left join tensile.owners_spent() as spent on spent.owner_oid = j.owner_oid
  left join (select o.owner_oid, q.jobs_running
               from unnest((select tensile.owners_at_limit(0))) as o (owner_oid)
              cross join lateral tensile.quota_of(o.owner_oid) as q) as full_owners on full_owners.owner_oid = j.owner_oid
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation())
 cross join tensile.intake() as intake
 cross join (select coalesce(sum(a.waiting), 0) as jobs from tensile.active_jobs() as a) as ahead
 -- A search that has begun waits for nothing. Most jobs belong to no search: their search_id is null.
 where j.state = 'queued' and not (j.search_id is not distinct from j.job_id and j.started_at is not null)
    or j.phase = 'waiting for memory'
    or j.phase::text in ('paused', 'parked')  -- as text: an upgrade that adds these labels cannot use them
 order by j.pause_requested, j.awaits_jobs, q.place nulls first, j.job_id;
comment on view tensile.stat_queue is
  'waiting jobs, in approximately the order in which they will start, with what each waits for; jobs that depend on others '
  'come last, and after them paused jobs';

-- Devices ------------------------------------------------------------------------------------------------------

create view tensile.stat_device with (security_invoker) as
select d.worker_id, w.host, d.kind as device,
       tensile.is_alive(w) as alive,
       coalesce(a.jobs, 0) as jobs, d.capacity_bytes, d.budget_bytes, d.granted_bytes, d.used_bytes,
       round(100.0 * d.used_bytes / nullif(d.budget_bytes, 0), 1) as percent_used,
       d.high_water_bytes, d.host_bytes, d.busy_percent, d.memory_busy_percent, d.outside_bytes, d.updated_at,
       w.device_name
  from tensile.devices as d
  join tensile.workers as w on w.worker_id = d.worker_id
  left join tensile.active_jobs() as a on a.worker_id = d.worker_id;
comment on view tensile.stat_device is 'memory use of each device by the jobs of all users';

create view tensile.stat_device_jobs with (security_invoker) as
select d.worker_id, d.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner, d.granted_bytes, d.used_bytes,
       d.high_water_bytes, d.updated_at
  from tensile.device_jobs as d
  join tensile.jobs as j on j.job_id = d.job_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation())
 where j.state in ('starting', 'running');  -- the row of a job that has ended stays until its controller's next report
comment on view tensile.stat_device_jobs is 'memory use of each device by job';

create view tensile.stat_link with (security_invoker) as
select l.host, l.device_kind as device, l.way, l.beside, l.size_bytes, l.latency_ns / 1e3 as latency_us,
       l.copy_ns / 1e3 as copy_us, round(1e3 * l.size_bytes / l.copy_ns, 1) as mb_per_s,
       round(l.emulated_bytes_per_s / 1e6, 1) as emulated_mb_per_s, l.measured_at
  from tensile.device_links as l;
comment on view tensile.stat_link is
  'speed of copies between devices and their hosts: in each direction, alone and with copies in the other direction, '
  'by size; measured whenever a controller starts. Plans use the rates of the largest copies, the start-up time of the '
  'smallest copies, and the share of its rate that a direction keeps while the other one copies. For an emulated link '
  'whose measured rate is within a tenth of its setting, plans use the setting';

create view tensile.stat_workers with (security_invoker) as
select w.worker_id, w.host, w.pid, w.device, w.version, w.service_name,
       tensile.is_alive(w) as alive,
       coalesce(a.jobs, 0) as jobs, make_interval(secs => w.lease_s) as lease, w.started_at, w.heartbeat_at,
       w.stopped_at, w.device_name, w.service_address
  from tensile.workers as w
  left join tensile.active_jobs() as a on a.worker_id = w.worker_id;
comment on view tensile.stat_workers is 'controllers, running and stopped';

-- Plans and latencies --------------------------------------------------------------------------------------------

create view tensile.stat_plan with (security_invoker) as
select p.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner, p.attempt, p.generation, p.reason, p.policy,
       p.vanilla_peak_bytes, p.liveness_peak_bytes, p.floor_bytes, p.predicted_peak_bytes, p.measured_peak_bytes,
       p.predicted_iteration_ns / 1e6 as predicted_iteration_ms,
       p.measured_iteration_ns / 1e6 as measured_iteration_ms,
       p.predicted_stall_ns / 1e6 as predicted_stall_ms, p.measured_stall_ns / 1e6 as measured_stall_ms,
       p.swaps, p.swapped_bytes, p.recomputed, p.planning_ns / 1e6 as planning_ms, p.created_at, p.adopted_at
  from tensile.plans as p
  join tensile.jobs as j on j.job_id = p.job_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation());
comment on view tensile.stat_plan is
  'memory plans of jobs: the reason for each plan, its predictions and the measurements';

create view tensile.stat_sharing with (security_invoker) as
select s.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner, s.attempt, s.beside,
       s.stp_foretold, s.stp_measured, s.started_at, coalesce(s.ended_at, j.finished_at) as ended_at,
       s.speed_foretold
  from tensile.job_sets as s
  join tensile.jobs as j on j.job_id = s.job_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation());
comment on view tensile.stat_sharing is
  'for each job, the jobs that it runs or ran beside, with the system throughput (STP) foretold and measured: the sum '
  'of the speeds of these jobs relative to alone with all the memory. One job alone, or taking turns, has 1';

create view tensile.stat_latency with (security_invoker) as
select l.device_kind as device, l.name as operator, l.signature, l.samples, l.latency_ns / 1e3 as measured_us,
       l.predicted_ns / 1e3 as predicted_us,
       (l.predicted_ns - l.latency_ns)::double precision / nullif(l.latency_ns, 0) as error,
       l.workspace_bytes, l.updated_at
  from tensile.op_latency as l;
comment on view tensile.stat_latency is
  'measured latencies of operators on each kind of device, and the errors of their predictions';

-- Models ---------------------------------------------------------------------------------------------------------

create view tensile.model_list with (security_invoker) as
select m.name as model, coalesce(r.rolname, m.owner_name) as owner, count(v.version_id) as versions,
       max(v.number) filter (where v.deployed) as deployed,
       coalesce(max(v.task) filter (where v.deployed), max(v.task)) as task,
       coalesce(max(v.target) filter (where v.deployed), max(v.target)) as target,
       max(v.metric_name) filter (where v.deployed) as metric_name,
       max(v.metric) filter (where v.deployed) as metric,
       max(v.parameters) filter (where v.deployed) as parameters,
       m.created_at, max(v.created_at) as trained_at,
       max((f.figure -> 'metrics' ->> v.metric_name)::double precision) filter (where v.deployed) as baseline
  from tensile.models as m
  left join tensile.model_versions as v on v.model_id = m.model_id
  left join tensile.version_figures as f on f.version_id = v.version_id and f.name = 'baseline'
  left join pg_catalog.pg_roles as r on r.oid = m.owner_oid and m.installation = (select tensile.installation())
 where m.dropped_at is null
 group by m.model_id, r.rolname
having m.definition is not null or m.last_spec is not null or count(v.version_id) > 0;  -- without reserved names
comment on view tensile.model_list is 'models that the current role owns or may predict with';

-- Columns --------------------------------------------------------------------------------------------------------

comment on column tensile.stat_progress_predict.job_id is 'number of the job';
comment on column tensile.stat_progress_predict.model is 'model that predicts';
comment on column tensile.stat_progress_predict.owner is 'owner of the job';
comment on column tensile.stat_progress_predict.state is 'starting or running';
comment on column tensile.stat_progress_predict.phase is 'current activity of the job';
comment on column tensile.stat_progress_predict.relation is 'relation whose rows are predicted';
comment on column tensile.stat_progress_predict.output is 'view that will show the answers';
comment on column tensile.stat_progress_predict.rows_predicted is 'rows predicted so far';
comment on column tensile.stat_progress_predict.rows_expected is
  'rows of the relation by PostgreSQL''s statistics; null if they are not known';
comment on column tensile.stat_progress_predict.percent is 'share of the expected rows that is predicted';
comment on column tensile.stat_progress_predict.rows_per_s is 'rows predicted per second';
comment on column tensile.stat_progress_predict.eta is 'expected end; null if the number of rows is not known';
comment on column tensile.stat_progress_predict.worker_id is 'worker that runs the job';
comment on column tensile.stat_progress_predict.updated_at is 'time of the last report';
comment on column tensile.stat_progress_train.job_id is 'number of the job';
comment on column tensile.stat_progress_train.model is 'model that the job trains';
comment on column tensile.stat_progress_train.owner is 'owner of the job';
comment on column tensile.stat_progress_train.state is 'starting or running';
comment on column tensile.stat_progress_train.phase is 'current activity of the job';
comment on column tensile.stat_progress_train.epoch is 'current epoch, from 1';
comment on column tensile.stat_progress_train.epochs is 'largest number of epochs to train';
comment on column tensile.stat_progress_train.step is 'steps completed in the current epoch';
comment on column tensile.stat_progress_train.steps is 'steps of one epoch';
comment on column tensile.stat_progress_train.percent is
  'percentage of all epochs that is done; early stopping may end the job sooner';
comment on column tensile.stat_progress_train.loss is 'mean training loss of the current epoch so far';
comment on column tensile.stat_progress_train.valid_loss is 'loss on the validation rows after the last complete epoch';
comment on column tensile.stat_progress_train.metric_name is 'name of the metric in column metric';
comment on column tensile.stat_progress_train.metric is
  'value of the metric on the validation rows after the last complete epoch';
comment on column tensile.stat_progress_train.samples_per_s is 'rows trained per second';
comment on column tensile.stat_progress_train.eta is
  'expected time of the job''s end, including publication, if it trains all epochs';
comment on column tensile.stat_progress_train.eta_earliest is
  'expected time of the job''s end if no later epoch is better and early stopping ends it; null without early stopping';
comment on column tensile.stat_progress_train.used_bytes is 'device memory that the job uses now';
comment on column tensile.stat_progress_train.granted_bytes is 'device memory that the job may use';
comment on column tensile.stat_progress_train.device_budget_bytes is 'device memory that all jobs may use together';
comment on column tensile.stat_progress_train.worker_id is 'worker that trains the job';
comment on column tensile.stat_progress_train.updated_at is 'time when the progress was last written';
comment on column tensile.stat_jobs.job_id is 'number of the job';
comment on column tensile.stat_jobs.model is 'model that the job trains';
comment on column tensile.stat_jobs.owner is 'owner of the job';
comment on column tensile.stat_jobs.relation is 'table that the job trains on, or "query"';
comment on column tensile.stat_jobs.state is
  'state of the job: queued, starting, running, succeeded, failed or cancelled';
comment on column tensile.stat_jobs.phase is 'current activity of a starting or running job';
comment on column tensile.stat_jobs.priority is 'among the jobs of one owner, those of higher priority start first';
comment on column tensile.stat_jobs.attempt is 'how often the job was claimed';
comment on column tensile.stat_jobs.faults is 'attempts since the last checkpoint that ended by the job''s own fault';
comment on column tensile.stat_jobs.interruptions is
  'attempts since the last checkpoint that were interrupted without a fault of the job';
comment on column tensile.stat_jobs.threads is
  'threads of the job''s operators, kept from the first start on: another number changes the last bits of the results';
comment on column tensile.stat_jobs.enqueued_at is 'time when the job was enqueued';
comment on column tensile.stat_jobs.started_at is 'time of the first claim';
comment on column tensile.stat_jobs.finished_at is 'time when the job succeeded, failed or was cancelled';
comment on column tensile.stat_jobs.duration is 'time from the start to the end, or until now';
comment on column tensile.stat_jobs.cancel_requested is 'true if the job is to be stopped';
comment on column tensile.stat_jobs.version is 'number of the version that the job published';
comment on column tensile.stat_jobs.metric_name is 'name of the metric that compares versions';
comment on column tensile.stat_jobs.metric is 'value of that metric on the held-out rows';
comment on column tensile.stat_jobs.not_deployed is
  'why that version was not deployed at its publication; null if it was deployed';
comment on column tensile.stat_jobs.error_sqlstate is 'SQLSTATE of the last error';
comment on column tensile.stat_jobs.error_message is 'message of the last error';
comment on column tensile.stat_jobs.error_detail is 'detail of the last error';
comment on column tensile.stat_jobs.error_hint is 'hint of the last error: what to do';
comment on column tensile.stat_queue.position is
  'place among the queued jobs of all users if no job ended until then: owners take turns by their use and weight; null '
  'for a job that a worker has claimed, that is paused, or that waits for other jobs';
comment on column tensile.stat_queue.job_id is 'number of the job';
comment on column tensile.stat_queue.model is 'model that the job trains';
comment on column tensile.stat_queue.owner is 'owner of the job';
comment on column tensile.stat_queue.priority is 'among the jobs of one owner, those of higher priority start first';
comment on column tensile.stat_queue.state is 'queued, starting or running';
comment on column tensile.stat_queue.phase is
  'for a job that a worker has claimed: waiting for memory, paused or parked';
comment on column tensile.stat_queue.depends_on is 'jobs that must succeed before this one starts';
comment on column tensile.stat_jobs.depends_on is 'jobs that had to succeed before this one started';
comment on column tensile.stat_jobs.retry_of is 'job whose request this one repeats: see tensile_retry';
comment on column tensile.stat_jobs.search_id is
  'search that the job is a trial of; the job''s own number for a search, which runs from its first trial on';
comment on column tensile.stat_queue.paused is 'true if the job waits for tensile_resume';
comment on column tensile.stat_queue.waits_for is 'what the job waits for, in words';
comment on column tensile.stat_queue.not_before is 'earliest time of the start';
comment on column tensile.stat_queue.enqueued_at is 'time when the job was enqueued';
comment on column tensile.stat_queue.waiting is 'time since the job was enqueued';
comment on column tensile.stat_progress_train.paused is
  'true if the job is to be paused; once it has left the device, its phase is paused';
comment on column tensile.stat_jobs.worker_id is 'worker that has the job; null if none has';
comment on column tensile.stat_jobs.host is 'host of that worker';
comment on column tensile.stat_jobs.device_name is
  'device of that worker among those of its host: cpu, cuda:1, emulated, or emulated:1';
comment on column tensile.stat_progress_train.host is 'host of the worker';
comment on column tensile.stat_progress_train.device_name is
  'device of the worker among those of its host: cpu, cuda:1, emulated, or emulated:1';
comment on column tensile.stat_jobs.paused is 'true if the job must not train until tensile_resume';
comment on column tensile.stat_device.worker_id is 'worker of the device';
comment on column tensile.stat_device.host is 'host of the device';
comment on column tensile.stat_device.device is 'kind of the device';
comment on column tensile.stat_device.alive is 'true if the worker has sent a heartbeat within its lease';
comment on column tensile.stat_device.jobs is 'active jobs of all users on the worker';
comment on column tensile.stat_device.capacity_bytes is 'memory of the device';
comment on column tensile.stat_device.budget_bytes is 'memory that jobs may use together';
comment on column tensile.stat_device.granted_bytes is 'sum of the grants of all jobs';
comment on column tensile.stat_device.used_bytes is 'memory that all jobs use now';
comment on column tensile.stat_device.percent_used is 'used memory as a percentage of the budget';
comment on column tensile.stat_device.high_water_bytes is 'largest memory use of all jobs at one time';
comment on column tensile.stat_device.host_bytes is 'pinned host memory of the jobs; at most host_pool_bytes';
comment on column tensile.stat_device.busy_percent is
  'percentage of time in which the GPU computed, according to its driver';
comment on column tensile.stat_device.memory_busy_percent is
  'percentage of time in which the GPU''s memory was read or written, according to its driver';
comment on column tensile.stat_device.outside_bytes is 'memory in use on the device outside the memory that jobs share';
comment on column tensile.stat_device.updated_at is 'time when the row was last written';
comment on column tensile.stat_device.device_name is
  'the device among those of its host: cpu, cuda:1, emulated, or emulated:1';
comment on column tensile.stat_device_jobs.worker_id is 'worker of the device';
comment on column tensile.stat_device_jobs.job_id is 'number of the job';
comment on column tensile.stat_device_jobs.model is 'model that the job trains';
comment on column tensile.stat_device_jobs.owner is 'owner of the job';
comment on column tensile.stat_device_jobs.granted_bytes is 'most device memory that the job may use';
comment on column tensile.stat_device_jobs.used_bytes is 'device memory that the job uses now';
comment on column tensile.stat_device_jobs.high_water_bytes is
  'largest device memory that the job has used at one time';
comment on column tensile.stat_device_jobs.updated_at is 'time when the row was last written';
comment on column tensile.stat_link.host is 'host of the device';
comment on column tensile.stat_link.device is 'kind of the device';
comment on column tensile.stat_link.way is 'out: from the device to its host; in: from the host to the device';
comment on column tensile.stat_link.beside is 'true if the link copied as much in the other direction at the same time';
comment on column tensile.stat_link.size_bytes is 'size of each copy';
comment on column tensile.stat_link.latency_us is 'time of one copy on an idle link, until the host knows of its end';
comment on column tensile.stat_link.copy_us is 'time that each of several consecutive copies adds';
comment on column tensile.stat_link.mb_per_s is
  'rate of consecutive copies of this size, in units of 10^6 bytes per second';
comment on column tensile.stat_link.emulated_mb_per_s is 'rate that an emulated link is set to; null for a real link';
comment on column tensile.stat_link.measured_at is 'time of the measurement';
comment on column tensile.stat_workers.worker_id is 'number of the worker';
comment on column tensile.stat_workers.host is 'host that the controller runs on';
comment on column tensile.stat_workers.pid is 'process id of the controller';
comment on column tensile.stat_workers.device is 'kind of the worker''s device';
comment on column tensile.stat_workers.version is 'version of the worker''s package';
comment on column tensile.stat_workers.service_name is 'name of the service''s socket; null while no service answers';
comment on column tensile.stat_workers.alive is 'true if the worker has sent a heartbeat within its lease';
comment on column tensile.stat_workers.jobs is 'active jobs of all users on the worker';
comment on column tensile.stat_workers.lease is 'time without a heartbeat after which other workers take over the jobs';
comment on column tensile.stat_workers.started_at is 'time of registration';
comment on column tensile.stat_workers.heartbeat_at is 'time of the last heartbeat';
comment on column tensile.stat_workers.stopped_at is 'time when the worker left or was declared dead';
comment on column tensile.stat_workers.device_name is
  'its device among those of its host: cpu, cuda:1, emulated, or emulated:1';
comment on column tensile.stat_workers.service_address is
  'IP address and port at which the service answers other hosts by TLS; null while none does';
comment on column tensile.stat_sharing.job_id is 'number of the job';
comment on column tensile.stat_sharing.model is 'model that the job trains';
comment on column tensile.stat_sharing.owner is 'owner of the job';
comment on column tensile.stat_sharing.attempt is 'attempt of the job';
comment on column tensile.stat_sharing.beside is
  'numbers of the other jobs that run on the device; empty if the job runs alone';
comment on column tensile.stat_sharing.stp_foretold is
  'system throughput that was foretold when the job came to run beside these jobs';
comment on column tensile.stat_sharing.stp_measured is
  'system throughput that was measured, as an average in which later measurements weigh more';
comment on column tensile.stat_sharing.started_at is
  'time when the other jobs became these, or another number of jobs was prepared beside them';
comment on column tensile.stat_sharing.ended_at is 'time when the other jobs changed or the job ended';
comment on column tensile.stat_sharing.speed_foretold is
  'speed that was foretold for this job, relative to alone with all the memory: its part of stp_foretold';
comment on column tensile.stat_plan.job_id is 'number of the job';
comment on column tensile.stat_plan.model is 'model that the job trains';
comment on column tensile.stat_plan.owner is 'owner of the job';
comment on column tensile.stat_plan.attempt is 'attempt of the job that the plan was made for';
comment on column tensile.stat_plan.generation is 'number of the plan within the attempt';
comment on column tensile.stat_plan.reason is 'reason for planning: start, another job''s start or end, parking, drift or memory';
comment on column tensile.stat_plan.policy is 'policy that made the plan';
comment on column tensile.stat_plan.vanilla_peak_bytes is
  'peak if no tensor were freed before the end of the iteration';
comment on column tensile.stat_plan.liveness_peak_bytes is 'peak if every tensor were freed after its last access';
comment on column tensile.stat_plan.floor_bytes is 'least peak that any plan could have';
comment on column tensile.stat_plan.predicted_peak_bytes is 'peak of the plan, by simulation';
comment on column tensile.stat_plan.measured_peak_bytes is 'peak on the device';
comment on column tensile.stat_plan.predicted_iteration_ms is 'time of one iteration, by simulation';
comment on column tensile.stat_plan.measured_iteration_ms is
  'measured time of one iteration, as an average in which later iterations weigh more';
comment on column tensile.stat_plan.predicted_stall_ms is
  'part of the iteration time spent waiting for copies, by simulation';
comment on column tensile.stat_plan.measured_stall_ms is
  'part of the iteration time spent waiting for copies, measured';
comment on column tensile.stat_plan.swaps is 'tensors that are swapped out in each iteration';
comment on column tensile.stat_plan.swapped_bytes is 'total size of these tensors';
comment on column tensile.stat_plan.recomputed is 'operators that run again in each iteration';
comment on column tensile.stat_plan.planning_ms is 'time that planning took';
comment on column tensile.stat_plan.created_at is 'time when the plan was made';
comment on column tensile.stat_plan.adopted_at is 'time when the trainer began to follow the plan';
comment on column tensile.stat_latency.device is 'kind of the device';
comment on column tensile.stat_latency.operator is 'name of the operator';
comment on column tensile.stat_latency.signature is 'digest of the operator''s kind, shapes and types';
comment on column tensile.stat_latency.samples is 'number of measurements in the average';
comment on column tensile.stat_latency.measured_us is
  'latency of the operator, as a moving average of the measurements';
comment on column tensile.stat_latency.predicted_us is 'latency that was predicted before the first measurement';
comment on column tensile.stat_latency.error is
  'error of the prediction relative to the measured latency; positive if the prediction was too long';
comment on column tensile.stat_latency.workspace_bytes is
  'largest memory that the operator used in addition to its outputs';
comment on column tensile.stat_latency.updated_at is 'time of the last measurement';
comment on column tensile.model_list.model is 'name of the model';
comment on column tensile.model_list.owner is 'owner of the model';
comment on column tensile.model_list.versions is 'number of versions';
comment on column tensile.model_list.deployed is 'number of the version that predicts';
comment on column tensile.model_list.task is 'classification or regression';
comment on column tensile.model_list.baseline is
  'metric of gradient boosting on the rows of the deployed version; null if it is not computed';
comment on column tensile.model_list.target is 'column that the model predicts';
comment on column tensile.model_list.metric_name is 'name of the metric of the deployed version';
comment on column tensile.model_list.metric is 'value of that metric on the held-out rows';
comment on column tensile.model_list.parameters is 'count of trained parameters of the deployed version';
comment on column tensile.model_list.created_at is 'time of the model''s creation';
comment on column tensile.model_list.trained_at is 'time when the last version was published';

grant select on tensile.stat_progress_train, tensile.stat_progress_predict, tensile.stat_jobs, tensile.stat_queue, tensile.stat_device,
  tensile.stat_device_jobs, tensile.stat_link, tensile.stat_workers, tensile.stat_plan, tensile.stat_sharing, tensile.stat_latency,
  tensile.model_list
  to tensile_user, tensile_monitor, tensile_worker;
