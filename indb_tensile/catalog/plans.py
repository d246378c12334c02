"""What the catalog remembers about graphs, operators, plans and devices, so that the next job starts warm."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import lost_claim
from indb_tensile.catalog.queries import query
from indb_tensile.job import ClaimToken, JobId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMeasurement:
    """What one operator took: a median over `samples` runs, and the most memory beside its outputs."""

    signature: str
    name: str
    latency_ns: int
    workspace_bytes: int
    samples: int = 1
    predicted_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One generation of a job's plan, with what the rivals would need and what the simulator predicts."""

    generation: int
    reason: str
    policy: str
    vanilla_peak_bytes: int | None = None
    liveness_peak_bytes: int | None = None
    floor_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    predicted_iteration_ns: int | None = None
    predicted_stall_ns: int | None = None
    swaps: int = 0
    swapped_bytes: int = 0
    recomputed: int = 0
    planning_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Memory of a worker's device at one moment."""

    kind: str
    capacity_bytes: int
    budget_bytes: int
    granted_bytes: int
    used_bytes: int
    high_water_bytes: int
    host_bytes: int
    busy_percent: int | None = None
    memory_busy_percent: int | None = None
    outside_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """One job's part of it."""

    job: JobId
    granted_bytes: int
    used_bytes: int
    high_water_bytes: int


def known_latencies(
    connection: Connection, device_kind: str, signatures: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Latency in ns and workspace in bytes of those operators that have run on this kind of device."""
    values = {"device_kind": device_kind, "signatures": sorted(set(signatures))}
    rows = connection.execute(query("known_latencies"), values)
    return {signature: (latency_ns, workspace_bytes) for signature, latency_ns, workspace_bytes in rows}


def record_latencies(connection: Connection, device_kind: str, rows: Iterable[OpMeasurement]) -> None:
    """Fold measurements into what is known: a moving average of latencies, the largest workspace.

    Measurements of one signature within `rows` count as one: the last.
    """
    last = {row.signature: row for row in rows}
    if not last:
        return
    kept = list(last.values())
    connection.execute(
        query("record_latencies"),
        {
            "device_kind": device_kind,
            "signatures": [r.signature for r in kept],
            "names": [r.name for r in kept],
            "latencies": [r.latency_ns for r in kept],
            "workspaces": [r.workspace_bytes for r in kept],
            "samples": [r.samples for r in kept],
            "predictions": [r.predicted_ns for r in kept],
        },
    )


def record_graph(connection: Connection, signature: str, summary: Mapping[str, Any]) -> None:
    """Remember that a graph was captured; known ones are left as they are."""
    connection.execute(query("record_graph"), {"signature": signature, "summary": Jsonb(dict(summary))})


def record_plan(connection: Connection, job: JobId, claim: ClaimToken, record: PlanRecord, plan: Any = None) -> None:
    """Store a plan before it is handed out; `plan` is JSON. Raises LostClaimError."""
    values = {**asdict(record), "job": job, "claim": claim, "plan": None if plan is None else Jsonb(plan)}
    if connection.execute(query("record_plan"), values).fetchone() is None:
        raise lost_claim(job, claim)


def plan_adopted(connection: Connection, job: JobId, claim: ClaimToken, generation: int) -> None:
    """The trainer follows this generation now. Raises LostClaimError."""
    _about_plan(connection, "plan_adopted", job, claim, {"generation": generation})


def plan_foreseen(
    connection: Connection, job: JobId, claim: ClaimToken, generation: int, *, iteration_ns: int, stall_ns: int
) -> None:
    """What the simulator says of the generation with the latencies known now. Raises LostClaimError."""
    values = {"generation": generation, "iteration_ns": iteration_ns, "stall_ns": stall_ns}
    _about_plan(connection, "plan_foreseen", job, claim, values)


def plan_measured(
    connection: Connection,
    job: JobId,
    claim: ClaimToken,
    generation: int,
    *,
    peak_bytes: int,
    iteration_ns: int,
    stall_ns: int,
    weight: float,
) -> None:
    """What the generation took on the device: the highest peak so far, and times, of which `weight` is new.

    Times are averaged as the latencies are that the prediction stands on. Raises LostClaimError.
    """
    values = {
        "generation": generation,
        "peak_bytes": peak_bytes,
        "iteration_ns": iteration_ns,
        "stall_ns": stall_ns,
        "weight": weight,
    }
    _about_plan(connection, "plan_measured", job, claim, values)


def record_device(connection: Connection, worker: WorkerId, use: DeviceUse, jobs: Sequence[JobUse] = ()) -> None:
    """Replace what is known about the worker's device, and about the jobs on it."""
    with connection.transaction():
        connection.execute(query("record_device"), {**asdict(use), "worker": worker})
        connection.execute(
            query("record_device_jobs"),
            {
                "worker": worker,
                "jobs": [j.job for j in jobs],
                "granted": [j.granted_bytes for j in jobs],
                "used": [j.used_bytes for j in jobs],
                "high_water": [j.high_water_bytes for j in jobs],
            },
        )


def _about_plan(
    connection: Connection, name: str, job: JobId, claim: ClaimToken, values: Mapping[str, float]
) -> None:
    row = connection.execute(query(name), {**values, "job": job, "claim": claim}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
