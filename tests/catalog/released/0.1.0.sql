-- The schema, the closed sets of words, the roles, and who this database is.
-- Everything is named with its schema, so that no search_path changes what is meant.

do $$
begin
  if exists (select from pg_catalog.pg_namespace where nspname = 'tensile') then
    raise exception 'schema "tensile" already exists in database "%"', pg_catalog.current_database()
      using errcode = 'duplicate_schema',
            detail = 'The catalog is installed here already, by "create extension" or by "tensile init".',
            hint = 'Ask it for its version: select tensile.catalog_version(). '
                   'To install it anew, drop the extension, or the schema, first.';
  end if;
end
$$;

create schema tensile;
comment on schema tensile is 'indb-tensile: jobs, models, plans and latencies; users call public.tensile_…()';

create function tensile.catalog_version() returns text
  language sql immutable parallel safe
  return '0.1.0';
comment on function tensile.catalog_version() is
  'version of this catalog; a controller of another version refuses to work on it';

create function tensile.catalog_digest() returns text
  language sql immutable parallel safe
  return '0f415abedeac2d16';
comment on function tensile.catalog_digest() is
  'digest of the source that made this catalog; between two releases the version alone does not tell';

-- Derived on every call and stored nowhere: a copy of the database, by dump, template or upgrade, is another
-- installation without anybody having to tell it so. Only a copy of the whole data directory is taken for the
-- same one, which is what a promoted standby needs.
create function tensile.installation() returns uuid
  language sql stable parallel safe
  return (select pg_catalog.md5(c.system_identifier::text || '/' || d.oid::text)::uuid
            from pg_catalog.pg_control_system() as c, pg_catalog.pg_database as d
           where d.datname = pg_catalog.current_database());
comment on function tensile.installation() is
  'who this database is: from the cluster''s system identifier and the database''s oid';

create function tensile.current_role_oid() returns oid
  language sql stable parallel safe
  return pg_catalog.quote_ident(current_user)::regrole::oid;
comment on function tensile.current_role_oid() is 'oid of current_user: the owner of what is written now';

create type tensile.job_state as enum ('queued', 'starting', 'running', 'succeeded', 'failed', 'cancelled');
comment on type tensile.job_state is
  'queued: waits for a worker; starting: claimed, reads and plans; running: trains; '
  'succeeded: its version is published; failed: see its error; cancelled: stopped because its owner asked';

create type tensile.job_phase as enum (
  'reading', 'capturing', 'calibrating', 'waiting for memory', 'training', 'validating', 'publishing');
comment on type tensile.job_phase is
  'reading: the table becomes tensors; capturing: one step becomes a graph; calibrating: unknown operators are '
  'measured; waiting for memory: to be measured in, or to train in; training; validating; publishing: the version is stored';

create type tensile.task as enum ('classification', 'regression');
comment on type tensile.task is 'classification: a label out of a set; regression: a number';

create type tensile.copy_way as enum ('out', 'in');
comment on type tensile.copy_way is 'out: from the device to its host; in: from the host to the device';

-- Roles belong to the cluster, not to the database: another database may have made them already.
do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_user') then
    create role tensile_user nologin;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_monitor') then
    create role tensile_monitor nologin;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_admin') then
    create role tensile_admin nologin;
  end if;
  if not exists (select from pg_catalog.pg_roles where rolname = 'tensile_worker') then
    -- No password: who may log in as the worker is what pg_hba.conf and pg_ident.conf, or a password set later, say.
    create role tensile_worker login;
  end if;
  grant tensile_monitor to pg_monitor;
  grant tensile_user, tensile_monitor to tensile_admin;
end
$$;

-- What is remembered: models and their versions, the queue, workers and devices, plans and latencies.

-- Settings ---------------------------------------------------------------------------------------------------

create table tensile.settings (
  name text primary key,
  value jsonb not null,
  changed_at timestamptz not null default now(),
  changed_by name not null default current_user
);
comment on table tensile.settings is 'what an administrator has set; a setting that is not here has its default';
comment on column tensile.settings.name is 'name of the setting, such as socket_directory';
comment on column tensile.settings.value is 'its value';
comment on column tensile.settings.changed_at is 'when it was last set';
comment on column tensile.settings.changed_by is 'who set it';

-- Models -----------------------------------------------------------------------------------------------------

create table tensile.models (
  model_id bigint generated always as identity primary key,
  name text not null unique,
  owner_oid oid not null default tensile.current_role_oid(),
  owner_name name not null default current_user,
  definition jsonb,
  last_spec jsonb,
  installation uuid not null default tensile.installation(),
  created_at timestamptz not null default now(),
  constraint models_name_is_short check (length(name) between 1 and 200)
);
comment on table tensile.models is 'a model: a name and an owner; each successful training adds a version';
comment on column tensile.models.model_id is 'number of the model';
comment on column tensile.models.name is 'its name, unique in the database';
comment on column tensile.models.owner_oid is 'role that may train, deploy and drop it';
comment on column tensile.models.owner_name is 'name of that role when the model was made; it must still match';
comment on column tensile.models.definition is
  'architecture and hyperparams of tensile_create_model; null where no network was defined';
comment on column tensile.models.last_spec is 'specification of the last successful run: what arguments left out mean';
comment on column tensile.models.installation is 'database that owner_oid belongs to; see tensile.adopt_owners()';
comment on column tensile.models.created_at is 'when it was made';

create table tensile.model_versions (
  version_id bigint generated always as identity primary key,
  model_id bigint not null references tensile.models on delete cascade,
  number integer not null,
  job_id bigint,
  task tensile.task not null,
  target text not null,
  architecture jsonb not null,
  bundle jsonb not null,
  metric_name text,
  metric double precision,
  higher_is_better boolean,
  metrics jsonb not null default '{}',
  parameters bigint not null,
  weights_bytes bigint not null,
  relation_oid oid,
  relation_schema text,
  relation_name text,
  data_digest text,
  created_at timestamptz not null default now(),
  deployed boolean not null default false,
  constraint model_versions_number unique (model_id, number),
  constraint model_versions_number_is_positive check (number > 0),
  constraint model_versions_sizes_are_counts check (parameters >= 0 and weights_bytes >= 0),
  constraint model_versions_metric_has_a_direction
    check (metric is null or (metric_name is not null and higher_is_better is not null))
);
create unique index model_versions_one_is_deployed on tensile.model_versions (model_id) where deployed;
create index model_versions_job on tensile.model_versions (job_id);
comment on table tensile.model_versions is 'one trained network of a model; its weights are in artifacts';
comment on column tensile.model_versions.version_id is 'number of the version among all models';
comment on column tensile.model_versions.model_id is 'the model it belongs to';
comment on column tensile.model_versions.number is 'number of the version within its model, from 1';
comment on column tensile.model_versions.job_id is 'job that trained it; kept when the job''s row is gone';
comment on column tensile.model_versions.task is 'what it learned';
comment on column tensile.model_versions.target is 'column that it predicts';
comment on column tensile.model_versions.architecture is 'its network, declaratively';
comment on column tensile.model_versions.bundle is 'preprocessing, labels and whatever else turns a row into a prediction';
comment on column tensile.model_versions.metric_name is 'name of the metric that judges it';
comment on column tensile.model_versions.metric is 'that metric on the held-out rows';
comment on column tensile.model_versions.higher_is_better is 'direction of the metric';
comment on column tensile.model_versions.metrics is 'all figures that were computed on the held-out rows, by name';
comment on column tensile.model_versions.parameters is 'count of its trained numbers';
comment on column tensile.model_versions.weights_bytes is 'size of its weights';
comment on column tensile.model_versions.relation_oid is 'table that it was trained on';
comment on column tensile.model_versions.relation_schema is 'schema of that table at the time';
comment on column tensile.model_versions.relation_name is 'name of that table at the time';
comment on column tensile.model_versions.data_digest is 'digest of the rows that it was trained on';
comment on column tensile.model_versions.created_at is 'when it was published';
comment on column tensile.model_versions.deployed is 'predictions that name no version use it; at most one per model';

create table tensile.model_privileges (
  model_id bigint not null references tensile.models on delete cascade,
  grantee_oid oid not null,
  grantee_name name not null,
  privilege text not null default 'predict',
  granted_by name not null default current_user,
  granted_at timestamptz not null default now(),
  installation uuid not null default tensile.installation(),
  primary key (model_id, grantee_oid, privilege),
  constraint model_privileges_are_known check (privilege in ('predict'))
);
create index model_privileges_grantee on tensile.model_privileges (grantee_oid);
comment on table tensile.model_privileges is 'who else may use a model';
comment on column tensile.model_privileges.model_id is 'the model';
comment on column tensile.model_privileges.grantee_oid is 'role that may use it; 0 is everybody';
comment on column tensile.model_privileges.grantee_name is 'name of that role when it was granted; public for everybody';
comment on column tensile.model_privileges.privilege is 'predict: see the model and predict with it';
comment on column tensile.model_privileges.granted_by is 'role that granted it: the owner at the time';
comment on column tensile.model_privileges.granted_at is 'when it was granted';
comment on column tensile.model_privileges.installation is
  'database that grantee_oid belongs to; see tensile.adopt_owners()';

-- Workers ----------------------------------------------------------------------------------------------------

create table tensile.workers (
  worker_id bigint generated always as identity primary key,
  host text not null,
  pid integer not null,
  device text not null,
  version text not null,
  service_name text,
  lease_s double precision not null,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  stopped_at timestamptz,
  constraint workers_lease_is_positive check (lease_s > 0)
) with (fillfactor = 50);  -- and no index on heartbeat_at: every beat stays a heap-only update
comment on table tensile.workers is 'a controller and the device it rules';
comment on column tensile.workers.worker_id is 'number of the worker; a controller started again is a new one';
comment on column tensile.workers.host is 'machine it runs on';
comment on column tensile.workers.pid is 'its process there';
comment on column tensile.workers.device is 'kind of its device: the key of op_latency';
comment on column tensile.workers.version is 'version of its code';
comment on column tensile.workers.service_name is
  'name of its service''s socket within the setting socket_directory; null while no service answers';
comment on column tensile.workers.lease_s is 'seconds without a heartbeat after which its jobs are rescued';
comment on column tensile.workers.started_at is 'when it registered';
comment on column tensile.workers.heartbeat_at is 'its last heartbeat';
comment on column tensile.workers.stopped_at is 'when it left, or was found to be gone; it claims nothing from then on';

-- The queue --------------------------------------------------------------------------------------------------

create sequence tensile.claim_seq as bigint;
comment on sequence tensile.claim_seq is 'claim tokens: each claim of a job takes the next one';

