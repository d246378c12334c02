"""Wake-ups from the database. They only save time: whoever listens also polls, and is correct without them.

A connection of its own, since psycopg must not listen and work on one at the same time.
"""

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psycopg

from indb_tensile.catalog.connection import Connection, UnreachableError, connect, is_outage
from indb_tensile.catalog.queries import query
from indb_tensile.job import JobId

QUEUED = "queued"  # a job may be claimed
CANCEL = "cancel"  # a job that is starting or running should stop
CHANGED = "changed"  # a job went into another state


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Something happened to one job, or to several (`job` is None)."""

    kind: str
    job: JobId | None = None


class Listener:
    """Listens on channel `tensile`, and goes on doing so when the database was restarted."""

    def __init__(self, dsn: str = "", *, application_name: str = "tensile listener") -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._connection: Connection | None = self._connect()

    def wait(self, timeout_s: float) -> tuple[Wake, ...]:
        """What came within `timeout_s`, at the first: empty when nothing came, or the database is away."""
        end = time.monotonic() + timeout_s
        try:
            if self._connection is None:
                self._connection = self._connect()
            return tuple(_wake(n.payload) for n in self._connection.notifies(timeout=timeout_s, stop_after=1))
        except (psycopg.Error, UnreachableError) as error:
            if not is_outage(error):
                raise
            self.close()
            time.sleep(max(0.0, end - time.monotonic()))
            return ()

    def fileno(self) -> int | None:
        """For a selector: readable when something may have come; None while the database is away."""
        return None if self._connection is None else self._connection.fileno()

    def close(self) -> None:
        """End the connection; a later `wait` opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> Connection:
        connection = connect(self._dsn, application_name=self._application_name)
        connection.execute(query("listen"))
        return connection


def _wake(payload: str) -> Wake:
    kind, _, job = payload.partition(" ")
    return Wake(kind=kind, job=JobId(int(job)) if job.isdecimal() else None)
