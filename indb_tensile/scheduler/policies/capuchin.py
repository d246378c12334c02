"""Capuchin: from measured accesses, swap what hides by free time, then the cheaper of swapping and recomputing by
MSPS.

Peng et al., as TENSILE sections I, II and IV-D and HOME sections II and IV-A describe it. It saves only as much as
the budget requires.

1. *Passive mode* measures. Its result, the latencies and the sequence of accesses, is our workload.
2. *Candidates* are tensors that are accessed again, in gaps in which memory is short.
3. *Hidden swaps*: by free time, longest first, each swap that both lanes can still hide (free_time.py).
4. *The cheaper of two*: while memory is short, the swap with the longest free time, with the wait that it causes, is
  compared with the recomputation with the most memory saved per second (msps.py), by cost for each byte. A tensor
  that is recomputed early stays if there is room (collective recomputation), else it is recomputed again.
5. *On demand*: tensors without a decision, parameters and optimizer state, are evicted where memory is short, longest
  unused first, and fetched when an operator needs them, which then waits.
6. *In-trigger feedback*: the plan is simulated, as the paper runs it. Tensors that came late are fetched earlier by
  that time, if memory permits, a few times.

The budget is divided between jobs, each of which is planned by itself. Copies are scheduled as in AutoSwap's run time
(swap_times.py), which has Capuchin's rules: out as soon as the lane is free, back as late as possible without waits,
and an allocation that does not fit waits for leaving tensors. Two points are our own. Savings are counted at each
operator instead of summed up, because a sum over tensors says little about the peak. Recomputation that in the end
does not fit beside its own sources is replaced by swapping. The limitations are the paper's: it decides one tensor
after the other, considers gaps across iterations only on demand, and does not split or move operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import Gap, accesses, gaps, peak
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.division import demand, divide
from indb_tensile.scheduler.policies.feedback import fed_back
from indb_tensile.scheduler.policies.free_time import FreeTime, Ints, Swapping
from indb_tensile.scheduler.policies.msps import SavingPerTime
from indb_tensile.scheduler.policies.swap_times import empty_load, inside, schedule
from indb_tensile.scheduler.recomputation.carry import with_copies
from indb_tensile.scheduler.recomputation.recompute import Recomputation
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.workload import Workload, least_bytes


def capuchin(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return plans that save as much as each job's part of the budget requires."""
    limits = divide([demand(workload, least_bytes(workload, cache), cache) for workload in workloads], budget_bytes)
    return tuple(
        tuple(
            plan_within(graph, latency_ns, link, limit, rewrites=rewrites, cache=cache)
            for graph, latency_ns in zip(workload.graphs, workload.latency_ns, strict=True)
        )
        for workload, limit in zip(workloads, limits, strict=True)
    )


def plan_within(
    graph: StepGraph,
    latency_ns: tuple[int, ...],
    link: Link,
    limit_bytes: int,
    *,
    rewrites: bool,
    cache: PlanCache | None = None,
) -> Plan:
    """Return one graph's plan. If recomputation cannot be made to fit, the plan only swaps."""
    cache = PlanCache() if cache is None else cache
    plan = _Decisions(graph, latency_ns, link, limit_bytes, cache, rewrites=rewrites).plan()
    if rewrites and peak(graph, plan, cache) > limit_bytes:
        plan = _Decisions(graph, latency_ns, link, limit_bytes, cache, rewrites=False).plan()
    return fed_back(graph, latency_ns, link, plan, limit_bytes, cache)


@dataclass(slots=True)
class _Built:
    """The decisions as a graph that runs: its swaps, and the load with all gaps empty, by captured operator."""

    plan: Plan  # with swaps wherever there is time for one
    graph: StepGraph
    chosen: tuple[Gap, ...]
    load: Ints


