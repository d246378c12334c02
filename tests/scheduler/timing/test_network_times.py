"""Check what is foretold of exchanges from measured transfers, for any measurements."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.timing.network_times import (
    Collective,
    GangNetwork,
    MeasuredTransfer,
    NetworkTimes,
    Transfer,
)

SIZES = st.integers(1, 1 << 40)
DURATIONS_NS = st.integers(1, 1 << 40)


def transfer(collective: Collective, sent_bytes: int, received_bytes: int = 0) -> Transfer:
    return Transfer(collective=collective, sent_bytes=sent_bytes, received_bytes=received_bytes)


def measured(collective: Collective, points: dict[int, int]) -> tuple[MeasuredTransfer, ...]:
    return tuple(
        MeasuredTransfer(collective=collective, size_bytes=size_bytes, time_ns=time_ns)
        for size_bytes, time_ns in points.items()
    )


@st.composite
def networks(draw: st.DrawFn) -> NetworkTimes:
    """Draw measurements, of which some may have been disturbed."""
    points = st.dictionaries(SIZES, DURATIONS_NS, min_size=1, max_size=5)
    return NetworkTimes(measured=tuple(row for own in Collective for row in measured(own, draw(points))))


transfers = st.builds(transfer, st.sampled_from(Collective), SIZES, SIZES)


@given(times=networks(), several=st.lists(transfers, max_size=5), further=transfers)
def test_transfers_take_their_times_one_after_another_and_each_takes_time(
    times: NetworkTimes, several: list[Transfer], further: Transfer
) -> None:
    assert times.foretell_ns([*several, further]) == times.foretell_ns(several) + times.foretell_ns([further])
    assert times.foretell_ns([further]) > 0
    assert times.foretell_ns([]) == 0


@given(times=networks(), own=transfers, more_bytes=SIZES)
def test_larger_transfer_never_takes_less_time(times: NetworkTimes, own: Transfer, more_bytes: int) -> None:
    larger = transfer(own.collective, own.sent_bytes, own.received_bytes + more_bytes)
    assert times.foretell_ns([larger]) >= times.foretell_ns([own])


@given(times=networks(), own=transfers)
def test_only_the_busier_direction_counts(times: NetworkTimes, own: Transfer) -> None:
    one_way = transfer(own.collective, own.size_bytes)
    assert times.foretell_ns([own]) == times.foretell_ns([one_way])
    assert own.size_bytes in (own.sent_bytes, own.received_bytes)


@given(
    collective=st.sampled_from(Collective),
    sizes=st.lists(SIZES, min_size=1, max_size=5, unique=True),
    durations_ns=st.lists(DURATIONS_NS, min_size=5, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_measured_sizes_have_their_measured_times_in_whatever_order_they_were_measured(
    collective: Collective, sizes: list[int], durations_ns: list[int], order: Random
) -> None:
    points = dict(zip(sorted(sizes), sorted(durations_ns), strict=False))
    (other,) = set(Collective) - {collective}
    rows = [*measured(collective, points), *measured(other, {1: 1})]
    order.shuffle(rows)
    times = NetworkTimes(measured=tuple(rows))
    assert {size: times.foretell_ns([transfer(collective, size)]) for size in points} == points


def test_time_is_interpolated_and_beyond_the_measured_sizes_follows_from_message_and_rate() -> None:
    rows = measured(Collective.ALL_TO_ALL, {100: 1_000, 300: 3_000, 200: 1_500})
    times = NetworkTimes(measured=(*rows, *measured(Collective.ALL_REDUCE, {1: 7})))
    foretold = {size: times.foretell_ns([transfer(Collective.ALL_TO_ALL, size)]) for size in (1, 150, 250, 600)}
    assert foretold == {1: 1_000, 150: 1_250, 250: 2_250, 600: 6_000}
    assert times.foretell_ns([transfer(Collective.ALL_REDUCE, 3)]) == 21


def test_network_needs_measured_times_of_every_operation() -> None:
    with pytest.raises(InvariantError, match="the network's time of all_reduce was not measured"):
        NetworkTimes(measured=measured(Collective.ALL_TO_ALL, {1: 1}))
    with pytest.raises(InvariantError, match="a transfer of 1 bytes in 0 ns was not measured"):
        measured(Collective.ALL_REDUCE, {1: 0})


def test_stored_time_of_an_exchange_is_that_of_one_operator_between_these_hosts() -> None:
    times = NetworkTimes(measured=tuple(row for own in Collective for row in measured(own, {1: 1})))
    gangs = [GangNetwork(hosts=hosts, times=times) for hosts in (("a", "a"), ("a", "b"), ("a", "a", "b"))]
    gangs += [replace(gang, by_nccl=True) for gang in gangs]
    assert len({gang.signature_of(signature) for gang in gangs for signature in ("x", "y")}) == 12
