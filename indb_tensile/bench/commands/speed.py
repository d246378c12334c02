"""Measures planning time by operators, jobs and budgets: of new graphs, and again after latencies have changed.

    python -m indb_tensile.bench speed [--operators 1000 3000 10000] [--families residual recurrent] [--jobs 1 4]
        [--policies tensile+ …] [--models [resnet50 …]] [--budget 0.9 0.6 …] [--rivals capuchin …] [--share 2]
        [--work 16] [--rounds 3] [--json]

Each job is a network of one of the families, deep enough for the given number of operators: bottleneck blocks at
batch 16 (bench/harness/networks/residual.py) or an unrolled recurrent layer (bench/harness/networks/recurrent.py).
With --models it is a known network; without names, each of them. A budget is a share of the jobs' liveness peaks.
Without --budget it is 0.6; with --models it is ten budgets in turn, evenly from just below the liveness peak to just
above the floor. `planning_ms` is the time of the policy's call for graphs that this process has not seen before, and
`planning_cpu_ms` its processor time. `replanning_ms` is the time to renew those plans after every operator's latency
has changed by a few per cent, as the controller does: by policies/replan.py for our own policy, by another call for
all others. `replanning_cpu_ms` is its processor time, and `replanning_cold_ms` the same with an empty cache. All are
medians over the rounds, each with graphs of its own. Every plan is checked, whatever its size.

Rivals plan for the same budget, and the same simulator judges them; the fastest that meets it is `rival_eor`. A rival
that takes more than `--share` times as long as our plan, and more than a second, is stopped and does not count: its
name is in `rivals_stopped`. `more_eor` is our own policy's result with `--work` times the usual work.
"""

import argparse
import gc
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from statistics import median
from types import FrameType

from indb_tensile.bench.harness.networks.known_networks import NETWORKS, graph_of
from indb_tensile.bench.harness.networks.recurrent import recurrent
from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.bench.harness.processes.argument_types import portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results import rows as shared
from indb_tensile.bench.harness.results.rows import PlanningCase, Row
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.policies.policy import PlanOptions, Plans
from indb_tensile.scheduler.score import overhead, score
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.machines import REFERENCE
from indb_tensile.scheduler.timing.simulate import simulate

