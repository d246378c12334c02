"""The queue of jobs: workers claim jobs, write how they end, and take over the jobs of workers that have stopped.

Every write for a job carries the claim token and names the states that it may change. If no row matches, the job has
ended or belongs to another worker, and the write raises LostClaimError: the worker must stop working on the job.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.install import VERSION
from indb_tensile.catalog.queries import query
from indb_tensile.errors import LostClaimError, RequestError, TensileError
from indb_tensile.job import Blame, ClaimedJob, ClaimedRank, ClaimToken, JobId, JobSpec, JobState, Phase, WorkerId
from indb_tensile.request.job_rules import DEPLOY, LONGEST_RUNTIME_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The answer of the catalog to one heartbeat of a worker.

    `alive` False: other workers have declared this worker dead, so it has lost all its jobs and must register again.
    `cancelled` are the worker's jobs that are to be stopped. `lost` are the jobs that the worker sent and that no
    longer belong to it. `strays` are jobs that the worker has claimed and did not send: a connection that breaks
    between a commit and its answer leaves such claims. `paused` are the worker's jobs that their owners have paused;
    None if that could not be read. `priorities` has the worker's jobs, unless they could not be read. `version`
    is the catalog's version, which an upgrade may have changed since the worker started. `idle_bytes` is the largest
    budget of another worker that has no job, if this one is busy for a while and has several. `published_steps` has
    the number of times that ranks have let each other know their steps, by job.
    """

    cancelled: tuple[JobId, ...]
    lost: tuple[JobId, ...]
    alive: bool
    strays: tuple[tuple[JobId, ClaimToken], ...] = ()
    paused: tuple[JobId, ...] | None = ()
    priorities: Mapping[JobId, int] = field(default_factory=dict)
    version: str = VERSION
    idle_bytes: int | None = None
    published_steps: Mapping[JobId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWorker:
    """The count of another worker's heartbeats when an observer read it, and that worker's lease."""

    worker: WorkerId
    beats: int
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one training. A field that is None keeps the value in the catalog.

    `figures` become rows of `tensile.metrics`. `eta_s` is the time left if the job trains all epochs, and
    `eta_earliest_s` if early stopping ends it as soon as possible. For these two, None removes the value in the
    catalog.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None = None
    valid_loss: float | None = None
    metric_name: str | None = None
    metric: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None
    eta_earliest_s: float | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableJob:
    """A claimed job whose specification cannot be read. The caller must let it fail with `error` under this claim."""

    job: JobId
    claim: ClaimToken
    owner_oid: int
    error: RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJob:
    """A queued job that is left to another worker, which would be done with it earlier."""

    job: JobId


def claim_job(
    connection: Connection,
    worker: WorkerId,
    passed_over: Collection[int] = (),
    *,
    defers: bool = False,
    waited_for: JobId | None = None,
) -> ClaimedJob | UnreadableJob | DeferredJob | None:
    """Claim the next job of the queue for this worker. Returns None if there is none.

    With `defers` the job is left to a worker that would be done with it earlier, unless it is `waited_for`: nobody
    waits for long for a worker that does not come.

    Jobs of the owners in `passed_over` (oids) stay in the queue. The call runs one statement and decodes at most one
    specification, because a user may have enqueued any number of unreadable ones.
    """
    parameters = {
        "worker": worker,
        "passed_over": list(passed_over),
        "defers": defers,
        "waited_for": waited_for,
    }
    row = connection.execute(query("claim_job"), parameters).fetchone()
    if row is None:
        return None
    job, claim, attempt, owner_oid, limit_bytes, weight, threads, priority, worked_s, spec, deferred, devices = row
    if deferred:
        return DeferredJob(job=JobId(job))
    decoded = _decoded(job, spec)
    if isinstance(decoded, RequestError):
        return UnreadableJob(job=JobId(job), claim=ClaimToken(claim), owner_oid=owner_oid, error=decoded)
    return ClaimedJob(
        job=JobId(job),
        claim=ClaimToken(claim),
        attempt=attempt,
        owner_oid=owner_oid,
        spec=decoded,
        owner_limit_bytes=limit_bytes,
        owner_weight=weight,
        threads=threads,
        priority=priority,
        worked_s=worked_s,
        gang=None if devices == 1 else claimed_rank(connection, JobId(job), ClaimToken(claim), devices),
    )


def claimed_rank(connection: Connection, job: JobId, claim: ClaimToken, devices: int) -> ClaimedRank:
    """Return the rank that has this claim. Raises LostClaimError if the attempt has ended."""
    row = connection.execute(query("claimed_rank"), {"job": job, "claim": claim}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
    return ClaimedRank(rank=row[0], ranks=devices, attempt_claim=ClaimToken(row[1]))


def offer_job(connection: Connection, job: JobId) -> None:
    """Make all controllers look at the queue, because this one has left the job to another."""
    connection.execute(query("offer_job"), {"job": job})


def register_worker(
    connection: Connection,
    *,
    host: str,
    pid: int,
    device_kind: str,
    lease_s: float,
    device_name: str | None = None,
    slots: int = 8,
    entering: int = 2,
    threads: int = 1,
    makes_way: bool = True,
) -> WorkerId:
    """Register a new worker, with its first heartbeat.

    The worker runs at most `slots` jobs at once, and prepares at most `entering` jobs of one owner at once. Jobs that
    this worker is the first to start run on `threads` threads. `device_name` tells the device from others of its kind
    on this host. `makes_way` says whether jobs that train on it alone leave it for a rank that waits for memory.

    In a copy of another database, the call also assigns the copied rows to the roles of the same names.
    """
    with contextlib.suppress(psycopg.errors.LockNotAvailable):  # a lock on a model must not stop a controller's start
        connection.execute(query("adopt_owners"))
    parameters = {
        "host": host,
        "pid": pid,
        "device": device_kind,
        "device_name": device_name,
        "version": VERSION,
        "lease_s": lease_s,
        "slots": slots,
        "entering": entering,
        "threads": threads,
        "makes_way": makes_way,
    }
    return WorkerId(query_value(connection, "register_worker", parameters))


def beat(
    connection: Connection, worker: WorkerId, claims: Mapping[JobId, ClaimToken] | None = None
) -> HeartbeatReply:
    """Renew the worker's lease, and return the changes of its jobs.

    `claims` are the jobs that the worker believes to have. Without them, `lost` and `strays` are empty. If the table
    of jobs is locked, the call still renews the lease, and a later heartbeat reports the cancellations.
    """
    parameters = {"worker": worker, "jobs": list(claims or ()), "claims": list((claims or {}).values())}
    try:
        row = connection.execute(query("beat"), parameters).fetchone()
    except psycopg.errors.LockNotAvailable:
        alive = connection.execute(query("renew_lease"), {"worker": worker}).fetchone() is not None
        return HeartbeatReply(alive=alive, cancelled=(), lost=(), paused=None)
    assert row is not None
    alive, cancelled, lost, stray_jobs, stray_claims, version, paused, mine, priorities, idle_bytes, *steps = row
    strays = () if claims is None else tuple(zip(stray_jobs, stray_claims, strict=True))
    return HeartbeatReply(
        alive=alive,
        cancelled=tuple(cancelled),
        lost=tuple(lost),
        strays=strays,
        paused=tuple(paused),
        priorities=dict(zip(mine, priorities, strict=True)),
        version=version,
        idle_bytes=idle_bytes,
        published_steps=dict(zip(*steps, strict=True)),
    )


def record_holdup(connection: Connection, worker: WorkerId, holdup: str | None) -> None:
    """Write why the worker claims no job now, in words; None means that it claims jobs."""
    connection.execute(query("record_holdup"), {"worker": worker, "holdup": holdup})


def leave(connection: Connection, worker: WorkerId, *, in_order: bool = True) -> None:
    """Mark the worker as stopped. Other workers take over its remaining jobs without waiting for its lease to end.

    `in_order` False: an error ends its controller, which counts for the jobs as the death of a controller does.
    """
    connection.execute(query("leave"), {"worker": worker, "in_order": in_order})


def database_identity(connection: Connection) -> tuple[str, str]:
    """Return the installation's id, and the start time of the server in microseconds since the epoch."""
    row = connection.execute(query("database_identity")).fetchone()
    assert row is not None
    return str(row[0]), str(row[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyFacts:
    """What a service that only reads has to know of its server. `socket_directory` is that of the setting."""

    in_recovery: bool
    port: int
    socket_directory: str | None


def standby_facts(connection: Connection) -> StandbyFacts:
    """Return whether the server is a hot standby, and where its sessions look for a service."""
    row = connection.execute(query("standby")).fetchone()
    assert row is not None
    return StandbyFacts(in_recovery=row[0], port=row[1], socket_directory=row[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlace:
    """Where sessions find a service.

    `name` is that of its socket within the setting socket_directory. Sessions of other hosts use TLS with `address`,
    an IP address and a port, and expect a certificate for `host_name`. What there is not is None.
    """

    name: str | None = None
    address: str | None = None
    host_name: str | None = None


def announce_service(connection: Connection, worker: WorkerId, place: ServicePlace) -> None:
    """Write where the worker's service answers; an empty place: nowhere."""
    connection.execute(query("announce_service"), {"worker": worker, **asdict(place)})


def other_workers(connection: Connection, worker: WorkerId | None) -> tuple[ObservedWorker, ...]:
    """Return all workers that have not stopped, except this one."""
    rows = connection.execute(query("other_workers"), {"worker": worker})
    return tuple(ObservedWorker(worker=WorkerId(w), beats=beats, lease_s=lease_s) for w, beats, lease_s in rows)


def rescue(connection: Connection, dead: Sequence[ObservedWorker] = (), *, limit_s: float = 0.0) -> tuple[JobId, ...]:
    """Put the jobs of stopped workers back into the queue. Returns these jobs.

    First marks the workers in `dead` as stopped, except those that have sent a heartbeat since they were observed.
    Each job pauses before its next attempt. The second death of a controller in the same phase of a job counts as the
    job's fault. A job fails when its faults reach `max_attempts`, or when interruptions have cost it more than
    `limit_s` (0: no limit). A job whose cancellation was requested is cancelled. Several controllers may call this at
    the same time.
    """
    parameters = {"workers": [s.worker for s in dead], "beats": [s.beats for s in dead], "limit_s": limit_s}
    return tuple(JobId(row[0]) for row in connection.execute(query("rescue"), parameters))


def settle_dependents(connection: Connection) -> int:
    """Start or fail some jobs whose awaited jobs have ended. Returns their count; 0 if none is left."""
    return int(query_value(connection, "settle_dependents", {}))


def foreign_jobs(connection: Connection) -> int:
    """Count the queued jobs that came with a copy of another database. No worker of this database claims them."""
    return int(query_value(connection, "foreign_jobs", {}))


def start_running(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """Change the job's state from starting to running. The call is safe to repeat."""
    guarded(connection, "start_running", job, claim)


def set_phase(connection: Connection, job: JobId, claim: ClaimToken, phase: Phase) -> None:
    """Write the phase that the job is in now."""
    guarded(connection, "set_phase", job, claim, phase=phase.value)


def set_waits_for(connection: Connection, job: JobId, claim: ClaimToken, reason: str | None) -> None:
    """Write what a claimed job waits for, in words; None when it does not wait."""
    guarded(connection, "set_waits_for", job, claim, reason=reason)


def report_progress(connection: Connection, job: JobId, claim: ClaimToken, progress: Progress) -> datetime | None:
    """Write the progress of the job. Returns the time of its owner's open request for a trace, if there is one."""
    names = list(progress.figures)
    fields = {name: getattr(progress, name) for name in _PROGRESS}
    values = [progress.figures[n] for n in names]
    requested_at: datetime | None = guarded(
        connection, "report_progress", job, claim, **fields, names=names, values=values
    )
    return requested_at


def fail(connection: Connection, job: JobId, claim: ClaimToken, error: TensileError) -> JobState:
    """End the job with this error, without another attempt. Returns its state: failed, or cancelled on request."""
    return JobState(guarded(connection, "fail", job, claim, **_error_columns(error)))


def leave_to_larger(
    connection: Connection, job: JobId, claim: ClaimToken, error: TensileError, needs_bytes: int
) -> JobState:
    """End the job with this error, unless the device of another worker has a budget of `needs_bytes`.

    Then the job goes back into the queue, and only such workers claim it. Returns the state that the job has now.
    """
    values = _error_columns(error)
    return JobState(guarded(connection, "leave_to_larger", job, claim, **values, needs_bytes=needs_bytes))


def interrupt(
    connection: Connection,
    job: JobId,
    claim: ClaimToken,
    error: TensileError,
    blame: Blame,
    *,
    waits_for: str | None = None,
    limit_s: float = 0.0,
) -> JobState:
    """End the job's attempt with this error. Returns the state that the job has now.

    The job goes back into the queue and pauses, unless its faults have reached `max_attempts` or interruptions have
    cost it more than `limit_s` (0: no limit). Until the next attempt, its owner reads `waits_for`.
    """
    state = guarded(
        connection,
        "interrupt",
        job,
        claim,
        **_error_columns(error),
        blame=blame.value,
        waits_for=waits_for or f"its next attempt, since {error.message}",
        limit_s=limit_s,
    )
    return JobState(state)


def cancelled(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """Mark the job as cancelled, after it was stopped on request."""
    guarded(connection, "cancelled", job, claim)


def requeue(connection: Connection, job: JobId, claim: ClaimToken, reason: str) -> None:
    """Put the job back into the queue. The attempt does not count, and the job may start again at once."""
    guarded(connection, "requeue", job, claim, reason=reason)


def record_event(connection: Connection, job: JobId, claim: ClaimToken, kind: str, detail: Mapping[str, Any]) -> None:
    """Add an event to the job's history. A trigger writes the events of state changes."""
    guarded(connection, "record_event", job, claim, kind=kind, detail=Jsonb(dict(detail)))


def save_report(
    connection: Connection, job: JobId, claim: ClaimToken, report: Sequence[Mapping[str, str | None]]
) -> None:
    """Store the report on the data of the job's table, in place of an earlier report."""
    guarded(connection, "save_report", job, claim, report=Jsonb(list(report)))


def _decoded(job: int, spec: str) -> JobSpec | RequestError:
    """Decode a specification. Returns an error for one that cannot be decoded or trained.

    Users can write specifications themselves. One that cannot be sent to a trainer, such as an integer of 300 digits
    or a list nested a thousand levels deep, must not reach the controller's loop, where it would stop all jobs.
    """
    try:
        decoded = msgspec.json.decode(spec, type=JobSpec)
        msgspec.msgpack.encode(decoded)
    except (msgspec.DecodeError, OverflowError, RecursionError) as error:
        return RequestError(
            f"the specification of job {job} cannot be read: {error}",
            hint="Enqueue jobs with tensile_train, and give numbers of an ordinary size.",
        )
    fault = _fault(decoded)
    if fault is not None:
        return RequestError(
            f"the specification of job {job} is refused: {fault}",
            hint="Enqueue jobs with tensile_train, which writes it.",
        )
    return decoded


def _fault(spec: JobSpec) -> str | None:
    """Return why the specification cannot be trained, or None.

    Version 0.1.0 enqueued such jobs; since then a trigger refuses them.
    """
    if spec.deploy not in DEPLOY:
        return f'deploy is "{spec.deploy}", not if_better, always or never'
    if spec.memory_limit_bytes is not None and spec.memory_limit_bytes < 1:
        return f"memory_limit_bytes is {spec.memory_limit_bytes}, not a whole number above 0"
    if spec.devices > 1 and not spec.takes_device:
        return f"devices is {spec.devices}, and the job takes no device"
    if spec.max_runtime_s is not None and not 1 <= spec.max_runtime_s <= LONGEST_RUNTIME_S:
        return f"max_runtime_s is {spec.max_runtime_s}, not a whole number from 1 to {LONGEST_RUNTIME_S}"
    return None


def lost_claim(job: JobId, claim: ClaimToken) -> LostClaimError:
    """Return the error of a guarded statement that matched no row."""
    return LostClaimError(
        f"job {job} no longer belongs to claim {claim}",
        detail="The job has ended, or another worker has taken it over.",
        hint="Stop working on the job, and write nothing more for it.",
    )


_PROGRESS = (
    "epoch",
    "epochs",
    "step",
    "steps",
    "loss",
    "valid_loss",
    "metric_name",
    "metric",
    "samples_per_s",
    "eta_s",
    "eta_earliest_s",
)


def _error_columns(error: TensileError) -> dict[str, str | None]:
    return {
        "sqlstate": error.sqlstate,
        "message": error.message,
        "detail": error.detail or None,
        "hint": error.hint or None,
    }


def guarded(connection: Connection, name: LiteralString, job: JobId, claim: ClaimToken, **values: Any) -> Any:
    """Run a statement that carries the job's claim, and return its first value. Raises LostClaimError."""
    row = connection.execute(query(name), {"job": job, "claim": claim, **values}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
    return row[0]


def query_value(connection: Connection, name: LiteralString, values: Mapping[str, Any]) -> Any:
    """Return the first column of the only row that the named statement returns."""
    row = connection.execute(query(name), values).fetchone()
    assert row is not None
    return row[0]
