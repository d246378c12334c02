"""A job that has trained gives back its memory at once, and the next one starts while its version is published."""

from dataclasses import replace

import pytest

from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    CancelJob,
    EndMethod,
    EndTrainer,
    LeaveSet,
    ParkJob,
    RecordSet,
    RequeueJob,
    SendPlans,
    SetGrant,
)
from indb_tensile.scheduler.admission.completion_rule import shared_device
from indb_tensile.scheduler.admission.events import (
    Adoption,
    BudgetChange,
    CancelRequest,
    Departure,
    Exit,
    ExitCause,
    Finish,
    Holding,
    Measurement,
    PauseChange,
    Silence,
    Stall,
    Stop,
)
from indb_tensile.scheduler.admission.pool import JobStage, Member, TrainerId
from indb_tensile.scheduler.completion.contention import of_cores
from tests.scheduler.admission.fake_controller import REGION, FakeController, job, measurement, orders_of_type


def _stage(controller: FakeController, number: int) -> JobStage:
    return _member(controller, number).stage


def _member(controller: FakeController, number: int) -> Member:
    member = controller.pool.of_job(JobId(number))
    assert member is not None
    return member


def _one_waits() -> tuple[FakeController, TrainerId, TrainerId]:
    """Return a controller whose first job has the device, while the second waits for it."""
    controller = FakeController(8)
    first = controller.start(1, 16)
    second = controller.claim(job(2))
    controller.capture(second, 16)
    assert _stage(controller, 2) is JobStage.WAITING
    return controller, first, second


def test_waiting_job_gets_the_memory_of_a_job_that_closes_when_the_ledger_has_it() -> None:
    controller, first, second = _one_waits()
    orders = controller.decide(Departure(trainer=first))
    assert orders_of_type(orders, SetGrant) == [SetGrant(trainer=first, grant_bytes=0)]
    assert not orders_of_type(orders, SendPlans), "the ledger has not confirmed that the memory is free"
    assert _stage(controller, 1) is JobStage.CLOSING
    orders = controller.decide(Holding(trainer=first, held_bytes=REGION))
    assert not orders_of_type(orders, SendPlans), "a region is still in use"
    orders = controller.decide(Holding(trainer=first, held_bytes=0))
    assert [order.trainer for order in orders_of_type(orders, SendPlans)] == [second]
    assert controller.grants() == {1: 0, 2: 8}


def test_job_that_closes_holds_no_memory_of_the_host_pool_and_none_of_its_owners_quota() -> None:
    controller, first, _ = _one_waits()
    controller.send(Departure(trainer=first))
    member = _member(controller, 1)
    assert (member.host_bytes, member.planned_host_bytes, member.planned_bytes, member.plan) == (0, 0, 0, None)
    assert controller.pool.held_bytes == controller.pool.budget_bytes, "of the second job"


def test_published_version_lets_the_trainer_exit_and_changes_no_plan() -> None:
    controller, first, second = _one_waits()
    controller.send(Departure(trainer=first))
    controller.adopt_all()
    controller.send(Finish(trainer=first, closing_ns=5))
    assert orders_of_type(controller.orders, EndTrainer) == [EndTrainer(trainer=first, method=EndMethod.LET_EXIT)]
    assert controller.pool.due is None
    controller.send(Exit(trainer=first, code=0))
    assert not orders_of_type(controller.orders, SendPlans)
    assert [m.trainer for m in controller.pool.members] == [second]


def test_trainer_that_is_killed_before_it_has_published_returns_its_job_to_the_queue() -> None:
    controller, first, _ = _one_waits()
    controller.send(Departure(trainer=first))
    controller.adopt_all()
    controller.send(Exit(trainer=first, code=-9, ending=ExitCause.OUTSIDE))
    (requeued,) = orders_of_type(controller.orders, RequeueJob)
    assert (requeued.job, requeued.claim) == (JobId(1), ClaimToken(1001))
    assert controller.grants() == {2: 8}


def test_cancelled_job_ends_before_it_has_published() -> None:
    controller, first, _ = _one_waits()
    controller.send(Departure(trainer=first))
    controller.send(CancelRequest(job=JobId(1)))
    assert orders_of_type(controller.orders, EndTrainer) == [EndTrainer(trainer=first, method=EndMethod.TERMINATE)]
    controller.send(Exit(trainer=first, code=-15, ending=ExitCause.STOPPED))
    assert orders_of_type(controller.orders, CancelJob) == [CancelJob(job=JobId(1), claim=ClaimToken(1001))]


