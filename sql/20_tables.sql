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
  last_job_id bigint,
  last_started_at timestamptz,
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
comment on column tensile.models.last_spec is
  'specification of the run that started last among those that succeeded: what arguments left out mean';
comment on column tensile.models.last_job_id is 'job of that run; kept when the job''s row is gone';
comment on column tensile.models.last_started_at is
  'when that run started; of two runs, that of the higher job where both started at once';
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
  training jsonb,
  created_at timestamptz not null default now(),
  deployed boolean not null default false,
  not_deployed text,
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
comment on column tensile.model_versions.training is
  'how it was trained: hyperparams and early_stop to give again, which of them were chosen by the rows, epochs trained and '
  'the epoch whose weights it has; null for a version of release 0.1';
comment on column tensile.model_versions.created_at is 'when it was published';
comment on column tensile.model_versions.deployed is 'predictions that name no version use it; at most one per model';
comment on column tensile.model_versions.not_deployed is
  'why it was not deployed when it was published; null where it was, and for a version of release 0.1';

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
  threads integer not null default 1,
  beats bigint not null default 0,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  stopped_at timestamptz,
  took_leave boolean not null default false,
  entering integer not null default 2,
  holdup text,
  constraint workers_lease_is_positive check (lease_s > 0),
  constraint workers_have_slots check (slots > 0),
  constraint workers_let_jobs_enter check (entering > 0),
  constraint workers_have_threads check (threads > 0),
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
comment on column tensile.workers.threads is 'threads that jobs run on which it is the first to start: see jobs.threads';
comment on column tensile.workers.slots is 'most jobs that it has at once: what quotas divide among owners';
comment on column tensile.workers.started_at is 'when it registered';
comment on column tensile.workers.heartbeat_at is
  'its last heartbeat by the database''s clock, for display: a step of that clock makes nobody dead';
comment on column tensile.workers.stopped_at is 'when it left, or was found to be gone; it claims nothing from then on';
comment on column tensile.workers.took_leave is 'it said itself that it stops; otherwise it died, or was cut off';
comment on column tensile.workers.entering is
  'most jobs of one owner that it reads, captures and plans at once; the others of that owner stay queued meanwhile';
