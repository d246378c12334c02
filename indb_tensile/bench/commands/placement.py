"""Measures how close to the load bound each way of placing a plan's residency intervals comes, and its time.

    python -m indb_tensile.bench placement [--network NAME ...] [--minimalloc DIRECTORY] [--repeat 5]
        [--rival ortools] [--json]

There are three kinds of instances: the hard ones of google/minimalloc, whose capacity is known; captured networks, as
eager PyTorch frees tensors (liveness) and under our plan for 60 % of that peak on the reference machine at 25 GB/s;
and a generated step of 10,000 intervals. `place` is ours, and `search` is ours within a given capacity. Best and
first fit are SmartPool as published. `caching` is PyTorch's allocator, which does not know later requests. With
`--rival ortools`, `ortools` is the CP-SAT solver, which runs once and stops after a fixed effort. `excess` is
relative to the load bound: the most bytes resident at one operator, below which no placement can be. Times are
medians of the processor's time, as every way runs on one core.
"""

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from indb_tensile.bench.harness.networks.known_networks import NETWORKS, graph_of, missing_library
from indb_tensile.bench.harness.planning import ortools_placement
from indb_tensile.bench.harness.planning.caching import reserved_bytes
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.config import MIB
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import OpIndex, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, liveness_peak
from indb_tensile.scheduler.memory.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.memory.tensor_placement import (
    ALIGNMENT_BYTES,
    Placement,
    Unplaced,
    best_fit,
    first_fit,
    place,
    place_within,
)
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.machines import REFERENCE, latencies
from indb_tensile.scheduler.workload import Workload, least_bytes

_MINIMALLOC = Path(__file__).parents[4] / "shared" / "data" / "minimalloc"
_LINK = Link(out_bytes_per_s=25_000_000_000, in_bytes_per_s=25_000_000_000)
_BUDGET = 0.6  # budget of each plan as a share of the liveness peak
_DEEP_INTERVALS = 10_000
_RIVAL_EFFORT = 1.0  # limit in units of the solver's deterministic time; a unit takes about 20 s on a hard instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Intervals of a cycle of `count` operators."""

    name: str
    plan: str
    held: tuple[Interval, ...]
    count: int
    alignment_bytes: int = ALIGNMENT_BYTES
    capacity_bytes: int | None = None  # a placement within it is known to exist


def main() -> None:
    """Print one row per instance and way of placing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", action="append", choices=sorted(NETWORKS), help="only this one; may be repeated")
    parser.add_argument(
        "--minimalloc", type=Path, default=_MINIMALLOC, help="directory of CSV files id,lower,upper,size"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rival", choices=("ortools",), help="also run this solver, which must be installed")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    arguments = parser.parse_args()
    if arguments.rival is not None:
        ortools_placement.solver()  # fails before anything is measured
    for instance in _instances(arguments.minimalloc, arguments.network or list(NETWORKS)):
        for row in measure(instance, arguments.repeat, rival=arguments.rival is not None):
            print(json.dumps(row) if arguments.json else _line(row), flush=True)


def measure(instance: Instance, repeat: int, *, rival: bool = False) -> Iterator[dict[str, Any]]:
    """Yield one row per way of placing, and one of the rival if it is wanted."""
    bound = load_bound(instance.held, instance.count)
    methods = [(method, way, repeat) for method, way in _methods(instance)]
    if rival:
        methods.append(("ortools", lambda: _rival_size(instance), 1))
    for method, way, runs in methods:
        took_ms, size_bytes = [], None
        for _ in range(runs):
            start_ns = time.process_time_ns()
            size_bytes = way()
            took_ms.append((time.process_time_ns() - start_ns) / 1e6)
        yield {
            "instance": instance.name,
            "plan": instance.plan,
            "method": method,
            "intervals": len(instance.held),
            "load_bound_bytes": bound,
            "capacity_bytes": instance.capacity_bytes,
            "size_bytes": size_bytes,
            "excess": None if size_bytes is None else round(size_bytes / bound - 1, 5),
            "placing_ms": round(median(took_ms), 2),
        }


def _methods(instance: Instance) -> Iterator[tuple[str, Callable[[], int | None]]]:
    resident, count, alignment = instance.held, instance.count, instance.alignment_bytes
    yield "place", lambda: place(resident, count, alignment_bytes=alignment).size_bytes
    if (capacity := instance.capacity_bytes) is not None:
        yield (
            "search",
            lambda: _size(place_within(resident, count, capacity_bytes=capacity, alignment_bytes=alignment)),
        )
    yield "best_fit", lambda: best_fit(resident, count, alignment_bytes=alignment).size_bytes
    yield "first_fit", lambda: first_fit(resident, count, alignment_bytes=alignment).size_bytes
    if instance.capacity_bytes is None:  # sizes of minimalloc's instances are not those of device memory
        yield "caching", lambda: reserved_bytes(resident, count)


def _rival_size(instance: Instance) -> int | None:
    """Return the size of the rival's placement: within the known capacity, else the smallest that it finds."""
    resident, count, alignment = instance.held, instance.count, instance.alignment_bytes
    within = first_fit(resident, count, alignment_bytes=alignment).size_bytes
    return ortools_placement.solved_size(
        resident,
        count,
        alignment_bytes=alignment,
        most_bytes=instance.capacity_bytes or within,
        any_size=instance.capacity_bytes is not None,
        effort=_RIVAL_EFFORT,
    )


