"""All policies on several jobs at once: one to four equal ones, and the mixed five of TENSILE's Table IV.

    python -m indb_tensile.bench.multi [--models resnet50 …] [--jobs 1 2 3 4] [--policies tensile+ …] [--links 25]
        [--budgets 12] [--refine 4] [--compute turns] [--processes 1] [--json]

The jobs share the reference machine's two lanes, and take turns on its arithmetic operator by operator. The peak is
that of all jobs together. The overhead is the device's: its time for the same work of all jobs, against the same jobs
side by side without planning; `eor_worst` is that of the job that pays most. Rows, tables, verdict and exit code
are those of `bench policies`.

Besides, jobs share the budget by phases, enforced by gates (scheduler/schedule.py): liveness and our own policy as
the planner chooses plans and phases together, called "... in phases", for the same budgets and some below the sum of
the floors, so that what phases gain stands apart from what plans do; and Zico, as published, in pairs. Their peak is
the most that the jobs can come to together in whatever order the gates let operators run, which the judge finds
(scheduler/judges/cuts.py); their time is the simulator's, with the waits at gates. Planning time is that of all plans
tried.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from indb_tensile.bench import rows as shared
from indb_tensile.bench.batch import PAPERS_FIVE
from indb_tensile.bench.networks import find, graph_of
from indb_tensile.bench.policies import add_sweep_options, finish
from indb_tensile.bench.rows import Case, Plans, Row, Trial
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.machines import REFERENCE
from indb_tensile.scheduler.phases.phased import Phased, fastest, phased, rungs
from indb_tensile.scheduler.policies import DEFAULT_POLICY
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.simulate import Compute

CASE = ("model", "jobs", "link_gb_s")
MIXED = "mixed"  # one job of each of the papers' five
JOBS = (1, 2, 3, 4)
ZICO = "zico"
LIVENESS = "liveness"
_SHARES = (0.25, 0.35, 0.5)  # of the liveness peak, at which the time is told
_BELOW = 4  # budgets below the sum of the floors


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One set of jobs to compare policies on, by the names of their networks."""

    name: str
    models: tuple[str, ...]
    link_gb_s: float
    compute: Compute
    policies: tuple[str, ...]
    budgets: int
    refine: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    parser.add_argument("--jobs", nargs="+", type=int, default=list(JOBS), help="how many equal jobs")
    kinds = [kind.value for kind in Compute]
    parser.add_argument("--compute", choices=kinds, default=Compute.TURNS.value, help="how jobs share the arithmetic")
    given = parser.parse_args(arguments)
    finish(given, CASE, lambda: _measure(_cases(given), given.processes), gains)


def gains(rows: Sequence[Row]) -> Iterator[str]:
    """What phases save beyond the plans themselves."""
    for (model, jobs, link), found in shared.by(rows, *CASE).items():
        curves = shared.by(found, "policy")
        case = f"{model} x {jobs}, link {link:g} GB/s"
        for policy in (LIVENESS, DEFAULT_POLICY):
            alone, together = curves.get((policy,), []), curves.get((shared.phased(policy),), [])
            for overhead in shared.TARGETS if together else ():
                saved = [_percent(shared.best_msr(points, overhead)) for points in (alone, [*alone, *together])]
                yield f"{case}, EOR <= {overhead:.2f}: {policy} saves {saved[0]}, in phases {saved[1]}"
            for share in _SHARES if together else ():
                budget_bytes = share * found[0]["liveness_peak_bytes"]
                eor = [_ratio(shared.best_eor(points, budget_bytes)) for points in (alone, [*alone, *together])]
                yield f"{case}, {share:.0%} of the liveness peak: {policy} at EOR {eor[0]}, in phases {eor[1]}"


