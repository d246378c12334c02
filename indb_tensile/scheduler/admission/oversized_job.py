"""The outcome of a job that needs more memory than its controller can ever give it."""

import sys

from indb_tensile.errors import MemoryLimitError
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.pool import Broken, Fault, Member, Outcome
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.workload import least_bytes
from indb_tensile.sizes import compared, size


def least_limit(*limits_bytes: int | None) -> int | None:
    """Return the lowest of these limits; None if there is none."""
    return min((limit for limit in limits_bytes if limit is not None), default=None)


def too_large(decision: Decision, head: Member, infeasible: Infeasible) -> Outcome:
    """Return the outcome of a job that does not fit any division of the budget.

    If nothing but the budget is too small, a controller with a larger one may train the job.
    """
    bound_bytes, bound, raise_it = min(
        (decision.pool.budget_bytes, "the budget", "give the controller a larger budget (TENSILE_BUDGET_BYTES)"),
        (_or_no_limit(head.job.spec.memory_limit_bytes), "its memory_limit", "raise memory_limit"),
        (
            _or_no_limit(head.job.owner_limit_bytes),
            "its owner's quota",
            "have an administrator raise the quota: select tensile_set_quota(..., bytes => ...)",
        ),
    )
    floor_bytes = least_bytes(planned(head))
    needed, bounded = compared(infeasible.needed_bytes, bound_bytes)
    outgrown = "".join(f"While it trained, operator {operator}. " for operator in head.outgrown)
    error = MemoryLimitError(
        f"job {head.job.job} needs at least {needed} of device memory, more than {bound} of {bounded}",
        detail=f"{outgrown}Its largest operator alone holds {size(floor_bytes)}, below which no plan can go; "
        f"what stopped the planner: {infeasible.reason}.",
        hint=f"Use a smaller batch_size or a smaller network, or {raise_it}.",
    )
    needs_bytes = max(infeasible.needed_bytes, bound_bytes + 1) if bound == "the budget" else None
    return Broken(fault=Fault.of(error), needs_bytes=needs_bytes)


def _or_no_limit(limit_bytes: int | None) -> int:
    return sys.maxsize if limit_bytes is None else limit_bytes
