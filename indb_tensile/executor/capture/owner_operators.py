"""Defines the operators by which devices exchange gradients and parameters if they divide the optimizer's state.

`tensile::sum_at_owners` adds up the gradients of all parts of a batch, in the order of the parts, and gives each
device the sums that it updates with. `tensile::hand_out_` gives all devices the parameters that each has updated, and
`tensile::hand_out_numbers` one number of each parameter. Like those of exchange_operator.py the operators are marked
as drawing random numbers, so that all devices run them once and in the same order.
"""

from collections.abc import Sequence
from typing import Any

import torch

from indb_tensile.executor.capture.exchange_operator import connection, in_memory_order

_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operators exist as long as this object
_TAGS = (torch.Tag.nondeterministic_seeded,)
_LIBRARY.define(
    "sum_at_owners(Tensor[] like, Tensor[] own, *, int[] counts, int[] owners, int[] lengths, int rank) -> Tensor[]",
    tags=_TAGS,
)
_LIBRARY.define("hand_out_(Tensor(a!)[] values, *, int[] owners, int ranks, int rank) -> ()", tags=_TAGS)
_LIBRARY.define(
    "hand_out_numbers(Tensor[] own, *, int[] owners, int ranks, int rank, ScalarType dtype, Device device) -> Tensor",
    tags=_TAGS,
)


def _sum_at_owners(
    like: list[torch.Tensor],
    own: list[torch.Tensor],
    *,
    counts: Sequence[int],
    owners: Sequence[int],
    lengths: Sequence[int],
    rank: int,
) -> list[torch.Tensor]:
    """Return the sums over all parts of the values that this rank owns, each dense in the memory order of its `like`.

    `own` are the values of this rank's first part, then those of the next one, each dense in that order: one value
    for each of `owners`. `counts` has the number of parts of each rank, and `lengths` the number of elements that
    each rank owns. All values are of one type.
    """
    totals = _like(like, own, counts=counts, owners=owners, lengths=lengths, rank=rank)
    in_order = [in_memory_order(value) for value in own]
    parts = [
        _stretches(in_order[start : start + len(owners)], owners, len(lengths))
        for start in range(0, len(own), len(owners))
    ]
    into = [in_memory_order(total) for total in totals]
    joined = into[0] if len(into) == 1 else torch.empty(lengths[rank], **_kind(like, own))
    connection().sum_at_owners(parts, joined, counts, lengths, rank)
    _spread(joined, into)
    return totals


def _hand_out(values: list[torch.Tensor], *, owners: Sequence[int], ranks: int, rank: int) -> None:
    """Write the values of each owner into those of all other ranks. Values are dense and of one type."""
    in_order = [in_memory_order(value) for value in values]
    stretches = _stretches(in_order, owners, ranks)
    connection().hand_out(stretches, rank)
    for owner, stretch in enumerate(stretches):
        if owner != rank:
            _spread(stretch, [value for value, own in zip(in_order, owners, strict=True) if own == owner])


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


def _stretches(values: Sequence[torch.Tensor], owners: Sequence[int], ranks: int) -> list[torch.Tensor]:
    """Return the elements of each rank's values in one tensor. If a rank has only one value, nothing is copied."""
    of_rank = [[value for value, own in zip(values, owners, strict=True) if own == rank] for rank in range(ranks)]
    return [own[0] if len(own) == 1 else torch.cat(own) if own else values[0][:0] for own in of_rank]


def _spread(joined: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
    """Copy the elements into these values, unless they are those of one value."""
    if len(into) > 1:
        for value, elements in zip(into, torch.split(joined, [value.numel() for value in into]), strict=True):
            value.copy_(elements)


def _kind(*values: list[torch.Tensor]) -> dict[str, Any]:
    """Return type and device of the first value, if there is one."""
    first = next((value for group in values for value in group), None)
    return {} if first is None else {"dtype": first.dtype, "device": first.device}


def _like(
    like: list[torch.Tensor],
    own: list[torch.Tensor],
    *,
    counts: Sequence[int],
    owners: Sequence[int],
    lengths: Sequence[int],
    rank: int,
) -> list[torch.Tensor]:
    del own, counts, owners, lengths, rank
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in like]


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


_LIBRARY.impl("sum_at_owners", _sum_at_owners, "CompositeExplicitAutograd")
_LIBRARY.impl("hand_out_", _hand_out, "CompositeExplicitAutograd")
_LIBRARY.impl("hand_out_numbers", _hand_out_numbers, "CompositeExplicitAutograd")
torch.library.register_fake("tensile::sum_at_owners", _like, lib=_LIBRARY)
torch.library.register_fake("tensile::hand_out_numbers", _numbers, lib=_LIBRARY)

sum_at_owners = torch.ops.tensile.sum_at_owners.default
hand_out_ = torch.ops.tensile.hand_out_.default
hand_out_numbers = torch.ops.tensile.hand_out_numbers.default
