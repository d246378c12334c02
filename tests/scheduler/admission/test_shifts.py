"""Running jobs make way for shorter ones, and every job has its first step in time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Blame, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    EndMethod,
    EndTrainer,
    ParkJob,
    RequeueJob,
    SendPlans,
    SetWaitsFor,
)
from indb_tensile.scheduler.admission.events import (
    Exit,
    Failure,
    Finish,
    IdleDevice,
    PauseChange,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from tests.nightly import some_examples

from .fake_controller import REGION, FakeController, orders_of_type
from .timed_jobs import QUANTUM_STEPS, capture, leaving_trainers, park, stages, start, timed_controller, train

_SAVED = Fault(sqlstate="53200", message="the job left the device, and goes on from its checkpoint")


def test_a_long_job_makes_way_for_a_short_one_and_returns_after_it() -> None:
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    short = capture(controller, 2, 500.0)
    assert leaving_trainers(controller) == [long]
    park(controller, long)
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [short]
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.WAITING, 2: JobStage.RUNNING}
    controller.finish(short)
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.RUNNING}
    assert controller.pool.members[0].made_way == ""


def test_a_job_that_made_way_says_for_whom_since_when_and_for_about_how_long() -> None:
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    controller.send(Tick(now_s=7.0, time_of_day="12:03:05 UTC"))
    capture(controller, 2, 500.0)
    texts = {order.job: order.text for order in orders_of_type(controller.orders, SetWaitsFor) if order.text}
    assert texts == {
        JobId(1): "job 2 to have its turn, of about 5.0 s; it made way for job 2 at 12:03:05 UTC",
        JobId(2): "job 1 to leave the device for it",
    }
    park(controller, long)
    controller.adopt_all()
    waits_for = controller.pool.members[0].waits_for
    assert waits_for is not None
    assert waits_for.startswith("job 2 to end, the first in about 5.0 s")
    assert waits_for.endswith("it made way for job 2 at 12:03:05 UTC")


def test_a_long_job_makes_way_for_a_short_one_that_comes_just_after_it() -> None:
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    short = capture(controller, 2, 500.0)
    assert leaving_trainers(controller) == [], "its first step comes first"
    train(controller, long, 1.0)
    controller.send(Tick(now_s=1.0))
    assert leaving_trainers(controller) == [long]
    park(controller, long)
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [short]


def test_nobody_makes_way_for_a_job_that_an_idle_device_may_get_soon() -> None:
    idle = IdleDevice(budget_bytes=100 * REGION)
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    controller.send(idle)
    short = capture(controller, 2, 500.0)
    assert leaving_trainers(controller) == []
    controller.send(idle)
    controller.send(Tick(now_s=7.0))
    assert leaving_trainers(controller) == []
    assert EndTrainer(trainer=short, method=EndMethod.TERMINATE) in controller.send(idle)


def test_a_long_job_makes_way_once_the_other_device_is_not_idle_any_more() -> None:
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    controller.send(IdleDevice(budget_bytes=100 * REGION))
    capture(controller, 2, 500.0)
    controller.send(IdleDevice(budget_bytes=None))
    controller.send(Tick(now_s=7.0))
    assert leaving_trainers(controller) == [long]


def test_a_job_that_is_shorter_than_a_quantum_does_not_leave() -> None:
    controller = timed_controller()
    almost = start(controller, 1, 0.9 * QUANTUM_STEPS)
    train(controller, almost, 1.0)
    capture(controller, 2, 1.0)
    assert leaving_trainers(controller) == []


def test_a_job_that_has_made_way_before_stays_until_its_quantum_is_over_and_then_makes_way_at_a_tick() -> None:
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    train(controller, long, 1.0)
    short = capture(controller, 2, 500.0)
    _settle(controller)
    controller.finish(short)
    controller.adopt_all()
    train(controller, long, QUANTUM_STEPS / 2)
    capture(controller, 3, 500.0)
    assert leaving_trainers(controller) == []
    train(controller, long, QUANTUM_STEPS)
    controller.send(Tick(now_s=3.0))
    assert leaving_trainers(controller) == [long]


def test_nobody_makes_way_if_no_job_may_wait_in_host_memory() -> None:
    for rules in ({"parked_jobs": 0}, {"host_pool_bytes": REGION - 1}, {"link": None}, {"max_jobs": 1}):
        controller = timed_controller(**rules)
        long = start(controller, 1, 100_000.0)
        train(controller, long, 2 * QUANTUM_STEPS)
        if rules.get("max_jobs") != 1:
            capture(controller, 2, 500.0)
        assert leaving_trainers(controller) == []


def test_a_job_that_makes_way_while_all_places_in_host_memory_are_taken_is_saved_after_a_longer_quantum() -> None:
    controller = timed_controller(parked_jobs=1)
    paused = start(controller, 9, 50_000.0)
    controller.send(PauseChange(paused=frozenset({JobId(9)})))
    park(controller, paused)
    long = start(controller, 1, 100_000.0)
    controller.pool = replace(controller.pool, prepare_s=10.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    short = capture(controller, 2, 500.0)
    assert leaving_trainers(controller) == [], "ten seconds of preparation have to be worth it"
    train(controller, long, 100 * QUANTUM_STEPS)
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
    controller = timed_controller(contention=Contention(points=((1, 1.0), (8, 1.0))), parked_jobs=1)
    pair = [capture(controller, number, 100_000.0, regions=2) for number in (1, 2)]
    controller.adopt_all()
    for trainer in pair:
        train(controller, trainer, 2 * QUANTUM_STEPS)
    assert {m.stage for m in controller.pool.members} == {JobStage.RUNNING}
    capture(controller, 3, 500.0)
    orders = orders_of_type(controller.orders, ParkJob)
    assert [(order.trainer, order.in_memory) for order in orders] == [(pair[0], True), (pair[1], False)]


def test_nobody_makes_way_under_any_price() -> None:
    controller = timed_controller(sharing=Sharing.ANY_PRICE)
    long = start(controller, 1, 100_000.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    capture(controller, 2, 500.0, regions=40)
    assert leaving_trainers(controller) == []


def test_a_job_returns_if_the_job_that_it_made_way_for_is_paused_before_it_starts() -> None:
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    capture(controller, 2, 500.0)
    controller.send(PauseChange(paused=frozenset({JobId(2)})))
    park(controller, long)
    controller.adopt_all()
    assert stages(controller)[1] is JobStage.RUNNING


def _overdue_first_step(priority: int = 0) -> tuple[FakeController, TrainerId, TrainerId]:
    """Let a running job of this priority leave at 61 s for one that has waited for its first step. Return both."""
    controller = timed_controller(first_step_s=60.0)
    first = start(controller, 1, 50_000.0, priority=priority)
    controller.send(Tick(now_s=0.0))
    second = capture(controller, 2, 90_000.0)
    train(controller, first, 2 * QUANTUM_STEPS)
    controller.send(Tick(now_s=59.0))
    assert leaving_trainers(controller) == []
    controller.send(Tick(now_s=61.0))
    assert leaving_trainers(controller) == [first]
    park(controller, first)
    controller.adopt_all()
    return controller, first, second


def test_a_long_job_that_waits_for_its_first_step_for_too_long_has_one_quantum() -> None:
    controller, _, second = _overdue_first_step()
    train(controller, second, QUANTUM_STEPS / 2)
    controller.send(Tick(now_s=62.0))
    assert leaving_trainers(controller) == []
    train(controller, second, QUANTUM_STEPS)
    controller.send(Tick(now_s=64.0))
    assert leaving_trainers(controller) == [second]


def test_a_first_step_that_is_overdue_comes_once_before_a_higher_job_of_the_owner_that_runs() -> None:
    controller, high, low = _overdue_first_step(priority=5)
    assert stages(controller) == {1: JobStage.WAITING, 2: JobStage.RUNNING}
    controller.send(Tick(now_s=62.0))
    train(controller, low, QUANTUM_STEPS / 2)
    assert leaving_trainers(controller) == [], "it has its quantum"
    train(controller, low, QUANTUM_STEPS)
    assert leaving_trainers(controller) == [low]
    _settle(controller)
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    for now_s in range(100, 1_000, 100):
        train(controller, high, 2 * QUANTUM_STEPS)
        controller.send(Tick(now_s=float(now_s)))
        assert leaving_trainers(controller) == [], "the first step is not overdue any more"
    controller.finish(high)
    controller.adopt_all()
    assert stages(controller) == {2: JobStage.RUNNING}


def test_a_first_step_that_is_overdue_comes_before_a_higher_job_of_the_owner_that_waits_as_well() -> None:
    controller = timed_controller(first_step_s=60.0)
    other = start(controller, 1, 1_000.0, owner=2)
    controller.send(Tick(now_s=0.0))
    low = capture(controller, 2, 500.0)
    controller.send(Tick(now_s=50.0))
    high = capture(controller, 3, 90_000.0, priority=5)
    controller.send(Tick(now_s=61.0))
    controller.finish(other)
    controller.adopt_all()
    assert stages(controller) == {2: JobStage.RUNNING, 3: JobStage.WAITING}
    controller.finish(low)
    controller.adopt_all()
    assert stages(controller) == {3: JobStage.RUNNING}
    assert controller.pool.of_trainer(high) is not None


def test_a_running_job_leaves_for_a_higher_one_also_while_an_overdue_first_step_goes_before_both() -> None:
    controller = timed_controller(first_step_s=60.0, parked_jobs=0)
    running = start(controller, 1, 50_000.0)
    controller.send(Tick(now_s=0.0))
    low = capture(controller, 2, 90_000.0)
    train(controller, running, 2 * QUANTUM_STEPS)
    controller.send(Tick(now_s=61.0))
    assert leaving_trainers(controller) == [], "no job may wait in host memory"
    capture(controller, 3, 90_000.0, priority=5)
    assert leaving_trainers(controller) == [running]
    park(controller, running)
    controller.adopt_all()
    member = controller.pool.of_trainer(low)
    assert member is not None
    assert member.stage is JobStage.RUNNING


def test_a_job_whose_first_step_was_overdue_has_that_step_where_the_cost_of_a_change_is_not_known() -> None:
    controller = timed_controller(first_step_s=60.0, link=None)
    other = start(controller, 1, 1_000.0, owner=2)
    controller.send(Tick(now_s=0.0))
    low = capture(controller, 2, 90_000.0)
    controller.send(Tick(now_s=50.0))
    capture(controller, 3, 90_000.0, priority=5)
    controller.send(Tick(now_s=61.0))
    controller.finish(other)
    controller.adopt_all()
    assert stages(controller) == {2: JobStage.RUNNING, 3: JobStage.WAITING}
    assert leaving_trainers(controller) == []
    train(controller, low, 1.0)
    assert leaving_trainers(controller) == [low]


def test_free_device_is_not_left_idle_once_a_first_step_is_overdue_although_no_event_comes() -> None:
    controller = timed_controller(first_step_s=5.0)
    controller.pool = replace(controller.pool, asked=True)  # so that no job starts
    capture(controller, 1, steps=10)
    controller.pool = replace(controller.pool, asked=False, due=None)
    controller.send(Tick(now_s=4.0))
    assert stages(controller) == {1: JobStage.WAITING}
    controller.send(Tick(now_s=6.0))
    assert stages(controller) == {1: JobStage.RUNNING}


def test_an_owners_flood_of_jobs_does_not_delay_the_first_step_of_another_owner() -> None:
    controller = timed_controller(max_jobs=6, first_step_s=60.0)
    running = start(controller, 1, 50_000.0, owner=1)
    for number in (2, 3, 4):
        capture(controller, number, 1000.0, owner=1)
    controller.send(Tick(now_s=0.0))
    train(controller, running, 2 * QUANTUM_STEPS)
    other = capture(controller, 5, 60_000.0, owner=2)
    now_s, trained = 0.0, False
    while now_s < 120.0 and not trained:
        now_s += 1.0
        _settle(controller)
        for member in controller.pool.at(JobStage.RUNNING):
            assert member.trainer is not None
            trained |= member.trainer == other
            train(controller, member.trainer, 100.0)
            if controller.pool.of_trainer(member.trainer) and _left(controller, member.trainer) == 0:
                controller.finish(member.trainer)
        controller.send(Tick(now_s=now_s))
    assert trained


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
    assert parks <= trained_s / (QUANTUM_STEPS / 100.0) + len(jobs)
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
    controller = timed_controller(max_jobs=8, parked_jobs=7, first_step_s=first_step_s)
    arrivals = sorted((at_s, number, float(steps), rest) for number, (at_s, steps, *rest) in enumerate(jobs, start=1))
    ready_s: dict[int, float] = {}
    first_s: dict[int, float] = {}
    now_s, parks, trained_s = 0.0, 0, 0.0
    while arrivals or controller.pool.members:
        now_s += 1.0
        assert now_s < 5_000, f"stuck: {stages(controller)}"
        controller.send(Tick(now_s=now_s))
        parks += _settle(controller)
        while arrivals and arrivals[0][0] <= now_s:
            _, number, steps, (owner, priority) = arrivals.pop(0)
            ready_s[number] = now_s
            capture(controller, number, steps, owner=owner, priority=priority)
            parks += _settle(controller)
        running = controller.pool.at(JobStage.RUNNING)
        for member in running:
            assert member.trainer is not None
            trained_s += 1.0 / len(running)
            first_s.setdefault(member.job.job, now_s)
            train(controller, member.trainer, 100.0 / len(running) * noise[int(now_s) % len(noise)])
            parks += _settle(controller)
            left = _left(controller, member.trainer)
            if left == 0:
                controller.finish(member.trainer)
                parks += _settle(controller)
        assert controller.pool.held_bytes <= controller.pool.budget_bytes
    # within the bound, and the quanta of the jobs that are overdue at the same time and of those that run
    cycle_s = len(jobs) * (QUANTUM_STEPS / 100.0 + 2.0) + 2.0
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
        park(controller, parking[0].trainer)
        parks += 1


def test_a_job_that_ends_while_it_should_make_way_is_done() -> None:
    controller = timed_controller()
    long = start(controller, 1, 100_000.0)
    train(controller, long, 2 * QUANTUM_STEPS)
    capture(controller, 2, 500.0)
    controller.send(Finish(trainer=long))
    assert stages(controller)[1] is JobStage.ENDING
    controller.finish(long)
    controller.adopt_all()
    assert stages(controller) == {2: JobStage.RUNNING}
