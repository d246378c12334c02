"""A job's iteration as a load over time, and the loads of several jobs together.

Zico (Lim et al., section 5) schedules jobs by what they hold over time, and so does offsets.py: operators, tensors
and copies no longer matter there, only how many bytes a job holds during each operator and how long that takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import load, peak, resident_at_start
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.simulate import EventKind, JobRun, timeline
from indb_tensile.scheduler.workload import Workload

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One job's iteration: what it holds and how long it takes by operator, and what it holds between iterations.

    That is the least that it holds: a job that has not begun yet is then nowhere in others' way.
    """

    load_bytes: tuple[int, ...]
    duration_ns: tuple[int, ...]
    idle_bytes: int

    def __post_init__(self) -> None:
        if not self.load_bytes or len(self.load_bytes) != len(self.duration_ns) or min(self.duration_ns) <= 0:
            raise InvariantError(f"cycle: {len(self.load_bytes)} loads, {len(self.duration_ns)} positive durations")
        if self.idle_bytes > min(self.load_bytes):
            raise InvariantError(f"cycle: {self.idle_bytes} bytes between iterations, {min(self.load_bytes)} within")

    @property
    def period_ns(self) -> int:
        """How long an iteration takes alone."""
        return sum(self.duration_ns)

    @property
    def peak_bytes(self) -> int:
        """The most that the job holds."""
        return max(self.load_bytes)


def cycle(run: JobRun, link: Link) -> Cycle:
    """A job's iteration under its plan, with the waits that it has alone on the link."""
    graph = effective(run.graph, run.plan)
    duration = list(effective_latency(run.latency_ns, run.plan))
    events = timeline((run,), link)
    for event in events:
        if event.kind is EventKind.UPLOAD:
            duration[event.operator] = 0
    for event in events:
        if event.kind in (EventKind.UPLOAD, EventKind.LATE_OUT, EventKind.LATE_IN):
            duration[event.operator] += event.end_ns - event.start_ns
    held = load(run.graph, run.plan)
    home = sum(graph.tensors[t].size_bytes for t in resident_at_start(run.graph, run.plan))
    idle_bytes = min(home, held[-1])  # what comes back with the first operator is not there before it
    return Cycle(
        load_bytes=tuple(max(idle_bytes, load_bytes) for load_bytes in held),
        duration_ns=tuple(max(1, ns) for ns in duration),
        idle_bytes=idle_bytes,
    )


def cycle_of(workload: Workload, plans: Sequence[Plan], link: Link) -> Cycle:
    """A job's training step under its plans.

    Its other graphs run between iterations, and pass no gates; what they need may be held at any time.
    """
    own = cycle(JobRun(graph=workload.graphs[0], plan=plans[0], latency_ns=workload.latency_ns[0]), link)
    others = [peak(graph, plan) for graph, plan in zip(workload.graphs[1:], plans[1:], strict=True)]
    least = max((own.idle_bytes, *others))
    held = tuple(max(least, load_bytes) for load_bytes in own.load_bytes)
    return Cycle(load_bytes=held, duration_ns=own.duration_ns, idle_bytes=least)


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes over time: `bytes[k]` from `times_ns[k]` on; the first time is before everything."""

    times_ns: Ints
    bytes: Ints

    def at(self, times_ns: Ints) -> Ints:
        """Bytes at these times."""
        return np.asarray(self.bytes[np.searchsorted(self.times_ns, times_ns, side="right") - 1], dtype=np.int64)


def curve(cycles: Sequence[Cycle], started: Sequence[tuple[int, int]]) -> Curve:
    """The loads of all these jobs together, of which those (start, job) run and the rest of the time is idle."""
    times, changes = [np.array([-(2**62)])], [np.array([sum(c.idle_bytes for c in cycles)])]
    for start_ns, job in started:
        held = np.array([cycles[job].idle_bytes, *cycles[job].load_bytes, cycles[job].idle_bytes], dtype=np.int64)
        times.append(start_ns + np.array([0, *accumulate(cycles[job].duration_ns)], dtype=np.int64))
        changes.append(np.diff(held))
    at, change = np.concatenate(times), np.concatenate(changes)
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True)  # of what changes at one time only the sum counts
    return Curve(at[last], total[last])
