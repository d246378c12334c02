"""The tables and the view of ranks as SQLAlchemy sees them: the jobs that several devices train together."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    Table,
    Text,
)

from indb_tensile.catalog.sqlalchemy.catalog_tables import metadata
from indb_tensile.catalog.sqlalchemy.catalog_types import TIME

job_ranks = Table(
    "job_ranks",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("worker_id", BigInteger),
    Column("claim", BigInteger),
    Column("state", Text, nullable=False),
    Column("waits_for", Text),
    Column("since", TIME, nullable=False),
    Column("divides_state", Boolean),
    Column("step_ns", BigInteger),
    Column("steps_published", Integer, nullable=False),
)

gang_turns = Table(
    "gang_turns",
    metadata,
    Column("job_id", BigInteger, primary_key=True),
    Column("turns", Integer, nullable=False),
    Column("workers", ARRAY(BigInteger), nullable=False),
    Column("begins_at", TIME, nullable=False),
    Column("ends_at", TIME, nullable=False),
)

rank_values = Table(
    "rank_values",
    metadata,
    Column("job_id", BigInteger, primary_key=True),
    Column("rank", Integer, nullable=False),
    Column("key", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    ForeignKeyConstraint(["job_id", "rank"], ["job_ranks.job_id", "job_ranks.rank"]),
)

rank_memory = Table(
    "rank_memory",
    metadata,
    Column("device_kind", Text, primary_key=True),
    Column("ranks", Integer, primary_key=True),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("measured_at", TIME, nullable=False),
)

rank_networks = Table(
    "rank_networks",
    metadata,
    Column("hosts", ARRAY(Text), primary_key=True),
    Column("device_kind", Text, primary_key=True),
    Column("collective", Text, primary_key=True),
    Column("size_bytes", BigInteger, primary_key=True),
    Column("time_ns", BigInteger, nullable=False),
    Column("beside_ns", BigInteger, nullable=False),
    Column("lost_ns", BigInteger, nullable=False),
    Column("measured_at", TIME, nullable=False),
)
