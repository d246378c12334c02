"""Capuchin's free time: how long a swapped tensor is off the device, and which swaps both lanes can hide.

A tensor that is swapped in a gap leaves right after the access before the gap. Its copy back has to start one copy's
time before the access after the gap. The free time is the time between the end of the first copy and the start of the
second. The longer it is, the easier the copies hide. A lane carries one copy at a time: copies to the host queue in
the order of their accesses, and each copy back ends when the next one has to start.

A swap is worth its copies only if the tensor is away while memory is short. Each swap therefore has a time by which
the tensor has to be away, when memory first becomes short in its gap, and a time before which it must not return.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import Gap
from indb_tensile.scheduler.policies.swap_times import run_ns

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapping:
    """A gap in which to swap, the durations of its copies, and the times between which the tensor has to be away."""

    gap: Gap
    size_bytes: int
    out_ns: int
    in_ns: int
    gone_by_ns: int
    back_from_ns: int


class FreeTime:
    """One graph's time axis, measured without swapping."""

    def __init__(self, graph: StepGraph, latency_ns: Sequence[int], link: Link) -> None:
        self._graph = graph
        self._link = link
        self._end: Ints = np.cumsum(run_ns(graph, latency_ns, link))
        self._begin: Ints = np.concatenate((np.zeros(1, dtype=np.int64), self._end[:-1]))

    def of(self, gap: Gap) -> int:
        """Return the nanoseconds between the end of the copy out and the start of the copy back; negative if they
        overlap.
        """
        size_bytes = self._graph.tensors[gap.tensor].size_bytes
        copies_ns = self._link.out_ns(size_bytes) + self._link.in_ns(size_bytes)
        return int(self._begin[gap.needed_by] - self._end[gap.out_after]) - copies_ns

    def swapping(self, gap: Gap, short: Ints) -> Swapping | None:
        """Return the swap in this gap, with memory `short` at these operators. None if memory is short at none in the
        gap.
        """
        first = int(np.searchsorted(short, gap.out_after, side="right"))
        last = int(np.searchsorted(short, gap.needed_by)) - 1
        if first > last:
            return None
        size_bytes = self._graph.tensors[gap.tensor].size_bytes
        return Swapping(
            gap=gap,
            size_bytes=size_bytes,
            out_ns=self._link.out_ns(size_bytes),
            in_ns=self._link.in_ns(size_bytes),
            gone_by_ns=int(self._begin[short[first]]),
            back_from_ns=int(self._end[short[last]]),
        )

    def late_ns(self, swaps: Sequence[Swapping]) -> int:
        """Return how long these swaps together delay the device: the worst delay out plus the worst delay back."""
        late_out = late_in = lane_ns = 0
        for swap in sorted(swaps, key=lambda s: (s.gap.out_after, s.gap.tensor)):
            lane_ns = max(lane_ns, int(self._end[swap.gap.out_after])) + swap.out_ns
            late_out = max(late_out, lane_ns - swap.gone_by_ns)
        lane_ns = int(self._end[-1])
        for swap in sorted(swaps, key=lambda s: (-s.gap.needed_by, -s.gap.tensor)):
            lane_ns = min(lane_ns, int(self._begin[swap.gap.needed_by])) - swap.in_ns
            late_in = max(late_in, swap.back_from_ns - lane_ns)
        return late_out + late_in
