-- What users see of the ranks of jobs that several devices train together.

create view tensile.stat_ranks with (security_invoker) as
select r.job_id, j.model_name as model, coalesce(o.rolname, j.owner_name) as owner, r.rank, r.state, r.waits_for,
       r.worker_id, w.host, w.device_name, d.granted_bytes, d.used_bytes, r.since, j.devices,
       tensile.asked_devices(j) as asked_devices, r.divides_state, r.step_ns / 1e6 as foretold_ms,
       case when count(r.step_ns) over gang = j.devices then r.step_ns = max(r.step_ns) over gang end as slowest,
       (select p.predicted_iteration_ns / 1e6 from tensile.plans as p
         where p.job_id = r.job_id and p.attempt = j.attempt order by p.generation desc limit 1) as together_ms
  from tensile.job_ranks as r
  join tensile.jobs as j on j.job_id = r.job_id
  left join tensile.workers as w on w.worker_id = r.worker_id
  left join tensile.device_jobs as d on d.worker_id = r.worker_id and d.job_id = r.job_id
  left join pg_catalog.pg_roles as o on o.oid = j.owner_oid and j.installation = (select tensile.installation())
window gang as (partition by r.job_id);
comment on view tensile.stat_ranks is
  'ranks of the jobs that several devices train together, while an attempt is under way: the device of each, and what it '
  'does or waits for';
comment on column tensile.stat_ranks.job_id is 'number of the job';
comment on column tensile.stat_ranks.model is 'model that the job trains';
comment on column tensile.stat_ranks.owner is 'owner of the job';
comment on column tensile.stat_ranks.rank is 'number of the rank from 0; rank 0 validates, saves checkpoints and publishes';
comment on column tensile.stat_ranks.state is
  'offered: no worker has the rank; preparing: its trainer reads the table and captures the step; prepared: it waits for '
  'memory; admitted: it has memory and waits for the other ranks; training; finished: it has trained all epochs';
comment on column tensile.stat_ranks.waits_for is 'what the rank waits for, in words';
comment on column tensile.stat_ranks.worker_id is 'worker of the rank; null while the rank is offered';
comment on column tensile.stat_ranks.host is 'host of that worker';
comment on column tensile.stat_ranks.device_name is 'device of that worker among those of its host';
comment on column tensile.stat_ranks.granted_bytes is 'most device memory that the rank may use';
comment on column tensile.stat_ranks.used_bytes is 'device memory that the rank uses now';
comment on column tensile.stat_ranks.since is 'time since which the rank is in this state';
comment on column tensile.stat_ranks.devices is 'number of ranks of this attempt';
comment on column tensile.stat_ranks.asked_devices is
  'number of devices that the request names; there are fewer ranks if a device is gone';
comment on column tensile.stat_ranks.divides_state is
  'true if the ranks divide the optimizer''s state, so that each keeps a part; false if each keeps all of it; null until '
  'it is decided, before the rank is prepared';

comment on column tensile.stat_ranks.foretold_ms is
  'foretold iteration of the rank under its plan, without waits for other ranks; null until it has a plan';
comment on column tensile.stat_ranks.slowest is
  'true for the rank that needs most time for an iteration, so that the others wait for it; null until all have plans';
comment on column tensile.stat_ranks.together_ms is
  'foretold iteration of all ranks together, as rank 0 foretells it from the steps that the ranks have published';

grant select on tensile.stat_ranks to tensile_user, tensile_monitor, tensile_worker;
