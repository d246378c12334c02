"""A process that answers test_rounds.py: it plans a round of jobs, whose members train in processes of their own.

Run it as `python -m tests.executor.run.round_process SCENE [DEVICE]`; the scenes are functions of this module. The
device is `emulated`, `cpu`, or `cuda` with a double of the driver, whose device memory is host memory. The process
forks its members before it does anything else: a fork has torch already, whose import takes longer than a scene.
A member gets a `_Task`, answers, and then waits for one more message: until then a thread of it plays its part.
"""

import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.backend import CPU, EMULATED
from indb_tensile.device.cuda import CudaBroker, CudaDevice, CudaRegions
from indb_tensile.device.device import CpuDevice, EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.round_member import PartPlayer, Seat, open_member
from indb_tensile.executor.capture.step_capture import CapturedStep, with_host_uploads
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.job import JobId, Slot
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan, plan_jobs
from indb_tensile.scheduler.round_plans import plan_round
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.native.cuda_double import physical_bytes

REGION_BYTES = 8192
KINDS = ("wide", "cnn", "wide")
_LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
_EPOCHS = 4
_NUMBER = 1
CUDA = "cuda"

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One member: its claim of the ledger, its plans and its seat. It rests before epoch `rests_at` until told.

    The file descriptors of the ledger, and of the socket from which a GPU's regions come, follow it.
    """

    number: int
    device: str
    slot: Slot
    epoch: int
    seat: Seat
    plans: tuple[Plan, ...]
    rests_at: int | None = None


def _job(number: int, device: str) -> tuple[Job, tuple[CapturedStep, ...]]:
    job, steps = prepared(KINDS[number], number)
    return job, tuple(map(with_host_uploads, steps)) if device == CPU else steps


class _Member:
    """A process in which one job of a round trains."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, member_end = context.Pipe()
        self._process = context.Process(target=_be_member, args=(member_end,))
        self._process.start()
        member_end.close()

    def start(self, task: _Task, *descriptors: int) -> None:
        self.connection.send(task)
        for descriptor in descriptors:
            send_handle(self.connection, descriptor, self._process.pid)

    def answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self.connection.recv()
        except EOFError:  # it has failed
            return {}
        return answer

    def go_on(self) -> None:
        self.connection.send(None)

    def end(self) -> None:
        self.go_on()
        self._process.join()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class _Scene:
    """A round in the ledger of a device in whose memory its jobs do not fit side by side, and its running members."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._members = [_Member() for _ in KINDS]
        workloads = tuple(
            Workload(
                job=JobId(number + 1),
                graphs=tuple(step.graph for step in steps),
                latency_ns=tuple((20_000,) * len(step.graph.operators) for step in steps),
            )
            for number, (_, steps) in enumerate(_job(n, device) for n in range(len(KINDS)))
        )
        present = plan_jobs(workloads, budget_bytes=1 << 40, link=_LINK)
        assert not isinstance(present, Infeasible)
        self.blocks_bytes = sum(_block_bytes(w, plan) for w, plan in zip(workloads, present, strict=True))
        self.plans, self.budget_bytes = _tightest(workloads, present, self.blocks_bytes)
        parts = [plan.part for plan in self.plans if plan.part is not None]
        self.broker = None if device != CUDA else CudaBroker(0, REGION_BYTES, self.budget_bytes // REGION_BYTES)
        memory = None if device == CUDA else ""
        self.ledger = Ledger.create(self.budget_bytes, REGION_BYTES, 10**12, 10**12, memory)
        claims = [self.ledger.claim_slot(1) for _ in parts]
        self.slots = tuple(slot for slot, _ in claims)
        self.epochs = [epoch for _, epoch in claims]
        for slot, part in zip(self.slots, parts, strict=True):
            self.ledger.grant(slot, part.base_bytes)
        self.ledger.set_pool(self.budget_bytes - sum(part.base_bytes for part in parts))
        self.seats = [Seat(number=_NUMBER, part=part, slots=self.slots) for part in parts]
        self.passages = _native.Passages(self.ledger.fd)

    def start(self, number: int, rests_at: int | None = None) -> _Member:
        task = _Task(
            number=number,
            device=self.device,
            slot=self.slots[number],
            epoch=self.epochs[number],
            seat=self.seats[number],
            plans=self.plans[number].plans,
            rests_at=rests_at,
        )
        own_end, member_end = socket.socketpair()
        with own_end, member_end:
            self._members[number].start(task, self.ledger.fd, member_end.fileno())
            if self.broker is not None:
                self.broker.send(own_end.fileno())
        return self._members[number]

    def finish(self, members: Sequence[_Member]) -> dict[str, Any]:
        answers = [member.answer() for member in members]
        physical = physical_bytes(os.getpid())  # of the double; other devices have none
        self.passages.end(_NUMBER)
        for member in members:
            member.end()
        usage = self.ledger.device_usage()
        return {
            "members": answers,
            "within the budget": usage.high_water_bytes <= usage.capacity_bytes == self.budget_bytes
            and physical == (self.budget_bytes if self.broker is not None else 0),
            "less than the blocks": self.budget_bytes < self.blocks_bytes,
            "gates": sum(len(seat.part.waits) for seat in self.seats) > 0,
        }


def _block_bytes(workload: Workload, plan: JobPlan) -> int:
    pairs = zip(workload.graphs, plan.plans, strict=True)
    return max(place_plan(graph, own, region_bytes=REGION_BYTES).size_bytes for graph, own in pairs)


def _tightest(
    workloads: Sequence[Workload], present: Sequence[JobPlan], most_bytes: int
) -> tuple[tuple[JobPlan, ...], int]:
    for part in range(10, 20):
        budget_bytes = most_bytes * part // 20 // REGION_BYTES * REGION_BYTES
        plans = plan_round(
            workloads,
            tuple(plan.plans for plan in present),
            budget_bytes=budget_bytes,
            region_bytes=REGION_BYTES,
            link=_LINK,
            compute=Compute.TURNS,
            least_gain=0,
        )
        if plans is not None:
            return plans, budget_bytes
    raise AssertionError("there is no round")


# --- a member --------------------------------------------------------------------------------------------------


def _be_member(connection: Connection) -> None:
    task: _Task = connection.recv()
    ledger_fd, regions_fd = recv_handle(connection), recv_handle(connection)
    connection.send(_train(task, ledger_fd, regions_fd, connection))
    connection.recv()


def _train(task: _Task, ledger_fd: int, regions_fd: int, connection: Connection) -> dict[str, Any]:
    """Train one member's job, and compare it with the same job alone, without plans."""
    job, steps = _job(task.number, task.device)
    claim = ledger_fd, task.slot, task.epoch
    with _opened(task.device, claim, regions_fd) as device:
        gpu = device if isinstance(device, CudaDevice) else None
        serving = ArenaServing.of(device.hook_address(), 0 if gpu is None else gpu.pieces_address())
        assert serving is not None
        eager, state = Eager(job), job.state()
        runner = Runner(
            device,
            state,
            steps,
            placer=Placer(serving, region_bytes=REGION_BYTES),
            sample_every=3,
            graphs=None if gpu is None else _Reruns(gpu),
        )
        member = open_member(*claim, task.seat, lambda: None, gpu)
        runner.adopt(task.plans, 1, task.seat.part.base_bytes, member)
        same = True
        for epoch in range(_EPOCHS):
            if epoch == task.rests_at:
                connection.recv()
            same = same and bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
        runner.leave_round()
        same = same and state_bits(state.export()) == state_bits(eager.export())
        served = serving.served()
        with Ledger.attach(ledger_fd) as ledger:
            own = ledger.usage(task.slot)
        runner.close()
        return {
            "bits": same,
            "beyond its base": own.high_water_bytes > task.seat.part.base_bytes,
            "at planned addresses": served.planned > 0 and served.occupied == 0,
            "nothing lent": own.lent_bytes == 0,
            "launched as graphs": runner.launched,
        }


