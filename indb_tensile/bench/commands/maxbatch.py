"""Finds the largest batch that a device's memory allows, planned and by eager PyTorch, and the speed of each.

    python -m indb_tensile.bench maxbatch [--models resnet50 …] [--budget 8GB] [--shares 0 0.5]
        [--simulated | --batch 4] [--side 96] [--device emulated] [--machine a6000] [--json]

Executed (`--side` pixels or tokens, `--budget` to match): eager's peak is the bytes that its step really allocates.
Ours is planned and confirmed by one executed iteration, whose peak the ledger sees. On an emulated device both upload
through the link of the machine, slowed down as the step is slower here than there. Simulated: the networks have their
own size, are captured on tensors without memory, and take the machine's roofline times. Eager's peak is then the
liveness peak, which favours eager, since no allocator loses anything.

The search ends at 12 times eager's batch. A larger batch is of use only if it trains fast enough, so ours has a row
for each share of eager's throughput (samples a second at eager's largest batch) that it must keep; 0 means any speed.
HOME reports 2.8 times PyTorch's batch at best; the verdict says on how many of six networks ours reaches that.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from indb_tensile import config
from indb_tensile.bench.harness.comparisons.batch_trials import (
    BatchResult,
    BatchTrials,
    ExecutedBatches,
    InterpolatedBatches,
    open_executor,
)
from indb_tensile.bench.harness.execution.benchmark_processes import run_each_alone
from indb_tensile.bench.harness.execution.cases import BenchmarkCase
from indb_tensile.bench.harness.execution.device_rig import RunTarget, add_target, target
from indb_tensile.bench.harness.execution.trial import require_memory
from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.networks.known_networks import graph_of
from indb_tensile.bench.harness.processes.argument_types import portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.errors import RequestError
from indb_tensile.units import parse_bytes

Row = dict[str, Any]

MODELS = ("vgg16", "resnet50", "inception_v3", "densenet121", "mobilenet_v2", "squeezenet")
HOMES = 2.8  # HOME's best result, in times PyTorch's batch
_NETWORKS = 3  # number of networks that must reach it
_MOST_ROWS = 1 << 20
_TIMES = 12  # limit of the search, in times eager's batch; a larger step would run for minutes
_RETREAT = 0.96  # factor for the next attempt after a predicted batch did not fit or was too slow
_SIMULATED_BYTES = 8 * config.GIB
_ROWS, _GPU_ROWS = 4, 16  # eager's batch for which the default budget is just enough


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network and share, and the verdict."""
    options = _parser().parse_args(arguments)
    run_target = target(options)
    if run_target.emulated:
        for name in options.models:
            networks.find(name)
    else:
        run_each_alone(options.models)  # a process has one device
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in options.models:
        with _device(options, run_target, name) as (device, labels):
            for row in measure(labels, device, options.shares):
                rows.append(row)
                print(stamped(row) if options.json else _line(row), flush=True)
    summary = verdict(rows)
    print(summary, file=sys.stderr if options.json else sys.stdout)
    sys.exit(int("NOT" in summary))


def measure(labels: Row, device: BatchTrials, shares: Sequence[float]) -> Iterator[Row]:
    """Yield a row for each share of eager's throughput to keep. Raises RequestError if eager fits no batch."""
    eager = largest(device.eager, lambda _: True)
    if eager is None:
        raise RequestError(
            f"{labels['model']} does not fit its budget of {labels['budget_bytes']} bytes with one row",
            hint="Give a larger --budget.",
        )
    for share in shares:
        ours = _largest_planned(device, eager, share) or eager
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


def _largest_planned(device: BatchTrials, eager: BatchResult, share: float) -> BatchResult | None:
    """Return the largest confirmed batch. After a failure the next attempt is a few per cent smaller."""
    least = share * eager.samples_per_s

    def fast(ran: BatchResult | None) -> BatchResult | None:
        return ran if ran is not None and ran.samples_per_s >= least else None

    predicted = largest(
        lambda rows: fast(device.planned(rows)),
        lambda rows: rows <= _TIMES * eager.rows and device.may_fit(rows),
        at_least=eager.rows,
    )
    rows = predicted.rows if predicted is not None else 0
    while rows > eager.rows:
        ran = fast(device.confirmed(rows))
        if ran is not None:
            return ran
        rows = min(rows - 1, round(rows * _RETREAT))
    return None


def largest(
    attempt: Callable[[int], BatchResult | None], may: Callable[[int], bool], at_least: int = 1
) -> BatchResult | None:
    """Return the largest successful attempt: the batch doubles until one fails, then the interval is bisected."""
    best, high = attempt(at_least) if may(at_least) else None, at_least
    while best is not None and high < _MOST_ROWS:
        high *= 2
        more = attempt(high) if may(high) else None
        if more is None:
            break
        best = more
    low = best.rows if best is not None else high
    while high - low > 1:
        middle = (low + high) // 2
        more = attempt(middle) if may(middle) else None
        low, high = (low, middle) if more is None else (middle, high)
        best = more or best
    return best


def verdict(rows: Sequence[Row]) -> str:
    """Return on how many networks the batch reaches HOME's best ratio, and the speed that remains there."""
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
    summary = f"{HOMES} times eager's batch on {len(reached)} of {len(best)} networks: {', '.join(reached) or 'none'}"
    return summary if len(reached) >= least else f"NOT REACHED: {summary}"


# --- options and output --------------------------------------------------------------------------------------------


@contextmanager
def _device(options: argparse.Namespace, run_target: RunTarget, name: str) -> Iterator[tuple[BatchTrials, Row]]:
    labels: Row = {
        "model": name,
        "mode": "simulated" if options.simulated else "executed",
        "machine": run_target.named,
    }
    if options.simulated:
        if not run_target.emulated:
            raise RequestError("--simulated plans only", hint="Leave out --device, or --simulated to run there.")
        budget_bytes = _SIMULATED_BYTES if options.budget is None else _size(options.budget)
        labels |= {"side": networks.find(name).row[-1], "budget_bytes": budget_bytes}
        yield InterpolatedBatches(partial(graph_of, name), run_target.stands_for, budget_bytes), labels
        return
    rows = (_ROWS if run_target.emulated else _GPU_ROWS) if options.batch is None else options.batch
    case = BenchmarkCase.of(name, rows, options.side, emulated=run_target.emulated)
    with open_executor(case, run_target) as batches:
        if options.budget is None:
            budget_bytes = batches.eager(rows).peak_bytes
        else:
            budget_bytes = _size(options.budget)
            if run_target.emulated:
                require_memory(f"batches of up to twice the budget of {options.budget}", 2 * budget_bytes)
        yield ExecutedBatches(batches, budget_bytes, rows), labels | {"side": case.side, "budget_bytes": budget_bytes}


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
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
    parser.add_argument("--budget", help="such as 8GB, the default of --simulated; else eager's memory for --batch")
    parser.add_argument("--batch", type=whole(), help="eager's rows that define the budget; default: 4, on a GPU 16")
    parser.add_argument("--side", "--pixels", type=whole(), help="pixels a side, or tokens; default: few")
    parser.add_argument("--shares", nargs="+", type=portion, default=(0.0, 0.5), help="of eager's samples a second")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
