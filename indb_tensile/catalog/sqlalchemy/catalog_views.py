"""The views of schema `tensile` as SQLAlchemy metadata, beside the tables in the same `MetaData`.

PostgreSQL knows no constraint of a view, so every column may be null and no column is a key. The same test compares
them with an installed catalog as compares the tables.
"""

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Date, Double, Integer, Numeric, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, JSONB

from indb_tensile.catalog.sqlalchemy.catalog_tables import metadata
from indb_tensile.catalog.sqlalchemy.catalog_types import COPY_WAY, JOB_PHASE, JOB_STATE, TASK, TIME, Name


def _view(name: str, *columns: Column[Any]) -> Table:
    """Return a view. SQLAlchemy has no class for one, so `info` tells it from the tables."""
    return Table(name, metadata, *columns, info={"view": True})


setting_list = _view(
    "setting_list",
    Column("name", Text),
    Column("value", JSONB),
    Column("default_value", JSONB),
    Column("kind", Text),
    Column("description", Text),
    Column("changed_at", TIME),
    Column("changed_by", Name),
)

stat_quotas = _view(
    "stat_quotas",
    Column("role", Name),
    Column("jobs_running", BigInteger),
    Column("most_jobs_running", Integer),
    Column("jobs_queued", BigInteger),
    Column("most_jobs_queued", Integer),
    Column("bytes", BigInteger),
    Column("most_bytes", BigInteger),
    Column("highest_priority", Integer),
    Column("is_set", Boolean),
    Column("device_seconds_today", Double),
    Column("most_device_seconds", BigInteger),
    Column("weight", Double),
)

stat_drift = _view(
    "stat_drift",
    Column("model", Text),
    Column("owner", Name),
    Column("version", Integer),
    Column("deployed", Boolean),
    Column("active", Boolean),
    Column("feature", Text),
    Column("measure", Text),
    Column("psi", Double),
    Column("reading", Text),
    Column("predicted_rows", BigInteger),
    Column("training_rows", BigInteger),
    Column("first_day", Date),
    Column("updated_at", TIME),
    Column("bins", JSONB),
    Column("reason", Text),
)

stat_usage = _view(
    "stat_usage",
    Column("owner", Name),
    Column("model", Text),
    Column("device_seconds", Double),
    Column("byte_seconds", Double),
    Column("running_seconds", Double),
    Column("jobs_ended", BigInteger),
    Column("slowdown", Double),
    Column("device_seconds_today", Double),
    Column("first_day", Date),
    Column("last_day", Date),
)

stat_progress_train = _view(
    "stat_progress_train",
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("state", JOB_STATE),
    Column("phase", JOB_PHASE),
    Column("epoch", Integer),
    Column("epochs", Integer),
    Column("step", Integer),
    Column("steps", Integer),
    Column("percent", Numeric),
    Column("loss", Double),
    Column("valid_loss", Double),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("samples_per_s", Double),
    Column("eta", TIME),
    Column("used_bytes", BigInteger),
    Column("granted_bytes", BigInteger),
    Column("device_budget_bytes", BigInteger),
    Column("worker_id", BigInteger),
    Column("updated_at", TIME),
    Column("eta_earliest", TIME),
    Column("paused", Boolean),
    Column("host", Text),
    Column("device_name", Text),
)

stat_progress_predict = _view(
    "stat_progress_predict",
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("state", JOB_STATE),
    Column("phase", JOB_PHASE),
    Column("relation", Text),
    Column("output", Text),
    Column("rows_predicted", BigInteger),
    Column("rows_expected", BigInteger),
    Column("percent", Numeric),
    Column("rows_per_s", Double),
    Column("eta", TIME),
    Column("worker_id", BigInteger),
    Column("updated_at", TIME),
)

