"""Stores how much slower each kind of emulated device is than the GPU that it imitates."""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.scheduler.timing.machines import StepTimes


def load_pace(connection: Connection, device_kind: str, machine: str) -> StepTimes | None:
    """Load the times of the reference step on this kind of device and on the GPU `machine`.

    Returns None if they were not measured yet.
    """
    values = {"device_kind": device_kind, "machine": machine}
    row = connection.execute(query("load_pace"), values).fetchone()
    return None if row is None else StepTimes(here_ns=row[0], there_ns=row[1])


def save_pace(connection: Connection, device_kind: str, machine: str, pace: StepTimes) -> None:
    """Store the measured times, unless the catalog has them already: another controller may have measured first."""
    values = {"device_kind": device_kind, "machine": machine, "here_ns": pace.here_ns, "there_ns": pace.there_ns}
    connection.execute(query("save_pace"), values)
