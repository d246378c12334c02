"""The rivals of `bench trace`: for the jobs that could run, which of them are on the device now.

All rivals run jobs without plans. A rival is built as well as its paper allows and is given what it would have to
measure or guess: true remaining times, true throughputs, and memory that is never wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from indb_tensile.bench.harness.virtual_time import trace_outcome
from indb_tensile.bench.harness.virtual_time.trace_device import TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob

WITHOUT_PLAN = 0  # the number of the plan that saves nothing
_SECOND_NS = 1_000_000_000
_QUEUES = 15  # the last threshold is 819 hours; few jobs of the trace run for longer
_NEAR_NS = 1_000  # sums of times in floating-point numbers err by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a rival decides about. `runnable` are in the order of arrival, and include the jobs on the device."""

    now_ns: float
    device: TraceDevice
    runnable: tuple[TraceJob, ...]
    present: frozenset[int]  # jobs on the device
    left: Mapping[int, float]  # steps
    attained_ns: Mapping[int, float]

    def remaining_ns(self, job: TraceJob) -> float:
        """Return the true time that the job needs alone."""
        return self.left[job.number] * job.step_ns

    def throughput(self, jobs: Sequence[TraceJob]) -> float:
        """Return the true system throughput of these jobs side by side."""
        times = self.device.steps_ns([(job, job.point(WITHOUT_PLAN)) for job in jobs])
        return sum(job.step_ns / ns for job, ns in zip(jobs, times, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupation:
    """The jobs that are on the device until something changes, or until `wake_ns`."""

    jobs: tuple[TraceJob, ...]
    wake_ns: float = inf


class Rival(Protocol):
    """One method. An instance serves one run, because it may remember."""

    name: str

    def choose(self, situation: Situation) -> Occupation:
        """Return the jobs that are on the device now."""
        ...

    def memory_bytes(self, jobs: Sequence[TraceJob], device: TraceDevice) -> int:
        """Return the memory that these jobs need together."""
        ...


class _Unplanned:
    """Jobs side by side need the sum of their peaks."""

    def memory_bytes(self, jobs: Sequence[TraceJob], device: TraceDevice) -> int:
        """Return the sum of the jobs' peaks without plans."""
        return sum(device.regions(job.kind.peak_bytes) for job in jobs)


class FirstInFirstOut(_Unplanned):
    """One job at a time, in the order of arrival, to its end."""

    name = trace_outcome.FIRST_IN_FIRST_OUT

    def choose(self, situation: Situation) -> Occupation:
        """Return the present job, else the one that arrived first."""
        present = [job for job in situation.runnable if job.number in situation.present]
        return Occupation(jobs=tuple((present or situation.runnable)[:1]))


class ShortestRemaining(_Unplanned):
    """One job at a time, the one with the least true remaining time. It preempts where that outweighs the change.

    If changes cost no time, no schedule that runs one job at a time has a lower mean completion (Schrage 1968).
    """

    name = trace_outcome.SHORTEST_REMAINING

    def choose(self, situation: Situation) -> Occupation:
        """Return the job with the least remaining time, or the present one if the change is not worth its cost."""
        if not situation.runnable:
            return Occupation(jobs=())
        best = min(situation.runnable, key=lambda job: (situation.remaining_ns(job), job.number))
        for job in situation.runnable:
            if job.number in situation.present:
                change_ns = 2 * situation.device.move_ns(job) + situation.device.hand_over_ns
                if situation.remaining_ns(best) + change_ns >= situation.remaining_ns(job):
                    return Occupation(jobs=(job,))
        return Occupation(jobs=(best,))


@dataclass
class LeastAttained(_Unplanned):
    """Tiresias (Gu et al., NSDI 2019, section 3.2): discretised least attained service, one job at a time.

    A job moves to the next queue when its time on the device reaches the queue's threshold. An earlier queue preempts
    a later one. Within a queue the order is that of arrival. Promotion of starving jobs is left out.

    The authors use two queues, and their simulator's examples are thresholds of 3,600 s, and of 3,600, 7,200 and
    18,000 s (SymbioticLab/Tiresias). On this trace both let long jobs block shorter ones in the last queue. Of six
    settings that we tried (three seeds, 10, 100 and 1,000 jobs), `rivals` takes the one with the lowest mean
    completion at 10 and 1,000 jobs and the highest Jain's index at 10 and 100: thresholds that double from a tenth of
    an hour on.
    """

    thresholds_ns: tuple[float, ...]
    name: str = trace_outcome.LEAST_ATTAINED

    def choose(self, situation: Situation) -> Occupation:
        """Return the first job of the first queue, and wake when it has to move to the next queue."""
        if not situation.runnable:
            return Occupation(jobs=())
        attained_ns = situation.attained_ns
        job = min(
            situation.runnable,
            key=lambda job: (
                self._queue(attained_ns[job.number]),
                job.number not in situation.present and attained_ns[job.number] == 0,
                job.number,
            ),
        )
        left_ns = [limit - attained_ns[job.number] for limit in self.thresholds_ns]
        until_ns = min((ns for ns in left_ns if ns > _NEAR_NS), default=inf)
        return Occupation(jobs=(job,), wake_ns=situation.now_ns + until_ns)

    def _queue(self, attained_ns: float) -> int:
        return sum(attained_ns >= limit - _NEAR_NS for limit in self.thresholds_ns)


@dataclass
class Packing(_Unplanned):
    """Gandiva (Xiao et al., OSDI 2018, section 3): jobs take turns of a quantum, and are packed after profiling.

    Groups of jobs take turns. After a quantum the next group is joined by one more that fits beside it without plans
    (packing). When their quantum is over, the group stays together if the measured throughput has risen, and is
    undone if not; then the two are not packed again. Gandiva profiles a pair on a device; we pack any number, one
    after another.
    """

    quantum_ns: float
    name: str = trace_outcome.PACKING
    _groups: list[tuple[TraceJob, ...]] = field(default_factory=list)
    _trial: tuple[tuple[TraceJob, ...], tuple[TraceJob, ...]] | None = None  # the two groups of the first one
    _refused: set[frozenset[int]] = field(default_factory=set)
    _ends_ns: float = 0.0

    def choose(self, situation: Situation) -> Occupation:
        """Return the group whose turn it is."""
        head = self._renew(situation.runnable)
        if not self._groups:
            return Occupation(jobs=())
        if situation.now_ns >= self._ends_ns or head != self._groups[0]:
            self._next_turn(situation, rotate=head == self._groups[0])
            self._ends_ns = situation.now_ns + self.quantum_ns
        alone = len(self._groups) == 1 and self._trial is None
        return Occupation(jobs=self._groups[0], wake_ns=inf if alone else self._ends_ns)

    def _renew(self, runnable: tuple[TraceJob, ...]) -> tuple[TraceJob, ...]:
        """Drop jobs that are done and add new ones. Return the first group as it was before."""
        head = self._groups[0] if self._groups else ()
        numbers = {job.number for job in runnable}
        known = {job.number for group in self._groups for job in group}
        kept = [tuple(job for job in group if job.number in numbers) for group in self._groups]
        self._groups = [group for group in kept if group]
        self._groups += [(job,) for job in runnable if job.number not in known]
        return head

    def _next_turn(self, situation: Situation, *, rotate: bool) -> None:
        self._judge(situation)
        if rotate and len(self._groups) > 1:
            self._groups = [*self._groups[1:], self._groups[0]]
        head, *others = self._groups
        for other in others:
            together = (*head, *other)
            if frozenset(job.number for job in together) in self._refused:
                continue
            if self.memory_bytes(together, situation.device) <= situation.device.budget_bytes:
                self._groups = [together, *(group for group in others if group != other)]
                self._trial = (head, other)
                return

    def _judge(self, situation: Situation) -> None:
        """Undo the group that was on trial if its throughput is no higher than that of its parts in turns."""
        if self._trial is None:
            return
        (first, second), self._trial = self._trial, None
        together = (*first, *second)
        if together != self._groups[0]:
            return  # a job has ended
        if situation.throughput(together) <= max(situation.throughput(first), situation.throughput(second)):
            self._refused.add(frozenset(job.number for job in together))
            self._groups = [first, *self._groups[1:], second]


class ShiftedPairs:
    """Zico (Lim et al., ATC 2021): two jobs at a time share memory, shifted so that their peaks do not meet.

    An approximation that flatters Zico: two jobs are assumed to need both states and the larger of their activations,
    which is the least that a shift by half an iteration can reach if activations grow and shrink evenly. The waits
    that keep iterations shifted cost nothing. Jobs are taken in the order of arrival; the first that fits beside the
    present job joins it. Where no second job fits, jobs take turns.
    """

    name = trace_outcome.ZICO

    def choose(self, situation: Situation) -> Occupation:
        """Return the present jobs and, while there is one, the first that fits beside it."""
        chosen = [job for job in situation.runnable if job.number in situation.present]
        for job in situation.runnable:
            if len(chosen) < 2 and job not in chosen:
                together = (*chosen, job)
                if self.memory_bytes(together, situation.device) <= situation.device.budget_bytes:
                    chosen.append(job)
        return Occupation(jobs=tuple(chosen))

    def memory_bytes(self, jobs: Sequence[TraceJob], device: TraceDevice) -> int:
        """Return the states of all jobs and the largest activations of one."""
        states = sum(job.kind.state_bytes for job in jobs)
        return device.regions(states + max((job.kind.peak_bytes - job.kind.state_bytes for job in jobs), default=0))


def rivals(time_scale: float) -> tuple[Rival, ...]:
    """Return a new instance of each rival for a trace of this scale."""
    hour_ns = 3_600 * _SECOND_NS * time_scale
    return (
        FirstInFirstOut(),
        ShortestRemaining(),
        LeastAttained(thresholds_ns=tuple(hour_ns / 10 * 2**k for k in range(_QUEUES - 1))),
        # Gandiva's turns take a minute. A turn of less than 10 s would go into changes.
        Packing(quantum_ns=max(60 * _SECOND_NS * time_scale, 10 * _SECOND_NS)),
        ShiftedPairs(),
    )
