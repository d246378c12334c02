"""Measures how well the simulator predicts jobs that share the emulated device's lanes and processor.

    python -m indb_tensile.bench together [--rounds 3] [--seconds 10] [--budget 0.5] [--json]

Three trainings run at once, each in a process of its own as the controller's trainers do. None pauses while another
is measured. Each round the jobs run without swaps, are planned together with the latencies of that run, and run under
these plans. The simulator then predicts the plans with the latencies of the planned run itself, so that the
comparison judges the cost model and not a change in the machine's speed. Times are means over the run. `ratio`,
measured over predicted time, is the median over the rounds.
"""

import argparse
import json
import multiprocessing
import time
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from indb_tensile import config
from indb_tensile.bench.commands.forecast import SmallNetwork
from indb_tensile.bench.harness.execution.device_rig import emulated_on
from indb_tensile.bench.harness.execution.trial import WARM_ITERATIONS, StepTrial
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.latency.reference_step import measure_pace
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee, plan_jobs
from indb_tensile.scheduler.timing.machines import REFERENCE, slowed

NETWORKS = (
    SmallNetwork(
        name="cnn",
        architecture={"type": "cnn", "channels": [64], "depth": 12, "hidden": [256], "dropout": 0.2},
        shape=(1, 8, 8),
        rows=448,
    ),
    SmallNetwork(
        name="mlp", architecture={"type": "mlp", "hidden": [2048] * 4, "dropout": 0.2}, shape=(30,), rows=256
    ),
    SmallNetwork(
        name="narrow", architecture={"type": "mlp", "hidden": [2048] * 4, "dropout": 0.2}, shape=(10,), rows=128
    ),
)
CAPACITY_BYTES = config.GIB
SHARE_BYTES = CAPACITY_BYTES // config.MIB // len(NETWORKS) * config.MIB


