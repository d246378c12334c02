-- What is remembered: models and their versions, the queue, workers and devices, plans and latencies.

-- Settings ---------------------------------------------------------------------------------------------------

create table tensile.settings (
  name text primary key,
  value jsonb not null,
  changed_at timestamptz not null default now(),
  changed_by name not null default current_user
);
comment on table tensile.settings is 'what an administrator has set; a setting that is not here has its default: see setting_list';
comment on column tensile.settings.name is 'name of the setting, such as socket_directory';
comment on column tensile.settings.value is 'its value';
comment on column tensile.settings.changed_at is 'when it was last set';
comment on column tensile.settings.changed_by is 'who set it';

-- Models -----------------------------------------------------------------------------------------------------

create table tensile.models (
  model_id bigint generated always as identity primary key,
  name text not null,
  owner_oid oid not null default tensile.current_role_oid(),
  owner_name name not null default current_user,
  definition jsonb,
  last_spec jsonb,
  installation uuid not null default tensile.installation(),
  created_at timestamptz not null default now(),
  dropped_at timestamptz,
  constraint models_name_is_short check (length(name) between 1 and 200),
  -- Names appear in logs and terminals: no control characters, line separators or marks of text direction.
  constraint models_name_is_printable
    check (name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]')
);
create unique index models_name on tensile.models (name) where dropped_at is null;
create index models_dropped on tensile.models (model_id) where dropped_at is not null;
comment on table tensile.models is
  'a model: a name and an owner; each successful training adds a version. Enqueuing a training reserves the name: '
  'a row without definition and versions is such a reservation';
comment on column tensile.models.model_id is 'number of the model';
comment on column tensile.models.name is 'its name, unique among models that are not dropped';
comment on column tensile.models.owner_oid is
  'role that may train, deploy and drop it; the number means that role in the database of the column installation only';
comment on column tensile.models.owner_name is
  'name of that role for display and for copies of the database; see tensile.adopt_owners()';
comment on column tensile.models.definition is
  'architecture and hyperparams of tensile_create_model; null where no network was defined';
comment on column tensile.models.last_spec is 'specification of the last successful run: what arguments left out mean';
comment on column tensile.models.installation is 'database that owner_oid belongs to; see tensile.adopt_owners()';
comment on column tensile.models.created_at is 'when it was made';
comment on column tensile.models.dropped_at is
  'when it was dropped: nobody sees it from then on, and tensile.delete_dropped() deletes it with its versions';

create table tensile.model_versions (
  version_id bigint generated always as identity primary key,
  model_id bigint not null references tensile.models on delete cascade,
  number integer not null,
  job_id bigint,
  task tensile.task not null,
  target text not null,
  architecture jsonb not null,
  metric_name text,
  metric double precision,
  higher_is_better boolean,
  metrics jsonb not null default '{}',
  parameters bigint not null,
  weights_bytes bigint not null,
  weights_digest text,
  relation_oid oid,
  relation_schema text,
  relation_name text,
  data_digest text,
  created_at timestamptz not null default now(),
  deployed boolean not null default false,
  constraint model_versions_number unique (model_id, number),
  constraint model_versions_number_is_positive check (number > 0),
  constraint model_versions_sizes_are_counts check (parameters >= 0 and weights_bytes >= 0),
  constraint model_versions_digests_are_sha256 check (weights_digest ~ '^[0-9a-f]{64}$'),
  constraint model_versions_metric_has_a_direction
    check (metric is null or (metric_name is not null and higher_is_better is not null))
);
create unique index model_versions_one_is_deployed on tensile.model_versions (model_id) where deployed;
create index model_versions_job on tensile.model_versions (job_id);
comment on table tensile.model_versions is
  'one trained network of a model; its weights are in artifacts, its preprocessing in version_bundles';
comment on column tensile.model_versions.version_id is 'number of the version among all models';
comment on column tensile.model_versions.model_id is 'the model it belongs to';
comment on column tensile.model_versions.number is 'number of the version within its model, from 1';
comment on column tensile.model_versions.job_id is 'job that trained it; kept when the job''s row is gone';
comment on column tensile.model_versions.task is 'what it learned';
comment on column tensile.model_versions.target is 'column that it predicts';
comment on column tensile.model_versions.architecture is 'its network, declaratively';
comment on column tensile.model_versions.metric_name is 'name of the metric that judges it';
comment on column tensile.model_versions.metric is 'that metric on the held-out rows';
comment on column tensile.model_versions.higher_is_better is 'direction of the metric';
comment on column tensile.model_versions.metrics is 'all figures that were computed on the held-out rows, by name';
comment on column tensile.model_versions.parameters is 'count of its trained numbers';
comment on column tensile.model_versions.weights_bytes is 'size of its weights';
comment on column tensile.model_versions.weights_digest is
  'SHA-256 of its weights, in hexadecimal: weights of another digest are not loaded; null for a version of release 0.1';
