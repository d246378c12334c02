"""SuperNeurons: what convolutions write is swapped, what cheap layers write is computed again.

Wang et al., as HOME sections II-B and IV-A, Zico section VIII and AutoSwap section V describe it, over liveness:

- *Unified tensor pool.* The outputs of convolutions are the checkpoints. They leave in the forward pass and are
  prefetched with the backward computation of the convolution before, least recently used first and only as far as
  memory is short (the tensor cache). A convolution's output that the backward pass does not use stands for the
  activation of it, as it does in frameworks that activate in place. Copies are synchronous with layers, as HOME
  has it (layerwise.py), or asynchronous, as the tensor cache is, in AutoSwap's run time (transfers.py).
- *Cost-aware recomputation.* Outputs of pooling, activation and normalisation are dropped and computed again from
  the checkpoints. The layers between two checkpoints are a segment: where its tensors together need no more than the
  largest layer needs anyway, what is made in passing stays (speed-centric), otherwise it is made once more for each
  use (memory-centric). Dropout draws, and is never run again; normalisation may be: statistics are discarded.

The paper says nothing about networks in which branches meet (added, concatenated). A tensor made there can be kept,
swapped like a checkpoint, or run again as the cheap operation it is; and the system can be compiled with swapping,
recomputation or both (AutoSwap section V-C). All of these ways are built, and the job takes the one that the
simulator finds fastest among those within its part of the budget. Without `rewrites` only swapping is left.
What it cannot do is the paper's: kinds of layer decide, not what a tensor costs, and parameters, optimizer state
and what other layers write stay where they are.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, Gap, Load, load
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.policies.division import demand, divide
from indb_tensile.scheduler.policies.layer_kinds import Kind, is_backward, kind_of
from indb_tensile.scheduler.policies.layerwise import Offload, feature_gaps, swapped, turning_point
from indb_tensile.scheduler.policies.swap_times import inside, schedule
from indb_tensile.scheduler.recomputation.recompute import Recomputation
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.simulate import JobRun, simulate
from indb_tensile.scheduler.workload import Workload

_RECOMPUTED = frozenset({Kind.POOLING, Kind.ACTIVATION, Kind.NORMALISATION})
_CHEAP = _RECOMPUTED | {Kind.ELEMENTWISE, Kind.MOVEMENT}
_CHECKPOINTS = frozenset({Kind.CONVOLUTION, Kind.LINEAR})


class Join(Enum):
    """What becomes of tensors made where branches meet."""

    KEEP = auto()
    SWAP = auto()
    RECOMPUTE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """The step with what is to be run again, and where its backward pass begins."""

    graph: StepGraph
    plan: Plan
    latency_ns: tuple[int, ...]
    load: tuple[int, ...]  # bytes at each of its operators without swaps
    turn: int

    def peak(self, swaps: Sequence[Swap]) -> int:
        """The peak with these swaps of tensors that do not persist."""
        held = Load(self.load)
        for swap in swaps:
            held.add(swap.free_at, swap.in_at, -self.graph.tensors[swap.tensor].size_bytes)
        return held.maximum()


class _Way(Protocol):
    """One way to compile the system."""

    @property
    def program(self) -> _Program:
        """What runs."""
        ...

    def within(self, limit_bytes: int) -> tuple[Swap, ...]:
        """As few swaps as it takes to keep to the limit, or all there are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Synchronous:
    """Layers wait for offloads and prefetches: `swaps` are those there could be, least recently used first."""

    program: _Program
    swaps: tuple[Swap, ...] = ()

    def within(self, limit_bytes: int) -> tuple[Swap, ...]:
        """Each is away where the layers say."""
        held, count = Load(self.program.load), 0
        while held.maximum() > limit_bytes and count < len(self.swaps):
            swap = self.swaps[count]
            held.add(swap.free_at, swap.in_at, -self.program.graph.tensors[swap.tensor].size_bytes)
            count += 1
        return tuple(sorted(self.swaps[:count], key=lambda s: (s.tensor, s.out_after)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asynchronous:
    """Copies run beside the layers, and an allocation that finds no room waits for one: `gaps` as above."""

    program: _Program
    gaps: tuple[Gap, ...]
    link: Link

    def within(self, limit_bytes: int) -> tuple[Swap, ...]:
        """Each is away when its copy is done, and back when nobody need wait for it."""
        graph, count = self.program.graph, 0
        held = np.array(self.program.load, dtype=np.int64)
        while held.max() > limit_bytes and count < len(self.gaps):
            gap = self.gaps[count]
            held[inside(gap, len(held))] -= graph.tensors[gap.tensor].size_bytes
            count += 1
        laid = schedule(
            graph,
            self.program.latency_ns,
            self.link,
            self.gaps[:count],
            limit_bytes=max(limit_bytes, int(held.max())),
            policy="superneurons",
        )
        return laid.swaps


def superneurons(
    workloads: Sequence[Workload], *, budget_bytes: int, link: Link, rewrites: bool = True
) -> tuple[tuple[Plan, ...], ...]:
    """For each job, within its part of the budget, the fastest of the system's ways."""
    ways = [[_ways(graph, ns, link, rewrites) for graph, ns in _graphs(workload)] for workload in workloads]
    demands = [
        demand(workload, max(_least(found) for found in its)) for workload, its in zip(workloads, ways, strict=True)
    ]
    limits = divide(demands, budget_bytes)
    return tuple(
        tuple(_fastest(found, limit, link) for found in its) for its, limit in zip(ways, limits, strict=True)
    )


def _fastest(ways: Sequence[_Way], limit_bytes: int, link: Link) -> Plan:
    """Among equals the first; where no way keeps to the limit the one with the lowest peak."""
    swaps = [way.within(limit_bytes) for way in ways]
    peaks = [way.program.peak(its) for way, its in zip(ways, swaps, strict=True)]
    fitting = [k for k, top in enumerate(peaks) if top <= limit_bytes]
    best = fitting[0] if fitting else peaks.index(min(peaks))
    if best:  # the first way does nothing
        best = min(fitting, key=lambda k: (_iteration_ns(ways[k], swaps[k], link), k), default=best)
    return replace(ways[best].program.plan, swaps=swaps[best])


def _least(ways: Sequence[_Way]) -> int:
    return min(way.program.peak(way.within(0)) for way in ways)


def _iteration_ns(way: _Way, swaps: tuple[Swap, ...], link: Link) -> int:
    plan = Plan(policy="superneurons", swaps=swaps)
    run = JobRun(graph=way.program.graph, plan=plan, latency_ns=way.program.latency_ns)
    return simulate([run], link)[0].iteration_ns


def _graphs(workload: Workload) -> Iterator[tuple[StepGraph, tuple[int, ...]]]:
    return zip(workload.graphs, workload.latency_ns, strict=True)


# --- the ways --------------------------------------------------------------------------------------------------


def _ways(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, rewrites: bool) -> list[_Way]:
    """Nothing; swapping; recomputation; both."""
    layers = Layers(graph, latency_ns)
    plain = _program(layers, ())
    found: list[_Way] = [_Synchronous(program=plain)]
    for join in (Join.KEEP, Join.SWAP):
        found += _swapping(plain, layers.checkpoints(join), link)
    for join in Join if rewrites else ():
        program = _program(layers, layers.dropped(join))
        if join is not Join.SWAP:
            found.append(_Synchronous(program=program))
        found += _swapping(program, layers.checkpoints(join), link)
    return found


def _swapping(program: _Program, checkpoints: tuple[TensorId, ...], link: Link) -> list[_Way]:
    gaps = feature_gaps(program.graph, program.turn)
    cached = sorted((gaps[t] for t in checkpoints if t in gaps), key=lambda g: (g.out_after, g.tensor))
    found: list[_Way] = [_Asynchronous(program=program, gaps=tuple(cached), link=link)]
    for offload in (Offload.NEXT_LAYER, Offload.AT_ONCE):
        swaps = swapped(program.graph, checkpoints, offload, program.turn)
        found.append(_Synchronous(program=program, swaps=tuple(sorted(swaps, key=lambda s: (s.out_after, s.tensor)))))
    return found


def _program(layers: "Layers", dropped: tuple[Gap, ...]) -> _Program:
    plan = layers.recomputation.plan("superneurons", dropped, brief=layers.memory_centric(dropped))
    graph = effective(layers.graph, plan)
    return _Program(
        graph=graph,
        plan=plan,
        latency_ns=effective_latency(layers.recomputation.latency_ns, plan),
        load=load(graph, LIVENESS),
        turn=min(turning_point(graph), _first_rerun(plan)),
    )


def _first_rerun(plan: Plan) -> int:
    """Where the plan runs an operator again for the first time; past the end if nowhere."""
    seen: set[OpIndex] = set()
    for position, execution in enumerate(plan.executions):
        if execution.operator in seen:
            return position
        seen.add(execution.operator)
    return sys.maxsize


class Layers:
    """One graph as SuperNeurons sees it: checkpoints, segments between them, and the cheap layers in these."""

    def __init__(self, graph: StepGraph, latency_ns: tuple[int, ...]) -> None:
        self.graph = graph
        self.recomputation = Recomputation(graph, latency_ns)
        self._gaps = feature_gaps(graph)
        self._kinds = [kind_of(operator.name) for operator in graph.operators]
        self._maker = _makers(graph)
        self._safe = frozenset(self.recomputation.gaps)

    def checkpoints(self, join: Join) -> tuple[TensorId, ...]:
        """What is swapped: convolutions' outputs, or their activations, and joins where these are to be."""
        found = {t for k in self._forward(Kind.CONVOLUTION) for t in self._standing_for(k)}
        if join is Join.SWAP:
            found |= {t for t in self._gaps if self._joined(t)}
        return tuple(sorted(found))

    def dropped(self, join: Join) -> tuple[Gap, ...]:
        """What is computed again: the gaps of cheap layers' outputs, other than checkpoints."""
        taken = {*self.checkpoints(join)}
        found = []
        for tensor, gap in sorted(self._gaps.items()):
            if tensor in taken or gap not in self._safe or not self._worth(tensor, join):
                continue
            if all(self._kinds[k] in _CHEAP for k in self.recomputation.cone(gap).operators):
                found.append(gap)
        return tuple(found)

    def memory_centric(self, dropped: Sequence[Gap]) -> tuple[Gap, ...]:
        """The gaps of those segments that together need more than the largest layer."""
        segments: dict[int, list[Gap]] = {}
        for gap in dropped:
            segments.setdefault(self._segment(gap.tensor), []).append(gap)
        largest = self.largest_layer()
        sizes = {s: sum(self.graph.tensors[g.tensor].size_bytes for g in of) for s, of in segments.items()}
        return tuple(gap for s, of in sorted(segments.items()) if sizes[s] > largest for gap in of)

    def largest_layer(self) -> int:
        """The most that one operator of either pass needs beside parameters: the paper's l_peak."""
        return max(
            op.workspace_bytes
            + sum(self.graph.tensors[t].size_bytes for t in {*op.reads, *op.writes} if not self._kept(t))
            if op.stage in (Stage.FORWARD, Stage.BACKWARD)
            else 0
            for op in self.graph.operators
        )

    def _standing_for(self, convolution: int) -> tuple[TensorId, ...]:
        outputs = self.graph.operators[convolution].writes
        if any(t in self._gaps for t in outputs):
            return tuple(t for t in outputs if t in self._gaps)
        return tuple(
            t
            for k in self._forward(Kind.ACTIVATION)
            if not {*outputs}.isdisjoint(self.graph.operators[k].reads)
            for t in self.graph.operators[k].writes
            if t in self._gaps
        )

    def _worth(self, tensor: TensorId, join: Join) -> bool:
        """Whether this tensor is of those that are computed again: no statistics, and no joins that are kept."""
        maker = self._maker[tensor]
        kind = self._kinds[maker]
        if kind is Kind.NORMALISATION and tensor != self.graph.operators[maker].writes[0]:
            return False
        if self._joined(tensor):
            return join is Join.RECOMPUTE
        return kind in _RECOMPUTED

    def _joined(self, tensor: TensorId) -> bool:
        """Whether branches meet in what makes the tensor: an addition of two, a concatenation."""
        gap = self._gaps[tensor]
        cone = self.recomputation.cone(gap).operators if gap in self._safe else (OpIndex(self._maker[tensor]),)
        return any(
            self._kinds[k] in (Kind.ELEMENTWISE, Kind.MOVEMENT)
            and sum(not self._kept(t) for t in {*self.graph.operators[k].reads}) > 1
            for k in cone
        )

    def _segment(self, tensor: TensorId) -> int:
        """How many checkpoints were computed before the tensor was made."""
        return sum(self._kinds[k] in _CHECKPOINTS for k in range(self._maker[tensor]))

    def _forward(self, kind: Kind) -> list[int]:
        return [k for k, op in enumerate(self.graph.operators) if self._kinds[k] is kind and not is_backward(op)]

    def _kept(self, tensor: TensorId) -> bool:
        return self.graph.tensors[tensor].persistent


def _makers(graph: StepGraph) -> dict[TensorId, int]:
    """The operator that writes each tensor first."""
    found: dict[TensorId, int] = {}
    for index, operator in enumerate(graph.operators):
        for tensor in operator.writes:
            found.setdefault(tensor, index)
    return found
