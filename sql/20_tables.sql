-- The tables: settings, models and their versions, workers, the queue, devices, latencies, plans, quotas and snapshots.

-- Settings ---------------------------------------------------------------------------------------------------

create table tensile.settings (
  name text primary key,
  value jsonb not null,
  changed_at timestamptz not null default now(),
  changed_by name not null default current_user
);
comment on table tensile.settings is
  'settings that an administrator has set; a setting without a row has its default, which the view setting_list shows';
comment on column tensile.settings.name is 'name of the setting, such as socket_directory';
comment on column tensile.settings.value is 'value of the setting';
comment on column tensile.settings.changed_at is 'time of the last change';
comment on column tensile.settings.changed_by is 'role that made the last change';

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
  measure_drift boolean not null default false,
  constraint models_name_is_short check (length(name) between 1 and 200),
  -- Names appear in logs and terminals, so control characters, line separators and direction marks are refused.
  constraint models_name_is_printable
    check (name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]')
);
create unique index models_name on tensile.models (name) where dropped_at is null;
create index models_dropped on tensile.models (model_id) where dropped_at is not null;
comment on table tensile.models is
  'models, each with a name and an owner; each successful training adds a version. Enqueuing a training reserves the '
  'name: a row without a definition and without versions is such a reservation';
comment on column tensile.models.model_id is 'number of the model';
comment on column tensile.models.name is 'name of the model, unique among models that are not dropped';
comment on column tensile.models.owner_oid is
  'role that may train, deploy and drop the model; the oid is valid only in the database of the column installation';
comment on column tensile.models.owner_name is
  'name of the owner, for display and for copies of the database; see tensile.adopt_owners()';
comment on column tensile.models.definition is
  'architecture and hyperparams of tensile_create_model; null where no network was defined';
comment on column tensile.models.last_spec is
  'specification of the successful training that started last; it supplies the arguments that a later call omits';
comment on column tensile.models.last_job_id is 'job of that training; the value stays when the job is deleted';
comment on column tensile.models.last_started_at is
  'start of that training; of trainings with the same start, the one with the highest job_id counts';
comment on column tensile.models.installation is 'database that owner_oid belongs to; see tensile.adopt_owners()';
comment on column tensile.models.created_at is 'time of the model''s creation';
comment on column tensile.models.dropped_at is
  'time of tensile_drop_model; from then on no user sees the model, and tensile.delete_dropped() deletes it later';
comment on column tensile.models.measure_drift is
  'true if the inputs of predictions are counted, which tensile.stat_drift compares with those of the training';

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
  deployed_by name,
  deployed_why text,
  constraint model_versions_number unique (model_id, number),
  constraint model_versions_number_is_positive check (number > 0),
  constraint model_versions_sizes_are_counts check (parameters >= 0 and weights_bytes >= 0),
  constraint model_versions_digests_are_sha256 check (weights_digest ~ '^[0-9a-f]{64}$'),
  constraint model_versions_reasons_are_short check (length(deployed_why) <= 1000),
  constraint model_versions_metric_has_a_direction
    check (metric is null or (metric_name is not null and higher_is_better is not null))
);
create unique index model_versions_one_is_deployed on tensile.model_versions (model_id) where deployed;
create index model_versions_job on tensile.model_versions (job_id);
comment on table tensile.model_versions is
  'versions of models: each is one trained network. Its weights are in artifacts, its preprocessing in version_bundles';
comment on column tensile.model_versions.version_id is 'number of the version among the versions of all models';
comment on column tensile.model_versions.model_id is 'model of the version';
comment on column tensile.model_versions.number is 'number of the version within its model, from 1';
comment on column tensile.model_versions.job_id is
  'job that trained the version; the value stays when the job is deleted. Null for a version out of a file';
comment on column tensile.model_versions.task is 'classification or regression';
comment on column tensile.model_versions.target is 'column that the version predicts';
comment on column tensile.model_versions.architecture is 'definition of the network, as JSON';
comment on column tensile.model_versions.metric_name is 'name of the metric that compares versions';
comment on column tensile.model_versions.metric is 'value of that metric on the held-out rows';
comment on column tensile.model_versions.higher_is_better is 'true if a higher value of the metric is better';
comment on column tensile.model_versions.metrics is 'values of all metrics on the held-out rows, by name';
comment on column tensile.model_versions.parameters is 'count of trained parameters';
comment on column tensile.model_versions.weights_bytes is 'size of the weights';
comment on column tensile.model_versions.weights_digest is
  'SHA-256 of the weights, in hexadecimal; weights with another digest are not loaded. Null for a version of release '
  '0.1';
comment on column tensile.model_versions.relation_oid is 'table that the version was trained on; 0 for a query';
comment on column tensile.model_versions.relation_schema is
  'schema of that table when the job was enqueued; empty for a query';
comment on column tensile.model_versions.relation_name is
  'name of that table when the job was enqueued; "query" for a query';
comment on column tensile.model_versions.data_digest is 'digest of the rows that the version was trained on';
comment on column tensile.model_versions.training is
  'how the version was trained: the hyperparams and early_stop that repeat the training, which of them were chosen '
  'automatically, the features, rows and split, the epochs trained, and the epoch of the published weights; null for a '
  'version of release 0.1';
comment on column tensile.model_versions.created_at is 'time of publication';
comment on column tensile.model_versions.deployed is
  'true for the version that predicts when no version is named; at most one version of each model';
comment on column tensile.model_versions.not_deployed is
  'why the version was not deployed at its publication; null if it was deployed, and for a version of release 0.1';
comment on column tensile.model_versions.deployed_by is
  'role that deployed or withdrew the version last, as written by a trigger; null if nobody did, and for release 0.1';
comment on column tensile.model_versions.deployed_why is 'why the version is deployed, in words; null if nobody said';

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
comment on table tensile.deployments is
  'history of deployments: which version of a model was deployed in place of which; a trigger writes it';
comment on column tensile.deployments.deployment_id is 'number of the deployment, in the order of writing';
comment on column tensile.deployments.model_id is 'model of the versions';
comment on column tensile.deployments.from_version is 'version that was deployed before; null if none was';
comment on column tensile.deployments.to_version is 'version that is deployed from then on; null if none is';
comment on column tensile.deployments.deployed_by is
  'role that made the change, for display; null for a deployment by release 0.1';
comment on column tensile.deployments.deployed_at is 'start of the transaction that made the change';
comment on column tensile.deployments.job_id is 'job that published the version with the deployment; else null';
comment on column tensile.deployments.reason is 'why the version was deployed, in words';

-- Bundles are not part of model_versions, because all users who may predict with a model see its versions, and a bundle
-- holds values of the training data, such as texts of a column and means.
create table tensile.version_bundles (
  version_id bigint primary key references tensile.model_versions on delete cascade,
  bundle jsonb not null
);
comment on table tensile.version_bundles is
  'preprocessing of versions, which turns a row of a table into an input of the network; a bundle holds values of the '
  'training data, so only the model''s owner, roles with the privilege weights, and the worker may read it';
comment on column tensile.version_bundles.version_id is 'version of the bundle';
comment on column tensile.version_bundles.bundle is
  'preprocessing and labels, with categories and means of the training data';

create table tensile.version_figures (
  version_id bigint not null references tensile.model_versions on delete cascade,
  name text not null,
  figure jsonb not null,
  primary key (version_id, name),
  constraint version_figures_are_objects check (jsonb_typeof(figure) = 'object'),
  constraint version_figures_are_bounded check (octet_length(figure::text) <= 524288)
);
comment on table tensile.version_figures is
  'figures of versions on the rows that were held out of their training: counts and rates, never rows. Some name '
  'classes of the table, and only the model''s owner reads those';
