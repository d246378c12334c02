"""Divide the memory of a device along the trade-offs of jobs, for the least sum of slowdowns."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from indb_tensile.scheduler.completion.demand import TradeOff


def divide_memory(curves: "Sequence[MemoryCurve]", budget_bytes: int) -> list[int] | None:
    """Return the number of one plan for each job, so that all plans together fit; None if no such plans do.

    Greedy: each step moves the job to a smaller plan for which that costs the least slowdown for each saved byte.
    """
    at = [0] * len(curves)
    used_bytes = sum([curve.rounded_bytes[0] for curve in curves])
    if used_bytes <= budget_bytes:
        return at
    if sum([curve.rounded_bytes[-1] for curve in curves]) > budget_bytes:
        return None
    steps = [curve.step_from(0) for curve in curves]
    slopes = [step.slope for step in steps]
    while used_bytes > budget_bytes:
        k = slopes.index(min(slopes))
        at[k] = steps[k].to
        used_bytes -= steps[k].saved_bytes
        steps[k] = curves[k].step_from(at[k])
        slopes[k] = steps[k].slope
    return at


class _StepDown(NamedTuple):
    """A step from one plan of a job to another that needs less memory.

    `slope` is the slowdown for each saved byte.
    """

    slope: float
    to: int
    saved_bytes: int


_NO_STEP = _StepDown(slope=float("inf"), to=-1, saved_bytes=0)


class MemoryCurve:
    """The trade-offs of one job, with their memory in whole regions."""

    def __init__(self, points: tuple[TradeOff, ...], region_bytes: int) -> None:
        self.points = points
        self.rounded_bytes = [-(-point.peak_bytes // region_bytes) * region_bytes for point in points]
        self._steps: dict[int, _StepDown] = {}

    def step_from(self, at: int) -> _StepDown:
        """Return the step down from this plan with the least slope, or `_NO_STEP` if no plan needs less memory."""
        if at not in self._steps:
            self._steps[at] = min(self._steps_from(at), default=_NO_STEP)
        return self._steps[at]

    def _steps_from(self, at: int) -> Iterator[_StepDown]:
        for to in range(at + 1, len(self.points)):
            saved_bytes = self.rounded_bytes[at] - self.rounded_bytes[to]
            if saved_bytes > 0:
                added_ns = self.points[to].iteration_ns - self.points[at].iteration_ns
                yield _StepDown(added_ns / self.points[0].iteration_ns / saved_bytes, to, saved_bytes)
