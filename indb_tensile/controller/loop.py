"""The controller's loop: facts from everywhere are folded into decide() one after another, and its orders done.

Nothing is decided here. Facts come from trainers (messages, exits), from the heartbeat (cancels, lost claims), from
notifications, signals and the clock; orders go to trainers, to the device's ledger and, through the membership, to
the catalog.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from indb_tensile.catalog import notify
from indb_tensile.catalog.notify import Wake
from indb_tensile.controller.heartbeat import Heard, Held, LeaseOver, Outdated
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.membership import Membership
from indb_tensile.controller.memory import DeviceMemory
from indb_tensile.controller.messages import fact
from indb_tensile.controller.records import Records
from indb_tensile.controller.signs import Signs
from indb_tensile.controller.thinking import ThinkingPlanner
from indb_tensile.controller.trainers import Ended, Gone, Said, Trainers
from indb_tensile.errors import (
    CatalogVersionError,
    DatabaseError,
    DeviceError,
    DeviceLostError,
    InvariantError,
    TensileError,
)
from indb_tensile.job import Blame, ClaimedJob, WorkerId
from indb_tensile.link import (
    Adopt,
    Assign,
    Calibrate,
    Failed,
    Message,
    Progressed,
)
from indb_tensile.scheduler.admission.decide import decide, finished
from indb_tensile.scheduler.admission.facts import (
    Answered,
    BudgetChange,
    CancelRequest,
    Claim,
    ClaimLoss,
    Event,
    Exit,
    Failure,
    Holding,
    Overrun,
    PlacesChange,
    QueueChange,
    Silence,
    Stall,
    Stop,
    Tick,
)
from indb_tensile.scheduler.admission.orders import (
    AskPlanner,
    AssignJob,
    ClaimNext,
    EndTrainer,
    GrantCalibration,
    Manner,
    Order,
    ReleaseTrainer,
    SendPlans,
    SetGrant,
    SpawnTrainer,
)
from indb_tensile.scheduler.admission.pool import Fault, Lost, PlanReason, Pool, Stage, TrainerId
from indb_tensile.scheduler.admission.staff import holdup

log = logging.getLogger("controller")

Mail = Heard | LeaseOver | Outdated | Wake | BudgetChange | Answered | Stop

_DEVICE_S = 1.0  # between two looks at the device's use
_FAREWELL_S = 10.0  # for the last writes of a controller that stops while the database is away


class Beating(Protocol):
    """The part of the heartbeat that the loop uses."""

    def serve(self, worker: WorkerId, registered_s: float) -> None:
        """Beat for this worker."""
        ...

    def nudge(self) -> None:
        """Beat now."""
        ...


class Serving(Protocol):
    """The part of the service process that the loop uses."""

    def serve(self, worker: WorkerId | None) -> None:
        """Serve this worker from now on."""
        ...

    def attend(self, now_s: float) -> None:
        """Start it where it is due."""
        ...


class Controller:
    """One controller. `held` is read by the heartbeat's thread, all else belongs to the one that runs `run`."""

    def __init__(
        self,
        *,
        pool: Pool,
        planner: ThinkingPlanner,
        records: Records,
        trainers: Trainers,
        memory: DeviceMemory,
        mailbox: Mailbox[Mail],
        service: Serving,
        poll_s: float,
        answer_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._planner = planner
        self._membership = Membership(records)
        self._trainers = trainers
        self._memory = memory
        self._mailbox = mailbox
        self._service = service
        self._poll_s = poll_s
        self._answer_s = answer_s
        self._signs = Signs(answer_s)
        self._outdated: CatalogVersionError | None = None
        self._clock_s = clock_s
        self._events: deque[Event] = deque()
        self._held: Held = {}
        self._tick_at_s = 0.0
        self._device_at_s = 0.0
        self._stop_at_s: float | None = None
        self._overrun_at_s: dict[TrainerId, float] = {}
        self._planning_ns = 0  # of the latest plans
        self._owing_since_s: dict[tuple[TrainerId, int], float] = {}

    @property
    def pool(self) -> Pool:
        """What is known now."""
        return self._pool

    def held(self) -> Held:
        """The claims that this worker says it has."""
        return self._held

    def run(self, heartbeat: Beating) -> None:
        """Work until a Stop was posted and everybody is gone.

        Raises CatalogVersionError, in the same good order, where the catalog was upgraded meanwhile.
        """
        if self._membership.worker is None:
            self._join(heartbeat)
        in_order = False
        try:
            while not self._done():
                self.turn(heartbeat)
            in_order = True
        finally:  # where the loop ended by a fault, its trainers end first
            self._trainers.kill_all()
            self._membership.leave(in_order=in_order)
        if self._outdated is not None:
            raise self._outdated

    def turn(self, heartbeat: Beating) -> None:
        """Wait for what comes next, look at everything once."""
        now_s = self._clock_s()
        wake_at_s = now_s if self._membership.more_to_claim else min(self._tick_at_s, self._device_at_s)
        for told in self._trainers.poll(max(0.0, wake_at_s - now_s)):
            self._hear(told)
        for mail in self._mailbox.take():
            self._open(mail, heartbeat)
        if (
            self._membership.take_more_to_claim()
        ):  # once for each turn: cancels and exits are heard between two claims
            self.fold(QueueChange())
        now_s = self._clock_s()
        if now_s >= self._tick_at_s:
            self._tick_at_s = now_s + self._poll_s
            self._tick(heartbeat)
        if now_s >= self._device_at_s:
            self._device_at_s = now_s + _DEVICE_S
            self._membership.record_device(*self._memory.use(self._pool))
            self._membership.record_holdup(holdup(self._pool))
            self._fit_device()
        self._service.attend(now_s)
        self._membership.flush()

    def _fit_device(self) -> None:
        """Other programs use the device too: jobs shrink, or wait, while they have more of it."""
        room = self._memory.room()
        if room is None or self._stop_at_s is not None:
            return
        if room.max_jobs != self._pool.max_jobs:
            log.warning("the device has room for %d jobs at a time now", room.max_jobs)
            self.fold(PlacesChange(max_jobs=room.max_jobs))
        if room.budget_bytes != self._pool.budget_bytes:
            log.warning("other programs' memory leaves jobs a budget of %d bytes now", room.budget_bytes)
            self.fold(BudgetChange(budget_bytes=room.budget_bytes))

    def fold(self, event: Event) -> None:
        """Let decide() see this event, do what it orders, and so on with what comes of that."""
        self._events.append(event)
        self._fold_waiting()

    def _fold_waiting(self) -> None:
        while self._events:
            event = self._events.popleft()
            self._pool, orders = decide(self._pool, event, self._planner)
            if self._pool.asked and self._pool.due is not PlanReason.DRIFT:
                self._planner.hurry()
            if self._pool.due is None and (planning_ns := self._planner.forget()):
                self._planning_ns = planning_ns
            self._held = {m.job.job: m.job.claim for m in self._pool.members if not isinstance(m.outcome, Lost)}
            for order in orders:
                log.debug("%s", order)
                self._perform(order)

    # --- facts -------------------------------------------------------------------------------------------------

    def _hear(self, told: Said | Ended | Gone) -> None:
        match told:
            case Ended(trainer=trainer):
                self._memory.revoke(trainer)  # before anything else of it is killed: none of it may change the ledger
                self._trainers.bury(trainer)
            case Gone(trainer=trainer, code=code, ending=ending):
                log.info("trainer %s ended with code %s (%s)", trainer, code, ending)
                memory = {"peak_bytes": told.peak_bytes, "memory_bytes": told.memory_bytes}
                self.fold(Exit(trainer=trainer, code=code, ending=ending, **memory))
            case Said(trainer=trainer, message=message):
                self._listen(trainer, message)

    def _listen(self, trainer: TrainerId, message: Message) -> None:
        longest_s = message.longest_s if isinstance(message, Progressed) else 0.0
        self._signs.hear(trainer, self._clock_s(), longest_s)
        if isinstance(message, Failed) and message.lost:
            log.error("the device is lost to trainer %s: %s %s", trainer, message.message, message.hint)
        try:
            event = fact(trainer, message)
        except InvariantError as error:
            log.error("trainer %s is killed: %s", trainer, error.message)  # noqa: TRY400 - one line says it all
            self.fold(Failure(trainer=trainer, fault=Fault.of(error), retry=True))
            self._trainers.end(trainer, Manner.KILL)
            return
        if event is not None:
            self._events.append(event)
        self._reclaim()
        self._fold_waiting()

    def _open(self, mail: Mail, heartbeat: Beating) -> None:
        match mail:
            case Stop():
                log.info("stopping: jobs go back to the queue")
                self._stop_at_s = self._clock_s()
                self.fold(mail)
            case Answered():
                self.fold(mail)
            case BudgetChange(budget_bytes=budget_bytes):
                budget_bytes = self._memory.allow(budget_bytes)
                log.info("the budget is %s bytes now", budget_bytes)
                self.fold(BudgetChange(budget_bytes=budget_bytes))
            case Wake(kind=notify.CANCEL):
                heartbeat.nudge()
            case Wake(kind=notify.QUEUED):
                self.fold(QueueChange())
            case Heard():
                self._heard(mail)
            case LeaseOver(worker=worker, reason=reason) if worker == self._membership.worker:
                self._lose_lease(reason)
            case Outdated(error=error):
                self._end_outdated(error)
            case Wake() | LeaseOver():
                pass

    def _heard(self, heard: Heard) -> None:
        for job in heard.beat.cancelled:
            self.fold(CancelRequest(job=job))
        for job in heard.beat.lost:
            self.fold(ClaimLoss(claim=heard.held[job]))
        self._membership.give_back(heard.beat.strays, {m.job.claim for m in self._pool.members})

    def _lose_lease(self, reason: str) -> None:
        log.error("worker %s has lost its lease: %s; its trainers were stopped", self._membership.worker, reason)
        self._membership.expire()
        self._service.serve(None)
        for member in self._pool.members:
            self.fold(ClaimLoss(claim=member.job.claim))
        self._tick_at_s = self._clock_s()

    def _end_outdated(self, error: CatalogVersionError) -> None:
        """Stop: trainers end now, jobs are handed back as far as that can still be written, and `run` raises this."""
        if self._stop_at_s is not None:
            return
        log.error("stopping: %s", error.message)
        self._outdated = error
        self._stop_at_s = self._clock_s()
        self.fold(Stop())

    def _tick(self, heartbeat: Beating) -> None:
        if self._membership.worker is None and self._stop_at_s is None:
            try:
                self._join(heartbeat)
            except CatalogVersionError as error:
                self._end_outdated(error)
                return
            except DatabaseError as error:
                self._membership.miss(error)
                return
        self._membership.rescue()
        self._stop_overruns()
        self._stop_silent()
        self._stop_stalled()
        self._reclaim()
        self.fold(Tick())

    def _stop_overruns(self) -> None:
        now_s = self._clock_s()
        for trainer, at_s in tuple(self._overrun_at_s.items()):
            if at_s <= now_s:
                del self._overrun_at_s[trainer]
                self.fold(Overrun(trainer=trainer))

    def _stop_silent(self) -> None:
        now_s = self._clock_s()
        self._owing_since_s = {debt: self._owing_since_s.get(debt, now_s) for debt in self._pool.owing}
        for debt, since_s in sorted(self._owing_since_s.items()):
            if since_s + self._answer_s <= now_s:
                trainer, _ = debt
                log.error("trainer %s has not answered for %g s and is killed", trainer, self._answer_s)
                self._owing_since_s[debt] = now_s
                self.fold(Silence(trainer=trainer))

    def _stop_stalled(self) -> None:
        training = [m.trainer for m in self._pool.at(Stage.RUNNING) if m.trainer is not None and m.adopted]
        for trainer, silent_s in self._signs.stalled(training, self._clock_s()):
            log.error("trainer %s has made no progress for %.0f s and is killed", trainer, silent_s)
            self.fold(Stall(trainer=trainer, silent_s=silent_s))

    def _join(self, heartbeat: Beating) -> None:
        registered_s = time.monotonic()
        worker = self._membership.join()
        heartbeat.serve(worker, registered_s)
        self._service.serve(worker)

    def _done(self) -> bool:
        if self._stop_at_s is None or not finished(self._pool):
            return False
        return self._membership.written or self._clock_s() > self._stop_at_s + _FAREWELL_S

    # --- orders ------------------------------------------------------------------------------------------------

    def _perform(self, order: Order) -> None:
        match order:
            case AskPlanner(question=question):
                self._planner.ask(question)
            case SpawnTrainer(trainer=trainer):
                self._trainers.spawn(trainer)
            case ClaimNext(passed_over=passed_over):
                self._events.append(Claim(job=self._membership.claim(passed_over)))
            case AssignJob(trainer=trainer, job=job):
                self._assign(trainer, job)
            case SetGrant(trainer=trainer, grant_bytes=grant_bytes):
                self._grant(trainer, grant_bytes)
            case GrantCalibration(trainer=trainer, grant_bytes=grant_bytes):
                self._trainers.send(trainer, Calibrate(grant_bytes=grant_bytes))
            case SendPlans():
                self._trainers.send(
                    order.trainer,
                    Adopt(generation=order.generation, grant_bytes=order.grant_bytes, plans=order.plans),
                )
            case EndTrainer(trainer=trainer, manner=manner):
                self._trainers.end(trainer, manner)
            case ReleaseTrainer(trainer=trainer):
                self._overrun_at_s.pop(trainer, None)
                self._release(trainer)
            case _:
                self._membership.write(order, planning_ns=self._planning_ns)

    def _assign(self, trainer: TrainerId, job: ClaimedJob) -> None:
        try:
            slot, epoch = self._memory.claim(trainer, self._trainers.pid(trainer))
        except DeviceError as error:
            self._give_up(trainer, error)
            return
        if job.spec.max_runtime_s is not None:
            self._overrun_at_s[trainer] = self._clock_s() + job.spec.max_runtime_s
        self._trainers.send(trainer, Assign(job=job, slot=slot, epoch=epoch, budget_bytes=self._pool.budget_bytes))

    def _grant(self, trainer: TrainerId, grant_bytes: int) -> None:
        try:
            held_bytes = self._memory.grant(trainer, grant_bytes)
        except DeviceError as error:
            self._give_up(trainer, error)
            return
        member = self._pool.of_trainer(trainer)
        if member is not None and held_bytes is not None and held_bytes != member.held_bytes:
            self._events.append(Holding(trainer=trainer, held_bytes=held_bytes))

    def _reclaim(self) -> None:
        """Ask again for what lowered grants left in use: it comes back when nothing lies there any more."""
        for member in self._pool.members:
            if member.trainer is not None and member.held_bytes > member.granted_bytes:
                self._grant(member.trainer, member.granted_bytes)

    def _release(self, trainer: TrainerId) -> None:
        try:
            self._memory.release(trainer)
        except DeviceError as error:
            lost = "what trainer %s had of the device is nobody's until this controller starts again: %s"
            log.error(lost, trainer, error.message)  # noqa: TRY400 - one line says it all

    def _give_up(self, trainer: TrainerId, error: TensileError) -> None:
        """Something on our side of the device went wrong: another attempt may do better."""
        log.error("trainer %s: %s", trainer, error.message)
        lost = isinstance(error, DeviceLostError)
        fault = Fault.of(error)
        self._events.append(Failure(trainer=trainer, fault=fault, retry=True, lost=lost, blame=Blame.OTHERS))
        self._trainers.end(trainer, Manner.TERMINATE)
