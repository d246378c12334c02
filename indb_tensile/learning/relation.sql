-- The statements with which a trainer reads a user's table, as the role tensile_reader. Each block is named; see
-- relation.py. Those that describe a relation are in sql_api/readable.py, which the SQL functions share.

-- settle --
-- The session's settings, before anything else is run on it. They are statements, because PgBouncer refuses
-- them in a connection string. With row security off, a protected table raises an error instead of silently giving
-- fewer rows. Only a scan from the first page gives the same order twice. A catalog statement that takes a minute hangs.
set search_path = pg_catalog, pg_temp;
set default_transaction_read_only = on;
set row_security = off;
set synchronize_seqscans = off;
set client_encoding = 'UTF8';
set statement_timeout = '1min';
set idle_in_transaction_session_timeout = '10min'

-- begin_snapshot --
-- The snapshot itself is taken by the first query, after the locks; it ends before training starts, so that it
-- holds back no vacuum.
-- The settings are repeated, because a pooler may run the transaction in another session than the one that was settled.
set transaction isolation level repeatable read, read only;
set local search_path = pg_catalog, pg_temp;
set local row_security = off;
set local synchronize_seqscans = off;
set local client_encoding = 'UTF8';
set local statement_timeout = '1min';
set local idle_in_transaction_session_timeout = '10min'

-- set_lock_timeout --
set local lock_timeout = {milliseconds}

-- lock --
-- TRUNCATE and rewrites of a table do not respect snapshots: with this lock held first, there are none.
lock table {tables} in access share mode

-- locate --
-- The relation as it was enqueued (by oid), and the oid that its name has now.
select c.oid is not null, n.nspname, c.relname,
       (select other.oid
          from pg_catalog.pg_class as other
          join pg_catalog.pg_namespace as place on place.oid = other.relnamespace
         where place.nspname = %(schema)s and other.relname = %(name)s)
  from (values (%(oid)s::oid)) as asked (oid)
  left join pg_catalog.pg_class as c on c.oid = asked.oid
  left join pg_catalog.pg_namespace as n on n.oid = c.relnamespace

-- lockable --
-- LOCK TABLE needs SELECT on the whole table: one of which only columns were granted is locked by its own copy.
select c.oid
  from pg_catalog.pg_class as c
 where c.oid = any (%(oids)s::oid[]) and has_schema_privilege(c.relnamespace, 'usage')
   and has_table_privilege(c.oid, 'select')

-- owner_may_read --
-- Whether a role may use the schema and read these columns of the relation.
select r.rolname,
       has_schema_privilege(r.oid, %(schema)s, 'usage'),
       has_table_privilege(r.oid, %(oid)s::oid, 'select')
       or not exists (
           select from unnest(%(columns)s::text[]) as wanted (name)
            where not has_column_privilege(r.oid, %(oid)s::oid, wanted.name, 'select'))
  from pg_catalog.pg_roles as r
 where r.oid = %(role)s::oid

-- table_statistics --
-- Rows as PostgreSQL's planner counts them: as dense as when they were last counted, in the pages that there are now.
-- Where nobody has counted, from the widths of the columns' types (32 bytes where they vary, as the planner has it),
-- with 28 bytes that each row has beside its values. Out-of-line values are part of the size on disk.
select coalesce(sum(case when c.reltuples >= 0 and c.relpages > 0 then c.reltuples * f.pages / c.relpages
                         when c.reltuples = 0 and f.pages = 0 then 0
                         else f.pages * current_setting('block_size')::float8 / (28 + w.width_bytes) end), 0)::int8,
       coalesce(bool_and(c.reltuples >= 0 and (c.relpages > 0 or f.pages = 0)), true),
       coalesce(sum(f.stored_bytes), 0)::int8
  from pg_catalog.pg_class as c
 cross join lateral (
   select pg_relation_size(c.oid)::float8 / current_setting('block_size')::float8,
          pg_relation_size(c.oid)
          + case when c.reltoastrelid <> 0 then pg_relation_size(c.reltoastrelid) else 0 end
 ) as f (pages, stored_bytes)
 cross join lateral (
   select sum(case when a.attlen > 0 then a.attlen else 32 end)
     from pg_catalog.pg_attribute as a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 ) as w (width_bytes)
 where c.oid = any (%(oids)s::oid[])

-- column_statistics --
-- What ANALYZE found, of the columns that this role may read. Below zero, n_distinct is a share of the rows.
select s.attname, max(s.avg_width)::float8,
       max(case when s.n_distinct < 0 then -s.n_distinct * greatest(c.reltuples, 0) else s.n_distinct end)::float8,
       max(s.null_frac)::float8
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  join pg_catalog.pg_stats as s on s.schemaname = n.nspname and s.tablename = c.relname and not s.inherited
 where c.oid = any (%(oids)s::oid[])
 group by s.attname

-- set_copy_timeout --
-- Within four hours any table that fits a machine's memory arrives, over a slow network too.
set local statement_timeout = '4h'

-- copy_table --
-- Neither planned nor cast: no function of the table's owner runs (index, statistics and partition expressions would,
-- in the planner).
copy {table} ({columns}) to stdout (format binary)

-- changed --
-- Tables whose name is another table's by now, or whose rows were stored anew since the snapshot. The names and
-- the files are the newest ones, pg_class is the snapshot's. A catalog's own tables have no file in pg_class.
select n.nspname, c.relname
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = any (%(oids)s::oid[])
   and (to_regclass(format('%%I.%%I', n.nspname, c.relname))::oid is distinct from c.oid
        or c.relfilenode <> 0 and c.relfilenode is distinct from pg_relation_filenode(c.oid))

-- lock_holder --
-- Who keeps others from reading one of these tables, or waits to do so and was there before.
select n.nspname, c.relname, l.pid, a.usename
  from pg_catalog.pg_locks as l
  join pg_catalog.pg_class as c on c.oid = l.relation
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
 where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.relation = any (%(oids)s::oid[])
   and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
 order by l.granted desc, l.pid
 limit 1
