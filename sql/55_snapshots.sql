-- Snapshot tables: if the role tensile_reader cannot read the rows of a relation (a view, a foreign or temporary table,
-- rows behind policies), the caller's own session copies them into a table that tensile_reader can read.
--
-- These functions plan and evaluate no objects of users. They belong to the role tensile_data, which owns only the
-- snapshot tables. They read the system catalog and the caller's own job, and the columns of a snapshot table have only
-- base types of pg_catalog. The caller's session evaluates the relation's queries, policies and casts, with the
-- caller's privileges.

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

-- Returns the columns that a snapshot of a relation can have. `stored` is null for a column that a snapshot cannot
-- have. A query has the oid 0, and its columns are the arguments. So are the computed columns of a relation; its own
-- columns have the type null among the arguments.
create function tensile.snapshot_columns(
  relation oid, columns text[], types oid[], modifiers integer[], keys text[] default null
)
  returns table (place integer, name name, stored text, converted boolean, key boolean)
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  with recursive base (attnum, attname, type, typmod) as (  -- the type below all domains
    select a.attnum, a.attname, a.atttypid, a.atttypmod
      from pg_attribute as a
     where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
       and not exists (select from unnest(columns, types) as q (name, type)
                        where q.name = a.attname::text and q.type is not null)
    union all
    select (q.place + 1600)::int2, q.name::name, q.type, q.modifier  -- a relation has at most 1600 columns
      from unnest(columns, types, modifiers) with ordinality as q (name, type, modifier, place)
     where q.type is not null
    union all
    select b.attnum, b.attname, t.typbasetype, t.typtypmod
      from base as b join pg_type as t on t.oid = b.type
     where t.typtype = 'd'
  ), element (attnum, type) as (  -- the type of an array's elements, below all domains
    select b.attnum, t.typelem
      from base as b join pg_type as t on t.oid = b.type
     where t.typcategory = 'A' and t.typlen = -1 and t.typelem <> 0
    union all
    select e.attnum, t.typbasetype
      from element as e join pg_type as t on t.oid = e.type
     where t.typtype = 'd'
  ), described as (
    select b.attnum, b.attname, b.type, b.typmod, t.typtype = 'e' as enumerated,
           t.typnamespace = 'pg_catalog'::regnamespace and t.typname in (
             'int2', 'int4', 'int8', 'float4', 'float8', 'numeric', 'bool', 'text', 'varchar', 'bpchar', 'char', 'name',
             'uuid', 'date', 'timestamp', 'timestamptz', 'time', 'timetz', 'interval', 'json', 'jsonb', '_int2', '_int4',
             '_int8', '_float4', '_float8', '_numeric', '_bool', '_text', '_varchar', '_bpchar', '_name', '_uuid',
             'bytea'
           ) as learned,
           case when t.typname in ('vector', 'halfvec') and exists (
                       select
                         from pg_depend as m
                         join pg_extension as x on x.oid = m.refobjid
                         join pg_roles as r on r.oid = x.extowner
                        where m.classid = 'pg_type'::regclass and m.objid = b.type and m.deptype = 'e'
                          and m.refclassid = 'pg_extension'::regclass and r.rolsuper) then 'real[]'
                when l.typtype = 'e' then 'text[]'
                when l.typnamespace = 'pg_catalog'::regnamespace and l.typname in (
                       'int2', 'int4', 'int8', 'float4', 'float8', 'numeric', 'bool', 'text', 'varchar', 'bpchar',
                       'name', 'uuid') then format_type(l.typarray, null)
           end as list,
           case when keys is null then coalesce(b.attnum = any (i.indkey::int2[]), false)
                else b.attname::text = any (keys) end as key
      from base as b
      join pg_type as t on t.oid = b.type and t.typtype <> 'd'
      left join (element as e join pg_type as l on l.oid = e.type and l.typtype <> 'd') using (attnum)
      left join pg_index as i on i.indrelid = relation and i.indisprimary
  )
  -- User-defined types are excluded: the functions of the type's owner would run here, and the type could not be
  -- dropped while the snapshot exists.
  select d.attnum::integer, d.attname,
         case when d.learned then format_type(d.type, d.typmod) when d.enumerated then 'text'
              when d.list is not null then d.list when d.key then 'text' end,
         not d.learned, d.key
    from described as d
$$;
comment on function tensile.snapshot_columns(oid, text[], oid[], integer[], text[]) is
  'returns the columns that a snapshot of a relation, or of a query with these columns, can have: base types unchanged, '
  'enums and keys of other types as text, arrays of enums as text[], arrays of domains as arrays of their base type, '
  'vectors of pgvector as real[]; keys are the columns that identify rows, null those of the primary key';

