"""Statements that predict tables, in sessions whose tables the service reads or which read them themselves."""

from typing import Any

import numpy as np
import psycopg

from tests.conftest import Database

Connection = psycopg.Connection[Any]

ALL = "select * from tensile_predict_table('flowers', '{}')"


def rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


def begun(connection: Connection) -> int:
    """Return how many tables the service has begun to read."""
    ((count,),) = rows(connection, "select (tensile.bridge('ping', '{}') #>> '{result,readings}')::int")
    return int(count)


def alone(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement whose session reads its tables itself."""
    with connection.transaction():
        connection.execute("set transaction isolation level serializable")
        before = begun(connection)
        answers = rows(connection, statement)
        assert begun(connection) == before
    return answers


def check_equal(answers: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Check that numbers are equal up to single precision, and all else exactly.

    The last digits depend on the number of rows in a pass, for which some processors run other kernels.
    """
    numbers: list[float] = []

    def without_numbers(value: Any) -> Any:
        if isinstance(value, float):
            numbers.append(value)
            return "a number"
        if isinstance(value, dict):
            return {key: without_numbers(inner) for key, inner in value.items()}
        return [without_numbers(inner) for inner in value] if isinstance(value, list | tuple) else value

    assert without_numbers(answers) == without_numbers(expected)
    half = len(numbers) // 2
    np.testing.assert_allclose(numbers[:half], numbers[half:], rtol=0, atol=1e-6)


def readers(database: Database) -> list[tuple[Any, ...]]:
    with database.connect() as admin:
        return rows(admin, "select pid from pg_stat_activity where application_name = 'tensile service (reading)'")


def is_begun(database: Database) -> bool:
    return bool(readers(database))


def no_reader(database: Database) -> bool:
    return not readers(database)