comment on column tensile.version_figures.version_id is 'version of the figure';
comment on column tensile.version_figures.name is
  'confusion_matrix, roc_curve, label_calibration and label_metrics, which name labels; baseline_rows, the digest of the '
  'rows of a baseline; input_counts and input_bins, how the training rows are distributed; calibration, '
  'feature_importance, baseline and forecast, which all who may predict see';
comment on column tensile.version_figures.figure is
  'rows: the figure, in the form that the function tensile_... of this name reads; metrics: those of a baseline; or '
  'reason: why it is not stored';

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
comment on table tensile.predicted_inputs is
  'how many predicted rows fell into each bin of a version''s input columns, a row for each day; services and workers add '
  'to it for models with measure_drift, and no value of a row is stored';
comment on column tensile.predicted_inputs.version_id is 'version that predicted';
comment on column tensile.predicted_inputs.day is 'day of the predictions, in UTC';
comment on column tensile.predicted_inputs.rows is 'rows that were predicted and counted';
comment on column tensile.predicted_inputs.counts is
  'rows in each bin: of the first measured column of the figure input_counts, then of the next';
comment on column tensile.predicted_inputs.updated_at is 'time of the last addition';

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
  constraint model_privileges_are_known check (privilege in ('predict', 'weights'))
);
create index model_privileges_grantee on tensile.model_privileges (grantee_oid);
create index model_privileges_revoked on tensile.model_privileges (model_id) where revoked_at is not null;
comment on table tensile.model_privileges is 'privileges on models that owners have granted to other roles';
comment on column tensile.model_privileges.model_id is 'model of the privilege';
comment on column tensile.model_privileges.owner_oid is 'owner of the model: a trigger sets it, and policies read it';
comment on column tensile.model_privileges.grantee_oid is 'role that has the privilege; 0 stands for all roles';
comment on column tensile.model_privileges.grantee_name is
  'name of the grantee, for display and for copies of the database; public for all roles';
comment on column tensile.model_privileges.privilege is
  'predict: see the model and predict with it; weights: also start trainings from its weights, which copies them';
comment on column tensile.model_privileges.granted_by is 'role that granted the privilege: the owner at that time';
comment on column tensile.model_privileges.granted_at is 'time of the grant';
comment on column tensile.model_privileges.revoked_at is
  'time of the revocation; from then on the privilege has no effect, and tensile.delete_dropped() deletes its row '
  'later';
comment on column tensile.model_privileges.installation is
  'database that owner_oid and grantee_oid belong to; see tensile.adopt_owners()';

-- Registered networks ----------------------------------------------------------------------------------------

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
comment on table tensile.networks is
  'pretrained networks that an administrator has registered with `tensile models import`; a training starts from one '
  'with the architecture pretrained';
comment on column tensile.networks.network_id is 'number of the network';
comment on column tensile.networks.name is 'name by which an architecture refers to the network';
comment on column tensile.networks.digest is
  'SHA-256 of configuration, tokenizer and weights; versions of models name the network by it';
comment on column tensile.networks.family is 'kind of network: the model_type of its configuration';
comment on column tensile.networks.config is 'the known sizes of its configuration, and nothing else of config.json';
comment on column tensile.networks.tokenizer is 'tokenizer of its texts, in the format of tokenizer.json';
comment on column tensile.networks.parameters is 'count of its weights';
comment on column tensile.networks.weights_bytes is
  'size of the weights in the safetensors format, which are in tensile.network_chunks; at most 8 GB';
comment on column tensile.networks.imported_by is 'role that registered the network';
comment on column tensile.networks.imported_at is 'time of the registration';

create table tensile.network_chunks (
  network_id bigint not null references tensile.networks on delete cascade,
  chunk_no integer not null,
  chunk bytea not null,
  primary key (network_id, chunk_no),
  constraint network_chunks_count_from_zero check (chunk_no >= 0),
  constraint network_chunks_are_bounded check (octet_length(chunk) <= 8388608)
);
alter table tensile.network_chunks alter column chunk set storage external;
comment on table tensile.network_chunks is 'weights of registered networks, in chunks of at most 8 MB';
comment on column tensile.network_chunks.network_id is 'network of the weights';
comment on column tensile.network_chunks.chunk_no is 'number of the chunk within the weights, from 0';
comment on column tensile.network_chunks.chunk is 'bytes of the chunk';

create table tensile.network_privileges (
  network_id bigint not null references tensile.networks on delete cascade,
  grantee_oid oid not null,
  grantee_name name not null,
  granted_by name not null default current_user,
  granted_at timestamptz not null default now(),
  installation uuid not null default tensile.installation(),
  primary key (network_id, grantee_oid, installation)
);
comment on table tensile.network_privileges is 'roles that may train from a registered network';
comment on column tensile.network_privileges.network_id is 'network of the privilege';
comment on column tensile.network_privileges.grantee_oid is 'role that has the privilege; 0 stands for all roles';
comment on column tensile.network_privileges.grantee_name is
  'name of the grantee, for display and for copies of the database; public for all roles';
comment on column tensile.network_privileges.granted_by is 'administrator who granted the privilege';
comment on column tensile.network_privileges.granted_at is 'time of the grant';
comment on column tensile.network_privileges.installation is
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
  threads integer not null default 1,
  beats bigint not null default 0,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  stopped_at timestamptz,
  took_leave boolean not null default false,
  entering integer not null default 2,
  holdup text,
  device_name text,
  service_address text,
  service_host_name text,
  makes_way boolean not null default true,
  constraint workers_lease_is_positive check (lease_s > 0),
  constraint workers_have_slots check (slots > 0),
  constraint workers_let_jobs_enter check (entering > 0),
  constraint workers_have_threads check (threads > 0),
  constraint workers_service_name_is_a_name check (service_name ~ '^[A-Za-z0-9][A-Za-z0-9._-]*$'),
  constraint workers_service_address_is_an_address check (service_address ~ '^[0-9a-f.:[\]]+:[0-9]+$'),
  constraint workers_service_address_has_a_host_name check ((service_address is null) = (service_host_name is null))
) with (fillfactor = 50);  -- and no index on heartbeat_at: every beat stays a heap-only update
comment on table tensile.workers is 'workers: each is a controller process with its device';
comment on column tensile.workers.worker_id is 'number of the worker; a controller that restarts is a new worker';
comment on column tensile.workers.host is 'host that the controller runs on';
comment on column tensile.workers.pid is 'process id of the controller';
comment on column tensile.workers.device is 'kind of the worker''s device, as in op_latency.device_kind';
comment on column tensile.workers.version is 'version of the worker''s package';
comment on column tensile.workers.service_name is
  'name of the service''s socket within the setting socket_directory; null while no service answers';
comment on column tensile.workers.service_address is
  'IP address and port at which the service answers other hosts by TLS; null while none does';
comment on column tensile.workers.service_host_name is
  'name for which the certificate of the service at service_address must be valid';
comment on column tensile.workers.lease_s is 'seconds without a heartbeat after which other workers take over the jobs';
comment on column tensile.workers.beats is
  'count of heartbeats; a controller that reads the same count for lease_s, by its own monotonic clock, declares the '
  'worker dead';
comment on column tensile.workers.threads is
  'threads of the jobs that this worker is the first to start: see jobs.threads';
comment on column tensile.workers.slots is
  'most jobs that the worker runs at once; default quotas are computed from it';
comment on column tensile.workers.started_at is 'time of registration';
comment on column tensile.workers.heartbeat_at is
  'time of the last heartbeat by the database''s clock, for display only: a step of that clock declares no worker dead';
