-- Snapshot tables: the rows of a relation that the reader cannot copy (a view, a foreign or temporary table, rows
-- behind policies) are written by the caller's own session into a table that the reader can copy.
--
-- Nothing that a user owns is planned or evaluated here. The functions below belong to the role tensile_data, which
-- owns the snapshot tables and nothing else. They read the system catalog and the caller's own job, and the columns
-- of a snapshot table have base types of pg_catalog only. The caller's session evaluates the relation's queries,
-- policies and casts, with the caller's privileges.

revoke all on schema tensile_data from public;
grant usage on schema tensile_data to tensile_user, tensile_reader;

alter table tensile.snapshots enable row level security;
create policy snapshots_of_job on tensile.snapshots for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = snapshots.job_id));
create policy snapshots_monitored on tensile.snapshots for select to tensile_monitor using (true);
create policy snapshots_worked on tensile.snapshots for select to tensile_worker using (true);
create policy snapshots_written on tensile.snapshots to tensile_data using (true) with check (true);
create policy jobs_with_snapshots on tensile.jobs for select to tensile_data using (true);
grant select on tensile.snapshots to tensile_user, tensile_monitor, tensile_worker;
grant usage on schema tensile to tensile_data;
grant select on tensile.jobs, tensile.settings to tensile_data;
grant select, insert, update, delete on tensile.snapshots to tensile_data;

-- The columns of a snapshot of a relation. `stored` is null for a column that cannot be part of it.
create function tensile.snapshot_columns(relation oid)
  returns table (place integer, name name, stored text, converted boolean, key boolean)
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  with recursive base (attnum, attname, type, typmod) as (  -- the type below all domains
    select a.attnum, a.attname, a.atttypid, a.atttypmod
      from pg_attribute as a
     where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
    union all
    select b.attnum, b.attname, t.typbasetype, t.typtypmod
      from base as b join pg_type as t on t.oid = b.type
     where t.typtype = 'd'
  ), described as (
    select b.attnum, b.attname, b.type, b.typmod, t.typtype = 'e' as enumerated,
           t.typnamespace = 'pg_catalog'::regnamespace and t.typname in (
             'int2', 'int4', 'int8', 'float4', 'float8', 'numeric', 'bool', 'text', 'varchar', 'bpchar', 'char', 'name',
             'date', 'timestamp', 'timestamptz', '_int2', '_int4', '_int8', '_float4', '_float8', '_numeric') as learned,
           coalesce(b.attnum = any (i.indkey::int2[]), false) as key
      from base as b
      join pg_type as t on t.oid = b.type and t.typtype <> 'd'
      left join pg_index as i on i.indrelid = relation and i.indisprimary
  )
  -- A type of the user's own would let its owner's functions run here, and a snapshot would forbid to drop the type.
  select d.attnum::integer, d.attname,
         case when d.learned then format_type(d.type, d.typmod) when d.enumerated or d.key then 'text' end,
         not d.learned, d.key
    from described as d
$$;
comment on function tensile.snapshot_columns(oid) is
  'the columns that a snapshot of a relation can have: base types as they are, enums and other keys as text';

create function tensile.make_snapshot(job bigint, columns text[])
  returns table (relation text, name text, converted boolean)
  language plpgsql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
  set default_tablespace = ''
  set default_table_access_method = heap
  set client_min_messages = warning  -- there is nothing to drop, as a rule
as $$
declare
  owner name;
  source oid;
  target constant name := 'job_' || job;
  definition text;
  keys text[];
  ordinal name := 'place';
begin
  -- The transaction of the job's own INSERT, so that nobody makes one for another's job, or for a job that may run.
  select r.rolname, j.relation_oid into owner, source
    from tensile.jobs as j join pg_roles as r on r.oid = j.owner_oid
   where j.job_id = job and j.enqueued_xact = pg_current_xact_id() and j.state = 'queued';
  if not found then
    raise exception 'this transaction has enqueued no job %', job
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'tensile_train(...) makes a snapshot where one is needed; snapshot => true asks for one.';
  elsif exists (select from tensile.snapshots as s where s.job_id = job) then
    raise exception 'job % has a snapshot already', job using errcode = 'duplicate_table';
  end if;
  select string_agg(format('%I %s', c.name, c.stored), ', ' order by c.place),
         coalesce(array_agg(c.name::text order by c.place) filter (where c.key), '{}')
    into definition, keys
    from tensile.snapshot_columns(source) as c
   where c.stored is not null and (c.key or c.name::text = any (columns));
  if definition is null then
    raise exception 'the relation of job % has none of the columns %', job, columns using errcode = 'undefined_column';
  end if;
  while exists (select from tensile.snapshot_columns(source) as c where c.name = ordinal) loop
    ordinal := ordinal || '_';
  end loop;
  -- A copy of the database that was restored by pg_dump may have brought a table for a job that it did not bring.
  execute format('drop table if exists tensile_data.%I', target);
  -- The order of the rows: an insert may put a short row into a page that a long one has left. See seal_snapshot.
  execute format('create table tensile_data.%I (%s, %I bigint generated always as identity (cache 1000))'
                 ' with (autovacuum_enabled = off, toast.autovacuum_enabled = off)', target, definition, ordinal);
  execute format('grant insert on tensile_data.%I to %I', target, owner);
  set constraints tensile.snapshots_commit_sealed deferred;
  insert into tensile.snapshots (job_id, table_name, key) values (job, target, keys);
  return query
  select format('tensile_data.%I', target), c.name::text, c.converted
    from tensile.snapshot_columns(source) as c
   where c.stored is not null and (c.key or c.name::text = any (columns))
   order by c.place;
