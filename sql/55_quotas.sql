-- Quotas: how much of the queue and of the devices one role may have, so that no role keeps the others out.

create function tensile.quota_of(role_oid oid)
  returns table (jobs_running integer, jobs_queued integer, bytes bigint, highest_priority integer)
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(own.jobs_running, everybody.jobs_running, s.default_running),
         coalesce(own.jobs_queued, everybody.jobs_queued, 10000),
         coalesce(own.bytes, everybody.bytes),
         coalesce(own.highest_priority, everybody.highest_priority, 1000)
    from (select greatest(1, sum(w.slots) - 1)::integer as default_running from tensile.workers as w
           where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s)) as s
    left join tensile.role_quotas as own
      on own.role_oid = quota_of.role_oid and own.installation = (select tensile.installation())
    left join tensile.role_quotas as everybody
      on everybody.role_oid = 0 and everybody.installation = (select tensile.installation())
$$;
comment on function tensile.quota_of(oid) is
  'what a role may have: its own quota, else that of every role, else the default; null is no limit';

-- Whatever the statistics say: active jobs are read in the order of the one index that holds only them.
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
            select owners_at_limit.claimant, 0 where owners_at_limit.claimant is not null  -- it may have none yet
            union all
            select q.role_oid, 0 from tensile.role_quotas as q
             where q.jobs_running = 0 and q.role_oid <> 0 and q.installation = (select tensile.installation())) as a
     cross join lateral tensile.quota_of(a.owner_oid) as quota
     where a.jobs + owners_at_limit.more >= quota.jobs_running
     group by a.owner_oid)
$$;
comment on function tensile.owners_at_limit(integer, oid) is
  'roles with active jobs, and the claimant, whose quota would let no further job start if so many more were active';

-- Likewise. An equality would let the planner ignore owner_oid in the order, and walk the queue of all owners.
create function tensile.queue_heads(passed_over oid[])
  returns table (owner_oid oid, priority integer, job_id bigint)
  language sql stable
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_incremental_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
  set jit = off
as $$
  with recursive owners (owner_oid) as (
    (select q.owner_oid from tensile.jobs as q
      where q.state = 'queued' order by q.owner_oid, q.priority desc, q.job_id limit 1)
    union all
    select (select q.owner_oid from tensile.jobs as q
             where q.state = 'queued' and q.owner_oid > o.owner_oid
             order by q.owner_oid, q.priority desc, q.job_id limit 1)
      from owners as o where o.owner_oid is not null
  )
  select o.owner_oid, head.priority, head.job_id
    from owners as o
   cross join lateral (select q.priority, q.job_id from tensile.jobs as q
                        where q.owner_oid >= o.owner_oid and q.owner_oid <= o.owner_oid and q.state = 'queued'
                          and (q.not_before is null or q.not_before <= now())
                          and q.installation = (select tensile.installation())
                        order by q.owner_oid, q.priority desc, q.job_id limit 1) as head
   where o.owner_oid <> all (queue_heads.passed_over)
   order by head.priority desc, head.job_id
$$;
comment on function tensile.queue_heads(oid[]) is
  'the next job of each owner that waits and is not passed over, in the order of the queue';

-- Security definer: a user may not read all that is read here. The jobs that wait are counted only where there can be
-- too many, by the distance from the oldest to the newest: an enqueue costs the same however long the queue is.
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
    select j.job_id into oldest from tensile.jobs as j
     where j.owner_oid = enqueued.owner_oid and j.state = 'queued' order by j.owner_oid, j.job_id limit 1;
    continue when enqueued.newest - oldest < enqueued.jobs_queued;
    select count(*) into waiting
      from (select from tensile.jobs as j where j.owner_oid = enqueued.owner_oid and j.state = 'queued'
             limit enqueued.jobs_queued + 1) as counted;
    if waiting > enqueued.jobs_queued then
      raise exception 'role "%" may have % jobs in the queue, and this would be more',
                      enqueued.owner, enqueued.jobs_queued
        using errcode = 'program_limit_exceeded',
              hint = format('Wait until some of its jobs have started, or cancel some. A member of tensile_admin can '
                            'allow more: select tensile_set_quota(%L, jobs_queued => …);', enqueued.owner);
    end if;
  end loop;
  return null;
end
$$;
comment on function tensile.check_enqueued() is 'trigger: nobody enqueues more jobs, or more urgent ones, than their quota';

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
comment on function tensile.check_raised_priority() is 'trigger: nobody makes a job more urgent than their quota';

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
comment on function tensile.check_priority(text, integer, integer) is 'raises where a priority is above the highest';

create trigger jobs_within_quota after insert on tensile.jobs
  referencing new table as added
  for each statement execute function tensile.check_enqueued();

-- An administrator may make any job as urgent as jobs can be.
create trigger jobs_priority_within_quota before update of priority on tensile.jobs
  for each row when (new.priority > old.priority and new.owner_oid = tensile.current_role_oid())
  execute function tensile.check_raised_priority();

