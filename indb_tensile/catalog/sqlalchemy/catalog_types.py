"""SQLAlchemy types for the columns of schema `tensile` that have no type of their own in SQLAlchemy."""

from enum import StrEnum
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql import ENUM, TIMESTAMP
from sqlalchemy.types import UserDefinedType

from indb_tensile.job import CheckpointStore, JobState, Phase, Task
from indb_tensile.scheduler.link import CopyDirection

SCHEMA = "tensile"
TIME = TIMESTAMP(timezone=True)


class Name(UserDefinedType[str]):
    """PostgreSQL's type `name`, for names of roles and tables: text of at most 63 bytes."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name in SQL."""
        return "name"


class Xid8(UserDefinedType[str]):
    """PostgreSQL's type `xid8`, the number of a transaction."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name in SQL."""
        return "xid8"


class CatalogEnum(ENUM):
    """An enum type whose labels are read as text, without a check.

    SQLAlchemy would raise LookupError for a label that a newer catalog has and this program does not know.
    """

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        """Return no processor, because psycopg returns a label as text."""


def _enum(name: str, members: type[StrEnum]) -> CatalogEnum:
    """Return an enum type of schema `tensile`. SQLAlchemy never creates it: the scripts in `sql/` do."""
    return CatalogEnum(*(member.value for member in members), name=name, schema=SCHEMA, create_type=False)


JOB_STATE = _enum("job_state", JobState)
JOB_PHASE = _enum("job_phase", Phase)
TASK = _enum("task", Task)
CHECKPOINT_STORE = _enum("checkpoint_store", CheckpointStore)
COPY_WAY = _enum("copy_way", CopyDirection)
