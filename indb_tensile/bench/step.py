"""A planned step beside PyTorch's own ways to train with as little memory: run on the emulated device, in turns.

    python -m indb_tensile.bench.step --model resnet50 [--batch 2] [--side 64] [--segments 2 4 8]
        [--activations 0.7 …] [--budgets 0.8 …] [--machine a6000] [--rounds 3] [--iterations 3] [--compiler inductor]
        [--json]

The rivals (bench/rivals.py): eager PyTorch with fused Adam, `torch.utils.checkpoint` in several numbers of segments,
`save_on_cpu` and `torch.compile` with several values of `activation_memory_budget`. Ours is the captured step:
without a budget, at shares of eager's peak, and at the peak of every rival. The device is the machine with its clock
slowed down to this very step. Everyone uploads the batch through the same link, takes turns in every round, starts
each turn from the same parameters and draws the same random numbers.

One row each: `peak_allocated_bytes` is measured, the rivals' from torch's allocator and ours from the device's
ledger; `peak_reserved_bytes` is what PyTorch's caching allocator makes of the rival's allocations and what our
placement needs, in regions. `step_ms` is the median over the rounds, `eor` that of the ratios to eager of the same
round. `exact`: the parameters of each round equal eager's bit for bit; `buffers_exact` says so of running statistics,
which a segment that runs twice updates twice.

The verdict: without saving ours is to take at most 1.00 of eager's time where computation dominates and 1.05 where
starting operators does; at every peak below it is to be the fastest of those that are exact. It ends with 1 where it
is not.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from indb_tensile import config
from indb_tensile.bench import networks
from indb_tensile.bench.allocations import Memory, measure_memory
from indb_tensile.bench.networks import NETWORKS, Network
from indb_tensile.bench.rivals import SEED, Contender, Torch, default_compiler, rivals
from indb_tensile.bench.rows import stamped
from indb_tensile.bench.trial import Subject, Trial, emulated, same_bits, slowed_link, workload
from indb_tensile.errors import TensileError
from indb_tensile.executor.device import REGION_BYTES, EmulatedDevice
from indb_tensile.executor.hardware import EMULATED_SPEED
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.machines import MACHINES, REFERENCE, machine
from indb_tensile.scheduler.peak import LIVENESS, peak, vanilla_peak
from indb_tensile.scheduler.placement import place
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload, plan_jobs
from indb_tensile.scheduler.residency import intervals
from indb_tensile.scheduler.rewrite import effective

Row = dict[str, Any]

OURS = "tensile+"
COMPUTING, STARTING = 1.00, 1.05  # of eager's time without saving, where computation or starting dominates
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a comparison is made."""

    machine: str = REFERENCE.name
    segments: tuple[int, ...] = (2, 4, 8)
    activations: tuple[float, ...] = (0.8, 0.5, 0.2)
    budgets: tuple[float, ...] = (0.8, 0.6)
    compiler: str = field(default_factory=default_compiler)
    rounds: int = 3
    iterations: int = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each method, and the verdict."""
    given = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    asked = Asked(
        machine=given.machine,
        segments=tuple(given.segments),
        activations=tuple(given.activations),
        budgets=tuple(given.budgets),
        compiler=given.compiler,
        rounds=given.rounds,
        iterations=given.iterations,
    )
    lines: list[str] = []
    try:
        for name in given.models:
            network = networks.find(name)
            network = network if given.side is None else network.resized(given.side)
            rows = measure(Subject.of(network, given.batch), asked, network)
            for row in rows:
                print(stamped(row) if given.json else _line(row), flush=True)
            lines += verdict(rows)
    except TensileError as error:
        sys.exit(f"{error.message}\n  hint: {error.hint}" if error.hint else error.message)
    for line in lines:
        print(line, file=sys.stderr if given.json else sys.stdout)
    sys.exit(int(any("NOT" in line for line in lines)))


def measure(subject: Subject, asked: Asked, network: Network | None = None) -> list[Row]:
    """Everyone's row, eager's first; checkpoints only of a known network."""
    step = subject.capture()
    link = slowed_link(subject, step, machine(asked.machine), asked.iterations)
    with emulated(link, 2 * vanilla_peak(step.graph)) as device:
        trial = Trial(subject, step, device)
        work = workload(step, trial.run(LIVENESS, asked.iterations).latency_ns)
        trial.runner.close()
        shared = Torch(subject, device)
        entries = [
            _Entry(one, measure_memory(_warm(one), shared.standing()))
            for one in rivals(
                shared,
                network,
                device,
                segments=asked.segments,
                budgets=asked.activations,
                compiler=asked.compiler,
            )
        ]
        shared.restart()  # ours starts from the same parameters
        trial = Trial(subject, step, device, sample_every=_NEVER)
        entries += _ours(trial, work, link, asked.budgets, entries)
        _take_turns(entries, device, frozenset(name for name, _ in subject.module.named_parameters()), asked)
        trial.runner.close()
        shared.close()
    starting_ns = EMULATED_SPEED.launch_ns * len(step.graph.operators)
    labels = {"model": subject.name, "batch": len(subject.x), "row": list(subject.x.shape[1:])}
    labels |= {"machine": asked.machine, "link_bytes_per_s": link.out_bytes_per_s}
    return [_row(labels, entry, entries[0], starting_ns) for entry in entries]


@dataclass(slots=True)
class _Entry:
    """One contender, and what was seen of it."""

    contender: Contender
    memory: Memory
    step_ns: list[float] = field(default_factory=list)  # by round
    exact: list[bool] = field(default_factory=list)
    buffers_exact: list[bool] = field(default_factory=list)


def _warm(contender: Contender) -> Callable[[], None]:
    """Its iteration, once it has run: by then optimizer state is there and kernels are chosen."""
    contender.iterate()
    return contender.iterate


def _ours(
    trial: Trial, work: Workload, link: Link, shares: Sequence[float], others: Sequence[_Entry]
) -> Iterator[_Entry]:
    """The captured step under one plan for each budget, where that is a new one."""
    eager_bytes = others[0].memory.allocated_bytes
    asked = {round(share * eager_bytes) for share in shares} | {entry.memory.allocated_bytes for entry in others}
    plans: list[Plan] = [LIVENESS]
    for budget_bytes in sorted(asked, reverse=True):
        found = plan_jobs([work], budget_bytes=budget_bytes, link=link)
        chosen = found[0].plans[0] if isinstance(found, tuple) else LIVENESS
        if (chosen.swaps or chosen.executions) and chosen not in plans:
            plans.append(chosen)
    graph = trial.step.graph
    for plan in plans:
        peak_bytes = peak(graph, plan)
        placed_bytes = place(intervals(graph, plan), len(effective(graph, plan).operators)).size_bytes
        memory = Memory(allocated_bytes=peak_bytes, reserved_bytes=-(-placed_bytes // REGION_BYTES) * REGION_BYTES)
        name = f"{OURS}, {'no saving' if plan is LIVENESS else f'{peak_bytes / config.MIB:.1f} MB'}"
        contender = Contender(
            method=name, restart=partial(_restart, trial, plan), iterate=trial.iterate, values=trial.state.export
        )
        yield _Entry(contender, memory)


def _restart(trial: Trial, plan: Plan) -> None:
    trial.adopt(plan)
    trial.restart()


def _take_turns(entries: Sequence[_Entry], device: EmulatedDevice, trained: frozenset[str], asked: Asked) -> None:
    """Each round everyone starts anew, warms up by one iteration, and is timed for some more; eager comes first."""
    for _ in range(asked.rounds):
        reference: dict[str, torch.Tensor] = {}
        for entry in entries:
            one = entry.contender
            one.restart()
            device.reset_high_water()
            torch.manual_seed(SEED)
            one.iterate()
            start_ns = time.perf_counter_ns()
            for _ in range(asked.iterations):
                one.iterate()
            entry.step_ns.append((time.perf_counter_ns() - start_ns) / asked.iterations)
            _check_peak(entry, device)
            values = one.values()
            reference = reference or values
            alike = {name: same_bits(values[name], tensor) for name, tensor in reference.items()}
            entry.exact.append(all(alike[name] for name in trained))
            entry.buffers_exact.append(all(alike.values()))


def _check_peak(entry: _Entry, device: EmulatedDevice) -> None:
    """A plan's peak is what the ledger saw, to the byte."""
    seen_bytes = device.usage().high_water_bytes
    if entry.contender.method.startswith(OURS):
        planned_bytes = entry.memory.allocated_bytes
        assert seen_bytes == planned_bytes, f"{entry.contender.method}: planned {planned_bytes}, saw {seen_bytes}"


