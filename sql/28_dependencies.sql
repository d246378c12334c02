-- Jobs that depend on other jobs: the check of a request, and what the end of a job does to those that wait for it.
--
-- A job may depend only on jobs that exist already, so there is no cycle. It may depend only on jobs of its own owner:
-- the end of a job writes the rows of its dependents, and nobody may make another role's rows wait. Jobs that wait for
-- others are not in the index that claims read, so they cost a claim nothing.

create function tensile.check_dependencies() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  most constant integer := 100;
  faulty record;
begin
  if array_ndims(new.depends_on) > 1 or cardinality(new.depends_on) > most
     or exists (select from unnest(new.depends_on) as d (id) where d.id is null) then
    raise exception 'depends_on is %', left(new.depends_on::text, 100)
      using errcode = 'invalid_parameter_value', detail = format('It is a list of at most %s numbers of jobs.', most),
            hint = 'Depend on a job that itself depends on others.';
  end if;
  new.depends_on := nullif(array(select distinct d.id from unnest(new.depends_on) as d (id) order by d.id), '{}');
  select d.id, j.state into faulty
    from unnest(new.depends_on) as d (id)
    left join tensile.jobs as j
      on j.job_id = d.id and j.owner_oid = new.owner_oid and j.installation = new.installation
   where j.state is null or j.state in ('failed', 'cancelled')
   order by j.state is not null, d.id limit 1;
  if found and faulty.state is null then
    raise exception 'there is no job %, on which the new job is to depend', faulty.id
      using errcode = 'undefined_object',
            detail = 'A job depends on jobs of the same owner that exist already, and have not been deleted since.',
            hint = 'See your jobs: select * from tensile.stat_jobs;';
  elsif found then
    raise exception 'job %, on which the new job is to depend, has ended: %', faulty.id, faulty.state
      using errcode = 'object_not_in_prerequisite_state', detail = 'A job can start only if all these jobs succeed.',
            hint = format('Repeat that job, and depend on the repetition: select tensile_retry(%s);', faulty.id);
  end if;
  new.awaits_jobs := exists (select from unnest(new.depends_on) as d (id) join tensile.jobs as j on j.job_id = d.id
                              where j.state <> 'succeeded');
  return new;
end
$$;
comment on function tensile.check_dependencies() is
  'trigger: refuses a job that depends on jobs that its owner does not have or that can no longer succeed';

create trigger jobs_check_dependencies before insert on tensile.jobs
  for each row when (new.state = 'queued' and new.depends_on is not null)
  execute function tensile.check_dependencies();

create function tensile.await_jobs() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  insert into tensile.awaited_jobs (job_id, awaited_id)
  select new.job_id, j.job_id from tensile.jobs as j
   where j.job_id = any (new.depends_on) and j.state <> 'succeeded';
  if not found and new.search_id is null then  -- the last of them has succeeded since the check
    update tensile.jobs as j set awaits_jobs = false where j.job_id = new.job_id;
  end if;
  return null;
end
$$;
comment on function tensile.await_jobs() is 'trigger: notes for which jobs a new job waits';

create trigger jobs_await_others after insert on tensile.jobs
  for each row when (new.awaits_jobs) execute function tensile.await_jobs();

-- Jobs, and rows of awaited_jobs, that another session has locked are left to the next call, and so are those beyond the first 1200: controllers
-- call settle_all_dependents() once a minute. That also finds a job whose last awaited job ended while the transaction
-- that enqueued it had not committed.
create function tensile.settle_dependents(ended bigint[]) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s'
as $$
declare
  -- The trigger of jobs joins the rows before and after a change by comparing all with all.
  most constant integer := 200;
  doomed bigint[];
  searches bigint[];
  settled bigint;
  failed bigint;
