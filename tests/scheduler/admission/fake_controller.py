"""A controller without processes for the tests of `decide()`, with fake planners, and builders of graphs and jobs."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from indb_tensile.job import ClaimedJob, ClaimToken, JobId, JobSpec, Relation, Task
from indb_tensile.scheduler.admission.admission_orders import AskPlanner, AssignJob, Order, SetGrant
from indb_tensile.scheduler.admission.decide import decide
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Answered,
    Capture,
    Claim,
    Correction,
    Event,
    Exit,
    Finish,
    Holding,
    Measurement,
    SpareReady,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Pool, TrainerId
from indb_tensile.scheduler.admission.questions import (
    LeastFor,
    PlacedFor,
    PlanFor,
    Question,
    RenewFor,
    RoundFor,
    TradeOffsFor,
    Unanswered,
)
from indb_tensile.scheduler.admission.questions import answer as answer_of
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator
from indb_tensile.scheduler.phases.round_part import RoundPart, Segment
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from indb_tensile.scheduler.workload import Workload

REGION = 1 << 20
_OrderType = TypeVar("_OrderType", bound=Order)
_FORECAST = Forecast(
    iteration_ns=1000,
    compute_ns=1000,
    stall_out_ns=0,
    stall_in_ns=0,
    upload_ns=0,
    peak_bytes=REGION,
    out_bytes=0,
    in_bytes=0,
)


class FakeController:
    """Send events to `decide()`, and keep the pool and the orders of the last event."""

    def __init__(self, budget: int, planner: "HalvingPlanner | None" = None, **rules: Any) -> None:
        """`budget` is in regions. `rules` are further fields of the pool."""
        self.pool = Pool(budget_bytes=budget * REGION, region_bytes=REGION, **rules)
        self.planner = planner or HalvingPlanner(rounds=bool(rules.get("phases")), uploads=bool(rules.get("batch")))
        self.orders: tuple[Order, ...] = ()

    def send(self, event: Event) -> tuple[Order, ...]:
        """Return the orders of this event and of the ledger's reports that follow.

        The ledger reports after each grant that the trainer holds exactly its grant: the trainer gives memory back
        at once.
        """
        self.orders = self.decide(event)
        for order in self.orders:
            if isinstance(order, SetGrant) and self.pool.of_trainer(order.trainer) is not None:
                self.orders += self.decide(Holding(trainer=order.trainer, held_bytes=order.grant_bytes))
        return self.orders

    def send_twice(self, measurement: Measurement) -> None:
        """Send a measurement twice. The first after a change of what runs does not count."""
        for _ in range(2):
            self.send(measurement)

    def decide(self, event: Event) -> tuple[Order, ...]:
        """Return the orders of this event alone."""
        self.pool, orders = decide(self.pool, event, self.planner)
        return orders

    def claim(self, claimed: ClaimedJob) -> TrainerId:
        """Claim this job and return its trainer, which captures next."""
        self.send(Tick())
        while not any(s.ready for s in self.pool.spares):
            self.send(SpareReady(trainer=self.pool.spares[0].trainer))
        self.send(Claim(job=claimed))
        (assigned,) = orders_of_type(self.orders, AssignJob)
        assert assigned.job == claimed
        return assigned.trainer

    def capture(self, trainer: TrainerId, regions: int, unknown: int = 0, steps: float = 1.0) -> tuple[Order, ...]:
        """Send the captured graph of a job: one operator that writes a tensor of `regions` regions."""
        captured = (graph(regions),)
        return self.send(
            Capture(trainer=trainer, graphs=captured, latency_ns=((1000,),), unknown=unknown, steps=steps)
        )

    def start(self, number: int, regions: int) -> TrainerId:
        """Start a job, adopt all plans, and return the job's trainer."""
        trainer = self.claim(job(number))
        self.capture(trainer, regions)
        self.adopt_all()
        return trainer

    def adopt_all(self) -> None:
        """Let every trainer adopt the plan that was sent to it."""
        while in_flight := [m for m in self.pool.members if m.in_flight]:
            assert in_flight[0].trainer is not None
            self.send(Adoption(trainer=in_flight[0].trainer, generation=in_flight[0].generation))

    def finish(self, trainer: TrainerId) -> tuple[Order, ...]:
        """Finish this trainer's job and return the orders after the trainer's exit."""
        self.send(Finish(trainer=trainer))
        return self.send(Exit(trainer=trainer, code=0))

    def grants(self) -> dict[int, int]:
        """Return the granted regions by job."""
        return {m.job.job: m.granted_bytes // REGION for m in self.pool.members}

    def order_types(self) -> list[type]:
        """Return the types of the last orders."""
        return [type(o) for o in self.orders]


@dataclass(frozen=True)
class HalvingPlanner:
    """Plan every job for its whole graph. If the budget is too small, the last jobs get down to half of theirs."""

    slowdown: float = 4.0  # of a job that is planned for half of its graph, as trade-offs foretell it
    planned_slowdown: float | None = None  # the same in the forecasts of plans; None: these say 1000 ns for any plan
    rounds: bool = False  # jobs may share the device in phases
    uploads: bool = False  # a fifth of an iteration waits for its batch, unless memory is lent for the next one
    swaps: bool = True  # without swaps no job can be planned for less than its whole graph

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
            most_bytes = min(self.whole_bytes(workload), workload.limit_bytes or 1 << 60)
            extra_bytes = min(spare_bytes, most_bytes - least_bytes)
            spare_bytes -= extra_bytes
            plans.append(job_plan(workload.job, least_bytes + extra_bytes))
        return self.foresee(workloads, tuple(plans))

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        return plans if self.rounds and all(plan.part is None for plan in plans) else None

    def plan_round(
        self,
        workloads: tuple[Workload, ...],
        plans: Plans,
        *,
        budget_bytes: int,
        region_bytes: int,
        compute: Compute,
    ) -> tuple[JobPlan, ...] | None:
        """Return the whole graphs of all jobs, in turns: each keeps a region, and takes the rest at its operators."""
        del plans, compute
        wholes = [self.whole_bytes(workload) // region_bytes for workload in workloads]
        if not self.rounds or len(wholes) - 1 + max(wholes) > budget_bytes // region_bytes:
            return None
        return tuple(
            replace(
                job_plan(workload.job, whole * region_bytes),
                plans=(Plan(policy="round"),),
                part=RoundPart(
                    position=position,
                    operators=2,
                    iterations=1,
                    base_bytes=region_bytes,
                    region_bytes=region_bytes,
                    segments=(Segment(operator=0, taken=tuple(range(whole - 1))),),
                ),
            )
            for position, (workload, whole) in enumerate(zip(workloads, wholes, strict=True))
        )

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        if self.planned_slowdown is not None:
            pairs = zip(workloads, plans, strict=True)
            return tuple(replace(plan, forecast=self._forecast(workload, plan)) for workload, plan in pairs)
        if not self.uploads:
            return plans
        waits = replace(_FORECAST, compute_ns=800, upload_ns=200)
        hidden = replace(_FORECAST, iteration_ns=800, compute_ns=800)
        return tuple(
            replace(plan, forecast=hidden if workload.batch_beside else waits)
            for workload, plan in zip(workloads, plans, strict=True)
        )

    def rank_step(self, workload: Workload, plan: JobPlan) -> PublishedStep:
        """Return a step that computes, and then makes the exchange of its graph, if there is one."""
        exchanges = any(operator.starts is not None for operator in workload.graphs[0].operators)
        events, rest = ((0, -1), (0, 0)) if exchanges else ((), ())
        return PublishedStep(events=events, work_ns=(plan.forecast.iteration_ns, *rest), exchange_ns=(0,) * exchanges)

    def least_bytes(self, workload: Workload) -> int:
        return self.whole_bytes(workload) // (2 if self.swaps else 1)

    def trade_offs(self, workload: Workload) -> tuple[TradeOff, ...]:
        """Return the whole graph, at the speed of its operators, and half of it, `slowdown` times slower."""
        time_ns = sum(workload.latency_ns[0])
        whole = TradeOff(peak_bytes=self.whole_bytes(workload), iteration_ns=time_ns, compute_ns=time_ns)
        half_bytes, half_ns = self.least_bytes(workload), round(time_ns * self.slowdown)
        half = TradeOff(peak_bytes=half_bytes, iteration_ns=half_ns, compute_ns=time_ns, stall_ns=half_ns - time_ns)
        return (whole, half) if half_bytes < whole.peak_bytes else (whole,)

    def _forecast(self, workload: Workload, plan: JobPlan) -> Forecast:
        compute_ns = sum(workload.latency_ns[0])
        squeezed = plan.peak_bytes < self.whole_bytes(workload)
        stall_ns = round(((self.planned_slowdown or 1) - 1) * compute_ns) if squeezed else 0
        return replace(
            _FORECAST,
            iteration_ns=compute_ns + stall_ns,
            compute_ns=compute_ns,
            stall_in_ns=stall_ns,
            peak_bytes=plan.peak_bytes,
        )

    def whole_bytes(self, workload: Workload) -> int:
        first = workload.graphs[0]
        return sum(t.size_bytes for t in first.tensors) + max(o.workspace_bytes for o in first.operators)


@dataclass(frozen=True)
class CachedPlanner(HalvingPlanner):
    """Return the answers in its cache, and raise Unanswered for every other question."""

    answers: list[tuple[Question, Any]] = field(default_factory=list)

    def add_answer(self, question: Question) -> None:
        """Add HalvingPlanner's answer to the cache."""
        planner = HalvingPlanner(
            slowdown=self.slowdown,
            planned_slowdown=self.planned_slowdown,
            rounds=self.rounds,
            uploads=self.uploads,
        )
        self.answers.append((question, answer_of(planner, question)))

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        plans: tuple[JobPlan, ...] | Infeasible = self.look_up(
            PlanFor(workloads=workloads, budget_bytes=budget_bytes)
        )
        return plans

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        renewed: tuple[JobPlan, ...] | None = self.look_up(
            RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes, thorough=thorough)
        )
        return renewed

    def plan_round(
        self,
        workloads: tuple[Workload, ...],
        plans: Plans,
        *,
        budget_bytes: int,
        region_bytes: int,
        compute: Compute,
    ) -> tuple[JobPlan, ...] | None:
        planned: tuple[JobPlan, ...] | None = self.look_up(
            RoundFor(
                workloads=workloads,
                plans=plans,
                budget_bytes=budget_bytes,
                region_bytes=region_bytes,
                compute=compute,
            )
        )
        return planned

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        size_bytes: int = self.look_up(PlacedFor(workload=workload, plan=plan, region_bytes=region_bytes))
        return size_bytes

    def trade_offs(self, workload: Workload) -> tuple[TradeOff, ...]:
        points: tuple[TradeOff, ...] = self.look_up(TradeOffsFor(workload=workload))
        return points

    def least_bytes(self, workload: Workload) -> int:
        size_bytes: int = self.look_up(LeastFor(workload=workload))
        return size_bytes

    def look_up(self, question: Question) -> Any:
        for known, answer in self.answers:
            if known == question:
                return answer
        raise Unanswered(question)


class SlowPlannerController(FakeController):
    """A fake controller whose planner answers after `decide()` has returned, as the planner process does."""

    def __init__(self, budget: int, planner: HalvingPlanner | None = None, **rules: Any) -> None:
        """Questions are answered as by `planner`."""
        planner = planner or HalvingPlanner(rounds=bool(rules.get("phases")), uploads=bool(rules.get("batch")))
        self.cached_planner = CachedPlanner(**vars(planner))
        self.question: Question | None = None  # the question that the planner works on
        super().__init__(budget, planner=self.cached_planner, **rules)

    def decide(self, event: Event) -> tuple[Order, ...]:
        orders = super().decide(event)
        for order in orders:
            if isinstance(order, AskPlanner):
                assert self.question is None, "the planner got a second question before its answer"
                self.question = order.question
        return orders

    def compute_answer(self) -> None:
        """Compute the answer without telling `decide()`."""
        assert self.question is not None
        question, self.question = self.question, None
        if self.pool.due is None and not self.pool.asked:
            self.cached_planner.answers.clear()
        self.cached_planner.add_answer(question)

    def answer(self) -> tuple[Order, ...]:
        """Compute the answer and return the orders after it."""
        self.compute_answer()
        return self.send(Answered())

    def answer_all(self) -> None:
        """Answer until the planner has no question left."""
        while self.question is not None:
            self.answer()


def orders_of_type(orders: Iterable[Order], order_type: type[_OrderType]) -> list[_OrderType]:
    """Return the orders of this type."""
    return [order for order in orders if isinstance(order, order_type)]


def graph(regions: int, operators: int = 1, workspace: int = 0) -> StepGraph:
    """Return a graph of `operators` operators that write tensors of `regions` regions in all.

    The first operator has a workspace of `workspace` regions.
    """
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"t{i}", size_bytes=regions * REGION // operators, role=Role.ACTIVATION)
        for i in range(operators)
    )
    return StepGraph(
        tensors=tensors,
        operators=tuple(
            Operator(
                name=f"op{t.id}",
                signature=f"op{t.id}",
                stage=Stage.FORWARD,
                reads=(),
                writes=(t.id,),
                workspace_bytes=0 if t.id else workspace * REGION,
            )
            for t in tensors
        ),
    )


