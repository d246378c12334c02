"""Defines the operators by which a step on one of several devices exchanges with the steps of the other devices.

`tensile::sum_parts` adds up what all parts of a batch have computed, in the order of the parts.
`tensile::all_reduce_` adds up one value of each device in place, in the order of the library. The operators are part
of the captured step, so a plan may move their arguments and results as those of any other operator. How the exchange
is made depends on the process and is no part of the step: `connected` says it for a thread.

The operators are marked as drawing random numbers, although they draw none. Plans keep such operators in the order of
the capture and never run one again, and that is what all ranks need: each must make the same exchanges in the same
order, whatever its own plan is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from indb_tensile.errors import InvariantError


class StepExchange(Protocol):
    """The exchanges that a step makes with the steps of the other ranks."""

    def sum_parts(self, own: Sequence[torch.Tensor], total: torch.Tensor, counts: Sequence[int]) -> None:
        """Write the sum over all parts into `total` (elements). `own` are the values of this rank's parts (elements
        each), and `counts` has the number of parts of each rank.
        """
        ...

    def all_reduce(self, values: torch.Tensor) -> None:
        """Add up the values (elements) of all ranks, in place."""
        ...

    def sum_at_owners(
        self,
        own: Sequence[Sequence[torch.Tensor]],
        total: torch.Tensor,
        counts: Sequence[int],
        lengths: Sequence[int],
        rank: int,
    ) -> None:
        """Write the sum over all parts of the values that this rank owns into `total` (elements).

        `own` are the values of each of this rank's parts, for each owner (elements). `counts` is as above, and
        `lengths` has the number of elements that each rank owns.
        """
        ...

    def hand_out(self, values: Sequence[torch.Tensor], rank: int) -> None:
        """Send all ranks the values that this rank owns, `values[rank]` (elements), and receive theirs."""
        ...


_EXCHANGE: ContextVar[StepExchange | None] = ContextVar("step_exchange", default=None)
_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operators exist as long as this object
_TAGS = (torch.Tag.nondeterministic_seeded,)
_LIBRARY.define("sum_parts(Tensor[] like, Tensor[] own, *, int[] counts) -> Tensor[]", tags=_TAGS)
_LIBRARY.define("all_reduce_(Tensor(a!)[] values) -> ()", tags=_TAGS)


@contextmanager
def connected(exchange: StepExchange) -> Iterator[None]:
    """Let the steps that this thread runs exchange by this object."""
    token = _EXCHANGE.set(exchange)
    try:
        yield
    finally:
        _EXCHANGE.reset(token)


def connection() -> StepExchange:
    """Return what this thread's steps exchange by."""
    exchange = _EXCHANGE.get()
    if exchange is None:
        raise InvariantError("a step for several devices runs without a connection to the other devices")
    return exchange


def _sum_parts(like: list[torch.Tensor], own: list[torch.Tensor], *, counts: Sequence[int]) -> list[torch.Tensor]:
    """Return the sum over all parts of each value, dense in the memory order of its `like`; all make one exchange.

    `own` are the values of this rank's first part, then those of the next one, each dense in that order. All values
    are of one type.
    """
    exchange = connection()
    totals = _like(like, own, counts=counts)
    in_order = [in_memory_order(value) for value in own]
    if len(like) == 1:
        exchange.sum_parts(in_order, in_memory_order(totals[0]), counts)
        return totals
    sizes = [value.numel() for value in like]
    parts = [torch.cat(in_order[start : start + len(like)]) for start in range(0, len(own), len(like))]
    bucket = like[0].new_empty(sum(sizes))
    exchange.sum_parts(parts, bucket, counts)
    for total, summed in zip(totals, torch.split(bucket, sizes), strict=True):
        in_memory_order(total).copy_(summed)
    return totals


def _all_reduce(values: list[torch.Tensor]) -> None:
    """Add up each value over all ranks, in place. Values are dense and of one type; several make one exchange."""
    exchange = connection()
    in_order = [in_memory_order(value) for value in values]
    if len(in_order) == 1:
        exchange.all_reduce(in_order[0])
        return
    bucket = torch.cat(in_order)
    exchange.all_reduce(bucket)
    for value, total in zip(in_order, torch.split(bucket, [value.numel() for value in in_order]), strict=True):
        value.copy_(total)


def in_memory_order(value: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense value in the order of its memory, which they share."""
    return value.as_strided((value.numel(),), (1,), value.storage_offset())


def _like(like: list[torch.Tensor], own: list[torch.Tensor], *, counts: Sequence[int]) -> list[torch.Tensor]:
    del own, counts
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in like]


_LIBRARY.impl("sum_parts", _sum_parts, "CompositeExplicitAutograd")
_LIBRARY.impl("all_reduce_", _all_reduce, "CompositeExplicitAutograd")
torch.library.register_fake("tensile::sum_parts", _like, lib=_LIBRARY)

sum_parts_ = torch.ops.tensile.sum_parts.default
all_reduce_ = torch.ops.tensile.all_reduce_.default
