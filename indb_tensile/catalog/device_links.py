"""Stores the speed of copies between devices and their hosts, which controllers measure when they start."""

from collections.abc import Sequence

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link


def save_links(
    connection: Connection, host: str, device_kind: str, measured: Sequence[CopyMeasurement], emulated: Link | None
) -> None:
    """Replace the measurements of this device's link.

    `emulated` has the rates that an emulated link is set to; it is None for a real link.
    """
    device = {"host": host, "device_kind": device_kind}
    rates = (
        {}
        if emulated is None
        else {CopyDirection.OUT: emulated.out_bytes_per_s, CopyDirection.IN: emulated.in_bytes_per_s}
    )
    with connection.transaction():
        connection.execute(query("lock_links"))
        connection.execute(query("forget_links"), device)
        connection.execute(
            query("save_links"),
            {
                **device,
                "ways": [row.way.value for row in measured],
                "beside": [row.beside for row in measured],
                "sizes": [row.size_bytes for row in measured],
                "latencies": [row.latency_ns for row in measured],
                "copies": [row.copy_ns for row in measured],
                "emulated": [rates.get(row.way) for row in measured],
            },
        )
