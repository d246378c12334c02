"""A planned step beside PyTorch's own ways to train with as little memory: run on the emulated device, in turns.

    python -m indb_tensile.bench.step [--models resnet50 …] [--batch 8] [--side 64] [--segments 2 4 8]
        [--activations 0.8 …] [--inductor 0.5 …] [--budgets 0.8 …] [--machine a6000] [--rounds 9] [--json]

Without more all nine networks take part, each at a batch and a side at which a step takes tenths of a second, for
two to three minutes each: `tensile bench step --json`.

The rivals (bench/rivals.py): eager PyTorch with fused Adam, `torch.utils.checkpoint` in several numbers of segments,
`save_on_cpu` and `torch.compile` with several values of `activation_memory_budget`: by `aot_eager`, which runs the
same kernels as eager, and by inductor, which changes results. Inductor compiles C++ for minutes, so it is asked where
that is soon done. Ours is the captured step: without a budget, at shares of eager's peak, and at the peak of every
rival. The device is the machine with its clock slowed down to this very step. Everyone uploads the batch through the
same link, and all take turns (bench/turns.py).

One row each: `peak_allocated_bytes` is measured, the rivals' from torch's allocator and ours from the device's
ledger. Ours is served from the arena, at the addresses that the plan gives; `peak_reserved_bytes` is the regions that
it took, where more than its plan's peak went back before it was timed. The rivals run in the
same process, which the shim was preloaded into, but are not served: they keep torch's own allocator, and what they
reserve is what PyTorch's caching allocator makes of the same allocations. `served` says whether a plan's tensors were
where it puts them: where they cannot be packed into a few regions more than their peak they are in ordinary memory.

`step_ms` is the median over the rounds, `eor` that of the ratios to eager of the same round; eager and ours without
saving meet in many more rounds. `exact`: the parameters of each round equal eager's bit for bit; `buffers_exact` says
so of running statistics, which a segment that runs twice updates twice.

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
from indb_tensile.bench.allocations import measure_memory
from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import NETWORKS, Network
from indb_tensile.bench.options import portion, whole
from indb_tensile.bench.rivals import AOT_EAGER, INDUCTOR, Contender, Torch, has_compiler, rivals
from indb_tensile.bench.rows import stamped
from indb_tensile.bench.trial import SIZES, Subject, Trial, alone, lent, placer, preload, slowed_link, small, workload
from indb_tensile.bench.turns import Entry, Pace, duel, take_turns
from indb_tensile.executor.device import REGION_BYTES, EmulatedDevice
from indb_tensile.executor.hardware import EMULATED_SPEED
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.machines import MACHINES, REFERENCE, machine
from indb_tensile.scheduler.peak import LIVENESS, peak, vanilla_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload, plan_jobs

Row = dict[str, Any]

OURS = "tensile+"
UNSAVING = f"{OURS}, no saving"
COMPUTING, STARTING = 1.00, 1.05  # of eager's time without saving, where computation or starting dominates
_NEVER = 1 << 62
_REGIONS = 64  # of what a step needs, at least
_QUICK = frozenset({"vgg16", "squeezenet"})  # what inductor compiles soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a comparison is made."""

    machine: str = REFERENCE.name
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
    for name in given.models:
        subject, network, asked = _asked(given, name)
        rows = measure(subject, asked, network)
        for row in rows:
            print(stamped(row) if given.json else _line(row), flush=True)
        for line in verdict(rows):
            print(line, file=sys.stderr if given.json else sys.stdout, flush=True)
            lines.append(line)
    sys.exit(int(any("NOT" in line for line in lines)))


def _asked(given: argparse.Namespace, name: str) -> tuple[Subject, Network, Asked]:
    network = networks.find(name)
    batch, _ = SIZES.get(name, (2, None))
    network = small(network, given.side)
    inductor = (0.5,) if name in _QUICK and has_compiler() else ()
    asked = Asked(
        machine=given.machine,
        segments=tuple(given.segments),
        activations=tuple(given.activations),
        inductor=inductor if given.inductor is None else tuple(given.inductor),
        budgets=tuple(given.budgets),
        pace=Pace(rounds=given.rounds),
    )
    return Subject.of(network, batch if given.batch is None else given.batch), network, asked


