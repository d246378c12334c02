"""A real catalog in virtual time: now() means the time of a clock that a simulation sets.

So a simulation can run the rules of the catalog themselves, such as claims and leases, over hours. `use_virtual_time`
changes all functions of the catalog, so it belongs into a database that is dropped afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import LOOP_LOCK_TIMEOUT_MS, Connection, Session, connect
from indb_tensile.catalog.queries import parse
from indb_tensile.job import JobId

Result = TypeVar("Result")

_SQL = parse(Path(__file__).with_name("virtual_catalog.sql").read_text(encoding="utf-8"))
_BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
_NAME = "tensile bench"


@dataclass(slots=True)
class VirtualClock:
    """The time in seconds since the begin of the simulation."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    @property
    def text(self) -> str:
        """The time for PostgreSQL."""
        return (_BEGIN + timedelta(seconds=self.now_s)).isoformat()


class VirtualSession(Session):
    """A session in which now() is the clock's time."""

    def __init__(self, dsn: str, clock: VirtualClock) -> None:
        self.clock = clock
        self._set_to = ""
        super().__init__(dsn, application_name=_NAME, retry_s=0.0, lock_timeout_ms=LOOP_LOCK_TIMEOUT_MS)

    def run(self, action: Callable[[Connection], Result], *, wait_for_locks: bool = True) -> Result:
        """Run `action` at the clock's time."""
        return super().run(lambda connection: self._at_time(connection, action), wait_for_locks=wait_for_locks)

    def _at_time(self, connection: Connection, action: Callable[[Connection], Result]) -> Result:
        if self.clock.text != self._set_to:
            self._set_to = self.clock.text
            connection.execute(_SQL["set_clock"], {"now": self._set_to})
        return action(connection)

    def _connect(self) -> Connection:
        connection = super()._connect()
        connection.execute(_SQL["follow_clock"])
        self._set_to = ""
        return connection


def use_virtual_time(dsn: str) -> None:
    """Let all functions of this database's catalog read the clock of their session. Needs a superuser."""
    with connect(dsn, application_name=_NAME) as connection:
        connection.execute(_SQL["allow"])
        connection.execute(_SQL["create_clock"])


def enqueue(connection: Connection, devices: int) -> JobId:
    """Insert a queued job for so many devices."""
    spec = {
        "model": "bench",
        "relation": {"oid": 1, "schema": "public", "name": "bench"},
        "target": "y",
        "task": "regression",
        "architecture": {"type": "mlp"},
        "devices": devices,
    }
    row = connection.execute(_SQL["enqueue"], {"spec": Jsonb(spec)}).fetchone()
    assert row is not None
    return JobId(row[0])


def left_over(connection: Connection) -> tuple[int, int, int]:
    """Return the numbers of jobs that have not ended, of their ranks, and of the values of these ranks."""
    row = connection.execute(_SQL["left_over"]).fetchone()
    assert row is not None
    return row[0], row[1], row[2]
