-- Gangs: jobs that several devices train together. The worker that claims such a job is its leader and has rank 0. The
-- claim offers the other ranks, and other workers accept them when they look for a job. The rows of a gang are deleted
-- with the end of the attempt, by the trigger of tensile.jobs.
--
-- A gang is complete when all its ranks train. Gangs form one after another, so that two of them do not each hold a device
-- that the other one waits for. A gang that reads a large table delays the others for two minutes at most.
--
-- A gang needs a place and memory on all its devices at once, and single jobs could take each as soon as it is free. So a
-- gang that has waited for a minute gets turns. In a turn as many workers as it needs claim no other job until it trains.
-- If it has lacked memory before, a turn begins only when these devices are foretold to be free within its length. A turn
-- is at most twice as long as the gang has waited since its last turn. So single jobs are held back for a bounded part of the time, and in vain only where
-- a forecast is wrong. Where forecasts are too short, each turn is twice as long as the one before. So a gang waits for a
-- small multiple of the time in which its devices end their jobs.
--
-- Only a gang that has its turn may have memory on one device and wait for memory on another one for long, and one gang
-- has its turn at a time. All others are given back within seconds (tensile.take_back_gangs()), so no two of them wait for
-- each other.

create function tensile.incomplete_gang() returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  -- The job is looked up in a sub-select, because a join could read the whole queue: the tables' statistics are out of
  -- date. Its attempt began at progress_at, since it saves no checkpoint before it trains.
  select min(r.job_id) from tensile.job_ranks as r
   where r.state not in ('training', 'finished')
     and (select j.progress_at from tensile.jobs as j where j.job_id = r.job_id) > now() - interval '2 minutes'
$$;
comment on function tensile.incomplete_gang() is
  'returns the job whose ranks do not all train yet, and which keeps other gangs from forming; null if there is none';

-- Ranks compute equal bits only on devices of one kind.
create function tensile.gang_devices(worker bigint, needs_bytes bigint default null) returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select count(*)
    from tensile.workers as mine
    join tensile.workers as w on w.device = mine.device and w.version = mine.version
    left join tensile.devices as d on d.worker_id = w.worker_id
   where mine.worker_id = gang_devices.worker and tensile.is_alive(w)
     and (gang_devices.needs_bytes is null or d.budget_bytes >= gang_devices.needs_bytes)
$$;
comment on function tensile.gang_devices(bigint, bigint) is
  'returns the number of living workers, this one included, whose devices are of the same kind and could hold a job of '
  'this need';

create function tensile.most_gang_devices(needs_bytes bigint default null) returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(max(tensile.gang_devices(w.worker_id, most_gang_devices.needs_bytes)), 0) from tensile.workers as w
   where tensile.is_alive(w)
$$;
comment on function tensile.most_gang_devices(bigint) is
  'returns the largest number of devices of one kind that could train a job of this need together now';

create function tensile.holds_back(worker bigint) returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select t.job_id from tensile.gang_turns as t
   where t.ends_at > now() and holds_back.worker = any (t.workers) order by t.job_id limit 1
$$;
comment on function tensile.holds_back(bigint) is
  'returns the job for several devices whose turn it is on the device of this worker, which claims no other job; null if '
  'there is none';

create function tensile.accepting_devices(worker bigint, needs_bytes bigint default null) returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select count(*)
    from tensile.workers as mine
    join tensile.workers as w on w.device = mine.device and w.version = mine.version
    join tensile.work_left() as l on l.worker_id = w.worker_id and (l.accepts or w.worker_id = mine.worker_id)
     and tensile.holds_back(w.worker_id) is null
    left join tensile.devices as d on d.worker_id = w.worker_id
   where mine.worker_id = accepting_devices.worker
     and (accepting_devices.needs_bytes is null or d.budget_bytes >= accepting_devices.needs_bytes)
$$;
comment on function tensile.accepting_devices(bigint, bigint) is
  'returns the number of workers, this one included, that would claim a job of this need now, whose devices are of the '
  'same kind and do not hold a place for a job that has its turn';

create function tensile.device_drains() returns table (worker_id bigint, drain_s double precision)
  language sql stable rows 5
  set search_path = pg_catalog, pg_temp
