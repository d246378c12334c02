-- The last plan of each of the three jobs that ran together, and what was measured while it was followed.
create temporary view latest as
select distinct on (model) *
  from tensile.stat_plan
 where measured_peak_bytes is not null and policy = 'tensile'
 order by model, job_id desc, swaps desc, generation desc;

\echo 'memory of one iteration: vanilla frees nothing, liveness frees after the last use, as eager PyTorch does'
select model, job_id as job, pg_size_pretty(vanilla_peak_bytes) as vanilla,
       pg_size_pretty(liveness_peak_bytes) as liveness, pg_size_pretty(floor_bytes) as floor,
       pg_size_pretty(predicted_peak_bytes) as planned, pg_size_pretty(measured_peak_bytes) as measured,
       swaps, pg_size_pretty(swapped_bytes) as moved
  from latest
union all
select 'together', null, pg_size_pretty(sum(vanilla_peak_bytes)), pg_size_pretty(sum(liveness_peak_bytes)),
       pg_size_pretty(sum(floor_bytes)), pg_size_pretty(sum(predicted_peak_bytes)), null, sum(swaps),
       pg_size_pretty(sum(swapped_bytes))
  from latest;

\echo 'time of one iteration, three trainings sharing two cores and one link'
select model, round(predicted_iteration_ms::numeric, 1) as planned_ms,
       round(measured_iteration_ms::numeric, 1) as measured_ms,
       round(measured_stall_ms::numeric, 1) as of_which_waiting_ms, reason as planned_because, generation
  from latest;

\echo 'the device: what was in use at once never passed the budget'
select device, pg_size_pretty(budget_bytes) as budget, pg_size_pretty(high_water_bytes) as most_in_use,
       high_water_bytes <= budget_bytes as within_budget
  from tensile.stat_device where alive;

\echo 'how good the models are, on rows that they never saw'
select model, task, metric_name, round(metric::numeric, 4) as metric, versions, deployed as deployed_version
  from tensile.model_list
 order by model;
