"""What the benchmarks of policies share: jobs to plan for, rows of figures, and which points others cover.

A *point* is what one plan reaches: a peak and a time. A policy that takes a budget is asked for many, so it has a
curve of points; one policy *covers* a point of another where it has a point that is no worse in both. Planning time
is that of the policy's own call, in this process; every other figure is the simulator's and the same on any machine.
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
from indb_tensile.scheduler import machines
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.machines import Machine
from indb_tensile.scheduler.memo import Memo
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies import DEFAULT_POLICY, PER_JOB, POLICIES
from indb_tensile.scheduler.policies.tensile_plus import tensile_plus
from indb_tensile.scheduler.score import Baseline, Score, baselines, overhead, score
from indb_tensile.scheduler.simulate import Compute
from indb_tensile.scheduler.workload import Workload

Row = dict[str, Any]
Plans = tuple[tuple[Plan, ...], ...]

MINCUT = "activation_memory_budget"  # PyTorch's own: bench/mincut.py
TARGETS = (1.02, 1.10)  # overheads at which the least memory is asked for
SHARES = (0.5, 0.7)  # of the liveness peak, at which the least time is asked for
MIB = 1024**2
_OF_ONE: Memo[tuple[Plans, float]] = Memo(most=512)  # what policies that plan jobs by themselves plan for one
_SUMMED = (
    *("vanilla_peak_bytes", "liveness_peak_bytes", "floor_bytes", "planned_floor_bytes", "peak_bytes"),
    *("iteration_us", "compute_us", "stall_out_us", "stall_in_us", "upload_us", "turn_us"),
    *("out_bytes", "in_bytes", "swaps", "executions_more"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Jobs on one machine with one link, and what they need and take without planning."""

    labels: Row  # what the case is called in its rows
    workloads: tuple[Workload, ...]
    link: Link
    compute: Compute
    baselines: tuple[Baseline, ...]

    @property
    def equal(self) -> bool:
        """Whether all jobs train the same graph."""
        return all(one.graphs == self.workloads[0].graphs for one in self.workloads)

    @property
    def floor_bytes(self) -> int:
        """No plan as captured goes below it."""
        return sum(one.floor_bytes for one in self.baselines)

    @property
    def liveness_peak_bytes(self) -> int:
        """What is needed without planning."""
        return sum(one.liveness_peak_bytes for one in self.baselines)


def make_case(
    graphs: Sequence[StepGraph],
    machine: Machine,
    link_gb_s: float,
    *,
    labels: Row,
    compute: Compute = Compute.OVERLAP,
) -> Case:
    """One job for each graph, with the machine's latencies."""
    link = machines.link(link_gb_s)
    workloads = tuple(
        Workload(job=JobId(number), graphs=(graph,), latency_ns=(machines.latencies(graph, machine),))
        for number, graph in enumerate(graphs, start=1)
    )
    return Case(
        labels={**labels, "machine": machine.name, "link_gb_s": link_gb_s},
        workloads=workloads,
        link=link,
        compute=compute,
        baselines=baselines(workloads, link, compute=compute),
    )


