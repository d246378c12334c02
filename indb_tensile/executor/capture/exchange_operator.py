"""Defines the operators by which a step on one of several devices exchanges with the steps of the other devices.

Each exchange has two operators. The first starts it, as soon as its values are there, and the second waits until it
has ended. In between the exchange runs beside the operators of the step, on the network's lane. Both operators have
the values of the exchange and its room (exchange_room.py) among their arguments, and are said to change all of them:
so nothing else accesses them in between, and the step graph tells which tensors stay where they are meanwhile.

`tensile::start_sum_parts_` adds up what all parts of a batch have computed, in the order of the parts, and
`tensile::start_all_reduce_` one value of each device, in the order of the library. The operators are part of the
captured step. How the exchange is made depends on the process and is no part of the step: `connected` says it for a
thread.

The operators are marked as drawing random numbers, although they draw none. Plans keep such operators in the order of
the capture and never run one again, and that is what all ranks need: each must make the same exchanges in the same
order, whatever its own plan is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.exchange_room import ExchangeRoom


class RankNetwork(Protocol):
    """What an exchange does with the other ranks."""

    def sum_parts(
        self, own: Sequence[torch.Tensor], total: torch.Tensor, counts: Sequence[int], room: ExchangeRoom
    ) -> None:
        """Write the sum over all parts into `total` (elements), which may be the first of `own`.

        `own` are the values of this rank's parts (elements each), and `counts` has the number of parts of each rank.
        """
        ...

    def all_reduce(self, values: torch.Tensor, room: ExchangeRoom) -> None:
        """Add up the values (elements) of all ranks, in place, in any order."""
        ...

    def sum_at_owners(
        self,
        own: Sequence[Sequence[torch.Tensor]],
        total: torch.Tensor,
        counts: Sequence[int],
        lengths: Sequence[int],
        rank: int,
        room: ExchangeRoom,
    ) -> None:
        """Write the sum over all parts of the values that this rank owns into `total` (elements).

        `own` are the values of each of this rank's parts, for each owner (elements). `counts` is as above, and
        `lengths` has the number of elements that each rank owns. `total` may be the first part's values of this rank.
        """
        ...

    def hand_out(self, values: Sequence[torch.Tensor], rank: int) -> None:
        """Send all ranks the values that this rank owns, `values[rank]` (elements), and receive theirs."""
        ...


Exchange = Callable[[RankNetwork], None]


class StepConnection(Protocol):
    """Makes the exchanges of the steps that one thread runs, in the order in which they are started."""

    def start(self, exchange: Exchange, place: torch.device) -> None:
        """Start this exchange of values on the device `place`, and return."""
        ...

    def finish(self, exchange: Exchange) -> None:
        """Wait until this exchange has ended: the first that was started and not waited for."""
        ...

    def run(self, exchange: Exchange, place: torch.device) -> None:
        """Make this exchange after those that were started before it, and wait until it has ended."""
        ...

    def take_spans(self) -> tuple[tuple[int, int], ...]:
        """Return when each exchange that was started and waited for since the last call began and ended, in order."""
        ...


_CONNECTION: ContextVar[StepConnection | None] = ContextVar("step_connection", default=None)
_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operators exist as long as this object
_TAGS = (torch.Tag.nondeterministic_seeded,)
_SUM_PARTS = "(Tensor(a!)[] values, Tensor(b!)[] others, Tensor(c!) room, *, int[] counts, int own) -> ()"
_ALL_REDUCE = "(Tensor(a!)[] values, Tensor(b!) room) -> ()"


@contextmanager
def connected(connection: StepConnection) -> Iterator[None]:
    """Let the steps that this thread runs exchange by this object."""
    token = _CONNECTION.set(connection)
    try:
        yield
    finally:
        _CONNECTION.reset(token)


def connection() -> StepConnection:
    """Return what this thread's steps exchange by."""
    own = _CONNECTION.get()
    if own is None:
        raise InvariantError("a step for several devices runs without a connection to the other devices")
    return own


def last_spans(count: int) -> tuple[tuple[int, int], ...]:
    """Return when each of the last so many exchanges of this thread's steps began and ended, in order."""
    own = _CONNECTION.get()
    spans = () if own is None else own.take_spans()
    return spans[len(spans) - count :] if count else ()


def _sum_parts(
    values: list[torch.Tensor], others: list[torch.Tensor], room: torch.Tensor, *, counts: Sequence[int], own: int
) -> Exchange:
    """Return the exchange that writes the sum over all parts of each value into it.

    `values` are those of this rank's first part, if it has any, and `others` those of its other parts, one after the
    other. `own` is the number of its parts. All are dense and of one type, in one memory order for each value.
    """
    count = len(values)
    parts = [values, *(others[start : start + count] for start in range(0, len(others), count))][:own]

    def exchange(network: RankNetwork) -> None:
        memory = ExchangeRoom(room, values[0].dtype)
        if count == 1:
            in_order = [in_memory_order(value) for (value,) in parts]
            network.sum_parts(in_order, in_memory_order(values[0]), counts, memory)
            return
        elements = sum(value.numel() for value in values)
        packed = memory.take(max(1, own) * elements).view(-1, elements)
        for part, row in zip(parts, packed, strict=False):
            torch.cat([in_memory_order(value) for value in part], out=row)
        network.sum_parts([*packed[:own]], packed[0], counts, memory)
        spread(packed[0], values)

    return exchange


def _all_reduce(values: list[torch.Tensor], room: torch.Tensor) -> Exchange:
    """Return the exchange that adds up each value over all ranks, in place. Values are dense and of one type."""

    def exchange(network: RankNetwork) -> None:
        memory = ExchangeRoom(room, values[0].dtype)
        if len(values) == 1:
            network.all_reduce(in_memory_order(values[0]), memory)
            return
        bucket = memory.take(sum(value.numel() for value in values))
        torch.cat([in_memory_order(value) for value in values], out=bucket)
        network.all_reduce(bucket, memory)
        spread(bucket, values)

    return exchange


def in_memory_order(value: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense value in the order of its memory, which they share."""
    return value.as_strided((value.numel(),), (1,), value.storage_offset())


def spread(joined: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
    """Copy the elements of `joined`, one after the other, into these values, which are dense."""
    for value, elements in zip(into, torch.split(joined, [value.numel() for value in into]), strict=True):
        in_memory_order(value).copy_(elements)


def define_exchange(name: str, schema: str, make: Callable[..., Exchange]) -> tuple[Any, Any]:
    """Define and return the operators that start and finish an exchange, which `make` makes of their arguments."""

    def start(values: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        room = args[-1]
        connection().start(make(values, *args, **kwargs), room.device)

    def finish(values: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        connection().finish(make(values, *args, **kwargs))

    defined = []
    for verb, run in (("start", start), ("finish", finish)):
        _LIBRARY.define(f"{verb}_{name}{schema}", tags=_TAGS)
        _LIBRARY.impl(f"{verb}_{name}", run, "CompositeExplicitAutograd")
        defined.append(getattr(torch.ops.tensile, f"{verb}_{name}").default)
    STARTS.add(defined[0])
    FINISHES.add(defined[1])
    return defined[0], defined[1]


STARTS: set[Any] = set()  # the operators that start an exchange
FINISHES: set[Any] = set()  # and those that wait for its end, which come in the same order
start_sum_parts_, finish_sum_parts_ = define_exchange("sum_parts_", _SUM_PARTS, _sum_parts)
start_all_reduce_, finish_all_reduce_ = define_exchange("all_reduce_", _ALL_REDUCE, _all_reduce)
