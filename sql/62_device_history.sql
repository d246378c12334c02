-- The history of the devices' memory. A controller adds a row every two seconds, and the step `tensile.thin_samples`
-- of its housekeeping removes rows as they grow old, so the number of rows has a bound: per device at most 300 of the
-- last ten minutes, 720 of the last two hours, 2,900 of the last two days, and 144 for each day before.

alter table tensile.device_job_samples enable row level security;

-- A device's totals are seen by everybody, as in tensile.stat_device; a job's part only by those who see the job.
grant select on tensile.device_samples, tensile.device_job_samples to tensile_user, tensile_monitor, tensile_worker;
grant insert on tensile.device_samples, tensile.device_job_samples to tensile_worker;
create policy samples_of_job on tensile.device_job_samples for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = device_job_samples.job_id));
create policy samples_monitored on tensile.device_job_samples for select to tensile_monitor using (true);
create policy samples_worked on tensile.device_job_samples to tensile_worker using (true) with check (true);

-- Security definer: workers may not delete samples, and through this function they delete only what is old. Of each
-- span of time the row with the most memory in use is kept, because peaks are what a reader of the history looks for.
create function tensile.thin_samples(most integer default 5000) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s'
as $$
declare
  deleted bigint;
begin
  with old as (
    select s.worker_id, s.at, s.used_bytes,
           case when s.at < now() - interval '2 days' then 600 when s.at < now() - interval '2 hours' then 60
                else 10 end as span_s
      from tensile.device_samples as s
     where s.at < now() - interval '10 minutes'
  ), ranked as (
    select o.worker_id, o.at,
           row_number() over (partition by o.worker_id, o.span_s, floor(extract(epoch from o.at) / o.span_s)
                              order by o.used_bytes desc, o.at) as place
      from old as o
  ), surplus as (
    select r.worker_id, r.at from ranked as r
     where r.place > 1 or r.at < now() - (tensile.setting('retain_samples') #>> '{}')::interval
     order by r.at limit least(greatest(most, 1), 100000)
  )
  delete from tensile.device_samples as d using surplus as s where d.worker_id = s.worker_id and d.at = s.at;
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
comment on function tensile.thin_samples(integer) is
  'deletes at most this many samples of devices that are old: of those older than ten minutes one in ten seconds stays, '
  'of those older than two hours one in a minute, of those older than two days one in ten minutes, and none that is '
  'older than the setting retain_samples; returns the number of deleted samples';
revoke execute on function tensile.thin_samples(integer) from public;
grant execute on function tensile.thin_samples(integer) to tensile_admin, tensile_worker;

create view tensile.stat_device_history with (security_invoker) as
select s.worker_id, w.host, w.device, s.at, s.budget_bytes, s.granted_bytes, s.used_bytes, s.host_bytes,
       s.busy_percent, s.outside_bytes
  from tensile.device_samples as s
  join tensile.workers as w on w.worker_id = s.worker_id;
comment on view tensile.stat_device_history is
  'memory of each device over time: a row every two seconds, and fewer rows the older they are';
comment on column tensile.stat_device_history.worker_id is 'worker of the device';
comment on column tensile.stat_device_history.host is 'host of the device';
comment on column tensile.stat_device_history.device is 'kind of the device';
comment on column tensile.stat_device_history.at is 'time of the sample';
comment on column tensile.stat_device_history.budget_bytes is 'memory that jobs might use together';
comment on column tensile.stat_device_history.granted_bytes is 'sum of the grants of all jobs';
comment on column tensile.stat_device_history.used_bytes is 'memory that all jobs used';
comment on column tensile.stat_device_history.host_bytes is 'pinned host memory of the jobs';
comment on column tensile.stat_device_history.busy_percent is
  'percentage of time in which the GPU computed, according to its driver';
comment on column tensile.stat_device_history.outside_bytes is
  'memory in use on the device outside the memory that jobs share';

create view tensile.stat_device_job_history with (security_invoker) as
select s.worker_id, s.at, s.job_id, j.model_name as model, coalesce(r.rolname, j.owner_name) as owner,
       s.granted_bytes, s.used_bytes, s.copied_bytes_per_s
  from tensile.device_job_samples as s
  join tensile.jobs as j on j.job_id = s.job_id
  left join pg_catalog.pg_roles as r on r.oid = j.owner_oid and j.installation = (select tensile.installation());
comment on view tensile.stat_device_job_history is 'memory of each job on a device over time';
comment on column tensile.stat_device_job_history.worker_id is 'worker of the device';
comment on column tensile.stat_device_job_history.at is 'time of the sample';
comment on column tensile.stat_device_job_history.job_id is 'number of the job';
comment on column tensile.stat_device_job_history.model is 'model that the job trains';
comment on column tensile.stat_device_job_history.owner is 'owner of the job';
comment on column tensile.stat_device_job_history.granted_bytes is
  'most device memory that the job might use: the peak of its plan in whole regions';
comment on column tensile.stat_device_job_history.used_bytes is 'device memory that the job used';
comment on column tensile.stat_device_job_history.copied_bytes_per_s is
  'bytes per second that the job''s plan copied in each direction; null before its first plan';

grant select on tensile.stat_device_history, tensile.stat_device_job_history
  to tensile_user, tensile_monitor, tensile_worker;