class _Request(Enum):
    """A request to a training process other than a plan."""

    MEASURE = "measure from now on"
    REPORT = "report the measurements"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Measurements of one process in one run: its mean iteration, and the means of its operators."""

    iteration_ns: int
    latency_ns: tuple[int, ...]
    peak_bytes: int


def main() -> None:
    """Print one row per job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each run")
    parser.add_argument(
        "--budget", type=float, default=0.5, help="share of the way from the floors to liveness peaks"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    arguments = parser.parse_args()
    for row in measure(arguments.rounds, arguments.seconds, arguments.budget):
        print(json.dumps(row) if arguments.json else _line(row), flush=True)


def measure(rounds: int, seconds: float, budget: float) -> list[dict[str, Any]]:
    """Return one row per job."""
    with multiprocessing.get_context("spawn").Pool(1) as apart:  # torch must not run here before the forks below
        link = slowed(REFERENCE, apart.apply(measure_pace, (REFERENCE,)))
    with Ledger.create(CAPACITY_BYTES, config.MIB, link.out_bytes_per_s, link.in_bytes_per_s) as ledger:
        members = [_Member.start(network, ledger) for network in NETWORKS]
        for member in members:
            member.graph = member.pipe.recv()
        rounds_run: list[list[tuple[JobPlan, _Measured]]] = []
        for _ in range(rounds):
            unplanned = _run(members, [Plan(policy="liveness")] * len(members), seconds / 2)
            planned = _planned(members, unplanned, link, budget)
            measured = _run(members, [plan.plans[0] for plan in planned], seconds)
            predicted = foresee(_workloads(members, measured), planned, link=link)
            rounds_run.append(list(zip(predicted, measured, strict=True)))
        for member in members:
            member.stop()
    return [_row(network, [jobs[k] for jobs in rounds_run]) for k, network in enumerate(NETWORKS)]


@dataclass(kw_only=True)
class _Member:
    """One training process and the pipe to it."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    graph: StepGraph | None = None

    @classmethod
    def start(cls, network: SmallNetwork, ledger: Ledger) -> "_Member":
        context = multiprocessing.get_context("fork")  # before any device is opened: the ledger's file is inherited
        own_end, its_end = context.Pipe()
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, SHARE_BYTES)
        process = context.Process(target=_train, args=(network, ledger.fd, slot, epoch, its_end), daemon=True)
        process.start()
        return cls(process=process, pipe=own_end)

    def stop(self) -> None:
        self.pipe.send(None)
        self.process.join()


def _train(network: SmallNetwork, fd: int, slot: int, epoch: int, pipe: Connection) -> None:
    """Calibrate, then train without a pause, so that the other processes are measured beside this one."""
    torch.set_num_threads(1)
    with EmulatedDevice(fd, slot, epoch, SHARE_BYTES) as device:
        subject = network.subject()
        trial = StepTrial(subject, subject.capture(), emulated_on(device))
        pipe.send(trial.step.graph)
        request = pipe.recv()
        start_ns = count = 0
        while request is not None:
            match request:
                case Plan():
                    trial.adopt(request)
                    _train_for(trial, WARM_ITERATIONS)
                    pipe.send(_Request.MEASURE)
                case _Request.MEASURE:
                    trial.runner.measured()
                    start_ns, count = time.perf_counter_ns(), 0
                case _Request.REPORT:
                    pipe.send(_measured(trial, (time.perf_counter_ns() - start_ns) // count))
            count += _train_until(trial, pipe)
            request = pipe.recv()
        trial.runner.close()


def _train_for(trial: StepTrial, iterations: int) -> None:
    for _ in range(iterations):
        trial.iterate()


def _train_until(trial: StepTrial, pipe: Connection) -> int:
    """Train at least one iteration and until another request arrives. Returns the number of iterations."""
    count = 0
    while not (count and pipe.poll()):
        _train_for(trial, 1)
        count += 1
    return count


def _measured(trial: StepTrial, iteration_ns: int) -> _Measured:
    measurement = trial.runner.measured()
    assert measurement is not None
    return _Measured(iteration_ns=iteration_ns, latency_ns=measurement.latency_ns, peak_bytes=measurement.peak_bytes)


def _run(members: list[_Member], plans: list[Plan], seconds: float) -> list[_Measured]:
    """Run every process under its plan. Measures for `seconds` after the last process has warmed up."""
    for member, plan in zip(members, plans, strict=True):
        member.pipe.send(plan)
    for member in members:
        member.pipe.recv()
    for member in members:
        member.pipe.send(_Request.MEASURE)
    time.sleep(seconds)
    for member in members:
        member.pipe.send(_Request.REPORT)
    return [member.pipe.recv() for member in members]


def _workloads(members: list[_Member], runs: list[_Measured]) -> tuple[Workload, ...]:
    workloads = []
    for number, (member, measured) in enumerate(zip(members, runs, strict=True)):
        assert member.graph is not None
        workloads.append(Workload(job=JobId(number), graphs=(member.graph,), latency_ns=(measured.latency_ns,)))
    return tuple(workloads)


def _planned(members: list[_Member], runs: list[_Measured], link: Link, budget: float) -> tuple[JobPlan, ...]:
    workloads = _workloads(members, runs)
    alone = plan_jobs(workloads, budget_bytes=1 << 62, link=link, policy="liveness")
    assert isinstance(alone, tuple)
    least = sum(plan.floor_bytes for plan in alone)
    most = sum(plan.liveness_peak_bytes for plan in alone)
    planned = plan_jobs(workloads, budget_bytes=round(least + budget * (most - least)), link=link)
    assert isinstance(planned, tuple)  # no budget here is below the floors
    return planned


def _row(network: SmallNetwork, rounds: list[tuple[JobPlan, _Measured]]) -> dict[str, Any]:
    plan, measured = rounds[-1]
    assert measured.peak_bytes <= plan.peak_bytes, f"planned {plan.peak_bytes}, measured {measured.peak_bytes} bytes"
    return {
        "network": network.name,
        "liveness_peak_bytes": plan.liveness_peak_bytes,
        "peak_bytes": plan.peak_bytes,
        "swaps": plan.swaps,
        "foretold_ms": round(median(p.forecast.iteration_ns for p, _ in rounds) / 1e6, 1),
        "foretold_stall_ms": round(
            median(p.forecast.stall_in_ns + p.forecast.stall_out_ns for p, _ in rounds) / 1e6, 1
        ),
        "measured_ms": round(median(r.iteration_ns for _, r in rounds) / 1e6, 1),
        "ratio": round(median(r.iteration_ns / p.forecast.iteration_ns for p, r in rounds), 3),
        "ratios": [round(r.iteration_ns / p.forecast.iteration_ns, 3) for p, r in rounds],
    }


def _line(row: dict[str, Any]) -> str:
    sizes = ", ".join(f"{name} {row[f'{name}_bytes'] / config.MIB:.1f} MB" for name in ("liveness_peak", "peak"))
    return (
        f"{row['network']:<8} {sizes}, {row['swaps']} swaps; predicted {row['foretold_ms']} ms (stalls "
        f"{row['foretold_stall_ms']} ms), measured {row['measured_ms']} ms, ratio {row['ratio']} of {row['ratios']}"
    )


if __name__ == "__main__":
    run(main)
