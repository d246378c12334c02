"""The largest batch that a device's memory allows, planned and by eager PyTorch, and how fast each trains it.

    python -m indb_tensile.bench.maxbatch [--models resnet50 …] [--budget 8GB] [--shares 0 0.5]
        [--simulated | --batch 4] [--side 96] [--device emulated] [--machine a6000] [--json]

Executed (`--side` pixels or tokens, `--budget` to match): eager's peak is what its step really allocates, ours is
planned and confirmed by one executed iteration, whose peak the ledger sees; on an emulated device both upload through
the link of the machine with its clock slowed down to the step. Simulated: networks at their own size, captured on
tensors without memory, times by the machine's roofline; eager's peak is what liveness needs, to eager's favour: no
allocator loses anything.

Nobody looks beyond 12 times eager's batch. A larger one is of use only while it trains, so ours has a row for each
share of eager's throughput (samples a second at eager's largest batch) that it is to keep; 0: however slow. HOME
reports 2.8 times PyTorch's batch at best; the verdict is on how many of six networks that is reached.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from indb_tensile import config
from indb_tensile.bench import networks
from indb_tensile.bench.batches import Device, Drawn, Executed, Ran, ground
from indb_tensile.bench.cases import Case
from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import graph_of
from indb_tensile.bench.options import portion, whole
from indb_tensile.bench.processes import alone
from indb_tensile.bench.rig import Target, add_target, target
from indb_tensile.bench.rows import stamped
from indb_tensile.bench.trial import require_memory
from indb_tensile.errors import RequestError

Row = dict[str, Any]

MODELS = ("vgg16", "resnet50", "inception_v3", "densenet121", "mobilenet_v2", "squeezenet")
HOMES = 2.8  # times PyTorch's batch: HOME's best
_NETWORKS = 3  # on which it is to be reached
_MOST_ROWS = 1 << 20
_TIMES = 12  # eager's batch: beyond that nobody looks, and a step would run for minutes
_RETREAT = 0.96  # of a batch that was foreseen and did not fit, or was too slow
_SIMULATED_BYTES = 8 * config.GIB
_ROWS, _GPU_ROWS = 4, 16  # for which a budget is just enough for eager


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network and share, and the verdict."""
    given = _parser().parse_args(arguments)
    where = target(given)
    if where.emulated:
        for name in given.models:
            networks.find(name)
    else:
        alone(given.models)  # a process has one device
    torch.set_num_threads(1)
    found: list[Row] = []
    for name in given.models:
        with _device(given, where, name) as (device, labels):
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


# --- what is asked and printed -------------------------------------------------------------------------------------


@contextmanager
def _device(given: argparse.Namespace, where: Target, name: str) -> Iterator[tuple[Device, Row]]:
    labels: Row = {"model": name, "mode": "simulated" if given.simulated else "executed", "machine": where.named}
    if given.simulated:
        if not where.emulated:
            raise RequestError("--simulated plans only", hint="Leave out --device, or --simulated to run there.")
        budget_bytes = _SIMULATED_BYTES if given.budget is None else _size(given.budget)
        labels |= {"side": networks.find(name).row[-1], "budget_bytes": budget_bytes}
        yield Drawn(partial(graph_of, name), where.stands_for, budget_bytes), labels
        return
    rows = (_ROWS if where.emulated else _GPU_ROWS) if given.batch is None else given.batch
    case = Case.of(name, rows, given.side, emulated=where.emulated)
    with ground(case, where) as found:
        if given.budget is None:
            budget_bytes = found.eager(rows).peak_bytes
        else:
            budget_bytes = _size(given.budget)
            if where.emulated:
                require_memory(f"a budget of {given.budget}, up to twice of which is tried", 2 * budget_bytes)
        yield Executed(found, budget_bytes, rows), labels | {"side": case.side, "budget_bytes": budget_bytes}


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
    parser.add_argument("--batch", type=whole(), help="rows that are just enough for eager: 4, on a GPU 16")
    parser.add_argument("--side", "--pixels", type=whole(), help="pixels a side, or tokens; few without it")
    parser.add_argument("--shares", nargs="+", type=portion, default=(0.0, 0.5), help="of eager's samples a second")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
