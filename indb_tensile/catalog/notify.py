"""Wake-ups from the database. They only save time: the controller also polls, and is correct without them.

Any role of the database may notify on any channel, so a payload is untrusted: what is not exactly as the catalog's
triggers write it is ignored. A listener has a connection of its own, since psycopg must not listen and work on one
at the same time.
"""

import re
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psycopg

from indb_tensile.catalog.connection import LOOP_LOCK_TIMEOUT_MS, Connection, UnreachableError, connect, is_outage
from indb_tensile.catalog.queries import query
from indb_tensile.job import JobId

QUEUED = "queued"  # a job may be claimed
CANCEL = "cancel"  # a job that is starting or running should stop
CHANGED = "changed"  # a job went into another state

_MOST_AT_ONCE = 1_000  # notifications taken before the caller gets their wake-ups
_PAYLOAD = re.compile(rf"({QUEUED}|{CANCEL}|{CHANGED})(?: ([0-9]{{1,19}}))?")
_BIGINT_END = 1 << 63


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
        """What came within `timeout_s`: empty when nothing came, nothing was understood, or the database is away.

        Returns as soon as something came, with everything that came with it, each wake-up once.
        """
        end = time.monotonic() + timeout_s
        try:
            if self._connection is None:
                self._connection = self._connect()
            payloads = [n.payload for n in self._connection.notifies(timeout=timeout_s, stop_after=1)]
            if payloads:
                more = self._connection.notifies(timeout=0, stop_after=_MOST_AT_ONCE)
                payloads.extend(n.payload for n in more)
        except (psycopg.Error, UnreachableError) as error:
            if not is_outage(error):
                raise
            self.close()
            time.sleep(max(0.0, end - time.monotonic()))
            return ()
        return tuple(dict.fromkeys(wake for wake in map(parse, payloads) if wake is not None))

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
        connection = connect(self._dsn, application_name=self._application_name, lock_timeout_ms=LOOP_LOCK_TIMEOUT_MS)
        connection.execute(query("listen"))
        return connection


def parse(payload: str) -> Wake | None:
    """What a notification says; None where no trigger of the catalog would say so."""
    parts = _PAYLOAD.fullmatch(payload)
    if parts is None:
        return None
    kind, number = parts.groups()
    if number is None:
        return Wake(kind=kind)
    return Wake(kind=kind, job=JobId(int(number))) if int(number) < _BIGINT_END else None
