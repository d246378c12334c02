"""Pieces of persistent storages, which a plan that runs updates in parts moves separately.

If an update runs in parts, the optimizer state that only the update accesses is cut into the same parts
(`rewrite.py`), and each piece is swapped as a tensor of its own. Programs may cut one storage differently.
A piece is therefore identified by its range of bytes, and the state is cut again between two programs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import rewrite


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Piece:
    """A range of bytes of a persistent storage of the captured step, usually the whole storage."""

    tensor: TensorId
    start_bytes: int
    stop_bytes: int

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the range."""
        return self.stop_bytes - self.start_bytes


def whole(tensor: TensorId, size_bytes: int) -> Piece:
    """Return the piece that is the whole storage."""
    return Piece(tensor=tensor, start_bytes=0, stop_bytes=size_bytes)


def pieces_of(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> dict[TensorId, Piece]:
    """Return, for each persistent tensor of the graph that the plan runs, its piece of a storage of `graph`."""
    if not plan.executions:
        return {tensor.id: whole(tensor.id, tensor.size_bytes) for tensor in graph.tensors if tensor.persistent}
    rewritten = rewrite(graph, plan.executions, cache)
    pieces: dict[TensorId, Piece] = {}
    ends: dict[TensorId, int] = {}
    for tensor, source in zip(rewritten.graph.tensors, rewritten.source, strict=True):
        if tensor.persistent:  # the pieces of one storage have ids in their order
            start_bytes = ends.get(source, 0)
            ends[source] = start_bytes + tensor.size_bytes
            pieces[tensor.id] = Piece(tensor=source, start_bytes=start_bytes, stop_bytes=ends[source])
    return pieces


def cuts_of(graph: StepGraph, pieces: Mapping[TensorId, Piece]) -> dict[TensorId, tuple[Piece, ...]]:
    """Return the pieces of each persistent storage that the graph accesses.

    `graph` is the graph that a plan runs, and `pieces` are its tensors' pieces (`pieces_of`). A storage that the
    graph never accesses keeps the pieces that another graph left.
    """
    accessed = {t for operator in graph.operators for t in (*operator.reads, *operator.writes)}
    cuts: dict[TensorId, list[Piece]] = {}
    for tensor in sorted(pieces.keys() & accessed):
        cuts.setdefault(pieces[tensor].tensor, []).append(pieces[tensor])
    return {storage: tuple(cut) for storage, cut in cuts.items()}
