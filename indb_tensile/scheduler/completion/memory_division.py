"""Divide the memory of a device along the trade-offs of jobs, for the least sum of slowdowns."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from indb_tensile.scheduler.completion.demand import TradeOff


def divide_memory(curves: "Sequence[MemoryCurve]", budget_bytes: int) -> list[int] | None:
    """Return the number of one plan for each job, so that all plans together fit; None if no such plans do.

    Greedy: each step moves the job to a smaller plan for which that costs the least slowdown for each saved byte.
    """
    at = [0] * len(curves)
    used_bytes = sum(curve.rounded_bytes[0] for curve in curves)
    while used_bytes > budget_bytes:
        steps = [
            (step.slope, k, step) for k, curve in enumerate(curves) if (step := curve.step_from(at[k])) is not None
        ]
        if not steps:
            return None
        _, k, step = min(steps, key=itemgetter(0, 1))
        at[k] = step.to
        used_bytes -= step.saved_bytes
    return at


class _StepDown(NamedTuple):
    """A step from one plan of a job to another that needs less memory.

    `slope` is the slowdown for each saved byte.
    """

    slope: float
    to: int
    saved_bytes: int


class MemoryCurve:
    """The trade-offs of one job, with their memory in whole regions."""

    def __init__(self, points: tuple[TradeOff, ...], region_bytes: int) -> None:
        self.points = points
        self.rounded_bytes = [-(-point.peak_bytes // region_bytes) * region_bytes for point in points]
        self._steps: dict[int, _StepDown | None] = {}

    def step_from(self, at: int) -> _StepDown | None:
        """Return the step down from this plan with the least slope; None if no other plan needs less memory."""
        if at not in self._steps:
            self._steps[at] = min(self._steps_from(at), default=None)
        return self._steps[at]

    def _steps_from(self, at: int) -> Iterator[_StepDown]:
        for to in range(at + 1, len(self.points)):
            saved_bytes = self.rounded_bytes[at] - self.rounded_bytes[to]
            if saved_bytes > 0:
                added_ns = self.points[to].iteration_ns - self.points[at].iteration_ns
                yield _StepDown(added_ns / self.points[0].iteration_ns / saved_bytes, to, saved_bytes)
