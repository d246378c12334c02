"""The simulator: computes the time and memory of a set of plans on one device with two copy lanes.

A discrete-event simulation of any number of jobs, each of which repeats its training step. At boundary k a job queues
the copies to the host of tensors that operator k - 1 accessed last, and waits for the copies whose memory is given
back at k. It then queues the copies back that start at k, waits for those that operator k needs, and runs operator k.
On each lane the copies of one job run in order, and the jobs share the lane equally (copy_flow.py). Between giving
memory back and taking it, a job waits at its gates if it has any (schedule.py).

Exchanges with other devices have a lane of their own, the network's, which no other job uses. An exchange begins when
the operator that starts it has ended, or the exchange before it has, and the job waits for its end at the operator
that needs it.

An upload occupies the in-lane, and its job waits for it. If the trainer uploads the next batch ahead and the plan has
room, the upload is queued in the iteration before, and the job waits for the rest of it. The batch is assumed to have
been collected by then. The room is that of the plan's loads; its placement may leave the room a little later.

Residency changes only at the plan's boundaries, so the peak follows from the plan (peak.py). The simulation computes
time, and attributes every nanosecond during which a job does not compute to its cause.
"""

import heapq
from collections.abc import Sequence

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.copy_flow import Copy, Flow
from indb_tensile.scheduler.timing.gate_passing import ClosedGate, gates_of, whole_rounds
from indb_tensile.scheduler.timing.iteration_stops import iterations_together
from indb_tensile.scheduler.timing.job_runs import Compute, Event, Forecast, JobRun
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulated_job import MOST_TOGETHER, SimulatedJob, Turns

# iterations of the slowest job before the measurement starts, so that the lanes' backlog is that of steady state
_WARM_UP = 2
_MEASURED = 6  # iterations of the slowest job that are measured
# Iterations within which the backlog of a single job's lanes repeats. Otherwise the later half is averaged.
_MOST_ALONE = 24


def simulate(
    runs: Sequence[JobRun],
    link: Link,
    *,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
    cache: PlanCache | None = None,
) -> tuple[Forecast, ...]:
    """Run all jobs from their home states until the pattern repeats. Return each job's mean iteration.

    A single job runs until its lanes' backlog repeats at an iteration's start, which makes the figures exact. Several
    jobs never repeat exactly; they run until the slowest has been measured for some iterations. `schedules` refer to
    jobs by their position among the runs. Raises InvariantError if jobs wait for each other forever.
    """
    every = compute is Compute.TURNS and len(runs) > 1
    kept = PlanCache() if cache is None else cache
    stretches: tuple[int, ...] = ()
    if compute is Compute.OVERLAP and not schedules:
        jobs = [(run.latency_ns, run.plan, effective(run.graph, run.plan, kept)) for run in runs]
        stretches = iterations_together(jobs, link)
    engine = _Engine(runs, link, compute, every=every, schedules=schedules, cache=kept, stretches=stretches)
    if len(runs) == 1:
        engine.run_alone()
    else:
        engine.run_together(whole_rounds(schedules, _MEASURED))
    return tuple(job.forecast(kept) for job in engine.jobs)


def timeline(
    runs: Sequence[JobRun],
    link: Link,
    *,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
    cache: PlanCache | None = None,
) -> tuple[Event, ...]:
    """Return the events after the warm-up, for one iteration of the slowest job or for one round."""
    kept = PlanCache() if cache is None else cache
    engine = _Engine(runs, link, compute, every=True, schedules=schedules, cache=kept)
    for job in engine.jobs:
        job.noted = []
    start_ns, end_ns = engine.run_together(whole_rounds(schedules, 1))
    engine.finish_copies()
    events = (event for job in engine.jobs for event in job.events())
    shown = [e for e in events if e.end_ns > start_ns and e.start_ns < end_ns and e.end_ns > e.start_ns]
    return tuple(sorted(shown, key=lambda e: (e.start_ns, e.end_ns, e.job, e.kind, e.operator)))