as $$
  with staying as (
    select j.worker_id, p.eta
      from tensile.jobs as j
      join tensile.workers as w on w.worker_id = j.worker_id
      left join tensile.job_progress as p on p.job_id = j.job_id
     where j.state = 'running' and not j.pause_requested and (j.devices > 1 or not w.makes_way)
    union all
    select r.worker_id, p.eta
      from tensile.job_ranks as r left join tensile.job_progress as p on p.job_id = r.job_id
     where r.rank > 0 and r.state = 'training'
  )
  select w.worker_id,
         coalesce((select max(coalesce(greatest(extract(epoch from s.eta - now()), 0), 60))  -- at first, as good as any
                     from staying as s where s.worker_id = w.worker_id), 0)::double precision
    from tensile.workers as w where w.stopped_at is null
$$;
comment on function tensile.device_drains() is
  'returns for each worker the seconds until those of its running jobs have ended that do not leave the device for a rank '
  'that waits for memory';

-- Most devices have memory for one more job, with a slower plan, and lack a place only. So the devices of a gang need not
-- be free before it was given back because a rank had no memory. The table has few events of one job.
create function tensile.has_lacked_memory(job bigint) returns boolean
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select exists (select from tensile.job_events as e
                  where e.job_id = has_lacked_memory.job and e.kind = 'requeued' and e.detail ->> 'lacks' = 'memory')
$$;
comment on function tensile.has_lacked_memory(bigint) is
  'returns whether a job for several devices was given back because one of them had no memory for it';

create function tensile.waiting_gangs() returns setof tensile.jobs
  language sql stable rows 5
  set search_path = pg_catalog, pg_temp
as $$
  select q.* from tensile.jobs as q
    left join tensile.gang_turns as t on t.job_id = q.job_id
   where q.state = 'queued' and q.devices > 1 and not q.pause_requested and not q.awaits_jobs
     and (q.not_before is null or q.not_before <= now()) and q.enqueued_at < now() - interval '1 minute'
     and q.installation = (select tensile.installation())
     and (t.job_id is null or t.ends_at + (t.ends_at - t.begins_at) <= now())
     and q.owner_oid <> all (tensile.owners_at_limit(0)) and tensile.may_train(q.owner_oid)
     and q.devices <= tensile.most_gang_devices(q.needs_bytes)
     and q.priority >= (select h.priority from tensile.jobs as h
                         where h.owner_oid = q.owner_oid and h.state = 'queued' and not h.pause_requested
                           and not h.awaits_jobs
                         order by h.owner_oid, h.priority desc, h.job_id limit 1)
   order by q.job_id limit 20
$$;
comment on function tensile.waiting_gangs() is
  'returns the oldest jobs for several devices that have waited long enough for a turn: their owners could train them now, '
  'have no job of a higher priority in the queue, and there are as many devices';

-- The workers of a turn are those whose devices will be free first, of the kind of which there are the most.
create function tensile.turn_workers(job tensile.jobs, out workers bigint[], out drain_s double precision)
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  with able as (
    select w.worker_id, l.accepts, l.work_s, f.drain_s, count(*) over (partition by w.device) as alike, w.device
      from tensile.workers as w join tensile.work_left() as l on l.worker_id = w.worker_id
      join tensile.device_drains() as f on f.worker_id = w.worker_id
      left join tensile.devices as d on d.worker_id = w.worker_id
     where tensile.is_alive(w) and w.version = tensile.catalog_version()
       and ((job).needs_bytes is null or d.budget_bytes >= (job).needs_bytes)
  ), chosen as (
    select a.worker_id, case when tensile.has_lacked_memory((job).job_id) then a.drain_s else 0 end as drain_s
      from able as a where a.alike >= (job).devices
     order by a.alike desc, a.device, a.drain_s, a.accepts desc, a.work_s, a.worker_id limit (job).devices
  )
  select array_agg(c.worker_id order by c.worker_id), max(c.drain_s) from chosen as c
$$;
comment on function tensile.turn_workers(tensile.jobs) is
  'returns the workers that hold back other jobs in a turn of this job, and the seconds until their devices are free for '
  'it, which they need not be before it has lacked memory; null if there are not enough';

