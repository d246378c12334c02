"""Networks between devices for tests."""

from indb_tensile.scheduler.timing.network_times import Collective, GangNetwork, MeasuredTransfer, NetworkTimes


def network_of(ranks: int, *, message_ns: int = 100_000, host: str = "here") -> GangNetwork:
    """Return the network between so many devices of one host, on which any transfer takes at least this time."""
    rows = [
        MeasuredTransfer(
            collective=collective, size_bytes=1 << exponent, time_ns=message_ns + factor * (1 << exponent)
        )
        for collective, factor in ((Collective.ALL_REDUCE, 2), (Collective.ALL_TO_ALL, 1))
        for exponent in (10, 20)
    ]
    return GangNetwork(hosts=(host,) * ranks, times=NetworkTimes(measured=tuple(rows)))
