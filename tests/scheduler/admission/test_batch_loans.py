"""Free memory is lent for next batches, returns when it is needed, and changes nothing for other jobs."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.admission_orders import (
    GrantCalibration,
    LendForBatch,
    Order,
    RecordForecast,
    SendPlans,
    SetWaitsFor,
)
from indb_tensile.scheduler.admission.events import (
    Adoption,
    BatchLoan,
    BudgetChange,
    Capture,
    Exit,
    Parking,
    PauseChange,
    StepsLeft,
    Tick,
)
from indb_tensile.scheduler.admission.outlook import outlook_of
from indb_tensile.scheduler.admission.pool import JobStage, Sharing, TrainerId
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    graph,
    job,
    measurement,
    orders_of_type,
)

STEPS = 1e9


class Lender(FakeController):
    """A controller whose trainers give memory back at once."""

    def __init__(self, budget: int, *, lends: bool = True, **rules: Any) -> None:
        super().__init__(budget, batch=("t0",) if lends else (), **rules)

    def start_long(self, number: int, regions: int, **claimed: Any) -> TrainerId:
        """Start a job of many steps, whose batch is as large as its graph."""
        trainer = self.claim(job(number, **claimed))
        self.capture(trainer, regions, steps=STEPS)
        self.adopt_all()
        return trainer

    def loans(self) -> dict[int, int]:
        """Return the lent regions by job."""
        return {m.job.job: m.lent_bytes // REGION for m in self.pool.members if m.lent_bytes}

    def lend_orders(self) -> list[tuple[int, int]]:
        """Return the trainers and the bytes of the last orders to lend."""
        return [(o.trainer, o.size_bytes) for o in orders_of_type(self.orders, LendForBatch)]

    def give_back(self, trainer: TrainerId) -> tuple[Order, ...]:
        """Let the trainer give its loan back."""
        member = self.pool.of_trainer(trainer)
        assert member is not None
        return self.send(BatchLoan(trainer=trainer, number=member.loans, size_bytes=0))

    def give_all_back(self) -> None:
        """Let all trainers that were told so give their loans back."""
        while owing := [m for m in self.pool.members if m.returning]:
            assert owing[0].trainer is not None
            self.give_back(owing[0].trainer)


def test_free_memory_is_lent_to_a_job_that_waits_for_its_batches() -> None:
    controller = Lender(10)
    trainer = controller.start_long(1, 4)
    assert controller.lend_orders() == [(trainer, 4 * REGION)]
    assert (controller.loans(), controller.grants()) == ({1: 4}, {1: 8})
    assert controller.pool.free_bytes == 2 * REGION
    (forecast,) = [o.forecast for o in orders_of_type(controller.orders, RecordForecast)]
    assert (forecast.iteration_ns, forecast.upload_ns) == (800, 0)
    controller.send(Tick())
    assert controller.lend_orders() == []


def test_nothing_is_lent_where_trainers_do_not_upload_ahead_or_the_batch_has_no_room() -> None:
    assert Lender(10, lends=False).start_long(1, 4) == 1
    for budget in (4, 7):
        controller = Lender(budget)
        controller.start_long(1, 4)
        assert (controller.loans(), controller.grants()) == ({}, {1: 4})


def test_nothing_is_lent_to_a_job_that_is_about_to_end() -> None:
    controller = Lender(10)
    controller.start(1, 4)
    assert controller.loans() == {}
    trainer = controller.start_long(2, 2)
    assert controller.loans() == {2: 2}
    controller.send(StepsLeft(trainer=trainer, steps_left=3.0))
    assert controller.loans() == {2: 2}, "a loan is not taken back because its job ends soon"


def test_loans_return_before_a_new_job_needs_memory_and_its_plan_is_sent_when_they_have() -> None:
    controller = Lender(10)
    first = controller.start_long(1, 4)
    second = controller.claim(job(2))
    assert controller.loans() == {1: 4}
    controller.capture(second, 4, steps=STEPS)
    member = controller.pool.of_trainer(second)
    assert member is not None
    assert (member.stage, member.generation) == (JobStage.RUNNING, 0), "it is let in, and its plan waits for the loan"
    orders = controller.give_back(first)
    assert [o.grant_bytes for o in orders_of_type(orders, SendPlans)] == [4 * REGION]
    assert controller.grants() == {1: 4, 2: 4}


def test_loan_is_taken_back_when_a_job_is_claimed_and_not_lent_again_while_it_is_prepared() -> None:
    controller = Lender(10)
    first = controller.start_long(1, 4)
    second = controller.claim(job(2))
    controller.give_all_back()
    assert (controller.loans(), controller.grants()[1]) == ({}, 4)
    controller.send(Tick())
    assert controller.loans() == {}
    controller.send(Exit(trainer=second, code=1))
    assert controller.loans() == {1: 4}
    assert controller.pool.of_trainer(first) is not None


def test_calibration_waits_for_loans_and_gets_all_memory() -> None:
    controller = Lender(10)
    first = controller.start_long(1, 4)
    second = controller.claim(job(2))
    controller.capture(second, 2, unknown=1, steps=STEPS)
    assert not orders_of_type(controller.orders, GrantCalibration)
    orders = controller.give_back(first)
    assert [o.grant_bytes for o in orders_of_type(orders, GrantCalibration)] == [6 * REGION]


def test_plan_that_is_sent_ends_the_loan_and_its_adoption_lowers_the_grant() -> None:
    controller = Lender(10)
    trainer = controller.start_long(1, 4)
    controller.send(BudgetChange(budget_bytes=3 * REGION))
    sent = orders_of_type(controller.orders, SendPlans)
    assert [o.grant_bytes for o in sent] == [3 * REGION]
    assert controller.grants() == {1: 8}
    controller.send(Adoption(trainer=trainer, generation=2))
    assert (controller.grants(), controller.loans()) == ({1: 3}, {})


def test_parked_job_has_no_loan() -> None:
    controller = Lender(10)
    trainer = controller.start_long(1, 4)
    controller.send(PauseChange(paused=frozenset({JobId(1)})))
    assert controller.lend_orders() == []
    controller.send(Parking(trainer=trainer, number=1, host_bytes=5))
    assert (controller.grants(), controller.loans(), controller.pool.free_bytes) == ({1: 0}, {}, 10 * REGION)


def test_trainer_that_refuses_a_loan_gets_none_until_its_next_plan() -> None:
    controller = Lender(20)
    trainer = controller.start_long(1, 4)
    controller.give_back(trainer)
    assert (controller.loans(), controller.grants()) == ({}, {1: 4})
    controller.send(Tick())
    assert controller.loans() == {}


def test_late_answer_about_an_earlier_loan_changes_nothing() -> None:
    controller = Lender(10)
    first = controller.start_long(1, 4)
    second = controller.claim(job(2))
    controller.give_all_back()
    controller.send(Exit(trainer=second, code=1))
    assert controller.loans() == {1: 4}
    controller.send(BatchLoan(trainer=first, number=1, size_bytes=0))
    controller.send(BatchLoan(trainer=TrainerId(99), number=3, size_bytes=0))
    assert (controller.loans(), controller.grants()) == ({1: 4}, {1: 8})


def test_refusal_that_crosses_with_the_order_to_give_back_counts_as_given_back() -> None:
    controller = Lender(10)
    first = controller.start_long(1, 4)
    controller.claim(job(2))
    member = controller.pool.of_trainer(first)
    assert member is not None
    assert (member.returning, member.loans) == (True, 2)
    controller.send(BatchLoan(trainer=first, number=1, size_bytes=0))
    assert (controller.loans(), controller.grants()[1]) == ({}, 4)


def test_loan_keeps_to_the_limit_of_the_job_and_to_the_quota_of_its_owner() -> None:
    limited = Lender(20)
    limited.start_long(1, 4, limit_bytes=7 * REGION)
    assert limited.loans() == {}
    owned = Lender(20)
    owned.start_long(1, 4, owner_limit_bytes=9 * REGION)
    assert owned.loans() == {1: 4}
    second = owned.claim(job(2, owner_limit_bytes=9 * REGION))
    owned.capture(second, 5, steps=STEPS)
    assert not orders_of_type(owned.orders, SendPlans), "its owner would have 13 regions"
    assert owned.pool.free_bytes == 12 * REGION
    owned.give_all_back()
    owned.adopt_all()
    assert (owned.grants(), owned.loans()) == ({1: 4, 2: 5}, {})


def test_lent_memory_is_free_in_what_users_read() -> None:
    controller = Lender(10, sharing=Sharing.COMPLETION)
    controller.start_long(1, 4)
    controller.claim(job(2))
    controller.send(Tick())
    outlook = outlook_of(controller.pool)
    assert outlook is not None
    assert outlook.lent_bytes == 4 * REGION
    waiting = Lender(6)
    waiting.start_long(1, 3)
    trainer = waiting.claim(job(2))
    waiting.capture(trainer, 10, steps=STEPS)
    texts = [o.text or "" for o in orders_of_type(waiting.orders, SetWaitsFor)]
    assert [text.rpartition("; ")[2] for text in texts] == ["3.0 MB are free"]


def test_loan_is_not_given_where_iterations_do_not_become_shorter() -> None:
    class Slow(HalvingPlanner):
        def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
            plain = tuple(replace(workload, batch_beside=False) for workload in workloads)
            return super().foresee(plain, plans)

    controller = Lender(10, planner=Slow(uploads=True))
    trainer = controller.start_long(1, 4)
    assert controller.loans() == {}
    controller.send_twice(measurement(trainer, 1000))
    assert controller.loans() == {}
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    assert member.refused_loan == member.generation


def sent_plans(
    budget: int, sizes: list[tuple[int, bool]], ends: list[int], *, lends: bool
) -> list[tuple[object, ...]]:
    """Return what a controller sends if jobs of these sizes come and go, and every answer comes at once."""
    controller = Lender(budget, lends=lends)
    controller.planner = type(controller.planner)(uploads=True)
    seen: list[tuple[object, ...]] = []

    def settle() -> None:
        seen.extend(_told(controller.orders))
        for _ in range(100):
            before = controller.pool
            controller.give_all_back()
            seen.extend(_told(controller.orders))
            for member in controller.pool.members:
                if member.in_flight and member.trainer is not None:
                    controller.send(Adoption(trainer=member.trainer, generation=member.generation))
                    seen.extend(_told(controller.orders))
            if controller.pool == before:
                return
        pytest.fail("it never settles")

    for number, (regions, unmeasured) in enumerate(sizes, start=1):
        trainer = controller.claim(job(number))
        settle()
        controller.send(
            Capture(
                trainer=trainer,
                graphs=(graph(regions),),
                latency_ns=((1000,),),
                unknown=int(unmeasured),
                steps=STEPS,
            )
        )
        settle()
        for end in [e for e in ends if e == number]:
            ending = controller.pool.of_job(JobId(end))
            if ending is not None and ending.stage is JobStage.RUNNING and ending.trainer is not None:
                controller.finish(ending.trainer)
                settle()
    return seen


def _told(orders: tuple[Order, ...]) -> list[tuple[object, ...]]:
    plans = [("plan", o.trainer, o.generation, o.grant_bytes, o.plans) for o in orders_of_type(orders, SendPlans)]
    return [*plans, *(("calibrate", o.trainer, o.grant_bytes) for o in orders_of_type(orders, GrantCalibration))]


@settings(max_examples=30)
@given(
    st.integers(2, 20),
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=5),
    st.lists(st.integers(1, 5), max_size=3),
)
def test_jobs_get_the_same_plans_and_calibrations_whether_or_not_free_memory_is_lent(
    budget: int, sizes: list[tuple[int, bool]], ends: list[int]
) -> None:
    with_loans, without = (sorted(sent_plans(budget, sizes, ends, lends=lends), key=repr) for lends in (True, False))
    assert set(with_loans) == set(without)
