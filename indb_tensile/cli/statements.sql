-- The command line's statements. Most run with search_path pinned to pg_catalog, and qualify all other names with their
-- schema. Statements that resolve names written by the user, or that read the user's path, run with the user's
-- search_path and qualify every name, type and operator: tests/sql/test_qualified.py lists them.

-- database_exists --
select 1 from pg_catalog.pg_database where datname = %(name)s;

-- prepare_embedded_roles --
-- The embedded cluster belongs to one user. Its ordinary role is demo, and trainers may read every table.
do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'demo') then
    create role demo login;
  end if;
  grant tensile_user to demo;
  -- A superuser could call functions that demo creates in a schema on the superuser's search_path, so demo has a schema
  -- of its own.
  revoke create on schema public from public, demo;
  create schema if not exists demo authorization demo;
  execute pg_catalog.format('alter role demo in database %I set search_path = demo, public',
                            pg_catalog.current_database());
  alter role tensile_worker login;
  alter role tensile_reader login;
  grant pg_read_all_data to tensile_reader;
  revoke pg_read_all_data from tensile_worker;
end
$$;

-- set_socket_directory --
insert into tensile.settings (name, value) values ('socket_directory', pg_catalog.to_jsonb(%(directory)s::text))
    on conflict (name) do update set value = excluded.value, changed_at = now(), changed_by = current_user
 where settings.value <> excluded.value;

-- set_setting --
select public.tensile_set_setting(%(name)s::text, %(value)s)

-- end_worker --
-- Marks a worker as stopped whose process has ended. Other workers can then take over its jobs before its lease ends.
update tensile.workers set stopped_at = now(), service_name = null, service_address = null, service_host_name = null
 where pid = %(pid)s and host = %(host)s and stopped_at is null;

-- worker_is_ready --
select 1 from tensile.workers as w
 where w.pid = %(pid)s and w.service_name is not null
   and tensile.is_alive(w);  -- a killed worker may have had the same pid

-- device_of_worker --
select w.device, w.device_name, d.budget_bytes, d.capacity_bytes
  from tensile.workers as w left join tensile.devices as d on d.worker_id = w.worker_id
 where w.pid = %(pid)s and w.stopped_at is null
 order by w.worker_id desc limit 1

-- check --
select c.item, c.ok, c.detail, c.hint from public.tensile_check() as c;

-- roles --
-- The roles of this package that are missing, and whether the current role may use the functions.
select array(select w.name from unnest(array['tensile_user', 'tensile_monitor', 'tensile_admin', 'tensile_worker',
                                           'tensile_reader', 'tensile_data'])
                             with ordinality as w (name, place)
              where not exists (select from pg_roles as r where r.rolname = w.name) order by w.place) as missing,
       quote_ident(current_user) as me,
       exists (select from pg_roles as r
                where r.rolname = 'tensile_user' and pg_has_role(current_user, r.oid, 'usage')) as is_user;

