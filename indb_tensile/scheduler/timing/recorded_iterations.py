"""What a trainer records of its iterations for a trace.

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share, so recordings of jobs on one device
can be laid over each other. `epoch_ns` added to such a time is the time since 1970.
"""

from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.scheduler.timing.job_runs import Event

MOST_EVENTS = 100_000  # of a recording: some megabytes in the catalog, and about 40 MB as a trace with the plan's


class PauseKind(StrEnum):
    """Why a training did not run an iteration."""

    BATCH = "waiting for its batch"
    PARKED = "shifted: parked for other jobs"
    PLAN = "adopting a plan"
    ROUND = "leaving a round"
    EPOCH = "between epochs: validation and checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A time between two iterations in which the job did not train."""

    kind: PauseKind
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedIterations:
    """Consecutive iterations under one plan. Positions and tensors are those of the graph that ran, by the plan.

    `used_bytes` are the job's bytes in the device's account at moments of the iterations. Each event's `job` is 0.
    """

    generation: int
    iterations: tuple[tuple[int, int], ...]  # start and end
    events: tuple[Event, ...]
    used_bytes: tuple[tuple[int, int], ...]  # time, bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The recorded iterations of one job."""

    epoch_ns: int
    parts: tuple[RecordedIterations, ...]
    pauses: tuple[Pause, ...]
