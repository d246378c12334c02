"""The bytes of a running COPY in binary format, many messages at a time.

A server sends each row as a message of its own. psycopg's iterator locks the connection, builds a generator and waits
for each; here libpq is asked for whatever has arrived already, and psycopg only where nothing has: for waiting, for
the end and for its errors.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg

_TRAILER_BYTES = 2  # of the message that ends the rows, shorter than any row; after it comes only the end of COPY
_EMPTY_BYTES = 19 + _TRAILER_BYTES  # without rows: the header comes with the first message, which is this one


def blocks(
    copy: psycopg.Copy,
    connection: psycopg.Connection[Any],
    *,
    block_bytes: int,
    large_bytes: int,
    judge: Callable[[int], None],
) -> Iterator[bytearray]:
    """Whole messages, joined until they have `block_bytes`; each block is its taker's own.

    `judge` is told the size of each message of more than `large_bytes` before it is kept. Raises what psycopg raises
    for an error of the server.
    """
    block = bytearray()
    first = True
    while part := copy.read():
        if len(part) > large_bytes:
            judge(len(part))
        block += part
        last_bytes = _EMPTY_BYTES if first else _TRAILER_BYTES
        first = False
        if len(part) != last_bytes:
            _take(connection, block, block_bytes, large_bytes, judge)
        if len(block) >= block_bytes:
            yield block
            block = bytearray()
    if block:
        yield block


def _take(
    connection: psycopg.Connection[Any],
    block: bytearray,
    block_bytes: int,
    large_bytes: int,
    judge: Callable[[int], None],
) -> None:
    """Add messages that have arrived, up to the trailer, until there are `block_bytes`."""
    pgconn = connection.pgconn
    next_message = pgconn.get_copy_data
    while len(block) < block_bytes:
        size_bytes, part = next_message(1)
        if size_bytes == 0:
            pgconn.consume_input()  # never waits
            size_bytes, part = next_message(1)
            if size_bytes == 0:
                return
        if size_bytes < 0:  # an error has come, since the trailer has not
            raise _error(connection)
        if size_bytes > large_bytes:
            judge(size_bytes)
        block += part
        if size_bytes == _TRAILER_BYTES:
            return


def _error(connection: psycopg.Connection[Any]) -> psycopg.Error:
    """What ended COPY; the connection is in a failed transaction, as after any error."""
    pgconn = connection.pgconn
    failed = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    if failed is None:
        return psycopg.OperationalError("COPY ended before its trailer")
    return psycopg.errors.error_from_result(failed, encoding=connection.info.encoding)
