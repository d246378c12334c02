-- Changes the tables and data of 0.1.0 to those of 0.2.0. prepare.sql has removed triggers, policies and grants.

-- Functions that no longer exist, or whose new versions have other arguments.
drop function tensile.check_model_name();
drop function tensile.check_model_owner();
drop function tensile.owns_model(bigint, name);
drop function tensile.claim_job(bigint);
drop function tensile.bridge(text, jsonb);
drop function tensile.call(text, jsonb);
drop function public.tensile_training_info(text);
drop function public.tensile_grant_model(text, name);
drop function public.tensile_explain(
  text, regclass, text, text, text, jsonb, text[], text[], jsonb, jsonb, text, jsonb, text, integer, text, interval,
  text, bigint[], timestamptz, text, boolean);
drop procedure public.tensile_train_and_wait(
  text, regclass, text, text, text, jsonb, text[], text[], jsonb, jsonb, text, jsonb, text, integer, text, interval,
  text, bigint[], timestamptz, text, boolean, bigint);
drop function public.tensile_train(
  text, regclass, text, text, text, jsonb, text[], text[], jsonb, jsonb, text, jsonb, text, integer, text, interval,
  text, bigint[], timestamptz, text, boolean);
drop function tensile.training_request(
  text, regclass, text, text, text, jsonb, text[], text[], jsonb, jsonb, text, jsonb, text, integer, text, interval,
  text, bigint[], timestamptz, text, boolean);

create type tensile.checkpoint_store as enum ('local', 'catalog');

-- Workers ----------------------------------------------------------------------------------------------------

alter table tensile.workers
  add column slots integer not null default 8,
  add column threads integer not null default 1,
  add column beats bigint not null default 0,
  add column took_leave boolean not null default false,
  add column entering integer not null default 2,
  add column holdup text,
  add column device_name text,
  add column service_address text,
  add column service_host_name text,
  add column makes_way boolean not null default true;

-- No controller of 0.1.0 continues after the upgrade. Its jobs go back into the queue as soon as a controller of 0.2.0
-- runs. The workers are marked as having left in good order, so the interruption does not count as a fault of the jobs.
update tensile.workers set stopped_at = now(), took_leave = true where stopped_at is null;
update tensile.workers set service_name = null where service_name is not null;
delete from tensile.device_jobs;

alter table tensile.workers
  add constraint workers_have_slots check (slots > 0),
  add constraint workers_let_jobs_enter check (entering > 0),
  add constraint workers_have_threads check (threads > 0),
  add constraint workers_service_name_is_a_name check (service_name ~ '^[A-Za-z0-9][A-Za-z0-9._-]*$'),
  add constraint workers_service_address_is_an_address check (service_address ~ '^[0-9a-f.:[\]]+:[0-9]+$'),
  add constraint workers_service_address_has_a_host_name check ((service_address is null) = (service_host_name is null));

-- Names ------------------------------------------------------------------------------------------------------

-- Models and jobs whose names 0.2.0 refuses get a new name: with "?" for each character that is not printable, at most
-- 200 characters, and with a number if another model has that name.
do $$
declare
  unprintable constant text := '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]';
  old_name text;
  base text;
  new_name text;
  tries integer;
begin
  for old_name in
    select n.name
      from (select m.name from tensile.models as m union select j.model_name from tensile.jobs as j) as n
     where n.name ~ unprintable or length(n.name) not between 1 and 200
     order by n.name collate "C"
  loop
    base := coalesce(nullif(left(regexp_replace(old_name, unprintable, '?', 'g'), 190), ''), 'unnamed');
    new_name := base;
    tries := 1;
    while exists (select from tensile.models as m where m.name = new_name)
          or exists (select from tensile.jobs as j where j.model_name = new_name) loop
      tries := tries + 1;
      new_name := format('%s (%s)', base, tries);
    end loop;
    update tensile.models as m
       set name = new_name,
           last_spec = case when m.last_spec ? 'model' then jsonb_set(m.last_spec, '{model}', to_jsonb(new_name))
                            else m.last_spec end
     where m.name = old_name;
    update tensile.jobs as j
       set model_name = new_name, spec = jsonb_set(j.spec, '{model}', to_jsonb(new_name))
     where j.model_name = old_name;
    raise warning 'model % is renamed to "%": 0.2.0 takes no such name', to_json(old_name), new_name;
  end loop;

  -- Requests of 0.2.0 cannot carry such a key, so the key cannot identify a request any more.
  update tensile.jobs as j set idempotency_key = null
   where j.idempotency_key ~ unprintable or length(j.idempotency_key) not between 1 and 200;
