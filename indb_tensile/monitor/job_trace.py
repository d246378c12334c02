"""Traces of running jobs: asks their trainers for recordings, and lays them beside what their plans foretell."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from indb_tensile.catalog import traces
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.stored_recordings import decode_recording
from indb_tensile.errors import MissingError, RequestError
from indb_tensile.monitor.live_figures import Row, rows, statement
from indb_tensile.scheduler.document import Document
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.timing.job_runs import Event, EventKind, JobRun
from indb_tensile.scheduler.timing.machines import link as machine_link
from indb_tensile.scheduler.timing.recorded_iterations import Recording
from indb_tensile.scheduler.timing.simulate import timeline
from indb_tensile.scheduler.timing.trace_events import Stretch, Track, trace_tracks

_UNMEASURED_GB_PER_S = 25.0  # the default of `tensile plan --link`
_COPIES = frozenset((EventKind.SWAP_OUT, EventKind.SWAP_IN))


def ask_for_traces(
    connection: Connection, jobs: Sequence[int], *, iterations: int, seconds: float, starts_in_s: float = 0.0
) -> dict[int, datetime]:
    """Ask for a recording of each job, and return the time of each request. Raises psycopg's errors."""
    asked = {}
    for job in jobs:
        values = {"job": job, "iterations": iterations, "seconds": seconds, "starts_in": starts_in_s}
        row = connection.execute(statement("ask_trace"), values).fetchone()
        assert row is not None
        asked[job] = row[0]
    return asked


def own_jobs_on_devices(connection: Connection) -> list[Row]:
    """Return the viewer's own jobs that are on a device now, with their workers."""
    return rows(connection, "own_device_jobs")


def trace_state(connection: Connection, job: int, requested_at: datetime) -> Row:
    """Return whether the recording of this request is stored, and the job's state. Raises MissingError."""
    states = rows(connection, "trace_state", job=job, requested_at=requested_at)
    if not states:
        raise MissingError(f"there is no job {job}", hint="It was deleted, or belongs to another role.")
    return states[0]


def trace_text(connection: Connection, jobs: Sequence[int]) -> str:
    """Return the trace of the newest recordings of these jobs, for Perfetto: each job's plan beside its iterations.

    Raises MissingError for a job that has none, or whose recording the viewer may not read.
    """
    return trace_tracks([track for job in jobs for track in _tracks(connection, job)])


def _tracks(connection: Connection, job: int) -> tuple[Track, Track]:
    row = connection.execute(statement("trace_recording"), {"job": job}).fetchone()
    document = traces.load_job_graph(connection, job)
    if row is None or document is None:
        raise MissingError(
            f"job {job} has no trace that you may read",
            hint="Only the owner of a job can trace it, while it trains: tensile trace JOB_ID.",
        )
    recording, followed = decode_recording(row[0]), traces.load_job_plans(connection, job)
    runs = {plan.generation: _run(document, plan) for plan in followed}
    missing = [part.generation for part in recording.parts if part.generation not in runs]
    if missing:
        raise MissingError(
            f"the trace of job {job} is of plan {missing[0]}, and the catalog has the plans {sorted(runs)}",
            hint="The job has begun a new attempt since. Record it again.",
        )
    measured_link = traces.load_link(connection, job)
    link = measured_link or machine_link(_UNMEASURED_GB_PER_S)
    planned = [_planned(runs[part.generation], part.iterations, link, part.generation) for part in recording.parts]
    note = "" if measured_link else f"; the link was not measured: {_UNMEASURED_GB_PER_S:g} GB/s"
    name = f"job {job}: {document.name}"
    return (
        Track(name=f"{name}, planned{note}", stretches=planned),
        Track(name=f"{name}, measured", stretches=_measured(recording, runs), pauses=recording.pauses),
    )


def _run(document: Document, followed: traces.FollowedPlan) -> JobRun:
    if document.latency_ns is None:
        raise RequestError(f"the graph of {document.name} has no latencies")
    return JobRun(graph=document.graph, plan=followed.plan, latency_ns=document.latency_ns)


def _measured(recording: Recording, runs: Mapping[int, JobRun]) -> list[Stretch]:
    return [
        Stretch(
            run=runs[part.generation],
            events=part.events,
            name=f"iteration under plan {part.generation}, recorded as number",
            iterations=part.iterations,
            used_bytes=part.used_bytes,
        )
        for part in recording.parts
    ]


def _planned(run: JobRun, iterations: Sequence[tuple[int, int]], link: Link, generation: int) -> Stretch:
    """Return the iteration that the plan foretells, once for each that was measured, from the same moment on."""
    once = timeline([run], link)
    begun_ns = min((e.start_ns for e in once if e.kind not in _COPIES and e.operator == 0), default=0)
    ended_ns = max((e.end_ns for e in once if e.kind not in _COPIES), default=begun_ns)
    events: list[Event] = []
    spans: list[tuple[int, int]] = []
    for start_ns, _ in iterations:
        shift_ns = start_ns - begun_ns
        spans.append((start_ns, ended_ns + shift_ns))
        events += [replace(e, start_ns=e.start_ns + shift_ns, end_ns=e.end_ns + shift_ns) for e in once]
    return Stretch(run=run, events=events, name=f"iteration of plan {generation}, foretold", iterations=spans)


def as_file_name(job: int | None) -> str:
    """Return the name of the file of a trace of one job, or of a device."""
    return "device-trace.json" if job is None else f"job-{job}-trace.json"


def unfinished(states: Mapping[int, Row]) -> list[int]:
    """Return the jobs whose recording is not there yet."""
    return [job for job, state in states.items() if not state["recorded"]]


def describe_wait(job: int, state: Mapping[str, Any]) -> str:
    """Return what a job does while its recording is awaited."""
    if state["paused"]:
        return f"job {job} is paused, and is recorded once it trains again"
    return f"job {job} is {state['state']}, in phase {state['phase'] or 'none'}"