create function tensile.turn_is_ready(job tensile.jobs) returns boolean
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select tensile.incomplete_gang() is null
     and exists (select from tensile.gang_turns as t
                  where t.job_id = (job).job_id
                    and (select count(*) from tensile.work_left() as l where l.worker_id = any (t.workers) and l.accepts)
                        >= (job).devices)
$$;
comment on function tensile.turn_is_ready(tensile.jobs) is
  'returns whether all workers of the job''s turn have a place for it';

-- Begins and ends turns. One turn at a time: two gangs that each wait for devices of the other one would both wait.
create function tensile.keep_turns() returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set enable_bitmapscan = off  -- the statistics of a queue are out of date, and must not prevent index scans
  set enable_seqscan = off
as $$
declare
  least_s constant double precision := 120;
  gang record;
begin
  delete from tensile.gang_turns as t
   where not exists (select from tensile.jobs as j where j.job_id = t.job_id and j.state in ('queued', 'starting'));
  update tensile.gang_turns as t set ends_at = now()
    from tensile.jobs as j
   where j.job_id = t.job_id and t.ends_at > now()
     and (j.state = 'queued' and (j.pause_requested or j.awaits_jobs or j.not_before > now())
          or exists (select from unnest(t.workers) as u (worker_id)
                      where not exists (select from tensile.workers as w
                                         where w.worker_id = u.worker_id and tensile.is_alive(w))));
  if exists (select from tensile.gang_turns as t where t.ends_at > now()) or tensile.incomplete_gang() is not null then
    return;
  end if;
  -- A turn may be twice as long as the wait since the last one. It is as long as the devices are foretold to need until
  -- they are free, with half as much again, and twice as long as the last turn. A gang whose devices need longer waits on.
  select q.job_id, c.workers,
         greatest(least_s, least(l.most_s, greatest(least_s * 2 ^ least(coalesce(t.turns, 0), 10), 1.5 * c.drain_s))) as length_s
    into gang
    from tensile.waiting_gangs() as q
    left join tensile.gang_turns as t on t.job_id = q.job_id
   cross join lateral tensile.turn_workers(q) as c
   cross join lateral (select 2 * extract(epoch from now() - coalesce(t.ends_at, q.enqueued_at)) as most_s) as l
   where c.workers is not null and c.drain_s <= greatest(least_s, l.most_s)
   order by q.job_id limit 1;
  if gang.job_id is null then
    return;
  end if;
  perform from tensile.workers as w  -- as in tensile.claim_job(): two workers could begin a turn at the same time
    where w.worker_id = (select min(v.worker_id) from tensile.workers as v where v.stopped_at is null)
      for no key update;
  insert into tensile.gang_turns as t (job_id, workers, begins_at, ends_at)
  select gang.job_id, gang.workers, now(), now() + make_interval(secs => gang.length_s)
   where not exists (select from tensile.gang_turns as o where o.ends_at > now())
      on conflict (job_id) do update
     set turns = t.turns + 1, workers = excluded.workers, begins_at = excluded.begins_at, ends_at = excluded.ends_at
   where t.ends_at + (t.ends_at - t.begins_at) <= now();
end
$$;
comment on function tensile.keep_turns() is
  'ends turns of jobs for several devices that have begun or cannot begin, and begins a turn of one that has waited long '
  'enough for its devices to be free within the turn, by forecasts';

