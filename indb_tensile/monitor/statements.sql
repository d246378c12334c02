-- The statements of the page in a browser and of `tensile top`. They run with search_path pinned to pg_catalog, as the viewer's own role.

-- devices --
select d.worker_id, d.host, d.device, d.device_name, d.alive, d.jobs, d.capacity_bytes, d.budget_bytes, d.granted_bytes, d.used_bytes,
       d.high_water_bytes, d.host_bytes, d.busy_percent, d.memory_busy_percent, d.outside_bytes,
       extract(epoch from now() - d.updated_at)::double precision as age_s, l.mb_per_s as link_mb_per_s
  from tensile.stat_device as d
  left join lateral (select k.mb_per_s::double precision as mb_per_s from tensile.stat_link as k
                      where k.host = d.host and k.device = d.device and not k.beside
                      order by k.size_bytes desc, k.mb_per_s limit 1) as l on true
 where d.alive or d.updated_at > now() - interval '1 hour'
 order by d.alive desc, d.worker_id desc
 limit 64;

-- device_jobs --
-- The parts of the jobs that the viewer may see; what is missing of a device's total belongs to other owners.
select u.worker_id, u.job_id, u.model, u.owner, u.granted_bytes, u.used_bytes, u.high_water_bytes,
       j.priority, j.paused, coalesce(p.phase, j.phase) as phase, p.epoch, p.epochs, p.step, p.steps, p.percent::double precision as percent, p.loss, p.valid_loss,
       p.metric_name, p.metric, p.samples_per_s, extract(epoch from p.eta - now())::double precision as eta_s,
       n.predicted_peak_bytes, n.predicted_iteration_ms::double precision as predicted_iteration_ms,
       n.measured_iteration_ms::double precision as measured_iteration_ms,
       n.measured_stall_ms::double precision as measured_stall_ms,
       n.swapped_bytes, n.recomputed, n.reason, n.generation
  from tensile.stat_device_jobs as u
  join tensile.stat_jobs as j on j.job_id = u.job_id
  left join tensile.stat_progress_train as p on p.job_id = u.job_id
  left join lateral (select * from tensile.stat_plan as q
                      where q.job_id = u.job_id and q.adopted_at is not null
                      order by q.attempt desc, q.generation desc limit 1) as n on true
 order by u.worker_id, u.job_id;

-- sets --
select t.jobs, max(t.stp_foretold) as foretold, max(t.stp_measured) as measured,
       min(extract(epoch from now() - t.started_at))::double precision as age_s
  from (select array(select unnest(s.beside || s.job_id) order by 1) as jobs, s.stp_foretold, s.stp_measured,
               s.started_at
          from tensile.stat_sharing as s
         where s.ended_at is null and cardinality(s.beside) > 0) as t
 group by t.jobs order by t.jobs;

-- queue --
select q.position, q.job_id, q.model, q.owner, q.priority, q.state, q.phase, q.waits_for, q.paused,
       extract(epoch from q.waiting)::double precision as waiting_s
  from tensile.stat_queue as q
 order by q.paused, (q.state = 'queued'), q.position nulls last, q.job_id
 limit 51;

-- queue_length --
select count(*) from tensile.stat_queue;

-- history --
-- At most `points` rows: of each span of time the row with the most memory in use, because peaks are looked for.
with wanted as (
  select h.*, floor(extract(epoch from h.at) / %(span_s)s) as bucket
    from tensile.device_samples as h
   where h.worker_id = %(worker)s and h.at > now() - make_interval(secs => %(age_s)s)
)
select distinct on (w.bucket)
       extract(epoch from w.at)::double precision as at, w.budget_bytes, w.granted_bytes, w.used_bytes, w.host_bytes,
       w.busy_percent, j.jobs, j.used, j.copied
  from wanted as w
  left join lateral (select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.used_bytes order by s.job_id) as used,
                            sum(s.copied_bytes_per_s)::double precision as copied
                       from tensile.device_job_samples as s
                      where s.worker_id = w.worker_id and s.at = w.at) as j on true
 order by w.bucket, w.used_bytes desc, w.at;

