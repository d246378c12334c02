"""Adds up the gradients that the parts of one batch have on several ranks, exactly as one device adds them.

A batch is divided into parts (micro-batches, executor/capture/passes.py), and each rank computes the gradients of
consecutive parts. One device adds the gradients of a parameter in place, in the order of the parts. Floating-point
addition is not associative: a library's all-reduce, which adds in the order of its own ring or tree, gives other
last bits with three ranks or more. `exact_sum` adds in the order of the parts. An all-to-all hands each rank one
stretch of every part's gradient, the rank adds these in order, and another all-to-all hands out the sums. (Gloo's
all-gather takes longer, because it copies twice.) Elements are added one by one, so the result depends neither on the
number of ranks nor on where stretches are cut. A rank sends the gradients of all its parts, where an all-reduce sends
two gradients.

Two ranks exchange less, in the same order of additions (pair_exchange.py), and so do more of them with several parts
each, if the gradient is large (chain_exchange.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.exchange_room import ExchangeRoom, is_chained, piece_sizes, piece_width
from indb_tensile.executor.ranks import chain_exchange, pair_exchange
from indb_tensile.executor.ranks.rank_group import RankGroup


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

    def exact_sum(self, own: Sequence[Tensor], total: Tensor, room: ExchangeRoom) -> None:
        """Write the sum of all parts' gradients, added in the order of the parts, into `total` (elements).

        `own` are the gradients of this rank's parts, in order (elements each); `total` may be the first of them. They
        may be on a GPU; the exchange is made in the memory that the group sends, piece by piece, so that it needs
        little room and touches the same memory again.
        """
        counts = [len(parts) for parts in self.parts]
        on_device = self.group.sends_device_memory
        if len(counts) == 2 and (on_device or total.is_cpu):
            pair_exchange.sum_in_order(self.group, own, total, counts, room)
            return
        if is_chained(total.numel(), counts) and (on_device or total.is_cpu):
            chain_exchange.sum_in_order(self.group, own, total, counts, room)
            return
        width = piece_width(total.numel(), len(self.parts))
        sizes = piece_sizes(total.numel(), len(own), counts)
        buffers = _PieceBuffers(*(room.take_for_network(size, on_device=on_device) for size in sizes))
        step = width * len(self.parts)
        for start in range(0, total.numel(), step):
            self._sum_piece([part[start : start + step] for part in own], total[start : start + step], buffers)

    def _sum_piece(self, own: Sequence[Tensor], total: Tensor, buffers: "_PieceBuffers") -> None:
        ranks, elements = len(self.parts), total.numel()
        width = -(-elements // ranks)  # of a rank's stretch; those of the last ranks may be shorter
        sent = buffers.sent[: ranks * len(own) * width].view(ranks, len(own), width)
        for position, part in enumerate(own):
            for rank, stretch in enumerate(torch.split(part, width)):
                sent[rank, position, : stretch.numel()].copy_(stretch)
        received = buffers.received[: self.parts[-1].stop * width].view(-1, width)
        sizes = [len(parts) * width for parts in self.parts]
        self.group.alltoall_base(received.view(-1), sent.view(-1), sizes, [len(own) * width] * ranks).wait()
        first, *others = received
        for other in others:
            first.add_(other)
        # The parts' values are sent, and added up in their first row, so their memory is free for the sums.
        copies, gathered = (buffer[: ranks * width] for buffer in (buffers.sent, buffers.received))
        copies.view(ranks, width).copy_(first)
        self.group.alltoall_base(gathered, copies, [width] * ranks, [width] * ranks).wait()
        total.copy_(gathered[:elements])


@dataclass(frozen=True, slots=True)
class _PieceBuffers:
    """Memory for the exchange of a piece: of parts, and then of sums, of which each rank gets a copy."""

    sent: Tensor
    received: Tensor
