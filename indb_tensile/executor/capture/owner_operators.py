"""Defines the operators by which devices exchange gradients and parameters if they divide the optimizer's state.

`tensile::start_sum_at_owners_` and its finish add up the gradients of all parts of a batch, in the order of the
parts, and give each device the sums that it updates with (exchange_operator.py). `tensile::start_hand_out_` and its
finish give all devices what each has computed of its own: updated parameters, or statistics of its parts.
`tensile::hand_out_numbers` gives them one number of each parameter, and waits until the exchange has ended. All are
marked as drawing random numbers, so that all devices run them once and in the same order.
"""

from collections.abc import Sequence
from typing import Any

import torch

from indb_tensile.executor.capture.exchange_operator import (
    Exchange,
    RankNetwork,
    connection,
    define_exchange,
    in_memory_order,
    spread,
)
from indb_tensile.executor.capture.exchange_room import ExchangeRoom, owner_lengths

_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operators exist as long as this object
_TAGS = (torch.Tag.nondeterministic_seeded,)
_SUM_AT_OWNERS = (
    "(Tensor(a!)[] values, Tensor(b!)[] own, Tensor(c!) room, *,"
    " int[] counts, int[] owners, int[] sizes, int rank, ScalarType dtype) -> ()"
)
_HAND_OUT = "(Tensor(a!)[] values, Tensor(b!) room, *, int[] owners, int ranks, int rank) -> ()"
_LIBRARY.define(
    "hand_out_numbers(Tensor[] own, *, int[] owners, int ranks, int rank, ScalarType dtype, Device device) -> Tensor",
    tags=_TAGS,
)


def _sum_at_owners(
    values: list[torch.Tensor],
    own: list[torch.Tensor],
    room: torch.Tensor,
    *,
    counts: Sequence[int],
    owners: Sequence[int],
    sizes: Sequence[int],
    rank: int,
    dtype: torch.dtype,
) -> Exchange:
    """Return the exchange that writes the sums over all parts of the values that this rank owns into `values`.

    `own` are the values of this rank's first part, then those of the next one: one for each of `owners`. `values` are
    the first part's that this rank owns, if it has a part; the first part's other values may be changed, too.
    `counts` has the number of parts of each rank, and `sizes` the elements of each value. All are dense, of type
    `dtype`, and in one memory order for each value.
    """
    lengths = owner_lengths(sizes, owners, len(counts))

    def exchange(network: RankNetwork) -> None:
        memory = ExchangeRoom(room, dtype)
        in_order = [in_memory_order(value) for value in own]
        parts = [
            _joined(in_order[start : start + len(owners)], owners, len(counts), memory)
            for start in range(0, len(own), len(owners))
        ]
        into = [in_memory_order(value) for value in values]
        single = into[0] if len(into) == 1 else memory.take(0 if parts else lengths[rank])
        joined = parts[0][rank] if parts else single
        network.sum_at_owners(parts, joined, counts, lengths, rank, memory)
        if len(into) > 1:
            spread(joined, values)

    return exchange


def _hand_out(
    values: list[torch.Tensor], room: torch.Tensor, *, owners: Sequence[int], ranks: int, rank: int
) -> Exchange:
    """Return the exchange that copies each value from the rank that has it to all other ranks.

    `owners` has the rank of each value. Values are dense and of one type.
    """

    def exchange(network: RankNetwork) -> None:
        stretches = _joined(
            [in_memory_order(value) for value in values], owners, ranks, ExchangeRoom(room, values[0].dtype), rank
        )
        network.hand_out(stretches, rank)
        for owner, stretch in enumerate(stretches):
            into = [value for value, own in zip(values, owners, strict=True) if own == owner]
            if owner != rank and len(into) > 1:
                spread(stretch, into)

    return exchange


def _hand_out_numbers(
    own: list[torch.Tensor],
    *,
    owners: Sequence[int],
    ranks: int,
    rank: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return one number for each of `owners`, in their order. `own` are the numbers of this rank."""
    numbers = torch.empty(len(owners), dtype=dtype, device=device)
    singles = [numbers[place : place + 1] for place in range(len(owners))]
    for number, place in zip(own, (k for k, owner in enumerate(owners) if owner == rank), strict=True):
        singles[place].copy_(number)
    room = torch.empty(numbers.nbytes, dtype=torch.uint8, device=device)
    connection().run(_hand_out(singles, room, owners=owners, ranks=ranks, rank=rank), device)
    return numbers


def _joined(
    values: Sequence[torch.Tensor], owners: Sequence[int], ranks: int, room: ExchangeRoom, of: int | None = None
) -> list[torch.Tensor]:
    """Return the elements of each rank's values in one tensor. If a rank has only one value, nothing is copied.

    With `of` only the values of that rank are copied, and those of the others have any elements.
    """
    joined = []
    for owner in range(ranks):
        own = [value for value, kept_by in zip(values, owners, strict=True) if kept_by == owner]
        if len(own) < 2:
            joined.append(own[0] if own else values[0][:0])
            continue
        stretch = room.take(sum(value.numel() for value in own))
        joined.append(torch.cat(own, out=stretch) if of in (None, owner) else stretch)
    return joined


def _numbers(
    own: list[torch.Tensor],
    *,
    owners: Sequence[int],
    ranks: int,
    rank: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    del own, ranks, rank
    return torch.empty(len(owners), dtype=dtype, device=device)


_LIBRARY.impl("hand_out_numbers", _hand_out_numbers, "CompositeExplicitAutograd")
torch.library.register_fake("tensile::hand_out_numbers", _numbers, lib=_LIBRARY)

start_sum_at_owners_, finish_sum_at_owners_ = define_exchange("sum_at_owners_", _SUM_AT_OWNERS, _sum_at_owners)
start_hand_out_, finish_hand_out_ = define_exchange("hand_out_", _HAND_OUT, _hand_out)
hand_out_numbers = torch.ops.tensile.hand_out_numbers.default
