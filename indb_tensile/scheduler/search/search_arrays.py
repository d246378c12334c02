"""Arrays of a step graph for the native search. They follow from the graph and its order of execution alone.

The search takes the operators and tensors of one order without recomputations. Its results are orders in which some
of these operators run again, and in their graphs a recomputed tensor is a new tensor (rewrite.py). `Instances`
computes the ids that rewriting would give to the new tensors, without rewriting.
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
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.plan_cache import CachedKind, PlanCache, cached
from indb_tensile.scheduler.rewrite import captured_order, execution_ns, own_state, part_bytes, repeatable

_Ints = npt.NDArray[np.int64]
_PARTS = 1 << 16  # more parts than an operator is ever split into; part numbers are packed by this factor
# The numbers of cached values. A job has a few graphs and each graph a few orders; a smaller number makes planning
# repeat work, a larger one keeps more arrays in memory.
_OUTLINES: CachedKind["Outline"] = CachedKind(name="outlines", most=16)
_TABLES: CachedKind["_Table"] = CachedKind(name="captured graphs as arrays", most=8)
_LANES: CachedKind[tuple[_Ints, _Ints]] = CachedKind(name="copy times", most=16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outline:
    """Arrays of one graph in one order. The accesses of operator k are access[offset[k]] .. access[offset[k + 1] -
    1].
    """

    captured: int  # number of tensors of the captured graph; the tensors of further parts follow
    size_bytes: _Ints
    persistent: npt.NDArray[np.uint8]
    workspace_bytes: _Ints
    upload: npt.NDArray[np.uint8]
    repeatable: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.int32]
    access: npt.NDArray[np.int32]
    writes: npt.NDArray[np.uint8]
    stays: npt.NDArray[np.uint8]  # by access: the tensor stays until its next access, for an exchange between ranks
    written: tuple[tuple[TensorId, ...], ...]  # by operator, in the operator's order
    uploads: tuple[tuple[int, int], ...]  # uploading operators and their bytes
    source: npt.NDArray[np.int64]  # by operator, the captured operator
    parts: tuple[tuple[int, int], ...]  # operators that are one of several parts, and their number of parts
    splits: tuple[tuple[int, int], ...]  # operators whose tensors were split, and how many tensors the split added
    runs: npt.NDArray[np.int64]  # by operator, a number that identifies the same run, or part of it, in every order
    floor_bytes: int  # the most that an operator needs: its working set, and the exchanges under way


def outline(graph: StepGraph, executions: tuple[Execution, ...], cache: PlanCache | None = None) -> Outline:
    """Return the outline of this order; of the captured order if `executions` is empty. No operator may run twice.

    The order is not checked: reorder.py makes only valid orders, and other orders are rewritten first.
    """
    return cached(cache, _OUTLINES, graph, executions, lambda: _outline(graph, executions, cache))


def latencies(arrays: Outline, latency_ns: Sequence[int], link: Link) -> _Ints:
    """Return the nanoseconds of each operator of the outline. An upload takes the time of its copy to the device."""
    result_ns = np.array(latency_ns, dtype=np.int64)[arrays.source]
    for index, parts in arrays.parts:
        result_ns[index] = execution_ns(int(result_ns[index]), parts)
    for index, size_bytes in arrays.uploads:
        result_ns[index] = link.in_ns(size_bytes)
    return result_ns


def lanes(
    graph: StepGraph,
    executions: tuple[Execution, ...],
    link: Link,
    share: float,
    cache: PlanCache | None = None,
) -> tuple[_Ints, _Ints]:
    """Return the nanoseconds of each tensor's copy to the host and back on a share of the lanes."""
    return cached(
        cache,
        _LANES,
        graph,
        (executions, link, share),
        lambda: _lanes(outline(graph, executions, cache).size_bytes, link, share),
    )


class Instances:
    """Map tensors of the outline to tensors of an order's graph at a position, and back."""

    def __init__(self, arrays: Outline, order: Sequence[int]) -> None:
        added = [count for _, count in arrays.splits]
        self._captured = arrays.captured
        self._first = [arrays.captured + before for before in accumulate(added, initial=0)]
        self._again_before = [0] * len(added)  # number of tensors that were recomputed before each split
        # by tensor: the positions at which its instances are made, and the instances
        self._made: dict[int, tuple[list[int], list[TensorId]]] = {}
        self._source: dict[int, int] = {}
        self._walk(arrays, order)

    def _walk(self, arrays: Outline, order: Sequence[int]) -> None:
        split_at = {index: number for number, (index, _) in enumerate(arrays.splits)}
        ran, splits, again = 0, 0, 0
        for position, index in enumerate(order):
            if index == ran:
                ran += 1
                if index in split_at:
                    self._again_before[split_at[index]] = again
                    splits += 1
                continue
            for tensor in arrays.written[index]:
                instance = TensorId(self._first[splits] + again)
                since, which = self._made.setdefault(tensor, ([], []))
                since.append(position)
                which.append(instance)
                self._source[instance] = tensor
                again += 1
        for number, shift in enumerate(self._again_before):
            self._source |= {part + shift: part for part in range(self._first[number], self._first[number + 1])}

    def at(self, tensor: int, position: int) -> TensorId:
        """Return the tensor that replaces this tensor of the outline in an access at this position."""
        if tensor >= self._captured:
            return TensorId(tensor + self._again_before[bisect_right(self._first, tensor) - 1])
        since, which = self._made.get(tensor, ((), ()))
        latest = bisect_right(since, position) - 1
        return which[latest] if latest >= 0 else TensorId(tensor)

    def source(self, tensor: TensorId) -> int:
        """Return the outline's tensor of which this tensor is an instance; one past all tensors if there is none."""
        if tensor < self._captured:
            return tensor
        return self._source.get(tensor, self._first[-1])


