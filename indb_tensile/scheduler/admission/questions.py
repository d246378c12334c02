"""What admission asks of a planner, where making a plan takes longer than the controller may look away.

decide() is handed a planner that answers at once, or one that raises `Unanswered` where it does not know yet. The
question then goes out as an order, its answer comes back as a fact, and the division is tried again from its start,
which finds every answer that it found before. Whatever has changed meanwhile leads to other questions: an answer to
one that nobody asks any more is never looked up. So plans depend on the questions alone, never on when they came.
"""

from dataclasses import dataclass

from indb_tensile.scheduler.admission.pool import Planner
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFor:
    """`Planner.plan`."""

    workloads: tuple[Workload, ...]
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewFor:
    """`Planner.renew`."""

    workloads: tuple[Workload, ...]
    plans: tuple[JobPlan, ...]
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastFor:
    """`Planner.least_bytes`."""

    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFor:
    """`Planner.placed_bytes`."""

    workload: Workload
    plan: JobPlan
    region_bytes: int


Question = PlanFor | RenewFor | LeastFor | PlacedFor
Answer = tuple[JobPlan, ...] | Infeasible | int | None


class Unanswered(Exception):  # noqa: N818 - no fault: it unwinds a division that goes on when the answer is there
    """The planner does not know yet, and has to be asked."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question


def answer(planner: Planner, question: Question) -> Answer:
    """Ask a planner that answers at once."""
    match question:
        case PlanFor(workloads=workloads, budget_bytes=budget_bytes):
            return planner.plan(workloads, budget_bytes=budget_bytes)
        case RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes):
            return planner.renew(workloads, plans, budget_bytes=budget_bytes)
        case LeastFor(workload=workload):
            return planner.least_bytes(workload)
        case PlacedFor(workload=workload, plan=plan, region_bytes=region_bytes):
            return planner.placed_bytes(workload, plan, region_bytes=region_bytes)
