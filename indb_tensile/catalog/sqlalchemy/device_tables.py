"""The tables of devices as SQLAlchemy sees them: what is measured of them, and their use of memory over time."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

from indb_tensile.catalog.sqlalchemy.catalog_tables import metadata
from indb_tensile.catalog.sqlalchemy.catalog_types import COPY_WAY, TIME

devices = Table(
    "devices",
    metadata,
    Column("worker_id", BigInteger, ForeignKey("workers.worker_id"), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("capacity_bytes", BigInteger, nullable=False),
    Column("budget_bytes", BigInteger, nullable=False),
    Column("granted_bytes", BigInteger, nullable=False),
    Column("used_bytes", BigInteger, nullable=False),
    Column("high_water_bytes", BigInteger, nullable=False),
    Column("host_bytes", BigInteger, nullable=False),
    Column("busy_percent", SmallInteger),
    Column("memory_busy_percent", SmallInteger),
    Column("outside_bytes", BigInteger),
    Column("updated_at", TIME, nullable=False),
)

device_paces = Table(
    "device_paces",
    metadata,
    Column("device_kind", Text, primary_key=True),
    Column("machine", Text, primary_key=True),
    Column("here_ns", BigInteger, nullable=False),
    Column("there_ns", BigInteger, nullable=False),
    Column("measured_at", TIME, nullable=False),
)

device_links = Table(
    "device_links",
    metadata,
    Column("host", Text, primary_key=True),
    Column("device_kind", Text, primary_key=True),
    Column("way", COPY_WAY, primary_key=True),
    Column("beside", Boolean, primary_key=True),
    Column("size_bytes", BigInteger, primary_key=True),
    Column("latency_ns", BigInteger, nullable=False),
    Column("copy_ns", BigInteger, nullable=False),
    Column("emulated_bytes_per_s", BigInteger),
    Column("measured_at", TIME, nullable=False),
)

device_jobs = Table(
    "device_jobs",
    metadata,
    Column("worker_id", BigInteger, ForeignKey("workers.worker_id"), primary_key=True),
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("granted_bytes", BigInteger, nullable=False),
    Column("used_bytes", BigInteger, nullable=False),
    Column("high_water_bytes", BigInteger, nullable=False),
    Column("updated_at", TIME, nullable=False),
)

device_samples = Table(
    "device_samples",
    metadata,
    Column("worker_id", BigInteger, ForeignKey("workers.worker_id"), primary_key=True),
    Column("at", TIME, primary_key=True),
    Column("budget_bytes", BigInteger, nullable=False),
    Column("granted_bytes", BigInteger, nullable=False),
    Column("used_bytes", BigInteger, nullable=False),
    Column("host_bytes", BigInteger, nullable=False),
    Column("busy_percent", SmallInteger),
    Column("outside_bytes", BigInteger),
)

device_job_samples = Table(
    "device_job_samples",
    metadata,
    Column("worker_id", BigInteger, primary_key=True),
    Column("at", TIME, primary_key=True),
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("granted_bytes", BigInteger, nullable=False),
    Column("used_bytes", BigInteger, nullable=False),
    Column("copied_bytes_per_s", BigInteger),
    ForeignKeyConstraint(("worker_id", "at"), ("device_samples.worker_id", "device_samples.at")),
)

device_outlooks = Table(
    "device_outlooks",
    metadata,
    Column("worker_id", BigInteger, ForeignKey("workers.worker_id"), primary_key=True),
    Column("outlook", JSONB, nullable=False),
    Column("updated_at", TIME, nullable=False),
)

device_overheads = Table(
    "device_overheads",
    metadata,
    Column("device_kind", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("state_bytes", BigInteger, nullable=False),
    Column("startup_ns", Double),
    Column("between_ns", Double),
    Column("closing_ns", Double),
    Column("trained_share", Double),
    Column("updated_at", TIME, nullable=False),
)

device_contention = Table(
    "device_contention",
    metadata,
    Column("device_kind", Text, primary_key=True),
    Column("jobs", Integer, primary_key=True),
    Column("arithmetic", Double, nullable=False),
    Column("memory", Double, nullable=False),
    Column("mixed", Double, nullable=False),
    Column("measured_at", TIME, nullable=False),
    Column("learned", Double),
    Column("short", Double),
    Column("short_mixed", Double),
    Column("short_ns", BigInteger),
    Column("learned_short", Double),
    Column("training", Double),
    Column("taken_cores", Double),
)
