"""A training's end is blamed on the job or on others. Only a job's own failures count against it."""

import psycopg
import pytest

from indb_tensile.catalog.connection import UnreachableError
from indb_tensile.errors import (
    ComputationError,
    DatabaseError,
    DeviceLostError,
    DeviceMemoryError,
    InvariantError,
    NoRoomToParkError,
    OutgrownMemoryError,
    RankLostError,
    StorageError,
)
from indb_tensile.job import Blame
from worker.trainer import blame_of


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (psycopg.OperationalError("server closed the connection"), Blame.OTHERS),
        (psycopg.errors.DiskFull("x"), Blame.OTHERS),
        (psycopg.errors.TooManyConnections("x"), Blame.OTHERS),
        (psycopg.errors.CrashShutdown("x"), Blame.OTHERS),
        (psycopg.errors.LockNotAvailable("x"), Blame.OTHERS),
        (psycopg.errors.UndefinedTable("the catalog was upgraded"), Blame.OTHERS),
        (UnreachableError("x"), Blame.OTHERS),
        (DatabaseError("x"), Blame.OTHERS),
        (DeviceLostError("x"), Blame.OTHERS),
        (RankLostError("x"), Blame.OTHERS),
        (StorageError("x"), Blame.OTHERS),
        (NoRoomToParkError("x"), Blame.NOBODY),
        (OutgrownMemoryError("x"), Blame.NOBODY),
        (OutgrownMemoryError("x", known=True), Blame.MEMORY),
        (OSError(28, "No space left on device"), Blame.OTHERS),
        (psycopg.errors.NumericValueOutOfRange("x"), Blame.JOB),
        (psycopg.errors.RaiseException("of a function that the user wrote"), Blame.JOB),
        (ComputationError("x"), Blame.JOB),
        (DeviceMemoryError("x"), Blame.JOB),
        (InvariantError("x"), Blame.JOB),
        (OSError(2, "No such file"), Blame.JOB),
        (MemoryError(), Blame.JOB),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_an_error_is_blamed_on_the_job_or_on_others(error: Exception, blame: Blame) -> None:
    assert blame_of(error) is blame