end
$$;
comment on function tensile.make_snapshot(bigint, text[]) is
  'creates the snapshot table of a job that this transaction has enqueued, with these columns and the key, and lets the '
  'job''s owner insert; the table, its columns, and which of them are converted to text';

create function tensile.seal_snapshot(job bigint) returns table (rows bigint, bytes bigint)
  language plpgsql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
  set synchronize_seqscans = off
  set max_parallel_workers_per_gather = 0
  set default_tablespace = ''
  set default_table_access_method = heap
as $$
#variable_conflict use_column
declare
  mine record;
  target text;
  unordered text;
  ordinal name;
  columns text;
  counted bigint;
  misplaced bigint;
  size constant text := 'Train on fewer rows or columns, or ask an administrator: select tensile_set_setting(''%s'', ...);';
  used bigint;
  most bigint;
  setting text;
begin
  select j.owner_oid, j.installation, r.rolname, s.table_name,
         format('%s.%s', j.relation_schema, j.relation_name) as subject
    into mine
    from tensile.snapshots as s join tensile.jobs as j using (job_id) join pg_roles as r on r.oid = j.owner_oid
   where s.job_id = job and not s.sealed and j.enqueued_xact = pg_current_xact_id();
  if not found then
    raise exception 'this transaction has made no snapshot for job %, or has sealed it', job
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'tensile_train(...) makes a snapshot where one is needed; snapshot => true asks for one.';
  end if;
  target := format('tensile_data.%I', mine.table_name);
  unordered := mine.table_name || '_unordered';  -- of this job, so that nobody waits for a name of another's transaction
  execute format('revoke insert on %s from %I', target, mine.rolname);
  select max(a.attname) filter (where a.attidentity <> ''),
         string_agg(quote_ident(a.attname), ', ' order by a.attnum) filter (where a.attidentity = '')
    into ordinal, columns
    from pg_attribute as a where a.attrelid = target::regclass and a.attnum > 0;
  -- Without an order of its own, a window function sees the rows as the scan gives them: in physical order.
  execute format('select count(*), count(*) filter (where s.place < s.before)'
                 '  from (select t.%1$I as place, lag(t.%1$I) over () as before from %2$s as t) as s', ordinal, target)
    into counted, misplaced;
  if misplaced = 0 then
    execute format('alter table %s drop column %I', target, ordinal);
  else  -- unlike an insert, create table as fills one page after the other
    execute format('alter table %s rename to %I', target, unordered);
    execute format('create table %s with (autovacuum_enabled = off, toast.autovacuum_enabled = off)'
                   ' as select %s from tensile_data.%I order by %I', target, columns, unordered, ordinal);
    execute format('drop table tensile_data.%I', unordered);
  end if;
  execute format('grant select on %s to tensile_reader', target);
  update tensile.snapshots as s
     set sealed = true, rows = counted, bytes = pg_total_relation_size(target::regclass)
   where s.job_id = job;
  for setting, used in
    select 'snapshot_max_bytes', s.bytes from tensile.snapshots as s where s.job_id = job
    union all
    select 'role_snapshots_max_bytes', sum(s.bytes)
      from tensile.snapshots as s join tensile.jobs as j using (job_id)
     where (j.owner_oid, j.installation) = (mine.owner_oid, mine.installation)
       and j.state not in ('succeeded', 'failed', 'cancelled')  -- a controller drops the others within a minute
    union all
    select 'all_snapshots_max_bytes', sum(s.bytes) from tensile.snapshots as s
  loop
    most := tensile.setting(setting) #>> '{}';
    if used > most then
      raise exception '%', format(
          case setting
            when 'snapshot_max_bytes' then 'the snapshot of "%1$s" has %2$s bytes, the most for one are %3$s'
            when 'role_snapshots_max_bytes' then 'with "%1$s" your snapshots have %2$s bytes, the most for one role are %3$s'
            else 'with "%1$s" all snapshots have %2$s bytes, the most for all together are %3$s'
          end, mine.subject, used, most)
        using errcode = 'program_limit_exceeded',
              detail = format('The snapshot of %s rows has %s bytes.', counted,
                              (select s.bytes from tensile.snapshots as s where s.job_id = job)),
              hint = case when setting <> 'snapshot_max_bytes'
                          then 'Wait until jobs that train on snapshots have ended. ' else '' end || format(size, setting);
    end if;
  end loop;
  return query select s.rows, s.bytes from tensile.snapshots as s where s.job_id = job;