comment on column tensile.workers.stopped_at is
  'time when the worker left or was declared dead; it claims no jobs from then on';
comment on column tensile.workers.took_leave is
  'true if the worker itself reported that it stops; false if it died or lost its connection';
comment on column tensile.workers.entering is
  'most jobs of one owner that the worker reads, captures and plans at once; further jobs of that owner stay queued';
comment on column tensile.workers.holdup is
  'why the worker claims no further job now, in words; null if it claims jobs';
comment on column tensile.workers.device_name is
  'the device among those of its host: cpu, cuda:1, emulated, or emulated:1; null for a controller of release 0.1';
comment on column tensile.workers.makes_way is
  'whether jobs that train on this device alone leave it for a rank that waits for memory; false with sharing = any_price';

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
  pause_requested boolean not null default false,
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
  depends_on bigint[],
  awaits_jobs boolean not null default false,
  retry_of bigint,
  search_id bigint,
  init_version_id bigint,
  version_id bigint,  -- no foreign key: deleting a version would lock its job's row, which users may lock too
  needs_bytes bigint,
  devices integer not null default 1,
  short_since timestamptz,
  constraint jobs_spec_names_the_model check (spec ->> 'model' is not distinct from model_name),
  constraint jobs_spec_names_the_relation check (
    spec #>> '{relation,oid}' is not distinct from relation_oid::text
    and spec #>> '{relation,schema}' is not distinct from relation_schema
    and spec #>> '{relation,name}' is not distinct from relation_name),
  -- Not for jobs that have ended, because version 0.1.0 accepted larger specifications.
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
  constraint jobs_have_devices check (devices between 1 and 64),
  constraint jobs_attempts_are_counts check (attempt >= 0 and interruptions >= 0 and interrupted >= interval '0'),
  constraint jobs_have_a_worker_while_active check ((state in ('starting', 'running')) = (worker_id is not null)),
  constraint jobs_have_a_claim_while_active check (state not in ('starting', 'running') or claim is not null),
  constraint jobs_have_a_phase_only_while_active check (phase is null or state in ('starting', 'running')),
  constraint jobs_end_once check ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
  constraint jobs_await_others_only_while_queued check (not awaits_jobs or state = 'queued'),
  constraint jobs_that_fail_say_why check (state <> 'failed' or error_message is not null),
  constraint jobs_that_do_not_succeed_publish_nothing check (version_id is null or state = 'succeeded')
) with (fillfactor = 80);
-- Only active jobs have a worker_id, by a constraint. The index does not name the state, because the check of the
-- foreign key searches by worker_id only.
create index jobs_active on tensile.jobs (worker_id) where worker_id is not null;
create index jobs_finished on tensile.jobs (finished_at, job_id) where finished_at is not null;
create index jobs_queued_by_owner on tensile.jobs (owner_oid, priority desc, job_id)
  where state = 'queued' and not pause_requested and not awaits_jobs;
create index jobs_queued_gangs on tensile.jobs (job_id) where state = 'queued' and devices > 1;
create index jobs_awaiting on tensile.jobs (job_id) where awaits_jobs;
create index jobs_retried on tensile.jobs (retry_of) where retry_of is not null;
create index jobs_of_search on tensile.jobs (search_id, job_id) where search_id is not null;
create index jobs_queued_ids on tensile.jobs (owner_oid, job_id) where state = 'queued';
create index jobs_owner on tensile.jobs (owner_oid, job_id);
create index jobs_model on tensile.jobs (model_name, job_id);
create index jobs_model_owner on tensile.jobs (model_name, owner_oid) where state in ('queued', 'starting', 'running');
create unique index jobs_idempotency on tensile.jobs (owner_oid, installation, idempotency_key)
  where idempotency_key is not null;
comment on table tensile.jobs is 'training jobs: the queue, the active jobs, and the jobs that have ended';
comment on column tensile.jobs.job_id is 'number of the job, which tensile_train returns';
comment on column tensile.jobs.model_name is 'model that gets a new version; enqueuing reserves a new name';
comment on column tensile.jobs.owner_oid is
  'role that enqueued the job and whose privileges the job needs; the oid is valid only in the database of the column '
  'installation';
comment on column tensile.jobs.owner_name is
  'name of the owner, for display and for copies of the database; see tensile.adopt_owners()';
comment on column tensile.jobs.relation_oid is
  'table to train on; another table of the same name is an error. 0 if the rows are those of the query in spec';
comment on column tensile.jobs.relation_schema is 'schema of that table when the job was enqueued; empty for a query';
comment on column tensile.jobs.relation_name is 'name of that table when the job was enqueued; "query" for a query';
comment on column tensile.jobs.spec is 'the resolved training request: the JSON of indb_tensile.job.JobSpec';
comment on column tensile.jobs.state is
  'state of the job; each update of it names the expected old state, and notifies';
comment on column tensile.jobs.phase is 'current activity of a starting or running job';
comment on column tensile.jobs.priority is
  'among the jobs of one owner, those of higher priority start first, and those of equal priority in the order of '
  'job_id';
comment on column tensile.jobs.attempt is 'how often the job was claimed, including the current claim';
comment on column tensile.jobs.max_attempts is 'number of faults since the last checkpoint at which the job fails';
comment on column tensile.jobs.faults is
  'attempts since the last checkpoint that ended by the job''s own fault; from the second time on, the death of the '
  'controller or a hanging trainer in the same phase also counts';
comment on column tensile.jobs.interruptions is
  'attempts since the last checkpoint that were interrupted without a fault of the job; the pause before the next '
  'attempt grows with their number';
comment on column tensile.jobs.interrupted is
  'time lost by interruptions since the last checkpoint: the interrupted attempts and the pauses after them; the '
  'controller''s setting interrupted_s bounds it';
comment on column tensile.jobs.progress_at is 'time when the current attempt began or saved its last checkpoint';
comment on column tensile.jobs.last_death_phase is
  'phase in which the controller last died or the trainer last hung, since the last checkpoint; the word memory if the '
  'kernel has killed the trainer for lack of memory since then';
comment on column tensile.jobs.threads is
  'threads of the job''s operators, kept from the first start on: another number changes the last bits of the results';
comment on column tensile.jobs.claim is 'token of the last claim; a write with an older token changes nothing';
comment on column tensile.jobs.worker_id is 'worker of a starting or running job';
comment on column tensile.jobs.installation is
  'database that the job was enqueued in; workers of another database never claim it: see tensile.adopt_jobs()';
comment on column tensile.jobs.cancel_requested is
  'true if the job is to be stopped; a queued job is cancelled at once';
comment on column tensile.jobs.pause_requested is
  'true if the job must not train until it is resumed: no worker claims a queued job, and an active job leaves the '
  'device';
comment on column tensile.jobs.waits_for is 'what the job waits for, in words, as written by the controller';
comment on column tensile.jobs.error_sqlstate is 'SQLSTATE of the last error';
comment on column tensile.jobs.error_message is 'message of the last error that ended an attempt';
comment on column tensile.jobs.error_detail is 'detail of that error';
comment on column tensile.jobs.error_hint is 'hint of that error: what to do';
comment on column tensile.jobs.enqueued_at is 'time when the job was enqueued';
comment on column tensile.jobs.enqueued_xact is
  'transaction that enqueued the job; to wait for the job within this transaction would never end';
comment on column tensile.jobs.not_before is
  'earliest time of the next claim, from the request or from a pause after an interruption, by the database''s clock; '
  'a step of that clock only moves the claim';
comment on column tensile.jobs.started_at is 'time of the first claim';
comment on column tensile.jobs.finished_at is 'time when the job succeeded, failed or was cancelled';
comment on column tensile.jobs.idempotency_key is
  'key of the request; two requests of one owner with the same key are one job';