create table tensile.jobs (
  job_id bigint generated always as identity primary key,
  model_name text not null,
  owner_oid oid not null default tensile.current_role_oid(),
  owner_name name not null default current_user,
  relation_oid oid not null,
  relation_schema text not null,
  relation_name text not null,
  spec jsonb not null,
  state tensile.job_state not null default 'queued',
  phase tensile.job_phase,
  priority integer not null default 0,
  attempt integer not null default 0,
  max_attempts integer not null default 3,
  claim bigint,
  worker_id bigint references tensile.workers,
  installation uuid not null default tensile.installation(),
  cancel_requested boolean not null default false,
  waits_for text,
  error_sqlstate text,
  error_message text,
  error_detail text,
  error_hint text,
  enqueued_at timestamptz not null default now(),
  enqueued_xact xid8 not null default pg_current_xact_id(),
  not_before timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  idempotency_key text,
  version_id bigint references tensile.model_versions on delete set null,
  constraint jobs_spec_names_the_model check (spec ->> 'model' is not distinct from model_name),
  constraint jobs_spec_names_the_relation check (
    spec #>> '{relation,oid}' is not distinct from relation_oid::text
    and spec #>> '{relation,schema}' is not distinct from relation_schema
    and spec #>> '{relation,name}' is not distinct from relation_name),
  constraint jobs_spec_is_small check (pg_column_size(spec) < 1048576),
  constraint jobs_priority_is_bounded check (priority between -1000 and 1000),
  constraint jobs_attempts_are_bounded check (attempt between 0 and max_attempts and max_attempts between 1 and 100),
  constraint jobs_have_a_worker_while_active check ((state in ('starting', 'running')) = (worker_id is not null)),
  constraint jobs_have_a_claim_while_active check (state not in ('starting', 'running') or claim is not null),
  constraint jobs_have_a_phase_only_while_active check (phase is null or state in ('starting', 'running')),
  constraint jobs_end_once check ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
  constraint jobs_that_fail_say_why check (state <> 'failed' or error_message is not null),
  constraint jobs_that_do_not_succeed_publish_nothing check (version_id is null or state = 'succeeded')
) with (fillfactor = 80);
create index jobs_queued on tensile.jobs (priority desc, job_id) where state = 'queued';
create index jobs_active on tensile.jobs (worker_id) where state in ('starting', 'running');
create index jobs_owner on tensile.jobs (owner_oid, job_id);
create index jobs_model on tensile.jobs (model_name, job_id);
create index jobs_model_owner on tensile.jobs (model_name, owner_oid) where state in ('queued', 'starting', 'running');
create index jobs_version on tensile.jobs (version_id) where version_id is not null;
create unique index jobs_idempotency on tensile.jobs (owner_oid, idempotency_key) where idempotency_key is not null;
comment on table tensile.jobs is 'the queue, and what became of each training that was asked for';
comment on column tensile.jobs.job_id is 'number of the job: what tensile_train returns';
comment on column tensile.jobs.model_name is 'model that gets a new version; made when the job succeeds, if it is new';
comment on column tensile.jobs.owner_oid is 'role that asked for it, and whose privileges it needs';
comment on column tensile.jobs.owner_name is 'name of that role at the time; it must still match';
comment on column tensile.jobs.relation_oid is 'table to train on; another table of the same name is an error';
comment on column tensile.jobs.relation_schema is 'schema of that table when the job was enqueued';
comment on column tensile.jobs.relation_name is 'name of that table when the job was enqueued';
comment on column tensile.jobs.spec is 'the whole request, resolved: the JSON of indb_tensile.job.JobSpec';
comment on column tensile.jobs.state is 'where it is; every change is guarded by the state before and notifies';
comment on column tensile.jobs.phase is 'what it is doing while starting or running';
comment on column tensile.jobs.priority is 'higher goes first; equal ones go in order of job_id';
comment on column tensile.jobs.attempt is 'how often it was claimed, the present claim included';
comment on column tensile.jobs.max_attempts is 'a job that was interrupted this often fails';
comment on column tensile.jobs.claim is 'token of the last claim; a write that carries an older one changes nothing';
comment on column tensile.jobs.worker_id is 'worker that holds it while starting or running';
comment on column tensile.jobs.installation is 'database it was enqueued in; workers of another one never claim it: tensile.adopt_jobs()';
comment on column tensile.jobs.cancel_requested is 'its owner wants it stopped; a queued one is cancelled at once';
comment on column tensile.jobs.waits_for is 'why it does not go on, in words, as the controller sees it';
comment on column tensile.jobs.error_sqlstate is 'SQLSTATE of the last error';
comment on column tensile.jobs.error_message is 'what went wrong in the last attempt that ended in an error';
comment on column tensile.jobs.error_detail is 'what helps to see why';
comment on column tensile.jobs.error_hint is 'the way out';
comment on column tensile.jobs.enqueued_at is 'when it was asked for';
comment on column tensile.jobs.enqueued_xact is 'transaction that asked for it: waiting within that one could never end';
comment on column tensile.jobs.not_before is 'earliest time of the next claim: as asked for, or a back-off';
comment on column tensile.jobs.started_at is 'when it was claimed for the first time';
comment on column tensile.jobs.finished_at is 'when it succeeded, failed or was cancelled';
comment on column tensile.jobs.idempotency_key is 'asked for twice under one key by one owner, it is one job';
comment on column tensile.jobs.version_id is 'version that it published';

create table tensile.job_progress (
  job_id bigint primary key references tensile.jobs on delete cascade,
  epoch integer not null default 0,
  epochs integer not null default 0,
  step integer not null default 0,
  steps integer not null default 0,
  loss double precision,
  valid_loss double precision,
  metric_name text,
  metric double precision,
  samples_per_s double precision,
  eta timestamptz,
  updated_at timestamptz not null default now()
) with (fillfactor = 50);  -- rewritten all the time, and no column but the key is indexed
comment on table tensile.job_progress is 'how far a job''s training is, as its trainer last wrote it';
comment on column tensile.job_progress.job_id is 'the job';
comment on column tensile.job_progress.epoch is 'epoch it is in, from 1';
comment on column tensile.job_progress.epochs is 'epochs it trains at most';
comment on column tensile.job_progress.step is 'steps done in this epoch';
comment on column tensile.job_progress.steps is 'steps of one epoch';
comment on column tensile.job_progress.loss is 'mean training loss of this epoch so far';
comment on column tensile.job_progress.valid_loss is 'loss on the validation rows after the last whole epoch';
comment on column tensile.job_progress.metric_name is 'name of the metric below';
comment on column tensile.job_progress.metric is 'that metric on the validation rows after the last whole epoch';
comment on column tensile.job_progress.samples_per_s is 'rows trained per second';
comment on column tensile.job_progress.eta is 'when training should be over';
comment on column tensile.job_progress.updated_at is 'when this was written';

create table tensile.job_events (
  event_id bigint generated always as identity primary key,
  job_id bigint not null references tensile.jobs on delete cascade,
  at timestamptz not null default clock_timestamp(),
  kind text not null,
  detail jsonb not null default '{}'
);
create index job_events_job on tensile.job_events (job_id, event_id);
comment on table tensile.job_events is 'what happened to a job, one row each; changes of state are written by a trigger';
comment on column tensile.job_events.event_id is 'number of the event, in the order of writing';
comment on column tensile.job_events.job_id is 'the job';
comment on column tensile.job_events.at is 'when';
comment on column tensile.job_events.kind is 'a state, for a change of state; else a word such as requeued';
comment on column tensile.job_events.detail is 'what belongs to it: worker, attempt, error';

create table tensile.metrics (
  job_id bigint not null references tensile.jobs on delete cascade,
  epoch integer not null,
  name text not null,
  value double precision,
  primary key (job_id, epoch, name)
);
comment on table tensile.metrics is 'figures of a job after each epoch';
comment on column tensile.metrics.job_id is 'the job';
comment on column tensile.metrics.epoch is 'the epoch, from 1';
comment on column tensile.metrics.name is 'what was measured, such as loss, valid_loss or accuracy';
comment on column tensile.metrics.value is 'its value; null where it could not be computed';

-- Bytes ------------------------------------------------------------------------------------------------------

create table tensile.checkpoints (
  job_id bigint primary key references tensile.jobs on delete cascade,
  position jsonb not null,
  size_bytes bigint not null,
  saved_at timestamptz not null default now()
);
comment on table tensile.checkpoints is 'where an interrupted job goes on; its bytes are in artifacts; gone when it ends';
comment on column tensile.checkpoints.job_id is 'the job';
comment on column tensile.checkpoints.position is 'epoch, step and whatever else tells where in the data it was';
comment on column tensile.checkpoints.size_bytes is 'size of weights, optimizer and random state together';
comment on column tensile.checkpoints.saved_at is 'when it was saved';

create table tensile.artifacts (
  artifact_id bigint generated always as identity primary key,
  version_id bigint references tensile.model_versions on delete cascade,
  job_id bigint references tensile.checkpoints on delete cascade,
  chunk_no integer not null,
  chunk bytea not null,
  constraint artifacts_have_one_owner check (num_nonnulls(version_id, job_id) = 1),
  constraint artifacts_chunks_count_from_zero check (chunk_no >= 0),
  constraint artifacts_chunks_are_bounded check (octet_length(chunk) <= 8388608)
);
-- Weights are dense floats: compressing them costs time and saves nothing.
alter table tensile.artifacts alter column chunk set storage external;
create unique index artifacts_version on tensile.artifacts (version_id, chunk_no) where version_id is not null;
create unique index artifacts_job on tensile.artifacts (job_id, chunk_no) where job_id is not null;
comment on table tensile.artifacts is 'weights of versions and checkpoints of jobs, in chunks of at most 8 MB';
comment on column tensile.artifacts.artifact_id is 'number of the chunk among all';
comment on column tensile.artifacts.version_id is 'version whose weights (safetensors) it is part of';
comment on column tensile.artifacts.job_id is 'job whose checkpoint it is part of';
comment on column tensile.artifacts.chunk_no is 'place of the chunk, from 0';
comment on column tensile.artifacts.chunk is 'its bytes';

-- Devices ----------------------------------------------------------------------------------------------------

create table tensile.devices (
  worker_id bigint primary key references tensile.workers on delete cascade,
  kind text not null,
  capacity_bytes bigint not null,
  budget_bytes bigint not null,
  granted_bytes bigint not null default 0,
  used_bytes bigint not null default 0,
  high_water_bytes bigint not null default 0,
  host_bytes bigint not null default 0,
  busy_percent smallint,
  memory_busy_percent smallint,
  outside_bytes bigint,
  updated_at timestamptz not null default now()
) with (fillfactor = 50);
comment on table tensile.devices is 'memory of a worker''s device, as its controller last wrote it';
comment on column tensile.devices.worker_id is 'the worker';
comment on column tensile.devices.kind is 'kind of the device';
comment on column tensile.devices.capacity_bytes is 'memory of the device';
comment on column tensile.devices.budget_bytes is 'memory that jobs may use together';
comment on column tensile.devices.granted_bytes is 'sum of what the jobs were granted';
comment on column tensile.devices.used_bytes is 'what they use now';
comment on column tensile.devices.high_water_bytes is 'the most that was in use at once';
comment on column tensile.devices.host_bytes is 'pinned host memory that jobs have, for what is swapped out and for their batches; at most host_pool_bytes';
comment on column tensile.devices.busy_percent is 'part of the time in which the GPU computed, as its driver says; null where nobody tells';
comment on column tensile.devices.memory_busy_percent is 'likewise, in which its memory was read or written';
comment on column tensile.devices.outside_bytes is 'its memory in use beside what jobs share: other programs, contexts, the driver';
comment on column tensile.devices.updated_at is 'when this was written';

create table tensile.device_paces (
  device_kind text not null,
  machine text not null,
  here_ns bigint not null,
  there_ns bigint not null,
  measured_at timestamptz not null default now(),
  primary key (device_kind, machine),
  constraint device_paces_are_positive check (here_ns > 0 and there_ns > 0)
);
comment on table tensile.device_paces is 'how much slower an emulated device is than a GPU: its links are slowed down alike';
comment on column tensile.device_paces.device_kind is 'kind of the emulated device';
comment on column tensile.device_paces.machine is 'the GPU that it stands for';
comment on column tensile.device_paces.here_ns is 'what the reference step takes on the device, as measured';
comment on column tensile.device_paces.there_ns is 'what it takes on the GPU, by its roofline';
comment on column tensile.device_paces.measured_at is 'when it was measured: once, when the kind of device was first met';

create table tensile.device_links (
  host text not null,
  device_kind text not null,
  way tensile.copy_way not null,
  beside boolean not null,
  size_bytes bigint not null,
  latency_ns bigint not null,
  copy_ns bigint not null,
  emulated_bytes_per_s bigint,
  measured_at timestamptz not null default now(),
  primary key (host, device_kind, way, beside, size_bytes),
  constraint device_links_are_positive
    check (size_bytes > 0 and latency_ns > 0 and copy_ns > 0 and emulated_bytes_per_s > 0)
);
comment on table tensile.device_links is
  'how fast copies go between a device and its host, measured when its controller starts: what plans count on';
comment on column tensile.device_links.host is 'machine that the device is in';
comment on column tensile.device_links.device_kind is 'kind of the device';
comment on column tensile.device_links.way is 'where the copies go';
comment on column tensile.device_links.beside is 'whether the other lane copied as much at the same time';
comment on column tensile.device_links.size_bytes is 'size of each copy';
comment on column tensile.device_links.latency_ns is 'one copy on free lanes, until the host knows of its end';
comment on column tensile.device_links.copy_ns is 'what each of several copies in a row adds';
comment on column tensile.device_links.emulated_bytes_per_s is 'rate that an emulated link is set to; null for a real one';
comment on column tensile.device_links.measured_at is 'when it was measured';

create table tensile.device_jobs (
  worker_id bigint not null references tensile.workers on delete cascade,
  job_id bigint not null references tensile.jobs on delete cascade,
  granted_bytes bigint not null,
  used_bytes bigint not null,
  high_water_bytes bigint not null,
  updated_at timestamptz not null default now(),
  primary key (worker_id, job_id)
) with (fillfactor = 50);
create index device_jobs_job on tensile.device_jobs (job_id);
comment on table tensile.device_jobs is 'memory of each job that is on a device now';
comment on column tensile.device_jobs.worker_id is 'worker whose device it is';
comment on column tensile.device_jobs.job_id is 'the job';
comment on column tensile.device_jobs.granted_bytes is 'the most it may use';
comment on column tensile.device_jobs.used_bytes is 'what it uses now';
comment on column tensile.device_jobs.high_water_bytes is 'the most it has used at once';
comment on column tensile.device_jobs.updated_at is 'when this was written';

-- Graphs, latencies, plans -----------------------------------------------------------------------------------

create table tensile.graphs (
  signature text primary key,
  summary jsonb not null,
  created_at timestamptz not null default now()
);
comment on table tensile.graphs is 'step graphs that were captured, whatever the device';
comment on column tensile.graphs.signature is 'digest of operators, sizes and accesses';
comment on column tensile.graphs.summary is 'counts and sizes of its operators and tensors';
comment on column tensile.graphs.created_at is 'when it was first captured';

create table tensile.op_latency (
  signature text not null,
  device_kind text not null,
  name text not null default '',
  latency_ns bigint not null,
  workspace_bytes bigint not null default 0,
  samples bigint not null default 1,
  predicted_ns bigint,
  updated_at timestamptz not null default now(),
  primary key (signature, device_kind),
  constraint op_latency_is_measured check (latency_ns >= 0 and workspace_bytes >= 0 and samples > 0)
);
comment on table tensile.op_latency is 'what operators took on each kind of device: why a second job starts warm';
comment on column tensile.op_latency.signature is 'digest of the operator: kind, shapes, types, attributes';
comment on column tensile.op_latency.device_kind is 'kind of device it ran on';
comment on column tensile.op_latency.name is 'name of the operator, for display';
comment on column tensile.op_latency.latency_ns is 'its latency: a moving average of what was measured';
comment on column tensile.op_latency.workspace_bytes is 'the most memory it took beside its outputs';
comment on column tensile.op_latency.samples is 'how many measurements are in the average';
comment on column tensile.op_latency.predicted_ns is 'what was predicted before it was first measured';
comment on column tensile.op_latency.updated_at is 'when it was last measured';

create table tensile.op_descriptions (
  signature text primary key,
  description text not null
);
comment on table tensile.op_descriptions is 'what measured operators are: with op_latency, what a predictor learns from';
comment on column tensile.op_descriptions.signature is 'digest of the operator, as in op_latency';
comment on column tensile.op_descriptions.description is 'its shapes, types and parameters: JSON of scheduler/features.py';

create table tensile.predictors (
  device_kind text primary key,
  model bytea not null,
  survey bytea not null,
  samples bigint not null,
  history bigint not null,
  trained_at timestamptz not null default now()
);
comment on table tensile.predictors is 'one per kind of device: foretells operators that have never run there';
comment on column tensile.predictors.device_kind is 'kind of device it was trained for';
comment on column tensile.predictors.model is 'its weights (safetensors)';
comment on column tensile.predictors.survey is 'operators measured before any job ran there: JSON lines, compressed by zlib';
comment on column tensile.predictors.samples is 'measured operators that it has learned from';
comment on column tensile.predictors.history is 'how many of them were jobs'' own';
comment on column tensile.predictors.trained_at is 'when it was trained';

create table tensile.plans (
  plan_id bigint generated always as identity primary key,
  job_id bigint not null references tensile.jobs on delete cascade,
  attempt integer not null,
  generation integer not null,
  reason text not null,
  policy text not null,
  vanilla_peak_bytes bigint,
  liveness_peak_bytes bigint,
  floor_bytes bigint,
  predicted_peak_bytes bigint,
  measured_peak_bytes bigint,
  predicted_iteration_ns bigint,
  measured_iteration_ns bigint,
  predicted_stall_ns bigint,
  measured_stall_ns bigint,
  swaps integer not null default 0,
  swapped_bytes bigint not null default 0,
  recomputed integer not null default 0,
  planning_ns bigint,
  plan jsonb,
  created_at timestamptz not null default now(),
  adopted_at timestamptz,
  constraint plans_generation unique (job_id, attempt, generation)
);
comment on table tensile.plans is 'memory plans of jobs: what was predicted, and what happened';
comment on column tensile.plans.plan_id is 'number of the plan among all';
comment on column tensile.plans.job_id is 'the job';
comment on column tensile.plans.attempt is 'attempt of the job that it was made for';
comment on column tensile.plans.generation is 'number of the plan within the attempt; each re-plan is the next one';
comment on column tensile.plans.reason is 'why it was made: start, another job''s start or end, drift';
comment on column tensile.plans.policy is 'policy that made it';
comment on column tensile.plans.vanilla_peak_bytes is 'peak if nothing were freed before the end of the iteration';
comment on column tensile.plans.liveness_peak_bytes is 'peak if every tensor were freed after its last access';
comment on column tensile.plans.floor_bytes is 'least peak that any plan could have';
comment on column tensile.plans.predicted_peak_bytes is 'peak of the plan, by simulation';
comment on column tensile.plans.measured_peak_bytes is 'peak on the device';
comment on column tensile.plans.predicted_iteration_ns is 'time of one iteration, by simulation';
comment on column tensile.plans.measured_iteration_ns is 'mean time of one iteration, weighted towards the latest';
comment on column tensile.plans.predicted_stall_ns is 'part of it spent waiting for copies, by simulation';
comment on column tensile.plans.measured_stall_ns is 'part of it spent waiting for copies, measured';
comment on column tensile.plans.swaps is 'tensors that leave the device in each iteration';
comment on column tensile.plans.swapped_bytes is 'their size together';
comment on column tensile.plans.recomputed is 'operators that run again in each iteration';
comment on column tensile.plans.planning_ns is 'time that planning took';
comment on column tensile.plans.plan is 'the plan itself';
comment on column tensile.plans.created_at is 'when it was made';
comment on column tensile.plans.adopted_at is 'when the trainer began to follow it';

-- Claims ---------------------------------------------------------------------------------------------------

-- A function for its settings alone: whatever the statistics say, and a queue's are always out of date, the next job
-- is found by walking the index in its order, not by sorting all that wait.
create function tensile.claim_job(worker bigint) returns setof tensile.jobs
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
as $$
begin
  return query
  update tensile.jobs as j
     set state = 'starting', phase = null, attempt = j.attempt + 1, worker_id = claim_job.worker,
         claim = nextval('tensile.claim_seq'),  -- every later write must carry it
         waits_for = null, not_before = null, started_at = coalesce(j.started_at, now())
   where j.job_id = (select q.job_id from tensile.jobs as q
                      where q.state = 'queued'
                        and (q.not_before is null or q.not_before <= now())
                        and q.installation = (select tensile.installation())
                        and exists (select from tensile.workers as w
                                     where w.worker_id = claim_job.worker and w.stopped_at is null)
                      order by q.priority desc, q.job_id
                        for update skip locked limit 1)
  returning j.*;
end
$$;
comment on function tensile.claim_job(bigint) is
  'hands the oldest queued job of the highest priority to a worker; workers never wait for each other';

-- Copies of a database -------------------------------------------------------------------------------------

-- In a copy of the database, on another cluster or this one, oids of roles mean nothing and names do. Within one
-- database it is the other way round: a new role of an old name must not get what the renamed one owns. Hence only
-- rows of another installation are touched, and those whose role does not exist here stay nobody's.
create function tensile.adopt_owners() returns bigint
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  with models as (
    update tensile.models as m set owner_oid = r.oid, installation = tensile.installation()
      from pg_roles as r where r.rolname = m.owner_name and m.installation <> (select tensile.installation())
    returning 1
  ), privileges as (
    update tensile.model_privileges as p set grantee_oid = coalesce(r.oid, 0), installation = tensile.installation()
      from tensile.model_privileges as q left join pg_roles as r on r.rolname = q.grantee_name
     where p.model_id = q.model_id and p.grantee_oid = q.grantee_oid and p.privilege = q.privilege
       and p.installation <> (select tensile.installation()) and (r.oid is not null or p.grantee_oid = 0)
    returning 1
  ), jobs as (
    update tensile.jobs as j set owner_oid = r.oid, installation = tensile.installation()
      from pg_roles as r
     where r.rolname = j.owner_name and j.installation <> (select tensile.installation())
       and j.state in ('succeeded', 'failed', 'cancelled')
    returning 1
  )
  select (select count(*) from models) + (select count(*) from privileges) + (select count(*) from jobs)
$$;
comment on function tensile.adopt_owners() is
  'gives what came with a copy of another database to the roles of the same names here; every worker does so when '
  'it starts. Queued jobs are left out: see tensile.adopt_jobs()';

create function tensile.adopt_jobs() returns bigint
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  with adopted as (
    update tensile.jobs as j set owner_oid = r.oid, installation = tensile.installation()
      from pg_roles as r
     where r.rolname = j.owner_name and j.installation <> (select tensile.installation()) and j.state = 'queued'
    returning 1
  )
  select count(*) from adopted
$$;
comment on function tensile.adopt_jobs() is
  'lets the queue of another installation run here; for an administrator who has moved a database, by pg_upgrade '
  'for instance, and knows that the queue does not run elsewhere as well';

-- An interrupted job goes on at once where that helps, and ever later where it does not: 2 s, 4 s, … 5 min.
create function tensile.back_off(attempt integer) returns interval
  language sql immutable parallel safe
  return pg_catalog.make_interval(secs => least(300, 2 ^ least(attempt, 10)));
comment on function tensile.back_off(integer) is 'how long a job waits after its n-th attempt was interrupted';

-- Changes of jobs --------------------------------------------------------------------------------------------

-- A queued job is nobody's yet, so its cancellation needs nobody.
create function tensile.cancel_queued_job() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
begin
  new.state := 'cancelled';
  new.finished_at := now();
  new.waits_for := null;
  return new;
end
$$;
comment on function tensile.cancel_queued_job() is 'trigger: a queued job whose cancellation is requested is cancelled';

create trigger jobs_cancel_queued before update of cancel_requested on tensile.jobs
  for each row when (new.cancel_requested and old.state = 'queued' and new.state = 'queued')
  execute function tensile.cancel_queued_job();

-- Row-level security hides other users' models, so only a definer's eyes can tell whether a name is taken.
create function tensile.check_model_owner() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_bitmapscan = off
  set enable_seqscan = off
as $$
begin
  -- Two ranges, since an index knows no "<>": the owner's own jobs of this model may be many. The queue that came with
  -- a copy of another database holds no names here: its owners' oids are other roles', and it never runs.
  if exists (select from tensile.models as m where m.name = new.model_name and m.owner_oid <> new.owner_oid)
     or exists (select from tensile.jobs as j
                 where j.model_name = new.model_name and j.owner_oid < new.owner_oid
                   and j.installation = new.installation and j.state in ('queued', 'starting', 'running'))
     or exists (select from tensile.jobs as j
                 where j.model_name = new.model_name and j.owner_oid > new.owner_oid
                   and j.installation = new.installation and j.state in ('queued', 'starting', 'running')) then
    raise exception 'model "%" belongs to another role', new.model_name
      using errcode = 'insufficient_privilege',
            hint = 'Model names are unique in the database: choose another name.';
  end if;
  return new;
end
$$;
comment on function tensile.check_model_owner() is 'trigger: nobody trains a version of another owner''s model';

create trigger jobs_model_owner before insert on tensile.jobs
  for each row when (new.state = 'queued')  -- a restored copy of what has ended is history, whoever owned it
  execute function tensile.check_model_owner();

-- Nor may a name be taken from under a job that will publish to it: its training would end for nothing. Only what a
-- role makes for itself is checked; the worker makes models for owners whose jobs were checked above.
create function tensile.check_model_name() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select from tensile.jobs as j
              where j.model_name = new.name and j.owner_oid <> new.owner_oid
                and j.installation = new.installation and j.state in ('queued', 'starting', 'running')) then
    raise exception 'model "%" belongs to another role', new.name
      using errcode = 'insufficient_privilege',
            detail = 'A training of that role will give its version to a model of this name.',
            hint = 'Model names are unique in the database: choose another name.';
  end if;
  return new;
end
$$;
comment on function tensile.check_model_name() is
  'trigger: refuses a model whose name another role''s job is about to publish to';

create trigger models_name_is_free before insert or update of name on tensile.models
  for each row when (new.owner_name = current_user)
  execute function tensile.check_model_name();

-- One notification per statement and kind, however many rows: "queued 7", or "queued" when it is about several.
create function tensile.notify_enqueued() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
declare
  jobs bigint;
  one bigint;
begin
  select count(*), min(job_id) into jobs, one from added where state = 'queued';
  if jobs > 0 then
    perform pg_notify('tensile', case jobs when 1 then 'queued ' || one else 'queued' end);
  end if;
  return null;
end
$$;
comment on function tensile.notify_enqueued() is 'trigger: tells the controllers that there is work';

create trigger jobs_enqueued after insert on tensile.jobs
  referencing new table as added
  for each statement execute function tensile.notify_enqueued();

-- Security definer: users may cause a change of state by a cancellation, yet may not write events themselves.
create function tensile.record_job_changes() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  told record;
begin
  insert into tensile.job_events (job_id, kind, detail)
  select n.job_id, n.state::text,
         jsonb_strip_nulls(jsonb_build_object(
           'from', o.state, 'attempt', n.attempt, 'worker', coalesce(n.worker_id, o.worker_id),
           'error', case when n.state in ('failed', 'queued') then n.error_message end))
    from before_change as o join after_change as n using (job_id)
   where o.state <> n.state;

  delete from tensile.checkpoints as c using after_change as n
   where c.job_id = n.job_id and n.state in ('succeeded', 'failed', 'cancelled');

  for told in
    select c.kind, count(*) as jobs, min(c.job_id) as one
      from (select n.job_id, case when o.state = n.state then 'cancel'
                                  when n.state = 'queued' then 'queued'
                                  else 'changed' end as kind
              from before_change as o join after_change as n using (job_id)
             where o.state <> n.state or (n.cancel_requested and not o.cancel_requested)) as c
     group by c.kind
  loop
    perform pg_notify('tensile', case told.jobs when 1 then told.kind || ' ' || told.one else told.kind end);
  end loop;
  return null;
end
$$;
comment on function tensile.record_job_changes() is
  'trigger: writes an event per change of state, drops the checkpoint of what has ended, and notifies';

create trigger jobs_changed after update on tensile.jobs
  referencing old table as before_change new table as after_change
  for each statement execute function tensile.record_job_changes();

-- Who may see and write what. Users' functions are security invoker, so these rules bind whoever calls them,
-- and equally whoever writes SQL against the tables directly.
--
-- A row is its owner's when both oid and name match: in a restored copy an oid alone may be another role's.
-- Sub-selects without a reference to the row are evaluated once per query, not once per row.

revoke all on schema tensile from public;
revoke execute on all functions in schema tensile from public;
grant usage on schema tensile to tensile_user, tensile_monitor, tensile_admin, tensile_worker;
grant execute on function tensile.catalog_version(), tensile.catalog_digest(), tensile.installation(),
  tensile.current_role_oid() to tensile_user, tensile_monitor, tensile_admin, tensile_worker;

