"""Check how `decide()` admits jobs: it plans, grants memory, sends plans, and lets jobs wait for memory, a quota or
their turn.
"""

from dataclasses import replace

import pytest

from indb_tensile.errors import InvariantError
from indb_tensile.job import Blame, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    ClaimNext,
    EndMethod,
    EndTrainer,
    FailJob,
    RecordAdoption,
    RecordPlan,
    RecordSet,
    ReleaseTrainer,
    RequeueJob,
    SendPlans,
    SetGrant,
    SetWaitsFor,
)
from indb_tensile.scheduler.admission.events import (
    Adoption,
    BudgetChange,
    CancelRequest,
    Capture,
    Exit,
    Failure,
    Finish,
    Holding,
    SpareReady,
)
from indb_tensile.scheduler.admission.pool import Fault, PlanReason
from indb_tensile.scheduler.admission.trainer_assignment import MOST_OVERTAKEN
from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    job,
    job_plan,
    one_tensor_graph,
    orders_of_type,
)


def test_job_with_known_operators_is_planned_granted_sent_and_recorded() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(7))
    assert controller.capture(trainer, 4) == (
        SetGrant(trainer=trainer, grant_bytes=4 * REGION),
        SendPlans(trainer=trainer, generation=1, grant_bytes=4 * REGION, plans=job_plan(JobId(7), 4 * REGION).plans),
        RecordPlan(
            job=JobId(7),
            claim=ClaimToken(1007),
            generation=1,
            reason=PlanReason.START,
            grant_bytes=4 * REGION,
            plan=job_plan(JobId(7), 4 * REGION),
        ),
    )
    assert controller.send(Adoption(trainer=trainer, generation=1)) == (
        RecordAdoption(job=JobId(7), claim=ClaimToken(1007), generation=1),
        RecordSet(job=JobId(7), claim=ClaimToken(1007), beside=(), foretold_throughput=1.0, foretold_speed=1.0),
    )


def test_second_job_starts_after_the_first_has_shrunk() -> None:
    controller = FakeController(6)
    first = controller.start(1, 6)
    second = controller.claim(job(2))
    controller.capture(second, 6)
    assert orders_of_type(controller.orders, SendPlans) == [
        SendPlans(trainer=first, generation=2, grant_bytes=3 * REGION, plans=job_plan(JobId(1), 3 * REGION).plans)
    ]
    assert controller.grants() == {1: 6, 2: 0}
    orders = controller.send(Adoption(trainer=first, generation=2))
    assert orders[0] == SetGrant(trainer=first, grant_bytes=3 * REGION)
    assert orders[2] == SetGrant(trainer=second, grant_bytes=3 * REGION)
    assert isinstance(orders[3], SendPlans)
    assert controller.grants() == {1: 3, 2: 3}


def test_memory_above_a_lowered_grant_is_granted_after_it_is_empty() -> None:
    controller = FakeController(6)
    first = controller.start(1, 6)
    second = controller.claim(job(2))
    controller.capture(second, 6)
    orders = controller.decide(Adoption(trainer=first, generation=2))
    assert orders[0] == SetGrant(trainer=first, grant_bytes=3 * REGION)
    assert (len(orders), controller.grants()) == (2, {1: 3, 2: 0})
    assert controller.decide(Holding(trainer=first, held_bytes=4 * REGION)) == ()
    assert controller.pool.free_bytes == 2 * REGION
    orders = controller.decide(Holding(trainer=first, held_bytes=3 * REGION))
    assert orders[0] == SetGrant(trainer=second, grant_bytes=3 * REGION)
    assert isinstance(orders[1], SendPlans)


def test_other_jobs_grow_after_the_trainer_of_an_ended_job_exits() -> None:
    controller = FakeController(6)
    first, second = controller.start(1, 6), controller.start(2, 6)
    assert controller.grants() == {1: 3, 2: 3}
    assert controller.send(Finish(trainer=second))[0] == EndTrainer(trainer=second, method=EndMethod.LET_EXIT)
    assert controller.grants() == {1: 3, 2: 3}
    orders = controller.send(Exit(trainer=second, code=0))
    assert orders[:2] == (ReleaseTrainer(trainer=second), SetGrant(trainer=first, grant_bytes=6 * REGION))
    assert orders_of_type(orders, RecordPlan)[0].reason is PlanReason.END


