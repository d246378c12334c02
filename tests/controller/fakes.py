"""Fakes of the catalog, the device ledger and a GPU's regions in memory."""

import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from indb_tensile.catalog.connection import LockedError, UnreachableError
from indb_tensile.catalog.install import VERSION
from indb_tensile.catalog.jobs import DeferredJob, HeartbeatReply, ObservedWorker, UnreadableJob
from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.controller.records import Writing
from indb_tensile.device.ledger import DeviceUsage, LaneUsage, SlotUsage
from indb_tensile.errors import (
    CatalogVersionError,
    DatabaseError,
    DeviceError,
    DeviceMemoryError,
    InvariantError,
    LostClaimError,
    RequestError,
)
from indb_tensile.job import ClaimedJob, ClaimedRank, ClaimToken, JobId, JobSpec, Relation, Slot, Task, WorkerId
from indb_tensile.scheduler.admission.admission_orders import CancelJob, FailJob, RequeueJob
from indb_tensile.scheduler.admission.outlook import Outlook
from indb_tensile.scheduler.admission.overheads import KindOverheads
from indb_tensile.scheduler.admission.pool import TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.timing.rank_steps import PublishedStep

MIB = 1 << 20
FAKE_TRAINER = "tests.controller.fake_trainer"
LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
DEADLINE_S = 120.0


