"""Check what `decide()` does when an operator needs more memory than was planned, or a block has no place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Blame
from indb_tensile.scheduler.admission.admission_orders import (
    EndMethod,
    EndTrainer,
    FailJob,
    GrantCalibration,
    RecordPlan,
    RequeueJob,
    SendPlans,
)
from indb_tensile.scheduler.admission.events import Adoption, Exit, Misplacement
from indb_tensile.scheduler.admission.memory_correction import MOST_MISPLACED
from indb_tensile.scheduler.admission.pool import PlanReason, TrainerId
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    SlowPlannerController,
    correction,
    job,
    orders_of_type,
)


def test_job_whose_operator_outgrew_its_workspace_grows_into_free_memory() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    controller.send(correction(trainer, 4, 2))
    (sent,) = orders_of_type(controller.orders, SendPlans)
    assert (sent.generation, sent.grant_bytes, sent.correction) == (2, 6 * REGION, 1)
    assert orders_of_type(controller.orders, RecordPlan)[0].reason is PlanReason.MEMORY
    controller.adopt_all()
    assert controller.grants() == {1: 6}


def test_other_jobs_shrink_for_a_job_that_has_to_grow() -> None:
    controller = FakeController(10)
    first, second = controller.start(1, 4), controller.start(2, 6)
    controller.send(correction(first, 4, 4))
    (shrunk,) = orders_of_type(controller.orders, SendPlans)
    assert (shrunk.trainer, shrunk.grant_bytes, shrunk.correction) == (second, 3 * REGION, 0)
    (grown,) = orders_of_type(controller.send(Adoption(trainer=second, generation=2)), SendPlans)
    assert (grown.trainer, grown.grant_bytes, grown.correction) == (first, 7 * REGION, 1)


def test_plan_with_equal_choices_and_grant_is_sent_for_new_workspaces() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    same_size = replace(correction(trainer, 4, 0), number=1)
    (sent,) = orders_of_type(controller.send(same_size), SendPlans)
    assert (sent.grant_bytes, sent.correction) == (4 * REGION, 1)


def test_correction_that_is_known_already_changes_nothing() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    controller.send(correction(trainer, 4, 2))
    controller.adopt_all()
    assert controller.send(correction(trainer, 4, 5)) == ()
    assert controller.send(correction(TrainerId(99), 4, 5, number=2)) == ()


def test_plan_that_was_decided_for_the_old_workspaces_is_not_sent() -> None:
    controller = SlowPlannerController(10)
    first = controller.claim(job(1))
    controller.capture(first, 8)
    controller.answer_all()
    controller.adopt_all()
    second = controller.claim(job(2))
    controller.capture(second, 6)
    controller.answer_all()  # the first job has to shrink before the second one gets its plan
    controller.send(correction(first, 8, 1))
    while controller.question is not None or any(m.in_flight for m in controller.pool.members):
        controller.answer_all()
        controller.adopt_all()
    member = controller.pool.of_trainer(first)
    assert member is not None
    assert (member.planned_correction, member.settled) == (1, True)
    assert sum(controller.grants().values()) <= 10


def test_job_that_the_whole_budget_cannot_hold_fails_with_the_operator_and_both_sizes() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    trainer = controller.start(1, 8)
    other = controller.start(2, 2)
    orders = controller.send(correction(trainer, 8, 3))
    assert orders_of_type(orders, EndTrainer) == [EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)]
    (failed,) = orders_of_type(controller.send(Exit(trainer=trainer, code=0)), FailJob)
    assert failed.fault.sqlstate == "53200"
    assert failed.fault.message == "job 1 needs at least 11.0 MB of device memory, more than the budget of 10.0 MB"
    assert failed.fault.detail.startswith(
        "While it trained, operator op0 needs a workspace of 3.0 MB, and 0 B were planned for it. "
    )
    assert "smaller batch_size" in failed.fault.hint
    assert "larger budget" in failed.fault.hint
    assert [m.trainer for m in controller.pool.members] == [other]


def test_youngest_job_goes_back_to_the_queue_without_blame_if_the_jobs_do_not_fit_together() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    first, second = controller.start(1, 5), controller.start(2, 4)
    orders = controller.send(correction(first, 5, 2))
    assert orders_of_type(orders, EndTrainer) == [EndTrainer(trainer=second, method=EndMethod.TERMINATE)]
    orders = controller.send(Exit(trainer=second, code=0))
    (requeued,) = orders_of_type(orders, RequeueJob)
    assert (requeued.job, requeued.blame) == (2, Blame.NOBODY)
    assert requeued.reason == (
        "job 1 had to grow: operator op0 needs a workspace of 2.0 MB, and 0 B were planned for it"
    )
    controller.adopt_all()
    assert controller.grants() == {1: 7}


def test_job_that_its_owners_quota_cannot_hold_beside_other_jobs_goes_back_itself() -> None:
    controller = FakeController(20, HalvingPlanner(swaps=False))
    trainers = []
    for number in (1, 2):
        trainers.append(controller.claim(job(number, owner=10, owner_limit_bytes=8 * REGION)))
        controller.capture(trainers[-1], 4)
        controller.adopt_all()
    other = controller.claim(job(3, owner=11))
    controller.capture(other, 4)
    controller.adopt_all()
    orders = controller.send(correction(trainers[1], 4, 1))
    assert orders_of_type(orders, EndTrainer) == [EndTrainer(trainer=trainers[1], method=EndMethod.TERMINATE)]
    (requeued,) = orders_of_type(controller.send(Exit(trainer=trainers[1], code=0)), RequeueJob)
    assert (requeued.job, requeued.blame) == (2, Blame.NOBODY)


def test_correction_is_planned_although_a_job_waits_for_its_calibration() -> None:
    controller = FakeController(10)
    first = controller.start(1, 4)
    second = controller.claim(job(2))
    controller.send(correction(first, 4, 0))
    controller.capture(second, 2, unknown=1)
    controller.adopt_all()
    member = controller.pool.of_trainer(first)
    assert member is not None
    assert not member.outdated
    assert orders_of_type(controller.orders, GrantCalibration)


def test_invalid_correction_fails_its_own_job() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    controller.send(replace(correction(trainer, 4, 1), graphs=()))
    (failed,) = orders_of_type(controller.send(Exit(trainer=trainer, code=0)), FailJob)
    assert failed.fault.message == "job 1: a correction has 0 graphs with other operators than the first"


def test_plan_whose_block_had_no_place_is_sent_again_a_few_times() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    for generation in range(1, MOST_MISPLACED + 1):
        misplacement = Misplacement(trainer=trainer, generation=generation, block_bytes=4 * REGION)
        (sent,) = orders_of_type(controller.send(misplacement), SendPlans)
        assert (sent.generation, sent.grant_bytes) == (generation + 1, 4 * REGION)
        controller.adopt_all()
    last = Misplacement(trainer=trainer, generation=MOST_MISPLACED + 1, block_bytes=4 * REGION)
    assert controller.send(last) == ()


@pytest.mark.parametrize(("generation", "regions"), [(7, 4), (1, 5)], ids=["another plan's", "larger than granted"])
def test_block_that_no_new_plan_could_place_is_left_alone(generation: int, regions: int) -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    misplacement = Misplacement(trainer=trainer, generation=generation, block_bytes=regions * REGION)
    assert controller.send(misplacement) == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=12), st.integers(8, 30))
def test_jobs_that_grow_in_any_order_end_up_planned_for_what_they_need_or_off_the_device(
    growths: list[tuple[int, int]], budget: int
) -> None:
    controller = FakeController(budget)
    trainers = [controller.start(number, 2) for number in range(1, 5)]
    needs = [0] * len(trainers)
    numbers = [0] * len(trainers)
    for which, more in growths:
        needs[which] += more
        numbers[which] += 1
        controller.send(correction(trainers[which], 2, needs[which], number=numbers[which]))
        for member in tuple(controller.pool.members):
            if member.outcome is not None and member.trainer is not None:
                controller.send(Exit(trainer=member.trainer, code=0))
        controller.adopt_all()
        assert controller.pool.held_bytes <= budget * REGION
    for member in controller.pool.members:
        if member.trainer in trainers and member.generation:
            which = trainers.index(member.trainer)
            assert (member.planned_correction, member.settled) == (numbers[which], True)
            assert member.planned_bytes * 2 >= (2 + needs[which]) * REGION, "less than the planner's least"
