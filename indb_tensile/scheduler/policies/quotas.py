"""Divide a budget between jobs without their budget curves: into equal parts, or in proportion to peaks.

Each job's part is at least what it needs and at most what it can use. What one job leaves goes to the others. If all
jobs together need more than the budget, each gets what it needs, and the sum exceeds the budget.
"""

from collections.abc import Sequence

_PARTS = 1 << 30  # resolution of the share that is found by bisection


def equal_parts(leasts: Sequence[int], mosts: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """Give each job an equal part of the budget, but no more than it uses and no less than it needs."""
    return _filled(leasts, mosts, [max(mosts, default=0)] * len(mosts), budget_bytes)


def parts_by_peak(leasts: Sequence[int], mosts: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """Give each job the same share of the memory that it would use without a plan."""
    return _filled(leasts, mosts, mosts, budget_bytes)


def _filled(
    leasts: Sequence[int], mosts: Sequence[int], targets: Sequence[int], budget_bytes: int
) -> tuple[int, ...]:
    """Give each job the highest common share of its target that the budget allows, found by bisection. The rest goes
    to the jobs in order.
    """

    def parts(level: int) -> list[int]:
        rows = zip(leasts, mosts, targets, strict=True)
        return [max(least, min(most, target * level // _PARTS)) for least, most, target in rows]

    low, high = 0, _PARTS
    while high - low > 1:
        level = (low + high) // 2
        low, high = (level, high) if sum(parts(level)) <= budget_bytes else (low, level)
    result = parts(_PARTS if sum(parts(_PARTS)) <= budget_bytes else low)
    spare = max(0, budget_bytes - sum(result))
    for number, most in enumerate(mosts):
        more = max(0, min(spare, most - result[number]))
        result[number] += more
        spare -= more
    return tuple(result)
