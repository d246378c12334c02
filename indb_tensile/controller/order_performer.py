"""Carries out the orders of decide(): at trainers, in the device's ledger, in rounds and in the catalog."""

import logging

from indb_tensile.controller.background_planner import BackgroundPlanner
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.records import Writing
from indb_tensile.controller.round_players import RoundPlayers
from indb_tensile.controller.runtime_limits import RuntimeLimits
from indb_tensile.controller.trainers import Trainers
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import DeviceError, DeviceLostError, TensileError
from indb_tensile.job import Blame, ClaimedJob
from indb_tensile.messages import Adopt, Assign, Calibrate, LeavePhases, Lend, Park
from indb_tensile.scheduler.admission.admission_orders import (
    AskPlanner,
    AssignJob,
    BeginRound,
    ClaimNext,
    EndMethod,
    EndRound,
    EndTrainer,
    FailJob,
    GrantCalibration,
    LeaveRound,
    LendForBatch,
    Order,
    ParkJob,
    PlayPart,
    PublishStep,
    ReleaseTrainer,
    RequeueJob,
    SendPlans,
    SetGrant,
    SetRoundPool,
    SetWaitsFor,
    SpawnTrainer,
)
from indb_tensile.scheduler.admission.events import Claim, Event, Failure, Holding
from indb_tensile.scheduler.admission.pool import Fault, Pool, TrainerId

log = logging.getLogger("controller")


class OrderPerformer:
    """Carries out one order at a time. Everything that it uses is shared with the loop.

    An order may cause an event, which the caller passes to decide(). `planning_ns` is the time that the planner took
    for the latest plans; it is written with them.
    """

    def __init__(
        self,
        *,
        planner: BackgroundPlanner,
        membership: WorkerRegistration,
        trainers: Trainers,
        memory: DeviceMemory,
        rounds: RoundPlayers,
        limits: RuntimeLimits,
    ) -> None:
        self._planner = planner
        self._membership = membership
        self._trainers = trainers
        self._memory = memory
        self._rounds = rounds
        self._limits = limits
        self.planning_ns = 0

    def perform(  # noqa: C901 - a table: one line per kind of order
        self, order: Order, pool: Pool, now_s: float
    ) -> Event | None:
        """Carry out the order of a decision that led to this pool, and return the event that it causes, if any."""
        match order:
            case AskPlanner(question=question):
                self._planner.ask(question)
            case SpawnTrainer(trainer=trainer):
                self._trainers.spawn(trainer)
            case ClaimNext(passed_over=passed_over):
                return Claim(job=self._membership.claim(passed_over))
            case AssignJob(trainer=trainer, job=job):
                return self._assign(trainer, job, pool.budget_bytes, now_s)
            case SetGrant(trainer=trainer, grant_bytes=grant_bytes):
                return self._grant(trainer, grant_bytes, pool)
            case GrantCalibration(trainer=trainer, grant_bytes=grant_bytes):
                self._trainers.send(trainer, Calibrate(grant_bytes=grant_bytes))
            case SendPlans():
                self._send_plans(order, now_s)
            case BeginRound(number=number, trainers=trainers, parts=parts):
                self._rounds.begin(number, {t: self._memory.slot(t) for t in trainers}, parts)
            case SetRoundPool(size_bytes=size_bytes):
                self._memory.set_pool(size_bytes)
            case PlayPart(trainer=trainer):
                self._rounds.play(trainer)
            case LeaveRound(trainer=trainer, number=number):
                self._trainers.send(trainer, LeavePhases(number=number))
            case EndRound():
                self._rounds.end()
            case ParkJob(trainer=trainer, number=number, in_memory=in_memory, elsewhere=elsewhere):
                self._trainers.send(trainer, Park(number=number, in_memory=in_memory, elsewhere=elsewhere))
            case LendForBatch(trainer=trainer, number=number, size_bytes=size_bytes):
                self._trainers.send(trainer, Lend(number=number, size_bytes=size_bytes))
            case EndTrainer(trainer=trainer, method=method):
                self._trainers.end(trainer, method)
            case ReleaseTrainer(trainer=trainer):
                self._release(trainer)
            case _ if not is_left_to_leader(order, pool):
                self._membership.write(order, planning_ns=self.planning_ns)
        return None

    def fail_trainer(self, trainer: TrainerId, error: TensileError) -> Failure:
        """End a trainer after a fault of the device or its ledger, and return its failure.

        Another attempt of its job may succeed.
        """
        log.error("trainer %s: %s", trainer, error.message)
        self._trainers.end(trainer, EndMethod.TERMINATE)
        lost = isinstance(error, DeviceLostError)
        return Failure(trainer=trainer, fault=Fault.of(error), retry=True, lost=lost, blame=Blame.OTHERS)

    def lower_grants(self, pool: Pool) -> tuple[Event, ...]:
        """Lower the ledger's grants again where regions beyond a lowered grant were still in use.

        The ledger takes such regions back once nothing is stored in them. Returns the events that this causes.
        """
        exceeding = [m for m in pool.members if m.trainer is not None and m.held_bytes > m.granted_bytes]
        events = [self._grant(m.trainer, m.granted_bytes, pool) for m in exceeding if m.trainer is not None]
        return tuple(event for event in events if event is not None)

    def _assign(self, trainer: TrainerId, job: ClaimedJob, budget_bytes: int, now_s: float) -> Failure | None:
        beside_bytes = 0 if job.gang is None else job.gang.connection_bytes
        try:
            slot, epoch = self._memory.claim(trainer, self._trainers.pid(trainer), beside_bytes)
        except DeviceError as error:
            return self.fail_trainer(trainer, error)
        if job.spec.max_runtime_s is not None:
            self._limits.start(trainer, job.spec.max_runtime_s - job.worked_s, now_s)
        self._trainers.send(trainer, Assign(job=job, slot=slot, epoch=epoch, budget_bytes=budget_bytes))
        return None

    def _grant(self, trainer: TrainerId, grant_bytes: int, pool: Pool) -> Event | None:
        try:
            held_bytes = self._memory.grant(trainer, grant_bytes)
        except DeviceError as error:
            return self.fail_trainer(trainer, error)
        member = pool.of_trainer(trainer)
        if member is None or held_bytes is None or held_bytes == member.held_bytes:
            return None
        return Holding(trainer=trainer, held_bytes=held_bytes)

    def _send_plans(self, order: SendPlans, now_s: float) -> None:
        self._limits.resume(order.trainer, now_s)
        adopt = Adopt(
            generation=order.generation,
            grant_bytes=order.grant_bytes,
            plans=order.plans,
            correction=order.correction,
            seat=None if order.round is None else self._rounds.seat_of(order.trainer),
        )
        self._trainers.send(order.trainer, adopt)

    def _release(self, trainer: TrainerId) -> None:
        self._limits.forget(trainer)
        try:
            self._memory.release(trainer)
        except DeviceError as error:
            message = "the device memory of trainer %s cannot be reused until this controller restarts: %s"
            log.error(message, trainer, error.message)  # noqa: TRY400 - no traceback needed


def is_left_to_leader(order: Writing, pool: Pool) -> bool:
    """Return whether another device leads the job, whose controller writes the job's plans and measurements."""
    if isinstance(order, FailJob | RequeueJob | SetWaitsFor | PublishStep):
        return False
    member = pool.of_claim(order.claim)
    return member is not None and member.job.follows
