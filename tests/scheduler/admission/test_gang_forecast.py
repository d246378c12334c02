"""Check that a rank is foretold with the other ranks of its job, and that memory goes where it makes jobs faster."""

from dataclasses import dataclass, replace

import pytest

from indb_tensile.job import ClaimedJob, ClaimedRank, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    PublishStep,
    RecordForecast,
    RecordPlan,
    RecordSet,
    SendPlans,
)
from indb_tensile.scheduler.admission.completion_rule import demand_of
from indb_tensile.scheduler.admission.decision import true_latencies
from indb_tensile.scheduler.admission.events import Capture, RanksChange
from indb_tensile.scheduler.admission.pool import JobStage, Member, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from indb_tensile.scheduler.workload import Workload

from .fake_controller import REGION, FakeController, HalvingPlanner, graph, job, measurement, orders_of_type
from .test_completion_rule import TimedPlanner

_NO_CONTENTION = Contention(points=((1, 1.0), (8, 1.0)))


@dataclass(frozen=True)
class RankPlanner(TimedPlanner):
    """A planner that halves the rank whose other ranks need most time first, as a real one does by its divisions."""

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        ordered = tuple(sorted(workloads, key=lambda workload: max(workload.others_ns, workload.step_ns)))
        plans = super().plan(ordered, budget_bytes=budget_bytes)
        if isinstance(plans, Infeasible):
            return plans
        by_job = {plan.job: plan for plan in plans}
        return tuple(by_job[workload.job] for workload in workloads)


def rank(claimed: ClaimedJob, number: int = 0, ranks: int = 2) -> ClaimedJob:
    """Return the job as one of these ranks."""
    return replace(claimed, gang=ClaimedRank(rank=number, ranks=ranks, attempt_claim=ClaimToken(1)))


def step_of(work_ns: int, exchange_ns: int = 0, **fields: object) -> PublishedStep:
    """Return the step of another rank that computes and then exchanges."""
    step = PublishedStep(events=(0, -1), work_ns=(work_ns, 0, 0), exchange_ns=(exchange_ns,))
    return replace(step, **fields)  # type: ignore[arg-type]


def controller_of(budget: int = 4, planner: HalvingPlanner | None = None, **rules: object) -> FakeController:
    defaults = {"sharing": Sharing.COMPLETION, "contention": _NO_CONTENTION, "entering_jobs": 8}
    return FakeController(budget, planner or RankPlanner(), **(defaults | rules))


def capture(controller: FakeController, claimed: ClaimedJob, regions: int = 4, steps: float = 100.0) -> TrainerId:
    trainer = controller.claim(claimed)
    graphs, times = (exchanging_graph(regions),), ((1000, 0, 0),)
    controller.send(Capture(trainer=trainer, graphs=graphs, latency_ns=times, unknown=0, steps=steps))
    return trainer


def member_of(controller: FakeController, trainer: TrainerId) -> Member:
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    return member


def hear(controller: FakeController, trainer: TrainerId, *steps: PublishedStep) -> None:
    """Let the rank know steps of the ranks from 1 on."""
    claim = member_of(controller, trainer).job.claim
    controller.send(RanksChange(claim=claim, steps=tuple(enumerate(steps, 1))))


def stages(controller: FakeController) -> dict[int, JobStage]:
    return {m.job.job: m.stage for m in controller.pool.members}


def exchanging_graph(regions: int) -> StepGraph:
    """Return a graph of an operator, one that starts an exchange of what it wrote, and one that waits for it."""
    whole = graph(regions)
    (operator,) = whole.operators
    start = replace(operator, name="start", reads=operator.writes, starts=0)
    wait = replace(operator, name="wait", reads=operator.writes, awaits=0)
    return replace(whole, operators=(operator, start, wait))


def test_step_is_published_with_each_plan_and_single_jobs_publish_none() -> None:
    controller = controller_of(8)
    capture(controller, rank(job(1)))
    published = PublishStep(
        job=JobId(1), claim=ClaimToken(1001), step=step_of(1000, iteration_ns=1000, least_ns=1000)
    )
    assert orders_of_type(controller.orders, PublishStep) == [published]
    controller.adopt_all()
    capture(controller, job(2))
    assert orders_of_type(controller.orders, SendPlans) != []
    assert orders_of_type(controller.orders, PublishStep) == []


def test_measurements_publish_a_step_only_when_it_has_changed_by_much() -> None:
    controller = controller_of(8)
    trainer = capture(controller, rank(job(1)))
    controller.adopt_all()
    counts = []
    for latency_ns in (1000, 1010, 1020, 2000, 2010, 2000):
        controller.send(replace(measurement(trainer, latency_ns), latency_ns=(latency_ns, 0, 0)))
        counts.append(len(orders_of_type(controller.orders, PublishStep)))
        controller.adopt_all()
    # the first one is measured and no longer foretold, and means with 2000 are changes until they come near to it
    assert counts == [1, 0, 0, 1, 1, 0]


def test_forecast_that_is_recorded_is_that_of_all_ranks() -> None:
    controller = controller_of(8)
    trainer = capture(controller, rank(job(1)))
    (alone,) = orders_of_type(controller.orders, RecordPlan)
    controller.adopt_all()
    hear(controller, trainer, step_of(2500))
    (renewed,) = orders_of_type(controller.orders, RecordForecast)
    own = alone.plan.forecast
    assert renewed.forecast == replace(own, iteration_ns=2500, exchange_ns=1500)
    assert member_of(controller, trainer).plan == alone.plan, "its own forecast has no waits for others"
    hear(controller, trainer, step_of(2500))
    assert controller.orders == ()
    hear(controller, trainer, step_of(400))
    (renewed,) = orders_of_type(controller.orders, RecordForecast)
    assert renewed.forecast == own


