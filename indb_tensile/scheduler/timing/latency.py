"""How long operators take: an estimate before they were ever run, its correction, and when to plan again.

The estimate is the roofline: an operator takes as long as its arithmetic or its memory traffic, whichever is longer,
plus what starting it costs. TENSILE section IV-A predicts with trained networks:
`executor/latency/latency_predictor.py` learns how far a device's operators are from this estimate, which serves until
then. Section IV-E gives the correction (exponentially weighted average) and the drift |s' - s| / s used here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import Operator, StepGraph

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """What the roofline needs to know of a device."""

    flops_per_s: int
    bytes_per_s: int
    launch_ns: int

    def __post_init__(self) -> None:
        if self.flops_per_s <= 0 or self.bytes_per_s <= 0 or self.launch_ns < 0:
            raise InvariantError(f"device speed: rates must be positive and launch_ns not negative: {self}")


def estimate(graph: StepGraph, speed: DeviceSpeed) -> tuple[int, ...]:
    """Nanoseconds for each operator of the graph, from its arithmetic and the bytes it touches."""
    return tuple(_estimate(graph, operator, speed) for operator in graph.operators)


def roofline_ns(flops: int, moved_bytes: int, speed: DeviceSpeed) -> int:
    """Nanoseconds of so much arithmetic and memory traffic, whichever is longer, and of starting it."""
    busy_s = max(flops / speed.flops_per_s, moved_bytes / speed.bytes_per_s)
    return speed.launch_ns + round(busy_s * _NS_PER_S)


def correct(old: Sequence[int], measured: Sequence[int], weight: float) -> tuple[int, ...]:
    """Move each operator's latency towards its measurement: `weight` 1 believes it, 0 ignores it."""
    if len(old) != len(measured):
        raise InvariantError(f"latency correction: {len(measured)} measurements for {len(old)} operators")
    if not 0.0 <= weight <= 1.0:
        raise InvariantError(f"latency correction: weight is {weight}, not between 0 and 1")
    return tuple(round(o + weight * (m - o)) for o, m in zip(old, measured, strict=True))


def drift(old: Sequence[int], new: Sequence[int]) -> float:
    """How far the summed latency has moved, as a ratio of what it was: |s' - s| / s."""
    before, after = sum(old), sum(new)
    if before == 0:
        return 0.0 if after == 0 else float("inf")
    return abs(after - before) / before


def _estimate(graph: StepGraph, operator: Operator, speed: DeviceSpeed) -> int:
    moved_bytes = sum(graph.tensors[t].size_bytes for t in operator.reads)
    moved_bytes += sum(graph.tensors[t].size_bytes for t in operator.writes)
    return roofline_ns(operator.flops, moved_bytes, speed)
