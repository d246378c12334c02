"""The interface of a policy: a pure function from jobs, link and budget to plans."""

from collections.abc import Sequence
from typing import Protocol

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.workload import Workload


class Policy(Protocol):
    """A policy. Equal arguments give equal plans. The budget is a goal; the planner checks whether it is met.

    `rewrites` says whether the plan's executor can run operators in another order than the captured one
    (`Plan.executions`). If it is False, a policy that would recompute does not.
    """

    def __call__(
        self, workloads: Sequence[Workload], *, budget_bytes: int, link: Link, rewrites: bool = True
    ) -> tuple[tuple[Plan, ...], ...]:
        """Return for each job one plan for each graph."""
        ...