def one_tensor_graph(size_bytes: int, stage: Stage = Stage.FORWARD) -> StepGraph:
    """Return a graph of one operator that writes a tensor of this size.

    An operator of the upload stage also takes `size_bytes` of the host pool.
    """
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=size_bytes, role=Role.ACTIVATION)
    operator = Operator(name="op", signature="op", stage=stage, reads=(), writes=(TensorId(0),))
    return StepGraph(tensors=(tensor,), operators=(operator,))


def correction(trainer: TrainerId, regions: int, workspace: int, number: int = 1) -> Correction:
    """Return a correction of a graph of one operator, whose workspace is `workspace` regions now."""
    operator = OutgrownOperator(signature="op0", name="op0", planned_bytes=0, measured_bytes=workspace * REGION)
    return Correction(
        trainer=trainer, number=number, graphs=(graph(regions, workspace=workspace),), outgrown=(operator,)
    )


def job_plan(job: JobId, peak_bytes: int) -> JobPlan:
    """Return a plan whose figures all are `peak_bytes`."""
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


def job(
    number: int,
    limit_bytes: int | None = None,
    claim: int | None = None,
    *,
    owner: int = 10,
    owner_limit_bytes: int | None = None,
    max_runtime_s: int | None = None,
    priority: int = 0,
) -> ClaimedJob:
    """Return a claimed job. The token of its claim is 1000 plus its number unless `claim` is given."""
    spec = JobSpec(
        model=f"model {number}",
        relation=Relation(oid=number, schema="public", name="t"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": "mlp"},
        memory_limit_bytes=limit_bytes,
        max_runtime_s=max_runtime_s,
    )
    return ClaimedJob(
        job=JobId(number),
        claim=ClaimToken(1000 + number if claim is None else claim),
        attempt=1,
        owner_oid=owner,
        spec=spec,
        owner_limit_bytes=owner_limit_bytes,
        priority=priority,
    )


def measurement(trainer: TrainerId, latency_ns: int, *, generation: int = 1, regions: int = 4) -> Measurement:
    """Return the measurement of a graph of one operator that took `latency_ns`, with a peak of `regions` regions."""
    return Measurement(
        trainer=trainer,
        generation=generation,
        latency_ns=(latency_ns,),
        iteration_ns=1000,
        stall_ns=0,
        peak_bytes=regions * REGION,
    )
