r"""The tables of schema `tensile` for models, jobs and versions as SQLAlchemy metadata.

device_tables.py, rank_tables.py, search_tables.py and usage_tables.py add the other tables to the same metadata. It
has the columns, their types and nullability, and primary and foreign keys. The scripts in `sql/` create the tables;
the metadata only describes them, without defaults, checks and indexes, and never creates anything.
`tests/catalog/test_catalog_metadata.py` compares it with an installed catalog in both directions.

The comments in `sql/20_tables.sql` say what each column means (`\d+ tensile.jobs` in psql). `installation` is the
identity of the database in which a row was written: after a restore into another database, the rows of the old one
are recognised by it.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, JSONB, OID

from indb_tensile.catalog.sqlalchemy.catalog_types import (
    CHECKPOINT_STORE,
    JOB_PHASE,
    JOB_STATE,
    SCHEMA,
    TASK,
    TIME,
    Name,
    Xid8,
)

metadata = MetaData(schema=SCHEMA)

settings = Table(
    "settings",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", JSONB, nullable=False),
    Column("changed_at", TIME, nullable=False),
    Column("changed_by", Name, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("model_id", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner_oid", OID, nullable=False),
    Column("owner_name", Name, nullable=False),
    Column("definition", JSONB),
    Column("last_spec", JSONB),
    Column("last_job_id", BigInteger),
    Column("last_started_at", TIME),
    Column("installation", Uuid, nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("dropped_at", TIME),
    Column("measure_drift", Boolean, nullable=False),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("version_id", BigInteger, primary_key=True),
    Column("model_id", BigInteger, ForeignKey("models.model_id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("job_id", BigInteger),
    Column("task", TASK, nullable=False),
    Column("target", Text, nullable=False),
    Column("architecture", JSONB, nullable=False),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("higher_is_better", Boolean),
    Column("metrics", JSONB, nullable=False),
    Column("parameters", BigInteger, nullable=False),
    Column("weights_bytes", BigInteger, nullable=False),
    Column("weights_digest", Text),
    Column("relation_oid", OID),
    Column("relation_schema", Text),
    Column("relation_name", Text),
    Column("data_digest", Text),
    Column("training", JSONB),
    Column("created_at", TIME, nullable=False),
    Column("deployed", Boolean, nullable=False),
    Column("not_deployed", Text),
    Column("deployed_by", Name),
    Column("deployed_why", Text),
)

deployments = Table(
    "deployments",
    metadata,
    Column("deployment_id", BigInteger, primary_key=True),
    Column("model_id", BigInteger, ForeignKey("models.model_id"), nullable=False),
    Column("from_version", Integer),
    Column("to_version", Integer),
    Column("deployed_by", Name),
    Column("deployed_at", TIME, nullable=False),
    Column("job_id", BigInteger),
    Column("reason", Text),
)

version_bundles = Table(
    "version_bundles",
    metadata,
    Column("version_id", BigInteger, ForeignKey("model_versions.version_id"), primary_key=True),
    Column("bundle", JSONB, nullable=False),
)

version_figures = Table(
    "version_figures",
    metadata,
    Column("version_id", BigInteger, ForeignKey("model_versions.version_id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("figure", JSONB, nullable=False),
)

predicted_inputs = Table(
    "predicted_inputs",
    metadata,
    Column("version_id", BigInteger, ForeignKey("model_versions.version_id"), primary_key=True),
    Column("day", Date, primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("counts", ARRAY(BigInteger), nullable=False),
    Column("updated_at", TIME, nullable=False),
)

model_privileges = Table(
    "model_privileges",
    metadata,
    Column("model_id", BigInteger, ForeignKey("models.model_id"), primary_key=True),
    Column("owner_oid", OID, nullable=False),
    Column("grantee_oid", OID, primary_key=True),
    Column("grantee_name", Name, nullable=False),
    Column("privilege", Text, primary_key=True),
    Column("granted_by", Name, nullable=False),
    Column("granted_at", TIME, nullable=False),
    Column("revoked_at", TIME),
    Column("installation", Uuid, nullable=False),
)

networks = Table(
    "networks",
    metadata,
    Column("network_id", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("family", Text, nullable=False),
    Column("config", JSONB, nullable=False),
    Column("tokenizer", Text, nullable=False),
    Column("parameters", BigInteger, nullable=False),
    Column("weights_bytes", BigInteger, nullable=False),
    Column("imported_by", Name, nullable=False),
    Column("imported_at", TIME, nullable=False),
)

network_chunks = Table(
    "network_chunks",
    metadata,
    Column("network_id", BigInteger, ForeignKey("networks.network_id"), primary_key=True),
    Column("chunk_no", Integer, primary_key=True),
    Column("chunk", LargeBinary, nullable=False),
)

network_privileges = Table(
    "network_privileges",
    metadata,
    Column("network_id", BigInteger, ForeignKey("networks.network_id"), primary_key=True),
    Column("grantee_oid", OID, primary_key=True),
    Column("grantee_name", Name, nullable=False),
    Column("granted_by", Name, nullable=False),
    Column("granted_at", TIME, nullable=False),
    Column("installation", Uuid, primary_key=True),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", BigInteger, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("device", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("service_name", Text),
    Column("lease_s", Double, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("beats", BigInteger, nullable=False),
    Column("started_at", TIME, nullable=False),
    Column("heartbeat_at", TIME, nullable=False),
    Column("stopped_at", TIME),
    Column("took_leave", Boolean, nullable=False),
    Column("entering", Integer, nullable=False),
    Column("holdup", Text),
    Column("device_name", Text),
    Column("service_address", Text),
    Column("service_host_name", Text),
    Column("makes_way", Boolean, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", BigInteger, primary_key=True),
    Column("model_name", Text, nullable=False),
    Column("owner_oid", OID, nullable=False),
    Column("owner_name", Name, nullable=False),
    Column("relation_oid", OID, nullable=False),
    Column("relation_schema", Text, nullable=False),
    Column("relation_name", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("state", JOB_STATE, nullable=False),
    Column("phase", JOB_PHASE),
    Column("priority", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("faults", Integer, nullable=False),
    Column("interruptions", Integer, nullable=False),
    Column("interrupted", INTERVAL, nullable=False),
    Column("progress_at", TIME),
    Column("last_death_phase", Text),
    Column("threads", Integer),
    Column("claim", BigInteger),
    Column("worker_id", BigInteger, ForeignKey("workers.worker_id")),
    Column("installation", Uuid, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("pause_requested", Boolean, nullable=False),
    Column("waits_for", Text),
    Column("error_sqlstate", Text),
    Column("error_message", Text),
    Column("error_detail", Text),
    Column("error_hint", Text),
    Column("enqueued_at", TIME, nullable=False),
    Column("enqueued_xact", Xid8, nullable=False),
    Column("not_before", TIME),
    Column("started_at", TIME),
    Column("finished_at", TIME),
    Column("idempotency_key", Text),
    Column("depends_on", ARRAY(BigInteger)),
    Column("awaits_jobs", Boolean, nullable=False),
    Column("retry_of", BigInteger),
    Column("search_id", BigInteger),
    Column("init_version_id", BigInteger),
    Column("version_id", BigInteger),
    Column("needs_bytes", BigInteger),
    Column("devices", Integer, nullable=False),
    Column("short_since", TIME),
)

awaited_jobs = Table(
    "awaited_jobs",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("awaited_id", BigInteger, primary_key=True),
)

job_progress = Table(
    "job_progress",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("loss", Double),
    Column("valid_loss", Double),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("samples_per_s", Double),
    Column("eta", TIME),
    Column("updated_at", TIME, nullable=False),
    Column("eta_earliest", TIME),
    Column("rows_predicted", BigInteger),
    Column("rows_expected", BigInteger),
)

job_events = Table(
    "job_events",
    metadata,
    Column("event_id", BigInteger, primary_key=True),
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), nullable=False),
    Column("at", TIME, nullable=False),
    Column("kind", Text, nullable=False),
    Column("detail", JSONB, nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Double),
)

data_reports = Table(
    "data_reports",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("report", JSONB, nullable=False),
    Column("written_at", TIME, nullable=False),
)

traces = Table(
    "traces",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("iterations", Integer, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("starts_at", TIME, nullable=False),
    Column("requested_at", TIME, nullable=False),
    Column("recording", LargeBinary),
    Column("recorded_at", TIME),
)

job_graphs = Table(
    "job_graphs",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("graph", LargeBinary, nullable=False),
    Column("written_at", TIME, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("store", CHECKPOINT_STORE, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("position", JSONB, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("saved_at", TIME, nullable=False),
)

checkpoint_chunks = Table(
    "checkpoint_chunks",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("chunk_no", Integer, primary_key=True),
    Column("chunk", LargeBinary, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("artifact_id", BigInteger, primary_key=True),
    Column("version_id", BigInteger, ForeignKey("model_versions.version_id"), nullable=False),
    Column("chunk_no", Integer, nullable=False),
    Column("chunk", LargeBinary, nullable=False),
)

graphs = Table(
    "graphs",
    metadata,
    Column("signature", Text, primary_key=True),
    Column("summary", JSONB, nullable=False),
    Column("created_at", TIME, nullable=False),
)

op_latency = Table(
    "op_latency",
    metadata,
    Column("signature", Text, primary_key=True),
    Column("device_kind", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("latency_ns", BigInteger, nullable=False),
    Column("workspace_bytes", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("predicted_ns", BigInteger),
    Column("updated_at", TIME, nullable=False),
)

op_descriptions = Table(
    "op_descriptions",
    metadata,
    Column("signature", Text, primary_key=True),
    Column("description", Text, nullable=False),
)

predictors = Table(
    "predictors",
    metadata,
    Column("device_kind", Text, primary_key=True),
    Column("model", LargeBinary, nullable=False),
    Column("survey", LargeBinary, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("history", BigInteger, nullable=False),
    Column("trained_at", TIME, nullable=False),
)

plans = Table(
    "plans",
    metadata,
    Column("plan_id", BigInteger, primary_key=True),
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("vanilla_peak_bytes", BigInteger),
    Column("liveness_peak_bytes", BigInteger),
    Column("floor_bytes", BigInteger),
    Column("predicted_peak_bytes", BigInteger),
    Column("measured_peak_bytes", BigInteger),
    Column("predicted_iteration_ns", BigInteger),
    Column("measured_iteration_ns", BigInteger),
    Column("predicted_stall_ns", BigInteger),
    Column("measured_stall_ns", BigInteger),
    Column("swaps", Integer, nullable=False),
    Column("swapped_bytes", BigInteger, nullable=False),
    Column("recomputed", Integer, nullable=False),
    Column("planning_ns", BigInteger),
    Column("plan", JSONB),
    Column("created_at", TIME, nullable=False),
    Column("adopted_at", TIME),
)

job_sets = Table(
    "job_sets",
    metadata,
    Column("set_id", BigInteger, primary_key=True),
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("beside", ARRAY(BigInteger), nullable=False),
    Column("stp_foretold", Double, nullable=False),
    Column("stp_measured", Double),
    Column("started_at", TIME, nullable=False),
    Column("ended_at", TIME),
    Column("speed_foretold", Double, nullable=False),
)

role_quotas = Table(
    "role_quotas",
    metadata,
    Column("role_oid", OID, primary_key=True),
    Column("installation", Uuid, primary_key=True),
    Column("role_name", Name, nullable=False),
    Column("jobs_running", Integer),
    Column("jobs_queued", Integer),
    Column("bytes", BigInteger),
    Column("highest_priority", Integer),
    Column("device_seconds", BigInteger),
    Column("weight", Double),
    Column("changed_at", TIME, nullable=False),
    Column("changed_by", Name, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("table_name", Name, nullable=False),
    Column("key", ARRAY(Text), nullable=False),
    Column("rows", BigInteger),
    Column("bytes", BigInteger),
    Column("created_at", TIME, nullable=False),
    Column("sealed", Boolean, nullable=False),
    Column("valid_rows", BigInteger, nullable=False),
    Column("test_rows", BigInteger, nullable=False),
)
