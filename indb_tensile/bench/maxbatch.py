"""The largest batch that a device's memory allows, planned and by eager PyTorch, and how fast each trains it.

    python -m indb_tensile.bench.maxbatch [--models resnet50 …] [--budget 8GB] [--shares 0 0.5] [--machine a6000]
        [--simulated | --side 96] [--json]

Executed (`--side` pixels or tokens, `--budget` to match): eager's peak is what its step really allocates, ours is
planned and confirmed by one executed iteration, whose peak the ledger sees; both upload through the link of the
machine with its clock slowed down to the step. Simulated: networks at their own size, captured on tensors without
memory, times by the machine's roofline; eager's peak is what liveness needs, to eager's favour: no allocator loses
anything.

Nobody looks beyond 12 times eager's batch. A larger one is of use only while it trains, so ours has a row for each
share of eager's throughput (samples a second at eager's largest batch) that it is to keep; 0: however slow. HOME
reports 2.8 times PyTorch's batch at best; the verdict is on how many of six networks that is reached.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import torch

from indb_tensile import config
from indb_tensile.bench import networks
from indb_tensile.bench.allocations import measure_memory
from indb_tensile.bench.ending import run
from indb_tensile.bench.line import Line
from indb_tensile.bench.networks import Network, graph_of
from indb_tensile.bench.options import portion, whole
from indb_tensile.bench.rivals import EAGER, Torch
from indb_tensile.bench.rows import stamped
from indb_tensile.bench.trial import UNTHROTTLED, Subject, Trial, emulated, require_memory, slowed_link, small
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture import CapturedStep
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.machines import MACHINES, REFERENCE, Machine, latencies, machine
from indb_tensile.scheduler.peak import floor, liveness_peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, Workload, plan_jobs

Row = dict[str, Any]

MODELS = ("vgg16", "resnet50", "inception_v3", "densenet121", "mobilenet_v2", "squeezenet")
HOMES = 2.8  # times PyTorch's batch: HOME's best
_NETWORKS = 3  # on which it is to be reached
_MOST_ROWS = 1 << 20
_TIMES = 12  # eager's batch: beyond that nobody looks, and a step would run for minutes
_RETREAT = 0.96  # of a batch that was foreseen and did not fit, or was too slow
_SIMULATED_BYTES = 8 * config.GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One batch that fits: what it needs, and how long an iteration takes."""

    rows: int
    peak_bytes: int
    iteration_ns: int

    @property
    def samples_per_s(self) -> float:
        """How fast it trains."""
        return self.rows * 1e9 / self.iteration_ns


class Device(Protocol):
    """Where batches are tried: simulated or executed. Both give None for what does not fit."""

    def eager(self, rows: int) -> Ran | None:
        """A batch of so many rows by eager PyTorch."""
        ...

    def planned(self, rows: int) -> Ran | None:
        """The same as a plan is foreseen for it: quick, and perhaps a little wrong."""
        ...

    def confirmed(self, rows: int) -> Ran | None:
        """The same as it is: what is reported."""
        ...

    def may_fit(self, rows: int) -> bool:
        """Whether a plan could fit: quick, and never wrong where it says no."""
        ...


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network and share, and the verdict."""
    given = _parser().parse_args(arguments)
    for name in given.models:
        networks.find(name)
    torch.set_num_threads(1)
    found: list[Row] = []
    for name in given.models:
        device, labels = _device(given, name)
        for row in measure(labels, device, given.shares):
            found.append(row)
            print(stamped(row) if given.json else _line(row), flush=True)
    told = verdict(found)
    print(told, file=sys.stderr if given.json else sys.stdout)
    sys.exit(int("NOT" in told))


def measure(labels: Row, device: Device, shares: Sequence[float]) -> Iterator[Row]:
    """A row for each share of eager's throughput that is to be kept. Raises RequestError where eager fits nothing."""
    eager = largest(device.eager, lambda _: True)
    if eager is None:
        raise RequestError(
            f"{labels['model']} does not fit its budget of {labels['budget_bytes']} bytes with one row",
            hint="Give a larger --budget.",
        )
    for share in shares:
        ours = _ours(device, eager, share) or eager
        yield {
            **labels,
            "throughput_share": share,
            "eager_batch": eager.rows,
            "eager_peak_bytes": eager.peak_bytes,
            "eager_samples_per_s": round(eager.samples_per_s, 3),
            "batch": ours.rows,
            "peak_bytes": ours.peak_bytes,
            "samples_per_s": round(ours.samples_per_s, 3),
            "ratio": round(ours.rows / eager.rows, 3),
        }


def _ours(device: Device, eager: Ran, share: float) -> Ran | None:
    """The largest batch that is confirmed; where the one foreseen is not, a few per cent less, and so on."""
    least = share * eager.samples_per_s

    def fast(ran: Ran | None) -> Ran | None:
        return ran if ran is not None and ran.samples_per_s >= least else None

    foreseen = largest(
        lambda rows: fast(device.planned(rows)),
        lambda rows: rows <= _TIMES * eager.rows and device.may_fit(rows),
        at_least=eager.rows,
    )
    rows = foreseen.rows if foreseen is not None else 0
    while rows > eager.rows:
        ran = fast(device.confirmed(rows))
        if ran is not None:
            return ran
        rows = min(rows - 1, round(rows * _RETREAT))
    return None


