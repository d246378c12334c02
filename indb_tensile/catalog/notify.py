"""Receives notifications from the database, so that workers react at once to what they would find by polling later.

Workers also poll, and work without notifications. Any role of the database may notify on any channel, so a payload is
untrusted. One that is not exactly in the form of the catalog's triggers is ignored. A forged one in that form is
harmless, because the receiver reads the job's row from the catalog before it acts. A listener has a connection of its
own, because psycopg cannot listen and run other statements on the same connection at the same time.
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
PAUSE = "pause"  # the owner of a job that is starting or running has paused or resumed it
PRIORITY = "priority"  # the priority of a job that is starting or running has changed
CHANGED = "changed"  # a job changed its state
SEARCH = "search"  # a search was enqueued, or one of its trials has ended or come to where the search decides on it

_MOST_AFTER_FIRST = 1_000  # most notifications that one call of `wait` reads after the first
_PAYLOAD = re.compile(rf"({QUEUED}|{CANCEL}|{PAUSE}|{PRIORITY}|{CHANGED}|{SEARCH})(?: ([0-9]{{1,19}}))?")
_BIGINT_END = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A notification about one job, or about several jobs if `job` is None. `kind` is one of the constants above.

    For the kind SEARCH, `job` is the search: a search has a row of its own among the jobs.
    """

    kind: str
    job: JobId | None = None


class Listener:
    """Listens on the channel `tensile`, and reconnects after a restart of the database.

    The constructor connects, and raises an error if the database cannot be reached; `wait` does not.
    """

    def __init__(self, dsn: str = "", *, application_name: str = "tensile listener") -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._connection: Connection | None = self._connect()

    def wait(self, timeout_s: float) -> tuple[Notification, ...]:
        """Wait up to `timeout_s` for notifications, and return those that have arrived, without duplicates.

        Returns as soon as one arrives, and leaves all beyond a limit to the next call. The result is empty if none
        arrived, if none was valid, or if the database cannot be reached. In an outage, too, the call takes the whole
        `timeout_s`; an invalid notification ends it early.
        """
        end = time.monotonic() + timeout_s
        try:
            if self._connection is None:
                self._connection = self._connect()
            payloads = [n.payload for n in self._connection.notifies(timeout=timeout_s, stop_after=1)]
            if payloads:
                more = self._connection.notifies(timeout=0, stop_after=_MOST_AFTER_FIRST)
                payloads.extend(n.payload for n in more)
        except (psycopg.Error, UnreachableError) as error:
            if not is_outage(error):
                raise
            self.close()
            time.sleep(max(0.0, end - time.monotonic()))
            return ()
        return tuple(dict.fromkeys(parsed for parsed in map(parse, payloads) if parsed is not None))

    def fileno(self) -> int | None:
        """Return the descriptor for a selector: readable when a notification may have arrived; None in an outage."""
        return None if self._connection is None else self._connection.fileno()

    def close(self) -> None:
        """Close the connection. A later `wait` opens another one."""
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
        # The lock timeout marks a worker's own session, in which no setting of the role may end a long wait.
        connection = connect(self._dsn, application_name=self._application_name, lock_timeout_ms=LOOP_LOCK_TIMEOUT_MS)
        connection.execute(query("listen"))
        return connection


def parse(payload: str) -> Notification | None:
    """Parse the payload of a notification. Returns None for a payload that no trigger of the catalog writes."""
    parts = _PAYLOAD.fullmatch(payload)
    if parts is None:
        return None
    kind, number = parts.groups()
    if number is None:
        return Notification(kind=kind)
    return Notification(kind=kind, job=JobId(int(number))) if int(number) < _BIGINT_END else None
