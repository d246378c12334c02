"""A catalog and a device ledger in memory, and a controller around them."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from indb_tensile.catalog.connection import UnreachableError
from indb_tensile.catalog.install import VERSION
from indb_tensile.catalog.jobs import HeartbeatReply, ObservedWorker, UnreadableJob
from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.controller.background_planner import BackgroundPlanner, ImprovementCancellation
from indb_tensile.controller.controller_loop import Controller, Mail
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.device_room import Headroom
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.heartbeat import Heartbeat
from indb_tensile.controller.load_gauge import Gauge
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.oom_kills import OomKills
from indb_tensile.controller.policy_planner import PolicyPlanner
from indb_tensile.controller.records import Writing
from indb_tensile.controller.service_process import NoService
from indb_tensile.controller.trainers import Trainers
from indb_tensile.device.device import DeviceUsage, LaneUsage, Ledger, SlotUsage
from indb_tensile.errors import (
    CatalogVersionError,
    DatabaseError,
    DeviceError,
    DeviceMemoryError,
    LostClaimError,
    RequestError,
)
from indb_tensile.job import ClaimedJob, ClaimToken, JobId, JobSpec, Relation, Slot, Task, WorkerId
from indb_tensile.scheduler.admission.admission_orders import CancelJob, FailJob, RequeueJob
from indb_tensile.scheduler.admission.pool import Planner, Pool, TrainerId
from indb_tensile.scheduler.link import Link

MIB = 1 << 20
FAKE_TRAINER = "tests.controller.fake_trainer"
LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
DEADLINE_S = 20.0


def spec(behaviour: str, size_bytes: int = MIB) -> JobSpec:
    return JobSpec(
        model=behaviour,
        relation=Relation(oid=1, schema="public", name="t"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": "mlp"},
        hyperparams={"size_bytes": size_bytes},
    )


class FakeRecords:
    """The queue in memory: states by job, claims by token; away while `away` is set."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.away = False
        self.states: dict[JobId, str] = {}
        self.specs: dict[JobId, JobSpec] = {}
        self.owners: dict[JobId, int] = {}
        self.claims: dict[JobId, ClaimToken] = {}
        self.workers_of: dict[JobId, WorkerId] = {}
        self.cancels: set[JobId] = set()
        self.workers: list[WorkerId] = []
        self.alive: set[WorkerId] = set()
        self.written: list[Writing] = []
        self.beats = 0
        self.version = VERSION
        self.fallen: list[WorkerId] = []  # whose controllers ended by a fault
        self.others: tuple[ObservedWorker, ...] = ()
        self.declared: list[ObservedWorker] = []  # dead, by the controller
        self.rescues = False
        self.refuses = False  # whatever is written
        self.use: tuple[DeviceUse, tuple[JobUse, ...]] | None = None
        self.holdups: list[tuple[WorkerId, str | None]] = []
        self._next_claim = 100

    def enqueue(self, behaviour: str, size_bytes: int = MIB, *, owner: int = 10) -> JobId:
        """A job that its trainer treats so; nobody can read the specification of an `unreadable` one."""
        with self._lock:
            job = JobId(len(self.states) + 1)
            self.states[job], self.specs[job], self.owners[job] = "queued", spec(behaviour, size_bytes), owner
            return job

    def register(self) -> WorkerId:
        self._check()
        self._check_version()
        worker = WorkerId(len(self.workers) + 1)
        self.workers.append(worker)
        self.alive.add(worker)
        return worker

    def leave(self, worker: WorkerId, *, in_order: bool = True) -> None:
        self._check()
        self.alive.discard(worker)
        if not in_order:
            self.fallen.append(worker)

    def claim(self, worker: WorkerId, passed_over: frozenset[int]) -> ClaimedJob | UnreadableJob | None:
        with self._lock:
            self._check()
            waiting = (j for j, s in self.states.items() if s == "queued" and self.owners[j] not in passed_over)
            job = next(waiting, None)
            if job is None or worker not in self.alive:
                return None
            self._next_claim += 1
            self.states[job], self.claims[job] = "claimed", ClaimToken(self._next_claim)
            self.workers_of[job] = worker
            owner = self.owners[job]
            if self.specs[job].model == "unreadable":
                error = RequestError("it cannot be read")
                return UnreadableJob(job=job, claim=self.claims[job], owner_oid=owner, error=error)
            return ClaimedJob(job=job, claim=self.claims[job], attempt=1, owner_oid=owner, spec=self.specs[job])

    def other_workers(self, worker: WorkerId | None) -> tuple[ObservedWorker, ...]:
        self._check()
        return self.others

    def rescue(self, dead: Sequence[ObservedWorker]) -> tuple[JobId, ...]:
        """Jobs of dead and former workers go back into the queue."""
        with self._lock:
            self._check()
            self.declared += dead
            self.others = tuple(other for other in self.others if other not in dead)
            stranded = [j for j, w in self.workers_of.items() if self.states[j] == "claimed" and w not in self.alive]
            for job in stranded if self.rescues else ():
                self.states[job] = "queued"
            return tuple(stranded) if self.rescues else ()

    def write(self, writing: Writing, *, planning_ns: int) -> None:
        with self._lock:
            self._check()
            if self.refuses:
                raise DatabaseError("the catalog refused a statement")
            if self.claims.get(writing.job) != writing.claim or self.states[writing.job] != "claimed":
                raise LostClaimError(f"job {writing.job} no longer belongs to claim {writing.claim}")
            self.written.append(writing)
            match writing:
                case FailJob():
                    self.states[writing.job] = "failed"
                case CancelJob():
                    self.states[writing.job] = "cancelled"
                case RequeueJob():
                    # A second attempt of the same kind would only repeat itself: trained to the end.
                    self.states[writing.job] = "requeued"
                case _:
                    pass

    def record_device(self, worker: WorkerId, use: DeviceUse, shares: tuple[JobUse, ...]) -> None:
        self._check()
        self.use = (use, shares)

    def record_holdup(self, worker: WorkerId, holdup: str | None) -> None:
        self._check()
        self.holdups.append((worker, holdup))

    def beat(self, worker: WorkerId, held: Mapping[JobId, ClaimToken]) -> HeartbeatReply:
        with self._lock:
            self._check()
            self._check_version()
            self.beats += 1
            lost = tuple(j for j, c in held.items() if self.claims[j] != c or self.states[j] == "queued")
            mine = {j for j, w in self.workers_of.items() if w == worker and self.states[j] == "claimed"}
            strays = tuple((j, self.claims[j]) for j in sorted(mine - set(held)))
            return HeartbeatReply(
                cancelled=tuple(sorted(self.cancels & set(held))),
                lost=lost,
                alive=worker in self.alive,
                strays=strays,
            )

    def take_over(self, job: JobId) -> None:
        """Another worker has the job now."""
        with self._lock:
            self._next_claim += 1
            self.claims[job], self.states[job] = ClaimToken(self._next_claim), "elsewhere"

    def _check_version(self) -> None:
        if self.version != VERSION:
            raise CatalogVersionError(f"the catalog has version {self.version}, this program has {VERSION}")

    def _check(self) -> None:
        if self.away:
            raise UnreachableError("the database is away")


