"""Compute when each job may start an iteration so that the sum of the jobs' loads keeps to a budget.

After Zico's time shift (Lim et al., "Zico: Efficient GPU Memory Sharing for Concurrent DNN Training", section 5):
before each iteration a job waits for the least time after which its load, during the whole iteration, fits beside the
rest of the other jobs' iterations. Zico does this for two jobs; here the number of jobs is free, because no step of
the method depends on it. An iteration whose start is settled is never moved: a job that asks later is scheduled
around that iteration.

Jobs whose operators take turns on one device slow each other down alike. All running jobs thus advance at the same
pace, and the operators that run at the same time do not depend on the number of running jobs. The schedule is
therefore made in *pace*: nanoseconds of work as if alone. Clock time follows from the number of jobs that run at each
moment.

Jobs keep to these starts only where they wait for each other: gates.py computes the operators at which they do.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from indb_tensile.scheduler.phases.gates import Round, gates, unrolled_starts
from indb_tensile.scheduler.phases.load_cycle import Cycle, LoadCurve, curve, cycle
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.schedule import Gate, Schedule

__all__ = ["Cycle", "Gate", "Shift", "cycle", "interleave", "least_budget", "least_start"]

# The starts of each job within which a schedule has to repeat. A job with more iterations than this beside one of the
# longest job's is not phased, because a round would hold all of them.
_MOST_STARTS = 32
_ASKED = 16  # operators that do not fit, for which the least delay is computed in one step
_MOST_OF_LONGEST = 8  # the most iterations of the longest job in a round
# The gain of density that makes one more iteration of all jobs in a round worth while: every iteration adds gates.
# Jobs that take turns gain little from running side by side. Chosen by hand.
_LITTLE: Mapping[Compute, float] = MappingProxyType({Compute.OVERLAP: 0.005, Compute.TURNS: 0.05})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A schedule that repeats every `round_ns`. Times are clock times from the round's start.

    A job whose iterations are far shorter than the longest job's counts at its peak all the time and has no gates; it
    starts once. If that does not fit, all jobs take turns by iteration.
    """

    start_ns: tuple[tuple[int, ...], ...]  # by job, the start of each of its iterations in a round
    delay_ns: tuple[int, ...]  # by job, its wait in a round: the time shifts
    gates: tuple[Gate, ...]
    round_ns: int
    peak_bytes: int  # of the sum of all loads
    density: float = 0.0  # the mean number of iterations that run side by side, if each were as fast as alone

    def schedule(self, jobs: Sequence[int], budget_bytes: int) -> Schedule:
        """Return the schedule that enforces this shift, for jobs with these ids."""
        iterations = tuple(len(starts) for starts in self.start_ns)
        return Schedule(jobs=tuple(jobs), iterations=iterations, gates=self.gates, budget_bytes=budget_bytes)


def interleave(
    cycles: Sequence[Cycle],
    *,
    budget_bytes: int,
    compute: Compute = Compute.TURNS,
    progress_ns: Sequence[int | None] = (),
) -> Shift | Infeasible:
    """Return the repeating schedule in which every iteration starts as soon as it fits.

    `progress_ns` says how far each job is in an iteration that is already under way (None: no iteration), if the jobs
    or the budget change while they run. Such an iteration is not stopped, whatever the budget.
    """
    needed = least_budget(cycles)
    if needed > budget_bytes:
        reason = f"one job's iteration beside the memory that {len(cycles) - 1} others keep between iterations"
        return Infeasible(needed_bytes=needed, budget_bytes=budget_bytes, reason=reason)
    if not cycles:
        return Shift(start_ns=(), delay_ns=(), gates=(), round_ns=0, peak_bytes=0)
    progress = tuple(progress_ns) or (None,) * len(cycles)
    phased = _long_ones(cycles)
    if len(phased) < len(cycles):
        shift = _beside_short_ones(cycles, phased, budget_bytes, compute, progress)
        if isinstance(shift, Shift):
            return shift
        cycles = exclusive(cycles, budget_bytes)
    repeating = _Starts(cycles, budget_bytes, progress).repeating()
    rounds = [*([repeating] if repeating is not None else []), *_rounds(cycles, budget_bytes)]
    return _shift(cycles, _best(cycles, rounds, _LITTLE[compute]), budget_bytes, compute)


def exclusive(cycles: Sequence[Cycle], budget_bytes: int) -> list[Cycle]:
    """Return the jobs as if each iteration took all memory that the other jobs leave, so that no two run side by
    side.

    A job that needs even more stays as it is.
    """
    idle = sum(own.idle_bytes for own in cycles)
    rest = [max(own.peak_bytes, budget_bytes - (idle - own.idle_bytes)) for own in cycles]
    return [replace(own, load_bytes=(most,) * len(own.load_bytes)) for own, most in zip(cycles, rest, strict=True)]


