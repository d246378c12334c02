"""What can happen to a controller: each fact is folded into its pool by `admission.decide`."""

from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId
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
    """The trainer cannot go on with its job; with `retry` another attempt may, with `lost` on a device that works.

    `blame` says whether a failure that may be tried again is the job's own fault.
    """

    trainer: TrainerId
    fault: Fault
    retry: bool = False
    lost: bool = False
    blame: Blame = Blame.JOB


class Ending(StrEnum):
    """How a trainer process ended."""

    BY_ITSELF = "by itself"  # it returned, or crashed
    STARVED = "starved"  # the kernel ended it for memory, as its counters say
    PROBABLY_STARVED = "probably starved"  # the same, as SIGKILL from outside and the memory that it had suggest
    OUTSIDE = "outside"  # a signal that neither it nor its controller sent
    STOPPED = "stopped"  # its controller ended it
    BABBLED = "babbled"  # its controller killed it for a message that is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A trainer process is gone, for whatever reason.

    `peak_bytes` is the most host memory that it had at once, `memory_bytes` what the machine or its container has.
    """

    trainer: TrainerId
    code: int
    ending: Ending = Ending.BY_ITSELF
    peak_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """A trainer has had its job for longer than the job's `max_runtime`."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A trainer has owed an answer (`Pool.owing`) for longer than any that works would take."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A trainer in mid-training has given no sign of life for many times its longest iteration."""

    trainer: TrainerId
    silent_s: float


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
class PlacesChange:
    """The limit on jobs that run at the same time has changed. Jobs that already run go on, even above it."""

    max_jobs: int


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
    | Stall
    | CancelRequest
    | ClaimLoss
    | BudgetChange
    | PlacesChange
    | Answered
    | QueueChange
    | Tick
    | Stop
)
