-- Settings of the database, and the deletion of old rows.

-- The only list of settings. `kind` says which values are valid: directory (an absolute path), interval (longer than
-- zero), count (a whole number from 1), bytes (a whole number from 1). A kind that ends in "or null" also accepts null,
-- which means to keep rows for ever.
create function tensile.known_settings()
  returns table (name text, kind text, default_value jsonb, description text)
  language sql immutable parallel safe rows 10
  set search_path = pg_catalog, pg_temp
as $$
  values
    ('socket_directory', 'directory', null::jsonb, 'directory for the sockets of services'),
    ('tls_directory', 'directory', null, 'directory on the database''s host with the certificate for services of other hosts'),
    ('retain_jobs', 'interval or null', '"90 days"', 'how long an ended job is kept, with its rows in other tables'),
    ('retain_events', 'interval or null', '"30 days"', 'how long an event of a job is kept'),
    ('retain_metrics', 'interval or null', '"90 days"', 'how long losses and metrics are kept after the job''s end'),
    ('retain_plans', 'interval or null', '"7 days"', 'how long a plan is kept that was replaced or whose job ended; also who ran beside whom'),
    ('retain_workers', 'interval or null', '"7 days"', 'how long a worker is kept after it has stopped'),
    ('retain_links', 'interval or null', '"90 days"', 'how long measurements of a link are kept without a worker'),
    ('retain_usage', 'interval or null', '"400 days"', 'how long the use of devices by owner and model is kept'),
    ('retain_drift', 'interval', '"7 days"', 'how long the counts of predicted inputs are kept, and so how far back tensile.stat_drift looks'),
    ('retain_samples', 'interval', '"30 days"', 'how long the history of the devices'' memory is kept'),
    ('retain_versions', 'count or null', 'null', 'how many versions of a model are kept beside the deployed one'),
    ('usage_half_life', 'interval', '"1 hour"', 'time after which an owner''s use of devices counts half in the queue'),
    ('fewer_devices_after', 'interval or null', '"2 minutes"', 'how long a job that has lost one of its devices waits for another before it goes on with fewer'),
    ('snapshot_max_bytes', 'bytes', '2147483648', 'largest size of one snapshot'),
    ('role_snapshots_max_bytes', 'bytes', '8589934592', 'largest total size of one role''s snapshots'),
    ('all_snapshots_max_bytes', 'bytes', '34359738368', 'largest total size of all snapshots')
$$;
comment on function tensile.known_settings() is
  'returns the settings that tensile_set_setting accepts, with their defaults';

create function tensile.setting(name text) returns jsonb
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(s.value, k.default_value)
    from tensile.known_settings() as k left join tensile.settings as s on s.name = k.name
   where k.name = setting.name
$$;
comment on function tensile.setting(text) is 'returns the value of a setting, or its default';

create view tensile.setting_list with (security_invoker) as
  select k.name, coalesce(s.value, k.default_value) as value, k.default_value, k.kind, k.description, s.changed_at,
         s.changed_by
    from tensile.known_settings() as k left join tensile.settings as s on s.name = k.name
   order by k.name;
comment on view tensile.setting_list is
  'settings of the database with their values; an administrator changes a setting with tensile_set_setting';
comment on column tensile.setting_list.name is 'name of the setting';
comment on column tensile.setting_list.value is 'value of the setting';
comment on column tensile.setting_list.default_value is 'value of the setting if it is not set';
comment on column tensile.setting_list.kind is 'kind of the valid values';
comment on column tensile.setting_list.description is 'meaning of the setting';
comment on column tensile.setting_list.changed_at is 'time of the last change; null for a default';
comment on column tensile.setting_list.changed_by is 'role that made the last change; null for a default';

create function tensile.setting_fits(kind text, value jsonb) returns boolean
  language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
declare
  word text := value #>> '{}';
begin
  if kind like '% or null' and jsonb_typeof(value) = 'null' then
    return true;
  end if;
  return case split_part(kind, ' ', 1)
    when 'directory' then jsonb_typeof(value) = 'string' and word like '/%'
    when 'interval' then jsonb_typeof(value) = 'string' and word::interval > interval '0'
                         and word::interval <= interval '1000 years'  -- so that no time before now is out of range
    when 'count' then jsonb_typeof(value) = 'number' and word::numeric between 1 and 1000000
                      and word::numeric = trunc(word::numeric)
    when 'bytes' then jsonb_typeof(value) = 'number' and word::numeric between 1 and 9223372036854775807
                      and word::numeric = trunc(word::numeric)
  end;