@dataclass(slots=True)
class _Decisions:
    """One graph's decisions, which are added one by one. The load is by captured operator, including its re-runs."""

    graph: StepGraph
    latency_ns: tuple[int, ...]
    link: Link
    limit_bytes: int
    cache: PlanCache
    rewrites: bool = field(kw_only=True)
    swaps: list[Swapping] = field(default_factory=list)
    passive: list[Gap] = field(default_factory=list)
    brief: dict[Gap, None] = field(default_factory=dict)
    away: set[TensorId] = field(default_factory=set)

    def plan(self) -> Plan:
        """Decide until the load fits or nothing is left to decide. Then schedule the copies."""
        free_time = FreeTime(self.graph, self.latency_ns, self.link)
        recomputation = Recomputation(self.graph, self.latency_ns, cache=self.cache)
        saving = SavingPerTime(recomputation)
        candidates = [gap for gap in gaps(self.graph) if not self.graph.tensors[gap.tensor].persistent]
        ranked = sorted(candidates, key=lambda g: (-free_time.of(g), g.tensor, g.out_after))
        load_bytes = self._build(recomputation, saving).load
        self._swap_hidden(ranked, free_time, load_bytes)
        while True:
            while int(load_bytes.max()) > self.limit_bytes and self._decide(ranked, free_time, saving, load_bytes):
                pass
            built = self._build(recomputation, saving)
            load_bytes = built.load
            if int(load_bytes.max()) <= self.limit_bytes:
                return self._laid(built)
            if not self._relieve(int(load_bytes.argmax()), saving, load_bytes, ranked):
                return self._laid(built)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _swap_hidden(self, ranked: Sequence[Gap], free_time: FreeTime, load_bytes: Ints) -> None:
        """Take swaps by free time, as long as both lanes can hide them beside the swaps taken already."""
        for gap in ranked:
            short = np.flatnonzero(load_bytes > self.limit_bytes)
            if len(short) == 0 or free_time.of(gap) < 0:
                return
            swap = free_time.swapping(gap, short)
            if swap is not None and not free_time.late_ns([*self.swaps, swap]):
                self._swap(swap, load_bytes)

    def _decide(self, ranked: Sequence[Gap], free_time: FreeTime, saving: SavingPerTime, load_bytes: Ints) -> bool:
        """Swap or recompute one more tensor that is on the device where memory is shortest. Return False if there is
        none.
        """
        at = int(load_bytes.argmax())
        taken = {swap.gap for swap in self.swaps} | saving.dropped.keys()
        around = [gap for gap in ranked if gap.out_after < at < gap.needed_by and gap not in taken]
        swap = free_time.swapping(around[0], np.flatnonzero(load_bytes > self.limit_bytes)) if around else None
        if swap is None:
            return False
        recomputation = saving.best(sorted(around, key=lambda g: (g.tensor, g.out_after))) if self.rewrites else None
        if recomputation is not None:
            gap, time_ns = recomputation
            wait_ns = free_time.late_ns([*self.swaps, swap]) - free_time.late_ns(self.swaps)
            size_bytes = self.graph.tensors[gap.tensor].size_bytes
            if time_ns * swap.size_bytes < wait_ns * size_bytes:
                saving.drop(gap)
                load_bytes[inside(gap, len(load_bytes))] -= size_bytes
                return True
        self._swap(swap, load_bytes)
        return True

    def _swap(self, swap: Swapping, load_bytes: Ints) -> None:
        self.swaps.append(swap)
        load_bytes[inside(swap.gap, len(load_bytes))] -= swap.size_bytes

    def _relieve(self, at: int, saving: SavingPerTime, load_bytes: Ints, ranked: Sequence[Gap]) -> bool:
        """Make room where the load of the built decisions exceeds the limit. Return False if nothing is
        left to try.
        """
        lingering = [g for g in saving.dropped if g.out_after < at < g.needed_by and g not in self.brief]
        if lingering:
            self.brief |= dict.fromkeys(lingering)
            return True
        taken = {swap.gap for swap in self.swaps} | saving.dropped.keys()
        if any(gap.out_after < at < gap.needed_by and gap not in taken for gap in ranked):
            return True  # the load is known more precisely now, so continue to decide
        if self._evict(at, load_bytes):
            return True
        causes = [gap for gap in saving.dropped if gap.needed_by == at]
        for gap in causes:
            saving.keep(gap)
            size_bytes = self.graph.tensors[gap.tensor].size_bytes
            out_ns, in_ns = self.link.out_ns(size_bytes), self.link.in_ns(size_bytes)
            self.swaps.append(
                Swapping(gap=gap, size_bytes=size_bytes, out_ns=out_ns, in_ns=in_ns, gone_by_ns=0, back_from_ns=0)
            )
        return bool(causes)

    def _evict(self, at: int, load_bytes: Ints) -> bool:
        """Evict persistent tensors that are not in use here, longest unused first, until the load fits."""
        count, excess = len(load_bytes), int(load_bytes[at]) - self.limit_bytes
        idle = [
            t for t, ops in zip(self.graph.tensors, accesses(self.graph), strict=True) if t.persistent and not ops
        ]
        offers: list[tuple[int, TensorId, Gap | None]] = [(-count, t.id, None) for t in idle if t.id not in self.away]
        for gap in gaps(self.graph):
            inner = (at - gap.out_after) % count
            around = 0 < inner < (gap.needed_by - gap.out_after - 1) % count + 1
            if around and self.graph.tensors[gap.tensor].persistent and gap not in self.passive:
                offers.append((-inner, gap.tensor, gap))
        for _, tensor, chosen in sorted(offers, key=lambda offer: offer[:2]):
            if excess <= 0:
                break
            excess -= self.graph.tensors[tensor].size_bytes
            if chosen is None:
                self.away.add(tensor)
            else:
                self.passive.append(chosen)
        return bool(offers)

    # --- building ----------------------------------------------------------------------------------------------

    def _build(self, recomputation: Recomputation, saving: SavingPerTime) -> _Built:
        count = len(self.graph.operators)
        swaps = [_whole(gap, count) for gap in (*(swap.gap for swap in self.swaps), *self.passive)]
        brief = [gap for gap in self.brief if gap in saving.dropped]
        plan = recomputation.plan("capuchin", tuple(saving.dropped), swaps, brief=brief, away=frozenset(self.away))
        graph = effective(self.graph, plan, self.cache)
        chosen = tuple(Gap(tensor=s.tensor, out_after=s.out_after, needed_by=s.needed_by) for s in plan.swaps)
        by_position = empty_load(graph, chosen, frozenset(self.away))
        load_bytes = np.zeros(count, dtype=np.int64)
        np.maximum.at(load_bytes, _turn_of(plan, count), by_position)
        return _Built(plan=plan, graph=graph, chosen=chosen, load=load_bytes)

    def _laid(self, built: _Built) -> Plan:
        """Schedule the copies. Tensors that are evicted on demand are fetched on demand."""
        latency_ns = effective_latency(self.latency_ns, built.plan)
        laid = schedule(
            built.graph,
            latency_ns,
            self.link,
            built.chosen,
            limit_bytes=max(self.limit_bytes, int(built.load.max())),
            policy="capuchin",
            away=built.plan.away,
        )
        swaps = [replace(s, in_at=s.needed_by) if self._kept(s, built) else s for s in laid.swaps]
        return replace(built.plan, swaps=with_copies(built.graph, swaps))

    def _kept(self, swap: Swap, built: _Built) -> bool:
        return built.graph.tensors[swap.tensor].persistent


def _whole(gap: Gap, count: int) -> Swap:
    """Return a swap that is away for its whole gap."""
    return Swap(
        tensor=gap.tensor,
        out_after=gap.out_after,
        free_at=OpIndex((gap.out_after + 1) % count),
        in_at=gap.needed_by,
        needed_by=gap.needed_by,
    )


def _turn_of(plan: Plan, count: int) -> Ints:
    """Return for each position in the plan's order the captured operator in whose turn it runs."""
    if not plan.executions:
        return np.arange(count, dtype=np.int64)
    order = [int(execution.operator) for execution in plan.executions]
    newest = np.maximum.accumulate(np.array(order, dtype=np.int64))
    # otherwise the operator runs again, or was put off
    own = np.concatenate((np.ones(1, dtype=np.bool_), newest[1:] > newest[:-1]))
    return np.where(own, newest, np.minimum(newest + 1, count - 1)).astype(np.int64)
