"""Estimates the workload of any batch from those of two batches, by linear interpolation over the rows.

A capture takes seconds and a calibration longer, while a search for the largest batch needs a dozen workloads. The
search captures the batch that it reports, so a network that is not linear costs some extra tries but no wrong figure.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from indb_tensile.errors import RequestError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.workload import Workload


class InterpolatedWorkload:
    """The workload of any number of rows, interpolated between the workloads of two batches."""

    def __init__(self, works: Callable[[int], Workload], first: int, second: int) -> None:
        self.work = cache(works)
        self._ends = first, second

    def __call__(self, rows: int) -> Workload:
        """Return the workload of `rows` rows. Raises RequestError if the two batches have different operators."""
        low, high = (self.work(end) for end in self._ends)
        (graph,), (other,) = low.graphs, high.graphs
        if not _alike(graph, other):
            raise RequestError(
                f"steps of {self._ends[0]} and {self._ends[1]} rows have other operators",
                hint="Its workloads cannot be interpolated: leave the network out.",
            )

        def interpolated(low_value: int, high_value: int, least: int = 0) -> int:
            first, second = self._ends
            value = low_value + round((high_value - low_value) * (rows - first) / (second - first))
            return max(least, value)

        tensors = tuple(
            replace(t, size_bytes=interpolated(t.size_bytes, o.size_bytes, 1))
            for t, o in zip(graph.tensors, other.tensors, strict=True)
        )
        operators = tuple(
            replace(
                op,
                signature=f"{op.signature} at {rows}",
                workspace_bytes=interpolated(op.workspace_bytes, o.workspace_bytes),
                flops=interpolated(op.flops, o.flops),
            )
            for op, o in zip(graph.operators, other.operators, strict=True)
        )
        latencies = zip(low.latency_ns[0], high.latency_ns[0], strict=True)
        times = tuple(interpolated(low_ns, high_ns) for low_ns, high_ns in latencies)
        return Workload(job=low.job, graphs=(StepGraph(tensors=tensors, operators=operators),), latency_ns=(times,))


def _alike(graph: StepGraph, other: StepGraph) -> bool:
    """Return whether both graphs have the same operators on the same tensors, apart from sizes."""

    def shape(step: StepGraph) -> list[object]:
        accesses = [(op.name, op.stage, op.reads, op.writes, op.random, op.splittable) for op in step.operators]
        return [*accesses, *(t.role for t in step.tensors)]

    return shape(graph) == shape(other)
