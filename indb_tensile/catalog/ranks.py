"""The ranks of a job that several devices train together: their states, and the values by which they find each other.

Every statement carries the claim of a rank. The rows of the ranks exist only as long as the attempt, so a statement
of a rank whose attempt has ended raises LostClaimError.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import guarded, lost_claim
from indb_tensile.catalog.queries import query
from indb_tensile.job import ClaimToken, JobId


class RankState(StrEnum):
    """What a rank does, as `tensile.job_ranks` has it. Ranks pass through these states in this order."""

    OFFERED = "offered"
    PREPARING = "preparing"
    PREPARED = "prepared"
    ADMITTED = "admitted"
    TRAINING = "training"
    FINISHED = "finished"


def attempt_of(connection: Connection, job: JobId, claim: ClaimToken) -> ClaimToken:
    """Return the claim under which the attempt writes about its job: the leader's for a rank, else this claim."""
    row = connection.execute(query("claimed_rank"), {"job": job, "claim": claim}).fetchone()
    return claim if row is None else ClaimToken(row[1])


def take_back_gangs(connection: Connection, patience_s: float) -> tuple[JobId, ...]:
    """Return gangs to the queue whose ranks were not all accepted in time, or not all admitted. Returns these jobs.

    A rank may hold memory for `patience_s` while other ranks wait for theirs.
    """
    return tuple(JobId(row[0]) for row in connection.execute(query("take_back_gangs"), {"patience_s": patience_s}))


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedGang:
    """A queued job whose number of devices has changed to `devices`, of the `asked` ones that its request names."""

    job: JobId
    devices: int
    asked: int


def fit_gangs(connection: Connection) -> tuple[FittedGang, ...]:
    """Give queued jobs that have lost a device the number of devices that can run them now.

    A job first waits for another device, as long as the database's setting fewer_devices_after says. Returns the jobs
    whose number of devices has changed.
    """
    rows = connection.execute(query("fit_gangs"))
    return tuple(FittedGang(job=JobId(job), devices=devices, asked=asked) for job, devices, asked in rows)


def enter_state(
    connection: Connection, job: JobId, claim: ClaimToken, state: RankState, *, divides_state: bool | None = None
) -> None:
    """Record what the rank does from now on and, if given, whether the ranks divide the optimizer's state."""
    guarded(connection, "enter_rank_state", job, claim, state=state.value, divides_state=divides_state)


def states(connection: Connection, job: JobId, claim: ClaimToken) -> tuple[RankState, ...]:
    """Return the states of all ranks of the job, in order."""
    return tuple(map(RankState, guarded(connection, "rank_states", job, claim)))


def put_value(connection: Connection, job: JobId, claim: ClaimToken, key: str, value: bytes) -> None:
    """Store a value for all ranks of the job."""
    guarded(connection, "put_rank_value", job, claim, key=key, value=value)


def add_value(connection: Connection, job: JobId, claim: ClaimToken, key: str, amount: int) -> int:
    """Add to a value that is a number, which begins at 0, and return the sum."""
    return int(guarded(connection, "add_rank_value", job, claim, key=key, amount=amount))


def values(connection: Connection, job: JobId, claim: ClaimToken, keys: Sequence[str]) -> Mapping[str, bytes]:
    """Return the values of those of these keys that a rank has stored."""
    row = connection.execute(query("rank_values"), {"job": job, "claim": claim, "keys": list(keys)}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
    return {key: bytes(value) for key, value in zip(*row, strict=True)}


def publish_step(connection: Connection, job: JobId, claim: ClaimToken, *, step_ns: int, value: bytes) -> None:
    """Let the controllers of the job's other ranks know this one's step, which takes `step_ns` by itself."""
    guarded(connection, "publish_rank_step", job, claim, step_ns=step_ns, value=value)


def published_steps(connection: Connection, job: JobId, claim: ClaimToken) -> tuple[tuple[int, bytes], ...]:
    """Return the steps that ranks have published, by the number of the rank."""
    row = connection.execute(query("rank_steps"), {"job": job, "claim": claim}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
    return tuple((rank, bytes(value)) for rank, value in zip(*row, strict=True))


def gang_budgets(connection: Connection, device_kind: str, devices: int) -> tuple[tuple[str, int], ...]:
    """Return host and budget in bytes of the largest devices of this kind, no more than so many."""
    rows = connection.execute(query("gang_budgets"), {"device_kind": device_kind, "devices": devices})
    return tuple((host, budget_bytes) for host, budget_bytes in rows)


def remove_value(connection: Connection, job: JobId, claim: ClaimToken, key: str) -> bool:
    """Delete a value, and return whether there was one."""
    return bool(guarded(connection, "remove_rank_value", job, claim, key=key))
