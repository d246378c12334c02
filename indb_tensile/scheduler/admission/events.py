"""The events of a controller. `admission.decide` applies each event to the controller's pool."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId
from indb_tensile.scheduler.admission.pool import Fault, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator
from indb_tensile.scheduler.timing.rank_steps import PublishedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareReady:
    """A started trainer waits for work."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer to ClaimNext: a job, or None if there is nothing to do."""

    job: ClaimedJob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The job's graphs, the best estimates of its latencies, and the number of operators that were never measured.

    `copy_loss` is what copies cost operators, if that is not in the latencies.
    """

    trainer: TrainerId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    unknown: int
    steps: float = 1.0  # the work of the whole training in training steps; an evaluation is a fraction of a step
    alternates: bool = False  # full batches have several shapes, each with a graph of its own
    copy_loss: CopyLoss = FREE_COPIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The graphs with measured workspaces. If `overflow_bytes` > 0, the calibration needed that much more memory."""

    trainer: TrainerId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    overflow_bytes: int = 0
    copy_loss: CopyLoss = FREE_COPIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The trainer follows this generation from now on."""

    trainer: TrainerId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """The trainer has left the device. The state of its job takes `host_bytes` of the host pool."""

    trainer: TrainerId
    number: int
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChange:
    """The jobs of this controller that their owners have paused, and have not resumed."""

    paused: frozenset[JobId]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChange:
    """The priorities of jobs of this controller, some of which have changed."""

    priorities: Mapping[JobId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksChange:
    """What the ranks of a job for several devices have let be known of their steps, by number (rank_steps.py)."""

    claim: ClaimToken
    steps: tuple[tuple[int, PublishedStep], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A trainer's bytes in the ledger after its grant was lowered: more than the grant while returned regions are
    still in use.
    """

    trainer: TrainerId
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measurements of the training step's iterations since the last report.

    `graph_share` is that of `Workload`. `step_ns` is the mean time of a step with all that lies between two
    iterations; 0: not known. After the `last` one, the job trains no more.
    """

    trainer: TrainerId
    generation: int
    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int
    peak_bytes: int
    graph_share: float = 1.0
    step_ns: int = 0
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoan:
    """A trainer has so many bytes now of what it was lent for its next batch. `number` is that of the last order."""

    trainer: TrainerId
    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A training job's graphs have larger workspaces from now on, because these operators outgrew theirs.

    `number` counts the corrections of this trainer, from 1.
    """

    trainer: TrainerId
    number: int
    graphs: tuple[StepGraph, ...]
    outgrown: tuple[OutgrownOperator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplacement:
    """The regions of the trainer had no room for the block of this generation's plans, although they are granted."""

    trainer: TrainerId
    generation: int
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsLeft:
    """The training steps that are left of a job's training, as in `Capture.steps`.

    `startup_ns` comes with the first report of an attempt: the time from the order to start until its first step had
    ended.
    """

    trainer: TrainerId
    steps_left: float
    startup_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLeft:
    """The trainer iterates no more in this round, and has given back all that the round had lent to it."""

    trainer: TrainerId
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The trainer has ended the training and given back all memory. It has yet to publish the job's version.

    `steps_left` is the rest of the work in `Capture.steps`, where the training stopped early. None: not known.
    """

    trainer: TrainerId
    steps_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The trainer has published the job's version, `closing_ns` after it had ended the training."""

    trainer: TrainerId
    closing_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The trainer cannot continue its job. With `retry` another attempt may succeed, with `lost` only on a working
    device.

    `blame` says whether a failure that may be retried is the job's own fault. A device with a budget of `needs_bytes`
    could hold the job.
    """

    trainer: TrainerId
    fault: Fault
    retry: bool = False
    lost: bool = False
    blame: Blame = Blame.JOB
    needs_bytes: int | None = None


class ExitCause(StrEnum):
    """The way in which a trainer process ended."""

    BY_ITSELF = "by itself"  # the process returned or crashed
    STARVED = "starved"  # the kernel killed the process for lack of memory, according to the kernel's counters
    # the same, but inferred from a SIGKILL from outside and the process's memory
    PROBABLY_STARVED = "probably starved"
    OUTSIDE = "outside"  # by a signal that neither the process nor its controller sent
    STOPPED = "stopped"  # its controller ended the process
    INVALID_MESSAGE = "invalid message"  # its controller killed the process for an invalid message


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A trainer process has exited, for whatever reason.

    `peak_bytes` is the most host memory that the process used at once. `memory_bytes` is the memory of the machine or
    of its container.
    """

    trainer: TrainerId
    code: int
    ending: ExitCause = ExitCause.BY_ITSELF
    peak_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """A trainer has had its job for longer than the job's `max_runtime`."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A trainer has owed an answer (`Pool.owing`) for longer than any working trainer takes."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A training trainer has given no sign of progress for many times its longest iteration."""

    trainer: TrainerId
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """The job's owner wants to cancel it."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLoss:
    """The claim now belongs to another worker, or this worker's lease has expired."""

    claim: ClaimToken


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChange:
    """The device budget of all jobs has changed."""

    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionChange:
    """It has been measured how much jobs side by side slow each other down, which was estimated before."""

    contention: Contention


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesChange:
    """The limit on jobs that run at the same time has changed. Running jobs continue, even above the limit."""

    max_jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleDevice:
    """Another controller has had no job at this heartbeat, while this one is busy for a while. None: there is none.

    `budget_bytes` is the largest budget of such a controller.
    """

    budget_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The planner has answered the question of AskPlanner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """A notification arrived: there may be work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time to look at the queue again. `now_s` is the time of a clock that never goes back; None: it is as before.

    `time_of_day` is for people. `taken_cores` is the number of cores that other programs keep busy while jobs train;
    None: not known.
    """

    now_s: float | None = None
    time_of_day: str = ""
    taken_cores: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The controller has to stop: jobs go back to the queue, trainers end."""


Event = (
    SpareReady
    | Claim
    | Capture
    | Calibration
    | Adoption
    | BatchLoan
    | Parking
    | PauseChange
    | PriorityChange
    | RanksChange
    | Holding
    | Measurement
    | Correction
    | Misplacement
    | StepsLeft
    | RoundLeft
    | Departure
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
    | ContentionChange
    | IdleDevice
    | Answered
    | QueueChange
    | Tick
    | Stop
)
