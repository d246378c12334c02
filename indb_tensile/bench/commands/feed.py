"""Measures how long an iteration waits for its batch, with and without uploading the next batch ahead.

    python -m indb_tensile.bench feed [--models resnet50 … [--batch 8] [--side 64]] [--budgets 1 0.6 …]
        [--device emulated] [--machine a6000] [--epochs 2] [--rounds 3] [--json]

The networks are small ones with large batches. With `--models` they are known ones
(bench/harness/networks/known_networks.py). Each trains from a shuffled table of random rows, under a plan for each
budget, as a share of the liveness peak (1: no swaps). Another thread gathers the batches. `at the start`: an
iteration uploads its own batch when it begins. `ahead`: the previous iteration uploads it, where its plan has room
(scheduler/memory/next_batch.py). `lent`: the previous iteration uploads it to memory that the job is lent for a batch
beside its plan, as a controller lends free memory (scheduler/admission/batch_loans.py). The ways take turns; figures
are medians over the rounds. `gather_share` is the share of the training time that waited for rows, `copy_share` the
share in which operators waited for copies: of the batch, and under plans that swap of tensors too. `waiting_share` is
their sum, `taken_share` the share of the batches that were uploaded ahead. `upload_share` is the part of a simulated
iteration that the copy of a batch takes. `room_share` is the part at its end in which there is room for the next
batch; a copy that is longer is waited for. `lent_bytes` are beside the plan. `foretold_ms` is the simulated
iteration, from the measured latencies of operators. `peak_bytes` is the measured peak of the plan, without what is
lent, `exact` says whether all ways end with the same bits. The exit code is 1 if a bit differs, or on an emulated
device if the peak is not the plan's to the byte.

On a GPU, iterations that are recorded as CUDA graphs upload their batches themselves, so the iterations of this
benchmark are not recorded.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from indb_tensile.bench.commands.forecast import SmallNetwork
from indb_tensile.bench.harness.execution.benchmark_processes import preload, run_each_alone
from indb_tensile.bench.harness.execution.cases import BenchmarkCase, add_sizes
from indb_tensile.bench.harness.execution.device_rig import DeviceRig, add_target, set_up, target
from indb_tensile.bench.harness.execution.trial import RATE, TrainingSubject, workload
from indb_tensile.bench.harness.processes.argument_types import portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.learning.batches.batch_prefetch import Batch, BatchPrefetcher
from indb_tensile.scheduler.memory.next_batch import BATCH_NAMES, batch_tensors, uploads_ahead_from
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak, peak
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import plan_jobs
from indb_tensile.scheduler.rewrite import effective_latency
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate

NETWORKS = (
    SmallNetwork(name="mlp", architecture={"type": "mlp", "hidden": [512, 512]}, shape=(1024,), rows=512),
    SmallNetwork(
        name="cnn", architecture={"type": "cnn", "channels": [16, 32], "hidden": [64]}, shape=(3, 64, 64), rows=64
    ),
)
WAYS = ("at the start", "ahead", "lent")
_BATCHES = 24  # of an epoch; its first batch is never uploaded ahead


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per network, budget and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help="known networks")
    add_sizes(parser)
    add_target(parser)
    parser.add_argument("--budgets", nargs="+", type=portion, default=[1.0, 0.6], metavar="SHARE")
    parser.add_argument("--epochs", type=whole(), default=2, help="epochs of 24 batches in one turn")
    parser.add_argument("--rounds", type=whole(), default=3, help="turns of each way")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    run_target = target(options)
    run_each_alone(options.models)
    preload()
    torch.set_num_threads(1)
    faults = 0
    for subject in _subjects(options, emulated=run_target.emulated):
        with set_up(run_target, subject) as rig:
            for share in options.budgets:
                for row in _rows(rig, subject, share, options.epochs, options.rounds):
                    print(json.dumps(row) if options.json else _line(row), flush=True)
                    faults += not row["exact"] or (run_target.emulated and row["peak_bytes"] != row["planned_bytes"])
    sys.exit(int(faults > 0))


def _subjects(options: argparse.Namespace, *, emulated: bool) -> Iterator[TrainingSubject]:
    if not options.models:
        yield from (network.subject() for network in NETWORKS)
    for name in options.models:
        yield BenchmarkCase.of(name, options.batch, options.side, emulated=emulated).subject()


def _rows(
    rig: DeviceRig, subject: TrainingSubject, share: float, epochs: int, rounds: int
) -> Iterator[dict[str, Any]]:
    plan = _plan(rig, subject, share)
    turns = [[_turn(rig, subject, plan, way, epochs) for way in WAYS] for _ in range(rounds)]
    measured = [turn.pop("latency_ns") for row in turns for turn in row]
    measured_ns = tuple(round(median(column)) for column in zip(*measured, strict=True))
    foretold = _foretold(rig, plan, measured_ns)
    exact = len({turn.pop("bits") for row in turns for turn in row}) == 1
    for way, column in zip(WAYS, zip(*turns, strict=True), strict=True):
        yield {
            "network": subject.name,
            "batch": len(subject.x),
            "budget": share,
            "way": way,
            "planned_bytes": peak(rig.step.graph, plan),
            **{name: median(turn[name] for turn in column) for name in column[0]},
            **foretold[way],
            "exact": exact,
        }


def _foretold(rig: DeviceRig, plan: Plan, latency_ns: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Return the simulated figures of each way."""
    graph, figures = rig.step.graph, dict[str, dict[str, float]]()
    for way in WAYS:
        batch, beside = () if way == WAYS[0] else BATCH_NAMES, way == "lent"
        run = JobRun(graph=graph, plan=plan, latency_ns=latency_ns, batch=batch, beside=beside)
        (forecast,) = simulate((run,), rig.link)
        uploaded = batch_tensors(graph, BATCH_NAMES)
        upload_ns = sum(rig.link.in_ns(graph.tensors[tensor].size_bytes) for tensor in uploaded)
        first = uploads_ahead_from(graph, plan, batch_tensors(graph, batch), beside=beside)
        room_ns = 0 if first is None else sum(effective_latency(latency_ns, plan)[first:])
        figures[way] = {
            "foretold_ms": round(forecast.iteration_ns / 1e6, 3),
            "upload_share": round(upload_ns / forecast.iteration_ns, 4),
            "room_share": round(room_ns / forecast.iteration_ns, 4),
        }
    return figures


