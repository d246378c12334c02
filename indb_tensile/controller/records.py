"""The interface between the controller and the catalog, and its implementation on PostgreSQL.

The interface is small, so that tests can run the loop against a fake. Each statement is tried once, because the
controller must not block while the database restarts. The caller keeps a write that failed and tries it again
(catalog_writes.py). If the worker's lease has ended meanwhile, the write is dropped: the job no longer belongs to the
worker.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec
import psycopg

from indb_tensile.catalog import (
    device_contention,
    device_links,
    device_overheads,
    device_speed,
    install,
    jobs,
    outlooks,
    plans,
    rank_memory,
    ranks,
    stored_checkpoints,
)
from indb_tensile.catalog.connection import (
    LOOP_LOCK_TIMEOUT_MS,
    Connection,
    LockedError,
    Session,
    UnreachableError,
    is_blocked,
    is_transient,
)
from indb_tensile.catalog.device_contention import MeasuredContention
from indb_tensile.catalog.fault_origin import server_message
from indb_tensile.catalog.jobs import DeferredJob, HeartbeatReply, ObservedWorker, UnreadableJob
from indb_tensile.catalog.plans import DeviceUse, JobUse, PlanRecord
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.config import variable
from indb_tensile.device.trainer_footprint import FIRST_NCCL_BYTES
from indb_tensile.errors import DatabaseError, InvariantError, TensileError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, WorkerId
from indb_tensile.scheduler.admission.admission_orders import (
    CancelJob,
    FailJob,
    LeaveSet,
    PublishStep,
    RecordAdoption,
    RecordForecast,
    RecordMeasurement,
    RecordPhase,
    RecordPlan,
    RecordSet,
    RequeueJob,
    SetWaitsFor,
)
from indb_tensile.scheduler.admission.measurements import NEW_WEIGHT
from indb_tensile.scheduler.admission.outlook import Outlook
from indb_tensile.scheduler.admission.overheads import KindOverheads, Overheads
from indb_tensile.scheduler.admission.pool import Fault
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.link import CopyMeasurement, Link
from indb_tensile.scheduler.timing.machines import StepTimes
from indb_tensile.scheduler.timing.rank_steps import PublishedStep

Writing = (
    FailJob
    | RequeueJob
    | CancelJob
    | SetWaitsFor
    | RecordPhase
    | RecordPlan
    | RecordForecast
    | PublishStep
    | RecordAdoption
    | RecordSet
    | LeaveSet
    | RecordMeasurement
)

_Result = TypeVar("_Result")

log = logging.getLogger("controller")

# The time for which a rank keeps its memory while another rank of its job has none; after it all ranks give theirs
# back. Meanwhile no other job gets that memory. The time is longer in a turn of the job, and where running jobs make
# way for ranks (tensile.take_back_gangs).
_GANG_PATIENCE_S = 15.0


class HeartbeatRecords(Protocol):
    """The catalog operation that the heartbeat needs, on a connection of its own."""

    def beat(self, worker: WorkerId, claims: Mapping[JobId, ClaimToken]) -> HeartbeatReply:
        """Renew the worker's lease. Raises UnreachableError or CatalogVersionError."""
        ...


class Records(Protocol):
    """The catalog operations that the loop needs. Every method raises UnreachableError while the database is away."""

    def register(self) -> WorkerId:
        """Register a new worker."""
        ...

    def leave(self, worker: WorkerId, *, in_order: bool = True) -> None:
        """Mark the worker as stopped, so that other workers need not wait for its lease to end.

        `in_order` is false if the controller stops because of a fault.
        """
        ...

    def claim(
        self, worker: WorkerId, passed_over: frozenset[int], *, waited_for: JobId | None = None
    ) -> ClaimedJob | UnreadableJob | DeferredJob | None:
        """Claim the next job, if any. Jobs of owners whose oids are in `passed_over` are skipped.

        A job that another worker would be done with earlier is deferred, unless this worker has `waited_for` it.
        """
        ...

    def offer(self, job: JobId) -> None:
        """Make all controllers look at the queue, because this one has deferred the job."""
        ...

    def other_workers(self, worker: WorkerId | None) -> tuple[ObservedWorker, ...]:
        """Return every worker that has not stopped, except this one."""
        ...

    def rescue(self, dead: Sequence[ObservedWorker]) -> tuple[JobId, ...]:
        """Return jobs to the queue from workers that left or died, and from `dead` workers.

        A worker in `dead` that has beaten since it was seen stays alive.
        """
        ...

    def write(self, writing: Writing, *, planning_ns: int) -> None:
        """Carry out an order of decide(). Raises LostClaimError if the job no longer belongs to this worker."""
        ...

    def published_steps(self, job: JobId, claim: ClaimToken) -> tuple[tuple[int, PublishedStep], ...]:
        """Return the steps that ranks of the job have published, by the number of the rank. Raises LostClaimError."""
        ...

    def record_device(
        self, worker: WorkerId, use: DeviceUse, shares: tuple[JobUse, ...], usages: tuple[JobUsage, ...]
    ) -> None:
        """Record the use of the device as a whole and by each job, and add what jobs have used since then."""
        ...

    def record_holdup(self, worker: WorkerId, holdup: str | None) -> None:
        """Record why the worker claims no job now. None means that it claims jobs."""
        ...

    def learn_contention(self, learned: Contention) -> None:
        """Record by which factors jobs have slowed each other down, by the number of jobs."""
        ...

    def learn_taken_cores(self, taken_cores: float) -> None:
        """Record how many cores other programs keep busy while jobs train."""
        ...

    def learn_overheads(self, kinds: Sequence[KindOverheads]) -> None:
        """Record what jobs of these kinds take besides their iterations."""
        ...

    def record_outlook(self, worker: WorkerId, outlook: Outlook) -> None:
        """Record what the jobs on the worker's device still need."""
        ...