comment on column tensile.model_versions.relation_oid is 'table that it was trained on';
comment on column tensile.model_versions.relation_schema is 'schema of that table at the time';
comment on column tensile.model_versions.relation_name is 'name of that table at the time';
comment on column tensile.model_versions.data_digest is 'digest of the rows that it was trained on';
comment on column tensile.model_versions.created_at is 'when it was published';
comment on column tensile.model_versions.deployed is 'predictions that name no version use it; at most one per model';

-- Apart from model_versions, which everybody sees who may predict with the model: a bundle holds values of the
-- training data, such as the texts of a column and means.
create table tensile.version_bundles (
  version_id bigint primary key references tensile.model_versions on delete cascade,
  bundle jsonb not null
);
comment on table tensile.version_bundles is
  'what turns a row into a prediction of a version; it holds values of the training data, so only the model''s owner and '
  'the worker may read it';
comment on column tensile.version_bundles.version_id is 'the version';
comment on column tensile.version_bundles.bundle is 'preprocessing and labels, with categories and means of the training data';

create table tensile.model_privileges (
  model_id bigint not null references tensile.models on delete cascade,
  owner_oid oid not null,
  grantee_oid oid not null,
  grantee_name name not null,
  privilege text not null default 'predict',
  granted_by name not null default current_user,
  granted_at timestamptz not null default now(),
  revoked_at timestamptz,
  installation uuid not null default tensile.installation(),
  primary key (model_id, grantee_oid, privilege),
  constraint model_privileges_are_known check (privilege in ('predict'))
);
create index model_privileges_grantee on tensile.model_privileges (grantee_oid);
create index model_privileges_revoked on tensile.model_privileges (model_id) where revoked_at is not null;
comment on table tensile.model_privileges is 'who else may use a model';
comment on column tensile.model_privileges.model_id is 'the model';
comment on column tensile.model_privileges.owner_oid is 'owner of the model: a trigger sets it, and policies read it';
comment on column tensile.model_privileges.grantee_oid is 'role that may use it; 0 is everybody';
comment on column tensile.model_privileges.grantee_name is
  'name of that role for display and for copies of the database; public for everybody';
comment on column tensile.model_privileges.privilege is 'predict: see the model and predict with it';
comment on column tensile.model_privileges.granted_by is 'role that granted it: the owner at the time';
comment on column tensile.model_privileges.granted_at is 'when it was granted';
comment on column tensile.model_privileges.revoked_at is
  'when it was revoked: it has no effect from then on, and tensile.delete_dropped() deletes it';
comment on column tensile.model_privileges.installation is
  'database that owner_oid and grantee_oid belong to; see tensile.adopt_owners()';

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
  beats bigint not null default 0,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  stopped_at timestamptz,
  took_leave boolean not null default false,
  constraint workers_lease_is_positive check (lease_s > 0),
  constraint workers_have_slots check (slots > 0),
  constraint workers_service_name_is_a_name check (service_name ~ '^[A-Za-z0-9][A-Za-z0-9._-]*$')
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
comment on column tensile.workers.beats is
  'count of its heartbeats; a controller that sees it unchanged for lease_s, on its own monotonic clock, '
  'declares the worker dead';
comment on column tensile.workers.slots is 'most jobs that it has at once: what quotas divide among owners';
comment on column tensile.workers.started_at is 'when it registered';
comment on column tensile.workers.heartbeat_at is
  'its last heartbeat by the database''s clock, for display: a step of that clock makes nobody dead';
