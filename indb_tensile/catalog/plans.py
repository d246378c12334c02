"""Stores step graphs, operator latencies, memory plans and the memory use of devices.

Latencies are stored so that later jobs need not measure the same operators again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import lost_claim
from indb_tensile.catalog.queries import query
from indb_tensile.catalog.usage import JobUsage, record_usage
from indb_tensile.job import ClaimToken, JobId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMeasurement:
    """The measured cost of one operator: the median time of `samples` runs, and the largest workspace."""

    signature: str
    name: str
    latency_ns: int
    workspace_bytes: int
    samples: int = 1
    predicted_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One generation of a job's plan, with the peaks of other policies and the simulator's prediction."""

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
    """The memory use of a worker's device at one moment, in bytes, and its activity in percent."""

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
    """The part of one job in the use of a device."""

    job: JobId
    granted_bytes: int
    used_bytes: int
    high_water_bytes: int
    speed: float | None = None  # of its iterations, relative to alone on the device with all the memory
    lent_bytes: int = 0  # of the grant, until another job needs them


def known_latencies(
    connection: Connection, device_kind: str, signatures: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return latency in ns and workspace in bytes of those operators that were measured on this kind of device."""
    values = {"device_kind": device_kind, "signatures": sorted(set(signatures))}
    rows = connection.execute(query("known_latencies"), values)
    return {signature: (latency_ns, workspace_bytes) for signature, latency_ns, workspace_bytes in rows}


def record_latencies(connection: Connection, device_kind: str, rows: Iterable[OpMeasurement]) -> None:
    """Add measurements to the stored ones: a moving average of latencies, and the largest workspace.

    If `rows` has several measurements of one signature, only the last one counts.
    """
    by_signature = {row.signature: row for row in rows}
    if not by_signature:
        return
    measurements = list(by_signature.values())
    connection.execute(
        query("record_latencies"),
        {
            "device_kind": device_kind,
            "signatures": [m.signature for m in measurements],
            "names": [m.name for m in measurements],
            "latencies": [m.latency_ns for m in measurements],
            "workspaces": [m.workspace_bytes for m in measurements],
            "samples": [m.samples for m in measurements],
            "predictions": [m.predicted_ns for m in measurements],
        },
    )


def raise_workspaces(connection: Connection, device_kind: str, rows: Iterable[OpMeasurement]) -> frozenset[str]:
    """Store workspaces that turned out larger than the stored ones. Return the signatures of those that were new.

    A stored latency does not change, because the operator was not timed.
    """
    measurements = list({row.signature: row for row in rows}.values())
    raised = connection.execute(
        query("raise_workspaces"),
        {
            "device_kind": device_kind,
            "signatures": [m.signature for m in measurements],
            "names": [m.name for m in measurements],
            "latencies": [m.latency_ns for m in measurements],
            "workspaces": [m.workspace_bytes for m in measurements],
        },
    )
    return frozenset(signature for (signature,) in raised)


def record_graph(connection: Connection, signature: str, summary: Mapping[str, Any]) -> None:
    """Store the summary of a captured graph. A stored summary does not change."""
    connection.execute(query("record_graph"), {"signature": signature, "summary": Jsonb(dict(summary))})


def record_plan(connection: Connection, job: JobId, claim: ClaimToken, record: PlanRecord, plan: Any = None) -> None:
    """Store a plan before it is sent to the trainer; `plan` is JSON. Raises LostClaimError."""
    values = {**asdict(record), "job": job, "claim": claim, "plan": None if plan is None else Jsonb(plan)}
    if connection.execute(query("record_plan"), values).fetchone() is None:
        raise lost_claim(job, claim)


def record_set(
    connection: Connection, job: JobId, claim: ClaimToken, beside: Sequence[JobId], throughput: float, speed: float
) -> None:
    """Store the jobs that this job runs beside from now on, with their foretold system throughput and its own part.

    Raises LostClaimError.
    """
    values = {"job": job, "claim": claim, "beside": list(beside), "throughput": throughput, "speed": speed}
    if connection.execute(query("record_set"), values).fetchone() is None:
        raise lost_claim(job, claim)


def end_set(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """Write that this job does not run beside others now. Does nothing if it has no present set."""
    connection.execute(query("end_set"), {"job": job, "claim": claim})


def set_measured(connection: Connection, job: JobId, claim: ClaimToken, throughput: float, *, weight: float) -> None:
    """Blend a measured system throughput into that of the job's present set, if it has one."""
    values = {"job": job, "claim": claim, "throughput": throughput, "weight": weight}
    connection.execute(query("set_measured"), values)


def plan_adopted(connection: Connection, job: JobId, claim: ClaimToken, generation: int) -> None:
    """Write that the trainer has begun to follow this generation. Raises LostClaimError."""
    _update_plan(connection, "plan_adopted", job, claim, {"generation": generation})


def plan_foreseen(
    connection: Connection, job: JobId, claim: ClaimToken, generation: int, *, iteration_ns: int, stall_ns: int
) -> None:
    """Write the simulator's prediction for the generation with the latencies known now. Raises LostClaimError."""
    values = {"generation": generation, "iteration_ns": iteration_ns, "stall_ns": stall_ns}
    _update_plan(connection, "plan_foreseen", job, claim, values)


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
    """Write the generation's measured peak and times: the highest peak so far, and moving averages of the times.

    `weight` is the weight of the new times in the averages. The latencies behind the prediction are averaged in the
    same way, so the two can be compared. Raises LostClaimError.
    """
    values = {
        "generation": generation,
        "peak_bytes": peak_bytes,
        "iteration_ns": iteration_ns,
        "stall_ns": stall_ns,
        "weight": weight,
    }
    _update_plan(connection, "plan_measured", job, claim, values)


def record_device(
    connection: Connection,
    worker: WorkerId,
    use: DeviceUse,
    jobs: Sequence[JobUse] = (),
    usages: Sequence[JobUsage] = (),
) -> None:
    """Replace the stored memory use of the worker's device and of the jobs on it, and add what jobs have used."""
    with connection.transaction():
        connection.execute(query("record_device"), {**asdict(use), "worker": worker})
        by_job = {
            "worker": worker,
            "jobs": [j.job for j in jobs],
            "granted": [j.granted_bytes for j in jobs],
            "used": [j.used_bytes for j in jobs],
            "high_water": [j.high_water_bytes for j in jobs],
        }
        connection.execute(query("record_device_jobs"), by_job)
        connection.execute(query("record_samples"), by_job)
        record_usage(connection, usages)


def _update_plan(
    connection: Connection, name: str, job: JobId, claim: ClaimToken, values: Mapping[str, float]
) -> None:
    row = connection.execute(query(name), {**values, "job": job, "claim": claim}).fetchone()
    if row is None:
        raise lost_claim(job, claim)