class CatalogRecords:
    """Implements HeartbeatRecords and Records on one connection to PostgreSQL. Not shared between threads.

    Raises DatabaseError at once if there is no server, or if the catalog has another version than this program.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application_name: str,
        host: str,
        pid: int,
        device_kind: str,
        device_name: str | None = None,
        policy: str,
        lease_s: float,
        interrupted_s: float = 0.0,
        slots: int = 8,
        entering: int = 2,
        threads: int = 1,
        makes_way: bool = True,
        uses_nccl: bool = False,
        session: Session | None = None,
    ) -> None:
        self._session = session or Session(
            dsn, application_name=application_name, retry_s=0.0, lock_timeout_ms=LOOP_LOCK_TIMEOUT_MS
        )
        self._host = host
        self._pid = pid
        self._device_kind = device_kind
        self._device_name = device_name
        self._policy = policy
        self._lease_s = lease_s
        self._interrupted_s = interrupted_s
        self._slots = slots
        self._entering = entering
        self._threads = threads
        self._makes_way = makes_way
        self._uses_nccl = uses_nccl
        self._run(install.check_version)

    def register(self) -> WorkerId:
        """Register a new worker; this counts as its first heartbeat. Raises CatalogVersionError after an upgrade."""
        self._run(install.check_version)
        return self._run(
            lambda c: jobs.register_worker(
                c,
                host=self._host,
                pid=self._pid,
                device_kind=self._device_kind,
                device_name=self._device_name,
                lease_s=self._lease_s,
                slots=self._slots,
                entering=self._entering,
                threads=self._threads,
                makes_way=self._makes_way,
            )
        )

    def leave(self, worker: WorkerId, *, in_order: bool = True) -> None:
        """Mark the worker as stopped."""
        self._run(lambda c: jobs.leave(c, worker, in_order=in_order))

    def beat(self, worker: WorkerId, claims: Mapping[JobId, ClaimToken]) -> HeartbeatReply:
        """Renew the worker's lease. Raises CatalogVersionError if the catalog was upgraded."""
        beat = self._run(lambda c: jobs.beat(c, worker, claims))
        if beat.version != install.VERSION:
            self._run(install.check_version)
        return beat

    def claim(
        self, worker: WorkerId, passed_over: frozenset[int], *, waited_for: JobId | None = None
    ) -> ClaimedJob | UnreadableJob | DeferredJob | None:
        """Claim the next job, if any, or defer it.

        If the connection breaks before the answer arrives, a later heartbeat reports the claimed job as a stray.
        """
        claimed = self._run(lambda c: jobs.claim_job(c, worker, passed_over, defers=True, waited_for=waited_for))
        if not self._uses_nccl or not isinstance(claimed, ClaimedJob) or (gang := claimed.gang) is None:
            return claimed
        measured_bytes = self._run(lambda c: rank_memory.load_memory(c, self._device_kind, gang.ranks))
        return replace(claimed, gang=replace(gang, connection_bytes=measured_bytes or FIRST_NCCL_BYTES))

    def offer(self, job: JobId) -> None:
        """Make all controllers look at the queue."""
        self._run(lambda c: jobs.offer_job(c, job))

    def other_workers(self, worker: WorkerId | None) -> tuple[ObservedWorker, ...]:
        """Return every worker that has not stopped, except this one."""
        return self._run(lambda c: jobs.other_workers(c, worker))

    def rescue(self, dead: Sequence[ObservedWorker]) -> tuple[JobId, ...]:
        """Return jobs to the queue from workers that left or died, and from `dead` workers.

        A worker in `dead` that has beaten since it was seen stays alive. Jobs for several devices return as well if
        not all their ranks have found a device, or memory, in time, and may go on with fewer devices.
        """
        rescued = self._run(lambda c: jobs.rescue(c, dead, limit_s=self._interrupted_s))
        self._run(lambda c: ranks.take_back_gangs(c, _GANG_PATIENCE_S))
        for gang in self._run(ranks.fit_gangs):
            log.warning("job %d goes on with %d of %d devices", gang.job, gang.devices, gang.asked)
        return rescued

    def write(self, writing: Writing, *, planning_ns: int = 0) -> None:
        """Carry out an order of decide()."""
        self._run(lambda c: self._write(c, writing, planning_ns))

    def published_steps(self, job: JobId, claim: ClaimToken) -> tuple[tuple[int, PublishedStep], ...]:
        """Return the steps that ranks have published. One that cannot be read is left out."""
        rows = self._run(lambda c: ranks.published_steps(c, job, claim))
        steps = ((rank, _read_step(job, rank, value)) for rank, value in rows)
        return tuple((rank, step) for rank, step in steps if step is not None)

    def record_device(
        self, worker: WorkerId, use: DeviceUse, shares: tuple[JobUse, ...], usages: tuple[JobUsage, ...]
    ) -> None:
        """Replace the recorded use of the worker's device, and add what jobs have used."""
        self._run(lambda c: plans.record_device(c, worker, use, shares, usages))

    def record_holdup(self, worker: WorkerId, holdup: str | None) -> None:
        """Replace the recorded reason why the worker claims no job now."""
        self._run(lambda c: jobs.record_holdup(c, worker, holdup))

    def pace(self, machine: str) -> StepTimes | None:
        """Return how much slower this kind of device is than a machine, or None if that was never measured."""
        return self._run(lambda c: device_speed.load_pace(c, self._device_kind, machine))

    def installation(self) -> UUID:
        """Return the id of the database."""
        return self._run(stored_checkpoints.installation)

    def contention(self) -> tuple[MeasuredContention, ...]:
        """Return how much jobs slow each other down on this kind of device; nothing if that was never measured."""
        return self._run(lambda c: device_contention.load_contention(c, self._device_kind))

    def learn_contention(self, learned: Contention) -> None:
        """Record by which factors jobs have slowed each other down, by the number of jobs.

        A number of jobs whose contention was not measured when the device was met is left out.
        """
        self._run(lambda c: device_contention.learn_contention(c, self._device_kind, learned))

    def learn_taken_cores(self, taken_cores: float) -> None:
        """Store how many cores other programs keep busy while jobs train."""
        self._run(lambda c: device_contention.learn_taken_cores(c, self._device_kind, taken_cores))

    def overheads(self) -> Overheads:
        """Return what jobs take besides their iterations on this kind of device, by kind of job."""
        return self._run(lambda c: device_overheads.load_overheads(c, self._device_kind))

    def learn_overheads(self, kinds: Sequence[KindOverheads]) -> None:
        """Replace the recorded times of these kinds of jobs."""
        self._run(lambda c: device_overheads.save_overheads(c, self._device_kind, kinds))

    def record_outlook(self, worker: WorkerId, outlook: Outlook) -> None:
        """Replace the recorded outlook of the worker's device."""
        self._run(lambda c: outlooks.record_outlook(c, worker, outlook))

    def save_links(self, measured: Sequence[CopyMeasurement], emulated: Link | None) -> None:
        """Replace the recorded measurements of this device's link to its host."""
        self._run(lambda c: device_links.save_links(c, self._host, self._device_kind, measured, emulated))

    def close(self) -> None:
        """End the connection."""
        self._session.close()

    def _run(self, action: Callable[[Connection], _Result]) -> _Result:
        try:
            return self._session.run(action)
        except psycopg.Error as error:
            if is_blocked(error):
                raise LockedError(
                    f"another session holds a lock that this statement needs: {server_message(error)}"
                ) from error
            if is_transient(error):
                raise UnreachableError(
                    f"the database cannot run the statement now: {server_message(error)}"
                ) from error
            if isinstance(error, _UNDEFINED):
                self._check_version()
            refusal = DatabaseError(
                f"the catalog refused a statement: {error.diag.message_primary or str(error).strip()}",
                detail=error.diag.message_detail or "",
                hint=error.diag.message_hint or _hint(error),
            )
            raise refusal from error

    def _check_version(self) -> None:
        """Raise CatalogVersionError if an object is undefined because the catalog has another version."""
        with contextlib.suppress(psycopg.Error, UnreachableError):
            self._session.run(install.check_version)

    def _write(  # noqa: C901 - a table: one line per kind of order
        self, connection: Connection, writing: Writing, planning_ns: int
    ) -> None:
        job, claim = writing.job, writing.claim
        if isinstance(writing, FailJob | RequeueJob):  # what ends one rank ends the attempt of all
            claim = ranks.attempt_of(connection, job, claim)
        match writing:
            case FailJob(fault=fault, needs_bytes=int(needs_bytes)):
                jobs.leave_to_larger(connection, job, claim, _as_error(fault), needs_bytes)
            case FailJob(fault=fault):
                jobs.fail(connection, job, claim, _as_error(fault))
            case RequeueJob(reason=reason, blame=Blame.NOBODY):
                jobs.requeue(connection, job, claim, reason)
            case RequeueJob(blame=blame, waits_for=waits_for):
                error, limit_s = _interruption(writing), self._interrupted_s
                jobs.interrupt(connection, job, claim, error, blame, waits_for=waits_for, limit_s=limit_s)
            case CancelJob():
                jobs.cancelled(connection, job, claim)
            case SetWaitsFor(text=text):
                jobs.set_waits_for(connection, job, claim, text)
            case RecordPhase(phase=phase):
                jobs.set_phase(connection, job, claim, phase)
            case RecordPlan():
                record, plan = _plan_record(writing, self._policy, planning_ns)
                plans.record_plan(connection, job, claim, record, plan)
            case RecordForecast(generation=generation, forecast=forecast):
                plans.plan_foreseen(
                    connection,
                    job,
                    claim,
                    generation,
                    iteration_ns=forecast.iteration_ns,
                    stall_ns=forecast.copies_ns,
                )
            case PublishStep(step=step):
                value = msgspec.json.encode(step)
                ranks.publish_step(connection, job, claim, step_ns=step.iteration_ns, value=value)
            case RecordAdoption(generation=generation):
                plans.plan_adopted(connection, job, claim, generation)
            case RecordSet(beside=beside, foretold_throughput=throughput, foretold_speed=speed):
                plans.record_set(connection, job, claim, beside, throughput, speed)
            case LeaveSet():
                plans.end_set(connection, job, claim)
            case RecordMeasurement(measurement=measurement, throughput=throughput):
                plans.plan_measured(
                    connection,
                    job,
                    claim,
                    measurement.generation,
                    peak_bytes=measurement.peak_bytes,
                    iteration_ns=measurement.iteration_ns,
                    stall_ns=measurement.stall_ns,
                    weight=NEW_WEIGHT,
                )
                if throughput is not None:
                    plans.set_measured(connection, job, claim, throughput, weight=NEW_WEIGHT)


