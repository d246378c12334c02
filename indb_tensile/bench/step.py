"""A planned step beside PyTorch's own ways to train with as little memory: run on one device, in turns.

    python -m indb_tensile.bench.step [--models resnet50 …] [--batch 8] [--side 64] [--segments 2 4 8]
        [--activations 0.8 …] [--inductor 0.5 …] [--budgets 0.8 …] [--device emulated] [--machine a6000]
        [--rounds 9] [--link network] [--json]

Without more all networks with a size of their own (bench/cases.py) take part, each at a batch and a side at which a
step takes tenths of a second, for two to three minutes each, ten for VGG-16, BERT and GPT-2: `tensile bench step
--json`. With `--device cuda` they run on a GPU, at their own sides and larger batches.

The rivals (bench/rivals.py): eager PyTorch with fused Adam, `torch.utils.checkpoint` in several numbers of segments,
`save_on_cpu` and `torch.compile` with several values of `activation_memory_budget`: by `aot_eager`, which runs the
same kernels as eager, and by inductor, which changes results. Inductor compiles C++ for minutes, so on an emulated
device it is asked where that is soon done. Ours is the captured step: without a budget, at shares of eager's peak,
and at the peak of every rival. An emulated device is the machine with its clock slowed down to this very step.
Everyone uploads the batch through the same link, and all take turns (bench/turns.py).

One row each: `peak_allocated_bytes` is measured, the rivals' from torch's allocator and ours from the device's
ledger, on a GPU as torch was served. Ours is served from the arena, at the addresses that the plan gives;
`peak_reserved_bytes` is the regions that it took, where more than its plan's peak went back before it was timed.
`outside_bytes` is what torch has beside them: cuBLAS's workspace. On an emulated device the rivals run in the same
process, which the shim was preloaded into, but are not served: they keep torch's own allocator, and what they
reserve is what PyTorch's caching allocator makes of the same allocations. On a GPU they run in a process of their own
with that allocator. `served` says whether a plan's tensors were where it puts them: where they cannot be packed into
a few regions more than their peak they are anywhere else.

`step_ms` is the median over the rounds, `eor` that of the ratios to eager of the same round; eager and ours without
saving meet in many more rounds. `exact`: the parameters of each round equal eager's bit for bit; `buffers_exact` says
so of running statistics, which a segment that runs twice updates twice.

`turnover` (bench/turnover.py) is what the link moves during a step without saving, over the liveness peak: overheads
are comparable at like ones. `simulated_turnover` is that of the same step on the machine, by its roofline, and
`network_turnover` that of the network at its own batch and size there, which simulated figures are of; with
`--link network` the emulated link is as wide as gives the step that one.

The verdict: without saving ours is to take at most 1.00 of eager's time where computation dominates and 1.05 where
starting operators does; at every peak below it is to be the fastest of those that are exact. It ends with 1 where it
is not.
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
from indb_tensile.bench.apart import apart, memory_of
from indb_tensile.bench.cases import SIZES, Case, Source, add_sizes
from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import NETWORKS
from indb_tensile.bench.options import portion, whole
from indb_tensile.bench.processes import alone, preload
from indb_tensile.bench.rig import Rig, Target, add_target, set_up, target
from indb_tensile.bench.rivals import AOT_EAGER, INDUCTOR, Here, Torch, has_compiler, rivals
from indb_tensile.bench.rows import stamped
from indb_tensile.bench.trial import Subject, workload
from indb_tensile.bench.turnover import network_turnover, simulated_turnover, turnover
from indb_tensile.bench.turns import Entry, Pace, duel, take_turns
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload, plan_jobs

Row = dict[str, Any]

OURS = "tensile+"
UNSAVING = f"{OURS}, no saving"
COMPUTING, STARTING = 1.00, 1.05  # of eager's time without saving, where computation or starting dominates
STEP, NETWORK = "step", "network"  # what an emulated link is as wide to as the machine's
_NEVER = 1 << 62
_QUICK = frozenset({"vgg16", "squeezenet"})  # what inductor compiles soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a comparison is made."""

    target: Target = field(default_factory=Target)
    segments: tuple[int, ...] = (2, 4, 8)
    activations: tuple[float, ...] = (0.8, 0.5, 0.2)
    inductor: tuple[float, ...] = ()
    budgets: tuple[float, ...] = (0.8, 0.6)
    pace: Pace = field(default_factory=Pace)

    @property
    def compiled(self) -> tuple[tuple[str, float], ...]:
        """Compilers with what they are to keep of what the backward pass needs."""
        return (*((AOT_EAGER, share) for share in self.activations), *((INDUCTOR, share) for share in self.inductor))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each method, and the verdict."""
    given = _parser().parse_args(arguments)
    alone(given.models)
    preload()
    torch.set_num_threads(1)
    lines: list[str] = []
    where = target(given)
    for name in given.models:
        case = Case.of(name, given.batch, given.side, emulated=where.emulated)
        if given.link == NETWORK:
            where = replace(where, turnover=network_turnover(case.network, where.stands_for))
        rows = measure(case, _asked(given, where, name))
        for row in rows:
            print(stamped(row) if given.json else _line(row), flush=True)
        for line in verdict(rows):
            print(line, file=sys.stderr if given.json else sys.stdout, flush=True)
            lines.append(line)
    sys.exit(int(any("NOT" in line for line in lines)))


def _asked(given: argparse.Namespace, where: Target, name: str) -> Asked:
    inductor = (0.5,) if has_compiler() and (name in _QUICK or not where.emulated) else ()
    return Asked(
        target=where,
        segments=tuple(given.segments),
        activations=tuple(given.activations),
        inductor=inductor if given.inductor is None else tuple(given.inductor),
        budgets=tuple(given.budgets),
        pace=Pace(rounds=given.rounds),
    )


def measure(source: Source, asked: Asked) -> list[Row]:
    """Everyone's row, eager's first; checkpoints only of a known network."""
    subject = source.subject()
    tell = partial(_tell, subject.name, time.perf_counter())
    with set_up(asked.target, subject) as rig:
        trial = rig.trial(subject)
        work = workload(rig.step, trial.run(LIVENESS, 3).latency_ns)
        trial.runner.close()
        tell(f"{len(rig.step.graph.operators)} operators are captured and measured")
        with _torchs(source, subject, asked, rig) as entries:
            tell(f"{len(entries)} of PyTorch's ways have run")
            ours = _Ours(subject, rig)
            plans = _plans(work, rig.link, asked.budgets, [entry.peak_bytes for entry in entries])
            entries += [ours.entry(plan) for plan in plans]
            tell(f"{len(plans)} plans are made")
            trained = frozenset(name for name, _ in subject.module.named_parameters())
            take_turns(entries, trained, asked.pace, ours.finished)
            tell(f"{len(entries[0].step_ns)} rounds have been run")
            duel(entries[0], next(entry for entry in entries if entry.contender.method == UNSAVING), asked.pace)
            tell(f"{len(entries[0].duel_ns)} rounds of two have been run")
            ours.close()
    labels = {"model": subject.name, "batch": len(subject.x), "row": list(subject.x.shape[1:])}
    labels |= {"machine": asked.target.named, "link_bytes_per_s": rig.link.out_bytes_per_s}
    unsaving = next(entry for entry in entries if entry.contender.method == UNSAVING)
    labels |= _turnovers(source, asked.target, rig, median(unsaving.step_ns))
    starting_ns = rig.launch_ns * len(rig.step.graph.operators)
    return [_row(labels, entry, entries[0], starting_ns, ours) for entry in entries]


def _turnovers(source: Source, where: Target, rig: Rig, step_ns: float) -> Row:
    """How much the link moves in an iteration: here, on the machine, and of the network at its own size there."""
    graph, machine = rig.step.graph, where.stands_for
    network = None if source.network is None else network_turnover(source.network, machine)
    return {
        "turnover": round(turnover(graph, rig.link, step_ns), 3),
        "simulated_turnover": round(simulated_turnover(graph, machine), 3),
        "network_turnover": None if network is None else round(network, 3),
    }


@contextmanager
def _torchs(source: Source, subject: Subject, asked: Asked, rig: Rig) -> Iterator[list[Entry]]:
    """PyTorch's own ways with what they need: here on an emulated device, elsewhere beside a GPU that is all ours."""
    ways = partial(_ways, source, asked)
    if not asked.target.emulated:
        with apart(source.subject, ways, rig.opened.torch_device) as contenders:
            yield [Entry(one, one.memory.allocated_bytes, one.memory.reserved_bytes) for one in contenders]
        return
    shared = Torch.on(subject, rig.opened)
    found = [(one, memory_of(one, shared)) for one in ways(shared)]
    shared.restart()  # ours starts from the same parameters
    yield [Entry(one, memory.allocated_bytes, memory.reserved_bytes) for one, memory in found]
    shared.close()


