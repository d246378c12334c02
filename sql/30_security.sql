-- Privileges and row-level security. The functions for users are security invoker, so the same rules apply to calls of
-- these functions and to SQL statements on the tables.
--
-- A role owns a row if the oid matches and the row belongs to this database: in a restored copy an oid may be another
-- role's. Stored names are only for display: a renamed role keeps its rows, and a new role with the old name gets none.
--
-- Users, monitors and administrators have INSERT and UPDATE only on columns, and no DELETE or TRUNCATE. LOCK TABLE
-- checks only privileges on whole tables, so these roles cannot take locks that make other sessions wait.
--
-- The policies compute constants in sub-selects without a reference to the row, which are evaluated once for each query
-- and not once for each row.

revoke all on schema tensile from public;
grant usage on schema tensile to tensile_user, tensile_monitor, tensile_admin, tensile_worker;
grant execute on function tensile.catalog_version(), tensile.catalog_digest(), tensile.installation(),
  tensile.current_role_oid() to tensile_user, tensile_monitor, tensile_admin, tensile_worker;
grant execute on function tensile.spec_fault(jsonb) to tensile_user;  -- a trigger of jobs calls it as the job's owner

-- The function is in schema public, because a role without USAGE on schema tensile must be able to call it.
create function public.tensile_require_role(wanted name) returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  if not pg_has_role(wanted, 'usage') then
    raise exception 'role "%" is not a member of %', current_user, wanted
      using errcode = 'insufficient_privilege',
            hint = format('Ask an administrator for: grant %I to %I;', wanted, current_user);
  end if;
end
$$;
comment on function public.tensile_require_role(name) is
  'raises an error if the current role is not a member of this role; functions of indb-tensile call it first';

grant execute on function tensile.adopt_owners() to tensile_admin, tensile_worker;
grant execute on function tensile.adopt_jobs() to tensile_admin;
grant execute on function tensile.delete_dropped(integer) to tensile_admin, tensile_worker;

alter table tensile.models enable row level security;
alter table tensile.model_versions enable row level security;
alter table tensile.model_privileges enable row level security;
alter table tensile.version_bundles enable row level security;
alter table tensile.version_figures enable row level security;
alter table tensile.predicted_inputs enable row level security;
alter table tensile.artifacts enable row level security;
alter table tensile.checkpoints enable row level security;
alter table tensile.checkpoint_chunks enable row level security;
alter table tensile.jobs enable row level security;
alter table tensile.job_progress enable row level security;
alter table tensile.job_events enable row level security;
alter table tensile.metrics enable row level security;
alter table tensile.plans enable row level security;
alter table tensile.job_sets enable row level security;
alter table tensile.data_reports enable row level security;
alter table tensile.device_jobs enable row level security;
alter table tensile.device_outlooks enable row level security;
alter table tensile.job_ranks enable row level security;
alter table tensile.rank_values enable row level security;
alter table tensile.gang_turns enable row level security;

-- Users ------------------------------------------------------------------------------------------------------

grant select on tensile.settings, tensile.models, tensile.model_versions, tensile.model_privileges,
  tensile.version_bundles, tensile.version_figures, tensile.artifacts, tensile.workers, tensile.jobs, tensile.job_progress,
  tensile.job_events, tensile.metrics,
  tensile.devices, tensile.device_jobs, tensile.device_links, tensile.device_contention, tensile.op_latency, tensile.plans,
  tensile.job_sets, tensile.data_reports
  to tensile_user;

-- The columns of the owner are never granted: their defaults are the current role.
grant insert (model_name, relation_oid, relation_schema, relation_name, spec, priority, not_before,
  idempotency_key, depends_on, retry_of) on tensile.jobs to tensile_user;
grant update (cancel_requested, pause_requested, priority) on tensile.jobs to tensile_user;
grant insert (name, definition) on tensile.models to tensile_user;
grant update (name, definition, last_spec, dropped_at, measure_drift) on tensile.models to tensile_user;
grant update (deployed) on tensile.model_versions to tensile_user;
grant insert (model_id, grantee_oid, grantee_name, privilege) on tensile.model_privileges to tensile_user;
grant update (revoked_at) on tensile.model_privileges to tensile_user;

create policy jobs_of_owner on tensile.jobs to tensile_user
  using (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()))
  with check (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()));
-- A dropped model is hidden, except from the transaction that drops it: PostgreSQL requires that the new row of an
-- update is visible.
create policy models_of_owner on tensile.models to tensile_user
  using (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation())
         and (dropped_at is null or dropped_at = now()))
  with check (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation())
              and (dropped_at is null or dropped_at = now()));
create policy models_granted on tensile.models for select to tensile_user
  using (model_id in (select p.model_id from tensile.model_privileges as p where p.revoked_at is null)
         and dropped_at is null);

