"""Exchanges values of which each rank owns some: sums go to their owners, and new values from their owners to all.

With `hand_out` after it, `sum_at_owners` sends about what `PartExchange.exact_sum` sends, and adds in the same order,
so each owner has the same bits. Both go piece by piece, so that they need little memory. Ranks own different numbers
of elements, and all make as many exchanges as the longest stretch has pieces. Two ranks pass the running sum on
(pair_exchange.py), and send each other new values from where they are to where they belong.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from indb_tensile.executor.capture.exchange_room import ExchangeRoom, owner_piece_sizes, owner_width
from indb_tensile.executor.ranks import pair_exchange
from indb_tensile.executor.ranks.rank_group import RankGroup


def sum_at_owners(
    group: RankGroup,
    own: Sequence[Sequence[Tensor]],
    total: Tensor,
    counts: Sequence[int],
    lengths: Sequence[int],
    rank: int,
    room: ExchangeRoom,
) -> None:
    """Write the sum of all parts' values that this rank owns, added in the order of the parts, into `total`.

    `own` are the values of each of this rank's parts, for each owner (elements); `total` may be the first part's for
    this rank. `counts` has the number of parts of each rank, and `lengths` the elements that each rank owns. Values
    may be on a GPU.
    """
    if len(lengths) == 2 and (group.sends_device_memory or total.is_cpu):
        pair_exchange.sum_at_owners(group, own, total, counts, lengths, rank, room)
        return
    sizes = owner_piece_sizes(lengths, len(own), counts, rank)
    received, sent = (room.take_for_network(size, on_device=group.sends_device_memory) for size in sizes)
    for start, spans in pieces(lengths):
        end = 0
        for owner, span in enumerate(spans):
            for part in own:
                sent[end : end + span].copy_(part[owner][start : start + span])
                end += span
        span = spans[rank]
        taken = received[: sum(counts) * span]
        sends, receives = [len(own) * other for other in spans], [count * span for count in counts]
        group.alltoall_base(taken, sent[:end], receives, sends).wait()
        first, *others = taken.view(sum(counts), span)
        for other in others:
            first.add_(other)
        total[start : start + span].copy_(first)


def hand_out(
    group: RankGroup, values: Sequence[Tensor], rank: int, scratch: Callable[[Tensor, int], Tensor] = Tensor.new_zeros
) -> None:
    """Send all other ranks the values of this one, `values[rank]` (elements), and write theirs into the others.

    `scratch` returns so many elements of the type and in the memory of a tensor, with any values in them.
    """
    lengths = [value.numel() for value in values]
    if len(lengths) == 2 and (group.sends_device_memory or values[rank].is_cpu):
        pair_exchange.swap_values(group, values[rank], values[1 - rank])
        return
    width = owner_width(lengths)
    own = values[rank] if group.sends_device_memory else values[rank].cpu()
    to_receive = sum(min(width, length) for owner, length in enumerate(lengths) if owner != rank)
    to_send = (len(values) - 1) * min(width, lengths[rank])
    received, sent = torch.split(scratch(own, to_receive + to_send), [to_receive, to_send])
    for start, spans in pieces(lengths):
        span = spans[rank]
        copies = sent[: (len(values) - 1) * span]
        copies.view(len(values) - 1, span).copy_(own[start : start + span])
        sends = [0 if other == rank else span for other in range(len(values))]
        receives = [0 if other == rank else spans[other] for other in range(len(values))]
        group.alltoall_base(received[: sum(receives)], copies, receives, sends).wait()
        end = 0
        for owner, count in enumerate(receives):
            values[owner][start : start + count].copy_(received[end : end + count])
            end += count


def pieces(lengths: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield where each piece begins within the stretches, and how many elements of each stretch it has."""
    width = owner_width(lengths)
    for start in range(0, max(lengths), max(1, width)):
        yield start, [max(0, min(width, length - start)) for length in lengths]