def _ways(source: Source, asked: Asked, shared: Torch) -> Iterator[Here]:
    return rivals(shared, source.network, segments=asked.segments, compiled=asked.compiled)


def _tell(name: str, started_s: float, what: str) -> None:
    print(f"{name} after {time.perf_counter() - started_s:.0f} s: {what}", file=sys.stderr, flush=True)


def _plans(work: Workload, link: Link, shares: Sequence[float], rival_bytes: Sequence[int]) -> list[Plan]:
    """One for each budget, where that is a new one; first the one that saves nothing."""
    asked = {round(share * rival_bytes[0]) for share in shares} | set(rival_bytes)
    plans: list[Plan] = [LIVENESS]
    for budget_bytes in sorted(asked, reverse=True):
        found = plan_jobs([work], budget_bytes=budget_bytes, link=link)
        chosen = found[0].plans[0] if isinstance(found, tuple) else LIVENESS
        if (chosen.swaps or chosen.executions) and chosen not in plans:
            plans.append(chosen)
    return plans


class _Ours:
    """The captured step under its plans, each on a device of which it keeps what that plan takes."""

    def __init__(self, subject: Subject, rig: Rig) -> None:
        self._rig = rig
        self._placer = rig.placer()
        self._trial = rig.trial(subject, sample_every=_NEVER, placer=self._placer)
        self._adopted: Plan | None = None
        self._planned = 0  # allocations that were at their addresses, when the present turn began
        self.unserved: set[str] = set()
        self.outside_bytes: dict[str, int | None] = {}
        self._peaks: dict[str, int] = {}  # as planned, by method

    def entry(self, plan: Plan) -> Entry:
        """The step under this plan as a contender."""
        peak_bytes = peak(self._rig.step.graph, plan)
        method = UNSAVING if plan is LIVENESS else f"{OURS}, {peak_bytes / config.MIB:.1f} MB"
        self._peaks[method] = peak_bytes
        trial = self._trial
        restart = partial(self._restart, plan, peak_bytes)
        one = Here(method=method, restart=restart, iterate=trial.iterate, values=trial.state.export)
        return Entry(one, peak_bytes, None)

    def finished(self, entry: Entry) -> None:
        """A plan's peak is what the ledger saw, to the byte, and its regions are those that the arena took."""
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
        """Give everything back."""
        self._trial.runner.close()

    def _restart(self, plan: Plan, peak_bytes: int) -> None:
        if plan is not self._adopted:
            self._rig.grant(self._rig.capacity_bytes)  # while two plans are met
            self._trial.adopt(plan)
            self._rig.grant(peak_bytes)
            self._adopted = plan
        self._trial.restart()
        self._rig.reset_high_water()
        served = self._placer.served
        self._planned = served.planned if served is not None else 0