create policy model_privileges_of_grantee on tensile.model_privileges for select to tensile_user
  using (revoked_at is null and installation = (select tensile.installation())
         and (grantee_oid = 0 or pg_has_role(grantee_oid, 'usage')));
create policy model_privileges_of_owner on tensile.model_privileges to tensile_user
  using (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()))
  with check (owner_oid = (select tensile.current_role_oid()) and installation = (select tensile.installation()));

-- A user who sees a model or a job also sees its rows in other tables. Only the model's owner sees weights and bundles.
create policy versions_of_model on tensile.model_versions for select to tensile_user
  using (exists (select from tensile.models as m where m.model_id = model_versions.model_id));
create policy versions_of_owner on tensile.model_versions for update to tensile_user
  using (exists (select from tensile.models as m
                  where m.model_id = model_versions.model_id and m.owner_oid = (select tensile.current_role_oid())
                    and m.installation = (select tensile.installation())));
create policy bundles_of_owner on tensile.version_bundles for select to tensile_user
  using (exists (select from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
                  where v.version_id = version_bundles.version_id
                    and m.owner_oid = (select tensile.current_role_oid())
                    and m.installation = (select tensile.installation())));
-- Only the owner sees these figures and the data report of a job, because some of them name classes of the table. All
-- other figures of a version are visible to everybody who sees the version.
create policy figures_of_owner on tensile.version_figures for select to tensile_user
  using (exists (select from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
                  where v.version_id = version_figures.version_id
                    and m.owner_oid = (select tensile.current_role_oid())
                    and m.installation = (select tensile.installation())));
create policy figures_of_version on tensile.version_figures for select to tensile_user
  using (name in ('calibration', 'feature_importance', 'baseline', 'forecast')
         and exists (select from tensile.model_versions as v where v.version_id = version_figures.version_id));
create policy artifacts_of_owner on tensile.artifacts for select to tensile_user
  using (exists (select from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
                  where v.version_id = artifacts.version_id
                    and m.owner_oid = (select tensile.current_role_oid())
                    and m.installation = (select tensile.installation())));
-- The privilege `weights` allows a role to copy a model: into a training that starts from its weights, or into a file.
create policy bundles_granted on tensile.version_bundles for select to tensile_user
  using (exists (select from tensile.model_versions as v join tensile.model_privileges as p on p.model_id = v.model_id
                  where v.version_id = version_bundles.version_id and p.privilege = 'weights' and p.revoked_at is null
                    and (p.grantee_oid = 0 or pg_has_role(p.grantee_oid, 'usage'))
                    and p.installation = (select tensile.installation())));
create policy artifacts_granted on tensile.artifacts for select to tensile_user
  using (exists (select from tensile.model_versions as v join tensile.model_privileges as p on p.model_id = v.model_id
                  where v.version_id = artifacts.version_id and p.privilege = 'weights' and p.revoked_at is null
                    and (p.grantee_oid = 0 or pg_has_role(p.grantee_oid, 'usage'))
                    and p.installation = (select tensile.installation())));
create policy progress_of_job on tensile.job_progress for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = job_progress.job_id));
create policy events_of_job on tensile.job_events for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = job_events.job_id));
create policy metrics_of_job on tensile.metrics for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = metrics.job_id));
create policy plans_of_job on tensile.plans for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = plans.job_id));
create policy job_sets_of_job on tensile.job_sets for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = job_sets.job_id));
-- Only the owner sees the report of a job: a monitor sees the job, but a report names the classes of the owner's table.
create policy reports_of_owner on tensile.data_reports for select to tensile_user
  using (exists (select from tensile.jobs as j
                  where j.job_id = data_reports.job_id and j.owner_oid = (select tensile.current_role_oid())
                    and j.installation = (select tensile.installation())));
grant select (job_id, rank, worker_id, state, waits_for, since, divides_state, step_ns) on tensile.job_ranks
  to tensile_user, tensile_monitor;
create policy ranks_of_job on tensile.job_ranks for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = job_ranks.job_id));
create policy device_use_of_job on tensile.device_jobs for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = device_jobs.job_id));

-- Monitors see everything except the bytes of models -----------------------------------------------------------

grant select on tensile.settings, tensile.models, tensile.model_versions, tensile.model_privileges,
  tensile.checkpoints, tensile.workers, tensile.jobs, tensile.job_progress, tensile.job_events, tensile.metrics,
  tensile.devices, tensile.device_jobs, tensile.graphs, tensile.op_latency, tensile.plans, tensile.job_sets,
  tensile.device_paces, tensile.device_contention, tensile.device_overheads, tensile.device_links,
  tensile.version_figures to tensile_monitor;

