"""Exchanges between the two ranks of a pair, which take fewer messages and copies than those among several ranks.

`sum_in_order` passes the running sum on: rank 0 adds up its parts and sends the sum, rank 1 adds its own parts to it,
one after another, and sends the total back. That is the order in which one device adds, so the bits are equal. Each
rank sends one gradient, whatever the number of its parts. Piece by piece, both directions are in use at once.

`sum_at_owners` does so with values of which each rank owns some. Totals that rank 1 owns stay there. So rank 0 sends
one gradient, and rank 1 only what rank 0 owns.

`sum_of_both` has both ranks send their values at once and add up both. For small values that takes half the time of
the library's all-reduce, which sends as much in more messages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
    pieces = _pieces(own, total, pair_width(total.numel()), returns=True)
    _pass_on(group, pieces, counts, room.take(pair_width(total.numel())))


def sum_at_owners(
    group: RankGroup,
    own: Sequence[Sequence[Tensor]],
    total: Tensor,
    counts: Sequence[int],
    lengths: Sequence[int],
    rank: int,
    room: ExchangeRoom,
) -> None:
    """Write the sum over all parts of the values that this rank owns into `total` (elements).

    `own` are the values of each of this rank's parts, for each owner (elements). Those of the first part become sums
    that are under way, and `total` may be among them. `lengths` has the number of elements that each rank owns.
    """
    width = pair_width(max(lengths))
    incoming = room.take(width)
    pieces: list[_Piece] = []
    for owner, length in enumerate(lengths):
        parts = [part[owner] for part in own]
        if owner == rank:
            into = total
        elif parts:
            into = parts[0]
        else:  # what comes from rank 0 goes back as it is
            into = room.take(length if counts[0] else 0)
        pieces += _pieces(parts, into, width, returns=owner == 0)
    _pass_on(group, pieces, counts, incoming)


def sum_of_both(group: RankGroup, values: Tensor, room: ExchangeRoom) -> None:
    """Add the other rank's values (elements), in place. Both ranks add in the order of the ranks."""
    width = pair_width(values.numel())
    incoming = room.take_for_network(width, on_device=group.sends_device_memory)
    for start in range(0, values.numel(), width):
        piece = values[start : start + width]
        received = incoming[: piece.numel()]
        swap_values(group, piece, received)
        add_up([piece, received] if group.rank() == 0 else [received, piece], piece)


def swap_values(group: RankGroup, sent: Tensor, received: Tensor) -> None:
    """Send these values (elements) to the other rank, and receive as many as `received` has."""
    sends, receives = [0, 0], [0, 0]
    other = 1 - group.rank()
    sends[other], receives[other] = sent.numel(), received.numel()
    group.alltoall_base(received, sent, receives, sends).wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Values of each of this rank's parts, and where their sum goes. If it `returns`, rank 0 gets it, too."""

    parts: Sequence[Tensor]
    total: Tensor
    returns: bool


def _pieces(parts: Sequence[Tensor], total: Tensor, width: int, *, returns: bool) -> Iterator[_Piece]:
    for start in range(0, total.numel(), width):
        stop = start + width
        yield _Piece(parts=[part[start:stop] for part in parts], total=total[start:stop], returns=returns)


def _pass_on(group: RankGroup, pieces: Iterable[_Piece], counts: Sequence[int], incoming: Tensor) -> None:
    """Add up each piece. Rank 0 sends its sums, and totals that return come back while the next piece goes there."""
    nothing = incoming[:0]
    last = nothing  # the piece whose total is on its way to rank 0
    for piece in pieces:
        if group.rank() == 0:
            add_up(piece.parts, piece.total)
            sent = piece.total if counts[0] else nothing
            if sent.numel() or last.numel():
                swap_values(group, sent, last)
        else:
            received = incoming[: piece.total.numel()] if counts[0] else nothing
            if received.numel() or last.numel():
                swap_values(group, last, received)
            add_up([received, *piece.parts] if counts[0] else piece.parts, piece.total)
        last = piece.total if piece.returns else nothing
    if last.numel():
        swap_values(group, *((nothing, last) if group.rank() == 0 else (last, nothing)))


def add_up(parts: Sequence[Tensor], total: Tensor) -> None:
    """Write the sum of the parts, added in their order, into `total`, which may be one of the first two."""
    if not (parts and total.numel()):
        return
    first, *others = parts
    if not others:
        if first.data_ptr() != total.data_ptr():
            total.copy_(first)
        return
    add(first, others[0], out=total)
    for other in others[1:]:
        total.add_(other)