class FakeAccount:
    """A ledger in memory."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.grants: dict[Slot, int] = {}
        self.pids: dict[Slot, int] = {}
        self.epochs = 0
        self.refuse = False
        self.revoked: list[Slot] = []
        self._file = os.memfd_create("ledger")

    @property
    def fd(self) -> int:
        return self._file

    def claim_slot(self, pid: int) -> tuple[Slot, int]:
        slot = next(Slot(s) for s in range(64) if Slot(s) not in self.grants)
        self.grants[slot], self.pids[slot] = 0, pid
        self.epochs += 1
        return slot, self.epochs

    def grant(self, slot: Slot, size_bytes: int) -> int:
        if self.refuse or sum(self.grants.values()) - self.grants[slot] + size_bytes > self.capacity_bytes:
            raise DeviceMemoryError(f"no {size_bytes} bytes for slot {slot}")
        self.grants[slot] = size_bytes
        return size_bytes

    def revoke_slot(self, slot: Slot) -> None:
        self.revoked.append(slot)

    def release_slot(self, slot: Slot) -> None:
        if slot not in self.grants:
            raise DeviceError(f"slot {slot} is free")
        del self.grants[slot], self.pids[slot]

    def usage(self, slot: Slot) -> SlotUsage:
        granted_bytes = self.grants[slot]
        return SlotUsage(
            slot=slot,
            epoch=1,
            pid=self.pids[slot],
            granted_bytes=granted_bytes,
            held_bytes=granted_bytes,
            used_bytes=granted_bytes,
            high_water_bytes=granted_bytes,
            host_bytes=0,
        )

    def device_usage(self) -> DeviceUsage:
        lane = LaneUsage(bytes_per_s=1, free_ns=0, reserved_ns=0, reserved_bytes=0)
        granted_bytes = sum(self.grants.values())
        return DeviceUsage(
            capacity_bytes=self.capacity_bytes,
            region_bytes=MIB,
            granted_bytes=granted_bytes,
            used_bytes=granted_bytes,
            high_water_bytes=granted_bytes,
            host_bytes=0,
            host_limit_bytes=0,
            out_lane=lane,
            in_lane=lane,
        )

    def close(self) -> None:
        os.close(self._file)


class FakeRegions:
    """A GPU's regions that nobody takes; what `listed` holds has not let go of the device yet."""

    handed_over = True

    def __init__(self) -> None:
        self.listed: set[int] = set()
        self.taken: list[TrainerId] = []
        self.let_gone: list[int] = []

    def let_go(self, pid: int) -> None:
        self.let_gone.append(pid)

    def hand_to(self, trainer: TrainerId, taker: socket.socket) -> None:
        self.taken.append(trainer)
        taker.close()

    def in_use_by(self, pid: int) -> bool:
        return pid in self.listed


