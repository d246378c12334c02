"""Requests for traces, the recordings that answer them, and the step graphs of jobs."""

import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from psycopg.rows import dict_row

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.errors import RequestError
from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.document import Document, read_document, write_document
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link, link_of
from indb_tensile.scheduler.plan import Plan

_MOST_GRAPH_BYTES = 8 << 20  # compressed: a graph of more than 100,000 operators
_MOST_TEXT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """An owner's open request. The recording begins in `starts_in_s` seconds."""

    requested_at: datetime
    iterations: int
    seconds: float
    starts_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedPlan:
    """A plan of a job's training step, as the catalog has it. `attempt` and `generation` name it."""

    attempt: int
    generation: int
    policy: str
    plan: Plan
    peak_bytes: int | None  # predicted for all the job's graphs


def find_request(connection: Connection, job: JobId) -> TraceRequest | None:
    """Return the open request for a trace of the job."""
    row = connection.execute(query("trace_request"), {"job": job}).fetchone()
    if row is None:
        return None
    requested_at, iterations, seconds, starts_in_s = row
    return TraceRequest(requested_at=requested_at, iterations=iterations, seconds=seconds, starts_in_s=starts_in_s)


def save_trace(
    connection: Connection, job: JobId, claim: ClaimToken, requested_at: datetime, recording: bytes
) -> None:
    """Store the recording, unless the owner has made another request or the job has another worker."""
    values = {"job": job, "claim": claim, "requested_at": requested_at, "recording": recording}
    connection.execute(query("save_trace"), values)


def save_job_graph(connection: Connection, job: JobId, claim: ClaimToken, document: Document) -> bool:
    """Store the step graph of the job. Returns whether it is small enough to be stored."""
    graph = zlib.compress(write_document(document).encode())
    if len(graph) > _MOST_GRAPH_BYTES:
        return False
    connection.execute(query("save_job_graph"), {"job": job, "claim": claim, "graph": graph})
    return True


def load_job_graph(connection: Connection, job: int) -> Document | None:
    """Return the step graph of a job, or None if there is none that the caller may see."""
    row = connection.execute(query("job_graph"), {"job": job}).fetchone()
    if row is None:
        return None
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(row[0], _MOST_TEXT_BYTES)
    except zlib.error as error:
        raise RequestError(f"the stored graph of job {job} cannot be read: {error}") from error
    return read_document(text)


def load_job_plans(connection: Connection, job: int) -> tuple[FollowedPlan, ...]:
    """Return the plans of the newest attempt of a job that its trainer has followed, the oldest first."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(query("job_plans"), {"job": job}).fetchall()
    return tuple(_job_plan(row) for row in rows)


def load_link(connection: Connection, job: int) -> Link | None:
    """Return the measured link of the device that the job was on last, or None if it was never measured."""
    rows = connection.execute(query("job_link"), {"job": job}).fetchall()
    measured = [
        CopyMeasurement(
            way=CopyDirection(way), beside=beside, size_bytes=size_bytes, latency_ns=latency_ns, copy_ns=copy_ns
        )
        for way, beside, size_bytes, latency_ns, copy_ns in rows
    ]
    alone = {row.way for row in measured if not row.beside}
    return link_of(measured) if alone == set(CopyDirection) else None


def _job_plan(row: dict[str, Any]) -> FollowedPlan:
    plan = msgspec.convert(row["plan"][0], Plan)
    return FollowedPlan(
        attempt=row["attempt"],
        generation=row["generation"],
        policy=row["policy"],
        plan=plan,
        peak_bytes=row["predicted_peak_bytes"],
    )
