"""Measures how long transfers between the ranks of a gang take, before anything is exchanged in a training.

Each collective is timed at a few sizes: the smallest shows the time of a message, and the largest the network's rate.
The median of a few rounds counts. All ranks begin a transfer together, after an empty one, so no rank's wait for
another one is part of the time.

If the ranks compute on processors, each transfer is also made beside a computation, as in a step: by the thread of
the lane, while this thread multiplies matrices. The computation loses the time in which this thread has no processor.
That follows from the two clocks of the thread, and so does not depend on how fast the machine happens to be. With a
processor to spare it is next to nothing. On one machine all that takes about half a second.
"""

from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from threading import Event
from time import perf_counter_ns, thread_time_ns

import torch

from indb_tensile.executor.ranks.exchange_lane import ExchangeLane
from indb_tensile.executor.ranks.rank_connection import while_ranks_answer
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.timing.network_times import (
    Collective,
    MeasuredTransfer,
    NetworkTimes,
)

# Sizes are those of exchanges: a bucket has 1 or 4 MiB and a piece 2 MiB (capture/exchange_room.py). Larger gradients
# go in pieces or in the library's own ones, at the rate of the largest size.
SIZES_BYTES = {
    Collective.ALL_TO_ALL: (1 << 12, 1 << 17, 1 << 19, 1 << 21),
    Collective.ALL_REDUCE: (1 << 12, 1 << 17, 1 << 20, 1 << 23),
}
_ROUNDS = 5
_ITEM_BYTES = 4
_SIDE = 128  # a product of two such matrices takes less time than a message


def measure_network(group: RankGroup, *, on_processor: bool = True) -> NetworkTimes:
    """Return the times of transfers between these ranks, as this one sees them. All ranks call it together.

    `on_processor` says whether the ranks compute on processors. Raises RankLostError if another rank has gone.
    """
    lane = ExchangeLane(nullcontext)
    try:
        with while_ranks_answer(group):
            rows = tuple(
                MeasuredTransfer(
                    collective=collective,
                    size_bytes=size_bytes,
                    time=_time(group, collective, size_bytes, lane if on_processor else None),
                )
                for collective, sizes in SIZES_BYTES.items()
                for size_bytes in sizes
            )
    finally:
        lane.close(group.abort)
    return NetworkTimes(measured=rows)


def _time(group: RankGroup, collective: Collective, size_bytes: int, lane: ExchangeLane | None) -> ExchangeTime:
    transfer = (_all_to_all if collective is Collective.ALL_TO_ALL else _all_reduce)(group, size_bytes)
    meet = _all_to_all(group, _ITEM_BYTES)
    transfer()  # the first one touches the memory and the connections
    times_ns = []
    for _ in range(_ROUNDS):
        meet()
        start_ns = perf_counter_ns()
        transfer()
        times_ns.append(perf_counter_ns() - start_ns)
    alone_ns = max(1, round(median(times_ns)))
    if lane is None:
        return ExchangeTime.free(alone_ns)
    beside = []
    for _ in range(_ROUNDS):
        meet()
        beside.append(_beside_products(transfer, lane))
    beside_ns, lost_ns = (round(median(column)) for column in zip(*beside, strict=True))
    beside_ns = max(alone_ns, beside_ns)
    return ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=min(lost_ns, beside_ns))


def _beside_products(transfer: Callable[[], None], lane: ExchangeLane) -> tuple[int, int]:
    """Make a transfer on the lane while this thread multiplies matrices.

    Return the time of the transfer, and for how long this thread had no processor meanwhile.
    """
    factor, product = torch.full((_SIDE, _SIDE), 0.5), torch.empty(_SIDE, _SIDE)
    ended = Event()

    def make() -> None:
        try:
            transfer()
        finally:
            ended.set()

    begin_ns, had_ns = perf_counter_ns(), thread_time_ns()
    lane.start(make, factor.device)
    while not ended.is_set():
        torch.mm(factor, factor, out=product)
    taken_ns, had_ns = perf_counter_ns() - begin_ns, thread_time_ns() - had_ns
    lane.finish()
    ((begun_ns, ended_ns),) = lane.take_spans()
    return ended_ns - begun_ns, max(0, taken_ns - had_ns)


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
