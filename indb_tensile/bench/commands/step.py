"""Compares a training step under memory plans with PyTorch's own ways to save memory, on one device.

    python -m indb_tensile.bench step [--models resnet50 …] [--batch 8] [--side 64] [--segments 2 4 8]
        [--activations 0.8 …] [--inductor 0.5 …] [--budgets 0.8 …] [--device emulated] [--machine a6000]
        [--rounds 9] [--link network] [--json]

Without `--models`, the networks for which bench/harness/execution/cases.py gives a size take part, each at a batch
and a side (pixels of an image's side, or tokens of a text) at which a step takes tenths of a second. A network takes
two to three minutes; VGG-16, BERT and GPT-2 take ten. With `--device cuda` the networks run on a GPU, at the sides
for which they were made and with larger batches.

Every contender trains the same network. They take turns on the device (bench/harness/comparisons/turns.py) and upload
the batch through the same link:

- The rivals (bench/harness/comparisons/rivals.py) are eager PyTorch with fused Adam, `torch.utils.checkpoint` with
  several numbers of segments, `save_on_cpu`, and `torch.compile` with several values of `activation_memory_budget`.
  `torch.compile` runs with two backends: `aot_eager`, which runs the same kernels as eager, and inductor, whose
  results differ. Inductor compiles C++ for minutes, so on an emulated device only networks that it compiles quickly
  include it.
- Ours is the captured step under several plans: one that neither swaps nor recomputes (rows name it "no saving"), and
  plans whose budgets are shares of eager's peak and the peak of every rival.

The emulated device imitates the machine of `--machine` slowed down by a constant factor, which is chosen so that its
step takes as long as the step on this computer.

Each contender has one row:

- `peak_allocated_bytes` is measured; ours is the planned peak if that is larger. The rivals' figures come from
  torch's allocator. Ours come from the device's ledger, which counts the memory that the device has handed out, or on
  a GPU from the memory that the device's arena gave to torch's tensors.
- `peak_reserved_bytes` of ours is the memory that the arena has acquired from the driver. Memory beyond the plan's
  peak was given back to the driver before the measurement. On an emulated device that of a rival is what PyTorch's
  caching allocator would reserve for the same allocations, because torch has no caching allocator for the CPU.
- `outside_bytes` is memory that torch has outside the arena, such as cuBLAS's workspace.
- `served` is false if in some turn no tensor was at its planned address. Tensors are elsewhere if they cannot be
  packed into memory that is only a few of the arena's regions larger than their peak.
- `step_ms` is the median of the common rounds. `eor` (extra overhead ratio) is the median of the ratios to eager's
  time in the same round, so that 1 means as fast as eager, and `rounds` is the number of these rounds. Eager and our
  step without swaps and recomputation meet in many more rounds, run for these two alone, and their `eor` and `rounds`
  come from those.
- `launch_share` is the part of the step in which the host launches operators, at the device's time per launch.
- `exact` says whether the parameters of each round equal eager's bit for bit. `buffers_exact` says the same of
  running statistics, which a checkpointed segment updates twice.
- `turnover` (bench/harness/execution/turnover.py) is the bytes that the link can move during a step without swaps,
  divided by the peak of that step. Overheads are comparable at similar turnovers. `simulated_turnover` is that of the
  same step on the machine, with the latencies of a roofline model. `network_turnover` is that of the network with its
  usual batch and size on the machine, to which simulated figures refer. With `--link network` the emulated link has
  the bandwidth that gives the step this turnover.

The verdict has three demands. Our rows are exact, in parameters and buffers. Our step without swaps and recomputation
takes at most 1.00 of eager's time where computation dominates, and 1.05 where launches dominate. For every exact
rival, one of our plans with no larger peak is at least as fast. The exit code is 1 if the verdict fails.

On an emulated device the rivals run in this process: the shim, a library through which the arena serves torch's
allocations, is preloaded but does not serve them. On a GPU they run in another process, with torch's own allocator.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from indb_tensile import config
from indb_tensile.bench.harness.comparisons.remote_contenders import memory_of, remote_contenders
from indb_tensile.bench.harness.comparisons.rivals import (
    AOT_EAGER,
    INDUCTOR,
    LocalContender,
    TorchTraining,
    has_compiler,
    rivals,
)
from indb_tensile.bench.harness.comparisons.turns import Entry, TurnLimits, duel, take_turns
from indb_tensile.bench.harness.execution.benchmark_processes import preload, run_each_alone
from indb_tensile.bench.harness.execution.cases import SIZES, BenchmarkCase, Source, add_sizes
from indb_tensile.bench.harness.execution.device_rig import DeviceRig, RunTarget, add_target, set_up, target
from indb_tensile.bench.harness.execution.trial import TrainingSubject, workload
from indb_tensile.bench.harness.execution.turnover import network_turnover, simulated_turnover, turnover
from indb_tensile.bench.harness.networks.known_networks import NETWORKS
from indb_tensile.bench.harness.processes.argument_types import portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload, plan_jobs

Row = dict[str, Any]

OURS = "tensile+"
OURS_UNCONSTRAINED = f"{OURS}, no saving"  # the plan LIVENESS: it frees tensors after their last use, and no more
# The longest time of our unconstrained step, as a multiple of eager's: where computation dominates, and where
# launches of operators do.
COMPUTE_BOUND_LIMIT, LAUNCH_BOUND_LIMIT = 1.00, 1.05
STEP, NETWORK = "step", "network"  # whether the emulated link matches the step's or the whole network's turnover
_NEVER = 1 << 62  # sample_every: no iteration is sampled for latencies
_QUICKLY_COMPILED = frozenset({"vgg16", "squeezenet"})  # by inductor, so that they include it by default


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Options of one comparison."""

    target: RunTarget = field(default_factory=RunTarget)
    segments: tuple[int, ...] = (2, 4, 8)
    activations: tuple[float, ...] = (0.8, 0.5, 0.2)
    inductor: tuple[float, ...] = ()
    budgets: tuple[float, ...] = (0.8, 0.6)
    pace: TurnLimits = field(default_factory=TurnLimits)

    @property
    def compiled(self) -> tuple[tuple[str, float], ...]:
        """Return each compiler with the share of activations that it may keep for the backward pass."""
        return (*((AOT_EAGER, share) for share in self.activations), *((INDUCTOR, share) for share in self.inductor))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each contender, and the verdict. The exit code is 1 if the verdict fails."""
    options = _parser().parse_args(arguments)
    run_each_alone(options.models)  # several networks: starts a process for each, and exits
    preload()  # the first time: restarts this process with the shim
    torch.set_num_threads(1)
    passed = True
    run_target = target(options)
    for name in options.models:
        case = BenchmarkCase.of(name, options.batch, options.side, emulated=run_target.emulated)
        if options.link == NETWORK:
            run_target = replace(run_target, turnover=network_turnover(case.network, run_target.stands_for))
        rows = measure(case, _comparison(options, run_target, name))
        for row in rows:
            print(stamped(row) if options.json else _line(row), flush=True)
        for finding in verdict(rows):
            print(finding.text, file=sys.stderr if options.json else sys.stdout, flush=True)
            passed &= finding.passed
    sys.exit(int(not passed))


def _comparison(options: argparse.Namespace, run_target: RunTarget, name: str) -> StepOptions:
    inductor = (0.5,) if has_compiler() and (name in _QUICKLY_COMPILED or not run_target.emulated) else ()
    return StepOptions(
        target=run_target,
        segments=tuple(options.segments),
        activations=tuple(options.activations),
        inductor=inductor if options.inductor is None else tuple(options.inductor),
        budgets=tuple(options.budgets),
        pace=TurnLimits(rounds=options.rounds),
    )


def measure(source: Source, comparison: StepOptions) -> list[Row]:
    """Return a row for each contender, eager's first. A source without a known network has no checkpointed rival."""
    subject = source.subject()
    log = partial(_log, subject.name, time.perf_counter())
    with set_up(comparison.target, subject) as rig:
        trial = rig.trial(subject)
        work = workload(rig.step, trial.run(LIVENESS, 3).latency_ns)
        trial.runner.close()
        log(f"{len(rig.step.graph.operators)} operators are captured and measured")
        with _torch_entries(source, subject, comparison, rig) as entries:
            log(f"{len(entries)} rivals have run")
            ours = _PlannedStep(subject, rig)
            plans = _plans(work, rig.link, comparison.budgets, [entry.peak_bytes for entry in entries])
            entries += [ours.entry(plan) for plan in plans]
            log(f"{len(plans)} plans are made")
            trained = frozenset(name for name, _ in subject.module.named_parameters())
            take_turns(entries, trained, comparison.pace, ours.finished)
            log(f"{len(entries[0].step_ns)} rounds have been run")
            unconstrained = next(entry for entry in entries if entry.contender.method == OURS_UNCONSTRAINED)
            duel(entries[0], unconstrained, comparison.pace)
            log(f"{len(entries[0].duel_ns)} rounds of eager and our unconstrained step have been run")
            ours.close()
    labels = {"model": subject.name, "batch": len(subject.x), "row": list(subject.x.shape[1:])}
    labels |= {"machine": comparison.target.named, "link_bytes_per_s": rig.link.out_bytes_per_s}
    labels |= _turnovers(source, comparison.target, rig, median(unconstrained.step_ns))
    launches_ns = rig.launch_ns * len(rig.step.graph.operators)
    return [_row(labels, entry, entries[0], launches_ns, ours) for entry in entries]


