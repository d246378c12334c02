"""Networks between devices for tests."""

from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.timing.network_times import (
    Collective,
    GangNetwork,
    MeasuredTransfer,
    NetworkTimes,
)


def network_of(ranks: int, *, message_ns: int = 100_000, host: str = "here", busy: bool = False) -> GangNetwork:
    """Return the network between so many devices of one host, on which any transfer takes at least this time.

    If the host is `busy`, transfers take twice as long beside operators, which lose the time of a transfer alone.
    """

    def time(alone_ns: int) -> ExchangeTime:
        return ExchangeTime(alone_ns=alone_ns, beside_ns=2 * alone_ns if busy else alone_ns, lost_ns=busy * alone_ns)

    rows = [
        MeasuredTransfer(
            collective=collective, size_bytes=1 << exponent, time=time(message_ns + factor * (1 << exponent))
        )
        for collective, factor in ((Collective.ALL_REDUCE, 2), (Collective.ALL_TO_ALL, 1))
        for exponent in (10, 20)
    ]
    return GangNetwork(hosts=(host,) * ranks, times=NetworkTimes(measured=tuple(rows)))
