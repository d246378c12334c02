"""What can happen to a controller: each fact is folded into its pool by `admission.decide`."""

from dataclasses import dataclass

from indb_tensile.job import ClaimedJob, ClaimToken, JobId
from indb_tensile.scheduler.admission.pool import Fault, TrainerId
from indb_tensile.scheduler.graph import StepGraph


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
class Holding:
    """What a trainer has in the ledger after its grant was lowered: more while regions that are due are in use."""

    trainer: TrainerId
    held_bytes: int


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
    """The trainer cannot go on with its job; with `retry` another attempt may, with `lost` on a device that works."""

    trainer: TrainerId
    fault: Fault
    retry: bool = False
    lost: bool = False


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
class Silence:
    """A trainer has owed an answer (`Pool.owing`) for longer than any that works would take."""

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
class Answered:
    """The planner knows what it was asked (AskPlanner)."""


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
    | Holding
    | Measurement
    | Finish
    | Failure
    | Exit
    | Overrun
    | Silence
    | CancelRequest
    | ClaimLoss
    | BudgetChange
    | Answered
    | QueueChange
    | Tick
    | Stop
)
