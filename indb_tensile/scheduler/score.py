"""What plans are worth: every figure that the benchmark, `tensile plan` and `explain` print, from one simulator.

The papers' memory saving ratio (MSR) is measured against a framework that frees nothing within an iteration. PyTorch
frees a tensor after its last use, so a ratio against that is given as well, and is the honest one. The extra overhead
ratio (EOR) is iteration time over that of the liveness plan, here of the same jobs beside each other, in the same
simulation; the cost-benefit ratio (CBR) is the saving over it (TENSILE section V). Beside a job that is alone stands
the least peak that any plan of that iteration time can have (judges/bound.py); for several jobs none is proven.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.scheduler.judges.bound import bound_bytes, covers
from indb_tensile.scheduler.judges.bound import least_bytes as least_peak_bytes
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak, peak, vanilla_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate import Compute, Forecast, JobRun, simulate
from indb_tensile.scheduler.workload import Workload, least_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What one job needs and takes without planning, beside the other jobs."""

    vanilla_peak_bytes: int  # nothing is freed within the iteration
    liveness_peak_bytes: int  # freed after the last access
    floor_bytes: int  # the largest operator alone
    iteration_ns: int  # under the liveness plan
    compute_ns: int  # of it, its own operators


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One job under its plans. Peaks are the largest of its graphs, times those of its training step."""

    baseline: Baseline
    forecast: Forecast
    peak_bytes: int
    planned_floor_bytes: int  # the largest operator alone, once operators were split and moved
    bound_bytes: int | None  # no plan that is not slower has a lower peak; None where none is proven
    executions_more: int  # operators run again or in parts, beyond one execution each
    swaps: int
    faults: tuple[str, ...]

    @property
    def msr_vanilla(self) -> float:
        """What is saved of the peak of a framework that frees nothing."""
        return _saved(self.peak_bytes, self.baseline.vanilla_peak_bytes)

    @property
    def msr_liveness(self) -> float:
        """What is saved of the peak that PyTorch would have."""
        return _saved(self.peak_bytes, self.baseline.liveness_peak_bytes)

    @property
    def eor(self) -> float:
        """Time for each iteration over that without planning; 1 is no overhead."""
        return self.forecast.iteration_ns / self.baseline.iteration_ns

    @property
    def cbr(self) -> float:
        """What is saved of PyTorch's peak, over what it costs."""
        return self.msr_liveness / self.eor

    def figures(self) -> dict[str, Any]:
        """Every figure under the name that it is printed with."""
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
    workloads: Sequence[Workload], link: Link, *, compute: Compute = Compute.OVERLAP
) -> tuple[Baseline, ...]:
    """The jobs without planning, side by side."""
    runs = [JobRun(graph=w.graphs[0], plan=LIVENESS, latency_ns=w.latency_ns[0]) for w in workloads]
    return tuple(
        Baseline(
            vanilla_peak_bytes=max(vanilla_peak(graph) for graph in workload.graphs),
            liveness_peak_bytes=max(liveness_peak(graph) for graph in workload.graphs),
            floor_bytes=least_bytes(workload),
            iteration_ns=forecast.iteration_ns,
            compute_ns=forecast.compute_ns,
        )
        for workload, forecast in zip(workloads, simulate(runs, link, compute=compute), strict=True)
    )


def score(
    workloads: Sequence[Workload],
    plans: Sequence[tuple[Plan, ...]],
    link: Link,
    *,
    against: Sequence[Baseline] | None = None,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
) -> tuple[Score, ...]:
    """Simulate the jobs under their plans, side by side, and judge each plan by judges/check.py.

    A plan that breaks a rule is worth nothing: its job is scored as without planning, with the faults beside.
    `against` are the jobs' baselines on this link where they are known already. The jobs pass the gates of
    `schedules`, whose jobs are positions among them, where no plan breaks a rule.
    """
    bases = baselines(workloads, link, compute=compute) if against is None else against
    broken = [_faults(workload, chosen) for workload, chosen in zip(workloads, plans, strict=True)]
    followed = [(LIVENESS,) * len(chosen) if wrong else chosen for chosen, wrong in zip(plans, broken, strict=True)]
    runs = [
        JobRun(graph=workload.graphs[0], plan=chosen[0], latency_ns=workload.latency_ns[0])
        for workload, chosen in zip(workloads, followed, strict=True)
    ]
    forecasts = simulate(runs, link, compute=compute, schedules=() if any(broken) else schedules)
    alone = len(runs) == 1
    bounds = [_bound(*one, link) if alone else None for one in zip(workloads, followed, forecasts, strict=True)]
    return tuple(_score(*one) for one in zip(workloads, followed, bases, forecasts, bounds, broken, strict=True))


def overhead(bases: Sequence[Baseline], iteration_ns: Sequence[int]) -> float:
    """How much more time the device takes for the same work of all jobs.

    Not the mean of the jobs' ratios: where jobs take turns, one that waits lets the others run faster, and a plan
    that stalls the largest job would look like a gain.
    """
    before = sum(base.compute_ns / base.iteration_ns for base in bases)
    after = sum(base.compute_ns / ns for base, ns in zip(bases, iteration_ns, strict=True))
    return before / after


def _saved(peak_bytes: int, of_bytes: int) -> float:
    """The share of memory that is saved; 0 where the operators hold no bytes."""
    return 1 - peak_bytes / of_bytes if of_bytes else 0.0


def _score(
    workload: Workload,
    plans: tuple[Plan, ...],
    baseline: Baseline,
    forecast: Forecast,
    bound: int | None,
    broken: tuple[str, ...],
) -> Score:
    pairs = list(zip(workload.graphs, plans, strict=True))
    return Score(
        baseline=baseline,
        forecast=forecast,
        peak_bytes=max(peak(graph, plan) for graph, plan in pairs),
        planned_floor_bytes=max(floor(effective(graph, plan)) for graph, plan in pairs),
        bound_bytes=bound,
        executions_more=sum(max(0, len(plan.executions) - len(graph.operators)) for graph, plan in pairs[:1]),
        swaps=len(plans[0].swaps),
        faults=broken,
    )


def _bound(workload: Workload, plans: tuple[Plan, ...], forecast: Forecast, link: Link) -> int | None:
    """Of the training step in its time, of other graphs whatever the time. No lane is faster than what it copies."""
    step, plan = workload.graphs[0], plans[0]
    if not all(covers(graph, chosen) for graph, chosen in zip(workload.graphs, plans, strict=True)):
        return None
    tensors = effective(step, plan).tensors
    sizes = [(tensors[swap.tensor].size_bytes, swap.copies) for swap in plan.swaps]
    in_ns = sum(link.in_ns(size_bytes) for size_bytes, _ in sizes)
    out_ns = sum(link.out_ns(size_bytes) for size_bytes, copies in sizes if copies)
    time_ns = max(forecast.iteration_ns, in_ns, out_ns)
    found = bound_bytes(step, workload.latency_ns[0], link, time_ns)
    return max([found, *(least_peak_bytes(graph) for graph in workload.graphs[1:])])


def _faults(workload: Workload, plans: tuple[Plan, ...]) -> tuple[str, ...]:
    """In the order of the graphs, each fault with its graph's number where there are several."""
    several = len(plans) > 1
    found = []
    for number, (graph, plan) in enumerate(zip(workload.graphs, plans, strict=True)):
        found += [f"graph {number}: {fault}" if several else fault for fault in faults(graph, plan)]
    return tuple(found)
