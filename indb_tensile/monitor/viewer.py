"""A viewer: one database role, with the connections by which the page reads and acts for it.

All sessions of a role share its viewer, so that the data of a page that is open fifty times are read once. Passwords
are never kept. So a role that needs a password has only the connections of its login, and has to log in again once
they are lost.
"""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import psycopg

from indb_tensile.catalog.connection import Connection, pinned
from indb_tensile.errors import TensileError

Result = TypeVar("Result")

_TIMEOUT_MS = 20_000  # time limit of a statement: a page that nobody watches must not keep the server busy
_CACHED = 256  # answers; the oldest are dropped


class ViewerLostError(TensileError):
    """The viewer's connection has ended and cannot be opened again without a password."""

    sqlstate = "08006"  # connection_failure
    exit_code = 4


class Viewer:
    """The connections of one role. Calls come from several threads; each connection serves one call at a time."""

    def __init__(self, connections: tuple[Connection, Connection], reopen: Callable[[], Connection] | None) -> None:
        """`connections` are one for reading and one for actions and long statements.

        `reopen` opens a connection of the same role without a password; None if that is not possible.
        """
        self.needs_password = reopen is None
        self.role = str(_value(connections[0], "select current_user"))
        self.database = connections[0].info.dbname
        self._channels = tuple(_Channel(connection, reopen) for connection in connections)
        self._cache: dict[Hashable, tuple[float, Any]] = {}
        self._cache_lock = threading.Lock()

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Run reading statements in one transaction with search_path pinned.

        Raises psycopg's errors, and ViewerLostError once the viewer has to log in again.
        """
        return self._channels[0].run(work)

    def act(self, work: Callable[[Connection], Result], *, pins: bool = True) -> Result:
        """Run statements that change something or take long, in the same way, on a connection of their own.

        With `pins` false they run with the role's own search_path, because they resolve names that the role typed.
        """
        return self._channels[1].run(work, pins=pins)

    def cached(self, key: Hashable, age_s: float, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` has read for this key within the last `age_s` seconds, or read it now."""
        now_s = time.monotonic()
        with self._cache_lock:
            entry = self._cache.get(key)
        if entry is not None and now_s - entry[0] < age_s:
            return entry[1]  # type: ignore[no-any-return]  # the key determines the type
        result = self.read(work)
        with self._cache_lock:
            self._cache.pop(key, None)
            self._cache[key] = (now_s, result)
            while len(self._cache) > _CACHED:
                del self._cache[next(iter(self._cache))]
        return result

    @property
    def is_lost(self) -> bool:
        """True if the viewer can read nothing more."""
        return any(channel.is_lost for channel in self._channels)

    def close(self) -> None:
        """Close the connections, once the call that uses each has ended."""
        for channel in self._channels:
            channel.close()


class _Channel:
    """One connection, opened again where that needs no password."""

    def __init__(self, connection: Connection, reopen: Callable[[], Connection] | None) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = connection
        self._reopen = reopen
        _bound(connection)

    @property
    def is_lost(self) -> bool:
        return self._reopen is None and (self._connection is None or self._connection.closed)

    def run(self, work: Callable[[Connection], Result], *, pins: bool = True) -> Result:
        with self._lock:
            connection = self._open()
            try:
                with pinned(connection) if pins else connection.transaction():
                    return work(connection)
            except psycopg.OperationalError:
                if connection.closed:
                    self._connection = None
                raise

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._reopen = None

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            if self._reopen is None:
                raise ViewerLostError(
                    "the connection to the database has ended", hint="Log in again: the page keeps no password."
                )
            self._connection = self._reopen()
            _bound(self._connection)
        return self._connection


def _bound(connection: Connection) -> None:
    connection.execute(f"set statement_timeout = {_TIMEOUT_MS}")


def _value(connection: Connection, statement: str) -> object:
    row = connection.execute(statement).fetchone()
    return row[0] if row else None
