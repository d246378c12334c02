"""Compares a planned step with PyTorch's own ways to train in as little memory, run on one device in turns.

    python -m indb_tensile.bench step [--models resnet50 …] [--batch 8] [--side 64] [--segments 2 4 8]
        [--activations 0.8 …] [--inductor 0.5 …] [--budgets 0.8 …] [--device emulated] [--machine a6000]
        [--rounds 9] [--link network] [--json]

Without options all networks that have a size of their own (bench/harness/cases.py) take part. Each runs at a batch
and a side at which a step takes tenths of a second. A network takes two to three minutes; VGG-16, BERT and GPT-2 take
ten: `tensile bench step --json`. With `--device cuda` the networks run on a GPU, at their own sides and larger
batches.

The rivals (bench/harness/rivals.py) are eager PyTorch with fused Adam, `torch.utils.checkpoint` with several numbers
of segments, `save_on_cpu`, and `torch.compile` with several values of `activation_memory_budget`. The last is
compiled by `aot_eager`, which runs the same kernels as eager, and by inductor, which changes results. Inductor
compiles C++ for minutes, so on an emulated device only networks that it compiles soon include it. Our contender is
the captured step: without a budget, at shares of eager's peak, and at the peak of every rival. The emulated device
stands for a machine whose clock is slowed down until its step takes as long as this one. All contenders upload the
batch through the same link and take turns (bench/harness/turns.py).

Each contender has one row. `peak_allocated_bytes` is measured: the rivals' figures come from torch's allocator and
ours from the device's ledger, or on a GPU from the bytes served to torch. The device's memory arena serves our step
at the addresses of its plan. `peak_reserved_bytes` is the arena's regions; regions beyond the peak of the plan were
returned before the measurement. `outside_bytes` is memory that torch has beside them, such as cuBLAS's workspace. On
an emulated device the rivals run in the same process, with the shim preloaded but not served by it: they use torch's
own allocator, and their reserved bytes are those that PyTorch's caching allocator would reserve for the same
allocations. On a GPU the rivals run in a process of their own with that allocator. `served` says whether a plan's
tensors were at their planned addresses. They are elsewhere if they cannot be packed into a few regions more than
their peak.

`step_ms` is the median over the rounds and `eor` the median of the ratios to eager in the same round. Eager and our
step without saving meet in many more rounds. `exact` says whether the parameters of each round equal eager's bit for
bit. `buffers_exact` says the same of running statistics, which a segment that runs twice updates twice.

`turnover` (bench/harness/turnover.py) is the bytes that the link moves during a step without saving, over the
liveness peak. Overheads are comparable at similar turnovers. `simulated_turnover` is the turnover of the same step on
the machine, by its roofline. `network_turnover` is the turnover of the network at its own batch and size on the
machine, to which simulated figures refer. With `--link network` the emulated link is wide enough to give the step
that turnover.

The verdict requires that our step without saving takes at most 1.00 of eager's time where computation dominates and
1.05 where starting operators dominates, and that at every smaller peak it is the fastest of the exact contenders. The
exit code is 1 if the verdict fails.
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
from indb_tensile.bench.harness.argument_types import portion, whole
from indb_tensile.bench.harness.benchmark_processes import preload, run_each_alone
from indb_tensile.bench.harness.cases import SIZES, BenchmarkCase, Source, add_sizes
from indb_tensile.bench.harness.device_rig import DeviceRig, RunTarget, add_target, set_up, target
from indb_tensile.bench.harness.networks import NETWORKS
from indb_tensile.bench.harness.process_exit import run
from indb_tensile.bench.harness.remote_contenders import memory_of, remote_contenders
from indb_tensile.bench.harness.rivals import AOT_EAGER, INDUCTOR, LocalContender, TorchTraining, has_compiler, rivals
from indb_tensile.bench.harness.rows import stamped
from indb_tensile.bench.harness.trial import TrainingSubject, workload
from indb_tensile.bench.harness.turnover import network_turnover, simulated_turnover, turnover
from indb_tensile.bench.harness.turns import Entry, TurnLimits, duel, take_turns
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload, plan_jobs

Row = dict[str, Any]

OURS = "tensile+"
UNSAVING = f"{OURS}, no saving"
COMPUTING, STARTING = 1.00, 1.05  # limits on eager's time without saving; computation or operator starts dominate
STEP, NETWORK = "step", "network"  # whether the emulated link matches the step's or the whole network's turnover
_NEVER = 1 << 62
_QUICK = frozenset({"vgg16", "squeezenet"})  # networks that inductor compiles soon


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
    run_each_alone(options.models)
    preload()
    torch.set_num_threads(1)
    lines: list[str] = []
    run_target = target(options)
    for name in options.models:
        case = BenchmarkCase.of(name, options.batch, options.side, emulated=run_target.emulated)
        if options.link == NETWORK:
            run_target = replace(run_target, turnover=network_turnover(case.network, run_target.stands_for))
        rows = measure(case, _comparison(options, run_target, name))
        for row in rows:
            print(stamped(row) if options.json else _line(row), flush=True)
        for line in verdict(rows):
            print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
            lines.append(line)
    sys.exit(int(any("NOT" in line for line in lines)))


def _comparison(options: argparse.Namespace, run_target: RunTarget, name: str) -> StepOptions:
    inductor = (0.5,) if has_compiler() and (name in _QUICK or not run_target.emulated) else ()
    return StepOptions(
        target=run_target,
        segments=tuple(options.segments),
        activations=tuple(options.activations),
        inductor=inductor if options.inductor is None else tuple(options.inductor),
        budgets=tuple(options.budgets),
        pace=TurnLimits(rounds=options.rounds),
    )


def measure(source: Source, comparison: StepOptions) -> list[Row]:
    """Return a row for each contender, eager's first. Only a known network can be checkpointed in segments."""
    subject = source.subject()
    log = partial(_log, subject.name, time.perf_counter())
    with set_up(comparison.target, subject) as rig:
        trial = rig.trial(subject)
        work = workload(rig.step, trial.run(LIVENESS, 3).latency_ns)
        trial.runner.close()
        log(f"{len(rig.step.graph.operators)} operators are captured and measured")
        with _torch_entries(source, subject, comparison, rig) as entries:
            log(f"{len(entries)} of PyTorch's contenders have run")
            planned = _PlannedStep(subject, rig)
            plans = _plans(work, rig.link, comparison.budgets, [entry.peak_bytes for entry in entries])
            entries += [planned.entry(plan) for plan in plans]
            log(f"{len(plans)} plans are made")
            trained = frozenset(name for name, _ in subject.module.named_parameters())
            take_turns(entries, trained, comparison.pace, planned.finished)
            log(f"{len(entries[0].step_ns)} rounds have been run")
            duel(entries[0], next(entry for entry in entries if entry.contender.method == UNSAVING), comparison.pace)
            log(f"{len(entries[0].duel_ns)} rounds of eager and the step without saving have been run")
            planned.close()
    labels = {"model": subject.name, "batch": len(subject.x), "row": list(subject.x.shape[1:])}
    labels |= {"machine": comparison.target.named, "link_bytes_per_s": rig.link.out_bytes_per_s}
    unsaving = next(entry for entry in entries if entry.contender.method == UNSAVING)
    labels |= _turnovers(source, comparison.target, rig, median(unsaving.step_ns))
    starting_ns = rig.launch_ns * len(rig.step.graph.operators)
    return [_row(labels, entry, entries[0], starting_ns, planned) for entry in entries]


