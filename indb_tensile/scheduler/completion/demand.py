"""What a job needs of the device until it is done: its remaining training steps, and a step's time for any memory.

The times are those of the job alone on the device. contention.py says how much other jobs slow the job down. Before
its first step a job starts up: it has its memory and computes nothing. After its last step it closes: its version is
evaluated and published by the host, and it has no memory of the device.
"""

from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.processor_shares import ProcessorLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """One plan of a job: the memory that the plan needs, and the mean time of a training step alone on the device.

    `iteration_ns` is the sum of `compute_ns`, `stall_ns` (waits for copies of swapped tensors, and for other ranks of
    the job), the upload of the batch, and the time between two iterations. In each step, copies of swapped tensors
    occupy the lane to the host for `out_ns` and the lane to the device for `in_ns`.
    """

    peak_bytes: int
    iteration_ns: int
    compute_ns: int
    stall_ns: int = 0
    out_ns: int = 0
    in_ns: int = 0

    def with_steps_of(self, between_ns: float, *, computes: bool) -> "TradeOff":
        """Return the same plan with this time between two iterations as part of the step.

        With `computes`, other jobs slow this time down like operators, because it needs the device's computing units.
        """
        if between_ns <= 0:
            return self
        added_ns = round(between_ns)
        compute_ns = self.compute_ns + (added_ns if computes else 0)
        return replace(self, iteration_ns=self.iteration_ns + added_ns, compute_ns=compute_ns)

    def waiting_for(self, others_ns: int) -> "TradeOff":
        """Return the same plan of a rank whose other ranks need so long for an iteration.

        What slows this rank's operators down shortens its waits for the others, as it does those for copies.
        """
        waits_ns = max(0, others_ns - self.iteration_ns)
        return replace(self, iteration_ns=self.iteration_ns + waits_ns, stall_ns=self.stall_ns + waits_ns)

    def beside_others_ns(self, slowdown: float) -> float:
        """Return the time of a step whose operators take `slowdown` times as long as alone.

        Copies go on while operators run, so longer operators hide more of the waits for copies.
        """
        added_ns = (slowdown - 1) * self.compute_ns
        return self.iteration_ns + added_ns - min(self.stall_ns, added_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDemand:
    """What one job needs of the device until it is done.

    `trade_offs` start with the plan that needs most memory and least time. Each further plan needs less memory and
    more time than the plan before it. `steps_left` and `steps` (all of the training) count training steps. Validation
    counts as the fraction of a training step that it takes. `owner` is the role's oid. `load` is what its
    steps want of the processors. `has_left` says that it has just made way for a higher priority.

    `startup_ns` is the time from the order to start until the first step, or what is left of it. `closing_ns` is the
    time from the last step, after which the job's memory is free, until the job is done.
    """

    job: JobId
    owner: int
    priority: int
    steps: float
    steps_left: float
    trade_offs: tuple[TradeOff, ...]
    kind: str = ""  # jobs of one kind have equal graphs
    startup_ns: float = 0.0
    closing_ns: float = 0.0
    load: ProcessorLoad = ProcessorLoad()  # noqa: RUF009 - it is immutable
    has_left: bool = False

    def __post_init__(self) -> None:
        if not self.trade_offs:
            raise InvariantError(f"job {self.job}: a demand without a plan")
        peaks = [point.peak_bytes for point in self.trade_offs]
        times = [point.iteration_ns for point in self.trade_offs]
        if peaks != sorted(peaks, reverse=True) or times != sorted(times) or times[0] <= 0:
            raise InvariantError(f"job {self.job}: trade-offs are not in order: {self.trade_offs}")
        if not 0 < self.steps_left <= self.steps:
            raise InvariantError(f"job {self.job}: {self.steps_left} of {self.steps} steps are left")
        if not (0 <= self.startup_ns < float("inf") and 0 <= self.closing_ns < float("inf")):
            raise InvariantError(
                f"job {self.job}: it starts up for {self.startup_ns} ns and closes for {self.closing_ns}"
            )

    @property
    def alone_ns(self) -> int:
        """The time of a step alone on the device with as much memory as the job can use."""
        return self.trade_offs[0].iteration_ns

    @property
    def total_ns(self) -> float:
        """The time of the whole job alone with all the memory, from the order to start until it is done."""
        return self.startup_ns + self.steps * self.alone_ns + self.closing_ns
