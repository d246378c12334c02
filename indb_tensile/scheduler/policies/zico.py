"""Zico: two trainings share memory by shifting their iterations in time.

Lim et al., "Zico: Efficient GPU Memory Sharing for Concurrent DNN Training", sections 4 and 5. Zico moves nothing:
its plans are those of liveness, and what it saves it saves between jobs. A job's memory is counted in *regions*,
chunks of at least tens of megabytes that are given to it one after the other as its feature maps grow and returned in
the opposite order (5.1). The scrooge scheduler delays each iteration by the least time after which the regions of
both jobs fit into the budget at any time (5.2, 5.3; offsets.py). A new job's first iteration runs by itself, to
learn its regions' lifespans (profiling phase). Then the budget is raised in steps up to the real one while those are
learnt again from what was seen (informed phase). Where nothing fits beside an iteration, the delay comes to the
other's whole iteration, which is time-multiplexing. More than two jobs are grouped into pairs, each with a budget of
its own (section 4).

Where the paper is silent: the largest job is paired with the smallest, and so on, and the budget is divided in
proportion to what pairs would take beyond what they need; where even that does not fit, all jobs take turns, an
iteration each. As in the paper, the lifespans that a device with turns stretches are learnt; here they follow from
the pace at which jobs advance, so the steps of the informed phase differ in their budgets alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.phases.cycle import coarse, cycle_of
from indb_tensile.scheduler.phases.phase_offsets import Cycle, Shift, exclusive, interleave, least_budget
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.policies.division import Demand, divide
from indb_tensile.scheduler.timing.simulate import Compute
from indb_tensile.scheduler.workload import Workload

_REGION_BYTES = 64 << 20  # section 7.4
_LEAST_REGIONS = 16  # of a job too small for regions of that size
_INFORMED = (0.7, 0.8, 0.9, 1.0)  # of what lies between the least budget and the real one


def zico(
    workloads: Sequence[Workload], *, budget_bytes: int, link: Link, rewrites: bool = True
) -> tuple[tuple[Plan, ...], ...]:
    """Liveness for every graph: the saving is between the jobs, see `shifts`."""
    del budget_bytes, link, rewrites
    plan = Plan(policy="zico")
    return tuple((plan,) * len(workload.graphs) for workload in workloads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A chunk of memory that a job holds from operator `first` to operator `last` of its iteration."""

    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs, by position, that share a budget of their own, and how their iterations are shifted."""

    jobs: tuple[int, ...]
    budget_bytes: int
    shift: Shift


def regions(own: Cycle, region_bytes: int) -> tuple[Region, ...]:
    """In the order of allocation: each lives from the first operator that needs so many to the last one that does."""
    found = []
    for held in range(own.idle_bytes, own.peak_bytes, region_bytes):
        needing = [k for k, load_bytes in enumerate(own.load_bytes) if load_bytes > held]
        size_bytes = min(region_bytes, own.peak_bytes - held)
        found.append(Region(size_bytes=size_bytes, first=needing[0], last=needing[-1]))
    return tuple(found)


def regional(own: Cycle) -> Cycle:
    """The job's iteration as the scheduler sees it: what it keeps and its regions."""
    span = own.peak_bytes - own.idle_bytes
    size_bytes = max(1, min(_REGION_BYTES, span // _LEAST_REGIONS))
    held = [own.idle_bytes] * len(own.load_bytes)
    for region in regions(own, size_bytes):
        for operator in range(region.first, region.last + 1):
            held[operator] += region.size_bytes
    return replace(own, load_bytes=tuple(held))


def shifts(
    workloads: Sequence[Workload], *, budget_bytes: int, link: Link, compute: Compute = Compute.TURNS
) -> tuple[Group, ...] | Infeasible:
    """How the jobs' training steps are paired, and each pair's time shift under its part of the budget."""
    whole = [regional(cycle_of(w, (LIVENESS,) * len(w.graphs), link)) for w in workloads]
    cycles = [coarse(own, len(own.load_bytes)) for own in whole]  # the same, in stretches of equal load
    grouped = pairs(cycles)
    budgets = divide([_demand([cycles[job] for job in jobs]) for jobs in grouped], budget_bytes)
    if sum(budgets) > budget_bytes:  # not even with one job of each pair at a time
        grouped, budgets = (tuple(range(len(cycles))),), (budget_bytes,)
        cycles = exclusive(cycles, budget_bytes)
    found = []
    for jobs, budget in zip(grouped, budgets, strict=True):
        shift = interleave([cycles[job] for job in jobs], budget_bytes=budget, compute=compute)
        if isinstance(shift, Infeasible):
            return shift
        found.append(Group(jobs=jobs, budget_bytes=budget, shift=shift))
    return tuple(found)


def pairs(cycles: Sequence[Cycle]) -> tuple[tuple[int, ...], ...]:
    """The largest job with the smallest, the second largest with the second smallest; a single one may be left."""
    order = sorted(range(len(cycles)), key=lambda job: (-cycles[job].peak_bytes, job))
    half = len(order) // 2
    found = [tuple(sorted((order[k], order[-1 - k]))) for k in range(half)]
    if len(order) % 2:
        found.append((order[half],))
    return tuple(sorted(found))


def informed(cycles: Sequence[Cycle], *, budget_bytes: int, compute: Compute = Compute.TURNS) -> tuple[Shift, ...]:
    """The informed phase: the schedules that two jobs go through, under a budget that rises to the real one.

    Empty where not even one iteration at a time fits.
    """
    least = least_budget(cycles)
    if least > budget_bytes:
        return ()
    steps = [least + int((budget_bytes - least) * part) for part in _INFORMED]
    found = [interleave(cycles, budget_bytes=step, compute=compute) for step in steps]
    return tuple(shift for shift in found if isinstance(shift, Shift))


def profiled(cycles: Sequence[Cycle], new: int, progress_ns: Sequence[int | None]) -> int:
    """When a new job's first iteration may start so that it runs by itself: when all others have ended theirs."""
    running = [
        own.period_ns - done_ns
        for job, (own, done_ns) in enumerate(zip(cycles, progress_ns, strict=True))
        if done_ns is not None and job != new
    ]
    return max(running, default=0)


def _demand(cycles: Sequence[Cycle]) -> Demand:
    least = least_budget(cycles)
    return Demand(floor_bytes=least, least_bytes=least, most_bytes=sum(c.peak_bytes for c in cycles))
