"""Jobs are let in by foretold completion: beside others only if all jobs then end earlier."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.job import ClaimedJob, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import RecordMeasurement, RecordSet, SendPlans, SetWaitsFor
from indb_tensile.scheduler.admission.completion_rule import demand_of, load_of, observe, planned_step_ns
from indb_tensile.scheduler.admission.events import Adoption, Answered, Capture, Finish, StepsLeft, Tick
from indb_tensile.scheduler.admission.pool import JobStage, Member, Pool, Sharing, TrainerId
from indb_tensile.scheduler.admission.trainer_assignment import MOST_OVERTAKEN
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.completion.processor_shares import ProcessorLoad, weight_of
from indb_tensile.scheduler.graph import OpIndex, Stage
from indb_tensile.scheduler.plan import Execution, Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload

from .fake_controller import REGION, FakeController, HalvingPlanner, graph, job, measurement, orders_of_type

_NO_CONTENTION = Contention(points=((1, 1.0), (8, 1.0)))


@dataclass(frozen=True)
class TimedPlanner(HalvingPlanner):
    """A planner whose plans have forecasts: `planned_slowdown` for a job that is planned for less than it can use."""

    planned_slowdown: float | None = 4.0


def _controller(budget: int, planner: TimedPlanner | None = None, **rules: Any) -> FakeController:
    defaults: dict[str, Any] = {"sharing": Sharing.COMPLETION, "contention": _NO_CONTENTION, "entering_jobs": 8}
    return FakeController(budget, planner or TimedPlanner(), **(defaults | rules))


def _capture(controller: FakeController, claimed: ClaimedJob, regions: int, steps: float = 100.0) -> TrainerId:
    trainer = controller.claim(claimed)
    controller.send(Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((1000,),), unknown=0, steps=steps))
    controller.adopt_all()
    return trainer


def _stages(controller: FakeController) -> dict[int, JobStage]:
    return {m.job.job: m.stage for m in controller.pool.members}


def _learned_slowdown(latency_ns: int) -> float:
    """Return the contention of two jobs that is learned if the operator takes so long for both side by side."""
    controller = _controller(8)
    first, second = (_capture(controller, job(number), 4) for number in (1, 2))
    for _ in range(40):
        controller.send(measurement(first, latency_ns))
        controller.send(measurement(second, latency_ns))
        controller.adopt_all()
    return controller.pool.contention.slowdown(2)


def test_jobs_that_fit_run_side_by_side() -> None:
    controller = _controller(8)
    for number in (1, 2):
        _capture(controller, job(number), 4)
    assert controller.grants() == {1: 4, 2: 4}


def test_a_job_that_would_slow_all_down_waits_and_says_why() -> None:
    controller = _controller(4)
    first = _capture(controller, job(1), 4)
    second = _capture(controller, job(2), 4)
    assert _stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    assert controller.pool.of_trainer(second) is not None
    waits_for = controller.pool.members[1].waits_for
    assert waits_for is not None
    assert waits_for.startswith("job 1 to end, the first in about ")
    controller.finish(first)
    controller.adopt_all()
    assert _stages(controller) == {2: JobStage.RUNNING}
    assert controller.pool.members[0].waits_for is None


def test_any_price_lets_the_same_job_in() -> None:
    controller = _controller(4, sharing=Sharing.ANY_PRICE)
    for number in (1, 2):
        _capture(controller, job(number), 4)
    assert controller.grants() == {1: 2, 2: 2}


def test_real_plans_that_are_slower_than_foretold_keep_a_job_out() -> None:
    hopeful = TimedPlanner(slowdown=1.1, planned_slowdown=4.0)
    controller = _controller(4, hopeful)
    for number in (1, 2):
        _capture(controller, job(number), 4)
    assert _stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}


def test_a_job_that_is_squeezed_at_little_cost_is_let_in() -> None:
    controller = _controller(4, TimedPlanner(slowdown=1.1, planned_slowdown=1.1))
    for number in (1, 2):
        _capture(controller, job(number), 4)
    assert controller.grants() == {1: 2, 2: 2}


def test_the_shorter_of_an_owners_jobs_starts_first_when_the_device_is_free() -> None:
    controller = _controller(4)
    first = _capture(controller, job(1), 4)
    _capture(controller, job(2), 4, steps=500.0)
    _capture(controller, job(3), 4, steps=5.0)
    controller.finish(first)
    assert [plan.trainer for plan in orders_of_type(controller.orders, SendPlans)] == [
        m.trainer for m in controller.pool.members if m.job.job == 3
    ]


def test_a_job_that_no_plan_can_fit_ends_at_once() -> None:
    controller = _controller(4)
    _capture(controller, job(1), 4)
    _capture(controller, job(2), 16)
    assert _stages(controller) == {1: JobStage.RUNNING, 2: JobStage.ENDING}


def _running_alone() -> tuple[Pool, Member, JobPlan, Workload]:
    """Return the pool of a job that runs alone, the job as its member, and its plan and workload."""
    controller = _controller(4)
    _capture(controller, job(1), 4)
    (member,) = controller.pool.members
    assert member.plan is not None
    assert member.workload is not None
    return controller.pool, member, member.plan, member.workload


def test_step_is_foretold_by_the_latencies_of_its_forecast_and_not_by_those_of_the_next_plan() -> None:
    pool, member, plan, workload = _running_alone()
    busy = replace(member, workload=replace(workload, latency_ns=((10_000,),)))
    assert planned_step_ns(pool, busy, plan) == planned_step_ns(pool, member, plan) == 1000
    twice = replace(plan.plans[0], executions=(Execution(operator=OpIndex(0)),) * 2)
    forecast = replace(plan.forecast, iteration_ns=6000, compute_ns=6000)
    recomputed = replace(plan, plans=(twice, *plan.plans[1:]), forecast=forecast)
    assert planned_step_ns(pool, busy, recomputed) == 2000, (
        "operators took 3,000 ns beside others and take 1,000 alone"
    )


def test_the_upload_is_no_part_of_what_a_plan_computes() -> None:
    pool, member, plan, workload = _running_alone()
    computed, uploaded = graph(4, operators=2).operators
    graphs = (replace(graph(4, operators=2), operators=(replace(uploaded, stage=Stage.UPLOAD), computed)),)
    workload = replace(workload, graphs=graphs, latency_ns=((50, 1000),))
    member = replace(member, workload=workload, alone_ns=1050)
    forecast = replace(plan.forecast, iteration_ns=1020, compute_ns=1000, upload_ns=20)
    plan = replace(plan, plans=(Plan(policy=plan.plans[0].policy),), forecast=forecast)
    assert planned_step_ns(pool, member, plan) == 1020, "as the plan foretells, because nothing has changed since"
    ordered = (Execution(operator=OpIndex(0)), Execution(operator=OpIndex(1)))
    plan = replace(plan, plans=(replace(plan.plans[0], executions=ordered),))
    assert planned_step_ns(pool, member, plan) == 1020
    assert planned_step_ns(pool, replace(member, alone_ns=2100), plan) == 2020, "operators take twice as long"


def test_steps_that_are_left_are_known_to_the_decision() -> None:
    controller = _controller(4)
    trainer = _capture(controller, job(1), 4, steps=100.0)
    controller.send(StepsLeft(trainer=trainer, steps_left=40.0))
    assert controller.pool.members[0].steps_left == 40.0
    controller.send(StepsLeft(trainer=trainer, steps_left=float("nan")))
    assert controller.pool.members[0].steps_left == 40.0


def test_measurements_beside_others_correct_the_contention() -> None:
    assert 1.45 < _learned_slowdown(1500) <= 1.5


def test_a_device_that_loses_throughput_to_two_jobs_is_found_to_and_more_than_a_tenth_does_not_count() -> None:
    assert 2.15 < _learned_slowdown(9000) <= 2.2


def test_measurements_of_short_steps_beside_others_correct_the_contention_of_short_steps_only() -> None:
    measured = Contention(points=((1, 1.0), (2, 1.0)), short_points=((1, 1.0), (2, 1.0)), short_ns=1000)
    controller = _controller(8, contention=measured)
    first, second = (_capture(controller, job(number), 4) for number in (1, 2))  # steps of 1,000 ns
    for _ in range(40):
        controller.send(measurement(first, 1500))
        controller.send(measurement(second, 1500))
        controller.adopt_all()
    taught = controller.pool.contention
    assert 1.45 < taught.slowdown(2, 1000) <= 1.5
    assert taught.points == measured.points


def test_measurements_alone_are_the_jobs_time_alone() -> None:
    controller = _controller(8)
    trainer = _capture(controller, job(1), 4)
    controller.send(measurement(trainer, 2000))
    assert controller.pool.members[0].alone_ns == 2000
    assert controller.pool.contention == _NO_CONTENTION


def test_operators_that_are_much_slower_than_foretold_leave_no_plan_that_needs_more_memory_and_more_time() -> None:
    controller = _controller(8)
    trainer = _capture(controller, job(1), 4)
    recomputing = TradeOff(peak_bytes=3 * REGION, iteration_ns=1200, compute_ns=1200)
    copying = TradeOff(peak_bytes=2 * REGION, iteration_ns=1300, compute_ns=1000, stall_ns=300)
    whole = TradeOff(peak_bytes=4 * REGION, iteration_ns=1000, compute_ns=1000)
    (member,) = controller.pool.members
    controller.pool = replace(controller.pool, members=(replace(member, trade_offs=(whole, recomputing, copying)),))
    controller.send(measurement(trainer, 10_000))
    assert [point.iteration_ns for point in controller.pool.members[0].trade_offs] == [10_000, 10_300]
    assert demand_of(controller.pool, controller.pool.members[0]).alone_ns == 10_000


def test_a_job_that_is_faster_beside_others_is_at_least_as_fast_alone() -> None:
    controller = _controller(8)
    first, _ = (_capture(controller, job(number), 4) for number in (1, 2))
    controller.send_twice(measurement(first, 800))
    assert controller.pool.members[0].alone_ns == 800
    assert controller.pool.members[0].trade_offs[0].iteration_ns == 800
    assert controller.pool.contention == _NO_CONTENTION


def test_a_waiting_job_with_the_same_graph_is_as_fast_alone_as_the_job_that_was_measured() -> None:
    controller = _controller(4)
    for number in (1, 2, 3):
        same = replace(graph(4), signature="same" if number < 3 else "other")
        trainer = controller.claim(job(number))
        controller.send(Capture(trainer=trainer, graphs=(same,), latency_ns=((1000,),), unknown=0, steps=100.0))
        controller.adopt_all()
    controller.send_twice(measurement(TrainerId(1), 600))
    assert [(m.stage is JobStage.RUNNING, m.alone_ns) for m in controller.pool.members] == [
        (True, 600),
        (False, 600),
        (False, 1000),
    ]
    assert [m.trade_offs[0].iteration_ns for m in controller.pool.members] == [600, 600, 1000]


def test_a_job_is_told_once_what_it_waits_for() -> None:
    controller = _controller(4)
    for number in (1, 2):
        _capture(controller, job(number), 4)
    controller.send(measurement(TrainerId(1), 1000))
    assert orders_of_type(controller.orders, SetWaitsFor) == []


def test_jobs_that_come_to_run_side_by_side_are_recorded_with_their_throughput() -> None:
    controller = _controller(8, contention=Contention(points=((1, 1.0), (2, 1.25))))
    _capture(controller, job(1), 4)
    trainer = controller.claim(job(2))
    orders = controller.send(
        Capture(trainer=trainer, graphs=(graph(4),), latency_ns=((1000,),), unknown=0, steps=100.0)
    )
    assert orders_of_type(orders, RecordSet) == [], "the second job copies its state to the device first"
    orders = controller.send(Adoption(trainer=trainer, generation=1))
    assert orders_of_type(orders, RecordSet) == [
        _set_of(JobId(1), beside=(JobId(2),), throughput=1.6, speed=0.8),
        _set_of(JobId(2), beside=(JobId(1),), throughput=1.6, speed=0.8),
    ]
    controller.adopt_all()
    assert controller.pool.members[0].trainer is not None
    (alone,) = orders_of_type(controller.send(Finish(trainer=controller.pool.members[0].trainer)), RecordSet)
    assert alone == _set_of(JobId(2), beside=(), throughput=1.0, speed=1.0)


def _set_of(number: JobId, *, beside: tuple[JobId, ...], throughput: float, speed: float) -> RecordSet:
    return RecordSet(
        job=number,
        claim=ClaimToken(1000 + number),
        beside=beside,
        foretold_throughput=throughput,
        foretold_speed=speed,
    )


def test_throughput_is_measured_when_all_jobs_of_a_set_are() -> None:
    controller = _controller(8)
    first, second = (_capture(controller, job(number), 4) for number in (1, 2))
    slow = replace(measurement(first, 1000), iteration_ns=2000)
    (recorded,) = orders_of_type(controller.send(slow), RecordMeasurement)
    assert recorded.throughput is None
    (recorded,) = orders_of_type(controller.send(replace(slow, trainer=second)), RecordMeasurement)
    assert recorded.throughput == 1.0


def test_a_job_that_was_overtaken_often_enough_starts_though_a_later_job_is_shorter() -> None:
    controller = _controller(10, contention=Contention(points=((1, 1.0), (2, 2.0))))
    first = _capture(controller, job(1), 8)
    for number, steps in ((2, 100.0), (3, 10.0)):
        _capture(controller, job(number), 8, steps)
    assert _stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING, 3: JobStage.WAITING}
    members = controller.pool.members
    overtaken = tuple(replace(m, overtaken=MOST_OVERTAKEN) if m.job.job == 2 else m for m in members)
    controller.pool = replace(controller.pool, members=overtaken)
    controller.finish(first)
    assert _stages(controller) == {2: JobStage.RUNNING, 3: JobStage.WAITING}


@dataclass(frozen=True)
class AskedPlanner(TimedPlanner):
    """A planner that lists what it was asked: the jobs of each plan, and each job of which trade-offs were asked."""

    planned: list[tuple[int, ...]] = field(default_factory=list)
    traded: list[int] = field(default_factory=list)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        self.planned.append(tuple(workload.job for workload in workloads))
        return super().plan(workloads, budget_bytes=budget_bytes)

    def trade_offs(self, workload: Workload) -> tuple[TradeOff, ...]:
        self.traded.append(workload.job)
        return super().trade_offs(workload)


def test_jobs_that_start_at_once_are_planned_together_and_get_one_plan_each() -> None:
    planner = AskedPlanner(slowdown=1.1, planned_slowdown=1.1)
    controller = _controller(8, planner)
    first = _capture(controller, job(1), 16)
    waiting = [_capture(controller, job(number), 8) for number in (2, 3)]  # neither fits beside the first
    assert set(_stages(controller).values()) == {JobStage.RUNNING, JobStage.WAITING}
    planner.planned.clear()
    controller.finish(first)
    assert controller.grants() == {2: 4, 3: 4}
    assert (2,) not in planner.planned
    assert [plan.trainer for plan in orders_of_type(controller.orders, SendPlans)] == waiting


def test_a_job_that_has_to_wait_changes_no_plan_and_is_looked_at_once() -> None:
    planner = AskedPlanner()
    controller = _controller(4, planner)
    _capture(controller, job(1), 4)
    planner.planned.clear()
    _capture(controller, job(2), 4)
    assert orders_of_type(controller.orders, SendPlans) == []
    assert (1,) not in planner.planned
    _capture(controller, job(3), 4)
    assert planner.traded == [1, 2, 3]


def test_trade_offs_of_a_kind_are_computed_once_and_scaled_to_later_jobs() -> None:
    planner = AskedPlanner()
    controller = _controller(4, planner)
    for number, signature, latency_ns in ((1, "same", 1000), (2, "same", 1500), (3, "other", 1000), (4, "", 1000)):
        same = replace(graph(4), signature=signature)
        trainer = controller.claim(job(number))
        controller.send(Capture(trainer=trainer, graphs=(same,), latency_ns=((latency_ns,),), unknown=0, steps=9.0))
        if number == 1:
            controller.adopt_all()
            controller.finish(trainer)  # the kind is remembered after its job has ended
    assert planner.traded == [1, 3, 4]
    assert {m.job.job: m.trade_offs[0].iteration_ns for m in controller.pool.members} == {2: 1500, 3: 1000, 4: 1000}


def test_trade_offs_of_a_job_with_a_limit_of_its_own_are_not_those_of_its_kind() -> None:
    planner = AskedPlanner()
    controller = _controller(8, planner)
    same = replace(graph(4), signature="same")
    for claimed in (job(1), job(2, 3 * REGION), job(3)):
        trainer = controller.claim(claimed)
        controller.send(Capture(trainer=trainer, graphs=(same,), latency_ns=((1000,),), unknown=0, steps=9.0))
    assert planner.traded[:2] == [1, 2]
    assert 3 not in planner.traded


def test_equal_graphs_of_several_jobs_become_one_object() -> None:
    controller = _controller(8)
    for number, regions in ((1, 2), (2, 3), (3, 2)):
        _capture(controller, job(number), regions)
    graphs = [m.workload.graphs[0] for m in controller.pool.members if m.workload is not None]
    assert graphs[0] is graphs[2]
    assert graphs[0] is not graphs[1]


@st.composite
def _trade_offs(draw: st.DrawFn) -> tuple[TradeOff, ...]:
    """Return plans that need less and less memory and more and more time, for swapping or for recomputation."""
    points = [TradeOff(peak_bytes=9000, iteration_ns=1_000_000, compute_ns=1_000_000)]
    for k in range(draw(st.integers(0, 5))):
        last, added_ns = points[-1], draw(st.integers(1, 500_000))
        computed_ns = draw(st.integers(0, added_ns))
        points.append(
            TradeOff(
                peak_bytes=8000 - 1000 * k,
                iteration_ns=last.iteration_ns + added_ns,
                compute_ns=draw(st.sampled_from([1_000_000, last.compute_ns])) + computed_ns,
                stall_ns=last.stall_ns + added_ns - computed_ns,
            )
        )
    return tuple(points)


@given(_trade_offs(), st.lists(st.integers(10_000, 20_000_000), max_size=4))
def test_any_measured_latency_leaves_a_demand_whose_plans_are_in_order(
    points: tuple[TradeOff, ...], measured_ns: list[int]
) -> None:
    controller = _controller(1000)
    _capture(controller, job(1), 10)
    (member,) = controller.pool.members
    member = replace(member, alone_ns=1_000_000, trade_offs=points)
    for compute_ns in measured_ns:
        _, member = observe(controller.pool, member, compute_ns)
    demand = demand_of(controller.pool, member)  # which checks the order
    assert demand.alone_ns == min(point.iteration_ns for point in member.trade_offs)


@given(
    budget=st.integers(4, 16),
    jobs=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 50)), min_size=2, max_size=6)
    | st.tuples(st.tuples(st.integers(1, 16), st.integers(1, 50)), st.integers(2, 6)).map(lambda p: [p[0]] * p[1]),
    foretold=st.floats(1.0, 3.0),
    planned=st.floats(1.0, 6.0),
    contention=st.tuples(st.floats(1.0, 1.5), st.floats(2.0, 3.0)),
)
@example(
    budget=16,
    jobs=[(10, 20), (15, 28), (13, 35), (13, 11), (5, 4), (4, 46)],
    foretold=1.1,
    planned=1.5,
    contention=(1.0, 2.9),
)
@example(budget=12, jobs=[(11, 28)] * 4, foretold=1.05, planned=1.5, contention=(1.0, 2.9))
def test_some_job_starts_on_a_free_device_even_if_all_plans_are_slower_than_foretold(
    budget: int, jobs: list[tuple[int, int]], foretold: float, planned: float, contention: tuple[float, float]
) -> None:
    controller = _controller(
        budget,
        TimedPlanner(slowdown=foretold, planned_slowdown=planned),
        contention=Contention(points=((1, 1.0), (2, contention[0]), (4, contention[1]))),
    )
    controller.pool = replace(controller.pool, asked=True)  # until all jobs are known
    for number, (regions, steps) in enumerate(jobs, 1):
        _capture(controller, job(number), min(regions, budget), steps=float(steps))
    assert set(_stages(controller).values()) == {JobStage.WAITING}
    controller.send(Answered())
    controller.adopt_all()
    assert JobStage.RUNNING in _stages(controller).values()


def test_cores_that_other_programs_take_count_from_a_tick_on_unless_they_have_hardly_changed() -> None:
    controller = FakeController(4, TimedPlanner(), contention=replace(of_cores(2, 1), cores=2))
    controller.send(Tick(taken_cores=0.1))
    assert controller.pool.contention.taken_cores == 0.1
    for taken in (0.11, None, 0.09):
        controller.send(Tick(taken_cores=taken))
        assert controller.pool.contention.taken_cores == 0.1, "a change would have the choice of starts made anew"
    controller.send(Tick(taken_cores=0.05))
    assert controller.pool.contention.taken_cores == 0.05


def test_a_long_training_beside_a_short_one_is_foretold_to_have_less_of_the_cores() -> None:
    """Where three of them share two cores, by the niceness that their trainers choose."""
    pool = Pool(
        budget_bytes=100 << 20,
        region_bytes=1 << 20,
        prepares_on_device=True,
        contention=replace(of_cores(2, 1), cores=2),
    )
    long, short = (
        Member(job=job(number), steps=steps, steps_left=1.0, alone_ns=10_000_000)
        for number, steps in ((1, 1000.0), (2, 10.0))
    )
    assert [load_of(pool, member).weight for member in (long, short)] == pytest.approx([weight_of(5), 1.0])
    assert load_of(replace(pool, prepares_on_device=False), long) == ProcessorLoad(), "on a GPU"
    assert load_of(pool, replace(long, alone_ns=0)) == ProcessorLoad(), "not measured"
