"""What a rehearsal has shown is what the simulator then foretells."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.timing.rehearsed_exchanges import LEAST, MOST, Rehearsal, exchange_stretch
from indb_tensile.scheduler.timing.simulate_ranks import RankRun, simulate_ranks
from tests.scheduler.timing.test_simulate_ranks import rank_of

_SLOWEST_NS = 10_000


def iteration_ns(ranks: list[RankRun], multiple: float) -> int:
    stretched = [replace(r, exchanges=tuple(time.stretched(multiple) for time in r.exchanges)) for r in ranks]
    return max(own.forecast.iteration_ns for own in simulate_ranks(stretched))


@st.composite
def gangs(draw: st.DrawFn) -> list[RankRun]:
    alone_ns = draw(st.integers(1, _SLOWEST_NS))
    beside_ns = alone_ns + draw(st.integers(0, _SLOWEST_NS))
    time = ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=draw(st.integers(0, beside_ns // 2)))
    latency = st.integers(1, _SLOWEST_NS)
    return [
        replace(rank_of((draw(latency), draw(latency), draw(latency))), exchanges=(time,))
        for _ in range(draw(st.integers(2, 3)))
    ]


@given(ranks=gangs(), multiple=st.floats(LEAST, MOST))
def test_exchanges_add_to_an_iteration_what_they_have_added_in_the_rehearsal(
    ranks: list[RankRun], multiple: float
) -> None:
    added_ns = iteration_ns(ranks, multiple) - iteration_ns(ranks, 0.0)
    stretch = exchange_stretch(ranks, Rehearsal(added_ns=added_ns, error_ns=0))
    assert LEAST <= stretch <= MOST
    steps_ns = 2 + MOST / 1000 * 4 * _SLOWEST_NS  # between two multiples that are tried last
    assert iteration_ns(ranks, stretch) - iteration_ns(ranks, 0.0) == pytest.approx(added_ns, abs=steps_ns)


@pytest.mark.parametrize(("added_ns", "stretch"), [(-500, LEAST), (0, LEAST), (200, 1.5), (10**9, MOST)])
def test_multiple_is_bounded_and_hidden_time_is_not_counted(added_ns: int, stretch: float) -> None:
    """The exchange of 200 ns runs beside an operator of 100 ns, so of 300 ns it adds 200."""
    rehearsal = Rehearsal(added_ns=added_ns, error_ns=0)
    assert exchange_stretch([rank_of((100, 100, 100))] * 2, rehearsal) == pytest.approx(stretch, abs=0.01)


@pytest.mark.parametrize(("error_ns", "stretch"), [(0, 1.5), (50, 1.375), (99, 1.01), (100, 1.0), (10**9, 1.0)])
def test_difference_counts_by_how_far_it_is_above_its_error(error_ns: int, stretch: float) -> None:
    """The exchange of 200 ns is foretold to add 100, and adds 200."""
    rehearsal = Rehearsal(added_ns=200, error_ns=error_ns)
    assert exchange_stretch([rank_of((100, 100, 100))] * 2, rehearsal) == pytest.approx(stretch, abs=0.01)


@given(ranks=gangs(), added_ns=st.integers(-_SLOWEST_NS, 9 * _SLOWEST_NS), error_ns=st.integers(0, 9 * _SLOWEST_NS))
def test_iteration_is_foretold_between_what_it_was_without_a_rehearsal_and_what_that_has_shown(
    ranks: list[RankRun], added_ns: int, error_ns: int
) -> None:
    stretch = exchange_stretch(ranks, Rehearsal(added_ns=added_ns, error_ns=error_ns))
    before_ns, shown_ns = iteration_ns(ranks, 1.0), iteration_ns(ranks, 0.0) + added_ns
    low_ns, high_ns = sorted((before_ns, max(shown_ns, iteration_ns(ranks, LEAST))))
    assert low_ns - 50 <= iteration_ns(ranks, stretch) <= high_ns + 50


@given(
    alone_ns=st.integers(0, 1 << 40),
    more_ns=st.integers(0, 1 << 40),
    lost_ns=st.integers(0, 1 << 40),
    multiple=st.floats(0, 8),
)
def test_multiple_of_a_time_has_each_part_that_many_times(
    alone_ns: int, more_ns: int, lost_ns: int, multiple: float
) -> None:
    time = ExchangeTime(alone_ns=alone_ns, beside_ns=alone_ns + more_ns, lost_ns=min(lost_ns, alone_ns + more_ns))
    stretched = time.stretched(multiple)
    assert stretched == ExchangeTime(
        alone_ns=round(multiple * time.alone_ns),
        beside_ns=round(multiple * time.beside_ns),
        lost_ns=round(multiple * time.lost_ns),
    )
    assert time.stretched(1.0) == time