create policy jobs_monitored on tensile.jobs for select to tensile_monitor using (true);
create policy models_monitored on tensile.models for select to tensile_monitor
  using (dropped_at is null or dropped_at = now());
create policy versions_monitored on tensile.model_versions for select to tensile_monitor using (true);
-- tensile.model_list shows a model's metric beside that of its baseline. Other figures come from rows of the table.
-- tensile.stat_drift shows them how many rows are in which bin, and not the bounds of the bins.
create policy baselines_monitored on tensile.version_figures for select to tensile_monitor
  using (name in ('baseline', 'input_counts'));
create policy privileges_monitored on tensile.model_privileges for select to tensile_monitor using (true);
create policy checkpoints_monitored on tensile.checkpoints for select to tensile_monitor using (true);
create policy progress_monitored on tensile.job_progress for select to tensile_monitor using (true);
create policy events_monitored on tensile.job_events for select to tensile_monitor using (true);
create policy metrics_monitored on tensile.metrics for select to tensile_monitor using (true);
create policy plans_monitored on tensile.plans for select to tensile_monitor using (true);
create policy job_sets_monitored on tensile.job_sets for select to tensile_monitor using (true);
create policy ranks_monitored on tensile.job_ranks for select to tensile_monitor using (true);
create policy device_use_monitored on tensile.device_jobs for select to tensile_monitor using (true);

-- Administrators may change every job and model as its owner may, and change settings ---------------------------

grant insert (name, value), update (value, changed_at, changed_by) on tensile.settings to tensile_admin;
grant select on tensile.artifacts to tensile_admin;

create policy jobs_administered on tensile.jobs for update to tensile_admin using (true) with check (true);
create policy models_administered on tensile.models for update to tensile_admin using (true) with check (true);
create policy versions_administered on tensile.model_versions for update to tensile_admin
  using (true) with check (true);
create policy privileges_administered on tensile.model_privileges to tensile_admin using (true) with check (true);
create policy artifacts_administered on tensile.artifacts for select to tensile_admin using (true);

-- The worker writes the progress and the results of jobs. It cannot enqueue a job, create a model, or change an owner:
-- it has no UPDATE on a job's owner, request and installation.

grant select on all tables in schema tensile to tensile_worker;
grant usage on sequence tensile.claim_seq to tensile_worker;
grant execute on function tensile.back_off(integer), tensile.claim_job(bigint, oid[], boolean, bigint),
  tensile.work_left(), tensile.better_worker(bigint, bigint), tensile.idle_budget(bigint), tensile.largest_budget(),
  tensile.after_interruption(tensile.jobs, text, text, timestamptz, double precision), tensile.may_train(oid),
  tensile.why_not_trained(oid, name), tensile.way_to_train(oid), tensile.incomplete_gang(), tensile.gang_devices(bigint, bigint),
  tensile.offer_ranks(tensile.jobs), tensile.accept_rank(bigint), tensile.may_prepare(bigint, oid),
  tensile.take_back_gangs(double precision),
  tensile.most_gang_devices(bigint), tensile.accepting_devices(bigint, bigint), tensile.holds_back(bigint),
  tensile.device_drains(), tensile.has_lacked_memory(bigint), tensile.waiting_gangs(), tensile.turn_workers(tensile.jobs),
  tensile.turn_is_ready(tensile.jobs), tensile.keep_turns(),
  tensile.useful_devices(bigint, bigint), tensile.asked_devices(tensile.jobs), tensile.batch_parts(tensile.jobs),
  tensile.fit_gangs()
  to tensile_worker;
grant execute on function tensile.asked_devices(tensile.jobs) to tensile_user, tensile_monitor;
grant execute on function tensile.gang_words(bigint, integer, bigint) to tensile_user, tensile_monitor, tensile_worker;
grant update (state, phase, attempt, faults, interruptions, interrupted, progress_at, last_death_phase, threads, claim,
  worker_id, cancel_requested, waits_for, error_sqlstate, error_message, error_detail, error_hint, not_before,
  started_at, finished_at, version_id, awaits_jobs, init_version_id, needs_bytes, devices,
  short_since) on tensile.jobs to tensile_worker;
grant insert, update, delete on tensile.workers, tensile.devices, tensile.device_jobs, tensile.job_progress,
  tensile.metrics, tensile.checkpoints, tensile.checkpoint_chunks, tensile.artifacts, tensile.graphs,
  tensile.op_latency, tensile.op_descriptions, tensile.predictors, tensile.plans, tensile.job_sets,
  tensile.device_links, tensile.device_outlooks, tensile.device_overheads, tensile.rank_networks,
  tensile.rank_memory
  to tensile_worker;
grant insert, update on tensile.data_reports, tensile.job_ranks to tensile_worker;
grant insert, update, delete on tensile.rank_values, tensile.gang_turns to tensile_worker;
grant insert on tensile.job_events, tensile.model_versions, tensile.version_bundles, tensile.version_figures,
  tensile.device_paces,
  tensile.device_contention
  to tensile_worker;
