"""Stores how much jobs have used a device, by owner and model, which decides whose job is claimed next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.job import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """What one job has used since its use was last stored.

    `device_s` is the larger of its shares of the device's compute and memory, and `byte_s` its granted bytes, both
    summed over time. `running_s` is the time in which it had device memory. In `measured_s` of that time its speed
    was known, and the work done then takes `alone_s` alone on the device. `waiting_s` is the time in which it had a
    trainer and no device memory.
    """

    job: JobId
    device_s: float
    byte_s: float
    running_s: float
    measured_s: float = 0.0
    alone_s: float = 0.0
    waiting_s: float = 0.0


def record_usage(connection: Connection, usages: Sequence[JobUsage]) -> None:
    """Add what these jobs have used to the use of their owners and models, and to the counters of copies and waits.

    Deleted jobs are left out.
    """
    if not usages:
        return
    times = {
        "jobs": [u.job for u in usages],
        "running_s": [u.running_s for u in usages],
        "waiting_s": [u.waiting_s for u in usages],
    }
    used = [usage for usage in usages if usage.running_s > 0.0]
    if used:
        _record(connection, used)
    connection.execute(query("add_movements"), times)


def add_totals(connection: Connection, amounts: Mapping[tuple[str, str], float]) -> None:
    """Add to the counters in tensile.totals. A key of `amounts` is the name and the label of a counter."""
    values = {
        "names": [name for name, _ in amounts],
        "labels": [label for _, label in amounts],
        "amounts": list(amounts.values()),
    }
    connection.execute(query("add_totals"), values)


def _record(connection: Connection, usages: Sequence[JobUsage]) -> None:
    connection.execute(
        query("record_usage"),
        {
            "jobs": [u.job for u in usages],
            "device_s": [u.device_s for u in usages],
            "byte_s": [u.byte_s for u in usages],
            "running_s": [u.running_s for u in usages],
            "measured_s": [u.measured_s for u in usages],
            "alone_s": [u.alone_s for u in usages],
        },
    )