OPERATORS = (1_000, 3_000, 10_000)
FAMILIES = {"residual": residual, "recurrent": recurrent}
JOBS = (1, 4)
RIVALS = ("capuchin", "vdnn", "superneurons", "autoswap")
LINK_GB_S = 25.0
_SHARE = 0.6  # the budget without --budget, as a share of the liveness peaks
# Ten budgets between the floor and that peak, as shares of the distance.
_WAYS = tuple((2 * tenth + 1) / 20 for tenth in reversed(range(10)))
_TIMES = ("planning_ms", "planning_cpu_ms", "replanning_ms", "replanning_cpu_ms", "replanning_cold_ms")
_DRIFT = 0.05  # largest relative change of an operator's latency, either way
_LEAST_S = 1.0  # a rival may always take this time


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per policy, size, number of jobs and budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operators", nargs="+", type=whole(), default=list(OPERATORS), help="operators of each job")
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=["residual"])
    parser.add_argument("--jobs", nargs="+", type=whole(), default=list(JOBS))
    parser.add_argument(
        "--models", nargs="*", default=None, metavar="NAME", help=f"of {', '.join(NETWORKS)}; without names, all"
    )
    parser.add_argument("--policies", nargs="+", default=[DEFAULT_POLICY], help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--budget", nargs="+", type=portion, default=None, help="shares of the liveness peaks")
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), help="policies that are compared with ours")
    parser.add_argument("--share", type=float, default=2.0, help="time that a rival may take, in times of ours")
    parser.add_argument("--work", type=whole(2), default=None, help="also plan with this multiple of the usual work")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    for row in measure(options):
        print(shared.stamped(row) if options.json else _line(row), flush=True)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Yield rows by size of the graphs, number of jobs, policy and budget."""
    policies = shared.known_policies(options.policies)
    rivals = shared.known_policies(options.rivals) if options.rivals else ()
    sizes: list[tuple[str, int]] = [(family, size) for family in options.families for size in options.operators]
    if options.models is not None:
        sizes = [(name, 0) for name in options.models or NETWORKS]
    for size, jobs, policy in product(sizes, options.jobs, policies):
        for budget in _budgets(options):
            rounds = [_round(size, jobs, policy, budget, number) for number in range(options.rounds)]
            row, case = rounds[0]
            row |= {name: median(figures[name] for figures, _ in rounds) for name in _TIMES}
            if policy == DEFAULT_POLICY:
                row |= _compared(case, row, rivals, options)
            yield row


def _budgets(options: argparse.Namespace) -> list[Callable[[PlanningCase], int]]:
    """Return functions from a case to the bytes that its jobs may use together."""

    def share_of(share: float) -> Callable[[PlanningCase], int]:
        return lambda case: round(share * case.liveness_peak_bytes)

    def way_to(way: float) -> Callable[[PlanningCase], int]:
        return lambda case: case.floor_bytes + round(way * (case.liveness_peak_bytes - case.floor_bytes))

    if options.budget is None and options.models is not None:
        return [way_to(way) for way in _WAYS]
    return [share_of(share) for share in options.budget or (_SHARE,)]


def _round(
    size: tuple[str, int], jobs: int, policy: str, budget: Callable[[PlanningCase], int], number: int
) -> tuple[Row, PlanningCase]:
    """Plan a new set of jobs and plan it again. Returns a row and the case."""
    graphs = [_graph(size, number * jobs + job) for job in range(jobs)]
    labels = {"model": size[0], "operators": len(graphs[0].operators), "jobs": jobs}
    case = shared.make_case(graphs, REFERENCE, LINK_GB_S, labels=labels)
    budget_bytes = budget(case)
    planned = _unseen(case)
    # A controller has no captured modules. The collector would look through those of all rows at some moment.
    gc.collect()
    gc.freeze()
    start_ns = time.process_time_ns()
    plans, planning_ms = shared.timed(planned, policy, budget_bytes)
    planning_cpu_ms = (time.process_time_ns() - start_ns) / 1e6
    moved = _drifted(planned, number)
    start_ns = time.process_time_ns()
    replanning_ms = _renewed(moved, policy, budget_bytes, plans)
    replanning_cpu_ms = (time.process_time_ns() - start_ns) / 1e6
    row = {
        **case.labels,
        "budget": round(budget_bytes / case.liveness_peak_bytes, 4),
        "policy": policy,
        "budget_bytes": budget_bytes,
        **shared.total(score(case.workloads, plans, case.link, against=case.baselines, cache=case.cache)),
        "planning_ms": round(planning_ms, 3),
        "planning_cpu_ms": round(planning_cpu_ms, 3),
        "replanning_ms": round(replanning_ms, 3),
        "replanning_cpu_ms": round(replanning_cpu_ms, 3),
        "replanning_cold_ms": round(_renewed(_unseen(moved), policy, budget_bytes, plans), 3),
    }
    return row, case


def _simulated(case: PlanningCase, plans: Sequence[tuple[Plan, ...]]) -> tuple[float, int]:
    """Return the overhead of all jobs together, and the sum of their peaks."""
    runs = [
        JobRun(graph=w.graphs[0], plan=chosen[0], latency_ns=w.latency_ns[0])
        for w, chosen in zip(case.workloads, plans, strict=True)
    ]
    forecasts = simulate(runs, case.link, compute=case.compute, cache=case.cache)
    eor = overhead(case.baselines, [forecast.iteration_ns for forecast in forecasts])
    return eor, sum(forecast.peak_bytes for forecast in forecasts)


def _compared(case: PlanningCase, row: Row, rivals: Sequence[str], options: argparse.Namespace) -> Row:
    """Return the result of the best rival within its time, and that of our own policy with more work."""
    # The rival autoswap imports it. An import that the limit interrupts leaves half a module, and later ones fail.
    import sklearn.gaussian_process  # noqa: F401

    eor_of: dict[str, float] = {}
    stopped: list[str] = []
    for policy in rivals:
        try:
            with _within(max(_LEAST_S, options.share * row["planning_ms"] / 1e3)):
                plans, _ = shared.timed(_unseen(case), policy, row["budget_bytes"])
        except TimeoutError:
            stopped.append(policy)
            continue
        eor, peak_bytes = _simulated(case, plans)
        if peak_bytes <= row["budget_bytes"]:
            eor_of[policy] = eor
    best = min(eor_of, key=lambda name: (eor_of[name], name), default=None)
    compared = {"rival": best, "rival_eor": best and round(eor_of[best], 6), "rivals_stopped": stopped}
    if options.work is None:
        return compared
    fresh = _unseen(case)
    more = POLICIES[DEFAULT_POLICY].plan(
        fresh.workloads, budget_bytes=row["budget_bytes"], link=case.link, options=PlanOptions(work=options.work)
    )
    return {**compared, "work": options.work, "more_eor": round(_simulated(fresh, more)[0], 6)}


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError within the block after `limit_s` seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _renewed(case: PlanningCase, policy: str, budget_bytes: int, plans: Plans) -> float:
    """Return the milliseconds that renewing these plans takes."""
    start_ns = time.perf_counter_ns()
    renewed = POLICIES[policy].renew(
        case.workloads, plans, budget_bytes=budget_bytes, link=case.link, cache=case.cache
    )
    if renewed is None:
        shared.timed(case, policy, budget_bytes)
    return (time.perf_counter_ns() - start_ns) / 1e6


def _unseen(case: PlanningCase) -> PlanningCase:
    """Return the same jobs with new graph objects and an empty cache."""
    return replace(
        case,
        workloads=tuple(replace(w, graphs=tuple(replace(graph) for graph in w.graphs)) for w in case.workloads),
        cache=PlanCache(),
    )


def _drifted(case: PlanningCase, seed: int) -> PlanningCase:
    """Return the same jobs with changed latencies, as new measurements give them."""
    drawn = random.Random(seed)  # noqa: S311 - equal runs plan equal jobs

    def moved(latency_ns: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(round(ns * drawn.uniform(1 - _DRIFT, 1 + _DRIFT)) for ns in latency_ns)

    return replace(
        case, workloads=tuple(replace(w, latency_ns=tuple(map(moved, w.latency_ns))) for w in case.workloads)
    )


def _line(row: Row) -> str:
    return (
        f"{row['policy']:<9} {row['model']:<12} {row['operators']:>6} operators x {row['jobs']} jobs at "
        f"{row['budget']:.0%}: {row['planning_ms']:,.0f} ms ({row['planning_cpu_ms']:,.0f} of a processor), "
        f"again {row['replanning_ms']:,.0f} ms ({row['replanning_cpu_ms']:,.0f} of a processor, "
        f"{row['replanning_cold_ms']:,.0f} ms with an empty cache); "
        f"EOR {row['eor']:.4f}{_beside(row)}, saves {row['msr_liveness']:.1%}, "
        f"{len(row['faults'])} faults"
    )


def _beside(row: Row) -> str:
    parts = []
    if row.get("rival"):
        parts.append(f"{row['rival']} {row['rival_eor']:.4f}")
    if row.get("rivals_stopped"):
        parts.append(f"stopped: {' '.join(row['rivals_stopped'])}")
    if row.get("more_eor"):
        parts.append(f"{row['work']} times the work {row['more_eor']:.4f}")
    return f" ({', '.join(parts)})" if parts else ""


def _graph(size: tuple[str, int], number: int) -> StepGraph:
    """Return the graph with a signature of its own in each round, so that no earlier plan can serve it."""
    name, operators = size
    graph = FAMILIES[name](operators) if operators else graph_of(name)
    return replace(graph, signature=f"{graph.signature} {number}")


if __name__ == "__main__":
    run(main)
