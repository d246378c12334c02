"""Our own policy: keep, swap or make again for every gap together, for any number of jobs under one budget.

What it takes from TENSILE (section IV): the whole step, optimizer and iterations' border included, is planned;
all jobs are planned together; a job's maximum swapping rate is its priority. What it does otherwise, and why:

- Swapping and recomputing are not two phases but one choice per gap, made where most bytes over the limit go per
  nanosecond that it costs, by laying the result out and timing it (search/, native/planner). Swap-first is
  bandwidth-bound long before the memory is down, and recompute-first pays for what a free lane does for nothing.
- What is recomputed may come from what was itself recomputed (chains), up to a whole segment.
- Updates run beside their gradients, large ones in parts (search/reorder.py).
- Time is minimised under the budget, so nothing moves that need not. For the least memory ask for less.
- Jobs get the memory that costs least, all together: from each job's curve of time over peak the next step down is
  taken where the slowdown per byte is least.

Jobs of a device are not synchronised, so each plans with a share of the lanes. Shares in proportion to what the
jobs move, and no sharing at all, are both tried; the simulator decides, with all jobs side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import liveness_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.search.descent import Effort, Heed, unhurried
from indb_tensile.scheduler.search.ladder import Ladder
from indb_tensile.scheduler.search.rung import Rung
from indb_tensile.scheduler.simulate import Compute, JobRun, simulate
from indb_tensile.scheduler.workload import Workload, least_bytes

NAME = "tensile+"
_LEAST_RATE = 0.01
_LANE_PRICE = 0.01

Plans = tuple[tuple[Plan, ...], ...]


def tensile_plus(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    compute: Compute = Compute.OVERLAP,
    effort: Effort = Effort.USUAL,
    work: float = 1,
) -> Plans:
    """Plans whose peaks meet the budget and every job's limit, if any can; with `work` times the usual purse."""
    climb = Climb(workloads, link=link, rewrites=rewrites, compute=compute, effort=effort, work=work)
    return climb.plans(budget_bytes)


