"""The mean time of a training step between two reports, with all that lies between iterations."""

from collections.abc import Iterator

from worker.training.step_duration import StepDuration


def _clock(*moments: float) -> Iterator[float]:
    return iter(moments)


def test_a_mean_covers_all_steps_since_the_last_report() -> None:
    moments = _clock(10.0, 12.0, 15.0)
    times = StepDuration(lambda: next(moments))
    times.begin(100.0)
    assert times.take_ns(96.0) == 500_000_000
    assert times.take_ns(95.0) == 3_000_000_000


def test_measuring_begins_once_at_the_end_of_the_first_step() -> None:
    moments = _clock(10.0, 12.0)
    times = StepDuration(lambda: next(moments))
    assert times.take_ns(100.0) == 0, "nothing has begun"
    times.begin(99.0)
    times.begin(98.0)
    assert times.take_ns(97.0) == 1_000_000_000


def test_time_in_which_the_job_follows_orders_does_not_count() -> None:
    moments = _clock(10.0, 15.0)
    times = StepDuration(lambda: next(moments))
    times.begin(100.0)
    times.skip(4.0)
    assert times.take_ns(98.0) == 500_000_000


def test_without_a_step_there_is_no_mean_and_the_time_counts_later() -> None:
    moments = _clock(10.0, 16.0)
    times = StepDuration(lambda: next(moments))
    times.begin(100.0)
    assert times.take_ns(100.0) == 0
    assert times.take_ns(98.0) == 3_000_000_000
