"""The reported trade-off of one graph: what each budget costs in time, and what each overhead saves in memory.

A greedy planner has anomalies: a plan made for a larger budget, or for a faster link, can come out slower than one
made for less. What is reported has none, because it is not one plan's but the lower envelope over a fixed ladder of
plans (SCHEDULER, pitfalls):

- The ladder's plans are made for links of fixed speeds, both lanes alike, and for limits at fixed parts of the way
  from the graph's floor to its peak without planning (ladder.py). Which plans there are for one speed depends on the
  graph and its latencies alone. At a given link, all plans made for speeds of at most that of its slower lane count,
  so that a faster link has all the plans of a slower one, and more.
- Each is timed at the given link. *No plan is slower on a faster link*: one job queues its copies on each lane in an
  order that the plan fixes, so every moment of the simulation, a copy's end, an operator's start, is the greatest of
  earlier moments plus durations. Greatest and plus are monotone, so by induction no moment comes later where no copy
  takes longer, and neither does the end of any iteration, nor the mean of many. That needs lanes that do not disturb
  each other. Where they do, a copy that starts earlier can slow down another one that is waited for first: then
  lanes are timed as if the other one were always busy. Each copy is served at least that fast, so by the same
  induction the real time is at most the one reported, and the reported one is monotone.

Hence a larger budget, more overhead allowed, or a faster link (each lane at least as fast, no later start of a copy,
no more disturbance) never gives a worse value. The overhead is that over the graph's own time without planning on
the same link; since an upload takes part in that, the link's promise is one about times: for no budget is the
iteration longer, and for no time is the peak higher.
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
from indb_tensile.scheduler.search.ladder import Ladder
from indb_tensile.scheduler.search.rung import envelope
from indb_tensile.scheduler.timing.simulate import JobRun, simulate

SPEEDS = tuple(round(10**9 * 2 ** (k / 2)) for k in range(14))  # bytes a second: 1 to 90 GB/s in steps of 41 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One plan of the envelope: whatever is as fast has no lower peak, and whatever is as low is no faster."""

    peak_bytes: int
    iteration_ns: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """From the highest and fastest point to the lowest and slowest. `base_ns` is the time without planning."""

    points: tuple[Point, ...]
    base_ns: int

    def within(self, budget_bytes: int) -> Point | None:
        """The fastest point within the budget; None where the lowest one is above it."""
        return next((point for point in self.points if point.peak_bytes <= budget_bytes), None)

    def by(self, iteration_ns: float) -> Point | None:
        """The lowest point that takes no longer; None where the fastest one does."""
        fit = bisect_right(self.points, iteration_ns, key=lambda point: point.iteration_ns)
        return self.points[fit - 1] if fit else None

    def eor(self, point: Point) -> float:
        """The time of this point over that without planning."""
        return point.iteration_ns / self.base_ns


def curve(
    graph: StepGraph,
    latency_ns: Sequence[int],
    link: Link,
    *,
    rewrites: bool = True,
    speeds: Sequence[int] = SPEEDS,
) -> Curve:
    """The envelope at this link over the plans for all speeds up to its own."""
    slower = [speed for speed in sorted(speeds) if speed <= min(link.out_bytes_per_s, link.in_bytes_per_s)]
    plans = [Plan(policy=NAME)]
    for speed in slower:
        plans += plans_for(graph, latency_ns, speed, rewrites=rewrites)
    points = [_timed(graph, latency_ns, link, plan) for plan in dict.fromkeys(plans)]
    base_ns = _timed(graph, latency_ns, link, LIVENESS).iteration_ns
    return Curve(points=envelope(points), base_ns=base_ns)


def plans_for(
    graph: StepGraph, latency_ns: Sequence[int], speed_bytes_per_s: int, *, rewrites: bool = True
) -> tuple[Plan, ...]:
    """The ladder's plans for one speed: they know of no other link."""
    link = Link(out_bytes_per_s=speed_bytes_per_s, in_bytes_per_s=speed_bytes_per_s)
    ladder = Ladder(graph, latency_ns, link, rewrites=rewrites)
    return tuple(ladder.plan(rung, NAME) for rung in ladder.curve()[1:])  # the first one does nothing


def undisturbed(link: Link) -> Link:
    """Lanes as slow as they are while the other one is busy, whether or not it is."""
    return replace(
        link,
        out_bytes_per_s=max(1, int(link.out_bytes_per_s * link.duplex)),
        in_bytes_per_s=max(1, int(link.in_bytes_per_s * link.duplex)),
        per_copy_ns=ceil(link.per_copy_ns / link.duplex),
        duplex=1.0,
    )


def _timed(graph: StepGraph, latency_ns: Sequence[int], link: Link, plan: Plan) -> Point:
    run = JobRun(graph=graph, plan=plan, latency_ns=tuple(latency_ns))
    (found,) = simulate([run], undisturbed(link))
    return Point(peak_bytes=peak(graph, plan), iteration_ns=found.iteration_ns, plan=plan)