def _turnovers(source: Source, run_target: RunTarget, rig: DeviceRig, step_ns: float) -> Row:
    """Return the link's turnover of the step here and on the machine, and of the network at its usual size there."""
    graph, machine = rig.step.graph, run_target.stands_for
    network = None if source.network is None else network_turnover(source.network, machine)
    return {
        "turnover": round(turnover(graph, rig.link, step_ns), 3),
        "simulated_turnover": round(simulated_turnover(graph, machine), 3),
        "network_turnover": None if network is None else round(network, 3),
    }


@contextmanager
def _torch_entries(
    source: Source, subject: TrainingSubject, comparison: StepOptions, rig: DeviceRig
) -> Iterator[list[Entry]]:
    """Yield the rivals. On an emulated device they run in this process, on a GPU in another one."""
    make = partial(_rivals, source, comparison)
    if not comparison.target.emulated:
        with remote_contenders(source.subject, make, rig.opened.torch_device) as contenders:
            yield [
                Entry(contender, contender.memory.allocated_bytes, contender.memory.reserved_bytes)
                for contender in contenders
            ]
        return
    shared = TorchTraining.on(subject, rig.opened)
    local = [(contender, memory_of(contender, shared)) for contender in make(shared)]
    shared.restart()  # ours starts from the same parameters
    yield [Entry(contender, memory.allocated_bytes, memory.reserved_bytes) for contender, memory in local]
    shared.close()