-- `bytes` is the size of this snapshot, which is not yet in the catalog while rows are inserted.
create function tensile.check_snapshot_limits(job bigint, bytes bigint, detail text) returns void
  language plpgsql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  mine record;
  way_out constant text :=
    'Use fewer rows or columns, or ask an administrator: select tensile_set_setting(''%s'', ...);';
  used bigint;
  most bigint;
  setting text;
begin
  select j.owner_oid, j.installation,
         case j.relation_oid when 0 then 'the query'
           else format('"%s.%s"', j.relation_schema, j.relation_name) end as subject
    into mine
    from tensile.jobs as j where j.job_id = job;
  for setting, used in
    select 'snapshot_max_bytes', bytes
    union all
    select 'role_snapshots_max_bytes', bytes + coalesce(sum(s.bytes), 0)
      from tensile.snapshots as s join tensile.jobs as j using (job_id)
     where (j.owner_oid, j.installation) = (mine.owner_oid, mine.installation) and j.job_id <> job
       and j.state not in ('succeeded', 'failed', 'cancelled')  -- a controller drops the others within a minute
    union all
    select 'all_snapshots_max_bytes', bytes + coalesce(sum(s.bytes), 0)
      from tensile.snapshots as s where s.job_id <> job
  loop
    most := tensile.setting(setting) #>> '{}';
    if used > most then
      raise exception '%', format(
          case setting
            when 'snapshot_max_bytes' then 'the snapshot of %1$s has %2$s bytes, the most for one are %3$s'
            when 'role_snapshots_max_bytes' then 'with %1$s your snapshots have %2$s bytes, the most for one role are %3$s'
            else 'with %1$s all snapshots have %2$s bytes, the most for all together are %3$s'
          end, mine.subject, used, most)
        using errcode = 'program_limit_exceeded',
              detail = detail,
              hint = case when setting <> 'snapshot_max_bytes'
                          then 'Wait until jobs that train on snapshots have ended. ' else '' end
                     || format(way_out, setting);
    end if;
  end loop;
end
$$;
comment on function tensile.check_snapshot_limits(bigint, bigint, text) is
  'raises an error with this detail if the snapshot of a job, of so many bytes, is larger than the settings allow';

-- The size is checked while the rows are inserted, since the role may insert more than the disk holds. The argument is
-- the smallest size at which a limit can be exceeded, so that the settings are read only from there on.
create function tensile.check_snapshot_growth() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if pg_table_size(tg_relid) > tg_argv[0]::bigint then
    perform tensile.check_snapshot_limits(s.job_id, pg_table_size(tg_relid), 'Not all rows were copied.')
       from tensile.snapshots as s where s.table_name = tg_table_name;
  end if;
  return new;
end
$$;
comment on function tensile.check_snapshot_growth() is
  'trigger: ends the writing of a snapshot that is larger than the settings allow; the argument is the size in bytes '
  'from which on the settings are read';

