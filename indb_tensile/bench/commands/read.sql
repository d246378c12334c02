-- Statements of read.py.

-- allow_login --
alter role {} login

-- create_table --
create unlogged table bench_read as
select {columns}, 10 * random() as y from generate_series(1, {rows})

-- fill_statistics --
vacuum analyze bench_read

-- grant_table --
grant select on bench_read to tensile_reader

-- grant_use --
grant tensile_user to current_user

-- table_bytes --
select pg_relation_size('bench_read')

-- train --
select public.tensile_train('bench_read', 'bench_read', 'y', 'regression',
                            architecture => '{"type": "mlp", "hidden": [128, 128]}', early_stop => '{"on": false}',
                            hyperparams => jsonb_build_object('epochs', %(epochs)s::integer, 'batch_size', 1024))

-- reached --
-- The job's state and error, whether a step is done, and whether the last epoch is.
select j.state::text, j.error_message, coalesce(p.step, 0) > 0 or coalesce(p.epoch, 0) > 1,
       j.phase = 'publishing' or j.state = 'succeeded'
  from tensile.jobs as j left join tensile.job_progress as p on p.job_id = j.job_id
 where j.job_id = %(job)s

-- ended --
select from tensile.jobs as j where j.job_id = %(job)s and j.state in ('succeeded', 'failed', 'cancelled')
