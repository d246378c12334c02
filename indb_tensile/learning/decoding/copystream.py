"""Reads the bytes of a running COPY in binary format, many messages at a time.

The server sends each row as a message of its own. For each message psycopg's iterator locks the connection, creates a
generator and waits. This module asks libpq for all messages that have arrived already. It uses psycopg only to wait,
to detect the end and to raise errors.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

# The server sends 8 kB at a time, and a wait of psycopg for them takes as much processor time as reading their rows.
# In a pause some dozen kB arrive. More than 0.7 ms would fill the buffer of a local socket, so that the server waits.
_PAUSE_S = 0.0003
_TRAILER_BYTES = 2  # size of the message that ends the rows. Any row is longer; only the end of COPY follows.
_EMPTY_BYTES = 19 + _TRAILER_BYTES  # without rows, the first message is the header together with the trailer


def blocks(
    copy: psycopg.Copy,
    connection: psycopg.Connection[Any],
    *,
    block_bytes: int,
    large_bytes: int,
    check_size: Callable[[int], None],
    first_bytes: int | None = None,
) -> Iterator[bytearray]:
    """Yield the messages, joined to blocks of at least `block_bytes`, except for the last. A message is never split.

    The first block has at least `first_bytes` instead, if given, so that its rows can be used while others arrive.
    The caller owns each block. `check_size` is called with the size of each message of more than `large_bytes` before
    the message is stored; it may raise an exception. Raises psycopg's exception for an error of the server.
    """
    block = bytearray()
    first = True
    least_bytes = block_bytes if first_bytes is None else first_bytes
    while part := copy.read():
        if len(part) > large_bytes:
            check_size(len(part))
        block += part
        last_bytes = _EMPTY_BYTES if first else _TRAILER_BYTES
        first = False
        if len(part) != last_bytes:
            _append_arriving(connection, block, least_bytes, large_bytes, check_size)
        if len(block) >= least_bytes:
            yield block
            block, least_bytes = bytearray(), block_bytes
    if block:
        yield block


def _append_arriving(
    connection: psycopg.Connection[Any],
    block: bytearray,
    block_bytes: int,
    large_bytes: int,
    check_size: Callable[[int], None],
) -> None:
    """Append messages to the block until it is complete, or until none arrives within _PAUSE_S."""
    before_bytes = 0
    while before_bytes < len(block):
        before_bytes = len(block)
        if _append_arrived(connection, block, block_bytes, large_bytes, check_size):
            return
        time.sleep(_PAUSE_S)


def _append_arrived(
    connection: psycopg.Connection[Any],
    block: bytearray,
    block_bytes: int,
    large_bytes: int,
    check_size: Callable[[int], None],
) -> bool:
    """Append messages that have arrived to the block.

    Returns true after the trailer, and once the block has `block_bytes`; false if no further message has arrived.
    """
    pgconn = connection.pgconn
    next_message = pgconn.get_copy_data
    while len(block) < block_bytes:
        size_bytes, part = next_message(1)
        if size_bytes == 0:
            pgconn.consume_input()  # does not block
            size_bytes, part = next_message(1)
            if size_bytes == 0:
                return False
        if size_bytes < 0:  # COPY ended without a trailer, so there is an error
            raise _copy_error(connection)
        if size_bytes > large_bytes:
            check_size(size_bytes)
        block += part
        if size_bytes == _TRAILER_BYTES:
            return True
    return True


def _copy_error(connection: psycopg.Connection[Any]) -> psycopg.Error:
    """Return the error that ended COPY. The connection is in a failed transaction, as after any error."""
    pgconn = connection.pgconn
    failed = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    if failed is None:
        return psycopg.OperationalError("COPY ended before its trailer")
    return psycopg.errors.error_from_result(failed, encoding=connection.info.encoding)
