"""A late job gives way to shorter ones for a time in proportion to what it has left, and not for ever."""

from dataclasses import replace

import pytest

from indb_tensile.scheduler.admission.events import Capture, QueueChange, StepsLeft
from indb_tensile.scheduler.admission.fair_turns import foretold_fair_ends_ns, in_fair_order
from indb_tensile.scheduler.admission.pool import Sharing
from indb_tensile.scheduler.completion.contention import Contention

from .fake_controller import FakeController, graph, job

_STEP_NS = 1_000


@pytest.mark.parametrize(("late_steps", "first"), [(0, 2), (7_000, 2), (9_000, 1)])
def test_a_late_job_goes_before_a_short_one_when_an_eighth_of_its_delay_exceeds_what_is_left(
    late_steps: float, first: int
) -> None:
    controller = FakeController(4, sharing=Sharing.COMPLETION, contention=Contention(points=((1, 1.0), (2, 2.0))))
    for number, steps in ((1, 1_000.0), (2, 10.0)):
        trainer = controller.claim(job(number, owner=number))
        controller.send(
            Capture(trainer=trainer, graphs=(graph(4),), latency_ns=((_STEP_NS,),), unknown=0, steps=steps)
        )
    pool = replace(controller.pool, fair_clock_ns=1e9)
    ended_ns = pool.fair_clock_ns - late_steps * _STEP_NS
    late, short = pool.members
    pool = replace(pool, members=(replace(late, fair_left=0.0, fair_end_ns=ended_ns), short))
    ends_ns = foretold_fair_ends_ns(pool)
    assert ends_ns[late.job.claim] == pytest.approx((1_000 - late_steps / 8) * _STEP_NS)
    assert ends_ns[short.job.claim] == pytest.approx(20 * _STEP_NS)
    assert in_fair_order(pool, pool.members)[0].job.job == first


def test_many_small_reports_advance_the_fair_schedule_as_much_as_a_large_one() -> None:
    controllers = []
    for reports in (1, 40):
        controller = FakeController(4, sharing=Sharing.COMPLETION, contention=Contention(points=((1, 1.0), (2, 2.0))))
        trainers = []
        for number, steps in ((1, 1_000.0), (2, 100.0)):
            trainers.append(controller.claim(job(number, owner=number)))
            controller.send(
                Capture(trainer=trainers[-1], graphs=(graph(4),), latency_ns=((_STEP_NS,),), unknown=0, steps=steps)
            )
            controller.adopt_all()
        for k in range(1, reports + 1):
            controller.send(StepsLeft(trainer=trainers[0], steps_left=1_000.0 - 320.0 * k / reports))
        controllers.append(controller)
    reported, settled = controllers
    assert foretold_fair_ends_ns(settled.pool) == pytest.approx(foretold_fair_ends_ns(reported.pool))
    settled.send(QueueChange())
    assert settled.pool.fair_due_ns == 0
    assert foretold_fair_ends_ns(settled.pool) == pytest.approx(foretold_fair_ends_ns(reported.pool))
    assert settled.pool.members[1].fair_end_ns == pytest.approx(200 * _STEP_NS)
