"""Capuchin's in-trigger feedback: tensors that came late are fetched earlier in the next iteration.

The paper observes iterations and moves the access that triggers a late swap-in earlier, by a twentieth of the copy's
time each time. Here the simulator runs the iteration and reports how late each tensor was, so the trigger moves by
that time. Fetching earlier takes memory earlier, so a trigger moves only as far as the load stays within the limit.
Tensors that were evicted on demand are fetched on demand and have no trigger.
"""

from dataclasses import replace

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import in_index, load
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.job_runs import EventKind, JobRun
from indb_tensile.scheduler.timing.simulate import simulate, timeline

# The most rounds; they end earlier if nothing becomes faster. More rounds cost two simulations each.
_ROUNDS = 4
_LEAST_STEP = 0.05  # least move of a trigger as a fraction of the copy's time: the paper's step


def fed_back(
    graph: StepGraph,
    latency_ns: tuple[int, ...],
    link: Link,
    plan: Plan,
    limit_bytes: int,
    cache: PlanCache | None = None,
) -> Plan:
    """Return the plan with earlier in-triggers of late tensors, if that makes it faster."""
    kept = PlanCache() if cache is None else cache
    best, best_ns = plan, _iteration_ns(graph, latency_ns, link, plan, kept)
    for _ in range(_ROUNDS):
        moved = _earlier(graph, latency_ns, link, best, limit_bytes, kept)
        if moved == best:
            return best
        moved_ns = _iteration_ns(graph, latency_ns, link, moved, kept)
        if moved_ns >= best_ns:
            return best
        best, best_ns = moved, moved_ns
    return best


def _iteration_ns(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan, cache: PlanCache) -> int:
    return simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link, cache=cache)[0].iteration_ns


def _earlier(
    graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan, limit_bytes: int, cache: PlanCache
) -> Plan:
    """Take each late tensor's memory earlier by the time that it was late, as far as the limit allows."""
    late = _late_ns(graph, latency_ns, link, plan, cache)
    if not late:
        return plan
    running = effective(graph, plan, cache)
    count, step_ns = len(running.operators), effective_latency(latency_ns, plan)
    load_bytes = np.array(load(graph, plan, cache), dtype=np.int64)
    swaps = []
    for swap in plan.swaps:
        size_bytes = running.tensors[swap.tensor].size_bytes
        remaining_ns = late.get((swap.tensor, swap.needed_by), 0)
        on_demand = running.tensors[swap.tensor].persistent
        first = in_index(swap, count)
        free = first - (first - swap.free_at) % count
        if remaining_ns and not on_demand:
            remaining_ns = max(remaining_ns, int(_LEAST_STEP * link.in_ns(size_bytes)))
            while (
                remaining_ns > 0 and first - 1 > free and load_bytes[(first - 1) % count] + size_bytes <= limit_bytes
            ):
                first -= 1
                remaining_ns -= step_ns[first % count]
                load_bytes[first % count] += size_bytes
        swaps.append(replace(swap, in_at=OpIndex(first % count)))
    return replace(plan, swaps=tuple(swaps))


def _late_ns(
    graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan, cache: PlanCache
) -> dict[tuple[TensorId, OpIndex], int]:
    """Return how long each access waited for its tensor."""
    waits: dict[tuple[TensorId, OpIndex], int] = {}
    for event in timeline([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link, cache=cache):
        if event.kind is EventKind.LATE_IN and event.tensor is not None:
            key = (event.tensor, event.operator)
            waits[key] = max(waits.get(key, 0), event.end_ns - event.start_ns)
    return waits
