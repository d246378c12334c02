"""The controller's state, the facts that change it and the orders that follow: values only."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, Protocol

from indb_tensile.errors import InvariantError
from indb_tensile.job import ClaimedJob, ClaimToken, JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload

TrainerId = NewType("TrainerId", int)  # numbered by the pool; a process that never returns under its number

# --- state -----------------------------------------------------------------------------------------------------


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

    `counts` is False where neither the job nor its trainer is to blame: it costs no attempt.
    """

    reason: str
    counts: bool = True


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
    reason: PlanReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One claimed job. `granted_bytes` is what the ledger grants it now: whole regions.

    `generation` is that of the last plan sent, `adopted` that of the last one its trainer follows; they differ
    while one is in flight, and then `granted_bytes` covers both. `need_bytes` is the least calibration grant.
    `corrected_ns` are the training step's latencies, measurements blended in since `workload` was planned.
    """

    job: ClaimedJob
    stage: Stage = Stage.CLAIMED
    trainer: TrainerId | None = None
    workload: Workload | None = None
    corrected_ns: tuple[int, ...] = ()
    granted_bytes: int = 0
    need_bytes: int = 0
    generation: int = 0
    adopted: int = 0
    plan: JobPlan | None = None  # the last one sent
    planned_bytes: int = 0  # the grant that goes with it
    target: Target | None = None
    waits_for: str | None = None
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
    spare_trainers: int = 1
    max_jobs: int = 8
    drift_threshold: float = 0.2
    members: tuple[Member, ...] = ()
    spares: tuple[Spare, ...] = ()
    leaving: frozenset[TrainerId] = field(default_factory=frozenset)  # spares that were told to go
    next_trainer: TrainerId = TrainerId(1)
    claiming: bool = False  # a claim is under way
    queue_empty: bool = False  # the last claim found nothing; until the next tick or notification
    stillborn: int = 0  # trainers in a row that died before they were ready
    spawn_pause_ticks: int = 0
    stopping: bool = False

    @property
    def granted_bytes(self) -> int:
        """The sum of all grants in the ledger."""
        return sum(member.granted_bytes for member in self.members)

    @property
    def free_bytes(self) -> int:
        """What may be granted now; never negative, even while a lowered budget is still exceeded."""
        return max(0, self.whole(self.budget_bytes) - self.granted_bytes)

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
    """What admission asks of the planner; the policy and the link are its own affair."""

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Plans for all of them together, in their order, or why there are none."""
        ...

    def least_bytes(self, workload: Workload) -> int:
        """The smallest peak that this policy can give this job."""
        ...


# --- facts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareReady:
    """A started trainer waits for work."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer to ClaimNext: a job, or None when there is nothing to do."""

    job: ClaimedJob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The job's graphs, the best estimates of its latencies, and how many operators were never measured."""

    trainer: TrainerId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The graphs with measured workspaces; `overflow_bytes` > 0: so much more was needed."""

    trainer: TrainerId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    overflow_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The trainer follows this generation from now on."""

    trainer: TrainerId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What iterations of the training step took since the last report."""

    trainer: TrainerId
    generation: int
    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job's version is published."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The trainer cannot go on with its job; with `retry` another attempt may."""

    trainer: TrainerId
    fault: Fault
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A trainer process is gone, for whatever reason."""

    trainer: TrainerId
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """A trainer has had its job for longer than the job's `max_runtime`."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """The job's owner wants it to stop."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLoss:
    """The claim is another worker's, or this worker's lease has run out."""

    claim: ClaimToken


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChange:
    """Jobs may use so much of the device from now on."""

    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """A notification: there may be work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time for another look at the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The controller is told to end: jobs go back to the queue, trainers go away."""


Event = (
    SpareReady
    | Claim
    | Capture
    | Calibration
    | Adoption
    | Measurement
    | Finish
    | Failure
    | Exit
    | Overrun
    | CancelRequest
    | ClaimLoss
    | BudgetChange
    | QueueChange
    | Tick
    | Stop
)

# --- orders ----------------------------------------------------------------------------------------------------


class Manner(StrEnum):
    """How a trainer is ended. SIGKILL follows after a grace in any case."""

    LET_EXIT = "let it exit"
    TERMINATE = "terminate"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnTrainer:
    """Start a spare trainer."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNext:
    """Ask the queue for a job; the answer is a Claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignJob:
    """Give this job to this trainer, with a slot of the ledger."""

    trainer: TrainerId
    job: ClaimedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGrant:
    """Let the ledger grant this trainer so much from now on."""

    trainer: TrainerId
    grant_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantCalibration:
    """Let this trainer run its unknown operators; the ledger already grants the bytes."""

    trainer: TrainerId
    grant_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlans:
    """Hand over a plan; the ledger already grants the larger of the old and the new peak."""

    trainer: TrainerId
    generation: int
    grant_bytes: int
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrainer:
    """See that this trainer goes away; the answer is an Exit."""

    trainer: TrainerId
    manner: Manner


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTrainer:
    """The process is gone: kill what is left of its group, then free its slot and its memory."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class FailJob:
    """Write that the job failed, and why."""

    job: JobId
    claim: ClaimToken
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueJob:
    """Put the job back into the queue; `counts` says whether it used up an attempt."""

    job: JobId
    claim: ClaimToken
    reason: str
    counts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Write that the job was cancelled."""

    job: JobId
    claim: ClaimToken


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWaitsFor:
    """Write what the job waits for; None when it does not."""

    job: JobId
    claim: ClaimToken
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """Write down a plan that was sent, and why it was made."""

    job: JobId
    claim: ClaimToken
    generation: int
    reason: PlanReason
    grant_bytes: int
    plan: JobPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAdoption:
    """Write down that the trainer follows a plan."""

    job: JobId
    claim: ClaimToken
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMeasurement:
    """Write down what iterations under a plan took."""

    job: JobId
    claim: ClaimToken
    measurement: Measurement


Order = (
    SpawnTrainer
    | ClaimNext
    | AssignJob
    | SetGrant
    | GrantCalibration
    | SendPlans
    | EndTrainer
    | ReleaseTrainer
    | FailJob
    | RequeueJob
    | CancelJob
    | SetWaitsFor
    | RecordPlan
    | RecordAdoption
    | RecordMeasurement
)
