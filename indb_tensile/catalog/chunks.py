"""Large values in the catalog: weights and checkpoints, in chunks of bounded size."""

from collections.abc import Iterable, Iterator
from typing import LiteralString

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError

Part = bytes | memoryview  # of a large value; the parts follow one another

CHUNK_BYTES = 8 * 1024 * 1024  # a bytea value is built in memory several times over on its way


def write_chunks(connection: Connection, name: LiteralString, owner: int, parts: Iterable[Part]) -> None:
    """Insert the bytes of all parts, chunk by chunk, by the statement of that name."""
    for chunk_no, chunk in enumerate(_chunks(parts)):
        connection.execute(query(name), {"owner": owner, "chunk_no": chunk_no, "chunk": chunk})


def read_chunks(connection: Connection, name: LiteralString, owner: int, size_bytes: int) -> bytes:
    """All chunks, fetched one by one in binary, so that no more than one is in memory beside the whole.

    Raises DatabaseError where they are not `size_bytes` together.
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
            taken = view[: CHUNK_BYTES - len(chunk)]
            chunk += taken
            view = view[len(taken) :]
            if len(chunk) == CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
    if chunk:
        yield bytes(chunk)
