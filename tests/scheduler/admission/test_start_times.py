"""What jobs take before their first step and after their last one is remembered by kind, and foretold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.admission.completion_rule import demand_of
from indb_tensile.scheduler.admission.events import Finish, StepsLeft, Tick
from indb_tensile.scheduler.admission.pool import Member, Sharing, TrainerId
from indb_tensile.scheduler.admission.start_times import KindTimes, StartTimes
from indb_tensile.scheduler.completion.contention import of_cores
from tests.scheduler.admission.fake_controller import FakeController, job

_SECOND_NS = 1_000_000_000


def test_nothing_is_foretold_until_a_job_was_measured() -> None:
    assert StartTimes().startup_ns("a", 100) == StartTimes().closing_ns("a", 100) == 0.0


def test_a_kind_that_was_not_measured_has_the_times_of_the_kind_with_the_nearest_state() -> None:
    times = StartTimes().started("small", 10, 1.0).started("large", 1000, 50.0).closed("large", 1000, 7.0)
    assert [times.startup_ns("new", size) for size in (0, 100, 900)] == [1.0, 1.0, 50.0]
    assert times.startup_ns("large", 10) == 50.0, "its own kind counts more than the size"
    assert times.closing_ns("small", 10) == 7.0, "only the large kind has closed"


def test_a_shorter_time_counts_at_once_and_a_longer_one_a_little() -> None:
    times = StartTimes().started("a", 1, 8.0).started("a", 1, 4.0)
    assert times.startup_ns("a", 1) == 4.0
    assert times.started("a", 1, 8.0).startup_ns("a", 1) == 5.0


@given(took=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e12)), max_size=20))
def test_times_stay_between_the_least_and_the_largest_that_were_measured(took: list[tuple[str, float]]) -> None:
    times = StartTimes()
    for kind, ns in took:
        times = times.started(kind, 1, ns)
    for kind in {kind for kind, _ in took}:
        own = [ns for name, ns in took if name == kind]
        assert min(own) <= times.startup_ns(kind, 1) <= max(own)


def test_the_kinds_that_were_measured_last_are_kept() -> None:
    times = StartTimes()
    for number in range(100):
        times = times.started(f"kind {number}", number, float(number))
    assert len(times.kinds) == 64
    assert times.startup_ns("kind 99", 0) == 99.0
    assert times.startup_ns("kind 0", 0) == 36.0, "the nearest of those that are kept"


@pytest.mark.parametrize("ns", [-1.0, float("nan"), float("inf")])
def test_times_without_meaning_are_refused(ns: float) -> None:
    with pytest.raises(InvariantError, match="jobs of the kind a take"):
        KindTimes(kind="a", state_bytes=1, startup_ns=ns)


def test_the_first_step_of_a_job_tells_how_long_jobs_start_up() -> None:
    controller, trainer = _running()
    waiting = _waiting(controller, 2)
    assert demand_of(controller.pool, waiting).startup_ns == 0.0
    controller.send(StepsLeft(trainer=trainer, steps_left=1e9 - 1, startup_ns=_SECOND_NS + 1_000))
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    assert demand_of(controller.pool, member).startup_ns == 0.0, "it has started up"
    assert demand_of(controller.pool, waiting).startup_ns == _SECOND_NS, "without the step, of 1,000 ns"
    controller.send(StepsLeft(trainer=trainer, steps_left=1e9 - 2))
    assert demand_of(controller.pool, waiting).startup_ns == _SECOND_NS


def test_a_job_that_has_been_sent_a_plan_still_starts_up_for_the_rest_of_the_time() -> None:
    controller, trainer = _running()
    controller.send(StepsLeft(trainer=trainer, steps_left=1e9 - 1, startup_ns=10 * _SECOND_NS + 1_000))
    second = controller.start(2, 2)
    member = controller.pool.of_trainer(second)
    assert member is not None
    assert demand_of(controller.pool, member).startup_ns == 10 * _SECOND_NS
    controller.send(Tick(now_s=member.sent_s + 4))
    assert demand_of(controller.pool, member).startup_ns == 6 * _SECOND_NS
    controller.send(Tick(now_s=member.sent_s + 40))
    assert demand_of(controller.pool, member).startup_ns == 0.0


def test_the_end_of_a_job_tells_how_long_jobs_close() -> None:
    controller, trainer = _running()
    waiting = _waiting(controller, 2)
    controller.send(Finish(trainer=trainer, closing_ns=500))
    assert demand_of(controller.pool, waiting).closing_ns == 500.0


def _running() -> tuple[FakeController, TrainerId]:
    """Return a controller with one running job of many steps of 1,000 ns, and the job's trainer."""
    controller = FakeController(20, sharing=Sharing.COMPLETION, contention=of_cores(2, 1))
    trainer = controller.claim(job(1))
    controller.capture(trainer, 2, steps=1e9)
    controller.adopt_all()
    return controller, trainer


def _waiting(controller: FakeController, number: int) -> Member:
    """Return a job that has been captured, as it was before it could start."""
    trainer = controller.claim(job(number))
    controller.capture(trainer, 2, steps=100.0)
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    return replace(member, generation=0, sent_s=0.0)
