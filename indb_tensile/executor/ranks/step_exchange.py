"""Connects the steps that a rank runs to the other ranks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from indb_tensile.executor.capture.exchange_operator import connected
from indb_tensile.executor.capture.rank_share import parts_of
from indb_tensile.executor.ranks import owner_exchange
from indb_tensile.executor.ranks.part_exchange import PartExchange, RankGroup
from indb_tensile.executor.ranks.rank_connection import while_ranks_answer


@contextmanager
def exchanging(group: RankGroup, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[None]:
    """Let the steps that this thread runs exchange with those of all ranks of the group.

    Each exchange runs in a context of `around`. Gloo exchanges host memory, so values of a GPU are copied there.
    A step raises RankLostError if another rank has gone, or does not answer in time. No step can run after that.
    """
    with connected(_GroupExchange(group, around)):
        yield


@contextmanager
def measuring(ranks: int) -> Iterator[None]:
    """Let this thread's steps exchange with nobody, in the memory that an exchange with the others takes.

    Operators are measured before the job is admitted, when no other rank is there to answer.
    """
    with exchanging(_NobodyElse(ranks)):
        yield


class _GroupExchange:
    """The exchanges of a step over one process group."""

    def __init__(self, group: RankGroup, around: Callable[[], AbstractContextManager[None]]) -> None:
        self._group = group
        self._around = around

    def sum_parts(self, own: Sequence[torch.Tensor], total: torch.Tensor, counts: Sequence[int]) -> None:
        """Write the sum over all parts, added in the order of the parts, into `total`."""
        with self._exchange():
            PartExchange(group=self._group, parts=parts_of(counts)).exact_sum(own, total)

    def all_reduce(self, values: torch.Tensor) -> None:
        """Add up the values of all ranks in the order of the library, in place."""
        with self._exchange():
            on_host = values.cpu()
            self._group.allreduce([on_host]).wait()
            if on_host is not values:
                values.copy_(on_host)

    def sum_at_owners(
        self,
        own: Sequence[Sequence[torch.Tensor]],
        total: torch.Tensor,
        counts: Sequence[int],
        lengths: Sequence[int],
        rank: int,
    ) -> None:
        """Write the sum over all parts of the values that this rank owns into `total`."""
        with self._exchange():
            owner_exchange.sum_at_owners(self._group, own, total, counts, lengths, rank)

    def hand_out(self, values: Sequence[torch.Tensor], rank: int) -> None:
        """Send all ranks the values that this rank owns, and receive those of the others."""
        with self._exchange():
            owner_exchange.hand_out(self._group, values, rank)

    def _exchange(self) -> AbstractContextManager[None]:
        return while_ranks_answer(self._group, self._around)


class _Done(torch.distributed.Work):
    """An exchange that has ended."""

    def wait(self, timeout: object = None) -> bool:
        del timeout
        return True


class _NobodyElse:
    """A group whose other ranks send nothing: what is received from them is left as it is."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def size(self) -> int:
        return self._ranks

    def rank(self) -> int:
        return 0

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        del sent, receives, sends
        received.zero_()
        return _Done()

    def broadcast(self, tensor: torch.Tensor, root: int, /) -> torch.distributed.Work:
        del tensor, root
        return _Done()

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work:
        del tensors
        return _Done()
