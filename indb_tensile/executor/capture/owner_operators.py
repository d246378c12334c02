"""Defines the operators by which devices exchange gradients and parameters if they divide the optimizer's state.

`tensile::start_sum_at_owners_` and its finish add up the gradients of all parts of a batch, in the order of the
parts, and give each device the sums that it updates with (exchange_operator.py). `tensile::hand_out_` gives all
devices the parameters that each has updated, and `tensile::hand_out_numbers` one number of each parameter; they wait
until the exchange has ended. All are marked as drawing random numbers, so that all devices run them once and in the
same order.
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
_LIBRARY.define("hand_out_(Tensor(a!)[] values, *, int[] owners, int ranks, int rank) -> ()", tags=_TAGS)
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
    the first part's that this rank owns, if it has a part. `counts` has the number of parts of each rank, and `sizes`
    the elements of each value. All are dense, of type `dtype`, and in one memory order for each value.
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


def _hand_out(values: list[torch.Tensor], *, owners: Sequence[int], ranks: int, rank: int) -> None:
    """Write the values of each owner into those of all other ranks. Values are dense and of one type."""
    stretches = stretches_of(values, owners, ranks)
    connection().run(lambda network: network.hand_out(stretches, rank), values[0].device)
    spread_stretches(stretches, values, owners, rank)


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
    _hand_out(singles, owners=owners, ranks=ranks, rank=rank)
    return numbers


def stretches_of(
    values: Sequence[torch.Tensor], owners: Sequence[int], ranks: int, room: ExchangeRoom | None = None
) -> list[torch.Tensor]:
    """Return the elements of each rank's values in one tensor. If a rank has only one value, nothing is copied.

    Values are dense and of one type.
    """
    return _joined([in_memory_order(value) for value in values], owners, ranks, room)


def spread_stretches(
    stretches: Sequence[torch.Tensor], values: Sequence[torch.Tensor], owners: Sequence[int], rank: int
) -> None:
    """Copy the elements of all other ranks' stretches, made by `stretches_of`, into their values."""
    for owner, stretch in enumerate(stretches):
        into = [value for value, own in zip(values, owners, strict=True) if own == owner]
        if owner != rank and len(into) > 1:
            spread(stretch, into)


def _joined(
    values: Sequence[torch.Tensor], owners: Sequence[int], ranks: int, room: ExchangeRoom | None
) -> list[torch.Tensor]:
    of_rank = [[value for value, own in zip(values, owners, strict=True) if own == rank] for rank in range(ranks)]
    joined = []
    for own in of_rank:
        if len(own) < 2:
            joined.append(own[0] if own else values[0][:0])
        elif room is None:
            joined.append(torch.cat(own))
        else:
            joined.append(torch.cat(own, out=room.take(sum(value.numel() for value in own))))
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


_LIBRARY.impl("hand_out_", _hand_out, "CompositeExplicitAutograd")
_LIBRARY.impl("hand_out_numbers", _hand_out_numbers, "CompositeExplicitAutograd")
torch.library.register_fake("tensile::hand_out_numbers", _numbers, lib=_LIBRARY)

start_sum_at_owners_, finish_sum_at_owners_ = define_exchange("sum_at_owners_", _SUM_AT_OWNERS, _sum_at_owners)
hand_out_ = torch.ops.tensile.hand_out_.default
hand_out_numbers = torch.ops.tensile.hand_out_numbers.default
