"""Typed messages between a controller and its trainers: length-prefixed msgpack on a socket pair.

A trainer whose socket is closed by the controller exits at once, so no trainer outlives its controller.
"""

import socket
import threading
from typing import Any

import msgspec

from indb_tensile import framing
from indb_tensile.device.round_member import Seat
from indb_tensile.errors import InvariantError, TensileError
from indb_tensile.job import Blame, ClaimedJob, JobId, Phase, Slot
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator
from indb_tensile.scheduler.plan import Plan

MAX_MESSAGE_BYTES = 256 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A message. The msgpack tag is the name of the class."""


# --- controller to trainer -------------------------------------------------------------------------------------


class Assign(Message, frozen=True, kw_only=True):
    """Tell the trainer to train this job, with this slot of the device's ledger."""

    job: ClaimedJob
    slot: Slot
    epoch: int  # of the slot: the ledger refuses a write that carries an older epoch
    budget_bytes: int | None = None  # the device's memory budget at this moment; None if nothing limits the job


class Calibrate(Message, frozen=True, kw_only=True):
    """Tell the trainer to run each operator of unknown latency once, with at most `grant_bytes` of memory."""

    grant_bytes: int


class Adopt(Message, frozen=True, kw_only=True):
    """Tell the trainer to follow these plans from the next iteration on: one plan per graph, as in `Captured.graphs`.

    While the trainer switches, the ledger grants the larger of the old and the new `grant_bytes`. The trainer answers
    `Adopted` when no iteration will run by the old plans any more; the controller then lowers the grant.
    """

    generation: int
    grant_bytes: int
    plans: tuple[Plan, ...]
    correction: int = 0  # the last `Corrected.number` that the plans take into account
    seat: Seat | None = None  # the trainer joins a round with these plans


class LeavePhases(Message, frozen=True, kw_only=True):
    """Tell the trainer to leave this round at the end of its iteration, and to wait for the next `Adopt` or `Park`.

    The trainer answers `LeftPhases`.
    """

    number: int


class Park(Message, frozen=True, kw_only=True):
    """Tell the trainer to give up all device memory at the end of its iteration, and to wait for the next `Adopt`.

    The trainer moves its state to the host pool and answers `Parked`; the controller then lowers its grant to 0. With
    `in_memory` False, or if the pool has no room, the trainer saves a checkpoint, answers `Failed` and ends. The same
    with `elsewhere`, if it can save a checkpoint that every host can read. `number` counts the orders of this kind,
    from 1.
    """

    number: int
    in_memory: bool = True
    elsewhere: bool = False


class Lend(Message, frozen=True, kw_only=True):
    """Lend the trainer so many bytes of the device beside its plan, for its next batch; 0 takes them back.

    The ledger already grants the bytes. `number` counts the orders of this kind, from 1. The trainer answers
    `Lent` when it has given them back. It also gives them back with every `Adopt` and `Park`, without an answer
    of its own.
    """

    number: int
    size_bytes: int


# --- trainer to controller -------------------------------------------------------------------------------------


class Ready(Message, frozen=True, kw_only=True):
    """A spare trainer has imported its modules and waits for a job."""

    pid: int


class Captured(Message, frozen=True, kw_only=True):
    """The job's graphs: the training step, the last, smaller batch (if any), those of shorter texts, validations.

    `latency_ns[g][k]` is the best estimate for operator k of graph g. `unknown` counts the operators whose workspace
    has never been measured on this kind of device; if it is above 0, the controller orders a calibration. `steps` is
    the work of the whole training in training steps, of which an evaluation is a fraction. A job that `alternates`
    has full batches of several shapes, each with a graph of its own. `copy_loss` is what copies cost operators, if
    that is not in the latencies.
    """

    job: JobId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    unknown: int
    steps: float = 1.0
    alternates: bool = False
    copy_loss: CopyLoss = FREE_COPIES


class Calibrated(Message, frozen=True, kw_only=True):
    """The graphs after a calibration, with measured sizes, workspaces and latencies.

    If `overflow_bytes` is above 0, the grant was too small by that many bytes, and the controller orders another
    calibration with a larger grant.
    """

    job: JobId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    overflow_bytes: int = 0
    copy_loss: CopyLoss = FREE_COPIES


class Corrected(Message, frozen=True, kw_only=True):
    """The graphs with larger workspaces: these operators needed more memory in an iteration than was planned.

    `number` counts the corrections of this trainer, from 1.
    """

    job: JobId
    number: int
    graphs: tuple[StepGraph, ...]
    outgrown: tuple[OutgrownOperator, ...]


