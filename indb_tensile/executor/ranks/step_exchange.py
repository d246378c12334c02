"""Connects the steps that a rank runs to the other ranks."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns

import torch

from indb_tensile.executor.capture.exchange_operator import Exchange, connected
from indb_tensile.executor.capture.exchange_room import ExchangeRoom, is_small_pair
from indb_tensile.executor.capture.rank_share import parts_of
from indb_tensile.executor.ranks import owner_exchange, pair_exchange
from indb_tensile.executor.ranks.device_scratch import DeviceScratch
from indb_tensile.executor.ranks.exchange_lane import SPANS_KEPT, ExchangeLane
from indb_tensile.executor.ranks.part_exchange import PartExchange
from indb_tensile.executor.ranks.rank_connection import while_ranks_answer
from indb_tensile.executor.ranks.rank_group import RankGroup


@contextmanager
def exchanging(group: RankGroup, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[None]:
    """Let the steps that this thread runs exchange with those of all ranks of the group.

    A step waits for exchanges within contexts of `around`. Gloo exchanges host memory, so values of a GPU are copied
    there; NCCL exchanges them as they are. A step raises RankLostError if another rank has gone, or does not answer
    in time. No step can run after that. When the context ends, no exchange is under way.
    """
    lane = ExchangeLane(around)
    try:
        with connected(_LaneConnection(_GroupNetwork(group), group, lane)):
            yield
    finally:
        lane.close(group.abort)


@contextmanager
def measuring(ranks: int, rank: int = 0, *, on_device: bool = False) -> Iterator[None]:
    """Let the steps of this rank, which this thread runs, exchange with nobody, in the memory that an exchange takes.

    With `on_device`, ranks exchange the memory of their devices. Operators are measured before the job is admitted,
    when no other rank is there to answer, and each by itself. So the operator that waits for an exchange makes it.
    """
    with connected(_Measuring(_GroupNetwork(_NobodyElse(ranks, rank, sends_device_memory=on_device)))):
        yield


class _LaneConnection:
    """The exchanges of a step, on a lane beside its operators."""

    def __init__(self, network: "_GroupNetwork", group: RankGroup, lane: ExchangeLane) -> None:
        self._network = network
        self._group = group
        self._lane = lane

    def start(self, exchange: Exchange, place: torch.device) -> None:
        """Start this exchange."""
        self._lane.start(lambda: exchange(self._network), place)

    def finish(self, exchange: Exchange) -> None:
        """Wait until this exchange, the first that was started and not waited for, has ended."""
        del exchange  # the lane has the one that was started
        with while_ranks_answer(self._group):
            self._lane.finish()

    def run(self, exchange: Exchange, place: torch.device) -> None:
        """Make this exchange, after all that were started."""
        with while_ranks_answer(self._group):
            self._lane.run(lambda: exchange(self._network), place)

    def take_spans(self) -> tuple[tuple[int, int], ...]:
        """Return when each exchange since the last call began and ended."""
        return self._lane.take_spans()


class _Measuring:
    """Makes each exchange when it is waited for."""

    def __init__(self, network: "_GroupNetwork") -> None:
        self._network = network
        self._spans: deque[tuple[int, int]] = deque(maxlen=SPANS_KEPT)

    def start(self, exchange: Exchange, place: torch.device) -> None:
        """Do nothing: the exchange is measured with the operator that waits for it."""

    def finish(self, exchange: Exchange) -> None:
        """Make the exchange."""
        began_ns = perf_counter_ns()
        exchange(self._network)
        self._spans.append((began_ns, perf_counter_ns()))

    def run(self, exchange: Exchange, place: torch.device) -> None:
        """Make the exchange."""
        del place
        exchange(self._network)

    def take_spans(self) -> tuple[tuple[int, int], ...]:
        """Return when each exchange since the last call began and ended."""
        spans = tuple(self._spans)
        self._spans.clear()
        return spans


class _GroupNetwork:
    """What an exchange does with the other ranks of one process group."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._scratch = DeviceScratch()

    def sum_parts(
        self, own: Sequence[torch.Tensor], total: torch.Tensor, counts: Sequence[int], room: ExchangeRoom
    ) -> None:
        """Write the sum over all parts, added in the order of the parts, into `total`."""
        PartExchange(group=self._group, parts=parts_of(counts)).exact_sum(own, total, room)
        self._group.settle()

    def all_reduce(self, values: torch.Tensor, room: ExchangeRoom) -> None:
        """Add up the values of all ranks in the order of the library, in place."""
        sent = values if self._group.sends_device_memory else values.cpu()
        if is_small_pair(values.numel(), self._group.size()):
            pair_exchange.sum_of_both(self._group, sent, room)
        else:
            self._group.allreduce([sent]).wait()
        if sent is not values:
            values.copy_(sent)
        self._group.settle()

    def sum_at_owners(
        self,
        own: Sequence[Sequence[torch.Tensor]],
        total: torch.Tensor,
        counts: Sequence[int],
        lengths: Sequence[int],
        rank: int,
        room: ExchangeRoom,
    ) -> None:
        """Write the sum over all parts of the values that this rank owns into `total`."""
        owner_exchange.sum_at_owners(self._group, own, total, counts, lengths, rank, room)
        self._group.settle()

    def hand_out(self, values: Sequence[torch.Tensor], rank: int) -> None:
        """Send all ranks the values that this rank owns, and receive those of the others."""
        owner_exchange.hand_out(self._group, values, rank, self._scratch.take)
        self._group.settle()


class _Done(torch.distributed.Work):
    """An exchange that has ended."""

    def wait(self, timeout: object = None) -> bool:
        del timeout
        return True


class _NobodyElse:
    """A group whose other ranks send nothing: what is received from them is left as it is."""

    def __init__(self, ranks: int, rank: int, *, sends_device_memory: bool) -> None:
        self._ranks = ranks
        self._rank = rank
        self.sends_device_memory = sends_device_memory

    def size(self) -> int:
        return self._ranks

    def rank(self) -> int:
        return self._rank

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

    def settle(self) -> None:
        """Do nothing: nothing is under way."""

    def abort(self) -> None:
        """Do nothing: nothing is under way."""
