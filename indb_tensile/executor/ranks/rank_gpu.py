"""The GPU of a rank, as far as its connection by NCCL needs it: all calls of the driver and of NCCL are here.

This module has not run on a GPU yet (docs/user/gpu.md).
"""

from datetime import timedelta
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from indb_tensile import _native
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.exchange_streams import StreamMark
from indb_tensile.executor.ranks.nccl_ranks import Collectives

# PyTorch has a time after which a thread of its own declares that an operation hangs. Ours is shorter.
_NEVER = timedelta(days=30)


class RankGpu(Protocol):
    """The GPU of this rank. `place` is that of its values."""

    place: torch.device

    def use(self) -> None:
        """Let this thread use the GPU."""
        ...

    def free_bytes(self) -> int:
        """Return the memory that no process has taken, once the GPU has done all its work."""
        ...

    def zeros(self, elements: int) -> Tensor:
        """Return zeros outside the job's regions, where no plan has them."""
        ...

    def mark(self) -> StreamMark:
        """Mark the end of what this thread has queued."""
        ...

    def collectives(self, store: Store, share: RankShare, name: str) -> Collectives:
        """Return the group of NCCL of this rank. Its first operation connects all ranks."""
        ...


class TorchGpu:
    """A GPU by PyTorch. `place` has its number."""

    def __init__(self, place: torch.device) -> None:
        self.place = place

    def use(self) -> None:
        """See `RankGpu`."""
        torch.cuda.set_device(self.place)

    def free_bytes(self) -> int:
        """See `RankGpu`."""
        torch.cuda.synchronize(self.place)
        return int(torch.cuda.mem_get_info(self.place)[0])

    def zeros(self, elements: int) -> Tensor:
        """See `RankGpu`."""
        _native.cuda_allocate_beside(True)
        try:
            return torch.zeros(elements, device=self.place)
        finally:
            _native.cuda_allocate_beside(False)

    def mark(self) -> StreamMark:
        """See `RankGpu`."""
        event: StreamMark = torch.cuda.current_stream(self.place).record_event()
        return event

    def collectives(self, store: Store, share: RankShare, name: str) -> Collectives:
        """See `RankGpu`."""
        from torch._C._distributed_c10d import ProcessGroupNCCL  # a build without NCCL does not have it

        options: Any = ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = _NEVER  # noqa: SLF001 - as torch.distributed sets it
        options.group_name = name
        return cast(Collectives, ProcessGroupNCCL(store, share.rank, share.ranks, options))


def gpu_of(place: torch.device, host: str) -> str:
    """Return a name of this GPU that no other one has, also on other hosts."""
    properties: Any = torch.cuda.get_device_properties(place)
    return f"GPU {properties.uuid} of {host}"
