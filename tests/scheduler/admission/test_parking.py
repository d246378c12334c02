"""A paused job leaves the device, its memory serves others, and a resumed job waits for memory like a new one."""

from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.job import Blame, JobId, Phase
from indb_tensile.scheduler.admission.admission_orders import (
    AssignJob,
    CancelJob,
    EndMethod,
    EndTrainer,
    FailJob,
    ParkJob,
    RecordPhase,
    RequeueJob,
    SendPlans,
    SetGrant,
)
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.events import (
    Adoption,
    BudgetChange,
    CancelRequest,
    Capture,
    Exit,
    ExitCause,
    Failure,
    Finish,
    Parking,
    PauseChange,
    Silence,
    Stall,
    Stop,
    Tick,
)
from indb_tensile.scheduler.admission.parking import bring_back, parked_host_bytes, set_aside
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Member, TrainerId
from indb_tensile.scheduler.admission.region_fit import beside
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from tests.scheduler.admission.fake_controller import REGION, FakeController, graph, job, orders_of_type

STATE_BYTES = 3 * 4096


def _pause(controller: FakeController, *numbers: int) -> None:
    controller.send(PauseChange(paused=frozenset(map(JobId, numbers))))


def _parking(controller: FakeController, trainer: TrainerId, host_bytes: int = STATE_BYTES) -> None:
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    controller.send(Parking(trainer=trainer, number=member.parks, host_bytes=host_bytes))


def _member(controller: FakeController, number: int) -> Member:
    member = controller.pool.of_job(JobId(number))
    assert member is not None
    return member


def _parked(controller: FakeController, number: int, regions: int) -> TrainerId:
    """Start a job and park it."""
    trainer = controller.start(number, regions)
    _pause(controller, *(m.job.job for m in controller.pool.members if m.paused or m.job.job == number))
    _parking(controller, trainer)
    return trainer


def _phases(controller: FakeController) -> list[Phase]:
    return [order.phase for order in orders_of_type(controller.orders, RecordPhase)]


def _with_state(regions: int) -> StepGraph:
    """Return a graph with one persistent tensor."""
    state = Tensor(id=TensorId(0), name="w", size_bytes=STATE_BYTES, role=Role.PARAMETER)
    output = Tensor(id=TensorId(1), name="t", size_bytes=regions * REGION, role=Role.ACTIVATION)
    operator = Operator(name="op", signature="op", stage=Stage.FORWARD, reads=(TensorId(0),), writes=(TensorId(1),))
    return StepGraph(tensors=(state, output), operators=(operator,))


def test_paused_job_gives_its_memory_to_the_others_and_gets_memory_again_when_it_is_resumed() -> None:
    controller = FakeController(12)
    first = controller.start(1, 8)
    second = controller.start(2, 8)
    assert controller.grants() == {1: 8, 2: 4}
    _pause(controller, 1)
    assert orders_of_type(controller.orders, ParkJob) == [ParkJob(trainer=first, number=1, in_memory=True)]
    assert controller.grants() == {1: 8, 2: 4}, "the trainer has not left the device yet"
    assert not orders_of_type(controller.orders, SendPlans)
    _parking(controller, first)
    assert _phases(controller) == [Phase.PAUSED]
    assert controller.grants() == {1: 0, 2: 8}
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [second]
    controller.adopt_all()
    _pause(controller)
    assert _phases(controller) == [Phase.WAITING]
    controller.adopt_all()
    assert controller.grants() == {1: 4, 2: 8}
    assert not _member(controller, 1).parked


def test_job_that_waits_for_memory_is_let_in_when_a_paused_job_leaves() -> None:
    controller = FakeController(8)
    first = controller.start(1, 16)
    second = controller.claim(job(2))
    controller.capture(second, 16)
    assert _member(controller, 2).stage is JobStage.WAITING
    _pause(controller, 1)
    assert _member(controller, 2).stage is JobStage.RUNNING
    assert controller.grants() == {1: 8, 2: 0}
    _parking(controller, first)
    controller.adopt_all()
    assert controller.grants() == {1: 0, 2: 8}
    _pause(controller)
    waiting = _member(controller, 1)
    assert waiting.stage is JobStage.WAITING
    assert waiting.waits_for is not None
    assert "held by job 2" in waiting.waits_for
    controller.finish(second)
    controller.adopt_all()
    assert controller.grants() == {1: 8}


def test_resumed_job_is_planned_for_a_budget_that_is_smaller_now() -> None:
    controller = FakeController(8)
    _parked(controller, 1, 8)
    controller.send(BudgetChange(budget_bytes=5 * REGION))
    _pause(controller)
    controller.adopt_all()
    assert controller.grants() == {1: 5}


def test_resumed_job_that_no_plan_fits_any_more_fails_with_the_memory_that_it_needs() -> None:
    controller = FakeController(8)
    trainer = _parked(controller, 1, 8)
    controller.send(BudgetChange(budget_bytes=3 * REGION))
    _pause(controller)
    assert orders_of_type(controller.orders, EndTrainer) == [EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)]
    controller.send(Exit(trainer=trainer, code=-15))
    (failed,) = orders_of_type(controller.orders, FailJob)
    assert failed.fault.sqlstate == "53200"


