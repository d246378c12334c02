"""Pieces of persistent storages: what a plan that runs updates in parts moves by itself.

Where an update runs in parts, the optimizer state that it alone accesses is cut with it (`scheduler/rewrite.py`), and
each piece comes and goes as a tensor of its own. Programs may cut one storage differently: a piece is known by the
bytes that it covers, and the state is cut anew between two programs.
"""

from dataclasses import dataclass

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import captured_order, rewrite


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Piece:
    """A range of bytes of a persistent storage of the captured step; mostly all of it."""

    tensor: TensorId
    start_bytes: int
    stop_bytes: int

    @property
    def size_bytes(self) -> int:
        """How many bytes it covers."""
        return self.stop_bytes - self.start_bytes


def whole(tensor: TensorId, size_bytes: int) -> Piece:
    """All of a storage."""
    return Piece(tensor=tensor, start_bytes=0, stop_bytes=size_bytes)


def pieces_of(graph: StepGraph, plan: Plan) -> dict[TensorId, Piece]:
    """For each persistent tensor of the graph to which the plan refers, what it is of the captured `graph`."""
    rewritten = rewrite(graph, plan.executions or captured_order(graph))
    found: dict[TensorId, Piece] = {}
    ends: dict[TensorId, int] = {}
    for tensor, source in zip(rewritten.graph.tensors, rewritten.source, strict=True):
        if tensor.persistent:  # the pieces of one storage have ids in their order
            start_bytes = ends.get(source, 0)
            ends[source] = start_bytes + tensor.size_bytes
            found[tensor.id] = Piece(tensor=source, start_bytes=start_bytes, stop_bytes=ends[source])
    return found