def _size(placement: Placement | Unplaced) -> int | None:
    return placement.size_bytes if isinstance(placement, Placement) else None


# --- instances -------------------------------------------------------------------------------------------------


def _instances(minimalloc: Path, networks: Sequence[str]) -> Iterator[Instance]:
    paths = sorted(minimalloc.glob("*.csv"))
    if not paths:
        print(f"no instances of minimalloc in {minimalloc}: left out", file=sys.stderr)
    for path in paths:
        yield _read(path)
    for name in networks:
        lacking = missing_library(NETWORKS[name])
        if lacking is None:
            yield from _network(name)
        else:
            print(f"{name} needs {lacking}, which is not installed: left out", file=sys.stderr)
    yield deep(_DEEP_INTERVALS)


def _read(path: Path) -> Instance:
    """Read a file `NAME.CAPACITY.csv`, and number its moments 0, 1, ..."""
    name, capacity = path.stem.split(".")
    with path.open() as lines:
        rows = [(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(lines)]
    moments = {t: k for k, t in enumerate(sorted({t for lower, upper, _ in rows for t in (lower, upper)}))}
    resident = tuple(_interval(k, moments[a], moments[b], size) for k, (a, b, size) in enumerate(rows))
    return Instance(
        name=f"minimalloc {name}",
        plan="given",
        held=resident,
        count=len(moments),
        alignment_bytes=1,
        capacity_bytes=int(capacity),
    )


def _network(name: str) -> Iterator[Instance]:
    graph = graph_of(name)
    yield Instance(name=name, plan="liveness", held=intervals(graph, LIVENESS), count=len(graph.operators))
    workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=(latencies(graph, REFERENCE),))
    budget_bytes = max(least_bytes(workload), int(_BUDGET * liveness_peak(graph)))
    plan = POLICIES[DEFAULT_POLICY].plan((workload,), budget_bytes=budget_bytes, link=_LINK)[0][0]
    count = len(effective(graph, plan).operators)
    yield Instance(name=name, plan=DEFAULT_POLICY, held=intervals(graph, plan), count=count)


def deep(size: int) -> Instance:
    """Return a deep network's planned step.

    A third of the activations is away until the backward pass, and momentum is present only for its use.
    """
    chance = random.Random(size)  # noqa: S311 - a fixed sequence is wanted
    layers = size // 6
    count = 3 * layers
    resident: list[Interval] = []

    def hold(first: int, stop: int, size_bytes: int) -> None:
        resident.append(_interval(len(resident), first, stop, size_bytes))

    for k in range(layers):
        back = 2 * layers - k - 1
        activation, weight = (512 * round(2 ** chance.uniform(1, 14)) for _ in range(2))
        if k % 3 == 0 and back - k > 40:
            hold(k, k + chance.randrange(2, 20), activation)
            hold(back - chance.randrange(1, 20), back + 1, activation)
        else:
            hold(k, back + 1, activation)
            hold(k, k + 1, chance.choice((activation, 32 * MIB)))  # workspace
        hold(back - 1, back + 1, activation)  # its gradient
        hold(back, 2 * layers + k + 1, weight)  # the weight's gradient, until its update
        if k % 4 == 0:
            hold(back - 1, count + k + 1, weight)  # away between forward and backward
        else:
            hold(0, count, weight)
        update = 2 * layers + k
        hold(update - chance.randrange(1, 20), min(count, update + chance.randrange(2, 20)), weight)  # momentum
    return Instance(name=f"deep {len(resident)}", plan="generated", held=tuple(resident), count=count)


def _interval(index: int, first: int, stop: int, size_bytes: int) -> Interval:
    return Interval(tensor=TensorId(index), first=OpIndex(first), stop=stop, size_bytes=size_bytes)


def _line(row: dict[str, Any]) -> str:
    excess = "not placed" if row["size_bytes"] is None else f"{row['excess']:>8.2%} over the load"
    return (
        f"{row['instance']:<14} {row['plan']:<10} {row['intervals']:>6} intervals, load "
        f"{row['load_bound_bytes'] / MIB:>9.1f} MB  {row['method']:<10}{excess}  {row['placing_ms']:>9.1f} ms"
    )


if __name__ == "__main__":
    run(main)
