"""A trainer's session waits while the database is unavailable, and then repeats its work."""

from collections.abc import Callable

import psycopg
import pytest

from indb_tensile.catalog.connection import Connection, UnreachableError, is_transient
from indb_tensile.catalog.fault_origin import is_database_fault
from indb_tensile.errors import DatabaseError, LostClaimError
from tests.conftest import Database
from worker.training.retrying_session import LONGEST_PAUSE_S, RetryingSession

pytestmark = pytest.mark.postgres


def retrying_session(database: Database, pause: Callable[[float], None] = lambda _: None) -> RetryingSession:
    return RetryingSession(database.dsn("tensile_worker"), application_name="test", pause=pause)


def select_one(connection: Connection) -> int:
    row = connection.execute("select 1").fetchone()
    assert row is not None
    return int(row[0])


def test_a_connection_refused_at_first_is_made_later(database: Database) -> None:
    with database.connect() as postgres:
        postgres.execute("alter role tensile_worker connection limit 0")
        pauses: list[float] = []

        def lift(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 3:
                postgres.execute("alter role tensile_worker connection limit -1")

        try:
            with retrying_session(database, lift) as session:
                assert session.run(select_one) == 1
        finally:
            postgres.execute("alter role tensile_worker connection limit -1")
    assert pauses == [0.1, 0.2, 0.4]


def test_after_a_broken_connection_a_new_one_repeats_the_work(database: Database) -> None:
    with retrying_session(database) as session, database.connect() as postgres:
        pid = session.run(lambda c: c.info.backend_pid)
        postgres.execute("select pg_terminate_backend(%s)", (pid,))
        assert session.run(select_one) == 1


class Failing:
    """Raises these errors one after another, and then does its work."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self, connection: Connection) -> int:
        if self.errors:
            raise self.errors.pop(0)
        return select_one(connection)


def test_temporary_errors_are_waited_out_with_growing_pauses_and_signs_of_life(database: Database) -> None:
    pauses: list[float] = []
    signs: list[None] = []
    session = RetryingSession(
        database.dsn("tensile_worker"),
        application_name="test",
        pause=pauses.append,
        alive=lambda: signs.append(None),
    )
    with session:
        errors = [
            psycopg.errors.DiskFull("full"),
            psycopg.errors.LockNotAvailable("locked"),
            UnreachableError("gone"),
        ]
        assert session.run(Failing(*errors * 4)) == 1
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1], len(pauses), len(signs)) == (0.1, LONGEST_PAUSE_S, 12, 12)


@pytest.mark.parametrize(
    "error",
    [LostClaimError("lost"), psycopg.errors.UndefinedColumn("no such column"), DatabaseError("bytes are missing")],
)
def test_a_permanent_error_is_raised_at_once(database: Database, error: Exception) -> None:
    with (
        retrying_session(database, lambda _: pytest.fail("a permanent error must not be waited for")) as session,
        pytest.raises(type(error)),
    ):
        session.run(Failing(error))


def test_once_makes_one_attempt_on_the_same_connection(database: Database) -> None:
    with retrying_session(database, lambda _: pytest.fail("a single attempt must not wait")) as session:
        assert session.once.run(select_one) == 1
        assert session.once.run(lambda c: c.info.backend_pid) == session.run(lambda c: c.info.backend_pid)
        with pytest.raises(psycopg.errors.DiskFull):
            session.once.run(Failing(psycopg.errors.DiskFull("full")))


@pytest.mark.parametrize(
    ("error", "passes", "databases"),
    [
        (psycopg.errors.DiskFull("x"), True, True),
        (psycopg.errors.TooManyConnections("x"), True, True),
        (psycopg.errors.AdminShutdown("x"), True, True),
        (psycopg.errors.CannotConnectNow("x"), True, True),
        (psycopg.errors.DeadlockDetected("x"), True, True),
        (psycopg.errors.LockNotAvailable("x"), True, True),
        (psycopg.errors.ReadOnlySqlTransaction("x"), True, True),
        (psycopg.OperationalError("the connection is lost"), True, True),
        (psycopg.errors.UndefinedColumn("x"), False, True),
        (psycopg.errors.InsufficientPrivilege("x"), False, True),
        (psycopg.errors.NumericValueOutOfRange("x"), False, False),
        (psycopg.errors.CheckViolation("x"), False, False),
        (UnreachableError("x"), True, True),
        (DatabaseError("x"), False, True),
        (LostClaimError("x"), False, False),
        (ValueError("x"), False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_faults_of_the_database_are_distinguished_from_faults_of_the_job(
    error: Exception, passes: bool, databases: bool
) -> None:
    assert (is_transient(error), is_database_fault(error)) == (passes, databases)
