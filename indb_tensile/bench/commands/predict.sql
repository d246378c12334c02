-- Statements of predict.py.

-- allow_login --
alter role {} login

-- create_rows --
create unlogged table bench_mlp as
select id, {columns}, random() as y from generate_series(1::bigint, {rows}) as id

-- create_images --
create unlogged table bench_cnn as
select id, array(select array(select random()::real from generate_series(1, 8) as x where id is not null and y is not null)
                   from generate_series(1, 8) as y) as pixels, random() as y
  from generate_series(1::bigint, {rows}) as id

-- create_key --
alter table {relation} add primary key (id)

-- create_sample --
create table {sample} as select * from {relation} limit 2000

-- create_repeated --
-- Four times the rows. It is a table, because tensile_predict_into copies the rows of a view.
create unlogged table bench_repeated as
select (number * {rows} + id) as id, {columns}, y from bench_mlp, generate_series(0, 3) as number

-- fill_statistics --
vacuum analyze {relation}

-- grant_table --
grant select on {relation} to tensile_reader

-- grant_use --
grant tensile_user to current_user

-- train --
select public.tensile_train(%(model)s, %(sample)s::regclass, 'y', 'regression', exclude => '{id}',
                            architecture => %(architecture)s, hyperparams => '{"epochs": 1}', deploy => 'always')

-- ended --
select state::text, error_message from tensile.jobs where job_id = %(job)s and finished_at is not null

-- stored --
select b.bundle, (select string_agg(a.chunk, ''::bytea order by a.chunk_no) from tensile.artifacts as a
                   where a.version_id = v.version_id) as weights
  from tensile.models as m
  join tensile.model_versions as v on v.model_id = m.model_id and v.deployed
  join tensile.version_bundles as b on b.version_id = v.version_id
 where m.name = %(model)s

-- set_directory --
select public.tensile_set_setting('socket_directory', %(directory)s)

-- service --
select (tensile.bridge('ping', '{}') #>> '{result,pid}')::integer

-- drop_answers --
drop table if exists bench_answers

-- store_answers --
create table bench_answers as
select (key ->> 'id')::bigint as id, value from public.tensile_predict_table(%(model)s, %(relation)s)

-- predict_into --
call public.tensile_predict_into_and_wait(%(model)s, %(relation)s, 'public.bench_view')

-- enqueue_prediction --
select public.tensile_predict_into(%(model)s, %(relation)s, 'public.bench_view', array['id'])

-- backends --
select 'backend ' || substring(application_name from '\((.*)\)$'), pid from pg_catalog.pg_stat_activity
 where starts_with(application_name, format('tensile trainer %%s (', %(job)s::bigint))

-- drop_view --
drop view if exists bench_view

-- drop_predictions --
select tensile.drop_prediction_tables(10)

-- create_answers --
create table bench_answers (id bigint, value double precision)

-- read_rows --
copy (select {columns} from {relation}) to stdout (format binary)

-- write_answers --
copy bench_answers from stdin (format binary)

-- largest_difference --
select max(abs(a.value - r.value)), count(*) filter (where a.value is null)
  from bench_reference as r left join {answers} as a using (id)

-- keep_answers --
drop table if exists bench_reference;
alter table bench_answers rename to bench_reference

-- declare_rows --
declare bench_rows cursor for select * from public.tensile_predict_table(%(model)s, %(relation)s, array['id'])

-- count_rows --
select count(value) from public.tensile_predict_table(%(model)s, %(relation)s, array['id'])

