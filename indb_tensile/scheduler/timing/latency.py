"""Estimate operator latencies before the first run, correct them by measurements, and compute their drift.

The estimate is the roofline: an operator takes as long as its arithmetic or its memory traffic, whichever is longer,
plus its launch time. TENSILE section IV-A predicts latencies with trained networks. Our networks
(`executor/latency/latency_predictor.py`) learn the ratio to this estimate, which is used until they are trained. The
correction (exponentially weighted average) is from section IV-E, and so is the drift |s' - s| / s, which triggers
planning again; s and s' are the old and the new sum of the operators' latencies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import Operator, StepGraph

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """The rates of a device that the roofline needs."""

    flops_per_s: int
    bytes_per_s: int
    launch_ns: int

    def __post_init__(self) -> None:
        if self.flops_per_s <= 0 or self.bytes_per_s <= 0 or self.launch_ns < 0:
            raise InvariantError(f"device speed: rates must be positive and launch_ns not negative: {self}")


def estimate(graph: StepGraph, speed: DeviceSpeed) -> tuple[int, ...]:
    """Return the estimated nanoseconds for each operator of the graph, from its arithmetic and the bytes that it
    accesses.
    """
    return tuple(_estimate(graph, operator, speed) for operator in graph.operators)


def roofline_ns(flops: int, moved_bytes: int, speed: DeviceSpeed) -> int:
    """Return the launch time plus the time of the arithmetic or of the memory traffic, whichever is longer, in
    nanoseconds.
    """
    busy_s = max(flops / speed.flops_per_s, moved_bytes / speed.bytes_per_s)
    return speed.launch_ns + round(busy_s * _NS_PER_S)


def correct(old: Sequence[int], measured: Sequence[int], weight: float) -> tuple[int, ...]:
    """Move each operator's latency towards its measurement: `weight` 1 takes the measurement, 0 keeps
    the old value.
    """
    if len(old) != len(measured):
        raise InvariantError(f"latency correction: {len(measured)} measurements for {len(old)} operators")
    if not 0.0 <= weight <= 1.0:
        raise InvariantError(f"latency correction: weight is {weight}, not between 0 and 1")
    return tuple(round(o + weight * (m - o)) for o, m in zip(old, measured, strict=True))


def drift(old: Sequence[int], new: Sequence[int]) -> float:
    """Return how far the summed latency has moved, relative to its old value: |s' - s| / s."""
    before, after = sum(old), sum(new)
    if before == 0:
        return 0.0 if after == 0 else float("inf")
    return abs(after - before) / before


def _estimate(graph: StepGraph, operator: Operator, speed: DeviceSpeed) -> int:
    moved_bytes = sum(graph.tensors[t].size_bytes for t in operator.reads)
    moved_bytes += sum(graph.tensors[t].size_bytes for t in operator.writes)
    return roofline_ns(operator.flops, moved_bytes, speed)
