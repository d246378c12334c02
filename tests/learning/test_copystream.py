"""COPY's messages, received many at a time, are the messages that psycopg returns one by one."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from indb_tensile.learning.decoding.copystream import blocks
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def stream(
    connection: psycopg.Connection[Any],
    query: str,
    *,
    block_bytes: int = 4096,
    large_bytes: int = 1 << 30,
    check_size: Callable[[int], None] = lambda _: None,
    first_bytes: int | None = None,
) -> list[bytearray]:
    with connection.cursor() as cursor, cursor.copy(f"copy ({query}) to stdout (format binary)".encode()) as copy:
        return list(
            blocks(
                copy,
                connection,
                block_bytes=block_bytes,
                large_bytes=large_bytes,
                check_size=check_size,
                first_bytes=first_bytes,
            )
        )


@pytest.mark.by_day("-0", "-1", "-2", "-7", "% 40)-50000")
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 50_000])
@pytest.mark.parametrize("value", ["i", "repeat('x', 15)", "repeat('x', i % 40)", "null::int"])
def test_the_bytes_equal_those_of_psycopgs_own_iterator(database: Database, rows: int, value: str) -> None:
    query = f"select {value} from generate_series(1, {rows}) as i"
    with database.connect() as connection:
        with connection.cursor() as cursor, cursor.copy(f"copy ({query}) to stdout (format binary)".encode()) as copy:
            expected = b"".join(copy)
        assert b"".join(stream(connection, query)) == expected
        assert connection.execute("select 1").fetchone() == (1,), "the connection can be used again"


def test_blocks_have_the_requested_size_and_end_between_rows(database: Database) -> None:
    with database.connect() as connection:
        blocks = stream(connection, "select i::bigint from generate_series(1, 10000) as i", block_bytes=1400)
    assert {len(block) for block in blocks[1:-1]} == {1400}  # a hundred rows of 14 bytes


def test_the_first_block_may_be_smaller(database: Database) -> None:
    query = "select i::bigint from generate_series(1, 1000) as i"
    with database.connect() as connection:
        blocks = stream(connection, query, block_bytes=1400, first_bytes=140)
    assert [len(block) for block in blocks] == [19 + 9 * 14, *[1400] * 9, 91 * 14 + 2]


@pytest.mark.parametrize("failing", [1, 2, 5_000, 10_000])
def test_an_error_of_the_server_in_mid_stream_is_raised_with_its_own_type(database: Database, failing: int) -> None:
    with database.connect() as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            stream(connection, f"select 1 / (i - {failing}) from generate_series(1, 10000) as i")
        assert connection.execute("select 1").fetchone() == (1,)


def test_the_size_of_each_large_message_is_checked_before_the_message_is_stored(database: Database) -> None:
    judged: list[int] = []
    query = "select repeat('x', case when i in (1, 300) then 5000 else 10 end) from generate_series(1, 400) as i"
    with database.connect() as connection:
        stream(connection, query, large_bytes=1000, check_size=judged.append)
    assert judged == [19 + 2 + 4 + 5000, 2 + 4 + 5000]