comment on column tensile.workers.holdup is 'what it waits for before it takes another job; null where it takes one now';

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
  threads integer,
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
  version_id bigint,  -- no foreign key: deleting a version would have to lock its job's row, which users may lock too
  constraint jobs_spec_names_the_model check (spec ->> 'model' is not distinct from model_name),
  constraint jobs_spec_names_the_relation check (
    spec #>> '{relation,oid}' is not distinct from relation_oid::text
    and spec #>> '{relation,schema}' is not distinct from relation_schema
    and spec #>> '{relation,name}' is not distinct from relation_name),
  -- Not of what has ended: 0.1.0 took more.
  constraint jobs_spec_is_small
    check (pg_column_size(spec) <= 262144 or state in ('succeeded', 'failed', 'cancelled')),
  constraint jobs_model_name_is_short check (length(model_name) between 1 and 200),
  constraint jobs_model_name_is_printable
    check (model_name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'),
  constraint jobs_idempotency_key_is_short check (length(idempotency_key) between 1 and 200),
  constraint jobs_idempotency_key_is_printable
    check (idempotency_key !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'),
  constraint jobs_priority_is_bounded check (priority between -1000 and 1000),
  constraint jobs_attempts_are_bounded check (max_attempts between 1 and 100 and faults between 0 and max_attempts),
  constraint jobs_have_threads check (threads > 0),
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
  'phase in which its controller last died or its trainer last hung, since its last checkpoint; the word memory where '
  'the kernel ended its trainer for memory since';
comment on column tensile.jobs.threads is
  'threads that its operators run on, from its first start on: other numbers give results that differ in the last bits';
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
comment on column tensile.jobs.version_id is 'version that it published, which may be deleted by now';

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
  updated_at timestamptz not null default now(),
  eta_earliest timestamptz
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
comment on column tensile.job_progress.eta is
  'when the job should be over, its publication included, if it trains all its epochs';
comment on column tensile.job_progress.eta_earliest is
  'the same if no epoch is better from now on and early stopping ends it; null without early stopping';
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

create table tensile.data_reports (
  job_id bigint primary key references tensile.jobs on delete cascade,
  report jsonb not null,
  written_at timestamptz not null default now(),
  constraint data_reports_are_lists check (jsonb_typeof(report) = 'array'),
  constraint data_reports_are_bounded check (octet_length(report::text) <= 1048576)
);
comment on table tensile.data_reports is
  'what a job''s table was found to be, in words; it names classes and columns, so only the job''s owner may read it';
comment on column tensile.data_reports.job_id is 'the job';
comment on column tensile.data_reports.report is
  'a list of facts with section, subject, fact, value and warning: what tensile_data_report() returns';
comment on column tensile.data_reports.written_at is 'when it was written: after reading, and anew at publication';

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

-- Quotas ------------------------------------------------------------------------------------------------------

create table tensile.role_quotas (
  role_oid oid not null,
  installation uuid not null default tensile.installation(),
  role_name name not null,
  jobs_running integer,
  jobs_queued integer,
  bytes bigint,
  highest_priority integer,
  changed_at timestamptz not null default now(),
  changed_by name not null default current_user,
  primary key (role_oid, installation),
  constraint role_quotas_are_counts check (jobs_running >= 0 and jobs_queued >= 0 and bytes >= 0),
  constraint role_quotas_priority_is_bounded check (highest_priority between -1000 and 1000)
);
comment on table tensile.role_quotas is 'what an administrator has set with tensile_set_quota(); null is the default';
comment on column tensile.role_quotas.role_oid is 'the role; 0 is every role that has no quota of its own';
comment on column tensile.role_quotas.installation is 'database that role_oid belongs to: in a copy the oid is another role''s';
comment on column tensile.role_quotas.role_name is 'name of that role when the quota was set, for display';
comment on column tensile.role_quotas.jobs_running is
  'jobs that workers may have of it at once; by default one less than the slots of all workers, and at least one';
comment on column tensile.role_quotas.jobs_queued is 'jobs of it that may wait at once; by default 10000';
comment on column tensile.role_quotas.bytes is 'device memory that its jobs may be granted at once; by default no limit';
comment on column tensile.role_quotas.highest_priority is 'highest priority that it may give a job; by default 1000';
comment on column tensile.role_quotas.changed_at is 'when it was last set';
comment on column tensile.role_quotas.changed_by is 'role that set it';

-- Snapshots ---------------------------------------------------------------------------------------------------

create table tensile.snapshots (
  job_id bigint primary key references tensile.jobs on delete cascade,
  table_name name not null unique,
  key text[] not null,
  rows bigint,
  bytes bigint,
  created_at timestamptz not null default now(),
  sealed boolean not null default false,
  constraint snapshots_are_measured_when_sealed check (sealed = (rows is not null) and sealed = (bytes is not null))
);
comment on table tensile.snapshots is
  'tables in schema tensile_data that hold the training rows of jobs; a row goes when its table is dropped';
comment on column tensile.snapshots.job_id is 'the job that trains on it';
comment on column tensile.snapshots.table_name is 'name of the table in schema tensile_data';
comment on column tensile.snapshots.key is
  'columns of the relation''s primary key, in the relation''s order: they decide which rows train; empty without a key';
comment on column tensile.snapshots.rows is 'count of its rows; null until it is sealed';
comment on column tensile.snapshots.bytes is 'its size on disk, TOAST included; null until it is sealed';
comment on column tensile.snapshots.created_at is 'when the transaction began that made it';
comment on column tensile.snapshots.sealed is 'whether it is complete: only the reader has a grant on it from then on';