def measure(subject: Subject, asked: Asked, network: Network | None = None) -> list[Row]:
    """Everyone's row, eager's first; checkpoints only of a known network."""
    tell = partial(_tell, subject.name, time.perf_counter())
    step = subject.capture()
    link = slowed_link(subject, step, machine(asked.machine), 3)
    region_bytes = _region_bytes(peak(step.graph, LIVENESS))
    with lent(link, 2 * vanilla_peak(step.graph), region_bytes) as (device, grant):
        trial = Trial(subject, step, device, placer=placer(device, step))
        work = workload(step, trial.run(LIVENESS, 3).latency_ns)
        trial.runner.close()
        tell(f"{len(step.graph.operators)} operators are captured and measured")
        shared = Torch(subject, device)
        entries = [
            _measured(one, shared)
            for one in rivals(shared, network, device, segments=asked.segments, compiled=asked.compiled)
        ]
        tell(f"{len(entries)} of PyTorch's ways have run")
        shared.restart()  # ours starts from the same parameters
        ours = _Ours(subject, trial, device, grant)
        plans = _plans(work, link, asked.budgets, [entry.peak_bytes for entry in entries])
        entries += [ours.entry(plan) for plan in plans]
        tell(f"{len(plans)} plans are made")
        trained = frozenset(name for name, _ in subject.module.named_parameters())
        take_turns(entries, trained, asked.pace, ours.finished)
        tell(f"{len(entries[0].step_ns)} rounds have been run")
        duel(entries[0], next(entry for entry in entries if entry.contender.method == UNSAVING), asked.pace)
        tell(f"{len(entries[0].duel_ns)} rounds of two have been run")
        ours.close()
        shared.close()
    starting_ns = EMULATED_SPEED.launch_ns * len(step.graph.operators)
    labels = {"model": subject.name, "batch": len(subject.x), "row": list(subject.x.shape[1:])}
    labels |= {"machine": asked.machine, "link_bytes_per_s": link.out_bytes_per_s}
    return [_row(labels, entry, entries[0], starting_ns, ours) for entry in entries]


def _tell(name: str, started_s: float, what: str) -> None:
    print(f"{name} after {time.perf_counter() - started_s:.0f} s: {what}", file=sys.stderr, flush=True)


def _region_bytes(size_bytes: int) -> int:
    """A power of two, of which a step needs many: so that whole regions are little more than its peak."""
    return max(REGION_BYTES, 1 << ((size_bytes // _REGIONS).bit_length() - 1))


def _measured(contender: Contender, shared: Torch) -> Entry:
    """What it needs, once it has run: by then optimizer state is there and kernels are chosen."""
    contender.iterate()
    memory = measure_memory(contender.iterate, shared.standing())
    return Entry(contender, memory.allocated_bytes, memory.reserved_bytes)


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

    def __init__(
        self,
        subject: Subject,
        like: Trial,
        device: EmulatedDevice,
        grant: Callable[[int], int],
    ) -> None:
        self._device = device
        self._grant = grant
        self._capacity_bytes = device.usage().granted_bytes
        self._placer = placer(device, like.step)
        self._trial = Trial(subject, like.step, device, sample_every=_NEVER, placer=self._placer)
        self._adopted: Plan | None = None
        self._planned = 0  # allocations that were at their addresses, when the present turn began
        self.unserved: set[str] = set()

    def entry(self, plan: Plan) -> Entry:
        """The step under this plan as a contender."""
        peak_bytes = peak(self._trial.step.graph, plan)
        method = UNSAVING if plan is LIVENESS else f"{OURS}, {peak_bytes / config.MIB:.1f} MB"
        trial = self._trial
        restart = partial(self._restart, plan, peak_bytes)
        one = Contender(method=method, restart=restart, iterate=trial.iterate, values=trial.state.export)
        return Entry(one, peak_bytes, None)

    def finished(self, entry: Entry) -> None:
        """A plan's peak is what the ledger saw, to the byte, and its regions are those that the arena took."""
        method = entry.contender.method
        if not method.startswith(OURS):
            return
        seen_bytes = self._device.usage().high_water_bytes
        assert seen_bytes == entry.peak_bytes, f"{method}: planned {entry.peak_bytes}, saw {seen_bytes}"
        served = self._placer.served
        if served is None or served.planned == self._planned:
            self.unserved.add(method)
        else:
            entry.reserved_bytes = max(
                entry.reserved_bytes or 0, self._device.arena_usage().reserved_high_water_bytes
            )

    def close(self) -> None:
        """Give everything back."""
        self._trial.runner.close()

    def _restart(self, plan: Plan, peak_bytes: int) -> None:
        if plan is not self._adopted:
            self._grant(self._capacity_bytes)  # while two plans are met
            self._trial.adopt(plan)
            self._grant(peak_bytes)
            self._adopted = plan
        self._trial.restart()
        self._device.reset_high_water()
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
    return (
        f"{row['model']:<13} {row['method']:<42} {sizes} MB {row['step_ms']:10.2f} ms  EOR {row['eor']:.3f}  {exact}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--models", "--model", nargs="+", default=list(SIZES), metavar="NAME", help=f"of {', '.join(NETWORKS)}"
    )
    parser.add_argument("--batch", type=whole(), help="rows; without it one for each network, as for --side")
    parser.add_argument("--side", "--pixels", type=whole(), help="pixels a side, or tokens")
    parser.add_argument("--machine", choices=MACHINES, default=REFERENCE.name, help="what the device stands for")
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
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
