"""Shared by the benchmarks of policies: jobs to plan for, rows of figures, and which points cover which.

A *point* is the result of one plan: a peak and a time. A policy that takes a budget plans for many, so it has a curve
of points. One policy *covers* a point of another if it has a point that is no worse in both. Planning time is that of
the policy's own call, in this process. Every other figure is the simulator's and the same on any machine.

EOR (`eor`) is the time of an iteration over its time without planning, MSR (`msr_…`) the share of the vanilla or
liveness peak that a plan saves, and CBR (`cbr`) MSR over EOR.
"""

import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan_cache import GraphTable, PlanCache
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.policies.policy import PlanOptions, Plans
from indb_tensile.scheduler.score import Baseline, Score, baselines, overhead, score
from indb_tensile.scheduler.timing import machines
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.machines import Machine
from indb_tensile.scheduler.workload import Workload

Row = dict[str, Any]

MINCUT = "activation_memory_budget"  # PyTorch's own setting: bench/harness/planning/mincut.py
TARGETS = (1.02, 1.10)  # overheads at which policies are compared by memory
SHARES = (0.5, 0.7)  # shares of the liveness peak at which policies are compared by time
MIB = 1024**2
_OF_ONE: GraphTable[tuple[Plans, float]] = GraphTable(most=512)  # plans for one job, of policies that plan jobs apart
_SUMMED = (
    *("vanilla_peak_bytes", "liveness_peak_bytes", "floor_bytes", "planned_floor_bytes", "peak_bytes"),
    *("iteration_us", "compute_us", "stall_out_us", "stall_in_us", "upload_us", "turn_us"),
    *("out_bytes", "in_bytes", "swaps", "executions_more"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningCase:
    """Jobs on one machine with one link, and their memory and time without planning."""

    labels: Row  # fields that identify the case in its rows
    workloads: tuple[Workload, ...]
    link: Link
    compute: Compute
    baselines: tuple[Baseline, ...]
    cache: PlanCache = field(default_factory=PlanCache, compare=False, repr=False)

    @property
    def equal(self) -> bool:
        """Return whether all jobs train the same graph."""
        return all(workload.graphs == self.workloads[0].graphs for workload in self.workloads)

    @property
    def floor_bytes(self) -> int:
        """Return the sum of the jobs' floors. No plan that keeps the captured operators goes below it."""
        return sum(baseline.floor_bytes for baseline in self.baselines)

    @property
    def liveness_peak_bytes(self) -> int:
        """Return the sum of the jobs' peaks without planning."""
        return sum(baseline.liveness_peak_bytes for baseline in self.baselines)


def make_case(
    graphs: Sequence[StepGraph],
    machine: Machine,
    link_gb_s: float,
    *,
    labels: Row,
    compute: Compute = Compute.OVERLAP,
) -> PlanningCase:
    """Return a case with one job for each graph, with the machine's latencies."""
    link = machines.link(link_gb_s)
    workloads = tuple(
        Workload(job=JobId(number), graphs=(graph,), latency_ns=(machines.latencies(graph, machine),))
        for number, graph in enumerate(graphs, start=1)
    )
    return PlanningCase(
        labels={**labels, "machine": machine.name, "link_gb_s": link_gb_s},
        workloads=workloads,
        link=link,
        compute=compute,
        baselines=baselines(workloads, link, compute=compute),
    )


@dataclass(slots=True)
class PolicyTrial:
    """One policy on one case. Asked for many budgets, it yields a row for each new plan."""

    case: PlanningCase
    policy: str
    rows: list[Row] = field(default_factory=list)
    plans: list[Plans] = field(default_factory=list)  # one for each row
    _eor: dict[Plans, float] = field(default_factory=dict)
    _planned_eor: dict[int, float] = field(default_factory=dict)  # overhead of the plan for each budget

    def ask(self, budget_bytes: int) -> Iterator[Row]:
        """Plan for this budget, and yield the plan's row if it is new."""
        if budget_bytes in self._planned_eor:
            return
        plans, planning_ms = timed(self.case, self.policy, budget_bytes)
        yield from self.give(plans, planning_ms, budget_bytes)
        self._planned_eor[budget_bytes] = self._eor[plans]

    def give(self, plans: Plans, planning_ms: float, budget_bytes: int | None = None) -> Iterator[Row]:
        """Yield the row of these plans if they are new. `budget_bytes` is None if they have no budget in bytes."""
        if plans not in self._eor:
            self.plans.append(plans)
            self.rows.append(self._row(plans, budget_bytes, planning_ms))
            self._eor[plans] = self.rows[-1]["eor"]
            yield self.rows[-1]

    def _row(self, plans: Plans, budget_bytes: int | None, planning_ms: float) -> Row:
        case = self.case
        scores = score(
            case.workloads, plans, case.link, against=case.baselines, compute=case.compute, cache=case.cache
        )
        return {
            **case.labels,
            "policy": self.policy,
            "budget_bytes": budget_bytes,
            **total(scores),
            "planning_ms": round(planning_ms, 3),
        }

    def least_memory(self, overhead: float, steps: int) -> Iterator[Row]:
        """Bisect between the least budget that meets `overhead` and the next smaller one. Yields the new rows."""
        for _ in range(steps):
            within = [budget_bytes for budget_bytes, eor in self._planned_eor.items() if eor <= overhead]
            high = min(within, default=self.case.liveness_peak_bytes)
            low = max((budget_bytes for budget_bytes in self._planned_eor if budget_bytes < high), default=high)
            if low < self.case.floor_bytes or high - low < MIB:
                return
            yield from self.ask((low + high) // 2)


def timed(case: PlanningCase, policy: str, budget_bytes: int) -> tuple[Plans, float]:
    """Return the policy's plans for this budget, and the milliseconds that planning took.

    A policy that plans jobs apart is called once for equal jobs, and its plan is reused for any number of them.
    """
    if not (POLICIES[policy].plans_jobs_apart and case.equal):
        return _timed(case, case.workloads, policy, budget_bytes)
    job, count = case.workloads[0], len(case.workloads)
    key = (policy, job.latency_ns, case.link, budget_bytes // count)
    (plans,), planning_ms = _OF_ONE.get(
        job.graphs[0], key, lambda: _timed(case, (job,), policy, budget_bytes // count)
    )
    return (plans,) * count, planning_ms


def _timed(case: PlanningCase, workloads: Sequence[Workload], policy: str, budget_bytes: int) -> tuple[Plans, float]:
    start_ns = time.perf_counter_ns()
    plans = POLICIES[policy].plan(
        workloads,
        budget_bytes=budget_bytes,
        link=case.link,
        options=PlanOptions(compute=case.compute),
        cache=case.cache,
    )
    return plans, (time.perf_counter_ns() - start_ns) / 1e6


def total(scores: Sequence[Score]) -> Row:
    """Return the figures of all jobs together. Bytes and times are added up; the overhead is the device's."""
    each = [job.figures() for job in scores]
    if len(each) == 1:
        return each[0]
    sums = {name: sum(figures[name] for figures in each) for name in _SUMMED}
    saved = {base: 1 - sums["peak_bytes"] / sums[f"{base}_peak_bytes"] for base in ("vanilla", "liveness")}
    eor = overhead([job.baseline for job in scores], [job.forecast.iteration_ns for job in scores])
    return {
        **sums,
        "bound_bytes": None,
        "msr_vanilla": round(saved["vanilla"], 6),
        "msr_liveness": round(saved["liveness"], 6),
        "eor": round(eor, 6),
        "eor_worst": round(max(job.eor for job in scores), 6),
        "cbr": round(saved["liveness"] / eor, 6),
        "faults": [f"job {number}: {fault}" for number, job in enumerate(scores, start=1) for fault in job.faults],
    }


def sweep(
    case: PlanningCase,
    policies: Sequence[str],
    *,
    budgets: int,
    refine: int,
    rival_plans: Iterable[tuple[str, Plans, float]] = (),
    beside: Sequence[Row] = (),
    then: Callable[["PolicyTrial"], Iterator[Row]] = lambda _: iter(()),
) -> Iterator[Row]:
    """Yield rows of these policies on this case. Our own policy comes last and also plans for each rival's peak.

    `rival_plans` are plans of rivals that are no policies: the rival's name, its plans and their milliseconds.
    `beside` has rows of rivals from earlier runs. `then` yields more rows after each policy, from its trial.
    """
    all_budgets = budgets_of(case, budgets)
    rivals = list(beside)
    others: dict[str, PolicyTrial] = {}
    for rival, plans, planning_ms in rival_plans:
        trial = others.setdefault(rival, PolicyTrial(case, rival))
        for row in trial.give(plans, planning_ms):
            rivals.append(row)
            yield row
    for policy in sorted(policies, key=lambda name: (name == DEFAULT_POLICY, name)):
        trial = PolicyTrial(case, policy)
        for budget_bytes in all_budgets:
            yield from trial.ask(budget_bytes)
        if len(trial.rows) > 1:  # a policy that ignores budgets always gives the same plan
            for target in TARGETS:
                yield from trial.least_memory(target, refine)
        if policy == DEFAULT_POLICY:
            for row in rivals:
                if not covered(row, trial.rows):
                    yield from trial.ask(row["peak_bytes"])
        rivals += trial.rows
        yield from then(trial)


def budgets_of(case: PlanningCase, count: int) -> tuple[int, ...]:
    """Return budgets from the liveness peak to the floor, those of SHARES, and 0 for the least possible memory."""
    jobs = len(case.workloads)
    high, low = case.liveness_peak_bytes // jobs, case.floor_bytes // jobs  # equal jobs get equal budgets
    even = [jobs * (high - (high - low) * step // max(1, count - 1)) for step in range(count)]
    shares = [jobs * round(share * high) for share in SHARES if share * high >= low]
    return (*sorted({*even, *shares}, reverse=True), 0)


# --- coverage ---------------------------------------------------------------------------------------------------


def covered(point: Row, ours: Iterable[Row]) -> bool:
    """Return whether a sound point of ours is no worse than this one, in memory and in time."""
    return any(
        row["peak_bytes"] <= point["peak_bytes"] and row["eor"] <= point["eor"] for row in ours if not row["faults"]
    )


def best_msr(rows: Iterable[Row], overhead: float, against: str = "liveness") -> float | None:
    """Return the largest saving at no more than this overhead; None if no sound row has it."""
    return max((row[f"msr_{against}"] for row in sound(rows) if row["eor"] <= overhead), default=None)


def best_eor(rows: Iterable[Row], budget_bytes: float) -> float | None:
    """Return the least overhead within this budget; None if no sound row meets it."""
    return min((row["eor"] for row in sound(rows) if row["peak_bytes"] <= budget_bytes), default=None)


def group_by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of these fields, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def sound(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows whose plans break no rule."""
    return (row for row in rows if not row["faults"])


def phased(policy: str) -> str:
    """Return the name of this policy with jobs that start their iterations in phases (bench/commands/multi.py)."""
    return f"{policy} in phases"


# --- reading and writing rows ---------------------------------------------------------------------------------


def known_policies(names: Sequence[str], *others: str) -> tuple[str, ...]:
    """Return `names`, or all policies and `others` if it is empty. Raises MissingError for an unknown name."""
    known = (*POLICIES, *others)
    for name in names:
        if name not in known:
            raise MissingError(f"there is no policy '{name}'", hint=f"Policies are: {', '.join(sorted(known))}.")
    return tuple(names) or known


def stamped(row: Row) -> str:
    """Return the row as one line of JSON, with the date and the host of the planning."""
    return json.dumps({"date": date.today().isoformat(), "host": _host(), **row})


def recorded(paths: Sequence[str]) -> Iterator[Row]:
    """Yield rows from files that --json wrote, so that a long comparison can run in parts.

    Raises MissingError or RequestError for a file that is missing or has other contents.
    """
    for path in paths:
        try:
            with Path(path).open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)
        except FileNotFoundError:
            raise MissingError(f"there is no file {path}", hint="Give a file that --json wrote.") from None
        except ValueError as error:
            raise RequestError(f"{path} holds no rows: {error}", hint="Give a file that --json wrote.") from error


def _host() -> str:
    """Return the number and model of this machine's processors, since planning times depend on them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        models = []
    return f"{len(models)} x {models[0]}" if models else platform.processor() or platform.machine()
