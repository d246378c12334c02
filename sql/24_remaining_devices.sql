-- Jobs for several devices after a device is gone. A job that has begun to train waits for another device in its place,
-- for as long as the setting fewer_devices_after says, and then goes on with fewer devices. The parts of a batch stay the
-- same, so with the exact sum the bits stay the same too.

-- Devices that would only wait are left to other jobs: 4 parts take as long on 3 devices as on 2.
create function tensile.useful_devices(parts bigint, places bigint) returns bigint
  language sql immutable parallel safe
  set search_path = pg_catalog, pg_temp
as $$
  select (parts + p.most - 1) / p.most from (select (parts + places - 1) / places as most) as p
$$;
comment on function tensile.useful_devices(bigint, bigint) is
  'returns the fewest devices on which none computes more of so many parts of a batch than with this many places';

-- Not in tensile.jobs, because the number follows from the request.
create function tensile.asked_devices(job tensile.jobs) returns integer
  language sql immutable
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(((job).spec ->> 'devices')::numeric::integer, (job).devices)
$$;
comment on function tensile.asked_devices(tensile.jobs) is 'returns the number of devices that the request of the job names';

-- Only a worker knows a size that it has chosen. It divides such a batch into a part for each device of the request.
create function tensile.batch_parts(job tensile.jobs) returns bigint
  language sql immutable
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(ceil(((job).spec #>> '{hyperparams,batch_size}')::numeric
                       / nullif(((job).spec #>> '{hyperparams,micro_batch_size}')::numeric, 0))::bigint,
                  tensile.asked_devices(job))
$$;
comment on function tensile.batch_parts(tensile.jobs) is
  'returns the number of parts of a full batch of the job, as far as its request says it';

-- A job is changed only while it is queued, so no attempt changes its ranks. Each controller calls this with each tick.
create function tensile.fit_gangs() returns table (job_id bigint, devices integer, asked integer)
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set enable_bitmapscan = off  -- the statistics of a queue are out of date, and must not prevent index scans
  set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  patience constant interval := (tensile.setting('fewer_devices_after') #>> '{}')::interval;  -- null: for ever
  gang record;
  fitting integer;
begin
  for gang in
    select j.job_id, j.devices, j.short_since, tensile.asked_devices(j) as asked, tensile.batch_parts(j) as parts,
           tensile.most_gang_devices(j.needs_bytes) as places
      from tensile.jobs as j
     where j.state = 'queued' and j.devices > 1 and j.attempt > 0 and not j.pause_requested
       and j.installation = (select tensile.installation())
     order by j.job_id
  loop
    fitting := case when gang.places >= gang.asked then gang.asked
                    when gang.places > 0 then tensile.useful_devices(greatest(gang.parts, gang.asked), gang.places) end;
    continue when fitting = gang.devices and gang.short_since is null
      or coalesce(fitting, 0) < gang.devices and gang.short_since is not null
         and (fitting is null or patience is null or gang.short_since + patience > now());
    perform from tensile.jobs as j
      where j.job_id = gang.job_id and j.state = 'queued' and j.devices = gang.devices
        for no key update skip locked;
    continue when not found;
    if coalesce(fitting, 0) < gang.devices and gang.short_since is null then
      update tensile.jobs as j set short_since = now() where j.job_id = gang.job_id;
      continue;
    end if;
    update tensile.jobs as j set devices = fitting, short_since = null where j.job_id = gang.job_id;
    if fitting <> gang.devices then
      insert into tensile.job_events (job_id, kind, detail)
      values (gang.job_id, 'devices',
              jsonb_build_object('from', gang.devices, 'to', fitting, 'asked', gang.asked,
                                 'reason', format('controllers serve %s devices of one kind', gang.places)));
      perform pg_notify('tensile', 'queued ' || gang.job_id);
      return query select gang.job_id, fitting, gang.asked;
    end if;
  end loop;
end
$$;
comment on function tensile.fit_gangs() is
  'gives queued jobs that have lost a device as many devices as there are, after the time of the setting '
  'fewer_devices_after, and more as soon as there are more; returns the jobs with the numbers of devices';

revoke execute on function tensile.useful_devices(bigint, bigint), tensile.asked_devices(tensile.jobs),
  tensile.batch_parts(tensile.jobs), tensile.fit_gangs() from public;