def test_job_that_does_not_fit_waits_and_states_for_what() -> None:
    controller = FakeController(8)
    first = controller.start(1, 12)
    second = controller.claim(job(2))
    orders = controller.capture(second, 10)
    assert orders == (
        SetWaitsFor(
            job=JobId(2),
            claim=ClaimToken(1002),
            text="at least 5.0 MB of device memory, held by job 1 (8.0 MB): 3.0 MB more than the budget of 8.0 MB; "
            "0 B are free",
        ),
    )
    orders = controller.send(Finish(trainer=first))
    assert SetWaitsFor(job=JobId(2), claim=ClaimToken(1002), text=None) in orders, "it is planned for at once"
    assert not orders_of_type(orders, SetGrant), "the memory is not free yet"
    orders = controller.send(Exit(trainer=first, code=0))
    assert SetGrant(trainer=second, grant_bytes=8 * REGION) in orders


def test_jobs_without_swaps_run_one_after_another_if_their_peaks_do_not_fit() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    first = controller.start(1, 6)
    second = controller.claim(job(2))
    controller.capture(second, 6)
    assert controller.order_types() == [SetWaitsFor]
    controller.finish(first)
    assert controller.grants() == {2: 6}


def test_job_that_can_never_fit_fails_with_floor_budget_and_hint() -> None:
    controller = FakeController(4)
    trainer = controller.claim(job(1))
    assert controller.capture(trainer, 10) == (EndTrainer(trainer=trainer, method=EndMethod.TERMINATE),)
    orders = controller.send(Exit(trainer=trainer, code=-15))
    failed = orders_of_type(orders, FailJob)[0]
    assert failed.fault == Fault(
        sqlstate="53200",
        message="job 1 needs at least 5.0 MB of device memory, more than the budget of 4.0 MB",
        detail="Its largest operator alone holds 10.0 MB, below which no plan can go; "
        "what stopped the planner: too little.",
        hint="Use a smaller batch_size or a smaller network, "
        "or give the controller a larger budget (TENSILE_BUDGET_BYTES).",
    )
    assert failed.needs_bytes == 5 * REGION, "a device with that budget may train it"


def test_job_whose_trainer_finds_the_device_too_small_may_go_to_a_larger_one() -> None:
    controller = FakeController(4)
    trainer = controller.claim(job(1))
    fault = Fault(sqlstate="53200", message="the network needs at least 5.0 MB of device memory")
    controller.send(Failure(trainer=trainer, fault=fault, needs_bytes=5 * REGION))
    orders = controller.send(Exit(trainer=trainer, code=0))
    assert orders_of_type(orders, FailJob) == [
        FailJob(job=JobId(1), claim=ClaimToken(1001), fault=fault, needs_bytes=5 * REGION)
    ]


def test_job_above_its_own_limit_fails_and_names_the_limit() -> None:
    controller = FakeController(100)
    trainer = controller.claim(job(1, limit_bytes=3 * REGION))
    controller.capture(trainer, 10)
    orders = controller.send(Exit(trainer=trainer, code=0))
    failed = orders_of_type(orders, FailJob)[0]
    assert (
        failed.fault.message == "job 1 needs at least 5.0 MB of device memory, more than its memory_limit of 3.0 MB"
    )
    assert "raise memory_limit" in failed.fault.hint
    assert failed.needs_bytes is None, "no device is large enough"


def test_job_is_planned_within_its_own_limit() -> None:
    controller = FakeController(100)
    trainer = controller.claim(job(1, limit_bytes=6 * REGION))
    assert SetGrant(trainer=trainer, grant_bytes=6 * REGION) in controller.capture(trainer, 10)


def test_job_above_its_owners_quota_fails_and_names_the_quota() -> None:
    controller = FakeController(100)
    trainer = controller.claim(job(1, limit_bytes=4 * REGION, owner_limit_bytes=3 * REGION))
    controller.capture(trainer, 10)
    orders = controller.send(Exit(trainer=trainer, code=0))
    fault = orders_of_type(orders, FailJob)[0].fault
    assert fault.message == "job 1 needs at least 5.0 MB of device memory, more than its owner's quota of 3.0 MB"
    assert "tensile_set_quota" in fault.hint