comment on column tensile.jobs.depends_on is
  'jobs that must succeed before this one starts, as requested; null if there are none';
comment on column tensile.jobs.awaits_jobs is
  'true while no worker may claim the job: one of these jobs has not ended, the job is a search, or it is a trial that '
  'waits for its search';
comment on column tensile.jobs.retry_of is 'job whose request this one repeats: see tensile_retry';
comment on column tensile.jobs.search_id is
  'search that the job is a trial of; the job''s own number for a search, which is not trained itself; else null';
comment on column tensile.jobs.init_version_id is
  'version whose weights the training starts from, chosen at the first start, so that a later attempt starts from the '
  'same; null without init_from';
comment on column tensile.jobs.version_id is 'version that the job published, which may have been deleted since';
comment on column tensile.jobs.needs_bytes is
  'least budget of a device that could hold the job, known once a device was too small for it; as long as a living '
  'controller has such a device, no other one claims the job';
comment on column tensile.jobs.devices is
  'devices that train the job together, each as one rank: see tensile.job_ranks. After a device is gone they may be fewer '
  'than the request names: see tensile.fit_gangs()';
comment on column tensile.jobs.short_since is
  'time since which a queued job has waited for more devices than there are; null if it does not, or never was claimed';

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
comment on table tensile.job_ranks is
  'ranks of the jobs that several devices train together (gangs). The rows exist only while an attempt of the job is under '
  'way: a trigger deletes them with its end, so a claim of a rank is valid as long as its row exists';
comment on column tensile.job_ranks.job_id is 'job of the rank';
comment on column tensile.job_ranks.rank is
  'number of the rank from 0; rank 0 is the leader, whose worker has the job itself';
comment on column tensile.job_ranks.worker_id is 'worker that has accepted the rank; null while the rank is offered';
comment on column tensile.job_ranks.claim is
  'token of the rank, which each of its writes carries; for rank 0 that of the job';
comment on column tensile.job_ranks.state is
  'offered: no worker has the rank; preparing: its trainer reads the table and captures the step; prepared: it waits for '
  'memory; admitted: it has memory and waits for the other ranks; training; finished: it has trained all epochs';
comment on column tensile.job_ranks.waits_for is 'what the rank waits for, in words, as written by its controller';
comment on column tensile.job_ranks.since is 'time since which the rank is in this state';
comment on column tensile.job_ranks.divides_state is
  'whether the rank keeps only its part of the optimizer''s state; null until its trainer knows the choice';
comment on column tensile.job_ranks.step_ns is
  'foretold nanoseconds of an iteration of the rank under its plan, without waits for other ranks; null until it has a plan';
comment on column tensile.job_ranks.steps_published is
  'number of times that the rank has let the others know its step (tensile.rank_values)';

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
comment on table tensile.rank_values is
  'values by which the ranks of one attempt find each other: addresses, the snapshot to read, and a secret; and what each '
  'lets the controllers of the others know of its step. Only workers read and write them, and they are deleted with the '
  'ranks';
comment on column tensile.rank_values.job_id is 'job of the ranks';
comment on column tensile.rank_values.rank is 'rank that has written the value';
comment on column tensile.rank_values.key is 'name of the value, which all ranks of the job know';
comment on column tensile.rank_values.value is 'bytes of the value';

create table tensile.gang_turns (
  job_id bigint primary key,  -- no foreign key: its check would wait for an owner that locks the job
  turns integer not null default 1,
  workers bigint[] not null,
  begins_at timestamptz not null,
  ends_at timestamptz not null,
  constraint gang_turns_count_from_one check (turns > 0),
  constraint gang_turns_end_after_they_begin check (ends_at >= begins_at)
);
comment on table tensile.gang_turns is
  'turns of jobs for several devices that have waited for long: until the end of a turn, as many workers as the job needs '
  'claim no other job. A row exists from the first turn until the job trains';
comment on column tensile.gang_turns.job_id is 'job whose turn it is';
comment on column tensile.gang_turns.turns is
  'number of turns that it has had; each is about twice as long as the one before, and at most twice as long as the wait '
  'before it';
comment on column tensile.gang_turns.workers is 'workers that claim no other job';
comment on column tensile.gang_turns.begins_at is 'begin of the last turn';
comment on column tensile.gang_turns.ends_at is
  'end of the last turn; the next one begins after a pause that is as long as the turn was';

create table tensile.awaited_jobs (
  job_id bigint not null references tensile.jobs on delete cascade,
  awaited_id bigint not null,  -- no foreign key: a job is deleted without a look at those that waited for it
  primary key (job_id, awaited_id)
);
create index awaited_jobs_awaited on tensile.awaited_jobs (awaited_id);
comment on table tensile.awaited_jobs is
  'which job waits for the success of which others; a row is deleted when the other job has succeeded';
comment on column tensile.awaited_jobs.job_id is 'job that waits';
comment on column tensile.awaited_jobs.awaited_id is 'job that it waits for';

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
comment on table tensile.trials is 'trials of searches: each is a job that trains with values of its own';
comment on column tensile.trials.search_id is 'search of the trial';
comment on column tensile.trials.number is 'number of the trial within its search, from 1';
comment on column tensile.trials.job_id is 'job that trains the trial';
comment on column tensile.trials.picks is
  'what the sampler drew, by name of the argument: the number, or the place of the choice, from 0';
comment on column tensile.trials.parameters is 'values of the arguments that vary, by name';
comment on column tensile.trials.rungs is
  'shares of the training''s epochs after which the trial is compared with the others; the last one is 1';
comment on column tensile.trials.allowed_rung is
  'place of the rung, from 0, up to which the trial may train; it waits there for its search';
comment on column tensile.trials.held_rung is
  'last rung at which the search has decided that the trial waits; null if there is none';
comment on column tensile.trials.pruned is 'true if the trial was ended at a rung, because others were better';

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
comment on table tensile.trial_results is 'what a trial had reached at each of its rungs';
comment on column tensile.trial_results.job_id is 'job that trains the trial';
comment on column tensile.trial_results.rung is 'place of the rung, from 0; the last one if the training has ended';
comment on column tensile.trial_results.epoch is 'epochs trained by then';
comment on column tensile.trial_results.epochs is 'epochs that the training has at most';
comment on column tensile.trial_results.metric_name is 'metric that trials are compared by';
comment on column tensile.trial_results.metric is
  'its value on the validation rows, for the weights that would be published: with early stopping those of the best '
  'epoch; null if it is not defined on these rows';
comment on column tensile.trial_results.higher_is_better is 'true if a larger value of the metric is better';
comment on column tensile.trial_results.valid_loss is 'loss on the validation rows in that epoch; decides between equals';
comment on column tensile.trial_results.complete is 'true if the training has ended with this rung';
comment on column tensile.trial_results.worked_s is
  'seconds for which trainers have had the trial by then, which max_runtime bounds';
comment on column tensile.trial_results.reached_at is 'time when the trial reached the rung';

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
  eta_earliest timestamptz,
  rows_predicted bigint,
  rows_expected bigint
) with (fillfactor = 50);  -- rows are rewritten often, and only the key is indexed
comment on table tensile.job_progress is 'progress of each training, as its trainer last reported it';
comment on column tensile.job_progress.job_id is 'job of the training';
comment on column tensile.job_progress.epoch is 'current epoch, from 1';
comment on column tensile.job_progress.epochs is 'largest number of epochs to train';
comment on column tensile.job_progress.step is 'steps completed in the current epoch';
comment on column tensile.job_progress.steps is 'steps of one epoch';
comment on column tensile.job_progress.loss is 'mean training loss of the current epoch so far';
comment on column tensile.job_progress.valid_loss is 'loss on the validation rows after the last complete epoch';
comment on column tensile.job_progress.metric_name is 'name of the metric in column metric';
comment on column tensile.job_progress.metric is
  'value of the metric on the validation rows after the last complete epoch';