-- readable_tables --
-- Counts the tables, including partitions, that the current role may read, and those of them that tensile_reader may
-- read.
select count(*) as tables, count(*) filter (where t.readable) as readable,
       min(t.mend) filter (where not t.readable) as mend
  from (select case when has_schema_privilege(w.oid, n.oid, 'usage') then ''
                    else 'grant usage on schema ' || quote_ident(n.nspname) || ' to tensile_reader; ' end
               || 'grant select on ' || c.oid::regclass::text || ' to tensile_reader;' as mend,
               has_schema_privilege(w.oid, n.oid, 'usage') and has_table_privilege(w.oid, c.oid, 'select') as readable
          from pg_roles as w, pg_class as c join pg_namespace as n on n.oid = c.relnamespace
         where w.rolname = 'tensile_reader' and c.relkind = 'r'
           and n.nspname <> 'tensile' and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
           and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')) as t;

-- earlier_grants --
-- Version 0.1.0 read tables as tensile_worker. Returns the commands that move its privileges to tensile_reader.
with granted (schema, relation, columns) as (
    select n.oid, c.oid, null::text
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     where c.relkind in ('r', 'p') and n.nspname <> 'tensile'
       and exists (select from aclexplode(c.relacl) as g
                    where g.grantee = 'tensile_worker'::regrole and g.privilege_type = 'SELECT')
       and not has_table_privilege('tensile_reader', c.oid, 'select')
    union all
    select n.oid, c.oid, string_agg(quote_ident(a.attname), ', ' order by a.attnum)
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
      join pg_attribute as a on a.attrelid = c.oid and not a.attisdropped
     where c.relkind in ('r', 'p') and n.nspname <> 'tensile'
       and exists (select from aclexplode(a.attacl) as g
                    where g.grantee = 'tensile_worker'::regrole and g.privilege_type = 'SELECT')
       and not has_column_privilege('tensile_reader', c.oid, a.attnum, 'select')
     group by n.oid, c.oid
),
named as (
    select format('%I', n.nspname) as schema, format('%I.%I', n.nspname, c.relname) as relation,
           'select' || coalesce(' (' || g.columns || ')', '') as privilege,
           has_schema_privilege('tensile_reader', n.oid, 'usage') as enters
      from granted as g
      join pg_class as c on c.oid = g.relation
      join pg_namespace as n on n.oid = g.schema
)
select format('grant usage on schema %s to tensile_reader;', schema) as mend from named where not enters
union
select format('grant %s on %s to tensile_reader; revoke %s on %s from tensile_worker;', privilege, relation,
              privilege, relation)
  from named
 order by mend desc;

-- workers --
select w.worker_id, w.host, w.pid, w.version, w.device, w.device_name from tensile.stat_workers as w where w.alive order by w.worker_id;

-- links --
select l.host, l.device_kind as device, l.way::text, l.beside, l.size_bytes, l.latency_ns, l.copy_ns,
       l.emulated_bytes_per_s, to_char(l.measured_at, 'YYYY-MM-DD HH24:MI') as measured
  from tensile.device_links as l order by l.host, l.device_kind, l.way, l.beside, l.size_bytes;

-- contention --
select c.device_kind as device, c.jobs,
       (m.factor + coalesce(c.learned, m.factor)) / 2 as factor,
       (m.short_factor + coalesce(c.learned_short, m.short_factor)) / 2 as short_factor
  from tensile.device_contention as c
 cross join lateral (select coalesce(c.training, (c.arithmetic + c.memory + c.mixed) / 3) as factor,
                            (c.short + c.short_mixed) / 2 as short_factor) as m
 where c.jobs > 1 order by c.device_kind, c.jobs;

-- versions --
select public.tensile_version(), current_setting('server_version');

-- job --
select j.job_id, j.model_name as model, tensile.relation_title(j.relation_oid, j.relation_schema, j.relation_name) as relation,
       j.state, j.phase, j.priority, j.attempt, p.epoch, p.epochs, p.step, p.steps, p.loss, p.valid_loss,
       v.number as version, v.metric_name, v.metric, j.enqueued_at, j.started_at, j.finished_at, q.waits_for,
       w.host, w.device_name as device, d.granted_bytes, d.used_bytes, s.settings, a.warnings, v.not_deployed, j.error_message as error, j.error_detail, j.error_hint
  from tensile.jobs as j
       left join tensile.job_progress as p using (job_id)
       left join tensile.stat_queue as q using (job_id)
       left join tensile.workers as w on w.worker_id = j.worker_id
       left join tensile.device_jobs as d on d.job_id = j.job_id and d.worker_id = j.worker_id
       left join tensile.model_versions as v on v.version_id = j.version_id
       left join lateral (select e.detail ->> 'message' as settings from tensile.job_events as e
                           where e.job_id = j.job_id and e.kind = 'settings'
                           order by e.event_id desc limit 1) as s on true
       left join lateral (select string_agg(e.detail ->> 'message', '; ' order by e.event_id) as warnings
                            from tensile.job_events as e
                           where e.job_id = j.job_id and e.kind = 'warning') as a on true
 where j.job_id = %(job)s;

-- judged --
-- The metric of a job's version beside that of its baseline; no row before the version is published.
select v.metric_name, v.metric, (f.figure -> 'metrics' ->> v.metric_name)::double precision as baseline,
       f.figure ->> 'name' as baseline_name
  from tensile.model_versions as v
  left join tensile.version_figures as f on f.version_id = v.version_id and f.name = 'baseline'
 where v.job_id = %(job)s;

-- label_metrics --
-- The metrics of each label of a job's version on the held-out rows; no row where none are stored or may be seen.
select e.row ->> 0 as name, (e.row ->> 1)::bigint as rows, e.row -> 2 as metrics
  from tensile.model_versions as v
  join tensile.version_figures as f on f.version_id = v.version_id and f.name = 'label_metrics'
 cross join lateral jsonb_array_elements(f.figure -> 'rows') with ordinality as e (row, place)
 where v.job_id = %(job)s
 order by e.place;

-- unended_jobs --
select job_id from tensile.jobs where state in ('queued', 'starting', 'running') order by job_id;

-- training_request --
-- Runs with the user's search_path, which resolves the relation and the functions of a view. A statement names this block
-- in place of the request of a training.
tensile.training_request(
  %(model)s::pg_catalog.text, %(relation)s::pg_catalog.regclass,
  target => %(target)s::pg_catalog.text, task => %(task)s::pg_catalog.text,
  architecture => %(architecture)s::pg_catalog.text, hyperparams => %(hyperparams)s::pg_catalog.jsonb,
  features => %(features)s::pg_catalog.text[], exclude => %(exclude)s::pg_catalog.text[],
  preprocess => %(preprocess)s::pg_catalog.jsonb, split => %(split)s::pg_catalog.jsonb,
  metric => %(metric)s::pg_catalog.text, early_stop => %(early_stop)s::pg_catalog.jsonb,
  init_from => %(init_from)s::pg_catalog.text, priority => %(priority)s::pg_catalog.int4,
  depends_on => %(depends_on)s::pg_catalog.int8[], not_before => %(not_before)s::pg_catalog.timestamptz,
  memory_limit => %(memory_limit)s::pg_catalog.text, max_runtime => %(max_runtime)s::pg_catalog.interval,
  deploy => %(deploy)s::pg_catalog.text, idempotency_key => %(idempotency_key)s::pg_catalog.text,
  snapshot => %(snapshot)s::pg_catalog.bool, transform => %(transform)s::pg_catalog.jsonb,
  forecast => %(forecast)s::pg_catalog.jsonb, devices => %(devices)s::pg_catalog.int4)

-- train --
-- Calls the function of schema tensile, where no user can add an overload that PostgreSQL would prefer.
select tensile.train(@training_request@);

-- search --
select tensile.search(tensile.search_request(@training_request@,
  %(trials)s::pg_catalog.int4, %(parallel)s::pg_catalog.int4, %(sampler)s::pg_catalog.text, %(prune)s::pg_catalog.text,
  %(search_seed)s::pg_catalog.int8, %(max_duration)s::pg_catalog.interval));

-- retrain --
-- Runs with the user's search_path, as train does.
select public.tensile_retrain(%(model)s::pg_catalog.text);

-- deploy --
select public.tensile_deploy(%(model)s::pg_catalog.text, %(version)s::pg_catalog.text, %(reason)s::pg_catalog.text);

-- watched_jobs --
select j.job_id, j.model_name as model, j.state, j.phase, q.waits_for, j.error_message as error,
       p.epoch, p.epochs, p.loss,
       case when j.state = 'succeeded' then 100 else s.percent end as percent,
       case when j.state = 'running' then extract(epoch from p.eta - now())::double precision end as eta_s,
       case when j.state = 'running' then extract(epoch from p.eta_earliest - now())::double precision end
         as eta_earliest_s,
       v.metric_name, v.metric, d.used_bytes, d.granted_bytes
  from tensile.jobs as j
       left join tensile.job_progress as p using (job_id)
       left join tensile.stat_progress_train as s using (job_id)
       left join tensile.stat_queue as q using (job_id)
       left join tensile.model_versions as v on v.version_id = j.version_id
       left join tensile.device_jobs as d on d.job_id = j.job_id and d.worker_id = j.worker_id
 where j.job_id = any (%(jobs)s)
 order by j.job_id;

-- watched_devices --
select d.worker_id, d.used_bytes, d.high_water_bytes, d.budget_bytes, d.busy_percent, d.outside_bytes, w.host,
       w.device_name,
       array(select j.job_id from tensile.jobs as j where j.worker_id = d.worker_id and j.job_id = any (%(jobs)s) order by 1) as jobs
  from tensile.devices as d join tensile.workers as w using (worker_id)
 where d.worker_id in (select worker_id from tensile.jobs where job_id = any (%(jobs)s))
 order by d.worker_id;

-- watched_sets --
-- The sets of jobs that run side by side now. Each job of a set has a row; the measured value of any of them will do.
select t.jobs, max(t.stp_foretold) as foretold, max(t.stp_measured) as measured
  from (select array(select unnest(s.beside || s.job_id) order by 1) as jobs, s.stp_foretold, s.stp_measured
          from tensile.job_sets as s join tensile.jobs as j using (job_id)
         where s.ended_at is null and cardinality(s.beside) > 0 and j.state = 'running'
           and s.job_id = any (%(jobs)s)) as t
 group by t.jobs order by t.jobs;

-- predict --
select public.tensile_predict(%(model)s::text, %(row)s::jsonb, %(version)s::int4);

-- predict_label --
select public.tensile_predict_label(%(model)s::text, %(row)s::jsonb, %(version)s::int4);

-- predict_values --
select pg_catalog.to_jsonb(public.tensile_predict_values(%(model)s::text, %(row)s::jsonb, %(version)s::int4));

-- plans --
select p.generation, p.reason, p.policy, p.vanilla_peak_bytes, p.liveness_peak_bytes, p.floor_bytes,
       p.predicted_peak_bytes, p.measured_peak_bytes, p.swaps, p.swapped_bytes, p.recomputed,
       p.predicted_iteration_ns / 1e6 as predicted_ms, p.measured_iteration_ns / 1e6 as measured_ms,
       p.measured_stall_ns / 1e6 as stall_ms, p.planning_ns / 1e6 as planning_ms
  from tensile.plans as p
 where p.job_id = %(job)s
 order by p.attempt, p.generation;

-- require_admin --
select public.tensile_require_role('tensile_admin');
