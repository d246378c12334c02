"""Measures how many of the device's processor cores programs other than its jobs use.

The kernel counts for how long each core was busy (/proc/stat), and for how long each process has computed
(/proc/PID/stat). Other programs use what is left of the first when the jobs' part is taken away. A job's part is that
of its trainer's process group, so processes that the trainer starts count as well. The total of a trainer that has
ended comes from the kernel when the trainer is reaped. So no part of it counts as other programs'.

Only the time in which jobs compute counts. The database, the controller and its planner work for jobs, so they use
more while jobs run than before: the mean of the last such time foretells the next one better than an idle device.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.device import cgroup
from indb_tensile.scheduler.admission.pool import JobStage, Pool, TrainerId
from indb_tensile.scheduler.completion.other_load import CoreUse

log = logging.getLogger("controller")

# Time for which a measurement counts: its weight falls to 1/e. Reports of trainers come once a second.
_MEMORY_S = 3.0
# For less than this, the kernel's clock ticks of 10 ms are too coarse.
_LEAST_S = 0.1
# The stages in which forecasts count a job as one that computes, and that in which it leaves the device. A trainer
# computes in others too: when it starts, and when its job waits for memory. No forecast knows that, so it counts as
# other load.
_COMPUTING = (JobStage.CAPTURING, JobStage.CALIBRATING, JobStage.RUNNING, JobStage.PARKING)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_GROUP, _TIMES = 2, slice(11, 15)  # of the fields of /proc/PID/stat after the name: pgrp; utime to cstime
_IDLE = (3, 4)  # of the fields of a core in /proc/stat: idle, iowait
_STOLEN = 7  # the last field that counts: time that the hypervisor gave to other machines. Guests are in user time.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The processor time until one moment: of all cores together, and of each process group."""

    at_s: float
    busy_s: float
    groups_s: Mapping[int, float]
    jobs: frozenset[int]  # the groups that computed for jobs


class CoreWatch:
    """The cores that other programs use, as an exponentially weighted mean over the time in which jobs compute."""

    def __init__(
        self,
        cores: Iterable[int] = (),
        *,
        proc: Path = Path("/proc"),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cores` are the numbers of the cores that the device is made of; none if they cannot be watched."""
        self._cores = frozenset(cores)
        self._proc = proc
        self._clock_s = clock_s
        self._last: _Reading | None = None
        self._ended_s: dict[int, float] = {}
        self.use: CoreUse | None = None  # None: not measured yet

    @classmethod
    def of_this_process(cls) -> "CoreWatch":
        """Return a watch of the cores that this process may use, or of none if they cannot be watched.

        With a quota of its control group a process may use a part of the machine's time, wherever other programs run.
        Then what they use says nothing about what is left.
        """
        bound, quota = os.sched_getaffinity(0), cgroup.processors()
        watch = cls(bound)
        return cls() if (quota is not None and quota < len(bound)) or watch._busy_s() is None else watch

    @property
    def cores(self) -> int:
        """The number of cores of the device."""
        return len(self._cores)

    def end(self, pid: int, processor_s: float) -> None:
        """Note that a trainer has ended, and for how long it and the processes that it waited for have computed."""
        self._ended_s[pid] = processor_s

    def look(self, pool: Pool, pid_of: Callable[[TrainerId], int]) -> None:
        """Measure since the last look, if jobs compute. `pid_of` returns 0 for a trainer without a process."""
        trainers = (m.trainer for m in pool.at(*_COMPUTING) if m.trainer is not None)
        self.look_beside(pid for trainer in trainers if (pid := pid_of(trainer)))

    def look_beside(self, pids: Iterable[int]) -> None:
        """Measure since the last look. `pids` are the trainers that compute for jobs now.

        A trainer counts if it computes for a job at one of two looks. The time between two looks counts if jobs
        compute at both.
        """
        now_s, jobs, last = self._clock_s(), frozenset(pids), self._last
        if last is not None and now_s < last.at_s + _LEAST_S:
            return
        ended_s, self._ended_s = self._ended_s, {}
        busy_s = self._busy_s() if jobs and self._cores else None
        if busy_s is None:
            self._last = None
            return
        self._last = _Reading(at_s=now_s, busy_s=busy_s, groups_s=self._groups_s(), jobs=jobs)
        if last is not None:
            self._add(last, self._last, ended_s)

    def _add(self, last: _Reading, now: _Reading, ended_s: Mapping[int, float]) -> None:
        """Add the time between two readings to the mean."""
        elapsed_s, jobs_s = now.at_s - last.at_s, 0.0
        for pid in last.jobs | now.jobs:
            before_s = last.groups_s.get(pid, 0.0)
            jobs_s += max(0.0, ended_s.get(pid, now.groups_s.get(pid, before_s)) - before_s)
        used = min(max(0.0, (now.busy_s - last.busy_s - jobs_s) / elapsed_s), float(self.cores))
        use = CoreUse(used_cores=used, beside_jobs=(len(last.jobs) + len(now.jobs)) / 2)
        self.use = use if self.use is None else self.use.moved_to(use, -math.expm1(-elapsed_s / _MEMORY_S))
        log.debug("on %d cores: %s", self.cores, self.use)

    def _busy_s(self) -> float | None:
        """Return for how long the device's cores were busy since the machine was started; None if it is unknown."""
        busy, seen = 0, set()
        try:
            with (self._proc / "stat").open(encoding="ascii") as lines:
                for line in lines:
                    name, *fields = line.split()
                    if not name.startswith("cpu"):
                        break  # cores come first, and a line of interrupts is long
                    if name != "cpu" and int(name[3:]) in self._cores:
                        seen.add(name)
                        busy += sum(int(field) for at, field in enumerate(fields[: _STOLEN + 1]) if at not in _IDLE)
        except (OSError, ValueError):
            return None
        return busy * _TICK_S if len(seen) == len(self._cores) else None

    def _groups_s(self) -> dict[int, float]:
        """Return for how long the processes of each group have computed, with those that they have waited for."""
        groups: dict[int, int] = {}
        for entry in os.scandir(self._proc):
            if not entry.name.isdecimal():
                continue
            try:
                text = (self._proc / entry.name / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # the process has ended
                continue
            fields = text.rpartition(")")[2].split()  # a name may have blanks and brackets
            group = int(fields[_GROUP])
            groups[group] = groups.get(group, 0) + sum(map(int, fields[_TIMES]))
        return {group: ticks * _TICK_S for group, ticks in groups.items()}