-- What a queued job for several devices waits for, as tensile.stat_queue shows it. Security definer: a user does not see
-- the ranks of other users' jobs.
create function tensile.gang_words(job bigint, devices integer, needs_bytes bigint) returns text
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  most constant bigint := tensile.most_gang_devices(gang_words.needs_bytes);
  fewer_at constant timestamptz := (select j.short_since from tensile.jobs as j where j.job_id = gang_words.job)
                                   + (tensile.setting('fewer_devices_after') #>> '{}')::interval;
begin
  if gang_words.devices = 1 then
    return null;
  elsif most < gang_words.devices then
    return format('%s devices of one kind%s: controllers serve %s now', gang_words.devices,
                  case when gang_words.needs_bytes is not null
                       then ' with a budget of at least ' || pg_size_pretty(gang_words.needs_bytes) else '' end,
                  case most when 0 then 'none' else 'at most ' || most end)
           || case when fewer_at is null then '' else
                '; it goes on with fewer in ' || date_trunc('second', greatest(fewer_at - now(), interval '0')) end;
  elsif tensile.incomplete_gang() <> gang_words.job then
    return 'its turn: another job for several devices waits for all of them, and one such job starts at a time';
  elsif exists (select from tensile.gang_turns as t where t.job_id = gang_words.job and t.ends_at > now()) then
    return format('a place on %s devices at once, which claim no other job until then', gang_words.devices);
  end if;
  return null;
end
$$;
comment on function tensile.gang_words(bigint, integer, bigint) is
  'returns what a queued job for several devices waits for, in words; null if that is what other jobs wait for, too';

create function tensile.offer_ranks(job tensile.jobs) returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
begin
  insert into tensile.job_ranks (job_id, rank, worker_id, claim, state)
  values (job.job_id, 0, job.worker_id, job.claim, 'preparing');
  insert into tensile.job_ranks (job_id, rank) select job.job_id, r from generate_series(1, job.devices - 1) as r;
  insert into tensile.rank_values (job_id, rank, key, value)
  values (job.job_id, 0, 'secret', sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));
  perform pg_notify('tensile', 'queued ' || job.job_id);
end
$$;
comment on function tensile.offer_ranks(tensile.jobs) is
  'makes the worker that has claimed the job the leader of its gang, and offers the other ranks to the other workers';

-- A controller passes over owners that have many jobs on their way in. Jobs that only wait for memory are no reason to
-- pass over a rank, because ranks get memory before them. Those in preparation are: they may wait for a lock on a table
-- for as long as its owner likes.
create function tensile.may_prepare(worker bigint, owner oid) returns boolean
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select (select count(*) from tensile.jobs as j
           where j.worker_id = may_prepare.worker and j.state = 'starting' and j.owner_oid = may_prepare.owner
             and j.devices = 1 and j.phase is distinct from 'waiting for memory')
       + (select count(*) from tensile.job_ranks as r
           where r.worker_id = may_prepare.worker and r.state = 'preparing'
             and (select j.owner_oid from tensile.jobs as j where j.job_id = r.job_id) = may_prepare.owner)
       < (select w.entering from tensile.workers as w where w.worker_id = may_prepare.worker)
$$;
comment on function tensile.may_prepare(bigint, oid) is
  'returns whether the worker prepares fewer jobs of the owner than it may at once';

create function tensile.accept_rank(worker bigint) returns setof tensile.jobs
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
declare
  accepted tensile.job_ranks;
  job tensile.jobs;
begin
  -- Materialized, because a join could search anew for each row, and find another rank each time.
  with free as materialized (
    select o.job_id, o.rank
      from tensile.job_ranks as o
      join tensile.job_ranks as lead on lead.job_id = o.job_id and lead.rank = 0
     cross join lateral (select k.owner_oid, k.needs_bytes from tensile.jobs as k
                          where k.job_id = o.job_id limit 1) as j
      join tensile.workers as w on w.worker_id = lead.worker_id
      join tensile.workers as mine on mine.worker_id = accept_rank.worker
       and mine.device = w.device and mine.version = w.version
      left join tensile.devices as d on d.worker_id = mine.worker_id
     where o.state = 'offered' and tensile.may_prepare(accept_rank.worker, j.owner_oid)
       and (j.needs_bytes is null or d.budget_bytes >= j.needs_bytes)
       and coalesce(tensile.holds_back(accept_rank.worker), o.job_id) = o.job_id
       and not exists (select from tensile.job_ranks as own
                        where own.job_id = o.job_id and own.worker_id = accept_rank.worker)
     order by o.job_id, o.rank
       for update of o skip locked limit 1
  )
  update tensile.job_ranks as r
     set worker_id = accept_rank.worker, claim = nextval('tensile.claim_seq'), state = 'preparing', since = now()
    from free
   where r.job_id = free.job_id and r.rank = free.rank and r.state = 'offered'
  returning r.* into accepted;
  if accepted.job_id is null then
    return;
  end if;
  select j.* into job from tensile.jobs as j where j.job_id = accepted.job_id;
  job.claim := accepted.claim;
  job.worker_id := accepted.worker_id;
  return next job;
end
$$;
comment on function tensile.accept_rank(bigint) is
  'gives an offered rank to the worker, if its device is of the leader''s kind and it does not prepare enough jobs of the '
  'job''s owner; returns the job with the rank''s claim and worker';

