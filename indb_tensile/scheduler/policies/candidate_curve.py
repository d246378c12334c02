"""Compute the reported trade-off curve of tensile+ for one graph (budget_curve.py).

A greedy planner has anomalies: a plan for a larger budget, or for a faster link, can be slower than a plan for a
smaller budget or a slower link. The reported curve has no anomalies, because it is not made of one plan for each
budget but is the lower envelope of a fixed set of plans:

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

from collections.abc import Sequence

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.budget_curve import BudgetCurve, envelope
from indb_tensile.scheduler.policies.job_candidates import NAME
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans

# Bytes a second: 1 to 90 GB/s in steps of 41 %, which covers PCI Express 3 to 5. Smaller steps make the curve tighter
# between two speeds and take proportionally longer.
SPEEDS = tuple(round(10**9 * 2 ** (k / 2)) for k in range(14))


def curve(
    graph: StepGraph,
    latency_ns: Sequence[int],
    link: Link,
    *,
    rewrites: bool = True,
    speeds: Sequence[int] = SPEEDS,
    cache: PlanCache | None = None,
) -> BudgetCurve:
    """Return the envelope at this link over the plans for all speeds up to the link's own speed."""
    slower = [speed for speed in sorted(speeds) if speed <= min(link.out_bytes_per_s, link.in_bytes_per_s)]
    kept = PlanCache() if cache is None else cache
    plans = [Plan(policy=NAME)]
    for speed in slower:
        plans += plans_for(graph, latency_ns, speed, rewrites=rewrites, cache=kept)
    return envelope(graph, latency_ns, link, plans, cache=kept)


def plans_for(
    graph: StepGraph,
    latency_ns: Sequence[int],
    speed_bytes_per_s: int,
    *,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[Plan, ...]:
    """Return the plans for one speed. They depend on no other link."""
    link = Link(out_bytes_per_s=speed_bytes_per_s, in_bytes_per_s=speed_bytes_per_s)
    candidates = CandidatePlans(graph, latency_ns, link, rewrites=rewrites, cache=cache)
    return tuple(
        candidates.plan(candidate, NAME) for candidate in candidates.curve()[1:]
    )  # the first candidate does nothing
