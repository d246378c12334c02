"""A group of ranks of which only one is there: it writes down what this one sends and receives."""

from typing import Any

import torch

from indb_tensile.executor.capture.exchange_operator import FINISHES, STARTS
from indb_tensile.executor.capture.owner_operators import hand_out_numbers
from indb_tensile.executor.capture.record import Ref
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.scheduler.timing.network_times import Collective, Transfer


class Ended(torch.distributed.Work):
    """An operation that has ended."""

    def wait(self, timeout: Any = None) -> bool:
        return True


class CountingGroup:
    """One rank of a group whose other ranks are not there. An all-reduce is a ring."""

    sends_device_memory = False

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._ranks = ranks
        self.transfers: list[Transfer] = []

    def size(self) -> int:
        return self._ranks

    def rank(self) -> int:
        return self._rank

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        received.zero_()
        others = [rank for rank in range(self._ranks) if rank != self._rank]
        self._note(
            Collective.ALL_TO_ALL,
            sum(sends[rank] for rank in others) * sent.itemsize,
            sum(receives[rank] for rank in others) * received.itemsize,
        )
        return Ended()

    def broadcast(self, tensor: torch.Tensor, root: int, /) -> torch.distributed.Work:
        raise AssertionError("no exchange of a step broadcasts")

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work:
        for tensor in tensors:
            size_bytes = 2 * -(-tensor.nbytes * (self._ranks - 1) // self._ranks)
            self._note(Collective.ALL_REDUCE, size_bytes, size_bytes)
        return Ended()

    def settle(self) -> None:
        """Do nothing: nothing is under way."""

    def abort(self) -> None:
        """Do nothing: nothing is under way."""

    def _note(self, collective: Collective, sent_bytes: int, received_bytes: int) -> None:
        if sent_bytes or received_bytes:
            self.transfers.append(
                Transfer(collective=collective, sent_bytes=sent_bytes, received_bytes=received_bytes)
            )


def make_exchanges(step: CapturedStep, rank: int, ranks: int) -> tuple[int, list[Transfer]]:
    """Make all exchanges of the step with a `CountingGroup`. Return their number, and the transfers in order."""
    made: dict[str, torch.Tensor] = {}

    def value(item: Any) -> Any:
        if isinstance(item, Ref):
            shape = step.values[item.name]
            return made.setdefault(item.name, torch.zeros(shape.shape, dtype=shape.dtype))
        return [value(part) for part in item] if isinstance(item, list | tuple) else item

    count, group = 0, CountingGroup(rank, ranks)
    with exchanging(group):
        for own in step.steps:
            call = own.kernel
            if call.target in STARTS | FINISHES | {hand_out_numbers}:
                call.target(*map(value, call.args), **{name: value(item) for name, item in call.kwargs.items()})
                count += call.target not in FINISHES
    return count, group.transfers
