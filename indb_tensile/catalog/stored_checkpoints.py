"""Records the checkpoints of jobs, one row for each store, and stores the bytes of checkpoints in the catalog."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from indb_tensile.catalog.chunks import Part, read_chunks, write_chunks
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import lost_claim
from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError
from indb_tensile.job import CheckpointStore, ClaimToken, JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """The catalog's row of one checkpoint. `host` is empty for a checkpoint whose bytes are in the catalog."""

    store: CheckpointStore
    host: str
    position: Mapping[str, Any]
    size_bytes: int
    digest: str


class DigestingParts:
    """Iterates over parts, and counts their bytes and computes their SHA-256 digest on the way."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = parts
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def __iter__(self) -> Iterator[Part]:
        for part in self._parts:
            self._digest.update(part)
            self.size_bytes += len(memoryview(part))
            yield part

    @property
    def digest(self) -> str:
        """The digest of the parts read so far, as hexadecimal digits."""
        return self._digest.hexdigest()


def digest_of(data: bytes) -> str:
    """Return the SHA-256 digest as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def checkpoints(connection: Connection, job: JobId) -> tuple[StoredCheckpoint, ...]:
    """Return all checkpoints of the job, the newest first."""
    rows = connection.execute(query("checkpoints"), {"job": job}).fetchall()
    return tuple(
        StoredCheckpoint(store=CheckpointStore(store), host=host, position=position, size_bytes=size, digest=digest)
        for store, host, position, size, digest in rows
    )


def record_checkpoint(connection: Connection, job: JobId, claim: ClaimToken, stored: StoredCheckpoint) -> None:
    """Replace the row of this job, store and host. Raises LostClaimError."""
    values = {
        "job": job,
        "claim": claim,
        "store": stored.store.value,
        "host": stored.host,
        "position": Jsonb(dict(stored.position)),
        "size_bytes": stored.size_bytes,
        "digest": stored.digest,
    }
    if connection.execute(query("save_checkpoint"), values).fetchone() is None:
        raise lost_claim(job, claim)


def save_checkpoint(
    connection: Connection, job: JobId, claim: ClaimToken, parts: Iterable[Part], position: Mapping[str, Any]
) -> None:
    """Replace the job's checkpoint in the catalog, in one transaction. Raises LostClaimError."""
    with connection.transaction():
        if connection.execute(query("lock_claimed"), {"job": job, "claim": claim}).fetchone() is None:
            raise lost_claim(job, claim)
        connection.execute(query("delete_checkpoint_chunks"), {"job": job})
        summed = DigestingParts(parts)
        write_chunks(connection, "insert_checkpoint_chunk", job, summed)
        stored = StoredCheckpoint(
            store=CheckpointStore.CATALOG,
            host="",
            position=position,
            size_bytes=summed.size_bytes,
            digest=summed.digest,
        )
        record_checkpoint(connection, job, claim, stored)


def load_checkpoint(connection: Connection, job: JobId, stored: StoredCheckpoint) -> bytes:
    """Read the bytes of the job's checkpoint from the catalog.

    Raises DatabaseError if they do not match `stored`, because they were lost, replaced or damaged.
    """
    with connection.transaction():
        data = read_chunks(connection, "checkpoint_chunks", job, stored.size_bytes)
    if digest_of(data) != stored.digest:
        raise DatabaseError(
            f"the checkpoint of job {job} in the catalog is damaged: its SHA-256 digest does not match",
            detail=f"The digest is {digest_of(data)}, not {stored.digest}.",
        )
    return data


def installation(connection: Connection) -> UUID:
    """Return the id of this database. Its checkpoint files are in a folder of that name."""
    row = connection.execute(query("installation")).fetchone()
    assert row is not None
    return UUID(str(row[0]))


def host_checkpoints(connection: Connection, host: str) -> frozenset[tuple[int, str]]:
    """Return job and digest of each checkpoint file on this host that has a row in the catalog."""
    return frozenset(connection.execute(query("host_checkpoints"), {"host": host}).fetchall())


def has_other_hosts(connection: Connection, host: str) -> bool:
    """Return whether a controller of another host is alive.

    Such a controller may take over this host's jobs, and cannot read this host's files.
    """
    row = connection.execute(query("other_hosts"), {"host": host}).fetchone()
    return bool(row and row[0])
