"""Running jobs make way for shorter ones, every job has its first step in time, and a slow set is undone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Blame, ClaimedRank, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    EndMethod,
    EndTrainer,
    ParkJob,
    RequeueJob,
    SendPlans,
    SetWaitsFor,
)
from indb_tensile.scheduler.admission.events import (
    Capture,
    Exit,
    Failure,
    Finish,
    IdleDevice,
    Parking,
    PauseChange,
    StepsLeft,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.link import Link
from tests.nightly import some_examples

from .fake_controller import REGION, FakeController, graph, job, measurement, orders_of_type
from .test_completion_rule import TimedPlanner

_STEP_NS = 10_000_000
_LINK = Link(out_bytes_per_s=1 << 30, in_bytes_per_s=1 << 30)
_QUANTUM_STEPS = 200.0  # a change takes 0.1 s beside its copies, so the quantum is 2 s
_SAVED = Fault(sqlstate="53200", message="the job left the device, and goes on from its checkpoint")
_TURNS = Contention(points=((1, 1.0), (2, 2.0)))


def _controller(budget: int = 4, **rules: Any) -> FakeController:
    defaults: dict[str, Any] = {
        "sharing": Sharing.COMPLETION,
        "contention": _TURNS,
        "entering_jobs": 8,
        "link": _LINK,
    }
    return FakeController(budget, TimedPlanner(), **(defaults | rules))


def _capture(controller: FakeController, number: int, steps: float, regions: int = 4, **claimed: Any) -> TrainerId:
    trainer = controller.claim(job(number, **claimed))
    controller.send(
        Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((_STEP_NS,),), unknown=0, steps=steps)
    )
    return trainer


def _start(controller: FakeController, number: int, steps: float, **claimed: Any) -> TrainerId:
    trainer = _capture(controller, number, steps, **claimed)
    controller.adopt_all()
    return trainer


def _train(controller: FakeController, trainer: TrainerId, steps: float) -> None:
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    controller.send(StepsLeft(trainer=trainer, steps_left=max(0.0, member.steps_left - steps)))


def _parked(controller: FakeController, trainer: TrainerId) -> None:
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    controller.send(Parking(trainer=trainer, number=member.parks, host_bytes=0))


def _stages(controller: FakeController) -> dict[int, JobStage]:
    return {m.job.job: m.stage for m in controller.pool.members}


def _leaving(controller: FakeController) -> list[TrainerId]:
    return [order.trainer for order in orders_of_type(controller.orders, ParkJob)]


def test_a_long_job_makes_way_for_a_short_one_and_returns_after_it() -> None:
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    short = _capture(controller, 2, 500.0)
    assert _leaving(controller) == [long]
    _parked(controller, long)
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [short]
    controller.adopt_all()
    assert _stages(controller) == {1: JobStage.WAITING, 2: JobStage.RUNNING}
    controller.finish(short)
    controller.adopt_all()
    assert _stages(controller) == {1: JobStage.RUNNING}
    assert controller.pool.members[0].made_way == ""


def test_a_job_that_made_way_says_for_whom_since_when_and_for_about_how_long() -> None:
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    controller.send(Tick(now_s=7.0, time_of_day="12:03:05 UTC"))
    _capture(controller, 2, 500.0)
    texts = {order.job: order.text for order in orders_of_type(controller.orders, SetWaitsFor) if order.text}
    assert texts == {
        JobId(1): "job 2 to have its turn, of about 5.0 s; it made way for job 2 at 12:03:05 UTC",
        JobId(2): "job 1 to leave the device for it",
    }
    _parked(controller, long)
    controller.adopt_all()
    waits_for = controller.pool.members[0].waits_for
    assert waits_for is not None
    assert waits_for.startswith("job 2 to end, the first in about 5.0 s")
    assert waits_for.endswith("it made way for job 2 at 12:03:05 UTC")


def test_a_long_job_makes_way_for_a_short_one_that_comes_just_after_it() -> None:
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    short = _capture(controller, 2, 500.0)
    assert _leaving(controller) == [], "its first step comes first"
    _train(controller, long, 1.0)
    controller.send(Tick(now_s=1.0))
    assert _leaving(controller) == [long]
    _parked(controller, long)
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [short]


def test_nobody_makes_way_for_a_job_that_an_idle_device_may_get_soon() -> None:
    idle = IdleDevice(budget_bytes=100 * REGION)
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    controller.send(idle)
    short = _capture(controller, 2, 500.0)
    assert _leaving(controller) == []
    controller.send(idle)
    controller.send(Tick(now_s=7.0))
    assert _leaving(controller) == []
    assert EndTrainer(trainer=short, method=EndMethod.TERMINATE) in controller.send(idle)


def test_a_long_job_makes_way_once_the_other_device_is_not_idle_any_more() -> None:
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    controller.send(IdleDevice(budget_bytes=100 * REGION))
    _capture(controller, 2, 500.0)
    controller.send(IdleDevice(budget_bytes=None))
    controller.send(Tick(now_s=7.0))
    assert _leaving(controller) == [long]


def test_a_job_that_is_shorter_than_a_quantum_does_not_leave() -> None:
    controller = _controller()
    almost = _start(controller, 1, 0.9 * _QUANTUM_STEPS)
    _train(controller, almost, 1.0)
    _capture(controller, 2, 1.0)
    assert _leaving(controller) == []


def test_a_job_that_has_made_way_before_stays_until_its_quantum_is_over_and_then_makes_way_at_a_tick() -> None:
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 1.0)
    short = _capture(controller, 2, 500.0)
    _settle(controller)
    controller.finish(short)
    controller.adopt_all()
    _train(controller, long, _QUANTUM_STEPS / 2)
    _capture(controller, 3, 500.0)
    assert _leaving(controller) == []
    _train(controller, long, _QUANTUM_STEPS)
    controller.send(Tick(now_s=3.0))
    assert _leaving(controller) == [long]


def test_nobody_makes_way_if_no_job_may_wait_in_host_memory() -> None:
    for rules in ({"parked_jobs": 0}, {"host_pool_bytes": REGION - 1}, {"link": None}, {"max_jobs": 1}):
        controller = _controller(**rules)
        long = _start(controller, 1, 100_000.0)
        _train(controller, long, 2 * _QUANTUM_STEPS)
        if rules.get("max_jobs") != 1:
            _capture(controller, 2, 500.0)
        assert _leaving(controller) == []


def test_a_job_that_makes_way_while_all_places_in_host_memory_are_taken_is_saved_after_a_longer_quantum() -> None:
    controller = _controller(parked_jobs=1)
    paused = _start(controller, 9, 50_000.0)
    controller.send(PauseChange(paused=frozenset({JobId(9)})))
    _parked(controller, paused)
    long = _start(controller, 1, 100_000.0)
    controller.pool = replace(controller.pool, prepare_s=10.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    short = _capture(controller, 2, 500.0)
    assert _leaving(controller) == [], "ten seconds of preparation have to be worth it"
    _train(controller, long, 100 * _QUANTUM_STEPS)
    controller.send(Tick(now_s=1.0))
    orders = orders_of_type(controller.orders, ParkJob)
    assert [(order.trainer, order.in_memory) for order in orders] == [(long, False)]
    controller.send(Failure(trainer=long, fault=_SAVED, retry=True, blame=Blame.NOBODY))
    assert RequeueJob in {type(order) for order in controller.send(Exit(trainer=long, code=0))}
    controller.adopt_all()
    member = controller.pool.of_trainer(short)
    assert member is not None
    assert member.stage is JobStage.RUNNING


def test_of_two_jobs_that_make_way_one_is_saved_where_host_memory_has_one_place() -> None:
    controller = _controller(contention=Contention(points=((1, 1.0), (8, 1.0))), parked_jobs=1)
    pair = [_capture(controller, number, 100_000.0, regions=2) for number in (1, 2)]
    controller.adopt_all()
    for trainer in pair:
        _train(controller, trainer, 2 * _QUANTUM_STEPS)
    assert {m.stage for m in controller.pool.members} == {JobStage.RUNNING}
    _capture(controller, 3, 500.0)
    orders = orders_of_type(controller.orders, ParkJob)
    assert [(order.trainer, order.in_memory) for order in orders] == [(pair[0], True), (pair[1], False)]


def test_nobody_makes_way_under_any_price() -> None:
    controller = _controller(sharing=Sharing.ANY_PRICE)
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    _capture(controller, 2, 500.0, regions=40)
    assert _leaving(controller) == []


def test_a_job_returns_if_the_job_that_it_made_way_for_is_paused_before_it_starts() -> None:
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    _capture(controller, 2, 500.0)
    controller.send(PauseChange(paused=frozenset({JobId(2)})))
    _parked(controller, long)
    controller.adopt_all()
    assert _stages(controller)[1] is JobStage.RUNNING


def test_a_long_job_that_waits_for_its_first_step_for_too_long_has_one_quantum() -> None:
    controller = _controller(first_step_s=60.0)
    first = _start(controller, 1, 50_000.0)
    controller.send(Tick(now_s=0.0))
    second = _capture(controller, 2, 90_000.0)
    _train(controller, first, 2 * _QUANTUM_STEPS)
    controller.send(Tick(now_s=59.0))
    assert _leaving(controller) == []
    controller.send(Tick(now_s=61.0))
    assert _leaving(controller) == [first]
    _parked(controller, first)
    controller.adopt_all()
    _train(controller, second, _QUANTUM_STEPS / 2)
    controller.send(Tick(now_s=62.0))
    assert _leaving(controller) == []
    _train(controller, second, _QUANTUM_STEPS)
    controller.send(Tick(now_s=64.0))
    assert _leaving(controller) == [second]


def test_a_first_step_that_is_overdue_comes_once_before_a_higher_job_of_the_owner_that_runs() -> None:
    controller = _controller(first_step_s=60.0)
    high = _start(controller, 1, 50_000.0, priority=5)
    controller.send(Tick(now_s=0.0))
    low = _capture(controller, 2, 90_000.0)
    _train(controller, high, 2 * _QUANTUM_STEPS)
    controller.send(Tick(now_s=59.0))
    assert _leaving(controller) == []
    controller.send(Tick(now_s=61.0))
    assert _leaving(controller) == [high]
    _parked(controller, high)
    controller.adopt_all()
    assert _stages(controller) == {1: JobStage.WAITING, 2: JobStage.RUNNING}
    controller.send(Tick(now_s=62.0))
    _train(controller, low, _QUANTUM_STEPS / 2)
    assert _leaving(controller) == [], "it has its quantum"
    _train(controller, low, _QUANTUM_STEPS)
    assert _leaving(controller) == [low]
    _settle(controller)
    assert _stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    for now_s in range(100, 1_000, 100):
        _train(controller, high, 2 * _QUANTUM_STEPS)
        controller.send(Tick(now_s=float(now_s)))
        assert _leaving(controller) == [], "the first step is not overdue any more"
    controller.finish(high)
    controller.adopt_all()
    assert _stages(controller) == {2: JobStage.RUNNING}


def test_a_first_step_that_is_overdue_comes_before_a_higher_job_of_the_owner_that_waits_as_well() -> None:
    controller = _controller(first_step_s=60.0)
    other = _start(controller, 1, 1_000.0, owner=2)
    controller.send(Tick(now_s=0.0))
    low = _capture(controller, 2, 500.0)
    controller.send(Tick(now_s=50.0))
    high = _capture(controller, 3, 90_000.0, priority=5)
    controller.send(Tick(now_s=61.0))
    controller.finish(other)
    controller.adopt_all()
    assert _stages(controller) == {2: JobStage.RUNNING, 3: JobStage.WAITING}
    controller.finish(low)
    controller.adopt_all()
    assert _stages(controller) == {3: JobStage.RUNNING}
    assert controller.pool.of_trainer(high) is not None


def test_a_running_job_leaves_for_a_higher_one_also_while_an_overdue_first_step_goes_before_both() -> None:
    controller = _controller(first_step_s=60.0, parked_jobs=0)
    running = _start(controller, 1, 50_000.0)
    controller.send(Tick(now_s=0.0))
    low = _capture(controller, 2, 90_000.0)
    _train(controller, running, 2 * _QUANTUM_STEPS)
    controller.send(Tick(now_s=61.0))
    assert _leaving(controller) == [], "no job may wait in host memory"
    _capture(controller, 3, 90_000.0, priority=5)
    assert _leaving(controller) == [running]
    _parked(controller, running)
    controller.adopt_all()
    member = controller.pool.of_trainer(low)
    assert member is not None
    assert member.stage is JobStage.RUNNING


def test_a_job_whose_first_step_was_overdue_has_that_step_where_the_cost_of_a_change_is_not_known() -> None:
    controller = _controller(first_step_s=60.0, link=None)
    other = _start(controller, 1, 1_000.0, owner=2)
    controller.send(Tick(now_s=0.0))
    low = _capture(controller, 2, 90_000.0)
    controller.send(Tick(now_s=50.0))
    _capture(controller, 3, 90_000.0, priority=5)
    controller.send(Tick(now_s=61.0))
    controller.finish(other)
    controller.adopt_all()
    assert _stages(controller) == {2: JobStage.RUNNING, 3: JobStage.WAITING}
    assert _leaving(controller) == []
    _train(controller, low, 1.0)
    assert _leaving(controller) == [low]


def test_free_device_is_not_left_idle_once_a_first_step_is_overdue_although_no_event_comes() -> None:
    controller = _controller(first_step_s=5.0)
    controller.pool = replace(controller.pool, asked=True)  # so that no job starts
    _capture(controller, 1, steps=10)
    controller.pool = replace(controller.pool, asked=False, due=None)
    controller.send(Tick(now_s=4.0))
    assert _stages(controller) == {1: JobStage.WAITING}
    controller.send(Tick(now_s=6.0))
    assert _stages(controller) == {1: JobStage.RUNNING}


def test_an_owners_flood_of_jobs_does_not_delay_the_first_step_of_another_owner() -> None:
    controller = _controller(max_jobs=6, first_step_s=60.0)
    running = _start(controller, 1, 50_000.0, owner=1)
    for number in (2, 3, 4):
        _capture(controller, number, 1000.0, owner=1)
    controller.send(Tick(now_s=0.0))
    _train(controller, running, 2 * _QUANTUM_STEPS)
    other = _capture(controller, 5, 60_000.0, owner=2)
    now_s, trained = 0.0, False
    while now_s < 120.0 and not trained:
        now_s += 1.0
        _settle(controller)
        for member in controller.pool.at(JobStage.RUNNING):
            assert member.trainer is not None
            trained |= member.trainer == other
            _train(controller, member.trainer, 100.0)
            if controller.pool.of_trainer(member.trainer) and _left(controller, member.trainer) == 0:
                controller.finish(member.trainer)
        controller.send(Tick(now_s=now_s))
    assert trained


def test_a_set_that_is_slower_than_one_job_alone_is_undone_and_not_formed_again() -> None:
    side_by_side = Contention(points=((1, 1.0), (8, 1.0)))
    controller = _controller(8, contention=side_by_side)
    first, second = (_start(controller, number, 100_000.0) for number in (1, 2))
    assert _stages(controller) == {1: JobStage.RUNNING, 2: JobStage.RUNNING}
    for _ in range(8):
        for trainer, slowdown in ((first, 2.5), (second, 3.0)):
            slow = replace(measurement(trainer, _STEP_NS), iteration_ns=round(slowdown * _STEP_NS))
            controller.send(slow)
            if leaving := _leaving(controller):
                break
        if leaving:
            break
    assert leaving == [second], "the job that gained least"
    _parked(controller, second)
    controller.adopt_all()
    controller.send(Tick(now_s=1.0))
    controller.adopt_all()
    assert _stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    controller.finish(first)
    controller.adopt_all()
    assert _stages(controller) == {2: JobStage.RUNNING}


@pytest.mark.parametrize(("ranks", "leaves"), [((2,), [0]), ((1, 2), [])], ids=["one rank", "ranks only"])
def test_no_rank_leaves_a_set_that_is_slower_than_one_job_alone(ranks: tuple[int, ...], leaves: list[int]) -> None:
    controller = _controller(8, contention=Contention(points=((1, 1.0), (8, 1.0))))
    trainers = []
    for number in (1, 2):
        gang = ClaimedRank(rank=0, ranks=2, attempt_claim=ClaimToken(1000 + number)) if number in ranks else None
        trainers.append(controller.claim(replace(job(number), gang=gang)))
        latency_ns = ((_STEP_NS,),)
        controller.send(
            Capture(trainer=trainers[-1], graphs=(graph(4),), latency_ns=latency_ns, unknown=0, steps=100_000.0)
        )
        controller.adopt_all()
    leaving: list[TrainerId] = []
    for _ in range(8):
        for trainer, slowdown in zip(trainers, (2.5, 3.0), strict=True):
            slow = replace(measurement(trainer, _STEP_NS), iteration_ns=round(slowdown * _STEP_NS))
            controller.send(slow)
            leaving += _leaving(controller)
    assert leaving[:1] == [trainers[k] for k in leaves]


def test_a_set_that_is_as_fast_as_foretold_stays() -> None:
    side_by_side = Contention(points=((1, 1.0), (8, 1.0)))
    controller = _controller(8, contention=side_by_side)
    trainers = [_start(controller, number, 100_000.0) for number in (1, 2)]
    for _ in range(8):
        for trainer in trainers:
            controller.send(replace(measurement(trainer, _STEP_NS), iteration_ns=round(1.9 * _STEP_NS)))
            assert _leaving(controller) == []


@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 40), st.integers(10, 20_000), st.integers(1, 3), st.just(0)), min_size=1, max_size=6
    ),
    noise=st.lists(st.floats(0.97, 1.03), min_size=7, max_size=7),
)
@some_examples()
def test_every_job_has_its_first_step_in_time_and_ends_and_changes_are_rare(
    jobs: list[tuple[int, int, int, int]], noise: list[float]
) -> None:
    parks, trained_s = _simulate(jobs, noise)
    # once in each quantum, and once for each job at the beginning of its training
    assert parks <= trained_s / (_QUANTUM_STEPS / 100.0) + len(jobs)
    assert parks <= 4 * len(jobs), "jobs change places again and again"


@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 40), st.integers(10, 20_000), st.integers(1, 2), st.integers(0, 2)),
        min_size=2,
        max_size=6,
    ),
    noise=st.lists(st.floats(0.97, 1.03), min_size=7, max_size=7),
)
@some_examples()
def test_every_job_has_its_first_step_in_time_behind_higher_priorities_of_its_owner(
    jobs: list[tuple[int, int, int, int]], noise: list[float]
) -> None:
    parks, _ = _simulate(jobs, noise)
    # each job leaves once for each job of a higher priority that comes, and once for each first step that is overdue
    assert parks <= 4 * len(jobs) + len(jobs) ** 2, "jobs change places again and again"


def _simulate(jobs: list[tuple[int, int, int, int]], noise: list[float]) -> tuple[int, float]:
    """Simulate a second at a time: jobs arrive, train, make way and end. Step times have noise.

    A job is the second of its arrival, its steps, its owner and its priority. Return how often jobs left the device,
    and the seconds of training.
    """
    first_step_s = 30.0
    controller = _controller(max_jobs=8, parked_jobs=7, first_step_s=first_step_s)
    arrivals = sorted((at_s, number, float(steps), rest) for number, (at_s, steps, *rest) in enumerate(jobs, start=1))
    ready_s: dict[int, float] = {}
    first_s: dict[int, float] = {}
    now_s, parks, trained_s = 0.0, 0, 0.0
    while arrivals or controller.pool.members:
        now_s += 1.0
        assert now_s < 5_000, f"stuck: {_stages(controller)}"
        controller.send(Tick(now_s=now_s))
        parks += _settle(controller)
        while arrivals and arrivals[0][0] <= now_s:
            _, number, steps, (owner, priority) = arrivals.pop(0)
            ready_s[number] = now_s
            _capture(controller, number, steps, owner=owner, priority=priority)
            parks += _settle(controller)
        running = controller.pool.at(JobStage.RUNNING)
        for member in running:
            assert member.trainer is not None
            trained_s += 1.0 / len(running)
            first_s.setdefault(member.job.job, now_s)
            _train(controller, member.trainer, 100.0 / len(running) * noise[int(now_s) % len(noise)])
            parks += _settle(controller)
            left = _left(controller, member.trainer)
            if left == 0:
                controller.finish(member.trainer)
                parks += _settle(controller)
        assert controller.pool.held_bytes <= controller.pool.budget_bytes
    # within the bound, and the quanta of the jobs that are overdue at the same time and of those that run
    cycle_s = len(jobs) * (_QUANTUM_STEPS / 100.0 + 2.0) + 2.0
    assert all(first_s[number] - ready_s[number] <= first_step_s + cycle_s for number in ready_s)
    return parks, trained_s


def _left(controller: FakeController, trainer: TrainerId) -> float | None:
    member = controller.pool.of_trainer(trainer)
    return None if member is None else member.steps_left


def _settle(controller: FakeController) -> int:
    """Let every trainer park that was told to, and follow every plan that was sent. Return how many parked."""
    parks = 0
    while True:
        controller.adopt_all()
        parking = [m for m in controller.pool.members if m.stage is JobStage.PARKING]
        if not parking:
            return parks
        assert parking[0].trainer is not None
        _parked(controller, parking[0].trainer)
        parks += 1


def test_a_job_that_ends_while_it_should_make_way_is_done() -> None:
    controller = _controller()
    long = _start(controller, 1, 100_000.0)
    _train(controller, long, 2 * _QUANTUM_STEPS)
    _capture(controller, 2, 500.0)
    controller.send(Finish(trainer=long))
    assert _stages(controller)[1] is JobStage.ENDING
    controller.finish(long)
    controller.adopt_all()
    assert _stages(controller) == {2: JobStage.RUNNING}