def test_jobs_of_one_owner_share_the_owners_quota_and_block_no_other_owner() -> None:
    controller = FakeController(100)
    first = controller.claim(job(1, owner_limit_bytes=10 * REGION))
    controller.capture(first, 8)
    controller.adopt_all()
    second = controller.claim(job(2, owner_limit_bytes=10 * REGION))
    assert controller.capture(second, 6) == (
        SetWaitsFor(
            job=JobId(2),
            claim=ClaimToken(1002),
            text="at least 3.0 MB of its owner's quota of 10.0 MB of device memory, of which the owner's other jobs "
            "have 8.0 MB",
        ),
    )
    other = controller.claim(job(3, owner=20))
    assert SetGrant(trainer=other, grant_bytes=50 * REGION) in controller.capture(other, 50)
    controller.adopt_all()
    assert [m.overtaken for m in controller.pool.members] == [0, 1, 0]
    controller.finish(first)
    assert controller.grants() == {2: 6, 3: 50}


def test_second_job_of_an_owner_is_planned_within_the_rest_of_the_quota() -> None:
    controller = FakeController(100)
    controller.capture(controller.claim(job(1, owner_limit_bytes=10 * REGION)), 6)
    controller.adopt_all()
    second = controller.claim(job(2, owner_limit_bytes=10 * REGION))
    assert SetGrant(trainer=second, grant_bytes=4 * REGION) in controller.capture(second, 8)


def test_rounding_to_regions_never_exceeds_the_budget() -> None:
    controller = FakeController(7)
    for number in (1, 2):
        trainer = controller.claim(job(number))
        controller.send(
            Capture(trainer=trainer, graphs=(one_tensor_graph(7 * REGION // 2),), latency_ns=((1,),), unknown=0)
        )
        controller.adopt_all()
    assert controller.grants() == {1: 4, 2: 3}


def test_planner_that_exceeds_the_budget_is_an_invariant_error() -> None:
    class OverspendingPlanner(HalvingPlanner):
        def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
            return tuple(job_plan(w.job, budget_bytes + REGION) for w in workloads)

    controller = FakeController(10, OverspendingPlanner())
    trainer = controller.claim(job(1))
    with pytest.raises(InvariantError, match="the planner was given"):
        controller.capture(trainer, 4)


def test_running_jobs_grow_before_a_new_job_starts() -> None:
    controller = FakeController(10)
    first, second, third = controller.start(1, 10), controller.start(2, 8), controller.claim(job(3))
    controller.capture(third, 4)
    assert controller.order_types() == [SetWaitsFor]
    orders = controller.finish(second)
    assert [o.trainer for o in orders_of_type(orders, SendPlans)] == [first, third]


def test_job_that_fits_overtakes_a_job_that_waits_for_memory() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    controller.start(1, 6)
    large = controller.claim(job(2))
    controller.capture(large, 6)
    small = controller.claim(job(3, owner=20))
    assert SetGrant(trainer=small, grant_bytes=4 * REGION) in controller.capture(small, 4)
    assert controller.grants() == {1: 6, 2: 0, 3: 4}
    assert [m.overtaken for m in controller.pool.members] == [0, 1, 0]


def test_often_overtaken_job_blocks_the_queue_until_it_starts() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False), max_jobs=100)
    first = controller.start(1, 6)
    large = controller.claim(job(2))
    controller.capture(large, 8)
    for number in range(3, 3 + MOST_OVERTAKEN):
        trainer = controller.claim(job(number, owner=number))
        controller.capture(trainer, 1)
        controller.adopt_all()
        controller.finish(trainer)
    assert {m.job.job: m.overtaken for m in controller.pool.members} == {1: 0, 2: MOST_OVERTAKEN}
    controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
    assert not orders_of_type(controller.orders, ClaimNext)
    orders = controller.send(Finish(trainer=first))
    assert ClaimNext() in orders
    orders = controller.send(Exit(trainer=first, code=0))
    assert SetGrant(trainer=large, grant_bytes=8 * REGION) in orders


def test_job_behind_an_often_overtaken_job_states_that_it_waits_for_its_turn() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False), max_jobs=100)
    controller.start(1, 6)
    controller.capture(controller.claim(job(2)), 8)
    later_trainer = controller.claim(job(3, owner=20))
    members = tuple(replace(m, overtaken=MOST_OVERTAKEN if m.job.job == 2 else 0) for m in controller.pool.members)
    controller.pool = replace(controller.pool, members=members)
    assert controller.capture(later_trainer, 1) == (
        SetWaitsFor(
            job=JobId(3),
            claim=ClaimToken(1003),
            text=f"its turn: job 2 waits longer and was overtaken {MOST_OVERTAKEN} times",
        ),
    )


