"""Uploads the next batch while the present iteration computes, where the plan has room.

The room is that of scheduler/memory/next_batch.py. Where a plan has none, or too little, the controller may lend the
job memory for a batch beside its plan. The program calls `start` at boundaries from which there is room. As soon as
the next batch has been gathered, `start` takes the bytes of the second buffer on the account and queues the copy. The
next iteration waits for the rest of that copy instead of a whole copy, takes the batch to its planned place by a copy
within the device, and gives the bytes back. The host buffers of a batch are not written again
before its iteration is over. If the plan changes, the job is parked, or another step runs in between, the second
buffer is therefore dropped, and the batch is uploaded from the host again, as if nothing had been uploaded ahead.

Lent memory counts on the account for as long as the job has it, so the peak of an iteration is that of the plan and
these bytes, whenever the copy happens to run.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from indb_tensile.device.device import Device, HostBuffer, Ticket
from indb_tensile.executor.capture.replay import INPUTS
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.executor.run.upload_buffers import UploadBuffers
from indb_tensile.scheduler.memory.next_batch import aligned_bytes

Batch = tuple[torch.Tensor, ...]


class NextBatchSource(Protocol):
    """Returns the batch that follows the present one; None if there is none, or if it is not ready yet."""

    def __call__(self, *, wait: bool) -> Batch | None:
        """Return the next batch. With `wait`, the caller has nothing better to do than to wait for it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatchPlace:
    """Where the next batch lies from boundary `first` on. Without an address it lies in ordinary memory.

    On a GPU the host waits for the batch at boundary `wait_at`.
    """

    first: int
    wait_at: int
    address: int | None = None


class NextBatch:
    """The second buffer of one runner, and the copy to it. One thread calls.

    `allowed` returns whether the present iteration may upload the next batch.
    """

    def __init__(
        self,
        device: Device,
        lanes: Lanes,
        uploads: UploadBuffers,
        computes_on: torch.device,
        allowed: Callable[[], bool],
    ) -> None:
        self.source: NextBatchSource | None = None
        self.taken = 0  # batches that iterations have taken from the second buffer
        self._device = device
        self._lanes = lanes
        self._uploads = uploads
        self._computes_on = computes_on
        self._allowed = allowed
        self._place: NextBatchPlace | None = None
        self._shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._batch: Batch | None = None  # the batch in the second buffer, or on its way there
        self._parts: dict[str, tuple[torch.Tensor, Ticket]] = {}  # of that batch, until the iteration takes them
        self.lent_bytes = 0

    def lend(self, size_bytes: int) -> None:
        """Count this many bytes beside the plan for next batches from now on. No batch may be on the device."""
        if size_bytes != self.lent_bytes:
            self._device.move(self.lent_bytes, size_bytes)
            self.lent_bytes = size_bytes

    def enter(self, step: CapturedStep, place: NextBatchPlace | None) -> None:
        """Use this place while this step runs; without a place nothing is uploaded ahead."""
        self._place = place
        values = [(name, step.values[name]) for name in INPUTS]
        self._shapes = {
            name: (tuple(value.shape), value.dtype) for name, value in values if value.storage in step.tensor_of
        }

    def leave(self) -> None:
        """Drop a batch that was uploaded ahead. No copy may be under way."""
        self._place = None
        self._drop()

    def begin(self, batch: Batch) -> None:
        """Begin an iteration with this batch. If another one was uploaded ahead, drop it."""
        if self._batch is None:
            return
        if all(ahead is now for ahead, now in zip(self._batch, batch, strict=True)):
            self.taken += 1
        else:
            self._lanes.drain()
            self._drop()
        self._batch = None

    def start(self, boundary: int) -> None:
        """Upload the next batch if there is room from this boundary on, and if the batch is ready.

        On a GPU the host is ahead of the device, so it waits for the batch at a boundary: a copy that is queued later
        would begin after all operators that were queued before it.
        """
        place, source = self._place, self.source
        if self._batch is not None or place is None or source is None or boundary < place.first:
            return
        if not self._allowed():
            return
        batch = source(wait=boundary == place.wait_at and self._computes_on.type == "cuda")
        if batch is None:
            return
        buffers = self._buffers_of(batch)
        if buffers is not None:
            self._upload(batch, buffers, place.address)

    def ticket(self, name: str) -> Ticket | None:
        """Return the copy of this part of the batch that the previous iteration has queued, or None."""
        part = self._parts.get(name) if self._batch is None else None
        return None if part is None else part[1]

    def take(self, name: str, target: torch.Tensor) -> None:
        """Copy this part of the batch to its planned place, and give its memory back, if it was uploaded ahead."""
        part = self._parts.pop(name, None)
        if part is not None:
            target.copy_(part[0])
            self._count(part[0].nbytes, 0)

    def _buffers_of(self, batch: Batch) -> list[tuple[str, torch.Tensor, HostBuffer]] | None:
        """Return the parts with the host buffers that they lie in; None if the batch is not one for this step."""
        parts = []
        for name, tensor in zip(INPUTS, batch, strict=True):
            shape = self._shapes.get(name)
            if shape is None:
                continue  # the step does not use this part
            buffer = self._uploads.source(name, tensor)
            if buffer is None or (tuple(tensor.shape), tensor.dtype) != shape:
                return None
            parts.append((name, tensor, buffer))
        return parts

    def _upload(self, batch: Batch, buffers: list[tuple[str, torch.Tensor, HostBuffer]], address: int | None) -> None:
        self._count(0, sum(tensor.nbytes for _, tensor, _ in buffers))
        self._batch = batch
        for name, tensor, buffer in buffers:
            part = self._memory(tensor, address)
            ticket = self._lanes.copy_in(part.data_ptr(), buffer, tensor.nbytes)
            self._uploads.note_read(buffer, ticket)
            self._parts[name] = (part, ticket)
            address = None if address is None else address + aligned_bytes(tensor.nbytes)

    def _memory(self, like: torch.Tensor, address: int | None) -> torch.Tensor:
        """Return a tensor of this shape and type at the address, or in ordinary memory."""
        if address is None:
            return torch.empty_like(like, device=self._computes_on)
        if self._computes_on.type == "cuda":
            whole = torch.as_tensor(_DeviceBytes(address, like.nbytes), device=self._computes_on)
        else:
            whole = torch.frombuffer((ctypes.c_uint8 * like.nbytes).from_address(address), dtype=torch.uint8)
        return whole.view(like.dtype).reshape(like.shape)

    def _drop(self) -> None:
        parts, self._parts, self._batch = self._parts, {}, None
        if parts:
            self._count(sum(part.nbytes for part, _ in parts.values()), 0)

    def _count(self, freed_bytes: int, taken_bytes: int) -> None:
        """Count the bytes of a batch on the account, unless they are lent and counted already."""
        if not self.lent_bytes:
            self._device.move(freed_bytes, taken_bytes)


class _DeviceBytes:
    """Bytes of a GPU's memory, for `torch.as_tensor`, which then makes a tensor of the memory itself."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }
