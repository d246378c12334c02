-- Statements of `tensile bench page`, which measures what the web page costs after a day of samples (page.py). A line
-- `-- name --` begins each statement. psycopg replaces parameters, so a `%` of SQL is written `%%`.

-- add_worker --
-- The lease is longer than the benchmark: nothing renews it, and the worker must not be counted as dead.
insert into tensile.workers (host, pid, device, version, lease_s) values ('h', 1, 'emulated', '0', 86400)
returning worker_id;

-- add_device --
-- Jobs may use budget_bytes together; granted_bytes is the sum of their grants, and used_bytes is what they use of it.
insert into tensile.devices (worker_id, kind, capacity_bytes, budget_bytes, granted_bytes, used_bytes)
values (%(worker)s, 'emulated', 1e9, 1e9, 8e8, 6e8);

-- raise_quota --
-- The role '-' stands for every role without a quota of its own.
select public.tensile_set_quota('-', jobs_queued => %(jobs)s);

-- add_jobs --
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
select 'bench', 1, 'public', 'bench',
       '{"model": "bench", "relation": {"oid": 1, "schema": "public", "name": "bench"}, "target": "y",
         "task": "regression", "architecture": {"type": "mlp"}}'
  from generate_series(1, %(jobs)s);

-- sample_a_day --
-- A day of samples of the device, at the interval at which a controller writes them. used_bytes varies between samples.
insert into tensile.device_samples (worker_id, at, budget_bytes, granted_bytes, used_bytes, host_bytes)
select %(worker)s, now() - make_interval(secs => age), 1e9, 8e8, (age * 7919) %% 600000000, 0
  from generate_series(0, 86399, 2) as age;

-- sample_jobs --
-- Four jobs hold the device at every sample.
insert into tensile.device_job_samples (worker_id, at, job_id, granted_bytes, used_bytes, copied_bytes_per_s)
select s.worker_id, s.at, j.job_id, 2e8, s.used_bytes / 4, 1000
  from tensile.device_samples as s cross join (select job_id from tensile.jobs order by job_id limit 4) as j;

-- thin --
-- Delete at most 5,000 old samples, as the daily maintenance does, and return how many were deleted.
select tensile.thin_samples(5000);

-- count_samples --
select (select count(*) from tensile.device_samples) as samples,
       (select count(*) from tensile.device_job_samples) as job_samples;

-- rewrite_tables --
-- Afterwards the size of the tables counts only live rows.
vacuum full tensile.device_samples, tensile.device_job_samples;

-- size --
select pg_total_relation_size('tensile.device_samples') + pg_total_relation_size('tensile.device_job_samples');

-- update_device --
-- As a controller does at every sample. The page sends the change to every browser.
update tensile.devices set used_bytes = used_bytes + 1, updated_at = now();