class Misplaced(Message, frozen=True, kw_only=True):
    """The job's regions had no room for the block of this generation's plans, so its tensors are elsewhere."""

    job: JobId
    generation: int
    block_bytes: int


class Adopted(Message, frozen=True, kw_only=True):
    """From now on every iteration follows the plans of this generation."""

    job: JobId
    generation: int


class Parked(Message, frozen=True, kw_only=True):
    """Nothing of the job is on the device any more. Its state takes `host_bytes` of the host pool."""

    job: JobId
    number: int
    host_bytes: int


class Lent(Message, frozen=True, kw_only=True):
    """The trainer has so many bytes now of those that it was lent for its next batch. `number` is the last order's.

    It sends 0 without being asked if it cannot use the loan, and after its last step.
    """

    job: JobId
    number: int
    size_bytes: int


class LeftPhases(Message, frozen=True, kw_only=True):
    """The job iterates no more in this round, and has given back what the round had lent to it."""

    job: JobId
    number: int


class Measured(Message, frozen=True, kw_only=True):
    """Means over the iterations of the training step that were sampled since the last report.

    `graph_share` is the time of an iteration as one CUDA graph, as a share of its time operator by operator.
    `step_ns` is the mean time of a training step with all that lies between two iterations, such as evaluations; 0 if
    no step has ended since. `last`: the job trains no more.
    """

    job: JobId
    generation: int
    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int
    peak_bytes: int
    graph_share: float = 1.0
    step_ns: int = 0
    last: bool = False


class Progressed(Message, frozen=True, kw_only=True):
    """The job's progress. The message also shows the controller that the trainer is alive.

    `longest_s` is the longest time that one piece of work, such as an iteration, has taken so far. `steps_left` is
    the remaining work in training steps, as in `Captured.steps`; None before the first step. `startup_s` comes once:
    the time from the first `Adopt` until the first step had ended.
    """

    job: JobId
    phase: Phase
    epoch: int
    step: int
    longest_s: float = 0.0
    steps_left: float | None = None
    startup_s: float | None = None


class LeftDevice(Message, frozen=True, kw_only=True):
    """The job trains no more, and nothing of it is on the device or in the host pool. Its version is to be published.

    `steps_left` is what is left of the work in `Captured.steps`, above 0 if the training stopped early; None if that
    says nothing about other jobs.
    """

    job: JobId
    steps_left: float | None = None


class Finished(Message, frozen=True, kw_only=True):
    """The job's model version is published, and the job's row has the state succeeded.

    `closing_s` is the time since the training ended; None for a job that trains no network.
    """

    job: JobId
    closing_s: float | None = None


class Failed(Message, frozen=True, kw_only=True):
    """The job has failed.

    `retry` is true if the request did not cause the fault, so another attempt may succeed. `lost` is true if the
    device is gone, or if this process has lost access to it, so that no job can continue on it. `blame` says whether
    a transient fault is the job's own. `needs_bytes` is the budget of a device that could hold the job, if this one
    is too small.
    """

    job: JobId
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    retry: bool = False
    lost: bool = False
    blame: Blame = Blame.JOB
    needs_bytes: int | None = None


AnyMessage = (
    Assign
    | Calibrate
    | Adopt
    | LeavePhases
    | Park
    | Lend
    | Ready
    | Captured
    | Calibrated
    | Corrected
    | Misplaced
    | Adopted
    | Parked
    | Lent
    | LeftPhases
    | Measured
    | Progressed
    | LeftDevice
    | Finished
    | Failed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Encode the message in msgpack, as one frame."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvariantError(f"a {type(message).__name__} of {len(body)} bytes exceeds {MAX_MESSAGE_BYTES}")
    return framing.frame(body)


class TrainerLink:
    """The trainer's end of the socket pair. Calls block. Several threads may send at the same time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message. Raises OSError if the controller has closed the connection."""
        frame = encode(message)
        with self._sending:
            self._connection.sendall(frame)

    def receive(self) -> Message | None:
        """Return the next message, or None if the controller has closed the connection."""
        header = self._read(framing.HEADER_BYTES)
        if header is None:
            return None
        body = self._read(framing.body_bytes(header))
        return None if body is None else decode(body)

    def _read(self, size_bytes: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size_bytes:
            part = self._connection.recv(min(size_bytes - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
        return bytes(parts)


def decode(body: bytes) -> Message:
    """Decode the body of one frame. Raises InvariantError if the bytes are not one of these messages."""
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, TensileError) as error:
        raise InvariantError(
            f"a message of {len(body)} bytes is not one that controllers and trainers send: {error}"
        ) from error
    return message
