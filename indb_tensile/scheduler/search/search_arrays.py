"""A step graph as the native search takes it: arrays, which follow from the graph and its order of execution alone.

The search knows the operators of one order before anything is made again, and tensors as they are in that order's
graph. What it finds are orders in which some of those operators run again, and a tensor that was made again is a
new one (rewrite.py). `Instances` counts these as the rewriting would, without doing it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import numpy as np
import numpy.typing as npt

from indb_tensile.scheduler.graph import Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memo import Memo
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.rewrite import captured_order, execution_ns, own_state, part_bytes, repeatable

_Ints = npt.NDArray[np.int64]
_PARTS = 1 << 16  # more than an operator is ever cut into
_OUTLINES: Memo["Outline"] = Memo(16)
_TABLES: Memo["_Table"] = Memo(8)
_LANES: Memo[tuple[_Ints, _Ints]] = Memo(16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outline:
    """Arrays of one graph in one order. Accesses of operator k are access[offset[k]] .. access[offset[k + 1] - 1]."""

    captured: int  # tensors of the graph as captured; those that parts added follow
    size_bytes: _Ints
    persistent: npt.NDArray[np.uint8]
    workspace_bytes: _Ints
    upload: npt.NDArray[np.uint8]
    repeatable: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.int32]
    access: npt.NDArray[np.int32]
    writes: npt.NDArray[np.uint8]
    written: tuple[tuple[TensorId, ...], ...]  # by operator, as it lists them
    uploads: tuple[tuple[int, int], ...]  # operators and the bytes that they bring
    source: npt.NDArray[np.int64]  # by operator, the captured one
    parts: tuple[tuple[int, int], ...]  # operators that are one of several parts, and of how many
    splits: tuple[tuple[int, int], ...]  # operators whose tensors were split, and how many tensors that added
    runs: npt.NDArray[np.int64]  # a number for each operator that is the same for the same run in every order
    floor_bytes: int  # the largest operator's working set


def outline(graph: StepGraph, executions: tuple[Execution, ...]) -> Outline:
    """The outline of this order, the captured one where it is empty. Nothing may run again in it.

    Whether the order is lawful is not asked: orders of our own making are (reorder.py), others are rewritten first.
    """
    return _OUTLINES.get(graph, executions, lambda: _outline(graph, executions))


def latencies(drawn: Outline, latency_ns: Sequence[int], link: Link) -> _Ints:
    """Nanoseconds for each operator of the outline, for an upload those on the lane to the device."""
    found = np.array(latency_ns, dtype=np.int64)[drawn.source]
    for index, parts in drawn.parts:
        found[index] = execution_ns(int(found[index]), parts)
    for index, size_bytes in drawn.uploads:
        found[index] = link.in_ns(size_bytes)
    return found


def lanes(graph: StepGraph, executions: tuple[Execution, ...], link: Link, share: float) -> tuple[_Ints, _Ints]:
    """Nanoseconds of each tensor's copy to the host and back on a share of the lanes."""
    return _LANES.get(
        graph, (executions, link, share), lambda: _lanes(outline(graph, executions).size_bytes, link, share)
    )


class Instances:
    """Which tensor of an order's graph stands for a tensor of the outline at a position, and the other way round."""

    def __init__(self, drawn: Outline, order: Sequence[int]) -> None:
        added = [count for _, count in drawn.splits]
        self._captured = drawn.captured
        self._first = [drawn.captured + before for before in accumulate(added, initial=0)]
        self._again_before = [0] * len(added)  # tensors made again before each split
        self._made: dict[int, tuple[list[int], list[TensorId]]] = {}  # by tensor, since when it is which
        self._source: dict[int, int] = {}
        self._walk(drawn, order)

    def _walk(self, drawn: Outline, order: Sequence[int]) -> None:
        split_at = {index: number for number, (index, _) in enumerate(drawn.splits)}
        ran, splits, again = 0, 0, 0
        for position, index in enumerate(order):
            if index == ran:
                ran += 1
                if index in split_at:
                    self._again_before[split_at[index]] = again
                    splits += 1
                continue
            for tensor in drawn.written[index]:
                found = TensorId(self._first[splits] + again)
                since, which = self._made.setdefault(tensor, ([], []))
                since.append(position)
                which.append(found)
                self._source[found] = tensor
                again += 1
        for number, shift in enumerate(self._again_before):
            self._source |= {part + shift: part for part in range(self._first[number], self._first[number + 1])}

    def at(self, tensor: int, position: int) -> TensorId:
        """What stands for this tensor of the outline where it was accessed at this position."""
        if tensor >= self._captured:
            return TensorId(tensor + self._again_before[bisect_right(self._first, tensor) - 1])
        since, which = self._made.get(tensor, ((), ()))
        latest = bisect_right(since, position) - 1
        return which[latest] if latest >= 0 else TensorId(tensor)

    def source(self, tensor: TensorId) -> int:
        """The outline's tensor that this one stands for; one past all where there is none."""
        if tensor < self._captured:
            return tensor
        return self._source.get(tensor, self._first[-1])


