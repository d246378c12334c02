"""Check how `decide()` grants memory for calibrations, in which a trainer measures operators of unknown latency."""

from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    EndMethod,
    EndTrainer,
    FailJob,
    GrantCalibration,
    SendPlans,
    SetGrant,
    SetWaitsFor,
)
from indb_tensile.scheduler.admission.events import (
    Adoption,
    BudgetChange,
    Calibration,
    Capture,
    Exit,
)
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    graph,
    job,
    orders_of_type,
)


def test_calibration_gets_all_free_memory() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1))
    assert controller.capture(trainer, 4, unknown=1) == (
        SetGrant(trainer=trainer, grant_bytes=10 * REGION),
        GrantCalibration(trainer=trainer, grant_bytes=10 * REGION),
    )
    orders = controller.send(Calibration(trainer=trainer, graphs=(graph(6),), latency_ns=((900,),)))
    assert orders[:2] == (SetGrant(trainer=trainer, grant_bytes=0), SetGrant(trainer=trainer, grant_bytes=6 * REGION))
    assert controller.grants() == {1: 6}


def test_calibration_keeps_to_the_jobs_own_limit() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1, limit_bytes=5 * REGION))
    assert GrantCalibration(trainer=trainer, grant_bytes=5 * REGION) in controller.capture(trainer, 4, unknown=1)


def test_calibration_shrinks_other_jobs_if_too_little_is_free() -> None:
    controller = FakeController(10)
    first = controller.start(1, 10)
    second = controller.claim(job(2))
    controller.capture(second, 4, unknown=1)
    sent = orders_of_type(controller.orders, SendPlans)[0]
    assert (sent.trainer, sent.grant_bytes) == (first, 6 * REGION)
    assert not orders_of_type(controller.orders, GrantCalibration)
    orders = controller.send(Adoption(trainer=first, generation=2))
    assert GrantCalibration(trainer=second, grant_bytes=4 * REGION) in orders


def test_overflowing_calibration_is_repeated_with_more_memory() -> None:
    controller = FakeController(10)
    first = controller.start(1, 6)
    second = controller.claim(job(2))
    assert GrantCalibration(trainer=second, grant_bytes=4 * REGION) in controller.capture(second, 4, unknown=1)
    overflow = Calibration(trainer=second, graphs=(graph(4),), latency_ns=((1,),), overflow_bytes=REGION // 2)
    orders = controller.send(overflow)
    assert SetGrant(trainer=second, grant_bytes=0) in orders
    assert orders_of_type(orders, SendPlans)[0].grant_bytes == 5 * REGION
    assert GrantCalibration(trainer=second, grant_bytes=5 * REGION) in controller.send(
        Adoption(trainer=first, generation=2)
    )


def test_calibration_that_needs_more_than_the_budget_fails_the_job() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1))
    controller.capture(trainer, 4, unknown=1)
    overflow = Calibration(trainer=trainer, graphs=(graph(4),), latency_ns=((1,),), overflow_bytes=REGION)
    assert EndTrainer(trainer=trainer, method=EndMethod.TERMINATE) in controller.send(overflow)
    orders = controller.send(Exit(trainer=trainer, code=0))
    fault = orders_of_type(orders, FailJob)[0].fault
    assert fault.message == "job 1 needs at least 11.0 MB of device memory, more than the budget of 10.0 MB"


def test_invalid_capture_fails_its_own_job() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1))
    controller.send(Capture(trainer=trainer, graphs=(graph(4),), latency_ns=((1, 2),), unknown=0))
    assert controller.orders[0] == EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)
    orders = controller.send(Exit(trainer=trainer, code=0))
    assert "job 1, graph 0: 2 latencies for 1 operators" in orders_of_type(orders, FailJob)[0].fault.message


def test_calibration_waits_until_other_jobs_have_adopted_their_plans() -> None:
    controller = FakeController(10)
    first = controller.claim(job(1))
    controller.capture(first, 4)  # the plan is sent but not adopted
    second = controller.claim(job(2))
    assert not orders_of_type(controller.capture(second, 2, unknown=1), GrantCalibration)
    assert GrantCalibration(trainer=second, grant_bytes=6 * REGION) in controller.send(
        Adoption(trainer=first, generation=1)
    )


def test_memory_of_a_calibration_is_not_planned_for_other_jobs() -> None:
    controller = FakeController(10)
    first = controller.start(1, 10)
    second = controller.claim(job(2))
    controller.capture(second, 4, unknown=1)
    controller.send(Adoption(trainer=first, generation=2))
    orders = controller.send(BudgetChange(budget_bytes=11 * REGION))
    assert [o.grant_bytes for o in orders_of_type(orders, SendPlans)] == [7 * REGION]


def test_one_job_calibrates_at_a_time_and_a_smaller_job_may_go_first() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    first = controller.start(1, 6)
    large, small = controller.claim(job(2)), controller.claim(job(3))
    controller.capture(large, 5, unknown=1)
    assert controller.orders[-1] == SetWaitsFor(
        job=JobId(2),
        claim=ClaimToken(1002),
        text="at least 5.0 MB of device memory, held by job 1 (6.0 MB): 1.0 MB more than the budget of 10.0 MB; "
        "4.0 MB are free",
    )
    assert GrantCalibration(trainer=small, grant_bytes=4 * REGION) in controller.capture(small, 3, unknown=1)
    orders = controller.finish(first)
    assert not orders_of_type(orders, GrantCalibration)
    orders = controller.send(Calibration(trainer=small, graphs=(graph(3),), latency_ns=((900,),)))
    assert GrantCalibration(trainer=large, grant_bytes=6 * REGION) in orders