end
$$;

-- Models -----------------------------------------------------------------------------------------------------

alter table tensile.models
  drop constraint models_name_key,
  add column dropped_at timestamptz,
  add column last_job_id bigint,
  add column last_started_at timestamptz,
  add column measure_drift boolean not null default false,
  add constraint models_name_is_printable check (name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]');
create unique index models_name on tensile.models (name) where dropped_at is null;
create index models_dropped on tensile.models (model_id) where dropped_at is not null;

create table tensile.version_bundles (
  version_id bigint primary key references tensile.model_versions on delete cascade,
  bundle jsonb not null
);
insert into tensile.version_bundles (version_id, bundle) select v.version_id, v.bundle from tensile.model_versions as v;

create table tensile.version_figures (
  version_id bigint not null references tensile.model_versions on delete cascade,
  name text not null,
  figure jsonb not null,
  primary key (version_id, name),
  constraint version_figures_are_objects check (jsonb_typeof(figure) = 'object'),
  constraint version_figures_are_bounded check (octet_length(figure::text) <= 524288)
);

create table tensile.predicted_inputs (
  version_id bigint not null references tensile.model_versions on delete cascade,
  day date not null,
  rows bigint not null,
  counts bigint[] not null,
  updated_at timestamptz not null default now(),
  primary key (version_id, day),
  constraint predicted_inputs_are_counts check (rows >= 0 and array_position(counts, null) is null),
  constraint predicted_inputs_are_bounded check (cardinality(counts) <= 65536)
) with (fillfactor = 50);

alter table tensile.model_versions
  drop column bundle,
  add column weights_digest text,
  add column not_deployed text,
  add column training jsonb,
  add column deployed_by name,
  add column deployed_why text,
  add constraint model_versions_reasons_are_short check (length(deployed_why) <= 1000),
  add constraint model_versions_digests_are_sha256 check (weights_digest ~ '^[0-9a-f]{64}$');

create table tensile.deployments (
  deployment_id bigint generated always as identity primary key,
  model_id bigint not null references tensile.models on delete cascade,
  from_version integer,
  to_version integer,
  deployed_by name,
  deployed_at timestamptz not null default now(),
  job_id bigint,
  reason text
);
create index deployments_model on tensile.deployments (model_id, deployment_id);
insert into tensile.deployments (model_id, to_version, deployed_at, job_id)
select v.model_id, v.number, v.created_at, v.job_id from tensile.model_versions as v where v.deployed
 order by v.version_id;

alter table tensile.model_privileges
  drop constraint model_privileges_are_known,
  add constraint model_privileges_are_known check (privilege in ('predict', 'weights')),
  add column owner_oid oid, add column revoked_at timestamptz;
update tensile.model_privileges as p set owner_oid = m.owner_oid from tensile.models as m where m.model_id = p.model_id;
alter table tensile.model_privileges alter column owner_oid set not null;
create index model_privileges_revoked on tensile.model_privileges (model_id) where revoked_at is not null;

-- Jobs -------------------------------------------------------------------------------------------------------