def _turnovers(source: Source, run_target: RunTarget, rig: DeviceRig, step_ns: float) -> Row:
    """Return the link's turnover of the step here and on the machine, and of the network at its own size there."""
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
    """Yield PyTorch's contenders: in this process on an emulated device, in a process of their own beside a GPU."""
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
    yield [Entry(contender, needs.allocated_bytes, needs.reserved_bytes) for contender, needs in local]
    shared.close()


def _rivals(source: Source, comparison: StepOptions, shared: TorchTraining) -> Iterator[LocalContender]:
    return rivals(shared, source.network, segments=comparison.segments, compiled=comparison.compiled)


def _log(name: str, started_s: float, progress: str) -> None:
    print(f"{name} after {time.perf_counter() - started_s:.0f} s: {progress}", file=sys.stderr, flush=True)


def _plans(work: Workload, link: Link, shares: Sequence[float], rival_bytes: Sequence[int]) -> list[Plan]:
    """Return one plan for each budget without repetitions, after the plan that saves nothing."""
    budgets = {round(share * rival_bytes[0]) for share in shares} | set(rival_bytes)
    plans: list[Plan] = [LIVENESS]
    for budget_bytes in sorted(budgets, reverse=True):
        planned = plan_jobs([work], budget_bytes=budget_bytes, link=link)
        chosen = planned[0].plans[0] if isinstance(planned, tuple) else LIVENESS
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
        self._planned = 0  # allocations at their planned addresses when the current turn began
        self.unserved: set[str] = set()
        self.outside_bytes: dict[str, int | None] = {}
        self._peaks: dict[str, int] = {}  # planned peak in bytes, by method

    def entry(self, plan: Plan) -> Entry:
        """Return the step under this plan as a contender."""
        peak_bytes = peak(self._rig.step.graph, plan)
        method = UNSAVING if plan is LIVENESS else f"{OURS}, {peak_bytes / config.MIB:.1f} MB"
        if self._peaks.setdefault(method, peak_bytes) != peak_bytes:  # another plan has nearly the same peak
            method = f"{OURS}, {peak_bytes} bytes"
            self._peaks[method] = peak_bytes
        trial = self._trial
        restart = partial(self._restart, plan, peak_bytes)
        contender = LocalContender(method=method, restart=restart, iterate=trial.iterate, values=trial.state.export)
        return Entry(contender, peak_bytes, None)

    def finished(self, entry: Entry) -> None:
        """Check that the ledger saw the plan's peak to the byte, and record the arena's regions after a turn."""
        method = entry.contender.method
        if not method.startswith(OURS):
            return
        served = self._placer.served
        if served is None or served.planned == self._planned:
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
        self._planned = served.planned if served is not None else 0


