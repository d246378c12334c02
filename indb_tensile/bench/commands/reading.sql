-- Statements of reading.py.

-- allow_login --
alter role {} login

-- create_table --
create unlogged table bench_reading as
select {columns}, 10 * random() as y from generate_series(1, {rows})

-- fill_statistics --
vacuum analyze bench_reading

-- grant_table --
grant select on bench_reading to tensile_reader

-- grant_use --
grant tensile_user to current_user

-- train --
select public.tensile_train('bench_reading', 'bench_reading', 'y', 'regression',
                            hyperparams => '{"epochs": 1, "batch_size": 256}')

-- first_step --
select p.step from tensile.job_progress as p where p.job_id = %(job)s

-- ended --
select state::text, error_message from tensile.jobs where job_id = %(job)s and state in ('succeeded', 'failed', 'cancelled')

-- cancel --
select public.tensile_cancel(%(job)s)
