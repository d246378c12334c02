"""Ways in which several processes (ranks) train one network together, as one rank runs them.

PyTorch's own is `DistributedDataParallel`, which exchanges gradients in buckets while the backward pass goes on (Li
and others, "PyTorch Distributed", VLDB 2020). Ours are captured steps that do the same: `exact` adds up the
gradients of all parts in the order of the parts, `fast` in any order. All use Gloo over loopback,
one thread, the same parts of the same batch, and Adam. They live in one process and take turns. Both may divide the
optimizer's state among the ranks: PyTorch's own does by `ZeroRedundancyOptimizer`.
"""

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore
from torch.nn.parallel import DistributedDataParallel

from indb_tensile.bench.harness.comparisons.allocations import measure_memory
from indb_tensile.bench.harness.comparisons.rivals import SEED
from indb_tensile.bench.harness.comparisons.sent_bytes import sent_bytes
from indb_tensile.bench.harness.execution.device_rig import emulated_with_grant, slowed_link
from indb_tensile.bench.harness.execution.trial import RATE, StepTrial, TrainingSubject, calibrated_step, workload
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.split_normalisations import with_split_normalisations
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.latency.exchange_rehearsal import rehearsed_network
from indb_tensile.executor.ranks.exchange_traffic import exchanges_on_network
from indb_tensile.executor.ranks.network_measurement import measure_network
from indb_tensile.executor.ranks.rank_connection import join_ranks
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging, measuring
from indb_tensile.executor.run.placer import Placer
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss, Link
from indb_tensile.scheduler.memory.peak import floor, vanilla_peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, plan_jobs
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.machines import REFERENCE
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.scheduler.timing.simulate_ranks import RankRun

DDP, DDP_ZERO = "DDP", "DDP, ZeRO"
WARM_ITERATIONS = 1
_MEETING_S, _TIMEOUT_S = 600.0, 600.0
_LINK_ITERATIONS = 3
_UNPLANNED, _UNPLANNED_ITERATIONS = "", 5  # a plan without swaps
_HOST = "localhost"


class SubjectSource(Protocol):
    """Makes a network and a batch. It is sent to the processes of the ranks."""

    def subject(self) -> TrainingSubject:
        """Return the subject. Random numbers are torch's, which the caller seeds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What one rank trains: `parts` of each batch are divided among the ranks, which meet in `directory`."""

    source: SubjectSource
    parts: int
    share: RankShare
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMethod:
    """One way to train: DDP, or a sum of ours (`reduce`) in a share of DDP's memory.

    Each further rank has less by `share_step`. With `divides_state` each rank keeps the optimizer's state of some
    parameters only.
    """

    name: str
    reduce: Reduce | None = None
    divides_state: bool = False
    memory_share: float = 1.0
    share_step: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTurn:
    """One turn of one rank. Times and bytes are those of one iteration.

    `before` is what an iteration is foretold from with the latencies of the turn before; None for DDP and in a first
    turn. `first` has it as known before anything was exchanged, and `measured` as measured in this turn; None for
    DDP. From those of all ranks the simulator foretells their time together.
    """

    step_ns: float
    sent_bytes: int
    digest: str
    peak_bytes: int
    before: RankRun | None = None
    first: RankRun | None = None
    measured: RankRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    """What a plan was made for, and its peak; `floor_bytes` is the least peak without repeated operators."""

    budget_bytes: int
    peak_bytes: int
    floor_bytes: int


