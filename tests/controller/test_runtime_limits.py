"""Check when a trainer exceeds the run time of its job, and that parked time does not count."""

from indb_tensile.controller.runtime_limits import RuntimeLimits
from indb_tensile.scheduler.admission.pool import TrainerId

FIRST, SECOND = TrainerId(1), TrainerId(2)


def test_each_trainer_that_works_too_long_is_returned_once() -> None:
    limits = RuntimeLimits()
    limits.start(FIRST, 10.0, now_s=100.0)
    limits.start(SECOND, 20.0, now_s=100.0)

    assert limits.take_exceeded(109.0) == ()
    assert limits.take_exceeded(110.0) == (FIRST,)
    assert limits.take_exceeded(111.0) == ()
    assert limits.take_exceeded(125.0) == (SECOND,)


def test_time_in_which_a_job_is_parked_does_not_count() -> None:
    limits = RuntimeLimits()
    limits.start(FIRST, 10.0, now_s=0.0)
    limits.pause(FIRST, now_s=4.0)

    assert limits.take_exceeded(1_000.0) == ()

    limits.resume(FIRST, now_s=1_000.0)
    assert limits.take_exceeded(1_005.0) == ()
    assert limits.take_exceeded(1_006.0) == (FIRST,)


def test_a_trainer_without_a_limit_is_never_returned() -> None:
    limits = RuntimeLimits()
    limits.pause(FIRST, now_s=1.0)
    limits.resume(FIRST, now_s=2.0)

    assert limits.take_exceeded(1e9) == ()


def test_a_limit_is_forgotten_with_its_trainer_even_while_it_is_paused() -> None:
    limits = RuntimeLimits()
    limits.start(FIRST, 1.0, now_s=0.0)
    limits.start(SECOND, 1.0, now_s=0.0)
    limits.pause(SECOND, now_s=0.5)
    limits.forget(FIRST)
    limits.forget(SECOND)
    limits.resume(SECOND, now_s=2.0)

    assert limits.take_exceeded(1e9) == ()
