"""The device of `bench trace` in virtual time: how fast jobs really train side by side, and what changes cost.

A set of jobs trains by the formula by which admission foretells it (scheduler/completion/set_forecasts.py), with
other numbers, which admission has to learn: contention is larger than assumed, each job's operators take
`TraceJob.pace` times as long as foretold, and the slowdown of each job of each set is multiplied by a factor that is
drawn for this set (no job becomes faster than alone). So the benchmark judges decisions under wrong numbers. It does
not judge the formula; `bench share` does.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf

from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import TradeOff

_SECOND_NS = 1_000_000_000
HOST_BYTES_PER_S = 12_000_000_000
_REST = 1e-9  # remaining steps of a job that count as none: floating-point errors are that large


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDevice:
    """The device as it truly is.

    `prepare_ns` passes while a job's trainer reads the table and captures the step; the device is not needed for it.
    `hand_over_ns` passes between the end of a job and the memory being free for another, and again before a job that
    was away trains: its process exits, or records its graphs anew. `startup_ns` passes before a job's first step, as
    does the time to copy its state, and `closing_ns` between its last step and its end; a job then computes nothing.
    """

    budget_bytes: int
    contention: Contention
    region_bytes: int = 16 << 20
    host_bytes_per_s: int = HOST_BYTES_PER_S
    prepare_ns: int = _SECOND_NS
    hand_over_ns: int = 100_000_000
    startup_ns: int = 0
    closing_ns: int = 0
    error: float = 0.0
    seed: int = 0
    _drawn: dict[tuple[int, ...], tuple[float, ...]] = field(default_factory=dict, compare=False, repr=False)

    def steps_ns(self, jobs: Sequence[tuple[TraceJob, TradeOff]]) -> list[float]:
        """Return the true time of a step of each of these jobs side by side, under these plans with true times."""
        slowdowns = self._slowdowns([job for job, _ in jobs])
        times = [point.beside_others_ns(slowdown) for (_, point), slowdown in zip(jobs, slowdowns, strict=True)]
        return _with_lanes([point for _, point in jobs], times)

    def compute_ns(self, jobs: Sequence[tuple[TraceJob, TradeOff]]) -> list[float]:
        """Return the time that each job's operators take of a step, which a trainer measures."""
        slowdowns = self._slowdowns([job for job, _ in jobs])
        return [point.compute_ns * slowdown for (_, point), slowdown in zip(jobs, slowdowns, strict=True)]

    def move_ns(self, job: TraceJob) -> float:
        """Return the time to copy the job's state to the host or back."""
        return job.kind.state_bytes / self.host_bytes_per_s * _SECOND_NS

    def regions(self, size_bytes: int) -> int:
        """Round up to whole regions, in bytes."""
        return -(-size_bytes // self.region_bytes) * self.region_bytes

    def _slowdowns(self, jobs: Sequence[TraceJob]) -> tuple[float, ...]:
        """Return by how much longer the operators of each job of this set take than alone."""
        numbers = tuple(job.number for job in jobs)
        if len(numbers) < 2:
            return (1.0,) * len(numbers)
        if numbers not in self._drawn:
            slowdown = self.contention.slowdown(len(numbers))
            self._drawn[numbers] = tuple(max(1.0, slowdown * self._factor(job, numbers)) for job in numbers)
        return self._drawn[numbers]

    def _factor(self, job: int, numbers: tuple[int, ...]) -> float:
        """Return the part of a job's slowdown in this set that contention alone does not explain."""
        chance = random.Random(f"{self.seed} {job} {sorted(numbers)}")  # noqa: S311 - a fixed number is wanted
        return exp(chance.gauss(0.0, self.error))


@dataclass(slots=True, kw_only=True)
class _Resident:
    """A job on the device. It trains from `trains_from_ns` on; until then its state is copied."""

    job: TraceJob
    number: int  # of its plan
    point: TradeOff
    trains_from_ns: float


class JobsOnDevice:
    """The jobs on the device, and the steps that all jobs have left, in virtual time."""

    def __init__(self, device: TraceDevice, jobs: Iterable[TraceJob]) -> None:
        self.device = device
        self.now_ns = 0.0
        self.left = {job.number: job.steps for job in jobs}
        self.attained_ns = dict.fromkeys(self.left, 0.0)  # time on the device
        self.peak_bytes = 0
        self._residents: dict[int, _Resident] = {}
        self._times: dict[int, float] | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The jobs on the device."""
        return tuple(self._residents)

    def expect(self, number: int, steps_left: float) -> None:
        """Note a job that comes to this device with so many steps left."""
        self.left[number] = steps_left
        self.attained_ns.setdefault(number, 0.0)

    def plan_of(self, number: int) -> int | None:
        """Return the number of the plan that this job follows; None if it is not on the device."""
        resident = self._residents.get(number)
        return None if resident is None else resident.number

    def put(self, job: TraceJob, plan: int, trains_from_ns: float) -> None:
        """Put the job on the device under one of its plans, or give it another plan."""
        self._residents[job.number] = _Resident(
            job=job, number=plan, point=job.point(plan), trains_from_ns=trains_from_ns
        )
        self._times = None

    def take(self, number: int) -> TraceJob:
        """Take a job off the device."""
        self._times = None
        return self._residents.pop(number).job

    def use_memory(self, used_bytes: int) -> None:
        """Record the memory that the jobs have now. Raise InvariantError if the device does not have it."""
        self.peak_bytes = max(self.peak_bytes, used_bytes)
        if used_bytes > self.device.budget_bytes:
            raise InvariantError(
                f"jobs {sorted(self._residents)} have {used_bytes} bytes of {self.device.budget_bytes}"
            )

    def step_ns(self) -> dict[int, float]:
        """Return the time of a step of each job that trains now."""
        if self._times is None:
            training = self._training()
            times = self.device.steps_ns([(resident.job, resident.point) for resident in training])
            self._times = {resident.job.number: ns for resident, ns in zip(training, times, strict=True)}
        return self._times

    def compute_ns(self) -> dict[int, float]:
        """Return the time of the operators of a step of each job that trains now."""
        training = self._training()
        times = self.device.compute_ns([(resident.job, resident.point) for resident in training])
        return {resident.job.number: ns for resident, ns in zip(training, times, strict=True)}

    def next_change_ns(self) -> float:
        """Return the time at which a job ends or begins to train, if nothing else happens before."""
        ends = [self.now_ns + self.left[number] * ns for number, ns in self.step_ns().items()]
        begins = [r.trains_from_ns for r in self._residents.values() if r.trains_from_ns > self.now_ns]
        return min([*ends, *begins], default=inf)

    def advance(self, to_ns: float) -> tuple[int, ...]:
        """Train until then, which must not be later than the next change. Return the jobs that are done."""
        passed_ns = to_ns - self.now_ns
        done = []
        for number, ns in self.step_ns().items():
            self.attained_ns[number] += passed_ns
            self.left[number] -= passed_ns / ns
            if self.left[number] <= _REST * self._residents[number].job.steps or self.left[number] * ns < 1.0:
                self.left[number] = 0.0
                done.append(number)
        if any(self.now_ns < r.trains_from_ns <= to_ns for r in self._residents.values()):
            self._times = None
        self.now_ns = to_ns
        return tuple(done)

    def _training(self) -> list[_Resident]:
        present = [r for r in self._residents.values() if r.trains_from_ns <= self.now_ns]
        return sorted(present, key=lambda resident: resident.job.number)


def _with_lanes(points: Sequence[TradeOff], times: Sequence[float]) -> list[float]:
    """Slow down the jobs that copy until the two lanes can carry the copies of all."""
    rates = list(zip(points, times, strict=True))
    out_use = sum(point.out_ns / ns for point, ns in rates)
    in_use = sum(point.in_ns / ns for point, ns in rates)
    return [ns * max(1.0, out_use if point.out_ns else 0.0, in_use if point.in_ns else 0.0) for point, ns in rates]
