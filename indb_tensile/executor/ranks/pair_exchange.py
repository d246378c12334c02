"""Exchanges between the two ranks of a pair, which take fewer messages and copies than those among several ranks.

`sum_in_order` passes the running sum on: rank 0 adds up its parts and sends the sum, rank 1 adds its own parts to it,
one after another, and sends the total back. That is the order in which one device adds, so the bits are equal. Each
rank sends one gradient, whatever the number of its parts. Piece by piece, both directions are in use at once.

`sum_of_both` has both ranks send their values at once and add up both. For small values that takes half the time of
the library's all-reduce, which sends as much in more messages.
"""

from collections.abc import Sequence

from torch import Tensor, add

from indb_tensile.executor.capture.exchange_room import ExchangeRoom, pair_width
from indb_tensile.executor.ranks.rank_group import RankGroup


def sum_in_order(
    group: RankGroup, own: Sequence[Tensor], total: Tensor, counts: Sequence[int], room: ExchangeRoom
) -> None:
    """Write the sum over the parts of both ranks, added in the order of the parts, into `total` (elements).

    `own` are the values of this rank's parts, in memory that the group sends; `total` may be the first of them.
    `counts` has the number of parts of each rank.
    """
    width = pair_width(total.numel())
    incoming = room.take(width)
    nothing = total[:0]
    last = nothing  # the piece whose total is on its way to rank 0
    for start in range(0, total.numel(), width):
        piece = total[start : start + width]
        parts = [part[start : start + width] for part in own]
        if group.rank() == 0:
            _add_up(parts, piece)
            if counts[0]:
                _swap(group, piece, last)
            elif last.numel():
                _swap(group, nothing, last)
        else:
            received = incoming[: piece.numel()] if counts[0] else nothing
            if received.numel() or last.numel():
                _swap(group, last, received)
            _add_up([received, *parts] if counts[0] else parts, piece)
        last = piece
    if last.numel():
        _swap(group, *((nothing, last) if group.rank() == 0 else (last, nothing)))


def sum_of_both(group: RankGroup, values: Tensor, room: ExchangeRoom) -> None:
    """Add the other rank's values (elements), in place. Both ranks add in the order of the ranks."""
    width = pair_width(values.numel())
    incoming = room.take_for_network(width, on_device=group.sends_device_memory)
    for start in range(0, values.numel(), width):
        piece = values[start : start + width]
        received = incoming[: piece.numel()]
        _swap(group, piece, received)
        _add_up([piece, received] if group.rank() == 0 else [received, piece], piece)


def _add_up(parts: Sequence[Tensor], total: Tensor) -> None:
    """Write the sum of the parts, added in their order, into `total`, which may be one of the first two."""
    if not parts:
        return
    first, *others = parts
    if not others:
        if first.data_ptr() != total.data_ptr():
            total.copy_(first)
        return
    add(first, others[0], out=total)
    for other in others[1:]:
        total.add_(other)


def _swap(group: RankGroup, sent: Tensor, received: Tensor) -> None:
    """Send these values to the other rank, and receive as many as `received` has."""
    sends, receives = [0, 0], [0, 0]
    other = 1 - group.rank()
    sends[other], receives[other] = sent.numel(), received.numel()
    group.alltoall_base(received, sent, receives, sends).wait()