alter table tensile.jobs
  drop constraint jobs_attempts_are_bounded,
  drop constraint jobs_spec_is_small,
  add column faults integer not null default 0,
  add column interruptions integer not null default 0,
  add column interrupted interval not null default '0',
  add column progress_at timestamptz,
  add column last_death_phase text,
  add column threads integer,
  add column pause_requested boolean not null default false,
  add column devices integer not null default 1,
  add column depends_on bigint[],
  add column awaits_jobs boolean not null default false,
  add column retry_of bigint,
  add column search_id bigint,
  add column init_version_id bigint,
  add column needs_bytes bigint,
  add column short_since timestamptz;

create table tensile.awaited_jobs (
  job_id bigint not null references tensile.jobs on delete cascade,
  awaited_id bigint not null,
  primary key (job_id, awaited_id)
);
create index awaited_jobs_awaited on tensile.awaited_jobs (awaited_id);

create table tensile.trials (
  search_id bigint not null references tensile.jobs on delete cascade,
  number integer not null,
  job_id bigint not null references tensile.jobs on delete cascade,
  picks jsonb not null,
  parameters jsonb not null,
  rungs double precision[] not null,
  allowed_rung integer not null default 0,
  held_rung integer,
  pruned boolean not null default false,
  primary key (search_id, number),
  constraint trials_count_from_one check (number > 0),
  constraint trials_have_rungs check (cardinality(rungs) between 1 and 64),
  constraint trials_go_to_a_rung check (allowed_rung >= 0 and allowed_rung < cardinality(rungs))
);
create unique index trials_job on tensile.trials (job_id);

create table tensile.trial_results (
  job_id bigint not null references tensile.jobs on delete cascade,
  rung integer not null,
  epoch integer not null,
  epochs integer not null,
  metric_name text not null,
  metric double precision,
  higher_is_better boolean not null,
  valid_loss double precision,
  complete boolean not null,
  worked_s double precision not null default 0,
  reached_at timestamptz not null default now(),
  primary key (job_id, rung),
  constraint trial_results_count_from_zero check (rung >= 0),
  constraint trial_results_take_time check (worked_s >= 0)
);

alter type tensile.task add value 'multilabel';
alter type tensile.task add value 'forecast';
alter type tensile.task add value 'anomaly';
alter type tensile.task add value 'pairs';
alter type tensile.job_phase add value 'paused';
alter type tensile.job_phase add value 'parked';
alter type tensile.job_phase add value 'predicting';

alter table tensile.job_progress
  add column eta_earliest timestamptz,
  add column rows_predicted bigint,
  add column rows_expected bigint;

-- Jobs fail whose specification is larger than a worker of 0.2.0 reads.
with refused as (
  update tensile.jobs as j
     set state = 'failed', phase = null, worker_id = null, waits_for = null, not_before = null, finished_at = now(),
         error_sqlstate = '54000', error_detail = null,
         error_message = format('the specification of the job has %s bytes, and 0.2.0 takes at most 262144',
                                pg_column_size(j.spec || '{}')),
         error_hint = 'Train again with fewer features or shorter hyperparams.'
   where j.state in ('queued', 'starting', 'running') and pg_column_size(j.spec || '{}') > 262144
  returning j.job_id, j.error_message
)
insert into tensile.job_events (job_id, kind, detail)
select r.job_id, 'failed', jsonb_build_object('error', r.error_message) from refused as r;

