"""Capuchin's in-trigger feedback: what came late is fetched earlier the next time.

The paper watches iterations run and moves the access that triggers a late swap-in earlier, by a twentieth of the
copy's time each time. Here the simulator runs the iteration and says how late each tensor was, so it moves by that.
Fetching earlier takes memory earlier: a trigger moves only as far as the load stays within the limit. What was
evicted on demand is fetched on demand and has no trigger.
"""

from dataclasses import replace

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import in_index, load
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.simulate import EventKind, JobRun, simulate, timeline

_ROUNDS = 4
_LEAST_STEP = 0.05  # of its copy's time: the paper's step


def fed_back(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan, limit_bytes: int) -> Plan:
    """The plan with the in-triggers of late tensors earlier, where that makes it faster."""
    best, best_ns = plan, _iteration_ns(graph, latency_ns, link, plan)
    for _ in range(_ROUNDS):
        moved = _earlier(graph, latency_ns, link, best, limit_bytes)
        if moved == best:
            return best
        moved_ns = _iteration_ns(graph, latency_ns, link, moved)
        if moved_ns >= best_ns:
            return best
        best, best_ns = moved, moved_ns
    return best


def _iteration_ns(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan) -> int:
    return simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)[0].iteration_ns


def _earlier(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan, limit_bytes: int) -> Plan:
    """Each late tensor's memory is taken so much earlier as it was late, as far as memory allows."""
    late = _late_ns(graph, latency_ns, link, plan)
    if not late:
        return plan
    running = effective(graph, plan)
    count, step_ns = len(running.operators), effective_latency(latency_ns, plan)
    held = np.array(load(graph, plan), dtype=np.int64)
    swaps = []
    for swap in plan.swaps:
        size_bytes = running.tensors[swap.tensor].size_bytes
        wanted_ns = late.get((swap.tensor, swap.needed_by), 0)
        on_demand = running.tensors[swap.tensor].persistent
        first = in_index(swap, count)
        free = first - (first - swap.free_at) % count
        if wanted_ns and not on_demand:
            wanted_ns = max(wanted_ns, int(_LEAST_STEP * link.in_ns(size_bytes)))
            while wanted_ns > 0 and first - 1 > free and held[(first - 1) % count] + size_bytes <= limit_bytes:
                first -= 1
                wanted_ns -= step_ns[first % count]
                held[first % count] += size_bytes
        swaps.append(replace(swap, in_at=OpIndex(first % count)))
    return replace(plan, swaps=tuple(swaps))


def _late_ns(
    graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan
) -> dict[tuple[TensorId, OpIndex], int]:
    """How long each access waited for its tensor."""
    found: dict[tuple[TensorId, OpIndex], int] = {}
    for event in timeline([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link):
        if event.kind is EventKind.LATE_IN and event.tensor is not None:
            key = (event.tensor, event.operator)
            found[key] = max(found.get(key, 0), event.end_ns - event.start_ns)
    return found
