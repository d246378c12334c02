"""What a policy is: a pure function from jobs, link and budget to plans."""

from collections.abc import Sequence
from typing import Protocol

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.workload import Workload


class Policy(Protocol):
    """Equal arguments give equal plans; the budget is a goal, and the planner judges whether it was met.

    `rewrites` says whether whoever follows the plan can run operators in another order than the captured one
    (`Plan.executions`); a policy that would recompute does without where it is False.
    """

    def __call__(
        self, workloads: Sequence[Workload], *, budget_bytes: int, link: Link, rewrites: bool = True
    ) -> tuple[tuple[Plan, ...], ...]:
        """For each job one plan per graph."""
        ...
