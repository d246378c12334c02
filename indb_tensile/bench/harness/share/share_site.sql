-- Statements of share_site.py. {} stands for an identifier that the caller quotes.

-- create_role --
create role {}

-- grant_use --
grant tensile_user to {}

-- drop_role --
drop role if exists {}

-- allow_login --
alter role {} login

-- create_clone --
create database {} template {}

-- drop_clone --
drop database if exists {} with (force)

-- sessions --
select count(*) from pg_stat_activity where datname = %(name)s and pid <> pg_backend_pid()

-- create_first_steps --
-- A job's progress is first reported when its first iteration has ended, and later reports change the same row.
create table public.bench_first_steps (job_id bigint primary key, at timestamptz not null default clock_timestamp())

-- create_first_step_function --
create function public.bench_record_first_step() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  insert into public.bench_first_steps (job_id) values (new.job_id) on conflict do nothing;
  return null;
end
$$

-- create_first_step_trigger --
create trigger bench_first_step after insert on tensile.job_progress
  for each row execute function public.bench_record_first_step()

-- forget_latencies --
truncate tensile.op_latency, tensile.op_descriptions, tensile.graphs, tensile.device_overheads

-- ready --
select count(*) from tensile.workers where pid = %(pid)s and stopped_at is null

-- set_role --
set local role {}

-- train --
select public.tensile_train(%(model)s, %(relation)s::regclass, architecture => %(architecture)s,
  hyperparams => %(hyperparams)s, early_stop => '{}', priority => %(priority)s, deploy => 'always')

-- unended --
select count(*) from tensile.jobs where job_id = any (%(jobs)s) and state in ('queued', 'starting', 'running')

-- states --
select j.job_id, j.state::text, coalesce(j.error_message, j.waits_for, j.phase::text, '')
  from tensile.jobs as j where j.job_id = any (%(jobs)s) and j.state <> 'succeeded' order by j.job_id

-- times --
-- Seconds since 1970, by the server's clock, and the digest of the published parameters.
select j.job_id,
       extract(epoch from j.enqueued_at)::float8,
       (select extract(epoch from min(e.at))::float8 from tensile.job_events as e
         where e.job_id = j.job_id and e.kind = 'running'),
       (select extract(epoch from f.at)::float8 from public.bench_first_steps as f where f.job_id = j.job_id),
       (select extract(epoch from max(e.at))::float8 from tensile.job_events as e
         where e.job_id = j.job_id and e.kind = 'succeeded'),
       (select max(p.liveness_peak_bytes) from tensile.plans as p where p.job_id = j.job_id),
       (select encode(sha256(string_agg(a.chunk, ''::bytea order by a.chunk_no)), 'hex')
          from tensile.artifacts as a where a.version_id = j.version_id)
  from tensile.jobs as j where j.job_id = any (%(jobs)s) order by j.job_id

-- departures --
-- When each job gave its memory back, in seconds since 1970: then its last set ended. Null if its set is still open.
select s.job_id, extract(epoch from max(s.ended_at))::float8
  from tensile.job_sets as s where s.job_id = any (%(jobs)s) group by s.job_id having bool_and(s.ended_at is not null)

-- peaks --
select p.job_id, max(p.liveness_peak_bytes) from tensile.plans as p where p.job_id = any (%(jobs)s) group by p.job_id

-- device --
-- Bytes in use on the device now, and the most at one moment since the controller started; written since a moment.
select d.used_bytes, d.high_water_bytes from tensile.devices as d join tensile.workers as w using (worker_id)
 where w.pid = %(pid)s and w.stopped_at is null and d.updated_at > %(since)s

-- stores_sets --
select to_regclass('tensile.stat_sharing') is not null

-- sets --
-- A row for each job of each set of jobs that ran side by side: the set's foretold and its measured throughput, the job's
-- foretold speed, for how many seconds the set ran, and its number of jobs. A job is in its last set until it has given back its memory.
select s.job_id, s.stp_foretold, s.stp_measured, s.speed_foretold,
       extract(epoch from coalesce(s.ended_at, e.ended_at) - s.started_at)::float8, 1 + cardinality(s.beside)
  from tensile.job_sets as s
  join (select job_id, max(at) as ended_at from tensile.job_events where kind = 'succeeded' group by job_id) as e
    using (job_id)
 where s.job_id = any (%(jobs)s) and coalesce(s.ended_at, e.ended_at) > s.started_at

-- iterations --
-- Of each job's last plan that was measured: the time of an iteration, foretold and measured, in nanoseconds.
select distinct on (p.job_id) p.job_id, p.predicted_iteration_ns, p.measured_iteration_ns
  from tensile.plans as p
 where p.job_id = any (%(jobs)s) and p.measured_iteration_ns is not null
 order by p.job_id, p.attempt desc, p.generation desc

-- now --
select clock_timestamp()

-- drop_models --
-- Published parameters take up to 50 MB a job, which the next run does not need.
truncate tensile.models cascade
