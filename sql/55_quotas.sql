-- Quotas: limits on each role's jobs, device memory, device-seconds and priorities, so that no role can exclude the
-- others, and weights of the roles.

create function tensile.quota_of(role_oid oid)
  returns table (jobs_running integer, jobs_queued integer, bytes bigint, highest_priority integer,
                 device_seconds bigint, weight double precision)
  language sql stable rows 1
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(own.jobs_running, everybody.jobs_running, s.default_running),
         coalesce(own.jobs_queued, everybody.jobs_queued, 10000),
         coalesce(own.bytes, everybody.bytes),
         coalesce(own.highest_priority, everybody.highest_priority, 1000),
         coalesce(own.device_seconds, everybody.device_seconds),
         coalesce(own.weight, everybody.weight, 1)
    from (select greatest(1, sum(w.slots) - 1)::integer as default_running from tensile.workers as w
           where tensile.is_alive(w)) as s
    left join tensile.role_quotas as own
      on own.role_oid = quota_of.role_oid and own.installation = (select tensile.installation())
    left join tensile.role_quotas as everybody
      on everybody.role_oid = 0 and everybody.installation = (select tensile.installation())
$$;
comment on function tensile.quota_of(oid) is
  'returns the quota of a role: its own quota, else the quota of all roles, else the default; null is no limit';

-- The settings make the planner read active jobs through the index that holds only them, whatever the statistics are.
create function tensile.owners_at_limit(more integer, claimant oid default null) returns oid[]
  language sql stable
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_incremental_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
  set jit = off
as $$
  select array(
    select a.owner_oid
      from (select j.owner_oid, count(*) as jobs
              from (select o.owner_oid from tensile.jobs as o
                     where o.state in ('starting', 'running') and o.worker_id is not null order by o.worker_id) as j
             group by j.owner_oid
            union all
            select owners_at_limit.claimant, 0 where owners_at_limit.claimant is not null  -- it may have no active job yet
            union all
            select q.role_oid, 0 from tensile.role_quotas as q
             where q.jobs_running = 0 and q.role_oid <> 0 and q.installation = (select tensile.installation())) as a
     cross join lateral tensile.quota_of(a.owner_oid) as quota
     where a.jobs + owners_at_limit.more >= quota.jobs_running
     group by a.owner_oid)
$$;
comment on function tensile.owners_at_limit(integer, oid) is
  'returns the roles whose quota of active jobs is reached once this many more of their jobs are active; considers roles '
  'with active jobs, the claimant, and roles with a quota of 0';

-- The settings are those of owners_at_limit. The condition on owner_oid is a range, because an equality would let the
-- planner ignore owner_oid in the order and walk the queue of all owners.
create function tensile.queue_heads(passed_over oid[])
  returns table (owner_oid oid, priority integer, job_id bigint)
  language sql stable rows 10
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_incremental_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
  set jit = off
as $$
  with recursive owners (owner_oid) as (
    (select q.owner_oid from tensile.jobs as q
      where q.state = 'queued' and not q.pause_requested and not q.awaits_jobs
      order by q.owner_oid, q.priority desc, q.job_id limit 1)
    union all
    select (select q.owner_oid from tensile.jobs as q
             where q.state = 'queued' and not q.pause_requested and not q.awaits_jobs and q.owner_oid > o.owner_oid
             order by q.owner_oid, q.priority desc, q.job_id limit 1)
      from owners as o where o.owner_oid is not null
  ), heads as materialized (
    select o.owner_oid, head.priority, head.job_id
      from owners as o
     cross join lateral (select q.priority, q.job_id from tensile.jobs as q
                          where q.owner_oid >= o.owner_oid and q.owner_oid <= o.owner_oid and q.state = 'queued'
                            and not q.pause_requested and not q.awaits_jobs
                            and (q.not_before is null or q.not_before <= now())
                            and q.installation = (select tensile.installation())
                          order by q.owner_oid, q.priority desc, q.job_id limit 1) as head
     where o.owner_oid <> all (queue_heads.passed_over)
  )
  select h.owner_oid, h.priority, h.job_id
    from heads as h
    join tensile.owner_standings(array(select o.owner_oid from heads as o)) as s on s.owner_oid = h.owner_oid
   where not s.spent
   order by s.idle desc, s.usage_s, h.job_id