def least_budget(cycles: Sequence[Cycle]) -> int:
    """Return the least budget of all jobs together: one job at a time runs, the others keep their load between
    iterations.
    """
    idle = sum(c.idle_bytes for c in cycles)
    return max((idle - c.idle_bytes + c.peak_bytes for c in cycles), default=0)


# --- jobs so short that they are left alone ----------------------------------------------------------------------


def _long_ones(cycles: Sequence[Cycle]) -> list[int]:
    """Return the jobs to phase. A round would have too many iterations of shorter jobs, which usually need little
    memory.
    """
    longest_ns = max(own.period_ns for own in cycles)
    return [job for job, own in enumerate(cycles) if own.period_ns * _MOST_STARTS >= longest_ns]


def _beside_short_ones(
    cycles: Sequence[Cycle],
    phased: Sequence[int],
    budget_bytes: int,
    compute: Compute,
    progress_ns: Sequence[int | None],
) -> Shift | Infeasible:
    """Return a schedule of the longer jobs in the memory that short jobs leave at their peaks. Short
    jobs run freely.
    """
    short_bytes = sum(own.peak_bytes for job, own in enumerate(cycles) if job not in phased)
    shift = interleave(
        [cycles[job] for job in phased],
        budget_bytes=budget_bytes - short_bytes,
        compute=compute,
        progress_ns=[progress_ns[job] for job in phased],
    )
    if isinstance(shift, Infeasible):
        return shift
    place = {job: number for number, job in enumerate(phased)}
    return Shift(
        start_ns=tuple(shift.start_ns[place[job]] if job in place else (0,) for job in range(len(cycles))),
        delay_ns=tuple(shift.delay_ns[place[job]] if job in place else 0 for job in range(len(cycles))),
        gates=tuple(replace(g, job=phased[g.job], after_job=phased[g.after_job]) for g in shift.gates),
        round_ns=shift.round_ns,
        peak_bytes=shift.peak_bytes + short_bytes,
        density=shift.density,
    )


# --- the least delay -------------------------------------------------------------------------------------------