alter table tensile.jobs
  add constraint jobs_spec_is_small
    check (pg_column_size(spec) <= 262144 or state in ('succeeded', 'failed', 'cancelled')),
  add constraint jobs_model_name_is_short check (length(model_name) between 1 and 200),
  add constraint jobs_model_name_is_printable
    check (model_name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'),
  add constraint jobs_idempotency_key_is_short check (length(idempotency_key) between 1 and 200),
  add constraint jobs_idempotency_key_is_printable
    check (idempotency_key !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'),
  add constraint jobs_attempts_are_bounded check (max_attempts between 1 and 100 and faults between 0 and max_attempts),
  add constraint jobs_have_threads check (threads > 0),
  add constraint jobs_have_devices check (devices between 1 and 64),
  add constraint jobs_await_others_only_while_queued check (not awaits_jobs or state = 'queued'),
  add constraint jobs_attempts_are_counts check (attempt >= 0 and interruptions >= 0 and interrupted >= interval '0');

drop index tensile.jobs_active;
create index jobs_active on tensile.jobs (worker_id) where worker_id is not null;
create index jobs_finished on tensile.jobs (finished_at, job_id) where finished_at is not null;
drop index tensile.jobs_queued;
create index jobs_queued_by_owner on tensile.jobs (owner_oid, priority desc, job_id)
  where state = 'queued' and not pause_requested and not awaits_jobs;
create index jobs_awaiting on tensile.jobs (job_id) where awaits_jobs;
create index jobs_retried on tensile.jobs (retry_of) where retry_of is not null;
create index jobs_of_search on tensile.jobs (search_id, job_id) where search_id is not null;
create index jobs_queued_gangs on tensile.jobs (job_id) where state = 'queued' and devices > 1;
create index jobs_queued_ids on tensile.jobs (owner_oid, job_id) where state = 'queued';
drop index tensile.jobs_idempotency;
create unique index jobs_idempotency on tensile.jobs (owner_oid, installation, idempotency_key)
  where idempotency_key is not null;
create index job_events_at on tensile.job_events (at);
create index plans_created on tensile.plans (created_at);

-- Reserves the model names of queued and active jobs, as enqueuing in 0.2.0 does. If two owners train a new model of
-- the same name, the first job gets the name, and the other job fails when it publishes, as it would have done in
-- 0.1.0.
insert into tensile.models (name, owner_oid, owner_name, installation)
select distinct on (j.model_name) j.model_name, j.owner_oid, j.owner_name, j.installation
  from tensile.jobs as j
 where j.state in ('queued', 'starting', 'running')
   and not exists (select from tensile.models as m where m.name = j.model_name)
 order by j.model_name, j.job_id;

-- Checkpoints ------------------------------------------------------------------------------------------------

-- Checkpoints of 0.1.0 have no digest, so they are deleted, and active jobs start again from the beginning.
alter table tensile.artifacts
  drop constraint artifacts_have_one_owner,
  drop constraint artifacts_job_id_fkey;
delete from tensile.artifacts where job_id is not null;
delete from tensile.checkpoints;
drop index tensile.artifacts_job;
drop index tensile.artifacts_version;
-- With the foreign key, deleting a version would lock its job's row, which the job's owner may lock too.
alter table tensile.jobs drop constraint jobs_version_id_fkey;
drop index tensile.jobs_version;

alter table tensile.artifacts drop column job_id, alter column version_id set not null;
create unique index artifacts_version on tensile.artifacts (version_id, chunk_no);

alter table tensile.checkpoints
  drop constraint checkpoints_pkey,
  add column store tensile.checkpoint_store not null,
  add column host text not null,
  add column digest text not null,
  add primary key (job_id, store, host),
  add constraint checkpoints_in_files_have_a_host check ((store = 'local') = (host <> '')),
  add constraint checkpoints_sizes_are_counts check (size_bytes >= 0),
  add constraint checkpoints_digests_are_sha256 check (digest ~ '^[0-9a-f]{64}$');

create table tensile.checkpoint_chunks (
  job_id bigint not null references tensile.jobs on delete cascade,
  chunk_no integer not null,
  chunk bytea not null,
  primary key (job_id, chunk_no),
  constraint checkpoint_chunks_count_from_zero check (chunk_no >= 0),
  constraint checkpoint_chunks_are_bounded check (octet_length(chunk) <= 8388608)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000,
  toast.autovacuum_vacuum_cost_delay = 0, vacuum_truncate = on, toast.vacuum_truncate = on
);
alter table tensile.checkpoint_chunks alter column chunk set storage external;

-- Reports ----------------------------------------------------------------------------------------------------

create table tensile.data_reports (
  job_id bigint primary key references tensile.jobs on delete cascade,
  report jsonb not null,
  written_at timestamptz not null default now(),
  constraint data_reports_are_lists check (jsonb_typeof(report) = 'array'),
  constraint data_reports_are_bounded check (octet_length(report::text) <= 1048576)
);

-- Quotas and snapshots ---------------------------------------------------------------------------------------

create table tensile.device_contention (
  device_kind text not null,
  jobs integer not null,
  arithmetic double precision not null,
  memory double precision not null,
  mixed double precision not null,
  measured_at timestamptz not null default now(),
  learned double precision,
  short double precision,
  short_mixed double precision,
  short_ns bigint,
  learned_short double precision,
  training double precision,
  taken_cores double precision,
  primary key (device_kind, jobs),
  constraint device_contention_is_positive
    check (jobs > 0 and arithmetic > 0 and memory > 0 and mixed > 0 and learned > 0 and training > 0),
  constraint device_contention_of_short_steps_is_positive
    check (short > 0 and short_mixed > 0 and short_ns > 0 and learned_short > 0),
  constraint device_contention_takes_cores check (taken_cores >= 0 and taken_cores < 'infinity')
);

create table tensile.device_overheads (
  device_kind text not null,
  kind text not null,
  state_bytes bigint not null,
  startup_ns double precision,
  between_ns double precision,
  closing_ns double precision,
  trained_share double precision,
  updated_at timestamptz not null default now(),
  primary key (device_kind, kind),
  constraint device_overheads_are_times
    check (state_bytes >= 0 and startup_ns >= 0 and between_ns >= 0 and closing_ns >= 0),
  constraint device_overheads_have_a_share check (trained_share > 0 and trained_share <= 1)
);

create table tensile.device_outlooks (
  worker_id bigint primary key references tensile.workers on delete cascade,
  outlook jsonb not null,
  updated_at timestamptz not null default now(),
  constraint device_outlooks_are_bounded check (octet_length(outlook::text) <= 1048576)
) with (fillfactor = 50);

create table tensile.job_sets (
  set_id bigint generated always as identity primary key,
  job_id bigint not null references tensile.jobs on delete cascade,
  attempt integer not null,
  beside bigint[] not null,
  stp_foretold double precision not null,
  stp_measured double precision,
  started_at timestamptz not null default now(),
  ended_at timestamptz,
  speed_foretold double precision not null
);
create index job_sets_of_job on tensile.job_sets (job_id, set_id);

create table tensile.role_quotas (
  role_oid oid not null,
  installation uuid not null default tensile.installation(),
  role_name name not null,
  jobs_running integer,
  jobs_queued integer,
  bytes bigint,
  highest_priority integer,
  device_seconds bigint,
  weight double precision,
  changed_at timestamptz not null default now(),
  changed_by name not null default current_user,
  primary key (role_oid, installation),
  constraint role_quotas_are_counts check (jobs_running >= 0 and jobs_queued >= 0 and bytes >= 0),
  constraint role_quotas_priority_is_bounded check (highest_priority between -1000 and 1000),
  constraint role_quotas_device_seconds_are_positive check (device_seconds > 0),
  constraint role_quotas_weight_is_bounded check (weight between 0.001 and 1000)
);

create table tensile.usage (
  owner_oid oid not null,
  installation uuid not null default tensile.installation(),
  day date not null,
  model_name text not null,
  owner_name name not null,
  device_s double precision not null default 0,
  byte_s double precision not null default 0,
  running_s double precision not null default 0,
  measured_s double precision not null default 0,
  alone_s double precision not null default 0,
  jobs_deleted bigint not null default 0,
  primary key (owner_oid, installation, day, model_name)
) with (fillfactor = 50);
create index usage_day on tensile.usage (day);

create table tensile.deleted_jobs (
  owner_oid oid not null,
  installation uuid not null default tensile.installation(),
  state tensile.job_state not null,
  jobs bigint not null,
  primary key (owner_oid, installation, state),
  constraint deleted_jobs_had_ended check (state in ('succeeded', 'failed', 'cancelled')),
  constraint deleted_jobs_are_counts check (jobs >= 0)
) with (fillfactor = 50);

create table tensile.deleted_usage (
  owner_oid oid not null,
  installation uuid not null default tensile.installation(),
  device_s double precision not null default 0,
  byte_s double precision not null default 0,
  running_s double precision not null default 0,
  primary key (owner_oid, installation)
) with (fillfactor = 50);

create table tensile.totals (
  name text not null,
  label text not null default '',
  value double precision not null,
  primary key (name, label),
  constraint totals_are_amounts check (value >= 0 and value < 'infinity')
) with (fillfactor = 50);

create table tensile.count_batches (
  source text primary key,
  process uuid not null,
  number bigint not null,
  stored_at timestamptz not null default now(),
  constraint count_batches_sources_are_short check (length(source) between 1 and 200)
) with (fillfactor = 50);

create table tensile.owner_usage (
  owner_oid oid not null,
  installation uuid not null default tensile.installation(),
  recent_s double precision not null default 0,
  day date not null,
  day_s double precision not null default 0,
  updated_at timestamptz not null default now(),
  primary key (owner_oid, installation)
) with (fillfactor = 50);

create table tensile.snapshots (
  job_id bigint primary key references tensile.jobs on delete cascade,
  table_name name not null unique,
  key text[] not null,
  rows bigint,
  bytes bigint,
  created_at timestamptz not null default now(),
  sealed boolean not null default false,
  valid_rows bigint not null default 0,
  test_rows bigint not null default 0,
  constraint snapshots_are_measured_when_sealed check (sealed = (rows is not null) and sealed = (bytes is not null)),
  constraint snapshots_parts_are_rows check (valid_rows >= 0 and test_rows >= 0 and valid_rows + test_rows <= rows)
);

create table tensile.job_ranks (
  job_id bigint not null references tensile.jobs on delete cascade,
  rank integer not null,
  worker_id bigint,  -- no foreign key: the deletion of a worker would search for its ranks
  claim bigint,
  state text not null default 'offered',
  waits_for text,
  since timestamptz not null default now(),
  divides_state boolean,
  step_ns bigint,
  steps_published integer not null default 0,
  primary key (job_id, rank),
  constraint job_ranks_are_bounded check (rank between 0 and 63),
  constraint job_ranks_have_a_known_state
    check (state in ('offered', 'preparing', 'prepared', 'admitted', 'training', 'finished')),
  constraint job_ranks_have_a_worker_once_accepted
    check ((state = 'offered') = (worker_id is null) and (worker_id is null) = (claim is null))
) with (fillfactor = 50);
create unique index job_ranks_are_of_different_workers on tensile.job_ranks (job_id, worker_id);
create index job_ranks_worker on tensile.job_ranks (worker_id) where worker_id is not null;

create table tensile.rank_values (
  job_id bigint not null,
  rank integer not null,
  key text not null,
  value bytea not null,
  primary key (job_id, key),
  foreign key (job_id, rank) references tensile.job_ranks on delete cascade,
  constraint rank_values_keys_are_short check (length(key) between 1 and 1000),
  constraint rank_values_are_small check (octet_length(value) <= 1048576)
);
create index rank_values_rank on tensile.rank_values (job_id, rank);

create table tensile.rank_networks (
  hosts text[] not null,
  device_kind text not null,
  collective text not null,
  size_bytes bigint not null,
  time_ns bigint not null,
  beside_ns bigint not null,
  lost_ns bigint not null,
  measured_at timestamptz not null default now(),
  primary key (hosts, device_kind, collective, size_bytes),
  constraint rank_networks_have_a_known_collective check (
    collective in ('all_to_all', 'one_way', 'all_reduce', 'copy')
  ),
  constraint rank_networks_are_measured check (cardinality(hosts) > 1 and size_bytes > 0 and time_ns > 0),
  constraint rank_networks_take_longer_beside_work check (beside_ns >= time_ns and lost_ns between 0 and beside_ns)
);

create table tensile.rank_memory (
  device_kind text not null,
  ranks integer not null,
  memory_bytes bigint not null,
  measured_at timestamptz not null default now(),
  primary key (device_kind, ranks),
  constraint rank_memory_is_measured check (ranks > 1 and memory_bytes > 0)
);

create table tensile.gang_turns (
  job_id bigint primary key,
  turns integer not null default 1,
  workers bigint[] not null,
  begins_at timestamptz not null,
  ends_at timestamptz not null,
  constraint gang_turns_count_from_one check (turns > 0),
  constraint gang_turns_end_after_they_begin check (ends_at >= begins_at)
);

create table tensile.device_samples (
  worker_id bigint not null references tensile.workers on delete cascade,
  at timestamptz not null default now(),
  budget_bytes bigint not null,
  granted_bytes bigint not null,
  used_bytes bigint not null,
  host_bytes bigint not null,
  busy_percent smallint,
  outside_bytes bigint,
  primary key (worker_id, at)
);

create table tensile.device_job_samples (
  worker_id bigint not null,
  at timestamptz not null,
  job_id bigint not null references tensile.jobs on delete cascade,
  granted_bytes bigint not null,
  used_bytes bigint not null,
  copied_bytes_per_s bigint,
  primary key (worker_id, at, job_id),
  foreign key (worker_id, at) references tensile.device_samples on delete cascade
);
create index device_job_samples_job on tensile.device_job_samples (job_id, at);

create table tensile.traces (
  job_id bigint primary key references tensile.jobs on delete cascade,
  iterations integer not null,
  seconds double precision not null,
  starts_at timestamptz not null,
  requested_at timestamptz not null,
  recording bytea,
  recorded_at timestamptz,
  constraint traces_are_short check (iterations between 1 and 1000 and seconds between 0 and 60),
  constraint traces_are_bounded check (octet_length(recording) <= 33554432)
);

create table tensile.job_graphs (
  job_id bigint primary key references tensile.jobs on delete cascade,
  graph bytea not null,
  written_at timestamptz not null default now(),
  constraint job_graphs_are_bounded check (octet_length(graph) <= 8388608)
);

-- Registered networks -------------------------------------------------------------------------------------------

create table tensile.networks (
  network_id bigint generated always as identity primary key,
  name text not null,
  digest text not null,
  family text not null,
  config jsonb not null,
  tokenizer text not null,
  parameters bigint not null,
  weights_bytes bigint not null,
  imported_by name not null default current_user,
  imported_at timestamptz not null default now(),
  constraint networks_name_is_short check (length(name) between 1 and 200),
  constraint networks_name_is_printable
    check (name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'),
  constraint networks_digest_is_sha256 check (digest ~ '^[0-9a-f]{64}$'),
  constraint networks_config_is_small check (octet_length(config::text) <= 65536),
  constraint networks_tokenizer_is_small check (octet_length(tokenizer) <= 33554432),
  constraint networks_weights_are_bounded check (weights_bytes between 1 and 8589934592 and parameters > 0)
);
create unique index networks_name on tensile.networks (name);
create index networks_digest on tensile.networks (digest);

create table tensile.network_chunks (
  network_id bigint not null references tensile.networks on delete cascade,
  chunk_no integer not null,
  chunk bytea not null,
  primary key (network_id, chunk_no),
  constraint network_chunks_count_from_zero check (chunk_no >= 0),
  constraint network_chunks_are_bounded check (octet_length(chunk) <= 8388608)
);
alter table tensile.network_chunks alter column chunk set storage external;

create table tensile.network_privileges (
  network_id bigint not null references tensile.networks on delete cascade,
  grantee_oid oid not null,
  grantee_name name not null,
  granted_by name not null default current_user,
  granted_at timestamptz not null default now(),
  installation uuid not null default tensile.installation(),
  primary key (network_id, grantee_oid, installation)
);
