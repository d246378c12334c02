"""The queue: workers claim jobs, say what becomes of them, and take over from workers that are gone.

Every write for a job carries its claim token and the states it may change; where no row matches, LostClaimError:
the job belongs to somebody else by now, and nothing may be written for it any more.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.install import VERSION
from indb_tensile.catalog.queries import query
from indb_tensile.errors import LostClaimError, RequestError, TensileError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, JobSpec, JobState, Phase, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a worker hears at a heartbeat.

    `alive` False: it was taken for gone, so every job it held is lost, and it must register anew. `cancelled`:
    its jobs whose owners want them stopped. Of what it said it holds, `lost` is no longer its own. `strays` are
    claimed by it without its knowing, since a connection broke between a commit and its answer. `version` is the
    catalog's, which may have been upgraded since the worker began.
    """

    cancelled: tuple[JobId, ...]
    lost: tuple[JobId, ...]
    alive: bool
    strays: tuple[tuple[JobId, ClaimToken], ...] = ()
    version: str = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """How often another worker had beaten when an observer looked, and the lease that it promised to keep."""

    worker: WorkerId
    beats: int
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a training is. None leaves what was written before; `figures` become rows of `tensile.metrics`.

    `eta_s` is when it ends if it trains all epochs, `eta_earliest_s` if early stopping ends it as soon as it can.
    Where these two are None, what was written before goes.
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
class Unreadable:
    """A claimed job whose specification cannot be read, which `error` says: it is to fail under this claim."""

    job: JobId
    claim: ClaimToken
    owner_oid: int
    error: RequestError


def claim_job(
    connection: Connection, worker: WorkerId, passed_over: Collection[int] = ()
) -> ClaimedJob | Unreadable | None:
    """The next job, now this worker's, or None. Jobs of the owners in `passed_over` (oids) are left in the queue.

    One statement and at most one decoded specification: a user may have enqueued any number of unreadable ones.
    """
    row = connection.execute(query("claim_job"), {"worker": worker, "passed_over": list(passed_over)}).fetchone()
    if row is None:
        return None
    job, claim, attempt, owner_oid, limit_bytes, threads, spec = row
    decoded = _decoded(job, spec)
    if isinstance(decoded, RequestError):
        return Unreadable(job=JobId(job), claim=ClaimToken(claim), owner_oid=owner_oid, error=decoded)
    return ClaimedJob(
        job=JobId(job),
        claim=ClaimToken(claim),
        attempt=attempt,
        owner_oid=owner_oid,
        spec=decoded,
        owner_limit_bytes=limit_bytes,
        threads=threads,
    )


def register_worker(
    connection: Connection,
    *,
    host: str,
    pid: int,
    device_kind: str,
    lease_s: float,
    slots: int = 8,
    entering: int = 2,
    threads: int = 1,
) -> WorkerId:
    """A new worker, whose first heartbeat this is.

    `slots` is how many jobs it runs at once, `entering` how many of one owner it prepares at once. `threads` are
    those that jobs run on which it is the first to start.

    Where the database is a copy of another one, what came with it goes to the roles of the same names here.
    """
    with contextlib.suppress(psycopg.errors.LockNotAvailable):  # a lock on a model must not keep a controller out
        connection.execute(query("adopt_owners"))
    parameters = {
        "host": host,
        "pid": pid,
        "device": device_kind,
        "version": VERSION,
        "lease_s": lease_s,
        "slots": slots,
        "entering": entering,
        "threads": threads,
    }
    return WorkerId(_only(connection, "register_worker", parameters))


