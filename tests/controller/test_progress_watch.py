"""Check when the progress watch reports that a trainer is stalled."""

from indb_tensile.controller.progress_watch import STALL_FACTOR, ProgressWatch
from indb_tensile.scheduler.admission.pool import TrainerId

FIRST, SECOND = TrainerId(1), TrainerId(2)


def test_trainer_without_a_report_for_the_minimum_time_is_stalled() -> None:
    watch = ProgressWatch(10.0)
    assert watch.stalled((FIRST,), 0.0) == ()
    watch.hear(FIRST, 5.0)
    assert watch.stalled((FIRST,), 14.9) == ()
    assert watch.stalled((FIRST,), 15.5) == ((FIRST, 10.5),)


def test_trainer_with_long_iterations_stalls_after_many_times_the_longest_iteration() -> None:
    watch = ProgressWatch(10.0)
    watch.hear(FIRST, 0.0, longest_s=2.0)
    watch.hear(FIRST, 1.0, longest_s=0.5)
    assert watch.stalled((FIRST,), 100.9) == ()
    assert watch.stalled((FIRST,), 1.0 + 2.0 * STALL_FACTOR) == ((FIRST, 2.0 * STALL_FACTOR),)


def test_stall_is_reported_once_per_deadline() -> None:
    watch = ProgressWatch(10.0)
    watch.hear(FIRST, 0.0)
    assert watch.stalled((FIRST,), 10.0) == ((FIRST, 10.0),)
    assert watch.stalled((FIRST,), 11.0) == ()
    assert watch.stalled((FIRST,), 20.0) == ((FIRST, 10.0),)


def test_only_training_trainers_are_watched() -> None:
    watch = ProgressWatch(10.0)
    watch.hear(FIRST, 0.0)
    watch.hear(SECOND, 0.0)
    assert watch.stalled((SECOND,), 50.0) == ((SECOND, 50.0),)
    assert watch.stalled((FIRST,), 50.0) == ()