def largest(attempt: Callable[[int], Ran | None], may: Callable[[int], bool], at_least: int = 1) -> Ran | None:
    """The largest batch whose attempt is one: doubled until one fails, then by halving the distance."""
    found, high = attempt(at_least) if may(at_least) else None, at_least
    while found is not None and high < _MOST_ROWS:
        high *= 2
        more = attempt(high) if may(high) else None
        if more is None:
            break
        found = more
    low = found.rows if found is not None else high
    while high - low > 1:
        middle = (low + high) // 2
        more = attempt(middle) if may(middle) else None
        low, high = (low, middle) if more is None else (middle, high)
        found = more or found
    return found


def verdict(rows: Sequence[Row]) -> str:
    """On how many networks the batch is as many times PyTorch's as HOME's best, with what is left of its speed."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["model"] not in best or row["ratio"] > best[row["model"]]["ratio"]:
            best[row["model"]] = row
    reached = [
        f"{name} {row['ratio']:.2f} ({row['samples_per_s'] / row['eager_samples_per_s']:.0%} of its samples/s)"
        for name, row in best.items()
        if row["ratio"] >= HOMES
    ]
    least = min(_NETWORKS, -(-len(best) // 2))
    told = f"{HOMES} times eager's batch on {len(reached)} of {len(best)} networks: {', '.join(reached) or 'none'}"
    return told if len(reached) >= least else f"NOT REACHED: {told}"


# --- simulated ---------------------------------------------------------------------------------------------------


class Simulated:
    """Batches of a network, given as the workload of each number of rows, on a machine with its own link."""

    def __init__(self, works: Callable[[int], Workload], link: Link, budget_bytes: int) -> None:
        self._work = cache(works)
        self.link = link
        self._budget_bytes = budget_bytes
        self.planned = cache(self._planned)  # shares ask for the same batches

    @classmethod
    def of(cls, graphs: Callable[[int], StepGraph], machine: Machine, budget_bytes: int) -> "Simulated":
        """Times by the machine's roofline; every batch is a graph of its own."""
        return cls(partial(roofline, graphs, machine), machine.link, budget_bytes)

    def eager(self, rows: int) -> Ran | None:
        """What liveness needs, one operator after another."""
        work = self._work(rows)
        peak_bytes = liveness_peak(work.graphs[0])
        return _fitting(
            Ran(rows=rows, peak_bytes=peak_bytes, iteration_ns=sum(work.latency_ns[0])), self._budget_bytes
        )

    def may_fit(self, rows: int) -> bool:
        """Whether the largest operator does; parts of operators are left out."""
        return floor(self._work(rows).graphs[0]) <= self._budget_bytes

    def confirmed(self, rows: int) -> Ran | None:
        """The plan itself: nothing runs here."""
        return self.planned(rows)

    def _planned(self, rows: int) -> Ran | None:
        plan = _plan(self._work(rows), self._budget_bytes, self.link)
        if plan is None:
            return None
        return Ran(rows=rows, peak_bytes=plan.peak_bytes, iteration_ns=plan.forecast.iteration_ns)


class Drawn(Simulated):
    """The same, searched along a line; what is found is captured and planned for itself."""

    def __init__(self, graphs: Callable[[int], StepGraph], machine: Machine, budget_bytes: int) -> None:
        self._line = Line(partial(roofline, graphs, machine), 8, 16)
        super().__init__(self._line, machine.link, budget_bytes)
        self._itself = Simulated(self._line.work, machine.link, budget_bytes)

    def confirmed(self, rows: int) -> Ran | None:
        """By a plan for the batch as it is captured."""
        return self._itself.planned(rows)


def roofline(graphs: Callable[[int], StepGraph], machine: Machine, rows: int) -> Workload:
    """What to plan for at so many rows, with times by the machine's roofline."""
    graph = graphs(rows)
    return Workload(job=JobId(1), graphs=(graph,), latency_ns=(latencies(graph, machine),))


# --- executed ----------------------------------------------------------------------------------------------------


