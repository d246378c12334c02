"""The foretold times of sets: memory is divided, contention slows operators, lanes are shared."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice, fits_alone, members

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


@given(forecasts=set_forecasts(1), share=st.floats(0.1, 1))
def test_a_job_fits_alone_if_a_set_of_it_can_run(forecasts: SetForecasts, share: float) -> None:
    device = replace(forecasts.device, budget_bytes=int(share * forecasts.device.budget_bytes))
    forecasts = SetForecasts(forecasts.demands, device)
    assert fits_alone(forecasts.demands[0].trade_offs, device) is (forecasts.step_ns(1) is not None)


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


def test_jobs_of_a_set_are_slowed_down_by_the_lengths_of_their_own_steps() -> None:
    contention = Contention(points=((1, 1.0), (2, 1.0)), short_points=((1, 1.0), (2, 1.5)), short_ns=1000)
    device = SharedDevice(budget_bytes=1000 * MIB, region_bytes=MIB, contention=contention, max_slowdown=9.0)
    short = _demand(1, TradeOff(peak_bytes=MIB, iteration_ns=1000, compute_ns=1000))
    long = _demand(2, TradeOff(peak_bytes=MIB, iteration_ns=4000, compute_ns=4000))
    assert SetForecasts((short, long), device).step_ns(0b11) == pytest.approx((1500, 4500))


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