grant update (learned, learned_short, taken_cores) on tensile.device_contention to tensile_worker;
grant update (last_spec, last_job_id, last_started_at) on tensile.models to tensile_worker;
grant update (deployed) on tensile.model_versions to tensile_worker;

create policy jobs_worked on tensile.jobs to tensile_worker using (true) with check (true);
create policy models_worked on tensile.models to tensile_worker using (true) with check (true);
create policy versions_worked on tensile.model_versions to tensile_worker using (true) with check (true);
create policy bundles_worked on tensile.version_bundles to tensile_worker using (true) with check (true);
create policy figures_worked on tensile.version_figures to tensile_worker using (true) with check (true);
create policy privileges_worked on tensile.model_privileges for select to tensile_worker using (true);
create policy artifacts_worked on tensile.artifacts to tensile_worker using (true) with check (true);
create policy checkpoints_worked on tensile.checkpoints to tensile_worker using (true) with check (true);
create policy checkpoint_chunks_worked on tensile.checkpoint_chunks to tensile_worker using (true) with check (true);
create policy progress_worked on tensile.job_progress to tensile_worker using (true) with check (true);
create policy events_worked on tensile.job_events to tensile_worker using (true) with check (true);
create policy metrics_worked on tensile.metrics to tensile_worker using (true) with check (true);
create policy plans_worked on tensile.plans to tensile_worker using (true) with check (true);
create policy job_sets_worked on tensile.job_sets to tensile_worker using (true) with check (true);
create policy reports_worked on tensile.data_reports to tensile_worker using (true) with check (true);
create policy outlooks_worked on tensile.device_outlooks to tensile_worker using (true) with check (true);
create policy ranks_worked on tensile.job_ranks to tensile_worker using (true) with check (true);
create policy gang_turns_worked on tensile.gang_turns to tensile_worker using (true) with check (true);
create policy rank_values_worked on tensile.rank_values to tensile_worker using (true) with check (true);
create policy device_use_worked on tensile.device_jobs to tensile_worker using (true) with check (true);

-- Administrators delete rows by these functions, because DELETE on a table would also allow them to lock it.
create function tensile.forget_device(device_kind text) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  deleted bigint := 0;
  more bigint;
begin
  delete from tensile.op_latency as t where t.device_kind = forget_device.device_kind;
  get diagnostics deleted = row_count;
  delete from tensile.predictors as t where t.device_kind = forget_device.device_kind;
  get diagnostics more = row_count;
  deleted := deleted + more;
  delete from tensile.device_paces as t where t.device_kind = forget_device.device_kind;
  delete from tensile.device_contention as t where t.device_kind = forget_device.device_kind;
  get diagnostics more = row_count;
  deleted := deleted + more;
  delete from tensile.device_overheads as t where t.device_kind = forget_device.device_kind;
  get diagnostics more = row_count;
  deleted := deleted + more;
  delete from tensile.device_links as t where t.device_kind = forget_device.device_kind;
  get diagnostics more = row_count;
  deleted := deleted + more;
  delete from tensile.rank_networks as t where t.device_kind = forget_device.device_kind;
  get diagnostics more = row_count;
  deleted := deleted + more;
  delete from tensile.rank_memory as t where t.device_kind = forget_device.device_kind;
  get diagnostics more = row_count;
  return deleted + more;
end
$$;
comment on function tensile.forget_device(text) is
  'deletes the measurements of a kind of device: latencies, predictor, pace, contention, overheads, links and networks; '
  'controllers measure them again';

create function tensile.forget_jobs(ended_before timestamptz) returns bigint
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  with ended as (
    delete from tensile.jobs as j
     where j.state in ('succeeded', 'failed', 'cancelled') and j.finished_at < ended_before
       -- A search needs the jobs of its trials until it ends.
       and not exists (select from tensile.jobs as s where s.job_id = j.search_id and s.finished_at is null)
    returning 1
  )
  select count(*) from ended
$$;
comment on function tensile.forget_jobs(timestamptz) is
  'deletes jobs that ended before this time, with their events, metrics and plans; models keep their versions';

create function tensile.reset_setting(name text) returns boolean
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  with reset as (delete from tensile.settings as s where s.name = reset_setting.name returning 1)
  select exists (select from reset)
$$;
comment on function tensile.reset_setting(text) is
  'resets a setting to its default; false if it had the default already';

revoke execute on function tensile.forget_device(text), tensile.forget_jobs(timestamptz), tensile.reset_setting(text)
  from public;
grant execute on function tensile.forget_device(text), tensile.forget_jobs(timestamptz), tensile.reset_setting(text)
  to tensile_admin;
