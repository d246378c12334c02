"""A process that answers test_rounds.py: it plans a round of jobs, whose members train in processes of their own.

`preloaded.ask` runs it with the name of a scene; the scenes are functions of this module. A member is a fork of this
process, which has imported torch and captured the steps already. It sends its answer and then waits for a word: until
then a thread of it plays its part.
"""

import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch

from indb_tensile import _native
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.device import CpuDevice, EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.round_member import PartPlayer, Seat, open_member
from indb_tensile.executor.capture.capture import CapturedStep, with_host_uploads
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.job import JobId, Slot
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.placement import place_plan
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan, plan_jobs
from indb_tensile.scheduler.round_plans import plan_round
from indb_tensile.scheduler.timing.simulate import Compute
from indb_tensile.scheduler.workload import Workload
from tests.executor.conftest import captured, prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job

REGION_BYTES = 8192
KINDS = ("wide", "cnn", "wide")
_LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
_EPOCHS = 4
_NUMBER = 1
_FORKS = multiprocessing.get_context("fork")

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One member: its claim of the ledger, its plans and its seat. It rests before epoch `rests_at` until told."""

    number: int
    on_host: bool
    slot: Slot
    epoch: int
    seat: Seat
    plans: tuple[Plan, ...]
    rests_at: int | None = None


def _job(number: int, *, on_host: bool) -> tuple[Job, tuple[CapturedStep, ...]]:
    job, steps = prepared(KINDS[number], number)
    return job, tuple(map(with_host_uploads, steps)) if on_host else steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A running member, and the end of its connection that is ours."""

    process: ForkProcess
    connection: Connection

    def answer(self) -> dict[str, Any]:
        """Wait for the member's answer."""
        answer: dict[str, Any] = self.connection.recv()
        return answer

    def tell(self) -> None:
        """Let the member continue: with its training if it rests, and with its end if it has answered."""
        self.connection.send(None)

    def end(self) -> None:
        """Let the member end, and wait for its end."""
        self.tell()
        self.process.join()
        assert self.process.exitcode == 0