def _rivals(source: Source, comparison: StepOptions, shared: TorchTraining) -> Iterator[LocalContender]:
    return rivals(shared, source.network, segments=comparison.segments, compiled=comparison.compiled)


def _log(name: str, started_s: float, progress: str) -> None:
    print(f"{name} after {time.perf_counter() - started_s:.0f} s: {progress}", file=sys.stderr, flush=True)


def _plans(work: Workload, link: Link, shares: Sequence[float], rival_bytes: Sequence[int]) -> list[Plan]:
    """Return LIVENESS and one plan for each budget, without repetitions. Eager's bytes come first in `rival_bytes`.

    A budget that no plan meets, or that LIVENESS meets, adds no plan.
    """
    budgets = {round(share * rival_bytes[0]) for share in shares} | set(rival_bytes)
    plans: list[Plan] = [LIVENESS]
    for budget_bytes in sorted(budgets, reverse=True):
        outcome = plan_jobs([work], budget_bytes=budget_bytes, link=link)
        chosen = outcome[0].plans[0] if isinstance(outcome, tuple) else LIVENESS  # no tuple: the budget is infeasible
        if (chosen.swaps or chosen.executions) and chosen not in plans:
            plans.append(chosen)
    return plans


class _PlannedStep:
    """The captured step under its plans. The device grants each plan only its peak."""

    def __init__(self, subject: TrainingSubject, rig: DeviceRig) -> None:
        self._rig = rig
        self._placer = rig.placer()
        self._trial = rig.trial(subject, sample_every=_NEVER, placer=self._placer)
        self._adopted: Plan | None = None
        self._placed_before = 0  # allocations at their planned addresses when the current turn began
        self.unserved: set[str] = set()  # methods that had a turn without any allocation at its planned address
        self.outside_bytes: dict[str, int | None] = {}
        self._peaks: dict[str, int] = {}  # planned peak in bytes, by method

    def entry(self, plan: Plan) -> Entry:
        """Return the step under this plan as a contender."""
        peak_bytes = peak(self._rig.step.graph, plan)
        method = OURS_UNCONSTRAINED if plan is LIVENESS else f"{OURS}, {peak_bytes / config.MIB:.1f} MB"
        if self._peaks.setdefault(method, peak_bytes) != peak_bytes:  # another plan has nearly the same peak
            method = f"{OURS}, {peak_bytes} bytes"
            self._peaks[method] = peak_bytes
        trial = self._trial
        restart = partial(self._restart, plan, peak_bytes)
        contender = LocalContender(method=method, restart=restart, iterate=trial.iterate, values=trial.state.export)
        return Entry(contender, peak_bytes, None)

    def finished(self, entry: Entry) -> None:
        """Check that the ledger saw the plan's peak to the byte. Record the arena's regions if a turn was served."""
        method = entry.contender.method
        if not method.startswith(OURS):
            return
        served = self._placer.served
        if served is None or served.planned == self._placed_before:
            self.unserved.add(method)
        else:
            reserved_bytes = self._rig.opened.device.arena_usage().reserved_high_water_bytes
            entry.reserved_bytes = max(entry.reserved_bytes or 0, reserved_bytes)
        planned_bytes = self._peaks[method]
        seen_bytes = self._rig.opened.device.usage().high_water_bytes
        assert seen_bytes == planned_bytes, f"{method}: planned {planned_bytes}, saw {seen_bytes}"
        entry.peak_bytes = max(entry.peak_bytes, self._rig.peak_bytes(seen_bytes))
        self.outside_bytes[method] = self._rig.outside_bytes()

    def close(self) -> None:
        """Release the device's memory."""
        self._trial.runner.close()

    def _restart(self, plan: Plan, peak_bytes: int) -> None:
        if plan is not self._adopted:
            self._rig.grant(self._rig.capacity_bytes)  # during the switch both plans hold memory
            self._trial.adopt(plan)
            self._rig.grant(peak_bytes)
            self._adopted = plan
        self._trial.restart()
        self._rig.reset_high_water()
        served = self._placer.served
        self._placed_before = served.planned if served is not None else 0