exception
  when data_exception then
    return false;  -- the text is not an interval
end
$$;
comment on function tensile.setting_fits(text, jsonb) is 'true if a setting of this kind may have this value';

-- The first day whose counts of predicted inputs are kept: the day on which the period of the setting begins.
create function tensile.first_drift_day() returns date
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  return ((now() - (tensile.setting('retain_drift') #>> '{}')::interval) at time zone 'UTC')::date;
end
$$;
comment on function tensile.first_drift_day() is 'first day, in UTC, of the counts that tensile.stat_drift compares';

-- Security definer: workers may not delete jobs or versions, and through this function they delete only old rows.
-- The rows of a job are deleted before the job itself, so that no cascade deletes more rows than one step may.
create function tensile.vacuum_step(most integer default 1000) returns table (kind text, removed bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  remaining bigint := least(greatest(most, 1), 100000);
  most_versions constant bigint := 10;  -- the weights of a version have megabytes
  kept_versions bigint;
  cutoff timestamptz;
  ended bigint[];
  counts bigint[] := '{0,0,0,0,0,0,0,0,0}';  -- in the order of `kinds`
  kinds constant text[] := '{events,plans,metrics,jobs,workers,links,versions,usage,inputs}';
  deleted bigint;
begin
  -- The jobs that are old enough to be deleted with their rows in other tables. A search needs the jobs and versions of
  -- its trials until it ends.
  cutoff := now() - (tensile.setting('retain_jobs') #>> '{}')::interval;
  ended := array(select j.job_id from tensile.jobs as j
                  where j.finished_at < cutoff
                    and not exists (select from tensile.jobs as s where s.job_id = j.search_id and s.finished_at is null)
                  order by j.finished_at, j.job_id limit remaining);

  cutoff := now() - (tensile.setting('retain_events') #>> '{}')::interval;
  delete from tensile.job_events as e
   where e.event_id = any (array(select o.event_id from tensile.job_events as o where o.at < cutoff
                                  order by o.at limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[1] := deleted; remaining := remaining - deleted;
  delete from tensile.job_events as e
   where e.event_id = any (array(select o.event_id from tensile.job_events as o where o.job_id = any (ended)
                                  limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[1] := counts[1] + deleted; remaining := remaining - deleted;

  cutoff := now() - (tensile.setting('retain_plans') #>> '{}')::interval;
  delete from tensile.plans as p
   where p.plan_id = any (array(
           select o.plan_id from tensile.plans as o
            where o.created_at < cutoff
              and (exists (select from tensile.jobs as j where j.job_id = o.job_id and j.finished_at is not null)
                   or exists (select from tensile.plans as n where n.job_id = o.job_id and n.plan_id > o.plan_id))
            order by o.created_at limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[2] := deleted; remaining := remaining - deleted;
  delete from tensile.plans as p
   where p.plan_id = any (array(select o.plan_id from tensile.plans as o where o.job_id = any (ended)
                                 limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[2] := counts[2] + deleted; remaining := remaining - deleted;

  delete from tensile.job_sets as s
   where s.set_id = any (array(select o.set_id from tensile.job_sets as o
                                where o.ended_at < cutoff or o.job_id = any (ended)
                                order by o.set_id limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[2] := counts[2] + deleted; remaining := remaining - deleted;

  cutoff := now() - (tensile.setting('retain_metrics') #>> '{}')::interval;
  delete from tensile.metrics as m
   where m.ctid = any (array(
           select o.ctid from tensile.metrics as o
            where o.job_id in (select j.job_id from tensile.jobs as j where j.finished_at < cutoff)
            limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[3] := deleted; remaining := remaining - deleted;
  delete from tensile.metrics as m
   where m.ctid = any (array(select o.ctid from tensile.metrics as o where o.job_id = any (ended)
                              limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[3] := counts[3] + deleted; remaining := remaining - deleted;

  delete from tensile.jobs as j
   where j.job_id = any (array(
           select o.job_id from tensile.jobs as o
            where o.job_id = any (ended)
              and not exists (select from tensile.job_events as e where e.job_id = o.job_id)
              and not exists (select from tensile.plans as p where p.job_id = o.job_id)
              and not exists (select from tensile.metrics as m where m.job_id = o.job_id)
            limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[4] := deleted; remaining := remaining - deleted;

  cutoff := now() - (tensile.setting('retain_workers') #>> '{}')::interval;
  delete from tensile.workers as w
   where w.worker_id = any (array(
           select o.worker_id from tensile.workers as o
            where o.stopped_at < cutoff
              and not exists (select from tensile.jobs as j where j.worker_id = o.worker_id)
            limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[5] := deleted; remaining := remaining - deleted;
  delete from tensile.count_batches as b
   where b.source = any (array(select o.source from tensile.count_batches as o where o.stored_at < cutoff
                                order by o.source limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[5] := counts[5] + deleted; remaining := remaining - deleted;

  cutoff := now() - (tensile.setting('retain_links') #>> '{}')::interval;
  delete from tensile.device_links as l
   where l.ctid = any (array(
           select o.ctid from tensile.device_links as o
            where o.measured_at < cutoff
              and not exists (select from tensile.workers as w where w.host = o.host and w.stopped_at is null)
            limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[6] := deleted; remaining := remaining - deleted;
  delete from tensile.rank_networks as n
   where n.ctid = any (array(
           select o.ctid from tensile.rank_networks as o
            where o.measured_at < cutoff
              and not exists (select from tensile.workers as w where w.host = any (o.hosts) and w.stopped_at is null)
            limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[6] := counts[6] + deleted; remaining := remaining - deleted;

  kept_versions := (tensile.setting('retain_versions') #>> '{}')::bigint;
  delete from tensile.model_versions as v
   where v.version_id = any (array(
           select o.version_id from tensile.model_versions as o
            where not o.deployed  -- checked again after the row is locked
              and not exists (select from tensile.jobs as t join tensile.jobs as s on s.job_id = t.search_id
                               where t.job_id = o.job_id and s.finished_at is null)
              and o.version_id in (
                    select r.version_id
                      from (select n.version_id,
                                   row_number() over (partition by n.model_id order by n.number desc) as place
                              from tensile.model_versions as n
                             where kept_versions is not null and not n.deployed) as r
                     where r.place > kept_versions)
            limit least(remaining, most_versions) for update skip locked));
  get diagnostics deleted = row_count;
  counts[7] := deleted; remaining := remaining - deleted;

  cutoff := now() - (tensile.setting('retain_usage') #>> '{}')::interval;
  delete from tensile.usage as u
   where u.ctid = any (array(select o.ctid from tensile.usage as o where o.day < cutoff::date
                              order by o.day limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[8] := deleted; remaining := remaining - deleted;
  delete from tensile.owner_usage as u
   where u.ctid = any (array(select o.ctid from tensile.owner_usage as o where o.updated_at < cutoff
                              limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[8] := counts[8] + deleted; remaining := remaining - deleted;

  delete from tensile.predicted_inputs as p
   where p.ctid = any (array(select o.ctid from tensile.predicted_inputs as o
                              where o.day < tensile.first_drift_day() limit remaining for update skip locked));
  get diagnostics deleted = row_count;
  counts[9] := deleted;

  return query
  select c.name, c.rows from unnest(kinds, counts) with ordinality as c (name, rows, place)
   where c.rows > 0 order by c.place;
end
$$;
comment on function tensile.vacuum_step(integer) is
  'deletes at most this many rows that are older than the retain_ settings allow, and returns the number of each kind; '
  'controllers call it once a minute, and tensile vacuum calls it until no old rows are left';

revoke execute on function tensile.known_settings(), tensile.setting(text), tensile.setting_fits(text, jsonb),
  tensile.first_drift_day(), tensile.vacuum_step(integer) from public;
grant execute on function tensile.known_settings(), tensile.setting(text), tensile.first_drift_day()
  to tensile_user, tensile_monitor, tensile_admin, tensile_worker;
grant execute on function tensile.setting_fits(text, jsonb) to tensile_admin;
grant execute on function tensile.vacuum_step(integer) to tensile_admin, tensile_worker;
grant select on tensile.setting_list to tensile_user, tensile_monitor, tensile_admin, tensile_worker;