create function public.tensile_set_quota(
  role regrole, jobs_running integer default null, jobs_queued integer default null, bytes text default null,
  highest_priority integer default null
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
  insert into tensile.role_quotas (role_oid, role_name, jobs_running, jobs_queued, bytes, highest_priority)
  values (role::oid, coalesce((select r.rolname from pg_roles as r where r.oid = role::oid), '-'),
          tensile_set_quota.jobs_running, tensile_set_quota.jobs_queued, pg_size_bytes(tensile_set_quota.bytes),
          tensile_set_quota.highest_priority)
  on conflict on constraint role_quotas_pkey do update
     set role_name = excluded.role_name, jobs_running = excluded.jobs_running, jobs_queued = excluded.jobs_queued,
         bytes = excluded.bytes, highest_priority = excluded.highest_priority, changed_at = now(),
         changed_by = current_user;
end
$$;
comment on function public.tensile_set_quota(regrole, integer, integer, text, integer) is
  'sets what a role may have of the queue and the devices: jobs running and queued, device memory (such as ''2GB''), '
  'highest priority. What is left out has its default. ''-'' is every role that has no quota of its own';

create function tensile.quota_use()
  returns table (role_oid oid, jobs_running bigint, jobs_queued bigint, bytes numeric)
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select u.owner_oid, sum(u.running)::bigint, sum(u.queued)::bigint, sum(u.bytes)
    from (select j.owner_oid, count(*) as running, 0 as queued,
                 coalesce(sum((select sum(d.granted_bytes) from tensile.device_jobs as d
                                where d.job_id = j.job_id and d.worker_id = j.worker_id)), 0) as bytes
            from tensile.jobs as j where j.state in ('starting', 'running') group by j.owner_oid
          union all
          select j.owner_oid, 0, count(*), 0 from tensile.jobs as j where j.state = 'queued' group by j.owner_oid) as u
   group by u.owner_oid
$$;
comment on function tensile.quota_use() is 'how many jobs each role has running and queued, of the jobs that the caller may see, and what they were granted';

create view tensile.stat_quotas with (security_invoker) as
select r.rolname as role, coalesce(u.jobs_running, 0) as jobs_running, q.jobs_running as most_jobs_running,
       coalesce(u.jobs_queued, 0) as jobs_queued, q.jobs_queued as most_jobs_queued,
       coalesce(u.bytes, 0)::bigint as bytes, q.bytes as most_bytes, q.highest_priority,
       exists (select from tensile.role_quotas as o
                where o.role_oid = r.oid and o.installation = (select tensile.installation())
                  and num_nonnulls(o.jobs_running, o.jobs_queued, o.bytes, o.highest_priority) > 0) as is_set
  from pg_catalog.pg_roles as r
  left join tensile.quota_use() as u on u.role_oid = r.oid
 cross join lateral tensile.quota_of(r.oid) as q
 where (u.role_oid is not null
        or exists (select from tensile.role_quotas as o
                    where o.role_oid = r.oid and o.installation = (select tensile.installation())
                      and num_nonnulls(o.jobs_running, o.jobs_queued, o.bytes, o.highest_priority) > 0))
   and (pg_catalog.pg_has_role(r.oid, 'usage') or pg_catalog.pg_has_role('tensile_monitor', 'usage'))
 order by r.rolname;
comment on view tensile.stat_quotas is
  'what each role may have of the queue and the devices, and what it has; of other roles for tensile_monitor only';
comment on column tensile.stat_quotas.role is 'the role: one with jobs, or with a quota of its own';
comment on column tensile.stat_quotas.jobs_running is 'jobs of it that workers have';
comment on column tensile.stat_quotas.most_jobs_running is 'how many of these it may have';
comment on column tensile.stat_quotas.jobs_queued is 'jobs of it that wait in the queue';
comment on column tensile.stat_quotas.most_jobs_queued is 'how many of these it may have';
comment on column tensile.stat_quotas.bytes is 'device memory that its jobs were granted';
comment on column tensile.stat_quotas.most_bytes is 'how much of it they may be granted at once; null is no limit';
comment on column tensile.stat_quotas.highest_priority is 'highest priority that it may give a job';
comment on column tensile.stat_quotas.is_set is 'whether it has a quota of its own';

alter table tensile.role_quotas enable row level security;
create policy quota_of_role on tensile.role_quotas for select to tensile_user
  using (role_oid = 0 or role_oid = (select tensile.current_role_oid()));
create policy quotas_monitored on tensile.role_quotas for select to tensile_monitor using (true);
create policy quotas_administered on tensile.role_quotas to tensile_admin using (true) with check (true);
create policy quotas_worked on tensile.role_quotas for select to tensile_worker using (true);
grant select on tensile.role_quotas, tensile.stat_quotas to tensile_user, tensile_monitor, tensile_worker;
-- By columns: a privilege on the whole table would let administrators lock it.
grant insert (role_oid, role_name, jobs_running, jobs_queued, bytes, highest_priority),
  update (role_name, jobs_running, jobs_queued, bytes, highest_priority, changed_at, changed_by)
  on tensile.role_quotas to tensile_admin;

revoke execute on function tensile.quota_of(oid), tensile.owners_at_limit(integer, oid), tensile.queue_heads(oid[]),
  tensile.check_enqueued(), tensile.check_raised_priority(), tensile.check_priority(text, integer, integer),
  tensile.quota_use() from public;
grant execute on function tensile.queue_heads(oid[]) to tensile_worker;
grant execute on function tensile.quota_of(oid), tensile.quota_use(), tensile.owners_at_limit(integer, oid)
  to tensile_user, tensile_monitor, tensile_worker;
