from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, JobSpec, Relation, Task
from indb_tensile.scheduler.admission.admission_orders import (
    AskPlanner,
    AssignJob,
    CancelJob,
    ClaimNext,
    EndMethod,
    EndTrainer,
    FailJob,
    GrantCalibration,
    Order,
    RecordAdoption,
    RecordForecast,
    RecordMeasurement,
    RecordPlan,
    ReleaseTrainer,
    RequeueJob,
    SendPlans,
    SetGrant,
    SetWaitsFor,
    SpawnTrainer,
)
from indb_tensile.scheduler.admission.decide import decide, finished
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Answered,
    BudgetChange,
    Calibration,
    CancelRequest,
    Capture,
    Claim,
    ClaimLoss,
    Event,
    Exit,
    ExitCause,
    Failure,
    Finish,
    Holding,
    Measurement,
    Overrun,
    PlacesChange,
    QueueChange,
    Silence,
    SpareReady,
    Stall,
    Stop,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, PlanReason, Pool, TrainerId
from indb_tensile.scheduler.admission.questions import LeastFor, PlacedFor, PlanFor, Question, RenewFor, Unanswered
from indb_tensile.scheduler.admission.questions import answer as answered
from indb_tensile.scheduler.admission.trainer_staff import MOST_OVERTAKEN, claim_blocker
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.simulate import Forecast
from indb_tensile.scheduler.workload import Workload

REGION = 1 << 20


def graph(regions: int, operators: int = 1) -> StepGraph:
    """`operators` operators that write tensors of `regions` regions in all."""
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"t{i}", size_bytes=regions * REGION // operators, role=Role.ACTIVATION)
        for i in range(operators)
    )
    return StepGraph(
        tensors=tensors,
        operators=tuple(
            Operator(name=f"op{t.id}", signature=f"op{t.id}", stage=Stage.FORWARD, reads=(), writes=(t.id,))
            for t in tensors
        ),
    )


def uneven_graph(size_bytes: int) -> StepGraph:
    """One operator that writes so many bytes."""
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=size_bytes, role=Role.ACTIVATION)
    operator = Operator(name="op", signature="op", stage=Stage.FORWARD, reads=(), writes=(TensorId(0),))
    return StepGraph(tensors=(tensor,), operators=(operator,))


@dataclass(frozen=True)
class HalvingPlanner:
    """Gives every job its whole graph; where that is too much, as little as half of it, the first jobs first."""

    swaps: bool = True

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        return plan.peak_bytes

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        least = [self.least_bytes(w) for w in workloads]
        for workload, least_bytes in zip(workloads, least, strict=True):
            if workload.limit_bytes is not None and least_bytes > workload.limit_bytes:
                return Infeasible(needed_bytes=least_bytes, budget_bytes=workload.limit_bytes, reason="limit")
        if sum(least) > budget_bytes:
            return Infeasible(needed_bytes=sum(least), budget_bytes=budget_bytes, reason="too little")
        spare_bytes = budget_bytes - sum(least)
        plans = []
        for workload, least_bytes in zip(workloads, least, strict=True):
            want = min(self.whole_bytes(workload), workload.limit_bytes or 1 << 60)
            extra_bytes = min(spare_bytes, want - least_bytes)
            spare_bytes -= extra_bytes
            plans.append(job_plan(workload.job, least_bytes + extra_bytes))
        return tuple(plans)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        return None

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        del workloads
        return plans

    def least_bytes(self, workload: Workload) -> int:
        return self.whole_bytes(workload) // (2 if self.swaps else 1)

    def whole_bytes(self, workload: Workload) -> int:
        return sum(t.size_bytes for t in workload.graphs[0].tensors)


@dataclass(frozen=True)
class LatePlanner(HalvingPlanner):
    """Knows what it was taught, and has to be asked for the rest."""

    taught: list[tuple[Question, Any]] = field(default_factory=list)

    def teach(self, question: Question) -> None:
        self.taught.append((question, answered(HalvingPlanner(), question)))

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        found: tuple[JobPlan, ...] | Infeasible = self.look_up(
            PlanFor(workloads=workloads, budget_bytes=budget_bytes)
        )
        return found

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        found: tuple[JobPlan, ...] | None = self.look_up(
            RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes)
        )
        return found

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        found: int = self.look_up(PlacedFor(workload=workload, plan=plan, region_bytes=region_bytes))
        return found

    def least_bytes(self, workload: Workload) -> int:
        found: int = self.look_up(LeastFor(workload=workload))
        return found

    def look_up(self, question: Question) -> Any:
        for known, found in self.taught:
            if known == question:
                return found
        raise Unanswered(question)


def job_plan(job: JobId, peak_bytes: int) -> JobPlan:
    return JobPlan(
        job=job,
        plans=(Plan(policy=f"fake {peak_bytes}"),),
        forecast=_FORECAST,
        vanilla_peak_bytes=peak_bytes,
        liveness_peak_bytes=peak_bytes,
        floor_bytes=peak_bytes,
        peak_bytes=peak_bytes,
        swaps=0,
        swapped_bytes=0,
    )


_FORECAST: Any = None


