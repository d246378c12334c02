"""One controller in virtual time: the real `decide()`, driven by captures, adoptions, progress and ends.

The controller's part is played here without processes. A spare trainer is ready after `_FORK_NS`; a capture takes the
device's `prepare_ns`; memory that is given back is free at once; a first plan is adopted when the state has been
copied to the device, later plans at the next iteration's boundary; a trainer that has finished exits after
`hand_over_ns`. Progress is reported before every other event, as a controller gets it many times a second.
Measurements are reported soon after a change of the set and then ever more rarely, because equal measurements teach
nothing new. Ticks tell the time before every event, because quanta end at certain times. A job that finds no place in
host memory saves a checkpoint, goes back to the queue, and later continues.

Subclasses say where jobs come from and where they go: from one queue in memory (trace_scheduler_run.py), or from the
catalog that several controllers share (catalog_controller.py).
"""

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from math import inf

from indb_tensile.bench.harness.virtual_time.trace_device import JobsOnDevice, TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_planner import TracePlanner, foretold_ns, graph_of_job, plan_number
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.errors import InvariantError
from indb_tensile.job import Blame, ClaimedJob, JobId
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
    Departure,
    Event,
    Exit,
    Failure,
    Finish,
    Holding,
    Measurement,
    Parking,
    SpareReady,
    StepsLeft,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Pool, TrainerId

_FORK_NS = 35_000_000  # `bench start`
_FIRST_REPORT_NS = 1_000_000_000
_LAST_REPORT_NS = 600_000_000_000
_SECOND_NS = 1_000_000_000
_SAVED = Fault(sqlstate="53200", message="the job left the device, and goes on from its checkpoint")
_RUNNABLE = (JobStage.WAITING, JobStage.RUNNING)
# After these events of a job, admission asks anew which jobs should run.
_COMING_OR_GOING = (Capture, Departure, Finish, Exit)


