"""Measures how long transfers between the ranks of a gang take, before anything is exchanged in a training.

Each collective is timed at a few sizes: the smallest shows the time of a message, and the largest the network's rate.
The median of a few rounds counts. All ranks begin a transfer together, after an empty one, so no rank's wait for
another one is part of the time. On one machine that takes about a tenth of a second.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import torch

from indb_tensile.executor.ranks.rank_connection import while_ranks_answer
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.scheduler.timing.network_times import Collective, MeasuredTransfer, NetworkTimes

# Sizes are those of exchanges: a bucket has 1 or 4 MiB and a piece 2 MiB (capture/exchange_room.py). Larger gradients
# go in pieces or in the library's own ones, at the rate of the largest size.
SIZES_BYTES = {
    Collective.ALL_TO_ALL: (1 << 12, 1 << 17, 1 << 19, 1 << 21),
    Collective.ALL_REDUCE: (1 << 12, 1 << 17, 1 << 20, 1 << 23),
}
_ROUNDS = 5
_ITEM_BYTES = 4


def measure_network(group: RankGroup) -> NetworkTimes:
    """Return the times of transfers between these ranks, as this one sees them. All ranks call it together.

    Raises RankLostError if another rank has gone.
    """
    with while_ranks_answer(group):
        rows = tuple(
            MeasuredTransfer(
                collective=collective, size_bytes=size_bytes, time_ns=_median_ns(group, collective, size_bytes)
            )
            for collective, sizes in SIZES_BYTES.items()
            for size_bytes in sizes
        )
    return NetworkTimes(measured=rows)


def _median_ns(group: RankGroup, collective: Collective, size_bytes: int) -> int:
    transfer = (_all_to_all if collective is Collective.ALL_TO_ALL else _all_reduce)(group, size_bytes)
    meet = _all_to_all(group, _ITEM_BYTES)
    transfer()  # the first one touches the memory and the connections
    times_ns = []
    for _ in range(_ROUNDS):
        meet()
        start_ns = perf_counter_ns()
        transfer()
        times_ns.append(perf_counter_ns() - start_ns)
    return max(1, round(median(times_ns)))


def _all_to_all(group: RankGroup, size_bytes: int) -> Callable[[], None]:
    """Return a transfer in which each rank sends all others together so many bytes, the same number to each."""
    others = group.size() - 1
    each = max(1, size_bytes // _ITEM_BYTES // others)
    counts = [0 if rank == group.rank() else each for rank in range(group.size())]
    sent, received = torch.zeros(each * others), torch.zeros(each * others)
    return lambda: _wait(group.alltoall_base(received, sent, counts, counts))


def _all_reduce(group: RankGroup, size_bytes: int) -> Callable[[], None]:
    """Return an all-reduce in which each rank sends so many bytes, as in a ring."""
    ranks = group.size()
    values = torch.zeros(max(1, size_bytes // _ITEM_BYTES * ranks // (2 * (ranks - 1))))
    return lambda: _wait(group.allreduce([values]))


def _wait(work: torch.distributed.Work) -> None:
    work.wait()
