"""The queue: workers claim jobs, say what becomes of them, and take over from workers that are gone.

Every write for a job carries its claim token and the states it may change; where no row matches, LostClaimError:
the job belongs to somebody else by now, and nothing may be written for it any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString

import msgspec
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.install import VERSION
from indb_tensile.catalog.queries import query
from indb_tensile.errors import LostClaimError, RequestError, TensileError
from indb_tensile.job import ClaimedJob, ClaimToken, JobId, JobSpec, JobState, Phase, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a worker hears at a heartbeat.

    `alive` False: it was taken for gone, so every job it held is lost, and it must register anew. `cancelled`:
    its jobs whose owners want them stopped. Of what it said it holds, `lost` is no longer its own. `strays` are
    claimed by it without its knowing, since a connection broke between a commit and its answer.
    """

    cancelled: tuple[JobId, ...]
    lost: tuple[JobId, ...]
    alive: bool
    strays: tuple[tuple[JobId, ClaimToken], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a training is. None leaves what was written before; `figures` become rows of `tensile.metrics`."""

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
    figures: Mapping[str, float | None] = field(default_factory=dict)


def claim_job(connection: Connection, worker: WorkerId) -> ClaimedJob | None:
    """The next job, now this worker's, or None. A job whose specification cannot be read fails on the way."""
    while True:
        row = connection.execute(query("claim_job"), {"worker": worker}).fetchone()
        if row is None:
            return None
        job, claim, attempt, owner_oid, spec = row
        decoded = _decoded(job, spec)
        if isinstance(decoded, RequestError):
            fail(connection, job, claim, decoded, retry=False)
            continue
        return ClaimedJob(job=JobId(job), claim=ClaimToken(claim), attempt=attempt, owner_oid=owner_oid, spec=decoded)


def register_worker(connection: Connection, *, host: str, pid: int, device_kind: str, lease_s: float) -> WorkerId:
    """A new worker, whose first heartbeat this is.

    Where the database is a copy of another one, what came with it goes to the roles of the same names here.
    """
    connection.execute(query("adopt_owners"))
    parameters = {"host": host, "pid": pid, "device": device_kind, "version": VERSION, "lease_s": lease_s}
    return WorkerId(_only(connection, "register_worker", parameters))


def beat(connection: Connection, worker: WorkerId, held: Mapping[JobId, ClaimToken] | None = None) -> Beat:
    """Renew the worker's lease. `lost` and `strays` are told only where it says which jobs it holds."""
    parameters = {"worker": worker, "jobs": list(held or ()), "claims": list((held or {}).values())}
    row = connection.execute(query("beat"), parameters).fetchone()
    assert row is not None
    alive, cancelled, lost, stray_jobs, stray_claims = row
    strays = () if held is None else tuple(zip(stray_jobs, stray_claims, strict=True))
    return Beat(alive=alive, cancelled=tuple(cancelled), lost=tuple(lost), strays=strays)


def leave(connection: Connection, worker: WorkerId) -> None:
    """The worker claims nothing more; jobs it still holds are rescued by others without waiting for its lease."""
    connection.execute(query("leave"), {"worker": worker})


def database_identity(connection: Connection) -> tuple[str, str]:
    """The installation's id, and the microsecond at which the database's server process started."""
    row = connection.execute(query("database_identity")).fetchone()
    assert row is not None
    return str(row[0]), str(row[1])


def announce_service(connection: Connection, worker: WorkerId, name: str | None) -> None:
    """The name of the service's socket within the administrator's directory; None: no service answers."""
    connection.execute(query("announce_service"), {"worker": worker, "name": name})


def rescue(connection: Connection) -> tuple[JobId, ...]:
    """Take jobs from workers whose lease is over or that left.

    Each goes back into the queue with a back-off, fails when its attempts are used up, or is cancelled where its
    owner asked for that. Several controllers may do this at once.
    """
    return tuple(JobId(row[0]) for row in connection.execute(query("rescue")))


def foreign_jobs(connection: Connection) -> int:
    """How many queued jobs came with a copy of another database; no worker of this one ever claims them."""
    return int(_only(connection, "foreign_jobs", {}))


def start_running(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """From starting to running."""
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


def fail(connection: Connection, job: JobId, claim: ClaimToken, error: TensileError, *, retry: bool) -> JobState:
    """The attempt ended with this error; the state the job has now.

    `retry`: back into the queue after a back-off, unless attempts are used up. Cancelled where the owner asked.
    """
    state = _guarded(
        connection,
        "fail",
        job,
        claim,
        sqlstate=error.sqlstate,
        message=error.message,
        detail=error.detail or None,
        hint=error.hint or None,
        retry=retry,
    )
    return JobState(state)


def cancelled(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """The job was stopped as its owner asked."""
    _guarded(connection, "cancelled", job, claim)


def requeue(
    connection: Connection, job: JobId, claim: ClaimToken, reason: str, *, device: TensileError | None = None
) -> None:
    """Hand the job back through no fault of its own: the attempt does not count, and it may start again at once.

    `device`: what befell the one it ran on, which its owner reads until the job goes on.
    """
    _guarded(
        connection,
        "requeue",
        job,
        claim,
        reason=reason,
        waits_for=None if device is None else f"a device that works: {device.message}",
        sqlstate=None if device is None else device.sqlstate,
        message=None if device is None else device.message,
        detail=None if device is None else device.detail or None,
        hint=None if device is None else device.hint or None,
    )


def record_event(connection: Connection, job: JobId, claim: ClaimToken, kind: str, detail: Mapping[str, Any]) -> None:
    """Add something worth knowing to the job's history; changes of state are there without it."""
    _guarded(connection, "record_event", job, claim, kind=kind, detail=Jsonb(dict(detail)))


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
    return decoded


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
)


def _guarded(connection: Connection, name: LiteralString, job: JobId, claim: ClaimToken, **values: Any) -> Any:
    row = connection.execute(query(name), {"job": job, "claim": claim, **values}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
    return row[0]


def _only(connection: Connection, name: LiteralString, values: Mapping[str, Any]) -> Any:
    row = connection.execute(query(name), values).fetchone()
    assert row is not None
    return row[0]