stat_jobs = _view(
    "stat_jobs",
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("relation", Text),
    Column("state", JOB_STATE),
    Column("phase", JOB_PHASE),
    Column("priority", Integer),
    Column("attempt", Integer),
    Column("enqueued_at", TIME),
    Column("started_at", TIME),
    Column("finished_at", TIME),
    Column("duration", INTERVAL),
    Column("cancel_requested", Boolean),
    Column("version", Integer),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("error_sqlstate", Text),
    Column("error_message", Text),
    Column("error_detail", Text),
    Column("error_hint", Text),
    Column("faults", Integer),
    Column("interruptions", Integer),
    Column("not_deployed", Text),
    Column("threads", Integer),
    Column("paused", Boolean),
    Column("depends_on", ARRAY(BigInteger)),
    Column("retry_of", BigInteger),
    Column("search_id", BigInteger),
    Column("worker_id", BigInteger),
    Column("host", Text),
    Column("device_name", Text),
)

stat_trials = _view(
    "stat_trials",
    Column("search_id", BigInteger),
    Column("trial", Integer),
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("state", Text),
    Column("phase", JOB_PHASE),
    Column("parameters", JSONB),
    Column("epoch", Integer),
    Column("epochs", Integer),
    Column("rung", Integer),
    Column("rungs", Integer),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("valid_loss", Double),
    Column("version", Integer),
    Column("test_metric", Double),
    Column("started_at", TIME),
    Column("finished_at", TIME),
    Column("duration", INTERVAL),
    Column("error_message", Text),
)