comment on column tensile.job_progress.samples_per_s is 'rows trained per second';
comment on column tensile.job_progress.eta is
  'expected time of the job''s end, including publication, if it trains all epochs';
comment on column tensile.job_progress.eta_earliest is
  'expected time of the job''s end if no later epoch is better and early stopping ends it; null without early stopping';
comment on column tensile.job_progress.rows_predicted is 'rows that a job of tensile_predict_into has predicted so far';
comment on column tensile.job_progress.rows_expected is
  'rows that it will predict, by the statistics of the relation; null if they are not known';
comment on column tensile.job_progress.updated_at is 'time when the row was last written';

create table tensile.job_events (
  event_id bigint generated always as identity primary key,
  job_id bigint not null references tensile.jobs on delete cascade,
  at timestamptz not null default clock_timestamp(),
  kind text not null,
  detail jsonb not null default '{}'
);
create index job_events_job on tensile.job_events (job_id, event_id);
create index job_events_at on tensile.job_events (at);
comment on table tensile.job_events is 'history of jobs, one row for each event; a trigger writes the changes of state';
comment on column tensile.job_events.event_id is 'number of the event, in the order of writing';
comment on column tensile.job_events.job_id is 'job of the event';
comment on column tensile.job_events.at is 'time of the event';
comment on column tensile.job_events.kind is 'the new state, for a change of state; else a word such as requeued';
comment on column tensile.job_events.detail is 'details of the event, such as worker, attempt and error';

create table tensile.metrics (
  job_id bigint not null references tensile.jobs on delete cascade,
  epoch integer not null,
  name text not null,
  value double precision,
  primary key (job_id, epoch, name)
);
comment on table tensile.metrics is 'losses and metrics of jobs after each epoch';
comment on column tensile.metrics.job_id is 'job of the value';
comment on column tensile.metrics.epoch is 'epoch of the value, from 1';
comment on column tensile.metrics.name is 'name of the loss or metric, such as loss, valid_loss or accuracy; learning_rate is that of the epoch''s last step';
comment on column tensile.metrics.value is 'value; null if it could not be computed';

create table tensile.data_reports (
  job_id bigint primary key references tensile.jobs on delete cascade,
  report jsonb not null,
  written_at timestamptz not null default now(),
  constraint data_reports_are_lists check (jsonb_typeof(report) = 'array'),
  constraint data_reports_are_bounded check (octet_length(report::text) <= 1048576)
);
comment on table tensile.data_reports is
  'reports on the data of jobs'' tables, in words; a report names classes and columns, so only the job''s owner may '
  'read it';
comment on column tensile.data_reports.job_id is 'job of the report';
comment on column tensile.data_reports.report is
  'list of facts with section, subject, fact, value and warning, which tensile_data_report() returns as rows';
comment on column tensile.data_reports.written_at is
  'time of writing; a report is written after reading the table and again at publication';

-- Bytes ------------------------------------------------------------------------------------------------------

-- A job has at most one checkpoint in the catalog, and one in a file on each host that has trained it. Files write no
-- WAL, whereas a checkpoint of 148 MB every 30 s in the catalog wrote 530 GB of WAL a day.
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
  'checkpoints from which interrupted jobs resume, one row for each store of a job; rows are deleted when the job ends';
comment on column tensile.checkpoints.job_id is 'job of the checkpoint';
comment on column tensile.checkpoints.store is 'place of the bytes: a file on one host, or the table checkpoint_chunks';
comment on column tensile.checkpoints.host is
  'host that has the file, in the state directory of its controller; empty for the catalog, which every host can read';
comment on column tensile.checkpoints.position is 'position in the training, such as the epoch, as JSON';
comment on column tensile.checkpoints.size_bytes is 'size of weights, optimizer and random state together';
comment on column tensile.checkpoints.digest is 'SHA-256 of the bytes; a checkpoint with another digest is not loaded';
comment on column tensile.checkpoints.saved_at is 'time when the checkpoint was saved';

-- Checkpoints are rewritten often, so they have a table of their own, and artifacts does not bloat. The next checkpoint
-- reuses the space of deleted rows as soon as VACUUM has processed them. Autovacuum runs after the first dead rows,
-- whatever the size of the table. Measured: 50 rewrites of 21 MB with a VACUUM after each need 44 MB in this table and
-- 57 MB as a large object. Both write equal WAL: 24 MB for each rewrite, or 45 MB if a database checkpoint comes
-- between. A table for each job, truncated, needs 22 MB and writes 23 MB of WAL, but requires DDL by the worker, whose
-- locks block all readers.
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
comment on column tensile.checkpoint_chunks.job_id is 'job of the checkpoint';
comment on column tensile.checkpoint_chunks.chunk_no is 'number of the chunk within the checkpoint, from 0';
comment on column tensile.checkpoint_chunks.chunk is 'bytes of the chunk';

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
comment on column tensile.artifacts.artifact_id is 'number of the chunk among the chunks of all versions';
comment on column tensile.artifacts.version_id is 'version of the weights, which are in the safetensors format';
comment on column tensile.artifacts.chunk_no is 'number of the chunk within the weights, from 0';
comment on column tensile.artifacts.chunk is 'bytes of the chunk';

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
comment on table tensile.devices is 'memory use of each worker''s device, as its controller last reported it';
comment on column tensile.devices.worker_id is 'worker of the device';
comment on column tensile.devices.kind is 'kind of the device';
comment on column tensile.devices.capacity_bytes is 'memory of the device';
comment on column tensile.devices.budget_bytes is 'memory that jobs may use together';
comment on column tensile.devices.granted_bytes is 'sum of the grants of all jobs';
comment on column tensile.devices.used_bytes is 'memory that all jobs use now';
comment on column tensile.devices.high_water_bytes is 'largest memory use of all jobs at one time';
comment on column tensile.devices.host_bytes is
  'pinned host memory of the jobs, for swapped-out tensors and for batches; at most host_pool_bytes';
comment on column tensile.devices.busy_percent is
  'percentage of time in which the GPU computed, according to its driver; null if the driver reports none';
comment on column tensile.devices.memory_busy_percent is
  'percentage of time in which the GPU''s memory was read or written, according to its driver';
comment on column tensile.devices.outside_bytes is
  'memory in use on the device outside the memory that jobs share: other programs, contexts, the driver';
comment on column tensile.devices.updated_at is 'time when the row was last written';

create table tensile.device_paces (
  device_kind text not null,
  machine text not null,
  here_ns bigint not null,
  there_ns bigint not null,
  measured_at timestamptz not null default now(),
  primary key (device_kind, machine),
  constraint device_paces_are_positive check (here_ns > 0 and there_ns > 0)
);
comment on table tensile.device_paces is
  'times of the reference step on emulated devices and on the GPUs that they imitate; the links of an emulated device '
  'are slowed down by the ratio of the two';
comment on column tensile.device_paces.device_kind is 'kind of the emulated device';
comment on column tensile.device_paces.machine is 'the imitated GPU';
comment on column tensile.device_paces.here_ns is 'measured time of the reference step on the emulated device';
comment on column tensile.device_paces.there_ns is 'time of the reference step on the GPU, computed by its roofline';
comment on column tensile.device_paces.measured_at is
  'time of the only measurement, when the kind of device was first used';

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
  'speed of copies between devices and their hosts, measured when a controller starts; plans are computed with it';
