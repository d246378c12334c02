-- Compares plans with measurements, for the plans that the three jobs followed beside others.
create temporary table followed as
with three as (
  select job_id from tensile.stat_jobs
   where state = 'succeeded' and model in ('digits', 'breast_cancer', 'diabetes')
   order by job_id desc limit 3
)
select p.*, p.measured_iteration_ms / p.predicted_iteration_ms as ratio,
       exists (select from tensile.stat_sharing as s
                where s.job_id = p.job_id and s.beside <> '{}' and s.started_at <= p.adopted_at
                  and coalesce(s.ended_at, 'infinity') > p.adopted_at) as shared
  from tensile.stat_plan as p join three using (job_id)
 where p.adopted_at is not null;
create temporary table side_by_side as
select distinct on (model) * from followed
 order by model, shared desc, measured_iteration_ms is null, generation desc;

\echo 'who ran beside whom: STP is the sum of the jobs'' speeds relative to alone, and turns have 1'
select s.model, s.job_id as job, coalesce(array_to_string(s.beside, ', '), '') as beside,
       round(extract(epoch from s.ended_at - s.started_at), 1) as seconds,
       round(s.stp_foretold::numeric, 2) as stp_foretold, round(s.stp_measured::numeric, 2) as stp_measured
  from tensile.stat_sharing as s
 where s.job_id in (select job_id from side_by_side)
 order by s.started_at, s.job_id;

\echo 'memory of one iteration: vanilla frees nothing, liveness frees after the last use, as eager PyTorch does'
select model, job_id as job, pg_size_pretty(vanilla_peak_bytes) as vanilla,
       pg_size_pretty(liveness_peak_bytes) as liveness, pg_size_pretty(floor_bytes) as floor,
       pg_size_pretty(predicted_peak_bytes) as planned, pg_size_pretty(measured_peak_bytes) as measured,
       swaps, pg_size_pretty(swapped_bytes) as moved, recomputed
  from side_by_side order by model;
select pg_size_pretty(sum(liveness_peak_bytes)) as "three by liveness",
       (select pg_size_pretty(budget_bytes) from tensile.stat_device where alive) as budget,
       (select pg_size_pretty(high_water_bytes) from tensile.stat_device where alive) as "most in use at once",
       (select high_water_bytes <= budget_bytes from tensile.stat_device where alive) as "within budget"
  from side_by_side;

\echo 'time of one iteration, while trainings share the processor and the link'
select model, generation as plan, reason as because, round(predicted_iteration_ms::numeric, 1) as planned_ms,
       round(measured_iteration_ms::numeric, 1) as measured_ms,
       round(ratio::numeric, 2) as ratio,
       round(predicted_stall_ms::numeric, 1) as planned_stall_ms,
       round(measured_stall_ms::numeric, 1) as measured_stall_ms
  from side_by_side order by model;
select count(ratio) as "plans side by side, changed as jobs came and were measured",
       round((percentile_cont(0.5) within group (order by ratio))::numeric, 2) as "median ratio"
  from followed;

\echo 'how good the models are, on rows that they never saw'
select model, task, metric_name, round(metric::numeric, 4) as metric, versions, deployed as deployed_version
  from tensile.model_list
 order by model;
