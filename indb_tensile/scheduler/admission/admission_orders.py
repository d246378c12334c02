"""The orders that `admission.decide` can give. The controller's loop carries them out in this order."""

from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, Phase
from indb_tensile.scheduler.admission.events import Measurement
from indb_tensile.scheduler.admission.pool import Fault, PlanReason, TrainerId
from indb_tensile.scheduler.admission.questions import Question
from indb_tensile.scheduler.phases.round_part import RoundPart
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.timing.rank_steps import PublishedStep


class EndMethod(StrEnum):
    """The way in which a trainer is ended. SIGKILL follows after a grace period in any case."""

    LET_EXIT = "let it exit"
    TERMINATE = "terminate"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnTrainer:
    """Start a spare trainer."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNext:
    """Ask the queue for a job of an owner who is not in `passed_over` (oids of roles). The answer is a Claim."""

    passed_over: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignJob:
    """Give this job to this trainer, with a slot of the ledger."""

    trainer: TrainerId
    job: ClaimedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGrant:
    """Set the number of bytes that the ledger grants this trainer."""

    trainer: TrainerId
    grant_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantCalibration:
    """Let this trainer run its unmeasured operators. The ledger already grants the bytes."""

    trainer: TrainerId
    grant_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlans:
    """Send a plan to the trainer. The ledger already grants the larger of the old and the new peak."""

    trainer: TrainerId
    generation: int
    grant_bytes: int
    plans: tuple[Plan, ...]
    correction: int = 0  # the last correction of the job's workspaces that the plans take into account
    round: int | None = None  # the number of the round that the trainer joins with this plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRound:
    """These trainers are about to join a round with these parts. Both are in the order of the positions."""

    number: int
    trainers: tuple[TrainerId, ...]
    parts: tuple[RoundPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRoundPool:
    """Give the round this many bytes of free regions in all; 0 takes all of them back."""

    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayPart:
    """Play the part of a trainer in the round, because the trainer does not."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRound:
    """Tell this trainer to leave the round at the end of its iteration. The answer is a RoundLeft."""

    trainer: TrainerId
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRound:
    """The round is over: nobody iterates in it any more."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkJob:
    """Tell this trainer to leave the device at the end of its iteration. The answer is a Parking.

    Without `in_memory` the trainer saves a checkpoint and ends; the answer is a Failure. With `elsewhere` it does so
    if every host can read the checkpoint, because another controller shall go on with the job.
    """

    trainer: TrainerId
    number: int
    in_memory: bool
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LendForBatch:
    """Lend this trainer so many bytes beside its plan for its next batch; 0 takes them back.

    The ledger already grants the bytes. The answer is a BatchLoan, unless the trainer uses the loan.
    """

    trainer: TrainerId
    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrainer:
    """End this trainer. The answer is an Exit."""

    trainer: TrainerId
    method: EndMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTrainer:
    """The trainer process has exited: kill the rest of its process group, then free its slot and its memory."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPlanner:
    """Ask the planner this question. The answer is an Answered. Only one question is open at a time."""

    question: Question


@dataclass(frozen=True, slots=True, kw_only=True)
class FailJob:
    """Write that the job failed, and why.

    With `needs_bytes` it goes back into the queue instead, if another controller has a budget of so many bytes.
    """

    job: JobId
    claim: ClaimToken
    fault: Fault
    needs_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueJob:
    """Put the job back into the queue, or fail it if it has too many faults. `blame` says whether this
    fault counts.
    """

    job: JobId
    claim: ClaimToken
    reason: str
    blame: Blame
    fault: Fault | None = None
    waits_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Write that the job was cancelled."""

    job: JobId
    claim: ClaimToken


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWaitsFor:
    """Write what the job waits for; None if it does not wait."""

    job: JobId
    claim: ClaimToken
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPhase:
    """Write the phase of a job whose trainer waits. All other phases are written by the trainer."""

    job: JobId
    claim: ClaimToken
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """Write a plan that was sent, and why it was made."""

    job: JobId
    claim: ClaimToken
    generation: int
    reason: PlanReason
    grant_bytes: int
    plan: JobPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForecast:
    """Write the simulator's new forecast for the plan that is followed already, after its operators' latencies have
    changed.
    """

    job: JobId
    claim: ClaimToken
    generation: int
    forecast: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStep:
    """Let the other ranks of the job know the step of this one under its plan."""

    job: JobId
    claim: ClaimToken
    step: PublishedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAdoption:
    """Write that the trainer follows a plan."""

    job: JobId
    claim: ClaimToken
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSet:
    """Write that the job runs beside these jobs from now on, with the system throughput foretold for all of them, and
    with the job's own part of it.
    """

    job: JobId
    claim: ClaimToken
    beside: tuple[JobId, ...]
    foretold_throughput: float
    foretold_speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveSet:
    """Write that the job has left the device, or is about to: it runs beside no job until the next RecordSet."""

    job: JobId
    claim: ClaimToken


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMeasurement:
    """Write the measurements of iterations under a plan.

    `throughput` is the measured system throughput of the jobs that run side by side, if all of them were measured.
    """

    job: JobId
    claim: ClaimToken
    measurement: Measurement
    throughput: float | None = None


Order = (
    SpawnTrainer
    | ClaimNext
    | AssignJob
    | SetGrant
    | GrantCalibration
    | SendPlans
    | BeginRound
    | SetRoundPool
    | PlayPart
    | LeaveRound
    | EndRound
    | ParkJob
    | LendForBatch
    | EndTrainer
    | ReleaseTrainer
    | AskPlanner
    | FailJob
    | RequeueJob
    | CancelJob
    | SetWaitsFor
    | RecordPhase
    | RecordPlan
    | RecordForecast
    | PublishStep
    | RecordAdoption
    | RecordSet
    | LeaveSet
    | RecordMeasurement
)
