"""Shows job by job where the foretold and the measured throughput of a run of `bench share` part.

The throughput of a run is the work of its jobs, in seconds of each job alone, over the time in which at least one of
them trained (share_measures.py). For each job there is the work that was foretold (`foretold_s`) and that of the same
training alone (`alone_s`). Their ratio is that of the job's foretold to its measured speed.

- `waits_s`: from submission to the first plan. No throughput has it.
- `first_s`, `first_alone_s`: from the first plan to the end of the first iteration.
- `trains_s`: from the first plan until the job gave back its memory.
- `closes_s`: from then to its end. No throughput has it.
- `iteration_ms`, `iteration_foretold_ms`: an iteration under the last plan that was measured. The foretold one is of
  the latest latencies, which have in them how much the other jobs slow the operators down.

The trainings alone have rows, too, with the method `alone`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.bench.harness.share.share_measures import JobTimes, SetShare
from indb_tensile.bench.harness.share.share_mixes import MixTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """The foretold and the measured time of an iteration under one plan."""

    foretold_ns: int
    measured_ns: int


def job_rows(
    label: Mapping[str, object],
    jobs: Sequence[JobTimes],
    alone: Mapping[MixTraining, JobTimes],
    sets: Sequence[SetShare],
    iterations: Mapping[int, IterationTimes],
) -> list[dict[str, Any]]:
    """Return a row for each job of a run. `label` has the values that all rows begin with."""
    return [{**label, **_row(job, alone[job.training], sets, iterations.get(job.job_id))} for job in jobs]


def _row(
    job: JobTimes, alone: JobTimes, sets: Sequence[SetShare], iteration: IterationTimes | None
) -> dict[str, Any]:
    own = [share for share in sets if share.job_id == job.job_id]
    foretold_s = sum(share.progress_s for share in own) if own else None
    return {
        "job": job.job_id,
        "training": f"{job.training.table}, {job.training.epochs} epochs",
        "waits_s": round(job.trains_s - job.enqueued_s, 2),
        "first_s": round(job.stepped_s - job.trains_s, 2),
        "first_alone_s": round(alone.stepped_s - alone.trains_s, 2),
        "trains_s": round(job.trained_s, 2),
        "closes_s": round(job.ended_s - job.left_s, 2),
        "alone_s": round(alone.trained_s, 2),
        "foretold_s": None if foretold_s is None else round(foretold_s, 2),
        "ratio": None if foretold_s is None else round(foretold_s / alone.trained_s, 2),
        "iteration_ms": None if iteration is None else round(iteration.measured_ns / 1e6, 2),
        "iteration_foretold_ms": None if iteration is None else round(iteration.foretold_ns / 1e6, 2),
    }