class Stage:
    """A controller with fakes around it, turned by the test."""

    def __init__(
        self,
        *,
        budget: int,
        policy: str,
        planner: Planner | None,
        beat_s: float,
        lease_s: float,
        grace_s: float,
        account: "FakeAccount | Ledger",
        regions: FakeRegions | None = None,
        cancellation: ImprovementCancellation | None = None,
        starvation: OomKills | None = None,
        gauge: Gauge | None = None,
        headroom: Headroom | None = None,
        **pool: Any,
    ) -> None:
        self.records = FakeRecords()
        self.account: Any = account
        self.mailbox: Mailbox[Mail] = Mailbox()
        self.forks = ForkServer(os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        self.trainers = Trainers(
            forks=self.forks,
            module=FAKE_TRAINER,
            device_fd=self.account.fd,
            grace_s=grace_s,
            wake=self.mailbox,
            regions=regions,
            starvation=starvation,
        )
        thinks = planner or PolicyPlanner(link=LINK, policy=policy)
        self.planner = BackgroundPlanner(thinks, self.mailbox.post, cancellation)
        self.controller = Controller(
            pool=replace(Pool(budget_bytes=budget * MIB, region_bytes=MIB, spare_trainers=1), **pool),
            planner=self.planner,
            records=self.records,
            trainers=self.trainers,
            memory=DeviceMemory(self.account, kind="fake", gauge=gauge, headroom=headroom),
            mailbox=self.mailbox,
            service=NoService(),
            poll_s=0.05,
            answer_s=60.0,
        )
        self.heartbeat = Heartbeat(
            pulse=self.records,
            beat_s=beat_s,
            lease_s=lease_s,
            claims=self.controller.held,
            tell=self.mailbox.post,
            stop_trainers=self.trainers.kill_all,
        )
        self.controller._join(self.heartbeat)

    def until(self, met: Callable[[], object]) -> None:
        """Turn the loop until this holds."""
        end = time.monotonic() + DEADLINE_S
        while not met():
            assert time.monotonic() < end, f"not within {DEADLINE_S} s: {self.controller.pool} {self.records.states}"
            self.controller.turn(self.heartbeat)

    def until_state(self, job: JobId, state: str) -> None:
        self.until(lambda: self.records.states[job] == state)

    def until_adopted(self, job: JobId) -> None:
        self.until(lambda: any(m.job.job == job and m.adopted for m in self.controller.pool.members))

    def pid_of(self, job: JobId) -> int:
        member = self.controller.pool.of_job(job)
        assert member is not None
        assert member.trainer is not None
        return self.trainers.pid(member.trainer)


@contextmanager
def stage(
    *,
    budget: int = 16,
    policy: str = "tensile+",
    planner: Planner | None = None,
    beat_s: float = 0.05,
    lease_s: float = 30.0,
    grace_s: float = 5.0,
    account: FakeAccount | Ledger | None = None,
    regions: FakeRegions | None = None,
    cancellation: ImprovementCancellation | None = None,
    starvation: OomKills | None = None,
    gauge: Gauge | None = None,
    headroom: Headroom | None = None,
    **pool: Any,
) -> Iterator[Stage]:
    made = Stage(
        budget=budget,
        policy=policy,
        planner=planner,
        beat_s=beat_s,
        lease_s=lease_s,
        grace_s=grace_s,
        account=account or FakeAccount(budget * MIB),
        regions=regions,
        cancellation=cancellation,
        starvation=starvation,
        gauge=gauge,
        headroom=headroom,
        **pool,
    )
    try:
        yield made
    finally:
        made.heartbeat.close()
        made.trainers.close()
        made.forks.close()
        made.planner.close()
        made.account.close()
        made.mailbox.close()


def alive(pid: int) -> bool:
    """Whether a process of this id runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children() -> set[int]:
    """The processes that are ours to wait for."""
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))
