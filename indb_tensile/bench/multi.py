"""All policies on several jobs at once: one to four equal ones, and the mixed five of TENSILE's Table IV.

    python -m indb_tensile.bench.multi [--models resnet50 …] [--jobs 1 2 3 4] [--policies tensile+ …] [--links 25]
        [--budgets 12] [--refine 4] [--compute turns] [--beside FILE …] [--processes 1] [--json | --markdown]

The jobs share the reference machine's two lanes, and take turns on its arithmetic operator by operator. The peak is
that of all jobs together. The overhead is the device's: its time for the same work of all jobs, against the same jobs
side by side without planning; `eor_worst` is that of the job that pays most. Beside rows of our own policy stand
`eor_equal_parts` and `eor_worst_equal_parts`, of each job planned alone for an equal part of the budget. Rows,
tables, verdict and exit code are those of `bench policies`.

Besides, jobs share the budget by phases, enforced by gates (scheduler/schedule.py): liveness and our own policy as
the planner chooses plans and phases together, called "... in phases", for the same budgets and some below the sum of
the floors, so that what phases gain stands apart from what plans do; and Zico, as published, in pairs. Their peak is
the most that the jobs can come to together in whatever order the gates let operators run, which the judge finds
(scheduler/judges/cuts.py); their time is the simulator's, with the waits at gates.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from indb_tensile.bench import rows as shared
from indb_tensile.bench.batch import PAPERS_FIVE
from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import find, graph_of
from indb_tensile.bench.policies import add_beside, add_sweep_options, before, finish, measure
from indb_tensile.bench.rows import Case, Row, Trial
from indb_tensile.bench.tables import called
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.machines import REFERENCE
from indb_tensile.scheduler.peak import liveness_peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, plan_jobs, schedules_of
from indb_tensile.scheduler.policies import DEFAULT_POLICY
from indb_tensile.scheduler.policies.quotas import equal_parts
from indb_tensile.scheduler.policies.tensile_plus import tensile_plus
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.simulate import Compute
from indb_tensile.scheduler.workload import least_bytes

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
    beside: tuple[Row, ...]  # what rivals reached before


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    add_beside(parser)
    parser.add_argument("--jobs", nargs="+", type=int, default=list(JOBS), help="how many equal jobs")
    kinds = [kind.value for kind in Compute]
    parser.add_argument("--compute", choices=kinds, default=Compute.TURNS.value, help="how jobs share the arithmetic")
    given = parser.parse_args(arguments)
    finish(given, CASE, lambda: measure(_cases(given), _sweep, given.processes), gains)


def gains(rows: Sequence[Row]) -> Iterator[str]:
    """What phases save beyond the plans themselves."""
    for (model, jobs, link), found in shared.by(rows, *CASE).items():
        curves = shared.by(found, "policy")
        case = called(CASE, (model, jobs, link))
        for row in found:
            if row.get("eor_equal_parts") is not None:
                yield (
                    f"{case}: budget {row['budget_bytes']}: EOR {row['eor']:.4f}, worst job {row['eor_worst']:.4f}; "
                    f"in equal parts {row['eor_equal_parts']:.4f}, worst job {row['eor_worst_equal_parts']:.4f}"
                )
        for policy in (LIVENESS, DEFAULT_POLICY):
            alone, together = curves.get((policy,), []), curves.get((shared.phased(policy),), [])
            for overhead in shared.TARGETS if together else ():
                saved = [_percent(shared.best_msr(points, overhead)) for points in (alone, [*alone, *together])]
                yield f"{case}: EOR <= {overhead:.2f}: {policy} saves {saved[0]}, in phases {saved[1]}"
            for share in _SHARES if together else ():
                budget_bytes = share * found[0]["liveness_peak_bytes"]
                eor = [_ratio(shared.best_eor(points, budget_bytes)) for points in (alone, [*alone, *together])]
                yield f"{case}: {share:.0%} of the liveness peak: {policy} at EOR {eor[0]}, in phases {eor[1]}"


def _percent(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _sweep(asked: Asked) -> Iterator[Row]:
    graphs = [_graph(model) for model in asked.models]
    operators = sum(len(graph.operators) for graph in graphs)
    labels = {"model": asked.name, "jobs": len(graphs), "operators": operators, "compute": asked.compute.value}
    case = shared.make_case(graphs, REFERENCE, asked.link_gb_s, labels=labels, compute=asked.compute)
    pairs: list[Row] = []
    if ZICO in asked.policies:
        pairs = list(_in_phases(case, ZICO, _budgets(case, asked.budgets)))
        yield from pairs
    found = shared.sweep(
        case,
        [policy for policy in asked.policies if policy != ZICO],  # whose plans are liveness, but for the phases
        budgets=asked.budgets,
        refine=asked.refine,
        beside=asked.beside,
        then=lambda trial: _then_in_phases(trial, asked.budgets, (*asked.beside, *pairs)),
    )
    yield from (_beside_equal_parts(case, row) for row in found)


def _beside_equal_parts(case: Case, row: Row) -> Row:
    """The row, and what each job planned alone for an equal part of the budget comes to, where all keep to theirs."""
    if row["policy"] != DEFAULT_POLICY or len(case.workloads) == 1 or row["budget_bytes"] is None:
        return row
    leasts = [least_bytes(workload) for workload in case.workloads]
    mosts = [max(map(liveness_peak, workload.graphs)) for workload in case.workloads]
    jobs = zip(case.workloads, equal_parts(leasts, mosts, row["budget_bytes"]), strict=True)
    plans = [tensile_plus((job,), budget_bytes=part, link=case.link)[0] for job, part in jobs]
    apart = shared.total(score(case.workloads, plans, case.link, against=case.baselines, compute=case.compute))
    fits = apart["peak_bytes"] <= row["budget_bytes"]
    return {
        **row,
        "eor_equal_parts": apart["eor"] if fits else None,
        "eor_worst_equal_parts": apart["eor_worst"] if fits else None,
    }


@cache
def _graph(model: str) -> StepGraph:
    """One object for all jobs and cases of a network: what was planned for it is found again."""
    return graph_of(model)


def _then_in_phases(trial: Trial, budgets: int, rivals: Sequence[Row]) -> Iterator[Row]:
    """The policy with plans and phases chosen together, for these budgets and those that a rival needs."""
    if trial.policy not in (DEFAULT_POLICY, LIVENESS):
        return
    ours = list(trial.rows)
    for row in _in_phases(trial.case, trial.policy, _budgets(trial.case, budgets)):
        ours.append(row)
        yield row
    for rival in rivals if trial.policy == DEFAULT_POLICY else ():
        if not shared.covered(rival, ours):
            found = list(_in_phases(trial.case, trial.policy, (rival["peak_bytes"],)))
            ours += found
            yield from found


def _budgets(case: Case, count: int) -> tuple[int, ...]:
    """Those for which the policies plan, and some down to the largest floor of a job."""
    high, low = case.floor_bytes, max(base.floor_bytes for base in case.baselines)
    below = [high - (high - low) * step // _BELOW for step in range(1, _BELOW + 1)]
    return (*(budget for budget in shared.budgets_of(case, count) if budget), *below)


def _in_phases(case: Case, policy: str, budgets: Sequence[int]) -> Iterator[Row]:
    """The rows of what the planner makes of these budgets, where that is feasible and new."""
    given: set[tuple[object, ...]] = set()
    for budget_bytes in budgets if len(case.workloads) > 1 else ():
        start_ns = time.perf_counter_ns()
        found = plan_jobs(
            case.workloads,
            budget_bytes=budget_bytes,
            link=case.link,
            policy=policy,
            rewrites=True,
            phases=True,
            compute=case.compute,
        )
        planning_ms = (time.perf_counter_ns() - start_ns) / 1e6
        if isinstance(found, Infeasible):
            continue
        new = (tuple(one.plans for one in found), schedules_of(found))
        if new not in given:
            given.add(new)
            yield _row(case, policy, found, budget_bytes, planning_ms)


def _row(case: Case, policy: str, found: Sequence[JobPlan], budget_bytes: int, planning_ms: float) -> Row:
    plans = [one.plans for one in found]
    schedules = [schedule.among([one.job for one in found]) for schedule in schedules_of(found)]
    against, compute = case.baselines, case.compute
    row = shared.total(score(case.workloads, plans, case.link, against=against, compute=compute, schedules=schedules))
    pairs = [list(zip(w.graphs, its, strict=True)) for w, its in zip(case.workloads, plans, strict=True)]
    faults = check.faults_together(pairs, budget_bytes=budget_bytes, schedules=schedules)
    peak_bytes = row["peak_bytes"] if faults else check.together_bytes(pairs, schedules)
    saved = 1 - peak_bytes / row["liveness_peak_bytes"]
    return {
        **case.labels,
        "policy": policy if policy == ZICO else shared.phased(policy),
        "budget_bytes": budget_bytes,
        **row,
        "peak_bytes": peak_bytes,
        "msr_vanilla": round(1 - peak_bytes / row["vanilla_peak_bytes"], 6),
        "msr_liveness": round(saved, 6),
        "cbr": round(saved / row["eor"], 6),
        "gate_us": sum(one.forecast.gate_ns for one in found) / 1000,
        "gates": sum(len(schedule.gates) for schedule in schedules),
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
    policies = shared.known_policies(given.policies or ([DEFAULT_POLICY] if given.beside else []))
    rivals = [row for row in before(given) if row["policy"] != shared.phased(DEFAULT_POLICY)]
    mixed = [(MIXED, PAPERS_FIVE)] if not given.models or MIXED in given.models else []
    return [
        Asked(
            name=name,
            models=models,
            link_gb_s=link,
            compute=Compute(given.compute),
            policies=policies,
            budgets=given.budgets,
            refine=given.refine,
            beside=tuple(row for row in rivals if [row[label] for label in CASE] == [name, len(models), link]),
        )
        for name, models in (*equal, *mixed)
        for link in given.links or (25.0,)
    ]


if __name__ == "__main__":
    run(main)