class DataParallel:
    """The network in PyTorch's `DistributedDataParallel`, with the parts of one rank.

    Gradients are views of DDP's buckets, which saves a copy of them. All parts but the last one of a batch are added
    up without an exchange (`no_sync`).
    """

    def __init__(self, task: RankTask, subject: TrainingSubject, *, divides_state: bool = False) -> None:
        self._module = deepcopy(subject.module)
        self._parallel: Any = DistributedDataParallel(self._module, gradient_as_bucket_view=True)
        self._divides_state = divides_state
        make: Any = _zero_adam if divides_state else torch.optim.Adam
        self._optimizer: Any = make(self._module.parameters(), lr=RATE, fused=True)
        rows = _parts(task, subject).parts(len(subject.x))
        own = [rows[number] for number in task.share.own(len(rows))]
        self._batch = [(subject.x[r.start : r.stop], subject.y[r.start : r.stop]) for r in own]
        self._loss = subject.loss
        self._initial = {name: value.detach().clone() for name, value in self._named_values()}
        self.peak_bytes = self._measured_bytes()

    def turn(self, iterations: int) -> RankTurn:
        """Run a turn from the initial state."""
        self._restart()
        torch.manual_seed(SEED)
        for _ in range(WARM_ITERATIONS):
            self._iterate()
        step_ns, sent = _timed(self._iterate, iterations)
        return RankTurn(step_ns=step_ns, sent_bytes=sent, digest=self._digest(), peak_bytes=self.peak_bytes)

    def _iterate(self) -> None:
        self._backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _backward(self) -> None:
        last = len(self._batch) - 1
        for number, (x, y) in enumerate(self._batch):
            alone: AbstractContextManager[Any] = nullcontext() if number == last else self._parallel.no_sync()
            with alone:
                loss: Any = self._loss(self._parallel(x), y) / len(self._batch)
                loss.backward()

    def _measured_bytes(self) -> int:
        """Return the peak of an iteration, without the batch. The buckets exist between iterations too."""
        self._backward()
        buckets = [p.grad for p in self._module.parameters() if p.grad is not None]
        self._optimizer.step()
        standing = [value for _, value in self._named_values()]
        standing += self._state()
        standing += buckets
        self._optimizer.zero_grad(set_to_none=True)
        return measure_memory(self._iterate, standing).allocated_bytes

    def _restart(self) -> None:
        with torch.no_grad():
            for name, value in self._named_values():
                value.copy_(self._initial[name])
            for value in self._state():
                value.zero_()

    def _state(self) -> list[torch.Tensor]:
        """Return the optimizer's state that this rank keeps."""
        own = self._optimizer.optim if self._divides_state else self._optimizer
        return [value for state in own.state.values() for value in state.values()]

    def _named_values(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._module.named_parameters()
        yield from self._module.named_buffers()

    def _digest(self) -> str:
        return _digest({name: value.detach() for name, value in self._named_values()})


def _zero_adam(parameters: Iterator[torch.nn.Parameter], **settings: Any) -> Any:
    """Return Adam whose state is divided among the ranks of the default process group."""
    with warnings.catch_warnings():  # the package calls torch.jit.script when it is imported
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, **settings)