comment on column tensile.device_links.host is 'host of the device';
comment on column tensile.device_links.device_kind is 'kind of the device';
comment on column tensile.device_links.way is 'direction of the copies';
comment on column tensile.device_links.beside is
  'true if the link copied as much in the other direction at the same time';
comment on column tensile.device_links.size_bytes is 'size of each copy';
comment on column tensile.device_links.latency_ns is
  'time of one copy on an idle link, until the host knows of its end';
comment on column tensile.device_links.copy_ns is 'time that each of several consecutive copies adds';
comment on column tensile.device_links.emulated_bytes_per_s is
  'rate that an emulated link is set to; null for a real link';
comment on column tensile.device_links.measured_at is 'time of the measurement';

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
comment on table tensile.rank_networks is
  'times of transfers between devices that train together, measured before they first do and then once a day at most; the '
  'first plans of such jobs are computed with them';
comment on column tensile.rank_networks.hosts is 'host of each device, sorted; a host of two devices occurs twice';
comment on column tensile.rank_networks.device_kind is 'kind of the devices';
comment on column tensile.rank_networks.collective is
  'all_to_all: each device sends as much to every other one; one_way: one device of each pair sends as much to the '
  'other; all_reduce: the library adds up values of all devices; '
  'copy: each device copies as much between its memory and that of the host';
comment on column tensile.rank_networks.size_bytes is 'bytes that each device sends to all others together, or copies';
comment on column tensile.rank_networks.time_ns is 'mean time of such a transfer while the devices wait for it';
comment on column tensile.rank_networks.beside_ns is 'mean time of such a transfer while the devices compute';
comment on column tensile.rank_networks.lost_ns is
  'time by which the computation of a device then ends later, because the transfer needs its processor';
comment on column tensile.rank_networks.measured_at is 'time of the measurement';

create table tensile.rank_memory (
  device_kind text not null,
  ranks integer not null,
  memory_bytes bigint not null,
  measured_at timestamptz not null default now(),
  primary key (device_kind, ranks),
  constraint rank_memory_is_measured check (ranks > 1 and memory_bytes > 0)
);
comment on table tensile.rank_memory is
  'memory that the connection between devices takes on each of them outside every plan, measured whenever they connect by '
  'NCCL; controllers keep it free';
comment on column tensile.rank_memory.device_kind is 'kind of the devices';
comment on column tensile.rank_memory.ranks is 'number of devices that train together';
comment on column tensile.rank_memory.memory_bytes is 'the most that was measured on one of them within a day';
comment on column tensile.rank_memory.measured_at is 'time of this measurement';

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
comment on table tensile.device_jobs is 'memory use of each job that is on a device now';
comment on column tensile.device_jobs.worker_id is 'worker of the device';
comment on column tensile.device_jobs.job_id is 'job on the device';
comment on column tensile.device_jobs.granted_bytes is 'most device memory that the job may use';
comment on column tensile.device_jobs.used_bytes is 'device memory that the job uses now';
comment on column tensile.device_jobs.high_water_bytes is 'largest device memory that the job has used at one time';
comment on column tensile.device_jobs.updated_at is 'time when the row was last written';

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
comment on table tensile.device_samples is
  'history of each device''s memory: a row every two seconds, and fewer rows the older they are';
comment on column tensile.device_samples.worker_id is 'worker of the device';
comment on column tensile.device_samples.at is 'time of the sample';
comment on column tensile.device_samples.budget_bytes is 'memory that jobs may use together';
comment on column tensile.device_samples.granted_bytes is 'sum of the grants of all jobs';
comment on column tensile.device_samples.used_bytes is 'memory that all jobs used';
comment on column tensile.device_samples.host_bytes is 'pinned host memory of the jobs';
comment on column tensile.device_samples.busy_percent is
  'percentage of time in which the GPU computed, according to its driver; null if the driver reports none';
comment on column tensile.device_samples.outside_bytes is
  'memory in use on the device outside the memory that jobs share';

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
comment on table tensile.device_job_samples is
  'history of the memory of each job on a device: its part of each row of tensile.device_samples';
comment on column tensile.device_job_samples.worker_id is 'worker of the device';
comment on column tensile.device_job_samples.at is 'time of the sample';
comment on column tensile.device_job_samples.job_id is 'job on the device';
comment on column tensile.device_job_samples.granted_bytes is
  'most device memory that the job might use, which is the peak of its plan in whole regions';
comment on column tensile.device_job_samples.used_bytes is 'device memory that the job used';
comment on column tensile.device_job_samples.copied_bytes_per_s is
  'bytes per second that the job''s plan copies in each direction, by the measured time of its iterations; null before '
  'its first plan';

-- Graphs, latencies, plans -----------------------------------------------------------------------------------

create table tensile.graphs (
  signature text primary key,
  summary jsonb not null,
  created_at timestamptz not null default now()
);
comment on table tensile.graphs is 'captured step graphs, which do not depend on the device';
comment on column tensile.graphs.signature is 'digest of the graph''s operators, sizes and accesses';
comment on column tensile.graphs.summary is 'counts and sizes of the graph''s operators and tensors';
comment on column tensile.graphs.created_at is 'time of the first capture';

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
comment on table tensile.op_latency is
  'measured latencies of operators on each kind of device; later jobs need not measure the same operators again';
comment on column tensile.op_latency.signature is 'digest of the operator: kind, shapes, types, attributes';
comment on column tensile.op_latency.device_kind is 'kind of device that the operator ran on';
comment on column tensile.op_latency.name is 'name of the operator, for display';
comment on column tensile.op_latency.latency_ns is 'latency of the operator, as a moving average of the measurements';
comment on column tensile.op_latency.workspace_bytes is
  'largest memory that the operator used in addition to its outputs';
comment on column tensile.op_latency.samples is 'number of measurements in the average';
comment on column tensile.op_latency.predicted_ns is 'latency that was predicted before the first measurement';
comment on column tensile.op_latency.updated_at is 'time of the last measurement';

create table tensile.op_descriptions (
  signature text primary key,
  description text not null
);
comment on table tensile.op_descriptions is
  'descriptions of measured operators; with op_latency, they are the training data of latency predictors';
comment on column tensile.op_descriptions.signature is 'digest of the operator, as in op_latency';
comment on column tensile.op_descriptions.description is
  'shapes, types and parameters of the operator: JSON of scheduler/timing/operator_features.py';

create table tensile.predictors (
  device_kind text primary key,
  model bytea not null,
  survey bytea not null,
  samples bigint not null,
  history bigint not null,
  trained_at timestamptz not null default now()
);
comment on table tensile.predictors is
  'latency predictors, one for each kind of device; they predict operators that were never measured there';
comment on column tensile.predictors.device_kind is 'kind of device that the predictor was trained for';
comment on column tensile.predictors.model is 'weights of the predictor (safetensors)';
comment on column tensile.predictors.survey is
  'operators measured before any job ran on this kind of device: JSON lines, compressed by zlib';
comment on column tensile.predictors.samples is 'number of measured operators in the training data';
comment on column tensile.predictors.history is 'number of those operators that ran in jobs';
comment on column tensile.predictors.trained_at is 'time of the training';

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
comment on table tensile.device_contention is
  'for each kind of device, how much longer work takes beside other jobs than alone, measured once';
comment on column tensile.device_contention.device_kind is 'kind of the device, with the number of threads of a job';
comment on column tensile.device_contention.jobs is 'number of jobs side by side';
comment on column tensile.device_contention.arithmetic is
  'factor for work that is bound by arithmetic, beside other such work';
