-- The rows that pg_dump includes when the catalog is an extension; without these calls it would include none. This file
-- is not part of an installation by a script, whose tables are dumped like any other tables.
--
-- Models are dumped with all their rows, and only those jobs that have ended, with their rows in other tables. Workers,
-- devices and checkpoints belong to running processes and are not dumped. Each call is a statement of its own, because
-- each changes the same row of the system catalog.

select pg_catalog.pg_extension_config_dump('tensile.settings', '');
select pg_catalog.pg_extension_config_dump('tensile.role_quotas', '');
select pg_catalog.pg_extension_config_dump('tensile.usage', '');
select pg_catalog.pg_extension_config_dump('tensile.deleted_jobs', '');
select pg_catalog.pg_extension_config_dump('tensile.deleted_usage', '');
select pg_catalog.pg_extension_config_dump('tensile.totals', '');
select pg_catalog.pg_extension_config_dump('tensile.models', '');
select pg_catalog.pg_extension_config_dump('tensile.model_versions', '');
select pg_catalog.pg_extension_config_dump('tensile.version_bundles', '');
select pg_catalog.pg_extension_config_dump('tensile.version_figures', '');
select pg_catalog.pg_extension_config_dump('tensile.predicted_inputs', '');
select pg_catalog.pg_extension_config_dump('tensile.deployments', '');
select pg_catalog.pg_extension_config_dump('tensile.model_privileges', '');
select pg_catalog.pg_extension_config_dump('tensile.artifacts', '');
select pg_catalog.pg_extension_config_dump('tensile.networks', '');
select pg_catalog.pg_extension_config_dump('tensile.network_chunks', '');
select pg_catalog.pg_extension_config_dump('tensile.network_privileges', '');
select pg_catalog.pg_extension_config_dump('tensile.graphs', '');
select pg_catalog.pg_extension_config_dump('tensile.op_latency', '');
select pg_catalog.pg_extension_config_dump('tensile.op_descriptions', '');
select pg_catalog.pg_extension_config_dump('tensile.predictors', '');
select pg_catalog.pg_extension_config_dump('tensile.device_paces', '');
select pg_catalog.pg_extension_config_dump('tensile.device_contention', '');
select pg_catalog.pg_extension_config_dump('tensile.device_overheads', '');
select pg_catalog.pg_extension_config_dump('tensile.jobs', $$where state in ('succeeded', 'failed', 'cancelled')$$);
select pg_catalog.pg_extension_config_dump('tensile.job_progress', $$where job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);
select pg_catalog.pg_extension_config_dump('tensile.job_events', $$where job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);
select pg_catalog.pg_extension_config_dump('tensile.metrics', $$where job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);
select pg_catalog.pg_extension_config_dump('tensile.data_reports', $$where job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);
select pg_catalog.pg_extension_config_dump('tensile.trials', $$where search_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled')) and job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);
select pg_catalog.pg_extension_config_dump('tensile.trial_results', $$where job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);
select pg_catalog.pg_extension_config_dump('tensile.plans', $$where job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);
select pg_catalog.pg_extension_config_dump('tensile.job_sets', $$where job_id in (
  select job_id from tensile.jobs where state in ('succeeded', 'failed', 'cancelled'))$$);

select pg_catalog.pg_extension_config_dump('tensile.models_model_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.model_versions_version_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.deployments_deployment_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.artifacts_artifact_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.networks_network_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.jobs_job_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.claim_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.job_events_event_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.plans_plan_id_seq', '');
select pg_catalog.pg_extension_config_dump('tensile.job_sets_set_id_seq', '');
