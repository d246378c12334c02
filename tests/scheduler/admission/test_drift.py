"""Check how `decide()` handles measured latencies: it corrects the expected latencies, and renews plans after drift
beyond the threshold.
"""

from dataclasses import dataclass, replace

import pytest

from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    RecordForecast,
    RecordMeasurement,
    SendPlans,
)
from indb_tensile.scheduler.admission.decision import corrected, planned
from indb_tensile.scheduler.admission.events import (
    Answered,
    CancelRequest,
    Capture,
)
from indb_tensile.scheduler.admission.questions import RenewFor, Unanswered
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    graph,
    job,
    job_plan,
    measurement,
    orders_of_type,
)


def test_drift_during_a_transition_is_ignored() -> None:
    controller = FakeController(10)
    first = controller.start(1, 4)
    second = controller.claim(job(2))
    controller.capture(second, 4)  # a plan is in flight now
    report = measurement(first, 9000)
    controller.send_twice(report)
    workload = controller.pool.members[0].workload
    assert workload is not None
    assert workload.latency_ns == ((1000,),)
    controller.adopt_all()
    controller.send_twice(replace(report, latency_ns=(5000,)))
    assert controller.pool.members[0].workload is not None
    assert controller.pool.members[0].workload.latency_ns == ((7000,),)


def test_measurements_while_another_job_is_prepared_are_recorded_and_do_not_count() -> None:
    controller = FakeController(10)
    first = controller.start(1, 4)
    second = controller.claim(job(2))  # whose trainer reads and captures now
    report = measurement(first, 9000)
    orders = controller.send(report)
    assert orders_of_type(orders, RecordMeasurement) != []
    assert controller.pool.members[0].corrected_ns == (1000,)
    controller.capture(second, 4)
    controller.adopt_all()
    controller.send(report)  # of iterations that began before the end of the capture
    assert controller.pool.members[0].corrected_ns == (1000,)
    controller.send(report)
    assert controller.pool.members[0].corrected_ns == (9000,)


def test_cost_of_copies_counts_until_latencies_are_measured_under_a_plan_with_swaps() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1))
    loss = CopyLoss(per_copy_ns=7)
    controller.send(Capture(trainer=trainer, graphs=(graph(4),), latency_ns=((1000,),), unknown=0, copy_loss=loss))
    controller.adopt_all()
    assert planned(controller.pool.members[0]).copy_loss == loss
    controller.send_twice(measurement(trainer, 1100))
    assert corrected(controller.pool.members[0]).copy_loss == loss, "the plan has no swap"
    (member,) = controller.pool.members
    assert member.plan is not None
    swapping = replace(member, plan=replace(member.plan, swaps=3))
    controller.pool = replace(controller.pool, members=(swapping,))
    controller.send_twice(measurement(trainer, 5000))
    (member,) = controller.pool.members
    assert (corrected(member).copy_loss, planned(member).copy_loss) == (FREE_COPIES, FREE_COPIES)


def test_a_measurement_that_reaches_back_to_another_set_of_jobs_does_not_count() -> None:
    controller = FakeController(10)
    first, second = controller.start(1, 4), controller.start(2, 4)
    controller.send(measurement(first, 9000))
    assert controller.pool.members[0].corrected_ns == (1000,)
    controller.send(measurement(first, 1100))
    assert controller.pool.members[0].corrected_ns == (1100,)
    controller.finish(second)
    controller.send(measurement(first, 9000))
    assert controller.pool.members[0].corrected_ns == (1100,)


def test_measurements_count_again_where_jobs_are_prepared_all_the_time() -> None:
    controller = FakeController(10)
    first = controller.start(1, 4)
    controller.claim(job(2))
    counted = [controller.send(measurement(first, 9000)) and controller.pool.members[0].measured for _ in range(9)]
    assert counted == [False] * 8 + [True]


def test_measurement_of_a_plan_that_was_not_adopted_is_ignored() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    report = measurement(trainer, 9000, generation=2)
    assert controller.send(report) == ()


def test_jobs_are_replanned_only_for_drift_beyond_the_threshold() -> None:
    controller = FakeController(10, drift_threshold=0.2)
    trainer = controller.start(1, 4)
    report = measurement(trainer, 1200)
    record = RecordMeasurement(job=JobId(1), claim=ClaimToken(1001), measurement=report, throughput=1.0)
    assert controller.send(report) == (record,)
    assert controller.pool.members[0].corrected_ns == (1200,), (
        "the first report replaces the latencies of the calibration"
    )
    assert controller.pool.members[0].workload is not None
    assert controller.pool.members[0].workload.latency_ns == ((1000,),), "replanned below the threshold"
    controller.send(replace(report, latency_ns=(2000,)))
    assert controller.pool.members[0].workload.latency_ns == ((1600,),), "not replanned beyond the threshold"


