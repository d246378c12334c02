"""Tries batches within a budget, by eager PyTorch and planned: simulated, or executed on a device.

The search for the largest batch interpolates between two captured batches
(bench/harness/comparisons/interpolated_workload.py). A batch that is reported is captured and planned itself, and
executed if requested. On a GPU eager runs in a process of its own, with torch's own allocator.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import torch

from indb_tensile import config
from indb_tensile.bench.harness.comparisons.interpolated_workload import InterpolatedWorkload
from indb_tensile.bench.harness.comparisons.remote_contenders import ContenderProcess, memory_of
from indb_tensile.bench.harness.comparisons.rivals import EAGER, TorchTraining
from indb_tensile.bench.harness.comparisons.torch_transfers import TorchTransfers
from indb_tensile.bench.harness.execution.cases import BenchmarkCase
from indb_tensile.bench.harness.execution.device_rig import (
    UNTHROTTLED,
    DeviceRig,
    RunTarget,
    emulated,
    set_up,
    slowed_link,
)
from indb_tensile.bench.harness.execution.trial import StepTrial, TrainingSubject
from indb_tensile.errors import DeviceMemoryError
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.open_device import OpenDevice
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.state import HOST
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, Workload, plan_jobs
from indb_tensile.scheduler.timing.machines import Machine, latencies


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """One batch that fits: its peak memory, and the time of an iteration."""

    rows: int
    peak_bytes: int
    iteration_ns: int

    @property
    def samples_per_s(self) -> float:
        """Return the samples trained per second."""
        return self.rows * 1e9 / self.iteration_ns


class BatchTrials(Protocol):
    """Tries batches, simulated or executed. Methods return None for a batch that does not fit."""

    def eager(self, rows: int) -> BatchResult | None:
        """Try a batch of `rows` rows by eager PyTorch."""
        ...

    def planned(self, rows: int) -> BatchResult | None:
        """Predict the planned batch: quick, and perhaps slightly wrong."""
        ...

    def confirmed(self, rows: int) -> BatchResult | None:
        """Return the planned batch as captured, and executed if the device executes: the result to report."""
        ...

    def may_fit(self, rows: int) -> bool:
        """Return whether a plan could fit: quick, and never wrong if the answer is no."""
        ...


# --- simulated ---------------------------------------------------------------------------------------------------


class SimulatedBatches:
    """Batches of a network, given as the workload of each number of rows, on a machine with its own link."""

    def __init__(self, works: Callable[[int], Workload], link: Link, budget_bytes: int) -> None:
        self._work = cache(works)
        self.link = link
        self._budget_bytes = budget_bytes
        self.planned = cache(self._planned)  # different shares try the same batches

    @classmethod
    def of(cls, graphs: Callable[[int], StepGraph], machine: Machine, budget_bytes: int) -> "SimulatedBatches":
        """Return batches with the machine's roofline times; each batch is a graph of its own."""
        return cls(partial(roofline, graphs, machine), machine.link, budget_bytes)

    def eager(self, rows: int) -> BatchResult | None:
        """Return the batch at its liveness peak, with one operator after another."""
        work = self._work(rows)
        peak_bytes = liveness_peak(work.graphs[0])
        return _fitting(
            BatchResult(rows=rows, peak_bytes=peak_bytes, iteration_ns=sum(work.latency_ns[0])), self._budget_bytes
        )

    def may_fit(self, rows: int) -> bool:
        """Return whether the largest operator fits; splitting operators is not considered."""
        return floor(self._work(rows).graphs[0]) <= self._budget_bytes

    def confirmed(self, rows: int) -> BatchResult | None:
        """Return the plan itself, since nothing runs here."""
        return self.planned(rows)

    def _planned(self, rows: int) -> BatchResult | None:
        plan = _plan(self._work(rows), self._budget_bytes, self.link)
        if plan is None:
            return None
        return BatchResult(rows=rows, peak_bytes=plan.peak_bytes, iteration_ns=plan.forecast.iteration_ns)