def beat(connection: Connection, worker: WorkerId, held: Mapping[JobId, ClaimToken] | None = None) -> Beat:
    """Renew the worker's lease. `lost` and `strays` are told only where it says which jobs it holds.

    Where the jobs cannot be read because the table is locked, the lease is renewed all the same; a cancellation is
    then heard at a later beat.
    """
    parameters = {"worker": worker, "jobs": list(held or ()), "claims": list((held or {}).values())}
    try:
        row = connection.execute(query("beat"), parameters).fetchone()
    except psycopg.errors.LockNotAvailable:
        alive = connection.execute(query("renew_lease"), {"worker": worker}).fetchone() is not None
        return Beat(alive=alive, cancelled=(), lost=())
    assert row is not None
    alive, cancelled, lost, stray_jobs, stray_claims, version = row
    strays = () if held is None else tuple(zip(stray_jobs, stray_claims, strict=True))
    return Beat(alive=alive, cancelled=tuple(cancelled), lost=tuple(lost), strays=strays, version=version)


def record_holdup(connection: Connection, worker: WorkerId, holdup: str | None) -> None:
    """Why the worker claims no job now, in words; None where it does."""
    connection.execute(query("record_holdup"), {"worker": worker, "holdup": holdup})


def leave(connection: Connection, worker: WorkerId, *, in_order: bool = True) -> None:
    """The worker claims nothing more; jobs it still holds are rescued by others without waiting for its lease.

    `in_order` False: its controller ends by a fault, which counts as a controller's death does.
    """
    connection.execute(query("leave"), {"worker": worker, "in_order": in_order})


def database_identity(connection: Connection) -> tuple[str, str]:
    """The installation's id, and the microsecond at which the database's server process started."""
    row = connection.execute(query("database_identity")).fetchone()
    assert row is not None
    return str(row[0]), str(row[1])


def announce_service(connection: Connection, worker: WorkerId, name: str | None) -> None:
    """The name of the service's socket within the administrator's directory; None: no service answers."""
    connection.execute(query("announce_service"), {"worker": worker, "name": name})


def other_workers(connection: Connection, worker: WorkerId | None) -> tuple[Sighting, ...]:
    """Every worker that has not stopped, save this one."""
    rows = connection.execute(query("other_workers"), {"worker": worker})
    return tuple(Sighting(worker=WorkerId(w), beats=beats, lease_s=lease_s) for w, beats, lease_s in rows)


def rescue(connection: Connection, dead: Sequence[Sighting] = (), *, limit_s: float = 0.0) -> tuple[JobId, ...]:
    """Take jobs from workers that left, died or are `dead`; a dead one that has beaten since it was seen stays alive.

    Each job goes back into the queue with a pause. The second death of a controller in the same phase of a job
    counts as the job's fault. A job fails when its faults reach `max_attempts` or when interruptions cost it more
    than `limit_s` (0: no limit), and is cancelled where its owner asked for that. Several controllers may do this at
    once.
    """
    parameters = {"workers": [s.worker for s in dead], "beats": [s.beats for s in dead], "limit_s": limit_s}
    return tuple(JobId(row[0]) for row in connection.execute(query("rescue"), parameters))


def foreign_jobs(connection: Connection) -> int:
    """How many queued jobs came with a copy of another database; no worker of this one ever claims them."""
    return int(_only(connection, "foreign_jobs", {}))


