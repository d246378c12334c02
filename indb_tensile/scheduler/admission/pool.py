"""What one controller knows: its jobs, its trainers, its budget. Values only; `admission.decide` changes them."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, Protocol, Self

from indb_tensile.errors import InvariantError, TensileError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload

TrainerId = NewType("TrainerId", int)  # numbered by the pool; a process that never returns under its number


class Stage(StrEnum):
    """Where a claimed job stands with its controller."""

    CLAIMED = "claimed"  # no trainer yet
    CAPTURING = "capturing"  # its trainer reads the table and captures the graphs
    UNMEASURED = "unmeasured"  # needs a calibration grant, which it has not got
    CALIBRATING = "calibrating"  # holds the one calibration grant
    WAITING = "waiting"  # could be planned, does not fit beside the others
    RUNNING = "running"  # admitted: follows a plan, or is about to
    ENDING = "ending"  # its trainer is on the way out; the outcome is written when it is gone


class PlanReason(StrEnum):
    """Why all jobs were planned anew."""

    START = "start"
    END = "end"
    DRIFT = "drift"
    BUDGET = "budget"
    CALIBRATION = "calibration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a job cannot go on: what an SQL user reads in `tensile.jobs`."""

    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""

    @classmethod
    def of(cls, error: TensileError) -> Self:
        """What an error says."""
        return cls(sqlstate=error.sqlstate, message=error.message, detail=error.detail, hint=error.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The trainer has published the version and closed the job's row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The job failed for good."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The job goes back to the queue and on from its last checkpoint.

    `blame` says whether it counts as the job's own fault. `fault` says more than the reason, where there is more to
    say; `waits_for` is what the job waits for then, where that is not simply its next attempt.
    """

    reason: str
    blame: Blame = Blame.JOB
    fault: Fault | None = None
    waits_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Its owner wanted it to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The claim is another worker's now: nothing may be written."""


Outcome = Succeeded | Broken | Interrupted | Cancelled | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A plan that has been decided and not yet sent."""

    plan: JobPlan
    grant_bytes: int
    host_bytes: int  # that goes with it, of the pinned pool
    reason: PlanReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One claimed job. `granted_bytes` is what the ledger grants it now: whole regions. `held_bytes` is more after a
    grant was lowered, until the ledger says that what was taken back is nobody's.

    `generation` is that of the last plan sent, `adopted` that of the last one its trainer follows; they differ
    while one is in flight, and then `granted_bytes` and `host_bytes` cover both. `need_bytes` is the least
    calibration grant.
    `corrected_ns` are the training step's latencies, measurements blended in since `workload` was planned.
    """

    job: ClaimedJob
    stage: Stage = Stage.CLAIMED
    trainer: TrainerId | None = None
    workload: Workload | None = None
    corrected_ns: tuple[int, ...] = ()
    measured: bool = False  # whether they are from running, and not only from a calibration
    granted_bytes: int = 0
    held_bytes: int = 0
    need_bytes: int = 0
    generation: int = 0
    adopted: int = 0
    plan: JobPlan | None = None  # the last one sent
    planned_bytes: int = 0  # the grant that goes with it
    planned_host_bytes: int = 0
    host_bytes: int = 0  # of the pinned pool, until its trainer has gone
    target: Target | None = None
    waits_for: str | None = None
    overtaken: int = 0  # jobs that were claimed later and let in while this one waited for memory
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        if (self.stage is Stage.ENDING) != (self.outcome is not None):
            raise InvariantError(f"job {self.job.job} is {self.stage} with the outcome {self.outcome}")
        if not 0 <= self.generation - self.adopted <= 1:
            raise InvariantError(
                f"job {self.job.job}: plan {self.generation} was sent while {self.adopted} is followed"
            )

    @property
    def in_flight(self) -> bool:
        """A plan was sent and the trainer has not said that it follows it."""
        return self.generation != self.adopted

    @property
    def settled(self) -> bool:
        """Nothing is decided, sent or due for this job."""
        return not self.in_flight and self.target is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A trainer without a job; `ready` when it has imported what it needs."""

    trainer: TrainerId
    ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything one controller knows. `members` are in the order of their claims."""

    budget_bytes: int
    region_bytes: int
    host_pool_bytes: int | None = None  # None: as much as jobs like
    spare_trainers: int = 1
    max_jobs: int = 8
    entering_jobs: int = 2  # of one owner that have a trainer and no plan yet: the other places are for other owners
    drift_threshold: float = 0.2
    members: tuple[Member, ...] = ()
    spares: tuple[Spare, ...] = ()
    leaving: frozenset[TrainerId] = field(default_factory=frozenset)  # spares that were told to go
    next_trainer: TrainerId = TrainerId(1)
    claiming: bool = False  # a claim is under way
    passed_over: frozenset[int] = frozenset()  # owners (oids) whose jobs the last claim left in the queue
    queue_empty: bool = False  # the last claim found nothing; until the next tick or notification
    stillborn: int = 0  # trainers in a row that died before they were ready
    spawn_pause_ticks: int = 0
    losses: int = 0  # how often in a row a trainer lost the device before it had measured anything on it
    claim_pause_ticks: int = 0
    due: PlanReason | None = None  # all jobs are to be planned anew
    asked: bool = False  # the planner owes an answer
    stopping: bool = False

    @property
    def owing(self) -> frozenset[tuple[TrainerId, int]]:
        """Trainers that owe an answer: the generation of the plan they were sent, or 0 until they are ready."""
        starting = {(spare.trainer, 0) for spare in self.spares if not spare.ready}
        adopting = {
            (member.trainer, member.generation)
            for member in self.at(Stage.RUNNING)
            if member.trainer is not None and member.in_flight
        }
        return frozenset(starting | adopting)

    @property
    def granted_bytes(self) -> int:
        """The sum of all grants in the ledger."""
        return sum(member.granted_bytes for member in self.members)

    @property
    def held_bytes(self) -> int:
        """What nobody else can be granted: all grants, and what is due back of lowered ones."""
        return sum(member.held_bytes for member in self.members)

    @property
    def free_bytes(self) -> int:
        """What may be granted now; never negative, even while a lowered budget is still exceeded."""
        return max(0, self.whole(self.budget_bytes) - self.held_bytes)

    @property
    def free_host_bytes(self) -> float:
        """What no member has of the host pool."""
        limit_bytes = math.inf if self.host_pool_bytes is None else self.host_pool_bytes
        return limit_bytes - sum(member.host_bytes for member in self.members)

    def whole(self, size_bytes: int) -> int:
        """Rounded down to whole regions."""
        return size_bytes // self.region_bytes * self.region_bytes

    def regions(self, size_bytes: int) -> int:
        """Rounded up to whole regions, in bytes."""
        return -(-size_bytes // self.region_bytes) * self.region_bytes

    def of_job(self, job: JobId) -> Member | None:
        """The member that runs this job."""
        return next((m for m in self.members if m.job.job == job), None)

    def of_claim(self, claim: ClaimToken) -> Member | None:
        """The member that holds this claim."""
        return next((m for m in self.members if m.job.claim == claim), None)

    def of_trainer(self, trainer: TrainerId) -> Member | None:
        """The member that this trainer serves."""
        return next((m for m in self.members if m.trainer == trainer), None)

    def at(self, *stages: Stage) -> tuple[Member, ...]:
        """The members in one of these stages."""
        return tuple(m for m in self.members if m.stage in stages)


class Planner(Protocol):
    """What admission asks of the planner; the policy and the link are its own affair.

    All but `foresee`, which is quick, may raise `questions.Unanswered`.
    """

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Plans for all of them together, in their order, or why there are none."""
        ...

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """What the job's tensors take under its plan once they have addresses: hardly more than the plan's peak."""
        ...

    def least_bytes(self, workload: Workload) -> int:
        """The smallest peak that this policy can give this job."""
        ...

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        """Plans for the same jobs after their latencies have drifted; None where planning anew is better."""
        ...

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """The same plans with what is expected of them now, side by side, with the workloads' latencies."""
        ...
