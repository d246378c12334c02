"""SuperNeurons: outputs of convolutions are swapped, outputs of cheap layers are recomputed.

Wang et al., as HOME sections II-B and IV-A, Zico section VIII and AutoSwap section V describe it, on top of liveness:

- *Unified tensor pool.* The outputs of convolutions are the checkpoints. They leave in the forward pass and are
  prefetched with the backward computation of the preceding convolution, least recently used first and only as far as
  memory is short (the tensor cache). If the backward pass does not use a convolution's output, its activation is the
  checkpoint instead, as in frameworks that activate in place. Copies are either synchronous with layers, as HOME
  describes it (layerwise.py), or asynchronous, as the tensor cache is, in AutoSwap's run time (swap_times.py).
- *Cost-aware recomputation.* Outputs of pooling, activation and normalisation are dropped and recomputed from the
  checkpoints. The layers between two checkpoints are a segment. If its tensors together need no more than the largest
  layer needs anyway, tensors recomputed early stay (speed-centric), otherwise they are recomputed for each use
  (memory-centric). Dropout draws random numbers and never runs again. Normalisation may: statistics of re-runs are
  discarded.

The paper says nothing about networks in which branches meet (by addition or concatenation). A tensor made there can
be kept, swapped like a checkpoint, or recomputed as the cheap operation that it is. The system can also be compiled
with swapping, recomputation or both (AutoSwap section V-C). All of these variants are built, and the job takes the
one that the simulator finds fastest among those within its part of the budget. Without `rewrites` only swapping
remains. The limitations are the paper's: kinds of layer decide, not the cost of a tensor, and parameters, optimizer
state and outputs of other layers stay on the device.
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
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.division import demand, divide
from indb_tensile.scheduler.policies.layer_kinds import LayerKind, is_backward, kind_of
from indb_tensile.scheduler.policies.layerwise import Offload, feature_gaps, swapped, turning_point
from indb_tensile.scheduler.policies.swap_times import inside, schedule
from indb_tensile.scheduler.recomputation.recompute import Recomputation
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload

_RECOMPUTED = frozenset({LayerKind.POOLING, LayerKind.ACTIVATION, LayerKind.NORMALISATION})
_CHEAP = _RECOMPUTED | {LayerKind.ELEMENTWISE, LayerKind.MOVEMENT}
_CHECKPOINTS = frozenset({LayerKind.CONVOLUTION, LayerKind.LINEAR})


class Join(Enum):
    """The treatment of tensors that are made where branches meet."""

    KEEP = auto()
    SWAP = auto()
    RECOMPUTE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """The step with its re-runs, and the start of its backward pass."""

    graph: StepGraph
    plan: Plan
    latency_ns: tuple[int, ...]
    load: tuple[int, ...]  # bytes at each of the program's operators without swaps
    turn: int

    def peak(self, swaps: Sequence[Swap]) -> int:
        """Return the peak with these swaps of tensors that do not persist."""
        program_load = Load(self.load)
        for swap in swaps:
            program_load.add(swap.free_at, swap.in_at, -self.graph.tensors[swap.tensor].size_bytes)
        return program_load.maximum()


class _Way(Protocol):
    """One variant in which the system can be compiled."""

    @property
    def program(self) -> _Program:
        """The program that runs."""
        ...

    def within(self, limit_bytes: int) -> tuple[Swap, ...]:
        """Return as few swaps as keep to the limit, or all there are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Synchronous:
    """A variant in which layers wait for offloads and prefetches. `swaps` are the possible swaps, least recently used
    first.
    """

    program: _Program
    swaps: tuple[Swap, ...] = ()

    def within(self, limit_bytes: int) -> tuple[Swap, ...]:
        """Return the first swaps that keep to the limit. Each tensor is away as the layers determine."""
        program_load, count = Load(self.program.load), 0
        while program_load.maximum() > limit_bytes and count < len(self.swaps):
            swap = self.swaps[count]
            program_load.add(swap.free_at, swap.in_at, -self.program.graph.tensors[swap.tensor].size_bytes)
            count += 1
        return tuple(sorted(self.swaps[:count], key=lambda s: (s.tensor, s.out_after)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asynchronous:
    """A variant in which copies run beside the layers. An allocation without room waits for one. `gaps` is ordered
    like `swaps` above.
    """

    program: _Program
    gaps: tuple[Gap, ...]
    link: Link

    def within(self, limit_bytes: int) -> tuple[Swap, ...]:
        """Return the swaps that keep to the limit. A tensor is away when its copy is done, and back
        without a wait.
        """
        graph, count = self.program.graph, 0
        load_bytes = np.array(self.program.load, dtype=np.int64)
        while load_bytes.max() > limit_bytes and count < len(self.gaps):
            gap = self.gaps[count]
            load_bytes[inside(gap, len(load_bytes))] -= graph.tensors[gap.tensor].size_bytes
            count += 1
        laid = schedule(
            graph,
            self.program.latency_ns,
            self.link,
            self.gaps[:count],
            limit_bytes=max(limit_bytes, int(load_bytes.max())),
            policy="superneurons",
        )
        return laid.swaps


def superneurons(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return for each job, within its part of the budget, the plans of the fastest variant."""
    cache = PlanCache() if cache is None else cache
    ways = [[_ways(graph, ns, link, rewrites, cache) for graph, ns in _graphs(workload)] for workload in workloads]
    demands = [
        demand(workload, max(_least(variants) for variants in its), cache)
        for workload, its in zip(workloads, ways, strict=True)
    ]
    limits = divide(demands, budget_bytes)
    return tuple(
        tuple(_fastest(variants, limit, link) for variants in its) for its, limit in zip(ways, limits, strict=True)
    )


def _fastest(ways: Sequence[_Way], limit_bytes: int, link: Link) -> Plan:
    """Return the plan of the fastest variant within the limit, the first of equals. If none fits, take the lowest
    peak.
    """
    swaps = [way.within(limit_bytes) for way in ways]
    peaks = [way.program.peak(its) for way, its in zip(ways, swaps, strict=True)]
    fitting = [k for k, top in enumerate(peaks) if top <= limit_bytes]
    best = fitting[0] if fitting else peaks.index(min(peaks))
    if best:  # the first variant does nothing
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


def _ways(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, rewrites: bool, cache: PlanCache) -> list[_Way]:
    """Return all variants: nothing; swapping; recomputation; both."""
    layers = Layers(graph, latency_ns, cache)
    plain = _program(layers, ())
    variants: list[_Way] = [_Synchronous(program=plain)]
    for join in (Join.KEEP, Join.SWAP):
        variants += _swapping(plain, layers.checkpoints(join), link)
    for join in Join if rewrites else ():
        program = _program(layers, layers.dropped(join))
        if join is not Join.SWAP:
            variants.append(_Synchronous(program=program))
        variants += _swapping(program, layers.checkpoints(join), link)
    return variants


def _swapping(program: _Program, checkpoints: tuple[TensorId, ...], link: Link) -> list[_Way]:
    gaps = feature_gaps(program.graph, program.turn)
    cached = sorted((gaps[t] for t in checkpoints if t in gaps), key=lambda g: (g.out_after, g.tensor))
    variants: list[_Way] = [_Asynchronous(program=program, gaps=tuple(cached), link=link)]
    for offload in (Offload.NEXT_LAYER, Offload.AT_ONCE):
        swaps = swapped(program.graph, checkpoints, offload, program.turn)
        variants.append(
            _Synchronous(program=program, swaps=tuple(sorted(swaps, key=lambda s: (s.out_after, s.tensor))))
        )
    return variants


def _program(layers: "Layers", dropped: tuple[Gap, ...]) -> _Program:
    plan = layers.recomputation.plan("superneurons", dropped, brief=layers.memory_centric(dropped))
    graph = effective(layers.graph, plan, layers.cache)
    return _Program(
        graph=graph,
        plan=plan,
        latency_ns=effective_latency(layers.recomputation.latency_ns, plan),
        load=load(graph, LIVENESS),
        turn=min(turning_point(graph), _first_rerun(plan)),
    )


def _first_rerun(plan: Plan) -> int:
    """Return the first position at which the plan runs an operator again; past the end if there is none."""
    seen: set[OpIndex] = set()
    for position, execution in enumerate(plan.executions):
        if execution.operator in seen:
            return position
        seen.add(execution.operator)
    return sys.maxsize


class Layers:
    """One graph as SuperNeurons treats it: checkpoints, segments between them, and the cheap layers in
    the segments.
    """

    def __init__(self, graph: StepGraph, latency_ns: tuple[int, ...], cache: PlanCache | None = None) -> None:
        self.graph = graph
        self.cache = PlanCache() if cache is None else cache
        self.recomputation = Recomputation(graph, latency_ns, cache=self.cache)
        self._gaps = feature_gaps(graph)
        self._kinds = [kind_of(operator.name) for operator in graph.operators]
        self._maker = _makers(graph)
        self._safe = frozenset(self.recomputation.gaps)

    def checkpoints(self, join: Join) -> tuple[TensorId, ...]:
        """Return the tensors to swap: convolutions' outputs, or their activations, and joins if these are swapped."""
        tensors = {t for k in self._forward(LayerKind.CONVOLUTION) for t in self._standing_for(k)}
        if join is Join.SWAP:
            tensors |= {t for t in self._gaps if self._joined(t)}
        return tuple(sorted(tensors))

    def dropped(self, join: Join) -> tuple[Gap, ...]:
        """Return the gaps to recompute: those of cheap layers' outputs, other than checkpoints."""
        taken = {*self.checkpoints(join)}
        gaps = []
        for tensor, gap in sorted(self._gaps.items()):
            if tensor in taken or gap not in self._safe or not self._worth(tensor, join):
                continue
            if all(self._kinds[k] in _CHEAP for k in self.recomputation.cone(gap).operators):
                gaps.append(gap)
        return tuple(gaps)

    def memory_centric(self, dropped: Sequence[Gap]) -> tuple[Gap, ...]:
        """Return the gaps of those segments that together need more than the largest layer."""
        segments: dict[int, list[Gap]] = {}
        for gap in dropped:
            segments.setdefault(self._segment(gap.tensor), []).append(gap)
        largest = self.largest_layer()
        sizes = {s: sum(self.graph.tensors[g.tensor].size_bytes for g in of) for s, of in segments.items()}
        return tuple(gap for s, of in sorted(segments.items()) if sizes[s] > largest for gap in of)

    def largest_layer(self) -> int:
        """Return the most that one operator of either pass needs besides parameters: the paper's l_peak."""
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
            for k in self._forward(LayerKind.ACTIVATION)
            if not {*outputs}.isdisjoint(self.graph.operators[k].reads)
            for t in self.graph.operators[k].writes
            if t in self._gaps
        )

    def _worth(self, tensor: TensorId, join: Join) -> bool:
        """Return whether this tensor is to be recomputed. Statistics, and joins that are kept, are not."""
        maker = self._maker[tensor]
        kind = self._kinds[maker]
        if kind is LayerKind.NORMALISATION and tensor != self.graph.operators[maker].writes[0]:
            return False
        if self._joined(tensor):
            return join is Join.RECOMPUTE
        return kind in _RECOMPUTED

    def _joined(self, tensor: TensorId) -> bool:
        """Return whether branches meet where the tensor is made: an addition of two tensors, or a concatenation."""
        gap = self._gaps[tensor]
        cone = self.recomputation.cone(gap).operators if gap in self._safe else (OpIndex(self._maker[tensor]),)
        return any(
            self._kinds[k] in (LayerKind.ELEMENTWISE, LayerKind.MOVEMENT)
            and sum(not self._kept(t) for t in {*self.graph.operators[k].reads}) > 1
            for k in cone
        )

    def _segment(self, tensor: TensorId) -> int:
        """Return how many checkpoints were computed before the tensor was made."""
        return sum(self._kinds[k] in _CHECKPOINTS for k in range(self._maker[tensor]))

    def _forward(self, kind: LayerKind) -> list[int]:
        return [k for k, op in enumerate(self.graph.operators) if self._kinds[k] is kind and not is_backward(op)]

    def _kept(self, tensor: TensorId) -> bool:
        return self.graph.tensors[tensor].persistent


def _makers(graph: StepGraph) -> dict[TensorId, int]:
    """Return the operator that writes each tensor first."""
    makers: dict[TensorId, int] = {}
    for index, operator in enumerate(graph.operators):
        for tensor in operator.writes:
            makers.setdefault(tensor, index)
    return makers
