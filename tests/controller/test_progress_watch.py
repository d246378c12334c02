from indb_tensile.controller.progress_watch import STALL_FACTOR, ProgressWatch
from indb_tensile.scheduler.admission.pool import TrainerId

ONE, TWO = TrainerId(1), TrainerId(2)


def test_a_trainer_that_says_nothing_for_the_floor_stalls() -> None:
    signs = ProgressWatch(10.0)
    assert signs.stalled((ONE,), 0.0) == ()
    signs.hear(ONE, 5.0)
    assert signs.stalled((ONE,), 14.9) == ()
    assert signs.stalled((ONE,), 15.5) == ((ONE, 10.5),)


def test_a_trainer_whose_iterations_are_long_has_many_times_as_long() -> None:
    signs = ProgressWatch(10.0)
    signs.hear(ONE, 0.0, longest_s=2.0)
    signs.hear(ONE, 1.0, longest_s=0.5)
    assert signs.stalled((ONE,), 100.9) == ()
    assert signs.stalled((ONE,), 1.0 + 2.0 * STALL_FACTOR) == ((ONE, 2.0 * STALL_FACTOR),)


def test_a_stall_is_told_once_per_deadline() -> None:
    signs = ProgressWatch(10.0)
    signs.hear(ONE, 0.0)
    assert signs.stalled((ONE,), 10.0) == ((ONE, 10.0),)
    assert signs.stalled((ONE,), 11.0) == ()
    assert signs.stalled((ONE,), 20.0) == ((ONE, 10.0),)


def test_who_does_not_train_is_not_watched() -> None:
    signs = ProgressWatch(10.0)
    signs.hear(ONE, 0.0)
    signs.hear(TWO, 0.0)
    assert signs.stalled((TWO,), 50.0) == ((TWO, 50.0),)
    assert signs.stalled((ONE,), 50.0) == ()
