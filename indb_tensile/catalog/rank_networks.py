"""Stores how long transfers between the devices of gangs take, which ranks measure before their first training."""

from collections.abc import Sequence
from typing import Any

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.timing.network_times import (
    Collective,
    GangNetwork,
    MeasuredTransfer,
    NetworkTimes,
)


def load_network(
    connection: Connection, device_kind: str, hosts: Sequence[str], *, fresh: bool
) -> GangNetwork | None:
    """Load the network between devices of these hosts, one host for each rank; None if it was not measured.

    With `fresh`, a measurement of more than a day ago does not count: networks and machines change.
    """
    values = {"device_kind": device_kind, "hosts": sorted(hosts), "fresh": fresh}
    return _network(connection.execute(query("load_rank_network"), values).fetchall())


def latest_network(connection: Connection, device_kind: str, host: str, ranks: int) -> GangNetwork | None:
    """Load the network that so many devices have measured last, preferably with one of this host.

    None if so many have not met.
    """
    values = {"device_kind": device_kind, "host": host, "ranks": ranks}
    return _network(connection.execute(query("latest_rank_network"), values).fetchall())


def save_network(connection: Connection, device_kind: str, network: GangNetwork) -> None:
    """Store the measurements, in place of older ones between the same hosts."""
    rows = network.times.measured
    values = {
        "device_kind": device_kind,
        "hosts": sorted(network.hosts),
        "collectives": [row.collective.value for row in rows],
        "sizes": [row.size_bytes for row in rows],
        "times": [row.time.alone_ns for row in rows],
        "besides": [row.time.beside_ns for row in rows],
        "losses": [row.time.lost_ns for row in rows],
    }
    connection.execute(query("save_rank_network"), values)


def _network(rows: Sequence[tuple[Any, ...]]) -> GangNetwork | None:
    if not rows:
        return None
    measured = tuple(
        MeasuredTransfer(
            collective=Collective(collective),
            size_bytes=size_bytes,
            time=ExchangeTime(alone_ns=time_ns, beside_ns=beside_ns, lost_ns=lost_ns),
        )
        for _, collective, size_bytes, time_ns, beside_ns, lost_ns in rows
    )
    return GangNetwork(hosts=tuple(rows[0][0]), times=NetworkTimes(measured=measured))
