"""The tables of searches, as SQLAlchemy sees them."""

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Integer, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from indb_tensile.catalog.sqlalchemy.catalog_tables import metadata
from indb_tensile.catalog.sqlalchemy.catalog_types import TIME

trials = Table(
    "trials",
    metadata,
    Column("search_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), nullable=False),
    Column("picks", JSONB, nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("rungs", ARRAY(Double), nullable=False),
    Column("allowed_rung", Integer, nullable=False),
    Column("held_rung", Integer),
    Column("pruned", Boolean, nullable=False),
)

trial_results = Table(
    "trial_results",
    metadata,
    Column("job_id", BigInteger, ForeignKey("jobs.job_id"), primary_key=True),
    Column("rung", Integer, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("metric_name", Text, nullable=False),
    Column("metric", Double),
    Column("higher_is_better", Boolean, nullable=False),
    Column("valid_loss", Double),
    Column("complete", Boolean, nullable=False),
    Column("worked_s", Double, nullable=False),
    Column("reached_at", TIME, nullable=False),
)
