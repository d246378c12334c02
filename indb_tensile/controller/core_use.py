"""Measures how many processor cores other programs keep busy while jobs train on a processor.

Others are the controller, its planner, the database, and all else on the machine that is no trainer. Where trainings
want all cores, they lose what others take; alone, a training has an idle core for that. So forecasts count it
(completion/contention.py).

Only seconds count in which the same jobs train and nothing is prepared, planned or closed: what is computed for a
start or an end belongs to the job, and forecasts count it there. As a lasting rate it would keep jobs apart.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from indb_tensile.device.processor_times import busy_s, process_s
from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.pool import JobStage, Pool

_QUIET = {JobStage.WAITING, JobStage.RUNNING, JobStage.PARKED}
_REMEMBERED_S = 60.0  # older seconds count less
_KNOWN_S = 10.0  # what an earlier controller measured counts like so many seconds of measuring


class CoreUse:
    """The mean number of cores that other programs keep busy. `known` was measured by an earlier controller.

    `read_busy_s` returns the processor time of all programs on the cores that jobs may use, and `read_trainer_s` that
    of one process, both since any fixed time; None if that is not known.
    """

    def __init__(
        self,
        known: float | None = None,
        *,
        read_busy_s: Callable[[], float | None] | None = None,
        read_trainer_s: Callable[[int], float | None] | None = None,
    ) -> None:
        self._taken_s, self._passed_s = (0.0, 0.0) if known is None else (known * _KNOWN_S, _KNOWN_S)
        self._read_busy_s = read_busy_s or busy_s
        self._read_trainer_s = read_trainer_s or process_s
        self._before: _Reading | None = None

    def measure(self, pool: Pool, pids: Collection[int], now_s: float) -> float | None:
        """Return the mean with the time since the last call, if that counts; None if nothing is known.

        `pids` are the processes of all trainers, and `now_s` never goes back.
        """
        if not pool.contention.cores:
            return None
        before, self._before = self._before, self._reading(pool, pids, now_s)
        now = self._before
        if before is not None and now is not None and now.jobs == before.jobs and now.now_s > before.now_s:
            passed_s = now.now_s - before.now_s
            trainers_s = sum(s - before.trainers_s.get(pid, 0.0) for pid, s in now.trainers_s.items())
            taken_s = max(0.0, now.busy_s - before.busy_s - trainers_s)
            kept = min(1.0, _REMEMBERED_S / (self._passed_s + passed_s))
            self._taken_s = kept * (self._taken_s + min(taken_s, pool.contention.cores * passed_s))
            self._passed_s = kept * (self._passed_s + passed_s)
        return self._taken_s / self._passed_s if self._passed_s else None

    def _reading(self, pool: Pool, pids: Collection[int], now_s: float) -> "_Reading | None":
        """Return the processor times now; None if jobs are prepared or planned, or if no job trains."""
        jobs = frozenset(pool.running_set.jobs)
        running = {m.job.job for m in pool.at(JobStage.RUNNING)}
        moves = pool.due is not None or pool.asked or any(m.stage not in _QUIET for m in pool.members)
        if moves or not jobs or jobs != running or pool.owing:
            return None
        trainers_s = {pid: self._read_trainer_s(pid) for pid in pids if pid}
        used_s = self._read_busy_s()
        if used_s is None:
            return None
        known_s = {pid: s for pid, s in trainers_s.items() if s is not None}
        if len(known_s) < len(trainers_s):
            return None
        return _Reading(jobs=jobs, now_s=now_s, busy_s=used_s, trainers_s=known_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The processor times at one moment at which only training goes on: of everything, and by trainer."""

    jobs: frozenset[JobId]
    now_s: float
    busy_s: float
    trainers_s: Mapping[int, float]
