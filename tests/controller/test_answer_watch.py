"""Check when a trainer's answer counts as overdue."""

from indb_tensile.controller.answer_watch import AnswerWatch
from indb_tensile.scheduler.admission.pool import TrainerId

FIRST, SECOND = TrainerId(1), TrainerId(2)


def test_answer_is_overdue_once_its_time_is_over_and_again_after_as_long() -> None:
    watch = AnswerWatch(10.0)
    assert watch.overdue({(FIRST, 3)}, 100.0) == ()
    assert watch.overdue({(FIRST, 3), (SECOND, 1)}, 109.9) == ()
    assert watch.overdue({(FIRST, 3), (SECOND, 1)}, 110.0) == (FIRST,)
    assert watch.overdue({(FIRST, 3), (SECOND, 1)}, 119.9) == (SECOND,)
    assert watch.overdue({(FIRST, 3), (SECOND, 1)}, 120.0) == (FIRST,)


def test_another_order_to_the_same_trainer_has_its_own_time() -> None:
    watch = AnswerWatch(10.0)
    assert watch.overdue({(FIRST, 3)}, 0.0) == ()
    assert watch.overdue({(FIRST, 4)}, 9.0) == ()
    assert watch.overdue({(FIRST, 4)}, 18.9) == ()
    assert watch.overdue({(FIRST, 4)}, 19.0) == (FIRST,)


def test_answer_that_has_arrived_is_forgotten() -> None:
    watch = AnswerWatch(10.0)
    assert watch.overdue({(FIRST, 3)}, 0.0) == ()
    assert watch.overdue((), 5.0) == ()
    assert watch.overdue({(FIRST, 3)}, 10.0) == ()
