"""The load of other programs is what they computed during the last seconds, however the readings lie in time."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.device.other_load import OtherLoad, tolerated_cores

# Steps between readings: the seconds that pass, and the cores that other programs keep busy meanwhile.
STEPS = st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 8.0)), min_size=1, max_size=30)


def _readings(steps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the readings before and after each step: the moment, and the processor time of other programs."""
    moments = accumulate((passed_s for passed_s, _ in steps), initial=100.0)
    used = accumulate((passed_s * cores for passed_s, cores in steps), initial=7.0)
    return list(zip(moments, used, strict=True))


def test_load_is_unknown_until_the_readings_cover_the_span_and_old_ones_then_count_no_more() -> None:
    load = OtherLoad(2.0)
    assert load.add(0.0, 50.0) is None
    assert load.add(1.0, 51.0) is None
    assert load.add(2.0, 52.0) == 1.0
    assert load.add(3.0, 52.0) == 0.5
    assert load.add(4.0, 52.0) == 0.0
    load.forget()
    assert load.add(5.0, 60.0) is None


def test_a_machine_of_many_cores_has_more_daemons() -> None:
    assert tolerated_cores(2, 0.25) == 0.25
    assert tolerated_cores(64, 0.25) == 0.05 * 64
    assert tolerated_cores(64, 10.0) == 10.0


@given(steps=STEPS, span_s=st.floats(0.1, 4.0))
def test_mean_lies_between_the_least_and_the_highest_load_of_the_last_span(
    steps: list[tuple[float, float]], span_s: float
) -> None:
    load, readings = OtherLoad(span_s), _readings(steps)
    for at, (now_s, used_s) in enumerate(readings):
        mean = load.add(now_s, used_s)
        if now_s < readings[0][0] + span_s:
            assert mean is None
            continue
        # The base is the latest reading that is old enough, so only the steps since then count.
        base = max(k for k in range(at + 1) if readings[k][0] <= now_s - span_s)
        counted = [cores for _, cores in steps[base:at]]
        assert mean is not None
        assert min(counted) - 1e-6 <= mean <= max(counted) + 1e-6


@given(before=STEPS, after=STEPS, cores=st.floats(1.0, 8.0), span_s=st.floats(0.5, 3.0))
def test_a_program_that_computes_for_the_whole_span_is_noticed_whatever_ran_before_and_runs_later(
    before: list[tuple[float, float]], after: list[tuple[float, float]], cores: float, span_s: float
) -> None:
    """Readings come every quarter of a second, as they do in a measurement."""
    computing = [(0.25, cores)] * (int(span_s / 0.25) + 2)
    load = OtherLoad(span_s)
    means = [load.add(*reading) for reading in _readings([*before, *computing, *after])]
    assert max(mean for mean in means if mean is not None) >= cores - 1e-6