-- job --
select j.job_id, j.model, j.owner, j.relation, j.state, j.phase, j.priority, j.attempt, j.enqueued_at, j.started_at,
       j.finished_at, extract(epoch from j.duration)::double precision as duration_s, j.cancel_requested, j.version,
       j.metric_name, j.metric, j.error_sqlstate, j.error_message, j.error_detail, j.error_hint, j.faults,
       j.interruptions, j.not_deployed, j.threads, j.paused, j.depends_on, j.retry_of, j.search_id, j.host, j.device_name,
       q.waits_for, q.position, p.epoch, p.epochs, p.step, p.steps, p.percent::double precision as percent, p.loss,
       p.valid_loss, p.samples_per_s, extract(epoch from p.eta - now())::double precision as eta_s, p.worker_id,
       p.used_bytes, p.granted_bytes, p.device_budget_bytes, w.rows_predicted, w.rows_expected, w.rows_per_s
  from tensile.stat_jobs as j
  left join tensile.stat_queue as q on q.job_id = j.job_id
  left join tensile.stat_progress_train as p on p.job_id = j.job_id
  left join tensile.stat_progress_predict as w on w.job_id = j.job_id
 where j.job_id = %(job)s;

-- epochs --
-- The newest epochs, at most `most`; null: all.
select e.epoch, e.loss, e.valid_loss, e.learning_rate, e.metrics
  from (select m.epoch, max(m.value) filter (where m.name = 'loss') as loss,
               max(m.value) filter (where m.name = 'valid_loss') as valid_loss,
               max(m.value) filter (where m.name = 'learning_rate') as learning_rate,
               coalesce(jsonb_object_agg(m.name, m.value)
                          filter (where m.name not in ('loss', 'valid_loss', 'learning_rate')), '{}') as metrics
          from tensile.metrics as m
         where m.job_id = %(job)s
         group by m.epoch order by m.epoch desc limit %(most)s) as e
 order by e.epoch;

-- plans --
select p.attempt, p.generation, p.reason, p.policy, p.vanilla_peak_bytes, p.liveness_peak_bytes, p.floor_bytes,
       p.predicted_peak_bytes, p.measured_peak_bytes, p.predicted_iteration_ms::double precision as predicted_iteration_ms,
       p.measured_iteration_ms::double precision as measured_iteration_ms,
       p.predicted_stall_ms::double precision as predicted_stall_ms,
       p.measured_stall_ms::double precision as measured_stall_ms, p.swaps, p.swapped_bytes, p.recomputed,
       p.planning_ms::double precision as planning_ms, p.created_at, p.adopted_at
  from tensile.stat_plan as p
 where p.job_id = %(job)s
 order by p.attempt desc, p.generation desc limit 100;

-- sharing --
select s.beside, s.stp_foretold, s.stp_measured, s.started_at, s.ended_at
  from tensile.stat_sharing as s
 where s.job_id = %(job)s
 order by s.started_at desc limit 50;

-- events --
select e.event_id, e.at, e.kind, e.detail from tensile.job_events as e
 where e.job_id = %(job)s
 order by e.event_id desc limit 200;

-- job_memory --
with wanted as (
  select s.at, s.granted_bytes, s.used_bytes, s.copied_bytes_per_s,
         width_bucket(extract(epoch from s.at), b.low, b.high + 1, 600) as bucket
    from tensile.device_job_samples as s
    cross join (select min(extract(epoch from t.at)) as low, max(extract(epoch from t.at)) as high
                  from tensile.device_job_samples as t where t.job_id = %(job)s) as b
   where s.job_id = %(job)s
)
select distinct on (w.bucket) extract(epoch from w.at)::double precision as at, w.granted_bytes, w.used_bytes,
       w.copied_bytes_per_s
  from wanted as w
 order by w.bucket, w.used_bytes desc, w.at;

-- data_report --
-- Returns no rows for a job of another role; only monitors see such jobs.
select f.section, f.subject, f.fact, f.value, f.warning
  from tensile.data_reports as r,
       rows from (jsonb_to_recordset(r.report)
                    as (section text, subject text, fact text, value text, warning text)) with ordinality
         as f (section, subject, fact, value, warning, place)
 where r.job_id = %(job)s
 order by f.place;