-- Rules of model_privileges cannot read models by its rules, which read model_privileges: hence a definer.
create function tensile.owns_model(model bigint, role_name name) returns boolean
  language sql stable security definer parallel safe
  set search_path = pg_catalog, pg_temp
as $$
  select exists (select from tensile.models as m join pg_roles as r on r.oid = m.owner_oid and r.rolname = m.owner_name
                  where m.model_id = model and r.rolname = role_name)
$$;
comment on function tensile.owns_model(bigint, name) is 'whether that role owns that model';
revoke execute on function tensile.owns_model(bigint, name) from public;
grant execute on function tensile.owns_model(bigint, name) to tensile_user, tensile_monitor, tensile_admin;

grant execute on function tensile.adopt_owners() to tensile_admin, tensile_worker;
grant execute on function tensile.adopt_jobs() to tensile_admin;

alter table tensile.models enable row level security;
alter table tensile.model_versions enable row level security;
alter table tensile.model_privileges enable row level security;
alter table tensile.artifacts enable row level security;
alter table tensile.checkpoints enable row level security;
alter table tensile.jobs enable row level security;
alter table tensile.job_progress enable row level security;
alter table tensile.job_events enable row level security;
alter table tensile.metrics enable row level security;
alter table tensile.plans enable row level security;
alter table tensile.device_jobs enable row level security;

-- Users ------------------------------------------------------------------------------------------------------

grant select on tensile.settings, tensile.models, tensile.model_versions, tensile.model_privileges,
  tensile.artifacts, tensile.workers, tensile.jobs, tensile.job_progress, tensile.job_events, tensile.metrics,
  tensile.devices, tensile.device_jobs, tensile.device_links, tensile.op_latency, tensile.plans to tensile_user;

-- The owner is never among the columns: it comes from the default, which is whoever asks.
grant insert (model_name, relation_oid, relation_schema, relation_name, spec, priority, not_before,
  idempotency_key) on tensile.jobs to tensile_user;
grant update (cancel_requested, priority) on tensile.jobs to tensile_user;
grant insert (name, definition) on tensile.models to tensile_user;
grant update (name, definition, last_spec) on tensile.models to tensile_user;
grant delete on tensile.models to tensile_user;
grant update (deployed) on tensile.model_versions to tensile_user;
grant insert (model_id, grantee_oid, grantee_name, privilege) on tensile.model_privileges to tensile_user;
grant delete on tensile.model_privileges to tensile_user;

create policy jobs_of_owner on tensile.jobs to tensile_user
  using (owner_name = current_user and owner_oid = (select tensile.current_role_oid()))
  with check (owner_name = current_user and owner_oid = (select tensile.current_role_oid()));
create policy models_of_owner on tensile.models to tensile_user
  using (owner_name = current_user and owner_oid = (select tensile.current_role_oid()))
  with check (owner_name = current_user and owner_oid = (select tensile.current_role_oid()));
create policy models_granted on tensile.models for select to tensile_user
  using (model_id in (select p.model_id from tensile.model_privileges as p));

create policy model_privileges_of_grantee on tensile.model_privileges for select to tensile_user
  using (grantee_oid = 0 or (grantee_oid in (select r.oid from pg_catalog.pg_roles as r
                                              where r.rolname = model_privileges.grantee_name
                                                and pg_catalog.pg_has_role(r.oid, 'usage'))));
create policy model_privileges_of_owner on tensile.model_privileges to tensile_user
  using (tensile.owns_model(model_id, current_user))
  with check (tensile.owns_model(model_id, current_user));

-- What belongs to a model or a job is seen by whoever sees that, and weights only by the model's owner.
create policy versions_of_model on tensile.model_versions for select to tensile_user
  using (exists (select from tensile.models as m where m.model_id = model_versions.model_id));
create policy versions_of_owner on tensile.model_versions for update to tensile_user
  using (tensile.owns_model(model_id, current_user))
  with check (tensile.owns_model(model_id, current_user));
create policy artifacts_of_owner on tensile.artifacts for select to tensile_user
  using (exists (select from tensile.model_versions as v
                  where v.version_id = artifacts.version_id and tensile.owns_model(v.model_id, current_user)));
create policy progress_of_job on tensile.job_progress for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = job_progress.job_id));
create policy events_of_job on tensile.job_events for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = job_events.job_id));
create policy metrics_of_job on tensile.metrics for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = metrics.job_id));
create policy plans_of_job on tensile.plans for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = plans.job_id));
create policy device_use_of_job on tensile.device_jobs for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = device_jobs.job_id));

-- Monitors see everything but bytes of models ------------------------------------------------------------------

grant select on tensile.settings, tensile.models, tensile.model_versions, tensile.model_privileges,
  tensile.checkpoints, tensile.workers, tensile.jobs, tensile.job_progress, tensile.job_events, tensile.metrics,
  tensile.devices, tensile.device_jobs, tensile.graphs, tensile.op_latency, tensile.plans,
  tensile.device_paces, tensile.device_links to tensile_monitor;

create policy jobs_monitored on tensile.jobs for select to tensile_monitor using (true);
create policy models_monitored on tensile.models for select to tensile_monitor using (true);
create policy versions_monitored on tensile.model_versions for select to tensile_monitor using (true);
create policy privileges_monitored on tensile.model_privileges for select to tensile_monitor using (true);
create policy checkpoints_monitored on tensile.checkpoints for select to tensile_monitor using (true);
create policy progress_monitored on tensile.job_progress for select to tensile_monitor using (true);
create policy events_monitored on tensile.job_events for select to tensile_monitor using (true);
create policy metrics_monitored on tensile.metrics for select to tensile_monitor using (true);
create policy plans_monitored on tensile.plans for select to tensile_monitor using (true);
create policy device_use_monitored on tensile.device_jobs for select to tensile_monitor using (true);

-- Administrators do to every job and model what its owner may do, and set settings ------------------------------

grant insert, update, delete on tensile.settings to tensile_admin;
grant select on tensile.artifacts to tensile_admin;
grant delete on tensile.jobs, tensile.job_events, tensile.graphs, tensile.op_latency, tensile.op_descriptions,
  tensile.predictors, tensile.device_paces, tensile.device_links, tensile.workers to tensile_admin;

create policy jobs_administered on tensile.jobs for update to tensile_admin using (true) with check (true);
create policy jobs_cleared on tensile.jobs for delete to tensile_admin
  using (state in ('succeeded', 'failed', 'cancelled'));
create policy events_cleared on tensile.job_events for delete to tensile_admin using (true);
create policy models_administered on tensile.models for update to tensile_admin using (true) with check (true);
create policy models_cleared on tensile.models for delete to tensile_admin using (true);
create policy versions_administered on tensile.model_versions for update to tensile_admin
  using (true) with check (true);
create policy privileges_administered on tensile.model_privileges to tensile_admin using (true) with check (true);
create policy artifacts_administered on tensile.artifacts for select to tensile_admin using (true);

-- The worker writes what becomes of jobs. It never enqueues one, and never gives anything to another owner: a job's
-- owner, request and installation are not among the columns that it may update.

grant select on all tables in schema tensile to tensile_worker;
grant usage on sequence tensile.claim_seq to tensile_worker;
grant execute on function tensile.back_off(integer), tensile.claim_job(bigint) to tensile_worker;
grant update (state, phase, attempt, claim, worker_id, waits_for, error_sqlstate, error_message, error_detail,
  error_hint, not_before, started_at, finished_at, version_id) on tensile.jobs to tensile_worker;
grant insert, update, delete on tensile.workers, tensile.devices, tensile.device_jobs, tensile.job_progress,
  tensile.metrics, tensile.checkpoints, tensile.artifacts, tensile.graphs, tensile.op_latency, tensile.op_descriptions,
  tensile.predictors, tensile.plans, tensile.device_links to tensile_worker;
grant insert on tensile.job_events, tensile.models, tensile.model_versions, tensile.device_paces to tensile_worker;
grant update (last_spec) on tensile.models to tensile_worker;
grant update (deployed) on tensile.model_versions to tensile_worker;

create policy jobs_worked on tensile.jobs to tensile_worker using (true) with check (true);
create policy models_worked on tensile.models to tensile_worker using (true) with check (true);
create policy versions_worked on tensile.model_versions to tensile_worker using (true) with check (true);
create policy privileges_worked on tensile.model_privileges for select to tensile_worker using (true);
create policy artifacts_worked on tensile.artifacts to tensile_worker using (true) with check (true);
create policy checkpoints_worked on tensile.checkpoints to tensile_worker using (true) with check (true);
create policy progress_worked on tensile.job_progress to tensile_worker using (true) with check (true);
create policy events_worked on tensile.job_events to tensile_worker using (true) with check (true);
create policy metrics_worked on tensile.metrics to tensile_worker using (true) with check (true);
create policy plans_worked on tensile.plans to tensile_worker using (true) with check (true);
create policy device_use_worked on tensile.device_jobs to tensile_worker using (true) with check (true);

-- From SQL to Python, and an error's way back.

-- The body is a loader: it holds the text of each module of indb_tensile/sql_api as a literal, and imports them once
-- per session as a package named by their digest. So they import one another as they do in the tree, and a catalog
-- upgraded within a session is followed, its modules never mixed with those before. GD keeps the package; SD belongs
-- to this function alone and spares every later call the digest.
create function tensile.bridge(verb text, request jsonb) returns jsonb
  language plpython3u volatile parallel unsafe