$$;
comment on function tensile.queue_heads(oid[]) is
  'returns the next queued job of each owner that is not passed over and has device-seconds left for the day, in fair '
  'order: first owners without an active job, then those with the least use for their weight; paused jobs and '
  'jobs that wait for others are not in the queue';

-- Security definer, because a user may not read all the rows that the function reads. It counts the queued jobs of an
-- owner only if they can exceed the quota, which the distance from the oldest to the newest job_id tells. So the cost
-- of enqueuing does not depend on the length of the queue.
create function tensile.check_enqueued() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
  set jit = off
as $$
declare
  enqueued record;
  oldest bigint;
  waiting bigint;
begin
  for enqueued in
    select a.owner_oid, a.owner, a.priority, a.newest, q.jobs_queued, q.highest_priority
      from (select n.owner_oid, min(n.owner_name::text) as owner, max(n.priority) as priority, max(n.job_id) as newest
              from added as n
             where n.state = 'queued' and n.installation = (select tensile.installation())
             group by n.owner_oid) as a
     cross join lateral tensile.quota_of(a.owner_oid) as q
  loop
    perform tensile.check_priority(enqueued.owner, enqueued.priority, enqueued.highest_priority);
    perform tensile.check_device_seconds(enqueued.owner_oid, enqueued.owner);
    select j.job_id into oldest from tensile.jobs as j
     where j.owner_oid = enqueued.owner_oid and j.state = 'queued' order by j.owner_oid, j.job_id limit 1;
    continue when enqueued.newest - oldest < enqueued.jobs_queued;
    select count(*) into waiting
      from (select from tensile.jobs as j where j.owner_oid = enqueued.owner_oid and j.state = 'queued'
               and not (j.awaits_jobs and j.search_id <> j.job_id and j.search_id is not null)
             limit enqueued.jobs_queued + 1) as counted;
    if waiting > enqueued.jobs_queued then
      raise exception 'role "%" may have at most % job% in the queue, and this statement would exceed that',
                      enqueued.owner, enqueued.jobs_queued, case when enqueued.jobs_queued = 1 then '' else 's' end
        using errcode = 'program_limit_exceeded',
              hint = format('Wait until some of its jobs have started, or cancel some. A member of tensile_admin can '
                            'allow more: select tensile_set_quota(%L, jobs_queued => ...);', enqueued.owner);
    end if;
  end loop;
  return null;
end
$$;
comment on function tensile.check_enqueued() is
  'trigger: refuses more queued jobs, or a higher priority, than the quota of the owner allows, and jobs of an owner '
  'that has used its device-seconds of the day';

create function tensile.check_device_seconds(owner_oid oid, owner text) returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  use record;
begin
  select s.day_s, s.most_s into use from tensile.owners_spent() as s
   where s.owner_oid = check_device_seconds.owner_oid;
  if found then
    raise exception 'role "%" has used % device-seconds today, and its quota is % a day',
                    check_device_seconds.owner, round(use.day_s::numeric, 1), use.most_s
      using errcode = 'configuration_limit_exceeded',
            detail = format('Days are those of UTC. The next day begins at %s; jobs that are in the queue start then.',
                            to_char(tensile.usage_day() + 1, 'YYYY-MM-DD "00:00 UTC"')),
            hint = format('Enqueue the job then. A member of tensile_admin can allow more: '
                          'select tensile_set_quota(%L, device_seconds => ...);', check_device_seconds.owner);
  end if;
end
$$;
comment on function tensile.check_device_seconds(oid, text) is
  'raises an error if the owner has used its device-seconds of the day';

create function tensile.check_raised_priority() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform tensile.check_priority(
    new.owner_name::text, new.priority, (select q.highest_priority from tensile.quota_of(new.owner_oid) as q));
  return new;
end
$$;
comment on function tensile.check_raised_priority() is
  'trigger: refuses a higher priority than the quota of the owner allows';

create function tensile.check_priority(owner text, priority integer, highest_priority integer) returns void
  language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
begin
  if priority > highest_priority then
    raise exception 'role "%" may not give a job priority %: its highest is %', owner, priority, highest_priority
      using errcode = 'insufficient_privilege',
            hint = format('Use priority %s or less. A member of tensile_admin can allow more: '
                          'select tensile_set_quota(%L, highest_priority => %s);', highest_priority, owner, priority);
  end if;
