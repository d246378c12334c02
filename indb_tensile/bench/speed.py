"""How long planning takes, against operators and jobs: from nothing, and again after operators' times have changed.

    python -m indb_tensile.bench.speed [--operators 1000 3000 10000] [--jobs 1 4] [--policies tensile+ …]
        [--models resnet50 …] [--budget 0.6] [--rounds 3] [--json]

Each job is a residual network of bottleneck blocks as deep as makes so many operators, at batch 16, or, with
--models, a known network. The budget is a share of the jobs' liveness peaks. `planning_ms` is the policy's call for
graphs that this process has never seen before, `replanning_ms` what it takes to renew those plans with every
operator's time moved by a few per cent, as the controller does where it goes on from what it planned: by
search/replan.py for our own policy, by another call for all others. `replanning_cold_ms` is the same where nothing is
remembered of the graphs. All are medians over the rounds, each with graphs of its own.
"""

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from indb_tensile.bench import rows as shared
from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import NETWORKS, graph_of
from indb_tensile.bench.residual import residual
from indb_tensile.bench.rows import Case, Plans, Row
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.machines import REFERENCE
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.search.replan import replan

OPERATORS = (1_000, 3_000, 10_000)
JOBS = (1, 4)
LINK_GB_S = 25.0
_TIMES = ("planning_ms", "replanning_ms", "replanning_cold_ms")
_DRIFT = 0.05  # by how much an operator's time moves at most, either way


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per policy, size and number of jobs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operators", nargs="+", type=int, default=list(OPERATORS), help="of each job")
    parser.add_argument("--jobs", nargs="+", type=int, default=list(JOBS))
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--policies", nargs="+", default=[DEFAULT_POLICY], help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--budget", type=float, default=0.6, help="share of the liveness peaks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args(arguments)
    for row in measure(given):
        print(shared.stamped(row) if given.json else _line(row), flush=True)


def measure(given: argparse.Namespace) -> Iterator[Row]:
    """Rows by size of the graphs, number of jobs and policy."""
    policies = shared.known_policies(given.policies)
    sizes: list[str | int] = [*given.models] or [*given.operators]
    for size in sizes:
        for jobs in given.jobs:
            for policy in policies:
                rounds = [_round(size, jobs, policy, given.budget, number) for number in range(given.rounds)]
                yield {**rounds[0], **{name: median(row[name] for row in rounds) for name in _TIMES}}


def _round(size: str | int, jobs: int, policy: str, share: float, number: int) -> Row:
    """A fresh set of jobs, planned and planned again."""
    graphs = [_graph(size, number * jobs + job) for job in range(jobs)]
    labels = {"model": size if isinstance(size, str) else "residual", "operators": len(graphs[0].operators)}
    case = shared.make_case(graphs, REFERENCE, LINK_GB_S, labels={**labels, "jobs": jobs})
    budget_bytes = round(share * case.liveness_peak_bytes)
    planned = _unseen(case)
    plans, planning_ms = shared.timed(planned, policy, budget_bytes)
    moved = _drifted(planned, number)
    replanning_ms = _renewed(moved, policy, budget_bytes, plans)
    scores = score(case.workloads, plans, case.link, against=case.baselines)
    return {
        **case.labels,
        "policy": policy,
        "budget_bytes": budget_bytes,
        **shared.total(scores),
        "planning_ms": round(planning_ms, 3),
        "replanning_ms": round(replanning_ms, 3),
        "replanning_cold_ms": round(_renewed(_unseen(moved), policy, budget_bytes, plans), 3),
    }


def _renewed(case: Case, policy: str, budget_bytes: int, plans: Plans) -> float:
    """How many milliseconds it takes to go on from these plans."""
    start_ns = time.perf_counter_ns()
    found = None
    if policy == DEFAULT_POLICY:
        found = replan(case.workloads, plans, budget_bytes=budget_bytes, link=case.link)
    if found is None:
        shared.timed(case, policy, budget_bytes)
    return (time.perf_counter_ns() - start_ns) / 1e6


def _unseen(case: Case) -> Case:
    """The same jobs with graphs of which nothing is remembered."""
    return replace(
        case,
        workloads=tuple(replace(w, graphs=tuple(replace(graph) for graph in w.graphs)) for w in case.workloads),
    )


def _drifted(case: Case, seed: int) -> Case:
    """The same jobs with other latencies: what measuring them brings."""
    drawn = random.Random(seed)  # noqa: S311 - equal runs plan equal jobs

    def moved(latency_ns: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(round(ns * drawn.uniform(1 - _DRIFT, 1 + _DRIFT)) for ns in latency_ns)

    return replace(
        case, workloads=tuple(replace(w, latency_ns=tuple(map(moved, w.latency_ns))) for w in case.workloads)
    )


def _line(row: Row) -> str:
    return (
        f"{row['policy']:<12} {row['model']:<12} {row['operators']:>6} operators x {row['jobs']} jobs: "
        f"{row['planning_ms']:,.0f} ms, again {row['replanning_ms']:,.0f} ms "
        f"({row['replanning_cold_ms']:,.0f} ms with nothing remembered); "
        f"saves {row['msr_liveness']:.1%} at EOR {row['eor']:.3f}, {len(row['faults'])} faults"
    )


def _graph(size: str | int, number: int) -> StepGraph:
    """The graph, with a signature of its own in each round: nothing planned before may serve it."""
    graph = graph_of(size) if isinstance(size, str) else residual(size)
    return replace(graph, signature=f"{graph.signature} {number}")


if __name__ == "__main__":
    run(main)