def test_job_resumed_before_it_has_left_the_device_comes_back_at_once() -> None:
    controller = FakeController(8)
    trainer = controller.start(1, 8)
    _pause(controller, 1)
    _pause(controller)
    assert _member(controller, 1).stage is JobStage.PARKING
    _parking(controller, trainer)
    controller.adopt_all()
    assert controller.grants() == {1: 8}


def test_job_paused_again_on_its_way_back_stays_in_the_host_pool() -> None:
    controller = FakeController(8)
    _parked(controller, 1, 16)
    controller.start(2, 16)
    _pause(controller)
    assert _member(controller, 1).stage is JobStage.WAITING
    _pause(controller, 1)
    assert _member(controller, 1).stage is JobStage.PARKED
    assert _member(controller, 1).waits_for is None
    assert _phases(controller) == [Phase.PAUSED]
    assert not orders_of_type(controller.orders, ParkJob)


def test_job_paused_while_it_changes_plans_leaves_after_it_has_adopted_the_new_plan() -> None:
    controller = FakeController(12)
    first = controller.start(1, 12)
    second = controller.claim(job(2))
    controller.capture(second, 8)
    assert _member(controller, 1).in_flight
    _pause(controller, 1)
    assert not orders_of_type(controller.orders, ParkJob)
    controller.send(Adoption(trainer=first, generation=_member(controller, 1).generation))
    assert len(orders_of_type(controller.orders, ParkJob)) == 1


@pytest.mark.parametrize("stage", [JobStage.CAPTURING, JobStage.CALIBRATING, JobStage.WAITING])
def test_paused_job_that_has_not_begun_to_train_goes_back_to_the_queue_without_a_fault(stage: JobStage) -> None:
    controller = FakeController(8)
    controller.start(9, 16)
    assert controller.grants() == {9: 8}
    trainer = controller.claim(job(1))
    if stage is not JobStage.CAPTURING:
        controller.capture(trainer, 8, unknown=int(stage is JobStage.CALIBRATING))
    if stage is JobStage.CALIBRATING:
        controller.finish(TrainerId(1))
    assert _member(controller, 1).stage is stage
    _pause(controller, 1)
    controller.send(Exit(trainer=trainer, code=-15))
    (requeued,) = orders_of_type(controller.orders, RequeueJob)
    assert (requeued.blame, requeued.reason) == (Blame.NOBODY, "its owner paused it")


def test_paused_job_without_a_trainer_goes_back_to_the_queue_at_once() -> None:
    controller = FakeController(8)
    controller.claim(job(1))
    controller.pool = replace(controller.pool, spares=())
    controller.pool = replace(controller.pool, members=(*controller.pool.members, Member(job=job(2))))
    _pause(controller, 2)
    assert [order.job for order in orders_of_type(controller.orders, RequeueJob)] == [2]
    assert [member.job.job for member in controller.pool.members] == [1]


def test_parked_jobs_keep_their_share_of_the_host_pool_from_the_plans_of_others() -> None:
    controller = FakeController(8, host_pool_bytes=10 * STATE_BYTES)
    trainer = controller.claim(job(1))
    controller.send(Capture(trainer=trainer, graphs=(_with_state(4),), latency_ns=((1000,),), unknown=0))
    controller.adopt_all()
    _pause(controller, 1)
    assert _member(controller, 1).host_bytes >= STATE_BYTES, "reserved before the trainer fills the pool"
    _parking(controller, trainer, STATE_BYTES)
    controller.start(2, 4)
    workload = _member(controller, 2).workload
    assert workload is not None
    assert beside(controller.pool, workload).parked_host_bytes == STATE_BYTES
    assert parked_host_bytes(controller.pool, JobId(1)) == 0
    assert controller.pool.free_host_bytes <= 9 * STATE_BYTES


def test_job_for_which_the_host_pool_has_no_room_goes_to_its_checkpoint_without_a_fault() -> None:
    controller = FakeController(8)
    trainer = controller.claim(job(1))
    controller.send(Capture(trainer=trainer, graphs=(_with_state(4),), latency_ns=((1000,),), unknown=0))
    controller.adopt_all()
    member = _member(controller, 1)
    controller.pool = replace(
        controller.pool, members=(replace(member, host_bytes=0),), host_pool_bytes=STATE_BYTES - 1
    )
    _pause(controller, 1)
    assert orders_of_type(controller.orders, ParkJob) == [ParkJob(trainer=trainer, number=1, in_memory=False)]
    fault = Fault(sqlstate="53200", message="job 1 left the device")
    controller.send(Failure(trainer=trainer, fault=fault, retry=True, blame=Blame.NOBODY))
    controller.send(Exit(trainer=trainer, code=71))
    (requeued,) = orders_of_type(controller.orders, RequeueJob)
    assert requeued.blame is Blame.NOBODY


