"""How long planning takes, against operators, jobs and budgets: from nothing, and again after times have changed.

    python -m indb_tensile.bench.speed [--operators 1000 3000 10000] [--families residual recurrent] [--jobs 1 4]
        [--policies tensile+ …] [--models [resnet50 …]] [--budget 0.9 0.6 …] [--rivals capuchin …] [--share 2]
        [--work 16] [--rounds 3] [--json]

Each job is a network of one of the families as deep as makes so many operators: bottleneck blocks at batch 16
(bench/residual.py) or an unrolled recurrent layer (bench/recurrent.py). With --models it is a known network, without
a name each of them. A budget is a share of the jobs' liveness peaks; without --budget it is 0.6, or for networks
ten in turn, evenly from just below that peak to just above the floor. `planning_ms` is the policy's call for graphs
that this process has never seen before, `planning_cpu_ms` the processor's part of that, `replanning_ms` what it takes
to renew those plans with every operator's time moved by a few per cent, as the controller does where it goes on from
what it planned: by search/replan.py for our own policy, by another call for all others; `replanning_cpu_ms` is the
processor's part of that. `replanning_cold_ms` is the same where nothing is remembered of the graphs. All are medians
over the rounds, each with graphs of its own.

Rivals are asked for the same budget and judged by the same simulator; the fastest that meets it is `rival_eor`. A
rival that takes more than `--share` times as long as our plan, and more than a second, is stopped and does not count:
its name is in `rivals_stopped`. `more_eor` is what our own policy finds with `--work` times the usual work.
"""

import argparse
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from statistics import median
from types import FrameType

from indb_tensile.bench import rows as shared
from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import NETWORKS, graph_of
from indb_tensile.bench.options import portion, whole
from indb_tensile.bench.recurrent import recurrent
from indb_tensile.bench.residual import residual
from indb_tensile.bench.rows import Case, Plans, Row
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.machines import REFERENCE
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.policies.tensile_plus import tensile_plus
from indb_tensile.scheduler.score import overhead, score
from indb_tensile.scheduler.search.replan import replan
from indb_tensile.scheduler.simulate import JobRun, simulate

OPERATORS = (1_000, 3_000, 10_000)
FAMILIES = {"residual": residual, "recurrent": recurrent}
JOBS = (1, 4)
RIVALS = ("capuchin", "vdnn", "superneurons", "autoswap")
LINK_GB_S = 25.0
_SHARE = 0.6  # of the liveness peaks, where no other is asked for
_WAYS = tuple((2 * tenth + 1) / 20 for tenth in reversed(range(10)))  # of the way from the floor to that peak
_TIMES = ("planning_ms", "planning_cpu_ms", "replanning_ms", "replanning_cpu_ms", "replanning_cold_ms")
_DRIFT = 0.05  # by how much an operator's time moves at most, either way
_LEAST_S = 1.0  # that a rival may take in any case


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per policy, size, number of jobs and budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operators", nargs="+", type=whole(), default=list(OPERATORS), help="of each job")
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=["residual"])
    parser.add_argument("--jobs", nargs="+", type=whole(), default=list(JOBS))
    parser.add_argument(
        "--models", nargs="*", default=None, metavar="NAME", help=f"of {', '.join(NETWORKS)}; all where none is named"
    )
    parser.add_argument("--policies", nargs="+", default=[DEFAULT_POLICY], help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--budget", nargs="+", type=portion, default=None, help="shares of the liveness peaks")
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), help="whose plans are compared with ours")
    parser.add_argument("--share", type=float, default=2.0, help="of our planning time, that a rival may take")
    parser.add_argument("--work", type=whole(2), default=None, help="times the usual work, to compare with")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args(arguments)
    for row in measure(given):
        print(shared.stamped(row) if given.json else _line(row), flush=True)


def measure(given: argparse.Namespace) -> Iterator[Row]:
    """Rows by size of the graphs, number of jobs, policy and budget."""
    policies = shared.known_policies(given.policies)
    rivals = shared.known_policies(given.rivals) if given.rivals else ()
    sizes: list[tuple[str, int]] = [(family, size) for family in given.families for size in given.operators]
    if given.models is not None:
        sizes = [(name, 0) for name in given.models or NETWORKS]
    for size, jobs, policy in product(sizes, given.jobs, policies):
        for budget in _budgets(given):
            rounds = [_round(size, jobs, policy, budget, number) for number in range(given.rounds)]
            row, case = rounds[0]
            row |= {name: median(one[name] for one, _ in rounds) for name in _TIMES}
            if policy == DEFAULT_POLICY:
                row |= _compared(case, row, rivals, given)
            yield row


