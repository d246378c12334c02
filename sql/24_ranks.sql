-- Gangs: jobs that several devices train together. The worker that claims such a job is its leader and has rank 0. The
-- claim offers the other ranks, and other workers accept them when they look for a job. The rows of a gang are deleted
-- with the end of the attempt, by the trigger of tensile.jobs.
--
-- A gang is complete when all its ranks train. Gangs form one after another, so that two of them do not each hold a device
-- that the other one waits for. A gang has its turn for two minutes: one that reads a large table, or waits for memory,
-- delays the others for no longer. If two gangs then hold devices that they need both, tensile.take_back_gangs() returns
-- them.

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
   where mine.worker_id = gang_devices.worker and w.stopped_at is null
     and w.heartbeat_at > now() - make_interval(secs => w.lease_s)
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
   where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s)
$$;
comment on function tensile.most_gang_devices(bigint) is
  'returns the largest number of devices of one kind that could train a job of this need together now';

-- What a queued job for several devices waits for, as tensile.stat_queue shows it. Security definer: a user does not see
-- the ranks of other users' jobs.
create function tensile.gang_words(job bigint, devices integer, needs_bytes bigint) returns text
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  most constant bigint := tensile.most_gang_devices(gang_words.needs_bytes);
begin
  if gang_words.devices = 1 then
    return null;
  elsif most < gang_words.devices then
    return format('%s devices of one kind%s: controllers serve %s now', gang_words.devices,
                  case when gang_words.needs_bytes is not null
                       then ' with a budget of at least ' || pg_size_pretty(gang_words.needs_bytes) else '' end,
                  case most when 0 then 'none' else 'at most ' || most end);
  elsif tensile.incomplete_gang() <> gang_words.job then
    return 'its turn: another job for several devices waits for all of them, and one such job starts at a time';
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

create function tensile.accept_rank(worker bigint, passed_over oid[]) returns setof tensile.jobs
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
declare
  accepted tensile.job_ranks;
  job tensile.jobs;
begin
  update tensile.job_ranks as r
     set worker_id = accept_rank.worker, claim = nextval('tensile.claim_seq'), state = 'preparing', since = now()
    from (select o.job_id, o.rank
            from tensile.job_ranks as o
            join tensile.job_ranks as lead on lead.job_id = o.job_id and lead.rank = 0
           cross join lateral (select k.owner_oid, k.needs_bytes from tensile.jobs as k
                                where k.job_id = o.job_id limit 1) as j
            join tensile.workers as w on w.worker_id = lead.worker_id
            join tensile.workers as mine on mine.worker_id = accept_rank.worker
             and mine.device = w.device and mine.version = w.version
            left join tensile.devices as d on d.worker_id = mine.worker_id
           where o.state = 'offered' and j.owner_oid <> all (accept_rank.passed_over)
             and (j.needs_bytes is null or d.budget_bytes >= j.needs_bytes)
             and not exists (select from tensile.job_ranks as own
                              where own.job_id = o.job_id and own.worker_id = accept_rank.worker)
           order by o.job_id, o.rank
             for update of o skip locked limit 1) as free
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
comment on function tensile.accept_rank(bigint, oid[]) is
  'gives an offered rank to the worker, if its device is of the leader''s kind and its claims do not pass over the job''s '
  'owner; returns the job with the rank''s claim and worker';

-- A gang that is given back starts again after a pause, so that another gang, or another worker, has its turn.
create function tensile.take_back_gangs(patience_s double precision) returns setof bigint
  language sql volatile
  set search_path = pg_catalog, pg_temp
as $$
  with late as (
    select r.job_id,
           format('all ranks to start at once, since %s had %s', string_agg('rank ' || r.rank, ' and ' order by r.rank),
                  case when bool_or(r.state = 'offered') then 'found no device'
                       else 'not got memory while others held theirs' end) as reason
      from tensile.job_ranks as r
      join tensile.job_ranks as lead on lead.job_id = r.job_id and lead.rank = 0
      join tensile.workers as w on w.worker_id = lead.worker_id
     where r.state = 'offered' and r.since < now() - make_interval(secs => w.lease_s)
        or r.state = 'prepared'
           and exists (select from tensile.job_ranks as held
                        where held.job_id = r.job_id and held.state = 'admitted'
                          and held.since < now() - make_interval(secs => take_back_gangs.patience_s))
     group by r.job_id
  ), locked as (
    select j.job_id from tensile.jobs as j
     where j.job_id = any (array(select l.job_id from late as l)) and j.state in ('starting', 'running')
       for no key update of j skip locked
  ), free as (
    select locked.job_id, late.reason from locked join late on late.job_id = locked.job_id
  ), events as (
    insert into tensile.job_events (job_id, kind, detail)
    select f.job_id, 'requeued', jsonb_build_object('reason', f.reason) from free as f
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
  'held memory for this long while others waited for theirs; returns the jobs';

revoke execute on function tensile.incomplete_gang(), tensile.gang_devices(bigint, bigint),
  tensile.most_gang_devices(bigint), tensile.gang_words(bigint, integer, bigint), tensile.offer_ranks(tensile.jobs),
  tensile.accept_rank(bigint, oid[]), tensile.take_back_gangs(double precision) from public;
