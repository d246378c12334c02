"""Check the foretold time of sums at owners among several ranks by counting each message at both ends' links."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.executor.capture.exchange_room import ExchangeRoom, owner_elements, owner_lengths
from indb_tensile.executor.capture.owner_operators import start_sum_at_owners_
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.ranks.exchange_traffic import exchange_time, exchanges_of
from indb_tensile.executor.ranks.owner_exchange import sum_at_owners
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.timing.network_times import Collective, MeasuredTransfer, NetworkTimes
from indb_tensile.scheduler.timing.simulate_ranks import simulate_ranks
from tests.executor.ranks.counting_group import CountingGroup, Ended
from tests.executor.ranks.test_exchange_traffic import capture
from tests.scheduler.timing.test_simulate_ranks import rank_of

ITEM_BYTES = 4
# One byte takes a nanosecond on each link, in both directions at once, and a message without bytes takes none.
WIRE = NetworkTimes(
    measured=tuple(
        MeasuredTransfer(collective=collective, size_bytes=size_bytes, time=ExchangeTime.free(size_bytes))
        for collective in (Collective.ALL_TO_ALL, Collective.ALL_REDUCE)
        for size_bytes in (1, 1 << 20)
    )
)


class LinkGroup(CountingGroup):
    """One rank of a group, which notes what it sends to each other rank in each operation, in bytes."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)
        self.messages: list[list[int]] = []

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        assert (received.numel(), sent.numel()) == (sum(receives), sum(sends))
        self.messages.append([count * sent.itemsize for count in sends])
        return Ended()


def busiest_links_ns(counts: Sequence[int], sizes: Sequence[int], owners: Sequence[int]) -> int:
    """Make the exchange on each rank. Return the time of all operations, one after another on the busiest link."""
    ranks, lengths = len(counts), owner_lengths(sizes, owners, len(counts))
    groups = [LinkGroup(rank, ranks) for rank in range(ranks)]
    for rank, group in enumerate(groups):
        own = [[torch.zeros(length) for length in lengths] for _ in range(counts[rank])]
        elements = owner_elements(sizes, owners, counts, counts[rank], rank)
        room = ExchangeRoom(torch.zeros(elements * ITEM_BYTES, dtype=torch.uint8), torch.float32)
        sum_at_owners(group, own, torch.zeros(lengths[rank]), counts, lengths, rank, room)
    time_ns = 0
    for sends in zip(*(group.messages for group in groups), strict=True):  # of one operation, by sender
        others = [[0 if end == start else sent for end, sent in enumerate(row)] for start, row in enumerate(sends)]
        links = [*(sum(row) for row in others), *(sum(column) for column in zip(*others, strict=True))]
        time_ns += max(links)
    return time_ns


@cache
def _owners_exchange() -> tuple[CapturedStep, Call]:
    """Return a step of three ranks, and its first exchange of sums that go to their owners."""
    step = capture(RankShare(rank=0, ranks=3, divides_state=True), width=8)
    return step, next(call for call in exchanges_of(step) if call.target is start_sum_at_owners_)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Draw the parts of each rank, and the size and the owner of each value. The first ranks have the most parts."""
    ranks = draw(st.integers(3, 5))
    parts = draw(st.integers(1, 2 * ranks))
    counts = [len(range(rank, parts, ranks)) for rank in range(ranks)]
    sizes = draw(st.lists(st.integers(1, 300_000), min_size=1, max_size=5))
    return counts, sizes, [draw(st.integers(0, ranks - 1)) for _ in sizes]


# The first piece is longest where rank 1 receives it, which owns little, and the others where rank 0 sends them.
@example(exchange=([3, 1, 1], [60_000, 400_000, 350_000], [1, 0, 2]))
@given(exchange=exchanges())
def test_sum_at_owners_takes_as_long_as_the_busiest_link_needs_for_each_piece(
    exchange: tuple[list[int], list[int], list[int]],
) -> None:
    counts, sizes, owners = exchange
    step, call = _owners_exchange()
    call = replace(call, kwargs=call.kwargs | {"counts": counts, "sizes": sizes, "owners": owners})
    expected_ns = busiest_links_ns(counts, sizes, owners)
    shares = [RankShare(rank=rank, ranks=len(counts), divides_state=True) for rank in range(len(counts))]
    times = [exchange_time(step, call, share, WIRE) for share in shares]
    assert times == [ExchangeTime.free(expected_ns)] * len(counts)
    # Operators of 100 ns: one before the exchange starts, the one that starts it, and one beside it.
    ranks = [replace(rank_of((100, 100, 100)), exchanges=(time,)) for time in times]
    iterations_ns = [own.forecast.iteration_ns for own in simulate_ranks(ranks)]
    assert iterations_ns == [200 + max(100, expected_ns)] * len(counts)
