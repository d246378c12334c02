"""The trade-off curve of one graph: the time that each budget costs, and the memory that each overhead saves.

A curve is the lower envelope of some plans at one link: a plan that is neither smaller nor faster than another is
left out. A larger budget, or more allowed overhead, therefore never gives a worse value. The overhead is relative to
the graph's own time without planning on the same link, of which an upload is a part.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.search.candidate import pareto_front
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One plan of the envelope. No plan that is as fast has a lower peak, and no plan with as low a
    peak is faster.
    """

    peak_bytes: int
    iteration_ns: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCurve:
    """The points from the highest peak and least time to the lowest peak and longest time. `base_ns` is the time
    without planning.
    """

    points: tuple[CurvePoint, ...]
    base_ns: int

    def within(self, budget_bytes: int) -> CurvePoint | None:
        """Return the fastest point within the budget; None if even the lowest peak exceeds the budget."""
        return next((point for point in self.points if point.peak_bytes <= budget_bytes), None)

    def by(self, iteration_ns: float) -> CurvePoint | None:
        """Return the point with the lowest peak that takes no longer than `iteration_ns`; None if even the fastest
        point takes longer.
        """
        fit = bisect_right(self.points, iteration_ns, key=lambda point: point.iteration_ns)
        return self.points[fit - 1] if fit else None

    def eor(self, point: CurvePoint) -> float:
        """Return the time of this point divided by the time without planning."""
        return point.iteration_ns / self.base_ns


def envelope(
    graph: StepGraph, latency_ns: Sequence[int], link: Link, plans: Iterable[Plan], *, cache: PlanCache | None = None
) -> BudgetCurve:
    """Return the curve of these plans at this link."""
    kept = PlanCache() if cache is None else cache
    points = [_timed(graph, latency_ns, link, plan, kept) for plan in dict.fromkeys(plans)]
    base_ns = _timed(graph, latency_ns, link, LIVENESS, kept).iteration_ns
    return BudgetCurve(points=pareto_front(points), base_ns=base_ns)


def undisturbed(link: Link) -> Link:
    """Return the link with lanes as slow as they are while the other lane is busy, and without further slowdown."""
    return replace(
        link,
        out_bytes_per_s=max(1, int(link.out_bytes_per_s * link.duplex)),
        in_bytes_per_s=max(1, int(link.in_bytes_per_s * link.duplex)),
        per_copy_ns=ceil(link.per_copy_ns / link.duplex),
        duplex=1.0,
    )


def _timed(graph: StepGraph, latency_ns: Sequence[int], link: Link, plan: Plan, cache: PlanCache) -> CurvePoint:
    run = JobRun(graph=graph, plan=plan, latency_ns=tuple(latency_ns))
    (forecast,) = simulate([run], undisturbed(link), cache=cache)
    return CurvePoint(peak_bytes=forecast.peak_bytes, iteration_ns=forecast.iteration_ns, plan=plan)