class InterpolatedBatches(SimulatedBatches):
    """Simulated batches whose search interpolates. The result is captured and planned itself."""

    def __init__(self, graphs: Callable[[int], StepGraph], machine: Machine, budget_bytes: int) -> None:
        self._line = InterpolatedWorkload(partial(roofline, graphs, machine), 8, 16)
        super().__init__(self._line, machine.link, budget_bytes)
        self._itself = SimulatedBatches(self._line.work, machine.link, budget_bytes)

    def confirmed(self, rows: int) -> BatchResult | None:
        """Plan the batch as it is captured."""
        return self._itself.planned(rows)


def roofline(graphs: Callable[[int], StepGraph], machine: Machine, rows: int) -> Workload:
    """Return the workload of `rows` rows, with the machine's roofline times."""
    graph = graphs(rows)
    return Workload(job=JobId(1), graphs=(graph,), latency_ns=(latencies(graph, machine),))


# --- executed ----------------------------------------------------------------------------------------------------


class BatchExecutor(Protocol):
    """Executes batches."""

    link: Link

    def eager(self, rows: int) -> BatchResult:
        """Run one step by eager PyTorch. Returns the bytes that it really allocates, and its time."""
        ...

    def calibrated(self, rows: int) -> tuple[TrainingSubject, CapturedStep, Workload]:
        """Return a batch's step, with its operators measured one by one."""
        ...

    def ours(self, budget_bytes: int, step: CapturedStep) -> AbstractContextManager[tuple[OpenDevice, Placer | None]]:
        """Return a device with this memory, and the placer of the step's tensors."""
        ...


class ExecutedBatches:
    """Batches as they run: eager by the bytes that its step allocates, ours by one step under its plan.

    The search interpolates between two calibrated batches. The few batches that it ends with run.
    """

    def __init__(self, ground: BatchExecutor, budget_bytes: int, rows: int) -> None:
        self._ground = ground
        self._budget_bytes = budget_bytes
        self._calibrated = cache(ground.calibrated)
        self.confirmed = cache(self._confirmed)
        line = InterpolatedWorkload(lambda rows: self._calibrated(rows)[2], rows, 2 * rows)
        self._predicted = SimulatedBatches(line, ground.link, budget_bytes)

    def eager(self, rows: int) -> BatchResult | None:
        """Try a batch by eager PyTorch."""
        return _fitting(self._ground.eager(rows), self._budget_bytes)

    def may_fit(self, rows: int) -> bool:
        """Return whether the largest operator fits."""
        return self._predicted.may_fit(rows)

    def planned(self, rows: int) -> BatchResult | None:
        """Predict the planned batch."""
        return self._predicted.planned(rows)

    def _confirmed(self, rows: int) -> BatchResult | None:
        subject, step, work = self._calibrated(rows)
        plan = _plan(work, self._budget_bytes, self._ground.link)
        if plan is None:
            return None
        with self._ground.ours(self._budget_bytes, step) as (opened, placer):
            trial = StepTrial(subject, step, opened, placer=placer)
            try:
                iteration_ns = trial.run(plan.plans[0], 1).iteration_ns
            except DeviceMemoryError:  # packing is not perfect, so a plan may not fit its budget
                return None
            finally:
                seen_bytes = opened.device.usage().high_water_bytes
                trial.runner.close()
        assert seen_bytes <= plan.peak_bytes, f"{rows} rows: planned {plan.peak_bytes} bytes, saw {seen_bytes}"
        return BatchResult(rows=rows, peak_bytes=plan.peak_bytes, iteration_ns=iteration_ns)


