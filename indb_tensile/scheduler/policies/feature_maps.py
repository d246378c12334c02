"""Feature maps, and what it costs to retain, swap or recompute each: HOME's policy evaluator.

He et al., "HOME", section 3.4 and Algorithm 2. A feature map is a tensor that the forward pass makes and the backward
pass needs. The evaluator goes through the stages of the iteration, here the stretches between the operators at which
a feature map is let go of or needed. Where the memory in use is over the limit, the stage waits for the copies to the
host that were queued first; a copy back that is not done when it is needed makes its stage wait; recomputation
adds its operators' time and, where it needs a feature map that was let go of too, brings that back as well, which
then stays for its own use.

Where the paper is silent: a copy back starts as late as it need not be waited for, if there is memory by then. A
policy that cannot keep the limit is not an error but as bad as it is over it, so that a search can find its way.
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
    """What happens to a feature map between its last access of the forward pass and its next one."""

    RETAIN = 0
    SWAP = 1
    RECOMPUTE = 2


_RETAIN, _SWAP, _RECOMPUTE = (int(action) for action in Action)  # plain integers, in the innermost loop


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMap:
    """One tensor that crosses from the forward to the backward pass.

    `sources` are the feature maps that its recomputation reads; `passing_bytes` is what that needs beside them and
    the tensor itself. `recompute_ns` is None where it cannot be recomputed.
    """

    gap: Gap
    size_bytes: int
    recompute_ns: int | None = None
    sources: tuple[int, ...] = ()
    passing_bytes: int = 0

    @property
    def choices(self) -> tuple[Action, ...]:
        """What may be done with it."""
        both = (Action.RETAIN, Action.SWAP)
        return both if self.recompute_ns is None else (*both, Action.RECOMPUTE)


def backward_start(graph: StepGraph) -> int:
    """The first operator of the backward pass; where operators do not say, the one at the peak (Zico section 6.2)."""
    stages = [operator.stage for operator in graph.operators]
    if Stage.BACKWARD in stages:
        return stages.index(Stage.BACKWARD)
    held = load(graph, LIVENESS)
    return held.index(max(held))


def feature_maps(
    graph: StepGraph, recomputation: Recomputation | None, *, least_bytes: int, most: int
) -> tuple[FeatureMap, ...]:
    """The largest of them, in the order in which they are made."""
    border = backward_start(graph)
    found = [
        gap
        for gap in gaps(graph)
        if not graph.tensors[gap.tensor].persistent
        and gap.out_after < border <= gap.needed_by
        and graph.tensors[gap.tensor].size_bytes > least_bytes
    ]
    found = sorted(found, key=lambda gap: (-graph.tensors[gap.tensor].size_bytes, gap.tensor))[:most]
    made = accesses(graph)
    found.sort(key=lambda gap: (made[gap.tensor][0], gap.tensor))
    place = {gap.tensor: number for number, gap in enumerate(found)}
    return tuple(_feature_map(graph, gap, recomputation, place) for gap in found)


def _feature_map(
    graph: StepGraph, gap: Gap, recomputation: Recomputation | None, place: dict[TensorId, int]
) -> FeatureMap:
    size_bytes = graph.tensors[gap.tensor].size_bytes
    if recomputation is None or gap not in recomputation.gaps:
        return FeatureMap(gap=gap, size_bytes=size_bytes)
    cone = recomputation.cone(gap)
    here = {*cone.sources, gap.tensor}
    operators = [graph.operators[k] for k in cone.operators]
    passing = [
        op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in {*op.reads, *op.writes} - here)
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
    """Algorithm 2 for one graph and one limit: what a policy, an action for each feature map, costs."""

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
        held, duration = load(graph, LIVENESS), run_ns(graph, latency_ns, link).tolist()
        ranges = [*pairwise([*starts, count])]
        self._load = [max(held[a:b]) for a, b in ranges]
        self._duration_ns = [sum(duration[a:b]) for a, b in ranges]
        first = [min(ops, default=count) for ops in accesses(graph)]
        self._entry = [held[a] - _fresh_bytes(graph, a, first) for a, _ in ranges]

    @property
    def without_ns(self) -> int:
        """An iteration in which nothing waits and nothing is recomputed: no policy takes less."""
        return sum(self._duration_ns)

    def __call__(self, policy: Particle) -> Cost:
        """Bytes over the limit, then the time of an iteration."""
        need, duration_ns, passing, change = self._resolve(policy)
        gone = list(accumulate(change))
        held = [a + b for a, b in zip(self._load, gone, strict=True)]
        over = max(held) - self._limit
        for stage, more_bytes in passing.items():
            over = max(over, self._entry[stage] + gone[stage] + more_bytes - self._limit)
        swapped = [number for number, action in enumerate(policy) if action == _SWAP]
        if not swapped:
            return max(0, over), sum(duration_ns)
        back = self._lay_ins(swapped, need, duration_ns, held)
        return max(0, over), self._walk(swapped, need, back, duration_ns, held)

    def _resolve(self, policy: Particle) -> tuple[list[int], list[int], dict[int, int], list[int]]:
        """By feature map the stage that needs it first; by stage its time, what passes through, the load's change."""
        need = self._need.copy()
        duration_ns = self._duration_ns.copy()
        passing: dict[int, int] = {}
        change = [0] * len(self._load)
        for number in reversed(range(len(policy))):  # what is made later may need what is made earlier
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
        self, swapped: Sequence[int], need: Sequence[int], duration_ns: Sequence[int], held: list[int]
    ) -> dict[int, int]:
        """The stage at which each copy back starts; `held` is raised by what is back early."""
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
            while stage > back[number] and held[stage - 1] <= room:
                stage -= 1
                held[stage] += size
            back[number] = stage
        return back

    def _walk(
        self,
        swapped: Sequence[int],
        need: Sequence[int],
        back: dict[int, int],
        duration_ns: Sequence[int],
        held: Sequence[int],
    ) -> int:
        """The time of the iteration with every wait."""
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
                if entry is not None:  # it has not left, and stays
                    leaving.remove(entry)
                    leaving_bytes -= self._size[number]
                    stays.add(number)
            while leaving and held[stage] + leaving_bytes > self._limit:
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
    """What an operator takes on the device that was not there before it: new tensors and its workspace."""
    operator = graph.operators[index]
    new = {t for t in operator.writes if not graph.tensors[t].persistent and first[t] == index}
    return operator.workspace_bytes + sum(graph.tensors[t].size_bytes for t in new)
