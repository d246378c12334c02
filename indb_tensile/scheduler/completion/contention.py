"""How much jobs that run side by side slow down each other's operators.

Operators of several jobs share the device's arithmetic units and the bandwidth of its memory. By how much they slow
each other down is measured (worker/measure_contention.py) and then corrected by the jobs that run. One number for
each number of jobs lies between the simulator's two extremes: 1 if no job slows another (`Compute.OVERLAP`), and the
number of jobs if the operators run one after another (`Compute.TURNS`).
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError

NEW_WEIGHT = 0.25  # weight of an observation, which is noisy, because jobs come and go meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The factor by which operators take longer beside others than alone, for increasing numbers of jobs.

    `points` are pairs of a number of jobs and the factor. Between two pairs, the factor is interpolated. Beyond the
    last pair, all jobs together do as much work as at the last pair.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        numbers = [jobs for jobs, _ in self.points]
        if not numbers or numbers[0] != 1 or numbers != sorted(set(numbers)):
            raise InvariantError(f"contention is given for {numbers} jobs, not for 1 and then for more")
        if any(not 0 < factor < float("inf") for _, factor in self.points):
            raise InvariantError(f"contention has a factor that is not positive and finite: {self.points}")

    def slowdown(self, jobs: int) -> float:
        """Return the factor for this number of jobs. It is at least 1 and never falls with more jobs."""
        numbers = [number for number, _ in self.points]
        at = bisect_left(numbers, jobs)
        if at == len(numbers):
            last, factor = self.points[-1]
            return max(1.0, factor * jobs / last)
        number, factor = self.points[at]
        if number != jobs:
            lower, lower_factor = self.points[at - 1]
            factor = lower_factor + (factor - lower_factor) * (jobs - lower) / (number - lower)
        return max(1.0, factor, *(earlier for smaller, earlier in self.points if smaller < jobs))

    def observed(self, jobs: int, slowdown: float) -> "Contention":
        """Return the contention corrected by one observation of this number of jobs.

        Larger numbers are corrected by the same ratio, because the cause probably affects more jobs as well. Smaller
        numbers stay as they are, because the cause may be the number of jobs itself.
        """
        if jobs < 2:
            return self
        ratio = 1 + NEW_WEIGHT * (max(1.0, slowdown) / self.slowdown(jobs) - 1)
        numbers = {number for number, _ in self.points} | {jobs}
        points = [(n, self.slowdown(n) * ratio) if n >= jobs else (n, self.slowdown(n)) for n in sorted(numbers)]
        return replace(self, points=tuple(points))


def of_cores(cores: int, threads: int) -> Contention:
    """Return the contention of jobs with this many threads each on a processor, until it has been measured.

    Threads beyond the number of cores share the cores. A memory bus is not considered.
    """
    fits = max(1, cores // threads)
    alone = max(1.0, threads / cores)
    points = {1: 1.0, fits: 1.0, 2 * fits: max(1.0, 2 * fits * threads / cores / alone)}
    return Contention(points=tuple(sorted(points.items())))
