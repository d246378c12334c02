"""Functions that step programs call beside operators: to upload, and for tensors that a plan moves or cuts."""

from collections.abc import Callable, Mapping

import torch

from indb_tensile.device.device import HostBuffer, Ticket
from indb_tensile.errors import InvariantError
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.executor.run.upload_ahead import NextBatch


def upload(
    sources: Mapping[str, HostBuffer],
    lanes: Lanes,
    note_read: Callable[[HostBuffer, Ticket], None] | None,
    next_batch: NextBatch | None,
    address: int,
    name: str,
    size_bytes: int,
) -> Ticket:
    """Queue the upload of a part of the batch, or of a constant, from the buffer that it lies in now.

    If the previous iteration has queued the upload, return that one.
    """
    ahead = None if next_batch is None else next_batch.ticket(name)
    if ahead is not None:
        return ahead
    ticket = lanes.copy_in(address, sources[name], size_bytes)
    if note_read is not None:
        note_read(sources[name], ticket)
    return ticket


def cut(value: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return these elements of a dense tensor, in memory order."""
    return value.as_strided((stop - start,), (1,), value.storage_offset() + start)


def movable(value: torch.Tensor, size_bytes: int) -> torch.UntypedStorage:
    """Return the storage of a value that the plan moves.

    Raises InvariantError if the size differs from the graph's, because a copy would then overrun the storage.
    """
    storage = value.untyped_storage()
    if storage.nbytes() != size_bytes or not storage.resizable():
        raise InvariantError(
            f"a storage of {storage.nbytes()} bytes cannot be swapped: the plan has {size_bytes} bytes",
            detail=f"tensor of shape {tuple(value.shape)} and {value.dtype}, resizable: {storage.resizable()}",
        )
    return storage