create function tensile.snapshot_room(job bigint) returns bigint
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select least((tensile.setting('snapshot_max_bytes') #>> '{}')::bigint,
               (tensile.setting('role_snapshots_max_bytes') #>> '{}')::bigint
                 - coalesce(sum(s.bytes) filter (where o.owner_oid = mine.owner_oid
                              and o.state not in ('succeeded', 'failed', 'cancelled')), 0)::bigint,
               (tensile.setting('all_snapshots_max_bytes') #>> '{}')::bigint - coalesce(sum(s.bytes), 0)::bigint)
    from tensile.jobs as mine
    left join (tensile.snapshots as s join tensile.jobs as o using (job_id)) on s.job_id <> mine.job_id
   where mine.job_id = snapshot_room.job
   group by mine.owner_oid
$$;
comment on function tensile.snapshot_room(bigint) is
  'returns the size that the snapshot of a job may have by the settings and the present snapshots; may be negative';

-- The types and modifiers of a query's columns, and of a relation's computed ones, are arguments, because they have no
-- rows in the catalog. The caller may give others than those of the query: the columns have base types of pg_catalog in
-- any case, and the caller's session converts the values.
create function tensile.make_snapshot(
  job bigint, columns text[], types oid[] default null, modifiers integer[] default null,
  key_columns text[] default null
)
  returns table (relation text, name text, converted boolean)
  language plpgsql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
  set default_tablespace = ''
  set default_table_access_method = heap
  set client_min_messages = warning  -- "drop table if exists" usually finds no table
as $$
declare
  owner name;
  source oid;
  target constant name := 'job_' || job;
  definition text;
  writable text;
  keys text[];
  ordinal name := 'place';
begin
  -- Only the transaction that inserted the job may create its snapshot. So no role creates one for another role's job
  -- or for a job that a worker may already have claimed.
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
         string_agg(quote_ident(c.name), ', ' order by c.place),
         coalesce(array_agg(c.name::text order by c.place) filter (where c.key), '{}')
    into definition, writable, keys
    from tensile.snapshot_columns(source, columns, types, modifiers, key_columns) as c
   where c.stored is not null and (c.key or c.name::text = any (columns));
  if definition is null then
    raise exception 'the relation of job % has none of the columns %', job, columns using errcode = 'undefined_column';
  end if;
  while exists (select from tensile.snapshot_columns(source, columns, types, modifiers, key_columns) as c
                 where c.name = ordinal) loop
    ordinal := ordinal || '_';
  end loop;
  -- A dump contains the snapshot tables of jobs that it does not contain, so a restored copy may have this table
  -- already.
  execute format('drop table if exists tensile_data.%I', target);
  -- The extra column records the order of the rows, because an insert may put a short row into free space of an earlier
  -- page. See seal_snapshot.
  execute format('create table tensile_data.%I (%s, %I bigint generated always as identity (cache 1000))'
                 ' with (autovacuum_enabled = off, toast.autovacuum_enabled = off)', target, definition, ordinal);
  -- The owner may not choose the numbers of the rows: those that 250 divides check the size.
  execute format('create trigger check_growth before insert on tensile_data.%I for each row'
                 ' when (new.%I %% 250 = 0) execute function tensile.check_snapshot_growth(%s)',
                 target, ordinal, quote_literal(tensile.snapshot_room(job)));
  execute format('grant insert (%s) on tensile_data.%I to %I', writable, target, owner);
  set constraints tensile.snapshots_commit_sealed deferred;
  insert into tensile.snapshots (job_id, table_name, key) values (job, target, keys);
  return query
  select format('tensile_data.%I', target), c.name::text, c.converted
    from tensile.snapshot_columns(source, columns, types, modifiers, key_columns) as c
   where c.stored is not null and (c.key or c.name::text = any (columns))
   order by c.place;
end
$$;
comment on function tensile.make_snapshot(bigint, text[], oid[], integer[], text[]) is
  'creates the snapshot table of a job that this transaction has enqueued, with these columns and the key, and allows '
  'the job''s owner to insert; the columns of a job on a query come with their types and modifiers; returns the table, '
  'its columns, and which of them are converted to text. key_columns identify rows, null: the primary key''s';

create function tensile.seal_snapshot(job bigint, valid_rows bigint default 0, test_rows bigint default 0)
  returns table (rows bigint, bytes bigint)
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
begin
  select r.rolname, s.table_name
    into mine
    from tensile.snapshots as s join tensile.jobs as j using (job_id) join pg_roles as r on r.oid = j.owner_oid
   where s.job_id = job and not s.sealed and j.enqueued_xact = pg_current_xact_id();
  if not found then
    raise exception 'this transaction has made no snapshot for job %, or has sealed it', job
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'tensile_train(...) makes a snapshot where one is needed; snapshot => true asks for one.';
  end if;
  target := format('tensile_data.%I', mine.table_name);
  unordered := mine.table_name || '_unordered';  -- unique to the job: no wait for another transaction
  execute format('revoke insert on %s from %I', target, mine.rolname);
  execute format('drop trigger check_growth on %s', target);
  select max(a.attname) filter (where a.attidentity <> ''),
         string_agg(quote_ident(a.attname), ', ' order by a.attnum) filter (where a.attidentity = '')
    into ordinal, columns
    from pg_attribute as a where a.attrelid = target::regclass and a.attnum > 0;
  -- A window function without "order by" reads the rows in the order of the scan, which is their physical order.
  execute format('select count(*), count(*) filter (where s.place < s.before)'
                 '  from (select t.%1$I as place, lag(t.%1$I) over () as before from %2$s as t) as s', ordinal, target)
    into counted, misplaced;
  if misplaced = 0 then
    execute format('alter table %s drop column %I', target, ordinal);
  else  -- unlike an insert, "create table as" fills one page after the other
    execute format('alter table %s rename to %I', target, unordered);
    execute format('create table %s with (autovacuum_enabled = off, toast.autovacuum_enabled = off)'
                   ' as select %s from tensile_data.%I order by %I', target, columns, unordered, ordinal);
    execute format('drop table tensile_data.%I', unordered);
  end if;
  execute format('grant select on %s to tensile_reader', target);
  update tensile.snapshots as s
     set sealed = true, rows = counted, bytes = pg_total_relation_size(target::regclass),
         valid_rows = seal_snapshot.valid_rows, test_rows = seal_snapshot.test_rows
   where s.job_id = job;
  perform tensile.check_snapshot_limits(job, s.bytes, format('The snapshot of %s rows has %s bytes.', s.rows, s.bytes))
     from tensile.snapshots as s where s.job_id = job;
  return query select s.rows, s.bytes from tensile.snapshots as s where s.job_id = job;
end
$$;
comment on function tensile.seal_snapshot(bigint, bigint, bigint) is
  'ends the writing of a snapshot that this transaction has created: the job''s owner may insert no more rows, '
  'tensile_reader may read them, and they are stored in the order of their insertion; raises an error if the snapshot '
  'is larger than the settings allow, and returns its rows and bytes. The last test_rows rows are from the table of the '
  'test part, the valid_rows before them from the table of the validation part';

-- Without this trigger a role could call only make_snapshot and keep a table that it can fill beyond all limits.
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
comment on function tensile.require_sealed() is
  'trigger: a transaction that has created a snapshot can commit only after it has sealed the snapshot';

create constraint trigger snapshots_commit_sealed after insert on tensile.snapshots
  deferrable initially deferred
  for each row execute function tensile.require_sealed();

-- A table that another session reads (a dump, a trainer that is being stopped) is left to the next call. A dump locks
-- all snapshot tables, so three locked tables end the call, which must not keep a controller waiting.
--
-- Every user may use the schema, to insert, and PostgreSQL lets a role create a view on a table that the role may not
-- read, or a column of the table's row type. So "cascade" drops what users made from our tables.
create function tensile.drop_snapshots(most integer) returns bigint
  language plpgsql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '20ms'
  set client_min_messages = warning  -- "cascade" names what it drops
as $$
declare
  snapshot_table name;
  dropped bigint := 0;
  locked integer := 0;
begin
  for snapshot_table in
    select c.relname
      from pg_class as c
      left join tensile.snapshots as s on s.table_name = c.relname
      left join tensile.jobs as j on j.job_id = s.job_id
     where c.relnamespace = 'tensile_data'::regnamespace and c.relkind = 'r' and c.relname ~ '^job_[0-9]+$'
       and (j.job_id is null or j.state in ('succeeded', 'failed', 'cancelled'))
     order by random()  -- so that tables that stay locked do not always come first
     limit most
  loop
    begin
      execute format('lock table tensile_data.%I in access exclusive mode', snapshot_table);
      -- Another transaction may have replaced a table from a dump by the table of a new job with the same number.
      continue when exists (
        select from tensile.snapshots as s join tensile.jobs as j using (job_id)
         where s.table_name = snapshot_table and j.state not in ('succeeded', 'failed', 'cancelled'));
      execute format('drop table tensile_data.%I cascade', snapshot_table);
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
  'drops at most this many snapshot tables of ended or deleted jobs, and returns how many; skips locked tables';

alter function tensile.make_snapshot(bigint, text[], oid[], integer[], text[]) owner to tensile_data;
alter function tensile.seal_snapshot(bigint, bigint, bigint) owner to tensile_data;
alter function tensile.require_sealed() owner to tensile_data;
alter function tensile.check_snapshot_growth() owner to tensile_data;
alter function tensile.drop_snapshots(integer) owner to tensile_data;

revoke execute on function tensile.snapshot_columns(oid, text[], oid[], integer[], text[]),
  tensile.make_snapshot(bigint, text[], oid[], integer[], text[]), tensile.seal_snapshot(bigint, bigint, bigint),
  tensile.require_sealed(),
  tensile.check_snapshot_limits(bigint, bigint, text), tensile.check_snapshot_growth(), tensile.snapshot_room(bigint),
  tensile.drop_snapshots(integer) from public;
grant execute on function tensile.known_settings(), tensile.setting(text) to tensile_data;
grant execute on function tensile.snapshot_columns(oid, text[], oid[], integer[], text[]),
  tensile.check_snapshot_limits(bigint, bigint, text), tensile.snapshot_room(bigint) to tensile_data;
grant execute on function tensile.make_snapshot(bigint, text[], oid[], integer[], text[]),
  tensile.seal_snapshot(bigint, bigint, bigint) to tensile_user;
grant execute on function tensile.drop_snapshots(integer) to tensile_worker, tensile_admin;
