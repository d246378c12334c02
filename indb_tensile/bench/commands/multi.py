"""Compares all policies on several jobs at once: one to four equal jobs, and the mixed five of TENSILE's Table IV.

    python -m indb_tensile.bench multi [--models resnet50 …] [--jobs 1 2 3 4] [--policies tensile+ …] [--links 25]
        [--budgets 12] [--refine 4] [--compute turns] [--beside FILE …] [--processes 1] [--json | --markdown]

The jobs share the reference machine's two lanes, and take turns on its arithmetic operator by operator. The peak is
that of all jobs together. The overhead is the device's: its time for the work of all jobs, against the time of the
same jobs side by side without planning. `eor_worst` is the overhead of the job with the largest. Rows of our own
policy also have `eor_equal_parts` and `eor_worst_equal_parts`: the overheads when each job is planned alone for an
equal part of the budget. Rows, tables, verdict and exit code are those of `bench policies`.

In addition, jobs share the budget by phases, which gates enforce (scheduler/timing/schedule.py). Policies "... in
phases" are liveness and our own policy with plans and phases that the planner chooses together. They are planned for
the same budgets and for some below the sum of the floors, which separates the gain of phases from that of plans. Zico
is planned as published, in pairs. The peak of jobs in phases is the largest that the jobs can reach together in any
order that the gates allow, which the judge computes (scheduler/judges/gate_check.py). Their time is the simulator's,
with the waits at gates.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from indb_tensile.bench.commands.batch import PAPERS_FIVE
from indb_tensile.bench.commands.policies import add_beside, add_sweep_options, finish, measure, recorded_rivals
from indb_tensile.bench.harness.networks.known_networks import find, graph_of
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results import rows as shared
from indb_tensile.bench.harness.results.result_tables import case_name
from indb_tensile.bench.harness.results.rows import PlanningCase, PolicyTrial, Row
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, plan_jobs, schedules_of
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.policies.quotas import equal_parts
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.machines import REFERENCE
from indb_tensile.scheduler.workload import least_bytes

CASE = ("model", "jobs", "link_gb_s")
MIXED = "mixed"  # one job of each of the papers' five
JOBS = (1, 2, 3, 4)
ZICO = "zico"
LIVENESS = "liveness"
_SHARES = (0.25, 0.35, 0.5)  # shares of the liveness peak at which the overhead is printed
_BELOW = 4  # budgets below the sum of the floors


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSweep:
    """One set of jobs to compare policies on, by the names of their networks."""

    name: str
    models: tuple[str, ...]
    link_gb_s: float
    compute: Compute
    policies: tuple[str, ...]
    budgets: int
    refine: int
    beside: tuple[Row, ...]  # rows of rivals from earlier runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    add_beside(parser)
    parser.add_argument("--jobs", nargs="+", type=int, default=list(JOBS), help="numbers of equal jobs")
    kinds = [kind.value for kind in Compute]
    parser.add_argument("--compute", choices=kinds, default=Compute.TURNS.value, help="how jobs share the arithmetic")
    options = parser.parse_args(arguments)
    finish(options, CASE, lambda: measure(_cases(options), _sweep, options.processes), gains)


def gains(rows: Sequence[Row]) -> Iterator[str]:
    """Yield lines on the memory that phases save beyond plans alone."""
    for (model, jobs, link), case_rows in shared.group_by(rows, *CASE).items():
        curves = shared.group_by(case_rows, "policy")
        case = case_name(CASE, (model, jobs, link))
        for row in case_rows:
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
                budget_bytes = share * case_rows[0]["liveness_peak_bytes"]
                eor = [_ratio(shared.best_eor(points, budget_bytes)) for points in (alone, [*alone, *together])]
                yield f"{case}: {share:.0%} of the liveness peak: {policy} at EOR {eor[0]}, in phases {eor[1]}"


def _percent(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _sweep(sweep: JobsSweep) -> Iterator[Row]:
    graphs = [_graph(model) for model in sweep.models]
    operators = sum(len(graph.operators) for graph in graphs)
    labels = {"model": sweep.name, "jobs": len(graphs), "operators": operators, "compute": sweep.compute.value}
    case = shared.make_case(graphs, REFERENCE, sweep.link_gb_s, labels=labels, compute=sweep.compute)
    pairs: list[Row] = []
    if ZICO in sweep.policies:
        pairs = list(_in_phases(case, ZICO, _budgets(case, sweep.budgets)))
        yield from pairs
    rows = shared.sweep(
        case,
        [policy for policy in sweep.policies if policy != ZICO],  # without phases, Zico's plans are liveness
        budgets=sweep.budgets,
        refine=sweep.refine,
        beside=sweep.beside,
        then=lambda trial: _phased_rows(trial, sweep.budgets, (*sweep.beside, *pairs)),
    )
    yield from (_with_equal_parts(case, row) for row in rows)


def _with_equal_parts(case: PlanningCase, row: Row) -> Row:
    """Return the row with the overheads of jobs planned alone for equal parts, if these plans meet the budget."""
    if row["policy"] != DEFAULT_POLICY or len(case.workloads) == 1 or row["budget_bytes"] is None:
        return row
    leasts = [least_bytes(workload) for workload in case.workloads]
    mosts = [max(map(liveness_peak, workload.graphs)) for workload in case.workloads]
    jobs = zip(case.workloads, equal_parts(leasts, mosts, row["budget_bytes"]), strict=True)
    plan_one = partial(POLICIES[row["policy"]].plan, link=case.link, cache=case.cache)
    plans = [plan_one((job,), budget_bytes=part)[0] for job, part in jobs]
    apart = shared.total(score(case.workloads, plans, case.link, against=case.baselines, compute=case.compute))
    fits = apart["peak_bytes"] <= row["budget_bytes"]
    return {
        **row,
        "eor_equal_parts": apart["eor"] if fits else None,
        "eor_worst_equal_parts": apart["eor_worst"] if fits else None,
    }


@cache
def _graph(model: str) -> StepGraph:
    """Return one object for all jobs and cases of a network, so that its cached plans are reused."""
    return graph_of(model)


def _phased_rows(trial: PolicyTrial, budgets: int, rivals: Sequence[Row]) -> Iterator[Row]:
    """Yield rows with plans and phases chosen together, for these budgets and for the peaks of rivals not covered."""
    if trial.policy not in (DEFAULT_POLICY, LIVENESS):
        return
    ours = list(trial.rows)
    for row in _in_phases(trial.case, trial.policy, _budgets(trial.case, budgets)):
        ours.append(row)
        yield row
    for rival in rivals if trial.policy == DEFAULT_POLICY else ():
        if not shared.covered(rival, ours):
            more = list(_in_phases(trial.case, trial.policy, (rival["peak_bytes"],)))
            ours += more
            yield from more


def _budgets(case: PlanningCase, count: int) -> tuple[int, ...]:
    """Return the budgets that the policies plan for, and some from there down to the largest floor of a job."""
    high, low = case.floor_bytes, max(base.floor_bytes for base in case.baselines)
    below = [high - (high - low) * step // _BELOW for step in range(1, _BELOW + 1)]
    return (*(budget for budget in shared.budgets_of(case, count) if budget), *below)


def _in_phases(case: PlanningCase, policy: str, budgets: Sequence[int]) -> Iterator[Row]:
    """Yield a row for each feasible new plan with phases within these budgets."""
    seen: set[tuple[object, ...]] = set()
    for budget_bytes in budgets if len(case.workloads) > 1 else ():
        start_ns = time.perf_counter_ns()
        planned = plan_jobs(
            case.workloads,
            budget_bytes=budget_bytes,
            link=case.link,
            policy=policy,
            rewrites=True,
            phases=True,
            compute=case.compute,
            cache=case.cache,
        )
        planning_ms = (time.perf_counter_ns() - start_ns) / 1e6
        if isinstance(planned, Infeasible):
            continue
        new = (tuple(job.plans for job in planned), schedules_of(planned))
        if new not in seen:
            seen.add(new)
            yield _row(case, policy, planned, budget_bytes, planning_ms)


def _row(case: PlanningCase, policy: str, planned: Sequence[JobPlan], budget_bytes: int, planning_ms: float) -> Row:
    plans = [job.plans for job in planned]
    schedules = [schedule.among([job.job for job in planned]) for schedule in schedules_of(planned)]
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
        "gate_us": sum(job.forecast.gate_ns for job in planned) / 1000,
        "gates": sum(len(schedule.gates) for schedule in schedules),
        "faults": list(faults),
        "planning_ms": round(planning_ms, 3),
    }


def _cases(options: argparse.Namespace) -> list[JobsSweep]:
    for name in options.models:
        if name != MIXED:
            find(name)
    if min(options.jobs) < 1:
        raise RequestError(f"{min(options.jobs)} jobs cannot be planned", hint="Give at least 1.")
    equal = [
        (model, (model,) * jobs) for model in options.models or PAPERS_FIVE if model != MIXED for jobs in options.jobs
    ]
    policies = shared.known_policies(options.policies or ([DEFAULT_POLICY] if options.beside else []))
    rivals = [row for row in recorded_rivals(options) if row["policy"] != shared.phased(DEFAULT_POLICY)]
    mixed = [(MIXED, PAPERS_FIVE)] if not options.models or MIXED in options.models else []
    return [
        JobsSweep(
            name=name,
            models=models,
            link_gb_s=link,
            compute=Compute(options.compute),
            policies=policies,
            budgets=options.budgets,
            refine=options.refine,
            beside=tuple(row for row in rivals if [row[label] for label in CASE] == [name, len(models), link]),
        )
        for name, models in (*equal, *mixed)
        for link in options.links or (25.0,)
    ]


if __name__ == "__main__":
    run(main)