def _row(labels: Row, entry: Entry, eager: Entry, starting_ns: int, planned: _PlannedStep) -> Row:
    step_ns = median(entry.step_ns)
    method = entry.contender.method
    return {
        **labels,
        "method": method,
        "peak_allocated_bytes": entry.peak_bytes,
        "peak_reserved_bytes": entry.reserved_bytes,
        "outside_bytes": planned.outside_bytes.get(method),
        "served": method not in planned.unserved if method.startswith(OURS) else None,
        "step_ms": round(step_ns / 1e6, 3),
        "samples_per_s": round(labels["batch"] * 1e9 / step_ns, 2),
        "eor": round(entry.over(eager), 4),
        "rounds": len(entry.duel_ns) or len(entry.step_ns),
        "exact": all(entry.exact),
        "buffers_exact": all(entry.buffers_exact),
        "starting_share": round(starting_ns / step_ns, 3),  # if starting an operator takes 5 us
    }


def verdict(rows: Sequence[Row]) -> Iterator[str]:
    """Yield whether our step is as fast as eager without saving, and the fastest exact contender at every peak."""
    model, eager = rows[0]["model"], rows[0]
    ours = [row for row in rows if row["method"].startswith(OURS)]
    unsaving = next(row for row in ours if row["method"] == UNSAVING)
    starting = eager["starting_share"] > 0.5
    bar = STARTING if starting else COMPUTING
    figures = (
        f"{unsaving['eor']:.3f} of eager's time, of {bar:.2f} ({'starting' if starting else 'computation'} dominates)"
    )
    yield f"{model} without saving: {'reaches' if unsaving['eor'] <= bar else 'NOT REACHED:'} {figures}"
    for row in rows[1:]:
        if row in ours:
            continue
        peak_bytes = row["peak_allocated_bytes"]
        at = f"{model} at {peak_bytes / config.MIB:.1f} MB"
        best = min(
            (row_of_ours["eor"] for row_of_ours in ours if row_of_ours["peak_allocated_bytes"] <= peak_bytes),
            default=None,
        )
        if not row["exact"]:
            yield f"{at}: {row['method']} changes results; EOR {row['eor']:.3f}, ours {best}"
        elif best is not None and best <= row["eor"]:
            yield f"{at}: covers {row['method']}, EOR {best:.3f} of {row['eor']:.3f}"
        else:
            yield f"{at}: NOT FASTEST, EOR {best}; {row['method']} {row['eor']:.3f}"


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
        "--models", "--model", nargs="+", default=list(SIZES), metavar="NAME", help=f"of {', '.join(NETWORKS)}"
    )
    add_sizes(parser)
    add_target(parser)
    default = StepOptions()
    parser.add_argument(
        "--segments", nargs="*", type=whole(), default=default.segments, help="numbers of checkpointed segments"
    )
    parser.add_argument(
        "--activations", nargs="*", type=portion, default=default.activations, help="budgets of torch.compile"
    )
    parser.add_argument(
        "--inductor", nargs="*", type=portion, help="budgets for inductor; default: only where it compiles soon"
    )
    parser.add_argument("--budgets", nargs="*", type=portion, default=default.budgets, help="shares of eager's peak")
    parser.add_argument("--rounds", type=whole(), default=default.pace.rounds, help="most rounds of all contenders")
    parser.add_argument(
        "--link",
        choices=(STEP, NETWORK),
        default=STEP,
        help="turnover that an emulated link matches: this step's on the machine, or the network's at its own size",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
