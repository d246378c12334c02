"""Evaluate plans: every figure that the benchmark, `tensile plan` and `explain` print comes from this module.

The papers' memory saving ratio (MSR) compares with a framework that frees nothing within an iteration. PyTorch frees
a tensor after its last use, so we also give the ratio against PyTorch, with which users would otherwise train. The
extra overhead ratio (EOR) is the iteration time divided by that of the liveness plan, for the same jobs side by side
in the same simulation. The cost-benefit ratio (CBR) is the saving divided by the EOR (TENSILE section V). For a job
that runs alone we also give the least peak that any plan of that iteration time can have (judges/peak_bound.py). For
several jobs no such bound is proven.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.judges.peak_bound import bound_bytes, covers
from indb_tensile.scheduler.judges.peak_bound import least_bytes as least_peak_bytes
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak, peak, vanilla_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import CachedKind, PlanCache, cached
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast, JobRun
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload, least_bytes

# Computing a bound takes longer than the rest of a score. Plans with equal iteration times have equal bounds.
_BOUNDS: CachedKind[int] = CachedKind(name="bounds", most=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The memory and time of one job without planning, beside the other jobs."""

    vanilla_peak_bytes: int  # if nothing is freed within the iteration
    liveness_peak_bytes: int  # if tensors are freed after their last access
    floor_bytes: int  # working set of the largest operator
    iteration_ns: int  # under the liveness plan
    compute_ns: int  # the part of iteration_ns during which the job's own operators run


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The figures of one job under its plans. Peaks are the largest of its graphs, times those of its
    training step.
    """

    baseline: Baseline
    forecast: Forecast
    peak_bytes: int
    planned_floor_bytes: int  # working set of the largest operator after operators were split and moved
    bound_bytes: int | None  # A lower bound of the peak of every plan that is not slower. None if no bound is proven.
    executions_more: int  # number of executions beyond one for each operator: operators run again or in parts
    swaps: int
    faults: tuple[str, ...]

    @property
    def msr_vanilla(self) -> float:
        """The saved share of the peak of a framework that frees nothing."""
        return _saved(self.peak_bytes, self.baseline.vanilla_peak_bytes)

    @property
    def msr_liveness(self) -> float:
        """The saved share of the peak that PyTorch has."""
        return _saved(self.peak_bytes, self.baseline.liveness_peak_bytes)

    @property
    def eor(self) -> float:
        """The iteration time divided by the time without planning; 1 is no overhead."""
        return self.forecast.iteration_ns / self.baseline.iteration_ns

    @property
    def cbr(self) -> float:
        """The saved share of PyTorch's peak, divided by the overhead ratio."""
        return self.msr_liveness / self.eor

    def figures(self) -> dict[str, Any]:
        """Return every figure under the name with which it is printed."""
        forecast = self.forecast
        return {
            "vanilla_peak_bytes": self.baseline.vanilla_peak_bytes,
            "liveness_peak_bytes": self.baseline.liveness_peak_bytes,
            "floor_bytes": self.baseline.floor_bytes,
            "planned_floor_bytes": self.planned_floor_bytes,
            "bound_bytes": self.bound_bytes,
            "peak_bytes": self.peak_bytes,
            "msr_vanilla": round(self.msr_vanilla, 6),
            "msr_liveness": round(self.msr_liveness, 6),
            "iteration_us": forecast.iteration_ns / 1000,
            "eor": round(self.eor, 6),
            "cbr": round(self.cbr, 6),
            "compute_us": forecast.compute_ns / 1000,
            "stall_out_us": forecast.stall_out_ns / 1000,
            "stall_in_us": forecast.stall_in_ns / 1000,
            "upload_us": forecast.upload_ns / 1000,
            "turn_us": forecast.turn_ns / 1000,
            "out_bytes": forecast.out_bytes,
            "in_bytes": forecast.in_bytes,
            "swaps": self.swaps,
            "executions_more": self.executions_more,
            "faults": list(self.faults),
        }


def baselines(
    workloads: Sequence[Workload],
    link: Link,
    *,
    compute: Compute = Compute.OVERLAP,
    cache: PlanCache | None = None,
) -> tuple[Baseline, ...]:
    """Return the baselines of the jobs, which run side by side without planning."""
    runs = [JobRun(graph=w.graphs[0], plan=LIVENESS, latency_ns=w.latency_ns[0]) for w in workloads]
    return tuple(
        Baseline(
            vanilla_peak_bytes=max(vanilla_peak(graph, cache) for graph in workload.graphs),
            liveness_peak_bytes=max(liveness_peak(graph, cache) for graph in workload.graphs),
            floor_bytes=least_bytes(workload, cache),
            iteration_ns=forecast.iteration_ns,
            compute_ns=forecast.compute_ns,
        )
        for workload, forecast in zip(workloads, simulate(runs, link, compute=compute, cache=cache), strict=True)
    )


