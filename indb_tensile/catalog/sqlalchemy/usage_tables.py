"""The tables of usage as SQLAlchemy sees them: the use of devices by owner, and counters that never fall."""

from sqlalchemy import BigInteger, Column, Date, Double, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import OID

from indb_tensile.catalog.sqlalchemy.catalog_tables import metadata
from indb_tensile.catalog.sqlalchemy.catalog_types import JOB_STATE, TIME, Name

usage = Table(
    "usage",
    metadata,
    Column("owner_oid", OID, primary_key=True),
    Column("installation", Uuid, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("model_name", Text, primary_key=True),
    Column("owner_name", Name, nullable=False),
    Column("device_s", Double, nullable=False),
    Column("byte_s", Double, nullable=False),
    Column("running_s", Double, nullable=False),
    Column("measured_s", Double, nullable=False),
    Column("alone_s", Double, nullable=False),
    Column("jobs_deleted", BigInteger, nullable=False),
)

deleted_jobs = Table(
    "deleted_jobs",
    metadata,
    Column("owner_oid", OID, primary_key=True),
    Column("installation", Uuid, primary_key=True),
    Column("state", JOB_STATE, primary_key=True),
    Column("jobs", BigInteger, nullable=False),
)

deleted_usage = Table(
    "deleted_usage",
    metadata,
    Column("owner_oid", OID, primary_key=True),
    Column("installation", Uuid, primary_key=True),
    Column("device_s", Double, nullable=False),
    Column("byte_s", Double, nullable=False),
    Column("running_s", Double, nullable=False),
)

totals = Table(
    "totals",
    metadata,
    Column("name", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    Column("value", Double, nullable=False),
)

count_batches = Table(
    "count_batches",
    metadata,
    Column("source", Text, primary_key=True),
    Column("process", Uuid, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("stored_at", TIME, nullable=False),
)

owner_usage = Table(
    "owner_usage",
    metadata,
    Column("owner_oid", OID, primary_key=True),
    Column("installation", Uuid, primary_key=True),
    Column("recent_s", Double, nullable=False),
    Column("day", Date, nullable=False),
    Column("day_s", Double, nullable=False),
    Column("updated_at", TIME, nullable=False),
)