end
$$;
comment on function tensile.check_priority(text, integer, integer) is
  'raises an error if the priority is higher than the highest one that the role may give';

create trigger jobs_within_quota after insert on tensile.jobs
  referencing new table as added
  for each statement execute function tensile.check_enqueued();

-- An administrator may raise the priority of any job without regard to the owner's quota.
create trigger jobs_priority_within_quota before update of priority on tensile.jobs
  for each row when (new.priority > old.priority and new.owner_oid = tensile.current_role_oid())
  execute function tensile.check_raised_priority();

create function public.tensile_set_quota(
  role regrole, jobs_running integer default null, jobs_queued integer default null, bytes text default null,
  highest_priority integer default null, device_seconds bigint default null, weight double precision default null
) returns void
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform public.tensile_require_role('tensile_admin');
  if role is null then
    raise exception 'no role is named'
      using errcode = 'null_value_not_allowed',
            hint = 'Name a role, or ''-'' for every role that has no quota of its own.';
  end if;
  if tensile_set_quota.device_seconds <= 0 then
    raise exception 'device_seconds is %, not above 0', tensile_set_quota.device_seconds
      using errcode = 'invalid_parameter_value',
            hint = 'To let a role run nothing, set its jobs_running to 0.';
  end if;
  if not tensile_set_quota.weight between 0.001 and 1000 then
    raise exception 'weight is %, not a number from 0.001 to 1000', tensile_set_quota.weight
      using errcode = 'invalid_parameter_value',
            hint = 'The default is 1. A role with weight 2 gets twice the share of a role with weight 1.';
  end if;
  insert into tensile.role_quotas
    (role_oid, role_name, jobs_running, jobs_queued, bytes, highest_priority, device_seconds, weight)
  values (role::oid, coalesce((select r.rolname from pg_roles as r where r.oid = role::oid), '-'),
          tensile_set_quota.jobs_running, tensile_set_quota.jobs_queued, pg_size_bytes(tensile_set_quota.bytes),
          tensile_set_quota.highest_priority, tensile_set_quota.device_seconds, tensile_set_quota.weight)
  on conflict on constraint role_quotas_pkey do update
     set role_name = excluded.role_name, jobs_running = excluded.jobs_running, jobs_queued = excluded.jobs_queued,
         bytes = excluded.bytes, highest_priority = excluded.highest_priority,
         device_seconds = excluded.device_seconds, weight = excluded.weight, changed_at = now(),
         changed_by = current_user;
end
$$;
comment on function public.tensile_set_quota(regrole, integer, integer, text, integer, bigint, double precision) is
  'sets the quota of a role: its running and queued jobs, its device memory (such as ''2GB''), its highest priority, '
  'its device-seconds a day (UTC) and its weight in the fair order of owners. An omitted argument sets the default. The '
  'role ''-'' stands for all roles without a quota of their own';

create function tensile.quota_use()
  returns table (role_oid oid, jobs_running bigint, jobs_queued bigint, bytes numeric)
  language sql stable rows 10
  set search_path = pg_catalog, pg_temp
as $$
  select u.owner_oid, sum(u.running)::bigint, sum(u.queued)::bigint, sum(u.bytes)
    from (select j.owner_oid, count(*) as running, 0 as queued,
                 coalesce(sum((select sum(d.granted_bytes) from tensile.device_jobs as d
                                where d.job_id = j.job_id and d.worker_id = j.worker_id)), 0) as bytes
            from tensile.jobs as j where j.state in ('starting', 'running') group by j.owner_oid
          union all
          -- Trials that wait for their search are not in the queue.
          select j.owner_oid, 0, count(*), 0 from tensile.jobs as j
           where j.state = 'queued' and not (j.awaits_jobs and j.search_id <> j.job_id and j.search_id is not null)
           group by j.owner_oid) as u
   group by u.owner_oid
$$;
comment on function tensile.quota_use() is
  'returns for each role the number of running and queued jobs, and their granted device memory; counts only jobs that '
  'the caller may see';