def _row(labels: Row, entry: Entry, eager: Entry, launches_ns: int, ours: _PlannedStep) -> Row:
    step_ns = median(entry.step_ns)
    method = entry.contender.method
    return {
        **labels,
        "method": method,
        "peak_allocated_bytes": entry.peak_bytes,
        "peak_reserved_bytes": entry.reserved_bytes,
        "outside_bytes": ours.outside_bytes.get(method),
        "served": method not in ours.unserved if method.startswith(OURS) else None,
        "step_ms": round(step_ns / 1e6, 3),
        "samples_per_s": round(labels["batch"] * 1e9 / step_ns, 2),
        "eor": round(entry.over(eager), 4),
        "rounds": len(entry.duel_ns) or len(entry.step_ns),
        "exact": all(entry.exact),
        "buffers_exact": all(entry.buffers_exact),
        "launch_share": round(launches_ns / step_ns, 3),
    }


@dataclass(frozen=True, slots=True)
class StepFinding:
    """One line of the verdict, and whether it meets the demand."""

    text: str
    passed: bool


def verdict(rows: Sequence[Row]) -> Iterator[StepFinding]:
    """Yield whether our rows are exact, as fast as eager without a budget, and never slower than a rival."""
    model, eager = rows[0]["model"], rows[0]
    ours = [row for row in rows if row["method"].startswith(OURS)]
    for row in ours:
        if not (row["exact"] and row["buffers_exact"]):
            differing = "buffers" if row["exact"] else "parameters"
            yield StepFinding(
                f"{model}: {row['method']} is NOT EXACT: its {differing} differ from eager's", passed=False
            )
    yield _unconstrained_finding(model, eager, next(row for row in ours if row["method"] == OURS_UNCONSTRAINED))
    for row in rows[1:]:
        if row not in ours:
            yield _rival_finding(model, row, ours)


