"""Stores what a service beside a hot standby has counted in the catalog of the primary, which is replicated back."""

import asyncio

from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Connection, Session
from indb_tensile.catalog.count_batches import CountBatch, store_batch
from indb_tensile.errors import DatabaseError

from .identity import read_identity

_RETRY_S = 5.0


class PrimaryCounts:
    """A connection to the primary, which is made for the first batch. Batches are stored one after another."""

    def __init__(self, dsn: str, installation: str) -> None:
        self._installation = installation
        self._session = Session(
            dsn,
            application_name="tensile service (counts)",
            retry_s=_RETRY_S,
            lock_timeout_ms=WORK_LOCK_TIMEOUT_MS,
            at_once=False,
        )

    async def store(self, batch: CountBatch) -> None:
        """Add a batch of counts to those of the primary. Raises DatabaseError if its database is another one."""
        await asyncio.to_thread(self._session.run, lambda connection: self._add(connection, batch))

    def close(self) -> None:
        """End the connection."""
        self._session.close()

    def _add(self, connection: Connection, batch: CountBatch) -> None:
        if (other := read_identity(connection).installation) != self._installation:
            raise DatabaseError(
                "the connection to the primary leads to another database than the one that the standby replicates",
                detail=f"The standby has installation {self._installation}, the other database {other}.",
                hint="Correct --primary-dsn of tensile service.",
            )
        store_batch(connection, batch)