def test_last_report_of_a_job_asks_for_no_plan_and_tells_how_long_its_kind_takes_between_iterations() -> None:
    controller = FakeController(10, drift_threshold=0.2)
    trainer = controller.start(1, 4)
    controller.send(replace(measurement(trainer, 2000), iteration_ns=2000, step_ns=2400, last=True))
    (member,) = controller.pool.members
    assert member.workload is not None
    assert member.workload.latency_ns == ((1000,),)
    (kind,) = controller.pool.overheads.kinds
    assert kind.between_ns == 400


@dataclass(frozen=True)
class RenewingPlanner(HalvingPlanner):
    """Renew every job's plan after drift to one whose peak is `more_bytes` higher."""

    more_bytes: int = 0

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        return tuple(job_plan(plan.job, plan.peak_bytes + self.more_bytes) for plan in plans)


@pytest.mark.parametrize(("more_bytes", "sent_bytes"), [(-1, 6 * REGION - 1), (4 * REGION, 6 * REGION)])
def test_drifted_plans_are_renewed_if_their_grants_fit_and_replanned_otherwise(
    more_bytes: int, sent_bytes: int
) -> None:
    """Two jobs of six regions share a budget of twelve. Replanning gives the plans that they have, so nothing is
    sent.
    """
    controller = FakeController(12, planner=RenewingPlanner(more_bytes=more_bytes), drift_threshold=0.2)
    trainers = [controller.start(1, 6), controller.start(2, 6)]
    for trainer in trainers:
        controller.send(measurement(trainer, 2000, regions=6))
    plans = [member.plan for member in controller.pool.members]
    assert [plan.peak_bytes for plan in plans if plan is not None] == [sent_bytes, sent_bytes]


class UnansweredPlanner(HalvingPlanner):
    """Raise Unanswered for every question about drift. The answer never comes."""

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        raise Unanswered(RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes, thorough=thorough))


def test_planner_gets_no_question_about_drifted_jobs_that_were_cancelled() -> None:
    controller = FakeController(12, planner=UnansweredPlanner(), drift_threshold=0.2)
    trainer = controller.start(1, 6)
    report = measurement(trainer, 2000, regions=6)
    controller.send(report)
    assert controller.pool.asked
    controller.send(CancelRequest(job=JobId(1)))
    controller.send(Answered())
    assert (controller.pool.due, controller.pool.asked) == (None, False)


class ForecastingPlanner(HalvingPlanner):
    """Return plans that do not depend on the latencies, with forecasts that do."""

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        plans = super().plan(workloads, budget_bytes=budget_bytes)
        if isinstance(plans, Infeasible):
            return plans
        return tuple(
            replace(p, forecast=forecast_of(sum(w.latency_ns[0]))) for p, w in zip(plans, workloads, strict=True)
        )

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        return tuple(
            replace(p, forecast=forecast_of(sum(w.latency_ns[0]))) for p, w in zip(plans, workloads, strict=True)
        )


def forecast_of(iteration_ns: int) -> Forecast:
    """Return the forecast of a job that neither stalls nor copies."""
    return Forecast(
        iteration_ns=iteration_ns,
        compute_ns=iteration_ns,
        stall_out_ns=0,
        stall_in_ns=0,
        upload_ns=0,
        peak_bytes=1,
        out_bytes=0,
        in_bytes=0,
    )


def test_measurement_within_the_threshold_renews_the_forecast_only() -> None:
    controller = FakeController(10, planner=ForecastingPlanner(), drift_threshold=0.2)
    trainer = controller.start(1, 4)
    report = measurement(trainer, 1200)
    record = RecordMeasurement(job=JobId(1), claim=ClaimToken(1001), measurement=report, throughput=1.0)
    record_forecast = RecordForecast(job=JobId(1), claim=ClaimToken(1001), generation=1, forecast=forecast_of(1200))
    assert controller.send(report) == (record, record_forecast)
    assert controller.pool.members[0].workload is not None
    assert controller.pool.members[0].workload.latency_ns == ((1000,),), "replanned below the threshold"


def test_drift_that_changes_no_plan_renews_the_forecast() -> None:
    controller = FakeController(10, planner=ForecastingPlanner())
    trainer = controller.start(1, 4)
    controller.send(measurement(trainer, 2000))
    record_forecast = RecordForecast(job=JobId(1), claim=ClaimToken(1001), generation=1, forecast=forecast_of(2000))
    assert record_forecast in controller.orders
    assert not orders_of_type(controller.orders, SendPlans)