@dataclass(slots=True)
class Trial:
    """One policy on one case: asked for many budgets, it yields a row for each plan that it did not give before."""

    case: Case
    policy: str
    rows: list[Row] = field(default_factory=list)
    plans: list[Plans] = field(default_factory=list)  # of each row
    _eor: dict[Plans, float] = field(default_factory=dict)
    _asked: dict[int, float] = field(default_factory=dict)  # by budget, the overhead that came of it

    def ask(self, budget_bytes: int) -> Iterator[Row]:
        """The row of the plan for this budget, where that is a new one."""
        if budget_bytes in self._asked:
            return
        plans, planning_ms = timed(self.case, self.policy, budget_bytes)
        yield from self.give(plans, planning_ms, budget_bytes)
        self._asked[budget_bytes] = self._eor[plans]

    def give(self, plans: Plans, planning_ms: float, budget_bytes: int | None = None) -> Iterator[Row]:
        """The row of these plans, where they are new ones; without a budget where none in bytes was asked for."""
        if plans not in self._eor:
            self.plans.append(plans)
            self.rows.append(self._row(plans, budget_bytes, planning_ms))
            self._eor[plans] = self.rows[-1]["eor"]
            yield self.rows[-1]

    def _row(self, plans: Plans, budget_bytes: int | None, planning_ms: float) -> Row:
        case = self.case
        scores = score(case.workloads, plans, case.link, against=case.baselines, compute=case.compute)
        return {
            **case.labels,
            "policy": self.policy,
            "budget_bytes": budget_bytes,
            **total(scores),
            "planning_ms": round(planning_ms, 3),
        }

    def least_memory(self, overhead: float, steps: int) -> Iterator[Row]:
        """Halve the distance between the budgets just below and just above what this overhead allows."""
        for _ in range(steps):
            within = [budget_bytes for budget_bytes, eor in self._asked.items() if eor <= overhead]
            high = min(within, default=self.case.liveness_peak_bytes)
            low = max((budget_bytes for budget_bytes in self._asked if budget_bytes < high), default=high)
            if low < self.case.floor_bytes or high - low < MIB:
                return
            yield from self.ask((low + high) // 2)


def timed(case: Case, policy: str, budget_bytes: int) -> tuple[Plans, float]:
    """What this policy plans for this budget, and how many milliseconds that took.

    One that plans each job by itself is asked once for equal jobs, and once however many there are of them.
    """
    if policy not in PER_JOB or not case.equal:
        return _timed(case.workloads, policy, budget_bytes, case.link, case.compute)
    one, count = case.workloads[0], len(case.workloads)
    key = (policy, one.latency_ns, case.link, budget_bytes // count)
    (plans,), planning_ms = _OF_ONE.get(
        one.graphs[0], key, lambda: _timed((one,), policy, budget_bytes // count, case.link, case.compute)
    )
    return (plans,) * count, planning_ms


def _timed(
    workloads: Sequence[Workload], policy: str, budget_bytes: int, link: Link, compute: Compute
) -> tuple[Plans, float]:
    start_ns = time.perf_counter_ns()
    if policy == DEFAULT_POLICY:
        plans = tensile_plus(workloads, budget_bytes=budget_bytes, link=link, compute=compute)
    else:
        plans = POLICIES[policy](workloads, budget_bytes=budget_bytes, link=link)
    return plans, (time.perf_counter_ns() - start_ns) / 1e6


def total(scores: Sequence[Score]) -> Row:
    """The figures of all jobs together: bytes and times are added up, the overhead is the device's."""
    each = [one.figures() for one in scores]
    if len(each) == 1:
        return each[0]
    found = {name: sum(figures[name] for figures in each) for name in _SUMMED}
    saved = {base: 1 - found["peak_bytes"] / found[f"{base}_peak_bytes"] for base in ("vanilla", "liveness")}
    eor = overhead([one.baseline for one in scores], [one.forecast.iteration_ns for one in scores])
    return {
        **found,
        "bound_bytes": None,
        "msr_vanilla": round(saved["vanilla"], 6),
        "msr_liveness": round(saved["liveness"], 6),
        "eor": round(eor, 6),
        "eor_worst": round(max(one.eor for one in scores), 6),
        "cbr": round(saved["liveness"] / eor, 6),
        "faults": [f"job {number}: {fault}" for number, one in enumerate(scores, start=1) for fault in one.faults],
    }


def sweep(
    case: Case,
    policies: Sequence[str],
    *,
    budgets: int,
    refine: int,
    given: Iterable[tuple[str, Plans, float]] = (),
    beside: Sequence[Row] = (),
    then: Callable[["Trial"], Iterator[Row]] = lambda _: iter(()),
) -> Iterator[Row]:
    """Rows of these policies on this case, our own last: it is also asked for each peak that a rival reached.

    `given` are plans of rivals that are no policies, by the rival's name, with the milliseconds that they took, and
    `beside` what rivals reached before.
    `then` has more rows to make of what a policy planned.
    """
    asked = budgets_of(case, budgets)
    rivals = list(beside)
    others: dict[str, Trial] = {}
    for rival, plans, planning_ms in given:
        trial = others.setdefault(rival, Trial(case, rival))
        for row in trial.give(plans, planning_ms):
            rivals.append(row)
            yield row
    for policy in sorted(policies, key=lambda name: (name == DEFAULT_POLICY, name)):
        trial = Trial(case, policy)
        for budget_bytes in asked:
            yield from trial.ask(budget_bytes)
        if len(trial.rows) > 1:  # a policy that knows no budget gives the same plan each time
            for target in TARGETS:
                yield from trial.least_memory(target, refine)
        if policy == DEFAULT_POLICY:
            for row in rivals:
                if not covered(row, trial.rows):
                    yield from trial.ask(row["peak_bytes"])
        rivals += trial.rows
        yield from then(trial)


def budgets_of(case: Case, count: int) -> tuple[int, ...]:
    """From the liveness peak to the floor, the shares at which time is compared, and 0: as little as can be."""
    jobs = len(case.workloads)
    high, low = case.liveness_peak_bytes // jobs, case.floor_bytes // jobs  # equal jobs are asked for equal budgets
    even = [jobs * (high - (high - low) * step // max(1, count - 1)) for step in range(count)]
    shares = [jobs * round(share * high) for share in SHARES if share * high >= low]
    return (*sorted({*even, *shares}, reverse=True), 0)


# --- who covers whom -------------------------------------------------------------------------------------------


def covered(point: Row, ours: Iterable[Row]) -> bool:
    """Whether one of our points is no worse, in memory and in time, than this one."""
    return any(
        row["peak_bytes"] <= point["peak_bytes"] and row["eor"] <= point["eor"] for row in ours if not row["faults"]
    )


def best_msr(rows: Iterable[Row], overhead: float, against: str = "liveness") -> float | None:
    """The largest saving at no more than this overhead."""
    return max((row[f"msr_{against}"] for row in sound(rows) if row["eor"] <= overhead), default=None)


def best_eor(rows: Iterable[Row], budget_bytes: float) -> float | None:
    """The least time within this budget."""
    return min((row["eor"] for row in sound(rows) if row["peak_bytes"] <= budget_bytes), default=None)


def by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of these fields, in the order in which they come."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def sound(rows: Iterable[Row]) -> Iterator[Row]:
    """Those whose plans break no rule."""
    return (row for row in rows if not row["faults"])


def phased(policy: str) -> str:
    """What this policy's plans are called where jobs start their iterations in phases (bench/multi.py)."""
    return f"{policy} in phases"


# --- rows on paper --------------------------------------------------------------------------------------------


def known_policies(names: Sequence[str], *others: str) -> tuple[str, ...]:
    """These policies, or all where none is named, and `others` like them. Raises MissingError for an unknown one."""
    known = (*POLICIES, *others)
    for name in names:
        if name not in known:
            raise MissingError(f"there is no policy '{name}'", hint=f"Policies are: {', '.join(sorted(known))}.")
    return tuple(names) or known


def stamped(row: Row) -> str:
    """The row as one line of JSON, with the day and the machine that planned."""
    return json.dumps({"date": date.today().isoformat(), "host": _host(), **row})


def recorded(paths: Sequence[str]) -> Iterator[Row]:
    """Rows that were printed before, so that a long comparison can be made in parts. Raises RequestError."""
    for path in paths:
        try:
            with Path(path).open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)
        except FileNotFoundError:
            raise MissingError(f"there is no file {path}", hint="It is what --json printed.") from None
        except ValueError as error:
            raise RequestError(f"{path} holds no rows: {error}", hint="It is what --json printed.") from error


def _host() -> str:
    """What planned: planning times are this machine's."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        models = []
    return f"{len(models)} x {models[0]}" if models else platform.processor() or platform.machine()
