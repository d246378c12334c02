"""What the exchanges of ranks use of a process group of c10d: of Gloo in host memory, of NCCL between GPUs."""

from typing import Protocol

import torch.distributed as dist
from torch import Tensor


class RankGroup(Protocol):
    """What is used of a process group."""

    def size(self) -> int:
        """Return the number of ranks."""
        ...

    def rank(self) -> int:
        """Return the number of this rank, from 0."""
        ...

    def alltoall_base(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], /) -> dist.Work:
        """Send each rank its stretch of `sent`, and receive one of each; the lists have their lengths in elements."""
        ...

    def broadcast(self, tensor: Tensor, root: int, /) -> dist.Work:
        """Send the tensor of one rank to all others, in place."""
        ...

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work:
        """Add up each tensor over all ranks, in place."""
        ...

    @property
    def sends_device_memory(self) -> bool:
        """Whether exchanges are made in the memory of the device. If not, values of a GPU are copied to the host."""
        ...

    def settle(self) -> None:
        """Return when all operations that were waited for, and what follows them on the device, have ended.

        The host waits for an operation in host memory, and only the device for an operation in its memory. Raises
        RuntimeError if another rank has gone or does not answer in time.
        """
        ...

    def abort(self) -> None:
        """End every operation that is under way with an error. The group can make no more."""
        ...