def _percent(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _measure(asked: Sequence[Asked], processes: int) -> Iterator[Row]:
    if processes == 1:
        for one in asked:
            yield from _sweep(one)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for found in pool.imap(_rows, asked):
            yield from found


def _rows(asked: Asked) -> list[Row]:
    return list(_sweep(asked))


def _sweep(asked: Asked) -> Iterator[Row]:
    graphs = [_graph(model) for model in asked.models]
    operators = sum(len(graph.operators) for graph in graphs)
    labels = {"model": asked.name, "jobs": len(graphs), "operators": operators, "compute": asked.compute.value}
    case = shared.make_case(graphs, REFERENCE, asked.link_gb_s, labels=labels, compute=asked.compute)
    pairs: list[Row] = []
    if len(graphs) > 1 and ZICO in asked.policies:
        for budget_bytes in _budgets(case, asked.budgets):
            pairs += _Phases(case, ZICO).rows(budget_bytes)
        yield from pairs
    yield from shared.sweep(
        case,
        [policy for policy in asked.policies if policy != ZICO],  # whose plans are liveness, but for the phases
        budgets=asked.budgets,
        refine=asked.refine,
        then=lambda trial: _in_phases(trial, asked.budgets, pairs),
    )


@cache
def _graph(model: str) -> StepGraph:
    """One object for all jobs and cases of a network: what was planned for it is found again."""
    return graph_of(model)


def _in_phases(trial: Trial, budgets: int, pairs: Sequence[Row]) -> Iterator[Row]:
    """The policy with plans and phases chosen together, for these budgets and those that Zico needs."""
    if trial.policy not in (DEFAULT_POLICY, LIVENESS) or len(trial.case.workloads) == 1:
        return
    phases = _Phases(trial.case, trial.policy)
    phases.know(trial)
    ours = list(trial.rows)
    for budget_bytes in _budgets(trial.case, budgets):
        found = list(phases.rows(budget_bytes))
        ours += found
        yield from found
    for row in pairs if trial.policy == DEFAULT_POLICY else ():
        if not shared.covered(row, ours):
            found = list(phases.rows(row["peak_bytes"]))
            ours += found
            yield from found


def _budgets(case: Case, count: int) -> tuple[int, ...]:
    """Those for which the policies plan, and some down to the largest floor of a job."""
    high, low = case.floor_bytes, max(base.floor_bytes for base in case.baselines)
    below = [high - (high - low) * step // _BELOW for step in range(1, _BELOW + 1)]
    return (*(budget for budget in shared.budgets_of(case, count) if budget), *below)


class _Phases:
    """One policy on one case in phases. What it plans for a budget it is asked for once."""

    def __init__(self, case: Case, policy: str) -> None:
        self._case, self._policy = case, policy
        self._known: dict[int, tuple[Plans, float]] = {}
        self._given: set[Phased] = set()

    def know(self, trial: Trial) -> None:
        """What it planned already."""
        for row, plans in zip(trial.rows, trial.plans, strict=True):
            self._known[row["budget_bytes"]] = plans, row["planning_ms"]

    def rows(self, budget_bytes: int) -> Iterator[Row]:
        """The row of what it plans for this budget, where that is feasible and new."""
        case = self._case
        found, planning_ms = [], 0.0
        rest = () if self._policy == ZICO else rungs(case.workloads, budget_bytes)
        for budget in (budget_bytes if budget_bytes >= case.floor_bytes else 0, *rest):
            if budget not in self._known:
                self._known[budget] = shared.timed(case, self._policy, budget)
            plans, planned_ms = self._known[budget]
            start_ns = time.perf_counter_ns()
            one = phased(
                case.workloads,
                plans,
                budget_bytes=budget_bytes,
                link=case.link,
                compute=case.compute,
                policy=self._policy,
            )
            planning_ms += planned_ms + (time.perf_counter_ns() - start_ns) / 1e6
            if isinstance(one, Phased):
                found.append(one)
        best = fastest(case.workloads, found) if found else None
        if best is not None and best not in self._given:
            self._given.add(best)
            yield self._row(best, budget_bytes, planning_ms)

    def _row(self, one: Phased, budget_bytes: int, planning_ms: float) -> Row:
        case = self._case
        scores = score(
            case.workloads,
            one.plans,
            case.link,
            against=case.baselines,
            compute=case.compute,
            schedules=one.schedules,
        )
        pairs = [list(zip(w.graphs, plans, strict=True)) for w, plans in zip(case.workloads, one.plans, strict=True)]
        row = shared.total(scores)
        peak_bytes = row["peak_bytes"]
        faults = check.faults_together(pairs, budget_bytes=budget_bytes, schedules=one.schedules)
        if not faults:
            peak_bytes = check.together_bytes(pairs, one.schedules)
        saved = 1 - peak_bytes / row["liveness_peak_bytes"]
        return {
            **case.labels,
            "policy": self._policy if self._policy == ZICO else shared.phased(self._policy),
            "budget_bytes": budget_bytes,
            **row,
            "peak_bytes": peak_bytes,
            "msr_vanilla": round(1 - peak_bytes / row["vanilla_peak_bytes"], 6),
            "msr_liveness": round(saved, 6),
            "cbr": round(saved / row["eor"], 6),
            "gate_us": sum(forecast.gate_ns for forecast in one.forecasts) / 1000,
            "gates": sum(len(schedule.gates) for schedule in one.schedules),
            "faults": list(faults),
            "planning_ms": round(planning_ms, 3),
        }


def _cases(given: argparse.Namespace) -> list[Asked]:
    for name in given.models:
        if name != MIXED:
            find(name)
    if min(given.jobs) < 1:
        raise RequestError(f"{min(given.jobs)} jobs cannot be planned", hint="Give at least 1.")
    equal = [
        (model, (model,) * jobs) for model in given.models or PAPERS_FIVE if model != MIXED for jobs in given.jobs
    ]
    mixed = [(MIXED, PAPERS_FIVE)] if not given.models or MIXED in given.models else []
    return [
        Asked(
            name=name,
            models=models,
            link_gb_s=link,
            compute=Compute(given.compute),
            policies=shared.known_policies(given.policies),
            budgets=given.budgets,
            refine=given.refine,
        )
        for name, models in (*equal, *mixed)
        for link in given.links or (25.0,)
    ]


if __name__ == "__main__":
    main()
