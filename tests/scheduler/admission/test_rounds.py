"""Check when jobs share the device in phases, and how they join and leave a round."""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import (
    BeginRound,
    EndRound,
    LeaveRound,
    Order,
    ParkJob,
    PlayPart,
    SendPlans,
    SetRoundPool,
)
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Capture,
    Exit,
    Failure,
    Holding,
    Parking,
    PauseChange,
    RoundLeft,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, TrainerId
from indb_tensile.scheduler.admission.questions import RoundFor
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    SlowPlannerController,
    graph,
    job,
    measurement,
    orders_of_type,
)

LONG = 1e12  # training steps, of a microsecond each
_ROUND_ORDERS = (BeginRound, SendPlans, SetRoundPool, LeaveRound, PlayPart, EndRound)


def _start(controller: FakeController, number: int, regions: int, steps: float = LONG, owner: int = 10) -> TrainerId:
    trainer = controller.claim(job(number, owner=owner))
    controller.send(Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((1000,),), unknown=0, steps=steps))
    return trainer


def _round_orders(controller: FakeController) -> list[Order]:
    return [order for order in controller.orders if isinstance(order, _ROUND_ORDERS)]


def _in_round() -> tuple[FakeController, TrainerId, TrainerId]:
    """Return a controller of 10 regions whose two jobs, of 8 regions each, have joined a round."""
    controller = FakeController(10, phases=True)
    first = _start(controller, 1, 8)
    controller.adopt_all()
    second = _start(controller, 2, 8)
    controller.adopt_all()
    assert controller.pool.round is not None
    return controller, first, second


def test_jobs_that_follow_their_plans_begin_a_round_and_its_pool_fills_as_they_join() -> None:
    controller = FakeController(10, phases=True)
    first = _start(controller, 1, 8)
    controller.adopt_all()
    second = _start(controller, 2, 8)
    controller.send(Adoption(trainer=first, generation=2))
    controller.send(Adoption(trainer=second, generation=1))
    begun, *sent = _round_orders(controller)
    assert isinstance(begun, BeginRound)
    assert (begun.number, begun.trainers) == (1, (first, second))
    assert [(o.trainer, o.grant_bytes, o.round) for o in sent if isinstance(o, SendPlans)] == [
        (first, REGION, 1),
        (second, REGION, 1),
    ]
    assert controller.grants() == {1: 6, 2: 4}
    controller.send(Adoption(trainer=first, generation=3))
    assert SetRoundPool(size_bytes=5 * REGION) in controller.orders
    controller.send(Adoption(trainer=second, generation=2))
    assert SetRoundPool(size_bytes=8 * REGION) in controller.orders
    assert controller.grants() == {1: 1, 2: 1}
    assert controller.pool.free_bytes == 0


def test_no_round_is_looked_for_without_need() -> None:
    for phases, seconds_steps, owner in ((False, LONG, 10), (True, 1.0, 10), (True, LONG, 11)):
        controller = FakeController(10, phases=phases)
        _start(controller, 1, 8, seconds_steps)
        controller.adopt_all()
        _start(controller, 2, 8, seconds_steps, owner)
        controller.adopt_all()
        assert controller.pool.round is None


def test_job_whose_batches_have_several_lengths_is_in_no_round() -> None:
    controller = FakeController(10, phases=True)
    _start(controller, 1, 8)
    controller.adopt_all()
    trainer = controller.claim(job(2))
    latency_ns = ((1000,),)
    controller.send(
        Capture(trainer=trainer, graphs=(graph(8),), latency_ns=latency_ns, unknown=0, steps=LONG, alternates=True)
    )
    controller.adopt_all()
    assert len(controller.pool.at(JobStage.RUNNING)) == 2
    assert controller.pool.round is None
    assert not orders_of_type(controller.orders, BeginRound)


def test_round_is_looked_for_once_for_the_same_plans() -> None:
    controller = SlowPlannerController(10, phases=True)
    for number in (1, 2):
        trainer = _start(controller, number, 8)
        controller.answer_all()
        controller.adopt_all()
        controller.answer_all()
        assert controller.pool.of_trainer(trainer) is not None
    controller.planner = replace(controller.cached_planner, rounds=False)
    asked = []
    while controller.question is not None:
        asked.append(type(controller.question))
        controller.answer()
        controller.adopt_all()
    controller.send(Tick())
    assert controller.question is None
    assert asked.count(RoundFor) <= 1


def test_answer_is_used_although_forecasts_were_renewed_meanwhile() -> None:
    controller = SlowPlannerController(10, phases=True)
    for number in (1, 2):
        _start(controller, number, 8)
        while controller.question is not None and not isinstance(controller.question, RoundFor):
            controller.answer()
            controller.adopt_all()
    assert isinstance(controller.question, RoundFor)
    member = controller.pool.members[0]
    assert member.trainer is not None
    assert member.plan is not None
    forecast = replace(member.plan.forecast, iteration_ns=1234)
    renewed = replace(member, plan=replace(member.plan, forecast=forecast))
    controller.pool = replace(controller.pool, members=(renewed, *controller.pool.members[1:]))
    controller.answer()
    assert controller.pool.round is not None


