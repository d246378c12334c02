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
  slots integer not null default 8,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  stopped_at timestamptz,
  constraint workers_lease_is_positive check (lease_s > 0),
  constraint workers_have_slots check (slots > 0)
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
comment on column tensile.workers.slots is 'most jobs that it has at once: what quotas divide among owners';
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
create index jobs_queued_by_owner on tensile.jobs (owner_oid, priority desc, job_id) where state = 'queued';
create index jobs_queued_ids on tensile.jobs (owner_oid, job_id) where state = 'queued';
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

-- The planner's settings: whatever the statistics say, and a queue's are always out of date, the next job is found by
-- walking an index in its order, not by sorting all that wait.
--
-- Owners that have as many jobs as their quota allows are passed over, and so are those whom the worker names. Where
-- nobody is passed over, the first job of the queue is taken. Otherwise the owners that wait are found by one look into
-- the index for each, so that it does not matter how many jobs of the others wait.
create function tensile.claim_job(worker bigint, passed_over oid[] default '{}') returns setof tensile.jobs
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set enable_sort = off
  set enable_incremental_sort = off
  set enable_bitmapscan = off
  set enable_seqscan = off
  set jit = off  -- a sort that cannot be avoided counts as so dear that the statement would be compiled, for 0.6 s
as $$
declare
  aside oid[] := claim_job.passed_over || tensile.owners_at_limit(0);
  next_owner oid;
  next_job bigint;
begin
  if not exists (select from tensile.workers as w where w.worker_id = claim_job.worker and w.stopped_at is null) then
    return;
  end if;
  if aside = '{}' then
    select q.job_id, q.owner_oid into next_job, next_owner from tensile.jobs as q
     where q.state = 'queued' and (q.not_before is null or q.not_before <= now())
       and q.installation = (select tensile.installation())
     order by q.priority desc, q.job_id
       for update skip locked limit 1;
  else
    for next_owner in select h.owner_oid from tensile.queue_heads(aside) as h loop
      select q.job_id into next_job from tensile.jobs as q
       where q.owner_oid >= next_owner and q.owner_oid <= next_owner  -- see tensile.queue_heads()
         and q.state = 'queued' and (q.not_before is null or q.not_before <= now())
         and q.installation = (select tensile.installation())
       order by q.owner_oid, q.priority desc, q.job_id
         for update skip locked limit 1;
      exit when next_job is not null;
    end loop;
  end if;
  if next_job is null then
    return;
  end if;
  -- Two workers could give one owner's last place away at once: the row of the oldest worker, which no user can lock,
  -- lets one of them count after the other. The job that is not taken now is taken by the next claim.
  if next_owner = any (tensile.owners_at_limit(1, next_owner)) then
    perform from tensile.workers as w
      where w.worker_id = (select min(v.worker_id) from tensile.workers as v where v.stopped_at is null)
        for no key update;
    if next_owner = any (tensile.owners_at_limit(0)) then
      return;
    end if;
  end if;
  return query
  update tensile.jobs as j
     set state = 'starting', phase = null, attempt = j.attempt + 1, worker_id = claim_job.worker,
         claim = nextval('tensile.claim_seq'),  -- every later write must carry it
         waits_for = null, not_before = null, started_at = coalesce(j.started_at, now())
   where j.job_id = next_job  -- which is locked, and still queued
  returning j.*;
end
$$;
comment on function tensile.claim_job(bigint, oid[]) is
  'hands the oldest queued job of the highest priority to a worker, of the owners that their quotas let have one more '
  'and that are not passed over; workers never wait for each other''s jobs';

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