class EmulatedExecutor:
    """An emulated device for each batch, all with the link of the batch that defines the budget."""

    def __init__(self, case: BenchmarkCase, stands_for: Machine) -> None:
        self._case = case
        self.calibrated = cache(self._calibrate)
        subject, step, _ = self.calibrated(case.batch)
        self.link = slowed_link(subject, step, stands_for, 1)

    def eager(self, rows: int) -> BatchResult:
        """Run in this process. Uploading the batch takes no time."""
        return eager_step(self._case.sized(rows))

    @contextmanager
    def ours(self, budget_bytes: int, step: CapturedStep) -> Iterator[tuple[OpenDevice, Placer | None]]:
        """Yield a device whose ledger counts tensors, which are in ordinary memory."""
        # Every tensor that is swapped out has a host buffer, and together these may be many times the budget.
        host_bytes = 2 * sum(tensor.size_bytes for tensor in step.graph.tensors) + config.GIB
        with emulated(self.link, budget_bytes, host_bytes) as opened:
            yield opened, None

    def _calibrate(self, rows: int) -> tuple[TrainingSubject, CapturedStep, Workload]:
        subject = self._case.sized(rows).subject()
        return subject, *subject.calibrated()


class GpuExecutor:
    """One GPU: half of its memory is ours, of which a budget is granted; the other half is eager's."""

    def __init__(self, case: BenchmarkCase, rig: DeviceRig, torchs: ContenderProcess) -> None:
        self._case = case
        self._rig = rig
        self._torchs = torchs
        self.link = rig.link

    def eager(self, rows: int) -> BatchResult:
        """Run in the other process."""
        return self._torchs.ask(eager_step, self._case.sized(rows), self._rig.opened.torch_device)

    def calibrated(self, rows: int) -> tuple[TrainingSubject, CapturedStep, Workload]:
        """Calibrate on the GPU."""
        self._rig.grant(self._rig.capacity_bytes)
        subject = self._case.sized(rows).subject()
        return subject, *subject.calibrated(self._rig.opened.torch_device)

    def ours(self, budget_bytes: int, step: CapturedStep) -> AbstractContextManager[tuple[OpenDevice, Placer | None]]:
        """Return the GPU with the budget granted. Tensors are at their planned addresses in its regions."""
        self._rig.grant(budget_bytes)
        return nullcontext((self._rig.opened, self._rig.placer(step)))


@contextmanager
def open_executor(case: BenchmarkCase, run_target: RunTarget) -> Iterator[BatchExecutor]:
    """Yield where this network's batches run. Raises DeviceError if a GPU is requested and cannot be used."""
    if run_target.emulated:
        yield EmulatedExecutor(case, run_target.stands_for)
        return
    with set_up(run_target, case.subject()) as rig, ContenderProcess(rig.opened.torch_device) as torchs:
        yield GpuExecutor(case, rig, torchs)


def eager_step(case: BenchmarkCase, place: torch.device = HOST) -> BatchResult:
    """Run one iteration of eager PyTorch. Returns the bytes that it allocates, and its time."""
    subject = case.subject()
    with emulated(UNTHROTTLED, config.MIB) if place == HOST else nullcontext() as opened:
        shared = (
            TorchTraining(subject, TorchTransfers(place), place)
            if opened is None
            else TorchTraining.on(subject, opened)
        )
        contender = shared.contender(EAGER, shared.module)
        memory = memory_of(contender, shared)
        started_ns = time.perf_counter_ns()
        contender.iterate()
        contender.settle()
        iteration_ns = time.perf_counter_ns() - started_ns
        shared.close()
    return BatchResult(rows=case.batch, peak_bytes=memory.allocated_bytes, iteration_ns=iteration_ns)


# --- both ----------------------------------------------------------------------------------------------------------


def _plan(work: Workload, budget_bytes: int, link: Link) -> JobPlan | None:
    planned = plan_jobs([work], budget_bytes=budget_bytes, link=link)
    return None if isinstance(planned, Infeasible) else planned[0]


def _fitting(ran: BatchResult, budget_bytes: int) -> BatchResult | None:
    return ran if ran.peak_bytes <= budget_bytes else None
