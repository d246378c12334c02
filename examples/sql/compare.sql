-- Compares the last two runs of the three trainings: in turns, then shared. A run lasts from its first job's arrival to
-- its last job's end.
with six as (
  select job_id, model, enqueued_at, started_at, finished_at, (row_number() over (order by job_id desc) - 1) / 3 as run
    from tensile.stat_jobs
   where state = 'succeeded' and model in ('digits', 'breast_cancer', 'diabetes')
   order by job_id desc limit 6
), runs as (
  select case run when 1 then 'in turns' else 'shared' end as how, min(enqueued_at) as began, max(finished_at) as ended,
         array_agg(job_id) as jobs, avg(finished_at - enqueued_at) as mean_wait
    from six group by run
), measured as (
  select r.how, extract(epoch from r.ended - r.began) as seconds, extract(epoch from r.mean_wait) as mean_seconds,
         (select max(d.high_water_bytes)
            from tensile.stat_device as d join tensile.stat_workers as w using (worker_id)
           where w.started_at < r.ended and coalesce(w.stopped_at, 'infinity') > r.began) as most_bytes,
         (select max(s.stp_measured) from tensile.stat_sharing as s where s.job_id = any (r.jobs)) as throughput,
         (select max(cardinality(s.beside)) + 1 from tensile.stat_sharing as s where s.job_id = any (r.jobs)) as at_once
    from runs as r
)
select how, at_once as "jobs at once", round(seconds, 1) as "all done after s",
       round(mean_seconds, 1) as "one done after s, on average",
       round(max(seconds) over () / seconds, 2) as "times as fast",
       round(throughput::numeric, 2) as "best STP", pg_size_pretty(most_bytes) as "most memory in use"
  from measured order by how;
