"""`tensile trace` records iterations of running jobs, and writes them as a trace for Perfetto."""

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import click

from indb_tensile.catalog.connection import Connection, pinned
from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.output import warn
from indb_tensile.cli.shared_options import dsn_option
from indb_tensile.errors import MissingError, RequestError, WaitTimeoutError
from indb_tensile.monitor import job_trace
from indb_tensile.monitor.live_figures import Row

_POLL_S = 0.2
_TOGETHER_S = 2.0  # until all trainers have seen the request: each looks twice a second, between two iterations


@click.command()
@click.argument("job_id", type=click.IntRange(min=1), required=False)
@click.option("--device", "of_device", is_flag=True, help="record all your jobs on a device, at the same time")
@click.option("--worker", type=click.IntRange(min=1), help="with --device: the device's controller (tensile workers)")
@click.option(
    "--iterations", type=click.IntRange(1, 1000), help="most iterations of a job; by default 5, of a device 100"
)
@click.option("--seconds", type=click.FloatRange(0, 60), help="record no longer; by default 10, of a device 1")
@click.option("--timeout", type=click.FloatRange(min=0), default=120.0, show_default=True, help="seconds to wait")
@click.option(
    "--output", type=click.Path(path_type=Path), help="file to write; by default job-JOB_ID-trace.json here"
)
@dsn_option
def trace(
    job_id: int | None,
    of_device: bool,
    worker: int | None,
    iterations: int | None,
    seconds: float | None,
    timeout: float,
    output: Path | None,
    dsn: str | None,
) -> None:
    """Record the next iterations of the running job JOB_ID, and write them as a trace for ui.perfetto.dev.

    The trace has two tracks for each job: what its plan foretells, and what was measured. It names operators and
    those that run again, copies to the host and back, waits for late copies and at the gates of a round, waits for
    batches, times off the device, and changes of plans. Jobs that are not being recorded run as always. Only the
    owner of a job can trace it. With --device the trace has all your jobs on one device, recorded at the same time.
    """
    if (job_id is None) != of_device:
        raise click.UsageError("give either the number of a job or --device")
    if worker is not None and not of_device:
        raise click.UsageError("--worker names a device: it needs --device")
    most = iterations or (100 if of_device else 5)
    span_s = seconds if seconds is not None else (1.0 if of_device else 10.0)
    with open_connection(dsn) as connection:
        with pinned(connection):
            jobs = [job_id] if job_id is not None else _jobs_on(connection, worker)
            starts_in_s = _TOGETHER_S if of_device else 0.0
            asked = job_trace.ask_for_traces(
                connection, jobs, iterations=most, seconds=span_s, starts_in_s=starts_in_s
            )
        recorded = _wait(connection, asked, timeout + span_s + starts_in_s)
        with pinned(connection):
            text = job_trace.trace_text(connection, recorded)
    path = output or Path(job_trace.as_file_name(job_id))
    path.write_text(text, encoding="utf-8")
    click.echo(f"{path}: open it at https://ui.perfetto.dev")


def _jobs_on(connection: Connection, worker: int | None) -> list[int]:
    """Return the caller's jobs on the device.

    Raises MissingError if there are none, RequestError if they are on several devices and none is named.
    """
    own = job_trace.own_jobs_on_devices(connection)
    workers = sorted({row["worker_id"] for row in own})
    if not own or (worker is not None and worker not in workers):
        where = "any device" if worker is None else f"the device of worker {worker}"
        raise MissingError(f"you have no job on {where} now", hint="tensile jobs lists your jobs.")
    if worker is None and len(workers) > 1:
        raise RequestError(
            f"your jobs are on {len(workers)} devices", hint=f"Choose one: --worker {' or '.join(map(str, workers))}"
        )
    return [row["job_id"] for row in own if worker is None or row["worker_id"] == worker]


def _wait(connection: Connection, asked: Mapping[int, datetime], limit_s: float) -> list[int]:
    """Return the jobs that were recorded. Raises RequestError if all ended before, WaitTimeoutError at the limit."""
    ends_s = time.monotonic() + limit_s
    while True:
        with pinned(connection):
            states = {job: job_trace.trace_state(connection, job, at) for job, at in asked.items()}
        awaited = {job: states[job] for job in job_trace.unfinished(states)}
        running = {job: state for job, state in awaited.items() if state["state"] in ("starting", "running")}
        if not running:
            return _recorded(states, awaited)
        if time.monotonic() >= ends_s:
            job, state = next(iter(running.items()))
            raise WaitTimeoutError(
                f"job {job} was not recorded within {limit_s:g} seconds",
                detail=f"{job_trace.describe_wait(job, state)}.",
                hint="Its trainer records it as soon as it can: wait longer with --timeout.",
            )
        time.sleep(_POLL_S)


def _recorded(states: Mapping[int, Row], missed: Mapping[int, Row]) -> list[int]:
    if len(missed) == len(states):
        job, state = next(iter(missed.items()))
        raise RequestError(
            f"job {job} left its device before an iteration was recorded: it is {state['state']}",
            hint="Trace a job while it trains. Its plan stays: tensile plan JOB_ID.",
        )
    for job, state in missed.items():
        warn(f"job {job} was not recorded: it is {state['state']}")
    return [job for job in states if job not in missed]
