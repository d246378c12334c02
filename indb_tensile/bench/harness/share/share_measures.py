"""What `bench share` measures of a set of jobs that ran together, from the times of their events.

- `makespan_s`: from the first job's submission to the last job's end.
- `antt`, the average normalised turnaround (Eyerman and Eeckhout 2008): the mean over the jobs of the time from
  submission to end, over the same time of the same training alone on an idle device with all of the memory.
- `worst_slowdown`: the largest of these ratios.
- `stp_measured`, the system throughput: the times that the jobs train alone, summed, over the time in which at least
  one of them trained. Each moment counts with the jobs' progress, in units of their speed alone, so this is the mean
  over that time of the sum of relative speeds. A job trains from its first plan until it gives back its memory, so
  waiting, reading, capturing and publishing count neither here nor there. Jobs in turns have 1.
- `stp_foretold`: the same with what the controller foretold: for each job the speeds relative to alone that were
  foretold for it, times the seconds for which it ran beside the same jobs, summed, over the same time. The product is
  what the controller believes the job has done, in seconds of the job alone, while it trains. So both have in them
  start-up, the jobs that are prepared or published meanwhile, and the end of a mix, when one job runs alone.
  It is null where the catalog does not store the speeds.
- `sets_error`: the throughputs foretold for sets of jobs, over those that the controller measured for these sets, as
  means over time. This is the error in undisturbed iterations.
- `first_step_s`: the longest time from a job's submission to the end of its first iteration.
- `peak_bytes`: the most that the device's ledger has counted in use at one moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from indb_tensile.bench.harness.share.share_mixes import MixTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """When a job was enqueued, began to train, finished its first iteration, gave back its memory, and ended."""

    job_id: int
    training: MixTraining
    enqueued_s: float
    trains_s: float
    stepped_s: float
    left_s: float
    ended_s: float
    needed_bytes: int  # its peak if nothing is saved
    digest: str  # of its parameters

    @property
    def turnaround_s(self) -> float:
        """Return the time from submission to end."""
        return self.ended_s - self.enqueued_s

    @property
    def trained_s(self) -> float:
        """Return the time from the first plan until the job gave back its memory."""
        return self.left_s - self.trains_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasures:
    """The measures of one run of a mix. Without the times of the jobs alone there are no ratios to them."""

    makespan_s: float
    antt: float | None
    stp_measured: float | None
    worst_slowdown: float | None
    first_step_s: float
    peak_bytes: int
    stp_foretold: float | None = None
    sets_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetShare:
    """One job's part in a set of jobs that ran side by side. `stp_measured` is None if nothing could be measured.

    `speed_foretold` is the job's own speed relative to alone.
    """

    job_id: int
    stp_foretold: float
    stp_measured: float | None
    speed_foretold: float
    seconds: float  # for which the set ran
    jobs: int

    @property
    def weight(self) -> float:
        """Return the part of the set's time that counts here. Each job of a set has a share of its own."""
        return self.seconds / self.jobs

    @property
    def progress_s(self) -> float:
        """Return what the job was foretold to do meanwhile, in seconds of the job alone."""
        return self.speed_foretold * self.seconds


def measure_run(
    jobs: Sequence[JobTimes],
    peak_bytes: int,
    alone: Mapping[MixTraining, JobTimes] | None = None,
    sets: Sequence[SetShare] = (),
) -> RunMeasures:
    """Return the measures of a run. `alone` has the same trainings, each run alone with all of the memory."""
    slowdowns: list[float] = []
    stp_measured = None
    spans_s = covered_s([(job.trains_s, job.left_s) for job in jobs])
    if alone is not None:
        slowdowns = [job.turnaround_s / alone[job.training].turnaround_s for job in jobs]
        stp_measured = sum(alone[job.training].trained_s for job in jobs) / spans_s
    return RunMeasures(
        makespan_s=max(job.ended_s for job in jobs) - min(job.enqueued_s for job in jobs),
        antt=sum(slowdowns) / len(slowdowns) if slowdowns else None,
        stp_foretold=sum(share.progress_s for share in sets) / spans_s if sets else None,
        sets_error=sets_error(sets),
        stp_measured=stp_measured,
        worst_slowdown=max(slowdowns, default=None),
        first_step_s=max(job.stepped_s - job.enqueued_s for job in jobs),
        peak_bytes=peak_bytes,
    )


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of these half-open spans."""
    total_s, covered_to_s = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(start_s, covered_to_s))
        covered_to_s = max(covered_to_s, end_s)
    return total_s


def sets_error(sets: Sequence[SetShare]) -> float | None:
    """Return the foretold over the measured throughput of the sets with several jobs that were measured; or None."""
    pairs = [
        (share.weight, share.stp_foretold, share.stp_measured)
        for share in sets
        if share.jobs > 1 and share.stp_measured is not None
    ]
    measured = sum(weight * stp for weight, _, stp in pairs)
    return sum(weight * stp for weight, stp, _ in pairs) / measured if measured else None


def share_row(mix: str, method: str, threads: int, runs: Sequence[RunMeasures]) -> dict[str, Any]:
    """Return one row: medians over the rounds, and the largest peak."""
    return {
        "mix": mix,
        "method": method,
        "threads": threads,
        "makespan_s": _middle([run.makespan_s for run in runs], 2),
        "antt": _middle([run.antt for run in runs], 3),
        "stp_foretold": _middle([run.stp_foretold for run in runs], 3),
        "stp_measured": _middle([run.stp_measured for run in runs], 3),
        "worst_slowdown": _middle([run.worst_slowdown for run in runs], 3),
        "first_step_s": _middle([run.first_step_s for run in runs], 2),
        "peak_bytes": max(run.peak_bytes for run in runs),
    }


def _middle(values: Sequence[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), digits) if known else None
