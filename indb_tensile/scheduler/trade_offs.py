"""The trade-offs of one job: the plans that it could follow alone on the device, as memory against time.

Admission needs them to foretell how long sets of jobs take (completion/), before it asks for plans of any set.
"""

import weakref
from dataclasses import fields

from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.phased_plans import forecasts, peaks
from indb_tensile.scheduler.plan_cache import CachedKind, PlanCache
from indb_tensile.scheduler.policies import DEFAULT_POLICY, policy_named
from indb_tensile.scheduler.policies.policy import PlanOptions
from indb_tensile.scheduler.search.candidate import pareto_front
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.workload import Workload, least_bytes

# The budgets for which trade-offs are computed, as fractions of the way from a job's floor to its peak without plans.
# Trade-offs only decide which jobs run side by side, so the plans are made with the least effort. Measured: 0.03 to
# 0.4 s of a processor for networks of 124 to 2,191 operators, against 2 to 4 s with the usual effort, for times that
# differ by 2 % on the median and more only at the floor.
_FRACTIONS = (0.85, 0.7, 0.5, 0.35, 0.2, 0.1, 0.0)
_SECOND_NS = 1_000_000_000
_KIND: CachedKind[tuple[TradeOff, ...]] = CachedKind(name="trade-offs", most=64)


def trade_offs(
    workload: Workload, *, link: Link, policy: str = DEFAULT_POLICY, cache: PlanCache | None = None
) -> tuple[TradeOff, ...]:
    """Return the memory and time of the job's plans alone on the device, from the most memory to the least.

    There are none if the policy cannot keep to the job's own limit.
    """
    kept = PlanCache() if cache is None else cache
    # Jobs with equal graphs share the cached value. Weak references keep no graph alive, and compare their graphs.
    others = tuple(weakref.ref(graph) for graph in workload.graphs[1:])
    rest = tuple(getattr(workload, f.name) for f in fields(workload) if f.name not in ("job", "graphs"))
    key = (others, rest, link, policy)
    return kept.get(_KIND, workload.graphs[0], key, lambda: _points(workload, link, policy, kept))


def _points(workload: Workload, link: Link, policy: str, kept: PlanCache) -> tuple[TradeOff, ...]:
    most_bytes = max(liveness_peak(graph, kept) for graph in workload.graphs)
    floor_bytes = least_bytes(workload, kept)
    budgets = [floor_bytes + int(part * (most_bytes - floor_bytes)) for part in (1.0, *_FRACTIONS)]
    planner = policy_named(policy).budget_planner(
        (workload,), link=link, options=PlanOptions(effort=Effort.QUICK), cache=kept
    )
    points = []
    for plans in dict.fromkeys(planner.plans(budget_bytes) for budget_bytes in budgets):
        (peak_bytes,) = peaks((workload,), plans, kept)
        (forecast,) = forecasts((workload,), plans, link, cache=kept)
        if workload.limit_bytes is None or peak_bytes <= workload.limit_bytes:
            points.append(_trade_off(peak_bytes, forecast, link))
    return pareto_front(points)


def _trade_off(peak_bytes: int, forecast: Forecast, link: Link) -> TradeOff:
    return TradeOff(
        peak_bytes=peak_bytes,
        iteration_ns=forecast.iteration_ns,
        compute_ns=forecast.operators_ns,
        stall_ns=forecast.stall_out_ns + forecast.stall_in_ns,
        out_ns=forecast.out_bytes * _SECOND_NS // link.out_bytes_per_s,
        in_ns=forecast.in_bytes * _SECOND_NS // link.in_bytes_per_s,
    )
