"""Check that `decide()` goes on with other events while the planner computes an answer."""

from dataclasses import replace

from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    AskPlanner,
    CancelJob,
    EndMethod,
    EndTrainer,
    ReleaseTrainer,
)
from indb_tensile.scheduler.admission.events import (
    CancelRequest,
    Exit,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Sharing
from indb_tensile.scheduler.admission.questions import PlacedFor, PlanFor, TradeOffsFor
from indb_tensile.scheduler.completion.contention import Contention
from tests.scheduler.admission.fake_controller import FakeController, SlowPlannerController, job, measurement


def test_slow_plan_is_requested_once_and_sent_when_it_is_known() -> None:
    slow, quick = SlowPlannerController(10), FakeController(10)
    for controller in (slow, quick):
        controller.capture(controller.claim(job(1)), 4)
    assert slow.order_types() == [AskPlanner]
    assert slow.send(Tick()) == (), "the question is in flight already"
    slow.answer()
    assert isinstance(slow.question, PlacedFor), "the second question is how much memory the placed plan takes"
    assert slow.answer() == quick.orders
    assert slow.pool == quick.pool


def test_choice_of_jobs_is_made_once_while_the_planner_works() -> None:
    controller = SlowPlannerController(10, sharing=Sharing.COMPLETION)
    controller.capture(controller.claim(job(1)), 4)
    assert isinstance(controller.question, TradeOffsFor)
    controller.answer()
    choice = controller.pool.last_choice
    assert choice is not None
    assert choice.choice.starts == (1,)
    for question in (PlanFor, PlacedFor):
        assert isinstance(controller.question, question)
        assert controller.pool.last_choice is choice
        controller.answer()
    controller.adopt_all()
    controller.capture(controller.claim(job(2)), 4)
    controller.answer()
    assert controller.pool.last_choice != choice, "a choice among other jobs is made anew"


def test_jobs_are_cancelled_and_their_memory_is_freed_while_the_planner_works() -> None:
    controller = SlowPlannerController(10)
    first = controller.claim(job(1))
    controller.capture(first, 4)
    controller.answer_all()
    controller.adopt_all()
    second = controller.claim(job(2))
    controller.capture(second, 8)
    assert controller.order_types() == [AskPlanner]
    assert controller.send(CancelRequest(job=JobId(1))) == (EndTrainer(trainer=first, method=EndMethod.TERMINATE),)
    assert controller.send(Exit(trainer=first, code=-15))[:2] == (
        ReleaseTrainer(trainer=first),
        CancelJob(job=JobId(1), claim=ClaimToken(1001)),
    )
    controller.answer()  # the answer is for two jobs, and one of them is gone
    assert controller.order_types() == [AskPlanner]
    controller.answer_all()
    assert controller.grants() == {2: 8}


def test_measurements_do_not_invalidate_a_plan_in_preparation() -> None:
    controller = SlowPlannerController(10, drift_threshold=0.2)
    trainer = controller.claim(job(1))
    controller.capture(trainer, 4)
    controller.answer_all()
    controller.adopt_all()
    report = measurement(trainer, 2000)
    controller.send(report)
    assert AskPlanner in controller.order_types()
    controller.send(replace(report, latency_ns=(4000,)))
    controller.answer_all()
    assert controller.pool.due is None
    assert (controller.pool.members[0].corrected_ns, planned_ns(controller)) == ((3000,), (2000,))
    controller.send(replace(report, latency_ns=(3000,)))
    assert planned_ns(controller) == (3000,), "the later measurements were lost"


def test_job_that_can_never_fit_ends_without_waiting_for_the_planner() -> None:
    controller = SlowPlannerController(10)
    controller.capture(controller.claim(job(1)), 4)
    controller.answer_all()
    controller.adopt_all()
    second = controller.claim(job(2))
    controller.capture(second, 30, unknown=1)
    assert controller.orders[0] == EndTrainer(trainer=second, method=EndMethod.TERMINATE)


def planned_ns(controller: FakeController) -> tuple[int, ...]:
    """Return the latencies for which the only job is planned."""
    workload = controller.pool.members[0].workload
    assert workload is not None
    return workload.latency_ns[0]


def test_a_job_whose_memory_is_free_starts_before_the_others_are_planned_anew() -> None:
    contention = Contention(points=((1, 1.0), (8, 1.0)))
    controller = SlowPlannerController(8, sharing=Sharing.COMPLETION, contention=contention, entering_jobs=8)
    for number, regions in ((1, 6), (2, 2)):
        controller.capture(controller.claim(job(number)), regions)
        asked_for = []
        while not controller.grants().get(number):
            if isinstance(controller.question, PlanFor):
                asked_for.append(tuple(workload.job for workload in controller.question.workloads))
            controller.answer()
        controller.adopt_all()
    assert asked_for == [(2,)]
    controller.answer_all()
    assert controller.grants() == {1: 6, 2: 2}
    assert all(member.generation == 1 for member in controller.pool.members)
