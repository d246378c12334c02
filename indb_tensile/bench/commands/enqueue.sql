-- Statements of enqueue.py.

-- create_table --
create table tensile_bench_enqueue as
select i::bigint as id, random() as a, random() as b, (random() > 0.5) as target
  from generate_series(1, 5000) as i;

-- grant_table --
grant select on tensile_bench_enqueue to tensile_reader;

-- drop_table --
drop table tensile_bench_enqueue;

-- train --
select public.tensile_train('tensile_bench_enqueue', 'tensile_bench_enqueue', hyperparams => '{"epochs": 1000}');

-- worker --
select 1 from tensile.stat_workers limit 1;

-- first_step --
select step from tensile.job_progress where job_id = %s;

-- cancel --
select public.tensile_cancel(%s);
