"""All policies on several jobs at once: one to four equal ones, and the mixed five of TENSILE's Table IV.

    python -m indb_tensile.bench.multi [--models resnet50 …] [--jobs 1 2 3 4] [--policies tensile+ …] [--links 25]
        [--budgets 12] [--refine 4] [--compute turns] [--processes 1] [--json]

The jobs share the reference machine's two lanes, and take turns on its arithmetic operator by operator. The peak is
that of all jobs together. The overhead is the device's: its time for the same work of all jobs, against the same jobs
side by side without planning; `eor_worst` is that of the job that pays most. Rows, tables, verdict and exit code
are those of `bench policies`.

Besides, iterations start in phases (scheduler/phases.py): those of liveness and of our own policy's plans, called
"... in phases", under budgets from what jobs need one at a time up to the sum of their peaks, so that the gain stands
apart from that of the plans; and Zico's, as published, in pairs. Pairs side by side are taken to slow each other as
any jobs do that take turns: a pair's time is multiplied by the number of pairs.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indb_tensile.bench import rows as shared
from indb_tensile.bench.batch import PAPERS_FIVE
from indb_tensile.bench.machines import REFERENCE
from indb_tensile.bench.networks import find, graph_of
from indb_tensile.bench.policies import add_sweep_options, finish
from indb_tensile.bench.rows import Case, Row, Trial
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.cycle import cycle
from indb_tensile.scheduler.phases import Shift, interleave, least_budget
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.policies import DEFAULT_POLICY
from indb_tensile.scheduler.policies.zico import shifts
from indb_tensile.scheduler.simulate import Compute, JobRun

CASE = ("model", "jobs", "link_gb_s")
MIXED = "mixed"  # one job of each of the papers' five
JOBS = (1, 2, 3, 4)
ZICO = "zico"
LIVENESS = "liveness"
_PHASES = 3  # budgets for which each plan's iterations are shifted


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
    """What starting iterations in phases saves beyond the plans themselves."""
    for (model, jobs, link), found in shared.by(rows, *CASE).items():
        curves = shared.by(found, "policy")
        for policy in (LIVENESS, DEFAULT_POLICY):
            for overhead in shared.TARGETS:
                alone = shared.best_msr(curves.get((policy,), []), overhead)
                shifted = shared.best_msr(curves.get((shared.phased(policy),), []), overhead)
                if alone is not None and shifted is not None:
                    told = f"{policy} saves {alone:.1%}, in phases {max(alone, shifted):.1%}"
                    yield f"{model} x {jobs}, link {link:g} GB/s, EOR <= {overhead:.2f}: {told}"


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
    graphs = [graph_of(model) for model in asked.models]
    operators = sum(len(graph.operators) for graph in graphs)
    labels = {"model": asked.name, "jobs": len(graphs), "operators": operators, "compute": asked.compute.value}
    case = shared.make_case(graphs, REFERENCE, asked.link_gb_s, labels=labels, compute=asked.compute)
    together = len(graphs) > 1 and asked.compute is Compute.TURNS
    if together and ZICO in asked.policies:
        yield from _zico(case, asked.budgets)
    yield from shared.sweep(
        case,
        [policy for policy in asked.policies if policy != ZICO],  # whose plans are liveness, but for the shifts
        budgets=asked.budgets,
        refine=asked.refine,
        then=_in_phases if together else lambda _: iter(()),
    )


def _in_phases(trial: Trial) -> Iterator[Row]:
    """The same plans, with iterations that start where they fit beside the others."""
    case = trial.case
    if trial.policy not in (DEFAULT_POLICY, LIVENESS):
        return
    for row, plans in zip(trial.rows, trial.plans, strict=True):
        runs = [
            JobRun(graph=workload.graphs[0], plan=chosen[0], latency_ns=workload.latency_ns[0])
            for workload, chosen in zip(case.workloads, plans, strict=True)
        ]
        cycles = [cycle(run, case.link) for run in runs]
        least = least_budget(cycles)
        for part in range(_PHASES):
            budget_bytes = least + (row["peak_bytes"] - least) * part // _PHASES
            start_ns = time.perf_counter_ns()
            shift = interleave(cycles, budget_bytes=budget_bytes, compute=case.compute)
            planning_ms = row["planning_ms"] + (time.perf_counter_ns() - start_ns) / 1e6
            if isinstance(shift, Shift):
                found = _shifted(case, shift.peak_bytes, shift.iteration_ns)
                shown = {**row, **found, "policy": shared.phased(trial.policy), "faults": row["faults"]}
                yield {**shown, "budget_bytes": budget_bytes, "planning_ms": round(planning_ms, 3)}


def _zico(case: Case, budgets: int) -> Iterator[Row]:
    (base,) = Trial(case, LIVENESS).ask(case.liveness_peak_bytes)
    for budget_bytes in shared.budgets_of(case, budgets):
        start_ns = time.perf_counter_ns()
        groups = shifts(case.workloads, budget_bytes=budget_bytes, link=case.link, compute=case.compute)
        planning_ms = (time.perf_counter_ns() - start_ns) / 1e6
        if isinstance(groups, Infeasible):
            continue
        iteration_ns = [0] * len(case.workloads)
        for group in groups:
            for job, ns in zip(group.jobs, group.shift.iteration_ns, strict=True):
                iteration_ns[job] = ns * len(groups)
        found = _shifted(case, sum(group.shift.peak_bytes for group in groups), iteration_ns)
        yield {**base, **found, "policy": ZICO, "budget_bytes": budget_bytes, "planning_ms": round(planning_ms, 3)}


def _shifted(case: Case, peak_bytes: int, iteration_ns: Sequence[int]) -> Row:
    """The figures that a schedule changes."""
    overheads = [ns / base.iteration_ns for ns, base in zip(iteration_ns, case.baselines, strict=True)]
    eor, saved = shared.overhead(case.baselines, iteration_ns), 1 - peak_bytes / case.liveness_peak_bytes
    return {
        "peak_bytes": peak_bytes,
        "msr_vanilla": round(1 - peak_bytes / sum(base.vanilla_peak_bytes for base in case.baselines), 6),
        "msr_liveness": round(saved, 6),
        "iteration_us": sum(iteration_ns) / 1000,
        "eor": round(eor, 6),
        "eor_worst": round(max(overheads), 6),
        "cbr": round(saved / eor, 6),
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
