"""Compute the reported trade-off curve of one graph: the time that each budget costs, and the memory that each
overhead saves.

A greedy planner has anomalies: a plan for a larger budget, or for a faster link, can be slower than a plan for a
smaller budget or a slower link. The reported curve has no anomalies, because it is not made of one plan for each
budget but is the lower envelope of a fixed set of plans (SCHEDULER, pitfalls):

- The plans are made for links of fixed speeds, both lanes alike, and for limits at fixed fractions of the way from
  the graph's floor to its peak without planning (candidate_plans.py). The plans for one speed depend on the graph and
  its latencies alone. At a given link, all plans count that were made for speeds of at most that of its slower lane.
  A faster link therefore has all plans of a slower link, and more.
- Each plan is timed at the given link. *No plan is slower on a faster link.* One job queues its copies on each lane
  in an order that the plan fixes, so every moment of the simulation (a copy's end, an operator's start) is the
  maximum of earlier moments plus durations. Maximum and addition are monotone, so by induction no moment comes later
  if no copy takes longer. Neither does the end of any iteration, nor the mean of many. This holds only for lanes that
  do not slow each other down. If they do, a copy that starts earlier can slow down another copy that is waited for
  first. Then lanes are timed as if the other lane were always busy. Each copy is served at least that fast, so by the
  same induction the real time is at most the reported time, and the reported time is monotone.

Hence a larger budget, more allowed overhead, or a faster link (each lane at least as fast, no larger start-up time of
a copy, no more mutual slowdown) never gives a worse value. The overhead is relative to the graph's own time without
planning on the same link. An upload is part of that time, so the guarantee for a faster link is about times: for no
budget is the iteration longer, and for no time is the peak higher.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.tensile_plus import NAME
from indb_tensile.scheduler.search.candidate import pareto_front
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.timing.simulate import JobRun, simulate

# Bytes a second: 1 to 90 GB/s in steps of 41 %, which covers PCI Express 3 to 5. Smaller steps make the curve tighter
# between two speeds and take proportionally longer.
SPEEDS = tuple(round(10**9 * 2 ** (k / 2)) for k in range(14))


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


def curve(
    graph: StepGraph,
    latency_ns: Sequence[int],
    link: Link,
    *,
    rewrites: bool = True,
    speeds: Sequence[int] = SPEEDS,
) -> BudgetCurve:
    """Return the envelope at this link over the plans for all speeds up to the link's own speed."""
    slower = [speed for speed in sorted(speeds) if speed <= min(link.out_bytes_per_s, link.in_bytes_per_s)]
    plans = [Plan(policy=NAME)]
    for speed in slower:
        plans += plans_for(graph, latency_ns, speed, rewrites=rewrites)
    points = [_timed(graph, latency_ns, link, plan) for plan in dict.fromkeys(plans)]
    base_ns = _timed(graph, latency_ns, link, LIVENESS).iteration_ns
    return BudgetCurve(points=pareto_front(points), base_ns=base_ns)


def plans_for(
    graph: StepGraph, latency_ns: Sequence[int], speed_bytes_per_s: int, *, rewrites: bool = True
) -> tuple[Plan, ...]:
    """Return the plans for one speed. They depend on no other link."""
    link = Link(out_bytes_per_s=speed_bytes_per_s, in_bytes_per_s=speed_bytes_per_s)
    ladder = CandidatePlans(graph, latency_ns, link, rewrites=rewrites)
    return tuple(ladder.plan(rung, NAME) for rung in ladder.curve()[1:])  # the first candidate does nothing


def undisturbed(link: Link) -> Link:
    """Return the link with lanes as slow as they are while the other lane is busy, and without further slowdown."""
    return replace(
        link,
        out_bytes_per_s=max(1, int(link.out_bytes_per_s * link.duplex)),
        in_bytes_per_s=max(1, int(link.in_bytes_per_s * link.duplex)),
        per_copy_ns=ceil(link.per_copy_ns / link.duplex),
        duplex=1.0,
    )


def _timed(graph: StepGraph, latency_ns: Sequence[int], link: Link, plan: Plan) -> CurvePoint:
    run = JobRun(graph=graph, plan=plan, latency_ns=tuple(latency_ns))
    (forecast,) = simulate([run], undisturbed(link))
    return CurvePoint(peak_bytes=peak(graph, plan), iteration_ns=forecast.iteration_ns, plan=plan)