def least_start(own: Cycle, others: LoadCurve, from_ns: int, budget_bytes: int) -> int:
    """Return the first time from which on this job's iteration fits beside the other jobs' load (Zico's equation 1).

    If it does not fit, the start is delayed exactly until the other jobs' load has come down to the room that remains
    at the first conflict, and the test is repeated.
    """
    offset = np.array([0, *accumulate(own.duration_ns)], dtype=np.int64)
    begin, end = offset[:-1], offset[1:]
    room = budget_bytes - np.array(own.load_bytes, dtype=np.int64)
    start_ns = from_ns
    while True:
        later = start_ns
        first = np.searchsorted(others.times_ns, begin + start_ns, side="right") - 1
        stop = np.searchsorted(others.times_ns, end + start_ns, side="left")
        beside = np.append(others.bytes, 0)  # an end for the last range
        most = np.maximum.reduceat(beside, np.stack((first, stop), axis=1).ravel())[::2]
        places = np.flatnonzero(most > room)
        for place in places[:: 1 + len(places) // _ASKED].tolist():
            over = others.bytes[first[place] : stop[place]] > room[place]
            last = int(first[place]) + int(np.flatnonzero(over)[-1])
            fits = others.bytes[last:] <= room[place]
            later = max(later, int(others.times_ns[last + int(np.argmax(fits))]) - int(begin[place]))
        if later == start_ns:
            return start_ns
        start_ns = later


# --- the schedule ----------------------------------------------------------------------------------------------


class _Starts:
    """Settles the starts of iterations one after the other, in the order in which jobs ask for them."""

    def __init__(self, cycles: Sequence[Cycle], budget_bytes: int, progress_ns: Sequence[int | None]) -> None:
        self._cycles = cycles
        self._budget = budget_bytes
        self.started: list[tuple[int, int]] = []
        self._last = [0] * len(cycles)  # the latest start of each job
        self._running: list[tuple[int, int]] = []
        self._asking: list[tuple[int, int]] = []
        for job, done_ns in enumerate(progress_ns):
            if done_ns is not None:
                self._running.append((-done_ns, job))
                self._last[job] = -done_ns
            heappush(self._asking, (0 if done_ns is None else cycles[job].period_ns - done_ns, job))

    def settle(self) -> tuple[int, int]:
        """Settle the next iteration's start of the job that asks next. Return the start and the job."""
        now_ns, job = heappop(self._asking)
        self._running = [(s, j) for s, j in self._running if s + self._cycles[j].period_ns > now_ns]
        without = [c if number != job else _nothing(c) for number, c in enumerate(self._cycles)]
        others = curve(without, [(s, j) for s, j in self._running if j != job])
        start_ns = least_start(self._cycles[job], others, now_ns, self._budget)
        self.started.append((start_ns, job))
        self._running.append((start_ns, job))
        self._last[job] = start_ns
        heappush(self._asking, (start_ns + self._cycles[job].period_ns, job))
        return start_ns, job

    def repeating(self) -> Round | None:
        """Settle starts until the jobs' relative positions repeat. Return None if they never do."""
        seen: dict[tuple[int, ...], tuple[int, int]] = {}
        for _ in range(_MOST_STARTS * len(self._cycles)):
            start_ns, job = self.settle()
            if job == 0 and len({j for _, j in self.started}) == len(self._cycles):
                state = tuple(last - start_ns for last in self._last)
                if state in seen:
                    return self._round(*seen[state], start_ns)
                seen[state] = (len(self.started), start_ns)
        return None

    def _round(self, settled: int, first_ns: int, stop_ns: int) -> Round:
        """Return the starts settled since the same state. A start far ahead represents one start in each round."""
        length_ns = stop_ns - first_ns
        inside = sorted((first_ns + (s - first_ns) % length_ns, j) for s, j in self.started[settled:])
        return Round(tuple(inside), first_ns, length_ns)


def _nothing(own: Cycle) -> Cycle:
    return Cycle(load_bytes=(0,) * len(own.load_bytes), duration_ns=own.duration_ns, idle_bytes=0)


def _rounds(cycles: Sequence[Cycle], budget_bytes: int) -> Iterator[Round]:
    """Yield schedules that begin anew every few iterations of the longest job, when all jobs are done."""
    longest = max(range(len(cycles)), key=lambda job: (cycles[job].period_ns, -job))
    for most in range(1, _MOST_OF_LONGEST + 1):
        starts = _Starts(cycles, budget_bytes, (None,) * len(cycles))
        while sum(job == longest for _, job in starts.started) < most or len({j for _, j in starts.started}) < len(
            cycles
        ):
            starts.settle()
        end_ns = max(s + cycles[j].period_ns for s, j in starts.started)
        yield Round(tuple(sorted(starts.started)), 0, end_ns)


def _best(cycles: Sequence[Cycle], rounds: Sequence[Round], little: float) -> Round:
    """Return the round with the highest density. Each further iteration of every job has to gain `little`, because it
    has gates of its own.
    """
    return max(
        rounds,
        key=lambda candidate: _density(cycles, candidate) * (1 - little * len(candidate.started) / len(cycles)),
    )


def _density(cycles: Sequence[Cycle], planned: Round) -> float:
    return sum(cycles[job].period_ns for _, job in planned.started) / planned.length_ns


# --- the shift in clock time -------------------------------------------------------------------------------------


def _shift(cycles: Sequence[Cycle], planned: Round, budget_bytes: int, compute: Compute) -> Shift:
    clock = _Clock(cycles, planned, compute)
    starts: list[list[int]] = [[] for _ in cycles]
    for start_ns, job in planned.started:
        starts[job].append(clock.at(start_ns))
    busy = [
        sum(clock.at(s + cycles[j].period_ns) - clock.at(s) for s, j in planned.started if j == job)
        for job in range(len(cycles))
    ]
    together = curve(cycles, unrolled_starts(planned, max(c.period_ns for c in cycles)))
    inside = (together.times_ns >= planned.first_ns) & (together.times_ns < planned.first_ns + planned.length_ns)
    return Shift(
        start_ns=tuple(map(tuple, starts)),
        delay_ns=tuple(clock.round_ns - ns for ns in busy),
        gates=gates(cycles, planned, budget_bytes),
        round_ns=clock.round_ns,
        peak_bytes=int(together.bytes[inside].max()),
        density=_density(cycles, planned),
    )


class _Clock:
    """Convert pace to clock time. If n running jobs take turns, one nanosecond of pace takes n of clock time."""

    def __init__(self, cycles: Sequence[Cycle], planned: Round, compute: Compute) -> None:
        self._first_ns, self._length_ns = planned.first_ns, planned.length_ns
        changes: dict[int, int] = {0: 0, planned.length_ns: 0}
        for start_ns, job in unrolled_starts(planned, max(c.period_ns for c in cycles)):
            for time_ns, change in ((start_ns, 1), (start_ns + cycles[job].period_ns, -1)):
                inside = min(max(time_ns - planned.first_ns, 0), planned.length_ns)
                changes[inside] = changes.get(inside, 0) + change
        self._times = sorted(changes)
        running = [*accumulate(changes[time] for time in self._times)]
        spans = [b - a for a, b in zip(self._times, self._times[1:], strict=False)]
        self._slower = [max(1, n) if compute is Compute.TURNS else 1 for n in running]
        self._clock = [0, *accumulate(s * n for s, n in zip(spans, self._slower, strict=False))]
        self.round_ns = self._clock[-1]

    def at(self, pace_ns: int) -> int:
        """Return the clock time since the round's start. A pace past the round's end gives a time in a
        later round.
        """
        rounds, rest_ns = divmod(pace_ns - self._first_ns, self._length_ns)
        place = int(np.searchsorted(self._times, rest_ns, side="right")) - 1
        return rounds * self.round_ns + self._clock[place] + (rest_ns - self._times[place]) * self._slower[place]
