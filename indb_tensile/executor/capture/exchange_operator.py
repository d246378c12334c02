"""Defines the operator by which a step on one of several devices adds up what all parts of a batch have computed.

The operator is part of the captured step, so a plan may move its arguments and its result as those of any other
operator. How the sum is made depends on the process and is no part of the step: `summing` says it for a thread.

The operator is marked as drawing random numbers, although it draws none. Plans keep such operators in the order of
the capture and never run one again, and that is what all ranks need: each must make the same exchanges in the same
order, whatever its own plan is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from indb_tensile.errors import InvariantError

# Gets this rank's rows (parts, elements) and the number of parts of each rank, and returns the sums over all parts.
SumParts = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]

_SUM: ContextVar[SumParts | None] = ContextVar("sum_parts", default=None)
_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operator exists as long as this object
_LIBRARY.define(
    "sum_parts(Tensor like, Tensor[] own, *, int[] counts) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


@contextmanager
def summing(sum_parts: SumParts) -> Iterator[None]:
    """Let the steps that this thread runs add up parts by this function."""
    token = _SUM.set(sum_parts)
    try:
        yield
    finally:
        _SUM.reset(token)


def _sum_parts(like: torch.Tensor, own: list[torch.Tensor], *, counts: Sequence[int]) -> torch.Tensor:
    """Return the sum over all parts, dense in the memory order of `like`.

    `own` are the values of this rank's parts, each dense in that order.
    """
    sum_parts = _SUM.get()
    if sum_parts is None:
        raise InvariantError("a step for several devices runs without a connection to the other devices")
    elements = like.numel()
    rows = like.new_empty(len(own), elements)
    for row, value in zip(rows, own, strict=True):
        row.copy_(_in_memory_order(value))
    total = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    _in_memory_order(total).copy_(sum_parts(rows, counts))
    return total


def _in_memory_order(value: torch.Tensor) -> torch.Tensor:
    return value.as_strided((value.numel(),), (1,), value.storage_offset())


def _like(like: torch.Tensor, own: list[torch.Tensor], *, counts: Sequence[int]) -> torch.Tensor:
    del own, counts
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


_LIBRARY.impl("sum_parts", _sum_parts, "CompositeExplicitAutograd")
torch.library.register_fake("tensile::sum_parts", _like, lib=_LIBRARY)

sum_parts_ = torch.ops.tensile.sum_parts.default
