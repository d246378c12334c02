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

A job on processors has several threads, and it starts up and closes with one of them. So a start-up or a closing, an
*edge* of the job, uses one processor and not as many as a step. Linux shares processors fairly between processes that
want them, and whatever a process cannot use goes to the others (max-min fairness, Bertsekas and Gallager, "Data
Networks", 1992). With `k` jobs that compute on `p` processors each, and `e` edges, threads want as many processors as
`x = k + e/p` jobs, which together do as much work as `x / C(x)` jobs alone. Of it an edge has an equal part or one
processor, whichever is less, and the jobs have the rest.

The steps that were measured had the cores for themselves, with equal priorities. But long trainings have a lower
priority than short ones, and other programs take a part of the cores, such as the controller and the database. Where
the number of cores is known, a factor is therefore corrected by the ratio of two divisions of these cores
(processor_shares.py): among these jobs and programs, and among as many equal jobs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.completion.processor_shares import ProcessorLoad, fair_parts, weight_of

NEW_WEIGHT = 0.25  # least weight of an observation, which is noisy, because jobs come and go meanwhile
_OTHERS_WEIGHT = weight_of(0)  # of a process of another program
_MOST_COUNTED = round(1 / NEW_WEIGHT) - 2  # observations, after which each has NEW_WEIGHT

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The factor by which operators take longer beside others than alone, for increasing numbers of jobs.

    `points` are pairs of a number of jobs and the factor, of steps so long that what they cost beside their operators
    does not count. Between two pairs, the factor is interpolated. Beyond the last pair, all jobs together do as much
    work as at the last pair. `short_points` are those of a step that takes `short_ns` alone. Both are left out if no
    short step was measured; then all steps have the same factor. `processors` is the number of processors that a job
    computes with. Where it is 1, an edge counts like a job. `observations` are pairs of a number of jobs and how
    often it was observed since these factors were measured, up to the number from which on the weight is the same.

    `cores` is the number of processors that all jobs share, and `taken_cores` how many of them other programs keep
    busy meanwhile. Where `cores` is 0, the device is not made of processors, and all jobs count as equal.
    """

    points: Points
    short_points: Points = ()
    short_ns: int = 0
    processors: int = 1
    observations: tuple[tuple[int, int], ...] = ()
    cores: int = 0
    taken_cores: float = 0.0

    def __post_init__(self) -> None:
        for points in (self.points, self.short_points) if self.short_points else (self.points,):
            numbers = [jobs for jobs, _ in points]
            if not numbers or numbers[0] != 1 or numbers != sorted(set(numbers)):
                raise InvariantError(f"contention is given for {numbers} jobs, not for 1 and then for more")
            if any(not 0 < factor < float("inf") for _, factor in points):
                raise InvariantError(f"contention has a factor that is not positive and finite: {points}")
        if (self.short_ns > 0) != bool(self.short_points):
            raise InvariantError(f"a short step takes {self.short_ns} ns, with the contention {self.short_points}")
        if self.processors < 1:
            raise InvariantError(f"contention is given for jobs of {self.processors} processors, not of 1 or more")
        if self.cores < 0 or not 0 <= self.taken_cores < inf:
            raise InvariantError(f"{self.taken_cores} of {self.cores} cores are taken by other programs")

    def slowdown(self, jobs: int, step_ns: float = float("inf"), edges: int = 0) -> float:
        """Return the factor for this number of jobs, for a job whose step computes for `step_ns` alone.

        `edges` is the number of further jobs that start up or close on the device. The factor is at least 1 and never
        falls with more edges, nor without edges with more jobs. It is at most that for a job in place of each edge.
        """
        return self.slowdowns(jobs, (step_ns,), edges)[0]

    def slowdowns(self, jobs: int, steps_ns: Iterable[float], edges: int = 0) -> list[float]:
        """Return the factor for these numbers of jobs and edges of each of these steps. Searches of sets call this
        often.
        """
        if not edges or self.processors == 1:
            return self._factors(jobs + edges, steps_ns)
        steps_ns = tuple(steps_ns)
        like_jobs = self._factors(jobs + edges, steps_ns)
        share = self._lost_to_edges(jobs, edges)
        factors = self._factors(jobs + edges / self.processors, steps_ns)
        return [min(share * factor, most) for factor, most in zip(factors, like_jobs, strict=True)]

    def edge_slowdown(self, jobs: int, edges: int) -> float:
        """Return by how much longer a job starts up or closes, as one of `edges` edges beside `jobs` that compute.

        The factor is at least 1, never falls with more edges, and is at most that for as many jobs in all.
        """
        if not edges:
            return 1.0
        wanted = jobs * self.processors + edges
        factor = _at(self.points, max(1.0, wanted / self.processors))
        return max(1.0, (jobs + edges) * factor / wanted)

    def startup_lead(self, jobs: int, edges: int) -> float:
        """Return how long before the last step of `jobs` that compute, so many edges begin if they end with it.

        The unit is the time of such an edge alone, and the last step is where it would be without the edges.
        """
        return self.edge_slowdown(jobs, edges) * self.slowdown(jobs) / self.slowdown(jobs, edges=edges)

    def slowdowns_of(self, loads: Sequence[ProcessorLoad], steps_ns: Sequence[float], edges: int = 0) -> list[float]:
        """Return the factor for each of these jobs side by side, whose steps compute for so long alone.

        The factors of equal jobs are those of `slowdowns`, unless other programs take cores. All are at least 1.
        """
        factors = self.slowdowns(len(loads), steps_ns, edges)
        if not self._differ(loads):
            return factors
        corrections = self._corrections(loads, edges)
        return [max(1.0, factor * of_job) for factor, of_job in zip(factors, corrections, strict=False)]

    def edge_slowdown_beside(self, loads: Sequence[ProcessorLoad], edges: int) -> float:
        """Return by how much longer a job starts up or closes, as one of `edges` edges beside these jobs."""
        factor = self.edge_slowdown(len(loads), edges)
        if not edges or not self._differ(loads):
            return factor
        return max(1.0, factor * self._corrections(loads, edges)[-1])

    def _differ(self, loads: Sequence[ProcessorLoad]) -> bool:
        """Return whether these jobs share the cores otherwise than equal jobs do that have them for themselves."""
        return self.cores > 0 and (self.taken_cores > 0 or any(load.weight != 1 for load in loads))

    def _corrections(self, loads: Sequence[ProcessorLoad], edges: int) -> list[float]:
        """Return for each job, and then each edge, by which factor it has less of the cores than one of equal jobs.

        Edges have the weight 1. Other programs have what they take, if that is no more than their fair part.
        """
        usual = float(min(self.cores, self.processors))
        wants = [usual] * len(loads) + [1.0] * edges
        weights = [load.weight for load in loads] + [1.0] * edges
        if self.taken_cores:
            wants.append(self.taken_cores)
            weights.append(_OTHERS_WEIGHT * max(1.0, self.taken_cores))
        parts = fair_parts(wants, weights, self.cores)
        # Equal jobs want no less than an edge, so edges have an equal part or all that they want.
        of_edge = min(1.0, self.cores / (len(loads) + edges))
        of_job = min(1.0, (self.cores - edges * of_edge) / (usual * max(1, len(loads))))
        shares = [of_job] * len(loads) + [of_edge] * edges
        return [share * want / part for share, want, part in zip(shares, wants, parts, strict=False)]

    def _factors(self, jobs: float, steps_ns: Iterable[float]) -> list[float]:
        """Return the factor of each of these steps where threads want as many processors as this number of jobs."""
        factor = _at(self.points, jobs)
        if not self.short_points:
            return [factor for _ in steps_ns]
        added = _at(self.short_points, jobs) - factor
        return [factor + self.short_share(step_ns) * added for step_ns in steps_ns]

    def _lost_to_edges(self, jobs: int, edges: int) -> float:
        """Return the factor by which jobs have less than their part of what all threads want, because of edges.

        An edge has an equal part of the device, which is more of what it wants than jobs have of what they want. Or
        it has all that it wants, a whole processor.
        """
        wanted = jobs * self.processors + edges
        equal = (jobs + edges) * self.processors / wanted
        rest = wanted - edges * _at(self.points, wanted / self.processors)  # for jobs, if each edge has a processor
        whole = jobs * self.processors / rest if rest > 0 else inf
        return min(equal, whole)

    def short_share(self, step_ns: float) -> float:
        """Return to which part a step is like the short step that was measured: 1 if it is not longer.

        A longer step has the same cost beside its operators, which is a smaller part of it.
        """
        return min(1.0, self.short_ns / max(1.0, step_ns))

    def observed(
        self, jobs: int, slowdown: float, step_ns: float = float("inf"), foretold: float | None = None
    ) -> "Contention":
        """Return the contention corrected by one observation of this number of jobs, of a step of `step_ns` alone.

        `foretold` is the factor that was foretold for this job, if it differs from that of equal jobs.

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
        error = max(1.0, slowdown) / (foretold or self.slowdown(jobs, step_ns)) - 1
        # Divided by the squares, so that the factor of this step moves by the weight, however it is composed.
        weight = max(NEW_WEIGHT, 1 / (known + 2)) / (share**2 + (1 - share) ** 2)
        return replace(
            self,
            observations=tuple(sorted((seen | {jobs: min(known + 1, _MOST_COUNTED)}).items())),
            points=_corrected(self.points, jobs, 1 + weight * (1 - share) * error),
            short_points=_corrected(self.short_points, jobs, 1 + weight * share * error),
        )


def _at(points: Points, jobs: float) -> float:
    """Return the interpolated factor for this number of jobs, at least 1. It never falls with more jobs."""
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
    return Contention(points=tuple(sorted(points.items())), processors=min(cores, threads))