def _row(labels: Row, entry: _Entry, eager: _Entry, starting_ns: int) -> Row:
    step_ns = median(entry.step_ns)
    return {
        **labels,
        "method": entry.contender.method,
        "peak_allocated_bytes": entry.memory.allocated_bytes,
        "peak_reserved_bytes": entry.memory.reserved_bytes,
        "step_ms": round(step_ns / 1e6, 3),
        "samples_per_s": round(labels["batch"] * 1e9 / step_ns, 2),
        "eor": round(median(a / b for a, b in zip(entry.step_ns, eager.step_ns, strict=True)), 4),
        "exact": all(entry.exact),
        "buffers_exact": all(entry.buffers_exact),
        "starting_share": round(starting_ns / step_ns, 3),  # of the step's time, if an operator's start takes 5 us
    }


def verdict(rows: Sequence[Row]) -> Iterator[str]:
    """Whether ours is as fast as eager without saving, and the fastest of the exact ones at every peak."""
    model, eager = rows[0]["model"], rows[0]
    ours = [row for row in rows if row["method"].startswith(OURS)]
    unsaving = next(row for row in ours if row["method"] == f"{OURS}, no saving")
    starting = eager["starting_share"] > 0.5
    bar = STARTING if starting else COMPUTING
    told = (
        f"{unsaving['eor']:.3f} of eager's time, of {bar:.2f} ({'starting' if starting else 'computation'} dominates)"
    )
    yield f"{model} without saving: {'reaches' if unsaving['eor'] <= bar else 'NOT REACHED:'} {told}"
    for row in rows[1:]:
        if row in ours:
            continue
        peak_bytes = row["peak_allocated_bytes"]
        at = f"{model} at {peak_bytes / config.MIB:.1f} MB"
        best = min((one["eor"] for one in ours if one["peak_allocated_bytes"] <= peak_bytes), default=None)
        if not row["exact"]:
            yield f"{at}: {row['method']} changes results; EOR {row['eor']:.3f}, ours {best}"
        elif best is not None and best <= row["eor"]:
            yield f"{at}: covers {row['method']}, EOR {best:.3f} of {row['eor']:.3f}"
        else:
            yield f"{at}: NOT FASTEST, EOR {best}; {row['method']} {row['eor']:.3f}"


def _line(row: Row) -> str:
    sizes = " ".join(f"{row[f'peak_{kind}_bytes'] / config.MIB:9.1f}" for kind in ("allocated", "reserved"))
    exact = "exact" if row["exact"] else "NOT exact"
    return (
        f"{row['model']:<13} {row['method']:<42} {sizes} MB {row['step_ms']:10.2f} ms  EOR {row['eor']:.3f}  {exact}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", "--model", nargs="+", default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--side", "--pixels", type=int, help="pixels a side, or tokens; without it the network's own")
    parser.add_argument("--machine", choices=MACHINES, default=REFERENCE.name, help="what the device stands for")
    default = Asked()
    parser.add_argument("--segments", nargs="*", type=int, default=default.segments, help="of checkpoint")
    parser.add_argument("--activations", nargs="*", type=float, default=default.activations, help="of torch.compile")
    parser.add_argument("--budgets", nargs="*", type=float, default=default.budgets, help="shares of eager's peak")
    parser.add_argument("--compiler", choices=("inductor", "aot_eager"), default=default.compiler)
    parser.add_argument("--rounds", type=int, default=default.rounds)
    parser.add_argument("--iterations", type=int, default=default.iterations, help="in one turn")
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    main()
