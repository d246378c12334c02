"""Adds up large values over more than two ranks by passing the running sum from rank to rank, in order.

Rank 0 adds up its parts and sends the sum to rank 1, which adds its own parts to it one by one, and so on. That is
the order in which one device adds, so the bits are equal. The last rank has the total, which goes on around the ring:
to rank 0, and from each rank to the next one. So no rank sends more than two gradients, whatever the number of its
parts, where an all-to-all of the parts sends nearly one for each part, and another one for the sums.

Values go piece by piece. In each tick every rank sends the next one a piece of the running sum and a piece of the
total, so all connections are in use at once. The first total is everywhere after as many ticks as two rounds of the
ring take, so few pieces are exchanged at once instead (`is_chained` in capture/exchange_room.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from indb_tensile.executor.capture.exchange_room import ExchangeRoom, chain_width
from indb_tensile.executor.ranks.pair_exchange import add_up
from indb_tensile.executor.ranks.rank_group import RankGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTick:
    """What one rank sends to the next one, and receives from the one before, in one tick.

    Each is a piece of the running sum and one of the total, as the elements that it has; an empty range for none.
    `begins` is the piece whose running sum begins on this rank.
    """

    begins: range
    sent: tuple[range, range]
    received: tuple[range, range]


def sum_in_order(
    group: RankGroup, own: Sequence[Tensor], total: Tensor, counts: Sequence[int], room: ExchangeRoom
) -> None:
    """Write the sum over the parts of all ranks, added in the order of the parts, into `total` (elements).

    `own` are the values of this rank's parts, in memory that the group sends; `total` may be the first of them.
    `counts` has the number of parts of each rank.
    """
    rank, ranks = group.rank(), group.size()
    on_device = group.sends_device_memory
    buffers = [room.take_for_network(2 * chain_width(total.numel()), on_device=on_device) for _ in range(2)]
    sends, receives = [0] * ranks, [0] * ranks
    for tick in chain_ticks(total.numel(), counts, rank):
        add_up([_of(part, tick.begins) for part in own], _of(total, tick.begins))
        sends[(rank + 1) % ranks] = sum(map(len, tick.sent))
        receives[(rank - 1) % ranks] = sum(map(len, tick.received))
        sent, received = buffers[0][: sum(sends)], buffers[1][: sum(receives)]
        for piece, place in _places(tick.sent, sent):
            place.copy_(_of(total, piece))
        group.alltoall_base(received, sent, receives, sends).wait()
        (summed, incoming), (whole, outcome) = _places(tick.received, received)
        add_up([incoming, *(_of(part, summed) for part in own)], _of(total, summed))
        _of(total, whole).copy_(outcome)


def chain_ticks(elements: int, counts: Sequence[int], rank: int) -> Iterator[ChainTick]:
    """Yield what this rank does, tick by tick, to add up so many elements. All ranks have as many ticks."""
    ranks, width = len(counts), chain_width(elements)
    pieces = -(-elements // width)
    before, then = sum(counts[:rank]) > 0, sum(counts[: rank + 1]) > 0
    last = ranks - 1

    def piece(number: int, *, exists: bool) -> range:
        start = number * width
        return range(start, min(start + width, elements)) if exists and 0 <= number < pieces else range(0)

    for tick in range(pieces + 2 * ranks - 3):
        yield ChainTick(
            begins=piece(tick - rank, exists=then and not before),
            sent=(
                piece(tick - rank, exists=then and rank < last),
                piece(tick - last - (rank + 1) % ranks, exists=rank != last - 1),
            ),
            received=(
                piece(tick - rank + 1, exists=before),
                piece(tick - last - rank, exists=rank < last),
            ),
        )


def _of(values: Tensor, piece: range) -> Tensor:
    return values[piece.start : piece.stop]


def _places(pieces: tuple[range, range], buffer: Tensor) -> tuple[tuple[range, Tensor], tuple[range, Tensor]]:
    """Return each piece with its place in the buffer."""
    first, second = pieces
    return (first, buffer[: len(first)]), (second, buffer[len(first) :])
