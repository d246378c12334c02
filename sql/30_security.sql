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
alter table tensile.checkpoint_chunks enable row level security;
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
grant execute on function tensile.back_off(integer), tensile.claim_job(bigint),
  tensile.after_interruption(tensile.jobs, text, text, timestamptz, double precision) to tensile_worker;
grant update (state, phase, attempt, faults, interruptions, interrupted, progress_at, last_death_phase, claim, worker_id, waits_for, error_sqlstate, error_message, error_detail,
  error_hint, not_before, started_at, finished_at, version_id) on tensile.jobs to tensile_worker;
grant insert, update, delete on tensile.workers, tensile.devices, tensile.device_jobs, tensile.job_progress,
  tensile.metrics, tensile.checkpoints, tensile.checkpoint_chunks, tensile.artifacts, tensile.graphs,
  tensile.op_latency, tensile.op_descriptions, tensile.predictors, tensile.plans, tensile.device_links to tensile_worker;
grant insert on tensile.job_events, tensile.models, tensile.model_versions, tensile.device_paces to tensile_worker;
grant update (last_spec) on tensile.models to tensile_worker;
grant update (deployed) on tensile.model_versions to tensile_worker;

create policy jobs_worked on tensile.jobs to tensile_worker using (true) with check (true);
create policy models_worked on tensile.models to tensile_worker using (true) with check (true);
create policy versions_worked on tensile.model_versions to tensile_worker using (true) with check (true);
create policy privileges_worked on tensile.model_privileges for select to tensile_worker using (true);
create policy artifacts_worked on tensile.artifacts to tensile_worker using (true) with check (true);
create policy checkpoints_worked on tensile.checkpoints to tensile_worker using (true) with check (true);
create policy checkpoint_chunks_worked on tensile.checkpoint_chunks to tensile_worker using (true) with check (true);
create policy progress_worked on tensile.job_progress to tensile_worker using (true) with check (true);
create policy events_worked on tensile.job_events to tensile_worker using (true) with check (true);
create policy metrics_worked on tensile.metrics to tensile_worker using (true) with check (true);
create policy plans_worked on tensile.plans to tensile_worker using (true) with check (true);
create policy device_use_worked on tensile.device_jobs to tensile_worker using (true) with check (true);