def test_planner_is_asked_for_a_round_with_what_graphs_save_which_noise_does_not_change() -> None:
    controller = SlowPlannerController(10, phases=False)
    trainers = [_start(controller, number, 8) for number in (1, 2)]
    while controller.question is not None:
        controller.answer()
        controller.adopt_all()
    for trainer, graph_share in zip(trainers, (0.5, 0.97), strict=True):
        member = controller.pool.of_trainer(trainer)
        assert member is not None
        for measured_share in (graph_share, 0.8):
            report = replace(measurement(trainer, 1000, generation=member.adopted), graph_share=measured_share)
            for _ in range(2):  # the first one reaches back to before the other job's plan
                controller.send(report)
    controller.pool = replace(controller.pool, phases=True, improvable=False)
    controller.send(Tick())
    assert isinstance(controller.question, RoundFor)
    assert [workload.graph_share for workload in controller.question.workloads] == [0.5, 0.97]


def test_all_leave_when_other_plans_are_there_and_get_them_when_the_round_is_over() -> None:
    controller, first, second = _in_round()
    third = controller.claim(job(3))
    controller.send(Capture(trainer=third, graphs=(graph(2),), latency_ns=((1000,),), unknown=0))
    assert _round_orders(controller) == [
        LeaveRound(trainer=first, number=1),
        LeaveRound(trainer=second, number=1),
    ]
    controller.send(RoundLeft(trainer=first, number=1))
    assert _round_orders(controller) == []
    controller.send(RoundLeft(trainer=second, number=1))
    end, pool, *sent = _round_orders(controller)
    assert (end, pool) == (EndRound(number=1), SetRoundPool(size_bytes=0))
    assert {(o.trainer, o.round) for o in sent if isinstance(o, SendPlans)} == {
        (first, None),
        (second, None),
        (third, None),
    }
    controller.adopt_all()
    assert sum(controller.grants().values()) <= 10


def test_part_of_a_dead_member_is_played_until_the_others_have_left() -> None:
    controller, first, second = _in_round()
    controller.send(Exit(trainer=first, code=-9))
    assert _round_orders(controller) == [PlayPart(trainer=first), LeaveRound(trainer=second, number=1)]
    controller.send(RoundLeft(trainer=second, number=1))
    assert [type(order) for order in _round_orders(controller)] == [EndRound, SetRoundPool, SendPlans]
    controller.adopt_all()
    assert controller.grants() == {2: 8}


def test_member_that_fails_holds_the_round_until_it_has_exited() -> None:
    controller, first, second = _in_round()
    fault = Fault(sqlstate="58000", message="broken")
    controller.send(Failure(trainer=first, fault=fault))
    assert PlayPart(trainer=first) in controller.orders
    controller.send(Tick())
    assert controller.pool.round is not None
    controller.send(Exit(trainer=first, code=1))
    controller.send(RoundLeft(trainer=second, number=1))
    assert controller.pool.round is None


def test_member_that_parks_leaves_the_round_and_the_others_follow() -> None:
    controller, first, second = _in_round()
    controller.send(PauseChange(paused=frozenset({job(1).job})))
    (parks,) = orders_of_type(controller.orders, ParkJob)
    assert parks.trainer == first
    controller.send(Parking(trainer=first, number=1, host_bytes=5))
    controller.send(RoundLeft(trainer=second, number=1))
    controller.adopt_all()
    assert controller.pool.round is None
    assert controller.grants() == {1: 0, 2: 8}
    member = controller.pool.of_trainer(first)
    assert member is not None
    assert (member.stage, member.waits_for) == (JobStage.PARKED, None)


def test_nothing_is_divided_before_all_have_joined() -> None:
    """The second job still has its old memory, for which the first may be waiting inside an iteration."""
    controller = FakeController(10, phases=True)
    first = _start(controller, 1, 8)
    controller.adopt_all()
    second = _start(controller, 2, 8)
    controller.send(Adoption(trainer=first, generation=2))
    controller.send(Adoption(trainer=second, generation=1))
    controller.send(Adoption(trainer=first, generation=3))
    third = controller.claim(job(3))
    controller.send(Capture(trainer=third, graphs=(graph(2),), latency_ns=((1000,),), unknown=0))
    assert _round_orders(controller) == []
    controller.send(Adoption(trainer=second, generation=2))
    assert {type(order) for order in _round_orders(controller)} == {SetRoundPool, LeaveRound}


def test_pool_never_takes_memory_that_a_member_has_not_given_back_yet() -> None:
    controller = FakeController(10, phases=True)
    first = _start(controller, 1, 8)
    controller.adopt_all()
    second = _start(controller, 2, 8)
    controller.send(Adoption(trainer=first, generation=2))
    controller.send(Adoption(trainer=second, generation=1))
    orders = controller.decide(Adoption(trainer=first, generation=3))
    assert orders_of_type(orders, SetRoundPool) == []
    controller.decide(Holding(trainer=first, held_bytes=2 * REGION))
    orders = controller.decide(Holding(trainer=first, held_bytes=REGION))
    assert orders_of_type(orders, SetRoundPool) == [SetRoundPool(size_bytes=5 * REGION)]


def test_measurements_in_a_round_renew_forecasts_also_when_a_member_has_gone() -> None:
    controller, first, second = _in_round()
    controller.send(measurement(second, 1100, generation=2))
    controller.send(Exit(trainer=first, code=-9))
    controller.send(measurement(second, 1100, generation=2))
    assert controller.pool.of_trainer(second) is not None