class Climb:
    """Plans of some jobs for several budgets: each graph's ladder is climbed once for all of them.

    Equal askings in equal order get equal plans.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        *,
        link: Link,
        rewrites: bool = True,
        compute: Compute = Compute.OVERLAP,
        effort: Effort = Effort.USUAL,
        work: float = 1,
        heed: Heed = unhurried,
    ) -> None:
        self._heed, self._work = heed, work
        self._workloads, self._link, self._rewrites, self._compute = workloads, link, rewrites, compute
        self._effort = effort
        tops = [max(liveness_peak(g) for g in w.graphs) for w in workloads]
        limits = [w.limit_bytes for w in workloads]
        self._caps = [top if most is None else min(top, most) for top, most in zip(tops, limits, strict=True)]
        self._free_bytes = sum(tops) if self._caps == tops else None  # with which nothing has to be planned
        self._known: dict[tuple[float, ...], list[_Job]] = {}

    def plans(self, budget_bytes: int) -> Plans:
        """For jobs that are not synchronised: the best of the ways to share the lanes, side by side."""
        if self._free_bytes is not None and self._free_bytes <= budget_bytes:
            return self._unplanned()
        found = [self._planned(budget_bytes, shares) for shares in _shares(self._workloads, self._compute)]
        if len(found) == 1:
            return found[0]
        slowdowns = [slowdown(self._workloads, plans, self._link, self._compute) for plans in found]
        return found[slowdowns.index(min(slowdowns))]

    def plans_in_phases(self, budget_bytes: int) -> Plans:
        """For jobs whose phases are controlled: few of them copy at once, and equal ones get equal plans."""
        if self._free_bytes is not None and self._free_bytes <= budget_bytes:
            return self._unplanned()
        if _equal(self._workloads):
            budget_bytes -= budget_bytes % len(self._workloads)
            jobs = self._jobs(_alone(self._workloads))
            return (jobs[0].plans(min(self._caps[0], budget_bytes // len(jobs))),) * len(jobs)
        return self._planned(budget_bytes, _alone(self._workloads))

    def _unplanned(self) -> Plans:
        return tuple((Plan(policy=NAME),) * len(w.graphs) for w in self._workloads)

    def _planned(self, budget_bytes: int, shares: tuple[float, ...]) -> Plans:
        jobs, caps = self._jobs(shares), tuple(self._caps)
        if sum(caps) > budget_bytes:
            caps = (budget_bytes,) if len(jobs) == 1 else _divided(jobs, caps, budget_bytes)
        return tuple(job.plans(cap) for job, cap in zip(jobs, caps, strict=True))

    def _jobs(self, shares: tuple[float, ...]) -> list["_Job"]:
        if shares not in self._known:
            self._known[shares] = _jobs(
                self._workloads,
                self._link,
                shares,
                rewrites=self._rewrites,
                effort=self._effort,
                work=self._work,
                heed=self._heed,
            )
        return self._known[shares]


def step_down(curves: Sequence[Sequence[Rung]], weights: Sequence[float], budget_bytes: int) -> tuple[int, ...]:
    """How high each job's peak may be, from curves of falling peaks: least weighted slowdown for the bytes.

    From every curve's first rung on, the next step down is taken where it slows down least per byte, relative to
    the curve's fastest; steps need not be to the next rung, since a convex curve is what matters. What the last
    step gave up too much is given back.
    """
    at = [0] * len(curves)
    while sum(c[k].peak_bytes for c, k in zip(curves, at, strict=True)) > budget_bytes:
        steps = [_step(number, c, at[number], weights[number]) for number, c in enumerate(curves)]
        offers = [step for step in steps if step is not None]
        if not offers:
            break
        _, number, at[number] = min(offers)
    caps = [c[k].peak_bytes for c, k in zip(curves, at, strict=True)]
    spare_bytes = max(0, budget_bytes - sum(caps))
    for number in sorted(range(len(curves)), key=lambda n: (-_left(curves[n], at[n]), n)):
        raised = min(caps[number] + spare_bytes, curves[number][0].peak_bytes)
        spare_bytes -= raised - caps[number]
        caps[number] = raised
    return tuple(caps)


def lane_shares(workloads: Sequence[Workload]) -> tuple[float, ...]:
    """Each job's part of both lanes, in proportion to the bytes it could give up per time."""
    demands = []
    for workload in workloads:
        above_floor = max(liveness_peak(g) for g in workload.graphs) - least_bytes(workload)
        demands.append(above_floor / sum(workload.latency_ns[0]))
    total = sum(demands)
    return tuple(demand / total if demand else 1.0 for demand in demands)


@dataclass(slots=True)
class _Climbed:
    """One graph's ladder, and its curve once that is known."""

    ladder: Ladder
    _curve: tuple[Rung, ...] = ()

    def curve(self) -> tuple[Rung, ...]:
        self._curve = self._curve or self.ladder.curve()
        return self._curve


@dataclass(slots=True)
class _Job:
    """One job's graphs, each with its ladder."""

    workload: Workload
    climbed: list[_Climbed]

    def curve(self) -> tuple[Rung, ...]:
        """The training step's curve; a job of several graphs needs as much as the largest of them."""
        return self.climbed[0].curve()

    def plans(self, cap_bytes: int) -> tuple[Plan, ...]:
        return tuple(one.ladder.within(cap_bytes, NAME) for one in self.climbed)


