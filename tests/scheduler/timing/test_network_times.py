"""Check what is foretold of exchanges from measured transfers, for any measurements."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.link import CopyLoss
from indb_tensile.scheduler.timing.network_times import (
    Collective,
    GangNetwork,
    MeasuredTransfer,
    NetworkTimes,
    Transfer,
)

SIZES = st.integers(1, 1 << 40)
DURATIONS_NS = st.integers(1, 1 << 40)


def transfer(collective: Collective, sent_bytes: int, received_bytes: int | None = None) -> Transfer:
    """Return a transfer that sends as much as it receives, if nothing else is said."""
    received_bytes = sent_bytes if received_bytes is None else received_bytes
    return Transfer(collective=collective, sent_bytes=sent_bytes, received_bytes=received_bytes)


def measured(collective: Collective, points: dict[int, int]) -> tuple[MeasuredTransfer, ...]:
    return tuple(
        MeasuredTransfer(collective=collective, size_bytes=size_bytes, time=ExchangeTime.free(time_ns))
        for size_bytes, time_ns in points.items()
    )


@st.composite
def networks(draw: st.DrawFn) -> NetworkTimes:
    """Draw measurements, of which some may have been disturbed."""
    points = st.dictionaries(SIZES, DURATIONS_NS, min_size=1, max_size=5)
    return NetworkTimes(measured=tuple(row for own in Collective for row in measured(own, draw(points))))


transfers = st.builds(transfer, st.sampled_from(Collective), SIZES, SIZES)


def test_copies_cost_operators_what_was_measured_for_the_smallest_and_the_largest() -> None:
    def copied(size_bytes: int, lost_ns: int) -> MeasuredTransfer:
        time = ExchangeTime(alone_ns=10_000, beside_ns=10_000, lost_ns=lost_ns)
        return MeasuredTransfer(collective=Collective.COPY, size_bytes=size_bytes, time=time)

    exchanges = tuple(row for own in (Collective.ALL_TO_ALL, Collective.ALL_REDUCE) for row in measured(own, {1: 1}))
    copies = copied(3 << 20, 9_000), copied(1 << 20, 4_000)
    loss = NetworkTimes(measured=(*exchanges, *copies)).copy_loss
    assert loss == CopyLoss(per_copy_ns=1_500, per_mib_ns=2_500)
    assert [loss.ns(copy.size_bytes) for copy in copies] == [9_000, 4_000]
    disturbed = NetworkTimes(measured=(*exchanges, copied(1 << 20, 5_000), copied(2 << 20, 4_000)))
    assert disturbed.copy_loss == CopyLoss(per_copy_ns=5_000)
    assert NetworkTimes(measured=exchanges).copy_loss == CopyLoss()


@given(times=networks(), several=st.lists(transfers, max_size=5), further=transfers)
def test_transfers_take_their_times_one_after_another_and_each_takes_time(
    times: NetworkTimes, several: list[Transfer], further: Transfer
) -> None:
    assert (
        times.foretell([*several, further]).alone_ns
        == times.foretell(several).alone_ns + times.foretell([further]).alone_ns
    )
    assert times.foretell([further]).alone_ns > 0
    assert times.foretell([]).alone_ns == 0


@given(times=networks(), own=transfers, factor=st.integers(1, 1000))
def test_larger_transfer_never_takes_less_time(times: NetworkTimes, own: Transfer, factor: int) -> None:
    larger = transfer(own.collective, own.sent_bytes * factor, own.received_bytes * factor)
    assert times.foretell([larger]).alone_ns >= times.foretell([own]).alone_ns


@given(times=networks(), own=transfers, less_bytes=SIZES)
def test_transfer_takes_no_longer_with_less_in_one_direction(
    times: NetworkTimes, own: Transfer, less_bytes: int
) -> None:
    both = transfer(own.collective, own.size_bytes)
    less = transfer(own.collective, own.size_bytes, min(less_bytes, own.size_bytes))
    one_way = transfer(own.collective, own.size_bytes, 0)
    foretold = [times.foretell([each]).alone_ns for each in (one_way, less, both)]
    assert foretold == sorted(foretold)
    assert own.size_bytes in (own.sent_bytes, own.received_bytes)
    if own.collective is Collective.ALL_TO_ALL:
        alone = times.foretell([transfer(Collective.ONE_WAY, own.size_bytes)]).alone_ns
        assert foretold[0] == min(alone, foretold[2])


def test_one_way_takes_the_time_that_was_measured_one_way_and_the_other_direction_adds_its_share() -> None:
    rows = measured(Collective.ALL_TO_ALL, {100: 1_000, 200: 2_000}) + measured(Collective.ALL_REDUCE, {1: 7})
    network = NetworkTimes(measured=(*rows, *measured(Collective.ONE_WAY, {100: 600, 200: 1_200})))
    sizes = [(200, 0), (0, 200), (200, 50), (50, 200), (200, 200), (150, 0)]
    foretold = [network.foretell([transfer(Collective.ALL_TO_ALL, *both)]).alone_ns for both in sizes]
    assert foretold == [1_200, 1_200, 1_400, 1_400, 2_000, 900]
    unknown = NetworkTimes(measured=rows)  # by an earlier version, within the last day
    assert unknown.foretell([transfer(Collective.ALL_TO_ALL, 200, 0)]).alone_ns == 2_000


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
    others = [row for other in Collective if other is not collective for row in measured(other, {1: 1})]
    rows = [*measured(collective, points), *others]
    order.shuffle(rows)
    times = NetworkTimes(measured=tuple(rows))
    assert {size: times.foretell([transfer(collective, size)]).alone_ns for size in points} == points


def test_time_is_interpolated_and_beyond_the_measured_sizes_follows_from_message_and_rate() -> None:
    rows = measured(Collective.ALL_TO_ALL, {100: 1_000, 300: 3_000, 200: 1_500})
    times = NetworkTimes(measured=(*rows, *measured(Collective.ALL_REDUCE, {1: 7})))
    foretold = {size: times.foretell([transfer(Collective.ALL_TO_ALL, size)]).alone_ns for size in (1, 150, 250, 600)}
    assert foretold == {1: 1_000, 150: 1_250, 250: 2_250, 600: 6_000}
    assert times.foretell([transfer(Collective.ALL_REDUCE, 3)]).alone_ns == 21


def test_network_needs_measured_times_of_every_operation() -> None:
    with pytest.raises(InvariantError, match="the network's time of all_reduce was not measured"):
        NetworkTimes(measured=measured(Collective.ALL_TO_ALL, {1: 1}))
    with pytest.raises(InvariantError, match="a transfer of 1 bytes was not measured"):
        measured(Collective.ALL_REDUCE, {1: 0})


def test_stored_time_of_an_exchange_is_that_of_one_operator_between_these_hosts() -> None:
    times = NetworkTimes(measured=tuple(row for own in Collective for row in measured(own, {1: 1})))
    gangs = [GangNetwork(hosts=hosts, times=times) for hosts in (("a", "a"), ("a", "b"), ("a", "a", "b"))]
    gangs += [replace(gang, by_nccl=True) for gang in gangs]
    assert len({gang.signature_of(signature) for gang in gangs for signature in ("x", "y")}) == 12


def busy(alone_ns: int, beside_ns: int, lost_ns: int) -> ExchangeTime:
    return ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=lost_ns)


def test_transfer_costs_beside_operators_what_a_line_through_all_sizes_says() -> None:
    """Beside operators it takes 2000, 3500 and 5000 ns longer, or 1000 + 10 a byte; they lose 500 + 2 a byte."""
    times = {100: busy(1_000, 3_000, 700), 400: busy(2_000, 7_000, 1_300), 250: busy(1_500, 5_000, 1_000)}
    network = NetworkTimes(measured=(*_rows(Collective.ALL_TO_ALL, times), *measured(Collective.ALL_REDUCE, {1: 7})))
    sizes = (1, 100, 175, 250, 400, 800)
    foretold = {size: network.foretell([transfer(Collective.ALL_TO_ALL, size)]) for size in sizes}
    assert foretold == {
        1: busy(1_000, 2_010, 502),
        100: busy(1_000, 3_000, 700),
        175: busy(1_250, 4_000, 850),
        250: busy(1_500, 5_000, 1_000),
        400: busy(2_000, 7_000, 1_300),
        800: busy(4_000, 13_000, 2_100),
    }
    pair = [transfer(Collective.ALL_TO_ALL, 1), transfer(Collective.ALL_TO_ALL, 400)]
    assert network.foretell(pair) == busy(3_000, 9_010, 1_802)


@pytest.mark.parametrize(
    ("more_ns", "expected_ns"),
    [((400, 100, 100), (200, 200, 200)), ((0, 0, 300), (64, 129, 193)), ((0, 0, 0), (0, 0, 0))],
    ids=["never less for more bytes", "never below 0", "nothing"],
)
def test_line_neither_falls_nor_is_negative(more_ns: tuple[int, ...], expected_ns: tuple[int, ...]) -> None:
    times = {size: busy(10, 10 + ns, 0) for size, ns in zip((100, 200, 300), more_ns, strict=True)}
    network = NetworkTimes(measured=(*_rows(Collective.ALL_TO_ALL, times), *measured(Collective.ALL_REDUCE, {1: 7})))
    foretold = [network.foretell([transfer(Collective.ALL_TO_ALL, size)]) for size in times]
    assert [time.beside_ns - time.alone_ns for time in foretold] == pytest.approx(expected_ns, abs=1)


def _rows(collective: Collective, times: dict[int, ExchangeTime]) -> tuple[MeasuredTransfer, ...]:
    return tuple(
        MeasuredTransfer(collective=collective, size_bytes=size_bytes, time=time)
        for size_bytes, time in times.items()
    )


@given(times=networks(), several=st.lists(transfers, max_size=5), work_ns=DURATIONS_NS)
def test_transfers_that_cost_operators_nothing_leave_work_beside_them_free_too(
    times: NetworkTimes, several: list[Transfer], work_ns: int
) -> None:
    alone_ns = times.foretell(several).alone_ns
    assert times.foretell(several) == ExchangeTime.free(alone_ns)
    assert times.foretell(several).with_work(work_ns) == ExchangeTime.free(alone_ns + work_ns)


@pytest.mark.parametrize(("lost_ns", "work_lost_ns"), [(0, 0), (50, 40), (100, 80), (250, 80)])
def test_work_of_an_exchange_takes_the_processor_as_its_transfers_do_but_no_longer_than_it_lasts(
    lost_ns: int, work_lost_ns: int
) -> None:
    with_work = busy(100, 300, lost_ns).with_work(80)
    assert with_work == busy(180, 380 + work_lost_ns, lost_ns + work_lost_ns)


@pytest.mark.parametrize("parts", [(-1, 2, 0), (3, 2, 0), (1, 2, 3), (1, 2, -1)])
def test_exchange_is_never_faster_beside_operators_and_they_lose_at_most_its_time(
    parts: tuple[int, int, int],
) -> None:
    with pytest.raises(InvariantError, match="ns beside operators, which lose"):
        busy(*parts)
