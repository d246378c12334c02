"""Estimates how a training scales to hundreds of ranks, beside published measurements. Nothing is executed.

    python -m indb_tensile.bench scaling [--models resnet50 bert] [--batch 32] [--machine v100] [--ranks 1 8 … 512]
        [--per-host 8] [--between 6.25] [--within 40] [--latency 10] [--message 1] [--json]

Each rank has its own batch (weak scaling). The time of its step is that of the captured graph by a roofline of the
machine, so it is shorter than a real one, and the share of the exchange is larger. The exchange is modelled
(bench/harness/comparisons/rank_scaling.py) for hosts of `--per-host` GPUs with one network interface each. The
defaults are eight GPUs and 50 Gbit/s, as in Goyal and others. Rates are in gigabytes a second, times in microseconds.

`efficiency` is the time of a step on one host over that on so many ranks, or of one rank if there are fewer ranks
than a host has: with DDP's exchange, with our sum `fast`, and with our sum `exact`, one part a rank, all of them
during the backward pass. `published` is measured by others, from 8 GPUs on:

- Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), abstract: about 90 % from 8
  to 256 GPUs, ResNet-50 with 32 images a GPU, on other GPUs (P100) and with another library.
- Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), abstract:
  near-linear with 256 GPUs. It has no number, so no row has one.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from indb_tensile.bench.harness.comparisons.rank_scaling import GpuCluster, RankStep
from indb_tensile.bench.harness.networks.known_networks import find, graph_of
from indb_tensile.bench.harness.processes.argument_types import number, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import MIB, stamped
from indb_tensile.executor.capture import part_gradients, rank_gradients
from indb_tensile.executor.capture.exchange_room import PIECE_ELEMENTS
from indb_tensile.scheduler.timing.machines import MACHINES, latencies, machine

Row = dict[str, Any]

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PUBLISHED = {("resnet50", 32, 256): 0.90}  # by network, batch of a rank, and ranks: Goyal and others, abstract
_FLOAT_BYTES = 4
_DIGITS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network and number of ranks."""
    options = _parser().parse_args(arguments)
    cluster = GpuCluster(
        ranks_per_host=options.per_host,
        between_bytes_per_s=round(options.between * 1e9),
        within_bytes_per_s=round(options.within * 1e9),
        latency_ns=round(options.latency * 1e3),
        message_ns=round(options.message * 1e3),
    )
    for name in options.models:
        find(name)
    for name in options.models:
        graph = graph_of(name, options.batch)
        step = RankStep.of(graph, latencies(graph, machine(options.machine)))
        for row in estimate(step, cluster, options.ranks):
            published = PUBLISHED.get((name, options.batch, row["ranks"]))
            full = {
                "network": name,
                "batch": options.batch,
                "machine": options.machine,
                **row,
                "published": published,
            }
            print(stamped(full) if options.json else _line(full), flush=True)


def estimate(step: RankStep, cluster: GpuCluster, ranks: Sequence[int]) -> list[Row]:
    """Return a row for each number of ranks."""
    own = {count: _times(step, cluster, count) for count in {*ranks, 1, cluster.ranks_per_host}}
    rows: list[Row] = []
    for count in ranks:
        base = own[cluster.ranks_per_host if count >= cluster.ranks_per_host else 1]
        row: Row = {"ranks": count, "gradient_bytes": step.gradient_bytes}
        for method, time_ns in own[count].items():
            row[f"{method}_ms"] = round(time_ns / 1e6, _DIGITS)
            row[f"{method}_efficiency"] = round(base[method] / time_ns, _DIGITS)
        rows.append(row)
    return rows


def _times(step: RankStep, cluster: GpuCluster, ranks: int) -> dict[str, float]:
    return {
        "ddp": step.ddp_ns(cluster, ranks),
        "fast": step.fast_ns(cluster, ranks, rank_gradients.BUCKET_BYTES),
        "exact": step.exact_ns(cluster, ranks, part_gradients.BUCKET_BYTES, PIECE_ELEMENTS * _FLOAT_BYTES),
    }


def _line(row: Row) -> str:
    figures = ", ".join(
        f"{name} {row[f'{name}_ms']:.1f} ms ({row[f'{name}_efficiency']:.0%})" for name in ("ddp", "fast", "exact")
    )
    published = "" if row["published"] is None else f"; published about {row['published']:.0%}"
    head = f"{row['network']:<12} {row['ranks']:4} ranks, gradients of {row['gradient_bytes'] / MIB:.1f} MB"
    return f"{head}, simulated: {figures}{published}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", metavar="NAME", default=["resnet50", "bert"], help="known networks")
    parser.add_argument("--batch", type=whole(), default=32, help="rows of each rank")
    parser.add_argument("--machine", choices=MACHINES, default="v100", help="the GPU of each rank")
    parser.add_argument("--ranks", type=whole(), nargs="+", default=list(RANKS))
    parser.add_argument("--per-host", type=whole(), default=8, help="GPUs of a host")
    parser.add_argument("--between", type=number(0.001), default=6.25, help="GB/s of a host's network interface")
    parser.add_argument("--within", type=number(0.001), default=40.0, help="GB/s between two GPUs of a host")
    parser.add_argument("--latency", type=number(0), default=10.0, help="microseconds of an empty message")
    parser.add_argument("--message", type=number(0), default=1.0, help="microseconds that another message costs")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