def score(
    workloads: Sequence[Workload],
    plans: Sequence[tuple[Plan, ...]],
    link: Link,
    *,
    against: Sequence[Baseline] | None = None,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
    cache: PlanCache | None = None,
) -> tuple[Score, ...]:
    """Simulate the jobs side by side under their plans, and check each plan by judges/check.py.

    A plan that breaks a rule is worth nothing: its job is scored as if it had no plan, and the score lists the
    faults. `against` are the jobs' baselines on this link, if they are already known. The jobs pass the gates of
    `schedules`, which refer to jobs by position, only if no plan breaks a rule.
    """
    kept = PlanCache() if cache is None else cache
    bases = baselines(workloads, link, compute=compute, cache=kept) if against is None else against
    broken = [_faults(workload, chosen) for workload, chosen in zip(workloads, plans, strict=True)]
    followed = [(LIVENESS,) * len(chosen) if wrong else chosen for chosen, wrong in zip(plans, broken, strict=True)]
    runs = [
        JobRun(graph=workload.graphs[0], plan=chosen[0], latency_ns=workload.latency_ns[0])
        for workload, chosen in zip(workloads, followed, strict=True)
    ]
    forecasts = simulate(runs, link, compute=compute, schedules=() if any(broken) else schedules, cache=kept)
    alone = len(runs) == 1
    bounds = [
        _bound(*arguments, link, kept) if alone else None
        for arguments in zip(workloads, followed, forecasts, strict=True)
    ]
    return tuple(
        _score(*arguments, cache=kept)
        for arguments in zip(workloads, followed, bases, forecasts, bounds, broken, strict=True)
    )


def overhead(bases: Sequence[Baseline], iteration_ns: Sequence[int]) -> float:
    """Return how much more time the device takes for the same work of all jobs.

    This is not the mean of the jobs' ratios. If jobs take turns, a waiting job lets the others run faster, and a plan
    that stalls the largest job would look like a gain.
    """
    before = sum(base.compute_ns / base.iteration_ns for base in bases)
    after = sum(base.compute_ns / ns for base, ns in zip(bases, iteration_ns, strict=True))
    return before / after


def _saved(peak_bytes: int, of_bytes: int) -> float:
    """Return the share of memory that is saved; 0 if the operators occupy no bytes."""
    return 1 - peak_bytes / of_bytes if of_bytes else 0.0


def _score(
    workload: Workload,
    plans: tuple[Plan, ...],
    baseline: Baseline,
    forecast: Forecast,
    bound: int | None,
    broken: tuple[str, ...],
    *,
    cache: PlanCache,
) -> Score:
    pairs = list(zip(workload.graphs, plans, strict=True))
    return Score(
        baseline=baseline,
        forecast=forecast,
        peak_bytes=max(peak(graph, plan, cache) for graph, plan in pairs),
        planned_floor_bytes=max(floor(effective(graph, plan, cache)) for graph, plan in pairs),
        bound_bytes=bound,
        executions_more=sum(max(0, len(plan.executions) - len(graph.operators)) for graph, plan in pairs[:1]),
        swaps=len(plans[0].swaps),
        faults=broken,
    )


def _bound(
    workload: Workload, plans: tuple[Plan, ...], forecast: Forecast, link: Link, cache: PlanCache
) -> int | None:
    """Return the least possible peak of the training step in its time and of the other graphs in any time.

    The time counts at least as much as the copies on each lane take, because no lane is faster.
    """
    step, plan = workload.graphs[0], plans[0]
    if not all(covers(graph, chosen) for graph, chosen in zip(workload.graphs, plans, strict=True)):
        return None
    tensors = effective(step, plan, cache).tensors
    sizes = [(tensors[swap.tensor].size_bytes, swap.copies) for swap in plan.swaps]
    in_ns = sum(link.in_ns(size_bytes) for size_bytes, _ in sizes)
    out_ns = sum(link.out_ns(size_bytes) for size_bytes, copies in sizes if copies)
    time_ns = max(forecast.iteration_ns, in_ns, out_ns)
    latency_ns = tuple(workload.latency_ns[0])
    step_bound = cached(
        cache, _BOUNDS, step, (latency_ns, link, time_ns), lambda: bound_bytes(step, latency_ns, link, time_ns)
    )
    return max([step_bound, *(least_peak_bytes(graph) for graph in workload.graphs[1:])])


def _faults(workload: Workload, plans: tuple[Plan, ...]) -> tuple[str, ...]:
    """Return the faults in the order of the graphs. Each has its graph's number if there are several graphs."""
    several = len(plans) > 1
    messages = []
    for number, (graph, plan) in enumerate(zip(workload.graphs, plans, strict=True)):
        messages += [f"graph {number}: {fault}" if several else fault for fault in faults(graph, plan)]
    return tuple(messages)
