"""Zico: two trainings share memory by shifting their iterations in time.

Lim et al., "Zico: Efficient GPU Memory Sharing for Concurrent DNN Training", sections 4 and 5. Zico moves no tensors.
Its plans are liveness plans, and it saves memory between jobs. A job's memory is counted in *regions*: chunks of at
least tens of megabytes that the job gets one after the other as its feature maps grow, and returns in the opposite
order (5.1). The scrooge scheduler delays each iteration by the least time after which the regions of both jobs fit
into the budget at any time (5.2, 5.3; phase_offsets.py). A new job's first iteration runs by itself, to learn its
regions' lifespans (profiling phase). Then the budget is raised in steps up to the real budget while the lifespans are
learnt again from observation (informed phase). If nothing fits beside an iteration, the delay equals the other job's
whole iteration, which is time-multiplexing. More than two jobs are grouped into pairs, each with a budget of its own
(section 4).

Where the paper is silent: the largest job is paired with the smallest, and so on. The budget is divided in proportion
to what pairs would use beyond what they need. If even that does not fit, all jobs take turns, one iteration each. As
in the paper, lifespans are learnt that are stretched by jobs taking turns. Here they follow from the pace at which
jobs advance, so the steps of the informed phase differ only in their budgets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.phases.interleaved_schedule import Schedules
from indb_tensile.scheduler.phases.load_cycle import cycle_of, merge_segments
from indb_tensile.scheduler.phases.phase_offsets import Cycle, Shift, exclusive, interleave, least_budget
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.division import Demand, divide
from indb_tensile.scheduler.policies.policy import FunctionPolicy, Plans
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload

_REGION_BYTES = 64 << 20  # the region size of section 7.4
_LEAST_REGIONS = 16  # the least number of regions of a job that is too small for regions of that size
_INFORMED = (0.7, 0.8, 0.9, 1.0)  # fractions of the way from the least budget to the real one


def zico(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return liveness plans for every graph. The saving is between the jobs: see `shifts`."""
    del budget_bytes, link, rewrites, cache
    plan = Plan(policy="zico")
    return tuple((plan,) * len(workload.graphs) for workload in workloads)


class Zico(FunctionPolicy):
    """The policy: its plans, and its gates as published."""

    def __init__(self) -> None:
        super().__init__("zico", zico)

    def schedules(
        self,
        workloads: Sequence[Workload],
        plans: Plans,
        *,
        budget_bytes: int,
        link: Link,
        compute: Compute = Compute.OVERLAP,
        cache: PlanCache | None = None,
    ) -> Schedules | Infeasible:
        """Return the schedules as published, in pairs. The plans are liveness plans."""
        del plans
        groups = shifts(workloads, budget_bytes=budget_bytes, link=link, compute=compute, cache=cache)
        if isinstance(groups, Infeasible):
            return groups
        return tuple(group.shift.schedule(group.jobs, group.budget_bytes) for group in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifespanRegion:
    """A chunk of memory that a job occupies from operator `first` to operator `last` of its iteration."""

    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs, by position, that share a budget of their own, and the shift of their iterations."""

    jobs: tuple[int, ...]
    budget_bytes: int
    shift: Shift


def regions(own: Cycle, region_bytes: int) -> tuple[LifespanRegion, ...]:
    """Return the regions in the order of allocation. A region lives from the first operator that needs it to the last
    one.
    """
    lifespans = []
    for lower_bytes in range(own.idle_bytes, own.peak_bytes, region_bytes):
        needing = [k for k, load_bytes in enumerate(own.load_bytes) if load_bytes > lower_bytes]
        size_bytes = min(region_bytes, own.peak_bytes - lower_bytes)
        lifespans.append(LifespanRegion(size_bytes=size_bytes, first=needing[0], last=needing[-1]))
    return tuple(lifespans)


def regional(own: Cycle) -> Cycle:
    """Return the job's iteration as Zico's scheduler sees it: the bytes between iterations and its regions."""
    span = own.peak_bytes - own.idle_bytes
    size_bytes = max(1, min(_REGION_BYTES, span // _LEAST_REGIONS))
    load_bytes = [own.idle_bytes] * len(own.load_bytes)
    for region in regions(own, size_bytes):
        for operator in range(region.first, region.last + 1):
            load_bytes[operator] += region.size_bytes
    return replace(own, load_bytes=tuple(load_bytes))


def shifts(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    compute: Compute = Compute.TURNS,
    cache: PlanCache | None = None,
) -> tuple[Group, ...] | Infeasible:
    """Return the pairs of the jobs' training steps, and each pair's time shift under its part of the budget."""
    whole = [regional(cycle_of(w, (LIVENESS,) * len(w.graphs), link, cache)) for w in workloads]
    cycles = [merge_segments(own, len(own.load_bytes)) for own in whole]  # the same, in segments of equal load
    grouped = pairs(cycles)
    budgets = divide([_demand([cycles[job] for job in jobs]) for jobs in grouped], budget_bytes)
    if sum(budgets) > budget_bytes:  # the pairs do not fit even with one job of each pair at a time
        grouped, budgets = (tuple(range(len(cycles))),), (budget_bytes,)
        cycles = exclusive(cycles, budget_bytes)
    groups = []
    for jobs, budget in zip(grouped, budgets, strict=True):
        shift = interleave([cycles[job] for job in jobs], budget_bytes=budget, compute=compute)
        if isinstance(shift, Infeasible):
            return shift
        groups.append(Group(jobs=jobs, budget_bytes=budget, shift=shift))
    return tuple(groups)


def pairs(cycles: Sequence[Cycle]) -> tuple[tuple[int, ...], ...]:
    """Pair the largest job with the smallest, the second largest with the second smallest. A single job
    may be left.
    """
    order = sorted(range(len(cycles)), key=lambda job: (-cycles[job].peak_bytes, job))
    half = len(order) // 2
    grouped = [tuple(sorted((order[k], order[-1 - k]))) for k in range(half)]
    if len(order) % 2:
        grouped.append((order[half],))
    return tuple(sorted(grouped))


def informed(cycles: Sequence[Cycle], *, budget_bytes: int, compute: Compute = Compute.TURNS) -> tuple[Shift, ...]:
    """Return the schedules of the informed phase, which two jobs go through under a budget that rises to the real
    one.

    Empty if not even one iteration at a time fits.
    """
    least = least_budget(cycles)
    if least > budget_bytes:
        return ()
    steps = [least + int((budget_bytes - least) * part) for part in _INFORMED]
    candidate_shifts = [interleave(cycles, budget_bytes=step, compute=compute) for step in steps]
    return tuple(shift for shift in candidate_shifts if isinstance(shift, Shift))


def profiled(cycles: Sequence[Cycle], new: int, progress_ns: Sequence[int | None]) -> int:
    """Return when a new job's first iteration may start so that it runs by itself: when all others have
    ended theirs.
    """
    running = [
        own.period_ns - done_ns
        for job, (own, done_ns) in enumerate(zip(cycles, progress_ns, strict=True))
        if done_ns is not None and job != new
    ]
    return max(running, default=0)


def _demand(cycles: Sequence[Cycle]) -> Demand:
    least = least_budget(cycles)
    return Demand(floor_bytes=least, least_bytes=least, most_bytes=sum(c.peak_bytes for c in cycles))