as $bridge$
if "answer" not in SD:
    import hashlib
    import importlib
    import sys
    from importlib.machinery import ModuleSpec

    sources = {'': '"""What the SQL functions ask of Python: a request is checked and enqueued here, or put to the service.\n\nThe extension carries the text of these modules inside one PL/Python function, `tensile.bridge`, which compiles\nthem once per session: the database host has nothing else of the package. Hence the standard library only,\nrelative imports, and SQL text in Python. Everything runs with the caller\'s own privileges, and a caller may reach\nit directly: no request holds an address, a path or SQL.\n"""\n\nimport json\nfrom collections.abc import Callable\n\nfrom . import datasets, evaluations, models, predictions, service, training\nfrom .errors import INVALID, RefusalError, fault, told_by_database\nfrom .spi import Json, Plpy\n\n\ndef answer(plpy: Plpy, verb: str, request: str | None) -> str:\n    """Do what `verb` says of a request that is JSON, as `handle` does."""\n    try:\n        asked = json.loads(request or "{}")\n    except (ValueError, RecursionError) as error:  # PostgreSQL reads deeper lists and longer numbers than Python\n        refusal = RefusalError(INVALID, f"the request cannot be read: {error}", hint=_SIMPLER)\n        return json.dumps({"ok": False, "error": refusal.error})\n    return json.dumps(handle(plpy, verb, asked))\n\n\ndef handle(plpy: Plpy, verb: str, request: Json) -> Json:\n    """Do what `verb` says: the answer is `{"ok": true, "result": \u2026}` or `{"ok": false, "error": {\u2026}}`.\n\n    The error has sqlstate, message, detail and hint. It is returned, not raised: PL/Python would put its\n    exception\'s name before the message. `tensile.call` raises it.\n    """\n    try:\n        return {"ok": True, "result": _result(plpy, verb, request)}\n    except RefusalError as refusal:\n        return {"ok": False, "error": refusal.error}\n    except RecursionError:\n        return {"ok": False, "error": RefusalError(INVALID, "the request is nested too deep", hint=_SIMPLER).error}\n    except plpy.SPIError as error:\n        return {"ok": False, "error": told_by_database(error)}\n    except Exception as error:  # noqa: BLE001 - the outermost frame; PL/Python\'s own context names no module\n        return {"ok": False, "error": fault(error)}\n\n\ndef _result(plpy: Plpy, verb: str, request: Json) -> Json:\n    if verb not in VERBS:\n        raise RefusalError(INVALID, "the bridge has no such verb", hint=f"Known verbs: {\', \'.join(VERBS)}.")\n    if not isinstance(request, dict):\n        raise RefusalError(INVALID, "the request is not a JSON object")\n    return VERBS[verb](plpy, request)\n\n\n_SIMPLER = "Give lists and objects that are nested less deep, and numbers of fewer digits."\nVERBS: dict[str, Callable[[Plpy, Json], Json]] = {\n    "train": training.train,\n    "explain": training.explain,\n    "create_model": models.create_model,\n    "predict": predictions.predict,\n    "evaluate": evaluations.evaluate,\n    "load_dataset": datasets.load_dataset,\n    "ping": service.ping,\n}\n',
'.arguments': '"""What a training may be given beside its table: network, hyper-parameters, split, metric, limits."""\n\nimport json\nfrom typing import Any\n\nfrom .errors import INVALID, RefusalError, shown, told_by_database\nfrom .options import ARCHITECTURES, EARLY_STOP, HYPERPARAMS, LAYERS, METRICS, PREPROCESS, SPLIT\nfrom .parameters import check_names, check_object, check_parameters\nfrom .request import read_integer, read_text\nfrom .spi import Json, Plpy, fetch\n\n\ndef architecture(request: Json, before: Json) -> Json:\n    """The network: a name, or a JSON object with the key "type"; left out, the one before, else chosen by columns."""\n    given = read_text(request, "architecture")\n    wanted = before.get("architecture", {"type": "auto"}) if given is None else _read_architecture(given)\n    kind = wanted.get("type")\n    if kind is None:\n        message = f\'architecture {shown(wanted)} lacks the key "type"\'\n        raise RefusalError(INVALID, message, hint=_KNOWN_ARCHITECTURES)\n    if not isinstance(kind, str) or kind not in ARCHITECTURES:\n        named = f\'"{kind}"\' if isinstance(kind, str) else shown(kind)\n        raise RefusalError(INVALID, f"unknown architecture {named}", hint=_KNOWN_ARCHITECTURES)\n    options = {name: value for name, value in wanted.items() if name != "type"}\n    _check_layers(options.get("layers"))\n    return {"type": kind} | check_parameters(f"architecture {kind}", options, ARCHITECTURES[kind])\n\n\ndef hyperparams(request: Json, before: Json) -> Json:\n    """How to train, or as before."""\n    return check_parameters("hyperparams", _object(request, "hyperparams", before), HYPERPARAMS)\n\n\ndef split(request: Json, before: Json) -> Json:\n    """The shares of test and validation rows, or as before; rows to train on must be left."""\n    options = check_parameters("split", _object(request, "split", before), SPLIT)\n    shares = {name: rule["default"] for name, rule in SPLIT.items()} | options\n    if shares["test_size"] + shares["valid_size"] >= 1:\n        sizes = f"test_size {shares[\'test_size\']} and valid_size {shares[\'valid_size\']}"\n        message = f"split: {sizes} leave no rows to train on"\n        raise RefusalError(INVALID, message, hint="Keep their sum below 1.")\n    return options\n\n\ndef preprocess(request: Json, before: Json) -> Json:\n    """What becomes of columns before the network, or as before; what it holds is checked where columns are read."""\n    given = check_object("preprocess", _object(request, "preprocess", before), PREPROCESS)\n    check_names("preprocess", given, PREPROCESS)\n    return given\n\n\ndef early_stop(request: Json, before: Json, task: str) -> Json | None:\n    """An empty object is early stopping with its defaults; nothing at all is as before, else none."""\n    given = _inherited(request, "early_stop", before)\n    if given is None:\n        return None\n    options = check_parameters("early_stop", given, EARLY_STOP)\n    known = ("loss", *METRICS[task])\n    if options.get("metric", "loss") not in known:\n        hint = f"Known for {task}: {\', \'.join(known)}."\n        raise RefusalError(INVALID, f\'early_stop: unknown metric "{options["metric"]}"\', hint=hint)\n    return options\n\n\ndef metric(request: Json, before: Json, task: str) -> str | None:\n    """The figure that versions are compared by, or as before where the task still has it."""\n    given = read_text(request, "metric")\n    if given is None:\n        inherited: str | None = before.get("metric")\n        return inherited if inherited in METRICS[task] else None\n    if given not in METRICS[task]:\n        hint = f"For {task}: {\', \'.join(METRICS[task])}."\n        raise RefusalError(INVALID, f\'unknown metric "{given}" for {task}\', hint=hint)\n    return given\n\n\ndef memory_limit(plpy: Plpy, request: Json) -> int | None:\n    """Bytes, from a size such as \'512 MB\'."""\n    text = read_text(request, "memory_limit")\n    if text is None:\n        return None\n    refusal = RefusalError(INVALID, f\'memory_limit is "{text}"\', hint="Give a size above 0, such as \'512 MB\'.")\n    try:\n        size_bytes = int(fetch(plpy, SIZE, text)[0]["bytes"])\n    except plpy.SPIError as error:\n        told = told_by_database(error)\n        if not told["sqlstate"].startswith("22"):  # not about the text: a cancel, say\n            raise\n        refusal.error["detail"] = f"PostgreSQL says: {told[\'message\']}."\n        raise refusal from None\n    if size_bytes <= 0:\n        raise refusal\n    return size_bytes\n\n\ndef max_runtime(request: Json) -> int | None:\n    """Whole seconds."""\n    seconds = request.get("max_runtime_s")\n    if seconds is None:\n        return None\n    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1 <= seconds <= _LONGEST_RUNTIME_S:\n        message = f"max_runtime is {shown(seconds)} seconds"\n        hint = "Give an interval of a second or more."\n        if isinstance(seconds, int | float) and seconds > _LONGEST_RUNTIME_S:\n            hint = f"Give an interval of {_LONGEST_RUNTIME_S} seconds or less, or leave it out for no limit."\n        raise RefusalError(INVALID, message, hint=hint)\n    return int(seconds)\n\n\ndef priority(request: Json) -> int:\n    """The job\'s place in the queue: 0 unless given."""\n    given = read_integer(request, "priority") or 0\n    if not -1000 <= given <= 1000:\n        hint = "Give a number from -1000 to 1000; jobs of higher priority go first."\n        raise RefusalError(INVALID, f"priority is {given}", hint=hint)\n    return given\n\n\ndef _read_architecture(given: str) -> Json:\n    """A name stands for the object that has nothing but this type."""\n    if not given.lstrip().startswith("{"):\n        return {"type": given}\n    try:\n        return dict(json.loads(given))\n    except (ValueError, RecursionError) as error:\n        message = f"architecture is not valid JSON: {error}"\n        raise RefusalError(INVALID, message, hint=_KNOWN_ARCHITECTURES) from None\n\n\ndef _object(request: Json, key: str, before: Json) -> Any:\n    """What should be a JSON object, empty where nothing was ever given."""\n    given = _inherited(request, key, before)\n    return {} if given is None else given\n\n\ndef _inherited(request: Json, key: str, before: Json) -> Any:\n    given = request.get(key)\n    return before.get(key) if given is None else given\n\n\ndef _check_layers(layers: Any) -> None:\n    """Refuse what is no layer; whether layers fit together is known when they are built."""\n    pending = list(layers) if isinstance(layers, list) else []\n    for layer in pending:\n        kind = layer.get("type") if isinstance(layer, dict) else None\n        if kind not in LAYERS:\n            raise RefusalError(INVALID, f"unknown layer {shown(layer)}", hint=f"Known types: {\', \'.join(LAYERS)}.")\n        if isinstance(layer.get("layers"), list):  # those of a residual layer; an lstm has a number there\n            pending.extend(layer["layers"])\n\n\nSIZE = "select pg_catalog.pg_size_bytes(\x241::text) as bytes"\n_LONGEST_RUNTIME_S = 2**31 - 1\n_KNOWN_ARCHITECTURES = (\n    f"Give a name ({\', \'.join(ARCHITECTURES)}) or a JSON object such as "\n    \'{"type": "mlp", "hidden": [64, 64], "dropout": 0.1}.\'\n)\n',
'.datasets': '"""A sample data set becomes a table of the caller\'s, page by page."""\n\n# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident, every value is a parameter\n\nimport json\nimport re\n\nfrom . import service\nfrom .errors import INVALID, NO_SCHEMA, PROTOCOL, RefusalError\nfrom .grants import let_worker_read\nfrom .request import read_text\nfrom .spi import Json, Plpy, fetch, qualified\n\n_TYPES = r"(smallint|int|integer|bigint|real|double precision|boolean|text|date|timestamptz)(\\[\\]){0,3}"\n\n\ndef load_dataset(plpy: Plpy, request: Json) -> Json:\n    """Create a table in the caller\'s current schema and fill it with a sample data set."""\n    name = read_text(request, "dataset")\n    if name is None:\n        raise RefusalError(INVALID, "no data set is named", hint="Name one: select tensile_load_dataset(\'digits\').")\n    page = service.ask(plpy, {"verb": "dataset", "name": name, "offset": 0})\n    table = _create_table(plpy, read_text(request, "table") or name, page)\n    fill = f"insert into {table} select * from pg_catalog.jsonb_populate_recordset(null::{table}, \x241)"\n    names = [column for column, _ in page["columns"]]\n    rows = 0\n    while page["rows"]:  # a page past the end is empty\n        records = [dict(zip(names, row, strict=True)) for row in page["rows"]]\n        plpy.execute(plpy.prepare(fill, ["jsonb"]), [json.dumps(records)])\n        rows += len(records)\n        page = service.ask(plpy, {"verb": "dataset", "name": name, "offset": rows})\n    let_worker_read(plpy, table)\n    return {"rows": rows}\n\n\ndef _create_table(plpy: Plpy, name: str, page: Json) -> str:\n    place = fetch(plpy, "select pg_catalog.current_schema() as schema")[0]["schema"]\n    if place is None:\n        message = "no schema is selected to create the table in"\n        raise RefusalError(NO_SCHEMA, message, hint="Run: set search_path = public;")\n    columns = []\n    for column, type_name in page["columns"]:\n        if not re.fullmatch(_TYPES, type_name):\n            raise RefusalError(PROTOCOL, f\'the service gave column "{column}" the type "{type_name}"\')\n        columns.append(f"{plpy.quote_ident(column)} {type_name}")\n    columns.append(f"primary key ({plpy.quote_ident(page[\'primary_key\'])})")\n    table = qualified(plpy, place, name)\n    plpy.execute(f"create table {table} ({\', \'.join(columns)})")\n    return table\n',
'.errors': '"""How the bridge says no: a refusal, PostgreSQL\'s own error, or a fault of this code; and the SQLSTATEs it uses."""\n\nimport json\nfrom typing import Any\n\n# As in the package\'s own errors where the same fault exists there.\nPROTOCOL = "08P01"\nUNSUPPORTED = "0A000"\nDATA = "22000"\nINVALID = "22023"\nINVALID_TEXT = "22P02"\nNO_SCHEMA = "3F000"\nDENIED = "42501"\nMISSING = "42704"\nMISSING_COLUMN = "42703"\nDUPLICATE = "42710"\nWRONG_KIND = "42809"\nMISSING_TABLE = "42P01"\nTOO_MUCH = "54000"\nNOT_READY = "55000"\nUNAVAILABLE = "57P03"\nFAULT = "XX000"\n\n\nclass RefusalError(Exception):\n    """The answer is no: `tensile.call` raises it in SQL with these four."""\n\n    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:\n        super().__init__(message)\n        self.error = {"sqlstate": sqlstate, "message": message, "detail": detail, "hint": hint}\n\n\ndef told_by_database(error: Any) -> dict[str, str]:\n    """PostgreSQL\'s own error, its parts kept apart: (code, detail, hint, \u2026) is what PL/Python stores of it."""\n    data = getattr(error, "spidata", None) or (None, None, None)\n    return {"sqlstate": error.sqlstate, "message": str(error), "detail": data[1] or "", "hint": data[2] or ""}\n\n\ndef fault(error: Exception) -> dict[str, str]:\n    """An error that nobody foresaw, with the modules and lines that it came through."""\n    import traceback  # rare, and a session\'s first call is faster without it\n\n    return {\n        "sqlstate": FAULT,\n        "message": f"the bridge failed: {type(error).__name__}: {error}",\n        "detail": "".join(traceback.format_tb(error.__traceback__)).rstrip(),\n        "hint": "This is a fault of indb-tensile: report it together with the DETAIL.",\n    }\n\n\ndef shown(value: Any) -> str:\n    """A value that was given, as messages show it."""\n    text = json.dumps(value, ensure_ascii=False)\n    return text if len(text) <= 80 else text[:77] + "..."\n',
'.evaluations': '"""A version is scored on rows that the caller may read, or told by what its training measured."""\n\n# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident or by regclass\n\nimport json\n\nfrom . import service\nfrom .errors import DATA, MISSING_COLUMN, TOO_MUCH, RefusalError\nfrom .models import find_version\nfrom .predictions import storable\nfrom .relation import no_table\nfrom .request import read_integer, read_model_name\nfrom .spi import Json, Plpy, fetch\n\n_MOST_ROWS = 100_000\n\n\ndef evaluate(plpy: Plpy, request: Json) -> Json:\n    """Score a version on a relation, read as the caller; without one, give the figures of its own held-out rows."""\n    name = read_model_name(request)\n    version = find_version(plpy, name, read_integer(request, "version"))\n    oid = read_integer(request, "relation")\n    if oid is None:\n        return {"metrics": json.loads(version["metrics"])}\n    rows = _labelled_rows(plpy, oid, name, version["target"])\n    # The rows are JSON already: written into the request as they are, they need not be read first.\n    asked = f\'{{"verb": "evaluate", "version": {version["version_id"]}, "rows": [{", ".join(rows)}]}}\'\n    return dict(storable(service.ask(plpy, asked)))\n\n\ndef _labelled_rows(plpy: Plpy, oid: int, model: str, target: str) -> list[str]:\n    """The rows whose target is known, each as JSON."""\n    found = fetch(plpy, RELATION_NAME, oid)\n    if not found:\n        raise no_table(oid)\n    source, column, names = found[0]["name"], plpy.quote_ident(target), found[0]["columns"]\n    if target not in names:\n        raise RefusalError(\n            MISSING_COLUMN,\n            f\'{source} has no column "{target}", which model "{model}" predicts\',\n            hint=f"Evaluate on a relation that has it. The columns of {source} are {\', \'.join(names) or \'none\'}.",\n        )\n    limit = _MOST_ROWS + 1\n    statement = f"select to_jsonb(t) as row from {source} as t where {column} is not null limit {limit}"\n    rows = [row["row"] for row in plpy.execute(statement)]\n    if not rows:\n        raise RefusalError(DATA, f\'{source} has no row whose target "{target}" is known\')\n    if len(rows) == limit:\n        raise RefusalError(\n            TOO_MUCH,\n            f"{source} has more than {_MOST_ROWS} rows, too many to evaluate in one answer",\n            hint=f"Evaluate a sample: create temporary table part as select * from {source} "\n            f"tablesample system (10) limit {_MOST_ROWS};",\n        )\n    return rows\n\n\nRELATION_NAME = """\nselect c.oid::pg_catalog.regclass::text as name,\n       array(select a.attname::text from pg_catalog.pg_attribute as a\n              where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum) as columns\n  from pg_catalog.pg_class as c where c.oid = \x241::oid"""\n',
'.features': '"""The columns to learn from: as asked, as last time, or all that tell anything."""\n\nfrom collections.abc import Sequence\n\nfrom .errors import INVALID, RefusalError\nfrom .relation import Column, Table, learnable\nfrom .request import read_names\nfrom .spi import Json, Plpy\n\n\ndef choose_features(\n    plpy: Plpy, request: Json, before: Json, table: Table, target: Column\n) -> tuple[list[str] | None, list[str]]:\n    """`features` (None: every column that is not excluded) and `exclude` of the specification."""\n    features, exclude = _asked(request, before, table)\n    for name in exclude:\n        table.column(name, "exclude")\n    if features is None:\n        exclude = exclude + _keys_left_out(plpy, table, target, exclude)\n        used = _all_but(table, target.name, exclude)\n    else:\n        used = [table.column(name, "features") for name in features if name not in exclude]\n        if target in used:\n            message = f\'"{target.name}" is both target and feature\'\n            raise RefusalError(INVALID, message, hint="Leave it out of features.")\n    if not used:\n        hint = f"Name columns with features => array[\'...\']. Columns: {table.names}."\n        raise RefusalError(INVALID, f"no features are left in {table}", hint=hint)\n    for column in used:\n        learnable(table, column, "feature")\n    return features if features is None else [column.name for column in used], exclude\n\n\ndef used_columns(table: Table, spec: Json) -> list[Column]:\n    """The feature columns of a specification."""\n    if spec["features"] is not None:\n        return [column for column in table.columns if column.name in spec["features"]]\n    return _all_but(table, spec["target"], spec["exclude"])\n\n\ndef _asked(request: Json, before: Json, table: Table) -> tuple[list[str] | None, list[str]]:\n    """Both arguments, inherited together; a column excluded last time may be named, or gone, by now."""\n    features = read_names(request, "features")\n    exclude = read_names(request, "exclude")\n    if features is None and exclude is None:\n        features = before.get("features")\n    if exclude is None:\n        present = {column.name for column in table.columns}\n        exclude = [name for name in before.get("exclude") or () if name in present and name not in (features or ())]\n    return features, exclude\n\n\ndef _all_but(table: Table, target: str, exclude: Sequence[str]) -> list[Column]:\n    return [column for column in table.columns if column.name != target and column.name not in exclude]\n\n\ndef _keys_left_out(plpy: Plpy, table: Table, target: Column, exclude: Sequence[str]) -> list[str]:\n    keys = [column.name for column in _all_but(table, target.name, exclude) if column.key]\n    if keys:\n        plpy.notice(\n            f"left out of the features, as keys tell rows apart and nothing else: {\', \'.join(keys)} "\n            "(name them in features => array[...] to learn from them)"\n        )\n    return keys\n',
'.grants': '"""Who may read a table, and the statements that mend it where someone may not."""\n\nfrom .errors import DENIED, RefusalError\nfrom .spi import Plpy, Row, fetch, qualified\n\n\ndef check_grants(plpy: Plpy, facts: Row) -> None:\n    """Refuse a table, given by its facts in the catalog, that the caller or the worker cannot read whole."""\n    subject = f\'"{facts["schema"]}.{facts["name"]}"\'\n    table = qualified(plpy, facts["schema"], facts["name"])\n    if not (facts["caller_enters"] and facts["caller_reads"]):\n        grants = _missing(plpy, facts, "caller", plpy.quote_ident(facts["caller"]))\n        raise RefusalError(DENIED, f"permission denied for table {subject}", hint=f"Ask its owner for: {grants}")\n    if facts["secured"]:\n        raise RefusalError(\n            DENIED,\n            f"table {subject} has row-level security, which the worker does not see through",\n            detail="Its policies decide by role, and the worker is not the role that asks.",\n            hint=f"Train on the rows that you see: create table ... as select * from {table};",  # noqa: S608 - a hint\n        )\n    if not (facts["worker_enters"] and facts["worker_reads"]):\n        grants = _missing(plpy, facts, "worker", "tensile_worker")\n        raise RefusalError(DENIED, f"the worker may not read table {subject}", hint=f"Run: {grants}")\n\n\ndef let_worker_read(plpy: Plpy, table: str) -> None:\n    """Grant the worker what it needs of the caller\'s new table in the current schema, or say who must."""\n    plpy.execute(f"grant select on {table} to tensile_worker")\n    facts = fetch(plpy, WORKER_MAY_ENTER)[0]\n    if facts["enters"]:\n        return\n    grant = f"grant usage on schema {plpy.quote_ident(facts[\'schema\'])} to tensile_worker"\n    if facts["mine"]:\n        plpy.execute(grant)\n    else:\n        plpy.notice(f"the worker may not use the schema yet; its owner must run: {grant};")\n\n\ndef _missing(plpy: Plpy, facts: Row, who: str, role: str) -> str:\n    """The grants that this one lacks, as statements."""\n    statements = []\n    if not facts[f"{who}_enters"]:\n        statements.append(f"grant usage on schema {plpy.quote_ident(facts[\'schema\'])} to {role};")\n    if not facts[f"{who}_reads"]:\n        statements.append(f"grant select on {qualified(plpy, facts[\'schema\'], facts[\'name\'])} to {role};")\n    return " ".join(statements)\n\n\nWORKER_MAY_ENTER = """\nselect n.nspname as schema, has_schema_privilege(\'tensile_worker\', n.oid, \'usage\') as enters,\n       pg_has_role(n.nspowner, \'usage\') as mine\n  from pg_catalog.pg_namespace as n where n.nspname = current_schema()"""\n',
'.models': '"""Models by name: defining one, recalling what its last training was given, finding the version to predict with."""\n\nimport json\nfrom collections.abc import Callable\nfrom typing import Any\n\nfrom . import arguments\nfrom .errors import DENIED, DUPLICATE, MISSING, NOT_READY, RefusalError\nfrom .options import METRICS\nfrom .request import read_model_name\nfrom .spi import Json, Plpy, Row, fetch, literal\n\n\ndef create_model(plpy: Plpy, request: Json) -> Json:\n    """Store a definition under a new name."""\n    name = read_model_name(request)\n    definition = {\n        "architecture": arguments.architecture(request, {}),\n        "hyperparams": arguments.hyperparams(request, {}),\n    }\n    made = fetch(plpy, CREATE_MODEL, name, json.dumps(definition))\n    if not made:\n        found = fetch(plpy, MODEL, name)\n        if found and found[0]["own"]:\n            hint = f"To define it anew, drop it first: select tensile_drop_model({literal(name)})."\n            raise RefusalError(DUPLICATE, f\'model "{name}" already exists\', hint=hint)\n        raise _taken(name)\n    return {"model": made[0]["model_id"]}\n\n\ndef last_arguments(plpy: Plpy, name: str) -> Json:\n    """What arguments left out mean: those of the model\'s last successful run, else its definition."""\n    found = fetch(plpy, MODEL, name)\n    if not found:\n        return {}\n    if not found[0]["own"]:\n        raise _taken(name)\n    return _well_formed(found[0]["last_spec"] or found[0]["definition"])\n\n\ndef find_version(plpy: Plpy, name: str, number: int | None) -> Row:\n    """The version of a model that the caller may see: this one, or the deployed one."""\n    found = fetch(plpy, VERSION, name, number)\n    if not found:\n        hint = "See your models: select * from tensile.model_list. Its owner can train it with tensile_train(...)."\n        raise RefusalError(MISSING, f\'there is no model "{name}"\', hint=hint)\n    if found[0]["version_id"] is not None:\n        return found[0]\n    if number is not None:\n        hint = f"See its versions: select * from tensile_training_info({literal(name)})."  # noqa: S608 - a hint\n        raise RefusalError(MISSING, f\'model "{name}" has no version {number}\', hint=hint)\n    hint = (\n        "Predictions become possible when a training has succeeded: see tensile.stat_jobs. "\n        "One that is not deployed is named with version => N: "\n        f"tensile_training_info({literal(name)}) lists them."\n    )\n    raise RefusalError(NOT_READY, f\'model "{name}" has no deployed version\', hint=hint)\n\n\ndef _well_formed(text: str | None) -> Json:\n    """The arguments of a stored specification. Its owner may write anything there: what is no argument is no default.\n\n    What the objects hold is checked as if it had been given now.\n    """\n    try:\n        stored = json.loads(text or "{}")\n    except (ValueError, RecursionError):\n        return {}\n    if not isinstance(stored, dict):\n        return {}\n    return {name: stored[name] for name, fits in _FORMS.items() if name in stored and fits(stored[name])}\n\n\ndef _is_names(value: Any) -> bool:\n    return isinstance(value, list) and all(isinstance(name, str) for name in value)\n\n\ndef _is_object(value: Any) -> bool:\n    return isinstance(value, dict)\n\n\ndef _is_text(value: Any) -> bool:\n    return isinstance(value, str)\n\n\ndef _taken(name: str) -> RefusalError:\n    hint = "Model names are unique in the database: choose another name."\n    return RefusalError(DENIED, f\'model "{name}" belongs to another role\', hint=hint)\n\n\n_FORMS: dict[str, Callable[[Any], bool]] = {\n    "target": _is_text,\n    "task": lambda value: _is_text(value) and value in METRICS,\n    "architecture": _is_object,\n    "hyperparams": _is_object,\n    "features": _is_names,\n    "exclude": _is_names,\n    "preprocess": _is_object,\n    "split": _is_object,\n    "metric": _is_text,\n    "early_stop": _is_object,\n}\n\nCREATE_MODEL = """\ninsert into tensile.models (name, definition) values (\x241::text, \x242::jsonb)\non conflict (name) do nothing returning model_id"""\nMODEL = """\nselect m.owner_name = current_user and m.owner_oid = tensile.current_role_oid() as own,\n       m.definition::text as definition, m.last_spec::text as last_spec\n  from tensile.models as m where m.name = \x241::text"""\nVERSION = """\nselect v.version_id, v.target, v.metrics::text as metrics\n  from tensile.models as m\n  left join tensile.model_versions as v\n    on v.model_id = m.model_id and case when \x242::int4 is null then v.deployed else v.number = \x242 end\n where m.name = \x241::text"""\n',
'.options': '"""What options a training has: the tables of `learning/`, value for value, as a test compares.\n\nA worker checks again, since a specification in the queue is untrusted input. In a rule, minimum and maximum are\ninclusive, above and below exclusive; one without "default" is of a parameter that must be given.\n"""\n\nfrom .spi import Json\n\n_SHARE: Json = {"type": "number", "minimum": 0, "below": 1}\n_FLAG: Json = {"type": "boolean", "default": False}\nHYPERPARAMS: dict[str, Json] = {\n    "epochs": {"type": "integer", "minimum": 1, "maximum": 100000, "default": 40},\n    "batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": 64},\n    "micro_batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": None},\n    "precision": {"type": "choice", "values": ["float32", "bfloat16"], "default": "float32"},\n    "optimizer": {"type": "choice", "values": ["sgd", "adam", "adamw"], "default": "adamw"},\n    "learning_rate": {"type": "number", "above": 0, "maximum": 100, "default": None},\n    "schedule": {"type": "choice", "values": ["constant", "cosine", "step"], "default": "cosine"},\n    "warmup": _SHARE | {"default": 0.0},\n    "decay": {"type": "number", "above": 0, "maximum": 1, "default": 0.1},\n    "decay_at": {"type": "numbers", "above": 0, "below": 1, "length": [1, 16], "default": [0.5, 0.75]},\n    "momentum": _SHARE | {"default": None},\n    "nesterov": _FLAG,\n    "betas": {"type": "numbers", "minimum": 0, "below": 1, "length": [2, 2], "default": [0.9, 0.999]},\n    "eps": {"type": "number", "above": 0, "maximum": 1, "default": 1e-8},\n    "weight_decay": {"type": "number", "minimum": 0, "maximum": 100, "default": None},\n    "clip_norm": {"type": "number", "above": 0, "default": None},\n    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},\n}\n_DROPOUT: Json = _SHARE | {"default": 0.0}\n_ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu")\n_ACTIVATION: Json = {"type": "choice", "values": list(_ACTIVATIONS), "default": "relu"}\n_WIDTHS: Json = {"type": "integers", "minimum": 1, "maximum": 65536, "length": [0, 64]}\n_INPUT_SHAPE: Json = _WIDTHS | {"length": [1, 3], "default": None}\nARCHITECTURES: dict[str, dict[str, Json]] = {\n    "auto": {"input_shape": _INPUT_SHAPE},\n    "mlp": {\n        "hidden": _WIDTHS | {"default": [128, 64]},\n        "activation": _ACTIVATION,\n        "dropout": _DROPOUT,\n        "batch_norm": _FLAG,\n        "input_shape": _INPUT_SHAPE,\n    },\n    "cnn": {\n        "channels": _WIDTHS | {"length": [1, 32], "default": [32, 64]},\n        "kernel": {"type": "integer", "minimum": 1, "maximum": 31, "default": 3},\n        "depth": {"type": "integer", "minimum": 1, "maximum": 16, "default": 1},\n        "hidden": _WIDTHS | {"default": [128]},\n        "activation": _ACTIVATION,\n        "dropout": _DROPOUT,\n        "batch_norm": {"type": "boolean", "default": True},\n        "input_shape": _INPUT_SHAPE,\n    },\n    "layers": {"layers": {"type": "layers"}, "input_shape": _INPUT_SHAPE},\n}\nLAYERS = (\n    *("linear", "conv2d", "batch_norm1d", "batch_norm2d", "layer_norm", *_ACTIVATIONS, "dropout", "max_pool2d"),\n    *("avg_pool2d", "adaptive_avg_pool2d", "flatten", "reshape", "lstm", "gru", "transformer_encoder", "residual"),\n)\nSPLIT: dict[str, Json] = {\n    "test_size": {"type": "number", "above": 0, "below": 1, "default": 0.15},\n    "valid_size": _SHARE | {"default": 0.15},\n    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},\n}\nEARLY_STOP: dict[str, Json] = {\n    "patience": {"type": "integer", "minimum": 1, "maximum": 100000, "default": 10},\n    "min_delta": {"type": "number", "minimum": 0, "default": 0.0},\n    "metric": {"type": "text", "default": "loss"},\n}\nMETRICS: dict[str, tuple[str, ...]] = {\n    "classification": ("accuracy", "balanced_accuracy", "f1_macro", "log_loss", "roc_auc"),\n    "regression": ("r2", "rmse", "mae"),\n}\nPREPROCESS = ("standardize", "categories", "missing")\nDEPLOY = ("if_better", "always", "never")\n',
'.parameters': '"""Checks named parameters against a table that says of each what it takes."""\n\nimport math\nimport sys\nfrom collections.abc import Mapping\nfrom typing import Any\n\nfrom .errors import INVALID, RefusalError, shown\nfrom .spi import Json\n\n\ndef check_parameters(subject: str, given: Any, known: Mapping[str, Json]) -> Json:\n    """What was given, nulls left out, once names, types and ranges are right."""\n    check_names(subject, check_object(subject, given, known), known)\n    for name, value in given.items():\n        if value is not None and not _fits(value, known[name]):\n            hint = f\'"{name}" must be {_wanted(known[name])}.\'\n            raise RefusalError(INVALID, f\'{subject}: "{name}" is {shown(value)}\', hint=hint)\n    for name, rule in known.items():\n        if "default" not in rule and given.get(name) is None:\n            raise RefusalError(INVALID, f\'{subject}: parameter "{name}" is missing\', hint=f"Give {_wanted(rule)}.")\n    return {name: value for name, value in given.items() if value is not None}\n\n\ndef check_object(subject: str, given: Any, known: Any) -> Json:\n    """What was given, unless it is no JSON object."""\n    if not isinstance(given, dict):\n        hint = f"Known parameters of such an object: {\', \'.join(known)}."\n        raise RefusalError(INVALID, f"{subject} must be a JSON object, not {shown(given)}", hint=hint)\n    return given\n\n\ndef check_names(subject: str, given: Json, known: Any) -> None:\n    """Refuse a name that is not among the known ones."""\n    for name in given:\n        if name not in known:\n            hint = f"Known parameters: {\', \'.join(known) or \'none\'}."\n            raise RefusalError(INVALID, f\'{subject}: unknown parameter "{name}"\', hint=hint)\n\n\ndef _fits(value: Any, rule: Json) -> bool:\n    kind = rule["type"]\n    if kind == "choice":\n        return isinstance(value, str) and value in rule["values"]\n    if kind == "layers":\n        return isinstance(value, list) and all(isinstance(item, dict) for item in value)\n    if kind in ("integers", "numbers"):\n        few, many = rule.get("length", (0, math.inf))\n        single = rule | {"type": kind[:-1]}\n        return isinstance(value, list) and few <= len(value) <= many and all(_fits(item, single) for item in value)\n    if isinstance(value, bool) or kind in ("boolean", "text"):\n        return isinstance(value, {"boolean": bool, "text": str}.get(kind, ()))\n    if not isinstance(value, int if kind == "integer" else (int, float)) or not abs(value) <= sys.float_info.max:\n        return False  # nor is an integer a number that no float can hold, and JSON has such\n    least, most = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)\n    return bool(least <= value <= most and rule.get("above", -math.inf) < value < rule.get("below", math.inf))\n\n\ndef _wanted(rule: Json) -> str:\n    """What a parameter takes, in words."""\n    if rule["type"] == "choice":\n        return "one of " + ", ".join(rule["values"])\n    words = (("minimum", "at least"), ("above", "above"), ("maximum", "at most"), ("below", "below"))\n    limits = [f"{word} {rule[key]}" for key, word in words if key in rule]\n    few, many = rule.get("length", (None, None))\n    count = "" if few is None else f" of length {few}" if few == many else f" of length {few} to {many}"\n    return f"{_NOUNS[rule[\'type\']]}{count}" + (" " + " and ".join(limits) if limits else "")\n\n\n_NOUNS = {\n    "integer": "an integer",\n    "number": "a number",\n    "boolean": "true or false",\n    "text": "a text",\n    "integers": "a list of integers",\n    "numbers": "a list of numbers",\n    "layers": "a list of JSON objects",\n}\n',
'.predictions': '"""Rows are predicted by the service, each answer in its row\'s place."""\n\nimport json\nimport math\nimport re\nfrom typing import Any\n\nfrom . import service\nfrom .errors import INVALID, INVALID_TEXT, RefusalError, shown\nfrom .models import find_version\nfrom .request import read_choice, read_integer, read_model_name\nfrom .spi import Json, Plpy\n\n_PREDICTIONS = ("value", "label", "proba", "vector")\n_BRACES = str.maketrans("{}", "[]")\n\n\ndef predict(plpy: Plpy, request: Json) -> Json:\n    """Predict each of `rows`; a row that is null has the prediction null."""\n    name, kind = read_model_name(request), read_choice(request, "kind", _PREDICTIONS, "value")\n    version = find_version(plpy, name, read_integer(request, "version"))\n    rows = request.get("rows")\n    if not isinstance(rows, list):\n        raise RefusalError(INVALID, "rows is not a list")\n    asked = [_row(row, unnamed=request.get("unnamed") is True) for row in rows if row is not None]\n    values: list[Any] = []\n    if asked:\n        version_id = version["version_id"]\n        answer = service.ask(plpy, {"verb": "predict", "version": version_id, "rows": asked, "kind": kind})\n        values = [storable(value) for value in answer["values"]]\n    given = iter(values)\n    return {"values": [None if row is None else next(given) for row in rows]}\n\n\ndef storable(value: Any) -> Any:\n    """JSON in PostgreSQL knows no NaN and no infinity: they travel as texts, which float8 reads."""\n    if isinstance(value, float) and not math.isfinite(value):\n        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"\n    if isinstance(value, list):\n        return [storable(item) for item in value]\n    if isinstance(value, dict):\n        return {key: storable(item) for key, item in value.items()}\n    return value\n\n\ndef _row(row: Any, *, unnamed: bool) -> Any:\n    """A row as the service reads it: `row(1, 2)` has no names, and a literal without a type is a text."""\n    if unnamed and isinstance(row, dict):\n        names = [f"f{place + 1}" for place in range(len(row))]\n        return [row[name] for name in names] if all(name in row for name in names) else row\n    return _literal_row(row) if isinstance(row, str) else row\n\n\ndef _literal_row(text: str) -> Any:\n    """JSON, or an array of numbers as PostgreSQL writes it."""\n    try:\n        return json.loads(text.translate(_BRACES) if re.fullmatch(r"[{}\\d\\s.,eE+-]+", text) else text)\n    except (ValueError, RecursionError):\n        raise RefusalError(\n            INVALID_TEXT,\n            f"the row to predict is neither JSON nor an array of numbers: {shown(text)}",\n            hint="Pass a row, an array or jsonb: tensile_predict(\'model\', t) from a table t, array[1, 2], "\n            "or \'{\\"column\\": 1}\'::jsonb.",\n        ) from None\n',
'.relation': '"""The table to train on, and the columns that a model can learn from."""\n\nfrom dataclasses import dataclass\n\nfrom .errors import INVALID, MISSING_COLUMN, MISSING_TABLE, WRONG_KIND, RefusalError\nfrom .grants import check_grants\nfrom .request import read_integer\nfrom .spi import Json, Plpy, Row, fetch, literal, qualified\n\n\n@dataclass(frozen=True, slots=True, kw_only=True)\nclass Column:\n    """One column of a table."""\n\n    name: str\n    type: str\n    kind: str  # integer, float, boolean, text, time or array; empty for a type that cannot be learned from\n    key: bool  # part of the primary key, or an identity column\n\n\n@dataclass(frozen=True, slots=True, kw_only=True)\nclass Table:\n    """A table that caller and worker may read."""\n\n    oid: int\n    schema: str\n    name: str\n    columns: tuple[Column, ...]\n\n    def __str__(self) -> str:\n        return f\'table "{self.schema}.{self.name}"\'\n\n    @property\n    def names(self) -> str:\n        """Its columns\' names, for hints."""\n        return ", ".join(column.name for column in self.columns) or "none"\n\n    def column(self, name: str, role: str) -> Column:\n        """The column of that name; `role` is the argument that names it."""\n        for column in self.columns:\n            if column.name == name:\n                return column\n        message = f\'column "{name}" of relation "{self.schema}.{self.name}" does not exist\'\n        detail = "" if role == "target" else f"It is named in {role}."\n        raise RefusalError(MISSING_COLUMN, message, detail=detail, hint=f"The columns are {self.names}.")\n\n\ndef find_table(plpy: Plpy, request: Json) -> Table:\n    """The table that the request names, once caller and worker may both read it."""\n    oid = read_integer(request, "relation")\n    if oid is None:\n        raise RefusalError(INVALID, "no table is given", hint="Name one: select tensile_train(\'model\', \'table\').")\n    found = fetch(plpy, RELATION, oid)\n    if not found:\n        raise no_table(oid)\n    facts = found[0]\n    _check_kind(plpy, facts)\n    check_grants(plpy, facts)\n    columns = tuple(\n        Column(name=row["name"], type=row["type"], kind=_kind(row), key=row["key"])\n        for row in fetch(plpy, COLUMNS, oid)\n    )\n    return Table(oid=oid, schema=facts["schema"], name=facts["name"], columns=columns)\n\n\ndef no_table(oid: int) -> RefusalError:\n    """The refusal of an oid that is no relation\'s."""\n    return RefusalError(MISSING_TABLE, f"there is no table with oid {oid}", hint="It may have been dropped.")\n\n\ndef learnable(table: Table, column: Column, role: str) -> Column:\n    """The column, unless its type cannot be learned from; `role` is target or feature."""\n    if not column.kind:\n        way = f"Leave it out with exclude => array[{literal(column.name)}]. " if role == "feature" else ""\n        message = f\'{role} "{column.name}" of {table} has type {column.type}, which cannot be learned from\'\n        raise RefusalError(INVALID, message, hint=way + _SUPPORTED)\n    return column\n\n\ndef _check_kind(plpy: Plpy, facts: Row) -> None:\n    kind = _RELATION_KINDS.get(facts["kind"], "")\n    if facts["persistence"] == "t":\n        kind = kind or "a temporary table, which other sessions cannot read"\n    if kind:\n        hint = "Name the table that holds the rows to train on."\n        if facts["kind"] in _KINDS_WITH_ROWS:\n            copy = plpy.quote_ident(f"{facts[\'name\']}_rows")\n            source = qualified(plpy, facts["schema"], facts["name"])\n            hint = f"Train on a copy: create table {copy} as select * from {source};"  # noqa: S608 - a hint\n        raise RefusalError(\n            WRONG_KIND,\n            f\'"{facts["schema"]}.{facts["name"]}" is {kind}\',\n            detail="Models are trained on ordinary tables, which the worker reads with its own grants.",\n            hint=hint,\n        )\n\n\ndef _kind(column: Row) -> str:\n    return "text" if column["enumerated"] else _KINDS.get(column["base"] or "", "")\n\n\n_RELATION_KINDS = {\n    "v": "a view",\n    "m": "a materialized view",\n    "f": "a foreign table",\n    "p": "a partitioned table",\n    "S": "a sequence",\n    "i": "an index",\n    "I": "an index",\n    "c": "a composite type",\n    "t": "a TOAST table",\n}\n_KINDS_WITH_ROWS = "rpvmf"\n\n# Kinds of column by type name within pg_catalog.\n_KINDS = {\n    **dict.fromkeys(("int2", "int4", "int8"), "integer"),\n    **dict.fromkeys(("float4", "float8", "numeric"), "float"),\n    "bool": "boolean",\n    **dict.fromkeys(("text", "varchar", "bpchar", "char", "name"), "text"),\n    **dict.fromkeys(("date", "timestamp", "timestamptz"), "time"),\n    **dict.fromkeys(("_float4", "_float8", "_numeric", "_int2", "_int4", "_int8"), "array"),\n}\n_SUPPORTED = (\n    "Supported are smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, enums, "\n    "date, timestamp, timestamptz, and arrays of real, double precision, numeric and integers."\n)\n\nRELATION = """\nselect c.relname as name, n.nspname as schema, c.relkind as kind, c.relpersistence as persistence,\n       c.relrowsecurity as secured, current_user as caller,\n       has_schema_privilege(n.oid, \'usage\') as caller_enters, has_table_privilege(c.oid, \'select\') as caller_reads,\n       has_schema_privilege(\'tensile_worker\', n.oid, \'usage\') as worker_enters,\n       has_table_privilege(\'tensile_worker\', c.oid, \'select\') as worker_reads\n  from pg_catalog.pg_class as c\n  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace\n where c.oid = \x241::oid"""\nCOLUMNS = """\nwith recursive base (attnum, type) as (  -- of a domain, be it over others, the type below them all\n    select a.attnum, a.atttypid\n      from pg_catalog.pg_attribute as a\n     where a.attrelid = \x241::oid and a.attnum > 0 and not a.attisdropped\n    union all\n    select d.attnum, t.typbasetype\n      from base as d\n      join pg_catalog.pg_type as t on t.oid = d.type\n     where t.typtype = \'d\'\n)\nselect a.attname as name, format_type(a.atttypid, a.atttypmod) as type, b.typtype = \'e\' as enumerated,\n       case when b.typnamespace = \'pg_catalog\'::regnamespace then b.typname end as base,\n       a.attidentity <> \'\' or coalesce(a.attnum = any (i.indkey::int2[]), false) as key\n  from pg_catalog.pg_attribute as a\n  join base as d on d.attnum = a.attnum\n  join pg_catalog.pg_type as b on b.oid = d.type and b.typtype <> \'d\'\n  left join pg_catalog.pg_index as i on i.indrelid = a.attrelid and i.indisprimary\n where a.attrelid = \x241::oid\n order by a.attnum"""\n',
'.request': '"""The arguments of any request, read from its JSON: a wrong type is refused by the argument\'s name."""\n\nfrom collections.abc import Sequence\nfrom typing import Any\n\nfrom .errors import INVALID, RefusalError, shown\nfrom .spi import Json\n\n\ndef read_model_name(request: Json) -> str:\n    """The model\'s name, which must be given."""\n    name = read_text(request, "model")\n    if name is None or not 1 <= len(name) <= 200:\n        raise RefusalError(INVALID, f"the model\'s name is {shown(name)}", hint="Give a name of 1 to 200 characters.")\n    return name\n\n\ndef read_text(request: Json, key: str) -> str | None:\n    """A text, or None where it is left out."""\n    value = request.get(key)\n    if value is not None and not isinstance(value, str):\n        raise RefusalError(INVALID, f"{key} is {shown(value)}, not a text")\n    return value\n\n\ndef read_integer(request: Json, key: str) -> int | None:\n    """An integer, or None where it is left out."""\n    value = request.get(key)\n    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):\n        raise RefusalError(INVALID, f"{key} is {shown(value)}, not an integer")\n    return value\n\n\ndef read_names(request: Json, key: str) -> list[str] | None:\n    """A list of column names, each once, or None where it is left out."""\n    value = request.get(key)\n    if value is None:\n        return None\n    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):\n        raise RefusalError(INVALID, f"{key} is {shown(value)}, not a list of column names")\n    return list(dict.fromkeys(value))\n\n\ndef read_choice(request: Json, key: str, known: Sequence[str], default: Any) -> Any:\n    """One of the known words, or the default where it is left out."""\n    value = read_text(request, key)\n    if value is None:\n        return default\n    if value not in known:\n        raise RefusalError(INVALID, f\'unknown {key} "{value}"\', hint=f"Known: {\', \'.join(known)}.")\n    return value\n',
'.sample': '"""What a table\'s first rows tell, within some milliseconds; the worker checks the rest."""\n\n# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident\n\nimport re\nfrom collections.abc import Sequence\nfrom typing import Any\n\nfrom .errors import DATA, RefusalError\nfrom .features import used_columns\nfrom .relation import Column, Table\nfrom .spi import Json, Plpy, Row, fetch, literal, qualified\n\n_ROWS = 10_000  # a scan of these takes some milliseconds at most\n_ARRAY_ROWS = 1000  # arrays are wide\n\n\ndef check_rows(plpy: Plpy, table: Table, spec: Json) -> None:\n    """Refuse a table that cannot be learned from, as far as its first rows tell."""\n    target = table.column(spec["target"], "target")\n    arrays = [column for column in used_columns(table, spec) if column.kind == "array"]\n    limit = _ARRAY_ROWS if arrays else _ROWS\n    look = _look(plpy, table, target, arrays, limit)\n    if not look["rows"]:\n        raise RefusalError(DATA, f"{table} has no rows", hint="Insert rows, commit, and call tensile_train again.")\n    whole = look["rows"] < limit  # else what was seen says nothing of the rest\n    subject = f\'target "{target.name}" of {table}\'\n    if whole and not look["known"]:\n        hint = "Fill it, or name another column with target => \'...\'."\n        raise RefusalError(DATA, f"{subject} is NULL in all {look[\'rows\']} rows", hint=hint)\n    if look["infinite"]:\n        hint = "Delete these rows, or set their target to NULL to leave them out."\n        raise RefusalError(DATA, f"{subject} is not finite in {look[\'infinite\']} of its first rows", hint=hint)\n    if whole and look["single"]:\n        _refuse_one_value(subject, spec["task"], look)\n    for place, column in enumerate(arrays):\n        _check_shape(table, column, look[f"least_{place}"], look[f"most_{place}"])\n\n\ndef count_values(plpy: Plpy, table: Table, target: Column) -> int:\n    """How many values an integer target has in the first rows."""\n    column, source = plpy.quote_ident(target.name), qualified(plpy, table.schema, table.name)\n    statement = (\n        f"select count(distinct v) as values from (select {column} as v from {source} "\n        f"where {column} is not null limit {_ROWS}) as sample"\n    )\n    return int(next(iter(plpy.execute(statement)))["values"])\n\n\ndef read_statistics(plpy: Plpy, table: Table, spec: Json) -> tuple[list[Json], int]:\n    """What the service must know of the columns to build the network, and how many rows there are."""\n    source = qualified(plpy, table.schema, table.name)\n    used = [*used_columns(table, spec), table.column(spec["target"], "target")]\n    asked = ["(select count(*) from sample) as sampled"]\n    for place, column in enumerate(used):\n        name = plpy.quote_ident(column.name)\n        if column.kind == "array":\n            asked.append(f"(select array_dims({name}) from sample where {name} is not null limit 1) as c{place}")\n        else:\n            asked.append(f"(select count(distinct {name}) from sample) as c{place}")\n    statement = f"""with sample as materialized (select * from {source} limit {_ROWS})\n        select {", ".join(asked)}"""\n    found = next(iter(plpy.execute(statement)))\n    columns = [_statistic(column, found[f"c{place}"]) for place, column in enumerate(used)]\n    rows = int(found["sampled"])\n    if rows == _ROWS:\n        rows = int(fetch(plpy, f"select count(*) as rows from {source}")[0]["rows"])\n    return columns, rows\n\n\ndef _statistic(column: Column, found: Any) -> Json:\n    shape = [int(size) for size in re.findall(r":(\\d+)\\]", found or "")] if column.kind == "array" else []\n    distinct = None if column.kind == "array" else found\n    about = {"name": column.name, "type": column.type, "kind": column.kind, "distinct": distinct}\n    return about | {"ndims": len(shape), "shape": shape}\n\n\ndef _look(plpy: Plpy, table: Table, target: Column, arrays: Sequence[Column], limit: int) -> Row:\n    """Figures of the first rows, in one statement."""\n    source = qualified(plpy, table.schema, table.name)\n    columns = [plpy.quote_ident(target.name), *(plpy.quote_ident(column.name) for column in arrays)]\n    named = ", ".join(f"{column} as c{place}" for place, column in enumerate(columns))\n    infinite = "c0 in (\'NaN\', \'Infinity\', \'-Infinity\')" if target.kind == "float" else "false"\n    shapes = "".join(\n        f", min(pg_catalog.array_dims(c{place + 1})) as least_{place}"\n        f", max(pg_catalog.array_dims(c{place + 1})) as most_{place}"\n        for place in range(len(arrays))\n    )\n    statement = f"""select count(*) as rows, count(c0) as known, min(c0::text) as value,\n        min(c0::text collate "C") is not distinct from max(c0::text collate "C") as single,\n        count(*) filter (where {infinite}) as infinite{shapes}\n        from (select {named} from {source} limit {limit}) as sample"""\n    return next(iter(plpy.execute(statement)))\n\n\ndef _refuse_one_value(subject: str, task: str, look: Row) -> None:\n    if task == "classification":\n        hint = "Classification needs two classes or more: add rows of another one, or name another target."\n        raise RefusalError(DATA, f"{subject} has one class only: {look[\'value\']}", hint=hint)\n    hint = "Regression needs values that differ: add rows, or name another target."\n    raise RefusalError(DATA, f"{subject} is {look[\'value\']} in every row", hint=hint)\n\n\ndef _check_shape(table: Table, column: Column, least: str | None, most: str | None) -> None:\n    if least is None or most is None:  # no array that has elements among the first rows\n        return\n    subject = f\'feature "{column.name}" of {table}\'\n    way = f"Leave it out with exclude => array[{literal(column.name)}], or make the arrays alike."\n    if least != most:\n        detail = f"Among the first rows are {least} and {most}."\n        raise RefusalError(DATA, f"{subject} holds arrays of different shapes", detail=detail, hint=way)\n    if any(bound != "1" for bound in re.findall(r"\\[(-?\\d+):", least)):\n        raise RefusalError(DATA, f"{subject} holds arrays whose lower bound is not 1: {least}", hint=way)\n',
'.service': '"""The session\'s connection to a service: opened at the first request, opened anew when it has died."""\n\nimport json\nimport re\nimport socket\nimport struct\nfrom typing import Any\n\nfrom .errors import TOO_MUCH, UNAVAILABLE, RefusalError\nfrom .spi import Json, Plpy, fetch\n\n_MAX_FRAME_BYTES = 64 << 20  # the service\'s own bound\n_SLICE_S = 0.1  # how long a cancel may go unnoticed\n\n\ndef ask(plpy: Plpy, request: Json | str) -> Any:\n    """The result that the service answers with. Raises RefusalError: its error, or 57P03 where none answers."""\n    body = request.encode() if isinstance(request, str) else json.dumps(request).encode()\n    if len(body) > _MAX_FRAME_BYTES:\n        message = f"a request of {len(body)} bytes exceeds the {_MAX_FRAME_BYTES} that the service reads"\n        raise RefusalError(TOO_MUCH, message, hint="Ask for fewer rows at a time.")\n    answer = json.loads(_line.exchange(plpy, struct.pack(">I", len(body)) + body))\n    if answer["ok"]:\n        return answer["result"]\n    error = answer["error"]\n    raise RefusalError(\n        error["sqlstate"], error["message"], detail=error.get("detail", ""), hint=error.get("hint", "")\n    )\n\n\ndef ping(plpy: Plpy, request: Json) -> Json:\n    """Ask the service who it is: whether one answers at all."""\n    return dict(ask(plpy, {"verb": "ping"}))\n\n\nclass Line:\n    """One connection at a time, with one request on it at a time."""\n\n    def __init__(self) -> None:\n        self._socket: socket.socket | None = None\n\n    def exchange(self, plpy: Plpy, frame: bytes) -> bytes:\n        """Send a frame, and give the frame that answers it."""\n        if self._socket is not None:\n            try:\n                return self._once(plpy, self._socket, frame)\n            except OSError:\n                pass  # the service was restarted since: everything it is asked may be asked twice\n        self._socket = _connected(plpy)\n        try:\n            return self._once(plpy, self._socket, frame)\n        except OSError as error:\n            raise _no_service(f"The connection broke: {error}.") from None\n\n    def close(self) -> None:\n        """Hang up; the next exchange opens anew."""\n        if self._socket is not None:\n            self._socket.close()\n            self._socket = None\n\n    def _once(self, plpy: Plpy, connection: socket.socket, frame: bytes) -> bytes:\n        """Send, then receive. A connection that fails, or whose answer is not waited for, is not used again."""\n        self._socket = None\n        try:\n            _send(plpy, connection, frame)\n            (size_bytes,) = struct.unpack(">I", _receive(plpy, connection, 4))\n            if size_bytes > _MAX_FRAME_BYTES:\n                raise ConnectionError(f"the answer announces {size_bytes} bytes")\n            answer = _receive(plpy, connection, size_bytes)\n            self._socket = connection\n            return answer\n        finally:\n            if self._socket is None:\n                connection.close()\n\n\ndef _connected(plpy: Plpy) -> socket.socket:\n    """A connection to the first service that accepts one, the one that was alive last before the others."""\n    facts = fetch(plpy, SERVICES)[0]\n    directory, names = facts["directory"], facts["names"] or []\n    if not directory:\n        hint = "An administrator sets it: select tensile_set_setting(\'socket_directory\', \'\\"/run/tensile\\"\')."\n        raise RefusalError(UNAVAILABLE, "no service answers: the setting socket_directory is not set", hint=hint)\n    faults = []\n    for name in names:\n        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):\n            continue  # a name, never a path\n        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)\n        connection.settimeout(_SLICE_S)\n        try:\n            connection.connect(f"{directory.rstrip(\'/\')}/{name}.sock")\n        except OSError as error:\n            connection.close()\n            faults.append(f"{name}: {error.strerror or error}")\n        else:\n            return connection\n    raise _no_service(f"Tried {\'; \'.join(faults)}." if faults else "No controller with a service is alive.")\n\n\ndef _no_service(detail: str) -> RefusalError:\n    hint = "Start one with: tensile up, or tensile controller; tensile doctor says what is missing."\n    return RefusalError(UNAVAILABLE, "no service answers", detail=detail, hint=hint)\n\n\ndef _send(plpy: Plpy, connection: socket.socket, frame: bytes) -> None:\n    left = memoryview(frame)\n    while left:\n        try:\n            left = left[connection.send(left) :]\n        except TimeoutError:\n            _notice_cancel(plpy)\n\n\ndef _receive(plpy: Plpy, connection: socket.socket, size_bytes: int) -> bytes:\n    received = bytearray()\n    while len(received) < size_bytes:\n        try:\n            part = connection.recv(min(1 << 20, size_bytes - len(received)))\n        except TimeoutError:\n            _notice_cancel(plpy)\n            continue\n        if not part:\n            raise ConnectionResetError("the service closed it")\n        received += part\n    return bytes(received)\n\n\ndef _notice_cancel(plpy: Plpy) -> None:\n    """Any statement does: a cancel or a timeout that has arrived is raised by it."""\n    plpy.execute("select 1")\n\n\n_line = Line()\n\nSERVICES = """\nselect (select s.value #>> \'{}\' from tensile.settings as s where s.name = \'socket_directory\') as directory,\n       array(select w.service_name from tensile.workers as w\n              where w.service_name is not null and w.stopped_at is null\n              order by w.heartbeat_at desc) as names"""\n',
'.spi': '"""The session\'s own database, as PL/Python gives access to it; names and texts as SQL writes them."""\n\nimport re\nfrom collections.abc import Iterable, Mapping, Sequence\nfrom typing import Any, Protocol\n\nJson = dict[str, Any]\nRow = Mapping[str, Any]\n\n\nclass Plan(Protocol):\n    """A prepared statement of PL/Python."""\n\n\nclass Plpy(Protocol):\n    """What is used of PL/Python\'s module `plpy`."""\n\n    @property\n    def SPIError(self) -> type[Exception]:  # noqa: N802 - its name there\n        """What an error of SQL is raised as."""\n\n    def prepare(self, query: str, types: Sequence[str]) -> Plan:\n        """Prepare a statement."""\n\n    def execute(self, plan: Plan | str, arguments: Sequence[object] = ()) -> Iterable[Row]:\n        """Run it; an error is an SPIError."""\n\n    def notice(self, message: str) -> None:\n        """Tell the client."""\n\n    def quote_ident(self, name: str) -> str:\n        """The name as SQL wants it."""\n\n\ndef fetch(plpy: Plpy, statement: str, *arguments: object) -> Sequence[Row]:\n    """All rows of a statement, prepared once per session; its casts say the parameters\' types."""\n    if statement not in _plans:\n        types = dict(re.findall(r"\\\x24(\\d+)::(\\w+)", statement))\n        _plans[statement] = plpy.prepare(statement, [types[number] for number in sorted(types, key=int)])\n    return list(plpy.execute(_plans[statement], arguments))\n\n\ndef qualified(plpy: Plpy, schema: str, name: str) -> str:\n    """The name with its schema, quoted."""\n    return f"{plpy.quote_ident(schema)}.{plpy.quote_ident(name)}"\n\n\ndef literal(text: str) -> str:\n    """The text as a SQL literal, for hints."""\n    return "\'" + text.replace("\'", "\'\'") + "\'"\n\n\n_plans: dict[str, Plan] = {}\n',
'.target': '"""The column to predict, and whether its values are classes or quantities."""\n\nfrom .errors import INVALID, MISSING_COLUMN, RefusalError\nfrom .options import METRICS\nfrom .relation import Column, Table, learnable\nfrom .request import read_choice, read_text\nfrom .sample import count_values\nfrom .spi import Json, Plpy\n\n_CLASSES_OF_AN_INTEGER = 20  # an integer target of more values is a quantity\n_USUAL_NAMES = ("target", "label", "class", "y")\n\n\ndef choose_target(request: Json, before: Json, table: Table) -> Column:\n    """The column to predict: as asked, as last time, or the only one with a usual name."""\n    named = read_text(request, "target")\n    if named is not None:\n        return learnable(table, table.column(named, "target"), "target")\n    if (last := before.get("target")) is not None:\n        return learnable(table, _as_last_time(table, last), "target")\n    usual = [column for column in table.columns if column.name in _USUAL_NAMES]\n    if len(usual) != 1:\n        found = " and ".join(column.name for column in usual)\n        raise RefusalError(\n            INVALID,\n            f"no target is given for {table}",\n            detail=f"It has {found}." if usual else f"It has no column named {\', \'.join(_USUAL_NAMES)}.",\n            hint=f"Name the column to predict with target => \'...\'. Columns: {table.names}.",\n        )\n    return learnable(table, usual[0], "target")\n\n\ndef choose_task(plpy: Plpy, request: Json, before: Json, table: Table, target: Column) -> str:\n    """The task as asked, as last time for the same target, or by the target\'s type and values."""\n    task: str | None = read_choice(request, "task", tuple(METRICS), None)\n    if task is None and before.get("target") == target.name:\n        task = before.get("task")\n    if task is None:\n        task, reason = _task_by_type(plpy, table, target)\n        plpy.notice(f\'task is {task}, as target "{target.name}" {reason}\')\n    _check_task(task, table, target)\n    return task\n\n\ndef _as_last_time(table: Table, name: str) -> Column:\n    for column in table.columns:\n        if column.name == name:\n            return column\n    raise RefusalError(\n        MISSING_COLUMN,\n        f\'column "{name}" of relation "{table.schema}.{table.name}" does not exist\',\n        detail="It is the target of the model\'s last run, as no target is given.",\n        hint=f"Name the column to predict with target => \'...\'. Columns: {table.names}.",\n    )\n\n\ndef _task_by_type(plpy: Plpy, table: Table, target: Column) -> tuple[str, str]:\n    if target.kind != "integer":\n        return "regression" if target.kind == "float" else "classification", f"has type {target.type}"\n    values = count_values(plpy, table, target)\n    if values <= _CLASSES_OF_AN_INTEGER:\n        return "classification", f"is an integer of {values} values"\n    return "regression", f"is an integer of more than {_CLASSES_OF_AN_INTEGER} values"\n\n\ndef _check_task(task: str, table: Table, target: Column) -> None:\n    fits = ("integer", "float") if task == "regression" else ("integer", "float", "boolean", "text")\n    if target.kind not in fits:\n        nouns = "numeric" if task == "regression" else "text, boolean or numeric"\n        raise RefusalError(\n            INVALID,\n            f\'target "{target.name}" of {table} has type {target.type}, which {task} cannot predict\',\n            hint=f"Name a {nouns} column with target => \'...\'"\n            + (", or use task => \'classification\'." if task == "regression" and target.kind != "time" else "."),\n        )\n',
'.training': '"""A training is checked and enqueued as the caller, or only explained."""\n\nimport json\n\nfrom . import arguments, service\nfrom .errors import UNSUPPORTED, RefusalError\nfrom .features import choose_features\nfrom .models import last_arguments\nfrom .options import DEPLOY\nfrom .relation import Table, find_table\nfrom .request import read_choice, read_model_name, read_text\nfrom .sample import check_rows, read_statistics\nfrom .spi import Json, Plpy, fetch\nfrom .target import choose_target, choose_task\n\n\ndef train(plpy: Plpy, request: Json) -> Json:\n    """Check the request and enqueue it."""\n    key = read_text(request, "idempotency_key")\n    if key is not None and (known := fetch(plpy, JOB_OF_KEY, key)):\n        return {"job": known[0]["job_id"]}\n    spec, _ = _resolved(plpy, request)\n    priority = arguments.priority(request)\n    relation = spec["relation"]\n    values = (spec["model"], relation["oid"], relation["schema"], relation["name"], json.dumps(spec))\n    added = fetch(plpy, ENQUEUE, *values, priority, read_text(request, "not_before"), key)\n    # Another session took the key between the look-up and now: that job is the one.\n    return {"job": (added or fetch(plpy, JOB_OF_KEY, key))[0]["job_id"]}\n\n\ndef explain(plpy: Plpy, request: Json) -> Json:\n    """Ask the service what this training would need, without enqueuing it."""\n    spec, table = _resolved(plpy, request)\n    arguments.priority(request)\n    columns, rows = read_statistics(plpy, table, spec)\n    room = fetch(plpy, DEVICE_ROOM)[0]["room_bytes"]\n    asked = {"verb": "explain", "spec": spec, "columns": columns, "rows": rows}\n    answer = service.ask(plpy, asked | {"limit_bytes": spec["memory_limit_bytes"], "budget_bytes": room})\n    return {"rows": answer["rows"]}\n\n\ndef _resolved(plpy: Plpy, request: Json) -> tuple[Json, Table]:\n    """The JobSpec of a request, everything left out filled in, and its table."""\n    _refuse_what_comes_later(request)\n    name = read_model_name(request)\n    table = find_table(plpy, request)\n    before = last_arguments(plpy, name)\n    target = choose_target(request, before, table)\n    task = choose_task(plpy, request, before, table, target)\n    features, exclude = choose_features(plpy, request, before, table, target)\n    spec = {\n        "model": name,\n        "relation": {"oid": table.oid, "schema": table.schema, "name": table.name},\n        "target": target.name,\n        "task": task,\n        "architecture": arguments.architecture(request, before),\n        "hyperparams": arguments.hyperparams(request, before),\n        "features": features,\n        "exclude": exclude,\n        "preprocess": arguments.preprocess(request, before),\n        "split": arguments.split(request, before),\n        "metric": arguments.metric(request, before, task),\n        "early_stop": arguments.early_stop(request, before, task),\n        "memory_limit_bytes": arguments.memory_limit(plpy, request),\n        "max_runtime_s": arguments.max_runtime(request),\n        "deploy": read_choice(request, "deploy", DEPLOY, "if_better"),\n    }\n    check_rows(plpy, table, spec)\n    return spec, table\n\n\ndef _refuse_what_comes_later(request: Json) -> None:\n    later = (\n        ("snapshot", bool(request.get("snapshot")), "Train on a table: create table ... as select ... from it."),\n        ("depends_on", request.get("depends_on") is not None, "Enqueue the second job when the first has ended."),\n        ("init_from", request.get("init_from") is not None, "Leave it out: training starts from fresh parameters."),\n    )\n    for name, given, hint in later:\n        if given:\n            raise RefusalError(UNSUPPORTED, f"{name} is not supported yet", hint=hint)\n\n\nJOB_OF_KEY = """\nselect job_id from tensile.jobs\n where owner_oid = tensile.current_role_oid() and owner_name = current_user and idempotency_key = \x241::text"""\nENQUEUE = """\ninsert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority, not_before,\n                          idempotency_key)\nvalues (\x241::text, \x242::oid, \x243::text, \x244::text, \x245::jsonb, \x246::int4, \x247::timestamptz, \x248::text)\non conflict (owner_oid, idempotency_key) where idempotency_key is not null do nothing\nreturning job_id"""\nDEVICE_ROOM = """\nselect max(d.budget_bytes - d.granted_bytes) as room_bytes\n  from tensile.devices as d\n  join tensile.workers as w using (worker_id)\n where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s)"""\n'}
    package = "tensile_sql_api_" + hashlib.sha256(repr(sources).encode()).hexdigest()[:16]
    texts = {package + name: source for name, source in sources.items()}

    class Texts:
        """Finds the package's modules and runs them; tracebacks ask it for their lines."""

        def find_spec(self, name, path=None, target=None):
            return ModuleSpec(name, self, is_package=name == package) if name in texts else None

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            name = module.__name__
            exec(compile(texts[name], name.replace(".", "/") + ".py", "exec"), module.__dict__)

        def get_source(self, name):
            return texts[name]

    if package not in GD:
        finder = Texts()
        sys.meta_path.insert(0, finder)
        try:
            GD[package] = importlib.import_module(package)
        finally:
            sys.meta_path.remove(finder)
    SD["answer"] = GD[package].answer