def test_wait_for_another_rank_is_not_measured_as_this_ones_slowness() -> None:
    """Of 3000 ns 1900 are a wait for rank 1, which sees the exchange take 100."""
    controller = controller_of(8)
    trainer = controller.claim(rank(job(1)))
    graphs, times = (exchanging_graph(4),), ((900, 100, 50),)
    controller.send(Capture(trainer=trainer, graphs=graphs, latency_ns=times, unknown=0, steps=100.0))
    controller.adopt_all()
    report = replace(measurement(trainer, 3000), latency_ns=(900, 100, 2000))
    controller.send(report)
    assert true_latencies(member_of(controller, trainer)) == (900, 100, 2000), "nothing is known of rank 1"
    assert member_of(controller, trainer).alone_ns == 3000
    hear(controller, trainer, PublishedStep(events=(0, -1), work_ns=(2900, 0, 0), exchange_ns=(100,), measured=True))
    controller.send(report)
    member = member_of(controller, trainer)
    assert (member.corrected_ns, true_latencies(member), member.alone_ns) == ((900, 100, 2000), (900, 100, 100), 1100)
    assert member.published is not None
    assert (member.published.exchange_ns, member.published.measured) == ((2000,), True), (
        "others see what was measured"
    )


@pytest.mark.parametrize("others_ns", [None, 1000, 4000, 8000])
def test_rank_gives_memory_that_makes_its_job_no_faster_to_a_waiting_job(others_ns: int | None) -> None:
    """With half of its memory a job takes four times as long, so two jobs of one device take turns."""
    controller = controller_of()
    trainer = capture(controller, rank(job(1)), steps=10_000.0)
    controller.adopt_all()
    if others_ns is not None:
        hear(controller, trainer, step_of(others_ns))
    capture(controller, job(2), regions=2)
    controller.adopt_all()
    waits = others_ns is None or others_ns == 1000
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING if waits else JobStage.RUNNING}
    assert controller.grants() == ({1: 4, 2: 0} if waits else {1: 2, 2: 2})
    (step,) = [member_of(controller, trainer).published]
    assert step is not None
    assert (step.iteration_ns, step.yields) == ((1000, False) if waits else (4000, True))
    assert step.needed_ns((0,)) == 1000, "the others could be faster if they had more memory"


def test_waiting_job_starts_when_another_rank_turns_out_to_be_slow_and_memory_comes_back_when_it_is_fast() -> None:
    controller = controller_of()
    trainer = capture(controller, rank(job(1)), steps=10_000.0)
    controller.adopt_all()
    capture(controller, job(2), regions=2, steps=5_000.0)
    controller.adopt_all()
    assert stages(controller)[2] is JobStage.WAITING
    hear(controller, trainer, step_of(5000))
    controller.adopt_all()
    assert controller.grants() == {1: 2, 2: 2}
    hear(controller, trainer, step_of(5200))
    assert orders_of_type(controller.orders, SendPlans) == [], "hardly anything has changed"
    hear(controller, trainer, step_of(500))
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] != [], "planned anew"


def test_waiting_job_reads_which_rank_is_the_slowest() -> None:
    controller = controller_of()
    trainer = capture(controller, rank(job(1), ranks=3))
    controller.adopt_all()
    hear(controller, trainer, step_of(900_000), step_of(1_200_000))
    trainer = capture(controller, job(2), regions=4, steps=100_000.0)
    waits_for = member_of(controller, trainer).waits_for or ""
    assert waits_for.endswith(
        "; job 1 trains on 3 devices, of which rank 2 is the slowest, and an iteration of it is foretold to take"
        " 1.2 ms"
    )


def test_slow_other_rank_does_not_make_the_jobs_of_this_device_count_as_slow() -> None:
    """Otherwise their set would be undone, and the job beside the rank would leave the device (set_review.py)."""
    controller = controller_of(8)
    first = capture(controller, rank(job(1)))
    controller.adopt_all()
    hear(controller, first, step_of(3000))
    capture(controller, job(2))
    controller.adopt_all()
    recorded = orders_of_type(controller.orders, RecordSet)
    for _ in range(2):
        controller.send(replace(measurement(first, 1000), latency_ns=(1000, 0, 0), iteration_ns=3000))
    assert dict(controller.pool.running_set.speeds)[JobId(1)] == 1.0
    assert {order.foretold_speed for order in recorded} == {1.0}


def test_demand_of_a_rank_has_no_plan_that_is_faster_than_the_others() -> None:
    controller = controller_of(8)
    trainer = capture(controller, rank(job(1)))
    hear(controller, trainer, step_of(3000))
    points = demand_of(controller.pool, member_of(controller, trainer)).trade_offs
    assert [(point.peak_bytes // REGION, point.iteration_ns) for point in points] == [(4, 3000), (2, 4000)]
    hear(controller, trainer, step_of(5000))
    (point,) = demand_of(controller.pool, member_of(controller, trainer)).trade_offs
    assert (point.peak_bytes // REGION, point.iteration_ns) == (2, 5000)
    assert [point.beside_others_ns(slowdown) for slowdown in (1.0, 3.0, 6.0)] == [5000, 5000, 6000]


def test_steps_of_an_attempt_that_is_over_change_nothing() -> None:
    controller = controller_of(8)
    trainer = capture(controller, rank(job(1)))
    before = controller.pool
    controller.send(RanksChange(claim=ClaimToken(999), steps=((1, step_of(5000)),)))
    assert (controller.pool, controller.orders) == (before, ())
    single = capture(controller, job(2), regions=1)
    hear(controller, single, step_of(5000))
    assert member_of(controller, single).others.needed_ns == 0
    hear(controller, trainer)
    assert member_of(controller, trainer).others.needed_ns == 0