def test_job_that_was_told_to_park_after_its_last_step_closes_and_the_other_one_starts() -> None:
    controller, first, second = _one_waits()
    controller.send(PauseChange(paused=frozenset({JobId(1)})))
    assert orders_of_type(controller.orders, ParkJob)
    controller.send(Departure(trainer=first))
    assert _stage(controller, 1) is JobStage.CLOSING
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [second]
    controller.send(PauseChange(paused=frozenset()))
    controller.send(Silence(trainer=first))
    assert _stage(controller, 1) is JobStage.CLOSING, "it owes no answer any more"


def test_plan_that_a_job_does_not_follow_any_more_is_forgotten() -> None:
    controller = FakeController(16)
    first = controller.start(1, 16)
    second = controller.claim(job(2))
    controller.capture(second, 16)
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [first], "it is to shrink"
    controller.send(Departure(trainer=first))
    late = Adoption(trainer=first, generation=2)
    assert controller.decide(late) == ()
    controller.send(Adoption(trainer=second, generation=1))
    assert controller.grants() == {1: 0, 2: 16}


def test_trainer_that_makes_no_progress_while_it_closes_is_ended() -> None:
    controller, first, _ = _one_waits()
    controller.send(Departure(trainer=first))
    controller.send(Stall(trainer=first, silent_s=900.0))
    assert orders_of_type(controller.orders, EndTrainer) == [EndTrainer(trainer=first, method=EndMethod.KILL)]


def test_job_without_a_plan_cannot_leave_the_device() -> None:
    controller, _, second = _one_waits()
    before = controller.pool
    controller.send(Departure(trainer=second))
    assert _stage(controller, 2) is JobStage.WAITING
    assert controller.pool == before


def test_stopping_controller_ends_a_trainer_that_closes_and_requeues_its_job() -> None:
    controller, first, _ = _one_waits()
    controller.send(Departure(trainer=first))
    controller.send(Stop())
    assert EndTrainer(trainer=first, method=EndMethod.TERMINATE) in controller.orders
    controller.send(Exit(trainer=first, code=-15, ending=ExitCause.STOPPED))
    assert [order.job for order in orders_of_type(controller.orders, RequeueJob)] == [JobId(1)]


def test_lower_budget_sends_no_job_back_that_closes() -> None:
    controller, first, _ = _one_waits()
    controller.send(Departure(trainer=first))
    controller.adopt_all()
    controller.send(BudgetChange(budget_bytes=REGION))
    assert _stage(controller, 1) is JobStage.CLOSING


def test_job_that_closes_is_in_no_set_and_slows_the_others_down_like_one_that_is_prepared() -> None:
    controller = FakeController(20, contention=of_cores(2, 1), prepares_on_device=True)
    first, second = controller.start(1, 4), controller.start(2, 4)
    controller.send(Departure(trainer=first))
    assert orders_of_type(controller.orders, LeaveSet) == [LeaveSet(job=JobId(1), claim=ClaimToken(1001))]
    (alone,) = orders_of_type(controller.orders, RecordSet)
    assert (alone.job, alone.beside, alone.foretold_throughput) == (JobId(2), (), 1.0)
    assert controller.pool.running_set.preparing == 1
    controller.send(Finish(trainer=first))
    assert controller.pool.running_set.preparing == 0
    assert second == _member(controller, 2).trainer


@pytest.mark.parametrize("on_device", [False, True])
def test_job_that_closes_counts_in_the_next_choice_where_it_computes_on_the_device(on_device: bool) -> None:
    controller = FakeController(20, contention=of_cores(1, 1), prepares_on_device=on_device)
    first, second = controller.start(1, 4), controller.start(2, 4)
    controller.send(Finish(trainer=first, closing_ns=500))
    assert shared_device(controller.pool, 20 * REGION).closing_ns == ()
    controller.send(Departure(trainer=second))
    device = shared_device(controller.pool, 20 * REGION)
    assert (device.prepares_jobs, device.closing_ns) == (on_device, (500.0,) if on_device else ())


@pytest.mark.parametrize("last", [False, True])
def test_first_measurement_after_a_job_has_left_does_not_count(last: bool) -> None:
    controller = FakeController(20)
    first, second = controller.start(1, 4), controller.start(2, 4)
    controller.send_twice(measurement(second, 500))
    controller.send(Departure(trainer=first))
    report: Measurement = replace(measurement(second, 900), last=last)
    before = _member(controller, 2).corrected_ns
    controller.send(report)
    assert _member(controller, 2).corrected_ns == before