class _Engine:
    """The event loop: the jobs, the lanes that they share, and the queue of jobs that act next."""

    def __init__(
        self,
        runs: Sequence[JobRun],
        link: Link,
        compute: Compute,
        *,
        every: bool,
        schedules: Sequence[Schedule],
        cache: PlanCache,
        stretches: Sequence[int] = (),
    ) -> None:
        counts = [len(effective(run.graph, run.plan, cache).operators) for run in runs]
        gates = gates_of(counts, schedules)
        self.jobs = [
            SimulatedJob(run, number, link, gates[number], every=every, cache=cache, stretch=stretch)
            for number, (run, stretch) in enumerate(zip(runs, stretches or (1,) * len(runs), strict=True))
        ]
        self._flow = Flow(link.duplex)
        turns = Turns() if compute is Compute.TURNS else None
        self._programs = [job.program(self._flow, turns, self.jobs) for job in self.jobs]
        self._shut: list[tuple[ClosedGate, int]] = []  # closed gates and the jobs that wait at them
        self._ready: list[tuple[float, int]] = [(0.0, number) for number in range(len(runs))]
        self._waiting: dict[Copy, int] = {}

    def run_alone(self) -> None:
        """Run until the lanes' backlog at an iteration's start equals that of an earlier iteration."""
        (job,) = self.jobs
        seen: dict[tuple[float, ...], int] = {}
        while len(job.marks) <= _MOST_ALONE:
            before = len(job.marks)
            self._step()
            if len(job.marks) > before:
                state = job.backlog()
                if state in seen:
                    job.window = (seen[state], before)
                    return
                seen[state] = before
        job.window = (_MOST_ALONE // 2, _MOST_ALONE)

    def run_together(self, measured: int) -> tuple[float, float]:
        """Run until every job has been measured for this many iterations after its warm-up. Return the start and end
        of the measured time.
        """
        last = _WARM_UP + measured
        # Other jobs may wait for all rounds in which the slowest job is measured, and for a few more.
        for job in self.jobs:
            job.most = max(MOST_TOGETHER, (last + len(self.jobs) + 1) * job.gates.iterations)
        for job in self.jobs:
            while len(job.marks) <= last:
                self._step()
        start_ns = max(job.marks[_WARM_UP][0] for job in self.jobs)
        for job in self.jobs:
            first = sum(mark[0] < start_ns for mark in job.marks)
            first, end = min(first, len(job.marks) - 2), len(job.marks) - 1
            # The iterations of a round differ, so whole rounds are measured.
            rounds = (end - first) // job.gates.iterations
            job.window = (first, first + rounds * job.gates.iterations if rounds else end)
        return start_ns, max(job.marks[last][0] for job in self.jobs)

    def finish_copies(self) -> None:
        """Complete all queued copies."""
        while (next_ns := self._flow.next_ns()) < float("inf"):
            self._flow.advance(next_ns)

    def _step(self) -> None:
        """Let the earliest job act, after all copies that are done before."""
        while self._waiting and (not self._ready or self._flow.next_ns() <= self._ready[0][0]):
            self._advance(self._flow.next_ns())
        if not self._ready:
            waiting = ", ".join(f"{number} for {closed.job}" for closed, number in self._shut)
            raise InvariantError(f"all jobs wait at gates for each other: {waiting}")
        time_ns, number = heapq.heappop(self._ready)
        self._advance(time_ns)  # also completes a copy that ends exactly at this time
        job = self.jobs[number]
        waited_for = next(self._programs[number])
        if isinstance(waited_for, ClosedGate):
            self._shut.append((waited_for, number))
        elif waited_for is not None:
            waited_for.awaited = True
            self._waiting[waited_for] = number
        elif len(job.marks) <= job.most:
            heapq.heappush(self._ready, (job.now_ns, number))
        if self._shut:
            self._open(job)

    def _advance(self, to_ns: float) -> None:
        """Advance the copies to this time, and make the jobs ready that waited for completed ones."""
        for copy in self._flow.advance(to_ns):
            heapq.heappush(self._ready, (copy.done_ns, self._waiting.pop(copy)))

    def _open(self, job: SimulatedJob) -> None:
        """Open the gates that waited for this job to reach its present boundary."""
        boundary, time_ns = job.reached
        opened = [(c, waiting_job) for c, waiting_job in self._shut if c.job == job.number and c.boundary <= boundary]
        for closed, waiting_job in opened:
            closed.opened_ns = time_ns
            heapq.heappush(self._ready, (time_ns, waiting_job))
            self._shut.remove((closed, waiting_job))