def _fork() -> _Running:
    ours, theirs = _FORKS.Pipe()
    process = _FORKS.Process(target=_member, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Running(process=process, connection=ours)


class _Scene:
    """A round in the ledger of a device in whose memory its jobs do not fit side by side, and its running members."""

    def __init__(self, *, on_host: bool = False) -> None:
        self.on_host = on_host
        # The shim serves no fork of a process that it has served, as it serves this process while it calibrates.
        for kind in KINDS:
            captured(kind)
        self._forks = tuple(_fork() for _ in KINDS)
        workloads = tuple(
            Workload(
                job=JobId(number + 1),
                graphs=tuple(step.graph for step in steps),
                latency_ns=tuple((20_000,) * len(step.graph.operators) for step in steps),
            )
            for number, (_, steps) in enumerate(_job(n, on_host=on_host) for n in range(len(KINDS)))
        )
        present = plan_jobs(workloads, budget_bytes=1 << 40, link=_LINK)
        assert not isinstance(present, Infeasible)
        self.blocks_bytes = sum(_block_bytes(w, plan) for w, plan in zip(workloads, present, strict=True))
        self.plans, self.budget_bytes = _tightest(workloads, present, self.blocks_bytes)
        parts = [plan.part for plan in self.plans if plan.part is not None]
        self.ledger = Ledger.create(self.budget_bytes, REGION_BYTES, 10**12, 10**12)
        claims = [self.ledger.claim_slot(1) for _ in parts]
        self.slots = tuple(slot for slot, _ in claims)
        self.epochs = [epoch for _, epoch in claims]
        for slot, part in zip(self.slots, parts, strict=True):
            self.ledger.grant(slot, part.base_bytes)
        self.ledger.set_pool(self.budget_bytes - sum(part.base_bytes for part in parts))
        self.seats = [Seat(number=_NUMBER, part=part, slots=self.slots) for part in parts]
        self.passages = _native.Passages(self.ledger.fd)

    def start(self, number: int, rests_at: int | None = None) -> _Running:
        member = self._forks[number]
        member.connection.send(
            _Task(
                number=number,
                on_host=self.on_host,
                slot=self.slots[number],
                epoch=self.epochs[number],
                seat=self.seats[number],
                plans=self.plans[number].plans,
                rests_at=rests_at,
            )
        )
        send_handle(member.connection, self.ledger.fd, member.process.pid)
        return member

    def finish(self, members: Sequence[_Running]) -> dict[str, Any]:
        answers = [member.answer() for member in members]
        self.passages.end(_NUMBER)
        for member in members:
            member.end()
        usage = self.ledger.device_usage()
        return {
            "members": answers,
            "within the budget": usage.high_water_bytes <= usage.capacity_bytes == self.budget_bytes,
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


def _member(connection: Connection) -> None:
    die_with_parent()
    task: _Task = connection.recv()
    connection.send(_train(task, recv_handle(connection), connection))
    connection.recv()


def _train(task: _Task, fd: int, connection: Connection) -> dict[str, Any]:
    """Train one member's job, and compare it with the same job alone, without plans."""
    job, steps = _job(task.number, on_host=task.on_host)
    claim = fd, task.slot, task.epoch
    with (
        CpuDevice(*claim, 1 << 26, tempfile.gettempdir()) if task.on_host else EmulatedDevice(*claim, 1 << 26)
    ) as device:
        serving = ArenaServing.of(device.hook_address())
        assert serving is not None
        eager, state = Eager(job), job.state()
        runner = Runner(device, state, steps, placer=Placer(serving, region_bytes=REGION_BYTES), sample_every=3)
        member = open_member(*claim, task.seat, lambda: None)
        runner.adopt(task.plans, 1, task.seat.part.base_bytes, member)
        same = True
        for epoch in range(_EPOCHS):
            if epoch == task.rests_at:
                connection.recv()
            same = same and bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
        runner.leave_round()
        same = same and state_bits(state.export()) == state_bits(eager.export())
        served = serving.served()
        with Ledger.attach(fd) as ledger:
            own = ledger.usage(task.slot)
        runner.close()
        return {
            "bits": same,
            "beyond its base": own.high_water_bytes > task.seat.part.base_bytes,
            "at planned addresses": served.planned > 0 and served.occupied == 0,
            "nothing lent": own.lent_bytes == 0,
        }


# --- scenes ----------------------------------------------------------------------------------------------------


def emulated() -> dict[str, Any]:
    """Three jobs train in a round on an emulated device."""
    scene = _Scene()
    return scene.finish([scene.start(number) for number in range(len(KINDS))])


def cpu() -> dict[str, Any]:
    """Three jobs train in a round on the processor's own memory."""
    scene = _Scene(on_host=True)
    return scene.finish([scene.start(number) for number in range(len(KINDS))])


def killed() -> dict[str, Any]:
    """One member is killed inside an iteration. Its part is played when its memory is the round's again."""
    scene = _Scene()
    members = [scene.start(number) for number in range(len(KINDS))]
    victim = members.pop(1)
    slot, operators = scene.slots[1], scene.seats[1].part.operators
    while (boundary := scene.passages.progress(slot)[1]) < 2 * operators or boundary % operators == 0:
        assert victim.process.is_alive()
        time.sleep(0.0005)
    victim.process.kill()
    victim.process.join()
    scene.ledger.release_slot(slot)
    boundary = scene.passages.progress(slot)[1]
    player = PartPlayer(scene.passages, scene.seats[1])
    playing = threading.Thread(target=lambda: player.play(boundary, lambda: False, to_end_of_iteration=False))
    playing.start()
    answer = scene.finish(members)
    playing.join()
    return answer


def resting() -> dict[str, Any]:
    """One member does other work between two iterations until all others are done. Nobody waits for it."""
    scene = _Scene()
    members = [scene.start(number, rests_at=1 if number == 0 else None) for number in range(len(KINDS))]
    answers = [member.answer() for member in members[1:]]
    members[0].tell()
    answer = scene.finish(members[:1])
    for member in members[1:]:
        member.end()
    return {**answer, "members": [*answer["members"], *answers]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)  # noqa: T201 - read by `ask`