def _plan(rig: DeviceRig, subject: TrainingSubject, share: float) -> Plan:
    """Return the plan for a share of the liveness peak, from the latencies under no plan."""
    if share == 1:
        return LIVENESS
    trial = rig.trial(subject)
    measured = trial.run(LIVENESS, 3)
    trial.runner.close()
    graph = rig.step.graph
    budget_bytes = max(floor(graph), round(share * liveness_peak(graph)))
    plans = plan_jobs([workload(rig.step, measured.latency_ns)], budget_bytes=budget_bytes, link=rig.link)
    assert not isinstance(plans, Infeasible), "the floor always has a plan"
    return plans[0].plans[0]


def _turn(rig: DeviceRig, subject: TrainingSubject, plan: Plan, way: str, epochs: int) -> dict[str, Any]:
    """Train some epochs from the initial weights."""
    opened = rig.opened
    state = State.create(subject.module, subject.settings, opened.torch_device)
    runner = Runner(
        opened.device,
        state,
        (rig.step,),
        sample_every=1,
        placer=rig.placer(),
        operator_clock=opened.clock,
        check=opened.check,
    )
    runner.adopt((plan,), 1)
    with BatchPrefetcher(runner) as feed:
        if way != WAYS[0]:
            runner.upload_ahead(feed.next_batch)
        lent_bytes = runner.lend_for_batch(rig.capacity_bytes) if way == "lent" else 0
        torch.manual_seed(7)
        table = tuple(torch.cat([part.roll(k, 0) for k in range(_BATCHES)]) for part in (subject.x, subject.y))
        _epoch(runner, feed, table, 0)
        rig.reset_high_water()
        waited_s, taken, begun_s = feed.waiting.waited_s, runner.uploaded_ahead, time.perf_counter()
        seen = [_epoch(runner, feed, table, epoch) for epoch in range(1, epochs + 1)]
        taken_s = time.perf_counter() - begun_s
        gather_s = feed.waiting.waited_s - waited_s
    stall_share = sum(epoch.stall_ns for epoch in seen) / 1e9 / taken_s
    figures = {
        "step_ms": round(taken_s * 1000 / _BATCHES / epochs, 3),
        "gather_share": round(gather_s / taken_s, 4),
        "copy_share": round(stall_share, 4),
        "waiting_share": round(gather_s / taken_s + stall_share, 4),
        "taken_share": round((runner.uploaded_ahead - taken) / _BATCHES / epochs, 3),
        "lent_bytes": lent_bytes,
        "peak_bytes": rig.peak_bytes(max(epoch.peak_bytes for epoch in seen)),
        "latency_ns": seen[-1].latency_ns,
    }
    runner.close()
    return {**figures, "bits": _bits(state)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """For how long operators waited for copies, the peak, and the latencies of the last iteration."""

    stall_ns: int
    peak_bytes: int
    latency_ns: tuple[int, ...]


def _epoch(runner: Runner, feed: BatchPrefetcher, table: Batch, epoch: int) -> _Epoch:
    """Train on all rows, in an order of their own."""
    rows, stall_ns, peak_bytes = len(table[0]) // _BATCHES, 0, 0
    order = torch.randperm(len(table[0]), generator=torch.Generator().manual_seed(epoch))
    orders = [order[first : first + rows] for first in range(0, len(order), rows)]
    with closing(feed.batches(table, orders)) as fed:
        for _, (x, y) in fed:
            runner.train(x, y, RATE)
            measured = runner.measured()
            assert measured is not None, "every iteration is a sample"
            stall_ns, peak_bytes = stall_ns + measured.stall_ns, max(peak_bytes, measured.peak_bytes)
            latency_ns = measured.latency_ns
    return _Epoch(stall_ns=stall_ns, peak_bytes=peak_bytes, latency_ns=latency_ns)


def _bits(state: State) -> bytes:
    return b"".join(value.contiguous().numpy().tobytes() for _, value in sorted(state.export().items()))


def _line(row: dict[str, Any]) -> str:
    waits = f"waits {row['gather_share']:.2%} for rows and {row['copy_share']:.2%} for copies"
    same = "" if row["exact"] else ", WITH OTHER BITS"
    where = f"{row['network']} at {row['budget']:.0%}, {row['way']}"
    foretold = f"foretold {row['foretold_ms']:.2f} ms, upload {row['upload_share']:.1%}, room {row['room_share']:.1%}"
    return f"{where}: {row['step_ms']:.2f} ms ({foretold}), {waits}; {row['taken_share']:.0%} ahead{same}"


if __name__ == "__main__":
    run(main)