stat_searches = _view(
    "stat_searches",
    Column("search_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("relation", Text),
    Column("state", JOB_STATE),
    Column("trials", Integer),
    Column("begun", BigInteger),
    Column("active", BigInteger),
    Column("waiting", BigInteger),
    Column("trained", BigInteger),
    Column("pruned", BigInteger),
    Column("failed", BigInteger),
    Column("best_trial", Integer),
    Column("metric_name", Text),
    Column("best_metric", Double),
    Column("epochs_trained", BigInteger),
    Column("version", Integer),
    Column("enqueued_at", TIME),
    Column("started_at", TIME),
    Column("finished_at", TIME),
    Column("duration", INTERVAL),
    Column("paused", Boolean),
    Column("error_message", Text),
    Column("waits_for", Text),
)

stat_queue = _view(
    "stat_queue",
    Column("position", BigInteger),
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("priority", Integer),
    Column("state", JOB_STATE),
    Column("phase", JOB_PHASE),
    Column("waits_for", Text),
    Column("not_before", TIME),
    Column("enqueued_at", TIME),
    Column("waiting", INTERVAL),
    Column("paused", Boolean),
    Column("depends_on", ARRAY(BigInteger)),
)

stat_device = _view(
    "stat_device",
    Column("worker_id", BigInteger),
    Column("host", Text),
    Column("device", Text),
    Column("alive", Boolean),
    Column("jobs", BigInteger),
    Column("capacity_bytes", BigInteger),
    Column("budget_bytes", BigInteger),
    Column("granted_bytes", BigInteger),
    Column("used_bytes", BigInteger),
    Column("percent_used", Numeric),
    Column("high_water_bytes", BigInteger),
    Column("host_bytes", BigInteger),
    Column("busy_percent", SmallInteger),
    Column("memory_busy_percent", SmallInteger),
    Column("outside_bytes", BigInteger),
    Column("updated_at", TIME),
    Column("device_name", Text),
)

stat_device_jobs = _view(
    "stat_device_jobs",
    Column("worker_id", BigInteger),
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("granted_bytes", BigInteger),
    Column("used_bytes", BigInteger),
    Column("high_water_bytes", BigInteger),
    Column("updated_at", TIME),
)

stat_ranks = _view(
    "stat_ranks",
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("rank", Integer),
    Column("state", Text),
    Column("waits_for", Text),
    Column("worker_id", BigInteger),
    Column("host", Text),
    Column("device_name", Text),
    Column("granted_bytes", BigInteger),
    Column("used_bytes", BigInteger),
    Column("since", TIME),
    Column("devices", Integer),
    Column("asked_devices", Integer),
    Column("divides_state", Boolean),
    Column("foretold_ms", Numeric),
    Column("slowest", Boolean),
    Column("together_ms", Numeric),
)

stat_link = _view(
    "stat_link",
    Column("host", Text),
    Column("device", Text),
    Column("way", COPY_WAY),
    Column("beside", Boolean),
    Column("size_bytes", BigInteger),
    Column("latency_us", Numeric),
    Column("copy_us", Numeric),
    Column("mb_per_s", Numeric),
    Column("emulated_mb_per_s", Numeric),
    Column("measured_at", TIME),
)

stat_workers = _view(
    "stat_workers",
    Column("worker_id", BigInteger),
    Column("host", Text),
    Column("pid", Integer),
    Column("device", Text),
    Column("version", Text),
    Column("service_name", Text),
    Column("alive", Boolean),
    Column("jobs", BigInteger),
    Column("lease", INTERVAL),
    Column("started_at", TIME),
    Column("heartbeat_at", TIME),
    Column("stopped_at", TIME),
    Column("device_name", Text),
    Column("service_address", Text),
)

stat_plan = _view(
    "stat_plan",
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("attempt", Integer),
    Column("generation", Integer),
    Column("reason", Text),
    Column("policy", Text),
    Column("vanilla_peak_bytes", BigInteger),
    Column("liveness_peak_bytes", BigInteger),
    Column("floor_bytes", BigInteger),
    Column("predicted_peak_bytes", BigInteger),
    Column("measured_peak_bytes", BigInteger),
    Column("predicted_iteration_ms", Numeric),
    Column("measured_iteration_ms", Numeric),
    Column("predicted_stall_ms", Numeric),
    Column("measured_stall_ms", Numeric),
    Column("swaps", Integer),
    Column("swapped_bytes", BigInteger),
    Column("recomputed", Integer),
    Column("planning_ms", Numeric),
    Column("created_at", TIME),
    Column("adopted_at", TIME),
)

stat_sharing = _view(
    "stat_sharing",
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("attempt", Integer),
    Column("beside", ARRAY(BigInteger)),
    Column("stp_foretold", Double),
    Column("stp_measured", Double),
    Column("started_at", TIME),
    Column("ended_at", TIME),
    Column("speed_foretold", Double),
)

stat_latency = _view(
    "stat_latency",
    Column("device", Text),
    Column("operator", Text),
    Column("signature", Text),
    Column("samples", BigInteger),
    Column("measured_us", Numeric),
    Column("predicted_us", Numeric),
    Column("error", Double),
    Column("workspace_bytes", BigInteger),
    Column("updated_at", TIME),
)

deployment_history = _view(
    "deployment_history",
    Column("model", Text),
    Column("owner", Name),
    Column("deployed_at", TIME),
    Column("deployed_by", Name),
    Column("from_version", Integer),
    Column("to_version", Integer),
    Column("job_id", BigInteger),
    Column("reason", Text),
)

network_list = _view(
    "network_list",
    Column("network", Text),
    Column("family", Text),
    Column("parameters", BigInteger),
    Column("weights_bytes", BigInteger),
    Column("width", Integer),
    Column("layers", Integer),
    Column("positions", Integer),
    Column("vocabulary", Integer),
    Column("grantees", ARRAY(Name)),
    Column("digest", Text),
    Column("imported_by", Name),
    Column("imported_at", TIME),
)

model_list = _view(
    "model_list",
    Column("model", Text),
    Column("owner", Name),
    Column("versions", BigInteger),
    Column("deployed", Integer),
    Column("task", TASK),
    Column("target", Text),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("parameters", BigInteger),
    Column("created_at", TIME),
    Column("trained_at", TIME),
    Column("baseline", Double),
)

stat_device_history = _view(
    "stat_device_history",
    Column("worker_id", BigInteger),
    Column("host", Text),
    Column("device", Text),
    Column("at", TIME),
    Column("budget_bytes", BigInteger),
    Column("granted_bytes", BigInteger),
    Column("used_bytes", BigInteger),
    Column("host_bytes", BigInteger),
    Column("busy_percent", SmallInteger),
    Column("outside_bytes", BigInteger),
)

stat_device_job_history = _view(
    "stat_device_job_history",
    Column("worker_id", BigInteger),
    Column("at", TIME),
    Column("job_id", BigInteger),
    Column("model", Text),
    Column("owner", Name),
    Column("granted_bytes", BigInteger),
    Column("used_bytes", BigInteger),
    Column("copied_bytes_per_s", BigInteger),
)
