-- Statements of `tensile bench chaos`. {} stands for an identifier that the caller quotes.

-- create_database --
create database {}

-- worker_roles --
-- Roles that read users' tables or work on jobs. Some versions have only one of them.
select rolname from pg_roles where rolname in ('tensile_worker', 'tensile_reader') order by rolname

-- allow_login --
alter role {} login

-- create_owner --
create role {} login

-- grant_use --
grant tensile_user to {}

-- create_schema --
create schema {} authorization {}

-- grant_schema --
grant usage on schema {} to {}

-- create_table --
-- The rows depend on `salt` alone.
create table {} as
select i::bigint as id, sin(i * 1.7 + {salt}) as a, cos(i * 0.3 * {salt}) as b, sin(i * i * 0.01) as c,
       sin(i * 1.7 + {salt}) * cos(i * 0.3 * {salt}) + 0.1 * sin(i * 9.1) as y
  from generate_series(1, {rows}) as i

-- add_key --
alter table {} add primary key (id)

-- grant_table --
grant select on {} to {}

-- drop_table --
drop table {}

-- set_socket_directory --
insert into tensile.settings (name, value) values ('socket_directory', to_jsonb(%(directory)s::text))

-- train --
select public.tensile_train(%(model)s, %(relation)s::regclass, target => 'y', task => 'regression',
  architecture => %(architecture)s, hyperparams => %(hyperparams)s, features => '{a,b,c}', preprocess => '{}',
  split => '{}', early_stop => '{}', deploy => 'always', devices => %(devices)s, idempotency_key => %(key)s)

-- cancel --
select public.tensile_cancel(%(job)s)

-- predict --
select public.tensile_predict(%(model)s, %(row)s::jsonb)

-- unended --
select job_id from tensile.jobs
 where starts_with(model_name, 'chaos_') and state in ('queued', 'starting', 'running') order by job_id

-- unended_of_all --
select count(*) from tensile.jobs where state in ('queued', 'starting', 'running')

-- endings --
-- Every requested training, how often it ended, and the digests of the versions that it published.
select j.job_id, j.idempotency_key, j.model_name, j.state::text, j.error_sqlstate, j.error_message,
       (select count(*) from tensile.job_events as e
         where e.job_id = j.job_id and e.kind in ('succeeded', 'failed', 'cancelled')) as ends,
       array(select (select encode(sha256(string_agg(a.chunk, ''::bytea order by a.chunk_no)), 'hex')
                       from tensile.artifacts as a where a.version_id = v.version_id)
               from tensile.model_versions as v where v.job_id = j.job_id order by v.version_id) as digests
  from tensile.jobs as j
 where starts_with(j.model_name, 'chaos_') and j.job_id > %(after)s
 order by j.job_id

-- controllers --
-- Live workers by process: a value that changes with each heartbeat, and whether the worker has a service.
select distinct on (pid) pid, worker_id || ' ' || heartbeat_at as beat, service_name is not null as serves
  from tensile.workers where stopped_at is null order by pid, worker_id desc

-- device_bytes --
select coalesce(sum(d.granted_bytes + d.used_bytes), 0)::bigint
  from tensile.devices as d join tensile.workers as w using (worker_id) where w.stopped_at is null

-- catalog_rows_left --
-- Rows that should be gone: checkpoints and device memory of ended jobs, and service names of stopped workers.
select (select count(*) from tensile.checkpoints as c join tensile.jobs as j using (job_id)
         where j.state in ('succeeded', 'failed', 'cancelled'))
     + (select count(*) from tensile.device_jobs as d join tensile.jobs as j using (job_id)
         where j.state in ('succeeded', 'failed', 'cancelled'))
     + (select count(*) from tensile.workers where stopped_at is not null and service_name is not null)

-- worker_backends --
select pid from pg_stat_activity where usename in ('tensile_worker', 'tensile_reader') order by pid

-- terminate --
select pg_terminate_backend(%(pid)s)

-- bound_lock_wait --
set lock_timeout = '2s'

-- begin --
begin

-- rollback --
rollback

-- lock_jobs --
select job_id from tensile.jobs where owner_name = current_user for update

-- lock_table --
lock table {} in access exclusive mode

-- lock_models --
lock table tensile.models in access exclusive mode

-- reserve_model --
insert into tensile.models (name) values (%(model)s)

-- flood --
select count(pg_notify('tensile', p)) from generate_series(1, %(times)s) as i,
  lateral (values ('cancel ' || repeat('9', 5000)), ('cancel -1 ' || i), ('queued ' || i || 'x'), (''), (repeat('x', 7900)),
                  (E'changed \t1'), ('cancel ' || i || '.5'), ('Ω ' || i)) as v (p)

-- invalid_jobs --
-- Rows that a user may insert without tensile_train, and that the trigger of the table accepts. Most specifications
-- cannot be read, so the claim fails the job. Every fiftieth can, and its trainer refuses the architecture.
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
select 'invalid_' || current_user, 1, 'public', 'nothing',
       jsonb_build_object('model', 'invalid_' || current_user, 'target', 'y', 'task', 'regression',
                          'architecture', '{"type": "nothing"}'::jsonb,
                          'relation', '{"oid": 1, "schema": "public", "name": "nothing"}'::jsonb,
                          'column_numbers', case when mod(i, 50) = 1 then '{}' else '{"y": "one"}' end::jsonb)
  from generate_series(1, %(count)s) as i

-- interruptions --
-- How often an attempt of a job ended because of a kill or another fault, and the jobs for several devices.
select (select count(*) from tensile.job_events where kind = 'interrupted'),
       (select count(*) from tensile.jobs where devices > 1)

-- invalid_jobs_ended --
-- The jobs of `invalid_jobs`: how many failed with the error of their fault, how many ended otherwise, and how many have
-- not ended.
select count(*) filter (where state = 'failed' and error_sqlstate = '22023' and error_message = expected),
       count(*) filter (where state in ('failed', 'succeeded', 'cancelled')
                          and (state, error_sqlstate, error_message) is distinct from
                              ('failed'::tensile.job_state, '22023', expected)),
       count(*) filter (where state not in ('failed', 'succeeded', 'cancelled'))
  from tensile.jobs,
       lateral (select case when spec -> 'column_numbers' = '{}' then 'unknown architecture "nothing"'
                            else 'the specification of job ' || job_id || ' cannot be read: '
                                 || 'Expected `int`, got `str` - at `$.column_numbers[...]`'
                       end) as of_fault (expected)
 where starts_with(model_name, 'invalid_')

-- bound_time --
set statement_timeout = '10s'

-- history --
select at, kind, detail from tensile.job_events where job_id = %(job)s order by event_id
