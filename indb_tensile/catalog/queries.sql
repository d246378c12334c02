-- All statements that workers and controllers run on the catalog. Every write for a job carries the claim token and
-- names the states that it may change. If no row matches, the job has ended or belongs to another worker.

-- lift_statement_timeout --
set statement_timeout = 0  -- a planned restart of the database or a slow disk must not end a controller

-- own_session --
-- The settings that a worker's own session overrides right after connecting. A role or a database may set any of them;
-- each would end the session, or would silently change what the session reads or writes.
set search_path = pg_catalog, pg_temp;  -- no name in our statements means an object of a user
set role none;  -- the session has the privileges of its login role
set idle_in_transaction_session_timeout = 0;  -- a trainer reads a table in one transaction, which may take long
set idle_session_timeout = 0;  -- the listener is idle between notifications
set default_transaction_isolation = 'read committed';  -- guarded updates see the latest row and need no retry
set default_transaction_read_only = off;  -- every session of a worker writes
set default_transaction_deferrable = off;  -- a deferrable transaction waits for others before it begins
set jit = off;  -- the statements are short, and compiling one takes longer than running it
set row_security = on;  -- with off, a statement under a policy fails instead of being filtered
set client_encoding = 'UTF8';  -- names and messages are any text; with SQL_ASCII they arrive as bytes
set standard_conforming_strings = on;  -- with off, a backslash in a literal is an escape
set array_nulls = on;  -- with off, NULL in an array is a string
set timezone = 'UTC';  -- timestamps as text are the same in every session
set datestyle = 'ISO, MDY';  -- psycopg reads no other style
set intervalstyle = 'postgres';  -- psycopg reads no other style
set extra_float_digits = 1;  -- floats as text keep every digit
set bytea_output = 'hex'  -- bytes as text have twice their size; with escape, up to four times

-- own_session_since_17 --
set transaction_timeout = 0  -- for the same reason as idle_in_transaction_session_timeout

-- limit_lock_waits --
-- Also returns two settings that the session cannot always override: session_replication_role needs a superuser, and
-- synchronous_commit may be set to a stronger value than "on".
select pg_catalog.set_config('lock_timeout', %(timeout)s, false),
       pg_catalog.current_setting('session_replication_role'), pg_catalog.current_setting('synchronous_commit')

-- commit_durably --
set synchronous_commit = on  -- with off, a crash of the server loses rows that a controller believes to be committed

-- fire_triggers --
set session_replication_role = origin  -- with replica, triggers and foreign keys do nothing

-- set_probe --
select pg_catalog.set_config('tensile.probe', %(mark)s, false)

-- probe --
select coalesce(pg_catalog.current_setting('tensile.probe', true), '')

-- register_worker --
insert into tensile.workers (host, pid, device, device_name, version, lease_s, slots, entering, threads, makes_way)
values (%(host)s, %(pid)s, %(device)s, %(device_name)s, %(version)s, %(lease_s)s, %(slots)s, %(entering)s, %(threads)s,
        %(makes_way)s)
returning worker_id

-- record_holdup --
update tensile.workers set holdup = %(holdup)s where worker_id = %(worker)s

-- adopt_owners --
select tensile.adopt_owners()

-- beat --
-- One statement for each heartbeat: it renews the lease, counts the heartbeat, and returns changes of the worker's
-- jobs.
with renewed as (
  update tensile.workers set heartbeat_at = now(), beats = beats + 1
   where worker_id = %(worker)s and stopped_at is null
  returning worker_id
), held as (
  select h.job_id, h.claim from unnest(%(jobs)s::bigint[], %(claims)s::bigint[]) as h (job_id, claim)
), mine as (
  select j.job_id, j.claim, j.cancel_requested, j.pause_requested, j.priority,
         not tensile.may_train(j.owner_oid) as unentitled
    from tensile.jobs as j
   where j.worker_id = %(worker)s and j.state in ('starting', 'running')
), ranks as (
  select r.job_id, r.claim from tensile.job_ranks as r
   where r.worker_id = %(worker)s and r.rank > 0 and r.state <> 'finished'
), strays as (
  select m.job_id, m.claim from mine as m where m.job_id not in (select h.job_id from held as h)
  union all
  select r.job_id, r.claim from ranks as r where r.claim not in (select h.claim from held as h)
), stopped as (
  -- Cancels jobs whose owner may no longer train. A row that another session has locked is left to a later heartbeat.
  update tensile.jobs as j
     set cancel_requested = true, error_sqlstate = '42501', error_detail = null,
         error_message = tensile.why_not_trained(j.owner_oid, j.owner_name),
         error_hint = tensile.way_to_train(j.owner_oid)
    from (select k.job_id from mine join tensile.jobs as k using (job_id)
           where mine.unentitled and not k.cancel_requested for no key update of k skip locked) as free
   where j.job_id = free.job_id
)
select exists (select from renewed),
       array(select m.job_id from mine as m where m.cancel_requested or m.unentitled order by m.job_id),
       array(select h.job_id from held as h
              where not exists (select from tensile.jobs as j
                                 where j.job_id = h.job_id and j.claim = h.claim and j.state <> 'queued')
                and not exists (select from tensile.job_ranks as r where r.job_id = h.job_id and r.claim = h.claim)
              order by h.job_id),
       array(select s.job_id from strays as s order by s.job_id, s.claim),
       array(select s.claim from strays as s order by s.job_id, s.claim),
       tensile.catalog_version(),
       array(select m.job_id from mine as m where m.pause_requested order by m.job_id),
       array(select m.job_id from mine as m order by m.job_id),
       array(select m.priority from mine as m order by m.job_id),
       case when cardinality(%(jobs)s::bigint[]) > 1 then tensile.idle_budget(%(worker)s) end,
       array(select r.job_id from tensile.job_ranks as r where r.worker_id = %(worker)s order by r.job_id),
       array(select (select sum(o.steps_published) from tensile.job_ranks as o where o.job_id = r.job_id)::bigint
               from tensile.job_ranks as r where r.worker_id = %(worker)s order by r.job_id)

-- renew_lease --
update tensile.workers set heartbeat_at = now(), beats = beats + 1
 where worker_id = %(worker)s and stopped_at is null
returning worker_id

-- leave --
-- in_order: the worker itself reports that it stops, so its jobs are not interrupted by the death of a controller.
with deleted as (delete from tensile.device_jobs where worker_id = %(worker)s)
update tensile.workers set stopped_at = now(), service_name = null, service_address = null, service_host_name = null,
       took_leave = %(in_order)s
 where worker_id = %(worker)s and stopped_at is null

-- announce_service --
update tensile.workers
   set service_name = %(name)s, service_address = %(address)s, service_host_name = %(host_name)s
 where worker_id = %(worker)s and stopped_at is null