def job(
    number: int,
    limit_bytes: int | None = None,
    claim: int | None = None,
    *,
    owner: int = 10,
    owner_limit_bytes: int | None = None,
) -> ClaimedJob:
    spec = JobSpec(
        model=f"model {number}",
        relation=Relation(oid=number, schema="public", name="t"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": "mlp"},
        memory_limit_bytes=limit_bytes,
    )
    token = ClaimToken(1000 + number if claim is None else claim)
    return ClaimedJob(
        job=JobId(number),
        claim=token,
        attempt=1,
        owner_oid=owner,
        spec=spec,
        owner_limit_bytes=owner_limit_bytes,
    )


class Drive:
    """Feeds events to decide() and keeps what it answered."""

    def __init__(self, budget: int, planner: HalvingPlanner = HalvingPlanner(), **rules: Any) -> None:
        self.pool = Pool(budget_bytes=budget * REGION, region_bytes=REGION, **rules)
        self.planner = planner
        self.orders: tuple[Order, ...] = ()

    def send(self, event: Event) -> tuple[Order, ...]:
        """The orders of this event, and of the ledger's answers to them: what is taken back comes at once."""
        self.orders = self.decide(event)
        for order in self.orders:
            if isinstance(order, SetGrant) and self.pool.of_trainer(order.trainer) is not None:
                self.orders += self.decide(Holding(trainer=order.trainer, held_bytes=order.grant_bytes))
        return self.orders

    def decide(self, event: Event) -> tuple[Order, ...]:
        self.pool, orders = decide(self.pool, event, self.planner)
        return orders

    def claim(self, claimed: ClaimedJob) -> TrainerId:
        """Up to the point where the job's trainer captures."""
        self.send(Tick())
        while not any(s.ready for s in self.pool.spares):
            self.send(SpareReady(trainer=self.pool.spares[0].trainer))
        self.send(Claim(job=claimed))
        (assigned,) = [o for o in self.orders if isinstance(o, AssignJob)]
        assert assigned.job == claimed
        return assigned.trainer

    def capture(self, trainer: TrainerId, regions: int, unknown: int = 0) -> tuple[Order, ...]:
        return self.send(Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((1000,),), unknown=unknown))

    def start(self, number: int, regions: int) -> TrainerId:
        """A job that trains, all plans adopted."""
        trainer = self.claim(job(number))
        self.capture(trainer, regions)
        self.adopt_all()
        return trainer

    def adopt_all(self) -> None:
        while flying := [m for m in self.pool.members if m.in_flight]:
            assert flying[0].trainer is not None
            self.send(Adoption(trainer=flying[0].trainer, generation=flying[0].generation))

    def grants(self) -> dict[int, int]:
        return {m.job.job: m.granted_bytes // REGION for m in self.pool.members}

    def kinds(self) -> list[type]:
        return [type(o) for o in self.orders]


def test_a_tick_starts_spares_and_claims_nothing_before_one_is_ready() -> None:
    drive = Drive(10, spare_trainers=2)
    assert drive.send(Tick()) == (SpawnTrainer(trainer=TrainerId(1)), SpawnTrainer(trainer=TrainerId(2)))
    assert drive.send(Tick()) == ()
    assert drive.send(SpareReady(trainer=TrainerId(1))) == (ClaimNext(),)


def test_an_empty_queue_is_asked_again_at_the_next_tick_or_notification() -> None:
    drive = Drive(10)
    drive.send(Tick())
    drive.send(SpareReady(trainer=TrainerId(1)))
    assert drive.send(Claim(job=None)) == ()
    assert drive.send(SpareReady(trainer=TrainerId(1))) == ()
    assert drive.send(QueueChange()) == (ClaimNext(),)
    drive.send(Claim(job=None))
    assert drive.send(Tick()) == (ClaimNext(),)


def test_a_claimed_job_gets_the_ready_spare_and_a_new_spare_is_started() -> None:
    drive = Drive(10)
    drive.send(Tick())
    drive.send(SpareReady(trainer=TrainerId(1)))
    assert drive.send(Claim(job=job(7))) == (
        AssignJob(trainer=TrainerId(1), job=job(7)),
        SpawnTrainer(trainer=TrainerId(2)),
    )


def test_a_known_job_is_planned_granted_sent_and_recorded_at_once() -> None:
    drive = Drive(10)
    trainer = drive.claim(job(7))
    assert drive.capture(trainer, 4) == (
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
    assert drive.send(Adoption(trainer=trainer, generation=1)) == (
        RecordAdoption(job=JobId(7), claim=ClaimToken(1007), generation=1),
    )


def test_a_second_job_is_let_in_only_after_the_first_has_shrunk() -> None:
    drive = Drive(6)
    first = drive.start(1, 6)
    second = drive.claim(job(2))
    drive.capture(second, 6)
    assert [o for o in drive.orders if isinstance(o, SendPlans)] == [
        SendPlans(trainer=first, generation=2, grant_bytes=3 * REGION, plans=job_plan(JobId(1), 3 * REGION).plans)
    ]
    assert drive.grants() == {1: 6, 2: 0}
    orders = drive.send(Adoption(trainer=first, generation=2))
    assert orders[0] == SetGrant(trainer=first, grant_bytes=3 * REGION)
    assert orders[2] == SetGrant(trainer=second, grant_bytes=3 * REGION)
    assert isinstance(orders[3], SendPlans)
    assert drive.grants() == {1: 3, 2: 3}


def test_what_a_lowered_grant_left_in_use_is_granted_to_nobody_until_it_is_empty() -> None:
    drive = Drive(6)
    first = drive.start(1, 6)
    second = drive.claim(job(2))
    drive.capture(second, 6)
    orders = drive.decide(Adoption(trainer=first, generation=2))
    assert orders[0] == SetGrant(trainer=first, grant_bytes=3 * REGION)
    assert (len(orders), drive.grants()) == (2, {1: 3, 2: 0})
    assert drive.decide(Holding(trainer=first, held_bytes=4 * REGION)) == ()
    assert drive.pool.free_bytes == 2 * REGION
    orders = drive.decide(Holding(trainer=first, held_bytes=3 * REGION))
    assert orders[0] == SetGrant(trainer=second, grant_bytes=3 * REGION)
    assert isinstance(orders[1], SendPlans)


def test_when_a_job_ends_the_others_grow_after_its_trainer_is_gone() -> None:
    drive = Drive(6)
    first, second = drive.start(1, 6), drive.start(2, 6)
    assert drive.grants() == {1: 3, 2: 3}
    assert drive.send(Finish(trainer=second))[0] == EndTrainer(trainer=second, method=EndMethod.LET_EXIT)
    assert drive.grants() == {1: 3, 2: 3}
    orders = drive.send(Exit(trainer=second, code=0))
    assert orders[:2] == (ReleaseTrainer(trainer=second), SetGrant(trainer=first, grant_bytes=6 * REGION))
    assert next(o for o in orders if isinstance(o, RecordPlan)).reason is PlanReason.END


def test_a_job_that_does_not_fit_beside_the_others_waits_and_says_for_what() -> None:
    drive = Drive(8)
    first = drive.start(1, 12)
    second = drive.claim(job(2))
    orders = drive.capture(second, 10)
    assert orders == (
        SetWaitsFor(
            job=JobId(2),
            claim=ClaimToken(1002),
            text="at least 5.0 MB of device memory, held by job 1 (8.0 MB): 3.0 MB more than the budget of 8.0 MB; "
            "0 B are free",
        ),
    )
    drive.send(Finish(trainer=first))
    orders = drive.send(Exit(trainer=first, code=0))
    assert SetWaitsFor(job=JobId(2), claim=ClaimToken(1002), text=None) in orders
    assert SetGrant(trainer=second, grant_bytes=8 * REGION) in orders


def test_without_swaps_jobs_whose_peaks_do_not_fit_together_run_one_after_another() -> None:
    drive = Drive(10, HalvingPlanner(swaps=False))
    first = drive.start(1, 6)
    second = drive.claim(job(2))
    drive.capture(second, 6)
    assert drive.kinds() == [SetWaitsFor]
    drive.send(Finish(trainer=first))
    drive.send(Exit(trainer=first, code=0))
    assert drive.grants() == {2: 6}


def test_a_job_that_can_never_fit_fails_with_floor_budget_and_way_out() -> None:
    drive = Drive(4)
    trainer = drive.claim(job(1))
    assert drive.capture(trainer, 10) == (EndTrainer(trainer=trainer, method=EndMethod.TERMINATE),)
    orders = drive.send(Exit(trainer=trainer, code=-15))
    failed = next(o for o in orders if isinstance(o, FailJob))
    assert failed.fault == Fault(
        sqlstate="53200",
        message="job 1 needs at least 5.0 MB of device memory, more than the budget of 4.0 MB",
        detail="Its largest operator alone holds 10.0 MB, below which no plan can go; "
        "what stopped the planner: too little.",
        hint="Use a smaller batch_size or a smaller network, "
        "or give the controller a larger budget (TENSILE_BUDGET_BYTES).",
    )


def test_a_job_above_its_own_limit_fails_and_names_the_limit() -> None:
    drive = Drive(100)
    trainer = drive.claim(job(1, limit_bytes=3 * REGION))
    drive.capture(trainer, 10)
    orders = drive.send(Exit(trainer=trainer, code=0))
    failed = next(o for o in orders if isinstance(o, FailJob))
    assert (
        failed.fault.message == "job 1 needs at least 5.0 MB of device memory, more than its memory_limit of 3.0 MB"
    )
    assert "raise memory_limit" in failed.fault.hint


def test_a_job_keeps_to_its_own_limit_where_it_can() -> None:
    drive = Drive(100)
    trainer = drive.claim(job(1, limit_bytes=6 * REGION))
    assert SetGrant(trainer=trainer, grant_bytes=6 * REGION) in drive.capture(trainer, 10)


def test_unknown_operators_are_calibrated_with_all_that_is_free() -> None:
    drive = Drive(10)
    trainer = drive.claim(job(1))
    assert drive.capture(trainer, 4, unknown=1) == (
        SetGrant(trainer=trainer, grant_bytes=10 * REGION),
        GrantCalibration(trainer=trainer, grant_bytes=10 * REGION),
    )
    orders = drive.send(Calibration(trainer=trainer, graphs=(graph(6),), latency_ns=((900,),)))
    assert orders[:2] == (SetGrant(trainer=trainer, grant_bytes=0), SetGrant(trainer=trainer, grant_bytes=6 * REGION))
    assert drive.grants() == {1: 6}


def test_a_calibration_keeps_to_the_jobs_own_limit() -> None:
    drive = Drive(10)
    trainer = drive.claim(job(1, limit_bytes=5 * REGION))
    assert GrantCalibration(trainer=trainer, grant_bytes=5 * REGION) in drive.capture(trainer, 4, unknown=1)


def test_a_calibration_squeezes_the_others_where_too_little_is_free() -> None:
    drive = Drive(10)
    first = drive.start(1, 10)
    second = drive.claim(job(2))
    drive.capture(second, 4, unknown=1)
    sent = next(o for o in drive.orders if isinstance(o, SendPlans))
    assert (sent.trainer, sent.grant_bytes) == (first, 6 * REGION)
    assert not any(isinstance(o, GrantCalibration) for o in drive.orders)
    orders = drive.send(Adoption(trainer=first, generation=2))
    assert GrantCalibration(trainer=second, grant_bytes=4 * REGION) in orders


def test_a_calibration_that_overflows_asks_again_with_more() -> None:
    drive = Drive(10)
    first = drive.start(1, 6)
    second = drive.claim(job(2))
    assert GrantCalibration(trainer=second, grant_bytes=4 * REGION) in drive.capture(second, 4, unknown=1)
    overflow = Calibration(trainer=second, graphs=(graph(4),), latency_ns=((1,),), overflow_bytes=REGION // 2)
    orders = drive.send(overflow)
    assert SetGrant(trainer=second, grant_bytes=0) in orders
    assert next(o for o in orders if isinstance(o, SendPlans)).grant_bytes == 5 * REGION
    assert GrantCalibration(trainer=second, grant_bytes=5 * REGION) in drive.send(
        Adoption(trainer=first, generation=2)
    )


def test_a_calibration_that_needs_more_than_there_is_fails_the_job() -> None:
    drive = Drive(10)
    trainer = drive.claim(job(1))
    drive.capture(trainer, 4, unknown=1)
    overflow = Calibration(trainer=trainer, graphs=(graph(4),), latency_ns=((1,),), overflow_bytes=REGION)
    assert EndTrainer(trainer=trainer, method=EndMethod.TERMINATE) in drive.send(overflow)
    orders = drive.send(Exit(trainer=trainer, code=0))
    fault = next(o for o in orders if isinstance(o, FailJob)).fault
    assert fault.message == "job 1 needs at least 11.0 MB of device memory, more than the budget of 10.0 MB"


def test_a_capture_that_breaks_the_rules_fails_its_job_alone() -> None:
    drive = Drive(10)
    trainer = drive.claim(job(1))
    drive.send(Capture(trainer=trainer, graphs=(graph(4),), latency_ns=((1, 2),), unknown=0))
    assert drive.orders[0] == EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)
    orders = drive.send(Exit(trainer=trainer, code=0))
    assert (
        "job 1, graph 0: 2 latencies for 1 operators"
        in next(o for o in orders if isinstance(o, FailJob)).fault.message
    )


def test_a_calibration_waits_until_the_others_have_settled() -> None:
    drive = Drive(10)
    first = drive.claim(job(1))
    drive.capture(first, 4)  # sent, not adopted
    second = drive.claim(job(2))
    assert not any(isinstance(o, GrantCalibration) for o in drive.capture(second, 2, unknown=1))
    assert GrantCalibration(trainer=second, grant_bytes=6 * REGION) in drive.send(
        Adoption(trainer=first, generation=1)
    )


def test_what_a_calibration_holds_is_not_planned_for_others() -> None:
    drive = Drive(10)
    first = drive.start(1, 10)
    second = drive.claim(job(2))
    drive.capture(second, 4, unknown=1)
    drive.send(Adoption(trainer=first, generation=2))
    orders = drive.send(BudgetChange(budget_bytes=11 * REGION))
    assert [o.grant_bytes for o in orders if isinstance(o, SendPlans)] == [7 * REGION]


def test_the_rounding_to_regions_never_passes_the_budget() -> None:
    drive = Drive(7)
    for number in (1, 2):
        trainer = drive.claim(job(number))
        drive.send(Capture(trainer=trainer, graphs=(uneven_graph(7 * REGION // 2),), latency_ns=((1,),), unknown=0))
        drive.adopt_all()
    assert drive.grants() == {1: 4, 2: 3}


def test_a_planner_that_takes_more_than_it_was_given_is_our_fault() -> None:
    class Liar(HalvingPlanner):
        def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
            return tuple(job_plan(w.job, budget_bytes + REGION) for w in workloads)

    drive = Drive(10, Liar())
    trainer = drive.claim(job(1))
    with pytest.raises(InvariantError, match="the planner was given"):
        drive.capture(trainer, 4)


def test_those_that_run_grow_before_a_new_one_starts() -> None:
    drive = Drive(10)
    first, second, third = drive.start(1, 10), drive.start(2, 8), drive.claim(job(3))
    drive.capture(third, 4)
    assert drive.kinds() == [SetWaitsFor]
    drive.send(Finish(trainer=second))
    orders = drive.send(Exit(trainer=second, code=0))
    assert [o.trainer for o in orders if isinstance(o, SendPlans)] == [first, third]


def test_the_next_job_is_claimed_as_soon_as_a_trainer_is_ready_for_it() -> None:
    drive = Drive(6)
    drive.claim(job(1))
    assert drive.send(SpareReady(trainer=drive.pool.spares[0].trainer)) == (ClaimNext(),)


def test_an_owner_with_two_jobs_on_their_way_in_is_passed_over_until_one_has_its_plan() -> None:
    drive = Drive(10, spare_trainers=1)
    first = drive.claim(job(1))
    drive.claim(job(2))
    passed = ClaimNext(passed_over=frozenset({10}))
    assert drive.send(SpareReady(trainer=drive.pool.spares[0].trainer)) == (passed,)
    assert drive.send(Claim(job=None)) == ()
    assert ClaimNext() in drive.capture(first, 2)
    drive.send(Claim(job=job(3, owner=20)))
    assert [m.job.job for m in drive.pool.members] == [1, 2, 3]


def test_how_many_jobs_of_one_owner_are_on_their_way_in_is_set() -> None:
    drive = Drive(10, spare_trainers=1, entering_jobs=3)
    for number in (1, 2, 3):
        drive.claim(job(number))
    assert drive.send(SpareReady(trainer=drive.pool.spares[0].trainer)) == (ClaimNext(passed_over=frozenset({10})),)


def test_what_the_next_job_waits_for_is_said_in_words() -> None:
    drive = Drive(10, max_jobs=1)
    drive.send(Tick())
    assert claim_blocker(drive.pool) == "a trainer to start"
    drive.send(Exit(trainer=drive.pool.spares[0].trainer, code=1))
    assert claim_blocker(drive.pool) == (
        "a trainer: those started last ended before they were ready, as the controller's log says"
    )
    while not drive.pool.spares:
        drive.send(Tick())
    drive.send(SpareReady(trainer=drive.pool.spares[0].trainer))
    assert claim_blocker(drive.pool) is None
    trainer = drive.claim(job(1))
    assert claim_blocker(drive.pool) == "a place: all 1 are taken by jobs"
    lost = Fault(sqlstate="58000", message="the device is gone")
    drive.send(Failure(trainer=trainer, fault=lost, retry=True, lost=True))
    assert claim_blocker(drive.pool) == (
        "a device that works: its controller has lost the device, and pauses before the next attempt"
    )
    drive.send(Stop())
    assert claim_blocker(drive.pool) == "a controller: this one is stopping"


def test_a_claim_that_was_lost_holds_up_the_next_until_its_trainer_has_ended() -> None:
    drive = Drive(10)
    drive.claim(job(1))
    drive.send(ClaimLoss(claim=job(1).claim))
    assert claim_blocker(drive.pool) == "a trainer of job 1 to end, whose claim was lost"


@settings(max_examples=50)
@given(st.integers(0, 3), st.integers(1, 4), st.booleans())
def test_a_job_is_asked_for_exactly_where_nothing_holds_it_up(members: int, places: int, ready: bool) -> None:
    drive = Drive(10, max_jobs=places, entering_jobs=64, spare_trainers=1)
    for number in range(1, 1 + min(members, places)):
        drive.claim(job(number))
    drive.send(Claim(job=None)) if drive.pool.claiming else None
    if ready and drive.pool.spares:
        asked = drive.send(SpareReady(trainer=drive.pool.spares[0].trainer))
        assert (ClaimNext() in asked) == (claim_blocker(drive.pool) is None)


def test_a_job_that_fits_is_let_in_past_one_that_waits_for_memory() -> None:
    drive = Drive(10, HalvingPlanner(swaps=False))
    drive.start(1, 6)
    large = drive.claim(job(2))
    drive.capture(large, 6)
    small = drive.claim(job(3, owner=20))
    assert SetGrant(trainer=small, grant_bytes=4 * REGION) in drive.capture(small, 4)
    assert drive.grants() == {1: 6, 2: 0, 3: 4}
    assert [m.overtaken for m in drive.pool.members] == [0, 1, 0]


def test_a_job_that_was_overtaken_often_enough_holds_the_queue_until_it_is_in() -> None:
    drive = Drive(10, HalvingPlanner(swaps=False), max_jobs=100)
    first = drive.start(1, 6)
    large = drive.claim(job(2))
    drive.capture(large, 8)
    small = []
    for number in range(3, 3 + MOST_OVERTAKEN):
        trainer = drive.claim(job(number, owner=number))
        drive.capture(trainer, 1)
        drive.adopt_all()
        small.append(trainer)
        drive.send(Finish(trainer=trainer))
        drive.send(Exit(trainer=trainer, code=0))
    assert {m.job.job: m.overtaken for m in drive.pool.members} == {1: 0, 2: MOST_OVERTAKEN}
    drive.send(SpareReady(trainer=drive.pool.spares[0].trainer))
    assert not any(isinstance(o, ClaimNext) for o in drive.orders)
    drive.send(Finish(trainer=first))
    orders = drive.send(Exit(trainer=first, code=0))
    assert SetGrant(trainer=large, grant_bytes=8 * REGION) in orders
    assert ClaimNext() in drive.orders


def test_a_job_behind_one_that_holds_the_queue_says_that_it_waits_for_its_turn() -> None:
    drive = Drive(10, HalvingPlanner(swaps=False), max_jobs=100)
    drive.start(1, 6)
    drive.capture(drive.claim(job(2)), 8)
    late = drive.claim(job(3, owner=20))
    members = tuple(replace(m, overtaken=MOST_OVERTAKEN if m.job.job == 2 else 0) for m in drive.pool.members)
    drive.pool = replace(drive.pool, members=members)
    assert drive.capture(late, 1) == (
        SetWaitsFor(
            job=JobId(3),
            claim=ClaimToken(1003),
            text=f"its turn: job 2 waits longer and was overtaken {MOST_OVERTAKEN} times",
        ),
    )


def test_every_waiting_job_that_fits_is_let_in_when_memory_comes_free() -> None:
    drive = Drive(10, HalvingPlanner(swaps=False))
    first = drive.start(1, 10)
    second, third = drive.claim(job(2)), drive.claim(job(3))
    drive.capture(second, 6)
    drive.capture(third, 4)
    drive.send(Finish(trainer=first))
    drive.send(Exit(trainer=first, code=0))
    assert drive.grants() == {2: 6, 3: 4}


def test_one_job_is_calibrated_at_a_time_and_one_that_has_no_room_lets_a_smaller_one_go_first() -> None:
    drive = Drive(10, HalvingPlanner(swaps=False))
    first = drive.start(1, 6)
    large, small = drive.claim(job(2)), drive.claim(job(3))
    drive.capture(large, 5, unknown=1)
    assert drive.orders[-1] == SetWaitsFor(
        job=JobId(2),
        claim=ClaimToken(1002),
        text="at least 5.0 MB of device memory, held by job 1 (6.0 MB): 1.0 MB more than the budget of 10.0 MB; "
        "4.0 MB are free",
    )
    assert GrantCalibration(trainer=small, grant_bytes=4 * REGION) in drive.capture(small, 3, unknown=1)
    drive.send(Finish(trainer=first))
    orders = drive.send(Exit(trainer=first, code=0))
    assert not any(isinstance(o, GrantCalibration) for o in orders)
    orders = drive.send(Calibration(trainer=small, graphs=(graph(3),), latency_ns=((900,),)))
    assert GrantCalibration(trainer=large, grant_bytes=6 * REGION) in orders


def test_a_job_above_its_owners_quota_fails_and_names_the_quota() -> None:
    drive = Drive(100)
    trainer = drive.claim(job(1, limit_bytes=4 * REGION, owner_limit_bytes=3 * REGION))
    drive.capture(trainer, 10)
    orders = drive.send(Exit(trainer=trainer, code=0))
    fault = next(o for o in orders if isinstance(o, FailJob)).fault
    assert fault.message == "job 1 needs at least 5.0 MB of device memory, more than its owner's quota of 3.0 MB"
    assert "tensile_set_quota" in fault.hint


def test_the_jobs_of_one_owner_have_no_more_than_the_owners_quota_together_and_hold_up_nobody() -> None:
    drive = Drive(100)
    first = drive.claim(job(1, owner_limit_bytes=10 * REGION))
    drive.capture(first, 8)
    drive.adopt_all()
    second = drive.claim(job(2, owner_limit_bytes=10 * REGION))
    assert drive.capture(second, 6) == (
        SetWaitsFor(
            job=JobId(2),
            claim=ClaimToken(1002),
            text="at least 3.0 MB of its owner's quota of 10.0 MB of device memory, of which the owner's other jobs "
            "have 8.0 MB",
        ),
    )
    other = drive.claim(job(3, owner=20))
    assert SetGrant(trainer=other, grant_bytes=50 * REGION) in drive.capture(other, 50)
    drive.adopt_all()
    assert [m.overtaken for m in drive.pool.members] == [0, 1, 0]
    drive.send(Finish(trainer=first))
    drive.send(Exit(trainer=first, code=0))
    assert drive.grants() == {2: 6, 3: 50}


def test_a_second_job_of_an_owner_is_planned_within_what_the_first_leaves_of_the_quota() -> None:
    drive = Drive(100)
    drive.capture(drive.claim(job(1, owner_limit_bytes=10 * REGION)), 6)
    drive.adopt_all()
    second = drive.claim(job(2, owner_limit_bytes=10 * REGION))
    assert SetGrant(trainer=second, grant_bytes=4 * REGION) in drive.capture(second, 8)


def test_one_claim_is_under_way_at_a_time() -> None:
    drive = Drive(10)
    drive.send(Tick())
    assert drive.send(SpareReady(trainer=TrainerId(1))) == (ClaimNext(),)
    assert drive.send(Tick()) == ()
    assert drive.send(QueueChange()) == ()


def test_drift_does_not_disturb_a_transition() -> None:
    drive = Drive(10)
    first = drive.start(1, 4)
    second = drive.claim(job(2))
    drive.capture(second, 4)  # in flight
    measured = Measurement(
        trainer=first, generation=1, latency_ns=(9000,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
    )
    drive.send(measured)
    before = drive.pool.members[0].workload
    assert before is not None
    assert before.latency_ns == ((1000,),)
    drive.adopt_all()
    drive.send(replace(measured, latency_ns=(5000,)))
    assert drive.pool.members[0].workload is not None
    assert drive.pool.members[0].workload.latency_ns == ((7000,),)


def test_a_measurement_of_a_plan_that_was_never_adopted_is_not_believed() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    measured = Measurement(
        trainer=trainer, generation=2, latency_ns=(9000,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
    )
    assert drive.send(measured) == ()


@pytest.mark.parametrize(
    "decided",
    [CancelRequest(job=JobId(1)), Failure(trainer=TrainerId(1), fault=Fault(sqlstate="22000", message="no"))],
)
def test_a_lost_claim_overrules_what_was_to_be_written(decided: Event) -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    drive.send(decided)
    drive.send(ClaimLoss(claim=ClaimToken(1001)))
    orders = drive.send(Exit(trainer=trainer, code=-9))
    assert not any(isinstance(o, CancelJob | FailJob | RequeueJob) for o in orders)


def test_drift_beyond_the_threshold_plans_anew_and_only_then() -> None:
    drive = Drive(10, drift_threshold=0.2)
    trainer = drive.start(1, 4)
    measured = Measurement(
        trainer=trainer, generation=1, latency_ns=(1200,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
    )
    recorded = RecordMeasurement(job=JobId(1), claim=ClaimToken(1001), measurement=measured)
    assert drive.send(measured) == (recorded,)
    assert drive.pool.members[0].corrected_ns == (1200,), "the first report replaces what a calibration measured"
    assert drive.pool.members[0].workload is not None
    assert drive.pool.members[0].workload.latency_ns == ((1000,),), "planned anew below the threshold"
    drive.send(replace(measured, latency_ns=(2000,)))
    assert drive.pool.members[0].workload.latency_ns == ((1600,),), "not planned anew beyond the threshold"


def uploading_graph(regions: int) -> StepGraph:
    """One operator that uploads so much: it takes as much of the host pool."""
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=regions * REGION, role=Role.ACTIVATION)
    operator = Operator(name="op", signature="op", stage=Stage.UPLOAD, reads=(), writes=(TensorId(0),))
    return StepGraph(tensors=(tensor,), operators=(operator,))


def test_a_plan_waits_for_the_host_memory_of_a_trainer_that_is_on_its_way_out() -> None:
    drive = Drive(20, host_pool_bytes=4 * REGION)
    first = drive.claim(job(1))
    drive.send(Capture(trainer=first, graphs=(uploading_graph(3),), latency_ns=((1000,),), unknown=0))
    drive.adopt_all()
    drive.send(CancelRequest(job=JobId(1)))
    second = drive.claim(job(2))
    drive.send(Capture(trainer=second, graphs=(uploading_graph(2),), latency_ns=((1000,),), unknown=0))
    assert SendPlans not in drive.kinds()
    assert drive.pool.free_host_bytes == REGION
    drive.send(Exit(trainer=first, code=0))
    assert [o.trainer for o in drive.orders if isinstance(o, SendPlans)] == [second]
    assert drive.pool.free_host_bytes == 2 * REGION


def test_a_job_has_the_larger_part_of_the_host_pool_until_it_follows_the_new_plan() -> None:
    drive = Drive(20, host_pool_bytes=4 * REGION)
    trainer = drive.claim(job(1))
    drive.send(Capture(trainer=trainer, graphs=(uploading_graph(3),), latency_ns=((1000,),), unknown=0))
    drive.adopt_all()
    member = drive.pool.members[0]
    assert (member.planned_host_bytes, member.host_bytes) == (3 * REGION, 3 * REGION)
    smaller = replace(member, generation=2, planned_host_bytes=REGION)
    drive.pool = replace(drive.pool, members=(smaller,))
    assert drive.pool.free_host_bytes == REGION
    drive.send(Adoption(trainer=trainer, generation=2))
    assert drive.pool.free_host_bytes == 3 * REGION


@dataclass(frozen=True)
class RenewingPlanner(HalvingPlanner):
    """After drift every job's plan becomes one of so many bytes more."""

    more_bytes: int = 0

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        return tuple(job_plan(plan.job, plan.peak_bytes + self.more_bytes) for plan in plans)


@pytest.mark.parametrize(("more_bytes", "sent_bytes"), [(-1, 6 * REGION - 1), (4 * REGION, 6 * REGION)])
def test_after_drift_plans_are_renewed_where_their_grants_fit_and_made_anew_else(
    more_bytes: int, sent_bytes: int
) -> None:
    """Two jobs of six regions in a budget of twelve; planning anew would change nothing, so nothing would be sent."""
    drive = Drive(12, planner=RenewingPlanner(more_bytes=more_bytes), drift_threshold=0.2)
    trainers = [drive.start(1, 6), drive.start(2, 6)]
    for trainer in trainers:
        drive.send(
            Measurement(
                trainer=trainer, generation=1, latency_ns=(2000,), iteration_ns=1, stall_ns=0, peak_bytes=6 * REGION
            )
        )
    plans = [member.plan for member in drive.pool.members]
    assert [plan.peak_bytes for plan in plans if plan is not None] == [sent_bytes, sent_bytes]


class PonderingPlanner(HalvingPlanner):
    """Has to be asked about drift, and never knows."""

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        raise Unanswered(RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes))


def test_nobody_is_asked_about_the_drift_of_jobs_that_were_all_cancelled_since() -> None:
    drive = Drive(12, planner=PonderingPlanner(), drift_threshold=0.2)
    trainer = drive.start(1, 6)
    drifted = Measurement(
        trainer=trainer, generation=1, latency_ns=(2000,), iteration_ns=1, stall_ns=0, peak_bytes=6 * REGION
    )
    drive.send(drifted)
    assert drive.pool.asked
    drive.send(CancelRequest(job=JobId(1)))
    drive.send(Answered())
    assert (drive.pool.due, drive.pool.asked) == (None, False)


class ForeseeingPlanner(HalvingPlanner):
    """The same plan whatever the latencies, and a forecast that follows them."""

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        plans = super().plan(workloads, budget_bytes=budget_bytes)
        if isinstance(plans, Infeasible):
            return plans
        return tuple(
            replace(p, forecast=forecast(sum(w.latency_ns[0]))) for p, w in zip(plans, workloads, strict=True)
        )

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        return tuple(
            replace(p, forecast=forecast(sum(w.latency_ns[0]))) for p, w in zip(plans, workloads, strict=True)
        )


def forecast(iteration_ns: int) -> Forecast:
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


def test_a_measurement_within_the_threshold_renews_what_is_expected_and_plans_nothing() -> None:
    drive = Drive(10, planner=ForeseeingPlanner(), drift_threshold=0.2)
    trainer = drive.start(1, 4)
    measured = Measurement(
        trainer=trainer, generation=1, latency_ns=(1200,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
    )
    recorded = RecordMeasurement(job=JobId(1), claim=ClaimToken(1001), measurement=measured)
    renewed = RecordForecast(job=JobId(1), claim=ClaimToken(1001), generation=1, forecast=forecast(1200))
    assert drive.send(measured) == (recorded, renewed)
    assert drive.pool.members[0].workload is not None
    assert drive.pool.members[0].workload.latency_ns == ((1000,),), "planned anew below the threshold"


def test_drift_that_changes_no_plan_renews_what_is_expected_of_it() -> None:
    drive = Drive(10, planner=ForeseeingPlanner())
    trainer = drive.start(1, 4)
    drive.send(
        Measurement(
            trainer=trainer, generation=1, latency_ns=(2000,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
        )
    )
    renewed = RecordForecast(job=JobId(1), claim=ClaimToken(1001), generation=1, forecast=forecast(2000))
    assert renewed in drive.orders
    assert not any(isinstance(order, SendPlans) for order in drive.orders)


def test_a_re_plan_that_changes_nothing_sends_nothing() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    drive.send(BudgetChange(budget_bytes=12 * REGION))
    assert drive.orders == ()
    assert drive.pool.members[0].trainer == trainer


def test_a_lowered_budget_shrinks_the_jobs() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 10)
    drive.send(BudgetChange(budget_bytes=6 * REGION))
    assert next(o for o in drive.orders if isinstance(o, SendPlans)).grant_bytes == 6 * REGION
    assert drive.send(Adoption(trainer=trainer, generation=2))[0] == SetGrant(trainer=trainer, grant_bytes=6 * REGION)


def test_fewer_places_end_nobody_and_let_nobody_in_until_there_is_one() -> None:
    drive = Drive(20, max_jobs=2)
    drive.start(1, 4)
    drive.start(2, 4)
    assert not any(isinstance(order, EndTrainer) for order in drive.send(PlacesChange(max_jobs=1)))
    assert claim_blocker(drive.pool) == "a place: all 1 are taken by jobs"
    drive.send(PlacesChange(max_jobs=3))
    assert drive.pool.max_jobs == 3


def test_a_budget_below_the_least_sends_the_youngest_back_to_the_queue_at_no_cost() -> None:
    drive = Drive(10)
    drive.start(1, 10)
    second = drive.start(2, 10)
    assert EndTrainer(trainer=second, method=EndMethod.TERMINATE) in drive.send(BudgetChange(budget_bytes=6 * REGION))
    orders = drive.send(Exit(trainer=second, code=-15))
    assert orders[1] == RequeueJob(
        job=JobId(2), claim=ClaimToken(1002), reason="the device's budget was lowered", blame=Blame.NOBODY
    )


def test_a_trainer_that_died_sends_its_job_back_and_frees_its_memory_first() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    orders = drive.send(Exit(trainer=trainer, code=1))
    assert orders[:2] == (
        ReleaseTrainer(trainer=trainer),
        RequeueJob(
            job=JobId(1),
            claim=ClaimToken(1001),
            reason="its trainer ended with code 1 before the job was done",
            blame=Blame.JOB,
        ),
    )
    assert drive.pool.members == ()


def test_a_failed_job_is_written_down_when_its_trainer_is_gone() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    fault = Fault(sqlstate="22000", message="column y is all NULL")
    assert drive.send(Failure(trainer=trainer, fault=fault)) == (
        EndTrainer(trainer=trainer, method=EndMethod.LET_EXIT),
    )
    orders = drive.send(Exit(trainer=trainer, code=1))
    assert orders[1] == FailJob(job=JobId(1), claim=ClaimToken(1001), fault=fault)


@pytest.mark.parametrize("blame", [Blame.JOB, Blame.OTHERS])
def test_a_failure_that_may_pass_sends_the_job_back_and_says_whose_fault_it_was(blame: Blame) -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    fault = Fault(sqlstate="58000", message="no database")
    drive.send(Failure(trainer=trainer, fault=fault, retry=True, blame=blame))
    orders = drive.send(Exit(trainer=trainer, code=1))
    assert orders[1] == RequeueJob(
        job=JobId(1), claim=ClaimToken(1001), reason="no database", blame=blame, fault=fault
    )


GONE = Fault(sqlstate="58000", message="the device is gone", hint="Wait for it.")


def test_a_lost_device_costs_no_attempt_and_is_tried_again_after_growing_pauses() -> None:
    drive = Drive(10, spare_trainers=1)
    drive.capture(drive.claim(job(1)), 4)
    for pause_ticks in (2, 4, 8):
        trainer = drive.pool.members[0].trainer
        assert trainer is not None
        drive.send(Failure(trainer=trainer, fault=GONE, retry=True, lost=True))
        drive.send(SpareReady(trainer=drive.pool.spares[0].trainer))
        assert RequeueJob(
            job=JobId(1),
            claim=ClaimToken(1001),
            reason="the device is gone",
            blame=Blame.OTHERS,
            fault=GONE,
            waits_for="a device that works: the device is gone",
        ) in drive.send(Exit(trainer=trainer, code=5))
        for _ in range(pause_ticks - 1):
            assert drive.send(Tick()) == ()
        assert drive.send(Tick()) == (ClaimNext(),)
        drive.send(Claim(job=job(1)))
        assert drive.pool.members[0].trainer is not None
        drive.capture(drive.pool.members[0].trainer, 4)


def test_a_job_whose_device_went_while_it_trained_may_be_to_blame_and_others_go_on_at_once() -> None:
    drive = Drive(10)
    first, second = drive.start(1, 4), drive.start(2, 4)
    for trainer in (first, second):
        drive.send(
            Measurement(
                trainer=trainer, generation=1, latency_ns=(1000,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
            )
        )
    drive.send(Failure(trainer=first, fault=GONE, retry=True, lost=True))
    orders = drive.send(Exit(trainer=first, code=5))
    assert [o.blame for o in orders if isinstance(o, RequeueJob)] == [Blame.UNCLEAR]
    assert drive.pool.claim_pause_ticks == 2
    drive.send(
        Measurement(
            trainer=second, generation=1, latency_ns=(1000,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
        )
    )
    assert (drive.pool.claim_pause_ticks, drive.pool.losses) == (0, 0), "it works for the other one"


def test_a_cancelled_job_is_terminated_then_written_down_once() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    assert drive.send(CancelRequest(job=JobId(1)))[0] == EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)
    assert EndTrainer not in map(type, drive.send(CancelRequest(job=JobId(1))))
    orders = drive.send(Exit(trainer=trainer, code=-15))
    assert orders[1] == CancelJob(job=JobId(1), claim=ClaimToken(1001))


def test_a_job_that_runs_for_too_long_fails() -> None:
    drive = Drive(10)
    trainer = drive.claim(replace(job(1), spec=replace(job(1).spec, max_runtime_s=60)))
    drive.capture(trainer, 4)
    assert drive.send(Overrun(trainer=trainer))[0] == EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)
    failed = next(o for o in drive.send(Exit(trainer=trainer, code=-15)) if isinstance(o, FailJob))
    assert (failed.fault.sqlstate, failed.fault.message) == (
        "57014",
        "job 1 ran for longer than its max_runtime of 60 s",
    )


def test_trainers_owe_an_answer_until_they_are_ready_and_after_every_plan() -> None:
    drive = Drive(10)
    drive.send(Tick())
    assert drive.pool.owing == {(TrainerId(1), 0)}
    trainer = drive.claim(job(1))
    (spare,) = drive.pool.spares
    assert drive.pool.owing == {(spare.trainer, 0)}  # reading a table takes as long as it takes
    drive.capture(trainer, 4)
    assert drive.pool.owing == {(spare.trainer, 0), (trainer, 1)}
    drive.adopt_all()
    assert drive.pool.owing == {(spare.trainer, 0)}


def test_a_silent_trainer_is_killed_and_its_job_goes_back() -> None:
    drive = Drive(10)
    trainer = drive.claim(job(1))
    drive.capture(trainer, 4)
    assert drive.send(Silence(trainer=trainer))[0] == EndTrainer(trainer=trainer, method=EndMethod.KILL)
    requeued = next(o for o in drive.send(Exit(trainer=trainer, code=-9)) if isinstance(o, RequeueJob))
    assert (requeued.reason, requeued.blame) == ("its trainer did not take up plan 1", Blame.UNCLEAR)
    assert drive.pool.granted_bytes == 0


def test_a_trainer_that_stalls_in_mid_training_is_killed_and_its_job_goes_back() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    assert drive.send(Stall(trainer=trainer, silent_s=600.4))[0] == EndTrainer(trainer=trainer, method=EndMethod.KILL)
    assert EndTrainer not in map(type, drive.send(Stall(trainer=trainer, silent_s=601.0)))
    assert drive.send(Exit(trainer=trainer, code=-9, ending=ExitCause.STOPPED))[1] == RequeueJob(
        job=JobId(1),
        claim=ClaimToken(1001),
        reason="its trainer made no progress for 600 s",
        blame=Blame.UNCLEAR,
    )


def test_a_trainer_that_reads_its_table_does_not_stall() -> None:
    drive = Drive(10)
    trainer = drive.claim(job(1))
    assert drive.send(Stall(trainer=trainer, silent_s=600.0)) == ()


@pytest.mark.parametrize(
    ("code", "ending", "reason", "blame"),
    [
        (-9, ExitCause.OUTSIDE, "its trainer was killed by signal 9 from outside", Blame.OTHERS),
        (-15, ExitCause.OUTSIDE, "its trainer was killed by signal 15 from outside", Blame.OTHERS),
        (-9, ExitCause.STOPPED, "its controller stopped its trainer", Blame.OTHERS),
        (-9, ExitCause.BABBLED, "its trainer sent a message that its controller cannot read", Blame.JOB),
        (4, ExitCause.BY_ITSELF, "its trainer ended with code 4 before the job was done", Blame.OTHERS),
        (9, ExitCause.BY_ITSELF, "its trainer ended with code 9 before the job was done", Blame.OTHERS),
        (70, ExitCause.BY_ITSELF, "its trainer ended with code 70 before the job was done", Blame.JOB),
    ],
)
def test_a_trainer_that_ends_without_a_word_is_put_down_to_what_ended_it(
    code: int, ending: ExitCause, reason: str, blame: Blame
) -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    (requeued,) = [
        o for o in drive.send(Exit(trainer=trainer, code=code, ending=ending)) if isinstance(o, RequeueJob)
    ]
    assert requeued == RequeueJob(job=JobId(1), claim=ClaimToken(1001), reason=reason, blame=blame)


@pytest.mark.parametrize(
    ("ending", "who"),
    [
        (ExitCause.STARVED, "the kernel ended its trainer for memory"),
        (
            ExitCause.PROBABLY_STARVED,
            "its trainer got SIGKILL, not from its controller: most probably the kernel ended it for memory",
        ),
    ],
)
def test_a_trainer_that_was_killed_for_lack_of_memory_says_so_and_the_way_out(ending: ExitCause, who: str) -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    exit_ = Exit(trainer=trainer, code=-9, ending=ending, peak_bytes=3 << 30, memory_bytes=4 << 30)
    (requeued,) = [o for o in drive.send(exit_) if isinstance(o, RequeueJob)]
    reason = f"{who}: it had 3.00 GB of 4.00 GB"
    assert requeued.fault is not None
    assert (requeued.reason, requeued.blame) == (reason, Blame.MEMORY)
    assert (requeued.fault.sqlstate, requeued.fault.message) == ("53200", reason)
    for way in ("exclude", "sample", "batch_size", "read_limit_bytes", "more memory"):
        assert way in requeued.fault.hint


def test_a_silent_spare_is_killed_and_counts_as_one_that_died_early() -> None:
    drive = Drive(10)
    drive.send(Tick())
    assert drive.send(Silence(trainer=TrainerId(1))) == (EndTrainer(trainer=TrainerId(1), method=EndMethod.KILL),)
    drive.send(Exit(trainer=TrainerId(1), code=-9))
    assert (drive.pool.stillborn, drive.pool.spawn_pause_ticks) == (1, 2)


def test_who_has_answered_in_the_meantime_is_left_alone() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    assert drive.send(Silence(trainer=trainer)) == ()
    drive.send(SpareReady(trainer=drive.pool.spares[0].trainer))
    assert drive.send(Silence(trainer=drive.pool.spares[0].trainer)) == ()


def test_a_job_that_published_before_its_cancel_arrived_has_succeeded() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    drive.send(CancelRequest(job=JobId(1)))
    drive.send(Finish(trainer=trainer))
    orders = drive.send(Exit(trainer=trainer, code=-15))
    assert not any(isinstance(o, CancelJob | FailJob | RequeueJob) for o in orders)


def test_a_lost_claim_kills_at_once_writes_nothing_and_holds_back_the_next_claim() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    orders = drive.send(ClaimLoss(claim=ClaimToken(1001)))
    assert orders[0] == EndTrainer(trainer=trainer, method=EndMethod.KILL)
    drive.send(SpareReady(trainer=drive.pool.spares[0].trainer))
    assert drive.orders == ()
    orders = drive.send(Exit(trainer=trainer, code=-9))
    assert orders == (ReleaseTrainer(trainer=trainer), ClaimNext())


def test_trainers_that_die_before_they_are_ready_are_started_again_with_growing_pauses() -> None:
    drive = Drive(10)
    drive.send(Tick())
    assert drive.send(Exit(trainer=TrainerId(1), code=1)) == (ReleaseTrainer(trainer=TrainerId(1)),)
    assert drive.send(Tick()) == ()
    assert drive.send(Tick()) == (SpawnTrainer(trainer=TrainerId(2)),)
    drive.send(Exit(trainer=TrainerId(2), code=1))
    ticks = 0
    while not drive.send(Tick()):
        ticks += 1
    assert ticks == 3


def test_no_more_jobs_than_allowed_are_claimed() -> None:
    drive = Drive(100, max_jobs=1)
    drive.start(1, 4)
    drive.send(SpareReady(trainer=drive.pool.spares[0].trainer))
    assert drive.send(Tick()) == ()


def test_a_stop_sends_every_job_back_and_everybody_home() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    spare = drive.pool.spares[0].trainer
    assert drive.send(Stop()) == (
        EndTrainer(trainer=trainer, method=EndMethod.TERMINATE),
        EndTrainer(trainer=spare, method=EndMethod.TERMINATE),
    )
    assert not finished(drive.pool)
    drive.send(Exit(trainer=spare, code=-15))
    assert drive.send(Exit(trainer=trainer, code=-15)) == (
        ReleaseTrainer(trainer=trainer),
        RequeueJob(job=JobId(1), claim=ClaimToken(1001), reason="its controller was stopped", blame=Blame.NOBODY),
    )
    drive.pool = replace(drive.pool, claiming=False)
    assert finished(drive.pool)


def test_a_job_claimed_while_stopping_goes_straight_back() -> None:
    drive = Drive(10)
    drive.send(Tick())
    drive.send(SpareReady(trainer=TrainerId(1)))
    drive.send(Stop())
    orders = drive.send(Claim(job=job(1)))
    assert orders == (
        RequeueJob(job=JobId(1), claim=ClaimToken(1001), reason="its controller was stopped", blame=Blame.NOBODY),
    )


def test_a_trainer_that_died_by_a_memory_fault_costs_an_attempt_and_its_job_says_so() -> None:
    drive = Drive(10)
    trainer = drive.start(1, 4)
    drive.send(Exit(trainer=trainer, code=-11))
    (requeued,) = [o for o in drive.orders if isinstance(o, RequeueJob)]
    assert requeued.blame is Blame.JOB
    assert requeued.reason == (
        "its trainer ended with a memory fault (SIGSEGV, see the controller's log) before the job was done"
    )


def test_late_messages_of_unknown_trainers_change_nothing() -> None:
    drive = Drive(10)
    drive.send(Tick())
    before = drive.pool
    late = (
        Finish(trainer=TrainerId(99)),
        Exit(trainer=TrainerId(99), code=0),
        Adoption(trainer=TrainerId(99), generation=3),
        Failure(trainer=TrainerId(99), fault=Fault(sqlstate="XX000", message="?")),
        Capture(trainer=TrainerId(99), graphs=(graph(1),), latency_ns=((1,),), unknown=0),
        CancelRequest(job=JobId(99)),
        ClaimLoss(claim=ClaimToken(99)),
    )
    for event in late:
        assert drive.send(event) == ()
        assert drive.pool == before


# --- a planner that takes its time -----------------------------------------------------------------------------


class Slow(Drive):
    """A drive whose planner has to be asked."""

    def __init__(self, budget: int, **rules: Any) -> None:
        self.late = LatePlanner()
        self.asked: Question | None = None
        super().__init__(budget, planner=self.late, **rules)

    def decide(self, event: Event) -> tuple[Order, ...]:
        orders = super().decide(event)
        for order in orders:
            if isinstance(order, AskPlanner):
                assert self.asked is None, "asked while it thinks"
                self.asked = order.question
        return orders

    def think(self) -> None:
        """Find the answer; nobody is told yet."""
        assert self.asked is not None
        question, self.asked = self.asked, None
        if self.pool.due is None:
            self.late.taught.clear()
        self.late.teach(question)

    def answer(self) -> tuple[Order, ...]:
        self.think()
        return self.send(Answered())

    def answer_all(self) -> None:
        while self.asked is not None:
            self.answer()


def test_a_plan_that_takes_its_time_is_asked_for_once_and_sent_when_it_is_known() -> None:
    slow, quick = Slow(10), Drive(10)
    for drive in (slow, quick):
        drive.capture(drive.claim(job(1)), 4)
    assert slow.kinds() == [AskPlanner]
    assert slow.send(Tick()) == (), "asked again for what is thought about already"
    slow.answer()
    assert isinstance(slow.asked, PlacedFor), "how much it takes where it is placed"
    assert slow.answer() == quick.orders
    assert slow.pool == quick.pool


def test_while_a_plan_is_made_jobs_are_cancelled_and_what_they_had_is_given_back() -> None:
    drive = Slow(10)
    first = drive.claim(job(1))
    drive.capture(first, 4)
    drive.answer_all()
    drive.adopt_all()
    second = drive.claim(job(2))
    drive.capture(second, 8)
    assert drive.kinds() == [AskPlanner]
    assert drive.send(CancelRequest(job=JobId(1))) == (EndTrainer(trainer=first, method=EndMethod.TERMINATE),)
    assert drive.send(Exit(trainer=first, code=-15))[:2] == (
        ReleaseTrainer(trainer=first),
        CancelJob(job=JobId(1), claim=ClaimToken(1001)),
    )
    drive.answer()  # for two jobs: nobody wants to know any more
    assert drive.kinds() == [AskPlanner]
    drive.answer_all()
    assert drive.grants() == {2: 8}


def test_what_is_measured_while_a_plan_is_made_does_not_make_it_worthless() -> None:
    drive = Slow(10, drift_threshold=0.2)
    trainer = drive.claim(job(1))
    drive.capture(trainer, 4)
    drive.answer_all()
    drive.adopt_all()
    measured = Measurement(
        trainer=trainer, generation=1, latency_ns=(2000,), iteration_ns=1, stall_ns=0, peak_bytes=4 * REGION
    )
    drive.send(measured)
    assert AskPlanner in drive.kinds()
    drive.send(replace(measured, latency_ns=(4000,)))
    drive.answer_all()
    assert drive.pool.due is None
    assert (drive.pool.members[0].corrected_ns, planned_ns(drive)) == ((3000,), (2000,))
    drive.send(replace(measured, latency_ns=(3000,)))
    assert planned_ns(drive) == (3000,), "what was measured meanwhile was forgotten"


def planned_ns(drive: Drive) -> tuple[int, ...]:
    workload = drive.pool.members[0].workload
    assert workload is not None
    return workload.latency_ns[0]


def test_a_job_without_room_goes_at_once_whatever_has_to_be_asked_about_the_others() -> None:
    drive = Slow(10)
    drive.capture(drive.claim(job(1)), 4)
    drive.answer_all()
    drive.adopt_all()
    second = drive.claim(job(2))
    drive.capture(second, 30, unknown=1)
    assert drive.orders[0] == EndTrainer(trainer=second, method=EndMethod.TERMINATE)


# --- any sequence of events ------------------------------------------------------------------------------------


class World:
    """Trainers and a queue around decide(): does what is ordered, checks what must always hold."""

    def __init__(self, budget: int, sizes: list[int], draw: st.DataObject, *, slow: bool) -> None:
        self.drive = (Slow if slow else Drive)(budget, spare_trainers=2, max_jobs=4)
        self.draw = draw
        self.sizes = dict(enumerate(sizes, start=1))
        self.queued = list(self.sizes)
        self.ended: dict[int, str] = {}
        self.claims = 0
        self.starting: set[TrainerId] = set()
        self.idle: set[TrainerId] = set()
        self.busy: dict[TrainerId, ClaimedJob] = {}
        self.todo: dict[TrainerId, Event] = {}  # what the trainer will say next
        self.dying: set[TrainerId] = set()
        self.ledger: dict[TrainerId, int] = {}  # what trainers hold
        self.granted: dict[TrainerId, int] = {}
        self.flying: dict[TrainerId, int] = {}
        self.written: dict[int, str] = {}  # by claim: what was written about it

    def alive(self) -> set[TrainerId]:
        return self.starting | self.idle | set(self.busy) | self.dying

    def send(self, event: Event) -> None:
        before = self.drive.pool
        answers: list[Event] = []
        orders = self.drive.decide(event)
        assert (self.drive.pool, orders) == decide(before, event, self.drive.planner), "not deterministic"
        for order in orders:
            self.do(order, answers)
        for answer in answers:
            self.send(answer)

    def do(self, order: Order, answers: list[Event]) -> None:  # noqa: C901 - a table: one case per kind of order
        match order:
            case SpawnTrainer(trainer=trainer):
                assert trainer not in self.alive()
                self.starting.add(trainer)
            case ClaimNext():
                answers.append(Claim(job=self.claim()))
            case AssignJob(trainer=trainer, job=claimed):
                self.idle.remove(trainer)
                self.busy[trainer] = claimed
                self.todo[trainer] = self.capture(trainer)
            case SetGrant(trainer=trainer, grant_bytes=grant_bytes):
                assert grant_bytes % REGION == 0
                held_bytes = self.ledger.get(trainer, 0)
                self.granted[trainer] = grant_bytes
                self.ledger[trainer] = max(held_bytes, grant_bytes)
                if grant_bytes > held_bytes:
                    assert sum(self.ledger.values()) <= self.drive.pool.budget_bytes, "grants exceed the budget"
                elif self.draw.draw(st.booleans(), label="empty at once"):
                    answers.append(self.give_back(trainer))
            case GrantCalibration(trainer=trainer, grant_bytes=grant_bytes):
                assert self.granted[trainer] == grant_bytes
                self.todo[trainer] = self.calibration(trainer, grant_bytes)
            case SendPlans(trainer=trainer, generation=generation, grant_bytes=grant_bytes):
                assert trainer not in self.flying, "two generations in flight"
                assert grant_bytes <= self.granted[trainer]
                self.flying[trainer] = generation
                self.todo[trainer] = Adoption(trainer=trainer, generation=generation)
            case EndTrainer(trainer=trainer):
                assert trainer in self.alive()
                self.dying.add(trainer)
            case ReleaseTrainer(trainer=trainer):
                self.ledger.pop(trainer, None)
                self.granted.pop(trainer, None)
            case FailJob(job=number, claim=claim):
                self.end(number, claim, "failed")
            case CancelJob(job=number, claim=claim):
                self.end(number, claim, "cancelled")
            case RequeueJob(job=number, claim=claim):
                self.write(claim, "requeued")
                self.queued.append(number)
            case _:
                pass

    def give_back(self, trainer: TrainerId) -> Holding:
        """What its grant was lowered by is empty now."""
        self.ledger[trainer] = self.granted[trainer]
        return Holding(trainer=trainer, held_bytes=self.granted[trainer])

    def claim(self) -> ClaimedJob | None:
        if not self.queued:
            return None
        self.claims += 1
        return job(self.queued.pop(0), claim=self.claims)

    def capture(self, trainer: TrainerId) -> Capture:
        size = self.sizes[self.busy[trainer].job]
        unknown = self.draw.draw(st.integers(0, 1), label="unknown operators")
        return Capture(trainer=trainer, graphs=(graph(size, size),), latency_ns=((100,) * size,), unknown=unknown)

    def calibration(self, trainer: TrainerId, grant_bytes: int) -> Calibration:
        size = self.sizes[self.busy[trainer].job]
        needs_bytes = self.draw.draw(st.integers(1, size), label="calibration needs") * REGION
        return Calibration(
            trainer=trainer,
            graphs=(graph(size, size),),
            latency_ns=((100,) * size,),
            overflow_bytes=max(0, needs_bytes - grant_bytes),
        )

    def write(self, claim: int, what: str) -> None:
        assert claim not in self.written, f"{what} after {self.written[claim]}"
        self.written[claim] = what

    def end(self, number: int, claim: int, how: str) -> None:
        self.write(claim, how)
        assert number not in self.ended
        self.ended[number] = how

    def exit(self, trainer: TrainerId, code: int = -9) -> None:
        for group in (self.starting, self.idle, self.dying):
            group.discard(trainer)
        for table in (self.busy, self.todo, self.flying):
            table.pop(trainer, None)
        self.send(Exit(trainer=trainer, code=code))

    def say(self, trainer: TrainerId) -> None:
        """The trainer's next message, as the protocol has it."""
        event = self.todo.pop(trainer)
        if isinstance(event, Adoption):
            del self.flying[trainer]
        self.send(event)

    def finish(self, trainer: TrainerId) -> None:
        claimed = self.busy.pop(trainer)
        self.todo.pop(trainer, None)
        self.dying.add(trainer)
        self.end(claimed.job, claimed.claim, "succeeded")
        self.send(Finish(trainer=trainer))

    def lose(self, number: int) -> None:
        """Another worker has rescued the job: it is queued again, under no claim of ours."""
        members = [m for m in self.drive.pool.members if m.job.job == number and m.job.claim not in self.written]
        if members and members[-1].outcome is None:
            self.write(members[-1].job.claim, "lost")
            self.send(ClaimLoss(claim=members[-1].job.claim))
            self.queued.append(number)
            self.send(QueueChange())

    def step(self) -> None:  # noqa: C901 - a table: one case per kind of action
        action = self.draw.draw(st.integers(0, 14), label="action")
        numbers = st.sampled_from(sorted(self.sizes))
        if action == 0:
            self.send(Tick())
        elif action in (1, 2) and self.starting:
            trainer = self.pick(self.starting)
            self.starting.remove(trainer)
            self.idle.add(trainer)
            self.send(SpareReady(trainer=trainer))
        elif action in (3, 4, 5) and self.todo:
            self.say(self.pick(self.todo))
        elif action == 6 and (running := self.trained()):
            self.finish(self.pick(running))
        elif action == 7 and self.alive():
            self.exit(self.pick(self.alive()))
        elif action == 8:
            self.send(CancelRequest(job=JobId(self.draw.draw(numbers))))
        elif action == 9:
            self.lose(self.draw.draw(numbers))
        elif action == 10:
            self.send(BudgetChange(budget_bytes=self.draw.draw(st.integers(1, 20)) * REGION + 7))
        elif action == 11 and (running := self.trained()):
            self.measure(self.pick(running))
        elif action == 12 and self.ledger:
            self.send(self.give_back(self.pick(self.ledger)))
        else:
            self.think()

    def measure(self, trainer: TrainerId) -> None:
        size = self.sizes[self.busy[trainer].job]
        took_ns = self.draw.draw(st.integers(10, 1000))
        self.send(
            Measurement(
                trainer=trainer, generation=1, latency_ns=(took_ns,) * size, iteration_ns=1, stall_ns=0, peak_bytes=1
            )
        )

    def think(self) -> bool:
        """The planner has found what it was asked, if it was."""
        if not isinstance(self.drive, Slow) or self.drive.asked is None:
            return False
        self.drive.think()
        self.send(Answered())
        return True

    def trained(self) -> set[TrainerId]:
        """Trainers that follow a plan: those that can finish."""
        return {
            m.trainer
            for m in self.drive.pool.members
            if m.trainer in self.busy and m.stage is JobStage.RUNNING and m.adopted and m.trainer not in self.dying
        }

    def pick(self, trainers: Any) -> TrainerId:
        picked: TrainerId = self.draw.draw(st.sampled_from(sorted(trainers)))
        return picked

    def settle(self) -> None:
        """Let everything run its course: nothing may be stuck."""
        self.send(BudgetChange(budget_bytes=20 * REGION))
        for _ in range(3000):
            if len(self.ended) == len(self.sizes) and not self.drive.pool.members:
                return
            if self.dying:
                self.exit(min(self.dying), 0)
            elif self.think():
                pass
            elif self.todo:
                self.say(min(self.todo))
            elif self.starting:
                trainer = min(self.starting)
                self.starting.remove(trainer)
                self.idle.add(trainer)
                self.send(SpareReady(trainer=trainer))
            elif running := self.trained():
                self.finish(min(running))
            else:
                for holder in sorted(self.ledger):
                    self.send(self.give_back(holder))
                self.send(Tick())
        pytest.fail(f"stuck: {self.drive.pool}")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_sequence_of_events_exceeds_the_budget_loses_a_job_or_gets_stuck(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6), label="sizes")
    slow = data.draw(st.booleans(), label="a planner that takes its time")
    world = World(data.draw(st.integers(1, 20), label="budget"), sizes, data, slow=slow)
    for _ in range(data.draw(st.integers(0, 60), label="steps")):
        world.step()
    world.settle()
    accounted = set(world.ended) | set(world.queued) | {m.job.job for m in world.drive.pool.members}
    assert accounted == set(world.sizes)
    assert sum(world.ledger.values()) == 0