class _Rerun:
    """A recorded iteration, which a launch runs again on the host. Its passing memory counts once."""

    def __init__(self, queue: Callable[[], None], device: CudaDevice) -> None:
        self._queue = queue
        self._device = device
        self._home_bytes = device.usage().used_bytes

    def launch(self) -> None:
        passing_bytes = self._device.usage().used_bytes - self._home_bytes
        self._device.move(passing_bytes, 0)
        self._queue()
        self._device.move(0, passing_bytes)

    def close(self) -> None:
        pass


class _Reruns:
    """Stands for CUDA graphs, where the host computes."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def record(self, queue: Callable[[], None]) -> _Rerun:
        return _Rerun(queue, self._device)


@contextmanager
def _opened(
    device: str, claim: tuple[int, Slot, int], regions_fd: int
) -> Iterator[EmulatedDevice | CpuDevice | CudaDevice]:
    if device == EMULATED:
        with EmulatedDevice(*claim, 1 << 26) as emulated:
            yield emulated
    elif device == CPU:
        with CpuDevice(*claim, 1 << 26, tempfile.gettempdir()) as cpu:
            yield cpu
    else:
        with CudaDevice(*claim, 1 << 26, regions=CudaRegions(0, regions_fd)) as gpu:
            yield gpu


# --- scenes ----------------------------------------------------------------------------------------------------


def undisturbed(device: str) -> dict[str, Any]:
    """Three jobs train in a round."""
    scene = _Scene(device)
    return scene.finish([scene.start(number) for number in range(len(KINDS))])


def killed(device: str) -> dict[str, Any]:
    """One member is killed inside an iteration. Its part is played when its memory is the round's again."""
    scene = _Scene(device)
    members = [scene.start(number) for number in range(len(KINDS))]
    victim = members.pop(1)
    slot, operators = scene.slots[1], scene.seats[1].part.operators
    while (boundary := scene.passages.progress(slot)[1]) < 2 * operators or boundary % operators == 0:
        time.sleep(0.0005)
    victim.kill()
    scene.ledger.release_slot(slot)
    boundary = scene.passages.progress(slot)[1]
    player = PartPlayer(scene.passages, scene.seats[1])
    playing = threading.Thread(target=lambda: player.play(boundary, lambda: False, to_end_of_iteration=False))
    playing.start()
    answer = scene.finish(members)
    playing.join()
    return answer


def resting(device: str) -> dict[str, Any]:
    """One member does other work between two iterations until all others are done. Nobody waits for it."""
    scene = _Scene(device)
    members = [scene.start(number, rests_at=1 if number == 0 else None) for number in range(len(KINDS))]
    answers = [member.answer() for member in members[1:]]
    members[0].go_on()
    answer = scene.finish(members[:1])
    for member in members[1:]:
        member.end()
    return {**answer, "members": [*answer["members"], *answers]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)  # noqa: T201 - read by `ask`