return SD["answer"](plpy, verb, request)
$bridge$;
comment on function tensile.bridge(text, jsonb) is
  'checks and enqueues a request, or asks the service, with the caller''s privileges; the answer holds any error';

create function tensile.raise_error(code text, message text, more text, way_out text) returns void
  language plpgsql stable
as $$
begin
  -- An empty DETAIL or HINT would be shown as one.
  if more <> '' and way_out <> '' then
    raise exception '%', message using errcode = code, detail = more, hint = way_out;
  elsif more <> '' then
    raise exception '%', message using errcode = code, detail = more;
  elsif way_out <> '' then
    raise exception '%', message using errcode = code, hint = way_out;
  end if;
  raise exception '%', message using errcode = code;
end
$$;
comment on function tensile.raise_error(text, text, text, text) is
  'raises an error with this SQLSTATE, message, DETAIL and HINT';

-- PL/Python would put its exception's class before each message; raised here, a message arrives as it was written.
create function tensile.call(verb text, request jsonb) returns jsonb
  language plpgsql volatile parallel unsafe
as $$
declare
  answer constant jsonb := tensile.bridge(verb, request);
begin
  if not (answer -> 'ok')::boolean then
    perform tensile.raise_error(answer #>> '{error,sqlstate}', answer #>> '{error,message}',
                                answer #>> '{error,detail}', answer #>> '{error,hint}');
  end if;
  return answer -> 'result';
end
$$;
comment on function tensile.call(text, jsonb) is 'the result of tensile.bridge, or its error';

revoke execute on function tensile.bridge(text, jsonb), tensile.call(text, jsonb),
  tensile.raise_error(text, text, text, text) from public;
grant execute on function tensile.bridge(text, jsonb), tensile.call(text, jsonb),
  tensile.raise_error(text, text, text, text) to tensile_user;

-- What users call. Security invoker throughout: nobody can do here what he could not do to the tables himself.

-- Training -----------------------------------------------------------------------------------------------------

create function tensile.training_request(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false
) returns jsonb
  language sql stable
as $$
  select jsonb_build_object(
    'model', model, 'relation', relation::oid::bigint, 'target', target, 'task', task,
    'architecture', architecture, 'hyperparams', hyperparams, 'features', features, 'exclude', exclude,
    'preprocess', preprocess, 'split', split, 'metric', metric, 'early_stop', early_stop, 'init_from', init_from,
    'priority', priority, 'memory_limit', memory_limit, 'max_runtime_s', extract(epoch from max_runtime),
    'deploy', deploy, 'depends_on', depends_on, 'not_before', not_before, 'idempotency_key', idempotency_key,
    'snapshot', snapshot)
$$;
comment on function tensile.training_request is 'the arguments of a training as the bridge reads them';

create function public.tensile_train(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false
) returns bigint
  language plpgsql volatile parallel unsafe
as $$
begin
  return (tensile.call('train', tensile.training_request(
      model, relation, target, task, architecture, hyperparams, features, exclude, preprocess, split, metric,
      early_stop, init_from, priority, memory_limit, max_runtime, deploy, depends_on, not_before, idempotency_key,
      snapshot)) ->> 'job')::bigint;
end
$$;
comment on function public.tensile_train is
  'enqueues a training of the model on the table and returns the job; it exists once the transaction has committed';

create procedure public.tensile_train_and_wait(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false, inout job bigint default null
)
  language plpgsql
as $$  -- no SET clause: a procedure that has one may not commit
declare
  held record;
  told text;
begin
  job := public.tensile_train(
      model, relation, target, task, architecture, hyperparams, features, exclude, preprocess, split, metric,
      early_stop, init_from, priority, memory_limit, max_runtime, deploy, depends_on, not_before, idempotency_key,
      snapshot);
  loop
    commit;  -- the job exists from here on, and between polls no snapshot holds back the queue
    select j.state, j.phase, j.error_sqlstate, j.error_message, j.error_detail, j.error_hint
      into held from tensile.jobs as j where j.job_id = job;
    exit when not found or held.state::text in ('succeeded', 'failed', 'cancelled');
    if told is distinct from coalesce(held.phase::text, held.state::text) then
      told := coalesce(held.phase::text, held.state::text);
      raise notice 'job %: %', job, told;
    end if;
    perform pg_catalog.pg_sleep(0.1::double precision);
  end loop;
  if held.state::text = 'failed' then
    perform tensile.raise_error(held.error_sqlstate, held.error_message, held.error_detail, held.error_hint);
  elsif held.state::text = 'cancelled' then
    raise exception 'job % was cancelled', job using errcode = 'query_canceled';
  end if;
end
$$;
comment on procedure public.tensile_train_and_wait is
  'enqueues a training, commits, and returns when it has ended; a failure is raised; a cancelled call leaves the job';

create function public.tensile_explain(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false
) returns table (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
  iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
  swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text)
  language plpgsql volatile parallel unsafe
as $$
begin
  return query
  select said.policy, said.peak_bytes, said.floor_bytes, said.bound_bytes, said.saved, said.iteration_ms,
         said.overhead, said.stall_ms, said.swaps, said.swapped_bytes, said.recomputed, said.planning_ms, said.starts_now,
         said.note
    from jsonb_to_recordset(tensile.call('explain', tensile.training_request(
      model, relation, target, task, architecture, hyperparams, features, exclude, preprocess, split, metric,
      early_stop, init_from, priority, memory_limit, max_runtime, deploy, depends_on, not_before, idempotency_key,
      snapshot)) -> 'rows')
      as said (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
        iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
        swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text);
end
$$;
comment on function public.tensile_explain is
  'what this training would need and take under each policy, as tensile plan prints it: saved is of the liveness peak, '
  'overhead a ratio to its time; and whether it would start now; nothing is enqueued or allocated';

-- Waiting and stopping -----------------------------------------------------------------------------------------

create function public.tensile_wait(job bigint, timeout interval default '1 minute') returns tensile.job_state
  language plpgsql volatile parallel unsafe
as $$
declare
  deadline constant timestamptz := coalesce(clock_timestamp() + timeout, 'infinity');
  nap double precision := 0.01;
  held record;
begin
  loop
    select j.state, j.enqueued_xact into held from tensile.jobs as j where j.job_id = job;
    if not found then
      perform tensile.raise_no_job(job);
    end if;
    exit when held.state in ('succeeded', 'failed', 'cancelled') or clock_timestamp() >= deadline;
    if held.enqueued_xact = pg_current_xact_id_if_assigned() then
      raise exception 'job % cannot start before this transaction commits: waiting for it here would never end', job
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Commit first, then wait; or use: call tensile_train_and_wait(...).';
    elsif current_setting('transaction_isolation') <> 'read committed' then
      raise exception 'a transaction of isolation level % never sees job % end',
                      current_setting('transaction_isolation'), job
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Wait in a transaction of isolation level read committed.';
    end if;
    if isfinite(deadline) then
      nap := least(nap, greatest(0, extract(epoch from deadline - clock_timestamp())));
    end if;
    perform pg_sleep(nap);
    nap := least(nap * 1.5, 0.2);
  end loop;
  return held.state;
end
$$;
comment on function public.tensile_wait(bigint, interval) is
  'the job''s state once it has ended, or when the time is over (null: never); for short waits, as it holds a snapshot';

create function public.tensile_cancel(job bigint) returns boolean
  language plpgsql volatile parallel unsafe
as $$
declare
  held tensile.job_state;
begin
  update tensile.jobs as j set cancel_requested = true
   where j.job_id = job and j.state in ('queued', 'starting', 'running');
  if found then
    return true;
  end if;
  select j.state into held from tensile.jobs as j where j.job_id = job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif held in ('queued', 'starting', 'running') then
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege', hint = 'Its owner, or a member of tensile_admin, can cancel it.';
  end if;
  return false;
end
$$;
comment on function public.tensile_cancel(bigint) is
  'asks to stop a job: a queued one is cancelled at once, a running one within a heartbeat; false if it had ended';

create function tensile.raise_no_job(job bigint) returns void
  language plpgsql stable
as $$
begin
  raise exception 'there is no job %', job
    using errcode = 'undefined_object', hint = 'See your jobs: select * from tensile.stat_jobs;';
end
$$;
comment on function tensile.raise_no_job(bigint) is 'raises that the caller has no such job';

-- Predictions --------------------------------------------------------------------------------------------------
-- One input of type anycompatible each: that resolves rows, sub-selects, arrays, jsonb, literals and null. Stable,
-- since a version does not change, and parallel unsafe, since a worker process could not run the bridge's queries.

create function tensile.prediction(
  model text, input anycompatible, version integer, kind text
) returns jsonb
  language plpgsql stable parallel unsafe
as $$
begin
  return tensile.call('predict', jsonb_build_object(
    'model', model, 'version', version, 'kind', kind, 'rows', jsonb_build_array(to_jsonb(input)),
    'unnamed', pg_typeof(input) = 'record'::regtype)) #> '{values,0}';
end
$$;
comment on function tensile.prediction(text, anycompatible, integer, text) is
  'one prediction, of kind value, label, proba or vector';

create function public.tensile_predict(model text, input anycompatible, version integer default null)
  returns double precision
  language plpgsql stable parallel unsafe
as $$
begin
  return (tensile.prediction(model, input, version, 'value') #>> '{}')::double precision;
end
$$;
comment on function public.tensile_predict(text, anycompatible, integer) is
  'the model''s prediction for a row: the value, or the label where labels are numbers or booleans (true is 1)';

create function public.tensile_predict_label(model text, input anycompatible, version integer default null)
  returns text
  language plpgsql stable parallel unsafe
as $$
begin
  return tensile.prediction(model, input, version, 'label') #>> '{}';
end
$$;
comment on function public.tensile_predict_label(text, anycompatible, integer) is
  'the label that the model predicts for a row, as text';

create function public.tensile_predict_proba(model text, input anycompatible, version integer default null)
  returns table (label text, probability double precision)
  language plpgsql stable parallel unsafe rows 10
as $$
begin
  return query
  select said.key, said.value::double precision
    from jsonb_each_text(nullif(tensile.prediction(model, input, version, 'proba'), 'null')) as said
   order by said.value::double precision desc, said.key;
end
$$;
comment on function public.tensile_predict_proba(text, anycompatible, integer) is
  'every label with its probability for a row, the likeliest first';

create function public.tensile_predict_vector(model text, input anycompatible, version integer default null)
  returns double precision[]
  language plpgsql stable parallel unsafe
as $$
declare
  outputs constant jsonb := nullif(tensile.prediction(model, input, version, 'vector'), 'null');
begin
  return case when outputs is not null
              then array(select said.value::double precision
                           from jsonb_array_elements_text(outputs) with ordinality as said (value, place)
                          order by said.place) end;
end
$$;
comment on function public.tensile_predict_vector(text, anycompatible, integer) is
  'the outputs of the model''s network for a row';

create function public.tensile_predict_batch(model text, inputs anycompatiblearray, version integer default null)
  returns double precision[]
  language plpgsql stable parallel unsafe
as $$
begin
  return array(
    select said.value::double precision
      from jsonb_array_elements_text(tensile.call('predict', jsonb_build_object(
        'model', model, 'version', version, 'kind', 'value',
        'rows', to_jsonb(inputs))) -> 'values') with ordinality as said (value, place)
     order by said.place);
end
$$;
comment on function public.tensile_predict_batch(text, anycompatiblearray, integer) is
  'the predictions for many rows at once, in their order: tensile_predict_batch(''m'', array_agg(t)) from t';

-- Judging ------------------------------------------------------------------------------------------------------

create function public.tensile_evaluate(model text, relation regclass default null, version integer default null)
  returns table (metric text, value double precision)
  language plpgsql volatile parallel unsafe rows 5
as $$
#variable_conflict use_column
begin
  return query
  select said.key, said.value::double precision
    from jsonb_each_text(tensile.call('evaluate', jsonb_build_object(
      'model', model, 'version', version, 'relation', relation::oid::bigint)) -> 'metrics') as said
   order by said.key;
end
$$;
comment on function public.tensile_evaluate(text, regclass, integer) is
  'how good the model is on the rows of a relation; without one, on the rows held out of its own training';

create function public.tensile_training_info(model text)
  returns table (version integer, deployed boolean, task tensile.task, target text, architecture jsonb,
    metric_name text, metric double precision, parameters bigint, weights_bytes bigint, relation text, job bigint,
    trained_at timestamptz)
  language plpgsql stable parallel unsafe rows 10
as $$
begin
  if not exists (select from tensile.models as m where m.name = tensile_training_info.model) then
    perform tensile.raise_no_model(tensile_training_info.model);
  end if;
  return query
  select v.number, v.deployed, v.task, v.target, v.architecture, v.metric_name, v.metric, v.parameters,
         v.weights_bytes, quote_ident(v.relation_schema) || '.' || quote_ident(v.relation_name),
         v.job_id, v.created_at
    from tensile.models as m
    join tensile.model_versions as v on v.model_id = m.model_id
   where m.name = tensile_training_info.model
   order by v.number desc;
end
$$;
comment on function public.tensile_training_info(text) is 'the versions of a model, the newest first';

-- Models -------------------------------------------------------------------------------------------------------

create function public.tensile_create_model(name text, architecture text default null, hyperparams jsonb default null)
  returns bigint
  language plpgsql volatile parallel unsafe
as $$
begin
  return (tensile.call('create_model', jsonb_build_object(
    'model', name, 'architecture', architecture, 'hyperparams', hyperparams)) ->> 'model')::bigint;
end
$$;
comment on function public.tensile_create_model(text, text, jsonb) is
  'defines the network of a model before its first training: the name of an architecture or a JSON object';

create function public.tensile_drop_model(model text) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  busy bigint;
begin
  select j.job_id into busy from tensile.jobs as j
   where j.model_name = tensile_drop_model.model and j.state in ('queued', 'starting', 'running') limit 1;
  if found then
    raise exception 'model "%" is being trained by job %', model, busy
      using errcode = 'object_in_use', hint = format('Cancel it first: select tensile_cancel(%s);', busy);
  end if;
  delete from tensile.models as m where m.name = tensile_drop_model.model;
  if not found then
    if exists (select from tensile.models as m where m.name = tensile_drop_model.model) then
      raise exception 'model "%" belongs to another role', model
        using errcode = 'insufficient_privilege', hint = 'Its owner, or a member of tensile_admin, can drop it.';
    end if;
    perform tensile.raise_no_model(model);
  end if;
end
$$;
comment on function public.tensile_drop_model(text) is 'drops a model with all its versions';

create function tensile.raise_no_model(model text) returns void
  language plpgsql stable
as $$
begin
  raise exception 'there is no model "%"', model
    using errcode = 'undefined_object', hint = 'See your models: select * from tensile.model_list;';
end
$$;
comment on function tensile.raise_no_model(text) is 'raises that the caller sees no such model';

create function public.tensile_grant_model(model text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  mine bigint;
  whom oid;
begin
  select m.model_id into mine from tensile.models as m where m.name = tensile_grant_model.model;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is given to grant model "%" to', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for everybody.';
  end if;
  select r.oid into whom from pg_catalog.pg_roles as r where r.rolname = grantee;
  if not found and grantee <> 'public' then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for everybody.';
  end if;
  insert into tensile.model_privileges (model_id, grantee_oid, grantee_name)
  values (mine, coalesce(whom, 0), grantee) on conflict do nothing;
end
$$;
comment on function public.tensile_grant_model(text, name) is
  'lets a role (public: everybody) see a model and predict with it';

create function public.tensile_revoke_model(model text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  mine bigint;
begin
  select m.model_id into mine from tensile.models as m where m.name = tensile_revoke_model.model;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is given to revoke model "%" from', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for everybody.';
  end if;
  delete from tensile.model_privileges as p where p.model_id = mine and p.grantee_name = grantee;
  -- A role that was dropped since may still have a grant to take back, and one without a grant loses nothing.
  if not found and grantee <> 'public' and not exists (
       select from pg_catalog.pg_roles as r where r.rolname = grantee) then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for everybody.';
  end if;
end
$$;
comment on function public.tensile_revoke_model(text, name) is 'takes back what tensile_grant_model gave';

-- Service ------------------------------------------------------------------------------------------------------

create function public.tensile_load_dataset(name text, table_name text default null) returns bigint
  language plpgsql volatile parallel unsafe
as $$
begin
  return (tensile.call('load_dataset', jsonb_build_object('dataset', name, 'table', table_name)) ->> 'rows')::bigint;
end
$$;
comment on function public.tensile_load_dataset(text, text) is
  'creates a table with a sample data set in the current schema, readable by the worker; returns its rows';

create function public.tensile_version() returns text
  language sql stable parallel safe
  return tensile.catalog_version();
comment on function public.tensile_version() is 'version of the extension in this database';

create function public.tensile_set_setting(name text, value jsonb) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  if name is distinct from 'socket_directory' then
    raise exception 'there is no setting "%"', name
      using errcode = 'undefined_object', hint = 'Known settings: socket_directory.';
  elsif jsonb_typeof(value) is distinct from 'string' or value #>> '{}' not like '/%' then
    raise exception 'setting "%" is %', name, coalesce(value::text, 'null')
      using errcode = 'invalid_parameter_value',
            hint = 'Give an absolute path: select tensile_set_setting(''socket_directory'', ''"/run/tensile"'');';
  end if;
  insert into tensile.settings as s (name, value)
  values (tensile_set_setting.name, tensile_set_setting.value)
  on conflict on constraint settings_pkey
  do update set value = excluded.value, changed_at = now(), changed_by = current_user;
end
$$;
comment on function public.tensile_set_setting(text, jsonb) is
  'sets what all sessions share: socket_directory, where services put their sockets';

create function public.tensile_check()
  returns table (item text, ok boolean, detail text, hint text)
  language plpgsql volatile parallel unsafe rows 10
as $$
declare
  alive bigint;
  answer jsonb;
begin
  return query select 'catalog', true, 'version ' || tensile.catalog_version(), null::text;

  return query
  select 'worker''s role', r.rolcanlogin,
         case when r.rolcanlogin then 'tensile_worker may log in' else 'tensile_worker may not log in' end,
         case when not r.rolcanlogin then 'As a superuser: alter role tensile_worker login;' end
    from pg_catalog.pg_roles as r where r.rolname = 'tensile_worker';

  return query
  select 'current schema', s.fine,
         coalesce('the worker ' || case when s.fine then 'may' else 'may not' end || ' use schema ' || s.name,
                  'no schema is selected'),
         case when not s.fine then coalesce(format('grant usage on schema %I to tensile_worker;', s.name),
                                            'set search_path = public;') end
    from (select current_schema() as name,
                 coalesce(has_schema_privilege('tensile_worker', current_schema(), 'usage'), false) as fine) as s;

  select count(*) into alive from tensile.workers as w
   where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s);
  return query
  select 'controllers', alive > 0, alive || ' alive',
         case when alive = 0 then 'Start one: tensile up, or tensile controller.' end;

  return query
  select 'socket directory', s.directory is not null, coalesce(s.directory, 'not set'),
         case when s.directory is null then
           'As a member of tensile_admin: select tensile_set_setting(''socket_directory'', ''"/run/tensile"'');' end
    from (select (select t.value #>> '{}' from tensile.settings as t where t.name = 'socket_directory') as directory)
      as s;

  answer := tensile.bridge('ping', '{}');
  return query
  select 'service', (answer -> 'ok')::boolean,
         case when (answer -> 'ok')::boolean then 'version ' || (answer #>> '{result,version}')
              else concat_ws(': ', answer #>> '{error,message}', nullif(answer #>> '{error,detail}', '')) end,
         nullif(answer #>> '{error,hint}', '');
end
$$;
comment on function public.tensile_check() is 'what must be there for trainings and predictions, and what mends it';

-- Who may call them --------------------------------------------------------------------------------------------

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_catalog.pg_proc as p
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
        or p.pronamespace = 'tensile'::regnamespace
           and p.proname in ('training_request', 'prediction', 'raise_no_job', 'raise_no_model')
  loop
    execute format('revoke execute on routine %s from public', routine);
    execute format('grant execute on routine %s to tensile_user', routine);
  end loop;
end
$$;

-- Whatever functions or operators a session's search_path finds first, these mean PostgreSQL's own. Left out are the
-- procedure, which could not commit; what works in the caller's current schema; what reads a relation that may be a
-- view, whose functions may need the caller's path; and what was resolved when it was created.
do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_catalog.pg_proc as p
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
       and p.proname not in ('tensile_train_and_wait', 'tensile_load_dataset', 'tensile_check', 'tensile_evaluate',
                             'tensile_version')
  loop
    execute format('alter routine %s set search_path = pg_catalog, pg_temp', routine);
  end loop;
end
$$;

grant execute on function public.tensile_version() to tensile_monitor, tensile_worker;

revoke execute on function public.tensile_set_setting(text, jsonb) from tensile_user;
grant execute on function public.tensile_set_setting(text, jsonb) to tensile_admin;

-- What can be watched, in PostgreSQL's own manner. Every view is a security invoker: each shows the rows of its
-- tables that the reader may see. Totals that count other users' jobs come from functions that give aggregates only.

create function tensile.queue_positions(jobs bigint[]) returns table (job_id bigint, place bigint)
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select q.job_id, q.place
    from (select j.job_id, row_number() over (order by j.priority desc, j.job_id) as place
            from tensile.jobs as j where j.state = 'queued') as q
   where q.job_id = any (jobs)
$$;
comment on function tensile.queue_positions(bigint[]) is
  'how many queued jobs, whoever owns them, are before each of these, itself included';

create function tensile.active_jobs() returns table (worker_id bigint, jobs bigint, waiting bigint)
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select j.worker_id, count(*), count(*) filter (where j.phase = 'waiting for memory')
    from tensile.jobs as j where j.state in ('starting', 'running') group by j.worker_id
$$;
comment on function tensile.active_jobs() is
  'how many jobs, whoever owns them, each worker has, and how many of them wait for memory';

revoke execute on function tensile.queue_positions(bigint[]), tensile.active_jobs() from public;
grant execute on function tensile.queue_positions(bigint[]), tensile.active_jobs()
  to tensile_user, tensile_monitor, tensile_worker;

-- Jobs ---------------------------------------------------------------------------------------------------------

create view tensile.stat_progress_train with (security_invoker) as
select j.job_id, j.model_name as model, j.owner_name as owner, j.state, j.phase, p.epoch, p.epochs, p.step, p.steps,
       round(case when p.epochs > 0 and p.epoch > 0
                  then least(100, 100.0 / p.epochs
                                  * (p.epoch - 1 + coalesce(p.step::numeric / nullif(p.steps, 0), 0)))
                  else 0 end, 1) as percent,
       p.loss, p.valid_loss, p.metric_name, p.metric, p.samples_per_s, p.eta,
       d.used_bytes, d.granted_bytes, v.budget_bytes as device_budget_bytes, j.worker_id, p.updated_at
  from tensile.jobs as j
  left join tensile.job_progress as p on p.job_id = j.job_id
  left join tensile.device_jobs as d on d.job_id = j.job_id and d.worker_id = j.worker_id
  left join tensile.devices as v on v.worker_id = j.worker_id
 where j.state in ('starting', 'running');
comment on view tensile.stat_progress_train is 'trainings that are under way, and how far they are';

create view tensile.stat_jobs with (security_invoker) as
select j.job_id, j.model_name as model, j.owner_name as owner,
       format('%I.%I', j.relation_schema, j.relation_name) as relation, j.state, j.phase, j.priority, j.attempt,
       j.enqueued_at, j.started_at, j.finished_at,
       coalesce(j.finished_at, now()) - j.started_at as duration,
       j.cancel_requested, v.number as version, v.metric_name, v.metric,
       j.error_sqlstate, j.error_message, j.error_detail, j.error_hint
  from tensile.jobs as j
  left join tensile.model_versions as v on v.version_id = j.version_id;
comment on view tensile.stat_jobs is 'every job that was asked for, and what became of it';

create view tensile.stat_queue with (security_invoker) as
select q.place as position, j.job_id, j.model_name as model, j.owner_name as owner, j.priority, j.state, j.phase,
       case when j.state = 'queued' and j.not_before > now() then format('not before %s', j.not_before)
            when j.waits_for <> '' then j.waits_for
            when j.state = 'starting' then 'memory'
            when not exists (select from tensile.workers as w
                              where w.stopped_at is null
                                and w.heartbeat_at > now() - make_interval(secs => w.lease_s))
              then 'a controller: none is alive'
            when q.place + ahead.jobs > 1 then format('its turn: %s before it', q.place - 1 + ahead.jobs)
            else 'a controller to take it' end as waits_for,
       j.not_before, j.enqueued_at, now() - j.enqueued_at as waiting
  from tensile.jobs as j
  left join tensile.queue_positions(array(select o.job_id from tensile.jobs as o where o.state = 'queued')) as q
    on q.job_id = j.job_id
 cross join (select coalesce(sum(a.waiting), 0) as jobs from tensile.active_jobs() as a) as ahead
 where j.state = 'queued' or j.state = 'starting' and j.phase = 'waiting for memory'
 order by q.place nulls first, j.job_id;
comment on view tensile.stat_queue is 'jobs that wait, in the order in which they will be taken, and what for';

-- Devices ------------------------------------------------------------------------------------------------------

create view tensile.stat_device with (security_invoker) as
select d.worker_id, w.host, d.kind as device,
       w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s) as alive,
       coalesce(a.jobs, 0) as jobs, d.capacity_bytes, d.budget_bytes, d.granted_bytes, d.used_bytes,
       round(100.0 * d.used_bytes / nullif(d.budget_bytes, 0), 1) as percent_used,
       d.high_water_bytes, d.host_bytes, d.busy_percent, d.memory_busy_percent, d.outside_bytes, d.updated_at
  from tensile.devices as d
  join tensile.workers as w on w.worker_id = d.worker_id
  left join tensile.active_jobs() as a on a.worker_id = d.worker_id;
comment on view tensile.stat_device is 'memory of each device, all users'' jobs together';

create view tensile.stat_device_jobs with (security_invoker) as
select d.worker_id, d.job_id, j.model_name as model, j.owner_name as owner, d.granted_bytes, d.used_bytes,
       d.high_water_bytes, d.updated_at
  from tensile.device_jobs as d
  join tensile.jobs as j on j.job_id = d.job_id;
comment on view tensile.stat_device_jobs is 'memory of each device by job';

create view tensile.stat_link with (security_invoker) as
select l.host, l.device_kind as device, l.way, l.beside, l.size_bytes, l.latency_ns / 1e3 as latency_us,
       l.copy_ns / 1e3 as copy_us, round(1e3 * l.size_bytes / l.copy_ns, 1) as mb_per_s,
       round(l.emulated_bytes_per_s / 1e6, 1) as emulated_mb_per_s, l.measured_at
  from tensile.device_links as l;
comment on view tensile.stat_link is
  'how fast copies go between a device and its host: each way, alone and beside copies the other way, by size; '
  'measured anew whenever its controller starts. Plans count on the rates of the largest copies, on the start-up of '
  'the smallest, and on what a lane keeps of its rate beside the other; of an emulated link that comes within a tenth '
  'of what it is set to, on that';

create view tensile.stat_workers with (security_invoker) as
select w.worker_id, w.host, w.pid, w.device, w.version, w.service_name,
       w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s) as alive,
       coalesce(a.jobs, 0) as jobs, make_interval(secs => w.lease_s) as lease, w.started_at, w.heartbeat_at,
       w.stopped_at
  from tensile.workers as w
  left join tensile.active_jobs() as a on a.worker_id = w.worker_id;
comment on view tensile.stat_workers is 'controllers, those that run and those that have run';

-- Plans and latencies --------------------------------------------------------------------------------------------

create view tensile.stat_plan with (security_invoker) as
select p.job_id, j.model_name as model, j.owner_name as owner, p.attempt, p.generation, p.reason, p.policy,
       p.vanilla_peak_bytes, p.liveness_peak_bytes, p.floor_bytes, p.predicted_peak_bytes, p.measured_peak_bytes,
       p.predicted_iteration_ns / 1e6 as predicted_iteration_ms,
       p.measured_iteration_ns / 1e6 as measured_iteration_ms,
       p.predicted_stall_ns / 1e6 as predicted_stall_ms, p.measured_stall_ns / 1e6 as measured_stall_ms,
       p.swaps, p.swapped_bytes, p.recomputed, p.planning_ns / 1e6 as planning_ms, p.created_at, p.adopted_at
  from tensile.plans as p
  join tensile.jobs as j on j.job_id = p.job_id;
comment on view tensile.stat_plan is
  'memory plans of jobs: why each was made, what it predicted and what was measured';

create view tensile.stat_latency with (security_invoker) as
select l.device_kind as device, l.name as operator, l.signature, l.samples, l.latency_ns / 1e3 as measured_us,
       l.predicted_ns / 1e3 as predicted_us,
       (l.predicted_ns - l.latency_ns)::double precision / nullif(l.latency_ns, 0) as error,
       l.workspace_bytes, l.updated_at
  from tensile.op_latency as l;
comment on view tensile.stat_latency is
  'what operators take on each kind of device, and how far the prediction was off';

-- Models ---------------------------------------------------------------------------------------------------------

create view tensile.model_list with (security_invoker) as
select m.name as model, m.owner_name as owner, count(v.version_id) as versions,
       max(v.number) filter (where v.deployed) as deployed,
       coalesce(max(v.task) filter (where v.deployed), max(v.task)) as task,
       coalesce(max(v.target) filter (where v.deployed), max(v.target)) as target,
       max(v.metric_name) filter (where v.deployed) as metric_name,
       max(v.metric) filter (where v.deployed) as metric,
       max(v.parameters) filter (where v.deployed) as parameters,
       m.created_at, max(v.created_at) as trained_at
  from tensile.models as m
  left join tensile.model_versions as v on v.model_id = m.model_id
 group by m.model_id;
comment on view tensile.model_list is 'models that you own or may predict with';

-- Columns --------------------------------------------------------------------------------------------------------

comment on column tensile.stat_progress_train.job_id is 'the job';
comment on column tensile.stat_progress_train.model is 'model that it trains';
comment on column tensile.stat_progress_train.owner is 'who asked for it';
comment on column tensile.stat_progress_train.state is 'starting or running';
comment on column tensile.stat_progress_train.phase is 'what it is doing';
comment on column tensile.stat_progress_train.epoch is 'epoch it is in, from 1';
comment on column tensile.stat_progress_train.epochs is 'epochs it trains at most';
comment on column tensile.stat_progress_train.step is 'steps done in this epoch';
comment on column tensile.stat_progress_train.steps is 'steps of one epoch';
comment on column tensile.stat_progress_train.percent is
  'how much of all epochs is done; early stopping may end it sooner';
comment on column tensile.stat_progress_train.loss is 'mean training loss of this epoch so far';
comment on column tensile.stat_progress_train.valid_loss is 'loss on the validation rows after the last whole epoch';
comment on column tensile.stat_progress_train.metric_name is 'name of the metric';
comment on column tensile.stat_progress_train.metric is
  'that metric on the validation rows after the last whole epoch';
comment on column tensile.stat_progress_train.samples_per_s is 'rows trained per second';
comment on column tensile.stat_progress_train.eta is 'when training should be over';
comment on column tensile.stat_progress_train.used_bytes is 'device memory that it uses now';
comment on column tensile.stat_progress_train.granted_bytes is 'device memory that it may use';
comment on column tensile.stat_progress_train.device_budget_bytes is 'device memory that all jobs may use together';
comment on column tensile.stat_progress_train.worker_id is 'worker that trains it';
comment on column tensile.stat_progress_train.updated_at is 'when its progress was last written';
comment on column tensile.stat_jobs.job_id is 'the job';
comment on column tensile.stat_jobs.model is 'model that it trains';
comment on column tensile.stat_jobs.owner is 'who asked for it';
comment on column tensile.stat_jobs.relation is 'table that it trains on';
comment on column tensile.stat_jobs.state is 'where it is: queued, starting, running, succeeded, failed or cancelled';
comment on column tensile.stat_jobs.phase is 'what it is doing while starting or running';
comment on column tensile.stat_jobs.priority is 'higher goes first';
comment on column tensile.stat_jobs.attempt is 'how often it was begun';
comment on column tensile.stat_jobs.enqueued_at is 'when it was asked for';
comment on column tensile.stat_jobs.started_at is 'when it was taken for the first time';
comment on column tensile.stat_jobs.finished_at is 'when it ended';
comment on column tensile.stat_jobs.duration is 'from its start to its end, or until now';
comment on column tensile.stat_jobs.cancel_requested is 'its owner wants it stopped';
comment on column tensile.stat_jobs.version is 'version of the model that it published';
comment on column tensile.stat_jobs.metric_name is 'name of the metric that judges that version';
comment on column tensile.stat_jobs.metric is 'that metric on the held-out rows';
comment on column tensile.stat_jobs.error_sqlstate is 'SQLSTATE of the last error';
comment on column tensile.stat_jobs.error_message is 'what went wrong';
comment on column tensile.stat_jobs.error_detail is 'what helps to see why';
comment on column tensile.stat_jobs.error_hint is 'the way out';
comment on column tensile.stat_queue.position is
  'place among all queued jobs, other users'' included; null once a worker has it';
comment on column tensile.stat_queue.job_id is 'the job';
comment on column tensile.stat_queue.model is 'model that it trains';
comment on column tensile.stat_queue.owner is 'who asked for it';
comment on column tensile.stat_queue.priority is 'higher goes first';
comment on column tensile.stat_queue.state is 'queued, or starting';
comment on column tensile.stat_queue.phase is 'waiting for memory, for a job that a worker has';
comment on column tensile.stat_queue.waits_for is 'what it waits for, in words';
comment on column tensile.stat_queue.not_before is 'earliest time of its start';
comment on column tensile.stat_queue.enqueued_at is 'when it was asked for';
comment on column tensile.stat_queue.waiting is 'for how long';
comment on column tensile.stat_device.worker_id is 'worker that rules the device';
comment on column tensile.stat_device.host is 'machine that it is in';
comment on column tensile.stat_device.device is 'kind of device';
comment on column tensile.stat_device.alive is 'whether that worker beats';
comment on column tensile.stat_device.jobs is 'jobs that the worker has, all users'' together';
comment on column tensile.stat_device.capacity_bytes is 'memory of the device';
comment on column tensile.stat_device.budget_bytes is 'memory that jobs may use together';
comment on column tensile.stat_device.granted_bytes is 'sum of what the jobs were granted';
comment on column tensile.stat_device.used_bytes is 'what they use now';
comment on column tensile.stat_device.percent_used is 'that, as a part of the budget';
comment on column tensile.stat_device.high_water_bytes is 'the most that was in use at once';
comment on column tensile.stat_device.host_bytes is 'pinned host memory that jobs have; at most host_pool_bytes';
comment on column tensile.stat_device.busy_percent is 'part of the time in which the GPU computed, as its driver says';
comment on column tensile.stat_device.memory_busy_percent is 'likewise, in which its memory was read or written';
comment on column tensile.stat_device.outside_bytes is 'its memory in use beside what jobs share';
comment on column tensile.stat_device.updated_at is 'when this was written';
comment on column tensile.stat_device_jobs.worker_id is 'worker that rules the device';
comment on column tensile.stat_device_jobs.job_id is 'the job';
comment on column tensile.stat_device_jobs.model is 'model that it trains';
comment on column tensile.stat_device_jobs.owner is 'who asked for it';
comment on column tensile.stat_device_jobs.granted_bytes is 'the most it may use';
comment on column tensile.stat_device_jobs.used_bytes is 'what it uses now';
comment on column tensile.stat_device_jobs.high_water_bytes is 'the most it has used at once';
comment on column tensile.stat_device_jobs.updated_at is 'when this was written';
comment on column tensile.stat_link.host is 'machine that the device is in';
comment on column tensile.stat_link.device is 'kind of device';
comment on column tensile.stat_link.way is 'out: from the device to its host; in: from the host to the device';
comment on column tensile.stat_link.beside is 'whether the other lane copied as much at the same time';
comment on column tensile.stat_link.size_bytes is 'size of each copy';
comment on column tensile.stat_link.latency_us is 'one copy on free lanes, until the host knows of its end';
comment on column tensile.stat_link.copy_us is 'what each of several copies in a row adds';
comment on column tensile.stat_link.mb_per_s is 'bandwidth of copies of this size in a row, in units of 10^6 bytes';
comment on column tensile.stat_link.emulated_mb_per_s is 'what an emulated link is set to; null for a real one';
comment on column tensile.stat_link.measured_at is 'when it was measured';
comment on column tensile.stat_workers.worker_id is 'the worker';
comment on column tensile.stat_workers.host is 'machine that it runs on';
comment on column tensile.stat_workers.pid is 'its process there';
comment on column tensile.stat_workers.device is 'kind of its device';
comment on column tensile.stat_workers.version is 'version of its code';
comment on column tensile.stat_workers.service_name is 'name of its service''s socket; null while none answers';
comment on column tensile.stat_workers.alive is 'whether it has beaten within its lease';
comment on column tensile.stat_workers.jobs is 'jobs that it has, all users'' together';
comment on column tensile.stat_workers.lease is 'time without a heartbeat after which its jobs are rescued';
comment on column tensile.stat_workers.started_at is 'when it began';
comment on column tensile.stat_workers.heartbeat_at is 'its last heartbeat';
comment on column tensile.stat_workers.stopped_at is 'when it left or was found to be gone';
comment on column tensile.stat_plan.job_id is 'the job';
comment on column tensile.stat_plan.model is 'model that it trains';
comment on column tensile.stat_plan.owner is 'who asked for it';
comment on column tensile.stat_plan.attempt is 'attempt that the plan was made for';
comment on column tensile.stat_plan.generation is 'number of the plan within the attempt';
comment on column tensile.stat_plan.reason is 'why it was made: start, another job''s start or end, drift';
comment on column tensile.stat_plan.policy is 'policy that made it';
comment on column tensile.stat_plan.vanilla_peak_bytes is
  'peak if nothing were freed before the end of the iteration';
comment on column tensile.stat_plan.liveness_peak_bytes is 'peak if every tensor were freed after its last access';
comment on column tensile.stat_plan.floor_bytes is 'least peak that any plan could have';
comment on column tensile.stat_plan.predicted_peak_bytes is 'peak of the plan, by simulation';
comment on column tensile.stat_plan.measured_peak_bytes is 'peak on the device';
comment on column tensile.stat_plan.predicted_iteration_ms is 'time of one iteration, by simulation';
comment on column tensile.stat_plan.measured_iteration_ms is 'mean time of one iteration, weighted towards the latest';
comment on column tensile.stat_plan.predicted_stall_ms is 'part of it spent waiting for copies, by simulation';
comment on column tensile.stat_plan.measured_stall_ms is 'part of it spent waiting for copies, measured';
comment on column tensile.stat_plan.swaps is 'tensors that leave the device in each iteration';
comment on column tensile.stat_plan.swapped_bytes is 'their size together';
comment on column tensile.stat_plan.recomputed is 'operators that run again in each iteration';
comment on column tensile.stat_plan.planning_ms is 'time that planning took';
comment on column tensile.stat_plan.created_at is 'when it was made';
comment on column tensile.stat_plan.adopted_at is 'when the trainer began to follow it';
comment on column tensile.stat_latency.device is 'kind of device';
comment on column tensile.stat_latency.operator is 'name of the operator';
comment on column tensile.stat_latency.signature is 'digest of its kind, shapes and types';
comment on column tensile.stat_latency.samples is 'how many measurements are in the average';
comment on column tensile.stat_latency.measured_us is 'its latency: a moving average';
comment on column tensile.stat_latency.predicted_us is 'what was predicted before it was measured';
comment on column tensile.stat_latency.error is
  'how far the prediction was off, as a part of the measured latency; above 0 it was too long';
comment on column tensile.stat_latency.workspace_bytes is 'the most memory it took beside its outputs';
comment on column tensile.stat_latency.updated_at is 'when it was last measured';
comment on column tensile.model_list.model is 'name of the model';
comment on column tensile.model_list.owner is 'who owns it';
comment on column tensile.model_list.versions is 'how many versions it has';
comment on column tensile.model_list.deployed is 'number of the version that predicts';
comment on column tensile.model_list.task is 'what it learned';
comment on column tensile.model_list.target is 'column that it predicts';
comment on column tensile.model_list.metric_name is 'name of the metric of the deployed version';
comment on column tensile.model_list.metric is 'that metric on the held-out rows';
comment on column tensile.model_list.parameters is 'count of the deployed version''s trained numbers';
comment on column tensile.model_list.created_at is 'when it was defined or first trained';
comment on column tensile.model_list.trained_at is 'when its last version was published';

grant select on tensile.stat_progress_train, tensile.stat_jobs, tensile.stat_queue, tensile.stat_device,
  tensile.stat_device_jobs, tensile.stat_link, tensile.stat_workers, tensile.stat_plan, tensile.stat_latency,
  tensile.model_list
  to tensile_user, tensile_monitor, tensile_worker;
