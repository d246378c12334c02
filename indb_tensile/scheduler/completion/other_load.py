"""What is left of a device that is made of processor cores, while other programs use some of them.

The database, the controller, its planner, starts of processes and programs of other people compute on the same cores
as the jobs. Jobs get what is left: k jobs on c cores, of which others use o, have c - o cores. If they could use
more, they are slowed down like k' jobs with all cores to themselves, where k' / c = k / (c - o). Jobs that need no
more than c - o cores are not slowed down.

That more jobs take nothing from other programs is true of programs that need little: they are served first, because
trainings have a lower priority (worker/training/niceness.py). Programs that could use all cores give way to more
jobs. If they use o cores beside n jobs, they compete like n * o / (c - o) further jobs, and no less than o threads,
and k jobs are slowed down like so many more. Both rules agree on n jobs. The smaller of both counts: the first for
fewer jobs, the second for more. On two cores beside a busy test suite, one job had 0.5 to 0.9 cores and six had 1.5,
so other programs were like two more jobs in both cases. By the first rule alone, no second job would have started.

The controller measures o (controller/core_watch.py). It counts only when it has moved by more than noise, so that
noise changes no forecast.
"""

from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError

# The kernel stops no process altogether. With a smaller share of the cores for jobs, forecasts would have no bound.
_LEAST_SHARE = 1 / 16
# A measurement that differs by less than this share of the cores does not count, so forecasts may be wrong by as
# much.
_NOISE = 0.05
_FEW = 1.5  # the ratio by which the number of jobs beside which the load was measured has to change to count


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreUse:
    """A measurement: how many cores other programs have used, and beside how many jobs."""

    used_cores: float
    beside_jobs: float

    def moved_to(self, later: "CoreUse", weight: float) -> "CoreUse":
        """Return the mean with a later measurement, which has this weight."""
        return CoreUse(
            used_cores=self.used_cores + weight * (later.used_cores - self.used_cores),
            beside_jobs=self.beside_jobs + weight * (later.beside_jobs - self.beside_jobs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoad:
    """The cores that other programs use, and the threads with which each job computes.

    `beside_jobs` is the mean number of jobs that computed when the load was measured.
    A device that is not made of cores, or whose cores cannot be watched, has 0 `cores` and no load.
    """

    cores: int = 0
    threads: int = 1
    used_cores: float = 0.0
    beside_jobs: float = 1.0

    def __post_init__(self) -> None:
        if self.threads < 1 or not 0 <= self.used_cores <= self.cores or not self.beside_jobs > 0:
            raise InvariantError(
                f"others use {self.used_cores} of {self.cores} cores, beside {self.beside_jobs} jobs of "
                f"{self.threads} threads"
            )

    def as_jobs(self, jobs: int) -> float:
        """Return how many jobs, with all cores to themselves, share them as these jobs share what is left."""
        left_cores = max(self.cores - self.used_cores, _LEAST_SHARE * self.cores)
        if not self.used_cores or jobs * self.threads <= left_cores:
            return jobs
        competing = self.used_cores * max(self.beside_jobs / left_cores, 1 / self.threads)
        return min(jobs * self.cores / left_cores, jobs + competing)

    def measured(self, use: CoreUse) -> "OtherLoad":
        """Return the load after a measurement: the same load unless the measurement differs by more than noise."""
        used_cores = min(max(0.0, use.used_cores), float(self.cores))
        near = abs(used_cores - self.used_cores) <= _NOISE * self.cores
        if near and (not self.used_cores or _are_near(self.beside_jobs, use.beside_jobs)):
            return self
        return replace(self, used_cores=used_cores, beside_jobs=use.beside_jobs)


def _are_near(known: float, measured: float) -> bool:
    """Return whether these numbers of jobs are nearly the same."""
    return known <= _FEW * measured and measured <= _FEW * known