-- A gang that is given back starts again after a pause, so that another gang, or another worker, has its turn. A turn in
-- which it was given back is over.
--
-- A rank that has memory keeps it from other jobs, so it has that for `patience_s` without all others. Ranks wait for four
-- times as long where all their devices make way for them: others leave as soon as they have trained for long enough. They
-- do, too, if no rank has memory: all only go before other jobs, and need not read the table and capture the step again.
-- In the job's turn, ranks wait until its end.
create function tensile.take_back_gangs(patience_s double precision) returns setof bigint
  language sql volatile
  set search_path = pg_catalog, pg_temp
as $$
  with unmet as (
    select r.job_id, coalesce(min(r.since) filter (where r.state = 'admitted'), max(r.since)) as since,
           make_interval(secs => case when bool_or(r.state = 'admitted') and not bool_and(w.makes_way is true) then 1 else 4 end
                                 * take_back_gangs.patience_s) as patience,
           bool_or(r.state = 'admitted') as holds
      from tensile.job_ranks as r left join tensile.workers as w on w.worker_id = r.worker_id
     group by r.job_id
    having bool_or(r.state = 'prepared') and not bool_or(r.state in ('offered', 'preparing'))
       and not exists (select from tensile.gang_turns as t where t.job_id = r.job_id and t.ends_at > now())
  ), late as (
    select r.job_id,
           format('all ranks to start at once, since %s had %s', string_agg('rank ' || r.rank, ' and ' order by r.rank),
                  case when bool_or(r.state = 'offered') then 'found no device'
                       when bool_or(u.holds) then 'not got memory while others held theirs'
                       else 'not got memory' end) as reason,
           case when bool_or(r.state = 'offered') then 'device' else 'memory' end as lacks
      from tensile.job_ranks as r
      join tensile.job_ranks as lead on lead.job_id = r.job_id and lead.rank = 0
      join tensile.workers as w on w.worker_id = lead.worker_id
      left join unmet as u on u.job_id = r.job_id
     where r.state = 'offered' and r.since < now() - make_interval(secs => w.lease_s)
        or r.state = 'prepared' and u.since < now() - u.patience
     group by r.job_id
  ), locked as (
    select j.job_id from tensile.jobs as j
     where j.job_id = any (array(select l.job_id from late as l)) and j.state in ('starting', 'running')
       for no key update of j skip locked
  ), free as (
    select locked.job_id, late.reason, late.lacks from locked join late on late.job_id = locked.job_id
  ), events as (
    insert into tensile.job_events (job_id, kind, detail)
    select f.job_id, 'requeued', jsonb_build_object('reason', f.reason, 'lacks', f.lacks) from free as f
  )
  update tensile.jobs as j
     set state = case when j.cancel_requested then 'cancelled' else 'queued' end::tensile.job_state,
         phase = null, worker_id = null, waits_for = case when not j.cancel_requested then free.reason end,
         not_before = case when not j.cancel_requested then now() + tensile.back_off(j.attempt) end,
         finished_at = case when j.cancel_requested then now() end
    from free
   where j.job_id = free.job_id and j.state in ('starting', 'running')
  returning j.job_id
$$;
comment on function tensile.take_back_gangs(double precision) is
  'returns gangs to the queue for which not all ranks were accepted within the leader''s lease, or of which some ranks have '
  'held memory for this long while others waited for theirs, or for four times as long if running jobs make way for them or '
  'none has memory, unless it is their turn; returns the jobs';

revoke execute on function tensile.incomplete_gang(), tensile.gang_devices(bigint, bigint),
  tensile.most_gang_devices(bigint), tensile.gang_words(bigint, integer, bigint), tensile.offer_ranks(tensile.jobs),
  tensile.accepting_devices(bigint, bigint), tensile.holds_back(bigint), tensile.device_drains(),
  tensile.has_lacked_memory(bigint), tensile.waiting_gangs(),
  tensile.turn_workers(tensile.jobs), tensile.turn_is_ready(tensile.jobs), tensile.keep_turns(),
  tensile.accept_rank(bigint), tensile.may_prepare(bigint, oid), tensile.take_back_gangs(double precision) from public;