def test_every_waiting_job_that_fits_starts_when_memory_becomes_free() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    first = controller.start(1, 10)
    second, third = controller.claim(job(2)), controller.claim(job(3))
    controller.capture(second, 6)
    controller.capture(third, 4)
    controller.finish(first)
    assert controller.grants() == {2: 6, 3: 4}


def test_replan_that_changes_nothing_sends_nothing() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    controller.send(BudgetChange(budget_bytes=12 * REGION))
    assert controller.orders == ()
    assert controller.pool.members[0].trainer == trainer


def test_lowered_budget_shrinks_the_jobs() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 10)
    controller.send(BudgetChange(budget_bytes=6 * REGION))
    assert orders_of_type(controller.orders, SendPlans)[0].grant_bytes == 6 * REGION
    assert controller.send(Adoption(trainer=trainer, generation=2))[0] == SetGrant(
        trainer=trainer, grant_bytes=6 * REGION
    )


def test_budget_below_the_least_requeues_the_newest_job_without_blame() -> None:
    controller = FakeController(10)
    controller.start(1, 10)
    second = controller.start(2, 10)
    assert EndTrainer(trainer=second, method=EndMethod.TERMINATE) in controller.send(
        BudgetChange(budget_bytes=6 * REGION)
    )
    orders = controller.send(Exit(trainer=second, code=-15))
    assert orders[1] == RequeueJob(
        job=JobId(2), claim=ClaimToken(1002), reason="the device's budget was lowered", blame=Blame.NOBODY
    )


def test_plan_waits_for_the_host_memory_of_an_ending_trainer() -> None:
    controller = FakeController(20, host_pool_bytes=8 * REGION)
    first = controller.claim(job(1))
    controller.send(
        Capture(trainer=first, graphs=(one_tensor_graph(3 * REGION, Stage.UPLOAD),), latency_ns=((1000,),), unknown=0)
    )
    controller.adopt_all()
    controller.send(CancelRequest(job=JobId(1)))
    second = controller.claim(job(2))
    controller.send(
        Capture(
            trainer=second, graphs=(one_tensor_graph(2 * REGION, Stage.UPLOAD),), latency_ns=((1000,),), unknown=0
        )
    )
    assert SendPlans not in controller.order_types()
    assert controller.pool.free_host_bytes == 2 * REGION
    controller.send(Exit(trainer=first, code=0))
    assert [o.trainer for o in orders_of_type(controller.orders, SendPlans)] == [second]
    assert controller.pool.free_host_bytes == 4 * REGION


def test_job_keeps_its_host_memory_until_it_adopts_the_smaller_plan() -> None:
    controller = FakeController(20, host_pool_bytes=8 * REGION)
    trainer = controller.claim(job(1))
    controller.send(
        Capture(
            trainer=trainer, graphs=(one_tensor_graph(3 * REGION, Stage.UPLOAD),), latency_ns=((1000,),), unknown=0
        )
    )
    controller.adopt_all()
    member = controller.pool.members[0]
    assert (member.planned_host_bytes, member.host_bytes) == (6 * REGION, 6 * REGION)
    smaller = replace(member, generation=2, planned_host_bytes=2 * REGION)
    controller.pool = replace(controller.pool, members=(smaller,))
    assert controller.pool.free_host_bytes == 2 * REGION
    controller.send(Adoption(trainer=trainer, generation=2))
    assert controller.pool.free_host_bytes == 6 * REGION
