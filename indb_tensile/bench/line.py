"""Workloads of many batches from those of two: sizes, arithmetic and times lie on a line over the rows.

A capture takes seconds and a calibration more, and a search for the largest batch asks for a dozen. Whoever reports
what was found captures that batch, so a network that leaves its line costs some tries, never a wrong figure.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from indb_tensile.errors import RequestError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.workload import Workload


class Line:
    """The workload of any number of rows, by those of two."""

    def __init__(self, works: Callable[[int], Workload], first: int, second: int) -> None:
        self.work = cache(works)
        self._ends = first, second

    def __call__(self, rows: int) -> Workload:
        """The workload of so many rows. Raises RequestError where both ends are not of one structure."""
        low, high = (self.work(end) for end in self._ends)
        (graph,), (other,) = low.graphs, high.graphs
        if not _alike(graph, other):
            raise RequestError(
                f"steps of {self._ends[0]} and {self._ends[1]} rows have other operators",
                hint="Its batches cannot be drawn as a line: leave the network out.",
            )

        def at(one: int, more: int, least: int = 0) -> int:
            first, second = self._ends
            return max(least, one + round((more - one) * (rows - first) / (second - first)))

        tensors = tuple(
            replace(t, size_bytes=at(t.size_bytes, o.size_bytes, 1))
            for t, o in zip(graph.tensors, other.tensors, strict=True)
        )
        operators = tuple(
            replace(
                op,
                signature=f"{op.signature} at {rows}",
                workspace_bytes=at(op.workspace_bytes, o.workspace_bytes),
                flops=at(op.flops, o.flops),
            )
            for op, o in zip(graph.operators, other.operators, strict=True)
        )
        times = tuple(at(one, more) for one, more in zip(low.latency_ns[0], high.latency_ns[0], strict=True))
        return Workload(job=low.job, graphs=(StepGraph(tensors=tensors, operators=operators),), latency_ns=(times,))


def _alike(graph: StepGraph, other: StepGraph) -> bool:
    """Whether both are the same operators on the same tensors, whatever their sizes."""

    def shape(one: StepGraph) -> list[object]:
        accesses = [(op.name, op.stage, op.reads, op.writes, op.random, op.splittable) for op in one.operators]
        return [*accesses, *(t.role for t in one.tensors)]

    return shape(graph) == shape(other)