def _row(labels: Row, entry: Entry, eager: Entry, starting_ns: int, ours: _Ours) -> Row:
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
        "starting_share": round(starting_ns / step_ns, 3),  # of the step's time, if an operator's start takes 5 us
    }


def verdict(rows: Sequence[Row]) -> Iterator[str]:
    """Whether ours is as fast as eager without saving, and the fastest of the exact ones at every peak."""
    model, eager = rows[0]["model"], rows[0]
    ours = [row for row in rows if row["method"].startswith(OURS)]
    unsaving = next(row for row in ours if row["method"] == UNSAVING)
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
    default = Asked()
    parser.add_argument("--segments", nargs="*", type=whole(), default=default.segments, help="of checkpoint")
    parser.add_argument(
        "--activations", nargs="*", type=portion, default=default.activations, help="of torch.compile"
    )
    parser.add_argument(
        "--inductor", nargs="*", type=portion, help="the same by inductor; without it where that is quick"
    )
    parser.add_argument("--budgets", nargs="*", type=portion, default=default.budgets, help="shares of eager's peak")
    parser.add_argument("--rounds", type=whole(), default=default.pace.rounds, help="of all, at most")
    parser.add_argument(
        "--link",
        choices=(STEP, NETWORK),
        default=STEP,
        help="as wide as the machine's to this step, or as to the network at its own size (emulated devices)",
    )
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