-- model --
select m.model, m.owner, m.versions, m.deployed, m.task, m.target, m.metric_name, m.metric, m.baseline, m.parameters,
       m.created_at, m.trained_at
  from tensile.model_list as m
 where m.model = %(model)s;

-- versions --
select v.version, v.deployed, v.task, v.target, v.architecture, v.metric_name, v.metric, v.parameters, v.weights_bytes,
       v.relation, v.job, v.trained_at, v.hyperparams, v.features, v.rows, v.split, v.settings, v.baseline,
       v.baseline_metrics
  from public.tensile_training_info(%(model)s) as v
 limit 200;

-- version_metrics --
select v.number as version, v.metrics, v.higher_is_better
  from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
 where m.name = %(model)s and m.dropped_at is null
 order by v.number desc limit 200;

-- deployments --
select h.deployed_at, h.deployed_by, h.from_version, h.to_version, h.job_id, h.reason
  from tensile.deployment_history as h
 where h.model = %(model)s
 order by h.deployed_at desc limit 50;

-- confusion --
select f.actual, f.predicted, f.rows from public.tensile_confusion_matrix(%(model)s, version => %(version)s) as f
 limit 10000;

-- roc --
select f.class, f.threshold, f.true_positive_rate, f.false_positive_rate
  from public.tensile_roc_curve(%(model)s, version => %(version)s) as f
 limit 20000;

-- calibration --
select f.bin, f.mean_predicted, f.observed_share, f.rows
  from public.tensile_calibration(%(model)s, version => %(version)s) as f;

-- importance --
select f.feature, f.importance, f.deviation, f.metric
  from public.tensile_feature_importance(%(model)s, version => %(version)s) as f
 order by f.importance desc nulls last, f.feature limit 500;

-- drift --
select d.feature, d.measure, d.psi, d.reading, d.predicted_rows, d.training_rows, d.first_day, d.bins, d.reason
  from tensile.stat_drift as d
 where d.model = %(model)s
   and case when %(version)s::integer is null then d.deployed else d.version = %(version)s::integer end
 order by d.psi desc nulls last, d.feature limit 500;

-- quotas --
select q.role, q.jobs_running, q.most_jobs_running, q.jobs_queued, q.most_jobs_queued, q.bytes, q.most_bytes,
       q.highest_priority, q.device_seconds_today, q.most_device_seconds, q.weight
  from tensile.stat_quotas as q
 order by q.role limit 500;

-- workers --
select w.worker_id, w.host, w.device, w.device_name, w.version, w.alive, w.jobs, w.started_at, w.heartbeat_at, w.stopped_at
  from tensile.stat_workers as w
 order by w.worker_id desc limit 50;

-- cancel --
select public.tensile_cancel(%(job)s::pg_catalog.int8);

-- pause --
select public.tensile_pause(%(job)s::pg_catalog.int8);

-- resume --
select public.tensile_resume(%(job)s::pg_catalog.int8);

-- retry --
-- Runs with the caller's search_path, since it resolves names that the caller typed in an earlier request.
select public.tensile_retry(%(job)s::pg_catalog.int8);

-- set_priority --
select public.tensile_set_priority(%(job)s::pg_catalog.int8, %(priority)s::pg_catalog.int4);

-- deploy --
select public.tensile_deploy(%(model)s::text, %(version)s::integer, %(reason)s::text);

-- rollback --
select public.tensile_rollback(%(model)s::text, %(reason)s::text);

-- metric_devices --
select w.worker_id::text as worker, w.host, w.device, w.alive, d.capacity_bytes, d.budget_bytes, d.granted_bytes,
       d.used_bytes, d.host_bytes, d.outside_bytes, d.busy_percent, l.copied
  from tensile.stat_workers as w
  join tensile.stat_device as d on d.worker_id = w.worker_id
  left join lateral (select sum(s.copied_bytes_per_s)::double precision as copied from tensile.device_job_samples as s
                      where s.worker_id = w.worker_id
                        and s.at = (select max(t.at) from tensile.device_samples as t
                                     where t.worker_id = w.worker_id and t.at > now() - interval '10 seconds')) as l on true
 where w.stopped_at is null
 order by w.worker_id;

