"""The planner of `bench trace`: the plans of a job are the points of its kind's trade-offs, and are known at once.

Memory is divided as admission's own estimate divides it (scheduler/completion/set_forecasts.py): the step down with
the least slowdown for each byte is taken until all jobs fit.
"""

import time
from collections.abc import Mapping, Sequence

from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.completion_rule import scaled_by
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.completion.memory_division import MemoryCurve, divide_memory
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from indb_tensile.scheduler.workload import Workload

_POLICY = "trade-off "


class TracePlanner:
    """Implements `scheduler.admission.pool.Planner`. `calls` and `took_ns` count its answers and their time."""

    def __init__(self, jobs: Mapping[JobId, TraceJob], region_bytes: int) -> None:
        self.jobs = jobs
        self.region_bytes = region_bytes
        self.calls = 0
        self.took_ns = 0

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Return the plans with the least sum of slowdowns that fit the budget together."""
        begin_ns = time.process_time_ns()
        kinds = [self.jobs[workload.job].kind for workload in workloads]
        at = divide_memory([MemoryCurve(kind.trade_offs, self.region_bytes) for kind in kinds], budget_bytes)
        plans: tuple[JobPlan, ...] | Infeasible
        if at is None:
            needed_bytes = sum(map(self.least_bytes, workloads))
            plans = Infeasible(needed_bytes=needed_bytes, budget_bytes=budget_bytes, reason="too little memory")
        else:
            plans = tuple(self._job_plan(workload, number) for workload, number in zip(workloads, at, strict=True))
        self.calls += 1
        self.took_ns += time.process_time_ns() - begin_ns
        return plans

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """Return the plan's peak."""
        del workload, region_bytes
        return plan.peak_bytes

    def least_bytes(self, workload: Workload) -> int:
        """Return the peak of the plan with the least memory."""
        return self.jobs[workload.job].kind.trade_offs[-1].peak_bytes

    def trade_offs(self, workload: Workload) -> tuple[TradeOff, ...]:
        """Return the job's trade-offs as foretold for these latencies."""
        return tuple(self._point(workload, number) for number in range(len(self.jobs[workload.job].kind.trade_offs)))

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        """Return plans for the present latencies. They are no better if they are derived from the present plans."""
        del plans, thorough
        renewed = self.plan(workloads, budget_bytes=budget_bytes)
        return None if isinstance(renewed, Infeasible) else renewed

    def plan_round(
        self,
        workloads: tuple[Workload, ...],
        plans: Plans,
        *,
        budget_bytes: int,
        region_bytes: int,
        compute: Compute,
    ) -> tuple[JobPlan, ...] | None:
        """Return None: the trace is simulated without phases."""
        del workloads, plans, budget_bytes, region_bytes, compute
        return None

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """Return the same plans with forecasts for the workloads' latencies."""
        pairs = zip(workloads, plans, strict=True)
        return tuple(self._job_plan(workload, plan_number(plan.plans)) for workload, plan in pairs)

    def rank_step(self, workload: Workload, plan: JobPlan) -> PublishedStep:
        """Return a step that takes as long as the plan's forecast. The graphs of these jobs exchange nothing."""
        del workload
        return PublishedStep(events=(), work_ns=(plan.forecast.iteration_ns,), exchange_ns=())

    def _point(self, workload: Workload, number: int) -> TradeOff:
        """Return a trade-off of the job for the latencies of the workload, which may contain contention."""
        kind = self.jobs[workload.job].kind
        return scaled_by(kind.trade_offs[number], sum(workload.latency_ns[0]) / kind.trade_offs[0].compute_ns)

    def _job_plan(self, workload: Workload, number: int) -> JobPlan:
        point = self._point(workload, number)
        kind = self.jobs[workload.job].kind
        forecast = Forecast(
            iteration_ns=point.iteration_ns,
            compute_ns=point.compute_ns,
            stall_out_ns=0,
            stall_in_ns=point.stall_ns,
            upload_ns=point.iteration_ns - point.compute_ns - point.stall_ns,
            peak_bytes=point.peak_bytes,
            out_bytes=0,
            in_bytes=0,
        )
        return JobPlan(
            job=workload.job,
            plans=(Plan(policy=f"{_POLICY}{number}"),),
            forecast=forecast,
            vanilla_peak_bytes=kind.peak_bytes,
            liveness_peak_bytes=kind.peak_bytes,
            floor_bytes=kind.trade_offs[-1].peak_bytes,
            peak_bytes=point.peak_bytes,
            swaps=0,
            swapped_bytes=0,
        )


def plan_number(plans: Sequence[Plan]) -> int:
    """Return the number of the trade-off that the planner meant by these plans."""
    policy = plans[0].policy
    if not policy.startswith(_POLICY):
        raise InvariantError(f"{policy} is not a plan of this planner")
    return int(policy.removeprefix(_POLICY))


def graph_of_job(job: TraceJob) -> StepGraph:
    """Return a graph of one operator that needs the job's memory without plans.

    Admission only reads sums of it; all plans come from the planner above.
    """
    tensor = Tensor(id=TensorId(0), name="memory", size_bytes=job.kind.peak_bytes, role=Role.ACTIVATION)
    operator = Operator(
        name=job.kind.name, signature=job.kind.name, stage=Stage.FORWARD, reads=(), writes=(TensorId(0),)
    )
    return StepGraph(tensors=(tensor,), operators=(operator,), signature=f"job {job.number}")


def foretold_ns(job: TraceJob) -> tuple[tuple[int, ...], ...]:
    """Return the latencies that admission is told when the job is captured: those before its pace is known."""
    return ((job.kind.trade_offs[0].compute_ns,),)
