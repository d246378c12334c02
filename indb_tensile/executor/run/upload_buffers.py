"""The host buffers from which a job's batches are uploaded: two sets, allocated once for all its plans.

While an iteration reads its batch from one set, another thread may gather the next batch into the other set
(learning/batches/batch_prefetch.py). The device then reads rows where they were gathered, so the training thread
copies nothing. The buffers lie in the pinned host pool, before all other buffers of the job: the pool moves buffers
to lower addresses when it is compacted, so these never move, whatever plans follow.
"""

import ctypes
from collections.abc import Mapping, Sequence

import torch

from indb_tensile.device.device import Device, HostBuffer, Ticket
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.host_memory import pooled_bytes

SETS = 2

Room = tuple[torch.Tensor | None, ...]


class UploadBuffers:
    """Two buffers for each part of a batch that a step uploads. One thread at a time may call."""

    def __init__(self, device: Device, sizes: Mapping[str, int]) -> None:
        """`sizes` are the largest sizes of the parts in any step. If the device's memory is the host's, there are no
        buffers.
        """
        self._device = device
        self._sizes = {} if device.is_host else dict(sizes)
        self._sets: tuple[dict[str, HostBuffer], ...] = ()
        self._reads: dict[HostBuffer, Ticket] = {}  # the last upload from each buffer

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    @property
    def new_bytes(self) -> int:
        """The bytes of the host pool that `allocate` is still to take."""
        return 0 if self._sets else self._size_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes of the host pool that `allocate` has taken."""
        return self._size_bytes if self._sets else 0

    @property
    def _size_bytes(self) -> int:
        return SETS * sum(map(pooled_bytes, self._sizes.values()))

    def allocate(self) -> None:
        """Take the buffers from the host pool, once, before anything else of the job does."""
        if not self._sets:
            self._sets = tuple(
                {name: self._device.host_allocate(size_bytes) for name, size_bytes in sorted(self._sizes.items())}
                for _ in range(SETS)
            )

    def check_unmoved(self, moved: Mapping[HostBuffer, HostBuffer]) -> None:
        """Raise InvariantError if the pool has moved one of the buffers, which another thread may be writing."""
        for buffers in self._sets:
            for name, buffer in buffers.items():
                if buffer in moved:
                    raise InvariantError(f"the host buffer of batch {name} was moved: it was not the pool's first")

    def rooms(self, names: Sequence[str], parts: Sequence[torch.Tensor], rows: int) -> tuple[Room, ...]:
        """Return a tensor of `rows` rows of each part in each set; None for a part that is not uploaded."""
        return tuple(
            tuple(self._tensor(buffers, name, part, rows) for name, part in zip(names, parts, strict=True))
            for buffers in self._sets or ({},) * SETS
        )

    def source(self, name: str, batch: torch.Tensor) -> HostBuffer | None:
        """Return the buffer that this batch lies in, or None if it lies elsewhere."""
        address = batch.data_ptr()
        return next((b[name] for b in self._sets if b[name] == address), None)

    def first(self, name: str) -> HostBuffer:
        """Return the buffer for batches that do not lie in any."""
        return self._sets[0][name]

    def note_read(self, buffer: HostBuffer, ticket: Ticket) -> None:
        """Record the upload that reads a buffer last."""
        self._reads[buffer] = ticket

    def wait_until_read(self, number: int) -> None:
        """Wait until no upload reads a set any more. An iteration that ran as a graph has ended with its uploads."""
        for buffer in self._sets[number].values() if self._sets else ():
            ticket = self._reads.pop(buffer, None)
            if ticket is not None:
                self._device.wait(ticket)

    def free(self) -> None:
        """Return the buffers to the pool. No tensor of `rooms` may be used any more."""
        for buffers in self._sets:
            for buffer in buffers.values():
                self._device.host_free(buffer)
        self._sets = ()
        self._reads.clear()

    def _tensor(
        self, buffers: Mapping[str, HostBuffer], name: str, part: torch.Tensor, rows: int
    ) -> torch.Tensor | None:
        size_bytes = rows * part[:1].numel() * part.element_size()
        if name not in buffers or not 0 < size_bytes <= self._sizes[name]:
            return None
        memory = (ctypes.c_uint8 * size_bytes).from_address(buffers[name])
        return torch.frombuffer(memory, dtype=part.dtype).reshape(rows, *part.shape[1:])
