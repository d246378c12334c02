"""The controller's loop: passes facts from all sources to decide() one after another, and has its orders carried out.

The loop decides nothing itself. Facts come from trainers (messages, exits), from the heartbeat (cancelled jobs, lost
claims), from notifications, signals and the clock. Orders go to trainers, to the device's ledger and to the catalog
(order_performer.py).
"""

import logging
import time
from collections import deque
from collections.abc import Callable

from indb_tensile.catalog import notify
from indb_tensile.catalog.notify import Notification
from indb_tensile.controller.answer_watch import AnswerWatch
from indb_tensile.controller.background_planner import BackgroundPlanner
from indb_tensile.controller.core_use import CoreUse
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.device_records import DeviceRecords
from indb_tensile.controller.heartbeat import BeatAnswered, Claims, LeaseOver, Outdated
from indb_tensile.controller.loop_partners import HeartbeatControl, ServiceControl
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.message_facts import fact
from indb_tensile.controller.order_performer import OrderPerformer
from indb_tensile.controller.progress_watch import ProgressWatch
from indb_tensile.controller.records import Records
from indb_tensile.controller.round_players import RoundPlayers
from indb_tensile.controller.runtime_limits import RuntimeLimits
from indb_tensile.controller.trainers import MessageReceived, ProcessEnded, TrainerGone, Trainers
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import CatalogVersionError, DatabaseError, DeviceError, InvariantError
from indb_tensile.messages import Failed, Message, Progressed
from indb_tensile.scheduler.admission.admission_orders import EndMethod
from indb_tensile.scheduler.admission.decide import decide, finished
from indb_tensile.scheduler.admission.events import (
    Answered,
    BudgetChange,
    CancelRequest,
    ClaimLoss,
    ContentionChange,
    Departure,
    Event,
    Exit,
    Failure,
    IdleDevice,
    Overrun,
    Parking,
    PauseChange,
    PlacesChange,
    PriorityChange,
    QueueChange,
    Silence,
    Stall,
    Stop,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Lost, PlanReason, Pool, TrainerId

log = logging.getLogger("controller")

Mail = BeatAnswered | LeaseOver | Outdated | Notification | BudgetChange | ContentionChange | Answered | Stop

_DEVICE_S = 1.0  # time between two readings of the device's use
_LAST_WRITES_S = 10.0  # time for the last catalog writes of a controller that stops while the database is away


class Controller:
    """The controller of one device.

    The heartbeat's thread calls `held`; only the thread of `run` uses anything else.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        planner: BackgroundPlanner,
        records: Records,
        trainers: Trainers,
        memory: DeviceMemory,
        rounds: RoundPlayers,
        mailbox: Mailbox[Mail],
        service: ServiceControl,
        poll_s: float,
        answer_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._planner = planner
        self._membership = WorkerRegistration(records)
        self._device_records = DeviceRecords(records)
        self._trainers = trainers
        self._memory = memory
        self._rounds = rounds
        self._mailbox = mailbox
        self._service = service
        self._poll_s = poll_s
        self._answers = AnswerWatch(answer_s)
        self._signs = ProgressWatch(answer_s)
        self._outdated: CatalogVersionError | None = None
        self._clock_s = clock_s
        self._events: deque[Event] = deque()
        self._claims: Claims = {}
        self._tick_at_s = self._device_at_s = 0.0
        self._stop_at_s: float | None = None
        self._limits = RuntimeLimits()
        self._core_use = CoreUse(pool.contention.taken_cores or None)
        self._performer = OrderPerformer(
            planner=planner,
            membership=self._membership,
            trainers=trainers,
            memory=memory,
            rounds=rounds,
            limits=self._limits,
        )

    @property
    def pool(self) -> Pool:
        """The current state of the scheduler's admission."""
        return self._pool

    def held(self) -> Claims:
        """Return the claims that this worker reports in its heartbeat."""
        return self._claims

    def run(self, heartbeat: HeartbeatControl) -> None:
        """Run until a Stop was posted and all trainers have ended.

        If the catalog was upgraded meanwhile, the loop stops in the same way and then raises CatalogVersionError.
        """
        if self._membership.worker is None:
            self._join(heartbeat)
        in_order = False
        try:
            while not self._done():
                self.turn(heartbeat)
            in_order = True
        finally:  # if the loop ended by a fault, its trainers end first
            self._trainers.kill_all()
            self._rounds.end()
            self._membership.leave(in_order=in_order)
        if self._outdated is not None:
            raise self._outdated

    def turn(self, heartbeat: HeartbeatControl) -> None:
        """Wait for the next event, then handle everything that has arrived, once."""
        now_s = self._clock_s()
        wake_at_s = now_s if self._membership.more_to_claim else min(self._tick_at_s, self._device_at_s)
        for report in self._trainers.poll(max(0.0, wake_at_s - now_s)):
            self._handle_report(report)
        for mail in self._mailbox.take():
            self._handle_mail(mail, heartbeat)
        # One claim for each turn, so that cancels and exits are handled between two claims.
        if self._membership.take_more_to_claim():
            self.fold(QueueChange())
        now_s = self._clock_s()
        if now_s >= self._tick_at_s:
            self._tick_at_s = now_s + self._poll_s
            self._tick(heartbeat)
        if now_s >= self._device_at_s:
            self._device_at_s = now_s + _DEVICE_S
            self._device_records.record(self._membership.worker, self._pool, *self._memory.use(self._pool))
            self._adjust_to_room()
        self._service.see_jobs(len(self._pool.members))
        self._service.attend(now_s)
        self._membership.flush()

    def _adjust_to_room(self) -> None:
        """Tell decide() if the memory that other programs leave on the device has changed.

        Jobs then shrink, or wait, while other programs use more of it. Regions that no job may have any more are
        released for other programs, and are created again before jobs may have more.
        """
        for trainer in sorted(self._memory.take_refusing()):
            if self._trainers.pid(trainer):
                error = DeviceError("the trainer does not follow a change of the device's regions")
                self.fold(self._performer.fail_trainer(trainer, error))
        self._memory.restore_regions()
        room = self._memory.room()
        if room is None or self._stop_at_s is not None:
            return
        if room.max_jobs != self._pool.max_jobs:
            log.warning("the device has room for %d jobs at a time now", room.max_jobs)
            self.fold(PlacesChange(max_jobs=room.max_jobs))
        if room.budget_bytes != self._pool.budget_bytes:
            log.warning(
                "memory of other programs and of ranks leaves jobs a budget of %d bytes now", room.budget_bytes
            )
            self.fold(BudgetChange(budget_bytes=room.budget_bytes))
        self._memory.fit_regions(room.regions_bytes)

    def fold(self, event: Event) -> None:
        """Pass the event to decide() and carry out its orders; repeat for the events that the orders cause."""
        self._events.append(event)
        self._fold_events()

    def _fold_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            self._pool, orders = decide(self._pool, event, self._planner)
            self._attend_planner()
            self._claims = {m.job.job: m.job.claim for m in self._pool.members if not isinstance(m.outcome, Lost)}
            for order in orders:
                log.debug("%s", order)
                caused = self._performer.perform(order, self._pool, self._clock_s())
                if caused is not None:
                    self._events.append(caused)

    def _attend_planner(self) -> None:
        """Cancel improvements that others wait for, and drop the planner's answers when nothing is due any more."""
        if self._pool.asked and self._pool.due not in (None, PlanReason.DRIFT):
            self._planner.cancel_improvements()
        if self._pool.due is None and not self._pool.asked:
            planning_ns = self._planner.forget()
            if planning_ns:
                self._performer.planning_ns = planning_ns

    # --- facts -------------------------------------------------------------------------------------------------

    def _handle_report(self, report: MessageReceived | ProcessEnded | TrainerGone) -> None:
        match report:
            case ProcessEnded(trainer=trainer):
                # The epoch ends before the rest of the group is killed: none of these may change the ledger any more.
                self._memory.revoke(trainer)
                self._trainers.reap(trainer)
            case TrainerGone(trainer=trainer, code=code, ending=ending):
                log.info("trainer %s ended with code %s (%s)", trainer, code, ending)
                memory = {"peak_bytes": report.peak_bytes, "memory_bytes": report.memory_bytes}
                self.fold(Exit(trainer=trainer, code=code, ending=ending, **memory))
            case MessageReceived(trainer=trainer, message=message):
                self._handle_message(trainer, message)

    def _handle_message(self, trainer: TrainerId, message: Message) -> None:
        longest_s = message.longest_s if isinstance(message, Progressed) else 0.0
        self._signs.hear(trainer, self._clock_s(), longest_s)
        if isinstance(message, Failed) and message.lost:
            log.error("trainer %s has lost the device: %s %s", trainer, message.message, message.hint)
        try:
            event = fact(trainer, message)
        except InvariantError as error:
            log.error("trainer %s is killed: %s", trainer, error.message)  # noqa: TRY400 - no traceback needed
            self.fold(Failure(trainer=trainer, fault=Fault.of(error), retry=True))
            self._trainers.end(trainer, EndMethod.KILL)
            return
        if isinstance(event, Parking):
            self._limits.pause(trainer, self._clock_s())
        if isinstance(event, Departure):
            self._device_at_s = self._clock_s()  # record the device now: a job that is published uses no memory of it
        if event is not None:
            self._events.append(event)
        self._events.extend(self._performer.lower_grants(self._pool))
        self._fold_events()

    def _handle_mail(self, mail: Mail, heartbeat: HeartbeatControl) -> None:
        match mail:
            case Stop():
                log.info("stopping: jobs return to the queue")
                self._stop_at_s = self._clock_s()
                self.fold(mail)
            case Answered() | ContentionChange():
                self.fold(mail)
            case BudgetChange(budget_bytes=budget_bytes):
                budget_bytes = self._memory.allow(budget_bytes)
                log.info("the budget is %s bytes now", budget_bytes)
                self.fold(BudgetChange(budget_bytes=budget_bytes))
            case Notification(kind=notify.CANCEL | notify.PAUSE | notify.PRIORITY):
                heartbeat.beat_now()
            case Notification(kind=notify.QUEUED):
                self.fold(QueueChange())
            case BeatAnswered():
                self._handle_beat(mail)
            case LeaseOver(worker=worker, reason=reason) if worker == self._membership.worker:
                self._lose_lease(reason)
            case Outdated(error=error):
                self._stop_outdated(error)
            case Notification() | LeaseOver():
                pass

    def _handle_beat(self, answer: BeatAnswered) -> None:
        paused = answer.beat.paused
        if paused is not None and set(paused) != {m.job.job for m in self._pool.members if m.paused}:
            self.fold(PauseChange(paused=frozenset(paused)))
        priorities = answer.beat.priorities
        changed = {m.job.job: priorities.get(m.job.job, m.job.priority) for m in self._pool.members}
        if any(changed[m.job.job] != m.job.priority for m in self._pool.members):
            self.fold(PriorityChange(priorities=changed))
        for job in answer.beat.cancelled:
            self.fold(CancelRequest(job=job))
        for job in answer.beat.lost:
            self.fold(ClaimLoss(claim=answer.claims[job]))
        for change in self._membership.new_steps(self._pool, answer.beat.published_steps):
            self.fold(change)
        if answer.beat.idle_bytes is not None or self._pool.idle_reports:
            self.fold(IdleDevice(budget_bytes=answer.beat.idle_bytes))
        self._membership.give_back(answer.beat.strays, {m.job.claim for m in self._pool.members})

    def _lose_lease(self, reason: str) -> None:
        log.error("worker %s has lost its lease: %s; its trainers were stopped", self._membership.worker, reason)
        self._membership.expire()
        self._service.serve(None)
        for member in self._pool.members:
            self.fold(ClaimLoss(claim=member.job.claim))
        self._tick_at_s = self._clock_s()

    def _stop_outdated(self, error: CatalogVersionError) -> None:
        """Stop because the catalog was upgraded.

        Trainers end now, jobs are returned to the queue as far as the catalog still accepts that, and `run` raises
        the error.
        """
        if self._stop_at_s is not None:
            return
        log.error("stopping: %s", error.message)
        self._outdated = error
        self._stop_at_s = self._clock_s()
        self.fold(Stop())

    def _tick(self, heartbeat: HeartbeatControl) -> None:
        if self._membership.worker is None and self._stop_at_s is None:
            try:
                self._join(heartbeat)
            except CatalogVersionError as error:
                self._stop_outdated(error)
                return
            except DatabaseError as error:
                self._membership.miss(error)
                return
        self._membership.rescue()
        self._stop_overruns()
        self._stop_silent()
        self._stop_stalled()
        self._events.extend(self._performer.lower_grants(self._pool))
        self._memory.refill_pool()
        now_s = self._clock_s()
        time_of_day = time.strftime("%H:%M:%S UTC", time.gmtime())
        taken_cores = self._core_use.measure(self._pool, self._trainers.pids(), now_s)
        self.fold(Tick(now_s=now_s, time_of_day=time_of_day, taken_cores=taken_cores))

    def _stop_overruns(self) -> None:
        for trainer in self._limits.take_exceeded(self._clock_s()):
            self.fold(Overrun(trainer=trainer))

    def _stop_silent(self) -> None:
        for trainer in self._answers.overdue(self._pool.owing, self._clock_s()):
            log.error("trainer %s has not answered for %g s and is killed", trainer, self._answers.limit_s)
            self.fold(Silence(trainer=trainer))

    def _stop_stalled(self) -> None:
        members = self._pool.at(JobStage.RUNNING, JobStage.CLOSING)
        training = [m.trainer for m in members if m.trainer is not None and m.adopted and not m.parked]
        for trainer, silent_s in self._signs.stalled(training, self._clock_s()):
            log.error("trainer %s has made no progress for %.0f s and is killed", trainer, silent_s)
            self.fold(Stall(trainer=trainer, silent_s=silent_s))

    def _join(self, heartbeat: HeartbeatControl) -> None:
        registered_s = time.monotonic()
        worker = self._membership.join()
        heartbeat.serve(worker, registered_s)
        self._service.serve(worker)

    def _done(self) -> bool:
        if self._stop_at_s is None or not finished(self._pool):
            return False
        return self._membership.written or self._clock_s() > self._stop_at_s + _LAST_WRITES_S
