"""What the simulator gets for each job and what it returns: forecasts of iterations, and the events of a timeline."""

from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss
from indb_tensile.scheduler.plan import Plan


class Compute(StrEnum):
    """The way in which jobs share the device's compute units."""

    OVERLAP = "overlap"  # Each job computes as if alone. Contention is part of the measured latencies.
    TURNS = "turns"  # one resource, given to one operator after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job that repeats one graph under one plan. The link gives the time of an upload, and not `latency_ns`.

    Graph and latencies are the captured ones. The plan determines the graph that runs. `batch` names the tensors that
    are uploaded ahead where the plan has room, or with `beside` to memory that the job has beside its plan. Operators
    take longer by `copy_loss` for each copy that is made beside them.
    """

    graph: StepGraph
    plan: Plan
    latency_ns: tuple[int, ...]
    batch: tuple[str, ...] = ()
    beside: bool = False
    copy_loss: CopyLoss = FREE_COPIES

    def __post_init__(self) -> None:
        if len(self.latency_ns) != len(self.graph.operators):
            raise InvariantError(
                f"job run: {len(self.latency_ns)} latencies for {len(self.graph.operators)} operators"
            )
        if min(self.latency_ns) < 0 or sum(self.latency_ns) == 0:
            raise InvariantError(f"job run: latencies must not be negative nor all 0: least {min(self.latency_ns)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The mean iteration of one job in steady state. The other times add up to `iteration_ns`, except
    for rounding.
    """

    iteration_ns: int
    compute_ns: int
    stall_out_ns: int  # waits for a late swap-out, whose memory could not be given back yet
    stall_in_ns: int  # waits for a late swap-in, whose tensor an operator needs
    upload_ns: int  # from the request of the batch until the batch is on the device
    peak_bytes: int
    out_bytes: int  # copied to the host for swaps
    in_bytes: int  # copied to the device for swaps
    turn_ns: int = 0  # waits for other jobs' operators (Compute.TURNS)
    gate_ns: int = 0  # waits at gates for other jobs
    exchange_ns: int = 0  # waits for the end of exchanges with other devices

    @property
    def operators_ns(self) -> int:
        """The time of the operators, with the waits of those that need an exchange."""
        return self.compute_ns + self.exchange_ns

    @property
    def copies_ns(self) -> int:
        """Waits for copies of swapped tensors and of the batch: the stalls that a trainer measures."""
        return self.stall_out_ns + self.stall_in_ns + self.upload_ns


class EventKind(StrEnum):
    """The kind of an event of the timeline."""

    COMPUTE = "compute"
    UPLOAD = "upload"
    SWAP_OUT = "swap out"
    SWAP_IN = "swap in"
    LATE_OUT = "late swap-out"
    LATE_IN = "late swap-in"
    TURN = "waiting for its turn"
    GATE = "waiting at a gate"
    EXCHANGE = "exchange"
    LATE_EXCHANGE = "late exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One interval of one job's time: an operator, a copy of a tensor on its lane, or a wait before an operator."""

    job: int  # position among the runs
    kind: EventKind
    operator: OpIndex
    tensor: TensorId | None
    start_ns: int
    end_ns: int