end
$$;
comment on function tensile.seal_snapshot(bigint) is
  'ends the writing of a snapshot that this transaction has made: its owner may insert no more, the reader may read, and '
  'the rows are stored in the order of their insertion; '
  'raises where it is larger than the settings allow; its rows and bytes';

-- Without this a role could leave a table open for writing, past every limit, by calling make_snapshot alone.
create function tensile.require_sealed() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select from tensile.snapshots as s where s.job_id = new.job_id and not s.sealed) then
    raise exception 'the snapshot of job % is not sealed', new.job_id
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'tensile_train(...) makes a snapshot and seals it.';
  end if;
  return null;
end
$$;
comment on function tensile.require_sealed() is 'trigger: a transaction that made a snapshot commits only once it is sealed';

create constraint trigger snapshots_commit_sealed after insert on tensile.snapshots
  deferrable initially deferred
  for each row execute function tensile.require_sealed();

-- A table that somebody reads (a dump, a trainer that is being stopped) is left for the next call. A dump locks all of
-- them, so a few locked ones end the call: it must not keep a controller waiting.
create function tensile.drop_snapshots(most integer) returns bigint
  language plpgsql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '20ms'
as $$
declare
  found_table name;
  dropped bigint := 0;
  locked integer := 0;
begin
  for found_table in
    select c.relname
      from pg_class as c
      left join tensile.snapshots as s on s.table_name = c.relname
      left join tensile.jobs as j on j.job_id = s.job_id
     where c.relnamespace = 'tensile_data'::regnamespace and c.relkind = 'r' and c.relname ~ '^job_[0-9]+$'
       and (j.job_id is null or j.state in ('succeeded', 'failed', 'cancelled'))
     order by random()  -- one that stays locked does not keep the others
     limit most
  loop
    begin
      execute format('lock table tensile_data.%I in access exclusive mode', found_table);
      -- Another transaction may have replaced a table that a dump had brought by one for a new job of that number.
      continue when exists (
        select from tensile.snapshots as s join tensile.jobs as j using (job_id)
         where s.table_name = found_table and j.state not in ('succeeded', 'failed', 'cancelled'));
      execute format('drop table tensile_data.%I', found_table);
      dropped := dropped + 1;
    exception
      when undefined_table then null;
      when lock_not_available then
        locked := locked + 1;
        exit when locked = 3;
    end;
  end loop;
  delete from tensile.snapshots as s using tensile.jobs as j
   where j.job_id = s.job_id and j.state in ('succeeded', 'failed', 'cancelled')
     and not exists (select from pg_class as c
                      where c.relnamespace = 'tensile_data'::regnamespace and c.relname = s.table_name);
  return dropped;
end
$$;
comment on function tensile.drop_snapshots(integer) is
  'drops snapshot tables of jobs that have ended or are gone, at most so many, and skips those that are locked; how many';

alter function tensile.make_snapshot(bigint, text[]) owner to tensile_data;
alter function tensile.seal_snapshot(bigint) owner to tensile_data;
alter function tensile.require_sealed() owner to tensile_data;
alter function tensile.drop_snapshots(integer) owner to tensile_data;

revoke execute on function tensile.snapshot_columns(oid),
  tensile.make_snapshot(bigint, text[]), tensile.seal_snapshot(bigint), tensile.require_sealed(),
  tensile.drop_snapshots(integer) from public;
grant execute on function tensile.known_settings(), tensile.setting(text) to tensile_data;
grant execute on function tensile.snapshot_columns(oid) to tensile_data;
grant execute on function tensile.make_snapshot(bigint, text[]), tensile.seal_snapshot(bigint) to tensile_user;
grant execute on function tensile.drop_snapshots(integer) to tensile_worker, tensile_admin;