def _outline(graph: StepGraph, executions: tuple[Execution, ...], cache: PlanCache | None) -> Outline:
    """Compute the outline as rewriting the graph and reading it would give it, from the captured arrays operator by
    operator.
    """
    table = cached(cache, _TABLES, graph, (), lambda: _table(graph))
    runs = executions or captured_order(graph, cache)
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
            graph, [(k, runs[k]) for k in cut], offset, access.copy(), writes.copy(), cache
        )
    later = np.array([run.part > 0 for run in runs], dtype=np.uint8)
    repeated = table.repeatable[source] & (1 - later)
    upload = table.upload[source]
    workspace_bytes = table.workspace_bytes[source]
    accessed_bytes = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(size_bytes[access])))
    stays, held_bytes = _exchanges(graph, source, offset, access, size_bytes)
    return Outline(
        captured=len(graph.tensors),
        size_bytes=size_bytes,
        persistent=persistent,
        workspace_bytes=workspace_bytes,
        upload=upload,
        # an upload cannot run again, because its batch is gone when the next batch comes
        repeatable=repeated & (1 - upload),
        offset=offset,
        access=access,
        writes=writes,
        stays=stays,
        written=tuple(
            graph.operators[k].writes if ok else () for k, ok in zip(source.tolist(), repeated, strict=True)
        ),
        uploads=tuple((int(k), table.uploaded_bytes[int(source[k])]) for k in np.flatnonzero(upload)),
        source=source,
        parts=tuple((k, runs[k].parts) for k in cut),
        splits=splits,
        runs=np.array([(run.operator * _PARTS + run.parts) * _PARTS + run.part for run in runs], dtype=np.int64),
        floor_bytes=int((workspace_bytes + np.diff(accessed_bytes[offset]) + held_bytes).max()),
    )


def _exchanges(
    graph: StepGraph,
    source: npt.NDArray[np.int64],
    offset: npt.NDArray[np.int32],
    access: npt.NDArray[np.int32],
    size_bytes: _Ints,
) -> tuple[npt.NDArray[np.uint8], _Ints]:
    """Return which accesses' tensors stay until the next one, and by operator the bytes that it does not access but
    that stay beside it.
    """
    stays, held_bytes = np.zeros(len(access), dtype=np.uint8), np.zeros(len(source), dtype=np.int64)
    exchanges = {
        k for k, operator in enumerate(graph.operators) if (operator.starts, operator.awaits) != (None, None)
    }
    under_way: dict[int, npt.NDArray[np.int32]] = {}
    for place, captured in enumerate(source.tolist() if exchanges else ()):
        own = access[offset[place] : offset[place + 1]]
        if under_way:
            held_bytes[place] = size_bytes[np.setdiff1d(np.concatenate(list(under_way.values())), own)].sum()
        if captured in exchanges:
            operator = graph.operators[captured]
            if operator.starts is not None:
                under_way[operator.starts] = own
            if operator.awaits is not None:
                del under_way[operator.awaits]
        if under_way:
            stays[offset[place] : offset[place + 1]] = np.isin(own, np.concatenate(list(under_way.values())))
    return stays, held_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """The captured graph as arrays, from which the outline of every order is made."""

    size_bytes: _Ints
    persistent: npt.NDArray[np.uint8]
    workspace_bytes: _Ints
    upload: npt.NDArray[np.uint8]
    repeatable: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.int32]
    access: npt.NDArray[np.int32]
    writes: npt.NDArray[np.uint8]
    uploaded_bytes: dict[int, int]  # by uploading operator


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
    cache: PlanCache | None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], _Ints, npt.NDArray[np.uint8], tuple[tuple[int, int], ...]]:
    """Return the accesses with each part's own tensors, all tensors' sizes and persistence, and the operators that
    added tensors.

    The first part of a tensor keeps its id. The other parts follow all tensors in the order of their first access.
    """
    own = own_state(graph, cache)
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
    # there are few distinct sizes, and the product may need more than 64 bits, so Python's integers are used
    sizes, which = np.unique(size_bytes, return_inverse=True)
    out_ns = np.array([ceil(link.out_ns(int(size)) / share) for size in sizes], dtype=np.int64)
    in_ns = np.array([ceil(link.in_ns(int(size)) / share) for size in sizes], dtype=np.int64)
    return out_ns[which], in_ns[which]