-- database_identity --
-- The start time of the server is a number of microseconds, which does not depend on the session's date settings.
select tensile.installation()::text,
       (extract(epoch from pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint::text

-- standby --
-- Whether the server is a hot standby, its port, and the directory in which sessions look for services' sockets.
select pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('port')::int,
       (select s.value #>> '{}' from tensile.settings as s where s.name = 'socket_directory')

-- bound_lock_wait --
-- Limits the wait for locks within the current transaction.
set local lock_timeout = '2s'

-- claim_job --
select j.job_id, j.claim, j.attempt, j.owner_oid, q.bytes, q.weight, j.threads, j.priority,
       (select coalesce(max(t.worked_s), 0) from tensile.trial_results as t where t.job_id = j.job_id), j.spec::text,
       j.worker_id is null, j.devices
  from tensile.claim_job(%(worker)s, %(passed_over)s::oid[], %(defers)s, %(waited_for)s) as j
  left join lateral tensile.quota_of(j.owner_oid) as q on true

-- offer_job --
-- Makes all controllers look at the queue, as the enqueuing of the job did.
select pg_catalog.pg_notify('tensile', 'queued ' || %(job)s::bigint)

-- settle_dependents --
select tensile.settle_all_dependents()

-- foreign_jobs --
select count(*) from tensile.jobs where state = 'queued' and installation <> tensile.installation()

-- rescue --
-- A worker is dead if an observer has seen no new heartbeat for a whole lease, and the worker has sent none since. The
-- decision does not depend on the age of a row or on the database's clock. Jobs of workers that died or left go back
-- into the queue, and so do jobs of which such a worker had a rank.
with dead as (
  update tensile.workers as w
     set stopped_at = now(), service_name = null, service_address = null, service_host_name = null
   where w.worker_id in (select v.worker_id
                           from tensile.workers as v
                           join unnest(%(workers)s::bigint[], %(beats)s::bigint[]) as seen (worker_id, beats)
                             on v.worker_id = seen.worker_id and v.beats = seen.beats
                          where v.stopped_at is null
                            for update of v skip locked)
  returning w.worker_id, w.host, w.heartbeat_at, w.took_leave
), stopped_workers as (
  select worker_id, host, heartbeat_at, took_leave from dead
  union all
  select worker_id, host, heartbeat_at, took_leave from tensile.workers where stopped_at is not null
), holders as (
  select j.job_id, w.worker_id
    from tensile.jobs as j join stopped_workers as w on w.worker_id = j.worker_id where j.state in ('starting', 'running')
  union all
  select r.job_id, min(w.worker_id)
    from tensile.job_ranks as r join stopped_workers as w on w.worker_id = r.worker_id
   where r.rank > 0 and r.state <> 'finished'
     and not exists (select from tensile.jobs as j join stopped_workers as v on v.worker_id = j.worker_id
                      where j.job_id = r.job_id and j.state in ('starting', 'running'))
   group by r.job_id
), stranded as (
  select j as job, w.heartbeat_at, case when took_leave then 'others' else 'unclear' end as blame,
         format('attempt %%s was interrupted: worker %%s on host %%s %%s', j.attempt, w.worker_id, w.host,
                case when took_leave then 'has left' else 'is gone' end) as reason
    from holders as h join stopped_workers as w on w.worker_id = h.worker_id join tensile.jobs as j on j.job_id = h.job_id
   where j.job_id = any (array(select o.job_id from holders as o))  -- so that no join reads the ended jobs
     and j.state in ('starting', 'running')
     for update of j skip locked
), forgotten as (
  delete from tensile.device_jobs as d using stopped_workers as w where d.worker_id = w.worker_id
), judged as (
  select (s.job).job_id, (s.job).worker_id, a.*
    from stranded as s
   cross join lateral
     tensile.after_interruption(s.job, s.blame, s.reason, least(s.heartbeat_at, now()), %(limit_s)s) as a
), events as (
  insert into tensile.job_events (job_id, kind, detail)
  select job_id, 'interrupted', jsonb_build_object('reason', message, 'counts', counts, 'faults', faults,
                                                   'interruptions', interruptions)
    from judged
)
update tensile.jobs as j
   set state = a.state, phase = null, worker_id = null, faults = a.faults, interruptions = a.interruptions,
       interrupted = a.interrupted, last_death_phase = a.last_death_phase,
       waits_for = case when a.state = 'queued' then 'its next attempt, since ' || a.message end,
       not_before = a.not_before, finished_at = case when a.state <> 'queued' then now() end,
       error_sqlstate = '58000', error_message = a.message, error_detail = null,
       error_hint = coalesce(a.hint, 'The log of the controller on that host says more.')
  from judged as a
 where j.job_id = a.job_id and j.worker_id = a.worker_id and j.state in ('starting', 'running')
returning j.job_id

-- other_workers --
-- All other workers with a lease. An observer compares their counts of heartbeats with the counts that it read before.
select worker_id, beats, lease_s from tensile.workers
 where stopped_at is null and worker_id is distinct from %(worker)s
 order by worker_id

-- start_running --
-- Safe to repeat, because after a broken connection the worker does not know whether the update was committed.
update tensile.jobs set state = 'running', phase = case state when 'running' then phase else 'training' end, waits_for = null
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
returning job_id

-- set_phase --
update tensile.jobs set phase = %(phase)s
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
returning job_id

-- set_waits_for --
-- The claim is that of the job or, if several devices train it, that of a rank.
with of_job as (
  update tensile.jobs set waits_for = %(reason)s
   where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
  returning job_id
), of_rank as (
  update tensile.job_ranks set waits_for = %(reason)s where job_id = %(job)s and claim = %(claim)s
  returning job_id
)
select job_id from of_job union select job_id from of_rank

-- claimed_rank --
-- The number of a rank, and the claim with which its attempt writes about the job. The statement that claims a rank cannot
-- return it, because a statement does not see the rows that its functions write.
select own.rank, lead.claim from tensile.job_ranks as own
  join tensile.job_ranks as lead on lead.job_id = own.job_id and lead.rank = 0
 where own.job_id = %(job)s and own.claim = %(claim)s

-- take_back_gangs --
-- Every controller asks once a second, and the function takes a millisecond where no job is for several devices.
select tensile.take_back_gangs(%(patience_s)s) where exists (select from tensile.job_ranks)

-- fit_gangs --
select job_id, devices, asked from tensile.fit_gangs()

-- enter_rank_state --
update tensile.job_ranks set state = %(state)s, since = case state when %(state)s then since else now() end,
       waits_for = null, divides_state = coalesce(%(divides_state)s::boolean, divides_state)
 where job_id = %(job)s and claim = %(claim)s
returning rank

-- rank_states --
-- The states of all ranks, in order, for a rank that still has its claim.
select array(select r.state from tensile.job_ranks as r where r.job_id = own.job_id order by r.rank)
  from tensile.job_ranks as own where own.job_id = %(job)s and own.claim = %(claim)s

-- put_rank_value --
insert into tensile.rank_values as v (job_id, rank, key, value)
select own.job_id, own.rank, %(key)s, %(value)s::bytea
  from tensile.job_ranks as own where own.job_id = %(job)s and own.claim = %(claim)s
    on conflict (job_id, key) do update set value = excluded.value, rank = excluded.rank
returning rank

-- add_rank_value --
insert into tensile.rank_values as v (job_id, rank, key, value)
select own.job_id, own.rank, %(key)s, convert_to(%(amount)s::bigint::text, 'UTF8')
  from tensile.job_ranks as own where own.job_id = %(job)s and own.claim = %(claim)s
    on conflict (job_id, key) do update
   set value = convert_to((convert_from(v.value, 'UTF8')::bigint + %(amount)s)::text, 'UTF8')
returning convert_from(value, 'UTF8')::bigint

-- rank_values --
-- The values of these keys as far as they are there, for a rank that still has its claim.
select array(select v.key from tensile.rank_values as v
              where v.job_id = own.job_id and v.key = any (%(keys)s::text[]) order by v.key),
       array(select v.value from tensile.rank_values as v
              where v.job_id = own.job_id and v.key = any (%(keys)s::text[]) order by v.key)
  from tensile.job_ranks as own where own.job_id = %(job)s and own.claim = %(claim)s

-- publish_rank_step --
-- What the other ranks need to know of a rank's step: the short value in its row, and the whole one.
with own as (
  update tensile.job_ranks set step_ns = %(step_ns)s, steps_published = steps_published + 1
   where job_id = %(job)s and claim = %(claim)s
  returning job_id, rank
)
insert into tensile.rank_values as v (job_id, rank, key, value)
select own.job_id, own.rank, 'step of rank ' || own.rank, %(value)s::bytea from own
    on conflict (job_id, key) do update set value = excluded.value
returning rank

-- rank_steps --
-- The steps that the ranks of a job have published, for a rank that still has its claim.
select array(select v.rank from tensile.rank_values as v
              where v.job_id = own.job_id and v.key = 'step of rank ' || v.rank order by v.rank),
       array(select v.value from tensile.rank_values as v
              where v.job_id = own.job_id and v.key = 'step of rank ' || v.rank order by v.rank)
  from tensile.job_ranks as own where own.job_id = %(job)s and own.claim = %(claim)s

-- gang_budgets --
-- The hosts and budgets of the devices of a kind that have most memory for jobs.
select w.host, d.budget_bytes
  from tensile.workers as w join tensile.devices as d on d.worker_id = w.worker_id
 where w.device = %(device_kind)s and tensile.is_alive(w)
 order by d.budget_bytes desc, w.worker_id limit %(devices)s

-- remove_rank_value --
with own as (
  select job_id from tensile.job_ranks where job_id = %(job)s and claim = %(claim)s
), removed as (
  delete from tensile.rank_values as v using own where v.job_id = own.job_id and v.key = %(key)s returning v.key
)
select (select count(*) from removed) from own

-- report_progress --
with mine as (
  select job_id from tensile.jobs where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
), progress as (
  insert into tensile.job_progress as p
    (job_id, epoch, epochs, step, steps, loss, valid_loss, metric_name, metric, samples_per_s, eta,
     eta_earliest, updated_at)
  select job_id, %(epoch)s, %(epochs)s, %(step)s, %(steps)s, %(loss)s, %(valid_loss)s, %(metric_name)s, %(metric)s,
         %(samples_per_s)s, now() + make_interval(secs => %(eta_s)s), now() + make_interval(secs => %(eta_earliest_s)s), now()
    from mine
  on conflict (job_id) do update
     set epoch = excluded.epoch, epochs = excluded.epochs, step = excluded.step, steps = excluded.steps,
         loss = coalesce(excluded.loss, p.loss), valid_loss = coalesce(excluded.valid_loss, p.valid_loss),
         metric_name = coalesce(excluded.metric_name, p.metric_name), metric = coalesce(excluded.metric, p.metric),
         samples_per_s = coalesce(excluded.samples_per_s, p.samples_per_s), eta = excluded.eta,
         eta_earliest = excluded.eta_earliest,
         updated_at = excluded.updated_at
), figures as (
  insert into tensile.metrics (job_id, epoch, name, value)
  select mine.job_id, %(epoch)s, m.name, m.value
    from mine, unnest(%(names)s::text[], %(values)s::double precision[]) as m (name, value)
  on conflict (job_id, epoch, name) do update set value = excluded.value  -- a later attempt repeats an epoch
)
-- The time of the owner's open request for a trace, null without one.
select (select t.requested_at from tensile.traces as t
         where t.job_id = mine.job_id and (t.recorded_at is null or t.recorded_at < t.requested_at))
  from mine

-- trace_request --
select t.requested_at, t.iterations, t.seconds,
       greatest(0, extract(epoch from t.starts_at - clock_timestamp()))::double precision
  from tensile.traces as t
 where t.job_id = %(job)s and (t.recorded_at is null or t.recorded_at < t.requested_at)

-- save_trace --
update tensile.traces as t set recording = %(recording)s, recorded_at = t.requested_at
  from tensile.jobs as j
 where t.job_id = %(job)s and t.requested_at = %(requested_at)s
   and j.job_id = t.job_id and j.claim = %(claim)s and j.state in ('starting', 'running')

-- save_job_graph --
insert into tensile.job_graphs as g (job_id, graph)
select j.job_id, %(graph)s from tensile.jobs as j
 where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running')
on conflict (job_id) do update set graph = excluded.graph, written_at = now()

-- job_graph --
select g.graph from tensile.job_graphs as g where g.job_id = %(job)s

-- job_plans --
select p.attempt, p.generation, p.policy, p.plan, p.predicted_peak_bytes
  from tensile.plans as p
 where p.job_id = %(job)s and p.plan is not null
   and p.attempt = (select max(q.attempt) from tensile.plans as q where q.job_id = %(job)s and q.plan is not null)
 order by p.generation

-- job_link --
select l.way::text, l.beside, l.size_bytes, l.latency_ns, l.copy_ns
  from tensile.device_links as l
 where (l.host, l.device_kind) = (select w.host, w.device from tensile.workers as w
                                   where w.worker_id = coalesce(
                                     (select j.worker_id from tensile.jobs as j where j.job_id = %(job)s),
                                     (select max(s.worker_id) from tensile.device_job_samples as s where s.job_id = %(job)s)))

-- report_prediction --
with mine as (
  select job_id from tensile.jobs where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
), progress as (
  insert into tensile.job_progress as p (job_id, rows_predicted, rows_expected, samples_per_s, eta, updated_at)
  select job_id, %(rows)s, %(expected)s, %(samples_per_s)s, now() + make_interval(secs => %(eta_s)s), now() from mine
  on conflict (job_id) do update
     set rows_predicted = excluded.rows_predicted, rows_expected = excluded.rows_expected,
         samples_per_s = excluded.samples_per_s, eta = excluded.eta, updated_at = excluded.updated_at
)
select job_id from mine

-- start_predicting --
update tensile.jobs set state = 'running', phase = 'predicting', waits_for = null
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
returning job_id

-- prediction_output --
-- Finds the table and the version of a prediction, and checks again whether the job's owner may predict with the version.
select o.table_name::text, c.oid is not null, j.state = 'succeeded', j.model_name,
       tensile.may_predict(j.owner_oid, j.installation, %(version)s) is not null  -- the model may have been renamed
  from tensile.jobs as j
 cross join lateral (select tensile.prediction_table(j) as table_name) as o
  left join pg_catalog.pg_class as c
    on c.relname = o.table_name and c.relkind = 'r'
   and c.relnamespace = (select n.oid from pg_catalog.pg_namespace as n where n.nspname = 'tensile_data')
 where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running', 'succeeded')

-- drop_prediction_tables --
select tensile.drop_prediction_tables(%(most)s)

-- fail --
-- Ends the job without another attempt: the attempt would fail in the same way, or the owner has cancelled the job.
update tensile.jobs
   set state = case when cancel_requested then 'cancelled' else 'failed' end::tensile.job_state,
       phase = null, worker_id = null, waits_for = null, not_before = null, finished_at = now(),
       error_sqlstate = %(sqlstate)s, error_message = %(message)s, error_detail = %(detail)s, error_hint = %(hint)s
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
returning state::text

-- leave_to_larger --
-- Puts a job that is too large for the worker's device back into the queue, if the device of another worker could hold
-- it; else ends it.
with mine as (
  select j.job_id, not j.cancel_requested and tensile.largest_budget() >= %(needs_bytes)s as stays
    from tensile.jobs as j
   where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running')
     for update
), events as (
  insert into tensile.job_events (job_id, kind, detail)
  select job_id, 'requeued', jsonb_build_object('reason', %(message)s::text) from mine where stays
)
update tensile.jobs as j
   set state = case when mine.stays then 'queued' when j.cancel_requested then 'cancelled'
                    else 'failed' end::tensile.job_state,
       needs_bytes = %(needs_bytes)s, phase = null, worker_id = null, not_before = null,
       waits_for = case when mine.stays then 'a larger device: ' || %(message)s end,
       finished_at = case when not mine.stays then now() end,
       error_sqlstate = case when not mine.stays then %(sqlstate)s end,
       error_message = case when not mine.stays then %(message)s end,
       error_detail = case when not mine.stays then %(detail)s end,
       error_hint = case when not mine.stays then %(hint)s end
  from mine
 where j.job_id = mine.job_id and j.claim = %(claim)s and j.state in ('starting', 'running')
returning j.state::text

-- interrupt --
-- Puts the job back into the queue with a pause, unless it has too many faults or interruptions, or is to be cancelled.
with mine as (
  select o as job from tensile.jobs as o
   where o.job_id = %(job)s and o.claim = %(claim)s and o.state in ('starting', 'running')
     for update  -- so that the statement sees a cancellation that commits meanwhile
), judged as (
  select (m.job).job_id, a.*
    from mine as m
   cross join lateral tensile.after_interruption(m.job, %(blame)s, %(message)s, now(), %(limit_s)s) as a
), events as (
  insert into tensile.job_events (job_id, kind, detail)
  select job_id, 'interrupted', jsonb_build_object('reason', message, 'counts', counts, 'faults', faults,
                                                   'interruptions', interruptions)
    from judged
)
update tensile.jobs as j
   set state = a.state, phase = null, worker_id = null, faults = a.faults, interruptions = a.interruptions,
       interrupted = a.interrupted, last_death_phase = a.last_death_phase,
       waits_for = case when a.state = 'queued' then %(waits_for)s end,
       not_before = a.not_before, finished_at = case when a.state <> 'queued' then now() end,
       error_sqlstate = %(sqlstate)s, error_message = a.message, error_detail = %(detail)s,
       error_hint = coalesce(a.hint, %(hint)s)
  from judged as a
 where j.job_id = a.job_id and j.claim = %(claim)s and j.state in ('starting', 'running')
returning j.state::text

-- cancelled --
update tensile.jobs
   set state = 'cancelled', phase = null, worker_id = null, waits_for = null, finished_at = now()
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
returning job_id

-- requeue --
-- The worker hands the job back: the attempt does not count, and any worker may claim the job at once.
with mine as (
  update tensile.jobs
     set state = case when cancel_requested then 'cancelled' else 'queued' end::tensile.job_state,
         phase = null, worker_id = null, not_before = null, waits_for = null,
         finished_at = case when cancel_requested then now() end
   where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
  returning job_id
), events as (
  insert into tensile.job_events (job_id, kind, detail)
  select job_id, 'requeued', jsonb_build_object('reason', %(reason)s::text) from mine
)
select job_id from mine

-- record_event --
insert into tensile.job_events (job_id, kind, detail)
select job_id, %(kind)s, %(detail)s from tensile.jobs where job_id = %(job)s and claim = %(claim)s
returning event_id

-- save_report --
insert into tensile.data_reports (job_id, report)
select job_id, %(report)s from tensile.jobs
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
    on conflict (job_id) do update set report = excluded.report, written_at = now()
returning job_id

-- lock_claimed --
select model_name, owner_oid, owner_name, installation, relation_oid, relation_schema, relation_name, spec
  from tensile.jobs
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
   for update

-- published_version --
select version_id from tensile.jobs
 where job_id = %(job)s and claim = %(claim)s and state = 'succeeded' and version_id is not null

-- lock_model --
-- Enqueuing the job has created the row. "No key update" is the weakest lock that serializes two publications of a
-- model; it does not conflict with enqueuing another training of the model.
select model_id from tensile.models
 where name = %(name)s and dropped_at is null and owner_oid = %(owner_oid)s and installation = %(installation)s
   for no key update

-- incumbent --
select version_id, number from tensile.model_versions where model_id = %(model)s and deployed

-- undeploy --
update tensile.model_versions set deployed = false where model_id = %(model)s and deployed

-- insert_version --
insert into tensile.model_versions
  (model_id, number, job_id, task, target, architecture, metric_name, metric, higher_is_better, metrics,
   parameters, weights_bytes, weights_digest, relation_oid, relation_schema, relation_name, data_digest, deployed,
   not_deployed, training, deployed_why)
select %(model)s, coalesce(max(v.number), 0) + 1, %(job)s, %(task)s, %(target)s, %(architecture)s, %(metric_name)s,
       %(metric)s, %(higher_is_better)s, %(metrics)s, %(parameters)s, %(weights_bytes)s, %(weights_digest)s,
       %(relation_oid)s, %(relation_schema)s, %(relation_name)s, %(data_digest)s, %(deployed)s, %(not_deployed)s,
       %(training)s, %(deployed_why)s
  from tensile.model_versions as v where v.model_id = %(model)s
returning version_id

-- insert_bundle --
insert into tensile.version_bundles (version_id, bundle) values (%(version)s, %(bundle)s)

-- insert_figure --
insert into tensile.version_figures (version_id, name, figure) values (%(version)s, %(name)s, %(figure)s)

-- add_figure --
-- The version may have been dropped since.
insert into tensile.version_figures (version_id, name, figure)
select v.version_id, %(name)s, %(figure)s from tensile.model_versions as v where v.version_id = %(version)s
on conflict (version_id, name) do nothing

-- repeat_baseline --
-- A version of the same model whose baseline was fitted to the same rows lends its baseline. The digest of these rows
-- is a figure of its own, which only the owner may see, since the rows of a small table could be guessed from it.
insert into tensile.version_figures (version_id, name, figure)
select v.version_id, 'baseline', b.figure
  from tensile.model_versions as v
  join tensile.model_versions as o on o.model_id = v.model_id and o.version_id <> v.version_id
  join tensile.version_figures as r
    on r.version_id = o.version_id and r.name = 'baseline_rows' and r.figure ->> 'digest' = %(digest)s
  join tensile.version_figures as b on b.version_id = o.version_id and b.name = 'baseline'
 where v.version_id = %(version)s
 order by o.version_id desc limit 1
on conflict (version_id, name) do nothing

-- judged_version --
select v.task::text, v.architecture ->> 'type' as architecture, (b.bundle ->> 'outputs')::integer as outputs,
       v.metric_name, v.metric, v.higher_is_better, f.figure as baseline
  from tensile.model_versions as v
  join tensile.version_bundles as b using (version_id)
  join tensile.version_figures as f on f.version_id = v.version_id and f.name = 'baseline'
 where v.version_id = %(version)s and v.metric is not null

-- warn_of_version --
-- The warning is about a version, so it belongs to the history of the job that trained it.
insert into tensile.job_events (job_id, kind, detail)
select j.job_id, 'warning', %(detail)s
  from tensile.model_versions as v join tensile.jobs as j using (job_id)
 where v.version_id = %(version)s
   and not exists (select from tensile.job_events as e
                    where e.job_id = j.job_id and e.kind = 'warning' and e.detail = %(detail)s)

-- insert_version_chunk --
insert into tensile.artifacts (version_id, chunk_no, chunk) values (%(owner)s, %(chunk_no)s, %(chunk)b)

-- insert_checkpoint_chunk --
insert into tensile.checkpoint_chunks (job_id, chunk_no, chunk) values (%(owner)s, %(chunk_no)s, %(chunk)b)

-- remember_spec --
-- Jobs end in any order: a run that started before the remembered run changes nothing.
update tensile.models as m
   set last_spec = j.spec, last_job_id = j.job_id, last_started_at = j.started_at
  from tensile.jobs as j
 where m.model_id = %(model)s and j.job_id = %(job)s
   and j.search_id is null  -- the end of a search remembers the request of its best trial
   and (m.last_started_at is null or (m.last_started_at, m.last_job_id) < (j.started_at, j.job_id))

-- succeed --
update tensile.jobs
   set state = 'succeeded', phase = null, worker_id = null, waits_for = null, finished_at = now(),
       version_id = %(version)s, error_sqlstate = null, error_message = null, error_detail = null, error_hint = null
 where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
returning job_id

-- choose_init_version --
-- Chooses the version that a job starts from, once: a later attempt starts from the same. The job's owner must have the
-- model, or the privilege to use its weights.
with chosen as (
  select j.job_id, v.version_id, v.number, m.name
    from tensile.jobs as j
    join tensile.models as m on m.model_id = %(model)s and m.dropped_at is null
    join tensile.model_versions as v
      on v.model_id = m.model_id
         and case when j.init_version_id is not null then v.version_id = j.init_version_id
                  when %(number)s::bigint is null then v.deployed else v.number = %(number)s end
   where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running')
     and m.installation = j.installation
     and (m.owner_oid = j.owner_oid
          or exists (select from tensile.model_privileges as p
                      where p.model_id = m.model_id and p.privilege = 'weights' and p.revoked_at is null
                        and p.installation = j.installation
                        and (p.grantee_oid = 0 or pg_has_role(j.owner_oid, p.grantee_oid, 'usage'))))
)
update tensile.jobs as j set init_version_id = c.version_id
  from chosen as c where j.job_id = c.job_id and j.claim = %(claim)s
returning c.version_id, c.number, c.name

-- load_version --
select v.version_id, v.model_id, m.name, m.owner_oid, v.number, v.task::text, v.target, v.architecture, b.bundle,
       v.metric_name, v.metric, v.higher_is_better, v.metrics, v.parameters, v.weights_bytes, v.weights_digest,
       v.data_digest, v.deployed, v.job_id is null as imported
  from tensile.model_versions as v
  join tensile.version_bundles as b using (version_id)
  join tensile.models as m using (model_id)
 where v.version_id = %(version)s and m.dropped_at is null

-- version_chunks --
select chunk from tensile.artifacts where version_id = %(owner)s order by chunk_no

-- deployed_version --
select v.version_id
  from tensile.model_versions as v join tensile.models as m using (model_id)
 where m.name = %(name)s and m.dropped_at is null and v.deployed

-- save_checkpoint --
-- A checkpoint makes the job's work safe, so earlier faults and interruptions no longer count.
with mine as (
  update tensile.jobs
     set faults = 0, interruptions = 0, interrupted = '0', last_death_phase = null, progress_at = now()
   where job_id = %(job)s and claim = %(claim)s and state in ('starting', 'running')
  returning job_id
)
insert into tensile.checkpoints (job_id, store, host, position, size_bytes, digest)
select job_id, %(store)s, %(host)s, %(position)s, %(size_bytes)s, %(digest)s from mine
on conflict (job_id, store, host) do update
   set position = excluded.position, size_bytes = excluded.size_bytes, digest = excluded.digest, saved_at = now()
returning job_id

-- delete_checkpoint_chunks --
delete from tensile.checkpoint_chunks where job_id = %(job)s

-- checkpoints --
select store::text, host, position, size_bytes, digest from tensile.checkpoints
 where job_id = %(job)s
 order by saved_at desc, store, host

-- checkpoint_chunks --
select chunk from tensile.checkpoint_chunks where job_id = %(owner)s order by chunk_no

-- installation --
select tensile.installation()

-- host_checkpoints --
select job_id, digest from tensile.checkpoints where store = 'local' and host = %(host)s

-- other_hosts --
select exists (select from tensile.workers as w where w.host <> %(host)s and tensile.is_alive(w))

-- vacuum_step --
select kind, removed from tensile.vacuum_step(%(most)s)

-- known_latencies --
select signature, latency_ns, workspace_bytes from tensile.op_latency
 where device_kind = %(device_kind)s and signature = any (%(signatures)s)

-- record_latencies --
-- A moving average: each new measurement has a weight of a quarter, so that the average follows drift and one slow
-- sample changes little. Rows are written in the order of the key, so that two trainers cannot deadlock.
insert into tensile.op_latency as o
  (signature, device_kind, name, latency_ns, workspace_bytes, samples, predicted_ns)
select r.signature, %(device_kind)s, r.name, r.latency_ns, r.workspace_bytes, r.samples, r.predicted_ns
  from unnest(%(signatures)s::text[], %(names)s::text[], %(latencies)s::bigint[], %(workspaces)s::bigint[],
              %(samples)s::bigint[], %(predictions)s::bigint[])
    as r (signature, name, latency_ns, workspace_bytes, samples, predicted_ns)
 order by r.signature
on conflict (signature, device_kind) do update
   set latency_ns = (3 * o.latency_ns + excluded.latency_ns + 2) / 4,
       workspace_bytes = greatest(o.workspace_bytes, excluded.workspace_bytes),
       samples = o.samples + excluded.samples, predicted_ns = coalesce(o.predicted_ns, excluded.predicted_ns),
       updated_at = now()

-- raise_workspaces --
-- Store larger workspaces, and return the operators whose stored workspace was smaller. Rows are written in the order
-- of the key, so that two trainers cannot deadlock.
insert into tensile.op_latency as o (signature, device_kind, name, latency_ns, workspace_bytes)
select r.signature, %(device_kind)s, r.name, r.latency_ns, r.workspace_bytes
  from unnest(%(signatures)s::text[], %(names)s::text[], %(latencies)s::bigint[], %(workspaces)s::bigint[])
    as r (signature, name, latency_ns, workspace_bytes)
 order by r.signature
on conflict (signature, device_kind) do update
   set workspace_bytes = excluded.workspace_bytes, updated_at = now()
 where o.workspace_bytes < excluded.workspace_bytes
returning signature

-- describe_operators --
-- Rows are written in the order of the key, so that two trainers cannot deadlock.
insert into tensile.op_descriptions (signature, description)
select signature, description from unnest(%(signatures)s::text[], %(descriptions)s::text[]) as d (signature, description)
 order by signature
on conflict (signature) do nothing

-- count_history --
select count(*) from tensile.op_latency as l join tensile.op_descriptions as d using (signature)
 where l.device_kind = %(device_kind)s

-- history --
select d.description, l.latency_ns from tensile.op_latency as l join tensile.op_descriptions as d using (signature)
 where l.device_kind = %(device_kind)s
 order by l.updated_at desc, l.signature limit %(most)s

-- load_predictor --
select model, survey, samples, history from tensile.predictors where device_kind = %(device_kind)s

-- save_predictor --
insert into tensile.predictors as p (device_kind, model, survey, samples, history)
values (%(device_kind)s, %(model)s, %(survey)s, %(samples)s, %(history)s)
on conflict (device_kind) do update
   set model = excluded.model, survey = excluded.survey, samples = excluded.samples, history = excluded.history,
       trained_at = now()

-- load_pace --
select here_ns, there_ns from tensile.device_paces where device_kind = %(device_kind)s and machine = %(machine)s

-- save_pace --
-- The first measurement stays: a controller that has measured meanwhile uses it too.
insert into tensile.device_paces (device_kind, machine, here_ns, there_ns)
values (%(device_kind)s, %(machine)s, %(here_ns)s, %(there_ns)s)
on conflict (device_kind, machine) do nothing

-- load_contention --
select jobs, arithmetic, memory, mixed, learned, short, short_mixed, short_ns, learned_short, training, taken_cores
  from tensile.device_contention
 where device_kind = %(device_kind)s order by jobs

-- claim_contention --
-- A second session waits here until the transaction of the first one ends, which rolls the rows back. All sessions
-- insert in one order, so none waits for another that waits for it.
insert into tensile.device_contention (device_kind, jobs, arithmetic, memory, mixed)
select shared || ', being measured', 1, 1, 1, 1 from unnest(%(shared)s::text[]) as shared order by shared

-- host_has_jobs --
select exists (select from tensile.jobs as j join tensile.workers as w using (worker_id)
                where w.host = %(host)s and j.state in ('starting', 'running'))

-- save_contention --
-- The first measurement stays: a controller that has measured meanwhile uses it too.
insert into tensile.device_contention
       (device_kind, jobs, arithmetic, memory, mixed, short, short_mixed, short_ns, training)
select %(device_kind)s, m.jobs, m.arithmetic, m.memory, m.mixed, m.short, m.short_mixed, m.short_ns, m.training
  from unnest(%(jobs)s::integer[], %(arithmetic)s::double precision[], %(memory)s::double precision[],
              %(mixed)s::double precision[], %(short)s::double precision[], %(short_mixed)s::double precision[],
              %(short_ns)s::bigint[], %(training)s::double precision[])
       as m (jobs, arithmetic, memory, mixed, short, short_mixed, short_ns, training)
on conflict (device_kind, jobs) do nothing

-- learn_contention --
-- Nothing is stored for numbers of jobs that were not measured.
update tensile.device_contention as c set learned = l.factor, learned_short = l.short_factor
  from unnest(%(jobs)s::integer[], %(factors)s::double precision[], %(short_factors)s::double precision[])
       as l (jobs, factor, short_factor)
 where c.device_kind = %(device_kind)s and c.jobs = l.jobs and c.jobs > 1
   and (c.learned, c.learned_short) is distinct from (l.factor, l.short_factor)

-- learn_taken_cores --
update tensile.device_contention set taken_cores = %(taken_cores)s
 where device_kind = %(device_kind)s and jobs = 1 and taken_cores is distinct from %(taken_cores)s

-- load_overheads --
select kind, state_bytes, startup_ns, between_ns, closing_ns, trained_share
  from (select o.* from tensile.device_overheads as o where o.device_kind = %(device_kind)s
         order by o.updated_at desc, o.kind desc limit %(most)s) as latest
 order by updated_at, kind

-- save_overheads --
-- In the order of the key, so that two controllers never wait for each other.
insert into tensile.device_overheads (
  device_kind, kind, state_bytes, startup_ns, between_ns, closing_ns, trained_share)
select %(device_kind)s, m.kind, m.state_bytes, m.startup_ns, m.between_ns, m.closing_ns, m.trained_share
  from unnest(%(kinds)s::text[], %(state_bytes)s::bigint[], %(startup_ns)s::double precision[],
              %(between_ns)s::double precision[], %(closing_ns)s::double precision[],
              %(trained_shares)s::double precision[])
    as m (kind, state_bytes, startup_ns, between_ns, closing_ns, trained_share)
 order by m.kind
on conflict (device_kind, kind) do update
   set state_bytes = excluded.state_bytes, startup_ns = excluded.startup_ns, between_ns = excluded.between_ns,
       closing_ns = excluded.closing_ns, trained_share = excluded.trained_share, updated_at = now()

-- forget_overheads --
delete from tensile.device_overheads as o
 where o.device_kind = %(device_kind)s
   and (select count(*) from tensile.device_overheads as later
         where later.device_kind = o.device_kind and (later.updated_at, later.kind) > (o.updated_at, o.kind)) >= %(most)s

-- lock_links --
-- Controllers of one machine start together and measure the same link. Without this lock the second one would find no
-- row to delete while the first one has not committed, and its own rows would then be duplicates.
lock table tensile.device_links in share row exclusive mode

-- forget_links --
delete from tensile.device_links where host = %(host)s and device_kind = %(device_kind)s

-- save_links --
insert into tensile.device_links
  (host, device_kind, way, beside, size_bytes, latency_ns, copy_ns, emulated_bytes_per_s)
select %(host)s, %(device_kind)s, r.way::tensile.copy_way, r.beside, r.size_bytes, r.latency_ns, r.copy_ns, r.emulated
  from unnest(%(ways)s::text[], %(beside)s::boolean[], %(sizes)s::bigint[], %(latencies)s::bigint[],
              %(copies)s::bigint[], %(emulated)s::bigint[])
    as r (way, beside, size_bytes, latency_ns, copy_ns, emulated)

-- load_rank_network --
select n.hosts, n.collective, n.size_bytes, n.time_ns, n.beside_ns, n.lost_ns
  from tensile.rank_networks as n
 where n.device_kind = %(device_kind)s and n.hosts = %(hosts)s::text[]
   and (not %(fresh)s or n.measured_at > now() - interval '1 day')
 order by n.collective, n.size_bytes

-- latest_rank_network --
select n.hosts, n.collective, n.size_bytes, n.time_ns, n.beside_ns, n.lost_ns
  from tensile.rank_networks as n
 where n.device_kind = %(device_kind)s
   and n.hosts = (select o.hosts from tensile.rank_networks as o
                   where o.device_kind = %(device_kind)s and cardinality(o.hosts) = %(ranks)s
                   order by %(host)s = any (o.hosts) desc, o.measured_at desc, o.hosts limit 1)
 order by n.collective, n.size_bytes

-- save_rank_network --
-- In the order of the key, so that two gangs never wait for each other.
insert into tensile.rank_networks as n (hosts, device_kind, collective, size_bytes, time_ns, beside_ns, lost_ns)
select %(hosts)s::text[], %(device_kind)s, r.collective, r.size_bytes, r.time_ns, r.beside_ns, r.lost_ns
  from unnest(%(collectives)s::text[], %(sizes)s::bigint[], %(times)s::bigint[], %(besides)s::bigint[],
              %(losses)s::bigint[]) as r (collective, size_bytes, time_ns, beside_ns, lost_ns)
 order by r.collective, r.size_bytes
on conflict (hosts, device_kind, collective, size_bytes) do update
   set time_ns = excluded.time_ns, beside_ns = excluded.beside_ns, lost_ns = excluded.lost_ns, measured_at = now()

-- load_rank_memory --
select m.memory_bytes from tensile.rank_memory as m where m.device_kind = %(device_kind)s and m.ranks = %(ranks)s

-- save_rank_memory --
-- Other programs disturb a measurement in both directions, so the largest of a day counts.
insert into tensile.rank_memory as m (device_kind, ranks, memory_bytes)
values (%(device_kind)s, %(ranks)s, %(memory_bytes)s)
on conflict (device_kind, ranks) do update
   set memory_bytes = excluded.memory_bytes, measured_at = now()
 where excluded.memory_bytes > m.memory_bytes or m.measured_at < now() - interval '1 day'

-- record_graph --
insert into tensile.graphs (signature, summary) values (%(signature)s, %(summary)s) on conflict (signature) do nothing

-- record_plan --
insert into tensile.plans
  (job_id, attempt, generation, reason, policy, vanilla_peak_bytes, liveness_peak_bytes, floor_bytes,
   predicted_peak_bytes, predicted_iteration_ns, predicted_stall_ns, swaps, swapped_bytes, recomputed,
   planning_ns, plan)
select j.job_id, j.attempt, %(generation)s, %(reason)s, %(policy)s, %(vanilla_peak_bytes)s, %(liveness_peak_bytes)s,
       %(floor_bytes)s, %(predicted_peak_bytes)s, %(predicted_iteration_ns)s, %(predicted_stall_ns)s, %(swaps)s,
       %(swapped_bytes)s, %(recomputed)s, %(planning_ns)s, %(plan)s
  from tensile.jobs as j
 where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running')
on conflict (job_id, attempt, generation) do update set reason = excluded.reason  -- the same plan, reported twice
returning plan_id

-- record_set --
-- Ends the job's previous set, and writes the set that runs now.
with job as (
  select j.job_id, j.attempt from tensile.jobs as j
   where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running')
), ended as (
  update tensile.job_sets as s set ended_at = now() from job where s.job_id = job.job_id and s.ended_at is null
)
insert into tensile.job_sets (job_id, attempt, beside, stp_foretold, speed_foretold)
select job_id, attempt, %(beside)s, %(throughput)s, %(speed)s from job
returning set_id

-- end_set --
update tensile.job_sets as s set ended_at = now()
  from tensile.jobs as j
 where j.job_id = %(job)s and j.claim = %(claim)s and s.job_id = j.job_id and s.ended_at is null

-- set_measured --
update tensile.job_sets as s
   set stp_measured = coalesce(s.stp_measured + %(weight)s * (%(throughput)s - s.stp_measured), %(throughput)s)
  from tensile.jobs as j
 where j.job_id = %(job)s and j.claim = %(claim)s and s.job_id = j.job_id and s.ended_at is null
returning s.set_id

-- plan_adopted --
update tensile.plans as p set adopted_at = coalesce(p.adopted_at, now())
  from tensile.jobs as j
 where j.job_id = %(job)s and j.claim = %(claim)s and p.job_id = j.job_id and p.attempt = j.attempt
   and p.generation = %(generation)s
returning p.plan_id

-- plan_foreseen --
update tensile.plans as p set predicted_iteration_ns = %(iteration_ns)s, predicted_stall_ns = %(stall_ns)s
  from tensile.jobs as j
 where j.job_id = %(job)s and j.claim = %(claim)s and p.job_id = j.job_id and p.attempt = j.attempt
   and p.generation = %(generation)s
returning p.plan_id

-- plan_measured --
update tensile.plans as p
   set measured_peak_bytes = greatest(p.measured_peak_bytes, %(peak_bytes)s),
       measured_iteration_ns = coalesce(
         p.measured_iteration_ns + %(weight)s::float8 * (%(iteration_ns)s - p.measured_iteration_ns),
         %(iteration_ns)s),
       measured_stall_ns = coalesce(
         p.measured_stall_ns + %(weight)s::float8 * (%(stall_ns)s - p.measured_stall_ns), %(stall_ns)s)
  from tensile.jobs as j
 where j.job_id = %(job)s and j.claim = %(claim)s and p.job_id = j.job_id and p.attempt = j.attempt
   and p.generation = %(generation)s
returning p.plan_id

-- record_device --
insert into tensile.devices as d
  (worker_id, kind, capacity_bytes, budget_bytes, granted_bytes, used_bytes, high_water_bytes, host_bytes,
   busy_percent, memory_busy_percent, outside_bytes)
values (%(worker)s, %(kind)s, %(capacity_bytes)s, %(budget_bytes)s, %(granted_bytes)s, %(used_bytes)s,
        %(high_water_bytes)s, %(host_bytes)s, %(busy_percent)s, %(memory_busy_percent)s, %(outside_bytes)s)
on conflict (worker_id) do update
   set kind = excluded.kind, capacity_bytes = excluded.capacity_bytes, budget_bytes = excluded.budget_bytes,
       granted_bytes = excluded.granted_bytes, used_bytes = excluded.used_bytes,
       high_water_bytes = greatest(d.high_water_bytes, excluded.high_water_bytes), host_bytes = excluded.host_bytes,
       busy_percent = excluded.busy_percent, memory_busy_percent = excluded.memory_busy_percent,
       outside_bytes = excluded.outside_bytes, updated_at = now()

-- record_device_jobs --
with written as (
  insert into tensile.device_jobs (worker_id, job_id, granted_bytes, used_bytes, high_water_bytes)
  select %(worker)s, u.job_id, u.granted_bytes, u.used_bytes, u.high_water_bytes
    from unnest(%(jobs)s::bigint[], %(granted)s::bigint[], %(used)s::bigint[], %(high_water)s::bigint[])
      as u (job_id, granted_bytes, used_bytes, high_water_bytes)
    -- A job whose row another session has locked is left out this time, because the foreign key would wait for the
    -- lock.
    join (select j.job_id from tensile.jobs as j where j.job_id = any (%(jobs)s::bigint[])
             for key share skip locked) as free using (job_id)
  on conflict (worker_id, job_id) do update
     set granted_bytes = excluded.granted_bytes, used_bytes = excluded.used_bytes,
         high_water_bytes = greatest(device_jobs.high_water_bytes, excluded.high_water_bytes), updated_at = now()
)
delete from tensile.device_jobs where worker_id = %(worker)s and job_id <> all (%(jobs)s::bigint[])

-- record_samples --
-- Add to the history, unless the last sample is younger than two seconds. A job whose row another session has locked is
-- left out, as above.
with sampled as (
  insert into tensile.device_samples
    (worker_id, budget_bytes, granted_bytes, used_bytes, host_bytes, busy_percent, outside_bytes)
  select d.worker_id, d.budget_bytes, d.granted_bytes, d.used_bytes, d.host_bytes, d.busy_percent, d.outside_bytes
    from tensile.devices as d
   where d.worker_id = %(worker)s
     and not exists (select from tensile.device_samples as s
                      where s.worker_id = %(worker)s and s.at > now() - interval '1.9 seconds')
  on conflict do nothing
  returning worker_id, at
)
insert into tensile.device_job_samples (worker_id, at, job_id, granted_bytes, used_bytes, copied_bytes_per_s)
select s.worker_id, s.at, u.job_id, u.granted_bytes, u.used_bytes, p.copied_bytes_per_s
  from sampled as s
  cross join unnest(%(jobs)s::bigint[], %(granted)s::bigint[], %(used)s::bigint[]) as u (job_id, granted_bytes, used_bytes)
  join (select j.job_id from tensile.jobs as j where j.job_id = any (%(jobs)s::bigint[])
           for key share skip locked) as free using (job_id)
  left join lateral (
    select (n.swapped_bytes * 1e9 / nullif(coalesce(n.measured_iteration_ns, n.predicted_iteration_ns), 0))::bigint
             as copied_bytes_per_s
      from tensile.plans as n where n.job_id = u.job_id and n.adopted_at is not null
     order by n.plan_id desc limit 1) as p on true

-- thin_samples --
select tensile.thin_samples(%(most)s)

-- record_outlook --
insert into tensile.device_outlooks as o (worker_id, outlook) values (%(worker)s, %(outlook)s)
on conflict (worker_id) do update set outlook = excluded.outlook, updated_at = now()

-- load_outlook --
-- A service belongs to the newest live controller of its host.
select o.outlook from tensile.workers as w join tensile.device_outlooks as o using (worker_id)
 where w.host = %(host)s and tensile.is_alive(w)
 order by w.worker_id desc limit 1

-- record_usage --
-- Rows are written in the order of the key, so that two controllers cannot deadlock.
with used as (
  select j.owner_oid, j.installation, j.model_name, min(j.owner_name::text) as owner_name, sum(u.device_s) as device_s,
         sum(u.byte_s) as byte_s, sum(u.running_s) as running_s, sum(u.measured_s) as measured_s,
         sum(u.alone_s) as alone_s
    from unnest(%(jobs)s::bigint[], %(device_s)s::float8[], %(byte_s)s::float8[], %(running_s)s::float8[],
                %(measured_s)s::float8[], %(alone_s)s::float8[])
      as u (job_id, device_s, byte_s, running_s, measured_s, alone_s)
    join tensile.jobs as j using (job_id)
   group by j.owner_oid, j.installation, j.model_name
), by_model as (
  insert into tensile.usage as t
    (owner_oid, installation, day, model_name, owner_name, device_s, byte_s, running_s, measured_s, alone_s)
  select owner_oid, installation, tensile.usage_day(), model_name, owner_name, device_s, byte_s, running_s, measured_s,
         alone_s
    from used order by owner_oid, model_name
  on conflict (owner_oid, installation, day, model_name) do update
     set device_s = t.device_s + excluded.device_s, byte_s = t.byte_s + excluded.byte_s,
         running_s = t.running_s + excluded.running_s, measured_s = t.measured_s + excluded.measured_s,
         alone_s = t.alone_s + excluded.alone_s
)
insert into tensile.owner_usage as t (owner_oid, installation, recent_s, day, day_s)
select owner_oid, installation, sum(device_s), tensile.usage_day(), sum(device_s)
  from used group by owner_oid, installation order by owner_oid
on conflict (owner_oid, installation) do update
   set recent_s = tensile.decayed_usage(t.recent_s, t.updated_at, (select tensile.usage_half_life_s()))
                    + excluded.recent_s,
       day_s = case when t.day = excluded.day then t.day_s else 0 end + excluded.day_s, day = excluded.day,
       updated_at = now()

-- add_totals --
select tensile.add_totals(%(names)s::text[], %(labels)s::text[], %(amounts)s::float8[])

-- note_count_batch --
-- Returns a row if this batch of counts was not stored yet. A service numbers its batches from 1, and sends one again
-- after a connection broke during the commit.
insert into tensile.count_batches as b (source, process, number) values (%(source)s, %(process)s, %(number)s)
on conflict (source) do update
   set process = excluded.process, number = excluded.number, stored_at = now()
 where b.process <> excluded.process or b.number < excluded.number
returning 1

-- add_predicted_inputs --
-- The version may have been dropped since.
insert into tensile.predicted_inputs as p (version_id, day, rows, counts)
select v.version_id, tensile.usage_day(), %(rows)s, %(counts)s::bigint[]
  from tensile.model_versions as v where v.version_id = %(version)s
on conflict (version_id, day) do update
   set rows = p.rows + excluded.rows, updated_at = now(),
       counts = array(select c.before + c.more
                        from unnest(p.counts, excluded.counts) with ordinality as c (before, more, place)
                       order by c.place)

-- input_bins --
select f.figure from tensile.version_figures as f where f.version_id = %(version)s and f.name = 'input_bins'

-- measured_input_bins --
select f.figure
  from tensile.model_versions as v
  join tensile.models as m on m.model_id = v.model_id and m.measure_drift
  join tensile.version_figures as f on f.version_id = v.version_id and f.name = 'input_bins'
 where v.version_id = %(version)s

-- add_movements --
-- Bytes that the plans of these jobs copied, and how long their iterations waited for copies, as the size of the plans
-- and the measured time of their iterations say; and how long jobs made way for others.
select tensile.add_totals(
         array['swapped_bytes', 'swapped_bytes', 'stall_s', 'stall_s'], array['out', 'in', 'copies', 'turns'],
         array[sum(m.swapped_bytes * m.iterations), sum(m.swapped_bytes * m.iterations),
               sum(m.measured_stall_ns / 1e9 * m.iterations), sum(m.waiting_s)])
  from (select p.swapped_bytes, p.measured_stall_ns, u.waiting_s * (j.phase = 'parked')::integer as waiting_s,
               case when j.phase = 'training'
                    then u.running_s * 1e9 / nullif(coalesce(p.measured_iteration_ns, p.predicted_iteration_ns), 0)
                    end as iterations
          from unnest(%(jobs)s::bigint[], %(running_s)s::float8[], %(waiting_s)s::float8[])
            as u (job_id, running_s, waiting_s)
          join tensile.jobs as j using (job_id)
          left join lateral (select * from tensile.plans as n where n.job_id = u.job_id and n.adopted_at is not null
                              order by n.plan_id desc limit 1) as p on true) as m

-- pin_session --
-- Names in our statements mean PostgreSQL's own functions and operators, and not those of a user.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)

-- pin_transaction --
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)

-- left_overs --
-- Functions in schema public with the names that an installation creates: "drop schema tensile cascade" leaves them.
select pg_catalog.array_agg(pg_catalog.format('drop %%s public.%%I(%%s);',
                                              case p.prokind when 'p' then 'procedure' else 'function' end, p.proname,
                                              pg_catalog.pg_get_function_identity_arguments(p.oid))
                            order by p.proname::text)
  from pg_catalog.pg_proc as p
 where p.pronamespace = 'public'::pg_catalog.regnamespace and p.proname = any (%(names)s)

-- lock_database --
-- No other session gets this lock until the transaction ends. Only superusers can take it, so no user can block it.
select from pg_catalog.pg_database
 where datname operator(pg_catalog.=) pg_catalog.current_database() for update

-- installed_way --
-- This also runs in a user's session, whose search_path is not pinned, so operators are qualified with their schema.
select case when exists (select from pg_catalog.pg_extension
                          where extname operator(pg_catalog.=) 'tensile'::pg_catalog.name) then 'extension' end,
       exists (select from pg_catalog.pg_namespace where nspname operator(pg_catalog.=) 'tensile'::pg_catalog.name)

-- catalog_digest --
select tensile.catalog_digest()

-- catalog_version --
select tensile.catalog_version()

-- server_abilities --
select r.rolsuper, r.rolname, current_setting('server_version_num')::integer,
       exists (select from pg_catalog.pg_available_extensions where name = 'plpython3u')
  from pg_catalog.pg_roles as r where r.rolname = current_user

-- extension_is_available --
select from pg_catalog.pg_available_extension_versions where name = 'tensile' and version = %(version)s

-- create_extension --
create extension tensile cascade

-- update_extension --
alter extension tensile update

-- script_settings --
set local search_path = pg_catalog, pg_temp;
set local check_function_bodies = off;
set local client_min_messages = warning

-- create_plpython --
create extension if not exists plpython3u

-- listen --
listen tensile

-- find_snapshot --
-- Finds the table by name: only tensile_data can create tables in that schema, and a restored copy has other oids.
-- The trials of a search train on the search's snapshot.
select c.oid, 'tensile_data', s.table_name::text,
       array(select a.attname::text from pg_catalog.pg_attribute as a
              where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
       s.key, s.rows, s.valid_rows, s.test_rows
  from tensile.snapshots as s
  left join pg_catalog.pg_class as c
    on c.relname = s.table_name
   and c.relnamespace = (select n.oid from pg_catalog.pg_namespace as n where n.nspname = 'tensile_data')
 where s.job_id = coalesce((select j.search_id from tensile.jobs as j where j.job_id = %(job)s), %(job)s) and s.sealed

-- find_trial --
select t.search_id, t.number, t.rungs, t.allowed_rung from tensile.trials as t where t.job_id = %(job)s

-- report_rung --
-- Safe to repeat. Returns the rung up to which the trial may train.
with mine as (
  select j.job_id, j.search_id from tensile.jobs as j
   where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running')
), added as (
  insert into tensile.trial_results
    (job_id, rung, epoch, epochs, metric_name, metric, higher_is_better, valid_loss, complete, worked_s)
  select m.job_id, %(rung)s, %(epoch)s, %(epochs)s, %(metric_name)s, %(metric)s, %(higher_is_better)s, %(valid_loss)s,
         %(complete)s, %(worked_s)s
    from mine as m
      on conflict (job_id, rung) do nothing
), notified as (
  select pg_notify('tensile', 'search ' || m.search_id) from mine as m
)
select t.allowed_rung, coalesce(t.held_rung, -1)
  from tensile.trials as t join mine using (job_id) cross join (select count(*) from notified) as n

-- allowed_rung --
select t.allowed_rung, coalesce(t.held_rung, -1)
  from tensile.trials as t join tensile.jobs as j using (job_id)
 where j.job_id = %(job)s and j.claim = %(claim)s and j.state in ('starting', 'running')

-- active_searches --
select search_id, spec, running_s from tensile.active_searches()

-- trials --
select t.number, t.job_id, t.picks, t.allowed_rung, coalesce(t.held_rung, -1), j.state::text, j.version_id, t.pruned,
       j.awaits_jobs, j.error_message
  from tensile.trials as t join tensile.jobs as j on j.job_id = t.job_id
 where t.search_id = %(search)s
 order by t.number

-- trial_results --
select t.number, r.rung, r.metric, r.higher_is_better, r.valid_loss, r.complete
  from tensile.trials as t join tensile.trial_results as r on r.job_id = t.job_id
 where t.search_id = %(search)s

-- add_trial --
select tensile.add_trial(%(search)s, %(number)s, %(picks)s, %(parameters)s, %(rungs)s, %(spec)s)

-- allow_rung --
select tensile.allow_rung(%(search)s, %(number)s, %(rung)s)

-- prune_unstarted --
select tensile.prune_unstarted(%(search)s, %(reason)s)

-- search_waits --
update tensile.jobs set waits_for = %(reason)s
 where job_id = %(search)s and state = 'queued' and waits_for is distinct from %(reason)s

-- hold_trials --
select tensile.hold_trials(%(search)s, %(numbers)s)

-- prune_trials --
select tensile.prune_trials(%(search)s, %(numbers)s, %(reason)s)

-- best_version --
-- The version of a search's best trial, and the version that is deployed now. Metrics on the same rows can be compared.
select v.metric_name, v.metric, v.higher_is_better, v.training -> 'compared' as compared, d.version_id as deployed,
       d.number as deployed_number,
       case when d.data_digest = v.data_digest and d.training -> 'split' = v.training -> 'split'
             and d.metric_name = v.metric_name then d.metric end as deployed_metric
  from tensile.model_versions as v
  left join tensile.model_versions as d on d.model_id = v.model_id and d.deployed
 where v.version_id = %(version)s

-- end_search --
select tensile.end_search(%(search)s, %(version)s, %(incumbent)s, %(obstacle)s, %(reason)s)

-- fail_search --
select tensile.fail_search(%(search)s, %(sqlstate)s, %(message)s, %(detail)s, %(hint)s)

-- has_searches --
select exists (select from tensile.active_searches())

-- delete_dropped --
select tensile.delete_dropped(%(most)s)

-- drop_snapshots --
select tensile.drop_snapshots(%(most)s)

-- network_of_name --
select n.digest from tensile.networks as n where n.name = %(name)s

-- network_grantees --
select p.grantee_name from tensile.network_privileges as p join tensile.networks as n using (network_id)
 where n.name = %(name)s and p.installation = tensile.installation() order by p.grantee_name

-- insert_network --
insert into tensile.networks (name, digest, family, config, tokenizer, parameters, weights_bytes)
values (%(name)s, %(digest)s, %(family)s, %(config)s, %(tokenizer)s, %(parameters)s, %(weights_bytes)s)
returning network_id

-- insert_network_chunk --
insert into tensile.network_chunks (network_id, chunk_no, chunk) values (%(owner)s, %(chunk_no)s, %(chunk)s)

-- grant_network --
select public.tensile_grant_network(%(name)s, %(grantee)s)

-- revoke_network --
select public.tensile_revoke_network(%(name)s, %(grantee)s)

-- drop_network --
select public.tensile_drop_network(%(name)s, force => %(force)s)

-- network_of_job --
select n.network_id, tensile.may_use_network(j.owner_oid, n.network_id)
  from tensile.jobs as j
  join tensile.networks as n
    on case when %(digest)s::text is null then n.name = %(name)s else n.digest = %(digest)s end
 where j.job_id = %(job)s
 order by 2 desc, n.name = %(name)s desc, n.network_id
 limit 1

-- network_of_owner --
select n.network_id
  from tensile.networks as n
 where case when %(digest)s::text is null then n.name = %(name)s else n.digest = %(digest)s end
   and tensile.may_use_network(%(owner)s::oid, n.network_id)
 order by n.name = %(name)s desc, n.network_id
 limit 1

-- network_of_digest --
select n.network_id from tensile.networks as n where n.digest = %(digest)s order by n.network_id limit 1

-- load_network --
select n.name, n.digest, n.family, n.config, n.tokenizer, n.weights_bytes
  from tensile.networks as n where n.network_id = %(network)s

-- network_chunks --
select chunk from tensile.network_chunks where network_id = %(owner)s order by chunk_no
