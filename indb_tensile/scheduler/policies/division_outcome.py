"""Choose between divisions of a budget for several jobs, which were planned and simulated side by side.

The rules are those of tensile+ (tensile_plus.py): keep to the budget, take no more time than equal parts do, and slow
no job down much more than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.policies.policy import Plans

UNFAIR = 1.25  # The most slowdown of one job, as a multiple of the mean slowdown of all jobs.


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionOutcome:
    """One division of the budget, planned and simulated."""

    plans: Plans
    equal: bool  # True for equal parts
    over_bytes: int  # bytes over the budget, or over a job's own limit
    slowdown: float  # summed over the jobs, relative to iterations without waits
    device_slowdown: float  # of the device's time for the same work of all jobs
    # the worst job's slowdown divided by the mean, both relative to the jobs side by side without plans
    unfairness: float
    worst: float
    moved_bytes: int  # bytes moved by swaps


def chosen_plans(outcomes: Sequence[DivisionOutcome]) -> Plans:
    """Return the plans with the least total slowdown among the divisions that tensile_plus.py admits."""
    nearest = _nearest(outcomes)
    nearest = [outcome for outcome, admitted in zip(nearest, admitted_of(nearest), strict=True) if admitted]
    # no tensor moves without need
    return min(nearest, key=lambda outcome: (outcome.slowdown, outcome.moved_bytes)).plans


def _nearest(outcomes: Sequence[DivisionOutcome]) -> list[DivisionOutcome]:
    """Return the outcomes that keep to the budget, or the ones that come nearest if none does."""
    least_over = min(outcome.over_bytes for outcome in outcomes)
    return [outcome for outcome in outcomes if outcome.over_bytes == least_over]


def admitted_of(outcomes: Sequence[DivisionOutcome]) -> list[bool]:
    """Return for each nearest outcome whether tensile_plus.py admits it. If equal parts are not among them,
    all are.
    """
    nearest = _nearest(outcomes)
    equal = min((outcome for outcome in nearest if outcome.equal), key=lambda outcome: outcome.slowdown, default=None)
    return [equal is None or outcome is equal or _admitted(outcome, equal) for outcome in nearest]


def _admitted(outcome: DivisionOutcome, equal: DivisionOutcome) -> bool:
    fair = outcome.unfairness <= UNFAIR or outcome.worst <= equal.worst
    return fair and outcome.slowdown <= equal.slowdown and outcome.device_slowdown <= equal.device_slowdown
