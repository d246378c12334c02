"""Runs several controllers with simulated devices in virtual time on one real catalog (catalog_controller.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from indb_tensile.bench.harness.virtual_time import virtual_catalog
from indb_tensile.bench.harness.virtual_time.catalog_controller import POLL_S, CatalogController
from indb_tensile.bench.harness.virtual_time.simulated_gangs import SharedState
from indb_tensile.bench.harness.virtual_time.trace_controller import VirtualTimeline
from indb_tensile.bench.harness.virtual_time.trace_device import TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.bench.harness.virtual_time.virtual_catalog import VirtualClock, VirtualSession
from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.pool import Pool

_SECOND_NS = 1_000_000_000
_EXITS_S = 30.0  # after the last end, the time for trainers to exit


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesJob:
    """A job that comes at `trace.arrival_ns` and trains on so many devices. Its number is set by the catalog."""

    trace: TraceJob
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCourse:
    """When a job was enqueued, when it began to train and when it ended, in seconds. None if the run ended before."""

    devices: int
    came_s: float
    began_s: float | None
    ended_s: float | None

    @property
    def waited_s(self) -> float | None:
        """The time until it trained."""
        return None if self.began_s is None else self.began_s - self.came_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOutcome:
    """What became of the jobs, in the order in which they came.

    `given_back` attempts of gangs ended before they trained. `half_gang_s` is the longest time for which a rank had
    memory while another rank of its job had none. `left_over` are the numbers of jobs, ranks and values of ranks that
    the catalog still has, and `held_bytes` is the memory that jobs still have.
    """

    courses: tuple[JobCourse, ...]
    given_back: int
    half_gang_s: float
    left_over: tuple[int, int, int]
    held_bytes: int

    @property
    def makespan_s(self) -> float:
        """The time of the last end."""
        return max(course.ended_s or 0.0 for course in self.courses)


def run_on_catalog(
    dsn: str,
    pool: Pool,
    device: TraceDevice,
    jobs: Sequence[DevicesJob],
    *,
    controllers: int,
    until_s: float | None = None,
) -> CatalogOutcome:
    """Run all jobs to their ends, or until a time. `dsn` is a superuser's, to a database with a catalog of its own.

    Each controller begins with `pool` and has a device like `device`.
    """
    return _Run(dsn, pool, device, jobs, controllers).run(until_s)


class _Run:
    def __init__(
        self, dsn: str, pool: Pool, device: TraceDevice, jobs: Sequence[DevicesJob], controllers: int
    ) -> None:
        virtual_catalog.use_virtual_time(dsn)
        self._clock = VirtualClock()
        self._timeline = VirtualTimeline()
        self._shared = SharedState(notify=self._notify)
        self._session = VirtualSession(dsn, self._clock)
        self._controllers = [
            CatalogController(pool, device, self._timeline, self._shared, self._session) for _ in range(controllers)
        ]
        self._jobs = jobs
        self._ids: list[JobId] = []
        for job in jobs:
            self._timeline.at(job.trace.arrival_ns, partial(self._arrive, job))
        for number, controller in enumerate(self._controllers):
            controller.begin(number * POLL_S / controllers)

    def run(self, until_s: float | None) -> CatalogOutcome:
        with self._session:
            while len(self._shared.ended_s) < len(self._jobs):
                if not self._step(inf if until_s is None else until_s):
                    return self._outcome()
            end_s = self._clock.now_s + _EXITS_S
            while self._step(end_s):
                pass
            return self._outcome()

    def _step(self, until_s: float) -> bool:
        """Let the next things happen. Return whether that was before this time."""
        next_ns = min(self._timeline.next_ns, *(c.here.next_change_ns() for c in self._controllers))
        if next_ns > until_s * _SECOND_NS:
            return False
        self._clock.now_s = next_ns / _SECOND_NS
        for controller in self._controllers:
            controller.advance(next_ns)
        self._timeline.run_until(next_ns)
        return True

    def _arrive(self, job: DevicesJob) -> None:
        number = self._session.run(lambda connection: virtual_catalog.enqueue(connection, job.devices))
        self._ids.append(number)
        self._shared.jobs[number] = replace(job.trace, number=number)
        self._shared.left[number] = job.trace.steps
        self._notify()

    def _notify(self) -> None:
        for controller in self._controllers:
            controller.look()

    def _outcome(self) -> CatalogOutcome:
        shared = self._shared
        return CatalogOutcome(
            courses=tuple(
                JobCourse(
                    devices=job.devices,
                    came_s=job.trace.arrival_ns / _SECOND_NS,
                    began_s=shared.began_s.get(number),
                    ended_s=shared.ended_s.get(number),
                )
                for job, number in zip(self._jobs, self._ids, strict=False)
            ),
            given_back=shared.given_back,
            half_gang_s=max(shared.half_gang_s, default=0.0),
            left_over=self._session.run(virtual_catalog.left_over),
            held_bytes=sum(controller.pool.held_bytes for controller in self._controllers),
        )