comment on column tensile.device_contention.memory is
  'factor for work that is bound by memory bandwidth, beside other such work';
comment on column tensile.device_contention.mixed is 'mean factor when half of the jobs are of either kind';
comment on column tensile.device_contention.measured_at is 'time of the measurement';
comment on column tensile.device_contention.learned is
  'factor of jobs that trained side by side, which corrects the measurement; null until there were any';
comment on column tensile.device_contention.short is
  'factor for short steps of small networks, beside other such steps; null if it was not measured';
comment on column tensile.device_contention.short_mixed is
  'factor for such steps when half of the jobs are bound by arithmetic or by memory bandwidth';
comment on column tensile.device_contention.short_ns is
  'time of such a step alone, in nanoseconds; in the row of one job';
comment on column tensile.device_contention.learned_short is
  'factor of jobs with short steps that trained side by side; null until there were any';
comment on column tensile.device_contention.training is
  'factor for whole steps of a training, beside other such steps; null if it was not measured';
comment on column tensile.device_contention.taken_cores is
  'cores that the database, the controller and other programs keep busy while jobs train; in the row of one job';

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
comment on table tensile.device_overheads is
  'for each kind of device and of job, what jobs take besides their iterations, and how early they stop; null: not known';
comment on column tensile.device_overheads.device_kind is 'kind of the device, with the number of threads of a job';
comment on column tensile.device_overheads.kind is 'kind of the job: signature of the graph of its training step';
comment on column tensile.device_overheads.state_bytes is 'size of what such a job keeps between iterations';
comment on column tensile.device_overheads.startup_ns is 'time from the order to start until the first step begins';
comment on column tensile.device_overheads.between_ns is 'time of a step without its iteration';
comment on column tensile.device_overheads.closing_ns is
  'time from the end of the training until the version is published';
comment on column tensile.device_overheads.trained_share is
  'share of its steps that such a job trains, because it stops early';
comment on column tensile.device_overheads.updated_at is 'time when the row was last written';

create table tensile.device_outlooks (
  worker_id bigint primary key references tensile.workers on delete cascade,
  outlook jsonb not null,
  updated_at timestamptz not null default now(),
  constraint device_outlooks_are_bounded check (octet_length(outlook::text) <= 1048576)
) with (fillfactor = 50);
comment on table tensile.device_outlooks is
  'what the jobs on each device still need, from which tensile_explain predicts the effect of one more job';
comment on column tensile.device_outlooks.worker_id is 'worker of the device';
comment on column tensile.device_outlooks.outlook is
  'indb_tensile.scheduler.admission.outlook.Outlook: the device, its running jobs and those that wait for it';
comment on column tensile.device_outlooks.updated_at is 'time when the row was last written';

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
comment on table tensile.job_sets is
  'for each job, the jobs that it ran beside, and how well: a row for each span of time in which they were the same';
comment on column tensile.job_sets.set_id is 'number of the row';
comment on column tensile.job_sets.job_id is 'number of the job';
comment on column tensile.job_sets.attempt is 'attempt of the job';
comment on column tensile.job_sets.beside is 'numbers of the other jobs that ran on the device; empty if it ran alone';
comment on column tensile.job_sets.stp_foretold is
  'system throughput foretold for this job and those beside it: the sum of their speeds relative to alone';
comment on column tensile.job_sets.stp_measured is
  'system throughput measured, as an average in which later measurements weigh more; null until all jobs are measured';
comment on column tensile.job_sets.started_at is
  'time when the other jobs became these, or another number of jobs was prepared beside them';
comment on column tensile.job_sets.ended_at is
  'time when the other jobs changed; null for the present row of a job, and for the last row of a job that has ended';
comment on column tensile.job_sets.speed_foretold is
  'speed foretold for this job, relative to alone with all the memory: its part of stp_foretold';

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
comment on table tensile.plans is 'memory plans of jobs, with predicted and measured memory and time';
comment on column tensile.plans.plan_id is 'number of the plan among the plans of all jobs';
comment on column tensile.plans.job_id is 'job of the plan';
comment on column tensile.plans.attempt is 'attempt of the job that the plan was made for';
comment on column tensile.plans.generation is
  'number of the plan within the attempt; each new plan has the next number';
comment on column tensile.plans.reason is 'reason for planning: start, another job''s start or end, parking, drift or memory';
comment on column tensile.plans.policy is 'policy that made the plan';
comment on column tensile.plans.vanilla_peak_bytes is 'peak if no tensor were freed before the end of the iteration';
comment on column tensile.plans.liveness_peak_bytes is 'peak if every tensor were freed after its last access';
comment on column tensile.plans.floor_bytes is 'least peak that any plan could have';
comment on column tensile.plans.predicted_peak_bytes is 'peak of the plan, by simulation';
comment on column tensile.plans.measured_peak_bytes is 'peak on the device';
comment on column tensile.plans.predicted_iteration_ns is 'time of one iteration, by simulation';
comment on column tensile.plans.measured_iteration_ns is
  'measured time of one iteration, as an average in which later iterations weigh more';
comment on column tensile.plans.predicted_stall_ns is
  'part of the iteration time spent waiting for copies, by simulation';
comment on column tensile.plans.measured_stall_ns is 'part of the iteration time spent waiting for copies, measured';
comment on column tensile.plans.swaps is 'tensors that are swapped out in each iteration';
comment on column tensile.plans.swapped_bytes is 'total size of these tensors';
comment on column tensile.plans.recomputed is 'operators that run again in each iteration';
comment on column tensile.plans.planning_ns is 'time that planning took';
comment on column tensile.plans.plan is 'the plan, as JSON';
comment on column tensile.plans.created_at is 'time when the plan was made';
comment on column tensile.plans.adopted_at is 'time when the trainer began to follow the plan';

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
comment on table tensile.traces is
  'recorded iterations of jobs, one row for each job whose owner asked for a trace; only the owner may read it';
comment on column tensile.traces.job_id is 'job of the recording';
comment on column tensile.traces.iterations is 'most iterations that the owner asked for';
comment on column tensile.traces.seconds is 'seconds after which no further iteration is recorded';
comment on column tensile.traces.starts_at is 'time before which no iteration is recorded';
comment on column tensile.traces.requested_at is 'time of the request; a later one replaces it';
comment on column tensile.traces.recording is
  'events of the iterations, as compressed JSON; null until the first recording is complete';
comment on column tensile.traces.recorded_at is
  'time of the request that the recording answers; a request is open while this is null or earlier than requested_at';

create table tensile.job_graphs (
  job_id bigint primary key references tensile.jobs on delete cascade,
  graph bytea not null,
  written_at timestamptz not null default now(),
  constraint job_graphs_are_bounded check (octet_length(graph) <= 8388608)
);
comment on table tensile.job_graphs is
  'the training step of each job that has begun to train: what its plans, traces and pictures refer to';
comment on column tensile.job_graphs.job_id is 'job of the graph';
comment on column tensile.job_graphs.graph is
  'step graph with the latencies of its operators, as compressed JSON of the format of tensile graph export';
comment on column tensile.job_graphs.written_at is
  'time of writing; a graph is written again if an operator needed more memory than was known';

-- Quotas ------------------------------------------------------------------------------------------------------

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
comment on table tensile.role_quotas is
  'quotas of roles, as set by an administrator with tensile_set_quota(); null stands for the default';
comment on column tensile.role_quotas.role_oid is
  'role of the quota; 0 stands for all roles without a quota of their own';
comment on column tensile.role_quotas.installation is
  'database that role_oid belongs to: in a copy of the database the oid may be another role''s';