def spec(behaviour: str, size_bytes: int = MIB) -> JobSpec:
    return JobSpec(
        model=behaviour,
        relation=Relation(oid=1, schema="public", name="t"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": "mlp"},
        hyperparams={"size_bytes": size_bytes},
    )


class FakeClock:
    """A monotonic clock that the test sets."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class FakeRecords:
    """The catalog's queue in memory. While `away` is set, every call raises UnreachableError."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.away = False
        self.states: dict[JobId, str] = {}
        self.specs: dict[JobId, JobSpec] = {}
        self.owners: dict[JobId, int] = {}
        self.claims: dict[JobId, ClaimToken] = {}
        self.workers_of: dict[JobId, WorkerId] = {}
        self.cancels: set[JobId] = set()
        self.pauses: set[JobId] = set()
        self.priorities: dict[JobId, int] = {}
        self.worked_s: dict[JobId, float] = {}
        self.gangs: dict[JobId, ClaimedRank] = {}
        self.workers: list[WorkerId] = []
        self.alive: set[WorkerId] = set()
        self.written: list[Writing] = []
        self.beats = 0
        self.version = VERSION
        self.fallen: list[WorkerId] = []  # workers whose controllers ended with a fault
        self.others: tuple[ObservedWorker, ...] = ()
        self.declared: list[ObservedWorker] = []  # workers that the controller declared dead
        self.rescues = False  # whether `rescue` requeues the jobs of dead workers
        self.refuses = False  # whether every write is refused
        self.use: tuple[DeviceUse, tuple[JobUse, ...]] | None = None
        self.usages: tuple[JobUsage, ...] = ()
        self.better_elsewhere: set[JobId] = set()
        self.offered: list[JobId] = []
        self.holdups: list[tuple[WorkerId, str | None]] = []
        self.outlooks: list[tuple[WorkerId, Outlook]] = []
        self.learned: list[Contention] = []
        self.taken_cores: list[float] = []
        self.overheads: list[tuple[KindOverheads, ...]] = []
        self.steps: dict[JobId, tuple[tuple[int, PublishedStep], ...]] = {}  # that ranks have published
        self._next_claim = 100

    def enqueue(self, behaviour: str, size_bytes: int = MIB, *, owner: int = 10) -> JobId:
        """Enqueue a job with this behaviour of its trainer; the specification of an `unreadable` job is malformed."""
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

    def claim(
        self, worker: WorkerId, passed_over: frozenset[int], *, waited_for: JobId | None = None
    ) -> ClaimedJob | UnreadableJob | DeferredJob | None:
        with self._lock:
            self._check()
            waiting = (j for j, s in self.states.items() if s == "queued" and self.owners[j] not in passed_over)
            job = next(waiting, None)
            if job is None or worker not in self.alive:
                return None
            if job in self.better_elsewhere and job != waited_for:
                return DeferredJob(job=job)
            self._next_claim += 1
            self.states[job], self.claims[job] = "claimed", ClaimToken(self._next_claim)
            self.workers_of[job] = worker
            owner = self.owners[job]
            if self.specs[job].model == "unreadable":
                error = RequestError("it cannot be read")
                return UnreadableJob(job=job, claim=self.claims[job], owner_oid=owner, error=error)
            return ClaimedJob(
                job=job,
                claim=self.claims[job],
                attempt=1,
                owner_oid=owner,
                spec=self.specs[job],
                worked_s=self.worked_s.get(job, 0.0),
                gang=self.gangs.get(job),
            )

    def offer(self, job: JobId) -> None:
        self._check()
        self.offered.append(job)

    def other_workers(self, worker: WorkerId | None) -> tuple[ObservedWorker, ...]:
        self._check()
        return self.others

    def rescue(self, dead: Sequence[ObservedWorker]) -> tuple[JobId, ...]:
        """Requeue the jobs of dead and former workers."""
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
                    # The job is not queued again, because a second attempt would behave like the first.
                    self.states[writing.job] = "requeued"
                case _:
                    pass

    def record_device(
        self, worker: WorkerId, use: DeviceUse, shares: tuple[JobUse, ...], usages: tuple[JobUsage, ...]
    ) -> None:
        self._check()
        self.use = (use, shares)
        self.usages += usages

    def record_holdup(self, worker: WorkerId, holdup: str | None) -> None:
        self._check()
        self.holdups.append((worker, holdup))

    def record_outlook(self, worker: WorkerId, outlook: Outlook) -> None:
        self._check()
        self.outlooks.append((worker, outlook))

    def learn_contention(self, learned: Contention) -> None:
        self._check()
        self.learned.append(learned)

    def learn_taken_cores(self, taken_cores: float) -> None:
        self._check()
        self.taken_cores.append(taken_cores)

    def learn_overheads(self, kinds: Sequence[KindOverheads]) -> None:
        self._check()
        self.overheads.append(tuple(kinds))

    def published_steps(self, job: JobId, claim: ClaimToken) -> tuple[tuple[int, PublishedStep], ...]:
        self._check()
        if self.claims[job] != claim:
            raise LostClaimError(f"job {job} no longer belongs to this worker")
        return self.steps[job]

    def beat(self, worker: WorkerId, held: Mapping[JobId, ClaimToken]) -> HeartbeatReply:
        with self._lock:
            self._check()
            self._check_version()
            self.beats += 1
            lost = tuple(j for j, c in held.items() if self.claims[j] != c or self.states[j] == "queued")
            claimed = {j for j, w in self.workers_of.items() if w == worker and self.states[j] == "claimed"}
            strays = tuple((j, self.claims[j]) for j in sorted(claimed - set(held)))
            return HeartbeatReply(
                cancelled=tuple(sorted(self.cancels & set(held))),
                lost=lost,
                alive=worker in self.alive,
                strays=strays,
                paused=tuple(sorted(self.pauses & set(held))),
                priorities={job: self.priorities.get(job, 0) for job in held},
                published_steps={job: len(steps) for job, steps in self.steps.items()},
            )

    def take_over(self, job: JobId) -> None:
        """Give the job to another worker."""
        with self._lock:
            self._next_claim += 1
            self.claims[job], self.states[job] = ClaimToken(self._next_claim), "elsewhere"

    def _check_version(self) -> None:
        if self.version != VERSION:
            raise CatalogVersionError(f"the catalog has version {self.version}, this program has {VERSION}")

    def _check(self) -> None:
        if self.away:
            raise UnreachableError("the database is away")


class LockedRecords(FakeRecords):
    """A catalog in which another session locks the rows of the jobs in `locked`. It counts attempts to write."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: set[JobId] = set()
        self.attempts: Counter[JobId] = Counter()

    def write(self, writing: Writing, *, planning_ns: int) -> None:
        self.attempts[writing.job] += 1
        if writing.job in self.locked:
            raise LockedError("canceling statement due to lock timeout")
        super().write(writing, planning_ns=planning_ns)


class FakeLedger:
    """A device ledger in memory."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.absent_bytes = 0
        self.pool_bytes = 0
        self.grants: dict[Slot, int] = {}
        self.pids: dict[Slot, int] = {}
        self.epochs = 0
        self.refuse = False
        self.revoked: list[Slot] = []
        self._ending: set[Slot] = set()  # revoked and not released yet: as in the ledger, their use is not reported
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
        free_bytes = self.capacity_bytes - self.absent_bytes - sum(self.grants.values()) + self.grants[slot]
        if self.refuse or size_bytes > free_bytes:
            raise DeviceMemoryError(f"no {size_bytes} bytes for slot {slot}")
        self.grants[slot] = size_bytes
        return size_bytes

    def withdraw(self, count: int) -> tuple[int, ...]:
        free = (self.capacity_bytes - self.absent_bytes - sum(self.grants.values())) // MIB
        last = (self.capacity_bytes - self.absent_bytes) // MIB
        withdrawn = tuple(range(last - 1, last - 1 - min(count, free), -1))
        self.absent_bytes += len(withdrawn) * MIB
        return withdrawn

    def restore(self, regions: Sequence[int]) -> None:
        self.absent_bytes -= len(regions) * MIB

    def set_pool(self, size_bytes: int) -> int:
        self.pool_bytes = size_bytes
        return size_bytes

    def revoke_slot(self, slot: Slot) -> None:
        self.revoked.append(slot)
        self._ending.add(slot)

    def release_slot(self, slot: Slot) -> None:
        if slot not in self.grants:
            raise DeviceError(f"slot {slot} is free")
        self._ending.discard(slot)
        del self.grants[slot], self.pids[slot]

    def usage(self, slot: Slot) -> SlotUsage:
        if slot in self._ending:
            raise InvariantError(f"slot {slot}: nobody has claimed it")
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
            absent_bytes=self.absent_bytes,
            out_lane=lane,
            in_lane=lane,
        )

    def close(self) -> None:
        os.close(self._file)


class FakePassages:
    """Progress in rounds that never comes: nobody waits, because every round is over."""

    def advance(self, slot: int, number: int, boundary: int, /) -> None:
        """Do nothing."""

    def wait_for(self, slot: int, number: int, boundary: int, limit_ns: int, spins: int = 0, /) -> bool:
        return True

    def progress(self, slot: int, /) -> tuple[int, int]:
        return 0, 0

    def is_over(self, number: int, /) -> bool:
        return True

    def end(self, number: int, /) -> None:
        """Do nothing."""


class FakeRegions:
    """A GPU's memory regions. The driver still lists the processes in `listed` as users of the device."""

    handed_over = True

    def __init__(self) -> None:
        self.listed: set[int] = set()
        self.taken: list[TrainerId] = []
        self.let_gone: list[int] = []
        self.forgotten: list[TrainerId] = []

    def let_go(self, pid: int) -> None:
        self.let_gone.append(pid)

    def hand_to(self, trainer: TrainerId, taker: socket.socket) -> None:
        self.taken.append(trainer)
        taker.close()

    def forget(self, trainer: TrainerId) -> None:
        self.forgotten.append(trainer)

    def in_use_by(self, pid: int) -> bool:
        return pid in self.listed


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children() -> set[int]:
    """Return the ids of this process's children."""
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))
