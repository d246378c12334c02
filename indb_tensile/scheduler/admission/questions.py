"""Questions of admission to the planner, for plans that take longer to make than the controller may block.

decide() gets a planner that either answers at once or raises `Unanswered` if it has no answer yet. The question then
goes out as an order, and its answer comes back as an event. The division is then made again from its start and finds
every earlier answer among the planner's stored answers. If the state has changed meanwhile, the division asks other
questions, and an answer to an obsolete question is never looked up. Plans therefore depend on the questions alone,
never on when the answers arrive.
"""

from dataclasses import dataclass

from indb_tensile.scheduler.admission.pool import Planner
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFor:
    """The arguments of a call of `Planner.plan`."""

    workloads: tuple[Workload, ...]
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewFor:
    """The arguments of a call of `Planner.renew`."""

    workloads: tuple[Workload, ...]
    plans: tuple[JobPlan, ...]
    budget_bytes: int
    thorough: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastFor:
    """The arguments of a call of `Planner.least_bytes`."""

    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffsFor:
    """The arguments of a call of `Planner.trade_offs`."""

    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFor:
    """The arguments of a call of `Planner.placed_bytes`."""

    workload: Workload
    plan: JobPlan
    region_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFor:
    """The arguments of a call of `Planner.plan_round`: no forecasts, because they change with every report."""

    workloads: tuple[Workload, ...]
    plans: Plans
    budget_bytes: int
    region_bytes: int
    compute: Compute


Question = PlanFor | RenewFor | RoundFor | LeastFor | TradeOffsFor | PlacedFor
Answer = tuple[JobPlan, ...] | Infeasible | tuple[TradeOff, ...] | int | None


class Unanswered(Exception):  # noqa: N818 - not a fault: it unwinds a division that is repeated later
    """The planner has no answer to this question yet and has to be asked."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question


def answer(planner: Planner, question: Question) -> Answer:
    """Ask a planner that answers at once."""
    match question:
        case PlanFor(workloads=workloads, budget_bytes=budget_bytes):
            return planner.plan(workloads, budget_bytes=budget_bytes)
        case RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes, thorough=thorough):
            return planner.renew(workloads, plans, budget_bytes=budget_bytes, thorough=thorough)
        case RoundFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes, region_bytes=region_bytes):
            return planner.plan_round(
                workloads, plans, budget_bytes=budget_bytes, region_bytes=region_bytes, compute=question.compute
            )
        case LeastFor(workload=workload):
            return planner.least_bytes(workload)
        case TradeOffsFor(workload=workload):
            return planner.trade_offs(workload)
        case PlacedFor(workload=workload, plan=plan, region_bytes=region_bytes):
            return planner.placed_bytes(workload, plan, region_bytes=region_bytes)