def _unconstrained_finding(model: str, eager: Row, row: Row) -> StepFinding:
    launch_bound = eager["launch_share"] > 0.5
    limit = LAUNCH_BOUND_LIMIT if launch_bound else COMPUTE_BOUND_LIMIT
    passed = row["eor"] <= limit
    return StepFinding(
        f"{model} without swaps and recomputation: {'' if passed else 'TOO SLOW, '}takes {row['eor']:.3f} of eager's "
        f"time; the limit is {limit:.2f} ({'launches dominate' if launch_bound else 'computation dominates'})",
        passed,
    )


def _rival_finding(model: str, rival: Row, ours: Sequence[Row]) -> StepFinding:
    """Compare a rival with the fastest of our plans whose peak is not larger."""
    peak_bytes = rival["peak_allocated_bytes"]
    best = min((row["eor"] for row in ours if row["peak_allocated_bytes"] <= peak_bytes), default=None)
    at = f"{model} at {peak_bytes / config.MIB:.1f} MB"
    figures = f"EOR {'none' if best is None else f'{best:.3f}'}; {rival['method']} {rival['eor']:.3f}"
    if not rival["exact"]:
        return StepFinding(f"{at}: {figures}, which changes results", passed=True)
    passed = best is not None and best <= rival["eor"]
    return StepFinding(f"{at}: {'as fast' if passed else 'NOT FASTEST'}, {figures}", passed)


def _line(row: Row) -> str:
    allocated, reserved = (row[f"peak_{kind}_bytes"] for kind in ("allocated", "reserved"))
    sizes = f"{allocated / config.MIB:9.1f} " + ("        ?" if reserved is None else f"{reserved / config.MIB:9.1f}")
    exact = "exact" if row["exact"] else "NOT exact"
    name, time_ms, network = f"{row['model']:<13} {row['method']:<42}", row["step_ms"], row["network_turnover"]
    figures = f"{time_ms:10.2f} ms  EOR {row['eor']:.3f}  {exact}  turnover {row['turnover']:.2f}"
    return f"{name} {sizes} MB {figures}" + ("" if network is None else f" (of the network {network:.2f})")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--models",
        "--model",
        nargs="+",
        default=list(SIZES),
        metavar="NAME",
        help=f"networks: {', '.join(NETWORKS)} (default: those of bench/harness/execution/cases.py)",
    )
    add_sizes(parser)
    add_target(parser)
    default = StepOptions()
    parser.add_argument(
        "--segments", nargs="*", type=whole(), default=default.segments, help="numbers of checkpointed segments"
    )
    parser.add_argument(
        "--activations",
        nargs="*",
        type=portion,
        default=default.activations,
        help="shares of the activations that torch.compile may keep",
    )
    parser.add_argument(
        "--inductor", nargs="*", type=portion, help="the same for inductor (default: 0.5 where it compiles quickly)"
    )
    parser.add_argument("--budgets", nargs="*", type=portion, default=default.budgets, help="shares of eager's peak")
    parser.add_argument("--rounds", type=whole(), default=default.pace.rounds, help="largest number of common rounds")
    parser.add_argument(
        "--link",
        choices=(STEP, NETWORK),
        default=STEP,
        help="turnover that an emulated link matches: this step's on the machine, or the network's at its usual size",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