class PlannedRank:
    """The captured step of one rank on an emulated device of its own, under one of several plans."""

    def __init__(
        self,
        task: RankTask,
        subject: TrainingSubject,
        group: RankGroup,
        share: RankShare,
        link: Link | None,
    ) -> None:
        """`link` is the device's link. Without it, one is made that is as slow as this machine computes the step."""
        self._share = share
        self._group = group
        self._names = {name for name, _ in [*subject.module.named_parameters(), *subject.module.named_buffers()]}
        self._ranks = task.share.ranks
        with measuring(self._ranks, self._share.rank):
            self._step = _captured(task, subject, share)
            self.link = link or slowed_link(subject, self._step, REFERENCE, _LINK_ITERATIONS)
            self._stack = ExitStack()
            opened, _ = self._stack.enter_context(emulated_with_grant(self.link, 2 * vanilla_peak(self._step.graph)))
            self._trial = StepTrial(subject, self._step, opened, placer=Placer(opened.serving), share=share)
        self._plans: dict[str, JobPlan] = {}
        self._latency_ns: dict[str, tuple[int, ...]] = {}  # of the last turn of each plan
        self._between_ns: dict[str, int] = {}  # the time between iterations in that turn

    def plan(self, name: str, budget_bytes: int) -> PlannedMemory:
        """Make a plan for this budget from measured latencies. A budget below the floor is raised to it."""
        if not self._latency_ns:
            self._adopt_unplanned()
        latency_ns = next(iter(self._latency_ns.values()))
        least_bytes = floor(self._step.graph)
        planned = self._planned(latency_ns, max(budget_bytes, least_bytes))
        self._plans[name] = planned
        return PlannedMemory(budget_bytes=budget_bytes, peak_bytes=planned.peak_bytes, floor_bytes=least_bytes)

    def turn(self, name: str, iterations: int) -> RankTurn:
        """Measure what a first forecast is made from, and run a turn of that plan from the initial state."""
        first = self._first_run(self._plans[name])
        return replace(self._run(name, iterations), first=first)

    def _run(self, name: str, iterations: int) -> RankTurn:
        plan = self._plans[name]
        self._trial.restart()
        torch.manual_seed(SEED)
        with self._connected():
            self._trial.adopt(plan.plans[0])
            for _ in range(WARM_ITERATIONS):
                self._trial.iterate()
            self._trial.runner.measured()
            step_ns, sent = _timed(self._trial.iterate, iterations)
        measured = self._trial.runner.measured()
        assert measured is not None
        latency_ns, between_ns = self._latency_ns.get(name), self._between_ns.get(name, 0)
        self._latency_ns[name], self._between_ns[name] = measured.latency_ns, measured.between_ns
        exported = {key: value for key, value in self._trial.state.export().items() if key in self._names}
        return RankTurn(
            step_ns=step_ns,
            sent_bytes=sent,
            digest=_digest(exported),
            peak_bytes=measured.peak_bytes,
            before=None if latency_ns is None else self._measured_run(plan, latency_ns, between_ns),
            measured=self._measured_run(plan, measured.latency_ns, measured.between_ns),
        )

    def close(self) -> None:
        """Close the device."""
        self._trial.runner.close()
        self._stack.close()

    def _connected(self) -> AbstractContextManager[None]:
        return exchanging(self._group)

    def _adopt_unplanned(self) -> None:
        """Measure the operators with their exchanges, without swaps."""
        self._plans[_UNPLANNED] = self._planned(None, vanilla_peak(self._step.graph))
        self._run(_UNPLANNED, 1)
        self._run(_UNPLANNED, _UNPLANNED_ITERATIONS)

    def _planned(self, latency_ns: tuple[int, ...] | None, budget_bytes: int) -> JobPlan:
        known = latency_ns or (1,) * len(self._step.graph.operators)
        plans = plan_jobs([workload(self._step, known)], budget_bytes=budget_bytes, link=self.link)
        assert not isinstance(plans, Infeasible)  # no budget here is below the floor
        return plans[0]

    def _first_run(self, plan: JobPlan) -> RankRun:
        """Return this rank's step as measured before anything is exchanged, on this machine as it is now.

        The time between iterations, in which nothing is exchanged, is that of the iterations without a plan.
        """
        between_ns = self._between_ns[_UNPLANNED]
        with measuring(self._ranks, self._share.rank):
            _, latency_ns = calibrated_step(self._step)
        if self._ranks == 1:
            run = self._job_run(plan, latency_ns)
            return RankRun(run=run, exchanges=(), link=self.link, between_ns=between_ns)
        times = measure_network(self._group, copies=True)
        network = GangNetwork(hosts=(_HOST,) * self._ranks, times=times)
        network = rehearsed_network(self._group, self._step, latency_ns, self._share, network)
        own_ns, exchanges = exchanges_on_network(self._step, latency_ns, self._share, network, {})
        run = self._job_run(plan, own_ns, times.copy_loss)
        return RankRun(run=run, exchanges=exchanges, link=self.link, host=_HOST, between_ns=between_ns)

    def _measured_run(self, plan: JobPlan, latency_ns: tuple[int, ...], between_ns: int) -> RankRun:
        """Return this rank's step with these latencies, which have in them what exchanges and copies cost."""
        operators = zip(self._step.graph.operators, latency_ns, strict=True)
        exchanges = tuple(ExchangeTime.free(ns) for operator, ns in operators if operator.awaits is not None)
        run = self._job_run(plan, latency_ns)
        return RankRun(run=run, exchanges=exchanges, link=self.link, host=_HOST, between_ns=between_ns)

    def _job_run(self, plan: JobPlan, latency_ns: tuple[int, ...], copy_loss: CopyLoss = FREE_COPIES) -> JobRun:
        return JobRun(graph=self._step.graph, plan=plan.plans[0], latency_ns=latency_ns, copy_loss=copy_loss)


