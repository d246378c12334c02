"""Feature maps, and the cost of retaining, swapping or recomputing each: HOME's policy evaluator.

He et al., "HOME", section 3.4 and Algorithm 2. A feature map is a tensor that the forward pass makes and the backward
pass needs. The evaluator goes through the stages of the iteration. A stage is here the operators between two
boundaries at which a feature map is released or needed. If the memory in use exceeds the limit, the stage waits for
the copies to the host that were queued first. A copy back that is not done when it is needed makes its stage wait.
Recomputation adds its operators' time. If it needs another released feature map, it brings that back as well, and
that one then stays for its own use.

Where the paper is silent: a copy back starts as late as possible without a wait, if there is memory by then. A policy
that cannot keep the limit is not an error; its cost is the excess, so that a search can make progress.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise

from indb_tensile.scheduler.graph import Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, Gap, accesses, gaps, load
from indb_tensile.scheduler.policies.swap_times import run_ns
from indb_tensile.scheduler.policies.swarm import Cost, Particle
from indb_tensile.scheduler.recomputation.recompute import Recomputation


class Action(IntEnum):
    """The treatment of a feature map between its last access of the forward pass and its next one."""

    RETAIN = 0
    SWAP = 1
    RECOMPUTE = 2


_RETAIN, _SWAP, _RECOMPUTE = (int(action) for action in Action)  # plain integers, for the innermost loop


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMap:
    """One tensor that is used in both the forward and the backward pass.

    `sources` are the feature maps that its recomputation reads. `passing_bytes` is the memory that the recomputation
    needs besides them and the tensor itself. `recompute_ns` is None if the tensor cannot be recomputed.
    """

    gap: Gap
    size_bytes: int
    recompute_ns: int | None = None
    sources: tuple[int, ...] = ()
    passing_bytes: int = 0

    @property
    def choices(self) -> tuple[Action, ...]:
        """The actions that are possible for this feature map."""
        both = (Action.RETAIN, Action.SWAP)
        return both if self.recompute_ns is None else (*both, Action.RECOMPUTE)


def backward_start(graph: StepGraph) -> int:
    """Return the first operator of the backward pass; if operators have no stages, the one at the peak (Zico section
    6.2).
    """
    stages = [operator.stage for operator in graph.operators]
    if Stage.BACKWARD in stages:
        return stages.index(Stage.BACKWARD)
    load_bytes = load(graph, LIVENESS)
    return load_bytes.index(max(load_bytes))


def feature_maps(
    graph: StepGraph, recomputation: Recomputation | None, *, least_bytes: int, most: int
) -> tuple[FeatureMap, ...]:
    """Return the largest feature maps, in the order in which they are made."""
    border = backward_start(graph)
    crossing = [
        gap
        for gap in gaps(graph)
        if not graph.tensors[gap.tensor].persistent
        and gap.out_after < border <= gap.needed_by
        and graph.tensors[gap.tensor].size_bytes > least_bytes
    ]
    crossing = sorted(crossing, key=lambda gap: (-graph.tensors[gap.tensor].size_bytes, gap.tensor))[:most]
    accesses_of = accesses(graph)
    crossing.sort(key=lambda gap: (accesses_of[gap.tensor][0], gap.tensor))
    place = {gap.tensor: number for number, gap in enumerate(crossing)}
    return tuple(_feature_map(graph, gap, recomputation, place) for gap in crossing)


def _feature_map(
    graph: StepGraph, gap: Gap, recomputation: Recomputation | None, place: dict[TensorId, int]
) -> FeatureMap:
    size_bytes = graph.tensors[gap.tensor].size_bytes
    if recomputation is None or gap not in recomputation.gaps:
        return FeatureMap(gap=gap, size_bytes=size_bytes)
    cone = recomputation.cone(gap)
    resident = {*cone.sources, gap.tensor}
    operators = [graph.operators[k] for k in cone.operators]
    passing = [
        op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in {*op.reads, *op.writes} - resident)
        for op in operators
    ]
    return FeatureMap(
        gap=gap,
        size_bytes=size_bytes,
        recompute_ns=cone.time_ns,
        sources=tuple(place[t] for t in cone.sources if t in place),
        passing_bytes=max(passing),
    )


class Evaluator:
    """Algorithm 2 for one graph and one limit: the cost of a policy, which is an action for each feature map."""

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        maps: Sequence[FeatureMap],
        *,
        limit_bytes: int,
    ) -> None:
        self._limit = limit_bytes
        self._maps = maps
        self._size = [m.size_bytes for m in maps]
        self._out_ns = [link.out_ns(m.size_bytes) for m in maps]
        self._in_ns = [link.in_ns(m.size_bytes) for m in maps]
        count = len(graph.operators)
        starts = sorted({0, *(m.gap.out_after + 1 for m in maps), *(m.gap.needed_by for m in maps)})
        stage = {operator: number for number, operator in enumerate(starts)}
        self._leave = [stage[m.gap.out_after + 1] for m in maps]
        self._need = [stage[m.gap.needed_by] for m in maps]
        load_bytes, duration = load(graph, LIVENESS), run_ns(graph, latency_ns, link).tolist()
        ranges = [*pairwise([*starts, count])]
        self._load = [max(load_bytes[a:b]) for a, b in ranges]
        self._duration_ns = [sum(duration[a:b]) for a, b in ranges]
        first = [min(ops, default=count) for ops in accesses(graph)]
        self._entry = [load_bytes[a] - _fresh_bytes(graph, a, first) for a, _ in ranges]

    @property
    def without_ns(self) -> int:
        """The time of an iteration without waits and recomputation. No policy takes less."""
        return sum(self._duration_ns)

    def __call__(self, policy: Particle) -> Cost:
        """Return the bytes over the limit, then the time of an iteration."""
        need, duration_ns, passing, change = self._resolve(policy)
        gone = list(accumulate(change))
        load_bytes = [a + b for a, b in zip(self._load, gone, strict=True)]
        over = max(load_bytes) - self._limit
        for stage, more_bytes in passing.items():
            over = max(over, self._entry[stage] + gone[stage] + more_bytes - self._limit)
        swapped = [number for number, action in enumerate(policy) if action == _SWAP]
        if not swapped:
            return max(0, over), sum(duration_ns)
        back = self._lay_ins(swapped, need, duration_ns, load_bytes)
        return max(0, over), self._walk(swapped, need, back, duration_ns, load_bytes)

    def _resolve(self, policy: Particle) -> tuple[list[int], list[int], dict[int, int], list[int]]:
        """Return the stage that first needs each feature map, and by stage: its time, its temporary bytes, the change
        of the load.
        """
        need = self._need.copy()
        duration_ns = self._duration_ns.copy()
        passing: dict[int, int] = {}
        change = [0] * len(self._load)
        for number in reversed(range(len(policy))):  # a later feature map may need an earlier one
            if policy[number] == _RETAIN:
                continue
            stage, size_bytes = need[number], self._size[number]
            change[self._leave[number]] -= size_bytes
            change[stage] += size_bytes
            if policy[number] == _RECOMPUTE:
                feature_map = self._maps[number]
                duration_ns[stage] += feature_map.recompute_ns or 0
                passing[stage] = max(passing.get(stage, 0), feature_map.passing_bytes)
                for source in feature_map.sources:
                    need[source] = min(need[source], stage)
        return need, duration_ns, passing, change

    def _lay_ins(
        self, swapped: Sequence[int], need: Sequence[int], duration_ns: Sequence[int], load_bytes: list[int]
    ) -> dict[int, int]:
        """Return the stage at which each copy back starts. Raises `load_bytes` by the tensors that are back early."""
        begin = [0, *accumulate(duration_ns)]
        order = sorted(swapped, key=lambda number: (need[number], number))
        free_ns = begin[-1]
        back = {}
        for number in reversed(order):
            free_ns = min(free_ns, begin[need[number]]) - self._in_ns[number]
            back[number] = max(bisect_right(begin, free_ns) - 1, self._leave[number])
        for number in order:
            size = self._size[number]
            stage, room = need[number], self._limit - size
            while stage > back[number] and load_bytes[stage - 1] <= room:
                stage -= 1
                load_bytes[stage] += size
            back[number] = stage
        return back

    def _walk(
        self,
        swapped: Sequence[int],
        need: Sequence[int],
        back: dict[int, int],
        duration_ns: Sequence[int],
        load_bytes: Sequence[int],
    ) -> int:
        """Return the time of the iteration with every wait."""
        leave: list[list[int]] = [[] for _ in duration_ns]
        returning: list[list[int]] = [[] for _ in duration_ns]
        needed: list[list[int]] = [[] for _ in duration_ns]
        for number in swapped:
            leave[self._leave[number]].append(number)
            returning[back[number]].append(number)
            needed[need[number]].append(number)
        now_ns = out_free_ns = in_free_ns = leaving_bytes = 0
        leaving: deque[tuple[int, int]] = deque()
        done_ns: dict[int, int] = {}
        stays: set[int] = set()
        for stage, duration in enumerate(duration_ns):
            for number in leave[stage]:
                out_free_ns = max(out_free_ns, now_ns) + self._out_ns[number]
                leaving.append((out_free_ns, number))
                leaving_bytes += self._size[number]
            for number in returning[stage]:
                entry = next((e for e in leaving if e[1] == number), None)
                if entry is not None:  # the tensor has not left, and stays
                    leaving.remove(entry)
                    leaving_bytes -= self._size[number]
                    stays.add(number)
            while leaving and load_bytes[stage] + leaving_bytes > self._limit:
                gone_ns, number = leaving.popleft()
                now_ns = max(now_ns, gone_ns)
                leaving_bytes -= self._size[number]
            for number in returning[stage]:
                if number not in stays:
                    in_free_ns = max(in_free_ns, now_ns) + self._in_ns[number]
                    done_ns[number] = in_free_ns
            for number in needed[stage]:
                now_ns = max(now_ns, done_ns.get(number, 0))
            now_ns += duration
        return now_ns


def _fresh_bytes(graph: StepGraph, index: int, first: Sequence[int]) -> int:
    """Return the bytes that an operator newly takes on the device: new tensors and its workspace."""
    operator = graph.operators[index]
    new = {t for t in operator.writes if not graph.tensors[t].persistent and first[t] == index}
    return operator.workspace_bytes + sum(graph.tensors[t].size_bytes for t in new)
