"""Typed messages between a controller and its trainers, length-prefixed msgpack on a socket pair.

A trainer that sees its end closed exits at once: nothing outlives its controller.
"""

import socket
import struct
import threading
from typing import Any

import msgspec

from indb_tensile.errors import InvariantError, TensileError
from indb_tensile.job import Blame, ClaimedJob, JobId, Phase, Slot
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.plan import Plan

MAX_MESSAGE_BYTES = 256 * 1024 * 1024

_LENGTH = struct.Struct(">I")


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One message; the tag is the class name."""


# --- controller to trainer -------------------------------------------------------------------------------------


class Assign(Message, frozen=True, kw_only=True):
    """Train this job on this row of the device's ledger."""

    job: ClaimedJob
    slot: Slot
    epoch: int  # of the slot: a write with an older epoch is refused by the ledger
    budget_bytes: int | None = None  # of the device now; None where nothing bounds the job


class Calibrate(Message, frozen=True, kw_only=True):
    """Run the unknown operators once, using at most `grant_bytes`."""

    grant_bytes: int


class Adopt(Message, frozen=True, kw_only=True):
    """Follow these plans from the next iteration on: one per graph, in the order of `Captured.graphs`.

    The ledger already grants the larger of the old and the new `grant_bytes`; the trainer answers `Adopted`
    when no iteration of the old plan will run again, and the controller then lowers the grant.
    """

    generation: int
    grant_bytes: int
    plans: tuple[Plan, ...]


# --- trainer to controller -------------------------------------------------------------------------------------


class Ready(Message, frozen=True, kw_only=True):
    """A spare trainer has imported what it needs and waits for work."""

    pid: int


class Captured(Message, frozen=True, kw_only=True):
    """The job's graphs: the training step, then the last smaller batch (if any), then the validation pass.

    `latency_ns[g][k]` is the best estimate for operator k of graph g; `unknown` counts the operators whose
    workspace has never been measured on this kind of device, which calls for a calibration.
    """

    job: JobId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    unknown: int


class Calibrated(Message, frozen=True, kw_only=True):
    """The graphs again with measured sizes, workspaces and latencies.

    `overflow_bytes` > 0: the grant was too small by that much, and the controller asks again with more.
    """

    job: JobId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    overflow_bytes: int = 0


class Adopted(Message, frozen=True, kw_only=True):
    """Every iteration from now on follows this generation."""

    job: JobId
    generation: int


class Measured(Message, frozen=True, kw_only=True):
    """What sampled iterations of the training step took since the last report: means."""

    job: JobId
    generation: int
    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int
    peak_bytes: int


class Progressed(Message, frozen=True, kw_only=True):
    """Where the job is: a sign of life. `longest_s` is the longest that the trainer was busy between two of them."""

    job: JobId
    phase: Phase
    epoch: int
    step: int
    longest_s: float = 0.0


class Finished(Message, frozen=True, kw_only=True):
    """The job's version is published and its row says succeeded."""

    job: JobId


class Failed(Message, frozen=True, kw_only=True):
    """The job cannot go on. `retry`: the fault was not the request's, another attempt may succeed.

    `lost`: the device is gone, or this process's hold on it, so that no job may get on. `blame`: whether a fault
    that may pass is the job's own.
    """

    job: JobId
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    retry: bool = False
    lost: bool = False
    blame: Blame = Blame.JOB


AnyMessage = (
    Assign | Calibrate | Adopt | Ready | Captured | Calibrated | Adopted | Measured | Progressed | Finished | Failed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """One frame: four bytes of length, most significant first, then msgpack."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvariantError(f"a {type(message).__name__} of {len(body)} bytes exceeds {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Link:
    """A blocking end of the socket pair, for the trainer. Sending is safe from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Raises OSError when the other end is gone."""
        frame = encode(message)
        with self._sending:
            self._connection.sendall(frame)

    def receive(self) -> Message | None:
        """The next message, or None when the other end is gone."""
        header = self._read(_LENGTH.size)
        if header is None:
            return None
        body = self._read(_LENGTH.unpack(header)[0])
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
    """The message of one frame's body. Raises InvariantError for what is not one of ours."""
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, TensileError) as error:
        raise InvariantError(f"a message of {len(body)} bytes is not one of the link's: {error}") from error
    return message
