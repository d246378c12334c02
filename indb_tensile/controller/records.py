"""What the controller asks of the catalog: one small interface, so that the loop runs against a fake as well.

A statement is tried once: the controller never blocks on a database that is restarting. What could not be written
is kept and written later, or, where the lease ran out meanwhile, is no longer ours to write.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import psycopg

from indb_tensile.catalog import install, jobs, links, paces, plans
from indb_tensile.catalog.connection import (
    LOOP_LOCK_TIMEOUT_MS,
    Connection,
    LockedError,
    Session,
    UnreachableError,
    is_blocked,
    may_pass,
)
from indb_tensile.catalog.jobs import Beat, Sighting, Unreadable
from indb_tensile.catalog.outage import words
from indb_tensile.catalog.plans import DeviceUse, JobUse, PlanRecord
from indb_tensile.config import variable
from indb_tensile.errors import DatabaseError, TensileError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, WorkerId
from indb_tensile.scheduler.admission.decide import NEW_WEIGHT
from indb_tensile.scheduler.admission.orders import (
    CancelJob,
    FailJob,
    RecordAdoption,
    RecordForecast,
    RecordMeasurement,
    RecordPlan,
    RequeueJob,
    SetWaitsFor,
)
from indb_tensile.scheduler.admission.pool import Fault
from indb_tensile.scheduler.link import Copying, Link
from indb_tensile.scheduler.machines import Pace

Writing = (
    FailJob | RequeueJob | CancelJob | SetWaitsFor | RecordPlan | RecordForecast | RecordAdoption | RecordMeasurement
)

_Result = TypeVar("_Result")


class Pulse(Protocol):
    """What the heartbeat needs, on a connection of its own."""

    def beat(self, worker: WorkerId, held: Mapping[JobId, ClaimToken]) -> Beat:
        """Renew the lease. Raises UnreachableError, or CatalogVersionError."""
        ...


class Records(Protocol):
    """What the loop needs. Every method raises UnreachableError while the database is away."""

    def register(self) -> WorkerId:
        """A new worker."""
        ...

    def leave(self, worker: WorkerId, *, in_order: bool = True) -> None:
        """The worker is gone; others need not wait for its lease. Not `in_order`: by a fault of its controller."""
        ...

    def claim(self, worker: WorkerId, passed_over: frozenset[int]) -> ClaimedJob | Unreadable | None:
        """The next job, if any, of owners whose oids are not among `passed_over`."""
        ...

    def other_workers(self, worker: WorkerId | None) -> tuple[Sighting, ...]:
        """Every worker that has not stopped, save this one."""
        ...

    def rescue(self, dead: Sequence[Sighting]) -> tuple[JobId, ...]:
        """Take jobs from workers that left, died or are these and have not beaten since."""
        ...

    def write(self, writing: Writing, *, planning_ns: int) -> None:
        """Do what decide() ordered. Raises LostClaimError where the job is no longer ours."""
        ...

    def record_device(self, worker: WorkerId, use: DeviceUse, shares: tuple[JobUse, ...]) -> None:
        """Write down who uses how much of the device."""
        ...

    def record_holdup(self, worker: WorkerId, holdup: str | None) -> None:
        """Write down why the worker claims no job now; None where it does."""
        ...


class CatalogRecords:
    """Both interfaces on one connection to PostgreSQL. Not shared between threads.

    Raises DatabaseError at once where there is no server or the catalog's version is not ours.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application_name: str,
        host: str,
        pid: int,
        device_kind: str,
        policy: str,
        lease_s: float,
        interrupted_s: float = 0.0,
        slots: int = 8,
        entering: int = 2,
        threads: int = 1,
    ) -> None:
        self._session = Session(
            dsn, application_name=application_name, patience_s=0.0, lock_timeout_ms=LOOP_LOCK_TIMEOUT_MS
        )
        self._host = host
        self._pid = pid
        self._device_kind = device_kind
        self._policy = policy
        self._lease_s = lease_s
        self._interrupted_s = interrupted_s
        self._slots = slots
        self._entering = entering
        self._threads = threads
        self._run(install.check_version)

    def register(self) -> WorkerId:
        """A new worker, whose first heartbeat this is. Raises CatalogVersionError where the catalog was upgraded."""
        self._run(install.check_version)
        return self._run(
            lambda c: jobs.register_worker(
                c,
                host=self._host,
                pid=self._pid,
                device_kind=self._device_kind,
                lease_s=self._lease_s,
                slots=self._slots,
                entering=self._entering,
                threads=self._threads,
            )
        )

    def leave(self, worker: WorkerId, *, in_order: bool = True) -> None:
        """Mark the worker as stopped."""
        self._run(lambda c: jobs.leave(c, worker, in_order=in_order))

    def beat(self, worker: WorkerId, held: Mapping[JobId, ClaimToken]) -> Beat:
        """Renew the worker's lease. Raises CatalogVersionError where the catalog was upgraded."""
        beat = self._run(lambda c: jobs.beat(c, worker, held))
        if beat.version != install.VERSION:
            self._run(install.check_version)
        return beat

    def claim(self, worker: WorkerId, passed_over: frozenset[int]) -> ClaimedJob | Unreadable | None:
        """The next job, if any. Where its answer is lost with the connection, a beat reports it as a stray."""
        return self._run(lambda c: jobs.claim_job(c, worker, passed_over))

    def other_workers(self, worker: WorkerId | None) -> tuple[Sighting, ...]:
        """Every worker that has not stopped, save this one."""
        return self._run(lambda c: jobs.other_workers(c, worker))

    def rescue(self, dead: Sequence[Sighting]) -> tuple[JobId, ...]:
        """Take jobs from workers that left, died or are these and have not beaten since."""
        return self._run(lambda c: jobs.rescue(c, dead, limit_s=self._interrupted_s))

    def write(self, writing: Writing, *, planning_ns: int = 0) -> None:
        """Do what decide() ordered."""
        self._run(lambda c: self._write(c, writing, planning_ns))

    def record_device(self, worker: WorkerId, use: DeviceUse, shares: tuple[JobUse, ...]) -> None:
        """Replace what is known about the worker's device."""
        self._run(lambda c: plans.record_device(c, worker, use, shares))

    def record_holdup(self, worker: WorkerId, holdup: str | None) -> None:
        """Replace why the worker claims no job now."""
        self._run(lambda c: jobs.record_holdup(c, worker, holdup))

    def pace(self, machine: str) -> Pace | None:
        """How much slower this kind of device is than a machine; None where nobody has measured it."""
        return self._run(lambda c: paces.load_pace(c, self._device_kind, machine))

    def save_links(self, measured: Sequence[Copying], emulated: Link | None) -> None:
        """Replace what is known of this device's link to its host."""
        self._run(lambda c: links.save_links(c, self._host, self._device_kind, measured, emulated))

    def close(self) -> None:
        """End the connection."""
        self._session.close()

    def _run(self, action: Callable[[Connection], _Result]) -> _Result:
        try:
            return self._session.run(action)
        except psycopg.Error as error:
            if is_blocked(error):
                raise LockedError(f"another session is in the way: {words(error)}") from error
            if may_pass(error):
                raise UnreachableError(f"the database cannot do its work now: {words(error)}") from error
            if isinstance(error, _UNDEFINED):
                self._look_at_version()
            told = DatabaseError(
                f"the catalog refused a statement: {error.diag.message_primary or str(error).strip()}",
                detail=error.diag.message_detail or "",
                hint=error.diag.message_hint or _way_out(error),
            )
            raise told from error

    def _look_at_version(self) -> None:
        """Raise CatalogVersionError where that is why something is not there."""
        with contextlib.suppress(psycopg.Error, UnreachableError):
            self._session.run(install.check_version)

    def _write(self, connection: Connection, writing: Writing, planning_ns: int) -> None:
        job, claim = writing.job, writing.claim
        match writing:
            case FailJob(fault=fault):
                jobs.fail(connection, job, claim, _error(fault))
            case RequeueJob(reason=reason, blame=Blame.NOBODY):
                jobs.requeue(connection, job, claim, reason)
            case RequeueJob(blame=blame, waits_for=waits_for):
                error, limit_s = _interruption(writing), self._interrupted_s
                jobs.interrupt(connection, job, claim, error, blame, waits_for=waits_for, limit_s=limit_s)
            case CancelJob():
                jobs.cancelled(connection, job, claim)
            case SetWaitsFor(text=text):
                jobs.set_waits_for(connection, job, claim, text)
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
            case RecordAdoption(generation=generation):
                plans.plan_adopted(connection, job, claim, generation)
            case RecordMeasurement(measurement=measurement):
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


# What a statement meets where the catalog was upgraded, or dropped, beneath a running program.
_UNDEFINED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
)


def _way_out(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"Connect as tensile_worker, or as a role that was granted it ({variable('dsn')})."
    return "Look into PostgreSQL's log, and at the grants of tensile_worker."


def _error(fault: Fault) -> TensileError:
    error = TensileError(fault.message, detail=fault.detail, hint=fault.hint)
    error.sqlstate = fault.sqlstate
    return error


def _interruption(order: RequeueJob) -> TensileError:
    """What the job's owner reads; a trainer that reported a fault has said it in full."""
    message = f"an attempt of job {order.job} was interrupted: {order.reason}"
    return _error(order.fault or Fault(sqlstate="58000", message=message))


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


__all__ = ["CatalogRecords", "LockedError", "Pulse", "Records", "UnreachableError", "Writing"]
