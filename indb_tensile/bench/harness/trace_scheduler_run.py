"""Runs admission in virtual time: the real `decide()`, driven by arrivals, captures, adoptions, progress and ends.

The controller's part is played here without processes. A spare trainer is ready after `_FORK_NS`; a claim is answered
from the queue at once; a capture takes the device's `prepare_ns`; memory that is given back is free at once; a first
plan is adopted when the state has been copied to the device, later plans at the next iteration's boundary; a trainer
that has finished exits after `hand_over_ns`. Progress is reported before every other event, as a controller gets it
many times a second. Measurements are reported soon after a change of the set and then ever more rarely, because equal
measurements teach nothing new. Ticks tell the time before every event, because quanta end at certain
times. A job that finds no place in host memory saves a checkpoint, goes back to the queue, and later continues.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from itertools import count
from math import inf

from indb_tensile.bench.harness.trace_device import JobsOnDevice, TraceDevice
from indb_tensile.bench.harness.trace_outcome import Outcome
from indb_tensile.bench.harness.trace_planner import TracePlanner, foretold_ns, graph_of_job, plan_number
from indb_tensile.bench.harness.trace_workload import TraceJob
from indb_tensile.errors import InvariantError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, JobSpec, Relation, Task
from indb_tensile.scheduler.admission.admission_orders import (
    AskPlanner,
    AssignJob,
    ClaimNext,
    EndTrainer,
    FailJob,
    Order,
    ParkJob,
    RequeueJob,
    SendPlans,
    SetGrant,
    SpawnTrainer,
)
from indb_tensile.scheduler.admission.decide import decide
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Capture,
    Claim,
    Event,
    Exit,
    Failure,
    Finish,
    Holding,
    Measurement,
    Parking,
    QueueChange,
    SpareReady,
    StepsLeft,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Pool, TrainerId

_FORK_NS = 35_000_000  # `bench start`
_FIRST_REPORT_NS = 1_000_000_000
_LAST_REPORT_NS = 600_000_000_000
_SECOND_NS = 1_000_000_000
_NO_ROOM = Fault(sqlstate="53200", message="the job could not be parked in host memory")
_RUNNABLE = (JobStage.WAITING, JobStage.RUNNING)
_COMING_OR_GOING = (Capture, Finish, Exit)  # after these events of a job, admission asks anew which jobs should run

ClaimOrder = Callable[[TraceJob], tuple[float, ...]]


def claim_order(job: TraceJob) -> tuple[float, ...]:
    """Return the place of a job in the queue: higher priorities first, then the order of arrival (claim_job)."""
    return (-job.priority, job.number)


def run_admission(
    pool: Pool,
    jobs: Sequence[TraceJob],
    device: TraceDevice,
    *,
    order: ClaimOrder = claim_order,
    most_ends: int | None = None,
) -> Outcome:
    """Run all jobs to their ends, or until `most_ends` of them have ended."""
    return _Run(pool, jobs, device, order).run(len(jobs) if most_ends is None else most_ends)


class _Run:
    def __init__(self, pool: Pool, jobs: Sequence[TraceJob], device: TraceDevice, order: ClaimOrder) -> None:
        self.pool = pool
        self.device = device
        self.order = order
        self.trace = {JobId(job.number): job for job in jobs}
        self.planner = TracePlanner(self.trace, pool.region_bytes)
        self.here = JobsOnDevice(device, jobs)
        self.queue: set[JobId] = set()
        self.events: list[tuple[float, int, Event | Callable[[], None]]] = []
        self.numbers = count()
        self.ends_ns: dict[int, float] = {}
        self.decisions: list[tuple[int, int]] = []
        self.changes = 0
        self.report = 0  # the number of the last change of the set, whose reports are the valid ones
        for job in jobs:
            self._at(job.arrival_ns, lambda job=job: self._arrive(job))  # type: ignore[misc]

    def run(self, most_ends: int) -> Outcome:
        self._send(Tick())
        while len(self.ends_ns) < most_ends:
            event_ns = self.events[0][0] if self.events else inf
            next_ns = min(event_ns, self.here.next_change_ns())
            if next_ns == inf:
                stages = {member.job.job: member.stage.value for member in self.pool.members}
                raise InvariantError(f"admission runs none of its jobs {stages}, and {len(self.queue)} are queued")
            for number in self.here.advance(next_ns):
                self._finish(JobId(number))
            while self.events and self.events[0][0] <= next_ns:
                _, _, event = heapq.heappop(self.events)
                if callable(event):
                    event()
                else:
                    self._send(event)
        return Outcome(
            ends_ns=self.ends_ns,
            attained_ns=self.here.attained_ns,
            changes=self.changes,
            peak_bytes=self.here.peak_bytes,
            decisions=tuple(self.decisions),
        )

    def _at(self, at_ns: float, event: Event | Callable[[], None]) -> None:
        heapq.heappush(self.events, (at_ns, next(self.numbers), event))

    def _after(self, delay_ns: float, event: Event | Callable[[], None]) -> None:
        self._at(self.here.now_ns + delay_ns, event)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _send(self, event: Event) -> None:
        """Tell admission the progress of all jobs and then this event, and carry out its orders."""
        self._decide(Tick(now_s=self.here.now_ns / _SECOND_NS))
        for member in self.pool.at(JobStage.RUNNING, JobStage.PARKING):
            if member.trainer is not None and member.steps_left != self.here.left[member.job.job]:
                self._decide(StepsLeft(trainer=member.trainer, steps_left=self.here.left[member.job.job]))
        self._decide(event)

    def _decide(self, event: Event) -> None:
        calls, planned_ns, begin_ns = self.planner.calls, self.planner.took_ns, time.process_time_ns()
        self.pool, orders = decide(self.pool, event, self.planner)
        took_ns = time.process_time_ns() - begin_ns - (self.planner.took_ns - planned_ns)
        if self.planner.calls > calls or isinstance(event, _COMING_OR_GOING):
            self.decisions.append((len(self.pool.at(*_RUNNABLE)), took_ns))
        self.here.use_memory(self.pool.held_bytes)
        for order in orders:
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        match order:
            case SpawnTrainer(trainer=trainer):
                self._after(_FORK_NS, SpareReady(trainer=trainer))
            case ClaimNext(passed_over=passed_over):
                self._after(0, lambda: self._claim(passed_over))
            case AssignJob(trainer=trainer, job=job):
                self._after(self.device.prepare_ns, self._capture(trainer, self.trace[job.job]))
            case SetGrant(trainer=trainer, grant_bytes=grant_bytes):
                self._after(0, Holding(trainer=trainer, held_bytes=grant_bytes))
            case SendPlans():
                self._adopt(order)
            case ParkJob():
                self._park(order)
            case EndTrainer(trainer=trainer):
                self._after(self.device.hand_over_ns, Exit(trainer=trainer, code=0))
            case RequeueJob(job=number):
                self.queue.add(number)
                self._after(0, QueueChange())
            case FailJob() | AskPlanner():
                raise InvariantError(f"admission orders {order}, which cannot happen in this simulation")
            case _:
                pass  # what is written to the catalog

    # --- a job's way -------------------------------------------------------------------------------------------

    def _arrive(self, job: TraceJob) -> None:
        self.queue.add(JobId(job.number))
        self._send(QueueChange())

    def _claim(self, passed_over: frozenset[int]) -> None:
        candidates = [self.trace[job] for job in self.queue if self.trace[job].owner not in passed_over]
        if not candidates:
            self._send(Claim(job=None))
            return
        job = min(candidates, key=self.order)
        self.queue.remove(JobId(job.number))
        self._send(Claim(job=_claimed(job)))

    def _capture(self, trainer: TrainerId, job: TraceJob) -> Capture:
        return Capture(
            trainer=trainer,
            graphs=(graph_of_job(job),),
            latency_ns=foretold_ns(job),
            unknown=0,
            steps=self.here.left[job.number],
        )

    def _adopt(self, order: SendPlans) -> None:
        """Follow the plan from the next iteration's boundary on. A first plan begins with copying the state."""
        member = self.pool.of_trainer(order.trainer)
        if member is None:
            raise InvariantError(f"trainer {order.trainer} was sent a plan and has no job")
        job = self.trace[member.job.job]
        delay_ns = self.here.step_ns().get(job.number)
        if delay_ns is None:
            delay_ns = self.device.move_ns(job) + (self.device.hand_over_ns if member.parked else 0)
        else:
            self.changes += 1

        def adopt() -> None:
            if job.number not in self.ends_ns:
                self.here.put(job, plan_number(order.plans), self.here.now_ns)
                self._changed()
            self._send(Adoption(trainer=order.trainer, generation=order.generation))

        self._after(delay_ns, adopt)

    def _park(self, order: ParkJob) -> None:
        """Leave the device at the next iteration's boundary, and copy the state to the host, or to a checkpoint."""
        member = self.pool.of_trainer(order.trainer)
        if member is None:
            raise InvariantError(f"trainer {order.trainer} was told to park and has no job")
        job = self.trace[member.job.job]

        def leave() -> None:
            if job.number in self.ends_ns:
                return
            self.here.take(job.number)
            self.changes += 1
            self._changed()
            left: Event = Parking(trainer=order.trainer, number=order.number, host_bytes=job.kind.state_bytes)
            if not order.in_memory:
                left = Failure(trainer=order.trainer, fault=_NO_ROOM, retry=True, blame=Blame.NOBODY)
            self._after(self.device.move_ns(job), left)

        self._after(self.here.step_ns().get(job.number, 0.0), leave)

    def _finish(self, job: JobId) -> None:
        self.ends_ns[job] = self.here.now_ns
        self.here.take(job)
        member = self.pool.of_job(job)
        if member is None or member.trainer is None:
            raise InvariantError(f"job {job} trained without a trainer")
        self._changed()
        self._send(Finish(trainer=member.trainer))

    # --- measurements ------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """The set has changed: measure it anew."""
        self.report += 1
        self._schedule(_FIRST_REPORT_NS, self.report)

    def _schedule(self, delay_ns: float, report: int) -> None:
        def measure() -> None:
            if report == self.report:
                self._measure()
                self._schedule(min(2 * delay_ns, _LAST_REPORT_NS), report)

        if self.here.numbers:
            self._after(delay_ns, measure)

    def _measure(self) -> None:
        steps_ns, compute_ns = self.here.step_ns(), self.here.compute_ns()
        for number, step_ns in steps_ns.items():
            member = self.pool.of_job(JobId(number))
            if member is None or member.trainer is None:
                continue
            self._send(
                Measurement(
                    trainer=member.trainer,
                    generation=member.adopted,
                    latency_ns=(round(compute_ns[number]),),
                    iteration_ns=round(step_ns),
                    stall_ns=max(0, round(step_ns - compute_ns[number])),
                    peak_bytes=member.planned_bytes,
                )
            )
        self._send(Tick())


def _claimed(job: TraceJob) -> ClaimedJob:
    spec = JobSpec(
        model=f"model {job.number}",
        relation=Relation(oid=job.number, schema="public", name="t"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": "mlp"},
    )
    return ClaimedJob(
        job=JobId(job.number),
        claim=ClaimToken(job.number),
        attempt=1,
        owner_oid=job.owner,
        spec=spec,
        priority=job.priority,
    )