comment on column tensile.role_quotas.role_name is 'name of the role when the quota was set, for display';
comment on column tensile.role_quotas.jobs_running is
  'most jobs of the role that workers may have at once; by default one less than the slots of all workers, and at '
  'least one';
comment on column tensile.role_quotas.jobs_queued is 'most jobs of the role in the queue; by default 10000';
comment on column tensile.role_quotas.bytes is
  'most device memory that all jobs of the role may be granted together; by default without a limit';
comment on column tensile.role_quotas.highest_priority is
  'highest priority that the role may give a job; by default 1000';
comment on column tensile.role_quotas.device_seconds is
  'most device-seconds of the role in one day (UTC); by default without a limit';
comment on column tensile.role_quotas.weight is
  'weight of the role when owners share the devices: twice the weight is twice the share; by default 1';
comment on column tensile.role_quotas.changed_at is 'time of the last change';
comment on column tensile.role_quotas.changed_by is 'role that made the last change';

-- Usage --------------------------------------------------------------------------------------------------------

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

comment on table tensile.usage is
  'use of devices by each owner and model, by day; controllers add to it once a second. A job that runs uses a device '
  'second by second in the larger of two shares: that of the device''s memory it is granted, and that of its compute, '
  'which jobs side by side divide equally';
comment on column tensile.usage.owner_oid is 'owner of the jobs; the oid is valid only in the database of the column installation';
comment on column tensile.usage.installation is 'database that owner_oid belongs to';
comment on column tensile.usage.day is 'day in UTC';
comment on column tensile.usage.model_name is 'model of the jobs, by the name that it had then';
comment on column tensile.usage.owner_name is 'name of the owner then, for display';
comment on column tensile.usage.device_s is 'device-seconds: the job''s share of the device, summed over time';
comment on column tensile.usage.byte_s is 'byte-seconds: the granted device memory, summed over time';
comment on column tensile.usage.running_s is 'seconds in which a job had device memory, summed over the jobs';
comment on column tensile.usage.measured_s is 'the part of running_s in which the speed of the job was known';
comment on column tensile.usage.alone_s is
  'seconds that the work done in measured_s takes alone on the device with all the memory; measured_s / alone_s is the '
  'mean slowdown';
comment on column tensile.usage.jobs_deleted is
  'jobs that ended after a worker had claimed them and are deleted since; jobs deleted on the day of their end count for '
  'the day before';

create table tensile.deleted_jobs (
  owner_oid oid not null,
  installation uuid not null default tensile.installation(),
  state tensile.job_state not null,
  jobs bigint not null,
  primary key (owner_oid, installation, state),
  constraint deleted_jobs_had_ended check (state in ('succeeded', 'failed', 'cancelled')),
  constraint deleted_jobs_are_counts check (jobs >= 0)
) with (fillfactor = 50);
comment on table tensile.deleted_jobs is
  'how many jobs of each owner had ended and are deleted since, so that the number of jobs that have ever ended does not '
  'fall; a trigger writes it';
comment on column tensile.deleted_jobs.owner_oid is
  'owner of the jobs; the oid is valid only in the database of the column installation';
comment on column tensile.deleted_jobs.installation is 'database that owner_oid belongs to';
comment on column tensile.deleted_jobs.state is 'state in which the jobs had ended';
comment on column tensile.deleted_jobs.jobs is 'number of these jobs';

create table tensile.deleted_usage (
  owner_oid oid not null,
  installation uuid not null default tensile.installation(),
  device_s double precision not null default 0,
  byte_s double precision not null default 0,
  running_s double precision not null default 0,
  primary key (owner_oid, installation)
) with (fillfactor = 50);

comment on table tensile.deleted_usage is
  'use of devices by each owner whose rows in tensile.usage were deleted by their age, so that the total use does not '
  'fall; a trigger writes it';
comment on column tensile.deleted_usage.owner_oid is
  'owner of the jobs; the oid is valid only in the database of the column installation';
comment on column tensile.deleted_usage.installation is 'database that owner_oid belongs to';
comment on column tensile.deleted_usage.device_s is 'sum of device_s of the deleted rows';
comment on column tensile.deleted_usage.byte_s is 'sum of byte_s of the deleted rows';
comment on column tensile.deleted_usage.running_s is 'sum of running_s of the deleted rows';

create table tensile.totals (
  name text not null,
  label text not null default '',
  value double precision not null,
  primary key (name, label),
  constraint totals_are_amounts check (value >= 0 and value < 'infinity')
) with (fillfactor = 50);
comment on table tensile.totals is
  'counters of all users together that never fall: copies, waits, interruptions and predictions since the installation; '
  'controllers and their services add to them through tensile.add_totals()';
comment on column tensile.totals.name is 'what is counted';
comment on column tensile.totals.label is
  'kind of what is counted, such as the direction of a copy; empty for a counter without kinds';
comment on column tensile.totals.value is 'sum of all that was added';

create table tensile.count_batches (
  source text primary key,
  process uuid not null,
  number bigint not null,
  stored_at timestamptz not null default now(),
  constraint count_batches_sources_are_short check (length(source) between 1 and 200)
) with (fillfactor = 50);
comment on table tensile.count_batches is
  'the last batch of counts that each service has stored, so that a batch that is sent again after a broken connection '
  'is not added twice';
comment on column tensile.count_batches.source is 'service: its worker, or the standby beside which it runs';
comment on column tensile.count_batches.process is 'start of the service, which numbers its batches from 1';
comment on column tensile.count_batches.number is 'number of the last batch';
comment on column tensile.count_batches.stored_at is 'time at which the batch was stored';

create table tensile.owner_usage (
  owner_oid oid not null,
  installation uuid not null default tensile.installation(),
  recent_s double precision not null default 0,
  day date not null,
  day_s double precision not null default 0,
  updated_at timestamptz not null default now(),
  primary key (owner_oid, installation)
) with (fillfactor = 50);
comment on table tensile.owner_usage is
  'how much each owner has used devices lately, which decides whose job is claimed next, and how much on the present '
  'day, which a quota can bound; controllers add to it once a second';
comment on column tensile.owner_usage.owner_oid is 'owner; the oid is valid only in the database of the column installation';
comment on column tensile.owner_usage.installation is 'database that owner_oid belongs to';
comment on column tensile.owner_usage.recent_s is
  'device-seconds until updated_at, where earlier ones count less: half after each period of the setting usage_half_life';
comment on column tensile.owner_usage.day is 'day in UTC of the last use';
comment on column tensile.owner_usage.day_s is 'device-seconds on that day';
comment on column tensile.owner_usage.updated_at is 'time of the last addition';

-- Snapshots ---------------------------------------------------------------------------------------------------

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
comment on table tensile.snapshots is
  'snapshot tables in schema tensile_data, which hold the training rows of jobs; a row is deleted after its table was '
  'dropped';
comment on column tensile.snapshots.job_id is 'job that trains on the snapshot';
comment on column tensile.snapshots.table_name is 'name of the table in schema tensile_data';
comment on column tensile.snapshots.key is
  'columns that identify rows, in the relation''s order: of the primary key, or those that the split names; their '
  'values decide the split of the rows. Empty without a key';
comment on column tensile.snapshots.rows is 'number of rows; null until the snapshot is sealed';
comment on column tensile.snapshots.bytes is 'size on disk, including TOAST; null until the snapshot is sealed';
comment on column tensile.snapshots.created_at is 'start of the transaction that created the snapshot';
comment on column tensile.snapshots.valid_rows is
  'number of rows, before the rows of the test part, that come from the table of the validation part';
comment on column tensile.snapshots.test_rows is 'number of last rows, which come from the table of the test part';
comment on column tensile.snapshots.sealed is
  'true once the snapshot is complete; from then on only the reader may read it';