def _divided(jobs: Sequence[_Job], caps: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """The budget divided, no job above its own cap nor below what its graphs need at least."""
    curves = []
    for job, cap in zip(jobs, caps, strict=True):
        least = least_bytes(job.workload)
        kept = [_bounded(rung, least, cap) for rung in job.curve()]
        curves.append(kept)
    weights = [1 / max(_LEAST_RATE, job.workload.max_swapping_rate) for job in jobs]
    return step_down(curves, weights, budget_bytes)


def _bounded(rung: Rung, least_bytes: int, cap_bytes: int) -> Rung:
    peak_bytes = max(least_bytes, min(cap_bytes, rung.peak_bytes))
    return replace(rung, peak_bytes=peak_bytes)


def _jobs(
    workloads: Sequence[Workload],
    link: Link,
    shares: Sequence[float],
    *,
    rewrites: bool,
    effort: Effort,
    work: float,
    heed: Heed,
) -> list[_Job]:
    """A ladder for each graph; equal graphs on equal shares climb the same one. They share the work equally."""
    distinct = len({(id(w.graphs[0]), w.latency_ns[0], share) for w, share in zip(workloads, shares, strict=True)})
    known: dict[tuple[int, tuple[int, ...], float], _Climbed] = {}
    found = []
    for workload, share in zip(workloads, shares, strict=True):
        climbed = []
        for number, (graph, latency_ns) in enumerate(zip(workload.graphs, workload.latency_ns, strict=True)):
            key = (id(graph), latency_ns, share)
            if key not in known:
                ladder = Ladder(
                    graph,
                    latency_ns,
                    link,
                    share=share,
                    rewrites=rewrites,
                    effort=effort if number == 0 else Effort.QUICK,
                    work=work / max(1, distinct),
                    heed=heed,
                )
                known[key] = _Climbed(ladder)
            climbed.append(known[key])
        found.append(_Job(workload, climbed))
    return found


def _shares(workloads: Sequence[Workload], compute: Compute) -> list[tuple[float, ...]]:
    """The ways to share the lanes. Jobs that take turns compute as much slower as their copies are."""
    alone = _alone(workloads)
    if len(workloads) == 1 or compute is Compute.TURNS:
        return [alone]
    return [lane_shares(workloads), alone]


def _alone(workloads: Sequence[Workload]) -> tuple[float, ...]:
    return (1.0,) * len(workloads)


def _equal(workloads: Sequence[Workload]) -> bool:
    """Whether all jobs are the same, but for their names."""
    first = workloads[0]
    return all(replace(w, job=first.job) == first for w in workloads[1:])


def slowdown(workloads: Sequence[Workload], plans: Plans, link: Link, compute: Compute = Compute.OVERLAP) -> float:
    """How much longer iterations take than without waits, summed over the jobs, side by side."""
    runs = [
        JobRun(graph=w.graphs[0], plan=p[0], latency_ns=w.latency_ns[0])
        for w, p in zip(workloads, plans, strict=True)
    ]
    forecasts = simulate(runs, link, compute=compute)
    return sum(f.iteration_ns / sum(r.latency_ns) for f, r in zip(forecasts, runs, strict=True))


def _step(number: int, curve: Sequence[Rung], at: int, weight: float) -> tuple[float, int, int] | None:
    """The cheapest way further down this curve: weighted slowdown per byte, whose, and to which rung."""
    found = [
        (weight * (_cost_ns(rung) - _cost_ns(curve[at])) / curve[0].iteration_ns / lower, number, k)
        for k, rung in enumerate(curve[at + 1 :], at + 1)
        if (lower := curve[at].peak_bytes - rung.peak_bytes) > 0
    ]
    return min(found, default=None)


def _left(curve: Sequence[Rung], at: int) -> float:
    """What one more byte would give back at this rung, relative to the fastest."""
    if at == 0:
        return 0.0
    higher, here = curve[at - 1], curve[at]
    return (
        (here.iteration_ns - higher.iteration_ns) / curve[0].iteration_ns / (higher.peak_bytes - here.peak_bytes + 1)
    )


def _cost_ns(rung: Rung) -> float:
    """Time, and a little for copies that cost none now: they may meet other jobs'."""
    return rung.iteration_ns + _LANE_PRICE * rung.lane_ns
