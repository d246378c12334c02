"""Recomputation events of one graph, beside fixed swap events: TENSILE section IV-D.

If the peak exceeds the memory after swapping, a tensor at the peak is released after a use and recomputed before its
next use. The tensor with the most bytes per recomputation time comes first (MSPS, equation 4), until the memory
suffices. The swaps stay as they are. A tensor is therefore recomputed only if it never leaves the device, and only
from tensors for which the same holds: no input of the operator is swapped out or released between its two runs. (An
input that left across the iterations and was back before the first run counts as never released.) A source is kept
for each tensor that is recomputed from it: the source is not itself released around that moment.

We differ from the paper in one point: a recomputation that would raise the peak at its own moment to the present peak
is not done. The footprint of a recomputation is estimated, from above except for operators that the plan puts off
(recompute.py). The resulting plan is measured, and the estimate is corrected if it was too low.
"""

from dataclasses import dataclass

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import Gap, accesses, gaps, peak, working_sets
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.recomputation.recompute import Cone, Recomputation
from indb_tensile.scheduler.tensile.swap_events import SwapEvents

_NOTHING = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One recomputation that would lower the peak."""

    number: int
    msps: float  # bytes per nanosecond


def msps(size_bytes: int, time_ns: int) -> float:
    """Return the memory saving per second, equation 4. An operator without latency counts one nanosecond."""
    return size_bytes / max(1, time_ns)


class RecomputeEvents:
    """The recomputation events of one graph, which are added one by one."""

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: tuple[int, ...],
        events: SwapEvents,
        cache: PlanCache | None = None,
    ) -> None:
        self._cache = PlanCache() if cache is None else cache
        self._graph = graph
        self._events = events
        self._recomputation = Recomputation(graph, latency_ns, cache=self._cache)
        self._load = events.footprint.copy()
        # bytes above the operator's own load during the re-run before it
        self._turn = np.full(len(graph.operators), _NOTHING, dtype=np.int64)
        self._correction_bytes = 0
        self._released: dict[TensorId, list[Gap]] = {}
        # the operators before which a re-run reads or makes the tensor
        self._relied_on: dict[TensorId, list[OpIndex]] = {}
        self._accesses = accesses(graph)
        self._born_bytes = _born_bytes(graph)
        self._working_bytes = working_sets(graph)
        self._lay_candidates()

    @property
    def peak_bytes(self) -> int:
        """The estimated peak with the recomputation so far."""
        return self._position()[1] + self._correction_bytes

    def offer(self) -> Offer | None:
        """Return the tensor at the peak with the largest MSPS that conforms to the rules; None if there is none."""
        operator, peak_bytes = self._position()
        around = self._open & (self._after < operator) & (operator < self._need)
        for number in np.flatnonzero(around).tolist():
            if not self._conforms(self._cones[number]):
                self._open[number] = False  # what was released or is relied on stays so
            elif self._turn_bytes(self._cones[number]) < peak_bytes:
                return Offer(number=number, msps=float(self._msps[number]))
        return None

    def tensor_of(self, offer: Offer) -> TensorId:
        """Return the tensor that the offer recomputes."""
        return self._cones[offer.number].gap.tensor

    def take(self, offer: Offer) -> None:
        """Add this recomputation."""
        cone = self._cones[offer.number]
        gap = cone.gap
        self._open[offer.number] = False
        self._load.add(gap.out_after + 1, gap.needed_by, -self._graph.tensors[gap.tensor].size_bytes)
        over_bytes = self._turn_bytes(cone) - self._load.at(gap.needed_by)
        self._turn[gap.needed_by] = max(int(self._turn[gap.needed_by]), over_bytes)
        self._released.setdefault(gap.tensor, []).append(gap)
        for tensor in _others(cone):
            self._relied_on.setdefault(tensor, []).append(gap.needed_by)

    def plan(self, policy: str) -> Plan:
        """Return swap and recomputation events as a plan; without the latter if they do not lower the peak."""
        away = frozenset(self._events.away)
        plain = Plan(policy=policy, swaps=self._events.swaps, away=away)
        released = [gap for gaps in self._released.values() for gap in gaps]
        if not released:
            return plain
        recomputing = self._recomputation.plan(policy, released, self._events.swaps, away=away)
        lower = peak(self._graph, recomputing, self._cache) < peak(self._graph, plain, self._cache)
        return recomputing if lower else plain

    def correct(self) -> None:
        """Measure the plan's peak, and correct the estimate by the difference from now on."""
        self._correction_bytes += max(0, peak(self._graph, self.plan(""), self._cache) - self.peak_bytes)

    # --- which conform -------------------------------------------------------------------------------------------

    def _conforms(self, cone: Cone) -> bool:
        """Return whether no tensor that the cone needs is released, and no tensor that it would release
        is relied on.
        """
        gap = cone.gap
        if any(gap.out_after < moment <= gap.needed_by for moment in self._relied_on.get(gap.tensor, ())):
            return False
        return not any(
            cone.operators[0] <= released.out_after < gap.needed_by
            for other in _others(cone)
            for released in self._released.get(other, ())
        )

    def _can_recompute_from_live_inputs(self, gap: Gap) -> bool:
        """Return whether the operator that made the tensor can recompute it, because all its inputs are
        still alive.
        """
        ops = self._accesses[gap.tensor]
        tensors = self._graph.tensors
        if tensors[gap.tensor].persistent:
            return False
        read = self._graph.operators[ops[0]].reads
        alive = all(tensors[t].persistent or self._accesses[t][-1] >= gap.needed_by for t in read)
        return alive and self._recomputation.safe(gap)

    def _lay_candidates(self) -> None:
        """Collect every gap whose tensor one operator can recompute from never released sources,
        largest MSPS first.
        """
        left: dict[TensorId, list[OpIndex]] = {}
        for swap in self._events.swaps:
            left.setdefault(swap.tensor, []).append(swap.out_after)
        entries = []
        for gap in gaps(self._graph):
            if gap.tensor in left or not self._can_recompute_from_live_inputs(gap):
                continue
            cone = self._recomputation.cone(gap)
            maker = cone.operators[0]
            if not any(maker <= after < gap.needed_by for t in _others(cone) for after in left.get(t, ())):
                value = msps(self._graph.tensors[gap.tensor].size_bytes, cone.time_ns)
                entries.append((-value, gap.tensor, gap.out_after, cone))
        entries.sort(key=lambda entry: entry[:3])
        self._cones = [cone for *_, cone in entries]
        self._msps = np.array([-value for value, *_ in entries], dtype=np.float64)
        self._after = np.array([cone.gap.out_after for cone in self._cones], dtype=np.int64)
        self._need = np.array([cone.gap.needed_by for cone in self._cones], dtype=np.int64)
        self._open = np.ones(len(entries), dtype=np.bool_)

    # --- the footprint ---------------------------------------------------------------------------------------------

    def _position(self) -> tuple[int, int]:
        """Return the operator at the peak, or after the recomputation that runs at the peak; and the peak."""
        load = np.array(self._load.by_operator(), dtype=np.int64)
        turns = np.where(self._turn == _NOTHING, 0, load + self._turn)
        at = int(np.argmax(np.maximum(load, turns)))
        return at, int(max(load[at], turns[at]))

    def _turn_bytes(self, cone: Cone) -> int:
        """Return the bytes while the operator runs again: the load at its moment, less what only the operator after
        it needs.
        """
        before = cone.gap.needed_by
        rerun = cone.operators[0]
        touched = {*self._graph.operators[before].reads, *self._graph.operators[before].writes}
        temporary = [t for t in cone.made if t not in touched and t != cone.gap.tensor]
        next_bytes = self._graph.operators[before].workspace_bytes + self._born_bytes[before]
        passing_bytes = sum(self._graph.tensors[t].size_bytes for t in temporary)
        own_bytes = self._graph.operators[rerun].workspace_bytes + passing_bytes
        return max(self._load.at(before) - next_bytes + own_bytes, self._working_bytes[rerun])


def _others(cone: Cone) -> tuple[TensorId, ...]:
    """Return the tensors that the operators read, and the tensors that they make besides the recomputed one."""
    return (*cone.sources, *(t for t in cone.made if t != cone.gap.tensor))


def _born_bytes(graph: StepGraph) -> list[int]:
    """Return for each operator the bytes of the tensors that it is the first to access."""
    born = [0] * len(graph.operators)
    for tensor, ops in zip(graph.tensors, accesses(graph), strict=True):
        if ops and not tensor.persistent:
            born[ops[0]] += tensor.size_bytes
    return born
