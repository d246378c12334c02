"""What jobs take besides their iterations is remembered by kind, and foretold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.admission.completion_rule import demand_of, planned_step_ns
from indb_tensile.scheduler.admission.events import Departure, Finish, Measurement, StepsLeft, Tick
from indb_tensile.scheduler.admission.overheads import KindOverheads, Overheads, expected_steps_left
from indb_tensile.scheduler.admission.pool import Member, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import of_cores
from indb_tensile.scheduler.completion.demand import JobDemand
from tests.scheduler.admission.fake_controller import FakeController, job

_SECOND_NS = 1_000_000_000


def test_nothing_is_foretold_until_a_job_was_measured() -> None:
    assert Overheads().startup_ns("a", 100) == Overheads().closing_ns("a", 100) == 0.0


def test_a_kind_that_was_not_measured_has_the_times_of_the_kind_with_the_nearest_state() -> None:
    times = Overheads().started("small", 10, 1.0).started("large", 1000, 50.0).closed("large", 1000, 7.0)
    assert [times.startup_ns("new", size) for size in (0, 100, 900)] == [1.0, 1.0, 50.0]
    assert times.startup_ns("large", 10) == 50.0, "its own kind counts more than the size"
    assert times.closing_ns("small", 10) == 7.0, "only the large kind has closed"


def test_until_a_job_has_closed_closing_is_as_long_as_starting_up() -> None:
    times = Overheads().started("small", 10, 3.0).started("large", 1000, 50.0)
    assert [times.closing_ns("new", size) for size in (10, 1000)] == [3.0, 50.0]
    assert times.closed("small", 10, 7.0).closing_ns("large", 1000) == 7.0


def test_a_shorter_time_counts_at_once_and_a_longer_one_a_little() -> None:
    times = Overheads().started("a", 1, 8.0).started("a", 1, 4.0)
    assert times.startup_ns("a", 1) == 4.0
    assert times.started("a", 1, 8.0).startup_ns("a", 1) == 5.0


def test_what_lies_between_iterations_is_a_mean_of_both_directions() -> None:
    times = Overheads().stepped("a", 1, 8.0).stepped("a", 1, 4.0)
    assert times.between_ns("a", 1) == 6.0
    assert times.stepped("a", 1, 8.0).between_ns("a", 1) == 7.0


@given(took=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e12)), max_size=20))
def test_times_stay_between_the_least_and_the_largest_that_were_measured(took: list[tuple[str, float]]) -> None:
    times = Overheads()
    for kind, ns in took:
        times = times.started(kind, 1, ns).stepped(kind, 1, ns)
    for kind in {kind for kind, _ in took}:
        own = [ns for name, ns in took if name == kind]
        for mean_ns in (times.startup_ns(kind, 1), times.between_ns(kind, 1)):
            assert min(own) * (1 - 1e-9) <= mean_ns <= max(own) * (1 + 1e-9)


def test_the_kinds_that_were_measured_last_are_kept() -> None:
    times = Overheads()
    for number in range(100):
        times = times.started(f"kind {number}", number, float(number))
    assert len(times.kinds) == 64
    assert times.startup_ns("kind 99", 0) == 99.0
    assert times.startup_ns("kind 0", 0) == 36.0, "the nearest of those that are kept"


def test_a_kind_has_changed_if_any_of_its_times_has_by_more_than_a_tenth() -> None:
    earlier = Overheads().started("a", 1, 100.0).stepped("a", 1, 100.0).started("b", 1, 100.0)
    assert earlier.changed_since(earlier) == earlier.started("a", 1, 91.0).changed_since(earlier) == ()
    for later in (earlier.started("a", 1, 80.0), earlier.stepped("a", 1, 200.0), earlier.closed("a", 1, 0.0)):
        assert [times.kind for times in later.changed_since(earlier)] == ["a"]
    assert {times.kind for times in earlier.changed_since(Overheads())} == {"a", "b"}


@pytest.mark.parametrize("ns", [-1.0, float("nan"), float("inf")])
def test_times_without_meaning_are_refused(ns: float) -> None:
    with pytest.raises(InvariantError, match="jobs of the kind a take"):
        KindOverheads(kind="a", state_bytes=1, startup_ns=ns)


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


def test_on_a_processor_what_lies_between_iterations_is_slowed_down_like_operators() -> None:
    controller, trainer = _running(prepares_on_device=True)
    _measure(controller, trainer, compute_ns=1000, iteration_ns=1000, step_ns=1400)
    point = _demand(controller, trainer).trade_offs[0]
    assert (point.iteration_ns, point.compute_ns, point.beside_others_ns(2.0)) == (1400, 1400, 2800)
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    assert member.plan is not None
    assert planned_step_ns(controller.pool, member, member.plan, unknown=3) == 2800, "four jobs on two cores"


def test_a_time_between_iterations_beside_other_jobs_is_reduced_like_the_operators() -> None:
    controller, trainer = _running(prepares_on_device=True)
    controller.start(2, 2)
    _measure(controller, trainer, compute_ns=2000, iteration_ns=2000, step_ns=2800)
    assert _demand(controller, trainer).trade_offs[0].iteration_ns == 1400


def test_on_another_device_what_lies_between_iterations_is_as_long_beside_others_as_alone() -> None:
    controller, trainer = _running()
    _measure(controller, trainer, compute_ns=1000, iteration_ns=1000, step_ns=1400)
    point = _demand(controller, trainer).trade_offs[0]
    assert (point.iteration_ns, point.compute_ns, point.beside_others_ns(2.0)) == (1400, 1000, 2400)


def test_a_step_that_is_not_longer_than_its_iteration_tells_nothing() -> None:
    controller, trainer = _running()
    for step_ns in (0, 900, 1000):
        _measure(controller, trainer, compute_ns=1000, iteration_ns=1000, step_ns=step_ns)
    assert controller.pool.overheads == Overheads()


def test_share_of_the_steps_that_a_kind_trains_is_a_mean_of_both_directions() -> None:
    overheads = Overheads().started("a", 1, 5.0)
    assert overheads.trained_share("a") == overheads.ended("b", 1, 0.5).trained_share("a") == 1.0
    assert overheads.ended("a", 1, 0.5).trained_share("a") == 0.5
    assert overheads.ended("a", 1, 0.5).ended("a", 1, 0.25).ended("a", 1, 0.875).trained_share("a") == 0.625
    assert [known.kind for known in overheads.ended("a", 1, 0.5).changed_since(overheads)] == ["a"]


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvariantError, match="jobs of the kind a train"):
        KindOverheads(kind="a", state_bytes=1, trained_share=share)


def test_end_of_a_job_tells_what_share_of_its_steps_its_kind_trains() -> None:
    controller, trainer = _running()
    waiting = _waiting(controller, 2)
    assert demand_of(controller.pool, waiting).steps_left == 100
    controller.send(Departure(trainer=trainer, steps_left=0.75e9))
    overheads = controller.pool.overheads
    assert overheads.trained_share("job 1") == 0.25
    assert demand_of(controller.pool, waiting).steps_left == 100, "a job of another kind"
    stopping = replace(controller.pool, overheads=overheads.ended("job 2", 1, 0.25))
    assert demand_of(stopping, waiting).steps_left == 25


@pytest.mark.parametrize("steps_left", [None, -1.0, 1e9, float("nan"), float("inf")])
def test_rest_of_the_steps_that_cannot_be_tells_nothing(steps_left: float | None) -> None:
    controller, trainer = _running()
    controller.send(Departure(trainer=trainer, steps_left=steps_left))
    assert controller.pool.overheads == Overheads()


def test_job_that_trains_longer_than_usual_is_expected_to_train_a_quarter_more() -> None:
    assert expected_steps_left(100, 100, 1.0) == 100
    assert expected_steps_left(100, 100, 0.4) == 40
    assert expected_steps_left(100, 75, 0.4) == 15
    assert expected_steps_left(100, 55, 0.4) == 10, "past the usual end"
    assert expected_steps_left(100, 3, 0.4) == 3, "no more than is left"


@given(steps=st.floats(1, 1e9), left=st.floats(0, 1), share=st.floats(0.001, 1))
def test_expected_steps_never_grow_as_a_job_trains(steps: float, left: float, share: float) -> None:
    now, later = expected_steps_left(steps, left * steps, share), expected_steps_left(steps, left * steps / 2, share)
    assert 0 <= later <= now <= left * steps


def _measure(
    controller: FakeController,
    trainer: TrainerId,
    *,
    compute_ns: int,
    iteration_ns: int,
    step_ns: int,
) -> None:
    controller.send_twice(
        Measurement(
            trainer=trainer,
            generation=1,
            latency_ns=(compute_ns,),
            iteration_ns=iteration_ns,
            stall_ns=0,
            peak_bytes=1,
            step_ns=step_ns,
        )
    )


def _demand(controller: FakeController, trainer: TrainerId) -> JobDemand:
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    return demand_of(controller.pool, member)


def _running(*, prepares_on_device: bool = False) -> tuple[FakeController, TrainerId]:
    """Return a controller with one running job of many steps of 1,000 ns, and the job's trainer."""
    controller = FakeController(
        20, sharing=Sharing.COMPLETION, contention=of_cores(2, 1), prepares_on_device=prepares_on_device
    )
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
