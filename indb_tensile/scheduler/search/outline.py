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
from indb_tensile.scheduler.rewrite import execution_ns, repeatable, rewrite

_Ints = npt.NDArray[np.int64]
_OUTLINES: Memo["Outline"] = Memo(16)
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


def outline(graph: StepGraph, executions: tuple[Execution, ...]) -> Outline:
    """The outline of this order, the captured one where it is empty. Nothing may run again in it."""
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
    base = rewrite(graph, executions).graph if executions else graph
    again = repeatable(base)
    offset, access, writes = [0], [], []
    for operator in base.operators:
        touched = sorted({*operator.reads, *operator.writes})
        access += touched
        writes += [tensor in operator.writes for tensor in touched]
        offset.append(len(access))
    uploads = [k for k, operator in enumerate(base.operators) if operator.stage is Stage.UPLOAD]
    upload = np.zeros(len(base.operators), dtype=np.uint8)
    upload[uploads] = 1
    return Outline(
        captured=len(graph.tensors),
        size_bytes=np.array([t.size_bytes for t in base.tensors], dtype=np.int64),
        persistent=np.array([t.persistent for t in base.tensors], dtype=np.uint8),
        workspace_bytes=np.array([op.workspace_bytes for op in base.operators], dtype=np.int64),
        upload=upload,
        repeatable=np.array(again, dtype=np.uint8) & (1 - upload),  # an upload's batch is gone when the next comes
        offset=np.array(offset, dtype=np.int32),
        access=np.array(access, dtype=np.int32),
        writes=np.array(writes, dtype=np.uint8),
        written=tuple(op.writes if ok else () for op, ok in zip(base.operators, again, strict=True)),
        uploads=tuple((k, sum(base.tensors[t].size_bytes for t in {*base.operators[k].writes})) for k in uploads),
        source=np.array([e.operator for e in executions] or range(len(base.operators)), dtype=np.int64),
        parts=tuple((k, e.parts) for k, e in enumerate(executions) if e.parts > 1),
        splits=_splits(graph, base, executions),
    )


def _splits(graph: StepGraph, base: StepGraph, executions: tuple[Execution, ...]) -> tuple[tuple[int, int], ...]:
    """In the order of execution: operators in parts, and how many tensors their state was split into more."""
    found: list[tuple[int, int]] = []
    known = len(graph.tensors)
    for index, execution in enumerate(executions):
        if execution.part or execution.parts == 1:
            continue
        last = index + execution.parts
        accessed = (t for op in base.operators[index:last] for t in (*op.reads, *op.writes))
        upto = max(accessed, default=-1) + 1
        if upto > known:
            found.append((index, upto - known))
            known = upto
    return tuple(found)


def _lanes(size_bytes: _Ints, link: Link, share: float) -> tuple[_Ints, _Ints]:
    sizes, which = np.unique(size_bytes, return_inverse=True)  # there are few, and a product of ten digits more
    out_ns = np.array([ceil(link.out_ns(int(size)) / share) for size in sizes], dtype=np.int64)
    in_ns = np.array([ceil(link.in_ns(int(size)) / share) for size in sizes], dtype=np.int64)
    return out_ns[which], in_ns[which]
