-- model --
-- A deployed model that the caller may use and whose table still exists: the named model, or the first by name.
select m.name, c.oid::regclass::text as relation
  from tensile.models as m
  join tensile.model_versions as v on v.model_id = m.model_id and v.deployed
  join pg_catalog.pg_class as c on c.oid = v.relation_oid
 where %(model)s::text is null or m.name = %(model)s
 order by m.name
 limit 1

-- numeric --
-- Fails for a model that predicts text labels.
select public.tensile_predict(%(model)s, t) from tensile_bench_rows as t limit 1

-- create_rows --
-- Repeats the table's rows up to the given number.
create temporary table tensile_bench_rows as
select r.* from {relation} as r cross join generate_series(1, {count}) limit {count}

-- drop_rows --
drop table tensile_bench_rows

-- one_value --
select public.tensile_predict(%(model)s, t) from (select * from tensile_bench_rows limit 1) as t

-- one_label --
select public.tensile_predict_label(%(model)s, t) from (select * from tensile_bench_rows limit 1) as t

-- each_value --
select count(public.tensile_predict(%(model)s, t)) from tensile_bench_rows as t

-- each_label --
select count(public.tensile_predict_label(%(model)s, t)) from tensile_bench_rows as t

-- batches --
select sum(cardinality(public.tensile_predict_batch(%(model)s, rows)))
  from (select array_agg(t) as rows
          from (select t, row_number() over () as place from tensile_bench_rows as t) as numbered
         group by (place - 1) / %(batch)s) as grouped