def start_running(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """From starting to running; safe to repeat."""
    _guarded(connection, "start_running", job, claim)


def set_phase(connection: Connection, job: JobId, claim: ClaimToken, phase: Phase) -> None:
    """What the job is doing now."""
    _guarded(connection, "set_phase", job, claim, phase=phase.value)


def set_waits_for(connection: Connection, job: JobId, claim: ClaimToken, reason: str | None) -> None:
    """Why a claimed job does not go on, in words; None when it does."""
    _guarded(connection, "set_waits_for", job, claim, reason=reason)


def set_queue_reason(connection: Connection, job: JobId, reason: str | None) -> None:
    """Why a queued job is not claimed; does nothing when it no longer waits."""
    connection.execute(query("set_queue_reason"), {"job": job, "reason": reason})


def report_progress(connection: Connection, job: JobId, claim: ClaimToken, progress: Progress) -> None:
    """Write how far the job is."""
    names = list(progress.figures)
    fields = {name: getattr(progress, name) for name in _PROGRESS}
    _guarded(
        connection, "report_progress", job, claim, **fields, names=names, values=[progress.figures[n] for n in names]
    )


def fail(connection: Connection, job: JobId, claim: ClaimToken, error: TensileError) -> JobState:
    """The job failed for good; the state that it has now: cancelled where its owner asked for that."""
    return JobState(_guarded(connection, "fail", job, claim, **_told(error)))


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
    """The attempt ended with this error; the state that the job has now.

    It goes back into the queue after a pause, unless its faults have reached `max_attempts` or interruptions have
    cost it more than `limit_s` (0: no limit). `waits_for` is what its owner reads until then.
    """
    state = _guarded(
        connection,
        "interrupt",
        job,
        claim,
        **_told(error),
        blame=blame.value,
        waits_for=waits_for or f"its next attempt, since {error.message}",
        limit_s=limit_s,
    )
    return JobState(state)


def cancelled(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """The job was stopped as its owner asked."""
    _guarded(connection, "cancelled", job, claim)


def requeue(connection: Connection, job: JobId, claim: ClaimToken, reason: str) -> None:
    """Hand the job back in good order: it counts for nothing, and the job may start again at once."""
    _guarded(connection, "requeue", job, claim, reason=reason)


def record_event(connection: Connection, job: JobId, claim: ClaimToken, kind: str, detail: Mapping[str, Any]) -> None:
    """Add something worth knowing to the job's history; changes of state are there without it."""
    _guarded(connection, "record_event", job, claim, kind=kind, detail=Jsonb(dict(detail)))


def save_report(
    connection: Connection, job: JobId, claim: ClaimToken, report: Sequence[Mapping[str, str | None]]
) -> None:
    """Keep what the job's table was found to be, in place of what was kept of it before."""
    _guarded(connection, "save_report", job, claim, report=Jsonb(list(report)))


def _decoded(job: int, spec: str) -> JobSpec | RequestError:
    """The specification, or why it is none.

    Users write specifications: one that could not travel on to a trainer, such as an integer of 300 digits or a list
    a thousand deep, must not get as far as the controller's loop, where it would be everybody's fault.
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
    """Why it cannot be trained. Version 0.1.0 enqueued such jobs; since then a trigger refuses them."""
    if spec.deploy not in ("if_better", "always", "never"):
        return f'deploy is "{spec.deploy}", not if_better, always or never'
    if spec.memory_limit_bytes is not None and spec.memory_limit_bytes < 1:
        return f"memory_limit_bytes is {spec.memory_limit_bytes}, not a whole number above 0"
    if spec.max_runtime_s is not None and not 1 <= spec.max_runtime_s <= 2147483647:
        return f"max_runtime_s is {spec.max_runtime_s}, not a whole number from 1 to 2147483647"
    return None


def lost_claim(job: JobId, claim: ClaimToken) -> LostClaimError:
    """The error for a guarded statement that found no row."""
    return LostClaimError(
        f"job {job} no longer belongs to claim {claim}",
        detail="It has ended, or another worker has taken it over.",
        hint="Stop working on it; nothing more may be written for it.",
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


def _told(error: TensileError) -> dict[str, str | None]:
    return {
        "sqlstate": error.sqlstate,
        "message": error.message,
        "detail": error.detail or None,
        "hint": error.hint or None,
    }


def _guarded(connection: Connection, name: LiteralString, job: JobId, claim: ClaimToken, **values: Any) -> Any:
    row = connection.execute(query(name), {"job": job, "claim": claim, **values}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
    return row[0]


def _only(connection: Connection, name: LiteralString, values: Mapping[str, Any]) -> Any:
    row = connection.execute(query(name), values).fetchone()
    assert row is not None
    return row[0]
