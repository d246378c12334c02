-- What the reference pages of functions and views say. Runs with search_path pinned to pg_catalog.

-- functions --
select p.proname, case p.prokind when 'p' then 'procedure' else 'function' end,
       array(select concat_ws(' ', case p.proargmodes[a.place] when 'b' then 'inout' end, p.proargnames[a.place],
                              format_type(coalesce(p.proallargtypes[a.place], p.proargtypes[a.place - 1]), null),
                              'default ' || pg_get_function_arg_default(p.oid, a.place::integer))
               from generate_series(1, p.pronargs) as a (place) order by a.place),
       pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc')
  from pg_proc as p
 where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
 order by p.proname, p.oid;

-- views --
select c.relname, obj_description(c.oid, 'pg_class'), a.attname, format_type(a.atttypid, a.atttypmod),
       col_description(c.oid, a.attnum)
  from pg_class as c
  join pg_attribute as a on a.attrelid = c.oid
 where c.relnamespace = 'tensile'::regnamespace and c.relkind = 'v' and a.attnum > 0 and not a.attisdropped
 order by c.relname, a.attnum;
