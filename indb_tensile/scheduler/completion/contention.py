"""How much jobs that run side by side slow down each other's operators.

Operators of several jobs share the device's arithmetic units and the bandwidth of its memory. By how much they slow
each other down is measured (worker/measure_contention.py) and then corrected by the jobs that run. One number for
each number of jobs lies between the simulator's two extremes: 1 if no job slows another (`Compute.OVERLAP`), and the
number of jobs if the operators run one after another (`Compute.TURNS`).

A step of a few milliseconds has a second cost: it hands over to the thread that copies its batch and waits for it.
Beside other jobs it then comes back to cold caches. This cost is one of the step, not of its operators. Measured on
two cores, such a step of 1.5 ms needs 1.2 times as much processor time beside three others and 1.3 times as much
beside seven, and products of matrices 1.02 times (docs/developer/sharing.md). So it is measured as the contention of
a *short step*, and a job has a share of it: the time of that reference step over the time of the job's own step.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError

NEW_WEIGHT = 0.25  # least weight of an observation, which is noisy, because jobs come and go meanwhile
_MOST_COUNTED = round(1 / NEW_WEIGHT) - 2  # observations, after which each has NEW_WEIGHT

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The factor by which operators take longer beside others than alone, for increasing numbers of jobs.

    `points` are pairs of a number of jobs and the factor, of steps so long that what they cost beside their operators
    does not count. Between two pairs, the factor is interpolated. Beyond the last pair, all jobs together do as much
    work as at the last pair. `short_points` are those of a step that takes `short_ns` alone. Both are left out if no
    short step was measured; then all steps have the same factor. `observations` are pairs of a number of jobs and how
    often it was observed since these factors were measured, up to the number from which on the weight is the same.
    """

    points: Points
    short_points: Points = ()
    short_ns: int = 0
    observations: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for points in (self.points, self.short_points) if self.short_points else (self.points,):
            numbers = [jobs for jobs, _ in points]
            if not numbers or numbers[0] != 1 or numbers != sorted(set(numbers)):
                raise InvariantError(f"contention is given for {numbers} jobs, not for 1 and then for more")
            if any(not 0 < factor < float("inf") for _, factor in points):
                raise InvariantError(f"contention has a factor that is not positive and finite: {points}")
        if (self.short_ns > 0) != bool(self.short_points):
            raise InvariantError(f"a short step takes {self.short_ns} ns, with the contention {self.short_points}")

    def slowdown(self, jobs: int, step_ns: float = float("inf")) -> float:
        """Return the factor for this number of jobs, for a job whose step computes for `step_ns` alone.

        It is at least 1 and never falls with more jobs.
        """
        return self.slowdowns(jobs, (step_ns,))[0]

    def slowdowns(self, jobs: int, steps_ns: Iterable[float]) -> list[float]:
        """Return the factor for this number of jobs of each of these steps. Searches of sets call this often."""
        factor = _at(self.points, jobs)
        if not self.short_points:
            return [factor for _ in steps_ns]
        added = _at(self.short_points, jobs) - factor
        return [factor + self.short_share(step_ns) * added for step_ns in steps_ns]

    def short_share(self, step_ns: float) -> float:
        """Return to which part a step is like the short step that was measured: 1 if it is not longer.

        A longer step has the same cost beside its operators, which is a smaller part of it.
        """
        return min(1.0, self.short_ns / max(1.0, step_ns))

    def observed(self, jobs: int, slowdown: float, step_ns: float = float("inf")) -> "Contention":
        """Return the contention corrected by one observation of this number of jobs, of a step of `step_ns` alone.

        The factors of long and of short steps are corrected by the parts that they have in this step. Larger numbers
        of jobs are corrected by the same ratio, because the cause probably affects more jobs as well. Smaller numbers
        stay as they are, because the cause may be the number of jobs itself.

        The measurement is a few samples, too, and counts like one observation. So the first observation has half of
        the weight, the second one a third, and later ones `NEW_WEIGHT`.
        """
        if jobs < 2:
            return self
        seen = dict(self.observations)
        known = seen.get(jobs, 0)
        share = self.short_share(step_ns)
        error = max(1.0, slowdown) / self.slowdown(jobs, step_ns) - 1
        # Divided by the squares, so that the factor of this step moves by the weight, however it is composed.
        weight = max(NEW_WEIGHT, 1 / (known + 2)) / (share**2 + (1 - share) ** 2)
        return replace(
            self,
            observations=tuple(sorted((seen | {jobs: min(known + 1, _MOST_COUNTED)}).items())),
            points=_corrected(self.points, jobs, 1 + weight * (1 - share) * error),
            short_points=_corrected(self.short_points, jobs, 1 + weight * share * error),
        )


def _at(points: Points, jobs: int) -> float:
    """Return the interpolated factor for this number of jobs. It never falls with more jobs."""
    numbers = [number for number, _ in points]
    at = bisect_left(numbers, jobs)
    if at == len(numbers):
        last, factor = points[-1]
        factor *= jobs / last
    else:
        number, factor = points[at]
        if number != jobs:
            lower, lower_factor = points[at - 1]
            factor = lower_factor + (factor - lower_factor) * (jobs - lower) / (number - lower)
    return max(1.0, factor, *(earlier for smaller, earlier in points if smaller < jobs))


def _corrected(points: Points, jobs: int, ratio: float) -> Points:
    """Return the factors, multiplied by this ratio from this number of jobs on."""
    if not points or ratio == 1:
        return points
    numbers = {number for number, _ in points} | {jobs}
    return tuple((n, _at(points, n) * ratio if n >= jobs else _at(points, n)) for n in sorted(numbers))


def of_cores(cores: int, threads: int) -> Contention:
    """Return the contention of jobs with this many threads each on a processor, until it has been measured.

    Threads beyond the number of cores share the cores. A memory bus is not considered.
    """
    fits = max(1, cores // threads)
    alone = max(1.0, threads / cores)
    points = {1: 1.0, fits: 1.0, 2 * fits: max(1.0, 2 * fits * threads / cores / alone)}
    return Contention(points=tuple(sorted(points.items())))