create view tensile.stat_quotas with (security_invoker) as
select r.rolname as role, coalesce(u.jobs_running, 0) as jobs_running, q.jobs_running as most_jobs_running,
       coalesce(u.jobs_queued, 0) as jobs_queued, q.jobs_queued as most_jobs_queued,
       coalesce(u.bytes, 0)::bigint as bytes, q.bytes as most_bytes, q.highest_priority,
       exists (select from tensile.role_quotas as o
                where o.role_oid = r.oid and o.installation = (select tensile.installation())
                  and num_nonnulls(o.jobs_running, o.jobs_queued, o.bytes, o.highest_priority, o.device_seconds,
                                   o.weight) > 0) as is_set,
       coalesce(day.day_s, 0) as device_seconds_today, q.device_seconds as most_device_seconds, q.weight
  from pg_catalog.pg_roles as r
  left join tensile.quota_use() as u on u.role_oid = r.oid
  left join tensile.owner_usage as day
    on day.owner_oid = r.oid and day.installation = (select tensile.installation()) and day.day = tensile.usage_day()
 cross join lateral tensile.quota_of(r.oid) as q
 where (u.role_oid is not null or day.owner_oid is not null
        or exists (select from tensile.role_quotas as o
                    where o.role_oid = r.oid and o.installation = (select tensile.installation())
                      and num_nonnulls(o.jobs_running, o.jobs_queued, o.bytes, o.highest_priority, o.device_seconds,
                                       o.weight) > 0))
   and (pg_catalog.pg_has_role(r.oid, 'usage') or pg_catalog.pg_has_role('tensile_monitor', 'usage'))
 order by r.rolname;
comment on view tensile.stat_quotas is
  'quotas of roles and their current use, for roles with jobs, with use on this day, or with a quota of their own; only '
  'tensile_monitor sees other roles';
comment on column tensile.stat_quotas.role is 'name of the role';
comment on column tensile.stat_quotas.jobs_running is 'active jobs of the role';
comment on column tensile.stat_quotas.most_jobs_running is 'most jobs of the role that may be active at once';
comment on column tensile.stat_quotas.jobs_queued is 'queued jobs of the role';
comment on column tensile.stat_quotas.most_jobs_queued is 'most jobs of the role that may be queued at once';
comment on column tensile.stat_quotas.bytes is 'device memory that is granted to the role''s jobs';
comment on column tensile.stat_quotas.most_bytes is
  'most device memory that may be granted to the role''s jobs together; null is no limit';
comment on column tensile.stat_quotas.highest_priority is 'highest priority that the role may give a job';
comment on column tensile.stat_quotas.is_set is 'true if the role has a quota of its own';
comment on column tensile.stat_quotas.device_seconds_today is
  'device-seconds that the role''s jobs have used on the present day in UTC';
comment on column tensile.stat_quotas.most_device_seconds is
  'most device-seconds of the role in one day; null is no limit';
comment on column tensile.stat_quotas.weight is
  'weight of the role in the fair order of owners: twice the weight is twice the share of the devices';

alter table tensile.role_quotas enable row level security;
create policy quota_of_role on tensile.role_quotas for select to tensile_user
  using (role_oid = 0 or role_oid = (select tensile.current_role_oid()));
create policy quotas_monitored on tensile.role_quotas for select to tensile_monitor using (true);
create policy quotas_administered on tensile.role_quotas to tensile_admin using (true) with check (true);
create policy quotas_worked on tensile.role_quotas for select to tensile_worker using (true);
grant select on tensile.role_quotas, tensile.stat_quotas to tensile_user, tensile_monitor, tensile_worker;
-- Only on columns, because a privilege on the whole table would allow administrators to lock it.
grant insert (role_oid, role_name, jobs_running, jobs_queued, bytes, highest_priority, device_seconds, weight),
  update (role_name, jobs_running, jobs_queued, bytes, highest_priority, device_seconds, weight, changed_at, changed_by)
  on tensile.role_quotas to tensile_admin;

revoke execute on function tensile.quota_of(oid), tensile.owners_at_limit(integer, oid), tensile.queue_heads(oid[]),
  tensile.check_enqueued(), tensile.check_device_seconds(oid, text), tensile.check_raised_priority(),
  tensile.check_priority(text, integer, integer),
  tensile.quota_use() from public;
grant execute on function tensile.queue_heads(oid[]) to tensile_worker;
grant execute on function tensile.quota_of(oid), tensile.quota_use(), tensile.owners_at_limit(integer, oid)
  to tensile_user, tensile_monitor, tensile_worker;