def _outline(graph: StepGraph, executions: tuple[Execution, ...]) -> Outline:
    """What rewriting the graph and reading it would give, taken from the captured arrays operator by operator."""
    table = _TABLES.get(graph, (), lambda: _table(graph))
    runs = executions or captured_order(graph)
    source = np.array([run.operator for run in runs], dtype=np.int64)
    cut = [k for k, run in enumerate(runs) if run.parts > 1]
    counts = np.diff(table.offset)[source]
    offset = np.zeros(len(runs) + 1, dtype=np.int32)
    np.cumsum(counts, out=offset[1:])
    places = np.arange(offset[-1]) + np.repeat(table.offset[source] - offset[:-1], counts)
    access, writes, size_bytes = table.access[places], table.writes[places], table.size_bytes
    persistent, splits = table.persistent, tuple[tuple[int, int], ...]()
    if cut:
        access, writes, size_bytes, persistent, splits = _split(
            graph, [(k, runs[k]) for k in cut], offset, access.copy(), writes.copy()
        )
    later = np.array([run.part > 0 for run in runs], dtype=np.uint8)
    repeated = table.repeatable[source] & (1 - later)
    upload = table.upload[source]
    workspace_bytes = table.workspace_bytes[source]
    held_bytes = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(size_bytes[access])))
    return Outline(
        captured=len(graph.tensors),
        size_bytes=size_bytes,
        persistent=persistent,
        workspace_bytes=workspace_bytes,
        upload=upload,
        repeatable=repeated & (1 - upload),  # an upload's batch is gone when the next comes
        offset=offset,
        access=access,
        writes=writes,
        written=tuple(
            graph.operators[k].writes if ok else () for k, ok in zip(source.tolist(), repeated, strict=True)
        ),
        uploads=tuple((int(k), table.uploaded_bytes[int(source[k])]) for k in np.flatnonzero(upload)),
        source=source,
        parts=tuple((k, runs[k].parts) for k in cut),
        splits=splits,
        runs=np.array([(run.operator * _PARTS + run.parts) * _PARTS + run.part for run in runs], dtype=np.int64),
        floor_bytes=int((workspace_bytes + np.diff(held_bytes[offset])).max()),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """The captured graph as arrays: what every order's outline is taken from."""

    size_bytes: _Ints
    persistent: npt.NDArray[np.uint8]
    workspace_bytes: _Ints
    upload: npt.NDArray[np.uint8]
    repeatable: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.int32]
    access: npt.NDArray[np.int32]
    writes: npt.NDArray[np.uint8]
    uploaded_bytes: dict[int, int]  # by operator that uploads


def _table(graph: StepGraph) -> _Table:
    offset, access, writes = [0], [], []
    for operator in graph.operators:
        touched = sorted({*operator.reads, *operator.writes})
        access += touched
        writes += [tensor in operator.writes for tensor in touched]
        offset.append(len(access))
    uploads = [k for k, operator in enumerate(graph.operators) if operator.stage is Stage.UPLOAD]
    upload = np.zeros(len(graph.operators), dtype=np.uint8)
    upload[uploads] = 1
    return _Table(
        size_bytes=np.array([t.size_bytes for t in graph.tensors], dtype=np.int64),
        persistent=np.array([t.persistent for t in graph.tensors], dtype=np.uint8),
        workspace_bytes=np.array([op.workspace_bytes for op in graph.operators], dtype=np.int64),
        upload=upload,
        repeatable=np.array(repeatable(graph), dtype=np.uint8),
        offset=np.array(offset, dtype=np.int32),
        access=np.array(access, dtype=np.int32),
        writes=np.array(writes, dtype=np.uint8),
        uploaded_bytes={k: sum(graph.tensors[t].size_bytes for t in {*graph.operators[k].writes}) for k in uploads},
    )


def _split(
    graph: StepGraph,
    cut: Sequence[tuple[int, Execution]],
    offset: npt.NDArray[np.int32],
    access: npt.NDArray[np.int32],
    writes: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], _Ints, npt.NDArray[np.uint8], tuple[tuple[int, int], ...]]:
    """The accesses with each part's own tensors in them, and all tensors; and which operators added how many.

    The first part of a tensor keeps its id, and the others follow all tensors in the order of their first access.
    """
    own = own_state(graph)
    size_bytes = [t.size_bytes for t in graph.tensors]
    persistent = [t.persistent for t in graph.tensors]
    pieces: dict[TensorId, list[int]] = {}
    splits: list[tuple[int, int]] = []
    for index, run in cut:
        operator = graph.operators[run.operator]
        mine = own[run.operator]
        before = len(size_bytes)
        for tensor in dict.fromkeys((*operator.reads, *operator.writes)) if run.part == 0 else ():
            whole_bytes = graph.tensors[tensor].size_bytes
            if tensor not in mine or not part_bytes(whole_bytes, 0, run.parts):
                continue
            pieces[tensor] = [tensor, *range(len(size_bytes), len(size_bytes) + run.parts - 1)]
            size_bytes[tensor] = part_bytes(whole_bytes, 0, run.parts)
            size_bytes += [part_bytes(whole_bytes, part, run.parts) for part in range(1, run.parts)]
            persistent += [graph.tensors[tensor].persistent] * (run.parts - 1)
        if len(size_bytes) > before:
            splits.append((index, len(size_bytes) - before))
        place = slice(int(offset[index]), int(offset[index + 1]))
        touched = sorted(
            (pieces[tensor][run.part] if tensor in mine and tensor in pieces else tensor, written)
            for tensor, written in zip(access[place].tolist(), writes[place].tolist(), strict=True)
        )
        access[place] = [tensor for tensor, _ in touched]
        writes[place] = [written for _, written in touched]
    return (
        access,
        writes,
        np.array(size_bytes, dtype=np.int64),
        np.array(persistent, dtype=np.uint8),
        tuple(splits),
    )


def _lanes(size_bytes: _Ints, link: Link, share: float) -> tuple[_Ints, _Ints]:
    sizes, which = np.unique(size_bytes, return_inverse=True)  # there are few, and a product of ten digits more
    out_ns = np.array([ceil(link.out_ns(int(size)) / share) for size in sizes], dtype=np.int64)
    in_ns = np.array([ceil(link.in_ns(int(size)) / share) for size in sizes], dtype=np.int64)
    return out_ns[which], in_ns[which]