def _budgets(given: argparse.Namespace) -> list[Callable[[Case], int]]:
    """Bytes for all jobs of a case together."""

    def share_of(share: float) -> Callable[[Case], int]:
        return lambda case: round(share * case.liveness_peak_bytes)

    def way_to(way: float) -> Callable[[Case], int]:
        return lambda case: case.floor_bytes + round(way * (case.liveness_peak_bytes - case.floor_bytes))

    if given.budget is None and given.models is not None:
        return [way_to(way) for way in _WAYS]
    return [share_of(share) for share in given.budget or (_SHARE,)]


def _round(
    size: tuple[str, int], jobs: int, policy: str, budget: Callable[[Case], int], number: int
) -> tuple[Row, Case]:
    """A fresh set of jobs, planned and planned again."""
    graphs = [_graph(size, number * jobs + job) for job in range(jobs)]
    labels = {"model": size[0], "operators": len(graphs[0].operators), "jobs": jobs}
    case = shared.make_case(graphs, REFERENCE, LINK_GB_S, labels=labels)
    budget_bytes = budget(case)
    planned = _unseen(case)
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
        **shared.total(score(case.workloads, plans, case.link, against=case.baselines)),
        "planning_ms": round(planning_ms, 3),
        "planning_cpu_ms": round(planning_cpu_ms, 3),
        "replanning_ms": round(replanning_ms, 3),
        "replanning_cpu_ms": round(replanning_cpu_ms, 3),
        "replanning_cold_ms": round(_renewed(_unseen(moved), policy, budget_bytes, plans), 3),
    }
    return row, case


def _simulated(case: Case, plans: Sequence[tuple[Plan, ...]]) -> tuple[float, int]:
    """The overhead of all jobs together, and the sum of their peaks."""
    runs = [
        JobRun(graph=w.graphs[0], plan=chosen[0], latency_ns=w.latency_ns[0])
        for w, chosen in zip(case.workloads, plans, strict=True)
    ]
    forecasts = simulate(runs, case.link, compute=case.compute)
    eor = overhead(case.baselines, [forecast.iteration_ns for forecast in forecasts])
    return eor, sum(forecast.peak_bytes for forecast in forecasts)


def _compared(case: Case, row: Row, rivals: Sequence[str], given: argparse.Namespace) -> Row:
    """What the best of the rivals reaches in its time, and our own policy with more work."""
    found: dict[str, float] = {}
    stopped: list[str] = []
    for policy in rivals:
        try:
            with _within(max(_LEAST_S, given.share * row["planning_ms"] / 1e3)):
                plans, _ = shared.timed(_unseen(case), policy, row["budget_bytes"])
        except TimeoutError:
            stopped.append(policy)
            continue
        eor, peak_bytes = _simulated(case, plans)
        if peak_bytes <= row["budget_bytes"]:
            found[policy] = eor
    best = min(found, key=lambda name: (found[name], name), default=None)
    compared = {"rival": best, "rival_eor": best and round(found[best], 6), "rivals_stopped": stopped}
    if given.work is None:
        return compared
    fresh = _unseen(case)
    more = tensile_plus(fresh.workloads, budget_bytes=row["budget_bytes"], link=case.link, work=given.work)
    return {**compared, "work": given.work, "more_eor": round(_simulated(fresh, more)[0], 6)}


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """Raises TimeoutError in what runs inside once so many seconds are over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
        f"{row['policy']:<9} {row['model']:<12} {row['operators']:>6} operators x {row['jobs']} jobs at "
        f"{row['budget']:.0%}: {row['planning_ms']:,.0f} ms ({row['planning_cpu_ms']:,.0f} of a processor), "
        f"again {row['replanning_ms']:,.0f} ms ({row['replanning_cpu_ms']:,.0f} of a processor, "
        f"{row['replanning_cold_ms']:,.0f} ms with nothing remembered); "
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
    """The graph, with a signature of its own in each round: nothing planned before may serve it."""
    name, operators = size
    graph = FAMILIES[name](operators) if operators else graph_of(name)
    return replace(graph, signature=f"{graph.signature} {number}")


if __name__ == "__main__":
    run(main)