comment on column tensile.workers.stopped_at is 'when it left, or was found to be gone; it claims nothing from then on';
comment on column tensile.workers.took_leave is 'it said itself that it stops; otherwise it died, or was cut off';

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
  faults integer not null default 0,
  interruptions integer not null default 0,
  interrupted interval not null default '0',
  progress_at timestamptz,
  last_death_phase text,
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
  constraint jobs_spec_is_small check (pg_column_size(spec) <= 262144),
  constraint jobs_model_name_is_short check (length(model_name) between 1 and 200),
  constraint jobs_model_name_is_printable
    check (model_name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'),
  constraint jobs_idempotency_key_is_short check (length(idempotency_key) between 1 and 200),
  constraint jobs_idempotency_key_is_printable
    check (idempotency_key !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'),
  constraint jobs_priority_is_bounded check (priority between -1000 and 1000),
  constraint jobs_attempts_are_bounded check (max_attempts between 1 and 100 and faults between 0 and max_attempts),
  constraint jobs_attempts_are_counts check (attempt >= 0 and interruptions >= 0 and interrupted >= interval '0'),
  constraint jobs_have_a_worker_while_active check ((state in ('starting', 'running')) = (worker_id is not null)),
  constraint jobs_have_a_claim_while_active check (state not in ('starting', 'running') or claim is not null),
  constraint jobs_have_a_phase_only_while_active check (phase is null or state in ('starting', 'running')),
  constraint jobs_end_once check ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
  constraint jobs_that_fail_say_why check (state <> 'failed' or error_message is not null),
  constraint jobs_that_do_not_succeed_publish_nothing check (version_id is null or state = 'succeeded')
) with (fillfactor = 80);
create index jobs_queued on tensile.jobs (priority desc, job_id) where state = 'queued';
-- Active jobs, by a constraint; said so because a foreign key's own check asks for a worker_id and no state.
create index jobs_active on tensile.jobs (worker_id) where worker_id is not null;
create index jobs_finished on tensile.jobs (finished_at, job_id) where finished_at is not null;
create index jobs_queued_by_owner on tensile.jobs (owner_oid, priority desc, job_id) where state = 'queued';
create index jobs_queued_ids on tensile.jobs (owner_oid, job_id) where state = 'queued';
create index jobs_owner on tensile.jobs (owner_oid, job_id);
create index jobs_model on tensile.jobs (model_name, job_id);
create index jobs_model_owner on tensile.jobs (model_name, owner_oid) where state in ('queued', 'starting', 'running');
create index jobs_version on tensile.jobs (version_id) where version_id is not null;
create unique index jobs_idempotency on tensile.jobs (owner_oid, installation, idempotency_key)
  where idempotency_key is not null;
comment on table tensile.jobs is 'the queue, and what became of each training that was asked for';
comment on column tensile.jobs.job_id is 'number of the job: what tensile_train returns';
comment on column tensile.jobs.model_name is 'model that gets a new version; enqueuing reserves a new name';
comment on column tensile.jobs.owner_oid is
  'role that asked for it, and whose privileges it needs; the number means that role in the database of the column '
  'installation only';
comment on column tensile.jobs.owner_name is
  'name of that role for display and for copies of the database; see tensile.adopt_owners()';
comment on column tensile.jobs.relation_oid is 'table to train on; another table of the same name is an error';
comment on column tensile.jobs.relation_schema is 'schema of that table when the job was enqueued';
comment on column tensile.jobs.relation_name is 'name of that table when the job was enqueued';
comment on column tensile.jobs.spec is 'the whole request, resolved: the JSON of indb_tensile.job.JobSpec';
comment on column tensile.jobs.state is 'where it is; every change is guarded by the state before and notifies';
comment on column tensile.jobs.phase is 'what it is doing while starting or running';
comment on column tensile.jobs.priority is 'higher goes first; equal ones go in order of job_id';
comment on column tensile.jobs.attempt is 'how often it was claimed, the present claim included';
comment on column tensile.jobs.max_attempts is 'a job with this many faults since its last checkpoint fails';
comment on column tensile.jobs.faults is
  'attempts since its last checkpoint that ended by a fault of the job itself; so counts the second time, and each '
  'later one, that its controller died or its trainer hung in the same phase';
comment on column tensile.jobs.interruptions is
  'attempts since its last checkpoint that were interrupted through no fault of the job; the pause before the next '
  'attempt grows with them';
comment on column tensile.jobs.interrupted is
  'time that interruptions have cost it since its last checkpoint: of the attempts themselves, and of the pauses '
  'after them; the controller''s setting interrupted_s bounds it';
comment on column tensile.jobs.progress_at is 'when the present attempt began, or saved its last checkpoint';
comment on column tensile.jobs.last_death_phase is
  'phase in which its controller last died or its trainer last hung, since its last checkpoint';
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
comment on column tensile.jobs.not_before is
  'earliest time of the next claim, as asked for or as a pause after an interruption, by the database''s clock: a step of '
  'that clock delays or hastens the claim, and does nothing else';
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
create index job_events_at on tensile.job_events (at);
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

-- A job has at most one checkpoint in the catalog, and one in files on each host that has trained it. Bytes in files
-- cost no WAL: a state of 148 MB every 30 s, in the catalog, was 530 GB of WAL a day.
create table tensile.checkpoints (
  job_id bigint not null references tensile.jobs on delete cascade,
  store tensile.checkpoint_store not null,
  host text not null,
  position jsonb not null,
  size_bytes bigint not null,
  digest text not null,
  saved_at timestamptz not null default now(),
  primary key (job_id, store, host),
  constraint checkpoints_in_files_have_a_host check ((store = 'local') = (host <> '')),
  constraint checkpoints_sizes_are_counts check (size_bytes >= 0),
  constraint checkpoints_digests_are_sha256 check (digest ~ '^[0-9a-f]{64}$')
);
comment on table tensile.checkpoints is
  'where an interrupted job goes on: one row for each store that holds a checkpoint; rows are deleted when the job ends';
comment on column tensile.checkpoints.job_id is 'the job';
comment on column tensile.checkpoints.store is 'where its bytes are: a file on one host, or checkpoint_chunks';
comment on column tensile.checkpoints.host is
  'host that has the file, in the state directory of its controller; empty for the catalog, which every host reads';
comment on column tensile.checkpoints.position is 'epoch and whatever else tells where in the training it was taken';
comment on column tensile.checkpoints.size_bytes is 'size of weights, optimizer and random state together';
comment on column tensile.checkpoints.digest is 'SHA-256 of its bytes; a checkpoint of another digest is not loaded';
comment on column tensile.checkpoints.saved_at is 'when it was saved';

-- Rewritten often, so apart from artifacts, which then never bloats. Deleted rows leave space for the next checkpoint
-- as soon as VACUUM has seen them: it comes after the first dead rows, whatever the size of the table.
-- 50 rewrites of 21 MB with a VACUUM after each keep 44 MB here and 57 MB in a large object, at equal WAL: 24 MB for each
-- rewrite, 45 MB where a database checkpoint comes between. A table for each job, truncated, keeps 22 MB and takes 23 MB
-- of WAL, but needs DDL by the worker, whose locks stop every reader.
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
alter table tensile.checkpoint_chunks alter column chunk set storage external;  -- as in artifacts
comment on table tensile.checkpoint_chunks is 'bytes of checkpoints in the catalog, in chunks of at most 8 MB';
comment on column tensile.checkpoint_chunks.job_id is 'the job';
comment on column tensile.checkpoint_chunks.chunk_no is 'place of the chunk, from 0';
comment on column tensile.checkpoint_chunks.chunk is 'its bytes';

create table tensile.artifacts (
  artifact_id bigint generated always as identity primary key,
  version_id bigint not null references tensile.model_versions on delete cascade,
  chunk_no integer not null,
  chunk bytea not null,
  constraint artifacts_chunks_count_from_zero check (chunk_no >= 0),
  constraint artifacts_chunks_are_bounded check (octet_length(chunk) <= 8388608)
);
-- Weights are dense floats: compressing them costs time and saves nothing.
alter table tensile.artifacts alter column chunk set storage external;
create unique index artifacts_version on tensile.artifacts (version_id, chunk_no);
comment on table tensile.artifacts is 'weights of versions, in chunks of at most 8 MB';
comment on column tensile.artifacts.artifact_id is 'number of the chunk among all';
comment on column tensile.artifacts.version_id is 'version whose weights (safetensors) it is part of';
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
create index plans_created on tensile.plans (created_at);
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

create function tensile.may_train(owner oid) returns boolean
  language sql stable parallel safe
  return pg_catalog.pg_has_role(owner, 'tensile_user'::name, 'usage');
comment on function tensile.may_train(oid) is
  'whether this role has the privileges of tensile_user now; a role that was dropped has none';

create function tensile.why_not_trained(owner oid, stored_name name) returns text
  language sql stable parallel safe
  return coalesce((select 'role "' || r.rolname || '" may no longer train: it is not a member of tensile_user'
                     from pg_catalog.pg_roles as r where r.oid = owner),
                  'role "' || stored_name || '", which enqueued the job, no longer exists');
comment on function tensile.why_not_trained(oid, name) is 'the error of a job whose owner may train no longer';

-- The planner's settings: whatever the statistics say, and a queue's are always out of date, the next job is found by
-- walking an index in its order, not by sorting all that wait.
--
-- Owners that have as many jobs as their quota allows are passed over, and so are those whom the worker names. Where
-- nobody is passed over, the first job of the queue is taken. Otherwise the owners that wait are found by one look into
-- the index for each, so that it does not matter how many jobs of the others wait.
--
-- A job whose owner may train no longer is never handed out: all that this role has queued fails, in portions.
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
  for portion in 1..5 loop
    next_job := null;
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
    exit when tensile.may_train(next_owner);
    with unentitled as (
      select q.job_id from tensile.jobs as q
       where q.owner_oid = next_owner and q.state = 'queued' and q.installation = (select tensile.installation())
       order by q.job_id
         for update skip locked limit 1000
    )
    update tensile.jobs as j
       set state = 'failed', waits_for = null, not_before = null, finished_at = now(), error_sqlstate = '42501',
           error_message = tensile.why_not_trained(j.owner_oid, j.owner_name), error_detail = null,
           error_hint = 'As an administrator: grant tensile_user to the role. Then train again.'
      from unentitled where j.job_id = unentitled.job_id;
    next_job := null;
  end loop;
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
         progress_at = now(), waits_for = null, not_before = null, started_at = coalesce(j.started_at, now())
   where j.job_id = next_job  -- which is locked, and still queued
  returning j.*;
end
$$;
comment on function tensile.claim_job(bigint, oid[]) is
  'hands the oldest queued job of the highest priority to a worker, of the owners that their quotas let have one more '
  'and that are not passed over; workers never wait for each other''s jobs';

-- Copies of a database -------------------------------------------------------------------------------------

-- In a copy of the database on another cluster, oids of roles mean nothing and names do. Within one cluster it is the
-- other way round: a new role of an old name must not get what the renamed one owns. So rows of this database keep their
-- oids, and only the names beside them follow; rows of another database go by oid where that database is in this
-- cluster, else by name; and those whose role does not exist here stay nobody's.
create function tensile.role_here(role_oid oid, stored_name name, stored_installation uuid) returns oid
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select r.oid from pg_roles as r
   where case when exists (select from pg_control_system() as c, pg_database as d
                            where md5(c.system_identifier::text || '/' || d.oid::text)::uuid = stored_installation)
              then r.oid = role_oid else r.rolname = stored_name end
$$;
comment on function tensile.role_here(oid, name, uuid) is
  'role of this cluster that is meant by an oid and a name that were stored in that database; null where there is none';

-- Rows that somebody has locked are left for the next time: no user's lock keeps a worker from starting.
create function tensile.adopt_owners() returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  here constant uuid := tensile.installation();
  adopted bigint := 0;
  more bigint;
begin
  update tensile.models as m set owner_name = f.rolname
    from (select n.model_id, r.rolname from tensile.models as n join pg_roles as r on r.oid = n.owner_oid
           where n.installation = here and n.owner_name <> r.rolname for no key update of n skip locked) as f
   where m.model_id = f.model_id;
  update tensile.model_privileges as p set grantee_name = f.rolname
    from (select q.model_id, q.grantee_oid, q.privilege, r.rolname
            from tensile.model_privileges as q join pg_roles as r on r.oid = q.grantee_oid
           where q.installation = here and q.grantee_name <> r.rolname for no key update of q skip locked) as f
   where (p.model_id, p.grantee_oid, p.privilege) = (f.model_id, f.grantee_oid, f.privilege);
  update tensile.jobs as j set owner_name = f.rolname
    from (select k.job_id, r.rolname from tensile.jobs as k join pg_roles as r on r.oid = k.owner_oid
           where k.installation = here and k.owner_name <> r.rolname for no key update of k skip locked) as f
   where j.job_id = f.job_id;

  update tensile.model_privileges as p
     set owner_oid = f.owner, grantee_oid = f.grantee, installation = here
    from (select q.model_id, q.grantee_oid, q.privilege,
                 tensile.role_here(m.owner_oid, m.owner_name, m.installation) as owner,
                 case when q.grantee_oid = 0 then 0
                      else tensile.role_here(q.grantee_oid, q.grantee_name, q.installation) end as grantee
            from tensile.model_privileges as q join tensile.models as m using (model_id)
           where q.installation <> here
             and not exists (select from tensile.model_privileges as twin  -- of a role that has the name of a renamed one
                              where twin.model_id = q.model_id and twin.privilege = q.privilege
                                and twin.grantee_name = q.grantee_name and twin.grantee_oid < q.grantee_oid)
             for no key update of q skip locked) as f
   where (p.model_id, p.grantee_oid, p.privilege) = (f.model_id, f.grantee_oid, f.privilege)
     and f.owner is not null and f.grantee is not null;
  get diagnostics adopted = row_count;
  update tensile.models as m set owner_oid = f.owner, installation = here
    from (select n.model_id, tensile.role_here(n.owner_oid, n.owner_name, n.installation) as owner
            from tensile.models as n where n.installation <> here for no key update skip locked) as f
   where m.model_id = f.model_id and f.owner is not null;
  get diagnostics more = row_count;
  adopted := adopted + more;
  update tensile.jobs as j set owner_oid = f.owner, installation = here
    from (select k.job_id, tensile.role_here(k.owner_oid, k.owner_name, k.installation) as owner
            from tensile.jobs as k
           where k.installation <> here and k.state in ('succeeded', 'failed', 'cancelled')
             for no key update skip locked) as f
   where j.job_id = f.job_id and f.owner is not null;
  get diagnostics more = row_count;
  return adopted + more;
end
$$;
comment on function tensile.adopt_owners() is
  'gives what came with a copy of another database to the roles of the same names here, and writes the present names of '
  'roles beside their oids; every worker does so when it starts. Queued jobs are left out: see tensile.adopt_jobs()';

create function tensile.adopt_jobs() returns bigint
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  with adopted as (
    update tensile.jobs as j set owner_oid = f.owner, installation = tensile.installation()
      from (select k.job_id, tensile.role_here(k.owner_oid, k.owner_name, k.installation) as owner
              from tensile.jobs as k
             where k.installation <> (select tensile.installation()) and k.state = 'queued') as f
     where j.job_id = f.job_id and f.owner is not null
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
comment on function tensile.back_off(integer) is
  'how long a job waits after its n-th fault or interruption since its last checkpoint';

-- What becomes of an interrupted attempt. Whose fault it was, `blame`, is that of indb_tensile.job.Blame.
create function tensile.after_interruption(
  job tensile.jobs, blame text, reason text, ended_at timestamptz, limit_s double precision,
  out state tensile.job_state, out counts boolean, out faults integer, out interruptions integer,
  out interrupted interval, out last_death_phase text, out not_before timestamptz, out message text, out hint text
)
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  died_in constant text := coalesce(job.phase::text, 'starting');
  pause interval;
  expired boolean;
begin
  counts := blame = 'job' or blame = 'unclear' and job.last_death_phase is not distinct from died_in;
  faults := job.faults + counts::integer;
  interruptions := job.interruptions + (not counts)::integer;
  last_death_phase := case blame when 'unclear' then died_in else job.last_death_phase end;
  pause := tensile.back_off(faults + interruptions);
  interrupted := job.interrupted + greatest(ended_at - coalesce(job.progress_at, ended_at), interval '0') + pause;
  expired := not counts and limit_s > 0 and interrupted > make_interval(secs => limit_s);
  state := case when job.cancel_requested then 'cancelled'
                when faults >= job.max_attempts or expired then 'failed'
                else 'queued' end;
  not_before := case when state = 'queued' then now() + pause end;
  message := reason;
  if expired then
    message := format('job %s was interrupted %s times without a checkpoint in between, which cost it %s; the last time: %s',
                      job.job_id, interruptions, date_trunc('second', interrupted), reason);
    hint := 'Remove the cause of the interruptions and train again. '
            'The controller''s setting interrupted_s says how long a job may be interrupted.';
  end if;
end
$$;
comment on function tensile.after_interruption(tensile.jobs, text, text, timestamptz, double precision) is
  'what becomes of a job whose attempt was interrupted: its next state, whether it counts as the job''s own fault, and the pause';

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

-- What a request may not be, as far as SQL can tell cheaply; a worker checks the rest before it believes anything.
create function tensile.spec_fault(spec jsonb) returns text
  language plpgsql immutable parallel safe
  set search_path = pg_catalog, pg_temp
as $$
declare
  fault text;
begin
  if jsonb_typeof(spec) is distinct from 'object' then
    return 'it is not a JSON object';
  elsif octet_length(spec::text) > 262144 then
    return format('it has %s bytes, more than 262144', octet_length(spec::text));
  elsif spec @? '$.**{33}' then
    return 'it is nested deeper than 32 levels';
  elsif spec @? '$.** ? (@.type() == "number" && (@ > 9223372036854775807 || @ < -9223372036854775808))' then
    return 'it holds a number beyond 64 bits';
  end if;
  select format('"%s" is %s, not %s', k.name, coalesce(jsonb_typeof(spec -> k.name), 'missing'), k.types[1]) into fault
    from (values ('model', '{string}'::text[]), ('relation', '{object}'), ('target', '{string}'), ('task', '{string}'),
                 ('architecture', '{object}'), ('hyperparams', '{object,missing}'),
                 ('features', '{array,"null",missing}'), ('exclude', '{array,missing}'),
                 ('preprocess', '{object,missing}'), ('split', '{object,missing}'), ('metric', '{string,"null",missing}'),
                 ('early_stop', '{object,"null",missing}'), ('memory_limit_bytes', '{number,"null",missing}'),
                 ('max_runtime_s', '{number,"null",missing}'), ('deploy', '{string,missing}')) as k (name, types)
   where coalesce(jsonb_typeof(spec -> k.name), 'missing') <> all (k.types)
   limit 1;
  return case
    when fault is not null then fault
    when spec ->> 'task' not in ('classification', 'regression')
      then format('task is "%s", not classification or regression', spec ->> 'task')
    when spec ->> 'deploy' not in ('if_better', 'always', 'never')
      then format('deploy is "%s", not if_better, always or never', spec ->> 'deploy')
    when jsonb_typeof(spec #> '{architecture,type}') is distinct from 'string'
      then 'architecture has no "type"'
    when spec @? 'strict $.features[*] ? (@.type() != "string")'
         or spec @? 'strict $.exclude[*] ? (@.type() != "string")'
      then 'features and exclude are not lists of column names'
    when spec @? '$.memory_limit_bytes ? (@ < 1 || @ != @.floor())'
      then format('memory_limit_bytes is %s, not a whole number above 0', spec -> 'memory_limit_bytes')
    when spec @? '$.max_runtime_s ? (@ < 1 || @ > 2147483647 || @ != @.floor())'
      then format('max_runtime_s is %s, not a whole number from 1 to 2147483647', spec -> 'max_runtime_s')
  end;
end
$$;
comment on function tensile.spec_fault(jsonb) is
  'why this cannot be the specification of a job, as far as a glance at keys and types tells; null where it may be one';

create function tensile.check_request() returns trigger
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
declare
  fault constant text := tensile.spec_fault(new.spec);
begin
  if fault is not null then
    raise exception 'the specification of the job is refused: %', fault
      using errcode = 'invalid_parameter_value', hint = 'Enqueue jobs with tensile_train, which writes it.';
  end if;
  return new;
end
$$;
comment on function tensile.check_request() is 'trigger: refuses a job whose specification no worker could read';

create trigger jobs_are_requests before insert on tensile.jobs
  for each row when (new.state = 'queued')  -- what has ended, in a restored copy, is history
  execute function tensile.check_request();

-- A name is taken when a training is enqueued, so that publishing neither inserts into models nor waits for a name that
-- another session has not committed. Row-level security hides other users' models: only a definer can tell whether the
-- name is free. The key-share lock waits for a reservation that is being deleted, and not for a publication.
create function tensile.reserve_model() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s'
as $$
declare
  model record;
begin
  for attempt in 1..3 loop
    select m.owner_oid, m.installation into model
      from tensile.models as m where m.name = new.model_name and m.dropped_at is null for key share;
    exit when found;
    begin
      insert into tensile.models (name, owner_oid, owner_name, installation)
      values (new.model_name, new.owner_oid, new.owner_name, new.installation)
      on conflict (name) where dropped_at is null do nothing;
    exception when lock_not_available then
      raise exception 'model "%" is being made by a transaction that has not ended', new.model_name
        using errcode = 'lock_not_available', hint = 'Try again when that transaction has ended, or choose another name.';
    end;
  end loop;
  if model.installation is distinct from new.installation then
    raise exception 'model "%" belongs to a role of another database, of which this one is a copy', new.model_name
      using errcode = 'insufficient_privilege',
            hint = 'A controller that starts here gives the models to the roles of the same names, and so does an '
                   'administrator: select tensile.adopt_owners();';
  elsif model.owner_oid is distinct from new.owner_oid then
    raise exception 'model "%" belongs to another role', new.model_name
      using errcode = 'insufficient_privilege',
            hint = 'Model names are unique in the database: choose another name.';
  end if;
  return new;
end
$$;
comment on function tensile.reserve_model() is
  'trigger: takes the model''s name for the job''s owner; nobody trains a version of another owner''s model';

create trigger jobs_reserve_model before insert on tensile.jobs
  for each row when (new.state = 'queued')  -- what has ended, in a restored copy, is history
  execute function tensile.reserve_model();

create function tensile.is_reservation(model tensile.models) returns boolean
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select model.definition is null and model.last_spec is null and model.dropped_at is null
         and not exists (select from tensile.model_versions as v where v.model_id = model.model_id)
$$;
comment on function tensile.is_reservation(tensile.models) is
  'whether this is only a name, taken by a training that has not published yet';

-- A training that is under way publishes to the model of its name. So a model is neither renamed nor dropped meanwhile,
-- and its new name must be free. The lock waits for a training that is being enqueued at this moment.
create function tensile.check_model_change() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  busy bigint;
begin
  if tg_op = 'UPDATE' and (new.name <> old.name or new.dropped_at is not null and old.dropped_at is null) then
    perform from tensile.models as m where m.model_id = old.model_id for update;
    select j.job_id into busy from tensile.jobs as j
     where j.model_name = old.name and j.owner_oid = old.owner_oid and j.installation = old.installation
       and j.state in ('queued', 'starting', 'running') limit 1;
    if found then
      raise exception 'model "%" is being trained by job %', old.name, busy
        using errcode = 'object_in_use', hint = format('Cancel it first: select tensile_cancel(%s);', busy);
    end if;
  end if;
  if new.dropped_at is null and exists (
       select from tensile.models as m
        where m.name = new.name and m.dropped_at is null
          and (m.owner_oid, m.installation) <> (new.owner_oid, new.installation)) then
    raise exception 'model "%" belongs to another role', new.name
      using errcode = 'insufficient_privilege',
            hint = 'Model names are unique in the database: choose another name.';
  end if;
  return new;
end
$$;
comment on function tensile.check_model_change() is
  'trigger: refuses a name of another owner''s model, and a new name or a drop while a training is under way';

create trigger models_may_change before insert or update of name, dropped_at on tensile.models
  for each row when (new.installation = tensile.installation())  -- not what a restored copy brings
  execute function tensile.check_model_change();

-- Policies of model_privileges read this column: could they read models, whose policies read model_privileges, the two
-- would go in a circle.
create function tensile.complete_privilege() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    new.owner_oid := (select m.owner_oid from tensile.models as m
                       where m.model_id = new.model_id and m.installation = new.installation and m.dropped_at is null);
  elsif new.revoked_at is null and old.revoked_at is not null then
    new.granted_at := now();
  end if;
  return new;
end
$$;
comment on function tensile.complete_privilege() is 'trigger: writes the owner of the model into a grant of it';

create trigger model_privileges_have_an_owner before insert or update of revoked_at on tensile.model_privileges
  for each row when (new.installation = tensile.installation())  -- not what a restored copy brings
  execute function tensile.complete_privilege();

create function tensile.delete_dropped(most integer default 1000) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  deleted bigint;
  rows_deleted bigint;
begin
  delete from tensile.artifacts as a using (
    select c.artifact_id
      from tensile.models as m
      join tensile.model_versions as v on v.model_id = m.model_id
      join tensile.artifacts as c on c.version_id = v.version_id
     where m.dropped_at is not null
     limit most) as chunk
   where a.artifact_id = chunk.artifact_id;
  get diagnostics deleted = row_count;

  delete from tensile.models as m using (
    select d.model_id from tensile.models as d
     where d.dropped_at is not null
       and not exists (select from tensile.model_versions as v join tensile.artifacts as c using (version_id)
                        where v.model_id = d.model_id)
     limit greatest(most - deleted, 0) for update skip locked) as dead
   where m.model_id = dead.model_id;
  get diagnostics rows_deleted = row_count;
  deleted := deleted + rows_deleted;

  delete from tensile.model_privileges as p using (
    select q.model_id, q.grantee_oid, q.privilege from tensile.model_privileges as q
     where q.revoked_at is not null
     limit greatest(most - deleted, 0) for update skip locked) as dead
   where (p.model_id, p.grantee_oid, p.privilege) = (dead.model_id, dead.grantee_oid, dead.privilege);
  get diagnostics rows_deleted = row_count;
  deleted := deleted + rows_deleted;

  -- Reservations whose training ended while somebody had locked them, or was never committed.
  delete from tensile.models as m using (
    select d.model_id from tensile.models as d
     where d.definition is null and d.last_spec is null and tensile.is_reservation(d)
       and not exists (select from tensile.jobs as j
                        where j.model_name = d.name and j.state in ('queued', 'starting', 'running'))
     limit greatest(most - deleted, 0) for update skip locked) as stale
   where m.model_id = stale.model_id;
  get diagnostics rows_deleted = row_count;
  return deleted + rows_deleted;
end
$$;
comment on function tensile.delete_dropped(integer) is
  'deletes at most so many rows of dropped models, revoked grants and names that no training needs any more; '
  'returns how many: call it again until it returns 0';

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
  set enable_bitmapscan = off  -- whatever the statistics say, the queue is looked into by its indexes
  set enable_seqscan = off
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

  with ended as (
    select n.job_id from after_change as n where n.state in ('succeeded', 'failed', 'cancelled')
  ), chunks as (
    delete from tensile.checkpoint_chunks as k using ended where k.job_id = ended.job_id
  )
  delete from tensile.checkpoints as c using ended where c.job_id = ended.job_id;

  -- The last training of a name that never got a version frees the name. A row that somebody has locked waits for
  -- tensile.delete_dropped().
  if exists (select from after_change as n where n.state in ('failed', 'cancelled')) then
    delete from tensile.models as m using (
      select r.model_id
        from before_change as o
        join after_change as n using (job_id)
        join tensile.models as r on r.name = n.model_name and r.owner_oid = n.owner_oid
       where o.state <> n.state and n.state in ('failed', 'cancelled') and tensile.is_reservation(r)
         -- One look into the index for each name; "not exists" would let the planner read the whole queue instead.
         and (select j.job_id from tensile.jobs as j
               where j.model_name = r.name and j.state in ('queued', 'starting', 'running') limit 1) is null
         for update of r skip locked) as free
     where m.model_id = free.model_id;
  end if;

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
  'trigger: writes an event per change of state, drops the checkpoint of what has ended, frees the name of a model that '
  'got no version, and notifies';

create trigger jobs_changed after update on tensile.jobs
  referencing old table as before_change new table as after_change
  for each statement execute function tensile.record_job_changes();
