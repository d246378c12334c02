"""Measures how long transfers between the ranks of a gang take, before anything is exchanged in a training.

Each collective is timed at a few sizes: the smallest shows the time of a message, and the largest the network's rate.
All ranks begin a transfer together, after an empty one, so no rank's wait for another one is part of the time.

What counts is a mean, since a step makes many transfers, and their means add up. A few transfers take much longer
than the others, until the next tick of the clock (receiving_threads.py has the most frequent reason). In a step they
do so, too, so they are not left out. How often they come depends on the number of messages and hardly on their size,
and few rounds have none of them or too many. So the time of a size is the median of its rounds and the time by which
their mean exceeds the median, on average over all sizes of the collective.

A transfer is measured as a step makes it: alone by the thread that waits for it, beside a computation by that of the
lane, after a computation, with values from memory. Right after another one, with values that the caches have, 4 KB
took a third of that time and 2 MB four fifths. What hand-overs between threads cost, a rehearsal shows
(exchange_rehearsal.py).

If the ranks compute on processors, each transfer is also made beside a computation, which loses the time in which
its thread has no processor. That follows from the two clocks of the thread, and so does not depend on how fast the
machine happens to be. With a processor to spare it is next to nothing. Where processors also make the copies between
the memories of device and host, as on an emulated device, copies are timed in the same way. On one machine all that
takes about three seconds.

A thread that wakes up beside a computation waits for the rest of the computation's slice, so a transfer begins at any
moment of a slice, as in a step. When each began with the computation, it waited for a whole slice.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean, median
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
    Collective.ONE_WAY: (1 << 12, 1 << 17, 1 << 19, 1 << 21),
    Collective.ALL_REDUCE: (1 << 12, 1 << 17, 1 << 20, 1 << 23),
    Collective.COPY: (1 << 16, 1 << 21),
}
# With 7 rounds, of which the extremes did not count, transfers took 1.3 to 3 times as long in steps as foretold.
_ROUNDS = 40
# Beside a computation a message either finds a processor at once, or after the computation's slice of some
# milliseconds. On two cores seven rounds beside a computation gave between 0.4 and 4.5 ms for the same transfer. A
# line through all sizes is taken of them (scheduler/timing/network_times.py), so 36 rounds count together.
_BUSY_ROUNDS = 9
_SLICES_NS = 8_000_000  # two ticks of 4 ms: a computation loses its processor at a tick, after a slice of 1 to 3 ms
_PAIRS = 5  # of values in turn, so that none is in the caches
_ITEM_BYTES = 4
_SIDE = 128  # a product of two such matrices takes less time than a message
_VECTOR_BYTES = 1 << 23  # more than the caches of a core
_HOST = torch.device("cpu")


def measure_network(group: RankGroup, *, on_processor: bool = True, copies: bool = False) -> NetworkTimes:
    """Return the times of transfers between these ranks, as this one sees them. All ranks call it together.

    `on_processor` says whether the ranks compute on processors, and `copies` whether processors also copy between the
    memories of device and host. Raises RankLostError if another rank has gone.
    """
    lane = ExchangeLane(nullcontext)
    vector = torch.ones(_VECTOR_BYTES // _ITEM_BYTES)
    meet = _all_to_all(group, _ITEM_BYTES)

    def compute_and_meet() -> None:
        vector.add_(1.0)
        meet()

    rows: list[MeasuredTransfer] = []
    try:
        with while_ranks_answer(group):
            for collective, make in _TRANSFERS.items():
                if copies or collective is not Collective.COPY:
                    sizes = SIZES_BYTES[collective]
                    rounds = [
                        _rounds(make(group, size), lane, compute_and_meet, on_processor=on_processor)
                        for size in sizes
                    ]
                    rows += [
                        MeasuredTransfer(collective=collective, size_bytes=size_bytes, time=time)
                        for size_bytes, time in zip(sizes, mean_times(rounds), strict=True)
                    ]
    finally:
        lane.close(group.abort)
    return NetworkTimes(measured=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRounds:
    """Times of one transfer in nanoseconds: alone, and beside a computation with what the computation lost.

    `beside_ns` and `lost_ns` are empty if the ranks do not compute on processors.
    """

    alone_ns: tuple[int, ...]
    beside_ns: tuple[int, ...] = ()
    lost_ns: tuple[int, ...] = ()


def mean_times(sizes: Sequence[TransferRounds]) -> list[ExchangeTime]:
    """Return the mean time of each transfer, of which all are of one collective and each is of another size."""
    late_ns = fmean(fmean(rounds.alone_ns) - median(rounds.alone_ns) for rounds in sizes)
    return [_mean_time(rounds, late_ns) for rounds in sizes]


def _mean_time(rounds: TransferRounds, late_ns: float) -> ExchangeTime:
    alone_ns = max(1, round(median(rounds.alone_ns) + late_ns))
    if not rounds.beside_ns:
        return ExchangeTime.free(alone_ns)
    beside_ns = max(alone_ns, _typical_ns(rounds.beside_ns))
    lost_ns = min(_typical_ns(rounds.lost_ns), beside_ns)
    return ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=lost_ns)


def _typical_ns(times_ns: Sequence[int]) -> int:
    """Return the mean without the extremes, which other programs may have caused."""
    return round(fmean(sorted(times_ns)[1:-1] or times_ns))


def _rounds(
    transfer: Callable[[], None], lane: ExchangeLane, before: Callable[[], None], *, on_processor: bool
) -> TransferRounds:
    lane.run(transfer, _HOST)  # the first one touches the memory and the connections
    alone_ns = []
    for _ in range(_ROUNDS):
        before()
        start_ns = perf_counter_ns()
        lane.run(transfer, _HOST)
        alone_ns.append(perf_counter_ns() - start_ns)
    if not on_processor:
        return TransferRounds(alone_ns=tuple(alone_ns))
    beside = []
    for number in range(_BUSY_ROUNDS):
        before()
        beside.append(_beside_products(transfer, lane, after_ns=number * _SLICES_NS // _BUSY_ROUNDS))
    beside_ns, lost_ns = zip(*beside, strict=True)
    return TransferRounds(alone_ns=tuple(alone_ns), beside_ns=beside_ns, lost_ns=lost_ns)


def _beside_products(transfer: Callable[[], None], lane: ExchangeLane, *, after_ns: int) -> tuple[int, int]:
    """Make a transfer on the lane while this thread multiplies matrices, which it has done for `after_ns` before.

    Return the time of the transfer, and for how long this thread had no processor meanwhile.
    """
    factor, product = torch.full((_SIDE, _SIDE), 0.5), torch.empty(_SIDE, _SIDE)
    ended = Event()

    def make() -> None:
        try:
            transfer()
        finally:
            ended.set()

    until_ns = perf_counter_ns() + after_ns
    while perf_counter_ns() < until_ns:
        torch.mm(factor, factor, out=product)
    begin_ns, had_ns = perf_counter_ns(), thread_time_ns()
    lane.start(make, _HOST)
    while not ended.is_set():
        torch.mm(factor, factor, out=product)
    taken_ns, had_ns = perf_counter_ns() - begin_ns, thread_time_ns() - had_ns
    lane.finish()
    ((begun_ns, ended_ns),) = lane.take_spans()
    return ended_ns - begun_ns, max(0, taken_ns - had_ns)


def _all_to_all(group: RankGroup, size_bytes: int) -> Callable[[], None]:
    """Return a transfer in which each rank sends all others together so many bytes, the same number to each.

    Each call takes other values.
    """
    others = group.size() - 1
    each = max(1, size_bytes // _ITEM_BYTES // others)
    counts = [0 if rank == group.rank() else each for rank in range(group.size())]
    values = cycle([(torch.ones(each * others), torch.ones(each * others)) for _ in range(_PAIRS)])

    def transfer() -> None:
        received, sent = next(values)
        _wait(group.alltoall_base(received, sent, counts, counts))

    return transfer


def _one_way(group: RankGroup, size_bytes: int) -> Callable[[], None]:
    """Return a transfer in which one rank of each pair sends the other one so many bytes, in turn.

    If the number of ranks is odd, the last one does neither.
    """
    rank, ranks = group.rank(), group.size()
    other = rank ^ 1
    elements = size_bytes // _ITEM_BYTES
    values = cycle([(torch.ones(elements), torch.ones(elements)) for _ in range(_PAIRS)])
    senders = cycle([0, 1])

    def transfer() -> None:
        received, sent = next(values)
        sends, receives = [0] * ranks, [0] * ranks
        if next(senders) == rank % 2 and other < ranks:
            sends[other] = elements
        elif other < ranks:
            receives[other] = elements
        _wait(group.alltoall_base(received[: sum(receives)], sent[: sum(sends)], receives, sends))

    return transfer


def _all_reduce(group: RankGroup, size_bytes: int) -> Callable[[], None]:
    """Return an all-reduce in which each rank sends so many bytes, as in a ring. Each call takes other values."""
    ranks = group.size()
    elements = max(1, size_bytes // _ITEM_BYTES * ranks // (2 * (ranks - 1)))
    values = cycle([torch.ones(elements) for _ in range(_PAIRS)])
    return lambda: _wait(group.allreduce([next(values)]))


def _copy(_: RankGroup, size_bytes: int) -> Callable[[], None]:
    """Return a copy of so many bytes."""
    elements = size_bytes // _ITEM_BYTES
    values = cycle([(torch.ones(elements), torch.ones(elements)) for _ in range(_PAIRS)])

    def copy() -> None:
        into, source = next(values)
        into.copy_(source)

    return copy


def _wait(work: torch.distributed.Work) -> None:
    work.wait()


_TRANSFERS = {
    Collective.ALL_TO_ALL: _all_to_all,
    Collective.ONE_WAY: _one_way,
    Collective.ALL_REDUCE: _all_reduce,
    Collective.COPY: _copy,
}
