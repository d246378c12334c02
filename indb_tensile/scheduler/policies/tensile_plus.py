"""The policy tensile+: keep, swap or recompute the tensor of every gap, for any number of jobs under one budget.

From TENSILE (section IV) it takes three ideas: the whole step is planned, including the optimizer and the border
between iterations; all jobs are planned together; a job's maximum swapping rate is its priority. It differs in the
following points:

- Swapping and recomputation are not two phases but one choice for each gap. The choice that saves the most bytes over
  the limit for each nanosecond of cost is made first, and its effect is computed by laying the result out and timing
  it (search/, native/planner). Swapping first reaches the limit of the bandwidth long before the memory suffices.
  Recomputing first spends compute time on tensors that an idle lane could copy at no cost.
- A recomputed tensor may be a source of further recomputation (chains), up to a whole segment.
- Updates run beside their gradients, large ones in parts (search/reorder.py).
- Time is minimised under the budget, so no tensor moves without need. A caller that wants the least memory asks for a
  smaller budget.
- Memory is divided between all jobs where it costs least: from each job's budget curve (time over peak) the next step
  down is taken where the slowdown for each byte is least.

Jobs of a device are not synchronised, so each is planned with a share of the lanes. Two ways are tried: shares in
proportion to the bytes that the jobs move, and full lanes for each. The curves by which a budget is divided do not
include other jobs' copies and turns, so the division by curves can be worse than equal parts. It is therefore one of
several divisions: along the curves, along the curves with the slowdown of slow jobs counted more, into equal parts,
and in proportion to peaks. The simulator runs all jobs side by side and decides between those divisions that

- keep to the budget, if any does. A job that does not reach its part keeps what it needs, and the other jobs' parts
  are divided again;
- take no more time than equal parts do, both as a sum of the jobs' slowdowns and for the device's time for the same
  work;
- slow no job down by more than `UNFAIR` times the mean of all jobs, unless equal parts do so too. The bound is
  relative to the mean, because under a low budget all jobs are slow. A bound of a quarter above the mean keeps what
  dividing along the curves gains, and only divisions that starved one job for the others exceeded it.

If one of the four is refused for that, divisions a quarter and half of the way from equal parts to the curves are
tried as well: the device gains from the first bytes that are moved, and the last bytes starve a job. Example: four
equal residual networks of 80 operators at 40 % of their memory, computing at the same time, take on the device 2.59
times as long as without plans with equal parts (the worst job 2.59), and 1.76 along the curves (the worst 6.32). A
quarter of the way they take 1.89, and the worst job 1.98: most of the gain, and no job slower than with equal parts.
Half of the way they take 2.01 and 2.77. A bound of 1.5 instead of 1.25 admits no more of these.

The budget of jobs of different priorities is divided along their curves alone, because equal treatment was not
requested.

A rank of a job that several devices train gains nothing by an iteration that is shorter than its other ranks need
(`Workload.others_ns`). No iteration of it counts as shorter, so other jobs of its device get the memory.

If equal parts leave all jobs but one with all the memory that they can use, and that job is no slower in the rest, no
division can be better, and none is simulated. So a large network is planned beside small ones as fast as alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.budget_divisions import (
    BETWEEN,
    Division,
    along_curves,
    along_steep_curves,
    by_peak,
    equally,
)
from indb_tensile.scheduler.policies.division_outcome import DivisionOutcome, admitted_of, chosen_plans
from indb_tensile.scheduler.policies.job_candidates import NAME, JobCandidates, job_candidates
from indb_tensile.scheduler.policies.policy import USUAL_OPTIONS, PlanOptions, Plans
from indb_tensile.scheduler.policies.quotas import equal_parts
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast, JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload, least_bytes

_DIVISIONS = 3  # The most times that a budget is divided, because a job did not reach its part.


def tensile_plus(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    compute: Compute = Compute.OVERLAP,
    effort: Effort = Effort.USUAL,
    work: float = 1,
    cache: PlanCache | None = None,
) -> Plans:
    """Return plans whose peaks meet the budget and every job's limit, if any can. `work` multiplies the layouts
    tried.
    """
    options = PlanOptions(rewrites=rewrites, compute=compute, effort=effort, work=work)
    return JointBudgetPlanner(workloads, link=link, options=options, cache=cache).plans(budget_bytes)


class JointBudgetPlanner:
    """Plans of some jobs for several budgets. The candidates of each graph are made once and used for all budgets.

    Equal calls in equal order return equal plans.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        *,
        link: Link,
        options: PlanOptions = USUAL_OPTIONS,
        cache: PlanCache | None = None,
    ) -> None:
        self._workloads, self._link, self._options = workloads, link, options
        self._cache = PlanCache() if cache is None else cache
        tops = [max(liveness_peak(g, self._cache) for g in w.graphs) for w in workloads]
        limits = [w.limit_bytes for w in workloads]
        self._caps = [top if most is None else min(top, most) for top, most in zip(tops, limits, strict=True)]
        # the budget with which nothing has to be planned
        self._free_bytes = sum(tops) if self._caps == tops else None
        self._known: dict[tuple[float, ...], list[JobCandidates]] = {}
        self._apart: tuple[Forecast, ...] | None = None  # the jobs side by side without plans

    def plans(self, budget_bytes: int) -> Plans:
        """Return plans for jobs that are not synchronised: the best of several divisions of lanes and budget,
        simulated side by side.
        """
        if self._free_bytes is not None and self._free_bytes <= budget_bytes:
            return self._unplanned()
        without_loss = self._plans_without_loss(budget_bytes)
        if without_loss is not None:
            return without_loss
        candidates: dict[Plans, bool] = {}  # maps plans to whether they are from equal parts
        for number, shares in enumerate(_shares(self._workloads, self._options.compute, self._cache)):
            for divide in self._divisions(most=number == 0):
                plans = self._planned(budget_bytes, shares, divide)
                candidates[plans] = candidates.get(plans, False) or divide is equally
        if len(candidates) == 1:
            return next(iter(candidates))
        outcomes = [self._outcome(plans, budget_bytes, equal=equal) for plans, equal in candidates.items()]
        if not all(admitted_of(outcomes)):
            shares = _shares(self._workloads, self._options.compute, self._cache)[0]
            between = (self._planned(budget_bytes, shares, divide) for divide in BETWEEN)
            outcomes += [
                self._outcome(plans, budget_bytes, equal=False)
                for plans in dict.fromkeys(between)
                if plans not in candidates
            ]
        return chosen_plans(outcomes)

    def plans_in_phases(self, budget_bytes: int) -> Plans:
        """Return plans for jobs with controlled phases. Few of them copy at the same time, and equal jobs get equal
        plans.
        """
        if self._free_bytes is not None and self._free_bytes <= budget_bytes:
            return self._unplanned()
        if _equal(self._workloads):
            budget_bytes -= budget_bytes % len(self._workloads)
            jobs = self._jobs(_alone(self._workloads))
            return (jobs[0].plans(min(self._caps[0], budget_bytes // len(jobs))),) * len(jobs)
        return self._planned(budget_bytes, _alone(self._workloads))

    def _unplanned(self) -> Plans:
        return tuple((Plan(policy=NAME),) * len(w.graphs) for w in self._workloads)

    def _plans_without_loss(self, budget_bytes: int) -> Plans | None:
        """Return plans under which all jobs but one have all the memory that they can use, and that one is no slower
        in the rest. None if there are none.

        No division is better, so none has to be simulated: the jobs with all their memory copy nothing but batches,
        and the lanes belong to the one that copies.
        """
        leasts = tuple(least_bytes(workload, self._cache) for workload in self._workloads)
        parts = equal_parts(leasts, self._caps, budget_bytes)
        short = [number for number, (part, cap) in enumerate(zip(parts, self._caps, strict=True)) if part < cap]
        if len(self._workloads) == 1 or len(short) != 1 or sum(parts) > budget_bytes or self._free_bytes is None:
            return None
        (number,) = short
        planned = self._jobs(_alone(self._workloads))[number]
        if not planned.is_as_fast_within(parts[number]):
            return None
        plans = [*self._unplanned()]
        plans[number] = planned.plans(parts[number])
        fits = sum(_peaks(self._workloads, tuple(plans), self._cache)) <= budget_bytes
        return tuple(plans) if fits else None

    def _planned(self, budget_bytes: int, shares: tuple[float, ...], divide: Division | None = None) -> Plans:
        jobs, caps = self._jobs(shares), tuple(self._caps)
        if sum(caps) <= budget_bytes:
            return tuple(job.plans(cap) for job, cap in zip(jobs, caps, strict=True))
        if len(jobs) == 1:
            return (jobs[0].plans(budget_bytes),)
        leasts = tuple(least_bytes(job.workload, self._cache) for job in jobs)
        best: tuple[int, Plans] | None = None
        for _ in range(_DIVISIONS):
            parts = (divide or along_curves)(jobs, leasts, caps, budget_bytes)
            plans = tuple(job.plans(part) for job, part in zip(jobs, parts, strict=True))
            tops = _peaks(self._workloads, plans, self._cache)
            if best is None or sum(tops) < best[0]:
                best = sum(tops), plans
            rows = zip(tops, parts, leasts, strict=True)
            needed = tuple(max(least, top) if top > part else least for top, part, least in rows)
            if sum(tops) <= budget_bytes or needed == leasts:
                break
            leasts = needed
        assert best is not None
        return best[1]

    def _divisions(self, *, most: bool) -> tuple[Division, ...]:
        """Return the ways to divide a budget. Equal parts come first, so that candidates from other budgets do not
        make them differ from plans of jobs alone.
        """
        rates = {workload.max_swapping_rate for workload in self._workloads}
        if len(self._workloads) == 1 or len(rates) > 1:
            return (along_curves,)
        return (equally, by_peak, along_curves, along_steep_curves) if most else (equally, along_curves)

    def _outcome(self, plans: Plans, budget_bytes: int, *, equal: bool) -> DivisionOutcome:
        """Simulate these plans side by side, and compare with the same jobs without plans."""
        if self._apart is None:
            self._apart = self._forecasts(self._unplanned())
        forecasts = self._forecasts(plans)
        after_ns, before_ns = (_with_others(self._workloads, each) for each in (forecasts, self._apart))
        ratios = [after / before for after, before in zip(after_ns, before_ns, strict=True)]
        over = [
            top - most
            for top, most in zip(_peaks(self._workloads, plans, self._cache), self._caps, strict=True)
            if top > most
        ]
        return DivisionOutcome(
            plans=plans,
            equal=equal,
            over_bytes=max(0, sum(_peaks(self._workloads, plans, self._cache)) - budget_bytes) + sum(over),
            slowdown=_total(self._workloads, forecasts),
            device_slowdown=sum(own.operators_ns / ns for own, ns in zip(self._apart, before_ns, strict=True))
            / sum(own.operators_ns / ns for own, ns in zip(self._apart, after_ns, strict=True)),
            unfairness=max(ratios) / (sum(ratios) / len(ratios)),
            worst=max(ratios),
            moved_bytes=sum(forecast.out_bytes + forecast.in_bytes for forecast in forecasts),
        )

    def _forecasts(self, plans: Plans) -> tuple[Forecast, ...]:
        return _forecasts(self._workloads, plans, self._link, self._options.compute, self._cache)

    def _jobs(self, shares: tuple[float, ...]) -> list[JobCandidates]:
        if shares not in self._known:
            self._known[shares] = job_candidates(self._workloads, self._link, shares, self._options, self._cache)
        return self._known[shares]


def lane_shares(workloads: Sequence[Workload], cache: PlanCache | None = None) -> tuple[float, ...]:
    """Return each job's share of both lanes, in proportion to the bytes that it could give up in its time."""
    demands = []
    for workload in workloads:
        above_floor = max(liveness_peak(g, cache) for g in workload.graphs) - least_bytes(workload, cache)
        demands.append(above_floor / workload.step_ns)
    total = sum(demands)
    return tuple(demand / total if demand else 1.0 for demand in demands)


def _peaks(workloads: Sequence[Workload], plans: Plans, cache: PlanCache) -> list[int]:
    return [
        max(peak(graph, plan, cache) for graph, plan in zip(w.graphs, p, strict=True))
        for w, p in zip(workloads, plans, strict=True)
    ]


def _shares(workloads: Sequence[Workload], compute: Compute, cache: PlanCache) -> list[tuple[float, ...]]:
    """Return the ways to share the lanes. Jobs that take turns compute as much slower as they copy slower, so they
    need no shares.
    """
    alone = _alone(workloads)
    if len(workloads) == 1 or compute is Compute.TURNS:
        return [alone]
    return [lane_shares(workloads, cache), alone]


def _alone(workloads: Sequence[Workload]) -> tuple[float, ...]:
    return (1.0,) * len(workloads)


def _equal(workloads: Sequence[Workload]) -> bool:
    """Return whether all jobs are equal except for their ids."""
    first = workloads[0]
    return all(replace(w, job=first.job) == first for w in workloads[1:])


def slowdown(
    workloads: Sequence[Workload],
    plans: Plans,
    link: Link,
    compute: Compute = Compute.OVERLAP,
    *,
    cache: PlanCache | None = None,
) -> float:
    """Return the sum over all jobs, side by side, of the iteration time divided by the time without waits."""
    return _total(workloads, _forecasts(workloads, plans, link, compute, cache))


def _total(workloads: Sequence[Workload], forecasts: Sequence[Forecast]) -> float:
    times = zip(_with_others(workloads, forecasts), workloads, strict=True)
    return sum(ns / max(w.step_ns, w.others_ns) for ns, w in times)


def _with_others(workloads: Sequence[Workload], forecasts: Sequence[Forecast]) -> list[int]:
    """Return the time of each job's iterations, of a rank no less than its other ranks need."""
    return [max(f.iteration_ns, w.others_ns) for f, w in zip(forecasts, workloads, strict=True)]


def _forecasts(
    workloads: Sequence[Workload], plans: Plans, link: Link, compute: Compute, cache: PlanCache | None
) -> tuple[Forecast, ...]:
    runs = [
        JobRun(graph=w.graphs[0], plan=p[0], latency_ns=w.latency_ns[0], copy_loss=w.copy_loss)
        for w, p in zip(workloads, plans, strict=True)
    ]
    return simulate(runs, link, compute=compute, cache=cache)
