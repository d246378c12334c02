"""The foretold times of sets: memory is divided, contention slows operators, lanes are shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.contention import Contention, Points, of_cores
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice, members

from .job_demands import MIB, set_forecasts

_WHOLE = TradeOff(peak_bytes=100 * MIB, iteration_ns=1000, compute_ns=900)
_HALF = TradeOff(peak_bytes=50 * MIB, iteration_ns=1400, compute_ns=900, stall_ns=400, out_ns=800, in_ns=600)


@given(forecasts=set_forecasts(5))
def test_a_set_takes_as_long_as_its_jobs_alone_or_longer(forecasts: SetForecasts) -> None:
    for jobs in range(1, 1 << len(forecasts.demands)):
        times = forecasts.step_ns(jobs)
        if times is not None:
            assert all(ns >= forecasts.demands[k].alone_ns for k, ns in zip(members(jobs), times, strict=True))
            assert 0 < forecasts.throughput(jobs) <= jobs.bit_count()


def test_longer_operators_hide_waits_for_copies() -> None:
    assert [_HALF.beside_others_ns(slowdown) for slowdown in (1.0, 1.2, 2.0)] == [1400, 1400, 1900]


def test_memory_is_taken_from_the_job_that_it_slows_least() -> None:
    steep = TradeOff(peak_bytes=50 * MIB, iteration_ns=3000, compute_ns=900, stall_ns=2000)
    demands = [_demand(1, _WHOLE, steep), _demand(2, _WHOLE, _HALF)]
    assert _forecasts(demands, budget=150).step_ns(0b11) == (1000, 1400)


def test_jobs_that_copy_share_the_lanes() -> None:
    demands = [_demand(1, _WHOLE, _HALF), _demand(2, _WHOLE, _HALF)]
    both = 1600 / 1400  # of the lane to the host
    assert _forecasts(demands, budget=100).step_ns(0b11) == pytest.approx((1400 * both, 1400 * both))


def test_a_set_that_does_not_fit_has_no_times() -> None:
    assert _forecasts([_demand(1, _WHOLE), _demand(2, _WHOLE)], budget=150).step_ns(0b11) is None


def test_known_times_replace_the_estimate() -> None:
    demands = [_demand(1, _WHOLE), _demand(2, _WHOLE)]
    device = _forecasts(demands, budget=200).device
    assert SetForecasts(demands, device, {0b11: (5.0, 6.0)}).step_ns(0b11) == (5.0, 6.0)


def test_known_times_hold_for_sets_of_equal_jobs() -> None:
    demands = [_demand(1, _WHOLE), _demand(2, _HALF), _demand(3, _WHOLE), _demand(4, _WHOLE, _HALF)]
    device = _forecasts(demands, budget=400).device
    forecasts = SetForecasts(demands, device, {0b011: (5.0, 6.0)})
    assert forecasts.step_ns(0b110) == (6.0, 5.0)
    assert forecasts.step_ns(0b1010) == (1400, 1000), "the fourth job has other trade-offs than the first"
    assert forecasts.step_ns(0b111) == (1000, 1400, 1000)


def test_contention_is_interpolated_and_never_falls() -> None:
    contention = Contention(points=((1, 1.0), (2, 1.5), (4, 1.4), (8, 4.0)))
    expected = [1.0, 1.5, 1.5, 1.5, 2.05, 2.7, 3.35, 4.0, 4.5, 8.0]
    assert [contention.slowdown(k) for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)] == pytest.approx(expected)


def test_cores_are_shared_by_the_threads_beyond_them() -> None:
    assert [of_cores(2, 1).slowdown(k) for k in (1, 2, 3, 4, 8)] == [1, 1, 1.5, 2, 4]
    assert [of_cores(2, 2).slowdown(k) for k in (1, 2, 3)] == [1, 2, 3]
    assert [of_cores(2, 4).slowdown(k) for k in (1, 2, 3)] == [1, 2, 3]


@given(
    first=st.floats(1, 4), observations=st.lists(st.floats(0.5, 4), min_size=30, max_size=30), jobs=st.integers(2, 8)
)
def test_observations_move_the_contention_towards_themselves(
    first: float, observations: list[float], jobs: int
) -> None:
    contention = Contention(points=((1, 1.0), (jobs, first)))
    for observed in observations:
        contention = contention.observed(jobs, observed)
    low, high = min(1.0, *observations), max(first, *observations)
    assert max(1.0, low) <= contention.slowdown(jobs) <= max(1.0, high)
    assert contention.slowdown(1) == 1.0


def test_an_observation_corrects_larger_numbers_of_jobs_as_well_and_no_smaller_ones() -> None:
    contention = Contention(points=((1, 1.0), (2, 1.0), (4, 2.0))).observed(3, 3.0)  # 1.5 was assumed
    assert [contention.slowdown(k) for k in (1, 2, 3, 4, 8)] == pytest.approx([1.0, 1.0, 1.875, 2.5, 5.0])


_SHORT = Contention(points=((1, 1.0), (2, 1.0), (4, 2.0)), short_points=((1, 1.0), (2, 1.5), (4, 3.0)), short_ns=1000)


def test_a_step_is_slowed_down_by_its_length_like_a_short_one_and_like_a_long_one() -> None:
    assert [_SHORT.slowdown(4, ns) for ns in (0, 500, 1000, 2000, 4000)] == pytest.approx([3, 3, 3, 2.5, 2.25])
    assert _SHORT.slowdown(4, 1e12) == pytest.approx(2.0)
    assert _SHORT.slowdown(4) == 2.0
    assert _SHORT.slowdown(1, 1000) == 1.0
    assert of_cores(2, 1).slowdown(4, 1000) == of_cores(2, 1).slowdown(4)


@given(step_ns=st.floats(1000, 1e9), jobs=st.integers(2, 8))
def test_what_a_step_costs_beside_its_operators_does_not_depend_on_its_length(step_ns: float, jobs: int) -> None:
    cost_ns = (_SHORT.slowdown(jobs, step_ns) - _SHORT.slowdown(jobs)) * step_ns
    assert cost_ns == pytest.approx((_SHORT.slowdown(jobs, 1000) - _SHORT.slowdown(jobs)) * 1000, rel=1e-3)


def test_jobs_of_a_set_are_slowed_down_by_the_lengths_of_their_own_steps() -> None:
    device = SharedDevice(budget_bytes=1000 * MIB, region_bytes=MIB, contention=_SHORT, max_slowdown=9.0)
    short = _demand(1, TradeOff(peak_bytes=MIB, iteration_ns=1000, compute_ns=1000))
    long = _demand(2, TradeOff(peak_bytes=MIB, iteration_ns=4000, compute_ns=4000))
    assert SetForecasts((short, long), device).step_ns(0b11) == pytest.approx((1500, 4500))


def test_an_observation_of_a_short_step_corrects_short_steps_and_one_of_a_long_step_long_ones() -> None:
    short, long = _SHORT.observed(2, 3.5, 1000), _SHORT.observed(2, 3.0, 1e15)
    factors = [contention.slowdown(2, step_ns) for contention in (short, long) for step_ns in (1e15, 1000)]
    assert factors == pytest.approx([1.0, 2.0, 1.5, 1.5])
    assert [short.slowdown(4, 1000), short.slowdown(4)] == pytest.approx([4.0, 2.0])


@given(
    observations=st.lists(st.floats(1.0, 4), min_size=1, max_size=60),
    jobs=st.integers(2, 8),
    step_ns=st.floats(100, 1e8),
)
def test_observations_of_any_step_move_its_factor_towards_themselves(
    observations: list[float], jobs: int, step_ns: float
) -> None:
    contention = _SHORT
    for slowdown in observations:
        before = contention.slowdown(jobs, step_ns)
        contention = contention.observed(jobs, slowdown, step_ns)
        after = contention.slowdown(jobs, step_ns)
        assert min(before, slowdown) - 1e-9 <= after <= max(before, slowdown) + 1e-9
        assert contention.slowdown(1, step_ns) == 1.0


@pytest.mark.parametrize(
    ("short_points", "short_ns"), [(((1, 1.0),), 0), ((), 5), (((2, 1.0),), 5), (((1, 1.0), (2, -1.0)), 5)]
)
def test_contention_of_short_steps_without_meaning_is_refused(short_points: Points, short_ns: int) -> None:
    with pytest.raises(InvariantError):
        Contention(points=((1, 1.0),), short_points=short_points, short_ns=short_ns)


def test_alone_there_is_no_contention_to_observe() -> None:
    assert of_cores(2, 1).observed(1, 3.0) == of_cores(2, 1)


@pytest.mark.parametrize("points", [(), ((2, 1.0),), ((1, 1.0), (1, 2.0)), ((1, 0.0),), ((1, float("nan")),)])
def test_contention_without_meaning_is_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(InvariantError):
        Contention(points=points)


def test_a_demand_without_meaning_is_refused() -> None:
    with pytest.raises(InvariantError, match="not in order"):
        _demand(1, _HALF, _WHOLE)
    with pytest.raises(InvariantError, match="without a plan"):
        _demand(1)


def _demand(number: int, *points: TradeOff) -> JobDemand:
    return JobDemand(job=JobId(number), owner=1, priority=0, steps=10, steps_left=10, trade_offs=points)


def _forecasts(demands: list[JobDemand], *, budget: int) -> SetForecasts:
    contention = Contention(points=((1, 1.0), (8, 1.0)))
    device = SharedDevice(budget_bytes=budget * MIB, region_bytes=MIB, contention=contention, max_slowdown=9.0)
    return SetForecasts(demands, device)
