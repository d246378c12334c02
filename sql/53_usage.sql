-- Usage: how much each owner uses the devices, and the order of owners in the queue that follows from it.
--
-- Owners share the devices by weighted fair queueing on device-seconds, with the larger of two shares of a device
-- counted: compute and memory (dominant resource fairness, Ghodsi et al. 2011). That paper looks at present shares only.
-- Here past use counts too: a job usually holds its share until it ends, so shares become equal only over time. Use
-- counts half after each period of the setting usage_half_life. Present jobs count as if they kept their shares for
-- ever. So an owner who fills the devices at this moment comes after the others, although that use is not recorded yet.

create function tensile.usage_day() returns date
  language sql stable parallel safe
  return (pg_catalog.now() at time zone 'UTC')::date;
comment on function tensile.usage_day() is 'the present day in UTC, by which device-seconds are counted';

-- In PL/pgSQL, because PL/pgSQL keeps the plan for the session and each claim calls the function. The limits (a second,
-- thirty years) keep a wrong setting from a division by zero or an overflow.
create function tensile.usage_half_life_s() returns double precision
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  return least(greatest(extract(epoch from (tensile.setting('usage_half_life') #>> '{}')::interval), 1), 1e9);
end
$$;
comment on function tensile.usage_half_life_s() is 'the setting usage_half_life in seconds';

-- Returns zero before the numbers become too small for double precision, which would be an error. The planner inlines
-- the expression, because the function has no settings of its own.
create function tensile.decayed_usage(usage_s double precision, until timestamptz, half_life_s double precision)
  returns double precision
  language sql stable parallel safe
  return case when usage_s < 1e-6 or extract(epoch from pg_catalog.now() - until) > 60 * half_life_s then 0
              else usage_s * 2 ^ (-greatest(extract(epoch from pg_catalog.now() - until), 0)::double precision / half_life_s)
         end;
comment on function tensile.decayed_usage(double precision, timestamptz, double precision) is
  'returns what device-seconds that were counted until this time count now: half after each half-life';

create function tensile.owners_spent() returns table (owner_oid oid, day_s double precision, most_s bigint)
  language sql stable rows 5
  set search_path = pg_catalog, pg_temp
as $$
  select u.owner_oid, u.day_s, coalesce(own.device_seconds, everybody.device_seconds)
    from tensile.owner_usage as u
    left join tensile.role_quotas as own on own.role_oid = u.owner_oid and own.installation = u.installation
    left join tensile.role_quotas as everybody on everybody.role_oid = 0 and everybody.installation = u.installation
   where u.installation = (select tensile.installation()) and u.day = tensile.usage_day()
     and u.day_s >= coalesce(own.device_seconds, everybody.device_seconds)
$$;
comment on function tensile.owners_spent() is
  'returns the owners that have used their device-seconds of the present day, whose queued jobs wait for the next day; '
  'only owners whose use the caller may see';

-- The settings make the planner read active jobs through the index that holds only them, as in owners_at_limit. PL/pgSQL
-- keeps the plans for the session: planning takes longer than running them. Without a worker, a device has 8 slots: the
-- default of tensile.workers.slots.
create function tensile.owner_standings(owners oid[])
  returns table (owner_oid oid, idle boolean, usage_s double precision, next_s double precision, spent boolean)
  language plpgsql stable rows 10
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_incremental_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
  set jit = off
as $$
#variable_conflict use_column
declare
  half_life_s constant double precision := tensile.usage_half_life_s();
  steady_s constant double precision := half_life_s / ln(2);  -- the decayed sum of a share of 1 that was kept for ever
  today constant date := tensile.usage_day();
  here constant uuid := tensile.installation();
  slots constant double precision :=
    coalesce((select avg(w.slots) from tensile.workers as w where tensile.is_alive(w)), 8);
begin
  return query
  with active as (
    select j.owner_oid,
           sum(greatest(1.0 / w.slots,
                        least(1, d.granted_bytes::double precision / nullif(v.budget_bytes, 0)))) as share
      from ((select o.job_id, o.owner_oid, o.worker_id from tensile.jobs as o
              where o.state in ('starting', 'running') and o.worker_id is not null and not o.pause_requested
              order by o.worker_id)  -- so that the index on worker_id is read, and not the queue
             union all
            select r.job_id, (select o.owner_oid from tensile.jobs as o where o.job_id = r.job_id), r.worker_id
              from tensile.job_ranks as r
             where r.rank > 0 and r.worker_id is not null and r.state <> 'finished') as j
      join tensile.workers as w on w.worker_id = j.worker_id
      left join tensile.device_jobs as d on d.worker_id = j.worker_id and d.job_id = j.job_id
      left join tensile.devices as v on v.worker_id = j.worker_id
     group by j.owner_oid
  )
  select o.owner_oid, active.share is null,
         (coalesce(tensile.decayed_usage(u.recent_s, u.updated_at, half_life_s), 0)
            + coalesce(active.share, 0) * steady_s)
           / coalesce(own.weight, everybody.weight, 1),
         steady_s / slots / coalesce(own.weight, everybody.weight, 1),
         coalesce(u.day = today and u.day_s >= coalesce(own.device_seconds, everybody.device_seconds), false)
    from unnest(owner_standings.owners) as o (owner_oid)
    left join active on active.owner_oid = o.owner_oid
    left join tensile.owner_usage as u on u.owner_oid = o.owner_oid and u.installation = here
    left join tensile.role_quotas as own on own.role_oid = o.owner_oid and own.installation = here
    left join tensile.role_quotas as everybody on everybody.role_oid = 0 and everybody.installation = here;
end
$$;
comment on function tensile.owner_standings(oid[]) is
  'returns for each of these owners what decides its turn: whether it has no active job, its recent and present use '
  'divided by its weight, what one more job adds to that, and whether its device-seconds of the day are used';

-- Jobs that have ended --------------------------------------------------------------------------------------------

-- Jobs are counted from their own rows as long as these exist, and not when they end: one row for each owner and model
-- would make the ends of jobs wait for each other. Security definer, because administrators delete jobs too. The rows of
-- the present day are left to the controllers, which add to them once a second and must not wait for an administrator.
create function tensile.count_deleted_jobs() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  insert into tensile.usage as u (owner_oid, installation, day, model_name, owner_name, jobs_deleted)
  select j.owner_oid, j.installation, least((j.finished_at at time zone 'UTC')::date, tensile.usage_day() - 1) as day,
         j.model_name, min(j.owner_name::text), count(*)
    from deleted as j
   where j.finished_at is not null and j.started_at is not null
   group by j.owner_oid, j.installation, 3, j.model_name
   order by j.owner_oid, j.installation, 3, j.model_name
      on conflict on constraint usage_pkey do update set jobs_deleted = u.jobs_deleted + excluded.jobs_deleted;
  insert into tensile.deleted_jobs as d (owner_oid, installation, state, jobs)
  select j.owner_oid, j.installation, j.state, count(*)
    from deleted as j
   where j.finished_at is not null
   group by j.owner_oid, j.installation, j.state
   order by j.owner_oid, j.installation, j.state
      on conflict on constraint deleted_jobs_pkey do update set jobs = d.jobs + excluded.jobs;
  return null;
end
$$;
comment on function tensile.count_deleted_jobs() is
  'trigger: keeps the number of deleted jobs that had ended, by owner and model, and by owner and state';

create trigger jobs_count_deleted after delete on tensile.jobs
  referencing old table as deleted
  for each statement execute function tensile.count_deleted_jobs();

-- Counters that never fall ----------------------------------------------------------------------------------------

-- Security definer, as count_deleted_jobs. The sums are added in the order of owners, so two calls of vacuum_step may wait
-- for each other and cannot deadlock.
create function tensile.count_deleted_usage() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  insert into tensile.deleted_usage as d (owner_oid, installation, device_s, byte_s, running_s)
  select u.owner_oid, u.installation, sum(u.device_s), sum(u.byte_s), sum(u.running_s)
    from deleted as u
   group by u.owner_oid, u.installation
   order by u.owner_oid, u.installation
      on conflict on constraint deleted_usage_pkey do update
         set device_s = d.device_s + excluded.device_s, byte_s = d.byte_s + excluded.byte_s,
             running_s = d.running_s + excluded.running_s;
  return null;
end
$$;
comment on function tensile.count_deleted_usage() is
  'trigger: keeps the sums of deleted rows of tensile.usage by owner, so that the total use does not fall';

create trigger usage_count_deleted after delete on tensile.usage
  referencing old table as deleted
  for each statement execute function tensile.count_deleted_usage();

-- Security definer: a worker adds to a counter, and cannot set or lower one. The rows are locked in their order, and as
-- the last ones of a transaction, so that two workers cannot deadlock.
create function tensile.add_totals(names text[], labels text[], amounts double precision[]) returns void
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  insert into tensile.totals as t (name, label, value)
  select a.name, a.label, sum(a.amount)
    from unnest(names, labels, amounts) as a (name, label, amount)
   where a.amount > 0 and a.amount < 'infinity' and length(a.name) <= 63 and length(a.label) <= 63
   group by a.name, a.label
   order by a.name, a.label
      on conflict on constraint totals_pkey do update set value = t.value + excluded.value
$$;
comment on function tensile.add_totals(text[], text[], double precision[]) is
  'adds amounts to counters that never fall; amounts that are not positive are left out';

create function tensile.count_interruption() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform tensile.add_totals(array['interruptions'],
                             array[case when new.detail @> '{"counts": true}' then 'job' else 'other' end], array[1.0]);
  return null;
end
$$;
comment on function tensile.count_interruption() is
  'trigger: counts an attempt of a job that was interrupted, by whether it counts as the fault of the job';

create trigger job_events_count_interruptions after insert on tensile.job_events
  for each row when (new.kind = 'interrupted') execute function tensile.count_interruption();

-- The view -----------------------------------------------------------------------------------------------------

create view tensile.stat_usage with (security_invoker) as
select coalesce(r.rolname, u.owner_name::name) as owner, u.model, u.device_seconds, u.byte_seconds, u.running_seconds,
       u.jobs_ended, u.slowdown, u.device_seconds_today, u.first_day, u.last_day
  from (select t.owner_oid, t.installation, max(t.owner_name::text) as owner_name, t.model_name as model,
               sum(t.device_s) as device_seconds, sum(t.byte_s) as byte_seconds, sum(t.running_s) as running_seconds,
               sum(t.jobs)::bigint as jobs_ended, sum(t.measured_s) / nullif(sum(t.alone_s), 0) as slowdown,
               coalesce(sum(t.device_s) filter (where t.day = tensile.usage_day()), 0) as device_seconds_today,
               min(t.day) as first_day, max(t.day) as last_day
          from (select k.owner_oid, k.installation, k.model_name, k.owner_name, k.day, k.device_s, k.byte_s,
                       k.running_s, k.measured_s, k.alone_s, k.jobs_deleted as jobs
                  from tensile.usage as k
                union all
                select j.owner_oid, j.installation, j.model_name, j.owner_name,
                       (j.finished_at at time zone 'UTC')::date, 0, 0, 0, 0, 0, 1
                  from tensile.jobs as j where j.finished_at is not null and j.started_at is not null) as t
         group by t.owner_oid, t.installation, t.model_name) as u
  left join pg_catalog.pg_roles as r on r.oid = u.owner_oid and u.installation = (select tensile.installation())
 order by u.device_seconds desc, owner, u.model;
comment on view tensile.stat_usage is
  'use of the devices by owner and model, as long as the setting retain_usage keeps it; a role sees its own use, and '
  'only tensile_monitor sees that of others';
comment on column tensile.stat_usage.owner is 'owner of the jobs';
comment on column tensile.stat_usage.model is 'model of the jobs, by the name that it had then';
comment on column tensile.stat_usage.device_seconds is
  'the larger of the jobs'' shares of a device''s compute and memory, summed over time; jobs side by side divide the '
  'compute equally';
comment on column tensile.stat_usage.byte_seconds is 'device memory that was granted to the jobs, summed over time';
comment on column tensile.stat_usage.running_seconds is
  'time in which the jobs had device memory, in seconds, summed over the jobs';
comment on column tensile.stat_usage.jobs_ended is 'jobs that ended after a worker had claimed them';
comment on column tensile.stat_usage.slowdown is
  'how many times longer the jobs'' iterations took than alone on the device with all the memory, on average; null if '
  'that was not measured';
comment on column tensile.stat_usage.device_seconds_today is 'device-seconds of the present day in UTC';
comment on column tensile.stat_usage.first_day is 'first day of the use, in UTC';
comment on column tensile.stat_usage.last_day is 'last day of the use, in UTC';

-- Privileges ---------------------------------------------------------------------------------------------------

alter table tensile.usage enable row level security;
alter table tensile.deleted_jobs enable row level security;
alter table tensile.owner_usage enable row level security;
alter table tensile.deleted_usage enable row level security;
alter table tensile.totals enable row level security;
create policy usage_of_owner on tensile.usage for select to tensile_user
  using (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()));
create policy usage_monitored on tensile.usage for select to tensile_monitor using (true);
create policy usage_worked on tensile.usage to tensile_worker using (true) with check (true);
create policy deleted_jobs_of_owner on tensile.deleted_jobs for select to tensile_user
  using (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()));
create policy deleted_jobs_monitored on tensile.deleted_jobs for select to tensile_monitor, tensile_worker using (true);
create policy deleted_usage_of_owner on tensile.deleted_usage for select to tensile_user
  using (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()));
create policy deleted_usage_monitored on tensile.deleted_usage for select to tensile_monitor, tensile_worker using (true);
-- The totals of all users are not for a single user.
create policy totals_monitored on tensile.totals for select to tensile_monitor, tensile_worker using (true);
create policy owner_usage_of_owner on tensile.owner_usage for select to tensile_user
  using (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()));
create policy owner_usage_monitored on tensile.owner_usage for select to tensile_monitor using (true);
create policy owner_usage_worked on tensile.owner_usage to tensile_worker using (true) with check (true);
grant select on tensile.usage, tensile.deleted_jobs, tensile.deleted_usage, tensile.totals, tensile.owner_usage,
  tensile.stat_usage
  to tensile_user, tensile_monitor, tensile_worker;
grant insert, update on tensile.usage, tensile.owner_usage to tensile_worker;

revoke execute on function tensile.usage_day(), tensile.usage_half_life_s(),
  tensile.decayed_usage(double precision, timestamptz, double precision), tensile.owners_spent(),
  tensile.owner_standings(oid[]), tensile.count_deleted_jobs(), tensile.count_deleted_usage(),
  tensile.add_totals(text[], text[], double precision[]), tensile.count_interruption() from public;
grant execute on function tensile.usage_day(), tensile.owners_spent() to tensile_user, tensile_monitor, tensile_worker;
grant execute on function tensile.usage_half_life_s(),
  tensile.decayed_usage(double precision, timestamptz, double precision), tensile.owner_standings(oid[]),
  tensile.add_totals(text[], text[], double precision[])
  to tensile_worker;