begin
  searches := array(select distinct a.job_id
                      from tensile.awaited_jobs as a join tensile.jobs as j on j.job_id = a.job_id
                     where a.awaited_id = any (ended) and j.search_id = j.job_id);
  with free as (
    select a.job_id, a.awaited_id
      from tensile.awaited_jobs as a join tensile.jobs as e on e.job_id = a.awaited_id
     where a.awaited_id = any (ended) and e.state = 'succeeded' for update of a skip locked
  ), met as (
    delete from tensile.awaited_jobs as a using free as f
     where (a.job_id, a.awaited_id) = (f.job_id, f.awaited_id) returning a.job_id, a.awaited_id
  ), ready as (
    select k.job_id from tensile.jobs as k
     where k.job_id in (select m.job_id from met as m) and k.state = 'queued' and k.awaits_jobs and k.search_id is null
       and not exists (select from tensile.awaited_jobs as a
                        where a.job_id = k.job_id
                          and (a.job_id, a.awaited_id) not in (select m.job_id, m.awaited_id from met as m))
       for no key update skip locked
  )
  update tensile.jobs as j set awaits_jobs = false from ready where j.job_id = ready.job_id;
  get diagnostics settled = row_count;

  doomed := array(with recursive doomed (job_id) as (
    select a.job_id
      from tensile.awaited_jobs as a
      left join tensile.jobs as e on e.job_id = a.awaited_id
     where a.awaited_id = any (ended) and (e.job_id is null or e.state in ('failed', 'cancelled'))
    union
    select a.job_id from doomed as d join tensile.awaited_jobs as a on a.awaited_id = d.job_id
  ) select d.job_id from doomed as d limit most);
  with locked as (
    select k.job_id from tensile.jobs as k
     where k.job_id = any (doomed) and k.state = 'queued' and k.awaits_jobs for no key update skip locked
  )
  update tensile.jobs as j
     set state = 'failed', awaits_jobs = false, waits_for = null, not_before = null, finished_at = now(),
         error_sqlstate = '55000',
         error_message = format('job %s depends on job %s, which %s', j.job_id, cause.job_id, cause.outcome),
         error_detail = cause.message,
         error_hint = format('Repeat that job and then this one: select tensile_retry(%s); select tensile_retry(%s);',
                             cause.job_id, j.job_id)
    from locked
   cross join lateral (
     select a.awaited_id as job_id, e.error_message as message,
            case when e.job_id is null then 'no longer exists' when e.state = 'cancelled' then 'was cancelled'
                 else 'failed' end as outcome
       from tensile.awaited_jobs as a left join tensile.jobs as e on e.job_id = a.awaited_id
      where a.job_id = locked.job_id
        and (e.job_id is null or e.state in ('failed', 'cancelled')
             or a.awaited_id = any (doomed))
      order by e.state in ('failed', 'cancelled') desc nulls first, a.awaited_id limit 1) as cause
   where j.job_id = locked.job_id;
  get diagnostics failed = row_count;
  perform pg_notify('tensile', 'search ' || s.job_id) from unnest(searches) as s (job_id);
  return settled + failed;
end
$$;
comment on function tensile.settle_dependents(bigint[]) is
  'lets jobs start whose awaited jobs have all succeeded, and fails jobs that depend on one of these jobs that failed, '
  'was cancelled or is gone, with the jobs that depend on them in turn; returns how many jobs it changed';

create function tensile.settle_all_dependents() returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s'
as $$
declare
  freed bigint;
begin
  update tensile.jobs as j set awaits_jobs = false
    from (select k.job_id from tensile.jobs as k
           where k.awaits_jobs and k.state = 'queued' and k.search_id is null
             and not exists (select from tensile.awaited_jobs as a where a.job_id = k.job_id)
             for no key update skip locked) as ready
   where j.job_id = ready.job_id;
  get diagnostics freed = row_count;
  return freed + tensile.settle_dependents(array(
    select distinct a.awaited_id
      from tensile.awaited_jobs as a left join tensile.jobs as e on e.job_id = a.awaited_id
     where e.job_id is null or e.finished_at is not null
     order by a.awaited_id limit 1000));
end
$$;
comment on function tensile.settle_all_dependents() is
  'does for all jobs that wait for others what the end of a job does for its own dependents, where a lock or a large '
  'number prevented that; returns how many jobs it changed, so call it again until it returns 0';

create function tensile.awaited_words(job bigint) returns text
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select case count(*) when 0 then null when 1 then format('job %s to succeed', min(a.awaited_id))
              else format('jobs %s%s to succeed', string_agg(a.awaited_id::text, ', ' order by a.awaited_id)
                                                    filter (where a.place <= 5),
                          case when count(*) > 5 then format(' and %s more', count(*) - 5) end) end
    from (select w.awaited_id, row_number() over (order by w.awaited_id) as place
            from tensile.awaited_jobs as w where w.job_id = job) as a
$$;
comment on function tensile.awaited_words(bigint) is
  'names the jobs that a job waits for, in words; null if there are none';

alter table tensile.awaited_jobs enable row level security;
create policy awaited_jobs_of_job on tensile.awaited_jobs for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = awaited_jobs.job_id));
create policy awaited_jobs_monitored on tensile.awaited_jobs for select to tensile_monitor using (true);
create policy awaited_jobs_worked on tensile.awaited_jobs for select to tensile_worker using (true);
grant select on tensile.awaited_jobs to tensile_user, tensile_monitor, tensile_worker;

revoke execute on function tensile.check_dependencies(), tensile.await_jobs(), tensile.settle_dependents(bigint[]),
  tensile.settle_all_dependents(), tensile.awaited_words(bigint) from public;
grant execute on function tensile.settle_all_dependents() to tensile_worker, tensile_admin;
grant execute on function tensile.awaited_words(bigint) to tensile_user, tensile_monitor, tensile_worker;