class VirtualTimeline:
    """What happens later, in the order of its times. What was planned first for one time happens first."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    @property
    def next_ns(self) -> float:
        """The time of the next entry; infinite if there is none."""
        return self._entries[0][0] if self._entries else inf

    def at(self, at_ns: float, action: Callable[[], None]) -> None:
        """Plan an action for a time."""
        heapq.heappush(self._entries, (at_ns, next(self._numbers), action))

    def run_until(self, to_ns: float) -> None:
        """Run the actions whose time has come, and those that they plan for no later time."""
        while self.next_ns <= to_ns:
            _, _, action = heapq.heappop(self._entries)
            action()


class TraceController(ABC):
    """The controller of one device. `jobs` has all jobs that it may claim, and `ends_ns` those that have ended."""

    def __init__(
        self, pool: Pool, device: TraceDevice, jobs: dict[JobId, TraceJob], timeline: VirtualTimeline
    ) -> None:
        self.pool = pool
        self.device = device
        self.jobs = jobs
        self.timeline = timeline
        self.planner = TracePlanner(jobs, pool.region_bytes)
        self.here = JobsOnDevice(device, jobs.values())
        self.ends_ns: dict[int, float] = {}
        self._trained: set[JobId] = set()  # jobs that have done their last step
        self.decisions: list[tuple[int, int]] = []
        self.changes = 0
        self._report = 0  # the number of the last change of the set, whose reports are the valid ones

    @abstractmethod
    def next_job(self, passed_over: frozenset[int]) -> ClaimedJob | None:
        """Claim the next job whose owner is not passed over."""

    @abstractmethod
    def take_back(self, order: RequeueJob) -> None:
        """Put a job back into the queue."""

    def advance(self, to_ns: float) -> None:
        """Train until then, which must not be later than the device's next change, and end what is done."""
        for number in self.here.advance(to_ns):
            self.finish(JobId(number))

    def after(self, delay_ns: float, event: Event | Callable[[], None]) -> None:
        """Plan an event of this controller, or an action."""
        action = event if callable(event) else lambda: self.send(event)
        self.timeline.at(self.here.now_ns + delay_ns, action)

    # --- decisions ---------------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
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
            self.carry_out(order)

    def carry_out(self, order: Order) -> None:
        """Carry out an order of admission."""
        match order:
            case SpawnTrainer(trainer=trainer):
                self.after(_FORK_NS, SpareReady(trainer=trainer))
            case ClaimNext(passed_over=passed_over):
                self.after(0, lambda: self.send(Claim(job=self.next_job(passed_over))))
            case AssignJob(trainer=trainer, job=job):
                self.prepare(trainer, job)
            case SetGrant(trainer=trainer, grant_bytes=grant_bytes):
                self.after(0, Holding(trainer=trainer, held_bytes=grant_bytes))
            case SendPlans():
                self._adopt(order)
            case ParkJob():
                self._park(order)
            case EndTrainer(trainer=trainer):
                self.end_trainer(trainer)
            case RequeueJob():
                self.take_back(order)
            case FailJob() | AskPlanner():
                raise InvariantError(f"admission orders {order}, which cannot happen in this simulation")
            case _:
                pass  # what is written to the catalog

    # --- a job's way -------------------------------------------------------------------------------------------

    def prepare(self, trainer: TrainerId, job: ClaimedJob) -> None:
        """Read the table and capture the step."""
        self.after(self.device.prepare_ns, self.capture(trainer, self.jobs[job.job]))

    def capture(self, trainer: TrainerId, job: TraceJob) -> Capture:
        """Return what the job's trainer has captured."""
        return Capture(
            trainer=trainer,
            graphs=(graph_of_job(job),),
            latency_ns=foretold_ns(job),
            unknown=0,
            steps=self.here.left[job.number],
        )

    def end_trainer(self, trainer: TrainerId) -> None:
        """Let the trainer exit."""
        self.after(self.device.hand_over_ns, Exit(trainer=trainer, code=0))

    def _adopt(self, order: SendPlans) -> None:
        """Follow the plan from the next iteration's boundary on. A first plan begins with copying the state."""
        member = self.pool.of_trainer(order.trainer)
        if member is None:
            raise InvariantError(f"trainer {order.trainer} was sent a plan and has no job")
        job = self.jobs[member.job.job]
        delay_ns, ordered_ns, starts = self.here.step_ns().get(job.number), self.here.now_ns, order.generation == 1
        if delay_ns is None:
            delay_ns = self.device.move_ns(job)
            delay_ns += self.device.hand_over_ns if member.parked else self.device.startup_ns
        else:
            self.changes += 1

        def adopt() -> None:
            if self.is_present(order.trainer):
                self.train(member.job, plan_number(order.plans))
            self.send(Adoption(trainer=order.trainer, generation=order.generation))
            if starts and (step_ns := self.here.step_ns().get(job.number)) is not None:
                self.after(step_ns, step)

        def step() -> None:
            left, took_ns = self.here.left[job.number], round(self.here.now_ns - ordered_ns)
            self.send(StepsLeft(trainer=order.trainer, steps_left=left, startup_ns=took_ns))

        self.after(delay_ns, adopt)

    def is_present(self, trainer: TrainerId) -> bool:
        """Return whether the trainer still has a job that has not ended."""
        member = self.pool.of_trainer(trainer)
        return member is not None and not self._has_trained(member.job.job)

    def _has_trained(self, job: JobId) -> bool:
        return job in self._trained or job in self.ends_ns

    def train(self, job: ClaimedJob, plan: int) -> None:
        """Put the job on the device under this plan, or let it go on under this plan."""
        self.here.put(self.jobs[job.job], plan, self.here.now_ns)
        self.changed()

    def _park(self, order: ParkJob) -> None:
        """Leave the device at the next iteration's boundary, and copy the state to the host, or to a checkpoint."""
        member = self.pool.of_trainer(order.trainer)
        if member is None:
            raise InvariantError(f"trainer {order.trainer} was told to park and has no job")
        job = self.jobs[member.job.job]

        def leave() -> None:
            if self._has_trained(member.job.job):
                return
            self.here.take(job.number)
            self.changes += 1
            self.changed()
            left: Event = Parking(trainer=order.trainer, number=order.number, host_bytes=job.kind.state_bytes)
            if order.elsewhere or not order.in_memory:
                left = Failure(trainer=order.trainer, fault=_SAVED, retry=True, blame=Blame.NOBODY)
            self.after(self.device.move_ns(job), left)

        self.after(self.here.step_ns().get(job.number, 0.0), leave)

    def finish(self, job: JobId) -> None:
        """The job has done its last step. It gives back its memory, and ends after `closing_ns`."""
        self._trained.add(job)
        self.here.take(job)
        member = self.pool.of_job(job)
        if member is None or member.trainer is None:
            raise InvariantError(f"job {job} trained without a trainer")
        self.changed()
        finish = Finish(trainer=member.trainer, closing_ns=self.device.closing_ns)

        def end() -> None:
            self.ends_ns[job] = self.here.now_ns
            self.send(finish)

        if self.device.closing_ns:
            self.send(Departure(trainer=member.trainer))
            self.after(self.device.closing_ns, end)
        else:
            end()

    # --- measurements ------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """The set has changed: measure it anew."""
        self._report += 1
        self._schedule(_FIRST_REPORT_NS, self._report)

    def _schedule(self, delay_ns: float, report: int) -> None:
        def measure() -> None:
            if report == self._report:
                self._measure()
                self._schedule(min(2 * delay_ns, _LAST_REPORT_NS), report)

        if self.here.numbers:
            self.after(delay_ns, measure)

    def _measure(self) -> None:
        steps_ns, compute_ns = self.here.step_ns(), self.here.compute_ns()
        for number, step_ns in steps_ns.items():
            member = self.pool.of_job(JobId(number))
            if member is None or member.trainer is None:
                continue
            self.send(
                Measurement(
                    trainer=member.trainer,
                    generation=member.adopted,
                    latency_ns=(round(compute_ns[number]),),
                    iteration_ns=round(step_ns),
                    stall_ns=max(0, round(step_ns - compute_ns[number])),
                    peak_bytes=member.planned_bytes,
                )
            )
        self.send(Tick())