@pytest.mark.parametrize(("rules", "most"), [({"parked_jobs": 2}, 2), ({"max_jobs": 4}, 3), ({"parked_jobs": 0}, 0)])
def test_only_some_jobs_wait_in_host_memory_and_a_place_is_left_for_others(rules: dict[str, Any], most: int) -> None:
    controller = FakeController(20, **rules)
    for number in range(1, 5):
        controller.start(number, 2)
    _pause(controller, 1, 2, 3, 4)
    in_memory = [order.in_memory for order in orders_of_type(controller.orders, ParkJob)]
    assert in_memory == [True] * most + [False] * (4 - most)


def test_cancelled_or_killed_parked_job_ends_like_any_other() -> None:
    controller = FakeController(8)
    first, second = _parked(controller, 1, 4), _parked(controller, 2, 4)
    controller.send(CancelRequest(job=JobId(1)))
    controller.send(Exit(trainer=first, code=-15, ending=ExitCause.STOPPED))
    assert orders_of_type(controller.orders, CancelJob)
    controller.send(Exit(trainer=second, code=-9, ending=ExitCause.OUTSIDE))
    (requeued,) = orders_of_type(controller.orders, RequeueJob)
    assert (requeued.job, requeued.blame) == (2, Blame.OTHERS)
    assert controller.pool.members == ()


def test_trainer_that_does_not_leave_the_device_is_killed() -> None:
    controller = FakeController(8)
    trainer = controller.start(1, 4)
    _pause(controller, 1)
    assert (trainer, -1) in controller.pool.owing
    controller.send(Silence(trainer=trainer))
    assert EndTrainer(trainer=trainer, method=EndMethod.KILL) in controller.orders


def test_silence_of_a_parked_trainer_means_nothing() -> None:
    controller = FakeController(8)
    trainer = _parked(controller, 1, 4)
    before = controller.pool
    for event in (Silence(trainer=trainer), Stall(trainer=trainer, silent_s=9e9), Tick()):
        assert not orders_of_type(controller.send(event), EndTrainer)
    assert controller.pool.members == before.members
    assert trainer not in {owing for owing, _ in controller.pool.owing}


def test_job_that_finishes_before_it_reads_the_order_to_park_has_succeeded() -> None:
    controller = FakeController(8)
    trainer = controller.start(1, 4)
    _pause(controller, 1)
    controller.send(Finish(trainer=trainer))
    controller.send(Exit(trainer=trainer, code=0))
    assert controller.pool.members == ()
    assert not orders_of_type(controller.orders, RequeueJob)


@pytest.mark.parametrize("number", [0, 2])
def test_answer_to_another_order_to_park_changes_nothing(number: int) -> None:
    controller = FakeController(8)
    trainer = controller.start(1, 4)
    _pause(controller, 1)
    before = controller.pool
    controller.send(Parking(trainer=trainer, number=number, host_bytes=-1))
    assert controller.pool == before


def test_parked_job_does_not_keep_its_owners_next_job_from_being_claimed() -> None:
    controller = FakeController(8, entering_jobs=1)
    _parked(controller, 1, 4)
    assert controller.claim(job(2))
    assert orders_of_type(controller.orders, AssignJob)


def test_stopping_controller_ends_parked_trainers_without_a_fault() -> None:
    controller = FakeController(8)
    trainer = _parked(controller, 1, 4)
    controller.send(Stop())
    controller.send(Exit(trainer=trainer, code=-15))
    (requeued,) = orders_of_type(controller.orders, RequeueJob)
    assert requeued.blame is Blame.NOBODY


def test_job_that_is_set_aside_is_parked_until_it_is_brought_back() -> None:
    controller = FakeController(8)
    trainer = controller.start(1, 8)
    _apply(controller, 1, set_aside)
    assert orders_of_type(controller.orders, ParkJob)
    _parking(controller, trainer)
    assert _phases(controller) == [Phase.PARKED]
    assert orders_of_type(controller.orders, SetGrant) == [SetGrant(trainer=trainer, grant_bytes=0)]
    _pause(controller, 1)
    assert _phases(controller) == [Phase.PAUSED]
    _apply(controller, 1, bring_back)
    assert _member(controller, 1).stage is JobStage.PARKED, "its owner has paused it meanwhile"
    _pause(controller)
    controller.adopt_all()
    assert controller.grants() == {1: 8}


def _apply(controller: FakeController, number: int, change: Any) -> None:
    decision = Decision(controller.pool, controller.planner)
    change(decision, _member(controller, number))
    controller.pool = decision.pool
    controller.send(Tick())


def test_capture_of_a_job_that_was_paused_meanwhile_is_ignored() -> None:
    controller = FakeController(8)
    trainer = controller.claim(job(1))
    _pause(controller, 1)
    controller.send(Capture(trainer=trainer, graphs=(graph(2),), latency_ns=((1,),), unknown=0))
    assert _member(controller, 1).stage is JobStage.ENDING
