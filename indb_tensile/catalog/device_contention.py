"""Stores how much jobs side by side slow each other down on each kind of device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredContention:
    """By how much steps take longer beside `jobs - 1` other steps than alone: steps that are all bound by
    arithmetic, all bound by memory bandwidth, and half of each.

    `learned` is the factor of jobs that have trained side by side, or None if there were none.
    """

    jobs: int
    arithmetic: float
    memory: float
    mixed: float
    learned: float | None = None

    @property
    def factor(self) -> float:
        """The factor for jobs whose operators are not known to be of one kind: the mean of the three.

        A learned factor counts half. If it counted whole, a factor that was learned while the machine had other work
        could keep jobs apart for ever, and would then never be corrected.
        """
        measured = (self.arithmetic + self.memory + self.mixed) / 3
        return measured if self.learned is None else (measured + self.learned) / 2


def load_contention(connection: Connection, device_kind: str) -> tuple[MeasuredContention, ...]:
    """Load the measurements of this kind of device by increasing number of jobs; none before they were made."""
    rows = connection.execute(query("load_contention"), {"device_kind": device_kind}).fetchall()
    return tuple(
        MeasuredContention(jobs=jobs, arithmetic=arithmetic, memory=memory, mixed=mixed, learned=learned)
        for jobs, arithmetic, memory, mixed, learned in rows
    )


def save_contention(connection: Connection, device_kind: str, rows: Sequence[MeasuredContention]) -> None:
    """Store the measurements, unless the catalog has some already: another controller may have measured first."""
    values = {
        "device_kind": device_kind,
        "jobs": [row.jobs for row in rows],
        "arithmetic": [row.arithmetic for row in rows],
        "memory": [row.memory for row in rows],
        "mixed": [row.mixed for row in rows],
    }
    connection.execute(query("save_contention"), values)


def learn_contention(connection: Connection, device_kind: str, factors: Mapping[int, float]) -> None:
    """Store the factors of jobs that have trained side by side, by their number, where that number was measured."""
    values = {"device_kind": device_kind, "jobs": list(factors), "factors": list(factors.values())}
    connection.execute(query("learn_contention"), values)