class RankContenders:
    """All contenders of one rank, by name, connected to those of the other ranks."""

    def __init__(self, task: RankTask) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # DDP's connections on the same interface as ours
        torch.manual_seed(SEED)
        subject = task.source.subject()
        store = FileStore(str(Path(task.directory) / "store"), task.share.ranks)
        share = task.share
        dist.init_process_group("gloo", store=PrefixStore("ddp", store), rank=share.rank, world_size=share.ranks)
        self.group = join_ranks(store, share, attempt="1", meeting_s=_MEETING_S, timeout_s=_TIMEOUT_S)
        several = share.ranks > 1  # one device has nothing to exchange and nothing to divide
        ways = [(way, False) for way in Reduce] + [(Reduce.EXACT, True)] if several else [(Reduce.EXACT, False)]
        self.parallel = {
            divides: DataParallel(task, subject, divides_state=divides)
            for divides in ([False, True] if several else [False])
        }
        self.planned: dict[tuple[Reduce, bool], PlannedRank] = {}
        link: Link | None = None
        for way, divides in ways:
            own = replace(share, reduce=way, divides_state=divides)
            planned = PlannedRank(task, subject, self.group, own, link)
            self.planned[way, divides], link = planned, planned.link

    def plan(self, method: RankMethod) -> PlannedMemory | None:
        """Plan for the method's share of DDP's memory on this rank; None for DDP itself."""
        if method.reduce is None:
            return None
        share = method.memory_share - self.group.rank() * method.share_step
        planned = self.planned[method.reduce, method.divides_state]
        return planned.plan(method.name, round(share * self.parallel[False].peak_bytes))

    def turn(self, method: RankMethod, iterations: int) -> RankTurn:
        """Run a turn of this method together with all other ranks."""
        if method.reduce is None:
            return self.parallel[method.divides_state].turn(iterations)
        return self.planned[method.reduce, method.divides_state].turn(method.name, iterations)

    def close(self) -> None:
        """Close all contenders."""
        dist.destroy_process_group()
        for planned in self.planned.values():
            planned.close()


def _timed(iterate: Callable[[], None], iterations: int) -> tuple[float, int]:
    """Return the time in nanoseconds of one iteration, and the bytes that it sends."""
    before, start_ns = sent_bytes(), time.perf_counter_ns()
    for _ in range(iterations):
        iterate()
    step_ns = (time.perf_counter_ns() - start_ns) / iterations
    return step_ns, round((sent_bytes() - before) / iterations)


def _parts(task: RankTask, subject: TrainingSubject) -> Passes:
    return Passes(micro_batch_size=max(1, len(subject.x) // task.parts))


def _captured(task: RankTask, subject: TrainingSubject, share: RankShare) -> CapturedStep:
    """Return the calibrated step of a rank. One rank has the step of one device."""
    passes = _parts(task, subject)
    captured = capture_training(
        subject.module,
        subject.loss,
        subject.x,
        subject.y,
        subject.settings,
        passes,
        None if share.ranks == 1 else share,
    )
    return calibrated_step(with_split_normalisations(captured))[0]  # as in a trainer


def _digest(values: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        digest.update(name.encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
