"""SQL that names a column's base type, from which its kind follows (request/column_types.py).

A domain counts as the type below it, also as the element of an array. A type of a user has no name here: its
functions would run with the rights of whoever reads it. `vector` and `halfvec` are named if they belong to an
extension that a superuser owns.
"""

# The base type of the type `b`, a row of pg_type that is no domain, or null.
BASE_TYPE = """case
         when b.typnamespace = 'pg_catalog'::regnamespace then b.typname::text
         when b.typcategory = 'A' and b.typlen = -1 and b.typelem <> 0 then (
           with recursive element (oid) as (
               select b.typelem
               union all
               select t.typbasetype
                 from element as e join pg_catalog.pg_type as t on t.oid = e.oid
                where t.typtype = 'd'
           )
           select case when t.typtype = 'e' then '_enum'
                       when t.typnamespace = 'pg_catalog'::regnamespace and t.typelem = 0 then '_' || t.typname end
             from element as e join pg_catalog.pg_type as t on t.oid = e.oid and t.typtype <> 'd')
         when b.typname in ('vector', 'halfvec') and exists (
           select
             from pg_catalog.pg_depend as m
             join pg_catalog.pg_extension as x on x.oid = m.refobjid
             join pg_catalog.pg_roles as r on r.oid = x.extowner
            where m.classid = 'pg_catalog.pg_type'::regclass and m.objid = b.oid and m.deptype = 'e'
              and m.refclassid = 'pg_catalog.pg_extension'::regclass and r.rolsuper) then b.typname::text
       end"""
