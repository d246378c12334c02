"""Foretells the time of exchanges between devices from times that were measured on their network.

On a device whose operators run on the processor, an exchange needs processors that operators need too. So a transfer
was measured twice, alone and beside a computation, with the time that the computation lost.

An exchange is one or several transfers one after another, each a message of every rank to every other one. The time
of a transfer is that of an equally large one, interpolated between measured sizes. Below the smallest measured size
it is the time of an empty message, and above the largest one the network's rate decides. A larger transfer never
takes less time: a measurement that says so was disturbed.

Between two hosts a message one way takes about as long as messages both ways, since each direction has its own wires.
On one host processors copy the messages of both directions, and one way takes about two thirds of the time. So both
were measured. A transfer with less in one direction is in between, by the share of the smaller direction.

What a transfer costs beside a computation varies far more than its time alone: a thread that has to wait for a
processor waits for the rest of a slice of some milliseconds. It consists of waits, whose number does not depend on
the size, and of copies, whose time grows with it. So a straight line through all sizes is taken, which has more
measurements than each size alone.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from itertools import accumulate
from statistics import fmean

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.link import FREE_COPIES, MIB_BYTES, CopyLoss


class Collective(StrEnum):
    """An operation that all ranks make at once, as `tensile.rank_networks` has it."""

    ALL_TO_ALL = "all_to_all"
    ONE_WAY = "one_way"  # in pairs of ranks, of which one only sends
    ALL_REDUCE = "all_reduce"
    COPY = "copy"  # between the memories of device and host, which only takes a processor on some devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one rank sends to all others together, and receives from them, in one operation."""

    collective: Collective
    sent_bytes: int
    received_bytes: int

    @property
    def size_bytes(self) -> int:
        """The bytes of the busier direction."""
        return max(self.sent_bytes, self.received_bytes)

    @property
    def returned(self) -> float:
        """The bytes of the other direction, as a share of those of the busier one."""
        return min(self.sent_bytes, self.received_bytes) / max(1, self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTransfer:
    """The measured times of a collective operation in which each rank sends and receives `size_bytes`.

    One way, it does only one of both.
    """

    collective: Collective
    size_bytes: int
    time: ExchangeTime

    def __post_init__(self) -> None:
        if self.size_bytes <= 0 or self.time.alone_ns <= 0:
            raise InvariantError(f"a transfer of {self.size_bytes} bytes was not measured: {self.time}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTimes:
    """Measured transfers of every collective, in any order."""

    measured: tuple[MeasuredTransfer, ...]

    def __post_init__(self) -> None:
        exchanging = {Collective.ALL_TO_ALL, Collective.ALL_REDUCE}
        if missing := exchanging.difference(row.collective for row in self.measured):
            raise InvariantError(f"the network's time of {', '.join(sorted(missing))} was not measured")

    @property
    def copy_loss(self) -> CopyLoss:
        """What operators lose to copies on all these ranks at once; nothing, if no copy was measured."""
        copies = sorted((row for row in self.measured if row.collective is Collective.COPY), key=_size_bytes)
        if not copies:
            return FREE_COPIES
        small, large = copies[0], copies[-1]
        more_bytes = max(1, large.size_bytes - small.size_bytes)
        per_mib_ns = max(0, large.time.lost_ns - small.time.lost_ns) * MIB_BYTES // more_bytes
        per_copy_ns = max(0, small.time.lost_ns - per_mib_ns * small.size_bytes // MIB_BYTES)
        return CopyLoss(per_copy_ns=per_copy_ns, per_mib_ns=per_mib_ns)

    def foretell(self, transfers: Iterable[Transfer]) -> ExchangeTime:
        """Return the time of these transfers, one after another."""
        return reduce(ExchangeTime.then, map(self._transfer_time, transfers), ExchangeTime.free(0))

    def _transfer_time(self, transfer: Transfer) -> ExchangeTime:
        both_ns = self._columns_ns(transfer.collective, transfer.size_bytes)
        if transfer.collective is Collective.ALL_TO_ALL and transfer.returned < 1:
            single_ns = self._columns_ns(Collective.ONE_WAY, transfer.size_bytes) or both_ns
            both_ns = [
                min(single, both) + round((both - min(single, both)) * transfer.returned)
                for single, both in zip(single_ns, both_ns, strict=True)
            ]
        alone_ns, more_ns, lost_ns = both_ns
        beside_ns = alone_ns + more_ns
        return ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=min(lost_ns, beside_ns))

    def _columns_ns(self, collective: Collective, size_bytes: int) -> list[int]:
        """Return the time alone, how much longer it is beside operators, and what these lose; [] if not measured."""
        rows = sorted((row for row in self.measured if row.collective is collective), key=_size_bytes)
        if not rows:
            return []
        sizes = [row.size_bytes for row in rows]
        alone, more, lost = zip(*(_parts_of(row.time) for row in rows), strict=True)
        alone_ns = _interpolate_ns([*zip(sizes, accumulate(alone, max), strict=True)], size_bytes)
        return [alone_ns, *(_on_line_ns([*zip(sizes, column, strict=True)], size_bytes) for column in (more, lost))]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangNetwork:
    """The network between the devices of a gang. `hosts` has the host of each rank, sorted.

    With `by_nccl` ranks exchange gradients by NCCL. `times` are those of transfers in host memory all the same. An
    exchange of a step takes `stretch` times as long as its transfers: see rehearsed_exchanges.py.
    """

    hosts: tuple[str, ...]
    times: NetworkTimes
    by_nccl: bool = False
    stretch: float = 1.0

    def signature_of(self, signature: str) -> str:
        """Return the signature under which the time of this operator is stored, as measured on this network.

        An operator that exchanges has two stored times: that of its own work, which is measured without other
        devices, and that of an exchange between these devices, which a training measures.
        """
        network = (*self.hosts, "by NCCL") if self.by_nccl else self.hosts
        return hashlib.sha256("\n".join((signature, *network)).encode()).hexdigest()


def _size_bytes(row: MeasuredTransfer) -> int:
    return row.size_bytes


def _parts_of(time: ExchangeTime) -> tuple[int, int, int]:
    """Return the time alone, how much longer it takes beside operators, and what these lose."""
    return time.alone_ns, time.beside_ns - time.alone_ns, time.lost_ns


def _interpolate_ns(points: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Return the time of a transfer between measured ones, which are ordered by size."""
    after = bisect_left(points, size_bytes, key=lambda point: point[0])
    if after == 0:
        return points[0][1]
    (low_bytes, low_ns) = points[after - 1]
    if after == len(points):
        return low_ns * size_bytes // low_bytes
    (high_bytes, high_ns) = points[after]
    return low_ns + (high_ns - low_ns) * (size_bytes - low_bytes) // (high_bytes - low_bytes)


def _on_line_ns(points: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Return the time at this size of the straight line through the points, by least squares.

    The line does not fall, and is not negative.
    """
    mean_bytes, mean_ns = fmean(size for size, _ in points), fmean(ns for _, ns in points)
    square = sum((size - mean_bytes) ** 2 for size, _ in points)
    product = sum((size - mean_bytes) * (ns - mean_ns) for size, ns in points)
    slope = max(0.0, product / square) if square else 0.0
    if mean_ns < slope * mean_bytes:  # the line through no time at no size
        slope = sum(size * ns for size, ns in points) / sum(size * size for size, _ in points)
        return round(slope * size_bytes)
    return round(mean_ns + slope * (size_bytes - mean_bytes))
