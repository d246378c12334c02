"""Ways to divide a budget between jobs that look at no job's curve: equal parts, and parts in proportion to peaks.

Each job's part is at least what it needs and at most what it can use; what one job leaves goes to the others. Where
all jobs would need more than the budget each gets what it needs, and what is over shows in the sum.
"""

from collections.abc import Sequence

_PARTS = 1 << 30  # into which what a job would like is divided


def equal_parts(leasts: Sequence[int], mosts: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """Give each job an equal part of the budget, but no more than it uses and no less than it needs."""
    return _filled(leasts, mosts, [max(mosts, default=0)] * len(mosts), budget_bytes)


def parts_by_peak(leasts: Sequence[int], mosts: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """Give each job the same share of the memory that it would use without a plan."""
    return _filled(leasts, mosts, mosts, budget_bytes)


def _filled(leasts: Sequence[int], mosts: Sequence[int], wanted: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """As high a share of what is wanted as the budget allows, found by halving; the last bytes in the jobs' order."""

    def parts(level: int) -> list[int]:
        rows = zip(leasts, mosts, wanted, strict=True)
        return [max(least, min(most, want * level // _PARTS)) for least, most, want in rows]

    low, high = 0, _PARTS
    while high - low > 1:
        level = (low + high) // 2
        low, high = (level, high) if sum(parts(level)) <= budget_bytes else (low, level)
    found = parts(_PARTS if sum(parts(_PARTS)) <= budget_bytes else low)
    spare = max(0, budget_bytes - sum(found))
    for number, most in enumerate(mosts):
        more = max(0, min(spare, most - found[number]))
        found[number] += more
        spare -= more
    return tuple(found)
