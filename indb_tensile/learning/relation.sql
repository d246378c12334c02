-- The statements with which a trainer reads a user's table. Each block is named; see relation.py.

-- begin_snapshot --
-- One snapshot for everything that follows; released before training starts, so that it holds back no vacuum.
set transaction isolation level repeatable read, read only

-- physical_order --
-- Only a plain sequential scan from the first page gives the same order twice. With row security off, a
-- protected table raises instead of silently giving fewer rows.
select set_config('row_security', 'off', true),
       set_config('synchronize_seqscans', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true),
       set_config('enable_indexscan', 'off', true),
       set_config('enable_indexonlyscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('client_encoding', 'UTF8', true)

-- locate --
-- The relation as it was enqueued (by oid), and the oid that its name has now.
select c.oid is not null, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relrowsecurity,
       (select other.oid
          from pg_catalog.pg_class as other
          join pg_catalog.pg_namespace as place on place.oid = other.relnamespace
         where place.nspname = %(schema)s and other.relname = %(name)s)
  from (values (%(oid)s::oid)) as asked (oid)
  left join pg_catalog.pg_class as c on c.oid = asked.oid
  left join pg_catalog.pg_namespace as n on n.oid = c.relnamespace

-- may_read --
-- Whether a role (null: the current one) may use the schema and read these columns.
select r.rolname,
       has_schema_privilege(r.oid, %(schema)s, 'usage'),
       has_table_privilege(r.oid, %(oid)s::oid, 'select')
       or not exists (
           select from unnest(%(columns)s::text[]) as wanted (name)
            where not has_column_privilege(r.oid, %(oid)s::oid, wanted.name, 'select'))
  from pg_catalog.pg_roles as r
 where r.oid = coalesce(%(role)s::oid, current_user::regrole::oid)

-- describe --
-- Every live column: its type (a domain's base type), whether it is an enum, and what role it plays in the key.
with recursive base (attnum, type, array_dims) as (
    select a.attnum, a.atttypid, a.attndims
      from pg_catalog.pg_attribute as a
     where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
    union all
    select b.attnum, t.typbasetype, greatest(b.array_dims, t.typndims)
      from base as b
      join pg_catalog.pg_type as t on t.oid = b.type
     where t.typtype = 'd'
)
select a.attname,
       format_type(a.atttypid, a.atttypmod),
       case when t.typnamespace = 'pg_catalog'::regnamespace then t.typname end,
       t.typtype = 'e',
       a.attnotnull,
       coalesce(a.attnum = any (i.indkey::int2[]), false),
       a.attidentity <> '',
       a.attgenerated <> '',
       b.array_dims::int
  from pg_catalog.pg_attribute as a
  join base as b on b.attnum = a.attnum
  join pg_catalog.pg_type as t on t.oid = b.type and t.typtype <> 'd'
  left join pg_catalog.pg_index as i on i.indrelid = a.attrelid and i.indisprimary
 where a.attrelid = %(oid)s::oid
 order by a.attnum

-- copy_rows --
copy (select {columns} from {relation}) to stdout (format binary)

-- named_now --
-- Who has the name in the catalog's newest state: the snapshot above would show an older one.
select to_regclass(format('%%I.%%I', %(schema)s::text, %(name)s::text))::oid