# Errors of a statement after the catalog was upgraded or dropped while the program runs.
_UNDEFINED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
)


def _read_step(job: JobId, rank: int, value: bytes) -> PublishedStep | None:
    """Return the step that a rank has published; None if it is not one, as of another release."""
    try:
        return msgspec.json.decode(value, type=PublishedStep)
    except (msgspec.DecodeError, InvariantError) as error:
        log.warning("the step of rank %d of job %d cannot be read: %s", rank, job, error)
        return None


def _hint(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"Connect as tensile_worker, or as a role that was granted it ({variable('dsn')})."
    return "See PostgreSQL's log, and check the grants of tensile_worker."


def _as_error(fault: Fault) -> TensileError:
    error = TensileError(fault.message, detail=fault.detail, hint=fault.hint)
    error.sqlstate = fault.sqlstate
    return error


def _interruption(order: RequeueJob) -> TensileError:
    """Return the error that the job's owner reads.

    If the trainer reported a fault itself, that fault is used: it explains the cause in full.
    """
    message = f"an attempt of job {order.job} was interrupted: {order.reason}"
    return _as_error(order.fault or Fault(sqlstate="58000", message=message))


def _plan_record(order: RecordPlan, policy: str, planning_ns: int) -> tuple[PlanRecord, Any]:
    plan = order.plan
    record = PlanRecord(
        generation=order.generation,
        reason=order.reason.value,
        policy=policy,
        vanilla_peak_bytes=plan.vanilla_peak_bytes,
        liveness_peak_bytes=plan.liveness_peak_bytes,
        floor_bytes=plan.floor_bytes,
        predicted_peak_bytes=plan.peak_bytes,
        predicted_iteration_ns=plan.forecast.iteration_ns,
        predicted_stall_ns=plan.forecast.copies_ns,
        swaps=plan.swaps,
        swapped_bytes=plan.swapped_bytes,
        recomputed=plan.plans[0].recomputed,
        planning_ns=planning_ns,
    )
    return record, msgspec.to_builtins(plan.plans)


__all__ = ["CatalogRecords", "HeartbeatRecords", "LockedError", "Records", "UnreachableError", "Writing"]
