-- Named statements with which a trainer reads a user's table as the role tensile_reader (relation_reader.py). The statements
-- that describe a relation are in request/copyable_relation.py, which the SQL functions use too.

-- set_session --
-- Settings of the session, applied before any other statement. They are statements, because PgBouncer refuses them in
-- a connection string. With row security off, a protected table raises an error instead of silently giving fewer rows.
-- Synchronized scans are off, because only a scan from the first page returns the rows in the same order every time.
-- A statement on the catalog that takes a minute is assumed to hang.
set search_path = pg_catalog, pg_temp;
set default_transaction_read_only = on;
set row_security = off;
set synchronize_seqscans = off;
set client_encoding = 'UTF8';
set statement_timeout = '1min';
set idle_in_transaction_session_timeout = '10min'

-- begin_snapshot --
-- The first query after the locks takes the snapshot. The snapshot ends before training starts, so that it does not
-- hold back vacuum. The settings are repeated, because a pooler may run the transaction in a session other than the
-- one in which "set_session" was run.
set transaction isolation level repeatable read, read only;
set local search_path = pg_catalog, pg_temp;
set local row_security = off;
set local synchronize_seqscans = off;
set local client_encoding = 'UTF8';
set local statement_timeout = '1min';
set local idle_in_transaction_session_timeout = '10min'

-- import_snapshot --
-- PostgreSQL accepts this before the first query only. The session that has exported the snapshot must still be in its
-- transaction, in the same database of the same server.
set transaction snapshot {snapshot}

-- export_snapshot --
select pg_catalog.pg_export_snapshot()

-- server_start --
-- The time at which the server was started, as requests to the service name it: a replica has another one.
select (extract(epoch from pg_catalog.pg_postmaster_start_time()) * 1000000)::int8::text

-- still_wanted --
-- Whether the transaction that has exported the snapshot still runs, and its session does not wait for the reader's
-- own locks. A session that drops the table below an open cursor would wait for ever.
select exists (select from pg_catalog.pg_locks as l
                where l.locktype = 'virtualxid' and l.virtualxid = %(transaction)s and l.pid = %(pid)s and l.granted)
       and not %(reader)s = any (pg_catalog.pg_blocking_pids(%(pid)s))

-- set_lock_timeout --
set local lock_timeout = {milliseconds}

-- lock --
-- TRUNCATE and rewrites of a table do not respect snapshots. This lock prevents both.
lock table {tables} in access share mode

-- locate --
-- The relation that was enqueued (found by its oid), and the oid of the relation that has its name now.
select c.oid is not null, n.nspname, c.relname,
       (select other.oid
          from pg_catalog.pg_class as other
          join pg_catalog.pg_namespace as other_schema on other_schema.oid = other.relnamespace
         where other_schema.nspname = %(schema)s and other.relname = %(name)s)
  from (values (%(oid)s::oid)) as requested (oid)
  left join pg_catalog.pg_class as c on c.oid = requested.oid
  left join pg_catalog.pg_namespace as n on n.oid = c.relnamespace

-- lockable --
-- LOCK TABLE needs SELECT on the whole table. A table of which the role may read only single columns is locked by its
-- own COPY.
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
           select from unnest(%(columns)s::text[]) as required (name)
            where not has_column_privilege(r.oid, %(oid)s::oid, required.name, 'select'))
  from pg_catalog.pg_roles as r
 where r.oid = %(role)s::oid

-- table_statistics --
-- The number of rows as PostgreSQL's planner estimates it: the density of the last ANALYZE or VACUUM times the present
-- number of pages. If the rows were never counted, the density follows from the widths of the columns' types (32 bytes
-- for variable widths, as in the planner) and 28 bytes of overhead per row. The size on disk includes out-of-line
-- values.
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
-- Statistics of ANALYZE for the columns that this role may read. A negative n_distinct is a share of the rows.
select s.attname, max(s.avg_width)::float8,
       max(case when s.n_distinct < 0 then -s.n_distinct * greatest(c.reltuples, 0) else s.n_distinct end)::float8,
       max(s.null_frac)::float8
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  join pg_catalog.pg_stats as s on s.schemaname = n.nspname and s.tablename = c.relname and not s.inherited
 where c.oid = any (%(oids)s::oid[])
 group by s.attname

-- set_copy_timeout --
-- Four hours are enough for any table that fits into a machine's memory, over a slow network too.
set local statement_timeout = '4h'

-- set_no_copy_timeout --
-- A caller may take its rows as slowly as it likes, as long as its transaction runs.
set local statement_timeout = 0

-- send_stored_bytes --
-- In a database in SQL_ASCII PostgreSQL converts nothing, and this stops it from checking that texts are valid UTF-8.
set local client_encoding = 'SQL_ASCII'

-- send_utf8 --
set local client_encoding = 'UTF8'

-- copy_table --
-- COPY of a table neither plans nor casts, so no function of the table's owner runs. The planner would run expressions
-- of indexes, statistics and partition keys.
copy {table} ({columns}) to stdout (format binary)

-- changed --
-- Tables whose name belongs to another table now, or whose rows were rewritten since the snapshot. to_regclass and
-- pg_relation_filenode return the present state, pg_class the state of the snapshot. Mapped catalog tables have
-- relfilenode 0.
select n.nspname, c.relname
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = any (%(oids)s::oid[])
   and (to_regclass(format('%%I.%%I', n.nspname, c.relname))::oid is distinct from c.oid
        or c.relfilenode <> 0 and c.relfilenode is distinct from pg_relation_filenode(c.oid))

-- lock_holder --
-- The process that holds an exclusive lock on one of these tables, or that waits for such a lock and thereby blocks
-- later readers.
select n.nspname, c.relname, l.pid, a.usename
  from pg_catalog.pg_locks as l
  join pg_catalog.pg_class as c on c.oid = l.relation
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
 where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.relation = any (%(oids)s::oid[])
   and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
 order by l.granted desc, l.pid
 limit 1
