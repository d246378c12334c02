"""Writes and reads large values of the catalog (weights and checkpoints) in chunks of bounded size."""

from collections.abc import Iterable, Iterator
from typing import LiteralString

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError

Part = bytes | memoryview  # one of the consecutive parts of a large value

CHUNK_BYTES = 8 * 1024 * 1024  # bounded because client and server each hold several copies of a bytea value


def write_chunks(connection: Connection, name: LiteralString, owner: int, parts: Iterable[Part]) -> None:
    """Insert the bytes of all parts, chunk by chunk, with the statement `name`."""
    for chunk_no, chunk in enumerate(_chunks(parts)):
        connection.execute(query(name), {"owner": owner, "chunk_no": chunk_no, "chunk": chunk})


def read_chunks(connection: Connection, name: LiteralString, owner: int, size_bytes: int) -> bytes:
    """Read all chunks of a value with the statement `name`, one at a time and in binary.

    So at most one chunk is in memory beside the whole value. Raises DatabaseError if the value does not have
    `size_bytes` bytes.
    """
    data = bytearray()
    with connection.cursor(binary=True) as cursor:
        for (chunk,) in cursor.stream(query(name), {"owner": owner}):
            data += chunk
    if len(data) != size_bytes:
        raise DatabaseError(
            f"the bytes stored for {name.removesuffix('_chunks')} {owner} are {len(data)}, not {size_bytes}",
            hint="Restore the database from a dump, or train again.",
        )
    return bytes(data)


def _chunks(parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield chunks of CHUNK_BYTES, the last one shorter, whatever the sizes of the parts."""
    chunk = bytearray()
    for part in parts:
        view = memoryview(part)
        while len(view):
            piece = view[: CHUNK_BYTES - len(chunk)]
            chunk += piece
            view = view[len(piece) :]
            if len(chunk) == CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
    if chunk:
        yield bytes(chunk)