-- metric_jobs --
select j.state::text as state, count(*) as jobs from tensile.jobs as j group by j.state;

-- metric_ended --
-- Ended jobs with those that are deleted since, so that the numbers never fall.
select t.state::text as state, sum(t.jobs)::bigint as jobs
  from (select j.state, count(*) as jobs from tensile.jobs as j where j.finished_at is not null group by j.state
        union all
        select d.state, d.jobs from tensile.deleted_jobs as d) as t
 group by t.state;

-- metric_phases --
select coalesce(j.phase::text, 'none') as phase, count(*) as jobs from tensile.jobs as j
 where j.state in ('starting', 'running') group by 1;

-- metric_queue --
select coalesce(max(extract(epoch from now() - j.enqueued_at)), 0)::double precision as oldest_s
  from tensile.jobs as j
 where j.state = 'queued' and not j.pause_requested and not j.awaits_jobs
   and (j.not_before is null or j.not_before <= now());

-- metric_sharing --
select avg(s.stp_foretold) as foretold, avg(s.stp_measured) as measured
  from tensile.stat_sharing as s
 where s.ended_at is null and cardinality(s.beside) > 0;

-- metric_usage --
-- With the use that is older than the setting retain_usage, so that the numbers never fall.
select coalesce(sum(u.device_s), 0)::double precision as device_s,
       coalesce(sum(u.byte_s), 0)::double precision as byte_s,
       coalesce(sum(u.running_s), 0)::double precision as running_s
  from (select k.device_s, k.byte_s, k.running_s from tensile.usage as k
        union all
        select d.device_s, d.byte_s, d.running_s from tensile.deleted_usage as d) as u;

-- metric_totals --
-- Only monitors see what all users do together. A counter to which nothing was added yet is 0.
select n.name, n.label, coalesce(t.value, 0) as value
  from (select a.name, l.label
          from (values ('swapped_bytes', array['out', 'in']), ('stall_s', array['copies', 'turns']),
                       ('interruptions', array['job', 'other']), ('predicted_rows', array['']),
                       ('prediction_faults', array['']), ('prediction_s', array[''])) as a (name, labels)
         cross join unnest(a.labels) as l (label)
        union
        select t.name, t.label from tensile.totals as t) as n
  left join tensile.totals as t on t.name = n.name and t.label = n.label
 where pg_has_role('tensile_monitor', 'usage')
 order by n.name, n.label;

-- metric_models --
select count(*) as models, coalesce(sum(m.versions), 0)::bigint as versions from tensile.model_list as m;

-- request --
select j.spec from tensile.jobs as j where j.job_id = %(job)s;

-- settings --
select s.name, s.value, s.default_value, s.changed_at from tensile.setting_list as s order by s.name;

-- server_versions --
select public.tensile_version() as catalog, current_setting('server_version') as postgresql;

-- ask_trace --
select public.tensile_trace(%(job)s, %(iterations)s, %(seconds)s, %(starts_in)s);

-- own_device_jobs --
select d.job_id, d.worker_id, w.host, w.device
  from tensile.device_jobs as d
  join tensile.jobs as j on j.job_id = d.job_id
  join tensile.workers as w on w.worker_id = d.worker_id
 where j.owner_oid = (select tensile.current_role_oid()) and j.installation = (select tensile.installation())
   and j.state in ('starting', 'running') and not j.spec ? 'predict'
   and coalesce(j.spec #>> '{architecture,type}', '') not in ('boosting', 'linear')
 order by d.worker_id, d.job_id;

-- trace_state --
select j.state, j.phase, j.pause_requested as paused,
       exists (select from tensile.traces as t
                where t.job_id = j.job_id and t.recorded_at >= %(requested_at)s and t.recording is not null) as recorded
  from tensile.jobs as j
 where j.job_id = %(job)s;

-- trace_recording --
select t.recording from tensile.traces as t where t.job_id = %(job)s and t.recording is not null;

-- request_trace --
select public.tensile_trace(%(job)s::bigint);

-- picture_subject --
select j.model_name as model,
       (select d.granted_bytes from tensile.device_jobs as d where d.job_id = j.job_id) as granted_bytes
  from tensile.jobs as j
 where j.job_id = %(job)s;
