"""List everything that an installation of the catalog created, so that tests can compare two installations."""

from typing import Any

import psycopg

_EVERYTHING = r"""
with mine as (
  select n.oid as schema from pg_namespace as n where n.nspname = 'tensile'
), routines as (
  select p.* from mine, pg_proc as p
   where p.pronamespace = mine.schema
      or (p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%')
), relations as (
  select c.*, array(select a::text from unnest(coalesce(
           c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner))) as a
                     order by 1) as privileges
    from mine, pg_class as c where c.relnamespace = mine.schema
), columns as (
  select c.relname, a.*, array(select g::text from unnest(a.attacl) as g order by 1) as privileges
    from relations as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
   where c.relkind in ('r', 'v')
)
select format('column %s.%s %s %s %s %s %s', a.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
              pg_get_expr(d.adbin, d.adrelid), a.attstorage, a.privileges)
  from columns as a left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
union all
select format('comment on column %s.%s %s', a.relname, a.attname, col_description(a.attrelid, a.attnum))
  from columns as a
union all
select format('relation %s %s %s %s %s %s', relname, relkind, privileges, relrowsecurity, reloptions,
              obj_description(oid, 'pg_class'))
  from relations
union all
select format('constraint %s %s %s', conname, pg_get_constraintdef(k.oid), convalidated)
  from mine, pg_constraint as k where connamespace = mine.schema
union all
select indexdef from pg_indexes where schemaname = 'tensile'
union all
select format('view %s %s', viewname, definition) from pg_views where schemaname = 'tensile'
union all
select format('trigger %s', pg_get_triggerdef(t.oid))
  from relations as c join pg_trigger as t on t.tgrelid = c.oid where not t.tgisinternal
union all
select format('policy %s %s %s %s %s %s', tablename, policyname, roles, cmd, qual, with_check)
  from pg_policies where schemaname = 'tensile'
union all
select format('function %s %s %s %s %s', p.oid::regprocedure, md5(pg_get_functiondef(p.oid)), p.proowner::regrole,
              array(select a::text from unnest(coalesce(p.proacl, acldefault('f', p.proowner))) as a order by 1),
              obj_description(p.oid, 'pg_proc'))
  from routines as p
union all
select format('type %s %s %s', t.typname, obj_description(t.oid, 'pg_type'),
              array(select e.enumlabel from pg_enum as e where e.enumtypid = t.oid order by e.enumsortorder))
  from mine, pg_type as t where t.typnamespace = mine.schema and t.typtype = 'e'
union all
select format('schema %s %s %s %s', nspname, nspowner::regrole,
              array(select a::text from unnest(nspacl) as a order by 1),
              obj_description(oid, 'pg_namespace'))
  from pg_namespace where nspname in ('tensile', 'tensile_data')
union all
select format('dumped %s %s', d.relation::regclass, d.condition)
  from pg_extension as e cross join lateral unnest(e.extconfig, e.extcondition) as d (relation, condition)
 where e.extname = 'tensile'
union all
select format('member %s', pg_describe_object(d.classid, d.objid, d.objsubid))
  from pg_depend as d join pg_extension as e on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
 where e.extname = 'tensile' and d.deptype = 'e'
order by 1
"""


def list_catalog(connection: psycopg.Connection[Any]) -> list[str]:
    """Return one line for each object of the installation. An extension also has lines for its members and for the
    tables that dumps include.
    """
    return [row[0] for row in connection.execute(_EVERYTHING)]


def without_members(lines: list[str]) -> list[str]:
    """Return the lines without those that only an extension has."""
    return [line for line in lines if not line.startswith(("member ", "dumped "))]
