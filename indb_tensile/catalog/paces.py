"""How much slower emulated devices are than the GPUs that they stand for, by kind of device."""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.scheduler.machines import Pace


def load_pace(connection: Connection, device_kind: str, machine: str) -> Pace | None:
    """The reference step's time on this kind of device and on the machine; None where it was not measured yet."""
    values = {"device_kind": device_kind, "machine": machine}
    row = connection.execute(query("load_pace"), values).fetchone()
    return None if row is None else Pace(here_ns=row[0], there_ns=row[1])


def save_pace(connection: Connection, device_kind: str, machine: str, pace: Pace) -> None:
    """Remember what was measured, unless somebody has done so before."""
    values = {"device_kind": device_kind, "machine": machine, "here_ns": pace.here_ns, "there_ns": pace.there_ns}
    connection.execute(query("save_pace"), values)
