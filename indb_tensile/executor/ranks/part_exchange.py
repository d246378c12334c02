"""Adds up the gradients that the parts of one batch have on several ranks, exactly as one device adds them.

A batch is divided into parts (micro-batches, executor/capture/passes.py), and each rank computes the gradients of
consecutive parts. One device adds the gradients of a parameter in place, in the order of the parts. Floating-point
addition is not associative: a library's all-reduce, which adds in the order of its own ring or tree, gives other
last bits with three ranks or more. `exact_sum` adds in the order of the parts. An all-to-all hands each rank one
stretch of every part's gradient, the rank adds these in order, and an all-gather hands out the sums. Elements are
added one by one, so the result depends neither on the number of ranks nor on where stretches are cut. A rank sends
the gradients of all its parts, where an all-reduce sends one gradient.

The process group is c10d's, of Gloo on processors and of NCCL on GPUs. Only the operations of `RankGroup` are called.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from indb_tensile.errors import RequestError


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

    def _allgather_base(self, gathered: Tensor, own: Tensor, /) -> dist.Work: ...

    def broadcast(self, tensor: Tensor, root: int, /) -> dist.Work:
        """Send the tensor of one rank to all others, in place."""
        ...

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work:
        """Add up each tensor over all ranks, in place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartExchange:
    """The sums of the gradients of all parts, on every rank of a process group.

    `parts` are those of each rank (capture/rank_share.py); some ranks may have none. All ranks call the same methods
    in the same order, with tensors of the same size and type.
    """

    group: RankGroup
    parts: tuple[range, ...]

    def __post_init__(self) -> None:
        if len(self.parts) != self.group.size():
            raise RequestError(f"the parts of {len(self.parts)} ranks, in a group of {self.group.size()}")

    def exact_sum(self, own: Tensor) -> Tensor:
        """Return the sum of all parts' gradients, added in the order of the parts.

        `own` has the gradients of this rank's parts, in order (parts, elements).
        """
        ranks, elements = len(self.parts), own.shape[1]
        width = -(-elements // ranks)
        stretches = own.new_zeros(len(own), ranks * width)  # the last rank's stretch may be shorter
        stretches[:, :elements] = own
        sent = stretches.view(len(own), ranks, width).transpose(0, 1).contiguous()
        received = own.new_empty(self.parts[-1].stop, width)
        sizes = [len(parts) * width for parts in self.parts]
        self.group.alltoall_base(received.view(-1), sent.view(-1), sizes, [len(own) * width] * ranks).wait()
        total = _sum_in_order(received)
        gathered = own.new_empty(ranks * width)
        self.group._allgather_base(gathered, total).wait()  # noqa: SLF001 - c10d's own name of all_gather_into_tensor
        return gathered[:elements]


def _sum_in_order(parts: Tensor) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        torch.add(total, part, out=total)
    return total