class Executed:
    """Batches of a network as they run here: eager by what its step allocates, ours by one step under its plan.

    The search for the largest plans along a line through two batches that were calibrated; the few it ends with run.
    """

    def __init__(self, network: Network, machine: Machine, budget_bytes: int, rows: int) -> None:
        self._network = network
        self._machine = machine
        self._budget_bytes = budget_bytes
        self._rows = rows
        self._calibrated = cache(self._calibrate)
        self.confirmed = cache(self._confirmed)
        self._foreseen: Simulated | None = None

    def eager(self, rows: int) -> Ran | None:
        """What its step really allocates, and one step's time, its batch uploaded in no time."""
        return _fitting(eager_step(Subject.of(self._network, rows)), self._budget_bytes)

    def may_fit(self, rows: int) -> bool:
        """Whether the largest operator does."""
        return self._line.may_fit(rows)

    def planned(self, rows: int) -> Ran | None:
        """As it is foreseen."""
        return self._line.planned(rows)

    @property
    def _line(self) -> Simulated:
        if self._foreseen is None:
            line = Line(lambda rows: self._calibrated(rows)[2], self._rows, 2 * self._rows)
            self._foreseen = Simulated(line, self._link(), self._budget_bytes)
        return self._foreseen

    def _link(self) -> Link:
        """By the batch that the budget is for, which eager runs too."""
        subject, step, _ = self._calibrated(self._rows)
        return slowed_link(subject, step, self._machine, 1)

    def _calibrate(self, rows: int) -> tuple[Subject, CapturedStep, Workload]:
        subject = Subject.of(self._network, rows)
        return subject, *subject.calibrated()

    def _confirmed(self, rows: int) -> Ran | None:
        subject, step, work = self._calibrated(rows)
        link = self._line.link
        plan = _plan(work, self._budget_bytes, link)
        if plan is None:
            return None
        # Every tensor that leaves has a host buffer of its own, and those of a batch may be many times the budget.
        host_bytes = 2 * sum(tensor.size_bytes for tensor in step.graph.tensors) + config.GIB
        with emulated(link, self._budget_bytes, host_bytes) as device:
            trial = Trial(subject, step, device)
            iteration_ns = trial.run(plan.plans[0], 1).iteration_ns
            seen_bytes = device.usage().high_water_bytes
            trial.runner.close()
        assert seen_bytes <= plan.peak_bytes, f"{rows} rows: planned {plan.peak_bytes} bytes, saw {seen_bytes}"
        return Ran(rows=rows, peak_bytes=plan.peak_bytes, iteration_ns=iteration_ns)


def eager_step(subject: Subject) -> Ran:
    """One iteration of eager PyTorch: what it allocates and how long it takes."""
    with emulated(UNTHROTTLED, config.MIB) as device:
        shared = Torch(subject, device)
        one = shared.contender(EAGER, subject.module)
        one.iterate()
        memory = measure_memory(one.iterate, shared.standing())
        start_ns = time.perf_counter_ns()
        one.iterate()
        iteration_ns = time.perf_counter_ns() - start_ns
        shared.close()
    return Ran(rows=len(subject.x), peak_bytes=memory.allocated_bytes, iteration_ns=iteration_ns)


def _plan(work: Workload, budget_bytes: int, link: Link) -> JobPlan | None:
    found = plan_jobs([work], budget_bytes=budget_bytes, link=link)
    return None if isinstance(found, Infeasible) else found[0]


def _fitting(ran: Ran, budget_bytes: int) -> Ran | None:
    return ran if ran.peak_bytes <= budget_bytes else None


# --- what is asked and printed -------------------------------------------------------------------------------------


def _device(given: argparse.Namespace, name: str) -> tuple[Device, Row]:
    network, stands_for = networks.find(name), machine(given.machine)
    labels = {"model": name, "mode": "simulated" if given.simulated else "executed", "machine": given.machine}
    if given.simulated:
        budget_bytes = _SIMULATED_BYTES if given.budget is None else _size(given.budget)
        labels |= {"side": network.row[-1], "budget_bytes": budget_bytes}
        return Drawn(partial(graph_of, name), stands_for, budget_bytes), labels
    network = small(network, given.side)
    if given.budget is None:
        budget_bytes = eager_step(Subject.of(network, given.batch)).peak_bytes
    else:
        budget_bytes = _size(given.budget)
        require_memory(f"a budget of {given.budget}, up to twice of which is tried", 2 * budget_bytes)
    labels |= {"side": network.row[-1], "budget_bytes": budget_bytes}
    return Executed(network, stands_for, budget_bytes, given.batch), labels


def _size(text: str) -> int:
    try:
        return config.parse_bytes(text)
    except ValueError:
        raise RequestError(f"a budget of {text!r} is no size", hint="Write it such as 8GB.") from None


def _line(row: Row) -> str:
    eager, ours = (f"{row[f'{whose}batch']} rows at {row[f'{whose}samples_per_s']:.1f}/s" for whose in ("eager_", ""))
    return (
        f"{row['model']:<13} {row['mode']}, {row['budget_bytes'] / config.MIB:,.0f} MB: eager {eager}; ours {ours}, "
        f"{row['ratio']:.2f} times, keeping {row['throughput_share']:.0%} of the speed"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME")
    parser.add_argument("--simulated", action="store_true", help="plan only, networks at their own size")
    parser.add_argument("--budget", help="such as 8GB, the default of --simulated; else what eager needs for --batch")
    parser.add_argument("--batch", type=whole(), default=4, help="rows for which the budget is just enough for eager")
    parser.add_argument("--side", "--pixels", type=whole(), help="pixels a side, or tokens; few without it")
    parser.add_argument("--shares", nargs="+", type=portion, default=(0.0, 0.5), help="of eager's samples a second")
    parser.add_argument("--machine", choices=MACHINES, default=REFERENCE.name)
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
